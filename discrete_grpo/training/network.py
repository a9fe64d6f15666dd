"""The network inside a policy: activation checkpointing and ``torch.compile``, layer by layer."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["check_determinism", "checkpoint_layers", "compile_network", "deterministic", "network_of", "tf32_products"]

CUBLAS, WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")
"""The variable that cuBLAS reads, and the values with which its products give the same bits."""
VARIANTS = 64
"""Most programs compiled per layer: sizes are symbolic, but 0, 1 and larger sizes, types and devices need different programs."""


def network_of(policy: nn.Module) -> nn.Module:
    """The ``network`` of a policy, also of a policy inside a wrapper; the policy itself if it has no such attribute.

    >>> inner = nn.Module()
    >>> inner.network = nn.Linear(1, 1)
    >>> wrapper = nn.Module()
    >>> wrapper.policy = inner
    >>> network_of(wrapper)
    Linear(in_features=1, out_features=1, bias=True)
    """
    while isinstance(inside := getattr(policy, "policy", None), nn.Module):
        policy = inside
    network = getattr(policy, "network", None)
    return network if isinstance(network, nn.Module) else policy


def checkpoint_layers(policy: nn.Module, on: bool = True) -> None:
    """Recompute the activations of each layer in the backward pass instead of storing them.

    An update then needs less memory and about 30 % more time, and its gradients are the same to the bit. Checkpoints do not
    store this setting.

    Args:
        policy: changed in place; its network has an attribute ``checkpoint_layers``.
        on: False stores all activations, as a new network does.

    Raises:
        ValueError: if the network has no such attribute.
    """
    network = network_of(policy)
    parts = [part for part in network.modules() if "checkpoint_layers" in vars(part)]
    if not parts:
        raise ValueError(f"checkpoint_layers: {on}, expected none: {type(network).__name__} has no layers to compute again")
    for part in parts:
        part.checkpoint_layers = on  # type: ignore[assignment]


def compile_network(policy: nn.Module, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile the layers of a policy's network in place; each kind of shape is compiled when it is first met.

    On CUDA, a policy that can record a step of sampling as a CUDA graph (``record_steps``) does so, and launches a step at once.

    Layers of the same class share their code. Sampling and scoring run the same code, the one compiled for gradients, also
    without gradients; log-probs are therefore the same to the bit for the same shapes. State dicts do not change, and a copy of
    the policy (``copy.deepcopy``) is not compiled.

    Args:
        policy: its network has a method ``compiled_parts()``, modules that take positional tensors (or containers of them)
            and return a tensor or a tuple of tensors. Adapters (LoRA) must be added before.
        backend: backend of ``torch.compile``.

    Raises:
        ValueError: if the network has no such method.
        RuntimeError: if no compiler is installed.
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
        part._compiled_call_impl = _one_graph(part._compiled_call_impl)  # copies and state dicts leave this attribute out
    if next(network.parameters()).device.type == "cuda":
        for owner in (module for module in policy.modules() if "record_steps" in vars(module)):
            owner.record_steps = True  # type: ignore[assignment]


@contextmanager
def tf32_products(on: bool, device: torch.device) -> Iterator[None]:
    """Compute float32 matrix products in TF32 (10 bits of mantissa) inside the block, if ``on`` and on CUDA.

    The setting of torch is restored after the block. The computations after a network (softmax, kernels, log-probs, losses)
    have no matrix products, so probabilities still sum to 1.
    """
    kept = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = kept or (on and device.type == "cuda")
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = kept


def check_determinism(on: bool, device: torch.device) -> None:
    """Refuse ``full_determinism`` on CUDA without the environment variable that makes the products of cuBLAS repeatable.

    Raises:
        ValueError: naming the variable and its values.
    """
    if on and device.type == "cuda" and (given := os.environ.get(CUBLAS)) not in WORKSPACES:
        wanted = f"expected {' or '.join(WORKSPACES)} in the environment, set before python is started"
        raise ValueError(f"full_determinism: True with {CUBLAS}={given or ''}, {wanted}")


@contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """Restrict torch to deterministic algorithms inside the block, if ``on``; its setting is restored afterwards.

    An operation without a deterministic algorithm raises an error that names the operation.
    """
    if not on:
        yield
        return
    kept, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(kept, warn_only=warns)


def _one_graph(compiled: Any) -> Callable[..., Any]:
    """``compiled``, called with gradients enabled and differentiable inputs, so that only one program is compiled."""

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
    except Exception as error:  # the exception types differ between versions of torch
        raise RuntimeError(
            "torch_compile: True, expected a C++ compiler: install g++ or name one in CXX, or leave it off"
        ) from error
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise RuntimeError("torch_compile: True, expected triton for a GPU: run pip install triton, or leave it off")
