"""Deterministic algorithms and TF32 on a pretend CUDA device: during an update alone, and without a changed bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.training import pretrain, trainer
from discrete_grpo.training.config import GRPOConfig, PretrainConfig
from discrete_grpo.training.pretrain import Pretrainer
from discrete_grpo.training.trainer import GRPOTrainer
from tests.families import FAMILIES
from tests.pretend_cuda import DeviceError, accelerator, pretending
from tests.training.pretend_cuda_parts import CONFIG, Rows, by_name, run


@contextmanager
def deterministic() -> Iterator[None]:
    """Torch with deterministic algorithms alone."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", FAMILIES)
def test_deterministic_algorithms_change_no_bit_of_a_run(name: str) -> None:
    case = FAMILIES[name]
    columns = None if case.columns is None else [case.columns]
    weights = []
    for mode in (nullcontext(), deterministic()):
        policy = case.make()
        with mode:
            GRPOTrainer(policy, by_name, CONFIG, columns=columns).train()
            policy.likelihood_loss(case.batch(), generator=torch.Generator().manual_seed(0))["loss"].backward()
        weights.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize("name", ["graph", "positions", "tokens", "masked text"])
def test_no_operation_of_a_run_on_cuda_lacks_a_deterministic_algorithm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretending(), deterministic():
        with pytest.raises(DeviceError, match="cumsum"):
            torch.ones(3, device="cuda").cumsum(0)
        with pytest.raises(DeviceError, match="bincount"):
            torch.arange(3, device="cuda").bincount(torch.ones(3, device="cuda"))
        torch.arange(3, device="cuda").bincount()
    with deterministic():
        _, lines = run(FAMILIES[name], monkeypatch)
    assert len(lines) == 2


def test_tf32_is_set_during_an_update_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def reward(samples: Sequence[Any], **columns: Any) -> list[float]:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return by_name(samples)

    for tf32 in (False, True):
        with pretending():
            monkeypatch.setattr(trainer, "accelerator", accelerator)
            config = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=2, tf32=tf32)
            GRPOTrainer(FAMILIES["graph"].make(), reward, config).train()
    monkeypatch.undo()
    GRPOTrainer(FAMILIES["graph"].make(), reward, config).train()
    assert seen == [False, True, False]
    assert not torch.backends.cuda.matmul.allow_tf32


def test_an_update_alone_has_ordered_algorithms_and_on_cuda_the_variable_they_need(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[bool] = []

    def reward(samples: Sequence[Any], **columns: Any) -> list[float]:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return by_name(samples)

    config = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=2, full_determinism=True)
    GRPOTrainer(FAMILIES["graph"].make(), reward, config).train()
    GRPOTrainer(FAMILIES["graph"].make(), reward, dataclasses.replace(config, full_determinism=False)).train()
    assert seen == [True, False]
    assert not torch.are_deterministic_algorithms_enabled()
    case = FAMILIES["graph"]
    options = PretrainConfig(max_steps=1, batch_size=2, warmup_steps=1, full_determinism=True)
    said = r"^full_determinism: True with CUBLAS_WORKSPACE_CONFIG=, expected :4096:8 or :16:8 in the environment"
    for value in (None, ":4096:8"):
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
        if value is not None:
            monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
        with pretending():
            monkeypatch.setattr(trainer, "accelerator", accelerator)
            monkeypatch.setattr(pretrain, "accelerator", accelerator)
            for make in (
                lambda: GRPOTrainer(case.make(), reward, config).update(),
                lambda: Pretrainer(case.make(), Rows(case.batch()), options, tmp_path)._update(torch.arange(2)),
            ):
                with nullcontext() if value is not None else pytest.raises(ValueError, match=said):
                    make()
    assert seen == [True, False, True]


def test_pretraining_multiplies_in_tf32_during_an_update_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case, seen = FAMILIES["graph"], list[bool]()
    loss = type(case.make()).likelihood_loss

    def noted(policy: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return loss(policy, *arguments, **options)

    monkeypatch.setattr(type(case.make()), "likelihood_loss", noted)
    monkeypatch.setattr(pretrain, "accelerator", accelerator)
    for tf32 in (False, True):
        with pretending():
            config = PretrainConfig(max_steps=1, batch_size=2, warmup_steps=1, tf32=tf32)
            Pretrainer(case.make(), Rows(case.batch()), config, tmp_path / str(tf32))._update(torch.arange(2))
    assert seen == [False, True]
    assert not torch.backends.cuda.matmul.allow_tf32
