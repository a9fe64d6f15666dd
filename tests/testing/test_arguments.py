"""The report of the conformance kit and its arguments, and policies that are none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch import nn

from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.testing import LAWS, Report, Row, check_policy
from discrete_grpo.training.config import GRPOConfig
from tests import broken_policies as twins
from tests.letters import letters_policy
from tests.testing.parts import WORDS, check_words, row

# ---------------------------------------------------------------- the report and the arguments


def test_a_report_is_a_plain_table_and_the_text_of_its_error() -> None:
    good = Row("units", 0.0, 0.0, "passed", "12 sites")
    bad = Row("steps", 0.25, 1e-4, "failed")
    skipped = Row("permutation", math.nan, math.nan, "skipped", "no permute given")
    report = Report((good, bad, skipped))
    assert str(report).splitlines() == [
        "law          error  tolerance  result   note",
        "units        0      0          passed   12 sites",
        "steps        0.25   0.0001     failed",
        "permutation  -      -          skipped  no permute given",
        "3 laws: 1 passed, 1 failed, 1 skipped",
    ]
    assert (report.passed, report.failed, report.skipped) == (False, ("steps",), ("permutation",))
    with pytest.raises(AssertionError, match=r"policy: breaks steps\nlaw  .*\n") as caught:
        report.raise_on_failure()
    assert str(report) in str(caught.value)
    Report((good, skipped)).raise_on_failure()


def test_an_exception_of_several_laws_stands_at_the_first_of_them() -> None:
    raised = [Row(law, math.inf, math.nan, "failed", "TypeError: no sites (mine.py, line 3)") for law in ("units", "steps")]
    others = [Row("ratio", 1.0, 0.0, "failed"), Row("mask", 2.0, 0.0, "failed"), Row("kl", 0.0, 0.0, "passed", raised[0].note)]
    assert str(Report((*raised, *others))).splitlines() == [
        "law    error  tolerance  result  note",
        "units  inf    -          failed  TypeError: no sites (mine.py, line 3)",
        "steps  inf    -          failed  as units",
        "ratio  1      0          failed",
        "mask   2      0          failed",
        "kl     0      0          passed  TypeError: no sites (mine.py, line 3)",
        "5 laws: 1 passed, 4 failed, 0 skipped",
    ]


def test_a_law_that_raises_fails_with_what_was_said() -> None:
    found = row(check_words(twins.Raises()), "steps")
    assert found.error == math.inf
    assert re.fullmatch(r"KeyError: 'nothing known of\\nsteps' \(broken_policies\.py, line \d+\)", found.note)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="contexts: none given, expected at least one"):
        check_policy(twins.Words(), [])
    with pytest.raises(ValueError, match=r"skip: unit, expected some of shapes, contexts"):
        check_policy(twins.Words(), WORDS, skip=["unit"])
    with pytest.raises(ValueError, match=r"^skip: 'learning', expected a list of names, such as \['learning'\]$"):
        check_policy(twins.Words(), WORDS, skip="learning")
    methods = SimpleNamespace(sample=twins.Words().sample, sites=twins.Words().sites)
    with pytest.raises(TypeError, match="policy: SimpleNamespace is no"):
        check_policy(methods, WORDS)
    bare = twins.Words()
    bare.network = nn.Sequential()
    with pytest.raises(ValueError, match="policy: no parameters, expected at least one"):
        check_policy(bare, WORDS)
    left_out = row(check_words(twins.Words(), skip=["learning", "steps"]), "steps")
    assert left_out == replace(left_out, outcome="skipped", note="left out by the caller")


# ---------------------------------------------------------------- arguments, and policies that are none


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seconds": -1}, "seconds: -1, expected more than 0"),
        ({"samples": 0}, "samples: 0, expected at least 1"),
        ({"samples": 2.5}, "samples: 2.5, expected a whole number, at least 1"),
        ({"seed": "x"}, "seed: 'x', expected a whole number"),
        ({"learning": 3}, "learning: 3, expected a GRPOConfig"),
        ({"learning": GRPOConfig(max_steps=2)}, "learning: max_steps=2, expected at least 3, over which the reward is averaged"),
        ({"space": 3}, "space: 3, expected a Rollout, a function that makes one, or None"),
        ({"contexts": []}, "contexts: none given, expected at least one"),
        ({"contexts": [{"length": 3}]}, "contexts: {'length': 3}, expected Context(group, columns)"),
        ({"contexts": Context(3)}, "contexts: Context(group=3, columns={}), expected a list of Context(group, columns)"),
        ({"permute": "x"}, "permute: 'x', expected a function of (rollout, generator)"),
        ({"pad": 3}, "pad: 3, expected a function of (rollout, generator)"),
        ({"trusted": "mine"}, "trusted: 'mine', expected a list of packages, such as ['mine']"),
    ],
)
def test_bad_arguments_are_named_before_the_policy_is_touched(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        check_policy(object(), **{"contexts": WORDS} | given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (lambda: 3, "space: returned a int, expected a Rollout"),
        (lambda: 1 / 0, "space: raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_space_that_cannot_be_made_is_named(space: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        check_policy(twins.Words(), WORDS, space=space)


def test_contexts_may_be_made_one_by_one() -> None:
    found = check_policy(twins.Words(), (context for context in WORDS), skip=[name for name in LAWS if name != "contexts"])  # type: ignore[arg-type]
    assert row(found, "contexts").outcome == "passed"


class OneSites(twins.Words):
    def sites(self, rollout: Any, steps: Any = None) -> Any:
        return super().sites(rollout, steps)[0]


class TupleSites(twins.Words):
    def sites(self, rollout: Any, steps: Any = None) -> Any:
        return [tuple(super().sites(rollout, steps))]


class NoRollout(twins.Words):
    def sample(self, contexts: Any, *, generator: Any = None) -> Any:
        return None


class NoSites(twins.Words):
    sites = None  # type: ignore[assignment]


class NumberScores(twins.Words):
    def score(self, rollout: Any, steps: Any = None, reference: Any = None) -> Any:
        return rollout.logp


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OneSites, "sites: returned a Sites, expected a list of Sites"),
        (TupleSites, "sites: returned a list with a tuple, expected a list of Sites"),
        (NoRollout, "sample: returned None, expected a Rollout"),
        (NoSites, "policy: NoSites has no method sites, expected one (or score in the place of sites)"),
        (NumberScores, "score: returned a Tensor, expected Scores"),
    ],
)
def test_a_method_that_returns_something_else_is_named(kind: type[twins.Words], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        check_words(kind(), space=None)


@pytest.mark.parametrize(
    ("score", "note"),
    [
        (lambda text: 5.0 * len(text), "reward: 15, expected numbers from 0 to 1"),
        (lambda text: 1.0, "reward: the same for all samples, expected one that varies"),
        (lambda text: None, "reward: no score of a sample is known"),
    ],
)
def test_learning_is_not_judged_by_a_reward_that_cannot_show_it(score: Callable[[str], float | None], note: str) -> None:
    only = [law for law in LAWS if law != "learning"]
    report = check_words(twins.ReversedGradient(), skip=only, reward=lambda samples, **columns: [score(s) for s in samples])
    assert row(report, "learning").outcome == "skipped"
    assert row(report, "learning").note == note


def test_a_policy_that_takes_columns_out_of_its_contexts_is_noticed() -> None:
    policy: Any = letters_policy()
    draw = policy.sample

    def takes(contexts: Sequence[Context], **options: Any) -> Rollout:
        for context in contexts:
            cast(dict[str, Any], context.columns).pop("wanted", None)
        found: Rollout = draw(contexts, **options)
        return found

    given = [Context(k // 2, {"wanted": k // 2}) for k in range(4)]
    policy.sample = takes
    report = check_policy(policy, given, skip=tuple(LAWS.keys() - {"contexts"}))
    assert report.failed == ("contexts",), str(report)
