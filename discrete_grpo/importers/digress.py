"""Checkpoints of DiGress, GDPO, DeFoG and Graph-GRPO as graph policies: their network, priors and reverse step.

Sizes are read off the tensors. What a file does not say - classes, marginals, numbers of nodes, steps - comes from the objects
a Lightning checkpoint stores (looked at, never executed), from the published data sets, or from a JSON file.
Dropout is left out: drawing and scoring have to be one function.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from discrete_grpo import chemistry, topology
from discrete_grpo.checkpoint import CheckpointError
from discrete_grpo.chemistry import Vocabulary
from discrete_grpo.datasets.molecules import MoleculeStatistics
from discrete_grpo.diffusion import choices
from discrete_grpo.diffusion.flow import FlowEuler
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.schedules import DigressSchedule, LinearSchedule
from discrete_grpo.importers.graph_data import DataName, Noise, TrainingData, data_from, known_data, one_of, prior, read_statistics
from discrete_grpo.importers.lightning import plain, read_lightning, tensors
from discrete_grpo.importers.tensors import check_tensors
from discrete_grpo.models.digress_features import Features, MoleculeFeatures, feature_widths
from discrete_grpo.models.digress_transformer import DigressConfig, DigressTransformer, Pooling
from discrete_grpo.policies.graph import GraphPolicy

__all__ = ["ImportedGraphs", "Noise", "Padding", "import_defog", "import_digress", "import_graph_grpo"]

Padding = Literal["safe", "published"]
"""``safe``: padding changes nothing. ``published``: graphs are padded to the largest, and padding counts, as the peers pool."""
IGNORED = re.compile(r"noise_schedule\.|train_loss\.|.*metrics|p0_|node_count_|_device_buffer|val_|test_")
NETWORK = ("mlp_in_", "mlp_out_", "tf_layers.")
FIRST = "mlp_in_X.0.weight"
TIME_WIDTH = 64


@dataclass(frozen=True)
class ImportedGraphs:
    """A policy and what a checkpoint keeps beside it.

    Attributes:
        policy: in eval mode.
        statistics: of molecules; None for plain graphs.
    """

    policy: GraphPolicy
    statistics: MoleculeStatistics | None

    @property
    def metadata(self) -> dict[str, Any]:
        """``kind``, and the statistics that molecules need."""
        return {"kind": "molecules", "statistics": self.statistics.to_json()} if self.statistics else {"kind": "graphs"}


def import_digress(
    path: str | os.PathLike[str],
    *,
    dataset: DataName | None = None,
    statistics: str | os.PathLike[str] | None = None,
    noise: Noise | None = None,
    num_steps: int | None = None,
    diffusion_steps: int | None = None,
    heads: int = 8,
    variant: Literal["main", "fixed_bug"] = "main",
    padding: Padding = "safe",
    checkpoint_layers: bool = True,
) -> ImportedGraphs:
    """A checkpoint of DiGress or GDPO: D3PM with the discrete cosine schedule.

    Args:
        path: Lightning's ``.ckpt``, GDPO's ``.pt``, or a state dict.
        dataset: the published data set it was trained on; None takes what the file stores.
        statistics: JSON file with the fields of :class:`~discrete_grpo.importers.graph_data.TrainingData`, instead.
        noise: ``marginal`` or ``uniform``; None takes what the file stores, else marginal.
        num_steps: steps of the sampler; None takes the steps of the diffusion.
        diffusion_steps: T of its schedule; None takes what the file stores, else the published T of the data set.
        heads: attention heads.
        variant: branch of DiGress: ``fixed_bug`` pools over what exists and counts 5-cycles rightly.
        padding: see :data:`Padding`.
        checkpoint_layers: whether gradients recompute layers, for memory.

    Raises:
        CheckpointError: if the file cannot be read or its tensors do not fit.
        ValueError: for an option that does not fit, or if classes, marginals or sizes are known from nowhere.
    """
    source = _Source.read(path, dataset, statistics)
    noise = noise or cast(Noise, source.setting("model", "transition") or "marginal")
    if noise not in ("marginal", "uniform"):
        raise ValueError(f"noise: {noise!r}, expected marginal or uniform")
    fixed = one_of("variant", variant, ("main", "fixed_bug")) == "fixed_bug"
    steps = diffusion_steps or int(source.setting("model", "diffusion_steps") or source.data.steps)
    schedule = DigressSchedule(steps)
    pooling: Pooling = "variance" if fixed else _pooling(padding)
    config = _config(source, heads, noise, clock="noise", time_width=0, pooling=pooling)
    config = replace(config, five_cycles="corrected" if fixed else "published")
    node_prior, edge_prior = source.priors(noise)
    kernels = D3PM(node_prior, schedule, config.node_classes), D3PM(edge_prior, schedule, config.edge_classes)
    return _assemble(source, config, kernels, num_steps or steps, checkpoint_layers)


def import_defog(
    path: str | os.PathLike[str],
    *,
    dataset: DataName | None = None,
    statistics: str | os.PathLike[str] | None = None,
    noise: Noise | None = None,
    num_steps: int | None = None,
    eta: float = 0.0,
    omega: float = 0.0,
    sample_distortion: choices.Distortion = "identity",
    heads: int = 8,
    padding: Padding = "safe",
    checkpoint_layers: bool = True,
) -> ImportedGraphs:
    """A checkpoint of DeFoG: flow matching by Euler steps, averaged over the predicted clean class.

    Args:
        path: Lightning's ``.ckpt`` or a state dict.
        dataset: the published data set it was trained on; None takes what the file stores.
        statistics: JSON file with the data's numbers instead, as in :func:`import_digress`.
        noise: what it noises towards; None takes what the file stores, else marginal.
        num_steps: steps of the sampler; None takes what the file stores, else the published T of the data set.
        eta: stochasticity of the sampler.
        omega: target guidance of the sampler.
        sample_distortion: of the sampler's grid.
        heads: attention heads.
        padding: see :data:`Padding`.
        checkpoint_layers: whether gradients recompute layers, for memory.

    Raises:
        CheckpointError: if the file cannot be read or its tensors do not fit.
        ValueError: for an option that does not fit, or if classes, marginals or sizes are known from nowhere.
    """
    source = _Source.read(path, dataset, statistics)
    noise = noise or cast(Noise, source.setting("model", "transition") or "marginal")
    return _flow(source, noise, _pooling(padding), num_steps, (eta, omega), sample_distortion, heads, checkpoint_layers)


def import_graph_grpo(
    path: str | os.PathLike[str],
    *,
    dataset: DataName | None = None,
    statistics: str | os.PathLike[str] | None = None,
    noise: Noise | None = None,
    num_steps: int | None = None,
    eta: float = 0.0,
    omega: float = 0.0,
    sample_distortion: choices.Distortion = "identity",
    heads: int = 8,
    checkpoint_layers: bool = True,
) -> ImportedGraphs:
    """A checkpoint of Graph-GRPO, pretrained or fine-tuned; its stored prior and node counts come before those of the data.

    Its pooling is over what exists, so padding never counts. The other arguments are those of :func:`import_defog`.

    Raises:
        CheckpointError: if the file cannot be read or its tensors do not fit.
        ValueError: for an option that does not fit, or if classes, marginals or sizes are known from nowhere.
    """
    source = _Source.read(path, dataset, statistics)
    noise = noise or cast(Noise, source.setting("model", "transition") or "marginal")
    return _flow(source, noise, "biased_std", num_steps, (eta, omega), sample_distortion, heads, checkpoint_layers)


def _flow(
    source: _Source,
    noise: Noise,
    pooling: Pooling,
    num_steps: int | None,
    rates: tuple[float, float],
    sample_distortion: choices.Distortion,
    heads: int,
    checkpoint_layers: bool,
) -> ImportedGraphs:
    config = _config(source, heads, noise, clock="data", time_width=TIME_WIDTH, pooling=pooling)
    priors = zip(source.priors(noise), (config.node_classes, config.edge_classes), strict=True)
    kernels = [FlowEuler(prior, LinearSchedule(), classes, *rates) for prior, classes in priors]
    steps = num_steps or int(source.setting("sample", "sample_steps") or source.data.steps)
    distortion = choices.distortion(sample_distortion)
    return _assemble(source, config, (kernels[0], kernels[1]), steps, checkpoint_layers, sample_distortion=distortion)


# -- what a file holds


@dataclass(frozen=True)
class _Source:
    """A file: the network's tensors, the buffers beside them, and what is known of its data and settings."""

    path: object
    network: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    data: TrainingData
    settings: Mapping[str, Any]

    @staticmethod
    def read(path: str | os.PathLike[str], dataset: DataName | None, statistics: str | os.PathLike[str] | None) -> _Source:
        content = read_lightning(path)
        named = dict(tensors(content))
        prefix = _prefix(named, path)
        inside = {k.removeprefix(prefix): t for k, t in named.items() if k.startswith(prefix)}
        network = {k: t for k, t in inside.items() if k.startswith(NETWORK) or not IGNORED.match(k)}
        buffers = {k.rsplit(".", 1)[-1]: t for k, t in named.items() if "p0_" in k or k.endswith("node_count_prob")}
        hyper = plain(content.get("hyper_parameters")) if isinstance(content, Mapping) else None
        hyper = hyper if isinstance(hyper, Mapping) else {}
        outputs = [_rows(network, f"mlp_out_{m}.2.weight", path) for m in "XE"]
        data = _data(dataset, statistics, hyper.get("dataset_infos"), path).with_edges(outputs[1])
        data = _with_buffers(data, buffers)
        for kind, share, width in zip(("node", "edge"), (data.node_marginal, data.edge_marginal), outputs, strict=True):
            if len(share) > width:
                raise ValueError(f"dataset: {data.name!r} has {len(share)} {kind} classes, expected {width} of {path}")
        settings = hyper.get("cfg", hyper)
        return _Source(path, network, buffers, data, settings if isinstance(settings, Mapping) else {})

    def setting(self, group: str, name: str) -> Any:
        """A value of the stored configuration; None where there is none."""
        found = self.settings.get(group)
        return found.get(name) if isinstance(found, Mapping) else None

    def priors(self, noise: Noise) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What nodes and edges are noised towards: the stored buffers, else by the name of the noise."""
        found = []
        for buffer, share in (("p0_node_dist", self.data.node_marginal), ("p0_edge_dist", self.data.edge_marginal)):
            stored = self.buffers.get(buffer)
            weights = prior(noise, share) if stored is None else stored.flatten().double().tolist()
            found.append(tuple(w / sum(weights) for w in weights))
        return found[0], found[1]


def _prefix(named: Mapping[str, Tensor], path: object) -> str:
    """What stands before the network's names: nothing, ``model.``, ``model.model.`` or another, the shortest if several."""
    found = sorted((k[: -len(FIRST)] for k in named if k.endswith(FIRST)), key=len)
    if not found:
        first = ", ".join(sorted(named)[:3]) or "no tensors"
        raise CheckpointError(f"path: {path} has no {FIRST} ({first}), expected a network of DiGress, DeFoG or Graph-GRPO")
    return found[0]


