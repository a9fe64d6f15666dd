"""Own directed graphs with classes: every format gives the same batch, and what cannot be read is refused in one line."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data

from discrete_grpo.datasets.own_digraphs import OwnDigraphs, holds_directed, own_digraphs, read_own
from discrete_grpo.datasets.own_graphs import OwnGraphs, labelled_splits, own_graphs
from discrete_grpo.domains.named_digraphs import EDGE, NODE, batch_to_lines
from discrete_grpo.domains.named_graphs import Labels, to_line
from tests.directed_sets import OPS, PORTS, as_data, dags, renamed, write_all

GRAPHS = dags()
LABELS = Labels(OPS, ("no edge", *PORTS), "op", "port")
NAMED = ("graphml", "json", "jsonl", "gml", "g6", "d6", "txt")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("sets"), GRAPHS)


def same(found: OwnDigraphs, wanted: OwnDigraphs) -> bool:
    return all(map(torch.equal, (found.nodes, found.arcs, found.sizes), (wanted.nodes, wanted.arcs, wanted.sizes)))


def test_classes_and_directions_are_those_of_the_graphs() -> None:
    found = own_digraphs(GRAPHS)
    assert found.labels == LABELS
    batch = found.batch(slice(0, None))
    for k, graph in enumerate(GRAPHS):
        n = len(graph)
        assert [OPS[c] for c in batch.nodes[NODE][k, :n].tolist()] == [c for _, c in graph.nodes(data="op")]
        for i, j in itertools.product(range(7), repeat=2):
            wanted = LABELS.edges.index(graph.edges[i, j]["port"]) if graph.has_edge(i, j) else 0
            assert batch.edges[EDGE][k, i, j] == wanted
    assert batch_to_lines(batch, found.labels) == [to_line(renamed(g)) for g in GRAPHS]
    assert [to_line(g) for g in found.networkx([3, 1])] == [to_line(renamed(GRAPHS[k])) for k in (3, 1)]


@pytest.mark.parametrize("form", [*NAMED, "pt"])
def test_every_format_gives_the_same_batch(files: dict[str, Path], form: str) -> None:
    wanted, found = own_digraphs(GRAPHS), read_own(files[form])
    assert isinstance(found, OwnDigraphs)
    assert same(found, wanted)
    assert form not in NAMED or (found.labels.nodes, found.labels.edges) == (OPS, ("no edge", *PORTS))
    assert holds_directed(files[form])


def test_lists_and_gzipped_files_give_the_same_batch(files: dict[str, Path], tmp_path: Path) -> None:
    wanted = own_digraphs(GRAPHS)
    assert same(own_digraphs([as_data(g) for g in GRAPHS]), wanted)
    for form in ("graphml", "json", "g6"):
        packed = tmp_path / f"set.{form}.gz"
        packed.write_bytes(gzip.compress(files[form].read_bytes()))
        assert same(own_digraphs(packed), wanted)


def test_arc_lists_hold_classes_of_arcs(tmp_path: Path) -> None:
    (tmp_path / "set.arcs").write_text("# a path back\n1 0 thin\n2 1 thick\n\na b thin\nb a thick\n")
    found = own_digraphs(tmp_path / "set.arcs")
    assert found.labels.edges == ("no edge", "thick", "thin")
    assert [sorted(g.edges(data="label")) for g in found.networkx([0, 1])] == [
        [(0, 1, "thin"), (2, 0, "thick")],
        [(0, 1, "thin"), (1, 0, "thick")],
    ]
    (tmp_path / "set.edges").write_text("1 0 thin\n")
    assert isinstance(read_own(tmp_path / "set.edges"), OwnGraphs)


def test_rows_are_those_of_the_whole_set() -> None:
    found = own_digraphs(GRAPHS)
    rows = [5, 2, 9]
    part, whole = found.index(rows), found.batch(rows)
    again = part.batch(slice(0, None))
    assert torch.equal(part.sizes, found.sizes[rows])
    assert torch.equal(again.edges[EDGE], whole.edges[EDGE])
    assert torch.equal(again.nodes[NODE], whole.nodes[NODE])
    train, test = found.split(0.25)
    assert sorted(train + test) == list(range(24))
    assert (train, test) == own_graphs([g.to_undirected() for g in GRAPHS]).split(0.25)
    splits = labelled_splits(found, 0.25)
    assert [len(splits.train), len(splits.test)] == [18, 6]
    with pytest.raises(ValueError, match="graphs: 0 nodes and 0 ordered pairs, expected 2 and 2 by their sizes"):
        OwnDigraphs(torch.zeros(0).byte(), torch.zeros(0).byte(), torch.tensor([2]), LABELS)


def test_plain_graphs_stay_plain() -> None:
    found = own_digraphs([nx.DiGraph([(0, 1), (2, 1)])])
    assert found.labels.plain
    assert batch_to_lines(found.batch([0]), found.labels) == ["&BOO"]
    assert dict(found.networkx([0])[0].nodes[0]) == {}


def test_data_without_arcs_goes_with_either_direction() -> None:
    empty = Data(
        x=torch.zeros(2, 1, dtype=torch.long), edge_index=torch.zeros(2, 0, dtype=torch.long), edge_attr=torch.zeros(0).long()
    )
    assert isinstance(read_own([as_data(GRAPHS[0]), empty]), OwnDigraphs)
    assert isinstance(read_own([empty]), OwnGraphs)


# -- refused


def changed(**values: Any) -> list[nx.DiGraph]:
    graph = GRAPHS[1].copy()
    graph.add_edge(*values["arc"], port=values.get("port", "left"))
    return [GRAPHS[0], graph]


UNDIRECTED = nx.Graph(GRAPHS[0])
BOTH = Data(x=torch.zeros(2, 1).long(), edge_index=torch.tensor([[0, 1], [1, 0]]), edge_attr=torch.ones(2).long())
TWICE = Data(x=torch.zeros(2, 1).long(), edge_index=torch.tensor([[0, 0], [1, 1]]))


@pytest.mark.parametrize(
    ("graphs", "options", "said"),
    [
        ([UNDIRECTED], {}, "data: graph 0 is undirected, expected directed graphs"),
        ([UNDIRECTED, GRAPHS[1]], {}, "data: graph 1 is directed and graph 0 is not, expected directed graphs alone or undirected"),
        ([GRAPHS[1], UNDIRECTED], {}, "data: graph 0 is directed and graph 1 is not"),
        ([as_data(GRAPHS[0]), BOTH], {}, "data: graph 0 is directed and graph 1 is not"),
        ([TWICE], {}, "data: graph 0 has an edge twice, expected each once$"),
        (changed(arc=(0, 0)), {}, "data: graph 1, node 0 has a self-loop, expected none"),
        ([nx.MultiDiGraph(GRAPHS[0])], {}, "data: graph 0 is a multigraph"),
        (GRAPHS, {"node_attribute": "colour"}, "node_attribute: 'colour', expected one of op"),
        (changed(arc=(0, 1), port="top"), {"labels": LABELS}, "data: graph 1: edge class 'top', expected one of left, right side"),
        (GRAPHS, {"max_nodes": 3}, "data: nodes of graph 0: "),
    ],
)
def test_graphs_that_are_refused(graphs: list[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        own_digraphs(graphs, **options)
    assert "\n" not in str(raised.value)


def test_undirected_reading_refuses_directed_graphs() -> None:
    with pytest.raises(ValueError, match=r"data: graph 0 is directed, expected undirected graphs$"):
        own_graphs(GRAPHS)
    with pytest.raises(ValueError, match="data: graph 0 is directed, expected undirected graphs: each edge in both directions"):
        own_graphs([as_data(GRAPHS[0])])


def test_files_that_cannot_be_read_hold_nothing_directed(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[1")
    assert not holds_directed(tmp_path / "bad.json")
    assert not holds_directed(tmp_path / "nowhere.graphml")
    with pytest.raises(ValueError, match=r"'.*bad\.json' cannot be read as json") as raised:
        read_own(tmp_path / "bad.json")
    assert "\n" not in str(raised.value)
