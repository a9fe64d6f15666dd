"""DiGress's network computed our way: the published equations to rounding, in every variant, with and without gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.diffusion.schedules import DigressSchedule
from discrete_grpo.domains.graphs import GraphBatch, node_mask, num_pairs, pair_mask, permute, symmetrise, upper
from discrete_grpo.models import digress_attention
from discrete_grpo.models.digress_features import MoleculeFeatures, cycles, random_walk_powers
from discrete_grpo.models.digress_pooling import pool_statistics
from discrete_grpo.models.digress_transformer import DigressConfig, DigressTransformer
from discrete_grpo.runs.checkpoint import read_policy, save
from tests import digress_oracle as oracle

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-10}
both_precisions = pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
WEIGHTS = (12.0, 14.0, 19.0)
SMALL = DigressConfig(
    4, 3, 3, 2, 3, 2, 7, layers=3, heads=2, width=8, edge_width=6, global_width=5, node_hidden=7, edge_hidden=9, global_hidden=11,
    node_mlp=10, edge_mlp=12, global_mlp=13, walk_length=4,
)  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "defog": {"molecule": MoleculeFeatures(WEIGHTS, 100.0)},
    "defog, padding counts": {"pooling": "padded", "molecule": MoleculeFeatures(WEIGHTS, 100.0)},
    "digress": {"features": "all", "clock": "noise", "time_width": 0, "pooling": "padded"},
    "digress, padding safe": {"features": "all", "clock": "noise", "time_width": 0},
    "fixed_bug": {"features": "all", "clock": "noise", "time_width": 0, "pooling": "variance", "five_cycles": "corrected"},
    "graph-grpo": {"pooling": "biased_std"},
    "eigenvalues": {"features": "eigenvalues", "diagonal": "nothing"},
    "cycles": {"features": "cycles", "time_width": 2},
    "walks alone": {"features": "rrwp_only"},
    "no features": {"features": "none"},
}
every_variant = pytest.mark.parametrize("name", VARIANTS)


def network(config: DigressConfig, dtype: torch.dtype = torch.float64, **more: Any) -> tuple[DigressTransformer, dict[str, Tensor]]:
    """A network and its state dict, made for the other side."""
    c = config
    state = oracle.random_state(
        c.input_widths,
        (c.node_outputs, c.edge_outputs),
        layers=c.layers,
        widths=(c.width, c.edge_width, c.global_width),
        hidden=(c.node_hidden, c.edge_hidden, c.global_hidden),
        mlp=(c.node_mlp, c.edge_mlp, c.global_mlp),
    )
    net = DigressTransformer(config, **more).to(dtype).eval()
    net.load_state_dict(state)
    return net, {k: v.to(dtype) for k, v in state.items()}


def variant(c: DigressConfig) -> oracle.Variant:
    molecule: dict[str, Any] = {"weights": c.molecule.weights, "max_weight": c.molecule.max_weight} if c.molecule else {}
    names = ("features", "walk_length", "max_nodes", "heads", "pooling", "clock", "time_width", "diagonal")
    sizes: dict[str, Any] = {name: getattr(c, name) for name in names}
    return oracle.Variant(**sizes, five=c.five_cycles, **molecule)


def graphs(sizes: tuple[int, ...] = (6, 3, 7, 2, 6), n: int = 7, states: tuple[int, int] = (4, 3), seed: int = 1) -> GraphBatch:
    """Noisy graphs, mask classes and disconnected ones among them."""
    g = torch.Generator().manual_seed(seed)
    mask = node_mask(torch.tensor(sizes), n)
    nodes = torch.where(mask, torch.randint(states[0], mask.shape, generator=g), 0)
    share = torch.tensor([0.6] + [0.4 / (states[1] - 1)] * (states[1] - 1))
    pairs = torch.multinomial(share, len(sizes) * num_pairs(n), True, generator=g).view(len(sizes), -1)
    return GraphBatch(nodes, symmetrise(torch.where(pair_mask(mask), pairs, 0), n), mask)


def times(batch: GraphBatch) -> Tensor:
    return torch.linspace(0.0, 1.0, len(batch), dtype=torch.float64)


def real(batch: GraphBatch, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of what exists, the rest 0."""
    pairs = torch.where(pair_mask(batch.mask).unsqueeze(-1), upper(edges), 0.0)
    return torch.where(batch.mask.unsqueeze(-1), nodes, 0.0), pairs


