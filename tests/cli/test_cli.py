"""The command line: every command, every kind of bad input in one line, and runs that are stopped or killed and resumed."""

from __future__ import annotations

import importlib.resources
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from discrete_grpo.cli import main
from discrete_grpo.cli.commands import COMMANDS
from discrete_grpo.datasets import graph_files, reading
from discrete_grpo.datasets.enumeration import load_enumerated
from discrete_grpo.datasets.molecules import statistics
from discrete_grpo.domains.digraph_validity import DIGRAPH_SHAPES
from discrete_grpo.domains.graph_validity import SHAPES
from discrete_grpo.metrics.suite import SUITES
from discrete_grpo.recipes.diffusion import DiffusionOptions
from discrete_grpo.recipes.molecules import NetworkSizes, molecule_policy
from discrete_grpo.recipes.search import SearchRecipe, run_search
from discrete_grpo.recipes.train import TrainRecipe, run_train
from discrete_grpo.runs.checkpoint import save
from discrete_grpo.runs.recorder import read_metrics, read_samples

ROOT = Path(__file__).parents[2]
ENDINGS = (*reading.SUFFIXES, *graph_files.SUFFIXES, ".sdf", ".xyz", ".npz")
"""Endings of all files of data of one's own."""
REWARDS = """
import math, pathlib
def length(samples, **columns): return [float(len(s or "")) for s in samples]
def nan(samples, **columns): return [math.nan] * len(samples)
def short(samples, **columns): return [1.0]
def infinite(samples, **columns): return [math.inf] * len(samples)
def raises(samples, **columns): raise KeyError("boom")
def flaky(samples, **columns):
    if pathlib.Path("broken").exists(): raise OSError("the docking server\\nis away")
    if len(samples) == 16 and pathlib.Path("count").exists():
        left = int(pathlib.Path("count").read_text()) - 1
        pathlib.Path("count").write_text(str(left))
        if not left: pathlib.Path("broken").touch()
    return length(samples)
flaky.cached_as = None  # asked for every sample every time
class Constant:
    def __init__(self, value: float = 1.0): self.value = value
    def __call__(self, samples, **columns): return [self.value] * len(samples)
class Plain: pass
def noargs(): return []
number = 3
"""
GRPO = ["--grpo.num_generations=4", "--grpo.generation_batch_size=16", "--grpo.max_steps=3", "--grpo.save_steps=1"]
NETWORK = ["--network.layers=1", "--network.heads=2", "--network.width=8", "--network.edge_width=4", "--network.global_width=4"]
PRETRAIN = [*NETWORK, "--network.walk_length=2", "--num_steps=3", "--max_atoms=4", "--pretrain.batch_size=8"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of an untrained policy over the enumerated molecules of at most 4 atoms, 5 steps."""
    stats = statistics(load_enumerated(4))
    sizes = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4, walk_length=2)
    folder = tmp_path_factory.mktemp("bundled") / "qm9-small"
    return save(folder, molecule_policy(stats, sizes, DiffusionOptions(num_steps=5)), metadata={"statistics": stats.to_json()})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own that holds the policy as ``tiny``, user rewards and some molecule files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("my_rewards", None)
    shutil.copytree(tiny, tmp_path / "tiny")
    monkeypatch.setattr("discrete_grpo.runs.checkpoint.BUNDLED", tiny.parent)  # a small one under the bundled name
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    (tmp_path / "broken_rewards.py").write_text("def f(:\n")
    (tmp_path / "good.smi").write_text("CCO\nCC\nCCC\n")
    (tmp_path / "bad.smi").write_text("CCO\nCC\nnonsense((\nC\n")
    (tmp_path / "empty.smi").write_text("")
    (tmp_path / "binary.smi").write_bytes(b"\x00\xff\xfe")
    (tmp_path / "plain.smi.gz").write_text("CCO\n")
    (tmp_path / "folder").mkdir()
    return tmp_path


def train(*more: str, out: str = "run", policy: str = "tiny") -> list[str]:
    return ["train", "demo", f"--policy={policy}", f"--output_dir={out}", "--evaluation_samples=4", *GRPO, *more]


class Refuse:
    """Runs a command that must fail, and holds it to the promise: code 2, one error line at the end, no traceback."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str) -> str:
        self.capsys.readouterr()
        assert main(arguments) == 2, arguments
        lines = self.capsys.readouterr().err.rstrip("\n").split("\n")
        assert lines[-1].startswith("discrete-grpo: error: ")
        assert sum("discrete-grpo: error:" in line for line in lines) == 1
        assert not any("Traceback" in line or 'File "' in line for line in lines)
        return lines[-1].removeprefix("discrete-grpo: error: ")


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Refuse:
    return Refuse(capsys)


# -- bad input


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("trian demo", "command: 'trian' is unknown; did you mean 'train'? known: train, pretrain, pretrain-graphs"),
        ("train dmo", "preset: 'dmo' is unknown; did you mean 'demo'?"),
        ("train enumerated-tiny", "preset: 'enumerated-tiny' is unknown"),
        ("train nofile.yaml", "preset: file 'nofile.yaml' does not exist"),
        ("train --config=nofile.yaml", "nofile.yaml"),
        ("train demo extra", "unrecognized arguments: extra"),
        ("pretrain --data=nosuch.smi", "data: 'nosuch.smi' is no file"),
        ("pretrain-smiles --data=nosuch.smi", "data: 'nosuch.smi' is no file"),
        ("pretrain-text --data=nosuch.txt", "data: 'nosuch.txt' is no file"),
        ("preprocess nosuch.smi --output_dir=o", "data: 'nosuch.smi' is no file"),
        ("pretrain --data=empty.smi", "data: 'empty.smi' holds no molecules"),
        (
            "pretrain --data=bad.smi",
            "data: 'bad.smi' has 1 of 4 lines that are no molecule (25.0%, max_broken 5.0%): line 3: 'nonsense(('",
        ),
        ("pretrain --data=binary.smi", "data: 'binary.smi' cannot be read as text"),
        ("pretrain --data=plain.smi.gz", "data: 'plain.smi.gz' cannot be read as text"),
        ("pretrain --data=good.smi --network.heads=3", "width: 128, expected a multiple of heads (3)"),
        ("pretrain --data=good.smi --num_steps=0", "num_steps: 0, expected at least 1"),
        ("pretrain --noise=pink", "noise: 'pink', expected one of 'uniform', 'marginal', 'absorbing'"),
        ("pretrain --max_atoms=0", "max_atoms: 0, expected 1 to 7"),
        ("pretrain --pretrain.batch_size=0", "batch_size: 0, expected at least 1"),
        ("pretrain --pretran.batch_size=8", "unknown field 'pretran.batch_size'; did you mean 'pretrain.batch_size'?"),
        ("resume nosuch", "run: nosuch: no such folder, expected a run folder of a command such as 'discrete-grpo train'"),
        ("resume .", "run: . is no run folder"),
        ("report nosuch", "run: nosuch is no run folder"),
        ("report folder", "run: folder is no run folder"),
        ("resume", "the following arguments are required: run"),
        ("evaluate nosuch.smi", "file: 'nosuch.smi' is no file"),
        ("evaluate empty.smi", "file: 'empty.smi' holds no molecules"),
        ("evaluate folder", "data: folder 'folder' has no file ending in .graphml"),
        ("evaluate good.smi --reference=nosuch.smi", "reference: 'nosuch.smi' is no file"),
        ("evaluate good.smi --out=nowhere/x.json", "out: folder nowhere does not exist"),
        ("evaluate good.smi --refrence=good.smi", "unknown field 'refrence'; did you mean 'reference'?"),
        ("sample tiny -n 0 --out=o.smi", "n: 0, expected at least 1"),
        ("sample tiny -n -3 --out=o.smi", "n: -3, expected at least 1"),
        ("sample tiny -n few --out=o.smi", "n: 'few', expected int"),
        ("sample tiny --out=nowhere/o.smi", "out: folder nowhere does not exist"),
        ("sample tiny --out=folder", "out: folder is a folder, expected a file"),
        (
            "sample nosuch --out=o.smi",
            "policy: 'nosuch' is no checkpoint folder, run folder or bundled policy (bundled: qm9-small)",
        ),
        ("sample qm9-smal --out=o.smi", "did you mean 'qm9-small'?"),
        ("sample tiny --out=o.smi --scaffold=C((", "scaffold: 'C((', expected a valid, connected SMILES"),
        ("sample tiny --out=o.smi --scaffold=CCCCC", "scaffold: 'CCCCC' has 5 atoms, expected at most the policy's 4"),
        ("sample tiny --out=o.smi --scaffold=CS", "scaffold: 'CS', atom 'S' is not in the vocabulary"),
        ("sample tiny --out=o.smi --num_steps=0", "num_steps: 0, expected at least 1"),
    ],
)
def test_bad_input_is_one_line(refuse: Refuse, arguments: str, said: str) -> None:
    assert said in refuse(*arguments.split())
    assert not Path("o.smi").exists()
    assert not Path("runs/pretrain/run.json").exists()  # so that the corrected command can be given


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--grpo.num_generatons=16", "unknown field 'grpo.num_generatons'; did you mean 'grpo.num_generations'?"),
        ("--grpo.num_gen=16", "did you mean 'grpo.num_generations'?"),
        ("--num_generations=16", "unknown field 'num_generations'; did you mean 'grpo.num_generations'?"),
        ("--polcy=tiny", "unknown field 'polcy'; did you mean 'policy'?"),
        ("--grpo.num_generations=1", "num_generations: 1, expected at least 2"),
        ("--grpo.num_generations=many", "grpo.num_generations: 'many', expected int"),
        ("--grpo.generation_batch_size=10", "generation_batch_size: 10, expected a multiple of num_generations (4)"),
        ("--grpo.learning_rate=-1", "grpo.learning_rate: -1.0, expected more than 0"),
        ("--grpo.learning_rate=nan", "learning_rate"),
        ("--grpo.timestep_fraction=1.5", "grpo.timestep_fraction: 1.5, expected more than 0 and at most 1"),
        ("--grpo.loss_type=ppo", "grpo.loss_type: 'ppo', expected one of 'grpo', 'dapo', 'dr_grpo'"),
        ("--grpo.reward_weights=[1,2]", "reward_weights: 2 weights, expected one per reward (1)"),
        ("--num_steps=few", "num_steps: 'few', expected int or null"),
        ("--temperature=-1", "temperature: -1.0, expected more than 0"),
        ("--evaluation_samples=-1", "evaluation_samples: -1, expected at least 0"),
        ("--scaffold=CCCCC", "scaffold: 'CCCCC' has 5 atoms"),
        ("--scaffold=CS", "scaffold: 'CS', atom 'S' is not in the vocabulary"),
        ("--reward=qedd", "reward: 'qedd' is unknown; did you mean 'qed'?"),
        ("--reward=MoleculeReward", "reward: 'MoleculeReward' is unknown"),
        ("--reward=[qed,logpp]", "reward: 'logpp' is unknown; did you mean 'logp'?"),
        ("--reward=nowhere.f", "reward: nowhere.f is no reward: No module named 'nowhere'"),
        ("--reward=my_rewards.lenght", "reward: my_rewards.lenght is no reward: module 'my_rewards' has no attribute 'lenght'"),
        ("--reward=my_rewards.number", "reward: my_rewards.number is no reward"),
        ("--reward=broken_rewards.f", "reward: broken_rewards.f is no reward: invalid syntax"),
        ("--reward=Substructure", "is no reward: the following arguments are required: smarts"),
        ("--reward=my_rewards.Plain", "reward: my_rewards.Plain is no reward: expected a function, or a class with __call__"),
        ("--reward={class_path: my_rewards.Plain}", "my_rewards.Plain is no reward: expected a function, or a class with __call__"),
        ("--reward=my_rewards.noargs", "reward: noargs() (too many positional arguments), expected a function of a list"),
        ("--reward=tree_valid", "reward: tree_valid is for graphs, expected one for molecules, which the policy draws"),
        ("--elbo_draws=-5", "elbo_draws: -5, expected at least 1"),
        ("--output_dir=good.smi", "output_dir: good.smi cannot be made a folder"),
    ],
)
def test_bad_fields_of_a_run_are_one_line(refuse: Refuse, argument: str, said: str) -> None:
    assert said in refuse(*train(argument))
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grpo:\n  num_generatons: 16\n", "unknown field 'grpo.num_generatons'; did you mean 'grpo.num_generations'?"),
        ("polcy: tiny\n", "unknown field 'polcy'; did you mean 'policy'?"),
        ("grpo:\n  num_generations: 1\n", "num_generations: 1, expected at least 2"),
        ("grpo: [1, 2\n", "Problems parsing config"),
        ("3\n", "Unexpected config: 3"),
        ("reward: qedd\n", "reward: 'qedd' is unknown; did you mean 'qed'?"),
    ],
)
def test_bad_fields_of_a_file_are_one_line(refuse: Refuse, text: str, said: str) -> None:
    Path("mine.yaml").write_text(text)
    for arguments in (["mine.yaml"], ["--config=mine.yaml"], ["--config", "mine.yaml"]):
        assert said in refuse("train", *arguments, "--policy=tiny", "--output_dir=run")
        assert not Path("run").exists()


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return apply


