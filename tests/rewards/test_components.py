"""Further components of scores as in REINVENT: counts by hand and by brute force, the published decay, and refusals in one line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from rdkit import Chem

from discrete_grpo.recipes.reward_kinds import kind_of
from discrete_grpo.rewards.components import ExponentialDecay, MatchCount, graph_length, largest_ring_size
from discrete_grpo.rewards.molecules import Substructure, qed
from discrete_grpo.rewards.transforms import ReverseSigmoid

MOLECULES = [
    "C",
    "CCO",
    "OCC(O)CO",
    "CC(C)(C)C",
    "C1CC1",
    "c1ccccc1",
    "CC(=O)Nc1ccc(O)cc1",
    "C1CCC2CCCCC2C1",
    "C1CC2CCC1C2",
    "O=C1CCCCCCCCCCC1",
    "CC(=O)Oc1ccccc1C(=O)O",
    "C12C3C4C1C5C2C3C45",
    "C[C@H](N)C(=O)O",
    "[O-][N+](=O)c1ccccc1CC#N",
]


def matched_sets(smiles: str, smarts: str) -> int:
    """Sets of atoms that a pattern matches, found by trying every assignment of its atoms to those of the molecule."""
    mol, pattern = Chem.MolFromSmiles(smiles), Chem.MolFromSmarts(smarts)
    found = set()
    for atoms in itertools.permutations(range(mol.GetNumAtoms()), pattern.GetNumAtoms()):
        fits = all(own.Match(mol.GetAtomWithIdx(atom)) for own, atom in zip(pattern.GetAtoms(), atoms, strict=True))
        for bond in pattern.GetBonds() if fits else ():
            between = mol.GetBondBetweenAtoms(atoms[bond.GetBeginAtomIdx()], atoms[bond.GetEndAtomIdx()])
            fits = fits and between is not None and bond.Match(between)
        if fits:
            found.add(frozenset(atoms))
    return len(found)


def distances(smiles: str) -> Any:
    """Bonds between every two atoms by Floyd and Warshall."""
    mol = Chem.MolFromSmiles(smiles)
    size = mol.GetNumAtoms()
    table = np.where(np.eye(size) > 0, 0, 10**6)
    for bond in mol.GetBonds():
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        table[i, j] = table[j, i] = 1
    for k in range(size):
        table = np.minimum(table, table[:, k : k + 1] + table[k : k + 1])
    return table


@pytest.mark.parametrize("smarts", ["[#6]", "CC", "[OX2H]", "C(=O)O", "[#6]~[#6]~[#6]", "[N,O].[N,O]", "[!#6]", "[C@H](N)C"])
def test_matches_are_counted_by_their_atoms(smarts: str) -> None:
    wanted = [float(matched_sets(smiles, smarts)) for smiles in MOLECULES]
    assert max(wanted) > 0.0
    assert MatchCount(smarts)([*MOLECULES, None, "C.C", "C("]) == [*wanted, 0.0, 0.0, 0.0]


def test_matches_of_the_same_atoms_count_once() -> None:
    assert MatchCount("CCC")(["C1CC1", "CCC", "CC(C)C"]) == [1.0, 1.0, 3.0]
    assert MatchCount("c1ccccc1")(["c1ccccc1", "c1ccc(-c2ccccc2)cc1", "c1ccc2ccccc2c1"]) == [1.0, 2.0, 2.0]
    assert MatchCount("C[C@H](N)C(=O)O")(["C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O"]) == [1.0, 1.0]  # whatever the stereochemistry
    assert MatchCount("C")(["C" * 999, "C" * 1000, "C" * 1100]) == [999.0, 1000.0, 1000.0]


def test_written_hydrogens_are_those_of_their_neighbours() -> None:
    assert MatchCount("[#8]-[#1]")(["OCC(O)CO", "COC"]) == MatchCount("[#8;!H0]")(["OCC(O)CO", "COC"]) == [3.0, 0.0]
    counts, tests = MatchCount("[#7]-[#1]")(MOLECULES), Substructure("[#7]-[#1]")(MOLECULES)
    assert [float(count > 0) for count in counts] == tests


def test_the_size_of_the_largest_ring_by_hand() -> None:
    wanted = [0, 0, 0, 0, 3, 6, 6, 6, 5, 12, 6, 4, 0, 6]
    assert largest_ring_size([*MOLECULES, None, "C1CC1.C"]) == [*map(float, wanted), 0.0, 0.0]
    assert largest_ring_size(["C1CCC1CCc1ccccc1", "c1ccccc1CCC1CCC1"]) == [6.0, 6.0]  # whichever ring comes first
    assert largest_ring_size(["C1CC2CCC1CC2"]) == [6.0]  # the way around both bridges, of 8 atoms, is no smallest ring


def test_the_length_of_the_graph_is_its_diameter() -> None:
    wanted = [float(distances(smiles).max()) for smiles in MOLECULES]
    assert wanted[:6] == [0.0, 2.0, 4.0, 2.0, 1.0, 3.0]
    assert graph_length([*MOLECULES, None, "CC.C"]) == [*wanted, 0.0, 0.0]
    assert graph_length(["C(CC)CO", "CCCCO"]) == [4.0, 4.0]  # whichever atom comes first
    assert graph_length(["C=CC#N", "N#CC=C"]) == [3.0, 3.0]  # a multiple bond is as long as a single one


VALUES = (-200.0, -1e-9, 0.0, 1e-9, 0.3, 1.0, 7.25, 40.0, 1e308)
CHAINS = ["C" * (k + 1) for k in range(len(VALUES))]


def values(samples: Sequence[str | None], **columns: Any) -> list[float | None]:
    """The value of each chain by its length; unknown for other molecules."""
    return [VALUES[len(s) - 1] if s in CHAINS else None for s in samples]


@pytest.mark.parametrize("k", [0.05, 1.0, 3.5])
def test_the_decay_is_that_of_the_publication(k: float) -> None:
    wanted = [float(np.where(x < 0, 1.0, np.exp(np.longdouble(-k * x)))) for x in VALUES]
    found = ExponentialDecay(values, k)(CHAINS)
    assert found == pytest.approx(wanted, abs=1e-15)
    assert found[:3] == [1.0, 1.0, 1.0]
    assert found[-1] == 0.0
    assert ExponentialDecay(values, math.log(2) / 7.25)([CHAINS[6]]) == [pytest.approx(0.5)]


def test_invalid_molecules_score_0_and_unknown_properties_stay_unknown() -> None:
    decay: Any = ExponentialDecay(values, k=0.5)
    assert decay([None, "C(", "CO"]) == [0.0, 0.0, None]
    assert decay.inner == (values,)
    assert (decay.name, ExponentialDecay(qed, 2).name) == ("exp(-0.5 values)", "exp(-2 qed)")


def test_they_are_components_of_scores_on_molecules() -> None:
    assert [kind_of(reward) for reward in (MatchCount("C"), largest_ring_size, graph_length, ExponentialDecay(qed, 1.0))] == [
        "molecules"
    ] * 4
    assert MatchCount("[OX2H]").name == "match_count([OX2H])"
    small = ReverseSigmoid(largest_ring_size, low=6, high=8)(["C1CCCCC1", "C1CCCCCCC1", None])
    assert small == [pytest.approx(1 / (1 + 10**-2.5)), pytest.approx(1 / (1 + 10**2.5)), 0.0]
    few = ExponentialDecay(MatchCount("[NX3,NX4,OX2;!H0]"), 0.1)(["NCCO", "CC"])
    assert few == pytest.approx([math.exp(-0.2), 1.0])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MatchCount("C("), r"^smarts: 'C\(', expected a SMARTS pattern that RDKit reads$"),
        (lambda: MatchCount(""), "^smarts: '', expected a SMARTS"),
        (lambda: MatchCount(["C", "N"]), r"^smarts: \['C', 'N'\], expected a SMARTS"),  # type: ignore[arg-type]
        (lambda: ExponentialDecay(qed, 0.0), "^k: 0.0, expected more than 0$"),
        (lambda: ExponentialDecay(qed, math.nan), "^k: nan, expected"),
        (lambda: ExponentialDecay("qed", 1.0), "^property: 'qed', expected a reward"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_is_named(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)
