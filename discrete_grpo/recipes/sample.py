"""Samples from a trained policy of any family, and writes the samples to files."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from discrete_grpo.core.checks import LAST_SEED, check_whole
from discrete_grpo.core.description import description
from discrete_grpo.core.drawing import draw, evaluating
from discrete_grpo.core.option_names import check_keywords
from discrete_grpo.core.rollout import Context
from discrete_grpo.datasets.text_files import suffix_of
from discrete_grpo.recipes.conditions import check_read, conditions_met, prepare_columns, read_columns, renamed_measured
from discrete_grpo.recipes.devices import device_of, to_device
from discrete_grpo.recipes.distinct import Draws, TooFewDistinct, check_distinct_draws, first_distinct
from discrete_grpo.recipes.families import KINDS, Columns, Family, SamplerOptions, family_of
from discrete_grpo.recipes.loading import LoadedPolicy, load, with_sampler
from discrete_grpo.recipes.output_files import as_text, named_file, output_path, plain_columns, table_text
from discrete_grpo.runs.console import print_notes, print_table, progress
from discrete_grpo.runs.recorder import write_bytes

__all__ = ["sample", "sample_distinct", "sample_file", "sample_lines", "sample_policy"]


def sample(
    policy: Any,
    n: int,
    *,
    seed: int = 0,
    columns: str | Sequence[Columns] | None = None,
    options: SamplerOptions | None = None,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    distinct: bool = False,
    max_draws: int | None = None,
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
        distinct: return ``n`` valid samples that all differ, as for :func:`sample_distinct`, in place of all that are drawn.
        max_draws: with ``distinct``: largest number of draws, at least ``n``; None takes 100 per sample.
        **other: not accepted; the error for another name suggests the right one.

    Raises:
        ValueError: if ``n`` or ``batch_size`` is less than 1, or ``seed`` less than 0, for an unavailable device, or for
            conditions or options that the policy cannot follow.
        TooFewDistinct: if ``max_draws`` samples have fewer than ``n`` distinct ones, which are its attribute ``samples``.

    >>> len(sample("qm9-small", 3, options=SamplerOptions(num_steps=4)))
    3
    """
    known = ("n", "seed", "columns", "options", "batch_size", "device", "distinct", "max_draws")
    check_keywords(other, known, {"options": SamplerOptions})
    _check_numbers(n, seed, batch_size)
    n, seed, batch_size = int(n), int(seed), int(batch_size)
    max_draws = check_distinct_draws(distinct, max_draws, n)
    found = None if columns is None else read_columns(columns)
    family: Family | None
    if isinstance(policy, str | Path):
        loaded = load(policy, options)
        check_read(loaded.policy, found, scaffolds=loaded.family.scaffolds(loaded.policy))
        drawn, found, family = loaded.policy, prepare_columns(loaded, found), loaded.family
    else:
        with evaluating(policy):  # which other options would leave a network of the caller's in
            drawn = with_sampler(policy, options or SamplerOptions())
        found, family = _prepared(drawn, found), _family(drawn) if distinct else None
    drawn = to_device(drawn, device)
    if not distinct:
        return sample_policy(drawn, n, seed=seed, batch_size=batch_size, columns=found)[0]
    how: dict[str, Any] = {"max_draws": max_draws, "seed": seed, "batch_size": batch_size, "columns": found}
    samples, _, draws = sample_distinct(drawn, n, family or KINDS["samples"]({}), **how)
    if len(samples) < n:
        raise TooFewDistinct(n, draws, samples)
    return samples


def _family(policy: Any) -> Family | None:
    """The family of a policy object; None where nothing tells it."""
    told = description(policy)
    return family_of(told, policy) if told or getattr(policy, "family", None) is not None else None


def _prepared(policy: Any, given: list[Columns] | None) -> list[Columns] | None:
    """The conditions in the form that a policy object reads; unchanged where the kind of its samples is not known."""
    family = None if given is None else _family(policy)
    if given is None or family is None:
        check_read(policy, given)
        return given
    check_read(policy, given, scaffolds=family.scaffolds(policy))
    return prepare_columns(LoadedPolicy(policy, family, description(policy)), given)


