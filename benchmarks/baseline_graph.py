"""A graph diffusion policy in the shape of its peers (DiGress, DeFoG, Graph-GRPO), the baseline of ``graph_policy_speed``.

Written here from the published equations, not copied. What makes it *peer-shaped*:

* attention has one weight a channel, [B, N, N, d], scaled and shifted by the edges and by the global state (FiLM);
* edge states cover all ordered pairs, [B, N, N, d_e], with their own feed-forward part;
* states, and the stored trajectory, are float32 one-hot vectors X [B, N, C] and E [B, N, N, C] (zero on the diagonal);
* the posterior q(x_s | x_t, x_0) is laid out for every x_0, [B, N·N, C, C], before it is averaged over p̂;
* the log-prob of a step is a product with one-hot vectors over both triangles.

It is meant to be a fair opponent, so it does no work that the equations do not ask for: masks are multiplied in once
a layer, the structural features are ours, and it computes neither eigenvectors nor a KL.

Sources: Vignac et al. (2022), arXiv 2209.14734, section 4 and appendix B; Qin et al. (2024), arXiv 2410.04263;
Graph-GRPO (2026), arXiv 2603.10395.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.schedules import time_grid
from discrete_grpo.models.graph_transformer import GraphTransformerConfig, cycle_counts
from discrete_grpo.models.random_walks import random_walks

__all__ = ["PeerNetwork", "PeerPolicy", "Trajectory", "average_posterior", "posterior_over_x0", "step_log_prob"]


class _FiLM(nn.Module):
    """x · (1 + a(y)) + b(y), y broadcast over the axes between batch and channel."""

    def __init__(self, condition: int, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Linear(condition, width), nn.Linear(condition, width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scale, shift = self.scale(y), self.shift(y)
        if x.ndim > y.ndim:
            spread = (len(y),) + (1,) * (x.ndim - 2) + (-1,)
            scale, shift = scale.view(spread), shift.view(spread)
        return x * (scale + 1) + shift


def _pool(x: Tensor, mask: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Mean, least, largest and standard deviation over the existing elements (DiGress's pooling, "PNA")."""
    count = mask.sum(axes)
    mean = (x * mask).sum(axes) / count
    spread = tuple(slice(None) if axis not in axes else None for axis in range(x.ndim))
    deviation = (((x - mean[spread]) ** 2) * mask).sum(axes) / count
    low, high = x.masked_fill(mask == 0, torch.inf).amin(axes), x.masked_fill(mask == 0, -torch.inf).amax(axes)
    return torch.cat([mean, low, high, deviation], -1)


def _feed_forward(width: int, expansion: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, expansion * width), nn.ReLU(), nn.Linear(expansion * width, width))


