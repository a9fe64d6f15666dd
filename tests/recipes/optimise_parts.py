"""Short runs of ``optimise`` with rewards that count letters, and what their folders hold."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from discrete_grpo import load_policy
from discrete_grpo.recipes.optimise import Optimised, optimise
from discrete_grpo.runs.recorder import read_metrics
from tests.benchmarking.test_methods import chains

SMALL: dict[str, Any] = {
    "draws": 24, "children": 8, "take": 10, "unscreened": 3, "take_children": 4, "passes": 2, "batch_size": 8, "plateau": 60,
    "memory_size": 40,
}  # fmt: skip


def oxygens(samples: Sequence[str], **columns: Any) -> list[float]:
    return [text.upper().count("O") / 8 for text in samples]


def carbons(samples: Sequence[str], **columns: Any) -> list[float]:
    return [text.upper().count("C") / 100 for text in samples]


def run(folder: Path, reward: Any = oxygens, budget: int = 120, **options: Any) -> Optimised:
    given: dict[str, Any] = {"seed": 3, "save_rounds": 2, "settings": SMALL} | options
    return optimise(chains(), reward, output_dir=folder, max_oracle_calls=budget, **given)


def files(folder: Path) -> dict[str, Any]:
    """Files and metrics of a run that do not depend on the clock."""
    lines = [{name: value for name, value in line.items() if name != "step_time"} for line in read_metrics(folder)]
    texts = {name: gzip.decompress((folder / name).read_bytes()) for name in ("samples.csv.gz", "best.csv.gz")}
    weights = [p.tolist() for p in load_policy(folder).parameters()]
    return {"metrics": lines, **texts, "told": json.loads((folder / "optimise.json").read_text()), "weights": weights}