def without_a_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights[min(weights)]
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: os.truncate(f / "model.safetensors", 100), "model.safetensors cannot be read"),
        (
            lambda f: os.truncate(f / "model.safetensors", (f / "model.safetensors").stat().st_size - 8),
            "the file is missing or truncated",
        ),
        (lambda f: (f / "model.safetensors").unlink(), "the file is missing or truncated"),
        (lambda f: os.truncate(f / "config.json", 100), "config.json is no JSON"),
        (without_a_tensor, "does not fit the policy: network.blocks.0"),
        (
            edit(lambda c: c["metadata"]["statistics"].update(vocabulary=["C", "N", "O"])),
            "vocabulary of 3 atom types, expected the policy's 4",
        ),
        (edit(lambda c: c["metadata"]["statistics"].pop("vocabulary")), "has molecule statistics that cannot be read"),
        (edit(lambda c: c["metadata"].pop("statistics")), "has no molecule statistics"),
        (edit(lambda c: c.pop("metadata")), "has no metadata"),
        (edit(lambda c: c.pop("policy")), "has no policy"),
        (edit(lambda c: c.update(format=9)), "has format 9, expected 1"),
        (edit(lambda c: c["policy"].update(class_path="os.system")), "'os.system' is outside the trusted packages"),
    ],
)
def test_a_damaged_checkpoint_is_one_line(refuse: Refuse, damage: Callable[[Path], Any], said: str) -> None:
    damage(Path("tiny"))
    assert said in refuse("sample", "tiny", "--out=o.smi")
    assert said in refuse(*train())
    assert not Path("run").exists()
    assert not Path("o.smi").exists()


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="preset: 'dmo' is unknown"):
        main(["--debug", "train", "dmo"])
    with pytest.raises(FileNotFoundError):
        main(["evaluate", "nosuch.smi", "--debug"])


