"""SMILES to graphs and back."""

import gzip
import math
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from rdkit import Chem

from discrete_grpo.datasets.convert import batch_to_pyg, graph_classes, pyg_to_batch
from discrete_grpo.datasets.enumeration import enumerate_molecules
from discrete_grpo.domains import molecule_features, molecule_properties
from discrete_grpo.domains.graphs import GraphBatch, node_mask, permute
from discrete_grpo.domains.molecules import AtomType, Vocabulary, classes_to_mol, decode, encode, molecule_to_classes
from discrete_grpo.domains.smiles import parse
from tests.shared_data import SHARED

CNOF = Vocabulary(("C", "N", "O", "F"))
WIDE = Vocabulary(("C", "N-1", "N", "N+1", "O-1", "O", "O+1", "F", "P", "S-1", "S", "S+1", "Cl", "Br", "I"))
HAND_PICKED = [
    "C[N+](C)(C)CC(=O)[O-]",
    "O=[N+]([O-])c1ccccc1",
    "[NH3+]CC(=O)[O-]",
    "c1cc[nH+]cc1",
    "c1cc[nH]c1",
    "Cn1cnc2c1c(=O)n(C)c(=O)n2C",
    "CS(=O)(=O)c1ccc(Cl)cc1",
    "CS(C)=O",
    "O=P(O)(O)O",
    "O=[PH](O)O",
    "c1ccsc1",
    "C[S+](C)C",
    "Brc1cncc(I)c1",
    "[N-]=[N+]=NC",
    "c1ccc2ccccc2c1",
    "c1ccc2[nH]ccc2c1",
    "O=c1cc[nH]c(=O)[nH]1",
    "FC(F)(F)c1ccc2c(c1)Nc1ccccc1S2",
    "O=C1C=Cc2cccc3cccc1c23",
]


def canonical(smiles: str) -> str:
    return Chem.MolToSmiles(Chem.MolFromSmiles(smiles), isomericSmiles=False)


def graph(nodes: list[int], bonds: list[tuple[int, int, int]]) -> GraphBatch:
    n = len(nodes)
    edges = torch.zeros(1, n, n, dtype=torch.long)
    for i, j, order in bonds:
        edges[0, i, j] = edges[0, j, i] = order
    return GraphBatch(torch.tensor([nodes]), edges, torch.ones(1, n, dtype=torch.bool))


def test_round_trip_of_every_small_molecule() -> None:
    smiles = enumerate_molecules(5)
    assert decode(encode(smiles, CNOF), CNOF) == smiles


@pytest.mark.parametrize("smiles", HAND_PICKED)
def test_round_trip_of_charges_aromatics_and_heavy_elements(smiles: str) -> None:
    assert decode(encode([smiles], WIDE), WIDE) == [canonical(smiles)]


def test_stereo_isotopes_and_explicit_hydrogens_are_dropped() -> None:
    found = decode(encode(["N[C@@H](C)C(=O)O", "F/C=C/F", "[13CH4]", "[H]OC([2H])[H]"], WIDE), WIDE)
    assert found == ["CC(N)C(=O)O", "FC=CF", "C", "CO"]


def test_shared_data_round_trip(shared: Path) -> None:
    lines = gzip.decompress((shared / "zinc250k_test.smi.gz").read_bytes()).decode().split()[:2000]
    vocabulary = Vocabulary.from_molecules(Chem.MolFromSmiles(text) for text in lines)
    assert decode(encode(lines, vocabulary), vocabulary) == [canonical(text) for text in lines]


@pytest.fixture
def shared() -> Path:
    if not (SHARED / "zinc250k_test.smi.gz").is_file():
        pytest.skip("no shared data here")
    return SHARED


def test_encoding_is_the_kekulised_bond_table() -> None:
    batch = encode(["CC#N", "C=O"], CNOF)
    assert batch.nodes.tolist() == [[0, 0, 1], [0, 2, 0]]
    assert batch.edges.tolist() == [[[0, 1, 0], [1, 0, 3], [0, 3, 0]], [[0, 2, 0], [2, 0, 0], [0, 0, 0]]]
    assert batch.sizes.tolist() == [3, 2]
    benzene = encode(["c1ccccc1"], CNOF).edges[0]
    assert sorted(benzene[benzene > 0].tolist()) == [1] * 6 + [2] * 6


