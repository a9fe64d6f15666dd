"""The rules of :mod:`~discrete_grpo.domains.graph_sequences` as a grammar: every text that it allows is a graph.

Whether a token is legal does not depend on the node that it names, but on the length of the queue, the places of the queue that
the head has an edge to, and the lengths of the queues that were cut off: no node but the head ever has an edge to another node of
its queue that was written before the head's turn, since queues share no two nodes.

As features for a network, the grammar also tracks the nodes of the queues and their degrees, which the text contains only
implicitly. All queues stand one behind the other in one row of nodes, the one that is read last and those that wait below it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from discrete_grpo.core.checks import check_range
from discrete_grpo.domains.graph_sequence_states import Sign, states_along
from discrete_grpo.domains.graph_sequences import vocabulary
from discrete_grpo.domains.tokenizer import EOS, NUM_SPECIAL

__all__ = ["GraphSequenceGrammar"]

State = dict[str, Tensor]
MOST = 16
"""Degrees and numbers of waiting queues are features up to this."""
EDGE, NODE = 1, 2  # what has to be named next: the class of an edge, of a node, or of one and then of the other


class GraphSequenceGrammar(nn.Module):
    """Which tokens may follow the beginning of a graph's text, see :class:`~discrete_grpo.policies.grammar.TokenGrammar`.

    Every text of :func:`~discrete_grpo.domains.graph_sequences.text_of` of a graph of at most ``max_nodes`` nodes is legal.

    Args:
        max_nodes: N, the most nodes of a graph. At most 3N queues wait at a time; a planar graph has fewer edges.
        node_classes: number of classes of nodes.
        edge_classes: number of classes of edges, "no edge" not counted.

    Raises:
        ValueError: for a number below 1.
    """

    star: Tensor
    front: Tensor
    back: Tensor
    cuts: Tensor
    new: Tensor
    newest: Tensor
    after: Tensor
    done: Tensor
    edge_class: Tensor
    node_class: Tensor
    due: Tensor

    def __init__(self, max_nodes: int, node_classes: int = 1, edge_classes: int = 1) -> None:
        super().__init__()
        check_range("max_nodes", max_nodes, least=1)
        self.max_nodes, self.node_classes, self.edge_classes = max_nodes, node_classes, edge_classes
        tokens = ["", "", "", "", *vocabulary(max_nodes, node_classes, edge_classes)]
        self.num_tokens = len(tokens)
        self.feature_sizes = (*[min(max_nodes, 255) + 1] * 2, *[MOST + 1] * 6, 16)
        heads = [re.fullmatch(r"(<?)(\+*)(>?)\.", token) for token in tokens]
        columns = {
            "star": [token == "*" for token in tokens],
            "front": [_place(token, "[>)]", 1) for token in tokens],
            "back": [_place(token, "[<(]", 0) for token in tokens],
            "cuts": [token[-1:] in ("(", ")") for token in tokens],
            "new": [token.count("+") for token in tokens],
            "newest": [head is not None and bool(head[1]) for head in heads],
            "after": [head is not None and bool(head[3]) for head in heads],
            "done": [head is not None for head in heads],
            "edge_class": [token.endswith("e") for token in tokens],
            "node_class": [token.endswith("n") for token in tokens],
        }
        for name, column in columns.items():
            self.register_buffer(name, torch.tensor(column), persistent=False)
        self.signs = [self._sign(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
        self.register_buffer("due", torch.tensor([sign.due for sign in self.signs]), persistent=False)

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this grammar again."""
        return {"max_nodes": self.max_nodes, "node_classes": self.node_classes, "edge_classes": self.edge_classes}

    def start(self, rows: int, device: torch.device) -> State:
        """No node yet.

        The state of a text: ``count``, nodes; ``size``, nodes of the queue, its head included; ``joined`` [N], places of the queue
        that the head has an edge to; ``waiting`` [3N] and ``depth``, sizes and number of the queues that were cut off; ``due``,
        the classes that have to be named next; ``degrees`` [N] of the nodes; ``line`` [5N], the nodes of all queues, those of the
        last from ``base`` on and those of the others below ``floor``.
        """
        n, names = self.max_nodes, ("count", "size", "depth", "due", "base", "floor")
        counters = {name: torch.zeros(rows, dtype=torch.long, device=device) for name in names}
        lengths = {"waiting": 3 * n, "degrees": n, "line": 5 * n}
        tables = {name: torch.zeros(rows, k, dtype=torch.int16, device=device) for name, k in lengths.items()}
        return counters | tables | {"joined": torch.zeros(rows, n, dtype=torch.bool, device=device)}

    def legal(self, state: State) -> Bool[Tensor, "row token"]:
        """Which tokens may come next; EOS where no class is missing and there is a node."""
        count, size, depth, due = (state[name].unsqueeze(1) for name in ("count", "size", "depth", "due"))
        room = count + self.new <= self.max_nodes
        edge = (self.front >= 0) | (self.back >= 0)
        place = torch.where(self.front >= 0, self.front, size - 1 - self.back)
        legal_edge = self._free(state, place, size) & (~self.cuts | (depth < 3 * self.max_nodes))
        legal_head = room & self._legal_head(state, size)
        own = torch.where(edge, legal_edge, torch.where(self.done, legal_head, room & (self.new > 0)))
        found = (due == 0) & torch.where(self.star, (size == 0) & (count < self.max_nodes), (size > 0) & own)
        found = found | (self.edge_class & (due % NODE == EDGE)) | (self.node_class & (due == NODE))
        found[:, :NUM_SPECIAL] = False
        found[:, EOS] = ((due == 0) & (count > 0)).squeeze(1)
        return found

    def advance(self, state: State, tokens: Int[Tensor, " row"]) -> State:
        """The state after one more token of each text."""
        count, size, depth, joined, waiting = (state[name] for name in ("count", "size", "depth", "joined", "waiting"))
        new, star, done = self.new[tokens], self.star[tokens], self.done[tokens]
        front, back, cuts = self.front[tokens], self.back[tokens], self.cuts[tokens]
        edge, grows = (front >= 0) | (back >= 0), (new > 0) & ~done
        place = torch.where(grows, size, torch.where(front >= 0, front, size - 1 - back))
        degrees, line = self._nodes(state, tokens, torch.where(edge, place, -1))
        joined = (joined | (_at(joined, place) & (edge | grows).unsqueeze(1))) & ~(star | done).unsqueeze(1)
        waiting = torch.where(_at(waiting, depth) & cuts.unsqueeze(1), (size - place).unsqueeze(1).to(waiting.dtype), waiting)
        floor = state["floor"] + torch.where(cuts, size - place, 0)
        base = torch.where(cuts, floor, state["base"] + done.long())
        size = torch.where(cuts, place + 1, size + new + star.long() - done.long()).clamp_min(0)
        back_again = done & (size == 0) & (depth > 0)
        size = torch.where(back_again, (waiting * _at(waiting, depth - 1)).sum(1), size)
        floor = floor - torch.where(back_again, size, 0)
        base = torch.where(back_again, floor, base)
        found = {"count": count + new + star.long(), "size": size, "depth": depth + cuts.long() - back_again.long()}
        found |= {"due": state["due"] + self.due[tokens], "base": base, "floor": floor}
        return found | {"joined": joined, "waiting": waiting, "degrees": degrees, "line": line}

    def states_along(self, tokens: Int[Tensor, "row step"]) -> State:
        """The states before each token of given texts, text after text [B T, ...], computed on the host."""
        return states_along(tokens, self.signs, self.max_nodes)

    def features(self, state: State) -> Int[Tensor, "row feature"]:
        """Nine numbers that a network would have to count.

        Nodes of the queue, and of all; waiting queues; degrees so far, plus one, of the head, the two nodes after it, the last one
        and the one before, 0 where there is none; and flags: 1 and 2 for edges of the head to the next and to the last node, 4 and
        8 for the class of an edge and of a node that are due.
        """
        size = state["size"]
        places = torch.stack([torch.zeros_like(size), torch.ones_like(size), torch.full_like(size, 2), size - 1, size - 2], 1)
        nodes = state["line"].gather(1, (state["base"].unsqueeze(1) + places).clamp(0, state["line"].shape[1] - 1))
        degrees = state["degrees"].gather(1, nodes.long()).clamp_max(MOST - 1) + 1
        there = (places >= 0) & (places < size.unsqueeze(1))
        joined = state["joined"].gather(1, places[:, 1:4:2].clamp(0, self.max_nodes - 1))
        flags = joined[:, 0].long() + 2 * joined[:, 1].long() + 4 * state["due"]
        counts = torch.stack([size, state["count"]], 1).clamp_max(255)
        few = state["depth"].clamp_max(MOST).unsqueeze(1)
        return torch.cat([counts, few, torch.where(there, degrees.long(), 0), flags.unsqueeze(1)], 1)

    def _sign(self, entries: Mapping[str, Any]) -> Sign:
        """The effect of a token, from its entries in the tables."""
        edge = entries["front"] >= 0 or entries["back"] >= 0
        grows = entries["new"] > 0 and not entries["done"]
        due = EDGE * (self.edge_classes > 1) * (edge or grows) + NODE * (self.node_classes > 1) * (entries["star"] or grows)
        named = EDGE * entries["edge_class"] + NODE * entries["node_class"]
        return Sign(**{name: entries[name] for name in Sign._fields[:-1]}, due=due - named)

    def _nodes(self, state: State, tokens: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """Degrees and the line of nodes after a token, with an edge to the node at ``place`` of the queue where that is above 0."""
        count, size, base, floor, line = (state[name].unsqueeze(-1) for name in ("count", "size", "base", "floor", "line"))
        line = line.squeeze(-1)
        new, cuts = self.new[tokens].unsqueeze(1), self.cuts[tokens].unsqueeze(1)
        newest, after = self.newest[tokens].unsqueeze(1), self.after[tokens].unsqueeze(1)
        star, at, far = self.star[tokens].unsqueeze(1).long(), torch.arange(line.shape[1], device=line.device), place.unsqueeze(1)
        ends = torch.cat([base, base + far, base + size - 1, base + 1], 1).clamp(0, line.shape[1] - 1)
        head, other, last, following = line.gather(1, ends).split(1, 1)
        ids = torch.arange(state["degrees"].shape[1], device=line.device)
        added = (ids >= count) & (ids < count + new)
        to_open = ((ids == other) & (far > 0)).long() + ((ids == last) & newest) + ((ids == following) & after)
        own = (ids == head) * (new + (far > 0))  # with an edge to an open node it is done, and in no other queue
        degrees = state["degrees"] + (added + to_open + own).to(torch.int16)
        fresh = (at >= base + size) & (at < base + size + new + star)
        line = torch.where(fresh, (count + at - base - size).to(line.dtype), line)
        behind = size - far  # nodes that wait
        moved = torch.where(at < floor + behind, base + far + at - floor, base + at - floor - behind)
        source = torch.where(cuts & (at >= floor), moved, at).clamp(0, line.shape[1] - 1)
        return degrees, line.gather(1, source)

    def _free(self, state: State, place: Tensor, size: Tensor) -> Tensor:
        """Whether there is a node at each place of the queue, to which the head has no edge."""
        place = place.expand(len(size), -1)
        known = state["joined"].gather(1, place.clamp(0, self.max_nodes - 1))
        return (place >= 1) & (place < size) & ~known

    def _legal_head(self, state: State, size: Tensor) -> Tensor:
        """Whether the signs of a token for a whole head follow the rules; those of edges and nodes with classes stand alone."""
        last, following = self._free(state, size - 1, size), self._free(state, torch.ones_like(size), size)
        found = (~self.newest | last) & (~self.after | (following & ~(self.newest & (size == 2))))
        if self.edge_classes > 1:
            return found & ~(self.newest | self.after | (self.new > 0))
        return found & (self.new == 0) if self.node_classes > 1 else found


def _at(table: Tensor, place: Tensor) -> Tensor:
    """Which column of each row of a table is that of its place."""
    return torch.arange(table.shape[1], device=table.device) == place.unsqueeze(1)


def _place(token: str, kinds: str, default: int) -> int:
    """The number of a sign for an edge to an open node, ``default`` where it has none; -1 for other tokens."""
    found = re.fullmatch(rf"(\d*){kinds}", token)
    return -1 if found is None else int(found[1] or default)
