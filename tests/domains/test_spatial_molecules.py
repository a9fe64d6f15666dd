"""Molecules in space: construction, RDKit, files, geometry, stability, force field."""

from __future__ import annotations

import io
import itertools
import math
import pickle

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import rdDistGeom, rdMolTransforms

from discrete_grpo.domains.spatial_files import from_sdf, from_xyz, plane_sdf, to_sdf, to_xyz
from discrete_grpo.domains.spatial_geometry import (
    angle_centres,
    bond_angles,
    bond_lengths,
    count_clashes,
    dihedral_angles,
    octet_stable,
)
from discrete_grpo.domains.spatial_molecules import (
    SpatialMolecule,
    _dense_text,
    check_apart,
    from_cxsmiles,
    from_mol,
    is_dense,
    smiles_of,
    to_cxsmiles,
    to_mol,
    valid_mol,
)
from discrete_grpo.metrics.spatial import readings

WATER = SpatialMolecule(("O", "H", "H"), (0, 0, 0), ((0, 1, 1), (0, 2, 1)), ((0, 0, 0), (0.96, 0, 0), (-0.24, 0.93, 0)))
SMILES = ["CCO", "c1cc[nH]c1", "C[N+](=O)[O-]", "CC(=O)[O-]", "C#CC=O", "CS(C)(=O)=O", "C[C@H](N)C(=O)O", "FC(F)=C"]


def embedded(smiles: str, seed: int = 1) -> Chem.Mol:
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    assert rdDistGeom.EmbedMolecule(mol, randomSeed=seed) == 0
    return mol


def alone(symbol: str, charge: int, orders: list[int], partner: str = "H") -> SpatialMolecule:
    """An atom with bonds of these orders to partners far apart."""
    n = len(orders)
    bonds = [(0, k + 1, order) for k, order in enumerate(orders)]
    places = [(0.0, 0.0, 0.0), *((1.0 + k, 1.0, 0.0) for k in range(n))]
    return SpatialMolecule((symbol, *[partner] * n), (charge, *[0] * n), tuple(bonds), tuple(places))


def dense(n: int, share: float) -> SpatialMolecule:
    """Atoms of which this share of the pairs is bonded, of which RDKit cannot find the rings."""
    random = np.random.default_rng(0)
    pairs = [(i, j) for i, j in itertools.combinations(range(n), 2) if random.random() < share]
    bonds = [(i, j, int(order)) for (i, j), order in zip(pairs, random.integers(1, 5, len(pairs)), strict=True)]
    symbols, charges = random.choice(["C", "N", "Cl", "H"], n).tolist(), random.integers(-2, 3, n).tolist()
    places = random.normal(size=(n, 3)).round(3).tolist()
    return SpatialMolecule(tuple(symbols), tuple(charges), tuple(bonds), tuple(map(tuple, places)))


# -- construction


@pytest.mark.parametrize("share", [0.3, 0.7, 1.0])
def test_samples_of_very_many_bonds_are_read_written_and_invalid(share: float) -> None:
    sample = dense(60, share)
    assert is_dense(sample)
    assert from_cxsmiles(to_cxsmiles(sample)) == sample
    assert to_mol(sample) is None
    assert len(octet_stable(sample)) == 60
    assert readings([sample])[0].name is None


def test_both_spellings_of_a_molecule_are_read_alike() -> None:
    for smiles in SMILES:
        one = from_mol(embedded(smiles), aromatic=True)
        assert not is_dense(one)
        read, other = from_cxsmiles(_dense_text(one)), from_cxsmiles(to_cxsmiles(one))
        assert smiles_of(read) == smiles_of(other) == smiles_of(one)
        assert (read.symbols, read.charges, read.bonds) == (one.symbols, one.charges, one.bonds)
        assert np.allclose(read.coordinates, one.coordinates, atol=1e-4)


