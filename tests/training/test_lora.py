"""Low-rank adapters: the first policy to the bit, no adapter left out, plain checkpoints, exact resume, names of peft."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.domains.graphs import node_mask, num_pairs, pair_mask, symmetrise
from discrete_grpo.models.convnet import ConvNet, ConvNetConfig
from discrete_grpo.models.digress_transformer import DigressConfig, DigressTransformer
from discrete_grpo.models.encoder import Encoder, EncoderConfig
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.models.huggingface import HuggingFaceLM
from discrete_grpo.models.recurrent import Recurrent, RecurrentConfig
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.runs.checkpoint import read_policy, save
from discrete_grpo.runs.files import write_sums
from discrete_grpo.training.lora import LoraOptions, add_lora, current_names, has_lora, merge_lora, without_lora
from discrete_grpo.training.network import checkpoint_layers
from tests.toys import share_of_class_two, tiny_network, tiny_policy

TOKENS = torch.randint(4, 9, (3, 5), generator=torch.Generator().manual_seed(0))
Answer = Callable[[nn.Module], Tensor]


def graphs(network: nn.Module) -> Tensor:
    g = torch.Generator().manual_seed(0)
    mask = node_mask(torch.tensor([4, 2, 4]), 4)
    nodes = torch.where(mask, torch.randint(3, mask.shape, generator=g), 0)
    pairs = torch.where(pair_mask(mask), torch.randint(2, (3, num_pairs(4)), generator=g), 0)
    x, e = network(nodes, symmetrise(pairs, 4), torch.rand(3, generator=g).double(), mask)
    return torch.cat([x[mask].flatten(), (e * mask[:, :, None, None] * mask[:, None, :, None]).flatten()])


def prompted(network: nn.Module) -> Tensor:
    return network(TOKENS, TOKENS[:, :2], torch.tensor([[0.5], [torch.nan], [-1.0]], dtype=torch.float64))


def masked(network: nn.Module) -> Tensor:
    return network(TOKENS, torch.arange(5) < torch.tensor([[5], [2], [4]]))


def pictures(network: nn.Module) -> Tensor:
    pixels = torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(0))
    return network(pixels.to(next(network.parameters()).dtype))


DIGRESS = DigressConfig(
    *(3, 2, 3, 2, 3, 2, 4), layers=2, heads=2, width=8, edge_width=6, global_width=5, node_hidden=9, edge_hidden=7,
    global_hidden=11, node_mlp=10, edge_mlp=12, global_mlp=13, walk_length=4,
)  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 9}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Answer, list[str] | str]] = {
    "graph transformer": (tiny_network, graphs, "all-linear"),
    "digress": (lambda: DigressTransformer(DIGRESS), graphs, "all-linear"),
    "gpt": (
        lambda: GPT(GPTConfig(9, 6, 1, layers=2, heads=2, width=8)),
        prompted,
        ["qkv", "out", "feed.0", "head", "token", "position", "kind", "property"],
    ),
    "encoder": (
        lambda: Encoder(EncoderConfig(9, 5, layers=2, heads=2, width=8, context=1)),
        masked,
        ["qkv", "feed.2", "position", "token", "neighbours"],
    ),
    "recurrent": (lambda: Recurrent(RecurrentConfig(9, layers=1, width=6, embedding=4)), lambda n: n(TOKENS), ["token", "head"]),
    "convnet": (lambda: ConvNet(ConvNetConfig(width=2)), pictures, ["net.0", "net.2", "net.8"]),
    "gpt2 of transformers": (lambda: HuggingFaceLM(GPT2, range(9)), lambda n: n(TOKENS), "all-linear"),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def made(name: str) -> nn.Module:
    """A network in float64 with no weight at zero, in eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = NETWORKS[name][0]().double().eval()
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.data.add_(0.2 * torch.randn(parameter.shape))
    return network


def adapted(name: str, seed: int = 0) -> nn.Module:
    """The same with adapters that do something."""
    network = made(name)
    add_lora(network, r=2, lora_alpha=3.0, target_modules=NETWORKS[name][2])
    g = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(0.5 * torch.randn(parameter.shape, generator=g))
    return network


