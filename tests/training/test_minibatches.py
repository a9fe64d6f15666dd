"""Any deal of a generation to shards, windows and passes gives one gradient: every loss, every ratio level, float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.advantages import advantages
from discrete_grpo.core.rollout import Rollout, group_contexts
from discrete_grpo.domains.tokenizer import Tokenizer
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.minibatches import (
    Batch,
    MicroBatch,
    MiniBatches,
    TrainRows,
    choose_steps,
    microbatches,
    passes,
    train_rows,
    window_weights,
)
from discrete_grpo.training.rollout_queue import queue_states, read_rows
from discrete_grpo.training.update import LossTerms, UpdatePlan, loss_terms, micro_batch_loss, plan_update, policy_scores
from tests.toys import tiny_policy

HINTS = get_type_hints(GRPOConfig)
LOSSES, LEVELS = get_args(HINTS["loss_type"]), get_args(HINTS["importance_sampling_level"])
BASE = GRPOConfig(generation_batch_size=16, num_generations=4, epsilon_high=5.0, beta=0.1)


def generation() -> tuple[Any, Any, Rollout, Tensor, Tensor]:
    """A policy, a reference, trajectories of different sizes, advantages, and which rows count."""
    policy, reference = (tiny_policy(seed=seed).double() for seed in (0, 1))
    generator = torch.Generator().manual_seed(0)
    rollout = policy.sample(group_contexts(4, 4), generator=generator)
    counted = torch.ones(16, dtype=torch.bool)
    counted[[2, 9]] = False
    return policy, reference, rollout, torch.randn(16, generator=generator, dtype=torch.float64), counted


def gradient(policy: Any, reference: Any, chunks: list[MicroBatch], config: GRPOConfig) -> list[Tensor]:
    """Off-policy: log π_old is the policy's own, moved a little, the same for the same site."""
    policy.zero_grad()
    for chunk in chunks:
        with torch.no_grad():
            logp = policy_scores(policy, chunk).logp
        old = logp + 0.1 * torch.sin(1e3 * logp)
        terms = loss_terms(policy, chunk, reference, config, old_logp=old, bonus=False)
        micro_batch_loss(terms, chunk, old, UpdatePlan(), config).loss.backward()
    return [p.grad.clone() for p in policy.parameters() if p.grad is not None]


def dealt(rollout: Rollout, advantage: Tensor, counted: Tensor, shards: list[list[int]], config: GRPOConfig) -> list[MicroBatch]:
    """The passes of the only window, with the rows dealt to shards."""
    draws = []
    for rows in map(torch.tensor, shards):
        refined = torch.zeros(len(rows), dtype=torch.bool)
        draws.append(TrainRows(rollout.index(rows), advantage[rows], counted[rows], ~refined, refined))
    choices = [choose_steps([draw], config) for draw in draws]
    (weights,) = window_weights([choice.counts for choice in choices], config)
    parts = zip(draws, choices, weights, strict=True)
    return [chunk for k, (draw, choice, own) in enumerate(parts) for chunk in microbatches([draw], choice, own, config, shard=k)]


