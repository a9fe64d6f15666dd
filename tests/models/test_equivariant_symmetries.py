"""Symmetries of the equivariant transformer: turns, reflections and shifts of space, and relabelled nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from discrete_grpo.domains.fields import FieldBatch
from discrete_grpo.models.equivariant import BASE, EquivariantConfig, EquivariantTransformer
from tests.models.equivariant_parts import (
    DTYPES,
    FIELDS,
    KINDS,
    SHAPE,
    assert_same,
    both_precisions,
    each_kind,
    flat,
    graphs,
    in_space,
    network,
    orthogonal,
    run,
    space,
)


@in_space
@both_precisions
@pytest.mark.parametrize("reflect", [False, True], ids=["rotation", "reflection"])
def test_positions_turn_with_the_input_and_logits_stay(kind: str, dtype: torch.dtype, reflect: bool) -> None:
    net = network(kind, dtype)
    batch, time = graphs(kind)
    before = flat(run(net, batch, time), batch.mask)
    for seed in range(3):
        turn = orthogonal(seed, reflect)
        after = flat(run(net, replace(batch, positions=space(batch) @ turn), time), batch.mask)
        assert_same(after, before | {"positions": before["positions"] @ turn.to(dtype)}, DTYPES[dtype])


@in_space
@both_precisions
def test_a_translation_changes_nothing(kind: str, dtype: torch.dtype) -> None:
    net = network(kind, dtype)
    batch, time = graphs(kind)
    shift = torch.tensor([0.5, -1.0, 0.75], dtype=torch.float64)
    moved = flat(run(net, replace(batch, positions=space(batch) + shift), time), batch.mask)
    assert_same(moved, flat(run(net, batch, time), batch.mask), DTYPES[dtype])


@in_space
def test_predicted_positions_have_zero_mean_and_are_zero_at_padding(kind: str) -> None:
    net = network(kind)
    batch, time = graphs(kind)
    found = run(net, batch, time).positions
    assert found is not None
    assert (found[~batch.mask] == 0).all()
    assert found.sum(1).abs().max() < 1e-12
    assert (found[:3] - space(batch)[:3]).abs().amax((1, 2)).min() > 0.1


@in_space
def test_a_new_network_leaves_positions_where_they_are(kind: str) -> None:
    net = EquivariantTransformer(EquivariantConfig(**FIELDS | SHAPE | KINDS[kind])).double()
    batch, time = graphs(kind)
    torch.testing.assert_close(run(net, batch, time).positions, batch.positions, rtol=0, atol=1e-14)


@in_space
def test_logits_and_positions_depend_on_the_shape_of_the_input(kind: str) -> None:
    net = network(kind)
    batch, time = graphs(kind, sizes=(6, 6))
    bent = space(batch).clone()
    bent[:, 0] += 0.5
    before, after = (flat(run(net, replace(batch, positions=p), time), batch.mask) for p in (batch.positions, bent))
    for name in before:
        assert (before[name] - after[name]).abs().amax(tuple(range(1, before[name].ndim))).min() > 1e-3, name


def test_moves_are_bounded_far_away_and_finite_at_one_place() -> None:
    net = network("positions")
    batch, time = graphs("positions", sizes=(6, 6))
    assert net.rescale is not None
    nn.init.zeros_(net.rescale.weight)
    nn.init.zeros_(net.rescale.bias)
    far = 1e4 * space(batch)
    found = run(net, replace(batch, positions=far), time).positions
    assert found is not None
    assert (found - far).abs().max() < 1e3
    together = torch.zeros_like(far).requires_grad_()
    result = flat(run(net, replace(batch, positions=together), time), batch.mask)
    torch.stack([value.square().sum() for value in result.values()]).sum().backward()
    assert together.grad is not None
    assert together.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


@each_kind
@both_precisions
def test_relabelling_the_nodes_relabels_the_result(kind: str, dtype: torch.dtype) -> None:
    net = network(kind, dtype)
    batch, time = graphs(kind, sizes=(6, 6, 6))
    order = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(k)) for k in range(3)])
    row, left, right = torch.arange(3)[:, None], order[:, :, None], order[:, None, :]
    shuffled = FieldBatch(
        {name: value[row, order] for name, value in batch.nodes.items()},
        {name: value[row[..., None], left, right] for name, value in batch.edges.items()},
        None if batch.positions is None else batch.positions[row, order],
        batch.mask,
    )
    before, after = run(net, batch, time), run(net, shuffled, time)
    wanted = {name: value[row, order] for name, value in before.nodes.items()}
    wanted |= {name: value[row[..., None], left, right] for name, value in before.edges.items()}
    wanted |= {} if before.positions is None else {"positions": before.positions[row, order]}
    assert_same(flat(after, batch.mask), wanted, DTYPES[dtype])
    assert (before.nodes["atom"] - before.nodes["atom"][:, :1]).abs().max() > 1e-3


def test_the_deep_network_is_equivariant_in_single_precision() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = EquivariantTransformer(EquivariantConfig(**FIELDS, positions=True, **BASE)).eval()
        for block in net.blocks:  # these start at zero
            for part in (block.steps.weight, block.edge_out.weight[-1:]):  # type: ignore[union-attr, index]
                part.data.normal_(std=0.05)  # type: ignore[operator]
    batch, time = graphs("positions", sizes=(6, 5))
    turn = orthogonal(0, True)
    with torch.no_grad():
        before = flat(run(net, batch, time), batch.mask)
        after = flat(run(net, replace(batch, positions=space(batch) @ turn), time), batch.mask)
    assert (before["positions"] - space(batch)).abs().max() > 0.1
    assert_same(after, before | {"positions": before["positions"] @ turn.float()}, 1e-5)


def test_bfloat16_autocast_keeps_the_exact_symmetries() -> None:
    net = network(dtype=torch.float32)
    batch, time = graphs()
    exact = run(net, batch, time)
    with torch.autocast("cpu", torch.bfloat16):
        found = run(net, batch, time)
    assert found.positions is not None
    assert exact.positions is not None
    assert torch.equal(found.edges["bond"], found.edges["bond"].transpose(1, 2))
    assert found.positions.dtype == torch.float32
    assert found.positions.sum(1).abs().max() < 1e-5
    torch.testing.assert_close(found.positions, exact.positions, rtol=0.1, atol=0.2)
