"""Fixed sites of other types than their annotations, which tests with checked annotations cannot give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from discrete_grpo.core.rollout import Context
from discrete_grpo.policies.conditions import FixedSites
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