def test_a_failure_of_any_kind_is_one_line(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise LookupError("two\nlines")

    monkeypatch.setattr("discrete_grpo.recipes.evaluate.evaluate_file", fails)
    assert refuse("evaluate", "good.smi") == "LookupError: two lines"


# -- rewards that fail, and what they leave


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "reward raises: raised KeyError: 'boom'"),
        ("short", "reward short: returned 1 values for"),
        ("infinite", "reward infinite: returned inf"),
    ],
)
def test_a_failing_reward_is_one_line(refuse: Refuse, name: str, said: str) -> None:
    line = refuse(*train(f"--reward=my_rewards.{name}", "--evaluation_samples=0", out="late"))
    assert line.startswith(said)
    assert line.endswith("continue with: discrete-grpo resume late")
    line = refuse(*train(f"--reward=my_rewards.{name}"))  # before anything is done: there is nothing to continue
    assert line.startswith(said)
    assert "continue with" not in line
    assert not Path("run/run.json").exists()


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("my_rewards:Nope", "policy: module 'my_rewards' has no attribute 'Nope'"),
        ("my_rewards:Plain", "policy: Plain is no torch.nn.Module"),
    ],
)
def test_an_error_that_names_its_argument_is_told_without_its_kind(refuse: Refuse, policy: str, said: str) -> None:
    assert refuse(*train(policy=policy)).startswith(said)


