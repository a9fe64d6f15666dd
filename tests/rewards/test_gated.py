"""Rewards under constraints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.cli import main
from discrete_grpo.core.scoring import RewardError
from discrete_grpo.recipes.reward_kinds import kind_of
from discrete_grpo.rewards.combine import Gated
from discrete_grpo.rewards.diversity import DiversityFilter
from discrete_grpo.rewards.identity import reward_identity
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.rewards.molecules import InRange, molecular_weight, qed

SAMPLES = list(range(8))


class Table:
    """A reward that is a table of scores by sample, and remembers what it was asked."""

    def __init__(self, *scores: float | None) -> None:
        self.scores, self.asked, self.columns = scores, [], []  # type: ignore[var-annotated]

    def __call__(self, samples: Sequence[int], **columns: Sequence[Any]) -> list[float | None]:
        self.asked.append(list(samples))
        self.columns.append({name: list(values) for name, values in columns.items()})
        return [self.scores[sample] for sample in samples]


REWARD = (3.0, -2.0, 5.0, 7.0, None, 11.0, 13.0, 17.0)
FIRST = (1.0, 0.5, 0.0, 1.0, 1.0, 0.25, None, 1.0)
SECOND = (1.0, 0.5, 1.0, 0.0, 1.0, 1.0, 1.0, None)


@pytest.mark.parametrize("otherwise", [0.0, -1.5])
def test_scores_are_those_of_the_equation(otherwise: float) -> None:
    found = Gated(Table(*REWARD), (Table(*FIRST), Table(*SECOND)), otherwise)(SAMPLES)
    expected: list[float | None] = []
    for r, a, b in zip(REWARD, FIRST, SECOND, strict=True):
        if a == 0 or b == 0:
            expected.append(otherwise)
        elif r is None or a is None or b is None:
            expected.append(None)
        else:
            expected.append(a * b * r + (1 - a * b) * otherwise)
    assert found == pytest.approx(expected)
    assert found[0] == REWARD[0]


def test_what_has_failed_is_asked_of_nobody_else_and_columns_go_with_their_samples() -> None:
    reward, first, second = Table(*REWARD), Table(*FIRST), Table(*SECOND)
    Gated(reward, (first, second))(SAMPLES, number=[10 * k for k in SAMPLES])
    assert first.asked == [SAMPLES]
    assert second.asked == [[0, 1, 3, 4, 5, 7]]
    assert reward.asked == [[0, 1, 4, 5]]
    assert reward.columns == [{"number": [0, 10, 40, 50]}]
    closed = Gated(never := Table(), (Table(*[0.0] * 8),))
    assert closed(SAMPLES) == [0.0] * 8
    assert never.asked == []
    assert closed([]) == []


def test_what_is_no_gate_is_refused() -> None:
    with pytest.raises(RewardError, match=r"gate Table: 1.5 for 1, expected a number in \[0, 1\]"):
        Gated(qed, (Table(1.0, 1.5),))([0, 1])
    with pytest.raises(RewardError, match=r"gate Table: -0.5 for 1, expected a number in \[0, 1\]"):
        Gated(qed, (Table(1.0, -0.5),))([0, 1])
    with pytest.raises(ValueError, match=r"gates: \[\], expected at least one callable"):
        Gated(qed, ())
    with pytest.raises(ValueError, match=r"gates: \[3\], expected"):
        Gated(qed, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reward: 'qed', expected a callable"):
        Gated("qed", (qed,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="otherwise: inf"):
        Gated(qed, (qed,), float("inf"))
    with pytest.raises(ValueError, match="remembers earlier samples"):
        Gated(DiversityFilter(qed), (qed,))


def test_its_name_kind_and_identity_are_those_of_its_parts() -> None:
    light = Gated(qed, (InRange(molecular_weight, 0, 50),))
    assert light.name == "qed if molecular_weight in 0..50"
    assert kind_of(light) == "molecules"
    assert kind_of(Gated(Table(), (InRange(molecular_weight, 0, 50),))) == "molecules"
    gates = [(InRange(molecular_weight, 0, high),) for high in (50, 60)]
    identities = {reward_identity(Gated(qed, gate, low)) for gate in gates for low in (0.0, -1.0)}
    assert None not in identities
    assert len(identities) == 4
    assert reward_identity(light) in identities


def test_a_ledger_counts_a_call_for_every_sample() -> None:
    ledger = Ledger(max_oracle_calls=10)
    scores = ledger.score([Gated(qed, (InRange(molecular_weight, 0, 50),))], ["CCO", "CCCCCC", "CO"])
    assert scores.flatten().tolist() == pytest.approx([*qed(["CCO"]), 0.0, *qed(["CO"])])
    assert ledger.calls == 3


def test_it_is_a_reward_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gate = {"class_path": "InRange", "init_args": {"property": "molecular_weight", "low": 0, "high": 100}}
    reward = json.dumps({"class_path": "Gated", "init_args": {"reward": "qed", "gates": [gate], "otherwise": -0.5}})
    small = ["--grpo.max_steps=1", "--grpo.generation_batch_size=8", "--grpo.num_generations=4", "--evaluation_samples=8"]
    assert main(["train", "demo", f"--reward={reward}", "--num_steps=4", "--output_dir=run", *small]) == 0
    table = json.loads(Path("run/evaluation.json").read_text())
    assert "reward" in table["after"]