def test_aromatic_bonds_have_a_class_where_asked_for() -> None:
    batch = encode(["c1ccccc1C=O", "C#N"], CNOF, aromatic=True)
    found = batch.edges.triu(1)
    assert sorted(found[0][found[0] > 0].tolist()) == [1, 2] + [4] * 6
    assert sorted(found[1][found[1] > 0].tolist()) == [3]
    assert encode(["C=O"], CNOF, aromatic=True).edges.tolist() == encode(["C=O"], CNOF).edges.tolist()


@pytest.mark.parametrize("form", ["aromatic", "hydrogens", "both"])
def test_every_form_decodes_to_the_same_molecule(form: str) -> None:
    hydrogens, aromatic = form != "aromatic", form != "hydrogens"
    vocabulary = Vocabulary(("H", *WIDE.atoms)) if hydrogens else WIDE
    known = [one for one in HAND_PICKED if hydrogens or "[nH]" not in one]
    assert "c1cc[nH+]cc1" in known
    drawn = decode(encode(known, vocabulary, aromatic=aromatic, hydrogens=hydrogens), vocabulary)
    assert [canonical(one) if one else None for one in drawn] == [canonical(one) for one in known]


@pytest.mark.parametrize("smiles", ["c1cc[nH]c1", "c1ccc2[nH]ccc2c1", "O=c1cc[nH]c(=O)[nH]1"])
def test_an_aromatic_ring_does_not_tell_its_hydrogen(smiles: str) -> None:
    with pytest.raises(
        ValueError, match=r"^smiles\[1\]: .*, mol: a hydrogen on an aromatic atom, expected none where aromatic bonds have"
    ):
        encode(["C", smiles], CNOF, aromatic=True)
    nodes, bonds = molecule_to_classes(Chem.MolFromSmiles(smiles), CNOF, aromatic=True)  # as a scaffold, which may have more on it
    assert classes_to_mol(nodes, bonds, CNOF) is None
    assert sum(order == 4 for _, _, order in bonds) > 4


