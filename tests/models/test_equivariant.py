"""The equivariant transformer: symmetries of space, of nodes and of edges; padding, directions, gradients, checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.domains.fields import FieldBatch, FieldLogits, centred
from discrete_grpo.domains.graphs import node_mask
from discrete_grpo.models.equivariant import BASE, SMALL, EquivariantConfig, EquivariantTransformer, SingleFieldNetwork
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.runs.serialization import build, describe
from tests.toys import tiny_policy

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-11}
both_precisions = pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
SIZES = (6, 3, 5, 1)
FIELDS: dict[str, Any] = {
    "node_fields": {"atom": 5, "charge": 3},
    "edge_fields": {"bond": 4, "arrow": 3},
    "node_classes": {"atom": 4, "charge": 3},
    "edge_classes": {"bond": 4, "arrow": 2},
}
SHAPE: dict[str, Any] = {"layers": 3, "heads": 2, "width": 16, "edge_width": 6, "global_width": 10, "radial": 5}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "directed": {"directed": ("arrow",)},
    "positions": {"positions": True},
    "both": {"directed": ("arrow",), "positions": True},
}
each_kind = pytest.mark.parametrize("kind", list(KINDS))
in_space = pytest.mark.parametrize("kind", ["positions", "both"])


def shake(net: nn.Module) -> None:
    """Some parameters start at zero, where the parts behind them would go untested."""
    for parameter in net.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)


def network(kind: str = "both", dtype: torch.dtype = torch.float64, seed: int = 0, **options: Any) -> EquivariantTransformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = EquivariantTransformer(EquivariantConfig(**FIELDS | SHAPE | KINDS[kind] | options))
        shake(net)
        return net.to(dtype).eval()


def graphs(kind: str = "both", seed: int = 0, sizes: tuple[int, ...] = SIZES, n: int = 6) -> tuple[FieldBatch, Tensor]:
    """Noisy graphs with zero-mean positions in float64, and times."""
    g = torch.Generator().manual_seed(seed)
    mask = node_mask(torch.tensor(sizes), n)
    pair = mask[:, :, None] & mask[:, None, :] & ~torch.eye(n, dtype=torch.bool)
    nodes = {name: torch.where(mask, torch.randint(c, mask.shape, generator=g), 0) for name, c in FIELDS["node_fields"].items()}
    edges = {}
    for name, c in FIELDS["edge_fields"].items():
        full = torch.where(pair, torch.randint(c, pair.shape, generator=g), 0)
        edges[name] = full if name in KINDS[kind].get("directed", ()) else full.triu(1) + full.triu(1).transpose(1, 2)
    space = centred(1.5 * torch.randn(*mask.shape, 3, generator=g, dtype=torch.float64), mask)
    return FieldBatch(nodes, edges, space if "positions" in KINDS[kind] else None, mask), torch.rand(len(sizes), generator=g)


def run(net: EquivariantTransformer, batch: FieldBatch, time: Tensor) -> FieldLogits:
    return net(batch.nodes, batch.edges, batch.positions, time, batch.mask)


def space(batch: FieldBatch) -> Tensor:
    """The positions of a batch that has some."""
    assert batch.positions is not None
    return batch.positions


def flat(found: FieldLogits, mask: Tensor) -> dict[str, Tensor]:
    """Everything at existing places, by name; 0 elsewhere."""
    pair = (mask[:, :, None] & mask[:, None, :]).unsqueeze(-1)
    result = {name: torch.where(mask.unsqueeze(-1), value, 0.0) for name, value in found.nodes.items()}
    result |= {name: torch.where(pair, value, 0.0) for name, value in found.edges.items()}
    return result | ({} if found.positions is None else {"positions": found.positions})


def gradients(net: EquivariantTransformer, batch: FieldBatch, time: Tensor) -> list[Tensor]:
    values = flat(run(net, batch, time), batch.mask).values()
    total = torch.stack([(value.sin() * (2 + k)).sum() for k, value in enumerate(values)]).sum()
    return list(torch.autograd.grad(total, list(net.parameters()), materialize_grads=True))


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=tolerance, msg=f"{name}: {{}}".format)


def orthogonal(seed: int, reflect: bool) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(3, 3, generator=g, dtype=torch.float64))
    return q if (torch.linalg.det(q) < 0) == reflect else -q


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
def test_undirected_logits_are_exactly_symmetric_and_shapes_are_those_of_the_fields(kind: str) -> None:
    net = network(kind)
    batch, time = graphs(kind)
    found = run(net, batch, time)
    assert {name: tuple(value.shape) for name, value in found.nodes.items()} == {"atom": (4, 6, 4), "charge": (4, 6, 3)}
    assert {name: tuple(value.shape) for name, value in found.edges.items()} == {"bond": (4, 6, 6, 4), "arrow": (4, 6, 6, 2)}
    for name, value in found.edges.items():
        assert torch.equal(value, value.transpose(1, 2)) == (name not in net.config.directed), name
        assert (value.diagonal(dim1=1, dim2=2) == 0).all()
    spoilt = {name: value if name in net.config.directed else value.triu(1) for name, value in batch.edges.items()}
    spoilt = {name: value + torch.eye(6, dtype=torch.long) for name, value in spoilt.items()}
    assert_same(flat(run(net, replace(batch, edges=spoilt), time), batch.mask), flat(found, batch.mask), 0)


def arrow(net: EquivariantTransformer, i: int, j: int, atoms: tuple[int, int, int] = (0, 0, 0)) -> FieldLogits:
    """The network's view of three nodes with one edge from i to j; the diagonal is no edge."""
    edges = {name: torch.zeros(1, 3, 3, dtype=torch.long) for name in net.config.edge_fields}
    edges["arrow"][0, i, j] = 1
    if not net.config.directed:
        edges["arrow"][0, j, i] = 1
    nodes = {"atom": torch.tensor([atoms]), "charge": torch.zeros(1, 3, dtype=torch.long)}
    return net(nodes, edges, None, torch.full((1,), 0.5), torch.ones(1, 3, dtype=torch.bool))


