"""Training that starts again from good samples: resume, files of the run, conditions, settings out of range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.runs.recorder import read_metrics, read_samples
from tests.policies.restart_parts import Plain
from tests.toys import share_of_class_two, tiny_policy

REFINED: dict[str, Any] = {
    "num_generations": 4, "generation_batch_size": 16, "learning_rate": 1e-2, "save_steps": 2, "refine_fraction": 0.5,
    "refine_memory": 5,
}  # fmt: skip


def strip(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "step_time"} for line in lines]


@pytest.mark.parametrize("columns", [None, [{"num_nodes": 3}, {"num_nodes": 4, "fixed": FixedSites({0: 1})}]])
def test_resume_with_a_memory_ends_with_the_same_bits(tmp_path: Path, columns: Any) -> None:
    config = GRPOConfig(**REFINED, max_steps=6, beta=0.05, num_iterations=2, timestep_fraction=0.5)
    whole = GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path / "whole", columns=columns)
    whole.train()
    part = GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path / "part", columns=columns)
    part.save()
    while part.step < 6:
        part.generation()
        if part.step == 4:
            part.save()
    resumed = GRPOTrainer(tiny_policy(seed=9), share_of_class_two, config, run=tmp_path / "part", columns=columns, resume=True)
    assert resumed.sampler.shards[0].elites is not None
    assert len(resumed.sampler.shards[0].elites.kept) == 5
    resumed.train()
    assert all(torch.equal(a, b) for a, b in zip(whole.module.parameters(), resumed.module.parameters(), strict=True))
    lines: list[Any] = [*read_metrics(tmp_path / "whole")]
    assert strip(lines) == strip(read_metrics(tmp_path / "part"))
    assert (tmp_path / "whole/samples.csv.gz").read_bytes() == (tmp_path / "part/samples.csv.gz").read_bytes()
    assert [line["frac_refined"] for line in lines] == [0.0, 0.0, 0.5, 0.5, 0.5, 0.5]
    assert lines[0]["refined/reward"] is None
    assert lines[2]["reward"] == pytest.approx((lines[2]["refined/reward"] + lines[2]["fresh/reward"]) / 2)
    assert read_samples(tmp_path / "whole/samples.csv.gz")["refined"][16:32] == ["0"] * 8 + ["1"] * 8


class Forgetful(GraphPolicy):
    """Returns the columns of conditions alone."""

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        found = super().sample(contexts, generator=generator)
        return replace(found, columns={name: values for name, values in found.columns.items() if name != "restart"})


def test_a_policy_need_not_return_restarts() -> None:
    config, tiny = GRPOConfig(**REFINED, max_steps=2), tiny_policy()
    policy = Forgetful(**tiny.init_args(), decode=tiny.decode, encode=tiny.encode)
    trainer = GRPOTrainer(policy, share_of_class_two, config)
    assert trainer.train()[1]["frac_refined"] == 0.5


def test_a_run_without_it_has_no_trace_of_it(tmp_path: Path) -> None:
    config = GRPOConfig(**REFINED | {"refine_fraction": 0.0}, max_steps=2)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path)
    trainer.train()
    assert trainer.sampler.shards[0].elites is None
    assert not any("refined" in name for name in read_metrics(tmp_path)[0])
    assert "refined" not in read_samples(tmp_path / "samples.csv.gz")
    with_it = GRPOTrainer(tiny_policy(), share_of_class_two, replace(config, refine_fraction=0.5), run=tmp_path, resume=True)
    assert with_it.sampler.shards[0].elites is not None
    assert with_it.sampler.shards[0].elites.kept == []


@pytest.mark.parametrize("kept", ["memory", "replay"])
def test_good_samples_of_other_conditions_are_not_taken_along(
    kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {"refine_fraction": 0.5} if kept == "memory" else {"refine_fraction": 0.0, "replay_samples": 1}
    config = GRPOConfig(**REFINED | changed | {"save_steps": 1}, max_steps=2)
    asked = [{"kind": np.int64(k)} for k in range(3)]  # numbers of numpy go into a checkpoint too
    GRPOTrainer(tiny_policy(), share_of_class_two, config, columns=asked, run=tmp_path).train()
    for columns, same in (([{"kind": k} for k in range(3)], True), ([{"kind": 2}], False)):
        resumed = GRPOTrainer(tiny_policy(), share_of_class_two, config, columns=columns, run=tmp_path, resume=True)
        shard = resumed.sampler.shards[0]
        buffer = shard.elites if kept == "memory" else shard.replay
        assert buffer is not None
        assert bool(buffer.kept) == same
        assert ("are discarded" in " ".join(capsys.readouterr().err.split())) != same
    more = replace(config, max_steps=3)
    GRPOTrainer(tiny_policy(), share_of_class_two, more, columns=[{"kind": 2}], run=tmp_path, resume=True).train()


def test_rewards_see_the_condition_and_not_the_restart() -> None:
    seen: list[set[str]] = []

    def reward(samples: Sequence[Any], **columns: Any) -> list[float]:
        seen.append(set(columns))
        assert all(len(s) == n for s, n in zip(samples, columns["num_nodes"], strict=True))
        return share_of_class_two(samples)

    config = GRPOConfig(**REFINED, max_steps=3)
    GRPOTrainer(tiny_policy(), reward, config, columns=[{"num_nodes": 2}, {"num_nodes": 4}]).train()
    assert seen == [{"num_nodes"}] * 3


@pytest.mark.parametrize(("shards", "share"), [(8, 0.5), (4, 0.25), (1, 0.06)])
def test_a_share_that_is_no_group_of_a_shard_is_refused(shards: int, share: float) -> None:
    groups = 8 // shards
    config = GRPOConfig(num_generations=2, generation_batch_size=16, generation_shards=shards, refine_fraction=share)
    said = rf"^refine_fraction: {share}, expected 0 or at least one of the {groups} groups of each shard$"
    with pytest.raises(ValueError, match=said):
        GRPOTrainer(tiny_policy(), share_of_class_two, config)


def test_a_policy_that_cannot_refine_is_named() -> None:
    with pytest.raises(ValueError, match="policy: Plain has no method restarts, expected one that can refine its samples"):
        GRPOTrainer(Plain(), share_of_class_two, GRPOConfig(refine_fraction=0.5))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"refine_fraction": 1.5}, "refine_fraction: 1.5"),
        ({"refine_fraction": -0.1}, "refine_fraction: -0.1"),
        ({"refine_time": 0.0}, "refine_time: 0.0, expected more than 0 and less than 1"),
        ({"refine_time": 1.0}, "refine_time: 1.0, expected more than 0 and less than 1"),
        ({"refine_memory": 0}, "refine_memory: 0, expected at least 1"),
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GRPOConfig(**options)
