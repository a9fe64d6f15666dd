"""Stability of atoms and molecules in space by both conventions, and relaxation in a force field."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import rdForceFieldHelpers

from discrete_grpo.domains import force_field
from discrete_grpo.domains.force_field import Relaxation, relax
from discrete_grpo.domains.spatial_geometry import (
    midi_stable,
    octet_stable,
)
from discrete_grpo.domains.spatial_molecules import (
    SpatialMolecule,
    from_mol,
    to_mol,
    valid_mol,
)
from tests.domains.test_spatial_molecules import SMILES, alone, embedded

# -- stability


@pytest.mark.parametrize(
    ("symbol", "charge", "orders", "octet", "midi"),
    [
        ("C", 0, [1, 1, 1, 1], True, True),
        ("C", 0, [2, 1, 1], True, True),
        ("C", 0, [1, 1, 1], False, True),  # a radical, which MiDi's table allows
        ("C", 0, [1] * 5, False, False),
        ("C", -1, [1, 1, 1], True, True),
        ("C", 1, [1, 1, 1], True, True),
        ("N", 0, [1, 1, 1], True, True),
        ("N", 0, [1, 1], False, True),
        ("N", 0, [1, 1, 1, 1], False, False),
        ("N", 1, [1, 1, 1, 1], True, True),
        ("N", 1, [1, 1], False, True),
        ("N", -1, [1, 1], True, True),
        ("O", 0, [1, 1], True, True),
        ("O", 0, [1], False, False),
        ("O", -1, [1], True, True),
        ("O", 1, [1, 1, 1], True, True),
        ("F", 0, [1], True, True),
        ("F", 0, [], False, False),
        ("F", -1, [], True, True),
        ("H", 0, [1], True, True),
        ("H", 1, [], True, True),
        ("S", 0, [1, 1], True, True),
        ("S", 0, [2, 2, 1, 1], True, True),
        ("Cl", 0, [1], True, True),
        ("P", 0, [2, 1, 1, 1], True, True),
    ],
)
def test_stability_of_one_atom(symbol: str, charge: int, orders: list[int], octet: bool, midi: bool) -> None:
    made = alone(symbol, charge, orders)
    assert (octet_stable(made)[0], midi_stable(made)[0]) == (octet, midi)


def test_an_unknown_charge_counts_as_neutral_for_midi() -> None:
    assert midi_stable(alone("O", 2, [1, 1]))[0]
    assert not midi_stable(alone("He", 0, []))[0]


PUBLISHED: dict[str, int | list[int] | dict[int, int | list[int]]] = {
    "H": {0: 1, 1: 0, -1: 0},
    "C": {0: [3, 4], 1: 3, -1: 3},
    "N": {0: [2, 3], 1: [2, 3, 4], -1: 2},
    "O": {0: 2, 1: 3, -1: 1},
    "F": {0: 1, -1: 0},
    "B": 3,
    "Al": 3,
    "Si": 4,
    "P": {0: [3, 5], 1: 4},
    "S": {0: [2, 6], 1: [2, 3], 2: 4, 3: 5, -1: 3},
    "Cl": 1,
    "As": 3,
    "Br": {0: 1, 1: 2},
    "I": 1,
    "Hg": [1, 2],
    "Bi": [3, 5],
    "Se": [2, 4, 6],
}
"""``allowed_bonds`` of MiDi's code, midi/analysis/rdkit_functions.py."""


@pytest.mark.parametrize("symbol", PUBLISHED)
def test_the_table_of_midi_is_the_published_one(symbol: str) -> None:
    row = PUBLISHED[symbol]
    for charge in range(-2, 4):
        bonds = row.get(charge, row[0]) if isinstance(row, dict) else row
        wanted = bonds if isinstance(bonds, list) else [bonds]
        assert [n for n in range(8) if midi_stable(alone(symbol, charge, [1] * n))[0]] == wanted


def test_sums_of_aromatic_bonds_are_rounded_down_for_midi() -> None:
    assert midi_stable(alone("N", 0, [4, 1, 1]))[0]  # 3.5
    assert not midi_stable(alone("O", 0, [4]))[0]  # 1.5


def test_metals_are_stable_with_any_bonds() -> None:
    assert octet_stable(alone("Fe", 0, [1, 1]))[0]


@pytest.mark.parametrize("aromatic", [False, True])
@pytest.mark.parametrize("smiles", [*SMILES, "c1ccncc1", "O=c1cc[nH]cc1", "[NH3+]CC(=O)[O-]"])
def test_real_molecules_are_stable(smiles: str, aromatic: bool) -> None:
    assert all(octet_stable(from_mol(embedded(smiles), aromatic=aromatic)))


