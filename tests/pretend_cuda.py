"""A pretend CUDA device on a machine that has none, which counts what makes a GPU wait.

Inside :func:`pretending`, ``device="cuda"`` and ``.to("cuda")`` give tensors that say they are on cuda:0 and hold their data on the
CPU. Operations on tensors of both devices and generators of the wrong one raise
:class:`~tests.pretend_tensors.DeviceError`. Counted, each with the lines of this project that caused it:

* *launches*: kernels. A view launches none; an operation of several kernels counts as in :data:`KERNELS`, an estimate.
* *synchronisations*: the host reads a number, or a shape that depends on numbers (``item``, ``nonzero``, a boolean index).
* *copies*: from pageable host memory to the device, for which the host waits too. Pinned memory with ``non_blocking`` is free.

``torch.cuda.CUDAGraph`` records the operations of its capture and repeats them, on the same memory, at each replay, which counts as
one launch. In a capture a synchronisation, a blocking copy, and a draw from a generator that is not registered raise.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.utils import clip_grad
from torch.optim import swa_utils

from discrete_grpo.core.precision import constant
from discrete_grpo.domains import graphs
from tests import pretend_tensors
from tests.pretend_tensors import DeviceError, Machine, Pretend, PretendGenerator

__all__ = ["CUDA", "Counts", "Cuda", "DeviceError", "Pretend", "accelerator", "pretending"]

CUDA = torch.device("cuda", 0)
ROOT = Path(__file__).resolve().parent.parent
OURS = tuple(str(ROOT / name) + "/" for name in ("discrete_grpo", "models", "datasets"))
KERNELS = {
    "sort": 4, "argsort": 4, "nonzero": 3, "_unique2": 6, "unique_dim": 10, "linalg_inv_ex": 4, "randperm": 3,
    "index_put": 2, "index_put_": 2, "_index_put_impl_": 2, "embedding_dense_backward": 3, "native_layer_norm_backward": 2,
    "empty": 0, "empty_like": 0, "new_empty": 0, "empty_strided": 0, "new_empty_strided": 0, "_unsafe_view": 0, "equal": 2,
    "lift_fresh": 0, "is_same_size": 0, "_local_scalar_dense": 0,
}  # fmt: skip
"""Kernels of an operation where they are not one."""
WAITS = {
    "_local_scalar_dense",
    "nonzero",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "masked_select",
    "is_nonzero",
    "equal",
    "bincount",
    "histc",
    "_linalg_check_errors",
}
DRAWS = {"rand", "uniform_", "randn", "normal_", "randint", "randperm", "bernoulli_", "multinomial", "exponential_"}
UNORDERED = {
    *("cumsum", "histc", "median", "kthvalue", "put_", "put", "_ctc_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
    *(f"{kind}_pad{n}d_backward" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    *(f"upsample_{kind}_backward" for kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")),
    *("avg_pool3d_backward", "max_pool3d_with_indices_backward", "max_unpool2d", "max_unpool3d", "grid_sampler_2d_backward"),
    *("adaptive_max_pool2d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "grid_sampler_3d_backward"),
    *("fractional_max_pool2d_backward", "fractional_max_pool3d_backward"),
}
"""Operations without a deterministic algorithm on CUDA, by ``torch.use_deterministic_algorithms``."""
LAUNCHES_AT_ONCE = ("_foreach", "_fused")


@dataclass
class Counts:
    """What happened on the device, and where: ``path:line`` of the innermost two lines of this project."""

    launches: int = 0
    synchronisations: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    replays: int = 0
    lines: Counter[str] = field(default_factory=Counter)

    @property
    def waits(self) -> int:
        """Number of synchronisations."""
        return self.synchronisations.total()

    @property
    def blocking_copies(self) -> int:
        """Number of blocking copies."""
        return self.copies.total()

    def __str__(self) -> str:
        """The numbers, and the places that cause the most of them."""
        rows = [f"{self.launches} launches, {self.waits} synchronisations, {self.blocking_copies} blocking copies"]
        rows += [f"  {n} x synchronisation: {where}" for where, n in self.synchronisations.most_common(20)]
        rows += [f"  {n} x copy: {where}" for where, n in self.copies.most_common(20)]
        return "\n".join(rows)


class Cuda(Machine):
    """A pretend CUDA device with its counts."""

    def __init__(self) -> None:
        super().__init__(CUDA)
        self.counts = Counts()
        self.recording: list[tuple[Any, Any, Any, Any]] | None = None
        self.registered: list[Any] = []  # generators that the capture may draw from
        self.by_line = False  # whether launches are counted by line, which takes time
        self.before: list[tuple[torch.Tensor, torch.Tensor]] = []

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """Count from zero inside the block; the counts stay valid after it."""
        outer, self.counts = self.counts, Counts()
        try:
            yield self.counts
        finally:
            self.counts = outer

    def generator(self, seed: int = 0) -> PretendGenerator:
        """A generator that says it is on the device."""
        made = PretendGenerator.of(self)
        made.manual_seed(seed)
        return made

    def move(self, module: nn.Module) -> nn.Module:
        """The module with its parameters and buffers on the device."""
        return pretend_tensors.move(module, self)

    # -- what the tensors report

    def ran(self, func: Any, args: Any, kwargs: dict[str, Any], found: Any) -> None:
        """Count the kernels of an operation, and a synchronisation where it needs one."""
        name = pretend_tensors.name_of(func)
        if name in WAITS or _by_mask(name, args) or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            self.synchronised(name)
        number = _kernels(func)
        self.counts.launches += number
        if number and self.by_line:
            self.counts.lines[_where(1)] += number
        if self.recording is not None and number:
            self._check_draw(name, kwargs)
            self.recording.append((func, args, kwargs, found))

    def runs(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Refuse what has no deterministic algorithm if one is asked for; keep what an operation of a capture would change."""
        name = pretend_tensors.name_of(func)
        weighted = name == "bincount" and (len(args) > 1 or kwargs.get("weights") is not None)
        if torch.are_deterministic_algorithms_enabled() and (weighted or (name in UNORDERED and args[0].is_floating_point())):
            raise DeviceError(f"{name} at {_where()} has no deterministic implementation")
        if self.recording is not None:
            for at in _written(func, args):
                self.before.append((at, at.clone()))

    def _check_draw(self, name: str, kwargs: dict[str, Any]) -> None:
        if name in DRAWS and not any(kwargs.get("generator") is one for one in self.registered):
            raise DeviceError(f"a draw ({name}) in a capture at {_where()}, expected it outside")

    def synchronised(self, what: str) -> None:
        """Count a synchronisation; a capture refuses it."""
        if self.recording is not None:
            raise DeviceError(f"{what} in a capture at {_where()}: the host cannot wait there")
        self.counts.synchronisations[f"{what} at {_where()}"] += 1

    def copied(self, what: str, *, blocking: bool = True) -> None:
        """Count a copy from pageable memory; a capture refuses all."""
        if self.recording is not None:
            raise DeviceError(f"{what} in a capture at {_where()}: it would be repeated from memory that is gone")
        if blocking:
            self.counts.copies[f"{what} at {_where()}"] += 1


