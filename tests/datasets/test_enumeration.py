"""The exhaustive list of small molecules."""

import gzip
import itertools
from collections import Counter
from pathlib import Path

import networkx as nx
import pytest
from rdkit import Chem

from discrete_grpo.datasets.enumeration import ENUMERATED_FILE, command_line, enumerate_molecules, gdb_like, load_enumerated
from discrete_grpo.domains.molecules import decode
from tests.shared_data import SHARED

KEPT = {1: 4, 2: 13, 3: 32, 4: 147, 5: 735, 6: 4628, 7: 32516}


def by_size(smiles: list[str]) -> dict[int, int]:
    return dict(Counter(Chem.MolFromSmiles(s).GetNumAtoms() for s in smiles))


@pytest.fixture(scope="module")
def upto5() -> list[str]:
    return enumerate_molecules(5)


@pytest.fixture(scope="module")
def bundled() -> list[str]:
    return gzip.decompress(ENUMERATED_FILE.read_bytes()).decode().split()


def test_counts(upto5: list[str]) -> None:
    assert by_size(upto5) == {1: 4, 2: 19, 3: 94, 4: 621, 5: 4715}
    assert by_size([s for s in upto5 if gdb_like(Chem.MolFromSmiles(s))]) == {n: KEPT[n] for n in range(1, 6)}
    assert len(set(upto5)) == len(upto5)


def test_three_atoms_against_every_labelled_graph() -> None:
    """Brute force: all 4^3 labellings by all 4^3 bond tables, counted up to isomorphism by networkx, without RDKit."""
    valence = {"C": 4, "N": 3, "O": 2, "F": 1}
    classes: dict[tuple[object, ...], list[nx.Graph]] = {}
    for kinds in itertools.product(valence, repeat=3):
        for orders in itertools.product(range(4), repeat=3):
            graph = nx.Graph()
            graph.add_nodes_from((i, {"kind": kind}) for i, kind in enumerate(kinds))
            graph.add_edges_from((*pair, {"order": o}) for pair, o in zip([(0, 1), (0, 2), (1, 2)], orders, strict=True) if o)
            used = [sum(e["order"] for e in graph[i].values()) for i in range(3)]
            if nx.is_connected(graph) and all(u <= valence[k] for u, k in zip(used, kinds, strict=True)):
                known = classes.setdefault((tuple(sorted(kinds)), tuple(sorted(orders))), [])
                alike = (nx.is_isomorphic(graph, g, lambda a, b: a == b, lambda a, b: a == b) for g in known)
                if not any(alike):
                    known.append(graph)
    assert sum(map(len, classes.values())) == 94


def test_sorted_by_size_and_then_string(upto5: list[str]) -> None:
    assert upto5 == sorted(upto5, key=lambda s: (Chem.MolFromSmiles(s).GetNumAtoms(), s))


def test_bundled_list(bundled: list[str], upto5: list[str]) -> None:
    sizes = Counter(sum(c in "CNOFcnof" for c in s) for s in bundled)
    assert sizes == KEPT
    assert bundled[: sum(KEPT[n] for n in range(1, 6))] == [s for s in upto5 if gdb_like(Chem.MolFromSmiles(s))]


def test_every_small_qm9_molecule_is_found(upto5: list[str], bundled: list[str]) -> None:
    path = SHARED / "qm9.smi.gz"
    if not path.is_file():
        pytest.skip("no shared data here")
    lines = gzip.decompress(path.read_bytes()).decode().split()
    short = [s for s in lines if sum(c in "CNOFcnof" for c in s) <= 7]
    mols = {Chem.MolToSmiles(m): m for m in map(Chem.MolFromSmiles, short)}
    sizes = {s: m.GetNumAtoms() for s, m in mols.items()}
    assert Counter(sizes.values()) == {1: 3, 2: 5, 3: 9, 4: 31, 5: 129, 6: 614, 7: 3168}
    assert {s for s in mols if sizes[s] <= 5} <= set(upto5)
    kept = {s for s, m in mols.items() if gdb_like(m)}
    assert Counter(sizes[s] for s in kept) == {1: 3, 2: 5, 3: 9, 4: 31, 5: 111, 6: 489, 7: 2352}
    assert kept <= set(bundled)


@pytest.mark.parametrize(
    ("smiles", "kept"),
    [
        ("CCO", True),
        ("C1=CC1", False),
        ("C1CC1=O", False),
        ("C1CC12CC2", False),
        ("C=C=C", False),
        ("C=C=O", False),
        ("CN=C=O", False),
        ("C1#CCCC1", False),
        ("NCN", False),
        ("OCF", False),
        ("CC(F)F", True),
        ("COO", False),
        ("NF", False),
        ("C=CO", False),
        ("CC=O", True),
        ("C=CN", False),
        ("CC=N", False),
        ("CC=NC", True),
        ("OCO", False),
        ("COCO", False),
        ("COCOC", True),
        ("NNN", False),
        ("c1ccccc1", True),
    ],
)
def test_filter_by_example(smiles: str, kept: bool) -> None:
    assert gdb_like(Chem.MolFromSmiles(smiles)) is kept


def test_loading() -> None:
    data = load_enumerated(5, min_atoms=2)
    assert len(data) == sum(KEPT[n] for n in range(2, 6))
    assert data.vocabulary.atoms == ("C", "N", "O", "F")
    assert (int(data.sizes.min()), data.num_nodes) == (2, 5)
    assert decode(data.batch(range(len(data))), data.vocabulary) == list(data.smiles)
    for bad in ((0, 1), (8, 1), (3, 4), (3, 0)):
        with pytest.raises(ValueError, match=r"^(min|max)_atoms: -?\d+, expected 1 to \d"):
            load_enumerated(bad[0], min_atoms=bad[1])
    for outside in (0, 9):
        with pytest.raises(ValueError, match=f"max_atoms: {outside}, expected 1 to 8"):
            enumerate_molecules(outside)


def test_the_file_is_the_same_to_the_byte(tmp_path: Path, bundled: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.smi.gz", "b.smi.gz"):
        command_line(["--max-atoms", "4", "--out", str(tmp_path / name)])
    first = (tmp_path / "a.smi.gz").read_bytes()
    assert first == (tmp_path / "b.smi.gz").read_bytes()
    assert gzip.decompress(first).decode().split() == bundled[: sum(KEPT[n] for n in range(1, 5))]
    assert "molecules in" in capsys.readouterr().err