def test_a_search_that_learned_no_reward_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rounds=1", "--population=4", "--children=2"]
    for name, told in (("nan", True), ("length", False)):
        assert main(["search", "--policy=tiny", f"--reward=my_rewards.{name}", f"--output_dir={name}", *sizes]) == 0
        said = "The reward of every sample of this search was unknown, in all of its 2 rounds, so it found nothing."
        assert (said in capsys.readouterr().err) == told


def test_a_reward_of_the_current_folder_and_unknown_values() -> None:
    assert main(train("--reward=my_rewards.nan")) == 0
    assert all(line["reward"] is None and line["frac_reward_unknown"] == 1.0 for line in read_metrics("run"))
    assert main(train("--reward=my_rewards.length", out="other")) == 0
    table = read_samples("other/samples.csv.gz")
    assert [float(r) for r in table["reward"]] == [float(len(s)) for s in table["sample"]]


def outcome(folder: str) -> tuple[Any, ...]:
    """Everything a run ends with, but for the times."""
    run = Path(folder)
    lines = [{k: v for k, v in line.items() if k not in ("step_time", "samples_per_second")} for line in read_metrics(run)]
    files = [run / name for name in ("policy/model.safetensors", "policy/config.json", "samples.csv.gz", "evaluation.json")]
    return lines, [(p.name, p.read_bytes()) for p in files if p.exists()]


