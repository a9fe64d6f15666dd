"""Graphs as token sequences: every graph has a text, every text is one graph or none, and the work is linear."""

from __future__ import annotations

import copy
import itertools
import re
import time
from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest

from discrete_grpo.datasets.synthetic_graphs import planar, stochastic_block_model, tree
from discrete_grpo.domains.graph6 import from_graph6, graph6
from discrete_grpo.domains.graph_sequences import PATTERN, SIGN, GraphSequences, _Reader, listed, most_tokens, text_of, vocabulary
from discrete_grpo.domains.named_graphs import Labels, named_graph, to_line

GENERATORS: dict[str, Callable[[np.random.Generator], nx.Graph]] = {
    "planar": lambda rng: planar(40, rng),
    "tree": lambda rng: tree(40, rng),
    "blocks": stochastic_block_model,
    "parts": lambda rng: nx.gnp_random_graph(25, 0.05, rng),
    "dense": lambda rng: nx.gnp_random_graph(9, 0.9, rng),
}
LABELS = Labels(("blue", "red", "green"), ("no edge", "thin", "thick"))


def naive(text: str) -> nx.Graph | None:
    """The rules of the module's first lines, one by one, for plain graphs: the queues as lists, the first of them at work."""
    signs = re.findall(r"\d*[<>]|\d+[()]|[*+.]", text)
    if "".join(signs) != text or not signs:
        return None
    graph, queues = nx.Graph(), [list[int]()]
    for sign in signs:
        queue = queues[0]
        if (sign == "*") == bool(queue):
            return None
        if sign in "*+":
            queue.append(len(graph))
            graph.add_node(len(graph))
        if sign == ".":
            queue.pop(0)
            queues = queues if queue or len(queues) == 1 else queues[1:]
        if sign not in "*.":
            at = place(sign, len(queue))
            if at is None or graph.has_edge(queue[0], queue[at]):
                return None
            graph.add_edge(queue[0], queue[at])
            if sign[-1] in "()":
                queues = [queue[: at + 1], queue[at:], *queues[1:]]
    return graph


def place(sign: str, size: int) -> int | None:
    """The place in a queue that an edge goes to, None where there is none."""
    if sign in ("0>", "1>", "0<", "0)"):
        return None
    near = {"+": size - 1, ">": 1, "<": size - 1}
    at = near[sign] if sign in near else int(sign[:-1]) if sign[-1] in ">)" else size - 1 - int(sign[:-1])
    return at if 1 <= at < size else None


@pytest.mark.parametrize("name", GENERATORS)
def test_a_graph_is_read_back_from_any_of_its_texts(name: str) -> None:
    rng, decoder = np.random.default_rng(0), GraphSequences()
    for _ in range(4):
        graph = GENERATORS[name](rng)
        ready, words = listed(graph), vocabulary(len(graph))
        texts = [text_of(ready), text_of(ready, rng), text_of(ready, rng, 5)]
        assert len(set(texts)) == 3
        for text, line in zip(texts, decoder(texts), strict=True):
            tokens = re.findall(PATTERN, text)
            assert "".join(tokens) == text
            assert set(tokens) <= set(words)
            assert len(tokens) <= len(re.findall(SIGN, text)) <= most_tokens(graph)
            assert line is not None
            found = from_graph6(line)
            assert found.number_of_edges() == graph.number_of_edges()
            assert nx.vf2pp_is_isomorphic(found, graph)
            own = naive(text)
            assert own is not None
            assert nx.utils.graphs_equal(own, found)


def test_every_small_graph_has_a_text() -> None:
    decoder = GraphSequences()
    for graph in nx.graph_atlas_g()[1:210]:  # all graphs of 1 to 6 nodes
        (line,) = decoder(decoder.encode([graph6(graph)]))
        assert line is not None
        assert nx.is_isomorphic(from_graph6(line), graph)


