"""Directed graphs with named classes: lines, batches, views, isomorphism, and the tests of their structure, against networkx."""

from __future__ import annotations

import itertools
import random

import networkx as nx
import pytest
import torch

from discrete_grpo.domains.digraph_validity import acyclic_share, has_digraph_shape, is_acyclic, is_weakly_connected, longest_path
from discrete_grpo.domains.isomorphism import GraphSet, isomorphic
from discrete_grpo.domains.named_digraphs import EDGE, NODE, batch_to_lines, lines_to_batch
from discrete_grpo.domains.named_graphs import ABSENT, NO_EDGE, Labels, labelled_form, named_graph, to_line, to_networkx, to_pyg

LABELS = Labels(("a", "b"), (NO_EDGE, "x", "y"), "colour", "kind")
PLAIN = Labels(ABSENT[:1], (NO_EDGE, ABSENT[1]))


def drawn(generator: random.Random, n: int = 5, arcs: int = 7) -> nx.DiGraph:
    graph = nx.gnm_random_graph(n, arcs, seed=generator.randrange(1 << 30), directed=True)
    nx.set_node_attributes(graph, {v: generator.choice("ab") for v in graph}, "label")
    nx.set_edge_attributes(graph, {e: generator.choice("xy") for e in graph.edges}, "label")
    return graph


def moved(graph: nx.DiGraph, generator: random.Random) -> nx.DiGraph:
    """The same graph on other numbers, its nodes in another order."""
    order = generator.sample(list(graph), len(graph))
    found = nx.DiGraph()
    found.add_nodes_from((k, graph.nodes[v]) for k, v in enumerate(order))
    found.add_edges_from((order.index(i), order.index(j), row) for i, j, row in graph.edges(data=True))
    return found


def test_names_stand_in_the_order_of_the_rows() -> None:
    line = "&CO`? nodes=a,b,a,b edges=x,y,x"
    graph = named_graph(line)
    assert isinstance(graph, nx.DiGraph)
    names = [graph.edges[arc]["label"] for arc in sorted(graph.edges)]
    assert names == ["x", "y", "x"]
    assert to_line(graph) == line
    late = nx.DiGraph()  # arcs are added in another order than they are written in
    late.add_nodes_from((v, {"label": "a"}) for v in "pqr")
    late.add_edges_from([("r", "p", {"label": "third"}), ("p", "r", {"label": "second"}), ("p", "q", {"label": "first"})])
    assert to_line(late).endswith("edges=first,second,third")


def test_names_with_any_character_survive_a_line() -> None:
    graph = nx.DiGraph([(0, 1), (2, 1), (1, 0)])
    names = ["a b,c", "=%20 ü\n", "&x"]
    nx.set_node_attributes(graph, dict(zip(graph, names, strict=True)), "label")
    nx.set_edge_attributes(graph, dict(zip(graph.edges, names, strict=True)), "label")
    line = to_line(graph)
    assert len(line.split()) == 3
    found = named_graph(line)
    order = list(graph)
    assert [c for _, c in found.nodes(data="label")] == [c for _, c in graph.nodes(data="label")]
    assert {(order[i], order[j]): c for i, j, c in found.edges(data="label")} == {
        (i, j): c for i, j, c in graph.edges(data="label")
    }


@pytest.mark.parametrize("text", ["&BP? nodes=a,b edges=x,y", "&BP? nodes=a,b,a edges=x", "&BP? nodes=a,b,a", "&B nodes= edges="])
def test_lines_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="graph: "):
        named_graph(text)


def test_batches_and_lines_are_inverse() -> None:
    generator = random.Random(0)
    graphs = [drawn(generator, n) for n in (4, 6, 5)]
    batch = lines_to_batch([to_line(graphs[0]), graphs[1], to_line(graphs[2])], LABELS)
    for b, graph in enumerate(graphs):
        n = len(graph)
        assert batch.sizes[b] == n
        assert [LABELS.nodes[c] for c in batch.nodes[NODE][b, :n].tolist()] == [c for _, c in graph.nodes(data="label")]
        for i, j in itertools.product(range(6), repeat=2):
            wanted = LABELS.edges.index(graph.edges[i, j]["label"]) if graph.has_edge(i, j) else 0
            assert batch.edges[EDGE][b, i, j] == wanted
    assert batch_to_lines(batch, LABELS) == [to_line(g) for g in graphs]
    plain = lines_to_batch(["&BP?", "&DI?AO?"], PLAIN)
    assert batch_to_lines(plain, PLAIN) == ["&BP?", "&DI?AO?"]
    assert plain.edges[EDGE].sum().item() == 6
    for wrong, said in (
        ("&BP? nodes=a,c,a edges=x,y", r"graphs\[1\]: node class 'c', expected one of a, b"),
        ("Bg", "undirected"),
        (None, r"graphs\[1\]: 'None', expected a directed graph or its line"),
    ):
        with pytest.raises(ValueError, match=said):
            lines_to_batch(["&BP? nodes=a,b,a edges=x,y", wrong], LABELS)


