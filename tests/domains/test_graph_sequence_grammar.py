"""The grammar of graphs as sequences against the reader of such texts, which builds the graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import networkx as nx
import numpy as np
import pytest
import torch

from discrete_grpo.datasets.synthetic_graphs import planar, tree
from discrete_grpo.domains.graph_sequence_grammar import GraphSequenceGrammar
from discrete_grpo.domains.graph_sequences import PATTERN, SIGN, _Reader, listed, text_of, vocabulary
from discrete_grpo.domains.named_graphs import Labels
from discrete_grpo.domains.tokenizer import EOS, NUM_SPECIAL, PAD, Tokenizer
from discrete_grpo.policies.grammar import STATES, along, legal_along

CPU = torch.device("cpu")


def copy_of(reader: _Reader) -> _Reader:
    found = _Reader(reader.node_classes, reader.edge_classes)
    found.nodes, found.edges, found.queue = [*reader.nodes], dict(reader.edges), [*reader.queue]
    found.head, found.waiting, found.due, found.last = reader.head, [[*w] for w in reader.waiting], reader.due, reader.last
    return found


def after(reader: _Reader, token: str) -> _Reader | None:
    """The reader after a token; None if it breaks the rules."""
    found = copy_of(reader)
    return found if all(map(found.read, re.findall(SIGN, token))) else None


def expected(reader: _Reader, tokens: tuple[str, ...], max_nodes: int) -> tuple[dict[str, _Reader], bool]:
    """The legal tokens, each with the reader after it, and whether the text may end."""
    found = {token: then for token in tokens if (then := after(reader, token)) and len(then.nodes) <= max_nodes}
    return found, bool(reader.nodes) and not reader.due


def check(grammar: GraphSequenceGrammar, state: dict[str, torch.Tensor], reader: _Reader) -> dict[str, _Reader]:
    tokens = vocabulary(grammar.max_nodes, grammar.node_classes, grammar.edge_classes)
    legal, may_end = expected(reader, tokens, grammar.max_nodes)
    row = grammar.legal(state)[0]
    assert {tokens[k] for k in row[NUM_SPECIAL:].nonzero().flatten().tolist()} == set(legal)
    assert row[:NUM_SPECIAL].tolist() == [k == EOS and may_end for k in range(NUM_SPECIAL)]
    features = grammar.features(state)[0].tolist()
    assert features == described(reader)
    assert all(0 <= value < size for value, size in zip(features, grammar.feature_sizes, strict=True))
    return legal


def described(reader: _Reader) -> list[int]:
    """The features of a state, from the graph that the reader has built."""
    queue = reader.queue[reader.head :]
    degrees = Counter(end for pair in reader.edges for end in pair)

    def degree(place: int) -> int:
        return min(degrees[queue[place]], 15) + 1 if 0 <= place < len(queue) else 0

    def edge(place: int) -> bool:
        return 0 < place < len(queue) and (min(queue[0], queue[place]), max(queue[0], queue[place])) in reader.edges

    last = len(queue) - 1
    flags = edge(1) + 2 * edge(last) + 4 * ("e" in reader.due) + 8 * ("n" in reader.due)
    places = (0, 1, 2, last, last - 1)
    return [len(queue), len(reader.nodes), min(len(reader.waiting), 16), *map(degree, places), flags]


SMALL = [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (3, 2, 1), (3, 1, 2), (3, 2, 3)]


@pytest.mark.parametrize("sizes", SMALL, ids=str)
def test_it_allows_what_the_reader_reads_in_every_short_text(sizes: tuple[int, int, int]) -> None:
    grammar = GraphSequenceGrammar(*sizes)
    ids = {token: k + NUM_SPECIAL for k, token in enumerate(vocabulary(*sizes))}

    def walk(state: dict[str, torch.Tensor], reader: _Reader, left: int) -> int:
        legal = check(grammar, state, reader)
        if not left:
            return 1
        return 1 + sum(walk(grammar.advance(state, torch.tensor([ids[t]])), then, left - 1) for t, then in legal.items())

    assert walk(grammar.start(1, CPU), _Reader(*sizes[1:]), 4) >= 3


def random_texts(grammar: GraphSequenceGrammar, cut_weight: float, steps: int) -> Iterator[int]:
    """Random legal texts, compared with the reader at each token; gives the most queues that waited in each."""
    tokens = vocabulary(grammar.max_nodes, grammar.node_classes, grammar.edge_classes)
    for seed in range(12):
        rng, state, reader, most = np.random.default_rng(seed), grammar.start(1, CPU), _Reader(*_classes(grammar)), 0
        for _ in range(steps):
            legal = check(grammar, state, reader)
            names = sorted(legal)
            weights = np.array([cut_weight if name[-1] in "()" else 1.0 for name in names])
            if not names:
                break  # all nodes are made and done
            name = names[rng.choice(len(names), p=weights / weights.sum())]
            state, reader = grammar.advance(state, torch.tensor([tokens.index(name) + NUM_SPECIAL])), legal[name]
            most = max(most, len(reader.waiting))
        yield most


def _classes(grammar: GraphSequenceGrammar) -> tuple[int, int]:
    return grammar.node_classes, grammar.edge_classes


@pytest.mark.parametrize("sizes", [(12, 1, 1), (9, 2, 1), (9, 1, 3), (9, 3, 2)], ids=str)
def test_it_allows_what_the_reader_reads_in_long_random_texts(sizes: tuple[int, int, int]) -> None:
    assert max(random_texts(GraphSequenceGrammar(*sizes), 3.0, 40)) > 2


def test_numbers_above_those_of_the_features_count_as_the_largest() -> None:
    grammar, rng = GraphSequenceGrammar(40), np.random.default_rng(0)
    tokens = vocabulary(40)
    rows = [re.findall(PATTERN, text_of(listed(graph), rng)) for graph in (nx.star_graph(20), nx.wheel_graph(20))]
    rows.append(["*", *["+"] * 39, ".", *["1(", "."] * 17])
    for row in rows:
        state, reader = grammar.start(1, CPU), _Reader(1, 1)
        for token in row:
            reader = check(grammar, state, reader)[token]
            state = grammar.advance(state, torch.tensor([tokens.index(token) + NUM_SPECIAL]))
        check(grammar, state, reader)
    assert len(reader.waiting) == 17
    large, state = GraphSequenceGrammar(300), GraphSequenceGrammar(300).start(1, CPU)
    for token in ["*", *["+"] * 299]:
        state = large.advance(state, torch.tensor([vocabulary(300).index(token) + NUM_SPECIAL]))
    assert large.features(state)[0, :2].tolist() == [255, 255]
    assert large.feature_sizes[:2] == (256, 256)


@pytest.mark.parametrize("planarity", [True, False])
def test_texts_of_graphs_are_legal(planarity: bool) -> None:
    rng = np.random.default_rng(0)
    graphs = (
        [planar(n, rng) for n in (4, 12, 40)]
        + [tree(n, rng) for n in (2, 3, 30)]
        + [nx.wheel_graph(12), nx.empty_graph(1), nx.empty_graph(3)]
    )
    graphs = graphs if planarity else [nx.gnp_random_graph(n, p, seed=n) for n, p in ((5, 0.9), (14, 0.5), (30, 0.3), (20, 0.05))]
    tokenizer, grammar = Tokenizer(vocabulary(40), PATTERN), GraphSequenceGrammar(40)
    for graph in graphs:
        for _ in range(4):
            row = torch.tensor([[*tokenizer.encode(text_of(listed(graph), rng)), EOS, PAD, PAD]])
            legal = legal_along(grammar, row)[0].gather(1, row.T).flatten()
            assert legal[:-2].all(), (graph, tokenizer.decode(row[0].tolist()))


def test_texts_with_classes_are_legal() -> None:
    labels, rng = Labels(("a", "b"), ("no edge", "x", "y", "z")), np.random.default_rng(1)
    graph = planar(14, rng)
    nx.set_node_attributes(graph, {v: "ab"[v % 2] for v in graph}, "label")
    nx.set_edge_attributes(graph, {(i, j): "xyz"[(i + j) % 3] for i, j in graph.edges}, "label")
    tokenizer = Tokenizer(vocabulary(14, 2, 3), PATTERN)
    row = torch.tensor([[*tokenizer.encode(text_of(listed(graph, labels), rng)), EOS]])
    assert legal_along(GraphSequenceGrammar(14, 2, 3), row)[0].gather(1, row.T).all()


def step_by_step(grammar: GraphSequenceGrammar, tokens: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    state, found = grammar.start(len(tokens), CPU), []
    for column in tokens.unbind(1):
        found.append(state)
        state = grammar.advance(state, column)
    return found


@pytest.mark.parametrize("sizes", [(12, 1, 1), (9, 2, 1), (9, 1, 3), (9, 3, 2)], ids=str)
def test_the_states_of_whole_texts_are_those_of_single_steps(sizes: tuple[int, int, int]) -> None:
    grammar, generator = GraphSequenceGrammar(*sizes), torch.Generator().manual_seed(0)
    weights = torch.ones(grammar.num_tokens).index_fill(0, grammar.cuts.nonzero().flatten(), 3.0)
    weights[EOS] = 0.05
    state, columns = grammar.start(300, CPU), []
    for _ in range(40):  # once a text has ended, special tokens follow, and sometimes what begins it again
        columns.append(torch.multinomial(weights * grammar.legal(state), 1, generator=generator).squeeze(1))
        state = grammar.advance(state, columns[-1])
    tokens = torch.stack(columns, 1)
    states = grammar.states_along(tokens)
    for step, expected in enumerate(step_by_step(grammar, tokens)):
        found = {name: entry.unflatten(0, tokens.shape)[:, step] for name, entry in states.items()}
        assert found.keys() == expected.keys()
        for name in found.keys() - {"line", "waiting"}:
            assert torch.equal(found[name], expected[name]), name
        depth, end = expected["depth"].unsqueeze(1), (expected["base"] + expected["size"]).unsqueeze(1)
        ids = torch.arange(5 * grammar.max_nodes)  # only these are read: behind the end stand other nodes
        assert torch.equal(found["line"].where(ids < end, -1), expected["line"].where(ids < end, -1))
        ids = ids[: 3 * grammar.max_nodes]
        assert torch.equal(found["waiting"].where(ids < depth, -1), expected["waiting"].where(ids < depth, -1))
        assert torch.equal(grammar.features(found), grammar.features(expected))
    assert int(states["depth"].max()) > 2
    assert int(states["size"].max()) >= 9


def test_an_illegal_text_has_its_states_up_to_there() -> None:
    tokenizer, grammar = Tokenizer(vocabulary(12), PATTERN), GraphSequenceGrammar(12)
    texts = ["*+5>", "*+3<", "*+5)..", "+", ">.", "*++***", "*" + "+" * 12, "*+6)6)", "*+....", "*+1)1)"]
    for text in texts:
        row = torch.tensor([[*tokenizer.encode(text), EOS]])
        expected = torch.cat([grammar.legal(state) for state in step_by_step(grammar, row)])
        legal, features = (table[0] for table in along(grammar, row, grammar.legal, grammar.features))
        assert ((features >= 0) & (features < torch.tensor(grammar.feature_sizes))).all(), text  # that a network can read
        read = expected.gather(1, row.T).flatten().long().cumprod(0).sum() + 1  # the legal tokens and the one that is not
        assert read <= row.shape[1], text
        assert torch.equal(legal[:read], expected[:read]), text


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 1, 1), (4, 2, 3)], ids=str)
def test_a_network_can_read_the_features_of_any_tokens(sizes: tuple[int, int, int]) -> None:
    grammar, generator = GraphSequenceGrammar(*sizes), torch.Generator().manual_seed(0)
    tokens = torch.randint(grammar.num_tokens, (200, 30), generator=generator)
    tokens[:, 0] = NUM_SPECIAL  # the first node
    (features,) = along(grammar, tokens, grammar.features)
    assert ((features >= 0) & (features < torch.tensor(grammar.feature_sizes))).all()


def test_no_texts_have_no_states() -> None:
    grammar = GraphSequenceGrammar(3)
    found = along(grammar, torch.empty(0, 4, dtype=torch.long), grammar.legal, grammar.features)
    assert [tuple(entry.shape) for entry in found] == [(0, 4, grammar.num_tokens), (0, 4, 9)]


def test_texts_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, grammar = Tokenizer(vocabulary(8), PATTERN), GraphSequenceGrammar(8)
    table = torch.tensor([[*tokenizer.encode("*++.>."), EOS, PAD], [*tokenizer.encode("*.*."), EOS]] * 3)
    whole = along(grammar, table, grammar.legal, grammar.features)
    monkeypatch.setitem(STATES, "cpu", 11)
    for found, expected in zip(along(grammar, table, grammar.legal, grammar.features), whole, strict=True):
        assert torch.equal(found, expected)
    assert [tuple(entry.shape) for entry in whole] == [(6, 5, grammar.num_tokens), (6, 5, 9)]


def test_rows_are_independent_and_special_tokens_change_nothing() -> None:
    tokenizer, grammar = Tokenizer(vocabulary(8), PATTERN), GraphSequenceGrammar(8)
    texts = ["*++.>.", "*+++.2).>.", "*.*."]
    rows = [[*tokenizer.encode(text), EOS] for text in texts]
    table = torch.tensor([row + [PAD] * (max(map(len, rows)) - len(row)) for row in rows])
    together = legal_along(grammar, table)
    for k, row in enumerate(rows):
        assert torch.equal(together[k, : len(row)], legal_along(grammar, torch.tensor([row]))[0])
        assert torch.equal(together[k, len(row) :], together[k, len(row) - 1].expand(table.shape[1] - len(row), -1))


def test_sizes_out_of_range() -> None:
    with pytest.raises(ValueError, match="max_nodes: 0, expected at least 1"):
        GraphSequenceGrammar(0)
    with pytest.raises(ValueError, match="edge_classes: 0"):
        GraphSequenceGrammar(3, 1, 0)