def is_adapted(layer: nn.Module) -> bool:
    return hasattr(layer, "parametrizations")


def correction(layer: Any) -> Tensor:
    """Return (α/r) B A in the shape of the layer's weight, by a sum over r."""
    adapter = layer.parametrizations.weight[0]
    a, b = adapter.lora_A, adapter.lora_B
    columns = [b[:, k].reshape(-1, *[1] * (a.ndim - 1)) for k in range(2)]
    delta = 1.5 * torch.stack([columns[k] * a[k].unsqueeze(0) for k in range(2)]).sum(0)
    return delta.T if isinstance(layer, nn.Embedding) or "Conv1D" in type(layer).__name__ else delta


def by_hand(name: str, network: nn.Module) -> nn.Module:
    """A plain network whose weights are W + (α/r) B A of ``network``'s."""
    plain = made(name)
    with torch.no_grad():
        for path, layer in network.named_modules():
            if is_adapted(layer):
                plain.get_submodule(path).weight += correction(layer)  # type: ignore[operator]
    return plain


@every_network
def test_outputs_are_the_same_to_the_bit_right_after_adding(name: str) -> None:
    network, answer = made(name).float(), NETWORKS[name][1]
    before = answer(network)
    assert len(add_lora(network, r=2, target_modules=NETWORKS[name][2])) >= 2
    assert torch.equal(answer(network), before)


@every_network
def test_answers_with_and_without_gradients_are_the_same_to_the_bit(name: str) -> None:
    network, answer = adapted(name).float(), NETWORKS[name][1]
    with torch.no_grad():
        drawn = answer(network)
    assert torch.equal(answer(network), drawn)


@every_network
def test_no_adapter_is_left_out_of_the_answer(name: str) -> None:
    network, answer = adapted(name), NETWORKS[name][1]
    found, wanted = answer(network), answer(by_hand(name, network))
    assert (answer(made(name)) - wanted).abs().max() > 1e-3
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@every_network
def test_an_adapter_has_a_gradient_exactly_where_its_weight_would_learn(name: str) -> None:
    network, answer = adapted(name), NETWORKS[name][1]
    plain = by_hand(name, network)
    for net in (network, plain):
        answer(net).sin().sum().backward()
    learning = 0
    for path, layer in network.named_modules():
        if is_adapted(layer):
            weight: Any = plain.get_submodule(path).weight
            learns = weight.grad is not None and bool(weight.grad.any())
            parts = [p for n, p in layer.named_parameters() if "lora_" in n]
            assert [p.grad is not None and bool(p.grad.any()) for p in parts] == [learns, learns], path
            learning += learns
    assert learning >= 2


@every_network
def test_a_merged_network_is_a_plain_one_with_the_same_answers(name: str) -> None:
    network, answer = adapted(name), NETWORKS[name][1]
    trained = [n for n, p in made(name).named_parameters() if p.requires_grad]
    wanted = answer(network)
    merged = merge_lora(network)
    assert merged is network
    torch.testing.assert_close(answer(merged), wanted, rtol=1e-10, atol=1e-10)
    plain = made(name)
    assert {k: v.shape for k, v in merged.state_dict().items()} == {k: v.shape for k, v in plain.state_dict().items()}
    assert vars(merged).keys() == vars(plain).keys()
    assert [type(m) for m in merged.modules()] == [type(m) for m in plain.modules()]
    assert [n for n, p in merged.named_parameters() if p.requires_grad] == trained


def test_only_adapters_of_the_network_are_trained_and_what_is_outside_still_is() -> None:
    policy = SizedPolicy(tiny_policy(), LearnedSizes((0.0, 0.5, 0.5)))
    outside = {n for n, p in policy.named_parameters() if p.requires_grad and ".network." not in n}
    assert outside
    names = add_lora(policy, r=1, target_modules=["qkv"])
    assert names == ["blocks.0.qkv", "blocks.1.qkv"]
    trained = {n for n, p in policy.named_parameters() if p.requires_grad}
    assert outside < trained
    assert all(".qkv.parametrizations.weight.0.lora_" in n for n in trained - outside)
    assert len(trained - outside) == 4


