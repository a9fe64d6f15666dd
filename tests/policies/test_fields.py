"""The policy over fields: laws by enumeration and by quadrature, bridges, and the likelihood loss by loops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import Sites, score_sites
from discrete_grpo.core.gaussian import GaussianSites
from discrete_grpo.core.rollout import Context
from discrete_grpo.diffusion.gaussian import GaussianDiffusion
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import absorbing, marginal
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from discrete_grpo.domains.fields import FieldBatch, FieldLogits, centred, matrix_of, pairs_mask, pairs_of
from discrete_grpo.policies import field_steps, fields
from discrete_grpo.policies.field_steps import gaussian_sites
from discrete_grpo.policies.fields import Field, FieldPolicy, Positions
from discrete_grpo.testing import check_policy
from discrete_grpo.testing.check import LAWS
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer

ATOM = Field("atom", D3PM(marginal((0.5, 0.3, 0.2), CosineSchedule(exponent=1.5))))
CHARGE = Field("charge", D3PM(absorbing(2, LinearSchedule())), weight=0.5)
BOND = Field("bond", D3PM(marginal((0.7, 0.3), CosineSchedule())), weight=2.0)
ARROW = Field("arrow", D3PM(marginal((0.6, 0.4), CosineSchedule())), directed=True)
SPACE = Positions(GaussianDiffusion(CosineSchedule(exponent=2.0), min_std=0.1), weight=3.0, learned_variance=True)


class Net(nn.Module):
    """Sums over neighbours: permutation-equivariant, with directed and undirected pairs; positions move along differences."""

    def __init__(self, nodes: dict[str, tuple[int, int]], edges: dict[str, tuple[int, int, bool]], space: bool) -> None:
        super().__init__()
        self.given = {"nodes": nodes, "edges": edges, "space": space}
        self.directed = {name: directed for name, (_, _, directed) in edges.items()}
        width = 8
        self.embed = nn.ModuleDict({name: nn.Embedding(states, width) for name, (states, _) in nodes.items()})
        self.pair = nn.ModuleDict({name: nn.Embedding(states, width) for name, (states, _, _) in edges.items()})
        self.out = nn.ModuleDict({name: nn.Linear(width, clean) for name, (_, clean) in nodes.items()})
        self.arrow = nn.ModuleDict({name: nn.Linear(3 * width, clean) for name, (_, clean, _) in edges.items()})
        self.time, self.gain = nn.Linear(1, width), nn.Linear(width, 1)
        self.space = space

    def init_args(self) -> dict[str, Any]:
        return self.given

    def forward(self, nodes: Any, edges: Any, positions: Tensor | None, time: Tensor, mask: Tensor) -> FieldLogits:
        there = mask[..., None].float()
        h = sum(table(nodes[name]) for name, table in self.embed.items()) + self.time(time[:, None])[:, None]
        h = h * there
        e = sum(
            (table(edges[name]) for name, table in self.pair.items()), start=torch.zeros(*mask.shape, mask.shape[1], h.shape[-1])
        )
        if positions is not None:
            e = e + (positions[:, :, None] - positions[:, None]).square().sum(-1, keepdim=True).clamp_max(9) / 9
        e = e * there[:, None] * there[:, :, None]
        h = torch.tanh(h + e.sum(2) / mask.sum(1)[:, None, None]) * there
        n = mask.shape[1]
        ends = torch.cat([h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1), e], -1)
        pairs = {}
        for name, head in self.arrow.items():
            logits = head(ends)
            pairs[name] = logits if self.directed[name] else (logits + logits.transpose(1, 2)) / 2
        moved = None
        if positions is not None:
            moved = centred(positions * (1 + self.gain(h)), mask)
        return FieldLogits({name: head(h) for name, head in self.out.items()}, pairs, moved)


def policy(kind: str = "molecule", *, steps: int = 3, counts: tuple[float, ...] = (0.0, 0.2, 0.3, 0.5)) -> FieldPolicy:
    torch.manual_seed(0)
    if kind == "directed":
        nodes, edges, space = [ATOM], [ARROW], None
    elif kind == "plain":
        nodes, edges, space = [ATOM, CHARGE], [BOND], None
    else:
        nodes, edges, space = [ATOM, CHARGE], [BOND], SPACE
    sizes = {f.name: (f.kernel.noise.num_states, f.kernel.noise.num_clean) for f in nodes}
    pairs = {f.name: (f.kernel.noise.num_states, f.kernel.noise.num_clean, f.directed) for f in edges}
    net = Net(sizes, pairs, space is not None)
    return FieldPolicy(net, nodes, edges, counts, positions=space, num_steps=steps)


def contexts(count: int = 8) -> list[Context]:
    return [Context(k // 2) for k in range(count)]


def permuted(rollout: Any, generator: torch.Generator) -> Any:
    """The same trajectories with the nodes of each graph in another order."""
    states = {name: value.clone() for name, value in rollout.states.items()}
    n = int(rollout.size.max())
    for b, size in enumerate(rollout.size.tolist()):
        order = torch.cat([torch.randperm(size, generator=generator), torch.arange(size, n)])
        for name in states:
            if name.startswith("edge"):
                directed = name == "edge arrow"
                matrix = matrix_of(states[name][b], n, directed=directed)[:, order][:, :, order]
                states[name][b] = pairs_of(matrix, directed=directed)
            else:
                states[name][b] = states[name][b][:, order]
    return replace(rollout, states=states)


def test_pairs_as_a_list_and_back() -> None:
    matrix = torch.randint(1, 9, (2, 4, 4), generator=torch.Generator().manual_seed(0)) * (1 - torch.eye(4, dtype=torch.long))
    listed = pairs_of(matrix, directed=True)
    assert torch.equal(matrix_of(listed, 4, directed=True), matrix)
    order = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1), (0, 3), (3, 0), (1, 3), (3, 1), (2, 3), (3, 2)]
    assert listed.tolist() == [[int(m[i, j]) for i, j in order] for m in matrix]
    assert torch.equal(pairs_of(matrix[:, :3, :3], directed=True), listed[:, :6])  # padding appends
    mask = torch.tensor([[True, True, True, False]])
    assert pairs_mask(mask, directed=True)[0].tolist() == [i < 3 and j < 3 for i, j in order]


def test_directions_are_two_sites_and_may_differ() -> None:
    made = policy("directed", counts=(0.0, 0.0, 0.0, 1.0))
    rollout = made.sample([Context(k) for k in range(64)], generator=torch.Generator().manual_seed(0))
    final = torch.cat([sample.edges["arrow"] for sample in rollout.samples])
    assert bool((final != final.transpose(1, 2)).any())
    assert rollout.units.unique().tolist() == [3 + 6]
    table = made.sites(rollout)[1]
    assert isinstance(table, Sites)
    assert table.action.shape[-1] == 6


def test_positions_have_zero_mean_and_a_lone_node_stays_put() -> None:
    made = policy()
    rollout = made.sample([Context(k) for k in range(40)], generator=torch.Generator().manual_seed(1))
    positions = rollout.states["positions"]
    torch.testing.assert_close(positions.sum(2), torch.zeros_like(positions[:, :, 0]), rtol=0, atol=2e-5)
    lone = rollout.size == 1
    assert bool(lone.any())
    assert bool((positions[lone] == 0).all())
    assert rollout.units[lone].unique().tolist() == [2]  # an atom and a charge


def test_the_reverse_step_of_a_known_x0_is_bayes_rule() -> None:
    """Two atoms, whose difference is one number per axis: q(x_s | x_t, x_0) ∝ q(x_t | x_s) q(x_s | x_0) on a grid."""
    diffusion = GaussianDiffusion(CosineSchedule(), min_std=1e-6)
    t, s = torch.tensor([0.7]).double(), torch.tensor([0.4]).double()
    (keep_t,), (keep_s,) = diffusion.schedule.alpha_bar(t), diffusion.schedule.alpha_bar(s)
    x0, xt = 0.75, -0.5  # coordinates of the first atom along the first axis; the second has the opposite sign
    grid = torch.linspace(-6, 6, 20001, dtype=torch.float64)

    def density(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:  # of an atom of two: the variance is half
        return torch.exp(-((x - mean) ** 2) / variance)

    alpha = keep_t / keep_s
    weights = density(grid, keep_s.sqrt() * x0, 1 - keep_s) * density(torch.tensor(xt).double(), alpha.sqrt() * grid, 1 - alpha)
    weights = weights / torch.trapezoid(weights, grid)
    mean = torch.trapezoid(weights * grid, grid)
    variance = torch.trapezoid(weights * (grid - mean) ** 2, grid)
    pair = torch.zeros(1, 2, 3, dtype=torch.float64)
    clean, state = pair.clone(), pair.clone()
    clean[0, :, 0], state[0, :, 0] = torch.tensor([x0, -x0]).double(), torch.tensor([xt, -xt])
    found, std = diffusion.step(clean, state, t, s)
    assert float(found[0, 0, 0]) == pytest.approx(float(mean), abs=1e-9)
    assert float(std[0] ** 2 / 2) == pytest.approx(float(variance), abs=1e-9)
    _, wide = diffusion.step(clean, state, t, s, 1.0)
    assert float(wide[0] ** 2) == pytest.approx(float(1 - alpha), abs=1e-12)


def test_the_law_of_a_two_atom_chain_has_mass_one() -> None:
    """Two atoms move along one number per axis; the law of x_0 given x_1 is a mixture over x_s, integrated on a grid."""
    made = policy(steps=2, counts=(0.0, 0.0, 1.0)).double()
    rollout = made.sample([Context(0)], generator=torch.Generator().manual_seed(0))
    grid = torch.linspace(-9, 9, 61, dtype=torch.float64)
    first = rollout.index(torch.zeros(len(grid), dtype=torch.long))
    positions = first.states["positions"].clone()
    positions[:, 1, :, 0] = torch.stack([grid, -grid], 1)
    moved = replace(first, states=dict(first.states) | {"positions": positions})
    with torch.no_grad():
        sites = made.sites(moved, torch.zeros(len(grid), 1, dtype=torch.long))
    space = sites[-1]
    assert isinstance(space, GaussianSites)
    # the density of the first step, integrated over all three axes: along the first by the grid, along the others in closed form
    logp = space.score().logp.sum((1, 2))
    std = float(space.std[0, 0, 0])
    mean = space.mean[0, 0]
    offset = positions[0, 1] - mean
    others = -(offset[:, 1:] ** 2).sum() / (2 * std**2) - 2 * (math.log(std) + 0.5 * math.log(2 * math.pi))
    along = (logp - others).exp() * math.sqrt(2)  # y = sqrt(2) x is the orthonormal coordinate
    assert float(torch.trapezoid(along, grid)) == pytest.approx(1.0, abs=1e-6)


def test_a_rollout_of_given_graphs_ends_in_them_and_can_be_scored() -> None:
    made = policy()
    drawn = made.sample([Context(k) for k in range(12)], generator=torch.Generator().manual_seed(2))
    rollout = made.rollout_of(drawn.samples, generator=torch.Generator().manual_seed(3))
    assert bool(rollout.logp.isnan().all())
    for name, value in rollout.states.items():
        assert torch.equal(value[:, -1], drawn.states[name][:, -1]), name
    scores = score_sites(made.sites(rollout))
    assert bool(scores.logp[scores.mask].isfinite().all())
    assert made.can_draw(drawn.samples[0])
    assert not made.can_draw("CCO")


def test_the_likelihood_loss_by_loops() -> None:
    made = policy()
    drawn = made.sample([Context(k) for k in range(6)], generator=torch.Generator().manual_seed(4))
    last = torch.full((6, 1), made.num_steps)
    clean = made.layout.read(drawn.states, drawn.size, last)
    seen: dict[str, Any] = {}

    def spy(module: nn.Module, given: tuple[Any, ...], found: FieldLogits) -> None:
        seen["given"], seen["found"] = given, found

    made.network.register_forward_hook(spy)
    with torch.no_grad():
        losses = made.likelihood_loss(clean, generator=torch.Generator().manual_seed(5))
    found: FieldLogits = seen["found"]
    parts: dict[str, list[float]] = {"atom": [], "charge": [], "bond": [], "positions": []}
    for b, n in enumerate(clean.sizes.tolist()):
        for i in range(n):
            for name in ("atom", "charge"):
                logits = found.nodes[name][b, i].tolist()
                parts[name].append(math.log(sum(map(math.exp, logits))) - logits[int(clean.nodes[name][b, i])])
            assert clean.positions is not None
            assert found.positions is not None
            parts["positions"].append(float((found.positions[b, i] - clean.positions[b, i]).square().sum()))
            for j in range(i):
                logits = found.edges["bond"][b, i, j].tolist()
                parts["bond"].append(math.log(sum(map(math.exp, logits))) - logits[int(clean.edges["bond"][b, i, j])])
    means = {name: sum(values) / len(values) for name, values in parts.items()}
    for name, value in means.items():
        assert float(losses[f"loss_{name}"]) == pytest.approx(value, rel=1e-5)
    wanted = means["atom"] + 0.5 * means["charge"] + 2 * means["bond"] + 3 * means["positions"]
    assert float(losses["loss"]) == pytest.approx(wanted, rel=1e-5)
    times = seen["given"][3]
    assert sorted((times * 6).floor().int().tolist()) == [0, 1, 2, 3, 4, 5]  # stratified


def small(**changes: Any) -> FieldBatch:
    given: dict[str, Any] = {
        "nodes": {"atom": torch.tensor([[0, 1]]), "charge": torch.tensor([[0, 1]])},
        "edges": {"bond": torch.tensor([[[0, 1], [1, 0]]])},
        "positions": torch.tensor([[[1.0, 0, 0], [-1, 0, 0]]]),
        "mask": torch.ones(1, 2, dtype=torch.bool),
    }
    return FieldBatch(**given | changes)


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (small(nodes={"atom": torch.tensor([[0, 1]])}), "graphs: no node field 'charge', expected one"),
        (small(nodes={"atom": torch.tensor([[0, 3]]), "charge": torch.tensor([[0, 1]])}), "class of field atom: 3, expected"),
        (small(edges={"bond": torch.tensor([[[0, 1], [0, 0]]])}), "graphs: field 'bond' is not symmetric"),
        (small(positions=None), "positions: none given, expected one per node"),
        (small(positions=torch.full((1, 2, 3), torch.nan)), "positions: not finite"),
        (small(mask=torch.zeros(1, 2, dtype=torch.bool)), "graphs: one of 0 nodes, expected a size"),
    ],
)
def test_graphs_that_it_cannot_draw_are_refused(graph: FieldBatch, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        policy().likelihood_loss(graph)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"node_fields": []}, "node_fields: none, expected at least one"),
        ({"node_fields": [ATOM, ATOM]}, "two of the name 'atom'"),
        ({"node_fields": [replace(ATOM, directed=True)]}, "node_fields: 'atom' is directed"),
        ({"temperature": 0.0}, "temperature: 0"),
        ({"temperature": 1e-40}, "temperature: 1e-40, expected at least 1e-30"),
        ({"num_steps": 0}, "num_steps: 0"),
        ({"decode": nn.Identity()}, "decode: Identity is a network, expected a function"),
        ({"encode": nn.Identity()}, "encode: Identity is a network, expected a function"),
    ],
)
def test_arguments_are_refused(change: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"node_fields": [ATOM], "edge_fields": [BOND], "node_counts": (0.0, 1.0)}
    with pytest.raises(ValueError, match=said):
        FieldPolicy(nn.Linear(1, 1), **given | change)


def test_a_context_that_fixes_sites_is_refused() -> None:
    with pytest.raises(ValueError, match="fixed: given, expected none"):
        policy().sample([Context(0, {"fixed": object()})])
    with pytest.raises(ValueError, match="contexts: none given"):
        policy().sample([])


def test_an_update_reports_every_field() -> None:
    made = policy(counts=(0.0, 0.0, 0.0, 1.0))

    def text(samples: list[FieldBatch], **columns: Any) -> list[float]:
        return [float(sample.nodes["charge"].sum()) for sample in samples]

    config = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, num_iterations=2, beta=0.1, learning_rate=1e-2)
    seen = GRPOTrainer(made, text, config).train()
    for name in ("atom", "charge", "bond", "positions"):
        for what in ("kl", "entropy", "log_ratio"):
            assert math.isfinite(seen[1][f"fields/{name}/{what}"])
        assert seen[0][f"fields/{name}/log_ratio"] == 0.0  # the first update of a generation
        assert seen[1][f"fields/{name}/log_ratio"] > 0.0
    assert {"atom", "charge", "bond", "positions"} == {key.split("/")[1] for key in seen[0] if key.startswith("fields/")}


def whole_space(mean: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    """Three dimensions per atom are counted, as if positions could have any mean."""
    *others, dimension = rest
    return (mean, *others, torch.full_like(dimension, 2.9))


def off_centre(mean: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    """Means are outside the subspace that the draws are in."""
    return (mean + 0.1, *rest)


@pytest.mark.parametrize("change", [whole_space, off_centre])
def test_the_law_of_gaussian_sites_sees_a_wrong_density(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fields, field_steps):  # where steps are scored, and where they are drawn
        monkeypatch.setattr(module, "gaussian_sites", lambda law, then: change(*gaussian_sites(law, then)))
    wrong = policy(counts=(0.0, 0.0, 0.0, 1.0))
    others = [law for law in LAWS if law != "gaussian sites"]
    (row,) = (row for row in check_policy(wrong, contexts(), skip=others).rows if row.law == "gaussian sites")
    assert row.outcome == "failed", row


def test_given_graphs_are_centred() -> None:
    made = policy()
    (one,) = made.sample([Context(0, {"num_nodes": 3})], generator=torch.Generator().manual_seed(2)).samples
    assert one.positions is not None
    rollout = made.rollout_of([replace(one, positions=one.positions + 5)], generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(rollout.states["positions"][0, -1], one.positions[0], rtol=0, atol=1e-5)


def test_the_most_sites_are_those_of_the_largest_graph_that_it_draws() -> None:
    made = policy()
    rollout = made.sample([Context(0, {"num_nodes": 1})], generator=torch.Generator().manual_seed(2))
    assert rollout.max_units == made.num_steps * int(made.layout.units(torch.tensor([3])))


def test_a_learned_variance_is_that_of_the_time_a_step_begins_at() -> None:
    made = policy()
    assert made.variance is not None
    assert made.positions is not None
    made.variance.data = torch.linspace(-4, 4, len(made.variance))
    rollout = made.sample([Context(0, {"num_nodes": 3})], generator=torch.Generator().manual_seed(2))
    for k in range(made.num_steps):
        state = made.layout.read(rollout.states, rollout.size, torch.tensor([[k]]))
        t, s = made.grid[k : k + 1], made.grid[k + 1 : k + 2]
        clean = made.network(state.nodes, state.edges, state.positions, t.float(), state.mask).positions
        v = torch.sigmoid(-4 + 8 * t.float())
        assert state.positions is not None
        wanted = made.positions.diffusion.step(clean, state.positions, t, s, v)
        torch.testing.assert_close(made.transition(state, torch.tensor([k])).positions, wanted)
