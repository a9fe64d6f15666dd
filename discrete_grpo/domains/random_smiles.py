"""SMILES of a molecule in a random order of its atoms."""

from __future__ import annotations

import random

from rdkit import Chem

__all__ = ["random_smiles"]


def random_smiles(mol: Chem.Mol, rng: random.Random) -> str:
    """A SMILES string of ``mol`` for atoms in random order; its canonical SMILES is that of ``mol``.

    This is the restricted variant of the source: the first atom and the order of neighbours are random, within the rules of RDKit
    for short branches and rings. The order comes from ``rng`` alone; ``doRandom`` of RDKit draws from a global generator.

    >>> ethanol = Chem.MolFromSmiles("CCO")
    >>> sorted({random_smiles(ethanol, random.Random(seed)) for seed in range(20)})
    ['C(C)O', 'C(O)C', 'CCO', 'OCC']

    Source: Arús-Pous et al. (2019), J. Cheminform. 11, 71, doi 10.1186/s13321-019-0393-0.
    """
    order = list(range(mol.GetNumAtoms()))
    rng.shuffle(order)
    return str(Chem.MolToSmiles(Chem.RenumberAtoms(mol, order), canonical=False))
