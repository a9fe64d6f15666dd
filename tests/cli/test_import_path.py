"""Files in the working folder that are called like libraries: no command runs them, and a user's own reward is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from discrete_grpo.cli import main
from discrete_grpo.datasets.molecules import dataset_from_smiles, statistics
from discrete_grpo.recipes.diffusion import DiffusionOptions
from discrete_grpo.recipes.molecules import NetworkSizes, molecule_policy
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
    """Run a command inside the folder, as the console script does or as ``python -m``."""
    how = ["-m", "discrete_grpo.cli"] if way == "module" else [str(script(run))]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *how, *arguments]
    return subprocess.run(command, cwd=run, env=environment, capture_output=True, text=True, timeout=300, check=False)


def script(run: Path) -> Path:
    """What pip makes of the entry point."""
    path = run.parent / "bin" / "discrete-grpo"
    path.parent.mkdir(exist_ok=True)
    path.write_text(CONSOLE)
    return path


def ran(run: Path) -> list[str]:
    return sorted(mark.name for mark in (run / "marks").iterdir())


@pytest.mark.parametrize(
    ("way", "arguments", "code"),
    [
        ("script", "list", 0),
        ("module", "--version", 0),
        ("module", "--help", 0),
        ("module", "list", 0),
        ("module", "sample . -n 2 --out=o.smi", 0),
        ("module", "evaluate good.smi", 0),
        ("module", "report .", 0),
        ("module", "import policy --from=defog --out=p", 2),
        ("module", "resume .", 2),
        ("module", "train -h", 0),
        ("module", "pretrain --data=nosuch.smi", 2),
        ("module", "train demo --reward=nowhere.f", 2),
        ("module", f"train demo --policy=policy --output_dir=new {' '.join(SMALL)}", 0),
    ],
)
def test_no_command_runs_a_planted_file(run: Path, way: str, arguments: str, code: int) -> None:
    done = start(run, way, *arguments.split())
    assert ran(run) == []
    assert done.returncode == code, done.stderr


def test_a_reward_in_the_working_folder_is_found_and_no_library_there_is_run(run: Path, tmp_path: Path) -> None:
    for name in MISSING:
        (run / f"{name}.py").unlink(missing_ok=True)
    new = str(tmp_path / "new")
    done = start(run, "script", "train", "demo", "--policy=policy", *SMALL, "--reward=my_rewards.length", f"--output_dir={new}")
    assert done.returncode == 0, done.stderr
    assert start(run, "module", "resume", new).returncode == 0
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
