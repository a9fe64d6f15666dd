"""Molecules in space as a kind of samples: numbers, drawings that can be turned, and files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from discrete_grpo.core.csv_cells import cells_of_any_length
from discrete_grpo.core.description import innermost
from discrete_grpo.core.sample_metrics import SampleMetrics
from discrete_grpo.datasets.spatial import SpatialStatistics
from discrete_grpo.datasets.spatial_fields import decode, encode
from discrete_grpo.datasets.text_files import column_of, filled_cells, header_cells, suffix_of, text_lines
from discrete_grpo.domains.force_field import relax
from discrete_grpo.domains.spatial_files import perceive_bonds, read_record, sdf_records, to_sdf, to_xyz, xyz_frames
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, as_spatial, from_cxsmiles, smiles_of, valid_mol
from discrete_grpo.metrics import spatial as metrics
from discrete_grpo.metrics.suite import SuiteOptions, SuiteResult
from discrete_grpo.recipes.families import Columns, Family, FileOptions
from discrete_grpo.recipes.reward_kinds import check_kind
from discrete_grpo.rewards.diversity import diversity_metrics
from discrete_grpo.rewards.spatial import OfSmiles, atom_stability
from discrete_grpo.runs.checkpoint import CheckpointError
from discrete_grpo.runs.console import print_notes

__all__ = ["NO_POSITIONS", "SPATIAL"]

COLUMN = "cxsmiles"
LINES = (".smi", ".smiles", ".txt")
"""Endings of files with one molecule per line."""
POSITIONS = " |("
"""The text between a SMILES and the positions of its atoms."""
NO_POSITIONS = "plain SMILES have none, so make conformers first, for example by RDKit's EmbedMolecule"
"""Advice for a file of SMILES without positions, which ends error messages."""
IN_SPACE = re.compile(r" \|\((?:[^;)]*;)*[^,;)]*,[^,;)]*,[^,;)]")
"""Positions of which one has a third coordinate: a drawing in the plane leaves it out."""
Samples = Sequence[SpatialMolecule | None]


# -- numbers and drawings


def _summary(samples: Samples, found: Sequence[metrics.Reading]) -> Mapping[str, float]:
    return metrics.metrics_of_readings(found) | diversity_metrics([one.name for one in found])


def _table(samples: Samples) -> dict[str, list[Any]]:
    """SMILES, share of stable atoms and strain per atom of every sample, None where they are not known."""
    relaxed = [None if one is None or valid_mol(one) is None else relax(one) for one in samples]
    return {
        "smiles": [smiles_of(one) for one in samples],
        "stable_atoms": [None if one is None else share for one, share in zip(samples, atom_stability(samples), strict=True)],
        "strain_per_atom": [None if found is None else found.strain_per_atom for found in relaxed],
    }


def _draw(text: str) -> str | None:
    from discrete_grpo.runs.report.spatial import render_spatial

    return render_spatial(text)


def _picture(samples: Sequence[str], captions: Sequence[str]) -> bytes | None:
    from discrete_grpo.runs.trackers import molecule_grid

    return molecule_grid([smiles_of(from_cxsmiles(text)) or "" if text else "" for text in samples], captions)


def _view(reward: Callable[..., Any], view: str) -> OfSmiles:
    if view != "smiles":
        raise ValueError(f"rewards_see: {view!r}, expected 'text' or 'smiles' with molecules in space")
    return OfSmiles(reward)


# -- policies


def _decode(policy: Any, metadata: Columns) -> None:
    """Make the policy decode to molecules with positions in Å."""
    if "statistics" not in metadata:
        raise CheckpointError("checkpoint: it has no statistics of molecules in space, expected a policy of kind spatial")
    try:
        stats = SpatialStatistics.from_json(metadata["statistics"])
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint: it has statistics of molecules in space that cannot be read ({error})") from error
    inner = innermost(policy)
    inner.decode, inner.encode = partial(decode, stats=stats), partial(encode, stats=stats)


# -- files


def _holds(path: Path, first: str) -> bool:
    if suffix_of(path) in LINES:
        return IN_SPACE.search(first) is not None
    names = header_cells(first)
    if suffix_of(path) == ".csv" and column_of(names, COLUMN, "sample") == "sample":  # a table of a run
        return any(POSITIONS in cell for cell in filled_cells(path, "sample", 1))
    return suffix_of(path) in (".sdf", ".xyz") or COLUMN in names


def _texts(file: str, options: FileOptions, argument: str) -> list[Callable[[], SpatialMolecule | None]]:
    """A reader of each sample of a file."""
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"{argument}: {file} does not exist")
    lines = text_lines(path, options.max_bytes, argument=argument)
    if suffix_of(path) == ".sdf":
        return [partial(read_record, record) for record in sdf_records(lines)]
    if suffix_of(path) == ".xyz":
        return [partial(perceive_bonds, frame) for frame in xyz_frames(lines)]
    if suffix_of(path) in LINES:
        return [partial(from_cxsmiles, line.strip()) for line in lines if line.strip()]
    rows = csv.DictReader(io.StringIO("".join(lines)))
    with cells_of_any_length():
        column = column_of(rows.fieldnames or (), COLUMN, "sample")
        if column is None:
            expected = f"molecules with positions: .sdf, .xyz, .smi, or a table with a column {COLUMN!r} or 'sample'"
            raise ValueError(f"{argument}: {file}, expected {expected}; {NO_POSITIONS}")
        return [partial(_of_cell, row[column]) for row in rows]


def _of_cell(text: str) -> SpatialMolecule | None:
    return from_cxsmiles(text) if text else None


def _read(file: str, options: FileOptions) -> tuple[list[SpatialMolecule | None], Mapping[str, Sequence[Any]]]:
    """The molecules of a file; None for what cannot be read, which is listed on standard error.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds nothing, or no molecules in space.
    """
    return _samples(file, options, "file"), {}


def _samples(file: str, options: FileOptions, argument: str) -> list[SpatialMolecule | None]:
    from discrete_grpo.recipes.left_out import report_broken

    found: list[SpatialMolecule | None] = []
    broken = []
    for number, read in enumerate(_texts(file, options, argument), 1):
        try:
            found.append(read())
        except ValueError as error:
            found.append(None)
            broken.append((number, str(error)))
    if not found:
        raise ValueError(f"{argument}: {file} is empty, expected at least one molecule")
    report_broken(file, broken, len(found) - len(broken), "molecule in space", unit="record")
    if broken:
        print_notes([f"{file}: shares of atoms, such as atom_stable, are of the atoms of the other records"])
    return found


def _reference(options: FileOptions) -> list[SpatialMolecule]:
    assert options.reference is not None
    found = [one for one in _samples(options.reference, options, "reference") if one is not None]
    if not found:
        raise ValueError(f"reference: {options.reference} holds no molecule with positions, expected at least one; {NO_POSITIONS}")
    return found


def _compare(samples: Samples, columns: Mapping[str, Sequence[Any]], options: FileOptions) -> Mapping[str, float]:
    return metrics.evaluate(_in_space(samples), None if options.reference is None else _reference(options))


def _measure(samples: Samples, options: FileOptions, settings: SuiteOptions) -> SuiteResult:
    if options.reference is None:
        raise ValueError("reference: None, expected a file of molecules in space with suite 'spatial'")
    if options.train is not None:
        raise ValueError(f"train: {options.train!r}, expected none with suite 'spatial'")
    return metrics.spatial(_in_space(samples), _reference(options), settings)


def _in_space(samples: Samples) -> list[SpatialMolecule | None]:
    """Samples that may be RDKit molecules with a conformer, or lines of text with positions."""
    found: list[SpatialMolecule | None] = []
    for number, sample in enumerate(samples):
        try:
            found.append(as_spatial(sample))
        except ValueError as error:
            raise ValueError(f"samples: entry {number}: {error}") from error
    return found


def _file_of(write: Callable[[Sequence[SpatialMolecule]], str]) -> Callable[[Samples], bytes]:
    return lambda samples: write([one for one in samples if one is not None]).encode()


SPATIAL = Family(
    name="spatial",
    column=COLUMN,
    sample_metrics=SampleMetrics(metrics.readings, _summary),
    evaluate=metrics.evaluate,
    table=_table,
    draw=_draw,
    picture=_picture,
    identity=smiles_of,
    writers={".sdf": _file_of(to_sdf), ".xyz": _file_of(to_xyz)},
    lines=(".smi", ".smiles", ".txt"),
    reward_view=_view,
    decode=_decode,
    holds=_holds,
    read=_read,
    compare=_compare,
    measure=_measure,
    options=("reference", "suite", "train", "bootstrap", "folds"),
    check_rewards=lambda policy, rewards: check_kind(rewards, "spatial"),
)
