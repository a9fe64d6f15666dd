"""bfloat16 autocast is for networks alone: what follows their logits has the same bits as without it, in every family."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import Scores, score_sites
from discrete_grpo.core.rollout import Rollout, group_contexts, is_scorer
from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM, Kernel
from discrete_grpo.diffusion.noise import Noise, absorbing, marginal, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, DigressSchedule, LinearSchedule
from discrete_grpo.domains.graphs import node_mask, unpack
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.policies.node_count import LearnedSizes, RunningSizes, SizedPolicy
from discrete_grpo.policies.surrogate import EagerLikelihood, ElboLikelihood
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.testing import LAWS, Report, check_policy
from discrete_grpo.testing.case import same
from discrete_grpo.training.network import network_of
from tests.policies.masked_text_parts import make as masked_text
from tests.policies.test_decoded import image_codes
from tests.policies.test_graph_conditions import COLUMNS, conditional, state_of
from tests.policies.test_tokens import token_policy
from tests.toys import node_classes, tiny_network

LINEAR, COSINE = LinearSchedule(), CosineSchedule()
P3, P2 = (0.5, 0.2, 0.3), (0.7, 0.3)
MASK3, MASK2 = (0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 1.0)
Pair = tuple[Kernel, Kernel]
KERNELS: dict[str, Pair] = {
    "d3pm uniform": (D3PM(uniform(3, COSINE)), D3PM(uniform(2, COSINE))),
    "d3pm marginal": (D3PM(marginal(P3, COSINE)), D3PM(marginal(P2, LINEAR))),
    "d3pm absorbing": (D3PM(absorbing(3, LINEAR)), D3PM(absorbing(2, LINEAR))),
    "d3pm digress": (D3PM(marginal(P3, DigressSchedule(4))), D3PM(marginal(P2, DigressSchedule(4)))),
    "flow": (FlowInterpolation(Noise(P3, LINEAR, 3)), FlowInterpolation(Noise(P2, COSINE, 2))),
    "flow absorbing": (FlowInterpolation(Noise(MASK3, LINEAR, 3)), FlowInterpolation(Noise(MASK2, LINEAR, 2))),
    "euler": (FlowEuler(Noise(P3, LINEAR, 3)), FlowEuler(Noise(P2, LINEAR, 2))),
    "euler eta": (FlowEuler(Noise(P3, COSINE, 3), 10.0), FlowEuler(Noise(P2, LINEAR, 2), 3.0)),
    "euler omega": (FlowEuler(Noise(P3, LINEAR, 3), 0.0, 0.5), FlowEuler(Noise(P2, LINEAR, 2), 0.0, 0.1)),
    "euler both": (FlowEuler(Noise(P3, COSINE, 3), 5.0, 0.2), FlowEuler(Noise(P2, COSINE, 2), 30.0, 0.5)),
    "euler absorbing": (FlowEuler(Noise(MASK3, LINEAR, 3), 2.0, 0.1), FlowEuler(Noise(MASK2, LINEAR, 2), 2.0, 0.1)),
}


class MatrixNoise:
    """A noise process of a third party, which draws by matrix products."""

    def __init__(self, noise: Noise) -> None:
        self.inner = noise
        self.num_clean, self.num_states = noise.num_clean, noise.num_states

    def initial(self) -> Tensor:
        return self.inner.initial()

    def sample(self, x0: Tensor, t: Tensor, generator: torch.Generator | None = None) -> Tensor:
        keep = self.inner.schedule.alpha_bar(t).float().reshape(-1, *[1] * (x0.ndim))
        rows = nn.functional.one_hot(x0, self.num_states).float() @ torch.eye(self.num_states)
        p = keep * rows.float() + (1 - keep) * self.initial().float()
        return torch.multinomial(p.flatten(0, -2), 1, generator=generator).view(x0.shape)


class MatrixKernel:
    """A kernel of a third party, which steps by matrix products."""

    def __init__(self, kernel: D3PM) -> None:
        self.inner, self.noise = kernel, MatrixNoise(kernel.noise)

    def transition(self, p_clean: Tensor, state: Tensor, t: Tensor, s: Tensor) -> Tensor:
        tables = torch.stack([self.table(float(a), float(b)) for a, b in zip(t, s, strict=True)]).to(p_clean)
        rows = tables[torch.arange(len(state))[:, None], state]
        return torch.einsum("bnc,bnck->bnk", p_clean / p_clean.sum(-1, keepdim=True), rows)

    def table(self, t: float, s: float) -> Tensor:
        return self.inner.table(t, s)


def graphs(kind: str, **options: Any) -> GraphPolicy:
    x, e = KERNELS[kind] if kind in KERNELS else (MatrixKernel(D3PM(uniform(3, COSINE))), MatrixKernel(D3PM(uniform(2, COSINE))))
    network = tiny_network(x.noise.num_states, e.noise.num_states, layers=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        for head, count in ((network.node_out[-1], x.noise.num_clean), (network.edge_out[-1], e.noise.num_clean)):
            assert isinstance(head, nn.Linear)
            head.weight = nn.Parameter(0.5 * torch.randn(count, head.in_features))
            head.bias = nn.Parameter(torch.randn(count))
    return GraphPolicy(network, x, e, (0.0, 0.0, 0.3, 0.3, 0.4), num_steps=4, decode=node_classes, **options).eval()


GRAPHS = list(group_contexts(3, 3))
PROMPTS = group_contexts(3, 2, [{"masked": text} for text in ("a_b__", "__", "_____b")])
CUT = Truncation(temperature=0.8, top_p=0.8)
Case = tuple[Callable[[], Any], Any]
FAMILIES: dict[str, Case] = {kind: (partial(graphs, kind), GRAPHS) for kind in [*KERNELS, "somebody's"]}
FAMILIES |= {
    "preconditioned": (lambda: graphs("euler both", precondition=True, temperature=0.7), GRAPHS),
    "shared steps": (lambda: graphs("euler", shared_steps=2), GRAPHS),
    "guided": (lambda: conditional(2.5), group_contexts(3, 2, COLUMNS)),
    "scaffold": (lambda: graphs("euler"), group_contexts(2, 3, [{"num_nodes": 4, "fixed": FixedSites({1: 1}, {(1, 2): 1})}] * 2)),
    "learned sizes": (lambda: SizedPolicy(graphs("euler"), LearnedSizes((0.0, 0.0, 0.3, 0.3, 0.4))), GRAPHS),
    "running sizes": (lambda: SizedPolicy(graphs("flow"), RunningSizes((0.0, 0.0, 0.3, 0.3, 0.4))), GRAPHS),
    "text": (lambda: token_policy(dtype=torch.float32, truncation=CUT), group_contexts(3, 2, [{"core": "ab", "p": 1.0}, {}, {}])),
    "masked text": (lambda: masked_text(rounds=3, truncation=CUT), PROMPTS),
    "decoded": (image_codes, GRAPHS),
}
SURROGATES: dict[str, Case] = {
    "eager": (lambda: EagerLikelihood(graphs("euler both")), GRAPHS),
    "elbo": (lambda: ElboLikelihood(graphs("euler both"), 3), GRAPHS),
    "elbo of d3pm": (lambda: ElboLikelihood(graphs("d3pm digress"), 3), GRAPHS),
}
every_family = pytest.mark.parametrize("family", FAMILIES)


@contextlib.contextmanager
def network_alone_in_bf16(policy: nn.Module) -> Iterator[None]:
    """Autocast around each call of the network and around nothing else."""
    network = network_of(policy)
    inside: list[torch.autocast] = []

    def enter(*_: Any) -> None:
        inside.append(torch.autocast("cpu", torch.bfloat16))
        inside[-1].__enter__()

    def leave(*_: Any) -> None:
        inside.pop().__exit__(None, None, None)

    hooks = network.register_forward_pre_hook(enter), network.register_forward_hook(leave)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def scores_of(policy: Any, rollout: Rollout, reference: Any) -> Scores:
    if is_scorer(policy):
        return policy.score(rollout, None, reference)
    return score_sites(policy.sites(rollout), reference.sites(rollout))


def values(rollout: Rollout, scores: Scores) -> dict[str, Tensor]:
    assert scores.kl is not None
    assert scores.kl_forward is not None
    own = {"drawn": rollout.logp, "logp": scores.logp, "entropy": scores.entropy, "kl": scores.kl, "forward": scores.kl_forward}
    return {name: value.detach() for name, value in own.items()} | dict(rollout.states)


def moved(policy: nn.Module) -> nn.Module:
    """Another policy: a reference to take the KL to."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return policy


