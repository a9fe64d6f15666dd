"""A small data set of coloured graphs for tests, the same in every format."""

from __future__ import annotations

import json
import random
from pathlib import Path

import networkx as nx
import torch
from torch_geometric.data import Data, InMemoryDataset

from discrete_grpo.datasets.graph_files import to_graphml, to_node_link
from discrete_grpo.datasets.graph_splits import write_npz
from discrete_grpo.datasets.synthetic_graphs import GraphSplits
from discrete_grpo.domains.named_graphs import to_line

COLOURS, KINDS = ("blue", "deep red", "green"), ("thick", "thin")


def coloured(count: int = 24, seed: int = 0) -> list[nx.Graph]:
    """Random trees with colours; an edge is thick where one of its ends is green."""
    generator, graphs = random.Random(seed), []
    for _ in range(count):
        graph = nx.Graph()
        n = generator.randint(3, 5)
        graph.add_nodes_from((k, {"colour": generator.choice(COLOURS)}) for k in range(n))
        for k in range(1, n):
            other = generator.randrange(k)
            green = "green" in (graph.nodes[k]["colour"], graph.nodes[other]["colour"])
            graph.add_edge(other, k, kind="thick" if green else "thin")
        graphs.append(graph)
    return graphs


def relabelled(graph: nx.Graph) -> nx.Graph:
    """The same graph with the attribute ``label`` in the place of both others."""
    found = nx.Graph()
    found.add_nodes_from((v, {"label": row["colour"]}) for v, row in graph.nodes(data=True))
    found.add_edges_from((a, b, {"label": row["kind"]}) for a, b, row in graph.edges(data=True))
    return found


def as_data(graph: nx.Graph, one_hot: bool) -> Data:
    """PyG data whose numbers are places in the sorted names."""
    colours = torch.tensor([COLOURS.index(c) for _, c in graph.nodes(data="colour")])
    ends = torch.tensor([(a, b) for a, b in graph.edges] + [(b, a) for a, b in graph.edges]).T
    kinds = torch.tensor([KINDS.index(c) for *_, c in graph.edges(data="kind")] * 2)
    if one_hot:
        return Data(x=torch.eye(3)[colours], edge_index=ends, edge_attr=torch.eye(2)[kinds], num_nodes=len(graph))
    return Data(x=colours[:, None], edge_index=ends, edge_attr=kinds + 1)


def write_all(folder: Path, graphs: list[nx.Graph]) -> dict[str, Path]:
    """Files of the same graphs, by format."""
    (folder / "gml").mkdir()
    paths = {"graphml": folder / "set.graphml", "json": folder / "set.json", "jsonl": folder / "set.jsonl", "gml": folder / "gml"}
    paths["graphml"].write_bytes(to_graphml(graphs))
    paths["json"].write_bytes(to_node_link(graphs))
    paths["jsonl"].write_text("".join(json.dumps(nx.node_link_data(g, edges="links")) + "\n" for g in graphs))
    for k, graph in enumerate(graphs):
        nx.write_gml(graph, folder / "gml" / f"{k:03}.gml")
    paths["g6"] = folder / "set.g6"
    paths["g6"].write_text("".join(f"{to_line(relabelled(g))}\n" for g in graphs))
    paths["npz"] = folder / "set.npz"
    named = tuple(map(relabelled, graphs))
    write_npz(paths["npz"], GraphSplits(named[:-2], named[-2:-1], named[-1:]))
    for name, one_hot in (("integers", False), ("one-hot", True)):
        paths[name] = folder / f"{name}.pt"
        torch.save([as_data(g, one_hot) for g in graphs], paths[name])
    paths["dataset"] = folder / "dataset.pt"
    InMemoryDataset.save([as_data(g, False) for g in graphs], str(paths["dataset"]))
    return paths
