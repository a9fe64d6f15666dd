"""Samples from a trained policy of any family, and writes the samples to files."""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from discrete_grpo.core.checks import LAST_SEED, check_whole
from discrete_grpo.core.condition_cells import condition_cells
from discrete_grpo.core.csv_cells import csv_text
from discrete_grpo.core.description import description
from discrete_grpo.core.drawing import draw, evaluating
from discrete_grpo.core.option_names import check_keywords
from discrete_grpo.core.rollout import Context
from discrete_grpo.datasets.text_files import suffix_of
from discrete_grpo.domains.sample_text import sample_text
from discrete_grpo.recipes.conditions import check_read, conditions_met, prepare_columns, read_columns, renamed_measured
from discrete_grpo.recipes.devices import device_of, to_device
from discrete_grpo.recipes.families import Columns, Family, SamplerOptions, family_of
from discrete_grpo.recipes.loading import LoadedPolicy, load, with_sampler
from discrete_grpo.runs.console import print_notes, print_table, progress
from discrete_grpo.runs.recorder import write_bytes

__all__ = [
    "as_text",
    "named_file",
    "output_path",
    "plain_columns",
    "sample",
    "sample_file",
    "sample_lines",
    "sample_policy",
    "table_text",
]


def sample(
    policy: Any,
    n: int,
    *,
    seed: int = 0,
    columns: str | Sequence[Columns] | None = None,
    options: SamplerOptions | None = None,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    **other: Any,
) -> list[Any]:
    """Draw ``n`` samples, in the form in which rewards see them; None stands for an invalid sample.

    Args:
        policy: a policy, or the name of one as for :func:`~discrete_grpo.recipes.loading.load_policy`.
        n: number of samples, at least 1; each is a group of its own.
        seed: random seed of the sampler.
        columns: conditions that the policy reads as mappings, or a file of JSON lines; sample k is drawn under
            ``columns[k % len(columns)]``. A ``scaffold`` may be any SMILES of it; only a policy object with samples of an unknown
            kind reads it as it is written.
        options: changes to how the policy draws.
        batch_size: number of samples that are drawn at a time.
        device: device to draw on, such as ``cuda``, to which the policy is moved; None means the device where it is.
        **other: not accepted; the error for another name suggests the right one.

    Raises:
        ValueError: if ``n`` or ``batch_size`` is less than 1, or ``seed`` less than 0, for an unavailable device, or for
            conditions or options that the policy cannot follow.

    >>> len(sample("qm9-small", 3, options=SamplerOptions(num_steps=4)))
    3
    """
    check_keywords(other, ("n", "seed", "columns", "options", "batch_size", "device"), {"options": SamplerOptions})
    _check_numbers(n, seed, batch_size)
    n, seed, batch_size = int(n), int(seed), int(batch_size)
    found = None if columns is None else read_columns(columns)
    if isinstance(policy, str | Path):
        loaded = load(policy, options)
        check_read(loaded.policy, found, scaffolds=loaded.family.scaffolds(loaded.policy))
        drawn, found = loaded.policy, prepare_columns(loaded, found)
    else:
        with evaluating(policy):  # which other options would leave a network of the caller's in
            drawn = with_sampler(policy, options or SamplerOptions())
        found = _prepared(drawn, found)
    return sample_policy(to_device(drawn, device), n, seed=seed, batch_size=batch_size, columns=found)[0]


def _prepared(policy: Any, given: list[Columns] | None) -> list[Columns] | None:
    """The conditions in the form that a policy object reads; unchanged where the kind of its samples is not known."""
    told = description(policy)
    if given is None or (not told and getattr(policy, "family", None) is None):
        check_read(policy, given)
        return given
    loaded = LoadedPolicy(policy, family_of(told, policy), told)
    check_read(policy, given, scaffolds=loaded.family.scaffolds(policy))
    return prepare_columns(loaded, given)


