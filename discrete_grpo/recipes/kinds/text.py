"""Text as a kind of samples, and samples of any kind that can be written as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from discrete_grpo.datasets.text_files import header_cells, suffix_of, table_rows, text_lines
from discrete_grpo.metrics import text as metrics
from discrete_grpo.recipes.families import Family, FileOptions
from discrete_grpo.recipes.reward_kinds import check_judges, check_kind

__all__ = ["OTHER", "TEXT"]


def _check_rewards(policy: Any, rewards: Sequence[Any]) -> None:
    check_kind(rewards, "text", "molecules")
    check_judges(policy, rewards)


def _holds(path: Path, first: str) -> bool:
    """Whether a file is a table with a column ``text``."""
    return suffix_of(path) == ".csv" and "text" in header_cells(first)


def _read(file: str, options: FileOptions) -> tuple[Sequence[Any], Mapping[str, Sequence[Any]]]:
    """One text per line, or the column ``text`` or ``sample`` of a csv file, where an empty cell is an invalid sample.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds no sample, or a table has no such column.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"file: {file} does not exist")
    lines = list(text_lines(path, options.max_bytes, argument="file"))
    samples: list[str | None] = [text for line in lines if (text := line.rstrip("\r\n"))]
    if suffix_of(path) == ".csv":
        name, rows = table_rows(lines, "text", "sample")
        if name is None:
            raise ValueError(f"file: {file} has no row, or no column 'text' or 'sample', expected a table of samples")
        samples = [row[name] or None for row in rows]
    if not samples:
        raise ValueError(f"file: {file} is empty, expected one sample per line")
    return samples, {}


def _compare(samples: Sequence[Any], columns: Mapping[str, Sequence[Any]], options: FileOptions) -> Mapping[str, float]:
    return metrics.evaluate(_texts(samples))


def _texts(samples: Sequence[Any]) -> list[str | None]:
    return [None if sample is None else str(sample) for sample in samples]


def _sample_metrics(samples: Sequence[Any]) -> Mapping[str, float]:
    return metrics.sample_metrics(_texts(samples))


def _evaluate(samples: Sequence[Any]) -> Mapping[str, float]:
    """The number of samples, the share of them that is not None, and the share of different ones."""
    return {"num_samples": float(len(samples))} | dict(_sample_metrics(samples))


def _compare_any(samples: Sequence[Any], columns: Mapping[str, Sequence[Any]], options: FileOptions) -> Mapping[str, float]:
    return _evaluate(samples)


TEXT = Family(
    name="text",
    column="text",
    lines=(".txt", ".smi", ".smiles"),
    sample_metrics=metrics.sample_metrics,
    evaluate=metrics.evaluate,
    check_rewards=_check_rewards,
    holds=_holds,
    read=_read,
    compare=_compare,
)
OTHER = Family(
    name="samples", column="sample", sample_metrics=_sample_metrics, evaluate=_evaluate, read=_read, compare=_compare_any
)
"""Samples of which nothing is known but their text."""