def test_hydrogens_are_nodes_where_asked_for() -> None:
    known = Vocabulary(("H", "C", "O"))
    assert encode(["CO", "[H]CO"], known).nodes.tolist() == [[1, 2]] * 2
    batch = encode(["CO", "[H][H]"], known, hydrogens=True)
    assert batch.nodes.tolist() == [[1, 2, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
    assert batch.sizes.tolist() == [6, 2]
    assert batch.edges[0].sum(1).tolist() == [4, 2, 1, 1, 1, 1]
    with pytest.raises(
        ValueError, match=r"^smiles\[0\]: '\[H\]\[H\]', mol: a hydrogen that is bonded to no heavy atom, expected none$"
    ):
        encode(["[H][H]"], CNOF)


def test_molecule_to_classes_and_back() -> None:
    nodes, bonds = molecule_to_classes(Chem.AddHs(Chem.MolFromSmiles("NC=O")), CNOF)
    assert (nodes, sorted(bonds)) == ([1, 0, 2], [(0, 1, 1), (1, 2, 2)])
    mol = classes_to_mol(nodes, bonds, CNOF)
    assert mol is not None
    assert Chem.MolToSmiles(mol) == "NC=O"
    assert sum(atom.GetTotalNumHs() for atom in mol.GetAtoms()) == 3
    assert sum(atom.GetNumRadicalElectrons() for atom in mol.GetAtoms()) == 0


def test_order_of_nodes_does_not_change_the_molecule() -> None:
    batch = encode(HAND_PICKED, WIDE)
    draw = random.Random(0)
    orders = [draw.sample(range(n), n) + list(range(n, batch.num_nodes)) for n in batch.sizes.tolist()]
    assert decode(permute(batch, torch.tensor(orders)), WIDE) == decode(batch, WIDE)


def test_padding_is_not_read() -> None:
    batch = encode(HAND_PICKED, WIDE)
    real = batch.mask[:, :, None] & batch.mask[:, None, :]
    dirty = GraphBatch(batch.nodes.masked_fill(~batch.mask, 77), batch.edges.masked_fill(~real, 9), batch.mask)
    diagonal = torch.eye(batch.num_nodes, dtype=torch.bool)
    dirty = GraphBatch(dirty.nodes, dirty.edges.masked_fill(diagonal, 0), dirty.mask)
    assert decode(dirty, WIDE) == decode(batch, WIDE) == decode(batch.pad(40), WIDE)


@pytest.mark.parametrize(
    ("nodes", "bonds"),
    [
        ([0, 3, 3, 3, 3, 3], [(0, k, 1) for k in range(1, 6)]),  # five bonds on carbon
        ([2, 0, 0, 0], [(0, k, 1) for k in range(1, 4)]),  # neutral trivalent oxygen
        ([0, 1, 2, 2], [(0, 1, 1), (1, 2, 2), (1, 3, 2)]),  # neutral N(=O)=O: RDKit's clean-up would mend it
        ([3, 0], [(0, 1, 2)]),
    ],
)
def test_a_broken_valence_is_no_molecule_and_is_not_mended(nodes: list[int], bonds: list[tuple[int, int, int]]) -> None:
    assert decode(graph(nodes, bonds), CNOF) == [None]
    assert classes_to_mol(nodes, bonds, CNOF) is None


def test_pieces_are_kept_and_an_empty_graph_is_none() -> None:
    assert decode(graph([0, 2, 0], [(0, 2, 1)]), CNOF) == ["CC.O"]
    empty = GraphBatch(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, 2, dtype=torch.long), node_mask(torch.tensor([0]), 2))
    assert decode(empty, CNOF) == [None]


def test_decoding_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    decode(graph([3, 0], [(0, 1, 2)]), CNOF)
    parse("C(((")
    assert capfd.readouterr().err == ""


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match=r"node classes 0\.\.4, expected 0\.\.3"):
        decode(graph([0, 4], []), CNOF)
    with pytest.raises(ValueError, match=r"bond classes 0\.\.5, expected 0\.\.4"):
        decode(graph([0, 0], [(0, 1, 5)]), CNOF)
    with pytest.raises(ValueError, match=r"smiles\[1\]: 'CS'.*'S' is not in the vocabulary"):
        encode(["C", "CS"], CNOF)
    with pytest.raises(ValueError, match=r"smiles\[0\]: 'C\('"):
        encode(["C("], CNOF)
    for alone in ("[H][H]", "[H+]", "C.[H+]", "[2H][2H]"):
        with pytest.raises(ValueError, match=r"smiles\[0\]: .* mol: a hydrogen that is bonded to no heavy atom, expected none"):
            encode([alone], CNOF)
    for bad in ("Xx", "n", "N+", "", "*", "N1"):
        with pytest.raises(ValueError, match="label: "):
            AtomType.from_label(bad)
    for labels in ((), ("C", "C")):
        with pytest.raises(ValueError, match="atoms: "):
            Vocabulary(labels)


def test_vocabulary_from_molecules_does_not_depend_on_their_order() -> None:
    mols = [Chem.MolFromSmiles(s) for s in ("CCl", "[O-]C=O", "C[NH3+]", "CN")]
    assert Vocabulary.from_molecules(mols) == Vocabulary.from_molecules(mols[::-1])
    assert Vocabulary.from_molecules(mols).atoms == ("C", "N", "N+1", "O-1", "O", "Cl")


def test_properties_against_rdkit_and_by_hand() -> None:
    from rdkit.Chem import Crippen

    mol = Chem.MolFromSmiles("CC(=O)Oc1ccccc1C(=O)O")
    assert molecule_properties.crippen_logp(mol) == pytest.approx(Crippen.MolLogP(mol))  # type: ignore[attr-defined]
    ethanol = Chem.MolFromSmiles("CCO")
    assert molecule_properties.molar_mass(ethanol) == pytest.approx(2 * 12.011 + 6 * 1.008 + 15.999, abs=1e-3)
    assert molecule_properties.murcko_scaffold(Chem.MolFromSmiles("CCc1ccc(C2CC2)cc1")) == "c1ccc(C2CC2)cc1"


def test_importing_the_package_does_not_import_rdkit() -> None:
    code = "import sys, discrete_grpo; sys.exit('rdkit' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


# Conversion to other libraries ---------------------------------------------------------------------------------------


def same(a: GraphBatch, b: GraphBatch) -> bool:
    return torch.equal(a.nodes, b.nodes) and torch.equal(a.edges, b.edges) and torch.equal(a.mask, b.mask)


def test_pyg_round_trips() -> None:
    batch = encode(HAND_PICKED, WIDE)
    assert same(pyg_to_batch(batch_to_pyg(batch)), batch)
    one = batch_to_pyg(encode(["CC#N"], CNOF))[0]
    assert one.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert (one.x.tolist(), one.edge_attr.tolist()) == ([[0], [0], [1]], [1, 1, 3, 3])
    assert one.is_undirected()


