"""No float64 tensor reaches a device that has none, from drawing to the gradient; found on a pretend device."""

from __future__ import annotations

import random
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.kl import trajectory_sum
from discrete_grpo.core.precision import exact_device, place, widen, widest
from discrete_grpo.core.rollout import Rollout, group_contexts
from discrete_grpo.diffusion.flow import FlowEuler
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import Noise, absorbing, marginal
from discrete_grpo.diffusion.schedules import CosineSchedule, DigressSchedule, LinearSchedule, PolydecDistortion
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.domains.tokenizer import Property, TokenBatch, Tokenizer
from discrete_grpo.models.connectivity import effective_resistance
from discrete_grpo.models.digress_features import MoleculeFeatures, extra
from discrete_grpo.models.encoder import Encoder, EncoderConfig
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.models.vq import VQAutoencoder, VQConfig
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.node_count import RunningSizes, SizedPolicy
from discrete_grpo.policies.surrogate import ElboLikelihood
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.training import trainer
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.minibatches import Batch, choose_steps, microbatches, train_rows, window_weights
from discrete_grpo.training.sampler import Shard
from discrete_grpo.training.trainer import GRPOTrainer
from discrete_grpo.training.update import UpdatePlan, loss_terms, micro_batch_loss, policy_scores, trajectory_kl
from tests.pretend_device import MPS, DeviceError, Pretend, generator, move, pretending


def test_types_by_device() -> None:
    assert (widest(torch.device("cpu")), widest(torch.device("cuda", 1)), widest(MPS)) == (
        torch.float64,
        torch.float64,
        torch.float32,
    )
    assert exact_device(torch.device("cuda", 1)) == torch.device("cuda", 1)
    assert exact_device(MPS) == torch.device("cpu")
    assert widen(torch.ones(2)).dtype == torch.float64
    assert place(torch.ones(2, dtype=torch.float64), torch.device("meta")).dtype == torch.float64


def test_the_pretend_device_refuses_what_a_real_one_does() -> None:
    with pretending():
        x = torch.ones(2, device="mps")
        assert (x + 1).device == MPS
        assert (x.cpu() + 1).tolist() == [2.0, 2.0]
        for broken in (
            lambda: x.double(),
            lambda: torch.zeros(2, device="mps", dtype=torch.float64),
            lambda: torch.zeros(2, dtype=torch.float64).to("mps"),
            lambda: x + torch.ones(2),
            lambda: torch.rand(2, device="mps", generator=torch.Generator()),
        ):
            with pytest.raises(DeviceError):
                broken()
        assert place(torch.zeros(2, dtype=torch.float64), MPS).dtype == torch.float32


def seeded() -> torch.Generator:
    made = generator()
    made.manual_seed(0)
    return made


D = DigressSchedule(4)
POLICIES: dict[str, Any] = {
    "d3pm": (D3PM(marginal([0.5, 0.5], CosineSchedule())), D3PM(marginal([0.9, 0.1], CosineSchedule())), {"precondition": True}),
    "digress": (D3PM(marginal([0.5, 0.5], D)), D3PM(marginal([0.9, 0.1], D)), {}),
    "absorbing": (D3PM(absorbing(2, LinearSchedule())), D3PM(absorbing(2, LinearSchedule())), {}),
    "euler": (
        FlowEuler(Noise((0.5, 0.5), LinearSchedule(), 2), eta=0.1, omega=0.05),
        FlowEuler(Noise((0.9, 0.1), LinearSchedule(), 2), eta=0.1, omega=0.05),
        {"sample_distortion": PolydecDistortion(), "train_distortion": PolydecDistortion()},
    ),
}


