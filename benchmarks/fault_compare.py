"""Comparison of the results of two runs of the fault drill."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from discrete_grpo.rewards.ledger import molecule_key
from discrete_grpo.runs.recorder import METRICS, SAMPLES

__all__ = ["counted", "differences", "lost", "metrics", "molecules", "table", "unknown"]

TABLES = ("evaluation_before.csv.gz", SAMPLES, "evaluation_after.csv.gz")
FILES = ("policy/model.safetensors", *TABLES, "evaluation.json")
CALLS = "SELECT key FROM calls ORDER BY turn, rank, position"
SCORES = "SELECT reward, key, value FROM scores ORDER BY reward, key"


def table(path: Path) -> list[dict[str, str]]:
    """Rows of a compressed table; none if there is no such file."""
    if not path.is_file():
        return []
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Every sample of a run, of its evaluations too."""
    return [row for name in TABLES for row in table(folder / name)]


def molecules(folder: Path) -> set[str]:
    """The distinct canonical SMILES of a run: what its ledger must have counted."""
    return {key for row in rows_of(folder) if (key := molecule_key(row["sample"])) is not None}


def ledger(folder: Path, query: str = CALLS) -> list[tuple[Any, ...]]:
    """Read the calls and scores of a run's ledger."""
    path = folder / "ledger.sqlite"
    if not path.is_file():
        return []
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def counted(folder: Path) -> set[str]:
    """The samples that a run's ledger has counted."""
    return {row[0] for row in ledger(folder)}


def unknown(folder: Path) -> set[str]:
    """The valid samples without a reward."""
    return {row["sample"] for row in rows_of(folder) if not row["reward"] and molecule_key(row["sample"]) is not None}


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The logged lines, but for the clock and the number of failures (which only a pool logs)."""
    path = folder / METRICS
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    left_out = lambda name: name == "step_time" or name.endswith("/failed")  # noqa: E731
    return [{name: value for name, value in line.items() if not left_out(name)} for line in lines]


def differences(folder: Path, undisturbed: Path) -> list[str]:
    """Names of what is not as in the undisturbed run, byte for byte; of a ledger that is not the run's samples too."""
    found = [name for name in FILES if not _same(folder / name, undisturbed / name)]
    found += [METRICS] if metrics(folder) != metrics(undisturbed) else []
    same = all(ledger(folder, query) == ledger(undisturbed, query) for query in (CALLS, SCORES))
    return found if same and counted(folder) == molecules(folder) else [*found, "ledger.sqlite"]


def _same(path: Path, other: Path) -> bool:
    return path.is_file() and path.read_bytes() == other.read_bytes()


def lost(folder: Path, undisturbed: Path, named: Sequence[str] = ()) -> int:
    """Samples that the undisturbed run has and this one has not, or not scored, or not counted; without the named ones."""
    missing = sum(max(0, len(table(undisturbed / name)) - len(table(folder / name))) for name in TABLES)
    return missing + len(unknown(folder) - unknown(undisturbed) - set(named)) + len(molecules(folder) - counted(folder))
