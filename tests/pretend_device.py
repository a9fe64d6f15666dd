"""A pretend device without float64 on a machine that has none: tensors that say they are on MPS and hold their data on the CPU.

Inside :func:`pretending`, ``device="mps"`` and ``.to("mps")`` give such tensors. What a real device would refuse raises
:class:`DeviceError`: a float64 tensor on it, and an operation on tensors of both devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

MPS = torch.device("mps")
CPU = torch.device("cpu")
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
COPYING = {"copy_", "_to_copy", "copy"}
SCALARS = {"_local_scalar_dense", "equal", "is_same_size"}
FACTORIES = {
    torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.rand, torch.randn, torch.randint, torch.randperm,
    torch.tensor, torch.as_tensor, torch.eye, torch.linspace, torch.tril_indices, torch.triu_indices,
}  # fmt: skip


class DeviceError(AssertionError):
    """What a device without float64 would refuse."""


class Pretend(torch.Tensor):
    """A tensor of the pretend device around one on the CPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, requires_grad: bool = False) -> Pretend:
        if inner.dtype == torch.float64:
            raise DeviceError(f"a float64 tensor {tuple(inner.shape)} on the device")
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=CPU,
            requires_grad=requires_grad,
        )
        made.held = inner
        return made

    device = property(lambda self: MPS)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Pretend({tuple(self.shape)}, {self.dtype})"

    def tolist(self) -> Any:
        """The numbers."""
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


_inside = [0]


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.split("::")[-1]
    tensors = [a for a in tree_flatten((args, kwargs))[0] if isinstance(a, torch.Tensor)]
    own = [a for a in tensors if isinstance(a, Pretend)]
    if not own:
        found = func(*args, **kwargs)
        fresh = _inside[0] > 0 and not tensors  # made inside an operation on tensors of the device
        return tree_map(_wrapped, found) if fresh else found
    strange = [a for a in tensors if not isinstance(a, Pretend) and a.ndim > 0]
    if strange and name not in COPYING and not (name in INDEXING and isinstance(args[0], Pretend)):
        raise DeviceError(f"{name} of tensors on both devices, {[tuple(a.shape) for a in strange]} on the CPU")
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": CPU}
    found = func(*tree_map(_bare, args), **tree_map(_bare, kwargs))
    if name in SCALARS:
        return found
    if name.endswith("_") and isinstance(args[0], Pretend):
        return args[0]
    return None if name.startswith("_foreach") and name.endswith("_") else tree_map(_wrapped, found)


def _bare(x: Any) -> Any:
    return x.held if isinstance(x, Pretend) else x


def _wrapped(x: Any) -> Any:
    return Pretend(x) if isinstance(x, torch.Tensor) and not isinstance(x, Pretend) else x


class _Fresh(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class PretendGenerator(torch.Generator):
    """A generator of the CPU that says it is on the pretend device."""

    device = MPS


def _on_device(device: Any) -> bool:
    return device is not None and torch.device(device).type == "mps"


class _Moves(TorchFunctionMode):
    """Factories, moves between the devices, and numbers read from it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func in FACTORIES:
            return self._made(func, args, kwargs)
        if name == "to" and (moved := self._moved(*args, **kwargs)) is not None:
            return moved
        first = args[0] if args else None
        if isinstance(first, Pretend):
            if name == "cpu":
                return first.held
            if name in ("__float__", "__int__", "__bool__", "item", "__index__"):
                return func(first.held)
            if name == "new_tensor":
                return Pretend(first.held.new_tensor(*args[1:], **{k: v for k, v in kwargs.items() if k != "device"}))
        if name == "backward" or any(isinstance(a, Pretend) for a in tree_flatten((args, kwargs))[0]):
            _inside[0] += 1
            try:
                return func(*args, **kwargs)
            finally:
                _inside[0] -= 1
        return func(*args, **kwargs)

    def _made(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        generator = kwargs.get("generator")
        there = _on_device(kwargs.get("device"))
        if generator is not None and isinstance(generator, PretendGenerator) != there:
            raise DeviceError(f"{func.__name__}: a generator and a tensor of different devices")
        if not there:
            return args[0] if func is torch.as_tensor and isinstance(args[0], Pretend) else func(*args, **kwargs)
        return Pretend(func(*tree_map(_bare, args), **kwargs | {"device": "cpu"}).detach())

    def _moved(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        given = [*args, *kwargs.values()]
        like = next((a for a in given if isinstance(a, torch.Tensor)), None)
        device = like.device if like is not None else next((a for a in given if isinstance(a, (str, torch.device))), None)
        if device is None:
            return None
        dtype = like.dtype if like is not None else next((a for a in given if isinstance(a, torch.dtype)), x.dtype)
        if _on_device(device) != isinstance(x, Pretend):
            data = x.held if isinstance(x, Pretend) else x.detach().clone()
            return Pretend(data.to(dtype)) if _on_device(device) else data.to(dtype)
        return x.to(dtype)


def move(module: nn.Module) -> nn.Module:
    """The module with its parameters and buffers on the pretend device."""
    for part in module.modules():
        for name, p in part._parameters.items():
            if p is not None:
                part._parameters[name] = nn.Parameter(Pretend(p.detach().clone()), requires_grad=p.requires_grad)
        for name, b in part._buffers.items():
            if b is not None:
                part._buffers[name] = Pretend(b.detach().clone())
    return module


@contextmanager
def pretending() -> Iterator[None]:
    """Let tensors be made on, and moved to, the pretend device."""
    with _Fresh(), _Moves():
        yield
