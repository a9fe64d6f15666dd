"""Runs that a signal ends: during the last update too, with numbers of numpy, with conditions that are objects."""

from __future__ import annotations

import dataclasses
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.interrupt import Interrupted
from discrete_grpo.core.scoring import RewardError
from discrete_grpo.policies.options import with_options
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.training.offline import OfflineTrainer
from tests.letters import letters_policy
from tests.toys import share_of_class_two, tiny_policy
from tests.training.test_offline import DATA, SMALL

CONFIG = GRPOConfig(max_steps=3, num_generations=4, generation_batch_size=8, learning_rate=1e-2)


@dataclasses.dataclass(frozen=True)
class Target:
    """A condition that is an object."""

    value: float


class Stopping:
    """A reward that asks for the end of the run in one of its calls."""

    def __init__(self, call: int) -> None:
        self.call, self.calls = call, 0

    def __call__(self, samples: Sequence[Any], **columns: Any) -> list[float]:
        self.calls += 1
        if self.calls == self.call:
            signal.raise_signal(signal.SIGTERM)
        return share_of_class_two(samples)


@pytest.mark.parametrize("call", [2, 3])
def test_a_signal_ends_the_run_in_the_last_update_too(call: int, tmp_path: Path) -> None:
    trainer = GRPOTrainer(tiny_policy(), Stopping(call), CONFIG, run=tmp_path)
    with pytest.raises(Interrupted, match=rf"^stopped at update {call} of 3$"):
        trainer.train()
    resumed = GRPOTrainer(tiny_policy(), Stopping(0), CONFIG, run=tmp_path, resume=True)
    assert resumed.step == call
    assert len(resumed.train()) == 3 - call


class Remembering:
    """A reward with a memory: the number of samples seen so far."""

    cached_as = None

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, samples: Sequence[Any], **columns: Any) -> list[float]:
        self.seen += len(samples)
        return [value + self.seen for value in share_of_class_two(samples)]

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


class FailingOnce:
    """A reward that fails in its second call."""

    calls = 0

    def __call__(self, samples: Sequence[Any], **columns: Any) -> list[float]:
        self.calls += 1
        if self.calls == 2:
            raise OSError("licence server")
        return [random.random() for _ in samples]


@pytest.mark.parametrize("folder", [True, False])
def test_a_trainer_goes_on_after_a_failed_reward_as_if_it_had_not_failed(folder: bool, tmp_path: Path) -> None:
    found = []
    for fails in (True, False):
        memory, other, ledger = Remembering(), FailingOnce(), Ledger()
        other.calls = 0 if fails else 2
        random.seed(0)
        config = dataclasses.replace(CONFIG, num_iterations=2, max_steps=5)
        run = tmp_path / str(fails) if folder else None
        trainer = GRPOTrainer(tiny_policy(), [memory, other], config, run=run, ledger=ledger)
        if fails:
            with pytest.raises(RewardError, match="licence server"):
                trainer.train()
            assert trainer.step == 2
        trainer.train()
        found.append((memory.seen, ledger.calls, [p.tolist() for p in trainer.module.parameters()]))
    assert found[0] == found[1]


def test_a_signal_ends_off_line_training_in_its_last_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = OfflineTrainer(letters_policy(), DATA, SMALL, steps=2, run=tmp_path)
    update = trainer.update

    def stopped() -> dict[str, float]:
        if trainer.step == 1:
            signal.raise_signal(signal.SIGTERM)
        return update()

    monkeypatch.setattr(trainer, "update", stopped)
    with pytest.raises(Interrupted, match=r"^stopped at off-line update 2 of 2$"):
        trainer.train()


def test_metrics_that_are_numbers_of_numpy_can_be_resumed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"sample_metrics": lambda samples: {"size": np.mean([len(str(s)) for s in samples])}}
    with pytest.raises(Interrupted):
        GRPOTrainer(tiny_policy(), Stopping(2), CONFIG, run=tmp_path, **options).train()
    resumed = GRPOTrainer(tiny_policy(), Stopping(0), CONFIG, run=tmp_path, resume=True, **options)
    assert resumed.step == 2
    resumed.train()