def _data(dataset: DataName | None, statistics: Any, stored: Any, path: object) -> TrainingData:
    if statistics is not None:
        if dataset is not None:
            raise ValueError(f"statistics: {statistics}, expected none beside dataset {dataset!r}")
        return read_statistics(statistics)
    if dataset is not None:
        return known_data(dataset)
    if isinstance(stored, Mapping) and {"n_nodes", "node_types", "edge_types"} <= stored.keys():
        return _stored_data(stored, path)
    raise ValueError(f"dataset: None, and {path} does not store its data; expected {', '.join(get_args(DataName))}, or statistics")


def _stored_data(stored: Mapping[str, Any], path: object) -> TrainingData:
    """From the ``dataset_infos`` of a Lightning checkpoint; an absorbing model's list of atoms ends in a made-up one."""
    lists: dict[Any, Any] = {k: v.flatten().tolist() if isinstance(v, Tensor) else v for k, v in stored.items()}
    classes = len(lists["node_types"])
    atoms = (lists.get("atom_decoder") or [])[:classes]
    fields = {"name": str(lists.get("name") or "stored"), "node_counts": lists["n_nodes"], "node_marginal": lists["node_types"]}
    fields |= {"edge_marginal": lists["edge_types"], "atoms": atoms}
    if isinstance(lists.get("atom_weights"), Mapping) and lists.get("max_weight"):
        fields |= {"weights": list(lists["atom_weights"].values())[:classes], "max_weight": float(lists["max_weight"])}
    return data_from(fields, path)


