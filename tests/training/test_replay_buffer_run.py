"""Replayed samples in a run: what is scored, resumed, combined and refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.rollout import Rollout
from discrete_grpo.policies.node_count import RunningSizes, SizedPolicy
from discrete_grpo.policies.surrogate import EagerLikelihood
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.runs.recorder import read_samples
from tests.toys import share_of_class_two, tiny_policy
from tests.training.test_replay_buffer import SMALL, made, memory


def strip(lines: Sequence[dict[str, float]]) -> str:
    return str([{k: v for k, v in line.items() if k != "step_time"} for line in lines])


# ---------------------------------------------------------------- the run


def test_nothing_is_scored_again_and_metrics_are_of_what_was_drawn(tmp_path: Path) -> None:
    asked: list[Any] = []

    def reward(samples: Sequence[Any], **columns: Any) -> list[float]:
        asked.extend(samples)
        return share_of_class_two(samples)

    ledger = Ledger(key=str, cache=ScoreCache())
    seen: list[int] = []

    def counted(samples: Sequence[Any]) -> dict[str, float]:
        seen.append(len(samples))
        return {}

    trainer = GRPOTrainer(
        tiny_policy(),
        reward,
        GRPOConfig(**SMALL | {"replay_memory": 3}, max_steps=4),
        run=tmp_path,
        ledger=ledger,
        sample_metrics=counted,
    )
    lines = trainer.train()
    table = read_samples(tmp_path / "samples.csv.gz")
    assert [line["replay/rows"] for line in lines] == [0, 6, 6, 6]
    assert math.isnan(lines[0]["replay/reward"])
    assert "replay/ratio" not in lines[0]
    assert all(line["replay/reward"] > line["reward"] for line in lines[1:])
    assert seen == [12] * 4
    assert len(table["sample"]) == 48
    assert len(asked) <= 48
    assert ledger.calls == len(set(table["sample"]))
    for k, line in enumerate(lines):
        own = [float(r) for r in table["reward"][12 * k : 12 * k + 12]]
        assert line["reward"] == pytest.approx(sum(own) / 12)
    page = (Path(__file__).parents[2] / "docs/metrics.md").read_text(encoding="utf-8")
    assert not [name for name in lines[1] if name.startswith("replay") and f"`{name}`" not in page]


def test_resume_goes_on_to_the_same_bits_also_between_two_updates_of_a_generation(tmp_path: Path) -> None:
    config = GRPOConfig(**SMALL, max_steps=6, save_steps=100, steps_per_generation=2)

    def run(folder: str, seed: int = 0, resume: bool = False) -> GRPOTrainer:
        columns = [{"tag": "x"}, {"tag": "y"}]
        policy = tiny_policy(seed=seed)
        return GRPOTrainer(policy, share_of_class_two, config, columns=columns, run=tmp_path / folder, resume=resume)

    whole = run("whole")
    whole.train()
    for stop in (2, 3):
        part = run(str(stop))
        for _ in range(stop):
            part.update()
        part.save()
        resumed = run(str(stop), seed=9, resume=True)
        assert (resumed.pending is None) == (stop == 2)
        assert {k.origin for k in memory(resumed).kept} == {0, 1}
        assert str(memory(resumed).state()) == str(memory(part).state())
        resumed.train()
        assert "replay/ratio" in resumed.history[-1]
        assert strip(whole.history[stop:]) == strip(resumed.history)
        ends = zip(whole.module.state_dict().values(), resumed.module.state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in ends)
        assert (tmp_path / "whole/samples.csv.gz").read_bytes() == (tmp_path / f"{stop}/samples.csv.gz").read_bytes()


@pytest.mark.parametrize("given", [{"beta": 0.1, "kl_estimator": "k3"}, {"off_policy_mask_threshold": 0.0}, {"loss_type": "cispo"}])
def test_it_goes_with_options_that_look_at_the_old_log_probs(given: dict[str, Any]) -> None:
    config = GRPOConfig(**SMALL, max_steps=3, epsilon_high=2.0, steps_per_generation=1, **given)
    lines = GRPOTrainer(tiny_policy(), share_of_class_two, config).train()
    assert all(math.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in lines)


def test_a_policy_that_observes_sees_only_what_was_drawn() -> None:
    class Watched(SizedPolicy):
        def observe(self, rollout: Rollout, advantage: Tensor) -> None:
            seen.append(len(rollout))
            super().observe(rollout, advantage)

    seen: list[int] = []
    policy = Watched(tiny_policy(), RunningSizes([0.0, 0.3, 0.4, 0.3], rate=0.2))
    lines = GRPOTrainer(policy, share_of_class_two, GRPOConfig(**SMALL, max_steps=3)).train()
    assert seen == [12] * 3
    assert lines[-1]["replay/rows"] == 6


def test_off_keeps_nothing_and_logs_nothing() -> None:
    trainer = made(replay_samples=0)
    assert trainer.sampler.shards[0].replay is None
    assert not [name for name in trainer.update() or {} if name.startswith("replay")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"replay_samples": -1}, "replay_samples: -1, expected at least 0"),
        ({"replay_memory": 0, "replay_samples": 0}, "replay_memory: 0, expected at least 1"),
        ({"replay_samples": 9}, r"replay_samples: 9, expected at most 8 \(replay_memory\)"),
        ({"refine_fraction": 0.5}, "replay_samples: 2, expected 0 with refine_fraction 0.5"),
        ({"zero_std_groups": "resample"}, "replay_samples: 2, expected 0 with zero_std_groups resample"),
        ({"kl_in": "reward", "beta": 0.1}, "replay_samples: 2, expected 0 with kl_in reward"),
        ({"kl_in": "both", "beta": 0.1}, "replay_samples: 2, expected 0 with kl_in both"),
    ],
)
def test_what_does_not_go_together_is_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        GRPOConfig(**SMALL | given)


def test_surrogate_likelihoods_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^replay_samples: 2, expected 0 with a policy that gives its scores itself \(EagerLikelihood\)$"
    ):
        GRPOTrainer(EagerLikelihood(tiny_policy()), share_of_class_two, GRPOConfig(**SMALL))