def test_lists_become_tuples_and_molecules_compare() -> None:
    loose = SpatialMolecule(["O", "H", "H"], [0, 0, 0], [[0, 1, 1], [0, 2, 1]], WATER.coordinates.tolist())  # type: ignore[arg-type]
    assert loose == WATER
    assert hash(loose) == hash(WATER)
    assert pickle.loads(pickle.dumps(WATER)) == WATER
    assert len(WATER) == 3


@pytest.mark.parametrize(
    ("symbols", "charges", "bonds", "positions", "said"),
    [
        (["Xx"], [0], [], [[0, 0, 0]], "symbols[0]: 'Xx', expected the symbol of an element"),
        (["*"], [0], [], [[0, 0, 0]], "symbols[0]: '*', expected the symbol of an element"),
        (["C"], [0], [], [[0, math.nan, 0]], "positions[0]: (0.0, nan, 0.0), expected three finite numbers"),
        (["C"], [0], [], [[0, math.inf, 0]], "positions[0]: (0.0, inf, 0.0), expected three finite numbers"),
        (["C"], [0], [], [[0, 0]], "positions[0]: (0.0, 0.0), expected three finite numbers"),
        (["C"], [], [], [[0, 0, 0]], "charges, positions: 0 and 1 entries for 1 symbols, expected one per atom"),
        (["C", "C"], [0, 0], [(1, 0, 1)], [[0, 0, 0]] * 2, "bonds[0]: (1, 0, 1), expected (i, j, order) with 0 <= i < j < 2"),
        (["C", "C"], [0, 0], [(0, 2, 1)], [[0, 0, 0]] * 2, "bonds[0]: (0, 2, 1), expected (i, j, order) with 0 <= i < j < 2"),
        (["C", "C"], [0, 0], [(0, 1, 5)], [[0, 0, 0]] * 2, "bonds[0]: (0, 1, 5), expected (i, j, order)"),
        (["C", "C"], [0, 0], [(0, 1, 1)] * 2, [[0, 0, 0]] * 2, "bonds[1]: (0, 1, 1), expected each pair of atoms once"),
    ],
)
def test_bad_input_is_one_clear_line(symbols: list, charges: list, bonds: list, positions: list, said: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        SpatialMolecule(symbols, charges, bonds, positions)  # type: ignore[arg-type]
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_two_atoms_at_one_place_are_named_and_invalid() -> None:
    close = SpatialMolecule(("C", "O", "H"), (0, 0, 0), ((0, 1, 1), (1, 2, 1)), ((0, 0, 0), (1.4, 0, 0), (1.4, 0.05, 0)))
    with pytest.raises(ValueError, match=r"^positions: atoms 1 and 2 are 0\.050 Å apart, expected at least 0\.1 Å$"):
        check_apart(close)
    assert to_mol(close) is None
    check_apart(WATER)


# -- RDKit


@pytest.mark.parametrize("smiles", SMILES)
@pytest.mark.parametrize("aromatic", [False, True])
def test_a_molecule_survives_the_way_to_rdkit_and_back(smiles: str, aromatic: bool) -> None:
    mol = embedded(smiles)
    made = from_mol(mol, aromatic=aromatic)
    again = to_mol(made)
    assert again is not None
    assert from_mol(again, aromatic=aromatic) == made
    np.testing.assert_array_equal(again.GetConformer().GetPositions(), mol.GetConformer().GetPositions())
    assert smiles_of(made) == Chem.CanonSmiles(Chem.MolToSmiles(Chem.MolFromSmiles(smiles), isomericSmiles=False))
    assert any(order == 4 for _, _, order in made.bonds) == (aromatic and "c1" in smiles)


@pytest.mark.parametrize("smiles", SMILES)
@pytest.mark.parametrize("aromatic", [False, True])
def test_a_molecule_survives_as_a_line(smiles: str, aromatic: bool) -> None:
    made = from_mol(embedded(smiles), aromatic=aromatic)
    back = from_cxsmiles(str(made))
    assert smiles_of(back, stereo=True) == smiles_of(made, stereo=True)
    order = [int(np.abs(made.coordinates - row).sum(1).argmin()) for row in back.coordinates]  # lines have an order of their own
    assert sorted(order) == list(range(len(made)))
    assert [made.symbols[k] for k in order] == list(back.symbols)
    assert [made.charges[k] for k in order] == list(back.charges)
    bonds = {(min(order[i], order[j]), max(order[i], order[j]), kind) for i, j, kind in back.bonds}
    assert bonds == set(made.bonds)
    np.testing.assert_allclose(back.coordinates, made.coordinates[order], atol=1e-4)


@pytest.mark.parametrize(
    "odd",
    [
        SpatialMolecule(("C", "N", "O"), (0, 3, -2), ((0, 1, 2), (0, 2, 3)), ((0, 0, 0), (1.25, 0, 0), (0, 1, -4))),
        SpatialMolecule(("C", "H"), (0, 0), (), ((0, 0, 0), (0, 0, 0.01))),  # in two pieces, two atoms at one place
        SpatialMolecule(("C",) * 3, (0,) * 3, ((0, 1, 4), (0, 2, 4), (1, 2, 3)), ((0, 0, 0), (1, 0, 0), (0, 1, 0))),
        SpatialMolecule(("H", "Si"), (0, 0), ((0, 1, 4),), ((0, 0, 0), (1, 0, 0))),
    ],
)
def test_what_is_invalid_is_a_line_too(odd: SpatialMolecule) -> None:
    back = from_cxsmiles(to_cxsmiles(odd))
    assert sorted(zip(back.symbols, back.charges, back.positions, strict=True)) == sorted(
        zip(odd.symbols, odd.charges, odd.positions, strict=True)
    )
    assert sorted(kind for _, _, kind in back.bonds) == sorted(kind for _, _, kind in odd.bonds)


@pytest.mark.parametrize("text", ["CCO", "", "no molecule", "C |(0,0,0"])
def test_a_line_without_positions_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^text: .*, expected a SMILES with positions"):
        from_cxsmiles(text)


def test_stereochemistry_is_read_from_the_positions() -> None:
    for text in ("C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O"):
        assert smiles_of(from_mol(embedded(text)), stereo=True) == Chem.CanonSmiles(text)


def test_what_is_invalid_has_no_molecule() -> None:
    crowded = alone("C", 0, [1] * 5)
    apart = SpatialMolecule(("He", "He"), (0, 0), (), ((0, 0, 0), (3, 0, 0)))
    assert to_mol(crowded) is None
    assert valid_mol(crowded) is None
    assert to_mol(apart) is not None
    assert valid_mol(apart) is None
    assert smiles_of(apart) is None
    assert to_mol(SpatialMolecule((), (), (), ())) is None
    assert valid_mol(None) is None
    with pytest.raises(ValueError, match="sample: str, expected a SpatialMolecule or None"):
        valid_mol("CCO")  # type: ignore[arg-type]


def test_nothing_is_corrected() -> None:
    nitro = SpatialMolecule(
        ("C", "N", "O", "O"), (0,) * 4, ((0, 1, 1), (1, 2, 2), (1, 3, 2)), ((0, 0, 0), (1.5, 0, 0), (2, 1, 0), (2, -1, 0))
    )
    assert to_mol(nitro) is None


def test_a_molecule_without_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="mol: no conformer, expected positions of the atoms"):
        from_mol(Chem.MolFromSmiles("CCO"))
    dative = Chem.MolFromMolBlock(Chem.MolToMolBlock(embedded("N")), removeHs=False)
    dative = Chem.RWMol(dative)
    dative.GetBondWithIdx(0).SetBondType(Chem.BondType.DATIVE)
    with pytest.raises(ValueError, match="mol: bond of type DATIVE, expected single"):
        from_mol(dative)


