"""What version 1 of the checkpoint format wrote, under the module names of that time, loads, samples the same and resumes.

``fixtures/format1.tar.xz`` was made before the modules moved: an exported policy (``pre``), two run folders killed after
their third update in the middle of a generation, what the runs gave when they were not killed, and samples of every policy.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import importlib.util
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.cli import main
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.recipes.output_files import as_text
from discrete_grpo.recipes.sample import sample_policy
from discrete_grpo.runs.checkpoint import CheckpointError, load_metadata
from discrete_grpo.runs.serialization import OLD_MODULES, REMOVED, build, current_path, describe

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "format1.tar.xz"
GRAPHS = ("qm9-small", "tree-16", "planar-16")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("policy", [*GRAPHS, "smiles-zinc", "fill-in", "pre"])
def test_policies_draw_what_they_drew(policy: str, old: Path, tmp_path: Path) -> None:
    name = str(old / policy) if policy == "pre" else policy
    more = ["--num_steps=8"] if policy in GRAPHS else []
    more += [f"--columns={old / 'masked.jsonl'}"] if policy == "fill-in" else []
    assert main(["sample", name, "-n", "6", "--seed=7", *more, f"--out={tmp_path / 'samples.csv'}"]) == 0
    found, wanted = ((folder / file).read_text() for folder, file in ((tmp_path, "samples.csv"), (old, f"samples/{policy}.csv")))
    assert rows(found) == rows(wanted)


def test_digits_draw_what_they_drew_without_a_label(old: Path) -> None:
    policy = load_policy("digits")
    with pytest.raises(ValueError, match="label: None, expected one"):
        policy.check_condition({})  # that version drew without a label, which the policy never saw in training
    samples, _ = sample_policy(policy, 6, seed=7)
    assert as_text(samples) == [row["image"] for row in rows((old / "samples" / "digits.csv").read_text())]


@pytest.mark.parametrize(("run", "whole"), [("killed", "expected"), ("killed2", "expected2")])
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(
    run: str, whole: str, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(old)  # the run names its policy by the relative path "pre"
    assert main(["resume", run]) == 0
    with gzip.open(old / run / "samples.csv.gz", "rt") as file:
        drawn, before = rows(file.read()), rows((old / whole / "samples.csv").read_text())
    assert len(drawn) == len(before)
    for now, then in zip(drawn, before, strict=True):  # processors round differently
        assert float(now.pop("advantage")) == pytest.approx(float(then.pop("advantage")), rel=1e-9)
        assert now == then
    found, wanted = (lines(old / name / "metrics.jsonl") for name in (run, whole))
    assert len(found) == len(wanted) == 8
    for now, then in zip(found, wanted, strict=True):  # processors round differently
        sizes = [now.pop(name) for name in ("size/min", "size/mean", "size/max") if name in now]  # since then
        assert sizes == sorted(sizes)
        assert now == pytest.approx(then, rel=1e-4, abs=1e-7, nan_ok=True)


def lines(path: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: float("nan") if v is None else v for k, v in line.items() if k != "step_time"} for line in read]


# -- each class by itself


CLASSES = json.loads((Path(__file__).parents[1] / "fixtures" / "format1_classes.json").read_text())
"""Objects as checkpoints of format 1 describe them, one per class that still exists, under the names of its time."""
NEEDS = {"HuggingFaceLM": "transformers", "SelfiesDecoder": "selfies", "SubwordTokenizer": "tokenizers"}


def class_paths(described: Any) -> list[str]:
    if isinstance(described, list):
        return [path for value in described for path in class_paths(value)]
    if not isinstance(described, dict):
        return []
    own = [described["class_path"]] if "class_path" in described else []
    return own + [path for value in described.values() for path in class_paths(value)]


@pytest.mark.parametrize("spec", CLASSES, ids=lambda spec: spec["class_path"].removeprefix("discrete_grpo."))
def test_every_class_of_format_1_is_built_and_described_under_its_path_of_today(spec: dict[str, Any]) -> None:
    name = spec["class_path"].rpartition(".")[2]
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    made = build(spec)
    again = describe(made)
    assert type(made).__name__ == name
    assert again["class_path"] == current_path(spec["class_path"]) == f"{type(made).__module__}.{name}"
    assert {current_path(path) for path in class_paths(spec)} <= set(class_paths(again))
    for path in class_paths(again):
        assert current_path(path) == path  # nothing of today is taken for a class of format 1
    assert describe(build(again)) == again


@pytest.mark.parametrize("path", [*REMOVED, "discrete_grpo.decoders.EdgeListDecoder"])
def test_a_removed_class_is_refused_by_its_name_in_one_line(path: str) -> None:
    module, _, name = current_path(path).rpartition(".")
    assert not hasattr(importlib.import_module(module), name)
    with pytest.raises(CheckpointError, match=f"{name}' cannot be built: {name} ") as caught:
        build({"class_path": path, "init_args": {}})
    assert "\n" not in str(caught.value)


def test_the_table_of_old_modules_is_used_up() -> None:
    named = {path.rpartition(".")[0].partition(".")[2] for path in class_paths(CLASSES)}
    assert set(OLD_MODULES) <= named, "an entry that no class of format 1 needs"
    for module in OLD_MODULES.values():
        assert importlib.util.find_spec(f"discrete_grpo.{module}") is not None


@pytest.mark.parametrize("version", [1, 2])
def test_format_is_read(version: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"format": version, "policy": {}, "metadata": {"kind": "x"}}))
    assert load_metadata(tmp_path) == {"kind": "x"}


@pytest.mark.parametrize("version", [0, 3, "2", None, True, 1.0])
def test_another_format_is_refused_in_one_line(version: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"format": version, "policy": {}, "metadata": {}}))
    with pytest.raises(CheckpointError, match=f"format {re.escape(repr(version))}, expected 1 or 2$") as caught:
        load_metadata(tmp_path)
    assert "\n" not in str(caught.value)
