"""Evaluating samples of any family: a list of them, or a file."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, overload

from discrete_grpo.core.checks import told_as
from discrete_grpo.core.option_names import check_options
from discrete_grpo.datasets.text_files import MAX_BYTES, suffix_of, text_lines
from discrete_grpo.datasets.values import file_of_values
from discrete_grpo.metrics.resampling import Estimate
from discrete_grpo.metrics.suite import SUITES, SuiteOptions, SuiteResult, check_suite
from discrete_grpo.recipes.families import KINDS, Family, FileOptions
from discrete_grpo.recipes.kinds.graph_objects import is_networkx, kind_of_samples
from discrete_grpo.recipes.output_files import named_file, output_path
from discrete_grpo.runs.console import print_notes, print_table
from discrete_grpo.runs.folder import is_run
from discrete_grpo.runs.recorder import write_json

__all__ = ["check_kind_name", "check_no_run", "evaluate", "evaluate_file", "family_of_file", "read_samples"]

REFERENCES = ("reference", "train")
"""Options that name a file, or that give a data set as values in Python."""
SUITE_OPTIONS = ("train", "bootstrap", "folds", "sbm_method")


@overload
def evaluate(
    samples: str | Path | Iterable[Any],
    *,
    kind: str | None = None,
    reference: str | Path | Iterable[Any] | None = None,
    shape: str | None = None,
    node_attribute: str | None = None,
    edge_attribute: str | None = None,
    smiles_column: str | None = None,
    reference_smiles_column: str | None = None,
    max_nodes: int = 10_000,
    max_bytes: int = MAX_BYTES,
) -> dict[str, float]: ...


@overload
def evaluate(samples: str | Path | Iterable[Any], *, suite: str, **options: Any) -> dict[str, Estimate]: ...


def evaluate(
    samples: str | Path | Iterable[Any], *, kind: str | None = None, suite: str | None = None, **options: Any
) -> dict[str, float] | dict[str, Estimate]:
    """Compute the metrics of an evaluation: validity, uniqueness, novelty and others that depend on the kind of samples.

    A suite computes distribution metrics with intervals (``docs/metrics.md``); those it cannot compute are listed on stderr.

    Args:
        samples: the samples as rewards see them, with None for an invalid one, or a file of samples.
        kind: molecules, spatial, graphs, digraphs, text, images or samples. None recognises files, graph objects, molecules in
            space and graphs with classes. Any other list is then taken for what the suite measures, or, without a suite, for
            molecules, so lines of graph6 without classes need ``kind="graphs"``.
        suite: moses, guacamol, graphs or spatial; None computes the usual numbers.
        options: fields of :class:`discrete_grpo.recipes.families.FileOptions`: ``reference``, molecules that samples are compared
            with, a SMILES file, of graphs a named set or an npz file of splits, or a list of such samples; ``shape``, what makes a
            graph valid: planar, tree, sbm or connected; ``node_attribute`` and ``edge_attribute``, which hold the classes of own
            graphs; ``smiles_column`` and ``reference_smiles_column``; ``max_nodes`` and ``max_bytes``, which bound files; with a
            suite ``train``, ``bootstrap``, ``folds`` and ``sbm_method``.

    Returns:
        Numbers by name; with a suite an :class:`discrete_grpo.metrics.resampling.Estimate` by name.

    Raises:
        ValueError: for an unknown kind, or an option that the kind of samples does not have.

    >>> evaluate(["CCO", "CCO", None])["unique"]
    0.5
    """
    check_kind_name(kind)
    if isinstance(samples, Mapping) or is_networkx(samples) or not isinstance(samples, str | Path | Iterable):
        raise ValueError(f"samples: {samples!r}, expected a list of samples or the name of a file")
    if not isinstance(samples, str | Path | Sequence):
        samples = list(samples)
    check_options(options, FileOptions, also=("kind",))
    if isinstance(samples, str | Path):
        check_no_run("samples", samples)
        family = KINDS[kind]({}) if kind else family_of_file(samples, options.get("max_bytes", MAX_BYTES))
    else:
        family = KINDS[kind or SUITES.get(suite or "") or kind_of_samples(samples)]({})
    _check_no_reference_run(family, {name: options[name] for name in REFERENCES if isinstance(options.get(name), str | Path)})
    told = {name: "a list" for name in REFERENCES if not isinstance(options.get(name), str | Path | None)}
    _check_options(family, FileOptions(suite=suite, **{**options, **told}))
    if not isinstance(samples, str | Path) and not samples:
        raise ValueError("samples: an empty list, expected at least one sample")
    with TemporaryDirectory() as folder, _named_as_list(folder):
        files = {name: _file(family, name, options, folder) for name in REFERENCES if name in options}
        given = FileOptions(suite=suite, **{**options, **files})
        columns: Any = {}
        if isinstance(samples, str | Path):
            samples, columns = read_samples(family, samples, given)
        if suite is None:
            return _measured(family, samples, columns, given)
        result = _suite(family, samples, given)
    print_notes(result.notes)
    return dict(result.metrics)


def _file(family: Family, name: str, options: Mapping[str, Any], folder: str) -> str | None:
    """The name of the file that an option names, or of one in ``folder`` with the data set that it gives as values."""
    value = options[name]
    if value is None or isinstance(value, str | Path):
        return None if value is None else str(value)
    of_graphs = {key: options.get(key) for key in ("node_attribute", "edge_attribute") if family.column == "graph"}
    ending, content = file_of_values(family.name, value, name, **of_graphs)
    path = Path(folder) / f"{name}{ending}"
    path.write_bytes(content)
    return str(path)


@contextlib.contextmanager
def _named_as_list(folder: str) -> Iterator[None]:
    """Make errors that name a file in ``folder``, which holds values of the caller, name the caller's list instead."""
    try:
        yield
    except ValueError as error:
        said = re.sub(f"'{re.escape(folder)}[^']*'", "the list", str(error))
        if said == str(error):
            raise
        raise ValueError(said) from error


