"""Evaluating samples of any family: a list of them, or a file."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from discrete_grpo.datasets.text_files import text_lines
from discrete_grpo.recipes.families import KINDS, Family, FileOptions
from discrete_grpo.recipes.sample import output_path
from discrete_grpo.runs.console import print_table
from discrete_grpo.runs.recorder import write_json

__all__ = ["evaluate", "evaluate_file"]


def evaluate(
    samples: str | Path | Sequence[Any], *, kind: str | None = None, reference: str | None = None, shape: str | None = None
) -> dict[str, float]:
    """Compute the numbers of an evaluation: validity, uniqueness, novelty and what else the kind of samples has.

    Args:
        samples: the samples as rewards see them, with None for an invalid one, or a file of samples.
        kind: molecules, graphs, text, images or samples; None recognises the kind of a file and takes a list for molecules.
        reference: molecules that novelty is measured against, a SMILES file; of graphs a named set or an npz file of splits.
        shape: what makes a graph valid: planar, tree, sbm or connected; None takes that of the reference's name.

    Raises:
        ValueError: for an unknown kind, or an option that the kind of samples does not have.

    >>> evaluate(["CCO", "CCO", None])["unique"]
    0.5
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind: {kind!r}, expected one of {', '.join(KINDS)}")
    options = FileOptions(reference=reference, shape=shape)
    if isinstance(samples, str | Path):
        family = KINDS[kind]({}) if kind else _recognised(samples, options)
        return dict(_measured(family, *_read(family, samples, options), options))
    return dict(_measured(KINDS[kind or "molecules"]({}), samples, {}, options))


def evaluate_file(file: str, options: FileOptions | None = None, *, out: str | None = None) -> dict[str, float]:
    """Evaluate a file of samples, print the table and, with ``out``, write it as JSON.

    Args:
        file: molecules (.smi, .txt, .csv, .tsv), graphs (.g6, .npz, a csv file with a column ``graph``), or images and text as
            lines or tables, each optionally .gz.
        options: how it is read and what it is compared with.
        out: JSON file for the numbers.

    Raises:
        ValueError, FileNotFoundError: if a file cannot be read, or for an option that the kind of samples does not have.
    """
    options = options or FileOptions()
    path = None if out is None else output_path(out)
    family = KINDS["molecules"]({}) if options.smiles_column is not None else _recognised(file, options)
    _check_options(family, options)
    samples, columns = _read(family, file, options)
    result = _measured(family, samples, columns, options)
    rows: dict[str, dict[str, float]] = {name: {"value": value} for name, value in result.items()}
    print_table(f"{file}: {len(samples)} samples", rows)
    if path is not None:
        settings: dict[str, Any] = {name: getattr(options, name) for name in ("reference", "shape") if name in family.options}
        written: dict[str, Any] = {"file": file, **settings, "samples": len(samples), **result}
        write_json(path, written)
    return result


def _recognised(file: str | Path, options: FileOptions) -> Family:
    """The family of the samples in a file, by its name and first line; molecules where nothing else is recognised."""
    path, first = Path(file), ""
    with contextlib.suppress(OSError, ValueError):  # no file, or no text; whoever reads it says so
        first = next(text_lines(path, options.max_bytes), "").strip()
    return next((found for make in KINDS.values() if (found := make({})).holds(path, first)), KINDS["molecules"]({}))


def _read(family: Family, file: str | Path, options: FileOptions) -> tuple[Sequence[Any], Any]:
    if family.read is None:
        raise ValueError(f"file: {file}, expected a list: samples of the kind {family.name} are not read from files")
    return family.read(str(file), options)


def _check_options(family: Family, options: FileOptions) -> None:
    """Raise ``ValueError`` for an option that is given and makes no difference to the family."""
    for f in fields(FileOptions):
        value = getattr(options, f.name)
        if f.default is None and value is not None and f.name not in family.options:
            raise ValueError(f"{f.name}: {value!r}, expected none with a file of {family.name}")


def _measured(family: Family, samples: Sequence[Any], columns: Any, options: FileOptions) -> dict[str, float]:
    _check_options(family, options)
    return dict(family.evaluate(samples) if family.compare is None else family.compare(samples, columns, options))
