"""Own graphs with classes: every format gives the same batch, and what cannot be read is refused in one line."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data

from discrete_grpo.datasets.graph_files import read_graph_objects, to_graphml, to_node_link
from discrete_grpo.datasets.own_digraphs import own_digraphs
from discrete_grpo.datasets.own_graphs import OwnGraphs, is_own, labelled_splits, own_graphs
from discrete_grpo.datasets.values import file_of_values
from discrete_grpo.domains.named_graphs import Labels, batch_to_lines, lines_to_batch
from tests.labelled_sets import COLOURS, KINDS, as_data, coloured, relabelled, write_all

GRAPHS = coloured()
NAMED = ("graphml", "json", "jsonl", "gml", "g6", "npz")
TWICE = b'{"nodes": [{"id": 1}, {"id": 2}], "links": [{"source": 1, "target": 2}, {"source": 2, "target": 1}]}'


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("sets"), GRAPHS)


def same(found: OwnGraphs, wanted: OwnGraphs) -> bool:
    a, b = found.graphs, wanted.graphs
    return all(map(torch.equal, (a.nodes, a.pairs, a.sizes), (b.nodes, b.pairs, b.sizes)))


def test_classes_are_those_of_the_graphs() -> None:
    found = own_graphs(GRAPHS)
    assert found.labels == Labels(COLOURS, ("no edge", *KINDS), "colour", "kind")
    batch = found.batch(slice(0, None))
    for k, graph in enumerate(GRAPHS):
        n = len(graph)
        assert [COLOURS[c] for c in batch.nodes[k, :n].tolist()] == [c for _, c in graph.nodes(data="colour")]
        matrix = [
            [("", *KINDS).index(graph.edges[i, j]["kind"]) if graph.has_edge(i, j) else 0 for j in range(n)] for i in range(n)
        ]
        assert batch.edges[k, :n, :n].tolist() == matrix


@pytest.mark.parametrize("form", [*NAMED, "integers", "one-hot", "dataset"])
def test_every_format_gives_the_same_batch(files: dict[str, Path], form: str) -> None:
    wanted, found = own_graphs(GRAPHS), own_graphs(files[form])
    assert same(found, wanted)
    assert form not in NAMED or (found.labels.nodes, found.labels.edges) == (wanted.labels.nodes, wanted.labels.edges)


def test_lists_of_data_and_gzipped_files_give_the_same_batch(files: dict[str, Path], tmp_path: Path) -> None:
    wanted = own_graphs(GRAPHS)
    for one_hot in (False, True):
        assert same(own_graphs(as_data(g, one_hot) for g in GRAPHS), wanted)
    for form in ("graphml", "json", "g6"):
        packed = tmp_path / f"set.{form}.gz"
        packed.write_bytes(gzip.compress(files[form].read_bytes()))
        assert same(own_graphs(packed), wanted)


def test_names_of_nodes_in_gml_are_no_classes(tmp_path: Path) -> None:
    for k in range(3):
        nx.write_gml(nx.path_graph(3 + k), tmp_path / f"{k}.gml")
    assert own_graphs(tmp_path).labels.nodes == own_graphs([nx.path_graph(3)]).labels.nodes
    text = 'graph [ node [ id 0 label "C" ] node [ id 1 label "O" ] node [ id 2 label "C" ] edge [ source 0 target 1 ] ]'
    (tmp_path / "0.gml").write_text(text)
    assert own_graphs(tmp_path / "0.gml").labels.nodes == ("C", "O")


def test_an_edge_may_stand_twice_in_an_edge_list_with_one_class(tmp_path: Path) -> None:
    (tmp_path / "set.edgelist").write_text("0 1 red\n1 0 red \n1 2 blue\n")
    assert own_graphs(tmp_path / "set.edgelist").graphs.pairs.tolist() == [2, 0, 1]
    arcs = tmp_path / "set.arcs"
    arcs.write_text("0 1 red\n1 0 blue\n")
    assert own_digraphs(arcs).labels.edges == ("no edge", "blue", "red")


def test_edge_lists_hold_classes_of_edges(tmp_path: Path) -> None:
    blocks = ["# a path\n0 1 thin\n1 2 thick\n", "a b thin\n"]
    (tmp_path / "set.edgelist").write_text("\n".join(blocks))
    found = own_graphs(tmp_path / "set.edgelist")
    assert found.labels.edges == ("no edge", "thick", "thin")
    assert found.sizes.tolist() == [3, 2]
    assert found.graphs.pairs.tolist() == [2, 0, 1, 2]
    nx.write_edgelist(nx.relabel_nodes(GRAPHS[0], str), tmp_path / "own.edges")
    assert set(own_graphs(tmp_path / "own.edges").labels.edges[1:]) == {k for *_, k in GRAPHS[0].edges(data="kind")}


def test_lines_and_batches_are_inverse() -> None:
    found = own_graphs(GRAPHS)
    batch = found.batch(slice(0, None))
    lines = batch_to_lines(batch, found.labels)
    again = lines_to_batch(lines, found.labels)
    assert torch.equal(again.nodes, batch.nodes)
    assert torch.equal(again.edges, batch.edges)
    assert all(line.count(" ") == 2 for line in lines), "a blank of a name is escaped"


def test_plain_graphs_stay_plain(tmp_path: Path) -> None:
    nx.write_graph6(nx.path_graph(3), tmp_path / "set.g6", header=False)
    found = own_graphs(tmp_path / "set.g6")
    assert found.labels.plain
    assert "label" not in found.networkx([0])[0].nodes[0]
    assert not own_graphs(GRAPHS).labels.plain


def test_splits_are_disjoint_and_always_the_same(files: dict[str, Path]) -> None:
    found = own_graphs(GRAPHS)
    train, test = found.split(0.25)
    assert len(test) == 6
    assert sorted(train + test) == list(range(24))
    assert found.split(0.25) == (train, test)
    assert own_graphs(files["npz"]).split(0.25) == (list(range(22)), [23])
    assert own_graphs(GRAPHS[:1]).split(0.5) == ([0], [0])
    whole = labelled_splits(found)
    assert len(whole.train) == len(whole.test) == 24


# -- refused


def directed() -> nx.DiGraph:
    return nx.DiGraph(GRAPHS[0])


def changed(change: Callable[[nx.Graph], Any]) -> list[nx.Graph]:
    graph = GRAPHS[1].copy()
    change(graph)
    return [GRAPHS[0], graph]


ONE_WAY = Data(x=torch.zeros(2, 1, dtype=torch.long), edge_index=torch.tensor([[0], [1]]), edge_attr=torch.ones(1))
LOOP = Data(x=torch.zeros(2, 1, dtype=torch.long), edge_index=torch.tensor([[0, 1, 1], [1, 0, 1]]))
TWO = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), edge_attr=torch.tensor([1, 2]), num_nodes=2)
REAL = Data(x=torch.rand(2, 3), edge_index=torch.tensor([[0, 1], [1, 0]]))
NEGATIVE = Data(x=torch.tensor([[2, -1], [0, 1]]), edge_index=torch.tensor([[0, 1], [1, 0]]))  # rows of sum 1
TWO_HOT = Data(x=torch.tensor([[1, 1], [0, 1]]), edge_index=torch.tensor([[0, 1], [1, 0]]))
BOTH = as_data(GRAPHS[0], False)
LOOPLESS = Data(x=torch.zeros(2, 1, dtype=torch.long), edge_index=torch.tensor([[0, 1], [1, 0]]))
ONE = Data(x=torch.zeros(1, 1, dtype=torch.long), edge_index=torch.zeros(2, 0, dtype=torch.long))


@pytest.mark.parametrize(
    ("graphs", "options", "said"),
    [
        ([directed()], {}, "data: graph 0 is directed, expected undirected graphs"),
        ([GRAPHS[0], directed()], {}, "data: graph 1 is directed and graph 0 is not, expected directed graphs alone or undirected"),
        ([ONE_WAY], {}, "data: graph 0 is directed, expected undirected graphs: each edge in both directions"),
        ([BOTH, ONE_WAY], {}, "data: graph 1 is directed and graph 0 is not"),
        (changed(lambda g: g.add_edge(0, 0, kind="thin")), {}, "data: graph 1, node 0 has a self-loop, expected none"),
        ([LOOP], {}, "data: graph 0, node 1 has a self-loop, expected none"),
        ([TWO], {}, "data: graph 0 has an edge with another class in the other direction"),
        ([nx.MultiGraph(GRAPHS[0])], {}, "data: graph 0 is a multigraph"),
        (GRAPHS, {"node_attribute": "color"}, "node_attribute: 'color', expected one of colour"),
        (GRAPHS, {"edge_attribute": "weight"}, "edge_attribute: 'weight', expected one of kind"),
        ([BOTH, TWO], {}, "data: graph 1, node 0 has no attribute 'x', expected one at each"),
        ([LOOPLESS, BOTH, ONE], {}, r"data: graph 0, edge \(0, 1\) has no attribute 'edge_attr', expected one at each"),
        ([BOTH], {"node_attribute": "z"}, "node_attribute: 'z', expected one of edge_attr, edge_index, x"),
        (changed(lambda g: g.nodes[0].pop("colour")), {}, "data: graph 1, node 0 has no attribute 'colour'"),
        (
            changed(lambda g: g.nodes[0].update(size=1)),
            {},
            "node_attribute: None, expected one of colour, size: the graphs have sev",
        ),
        (changed(lambda g: g.nodes[0].update(colour=0.5)), {}, "data: graph 1, node 0 has 0.5 as its colour, expected a class"),
        ([REAL], {}, r"data: graph 0: x is torch.float32 of shape \[2, 3\], expected whole numbers \[2\] or one-hot rows"),
        ([NEGATIVE], {}, r"data: graph 0: x is torch.int64 of shape \[2, 2\], expected whole numbers \[2\] or one-hot rows"),
        ([TWO_HOT], {}, r"data: graph 0: x is torch.int64 of shape \[2, 2\], expected whole numbers \[2\] or one-hot rows"),
        (
            changed(lambda g: g.nodes[1].update(colour="purple")),
            {"labels": Labels(COLOURS, ("no edge", *KINDS))},
            "data: graph 1: node class 'purple', expected one of blue, deep red, green",
        ),
        (
            changed(lambda g: g.add_edge(0, 1, kind="thinn")),
            {"labels": Labels(COLOURS, ("no edge", *KINDS))},
            "data: graph 1: edge class 'thinn', expected one of thick, thin; did you mean 'thin'?",
        ),
        ([GRAPHS[0], BOTH], {}, "data: graph 1 is a Data, expected networkx graphs or PyG Data, not both"),
        ([], {}, "data: the list holds no graphs"),
        (GRAPHS, {"max_nodes": 2}, "data: nodes of graph 0: "),
        (changed(lambda g: nx.set_edge_attributes(g, "no edge", "kind")), {}, "data: an edge is of class 'no edge'"),
    ],
)
def test_graphs_that_are_refused(graphs: list[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        own_graphs(graphs, **options)
    assert "\n" not in str(raised.value)


def test_an_empty_file_is_named_as_it_was_given(tmp_path: Path) -> None:
    (file := tmp_path / "empty.g6").write_text("")
    with pytest.raises(ValueError, match=r"^data: '.*empty\.g6' holds no graphs, expected at least one$"):
        own_graphs(file)


def test_at_most_256_classes() -> None:
    def many(count: int) -> nx.Graph:
        graph = nx.empty_graph(count)
        nx.set_node_attributes(graph, {k: k for k in range(count)}, "kind")
        return graph

    assert own_graphs([many(256)]).labels.nodes[-2:] == ("254", "255")
    with pytest.raises(ValueError, match="data: classes of nodes by 'kind': 257, expected at most 256"):
        own_graphs([many(257)])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("set.dot", b"graph {}", "expected a folder or a file ending in .graphml, .gml"),
        ("set.graphml", b"<graphml", "cannot be read as graphml"),
        ("set.gml", b"graph [", "cannot be read as gml"),
        ("set.json", b'{"nodes": []}', "no node-link data, expected a mapping with nodes and edges"),
        ("set.json", b"[1", "cannot be read as json"),
        (
            "set.json",
            TWICE,
            "an edge stands twice, expected at most one between two nodes",
        ),
        (
            "set.json",
            b'{"multigraph": false, ' + TWICE[1:],
            "an edge stands twice, expected at most one between two nodes",
        ),
        ("set.edgelist", b"0 1 red\n1 0 blue\n", "'1 0 blue', expected 'red' as on an earlier line of the same edge"),
        ("set.json", b'{"nodes": [{"id": 0, "c": 1}, {"id": 0, "c": 2}], "edges": []}', "a node stands twice, 0, expected each"),
        ("set.graphml", to_graphml(GRAPHS[:2]).replace(b'<node id="1"', b'<node id="0"'), "a node stands twice, '0', expected"),
        ("set.edgelist", b"a b # c\n", "'a b # c', expected two nodes, and a class or nothing"),
        ("set.edgelist", b"0\n", "expected two nodes"),
        ("set.edgelist", b"0 1 1.0\n1 2 0.25\n", "'1 2 0.25' has 0.25 as its class, expected a whole number or text"),
        ("set.edgelist", b"a b\na b c d\n", r"data: '.*set.edgelist' cannot be read as edgelist: 'a b c d', expected two nodes"),
        ("set.edgelist", b"a b c\n# d\na d\n", "'a d', expected two nodes and a class, as on other lines of the graph"),
        ("set.edgelist", b"a b c\na d {'label': 'c'}\n", "expected two nodes, and a class or nothing"),
        ("set.g6", b"Bg\nB\n", "line 2: graph: 'B' is no graph6 line"),
        ("set.pt", pickle.dumps(GRAPHS[:1]), "holds objects that are not read"),
        ("set.pt", b"nothing", "holds objects that are not read"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said) as raised:
        own_graphs(tmp_path / name)
    assert "\n" not in str(raised.value)


def test_a_pickle_runs_no_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "touched",))

    torch.save([Trap()], tmp_path / "set.pt")
    with pytest.raises(ValueError, match="holds objects that are not read"):
        own_graphs(tmp_path / "set.pt")
    assert not (tmp_path / "touched").exists()


def test_other_files_that_are_missing_or_too_large(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data: nowhere.graphml does not exist"):
        own_graphs("nowhere.graphml")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no file ending in"):
        own_graphs(tmp_path / "empty")
    for form in ("json", "integers"):
        with pytest.raises(ValueError, match=r"max_bytes: \d+ bytes in '.*', expected at most 100"):
            own_graphs(files[form], max_bytes=100)
    (tmp_path / "lines.g6").write_bytes(lines := b"Bw\n" * 10)
    (tmp_path / "edges.edgelist").write_bytes(edges := b"0 1\n\n" * 10)
    (tmp_path / "rows.jsonl").write_bytes(rows := b'{"multigraph": false, "nodes": [{"id": 0}], "edges": []}\n' * 10)
    for name, content in (("lines.g6", lines), ("edges.edgelist", edges), ("rows.jsonl", rows)):
        assert len(own_graphs(tmp_path / name, max_bytes=len(content))) == 10
        size = len(content)
        with pytest.raises(ValueError, match=rf"max_bytes: {size} bytes in '.*{name}', expected at most {size - 1}$"):
            own_graphs(tmp_path / name, max_bytes=size - 1)
    (tmp_path / "packed.graphml.gz").write_bytes(gzip.compress(to_graphml(GRAPHS[:2])))
    with pytest.raises(ValueError, match="has more than 500 bytes"):
        own_graphs(tmp_path / "packed.graphml.gz", max_bytes=500)


@pytest.mark.parametrize("source", [GRAPHS[0], 7])
def test_one_graph_in_place_of_a_list_is_named(source: Any) -> None:
    with pytest.raises(ValueError, match=f"^data: one {type(source).__name__}, expected a file, a folder, or a list of graphs$"):
        own_graphs(source)


def test_written_files_hold_each_graph_once() -> None:
    few, many = (to_graphml(GRAPHS[:k]) for k in (2, 24))
    assert len(many) < 13 * len(few)
    assert len(to_node_link(GRAPHS[:1])) < 1000
    assert relabelled(GRAPHS[0]).nodes[0]["label"] == GRAPHS[0].nodes[0]["colour"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"nodes": [1, 2], "edges": [[1, 2]]}', "cannot be read as json: 'int' object"),
        ("[" * 100_000, "cannot be read as json: "),
        (
            '{"nodes": [{"id": 0}, {"id": 1}], "edges": [{"source": 0, "target": 5}]}',
            "an edge to node 5, expected one of the nodes listed",
        ),
    ],
)
def test_malformed_json_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
        own_graphs(path)
    assert "\n" not in str(caught.value)


def test_comments_alone_are_no_graph(tmp_path: Path) -> None:
    path = tmp_path / "g.edgelist"
    path.write_text("# exported by a tool\n\n0 1\n1 2\n\n# the second\n1 2\n2 3\n")
    assert own_graphs(path).graphs.sizes.tolist() == [3, 3]


def test_a_number_sign_within_a_line_is_part_of_a_class(tmp_path: Path) -> None:
    path = tmp_path / "g.edgelist"
    path.write_text("# colours\na b #ff0000\n  # more\nb c #00ff00\n")
    assert own_graphs(path).labels.edges == ("no edge", "#00ff00", "#ff0000")


def test_edges_need_no_attribute_where_there_are_none() -> None:
    assert own_graphs([BOTH, ONE]).sizes.tolist() == [len(GRAPHS[0]), 1]
    assert own_graphs([LOOPLESS, ONE]).labels.edges == ("no edge", "1")


@pytest.mark.parametrize(("part", "name"), [("node", "id"), ("edge", "source"), ("edge", "target")])
def test_names_of_node_link_data_are_no_attributes(part: str, name: str) -> None:
    graph = nx.path_graph(2)
    (nx.set_node_attributes if part == "node" else nx.set_edge_attributes)(graph, "red", name)
    with pytest.raises(ValueError, match=f"^{part}_attribute: '{name}', expected another name: ") as caught:
        file_of_values("graphs", [graph])
    assert "\n" not in str(caught.value)


def test_node_link_data_of_other_programs_need_not_say_that_edges_are_single(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    path.write_text('{"nodes": [{"id": "a"}, {"id": "b"}, {"id": "c"}], "links": [{"source": "a", "target": "b"}]}')
    assert [nx.to_dict_of_lists(nx.convert_node_labels_to_integers(graph)) for graph in read_graph_objects(path)] == [
        {0: [1], 1: [0], 2: []}
    ]


def test_whole_numbers_with_a_point_are_the_classes_of_other_formats(tmp_path: Path) -> None:
    weighted = nx.Graph([("a", "b", {"weight": 1.0}), ("b", "c", {"weight": 10.0}), ("c", "d", {"weight": 2.0})])
    nx.write_graphml(weighted, tmp_path / "g.graphml")
    nx.write_weighted_edgelist(weighted, tmp_path / "g.edgelist")
    (tmp_path / "mixed.edgelist").write_text("a b 1\nb c 10.0\nb c 10\nc d 2.\n")
    for name in ("g.graphml", "g.edgelist", "mixed.edgelist"):
        assert own_graphs(tmp_path / name).labels.edges == ("no edge", "1", "2", "10")


def test_data_without_edges_may_have_attributes_of_no_classes() -> None:
    empty = {"edge_index": torch.zeros(2, 0, dtype=torch.long), "edge_attr": torch.zeros(0, 0)}
    pair = Data(x=torch.tensor([5, 5]), edge_index=torch.tensor([[0, 1], [1, 0]]), edge_attr=torch.tensor([1, 1]))
    assert len(own_graphs([Data(x=torch.tensor([5]), **empty), pair])) == 2


def test_the_share_of_graphs_that_samples_are_compared_with_is_the_one_that_is_asked_for() -> None:
    own = own_graphs([nx.path_graph(n) for n in range(2, 22)])
    for share in (0.1, 0.25, 0.5):
        found = labelled_splits(own, share)
        assert (len(found.train), len(found.test)) == (20 - round(20 * share), round(20 * share))


def test_networkx_gives_back_the_names_of_classes(tmp_path: Path) -> None:
    found = own_graphs(GRAPHS).networkx(range(len(GRAPHS)))
    for one, given in zip(found, map(relabelled, GRAPHS), strict=True):
        assert dict(one.nodes(data="label")) == dict(given.nodes(data="label"))
        assert {frozenset(e[:2]): e[2] for e in one.edges(data="label")} == {
            frozenset(e[:2]): e[2] for e in given.edges(data="label")
        }
    assert [is_own(tmp_path), is_own(tmp_path / "set.gml"), is_own(tmp_path / "set.npz")] == [True, True, False]
