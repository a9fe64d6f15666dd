"""Molecules in space: conformers made by RDKit, SDF and xyz files, and the statistics of a set."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from rdkit import Chem
from rdkit.rdBase import rdkitVersion

from discrete_grpo.core.checks import check_range, check_samples
from discrete_grpo.datasets.arrays import read_arrays
from discrete_grpo.datasets.parallel import blocks, map_in_processes
from discrete_grpo.datasets.reading import (
    broken_array,
    broken_lines,
    check_broken,
    check_writable,
    content_key,
    from_cache,
    keep_parsed,
    write_arrays,
)
from discrete_grpo.datasets.text_files import MAX_BYTES, suffix_of, text_lines
from discrete_grpo.domains.conformers import DECIMALS, as_stored, embed
from discrete_grpo.domains.smiles import parse_smiles
from discrete_grpo.domains.spatial_files import perceive_bonds, read_record, sdf_records, xyz_frames
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, check_apart, to_mol

__all__ = ["SpatialDataset", "SpatialStatistics", "conformers", "in_form", "load_spatial", "spatial_statistics"]

_CACHE_VERSION = "spatial 2"
_CHUNK = 64
"""The most SMILES that a process receives at once."""
_ALONE = 16
"""Up to this many SMILES are embedded in this process, if their conformers are not cached."""


@dataclass(frozen=True)
class SpatialDataset:
    """A set of molecules in space, with the interface of a sequence.

    Attributes:
        molecules: the molecules.
        sources: position of each molecule in the input, from 0.
        broken: (position from 0, reason) of each that was left out.
        name: name of the set in reports.
    """

    molecules: tuple[SpatialMolecule, ...]
    sources: tuple[int, ...]
    broken: tuple[tuple[int, str], ...] = ()
    name: str = ""

    def __len__(self) -> int:
        return len(self.molecules)

    def __getitem__(self, k: int) -> SpatialMolecule:
        return self.molecules[k]

    def __iter__(self) -> Iterator[SpatialMolecule]:
        return iter(self.molecules)


# -- conformers


def conformers(
    smiles: Sequence[str],
    *,
    seed: int = 0,
    hydrogens: bool = True,
    aromatic: bool = False,
    jobs: int = 1,
    cache: str | Path | None = None,
    name: str = "conformers",
) -> SpatialDataset:
    """Make one conformer per SMILES by ETKDGv3 and relax it by MMFF94, hydrogens included.

    Every molecule is embedded with the same seed, so that its conformer does not depend on the others or on ``jobs``.

    Args:
        smiles: the molecules. Those that do not parse, cannot be embedded or have no MMFF94 parameters are listed in
            ``broken`` of the result.
        seed: random seed of the embedding, from 0 to 2³¹ - 2.
        hydrogens: whether hydrogens stay as atoms afterwards.
        aromatic: whether aromatic bonds have the order 4; otherwise rings are kekulised. It needs hydrogens, as otherwise it is
            unknown which nitrogen of a ring has one.
        jobs: number of processes.
        cache: folder of the results, keyed by the SMILES, the options and the version of RDKit; None makes them every time.
        name: name of the set, with which the file in the cache begins.

    Raises:
        ValueError: for an argument out of its range, aromatic bonds without hydrogens, or a cache that cannot be written in.
        OSError: if the results cannot be written into the cache.
        RuntimeError: if one of the processes dies.

    Source: Riniker and Landrum (2015), doi 10.1021/acs.jcim.5b00654; Wang et al. (2020), doi 10.1021/acs.jcim.0c00025 (ETKDG);
    Halgren (1996) (MMFF94), as in RDKit.

    >>> water = conformers(["O", "no molecule"])
    >>> water[0].symbols, water.broken
    (('O', 'H', 'H'), ((1, 'no molecule: does not parse'),))
    """
    check_range("seed", seed, least=0, most=2**31 - 2)
    check_range("jobs", jobs, least=1)
    if aromatic and not hydrogens:
        raise ValueError("aromatic: True, expected False where hydrogens is False")
    check_samples(smiles, "smiles")
    texts = [str(text) for text in smiles]
    digest = hashlib.sha256(f"{_CACHE_VERSION} {rdkitVersion} {seed} {hydrogens} {aromatic}\n".encode())
    digest.update("\n".join(texts).encode())
    stored = None if cache is None else Path(cache) / f"{name}-{digest.hexdigest()[:32]}.npz"

    def make() -> SpatialDataset:
        options = {"seed": seed, "hydrogens": hydrogens, "aromatic": aromatic}
        alone = _ALONE if stored is None else 0
        return _collected(texts, _mapped(texts, jobs, alone, options), name)

    return _cached(stored, make, name)


def _embedded(text: str, **options: Any) -> SpatialMolecule | str:
    """Return what ``embed`` does for a SMILES, a name after which is ignored."""
    words = re.split(r"[ \t\r\n]+", text.strip(" \t\r\n"))
    return "does not parse" if parse_smiles(words[0]) is None else embed(text, **options)


def _all_embedded(texts: Sequence[str], **options: Any) -> list[SpatialMolecule | str]:
    return [_embedded(text, **options) for text in texts]


def _mapped(texts: list[str], jobs: int, alone: int, options: Mapping[str, Any]) -> Iterator[SpatialMolecule | str]:
    """Embed each text, above ``alone`` texts in other processes: RDKit catches a Ctrl-C and makes another conformer, or none."""
    if len(texts) <= alone:
        yield from _all_embedded(texts, **options)
        return
    size = max(1, min(_CHUNK, len(texts) // jobs))
    for found in map_in_processes(partial(_all_embedded, **options), blocks(texts, size), jobs):
        yield from found


def _collected(texts: Iterable[str], results: Iterable[SpatialMolecule | str], name: str) -> SpatialDataset:
    """Separate molecules from the reasons of failures."""
    good: list[tuple[int, SpatialMolecule]] = []
    broken: list[tuple[int, str]] = []
    for k, (text, found) in enumerate(zip(texts, results, strict=True)):
        if isinstance(found, SpatialMolecule):
            good.append((k, found))
        else:
            broken.append((k, " ".join(f"{text[:60]}: {found}".removeprefix(": ").split())))
    return SpatialDataset(tuple(m for _, m in good), tuple(k for k, _ in good), tuple(broken), name)


# -- files


def load_spatial(
    path: str | Path,
    max_broken: float = 0.05,
    *,
    hydrogens: bool = True,
    aromatic: bool = False,
    charge: int | None = None,
    max_bytes: int = MAX_BYTES,
    cache: str | Path | None = None,
) -> SpatialDataset:
    """Load the molecules of an ``.sdf`` or ``.xyz`` file, each optionally ``.gz``; molecules that do not sanitise are left out.

    Args:
        path: the file. Bonds and charges of an xyz file are perceived, which needs all hydrogens.
        max_broken: largest share of molecules that may be left out; they stand in ``broken``.
        hydrogens: whether hydrogens stay as atoms; none are added.
        aromatic: whether aromatic bonds have the order 4; otherwise rings are kekulised. It needs hydrogens.
        charge: total charge of each molecule of an xyz file; None takes it from ``charge=...`` in the comment, or else 0.
        max_bytes: largest size that a gzipped file may unpack to.
        cache: folder for the parsed form, keyed by the file's content and the options; None parses every time.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for a file of another kind or that holds no molecules, for more that are left out than allowed, aromatic
            bonds without hydrogens, or a cache that cannot be written in.
        OSError: if the parsed form cannot be written into the cache.
    """
    path = Path(path)
    if suffix_of(path) not in (".sdf", ".xyz"):
        raise ValueError(f"path: {str(path)!r}, expected a file ending in .sdf or .xyz, or one of these with .gz")
    if not path.is_file():
        raise FileNotFoundError(f"path: {str(path)!r} is no file, expected an .sdf or .xyz of molecules")
    if aromatic and not hydrogens:
        raise ValueError("aromatic: True, expected False where hydrogens is False")
    name, stored = path.name.split(".")[0], None
    if cache is not None:
        stored = Path(cache) / f"{name}-{content_key(path, f'{_CACHE_VERSION} {hydrogens} {aromatic} {charge}')}.npz"

    def make() -> SpatialDataset:
        results = [_resolved(read, hydrogens, aromatic) for read in _readers(path, charge, max_bytes)]
        return _collected(("",) * len(results), results, name)

    found = _cached(stored, make, name)
    check_broken(path, len(found), [(k + 1, reason) for k, reason in found.broken], max_broken, "record")
    return found


def _readers(path: Path, charge: int | None, max_bytes: int) -> Iterator[Callable[[], SpatialMolecule]]:
    """A reader of each molecule of a file."""
    lines = text_lines(path, max_bytes)
    if suffix_of(path) == ".sdf":
        yield from (partial(read_record, record) for record in sdf_records(lines))
    else:
        yield from (partial(perceive_bonds, frame, charge) for frame in xyz_frames(lines))


def _resolved(read: Callable[[], SpatialMolecule], hydrogens: bool, aromatic: bool) -> SpatialMolecule | str:
    try:
        return in_form(read(), hydrogens=hydrogens, aromatic=aromatic)
    except ValueError as error:
        return str(error)


def in_form(molecule: SpatialMolecule, *, hydrogens: bool, aromatic: bool) -> SpatialMolecule | str:
    """The molecule with or without its hydrogens, with aromatic or Kekulé bonds, or the reason why it cannot be stored.

    Raises:
        ValueError: for two atoms at one place.
    """
    check_apart(molecule)
    mol = to_mol(molecule)
    return "does not sanitise" if mol is None else as_stored(mol, hydrogens=hydrogens, aromatic=aromatic)


# -- cache


def _cached(path: Path | None, make: Callable[[], SpatialDataset], name: str) -> SpatialDataset:
    known = None if path is None else from_cache(path, partial(_read_cache, name=name))
    if known is not None:
        return known
    if path is None:
        return make()
    check_writable(path)
    made = make()
    keep_parsed(path, path.parent, len(made), partial(_write_cache, data=made))
    return made


def _write_cache(path: Path, data: SpatialDataset) -> None:
    table = Chem.GetPeriodicTable()
    every = data.molecules
    positions = np.concatenate([m.coordinates for m in every] or [np.zeros((0, 3))])
    write_arrays(
        path,
        sizes=np.array([len(m) for m in every], dtype=np.int32),
        elements=np.array([table.GetAtomicNumber(s) for m in every for s in m.symbols], dtype=np.uint8),
        charges=np.array([q for m in every for q in m.charges], dtype=np.int8),
        num_bonds=np.array([len(m.bonds) for m in every], dtype=np.int32),
        bonds=np.array([bond for m in every for bond in m.bonds], dtype=np.int32).reshape(-1, 3),
        positions=np.rint(positions * 10**DECIMALS).astype(np.int32),
        sources=np.array(data.sources, dtype=np.int64),
        broken=broken_array(data.broken),
    )


def _read_cache(file: BinaryIO, name: str) -> SpatialDataset:
    stored = read_arrays(file)
    table = Chem.GetPeriodicTable()
    symbols = [table.GetElementSymbol(z) for z in stored["elements"].tolist()]
    charges, bonds = stored["charges"].tolist(), stored["bonds"].tolist()
    positions = (stored["positions"] / 10**DECIMALS).tolist()
    molecules, atom, bond = [], 0, 0
    for n, m in zip(stored["sizes"].tolist(), stored["num_bonds"].tolist(), strict=True):
        rows = slice(atom, atom + n)
        molecules.append(SpatialMolecule(tuple(symbols[rows]), charges[rows], bonds[bond : bond + m], positions[rows]))
        atom, bond = atom + n, bond + m
    broken = broken_lines(stored["broken"])
    return SpatialDataset(tuple(molecules), tuple(stored["sources"].tolist()), broken, name)


# -- statistics


@dataclass(frozen=True)
class SpatialStatistics:
    """Statistics of a set of molecules in space that the prior of a policy needs, serialisable as JSON.

    Attributes:
        node_counts: probability of each number of atoms 0..N.
        symbols: elements that occur, by atomic number.
        symbol_marginal: probability of each of these elements.
        charges: formal charges that occur, ascending.
        charge_marginal: probability of each of these charges.
        bond_marginal: probability of no bond and of the orders 1 to 4 over unordered pairs of atoms.
        position_std: standard deviation of a coordinate about the centroid of its molecule, in Å, √(Σ |x - x̄|² / 3 Σ N).
        num_molecules: number of molecules.
        name: name of the set.
    """

    node_counts: tuple[float, ...]
    symbols: tuple[str, ...]
    symbol_marginal: tuple[float, ...]
    charges: tuple[int, ...]
    charge_marginal: tuple[float, ...]
    bond_marginal: tuple[float, ...]
    position_std: float
    num_molecules: int
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary of lists, numbers and strings."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> SpatialStatistics:
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError: if a field is missing or unknown.
        """
        expected = set(cls.__dataclass_fields__)
        if set(plain) != expected:
            raise ValueError(f"statistics: fields {sorted(plain)}, expected {sorted(expected)}")
        values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()}
        return cls(**values)


