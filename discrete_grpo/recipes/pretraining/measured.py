"""Conditions that are measured: columns of the file that a policy of molecules is pretrained on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from discrete_grpo.core.checks import check_distinct, check_range, told_as
from discrete_grpo.core.condition_names import reserved, reserved_names
from discrete_grpo.core.processes import is_first
from discrete_grpo.datasets.measured import measured_names, read_measured
from discrete_grpo.datasets.reading import smiles_rows, table_body
from discrete_grpo.datasets.shards import ShardFolder, is_shard_folder
from discrete_grpo.domains.molecule_properties import descriptor_names
from discrete_grpo.domains.tokenizer import Property
from discrete_grpo.recipes.conditions import READ_WITH
from discrete_grpo.recipes.pretraining.molecule_files import data_file
from discrete_grpo.runs.console import print_notes

__all__ = [
    "MoleculeFile",
    "check_shown",
    "known_columns",
    "measured_columns",
    "measured_in",
    "measured_values",
    "not_computed",
    "tell_properties",
]

TAKEN = READ_WITH["node_kernel"]
"""Names of conditions that mean something else to a policy."""


class _Recipe(Protocol):
    """A recipe that reads a file of molecules."""

    @property
    def data(self) -> str: ...
    @property
    def properties(self) -> Sequence[str]: ...
    @property
    def smiles_column(self) -> str | None: ...
    @property
    def max_bytes(self) -> int: ...


@dataclass(frozen=True)
class MoleculeFile:
    """A file of molecules with the names of conditions, as a recipe names them.

    Attributes:
        data: name of the file.
        properties: names of the conditions.
        smiles_column: name of the column of SMILES; None finds it.
        max_bytes: largest size that a gzipped file may unpack to.
    """

    data: str
    properties: Sequence[str]
    smiles_column: str | None
    max_bytes: int


def _source(recipe: _Recipe) -> tuple[Path, dict[str, Any]]:
    return data_file(recipe.data), {"smiles_column": recipe.smiles_column, "max_bytes": recipe.max_bytes}


def measured_columns(recipe: _Recipe) -> tuple[str, ...]:
    """Return the names in ``recipe.properties`` that are columns of ``recipe.data``; those that are descriptors too are printed.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for a name that is neither a column nor a descriptor, that a condition cannot have, or that is given twice.
    """
    check_distinct("properties", recipe.properties)
    if not recipe.properties or recipe.data == "enumerated" or is_shard_folder(recipe.data):
        return ()
    path, options = _source(recipe)
    with told_as("data", "path"):
        found = measured_names(path, recipe.properties, **options)
    if taken := reserved(found, TAKEN):
        raise ValueError(f"properties: a column named {taken[0]!r}, expected another name: {reserved_names(TAKEN)} are reserved")
    if (both := [name for name in found if name in descriptor_names()]) and is_first():
        print(f"{path}: {', '.join(both)}: read from the file, and not computed by RDKit", file=sys.stderr)
    return found


def measured_values(recipe: _Recipe, names: Sequence[str], lines: Sequence[int]) -> dict[str, Tensor]:
    """Read the columns ``names`` of ``recipe.data`` at ``lines`` in float64; unknown values are NaN, and a line counts them.

    Raises:
        ValueError: for a cell that holds something else than a number, naming the line.
    """
    if not names:
        return {}
    path, options = _source(recipe)
    with told_as("data", "path"):
        table = read_measured(path, names, lines, **options)
    _tell_unknown(path, dict(zip(names, table.isnan().sum(0).tolist(), strict=True)), len(lines))
    return dict(zip(names, table.unbind(1), strict=True))


def measured_in(folder: ShardFolder, properties: Sequence[str]) -> tuple[str, ...]:
    """Return those of ``properties`` that a folder of shards has from columns of its file; a line counts unknown values."""
    found = tuple(name for name in properties if name in folder.measured)
    _tell_unknown(folder.path, {name: folder.measured[name] for name in found}, len(folder))
    return found


def _tell_unknown(path: Path, unknown: Mapping[str, int], molecules: int) -> None:
    """Print for how many molecules each condition is unknown, if for any."""
    for name, count in unknown.items():
        if count and is_first():
            told = f"{name} is unknown for {count} of {molecules} molecules, which are trained on without it"
            print(f"{path}: {told}", file=sys.stderr)


def check_shown(condition_dropout: float, names: Sequence[str]) -> None:
    """Raise ``ValueError`` for a share of hidden conditions outside [0, 1], or of 1, which shows no condition of ``names``."""
    check_range("condition_dropout", condition_dropout, least=0, most=1)
    if names and condition_dropout == 1:
        raise ValueError(f"condition_dropout: 1, expected less than 1, as {', '.join(names)} would never be shown")


def tell_properties(properties: Sequence[Property], values: Tensor) -> None:
    """Print the range of every condition in the training data, and whether it is constant.

    Args:
        properties: the conditions.
        values: their standardised values [molecule, property], NaN where unknown.
    """
    for one, column in zip(properties, values.double().unbind(1), strict=True):
        known = one.mean + one.std * column[~column.isnan()]
        low, high = float(known.min()), float(known.max())
        told = f"{one.name}: {low:.4g} to {high:.4g} in {len(known)} molecules, mean {one.mean:.4g}, deviation {one.std:.4g}"
        constant = f"{one.name}: {low:.4g} in all {len(known)} molecules that have it, so a policy learns nothing from it"
        if is_first():
            print_notes([constant if high - low <= 1e-6 * max(1.0, abs(low)) else told])


def not_computed(properties: Sequence[Any], metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the conditions of a policy that RDKit does not compute as the policy was trained on them.

    Args:
        properties: conditions of the policy, each with a ``name``.
        metadata: of its checkpoint, which names those that were columns of the data.
    """
    measured, known = metadata.get("measured", ()), descriptor_names()
    return tuple(one.name for one in properties if one.name in measured or one.name not in known)


def known_columns(file: MoleculeFile, broken: Sequence[int]) -> dict[str, list[float]]:
    """Read those of ``file.properties`` that are columns of the file, one value per molecule; an unknown one is NaN.

    Args:
        file: the file.
        broken: numbers of the lines that hold no molecule and are left out.

    Raises:
        ValueError: for a name that several columns have, or a cell that holds something else than a number.
    """
    path, options = _source(file)
    with told_as("data", "path"):
        header, _ = table_body(path, **options)
        names = measured_names(path, [name for name in file.properties if name in header], **options)
        left_out = set(broken)
        lines = [line for line, _ in smiles_rows(path, **options) if line not in left_out] if names else []
    return {name: column.tolist() for name, column in measured_values(file, names, lines).items()}
