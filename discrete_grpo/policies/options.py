"""Wrappers of graph policies by name: a surrogate of the exact likelihood, a node count as a step."""

from __future__ import annotations

from typing import Any, Literal

from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.node_count import LearnedSizes, RunningSizes, SizedPolicy
from discrete_grpo.policies.surrogate import EagerLikelihood, ElboLikelihood, with_likelihood

__all__ = ["Likelihood", "NodeCount", "graph_part", "with_options", "without_likelihood"]

Likelihood = Literal["transition", "eager", "elbo"]
NodeCount = Literal["prior", "learned", "running"]
WRAPPERS = (EagerLikelihood, ElboLikelihood, SizedPolicy)


def graph_part(policy: Any) -> GraphPolicy | None:
    """The graph policy that ``policy`` is or wraps; None if there is none."""
    while isinstance(policy, WRAPPERS):
        policy = policy.policy
    return policy if isinstance(policy, GraphPolicy) else None


def without_likelihood(policy: Any) -> Any:
    """Remove a surrogate likelihood around the policy that draws; the result is what is exported."""
    return policy.policy if isinstance(policy, EagerLikelihood | ElboLikelihood) else policy


def with_options(policy: Any, likelihood: Likelihood = "transition", node_count: NodeCount = "prior", elbo_draws: int = 10) -> Any:
    """A graph policy with the likelihood and the choice of the node count that GRPO is to use.

    A policy that has a wrapper already keeps it, with the first choices or with those that it was made with, and its own number of
    draws.

    Args:
        policy: any policy; only graph policies support other choices than the first ones.
        likelihood: ``transition`` (exact), ``eager`` or ``elbo``.
        node_count: ``prior`` (the histogram, drawn once per group), ``learned`` or ``running`` (a step of the policy).
        elbo_draws: number of states at which the ELBO is estimated.

    Raises:
        ValueError: for an unknown choice, or one that the policy does not support.
    """
    if node_count not in ("prior", "learned", "running"):
        raise ValueError(f"node_count: {node_count!r}, expected prior, learned or running")
    if (likelihood, node_count) == ("transition", "prior"):
        return policy
    if isinstance(policy, WRAPPERS):
        _check_kept(policy, likelihood, node_count)
        return policy
    if not isinstance(policy, GraphPolicy):
        likely = ("likelihood", likelihood, "transition")
        name, value, only = likely if likelihood != "transition" else ("node_count", node_count, "prior")
        raise ValueError(f"{name}: {value!r}, expected {only}: {type(policy).__name__} has no such setting")
    if likelihood != "transition" and node_count != "prior":
        raise ValueError(f"node_count: {node_count!r}, expected prior with likelihood {likelihood}, which scores finished graphs")
    if node_count == "prior":
        return with_likelihood(policy, likelihood, draws=elbo_draws)
    return SizedPolicy(policy, (LearnedSizes if node_count == "learned" else RunningSizes)(policy.node_counts))


def _check_kept(policy: Any, likelihood: Likelihood, node_count: NodeCount) -> None:
    """Raise ``ValueError`` if the wrapper of a policy is another one than the choices ask for."""
    if isinstance(policy, SizedPolicy):
        mine = "learned" if isinstance(policy.head, LearnedSizes) else "running"
        has: tuple[str, str] = ("transition", mine)
        why = f"the policy has a {mine} node count"
    else:
        has = ("elbo" if isinstance(policy, ElboLikelihood) else "eager", "prior")
        why = f"the policy has the likelihood {has[0]}"
    for name, value, own, first in (("likelihood", likelihood, has[0], "transition"), ("node_count", node_count, has[1], "prior")):
        if value not in (own, first):
            raise ValueError(f"{name}: {value!r}, expected {' or '.join(dict.fromkeys((own, first)))}: {why}")
