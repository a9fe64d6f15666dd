"""MiDi's network computed our way: the published equations to rounding, its symmetries, and padding that changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.diffusion.schedules import DigressSchedule, SquaredSchedule
from discrete_grpo.domains.fields import FieldBatch, FieldLogits, centred
from discrete_grpo.models.midi_transformer import MidiConfig, MidiTransformer
from discrete_grpo.runs.serialization import build, describe
from tests import midi_oracle as oracle

DTYPES = {torch.float32: 2e-5, torch.float64: 1e-10}
both_precisions = pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
SMALL = MidiConfig(
    4, 3, 5, layers=3, heads=2, width=8, edge_width=6, global_width=5, node_hidden=7, edge_hidden=9, global_hidden=11,
    node_mlp=10, edge_mlp=12, global_mlp=13, position_mlp=4,
)  # fmt: skip


def network(
    config: MidiConfig = SMALL, dtype: torch.dtype = torch.float64, **more: Any
) -> tuple[MidiTransformer, dict[str, Tensor]]:
    """A network and its state dict, made for the other side."""
    c = config
    state = oracle.random_state(
        (c.atom_classes, c.charge_classes, c.bond_classes),
        layers=c.layers,
        widths=(c.width, c.edge_width, c.global_width),
        heads=c.heads,
        hidden=(c.node_hidden, c.edge_hidden, c.global_hidden),
        mlp=(c.node_mlp, c.edge_mlp, c.global_mlp, c.position_mlp),
    )
    net = MidiTransformer(config, **more).to(dtype).eval()
    net.load_state_dict(state)
    return net, {k: v.to(dtype) for k, v in state.items()}


def molecules(sizes: tuple[int, ...] = (6, 2, 7, 3), n: int = 7, dtype: torch.dtype = torch.float64) -> FieldBatch:
    g = torch.Generator().manual_seed(1)
    mask = torch.arange(n) < torch.tensor(sizes)[:, None]
    both = mask[:, :, None] & mask[:, None, :]
    atom, charge = (torch.where(mask, torch.randint(k, mask.shape, generator=g), 0) for k in (4, 3))
    bond = torch.triu(torch.where(both, torch.randint(5, both.shape, generator=g), 0), 1)
    positions = centred(2 * torch.randn(*mask.shape, 3, generator=g, dtype=torch.float64), mask).to(dtype)
    return FieldBatch({"atom": atom, "charge": charge}, {"bond": bond + bond.transpose(1, 2)}, positions, mask)


def times(batch: FieldBatch) -> Tensor:
    assert batch.positions is not None
    return torch.linspace(0.0, 1.0, len(batch), dtype=batch.positions.dtype)


def run(net: MidiTransformer, batch: FieldBatch) -> FieldLogits:
    """The prediction where something exists, the rest 0."""
    found = net(batch.nodes, batch.edges, batch.positions, times(batch), batch.mask)
    pairs = batch.mask[:, :, None] & batch.mask[:, None, :] & ~torch.eye(batch.num_nodes, dtype=torch.bool)
    nodes = {name: torch.where(batch.mask.unsqueeze(-1), value, 0.0) for name, value in found.nodes.items()}
    edges = {name: torch.where(pairs.unsqueeze(-1), value, 0.0) for name, value in found.edges.items()}
    return FieldLogits(nodes, edges, found.positions)


def expected(state: dict[str, Tensor], batch: FieldBatch, spread: str = "variance") -> FieldLogits:
    """The same from the equations, one molecule at a time."""
    assert batch.positions is not None
    one_hot, (b, n) = torch.nn.functional.one_hot, batch.mask.shape
    dtype = batch.positions.dtype
    x_all, e_all, r_all = (torch.zeros(*shape, dtype=dtype) for shape in ((b, n, 7), (b, n, n, 5), (b, n, 3)))
    for k, size in enumerate(batch.sizes.tolist()):
        x = torch.cat([one_hot(batch.nodes["atom"][k, :size], 4), one_hot(batch.nodes["charge"][k, :size], 3)], -1).to(dtype)
        e = oracle.without_diagonal(one_hot(batch.edges["bond"][k, :size, :size], 5).to(dtype))
        found = oracle.literal_forward(state, x, e, times(batch)[k], batch.positions[k, :size], spread)
        x_all[k, :size], e_all[k, :size, :size], r_all[k, :size] = found
    return FieldLogits({"atom": x_all[..., :4], "charge": x_all[..., 4:]}, {"bond": e_all}, r_all)


def close(found: FieldLogits, wanted: FieldLogits, tolerance: float) -> None:
    assert found.positions is not None
    assert wanted.positions is not None
    for name in ("atom", "charge"):
        torch.testing.assert_close(found.nodes[name], wanted.nodes[name], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found.edges["bond"], wanted.edges["bond"], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found.positions, wanted.positions, atol=tolerance, rtol=tolerance)


@both_precisions
@pytest.mark.parametrize(("pooling", "spread"), [("variance", "variance"), ("masked", "deviation")])
def test_the_published_equations(pooling: Any, spread: str, dtype: torch.dtype) -> None:
    net, state = network(replace(SMALL, pooling=pooling), dtype)
    batch = molecules(dtype=dtype)
    wanted = expected(state, batch, spread)
    close(run(net, batch), wanted, DTYPES[dtype])
    with torch.no_grad():
        close(run(net, batch), wanted, DTYPES[dtype])
    assert wanted.positions is not None
    assert min(t.abs().max() for t in (*wanted.nodes.values(), *wanted.edges.values(), wanted.positions)) > 0.1


def test_the_state_dict_has_the_published_names_and_shapes() -> None:
    """With the published sizes of QM9 with hydrogens; the equations read every tensor but one unused map per layer."""
    state = oracle.random_state((5, 3, 5), layers=12, widths=(256, 64, 128), heads=8)
    with torch.device("meta"):
        net = MidiTransformer(MidiConfig(5, 3, 5))
    assert {k: t.shape for k, t in net.state_dict().items()} == {k: t.shape for k, t in state.items()}
    assert sum(t.numel() for t in state.values()) == 24_155_163


@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients_are_those_of_the_equations(checkpointed: bool) -> None:
    net, state = network(checkpoint_layers=checkpointed)
    batch, leaves = molecules(), {k: v.clone().requires_grad_() for k, v in state.items()}
    for found in (run(net, batch), expected(leaves, batch)):
        assert found.positions is not None
        nodes = sum((value.sin().sum() for value in found.nodes.values()), torch.zeros(()))
        (nodes + 3 * found.edges["bond"].square().sum() + found.positions.exp().sum()).backward()
    for key, parameter in net.named_parameters():
        wanted = leaves[key].grad
        if parameter.grad is None:  # the global state of the last layer, which nothing reads, and a map that is never applied
            assert wanted is None or not wanted.any(), key
        else:
            torch.testing.assert_close(parameter.grad, wanted, atol=1e-8, rtol=1e-7, msg=key)


def test_gradients_are_finite_where_atoms_lie_in_one_place() -> None:
    net, _ = network()
    batch = molecules((1, 3), 3)
    assert batch.positions is not None
    batch = replace(batch, positions=torch.zeros_like(batch.positions).requires_grad_())
    found = run(net, batch)
    assert found.positions is not None
    assert torch.equal(found.positions, torch.zeros_like(found.positions))
    (found.nodes["atom"].sum() + found.edges["bond"].sum() + found.positions.sum()).backward()
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    assert all(bool(g.isfinite().all()) for g in gradients)


# -- symmetries


def rotation(reflect: bool) -> Tensor:
    g = torch.Generator().manual_seed(5)
    q = torch.linalg.qr(torch.randn(3, 3, generator=g, dtype=torch.float64)).Q
    q = q * torch.linalg.det(q)  # a rotation
    return -q if reflect else q


@both_precisions
@pytest.mark.parametrize("reflect", [False, True])
def test_rotation_and_reflection(reflect: bool, dtype: torch.dtype) -> None:
    net, _ = network(dtype=dtype)
    batch, turn = molecules(dtype=dtype), rotation(reflect).to(dtype)
    assert batch.positions is not None
    found = run(net, batch)
    turned = run(net, replace(batch, positions=batch.positions @ turn))
    assert found.positions is not None
    assert turned.positions is not None
    close(turned, FieldLogits(found.nodes, found.edges, found.positions @ turn), 1e-5 if dtype == torch.float32 else 1e-10)
    assert (turned.positions - found.positions).abs().max() > 0.1


@both_precisions
def test_translation_is_taken_away(dtype: torch.dtype) -> None:
    net, _ = network(dtype=dtype)
    batch = molecules(dtype=dtype)
    assert batch.positions is not None
    moved = batch.positions + torch.tensor([1.0, -2.0, 0.5], dtype=dtype)
    found = run(net, replace(batch, positions=moved))
    close(found, run(net, batch), 1e-5 if dtype == torch.float32 else 1e-10)
    assert found.positions is not None
    torch.testing.assert_close(found.positions.sum(1), torch.zeros(len(batch), 3, dtype=dtype), atol=1e-5, rtol=0)


@both_precisions
def test_permutation(dtype: torch.dtype) -> None:
    net, _ = network(dtype=dtype)
    batch = molecules((7, 7), dtype=dtype)
    assert batch.positions is not None
    order = torch.randperm(7, generator=torch.Generator().manual_seed(2))
    nodes = {name: value[:, order] for name, value in batch.nodes.items()}
    edges = {name: value[:, order][:, :, order] for name, value in batch.edges.items()}
    found = run(net, batch)
    assert found.positions is not None
    wanted = FieldLogits(
        {name: value[:, order] for name, value in found.nodes.items()},
        {name: value[:, order][:, :, order] for name, value in found.edges.items()},
        found.positions[:, order],
    )
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    close(run(net, FieldBatch(nodes, edges, batch.positions[:, order], batch.mask)), wanted, tolerance)
    assert torch.equal(found.edges["bond"], found.edges["bond"].transpose(1, 2))


@both_precisions
def test_padding_changes_nothing(dtype: torch.dtype) -> None:
    net, _ = network(dtype=dtype)
    batch = molecules(dtype=dtype)
    assert batch.positions is not None
    found = run(net, batch)
    for k, size in enumerate(batch.sizes.tolist()):
        assert found.positions is not None
        alone = net(
            {name: value[k : k + 1, :size] for name, value in batch.nodes.items()},
            {name: value[k : k + 1, :size, :size] for name, value in batch.edges.items()},
            batch.positions[k : k + 1, :size],
            times(batch)[k : k + 1],
            batch.mask[k : k + 1, :size],
        )
        atom, moved = found.nodes["atom"][k : k + 1, :size], found.positions[k : k + 1, :size]
        torch.testing.assert_close(alone.nodes["atom"], atom, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(alone.positions, moved, atol=1e-5, rtol=1e-5)
    garbage = torch.where(batch.mask.unsqueeze(-1), batch.positions, 1e3)
    nodes = {name: torch.where(batch.mask, value, 2) for name, value in batch.nodes.items()}
    close(run(net, replace(batch, nodes=nodes, positions=garbage)), found, 1e-12)


# -- arguments


def test_bad_input_is_named() -> None:
    net, _ = network()
    batch = molecules()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"nodes": {"atom": batch.nodes["atom"]}}, "nodes: fields atom, expected atom, charge"),
        ({"edges": {}}, "edges: fields none, expected bond"),
        ({"positions": None}, "positions: None, expected coordinates"),
        ({"edges": {"bond": batch.edges["bond"] + 1}}, "edges: class of bond: [5-9], expected 0 to 4"),
    ]
    for change, said in wrong:
        given = replace(batch, **change)
        with pytest.raises(ValueError, match=said) as error:
            net(given.nodes, given.edges, given.positions, times(batch), batch.mask)
        assert "\n" not in str(error.value)
    sizes: list[tuple[dict[str, Any], str]] = [
        ({"heads": 3}, "width: 8, expected a multiple of heads"),
        ({"layers": 0}, "layers: 0, expected at least 1"),
        ({"pooling": "padded"}, "pooling: 'padded', expected variance or masked"),
    ]
    for change, said in sizes:
        with pytest.raises(ValueError, match=said):
            replace(SMALL, **change)


def test_a_checkpoint_can_describe_it() -> None:
    again = build(describe(network(checkpoint_layers=True)[0]))
    assert isinstance(again, MidiTransformer)
    assert (again.config, again.checkpoint_layers) == (SMALL, True)


# -- the noise


@pytest.mark.parametrize("exponent", [1.0, 1.5, 2.5])
@pytest.mark.parametrize("steps", [4, 500])
def test_the_schedule_is_the_product_of_the_published_steps(steps: int, exponent: float) -> None:
    schedule = DigressSchedule(steps, exponent=exponent)
    found = schedule.alpha_bar(torch.arange(steps + 1, dtype=torch.float64) / steps)
    wanted = oracle.literal_alpha_bar(steps, exponent)
    torch.testing.assert_close(found[:-1], wanted[:-1], atol=1e-12, rtol=1e-9)
    assert float(found[-1]) == 0.0
    assert float(wanted[-1]) < 1e-4 * float(wanted[-2]) + 1e-15
    squared = SquaredSchedule(schedule).alpha_bar(torch.arange(steps + 1, dtype=torch.float64) / steps)
    assert torch.equal(squared, found**2)
