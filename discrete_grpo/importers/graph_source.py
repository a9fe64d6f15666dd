"""Facts about the model of a checkpoint of DiGress, GDPO, DeFoG or Graph-GRPO, from the file and from other sources.

Every fact has its origin: an option, the file, a data set, or the published default. A file is refused if its facts contradict
each other or do not determine the model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

import torch
from torch import Tensor

from discrete_grpo.importers.graph_data import (
    DataName,
    PriorName,
    TrainingData,
    data_from,
    fitting,
    known_data,
    one_of,
    prior,
    read_statistics,
)
from discrete_grpo.importers.lightning import read_lightning
from discrete_grpo.importers.settings import Fact, Settings, brief, hyper_parameters
from discrete_grpo.importers.tensors import below, named_tensors, network_prefix
from discrete_grpo.models.digress_features import Features, feature_widths
from discrete_grpo.runs.checkpoint import CheckpointError

__all__ = ["GraphSource"]

PUBLISHED_WALKS = (12, 20)
"""K of the random-walk features in every published model."""
MOST_NODES = 100_000
BUFFERS = ("p0_node_dist", "p0_edge_dist", "node_count_prob")
"""Buffers of Graph-GRPO beside its network: distributions that it learns online."""
IGNORED = ("noise_schedule.", "train_loss.", "p0_", "node_count_", "_device_buffer", "val_", "test_")
NETWORK = ("mlp_in_", "mlp_out_", "tf_layers.")
FIRST = "mlp_in_X.0.weight"


@dataclass(frozen=True)
class GraphSource:
    """Contents of a checkpoint file and statistics of its training data.

    Attributes:
        path: path of the file.
        network: tensors of the network by their published names.
        buffers: distributions of Graph-GRPO, if the file has them.
        data: classes, marginals, sizes and atoms of the training data.
        data_origin: origin of ``data``.
        noise: name of the prior of the noise.
        largest: number that the number of nodes is divided by, whatever sizes are drawn.
        settings: stored configuration.
    """

    path: object
    network: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    data: TrainingData
    data_origin: str
    noise: Fact[PriorName]
    largest: int
    settings: Settings

    @staticmethod
    def read(
        path: str | os.PathLike[str], dataset: DataName | None, statistics: str | os.PathLike[str] | None, noise: PriorName | None
    ) -> GraphSource:
        """Read a file without executing any code.

        Raises:
            CheckpointError: if the file cannot be read or holds no such network.
            ValueError: if its data is not known from any source, or has other classes than the network.
        """
        content = read_lightning(path)
        named = named_tensors(content)
        prefix = network_prefix(named, FIRST, path, "DiGress, DeFoG or Graph-GRPO")
        inside = below(named, prefix, FIRST)
        network = {k: t for k, t in inside.items() if k.startswith(NETWORK) or not ignored(k)}
        if any(k.startswith("mlp_in_pos.") for k in network):
            raise CheckpointError(f"path: {path} is a network of MiDi (mlp_in_pos), expected one of DiGress, DeFoG or Graph-GRPO")
        buffers = _buffers(named, prefix)
        settings = Settings.of(content, path)
        outputs = num_rows(network, "mlp_out_X.2.weight", path), num_rows(network, "mlp_out_E.2.weight", path)
        stored = hyper_parameters(content).get("dataset_infos")
        data, origin = _data(dataset, statistics, stored, path, outputs)
        largest = stored.get("max_n_nodes") if isinstance(stored, Mapping) and origin == "file" else None
        largest = largest if isinstance(largest, int) and largest > 0 else len(data.node_counts) - 1
        source = GraphSource(path, network, buffers, data, origin, _noise(noise, settings), largest, settings)
        source._check_classes(outputs)
        return source

    def priors(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the priors of nodes and edges: the stored buffers, else the priors of the named noise.

        Raises:
            ValueError: if a buffer has another number of classes than noise and data give.
        """
        found = []
        for name, share in zip(BUFFERS, (self.data.node_marginal, self.data.edge_marginal), strict=False):
            expected, stored = prior(self.noise.value, share), self.buffers.get(name)
            weights = expected if stored is None else tuple(stored.flatten().double().tolist())
            if len(weights) != len(expected):
                raise ValueError(
                    f"{name}: {len(weights)} classes in {self.path}, expected {len(expected)} "
                    f"(data {self.data.name}, noise {self.noise.value})"
                )
            if not min(weights) >= 0 or not 0 < sum(weights) < math.inf:
                raise CheckpointError(f"path: {self.path} stores {name} {weights}, expected shares >= 0 with a positive sum")
            found.append(tuple(w / sum(weights) for w in weights))
        return found[0], found[1]

    def sizes(self) -> Fact[tuple[float, ...]]:
        """Return the shares of graphs of 0, 1, 2, ... nodes, as a fine-tuned checkpoint has learned them or as in the data.

        As in the sampler of Graph-GRPO, ``grpo.node_count_min`` and ``node_count_max`` move the shares outside to the bounds, and
        ``target_node_count`` moves all of them.
        """
        counts = self.buffers.get("node_count_prob")
        if counts is not None and (counts.ndim == 0 or not bool(torch.isfinite(counts).all())):
            told = "a single number" if counts.ndim == 0 else "NaN or infinity"
            raise CheckpointError(f"path: {self.path} stores node_count_prob with {told}, expected a list of finite shares")
        if counts is None or not float(counts[1:].sum()) > 0:
            return Fact(self.data.node_counts, self.data_origin)
        shares = torch.cat([torch.zeros(1, dtype=torch.float64), counts.flatten()[1:].double()])
        if not bool((shares >= 0).all()):
            raise CheckpointError(f"path: {self.path} stores node_count_prob below 0, expected shares of at least 0")
        low, high = self._bound("node_count_min", 1), self._bound("node_count_max", len(shares) - 1)
        at = torch.arange(len(shares)).clamp(low, high)
        target = self._bound("target_node_count", 0)
        at = torch.full_like(at, target) if target else at
        drawn = torch.zeros(max(len(shares), int(at.max()) + 1), dtype=torch.float64).index_add_(0, at, shares)
        return Fact(tuple(drawn.tolist()), "file")

    def _bound(self, name: str, otherwise: int) -> int:
        """Return a bound on the number of nodes of a fine-tuned checkpoint; 0 and None mean no bound."""
        stored = self.settings.get("grpo", name)
        if stored is None:
            return otherwise
        if isinstance(stored, bool) or not isinstance(stored, int) or not 0 <= stored < MOST_NODES:
            raise CheckpointError(f"path: {self.path} stores grpo.{name} {brief(stored)}, expected 1 to {MOST_NODES - 1}")
        return stored or otherwise

    def _check_classes(self, outputs: tuple[int, int]) -> None:
        """Raise ValueError unless the network predicts the classes of the data, and at most a mask class in addition."""
        shares = self.data.node_marginal, self.data.edge_marginal
        if all(len(share) <= out <= len(prior(self.noise.value, share)) for share, out in zip(shares, outputs, strict=True)):
            return
        x, e = self.data.classes
        raise ValueError(
            f"dataset: {self.data.name!r} has {x} node and {e} edge classes, expected {outputs[0]} and {outputs[1]} "
            f"of {self.path}; what fits: {_fitting(outputs)}"
        )

    def features(self, inputs: tuple[int, ...], time_width: int, rrwp_steps: int | None) -> tuple[Features, int, bool]:
        """Infer the features from the input widths: their kind, K of the random walk, and whether there are molecular ones.

        Raises:
            CheckpointError: if no known features have these widths.
            ValueError: if they are known but do not determine the model.
        """
        states = tuple(len(p) for p in self.priors())
        found = _widths(inputs, (states[0], states[1]), time_width)
        if found is None:
            raise CheckpointError(
                f"path: {self.path} reads {inputs} numbers of nodes, edges and graph, which no known features give with "
                f"{states} classes (data {self.data.name}, noise {self.noise.value}){self._other_noises(inputs, time_width)}"
            )
        kind, length, molecular = found
        self.settings.expect("model", "extra_features", _names(kind), "features of this name are not known")
        if kind.startswith("rrwp"):
            self._check_walks(length, rrwp_steps, inputs, time_width)
        elif rrwp_steps is not None:
            raise ValueError(f"rrwp_steps: {rrwp_steps}, expected none: {self.path} reads no random walks (features {kind})")
        self._check_atoms(molecular)
        return kind, length, molecular

    def _check_walks(self, length: int, given: int | None, inputs: tuple[int, ...], time_width: int) -> None:
        stored = self.settings.get("model", "rrwp_steps")
        hint = self._other_noises(inputs, time_width)
        read = f"{self.path} reads {length} with noise {self.noise.value}{hint}"
        if given is not None and given != length:
            raise ValueError(f"rrwp_steps: {given}, expected {length}: {read}")
        if given is None and stored is not None and stored != length:
            raise CheckpointError(f"path: {self.path} stores model.rrwp_steps {brief(stored)}, expected {length}: {read}")
        stated = stored is not None or (given is not None and self.noise.origin != "assumed")
        if length not in PUBLISHED_WALKS and not stated:
            raise ValueError(f"rrwp_steps: {given}, expected 12 or 20 as published: {read}; give noise and rrwp_steps")

    def _other_noises(self, inputs: tuple[int, ...], time_width: int) -> str:
        """List the noises with other states under which the input widths are those of published features."""
        fit = []
        for noise in cast(tuple[PriorName, ...], get_args(PriorName)):
            x, e = (len(prior(noise, share)) for share in (self.data.node_marginal, self.data.edge_marginal))
            found = _widths(inputs, (x, e), time_width)
            differs = (x, e) != tuple(len(p) for p in self.priors())
            if differs and found and (found[1] in PUBLISHED_WALKS or not found[0].startswith("rrwp")):
                fit.append(f"noise {noise} gives features {found[0]}" + (f" of {found[1]} steps" if found[1] else ""))
        return f" ({'; '.join(fit)})" if fit else ""

    def _check_atoms(self, molecular: bool) -> None:
        """Raise ValueError for a model of molecules whose atoms or weights are not known."""
        if not molecular and not self.data.weights:
            return
        for name, known in (("atoms", self.data.atoms), ("weights", self.data.weights)):
            if not known:
                reads = "reads molecular features" if molecular else "stores weights of atoms"
                raise ValueError(
                    f"dataset: no {name} are known ({self.data_origin}), and {self.path} {reads}; "
                    f"expected statistics with {name}, or a dataset; what fits: {_fitting(self.data.classes)}"
                )