def _with_buffers(data: TrainingData, buffers: Mapping[str, Tensor]) -> TrainingData:
    """The node counts a fine-tuned checkpoint has learned."""
    counts = buffers.get("node_count_prob")
    if counts is None or not float(counts[1:].sum()) > 0:
        return data
    return replace(data, node_counts=(0.0, *counts.flatten()[1:].double().tolist()))


# -- the network


def _rows(network: Mapping[str, Tensor], name: str, path: object) -> int:
    return _shape(network, name, path)[0]


def _shape(network: Mapping[str, Tensor], name: str, path: object) -> tuple[int, int]:
    found = network.get(name)
    if found is None or found.ndim != 2:
        raise CheckpointError(f"path: {path} does not fit: {name} {'missing' if found is None else tuple(found.shape)}")
    return found.shape[0], found.shape[1]


def _config(
    source: _Source, heads: int, noise: Noise, *, clock: Literal["noise", "data"], time_width: int, pooling: Pooling
) -> DigressConfig:
    """Sizes from the tensors' shapes."""
    shape = partial(_shape, source.network, path=source.path)
    (d, node_mlp), (de, edge_mlp), (dy, global_mlp) = (shape(f"mlp_in_{m}.2.weight") for m in "XEy")
    node_prior, edge_prior = source.priors(noise)
    inputs = tuple(shape(f"mlp_in_{m}.0.weight")[1] for m in "XEy")
    features, length, molecular = _features(source, (len(node_prior), len(edge_prior)), inputs, time_width, noise)
    molecule = MoleculeFeatures(source.data.weights, source.data.max_weight) if molecular else None
    max_nodes = len(source.data.node_counts) - 1
    first = "tf_layers.0."
    return DigressConfig(
        node_states=len(node_prior),
        edge_states=len(edge_prior),
        node_outputs=shape("mlp_out_X.2.weight")[0],
        edge_outputs=shape("mlp_out_E.2.weight")[0],
        node_classes=len(source.data.node_marginal),
        edge_classes=len(source.data.edge_marginal),
        max_nodes=max_nodes,
        layers=1 + max((int(k.split(".")[1]) for k in source.network if re.match(r"tf_layers\.\d+\.", k)), default=0),
        heads=heads,
        width=d,
        edge_width=de,
        global_width=dy,
        node_hidden=shape(f"{first}linX1.weight")[0],
        edge_hidden=shape(f"{first}linE1.weight")[0],
        global_hidden=shape(f"{first}lin_y1.weight")[0],
        node_mlp=node_mlp,
        edge_mlp=edge_mlp,
        global_mlp=global_mlp,
        features=features,
        walk_length=length,
        molecule=molecule,
        clock=clock,
        time_width=time_width,
        pooling=pooling,
        pad_to=max_nodes if pooling == "padded" else 0,
    )


