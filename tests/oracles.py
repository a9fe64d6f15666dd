"""Slow float64 oracles, written from the papers' formulas with loops, and the toy network some tests need.

Nothing here imports the code under test: numbers and nested lists in, numbers and nested lists out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Matrix = list[list[float]]

# ---------------------------------------------------------------- noise and its reversal, by explicit matrices


def cosine_alpha_bar(t: float, offset: float = 0.008) -> float:
    """Nichol & Dhariwal's f(t)/f(0), with the end points that the formula has in exact arithmetic."""
    if t in (0.0, 1.0):
        return 1.0 - t

    def f(x: float) -> float:
        return math.cos((x + offset) / (1 + offset) * math.pi / 2) ** 2

    return f(t) / f(0.0)


def linear_alpha_bar(t: float) -> float:
    return 1.0 - t


def noise_matrix(prior: Sequence[float], keep: float) -> Matrix:
    """Q[from][to]: stay with probability ``keep``, else jump to a class of the prior."""
    size = len(prior)
    return [[(keep if a == b else 0.0) + (1.0 - keep) * prior[b] for b in range(size)] for a in range(size)]


def product(left: Matrix, right: Matrix) -> Matrix:
    inner, columns = len(right), len(right[0])
    return [[sum(row[j] * right[j][k] for j in range(inner)) for k in range(columns)] for row in left]


def between(bar_t: float, bar_s: float) -> float:
    """α of the noising step s -> t; no noise at all when both times are one."""
    return 1.0 if bar_t == bar_s else bar_t / bar_s


def posterior(prior: Sequence[float], clean: int, bar_t: float, bar_s: float) -> list[list[list[float] | None]]:
    """q(x_s = k | x_t = z, x_0 = c) as [z][c], by enumerating every path c -> k -> z; None where no path leads to z."""
    first, second = noise_matrix(prior, bar_s), noise_matrix(prior, between(bar_t, bar_s))
    size = len(prior)
    answer: list[list[list[float] | None]] = []
    for z in range(size):
        row: list[list[float] | None] = []
        for c in range(clean):
            paths = [first[c][k] * second[k][z] for k in range(size)]
            whole = sum(paths)
            row.append([p / whole for p in paths] if whole > 0 else None)
        answer.append(row)
    return answer


def reverse_step(p_clean: Sequence[float], table: Sequence[Sequence[float] | None], state: int, size: int) -> list[float]:
    """Σ_c p̂(c) q(k | z, c) over the clean classes that can have led to z; without any, the state stays."""
    possible = [(p, q) for p, q in zip(p_clean, table, strict=True) if q is not None and p > 0]
    mass = sum(p for p, _ in possible)
    if mass == 0:
        return [float(k == state) for k in range(size)]
    return [sum(p * q[k] for p, q in possible) / mass for k in range(size)]


# ---------------------------------------------------------------- categoricals


def entropy(p: Sequence[float]) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


def kl(p: Sequence[float], q: Sequence[float]) -> float:
    return sum(x * math.log(x / y) if y > 0 else math.inf for x, y in zip(p, q, strict=True) if x > 0)


def softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    e = [math.exp(x - top) for x in logits]
    return [x / sum(e) for x in e]


# ---------------------------------------------------------------- advantages


def bessel_std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def z_scores(reward: Sequence[float], group: Sequence[int], leave_out: bool = False) -> list[float]:
    """(r - mean) / (std + 1e-4) in each group, over the rewards that are known; 0 for the unknown ones."""
    answer = []
    for r, g in zip(reward, group, strict=True):
        peers = [x for x, h in zip(reward, group, strict=True) if h == g and not math.isnan(x)]
        total, count = (sum(peers) - r, len(peers) - 1) if leave_out else (sum(peers), len(peers))
        answer.append(0.0 if math.isnan(r) else (r - total / count) / (bessel_std(peers) + 1e-4))
    return answer


def normalize_then_sum(
    rewards: Sequence[Sequence[float]], group: Sequence[int], weights: Sequence[float], leave_out: bool = False
) -> list[float]:
    """``rewards[i][k]``: each reward's z-score in its group, weighed and summed, then standardised over the batch."""
    z = [z_scores([row[k] for row in rewards], group, leave_out) for k in range(len(weights))]
    known = [not all(math.isnan(x) for x in row) for row in rewards]
    s = [sum(w * z[k][i] for k, w in enumerate(weights)) for i in range(len(rewards))]
    inside = [x for x, ok in zip(s, known, strict=True) if ok]
    mean, std = sum(inside) / len(inside), bessel_std(inside)
    return [(x - mean) / (std + 1e-4) if ok else 0.0 for x, ok in zip(s, known, strict=True)]


# ---------------------------------------------------------------- the objective


def surrogate(ratio: float, advantage: float, epsilon: float, epsilon_high: float) -> float:
    """PPO's pessimistic bound, by cases: a ratio stops counting once it has moved far enough in the favoured direction."""
    if advantage >= 0:
        return advantage * min(ratio, 1 + epsilon_high)
    return advantage * max(ratio, 1 - epsilon)


