"""Compiled layers: drawing and scoring run the same code, checkpoints know nothing of it, one program serves many sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import Rollout, group_contexts
from discrete_grpo.models.encoder import Encoder, EncoderConfig
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.runs.checkpoint import read_policy, save
from discrete_grpo.training.lora import add_lora, without_lora
from discrete_grpo.training.network import checkpoint_layers, compile_network
from tests.toys import transformer_policy

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, while it traces


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """No programs of another test, and torch's own settings afterwards."""
    torch._dynamo.reset()
    before = torch._dynamo.config.recompile_limit
    yield
    torch._dynamo.config.recompile_limit = before
    torch._dynamo.reset()


class Counting:
    """A backend of ``torch.compile`` that runs the traced program as it is, and counts programs."""

    def __init__(self) -> None:
        self.programs = 0

    def __call__(self, program: Any, example: Any) -> Callable[..., Any]:
        self.programs += 1
        return program.forward


def policy_of(seed: int = 0) -> GraphPolicy:
    policy = transformer_policy(sizes=[0.0, 0.0, 0.0, *[1 / 5] * 5])
    for k, parameter in enumerate(policy.parameters()):
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(k + seed)))
    return policy


def draw(policy: GraphPolicy) -> Rollout:
    return policy.sample(group_contexts(6, 2), generator=torch.Generator().manual_seed(0))


def logp(policy: GraphPolicy, rollout: Rollout) -> Tensor:
    return score_sites(policy.sites(rollout)).logp


def gradients(policy: GraphPolicy, rollout: Rollout) -> dict[str, Tensor]:
    """Those that are not zero: compiled code gives zeros where nothing is read, as behind the last layer."""
    policy.zero_grad(set_to_none=True)
    logp(policy, rollout).sum().backward()
    return {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None and bool(p.grad.any())}


@pytest.mark.slow
def test_the_same_samples_and_gradients_as_without() -> None:
    """All of the compiler but the code it writes: the layers of the graph transformer are traced forwards and backwards."""
    policy, plain = policy_of(), policy_of()
    compile_network(policy, "aot_eager")
    torch._dynamo.utils.counters.clear()
    rollout = draw(policy)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for name, value in draw(plain).states.items():
        assert torch.equal(rollout.states[name], value)
    torch.testing.assert_close(gradients(policy, rollout), gradients(plain, rollout), rtol=1e-4, atol=3e-6)


def test_drawing_and_scoring_run_the_same_program_for_all_sizes_and_layers() -> None:
    policy, backend = policy_of(), Counting()
    compile_network(policy, backend)
    rollout = draw(policy)
    assert len({int(n) for n in rollout.size}) >= 4
    once = backend.programs
    assert once == 1
    with torch.no_grad():
        old = logp(policy, rollout)
    new = logp(policy, rollout)
    assert backend.programs == once
    assert torch.equal((new - old).exp(), torch.ones_like(new))
    new.sum().backward()
    assert all(p.grad is not None for p in policy.network.blocks[0].parameters())  # type: ignore[index, union-attr]


def test_without_gradients_no_layer_keeps_what_it_computed() -> None:
    network = Encoder(EncoderConfig(9, 6, layers=1, heads=2, width=8)).eval()
    compile_network(network, Counting())
    x, attend = torch.zeros(3, 5, 8), torch.ones(3, 1, 1, 5, dtype=torch.bool)
    layer = network.trunk.blocks[0]
    with torch.no_grad():
        assert not layer(x, attend).requires_grad
    assert layer(x, attend).requires_grad


@pytest.mark.slow
def test_checkpoints_and_copies_know_nothing_of_it(tmp_path: Path) -> None:
    policy, backend = policy_of(), Counting()
    names = list(policy.state_dict())
    compile_network(policy, backend)
    rollout = draw(policy)
    assert list(policy.state_dict()) == names
    save(tmp_path / "policy", policy, metadata={})
    loaded = read_policy(tmp_path / "policy")
    before = backend.programs
    torch._dynamo.reset()  # a compiled network would be compiled again
    copied = copy.deepcopy(policy)
    for parameter in copied.parameters():
        parameter.data.mul_(2)
    for other in (loaded, copied):
        found = logp(other, rollout)
        assert backend.programs == before
    assert not torch.equal(found, logp(policy, rollout))  # a copy runs its own weights
    assert torch.equal(logp(policy, rollout), logp(policy, rollout))


