"""The command ``preprocess``, and pretraining on its folders: the same run to the bit as on the file."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from discrete_grpo.cli.__main__ import main
from discrete_grpo.datasets.enumeration import enumerated_smiles
from discrete_grpo.datasets.sharded import ShardedTokens
from discrete_grpo.recipes.pretraining.preprocess import ShardOptions, preprocess
from discrete_grpo.runs.checkpoint import load_metadata

COMMON = ("--pretrain.max_steps=6", "--pretrain.batch_size=16", "--evaluation_samples=0", "--data_name=some")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A molecule in each row, with a column of numbers of which every seventh is not known, and rows that hold no molecule."""
    path = tmp_path_factory.mktemp("data") / "some.csv"
    few = [s for _, s in zip(range(2000), enumerated_smiles(), strict=False)][::16]
    rows = [f'"a, b",{s},{"" if k % 7 == 3 else k * 0.37 - 20}' for k, s in enumerate([*few, "C[N+](C)(C)C", "C1CC1Br"])]
    path.write_text("\n".join(["note,smiles,activity", *rows[:50], "x,bad(,no number", *rows[50:], "", "x,worse(,1,2,3"]))
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "some.smi"
    few = [s for _, s in zip(range(2000), enumerated_smiles(), strict=False)][::16]
    path.write_text("".join(f"{s}\n" for s in [*few, "C[N+](C)(C)C", "C1CC1Br", "bad("]))
    return path


@pytest.mark.parametrize(
    ("command", "options", "given"),
    [
        ("pretrain-smiles", ("--layers=1", "--width=16", "--heads=2"), ()),
        (
            "pretrain-smiles",
            ("--layers=1", "--width=16", "--heads=2", "--scaffold=true", "--properties=[TPSA]"),
            ("--scaffold=true", "--properties=TPSA"),
        ),
        ("pretrain", ("--network.layers=1", "--max_atoms=7"), ("--form=graphs", "--max_atoms=7")),
        ("pretrain", ("--network.layers=1", "--properties=[MolLogP]"), ("--form=graphs", "--properties=[MolLogP]")),
        ("pretrain", ("--network.layers=1", "--charges=field"), ("--form=graphs",)),
        (
            "pretrain-smiles",
            ("--layers=1", "--width=16", "--heads=2", "--properties=[TPSA,activity,qed]"),
            ("--properties=[TPSA,activity,qed]",),
        ),
        (
            "pretrain",
            ("--network.layers=1", "--max_atoms=6", "--properties=[activity]"),
            ("--form=graphs", "--max_atoms=6", "--properties=[activity,TPSA]"),
        ),
    ],
)
def test_training_on_shards_gives_the_bits_of_training_on_the_file(
    file: Path, table: Path, tmp_path: Path, command: str, options: tuple[str, ...], given: tuple[str, ...]
) -> None:
    shards, source = tmp_path / "shards", table if any("activity" in word for word in given) else file
    assert main(["preprocess", str(source), f"--output_dir={shards}", "--shard_lines=40", "--jobs=1", *given]) == 0
    for name, data in (("file", source), ("shards", shards)):
        assert main([command, f"--data={data}", f"--output_dir={tmp_path / name}-run", *options, *COMMON]) == 0
    ours, theirs = (tmp_path / f"{name}-run" for name in ("shards", "file"))
    weights, expected = (load_file(run / "policy" / "model.safetensors") for run in (ours, theirs))
    assert weights.keys() == expected.keys()
    assert all(weights[name].equal(expected[name]) for name in weights)
    metrics = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (ours, theirs)]
    for line in metrics[0] + metrics[1]:
        for timed in [name for name in line if "second" in name or "time" in name]:
            del line[timed]
    assert metrics[0] == metrics[1]
    described = [json.loads((run / "policy" / "config.json").read_text()) for run in (ours, theirs)]
    assert described[0] == described[1]


