"""Node count of graphs, drawn from a histogram once per group, or once per sample as a step with its own log-prob.

π(n, τ) = π_size(n) π_graph(τ | n). Members of a group then differ in size, so the group-relative advantage depends on the
size; it cannot if a group shares one size. Given n, the graph is drawn as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from discrete_grpo.core.categorical import Sites, gather, safe_log, sample
from discrete_grpo.core.checks import check_range
from discrete_grpo.core.precision import place
from discrete_grpo.core.rollout import Context, Rollout, is_scorer
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.policies.bridging import accepts
from discrete_grpo.policies.conditions import FixedSites, columns_of
from discrete_grpo.policies.delegation import IfInner, Inner, one_line
from discrete_grpo.policies.restart import asked_nodes
from discrete_grpo.policies.trajectory import all_steps, check_alike

__all__ = ["LearnedSizes", "RunningSizes", "SizedPolicy", "checked_counts", "draw_sizes"]


def checked_counts(node_counts: Sequence[float]) -> tuple[float, ...]:
    """The histogram as numbers.

    Raises:
        ValueError: if it is no distribution over 0, 1, 2, ... nodes whose first entry is 0.
    """
    if isinstance(node_counts, str):
        raise ValueError(f"node_counts: {node_counts!r}, expected a list of probabilities")
    if len(node_counts) < 2 or min(node_counts) < 0 or node_counts[0] != 0 or not abs(sum(node_counts) - 1) <= 1e-4:
        wanted = "probabilities of 0, 1, 2, ... nodes that sum to 1, the first 0"
        raise ValueError(f"node_counts: {tuple(node_counts)}, expected {wanted}")
    return tuple(float(p) for p in node_counts)


def draw_sizes(
    contexts: Sequence[Context], prior: Float[Tensor, " size"], generator: torch.Generator | None = None
) -> Int[Tensor, " batch"]:
    """Node counts [B] on the CPU: given by a column of the group's contexts, else one draw per group from ``prior``.

    Raises:
        ValueError: if the contexts of a group ask for several sizes, or one asks for a size outside 1 to the largest or fixes
            more than there is room for.
    """
    check_alike(contexts, ("num_nodes",), note="")
    largest, host = len(prior) - 1, prior.cpu()
    asked: dict[int, int | None] = {}
    needs: dict[int, int] = {}  # the smallest size with room for what any context of the group fixes
    for context in contexts:
        fixed = context.columns.get("fixed")
        asked.setdefault(context.group, asked_nodes(context))
        if fixed is not None and not isinstance(fixed, FixedSites):
            raise ValueError(f"fixed: {fixed!r}, expected FixedSites")
        needs[context.group] = max(needs.get(context.group, 1), fixed.min_nodes if fixed is not None else 1)
    by_group: dict[int, int] = {}
    drawn: dict[int, Tensor] = {}  # the law of each group whose size is drawn
    for context in contexts:
        if context.group in by_group:
            continue
        need, size = needs[context.group], asked[context.group]
        if size is None:
            drawn[context.group] = torch.where(torch.arange(len(host)) >= need, host, 0.0)
            if not float(drawn[context.group].sum()) > 0:
                raise ValueError(f"fixed: needs {need} nodes, expected at most {int(host.nonzero().max())}")
        else:
            check_range("num_nodes", size, least=need, most=largest)
        by_group[context.group] = -1 if size is None else size
    if drawn:
        laws = place(torch.stack(list(drawn.values())), prior.device)
        by_group |= dict(zip(drawn, sample(laws, generator).tolist(), strict=True))
    return torch.tensor([by_group[c.group] for c in contexts])


class LearnedSizes(nn.Module):
    """π_size = softmax(log h + g φ) over the sizes with mass in the histogram h; φ starts at 0 and is trained by GRPO.

    Args:
        node_counts: h, probability of a graph of 0, 1, 2, ... nodes at the start; a size of no mass never gets any.
        gain: g; Adam changes each logit by about g · ``learning_rate`` per update, which is too slow with g = 1.

    Raises:
        ValueError: for an argument out of its range.
    """

    support: Tensor
    start: Tensor

    def __init__(self, node_counts: Sequence[float], gain: float = 10.0) -> None:
        super().__init__()
        check_range("gain", gain, above=0)
        self.node_counts, self.gain = checked_counts(node_counts), gain
        p = torch.tensor(self.node_counts, dtype=torch.float64)
        # Only sizes with mass have a weight: a logit of -inf would become NaN in a moving average of weights.
        self.register_buffer("support", p.nonzero()[:, 0], persistent=False)
        self.register_buffer("start", p[p > 0].log().to(torch.get_default_dtype()), persistent=False)
        self.weight = nn.Parameter(torch.zeros(int((p > 0).sum())))

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this head again."""
        return {"node_counts": self.node_counts, "gain": self.gain}

    def log_probs(self) -> Float[Tensor, " size"]:
        """Log π_size of 0, 1, 2, ... nodes, at least float32."""
        logits = self.start + self.gain * self.weight
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        empty = wide.new_full((len(self.node_counts),), -torch.inf)
        return empty.index_copy(0, self.support, wide.log_softmax(-1))

    def observe(self, sizes: Int[Tensor, " batch"], advantage: Float[Tensor, " batch"]) -> None:
        """Do nothing, as this head learns by gradient descent."""