def test_an_encoder_can_be_compiled() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Encoder(EncoderConfig(9, 6, layers=2, heads=2, width=8)).eval()
    x = torch.randint(4, 9, (5, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < torch.tensor([[6], [3], [5], [2], [6]])
    wanted = network(x, mask)
    backend = Counting()
    compile_network(network, backend)
    torch.testing.assert_close(network(x, mask), wanted)
    torch.testing.assert_close(network(x[:3, :4], mask[:3, :4]), network.eval()(x[:3, :4], mask[:3, :4]))
    assert 0 < backend.programs <= 3


@pytest.mark.slow
def test_it_goes_together_with_adapters_and_with_layers_computed_again() -> None:
    policy, backend = policy_of(), Counting()
    add_lora(policy, r=2, target_modules=["qkv", "edge_in", "film"])
    for k, parameter in enumerate(p for p in policy.parameters() if p.requires_grad):
        parameter.data.normal_(std=0.2, generator=torch.Generator().manual_seed(k))
    plain = copy.deepcopy(policy)
    compile_network(policy, backend)
    checkpoint_layers(policy)
    rollout = draw(policy)
    torch.testing.assert_close(gradients(policy, rollout), gradients(plain, rollout), rtol=1e-4, atol=3e-6)
    assert backend.programs == 1  # adapted layers share it too
    torch.testing.assert_close(logp(without_lora(policy), rollout), logp(policy, rollout), rtol=0, atol=1e-4)


class Layer(nn.Module):
    """A norm, a product and an activation: little to compile, and all that a pass through a layer and back consists of."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.feed = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.feed(self.norm(x)))


class LayersOfNodes(nn.Module):
    """Logits of nodes and pairs from two layers over the nodes; both layers share one program."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed, self.pairs = nn.Embedding(3, width), nn.Embedding(2, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.node_out, self.edge_out = nn.Linear(width, 3), nn.Linear(width, 2)

    def compiled_parts(self) -> list[nn.Module]:
        return list(self.layers)

    def forward(self, nodes: Tensor, edges: Tensor, time: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(nodes) + (self.pairs(edges) * mask[:, None, :, None]).mean(2) + time[:, None, None]
        for layer in self.layers:
            x = layer(x)
        return self.node_out(x), self.edge_out(x[:, :, None] + x[:, None, :])


@pytest.mark.slow
def test_with_the_real_compiler_the_first_ratio_is_exactly_one() -> None:
    tiny = transformer_policy()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = LayersOfNodes()
    plain = GraphPolicy(network, tiny.node_kernel, tiny.edge_kernel, [0.0, 0.0, 0.0, *[1 / 5] * 5], num_steps=4).eval()
    policy = copy.deepcopy(plain)
    compile_network(policy)
    torch._dynamo.utils.counters.clear()
    rollout = draw(policy)
    with torch.no_grad():
        old = logp(policy, rollout)
    new = logp(policy, rollout)
    assert torch.equal((new - old).exp(), torch.ones_like(new))
    found, wanted = gradients(policy, rollout), gradients(plain, rollout)
    assert "network.layers.0.norm.weight" in wanted
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # drawing and scoring, of all sizes, in both layers


def test_networks_that_cannot_be_compiled_are_named() -> None:
    with pytest.raises(ValueError, match=r"torch_compile: True, expected False: GPT has no method compiled_parts\(\)"):
        compile_network(GPT(GPTConfig(9, 5, layers=1, heads=1, width=4)))
    with pytest.raises(ValueError, match="Linear has no method"):
        compile_network(nn.Linear(1, 1))


def test_a_missing_compiler_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as settings

    monkeypatch.setattr(settings.cpp, "cxx", (None, "no-such-compiler"))
    with pytest.raises(RuntimeError, match="expected a C\\+\\+ compiler: install g\\+\\+ or name one in CXX, or leave it off"):
        compile_network(policy_of())
