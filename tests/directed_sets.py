"""A small data set of directed acyclic graphs for tests, the same in every format."""

from __future__ import annotations

import json
import random
from pathlib import Path

import networkx as nx
import torch
from torch_geometric.data import Data

from discrete_grpo.datasets.graph_files import to_graphml, to_node_link
from discrete_grpo.domains.named_graphs import to_line

OPS, PORTS = ("add", "mul"), ("left", "right side")


def dags(count: int = 24, seed: int = 0) -> list[nx.DiGraph]:
    """Random connected acyclic graphs of 4 to 7 nodes in any order; arcs into additions are left, others of both classes."""
    generator, graphs = random.Random(seed), []
    for _ in range(count):
        graph, n = nx.DiGraph(), generator.randint(4, 7)
        graph.add_nodes_from((k, {"op": generator.choice(OPS)}) for k in range(n))
        order = generator.sample(range(n), n)
        for k in range(1, n):
            for other in generator.sample(range(k), min(k, generator.randint(1, 2))):
                into = graph.nodes[order[k]]["op"]
                graph.add_edge(order[other], order[k], port="left" if into == "add" else generator.choice(PORTS))
        graphs.append(graph)
    return graphs


def renamed(graph: nx.DiGraph) -> nx.DiGraph:
    """The same graph with the attribute ``label`` in the place of both others."""
    found = nx.DiGraph()
    found.add_nodes_from((v, {"label": row["op"]}) for v, row in graph.nodes(data=True))
    found.add_edges_from((a, b, {"label": row["port"]}) for a, b, row in graph.edges(data=True))
    return found


def as_data(graph: nx.DiGraph) -> Data:
    """PyG data whose numbers are places in the sorted names, each arc in its direction alone."""
    ops = torch.tensor([OPS.index(c) for _, c in graph.nodes(data="op")])
    ports = torch.tensor([PORTS.index(c) for *_, c in graph.edges(data="port")])
    return Data(x=ops[:, None], edge_index=torch.tensor(list(graph.edges)).T, edge_attr=ports + 1)


def write_all(folder: Path, graphs: list[nx.DiGraph]) -> dict[str, Path]:
    """Files of the same graphs, by format."""
    (folder / "gml").mkdir()
    paths = {name: folder / f"set.{name}" for name in ("graphml", "json", "jsonl", "g6", "d6", "txt", "csv", "pt")}
    paths["gml"] = folder / "gml"
    paths["graphml"].write_bytes(to_graphml(graphs))
    paths["json"].write_bytes(to_node_link(graphs))
    paths["jsonl"].write_text("".join(json.dumps(nx.node_link_data(g, edges="links")) + "\n" for g in graphs))
    for k, graph in enumerate(graphs):
        nx.write_gml(graph, folder / "gml" / f"{k:03}.gml")
    lines = [to_line(renamed(g)) for g in graphs]
    for name in ("g6", "d6", "txt"):
        paths[name].write_text("".join(f"{line}\n" for line in lines))
    paths["csv"].write_text("graph,reward\n,0\n" + "".join(f'"{line}",1\n' for line in lines))
    torch.save([as_data(g) for g in graphs], paths["pt"])
    return paths