def spatial_statistics(molecules: Iterable[SpatialMolecule], name: str = "") -> SpatialStatistics:
    """Count sizes, elements, charges and bonds, and measure the spread of the coordinates.

    Raises:
        ValueError: if there are no molecules, or none has an atom.

    >>> spatial_statistics([SpatialMolecule(("H", "H"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (0.6, 0, 0)))]).bond_marginal
    (0.0, 1.0, 0.0, 0.0, 0.0)
    """
    every = list(molecules)
    atoms = sum(len(m) for m in every)
    if not atoms:
        raise ValueError(f"molecules: {len(every)} with {atoms} atoms, expected at least one atom")
    table = Chem.GetPeriodicTable()
    sizes = Counter(len(m) for m in every)
    symbols = Counter(s for m in every for s in m.symbols)
    charges = Counter(q for m in every for q in m.charges)
    bonds = Counter(order for m in every for _, _, order in m.bonds)
    pairs = sum(len(m) * (len(m) - 1) // 2 for m in every)
    bonds[0] = pairs - bonds.total()
    squares = sum(float(((m.coordinates - m.coordinates.mean(0)) ** 2).sum()) for m in every if len(m))
    elements, levels = tuple(sorted(symbols, key=table.GetAtomicNumber)), tuple(sorted(charges))
    return SpatialStatistics(
        node_counts=tuple(sizes[n] / len(every) for n in range(max(sizes) + 1)),
        symbols=elements,
        symbol_marginal=tuple(symbols[s] / atoms for s in elements),
        charges=levels,
        charge_marginal=tuple(charges[q] / atoms for q in levels),
        bond_marginal=tuple(bonds[order] / max(pairs, 1) for order in range(5)),
        position_std=(squares / (3 * atoms)) ** 0.5,
        num_molecules=len(every),
        name=name,
    )
