"""Short runs on the pretend CUDA device, with the counts of each update."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from discrete_grpo.training import pretrain, trainer
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.pretrain import Pretrainer
from discrete_grpo.training.trainer import GRPOTrainer
from discrete_grpo.training.update import Learner
from tests.families import Case
from tests.pretend_cuda import Counts, Cuda, accelerator, pretending

CONFIG = GRPOConfig(
    max_steps=2, num_generations=4, generation_batch_size=8, per_device_batch_size=4, beta=0.1, ema_decay=0.9,
    sync_ref_model=True, ref_model_sync_steps=1,
)  # fmt: skip


def by_name(samples: Sequence[Any], **columns: Any) -> list[float]:
    """A reward that differs between samples."""
    return [zlib.crc32(str(one).encode()) % 1000 / 1000 for one in samples]


def run(case: Case, monkeypatch: pytest.MonkeyPatch, config: GRPOConfig = CONFIG) -> tuple[list[Counts], list[dict[str, float]]]:
    """Counts of each update of a run, and its metrics."""
    updates: list[Counts] = []
    update = Learner.update
    with pretending() as cuda:

        def counted(learner: Learner, *args: Any) -> dict[str, float]:
            with cuda.counting() as found:
                line = update(learner, *args)
            updates.append(found)
            return line

        monkeypatch.setattr(Learner, "update", counted)
        monkeypatch.setattr(trainer, "accelerator", accelerator)
        columns = None if case.columns is None else [case.columns]
        lines = GRPOTrainer(case.make(), by_name, config, columns=columns).train()
    return updates, lines


def count_pretraining(cuda: Cuda, patch: pytest.MonkeyPatch) -> list[Counts]:
    """Let pretraining run on the device and save nothing; the counts of each update are appended to the list."""
    update, updates = Pretrainer._update, list[Counts]()

    def counted(pretrainer: Pretrainer, rows: torch.Tensor) -> dict[str, float]:
        with cuda.counting() as found:
            line = update(pretrainer, rows)
        updates.append(found)
        return line

    patch.setattr(Pretrainer, "_update", counted)
    patch.setattr(pretrain, "accelerator", accelerator)
    patch.setattr(Pretrainer, "_save", lambda self: None)
    patch.setattr(pretrain, "save", lambda folder, *_, **__: folder)
    return updates


class Rows:
    """A batch as a data set of one batch."""

    def __init__(self, batch: Any) -> None:
        self.whole = batch
        self.sizes = torch.ones(len(batch), dtype=torch.long)

    def __len__(self) -> int:
        return len(self.sizes)

    def batch(self, rows: torch.Tensor) -> Any:
        return self.whole
