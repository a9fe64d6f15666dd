"""Cases of tests/training/test_pretrain_processes.py, run in each process: ``python -m tests.pretrain_worker FOLDER CASE ...``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.interrupt import Interrupted
from discrete_grpo.training.distributed import ProcessGroup, leave
from discrete_grpo.training.pretrain import Pretrainer
from tests.pretrain_cases import CONFIG, FAMILIES, Rows, pretrainer

RANK = int(os.environ.get("RANK", "0"))
IDLE: dict[str, Any] = {"batch_size": 36}
"""Two batches in an epoch of 37 rows, the second of one row."""


def gradient(family: str, run: Path, **changed: Any) -> list[Tensor | None]:
    """Gradient of the first update, not clipped."""
    trainer = pretrainer(family, run, max_grad_norm=1e9, **changed)
    trainer._update(next(trainer._rows()))
    return [p.grad for p in trainer.policy.parameters()]


def plain(name: str, folder: Path) -> None:
    """The first gradient of a family, and a run."""
    changed: dict[str, Any] = IDLE if name == "idle" else {}
    family = "graphs" if name == "idle" else name
    if RANK == 0:
        torch.save(gradient(family, folder / "first", **changed), folder / "gradient.pt")
    else:
        gradient(family, folder / "first", **changed)
    pretrainer(family, folder / "run", **changed).train()


def interrupted(folder: Path) -> None:
    """Ctrl-C in the second process alone, in the fourth update."""
    policy, data = FAMILIES["graphs"](torch.float64)
    calls = []

    def take(rows: Tensor) -> Any:
        calls.append(len(rows))
        if RANK == 1 and len(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return data.batch(rows)

    with pytest.raises(Interrupted, match="stopped at update 4 of 6"):
        Pretrainer(policy, Rows(data.sizes, take), CONFIG, folder / "run").train()


def evaluated(folder: Path) -> None:
    """A run that is evaluated, in the first process alone."""
    policy, data = FAMILIES["graphs"](torch.float64)
    calls: list[int] = []

    def evaluate(averaged: Any) -> dict[str, float]:
        calls.append(RANK)
        return {"rank": float(RANK)}

    Pretrainer(policy, data, CONFIG, folder / "run", evaluate=evaluate).train()
    assert calls == ([0, 0] if RANK == 0 else [])


def broken(folder: Path) -> None:
    """An evaluation that fails, which stops all processes with its message."""
    policy, data = FAMILIES["graphs"](torch.float64)

    def evaluate(averaged: Any) -> dict[str, float]:
        raise ArithmeticError("of the evaluation")

    with pytest.raises((ArithmeticError, RuntimeError), match="of the evaluation"):
        Pretrainer(policy, data, CONFIG, folder / "run", evaluate=evaluate).train()


class Closed(torch.nn.Linear):
    """A policy that cannot be given a share of a batch."""

    def likelihood_loss(self, batch: Any, *, generator: Any = None) -> dict[str, Tensor]:
        return {"loss": self.weight.sum()}


def refused(folder: Path) -> None:
    """The error of such a policy."""
    with pytest.raises(ValueError, match="policy: likelihood_loss of Closed has no argument share, expected one with several"):
        Pretrainer(Closed(1, 1), FAMILIES["graphs"](torch.float64)[1], CONFIG, folder / "run")


def in_turn(folder: Path) -> None:
    """The first process works before the others."""
    trainer = pretrainer("graphs", folder / "run")
    path = folder / "kept"

    def work() -> bool:
        found = path.exists()
        path.touch()
        return found

    assert trainer.processes.after_first(work) is (RANK > 0)
    assert ProcessGroup(trainer.accelerator).any([RANK == 1, False]) == [True, False]


OTHERS = {made.__name__: made for made in (interrupted, evaluated, broken, refused, in_turn)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    root, *names = sys.argv[1:]
    for name in names:
        folder = Path(root) / name
        folder.mkdir(parents=True, exist_ok=True)
        if name == "resumed":  # the folder holds a run of one process
            pretrainer("graphs", folder / "run", resume=True).train()
        elif name in OTHERS:
            OTHERS[name](folder)
        else:
            plain(name, folder)
    if "RANK" in os.environ:
        torch.distributed.barrier()
        leave()
