"""The recurrent network: torch's own layers step by step and at once, its state, its limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.domains.tokenizer import BOS, Tokenizer
from discrete_grpo.models.recurrent import Recurrent, RecurrentConfig, lstm_by_cells
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.runs.checkpoint import read_policy, save

CONFIGS = [
    RecurrentConfig(9, "lstm", layers=2, width=8, embedding=5),
    RecurrentConfig(9, "gru", layers=2, width=6, embedding=4, normalise=True),
]


def network(config: RecurrentConfig, seed: int = 0) -> Recurrent:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Recurrent(config).eval()


def policy(config: RecurrentConfig) -> TokenPolicy:
    return TokenPolicy(network(config), Tokenizer(tuple("CNOFS")), max_length=7).eval()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.cell)
def test_steps_with_a_shrinking_state_give_what_reading_at_once_gives(config: RecurrentConfig) -> None:
    net, tokens = network(config), torch.randint(0, 9, (5, 6), generator=torch.Generator().manual_seed(1))
    whole, cache, stay = net(tokens), net.cache(5), torch.arange(5)
    for t in range(6):
        step = net(tokens[stay, t : t + 1], cache=cache)[:, 0]
        torch.testing.assert_close(step, whole[stay, t], atol=1e-6, rtol=1e-5)
        if t in (1, 3):
            keep = torch.tensor([2, 0]) if t == 3 else torch.tensor([4, 1, 3])
            cache.select(keep)
            stay = stay[keep]


def test_cells_of_an_lstm_give_what_the_layer_of_torch_gives() -> None:
    rnn = network(CONFIGS[0]).rnn.double()
    assert isinstance(rnn, torch.nn.LSTM)
    x = torch.randn(3, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = (torch.rand(2, 3, 8, dtype=torch.float64), torch.rand(2, 3, 8, dtype=torch.float64))
    for given in (None, start):
        torch.testing.assert_close(lstm_by_cells(rnn, x, given), rnn(x, given), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.cell)
def test_answers_are_the_same_bits_with_and_without_gradients(config: RecurrentConfig) -> None:
    net, tokens = network(config), torch.randint(0, 9, (5, 6), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        drawn = net(tokens)
    assert torch.equal(net(tokens), drawn)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.cell)
def test_later_tokens_change_nothing_before_them(config: RecurrentConfig) -> None:
    net, tokens = network(config), torch.full((1, 6), 4)
    changed = tokens.clone()
    changed[0, 3:] = 7
    torch.testing.assert_close(net(tokens)[:, :3], net(changed)[:, :3], atol=0, rtol=0)
    assert (net(tokens)[:, 3:] - net(changed)[:, 3:]).abs().min() > 0


def test_normalised_outputs_have_mean_0_and_deviation_1() -> None:
    net = network(CONFIGS[1])
    seen: list[torch.Tensor] = []
    net.head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    net(torch.full((2, 3), 5))
    torch.testing.assert_close(seen[0].mean(-1), torch.zeros(2, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen[0].std(-1, correction=0), torch.ones(2, 3), atol=1e-2, rtol=0)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.cell)
def test_drawn_log_probs_are_those_of_a_replay(config: RecurrentConfig) -> None:
    drawn = policy(config)
    rollout = drawn.sample(group_contexts(4, 8), generator=torch.Generator().manual_seed(0))
    assert rollout.units.sum(1).unique().numel() > 2, "lengths differ, so rows leave on the way"
    (sites,) = drawn.sites(rollout)
    replayed = sites.log_probs.gather(-1, sites.action.unsqueeze(-1)).squeeze(-1).squeeze(-1)
    torch.testing.assert_close(replayed.where(rollout.units > 0, 0.0), rollout.logp, atol=1e-5, rtol=1e-5)


def test_a_saved_policy_draws_the_same_bits(tmp_path: Any) -> None:
    before = policy(CONFIGS[0])
    after = read_policy(save(tmp_path / "p", before, metadata={}))
    draws = [p.sample(group_contexts(2, 4), generator=torch.Generator().manual_seed(3)) for p in (before, after)]
    assert torch.equal(draws[0].logp, draws[1].logp)
    assert draws[0].samples == draws[1].samples


def test_the_layers_stay_in_the_mode_that_has_gradients_on_every_device() -> None:
    net = network(CONFIGS[0])
    assert not net.training
    assert net.rnn.training


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_tokens": 1}, "num_tokens: 1, expected at least 2"),
        ({"layers": 0}, "layers: 0, expected at least 1"),
        ({"width": 0}, "width: 0, expected at least 1"),
        ({"embedding": 0}, "embedding: 0, expected at least 1"),
        ({"cell": "rnn"}, "cell: 'rnn', expected one of gru, lstm"),
    ],
)
def test_values_out_of_range_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RecurrentConfig(**({"num_tokens": 9} | change))


@pytest.mark.parametrize("name", ["prompt", "properties"])
def test_conditions_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="has no conditions"):
        network(CONFIGS[0])(torch.full((1, 1), BOS), **{name: torch.zeros(1, 1)})