def test_a_directed_network_tells_source_from_target() -> None:
    net = network("directed")
    there, back = arrow(net, 0, 1), arrow(net, 1, 0)
    assert (there.nodes["atom"][0, 0] - there.nodes["atom"][0, 1]).abs().max() > 1e-3
    swap = torch.tensor([1, 0, 2])  # the reversed arrow is the relabelled arrow
    torch.testing.assert_close(back.nodes["atom"], there.nodes["atom"][:, swap])
    torch.testing.assert_close(back.edges["arrow"], there.edges["arrow"][:, swap][:, :, swap])
    plain = arrow(network("plain"), 0, 1)
    torch.testing.assert_close(plain.nodes["atom"][0, 0], plain.nodes["atom"][0, 1])


@pytest.mark.parametrize("kind", ["directed", "both"])
def test_reversing_every_edge_is_no_transposition_of_the_result(kind: str) -> None:
    net = network(kind)
    batch, time = graphs(kind, sizes=(6, 6))
    turned = {**batch.edges, "arrow": batch.edges["arrow"].transpose(1, 2)}
    found, back = run(net, batch, time), run(net, replace(batch, edges=turned), time)
    assert (found.nodes["atom"] - back.nodes["atom"]).abs().max() > 1e-2
    assert (found.edges["bond"] - back.edges["bond"]).abs().max() > 1e-2
    assert (found.edges["arrow"] - back.edges["arrow"].transpose(1, 2)).abs().max() > 1e-2
    assert (found.edges["arrow"] - back.edges["arrow"]).abs().max() > 1e-2


@pytest.mark.parametrize(("part", "silent"), [("bias", ["incident"]), ("incident", ["bias"]), ("edge_in", ["bias", "incident"])])
def test_each_part_of_a_layer_reads_both_directions(part: str, silent: list[str]) -> None:
    """With the other readers of pair states silent, what belongs to (0, 1) depends on the arrow from 0 to 1 and on that back."""
    net = network("directed", layers=1)
    for name in [*silent, "pool"]:  # nodes also hear of each other by the state of the graph
        getattr(net.blocks[0], name).weight.data.zero_()
    empty, there, back = (arrow(net, i, j, (0, 1, 2)) for i, j in ((2, 2), (0, 1), (1, 0)))
    for found in (there, back):
        changed = found.edges["arrow"] - empty.edges["arrow"] if part == "edge_in" else found.nodes["atom"] - empty.nodes["atom"]
        assert (changed[0, 0, 1] if part == "edge_in" else changed[0, 0]).abs().max() > 1e-5


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


SINGLE: dict[str, Any] = {
    "node_fields": {"atom": 3},
    "edge_fields": {"bond": 2},
    "node_classes": {"atom": 3},
    "edge_classes": {"bond": 2},
}


def test_a_graph_policy_runs_on_a_network_over_fields() -> None:
    tiny = tiny_policy()
    net = SingleFieldNetwork(EquivariantTransformer(EquivariantConfig(**SINGLE | SHAPE)))
    policy = GraphPolicy(net, tiny.node_kernel, tiny.edge_kernel, tiny.node_counts, num_steps=3)
    rollout = policy.sample(group_contexts(4, 2), generator=torch.Generator().manual_seed(0))
    scores = score_sites(policy.sites(rollout))
    torch.testing.assert_close(scores.logp.sum(-1), rollout.logp)
    again = build(describe(policy))
    again.load_state_dict(policy.state_dict())
    assert torch.equal(score_sites(again.sites(rollout)).logp, scores.logp)


def test_a_network_over_more_fields_is_no_graph_network() -> None:
    net = EquivariantTransformer(EquivariantConfig(**SINGLE | SHAPE))
    assert SingleFieldNetwork(net).compiled_parts() == list(net.blocks)
    for options, told in (
        (FIELDS, "2 node fields, 2 edge fields"),
        (SINGLE | {"directed": ("bond",)}, "1 node fields, 1 edge fields, directed"),
        (SINGLE | {"positions": True}, "1 node fields, 1 edge fields, positions"),
    ):
        with pytest.raises(ValueError, match=f"^network: {told}, expected one node field and one undirected edge field"):
            SingleFieldNetwork(EquivariantTransformer(EquivariantConfig(**SHAPE | options)))
