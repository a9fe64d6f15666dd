"""Molecules with a field of charges to SMILES and back, held against the joint vocabulary and against RDKit."""

from __future__ import annotations

import gzip

import pytest
import torch
from rdkit import Chem

from discrete_grpo.datasets.enumeration import load_enumerated
from discrete_grpo.domains import molecules as chemistry
from discrete_grpo.domains.fields import FieldBatch
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.domains.molecule_fields import AtomFields, as_fields, as_graphs, decode, encode
from discrete_grpo.domains.molecules import Vocabulary
from tests.shared_data import SHARED

CHARGED = (
    "C[N+](C)(C)CC(=O)[O-]",
    "O=[N+]([O-])c1ccccc1",
    "[NH3+]CC(=O)[O-]",
    "c1cc[nH+]cc1",
    "c1cc[nH]c1",
    "[N-]=[N+]=NC",
    "C[S+](C)C",
    "O=P(O)(O)[O-]",
    "[C-]#[O+]",
    "CS(=O)(=O)c1ccc(Cl)cc1",
    "C[n+]1ccn(C)c1",
    "[O-][Cl+3]([O-])([O-])[O-]",
    "Brc1cncc(I)c1",
    "[Na+].[Cl-]",
    "[CH3]",
    "F/C=C/[C@@H](N)[13CH3]",
    "[H]OC([2H])[H]",
)
FIELDS = AtomFields(("C", "N", "O", "F", "Na", "P", "S", "Cl", "Br", "I"), (-1, 0, 1, 3))


def in_rdkit(text: str) -> str:
    return Chem.MolToSmiles(Chem.MolFromSmiles(Chem.MolToSmiles(Chem.MolFromSmiles(text), isomericSmiles=False)))


def test_the_bundled_molecules_come_back() -> None:
    smiles = list(load_enumerated(5).smiles)
    assert len(smiles) > 200
    fields = AtomFields(("C", "N", "O", "F"), (0,))
    assert decode(encode(smiles, fields), fields) == smiles


def test_charged_and_aromatic_molecules_have_the_smiles_of_the_joint_vocabulary() -> None:
    mols = [Chem.MolFromSmiles(text) for text in CHARGED]
    joint = Vocabulary.from_molecules(mols)
    wanted = chemistry.decode(chemistry.encode(CHARGED, joint), joint)
    found = decode(encode(CHARGED, FIELDS), FIELDS)
    assert found == wanted
    assert None not in found
    assert found[:12] == [in_rdkit(text) for text in CHARGED[:12]]
    assert found[14] == "C"  # radicals are filled up with hydrogens, as in the joint vocabulary


def test_the_fields_are_those_of_the_atoms() -> None:
    batch = encode(CHARGED, FIELDS)
    for b, text in enumerate(CHARGED):
        mol = Chem.RemoveAllHs(Chem.MolFromSmiles(text))
        assert batch.sizes[b] == mol.GetNumAtoms()
        for k, atom in enumerate(mol.GetAtoms()):
            assert FIELDS.symbols[batch.nodes["atom"][b, k]] == atom.GetSymbol()
            assert FIELDS.charges[batch.nodes["charge"][b, k]] == atom.GetFormalCharge()
    for values in batch.nodes.values():
        assert not values[~batch.mask].any()
    assert torch.equal(batch.edges["bond"], chemistry.encode(CHARGED, FIELDS.vocabulary).edges)


@pytest.mark.parametrize("order", [("N", "N+1", "C", "O-1", "O"), ("O", "C", "N+1", "O-1", "N")])
def test_graphs_of_a_vocabulary_become_the_same_molecules(order: tuple[str, ...]) -> None:
    joint = Vocabulary(order)
    fields = AtomFields.of(joint)
    assert set(fields.symbols) == {"C", "N", "O"}
    assert fields.charges == (-1, 0, 1)
    smiles = ["C[N+](C)(C)CC(=O)[O-]", "O=[N+]([O-])C", "CNO"]
    batch = as_fields(chemistry.encode(smiles, joint), joint, fields)
    assert decode(batch, fields) == chemistry.decode(chemistry.encode(smiles, joint), joint)
    assert not any(bool(values[~batch.mask].any()) for values in batch.nodes.values())
    back = as_graphs(batch, fields)
    assert [fields.vocabulary.atoms[k] for k in back.nodes[0].tolist()] == ["C", "N+1", "C", "C", "C", "C", "O", "O-1"]


