"""Tables that are no probabilities end a run before its first update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from discrete_grpo import GRPOConfig, GRPOTrainer
from tests.toys import share_of_class_two, tiny_policy

SMALL: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 12, "max_steps": 1}


def run(monkeypatch: pytest.MonkeyPatch, change: Any) -> GRPOTrainer:
    policy = tiny_policy()
    sites = policy.sites
    monkeypatch.setattr(policy, "sites", lambda *args: [change(part) for part in sites(*args)])
    trainer = GRPOTrainer(policy, share_of_class_two, GRPOConfig(**SMALL))
    trainer.train()
    return trainer


def test_tables_that_do_not_sum_to_one_are_told_before_the_first_update(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"policy: a table of GraphPolicy\.sites has probabilities with the sum 2,"):
        run(monkeypatch, lambda part: replace(part, log_probs=part.log_probs + torch.tensor(2.0).log()))


def test_tables_without_numbers_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"has probabilities with the sum nan, expected 1"):
        run(monkeypatch, lambda part: replace(part, log_probs=part.log_probs * torch.nan))


def test_what_stands_at_masked_sites_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(part: Any) -> Any:
        return replace(part, log_probs=part.log_probs.where(part.mask.unsqueeze(-1), 3.0))

    assert run(monkeypatch, change).step == 1


def test_a_class_of_no_mass_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(part: Any) -> Any:
        empty = torch.full_like(part.log_probs[..., :1], -torch.inf)
        return replace(part, log_probs=torch.cat([part.log_probs, empty], -1))

    assert run(monkeypatch, change).step == 1
