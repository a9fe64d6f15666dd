"""Surrogate likelihoods of a graph policy, which replace the log-probs of the sampler's own steps in the GRPO loss.

Each class wraps a :class:`~discrete_grpo.policies.graph.GraphPolicy`, draws as that policy does, and is a
:class:`~discrete_grpo.core.rollout.Scorer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from discrete_grpo.core.categorical import Scores, Sites, safe_log, sample, score_sites
from discrete_grpo.core.checks import check_whole
from discrete_grpo.core.precision import full_precision, widest
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.diffusion.kernels import Kernel, chain_law
from discrete_grpo.diffusion.noise import Noise
from discrete_grpo.diffusion.schedules import grid_on
from discrete_grpo.domains.graphs import GraphBatch, node_mask, num_pairs, pair_mask, upper
from discrete_grpo.policies.bridging import known_step
from discrete_grpo.policies.delegation import Inner, one_line
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.trajectory import Moments, all_steps, moments, step_units

__all__ = ["EagerLikelihood", "ElboLikelihood", "with_likelihood"]


def with_likelihood(
    policy: GraphPolicy, likelihood: Literal["transition", "eager", "elbo"] = "transition", *, draws: int = 10
) -> Any:
    """The policy with the likelihood that GRPO is to use; ``transition`` is the exact one of its steps, the policy itself.

    Args:
        policy: graph policy that draws the samples.
        likelihood: ``transition``, ``eager`` (:class:`EagerLikelihood`) or ``elbo`` (:class:`ElboLikelihood`).
        draws: number of noised states of ``elbo``, at least 1.

    Raises:
        ValueError: for an argument out of its range.
    """
    if likelihood == "transition":
        return policy
    if likelihood == "eager":
        return EagerLikelihood(policy)
    if likelihood == "elbo":
        return ElboLikelihood(policy, draws)
    raise ValueError(f"likelihood: {likelihood!r}, expected transition, eager or elbo")


def _graph_policy(policy: Any) -> GraphPolicy:
    if not isinstance(policy, GraphPolicy):
        raise TypeError(f"policy: {type(policy).__name__}, expected a GraphPolicy")
    return policy


def _final(rollout: Rollout, count: int) -> list[Tensor]:
    """The finished graph's nodes and pairs at ``count`` steps [B, S', ·]."""
    n = rollout.max_size
    clean = rollout.states["nodes"][:, -1, :n], rollout.states["pairs"][:, -1, : num_pairs(n)]
    return [x.long().unsqueeze(1).expand(-1, count, -1) for x in clean]


class EagerLikelihood(nn.Module):
    """log p_θ(G_0 | G_t) = Σ_sites log p̂_θ(c = G_0[site] | G_t) in place of each step's log p_θ(G_s | G_t).

    The states G_t are those of the trajectory. The estimator is biased, as it is not the gradient of the expected reward,
    but has far less variance; the KL is that of the tables p̂. Source: Liu et al. (2024), GDPO, arXiv 2402.16302.

    Args:
        policy: graph policy that draws the samples.

    Raises:
        TypeError: if it is not a GraphPolicy.
    """

    forward_kl_gradient = surrogate = True
    device, decode, encode, node_counts = Inner[torch.device](), Inner[Any](), Inner[Any](), Inner[tuple[float, ...]]()
    graphs_of = Inner[Callable[..., GraphBatch]]()
    sample, sites = Inner[Callable[..., Rollout]](), Inner[Callable[..., Sequence[Sites]]]()
    rollout_of, can_draw = Inner[Callable[..., Rollout]](), Inner[Callable[..., bool]]()
    restarts, check_condition = Inner[Callable[..., Sequence[Mapping[str, Any]]]](), Inner[Callable[..., None]]()
    likelihood_loss, check_batch = Inner[Callable[..., dict[str, Tensor]]](), Inner[Callable[..., None]]()
    draw_sizes = Inner[Callable[..., list[int]]]()

    def __init__(self, policy: GraphPolicy) -> None:
        super().__init__()
        self.policy = _graph_policy(policy)

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this policy again."""
        return {"policy": self.policy}

    def __repr__(self) -> str:
        return one_line(self, self.policy)

    def score(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None, reference: Any | None = None) -> Scores:
        """log p̂(c = G_0) of every site at the chosen steps, entropy of p̂, exact KL in both directions.

        ``reference`` is a copy of this wrapper.
        """
        steps = all_steps(rollout) if steps is None else steps
        own = self._clean_sites(rollout, steps)
        if reference is None:
            return score_sites(own)
        with torch.no_grad():
            other = reference._clean_sites(rollout, steps)
        return score_sites(own, other, forward_gradient=True)

    def _clean_sites(self, rollout: Rollout, steps: Tensor) -> list[Sites]:
        now = moments(rollout, steps)
        time = grid_on(self.policy.grid, steps.device)[steps.flatten()]
        tables = self.policy.clean_probs(now.state, time, now.properties)
        return [
            Sites(safe_log(p.unflatten(0, steps.shape)), clean, mask)
            for p, clean, mask in zip(tables, _final(rollout, steps.shape[1]), now.chosen, strict=True)
        ]


