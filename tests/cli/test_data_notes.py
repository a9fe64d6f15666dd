"""Commands say what they leave out of the data and of the samples, and what was probably meant by a wrong argument."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.cli import main
from discrete_grpo.cli.parser import loaded_columns, parse
from discrete_grpo.recipes.grpo_memory import changes_of_method
from discrete_grpo.recipes.left_out import report_broken

SMALL = ["--num_steps=3", "--evaluation_samples=0", "--pretrain.max_steps=1", "--pretrain.batch_size=4", "--network.layers=1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_pretraining_says_what_it_leaves_out_and_what_has_several_parts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "salt.smi").write_text("CCO\nCC.O\n[H][H]\nCCCCCCC\nC[N+](C)(C)C.[Cl-]\n")
    assert main(["pretrain", *SMALL, "--data=salt.smi", "--max_atoms=6", "--output_dir=run"]) == 0
    said = capsys.readouterr().err
    assert "salt.smi: 2 of 5 molecules are left out for their number of heavy atoms, which is 0 or above max_atoms\n" in said
    assert "salt.smi: 2 of 3 molecules have several parts, such as salts; samples of several parts count as invalid\n" in said
    (folder / "whole.smi").write_text("CCO\nCC\n")
    assert main(["pretrain", *SMALL, "--data=whole.smi", "--output_dir=whole"]) == 0
    assert "whole.smi:" not in capsys.readouterr().err


def test_the_cache_of_parsed_molecules_says_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "salt.smi").write_text("CCO\nCC.O\nCCCCCCC\n")
    said = []
    for name in ("first", "second"):
        given = ["--data=salt.smi", "--max_atoms=6", "--cache_dir=cache", f"--output_dir={name}"]
        assert main(["pretrain", *SMALL, *given]) == 0
        said.append([line for line in capsys.readouterr().err.splitlines() if line.startswith("salt.smi")])
    assert said[0] == said[1]
    assert len(said[0]) == 2


def test_a_resumed_run_says_where_it_looks_for_data_that_has_moved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "few.smi").write_text("CCO\nCC\nCCC\n")
    assert main(["pretrain", *SMALL, "--data=few.smi", "--output_dir=run"]) == 0
    (folder / "few.smi").unlink()
    assert main(["resume", "run", "--pretrain.max_steps=2"]) == 2
    said = f"; relative paths are looked up in the working folder, now {folder}, which must be that of the run's start\n"
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize("charges", ["joint", "field"])
def test_molecules_without_a_pair_of_atoms_have_no_bonds_to_learn(
    charges: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "one.smi").write_text("C\nN\n")
    assert main(["pretrain", "--data=one.smi", f"--charges={charges}", "--output_dir=run", "--pretrain.max_steps=1"]) == 2
    told = "data: no molecule to train on has two heavy atoms, expected at least one that has, or noise uniform or absorbing"
    assert told in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_conditions_are_read_as_json_and_else_as_yaml() -> None:
    assert loaded_columns('{"MolLogP": 1e-3}') == {"MolLogP": 0.001}
    assert loaded_columns("[{label: 3}]") == [{"label": 3}]


def test_samples_that_are_left_out_of_the_lines_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "salt.smi").write_text("CCO\nCCN\n")
    assert main(["pretrain", *SMALL, "--data=salt.smi", "--output_dir=run"]) == 0
    capsys.readouterr()
    assert main(["sample", "run", "-n", "40"]) == 0
    found = capsys.readouterr()
    lines = found.out.splitlines()
    assert 0 < len(lines) < 40
    assert f"{40 - len(lines)} of 40 samples are invalid and are left out; with --out=FILE.csv" in " ".join(found.err.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sample", "digits", "-n", "2", "--columns=table.csv"], "columns: table.csv is a table, expected a file of JSON lines"),
        (["evaluate", "runs/one"], "file: runs/one is a run folder, expected a file of samples, such as samples.csv.gz in it"),
        (["evaluate", "samples.smi", "--reference=runs/one"], "reference: runs/one is a run folder, expected a file of samples"),
        (
            ["train", "--policy=smiles-zinc", "--reward=score_of_length.length", "--reward.target=3", "--output_dir=run"],
            "reward: score_of_length.length is a function, which takes no arguments here (target), expected a class with them",
        ),
    ],
)
def test_what_was_meant_otherwise_is_told(
    arguments: list[str], told: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    (folder / "table.csv").write_text("label\n3\n")
    (folder / "samples.smi").write_text("CCO\n")
    (folder / "score_of_length.py").write_text("def length(samples, **columns):\n    return [1.0] * len(samples)\n")
    (folder / "runs" / "one").mkdir(parents=True)
    (folder / "runs" / "one" / "run.json").write_text("{}")
    assert main(arguments) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (["num_steps=3", "objective.epsilon=0.1"], {"num_steps": 3, "objective": {"epsilon": 0.1}}),
        (["objective.epsilon=0.1", "num_steps=3"], {"num_steps": 3, "objective": {"epsilon": 0.1}}),
        (
            ["draws=60", "objective.new_share=null", "objective.temperature=0.01", "objective.epsilon=1e-1"],
            {"draws": 60, "objective": {"new_share": None, "temperature": 0.01, "epsilon": 0.1}},
        ),
    ],
)
def test_settings_within_settings_may_be_given_in_any_order(arguments: list[str], settings: dict[str, Any]) -> None:
    recipe, _ = parse("optimise", ["--policy=qm9-small", *(f"--settings.{given}" for given in arguments)])
    assert changes_of_method(recipe.settings) == settings


def test_settings_within_settings_of_a_file_stand_beside_those_of_the_command_line() -> None:
    given = "--config={settings: {draws: 60, objective: {temperature: 0.02, epsilon: 0.1}}}"
    recipe, _ = parse("optimise", [given, "--settings.objective.epsilon=0.3"])
    assert changes_of_method(recipe.settings) == {"draws": 60, "objective": {"temperature": 0.02, "epsilon": 0.3}}


@pytest.mark.parametrize(("bad", "more"), [(1, ""), (5, ""), (6, "; and 1 more"), (8, "; and 3 more")])
def test_the_first_lines_that_are_left_out_are_listed(bad: int, more: str, capsys: pytest.CaptureFixture[str]) -> None:
    broken = [(k + 1, f"x{k}") for k in range(bad)]
    listed = "; ".join(f"line {k}: {text!r}" for k, text in broken[:5])
    report_broken("a.smi", broken, 12)
    assert capsys.readouterr().err == f"a.smi: {bad} of {12 + bad} lines are no molecule: {listed}{more}\n"


def test_of_lines_that_are_left_out_in_shards_the_first_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    report_broken("a.smi", [(k, "x") for k in range(5)], 10, count=90)
    told = capsys.readouterr().err
    assert told.startswith("a.smi: 90 of 100 lines are no molecule: line 0: 'x'; ")
    assert told.endswith("; line 4: 'x'; and 85 more\n")
    report_broken("a.smi", [], 10)
    assert capsys.readouterr().err == ""
