"""The control of a method: it is shown random numbers, and its row holds the true scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.benchmarking import runner
from discrete_grpo.benchmarking.controls import random_reward
from discrete_grpo.benchmarking.processes import portable
from discrete_grpo.benchmarking.runner import benchmark
from discrete_grpo.core.scoring import BudgetExhausted
from tests.benchmarking.parts import CARBONS, WALK

SEEN: list[Any] = []


def look(task: Any, policy: Any, ledger: Any, seed: int) -> None:
    """Keeps what it is shown."""
    ledger.rank = 0
    assert ledger.exhausted is False
    SEEN.append(ledger.score([task], ["CC", "CCCC", "CC", "C.C"], source="policy")[:, 0])
    SEEN.append(ledger.history().scores[:, 0])
    with pytest.raises(BudgetExhausted) as over:
        ledger.score([task], ["CCCC", "CCCCCC"])
    SEEN.append(over.value.scores[:, 0])


def test_the_method_sees_random_numbers_and_the_row_the_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "portable", lambda job: "a test")
    method = random_reward(WALK.__class__(name="look", about="", source="", run=look, needs_policy=False))
    found = benchmark([CARBONS], methods=[method], budget=2, seeds=[0], output_dir=tmp_path)
    assert found.failed == ()
    row = found.rows[0]
    assert (row["method"], row["calls"], row["top1"], row["sources"]) == ("look-random-reward", 2, 0.2, {"policy": 2})
    first, history, last = SEEN
    assert first[0] == first[2] != first[1]
    assert first[3] == 0.0
    assert torch.equal(history, first[:2])
    assert not {0.1, 0.2} & set(first.tolist())
    assert last[0] == first[1]
    assert last[1].isnan()


def test_a_control_can_go_to_a_worker() -> None:
    assert portable(random_reward(WALK)) is None
