"""Preconditioned graph policies: the network speaks of a site from the others, the noise of the site itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.noise import marginal
from discrete_grpo.diffusion.schedules import LinearSchedule
from discrete_grpo.domains.graphs import GraphBatch, symmetrise, upper
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.runs.checkpoint import read_policy, save
from discrete_grpo.testing import check_policy
from tests.policies.graph_policy_parts import COUNTS, draw, every_kernel, make, replayed, seeded


def silent(policy: GraphPolicy) -> GraphPolicy:
    """With a network that says nothing: all logits are 0."""
    with torch.no_grad():
        for name, parameter in policy.network.named_parameters():
            if name.startswith(("node_out.3", "edge_out.3")):
                parameter.zero_()
    return policy


@every_kernel
def test_a_silent_network_leaves_bayes_with_a_uniform_prior(kind: str) -> None:
    policy = silent(make(kind, dtype=torch.float64, precondition=True))
    nodes = torch.tensor([[0, 1, 2]])
    graphs = GraphBatch(nodes, torch.zeros(1, 3, 3, dtype=torch.long), torch.ones(1, 3, dtype=torch.bool))
    for t in (0.05, 0.5, 0.95):
        time = torch.tensor([t], dtype=torch.float64)
        found, _ = policy.clean_probs(graphs, time)
        kernel = policy.node_kernel
        bar, m = float(kernel.noise.schedule.alpha_bar(time)), kernel.noise.initial()  # type: ignore[attr-defined]
        for site, z in enumerate(nodes[0].tolist()):
            q = torch.tensor([bar * (z == c) + (1 - bar) * float(m[z]) for c in range(kernel.noise.num_clean)], dtype=torch.float64)
            torch.testing.assert_close(found[0, site], q / q.sum(), rtol=0, atol=1e-12)


@every_kernel
def test_it_adds_the_evidence_to_the_logits_of_the_same_network(kind: str) -> None:
    plain, with_it = make(kind, dtype=torch.float64), make(kind, dtype=torch.float64, precondition=True)
    graphs = GraphBatch(
        torch.tensor([[0, 1, 2, 1]]), torch.zeros(1, 4, 4, dtype=torch.long), torch.tensor([[True, True, True, False]])
    )
    time = torch.tensor([0.3], dtype=torch.float64)
    sites = (graphs.nodes, upper(graphs.edges))
    for before, after, kernel, site in zip(
        plain.clean_probs(graphs, time), with_it.clean_probs(graphs, time), with_it._kernels, sites, strict=True
    ):
        wanted = (before.log() + kernel.noise.evidence(site, time)).softmax(-1)  # type: ignore[attr-defined]
        torch.testing.assert_close(after, wanted, rtol=0, atol=1e-12)


def test_temperature_divides_what_the_network_says_alone() -> None:
    cold, one = (make(dtype=torch.float64, precondition=True, temperature=t) for t in (0.5, 1.0))
    plain = make(dtype=torch.float64)
    graphs = GraphBatch(torch.tensor([[0, 1]]), torch.zeros(1, 2, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool))
    time = torch.tensor([0.3], dtype=torch.float64)
    found, said = cold.clean_probs(graphs, time)[0], plain.clean_probs(graphs, time)[0]
    gain = one.node_kernel.noise.evidence(graphs.nodes, time)  # type: ignore[attr-defined]
    torch.testing.assert_close(found, (2 * said.log() + gain).softmax(-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [FlowInterpolation, FlowEuler])
def test_the_evidence_of_a_flow_is_that_of_its_noise(kind: type[FlowInterpolation] | type[FlowEuler]) -> None:
    noise = marginal([0.5, 0.3, 0.2], LinearSchedule())
    state, time = torch.tensor([[0, 1, 2]]), torch.tensor([0.2], dtype=torch.float64)
    flow = kind(noise)
    assert torch.equal(flow.noise.evidence(state, time), noise.evidence(state, time))
    drawn = flow.noise.sample(torch.ones(1, 200_000, dtype=torch.long), time, seeded(0))  # and this is how it noises
    share = drawn.flatten().bincount(minlength=3) / drawn.numel()
    wanted = noise.evidence(state, time)[0, :, 1] + torch.tensor(noise.prior).double().log()
    torch.testing.assert_close(share.double(), wanted.softmax(0), rtol=0, atol=0.005)


class Unscheduled:
    """A kernel with a noise process of its own, which has no schedule and hence no evidence."""

    noise = SimpleNamespace(num_clean=2, num_states=2)


def test_a_kernel_without_a_schedule_is_named() -> None:
    policy = make()
    kernel: Any = Unscheduled()
    with pytest.raises(ValueError, match=r"precondition: True, expected False: Unscheduled \(node_kernel\) has no schedule"):
        GraphPolicy(policy.network, kernel, policy.edge_kernel, COUNTS, precondition=True)


@every_kernel
def test_the_training_loss_is_minus_log_of_the_probabilities_it_draws_with(kind: str) -> None:
    policy = make(kind, dtype=torch.float64, precondition=True)
    clean = torch.randint(policy.edge_kernel.noise.num_clean, (5, 6), generator=seeded(2))
    nodes = torch.randint(policy.node_kernel.noise.num_clean, (5, 4), generator=seeded(0))
    graphs = GraphBatch(nodes, symmetrise(clean, 4), torch.ones(5, 4, dtype=torch.bool))
    seen: list[tuple[torch.Tensor, ...]] = []
    policy.network.register_forward_pre_hook(lambda module, args: seen.append(args))
    loss = policy.likelihood_loss(graphs, generator=seeded(1))
    ((noisy, edges, time, mask),) = seen
    p_nodes, p_pairs = policy.clean_probs(GraphBatch(noisy, edges, mask), time)
    of_nodes = -p_nodes.gather(-1, nodes.unsqueeze(-1)).log().mean()
    of_pairs = -p_pairs.gather(-1, clean.unsqueeze(-1)).log().mean()
    torch.testing.assert_close(loss["loss"], of_nodes + 5 * of_pairs, rtol=0, atol=1e-12)
    plain = make(kind, dtype=torch.float64).likelihood_loss(graphs, generator=seeded(1))
    assert not torch.allclose(plain["loss"], loss["loss"], atol=1e-3)


@every_kernel
def test_what_is_scored_is_what_was_drawn(kind: str) -> None:
    policy = make(kind, precondition=True)
    rollout = draw(policy, [5] * 6)
    assert torch.equal(replayed(policy, rollout), rollout.logp)


def test_it_stays_with_the_checkpoint(tmp_path: Path) -> None:
    assert "precondition" not in make().init_args()
    policy = make("uniform", precondition=True, node_counts=COUNTS)
    save(tmp_path / "p", policy, metadata={})
    again = read_policy(tmp_path / "p")
    assert again.precondition
    assert torch.equal(draw(again).logp, draw(policy).logp)


@pytest.mark.parametrize("kind", ["marginal", pytest.param("absorbing", marks=pytest.mark.slow)])
def test_the_conformance_kit_passes(kind: str) -> None:
    check_policy(make(kind, precondition=True), group_contexts(3, 3), samples=200, seconds=3.0).raise_on_failure()
