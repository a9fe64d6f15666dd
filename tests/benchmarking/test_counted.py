"""No score is used without being counted, and none is taken for that of the task."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.benchmarking import runner
from discrete_grpo.benchmarking.counted import CountedTask
from discrete_grpo.benchmarking.measures import measure
from discrete_grpo.benchmarking.methods.random_reward import Blindfold
from discrete_grpo.benchmarking.methods.trained import with_trainer
from discrete_grpo.benchmarking.runner import benchmark
from discrete_grpo.core.scoring import BudgetExhausted, RewardError
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.diversity import DiversityFilter
from discrete_grpo.rewards.identity import identify
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from tests.benchmarking.parts import CARBONS, WALK
from tests.benchmarking.test_methods import chains


def counted(**options: Any) -> tuple[CountedTask, Ledger]:
    ledger = Ledger(key=molecule_key, **options)
    return CountedTask(CARBONS, ledger), ledger


def test_a_task_that_is_asked_directly_says_how_to_ask() -> None:
    task, ledger = counted()
    with pytest.raises(RuntimeError, match=r"task carbons: asked directly.*ledger\.score\(\[task\], samples\)"):
        task(["CC"])
    with pytest.raises(AttributeError, match="score through the ledger"):
        _ = task.score
    with pytest.raises(RewardError, match="asked directly"):
        ledger.score([lambda samples: task(["C" * 20] * len(samples))], ["C"])
    with pytest.raises(RewardError, match="asked directly or wrapped in another reward, which counts no call"):
        ledger.score([DiversityFilter(task)], ["C"])
    assert ledger.score([task], ["CC"]).tolist() == [[0.1]]
    with pytest.raises(RuntimeError, match="asked directly"):  # after a turn too
        task(["CC"])
    assert (task.name, task.kind, task.optimum, task.about) == (CARBONS.name, CARBONS.kind, 1.0, CARBONS.about)


def test_the_cache_of_the_task_serves_it() -> None:
    assert identify(counted()[0]) == identify(CARBONS)
    task, ledger = counted(cache=ScoreCache())
    assert ledger.score([task], ["CC", "CC"]).tolist() == [[0.1], [0.1]]


def test_no_other_reward_may_have_its_name() -> None:
    task, ledger = counted()

    def flattering(samples: Any) -> list[float]:
        return [1.0] * len(samples)

    flattering.name = "carbons"  # type: ignore[attr-defined]
    cases: list[list[Any]] = [[flattering], [flattering, task], [CARBONS]]
    for rewards in cases:
        with pytest.raises(ValueError, match="'carbons' is the name of the task"):
            ledger.score(rewards, ["C"])
    assert ledger.calls == 0


def test_scores_of_other_rewards_are_no_scores_of_the_task() -> None:
    task, ledger = counted()

    def a_first(samples: Any) -> list[float]:  # comes before the task in every order by name
        return [0.9] * len(samples)

    ledger.score([a_first, task], ["CC"])
    ledger.score([a_first], ["CCC"])
    row = measure(ledger, 10, "molecules", "carbons")
    assert (row["calls"], row["top1"], row["best"]) == (2, 0.1, [["CC", 0.1]])
    assert row["auc_top1"] == pytest.approx((0.05 + 9 * 0.1) / 10)


def test_a_raised_budget_is_noticed() -> None:
    task, ledger = counted(max_oracle_calls=1)
    ledger.max_oracle_calls = 5
    ledger.score([task], ["C", "CC"])
    with pytest.raises(ValueError, match=r"calls: 2, expected at most 1 .budget."):
        measure(ledger, 1, "molecules", "carbons")


def test_a_method_that_cheats_has_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "portable", lambda job: "a test")

    def cheat(task: Any, policy: Any, ledger: Any, seed: int) -> None:
        best = max(["C" * k for k in range(1, 20)], key=lambda smiles: task([smiles])[0])
        ledger.score([task], [best])

    def unscored(task: Any, policy: Any, ledger: Any, seed: int) -> None:
        ledger.score([], ["C"])

    methods = [replace(WALK, name=f.__name__, run=f, settings={}, least_budget=1) for f in (cheat, unscored)]
    found = benchmark([CARBONS], methods=methods, budget=5, seeds=[0], output_dir=tmp_path)
    said = ["RuntimeError: task carbons: asked directly or wra", "ValueError: scores: all 1 of carbons are unknown "]
    assert [row["error"][:49].strip() for row in found.failed] == [text.strip() for text in said]
    assert found.rows == ()
    assert json.loads((tmp_path / "results.json").read_text())["rows"] == []


def test_a_method_may_wrap_what_the_ledger_scores_until_the_budget_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "portable", lambda job: "a test")

    def filtered(task: Any, policy: Any, ledger: Any, seed: int) -> None:
        reward = DiversityFilter(lambda samples, **columns: ledger.score([task], list(samples))[:, 0].tolist())
        for k in range(1, 20):
            reward(["C" * k, "N" * k])

    def broken(task: Any, policy: Any, ledger: Any, seed: int) -> None:
        ledger.score([task], ["C"])
        DiversityFilter(lambda samples, **columns: [1 / 0])(["C"])

    methods = [replace(WALK, name=f.__name__, run=f, settings={}, least_budget=1) for f in (filtered, broken)]
    found = benchmark([CARBONS], methods=methods, budget=5, seeds=[0], output_dir=tmp_path)
    assert [(row["method"], row["calls"], row["stopped"]) for row in found.rows] == [("filtered", 5, "budget")]
    assert ["division by zero" in row["error"] for row in found.failed] == [True]


# -- a ledger that hides its scores


def test_a_blindfold_shows_no_real_score() -> None:
    task, ledger = counted(max_oracle_calls=3)
    blind = Blindfold(ledger, 7)
    shown = blind.score([task], ["CC", "CC", "C.C", "CCC"], source="policy")[:, 0].tolist()
    assert shown[0] == shown[1] not in (0.1, 0.15)
    assert blind.history().scores[:, 0].tolist() == [shown[0], shown[3]]
    assert ledger.history().scores[:, 0].tolist() == [0.1, 0.15]
    assert (blind.calls, blind.exhausted, blind.sources()) == (2, False, {"policy": 2})
    for name in ("state_dict", "cache", "ledger", "load_state_dict"):
        with pytest.raises(AttributeError, match="hides its scores"):
            getattr(blind, name)
    with pytest.raises(AttributeError, match="keeps it as it is"):
        blind.max_oracle_calls = 10
    blind.score([task], ["O"])
    with pytest.raises(BudgetExhausted) as spent:
        blind.score([task], ["N", "CC"])
    assert spent.value.scores[:, 0].tolist()[1] == shown[0]


def test_a_trainer_learns_behind_a_blindfold_and_names_its_draws() -> None:
    task, ledger = counted(max_oracle_calls=20)
    with_trainer(task, chains(), Blindfold(ledger, 0), 0, num_generations=8, generation_batch_size=8)  # type: ignore[arg-type]
    assert ledger.sources() == {"policy": 20}
    assert ledger.history().scores.isfinite().all()
