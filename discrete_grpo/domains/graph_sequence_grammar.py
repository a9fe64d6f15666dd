"""The rules of :mod:`~discrete_grpo.domains.graph_sequences` as a grammar: every text that it allows is a graph.

Which node a token names does not matter for whether it is legal. What matters is the length of the queue, which of its places the
head has an edge to, and how long the queues are that were cut off: no node but the head ever has an edge to another node of its
queue that was written before the head's turn, since queues share no two nodes. So the state is a few counters per text.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from discrete_grpo.core.checks import check_range
from discrete_grpo.domains.graph_sequences import vocabulary
from discrete_grpo.domains.tokenizer import EOS, NUM_SPECIAL

__all__ = ["GraphSequenceGrammar"]

State = dict[str, Tensor]
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

    def __init__(self, max_nodes: int, node_classes: int = 1, edge_classes: int = 1) -> None:
        super().__init__()
        check_range("max_nodes", max_nodes, least=1)
        self.max_nodes, self.node_classes, self.edge_classes = max_nodes, node_classes, edge_classes
        tokens = ["", "", "", "", *vocabulary(max_nodes, node_classes, edge_classes)]
        self.num_tokens = len(tokens)
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

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this grammar again."""
        return {"max_nodes": self.max_nodes, "node_classes": self.node_classes, "edge_classes": self.edge_classes}

    def start(self, rows: int, device: torch.device) -> State:
        """No node yet.

        The state of a text: ``count``, nodes; ``size``, nodes of the queue, its head included; ``joined`` [N], places of the queue
        that the head has an edge to; ``waiting`` [3N] and ``depth``, sizes and number of the queues that were cut off; ``due``,
        the classes that have to be named next.
        """
        counters = {name: torch.zeros(rows, dtype=torch.long, device=device) for name in ("count", "size", "depth", "due")}
        joined = torch.zeros(rows, self.max_nodes, dtype=torch.bool, device=device)
        waiting = torch.zeros(rows, 3 * self.max_nodes, dtype=torch.int16, device=device)
        return counters | {"joined": joined, "waiting": waiting}

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
        count, size, depth, due, joined, waiting = (state[name] for name in ("count", "size", "depth", "due", "joined", "waiting"))
        new, star, done = self.new[tokens], self.star[tokens], self.done[tokens]
        front, back, cuts = self.front[tokens], self.back[tokens], self.cuts[tokens]
        edge, grows = (front >= 0) | (back >= 0), (new > 0) & ~done
        place = torch.where(grows, size, torch.where(front >= 0, front, size - 1 - back))
        at = torch.arange(joined.shape[1], device=joined.device) == place.unsqueeze(1)
        joined = (joined | (at & (edge | grows).unsqueeze(1))) & ~(star | done).unsqueeze(1)
        top = torch.arange(waiting.shape[1], device=waiting.device)
        pushed = (top == depth.unsqueeze(1)) & cuts.unsqueeze(1)
        waiting = torch.where(pushed, (size - place).unsqueeze(1).to(waiting.dtype), waiting)
        size = torch.where(cuts, place + 1, size + new + star.long() - done.long())
        back_again = done & (size <= 0) & (depth > 0)
        size = torch.where(back_again, (waiting * (top == depth.unsqueeze(1) - 1)).sum(1), size.clamp_min(0))
        named = EDGE * (self.edge_classes > 1), NODE * (self.node_classes > 1)
        due = due - EDGE * self.edge_class[tokens].long() - NODE * self.node_class[tokens].long()
        due = due + named[0] * (edge | grows).long() + named[1] * (star | grows).long()
        found = {"count": count + new + star.long(), "size": size, "depth": depth + cuts.long() - back_again.long(), "due": due}
        return found | {"joined": joined, "waiting": waiting}

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


def _place(token: str, kinds: str, default: int) -> int:
    """The number of a sign for an edge to an open node, ``default`` where it has none; -1 for other tokens."""
    found = re.fullmatch(rf"(\d*){kinds}", token)
    return -1 if found is None else int(found[1] or default)