def _features(
    source: _Source, states: tuple[int, int], inputs: tuple[int, ...], time_width: int, noise: Noise
) -> tuple[Features, int, bool]:
    """Which features make up the input's widths: their kind, K of random walks, and whether there are molecular ones."""
    length = inputs[1] - states[1]
    for kind in cast(tuple[Features, ...], get_args(Features)):
        x, e, y = feature_widths(kind, max(length, 0))
        for molecular in (False, True):
            if inputs == (states[0] + x + 2 * molecular, states[1] + e, y + molecular + 1 + time_width):
                if molecular and not source.data.weights:
                    raise ValueError(f"statistics: no weights, expected one an atom class; {source.path} reads molecular features")
                return kind, length if kind.startswith("rrwp") else 0, molecular
    raise CheckpointError(
        f"path: {source.path} reads {inputs} numbers of nodes, edges and graph, which no known features give with "
        f"{states} classes (data {source.data.name}, noise {noise})"
    )


def _assemble(
    source: _Source,
    config: DigressConfig,
    kernels: tuple[D3PM, D3PM] | tuple[FlowEuler, FlowEuler],
    num_steps: int,
    checkpoint_layers: bool,
    **sampler: Any,
) -> ImportedGraphs:
    with torch.random.fork_rng(devices=[]):
        network = DigressTransformer(config, checkpoint_layers)
    check_tensors(source.network, {k: tuple(t.shape) for k, t in network.state_dict().items()}, source.path)
    network.load_state_dict({k: t.float() for k, t in source.network.items()})
    data, total = source.data, sum(source.data.node_counts)
    counts = tuple(p / total for p in data.node_counts)
    stats = None
    if data.atoms:
        shares = prior("marginal", data.node_marginal), prior("marginal", data.edge_marginal)
        stats = MoleculeStatistics(counts, *shares, Vocabulary(data.atoms), 0, data.name)
    decode = partial(chemistry.decode, vocabulary=stats.vocabulary) if stats else topology.decode
    nodes, edges = kernels
    policy = GraphPolicy(network, nodes, edges, counts, num_steps=num_steps, decode=decode, **sampler)
    return ImportedGraphs(policy.eval(), stats)


def _pooling(padding: Padding) -> Pooling:
    return "masked" if one_of("padding", padding, get_args(Padding)) == "safe" else "padded"