def test_a_reward_that_fails_late_loses_nothing(refuse: Refuse) -> None:
    common = ["--reward=my_rewards.flaky", "--grpo.save_steps=100", "--grpo.max_steps=5"]
    assert main(train(*common, out="whole")) == 0
    Path("count").write_text("4")  # the call after the fourth of training fails
    line = refuse(*train(*common))
    assert line == "reward flaky: raised OSError: the docking server is away; saved, continue with: discrete-grpo resume run"
    assert [m["step"] for m in read_metrics("run")] == [1, 2, 3, 4]
    assert [p.name for p in sorted(Path("run/checkpoints").iterdir())] == ["step-00000000", "step-00000004"]
    assert "raised OSError" in refuse("resume", "run")  # still away, still nothing lost
    Path("broken").unlink()
    Path("count").unlink()
    assert main(["resume", "run"]) == 0
    assert outcome("run") == outcome("whole")


# -- a folder that holds a run


def test_of_several_processes_only_the_first_makes_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert main(train()) == 0
    assert not Path("run/run.json").exists()
    assert not Path("run/config.yaml").exists()


def test_a_run_is_never_overwritten(refuse: Refuse) -> None:
    assert main(train()) == 0
    before = outcome("run")
    line = refuse(*train("--grpo.seed=7"))
    assert line.startswith("output_dir: run already holds a run; continue it with 'discrete-grpo resume run'")
    assert main(["resume", "run"]) == 0  # a finished run stays what it is
    assert outcome("run") == before


