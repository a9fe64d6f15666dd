"""Surrogate likelihoods in the trainer: what is scored, the first ratio, the gradient, that they learn, resume, names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.categorical import Scores, score_sites
from discrete_grpo.core.rollout import Context, Scorer, group_contexts
from discrete_grpo.diffusion.flow import FlowEuler
from discrete_grpo.diffusion.kernels import D3PM, Kernel
from discrete_grpo.diffusion.noise import Noise, absorbing, uniform
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.policies.surrogate import EagerLikelihood, ElboLikelihood, with_likelihood
from discrete_grpo.runs.checkpoint import read_policy, save
from tests import trainer_parts
from tests.policies.surrogate_parts import COSINE, LINEAR, seeded
from tests.toys import node_classes, share_of_class_two, tiny_network, tiny_policy

every_name = pytest.mark.parametrize("name", ["eager", "elbo"])


def built(name: str, **options: Any) -> Any:
    return with_likelihood(tiny_policy(**options), name, draws=3)  # type: ignore[arg-type]


@every_name
def test_fixed_sites_and_padding_are_not_scored(name: str) -> None:
    policy = built(name)
    columns: list[dict[str, Any]] = [{"num_nodes": 2}, {"num_nodes": 4, "fixed": FixedSites({1: 1}, {(1, 2): 1})}]
    rollout = policy.sample(group_contexts(2, 3, columns), generator=seeded(0))
    scores: Scores = policy.score(rollout, None, policy)
    assert torch.equal(scores.mask.sum(-1), rollout.units)
    assert rollout.units.tolist() == [[3] * rollout.num_steps] * 3 + [[8] * rollout.num_steps] * 3
    assert (scores.logp[~scores.mask] == 0).all()
    assert scores.kl is not None
    assert float(scores.kl.detach().abs().max()) == 0.0
    loose = policy.score(rollout.index(torch.arange(3)))
    torch.testing.assert_close(loose.logp.sum(-1), scores.logp[:3].sum(-1), rtol=0, atol=1e-5)


@every_name
@pytest.mark.parametrize("bf16", [False, True])
def test_the_first_ratio_is_exactly_one(name: str, bf16: bool) -> None:
    config = GRPOConfig(
        max_steps=2, num_generations=4, generation_batch_size=8, num_iterations=2, per_device_batch_size=3, timestep_chunk=2,
        timestep_fraction=0.7, bf16=bf16, beta=0.1,
    )  # fmt: skip
    trainer = GRPOTrainer(built(name), share_of_class_two, config)
    assert isinstance(trainer.policy, Scorer)
    rollout = trainer_parts.sample(trainer)
    total = torch.tensor(share_of_class_two(rollout.samples), dtype=torch.float64)
    chunks = trainer_parts.chunks(trainer, rollout, trainer_parts.advantages(trainer, total[:, None], rollout.group), total)
    for chunk, before in zip(chunks, trainer.learner.old_log_probs(chunks), strict=True):
        scores = trainer_parts.scores(trainer, chunk)
        assert torch.equal(scores.logp, before)  # type: ignore[arg-type]
        assert scores.kl is not None
        assert float(scores.kl.detach().abs().max()) == 0.0
        assert scores.logp.dtype == torch.float32


@every_name
def test_the_trainer_uses_the_score_of_a_policy_that_has_one(name: str) -> None:
    """The gradient of an update is that of -Σ w A score, with β 0 and one iteration."""
    policy = built(name).double()
    config = GRPOConfig(num_generations=3, generation_batch_size=6, max_grad_norm=None, learning_rate=1e-15, loss_type="dapo")
    trainer = GRPOTrainer(policy, share_of_class_two, config)
    rollout = trainer_parts.sample(trainer)
    advantage = torch.arange(6).double() - 2.5
    trainer.learner.update(trainer.step, trainer_parts.chunks(trainer, rollout, advantage, torch.zeros(6).double()), [None])
    found = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    policy.zero_grad()
    loss = -(advantage[:, None, None] * policy.score(rollout).logp).sum() / float(rollout.units.sum())
    loss.backward()
    wanted = [p.grad for p in policy.parameters() if p.grad is not None]
    assert len(found) == len(wanted) > 5
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    if name == "eager":
        exact = score_sites(policy.sites(rollout)).logp
        assert not torch.allclose(exact, policy.score(rollout).logp, atol=1e-2)


FAMILIES: dict[str, tuple[Kernel, Kernel]] = {
    "uniform": (D3PM(uniform(3, COSINE)), D3PM(uniform(2, COSINE))),
    "absorbing": (D3PM(absorbing(3, LINEAR)), D3PM(absorbing(2, LINEAR))),
    "euler": (FlowEuler(Noise((0.4, 0.3, 0.3), LINEAR, 3)), FlowEuler(Noise((0.7, 0.3), LINEAR, 2))),
}


@pytest.mark.parametrize(("name", "kind"), [("eager", "uniform"), ("eager", "absorbing"), ("elbo", "absorbing"), ("elbo", "euler")])
@pytest.mark.slow
def test_training_raises_the_reward(name: str, kind: str) -> None:
    x, e = FAMILIES[kind]
    network = masked_network() if kind == "absorbing" else tiny_network(x.noise.num_states, e.noise.num_states, layers=1)
    inner = GraphPolicy(network, x, e, (0.0, 0.0, 0.3, 0.3, 0.4), num_steps=4, decode=node_classes)
    config = GRPOConfig(
        max_steps=15, num_generations=8, generation_batch_size=32, learning_rate=1e-2, beta=0.001, refine_fraction=0.25
    )
    lines = GRPOTrainer(with_likelihood(inner, name, draws=4), share_of_class_two, config).train()  # type: ignore[arg-type]
    first, last = (sum(line["fresh/reward"] for line in part) / 3 for part in (lines[:3], lines[-3:]))
    assert last > first + 0.15
    assert all(math.isfinite(line["kl"]) for line in lines)
    assert lines[-1]["frac_refined"] == 0.25


def masked_network() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GraphTransformer(GraphTransformerConfig(4, 3, 3, 2, layers=1, heads=2, width=16, edge_width=8, global_width=8))


@every_name
def test_resume_and_checkpoints_keep_the_wrapper(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 8, "save_steps": 2, "num_iterations": 2}
    config = GRPOConfig(**options, max_steps=6, learning_rate=1e-2, beta=0.1)
    whole = GRPOTrainer(built(name), share_of_class_two, config, run=tmp_path / "whole")
    whole.train()
    part = GRPOTrainer(built(name), share_of_class_two, config, run=tmp_path / "part")
    part.generation()
    part.save()
    part.generation()
    resumed = GRPOTrainer(built(name, seed=4), share_of_class_two, config, run=tmp_path / "part", resume=True)
    resumed.train()
    assert all(torch.equal(a, b) for a, b in zip(whole.module.parameters(), resumed.module.parameters(), strict=True))
    again: Any = read_policy(save(tmp_path / "policy", whole.module, metadata={}), trusted=["discrete_grpo", "tests"])
    assert type(again).__qualname__ == type(whole.policy).__qualname__
    assert again.init_args().keys() == built(name).init_args().keys()
    assert isinstance(again.policy, GraphPolicy)
    again.decode = node_classes
    assert again.policy.decode is node_classes
    contexts = [Context(0), Context(1)]
    assert torch.equal(*[p.sample(contexts, generator=seeded(0)).logp for p in (whole.policy, again)])


def test_names_choose_and_bad_arguments_are_named() -> None:
    policy = tiny_policy()
    assert with_likelihood(policy) is policy
    assert isinstance(with_likelihood(policy, "eager"), EagerLikelihood)
    assert with_likelihood(policy, "elbo", draws=7).draws == 7
    with pytest.raises(ValueError, match="likelihood: 'exact', expected transition, eager or elbo"):
        with_likelihood(policy, "exact")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="draws: 0, expected at least 1"):
        with_likelihood(policy, "elbo", draws=0)
    with pytest.raises(TypeError, match="policy: SizedPolicy, expected a GraphPolicy"):
        with_likelihood(SizedPolicy(policy, LearnedSizes(policy.node_counts)), "eager")  # type: ignore[arg-type]
    for name in ("eager", "elbo"):
        with pytest.raises(ValueError, match="num_nodes: 9"):
            built(name).check_condition({"num_nodes": 9})


def test_shared_steps_and_the_elbo_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="shared_steps: 2, expected 0 with likelihood elbo"):
        ElboLikelihood(tiny_policy(shared_steps=2))
