"""The kit and directed graphs: it relabels them by itself, and sees arcs that are turned between drawing and scoring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor

from discrete_grpo.core.categorical import Sites
from discrete_grpo.core.rollout import Context
from discrete_grpo.datasets.own_digraphs import own_digraphs
from discrete_grpo.domains.fields import FieldBatch, FieldLogits, matrix_of, pairs_of
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.field_steps import FieldStepper
from discrete_grpo.policies.fields import FieldPolicy
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.digraphs import digraph_policy
from discrete_grpo.testing import Report, check_policy, relabelling
from tests.policies.test_fields import permuted
from tests.policies.test_fields import policy as toy

TINY = NetworkSizes(layers=1, heads=2, width=8, edge_width=8, global_width=8)


def made(kind: type[FieldPolicy] = FieldPolicy) -> FieldPolicy:
    """A policy of directed graphs of two to four nodes whose logits of arcs depend on their direction."""
    graphs = [nx.DiGraph([(0, 1)]), nx.DiGraph([(0, 1), (2, 1)]), nx.DiGraph([(0, 1), (1, 2), (0, 3)])]
    for graph in graphs:
        nx.set_node_attributes(graph, {v: "ab"[v % 2] for v in graph}, "op")
    policy = digraph_policy(own_digraphs(graphs), TINY, DiffusionOptions(num_steps=3))
    built = kind(**policy.init_args(), decode=policy.decode, encode=policy.encode)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in built.parameters():
            value.add_(0.3 * torch.randn(value.shape, generator=generator))
    return built


def judged(policy: FieldPolicy, **changes: Any) -> Report:
    contexts = [Context(k // 2, {"num_nodes": [4, 2, 3][k // 2]}) for k in range(6)]
    given: dict[str, Any] = {"samples": 600, "trusted": ("discrete_grpo", "tests"), "skip": ["learning"]}
    return check_policy(policy, contexts, **given | changes)


class ScoredBackwards(FieldPolicy):
    """Scores the arc from j to i by the table of that from i to j, and draws as it should."""

    def sites(self, rollout: Any, steps: Tensor | None = None) -> Any:
        nodes, arcs = super().sites(rollout, steps)
        assert isinstance(arcs, Sites)
        return [nodes, replace(arcs, log_probs=arcs.log_probs.unflatten(2, (-1, 2)).flip(3).flatten(2, 3))]


class Numbered(FieldPolicy):
    """Favours arcs from low to high numbers."""

    def transition(self, state: FieldBatch, step: Tensor) -> Any:
        inner, forward = self.network, self.network.forward

        def biased(*given: Any) -> FieldLogits:
            found = forward(*given)
            n = given[-1].shape[1]
            up = torch.ones(n, n).triu(1)[..., None] * torch.tensor([0.0, 1.0])
            return found._replace(edges={name: value + up for name, value in found.edges.items()})

        inner.forward = biased
        try:
            return super().transition(state, step)
        finally:
            del inner.forward


def test_a_policy_of_directed_graphs_passes_and_is_relabelled_by_the_kit() -> None:
    report = judged(made())
    assert report.passed, str(report)
    assert next(row for row in report.rows if row.law == "permutation").note == "nodes relabelled by the kit"


@pytest.mark.parametrize(
    ("kind", "law"),
    [(ScoredBackwards, "stored log-probs"), (Numbered, "permutation")],
)
def test_arcs_that_are_scored_backwards_or_numbered_are_seen(kind: type[FieldPolicy], law: str) -> None:
    assert law in judged(made(kind)).failed


def test_arcs_that_are_drawn_backwards_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every arc is turned once it is drawn, and what is then found is scored."""
    right = FieldStepper._drawn

    def backwards(stepper: FieldStepper, *given: Any) -> FieldBatch:
        drawn = right(stepper, *given)
        return replace(drawn, edges={name: value.transpose(1, 2) for name, value in drawn.edges.items()})

    monkeypatch.setattr(FieldStepper, "_drawn", backwards)
    assert "calibration" in judged(made()).failed


@pytest.mark.parametrize("kind", ["molecule", "directed"])
def test_relabelling_of_fields_is_that_of_the_matrices(kind: str) -> None:
    drawn = toy(kind).sample([Context(k) for k in range(9)], generator=torch.Generator().manual_seed(0))
    assert relabelling.obstacle(drawn) == ""
    moved = relabelling.relabelled(drawn, torch.Generator().manual_seed(1))
    n = drawn.states["node atom"].shape[-1]
    exists = torch.arange(n) < drawn.size[:, None]
    keys = torch.where(exists, torch.rand(9, n, generator=torch.Generator().manual_seed(1)), 2.0 + torch.arange(n))
    for b, order in enumerate(keys.argsort(-1)):
        for name, value in drawn.states.items():
            if name.startswith("edge"):
                directed = name == "edge arrow"
                wanted = matrix_of(value[b], n, directed=directed)[:, order][:, :, order]
                assert torch.equal(moved.states[name][b], pairs_of(wanted, directed=directed))
            else:
                assert torch.equal(moved.states[name][b], value[b][:, order])
    assert drawn.states.keys() == permuted(drawn, torch.Generator().manual_seed(2)).states.keys()
