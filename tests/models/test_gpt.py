"""The causal transformer against one read over the whole sequence, its cache, and attention by plain sums."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.domains.tokenizer import PAD
from discrete_grpo.models import gpt
from discrete_grpo.models.attention import attention
from discrete_grpo.models.gpt import GPT, GPTConfig

PROMPT = torch.tensor([[0, 0, 0], [0, 4, 5], [3, 4, 5], [3, 4, 5], [0, 0, 6]])
TOKENS = torch.randint(3, 11, (5, 7), generator=torch.Generator().manual_seed(0))


def properties() -> Tensor:
    values = torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values[1, 0] = torch.nan
    values[3] = values[2]
    return values


def network(num_properties: int = 2, seed: int = 0) -> GPT:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = GPT(GPTConfig(11, 9, num_properties, layers=3, heads=2, width=16)).double()
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=0.4)
    return net


def whole(net: GPT, tokens: list[int], prompt: list[int], values: list[float] | None) -> Tensor:
    """One row read as one sequence, attention written as sums: what the fast paths must equal."""
    d, h = net.config.width, net.config.heads
    rows = [net.token.weight[k] + net.position.weight[i] + net.kind.weight[0] for i, k in enumerate(p for p in prompt if p)]
    if net.property is not None:
        given = values if values is not None else [math.nan] * net.config.num_properties
        features = [0.0 if math.isnan(v) else v for v in given] + [float(not math.isnan(v)) for v in given]
        rows.append(net.property(torch.tensor(features, dtype=torch.float64)) + net.kind.weight[0])
    rows += [net.token.weight[k] + net.position.weight[i] + net.kind.weight[1] for i, k in enumerate(tokens)]
    x = torch.stack(rows)
    for block in net.blocks:
        q, k, v = block.qkv(block.norm1(x)).split(d, 1)  # type: ignore[operator]
        mixed = torch.zeros_like(x)
        for head in range(h):
            part = slice(head * d // h, (head + 1) * d // h)
            for i in range(len(x)):
                weight = torch.stack([q[i, part] @ k[j, part] / math.sqrt(d / h) for j in range(i + 1)]).softmax(0)
                mixed[i, part] = (weight[:, None] * v[: i + 1, part]).sum(0)
        x = x + block.out(mixed)  # type: ignore[operator]
        x = x + block.feed(block.norm2(x))  # type: ignore[operator]
    return net.head(net.norm(x[-len(tokens) :]))


@pytest.mark.parametrize("conditions", ["none", "prompt", "properties", "both"])
@pytest.mark.parametrize("num_properties", [0, 2])
def test_logits_equal_one_read_of_the_whole_sequence(conditions: str, num_properties: int) -> None:
    net = network(num_properties)
    prompt = PROMPT if conditions in ("prompt", "both") else None
    values = properties() if conditions in ("properties", "both") and num_properties else None
    with torch.no_grad():
        found = net(TOKENS, prompt, values)
        for b in range(5):
            row = None if values is None else values[b].tolist()
            expected = whole(net, TOKENS[b].tolist(), [] if prompt is None else prompt[b].tolist(), row)
            torch.testing.assert_close(found[b], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("given", [True, False])
def test_the_cache_gives_the_same_logits_and_rows_may_leave(given: bool) -> None:
    net = network()
    prompt, values = (PROMPT, properties()) if given else (None, None)
    with torch.no_grad():
        expected = net(TOKENS, prompt, values)
        cache = net.cache(5, 3 if given else 0)
        torch.testing.assert_close(net(TOKENS[:, :1], prompt, values, cache), expected[:, :1], rtol=0, atol=1e-10)
        rows = torch.arange(5)
        for k in range(1, 7):
            if k in (3, 5):
                stay = torch.tensor([3, 0, 4]) if k == 3 else torch.tensor([2, 0])
                cache.select(stay)
                rows = rows[stay]
            found = net(TOKENS[rows, k : k + 1], cache=cache)
            torch.testing.assert_close(found, expected[rows, k : k + 1], rtol=0, atol=1e-10)
        with pytest.raises(ValueError, match="tokens: 2 columns, expected 1 with a filled cache"):
            net(TOKENS[rows, :2], cache=cache)


def test_later_tokens_change_nothing_before_them() -> None:
    net, changed = network(), TOKENS.clone()
    changed[:, 4:], changed[1, 6] = 0, 2
    assert not bool(net(changed, PROMPT, properties())[:, 4:].any())  # nothing is computed behind an end
    torch.testing.assert_close(net(changed, PROMPT, properties())[:, :4], net(TOKENS, PROMPT, properties())[:, :4])


def test_gradients_flow_through_a_shared_prefix() -> None:
    net = network()
    net(TOKENS, PROMPT, properties()).sum().backward()
    shared = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    for b in range(5):
        net(TOKENS[b : b + 1], PROMPT[b : b + 1], properties()[b : b + 1]).sum().backward()
    alone = [p.grad for p in net.parameters() if p.grad is not None]
    assert len(shared) == len(alone) == len(list(net.parameters()))
    for one, other in zip(shared, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mask_of", ["none", "causal", "rows", "square"])
def test_half_precision_attention_equals_torchs(mask_of: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 4, 2, 6, 8, generator=generator)
    mask = None
    if mask_of == "rows":
        mask = torch.rand(4, 1, 1, 6, generator=generator) < 0.7
    elif mask_of == "square":
        mask = torch.rand(4, 1, 6, 6, generator=generator) < 0.7
    if mask is not None:
        mask[..., 0] = True
    exact = attention(q, k, v, mask, causal=mask_of == "causal")
    rough = attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask, causal=mask_of == "causal")
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, rtol=0, atol=0.03)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"num_tokens": 1}, "num_tokens: 1, expected at least 2"),
        ({"width": 10, "heads": 4}, r"width: 10, expected a multiple of heads \(4\)"),
        ({"dropout": 1.0}, "dropout: 1.0"),
        ({"layers": 0}, "layers: 0"),
    ],
)
def test_sizes_out_of_range_are_named(sizes: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GPTConfig(**({"num_tokens": 11, "block_size": 9} | sizes))  # type: ignore[arg-type]


def test_rows_that_fill_a_block_in_bfloat16_reach_neither_logits_nor_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = TOKENS.clone()
    tokens[1, 3:], tokens[4, 6:] = PAD, PAD
    found = []
    for block in (1, 64):
        monkeypatch.setattr(gpt, "BLOCK", block)
        net = network(num_properties=0).float()
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(tokens)
        logits.float().square().sum().backward()
        found.append([logits, *(p.grad for p in net.parameters() if p.grad is not None)])
    torch.testing.assert_close(*found, rtol=0.02, atol=0.02 * float(found[0][0].detach().abs().max()))