def make(kind: str) -> GraphPolicy:
    node, edge, options = POLICIES[kind]
    sizes: dict[str, Any] = {
        "layers": 1,
        "heads": 2,
        "width": 8,
        "edge_width": 4,
        "global_width": 4,
        "walk_length": 3,
        "connectivity": True,
    }
    x, e = node.noise, edge.noise
    config = GraphTransformerConfig(x.num_states, e.num_states, x.num_clean, e.num_clean, log_time=True, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GraphPolicy(GraphTransformer(config), node, edge, [0.0, 0.0, 0.5, 0.5], num_steps=3, **options).eval()


def drawn(policy: Any) -> tuple[Rollout, torch.Tensor]:
    rollout = policy.sample(group_contexts(2, 4), generator=seeded())
    rng = random.Random(0)
    return rollout, torch.tensor([[rng.random()] for _ in range(len(rollout))], dtype=torch.float64)


@pytest.mark.parametrize(
    ("kind", "selection"),
    [("d3pm", "random"), ("d3pm", "window"), ("digress", "window"), ("absorbing", "random"), ("euler", "window")],
)
def test_a_graph_policy_is_drawn_from_and_trained_without_float64(kind: str, selection: Any) -> None:
    config = GRPOConfig(
        num_generations=4, generation_batch_size=8, timestep_fraction=0.7, timestep_selection=selection, beta=0.1,
        top_entropy_quantile=0.5, entropy_coef=0.01,
    )  # fmt: skip
    with pretending():
        policy: Any = move(make(kind))
        reference: Any = move(make(kind))
        rollout, rewards = drawn(policy)
        batch = Batch(rollout, rewards, torch.zeros(len(rollout), dtype=torch.bool), [None] * len(rollout))
        draws = train_rows([batch], config)
        assert draws[0].advantage.device == MPS
        choice = choose_steps(draws, config, seeded())
        ((weights,),) = window_weights([choice.counts], config)
        total = 0.0
        for chunk in microbatches(draws, choice, weights, config):
            scores = policy_scores(policy, chunk)
            plan = UpdatePlan(threshold=torch.tensor(0.1, dtype=torch.float64), entropy_coef=0.01)
            terms = loss_terms(policy, chunk, reference, config, bonus=True)
            loss = micro_batch_loss(terms, chunk, scores.logp.detach(), plan, config)
            loss.loss.backward()
            total += sum(float(p.grad.detach().held.abs().sum()) for p in policy.parameters() if p.grad is not None)
        assert total > 0
        assert trajectory_kl(policy, reference, rollout, batch.refined, config).shape == (8,)
        graphs = GraphBatch(torch.ones(2, 3), torch.zeros(2, 3, 3), torch.ones(2, 3)).to("mps")
        graphs = GraphBatch(graphs.nodes.long(), graphs.edges.long(), graphs.mask.bool())
        policy.likelihood_loss(graphs, generator=seeded())["loss"].backward()


def test_a_running_histogram_learns_from_what_other_processes_gathered_on_the_cpu() -> None:
    with pretending():
        policy: Any = move(SizedPolicy(make("d3pm"), RunningSizes((0.0, 0.0, 0.5, 0.5))))
        rollout, rewards = drawn(policy)
        policy.observe(rollout, place(rewards[:, 0], MPS))
        after = policy.head.histogram.held.clone()
        policy.observe(rollout.to("cpu"), rewards[:, 0])
        assert isinstance(policy.head.histogram, Pretend)
        assert not torch.equal(policy.head.histogram.held, after)


def test_the_evidence_lower_bound_is_drawn_without_float64() -> None:
    with pretending():
        policy: Any = move(ElboLikelihood(make("d3pm"), 2))
        rollout, _ = drawn(policy)
        scores = policy.score(rollout)
        scores.logp.sum().backward()
        assert trajectory_sum(scores.logp, scores.mask).dtype == torch.float32


def test_text_policies_are_drawn_from_and_trained_without_float64() -> None:
    letters = Tokenizer(("a", "b", "c"))
    gpt, encoder = (
        GPTConfig(len(letters), 4, 1, layers=1, heads=2, width=8),
        EncoderConfig(len(letters), 6, layers=1, heads=2, width=8),
    )
    with torch.random.fork_rng(devices=[]):
        policies: list[tuple[Any, dict[str, Any]]] = [
            (TokenPolicy(GPT(gpt), letters, max_length=4, properties=[Property("p", 1.0, 2.0)]), {"p": 3.0}),
            (MaskedTextPolicy(Encoder(encoder), letters, 6, rounds=2), {"masked": "a_b__"}),
        ]
    text = torch.tensor([letters.encode("abc")])
    for policy, columns in policies:
        with pretending():
            move(policy.eval())
            rollout = policy.sample(group_contexts(1, 4, [columns]), generator=seeded())
            score_sites(policy.sites(rollout)).logp.sum().backward()
            batch = TokenBatch(text).to("mps") if isinstance(policy, TokenPolicy) else text.to("mps")
            policy.likelihood_loss(batch, generator=seeded())["loss"].backward()


def test_codes_of_images_are_learned_without_float64() -> None:
    with torch.random.fork_rng(devices=[]):
        model = VQAutoencoder(VQConfig(size=4, codes=5, code_width=3, width=6))
    with pretending():
        batch = SimpleNamespace(pixels=torch.rand(3, 4, 4).to("mps"))
        found = move(model).likelihood_loss(batch)  # type: ignore[operator]
        found["loss"].backward()
        assert found["perplexity"].dtype == torch.float32


def test_a_whole_run_needs_no_float64_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two updates with a reference, a moving average and several passes through what was drawn."""
    accelerator = SimpleNamespace(
        device=MPS, process_index=0, num_processes=1, prepare=lambda x: x, backward=lambda loss: loss.backward()
    )
    monkeypatch.setattr(trainer, "accelerator", lambda: accelerator)
    monkeypatch.setattr(GRPOTrainer, "precision", lambda self: nullcontext())
    monkeypatch.setattr(trainer, "make_shards", lambda *_, **__: [Shard(0, seeded())])
    with pretending():
        policy = make("d3pm")
        policy.decode = lambda graphs: [tuple(row) for row in graphs.nodes.tolist()]
        monkeypatch.setattr(policy, "to", lambda device: move(policy))
        config = GRPOConfig(
            max_steps=2, num_generations=2, generation_batch_size=4, steps_per_generation=2, beta=0.1, ema_decay=0.9,
            timestep_fraction=0.5, top_entropy_quantile=0.5, kl_in="both",
        )  # fmt: skip
        lines = GRPOTrainer(policy, lambda samples, **_: [float(sum(s)) for s in samples], config).train()
        assert len(lines) == 2
        assert lines[0]["grad_norm"] > 0


@pytest.mark.parametrize("features", ["none", "cycles", "eigenvalues", "all", "rrwp"])
def test_features_of_the_imported_networks_are_those_of_the_cpu(features: Any) -> None:
    pairs = torch.zeros(2, 4, 4)
    for i, j in ((0, 1), (1, 2), (2, 0)):
        pairs[:, i, j] = pairs[:, j, i] = 1
    mask = torch.tensor([[True] * 4, [True] * 3 + [False]])
    here = extra(features, pairs, mask, max_nodes=4, walk_length=3)
    with pretending():
        there = extra(features, pairs.to("mps"), mask.to("mps"), max_nodes=4, walk_length=3)
        for name in ("nodes", "edges", "graph"):
            assert torch.equal(getattr(there, name).cpu(), getattr(here, name).float())


def test_exact_features_are_computed_where_float64_is() -> None:
    a = torch.tensor([[[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]])
    same = torch.ones(1, 3, 3, dtype=torch.bool)
    here = effective_resistance(a, same)
    with pretending():
        there = effective_resistance(a.to("mps"), same.to("mps"))
        assert there.device == MPS
        assert torch.equal(there.cpu(), here)


def test_molecular_features_without_float64() -> None:
    data = MoleculeFeatures((12.0, 14.0), 40.0)
    nodes, edges = torch.tensor([[0, 1]]), torch.tensor([[[0, 1], [1, 0]]])
    on = torch.ones(1, 2, dtype=torch.bool)
    with pretending():
        charges, weight = data.of(nodes.to("mps"), edges.to("mps"), on.to("mps"), 2)
        assert charges.dtype == weight.dtype == torch.float32
        assert float(weight.cpu()) == pytest.approx(26 / 40)
