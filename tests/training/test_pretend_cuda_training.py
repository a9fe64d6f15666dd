"""Every family is trained on a pretend CUDA device: no mix of devices, no blocking copy, few waits in an update."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.seeding import seeded
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.training import pass_size, pretrain
from discrete_grpo.training.config import GRPOConfig, PretrainConfig
from discrete_grpo.training.gaussian_process import GaussianProcessScreen
from discrete_grpo.training.local_search import local_search
from discrete_grpo.training.memory import ScoredMemory
from discrete_grpo.training.objectives import GroupRelative, SelfImitation, TrajectoryBalance
from discrete_grpo.training.pretrain import Pretrainer
from discrete_grpo.training.rounds import Rounds
from discrete_grpo.training.rounds_config import RoundsConfig
from tests.families import FAMILIES
from tests.letters import LETTERS, Worth, not_empty
from tests.pretend_cuda import accelerator, pretending
from tests.training.pretend_cuda_parts import CONFIG, Rows, by_name, count_pretraining, run
from tests.training.test_rounds_state import letters


@pytest.mark.parametrize("name", FAMILIES)
def test_an_update_waits_less_than_five_times(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, lines = run(FAMILIES[name], monkeypatch)
    assert len(lines) == 2
    assert all(line["grad_norm"] > 0 for line in lines)
    for found in updates:
        assert found.waits < 5, str(found)
        assert found.blocking_copies == 0, str(found)


@pytest.mark.parametrize("name", ["graph", "positions", "tokens", "masked text"])
@pytest.mark.slow
def test_passes_are_measured_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_size, "free_bytes", lambda device: {"cuda": 2**30}[device.type])
    config = dataclasses.replace(CONFIG, per_device_batch_size="auto", timestep_chunk="auto")
    updates, lines = run(FAMILIES[name], monkeypatch, config)
    assert len(lines) == len(updates) == 2
    assert all(line["grad_norm"] > 0 for line in lines)


def test_an_update_with_every_statistic_waits_less_than_five_times_more(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GRPOConfig(
        max_steps=2, num_generations=4, generation_batch_size=8, per_device_batch_size=4, beta=0.1, top_entropy_quantile=0.5,
        off_policy_mask_threshold=0.1, num_iterations=2, use_adaptive_entropy=True, entropy_coef=0.01, replay_samples=1,
    )  # fmt: skip
    updates, _ = run(FAMILIES["graph"], monkeypatch, config)
    assert all(found.waits < 9 for found in updates), str(updates[-1])


@pytest.mark.parametrize("name", FAMILIES)
def test_an_update_of_pretraining_waits_less_than_five_times(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = FAMILIES[name]
    with pretending() as cuda:
        updates = count_pretraining(cuda, monkeypatch)
        config = PretrainConfig(max_steps=2, batch_size=2, warmup_steps=1)
        Pretrainer(case.make(), Rows(case.batch()), config, tmp_path).train()
    first, second = updates
    assert first.waits < 5, str(first)
    assert (second.waits < 5, second.blocking_copies) == (True, 0), str(second)  # the first one copies constants


@pytest.mark.parametrize("name", ["graph", "fields", "tokens"])
def test_data_of_pretraining_are_checked_before_they_are_moved(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = FAMILIES[name]
    policy, batch = case.make(), case.batch()
    refused: list[Any] = []

    def refuse(policy: Any, batch: Any) -> None:
        refused.append(batch)
        raise KeyError

    monkeypatch.setattr(type(policy), "check_batch", refuse)
    with pretending():
        monkeypatch.setattr(pretrain, "accelerator", accelerator)
        with pytest.raises(KeyError):
            Pretrainer(policy, Rows(batch), PretrainConfig(max_steps=1, batch_size=2, warmup_steps=1), tmp_path).train()
    assert refused == [batch]


def test_search_starts_again_from_samples_on_the_device() -> None:
    with pretending() as cuda:
        for name in ("graph", "fields"):
            policy: Any = cuda.move(FAMILIES[name].make())
            options: dict[str, Any] = {"rounds": 2, "population": 2, "children": 2}
            found = local_search(policy, by_name, **options, generator=cuda.generator())
            assert found.drawn == 12


@pytest.mark.parametrize("objective", [SelfImitation(0.02, new_share=0.5), TrajectoryBalance(20.0), GroupRelative(beta=0.1)])
def test_rounds_over_a_memory_mix_no_devices(objective: Any) -> None:
    with pretending() as cuda:
        with seeded(0):
            network = GPT(GPTConfig(len(LETTERS), 5, layers=1, heads=2, width=8))
        policy: Any = cuda.move(TokenPolicy(network, LETTERS, max_length=5).eval())
        if isinstance(objective, torch.nn.Module):
            objective = cuda.move(objective)
        config = RoundsConfig(draws=12, passes=2, batch_size=6, explore=2, plateau=1, when_stale="islands", max_grad_norm=1.0)
        screen = GaussianProcessScreen(letters, start=12, size=24, generator=cuda.generator())
        parts: dict[str, Any] = {"memory": ScoredMemory(20), "screen": screen, "generator": cuda.generator()}
        loop = Rounds(policy, Worth(), Ledger(key=not_empty, max_oracle_calls=90), not_empty, objective, config, **parts)
        loop.run()
        assert loop.progress.restarts >= 1
        assert len(loop.everything) > 12
