"""The MolGPT-shaped baseline computes the same log-probs and gradients as ours where the weights are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks import smiles_speed
from benchmarks.baseline_cached import cached_gpt2, cached_sample, prompts
from benchmarks.baseline_smiles import PeerGPT, peer_log_probs, peer_sample
from benchmarks.presets import example
from benchmarks.smiles_speed import BLOCK, Case, Settings, main
from discrete_grpo.domains.tokenizer import BOS, EOS, PAD
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


def cached(ours: GPT) -> nn.Module:
    """The GPT-2 of transformers with our weights."""
    c = ours.config
    net = cached_gpt2(c.num_tokens, c.block_size, c.layers, c.heads, c.width).double()
    state = {name.replace("norm1", "ln_1").replace("norm2", "ln_2"): w for name, w in ours.state_dict().items()}
    places = (("qkv", "attn.c_attn"), ("out", "attn.c_proj"), ("feed.0", "mlp.c_fc"), ("feed.2", "mlp.c_proj"))
    with torch.no_grad():
        net.get_parameter("transformer.wte.weight").copy_(ours.token.weight + ours.kind.weight[1])
        net.get_parameter("transformer.wpe.weight").copy_(ours.position.weight)
        net.get_submodule("transformer.ln_f").load_state_dict(ours.norm.state_dict())
        net.get_submodule("lm_head").load_state_dict(ours.head.state_dict())
        for k in range(c.layers):
            for name in ("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"):
                net.get_parameter(f"transformer.h.{k}.{name}").copy_(state[f"blocks.{k}.{name}"])
            for a, b in places:
                net.get_parameter(f"transformer.h.{k}.{b}.weight").copy_(state[f"blocks.{k}.{a}.weight"].T)
                net.get_parameter(f"transformer.h.{k}.{b}.bias").copy_(state[f"blocks.{k}.{a}.bias"])
    return net


def test_generate_with_our_weights_has_our_log_probs() -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    ours = GPT(GPTConfig(12, 12, layers=2, heads=2, width=16)).double()
    lengths = torch.tensor([9, 5, 7])
    start = torch.full((3, 1), BOS)
    out = cached_sample(cached(ours), start, lengths, seed=1, return_dict_in_generate=True, output_logits=True)
    tokens = out.sequences[:, 1:]
    assert tokens.shape == (3, 9)
    assert [int((row == EOS).nonzero()[0]) + 1 for row in tokens] == lengths.tolist()
    assert bool((tokens[1, 5:] == PAD).all())
    mine = ours(out.sequences[:, :-1]).log_softmax(-1)
    theirs = torch.stack(out.logits, 1).log_softmax(-1)
    for b, length in enumerate(lengths):
        torch.testing.assert_close(theirs[b, :length].double(), mine[b, :length], rtol=0, atol=1e-6)


def test_padding_on_the_left_does_not_change_what_generate_computes() -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    net = cached_gpt2(12, 20, 2, 2, 16).double()
    both, alone = prompts([[5, 6, 7, 8], [5, 6]]), prompts([[5, 6]])
    assert both.tolist() == [[5, 6, 7, 8, 3, 1], [0, 0, 5, 6, 3, 1]]
    logits = [
        cached_sample(net, p, torch.full((len(p),), 1), seed=1, return_dict_in_generate=True, output_logits=True).logits[0][-1]
        for p in (both, alone)
    ]
    torch.testing.assert_close(logits[0], logits[1])


def test_a_missing_library_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> None:
        raise ImportError("transformers is not installed; run: pip install 'discrete-grpo[huggingface]'")

    monkeypatch.setattr(smiles_speed, "transformers_library", missing)
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().err == "transformers is not installed; run: pip install 'discrete-grpo[huggingface]'\n"


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.slow
def test_both_sides_do_the_work_they_are_said_to_do(conditional: bool) -> None:
    pytest.importorskip("transformers")
    case = Case(conditional, SMALL)
    lengths = case.rollout.units.sum(1)
    expected = case.ours.network.lengths.clamp_max(BLOCK)  # type: ignore[operator]
    assert torch.equal(lengths, expected)
    ends = case.rollout.states["tokens"].gather(1, (lengths - 1)[:, None])[:, 0]
    assert bool((ends == EOS).all())
    assert peer_sample(case.peer, torch.full((32, 1), BOS), *case.peer_prefix).shape == (32, BLOCK)
    texts = case.sample_cached()
    assert [int((row == EOS).nonzero()[0]) + 1 for row in texts] == expected.tolist()
    for update, net in ((case.update_ours, case.scorer), (case.update_peer, case.peer)):
        update()
        assert any(p.grad is not None and bool(p.grad.any()) for p in net.parameters())
    assert ("scaffold" in case.columns[0]) == conditional


def test_the_script_writes_its_result(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sizes = ["--batch=16", "--chunk=16", "--layers=1", "--heads=2", "--width=16", "--repeats=1"]
    main([*sizes, f"--out={tmp_path / 'r.json'}"])
    result = json.loads((tmp_path / "r.json").read_text())
    assert [row["case"] for row in result["rows"]] == ["property only", "property and scaffold"]
    assert all(row[job]["ratio"] > 0 for row in result["rows"] for job in ("generation", "cached generation", "update"))


def test_an_example_is_the_conditions_and_both_samples() -> None:
    tables = {when: {"masked": ["a_"], "sample": [s], "reward": ["0.5"]} for when, s in (("before", "ab"), ("after", "ac"))}
    assert example(tables, 0) == {"masked": "a_", "before": ["ab", "0.5"], "after": ["ac", "0.5"]}