SIGNS = ("*", "+", ">", "<", ".", "2>", "1<", "2)", "1(")


@pytest.mark.parametrize("start", ["", "*+++.", "*+++++.", "*+++++.2)+"])
def test_every_text_is_the_graph_of_the_rules_or_none(start: str) -> None:
    decoder, valid = GraphSequences(), 0
    for length in range(5):
        for signs in itertools.product(SIGNS, repeat=length):
            text = start + "".join(signs)
            wanted, (line,) = naive(text), decoder([text])
            assert (line is None) == (wanted is None), text
            if line is not None and wanted is not None:
                assert nx.utils.graphs_equal(from_graph6(line), wanted)
                valid += 1
    assert valid > (100 if start else 5)


BROKEN = (
    "",
    "+",
    ".",
    ">",
    "**",
    "*>",
    "*<",
    "*+>>",
    "*+><",
    "*+<.<",
    "*+2>",
    "*+1<",
    "*+1>",
    "*+0)",
    "*+1)",
    "*++.1(",
    "*++.0(<",
    "*+0<",
    "*..",
    "*+...",
    "*+x",
    "*1n",
    "*+1e",
)


@pytest.mark.parametrize("text", BROKEN)
def test_a_text_that_breaks_the_rules_is_no_graph(text: str) -> None:
    assert GraphSequences()([text]) == [None]


def distant(graph: nx.Graph, rng: np.random.Generator, candidates: int) -> int:
    """Edges to open nodes other than the next and the newest."""
    return sum(sign[0].isdigit() for sign in re.findall(SIGN, text_of(listed(graph), rng, candidates)))


def test_neighbours_of_a_triangulation_are_near_in_the_text() -> None:
    """Few edges go elsewhere than to the next or the newest open node; in a random graph of as many edges most do."""
    rng = np.random.default_rng(0)

    graphs = [planar(64, rng) for _ in range(8)]
    assert np.mean([distant(graph, rng, 8) for graph in graphs]) < 20
    assert np.mean([distant(nx.gnm_random_graph(64, graph.number_of_edges(), seed=1), rng, 8) for graph in graphs]) > 60
    assert distant(tree(64, rng), rng, 1) == 0


def test_more_candidates_leave_fewer_distant_edges() -> None:
    rng, graph = np.random.default_rng(0), planar(64, np.random.default_rng(1))
    one, best = (sum(distant(graph, rng, candidates) for _ in range(8)) for candidates in (1, 8))
    assert best < one


def test_a_head_with_its_neighbours_in_the_queue_is_one_token() -> None:
    text = text_of(listed(planar(64, np.random.default_rng(0))), np.random.default_rng(0), 8)
    assert len(re.findall(PATTERN, text)) < 120 < len(re.findall(SIGN, text))
    assert re.findall(PATTERN, "*" + "+" * 10 + ">.1<.<2>>.") == ["*", "+", "+", "++++++++>.", "1<", ".", "<", "2>", ">."]


def test_without_places_a_text_is_of_a_planar_graph() -> None:
    """Random signs, those left out that the rules do not allow."""
    rng, decoder = np.random.default_rng(0), GraphSequences()
    signs = ("+", ">", "<", ".", ".", "2)", "3)", "1(", "2(")
    found = 0
    for _ in range(120):
        reader, text = _Reader(1, 1), "*++++"
        assert all(map(reader.read, text))
        for sign in (signs[k] for k in rng.integers(len(signs), size=60)):
            kept = copy.deepcopy(reader)
            if reader.read(sign):
                text += sign
            else:
                reader = kept
        (line,) = decoder([text])
        assert line is not None
        graph = from_graph6(line)
        assert nx.check_planarity(graph)[0], text
        found += graph.number_of_edges() > len(graph) + 3
    assert found > 10


