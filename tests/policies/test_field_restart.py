"""Starting again from finished graphs with several fields: noise, log-probs of segments, the kit, and local search."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import Context, Refinable, group_contexts
from discrete_grpo.domains.fields import FieldBatch
from discrete_grpo.policies.field_restart import FieldRestart, field_restarts
from discrete_grpo.policies.node_count import RunningSizes, SizedPolicy
from discrete_grpo.runs.serialization import build, describe
from discrete_grpo.testing import check_policy
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.local_search import local_search
from discrete_grpo.training.trainer import GRPOTrainer
from tests import oracles
from tests.policies.test_fields import policy

SPACE = ((1.0, 0.0, -1.0), (-1.0, 0.0, 1.0))
MOLECULE = FieldRestart(((1, 2), (0, 1)), ((1,),), 2, SPACE)
HALF: Any = ((1, 1.5), (0, 1))
KINDS: dict[str, FieldRestart] = {
    "molecule": MOLECULE,
    "plain": replace(MOLECULE, positions=None),
    "directed": FieldRestart(((1, 2, 0),), ((1, 0, 0, 0, 1, 1),), 2),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ones(samples: list[FieldBatch], **columns: Any) -> list[float]:
    """Share of atoms of class 1."""
    return [float((one.nodes["atom"][one.mask] == 1).float().mean()) for one in samples]


@every_kind
def test_a_trajectory_stands_still_until_its_first_step(kind: str) -> None:
    made, again = policy(kind, steps=4), KINDS[kind]
    whole = replace(again, step=0)
    contexts = [*group_contexts(1, 3, [{"restart": again}]), Context(1), Context(2, {"restart": whole})]
    rollout = made.sample(contexts, generator=seeded(0))
    n = again.num_nodes
    assert rollout.states["start"].tolist() == [2, 2, 2, 0, 0]
    assert rollout.size[[0, 1, 2, 4]].tolist() == [n] * 4
    per_step = int(made.layout.units(torch.tensor([n])))
    assert rollout.units[:3].tolist() == [[0, 0, per_step, per_step]] * 3
    assert (rollout.units[3:] > 0).all()
    assert (rollout.logp[:3, :2] == 0).all()
    for name, values in rollout.states.items():
        if name != "start":
            assert torch.equal(values[:3, 0], values[:3, 2])
            assert torch.equal(values[:3, 1], values[:3, 2])
    scores = score_sites(made.sites(rollout))
    assert torch.equal(scores.mask.sum(-1), rollout.units)
    torch.testing.assert_close(scores.logp.sum(-1), rollout.logp, rtol=0, atol=1e-5)
    free = replace(rollout, states={name: value for name, value in rollout.states.items() if name != "start"})
    every_step = score_sites(made.sites(free)).logp.sum(-1)
    torch.testing.assert_close(every_step[:, 2:], rollout.logp[:, 2:], rtol=0, atol=1e-5)
    assert (every_step[:3, :2] < 0).any()


def test_restarts_of_several_sizes_are_padded_behind_their_nodes() -> None:
    layout = policy().layout
    large = FieldRestart(((2, 0, 1), (1, 1, 0)), ((1, 0, 1),), 1, (*SPACE, (0.5, 0.0, 0.5)))
    found = field_restarts([Context(0, {"restart": MOLECULE}), Context(1), Context(2, {"restart": large})], layout, 4, 3)
    assert found is not None
    assert found.step.tolist() == [2, 0, 1]
    graphs = found.graphs
    assert graphs.mask.tolist() == [[True, True, False, False], [False] * 4, [True, True, True, False]]
    assert graphs.nodes["atom"].tolist() == [[1, 2, 0, 0], [0] * 4, [2, 0, 1, 0]]
    assert graphs.nodes["charge"].tolist() == [[0, 1, 0, 0], [0] * 4, [1, 1, 0, 0]]
    bonds = [{(0, 1), (1, 0)}, set(), {(0, 1), (1, 0), (1, 2), (2, 1)}]
    assert [set(map(tuple, edges.nonzero().tolist())) for edges in graphs.edges["bond"]] == bonds
    assert graphs.positions is not None
    space = torch.tensor([[*SPACE, (0.0,) * 3, (0.0,) * 3], [(0.0,) * 3] * 4, [*SPACE, (0.5, 0.0, 0.5), (0.0,) * 3]])
    torch.testing.assert_close(graphs.positions, space)
    assert field_restarts([Context(0)], layout, 4, 3) is None


def test_the_state_at_the_first_step_has_the_law_of_the_noise() -> None:
    made, count = policy(steps=4), 4000
    rollout = made.sample([Context(k, {"restart": MOLECULE}) for k in range(count)], generator=seeded(0))
    time = 0.5
    keep = {"node atom": oracles.cosine_alpha_bar(time**1.5), "node charge": 1 - time, "edge bond": oracles.cosine_alpha_bar(time)}
    fields = {f"node {f.name}": f for f in made.node_fields} | {f"edge {f.name}": f for f in made.edge_fields}
    clean = {"node atom": MOLECULE.nodes[0], "node charge": MOLECULE.nodes[1], "edge bond": MOLECULE.pairs[0]}
    for name, share in keep.items():
        prior = fields[name].kernel.noise.initial().tolist()
        for site, start in enumerate(clean[name]):
            law = oracles.noise_matrix(prior, share)[start]
            found = torch.bincount(rollout.states[name][:, 2, site].long(), minlength=len(prior))
            possible = [k for k in range(len(prior)) if float(law[k]) > 0]
            assert int(found[possible].sum()) == count
            if len(possible) > 1:
                assert chisquare(found[possible].tolist(), [count * float(law[k]) for k in possible]).pvalue > 1e-3
    scale = oracles.cosine_alpha_bar(time**2) ** 0.5
    mean = rollout.states["positions"][:, 2].mean(0)
    torch.testing.assert_close(mean, scale * torch.tensor(SPACE), rtol=0, atol=0.05)


@every_kind
def test_the_kit_on_a_batch_of_everything(kind: str) -> None:
    again = KINDS[kind]
    tail: tuple[dict[str, Any], ...] = ({}, {"restart": again}, {"num_nodes": 2}, {"restart": replace(again, step=1)})
    report = check_policy(
        policy(kind), group_contexts(4, 2, tail), samples=200, skip=("learning",), trusted=("discrete_grpo", "tests")
    )
    assert report.passed, str(report)


@every_kind
def test_restarts_are_the_finished_graphs_at_the_nearest_grid_point(kind: str) -> None:
    made = policy(kind, steps=4)
    assert isinstance(made, Refinable)
    rollout = made.sample([Context(k) for k in range(6)], generator=seeded(0))
    for b, column in zip((4, 1), made.restarts(rollout, torch.tensor([4, 1]), 0.3), strict=True):
        found, sample = column["restart"], rollout.samples[b]
        assert found.step == 3  # times 1, 3/4, 1/2, 1/4, 0
        assert [list(values) for values in found.nodes] == [sample.nodes[f.name][0].tolist() for f in made.node_fields]
        name = made.edge_fields[0].name
        pairs = [(i, j) for j in range(found.num_nodes) for i in range(j)]
        if kind == "directed":
            pairs = [way for i, j in pairs for way in ((i, j), (j, i))]
        assert list(found.pairs[0]) == [int(sample.edges[name][0, i, j]) for i, j in pairs]
        assert (found.positions is None) == (kind != "molecule")
        if kind == "molecule":
            torch.testing.assert_close(torch.tensor(found.positions), sample.positions[0], rtol=0, atol=1e-6)
        assert build(json.loads(json.dumps(describe(column)))) == column
        made.check_condition(column)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"restart": 3}, "restart: 3, expected a FieldRestart"),
        ({"restart": replace(MOLECULE, step=3)}, "step of restart: 3, expected 0 to 2"),
        ({"restart": replace(MOLECULE, nodes=((1, 3), (0, 1)))}, "class of field atom: 3, expected 0 to 2"),
        ({"restart": replace(MOLECULE, nodes=((1, 257), (0, 1)))}, "class of node atom in restart: 257, expected 0 to 255"),
        ({"restart": replace(MOLECULE, pairs=((2,),))}, "class of field bond: 2, expected 0 to 1"),
        ({"restart": replace(MOLECULE, pairs=((1, 0),))}, "restart: 2 values of edge bond, expected 1 for 2 nodes"),
        ({"restart": replace(MOLECULE, nodes=((1, 2),))}, "restart: 1 node and 1 pair fields, expected 2 and 1"),
        ({"restart": replace(MOLECULE, pairs=())}, "restart: 2 node and 0 pair fields, expected 2 and 1"),
        ({"restart": replace(MOLECULE, nodes=())}, "num_nodes: 0, expected 1 to 3"),
        ({"restart": replace(MOLECULE, positions=None)}, "restart: positions None, expected one per node"),
        ({"restart": replace(MOLECULE, positions=SPACE[:1])}, "restart: 1 values of positions, expected 2 for 2 nodes"),
        ({"restart": replace(MOLECULE, positions=((0.0,) * 4,) * 2)}, "restart: position (0.0, 0.0, 0.0, 0.0), expected three"),
        ({"restart": replace(MOLECULE, nodes=HALF)}, "class of node atom in restart: 1.5, expected a whole number"),
        ({"restart": replace(MOLECULE, positions=((0.0, 1.0),) * 2)}, "restart: position (0.0, 1.0), expected three numbers"),
        ({"restart": MOLECULE, "num_nodes": 3}, "num_nodes: 3, expected 2 as in restart"),
        ({"restart": replace(MOLECULE, nodes=((0,) * 4, (0,) * 4))}, "num_nodes: 4, expected 1 to 3"),
        ({"num_nodes": 9}, "num_nodes: 9, expected 1 to 3"),
        ({"fixed": 1}, "fixed: given, expected none"),
    ],
)
def test_a_wrong_restart_is_named_before_any_work(columns: dict[str, Any], said: str) -> None:
    made = policy()
    for call in (lambda: made.check_condition(columns), lambda: made.sample([Context(0, columns)])):
        with pytest.raises(ValueError, match=r"restart|class|num_nodes|fixed") as caught:
            call()
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_positions_are_refused_by_a_policy_without_them() -> None:
    with pytest.raises(ValueError, match=r"restart: positions \(\(1\.0, 0\.0, -1\.0\), .*, expected none"):
        policy("plain").check_condition({"restart": MOLECULE})


def test_restarts_of_a_group_agree_and_steps_are_not_negative() -> None:
    contexts = [Context(0, {"restart": MOLECULE}), Context(0, {"restart": replace(MOLECULE, step=1)})]
    with pytest.raises(ValueError, match="restart: differs within group 0, expected one per group"):
        policy().sample(contexts)
    with pytest.raises(ValueError, match="step of restart: -1, expected at least 0"):
        replace(MOLECULE, step=-1)


@every_kind
def test_search_and_refinement_start_from_good_samples(kind: str) -> None:
    made = policy(kind, steps=4)
    found = local_search(made, ones, rounds=3, population=4, children=4, time=0.5, generator=seeded(0))
    assert found.history[-1]["mean"] >= found.history[0]["mean"]
    assert found.history[-1]["drawn"] == 64
    config = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, refine_fraction=0.5, learning_rate=1e-3)
    lines = GRPOTrainer(made, ones, config).train()
    assert all(line["loss"] == line["loss"] for line in lines)


def test_a_learned_size_goes_with_restarts() -> None:
    inner = policy("plain")
    sized = SizedPolicy(inner, RunningSizes([0.0, *[1 / inner.max_nodes] * inner.max_nodes]))
    drawn = sized.sample([Context(k) for k in range(3)], generator=seeded(0))
    columns = sized.restarts(drawn, torch.arange(3), 0.5)
    again = sized.sample([Context(k, one) for k, one in enumerate(columns)], generator=seeded(1))
    assert again.size.tolist() == drawn.size.tolist()