def test_bad_pyg_graphs_are_named() -> None:
    from torch_geometric.data import Data

    good = Data(x=torch.tensor([0, 1]), edge_index=torch.tensor([[0, 1], [1, 0]]))
    bad = {
        r"graphs\[1\]: directed; edge \(0, 1\) has class 1 but \(1, 0\) has 0": {"edge_index": torch.tensor([[0], [1]])},
        r"graphs\[1\]: self-loop at node 1": {"edge_index": torch.tensor([[0, 1, 1], [1, 0, 1]])},
        r"graphs\[1\]: an edge is listed twice": {"edge_index": torch.tensor([[0, 0, 1], [1, 1, 0]])},
        r"graphs\[1\]: edge ends 0 to 2": {"edge_index": torch.tensor([[0, 2], [2, 0]])},
        r"graphs\[1\]\.edge_attr: lowest class: 0": {"edge_attr": torch.tensor([0, 0])},
        r"graphs\[1\]\.x: torch\.float32": {"x": torch.rand(2, 4)},
    }
    for message, change in bad.items():
        with pytest.raises(ValueError, match=message):
            pyg_to_batch([good, Data(**{**good.to_dict(), **change})])


def test_bad_networkx_graphs_are_named() -> None:
    import networkx as nx

    loop, typed = nx.Graph([(0, 0)]), nx.Graph()
    typed.add_node(0, x=0.5)
    for graph_, message in ((nx.DiGraph([(0, 1)]), "a DiGraph"), (loop, "self-loop"), (typed, "node attribute x: 0.5")):
        with pytest.raises(ValueError, match=rf"graphs\[1\].*{message}"):
            graph_classes(graph_, "graphs[1]")
    nodes, edges = graph_classes(nx.path_graph(["b", "a", "c"]), "graphs[0]")
    assert (nodes.tolist(), edges.tolist()) == ([0, 0, 0], [[0, 1, 0], [1, 0, 1], [0, 1, 0]])


def test_aromatic_bonds_of_imported_policies_are_read() -> None:
    edges = torch.zeros(1, 6, 6, dtype=torch.long)
    for i in range(6):
        edges[0, i, (i + 1) % 6] = edges[0, (i + 1) % 6, i] = 4
    batch = GraphBatch(torch.zeros(1, 6, dtype=torch.long), edges, torch.ones(1, 6, dtype=torch.bool))
    assert decode(batch, CNOF) == ["c1ccccc1"]


def test_the_scaffold_has_no_stereo() -> None:
    both = [molecule_properties.murcko_scaffold(Chem.MolFromSmiles(f"CC1CO[C{sign}H](c2ccccc2)C1")) for sign in ("@", "@@")]
    assert both == ["c1ccc(C2CCCO2)cc1"] * 2


def test_a_value_that_is_not_finite_is_none() -> None:
    mol = Chem.MolFromSmiles("C")
    found = [molecule_properties.finite_value(partial(lambda value, mol: value, value), mol) for value in (1.5, math.nan, math.inf)]
    assert found == [1.5, None, None]


def test_numbers_of_a_molecule_by_hand() -> None:
    from rdkit.Chem import Descriptors

    text = "OCC1CCN(Cc2ccc(F)cc2)C1"
    found = dict(zip(molecule_features.DESCRIPTORS, molecule_features.molecule_numbers(text), strict=True))
    atoms = {"C": 12, "N": 1, "O": 1, "F": 1, "P": 0, "S": 0, "Cl": 0, "Br": 0, "I": 0}
    counts = {"hydrogens": 16, "heavy atoms": 15, "rings": 2, "aromatic rings": 1, "hydrogen-bond donors": 1, "rotatable bonds": 3}
    assert found == pytest.approx(
        {f"number of {symbol}": count for symbol, count in atoms.items()}
        | counts
        | {"TPSA / 10 Å²": (20.23 + 3.24) / 10}  # the hydroxyl and the amine
        | {"5 · fraction of sp3 carbons": 5 * 6 / 12}
        | {"Crippen logP": Descriptors.MolLogP(Chem.MolFromSmiles(text))}  # type: ignore[attr-defined]
    )
    with pytest.raises(ValueError, match=r"^smiles: 'C\.C', expected a valid molecule$"):
        molecule_features.molecule_numbers("C.C")