# -- files


@pytest.mark.parametrize("aromatic", [False, True])
def test_sdf_keeps_atoms_charges_orders_and_four_decimals(aromatic: bool) -> None:
    made = [from_mol(embedded(s), aromatic=aromatic) for s in SMILES]
    again = from_sdf(to_sdf(made, names=SMILES))
    assert [(m.symbols, m.charges, m.bonds) for m in again] == [(m.symbols, m.charges, tuple(sorted(m.bonds))) for m in made]
    for one, other in zip(made, again, strict=True):
        np.testing.assert_allclose(one.coordinates, other.coordinates, atol=5.1e-5)
    supplier = Chem.SDMolSupplier()
    supplier.SetData(to_sdf(made, names=SMILES))
    assert [mol.GetProp("_Name") for mol in supplier] == SMILES


def test_sdf_keeps_an_invalid_molecule() -> None:
    crowded = alone("C", 0, [1] * 5)
    assert from_sdf(to_sdf([crowded])) == [crowded]


def test_sdf_with_data_items_and_without_a_last_separator() -> None:
    text = to_sdf([WATER, WATER]).replace("M  END\n", "M  END\n> <energy>\n-1.0\n\n").removesuffix("$$$$\n")
    assert from_sdf(text) == [WATER, WATER]
    assert from_sdf("") == []