def test_the_first_ratio_is_exactly_one() -> None:
    policy = tiny_policy()
    before = policy.sample(group_contexts(2, 3), generator=torch.Generator().manual_seed(0))
    add_lora(policy, r=2)
    rollout = policy.sample(group_contexts(2, 3), generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(rollout.states[k], before.states[k]) for k in before.states)
    for _ in range(2):  # also when the adapters do something
        with torch.no_grad():
            old = score_sites(policy.sites(rollout)).logp
        new = score_sites(policy.sites(rollout)).logp
        assert new.requires_grad
        assert torch.equal((new - old).exp(), torch.ones_like(new))
        for k, parameter in enumerate(p for p in policy.parameters() if p.requires_grad):
            parameter.data.normal_(std=0.3, generator=torch.Generator().manual_seed(k))


def run(folder: Path, max_steps: int, *, resume: bool = False, seed: int = 0) -> GRPOTrainer:
    policy = tiny_policy()
    add_lora(policy, r=2, seed=seed)
    config = GRPOConfig(
        max_steps=max_steps, num_generations=4, generation_batch_size=8, learning_rate=1e-2, beta=0.1, ema_decay=0.5, save_steps=1
    )
    trainer = GRPOTrainer(policy, share_of_class_two, config, run=folder, resume=resume)
    trainer.train()
    return trainer


def test_a_resumed_run_is_the_same_to_the_bit_and_the_frozen_weights_stand_still(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 2)
    resumed = run(tmp_path / "parts", 4, resume=True, seed=5)  # what is drawn anew is overwritten
    first, second = whole.module.state_dict(), resumed.module.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[k], second[k]) for k in first)
    plain = {k.replace("parametrizations.weight.original", "weight"): v for k, v in first.items() if "lora_" not in k}
    start = tiny_policy().state_dict()
    assert plain.keys() == start.keys()
    assert all(torch.equal(plain[k], start[k]) for k in start)
    assert any(bool(v.any()) for k, v in first.items() if "lora_B" in k)


def stirred(policy: nn.Module) -> None:
    """Give the adapters of a policy numbers that do something."""
    for k, parameter in enumerate(p for p in policy.parameters() if p.requires_grad):
        parameter.data.normal_(std=0.3, generator=torch.Generator().manual_seed(k))


def test_an_exported_policy_is_a_plain_one_and_gives_the_same_bits(tmp_path: Path) -> None:
    policy = tiny_policy()
    add_lora(policy, r=2)
    stirred(policy)
    plain = without_lora(policy)
    assert plain is not policy
    assert any("lora_" in name for name in policy.state_dict())
    save(tmp_path / "policy", plain, metadata={})
    loaded = read_policy(tmp_path / "policy")
    assert loaded.state_dict().keys() == tiny_policy().state_dict().keys()
    assert without_lora(loaded) is loaded
    rollout = policy.sample(group_contexts(2, 2), generator=torch.Generator().manual_seed(0))
    for a, b in zip(loaded.sites(rollout), policy.sites(rollout), strict=True):
        assert torch.equal(a.log_probs, b.log_probs)