def sample_policy(
    policy: Any, count: int, *, seed: int = 0, batch_size: int = 256, columns: Sequence[Columns] | None = None
) -> tuple[list[Any], dict[str, list[Any]]]:
    """``count`` samples in eval mode, each a group of its own, and their condition columns; the conditions take turns.

    Raises:
        ValueError: if ``count`` or ``batch_size`` is less than 1, or ``seed`` less than 0, or there are columns and none of them.
    """
    _check_numbers(count, seed, batch_size)
    _check_columns(columns)
    samples: list[Any] = []
    found: dict[str, list[Any]] = {}
    with evaluating(policy), progress("sampling", count) as bar:
        for drawn, given in _batches(policy, count, seed, batch_size, columns):
            for name, values in given.items():
                found.setdefault(name, [None] * len(samples)).extend(values)
            samples.extend(drawn)
            for column in found.values():
                column.extend([None] * (len(samples) - len(column)))
            bar.advance(len(drawn))
    return samples, found


def sample_distinct(
    policy: Any,
    count: int,
    family: Family,
    *,
    max_draws: int | None = None,
    seed: int = 0,
    batch_size: int = 256,
    columns: Sequence[Columns] | None = None,
) -> tuple[list[Any], dict[str, list[Any]], Draws]:
    """The first ``count`` distinct valid samples of a long draw with the same seed, their condition columns and what was drawn.

    Samples are valid and distinct as the metrics ``valid`` and ``unique`` of the family count them. They are those that
    :func:`sample_policy` draws in batches of ``min(count, batch_size)``. A note says how many were drawn.

    Args:
        policy: the policy.
        count: number of samples; fewer are returned if ``max_draws`` samples do not have as many.
        family: the family of its samples.
        max_draws: largest number of draws; None takes 100 per sample.
        seed: random seed of the sampler.
        batch_size: largest number of samples that are drawn at a time.
        columns: conditions, which take turns; samples that differ only in them are not distinct.

    Raises:
        ValueError: for a number out of its range.
    """
    _check_numbers(count, seed, batch_size)
    _check_columns(columns)
    most = check_distinct_draws(True, max_draws, count)
    with evaluating(policy), progress("sampling", count) as bar:

        def reach(draws: Draws) -> None:
            bar.reach(draws.distinct, drawn=str(draws.drawn), valid=str(draws.valid))

        batches = _batches(policy, most, seed, min(count, batch_size), columns)
        samples, found, draws = first_distinct(batches, count, family.identity or family.key, reach)
    if len(samples) == count:
        print_notes([f"distinct: {draws}"])
    return samples, found, draws


def _batches(
    policy: Any, count: int, seed: int, batch_size: int, columns: Sequence[Columns] | None
) -> Iterator[tuple[Sequence[Any], Mapping[str, Sequence[Any]]]]:
    """Batches of ``count`` samples in all, each with its condition columns; all are drawn by one generator."""
    generator = torch.Generator(device_of(policy)).manual_seed(seed)
    for first in range(0, count, batch_size):
        rows = range(first, min(count, first + batch_size))
        contexts = [Context(k, columns[k % len(columns)] if columns else {}) for k in rows]
        rollout = draw(policy, contexts, generator=generator)
        yield rollout.samples, rollout.columns


def _check_numbers(count: int, seed: int, batch_size: int) -> None:
    """Raise ``ValueError`` for a number of samples, a seed or a number drawn at a time that is out of its range."""
    check_whole("n", count, least=1)
    check_whole("seed", seed, least=0, most=LAST_SEED)
    check_whole("batch_size", batch_size, least=1)


