"""Samples that are networkx graphs, PyG data or RDKit molecules are measured as the lines or files that say the same."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
import torch
from rdkit import Chem
from rdkit.Chem import rdDistGeom
from torch_geometric.data import Data
from torch_geometric.utils import from_networkx

from discrete_grpo import evaluate
from discrete_grpo.datasets.spatial import conformers
from discrete_grpo.domains.spatial_molecules import to_cxsmiles

PATHS = [nx.path_graph(n) for n in (3, 4, 5)]
LINES = [nx.to_graph6_bytes(graph, header=False).decode().strip() for graph in PATHS]


def coloured(n: int) -> nx.Graph:
    graph = nx.path_graph(n)
    nx.set_node_attributes(graph, {k: ("red", "blue")[k % 2] for k in graph}, "colour")
    return graph


def same(left: Any, right: Any) -> bool:
    return bool(left == pytest.approx(right, nan_ok=True))


def test_graph_objects_are_measured_as_their_lines() -> None:
    options: dict[str, Any] = {"kind": "graphs", "reference": PATHS, "shape": "tree"}
    of_lines = evaluate([*LINES, None], **options)
    assert of_lines["valid"] == 0.75
    weighted = [nx.Graph(graph) for graph in PATHS]
    nx.set_edge_attributes(weighted[0], 0.5, "weight")
    nx.set_node_attributes(weighted[1], (0, 0), "place")
    for samples in (PATHS, list(map(from_networkx, PATHS)), weighted, [LINES[0], *PATHS[1:]]):
        assert same(evaluate([*samples, None], **options), of_lines)
    assert same(evaluate(iter([*PATHS, None]), **options), of_lines)


def test_classes_of_graph_objects_are_read_as_those_of_the_reference() -> None:
    samples = [coloured(3), coloured(4)]
    found = evaluate(samples, kind="graphs", reference=samples)
    assert (found["novel"], found["tv_node_class"]) == (0.0, 0.0)
    other = nx.path_graph(3)
    nx.set_node_attributes(other, "green", "colour")
    with pytest.raises(ValueError, match=r"samples: graph 1: .*'green'"):
        evaluate([samples[0], other], kind="graphs", reference=samples)
    with pytest.raises(ValueError, match="samples: graph 0 has no classes, expected those of the reference: blue, red"):
        evaluate(LINES, kind="graphs", reference=samples)
    data = Data(x=torch.tensor([0, 1]), edge_index=torch.tensor([[0, 1], [1, 0]]))
    assert evaluate([data], kind="graphs", reference=[data])["novel"] == 0.0


@pytest.mark.parametrize(
    ("kind", "sample", "said"),
    [
        ("graphs", nx.MultiGraph(PATHS[0]), "samples: graph 0 is a multigraph"),
        ("graphs", nx.DiGraph([(0, 1)]), "samples: graph 0 is directed, expected kind='digraphs' for such graphs"),
        ("digraphs", nx.path_graph(3), "samples: graph 0 is undirected, expected kind='graphs' for such graphs"),
        ("graphs", nx.Graph([(0, 0)]), "samples: graph 0, node 0 has a self-loop"),
        ("graphs", 3, "samples: graph 0 is a int, expected networkx graphs or PyG Data"),
    ],
)
def test_what_is_no_such_graph_is_refused_and_not_counted_as_invalid(kind: str, sample: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        evaluate([sample], kind=kind)


def test_unmistakable_samples_need_no_kind() -> None:
    assert same(evaluate(PATHS), evaluate(LINES, kind="graphs"))
    assert same(evaluate([None, nx.DiGraph([(0, 1)])]), evaluate([None, "&A?"[:2] + "G"], kind="digraphs") | {"valid": 0.5})
    assert "tv_edge_given_ends" not in evaluate(["Bw nodes=0,0,0 edges=1,1,1"])
    assert evaluate(["Bw nodes=0,0,0 edges=1,1,1"])["connected"] == 1.0
    assert evaluate(["CCO"])["valid"] == 1.0


def test_molecules_in_space_may_be_rdkit_molecules_or_their_texts() -> None:
    molecules = list(conformers(["CO", "CC"]).molecules)
    expected = evaluate(molecules, kind="spatial")
    assert same(evaluate(list(map(to_cxsmiles, molecules))), pytest.approx(expected, rel=1e-3, nan_ok=True))
    mol = Chem.AddHs(Chem.MolFromSmiles("CO"))
    assert rdDistGeom.EmbedMolecule(mol, randomSeed=0) == 0
    assert evaluate([mol], kind="spatial", reference=[mol])["valid"] == 1.0
    with pytest.raises(ValueError, match="samples: entry 1: mol: no conformer, expected positions of the atoms"):
        evaluate([mol, Chem.MolFromSmiles("CO")], kind="spatial")
    with pytest.raises(ValueError, match="reference: texts without positions, expected molecules in space"):
        evaluate(molecules, kind="spatial", reference=["CO"])
    with pytest.raises(ValueError, match="reference: 1 molecules in space among 2 entries, expected these alone or texts alone"):
        evaluate(molecules, kind="spatial", reference=[mol, "CO"])


def test_a_reference_that_is_refused_is_told_by_its_name() -> None:
    for options, said in (
        ({"kind": "text", "reference": ["a"]}, "reference: 'a list', expected none with a file of text"),
        ({"kind": "graphs", "suite": "graphs", "reference": PATHS, "train": PATHS}, "train: 'a list', expected none"),
        ({"kind": "graphs", "reference": [nx.DiGraph([(0, 1)])]}, "reference: graph 0 is directed"),
        ({"kind": "graphs", "reference": nx.path_graph(3)}, "reference: a Graph, expected a list"),
    ):
        with pytest.raises(ValueError, match=said):
            evaluate(LINES, **options)