def test_halves_of_aromatic_bonds_are_cut_off_for_midi() -> None:
    pyrrole, pyridine = (from_mol(embedded(s), aromatic=True) for s in ("c1cc[nH]c1", "c1ccncc1"))
    assert midi_stable(pyrrole)[pyrrole.symbols.index("N")] is False  # 1.5 + 1.5 + 1 = 4, as in MiDi's code
    assert all(midi_stable(pyridine))


def test_a_lost_hydrogen_is_seen() -> None:
    ethanol = from_mol(embedded("CCO"))
    bonds = tuple(bond for bond in ethanol.bonds if 8 not in bond[:2])
    lost = SpatialMolecule(ethanol.symbols[:8], ethanol.charges[:8], bonds, ethanol.positions[:8])
    assert to_mol(lost) is not None  # RDKit fills it in
    assert octet_stable(lost).count(False) == 1


# -- force field


def test_relaxation_is_that_of_rdkit() -> None:
    mol = embedded("C[C@H](N)C(=O)O", seed=3)
    made, properties = from_mol(mol), rdForceFieldHelpers.MMFFGetMoleculeProperties(mol)
    before = rdForceFieldHelpers.MMFFGetMoleculeForceField(mol, properties).CalcEnergy()
    positions = mol.GetConformer().GetPositions()
    assert rdForceFieldHelpers.MMFFOptimizeMolecule(mol, maxIters=1000) == 0
    after = rdForceFieldHelpers.MMFFGetMoleculeForceField(mol, properties).CalcEnergy()
    found = relax(made)
    assert found is not None
    assert found.energy == pytest.approx(before, rel=1e-9)
    assert found.relaxed_energy == pytest.approx(after, abs=1e-6)
    assert found.strain == pytest.approx(before - after, abs=1e-6)
    assert found.strain > 1.0
    assert found.strain_per_atom == pytest.approx((before - after) / 13, abs=1e-6)
    one, other = positions - positions.mean(0), mol.GetConformer().GetPositions() - mol.GetConformer().GetPositions().mean(0)
    left, values, right = np.linalg.svd(one.T @ other)  # Kabsch
    values[2] *= np.sign(np.linalg.det(left @ right))
    wanted = math.sqrt(((one**2).sum() + (other**2).sum() - 2 * values.sum()) / len(one))
    assert found.rmsd == pytest.approx(wanted, abs=1e-4)
    assert found.converged


def test_a_relaxed_molecule_has_no_strain() -> None:
    mol = embedded("CCO")
    rdForceFieldHelpers.MMFFOptimizeMolecule(mol, maxIters=2000)
    found = relax(from_mol(mol))
    assert found is not None
    assert found.strain == pytest.approx(0.0, abs=1e-3)
    assert found.rmsd == pytest.approx(0.0, abs=1e-2)


def test_hydrogens_that_are_filled_in_add_no_strain() -> None:
    mol = embedded("CCO")
    rdForceFieldHelpers.MMFFOptimizeMolecule(mol, maxIters=2000)
    found = relax(from_mol(Chem.RemoveHs(mol)))
    assert found is not None
    assert found.num_atoms == 9
    assert 0 <= found.strain < 0.3


def test_no_energy_where_there_can_be_none() -> None:
    assert relax(alone("C", 0, [1] * 5)) is None
    assert relax(from_mol(embedded("C[SiH3]"))) is not None
    boron = SpatialMolecule(
        ("B", "F", "F", "F"),
        (0,) * 4,
        tuple((0, k, 1) for k in (1, 2, 3)),
        ((0, 0, 0), (1.3, 0, 0), (-0.65, 1.13, 0), (-0.65, -1.13, 0)),
    )
    assert valid_mol(boron) is not None
    assert relax(boron) is None  # MMFF94 has no parameters for boron


def test_atoms_stay_where_they_are_while_hydrogens_are_filled_in() -> None:
    """Ethane without hydrogens, its bond stretched: all of the strain is in that bond."""
    stretched = SpatialMolecule(("C", "C"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (2.0, 0, 0)))
    relaxed = embedded("CC")
    assert rdForceFieldHelpers.MMFFOptimizeMolecule(relaxed, maxIters=2000) == 0
    rest = float(np.linalg.norm(np.diff(relaxed.GetConformer().GetPositions()[:2], axis=0)))
    found = relax(stretched)
    assert found is not None
    assert found.strain > 30  # kcal/mol
    assert found.rmsd == pytest.approx((2.0 - rest) / 2, abs=1e-3)  # of the two carbons
    assert found.energy_per_atom == found.energy / 8


def test_a_minimisation_that_is_cut_short_has_not_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    made = from_mol(embedded("CC(C)CO"))
    monkeypatch.setattr(force_field, "MAX_STEPS", 1)
    found = relax.__wrapped__(made)
    assert found is not None
    assert not found.converged


def test_a_strain_is_never_negative() -> None:
    assert Relaxation(1.0, 1.5, 0.0, 2, True).strain_per_atom == 0.0
