"""Molecules in space as SDF and xyz files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rdkit import Chem
from rdkit.Chem import rdDepictor, rdDetermineBonds
from rdkit.rdBase import BlockLogs

from discrete_grpo.domains.spatial_molecules import SpatialMolecule, as_written, check_apart, from_mol, unsanitised

__all__ = [
    "from_sdf",
    "from_xyz",
    "perceive_bonds",
    "plane_sdf",
    "read_record",
    "sdf_records",
    "to_sdf",
    "to_xyz",
    "xyz_frames",
]

_CHARGE = re.compile(r"\bcharge=([+-]?\d+)\b")


# -- SDF


def to_sdf(molecules: Iterable[SpatialMolecule], names: Sequence[str] | None = None) -> str:
    """Text of an SDF file, valid molecules or not; positions have four decimals.

    Args:
        molecules: one record each.
        names: title line of each record; empty by default.

    Raises:
        ValueError: if there are not as many names as molecules.
    """
    molecules = list(molecules)
    names = [""] * len(molecules) if names is None else names
    if len(names) != len(molecules):
        raise ValueError(f"names: {len(names)} for {len(molecules)} molecules, expected one per molecule")
    blocks = []
    for molecule, name in zip(molecules, names, strict=True):
        mol = unsanitised(molecule)
        mol.UpdatePropertyCache(strict=False)
        mol.SetProp("_Name", name)
        blocks.append(f"{Chem.MolToMolBlock(mol, includeStereo=False, kekulize=False)}$$$$\n")
    return "".join(blocks)


def plane_sdf(smiles: Sequence[str], properties: Mapping[str, Sequence[Any]]) -> str:
    """Text of an SDF file of molecules as they are drawn in the plane, with SMILES as titles, without texts that RDKit cannot read.

    Args:
        smiles: one record each.
        properties: data items of the records by name; None leaves one out.
    """
    text = io.StringIO()
    with Chem.SDWriter(text) as writer, BlockLogs():
        for k, one in enumerate(smiles):
            if (mol := Chem.MolFromSmiles(one)) is None:
                continue
            rdDepictor.Compute2DCoords(mol)
            mol.SetProp("_Name", one)
            for name, values in properties.items():
                if values[k] is not None:
                    mol.SetProp(name, str(values[k]))
            writer.write(mol)
    return text.getvalue()


def sdf_records(lines: Iterable[str]) -> Iterator[str]:
    """Yield the text of each record of an SDF file, without the line ``$$$$``."""
    record: list[str] = []
    for line in lines:
        if line.strip() == "$$$$":
            yield "".join(record)
            record = []
        else:
            record.append(line if line.endswith("\n") else f"{line}\n")
    if any(line.strip() for line in record):
        yield "".join(record)


def read_record(text: str) -> SpatialMolecule:
    """The molecule of one record of an SDF file, with the bond orders that stand there.

    Raises:
        ValueError: if RDKit does not read it, it has no atoms, has bad positions, or is a drawing by its own account.
    """
    header = text.split("\n", 2)[1:2]
    if header and header[0][20:22] == "2D":
        raise ValueError("a drawing (its second line says 2D), expected positions in space")
    with BlockLogs():
        mol = Chem.MolFromMolBlock(text, sanitize=False, removeHs=False)
    if mol is None or not mol.GetNumAtoms():
        raise ValueError("no molecule that RDKit reads, expected the block of a molecule")
    return as_written(mol)


def from_sdf(text: str) -> list[SpatialMolecule]:
    """The molecules of an SDF file, with the bond orders that stand there; data items are dropped.

    Raises:
        ValueError: naming the record, counted from 1, if it cannot be read or has bad positions.
    """
    found = []
    for k, record in enumerate(sdf_records(text.splitlines(keepends=True)), 1):
        try:
            found.append(read_record(record))
            check_apart(found[-1])
        except ValueError as error:
            raise ValueError(f"sdf: record {k}: {error}") from None
    return found


# -- xyz


def to_xyz(molecules: Iterable[SpatialMolecule]) -> str:
    """Text of an xyz file: elements and positions only, and the total charge in the comment line of each frame."""
    lines = []
    for molecule in molecules:
        lines += [f"{len(molecule)}\n", f"charge={sum(molecule.charges)}\n"]
        atoms = zip(molecule.symbols, molecule.positions, strict=True)
        lines += [f"{symbol} {x:.6f} {y:.6f} {z:.6f}\n" for symbol, (x, y, z) in atoms]
    return "".join(lines)


def xyz_frames(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the comment line of each frame of an xyz file and the lines of its atoms.

    Raises:
        ValueError: naming the line, counted from 1, if a frame does not begin with a number of atoms, or if the last one is short.
    """
    rows = enumerate(lines, 1)
    for number, line in rows:
        if not line.strip():
            continue
        count = int(line) if line.strip().isdecimal() else 0
        if count < 1:
            raise ValueError(f"xyz: line {number}: {line.strip()[:60]!r}, expected a number of atoms")
        frame = [text for _, (_, text) in zip(range(count + 1), rows, strict=False)]
        if len(frame) <= count:
            raise ValueError(f"xyz: line {number}: {max(len(frame) - 1, 0)} of {count} atoms, expected one line per atom")
        yield frame