def test_adapters_need_no_other_library() -> None:
    code = """
import sys
sys.modules["peft"] = sys.modules["transformers"] = None
from discrete_grpo.training.lora import (add_lora, merge_lora)
from tests.toys import tiny_policy
policy = tiny_policy()
add_lora(policy)
merge_lora(policy)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@every_network
def test_weights_of_a_network_with_adapters_are_read_under_the_names_of_peft_too(name: str) -> None:
    network, plain = adapted(name), made(name)
    old: dict[str, Tensor] = {}
    for path, layer in network.named_modules():
        if is_adapted(layer):
            part: Any = layer
            factor = ".lora_embedding_{}.default" if isinstance(layer, nn.Embedding) else ".lora_{}.default.weight"
            old[f"{path}.base_layer.weight"] = part.parametrizations.weight.original
            old[path + factor.format("A")] = part.parametrizations.weight[0].lora_A
            old[path + factor.format("B")] = part.parametrizations.weight[0].lora_B
            if getattr(layer, "bias", None) is not None:
                old[f"{path}.base_layer.bias"] = part.bias
    replaced = {k.replace(".base_layer", "") for k in old}
    old |= {k: v for k, v in plain.state_dict().items() if k not in replaced}
    again = adapted(name, seed=1)
    assert not torch.equal(NETWORKS[name][1](again), NETWORKS[name][1](network))
    again.load_state_dict(current_names(old))
    assert torch.equal(NETWORKS[name][1](again), NETWORKS[name][1](network))
    assert current_names(plain.state_dict()).keys() == plain.state_dict().keys()


def of_peft(state: dict[str, Any]) -> dict[str, Any]:
    """Name the state dict of a network with adapted linear layers as peft would."""
    found = {}
    for name, value in state.items():
        layer, inside, part = name.partition(".parametrizations.weight.")
        bias = f"{name.removesuffix('.bias')}.parametrizations.weight.original" in state
        if inside:
            found[f"{layer}.{'base_layer.weight' if part == 'original' else part[2:] + '.default.weight'}"] = value
        else:
            found[f"{name.removesuffix('.bias')}.base_layer.bias" if bias else name] = value
    return found


def test_a_run_folder_with_the_names_of_peft_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    """The names are rewritten in ``training.pt`` as they stood there when the adapters were those of peft."""
    whole = run(tmp_path / "whole", 3)
    run(tmp_path / "parts", 2)
    file = tmp_path / "parts" / "checkpoints" / "step-00000002" / "training.pt"
    state = torch.load(file, weights_only=True)
    written = 0
    for part in ("weights", "average", "reference"):
        state[part] = of_peft(state[part])
        written += sum("lora_A.default.weight" in k for k in state[part])
    assert written >= 6
    assert not any("parametrizations" in k for part in ("weights", "average", "reference") for k in state[part])
    torch.save(state, file)
    write_sums(file.parent, [path.name for path in file.parent.iterdir() if path.name != "SHA256SUMS"])
    resumed = run(tmp_path / "parts", 3, resume=True, seed=5)
    first, second = whole.module.state_dict(), resumed.module.state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)


def test_adapters_depend_on_the_seed_alone_and_leave_the_global_state() -> None:
    found = []
    for seed, elsewhere in ((0, 3), (0, 4), (1, 3)):
        policy = tiny_policy()
        torch.manual_seed(elsewhere)
        state = torch.get_rng_state()
        add_lora(policy, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        found.append({k: v for k, v in policy.state_dict().items() if "lora_A" in k})
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0])
    assert not any(torch.equal(found[0][k], found[2][k]) for k in found[0])


def test_copies_have_adapters_of_their_own() -> None:
    policy = tiny_policy()
    assert not has_lora(policy)
    add_lora(policy)
    other = copy.deepcopy(policy)
    assert has_lora(policy)
    assert has_lora(other)
    for parameter in other.parameters():
        parameter.data.zero_()
    assert any(bool(p.any()) for n, p in policy.named_parameters() if "lora_A" in n)
    assert without_lora(other).state_dict().keys() == tiny_policy().state_dict().keys()


def test_copies_made_before_a_merge_keep_their_adapters_and_can_be_copied_and_merged() -> None:
    policy = tiny_policy()
    add_lora(policy, r=2)
    stirred(policy)
    rollout = policy.sample(group_contexts(2, 2), generator=torch.Generator().manual_seed(0))
    wanted = score_sites(policy.sites(rollout)).logp
    first = copy.deepcopy(policy)
    merge_lora(policy)
    for other in (policy, first, copy.deepcopy(first), copy.deepcopy(policy), merge_lora(copy.deepcopy(first)), first):
        assert torch.equal(score_sites(other.sites(rollout)).logp, wanted)
    assert has_lora(first)
    assert not has_lora(policy)


@every_network
def test_first_adapters_are_the_ones_that_layers_made_in_order_draw(name: str) -> None:
    """As in peft: layers of A and B are made, which draws both, and A (of an embedding: B) is drawn again."""
    network = made(name)
    with torch.random.fork_rng(devices=[]):
        paths = add_lora(network, r=2, target_modules=NETWORKS[name][2], seed=7)
        torch.manual_seed(7)
        for path in paths:
            layer: Any = network.get_submodule(path)
            adapter = layer.parametrizations.weight[0]
            a, b = torch.empty(adapter.lora_A.shape), torch.empty(adapter.lora_B.shape)
            if isinstance(layer, nn.Embedding):
                wanted = [torch.zeros_like(a), [torch.randn(part.shape) for part in (a, b, b)][-1]]
            else:
                wanted = [[nn.init.kaiming_uniform_(part, a=5**0.5) for part in (a, b, a)][-1], torch.zeros_like(b)]
            assert torch.equal(adapter.lora_A, wanted[0].double()), path
            assert torch.equal(adapter.lora_B, wanted[1].double()), path


@every_network
def test_under_bfloat16_the_first_answer_and_the_merged_one_are_the_same_to_the_bit(name: str) -> None:

    def answer(network: nn.Module) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return NETWORKS[name][1](network)

    network = made(name).float()
    before = answer(network)
    add_lora(network, r=2, target_modules=NETWORKS[name][2])
    assert torch.equal(answer(network), before)
    stirred(network)
    changed = answer(network)
    assert not torch.equal(changed, before)
    assert torch.equal(answer(merge_lora(network)), changed)


@pytest.mark.parametrize("name", ["graph transformer", "digress", "gpt", "encoder"])
def test_layers_computed_again_give_adapters_the_same_gradients_to_the_bit(name: str) -> None:
    found = []
    for again in (False, True):
        network = adapted(name).float()
        checkpoint_layers(network, again)
        NETWORKS[name][1](network).sin().sum().backward()
        found.append({n: p.grad for n, p in network.named_parameters() if p.grad is not None})
    assert len(found[0]) >= 4
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


class _Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"r": 0}, "r: 0, expected at least 1"),
        ({"r": -1}, "lora.r: -1, expected at least 1"),
        ({"lora_alpha": 0.0}, "lora.lora_alpha: 0.0, expected more than 0"),
        ({"target_modules": []}, r"target_modules: \[\], expected at least one name, or all-linear"),
        ({"target_modules": ["qvk"]}, "target_modules: 'qvk' is no layer of the GraphTransformer; did you mean 'qkv'?"),
        ({"target_modules": "all-liner"}, "target_modules: 'all-liner' is no layer of the GraphTransformer; known: all-linear"),
        ({"target_modules": "mlp_norm"}, "target_modules: 'mlp_norm' is a FilmNorm, expected a Linear, Embedding"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], said: str) -> None:
    policy = tiny_policy()
    before = list(policy.state_dict())
    with pytest.raises(ValueError, match=said):
        add_lora(policy, **options)
    assert list(policy.state_dict()) == before
    assert all(p.requires_grad for p in policy.parameters())


def test_policies_that_cannot_be_adapted_are_named() -> None:
    with pytest.raises(ValueError, match="expected a linear layer to adapt: _Bare has none"):
        add_lora(_Bare())
    with pytest.raises(ValueError, match=r"'mlp_out_y\.0' is frozen, expected a layer that is trained"):
        add_lora(made("digress"), target_modules="mlp_out_y.0")
    with pytest.raises(ValueError, match=r"'model\.lm_head' shares its weight with 'model\.transformer\.wte'"):
        add_lora(made("gpt2 of transformers"), target_modules="lm_head")
    with pytest.raises(ValueError, match="'0' is parametrized, expected a layer whose weight is a parameter"):
        add_lora(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))), target_modules="0")
    policy = tiny_policy()
    with pytest.raises(ValueError, match="has no adapters to merge"):
        merge_lora(policy)
    add_lora(policy)
    with pytest.raises(ValueError, match="has adapters already"):
        add_lora(policy)
    policy.get_parameter("network.blocks.0.qkv.parametrizations.weight.0.lora_B").data[0, 0] = torch.inf
    before = list(policy.state_dict())
    with pytest.raises(ValueError, match=r"the merged weight of 'blocks\.0\.qkv' has numbers that are not finite"):
        merge_lora(policy)
    assert list(policy.state_dict()) == before


def test_options_are_off_by_default_and_checked() -> None:
    assert LoraOptions().r == 0
    with pytest.raises(ValueError, match="r: -2, expected at least 1, or 0 for no adapters"):
        LoraOptions(-2)
