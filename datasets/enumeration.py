"""Exhaustive enumeration of the small molecules of C, N, O and F.

Level n adds one atom by a single bond to every molecule of level n - 1, and then all molecules that follow by raising the order of
a pair by one (from none to single closes a ring), within the valences C 4, N 3, O 2, F 1. Canonical SMILES identify molecules.
Every connected graph within these valences is found: its spanning tree grows atom by atom, and its other bonds are raised.

``python -m discrete_grpo.datasets.enumeration --max-atoms 7 --out FILE.smi.gz`` writes the molecules that pass
:func:`gdb_like` in some minutes; the package includes those of up to 7 atoms.
"""

from __future__ import annotations

import argparse
import gzip
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from rdkit import Chem

from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.molecules import MoleculeDataset, dataset_from_smiles
from discrete_grpo.domains.molecules import Vocabulary, classes_to_mol

__all__ = ["enumerate_molecules", "gdb_like", "load_enumerated", "write_enumerated"]

VOCABULARY = Vocabulary(("C", "N", "O", "F"))
_VALENCE = (4, 3, 2, 1)
_MAX_ORDER = 3
BUNDLED_ATOMS = 7
ENUMERATED_FILE = Path(__file__).parent / "data" / "enumerated7.smi.gz"

Packed = tuple[tuple[int, ...], bytes]  # node classes, and bond classes of the pairs in the order of discrete_grpo.domains.graphs


@lru_cache(maxsize=16)
def _pairs(n: int) -> tuple[tuple[int, int], ...]:
    return tuple((i, j) for j in range(n) for i in range(j))


def _free(graph: Packed) -> list[int]:
    """Return the free valence of each atom."""
    nodes, orders = graph
    free = [_VALENCE[k] for k in nodes]
    for (i, j), order in zip(_pairs(len(nodes)), orders, strict=True):
        free[i] -= order
        free[j] -= order
    return free


def _smiles(graph: Packed) -> str:
    nodes, orders = graph
    bonds = [(i, j, order) for (i, j), order in zip(_pairs(len(nodes)), orders, strict=True) if order]
    mol = classes_to_mol(nodes, bonds, VOCABULARY)
    if mol is None:
        raise RuntimeError(f"a graph within the valences does not sanitise: {graph}")
    return str(Chem.MolToSmiles(mol))


def _extensions(graph: Packed) -> Iterator[Packed]:
    """Yield the graphs with one more atom, of each element, on a single bond to each atom with free valence."""
    nodes, orders = graph
    n = len(nodes)
    for i, left in enumerate(_free(graph)):
        if left:
            row = bytes(int(k == i) for k in range(n))
            for kind in range(len(_VALENCE)):
                yield (*nodes, kind), orders + row


def _raises(graph: Packed) -> Iterator[Packed]:
    """Yield the graphs with the order of one pair raised by one, where both ends have free valence."""
    nodes, orders = graph
    free = _free(graph)
    for p, (i, j) in enumerate(_pairs(len(nodes))):
        if free[i] and free[j] and orders[p] < _MAX_ORDER:
            yield nodes, orders[:p] + bytes([orders[p] + 1]) + orders[p + 1 :]


def _close(starts: Iterable[Packed]) -> dict[str, Packed]:
    """Return all graphs that follow from ``starts`` by raising orders, by canonical SMILES."""
    found: dict[str, Packed] = {}
    open_graphs = iter(starts)
    while True:
        fresh = []
        for graph in open_graphs:
            key = _smiles(graph)
            if key not in found:
                found[key] = graph
                fresh.append(graph)
        if not fresh:
            return found
        open_graphs = (raised for graph in fresh for raised in _raises(graph))


def _levels(max_atoms: int) -> Iterator[list[str]]:
    """Yield the sorted SMILES of 1, 2, ... ``max_atoms`` atoms."""
    level = _close(((kind,), b"") for kind in range(len(_VALENCE)))
    yield sorted(level)
    for _ in range(max_atoms - 1):
        level = _close(larger for graph in level.values() for larger in _extensions(graph))
        yield sorted(level)


def enumerate_molecules(max_atoms: int) -> list[str]:
    """Return the canonical SMILES of all connected molecules of at most ``max_atoms`` C, N, O, F atoms, by size and then string.

    There are 4, 19, 94, 621, 4,715, 42,068 and 417,611 of 1 to 7 atoms; the last level takes minutes.

    Raises:
        ValueError: if ``max_atoms`` is below 1 or above 8.

    >>> enumerate_molecules(2)[:7]
    ['C', 'F', 'N', 'O', 'C#C', 'C#N', 'C=C']
    """
    check_range("max_atoms", max_atoms, least=1, most=8, note=" (each further atom takes ten times the work)")
    return [smiles for level in _levels(max_atoms) for smiles in level]