def num_rows(network: Mapping[str, Tensor], name: str, path: object) -> int:
    """Return the number of rows of a matrix of the network."""
    return shape(network, name, path)[0]


def shape(network: Mapping[str, Tensor], name: str, path: object) -> tuple[int, int]:
    """Return the shape of a matrix of the network.

    Raises:
        CheckpointError: if it is missing or no matrix.
    """
    found = network.get(name)
    if found is None or found.ndim != 2:
        raise CheckpointError(f"path: {path} does not fit: {name} {'missing' if found is None else tuple(found.shape)}")
    return found.shape[0], found.shape[1]


def _fitting(classes: tuple[int, int]) -> str:
    """List the options of the published data sets with these numbers of classes."""
    return ", ".join(f"--dataset={name}" for name in fitting(*classes)) or "none of the published data sets, give statistics"


def ignored(name: str) -> bool:
    """Return whether a tensor belongs to the training and not to the network."""
    return name.startswith(IGNORED) or "metrics" in name


def _noise(given: PriorName | None, settings: Settings) -> Fact[PriorName]:
    """Return the name of the prior: the option, else the stored one, else marginal as in most published models."""
    stored = settings.get("model", "transition")
    found = given or (str(stored) if stored else "marginal")
    one_of("noise", found, get_args(PriorName))
    return Fact(cast(PriorName, found), "option" if given else "file" if stored else "assumed")


