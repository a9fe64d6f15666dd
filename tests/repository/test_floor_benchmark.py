"""The plain form that ``benchmarks/floor.py`` compares the network with."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks import floor
from discrete_grpo.models.graph_transformer import SMALL, GraphTransformer, GraphTransformerConfig


def test_the_plain_form_computes_the_same_by_plain_operations_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = SMALL | {"layers": 2}
    network = GraphTransformer(GraphTransformerConfig(node_states=9, edge_states=4, node_classes=9, edge_classes=4, **sizes))
    inputs = floor.batch(5, 2)
    fused = network(*inputs)
    called: list[str] = []

    def counted(name: str, function: Any) -> Any:
        def counting(*arguments: Any) -> Any:
            called.append(name)
            return function(*arguments)

        return counting

    plain = {name: counted(name, function) for name, function in floor.PLAIN.items()}
    monkeypatch.setattr(floor, "PLAIN", plain)
    monkeypatch.setattr(floor, "_film_norm", counted("film_norm", floor._film_norm))
    with floor.plainly():
        for ours, theirs in zip(fused, network(*inputs), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert set(called) == {*plain, "film_norm"}  # each of them is reached
    again = len(called)
    network(*inputs)
    assert len(called) == again  # and none of them outside