def unit_ratios(logp: Any, old: Any, mask: Any, level: str) -> dict[tuple[int, int, int], float]:
    """The ratio that covers each existing site of nested lists [B][S][U]."""
    answer: dict[tuple[int, int, int], float] = {}
    for b, trajectory in enumerate(mask):
        sites = [(s, u) for s, row in enumerate(trajectory) for u, on in enumerate(row) if on]
        gap = {(s, u): logp[b][s][u] - old[b][s][u] for s, u in sites}
        for s, u in sites:
            peers = [gap[x] for x in sites if x[0] == s]
            whole = {
                "token": gap[s, u],
                "step": sum(peers),
                "step_mean": sum(peers) / len(peers),
                "sequence": sum(gap.values()) / len(gap),
            }[level]
            answer[b, s, u] = math.exp(whole)
    return answer


def units_of(mask: Any, level: str) -> list[tuple[int, int, int]]:
    """Where each unit stands: every existing site, or at level ``step`` the first site of every step that has one."""
    sites = [(b, s, u) for b, rows in enumerate(mask) for s, row in enumerate(rows) for u, on in enumerate(row) if on]
    return [site for site in sites if level != "step" or site == min(x for x in sites if x[:2] == site[:2])]


def unit_weights(mask: Any, loss_type: str, level: str, max_units: int) -> list[float]:
    """The weight of one unit of each trajectory."""
    counts = [sum(b == k for b, _, _ in units_of(mask, level)) for k in range(len(mask))]
    if loss_type == "grpo":
        return [1 / (len(mask) * n) for n in counts]
    if loss_type == "dapo":
        return [1 / sum(counts)] * len(mask)
    return [1 / (len(mask) * max_units)] * len(mask)


def grpo_loss(
    logp: Any,
    old: Any,
    mask: Any,
    advantage: Sequence[float],
    *,
    loss_type: str = "dapo",
    level: str = "token",
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    max_units: int = 1,
    kl_values: Any = None,
    beta: float = 0.0,
) -> float:
    """-Σ w min(r A, clip(r) A) + β Σ w KL over all units; a step's ratio goes with the KL of the whole step."""
    high = epsilon if epsilon_high is None else epsilon_high
    weight = unit_weights(mask, loss_type, level, max_units)
    ratios = unit_ratios(logp, old, mask, level)
    loss = 0.0
    for b, s, u in units_of(mask, level):
        ratio = ratios[b, s, u]
        loss -= weight[b] * surrogate(ratio, advantage[b], epsilon, high)
        if beta:
            row = [x for x, on in zip(kl_values[b][s], mask[b][s], strict=True) if on]
            loss += beta * weight[b] * (sum(row) if level == "step" else kl_values[b][s][u])
    return loss


# ---------------------------------------------------------------- tiny graphs of two nodes


def two_node_states(node_classes: int, edge_classes: int) -> list[tuple[int, int, int]]:
    """Every (left node, right node, pair) of a graph of two nodes."""
    return list(itertools.product(range(node_classes), range(node_classes), range(edge_classes)))


def path_probabilities(
    initial: Mapping[tuple[int, ...], Tensor],
    steps: Sequence[Mapping[tuple[int, ...], Mapping[tuple[int, ...], Tensor]]],
) -> dict[tuple[tuple[int, ...], ...], Tensor]:
    """p(x_0, x_1, ...) of every path, by multiplying one step after the other."""
    paths: dict[tuple[tuple[int, ...], ...], Tensor] = {(state,): p for state, p in initial.items()}
    for step in steps:
        paths = {(*path, after): p * q for path, p in paths.items() for after, q in step[path[-1]].items()}
    return paths


class LookupNetwork(nn.Module):
    """Free logits for every state of a graph of two nodes: a policy that can be anything, for exact tests.

    It is called as any network is, ``(nodes, edges, time, mask) -> (node logits, edge logits)``.
    """

    def __init__(self, node_states: int, edge_states: int, node_classes: int, edge_classes: int, seed: int = 0) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        states = (node_states, node_states, edge_states)
        self.nodes = nn.Parameter(torch.randn(2, *states, node_classes, generator=g, dtype=torch.float64))
        self.edge = nn.Parameter(torch.randn(2, *states, edge_classes, generator=g, dtype=torch.float64))

    def forward(self, nodes: Tensor, edges: Tensor, time: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        early = (time > 0.75).long()  # one table a step: at time 1, and later
        left, right, pair = nodes[:, 0], nodes[:, 1], edges[:, 0, 1]
        logits = torch.stack([self.nodes[early, left, right, pair], self.nodes[early, right, left, pair]], 1)
        between_nodes = self.edge[early, left, right, pair]
        return logits, between_nodes[:, None, None, :].expand(-1, 2, 2, -1)