def test_conditions_that_are_dataclasses_are_restored_between_two_updates_of_a_generation(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, max_steps=4, num_iterations=2)
    columns: list[dict[str, Any]] = [{"target": Target(1.0)}, {"target": [Target(2.0)]}]
    part = GRPOTrainer(tiny_policy(), share_of_class_two, config, columns=columns, run=tmp_path)
    part.update()
    part.save()
    resumed = GRPOTrainer(tiny_policy(), share_of_class_two, config, columns=columns, run=tmp_path, resume=True)
    assert resumed.pending is not None
    resumed.train()
    whole = GRPOTrainer(tiny_policy(), share_of_class_two, config, columns=columns)
    whole.train()
    for a, b in zip(whole.module.parameters(), resumed.module.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("options", [{"num_iterations": 2}, {"steps_per_generation": 2}, {"replay_samples": 1}])
def test_conditions_that_no_checkpoint_can_hold_are_refused_where_one_would(options: dict[str, Any], tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, **options)
    columns: list[dict[str, Any]] = [{"target": 1}, {"target": np.zeros(2)}]
    said = "columns: entry 1: 'target' is of type ndarray, expected numbers, texts, lists and mappings of them, or dataclasses"
    with pytest.raises(ValueError, match=said):
        GRPOTrainer(tiny_policy(), share_of_class_two, config, columns=columns, run=tmp_path)
    GRPOTrainer(tiny_policy(), share_of_class_two, config, columns=columns)
    GRPOTrainer(tiny_policy(), share_of_class_two, CONFIG, columns=columns, run=tmp_path)


def test_going_back_restores_random_states_memories_and_the_count_of_calls() -> None:
    class Listed:
        """A reward whose state is its memory itself, not a copy."""

        def __init__(self) -> None:
            self.seen: list[float] = []

        def __call__(self, samples: Sequence[Any], **columns: Any) -> list[float]:
            self.seen += share_of_class_two(samples)
            return self.seen[-len(samples) :]

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.seen}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.seen = state["seen"]

    def drawn() -> list[float]:
        of_numpy = [np.random.standard_normal(), np.random.random()]  # noqa: NPY002
        return [random.gauss(0, 1), random.random(), *of_numpy, float(torch.rand(()))]

    reward, ledger = Listed(), Ledger()
    trainer = GRPOTrainer(tiny_policy(), reward, CONFIG, ledger=ledger)
    trainer.train()
    random.gauss(0, 1)  # of the two normal numbers that are made at once, one is kept
    np.random.standard_normal()  # noqa: NPY002
    snapshot, before = trainer.state.snapshot(), (list(reward.seen), ledger.turn, ledger.calls)
    first = drawn()
    samples = [(2, 2, 2, 2, 2, k) for k in range(5)]
    ledger.score([reward], samples)
    assert (reward.seen, ledger.turn, ledger.calls) != before
    for _ in range(2):
        trainer.state.go_back(snapshot)
        assert (reward.seen, ledger.turn, ledger.calls) == before
        assert drawn() == first
        ledger.score([reward], samples)


def test_a_generation_whose_metrics_fail_does_not_move_the_node_counts(tmp_path: Path) -> None:
    found = []
    for fails in (True, False):
        calls: list[int] = []

        def metrics(samples: Sequence[Any], calls: list[int] = calls, fails: bool = fails) -> dict[str, float]:
            calls.append(len(samples))
            if fails and len(calls) == 2:
                raise OSError("disk")
            return {}

        def small(samples: Sequence[Any], **columns: Any) -> list[float]:
            return [1 / len(sample) for sample in samples]

        policy = with_options(tiny_policy(sizes=(0.0, 0.25, 0.25, 0.5)), node_count="running")
        config = dataclasses.replace(CONFIG, max_steps=3)
        trainer = GRPOTrainer(policy, small, config, run=tmp_path / str(fails), sample_metrics=metrics)
        if fails:
            with pytest.raises(RewardError, match="disk"):
                trainer.train()
            kept = load_file(tmp_path / "True/checkpoints/step-00000001/model.safetensors")["head.histogram"]
            assert torch.equal(kept, trainer.module.state_dict()["head.histogram"])
        trainer.train()
        found.append([p.tolist() for p in trainer.module.state_dict().values()])
    assert found[0] == found[1]
