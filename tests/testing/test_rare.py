"""The conformance kit: mistakes that show in rare states or in large batches alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.categorical import Sites
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.testing import Report, check_policy
from tests.broken_policies import Words

CONTEXTS = [Context(k // 2, {"mood": k // 2}) for k in range(4)]


class RareWords(Words):
    """A mistake of the scores of words that begin with 2, 2: none of the four words that most laws replay is one."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        last = self.network[-1]
        assert isinstance(last, torch.nn.Linear)
        with torch.no_grad():
            last.bias.copy_(torch.tensor([0.0, 0.5, -0.5]))

    def changed(self, table: Tensor) -> Tensor:
        raise NotImplementedError

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        (found,) = super().sites(rollout, steps)
        letters = torch.nn.functional.pad(rollout.states["letters"], (0, 2))
        rare = ((letters[:, 0] == 2) & (letters[:, 1] == 2))[:, None, None, None]
        return [Sites(torch.where(rare, self.changed(found.log_probs), found.log_probs), found.action, found.mask)]


class RareSharper(RareWords):
    def changed(self, table: Tensor) -> Tensor:
        return (1.5 * table).log_softmax(-1)


class RareNaN(RareWords):
    def changed(self, table: Tensor) -> Tensor:
        return table * torch.nan


class MixesLargeBatches(Words):
    """Exchanges the tables of rows beyond the eighth."""

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        (found,) = super().sites(rollout, steps)
        table = torch.cat([found.log_probs[:8], found.log_probs[8:].roll(1, 0)])
        return [Sites(table, found.action, found.mask)]


def check(policy: Words) -> Report:
    return check_policy(policy, CONTEXTS, trusted=["tests"], skip=["learning", "reinforce", "derivative", "rollout file"])


def failed(report: Report) -> set[str]:
    return {row.law for row in report.rows if row.outcome == "failed"}


@pytest.mark.parametrize(
    ("policy", "law"),
    [(RareSharper, "stored log-probs"), (RareNaN, "stored log-probs"), (RareNaN, "calibration"), (MixesLargeBatches, "batch size")],
)
def test_what_no_row_of_a_small_draw_shows_is_found(policy: type[Words], law: str) -> None:
    assert law in failed(check(policy()))


def test_rare_states_without_a_mistake_pass() -> None:
    class Right(RareWords):
        def changed(self, table: Tensor) -> Tensor:
            return table

    assert failed(check(Right())) <= {"checkpoint"}  # a class within a function has no import path