def perceive_bonds(frame: Sequence[str], charge: int | None = None, *, aromatic: bool = False) -> SpatialMolecule:
    """The molecule of an xyz frame, with bonds and formal charges from RDKit's ``rdDetermineBonds``.

    Args:
        frame: a comment and one line per atom, hydrogens included: element, x, y, z in Å; further columns are ignored.
        charge: total charge of the molecule; None takes it from ``charge=...`` in the comment, or else 0.
        aromatic: whether aromatic bonds have the order 4.

    Raises:
        ValueError: for an unknown element, bad positions, or where RDKit finds no bonds that fit the charge.

    Source: Kim and Kim (2015), doi 10.1002/bkcs.10334, as in RDKit.
    """
    noted = _CHARGE.search(frame[0])
    charge = (int(noted[1]) if noted else 0) if charge is None else charge
    symbols, positions = [], []
    for k, line in enumerate(frame[1:]):
        try:
            symbol, x, y, z, *_ = line.split()
            positions.append((float(x), float(y), float(z)))
        except ValueError:
            raise ValueError(f"atom {k}: {line.strip()[:60]!r}, expected an element and three numbers") from None
        symbols.append(symbol)
    atoms = SpatialMolecule(tuple(symbols), (0,) * len(symbols), (), tuple(positions))
    check_apart(atoms)
    mol = unsanitised(atoms)
    try:
        with BlockLogs():
            rdDetermineBonds.DetermineBonds(mol, charge=charge)
            if mol.GetNumAtoms() == 1:  # whose charge is not set there
                mol.GetAtomWithIdx(0).SetFormalCharge(charge)
            Chem.SanitizeMol(mol)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"charge: {charge}: no bonds that fit it; {' '.join(str(error).split())[:120]}") from None
    if (total := Chem.GetFormalCharge(mol)) != charge:
        raise ValueError(f"charge: {charge}: no bonds that fit it; RDKit finds a molecule of charge {total}")
    return from_mol(mol, aromatic=aromatic)


def from_xyz(text: str, charge: int | None = None, *, aromatic: bool = False) -> list[SpatialMolecule]:
    """The molecules of an xyz file of one or more frames; see :func:`perceive_bonds` for the arguments.

    Raises:
        ValueError: naming the frame, counted from 1, if it cannot be read, has bad positions or no bonds that fit the charge.
    """
    found = []
    for k, frame in enumerate(xyz_frames(text.splitlines()), 1):
        try:
            found.append(perceive_bonds(frame, charge, aromatic=aromatic))
        except ValueError as error:
            raise ValueError(f"xyz: frame {k}: {error}") from None
    return found
