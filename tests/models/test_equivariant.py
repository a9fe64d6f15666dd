"""The equivariant transformer: padding, gradients, checkpoints, bad settings and input, and graph policies on it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from discrete_grpo.domains.fields import FieldBatch, FieldLogits
from discrete_grpo.models.equivariant import BASE, SMALL, EquivariantConfig, EquivariantTransformer
from discrete_grpo.runs.serialization import build, describe
from tests.models.equivariant_parts import (
    DTYPES,
    FIELDS,
    SIZES,
    assert_same,
    both_precisions,
    each_kind,
    flat,
    gradients,
    graphs,
    network,
    run,
)


def padded(batch: FieldBatch, extra: int, junk: bool = False) -> FieldBatch:
    """The same graphs with more places, padded places holding junk if asked for."""
    pad = nn.functional.pad
    mask = pad(batch.mask, (0, extra))
    nodes = {name: pad(value, (0, extra)) for name, value in batch.nodes.items()}
    edges = {name: pad(value, (0, extra, 0, extra)) for name, value in batch.edges.items()}
    space = None if batch.positions is None else pad(batch.positions, (0, 0, 0, extra))
    if junk:
        pair = mask[:, :, None] & mask[:, None, :]
        nodes = {name: torch.where(mask, value, 2) for name, value in nodes.items()}
        edges = {name: torch.where(pair, value, 1) for name, value in edges.items()}
        space = None if space is None else torch.where(mask.unsqueeze(-1), space, 7.0)
    return FieldBatch(nodes, edges, space, mask)


@each_kind
@both_precisions
@pytest.mark.parametrize("junk", [False, True])
def test_padding_changes_no_value_and_no_gradient(kind: str, dtype: torch.dtype, junk: bool) -> None:
    net, tolerance = network(kind, dtype), DTYPES[dtype] / 10
    batch, time = graphs(kind)
    before = flat(run(net, batch, time), batch.mask)
    more = padded(batch, 3, junk)
    after = flat(run(net, more, time), more.mask)
    for name, value in after.items():
        axes = 2 if name in batch.edges else 1
        after[name] = value[:, :6, :6] if axes == 2 else value[:, :6]
    assert_same(after, before, tolerance * (1 + before["positions"].abs().max().item() if "positions" in before else 1))
    for found, wanted in zip(gradients(net, more, time), gradients(net, batch, time), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e3 * tolerance, atol=1e3 * tolerance)


@each_kind
def test_graphs_of_a_batch_do_not_see_each_other(kind: str) -> None:
    net = network(kind)
    batch, time = graphs(kind)
    together = flat(run(net, batch, time), batch.mask)
    for b in range(len(SIZES)):
        rows = torch.tensor([b])
        alone = flat(run(net, batch.index(rows), time[rows]), batch.mask[rows])
        assert_same(alone, {name: value[rows] for name, value in together.items()}, 1e-11)


@each_kind
def test_every_parameter_gets_a_gradient(kind: str) -> None:
    net = network(kind)
    found = zip(net.named_parameters(), gradients(net, *graphs(kind)), strict=True)
    assert [name for (name, _), g in found if not g.abs().sum() > 0] == []


@each_kind
def test_the_result_depends_on_time_and_on_every_field(kind: str) -> None:
    net = network(kind)
    batch, time = graphs(kind, sizes=(6, 6))
    before = flat(run(net, batch, time), batch.mask)
    changed: dict[str, FieldLogits] = {"time": run(net, batch, 1 - time)}
    for name in batch.nodes:
        nodes = {**batch.nodes, name: (batch.nodes[name] + 1) % FIELDS["node_fields"][name]}
        changed[name] = run(net, replace(batch, nodes=nodes), time)
    for name in batch.edges:
        other = batch.edges[name].clone()
        other[:, 0, 1] = (other[:, 0, 1] + 1) % FIELDS["edge_fields"][name]
        other[:, 1, 0] = other[:, 0, 1]
        changed[name] = run(net, replace(batch, edges={**batch.edges, name: other}), time)
    for cause, found in changed.items():
        for name, value in flat(found, batch.mask).items():
            assert (value - before[name]).abs().max() > 1e-3, (cause, name)


@each_kind
def test_layers_computed_again_give_the_same_bits(kind: str) -> None:
    net = network(kind, torch.float32)
    stored = gradients(net, *graphs(kind))
    net.checkpoint_layers = True
    assert all(torch.equal(a, b) for a, b in zip(stored, gradients(net, *graphs(kind)), strict=True))


@each_kind
def test_a_checkpoint_builds_the_same_network_again(kind: str) -> None:
    net = network(kind)
    written = json.loads(json.dumps(describe(net), sort_keys=True))
    again = build(written)
    assert isinstance(again, EquivariantTransformer)
    assert again.config == net.config
    again.double().load_state_dict(net.state_dict())
    batch, time = graphs(kind)
    assert_same(flat(run(again.eval(), batch, time), batch.mask), flat(run(net, batch, time), batch.mask), 0)


def test_the_order_of_the_fields_does_not_matter() -> None:
    net = network()
    turned: dict[str, Any] = {name: dict(reversed(fields.items())) for name, fields in FIELDS.items()}
    again = network(**turned)
    batch, time = graphs()
    assert list(again.config.node_fields) != list(net.config.node_fields)
    assert_same(flat(run(again, batch, time), batch.mask), flat(run(net, batch, time), batch.mask), 0)


@pytest.mark.parametrize(("shape", "low", "high"), [(SMALL, 0.8e6, 2e6), (BASE, 8e6, 14e6)], ids=["small", "base"])
def test_named_sizes(shape: dict[str, Any], low: float, high: float) -> None:
    with torch.device("meta"):
        net = EquivariantTransformer(EquivariantConfig(**FIELDS, positions=True, **shape))
    assert low < sum(p.numel() for p in net.parameters()) < high


def test_dropout_only_acts_in_training() -> None:
    net = network(dropout=0.5)
    batch, time = graphs()
    assert torch.equal(run(net, batch, time).nodes["atom"], run(net, batch, time).nodes["atom"])
    net.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = (run(net, batch, time).nodes["atom"] for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"layers": 0}, "layers: 0, expected at least 1"),
        ({"heads": 3}, "width: 16, expected a multiple of heads (3)"),
        ({"radial": 1}, "radial: 1, expected at least 2"),
        ({"dropout": 1.0}, "dropout: 1.0, expected at least 0 and less than 1"),
        ({"directed": ("arow",)}, "directed: arow, expected some of arrow, bond"),
        ({"node_fields": {}}, "node_fields: {}, expected at least one field"),
        ({"edge_classes": {"bond": 2}}, "edge_classes: fields bond, expected arrow, bond"),
        ({"node_classes": {"atom": 0, "charge": 3}}, "node_classes['atom']: 0, expected at least 1"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        network(**options)


own_errors = pytest.mark.skipif(
    hasattr(EquivariantTransformer.forward, "__wrapped__"), reason="under jaxtyping's hook its own error comes first"
)


def _without(name: str) -> Callable[[FieldBatch], FieldBatch]:
    return lambda batch: replace(batch, nodes={k: v for k, v in batch.nodes.items() if k != name})


@own_errors
@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_without("atom"), "nodes: fields charge, expected atom, charge"),
        (
            lambda b: replace(b, edges={**b.edges, "stereo": b.edges["bond"]}),
            "edges: fields arrow, bond, stereo, expected arrow, bond",
        ),
        (lambda b: replace(b, nodes={k: v[:, :5] for k, v in b.nodes.items()}), "nodes['atom']: shape (4, 5), expected (4, 6)"),
        (lambda b: replace(b, edges={**b.edges, "bond": b.nodes["atom"]}), "edges['bond']: shape (4, 6), expected (4, 6, 6)"),
        (lambda b: replace(b, positions=b.positions[..., :2]), "positions: shape (4, 6, 2), expected (4, 6, 3)"),
        (lambda b: replace(b, positions=None), "positions: None, expected a tensor [B, N, 3]"),
        (lambda b: replace(b, mask=b.mask[0]), "mask: shape (6,), expected (B, N)"),
    ],
)
def test_bad_input_is_named(spoil: Callable[[FieldBatch], FieldBatch], text: str) -> None:
    batch, time = graphs()
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        run(network(), spoil(batch), time)


@own_errors
def test_bad_times_and_unwanted_positions_are_named() -> None:
    batch, time = graphs()
    with pytest.raises(ValueError, match=r"^time: shape \(3,\), expected \(4,\)$"):
        run(network(), batch, time[:3])
    with pytest.raises(ValueError, match=r"^positions: a tensor, expected None \(positions=False\)$"):
        run(network("directed"), batch, time)
