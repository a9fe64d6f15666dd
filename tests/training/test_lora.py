"""Low-rank adapters: the first policy to the bit, no adapter left out, plain networks after a merge, bad settings."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.training.lora import LoraOptions, add_lora, has_lora, merge_lora, without_lora
from discrete_grpo.training.network import checkpoint_layers
from tests.toys import transformer_policy
from tests.training.lora_parts import NETWORKS, adapted, every_network, is_adapted, made, stirred


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
    policy = SizedPolicy(transformer_policy(), LearnedSizes((0.0, 0.5, 0.5)))
    outside = {n for n, p in policy.named_parameters() if p.requires_grad and ".network." not in n}
    assert outside
    names = add_lora(policy, r=1, target_modules=["qkv"])
    assert names == ["blocks.0.qkv", "blocks.1.qkv"]
    trained = {n for n, p in policy.named_parameters() if p.requires_grad}
    assert outside < trained
    assert all(".qkv.parametrizations.weight.0.lora_" in n for n in trained - outside)
    assert len(trained - outside) == 4


def test_adapters_depend_on_the_seed_alone_and_leave_the_global_state() -> None:
    found = []
    for seed, elsewhere in ((0, 3), (0, 4), (1, 3)):
        policy = transformer_policy()
        torch.manual_seed(elsewhere)
        state = torch.get_rng_state()
        add_lora(policy, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        found.append({k: v for k, v in policy.state_dict().items() if "lora_A" in k})
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0])
    assert not any(torch.equal(found[0][k], found[2][k]) for k in found[0])


def test_copies_have_adapters_of_their_own() -> None:
    policy = transformer_policy()
    assert not has_lora(policy)
    add_lora(policy)
    other = copy.deepcopy(policy)
    assert has_lora(policy)
    assert has_lora(other)
    for parameter in other.parameters():
        parameter.data.zero_()
    assert any(bool(p.any()) for n, p in policy.named_parameters() if "lora_A" in n)
    assert without_lora(other).state_dict().keys() == transformer_policy().state_dict().keys()


def test_copies_made_before_a_merge_keep_their_adapters_and_can_be_copied_and_merged() -> None:
    policy = transformer_policy()
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
    policy = transformer_policy()
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
    policy = transformer_policy()
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