class RunningSizes(nn.Module):
    """π_size = h, a histogram that moves towards the sizes of the good samples; no gradient.

    After each generation h <- (1 - ρ) h + ρ Σ_i max(A_i, 0) δ(n, n_i) / Σ_i max(A_i, 0), where i are the samples of a shard: with k
    shards, or batches of groups that were drawn again, h takes k such steps.

    Args:
        node_counts: h at the start, probability of a graph of 0, 1, 2, ... nodes.
        rate: ρ, in (0, 1].

    Raises:
        ValueError: for an argument out of its range.
    """

    histogram: Tensor

    def __init__(self, node_counts: Sequence[float], rate: float = 0.05) -> None:
        super().__init__()
        check_range("rate", rate, above=0, most=1)
        self.node_counts, self.rate = checked_counts(node_counts), rate
        self.register_buffer("histogram", torch.tensor(self.node_counts))

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this head again; the histogram is among the weights."""
        return {"node_counts": self.node_counts, "rate": self.rate}

    def log_probs(self) -> Float[Tensor, " size"]:
        """Log h, at least float32."""
        return safe_log(self.histogram.to(torch.promote_types(self.histogram.dtype, torch.float32)))

    @torch.no_grad()
    def observe(self, sizes: Int[Tensor, " batch"], advantage: Float[Tensor, " batch"]) -> None:
        """Move h; a generation without a positive advantage leaves it as it is.

        The arguments may lie on any device. The sums are taken on the CPU, so that h is the same in every process to the bit.
        """
        weight = advantage.to("cpu", self.histogram.dtype).clamp_min(0)
        total = weight.sum()
        if total > 0:
            target = torch.zeros(len(self.histogram), dtype=weight.dtype).index_add(0, sizes.cpu(), weight / total)
            self.histogram.lerp_(target.to(self.histogram.device), self.rate)


class SizedPolicy(nn.Module):
    """``policy`` with the node count as its first step: one site, drawn per sample and not per group.

    A context that gives ``num_nodes`` or a ``restart`` fixes the choice; ``fixed`` bounds it from below, and what is left is
    normalised. The possible sizes are stored with the rollout, and for a :class:`RunningSizes` also the table, so the log-prob
    of a choice is that under the head that drew it. With ``shared_steps`` the members of a group that chose the same size take
    their first steps together; a member with a unique size draws, and is trained on, all its steps.

    Args:
        policy: a graph policy that reads the column ``num_nodes``.
        head: head that computes π_size.

    Raises:
        ValueError: if the head allows larger graphs than the policy, or the policy computes its own scores (swap the wrappers).
    """

    device, max_nodes, decode, encode = Inner[torch.device](), Inner[int](), Inner[Any](), Inner[Any]()
    check_batch = Inner[Callable[..., None]]()
    likelihood_loss = Inner[Callable[..., dict[str, Tensor]]]()  # the head starts at the histogram, its likelihood's optimum

    def __init__(self, policy: Any, head: LearnedSizes | RunningSizes) -> None:
        super().__init__()
        if is_scorer(policy):
            raise ValueError(f"policy: {type(policy).__name__} gives scores of its own, expected one that gives sites")
        if len(head.node_counts) - 1 > policy.max_nodes:
            raise ValueError(f"head: sizes up to {len(head.node_counts) - 1}, expected at most the policy's {policy.max_nodes}")
        self.policy, self.head = policy, head

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this policy again."""
        return {"policy": self.policy, "head": self.head}

    def __repr__(self) -> str:
        return one_line(self, self.policy, type(self.head).__name__)

    def check_condition(self, columns: Mapping[str, Any]) -> None:
        """Raise ValueError for a condition that the inner policy cannot follow, or that needs more nodes than the head gives."""
        inner = getattr(self.policy, "check_condition", None)
        if inner is not None:
            inner(columns)
        context = Context(0, columns)
        if asked_nodes(context) is None:
            least = torch.tensor([_least(context)], device=self.device)
            if bool(self._table(self.head.log_probs(), least).isneginf().all()):
                raise ValueError(f"fixed: needs {int(least)} nodes, but the head gives no probability to graphs that large")

    # -- Policy protocol

    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        """Draw one trajectory per context: first the sizes, then the graphs.

        Raises:
            ValueError: if a context asks for what the inner policy does not know, or leaves no size possible.
        """
        if not contexts:
            raise ValueError("contexts: none given, expected at least one")
        asked = [asked_nodes(c) for c in contexts]
        least = torch.tensor([_least(c) for c in contexts], device=self.device)
        table = self._table(self.head.log_probs(), least)
        chosen = torch.tensor([n is None for n in asked], device=self.device)
        if bool((stuck := chosen & table.isneginf().all(-1)).any()):
            raise ValueError(f"fixed: needs {int(least[stuck][0])} nodes, but the head gives no probability to graphs that large")
        given = torch.tensor([0 if n is None else n for n in asked], device=self.device)
        where = generator.device if generator is not None else self.device
        drawn = sample(table.exp().to(where), generator).to(self.device)
        count = torch.where(chosen, drawn, given)
        inner = self.policy.sample(_with_sizes(contexts, asked, count.tolist()), generator=generator)
        logp = torch.where(chosen, gather(table, count.clamp_max(table.shape[1] - 1)), 0.0)
        states = {"size_count": count, "size_chosen": chosen, "size_least": least}
        made = self._outer(inner, states, table, logp)
        return replace(made, group=torch.tensor([c.group for c in contexts], device=self.device), columns=columns_of(contexts))

    # -- graphs that it did not draw

    @IfInner
    def graphs_of(self, samples: Sequence[Any]) -> GraphBatch:
        """The finished graphs of samples; raises ValueError for one that the inner policy or the head cannot draw."""
        graphs: GraphBatch = self.policy.graphs_of(samples)
        table = self.head.log_probs().tolist()  # once, as a value of it would be read per sample
        for size in graphs.sizes.tolist():
            if size >= len(table) or table[size] == -math.inf:
                raise ValueError(f"samples: a graph of {size} nodes, expected a size to which the head gives mass")
        return graphs

    @IfInner
    def can_draw(self, sample: Any) -> bool:
        """Whether the inner policy draws a sample, and the head its node count."""
        return accepts(self.graphs_of, sample)

    @IfInner
    @torch.no_grad()
    def rollout_of(self, samples: Sequence[Any], *, generator: torch.Generator | None = None) -> Rollout:
        """The inner policy's trajectories of finished graphs, each after the choice of its node count; ``logp`` is NaN.

        Raises:
            ValueError: for a sample that this policy cannot draw.
        """
        self.graphs_of(samples)
        inner = self.policy.rollout_of(samples, generator=generator)
        chosen, least = torch.ones_like(inner.size, dtype=torch.bool), torch.ones_like(inner.size)
        table = self._table(self.head.log_probs(), least)
        states = {"size_count": inner.size, "size_chosen": chosen, "size_least": least}
        return self._outer(inner, states, table, torch.full_like(inner.logp[:, 0], torch.nan))

    def sites(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None) -> Sequence[Sites]:
        """The choice of the node count [B, S', 1, N_max + 1], masked beyond step 0, and the inner policy's, masked in it."""
        states = rollout.states
        steps = all_steps(rollout) if steps is None else steps
        first = steps == 0
        table = states["size_table"] if "size_table" in states else self._table(self.head.log_probs(), states["size_least"])
        size = Sites(
            table[:, None, None, :].expand(-1, steps.shape[1], -1, -1),
            states["size_count"][:, None, None].expand(-1, steps.shape[1], -1).clamp_max(table.shape[1] - 1),
            (first & states["size_chosen"][:, None]).unsqueeze(-1),
        )
        inner = self.policy.sites(self._inner(rollout), (steps - 1).clamp_min(0))
        return [size, *(replace(one, mask=one.mask & ~first.unsqueeze(-1)) for one in inner)]

    @property
    def observed_states(self) -> tuple[str, ...]:
        """The states that :meth:`observe` reads, the only part of a trajectory that processes exchange."""
        return ("size_chosen", "size_count")

    def observe(self, rollout: Rollout, advantage: Float[Tensor, " batch"]) -> None:
        """Pass the sizes that the head chose and their advantages to the head."""
        chosen = rollout.states["size_chosen"]
        self.head.observe(rollout.states["size_count"][chosen], advantage[chosen])

    @IfInner
    def restarts(self, rollout: Rollout, rows: Int[Tensor, " row"], time: float) -> Sequence[Mapping[str, Any]]:
        """Restarts that the inner policy gives for these samples; a restart fixes the node count."""
        found: Sequence[Mapping[str, Any]] = self.policy.restarts(self._inner(rollout), rows, time)
        return found

    # -- inside

    def _outer(self, inner: Rollout, states: dict[str, Tensor], table: Tensor, logp: Tensor) -> Rollout:
        """The inner policy's rollout after a step that chooses the node count, with log-prob ``logp`` [B]."""
        running = {"size_table": table} if isinstance(self.head, RunningSizes) else {}
        return replace(
            inner,
            states={**inner.states, **states, **running},
            logp=torch.cat([logp.to(inner.logp.dtype)[:, None], inner.logp], 1),
            units=torch.cat([states["size_chosen"].to(inner.units.dtype)[:, None], inner.units], 1),
            max_units=inner.max_units + 1,
            max_steps=None if inner.max_steps is None else inner.max_steps + 1,
        )

    def _inner(self, rollout: Rollout) -> Rollout:
        """The rollout as the inner policy drew it."""
        states = {name: value for name, value in rollout.states.items() if not name.startswith("size_")}
        most = None if rollout.max_steps is None else rollout.max_steps - 1
        own = replace(rollout, states=states, logp=rollout.logp[:, 1:], units=rollout.units[:, 1:])
        return replace(own, max_units=rollout.max_units - 1, max_steps=most)

    def _table(self, log_probs: Tensor, least: Tensor) -> Tensor:
        """Log π_size of every row over the sizes with room for what its context fixes."""
        room = torch.arange(len(log_probs), device=least.device) >= least[:, None]
        # Sizes of no mass are left out by value, not by -inf - logsumexp: a row without any must not become NaN.
        inside = room & ~log_probs.isneginf()
        most = torch.where(inside, log_probs, -torch.inf).amax(-1, keepdim=True).clamp_min(torch.finfo(log_probs.dtype).min)
        kept = torch.where(inside, log_probs - most.detach(), 0.0)  # what is left may have little mass
        total = torch.where(inside, kept.exp(), 0.0).sum(-1, keepdim=True)
        return torch.where(inside, kept - torch.where(total > 0, total, 1.0).log(), -torch.inf)


def _least(context: Context) -> int:
    fixed = context.columns.get("fixed")
    return fixed.min_nodes if isinstance(fixed, FixedSites) else 1


def _with_sizes(contexts: Sequence[Context], asked: Sequence[int | None], count: Sequence[int]) -> list[Context]:
    """Contexts with ``num_nodes`` where it was chosen; a group of several sizes becomes one group per size."""
    numbers: dict[tuple[int, int], int] = {}
    found = []
    for context, n, size in zip(contexts, asked, count, strict=True):
        columns = context.columns if n is not None else {**context.columns, "num_nodes": size}
        found.append(Context(numbers.setdefault((context.group, size), len(numbers)), columns))
    return found
