"""Exact graph isomorphism tests with a bound on the work.

Colour refinement gives every node a 64-bit colour that does not depend on how nodes are numbered. Where all colours differ,
sorting by them gives a canonical form, and equal forms decide. Otherwise a search gives one node of one graph, and each candidate
of the other in turn, a unique colour and refines again; a bijection is accepted only if it maps every edge. Trees, planar graphs
and random graphs need no backtracking. Strongly regular and similar graphs can, so the search stops after ``budget`` refinements.
The answer is then None, on every machine alike, as no time is measured.

Source: McKay and Piperno (2014), Practical graph isomorphism II, arXiv 1301.1493 (individualisation and refinement).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from jaxtyping import Int, UInt64

from discrete_grpo.domains.graph6 import adjacency

__all__ = ["BUDGET", "Form", "GraphSet", "Signature", "form", "form_of_edges", "isomorphic", "num_distinct", "signature"]

Colours = UInt64[np.ndarray, " node"]
BUDGET = 2_000
"""Refinements after which a search gives up."""


@dataclass(frozen=True)
class Form:
    """A graph prepared for comparison.

    Attributes:
        neighbours: neighbours of node 0, then those of node 1, ...
        ends: the neighbours of node v are ``neighbours[ends[v] : ends[v + 1]]``.
        colours: colour of each node after refinement.
        key: equal for isomorphic graphs, a digest of 128 bits.
        discrete: whether all colours differ; then graphs of equal keys are isomorphic.
    """

    neighbours: Int[np.ndarray, " end"]
    ends: Int[np.ndarray, " node_plus_1"]
    colours: Colours
    key: bytes
    discrete: bool


def form(graph: nx.Graph | str, colours: Colours | None = None) -> Form:
    """Prepare a graph or graph6 line.

    Args:
        graph: the graph.
        colours: colour of each node to begin with, which an isomorphism must keep; None gives all nodes the same one.

    Raises:
        ValueError: if the text is no graph6 line, or the graph is not simple and undirected.
    """
    matrix = adjacency(graph)
    tails, heads = np.nonzero(matrix)
    return form_of_edges(len(matrix), tails, heads, colours)


def form_of_edges(
    nodes: int, tails: Int[np.ndarray, " end"], heads: Int[np.ndarray, " end"], colours: Colours | None = None
) -> Form:
    """Prepare a simple, undirected graph that is given by its edges, each of them in both directions.

    Args:
        nodes: number of nodes.
        tails: first node of each direction, 0 to nodes - 1, ascending.
        heads: second node of each direction.
        colours: as of :func:`form`.
    """
    ends = np.concatenate([[0], np.bincount(tails, minlength=nodes).cumsum()])
    refined = _refine(heads, ends, np.zeros(nodes, dtype=np.uint64) if colours is None else colours)
    discrete = len(np.unique(refined)) == len(refined)
    order = np.argsort(refined, kind="stable")
    digest = hashlib.blake2b(_renumbered(heads, ends, order).tobytes() if discrete else b"", digest_size=16)
    if not discrete or colours is not None:
        digest.update(refined[order].tobytes())
    return Form(heads, ends, refined, nodes.to_bytes(8, "little") + digest.digest(), discrete)


def isomorphic(a: nx.Graph | str | Form, b: nx.Graph | str | Form, budget: int = BUDGET) -> bool | None:
    """Whether two graphs are isomorphic; None where ``budget`` refinements did not decide it.

    >>> isomorphic("Bg", "BW"), isomorphic("Bg", "Bw")
    (True, False)
    """
    first, second = (g if isinstance(g, Form) else form(g) for g in (a, b))
    if first.key != second.key:
        return False
    if first.discrete or _maps(first, first.colours, second, second.colours):
        return True
    branches = [_branches(first, first.colours, second, second.colours)]
    for _ in range(budget):
        while (pair := next(branches[-1], None)) is None:
            branches.pop()
            if not branches:
                return False
        if not np.array_equal(np.sort(pair[0]), np.sort(pair[1])):
            continue
        if _maps(first, pair[0], second, pair[1]):
            return True
        branches.append(_branches(first, pair[0], second, pair[1]))
    return None


class GraphSet:
    """Graphs up to isomorphism.

    ``find`` returns True, False, or None if a comparison with one of them reached the budget.

    >>> known = GraphSet(["Bg"])
    >>> known.find("BW"), known.find("Bw"), len(known)
    (True, False, 1)
    """

    def __init__(self, graphs: Iterable[nx.Graph | str | Form] = (), budget: int = BUDGET) -> None:
        self.budget = budget
        self._buckets: defaultdict[bytes, list[Form]] = defaultdict(list)
        for graph in graphs:
            self.add(graph)

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def find(self, graph: nx.Graph | str | Form) -> bool | None:
        """Whether a graph isomorphic to this one is in the set."""
        found = graph if isinstance(graph, Form) else form(graph)
        answers = []
        for known in self._buckets.get(found.key, ()):
            answers.append(isomorphic(known, found, self.budget))
            if answers[-1]:
                return True
        return None if None in answers else False

    def add(self, graph: nx.Graph | str | Form) -> bool | None:
        """Call ``find``, and add the graph if the result is False. A graph that may be in the set already is not added."""
        found = graph if isinstance(graph, Form) else form(graph)
        answer = self.find(found)
        if answer is False:
            self._buckets[found.key].append(found)
        return answer


class Signature(NamedTuple):
    """A short invariant that isomorphic graphs share.

    Attributes:
        digest: hash of the graph's :attr:`Form.key`.
        discrete: whether graphs of equal digests are isomorphic.
    """

    digest: bytes
    discrete: bool


def signature(graph: Form) -> Signature:
    """The signature of a prepared graph."""
    return Signature(hashlib.blake2b(graph.key, digest_size=16).digest(), graph.discrete)


def num_distinct(
    graphs: Sequence[str | nx.Graph], signatures: Sequence[Signature], prepare: Callable[[Any], Form] = form, budget: int = BUDGET
) -> int:
    """Number of graphs up to isomorphism: ``len(GraphSet(map(prepare, graphs)))``, but only graphs that may be equal are prepared.

    Args:
        graphs: the graphs.
        signatures: signature of each of them, as prepared by ``prepare``.
        prepare: prepares a graph for comparison.
        budget: refinements after which a comparison gives up.

    >>> num_distinct(["Bg", "BW", "Bw"], [signature(form(g)) for g in ("Bg", "BW", "Bw")])
    2
    """
    alike = defaultdict[Signature, list[Any]](list)
    for graph, own in zip(graphs, signatures, strict=True):
        alike[own].append(graph)
    return sum(1 if own.discrete or len(found) == 1 else len(GraphSet(map(prepare, found), budget)) for own, found in alike.items())


# -- colours


def _mix(x: Colours) -> Colours:
    """The finaliser of SplitMix64: a bijection of 64-bit numbers without visible pattern."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _refine(neighbours: Int[np.ndarray, " end"], ends: Int[np.ndarray, " node_plus_1"], colours: Colours) -> Colours:
    """c(v) <- mix(c(v), Σ_{u~v} mix(c(u))) until the number of colours stays; a sum does not know the order of neighbours."""
    count = len(np.unique(colours))
    while True:
        sums = np.zeros(len(neighbours) + 1, dtype=np.uint64)
        np.cumsum(_mix(colours + np.uint64(0x9E3779B97F4A7C15))[neighbours], out=sums[1:])
        colours = _mix(3 * colours + _mix(sums[ends[1:]] - sums[ends[:-1]]))
        before, count = count, len(np.unique(colours))
        if count <= before or count == len(colours):
            return colours