# Filter --------------------------------------------------------------------------------------------------------------

_UNWANTED = (
    ("[#7,#8,#9]~[#7,#8,#9]~[#7,#8,#9]", "chain of three heteroatoms"),
    ("[O,F]~[O,F]", "O-O, O-F or F-F"),
    ("N-F", "N-F"),
    ("[r3,r4]=,#;@[r3,r4]", "multiple bond inside a 3- or 4-ring"),
    ("[r3]=[!r3]", "double bond out of a 3-ring"),
    ("[r5]#[r5]", "triple bond inside a 5-ring"),
    ("C=C=C", "allene"),
    ("[#6]=[#6]=[#7,#8]", "ketene or ketenimine"),
    ("O=C=*", "isocyanate or carbon dioxide"),
    ("[#6]=[NH]", "imine with a hydrogen on nitrogen"),
    ("C=C-[OX2H]", "enol"),
    ("C=C-[NH2]", "primary enamine"),
    ("[CX4]([OX2H])[N,O]", "hemiaminal or hemiacetal"),
    ("[CX4]([NX3])[N,O,F]", "aminal, or an alpha-heteroatom amine"),
    ("[CX4]([N,O])F", "alpha-fluoro ether, alcohol or amine"),
)


@lru_cache(maxsize=1)
def _patterns() -> tuple[Chem.Mol, ...]:
    return tuple(Chem.MolFromSmarts(smarts) for smarts, _ in _UNWANTED)


def gdb_like(mol: Chem.Mol) -> bool:
    """Return whether a molecule passes filters like those of the GDB databases: no listed pattern, no atom in two 3- or 4-rings.

    Keeps 4, 13, 32, 147, 735, 4,628 and 32,516 of the molecules of 1 to 7 atoms. Patterns with element letters match
    aliphatic atoms only, so a few odd aromatic 4-rings pass.

    >>> gdb_like(Chem.MolFromSmiles("CCO")), gdb_like(Chem.MolFromSmiles("COO"))
    (True, False)
    """
    small = [atom for ring in mol.GetRingInfo().AtomRings() if len(ring) <= 4 for atom in ring]
    return len(small) == len(set(small)) and not any(mol.HasSubstructMatch(pattern) for pattern in _patterns())


# Files ---------------------------------------------------------------------------------------------------------------


def enumerated_smiles() -> list[str]:
    """Return the bundled molecules as SMILES, smallest first."""
    return gzip.decompress(ENUMERATED_FILE.read_bytes()).decode().split()


def load_enumerated(max_atoms: int = 7, *, min_atoms: int = 1) -> MoleculeDataset:
    """Load the bundled molecules of ``min_atoms`` to ``max_atoms`` atoms that pass :func:`gdb_like`, with all four atom types.

    Raises:
        ValueError: unless 1 <= min_atoms <= max_atoms <= 7.
    """
    check_range("max_atoms", max_atoms, least=1, most=BUNDLED_ATOMS)
    check_range("min_atoms", min_atoms, least=1, most=max_atoms, note=" (max_atoms)")
    kept = [smiles for smiles in enumerated_smiles() if min_atoms <= sum(c in "CNOFcnof" for c in smiles) <= max_atoms]
    return dataset_from_smiles(kept, name=f"enumerated{max_atoms}")


def write_enumerated(path: str | Path, max_atoms: int) -> int:
    """Write the filtered molecules as a gzipped file with reproducible bytes; returns their number."""
    kept = [smiles for smiles in enumerate_molecules(max_atoms) if gdb_like(Chem.MolFromSmiles(smiles))]
    text = "".join(f"{smiles}\n" for smiles in kept)
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=9, mtime=0) as file:  # no name, no time
        file.write(text.encode())
    Path(path).write_bytes(buffer.getvalue())
    return len(kept)


def command_line(arguments: Sequence[str] | None = None) -> None:
    """Run ``python -m discrete_grpo.datasets.enumeration --max-atoms N --out FILE.smi.gz``."""
    parser = argparse.ArgumentParser(description=command_line.__doc__, allow_abbrev=False)
    parser.add_argument("--max-atoms", type=int, default=BUNDLED_ATOMS)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    print(f"{write_enumerated(given.out, given.max_atoms)} molecules in {given.out}", file=sys.stderr)


if __name__ == "__main__":
    command_line()
