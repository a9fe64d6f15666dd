"""Every command does what its help says."""

from __future__ import annotations

import importlib.resources
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from discrete_grpo.cli import main
from discrete_grpo.cli.arguments import read_arguments
from discrete_grpo.cli.calls import call
from discrete_grpo.cli.commands import COMMANDS
from discrete_grpo.datasets import graph_files, reading
from discrete_grpo.domains.digraph_validity import DIGRAPH_SHAPES
from discrete_grpo.domains.graph_validity import SHAPES
from discrete_grpo.metrics.suite import SUITES
from discrete_grpo.runs.recorder import read_metrics, read_samples
from tests.command_line import PRETRAIN, Refuse, outcome, train

pytestmark = pytest.mark.usefixtures("here")
ROOT = Path(__file__).parents[2]
ENDINGS = (*reading.SUFFIXES, *graph_files.SUFFIXES, ".sdf", ".xyz", ".npz")
"""Endings of all files of data of one's own."""


def test_train_with_overrides_as_in_the_readme() -> None:
    arguments = ["train", "demo", "--grpo.num_generations=16", "--grpo.max_steps=10", "--policy=tiny", "--evaluation_samples=8"]
    assert main([*arguments, "--num_steps=3", "--grpo.generation_batch_size=32"]) == 0  # for time
    assert {p.name for p in Path("runs/demo").iterdir()} == {
        "checkpoints",
        "config.yaml",
        "evaluation.json",
        "evaluation_after.csv.gz",
        "evaluation_before.csv.gz",
        "ledger.sqlite",
        "ledger.sqlite.log",
        "metrics.jsonl",
        "policy",
        "report.html",
        "rewards.json",
        "run.json",
        "samples.csv.gz",
        "scores.sqlite",
        "settings.json",
    }
    settings = yaml.safe_load(Path("runs/demo/config.yaml").read_text())
    assert (settings["grpo"]["num_generations"], settings["grpo"]["max_steps"], settings["policy"]) == (16, 10, "tiny")
    preset = yaml.safe_load(importlib.resources.files("discrete_grpo.cli.presets").joinpath("demo.yaml").read_text())
    assert settings["grpo"]["learning_rate"] == preset["grpo"]["learning_rate"]
    assert settings["grpo"]["epsilon"] == 0.2  # the default, written out
    assert [line["step"] for line in read_metrics("runs/demo")] == list(range(1, 11))
    Path("runs/demo/report.html").unlink()
    assert main(["report", "runs/demo"]) == 0
    assert "<svg" in Path("runs/demo/report.html").read_text()
    assert main(["sample", "runs/demo", "-n", "5", "--out=o.csv"]) == 0


@pytest.mark.filterwarnings("default")  # jsonargparse writes lists differently where its warning is an error
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--reward=logp"], ["logp"]),
        (["--reward", "logp"], ["logp"]),
        (["--reward=[qed,logp]"], ["qed", "logp"]),
        (["--reward=[qed, my_rewards.length]"], ["qed", "length"]),
        (["--reward+=logp"], ["qed", "logp"]),  # added to the preset's
        (["--reward=Substructure", "--reward.smarts=CO"], ["Substructure"]),
        (["--reward=Substructure", "--reward.smarts=[CX3](=O)[OX2H1]"], ["Substructure"]),
        (["--reward=my_rewards.Constant", "--reward.value=2.5"], ["Constant"]),
        (["--reward.class_path=Substructure", "--reward.init_args.smarts=CO"], ["Substructure"]),
        (["rewards.yaml"], ["validity", "Substructure", "length"]),
    ],
)
def test_every_way_to_name_rewards_runs_and_resumes(words: list[str], names: list[str]) -> None:
    spec = "reward:\n- validity  # bare\n- {class_path: Substructure, init_args: {smarts: CO}}\n- my_rewards.length\n"
    Path("rewards.yaml").write_text(spec)
    arguments = train("--grpo.max_steps=1", *words)
    if words == ["rewards.yaml"]:
        arguments = ["train", "rewards.yaml", *arguments[2:-1]]
    assert main(arguments) == 0
    columns = [c.removeprefix("reward_") for c in read_samples("run/samples.csv.gz") if c.startswith("reward_")]
    assert len(columns) == len(names)
    assert all(name in column for name, column in zip(names, columns, strict=True) if name != "Substructure")
    before = outcome("run")
    assert main(["resume", "run"]) == 0  # config.yaml says the same
    assert outcome("run") == before