def expected(config: DigressConfig, state: dict[str, Tensor], batch: GraphBatch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    states, clean = (config.node_states, config.edge_states), (config.node_classes, config.edge_classes)
    inputs = oracle.literal_inputs(batch.nodes, batch.edges, times(batch), batch.mask, states, clean, variant(config))
    x, e, y = (part.to(dtype) for part in inputs)
    nodes, edges = oracle.literal_forward(state, x, e, y, batch.mask, variant(config))
    return real(batch, nodes[..., : config.node_classes], edges[..., : config.edge_classes])


def close(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], tolerance: float) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@both_precisions
@every_variant
def test_the_published_equations(name: str, dtype: torch.dtype) -> None:
    config, batch = replace(SMALL, **VARIANTS[name]), graphs()
    net, state = network(config, dtype)
    wanted = expected(config, state, batch, dtype)
    with torch.no_grad():
        quick = net(batch.nodes, batch.edges, times(batch).to(dtype), batch.mask)
    trained = net(batch.nodes, batch.edges, times(batch).to(dtype), batch.mask)
    close(real(batch, *quick), wanted, DTYPES[dtype])
    close(real(batch, *trained), wanted, DTYPES[dtype])
    assert wanted[0].abs().max() > 0.1


def test_without_padding_and_with_the_mask_class_as_an_output() -> None:
    config = replace(SMALL, node_outputs=4, edge_outputs=3, pooling="padded")
    batch = graphs((7, 7, 7))
    net, state = network(config)
    found = net(batch.nodes, batch.edges, times(batch), batch.mask)
    assert found[0].shape[-1] == 3
    close(real(batch, *found), expected(config, state, batch, torch.float64), 1e-10)
    safe, _ = network(replace(config, pooling="masked"))
    close(real(batch, *safe(batch.nodes, batch.edges, times(batch), batch.mask)), real(batch, *found), 1e-12)


@pytest.mark.parametrize("elements", [1, 100, 1 << 18])
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", ["defog", "defog, padding counts"])
def test_gradients_are_those_of_the_equations(
    name: str, elements: int, checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digress_attention, "CPU_ELEMENTS", elements)
    config, batch = replace(SMALL, **VARIANTS[name]), graphs()
    net, state = network(config, checkpoint_layers=checkpointed)
    leaves = {k: v.clone().requires_grad_() for k, v in state.items()}
    sides = (
        real(batch, *net(batch.nodes, batch.edges, times(batch), batch.mask)),
        expected(config, leaves, batch, torch.float64),
    )
    for nodes, pairs in sides:
        (nodes.sin().sum() + 3 * pairs.square().sum()).backward()
    with torch.no_grad():
        close(real(batch, *net(batch.nodes, batch.edges, times(batch), batch.mask)), sides[1], 1e-10)
    for key, parameter in net.named_parameters():
        wanted = leaves[key].grad
        if parameter.grad is None:  # the global state of the last layer, which nothing reads
            assert wanted is None or not wanted.any(), key
        else:
            torch.testing.assert_close(parameter.grad, wanted, atol=1e-9, rtol=1e-8, msg=key)


@both_precisions
@pytest.mark.parametrize("elements", [100, 1 << 18])
def test_logits_are_the_same_to_the_bit_however_gradients_are_found(
    dtype: torch.dtype, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digress_attention, "CPU_ELEMENTS", elements)
    batch, found = graphs(), []
    for again in (False, True):
        net, _ = network(replace(SMALL, **VARIANTS["defog"]), dtype, checkpoint_layers=again)
        nodes, edges = net(batch.nodes, batch.edges, times(batch).to(dtype), batch.mask)
        (nodes.sum() + edges.square().sum()).backward()
        found.append((nodes, edges, *(p.grad for p in net.parameters() if p.grad is not None)))
        with torch.no_grad():
            quick = net(batch.nodes, batch.edges, times(batch).to(dtype), batch.mask)
        assert torch.equal(quick[0], nodes)
        assert torch.equal(quick[1], edges)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("name", ["defog", "fixed_bug", "graph-grpo", "digress, padding safe", "eigenvalues", "no features"])
def test_padding_and_what_stands_in_it_change_nothing(name: str) -> None:
    net, _ = network(replace(SMALL, **VARIANTS[name]))
    batch = graphs((6, 3, 2), 6)
    wanted = net(batch.nodes, batch.edges, times(batch), batch.mask)
    wide = batch.pad(9)
    nodes, pairs = real(wide, *net(wide.nodes, wide.edges, times(batch), wide.mask))
    close((nodes[:, :6], pairs[:, : num_pairs(6)]), real(batch, *wanted), 1e-12)
    there = batch.mask[:, :, None] & batch.mask[:, None, :]
    spoilt = net(torch.where(batch.mask, batch.nodes, 3), torch.where(there, batch.edges, 1), times(batch), batch.mask)
    close(real(batch, *spoilt), real(batch, *wanted), 1e-12)
    for b, size in enumerate((6, 3, 2)):
        alone = batch.index(slice(b, b + 1)).crop(size)
        found = net(alone.nodes, alone.edges, times(batch)[b : b + 1], alone.mask)
        close((found[0][0], found[1][0]), (wanted[0][b, :size], wanted[1][b, :size, :size]), 1e-12)


