"""SMILES in random order."""

import random

import pytest
from rdkit import Chem

from discrete_grpo.domains.random_smiles import random_smiles
from discrete_grpo.domains.smiles import to_smiles

TEXTS = [
    "C",
    "CC(=O)Oc1ccccc1C(=O)O",
    "N[C@@H](Cc1c[nH]c2ccccc12)C(=O)[O-]",
    "F/C=C/C(Cl)=C\\Br",
    "[13CH3][N+](C)(C)C.[Cl-]",
    "C1CC2CCC1C2",
    "CN1CC[C@]23c4c5ccc(O)c4O[C@H]2[C@@H](O)C=C[C@H]3[C@H]1C5",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_molecule_stays_the_same(text: str) -> None:
    mol, rng = Chem.MolFromSmiles(text), random.Random(0)
    binary = mol.ToBinary()
    for _ in range(50):
        assert to_smiles(Chem.MolFromSmiles(random_smiles(mol, rng))) == to_smiles(mol)
    assert mol.ToBinary() == binary


def test_the_order_is_random() -> None:
    mol, rng = Chem.MolFromSmiles(TEXTS[1]), random.Random(0)
    drawn = {random_smiles(mol, rng) for _ in range(500)}
    assert len(drawn) > 50
    assert len({text[0] for text in drawn}) > 2, "it starts at any atom"


def test_equal_seeds_give_equal_strings() -> None:
    mol = Chem.MolFromSmiles(TEXTS[2])
    first, second = ([random_smiles(mol, rng) for _ in range(10)] for rng in (random.Random(5), random.Random(5)))
    assert first == second
