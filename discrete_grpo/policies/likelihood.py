"""Log-probabilities of samples that a policy did not draw: exact ones of texts, lower bounds of graphs.

log π_θ(x | c) = Σ_t log π_θ(x_t | x_<t, c) of a token policy is exact. log p_θ(x_0 | n) of a graph policy is a sum over all
trajectories, and what is computed is its lower bound, see :class:`~discrete_grpo.policies.surrogate.ElboLikelihood`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.core.categorical import gather, safe_log
from discrete_grpo.core.rollout import Context
from discrete_grpo.domains.graphs import GraphBatch, pack
from discrete_grpo.domains.tokenizer import pad_left
from discrete_grpo.policies.conditions import property_table
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.node_count import SizedPolicy
from discrete_grpo.policies.surrogate import ElboLikelihood
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.policies.trajectory import graph_rollout

__all__ = ["GraphBound", "log_size_probs", "text_log_probs", "text_part", "why_not_drawn"]


# -- texts


def text_part(policy: Any) -> tuple[TokenPolicy, Callable[[Any], str]] | None:
    """The token policy that ``policy`` is or decodes, and the text that it reads for a sample; None if there is none."""
    if isinstance(policy, TokenPolicy):
        return policy, lambda sample: sample
    if isinstance(policy, DecodedPolicy) and isinstance(policy.policy, TokenPolicy):
        encode = getattr(policy.decoder, "encode", None)
        return None if encode is None else (policy.policy, lambda sample: encode([sample])[0])
    return None


def why_not_drawn(policy: TokenPolicy, text: str) -> tuple[str, str] | None:
    """Why a policy draws no such text, as a word (vocabulary, length or grammar) and a sentence; None for one that it draws."""
    try:
        ids = policy.tokenizer.encode(text)
    except ValueError as error:
        return "vocabulary", str(error).removeprefix("text: ")
    if other := [token for token in ids if not bool(policy.drawable[token])]:
        return "vocabulary", f"the token {policy.tokenizer.decode(other[:1])!r} is never drawn"
    if not policy.min_length <= len(ids) <= policy.max_length:
        return "length", f"{len(ids)} tokens, expected {policy.min_length} to {policy.max_length}"
    return None if policy.can_draw(text) else ("grammar", "the grammar of the policy forbids one of its tokens")


@torch.no_grad()
def text_log_probs(
    policy: TokenPolicy, texts: Sequence[str], contexts: Sequence[Context] | None = None
) -> tuple[Float[Tensor, " batch"], Int[Tensor, " batch"]]:
    """log π_θ(x | c) of each text in nats, and the number of its tokens, the end token included where it is drawn.

    Args:
        policy: policy with its temperature and its grammar.
        texts: texts that it draws, which its tokenizer reads as they stand.
        contexts: one per text, with the prompt and the properties; None gives none.

    Returns:
        log-probabilities in float64 and numbers of tokens, on the CPU.

    Raises:
        ValueError: for a text that the policy cannot draw, for a condition that it cannot follow, or if its tables depend on top-k
            or top-p.
    """
    rollout = policy.rollout_of(texts)
    if contexts is not None:
        rollout = replace(rollout, states={**rollout.states, **_conditions(policy, contexts)})
    (sites,) = policy.sites(rollout)
    logp = torch.where(sites.mask, gather(sites.log_probs, sites.action), 0.0)
    return logp.cpu().double().sum((1, 2)), rollout.units.sum(1).cpu()


def _conditions(policy: TokenPolicy, contexts: Sequence[Context]) -> dict[str, Tensor]:
    """The states of a rollout that hold the prompts and the properties of its contexts."""
    for context in contexts:
        policy.check_condition(context.columns)
    given = [None if policy.prompt is None else context.columns.get(policy.prompt) for context in contexts]
    prompts = [[] if text is None else policy.tokenizer.encode(str(text)) for text in given]
    table = property_table(contexts, policy.properties, policy.dtype)
    states = {"prompt": pad_left(prompts)} if any(prompts) else {}
    return {name: x.to(policy.device) for name, x in (states if table is None else {**states, "properties": table}).items()}


# -- graphs


class GraphBound(ElboLikelihood):
    """The lower bound of log p_θ(x_0 | n) of given graphs, at J states each, see :meth:`ElboLikelihood.bound`.

    Args:
        policy: graph policy.
        draws: J, at least 1; at J = T every step is seen once.

    Raises:
        ValueError, TypeError: as :class:`ElboLikelihood`.
    """

    @torch.no_grad()
    def of_graph(self, graph: GraphBatch, *, seed: int = 0, properties: Float[Tensor, "1 property"] | None = None) -> float:
        """The bound of one graph, in nats; it is a lower bound in the mean over seeds.

        The states are drawn from a generator of their own, which depends on ``seed`` and on the graph alone. A bound is thus the
        same whatever other graphs are asked for, and policies of the same noise and steps see the same states of a graph.

        Args:
            graph: a batch of one graph without padding, of classes and a size that the policy draws.
            seed: random seed.
            properties: standardised properties that the network is conditioned on; None for none.
        """
        states = {name: x.unsqueeze(1).expand(-1, 2, -1) for name, x in zip(("nodes", "pairs"), pack(graph), strict=True)}
        given = {} if properties is None else {"properties": properties.to(self.device)}
        dtype = torch.promote_types(self.policy.dtype, torch.float32)
        finished = graph_rollout(
            [Context(0)],
            {**states, **given},
            torch.zeros(1, 1, dtype=dtype, device=self.device),
            torch.zeros(1, dtype=torch.long, device=self.device),
            graph.sizes,
            max_nodes=self.policy.max_nodes,
            decode=lambda _: (None,),
        )
        generator = torch.Generator(self.device).manual_seed(_graph_seed(graph, seed))
        return float(self.bound(self._noised_states(finished, self._drawn_steps(1, generator), generator))[0])


def _graph_seed(graph: GraphBatch, seed: int) -> int:
    """A seed below 2^63 for the draws of one graph."""
    parts = [str(seed).encode(), *(x.cpu().numpy().tobytes() for x in pack(graph))]
    return int.from_bytes(hashlib.blake2b(b"/".join(parts), digest_size=8).digest(), "big") >> 1


def log_size_probs(policy: Any) -> Float[Tensor, " size"]:
    """log p(n) of 0, 1, 2, ... nodes, in float64 on the CPU: of the histogram, or of the head of a :class:`SizedPolicy`."""
    if isinstance(policy, SizedPolicy):
        with torch.no_grad():
            return policy.head.log_probs().cpu().double()
    counts = torch.tensor(policy.node_counts, dtype=torch.float64)
    return safe_log(counts / counts.sum())
