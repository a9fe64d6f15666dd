"""A tiny policy of every family with a file of samples that it is trained further on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
from torch import Tensor

from discrete_grpo import PretrainConfig, SFTRecipe
from discrete_grpo.core.description import description
from discrete_grpo.datasets.own_digraphs import own_digraphs
from discrete_grpo.datasets.own_graphs import own_graphs
from discrete_grpo.datasets.spatial import conformers, spatial_statistics
from discrete_grpo.datasets.synthetic_graphs import dataset_from_networkx, graph_statistics
from discrete_grpo.datasets.text import text_dataset
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.domains.spatial_files import to_sdf
from discrete_grpo.domains.tokenizer import SMILES, Property, Tokenizer
from discrete_grpo.models.encoder import EncoderSizes
from discrete_grpo.models.equivariant import EquivariantSizes
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.loading import load
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.digraphs import digraph_policy
from discrete_grpo.recipes.pretraining.graph_sequences import graph_sequence_policy
from discrete_grpo.recipes.pretraining.graphs import graph_policy, own_graph_policy
from discrete_grpo.recipes.pretraining.sft_data import Prepared, prepare
from discrete_grpo.recipes.pretraining.sft_files import samples_of
from discrete_grpo.recipes.pretraining.smiles import smiles_policy
from discrete_grpo.recipes.pretraining.spatial import SpatialOptions, spatial_policy
from discrete_grpo.recipes.pretraining.text import text_policy
from discrete_grpo.runs.checkpoint import save

TINY = NetworkSizes(layers=1, heads=2, width=16, edge_width=8, global_width=8, walk_length=3)
STEPS = DiffusionOptions(num_steps=2)
MOLECULES = ("CO", "CCO", "CC", "C=O", "CN", "C#N", "CC=O", "NC=O", "CCN", "COC")
RINGS = ("c1ccccc1CO", "C1CC1O", "C1CCC1", "CCO", "c1ccccc1", "OCC1CC1", "CC1CC1", "c1ccccc1C")
CYCLES = tuple(nx.cycle_graph(n) for n in (8, 9, 10, 11))
SPELLED = Tokenizer.of(["c1ccccc1CO", "C1CCN1=#"], SMILES)
SCALES = (Property("MolWt", 70.0, 20.0), Property("TPSA", 5.0, 8.0))


def loop(steps: int = 2, **changes: Any) -> PretrainConfig:
    return PretrainConfig(**{"max_steps": steps, "batch_size": 4, "warmup_steps": 0, "save_steps": 1, "log_steps": 1} | changes)


def written(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def coloured(sizes: Sequence[int] = (3, 4, 5, 4), directed: bool = False) -> list[nx.Graph]:
    graphs = []
    for n in sizes:
        graph = nx.path_graph(n, create_using=nx.DiGraph if directed else nx.Graph)
        nx.set_node_attributes(graph, {k: ("red", "blue")[k % 2] for k in graph}, "colour")
        graphs.append(graph)
    return graphs


def plain(folder: Path, graphs: Sequence[nx.Graph], options: DiffusionOptions = STEPS) -> str:
    """A policy of plain graphs like ``graphs``."""
    policy = graph_policy(graph_statistics(dataset_from_networkx(graphs)), TINY, options)
    return str(save(folder, policy, metadata={"kind": "graphs", "shape": "connected"}))


def texts(folder: Path, **options: Any) -> str:
    """A SMILES policy."""
    policy = smiles_policy(SPELLED, max_length=14, layers=1, heads=2, width=16, **options)
    return str(save(folder, policy, metadata={"kind": "molecules"}))


def made(recipe: SFTRecipe) -> Prepared:
    loaded = load(recipe.policy)
    return prepare(recipe, loaded, samples_of(recipe, loaded))


def weights(policy: Any) -> dict[str, Tensor]:
    return {name: value for name, value in policy.state_dict().items() if "network" in name}


# -- every family


def _graphs(where: Path) -> tuple[str, str]:
    paths = [nx.path_graph(n) for n in (3, 4, 4, 5)]
    return plain(where / "policy", paths), written(where / "data.g6", list(map(graph6, CYCLES)))


def _labelled(where: Path) -> tuple[str, str]:
    policy = own_graph_policy(own_graphs(coloured(), node_attribute="colour"), TINY, STEPS)
    nx.write_graphml(coloured([6])[0], where / "data.graphml")
    return str(save(where / "policy", policy, metadata=description(policy))), str(where / "data.graphml")


def _directed(where: Path) -> tuple[str, str]:
    policy = digraph_policy(own_digraphs(coloured(directed=True), node_attribute="colour"), _sized(), STEPS)
    nx.write_graphml(coloured([4], directed=True)[0], where / "data.graphml")
    return str(save(where / "policy", policy, metadata=description(policy))), str(where / "data.graphml")


def _sized() -> NetworkSizes:
    return NetworkSizes(layers=1, heads=2, width=16, edge_width=8, global_width=8)


def _sequences(where: Path) -> tuple[str, str]:
    policy = graph_sequence_policy(11, 24, layers=1, heads=2, width=16)
    data = written(where / "data.g6", list(map(graph6, CYCLES)))
    return str(save(where / "policy", policy, metadata={"kind": "graphs", "shape": "connected"})), data


def _smiles(where: Path) -> tuple[str, str]:
    return texts(where / "policy", properties=SCALES, scaffold=True), written(where / "data.smi", RINGS)


def _spatial(where: Path) -> tuple[str, str]:
    molecules = list(conformers(MOLECULES).molecules)
    stats = spatial_statistics(molecules)
    sizes = EquivariantSizes(layers=1, heads=2, width=16, edge_width=8, global_width=8)
    policy = spatial_policy(stats, sizes, SpatialOptions(num_steps=2))
    (where / "data.sdf").write_text(to_sdf(molecules[:4]))
    return str(save(where / "policy", policy, metadata={"kind": "spatial", "statistics": stats.to_json()})), str(where / "data.sdf")


def _text(where: Path) -> tuple[str, str]:
    lines = ("a red cat", "a blue cat", "the red sea", "one blue sea")
    policy = text_policy(text_dataset(lines), EncoderSizes(layers=1, heads=2, width=16), block_size=20)
    return str(save(where / "policy", policy, metadata={"kind": "text"})), written(where / "data.txt", lines * 3)


FAMILIES = {
    "graphs": _graphs,
    "labelled graphs": _labelled,
    "directed graphs": _directed,
    "graph sequences": _sequences,
    "smiles": _smiles,
    "molecules in space": _spatial,
    "text": _text,
}


def quick(recipe: SFTRecipe) -> SFTRecipe:
    return replace(recipe, pretrain=loop(1), evaluation_samples=0)
