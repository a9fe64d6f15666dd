"""Benchmark tasks on plain graphs of 16 nodes, for policies such as ``planar-16`` and ``tree-16``, most with a known optimum.

Each task has a gate: a graph without the required shape (planar and connected, a tree, connected), or without 16 nodes, scores 0.
Otherwise the score measures the distance of one number q of the graph from a target, in [0, 1]: max(0, 1 - |q - target| / width).
If the target is the largest possible q and the width equals it, the score is q / target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float

from discrete_grpo.domains.graph6 import adjacency
from discrete_grpo.domains.graph_validity import Shape, has_shape
from discrete_grpo.rewards.task import Task

__all__ = ["QUANTITIES", "TASKS", "GraphScore", "Quantity"]

Matrix = Bool[np.ndarray, "node node"]
Quantity = Literal[
    "edges", "edges_less_triangles", "triangles", "clustering", "diameter", "wiener", "binary", "connectivity", "spectral_gap"
]
NODES = 16


# -- numbers of a connected graph


def _triangles(a: Matrix) -> Float[np.ndarray, " node"]:
    """Number of triangles at each node."""
    m = a.astype(np.float64)
    return ((m @ m) * m).sum(0) / 2


def _clustering(a: Matrix) -> float:
    """Mean over nodes of c_v = 2 T_v / d_v (d_v - 1); c_v = 0 where d_v < 2."""
    d = a.sum(0)
    pairs = d * (d - 1) / 2
    return float(np.divide(_triangles(a), pairs, out=np.zeros(len(a)), where=pairs > 0).mean())


def _distances(a: Matrix) -> Float[np.ndarray, "node node"]:
    """Length of the shortest path between each pair of nodes; inf where there is none."""
    found = np.where(np.eye(len(a), dtype=bool), 0.0, np.inf)
    reached, length = np.eye(len(a), dtype=bool), 0
    while (front := (reached @ a) & ~reached).any():
        length += 1
        found[front] = length
        reached |= front
    return found


def _laplacian_gap(a: Matrix, normalised: bool) -> float:
    """Second smallest eigenvalue of the Laplacian D - A, or of I - D^-½ A D^-½."""
    d = a.sum(0).astype(np.float64)
    laplacian = np.diag(d) - a
    if normalised:
        root = np.sqrt(d)
        laplacian = laplacian / root[:, None] / root
    return float(np.linalg.eigvalsh(laplacian)[1])


QUANTITIES: dict[Quantity, Callable[[Matrix], float]] = {
    "edges": lambda a: float(a.sum()) / 2,
    "edges_less_triangles": lambda a: float(a.sum()) / 2 - float(_triangles(a).sum()) / 3,
    "triangles": lambda a: float(_triangles(a).sum()) / 3,
    "clustering": _clustering,
    "diameter": lambda a: float(_distances(a).max()),
    "wiener": lambda a: float(_distances(a).sum()) / 2,
    "binary": lambda a: float(np.isin(a.sum(0), (1, 3)).mean()),
    "connectivity": lambda a: _laplacian_gap(a, normalised=False),
    "spectral_gap": lambda a: _laplacian_gap(a, normalised=True),
}
"""Number of a connected graph with at least two nodes, from its adjacency matrix.

wiener: sum of the distances of all pairs; binary: share of nodes with 1 or 3 neighbours; connectivity and spectral_gap: second
smallest eigenvalue of the plain and of the normalised Laplacian.
"""


# -- tasks


@dataclass(frozen=True)
class GraphScore:
    """max(0, 1 - |q - target| / width) for a graph of the right shape and size, else 0: the ``score`` of a graph task.

    Attributes:
        shape: the gate.
        quantity: q.
        target: the best value of q.
        width: distance from the target at which the score is 0, more than 0.
        nodes: number of nodes that a graph must have, at least 2.
    """

    shape: Shape
    quantity: Quantity
    target: float
    width: float
    nodes: int = NODES

    def __call__(self, graph: Any) -> float:
        """Score a graph, in [0, 1]."""
        matrix = adjacency(graph)
        if len(matrix) != self.nodes or not has_shape(graph, self.shape):
            return 0.0
        return float(np.clip(1 - abs(QUANTITIES[self.quantity](matrix) - self.target) / self.width, 0.0, 1.0))


def _task(name: str, about: str, score: GraphScore, optimum: float | None = 1.0) -> Task:
    gate = {"planar": "connected planar graphs", "tree": "trees", "connected": "connected graphs"}[score.shape]
    return Task(name, "graphs", f"{about}; {gate} of {score.nodes} nodes, others 0", "this project", score, "graphs", optimum)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _task("planar_edges", "edges, from 32 to 42 (a triangulation)", GraphScore("planar", "edges", 42, 10)),
        _task(
            "planar_triangle_free",
            "(edges - triangles) / 28 (all faces squares)",
            GraphScore("planar", "edges_less_triangles", 28, 28),
        ),
        _task("planar_clustering", "mean clustering near 1/4", GraphScore("planar", "clustering", 0.25, 0.5)),
        _task("planar_diameter", "diameter near 9", GraphScore("planar", "diameter", 9, 9)),
        _task("planar_connectivity", "algebraic connectivity / 6", GraphScore("planar", "connectivity", 6, 6), None),
        _task("tree_path", "diameter / 15 (a path)", GraphScore("tree", "diameter", 15, 15)),
        _task("tree_star", "algebraic connectivity (a star)", GraphScore("tree", "connectivity", 1, 1)),
        _task("tree_binary", "share of nodes with 1 or 3 neighbours", GraphScore("tree", "binary", 1, 1)),
        _task("tree_wiener", "sum of all distances near 300", GraphScore("tree", "wiener", 300, 300)),
        _task("connected_triangles", "number of triangles near 10", GraphScore("connected", "triangles", 10, 10)),
        _task(
            "connected_gap",
            "15/16 of the second eigenvalue of the normalised Laplacian (the complete graph)",
            GraphScore("connected", "spectral_gap", 16 / 15, 16 / 15),
        ),
    )
}
"""The graph tasks by name."""