def test_random_graphs_are_valid_exactly_where_they_are_with_the_joint_vocabulary() -> None:
    random = torch.Generator().manual_seed(0)
    fields = AtomFields(("C", "N", "O"), (-1, 0, 1))
    mask = torch.arange(4) < torch.randint(1, 5, (400, 1), generator=random)
    upper = torch.randint(0, 4, (400, 4, 4), generator=random).triu(1) * (torch.rand(400, 4, 4, generator=random) < 0.5)
    bonds = (upper + upper.transpose(1, 2)) * mask[:, None] * mask[:, :, None]
    nodes = {name: torch.randint(0, 3, (400, 4), generator=random) for name in ("atom", "charge")}
    found = decode(FieldBatch(nodes, {"bond": bonds}, None, mask), fields)
    joint = Vocabulary(tuple(f"{symbol}{sign}" for symbol in "CNO" for sign in ("-1", "", "+1")))
    wanted = chemistry.decode(GraphBatch(3 * nodes["atom"] + nodes["charge"], bonds, mask), joint)
    assert found == wanted
    assert 40 < sum(text is None for text in found) < 360
    neutral = {**nodes, "charge": torch.ones(400, 4, dtype=torch.long)}
    assert decode(FieldBatch(neutral, {"bond": bonds}, None, mask), fields) != found


def test_shared_data_round_trip() -> None:
    place = SHARED / "zinc250k_test.smi.gz"
    if not place.is_file():
        pytest.skip("no shared data here")
    lines = gzip.decompress(place.read_bytes()).decode().split()[:1000]
    joint = Vocabulary.from_molecules(Chem.MolFromSmiles(text) for text in lines)
    fields = AtomFields.of(joint)
    assert len(fields.charges) > 1
    wanted = chemistry.decode(chemistry.encode(lines, joint), joint)
    assert decode(encode(lines, fields), fields) == wanted
    assert wanted == [Chem.MolToSmiles(Chem.MolFromSmiles(text), isomericSmiles=False) for text in lines]


@pytest.mark.parametrize(
    ("symbols", "charges", "said"),
    [
        ((), (0,), "symbols: .*expected at least one and none twice"),
        (("C", "C"), (0,), "symbols: .*none twice"),
        (("C",), (), "charges: .*at least one"),
        (("C",), (1, 1), "charges: .*none twice"),
        (("Xx",), (0,), "Xx"),
        (("N+1",), (0,), "symbols: 'N.1', expected the symbol of an element"),
        (("H",), (0,), "symbols: 'H', expected heavy atoms only"),
        (("C",), (10,), "charges: 10"),
        (("C",), (0.5,), "charges: 0.5, expected a whole number"),
    ],
)
def test_classes_that_are_none_are_refused(symbols: tuple[str, ...], charges: tuple[int, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        AtomFields(symbols, charges)
    assert "\n" not in str(caught.value)


def test_samples_and_classes_that_are_unknown_are_one_line() -> None:
    fields = AtomFields(("C", "O"), (-1, 0))
    for text, said in (("C[NH3+]", "'N.1'"), ("C[OH2+]", "'O.1'"), ("C(", "expected a SMILES string")):
        with pytest.raises(ValueError, match=said) as caught:
            encode(["CO", text], fields)
        assert str(caught.value).startswith("smiles[1]: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"vocabulary: atom 'N.1', expected one of C, O and a charge of -1, 0"):
        as_fields(chemistry.encode(["C"], Vocabulary(("C", "N+1"))), Vocabulary(("C", "N+1")), fields)
    batch = encode(["CO"], fields)
    for name, value in (("atom", 2), ("charge", 2), ("charge", -1)):
        wrong = {**batch.nodes, name: torch.full_like(batch.nodes[name], value)}
        with pytest.raises(ValueError, match=f"class of field {name}: {value}"):
            decode(FieldBatch(wrong, batch.edges, None, batch.mask), fields)