def sample_policy(
    policy: Any, count: int, *, seed: int = 0, batch_size: int = 256, columns: Sequence[Columns] | None = None
) -> tuple[list[Any], dict[str, list[Any]]]:
    """``count`` samples in eval mode, each a group of its own, and their condition columns; the conditions take turns.

    Raises:
        ValueError: if ``count`` or ``batch_size`` is less than 1, or ``seed`` less than 0, or there are columns and none of them.
    """
    _check_numbers(count, seed, batch_size)
    if columns is not None and not columns:
        raise ValueError("columns: an empty list, expected at least one condition or None")
    generator = torch.Generator(device_of(policy)).manual_seed(seed)
    samples: list[Any] = []
    found: dict[str, list[Any]] = {}
    with evaluating(policy), progress("sampling", count) as bar:
        while len(samples) < count:
            rows = range(len(samples), min(count, len(samples) + batch_size))
            contexts = [Context(k, columns[k % len(columns)] if columns else {}) for k in rows]
            rollout = draw(policy, contexts, generator=generator)
            for name, values in rollout.columns.items():
                found.setdefault(name, [None] * len(samples)).extend(values)
            samples.extend(rollout.samples)
            for column in found.values():
                column.extend([None] * (len(samples) - len(column)))
            bar.advance(len(rows))
    return samples, found


def _check_numbers(count: int, seed: int, batch_size: int) -> None:
    """Raise ``ValueError`` for a number of samples, a seed or a number drawn at a time that is out of its range."""
    check_whole("n", count, least=1)
    check_whole("seed", seed, least=0, most=LAST_SEED)
    check_whole("batch_size", batch_size, least=1)


