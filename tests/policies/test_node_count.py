"""The node count as a step of the policy: exact log-probs, both heads, what a context fixes, training, checkpoints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import Context, Observer, Refinable, group_contexts
from discrete_grpo.policies.graph import FixedSites
from discrete_grpo.policies.node_count import LearnedSizes, RunningSizes, SizedPolicy
from discrete_grpo.policies.restart import Restart
from discrete_grpo.policies.surrogate import EagerLikelihood
from discrete_grpo.runs.checkpoint import read_policy, save
from discrete_grpo.testing import check_policy
from tests.toys import share_of_class_two, tiny_policy, transformer_policy

COUNTS = (0.0, 0.1, 0.2, 0.0, 0.7)
HEADS: dict[str, Any] = {"learned": LearnedSizes, "running": RunningSizes}
every_head = pytest.mark.parametrize("kind", HEADS)


def make(kind: str = "learned", counts: Sequence[float] = COUNTS, seed: int = 0, **options: Any) -> SizedPolicy:
    return SizedPolicy(transformer_policy(seed=seed, **options), HEADS[kind](counts)).eval()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(samples: Sequence[Any], **columns: Any) -> list[float]:
    """A reward of the size alone."""
    return [float(len(s) == 2) for s in samples]


def size_probs(policy: SizedPolicy) -> list[float]:
    return [float(p) for p in policy.head.log_probs().detach().exp()]


# ---------------------------------------------------------------- the step


@every_head
def test_sizes_are_drawn_a_sample_with_the_probabilities_they_are_scored_with(kind: str) -> None:
    policy = make(kind)
    rollout = policy.sample([Context(0)] * 3000, generator=seeded(0))
    counts = Counter(rollout.size.tolist())
    assert set(counts) == {1, 2, 4}  # all in one group
    assert chisquare([counts[n] for n in (1, 2, 4)], [300, 600, 2100]).pvalue > 1e-3
    wanted = torch.tensor([math.log(COUNTS[n]) for n in rollout.size.tolist()])
    torch.testing.assert_close(rollout.logp[:, 0], wanted, rtol=0, atol=1e-5)
    few = rollout.index(torch.arange(12))
    scores = score_sites(policy.sites(few))
    assert torch.equal(scores.mask.sum(-1), few.units)
    torch.testing.assert_close(scores.logp.sum(-1).detach(), few.logp, rtol=0, atol=1e-4)
    assert few.units[:, 0].tolist() == [1] * 12
    assert [len(s) for s in few.samples] == few.size.tolist()
    assert rollout.max_units == policy.policy.sample([Context(0)]).max_units + 1


@every_head
def test_a_context_fixes_or_bounds_the_choice(kind: str) -> None:
    policy = make(kind)
    fixed = {"fixed": FixedSites({1: 2})}
    columns: list[dict[str, Any]] = [{"num_nodes": 3}, {"restart": Restart((0, 1), (1,), 2)}, fixed, {}]
    rollout = policy.sample(group_contexts(4, 60, columns), generator=seeded(0))
    assert rollout.size[:60].tolist() == [3] * 60  # a size the head gives no mass
    assert rollout.size[60:120].tolist() == [2] * 60
    assert (rollout.units[:120, 0] == 0).all()
    assert (rollout.logp[:120, 0] == 0).all()
    assert set(rollout.size[120:180].tolist()) == {2, 4}
    assert set(rollout.columns) == {"num_nodes", "restart", "fixed"}
    assert rollout.columns["num_nodes"][60:] == (None,) * 180
    for b in range(120, 180):  # what is left is normalised
        assert float(rollout.logp[b, 0]) == pytest.approx(math.log(COUNTS[int(rollout.size[b])] / 0.9), abs=1e-5)
    scores = score_sites(policy.sites(rollout))
    torch.testing.assert_close(scores.logp.sum(-1).detach(), rollout.logp, rtol=0, atol=1e-4)
    assert torch.equal(scores.mask.sum(-1), rollout.units)
    assert rollout.group.tolist() == [g for g in range(4) for _ in range(60)]


@pytest.mark.parametrize(("kind", "shared"), [("learned", False), pytest.param("running", True, marks=pytest.mark.slow)])
def test_the_conformance_kit_passes(kind: str, shared: bool) -> None:
    policy = make(kind, share_initial_noise=shared)
    columns: list[dict[str, Any]] = [{}, {"num_nodes": 2}, {"fixed": FixedSites({1: 2})}, {"restart": Restart((0, 1), (1,), 2)}]
    skip = {"learning"} if shared else set()
    check_policy(policy, group_contexts(4, 3, columns), samples=200, seconds=3.0, skip=skip).raise_on_failure()


def test_the_later_steps_are_the_inner_policys_for_any_choice_of_steps() -> None:
    policy = make()
    rollout = policy.sample([Context(k) for k in range(6)], generator=seeded(0))
    steps = torch.tensor([[0, 3], [1, 2], [4, 0], [2, 2], [0, 0], [3, 1]])
    inner = score_sites(policy.policy.sites(policy._inner(rollout)))
    found = score_sites(policy.sites(rollout, steps))
    for b, row in enumerate(steps.tolist()):
        for k, step in enumerate(row):
            if step == 0:
                assert float(found.logp[b, k].detach().sum()) == pytest.approx(float(rollout.logp[b, 0]), abs=1e-6)
                assert int(found.mask[b, k].sum()) == 1
            else:
                torch.testing.assert_close(found.logp[b, k, 1:], inner.logp[b, step - 1], rtol=0, atol=1e-5)
                assert not bool(found.mask[b, k, 0])


# ---------------------------------------------------------------- the heads


def test_a_learned_head_is_a_softmax_that_starts_at_the_histogram() -> None:
    head = LearnedSizes(COUNTS, gain=3.0).double()
    torch.testing.assert_close(head.log_probs().exp(), torch.tensor(COUNTS).double(), rtol=0, atol=1e-7)
    head.weight.data = torch.tensor([0.3, -0.2, 0.1]).double()
    raw = [0.1 * math.exp(0.9), 0.2 * math.exp(-0.6), 0.7 * math.exp(0.3)]
    wanted = [x / sum(raw) for x in raw]
    assert head.log_probs().detach().exp().tolist() == pytest.approx([0.0, wanted[0], wanted[1], 0.0, wanted[2]], abs=1e-7)
    (found,) = torch.autograd.grad(head.log_probs()[2], [head.weight])
    assert found.tolist() == pytest.approx([-3 * wanted[0], 3 * (1 - wanted[1]), -3 * wanted[2]], abs=1e-7)


def test_the_gradient_of_the_size_step_is_that_of_the_expected_reward_under_bounds() -> None:
    """∇ Σ_n π(n | n >= 2) r(n) by enumeration, against Σ π r ∇ log π of the sites."""
    policy = make().double()
    policy.head.get_parameter("weight").data = torch.tensor([0.02, -0.05, 0.03]).double()
    rows = policy.sample([Context(k, {"fixed": FixedSites({1: 2})}) for k in range(60)], generator=seeded(0))
    picked = torch.tensor([rows.size.tolist().index(n) for n in (2, 4)])
    logp = score_sites(policy.sites(rows.index(picked), torch.zeros(2, 1).long())).logp.sum((1, 2))
    assert float(logp.exp().sum().detach()) == pytest.approx(1.0, abs=1e-12)
    reward = torch.tensor([1.7, -0.4], dtype=torch.float64)
    weight = policy.head.get_parameter("weight")
    (found,) = torch.autograd.grad((logp.exp().detach() * reward * logp).sum(), [weight])

    def expected(w: Tensor) -> Tensor:
        p = torch.tensor([0.2, 0.7]).double() * (10 * w[1:]).exp()
        return (p / p.sum() * reward).sum()

    wanted = torch.autograd.functional.jacobian(expected, weight.detach())
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    assert found.abs().max() > 0.1


def test_a_running_histogram_moves_towards_the_sizes_of_the_good() -> None:
    head = RunningSizes(COUNTS, rate=0.25)
    sizes = torch.tensor([1, 2, 2, 4, 4])
    head.observe(sizes, torch.tensor([2.0, 1.0, -5.0, 1.0, 0.0]))
    wanted = [0.75 * h + 0.25 * w for h, w in zip(COUNTS, (0, 2 / 4, 1 / 4, 0, 1 / 4), strict=True)]
    assert head.histogram.tolist() == pytest.approx(wanted, abs=1e-6)
    head.observe(sizes, -torch.ones(5))
    head.observe(sizes[:0], torch.zeros(0))
    assert head.histogram.tolist() == pytest.approx(wanted, abs=1e-6)
    assert not list(head.parameters())


def test_a_running_histogram_stays_where_it_is_whatever_device_it_is_given() -> None:
    """With several processes the sizes come gathered on the CPU while the histogram is on an accelerator (here: meta)."""
    head = RunningSizes(COUNTS).to("meta")
    head.observe(torch.tensor([1, 2, 2]), torch.tensor([2.0, 1.0, -5.0], dtype=torch.float64))
    assert head.histogram.device.type == "meta"
    assert head.histogram.dtype == torch.float32


def test_log_probs_of_a_running_histogram_are_those_at_the_draw_and_carry_no_gradient() -> None:
    policy = make("running")
    rollout = policy.sample(group_contexts(3, 8), generator=seeded(0))
    before = score_sites(policy.sites(rollout)).logp
    policy.observe(rollout, torch.arange(24.0))
    assert size_probs(policy) != pytest.approx(COUNTS, abs=1e-3)
    assert torch.equal(score_sites(policy.sites(rollout)).logp, before)
    assert not policy.sites(rollout)[0].log_probs.requires_grad


def test_given_sizes_are_not_observed() -> None:
    policy = make("running")
    rollout = policy.sample(group_contexts(2, 4, [{"num_nodes": 3}, {"num_nodes": 1}]), generator=seeded(0))
    policy.observe(rollout, torch.ones(8))
    assert size_probs(policy) == pytest.approx(COUNTS, abs=1e-6)


# ---------------------------------------------------------------- training


@every_head
@pytest.mark.slow
def test_training_finds_the_size_that_is_rewarded(kind: str) -> None:
    policy = make(kind, (0.0, 0.0, 0.3, 0.3, 0.4))
    config = GRPOConfig(max_steps=25, num_generations=8, generation_batch_size=32, learning_rate=1e-2, ema_decay=0.9)
    if kind == "running":
        policy.head.rate = 0.2
    trainer = GRPOTrainer(policy, small, config)
    trainer.train()
    assert size_probs(policy)[2] > 0.8
    assert sum(size_probs(policy)) == pytest.approx(1.0, abs=1e-5)
    averaged = size_probs(trainer.best_policy)
    assert averaged[2] > 0.5
    assert all(math.isfinite(p) for p in averaged)


@every_head
def test_resume_ends_with_the_same_bits_also_while_refining(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 8, "save_steps": 2, "refine_fraction": 0.5}
    config = GRPOConfig(**options, max_steps=4, learning_rate=1e-2, beta=0.1, timestep_fraction=0.6, ema_decay=0.9)
    whole = GRPOTrainer(make(kind), share_of_class_two, config, run=tmp_path / "whole")
    lines = whole.train()
    assert lines[-1]["frac_refined"] == 0.5
    part = GRPOTrainer(make(kind), share_of_class_two, config, run=tmp_path / "part")
    while part.step < 3:
        part.generation()
        if part.step == 2:
            part.save()
    resumed = GRPOTrainer(make(kind, seed=5), share_of_class_two, config, run=tmp_path / "part", resume=True)
    assert resumed.step == 2
    resumed.train()
    a, b = whole.module.state_dict(), resumed.module.state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert size_probs(make(kind)) != size_probs(whole.policy)  # type: ignore[arg-type]
    again = read_policy(save(tmp_path / "policy", whole.module, metadata={}))
    assert size_probs(again) == size_probs(whole.policy)  # type: ignore[arg-type]


def test_it_refines_and_passes_on_what_it_wraps() -> None:
    policy = make("running")
    assert isinstance(policy, Refinable)
    assert isinstance(policy, Observer)
    rollout = policy.sample([Context(k) for k in range(4)], generator=seeded(0))
    columns = policy.restarts(rollout, torch.tensor([2]), 0.5)
    again = policy.sample([Context(0, columns[0])] * 3, generator=seeded(1))
    assert again.size.tolist() == [int(rollout.size[2])] * 3
    assert again.units[0].tolist() == [0, 0, 0, *policy.policy.sample([Context(0, columns[0])]).units[0, 2:].tolist()]
    policy.decode = None
    assert policy.policy.decode is None
    assert policy.sample([Context(0)]).samples[0].__class__.__name__ == "GraphBatch"
    assert policy.max_nodes == 4
    with pytest.raises(ValueError, match="num_nodes: 9"):
        policy.check_condition({"num_nodes": 9})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: make(counts=(0.0, *[0.2] * 5)), "head: sizes up to 5, expected at most the policy's 4"),
        (lambda: LearnedSizes((0.5, 0.5)), "node_counts: "),
        (lambda: RunningSizes((0.0, 0.5)), "node_counts: "),
        (lambda: LearnedSizes(COUNTS, gain=0.0), r"gain: 0\.0, expected more than 0"),
        (lambda: RunningSizes(COUNTS, rate=1.5), r"rate: 1\.5, expected more than 0 and at most 1"),
        (lambda: SizedPolicy(EagerLikelihood(tiny_policy()), LearnedSizes(COUNTS)), "policy: EagerLikelihood gives scores"),
        (lambda: make().sample([Context(0, {"fixed": FixedSites({4: 0})})]), "fixed: needs 5 nodes"),
        (lambda: make().check_condition({"fixed": FixedSites({4: 0})}), "fixed: needs 5 nodes"),
        (lambda: make(counts=(0.0, 0.5, 0.5)).check_condition({"fixed": FixedSites({2: 0})}), "fixed: needs 3 nodes"),
        (lambda: make().sample([Context(0, {"num_nodes": 7})]), "num_nodes: 7, expected 1 to 4"),
        (
            lambda: tiny_policy().sample([Context(3, {"num_nodes": 2}), Context(3, {"num_nodes": 3})]),
            "num_nodes: differs within group 3, expected one value per group",
        ),
        (
            lambda: tiny_policy().sample([Context(3, {"num_nodes": 2}), Context(3)]),
            "num_nodes: differs within group 3",
        ),
    ],
)
def test_bad_arguments_are_named(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
