"""The end of a pretraining: what is measured of the policy, its samples, and the report."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo import PretrainConfig, PretrainDigitsRecipe, pretrain
from discrete_grpo.recipes.pretraining.fitting import fit
from discrete_grpo.runs.checkpoint import load_metadata
from discrete_grpo.runs.recorder import read_evaluation, read_metrics, read_samples
from tests.toys import tiny_policy
from tests.training.test_pretrain import CONFIG, DATA


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings that every pretraining recipe has."""

    output_dir: str
    pretrain: PretrainConfig = CONFIG


def training(policy: Any) -> tuple[Mapping[str, float], tuple[()]]:
    return {"training": float(policy.training)}, ()


class Counted:
    """Says how often it was called, and draws as many samples."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, policy: Any) -> tuple[Mapping[str, float], list[str | None]]:
        self.calls += 1
        return {"calls": float(self.calls), "num_samples": 2.0}, ["C" * self.calls, None]


def test_it_trains_as_the_recipe_says(tmp_path: Path) -> None:
    recipe = Recipe(str(tmp_path / "run"))
    folder = fit(tiny_policy(), DATA, recipe, metadata={"kind": "toy"}, evaluate=training, files={"more.txt": "here"})
    assert folder == tmp_path / "run" / "policy"
    today = datetime.date.today().isoformat()
    assert load_metadata(folder) == {"kind": "toy", "date": today, "pretraining_steps": 12}
    measured = [line["eval/training"] for line in read_metrics(tmp_path / "run") if "eval/training" in line]
    assert measured == [0.0] * 3, "the average is measured in eval mode at every checkpoint"
    assert (tmp_path / "run/more.txt").read_text() == "here"
    again = fit(tiny_policy(seed=5), DATA, recipe, metadata={}, resume=True)
    assert load_metadata(again)["pretraining_steps"] == 12


def test_the_numbers_and_samples_of_the_last_checkpoint_are_written_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure, recipe = Counted(), Recipe(str(tmp_path))
    fit(tiny_policy(), DATA, recipe, metadata={"kind": "molecules"}, evaluate=measure)
    assert measure.calls == 3  # at updates 4, 8 and 12, and not once more
    assert read_evaluation(tmp_path) == {"after": {"calls": 3.0, "num_samples": 2.0}}
    assert read_samples(tmp_path / "evaluation_after.csv.gz")["sample"] == ["CCC", ""]
    assert "num_samples" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert 'id="chart-loss"' in page
    assert "<dt>updates</dt><dd>12<small>" in page
    assert "<h2>Samples</h2>" in page
    kept = {name: (tmp_path / name).read_bytes() for name in ("evaluation.json", "evaluation_after.csv.gz")}
    fit(tiny_policy(), DATA, recipe, metadata={"kind": "molecules"}, evaluate=measure, resume=True)
    assert measure.calls == 3
    assert kept == {name: (tmp_path / name).read_bytes() for name in kept}


def test_the_best_checkpoint_is_measured_where_it_is_exported(tmp_path: Path) -> None:
    best = dataclasses.replace(CONFIG, load_best_model_at_end=True, metric_for_best_model="eval/calls", save_total_limit=3)
    measure = Counted()
    fit(tiny_policy(), DATA, Recipe(str(tmp_path), best), metadata={"kind": "molecules"}, evaluate=measure)
    assert json.loads((tmp_path / "evaluation.json").read_text())["after"]["calls"] == 4.0


def test_a_run_that_was_killed_at_its_end_is_measured_when_it_goes_on(tmp_path: Path) -> None:
    measure, recipe = Counted(), Recipe(str(tmp_path))
    fit(tiny_policy(), DATA, recipe, metadata={"kind": "molecules"}, evaluate=measure)
    for name in ("evaluation.json", "report.html"):
        (tmp_path / name).unlink()
    fit(tiny_policy(), DATA, recipe, metadata={"kind": "molecules"}, evaluate=measure, resume=True)
    assert read_evaluation(tmp_path)["after"]["calls"] == 4.0
    assert (tmp_path / "report.html").is_file()


def test_a_run_that_goes_on_after_its_end_has_no_numbers_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, recipe = Counted(), Recipe(str(tmp_path))
    fit(tiny_policy(), DATA, recipe, metadata={"kind": "molecules"}, evaluate=measure)
    longer = Recipe(str(tmp_path), dataclasses.replace(CONFIG, max_steps=14))
    with monkeypatch.context() as patch:
        patch.setattr("discrete_grpo.recipes.pretraining.fitting.write_table", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):  # killed at its end
            fit(tiny_policy(), DATA, longer, metadata={"kind": "molecules"}, evaluate=measure, resume=True)
    fit(tiny_policy(), DATA, longer, metadata={"kind": "molecules"}, evaluate=measure, resume=True)
    assert read_evaluation(tmp_path)["after"]["calls"] == measure.calls == 5.0


def test_a_folder_in_use_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    with pytest.raises(ValueError, match=r"^output_dir: .* holds results of another run \(policy\)"):
        pretrain(PretrainDigitsRecipe(output_dir=str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
