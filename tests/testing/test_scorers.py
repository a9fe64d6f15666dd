"""The conformance kit on policies that give scores and no tables: healthy ones pass, each mistake is caught by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from discrete_grpo import Scorer
from discrete_grpo.core.rollout import Context, group_contexts
from discrete_grpo.policies.surrogate import EagerLikelihood, ElboLikelihood
from discrete_grpo.testing import LAWS, Report, check_policy
from discrete_grpo.testing.check import ON_TABLES
from tests import broken_scorers as twins
from tests.broken_graph_policies import NumbersNodes, more_padding
from tests.broken_policies import Words
from tests.toys import share_of_class_two, tiny_network, tiny_policy, transformer_policy

WORDS = group_contexts(3, 3)
SIZES = [Context(k // 2, {"num_nodes": [4, 2, 3][k // 2]}) for k in range(6)]


def check_words(kind: type[twins.ScoredWords], contexts: Sequence[Context] = WORDS, **options: Any) -> Report:
    settings: dict[str, Any] = {"trusted": ["tests"], "samples": 300, "skip": ["learning"]} | options
    return check_policy(kind(Words()), contexts, **settings)


def test_scores_pass_every_law_that_needs_no_tables() -> None:
    report = check_words(twins.ScoredWords, skip=[])
    report.raise_on_failure()
    assert set(report.skipped) == {*ON_TABLES, "permutation", "replayable"}
    notes = {row.law: row.note for row in report.rows}
    assert {notes[law] for law in ON_TABLES} == {"needs sites; ScoredWords gives scores only (TypeError)"}


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64], ids=str)
def test_the_lower_bound_passes(dtype: torch.dtype) -> None:
    policy = ElboLikelihood(transformer_policy(), 5).to(dtype)
    assert isinstance(policy, Scorer)
    report = check_policy(policy, SIZES, reward=share_of_class_two, pad=more_padding, seconds=20.0)
    report.raise_on_failure()
    assert set(report.skipped) == {*ON_TABLES, "replayable", "kl"}


@pytest.mark.slow
def test_the_eager_likelihood_passes_with_its_scores_and_its_tables() -> None:
    report = check_policy(EagerLikelihood(transformer_policy()), SIZES, reward=share_of_class_two, samples=300, seconds=20.0)
    report.raise_on_failure()
    assert set(report.skipped) == {"replayable", "total mass", "frequencies", "kl"}


@pytest.mark.parametrize("kind", [EagerLikelihood, ElboLikelihood])
def test_surrogates_encode_their_own_samples(kind: type[EagerLikelihood] | type[ElboLikelihood]) -> None:
    inner = transformer_policy()
    inner.decode = None
    report = check_policy(kind(inner), SIZES, skip=[law for law in LAWS if law != "replayable"])
    assert [(row.outcome, row.note) for row in report.rows if row.law == "replayable"] == [("passed", "6 samples")]


MISTAKES: list[tuple[type[twins.ScoredWords], str]] = [
    (twins.FlatScores, "shapes"),
    (twins.ScoresUnderMask, "shapes"),
    (twins.CountsPadding, "units"),
    (twins.CountsPadding, "padding"),
    (twins.NoisyScores, "ratio eval"),
    (twins.NoisyScores, "global random state"),
    (twins.NoisyScores, "stored log-probs"),
    (twins.ScoresOfTheBatch, "batch size"),
    (twins.ScoresOfTheBatch, "padding"),
    (twins.IgnoresSteps, "steps"),
    (twins.HalfScores, "ratio bf16"),
    (twins.DetachedScores, "gradient"),
    (twins.HalfTheGradient, "derivative"),
    (twins.HalfTheGradientOfTheKl, "derivative"),
    (twins.NoKl, "reference"),
    (twins.KlOfNothing, "reference"),
    (twins.KlBackwards, "reference"),
    (twins.HalfTheKl, "kl"),
    (twins.KlSquared, "kl"),
    (twins.KlOfTheOtherDirection, "kl"),
    (twins.TrainsItsReference, "reference"),
    (twins.GradientOfTheEntropy, "reference"),
    (twins.ScoresTheReference, "reference"),
]
REPORTS: dict[type[twins.ScoredWords], Report] = {}


@pytest.mark.parametrize(("kind", "law"), MISTAKES, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_a_mistake_is_caught_by_name(kind: type[twins.ScoredWords], law: str) -> None:
    if kind not in REPORTS:
        REPORTS[kind] = check_words(kind, samples=1000 if kind is twins.KlSquared else 300)
    assert law in REPORTS[kind].failed, str(REPORTS[kind])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (twins.NoKl, "not so: kl given with a reference"),
        (twins.KlOfNothing, "not so: not 0 throughout to another policy"),
        (twins.KlBackwards, "not so: at least 0 to another policy"),
        (twins.TrainsItsReference, "not so: no gradient to the reference"),
        (twins.ScoresTheReference, "not so: log-probs without the reference's"),
        (twins.GradientOfTheEntropy, "not so: entropy without gradient"),
    ],
)
def test_the_law_of_the_reference_says_what_is_wrong(kind: type[twins.ScoredWords], said: str) -> None:
    report = check_words(kind, skip=[law for law in LAWS if law != "reference"])
    assert next(row.note for row in report.rows if row.law == "reference") == said


@pytest.mark.slow
def test_states_drawn_again_for_the_bound_are_caught() -> None:
    policy = twins.RenoisesToScore(tiny_policy(), 4)
    report = check_policy(policy, SIZES, trusted=["discrete_grpo", "tests"], skip=["learning"], samples=100)
    assert {"ratio eval", "global random state", "stored log-probs"} <= set(report.failed), str(report)
    cause = next(row.cause for row in report.rows if row.law == "ratio eval")
    assert cause.startswith("scoring draws random numbers from torch's global state (aten.randint_like)")


@pytest.mark.slow
def test_a_bound_of_numbered_nodes_is_caught() -> None:
    inner = tiny_policy()
    numbered = NumbersNodes(
        tiny_network(), inner.node_kernel, inner.edge_kernel, inner.node_counts, num_steps=4, decode=inner.decode
    )
    for policy in (ElboLikelihood(numbered, 4), EagerLikelihood(numbered)):
        report = check_policy(policy, SIZES, trusted=["discrete_grpo", "tests"], skip=["learning"], samples=100)
        assert report.failed == ("permutation",), str(report)