def _check_not_read(path: Path, file: str, options: FileOptions) -> None:
    """Raise ``ValueError`` if the output would overwrite a file that is read."""
    for name, given in (("file", file), *((name, getattr(options, name, None)) for name in REFERENCES)):
        if isinstance(given, str) and path.resolve() == Path(given).resolve():
            raise ValueError(f"out: {str(path)!r} is read as {name}, expected another name")


def check_no_run(argument: str, path: str | Path) -> None:
    """Raise ``ValueError`` for a run folder, which would be read as a folder of graphs."""
    if is_run(path):
        raise ValueError(f"{argument}: {path} is a run folder, expected a file of samples, such as samples.csv.gz in it")


def _check_no_reference_run(family: Family, given: Mapping[str, str | Path]) -> None:
    """Raise ``ValueError`` for a run folder as a reference, which only graphs can be compared with."""
    if family.column != "graph":
        for name, path in given.items():
            check_no_run(name, path)


def evaluate_file(
    file: str, options: FileOptions | None = None, *, out: str | None = None, kind: str | None = None
) -> dict[str, float]:
    """Evaluate a file of samples, print the table and, with ``out``, write it as JSON.

    Args:
        file: molecules (.smi, .txt, .csv, .tsv), molecules in space (.sdf, .xyz), graphs (.g6, .npz, a csv file with
            a column ``graph``), or images and text as lines or tables, each optionally .gz.
        options: how it is read and what it is compared with.
        out: JSON file for the numbers.
        kind: kind of the samples, as for :func:`evaluate`; None recognises it.

    Raises:
        ValueError, FileNotFoundError: if a file cannot be read, or for an option that the kind of samples does not have.
    """
    check_kind_name(kind)
    options = options or FileOptions()
    path = None if out is None else named_file(output_path(out))
    if path is not None:
        _check_not_read(path, file, options)
    check_no_run("file", file)
    kind = kind or ("molecules" if options.smiles_column is not None else None)
    family = KINDS[kind]({}) if kind else family_of_file(file, options.max_bytes)
    _check_no_reference_run(family, {name: read for name in REFERENCES if (read := getattr(options, name)) is not None})
    _check_options(family, options)
    samples, columns = read_samples(family, file, options)
    of_run = suffix_of(Path(file)) in (".csv", ".tsv")  # all of its samples may be invalid
    if samples and not of_run and all(sample is None for sample in samples):
        raise ValueError(f"file: {file!r} holds no sample of the kind {family.name} ({len(samples)} were looked at)")
    settings: dict[str, Any] = {name: getattr(options, name) for name in ("reference", "shape") if name in family.options}
    if options.suite is not None:
        with told_as("file", "samples"):
            measured = _suite(family, samples, options)
        _report(f"{file}: {len(samples)} samples, suite {options.suite}", measured)
        settings |= {"suite": options.suite, "train": options.train, **asdict(_suite_options(options)), **measured.settings}
        table = {name: asdict(estimate) for name, estimate in measured.metrics.items()}
        if path is not None:
            write_json(path, {"file": file, **settings, "samples": len(samples), "notes": list(measured.notes), "metrics": table})
        return {name: estimate.value for name, estimate in measured.metrics.items()}
    with told_as("file", "samples"):
        result = _measured(family, samples, columns, options)
    rows: dict[str, dict[str, float]] = {name: {"value": value} for name, value in result.items()}
    print_table(f"{file}: {len(samples)} samples", rows)
    if path is not None:
        written: dict[str, Any] = {"file": file, **settings, "samples": len(samples), **result}
        write_json(path, written)
    return result


