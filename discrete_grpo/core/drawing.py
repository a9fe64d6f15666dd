"""Sampling from a policy, with checks of the rollout and error messages that name the line in a user's own code."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from discrete_grpo.core.checks import signature_of
from discrete_grpo.core.error_place import error_place
from discrete_grpo.core.rollout import Context, Policy, Rollout, as_module

__all__ = ["PolicyError", "check_sample", "draw", "evaluating", "policy_errors"]


class PolicyError(RuntimeError):
    """Raised when a user's policy raises in ``sample`` or at the first tables, or returns no rollout of its contexts."""


def draw(
    policy: Policy, contexts: Sequence[Context], *, generator: torch.Generator | None = None, added: Collection[str] = ()
) -> Rollout:
    """Draw one trajectory per context.

    Group ids and log-probs are checked on the CPU only, as reading them from an accelerator makes the host wait.

    Args:
        policy: policy to draw from.
        contexts: one per trajectory.
        generator: random generator of the draws.
        added: columns that the policy need not return, such as those of a restart from a finished sample.

    Raises:
        PolicyError: in one line, if a user's own policy raises, or the length, shapes, groups or columns of its rollout do
            not match the contexts.
    """
    name = f"policy {type(policy).__name__}.sample"
    with policy_errors(name, contexts):
        found = policy.sample(contexts, generator=generator)
    if (fault := _fault(found, policy, contexts, added)) is not None:
        raise PolicyError(f"{name}: {fault}")
    return found


@contextmanager
def policy_errors(name: str, contexts: Sequence[Context] | None = None) -> Iterator[None]:
    """Turn an error that a user's own policy raises inside the block into one that names the method, the file and the line.

    Args:
        name: the method.
        contexts: what the policy draws for; the error of a column that none of them has says so.

    Raises:
        PolicyError: in one line; errors of this package and of libraries pass as they are.
    """
    try:
        yield
    except (PolicyError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if not (place := error_place(error)):
            raise
        said, asked = " ".join(str(error).split()), isinstance(error, KeyError) and contexts is not None
        missing = asked and not any(error.args[:1] == (key,) for c in contexts or () for key in c.columns)
        hint = "; no context has such a column, which conditions give (columns)" if missing else ""
        raise PolicyError(f"{name}: raised {type(error).__name__}: {said}{place}{hint}") from error


@contextmanager
def evaluating(policy: Policy) -> Iterator[None]:
    """Context manager in which all modules of a policy are in eval mode, without dropout; afterwards each has its mode again."""
    before = [(module, module.training) for module in as_module(policy).modules()]
    as_module(policy).eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def check_sample(policy: Any) -> None:
    """Raise ``TypeError`` unless the method ``sample`` can be called as the trainer calls it."""
    signature = signature_of(policy.sample)
    try:
        if signature is not None:
            signature.bind([], generator=None)
    except TypeError as error:
        given = f"{type(policy).__name__}.sample({', '.join(signature.parameters) if signature else ''})"
        raise TypeError(f"policy: {given} ({error}), expected sample(contexts, *, generator=None)") from None


def _fault(found: Any, policy: Policy, contexts: Sequence[Context], added: Collection[str]) -> str | None:
    """Describe what is wrong with a rollout of these contexts; None if it is valid."""
    if not isinstance(found, Rollout):
        return f"returned {'None' if found is None else f'a {type(found).__name__}'}, expected a Rollout"
    fault = _tensors(found, policy) or _lengths(found, len(contexts)) or _shapes(found, len(contexts))
    if fault is not None:
        return fault
    if lost := sorted({key for context in contexts for key in context.columns} - found.columns.keys() - set(added)):
        return f"columns of the contexts are missing in the rollout: {', '.join(lost)}; expected every one, also if it is not read"
    if found.group.device.type == "cpu" and found.group.tolist() != [context.group for context in contexts]:
        return "group has other numbers than the contexts, expected those of the contexts in their order"
    if found.logp.device.type == "cpu" and bool((rows := found.logp.isnan().any(-1)).any()):
        told = f"logp is NaN in {int(rows.sum())} of {len(contexts)} trajectories"
        return f"{told}; see whether weights and outputs of the network are numbers"
    return None


def _tensors(found: Rollout, policy: Policy) -> str | None:
    devices = {x.device for x in policy.parameters()} if isinstance(policy, nn.Module) else set[torch.device]()
    own = {key: getattr(found, key) for key in ("logp", "units", "size", "group")}
    for key, value in {**own, **{f"states[{key!r}]": value for key, value in found.states.items()}}.items():
        if not isinstance(value, torch.Tensor):
            return f"{key} is a {type(value).__name__}, expected a tensor"
        if devices and value.device not in devices:
            return f"{key} is on {value.device}, expected {' or '.join(map(str, devices))}, the device of the policy"
    return None


def _lengths(found: Rollout, count: int) -> str | None:
    lists = {"samples": found.samples, **{f"columns[{key!r}]": values for key, values in found.columns.items()}}
    for key, values in lists.items():
        if len(values) != count:
            return f"{key} has {len(values)} entries for {count} contexts, expected one per context"
    return None


def _shapes(found: Rollout, count: int) -> str | None:
    if found.logp.ndim != 2:
        return f"logp has shape {tuple(found.logp.shape)}, expected ({count}, S) for {count} contexts and S steps"
    steps = found.logp.shape[-1]
    expected = {"group": (count,), "size": (count,), "logp": (count, steps), "units": (count, steps)}
    for key, shape in expected.items():
        if (given := tuple(getattr(found, key).shape)) != shape:
            return f"{key} has shape {given}, expected {shape} for {count} contexts"
    for key, value in found.states.items():
        if value.shape[:1] != (count,):
            return f"states[{key!r}] has shape {tuple(value.shape)}, expected ({count}, ...) for {count} contexts"
    return None
