"""Graph6 text, adjacency matrices and networkx graphs stand for one another."""

import networkx as nx
import numpy as np
import pytest
import torch

from discrete_grpo.domains.graph6 import (
    adjacency,
    adjacency_to_graph6,
    batch_to_graph6,
    from_graph6,
    graph6,
    graphs_to_batch,
    node_count,
    read_codes,
    write_codes,
)
from discrete_grpo.domains.graphs import GraphBatch

SIZES = [0, 1, 2, 3, 4, 5, 7, 16, 61, 62, 63, 64, 150]
UNREADABLE = ["", "  ", "B", "Bgg", "~", "~~", "~?", "~~??", "é", "B!", "&BP", ":Fa@x^", "CCO", "B\ng", "~~~~~~~~", "B\x7f"]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_text_is_that_of_networkx(n: int, p: float) -> None:
    graph = nx.gnp_random_graph(n, p, seed=n)
    text = nx.to_graph6_bytes(graph, header=False).decode().strip()
    assert graph6(graph) == text
    assert nx.utils.graphs_equal(from_graph6(text), graph)
    matrix = nx.to_numpy_array(graph, dtype=bool, weight=None)
    assert np.array_equal(adjacency(text), matrix)
    assert np.array_equal(adjacency(graph), matrix)
    assert adjacency_to_graph6(matrix) == text
    assert np.array_equal(adjacency(f">>graph6<<{text}\n"), matrix)


@pytest.mark.parametrize("text", UNREADABLE)
def test_text_that_is_no_graph(text: str) -> None:
    for read in (from_graph6, adjacency):
        with pytest.raises(ValueError, match=r"^graph: .* is no graph6 line") as error:
            read(text)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (nx.DiGraph([(0, 1)]), "directed"),
        (nx.MultiGraph([(0, 1)]), "multigraph"),
        (nx.Graph([(0, 1), (1, 1)]), "node 1 has a self-loop"),
    ],
)
def test_graphs_that_have_no_text(graph: nx.Graph, said: str) -> None:
    for write in (graph6, adjacency):
        with pytest.raises(ValueError, match=said):
            write(graph)


def test_nodes_are_taken_in_their_order() -> None:
    graph = nx.Graph([("c", "a"), ("a", "b")])
    assert graph6(graph) == graph6(nx.path_graph(3)) == "Bg"


def test_weights_do_not_matter() -> None:
    assert adjacency(nx.Graph([(0, 1, {"weight": 0.0})])).tolist() == [[False, True], [True, False]]


def test_batch_is_decoded_without_padding() -> None:
    edges = torch.zeros(2, 3, 3, dtype=torch.long)
    edges[0, 0, 1] = edges[0, 1, 0] = 2  # any class but 0 is an edge
    edges[1, 1, 2] = edges[1, 2, 1] = 1
    mask = torch.tensor([[True, True, False], [True, True, True]])
    lines = batch_to_graph6(GraphBatch(torch.zeros(2, 3, dtype=torch.long), edges, mask))
    assert [sorted(from_graph6(line).edges) for line in lines] == [[(0, 1)], [(1, 2)]]
    assert [len(from_graph6(line)) for line in lines] == [2, 3]


@pytest.mark.parametrize(
    ("n", "codes"),
    [
        (62, [125]),
        (63, [126, 63, 63, 126]),
        (12345, [126, 66, 63, 120]),
        (258047, [126, 125, 126, 126]),
        (258048, [126, 126, 63, 63, 63, 126, 63, 63]),
        (460175067, [126, 126, 63, 90, 90, 90, 90, 90]),
    ],
)
def test_large_numbers_of_nodes_are_written_as_in_the_description(n: int, codes: list[int]) -> None:
    text = write_codes(n, np.zeros(0, dtype=bool))
    assert list(text.encode()) == codes
    assert read_codes(text, lambda n: 0, text, "graph6")[1:] == (len(codes), n)


def test_a_small_number_of_nodes_may_be_written_long() -> None:
    for text in ("Bg", "~??Bg", "~~?????Bg"):
        assert node_count(text) == 3
        assert sorted(from_graph6(text).edges) == [(0, 1), (1, 2)]


def test_graphs_of_several_sizes_survive_a_batch() -> None:
    lines = ["Bg", "C~", "@", "A_"]
    batch = graphs_to_batch(lines)
    assert batch.sizes.tolist() == [3, 4, 1, 2]
    assert batch_to_graph6(batch) == lines
    assert not batch.edges[0, 3].any()
    with pytest.raises(ValueError, match=r"graph: 'Bg nodes=0,1,0 edges=1,1', expected a plain graph or a graph6 line"):
        graphs_to_batch(["Bg nodes=0,1,0 edges=1,1"])