def _buffers(named: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the distributions of Graph-GRPO, of several copies that of the module that has the network."""
    found = [name for name in named if name.rpartition(".")[2] in BUFFERS]
    found.sort(key=lambda name: prefix.startswith("".join(name.rpartition(".")[:2])))  # of equal names the last one counts
    return {name.rpartition(".")[2]: named[name] for name in found}


def _data(
    dataset: DataName | None, statistics: Any, stored: Any, path: object, outputs: tuple[int, int]
) -> tuple[TrainingData, str]:
    """Return the statistics of the training data and their origin: an option, else the file."""
    if statistics is not None:
        if dataset is not None:
            raise ValueError(f"statistics: {statistics}, expected none beside dataset {dataset!r}")
        return read_statistics(statistics), "statistics"
    if dataset is not None:
        return known_data(dataset, outputs[1]), f"dataset {dataset}"
    if isinstance(stored, Mapping) and {"n_nodes", "node_types", "edge_types"} <= stored.keys():
        return _stored_data(stored, path), "file"
    names = ", ".join(get_args(DataName))
    raise ValueError(
        f"dataset: None, and {path} does not store its data; expected {names}, or statistics; what fits: {_fitting(outputs)}"
    )


def _stored_data(stored: Mapping[str, Any], path: object) -> TrainingData:
    """Read ``dataset_infos`` of a Lightning checkpoint, without the made-up last atom of an absorbing model."""
    lists: dict[Any, Any] = {k: v.flatten().tolist() if isinstance(v, Tensor) else v for k, v in stored.items()}
    for name in ("n_nodes", "node_types", "edge_types", "atom_decoder"):
        value = lists.get(name)
        if isinstance(value, Mapping):  # what is left of an object
            known = "expected a tensor or a list; give dataset or statistics"
            raise ValueError(f"{path}: dataset_infos.{name} is an object that is not read, such as a NumPy array, {known}")
        if not isinstance(value := value or [], list | tuple):
            raise ValueError(f"{path}: dataset_infos.{name} is of type {type(value).__name__}, expected a tensor or a list")
        lists[name] = value
    classes = len(lists["node_types"])
    atoms = (lists.get("atom_decoder") or [])[:classes]
    name = "".join(c for c in str(lists.get("name") or "stored") if c.isprintable())[:60]
    fields = {"name": name, "node_counts": lists["n_nodes"], "node_marginal": lists["node_types"]}
    fields |= {"edge_marginal": lists["edge_types"], "atoms": atoms}
    if isinstance(lists.get("atom_weights"), Mapping) and lists.get("max_weight"):
        heaviest = _one_number(lists["max_weight"], "max_weight", path)
        fields |= {"weights": list(lists["atom_weights"].values())[:classes], "max_weight": heaviest}
    return data_from(fields, path)


def _one_number(value: Any, name: str, path: object) -> float:
    """Return a number of ``dataset_infos``, also from a list that holds nothing else."""
    found = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        raise ValueError(f"{path}: dataset_infos.{name} is {brief(value)}, expected one positive number")
    return float(found)


def _widths(inputs: tuple[int, ...], states: tuple[int, int], time_width: int) -> tuple[Features, int, bool] | None:
    """Find the kind of features, K of the random walk, and whether there are molecular ones; None if no kind has these widths."""
    length = inputs[1] - states[1]
    for kind in cast(tuple[Features, ...], get_args(Features)):
        x, e, y = feature_widths(kind, max(length, 0))
        for molecular in (False, True):
            if inputs == (states[0] + x + 2 * molecular, states[1] + e, y + molecular + 1 + time_width):
                return kind, length if kind.startswith("rrwp") else 0, molecular
    return None


def _names(kind: Features) -> tuple[str | None, ...]:
    """Return the names of a kind of features in published configurations; ``eigenvalues`` of DeFoG are cycle counts only."""
    return ("eigenvalues", "cycles") if kind == "cycles" else (None, "null", "none") if kind == "none" else (kind,)