@pytest.mark.parametrize("jobs", [1, 2])
def test_conditions_may_be_columns_of_the_file(jobs: int, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "shards"
    words = ["preprocess", str(table), f"--output_dir={folder}", "--shard_lines=30", f"--jobs={jobs}"]
    assert main([*words, "--properties=[activity,TPSA]"]) == 0
    assert "activity is unknown for 18 of them\n" in capsys.readouterr().out
    found = ShardedTokens(folder, ("activity",))
    assert found.folder.measured == {"activity": 18}
    values = found.batch(torch.arange(len(found))).properties
    assert values is not None
    raw = (values[:, 0] * found.properties[0].std + found.properties[0].mean).tolist()
    assert raw == pytest.approx([math.nan if k % 7 == 3 else k * 0.37 - 20 for k in range(len(found))], abs=1e-4, nan_ok=True)
    run = [f"--data={folder}", "--layers=1", "--width=16", "--heads=2", *COMMON, "--pretrain.max_steps=1"]
    assert main(["pretrain-smiles", *run, "--properties=[activity]", f"--output_dir={tmp_path / 'run'}"]) == 0
    assert f"{folder}: activity is unknown for 18 of {len(found)} molecules" in capsys.readouterr().err
    assert load_metadata(tmp_path / "run" / "policy")["measured"] == ["activity"]


@pytest.mark.parametrize(
    ("rows", "name", "told"),
    [
        (["CO,1"], "activty", "properties: 'activty' is neither a column of 'my.csv' nor a descriptor of RDKit; did you mean"),
        (["CO,1"], "smiles", "properties: 'smiles' is neither a column"),
        (["CO,>3"], "activity", "properties: line 2 of 'my.csv' holds '>3' in 'activity', expected a number or nothing"),
        (["CO,1", "CO,1,5"], "activity", "data: line 3 of 'my.csv' has 3 cells, expected 2 as the header has"),
        (["CO,", "CC,NaN"], "activity", "properties: activity is finite for none of 2 molecules"),
        (["CO,1"], "activity,activity", "properties: 'activity' is given twice, expected each once"),
    ],
)
def test_columns_that_are_not_of_numbers_are_refused(
    rows: list[str], name: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.csv").write_text("\n".join(["smiles,activity", *rows]))
    assert main(["preprocess", "my.csv", "--output_dir=shards", f"--properties=[{name}]", "--jobs=1"]) == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
    assert not Path("shards").exists(), "the corrected command needs the folder"


def test_a_refused_build_leaves_no_folder(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "shards"
    with pytest.raises(ValueError, match=r"^max_broken: 2\.0, expected"):
        preprocess(file, out, max_broken=2.0, jobs=1)
    assert not out.parent.exists()
    with pytest.raises(ValueError, match=r"^properties: 'TPSA' is given twice, expected each once"):
        preprocess(file, out, ShardOptions(properties=("TPSA", "qed", "TPSA")), jobs=1)
    assert not out.parent.exists()
    (table := tmp_path / "table.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="column"):
        preprocess(table, out, jobs=1)
    assert not out.exists()


def test_the_command_says_what_it_made_and_what_it_left_out(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "two words"
    words = ["preprocess", str(file), f"--output_dir={folder}", "--form=graphs", "--max_atoms=4", "--jobs=1"]
    for _ in range(2):  # the second call finds all done
        assert main(words) == 0
        said = capsys.readouterr()
        manifest = json.loads((folder / "manifest.json").read_text())
        assert f"{folder}: {manifest['molecules']} molecules in 1 shard, {manifest['dropped']} of other sizes left out" in said.out
        assert f"train on it with: discrete-grpo pretrain --data='{folder}'\n" in said.out
        assert "1 of 128 lines are no molecule: line 128: 'bad('" in said.err
    assert main([*words, "--max_broken=0"]) == 2
    assert "max_broken 0.0%): line 128: 'bad('" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pretrain", "--max_broken=0"), r"1 of 128 lines that are no molecule (0.8%, max_broken 0.0%): line 128: 'bad('"),
        (("pretrain", "--max_atoms=5"), "max_atoms: 5, expected None, with which the folder"),
        (("pretrain", "--smiles_column=x"), "smiles_column: 'x', expected None, with which the folder"),
        (("pretrain", "--properties=[TPSA]"), "properties: 'TPSA' is not in the folder"),
        (("pretrain-smiles",), "holds molecules in the form graphs, expected smiles"),
    ],
)
def test_options_that_a_folder_does_not_have_are_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["preprocess", str(file), f"--output_dir={tmp_path / 'f'}", "--form=graphs", "--jobs=1"]) == 0
    capsys.readouterr()
    command, *options = words
    assert main([command, f"--data={tmp_path / 'f'}", f"--output_dir={tmp_path / 'run'}", *options]) == 2
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("discrete-grpo: error: ")]
    assert said in line


def test_the_folder_must_be_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preprocess", str(file)]) == 2
    assert "the following arguments are required: output_dir" in capsys.readouterr().err
    assert main(["preprocess", str(file), "--output_dir= "]) == 2
    assert "output_dir: ' ', expected the name of a folder to make" in capsys.readouterr().err
    assert main(["preprocess", str(file), "--output_dir=x", "--form=text"]) == 2
    assert "form: 'text', expected smiles or graphs" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_in_is_told_before_any_work(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=r"^output_dir: .* cannot be written in, expected a folder with write permission$"):
        preprocess(file, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("number", "name"), [(errno.ENOSPC, None), (errno.EACCES, "out/.shard-00000.bin.tmp")])
def test_a_failed_write_says_what_is_kept(
    number: int, name: str | None, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), name)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("discrete_grpo.datasets.shard_building.atomic_write", fail)
    said = (
        rf"^output_dir: out cannot be written in \({os.strerror(number)}\); complete shards are kept, and the same command goes on$"
    )
    with pytest.raises(OSError, match=said):
        preprocess(file, Path("out"), jobs=1)


def test_an_error_of_the_data_keeps_its_words(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr("discrete_grpo.recipes.pretraining.preprocess.build_shards", fail)
    with pytest.raises(PermissionError, match=r"^\[Errno 13\] Permission denied: '.*some\.smi'$"):
        preprocess(file, tmp_path / "out")


def test_ctrl_c_says_how_to_go_on(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("discrete_grpo.recipes.pretraining.preprocess.build_shards", stop)
    assert main(["preprocess", str(file), f"--output_dir={tmp_path / 'out'}"]) == 130
    assert "stopped; complete shards are kept, and the same command goes on\n" in capsys.readouterr().err