def test_where_padding_counts_it_is_made_the_same_everywhere() -> None:
    batch = graphs((6, 3, 2), 6)
    loose, _ = network(replace(SMALL, pooling="padded"))
    fixed, _ = network(replace(SMALL, pooling="padded", pad_to=7))
    found = []
    for net in (loose, fixed):
        for given in (batch, batch.pad(7)):
            nodes, pairs = real(given, *net(given.nodes, given.edges, times(batch), given.mask))
            found.append((nodes[:, :6], pairs[:, : num_pairs(6)]))
    assert (found[0][0] - found[1][0]).abs().max() > 1e-4
    close(found[2], found[3], 1e-12)
    close(found[2], found[1], 1e-12)


@pytest.mark.parametrize("name", ["defog", "graph-grpo", "fixed_bug", "defog, padding counts"])
def test_permuting_nodes_permutes_logits(name: str) -> None:
    net, _ = network(replace(SMALL, **VARIANTS[name]) if name != "fixed_bug" else replace(SMALL, pooling="variance"))
    batch = graphs()
    order = torch.stack([torch.cat([torch.randperm(int(n)), torch.arange(int(n), 7)]) for n in batch.sizes])
    moved = permute(batch, order)
    nodes, edges = net(batch.nodes, batch.edges, times(batch), batch.mask)
    found = net(moved.nodes, moved.edges, times(batch), moved.mask)
    rows = torch.arange(len(batch))[:, None]
    wanted = (nodes[rows, order], edges[rows[..., None], order[:, :, None], order[:, None, :]])
    close(real(moved, *found), real(moved, *wanted), 1e-11)
    assert torch.equal(edges, edges.transpose(1, 2))