def _check_columns(columns: Sequence[Columns] | None) -> None:
    if columns is not None and not columns:
        raise ValueError("columns: an empty list, expected at least one condition or None")


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
    distinct: bool = False,
    max_draws: int | None = None,
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
        distinct: draw until there are ``n`` distinct valid samples, as for :func:`sample`, and print how many were drawn.
        max_draws: as for :func:`sample`.

    Raises:
        FileNotFoundError, PermissionError: if the folder of ``out`` does not exist or cannot be written to, before any is drawn.
        OSError: if the file cannot be written (a full disk); an older one is left unchanged.
        ValueError: for an ending that samples of the kind cannot have, a number out of its range, or a condition that the policy
            does not read, before any is drawn; if no sample can be written to a file that is no table.
        TooFewDistinct: as for :func:`sample`, after those that were found have been written; without any there is no file.
    """
    _check_numbers(n, seed, 1)
    max_draws = check_distinct_draws(distinct, max_draws, n)
    path, loaded = output_path(out), load(checkpoint, options)
    _check_ending(path, checkpoint, loaded.family)
    how = (loaded, n, seed, scaffold, columns, device)
    if not distinct:
        return _write(path, checkpoint, loaded, *_drawn(*how))
    samples, found, draws = _drawn_distinct(*how, max_draws)
    if samples:
        _write(path, checkpoint, loaded, samples, found, draws)
    if (count := len(samples)) < n:
        raise TooFewDistinct(n, draws, samples, f"{path} has the {count} that were found" if count else f"{path} is not written")
    return path


def _write(
    path: Path,
    checkpoint: str,
    loaded: LoadedPolicy,
    samples: Sequence[Any],
    found: Mapping[str, Sequence[Any]],
    draws: Draws | None = None,
) -> Path:
    """Write the samples and print their numbers, below those of the ``draws`` that they were chosen from; return the file."""
    family, n = loaded.family, len(samples)
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
    rows = {} if draws is None else {"all that were drawn": draws.shares}
    title = f"{n} {'distinct ' if rows else ''}samples of {checkpoint}"
    print_table(title, rows | {str(path): {**family.evaluate(samples), **met}})
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
    distinct: bool = False,
    max_draws: int | None = None,
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
        distinct: return ``n`` distinct valid samples.
        max_draws: largest number of draws for them.

    Raises:
        ValueError: for a number out of its range, or a condition that the policy does not read.
        TooFewDistinct: as for :func:`sample`; its ``samples`` are lines.

    >>> len(sample_lines("smiles-zinc", 2)) <= 2
    True
    """
    _check_numbers(n, seed, 1)
    max_draws = check_distinct_draws(distinct, max_draws, n)
    loaded, how = load(checkpoint, options), (n, seed, scaffold, columns, device)
    if not distinct:
        return _valid_lines(loaded.family, _drawn(loaded, *how)[0])
    samples, _, draws = _drawn_distinct(loaded, *how, max_draws)
    lines = _valid_lines(loaded.family, samples)
    if len(samples) < n:
        raise TooFewDistinct(n, draws, lines)
    return lines


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
    conditions = _conditions(loaded, scaffold, columns)
    return sample_policy(to_device(loaded.policy, device), n, seed=seed, columns=conditions)


def _drawn_distinct(
    loaded: LoadedPolicy,
    n: int,
    seed: int,
    scaffold: str | None,
    columns: str | Sequence[Columns] | None,
    device: str | None,
    max_draws: int,
) -> tuple[list[Any], dict[str, list[Any]], Draws]:
    """Distinct samples under such conditions, their columns and what was drawn."""
    how: dict[str, Any] = {"max_draws": max_draws, "seed": seed, "columns": _conditions(loaded, scaffold, columns)}
    return sample_distinct(to_device(loaded.policy, device), n, loaded.family, **how)


def _conditions(loaded: LoadedPolicy, scaffold: str | None, columns: str | Sequence[Columns] | None) -> list[Columns] | None:
    """The conditions in the form that the policy reads; None without any."""
    given = None if columns is None else read_columns(columns)
    alone = given if scaffold is None else given or []
    check_read(loaded.policy, alone, scaffolds=loaded.family.scaffolds(loaded.policy))
    return prepare_columns(loaded, given, scaffold)


def _check_ending(path: Path, checkpoint: str, family: Family) -> None:
    """Raise ``ValueError`` for an image file of samples that are not images, and for an ending of another format."""
    kind, drawn = suffix_of(path), family.sheet is not None
    if kind == ".png" and not drawn and path.suffix == ".png":
        raise ValueError(f"out: {path}, expected no .png: {checkpoint} makes no images")
    known = (".csv", *family.writers, *(family.lines or ()))
    if family.lines is not None and kind not in known and not (drawn and path.suffix == ".png"):
        told = f"{', '.join(known)}, also with .gz, or .png" if drawn else f"{', '.join(known[:-1])} or {known[-1]}, also with .gz"
        raise ValueError(f"out: {str(path)!r}, expected a file of {family.name} ending in {told}")
