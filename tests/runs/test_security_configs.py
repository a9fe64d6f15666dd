"""Configurations of strangers: tags of YAML and names of functions are refused, and a run folder can be looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from discrete_grpo.cli import main
from discrete_grpo.runs.checkpoint import Checkpoints
from tests.toys import tiny_policy

TAGS = [
    "!!python/object/apply:os.mkdir [{canary}]",
    "!!python/object/apply:os.system ['mkdir {canary}']",
    "!!python/object/apply:subprocess.check_call [[mkdir, {canary}]]",
    "!!python/object/new:subprocess.Popen [[mkdir, {canary}]]",
    "!!python/object/apply:builtins.eval [\"__import__('os').mkdir('{canary}')\"]",
    "!!python/object/new:tuple [!!python/object/apply:os.mkdir [{canary}]]",
    "!!python/name:os.system",
    "!!python/module:os",
]


@pytest.mark.parametrize(
    ("tag", "field"),
    [*((tag, "reward") for tag in TAGS), *((TAGS[0], field) for field in ("policy", "output_dir", "nowhere", "grpo"))],
)
def test_tags_in_a_configuration(
    tmp_path: Path, canary: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tag: str, field: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"{field}: {tag.format(canary=canary)}\n"
    Path("evil.yaml").write_text(text)
    assert "python/" in refused("train", "evil.yaml", *([] if field == "output_dir" else ["--output_dir=run"]))
    assert not Path("run").exists()
    Path("run").mkdir()
    Path("run/run.json").write_text('{"command": "train"}')
    Path("run/config.yaml").write_text(text)
    assert "python/" in refused("resume", "run")


def test_the_tags_would_run(tmp_path: Path) -> None:
    yaml.unsafe_load(f"reward: {TAGS[0].format(canary=tmp_path / 'ran')}")
    assert (tmp_path / "ran").is_dir()


def test_a_strangers_run_folder_can_be_looked_at(tmp_path: Path, canary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its config.yaml names code and is run by ``resume`` only."""
    run = tmp_path / "run"
    Checkpoints(run).save(1, tiny_policy(), metadata={"kind": "graphs", "shape": "tree"}, training={})
    (run / "run.json").write_text('{"command": "train"}')
    (run / "config.yaml").write_text(f"reward: {TAGS[1].format(canary=canary)}\npolicy: <script>alert(1)</script>\n")
    (run / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    assert main(["report", str(run)]) == 0
    assert "<script>alert" not in (run / "report.html").read_text()
    capsys.readouterr()


def test_a_config_that_calls_a_function_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    canary, config = tmp_path / "canary", tmp_path / "config.yaml"
    for path, argument in (("os.system", "command"), ("subprocess.getoutput", "cmd")):
        config.write_text(f"reward:\n  class_path: {path}\n  init_args:\n    {argument}: touch {canary}\n")
        assert main(["train", f"--config={config}", f"--output_dir={tmp_path / 'run'}"]) == 2
        assert f"reward: {path} is a function, which takes no arguments here" in capsys.readouterr().err
        assert not canary.exists()
