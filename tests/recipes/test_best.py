"""The best samples of a run: which they are, how many of a scaffold, and the files that they are written to."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rdkit import Chem

from discrete_grpo.cli import main
from discrete_grpo.recipes.best import best_samples, write_best
from discrete_grpo.runs.best import Scored, best_scored, non_dominated
from discrete_grpo.runs.recorder import Recorder, write_table
from discrete_grpo.runs.report.report import write_report

RINGS = ["c1ccccc1C", "c1ccccc1CC", "c1ccncc1C", "CCO", "CCC"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two updates and an evaluation, some of whose samples are invalid, unknown or repeated."""
    recorder = Recorder(tmp_path / "run")
    for step in (1, 2):
        recorder.record(step, {"reward": 0.5})
    parts: dict[str, Any] = {"reward_a": [0.5, 0.4, None, 0.2, 0.1], "reward_b": [0.5, 0.5, 0.7, 0.4, 0.4]}
    recorder.record_samples(1, {"sample": RINGS, "reward": [1.0, 0.9, 0.7, 0.6, 0.5], **parts})
    later: dict[str, Any] = {"reward_a": [0.5, 0.7, 1.0], "reward_b": [0.5, 0.1, 1.0]}
    recorder.record_samples(2, {"sample": ["c1ccccc1C", "CCO", None], "reward": [1.0, 0.8, 2.0], **later})
    write_table(tmp_path / "run" / "evaluation_after.csv.gz", {"sample": ["CN", "CC"], "reward": [0.55, None]})
    return tmp_path / "run"


def test_they_are_different_known_and_ranked(run: Path) -> None:
    found = best_samples(run, 5)
    assert [one.sample for one in found] == ["c1ccccc1C", "c1ccccc1CC", "CCO", "c1ccncc1C", "CN"]
    assert [one.reward for one in found] == [1.0, 0.9, 0.8, 0.7, 0.55]
    assert [one.origin for one in found] == ["update 1", "update 1", "update 2", "update 1", "evaluation after training"]
    assert [one.parts for one in found][2:] == [{"reward_a": 0.7, "reward_b": 0.1}, {"reward_a": None, "reward_b": 0.7}, {}]
    assert [one.sample for one in best_samples(run, 1)] == ["c1ccccc1C"]


