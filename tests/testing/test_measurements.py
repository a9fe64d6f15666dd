"""What the conformance kit measures: spaces, p-values, merged cells, derivatives, and a property to learn."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn

from discrete_grpo.core.categorical import Sites, sample, score_sites
from discrete_grpo.core.rollout import Context, Rollout, group_contexts
from discrete_grpo.testing import LAWS, check_policy, learning, probability
from tests import broken_policies as twins
from tests.testing.parts import check_words, row


def test_a_space_that_lacks_or_repeats_a_trajectory_is_no_space() -> None:
    policy = twins.Words()
    space = policy.space()
    short = check_words(policy, space=space.index(torch.arange(len(space) - 8)))
    assert {"total mass", "frequencies"} <= set(short.failed)
    assert "outside the space" in row(short, "frequencies").note
    doubled = check_words(policy, space=space.index(torch.tensor([*range(len(space)), 3])))
    assert {"total mass", "frequencies"} <= set(doubled.failed)
    assert "only 30 of them distinct" in row(doubled, "frequencies").note


def test_the_kits_p_values_are_those_of_scipy() -> None:
    report = check_words(twins.Words(), samples=3000)
    found = re.search(r"chi2 (\d+), (\d+) degrees of freedom, p ([\d.e-]+)", row(report, "frequencies").note)
    assert found is not None
    square, free, p = (float(x) for x in found.groups())
    assert chi2.sf(square + 0.5, free) - 0.01 <= p <= chi2.sf(square - 0.5, free) + 0.01
    assert row(report, "frequencies").error == pytest.approx(-math.log10(p), abs=0.01)


def test_p_values_of_a_healthy_policy_are_spread_out() -> None:
    """Both statistical laws: about half the errors are above log10 2, and none comes near the tolerance."""
    only = [law for law in LAWS if law not in ("frequencies", "calibration")]
    reports = [check_words(twins.Words(), samples=500, seed=seed, skip=only) for seed in range(12)]
    errors = [row(r, "frequencies").error for r in reports]
    assert 2 <= sum(e > math.log10(2) for e in errors) <= 10
    assert max(errors) < 3
    assert max(row(r, "calibration").error for r in reports) < 3


@pytest.mark.parametrize("spread", [0.0, 1e-7, 1e-4])
def test_a_head_that_begins_at_zero_passes(spread: float) -> None:
    """At uniform tables of float32 the variance of log p is that of rounding, and so is its deviation."""
    policy = twins.Words()
    for parameter in policy.network[-1].parameters():
        torch.nn.init.normal_(parameter, std=spread)
    report = check_words(policy, samples=2000, skip=[law for law in LAWS if law != "calibration"])
    assert row(report, "calibration").error < 3


def test_small_cells_are_merged_until_each_expects_five() -> None:
    expected, counts = [0.5, 30.0, 1.0, 4.0, 6.0, 2.0], [1.0, 28.0, 0.0, 5.0, 7.0, 3.0]
    assert probability._merged(expected, counts) == [(7.5, 9.0), (6.0, 7.0), (30.0, 28.0)]
    assert probability._merged([1.0, 2.0], [0.0, 3.0]) == [(3.0, 3.0)]
    assert probability._merged([9.0, 8.0, 2.0], [1.0, 2.0, 3.0]) == [(10.0, 5.0), (9.0, 1.0)]


class WrongAtOneSite(nn.Module):
    """Draws one step of 24 sites, and scores the classes of the second one in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(24, 3) + torch.tensor([0.12, 0.0, -0.12]))

    def init_args(self) -> dict[str, Any]:
        return {}

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        rows, sites = len(contexts), len(self.logits)
        classes = sample(self.logits.detach().softmax(-1).expand(rows, -1, -1), generator)
        group, one = torch.tensor([c.group for c in contexts]), torch.ones(rows, dtype=torch.long)
        rollout = Rollout({"classes": classes}, group, torch.zeros(rows, 1), one[:, None] * sites, one, sites, tuple("x" * rows))
        return replace(rollout, logp=score_sites(self.sites(rollout)).logp.sum(-1).detach())

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        logits = torch.where(torch.arange(len(self.logits))[:, None] == 1, self.logits.flip(-1), self.logits)
        action = rollout.states["classes"][:, None]
        table = logits.log_softmax(-1).expand(len(rollout), 1, -1, -1)
        return [Sites(table, action, torch.ones_like(action, dtype=torch.bool))]


def test_a_table_that_is_wrong_at_one_site_is_caught_by_the_sums_of_that_site() -> None:
    policy, only = WrongAtOneSite(), [law for law in LAWS if law != "calibration"]
    found = row(check_policy(policy, group_contexts(2, 2), skip=only), "calibration")
    assert found.error > 8
    with torch.no_grad():
        policy.logits[1] = 0.0  # the order of equal classes does not matter
    assert row(check_policy(policy, group_contexts(2, 2), skip=only), "calibration").error < 3


def test_too_few_samples_skip_the_statistics() -> None:
    assert {"frequencies", "calibration"} <= set(check_words(twins.Words(), samples=4).skipped)


def test_the_property_to_learn_varies_within_groups() -> None:
    words = ["xa", "xb", "xa", "xb", "y", "y", "y", "y"]  # x against y differs only between groups
    found = learning.text_property(words, 4)
    assert found is not None
    assert found(words) in ([1, 0, 1, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0, 0, 0])
    assert learning.text_property(["same"] * 8, 4) is None
    assert learning.text_property([object() for _ in range(8)], 4) is None


class FloatFeatures(twins.Words):
    """Cannot be made float64, as its features are float32."""

    def features(self, *args: Any) -> Any:
        return super().features(*args).float()


class FloatLogits(twins.Words):
    """Computes in float32 whatever its weights are."""

    def logits(self, *args: Any) -> Any:
        return super().logits(*args).float()


class BackwardsInFloat(FloatLogits, twins.ReversedGradient):
    pass


def test_derivatives_are_measured_in_the_bits_there_are() -> None:
    kinds: list[tuple[twins.Words, str, float | None]] = [
        (twins.Words(), "passed", 1e-3),
        (twins.Words().bfloat16(), "passed", 1e-3),
        (FloatFeatures(), "passed", 5e-2),
        (FloatLogits(), "passed", 5e-2),
        (twins.ReversedGradient(), "failed", 1e-3),
        (BackwardsInFloat(), "failed", None),  # by more than its rounding, or by coarse steps
    ]
    for policy, outcome, tolerance in kinds:
        found = row(check_words(policy, skip=[law for law in LAWS if law != "derivative"]), "derivative")
        assert (found.outcome, found.tolerance) == (outcome, tolerance or found.tolerance), (type(policy), found)
