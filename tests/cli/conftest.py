"""A small policy, and a folder for every test of the command line that holds it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from discrete_grpo.datasets.enumeration import load_enumerated
from discrete_grpo.datasets.molecules import statistics
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.molecules import molecule_policy
from discrete_grpo.runs.checkpoint import save
from tests.command_line import REWARDS, Refuse


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of an untrained policy over the enumerated molecules of at most 4 atoms, 5 steps."""
    stats = statistics(load_enumerated(4))
    sizes = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4, walk_length=2)
    folder = tmp_path_factory.mktemp("bundled") / "qm9-small"
    return save(folder, molecule_policy(stats, sizes, DiffusionOptions(num_steps=5)), metadata={"statistics": stats.to_json()})


@pytest.fixture
def here(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a folder of its own that holds the policy as ``tiny``, user rewards and some molecule files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("my_rewards", None)
    shutil.copytree(tiny, tmp_path / "tiny")
    monkeypatch.setattr("discrete_grpo.runs.checkpoint_names.BUNDLED", tiny.parent)  # a small one under the bundled name
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    (tmp_path / "broken_rewards.py").write_text("def f(:\n")
    (tmp_path / "ending_rewards.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "good.smi").write_text("CCO\nCC\nCCC\n")
    (tmp_path / "bad.smi").write_text("CCO\nCC\nnonsense((\nC\n")
    (tmp_path / "bad.g6").write_text("nonsense((\n!!\n")
    (tmp_path / "bad.sdf").write_text("CCO\nCC\n")
    (tmp_path / "empty.smi").write_text("")
    (tmp_path / "binary.smi").write_bytes(b"\x00\xff\xfe")
    (tmp_path / "plain.smi.gz").write_text("CCO\n")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Refuse:
    return Refuse(capsys)
