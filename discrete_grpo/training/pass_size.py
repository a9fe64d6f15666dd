"""Chooses the size of forward passes for ``per_device_batch_size: auto`` and ``timestep_chunk: auto``: as large as memory allows.

A pass of R trajectories and S of their steps needs about R · (a + b · S) bytes at its peak. Both terms are measured before the
first update, in small passes with gradients, and the decision holds for the whole run: a resumed run keeps it, as the order of
sums depends on it.
"""

from __future__ import annotations

import copy
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from discrete_grpo.core.drawing import draw
from discrete_grpo.core.rollout import Policy, Rollout, as_module, group_contexts, is_scorer
from discrete_grpo.core.step_selection import num_selected
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.distributed import ProcessGroup
from discrete_grpo.training.minibatches import MicroBatch
from discrete_grpo.training.optim import NO_WEIGHTS
from discrete_grpo.training.reference_tables import MAX_BYTES
from discrete_grpo.training.update import UpdatePlan, loss_terms, micro_batch_loss

__all__ = [
    "PassCost",
    "PassSize",
    "free_bytes",
    "measure_passes",
    "memory_advice",
    "pass_size",
    "peak_bytes",
    "smallest",
    "with_passes",
]

SHARE = 0.7
"""Share of the free memory that a pass may use; the rest is left for sampling and for fragmentation."""
OVERHEAD = 1.2
"""Largest relative cost of splitting trajectories into chunks of steps; if a pass computes all steps anyway, none are split."""
CPU_BYTES = 2**30
"""Bytes of the largest pass on a CPU, where larger ones bring no gain."""
CPU_ROWS = 64
"""Largest number of trajectories in a pass on a CPU."""
TRIAL_GROUPS, TRIAL_ROWS = 8, 2
"""Groups of the trajectories that are drawn for a trial, and trajectories in each; the larger half is used."""
GRADIENTS = 4
"""A trial stops at a pass that needs this many times the memory of the gradients."""


class PassSize(NamedTuple):
    """Numbers of trajectories and of steps in one forward pass; all steps if None."""

    rows: int
    steps: int | None


@dataclass(frozen=True)
class PassCost:
    """Memory of forward and backward passes.

    Attributes:
        per_row: a, bytes per trajectory, independent of the number of its steps.
        per_step: b, bytes per trajectory and step.
        steps: largest number of steps that an update is trained on, at least 1.
        constant: further bytes that the run needs: gradients, moments of the optimizer, reference and average.
    """

    per_row: float
    per_step: float
    steps: int
    constant: int = 0

    def bytes_of(self, rows: int, steps: int) -> float:
        """R · (a + b · S)."""
        return rows * (self.per_row + self.per_step * steps)

    @property
    def fewest(self) -> int:
        """Fewest steps per pass such that P passes, whose work grows as P · a + b · S, cost at most 1.2 times as much as one.

        It is 1 if a step does not depend on the others (graphs), and S if each pass processes the whole sample (texts).
        """
        once = self.per_row + self.per_step * self.steps
        affordable = (OVERHEAD * once - self.per_step * self.steps) / max(1.0, self.per_row)
        return math.ceil(self.steps / min(self.steps, max(1, int(affordable))))


# -- measurement


class _Account(TorchDispatchMode):
    """Counts the bytes of the storages that operations allocate, until these are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known = weakref.WeakSet[torch.UntypedStorage]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {id(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        for made in (x for x in tree_leaves(found) if isinstance(x, Tensor)):
            storage = made.untyped_storage()
            if id(storage) not in given and storage not in self.known:
                self.known.add(storage)
                self._add(storage.nbytes())
                weakref.finalize(storage, self._add, -storage.nbytes()).atexit = False
        return found

    def _add(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the peak bytes in tensors that ``work`` allocates on any device, without the workspaces of torch's kernels."""
    with _Account() as account:
        work()
    return account.peak


