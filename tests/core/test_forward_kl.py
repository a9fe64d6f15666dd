"""The exact forward KL of surrogate likelihoods, KL(p_ref ‖ p_θ) at re-noised states, against sums over classes in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.surrogate import EagerLikelihood, ElboLikelihood
from discrete_grpo.training.update import loss_terms, trajectory_kl
from tests import trainer_parts
from tests.policies.surrogate_parts import STEPS, State, clean_probs, every_kernel, rows_of, seeded, two_nodes

FORWARD: dict[str, Any] = {"beta": 0.3, "kl_estimator": "exact", "kl_direction": "forward"}
SIZES: dict[str, Any] = {"num_generations": 3, "generation_batch_size": 6, "max_grad_norm": None, "learning_rate": 1e-15}
every_surrogate = pytest.mark.parametrize("name", ["elbo", "eager"])


def surrogate(name: str, inner: GraphPolicy) -> Any:
    return ElboLikelihood(inner, 4) if name == "elbo" else EagerLikelihood(inner)


def moments(name: str, rollout: Rollout) -> list[tuple[int, int, State, int]]:
    """Row, column, state x_t and grid point of everything that is scored."""
    found = []
    for b, j in itertools.product(range(len(rollout)), range(rollout.num_steps)):
        now = (*rollout.states["nodes"][b, j].tolist(), *rollout.states["pairs"][b, j].tolist())
        found.append((b, j, now, int(rollout.states["time"][b, j]) if name == "elbo" else j))
    return found


def tables(name: str, kind: str, policy: GraphPolicy, now: State, k: int) -> list[Tensor]:
    """What the KL is of: p(k | x_t) from the kernel's tables, or p̂(c | x_t)."""
    return rows_of(policy, kind, now, None, k) if name == "elbo" else clean_probs(policy, now, k)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Σ_k p_k (log p_k - log q_k) over the classes of mass."""
    on = p > 0
    return (p[on] * (p[on].log() - q[on].log())).sum()


def by_enumeration(name: str, kind: str, inner: GraphPolicy, other: GraphPolicy, rollout: Rollout) -> Tensor:
    """KL(p_ref ‖ p_θ) of every site [B, S, 3], with the gradient of p_θ."""
    found = [
        torch.stack(
            [kl(r.detach(), p) for r, p in zip(tables(name, kind, other, now, k), tables(name, kind, inner, now, k), strict=True)]
        )
        for _, _, now, k in moments(name, rollout)
    ]
    return torch.stack(found).unflatten(0, (len(rollout), rollout.num_steps))


@every_surrogate
@every_kernel
def test_value_and_gradient_are_those_of_the_sum_over_classes(name: str, kind: str) -> None:
    inner, other = two_nodes(kind), two_nodes(kind, seed=1)
    policy = surrogate(name, inner)
    rollout = policy.sample([Context(k) for k in range(6)], generator=seeded(0))
    found = policy.score(rollout, None, surrogate(name, other)).kl_forward
    wanted = by_enumeration(name, kind, inner, other, rollout)
    torch.testing.assert_close(found.detach(), wanted.detach(), rtol=0, atol=1e-10)
    assert float(wanted.detach().max()) > 1e-2
    weight = torch.rand(wanted.shape, generator=seeded(3), dtype=torch.float64)
    parameters = list(policy.parameters())
    gradients = [torch.autograd.grad((weight * x).sum(), parameters, materialize_grads=True) for x in (found, wanted)]
    for a, w in zip(*gradients, strict=True):
        torch.testing.assert_close(a, w, rtol=0, atol=1e-9)
    assert max(float(w.abs().max()) for w in gradients[1]) > 1e-2


def test_the_gradient_is_the_slope_of_the_value() -> None:
    inner, other = two_nodes("marginal"), two_nodes("marginal", seed=1)
    policy, reference = ElboLikelihood(inner, STEPS), ElboLikelihood(other, STEPS)
    rollout = policy.sample([Context(k) for k in range(4)], generator=seeded(0))

    def total() -> Tensor:
        found = policy.score(rollout, None, reference).kl_forward
        assert found is not None
        return found.sum()

    for parameter, slope in zip(policy.parameters(), torch.autograd.grad(total(), list(policy.parameters())), strict=True):
        for place in torch.randperm(parameter.numel(), generator=seeded(1))[:6].tolist():
            flat, sides = parameter.data.view(-1), []
            for step in (1e-5, -2e-5):
                flat[place] += step
                sides.append(float(total().detach()))
            flat[place] += 1e-5
            assert (sides[0] - sides[1]) / 2e-5 == pytest.approx(float(slope.flatten()[place]), abs=1e-7)


@every_surrogate
def test_an_update_with_equal_rewards_follows_it(name: str) -> None:
    """Without a signal the gradient of an update is β Σ_sites w ∇ KL(p_ref ‖ p_θ), and nothing else."""
    inner, other = two_nodes("uniform"), two_nodes("uniform", seed=1)
    config = GRPOConfig(**SIZES, **FORWARD)
    trainer = GRPOTrainer(surrogate(name, inner), lambda samples, **_: [1.0] * len(samples), config)
    assert trainer.reference is not None
    trainer.reference.load_state_dict(surrogate(name, other).state_dict())  # type: ignore[attr-defined]
    rollout = trainer_parts.sample(trainer)
    line = trainer.learner.update(
        trainer.step, trainer_parts.chunks(trainer, rollout, torch.zeros(6), torch.ones(6).double()), [None]
    )
    found = [p.grad.clone() for p in trainer.module.parameters() if p.grad is not None]
    value = by_enumeration(name, "uniform", trainer.policy.policy, other, rollout)  # type: ignore[attr-defined]
    loss = 0.3 * value.mean()
    wanted = torch.autograd.grad(loss, list(trainer.module.parameters()), materialize_grads=True)
    assert len(found) == len(wanted)
    for a, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, w, rtol=0, atol=1e-9)
    assert line["kl_forward"] == pytest.approx(float(value.detach().mean()), abs=1e-9)


@every_surrogate
def test_in_the_reward_it_is_summed_over_the_sites(name: str) -> None:
    inner, other = two_nodes("absorbing"), two_nodes("absorbing", seed=1)
    policy, config = surrogate(name, inner), GRPOConfig(**SIZES, **FORWARD, kl_in="reward")
    rollout = policy.sample([Context(k) for k in range(6)], generator=seeded(0))
    found = trajectory_kl(policy, surrogate(name, other), rollout, torch.zeros(6, dtype=torch.bool), config)
    wanted = by_enumeration(name, "absorbing", inner, other, rollout).sum((1, 2))
    torch.testing.assert_close(found, wanted.detach(), rtol=0, atol=1e-9)


@every_surrogate
def test_other_penalties_are_what_they_were(name: str) -> None:
    policy, reference = surrogate(name, two_nodes("uniform")), surrogate(name, two_nodes("uniform", seed=1))
    rollout = policy.sample([Context(k) for k in range(6)], generator=seeded(0))
    trainer = GRPOTrainer(policy, lambda samples, **_: [1.0] * len(samples), GRPOConfig(**SIZES, beta=0.1))
    chunk = trainer_parts.chunks(trainer, rollout, torch.zeros(6), torch.ones(6).double())[0]
    assert (exact := loss_terms(policy, chunk, reference, trainer.config)).kl is exact.scores.kl
    forward = loss_terms(policy, chunk, reference, GRPOConfig(**SIZES, **FORWARD))
    assert forward.kl is forward.scores.kl_forward
    assert loss_terms(policy, chunk, reference, GRPOConfig(**SIZES, **FORWARD, kl_in="reward")).kl is None
