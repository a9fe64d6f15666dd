"""Files in the working folder that are called like libraries: no command runs them, and a user's own reward is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from discrete_grpo.cli import main
from discrete_grpo.datasets.molecules import dataset_from_smiles, statistics
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.molecules import molecule_policy
from discrete_grpo.runs.checkpoint import save

ROOT = Path(__file__).parents[2]
INSTALLED = ["networkx", "torch", "yaml", "rdkit", "rich", "json", "numpy", "scipy", "jsonargparse", "safetensors", "csv", "typing"]
MISSING = ["graph_tool", "wandb", "ray", "vina", "triton", "deepspeed", "my_hidden"]  # imported where there is one
MARK = "import pathlib, sys\npathlib.Path({marks!r}, __name__).touch()\n"
REWARD = "def length(samples, **columns): return [float(len(s or '')) for s in samples]\n"
SMALL = [
    "--evaluation_samples=4",
    "--grpo.num_generations=2",
    "--grpo.generation_batch_size=4",
    "--grpo.max_steps=1",
]
CONSOLE = "import sys; from discrete_grpo.cli import main; sys.exit(main())"
BOTH = """
import json, sys
from discrete_grpo.cli import main
before, codes = list(sys.path), []
for words in json.loads(sys.argv[1]):
    sys.path[:] = before  # the second command, too, has to find the reward
    sys.modules.pop("my_rewards", None)
    codes.append(main(words))
print(json.dumps(codes))
"""


def plant(folder: Path, marks: Path) -> None:
    for name in INSTALLED + MISSING:
        (folder / f"{name}.py").write_text(MARK.format(marks=str(marks)))
    (folder / "rdkit.py").rename(folder / "__init__.py")
    (folder / "rdkit").mkdir()
    (folder / "__init__.py").rename(folder / "rdkit/__init__.py")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with planted files in it, and the marks that they leave."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "marks").mkdir()
    stats = statistics(dataset_from_smiles(["CCO", "CN", "C"]))
    sizes = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4, walk_length=2)
    save(folder / "policy", molecule_policy(stats, sizes, DiffusionOptions(num_steps=3)), metadata={"statistics": stats.to_json()})
    (folder / "run.json").write_text('{"command": "pretrain"}')
    (folder / "config.yaml").write_text("nosuch: 1\n")
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    (folder / "good.smi").write_text("CCO\nCC\n")
    (folder / "my_rewards.py").write_text(REWARD)
    plant(folder, folder / "marks")
    return folder


def start(run: Path, way: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command inside the folder, as the console script does or as ``python -m``, or both of two in one console script."""
    modules = {"module": "discrete_grpo.cli", "package": "discrete_grpo"}
    how = ["-m", modules[way]] if way in modules else [str(script(run, BOTH if way == "both" else CONSOLE))]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *how, *arguments]
    return subprocess.run(command, cwd=run, env=environment, capture_output=True, text=True, timeout=300, check=False)


def script(run: Path, text: str) -> Path:
    """What pip makes of the entry point."""
    path = run.parent / "bin" / "discrete-grpo"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def ran(run: Path) -> list[str]:
    return sorted(mark.name for mark in (run / "marks").iterdir())


@pytest.mark.parametrize(
    ("way", "arguments"),
    [
        ("script", "list"),
        ("module", "--version"),
        ("module", "--help"),
        ("module", "list"),
        ("module", "train -h"),
        ("package", "list"),
    ],
)
def test_no_command_runs_a_planted_file(run: Path, way: str, arguments: str) -> None:
    done = start(run, way, *arguments.split())
    assert ran(run) == []
    assert done.returncode == 0, done.stderr


Ended = tuple[int, dict[str, tuple[int, list[str], list[int]]]]
"""Number of other entries of ``sys.path``; per command the exit code, the planted files that ran, and the places of the folder."""
COMMANDS = {
    "report .": 0,
    "evaluate good.smi": 0,
    "sample . -n 2 --out=o.smi": 0,
    "import policy --from=defog --out=p": 2,
    "pretrain --data=nosuch.smi": 2,
    "resume .": 2,
    f"train demo --policy=policy --output_dir=new {' '.join(SMALL)}": 0,
    "train demo --reward=nowhere.f": 2,
}
"""From those that import little to those that import much, and their exit codes."""
ONE_AFTER_THE_OTHER = """
import sys
del sys.path[0]  # of this text itself; what follows adds it anew, as python -m does
import json, os, runpy
folder, before, found = os.getcwd(), list(sys.path), {}
for command in json.loads(sys.argv[1]):
    sys.path[:], sys.argv = [folder, *before], ["discrete-grpo", *command.split()]
    sys.modules.pop("my_rewards", None)
    [sys.modules.pop(name, None) for name in ("discrete_grpo.cli.__main__", "discrete_grpo.cli.working_folder")]
    try:
        runpy.run_module("discrete_grpo.cli", run_name="__main__", alter_sys=True)
    except SystemExit as done:
        found[command] = [done.code, sorted(os.listdir("marks")), [sys.path.index(p) for p in sys.path if p in ("", folder)]]
        [os.remove("marks/" + name) for name in os.listdir("marks")]
print(json.dumps([len(before), found]))
"""


def one_after_the_other(run: Path, *commands: str) -> Ended:
    """Run commands inside the folder in one process, each as ``python -m``.

    Returns:
        the number of entries of ``sys.path`` besides the working folder, and of each command the exit code, the planted files that
        it ran, and the places of the working folder on ``sys.path`` when it ended.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(commands)]
    done = subprocess.run(command, cwd=run, env=environment, capture_output=True, text=True, timeout=300, check=True)
    others, found = json.loads(done.stdout.splitlines()[-1])
    return others, {name: (code, ran, places) for name, (code, ran, places) in found.items()}


@pytest.fixture(scope="module")
def ended(run: Path) -> Ended:
    return one_after_the_other(run, *COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_after_others_runs_a_planted_file(ended: Ended, command: str) -> None:
    """In one process, as the imports take most of the time: also what is imported already must not be looked for in the folder."""
    others, found = ended
    appended = [others] if "--reward=" in command else []
    assert found[command] == (COMMANDS[command], [], appended)


@pytest.mark.slow
def test_a_reward_in_the_working_folder_is_found_and_no_library_there_is_run(run: Path, tmp_path: Path) -> None:
    for name in MISSING:
        (run / f"{name}.py").unlink(missing_ok=True)
    new = str(tmp_path / "new")
    train = ["train", "demo", "--policy=policy", *SMALL, "--reward=my_rewards.length", f"--output_dir={new}"]
    done = start(run, "both", json.dumps([train, ["resume", new]]))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [0, 0]
    assert ran(run) == []


@pytest.mark.parametrize(("policy", "added"), [("my_module:MyPolicy", True), ("qm9-small", False), ("C:/runs/demo", False)])
def test_the_working_folder_is_searched_for_a_policy_named_by_its_class(
    policy: str, added: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    main(["train", "demo", f"--policy={policy}", "--output_dir= "])
    assert sys.path == before + [str(tmp_path)] * added


def test_the_planted_files_would_run(run: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    subprocess.run([sys.executable, "-c", "import yaml, rdkit"], cwd=run, env=environment, check=True, timeout=60)
    assert ran(run) == ["rdkit", "yaml"]
    for mark in (run / "marks").iterdir():
        mark.unlink()


@pytest.mark.parametrize("arguments", [["--version"], ["sample", "-h"]])
def test_a_checkout_that_is_not_installed_runs_from_its_own_folder(arguments: list[str]) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    command = [sys.executable, "-m", "discrete_grpo.cli", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
