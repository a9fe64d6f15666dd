"""The MolGPT-shaped baseline computes the same log-probs and gradients as ours where the weights are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.baseline_smiles import PeerGPT, peer_log_probs, peer_sample
from benchmarks.presets import example
from benchmarks.smiles_speed import BLOCK, Case, Settings, main
from discrete_grpo.domains.tokenizer import BOS, EOS
from discrete_grpo.models.gpt import GPT, GPTConfig

SMALL = Settings(batch=32, chunk=16, layers=2, heads=2, width=16, repeats=1)


def copied(ours: GPT) -> PeerGPT:
    """The baseline with our weights."""
    c = ours.config
    peer = PeerGPT(c.num_tokens, c.block_size, layers=c.layers, heads=c.heads, width=c.width).double()
    with torch.no_grad():
        peer.tok_emb.weight.copy_(ours.token.weight)
        peer.pos_emb[0].copy_(ours.position.weight)
        peer.type_emb.weight.copy_(ours.kind.weight)
        assert ours.property is not None
        peer.prop_nn.weight.copy_(ours.property.weight[:, :1])
        peer.prop_nn.bias.copy_(ours.property.bias + ours.property.weight[:, 1])  # the flag of a given property
        for mine, theirs in zip(ours.blocks, peer.blocks, strict=True):
            q, k, v = mine.qkv.weight.chunk(3)  # type: ignore[union-attr,operator]
            bias = mine.qkv.bias.chunk(3)  # type: ignore[union-attr,operator]
            for part, weight, b in zip(("query", "key", "value"), (q, k, v), bias, strict=True):
                theirs.get_parameter(f"attention.{part}.weight").copy_(weight)
                theirs.get_parameter(f"attention.{part}.bias").copy_(b)
            for a, b in (("norm1", "ln1"), ("norm2", "ln2"), ("out", "attention.proj"), ("feed.0", "mlp.0"), ("feed.2", "mlp.2")):
                theirs.get_submodule(b).load_state_dict(mine.get_submodule(a).state_dict())
        peer.ln_f.load_state_dict(ours.norm.state_dict())
        peer.head.load_state_dict(ours.head.state_dict())
    return peer


def test_equal_weights_give_equal_log_probs() -> None:
    torch.manual_seed(0)
    ours = GPT(GPTConfig(12, 9, 1, layers=2, heads=2, width=16)).double()
    tokens, properties = torch.randint(4, 12, (3, 9)), torch.randn(3, 1, dtype=torch.float64)
    inputs = torch.cat([torch.full((3, 1), BOS), tokens[:, :-1]], 1)
    found: Tensor = ours(inputs, None, properties).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    torch.testing.assert_close(peer_log_probs(copied(ours), tokens, None, properties, BOS), found, rtol=0, atol=1e-10)


@pytest.mark.parametrize("conditional", [False, True])
def test_both_sides_do_the_work_they_are_said_to_do(conditional: bool) -> None:
    case = Case(conditional, SMALL)
    lengths = case.rollout.units.sum(1)
    expected = case.ours.network.lengths.clamp_max(BLOCK)  # type: ignore[operator]
    assert torch.equal(lengths, expected)
    ends = case.rollout.states["tokens"].gather(1, (lengths - 1)[:, None])[:, 0]
    assert bool((ends == EOS).all())
    assert peer_sample(case.peer, torch.full((32, 1), BOS), *case.peer_prefix).shape == (32, BLOCK)
    for update, net in ((case.update_ours, case.scorer), (case.update_peer, case.peer)):
        update()
        assert any(p.grad is not None and bool(p.grad.any()) for p in net.parameters())
    assert ("scaffold" in case.columns[0]) == conditional


def test_the_script_writes_its_result(tmp_path: Path) -> None:
    sizes = ["--batch=16", "--chunk=16", "--layers=1", "--heads=2", "--width=16", "--repeats=1"]
    main([*sizes, f"--out={tmp_path / 'r.json'}"])
    result = json.loads((tmp_path / "r.json").read_text())
    assert [row["case"] for row in result["rows"]] == ["property only", "property and scaffold"]
    assert all(row[job]["ratio"] > 0 for row in result["rows"] for job in ("generation", "update"))


def test_an_example_is_the_conditions_and_both_samples() -> None:
    tables = {when: {"masked": ["a_"], "sample": [s], "reward": ["0.5"]} for when, s in (("before", "ab"), ("after", "ac"))}
    assert example(tables, 0) == {"masked": "a_", "before": ["ab", "0.5"], "after": ["ac", "0.5"]}