def test_bad_sdf_names_the_record() -> None:
    bad = to_sdf([WATER]) + "no molecule\n$$$$\n"
    with pytest.raises(ValueError, match=r"^sdf: record 2: no molecule that RDKit reads, expected the block of a molecule$"):
        from_sdf(bad)
    close = to_sdf([SpatialMolecule(("C", "C"), (0, 0), (), ((0, 0, 0), (0, 0, 0.01)))])
    with pytest.raises(ValueError, match=r"^sdf: record 1: positions: atoms 0 and 1 are 0\.010 Å apart"):
        from_sdf(close)
    with pytest.raises(ValueError, match="names: 1 for 2 molecules, expected one per molecule"):
        to_sdf([WATER, WATER], ["water"])


@pytest.mark.parametrize("smiles", SMILES)
def test_bonds_of_an_xyz_file_are_perceived(smiles: str) -> None:
    made = from_mol(embedded(smiles))
    (again,) = from_xyz(to_xyz([made]))
    assert smiles_of(again) == smiles_of(made)
    assert sum(again.charges) == sum(made.charges)
    np.testing.assert_allclose(again.coordinates, made.coordinates, atol=1e-6)


def test_an_xyz_file_has_frames() -> None:
    made = [from_mol(embedded(s)) for s in ("CCO", "CC(=O)[O-]")]
    assert [smiles_of(m) for m in from_xyz(to_xyz(made))] == ["CCO", "CC(=O)[O-]"]
    bare = to_xyz([made[1]]).replace("charge=-1", "acetate")
    assert [smiles_of(m) for m in from_xyz(bare, charge=-1)] == ["CC(=O)[O-]"]


@pytest.mark.parametrize(("symbol", "charge"), [("F", -1), ("Na", 1), ("Ne", 0)])
def test_one_atom_keeps_its_charge(symbol: str, charge: int) -> None:
    ion = SpatialMolecule((symbol,), (charge,), (), ((0.0, 0.0, 0.0),))
    assert from_xyz(to_xyz([ion])) == [ion]


