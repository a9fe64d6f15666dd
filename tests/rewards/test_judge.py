"""The frozen judge: one number per sample, in order, by a network that is never trained, from a checkpoint alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.core.reward_arguments import reward_name
from discrete_grpo.core.scoring import RewardError, score_samples
from discrete_grpo.datasets.text import LabelledText
from discrete_grpo.domains.tokenizer import Tokenizer
from discrete_grpo.models.encoder import Encoder, EncoderConfig, PooledEncoder
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.rewards.judge import Judge, ModuleReward, TextScorer
from discrete_grpo.runs.checkpoint import CheckpointError, build, describe, save

ABC = Tokenizer(("a", "b", "c"))
CONFIG = EncoderConfig(len(ABC), 6, layers=1, heads=2, width=16)


def make(seed: int = 0) -> TextScorer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = PooledEncoder(CONFIG)
        for parameter in network.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape))
    return TextScorer(network, ABC, 6)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(save(tmp_path / "judge", make(), metadata={}))


# ---------------------------------------------------------------- the judge


def test_a_judge_gives_the_sigmoid_of_its_network_one_a_sample_in_order(folder: str) -> None:
    judge, scorer = Judge(folder, batch_size=2), make().eval()
    samples = ["abc", None, "c", "aabbcc", None, "", "b"]
    found = judge(samples, masked=samples)
    for sample, score in zip(samples, found, strict=True):
        if sample is None:
            assert score == 0.0
            continue
        tokens = torch.tensor([ABC.encode(sample)], dtype=torch.long).reshape(1, -1)
        tokens = tokens if sample else torch.zeros(1, 1, dtype=torch.long)
        logit = float(scorer.network(tokens, tokens != 0).detach())
        assert score == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-6)
        assert 0 < score < 1
    assert len({round(s, 6) for s in found}) == 6
    logits = Judge(folder, output="logit")(samples)
    assert [1 / (1 + math.exp(-z)) for z in logits] == pytest.approx(found, abs=1e-6)
    assert logits[1] == logits[4] == -20.0
    assert judge([]) == []
    assert judge([None]) == [0.0]


def test_a_judge_is_frozen_and_draws_nothing(folder: str) -> None:
    judge = Judge(folder)
    assert not any(p.requires_grad for p in judge.scorer.parameters())
    assert not any(m.training for m in judge.scorer.modules())
    before, state = [p.clone() for p in judge.scorer.parameters()], torch.random.get_rng_state()
    with torch.enable_grad():
        assert judge(["abc"]) == judge(["abc"])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(before, judge.scorer.parameters(), strict=True))


def test_an_alphabet_that_differs_is_refused_by_the_character(folder: str) -> None:
    judge = Judge(folder)
    with pytest.raises(ValueError, match="'abx' has the token 'x', expected one of the alphabet's 3; it was trained on another"):
        judge(["abc", "abx"])
    with pytest.raises(RewardError, match=r"reward judge: raised ValueError: judge: .*'x'"):
        score_samples([judge], ["abx"])
    judge.check(("c", "a"))
    with pytest.raises(ValueError, match="has no 'x' in its alphabet"):
        judge.check(("a", "x", "y"))
    with pytest.raises(ValueError, match=r"judge: text of 7 tokens, expected at most block_size \(6\)"):
        judge(["abcabca"])


def test_what_is_no_judge_is_refused_in_one_line(tmp_path: Path, folder: str) -> None:
    with pytest.raises(CheckpointError, match="'nowhere' is no checkpoint folder, run folder or bundled judge"):
        Judge("nowhere")
    policy = MaskedTextPolicy(Encoder(CONFIG), ABC, 6)
    save(tmp_path / "policy", policy, metadata={})
    with pytest.raises(CheckpointError, match="holds a MaskedTextPolicy, expected a judge of text"):
        Judge(str(tmp_path / "policy"))
    with pytest.raises(CheckpointError, match="outside the trusted packages mine"):
        Judge(folder, trusted=("mine",))
    with pytest.raises(ValueError, match="output: 'odds', expected probability or logit"):
        Judge(folder, output="odds")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size: 0, expected at least 1"):
        Judge(folder, batch_size=0)


def test_a_run_folder_and_a_checkpoint_are_found_and_build_the_same(tmp_path: Path, folder: str) -> None:
    save(tmp_path / "run" / "policy", make(), metadata={})
    assert Judge(str(tmp_path / "run"))(["abc"]) == Judge(folder)(["abc"])
    assert reward_name(Judge(folder)) == "judge"
    again = build(describe(make()))
    assert isinstance(again, TextScorer)
    assert again.tokenizer == ABC


# ---------------------------------------------------------------- training a scorer


def test_the_loss_weighs_both_kinds_alike_and_is_the_cross_entropy_loop() -> None:
    scorer = make()
    texts, real = ["abc", "a", "ccba", "bb"], [1.0, 0.0, 0.0, 0.0]
    batch = LabelledText(scorer.encode(texts), torch.tensor(real))
    found = scorer.likelihood_loss(batch)
    logits = [float(scorer(scorer.encode([t])).detach()) for t in texts]
    losses = [-math.log(1 / (1 + math.exp(-z if r else z))) for z, r in zip(logits, real, strict=True)]
    assert float(found["loss"].detach()) == pytest.approx(0.5 * losses[0] + 0.5 * sum(losses[1:]) / 3, abs=1e-6)
    right = [(z > 0) == (r > 0.5) for z, r in zip(logits, real, strict=True)]
    assert float(found["accuracy"]) == pytest.approx(sum(right) / 4)
    only = LabelledText(batch.tokens[:1], batch.real[:1])  # one kind alone: no NaN
    assert float(scorer.likelihood_loss(only)["loss"].detach()) == pytest.approx(losses[0], abs=1e-6)


def test_a_scorer_learns_to_tell_texts_apart() -> None:
    scorer = make()
    real, other = ["abc", "abcabc", "abcab"], ["acb", "cabcab", "abbab"]
    batch = LabelledText(scorer.encode(real + other), torch.tensor([1.0] * 3 + [0.0] * 3))
    optimizer = torch.optim.Adam(scorer.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        scorer.likelihood_loss(batch)["loss"].backward()
        optimizer.step()
    judge = ModuleReward(scorer)
    assert min(judge(real)) > 0.8 > 0.2 > max(judge(other))


# ---------------------------------------------------------------- any module


class Sums(nn.Module):
    """Gives the sum of each row times a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, rows: Tensor, shift: Tensor) -> Tensor:
        return self.weight * rows.sum(-1) + shift


def encode(samples: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    return torch.tensor(samples, dtype=torch.float32), torch.ones(len(samples))


def test_any_module_over_any_samples_is_a_reward() -> None:
    module = Sums()
    reward: Any = ModuleReward(module, encode, output="logit", missing=-1.0, batch_size=2, name="sums")
    assert reward([(1, 2), None, (0, 0), (3, 3)]) == [7.0, -1.0, 1.0, 13.0]
    assert reward_name(reward) == "sums"
    assert not module.weight.requires_grad
    assert score_samples([reward], [(1, 2)]).tolist() == [[7.0]]


def test_modules_that_cannot_be_rewards_are_refused() -> None:
    with pytest.raises(TypeError, match="encode: None, expected a function, since Sums has no encode of its own"):
        ModuleReward(Sums())
    wrong = ModuleReward(nn.Identity(), lambda samples: torch.zeros(len(samples), 2))
    with pytest.raises(ValueError, match=r"module: Identity gave shape \(1, 2\), expected \(1,\)"):
        wrong([1])
