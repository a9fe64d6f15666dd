"""Crossover, mutations and splicing of molecules."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from rdkit import Chem
from rdkit.Chem import rdChemReactions
from rdkit.rdBase import BlockLogs

from discrete_grpo.domains.molecule_mutations import MUTATIONS, matches
from discrete_grpo.domains.molecule_operators import (
    MUTATION_ODDS,
    ChildSize,
    _cut_ring,
    crossover,
    mutate,
    reproduce,
    rings_ok,
    splice,
)
from discrete_grpo.domains.smiles import parse, to_smiles

DRUGS = [
    "CC(=O)Oc1ccccc1C(=O)O",
    "CC(C)Cc1ccc(C(C)C(=O)O)cc1",
    "Cn1cnc2c1c(=O)n(C)c(=O)n2C",
    "CN1CCC[C@H]1c1cccnc1",
    "COc1ccc2[nH]cc(CCNC(C)=O)c2c1",
    "O=C(O)c1cn(C2CC2)c2cc(N3CCNCC3)c(F)cc2c1=O",
    "CCOc1ccc(OCC)c([C@H]2C(C#N)=C(N)N(c3ccccc3C(F)(F)F)C3=C2C(=O)CCC3)c1",
    "C[N+](C)(C)CC(O)CC(=O)[O-]",
]
ANY = ChildSize(mean=1000, stdev=0, least=1)


def molecule(text: str) -> Chem.Mol:
    mol = Chem.MolFromSmiles(text)
    assert mol is not None
    return mol


def canonical(text: str) -> str:
    return to_smiles(molecule(text))


def children(text: str, kind: str, count: int = 60) -> set[str]:
    mol, rng = molecule(text), random.Random(0)
    found = [mutate(mol, rng, size=ANY, odds={kind: 1}) for _ in range(count)]
    return {to_smiles(child) for child in found if child is not None}


def check(child: Chem.Mol | None) -> str | None:
    """A child must be what its canonical SMILES says."""
    if child is None:
        return None
    text = to_smiles(child)
    assert parse(text) is not None
    assert canonical(text) == text
    assert rings_ok(molecule(text))
    assert "." not in text
    assert not any(atom.GetNumRadicalElectrons() for atom in child.GetAtoms())
    return text


def test_every_child_is_valid_and_canonical() -> None:
    rng, mols = random.Random(1), [molecule(text) for text in DRUGS]
    for _ in range(100):
        a, b = rng.choice(mols), rng.choice(mols)
        assert check(crossover(a, b, rng)) not in {to_smiles(a), to_smiles(b)}
        check(mutate(a, rng))
        check(splice(a, b, rng))


def test_the_parents_stay_as_they_are() -> None:
    rng, mols = random.Random(2), [molecule(text) for text in DRUGS]
    before = [mol.ToBinary() for mol in mols]
    for a, b in pairwise(mols):
        crossover(a, b, rng)
        mutate(a, rng)
        splice(a, b, rng)
    assert [mol.ToBinary() for mol in mols] == before


# What a mutation of each kind can make, worked out by hand from the patterns of the source. Duplicates by symmetry are left out.
MADE = {
    ("insert_atom", "CC"): {"CCC", "CNC", "COC", "CSC", "C=CC", "C=NC", "C#CC"},
    ("insert_atom", "CC#N"): {
        *("CCC#N", "CNC#N", "COC#N", "CSC#N", "C=CC#N", "C=NC#N", "C#CC#N"),  # into C-C
        *("CCCN", "CCNN", "CCON", "CCSN"),  # into C#N, whose atoms have no hydrogen on the carbon
    },
    ("append_atom", "CC"): {"CCC", "CCN", "CCO", "CCF", "CCS", "CCCl", "CCBr", "C=CC", "CC=N", "CC=O", "C#CC", "CC#N"},
    ("delete_atom", "CCO"): {"CC", "CO"},
    ("delete_atom", "CC(C)C"): {"CCC"},
    ("delete_cyclic_bond", "C1CCCO1"): {"CCCCO", "CCCOC", "CCOCC"},
    ("delete_cyclic_bond", "CC1CC1"): {"CCCC", "CC(C)C"},
    ("add_ring", "CCC"): {"C1CC1"},
    ("add_ring", "CCCCCC"): {"CCCC1CC1", "CCC1CC1C", "CCC1CCC1", "CC1CCC1C", "CC1CCCC1", "C1CCCCC1"},
    ("change_bond_order", "CC"): {"C=C", "C#C"},
    ("change_bond_order", "C#N"): {"C=N", "CN"},
    ("change_bond_order", "C=O"): {"CO"},
    ("change_atom", "CC"): {"CN", "CO", "CF", "CS", "CCl", "CBr"},
    ("change_atom", "CF"): {"CC", "CN", "CO", "CS", "CCl", "CBr", "NF", "OF", "FF", "FS", "FCl", "FBr"},
}


@pytest.mark.parametrize(("kind", "text"), MADE)
def test_mutations_make_what_the_source_says(kind: str, text: str) -> None:
    made = children(text, kind, 300)
    assert made == {canonical(t) for t in MADE[kind, text]}


def rings(mol: Chem.Mol) -> int:
    return mol.GetRingInfo().NumRings()


@pytest.mark.parametrize(
    ("kind", "atoms", "ring_changes"),
    [
        ("insert_atom", 1, {0}),
        ("append_atom", 1, {0}),
        ("change_bond_order", 0, {0}),
        ("delete_cyclic_bond", 0, {-1}),
        ("add_ring", 0, {1}),
        ("change_atom", 0, {0}),
    ],
)
@pytest.mark.parametrize("text", DRUGS)
def test_mutations_change_atoms_and_rings(kind: str, atoms: int, ring_changes: set[int], text: str) -> None:
    parent = molecule(text)
    made = children(text, kind, 20)
    if not made:
        assert kind in ("delete_cyclic_bond", "add_ring"), "only these need a ring, or a chain without one"
    for child in map(molecule, made):
        assert child.GetNumAtoms() - parent.GetNumAtoms() == atoms
        assert rings(child) - rings(parent) in ring_changes
        if kind != "change_bond_order":  # which may give the molecule that it was given
            assert to_smiles(child) != to_smiles(parent)


def test_deleting_an_atom_takes_one_atom_and_keeps_the_rest_connected() -> None:
    for text in DRUGS:
        assert {molecule(child).GetNumAtoms() - molecule(text).GetNumAtoms() for child in children(text, "delete_atom")} == {-1}


def test_mutations_are_drawn_by_their_odds() -> None:
    assert MUTATION_ODDS.keys() == MUTATIONS.keys()
    assert sum(MUTATION_ODDS.values()) == pytest.approx(1)
    with pytest.raises(ValueError, match=r"odds: 'add_rign'.*did you mean 'add_ring'"):
        mutate(molecule("CCO"), random.Random(0), odds={"add_rign": 1})
    for odds, told in (
        ({}, "odds: {}, expected a weight above 0"),
        ({"add_ring": -1}, "odds of add_ring: -1, expected at least 0"),
    ):
        with pytest.raises(ValueError, match=told):
            mutate(molecule("CCO"), random.Random(0), odds=odds)


def test_crossover_joins_a_part_of_each_parent() -> None:
    a, b, rng = molecule("CCCCCCCF"), molecule("NOOOOOON"), random.Random(0)
    made = [crossover(a, b, rng, size=ANY) for _ in range(200)]
    assert None not in made
    for text in [check(child) for child in made]:
        counts = Counter(atom.GetSymbol() for atom in molecule(str(text)).GetAtoms())
        assert counts["C"] + counts["F"]
        assert counts["O"] + counts["N"]
        assert max(counts["N"], counts["F"]) <= 1, "one cut leaves one end of each chain"


def test_chain_crossover_makes_every_pair_of_parts() -> None:
    a, b, rng = molecule("CCO"), molecule("NF"), random.Random(0)
    made = {check(crossover(a, b, rng, size=ANY)) for _ in range(200)}
    assert made == {canonical(text) for text in ("CN", "CF", "NCO", "FCO", "CCN", "CCF", "NO", "OF")}, "C|CO and CC|O, N|F"


def test_ring_crossover_cuts_at_a_branched_atom() -> None:
    a, b, rng = molecule("CC1(C)CC1"), molecule("FC1CCCC1"), random.Random(0)
    made = {check(crossover(a, b, rng, size=ANY)) for _ in range(300)}
    assert canonical("CC1(C)CCCC1") in made, "the branched atom of the first closes the ring of the second"
    assert any(text and "C=C" in text for text in made), "half rings are joined by double bonds too"


def test_ring_crossover_joins_half_rings() -> None:
    a, b, rng = molecule("C1CCCCC1"), molecule("O1SOSOS1"), random.Random(0)
    made = {check(crossover(a, b, rng, size=ANY)) for _ in range(300)} - {None}
    assert made, "rings without acyclic bonds can only be cut as rings"
    for text in map(str, made):
        child = molecule(text)
        symbols = {atom.GetSymbol() for atom in child.GetAtoms()}
        assert rings(child) == 1
        assert "C" in symbols
        assert symbols & {"O", "S"}
        mixed = [
            bond for bond in child.GetBonds() if (bond.GetBeginAtom().GetSymbol() == "C") != (bond.GetEndAtom().GetSymbol() == "C")
        ]
        assert len(mixed) == 2, "two bonds join the parts"


# Environments of BRICS: 1 acyl, 4 alkyl at a heteroatom, 5 amine, 7 alkene, 8 alkyl, 12 sulfonyl, 16 aryl. Joined are
# 1-5, 5-12, 5-16, 4-5, 8-16, 16-16 and 7=7 here, and neither 1-8 nor 1-12 nor 4-8.
SPLICED = {
    ("CC(=O)NC", "CCCc1ccccc1"): {"CNc1ccccc1"},
    ("CCC=CCC", "OCCC=CCCO"): {"CCC=CCCO"},
    ("CC(=O)Nc1ccccc1", "CS(=O)(=O)NCc1ccncc1"): {
        *("CC(=O)NCc1ccncc1", "CC(=O)NS(C)(=O)=O", "CC(=O)Nc1ccncc1", "CS(=O)(=O)NCc1ccccc1", "CS(=O)(=O)Nc1ccccc1"),
        *("c1ccc(-c2ccncc2)cc1", "c1ccc(NCc2ccncc2)cc1", "c1ccc(Nc2ccncc2)cc1"),
    },
    ("CC", "CCC"): set[str](),
}


@pytest.mark.parametrize(("a", "b"), SPLICED)
def test_splice_joins_fragments_that_fit(a: str, b: str) -> None:
    rng = random.Random(0)
    made = {check(splice(molecule(a), molecule(b), rng, size=ANY)) for _ in range(150)} - {None}
    assert made == {canonical(text) for text in SPLICED[a, b]}


def test_rings() -> None:
    fine = ["c1ccccc1", "CCC", "C1CC1", "C=C1CC1", "C1=CCCC1", "C1CC12CC2"]
    strange = ["C1CCCCCC1", "C1CCC=C=C1", "C1=CCC1", "C1=CC1", "C1CCCCCCCC1"]
    assert all(rings_ok(molecule(text)) for text in fine)
    assert not any(rings_ok(molecule(text)) for text in strange)


def test_equal_seeds_give_equal_children() -> None:
    def draw(seed: int) -> list[str | None]:
        rng = random.Random(seed)
        return [reproduce(DRUGS, rng, mutation_rate=0.5) for _ in range(30)]

    assert draw(3) == draw(3) != draw(4)


def test_reproduce_gives_new_canonical_smiles() -> None:
    rng = random.Random(5)
    made = [reproduce(DRUGS, rng, mutation_rate=1) for _ in range(60)]
    assert sum(text is not None for text in made) > 50
    assert all(text == canonical(text) for text in made if text is not None)


def test_reproduce_heeds_the_weights() -> None:
    rng = random.Random(0)
    made = [reproduce(["CCCCCCCC", "NNNNNNNN", "OOOOOOOO"], rng, weights=[1, 1, 0], mutation_rate=0) for _ in range(40)]
    assert any(made)
    assert not any("O" in text for text in made if text)


def test_reproduce_refuses_bad_input() -> None:
    rng = random.Random(0)
    with pytest.raises(ValueError, match="parents: none given"):
        reproduce([], rng)
    with pytest.raises(ValueError, match="parents: 'C1CC' is no valid molecule"):
        reproduce(["C1CC"], rng)
    with pytest.raises(ValueError, match="mutation_rate: 2"):
        reproduce(["CC"], rng, mutation_rate=2)


@pytest.mark.parametrize("call", [{"mean": 0}, {"stdev": -1}, {"least": 0}, {"least": 5, "most": 4}])
def test_sizes_out_of_range(call: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{list(call)[-1]}: "):
        ChildSize(**call)  # type: ignore[arg-type]


def test_children_keep_to_the_size() -> None:
    rng, mols = random.Random(0), [molecule(text) for text in DRUGS]
    size = ChildSize(mean=20, stdev=0, least=10, most=18)
    pairs = [rng.sample(mols, 2) for _ in range(60)]
    made = [operator(a, b, rng, size=size) for a, b in pairs for operator in (crossover, splice)]
    counts = {child.GetNumAtoms() for child in made if child is not None}
    assert counts
    assert min(counts) >= 10
    assert max(counts) <= 18
    accepted = sum(ChildSize().accepts(39, rng) for _ in range(2000)) / 2000
    assert accepted == pytest.approx(0.5170, abs=0.05), "P(39 < z), z ~ N(39.15, 3.5²)"
    assert [ChildSize(mean=9, stdev=0, most=7).accepts(count, rng) for count in (5, 6, 7, 8)] == [False, True, True, False]
    assert [ChildSize(mean=9, stdev=0).accepts(count, rng) for count in (8, 9)] == [True, False]


STRANGE = [
    "C",
    "CC",
    "[Na+].[Cl-]",
    "CC(=O)[O-].[Na+]",
    "[13CH4]",
    "[2H]C([2H])([2H])O",
    "[CH3]",
    "[CH2]CCO",
    "O=[N+]([O-])c1ccccc1",
    "C[N-][N+]#N",
    "[O-][n+]1ccccc1",
    "C1CCCCCCCCCCC1",
    "c1ccc2c(c1)[nH]c1ccccc12",
    "F/C=C/C(Cl)=C\\Br",
    "C[C@@H](N)[C@H](O)c1ccccc1",
    "C12C3C4C1C5C2C3C45",
    "[Fe]",
    "*CC*",
    "FS(F)(F)(F)(F)F",
    "C" * 100,
    "C1CC1" * 34,
]


@pytest.mark.parametrize("text", STRANGE)
def test_strange_molecules_do_no_harm(text: str) -> None:
    rng, mol, other = random.Random(0), molecule(text), molecule(DRUGS[1])
    for size in (ANY, ChildSize()):
        for _ in range(5):
            for made in (mutate(mol, rng, size=size), crossover(mol, other, rng, size=size), splice(other, mol, rng, size=size)):
                check(made)
            check(crossover(mol, mol, rng, size=size))


def test_pyrrole_nitrogen_and_stereocentres_can_be_edited() -> None:
    assert "Cn1cccc1" in children("c1cc[nH]c1", "append_atom", 200)
    assert canonical("CC(C)(N)O") in children("C[C@H](N)O", "append_atom", 200), "the edited atom is no stereocentre any more"
    assert not any("@" in text for text in children("N[C@](F)(Cl)O", "insert_atom", 200))
    assert not any("/" in text for text in children("F/C=C/Cl", "append_atom", 200)), "the same holds for double bonds"
    assert {"CC/C=C/F", "NC/C=C/F"} <= children("C/C=C/F", "append_atom", 200), "others keep theirs"
    kept = children("C[C@H](O)CCCCN", "delete_atom")
    assert "C[C@H](O)CCCN" in kept or "C[C@@H](O)CCCN" in kept


OPERATORS: list[Callable[[Chem.Mol, random.Random], Chem.Mol | None]] = [
    mutate,
    lambda m, r: crossover(m, m, r),
    lambda m, r: splice(m, m, r),
]


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_leave_the_global_generator_alone(operator: Callable[[Chem.Mol, random.Random], Chem.Mol | None]) -> None:
    random.seed(0)
    state = random.getstate()
    operator(molecule(DRUGS[0]), random.Random(1))
    assert random.getstate() == state


# The same mutations as reactions of RDKit, which makes every product of a pattern at once.
REACTIONS = {
    "insert_atom": [
        *(f"[*:1]~[*:2]>>[*:1]-{x}-[*:2]" for x in "CNOS"),
        *(f"[*;!H0:1]~[*:2]>>[*:1]={x}-[*:2]" for x in "CN"),
        "[*;!R;!H1;!H0:1]~[*:2]>>[*:1]#C-[*:2]",
    ],
    "append_atom": [
        *(f"[*;!H0:1]>>[*:1]-{x}" for x in ("C", "N", "O", "F", "S", "Cl", "Br")),
        *(f"[*;!H0;!H1:1]>>[*:1]={x}" for x in "CNO"),
        *(f"[*;H3:1]>>[*:1]#{x}" for x in "CN"),
    ],
    "delete_atom": [
        "[*:1]~[D1]>>[*:1]",
        "[*:1]~[D2]~[*:3]>>[*:1]-[*:3]",
        "[*:1]~[D3](~[*;!H0:3])~[*:4]>>[*:1]-[*:3]-[*:4]",
        "[*:1]~[D4](~[*;!H0:3])(~[*;!H0:4])~[*:5]>>[*:1]-[*:3]-[*:4]-[*:5]",
        "[*:1]~[D4](~[*;!H0;!H1:3])(~[*:4])~[*:5]>>[*:1]-[*:3](-[*:4])-[*:5]",
    ],
    "delete_cyclic_bond": ["[*:1]@[*:2]>>([*:1].[*:2])"],
    "change_bond_order": [
        "[*:1]!-[*:2]>>[*:1]-[*:2]",
        "[*;!H0:1]-[*;!H0:2]>>[*:1]=[*:2]",
        "[*:1]#[*:2]>>[*:1]=[*:2]",
        "[*;!R;!H1;!H0:1]~[*:2]>>[*:1]#[*:2]",
    ],
    "change_atom": [f"[#{x}:1]>>[#{y}:1]" for x in (6, 7, 8) for y in (6, 7, 8, 9, 16, 17, 35) if x != y],
}


def products(mol: Chem.Mol, smarts: str) -> set[str]:
    found = set()
    for (child,) in rdChemReactions.ReactionFromSmarts(smarts).RunReactants((mol,)):
        if Chem.SanitizeMol(child, catchErrors=True) == Chem.SanitizeFlags.SANITIZE_NONE and rings_ok(child):
            text = to_smiles(child)
            if "." not in text and not any(atom.GetNumRadicalElectrons() for atom in child.GetAtoms()):
                found.add(canonical(text))
    return found


@pytest.mark.parametrize("kind", REACTIONS)
@pytest.mark.parametrize("text", ["CC(C)(C)CC(=O)NC#N", "CC1CC(=O)C=C1OC", "Cc1ccncc1O"])
def test_mutations_agree_with_reactions(kind: str, text: str) -> None:
    mol = molecule(text)
    made = children(text, kind, 700)
    Chem.Kekulize(mol, clearAromaticFlags=True)
    with BlockLogs():
        expected = set().union(*(products(mol, smarts) for smarts in REACTIONS[kind])) - {canonical(text)}
    assert made - {canonical(text)} <= expected, "nothing else"
    assert len(made) >= 0.8 * len(expected), "rare ones may be missing"


def test_a_child_is_unlike_the_largest_component_of_its_parents() -> None:
    draw, a, b = random.Random(0), molecule("CCCO.Cl"), molecule("CCO")
    found = [crossover(a, b, draw, size=ChildSize(least=1)) for _ in range(60)]
    children = {to_smiles(child) for child in found if child is not None}
    assert children
    assert not children & {"CCCO", "CCO"}


# Smaller and larger choices inside a mutation, with the probabilities of the source.
INNER_ODDS = {
    "insert_atom": {"[*]~[*]": 0.60, "[*;!H0]~[*]": 0.35, "[*;!R;!H1;!H0]~[*]": 0.05},
    "append_atom": {"[*;!H0]": 0.60, "[*;!H0;!H1]": 0.35, "[*;H3]": 0.05},
    "delete_atom": {
        "[*]~[D1]": 0.25,
        "[*]~[D2]~[*]": 0.25,
        "[*]~[D3](~[*;!H0])~[*]": 0.25,
        "[*]~[D4](~[*;!H0])(~[*;!H0])~[*]": 0.1875,
        "[*]~[D4](~[*;!H0;!H1])(~[*])~[*]": 0.0625,
    },
    "change_bond_order": {"[*]!-[*]": 0.45, "[*;!H0]-[*;!H0]": 0.45, "[*]#[*]": 0.05, "[*;!R;!H1;!H0]~[*]": 0.05},
    "add_ring": {"[*;!r;!H0]~" + "[*;!r]~" * (n - 2) + "[*;!r;!H0]": p for n, p in ((3, 0.05), (4, 0.05), (5, 0.45), (6, 0.45))},
}


@pytest.mark.parametrize("kind", INNER_ODDS)
def test_choices_inside_a_mutation_have_the_odds_of_the_source(kind: str) -> None:
    rng, mol = random.Random(0), molecule("CCO")
    drawn = [MUTATIONS[kind](mol, rng) for _ in range(4000)]
    counts = Counter(made[0] for made in drawn if made is not None)
    assert {smarts: count / 4000 for smarts, count in counts.items()} == pytest.approx(INNER_ODDS[kind], abs=0.03)


def test_rings_are_cut_in_both_ways_with_equal_odds() -> None:
    """Cyclohexane has no branched atom, so that the cut at two neighbouring bonds finds no place."""
    rng, ring = random.Random(0), molecule("C1CCCCC1")
    drawn = [_cut_ring(ring, rng) for _ in range(2000)]
    assert sum(not parts for parts in drawn) / 2000 == pytest.approx(0.5, abs=0.04)
    assert {tuple(sorted(part.mol.GetNumAtoms() for part in parts)) for parts in drawn if parts} == {(2, 4)}


def test_all_places_of_a_large_molecule_are_found() -> None:
    assert len(matches(molecule("C" * 600), "[*]~[*]")) == 2 * 599