def test_halves_under_autocast_stay_near() -> None:
    net, _ = network(SMALL, torch.float32)
    batch = graphs()
    wanted = real(batch, *net(batch.nodes, batch.edges, times(batch).float(), batch.mask))
    for grad in (torch.enable_grad, torch.no_grad):
        with grad(), torch.autocast("cpu", torch.bfloat16):
            found = net(batch.nodes, batch.edges, times(batch).float(), batch.mask)
        close(real(batch, found[0].float(), found[1].float()), wanted, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        net(batch.nodes, batch.edges, times(batch).float(), batch.mask)[1].float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


def test_halves_with_the_statistics_of_cuda_have_gradients_outside_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA the normalisation of bfloat16 keeps mean and deviation in float32; trainers call backward outside autocast."""
    norm, back = torch.native_layer_norm, torch.ops.aten.native_layer_norm_backward

    def wide(x: Tensor, *more: Any) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, deviation = norm(x, *more)
        return y, mean.float(), deviation.float()

    def backward(g: Tensor, x: Tensor, shape: Any, mean: Tensor, deviation: Tensor, *more: Any) -> Any:
        return back(g, x, shape, mean.to(x.dtype), deviation.to(x.dtype), *more)

    monkeypatch.setattr(torch, "native_layer_norm", wide)
    monkeypatch.setattr(torch.ops.aten, "native_layer_norm_backward", backward)
    net, _ = network(SMALL, torch.float32)
    batch = graphs()
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(batch.nodes, batch.edges, times(batch).float(), batch.mask)[1].float().square().mean()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


def test_a_single_node_has_no_spread_and_finite_gradients() -> None:
    x = torch.ones(2, 1, 3, requires_grad=True)
    parts = pool_statistics(x, None, "masked")
    assert not parts[3].any()
    torch.stack([p.sum() for p in parts]).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    net, _ = network(SMALL)
    batch = graphs((1, 3), 3)
    nodes, edges = net(batch.nodes, batch.edges, times(batch), batch.mask)
    assert nodes.isfinite().all()
    assert edges.isfinite().all()


def test_features_of_a_graph_known_by_heart() -> None:
    ring = torch.roll(torch.eye(5, dtype=torch.float64), 1, 1)[None]
    ring = ring + ring.transpose(1, 2)
    by_node, by_graph = cycles(ring, "corrected")
    assert by_node[0].tolist() == [[0.0, 0.0, 0.1]] * 5
    assert by_graph[0].tolist() == [0.0, 0.0, 0.1, 0.0]
    walks = random_walk_powers(ring, 3)
    assert walks[0, 0, :, 2].tolist() == [0.5, 0.0, 0.25, 0.25, 0.0]


PUBLISHED = {  # layers, (dx, de, dy), (ffX, ffE), mlp, inputs and outputs, millions of parameters
    "QM9, DiGress": (9, (256, 64, 64), (256, 128), (256, 128, 128), (12, 5, 13), (4, 5), 8.16),
    "QM9 with H, DeFoG": (7, (256, 64, 64), (256, 128), (256, 128, 128), (19, 17, 71), (5, 5), 6.40),
    "planar, DiGress": (10, (256, 64, 64), (256, 64), (128, 64, 128), (7, 2, 12), (1, 2), 8.89),
    "SBM, DeFoG": (8, (256, 64, 64), (256, 64), (128, 64, 128), (21, 22, 70), (1, 2), 7.14),
    "MOSES, DeFoG": (12, (256, 64, 128), (256, 128), (256, 128, 256), (30, 25, 71), (8, 5), 16.27),
    "ZINC, DeFoG": (12, (256, 64, 128), (256, 128), (256, 128, 256), (31, 24, 71), (9, 4), 16.27),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    layers, (d, de, dy), (ffx, ffe), (mx, me, my), inputs, (x, e), millions = PUBLISHED[name]
    defog = "DeFoG" in name
    molecule = MoleculeFeatures((1.0,) * x, 1.0) if x > 1 else None
    features: Any = {"features": "rrwp", "walk_length": inputs[1] - e} if defog else {"features": "all", "time_width": 0}
    config = DigressConfig(
        x, e, x, e, x, e, 9, layers=layers, width=d, edge_width=de, global_width=dy, node_hidden=ffx, edge_hidden=ffe, node_mlp=mx,
        edge_mlp=me, global_mlp=my, molecule=molecule, **features,
    )  # fmt: skip
    assert config.input_widths == inputs
    with torch.device("meta"):
        net = DigressTransformer(config)
    assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, abs=0.0051)


def test_the_schedule_is_the_discrete_one() -> None:
    for steps in (4, 500):
        ends = torch.linspace(0, steps + 2, steps + 2, dtype=torch.float64) / (steps + 2)
        level = torch.cos(0.5 * torch.pi * (ends + 0.008) / 1.008) ** 2
        beta = 1 - level[1:] / level[:-1]
        wanted = torch.exp(torch.cumsum(torch.log(1 - beta.clamp(0, 0.9999)), 0))
        found = DigressSchedule(steps).alpha_bar(torch.arange(steps + 1) / steps)
        torch.testing.assert_close(found[:-1], wanted[:-1], atol=1e-12, rtol=1e-9)
        assert found[-1] == 0.0
        assert wanted[-1] < 1e-4 * wanted[-2] * 1.01
    assert DigressSchedule(4).alpha_bar(torch.tensor(0.37)) == DigressSchedule(4).alpha_bar(torch.tensor(0.25))
    with pytest.raises(ValueError, match="steps: 0, expected at least 1"):
        DigressSchedule(0)


def test_what_does_not_fit_is_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"heads": 3}, r"width: 8, expected a multiple of heads \(3\)"),
        ({"node_outputs": 5}, "node_outputs: 5, expected 3 to 4"),
        ({"time_width": 3}, "time_width: 3, expected an even number"),
        ({"pooling": "sum"}, "pooling: 'sum', expected one of padded"),
        ({"features": "spectral"}, "features: 'spectral', expected one of none"),
        ({"layers": 0}, "layers: 0, expected at least 1"),
    ]
    for change, said in wrong:
        with pytest.raises(ValueError, match=said):
            replace(SMALL, **change)
    net, _ = network(SMALL)
    batch = graphs((8, 2), 8)
    with pytest.raises(ValueError, match="nodes of the largest graph: 8, expected at most 7"):
        net(batch.nodes, batch.edges, times(batch), batch.mask)
    batch = graphs((3, 2), 3, (5, 3), 4)
    with pytest.raises(ValueError, match="nodes: class: 4, expected 0 to 3"):
        net(batch.nodes, batch.edges, times(batch), batch.mask)
    with pytest.raises(ValueError, match="edges: class: 6, expected 0 to 2"):
        net(batch.nodes.clamp_max(3), batch.edges * 3, times(batch), batch.mask)


def test_it_is_built_again_from_a_checkpoint(tmp_path: Any) -> None:
    net, _ = network(replace(SMALL, **VARIANTS["defog"]), torch.float32, checkpoint_layers=True)
    again = read_policy(save(tmp_path / "net", net, metadata={}))
    assert again.config == net.config
    assert again.checkpoint_layers
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
