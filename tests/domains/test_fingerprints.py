"""Fingerprints against RDKit's older functions, and the pharmacophores against RDKit's own loop."""

from __future__ import annotations

import pytest
from rdkit import Chem
from rdkit.Chem.Pharm2D import Generate, Gobbi_Pharm2D

from discrete_grpo.domains.fingerprints import FINGERPRINTS, folded_counts, morgan_counts, pharmacophore
from tests.pmo_definitions import PRINTS

MOLECULES = [
    "C",
    "[H][H]",
    "*",
    "CC",
    "CC.CCCCO",
    "C" * 60,
    "O=C1CCCCCCCCCCCCCCO1",
    "[NH3+][C@@H](Cc1ccccc1)C(=O)[O-]",
    "OB(O)c1ccc([Si](C)(C)[Se]C)cc1",
    "[2H]C([2H])([2H])Oc1ccc(C(=O)O)cc1",
    "CCCOc1cc2ncnc(Nc3ccc4ncsc4c3)c2cc1S(=O)(=O)C(C)(C)C",
    "N" + "C(=O)NC(Cc1ccc(O)cc1)" * 4 + "C(=O)O",
    "c1ccc2c(c1)c1ccccc1c1ccccc21",
    "NCCCCCNCCCCCNC(=N)N",
]


@pytest.mark.parametrize("smiles", MOLECULES)
def test_pharmacophores_are_those_of_the_loop(smiles: str) -> None:
    mol = Chem.MolFromSmiles(smiles)
    assert pharmacophore(mol) == Generate.Gen2DFingerprint(mol, Gobbi_Pharm2D.factory)


def test_pharmacophores_of_many_features() -> None:
    assert pharmacophore(Chem.MolFromSmiles("C" * 199 + "O")).GetNumOnBits() > 100


@pytest.mark.parametrize("name", ["ECFP4", "ECFP6", "FCFP4", "AP"])
def test_counts_are_those_of_the_older_functions(name: str) -> None:
    for smiles in MOLECULES:
        mol = Chem.MolFromSmiles(smiles)
        found, wanted = FINGERPRINTS[name](mol), PRINTS[name](mol)
        assert sorted(found.GetNonzeroElements().values()) == sorted(wanted.GetNonzeroElements().values())


def test_folding_adds_what_falls_together() -> None:
    counts = morgan_counts(Chem.MolFromSmiles("CC(=O)Nc1ccc(O)cc1"), 3, features=True)
    folded = folded_counts(counts, 4)
    assert set(folded) <= {0, 1, 2, 3}
    assert sum(folded.values()) == sum(counts.GetNonzeroElements().values())