def check_kind_name(kind: str | None) -> None:
    """Raise ``ValueError`` for a kind of samples that does not exist."""
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind: {kind!r}, expected one of {', '.join(KINDS)}")


def family_of_file(file: str | Path, max_bytes: int = MAX_BYTES) -> Family:
    """The family of the samples in a file, by its name and first line; molecules if no other kind is recognised.

    Raises:
        FileNotFoundError: if there is no such file or folder, before the modules of the kinds are imported.
    """
    path, first = Path(file), ""
    if not path.exists():
        raise FileNotFoundError(f"file: {str(file)!r} is no file, expected one of samples")
    with contextlib.suppress(OSError, ValueError):  # a folder, or no text; the reader raises the error
        first = next(text_lines(path, max_bytes), "").strip()
    return next((found for make in KINDS.values() if (found := make({})).holds(path, first)), KINDS["molecules"]({}))


def read_samples(family: Family, file: str | Path, options: FileOptions) -> tuple[Sequence[Any], Any]:
    """The samples of a file as rewards see them, with None for what is none, and its columns of labels.

    Raises:
        ValueError: for a kind that is not read from files, or a file that cannot be read.
    """
    if family.read is None:
        raise ValueError(f"file: {file}, expected a list: samples of the kind {family.name} are not read from files")
    with told_as("file"):
        return family.read(str(file), options)


def _check_options(family: Family, options: FileOptions) -> None:
    """Raise ``ValueError`` for an option that the family does not use, or an unknown suite."""
    if options.suite is not None:
        check_suite(options.suite, family.name)
        _suite_options(options)
    for name in SUITE_OPTIONS:
        if options.suite is None and getattr(options, name) is not None:
            raise ValueError(f"{name}: {getattr(options, name)!r}, expected none without a suite")
    for f in fields(FileOptions):
        value = getattr(options, f.name)
        if value not in (None, f.default) and f.name not in (*family.options, "max_bytes"):  # all families read files
            raise ValueError(f"{f.name}: {value!r}, expected none with a file of {family.name}")


def _measured(family: Family, samples: Sequence[Any], columns: Any, options: FileOptions) -> dict[str, float]:
    return dict(family.evaluate(samples) if family.compare is None else family.compare(samples, columns, options))


def _suite_options(options: FileOptions) -> SuiteOptions:
    names = [name for name in SUITE_OPTIONS if name != "train"]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    return SuiteOptions(**given)


def _suite(family: Family, samples: Sequence[Any], options: FileOptions) -> SuiteResult:
    assert family.measure is not None  # the suites are of these families
    return family.measure(samples, options, _suite_options(options))


def _report(title: str, result: SuiteResult) -> None:
    """Print the estimates, and notes on metrics that were left out."""
    rows = {name: asdict(estimate) for name, estimate in result.metrics.items()}
    used = [column for column in ("value", "low", "high", "perfect", "mean", "deviation") if any(_known(rows, column))]
    print_table(title, {name: {column: row[column] for column in used} for name, row in rows.items()})
    print_notes(result.notes)


def _known(rows: Mapping[str, Mapping[str, float]], column: str) -> Iterator[bool]:
    return (column == "value" or not math.isnan(row[column]) for row in rows.values())
