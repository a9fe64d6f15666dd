"""Digraph6 text, against lines made by hand, a writer by the letter of the format, and random graphs of many sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest

from discrete_grpo.domains.digraph6 import adjacency_to_digraph6, arcs, digraph6, from_digraph6, is_digraph6, node_count

SIZES = [0, 1, 2, 3, 4, 5, 6, 7, 16, 61, 62, 63, 64, 100]
BY_HAND = [
    ("&DI?AO?", 5, [(0, 2), (0, 4), (3, 1), (3, 4)]),  # the example of formats.txt
    ("&AO", 2, [(0, 1)]),
    ("&AG", 2, [(1, 0)]),
    ("&AW", 2, [(0, 1), (1, 0)]),
    ("&BP?", 3, [(0, 1), (1, 2)]),
    ("&?", 0, []),
    ("&@?", 1, []),
]


def by_the_letter(n: int, pairs: set[tuple[int, int]]) -> str:
    """N(n), then the matrix row by row in groups of six bits as numbers, 63 added to each."""
    size = chr(n + 63) if n <= 62 else "~" + "".join(chr((n >> shift & 63) + 63) for shift in (12, 6, 0))
    bits = "".join("1" if (i, j) in pairs else "0" for i in range(n) for j in range(n))
    bits += "0" * (-len(bits) % 6)
    return "&" + size + "".join(chr(int(bits[k : k + 6], 2) + 63) for k in range(0, len(bits), 6))


@pytest.mark.parametrize(("text", "n", "pairs"), BY_HAND)
def test_lines_made_by_hand(text: str, n: int, pairs: list[tuple[int, int]]) -> None:
    graph = from_digraph6(text)
    assert (len(graph), sorted(graph.edges)) == (n, sorted(pairs))
    assert digraph6(graph) == text == by_the_letter(n, set(pairs))
    assert node_count(text) == n
    assert from_digraph6(f">>digraph6<<{text}\n").edges == graph.edges
    assert np.array_equal(arcs(text + " nodes= edges="), arcs(text))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_text_is_that_of_the_format(n: int, p: float) -> None:
    graph = nx.gnp_random_graph(n, p, seed=n, directed=True)
    text = by_the_letter(n, set(graph.edges))
    assert digraph6(graph) == text
    assert nx.utils.graphs_equal(from_digraph6(text), graph)
    matrix = nx.to_numpy_array(graph, dtype=bool, weight=None)
    assert np.array_equal(arcs(text), matrix)
    assert np.array_equal(arcs(graph), matrix)
    assert adjacency_to_digraph6(matrix) == text


@pytest.mark.parametrize("text", ["", "&", "&B", "&BP", "&BP??", "&~", "&~?", "&é", "&B!!", "Bg", "&&AO", "&~~~~~~~"])
@pytest.mark.parametrize("read", [from_digraph6, arcs, node_count])
def test_text_that_is_no_graph(text: str, read: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match=r"^graph: .* is no digraph6 line") as error:
        read(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (nx.Graph([(0, 1)]), "undirected"),
        (nx.MultiDiGraph([(0, 1)]), "multigraph"),
        (nx.DiGraph([(0, 1), (1, 1)]), "node 1 has a self-loop"),
        (by_the_letter(3, {(2, 2)}), "node 2 of '&B.*' has a self-loop"),
    ],
)
def test_graphs_that_have_no_text(graph: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^graph: .*{said}"):
        arcs(graph)


def test_nodes_are_taken_in_their_order() -> None:
    assert digraph6(nx.DiGraph([("c", "a"), ("a", "b")])) == "&BP?"


def test_lines_say_their_direction() -> None:
    assert [is_digraph6(text) for text in ("&AO", ">>digraph6<<&AO", " &AO", "A_", "")] == [True, True, True, False, False]