@pytest.mark.parametrize(("loss_type", "level"), list(product(LOSSES, LEVELS)))
def test_any_deal_gives_one_gradient(loss_type: Any, level: Any) -> None:
    policy, reference, rollout, advantage, counted = generation()
    config = replace(BASE, loss_type=loss_type, importance_sampling_level=level, per_device_batch_size=16)
    whole = gradient(policy, reference, dealt(rollout, advantage, counted, [list(range(16))], config), config)
    assert max(float(g.abs().max()) for g in whole) > 1e-6
    chunk = None if level == "sequence" else 3
    small = replace(config, per_device_batch_size=5, timestep_chunk=chunk)
    for shards in ([[0, 1, 2, 3], list(range(4, 16))], [[15, 3, 8], [1, 2, 9, 0], [*range(4, 8), *range(10, 15)]]):
        found = gradient(policy, reference, dealt(rollout, advantage, counted, shards, small), small)
        for a, b in zip(found, whole, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_windows_over_shards_are_disjoint_and_each_has_its_own_normaliser() -> None:
    _, _, rollout, advantage, counted = generation()
    config = replace(BASE, steps_per_generation=3)
    draw = TrainRows(rollout, advantage, counted, torch.ones_like(counted), torch.zeros_like(counted))
    choices = [choose_steps([draw], config, torch.Generator().manual_seed(k)) for k in range(2)]
    windows = window_weights([choice.counts for choice in choices], config)
    assert len(windows) == 3
    for k in range(2):
        forward = torch.stack([window[k].needed for window in windows]).int()
        assert (forward.sum(0) == 1).all()
    for window in windows:
        sites = [choices[k].counts.sites * own.weight for k, own in enumerate(window)]
        assert float(sum(s.sum() for s in sites)) == pytest.approx(1.0)  # dapo: a mean over all units of the window


@pytest.mark.parametrize("fraction", [0.4, 1.0])
@pytest.mark.parametrize("level", LEVELS)
def test_the_constant_of_dr_grpo_is_that_of_policy_and_settings(fraction: float, level: Any) -> None:
    """Texts of at most 9 tokens: n_max does not move with the longest text that was drawn."""
    letters = Tokenizer(("a", "b"))
    torch.manual_seed(0)
    policy = TokenPolicy(GPT(GPTConfig(len(letters), 9, layers=1, heads=1, width=8)), letters, max_length=9)
    config = replace(BASE, timestep_fraction=fraction, importance_sampling_level=level, loss_type="dr_grpo")
    steps, most = set(), set()
    for seed in range(6):
        rollout = policy.sample(group_contexts(1, 2), generator=torch.Generator().manual_seed(seed))
        on = torch.ones(2, dtype=torch.bool)
        choice = choose_steps([TrainRows(rollout, torch.zeros(2), on, on, ~on)], config, torch.Generator().manual_seed(0))
        steps.add(rollout.num_steps)
        most.add(choice.counts.max_units)
        ((weights,),) = window_weights([choice.counts], config)
        assert weights.weight.tolist() == pytest.approx([1 / (2 * choice.counts.max_units)] * 2)
    assert len(steps) > 2, "expected texts of several lengths"
    assert most == {4 if fraction == 0.4 else 9}


@pytest.mark.parametrize("level", LEVELS)
def test_the_constant_of_a_graph_policy_counts_its_units(level: Any) -> None:
    """Graphs of up to 4 nodes in 4 steps: 4 steps of 4 + 6 sites; half of them with a timestep_fraction of a half."""
    policy = tiny_policy()
    draw = drawn_once(policy.sample(group_contexts(1, 4), generator=torch.Generator().manual_seed(0)))
    for fraction, wanted in ((1.0, (4, 40)), (0.5, (2, 20))):
        config = replace(BASE, timestep_fraction=fraction, importance_sampling_level=level)
        counts = choose_steps([draw], config, torch.Generator().manual_seed(0)).counts
        assert counts.max_units == wanted[level != "step"]
        assert counts.units.tolist() == ([wanted[0]] * 4 if level == "step" else counts.sites.tolist())
    without = replace(draw, rollout=replace(draw.rollout, max_steps=None))  # a policy that does not say how many steps it has
    assert choose_steps([without], replace(BASE, importance_sampling_level=level)).counts.max_units == 40


def drawn_once(rollout: Rollout) -> TrainRows:
    """Every row counts and starts from noise."""
    on = torch.ones(len(rollout), dtype=torch.bool)
    return TrainRows(rollout, torch.zeros(len(rollout)), on, on, ~on)


@pytest.mark.parametrize("level", LEVELS)
def test_one_unit_has_one_weight_however_many_sites_it_has(level: Any) -> None:
    """dapo: the weights of all units of a window sum to 1; those of the mean entropy are weights of sites at every level."""
    policy = tiny_policy()
    draw = drawn_once(policy.sample(group_contexts(4, 2), generator=torch.Generator().manual_seed(0)))
    assert draw.rollout.units.unique().numel() > 1, "expected graphs of several sizes"
    config = replace(BASE, importance_sampling_level=level)
    choice = choose_steps([draw], config)
    ((own,),) = window_weights([choice.counts], config)
    units = (draw.rollout.units > 0) if level == "step" else draw.rollout.units
    torch.testing.assert_close(own.weight, torch.full((8,), 1 / float(units.sum()), dtype=torch.float64))
    torch.testing.assert_close(own.mean_weight, torch.full((8,), 1 / float(draw.rollout.units.sum()), dtype=torch.float64))


def test_what_the_weights_count_survives_a_checkpoint() -> None:
    config = replace(BASE, importance_sampling_level="step")
    draw = drawn_once(tiny_policy().sample(group_contexts(2, 2), generator=torch.Generator().manual_seed(0)))
    choice = choose_steps([draw], config)
    weights = window_weights([choice.counts], config)
    (state,) = queue_states(MiniBatches.of([0], [[draw]], [choice], weights, config, {}))
    ((again,), read) = read_rows(state, (), torch.device("cpu"), config)
    assert (again.rollout.max_units, again.rollout.max_steps) == (draw.rollout.max_units, draw.rollout.max_steps) == (40, 4)
    assert read.counts.units.tolist() == [4] * 4 != read.counts.sites.tolist()
    assert read.counts.max_units == 4
    fraction = replace(config, importance_sampling_level="token", timestep_fraction=0.5)
    (_, other) = read_rows(state, (), torch.device("cpu"), fraction)  # its steps are chosen: all of them, as before
    assert torch.equal(other.counts.units, other.counts.sites)
    assert other.counts.max_units == 40
    state["choice"] = {
        "steps": state["choice"]["steps"],
        "counts": state["choice"]["counts"][:5],
    }  # an earlier version, without both
    del state["draws"][0]["max_steps"]
    ((again,), read) = read_rows(state, (), torch.device("cpu"), config)
    assert again.rollout.max_steps is None
    assert torch.equal(read.counts.units, read.counts.sites)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss_type", LOSSES)
def test_low_entropy_sites_move_no_parameter(loss_type: Any, level: Any) -> None:
    """The policy term of an update has no gradient at the log-prob of a site below the threshold."""
    policy, _, rollout, advantage, _ = generation()
    config = replace(BASE, loss_type=loss_type, importance_sampling_level=level, top_entropy_quantile=0.5, beta=0.0)
    draw = replace(drawn_once(rollout), advantage=advantage)
    ((chunk,),) = [
        microbatches([draw], c, window_weights([c.counts], config)[0][0], config) for c in [choose_steps([draw], config)]
    ]
    scores = policy_scores(policy, chunk)
    leaf = scores.logp.detach().requires_grad_()
    plan = plan_update(policy, [chunk], [None], config)
    old = scores.logp.detach() + 0.05 * torch.sin(1e3 * scores.logp.detach())
    loss = micro_batch_loss(LossTerms(replace(scores, logp=leaf)), chunk, old, plan, config).loss
    (found,) = torch.autograd.grad(loss, leaf)
    keep: Any = plan.keep(scores, chunk, config)
    assert 0 < int(keep.sum()) < int(scores.mask.sum())
    assert found[~keep].eq(0.0).all()
    assert found[keep].ne(0.0).float().mean() > 0.4


def test_a_window_without_a_signal_anywhere_still_has_passes() -> None:
    _, _, rollout, advantage, _ = generation()
    none = torch.zeros(16, dtype=torch.bool)
    draw = TrainRows(rollout, advantage, none, none, none)
    choice = choose_steps([draw], BASE)
    (idle,) = window_weights([choice.counts, choice.counts], BASE)
    assert idle[0].needed.all()
    some = choice.counts._replace(needed=~none)
    (first, second) = window_weights([choice.counts, some], BASE)[0]
    assert not first.needed.any()
    assert second.needed.all()


def test_rows_of_unknown_reward_are_not_counted() -> None:
    _, _, rollout, _, _ = generation()
    rewards = torch.rand(16, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rewards[[2, 9]] = torch.nan
    config = replace(BASE, loss_type="grpo")
    (rows,) = train_rows([Batch(rollout, rewards, torch.zeros(16, dtype=torch.bool), [None] * 16)], config)
    assert rows.counted.tolist() == [k not in (2, 9) for k in range(16)]
    choice = choose_steps([rows], config)
    ((weights,),) = window_weights([choice.counts], config)
    wanted = [0.0 if k in (2, 9) else 1 / 14 for k in range(16)]
    assert (weights.weight * choice.counts.units).tolist() == pytest.approx(wanted, abs=1e-12)


def test_the_most_units_of_some_steps_are_rounded_up() -> None:
    """Six blanks in four rounds are 2 + 2 + 1 + 1: three rounds fill up to five."""
    _, _, rollout, advantage, counted = generation()
    rows = TrainRows(replace(rollout, max_units=6, max_steps=4), advantage, counted, counted, torch.zeros_like(counted))
    assert choose_steps([rows], replace(BASE, timestep_fraction=0.75)).counts.max_units == 5


def test_windows_are_of_equal_size_and_dealt_at_random() -> None:
    _, _, rollout, _, _ = generation()
    config = replace(BASE, steps_per_generation=4)
    dealt_twice = [
        choose_steps([drawn_once(rollout)], config, torch.Generator().manual_seed(seed)).counts.window.tolist() for seed in (0, 1)
    ]
    assert [sorted(window) for window in dealt_twice] == [sorted([*range(4)] * 4)] * 2
    assert dealt_twice[0] != dealt_twice[1]


def test_every_pass_over_a_generation_goes_through_all_windows_and_every_row_has_a_number() -> None:
    _, _, rollout, _, _ = generation()
    config = replace(BASE, steps_per_generation=2, num_iterations=2, per_device_batch_size=3)
    parts = [drawn_once(rollout.index(torch.tensor(rows))) for rows in ([0, 1, 2, 3, 4, 5], [*range(6, 16)])]
    choices = [choose_steps([part], config, torch.Generator().manual_seed(0)) for part in parts]
    weights = window_weights([choice.counts for choice in choices], config)
    queue = MiniBatches.of([0, 1], [[part] for part in parts], choices, weights, config, {})
    assert sorted(int(row) for part in queue.parts for micro in part for row in micro.rows) == list(range(16))
    queue.old = [[None] * len(part) for part in queue.parts]
    seen = []
    for done in range(queue.updates):
        queue.done = done
        seen.append(next(k for k, part in enumerate(queue.parts) if part is queue.next()[0]))
    assert seen == [0, 1, 0, 1]


def test_a_pass_of_refined_rows_has_every_step_that_one_of_them_drew() -> None:
    _, _, rollout, _, counted = generation()
    start = torch.arange(16) % 3
    units = torch.where(torch.arange(4) >= start[:, None], rollout.units, 0)
    refined = torch.ones_like(counted)
    made = list(passes(replace(rollout, units=units), torch.arange(4).expand(16, -1), refined, refined, BASE))
    for rows, _, (steps,) in made:
        assert steps[0].tolist() == list(range(int(start[rows].min()), 4))
    assert sorted(int(row) for rows, *_ in made for row in rows) == list(range(16))


def test_the_kl_in_the_reward_is_that_of_every_batch() -> None:
    _, _, rollout, _, _ = generation()
    generator = torch.Generator().manual_seed(2)
    rewards, kl = (torch.rand(16, *shape, generator=generator, dtype=torch.float64) for shape in ((1,), ()))
    config, parts = replace(BASE, kl_in="reward", beta=0.5), (slice(0, 4), slice(4, 16))

    def batch(rows: slice) -> Batch:
        at = torch.arange(16)[rows]
        return Batch(rollout.index(at), rewards[rows], torch.zeros(len(at), dtype=torch.bool), [None] * len(at), kl[rows])

    (whole,) = train_rows([batch(slice(0, 16))], config)
    found = torch.cat([rows.advantage for rows in train_rows([batch(rows) for rows in parts], config)])
    wanted = advantages(rewards, rollout.group, kl=kl, beta=0.5)
    torch.testing.assert_close(whole.advantage, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_rows_that_do_not_count_are_in_no_statistic_of_the_entropy() -> None:
    policy, _, rollout, _, counted = generation()
    config = replace(BASE, top_entropy_quantile=0.3)
    draw = replace(drawn_once(rollout), counted=counted)
    choice = choose_steps([draw], config)
    ((own,),) = window_weights([choice.counts], config)
    (chunk,) = microbatches([draw], choice, own, config)
    scores = policy_scores(policy, chunk)
    every = scores.entropy[scores.mask & counted[chunk.rows][:, None, None]]
    plan = plan_update(policy, [chunk], [None], config)
    assert plan.mean_entropy == pytest.approx(float(every.mean()), abs=1e-12)
    assert plan.threshold is not None
    assert float(plan.threshold) == pytest.approx(float(every.quantile(0.7)), abs=1e-12)
