"""First steps that a group takes together: what is shared, what is learned from, exact probabilities and gradients, costs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from discrete_grpo.core.advantages import advantages
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.loss import grpo_loss
from discrete_grpo.core.rollout import Context, Rollout, group_contexts
from discrete_grpo.diffusion.kernels import D3PM, Kernel
from discrete_grpo.diffusion.noise import uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.policies.restart import Restart
from discrete_grpo.policies.surrogate import EagerLikelihood
from discrete_grpo.testing import check_policy
from tests import oracles
from tests.broken_graph_policies import more_padding, relabelled
from tests.policies.test_graph_conditions import COLUMNS, conditional
from tests.toys import tiny_policy, transformer_policy

State = tuple[int, ...]
KERNELS: tuple[Kernel, Kernel] = (D3PM(uniform(2, CosineSchedule())), D3PM(uniform(2, LinearSchedule())))
STATES: Sequence[State] = oracles.two_node_states(2, 2)
PRIOR = 1 / len(STATES)
EVERYTHING: list[dict[str, Any]] = [
    {},
    {"num_nodes": 2},
    {"restart": Restart((0, 1, 2), (1, 0, 1), 3)},
    {"restart": Restart((2, 2, 2, 1), (1, 0, 0, 1, 0, 1), 1), "fixed": FixedSites({0: 2}, {(0, 1): 1}), "num_nodes": 4},
]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def path_of(rollout: Rollout, row: int, points: slice = slice(None)) -> tuple[State, ...]:
    return tuple(map(tuple, torch.cat([rollout.states[x][row] for x in ("nodes", "pairs")], -1)[points].tolist()))


def same_rollout(a: Rollout, b: Rollout) -> bool:
    states = a.states.keys() == b.states.keys() and all(torch.equal(a.states[name], b.states[name]) for name in a.states)
    return states and torch.equal(a.logp, b.logp) and torch.equal(a.units, b.units) and a.samples == b.samples


# ---------------------------------------------------------------- what is shared


def test_a_group_has_one_prefix_and_goes_apart_after_it() -> None:
    groups = [7, -2, 7, 100, -2, 7, 7, 5]  # neither sorted nor contiguous, of four sizes
    policy = tiny_policy(num_steps=5, shared_steps=3)
    contexts = [Context(g, {"num_nodes": 4 - (g == -2)}) for g in groups]
    rollout = policy.sample(contexts, generator=seeded(0))
    prefixes = [path_of(rollout, b, slice(4)) for b in range(len(groups))]
    for a, b in itertools.combinations(range(len(groups)), 2):
        assert (prefixes[a] == prefixes[b]) == (groups[a] == groups[b])
        assert path_of(rollout, a)[4:] != path_of(rollout, b)[4:]
    alone = [groups.count(g) == 1 for g in groups]
    assert rollout.states["start"].tolist() == [0 if one else 3 for one in alone]
    assert ((rollout.units > 0) == (torch.arange(5) >= rollout.states["start"][:, None])).all()
    assert (rollout.logp[rollout.units == 0] == 0).all()
    assert (rollout.logp[rollout.units > 0] < 0).all()
    assert rollout.group.tolist() == groups
    assert same_rollout(rollout, policy.sample(contexts, generator=seeded(0)))


def test_a_restart_shares_the_steps_between_its_own_first_and_the_last_shared() -> None:
    graph = (0, 1, 2, 0), (1, 0, 1, 0, 0, 1)
    columns = [{"restart": Restart(*graph, step)} for step in (0, 1, 2, 3)]
    rollout = tiny_policy(num_steps=5, shared_steps=2).sample(group_contexts(4, 12, columns), generator=seeded(0))
    assert rollout.states["start"].tolist() == [2] * 36 + [3] * 12
    distinct = [[len({path_of(rollout, b)[k] for b in range(12 * g, 12 * g + 12)}) for k in range(6)] for g in range(4)]
    for g, first in enumerate((0, 1)):  # one re-noised graph, one prefix
        assert distinct[g][:3] == [1, 1, 1]
        assert distinct[g][5] > 2
        own = path_of(rollout, 12 * g)
        assert len(set(own[: first + 1])) == 1
    for g in (2, 3):  # no step before the restart is left to share: every row has noise of its own
        assert distinct[g][g] > 4
    plain = tiny_policy(num_steps=5).sample(group_contexts(2, 12, columns[2:]), generator=seeded(0))
    unaffected = tiny_policy(num_steps=5, shared_steps=2).sample(group_contexts(2, 12, columns[2:]), generator=seeded(0))
    assert same_rollout(plain, unaffected)


def test_fixed_sites_are_noised_once_for_the_prefix_and_come_out_clean() -> None:
    fixed = {"fixed": FixedSites({1: 1}, {(1, 2): 1}), "num_nodes": 4}
    rollout = tiny_policy(num_steps=5, shared_steps=3).sample(group_contexts(2, 8, [fixed, fixed]), generator=seeded(1))
    assert len({path_of(rollout, b, slice(4)) for b in range(8)}) == 1
    assert rollout.units.tolist() == [[0, 0, 0, 8, 8]] * 16
    assert (rollout.states["nodes"][:, -1, 1] == 1).all()
    assert (rollout.states["pairs"][:, -1, 2] == 1).all()
    assert len({path_of(rollout, b)[4] for b in range(8)}) > 2


@pytest.mark.parametrize("sized", [False, True])
def test_groups_of_one_are_drawn_to_the_bit_as_without_shared_steps(sized: bool) -> None:
    contexts = [Context(9 - k, EVERYTHING[k % 4]) for k in range(8)]
    drawn = []
    for shared in (0, 3):
        policy: Any = tiny_policy(num_steps=4, shared_steps=shared)
        policy = SizedPolicy(policy, LearnedSizes(policy.node_counts)).eval() if sized else policy
        drawn.append(policy.sample(contexts, generator=seeded(2)))
    assert same_rollout(*drawn)


def test_members_of_one_size_share_where_the_size_is_a_choice() -> None:
    policy = SizedPolicy(transformer_policy(shared_steps=2), LearnedSizes((0.0, 0.3, 0.3, 0.0, 0.4))).eval()
    rollout = policy.sample(group_contexts(3, 5), generator=seeded(3))
    for a, b in itertools.combinations(range(15), 2):
        if rollout.size[a] == rollout.size[b] > 1:
            assert (path_of(rollout, a, slice(3)) == path_of(rollout, b, slice(3))) == (a // 5 == b // 5)
    assert (rollout.units[:, 0] == 1).all()
    sizes = rollout.size.unflatten(0, (3, 5))
    company = [sizes[b // 5].tolist().count(int(rollout.size[b])) > 1 for b in range(15)]
    assert {True, False} == set(company)
    assert [bool(u) for u in (rollout.units[:, 1:3] == 0).all(-1)] == company
    scores = score_sites(policy.sites(rollout))
    assert torch.equal(scores.mask.sum(-1), rollout.units)
    torch.testing.assert_close(scores.logp.sum(-1).detach(), rollout.logp, rtol=0, atol=1e-5)


def test_properties_and_guidance_reach_the_shared_steps() -> None:
    policy = conditional(2.0, shared_steps=3)
    seen: list[Tensor] = []
    policy.network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[4].clone()))
    columns: list[dict[str, Any]] = [{**c, "num_nodes": 3} for c in COLUMNS]
    groups = [2, 2, 0, 1, 2, 0, 1]
    rollout = policy.sample([Context(g, columns[g]) for g in groups], generator=seeded(0))
    given = rollout.states["properties"]
    assert [len(rows) for rows in seen] == [6, 6, 6, 14]  # both branches: three groups three times, then every row once
    for found, wanted in zip(seen, [given[[0, 2, 3]]] * 3 + [given], strict=True):
        torch.testing.assert_close(found, torch.cat([wanted, torch.full_like(wanted, torch.nan)]), equal_nan=True)
    torch.testing.assert_close(score_sites(policy.sites(rollout)).logp.sum(-1).detach(), rollout.logp, rtol=0, atol=1e-5)


def test_a_shared_step_can_still_be_asked_for() -> None:
    policy = tiny_policy(shared_steps=2)
    rollout = policy.sample(group_contexts(2, 3), generator=seeded(0))
    for sites in policy.sites(rollout, torch.tensor([[1, 0]] * 6)):
        assert not bool(sites.mask.any())
        torch.testing.assert_close(sites.log_probs.exp().sum(-1), torch.ones(sites.log_probs.shape[:-1]))
    full = replace(rollout, states={k: v for k, v in rollout.states.items() if k != "start"})
    steps = score_sites(policy.sites(full)).logp.sum(-1)
    assert (steps[:, :2] < 0).all()
    assert torch.equal(steps[:3, :2], steps[:1, :2].expand(3, -1))


# ---------------------------------------------------------------- by enumeration


def make(num_steps: int, shared: int, seed: int = 0) -> GraphPolicy:
    """A policy over graphs of two nodes, float64, whose network is a table; eight states."""
    network = oracles.LookupNetwork(2, 2, 2, 2, seed)
    return GraphPolicy(
        network, *KERNELS, [0.0, 0.0, 1.0], num_steps=num_steps, shared_steps=shared, decode=lambda g: [None] * len(g)
    )


def step_table(policy: GraphPolicy, k: int) -> Tensor:
    """p(x_s | x_t) as [now, next]: the network's softmax and the kernel's table, summed over clean classes."""
    t, s = float(policy.grid[k]), float(policy.grid[k + 1])
    lines = []
    for now in STATES:
        edges = torch.tensor([[[0, now[2]], [now[2], 0]]])
        nodes, pairs = policy.network(torch.tensor([now[:2]]), edges, torch.tensor([t]).double(), torch.ones(1, 2).bool())
        logits = (nodes[0, 0], nodes[0, 1], pairs[0, 0, 1])
        kernels = (KERNELS[0], KERNELS[0], KERNELS[1])
        rows = [z.softmax(-1) @ kernel.table(t, s)[now[u]] for u, (kernel, z) in enumerate(zip(kernels, logits, strict=True))]
        lines.append(torch.stack([rows[0][a[0]] * rows[1][a[1]] * rows[2][a[2]] for a in STATES]))
    return torch.stack(lines)


def rollout_of(paths: Tensor, groups: Tensor, start: int | None) -> Rollout:
    """Trajectories of state numbers [B, S+1] as the policy stores them."""
    stored = torch.tensor(STATES, dtype=torch.uint8)[paths]
    b, steps = len(paths), paths.shape[1] - 1
    states = {"nodes": stored[..., :2], "pairs": stored[..., 2:]}
    return Rollout(
        states=states if start is None else states | {"start": torch.full((b,), start)},
        group=groups,
        logp=torch.zeros(b, steps, dtype=torch.float64),
        units=torch.where(torch.arange(steps) >= (start or 0), 3, 0).repeat(b, 1),
        size=torch.full((b,), 2),
        max_units=3 * steps,
        samples=(None,) * b,
    )


def every_path(points: int) -> Tensor:
    return torch.cartesian_prod(*[torch.arange(len(STATES))] * points).reshape(-1, points)


def test_the_branches_of_each_prefix_have_mass_one_and_are_those_of_the_enumeration() -> None:
    policy, shared = make(3, 1), 1
    paths = every_path(4)
    prefix = paths[:, 0] * 8 + paths[:, 1]
    scores = score_sites(policy.sites(rollout_of(paths, prefix, shared)))
    found = scores.logp.sum((1, 2))
    wanted = step_table(policy, 1)[paths[:, 1], paths[:, 2]] * step_table(policy, 2)[paths[:, 2], paths[:, 3]]
    torch.testing.assert_close(found, wanted.log(), rtol=0, atol=1e-10)
    assert (scores.logp[:, :shared] == 0).all()
    mass = torch.zeros(64, dtype=torch.float64).index_add(0, prefix, found.exp().detach())
    torch.testing.assert_close(mass, torch.ones_like(mass), rtol=0, atol=1e-12)


def pvalue(counts: Counter[Any], wanted: dict[Any, float]) -> float:
    """Of a chi-square test; what is expected less than five times is one cell."""
    total = sum(counts.values())
    assert counts.keys() <= wanted.keys()
    assert sum(wanted.values()) == pytest.approx(1.0, abs=1e-9)
    likely = [cell for cell in wanted if wanted[cell] * total >= 5]
    observed, expected = [float(counts[cell]) for cell in likely], [wanted[cell] * total for cell in likely]
    rest = total - sum(expected)
    if rest > 1e-6:
        observed, expected = [*observed, total - sum(observed)], [*expected, rest]
    assert len(likely) > 20
    return float(chisquare(observed, expected).pvalue)


def test_prefixes_are_drawn_once_a_group_and_branches_independently() -> None:
    policy, count = make(2, 1), 5000
    first, second = (step_table(policy, k).detach() for k in (0, 1))
    rollout = policy.sample(group_contexts(count, 2), generator=seeded(0))
    number = {state: k for k, state in enumerate(STATES)}
    drawn = [tuple(number[s] for s in path_of(rollout, b)) for b in range(2 * count)]
    prefixes, pairs = (
        Counter(p[:2] for p in drawn[::2]),
        Counter((a[1], a[2], b[2]) for a, b in zip(drawn[::2], drawn[1::2], strict=True)),
    )
    cells = list(itertools.product(range(8), repeat=2))
    assert pvalue(prefixes, {(a, b): PRIOR * float(first[a, b]) for a, b in cells}) > 1e-3
    middle = PRIOR * first.sum(0)
    wanted = {(m, a, b): float(middle[m] * second[m, a] * second[m, b]) for m in range(8) for a, b in cells}
    assert pvalue(pairs, wanted) > 1e-3
    torch.testing.assert_close(rollout.logp, score_sites(policy.sites(rollout)).logp.sum(-1).detach(), rtol=0, atol=1e-10)


def test_the_gradient_is_that_of_the_branch_objective_and_the_prefix_adds_nothing() -> None:
    """All groups of two: Σ p(prefix) p(a) p(b) Σ_i A_i ∇ log p(branch i) = (G-1)/G Σ sg(p(prefix)) ∇ Σ_a p(a | prefix) r(a)."""
    policy, shared = make(3, 2), 2
    one, two, last = (step_table(policy, k) for k in range(3))
    every = every_path(5)  # noise, two shared steps, both branches
    every = every[every[:, 0] == 0]  # all that follows from one noise
    paths = torch.stack([every[:, :4], every[:, [0, 1, 2, 4]]], 1).flatten(0, 1)
    groups = torch.arange(len(every)).repeat_interleave(2)
    reward = torch.tensor([1.3 * s[0] - 0.4 * s[1] + 2.0 * s[0] * s[2] for s in STATES], dtype=torch.float64)
    a = advantages(reward[paths[:, -1]][:, None], groups, scale_rewards="none")
    prefix = one[0, every[:, 1]] * two[every[:, 1], every[:, 2]]
    chance = (prefix * last[every[:, 2], every[:, 3]] * last[every[:, 2], every[:, 4]]).detach()
    assert float(chance.sum()) == pytest.approx(1.0, abs=1e-12)
    weight = chance.repeat_interleave(2) / 2
    parameters = list(policy.parameters())

    def gradient(start: int | None, advantage: Tensor) -> Tensor:
        scores = score_sites(policy.sites(rollout_of(paths, groups, start)))
        loss = grpo_loss(scores, None, advantage, weight, loss_type="dr_grpo", epsilon=1e6).loss
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, materialize_grads=True)])

    middle = (one[0] @ two).detach()
    branch = -0.5 * (middle[:, None] * last * reward).sum()
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(branch, parameters, retain_graph=True, materialize_grads=True)])
    found = gradient(shared, a)
    assert float(wanted.abs().max()) > 1e-3
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient(None, a), found, rtol=0, atol=1e-12)  # every step in the loss
    assert not torch.allclose(gradient(None, a.clamp_min(0)), gradient(shared, a.clamp_min(0)), atol=1e-3)  # no sum of zero
    whole = -0.5 * (one[0] @ two @ last * reward).sum()  # trains the shared steps too: another objective
    other = torch.cat([g.flatten() for g in torch.autograd.grad(whole, parameters)])
    assert not torch.allclose(other, wanted, atol=1e-3)


def test_the_laws_of_whole_trajectories_hold_for_groups_of_one() -> None:
    space = rollout_of(every_path(3), torch.zeros(512, dtype=torch.long), None)
    space = replace(space, group=every_path(3)[:, 0])
    skip = {
        "checkpoint",
        "learning",
        "reinforce",
        "permutation",
    }  # the table network numbers its nodes, and is no part of the package
    check_policy(make(2, 1), [Context(0), Context(1)], space=space, samples=500, skip=skip).raise_on_failure()


# ---------------------------------------------------------------- laws of replay, with everything else


@pytest.mark.parametrize(
    "kind", ["everything", pytest.param("guided", marks=pytest.mark.slow), pytest.param("sized", marks=pytest.mark.slow)]
)
def test_the_conformance_kit_passes(kind: str) -> None:
    policy: Any = conditional(2.0, shared_steps=2) if kind == "guided" else transformer_policy(shared_steps=2)
    policy = SizedPolicy(policy, LearnedSizes(policy.node_counts)).eval() if kind == "sized" else policy
    columns = COLUMNS if kind == "guided" else EVERYTHING
    skip = {"learning", "calibration"}  # of groups of one, which share nothing
    changes: dict[str, Any] = {"permute": relabelled, "pad": more_padding} if kind == "guided" else {}  # these know no fixed sites
    check_policy(policy, group_contexts(len(columns), 3, columns), samples=50, skip=skip, **changes).raise_on_failure()


def test_a_surrogate_of_steps_leaves_the_shared_ones_out() -> None:
    policy = EagerLikelihood(transformer_policy(shared_steps=2))
    rollout = policy.sample(group_contexts(2, 3), generator=seeded(0))
    scores = policy.score(rollout)
    assert torch.equal(scores.mask.sum(-1), rollout.units)
    assert (scores.logp[:, :2] == 0).all()
    assert (scores.logp[:, 2:].sum(-1) < 0).all()