class ElboLikelihood(nn.Module):
    """The evidence lower bound of a finished graph in place of log π_θ, at J drawn times; no trajectory is kept.

    log p_θ(x_0) >= (T/J) Σ_j Σ_sites Σ_k q(k | x_t, x_0) [log p_θ(k | x_t) - log q(k | x_t, x_0)] = :meth:`bound` in the mean
    over the draws, t = t_j. q is the chain of the kernel's steps for a known x_0, so x_t has the law that
    :func:`~discrete_grpo.diffusion.kernels.chain_law` gives. Its last step gives x_0 itself, whatever noise the schedule leaves at
    t = 0: the reconstruction term log p_θ(x_0 | x_t).
    The J states are drawn once, with the rollout, and shared by the new, old and reference policy, so ratios depend only
    on the policies. The sum over k is exact. A rollout has J steps, one per state.

    The T/J stands in :meth:`bound` and not in :meth:`score`: the weights of the loss are means over the sites of J states, and
    with it they would grow with T/J against those of the other likelihoods. A sequence ratio is thus the difference of
    bounds per site and step.

    Args:
        policy: graph policy that draws the samples.
        draws: J, at least 1; at J = T every step is seen once.

    Raises:
        ValueError: if ``draws`` is below 1, or if the policy has ``shared_steps``.
        TypeError: if ``policy`` is not a GraphPolicy.
    """

    forward_kl_gradient = surrogate = True
    device, decode, encode, node_counts = Inner[torch.device](), Inner[Any](), Inner[Any](), Inner[tuple[float, ...]]()
    graphs_of = Inner[Callable[..., GraphBatch]]()
    can_draw = Inner[Callable[..., bool]]()
    restarts, check_condition = Inner[Callable[..., Sequence[Mapping[str, Any]]]](), Inner[Callable[..., None]]()
    likelihood_loss, check_batch = Inner[Callable[..., dict[str, Tensor]]](), Inner[Callable[..., None]]()
    draw_sizes = Inner[Callable[..., list[int]]]()

    def __init__(self, policy: GraphPolicy, draws: int = 10) -> None:
        super().__init__()
        check_whole("draws", draws, least=1)
        self.policy, self.draws = _graph_policy(policy), draws
        self._laws: list[Tensor | None] | None = None
        if shared := self.policy.shared_steps:
            raise ValueError(f"shared_steps: {shared}, expected 0 with likelihood elbo, which keeps no steps of the sampler")

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this policy again."""
        return {"policy": self.policy, "draws": self.draws}

    def __repr__(self) -> str:
        return one_line(self, self.policy, f"{self.draws} draws")

    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        """Finished graphs of the inner policy with J states of each, x_t ~ q(x_t | x_0), at stratified steps.

        State j is that of step floor((j + u) T/J), u uniform: each step is taken J/T times in the mean.
        """
        drawn = self.policy.sample(contexts, generator=generator)
        return self.noised(drawn, self._drawn_steps(len(drawn), generator), generator=generator)

    @torch.no_grad()
    def rollout_of(self, samples: Sequence[Any], *, generator: torch.Generator | None = None) -> Rollout:
        """The finished graphs of ``samples`` with J states of each, as in :meth:`sample`; ``logp`` is NaN.

        Raises:
            ValueError: for a sample that the inner policy cannot draw.
        """
        made = self.policy.rollout_of(samples, generator=generator)
        return self._noised_states(made, self._drawn_steps(len(made), generator), generator)

    def _drawn_steps(self, count: int, generator: torch.Generator | None) -> Int[Tensor, "batch draw"]:
        device = generator.device if generator is not None else self.device
        u = torch.rand(count, self.draws, generator=generator, device=device, dtype=widest(device)).to(self.device)
        total = self.policy.num_steps
        return ((torch.arange(self.draws, device=self.device) + u) * (total / self.draws)).long().clamp_max(total - 1)

    @torch.no_grad()
    def noised(self, rollout: Rollout, step: Int[Tensor, "batch draw"], *, generator: torch.Generator | None = None) -> Rollout:
        """A rollout of this policy: the finished graphs of ``rollout``, noised to the grid points ``step``.

        Its ``logp`` are the sums over sites that :meth:`score` gives.
        """
        made = self._noised_states(rollout, step, generator)
        return replace(made, logp=self.score(made).logp.sum(-1))

    def _noised_states(self, rollout: Rollout, step: Int[Tensor, "batch draw"], generator: torch.Generator | None) -> Rollout:
        """The rollout of :meth:`noised` with NaN for its log-probs."""
        policy, count = self.policy, step.shape[1]
        mask = node_mask(rollout.size, int(rollout.size.max()))
        exists = [x.unsqueeze(1) for x in (mask, pair_mask(mask))]
        noisy = [torch.where(on, x, 0) for on, x in zip(exists, self._noisy(rollout, step, generator), strict=True)]
        last = _final(rollout, 1)
        states = {name: torch.cat(x, 1).to(torch.uint8) for name, *x in zip(("nodes", "pairs"), noisy, last, strict=True)}
        kept = {name: rollout.states[name] for name in ("properties", "free_nodes", "free_pairs") if name in rollout.states}
        bare = replace(
            rollout,
            states={**states, **kept, "time": step},
            logp=torch.full(step.shape, torch.nan, dtype=rollout.logp.dtype, device=step.device),
            max_units=-(-rollout.max_units * count // policy.num_steps),
            max_steps=count,
        )
        return replace(bare, units=step_units(bare))

    def sites(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None) -> Sequence[Sites]:
        """Raise TypeError, as this likelihood has no site tables.

        Raises:
            TypeError: always; use :meth:`score`.
        """
        raise TypeError("sites: ElboLikelihood keeps no steps of the sampler, expected a call of score")

    def score(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None, reference: Any | None = None) -> Scores:
        """Σ_k q(k | x_t, x_0) log p_θ(k | x_t) of every site at the chosen states; entropy of p_θ, exact KL in both directions.

        The KL is that of the steps at the re-noised states; the forward KL is Σ_sites KL(p_ref(·| x_t) ‖ p_θ(·| x_t)). It
        differs from the difference of losses that MiDi's GRPO system uses instead (``docs/offline.md``).
        """
        steps = all_steps(rollout) if steps is None else steps
        now, points = moments(rollout, steps), rollout.states["time"].gather(1, steps)
        own = self._transitions(now, points)
        other = None
        if reference is not None:
            with torch.no_grad():
                other = reference._transitions(now, points)
        found = score_sites(own, other, forward_gradient=True)
        q = self._known_steps(rollout, now, points)
        cross = [torch.where(one.mask, _expected(p, one.log_probs), 0.0) for p, one in zip(q, own, strict=True)]
        return replace(found, logp=torch.cat(cross, -1))

    def bound(self, rollout: Rollout) -> Float[Tensor, " batch"]:
        """The lower bound of log p_θ(x_0 | n), estimated at the J states: (T/J) Σ -KL(q(·| x_t, x_0) ‖ p_θ(·| x_t)), in nats.

        The last step has q(x_0 | x_t, x_0) = 1, so its term is log p_θ(x_0 | x_t). What is drawn is a bound in the mean only.
        """
        now, points = moments(rollout, all_steps(rollout)), rollout.states["time"]
        q, own = self._known_steps(rollout, now, points), self._transitions(now, points)
        gaps = [
            torch.where(one.mask, _expected(p, one.log_probs) - _expected(p, safe_log(p)), 0.0).sum((1, 2))
            for p, one in zip(q, own, strict=True)
        ]
        return (self.policy.num_steps / rollout.num_steps) * (gaps[0] + gaps[1])

    # -- inside

    def _transitions(self, now: Moments, points: Tensor) -> list[Sites]:
        """Log p_θ(·| x_t) of every site from grid ``points`` [B, S']; no class is drawn."""
        tables = self.policy.transition(now.state, points.flatten(), now.properties)
        return [
            Sites(safe_log(q.unflatten(0, points.shape)), torch.zeros_like(mask, dtype=torch.long), mask)
            for q, mask in zip(tables, now.chosen, strict=True)
        ]

    @torch.no_grad()
    def _known_steps(self, rollout: Rollout, now: Moments, points: Tensor) -> list[Tensor]:
        """q(·| x_t, x_0) of every site, the kernel's step for a known x_0, as [B, S', U, K]; the last step gives x_0."""
        k, grid, dtype = points.flatten(), self.policy.grid, torch.promote_types(self.policy.dtype, torch.float32)
        noisy, clean = (now.state.nodes, upper(now.state.edges)), _final(rollout, points.shape[1])
        return [
            known_step(kernel, ends.flatten(0, 1), x, grid, k, dtype).unflatten(0, points.shape)
            for kernel, x, ends in zip(self._kernels, noisy, clean, strict=True)
        ]

    @property
    def _kernels(self) -> tuple[Kernel, Kernel]:
        return self.policy.node_kernel, self.policy.edge_kernel

    def _noisy(self, rollout: Rollout, step: Tensor, generator: torch.Generator | None) -> list[Tensor]:
        """Nodes and pairs of the finished graphs at the grid points ``step`` [B, J, U]; fixed sites as the sampler noises them."""
        if self._laws is None:
            self._laws = [_own_law(kernel, self.policy.grid) for kernel in self._kernels]
        t = grid_on(self.policy.grid, step.device)[step].flatten()
        free = [rollout.states.get(name) for name in ("free_nodes", "free_pairs")]
        found = []
        for kernel, law, clean, on in zip(self._kernels, self._laws, _final(rollout, step.shape[1]), free, strict=True):
            with full_precision(clean.device):
                x = kernel.noise.sample(clean.flatten(0, 1), t, generator).unflatten(0, step.shape)
                if law is not None:
                    own = sample(law.to(clean.device, torch.float32)[step.unsqueeze(-1), clean], generator)
                    x = own if on is None else torch.where(on[:, None, : own.shape[-1]], own, x)
            found.append(x)
        return found


def _own_law(kernel: Kernel, grid: Tensor) -> Tensor | None:
    """The law of the kernel's chain where it is not that of the kernel's noise; None where it is."""
    law = chain_law(kernel, grid)
    same = isinstance(kernel.noise, Noise) and torch.allclose(law, kernel.noise.law(grid), rtol=0, atol=1e-9)
    return None if same else law


def _expected(p: Tensor, log_q: Tensor) -> Tensor:
    """Σ_k p_k log q_k with 0 · (-inf) = 0, also in the gradient."""
    on = p > 0
    return torch.where(on, p * torch.where(on, log_q, 0.0), 0.0).sum(-1)