def test_the_charge_of_the_molecule_is_the_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdkit.Chem.rdDetermineBonds.DetermineBonds", lambda mol, charge: mol.AddBond(0, 1, Chem.BondType.SINGLE))
    with pytest.raises(ValueError, match="xyz: frame 1: charge: 1: no bonds that fit it; RDKit finds a molecule of charge 0"):
        from_xyz("2\n\nH 0 0 0\nH 0 0 0.74\n", charge=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("water\n", "xyz: line 1: 'water', expected a number of atoms"),
        ("2\n\nH 0 0 0\n", "xyz: line 1: 1 of 2 atoms, expected one line per atom"),
        ("1\n\nH 0 0\n", "xyz: frame 1: atom 0: 'H 0 0', expected an element and three numbers"),
        ("1\n\nXx 0 0 0\n", "xyz: frame 1: symbols[0]: 'Xx', expected the symbol of an element"),
        ("1\n\nH nan 0 0\n", "xyz: frame 1: positions[0]: (nan, 0.0, 0.0), expected three finite numbers"),
        ("2\n\nH 0 0 0\nH 0 0 0\n", "xyz: frame 1: positions: atoms 0 and 1 are 0.000 Å apart, expected at least 0.1 Å"),
        ("2\n\nC 0 0 0\nH 0 0 1\n", "xyz: frame 1: charge: 0: no bonds that fit it; "),
    ],
)
def test_bad_xyz_names_the_place(text: str, said: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        from_xyz(text)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


# -- geometry


@pytest.mark.parametrize("smiles", SMILES)
def test_geometry_is_that_of_rdkit(smiles: str) -> None:
    mol = embedded(smiles)
    made, conformer = from_mol(mol), mol.GetConformer()
    numbers = [atom.GetAtomicNum() for atom in mol.GetAtoms()]
    around = [[n.GetIdx() for n in atom.GetNeighbors()] for atom in mol.GetAtoms()]
    lengths = sorted((order, rdMolTransforms.GetBondLength(conformer, i, j)) for i, j, order in made.bonds)
    angles = sorted(
        (numbers[c], rdMolTransforms.GetAngleDeg(conformer, i, c, k))
        for c in range(len(made))
        for i, k in itertools.combinations(around[c], 2)
    )
    dihedrals = sorted(
        (order, abs(rdMolTransforms.GetDihedralDeg(conformer, i, j, k, l)))
        for j, k, order in made.bonds
        for i in around[j]
        for l in around[k]
        if len({i, j, k, l}) == 4 and max(rdMolTransforms.GetAngleDeg(conformer, *three) for three in ((i, j, k), (j, k, l))) < 179
    )
    for terms, wanted in ((bond_lengths(made), lengths), (bond_angles(made), angles), (dihedral_angles(made), dihedrals)):
        assert sorted(terms.kind.tolist()) == [kind for kind, _ in wanted]
        for kind in set(terms.kind.tolist()):
            np.testing.assert_allclose(np.sort(terms.value[terms.kind == kind]), [x for y, x in wanted if y == kind], atol=1e-5)
    assert sorted(angle_centres(made)) == sorted(z for z, others in zip(numbers, around, strict=True) if len(others) > 1)


def test_dihedrals_of_known_chains() -> None:
    chain = ((0, 1, 1), (1, 2, 2), (2, 3, 1))
    for last, wanted in (((1, 1, 0), 0.0), ((1, -1, 0), 180.0), ((1, 0, 1), 90.0), ((1, 0, -1), 90.0)):
        terms = dihedral_angles(SpatialMolecule(("C",) * 4, (0,) * 4, chain, ((0, 1, 0), (0, 0, 0), (1, 0, 0), last)))
        assert terms.kind.tolist() == [2]
        assert terms.value.tolist() == pytest.approx([wanted])


def test_a_straight_chain_has_no_dihedral() -> None:
    line = SpatialMolecule(("C",) * 4, (0,) * 4, ((0, 1, 1), (1, 2, 3), (2, 3, 1)), ((0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 1, 0)))
    assert dihedral_angles(line).value.tolist() == []
    assert bond_angles(line).value.tolist() == pytest.approx([180.0, 135.0])


def test_nothing_has_no_geometry() -> None:
    nothing = SpatialMolecule((), (), (), ())
    assert [len(f(nothing).value) for f in (bond_lengths, bond_angles, dihedral_angles)] == [0, 0, 0]
    assert count_clashes(nothing) == 0


def test_clashes_are_of_pairs_far_along_the_bonds() -> None:
    table = Chem.GetPeriodicTable()
    chain = [(1.5 * k, 0.0, 0.0) for k in range(4)]
    bonds = tuple((k, k + 1, 1) for k in range(4))
    limit = 0.6 * 2 * table.GetRvdw("C")
    for gap, wanted in ((limit - 0.01, 1), (limit + 0.01, 0)):
        five = SpatialMolecule(("C",) * 5, (0,) * 5, bonds, (*chain, (0.0, gap, 0.0)))
        assert count_clashes(five) == wanted
    assert count_clashes(SpatialMolecule(("C",) * 4, (0,) * 4, bonds[:3], (*chain[:3], (0.0, 0.5, 0.0)))) == 0  # three bonds apart
    assert count_clashes(SpatialMolecule(("C",) * 2, (0,) * 2, (), ((0, 0, 0), (1.0, 0, 0)))) == 1  # not bonded at all
    assert [count_clashes(from_mol(embedded(s))) for s in SMILES] == [0] * len(SMILES)


def test_numbers_that_are_not_whole_are_refused() -> None:
    two, apart = ("C", "C"), ((0.0, 0.0, 0.0), (1.4, 0.0, 0.0))
    with pytest.raises(ValueError, match=r"^bonds\[0\]: 1\.5, expected a whole number$"):
        SpatialMolecule(two, (0, 0), ((0, 1, 1.5),), apart)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^charges\[1\]: 0\.9, expected a whole number$"):
        SpatialMolecule(two, (0, 0.9), ((0, 1, 1),), apart)  # type: ignore[arg-type]
    assert SpatialMolecule(two, (0, 1.0), ((0, 1, 4.0),), apart).bonds == ((0, 1, 4),)  # type: ignore[arg-type]


def test_a_given_charge_goes_before_the_one_in_the_comment() -> None:
    acetate = to_xyz([from_mol(embedded("CC(=O)[O-]"))])
    assert [smiles_of(m) for m in from_xyz(acetate.replace("charge=-1", "charge=0"), charge=-1)] == ["CC(=O)[O-]"]


def test_an_xyz_file_may_have_further_columns_and_blank_lines_between_frames() -> None:
    water = to_xyz([WATER])
    more = "".join(f"{line} 0.25 q\n" if line.startswith(("O ", "H ")) else f"{line}\n" for line in water.splitlines())
    assert from_xyz(f"\n{more}\n  \n{water}") == from_xyz(water) * 2


def test_bonds_of_an_xyz_file_are_aromatic_where_asked_for() -> None:
    benzene = to_xyz([from_mol(embedded("c1ccccc1"))])
    for aromatic, wanted in ((False, [1] * 9 + [2] * 3), (True, [1] * 6 + [4] * 6)):
        (made,) = from_xyz(benzene, aromatic=aromatic)
        assert sorted(order for _, _, order in made.bonds) == wanted


def test_atoms_at_one_place_are_no_molecule_of_rdkit() -> None:
    mol = embedded("CC")
    mol.GetConformer().SetAtomPosition(1, mol.GetConformer().GetAtomPosition(0))
    with pytest.raises(ValueError, match=r"^positions: atoms 0 and 1 are 0\.000 Å apart"):
        from_mol(mol)


def test_drawings_have_the_data_of_their_own_molecule() -> None:
    text = plane_sdf(["CC", "bad(", "CO"], {"reward": [0.5, 1.0, 2.5], "note": [None, "lost", "kept"]})
    mols = list(Chem.ForwardSDMolSupplier(io.BytesIO(text.encode())))
    assert [(mol.GetProp("_Name"), mol.GetPropsAsDict()) for mol in mols] == [
        ("CC", {"reward": 0.5}),
        ("CO", {"reward": 2.5, "note": "kept"}),
    ]


def test_a_molecule_is_dense_from_the_stated_number_of_bonds_on() -> None:
    pairs = list(itertools.combinations(range(40), 2))
    for bonds, wanted in ((2 * 40 + 64, False), (2 * 40 + 65, True)):
        made = SpatialMolecule(("C",) * 40, (0,) * 40, tuple((i, j, 1) for i, j in pairs[:bonds]), ((0.0, 0.0, 0.0),) * 40)
        assert is_dense(made) is wanted


def test_blank_lines_at_the_end_of_an_sdf_file_are_no_record() -> None:
    assert from_sdf(to_sdf([WATER]) + "\n  \n") == [WATER]
