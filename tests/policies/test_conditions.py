"""Fixed sites of other types than their annotations, which tests with checked annotations cannot give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from discrete_grpo.core.rollout import Context
from discrete_grpo.domains.tokenizer import Property
from discrete_grpo.policies.conditions import FixedSites, fixed_states, property_table
from tests.toys import tiny_policy


@pytest.mark.parametrize(
    ("nodes", "edges", "said"),
    [
        ({0.5: 1}, {}, r"^node in fixed: 0\.5, expected a whole number, at least 0"),
        ([0, 1], {}, "^nodes of fixed: a list, expected a mapping to classes"),
        ({}, {(0, "b"): 1}, r"^fixed: edge \(0, 'b'\), expected 0 <= i < j"),
        ({}, {0: 1}, "^fixed: edge 0, expected 0 <= i < j"),
    ],
)
def test_fixed_sites_of_another_form_are_named(nodes: Any, edges: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FixedSites(nodes, edges)


def test_a_class_that_is_not_whole_is_named() -> None:
    fixed: Any = FixedSites({0: 1.5})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"^node class in fixed: 1\.5, expected a whole number"):
        tiny_policy().sample([Context(0, {"fixed": fixed})], generator=torch.Generator().manual_seed(0))


def test_fixed_edges_are_fixed_both_ways_and_other_rows_are_free() -> None:
    contexts = [Context(0), Context(1, {"fixed": FixedSites({1: 2}, {(0, 2): 1})})]
    found = fixed_states(contexts, torch.tensor([2, 3]), 3, 3, 2)
    assert found is not None
    assert found.nodes.tolist() == [[-1] * 3, [-1, 2, -1]]
    assert found.edges.tolist() == [[[-1] * 3] * 3, [[-1, -1, 1], [-1] * 3, [1, -1, -1]]]
    assert found.mask.tolist() == [[True, True, False], [True] * 3]


@pytest.mark.parametrize(
    ("closed", "said"),
    [
        ([0], "^closed of fixed: a list, expected a tuple of nodes"),
        ((0.5,), r"^closed node in fixed: 0\.5, expected a whole number, at least 0"),
        ((-1,), "^closed node in fixed: -1, expected at least 0"),
    ],
)
def test_closed_nodes_of_another_form_are_named(closed: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FixedSites({0: 1}, closed=closed)


def test_closed_nodes_have_the_edges_given_and_no_others_up_to_the_size_of_their_graph() -> None:
    fixed = FixedSites({1: 2}, {(0, 1): 1}, closed=(0, 1))
    found = fixed_states([Context(0, {"fixed": fixed}), Context(1, {"fixed": fixed})], torch.tensor([3, 4]), 4, 3, 2)
    assert found is not None
    pairs = {(i, j): found.edges[:, i, j].tolist() for j in range(4) for i in range(j)}
    assert pairs == {(0, 1): [1, 1], (0, 2): [0, 0], (1, 2): [0, 0], (0, 3): [-1, 0], (1, 3): [-1, 0], (2, 3): [-1, -1]}
    assert torch.equal(found.edges, found.edges.mT)
    assert fixed.min_nodes == 2
    assert FixedSites({}, closed=(3,)).min_nodes == 4


@pytest.mark.parametrize("value", [True, "1.5", float("nan"), float("inf")])
def test_a_property_that_is_no_finite_number_is_named(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^p: .*, expected a finite number"):
        property_table([Context(0, {"p": value})], [Property("p")], torch.float64)
