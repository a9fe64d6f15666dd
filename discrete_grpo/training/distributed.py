"""Communication between the processes of a distributed run; an error or a stop in one of them ends all.

A run is distributed by ``torchrun`` or ``accelerate launch``. In a single process every function here is the identity.
"""

from __future__ import annotations

import atexit
import datetime
import importlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch import Tensor

from discrete_grpo.core.batch_share import Mean
from discrete_grpo.core.precision import widen
from discrete_grpo.core.scoring import BudgetExhausted, RewardError

__all__ = ["ProcessGroup", "RankShare", "accelerator", "leave", "lost_process"]

T = TypeVar("T")
PATIENCE = datetime.timedelta(hours=12)
"""Longest time that a process waits for the others, since scoring can be slow in one of them; if one dies, all end at once."""


def accelerator() -> Accelerator:
    """Create the Accelerator of this process; processes without a GPU communicate through gloo.

    Raises:
        RuntimeError: if a launcher started several processes that cannot connect to each other.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    alone = started == 1 or torch.accelerator.is_available()
    if started > 1:
        importlib.import_module(
            "torch.distributed.nn.functional"
        )  # a late import would keep a process group alive in default arguments

        atexit.register(leave)
    handlers = [InitProcessGroupKwargs(timeout=PATIENCE)]
    # Its own precision and accumulation would scale the loss without the trainer's knowledge; the environment cannot ask for them.
    found = Accelerator(cpu=None if alone else True, mixed_precision="no", kwargs_handlers=handlers)
    found.gradient_accumulation_steps = 1
    if found.num_processes != started:
        raise RuntimeError(f"processes: {found.num_processes} joined, expected the {started} that were started (WORLD_SIZE)")
    return found


def leave() -> None:
    """Destroy a gloo group and end its threads; a thread that still runs at interpreter exit would abort the process."""
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()


def lost_process(error: RuntimeError) -> bool:
    """Whether an error of a distributed run is that of the backend, as when another process was killed."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return several and (isinstance(error, dist.DistError) or re.search("gloo|nccl", str(error), re.IGNORECASE) is not None)


class ProcessGroup:
    """The processes of a run; the first one writes the files.

    Args:
        accelerator: Accelerator of this process; None for a single process.
    """

    def __init__(self, accelerator: Accelerator | None = None) -> None:
        self.rank = accelerator.process_index if accelerator is not None else 0
        self.count = accelerator.num_processes if accelerator is not None else 1
        self.device = accelerator.device if accelerator is not None else torch.device("cpu")

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Return the value of every process in order of rank; it must be picklable, with tensors on the CPU."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return cast(list[T], found)

    def gather_to_first(self, value: T) -> list[T] | None:
        """Like :meth:`gather` in the first process; None in the others, to which nothing is sent."""
        if self.count == 1:
            return [value]
        found: list[Any] | None = [None] * self.count if self.first else None
        dist.gather_object(value, found)
        return cast(list[T] | None, found)

    def run_all(self, work: Callable[[], T]) -> list[T]:
        """Call ``work`` in every process; returns all results in order of rank.

        Raises:
            Exception: in all processes if any of them raised: the error of the lowest rank, but an exhausted budget last.
        """
        if self.count == 1:
            return [work()]
        result, error = None, None
        try:
            result = work()
        except Exception as caught:
            error = caught
        told = self.gather((result, None if error is None else _told(error)))
        errors = [(said[0] == "budget", rank) for rank, (_, said) in enumerate(told) if said is not None]
        if not errors:
            return [cast(T, value) for value, _ in told]
        _, rank = min(errors)
        if rank == self.rank and error is not None:
            raise error
        raise _rebuilt(rank, *cast(tuple[str, str], told[rank][1])) from error

    def after_first(self, work: Callable[[], T]) -> T:
        """Call ``work`` in the first process, then in the others, which can use the files that the first one wrote.

        Raises:
            Exception: as :meth:`run_all`.
        """
        found: list[T] = []
        for turn in (True, False) if self.count > 1 else ():
            self.run_all(lambda mine=(turn == self.first): found.append(work()) if mine else None)  # type: ignore[misc]
        return found[0] if found else work()

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Whether each flag is set in any process."""
        if self.count == 1:
            return list(flags)
        total = torch.tensor(flags, dtype=torch.int32, device=self.device)
        dist.all_reduce(total)
        return [n > 0 for n in total.tolist()]

    @torch.no_grad()
    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of the first process."""
        for tensor in tensors if self.count > 1 else ():
            dist.broadcast(tensor, 0)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, with one message per dtype."""
        if self.count == 1:
            return
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            same = [t for t in tensors if t.dtype == dtype]
            flat = torch.cat([t.reshape(-1) for t in same])
            dist.all_reduce(flat)
            for tensor, total in zip(same, flat.split([t.numel() for t in same]), strict=True):
                tensor.copy_(total.view_as(tensor))


@dataclass(frozen=True)
class RankShare:
    """The rows of a batch that one process computes, see :class:`~discrete_grpo.core.batch_share.BatchShare`.

    Rows are dealt in turn. Since the rows of a batch are sorted by size, all processes get about the same number of sites.

    Attributes:
        processes: all processes of the run.
        count: number of rows of the batch; if it is below the number of processes, the last processes compute the first row
            with weight 0.
    """

    processes: ProcessGroup
    count: int

    @property
    def own(self) -> slice:
        """Rows of this process."""
        return slice(self.processes.rank, None, self.processes.count) if self._has_rows else slice(0, 1)

    @property
    def _has_rows(self) -> bool:
        return self.processes.rank < self.count

    def means(self, *own: Mean) -> tuple[Tensor, ...]:
        """Means over the whole batch, exchanged in one message; the gradient is that of this process's rows only."""
        counts = torch.stack([widen(count) for _, count in own]) * float(self._has_rows)
        sums = [widen(mean.detach()) * n for (mean, _), n in zip(own, counts, strict=True)]
        numbers = counts.clone()
        self.processes.add([*sums, numbers])
        found = []
        for (mean, _), total, n, number in zip(own, sums, counts, numbers.clamp(min=1), strict=True):
            whole = (total / number).to(mean.dtype)
            part = mean * (n / number).to(mean.dtype)
            found.append(part - part.detach() + whole)
        return tuple(found)


def _told(error: Exception) -> tuple[str, str]:
    """Class and message of an error, in the form that is sent to other processes."""
    if isinstance(error, BudgetExhausted):
        return "budget", str(error)
    if isinstance(error, RewardError):
        return "reward", str(error)
    return "other", f"{type(error).__name__}: {' '.join(str(error).split())}"


def _rebuilt(rank: int, kind: str, text: str) -> Exception:
    if kind == "budget":
        return BudgetExhausted(text, torch.empty(0, 0))
    return RewardError(text) if kind == "reward" else RuntimeError(f"process {rank}: {text}")
