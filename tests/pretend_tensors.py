"""Tensors that say they are on an accelerator and hold their data on the CPU.

A :class:`Machine` is such an accelerator. Inside :func:`on`, tensors can be made on it and moved to it; an operation on tensors of
both devices, or a generator of the wrong one, raises :class:`DeviceError`. What else a machine refuses and counts is decided by
its methods, which do nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["CPU", "DeviceError", "Machine", "Pretend", "PretendGenerator", "bare", "move", "on"]

CPU = torch.device("cpu")
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
COPYING = {"copy_", "_to_copy", "copy"}
SCALARS = {"_local_scalar_dense", "equal", "is_same_size", "is_nonzero"}
READS = {"__float__", "__int__", "__bool__", "__index__", "__complex__", "item", "tolist"}
FACTORIES = {
    torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.rand, torch.randn, torch.randint, torch.randperm,
    torch.tensor, torch.as_tensor, torch.eye, torch.linspace, torch.tril_indices, torch.triu_indices,
}  # fmt: skip


class DeviceError(AssertionError):
    """What the device would refuse."""


class Machine:
    """A pretend accelerator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def holds(self, inner: torch.Tensor) -> None:
        """Called with the data of each tensor that is made on the device."""

    def runs(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Called before each operation on tensors of the device, with plain tensors."""

    def ran(self, func: Any, args: Any, kwargs: dict[str, Any], found: Any) -> None:
        """Called after each operation on tensors of the device, with plain tensors."""

    def synchronised(self, what: str) -> None:
        """Called when the host waits for the device."""

    def copied(self, what: str, *, blocking: bool = True) -> None:
        """Called for each copy from the host to the device."""

    def is_here(self, device: Any) -> bool:
        """Whether tensors asked for on ``device`` are made on this machine."""
        return device is not None and torch.device(device).type == self.device.type


class Pretend(torch.Tensor):
    """A tensor of a machine around one on the CPU."""

    held: torch.Tensor
    machine: Machine

    @staticmethod
    def __new__(cls, inner: torch.Tensor, machine: Machine) -> Pretend:
        machine.holds(inner)
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=CPU,
            requires_grad=False,
        )
        made.held, made.machine = inner, machine
        return made

    device = property(lambda self: self.machine.device)
    is_cuda = property(lambda self: self.machine.device.type == "cuda")
    is_cpu = property(lambda self: False)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Pretend({tuple(self.shape)}, {self.dtype})"

    def tolist(self) -> Any:
        """The numbers."""
        self.machine.synchronised("tolist")
        return self.held.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        """Refused, as by every device but the CPU."""
        raise DeviceError("numpy() of a tensor on the device, expected one on the CPU")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})


class PretendGenerator(torch.Generator):
    """A generator of the CPU that says it is on a machine."""

    device: Any = CPU

    @staticmethod
    def of(machine: Machine) -> PretendGenerator:
        """A new generator of a machine."""
        made = PretendGenerator()
        made.device = machine.device
        return made


_inside: list[Machine] = []  # the machines of the operations that are being run


def bare(x: Any) -> Any:
    """A tensor of a machine as the plain tensor that it holds; anything else as it is."""
    return x.held if isinstance(x, Pretend) else x


@lru_cache(maxsize=4096)
def name_of(func: Any) -> str:
    """Name of an operation without its namespace and overload."""
    schema = getattr(func, "_schema", None)
    return func.__name__ if schema is None else str(schema.name.split("::")[-1])


def tensors_in(x: Any) -> list[torch.Tensor]:
    """The tensors among nested arguments."""
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, (tuple, list)):
        return [one for part in x for one in tensors_in(part)]
    return tensors_in(tuple(x.values())) if isinstance(x, dict) else []


def mapped(change: Any, x: Any) -> Any:
    """Nested arguments with ``change`` applied to what is no container."""
    if isinstance(x, (tuple, list)):
        return type(x)([mapped(change, part) for part in x])
    return {name: mapped(change, part) for name, part in x.items()} if isinstance(x, dict) else change(x)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = name_of(func)
    tensors = tensors_in((args, kwargs))
    own = [a for a in tensors if isinstance(a, Pretend)]
    if not own:
        found = func(*args, **kwargs)
        if not _inside or tensors:
            return found
        _inside[-1].ran(func, args, kwargs, found)  # made inside an operation on tensors of the device
        return mapped(lambda x: _wrapped(x, _inside[-1]), found)
    machine = own[0].machine
    _check_devices(machine, name, args, [a for a in tensors if not isinstance(a, Pretend)])
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": CPU}
    plain, options = mapped(bare, args), mapped(bare, kwargs)
    machine.runs(func, plain, options)
    found = func(*plain, **options)
    machine.ran(func, plain, options, found)
    if name in SCALARS:
        return found
    if name.startswith(("_foreach", "_fused")) and name.endswith("_"):
        return None
    if name.endswith("_") and not name.endswith("__") and isinstance(args[0], Pretend):
        return args[0]
    return mapped(lambda x: _wrapped(x, machine), found)


def _check_devices(machine: Machine, name: str, args: Any, strange: list[torch.Tensor]) -> None:
    """Refuse, or count as a copy, what an operation of the machine does with these tensors of the CPU."""
    if any(a.ndim > 0 for a in strange) and name not in COPYING and not (name in INDEXING and isinstance(args[0], Pretend)):
        raise DeviceError(f"{name} of tensors on both devices, {[tuple(a.shape) for a in strange]} on the CPU")
    if strange and name in INDEXING:
        machine.copied(f"{name} with an index on the CPU")
    if strange and name == "copy_":
        machine.copied("copy_") if isinstance(args[0], Pretend) else machine.synchronised("copy_ to the CPU")


def _wrapped(x: Any, machine: Machine) -> Any:
    return Pretend(x, machine) if isinstance(x, torch.Tensor) and not isinstance(x, Pretend) else x


class _Fresh(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Moves(TorchFunctionMode):
    """Factories, moves between the devices, and numbers read from it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func in FACTORIES:
            return self._made(func, args, kwargs)
        if name in ("to", "cuda") and (moved := self._moved(name, *args, **kwargs)) is not None:
            return moved
        first = args[0] if args else None
        generator = kwargs.get("generator")
        if isinstance(generator, torch._C.Generator) and isinstance(generator, PretendGenerator) != isinstance(first, Pretend):
            raise DeviceError(f"{name}: a generator and a tensor of different devices")
        if isinstance(first, Pretend):
            if name == "cpu" or name in READS:
                self.machine.synchronised(name)
                return first.held.detach() if name == "cpu" else func(first.held)
            if name == "new_tensor":
                self.machine.copied(name)
                return Pretend(first.held.new_tensor(*args[1:], **{k: v for k, v in kwargs.items() if k != "device"}), self.machine)
        elif name == "pin_memory" and self.machine.device.type == "cuda":
            pinned: Any = first.clone()  # type: ignore[union-attr]
            pinned.pinned = True
            return pinned
        if name == "backward" or any(isinstance(a, Pretend) for a in tensors_in((args, kwargs))):
            _inside.append(self.machine)
            try:
                return func(*args, **kwargs)
            finally:
                _inside.pop()
        return func(*args, **kwargs)

    def _made(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        generator, asked = kwargs.get("generator"), kwargs.get("device")
        there = self.machine.is_here(asked)
        if generator is not None and isinstance(generator, PretendGenerator) != there:
            raise DeviceError(f"{func.__name__}: a generator and a tensor of different devices")
        given = args[0] if args else None
        if not there:
            if func is torch.as_tensor and isinstance(given, Pretend) and asked is None:
                return given
            return func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor) and not isinstance(given, Pretend):
            self.machine.copied(func.__name__)
        plain = mapped(bare, args), kwargs | {"device": CPU}
        found = func(*plain[0], **plain[1]).detach()
        self.machine.ran(func, *plain, found)
        return Pretend(found, self.machine)

    def _moved(self, name: str, x: torch.Tensor, *args: Any, non_blocking: bool = False, **kwargs: Any) -> torch.Tensor | None:
        given = [*args, *kwargs.values(), *([self.machine.device] if name == "cuda" else [])]
        like = next((a for a in given if isinstance(a, torch.Tensor)), None)
        device = like.device if like is not None else next((a for a in given if isinstance(a, (str, torch.device))), None)
        if device is None:
            return None
        dtype = like.dtype if like is not None else next((a for a in given if isinstance(a, torch.dtype)), x.dtype)
        there = self.machine.is_here(device)
        if there == isinstance(x, Pretend):
            return x.to(dtype)
        if isinstance(x, Pretend):
            self.machine.synchronised("to the CPU")
            return x.held.detach().clone().to(dtype)
        self.machine.copied("to the device", blocking=not (non_blocking and getattr(x, "pinned", False)))
        return Pretend(x.detach().clone().to(dtype), self.machine)


def move(module: nn.Module, machine: Machine) -> nn.Module:
    """The module with its parameters and buffers on the machine."""
    for part in module.modules():
        for name, p in part._parameters.items():
            if p is not None and not isinstance(p, Pretend):
                part._parameters[name] = nn.Parameter(Pretend(p.detach().clone(), machine), requires_grad=p.requires_grad)
        for name, b in part._buffers.items():
            if b is not None and not isinstance(b, Pretend):
                part._buffers[name] = Pretend(b.detach().clone(), machine)
    return module


@contextmanager
def on(machine: Machine) -> Iterator[None]:
    """Let tensors be made on, and moved to, the machine."""
    with _Fresh(), _Moves(machine):
        yield