def test_resume_passes_over_damaged_checkpoints(refuse: Refuse) -> None:
    assert main(train()) == 0
    before = outcome("run")
    newest, older = sorted(Path("run/checkpoints").iterdir(), reverse=True)
    os.truncate(newest / "training.pt", 500)
    with pytest.warns(RuntimeWarning, match="is taken instead"):
        assert main(["resume", "run"]) == 0
    assert outcome("run") == before
    for checkpoint in (newest, older):
        os.truncate(checkpoint / "training.pt", 500)
    line = refuse("resume", "run")
    assert "holds no checkpoint to resume from" in line
    assert "truncated" in line
    assert outcome("run") == before
    shutil.rmtree("run/checkpoints")
    assert refuse("resume", "run").startswith("run: holds samples of updates but no checkpoint to go on from; was run/checkpoints")
    assert outcome("run") == before
    Path("run/config.yaml").unlink()
    assert "run: run is no run folder" in refuse("resume", "run")
    Path("run/run.json").write_text('{"command": "rm"}')
    assert "run: run is no run folder" in refuse("resume", "run")


# -- good paths


def test_train_with_overrides_as_in_the_readme() -> None:
    arguments = ["train", "demo", "--grpo.num_generations=16", "--grpo.max_steps=10", "--policy=tiny", "--evaluation_samples=8"]
    assert main(arguments) == 0
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
    assert main(["sample", "runs/demo", "-n", "5", "--out=o.smi"]) == 0


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
        (["--reward=my_rewards.Constant", "--reward.value=2.5"], ["Constant"]),
        (["rewards.yaml"], ["validity", "Substructure", "length"]),
    ],
)
def test_every_way_to_name_rewards_runs_and_resumes(words: list[str], names: list[str]) -> None:
    spec = "reward:\n- validity  # bare\n- {class_path: Substructure, init_args: {smarts: CO}}\n- my_rewards.length\n"
    Path("rewards.yaml").write_text(spec)
    arguments = train(*words)
    if words == ["rewards.yaml"]:
        arguments = ["train", "rewards.yaml", *train()[2:]]
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
    assert main(["sample", "p", "-n", "30", "--out=o.smi", "--seed=3"]) == 0
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
    monkeypatch.setattr("discrete_grpo.runs.checkpoint.BUNDLED", ROOT / "discrete_grpo/bundled")
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


@pytest.mark.parametrize("several", [False, True])
def test_a_reward_that_cannot_be_made_is_one_line(several: bool, refuse: Refuse) -> None:
    spec = "{class_path: discrete_grpo.rewards.judge.Judge, init_args: {checkpoint: nobody}}"
    said = refuse(*train(f"--reward={[spec] if several else spec}".replace("'", "")))
    assert "reward: judge: 'nobody' is no checkpoint folder, run folder or bundled judge" in said
    assert "Namespace" not in said


def test_a_reward_that_does_not_fit_the_conditions_leaves_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [a for a in train() if not a.startswith("--reward")] + ["--reward=keeps_scaffold"]
    assert main(wrong) == 2
    said = capsys.readouterr().err
    assert "scaffold: a sample has no such condition" in said
    assert "continue with" not in said
    assert not Path("run/run.json").exists()


LEFT_BY_ANOTHER_RUN = ["evaluation.json", "metrics.jsonl", "samples.csv.gz", "ledger.sqlite", "policy", "checkpoints"]


@pytest.mark.parametrize("name", LEFT_BY_ANOTHER_RUN)
def test_results_of_another_run_are_not_taken_for_this_runs(name: str, refuse: Refuse) -> None:
    path = Path("run") / name
    path.mkdir(parents=True) if "." not in name else path.parent.mkdir()
    if "." in name:
        path.write_text('{"before": {"reward": 99.0}}')
    for arguments in (train(), ["search", "--policy=tiny", "--output_dir=run"], ["pretrain", *PRETRAIN, "--output_dir=run"]):
        said = refuse(*arguments)
        assert f"output_dir: run holds results of another run ({name}), expected a folder without them" in said
    assert [p.name for p in Path("run").iterdir()] == [name]
    with pytest.raises(ValueError, match="holds results of another run"):
        run_train(TrainRecipe("tiny", output_dir="run"))
    with pytest.raises(ValueError, match="holds results of another run"):
        run_search(SearchRecipe("tiny", output_dir="run"))