@pytest.mark.parametrize("family", [*FAMILIES, *SURROGATES])
def test_only_the_network_sees_autocast(family: str) -> None:
    """Drawing, log-probs, entropy and KL under autocast have the bits of a network that enters autocast by itself."""
    make, contexts = (FAMILIES | SURROGATES)[family]
    policy, reference = make().eval(), moved(make().eval())

    def work() -> dict[str, Tensor]:
        rollout = policy.sample(contexts, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            return values(rollout, scores_of(policy, rollout, reference))

    with torch.autocast("cpu", torch.bfloat16):
        found = work()
    with network_alone_in_bf16(policy), network_alone_in_bf16(reference):
        wanted = work()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert same(found[name], value), name
    assert float(found["kl"].min()) > -1e-6
    assert float(found["forward"].min()) > -1e-6
    assert float(found["kl"].max()) > 1e-6
    with torch.no_grad():
        rollout = policy.sample(contexts, generator=torch.Generator().manual_seed(0))
        plain = values(rollout, scores_of(policy, rollout, reference))
    assert not same(found["drawn"], plain["drawn"])  # autocast was on


def law(report: Report, name: str) -> Any:
    return next(row for row in report.rows if row.law == name)


@every_family
def test_the_laws_of_probability_hold_under_bfloat16(family: str) -> None:
    make, contexts = FAMILIES[family]
    laws = ("probabilities", "probabilities bf16", "ratio bf16", "ratio eval", "shapes")
    report = check_policy(make(), contexts, samples=1, skip=[name for name in LAWS if name not in laws])
    for name in laws:
        assert law(report, name).outcome == "passed", str(report)


@pytest.mark.parametrize("kind", KERNELS)
def test_a_kernel_called_under_autocast_has_the_bits_it_has_without(kind: str) -> None:
    for kernel in KERNELS[kind]:
        generator = torch.Generator().manual_seed(0)
        p = torch.rand(8, 5, kernel.noise.num_clean, generator=generator).softmax(-1)
        state = torch.randint(0, kernel.noise.num_clean, (8, 5), generator=generator)
        t, s = torch.linspace(0.2, 1.0, 8), torch.linspace(0.0, 0.9, 8)
        plain = kernel.transition(p, state, t, s)
        with torch.autocast("cpu", torch.bfloat16):
            found = kernel.transition(p, state, t, s)
        assert torch.equal(found, plain)
        torch.testing.assert_close(found.sum(-1), torch.ones(8, 5), rtol=0, atol=2e-6)


def test_likelihood_training_computes_its_loss_without_autocast() -> None:
    policy = graphs("somebody's", precondition=False)
    batch = policy.sample(GRAPHS, generator=torch.Generator().manual_seed(0))
    clean = unpack(batch.states["nodes"][:, -1], batch.states["pairs"][:, -1], node_mask(batch.size, int(batch.size.max())))
    with torch.autocast("cpu", torch.bfloat16):
        found = policy.likelihood_loss(clean, generator=torch.Generator().manual_seed(1))
    with network_alone_in_bf16(policy):
        wanted = policy.likelihood_loss(clean, generator=torch.Generator().manual_seed(1))
    assert same({name: v.detach() for name, v in found.items()}, {name: v.detach() for name, v in wanted.items()})


def test_a_decoder_runs_without_autocast() -> None:
    policy = image_codes()
    contexts = group_contexts(4, 1)
    with torch.autocast("cpu", torch.bfloat16):
        found = policy.sample(contexts, generator=torch.Generator().manual_seed(0))
    texts = [policy.policy.tokenizer.decode(row) for row in found.states["tokens"].tolist()]
    assert list(found.samples) == policy.decoder(texts)


def test_guidance_mixes_branches_in_float32() -> None:
    policy = conditional(2.5)
    state, time = state_of(policy)
    given = torch.tensor([[1.0, -1.0], [-1.5, torch.nan], [0.5, 0.0]])
    said: list[tuple[Tensor, Tensor]] = []
    hook = policy.network.register_forward_hook(lambda module, inputs, output: said.append(output))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, _ = policy.clean_probs(state, time, given)
    hook.remove()
    assert said[0][0].dtype == torch.bfloat16
    conditional_branch, free = said[0][0].float().chunk(2)
    torch.testing.assert_close(found, (2.5 * conditional_branch - 1.5 * free).softmax(-1), rtol=0, atol=1e-6)
