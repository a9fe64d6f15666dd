"""Reads the samples of a file for further training of a policy, and splits off held-out samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discrete_grpo.core.checks import told_as
from discrete_grpo.core.description import innermost
from discrete_grpo.core.processes import is_first
from discrete_grpo.recipes.families import FileOptions
from discrete_grpo.recipes.loading import LoadedPolicy
from discrete_grpo.runs.console import print_notes

if TYPE_CHECKING:
    from discrete_grpo.datasets.spatial import SpatialStatistics
    from discrete_grpo.domains.spatial_molecules import SpatialMolecule
    from discrete_grpo.recipes.pretraining.sft import SFTRecipe

__all__ = ["Samples", "samples_of"]


@dataclass(frozen=True)
class Samples:
    """Samples of a file.

    Attributes:
        train: those to train on.
        held_out: those that are kept out of the training.
        about: metadata of the data for checkpoints.
        measured: values of the conditions that the file has for ``train``, by name; NaN where one is unknown.
        held_out_measured: the same for ``held_out``.
    """

    train: Sequence[Any]
    held_out: Sequence[Any]
    about: Mapping[str, Any]
    measured: Mapping[str, Sequence[float]] = field(default_factory=dict)
    held_out_measured: Mapping[str, Sequence[float]] = field(default_factory=dict)


def samples_of(recipe: SFTRecipe, loaded: LoadedPolicy) -> Samples:
    """The samples of ``recipe.source``, of the kind that the policy makes; broken lines are counted on standard error.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, or the policy makes samples that no file holds.
    """
    kind = loaded.family.name
    others = ("smiles_column",) if kind in ("graphs", "digraphs") else ("node_attribute", "edge_attribute")
    for name in others:
        if (value := getattr(recipe, name)) is not None:
            raise ValueError(f"{name}: {value!r}, expected none with {kind}")
    if kind in ("graphs", "digraphs"):
        return _graphs(recipe, loaded)
    if kind == "molecules":
        return _split(recipe, loaded, *_molecules(recipe, loaded))
    readers: dict[str, Callable[[SFTRecipe, LoadedPolicy], Sequence[Any]]] = {
        "spatial": _spatial,
        "text": _lines,
        "samples": _lines,
    }
    if kind not in readers:
        known = ", ".join(("graphs", "digraphs", "molecules", *readers))
        raise ValueError(f"policy: {recipe.policy!r} makes samples of the kind {kind}, expected one of {known}")
    return _split(recipe, loaded, readers[kind](recipe, loaded))


def _split(
    recipe: SFTRecipe, loaded: LoadedPolicy, found: Sequence[Any], measured: Mapping[str, Sequence[float]] | None = None
) -> Samples:
    """Split off held-out samples, the same in every run; copies of a sample, and other spellings of a molecule, stay together.

    Where all are copies of one sample none is held out.
    """
    from discrete_grpo.datasets.listed_graphs import split_rows

    if not found:
        said = f"data: {recipe.source!r} holds no sample of the kind {loaded.family.name}"
        if loaded.family.name == "spatial":
            from discrete_grpo.recipes.kinds.spatial import NO_POSITIONS

            said += f", expected a file of molecules with positions (.sdf, .xyz, .smi); {NO_POSITIONS}"
        raise ValueError(said)
    names = _names(loaded, found)
    first = {name: row for row, name in reversed([*enumerate(names)])}
    distinct = list(dict.fromkeys(names))
    held = [distinct[k] for k in split_rows(len(distinct), None, recipe.test_share)[1]]
    kept_out = set(held) if len(distinct) > 1 else set()
    about = {"name": recipe.data_name or Path(recipe.source).name.split(".")[0], "licence": recipe.data_licence}
    parts = [row for row, name in enumerate(names) if name not in kept_out], [first[name] for name in held if name in kept_out]
    train, held_out = ([found[row] for row in rows] for rows in parts)
    columns = ({name: [values[row] for row in rows] for name, values in (measured or {}).items()} for rows in parts)
    return Samples(train, held_out, about, *columns)


def _names(loaded: LoadedPolicy, found: Sequence[Any]) -> Sequence[Any]:
    """A name of each sample that its copies share: of a molecule the canonical SMILES, for a graph policy without stereo."""
    if loaded.family.name != "molecules":
        return found
    from discrete_grpo.metrics.molecules import canonical

    key = loaded.family.key if hasattr(loaded.policy, "tokenizer") else canonical
    return [key(sample) or sample for sample in found]


def _molecules(recipe: SFTRecipe, loaded: LoadedPolicy) -> tuple[Sequence[str], Mapping[str, Sequence[float]]]:
    """The SMILES of a file as they stand there, and its columns of those conditions of the policy that RDKit does not compute."""
    from discrete_grpo.datasets.reading import read_smiles
    from discrete_grpo.recipes.left_out import report_broken
    from discrete_grpo.recipes.pretraining.measured import MoleculeFile, known_columns, not_computed
    from discrete_grpo.recipes.pretraining.molecule_files import data_file

    path = data_file(recipe.source)
    with told_as("data", "path"):
        found = read_smiles(path, recipe.max_broken, smiles_column=recipe.smiles_column, max_bytes=recipe.max_bytes)
    report_broken(path, found.broken, len(found.smiles))
    names = not_computed(getattr(innermost(loaded.policy), "properties", ()), loaded.metadata)
    if not names:
        return found.smiles, {}
    file = MoleculeFile(recipe.source, names, recipe.smiles_column, recipe.max_bytes)
    return found.smiles, known_columns(file, [line for line, _ in found.broken])


def _spatial(recipe: SFTRecipe, loaded: LoadedPolicy) -> Sequence[Any]:
    from discrete_grpo.datasets.spatial import SpatialStatistics

    assert loaded.family.read is not None
    with told_as("data", "file"):
        found, _ = loaded.family.read(recipe.source, FileOptions(smiles_column=recipe.smiles_column, max_bytes=recipe.max_bytes))
    stats = SpatialStatistics.from_json(loaded.metadata["statistics"])
    read = [one for one in found if one is not None]
    known = [sample for one in read if (sample := _as_trained_on(one, stats)) is not None]
    if (lost := len(found) - len(known)) > recipe.max_broken * len(found) and read:
        wanted = f"expected at most a share of max_broken ({recipe.max_broken:g})"
        raise ValueError(f"data: {recipe.source}: {lost} of {len(found)} records are no molecule in space, {wanted}")
    if (others := len(read) - len(known)) and is_first():
        print_notes([f"{recipe.source}: {others} of {len(found)} records do not sanitise or lack hydrogens; they are left out"])
    return known


def _as_trained_on(sample: SpatialMolecule, stats: SpatialStatistics) -> SpatialMolecule | None:
    """The molecule with aromatic or Kekulé bonds, and with or without hydrogens, as in the data of the policy.

    None for what does not sanitise, as in pretraining, and for one without its hydrogens where the policy draws them.
    """
    from discrete_grpo.datasets.spatial import in_form
    from discrete_grpo.domains.molecules import has_aromatic
    from discrete_grpo.domains.spatial_molecules import to_mol

    hydrogens = "H" in stats.symbols
    try:
        stored = in_form(sample, hydrogens=hydrogens, aromatic=has_aromatic(stats.bond_marginal))
    except ValueError:
        return None
    if isinstance(stored, str):
        return None
    mol = to_mol(stored) if hydrogens else None
    return None if mol is not None and any(atom.GetTotalNumHs() for atom in mol.GetAtoms()) else stored


def _lines(recipe: SFTRecipe, loaded: LoadedPolicy) -> Sequence[str]:
    from discrete_grpo.datasets.text import read_lines

    with told_as("data", "path"):
        return [line for _, line in read_lines(recipe.source, max_bytes=recipe.max_bytes)]


def _graphs(recipe: SFTRecipe, loaded: LoadedPolicy) -> Samples:
    """Lines of graphs, with the names of their classes where the policy has any."""
    from discrete_grpo.datasets.graph_splits import load_splits
    from discrete_grpo.datasets.own_digraphs import own_digraphs
    from discrete_grpo.datasets.own_graphs import is_own, labelled_splits, own_graphs
    from discrete_grpo.domains.named_graphs import to_line
    from discrete_grpo.recipes.kinds.graph_sources import source_facts
    from discrete_grpo.recipes.kinds.graphs import labels_of

    limits: dict[str, Any] = {"max_nodes": recipe.max_nodes, "max_bytes": recipe.max_bytes}
    attributes: dict[str, Any] = {"node_attribute": recipe.node_attribute, "edge_attribute": recipe.edge_attribute}
    about: dict[str, Any] = {**source_facts(recipe.source), "licence": recipe.data_licence}
    if recipe.source.endswith(".npz") or is_own(recipe.source):
        read = own_digraphs if loaded.family.name == "digraphs" else own_graphs
        own = read(recipe.source, labels=labels_of(loaded.metadata), **attributes, **limits)
        if labels_of(loaded.metadata) is None and not own.labels.plain:
            raise ValueError(f"data: {recipe.source} has classes of nodes or edges, expected none, as {recipe.policy} has none")
        splits = labelled_splits(own, recipe.test_share)
        about |= {**attributes, "test_share": recipe.test_share} if is_own(recipe.source) or not own.labels.plain else {}
    else:
        splits = load_splits(recipe.source, **limits)
    train, held = ([to_line(graph) for graph in part] for part in (splits.train, splits.test))
    return Samples(train, held, {"name": recipe.data_name or splits.name, **about})
