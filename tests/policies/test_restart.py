"""Starting again from good samples: exact log-probs of segments, the memory, training on it, local search."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor, nn

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.loss import grpo_loss
from discrete_grpo.core.rollout import Context, Rollout, group_contexts
from discrete_grpo.core.step_selection import num_selected, select_steps
from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM, Kernel
from discrete_grpo.diffusion.noise import Noise, absorbing, marginal, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.policies.restart import Restart, grid_point
from discrete_grpo.runs.recorder import read_metrics, read_samples
from discrete_grpo.testing import check_policy
from discrete_grpo.training.elites import Elite, EliteBuffer
from discrete_grpo.training.group_starts import group_starts, seen_columns
from discrete_grpo.training.local_search import local_search
from tests import oracles, trainer_parts
from tests.toys import share_of_class_two, tiny_policy

State = tuple[int, ...]
LINEAR, COSINE = LinearSchedule(), CosineSchedule()
KERNELS: dict[str, tuple[Kernel, Kernel]] = {
    "uniform": (D3PM(uniform(2, COSINE)), D3PM(uniform(2, LINEAR))),
    "marginal": (D3PM(marginal([0.7, 0.3], COSINE)), D3PM(marginal([1.0, 0.0], COSINE))),
    "absorbing": (D3PM(absorbing(2, LINEAR)), D3PM(absorbing(2, COSINE))),
    "interpolation": (FlowInterpolation(Noise((0.6, 0.4), LINEAR, 2)), FlowInterpolation(Noise((0.0, 0.0, 1.0), COSINE, 2))),
    "euler": (FlowEuler(Noise((0.6, 0.4), LINEAR, 2), 3.0, 0.1), FlowEuler(Noise((0.5, 0.5), COSINE, 2))),
}
every_kernel = pytest.mark.parametrize("kind", KERNELS)
CLEAN: State = (1, 0, 1)
STEPS = 3


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def triples(graphs: GraphBatch) -> list[State]:
    return [(int(n[0]), int(n[1]), int(e[0, 1])) for n, e in zip(graphs.nodes, graphs.edges, strict=True)]


def make(kind: str, seed: int = 0, **options: Any) -> GraphPolicy:
    """A policy over graphs of two nodes in three steps, float64, whose network is a table."""
    x, e = KERNELS[kind]
    network = oracles.LookupNetwork(x.noise.num_states, e.noise.num_states, x.noise.num_clean, e.noise.num_clean, seed)
    return GraphPolicy(network, x, e, [0.0, 0.0, 1.0], num_steps=STEPS, decode=triples, **options)


def step_row(policy: GraphPolicy, kind: str, now: State, k: int) -> dict[State, Tensor]:
    """p(x_s | x_t) of every next state with mass: the network's softmax and the kernel's table, summed over classes."""
    x, e = KERNELS[kind]
    t, s = float(policy.grid[k]), float(policy.grid[k + 1])
    edges = torch.tensor([[[0, now[2]], [now[2], 0]]])
    nodes, pairs = policy.network(torch.tensor([now[:2]]), edges, torch.tensor([t]).double(), torch.ones(1, 2).bool())
    rows = []
    for u, (kernel, logits) in enumerate(((x, nodes[0, 0]), (x, nodes[0, 1]), (e, pairs[0, 0, 1]))):
        table = kernel.table(t, s)[now[u]]  # [c, k], rows of zeros for a class that cannot have led here
        p = logits.softmax(-1) * (table.sum(-1) > 0)
        mixed = (p / p.sum() if float(p.detach().sum()) > 0 else p) @ table
        rows.append(
            mixed
            if float(mixed.detach().sum()) > 0
            else nn.functional.one_hot(torch.tensor(now[u]), kernel.noise.num_states).double()
        )
    found = {
        a: rows[0][a[0]] * rows[1][a[1]] * rows[2][a[2]] for a in oracles.two_node_states(x.noise.num_states, e.noise.num_states)
    }
    return {a: p for a, p in found.items() if float(p.detach()) > 0}


def noised(kind: str, time: float) -> dict[State, float]:
    """q(x_t | x_0 = CLEAN) of every state with mass: stay with ᾱ, else a draw of the prior, site by site."""
    x, e = KERNELS[kind]
    bar = {True: oracles.linear_alpha_bar, False: oracles.cosine_alpha_bar}
    rows = []
    for u, kernel in enumerate((x, x, e)):
        keep = bar[isinstance(kernel.noise.schedule, LinearSchedule)](time)  # type: ignore[attr-defined]
        rows.append(oracles.noise_matrix(kernel.noise.initial().tolist(), keep)[CLEAN[u]])
    states = oracles.two_node_states(x.noise.num_states, e.noise.num_states)
    return {a: p for a in states if (p := rows[0][a[0]] * rows[1][a[1]] * rows[2][a[2]]) > 0}


def segments(policy: GraphPolicy, kind: str, start: int) -> dict[tuple[State, ...], tuple[float, Tensor]]:
    """Every path x_{k0}, ..., x_0 -> (q of its start, p of the rest, differentiable)."""
    rows: dict[tuple[State, int], dict[State, Tensor]] = {
        (a, k): step_row(policy, kind, a, k)
        for k in range(start, STEPS)
        for a in oracles.two_node_states(KERNELS[kind][0].noise.num_states, KERNELS[kind][1].noise.num_states)
    }
    found: dict[tuple[State, ...], tuple[float, Tensor]] = {
        (a,): (q, torch.ones((), dtype=torch.float64)) for a, q in noised(kind, float(policy.grid[start])).items()
    }
    for k in range(start, STEPS):
        found = {(*path, a): (q, p * r) for path, (q, p) in found.items() for a, r in rows[path[-1], k].items()}
    return found


def rollout_of(paths: Sequence[tuple[State, ...]], start: int) -> Rollout:
    """Stored as the policy stores them: the state at k0 stands before it too."""
    stored = torch.tensor([[path[0]] * start + list(path) for path in paths], dtype=torch.uint8)
    b = len(paths)
    numbers = {a: k for k, a in enumerate(sorted({path[0] for path in paths}))}
    return Rollout(
        states={"nodes": stored[..., :2], "pairs": stored[..., 2:], "start": torch.full((b,), start)},
        group=torch.tensor([numbers[path[0]] for path in paths]),
        logp=torch.zeros(b, STEPS, dtype=torch.float64),
        units=torch.where(torch.arange(STEPS) >= start, 3, 0).repeat(b, 1),
        size=torch.full((b,), 2),
        max_units=9,
        samples=tuple(path[-1] for path in paths),
    )


def again(step: int, count: int = 1, group: int = 0, graph: State = CLEAN) -> list[Context]:
    return [Context(group, {"restart": Restart(graph[:2], graph[2:], step)})] * count


# ---------------------------------------------------------------- segments, by enumeration


@every_kernel
@pytest.mark.parametrize("start", [1, 2])
def test_the_log_prob_of_a_segment_is_that_of_the_enumeration_and_so_is_the_gradient(kind: str, start: int) -> None:
    policy = make(kind)
    paths = segments(policy, kind, start)
    rollout = rollout_of(list(paths), start)
    scores = score_sites(policy.sites(rollout))
    found, wanted = scores.logp.sum((1, 2)), torch.stack([p for _, p in paths.values()])
    assert scores.logp.dtype == torch.float64
    torch.testing.assert_close(found, wanted.log(), rtol=0, atol=1e-10)
    assert (scores.logp[:, :start] == 0).all()
    assert not bool(scores.mask[:, :start].any())
    assert torch.equal(scores.mask.sum(-1), rollout.units)
    mass = torch.zeros(int(rollout.group.max()) + 1, dtype=torch.float64).index_add(0, rollout.group, found.exp().detach())
    torch.testing.assert_close(mass, torch.ones_like(mass), rtol=0, atol=1e-12)  # of every start on its own
    # The gradient of the loss over all segments is that of E[r | x_0 re-noised].
    q = torch.tensor([q for q, _ in paths.values()], dtype=torch.float64)
    reward = torch.tensor([1.3 * s[0] - 0.4 * s[1] + 2.0 * s[0] * s[2] for s in rollout.samples], dtype=torch.float64)
    parameters = list(policy.parameters())
    expected = torch.autograd.grad(-(q * wanted * reward).sum(), parameters, retain_graph=True)
    loss = grpo_loss(scores, None, reward - 0.3, (q * wanted).detach(), epsilon=1e6).loss
    for a, b in zip(torch.autograd.grad(loss, parameters), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert max(float(g.abs().max()) for g in expected) > 1e-3


@every_kernel
def test_segments_are_drawn_with_their_probabilities(kind: str) -> None:
    policy, draws, start = make(kind), 12_000, 1
    paths = segments(policy, kind, start)
    wanted = {path: q * float(p.detach()) for path, (q, p) in paths.items()}
    rollout = policy.sample(again(start, draws), generator=seeded(0))
    rows = torch.cat([rollout.states["nodes"], rollout.states["pairs"]], -1)[:, start:].tolist()
    counts = Counter(tuple(tuple(s) for s in row) for row in rows)
    assert set(counts) <= set(wanted)
    assert sum(wanted.values()) == pytest.approx(1.0, abs=1e-12)
    likely = sorted((p for p in wanted if wanted[p] * draws >= 5), key=lambda p: -wanted[p])
    observed, expected = [float(counts[p]) for p in likely], [wanted[p] * draws for p in likely]
    observed[-1] += draws - sum(observed)
    expected[-1] += draws - sum(expected)
    assert len(likely) > 15
    assert chisquare(observed, expected).pvalue > 1e-3
    torch.testing.assert_close(rollout.logp, score_sites(policy.sites(rollout)).logp.sum(-1).detach(), rtol=0, atol=1e-10)


@every_kernel
def test_the_laws_of_probability_and_replay_hold_on_segments(kind: str) -> None:
    policy = make(kind)
    space = rollout_of(list(segments(policy, kind, 2)), 2)
    skip = {"checkpoint", "learning", "reinforce"}  # the table network is no part of the package; learning is tested below
    check_policy(policy, again(2), space=space, samples=500, skip=skip).raise_on_failure()


def test_the_conformance_kit_passes_on_a_batch_of_everything() -> None:
    tail: tuple[dict[str, Any], ...] = (
        {},
        {"restart": Restart((0, 1, 2), (1, 0, 1), 2)},
        {"restart": Restart((2, 2, 2, 1), (1, 0, 0, 1, 0, 1), 1), "fixed": FixedSites({0: 2}, {(0, 1): 1}), "num_nodes": 4},
        {"num_nodes": 2},
    )
    check_policy(tiny_policy(share_initial_noise=True), group_contexts(4, 3, tail), samples=200, seconds=3.0).raise_on_failure()


# ---------------------------------------------------------------- what a restart is


def test_a_trajectory_stands_still_until_its_first_step() -> None:
    policy = tiny_policy(share_initial_noise=False)
    restart = Restart((0, 1, 2), (1, 0, 1), 2)
    contexts = [*group_contexts(1, 3, [{"restart": restart}]), Context(1), Context(2, {"restart": replace(restart, step=0)})]
    rollout = policy.sample(contexts, generator=seeded(0))
    assert rollout.states["start"].tolist() == [2, 2, 2, 0, 0]
    assert rollout.size.tolist()[:3] == [3, 3, 3]
    assert rollout.size.tolist()[4] == 3
    assert rollout.units[:3].tolist() == [[0, 0, 6, 6]] * 3
    assert (rollout.units[3:] > 0).all()
    assert (rollout.logp[:3, :2] == 0).all()
    assert (rollout.logp[:, 2:] < 0).all()
    for states in (rollout.states["nodes"][:3], rollout.states["pairs"][:3]):
        assert (states[:, 0] == states[:, 2]).all()
        assert (states[:, 1] == states[:, 2]).all()
    kept = rollout.states["nodes"][:3, 2] == torch.tensor([0, 1, 2, 0])[: rollout.states["nodes"].shape[2]]
    assert not bool(kept.all())  # noise was added
    assert torch.equal(rollout.states["nodes"], policy.sample(contexts, generator=seeded(0)).states["nodes"])


@pytest.mark.parametrize("shared", [False, True])
def test_a_group_shares_the_noise_where_it_shares_noise(shared: bool) -> None:
    policy = tiny_policy(share_initial_noise=shared)
    restart = {"restart": Restart((0, 1, 2, 0), (1, 0, 1, 0, 0, 1), 1)}
    rollout = policy.sample(group_contexts(2, 20, [restart, restart]), generator=seeded(0))
    starts = torch.cat([rollout.states["nodes"][:, 1], rollout.states["pairs"][:, 1]], -1).unflatten(0, (2, 20))
    assert len({tuple(r.tolist()) for r in starts[0]}) == (1 if shared else 20)
    assert not torch.equal(starts[0], starts[1])
    ends = rollout.states["nodes"][:20, -1]
    assert len({tuple(r.tolist()) for r in ends}) > 3


def test_fixed_sites_stay_fixed_in_a_segment() -> None:
    policy = tiny_policy()
    columns = {"restart": Restart((0, 1, 2), (1, 0, 1), 2), "fixed": FixedSites({1: 1}, {(1, 2): 1})}
    rollout = policy.sample(group_contexts(1, 16, [columns]), generator=seeded(1))
    assert (rollout.states["nodes"][:, -1, 1] == 1).all()
    assert (rollout.states["pairs"][:, -1, 2] == 1).all()
    assert rollout.units.tolist() == [[0, 0, 4, 4]] * 16
    scores = score_sites(policy.sites(rollout))
    assert torch.equal(scores.mask.sum(-1), rollout.units)
    torch.testing.assert_close(scores.logp.sum(-1), rollout.logp, rtol=0, atol=1e-5)


def test_restarts_are_the_finished_graphs_at_the_nearest_grid_point() -> None:
    policy = tiny_policy()
    rollout = policy.sample([Context(k) for k in range(6)], generator=seeded(0))
    columns = policy.restarts(rollout, torch.tensor([4, 1]), 0.3)
    for b, column in zip((4, 1), columns, strict=True):
        n, restart = int(rollout.size[b]), column["restart"]
        assert restart.step == 3  # times 1, 3/4, 1/2, 1/4, 0
        assert restart.nodes == rollout.samples[b]
        assert list(restart.pairs) == rollout.states["pairs"][b, -1, : n * (n - 1) // 2].tolist()
    assert [grid_point(policy.grid, t) for t in (1.0, 0.7, 0.01)] == [0, 1, 3]
    done = policy.sample([Context(0, columns[0])] * 3, generator=seeded(1))
    assert done.samples[0].__class__ is tuple


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"restart": 3}, "restart: 3, expected a Restart"),
        ({"restart": Restart((0, 1), (0,), 4)}, "step of restart: 4, expected 0 to 3"),
        ({"restart": Restart((0, 3), (0,), 1)}, "node class in restart: 3, expected 0 to 2"),
        ({"restart": Restart((0, 1), (2,), 1)}, "edge class in restart: 2, expected 0 to 1"),
        ({"restart": Restart((0, 1), (1,), 1), "num_nodes": 3}, "num_nodes: 3, expected 2 as in restart"),
        ({"restart": Restart((0,) * 5, (1,) * 10, 1)}, "num_nodes: 5, expected 1 to 4"),
    ],
)
def test_a_wrong_restart_is_named(columns: dict[str, Any], said: str) -> None:
    for call in (lambda: tiny_policy().check_condition(columns), lambda: tiny_policy().sample([Context(0, columns)])):
        with pytest.raises(ValueError, match=said):
            call()


def test_wrong_restarts_are_refused_when_made() -> None:
    with pytest.raises(ValueError, match="restart: 2 nodes and 2 pairs, expected at least 1 node and 1 pairs"):
        Restart((0, 1), (0, 0), 1)
    with pytest.raises(ValueError, match="step of restart: -1, expected at least 0"):
        Restart((0,), (), -1)
    with pytest.raises(ValueError, match="restart: another one in group 0, expected one per group"):
        tiny_policy().sample([*again(1), Context(0)])
    with pytest.raises(ValueError, match=r"time: 0\.0, expected more than 0 and at most 1"):
        grid_point(torch.tensor([1.0, 0.0]), 0.0)


# ---------------------------------------------------------------- steps without units in the loss


def test_chosen_steps_have_units_and_full_rows_keep_their_bits() -> None:
    draw = seeded(0)
    for total, fraction in itertools.product((1, 3, 4, 7, 10), (0.05, 0.3, 0.5, 0.8, 1.0)):
        units = torch.randint(0, 2, (60, total), generator=draw) * 5
        units[0], units[1] = 0, 5
        steps = select_steps(units, fraction, draw)
        for row, chosen in zip(units, steps, strict=True):
            n = int((row > 0).sum())
            assert len(set(chosen.tolist())) == steps.shape[1]
            assert chosen.tolist() == sorted(chosen.tolist())
            assert int((row[chosen] > 0).sum()) == num_selected(n, fraction)
        full = torch.ones(20, total, dtype=torch.long)
        count = max(1, round(fraction * total))
        plain = torch.rand(full.shape, generator=seeded(7)).argsort(-1)[:, :count].sort(-1).values
        if count < total:
            assert torch.equal(select_steps(full, fraction, seeded(7)), plain)
    units = torch.tensor([[0, 0, 3, 3, 3, 3], [1, 1, 1, 1, 1, 1]]).repeat(1500, 1)
    steps = select_steps(units, 0.5, draw)
    for row, wanted in ((0, [0, 0, 750, 750, 750, 750]), (1, [750] * 6)):
        picked = steps[row::2][units[row::2].gather(1, steps[row::2]) > 0]
        counts = torch.bincount(picked, minlength=6)
        assert (counts - torch.tensor(wanted)).abs().max() < 5 * math.sqrt(1500 / 4)


def refining(config: GRPOConfig, **options: Any) -> GRPOTrainer:
    """A trainer in float64 whose memory holds four graphs."""
    trainer = GRPOTrainer(tiny_policy(**options).double(), share_of_class_two, config)
    rollout = trainer.policy.sample([Context(k) for k in range(4)], generator=seeded(3))
    assert trainer.sampler.shards[0].elites is not None
    trainer.sampler.shards[0].elites.add(rollout, torch.tensor(share_of_class_two(rollout.samples)), [None] * 4)
    return trainer


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize(("fraction", "share"), [(1.0, 0.5), (0.5, 0.5), (0.5, 1.0)])
def test_every_loss_type_is_the_loop_over_units_that_exist(loss_type: Any, fraction: float, share: float) -> None:
    config = GRPOConfig(
        num_generations=3, generation_batch_size=12, refine_fraction=share, refine_time=0.5, loss_type=loss_type,
        timestep_fraction=fraction, per_device_batch_size=5,
    )  # fmt: skip
    trainer = refining(config)
    starts = trainer_parts.starts(trainer)
    assert [s.refined for s in starts] == ([False] * 2 + [True] * 2 if share == 0.5 else [True] * 4)
    rollout = trainer_parts.sample(trainer, starts)
    advantage = torch.randn(12, generator=seeded(1), dtype=torch.float64)
    total = torch.zeros(12, dtype=torch.float64)
    total[4] = torch.nan
    refined = torch.tensor([s.refined for s in starts]).repeat_interleave(3)
    chunks = trainer_parts.chunks(trainer, rollout, advantage, total, refined)
    old = [torch.randn(trainer_parts.scores(trainer, c).logp.shape, generator=seeded(2), dtype=torch.float64) for c in chunks]
    with torch.no_grad():
        old = [trainer_parts.scores(trainer, c).logp + 0.2 * noise for c, noise in zip(chunks, old, strict=True)]
        found = sum(
            float(grpo_loss(trainer_parts.scores(trainer, c), o, c.advantage, c.weight).loss)
            for c, o in zip(chunks, old, strict=True)
        )
        # The loop: every unit of every row by itself; n_i is what the row really drew.
        rows = []  # (size of the row's units, Σ of its terms)
        wanted = 0.0
        seen = []
        for c, o in zip(chunks, old, strict=True):
            for b in range(len(c.rollout)):
                scores = score_sites(trainer.policy.sites(c.rollout.index(torch.tensor([b])), c.steps[b : b + 1]))
                a, terms, n = float(c.advantage[b]), 0.0, 0
                own = trainer_parts.scores(trainer, c)
                for k, u in own.mask[b].nonzero().tolist():
                    ratio = math.exp(float(own.logp[b, k, u] - o[b, k, u]))
                    terms -= min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
                    n += 1
                assert n == int(scores.mask.sum())
                steps = int((own.mask[b].sum(-1) > 0).sum())
                free = 4 - int(c.rollout.states["start"][b])
                assert steps == max(1, round(fraction * free))
                known = float(c.weight[b]) > 0
                rows.append((n, terms, known))
                seen.append(n)
        count = sum(known for *_, known in rows)
        assert count == 11
        units = sum(n for n, _, known in rows if known)
        constant = math.ceil(rollout.max_units * max(1, round(fraction * 4)) / 4)
        for n, terms, known in rows:
            weight = {"grpo": 1 / (count * n), "dapo": 1 / units, "dr_grpo": 1 / (count * constant)}[loss_type]
            wanted += weight * terms * known
    assert found == pytest.approx(wanted, abs=1e-10)
    assert abs(found) > 1e-3


# ---------------------------------------------------------------- the memory


def test_the_memory_keeps_the_best_unique_samples() -> None:
    policy = tiny_policy(sizes=(0.0, 0.0, 1.0))
    rollout = policy.sample([Context(k) for k in range(8)], generator=seeded(0))
    memory = EliteBuffer(policy, 3, 0.5)
    named = replace(rollout, samples=("a", "b", "a", None, "c", "d", "e", "b"))
    rewards = torch.tensor([0.5, 0.7, 0.6, 9.0, 0.7, torch.nan, 0.1, 0.2])
    assert memory.add(named, rewards, [None] * 8) == 3
    assert [(g.key, round(g.reward, 6)) for g in memory.kept] == [("b", 0.7), ("c", 0.7), ("a", 0.6)]
    assert memory.kept[2].restart == policy.restarts(rollout, torch.tensor([2]), 0.5)[0]
    assert memory.add(replace(named, samples=("x",) * 8), torch.full((8,), 0.6), [None] * 8) == 0  # no better than the last
    assert memory.add(replace(named, samples=("c",) * 8), torch.full((8,), 0.9), [None] * 8) == 0  # the same, drawn better
    assert [g.key for g in memory.kept] == ["c", "b", "a"]
    assert memory.add(named, torch.full((8,), 0.8), [5] * 8) == 2  # under another condition it is another sample
    assert [g.key for g in memory.kept] == ["c", "5 a", "5 b"]
    other = EliteBuffer(policy, 3, 0.5)
    other.load(memory.state())
    assert [(g.key, g.reward, g.restart, g.origin) for g in other.kept] == [
        (g.key, g.reward, g.restart, g.origin) for g in memory.kept
    ]
    drawn = [g.key for g in memory.draw(7, seeded(0))]
    assert Counter(Counter(drawn).values()) == Counter({2: 2, 3: 1})
    assert Counter(drawn[:3]) == Counter(drawn[3:6])
    assert EliteBuffer(policy, 3, 0.5).draw(4) == []


def test_samples_that_are_no_text_are_told_apart_by_their_graph() -> None:
    policy = tiny_policy()
    policy.decode = None
    contexts = [Context(0, {"restart": Restart((0, 1), (1,), 3)})] * 40
    memory = EliteBuffer(policy, 40, 0.25)
    rollout = policy.sample(contexts, generator=seeded(0))
    memory.add(rollout, torch.zeros(40), [None] * 40)
    graphs = {
        (*a, *b) for a, b in zip(rollout.states["nodes"][:, -1].tolist(), rollout.states["pairs"][:, -1].tolist(), strict=True)
    }
    assert 1 < len(memory.kept) == len(graphs) < 19


def test_starts_mix_conditions_and_good_samples() -> None:
    conditions = [{"num_nodes": 2}, {"num_nodes": 3}, {"num_nodes": 4}]
    memory = EliteBuffer(tiny_policy(), 3, 0.5)
    assert [s.refined for s in group_starts(4, conditions, memory, 0.5, seeded(0))] == [False] * 4
    memory.kept = [Elite("a", 1.0, {"restart": "R"}, 2)]
    starts = group_starts(4, conditions, memory, 0.5, seeded(0))
    assert [s.refined for s in starts] == [False, False, True, True]
    assert starts[3].columns == {"num_nodes": 4, "restart": "R"}
    rollout = tiny_policy().sample(group_contexts(2, 1, [{"num_nodes": 2}, {"num_nodes": 3, "restart": None}]))
    assert set(seen_columns(rollout, starts)) == {"num_nodes"}
    assert set(seen_columns(rollout, starts[:2])) == {"num_nodes", "restart"}
    assert len({int(s.columns["num_nodes"]) for s in group_starts(3, conditions, memory, 0.0, seeded(0))}) == 3
    memory.kept = [Elite("a", 1.0, {"restart": "R"})]
    assert group_starts(2, None, memory, 1.0, seeded(0))[0].columns == {"restart": "R"}


# ---------------------------------------------------------------- training on it

REFINED: dict[str, Any] = {
    "num_generations": 4, "generation_batch_size": 16, "learning_rate": 1e-2, "save_steps": 2, "refine_fraction": 0.5,
    "refine_memory": 5,
}  # fmt: skip


def strip(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "step_time"} for line in lines]


@pytest.mark.parametrize("columns", [None, [{"num_nodes": 3}, {"num_nodes": 4, "fixed": FixedSites({0: 1})}]])
def test_resume_with_a_memory_ends_with_the_same_bits(tmp_path: Path, columns: Any) -> None:
    config = GRPOConfig(**REFINED, max_steps=6, beta=0.05, num_iterations=2, timestep_fraction=0.5)
    whole = GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path / "whole", columns=columns)
    whole.train()
    part = GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path / "part", columns=columns)
    part.save()
    while part.step < 6:
        part.generation()
        if part.step == 4:
            part.save()
    resumed = GRPOTrainer(tiny_policy(seed=9), share_of_class_two, config, run=tmp_path / "part", columns=columns, resume=True)
    assert resumed.sampler.shards[0].elites is not None
    assert len(resumed.sampler.shards[0].elites.kept) == 5
    resumed.train()
    assert all(torch.equal(a, b) for a, b in zip(whole.module.parameters(), resumed.module.parameters(), strict=True))
    lines: list[Any] = [*read_metrics(tmp_path / "whole")]
    assert strip(lines) == strip(read_metrics(tmp_path / "part"))
    assert (tmp_path / "whole/samples.csv.gz").read_bytes() == (tmp_path / "part/samples.csv.gz").read_bytes()
    assert [line["frac_refined"] for line in lines] == [0.0, 0.0, 0.5, 0.5, 0.5, 0.5]
    assert lines[0]["refined/reward"] is None
    assert lines[2]["reward"] == pytest.approx((lines[2]["refined/reward"] + lines[2]["fresh/reward"]) / 2)
    assert read_samples(tmp_path / "whole/samples.csv.gz")["refined"][16:32] == ["0"] * 8 + ["1"] * 8


def test_a_run_without_it_has_no_trace_of_it(tmp_path: Path) -> None:
    config = GRPOConfig(**REFINED | {"refine_fraction": 0.0}, max_steps=2)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path)
    trainer.train()
    assert trainer.sampler.shards[0].elites is None
    assert not any("refined" in name for name in read_metrics(tmp_path)[0])
    assert "refined" not in read_samples(tmp_path / "samples.csv.gz")
    with_it = GRPOTrainer(tiny_policy(), share_of_class_two, replace(config, refine_fraction=0.5), run=tmp_path, resume=True)
    assert with_it.sampler.shards[0].elites is not None
    assert with_it.sampler.shards[0].elites.kept == []


@pytest.mark.parametrize("kept", ["memory", "replay"])
def test_good_samples_of_other_conditions_are_not_taken_along(
    kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {"refine_fraction": 0.5} if kept == "memory" else {"refine_fraction": 0.0, "replay_samples": 1}
    config = GRPOConfig(**REFINED | changed | {"save_steps": 1}, max_steps=2)
    asked = [{"kind": np.int64(k)} for k in range(3)]  # numbers of numpy go into a checkpoint too
    GRPOTrainer(tiny_policy(), share_of_class_two, config, columns=asked, run=tmp_path).train()
    for columns, same in (([{"kind": k} for k in range(3)], True), ([{"kind": 2}], False)):
        resumed = GRPOTrainer(tiny_policy(), share_of_class_two, config, columns=columns, run=tmp_path, resume=True)
        shard = resumed.sampler.shards[0]
        buffer = shard.elites if kept == "memory" else shard.replay
        assert buffer is not None
        assert bool(buffer.kept) == same
        assert ("are dropped" in " ".join(capsys.readouterr().err.split())) != same
    more = replace(config, max_steps=3)
    GRPOTrainer(tiny_policy(), share_of_class_two, more, columns=[{"kind": 2}], run=tmp_path, resume=True).train()


def test_weights_of_a_search_are_one_per_reward() -> None:
    with pytest.raises(ValueError, match=r"reward_weights: 2 weights, expected one per reward \(1\)"):
        local_search(tiny_policy(), share_of_class_two, rounds=1, population=2, children=2, time=0.5, reward_weights=[1.0, 2.0])


def test_rewards_see_the_condition_and_not_the_restart() -> None:
    seen: list[set[str]] = []

    def reward(samples: Sequence[Any], **columns: Any) -> list[float]:
        seen.append(set(columns))
        assert all(len(s) == n for s, n in zip(samples, columns["num_nodes"], strict=True))
        return share_of_class_two(samples)

    config = GRPOConfig(**REFINED, max_steps=3)
    GRPOTrainer(tiny_policy(), reward, config, columns=[{"num_nodes": 2}, {"num_nodes": 4}]).train()
    assert seen == [{"num_nodes"}] * 3


class Plain(nn.Module):
    """A policy that cannot start from a finished sample."""

    def sample(self, contexts: Any, *, generator: Any = None) -> Any: ...

    def sites(self, rollout: Any, steps: Any = None) -> Any: ...


def test_a_policy_that_cannot_refine_is_named() -> None:
    with pytest.raises(ValueError, match="policy: Plain has no method restarts, expected one that can refine its samples"):
        GRPOTrainer(Plain(), share_of_class_two, GRPOConfig(refine_fraction=0.5))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"refine_fraction": 1.5}, "refine_fraction: 1.5"),
        ({"refine_fraction": -0.1}, "refine_fraction: -0.1"),
        ({"refine_time": 0.0}, "refine_time: 0.0, expected more than 0 and less than 1"),
        ({"refine_time": 1.0}, "refine_time: 1.0, expected more than 0 and less than 1"),
        ({"refine_memory": 0}, "refine_memory: 0, expected at least 1"),
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GRPOConfig(**options)


@pytest.mark.parametrize("kind", ["uniform", "absorbing", "euler"])
def test_training_on_segments_alone_reaches_the_best_graph(kind: str) -> None:
    """After the first batch every group restarts; the exact expected reward of whole trajectories must rise all the same."""
    policy = make(kind).float()

    def reward(samples: Sequence[State], **columns: Any) -> list[float]:
        return [float(s[0] == s[1] == 1) * 0.5 + 0.5 * float(s[2] == 1) for s in samples]

    def expected() -> float:
        drawn = policy.sample([Context(k) for k in range(600)], generator=seeded(5)).samples
        return sum(reward(drawn)) / 600

    before = expected()
    config = GRPOConfig(
        max_steps=60, num_generations=16, generation_batch_size=64, learning_rate=0.1, max_grad_norm=None, seed=1,
        refine_fraction=1.0, refine_time=0.67, refine_memory=8,
    )  # fmt: skip
    GRPOTrainer(policy, reward, config).train()
    assert expected() > before + 0.25


# ---------------------------------------------------------------- local search


class Believer(nn.Module):
    """A network that takes most of what it sees for clean, so that what is regenerated is like what was there."""

    def __init__(self) -> None:
        super().__init__()
        self.faith = nn.Parameter(torch.tensor(3.0))

    def forward(self, nodes: Tensor, edges: Tensor, time: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        one_hot = nn.functional.one_hot
        return self.faith * one_hot(nodes, 3), self.faith * one_hot(edges, 2)


def test_local_search_climbs_and_counts() -> None:
    policy = tiny_policy(sizes=(0.0, 0.0, 0.0, 0.0, 1.0))
    policy.network = Believer()
    asked: list[int] = []

    def reward(samples: Sequence[Any], **columns: Any) -> list[float | None]:
        asked.append(len(samples))
        assert set(columns) == {"num_nodes"}
        return [None if s.count(1) == 4 else r for s, r in zip(samples, share_of_class_two(samples), strict=True)]

    options: dict[str, Any] = {"population": 4, "children": 5, "time": 0.3, "columns": {"num_nodes": 4}}
    found = local_search(policy, reward, rounds=5, keep=6, batch_size=16, generator=seeded(0), **options)
    assert found.drawn == sum(asked) == 6 * 20
    assert asked[:2] == [16, 4]
    assert list(found.rewards) == sorted(found.rewards, reverse=True)
    assert list(found.rewards) == share_of_class_two(found.samples)
    assert len(found.samples) == 6
    best, mean = ([line[name] for line in found.history] for name in ("best", "mean"))
    assert best == sorted(best)
    assert mean == sorted(mean)
    assert found.rewards[0] == best[-1] == 1.0
    assert found.history[-1]["reward"] > found.history[0]["reward"] + 0.2  # children of the good are good
    repeat = local_search(policy, reward, rounds=5, keep=6, batch_size=16, generator=seeded(0), **options)
    assert repeat.samples == found.samples
    assert local_search(policy, reward, rounds=0, **options).drawn == 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": -1}, "rounds: -1, expected at least 0"),
        ({"population": 0}, "population: 0, expected at least 1"),
        ({"children": 0}, "children: 0, expected at least 1"),
        ({"keep": 1}, "keep: 1, expected at least 2"),
        ({"time": 1.0}, "time: 1.0, expected more than 0 and less than 1"),
        ({"policy": Plain()}, "policy: Plain has no method restarts"),
    ],
)
def test_local_search_names_bad_arguments(options: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"policy": tiny_policy(), "rounds": 1, "population": 2, "children": 2} | options
    with pytest.raises(ValueError, match=said):
        local_search(given.pop("policy"), share_of_class_two, **given)
