"""Samples as text: different ones have different texts, whatever they are, and plain ones keep theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from rdkit import Chem
from scipy import sparse
from torch_geometric.data import Data

from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.domains.sample_text import sample_text
from discrete_grpo.rewards.ledger import Ledger


def labelled(name: str) -> nx.Graph:
    graph = nx.path_graph(3)
    graph.nodes[0]["kind"] = name
    return graph


@dataclass(frozen=True)
class Holder:
    name: str
    values: torch.Tensor


def graph(number: int) -> GraphBatch:
    mask = torch.ones(1, 40, dtype=torch.bool)
    edges = torch.zeros(1, 40, 40, dtype=torch.long)
    edges[0, number, 39] = edges[0, 39, number] = 1
    return GraphBatch(mask.long(), edges, mask)


DIFFERENT = {
    "graphs": (nx.path_graph(16), nx.star_graph(15)),
    "directed graphs": (nx.DiGraph([(0, 1)]), nx.DiGraph([(1, 0)])),
    "graphs with names": (nx.Graph([("a", "b")]), nx.Graph([("a", "c")])),
    "graphs with classes": (labelled("a"), labelled("b")),
    "graphs with loops": (nx.Graph([(0, 0), (0, 1)]), nx.Graph([(0, 1), (1, 1)])),
    "graphs with weights": (nx.Graph([(0, 1, {"weight": 1.0})]), nx.Graph([(0, 1, {"weight": 2.0})])),
    "multigraphs": (nx.MultiGraph([(0, 1), (0, 1)]), nx.MultiGraph([(0, 1)])),
    "arrays": (np.arange(2000), np.concatenate([np.arange(1000), [7], np.arange(1001, 2000)])),
    "transposed arrays": (np.arange(100).reshape(10, 10), np.arange(100).reshape(10, 10).T),
    "rounded tensors": (torch.tensor([1.00000001], dtype=torch.float64), torch.tensor([1.00000002], dtype=torch.float64)),
    "shapes": (torch.zeros(100, 2), torch.zeros(2, 100)),
    "bfloat16": (torch.ones(99, dtype=torch.bfloat16), torch.ones(99, dtype=torch.bfloat16) * 2),
    "tuples": ((1, np.zeros(2000)), (1, np.ones(2000))),
    "nested": ((1, [np.zeros(2000)]), (1, [np.ones(2000)])),
    "arrays of nodes": (nx.Graph(), nx.Graph()),
    "mappings": ({"a": torch.zeros(2000)}, {"a": torch.ones(2000)}),
    "dataclasses": (Holder("a", torch.zeros(2000)), Holder("a", torch.ones(2000))),
    "batches": (graph(0), graph(20)),
    "torch_geometric": (Data(x=torch.zeros(3, 1)), Data(x=torch.ones(3, 1))),
}


for _number, _graph in enumerate(DIFFERENT["arrays of nodes"]):
    _graph.add_node(0, x=np.full(2000, _number))


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_samples_have_different_texts(name: str) -> None:
    first, second = DIFFERENT[name]
    assert sample_text(first) != sample_text(second)
    assert sample_text(first) == sample_text(first)
    assert "0x" not in sample_text(first)


@pytest.mark.parametrize("sample", ["CCO", "", 3, 2.5, (1, 2), ("a", None), True, {"a": 1}])
def test_a_sample_that_its_text_says_keeps_it(sample: Any) -> None:
    assert sample_text(sample) == str(sample)


def test_the_order_of_edges_makes_no_difference() -> None:
    assert sample_text(nx.Graph([("a", "b"), ("b", "c")])) == sample_text(nx.Graph({"a": ["b"], "b": [], "c": ["b"]}))


def test_equal_plain_graphs_have_the_text_of_their_line() -> None:
    assert sample_text(nx.path_graph(3)) == "Bg"
    assert sample_text(nx.DiGraph([(0, 1), (1, 2)])) == "&BP?"


def test_a_ledger_scores_each_graph_and_counts_it() -> None:
    asked: list[Any] = []

    def edges(samples: Any, **columns: Any) -> list[float]:
        asked.extend(samples)
        return [float(max(dict(g.degree).values())) for g in samples]

    ledger = Ledger()
    found = ledger.score([edges], [nx.path_graph(16), nx.star_graph(15), nx.path_graph(16)])
    assert found[:, 0].tolist() == [2.0, 15.0, 2.0]
    assert ledger.calls == 2


class Tour:
    def __init__(self, order: list[int]) -> None:
        self.order = order


@pytest.mark.parametrize("sample", [Tour([1]), [Tour([1])], {"a": Tour([1])}, object(), np.array([Tour([1])], dtype=object)])
def test_a_place_in_memory_is_no_text(sample: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"have no text of their own .*, expected a method __str__ that tells them apart",
    ):
        sample_text(sample)
    with pytest.raises(ValueError, match="have no text of their own"):
        Ledger().score([lambda samples, **_: [1.0]], [sample])


def test_an_array_of_objects_names_their_type() -> None:
    with pytest.raises(ValueError, match=r"^samples: objects of type Tour have no text of their own"):
        sample_text(np.array([Tour([1])], dtype=object))


def test_molecules_of_rdkit_are_told_apart_with_their_positions() -> None:
    one, same, other = (Chem.MolFromSmiles(text) for text in ("OCC", "CCO", "CCN"))
    assert sample_text(one) == sample_text(same) == "CCO"
    assert sample_text(other) != sample_text(one)
    placed = Chem.Mol(one)
    placed.AddConformer(Chem.Conformer(3))
    assert sample_text(placed) != sample_text(one)
    assert sample_text([one]) == "list(0=CCO)"


def test_the_order_of_a_set_makes_no_difference() -> None:
    assert sample_text(frozenset("cab")) == sample_text({"b", "c", "a"}).replace("set", "frozenset") == "frozenset('a', 'b', 'c')"


CUT = {
    "sets of texts": ({"a, b"}, {"a", "b"}),
    "numbers and texts in sets": ({1}, {"1"}),
    "texts with a name within": ({"s": "x, t=y", "v": np.zeros(2)}, {"s": "x", "t": "y", "v": np.zeros(2)}),
    "numbers and texts in lists": ([1, np.zeros(2)], ["1", np.zeros(2)]),
    "names that are numbers": ({1: np.zeros(2)}, {"1": np.zeros(2)}),
    "names that are constants": ({None: np.zeros(2)}, {"None": np.zeros(2)}),
    "names of equal text": ({1: np.zeros(2), "1": 0}, {1: np.ones(2), "1": 0}),
    "names with a part within": ({"s=1, t": np.zeros(2)}, {"s": 1, "t": np.zeros(2)}),
    "arrays of objects": (np.array(["a, b", "c"], object), np.array(["a", "b, c"], object)),
}


@pytest.mark.parametrize("case", CUT)
def test_texts_within_samples_end_where_they_end(case: str) -> None:
    assert sample_text(CUT[case][0]) != sample_text(CUT[case][1])


def test_the_order_of_edges_at_one_node_makes_no_difference() -> None:
    for kind in (nx.Graph, nx.DiGraph):
        first, second = kind(), kind()
        for graph, ends in ((first, "bc"), (second, "cb")):
            graph.add_nodes_from("abc")
            graph.add_edges_from(("a", end) for end in ends)
        assert sample_text(first) == sample_text(second)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.coo_array, sparse.csc_array])
def test_sparse_arrays_are_told_apart_by_all_of_their_elements(kind: Any) -> None:
    """Their own text leaves out the middle of more than 50, and in a list all of them."""
    full = np.arange(10_000).reshape(100, 100) % 7
    other = full.copy()
    other[50, 50] += 1
    assert sample_text(kind(full)) != sample_text(kind(other))
    assert sample_text([kind(full)]) != sample_text([kind(other)])
    assert sample_text(kind(full)) == sample_text(kind(full.copy()))
    backwards = sparse.coo_array(([2.0, 1.0], ([1, 0], [0, 1])), (2, 2))
    assert sample_text(backwards) == sample_text(sparse.coo_array(np.array([[0.0, 1.0], [2.0, 0.0]])))


def test_tensors_may_be_sparse_or_have_gradients() -> None:
    values = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    assert sample_text(values.to_sparse()) == sample_text(values.clone().requires_grad_()) == sample_text(values)
