"""Rounds over a memory as a whole, on a space of texts that is enumerated: the best text is found, bad settings are refused."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo import score_sites
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.training.objectives import (
    AugmentedLikelihood,
    GroupBalance,
    GroupRelative,
    Likelihood,
    Objective,
    SelfImitation,
    TrajectoryBalance,
)
from discrete_grpo.training.rounds import Rounds
from discrete_grpo.training.rounds_config import RoundsConfig
from tests.letters import Worth, letters_policy, texts, worth
from tests.training.rounds_parts import Fixed, asked, equal, rounds, weights


@pytest.mark.parametrize(
    "objective",
    [
        TrajectoryBalance(30.0, 0.0),
        GroupBalance(30.0),
        AugmentedLikelihood(60.0),
        Likelihood(),
        GroupRelative(),
        SelfImitation(0.02),
    ],
    ids=lambda objective: type(objective).__name__,
)
@pytest.mark.slow
def test_the_policy_reaches_the_best_text_of_the_space(objective: Objective) -> None:
    policy = letters_policy(5)
    space = texts(5)
    best = max(space[1:], key=worth)
    objective = copy.deepcopy(objective)
    loop = rounds(policy, objective=objective, draws=16, passes=6, batch_size=16, learning_rate=0.01, budget=200, patience=15)
    found = loop.run()
    with torch.no_grad():
        logp = score_sites(policy.sites(policy.rollout_of(space))).logp.sum((1, 2))
    assert len(space) == 364
    assert len(found) <= 200
    assert found.kept[0].key == best
    assert space[int(logp.argmax())] == best
    assert float(logp.max().exp()) > 0.05  # 1/364 before


def run_of(seed: int) -> tuple[list[str], list[Tensor]]:
    loop = rounds(
        letters_policy(4),
        seed=seed,
        objective=TrajectoryBalance(5.0),
        proposers=[Fixed("made", "cabc")],
        children=2,
        explore=1,
        fresh_passes=1,
        max_grad_norm=1.0,
        budget=30,
    )
    loop.run()
    return asked(loop), weights(loop)


def test_the_generator_decides_everything() -> None:
    (first, one), (again, same), (other, _) = run_of(0), run_of(0), run_of(1)
    assert first == again
    assert equal(one, same)
    assert first != other


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"draws": 0}, "draws: 0, expected at least 1"),
        ({"children": -1}, "children: -1"),
        ({"passes": -1}, "passes: -1"),
        ({"batch_size": -1}, "batch_size: -1, expected at least 0"),
        ({"explore": 65}, "explore: 65"),
        ({"explore": -1}, "explore: -1, expected at least 0"),
        ({"fresh_passes": 9}, "fresh_passes: 9"),
        ({"learning_rate": 0.0}, "learning_rate: 0"),
        ({"objective_learning_rate": 0.0}, "objective_learning_rate: 0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm: 0"),
        ({"generations": 0}, "generations: 0, expected at least 1"),
        ({"take": 0}, "take: 0"),
        ({"draws": 1.5}, "draws: 1.5, expected a whole number, at least 1"),
        ({"passes": 2.5}, "passes: 2.5, expected a whole number, at least 0"),
        ({"goal": math.nan}, "goal: nan, expected a finite number or None"),
        ({"bf16": 0}, "bf16: 0, expected True, False or 'auto'"),
        ({"unscreened": -1}, "unscreened: -1"),
        ({"take_children": -1}, "take_children: -1, expected at least 0 or None"),
        ({"take": 4, "unscreened": 5}, r"unscreened: 5, expected .* 4 \(take\)"),
        ({"patience": 0}, "patience: 0"),
        ({"plateau": 0}, "plateau: 0, expected at least 1 or None"),
        ({"when_stale": "wait"}, "when_stale: 'wait', expected stop, restart or islands"),
    ],
)
def test_settings_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RoundsConfig(**given)


def test_a_policy_that_cannot_learn_from_others_is_refused_unless_it_need_not() -> None:
    class DrawsOnly(nn.Linear):
        def sample(self, contexts: Any, *, generator: Any = None) -> Any: ...

        def sites(self, rollout: Any, steps: Any = None) -> Any: ...

    def loop(passes: int) -> Rounds:
        return Rounds(DrawsOnly(1, 1), Worth(), Ledger(), str, Likelihood(), RoundsConfig(passes=passes))

    with pytest.raises(ValueError, match="policy: DrawsOnly has no method rollout_of"):
        loop(1)
    assert loop(0).progress.rounds == 0