def test_isomorphism_keeps_directions_and_classes() -> None:
    generator = random.Random(0)
    graphs = [drawn(generator, 4, 4) for _ in range(40)]
    graphs += [moved(g, generator) for g in graphs[:20]] + [g.reverse() for g in graphs[:10]]
    same = {"node_match": lambda a, b: a["label"] == b["label"], "edge_match": lambda a, b: a["label"] == b["label"]}
    forms = [labelled_form(to_line(g)) for g in graphs]
    answers = [isomorphic(a, b) for a in forms for b in forms]
    assert answers == [nx.is_isomorphic(a, b, **same) for a in graphs for b in graphs]
    assert 70 + 40 <= sum(map(bool, answers)) < 70 * 70


def test_all_digraphs_on_three_nodes_up_to_isomorphism() -> None:
    pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
    every = [nx.DiGraph() for _ in range(64)]
    for k, graph in enumerate(every):
        graph.add_nodes_from(range(3))
        graph.add_edges_from(pair for bit, pair in enumerate(pairs) if k >> bit & 1)
    assert len(GraphSet(map(labelled_form, every))) == 16  # OEIS A000273
    assert sum(map(is_acyclic, every)) == 25  # OEIS A003024
    assert sum(map(is_weakly_connected, every)) == 54  # OEIS A003027
    assert sum(has_digraph_shape(g, "dag") for g in every) == 18  # OEIS A082402


@pytest.mark.parametrize("seed", range(3))
def test_views_keep_each_arc_in_its_direction(seed: int) -> None:
    graph = drawn(random.Random(seed))
    line = to_line(graph)
    found, data = to_networkx(line, LABELS), to_pyg(line, LABELS)
    assert isinstance(found, nx.DiGraph)
    assert dict(found.nodes(data="colour")) == dict(graph.nodes(data="label"))
    wanted = {(i, j): c for i, j, c in graph.edges(data="label")}
    assert {(i, j): c for i, j, c in found.edges(data="kind")} == wanted
    assert data.x.tolist() == [[LABELS.nodes.index(c)] for _, c in graph.nodes(data="label")]
    listed = zip(map(tuple, data.edge_index.T.tolist()), data.edge_attr.tolist(), strict=True)
    assert {pair: LABELS.edges[c] for pair, c in listed} == wanted
    lone = to_pyg("&A? nodes=a,b edges=", LABELS)
    assert (lone.edge_index.tolist(), lone.edge_attr.tolist(), lone.num_nodes) == ([[], []], [], 2)
    assert torch.equal(to_pyg("&BP?").edge_attr, torch.ones(2, dtype=torch.long))


@pytest.mark.parametrize("seed", range(30))
def test_structure_by_enumeration(seed: int) -> None:
    """Simple paths and cycles are listed one by one."""
    generator = random.Random(seed)
    graph = drawn(generator, 5, generator.randint(0, 8))
    cycles = list(nx.simple_cycles(graph))
    on_cycles = {(c[k], c[(k + 1) % len(c)]) for c in cycles for k in range(len(c))}
    line = to_line(graph)
    assert is_acyclic(line) == (not cycles)
    share = sum(arc not in on_cycles for arc in graph.edges) / max(1, graph.number_of_edges())
    assert acyclic_share(line) == pytest.approx(share if graph.number_of_edges() else 1.0)
    walks = (p for n in range(1, 6) for p in itertools.permutations(range(5), n) if all(map(graph.has_edge, p, p[1:])))
    assert longest_path(line) == (None if cycles else max(len(p) - 1 for p in walks))


@pytest.mark.parametrize("sample", [None, "Bg", "no graph", "&?", ""])
def test_what_is_no_directed_graph_has_no_structure(sample: str | None) -> None:
    assert not is_acyclic(sample)
    assert not is_weakly_connected(sample)
    assert (acyclic_share(sample), longest_path(sample)) == (0.0, None)


def test_names_with_any_character_survive_a_batch() -> None:
    labels = Labels(("a b", "c,d"), (NO_EDGE, "e=f", "%20"))
    lines = ["&BP? nodes=a%20b,c%2Cd,a%20b edges=e%3Df,%2520", "&A? nodes=c%2Cd,c%2Cd edges="]
    assert batch_to_lines(lines_to_batch(lines, labels), labels) == lines


def test_a_graph_without_classes_is_none_of_those_with_classes() -> None:
    with pytest.raises(ValueError, match=r"graphs\[0\]: node class 'None', expected one of a, b"):
        lines_to_batch(["&AO"], LABELS)