def test_the_steps_of_an_optimisation_are_rounds(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.record(1, {"reward": 0.5, "restarts": 0.0, "memory": 1.0})
    recorder.record_samples(1, {"sample": ["CCO"], "reward": [0.5]})
    assert [one.origin for one in best_samples(tmp_path)] == ["round 1"]


def test_the_score_by_a_single_reward_is_not_repeated(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.record(1, {"reward": 0.5})
    recorder.record_samples(1, {"sample": ["CCO"], "reward": [0.5], "reward_qed": [0.5]})
    write_table(tmp_path / "evaluation_before.csv.gz", {"sample": ["CN"], "reward": [0.6]})
    assert [(one.sample, one.parts) for one in best_samples(tmp_path)] == [("CN", {}), ("CCO", {})]
    assert "qed" not in write_report(tmp_path).read_text(encoding="utf-8")


def test_the_molecules_of_a_scaffold_are_limited(run: Path) -> None:
    assert [one.sample for one in best_samples(run, per_scaffold=1)] == ["c1ccccc1C", "CCO", "c1ccncc1C"]
    assert [one.sample for one in best_samples(run, 4, per_scaffold=2)] == ["c1ccccc1C", "c1ccccc1CC", "CCO", "c1ccncc1C"]


def dominates(x: Sequence[float], y: Sequence[float]) -> bool:
    return all(a >= b for a, b in zip(x, y, strict=True)) and any(a > b for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("signs", [(1.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 0.0, -1.0)])
def test_the_pareto_front_is_that_of_all_pairs(signs: tuple[float, ...]) -> None:
    chance = random.Random(0)
    values = [[chance.randrange(12) for _ in signs] for _ in range(200)]
    values += values[:20]  # equal samples do not dominate each other
    found = [Scored(str(k), sum(v), "", dict(zip("abc", map(float, v), strict=True))) for k, v in enumerate(values)]
    signed = [[s * x for s, x in zip(signs, v, strict=True)] for v in values]
    wanted = [str(k) for k, own in enumerate(signed) if not any(dominates(other, own) for other in signed)]
    assert [one.sample for one in non_dominated(found, signs)] == wanted
    assert 3 < len(wanted) < 200


def test_unknown_scores_are_not_in_the_front_and_one_reward_has_none(run: Path, tmp_path: Path) -> None:
    assert [one.sample for one in best_samples(run, pareto=True)] == ["c1ccccc1C", "CCO"]  # (0.5, 0.5) and (0.7, 0.1)
    assert [one.sample for one in best_samples(run, 1, pareto=True)] == ["c1ccccc1C"]
    recorder = Recorder(tmp_path / "one")
    recorder.record(1, {"reward": 0.5})
    recorder.record_samples(1, {"sample": ["CCO"], "reward": [0.5], "reward_qed": [0.5]})
    with pytest.raises(ValueError, match=r"^pareto: .*one has one reward, expected a run with several$"):
        best_samples(tmp_path / "one", pareto=True)


@pytest.mark.parametrize(
    ("file", "name"),
    [("settings.json", "grpo.reward_weights"), ("settings.json", "reward_weights"), ("search.json", "reward_weights")],
)
def test_lower_is_better_by_a_reward_of_negative_weight(
    run: Path, file: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / file).write_text(json.dumps({name: [1.0, -0.5]}))
    assert main(["best", str(run), "--pareto"]) == 0
    assert [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()] == ["CCO"]  # 0.7 and the lowest 0.1


def test_a_long_run_has_the_same_best_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discrete_grpo.runs.best._AT_ONCE", 10)
    recorder = Recorder(tmp_path)
    for step in range(1, 9):
        recorder.record(step, {"reward": 0.5})
        recorder.record_samples(
            step, {"sample": [f"{step}-{k}" for k in range(9)], "reward": [(7 * step + 5 * k) % 11 for k in range(9)]}
        )
    few, every = best_scored(tmp_path, 6), best_scored(tmp_path, 6, accept=lambda sample: True)
    assert few == every
    assert [one.reward for one in few] == [10.0] * 6
    assert [one.sample for one in few] == sorted(one.sample for one in few)  # the first reached come first


def test_the_files(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["best", str(run), "-n", "2", f"--out={tmp_path / 'best.csv'}"]) == 0
    with (tmp_path / "best.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["smiles"] for row in rows] == RINGS[:2]
    assert [(row["reward"], row["reward_a"], row["origin"]) for row in rows][1] == ("0.9", "0.4", "update 1")
    assert float(rows[0]["QED"]) > 0
    write_best(run, tmp_path / "best.smi.gz", 3)
    assert gzip.decompress((tmp_path / "best.smi.gz").read_bytes()).decode() == "c1ccccc1C\nc1ccccc1CC\nCCO\n"
    mols = list(Chem.SDMolSupplier(str(write_best(run, tmp_path / "best.sdf", 2))))
    assert [Chem.MolToSmiles(mol) for mol in mols] == ["Cc1ccccc1", "CCc1ccccc1"]
    assert [mol.GetProp("reward") for mol in mols] == ["1.0", "0.9"]
    assert abs(mols[0].GetConformer().GetPositions()).max() > 1  # drawn in the plane
    assert write_best(run, tmp_path / "best.png", 2).read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(["best", str(run), "-n", "2"]) == 0
    assert capsys.readouterr().out == "1\tc1ccccc1C\n0.9\tc1ccccc1CC\n"


def test_what_cannot_be_written_is_one_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^out: .*', expected a file of molecules ending in \.csv, \.smi, \.txt, \.sdf, \.png"):
        write_best(run, tmp_path / "best.xyz")
    with pytest.raises(FileNotFoundError, match=r"^run: nowhere is no folder"):
        best_samples("nowhere")
    with pytest.raises(ValueError, match=r"^run: .* is no run folder, expected one of train, optimise or search$"):
        best_samples(tmp_path)
    with pytest.raises(ValueError, match=r"^n: 0, expected at least 1"):
        best_samples(run, 0)
    with pytest.raises(ValueError, match=r"^per_scaffold: 0, expected at least 1"):
        best_samples(run, per_scaffold=0)
    Recorder(tmp_path / "bare").record(1, {"reward": 0.5})
    with pytest.raises(ValueError, match=r"has no sample with a known reward$"):
        best_samples(tmp_path / "bare")


def test_a_sample_without_the_scores_of_the_others_has_empty_cells(run: Path, tmp_path: Path) -> None:
    with write_best(run, tmp_path / "best.csv").open(encoding="utf-8") as file:
        rows = {row["smiles"]: (row["reward"], row["reward_a"], row["reward_b"]) for row in csv.DictReader(file)}
    assert rows["CCO"] == ("0.8", "0.7", "0.1")
    assert rows["c1ccncc1C"] == ("0.7", "", "0.7")
    assert rows["CN"] == ("0.55", "", "")


def test_samples_that_cannot_be_drawn_make_no_picture(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    recorder.record(1, {"reward": 0.5})
    recorder.record_samples(1, {"sample": ["no molecule"], "reward": [0.5]})
    with pytest.raises(ValueError, match=r"^out: .*best\.png, expected another ending: no sample can be drawn$"):
        write_best(tmp_path / "run", tmp_path / "best.png")
    assert not (tmp_path / "best.png").exists()