@pytest.mark.filterwarnings("default")  # jsonargparse writes lists differently where its warning is an error
def test_print_config_can_be_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    for rewards in ("--reward=[qed,logp]", "--reward=qed"):
        with pytest.raises(SystemExit) as done:
            main(train(rewards, "--print_config"))
        assert done.value.code in (0, None)
        text = capsys.readouterr().out
        Path("again.yaml").write_text(text)
        assert yaml.safe_load(text)["grpo"]["max_steps"] == 3
        assert not Path("run").exists()
        assert main(["train", "again.yaml"]) == 0
        capsys.readouterr()
        shutil.rmtree("run")


def test_pretrain_then_sample_and_evaluate(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["pretrain", "enumerated-tiny", *PRETRAIN, "--pretrain.max_steps=4", "--output_dir=p", "--evaluation_samples=4"]
    assert main(arguments) == 0
    before = outcome("p")
    assert main(["resume", "p"]) == 0
    assert outcome("p") == before  # not one more line of evaluation
    assert main(["pretrain", "--data=bad.smi", "--max_broken=0.3", *PRETRAIN, "--pretrain.max_steps=1", "--output_dir=q"]) == 0
    assert "bad.smi: 1 of 4 lines are no molecule: line 3: 'nonsense(('" in capsys.readouterr().err
    assert main(["sample", "p", "-n", "200", "--out=o.smi", "--seed=3"]) == 0  # few are valid after four updates
    assert main(["sample", "p", "-n", "2", "--out=null", "--num_steps=2"]) == 0  # prints, as without the option
    assert main(["sample", "p", "--n=30", "--out=o.csv.gz", "--seed=3", "--scaffold=C", "--num_steps=2"]) == 0
    assert len(read_samples("o.csv.gz")["smiles"]) == 30
    capsys.readouterr()
    assert main(["evaluate", "bad.smi", "--reference=good.smi", "--out=e.json"]) == 0
    shown = capsys.readouterr()
    assert all(name in shown.out for name in ("valid", "unique", "novel", "internal_diversity", "qed"))
    assert "1 of 4 lines are no molecule" in shown.err
    found = json.loads(Path("e.json").read_text())
    assert (found["samples"], found["valid"]) == (4, 0.75)
    assert found["novel"] == pytest.approx(1 / 3)


def test_list_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("demo", "enumerated-tiny", "qm9-small", "qed", "zinc250k"))
    assert "MoleculeReward" not in text
    assert all(ending in text.partition("data sets:")[2] for ending in ENDINGS)
    assert main(["--version"]) == 0


def test_help_names_the_files_and_choices_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for command in ("evaluate", "sample"):
        with pytest.raises(SystemExit):
            main([command, "-h"])
        texts[command] = " ".join(capsys.readouterr().out.split())
    assert all(ending in texts["evaluate"] for ending in ENDINGS)
    assert all(suite in texts["evaluate"] for suite in SUITES)
    assert all(shape in texts["evaluate"] for shape in (*SHAPES, *DIGRAPH_SHAPES))
    assert ".sdf or .xyz for molecules in space" in texts["sample"]


def test_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for nothing in ([], ["-h"], ["--help"]):
        assert main(nothing) == 0
        text = capsys.readouterr().out
        assert all(command in text for command in COMMANDS)
    for command in COMMANDS:
        with pytest.raises(SystemExit) as done:
            main([command, "-h"])
        assert done.value.code in (0, None)
        assert f"discrete-grpo {command}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--grpo.num_generations" in text
    assert "Number of samples per group (G), at least 2." in text
    assert "Coefficient of the KL to the reference policy" in text
    assert "Presets: demo" in text