ENDS = """
import pathlib, sys
def length(samples, **columns):
    stop = pathlib.Path("sto" + "p")
    if stop.exists():
        left = int(stop.read_text())
        stop.write_text(str(left - 1))
        if left == 0:
            ACTION
    return [float(len(s or "")) for s in samples]
length.cached_as = None
"""


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("sys.exit(0)", "raised SystemExit: 0"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt:"),
        ("return {s: 1.0 for s in samples}", "returned a dict"),
        ("return [10**400] * len(samples)", "expected a finite number or None"),
        ('raise ValueError("\x1b[2J\x1b]0;owned\x07")', r"raised ValueError: \x1b[2J\x1b]0;owned\x07"),
    ],
)
def test_a_reward_that_would_end_the_program_leaves_a_run_that_resumes(
    action: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("ending.py").write_text(ENDS.replace("ACTION", action))
    sys.modules.pop("ending", None)
    Path("stop").write_text("2")  # the evaluation and one generation are scored
    arguments = [a for a in train() if not a.startswith("--reward")]
    assert main([*arguments, "--reward=ending.length"]) == 2
    (line,) = capsys.readouterr().err.strip().split("\n")[-1:]
    assert line.startswith("discrete-grpo: error: reward length: ")
    assert said in line
    assert line.endswith("; saved, continue with: discrete-grpo resume run")
    assert lines("run") == 1
    Path("stop").unlink()
    assert main(["resume", "run"]) == 0
    assert lines("run") == 3


def test_warnings_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = warnings.formatwarning

    def told(arguments: Any) -> None:
        print(warnings.formatwarning("reward \x1b[2J:\nlate", RuntimeWarning, "f.py", 1, ""))

    monkeypatch.setattr("discrete_grpo.cli.__main__._dispatch", told)
    assert main([]) == 0
    assert capsys.readouterr().out == "f.py:1: RuntimeWarning: reward \\x1b[2J:\nlate\n\n"
    assert warnings.formatwarning is before


def test_a_search_whose_reward_fails_keeps_what_was_scored(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ending.py").write_text(ENDS.replace("ACTION", "sys.exit(0)"))
    sys.modules.pop("ending", None)
    options = ["--policy=tiny", "--output_dir=run", "--rounds=2", "--population=4", "--children=2", "--reward=ending.length"]
    Path("stop").write_text("0")
    assert main(["search", *options]) == 2
    assert "continue with" not in capsys.readouterr().err
    assert not Path("run").exists()  # nothing was scored
    Path("stop").write_text("1")
    assert main(["search", *options]) == 2
    assert "reward length: raised SystemExit: 0; saved, continue with: discrete-grpo resume run" in capsys.readouterr().err
    assert main(["resume", "run"]) == 0
    assert Path("run/search.json").is_file()


def contained(given: Any, resolved: Any) -> bool:
    """Whether every key of ``given``, at any depth, has its value in ``resolved``, which may say more."""
    if isinstance(given, dict):
        return isinstance(resolved, dict) and all(k in resolved and contained(v, resolved[k]) for k, v in given.items())
    if isinstance(given, list):
        return len(given) == len(resolved) and all(contained(a, b) for a, b in zip(given, resolved, strict=True))
    return bool(given == resolved)


# -- stopped and killed


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "discrete_grpo.cli", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)


def lines(folder: str) -> int:
    path = Path(folder) / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


LONG = [*GRPO, "--grpo.max_steps=20", "--grpo.ema_decay=0.9", "--grpo.beta=0.01", "--evaluation_samples=8"]


def long_train(out: str, *more: str) -> list[str]:
    return ["train", "demo", "--policy=tiny", f"--output_dir={out}", *LONG, *more]


@pytest.fixture(scope="session")
def unbroken(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """What the long run ends with when nothing happens to it; how often it saves must not matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("unbroken"))
        shutil.copytree(tiny, "tiny")
        process = start(*long_train("run", "--grpo.save_steps=1000"))
        said = process.communicate(timeout=240)
        assert process.returncode == 0, said
        return outcome("run")


@pytest.mark.slow
def test_ctrl_c_saves_and_resume_ends_with_the_same_bits(unbroken: tuple[Any, ...]) -> None:
    process = start(*long_train("run", "--grpo.save_steps=1000"))
    wait_for(lambda: lines("run") > 0, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in said
    done = lines("run")
    assert 0 < done < 20
    last = said.rstrip("\n").split("\n")[-1]
    assert last == f"discrete-grpo: stopped at update {done} of 20; saved, continue with: discrete-grpo resume run"
    assert (Path("run/checkpoints") / f"step-{done:08d}").is_dir()
    assert main(["resume", "run"]) == 0
    assert outcome("run") == unbroken


def test_ctrl_c_outside_the_loop_says_how_to_resume(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("discrete_grpo.recipes.train.sample_policy", stopped)
        assert main(train()) == 130
    assert "stopped; continue with: discrete-grpo resume run" in capsys.readouterr().err
    assert main(["resume", "run"]) == 0
    assert main(train(out="whole")) == 0
    assert outcome("run") == outcome("whole")


@pytest.mark.slow
def test_sigkill_at_random_moments_of_training(unbroken: tuple[Any, ...]) -> None:
    chance = random.Random(0)

    def writing() -> bool:  # in the middle of a checkpoint
        return any(Path("run/checkpoints").glob(".step-*.tmp"))

    moments: list[Callable[[], bool]] = [
        lambda: lines("run") >= chance.randrange(1, 5),
        writing,
        lambda: lines("run") > 8 and writing(),
    ]
    for k, moment in enumerate(moments):
        process = start(*(long_train("run") if k == 0 else ["resume", "run"]))
        wait_for(moment, process)
        time.sleep(chance.random() * 0.01 * (k == 0))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert lines("run") < 20
    assert main(["resume", "run"]) == 0
    assert outcome("run") == unbroken
    assert not list(Path("run/checkpoints").glob(".*"))


@pytest.mark.slow
def test_a_pretraining_that_is_killed_and_stopped() -> None:
    def command(out: str) -> list[str]:
        more = ["--pretrain.max_steps=40", "--pretrain.save_steps=4", "--pretrain.log_steps=3", "--evaluation_samples=4"]
        return ["pretrain", *PRETRAIN, *more, f"--output_dir={out}"]

    assert main(command("whole")) == 0
    process = start(*command("run"))
    wait_for(lambda: lines("run") > 3 and any(Path("run/checkpoints").glob("step-*")), process)
    process.kill()
    process.communicate()
    assert lines("run") < lines("whole")
    process = start("resume", "run")
    before = lines("run")
    wait_for(lambda: lines("run") > before, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "saved, continue with: discrete-grpo resume run" in said
    assert main(["resume", "run"]) == 0
    assert outcome("run") == outcome("whole")


def test_one_thread() -> None:
    assert torch.get_num_threads() == 1  # same bits in the subprocesses and here


@pytest.mark.parametrize("content", ["[1]", "null", '{"command": ["train"]}', '{"command": {"a": 1}}', "[" * 200_000])
def test_a_run_json_of_another_form_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    assert main(["resume", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    unreadable = "command" not in content
    told = f"run: {tmp_path / 'run.json'} is damaged (" if unreadable else f"run: {tmp_path} is no run folder"
    assert said.startswith(f"discrete-grpo: error: {told}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("metrics.jsonl", "is of a run made from Python, expected one of a command; call it again with resume=True"),
        ("benchmark.json", "is of a benchmark, expected one of a run; to go on, give the same command again"),
        ("notes.txt", "is no run folder of a command such as 'discrete-grpo train'"),
    ],
)
def test_what_no_command_can_resume_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str) -> None:
    (tmp_path / name).write_text("{}\n")
    assert main(["resume", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"discrete-grpo: error: run: {tmp_path} {said}\n"
