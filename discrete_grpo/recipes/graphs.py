"""Policies of plain graphs - planar graphs, trees, block models: made, pretrained and loaded; samples are graph6 lines."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from discrete_grpo.datasets.synthetic_graphs import GraphStatistics, dataset_from_networkx, graph_statistics, load_splits
from discrete_grpo.datasets.text_files import MAX_BYTES, text_lines
from discrete_grpo.diffusion import choices
from discrete_grpo.diffusion.choices import Distortion, KernelName, NoiseName, ScheduleName
from discrete_grpo.domains import graph6 as topology
from discrete_grpo.domains.graph6 import MAX_NODES
from discrete_grpo.domains.graph_validity import Shape
from discrete_grpo.metrics.graphs import GraphReference, evaluate, read_graphs
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.recipes.molecules import NetworkSizes, output_path, report_broken, sample_molecules
from discrete_grpo.runs.console import print_table
from discrete_grpo.runs.recorder import write_json
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Pretrainer

__all__ = [
    "PretrainGraphsRecipe",
    "evaluate_file",
    "graph_policy",
    "holds_graphs",
    "reference_of",
    "run_pretrain_graphs",
    "shape_of",
]


@dataclass(frozen=True)
class PretrainGraphsRecipe:
    """Likelihood training of a diffusion or flow policy on plain graphs.

    Attributes:
        data: a named set (planar-16, tree-16, planar-64, tree-64, sbm, community-20), made anew, or an npz file of splits.
        output_dir: run folder to make.
        noise: what is noised towards: uniform, marginal or absorbing (masked diffusion).
        kernel: the reverse step kept with the policy: d3pm, flow, flow_euler; the network is the same.
        schedule: cosine or linear (flow matching's path).
        train_distortion: of the times trained at: identity, cos, revcos, polyinc or polydec.
        sample_distortion: of the sampler's grid, likewise.
        eta: stochasticity of kernel flow_euler.
        omega: target guidance of kernel flow_euler.
        num_steps: steps of the sampler kept with the policy.
        precondition: add to the network's logits what a noisy edge says of itself, so that it need not be learned.
        network: sizes of the graph transformer.
        pretrain: settings of the training loop.
        evaluation_samples: graphs drawn with every checkpoint to log validity; 0 draws none.
        data_licence: written into the checkpoint.
        max_nodes: largest number of nodes of a graph of an npz file.
        max_bytes: largest size of the arrays of an npz file.
        shape: what makes a graph valid: planar, tree, sbm or connected; None means that of the set's name.
    """

    data: str = "planar-16"
    output_dir: str = "runs/pretrain-graphs"
    noise: NoiseName = "marginal"
    kernel: KernelName = "d3pm"
    schedule: ScheduleName = "linear"
    train_distortion: Distortion = "polydec"
    sample_distortion: Distortion = "polydec"
    eta: float = 0.0
    omega: float = 0.0
    num_steps: int = 50
    precondition: bool = False
    network: NetworkSizes = field(default_factory=NetworkSizes)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    evaluation_samples: int = 80
    data_licence: str = "made by discrete-grpo"
    shape: Shape | None = None
    max_nodes: int = MAX_NODES
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        if self.evaluation_samples < 0:
            raise ValueError(f"evaluation_samples: {self.evaluation_samples}, expected at least 0")


def shape_of(name: str) -> Shape:
    """What makes a graph of a named set valid, by the first part of its name.

    >>> shape_of("planar-16"), shape_of("sbm"), shape_of("community-20")
    ('planar', 'sbm', 'connected')
    """
    known: dict[str, Shape] = {"planar": "planar", "tree": "tree", "sbm": "sbm"}
    return known.get(name.split("-")[0], "connected")


def reference_of(metadata: Mapping[str, Any]) -> GraphReference | None:
    """What the samples of a checkpoint are measured against: the set it was trained on, where that can still be had."""
    data = metadata.get("data")
    if not isinstance(data, Mapping):
        return None
    for source in (data.get("name"), data.get("source")):
        try:
            return GraphReference(load_splits(str(source)), metadata.get("shape", "connected"))
        except (FileNotFoundError, ValueError):
            continue
    return None


def holds_graphs(file: str | Path) -> bool:
    """Whether a file of samples is of graphs: graph6 or npz by its ending, or a table with a column ``graph``."""
    name = str(file).removesuffix(".gz")
    if not name.endswith(".csv"):
        return name.endswith((".g6", ".npz"))
    path = Path(file)
    if not path.is_file():
        return False
    try:
        return "graph" in next(text_lines(path), "").strip().split(",")
    except (OSError, ValueError):
        return False


def evaluate_file(
    file: str,
    *,
    data: str | None = None,
    shape: Shape | None = None,
    out: str | None = None,
    max_nodes: int = MAX_NODES,
    max_bytes: int = MAX_BYTES,
) -> dict[str, float]:
    """V.U.N., MMDs and ratio of a file of graphs against a set; without a set what can be said without one.

    Args:
        file: graph6 lines, a csv with a column ``graph``, or an npz file, whose test graphs are taken.
        data: a named set or an npz file of splits.
        shape: what makes a graph valid; None means that of the set's name.
        out: JSON file for the numbers.
        max_nodes: largest number of nodes of a graph.
        max_bytes: largest size that a gzipped file, or an npz file, may unpack to.

    Raises:
        ValueError, FileNotFoundError: if a file cannot be read or the set is unknown.
    """
    path = None if out is None else output_path(out)
    found = read_graphs(file, max_nodes=max_nodes, max_bytes=max_bytes)
    splits = None if data is None else load_splits(data, max_nodes=max_nodes, max_bytes=max_bytes)
    shape = shape or shape_of(splits.name if splits else "")
    report_broken(file, found.broken, len(found.graphs), "graph6")
    reference = None if splits is None else GraphReference(splits, shape)
    result = evaluate(found.samples, reference, shape)
    print_table(f"{file}: {len(found.samples)} graphs", {k: {"value": v} for k, v in result.items()})
    if path is not None:
        write_json(path, {"file": file, "data": data, "shape": shape} | result)
    return result


def graph_policy(stats: GraphStatistics, recipe: PretrainGraphsRecipe) -> GraphPolicy:
    """An untrained policy of plain graphs of the kind ``stats`` describes; the global random state is left as it was."""
    path = choices.make_schedule(recipe.schedule)
    nodes, edges = (
        choices.make_kernel(recipe.kernel, choices.make_noise(recipe.noise, share, path), eta=recipe.eta, omega=recipe.omega)
        for share in ((1.0,), stats.edge_marginal)
    )
    sizes = asdict(recipe.network)
    x, e = nodes.noise, edges.noise
    config = GraphTransformerConfig(x.num_states, e.num_states, x.num_clean, e.num_clean, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.pretrain.seed)
        network = GraphTransformer(config)
    return GraphPolicy(
        network,
        nodes,
        edges,
        stats.node_counts,
        num_steps=recipe.num_steps,
        precondition=recipe.precondition,
        train_distortion=choices.make_distortion(recipe.train_distortion),
        sample_distortion=choices.make_distortion(recipe.sample_distortion),
        decode=topology.batch_to_graph6,
    )


def run_pretrain_graphs(recipe: PretrainGraphsRecipe, *, resume: bool = False) -> Path:
    """Train, log and export; returns the folder of the exported policy."""
    splits = load_splits(recipe.data, max_nodes=recipe.max_nodes, max_bytes=recipe.max_bytes)
    data = dataset_from_networkx(splits.train, splits.name)
    policy = graph_policy(graph_statistics(data), recipe)
    shape = recipe.shape or shape_of(splits.name)
    metadata = {
        "kind": "graphs",
        "data": {"name": splits.name, "source": recipe.data, "graphs": len(data), "licence": recipe.data_licence},
        "shape": shape,
        "date": datetime.date.today().isoformat(),
    }
    reference = GraphReference(splits, shape)

    def measure(averaged: GraphPolicy) -> Mapping[str, float]:
        return evaluate(sample_molecules(averaged, recipe.evaluation_samples, batch_size=40), reference)

    trainer = Pretrainer(
        policy,
        data,
        recipe.pretrain,
        recipe.output_dir,
        metadata=metadata,
        resume=resume,
        evaluate=measure if recipe.evaluation_samples else None,
    )
    return trainer.train()
