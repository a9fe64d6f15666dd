"""Forward and backward passes of training recorded as CUDA graphs, so that one launch runs all their kernels."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from discrete_grpo.core.precision import uncached_casts

__all__ = ["MOST_GRAPHS", "RecordedPasses"]

MOST_GRAPHS = 32
"""Most graphs of a run, one for each kind of batch; each keeps the activations of its pass."""


class RecordedPasses:
    """Losses and gradients of batches, each kind of batch recorded as a CUDA graph when it is met for the second time.

    A replay computes the same bits as the passes themselves: it reads the weights in place, and draws from ``generator`` and from
    torch's generator of the device what the passes would draw. Gradients are left at the parameters.

    Args:
        losses: losses of a batch by name, with the one to minimise under ``loss``; without copies to or reads from the device.
        parameters: the weights.
        generator: generator of ``losses``, on the device.
    """

    def __init__(
        self, losses: Callable[[Any], Mapping[str, Tensor]], parameters: Sequence[nn.Parameter], generator: torch.Generator
    ) -> None:
        self._losses, self._generator = losses, generator
        self._parameters = [p for p in parameters if p.requires_grad]
        self._met: dict[tuple[Any, ...], _Graph | None] = {}
        self._refused = False

    def run(self, batch: Any) -> dict[str, Tensor] | None:
        """The losses of a batch, valid until the next call; None for a batch whose passes the caller must compute.

        That is the first of its kind, which warms up, every one of the kinds beyond :data:`MOST_GRAPHS`, and, with a warning, every
        one of a policy that cannot be recorded.
        """
        tensors = list(_tensors(batch))
        kind = tuple((tuple(x.shape), x.dtype) for x in tensors)
        if kind not in self._met or self._refused:
            if len(self._met) < MOST_GRAPHS:
                self._met[kind] = None
            return None
        graph = self._met[kind] or self._recorded(batch)
        if graph is None:
            return None
        self._met[kind] = graph
        return graph.replay(tensors)

    def _recorded(self, batch: Any) -> _Graph | None:
        try:
            return _Graph(self._losses, batch, self._parameters, self._generator)
        except RuntimeError as error:
            self._refused = True
            reason = " ".join(str(error).split())[:300]
            told = f"cuda_graphs: the passes were not recorded ({reason}); each kernel is launched alone"
            warnings.warn(told, stacklevel=2)
            for parameter in self._parameters:
                parameter.grad = None
            return None


class _Graph:
    """The passes of one kind of batch."""

    def __init__(
        self,
        losses: Callable[[Any], Mapping[str, Tensor]],
        batch: Any,
        parameters: Sequence[nn.Parameter],
        generator: torch.Generator,
    ) -> None:
        self.batch, self.parameters = _cloned(batch), parameters
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)
        for parameter in parameters:
            parameter.grad = None  # the backward pass then writes the gradient, and adds to none
        with uncached_casts(), torch.cuda.graph(self.graph):
            self.found = dict(losses(self.batch))
            if (fixed := next((name for name, value in self.found.items() if not isinstance(value, Tensor)), None)) is not None:
                raise RuntimeError(f"{fixed!r} of the losses is no tensor, so that a replay would not compute it")
            self.found["loss"].backward()
        self.found = {name: value.detach() for name, value in self.found.items()}
        self.gradients = [p.grad for p in parameters]

    def replay(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """The losses of a batch of these tensors."""
        for old, new in zip(_tensors(self.batch), tensors, strict=True):
            old.copy_(new)
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.found


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of a batch, in a fixed order."""
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _cloned(value: Any) -> Any:
    """A batch with tensors of its own."""
    if isinstance(value, Tensor):
        return value.clone()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{f.name: _cloned(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init})
    if isinstance(value, Mapping):
        return {name: _cloned(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_cloned(part) for part in value)
    return value
