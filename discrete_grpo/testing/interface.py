"""Checks of the arguments of the conformance test, and of the types that a policy returns, before any law is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from discrete_grpo.core.categorical import Scores, Sites
from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.gaussian import GaussianSites
from discrete_grpo.core.rollout import Context, Rollout, is_scorer
from discrete_grpo.training.config import GRPOConfig

__all__ = ["check_arguments", "check_methods", "check_returned", "whole_space"]


def check_arguments(
    contexts: Sequence[Context] | Context, space: Any, *, samples: int, seed: int, seconds: float, learning: GRPOConfig
) -> None:
    """Check the arguments of :func:`~discrete_grpo.testing.check_policy` by type and range.

    Raises:
        ValueError: naming the argument, its value and what is expected.
    """
    if isinstance(contexts, Context):
        raise ValueError(f"contexts: {contexts!r}, expected a list of Context(group, columns)")
    if not contexts:
        raise ValueError("contexts: none given, expected at least one")
    for context in contexts:
        if not isinstance(context, Context):
            raise ValueError(f"contexts: {context!r}, expected Context(group, columns)")
    if space is not None and not callable(space) and not isinstance(space, Rollout):
        raise ValueError(f"space: {space!r}, expected a Rollout, a function that makes one, or None")
    check_whole("samples", samples, least=1)
    check_whole("seed", seed)
    check_range("seconds", seconds, above=0)
    if not isinstance(learning, GRPOConfig):
        raise ValueError(f"learning: {learning!r}, expected a GRPOConfig")


def whole_space(space: Rollout | Callable[[], Rollout] | None) -> Rollout | None:
    """The rollout of the whole space, made by the function if it is one.

    Raises:
        ValueError: if the function raises, or returns anything else.
    """
    if not callable(space):
        return space
    try:
        found = space()
    except Exception as error:
        raise ValueError(f"space: raised {type(error).__name__}: {' '.join(str(error).split())}") from error
    if not isinstance(found, Rollout):
        raise ValueError(f"space: returned {_named(found)}, expected a Rollout")
    return found


def check_methods(policy: Any) -> None:
    """Check that a policy has the methods that the trainer calls.

    Raises:
        ValueError: naming the missing one.
    """
    for name in ("sample",) if is_scorer(policy) else ("sample", "sites"):
        if not callable(getattr(policy, name, None)):
            raise ValueError(f"policy: {type(policy).__name__} has no method {name}, expected one (or score in the place of sites)")


def check_returned(policy: Any, rollout: Any) -> None:
    """Check the types that ``sample``, and ``sites`` or ``score``, return; what these raise is left to the laws.

    Raises:
        ValueError: naming the method, what it returned and what is expected.
    """
    if not isinstance(rollout, Rollout):
        raise ValueError(f"sample: returned {_named(rollout)}, expected a Rollout")
    try:
        with torch.no_grad():
            found = policy.score(rollout) if is_scorer(policy) else policy.sites(rollout)
    except Exception:  # laws report it
        return
    if is_scorer(policy):
        if not isinstance(found, Scores):
            raise ValueError(f"score: returned {_named(found)}, expected Scores")
        return
    if not isinstance(found, Sequence):
        raise ValueError(f"sites: returned {_named(found)}, expected a list of Sites")
    for one in found:
        if not isinstance(one, Sites | GaussianSites):
            raise ValueError(f"sites: returned a {type(found).__name__} with {_named(one)}, expected a list of Sites")


def _named(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
