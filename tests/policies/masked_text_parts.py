"""A small policy that fills blanks, and prompts for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from discrete_grpo.core.categorical import Scores, score_sites
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.domains.tokenizer import NUM_SPECIAL, Tokenizer
from discrete_grpo.models.encoder import Encoder, EncoderConfig
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.truncation import Truncation

ABC = Tokenizer(("a", "b", "c"))
PROMPTS = ("a_b__", "__", "c_cabc", "_____b", "ab_")
kinds = pytest.mark.parametrize(
    "options",
    [
        {"rounds": 1},
        {"rounds": 3},
        {"rounds": 3, "truncation": Truncation(temperature=0.7, top_p=0.7)},
        {"rounds": 1, "truncation": Truncation(temperature=1.5, top_k=2)},
    ],
    ids=["one shot", "rounds", "rounds top_p", "one shot top_k"],
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(seed: int = 0, dtype: torch.dtype = torch.float32, tokenizer: Tokenizer = ABC, **options: Any) -> MaskedTextPolicy:
    """A policy with a small random network whose logits are spread well apart; special ids are the most probable."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Encoder(EncoderConfig(len(tokenizer), 6, layers=2, heads=2, width=16))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.25 * torch.randn(parameter.shape))
            network.head.bias[:NUM_SPECIAL] += 5.0
    return MaskedTextPolicy(network.to(dtype), tokenizer, 6, **options).eval()


def draw(policy: MaskedTextPolicy, prompts: Any = PROMPTS, seed: int = 1) -> Rollout:
    return policy.sample([Context(k, {"masked": p}) for k, p in enumerate(prompts)], generator=seeded(seed))


def scores(policy: MaskedTextPolicy, rollout: Rollout, reference: MaskedTextPolicy | None = None) -> Scores:
    return score_sites(policy.sites(rollout), None if reference is None else reference.sites(rollout))
