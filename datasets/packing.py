"""Packs molecules of numbered lines as graphs, parsed in blocks by one or several processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from rdkit import Chem
from rdkit.rdBase import BlockLogs

from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.parallel import blocks, map_blocks
from discrete_grpo.datasets.reading import BLOCK, PARALLEL_ROWS
from discrete_grpo.domains.graphs import PackedGraphs, num_pairs
from discrete_grpo.domains.molecules import AtomType, Vocabulary, classes_to_mol, molecule_parts
from discrete_grpo.domains.smiles import parse_smiles, to_smiles

__all__ = ["MAX_ATOMS", "Packer", "pack", "pack_lines"]

MAX_ATOMS = 10_000
"""Largest number of atoms of a molecule."""


class Packer:
    """Collects molecules as bytes before the vocabulary is known; molecules outside the requested sizes are only counted.

    Args:
        min_atoms: smallest number of heavy atoms; None for any above 0.
        max_atoms: largest number of heavy atoms; None for any.

    Attributes:
        types: (symbol, charge) of each node class so far, in the order in which they are met.
        nodes, pairs: node classes and bond classes of all molecules end to end.
        sizes: number of atoms of each molecule.
        lines: number of the line of each molecule.
        smiles: canonical SMILES of each molecule as it is packed: without stereo, isotopes and radicals.
        broken: (line number, text) of lines that do not parse, or hold an atom or a bond that has no class.
        dropped: number of molecules of other sizes.
        largest: most atoms of a molecule, dropped ones included.
    """

    def __init__(self, min_atoms: int | None = None, max_atoms: int | None = None) -> None:
        self.min_atoms, self.max_atoms = min_atoms, max_atoms
        self.types: dict[tuple[str, int], int] = {}
        self.nodes, self.pairs = bytearray(), bytearray()
        self.sizes: list[int] = []
        self.lines: list[int] = []
        self.smiles: list[str] = []
        self.broken: list[tuple[int, str]] = []
        self.dropped, self.largest = 0, 0

    def add(self, line: int, text: str) -> Chem.Mol | None:
        """Add the molecule of a line; return it, or None if it is not kept.

        Raises:
            ValueError: if the molecule has more than ``MAX_ATOMS`` atoms, or there are more than 256 types of atoms.
        """
        mol = parse_smiles(text)
        try:
            parts = None if mol is None else molecule_parts(mol)
        except ValueError:  # a bond without a class
            parts = None
        if mol is None or parts is None or not all(map(_has_label, parts[0])):
            self.broken.append((line, text))
            return None
        types, bonds = parts
        if not self._wanted(len(types), line):
            return None
        pairs = bytearray(num_pairs(len(types)))
        for i, j, order in bonds:
            pairs[j * (j - 1) // 2 + i] = order
        self.nodes += self._classes(types)
        self.pairs += pairs
        self.sizes.append(len(types))
        self.lines.append(line)
        self.smiles.append(_smiles(mol, types, bonds))
        return mol

    def _classes(self, types: Iterable[tuple[str, int]]) -> bytes:
        found = [self.types.setdefault(t, len(self.types)) for t in types]
        check_range("types of atoms", len(self.types), most=256, note=" (classes are stored as bytes)")
        return bytes(found)

    def _wanted(self, atoms: int, line: int) -> bool:
        """Return whether the size is within the requested bounds; memory grows with the square of the number of atoms."""
        self.largest = max(self.largest, atoms)
        if atoms < max(1, self.min_atoms or 0) or (self.max_atoms is not None and atoms > self.max_atoms):
            self.dropped += 1
            return False
        check_range(f"line {line}: atoms of the molecule", atoms, most=MAX_ATOMS, note="; max_atoms leaves it out")
        return True

    def extend(self, other: Packer) -> None:
        """Add all that another packer collected from later lines."""
        classes = self._classes(other.types)
        self.nodes += other.nodes.translate(classes.ljust(256, b"\0"))
        self.pairs += other.pairs
        self.sizes += other.sizes
        self.lines += other.lines
        self.smiles += other.smiles
        self.broken += other.broken
        self.dropped, self.largest = self.dropped + other.dropped, max(self.largest, other.largest)

    def packed(self) -> tuple[PackedGraphs, Vocabulary]:
        """Return the graphs, and the vocabulary of their node classes."""
        vocabulary = Vocabulary.from_types(AtomType(*t) for t in self.types)
        to_class = np.array([vocabulary.index[t] for t in self.types], dtype=np.uint8)
        nodes = torch.from_numpy(to_class[np.frombuffer(self.nodes, dtype=np.uint8)])
        pairs = torch.from_numpy(np.frombuffer(bytes(self.pairs), dtype=np.uint8).copy())
        return PackedGraphs(nodes, pairs, torch.tensor(self.sizes, dtype=torch.long)), vocabulary


@lru_cache(maxsize=4096)
def _has_label(kind: tuple[str, int]) -> bool:
    """Whether an atom has a node class, which a dummy atom has not."""
    try:
        return AtomType.from_label(AtomType(*kind).label) == AtomType(*kind)
    except ValueError:
        return False


def _smiles(mol: Chem.Mol, types: Sequence[tuple[str, int]], bonds: Sequence[tuple[int, int, int]]) -> str:
    """The SMILES of a molecule in the form in which it is packed."""
    if any(atom.GetIsotope() or atom.GetNumRadicalElectrons() for atom in mol.GetAtoms()):
        vocabulary = Vocabulary.from_types(AtomType(*t) for t in types)
        mol = classes_to_mol([vocabulary.index[t] for t in types], bonds, vocabulary) or mol
    return to_smiles(mol, stereo=False)


def pack_lines(
    rows: Sequence[tuple[int, str]], path: str | Path, min_atoms: int | None = None, max_atoms: int | None = None
) -> Packer:
    """Parse (line number, SMILES) rows; errors name the path."""
    packer = Packer(min_atoms, max_atoms)
    with BlockLogs():
        for line, text in rows:
            try:
                packer.add(line, text)
            except ValueError as error:
                raise ValueError(f"path: {str(path)!r} {error}") from None
    return packer


def pack(
    rows: Iterable[tuple[int, str]],
    path: str | Path,
    min_atoms: int | None = None,
    max_atoms: int | None = None,
    jobs: int | None = 1,
) -> Packer:
    """Parse (line number, SMILES) rows, many of them by ``jobs`` processes; the result does not depend on their number.

    Args:
        rows: lines in their order.
        path: path named in errors.
        min_atoms: see :class:`Packer`, as for ``max_atoms``.
        max_atoms: largest number of heavy atoms; None for any.
        jobs: number of processes; None: one per core that may be used.
    """
    function = partial(pack_lines, path=path, min_atoms=min_atoms, max_atoms=max_atoms)
    whole = Packer(min_atoms, max_atoms)
    for part in map_blocks(function, blocks(rows, BLOCK), jobs, alone=PARALLEL_ROWS // BLOCK):
        whole.extend(part)
    return whole
