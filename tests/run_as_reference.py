"""A run folder as the reference of its samples, which is the same for graphs and directed graphs."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from discrete_grpo.recipes.evaluate import evaluate_file
from discrete_grpo.recipes.families import FileOptions
from discrete_grpo.runs.recorder import read_evaluation


def run_is_reference(run: Path, data: str, folder: Path) -> None:
    """Check that a run gives the numbers of its own evaluation, and is refused where its file of data is gone.

    Args:
        run: folder of a pretraining on ``set.graphml``.
        data: the same graphs, without the parts of the run.
        folder: an empty folder.
    """
    table = str(run / "evaluation_after.csv.gz")
    wanted = {name: math.nan if x is None else x for name, x in read_evaluation(run)["after"].items()}
    assert wanted.pop("test_loss") > 0
    for reference in (run, run / "policy"):
        assert evaluate_file(table, FileOptions(reference=str(reference))) == pytest.approx(wanted, nan_ok=True)
    assert evaluate_file(table, FileOptions(reference=data)) != pytest.approx(wanted, nan_ok=True)
    assert evaluate_file(table, FileOptions(reference=str(run), shape="connected"))["valid"] >= wanted["valid"]
    shutil.copytree(run, folder / "run")
    config = folder / "run/policy/config.json"
    config.write_text(config.read_text().replace("set.graphml", "gone.graphml"))
    with pytest.raises(ValueError, match=r"^reference: .*run' is a run whose training graphs are not here"):
        evaluate_file(table, FileOptions(reference=str(folder / "run")))
