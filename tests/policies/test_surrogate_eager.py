"""The eager likelihood: clean log-probs by a loop, its gradient, and the laws of the conformance kit."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from discrete_grpo.core.rollout import Context, group_contexts
from discrete_grpo.domains.graphs import node_mask, pair_index
from discrete_grpo.policies.surrogate import EagerLikelihood
from discrete_grpo.testing import check_policy
from tests import oracles
from tests.policies.surrogate_parts import STEPS, clean_probs, every_kernel, seeded, two_nodes
from tests.toys import tiny_policy, transformer_policy


@every_kernel
def test_eager_is_the_loop_of_clean_log_probs_with_its_entropy_and_kl(kind: str) -> None:
    inner, other = two_nodes(kind), two_nodes(kind, seed=1)
    policy, reference = EagerLikelihood(inner), EagerLikelihood(other)
    rollout = policy.sample([Context(k) for k in range(9)], generator=seeded(0))
    found = policy.score(rollout, None, reference)
    assert found.kl is not None
    assert found.kl_forward is not None
    for b, k in itertools.product(range(9), range(STEPS)):
        now = (*rollout.states["nodes"][b, k].tolist(), *rollout.states["pairs"][b, k].tolist())
        own, ref = ([p.detach().tolist() for p in clean_probs(x, now, k)] for x in (inner, other))
        for u, c in enumerate(rollout.samples[b]):
            assert float(found.logp[b, k, u].detach()) == pytest.approx(math.log(own[u][c]), abs=1e-12)
            assert float(found.entropy[b, k, u]) == pytest.approx(oracles.entropy(own[u]), abs=1e-12)
            assert float(found.kl[b, k, u].detach()) == pytest.approx(oracles.kl(own[u], ref[u]), abs=1e-12)
            assert float(found.kl_forward[b, k, u].detach()) == pytest.approx(oracles.kl(ref[u], own[u]), abs=1e-12)
    same = policy.score(rollout, None, EagerLikelihood(inner))
    assert same.kl is not None
    assert float(same.kl.detach().abs().max()) == 0.0
    assert torch.equal(policy.score(rollout).logp, found.logp)


def test_the_eager_gradient_is_that_of_the_cross_entropy_on_the_states_of_the_trajectory() -> None:
    inner = tiny_policy()
    policy = EagerLikelihood(inner.double())
    rollout = policy.sample([Context(k) for k in range(5)], generator=seeded(0))
    steps = torch.tensor([[0, 3], [1, 2], [3, 0], [2, 2], [0, 1]])
    parameters = list(policy.parameters())
    scores = policy.score(rollout, steps)
    found = torch.autograd.grad(-scores.logp.sum(), parameters, materialize_grads=True)
    loss = torch.zeros((), dtype=torch.float64)
    for b, n in enumerate(rollout.size.tolist()):
        for k in steps[b].tolist():
            i, j = pair_index(n)
            nodes = rollout.states["nodes"][b, [k, -1], :n].long()
            pairs = rollout.states["pairs"][b, [k, -1], : len(i)].long()
            edges = torch.zeros(n, n, dtype=torch.long)
            edges[i, j] = edges[j, i] = pairs[0]
            z_x, z_e = inner.network(nodes[:1], edges[None], inner.grid[k : k + 1], node_mask(torch.tensor([n]), n))
            loss = loss + torch.nn.functional.cross_entropy(z_x[0], nodes[1], reduction="sum")
            loss = loss + torch.nn.functional.cross_entropy(z_e[0][i, j], pairs[1], reduction="sum")
    wanted = torch.autograd.grad(loss, parameters, materialize_grads=True)
    for a, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, w, rtol=1e-8, atol=1e-9)
    assert torch.equal(scores.mask.sum(-1), rollout.units.gather(1, steps))


def test_an_eager_policy_passes_the_kit_with_the_steps_of_its_sampler() -> None:
    policy = EagerLikelihood(transformer_policy())
    check_policy(policy, group_contexts(3, 3), samples=150, skip={"learning"}).raise_on_failure()