def measure_passes(
    policy: Policy,
    config: GRPOConfig,
    columns: Sequence[Mapping[str, Any]] | None,
    precision: Callable[[], AbstractContextManager[Any]],
    free: float = math.inf,
) -> PassCost:
    """Measure the memory of small passes over a few trajectories, which are drawn with a separate generator.

    The number of steps is doubled until a pass needs several times the memory of the gradients, or a quarter of the ``free`` bytes.
    If all steps would need less than that quarter, they are measured too: a peak is a maximum over several moments, so it can rise
    faster with many steps than with few. Gradients are included in the measurement, so the cost errs on the safe side if they are
    large. It is scaled to the largest trajectory that the policy can draw, by its number of sites.
    """
    module = as_module(policy)
    weights = [p for p in module.parameters() if p.requires_grad]
    size = sum(p.numel() * p.element_size() for p in weights)
    rollout = _trial(policy, config, columns, precision)
    peaks = {1: _peak_of(policy, config, rollout, 1, weights, precision)}
    enough = min(GRADIENTS * size, free / 4)
    while (steps := max(peaks)) < rollout.num_steps and (steps == 1 or peaks[steps] < enough):
        more = min(2 * steps, rollout.num_steps)
        peaks[more] = _peak_of(policy, config, rollout, more, weights, precision)
    (few, low), (many, high) = sorted(peaks.items())[-2:] if len(peaks) > 1 else [(0, 0), (1, peaks[1])]
    if many < rollout.num_steps and high + (high - low) / (many - few) * (rollout.num_steps - many) < free / 4:
        few, low, many = many, high, rollout.num_steps
        high = _peak_of(policy, config, rollout, many, weights, precision)
    scale = rollout.max_units / max(1, int(rollout.units.sum(1).max())) / len(rollout)
    slope = max(0.0, (high - low) / (many - few))
    longest = max(rollout.num_steps, rollout.max_steps or 0)
    whole = sum(p.numel() * p.element_size() for p in module.parameters())
    held = 3 * size + ((config.beta > 0) + (config.ema_decay is not None)) * whole  # gradients, two moments, reference, average
    held += MAX_BYTES if config.beta > 0 and config.num_iterations > 1 and not is_scorer(policy) else 0
    chosen = num_selected(longest, config.timestep_fraction)
    return PassCost(max(0.0, high - slope * many) * scale, slope * scale, chosen, held)


