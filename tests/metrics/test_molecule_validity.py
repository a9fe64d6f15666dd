"""Validity after repairs, stability of atoms, filters, and the neighbourhood kernel."""

import math
from collections import Counter
from operator import eq
from typing import Any

import networkx as nx
import numpy as np
import pytest
from rdkit import Chem

from discrete_grpo.datasets.enumeration import load_enumerated
from discrete_grpo.metrics.alerts import MCF, passes_filters
from discrete_grpo.metrics.molecule_table import MoleculeTable
from discrete_grpo.metrics.molecule_validity import atom_stability, relaxed_molecule, repaired
from discrete_grpo.metrics.nspdk import nspdk_features, nspdk_statistic
from discrete_grpo.metrics.resampling import interval, whole


@pytest.mark.parametrize(
    ("sample", "plain", "relaxed"),
    [
        ("OCC", "CCO", "CCO"),
        ("CC.CCO.C", "CCO", "CCO"),
        ("CN(C)(C)C", None, "C[N+](C)(C)C"),
        ("CO(C)C", None, "C[O+](C)C"),
        ("c1ccn(C)(C)c1", None, None),
        ("CN(C)(C)(C)C", None, None),  # two bonds too many
        ("C(C)(C)(C)(C)C", None, None),  # carbon takes no charge
        ("CN(=O)=O", "C[N+](=O)[O-]", "C[N+](=O)[O-]"),  # RDKit's clean-up, which DiGress applies too
        ("CN(C)(C)C.CCCCCCC", None, "CCCCCCC"),
        ("C1CC1.CCCC", "CCCC", "CCCC"),  # as many bonds, and more atoms
        ("C[NH3]", None, "C[NH3+]"),
        ("C((", None, None),
        ("CCO name", None, None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_largest_fragment_and_charges(sample: str | None, plain: str | None, relaxed: str | None) -> None:
    assert repaired([sample]) == [plain]
    assert repaired([sample], relaxed=True) == [relaxed]


def test_a_charged_atom_is_not_charged_again() -> None:
    assert relaxed_molecule("C[N+](C)(C)(C)C") is None
    assert relaxed_molecule("C[O-](C)C") is None


@pytest.mark.parametrize(
    ("sample", "stable", "every"),
    [
        ("CCO", 3, 3),
        ("C[N+](=O)[O-]", 4, 4),
        ("c1ccccc1", 6, 6),
        ("CS(C)(=O)=O", 5, 5),
        ("CN(=O)=O", 3, 4),  # as written: nitrogen with five bonds
        ("CN(C)(C)C", 4, 5),
        ("[CH3]", 0, 1),
        ("[H]C([H])([H])[H]", 5, 5),
        ("[H]C([H])[H]", 3, 4),  # explicit hydrogens: none is added
        ("[H]O", 1, 2),
        ("C.[H]O[H]", 3, 4),
        ("C((", 0, 0),
        ("CCO name", 0, 0),
        ("[Fe]", 1, 1),  # RDKit lets metals have any bonds
        ("[Og-2]", 1, 1),  # more electrons than any element of RDKit
        (None, 0, 0),
    ],
)
def test_stable_atoms_by_hand(sample: str | None, stable: int, every: int) -> None:
    assert atom_stability(sample) == (stable, every)


# One molecule for each medicinal chemistry filter, in the order of their numbers. Filters 12, 13 and 15 write furan, thiophene and
# aniline with Kekulé bonds, which RDKit's aromatic rings do not match, here as in MOSES.
CAUGHT = [
    "CC=CC#N",
    "C=CS(C)(=O)=O",
    "CC=CC(=O)NC",
    "CCCl",
    "CC1CO1",
    "CN=C=O",
    "CC=O",
    "CC(=N)N",
    "CC1CN1",
    "CNNC",
    "CN=NC",
    None,
    None,
    "Clc1ccccn1",
    None,
    "CSSC",
    "CNN(C)N",
    "CNCNC",
    "COCOC",
    "BrC(Br)Br",
    "ClC(Cl)(Cl)Cl",
    "FC(F)(F)C(F)(F)C(F)F",
]


def test_filters_of_medicinal_chemistry() -> None:
    for text, smarts in zip(CAUGHT, MCF, strict=True):
        pattern = Chem.MolFromSmarts(smarts)
        if text is not None:
            assert Chem.AddHs(Chem.MolFromSmiles(text)).HasSubstructMatch(pattern), smarts
            assert not passes_filters(Chem.MolFromSmiles(text)), text
    assert passes_filters(Chem.MolFromSmiles("Cc1ccoc1"))
    assert passes_filters(Chem.MolFromSmiles("Nc1ccccc1"))


@pytest.mark.parametrize(
    ("sample", "passes"),
    [
        ("Cc1ccccc1", True),
        ("CC(=O)Nc1ccccc1", True),
        ("C[NH3+]", False),  # charged
        ("CP", False),  # element
        ("C1CCCCCCC1", False),  # ring of 8
        ("C1CCCCCC1", True),
        ("O=C1C=CC(=O)C=C1", False),  # quinone, a PAINS
        ("CC=O", False),
    ],
)
def test_filters(sample: str, passes: bool) -> None:
    assert passes_filters(Chem.MolFromSmiles(sample)) is passes


# -- the neighbourhood kernel


def test_features_of_nspdk_share_no_column() -> None:
    molecules = load_enumerated(7).smiles[:1500]
    own, reference = (list(molecules[k::2]) for k in range(2))
    sums: dict[int, float] = {}
    for part, sign in ((own, 1), (reference, -1)):
        for smiles in part:
            for key, value in nspdk_features(Chem.MolFromSmiles(smiles)).items():
                sums[key] = sums.get(key, 0.0) + sign * value / len(part)
    assert len({key % (1 << 20) for key in sums}) < len(sums)  # a table of 2^20 columns would not tell all of them apart
    assert nspdk(own, reference) == pytest.approx(sum(x * x for x in sums.values()), rel=1e-12)


def nspdk(own: list[str], reference: list[str]) -> float:
    return whole(nspdk_statistic(MoleculeTable(own), MoleculeTable(reference)))


def test_neighbourhood_kernel_by_hand() -> None:
    assert nspdk(["C"], ["C"]) == 0.0
    assert nspdk(["C"], ["N"]) == pytest.approx(2.0)
    # methane has one feature for each of 5 radii at distance 0, ethane one for each at distances 0 and 1; both share (0, 0, C, C)
    assert nspdk(["C"], ["CC"]) == pytest.approx(2 - 2 / math.sqrt(5 * 10))
    # of the mean vectors: methane twice and ethane once against methane
    expected = (1 / 9) * (2 - 2 / math.sqrt(50))
    assert nspdk(["C", "C", "CC"], ["C"]) == pytest.approx(expected)


def rooted(mol: Chem.Mol, root: int, radius: int) -> nx.Graph:
    """The part of a molecule within a radius of an atom, which is marked."""
    graph = nx.Graph()
    graph.add_nodes_from((atom.GetIdx(), {"label": (atom.GetAtomicNum(), atom.GetIdx() == root)}) for atom in mol.GetAtoms())
    graph.add_edges_from((b.GetBeginAtomIdx(), b.GetEndAtomIdx(), {"order": b.GetBondTypeAsDouble()}) for b in mol.GetBonds())
    return nx.ego_graph(graph, root, radius)


def features_by_definition(mol: Chem.Mol, known: dict[int, list[nx.Graph]]) -> dict[Any, float]:
    """Counts of pairs of isomorphic neighbourhoods, scaled to length 1 for each radius and distance and then as a whole."""
    counts: dict[tuple[int, int], Counter[tuple[int, int]]] = {}
    distance = Chem.GetDistanceMatrix(mol)
    for radius in range(5):
        kinds = []
        for root in range(mol.GetNumAtoms()):
            graph, seen = rooted(mol, root, radius), known.setdefault(radius, [])
            alike = [k for k, other in enumerate(seen) if nx.is_isomorphic(graph, other, eq, eq)]
            kinds.append(alike[0] if alike else len(seen))
            if not alike:
                seen.append(graph)
        for i in range(len(kinds)):
            for j in range(i + 1):
                if distance[i, j] <= 4:
                    low, high = sorted((kinds[i], kinds[j]))
                    counts.setdefault((radius, int(distance[i, j])), Counter())[low, high] += 1
    found = {
        (place, key): count / math.sqrt(sum(c * c for c in table.values())) / math.sqrt(len(counts))
        for place, table in counts.items()
        for key, count in table.items()
    }
    assert sum(value * value for value in found.values()) == pytest.approx(1.0)
    return found


def test_neighbourhood_kernel_against_isomorphism() -> None:
    texts = ["CCCCC", "CCC(C)C", "OCC=C", "C=CCO", "OC=CC", "CCCO", "NCCCCCCO", "CC1CC1", "C1CCC1C", "C.C", "OC1CC1C"]
    texts += ["C1CCCCC1", "CCCCCCC", "C1CCCCCC1", "CCC1CCCCC1", "c1ccc2ccccc2c1"]  # paths around a ring leave a neighbourhood
    known: dict[int, list[nx.Graph]] = {}
    tables = [features_by_definition(Chem.MolFromSmiles(text), known) for text in texts]
    for text, table in zip(texts, tables, strict=True):
        for other, against in zip(texts, tables, strict=True):
            kernel = sum(value * against.get(key, 0.0) for key, value in table.items())
            assert nspdk([text], [other]) == pytest.approx(2 - 2 * kernel, abs=1e-12), (text, other)


def test_neighbourhood_kernel_lies_between_0_and_2() -> None:
    found = nspdk_statistic(MoleculeTable(["C"] * 4), MoleculeTable(["N"]))
    assert (found.size, found.least, found.most) == (4, 0.0, 2.0)
    assert interval(found, 5) == pytest.approx((2.0, 2.0))


def test_neighbourhood_features_do_not_depend_on_the_order_of_atoms() -> None:
    text = "CC(=O)Nc1ccc(O)cc1CN1CCOCC1"
    mol = Chem.MolFromSmiles(text)
    expected = nspdk_features(mol)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(mol.GetNumAtoms()).tolist()
        found = nspdk_features(Chem.RenumberAtoms(mol, order))
        assert found == pytest.approx(expected)
    assert nspdk_features(Chem.MolFromSmiles("CCCO")) != nspdk_features(Chem.MolFromSmiles("CCOC"))
    assert nspdk_features(Chem.MolFromSmiles("C=CC")) != nspdk_features(Chem.MolFromSmiles("CCC"))


def test_written_hydrogens_are_no_atoms_of_a_repaired_molecule() -> None:
    written = ["[H]C([H])([H])C([H])([H])O[H]", "[H]C([H])[H]", "[H]N([H])([H])[H]", "CCO.[H]O[H]"]
    assert repaired(written, relaxed=True) == ["CCO", "C", "[NH4+]", "CCO"]


def test_a_molecule_with_iodine_does_not_pass() -> None:
    assert passes_filters(Chem.MolFromSmiles("Cc1ccccc1Br"))
    assert not passes_filters(Chem.MolFromSmiles("Cc1ccccc1I"))
