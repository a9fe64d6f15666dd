"""Statistics of molecules with a field of charges, counted again with RDKit, and the data as fields."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch
from rdkit import Chem

from discrete_grpo.datasets.molecule_fields import FieldMolecules, MoleculeFieldStatistics, field_statistics
from discrete_grpo.datasets.molecules import MoleculeStatistics, dataset_from_smiles, statistics
from discrete_grpo.domains.molecule_fields import decode
from discrete_grpo.runs.checkpoint import load_metadata
from discrete_grpo.runs.checkpoint_names import BUNDLED

SMILES = ("C[N+](C)(C)CC(=O)[O-]", "O=[N+]([O-])c1ccccc1", "CCO", "C#N", "C[S-]", "F")


def test_the_shares_are_those_that_rdkit_counts() -> None:
    found = field_statistics(statistics(dataset_from_smiles(SMILES, "some")))
    mols = [Chem.MolFromSmiles(text) for text in SMILES]
    atoms = [atom for mol in mols for atom in mol.GetAtoms()]
    elements = Counter(atom.GetSymbol() for atom in atoms)
    charges = Counter(atom.GetFormalCharge() for atom in atoms)
    assert found.symbols == ("C", "N", "O", "F", "S")
    assert found.charges == (-1, 0, 1)
    assert found.atom_marginal == pytest.approx([elements[symbol] / len(atoms) for symbol in found.symbols])
    assert found.charge_marginal == pytest.approx([charges[charge] / len(atoms) for charge in found.charges])
    sizes = Counter(mol.GetNumAtoms() for mol in mols)
    assert found.node_counts == pytest.approx([sizes[n] / len(mols) for n in range(max(sizes) + 1)])
    orders: Counter[float] = Counter()
    for mol in mols:
        Chem.Kekulize(mol, clearAromaticFlags=True)
        orders.update(bond.GetBondTypeAsDouble() for bond in mol.GetBonds())
        orders[0.0] += mol.GetNumAtoms() * (mol.GetNumAtoms() - 1) // 2 - mol.GetNumBonds()
    assert found.bond_marginal == pytest.approx([orders[float(k)] / orders.total() for k in range(4)])
    assert (found.num_molecules, found.name) == (6, "some")


def test_statistics_survive_json() -> None:
    found = field_statistics(statistics(dataset_from_smiles(SMILES)))
    assert MoleculeFieldStatistics.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_the_statistics_of_a_bundled_policy_can_be_taken_apart() -> None:
    kept = load_metadata(BUNDLED / "qm9-small")["statistics"]
    found = field_statistics(MoleculeStatistics.from_json(kept))
    assert sum(found.atom_marginal) == pytest.approx(1)
    assert sum(found.charge_marginal) == pytest.approx(1)
    assert found.num_molecules == kept["num_molecules"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"charges": [0]}, "charge_marginal: 3 shares, expected one for each of 1 classes"),
        ({"atom_marginal": [1.0]}, "atom_marginal: 1 shares"),
        ({"charges": [0, 0, 1]}, "charges: .*none twice"),
        ({"extra": 1}, "statistics: fields .*extra"),
    ],
)
def test_statistics_that_do_not_fit_are_refused(change: dict[str, Any], said: str) -> None:
    plain = field_statistics(statistics(dataset_from_smiles(SMILES))).to_json()
    with pytest.raises(ValueError, match=said):
        MoleculeFieldStatistics.from_json(plain | change)


def test_the_data_are_the_molecules_at_the_rows() -> None:
    data = dataset_from_smiles(SMILES)
    made = FieldMolecules(data, field_statistics(statistics(data)).fields)
    assert len(made) == 6
    assert torch.equal(made.sizes, data.sizes)
    batch = made.batch(torch.tensor([4, 1, 0]))
    assert decode(batch, made.fields) == [data.smiles[k] for k in (4, 1, 0)]
    assert {value.dtype for value in (*batch.nodes.values(), *batch.edges.values())} == {torch.int64}
