"""``torch.compile`` of a policy's network, layer by layer, without a trace in its checkpoints."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from discrete_grpo.training.network import network_of

__all__ = ["compile_network"]

VARIANTS = 64
"""Most programs for one layer. Sizes are symbols in them, but 0, 1 and many are told apart, and so are types and devices."""


def compile_network(policy: nn.Module, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile the layers of a policy's network in place; code is made when each kind of shape is first met.

    Layers are compiled rather than the network: those of one make share their code. Drawing and scoring run the same code:
    also where no gradient is wanted it is the code made for gradients, so log-probs are the same to the bit for the same
    shapes. State dicts are what they were; a copy of the policy (``copy.deepcopy``) is not compiled.

    Args:
        policy: its network has a method ``compiled_parts()``, modules that take positional tensors (or containers of them)
            and give a tensor or a tuple of tensors. Adapters (LoRA) are added before.
        backend: of ``torch.compile``.

    Raises:
        ValueError: if the network has no such method.
        RuntimeError: if there is no compiler here.
    """
    network = network_of(policy)
    parts: Callable[[], list[nn.Module]] | None = getattr(network, "compiled_parts", None)
    if parts is None:
        raise ValueError(f"torch_compile: True, expected False: {type(network).__name__} has no method compiled_parts()")
    if backend == "inductor":
        _check_compiler(next(network.parameters()).device)
    torch._dynamo.config.recompile_limit = max(VARIANTS, torch._dynamo.config.recompile_limit)
    for part in parts():
        part.compile(dynamic=True, fullgraph=True, backend=backend)
        part._compiled_call_impl = _one_graph(part._compiled_call_impl)  # torch leaves it out of copies and state dicts


def _one_graph(compiled: Any) -> Callable[..., Any]:
    """``compiled`` with its code for gradients, whether any are wanted or not and wherever its inputs come from."""

    def call(*arguments: Any) -> Any:
        ready = [_differentiable(x) for x in arguments]
        if torch.is_grad_enabled():
            return compiled(*ready)
        with torch.enable_grad():
            found = compiled(*ready)
        return found.detach() if isinstance(found, Tensor) else tuple(x.detach() for x in found)

    return call


def _differentiable(x: Any) -> Any:
    if not isinstance(x, Tensor) or x.requires_grad or not x.is_floating_point():
        return x
    return x.detach().requires_grad_()


def _check_compiler(device: torch.device) -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:  # its own kinds, which differ between versions
        raise RuntimeError(
            "torch_compile: True, expected a C++ compiler: install g++ or name one in CXX, or leave it off"
        ) from error
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise RuntimeError("torch_compile: True, expected triton for a GPU: run pip install triton, or leave it off")