@lru_cache(maxsize=4096)
def _kernels(func: Any) -> int:
    """Number of kernels of an operation; 0 for a view."""
    schema, name = getattr(func, "_schema", None), pretend_tensors.name_of(func)
    view = schema is not None and any(r.alias_info and not r.alias_info.is_write for r in schema.returns)
    return 0 if view else 1 if name.startswith(LAUNCHES_AT_ONCE) else KERNELS.get(name, 1)


def _where(depth: int = 2) -> str:
    """The innermost lines of this project on the stack."""
    frame: Any = sys._getframe(1)
    found: list[str] = []
    while frame is not None and len(found) < depth:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            found.append(f"{Path(name).relative_to(ROOT)}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(found) or "elsewhere"


def _by_mask(name: str, args: Any) -> bool:
    """Whether an operation indexes with a boolean tensor."""
    if name not in pretend_tensors.INDEXING:
        return False
    return any(isinstance(a, torch.Tensor) and a.dtype in (torch.bool, torch.uint8) for a in args[1] if a is not None)


# -- CUDA graphs


def _written(func: Any, args: Any) -> list[torch.Tensor]:
    """The tensors that an operation changes in place."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return []
    marks = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    return [a for mark, a in zip(marks, args, strict=False) if mark and isinstance(a, torch.Tensor)]


class _Graph:
    """In place of ``torch.cuda.CUDAGraph``: the recorded operations, repeated on the same memory."""

    def __init__(self, machine: Cuda) -> None:
        self.machine = machine
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.generators: list[Any] = []

    def register_generator_state(self, generator: Any) -> None:
        """Let the capture draw from a generator, and each replay from where it then is."""
        self.generators.append(generator)

    def replay(self) -> None:
        """Run the operations of the capture again."""
        self.machine.counts.launches += 1
        self.machine.counts.replays += 1
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for func, args, kwargs, found in self.operations:
                again = func(*args, **kwargs)
                if _written(func, args):
                    continue
                for old, new in zip(pretend_tensors.tensors_in(found), pretend_tensors.tensors_in(again), strict=True):
                    old.copy_(new)

    def reset(self) -> None:
        """Forget the operations."""
        self.operations.clear()


@contextmanager
def _capture(graph: _Graph, **_: Any) -> Iterator[None]:
    """In place of ``torch.cuda.graph``."""
    machine = graph.machine
    machine.recording, launches = [], machine.counts.launches
    machine.registered, states = graph.generators, [one.get_state() for one in graph.generators]
    try:
        yield
        graph.operations = machine.recording
    finally:
        machine.recording, machine.counts.launches, machine.registered = None, launches, []
        for one, kept in zip(graph.generators, states, strict=True):
            one.set_state(kept)  # a capture draws nothing
        for at, value in reversed(machine.before):
            at.copy_(value)
        machine.before.clear()


# -- the device


def accelerator() -> SimpleNamespace:
    """What the trainers use of an Accelerator, for one process on the device."""
    return SimpleNamespace(
        device=CUDA, process_index=0, num_processes=1, prepare=lambda x: x, backward=lambda loss: loss.backward()
    )


class _AutocastOnCpu(torch.autocast):
    """Autocast of the device as that of the CPU, where the tensors are."""

    def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu" if device_type == "cuda" else device_type, *args, **kwargs)


def _moving(machine: Cuda, original: Callable[..., Any]) -> Callable[..., Any]:
    def to(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        device = next((a for a in (*args, *kwargs.values()) if isinstance(a, (str, torch.device))), None)
        if machine.is_here(device):
            return machine.move(module)
        if device is not None and torch.device(device).type == "cpu":
            for part in module.modules():
                for name, p in part._parameters.items():
                    if isinstance(p, Pretend):
                        part._parameters[name] = nn.Parameter(p.detach().held.clone(), requires_grad=p.requires_grad)
                part._buffers.update({name: pretend_tensors.bare(b) for name, b in part._buffers.items()})
        return original(module, *args, **kwargs)

    return to


def _grouped(original: Callable[..., Any]) -> Callable[..., Any]:
    def grouped(lists: Any, *args: Any) -> Any:
        found, there = original(lists, *args), isinstance(lists[0][0], Pretend)
        return {(CUDA if there else device, dtype): value for (device, dtype), value in found.items()}

    return grouped


@contextmanager
def pretending() -> Iterator[Cuda]:
    """Let tensors be made on, and moved to, the device; the trainers run on it."""
    machine, real = Cuda(), torch.Generator

    class Generator(real):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            return PretendGenerator.of(machine) if machine.is_here(device) else real(device)

    patches: list[tuple[Any, str, Any]] = [
        (torch, "Generator", Generator),
        (torch, "autocast", _AutocastOnCpu),
        (torch.random, "fork_rng", lambda *_, **__: nullcontext()),
        (nn.Module, "to", _moving(machine, nn.Module.to)),
        (sys.modules["torch.optim.optimizer"], "_foreach_supported_types", [torch.Tensor, nn.Parameter, Pretend]),
        (clip_grad, "_has_foreach_support", lambda tensors, device: True),
        *(
            (module, "_group_tensors_by_device_and_dtype", _grouped(vars(module)["_group_tensors_by_device_and_dtype"]))
            for module in (clip_grad, swa_utils)
        ),
        (torch.cuda, "CUDAGraph", lambda: _Graph(machine)),
        (torch.cuda, "graph", _capture),
    ]
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(pretend_tensors.on(machine))
        _forget_constants()
        stack.callback(_forget_constants)
        yield machine


def _forget_constants() -> None:
    """Drop cached constants: those of another device of this name are other tensors."""
    graphs._pair_index.cache_clear()
    graphs._flat_index.cache_clear()
    constant.cache_clear()