def _branches(a: Form, colours_a: Colours, b: Form, colours_b: Colours) -> Iterator[tuple[Colours, Colours]]:
    """One node of the smallest shared colour of ``a`` singled out, against each node of that colour in ``b``; refined."""
    values, counts = np.unique(colours_a, return_counts=True)
    shared = np.where(counts > 1)[0]
    if not len(shared):
        return
    colour = values[shared[np.argmin(counts[shared])]]
    chosen = _single_out(a, colours_a, int(np.argmax(colours_a == colour)))
    for node in np.flatnonzero(colours_b == colour).tolist():
        yield chosen, _single_out(b, colours_b, node)


def _single_out(graph: Form, colours: Colours, node: int) -> Colours:
    changed = colours.copy()
    changed[node] = _mix(changed[node : node + 1] + np.uint64(1))[0]
    return _refine(graph.neighbours, graph.ends, changed)


def _maps(a: Form, colours_a: Colours, b: Form, colours_b: Colours) -> bool:
    """Whether sending the k-th node by colour of ``a`` to that of ``b`` sends edges to edges."""
    p, q = (np.argsort(c, kind="stable") for c in (colours_a, colours_b))
    return np.array_equal(_renumbered(a.neighbours, a.ends, p), _renumbered(b.neighbours, b.ends, q))


def _renumbered(
    neighbours: Int[np.ndarray, " end"], ends: Int[np.ndarray, " node_plus_1"], order: Int[np.ndarray, " node"]
) -> Int[np.ndarray, " end"]:
    """The edges of a graph whose node ``order[k]`` is called k, each as a number, ascending."""
    count = len(order)
    names = np.empty(count, dtype=np.int64)
    names[order] = np.arange(count)
    return np.sort(names[np.repeat(np.arange(count), np.diff(ends))] * count + names[neighbours])
