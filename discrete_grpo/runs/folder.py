"""Names of the files of a run folder, and the refusal of a folder that holds another run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "BENCHMARK",
    "BEST",
    "CONFIG",
    "EVALUATION",
    "EVALUATION_TABLES",
    "FAILURES",
    "LEDGER",
    "MEMORIES",
    "METRICS",
    "OPTIMISED",
    "PARTS",
    "REFERENCE",
    "REPORT",
    "REWARDS",
    "RUN",
    "SAMPLES",
    "SCORED",
    "SEARCH",
    "SETTINGS",
    "check_free",
    "check_unused",
    "is_run",
]

RUN = "run.json"
"""The command that made the folder; a run made from Python has none."""
CONFIG = "config.yaml"
"""The options of the command, from which a run is resumed."""
SETTINGS = "settings.json"
"""The settings of a run by name, as of the last start or resume."""
REWARDS = "rewards.json"
"""The rewards of a run by name, each with the identity of its code when the run began."""
MEMORIES = "memories.pt"
"""The memories of stateful rewards at the beginning of the run."""
METRICS = "metrics.jsonl"
SAMPLES = "samples.csv.gz"
FAILURES = "failures.jsonl"
"""The samples that a reward could not score."""
LEDGER = "ledger.sqlite"
EVALUATION = "evaluation.json"
EVALUATION_TABLES = {"before": "evaluation_before.csv.gz", "after": "evaluation_after.csv.gz"}
"""Samples of the evaluations before and after training."""
SCORED = "scored.csv.gz"
"""The scored samples that were given to off-line updates."""
BEST = "best.csv.gz"
"""The best samples of a search or an optimisation, with those of a warm start."""
SEARCH = "search.json"
OPTIMISED = "optimise.json"
BENCHMARK = "benchmark.json"
REFERENCE = "reference"
"""Folder of the policy that an optimisation began with."""
PARTS = ("offline", "autoencoder", "classifier")
"""Folders of the parts of a run that have checkpoints of their own."""
REPORT = "report.html"

_RESULTS = (
    *(METRICS, SAMPLES, EVALUATION, *EVALUATION_TABLES.values(), FAILURES, "checkpoints", "offline", SCORED, "policy", LEDGER),
    *(SEARCH, OPTIMISED, BENCHMARK, REFERENCE, BEST, REPORT),
)


def is_run(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is that of a run, which a command or a call from Python made."""
    return any((Path(folder) / name).is_file() for name in (RUN, METRICS))


def check_unused(folder: str | os.PathLike[str], own: Sequence[str] = ()) -> None:
    """Refuse a folder with results of another run, which would be mixed with those of a new run.

    Args:
        folder: the folder, which need not exist.
        own: names of files that the caller checks itself.

    Raises:
        ValueError: naming them.
    """
    found = [name for name in _RESULTS if name not in own and (Path(folder) / name).exists()]
    if found:
        wanted = "expected a folder without them; name another folder or remove these, or go on with it (resume)"
        raise ValueError(f"output_dir: {os.fspath(folder)} holds results of another run ({', '.join(found)}), {wanted}")


def check_free(file: Path, content: bytes) -> None:
    """Refuse to overwrite a file that has other content, which may be the user's own.

    Raises:
        ValueError: naming it.
    """
    if file.exists() and not (file.is_file() and file.read_bytes() == content):
        wanted = "expected a folder without it; name another folder or move the file"
        raise ValueError(f"output_dir: {file.parent} holds a file {file.name}, which would be overwritten, {wanted}")
