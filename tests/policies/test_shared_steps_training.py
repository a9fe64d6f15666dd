"""Training with shared steps: what they cost, the first ratio, resume, and the option's bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.rollout import Context, group_contexts
from discrete_grpo.core.step_selection import Selection, chosen_steps
from discrete_grpo.policies.graph import FixedSites
from discrete_grpo.runs.checkpoint import read_policy, save
from discrete_grpo.runs.recorder import read_metrics
from tests.policies.test_graph_conditions import conditional
from tests.policies.test_shared_steps import seeded
from tests.toys import share_of_class_two, tiny_policy, transformer_policy

SMALL: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 12, "learning_rate": 1e-2, "save_steps": 2}


# ---------------------------------------------------------------- training


def test_shared_steps_cost_one_row_a_group_and_no_row_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discrete_grpo.training.update.check_tables", lambda *args: None)  # a row before the first update
    costs = []
    for shared in (0, 3):
        policy = tiny_policy(num_steps=5, shared_steps=shared)
        rows: list[int] = []
        policy.network.register_forward_pre_hook(lambda module, inputs, rows=rows: rows.append(len(inputs[0])))
        policy.sample(group_contexts(3, 4), generator=seeded(0))
        drawn = sum(rows)
        GRPOTrainer(policy, share_of_class_two, GRPOConfig(**SMALL, max_steps=1)).generation()
        costs.append((drawn, sum(rows) - 2 * drawn))
    assert costs == [(12 * 5, 12 * 5), (3 * 3 + 12 * 2, 12 * 2)]


def test_the_first_ratio_is_exactly_one() -> None:
    config = GRPOConfig(**SMALL | {"learning_rate": 0.03}, max_steps=4, num_iterations=2, epsilon=1e-9)
    lines = GRPOTrainer(tiny_policy(shared_steps=2), share_of_class_two, config).train()
    regions = [line["clip_ratio/region_mean"] for line in lines]
    assert regions[0] == regions[2] == 0.0  # the nearest numbers to 1 in float32 are further away than this epsilon
    assert regions[1] > 0.0
    assert regions[3] > 0.0


@pytest.mark.parametrize("selection", ["random", "first", "last", "window"])
def test_steps_are_selected_among_the_rows_own(selection: Selection) -> None:
    rollout = tiny_policy(num_steps=8, shared_steps=3).sample(group_contexts(20, 2), generator=seeded(0))
    steps = chosen_steps(rollout.units, 0.4, selection, seeded(1))
    assert steps.shape == (40, 2)  # two of the five that are left
    assert int(steps.min()) >= 3
    assert {"first": {3, 4}, "last": {6, 7}}.get(selection, {3, 4, 5, 6, 7}) == set(steps.flatten().tolist())
    if selection != "random":
        assert (steps.diff() == 1).all()


def test_resume_ends_with_the_same_bits(tmp_path: Path) -> None:
    options = SMALL | {"beta": 0.05, "num_iterations": 2, "timestep_fraction": 0.5, "timestep_selection": "window"}
    config = GRPOConfig(**options, max_steps=4)

    def trainer(name: str, seed: int = 0, resume: bool = False) -> GRPOTrainer:
        policy = tiny_policy(num_steps=5, seed=seed, shared_steps=2)
        return GRPOTrainer(policy, share_of_class_two, config, run=tmp_path / name, resume=resume)

    whole, part = trainer("whole"), trainer("part")
    whole.train()
    part.generation()
    part.save()
    part.generation()  # to be forgotten and made again
    resumed = trainer("part", seed=9, resume=True)
    assert resumed.step == 2
    resumed.train()
    a, b = (dict(t.module.state_dict()) for t in (whole, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)
    strip = [
        [{k: v for k, v in line.items() if k != "step_time"} for line in read_metrics(tmp_path / x)] for x in ("whole", "part")
    ]
    assert strip[0] == strip[1]


# ---------------------------------------------------------------- the option


def test_a_checkpoint_keeps_the_option_and_one_without_it_has_none(tmp_path: Path) -> None:
    for shared in (0, 2):
        policy = transformer_policy(shared_steps=shared)
        assert policy.init_args().get("shared_steps", "none") == (shared or "none")
        again: Any = read_policy(save(tmp_path / str(shared), policy, metadata={}))
        assert again.shared_steps == shared


@pytest.mark.parametrize("shared", [-1, 4, 9])
def test_the_number_of_shared_steps_is_checked(shared: int) -> None:
    with pytest.raises(ValueError, match=rf"^shared_steps: {shared}, expected 0 to 3, fewer than num_steps$"):
        tiny_policy(num_steps=4, shared_steps=shared)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (({"fixed": FixedSites({0: 1})}, {"fixed": FixedSites({0: 2})}), "fixed"),
        (({"fixed": FixedSites({0: 1})}, {}), "fixed"),
        (({"p": 1.0}, {"p": 2.0}), "p"),
        (({}, {"q": 0.0}), "q"),
    ],
)
def test_a_group_has_one_condition(columns: Sequence[dict[str, Any]], said: str) -> None:
    contexts = [Context(3, c) for c in columns]
    conditional(shared_steps=0).sample(contexts)
    with pytest.raises(ValueError, match=rf"^{said}: differs within group 3, expected one value per group with shared_steps$"):
        conditional(shared_steps=1).sample(contexts)
    conditional(shared_steps=1).sample([replace(c, group=k) for k, c in enumerate(contexts)])  # two groups