class _Layer(nn.Module):
    """Per-channel attention on nodes, edges and the global state, then a feed-forward part on each."""

    def __init__(self, config: GraphTransformerConfig) -> None:
        super().__init__()
        d, de, dg = config.width, config.edge_width, config.global_width
        self.heads = config.heads
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.edges_to_weights, self.global_to_edges, self.global_to_nodes = _FiLM(de, d), _FiLM(dg, d), _FiLM(dg, d)
        self.node_out, self.edge_out = nn.Linear(d, d), nn.Linear(d, de)
        self.nodes_to_global, self.edges_to_global = nn.Linear(4 * d, dg), nn.Linear(4 * de, dg)
        self.global_to_global = nn.Linear(dg, dg)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in (d, de, dg, d, de, dg))
        self.feed_forward = nn.ModuleList(_feed_forward(width, config.expansion) for width in (d, de, dg))

    def forward(self, x: Tensor, e: Tensor, y: Tensor, nodes: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.q(x) * nodes, self.k(x) * nodes, self.v(x) * nodes
        weights = q.unsqueeze(2) * k.unsqueeze(1) * (x.shape[-1] // self.heads) ** -0.5  # [B, N, N, d]: one weight a channel
        weights = self.edges_to_weights(weights, e)
        new_e = self.edge_out(self.global_to_edges(weights, y)) * pairs
        attention = weights.masked_fill(nodes.unsqueeze(1) == 0, torch.finfo(weights.dtype).min).softmax(2)
        new_x = self.node_out(self.global_to_nodes((attention * v.unsqueeze(1)).sum(2), y)) * nodes
        pooled = self.nodes_to_global(_pool(x, nodes, (1,))) + self.edges_to_global(_pool(e, pairs, (1, 2)))
        states = (x + new_x, e + new_e, y + self.global_to_global(y) + pooled)
        states = tuple(norm(s) for norm, s in zip(self.norms[:3], states, strict=True))
        x, e, y = (norm(s + f(s)) for norm, f, s in zip(self.norms[3:], self.feed_forward, states, strict=True))
        return x, e, y


class PeerNetwork(nn.Module):
    """Clean-class logits ``(X, E, time, mask) -> (X logits [B,N,C_x], E logits [B,N,N,C_e])`` of one-hot states."""

    def __init__(self, config: GraphTransformerConfig) -> None:
        super().__init__()
        self.config = config
        d, de, dg = config.width, config.edge_width, config.global_width
        self.node_in = nn.Sequential(nn.Linear(config.node_states + config.walk_length + 3, d), nn.ReLU(), nn.Linear(d, d))
        self.edge_in = nn.Sequential(nn.Linear(config.edge_states + config.walk_length, de), nn.ReLU(), nn.Linear(de, de))
        self.global_in = nn.Sequential(nn.Linear(1 + 3, dg), nn.ReLU(), nn.Linear(dg, dg))
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.node_out = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, config.node_classes))
        self.edge_out = nn.Sequential(nn.Linear(de, de), nn.ReLU(), nn.Linear(de, config.edge_classes))

    def forward(self, x: Tensor, e: Tensor, time: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits over clean classes; those of edges are made symmetric by averaging."""
        nodes = mask.unsqueeze(-1).to(x.dtype)
        off_diagonal = 1 - torch.eye(mask.shape[1], device=mask.device, dtype=x.dtype)
        pairs = nodes.unsqueeze(1) * nodes.unsqueeze(2) * off_diagonal[None, :, :, None]
        x, e, y = self._embed(x, e, time, nodes)
        e = (e + e.transpose(1, 2)) / 2 * pairs
        for layer in self.layers:
            x, e, y = layer(x, e, y, nodes, pairs)
        edges = self.edge_out(e) * pairs
        return self.node_out(x) * nodes, (edges + edges.transpose(1, 2)) / 2

    def _embed(self, x: Tensor, e: Tensor, time: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        adjacency = e[..., 1:].sum(-1)
        walks = random_walks(adjacency, self.config.walk_length).permute(1, 2, 3, 0)
        back = walks.diagonal(dim1=1, dim2=2).transpose(1, 2)
        cycles = torch.log1p(cycle_counts(adjacency)) * nodes
        pooled = cycles.sum(1) / nodes.sum(1)
        return (
            self.node_in(torch.cat([x, back, cycles], -1)) * nodes,
            self.edge_in(torch.cat([e, walks], -1)),
            self.global_in(torch.cat([time.float().unsqueeze(-1), pooled], -1)),
        )


# -- the reverse step


def noise_matrix(keep: Tensor, prior: Tensor) -> Tensor:
    """Q = α I + (1 - α) 1 mᵀ for every α of a batch: [B, C, C], rows from, columns to."""
    keep = keep.to(prior.dtype)[:, None, None]
    return keep * torch.eye(len(prior), device=prior.device, dtype=prior.dtype) + (1 - keep) * prior.expand(len(prior), -1)


def posterior_over_x0(state: Tensor, step: Tensor, to_s: Tensor, to_t: Tensor) -> Tensor:
    """q(x_s = k | x_t, x_0 = c) for every c: [B, M, C, C].

    q(k | z, c) = Q_{t|s}[k, z] Q̄_s[c, k] / Q̄_t[c, z]. Source: Austin et al. (2021), Eq. 3, arXiv 2107.03006.

    Args:
        state: one-hot x_t [B, M, C]; a zero vector (no such element) gives zeros.
        step: Q_{t|s} [B, C, C].
        to_s: Q̄_s [B, C, C].
        to_t: Q̄_t [B, C, C].
    """
    back = state @ step.transpose(1, 2)
    numerator = back.unsqueeze(2) * to_s.unsqueeze(1)
    denominator = (state @ to_t.transpose(1, 2)).unsqueeze(-1)
    return numerator / denominator.masked_fill(denominator == 0, 1.0)


def average_posterior(p_clean: Tensor, posterior: Tensor) -> Tensor:
    """p(x_s = k | x_t) = Σ_c p̂(c) q(k | x_t, c), normalised: [B, M, C]."""
    probs = (p_clean.unsqueeze(-1) * posterior).sum(2)
    total = probs.sum(-1, keepdim=True)
    return probs / total.masked_fill(total == 0, 1.0)


def step_log_prob(p_x: Tensor, p_e: Tensor, x: Tensor, e: Tensor) -> Tensor:
    """log p of the one-hot x [B,N,C] and e [B,N,N,C] that were drawn; both triangles are read, each pair counts once."""
    nodes = (p_x.clamp_min(1e-30).log() * x).sum((1, 2))
    return nodes + (p_e.clamp_min(1e-30).log() * e).sum((1, 2, 3)) / 2


@dataclass(frozen=True)
class Trajectory:
    """T + 1 one-hot states, x [T+1, B, N, C] and e [T+1, B, N, N, C], and the log-prob of every step [B, T]."""

    x: Tensor
    e: Tensor
    logp: Tensor

    def nbytes(self) -> int:
        """Bytes of the stored states."""
        return sum(value.numel() * value.element_size() for value in (self.x, self.e))


class PeerPolicy(nn.Module):
    """Categorical diffusion over graphs of one size, in one-hot vectors and explicit posterior tensors."""

    def __init__(self, network: nn.Module, node_kernel: D3PM, edge_kernel: D3PM, num_nodes: int, num_steps: int) -> None:
        super().__init__()
        self.network, self.num_nodes, self.num_steps = network, num_nodes, num_steps
        self.node_kernel, self.edge_kernel = node_kernel, edge_kernel
        self.grid = time_grid(num_steps)

    def transition(self, x: Tensor, e: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """p_θ(x_s | x_t) of step number ``step``: [B, N, C_x] and [B, N, N, C_e]."""
        b, n = x.shape[:2]
        t, s = (self.grid[k].to(x.device).expand(b) for k in (step, step + 1))
        mask = torch.ones(b, n, dtype=torch.bool, device=x.device)
        logits_x, logits_e = self.network(x, e, t.float(), mask)
        p_x = _reverse(self.node_kernel, logits_x, x, t, s)
        p_e = _reverse(self.edge_kernel, logits_e.flatten(1, 2), e.flatten(1, 2), t, s)
        return p_x, p_e.unflatten(1, (n, n))

    @torch.no_grad()
    def sample(self, batch: int, generator: torch.Generator | None = None) -> Trajectory:
        """``batch`` trajectories from the prior."""
        n, device = self.num_nodes, next(self.parameters()).device
        m_x, m_e = (kernel.noise.initial().float().to(device) for kernel in (self.node_kernel, self.edge_kernel))
        x, e = _draw(m_x.expand(batch, n, -1), m_e.expand(batch, n, n, -1), generator)
        xs, es, logps = [x], [e], []
        for step in range(self.num_steps):
            p_x, p_e = self.transition(x, e, step)
            x, e = _draw(p_x, p_e, generator)
            logps.append(step_log_prob(p_x, p_e, x, e))
            xs.append(x)
            es.append(e)
        return Trajectory(torch.stack(xs), torch.stack(es), torch.stack(logps, 1))

    def log_prob(self, trajectory: Trajectory, step: int) -> Tensor:
        """Log-prob [B] of one stored step, differentiable."""
        p_x, p_e = self.transition(trajectory.x[step], trajectory.e[step], step)
        return step_log_prob(p_x, p_e, trajectory.x[step + 1], trajectory.e[step + 1])

    def loss(self, trajectory: Trajectory, steps: Sequence[int], position: int, advantage: Tensor, epsilon: float = 0.2) -> Tensor:
        """Share of ``steps[position]`` in the clipped surrogate whose ratio is that of a whole step."""
        step = steps[position]
        ratio = torch.exp(self.log_prob(trajectory, step) - trajectory.logp[:, step])
        return -torch.minimum(ratio * advantage, ratio.clamp(1 - epsilon, 1 + epsilon) * advantage).mean() / len(steps)


def _reverse(kernel: D3PM, logits: Tensor, state: Tensor, t: Tensor, s: Tensor) -> Tensor:
    prior = kernel.noise.initial().float().to(state.device)
    bar_t, bar_s = kernel.noise.schedule.alpha_bar(t), kernel.noise.schedule.alpha_bar(s)
    matrices = (noise_matrix(a, prior) for a in (bar_t / bar_s.clamp_min(1e-12), bar_s, bar_t))
    return average_posterior(logits.float().softmax(-1), posterior_over_x0(state, *matrices))


def _draw(p_x: Tensor, p_e: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """One-hot draws; every ordered pair is drawn, then the upper triangle is mirrored."""
    n = p_x.shape[1]
    diagonal = torch.eye(n, dtype=torch.bool, device=p_e.device)[None, :, :, None]
    filled = p_e.masked_fill(diagonal, 1.0)
    x = torch.multinomial(p_x.flatten(0, 1), 1, generator=generator).view(p_x.shape[:2])
    e = torch.multinomial(filled.flatten(0, 2), 1, generator=generator).view(p_e.shape[:3]).triu(1)
    one_hot = nn.functional.one_hot
    edges = one_hot(e + e.transpose(1, 2), p_e.shape[-1]).float().masked_fill(diagonal, 0.0)
    return one_hot(x, p_x.shape[-1]).float(), edges