def sample_file(
    checkpoint: str,
    n: int,
    out: str,
    *,
    seed: int = 0,
    scaffold: str | None = None,
    columns: str | Sequence[Columns] | None = None,
    options: SamplerOptions | None = None,
    device: str | None = None,
) -> Path:
    """Draw ``n`` samples into a file and print their numbers, except for images (``.png``).

    Args:
        checkpoint: name of the policy, as for :func:`~discrete_grpo.recipes.loading.load_policy`.
        n: number of samples.
        out: ``.csv`` or ``.csv.gz`` for a table with all columns, ``.png`` for images, ``.graphml`` or ``.json`` (node-link) for
            graphs with their classes as attributes, ``.sdf`` or ``.xyz`` for molecules in space, and one valid sample per line for
            ``.g6``, ``.d6`` or ``.txt`` of graphs, ``.smi``, ``.smiles`` or ``.txt`` of molecules and text, ``.txt`` of images, and
            any other ending of samples of unknown kind; all but ``.png`` also with ``.gz``. Molecules of a
            broken valence, and of several parts, are rows of a table alone.
        seed: seed of the draws.
        scaffold: SMILES that every sample should contain.
        columns: conditions, as for :func:`sample`.
        options: changes to how the policy draws.
        device: device to draw on, as for :func:`sample`.

    Raises:
        FileNotFoundError, PermissionError: if the folder of ``out`` does not exist or cannot be written to, before any is drawn.
        OSError: if the file cannot be written (a full disk); an older one is left unchanged.
        ValueError: for an ending that samples of the kind cannot have, a number out of its range, or a condition that the policy
            does not read, before any is drawn; if no sample can be written to a file that is no table.
    """
    _check_numbers(n, seed, 1)
    path, loaded = output_path(out), load(checkpoint, options)
    family = loaded.family
    _check_ending(path, checkpoint, family)
    samples, found = _drawn(loaded, n, seed, scaffold, columns, device)
    if path.suffix == ".png" and family.sheet is not None:
        family.sheet(named_file(path), samples)
        return path
    kind, written = suffix_of(path), n
    if kind == ".csv":
        properties = renamed_measured(family.table(samples), found)
        content = table_text({family.column: as_text(samples), **properties, **plain_columns(found)}).encode()
    elif kind in family.writers:
        content, written = family.writers[kind](samples), sum(s is not None for s in samples)
    else:
        lines = _valid_lines(family, samples)
        content, written = "".join(f"{line}\n" for line in lines).encode(), len(lines)
    if written:
        write_bytes(named_file(path), gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    met = conditions_met(samples, found, family.name, loaded.metadata.get("measured", ()))
    measured = {**family.evaluate(samples), **met}
    print_table(f"{n} samples of {checkpoint}", {str(path): measured})
    if not written:
        raise ValueError(f"out: none of {n} samples can be written to {path}; a .csv has a row for each sample")
    if written < n:
        told = f"{n - written} of {n} samples are invalid and are left out of {path}"
        print_notes([f"{told}; a .csv has a row for each sample"])
    return path


def sample_lines(
    checkpoint: str,
    n: int,
    *,
    seed: int = 0,
    scaffold: str | None = None,
    columns: str | Sequence[Columns] | None = None,
    options: SamplerOptions | None = None,
    device: str | None = None,
) -> list[str]:
    """Draw ``n`` samples and return the valid ones as lines of text.

    Args:
        checkpoint: as for :func:`sample_file`, as are all others.
        n: number of samples.
        seed: seed of the draws.
        scaffold: SMILES that every sample should contain.
        columns: conditions.
        options: changes to how the policy draws.
        device: device to draw on.

    Raises:
        ValueError: for a number out of its range, or a condition that the policy does not read.

    >>> len(sample_lines("smiles-zinc", 2)) <= 2
    True
    """
    _check_numbers(n, seed, 1)
    loaded = load(checkpoint, options)
    samples, _ = _drawn(loaded, n, seed, scaffold, columns, device)
    return _valid_lines(loaded.family, samples)


def _valid_lines(family: Family, samples: Sequence[Any]) -> list[str]:
    """The valid samples as lines of text: a molecule of several parts is not valid."""
    return [str(s) for s in samples if s is not None and family.key(s) is not None]


def _drawn(
    loaded: LoadedPolicy,
    n: int,
    seed: int,
    scaffold: str | None,
    columns: str | Sequence[Columns] | None,
    device: str | None,
) -> tuple[list[Any], dict[str, list[Any]]]:
    """Samples under conditions that the policy reads, and their columns."""
    given = None if columns is None else read_columns(columns)
    alone = given if scaffold is None else given or []
    check_read(loaded.policy, alone, scaffolds=loaded.family.scaffolds(loaded.policy))
    conditions = prepare_columns(loaded, given, scaffold)
    return sample_policy(to_device(loaded.policy, device), n, seed=seed, columns=conditions)


def _check_ending(path: Path, checkpoint: str, family: Family) -> None:
    """Raise ``ValueError`` for an image file of samples that are not images, and for an ending of another format."""
    kind, drawn = suffix_of(path), family.sheet is not None
    if kind == ".png" and not drawn and path.suffix == ".png":
        raise ValueError(f"out: {path}, expected no .png: {checkpoint} makes no images")
    known = (".csv", *family.writers, *(family.lines or ()))
    if family.lines is not None and kind not in known and not (drawn and path.suffix == ".png"):
        told = f"{', '.join(known)}, also with .gz, or .png" if drawn else f"{', '.join(known[:-1])} or {known[-1]}, also with .gz"
        raise ValueError(f"out: {str(path)!r}, expected a file of {family.name} ending in {told}")


def output_path(out: str) -> Path:
    """Return ``out`` as a path after checking that it can be written."""
    path = Path(out)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"out: folder {path.parent} does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"out: {path} is a folder, expected a file")
    if path.exists() and not path.is_file():  # it would be replaced by a file
        raise ValueError(f"out: {path} is a device or a pipe, expected a file")
    folder = named_file(path).parent  # an older file is replaced, so that its own permissions do not matter
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"out: {path} cannot be written, expected a file in a folder with write permission")
    return path


def named_file(path: Path) -> Path:
    """Return the file that a link names, which is then replaced in place of the link; any other path is returned as it is.

    Raises:
        ValueError: for links that lead in a circle.
    """
    try:
        return path.resolve() if path.is_symlink() else path
    except (OSError, RuntimeError):  # by the version of Python
        raise ValueError(f"out: {path} is a link that leads back to itself, expected a file") from None


def as_text(samples: Sequence[Any]) -> list[str]:
    """Samples as the text of a table; empty for invalid ones."""
    return ["" if s is None else sample_text(s) for s in samples]


def plain_columns(columns: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """The cells of the condition columns that a table can hold."""
    return {name: cells for name, values in columns.items() if (cells := condition_cells(values)) is not None}


def table_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns of equal length as csv."""
    return csv_text([tuple(columns), *zip(*columns.values(), strict=True)])