def contained(given: Any, resolved: Any) -> bool:
    """Whether every key of ``given``, at any depth, has its value in ``resolved``, which may say more."""
    if isinstance(given, dict):
        return isinstance(resolved, dict) and all(k in resolved and contained(v, resolved[k]) for k, v in given.items())
    if isinstance(given, list):
        return len(given) == len(resolved) and all(contained(a, b) for a, b in zip(given, resolved, strict=True))
    return bool(given == resolved)


@pytest.mark.parametrize("preset", sorted((ROOT / "discrete_grpo/cli/presets").glob("*.yaml")), ids=lambda p: p.stem)
def test_presets_parse(preset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = preset.read_text().removeprefix("# ").partition(":")[0]
    with pytest.raises(SystemExit) as done:
        main([command, preset.stem, "--print_config"])
    assert done.value.code in (0, None)
    given = yaml.safe_load(preset.read_text())
    resolved = yaml.safe_load(capsys.readouterr().out)
    assert contained(given, resolved)


def test_images_are_drawn_and_evaluated(tiny: Path, monkeypatch: pytest.MonkeyPatch, refuse: Refuse) -> None:
    monkeypatch.setattr("discrete_grpo.runs.checkpoint_names.BUNDLED", ROOT / "discrete_grpo/bundled")
    label = '--columns={"label": 3}'
    for name in ("sheet.png", "table.csv.gz", "plain.txt"):
        assert main(["sample", "digits", "-n", "6", f"--out={name}", label]) == 0
    assert main(["sample", "digits", "-n", "6", "--out=list.txt", '--columns=[{"label": 3}]']) == 0
    assert Path("list.txt").read_bytes() == Path("plain.txt").read_bytes()
    assert Path("sheet.png").read_bytes()[:4] == b"\x89PNG"
    for name in ("table.csv.gz", "plain.txt"):
        assert main(["evaluate", name, "--out=numbers.json"]) == 0
        assert json.loads(Path("numbers.json").read_text())["valid"] == 1.0
    assert "reference: 'plain.txt', expected none" in refuse("evaluate", "plain.txt", "--reference=plain.txt")
    assert "makes no images" in refuse("sample", "qm9-small", "-n", "2", "--out=sheet.png")


@pytest.mark.parametrize(
    ("command", "words", "name", "value"),
    [
        ("sample", ["p"], "n", 100),
        ("sample", ["p"], "seed", 0),
        ("sample", ["p", "-n", "1e3"], "n", 1000),
        ("sample", ["p", "--scaffold=null"], "scaffold", None),
        ("best", ["run"], "n", 50),
        ("benchmark", ["pmo", "--tasks=['qed', \"median1\"]"], "tasks", ["qed", "median1"]),
        ("benchmark", ["pmo", "--tasks=null"], "tasks", None),
        ("benchmark", ["pmo", "--seeds=[3,1e1]"], "seeds", [3, 10]),
        ("benchmark", ["pmo", "--job_timeout=null"], "job_timeout", None),
        ("preprocess", ["a.smi", "--output_dir=o", "--scaffold=False"], "scaffold", False),
        ("preprocess", ["a.smi", "--output_dir=o", "--scaffold=true"], "scaffold", True),
        ("preprocess", ["a.smi", "--output_dir=o"], "max_broken", 0.05),
    ],
)
def test_values_of_options_are_read_in_the_forms_that_the_help_names(command: str, words: list[str], name: str, value: Any) -> None:
    assert read_arguments(command, words)[name] == value
    assert type(read_arguments(command, words)[name]) is type(value)


def test_a_benchmark_keeps_the_command_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*given: Any, command: str, **options: Any) -> None:
        raise LookupError(command)

    monkeypatch.setattr("discrete_grpo.benchmarking.runner.benchmark", stop)
    words = ["pmo", "--tasks=[qed,median1]", "--seeds=[4,5]", "--output_dir=my folder", "--jobs=1"]
    with pytest.raises(LookupError) as caught:
        call("benchmark", read_arguments("benchmark", words))
    told = shlex.split(str(caught.value))
    assert told[:3] == ["discrete-grpo", "benchmark", "pmo"]
    assert read_arguments("benchmark", told[2:]) == read_arguments("benchmark", words)
    assert {"--tasks=[qed,median1]", "--seeds=[4,5]", "--output_dir=my folder"} <= set(told)
    assert not any("trusted" in word for word in told)