def _trial(policy: Policy, config: GRPOConfig, columns: Sequence[Mapping[str, Any]] | None, precision: Any) -> Rollout:
    """The larger half of a few trajectories."""
    device = next(as_module(policy).parameters()).device
    given = None if columns is None else [columns[k % len(columns)] for k in range(TRIAL_GROUPS)]
    contexts = group_contexts(TRIAL_GROUPS, TRIAL_ROWS, given)
    with precision():
        drawn = draw(policy, contexts, generator=torch.Generator(device).manual_seed(config.seed))
    order = drawn.units.sum(1).argsort(descending=True, stable=True)
    return drawn.index(order[: len(drawn) // 2])


def _peak_of(policy: Policy, config: GRPOConfig, rollout: Rollout, steps: int, weights: Sequence[Tensor], precision: Any) -> int:
    """Peak of a pass over the first steps of trajectories, with its gradients."""
    device, count = rollout.group.device, len(rollout)
    ones = torch.ones(count, device=device)
    chosen = torch.arange(steps, device=device).expand(count, -1)
    micro = MicroBatch(rollout, chosen, ones, ones, ones, torch.arange(count, device=device))

    bonus = config.entropy_coef > 0 or config.use_adaptive_entropy

    def work() -> None:
        with precision():
            terms = loss_terms(policy, micro, policy if config.beta > 0 else None, config, bonus=bonus)
        loss = micro_batch_loss(terms, micro, None, UpdatePlan(entropy_coef=float(bonus)), config).loss
        torch.autograd.grad(loss, weights, allow_unused=True)

    return peak_bytes(work)


def free_bytes(device: torch.device) -> int:
    """Memory that a process can still allocate, as reported free by torch and the driver, or by the system and its limits."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return _free_on_host() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _free_on_host(system: Path = Path("/")) -> int:
    """Free memory of the machine, or of the container's control group if that is less; half of the total if neither is known.

    File pages in the cache of a control group can be dropped and therefore count as free.
    """
    found = []
    try:
        lines = (system / "proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        group = system / "sys/fs/cgroup"
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        lines = (group / "memory.stat").read_text().splitlines()
        found.append(limit - used + sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file ")))
    except (OSError, ValueError):  # another system, or "max": no limit
        pass
    if found:
        return max(0, min(found))
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 if hasattr(os, "sysconf") else 2 * CPU_BYTES


# -- decision


def pass_size(config: GRPOConfig, cost: PassCost, free: int, device: torch.device, processes: int = 1) -> PassSize:
    """Return the largest pass that fits: as many trajectories as there are, then as many of their steps as memory allows.

    A pass has at least :attr:`PassCost.fewest` steps; if these do not fit, it has fewer trajectories. A number that the
    settings give is kept.

    Args:
        config: settings; at least one of the two numbers is ``auto``.
        cost: measured cost of passes.
        free: free bytes of the device.
        device: on any but CUDA a pass is at most 64 trajectories and 1 GiB.
        processes: number of processes that share a generation.
    """
    room, most = SHARE * max(0, free - cost.constant), -(-config.generation_batch_size // processes)
    if device.type != "cuda":
        room, most = min(room, CPU_BYTES), min(most, CPU_ROWS)
    chunk = None if config.timestep_chunk == "auto" and config.importance_sampling_level == "sequence" else config.timestep_chunk
    if config.per_device_batch_size == "auto":
        least = cost.fewest if chunk == "auto" else min(chunk or cost.steps, cost.steps)
        rows = max(1, min(most, int(room / max(1.0, cost.bytes_of(1, least)))))
    else:
        rows = config.per_device_batch_size
    if chunk != "auto":
        return PassSize(rows, chunk)
    fit = max(cost.fewest, int((room / rows - cost.per_row) / max(1.0, cost.per_step)))
    # A KL in the reward is computed at all steps, also at those that the update leaves out.
    return PassSize(rows, None if fit >= cost.steps and (config.beta == 0 or config.kl_in == "loss") else min(fit, cost.steps))


def with_passes(
    policy: Policy,
    config: GRPOConfig,
    columns: Sequence[Mapping[str, Any]] | None,
    precision: Callable[[], AbstractContextManager[Any]],
    *,
    processes: ProcessGroup | None = None,
    kept: Sequence[Any] | None = None,
) -> GRPOConfig:
    """The settings with numbers in place of ``auto``, the same in all processes; the first one prints them.

    Args:
        policy: policy on its device, with the activation checkpointing of the run.
        config: settings.
        columns: conditions of the run; None for unconditional policies.
        precision: function that returns the autocast context of the networks.
        processes: all processes of the run; None for one.
        kept: choice made when the run began, which a resumed run keeps; None for a new run.
    """
    asked = (config.per_device_batch_size, config.timestep_chunk)
    if "auto" not in asked:
        return config
    own = processes or ProcessGroup()
    trained = [parameter for parameter in as_module(policy).parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError(f"policy: {NO_WEIGHTS}")
    device = trained[0].device

    def decide() -> tuple[PassSize, PassCost | None, int]:
        if kept is not None:
            rows, steps = (was if now == "auto" else now for was, now in zip(kept, asked, strict=True))
            if config.importance_sampling_level == "sequence":  # a ratio covers all steps of a trajectory
                steps = None
            return PassSize(cast(int, rows), cast("int | None", steps)), None, 0
        free = free_bytes(device)
        with memory_advice("the trial passes of 'auto'"):
            cost = measure_passes(copy.deepcopy(policy), config, columns, precision, free)  # a copy is not compiled
        return pass_size(config, cost, free, device, own.count), cost, free

    decided = own.run_all(decide)
    size = smallest([size for size, _, _ in decided])
    if own.first:
        print(f"passes: auto -> {_told(size, *decided[0][1:])}", file=sys.stderr)
    return replace(config, per_device_batch_size=size.rows, timestep_chunk=size.steps)


def _told(size: PassSize, cost: PassCost | None, free: int) -> str:
    steps = "all steps" if size.steps is None else "1 step" if size.steps == 1 else f"{size.steps} steps"
    line = f"{size.rows} {'trajectory' if size.rows == 1 else 'trajectories'}, {steps}"
    if cost is None:
        return f"{line}, as the run began"
    need = cost.bytes_of(size.rows, min(size.steps or cost.steps, cost.steps)) + cost.constant
    doubt = "" if need <= free else ", which may not fit"
    return f"{line}, about {need / 2**20:,.0f} MiB with gradients and optimizer of {free / 2**20:,.0f} free{doubt}"


@contextmanager
def memory_advice(
    work: str, ways: str = "lower per_device_batch_size or timestep_chunk, or set checkpoint_layers"
) -> Iterator[None]:
    """Add to an out-of-memory error of ``work`` which settings need less memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise torch.OutOfMemoryError(f"out of memory in {work}: {ways} ({str(error).splitlines()[0]})") from error


def smallest(sizes: Sequence[PassSize]) -> PassSize:
    """Return the pass that fits in every process.

    >>> smallest([PassSize(64, None), PassSize(32, 5)])
    PassSize(rows=32, steps=5)
    """
    steps = [size.steps for size in sizes if size.steps is not None]
    return PassSize(min(size.rows for size in sizes), min(steps, default=None))