def test_every_planar_graph_is_written_without_places() -> None:
    rng, decoder = np.random.default_rng(0), GraphSequences()
    for _ in range(60):
        graph = planar(20, rng)
        edges = list(graph.edges)
        graph.remove_edges_from([edges[k] for k in rng.permutation(len(edges))[: rng.integers(len(edges))]])
        text = text_of(listed(graph), rng)
        assert not re.search(r"\d[<>]", text)
        (line,) = decoder([text])
        assert line is not None
        assert nx.vf2pp_is_isomorphic(from_graph6(line), graph)


# -- classes


def coloured(rng: np.random.Generator) -> nx.Graph:
    graph = nx.gnp_random_graph(12, 0.2, rng)
    nx.set_node_attributes(graph, {v: LABELS.nodes[rng.integers(3)] for v in graph}, "label")
    nx.set_edge_attributes(graph, {e: LABELS.edges[1 + rng.integers(2)] for e in graph.edges}, "label")
    return graph


def test_classes_of_nodes_and_edges_are_read_back() -> None:
    rng, decoder = np.random.default_rng(0), GraphSequences(LABELS)
    words = vocabulary(12, 3, 2)
    for _ in range(6):
        graph = coloured(rng)
        for text in (text_of(listed(graph, LABELS), rng, 2), *decoder.encode([to_line(graph)])):
            tokens = re.findall(PATTERN, text)
            assert set(tokens) <= set(words)
            assert len(tokens) <= most_tokens(graph, LABELS)
            (line,) = decoder([text])
            assert line is not None
            match = nx.algorithms.isomorphism.categorical_node_match("label", None)
            edges = nx.algorithms.isomorphism.categorical_edge_match("label", None)
            assert nx.is_isomorphic(named_graph(line), graph, node_match=match, edge_match=edges)


UNNAMED = ("*", "*3n", "*1e", "*1n+", "*1n+1e", "*1n+1n1e", "*1n+0e1n", "*1n+3e1n", "*1n1n", "*1n+1e1n+1e1n.>")


@pytest.mark.parametrize("text", UNNAMED)
def test_a_class_that_is_missing_or_unknown_is_no_graph(text: str) -> None:
    assert GraphSequences(LABELS)([text]) == [None]


# -- cost and errors


def not_planar(n: int) -> nx.Graph:
    return nx.disjoint_union(nx.path_graph(n), nx.complete_graph(5))


@pytest.mark.parametrize("shape", [nx.path_graph, nx.star_graph, nx.wheel_graph, not_planar])
def test_the_work_is_linear_in_edges(shape: Callable[[int], nx.Graph]) -> None:
    """Four times the nodes and edges take about four times the time, where a matrix of pairs would take sixteen times."""
    rng, decoder = np.random.default_rng(0), GraphSequences()

    def seconds(n: int) -> float:
        ready, best = listed(shape(n)), float("inf")
        for _ in range(3):
            start = time.process_time()
            text_of(ready, rng)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(4_000) / seconds(1_000) < 10
    assert decoder([text_of(listed(shape(300)), rng)])[0] is not None


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (nx.Graph(), "graph: 0 nodes, expected at least one"),
        (nx.DiGraph([(0, 1)]), "expected a simple graph"),
        (nx.Graph([(0, 0)]), "expected a simple graph"),
        (nx.MultiGraph([(0, 1), (0, 1)]), "expected a simple graph"),
    ],
)
def test_graphs_that_have_no_text_are_refused(graph: nx.Graph, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        listed(graph)


def test_arguments_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="max_nodes: 0"):
        vocabulary(0)
    with pytest.raises(ValueError, match="candidates: 0"):
        text_of(listed(nx.path_graph(2)), np.random.default_rng(0), 0)
    for sample in (None, 3, "no graph!"):
        with pytest.raises(ValueError, match=r"^samples: "):
            GraphSequences().encode([sample])
    with pytest.raises(ValueError, match="node class 'pink'"):
        GraphSequences(LABELS).encode(["A_ nodes=pink,red edges=thin"])
