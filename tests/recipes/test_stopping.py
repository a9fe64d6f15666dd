"""Training that ends at the first update whose metric reaches a number: where it ends, after a resume too, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo import GRPOConfig, train
from discrete_grpo.recipes.families import KINDS, Family
from discrete_grpo.recipes.stopping import Stop, logged_names
from discrete_grpo.recipes.train import TrainRecipe
from discrete_grpo.runs.checkpoint import Checkpoints
from discrete_grpo.runs.recorder import read_evaluation, read_metrics

SMALL = GRPOConfig(num_generations=4, generation_batch_size=8, max_steps=6, save_steps=2)
WEIGHTS = "policy/model.safetensors"
CALLS: list[int] = []


def rises(samples: list[str | None], **columns: Any) -> list[float]:
    """The number of generations that were scored so far, in every sample of one."""
    CALLS.append(len(samples))
    return [float(len(CALLS)) + k / 100 for k in range(len(samples))]


rises.cached_as = None  # type: ignore[attr-defined]


def lengths(samples: list[str | None], **columns: Any) -> list[float]:
    return [len(sample or "") / 20 for sample in samples]


def run(policy: str, folder: Path, reward: Any = rises, **options: Any) -> Any:
    CALLS.clear()
    given: dict[str, Any] = {"grpo": SMALL, "num_steps": 2, "evaluation_samples": 0} | options
    return train(policy, reward, output_dir=folder, **given)


def test_it_ends_at_the_first_update_that_reaches_the_number(
    small_molecules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(small_molecules, tmp_path / "a", lengths, stop_above=0.0, stop_after=3, evaluation_samples=4)
    assert [line["step"] for line in read_metrics(tmp_path / "a")] == [1, 2, 3]
    assert Checkpoints(tmp_path / "a").latest().name == "step-00000003"
    assert set(found) == {"before", "after"} == set(read_evaluation(tmp_path / "a"))
    assert (tmp_path / "a" / WEIGHTS).exists()
    run(small_molecules, tmp_path / "b", stop_above=2.0)
    assert len(read_metrics(tmp_path / "b")) == 2
    said = capsys.readouterr().err
    assert "stop_above: reward is 2.035 at update 2, at least 2, so training ends here\n" in said
    run(small_molecules, tmp_path / "c", stop_above=1.9, stop_metric="size/max", stop_after=1)
    assert len(read_metrics(tmp_path / "c")) == 1


def test_a_run_killed_at_its_end_or_before_ends_at_the_same_update_with_the_same_bits(
    small_molecules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    run(small_molecules, whole, lengths, stop_above=0.0, stop_after=4)
    for place, number in (("evaluations.Evaluations.after", 4), ("stopping.Stop.reached", 3), ("stopping.Stop.reached", 4)):
        part = tmp_path / f"{place}-{number}"
        calls: list[int] = []

        def killed(*_: Any, calls: list[int] = calls, number: int = number, place: str = place) -> bool:
            calls.append(0)
            if len(calls) == number or "after" in place:
                raise SystemExit(9)  # no checkpoint is written for it
            return False

        with monkeypatch.context() as patch:
            patch.setattr(f"discrete_grpo.recipes.{place}", killed)
            with pytest.raises(SystemExit):
                run(small_molecules, part, lengths, stop_above=0.0, stop_after=4)
        capsys.readouterr()
        run(small_molecules, part, lengths, stop_above=0.0, stop_after=4, resume=True)
        assert ("so no other update is made" in capsys.readouterr().err) == (number == 4)
        assert [line["step"] for line in read_metrics(part)] == [1, 2, 3, 4]
        for name in (WEIGHTS, "samples.csv.gz"):
            assert (part / name).read_bytes() == (whole / name).read_bytes()
    run(small_molecules, whole, lengths, stop_above=100.0, resume=True)
    assert len(read_metrics(whole)) == 6, "a larger number goes on"


def test_a_function_of_ones_own_is_called_first_and_ends_it_too(small_molecules: str, tmp_path: Path) -> None:
    seen: list[int] = []

    def own(trainer: Any, metrics: Any) -> bool:
        seen.append(trainer.step)
        metrics.clear()  # of a copy
        return bool(trainer.step == 2)

    run(small_molecules, tmp_path / "a", on_update=own, stop_above=9.0)
    assert seen == [1, 2]
    run(small_molecules, tmp_path / "b", on_update=own, stop_above=1.0)
    assert seen == [1, 2, 1]
    with pytest.raises(ValueError, match=r"^on_update: returned 0.5"):
        run(small_molecules, tmp_path / "c", on_update=lambda trainer, metrics: 0.5, stop_above=1.0)


def test_a_metric_that_is_not_logged_is_refused_with_the_nearest_one(small_molecules: str, tmp_path: Path) -> None:
    for name, told in (("rewards", "did you mean 'reward'?"), ("vaild", "did you mean 'valid'?"), ("kl", "expected one of")):
        with pytest.raises(ValueError, match=rf"^stop_metric: '{name}' is not logged; {re.escape(told)}"):
            run(small_molecules, tmp_path / "a", stop_above=1.0, stop_metric=name)
        assert not (tmp_path / "a").exists()
        assert not CALLS
    with pytest.raises(ValueError, match=r"^stop_metric: 'fields/atom/kl' is not logged; "):
        run(small_molecules, tmp_path / "b", stop_above=1.0, stop_metric="fields/atom/kl")
    assert len(read_metrics(tmp_path / "b")) == 1, "after the first update, where it could not be known before"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stop_metric": "valid"}, "stop_metric: 'valid', expected none without stop_above (the number that ends training)"),
        ({"stop_after": 4}, "stop_after: 4, expected none without stop_above (the number that ends training)"),
        ({"stop_above": float("nan")}, "stop_above: nan, expected a finite number"),
        ({"stop_above": 0.5, "stop_after": -1}, "stop_after: -1, expected at least 0"),
        ({"stop_above": 0.5, "stop_metric": 3}, "stop_metric: a int, expected the name of a metric"),
        (
            {"stop_above": 0.5, "reward": [], "data": "a.csv", "score_column": "y"},
            "stop_above: 0.5, expected none without a reward",
        ),
    ],
)
def test_options_out_of_their_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        TrainRecipe(**{"reward": rises, **options})


@pytest.mark.parametrize(
    "changes",
    [
        {"beta": 0.1, "patience": 3, "entropy_coef": 0.1, "zero_std_groups": "resample"},
        {"loss_type": "cispo", "epsilon_high": 5.0, "refine_fraction": 0.5},
        {"replay_samples": 1},
    ],
)
def test_the_names_that_are_known_before_are_those_that_are_logged(
    small_molecules: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = replace(SMALL, **{"max_steps": 2} | changes)
    run(small_molecules, tmp_path, grpo=config, max_oracle_calls=1000)
    logged = set().union(*read_metrics(tmp_path)) - {"step", "step_time"}
    known = logged_names(config, [rises], KINDS["molecules"]({}), budget=True)
    assert logged <= known
    assert {"oracle/left", "rewards/rises/mean", "valid"} <= known
    assert known - logged <= {"rewards/rises/failed", "oracle/restarts"} | {n for n in known if n.startswith("clip_ratio/")}


def test_a_family_that_hides_its_names_is_checked_after_the_first_update() -> None:
    def hidden(samples: Any) -> Mapping[str, float]:
        return {"length": len(samples[0])}

    assert logged_names(SMALL, [rises], Family("words", "word", hidden, hidden), budget=False) == set()


def test_unknown_values_and_early_updates_end_nothing() -> None:
    stop = Stop("reward", 0.5, after=2)
    assert [stop.reached(step, {"reward": 0.5}) for step in (1, 2, 3)] == [False, True, True]
    assert not any(stop.reached(3, line) for line in ({}, {"reward": None}, {"reward": float("nan")}, {"reward": 0.49}))
