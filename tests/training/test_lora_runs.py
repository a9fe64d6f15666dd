"""Low-rank adapters in runs: the first ratio, exact resume, plain checkpoints, names of peft."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.runs.checkpoint import read_policy, save
from discrete_grpo.runs.files import write_sums
from discrete_grpo.runs.serialization import describe_types
from discrete_grpo.runs.weights import saved_weights
from discrete_grpo.training.lora import add_lora, current_names, without_lora
from tests.toys import share_of_class_two, transformer_policy
from tests.training.lora_parts import NETWORKS, adapted, every_network, is_adapted, made, stirred


def test_the_first_ratio_is_exactly_one() -> None:
    policy = transformer_policy()
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
    policy = transformer_policy()
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
    start = transformer_policy().state_dict()
    assert plain.keys() == start.keys()
    assert all(torch.equal(plain[k], start[k]) for k in start)
    assert any(bool(v.any()) for k, v in first.items() if "lora_B" in k)


def test_an_exported_policy_is_a_plain_one_and_gives_the_same_bits(tmp_path: Path) -> None:
    policy = transformer_policy()
    add_lora(policy, r=2)
    stirred(policy)
    plain = without_lora(policy)
    assert plain is not policy
    assert any("lora_" in name for name in policy.state_dict())
    save(tmp_path / "policy", plain, metadata={})
    loaded = read_policy(tmp_path / "policy")
    assert loaded.state_dict().keys() == transformer_policy().state_dict().keys()
    assert without_lora(loaded) is loaded
    rollout = policy.sample(group_contexts(2, 2), generator=torch.Generator().manual_seed(0))
    for a, b in zip(loaded.sites(rollout), policy.sites(rollout), strict=True):
        assert torch.equal(a.log_probs, b.log_probs)


@every_network
@pytest.mark.parametrize("cast", ["float32", "bfloat16", "mixed"])
def test_a_network_with_adapters_is_saved_merged(tmp_path: Path, name: str, cast: str) -> None:
    network = made(name)
    for parameter in list(network.parameters())[:: {"float32": 10**9, "bfloat16": 1, "mixed": 3}[cast]]:
        parameter.data = parameter.data.to(torch.float32 if cast == "float32" else torch.bfloat16)
    add_lora(network, r=2, target_modules=NETWORKS[name][2])
    stirred(network)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    plain = without_lora(network)
    assert saved_weights(network).keys() == saved_weights(plain).keys()
    assert all(torch.equal(value, saved_weights(plain)[key]) for key, value in saved_weights(network).items())
    assert describe_types(network) == describe_types(plain)
    assert network.state_dict().keys() == before.keys(), "the adapters are left in the network"
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_a_policy_with_adapters_is_saved_as_the_merged_one(tmp_path: Path) -> None:
    policy = run(tmp_path / "run", 2).module
    assert any("lora_" in name for name in policy.state_dict())
    loaded = read_policy(save(tmp_path / "policy", policy, metadata={}))
    merged = without_lora(policy).state_dict()
    assert loaded.state_dict().keys() == merged.keys()
    assert all(torch.equal(value, merged[name]) for name, value in loaded.state_dict().items())
    assert (tmp_path / "policy" / "config.json").read_text().count("parametrizations") == 0


@pytest.mark.slow
def test_adapters_need_no_other_library() -> None:
    code = """
import sys
sys.modules["peft"] = sys.modules["transformers"] = None
from discrete_grpo.training.lora import (add_lora, merge_lora)
from tests.toys import transformer_policy
policy = transformer_policy()
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
