"""What a checkpoint file of DiGress, GDPO, DeFoG or Graph-GRPO says of its model, and what is known from elsewhere.

Every fact is kept with where it came from: an option, the file, a data set, or the published default. A file whose facts
contradict each other, or do not determine the model, is refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, get_args

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
from discrete_grpo.importers.lightning import plain, read_lightning, tensors
from discrete_grpo.models.digress_features import Features, feature_widths
from discrete_grpo.runs.checkpoint import CheckpointError

__all__ = ["Fact", "GraphSource"]

PUBLISHED_WALKS = (12, 20)
"""K of the random-walk features in every published model."""
MOST_NODES = 100_000
BUFFERS = ("p0_node_dist", "p0_edge_dist", "node_count_prob")
"""What Graph-GRPO keeps beside its network: the distributions it learns online."""
IGNORED = ("noise_schedule.", "train_loss.", "p0_", "node_count_", "_device_buffer", "val_", "test_")
NETWORK = ("mlp_in_", "mlp_out_", "tf_layers.")
FIRST = "mlp_in_X.0.weight"

T = TypeVar("T")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A value and where it came from: ``option``, ``file``, ``published`` or the name of a data set."""

    value: T
    origin: str


@dataclass(frozen=True)
class GraphSource:
    """A checkpoint file and what is known of its data.

    Attributes:
        path: of the file.
        network: the network's tensors by their published names.
        buffers: Graph-GRPO's distributions, where the file has them.
        data: classes, marginals, sizes and atoms of the training data.
        data_origin: where these come from.
        noise: what the model noises towards.
        largest: size that the training data's number of nodes is divided by, whatever sizes are drawn.
        settings: the stored configuration.
    """

    path: object
    network: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    data: TrainingData
    data_origin: str
    noise: Fact[PriorName]
    largest: int
    settings: Mapping[str, Any]

    @staticmethod
    def read(
        path: str | os.PathLike[str], dataset: DataName | None, statistics: str | os.PathLike[str] | None, noise: PriorName | None
    ) -> GraphSource:
        """Read a file; nothing of it is executed.

        Raises:
            CheckpointError: if the file cannot be read or holds no such network.
            ValueError: if its data is known from nowhere, or has other classes than the network.
        """
        content = read_lightning(path)
        named = dict(tensors(content))
        prefix = _prefix(named, path)
        inside = {k.removeprefix(prefix): t for k, t in named.items() if k.startswith(prefix)}
        network = {k: t for k, t in inside.items() if k.startswith(NETWORK) or not _ignored(k)}
        buffers = {k.rsplit(".", 1)[-1]: t for k, t in named.items() if k.rsplit(".", 1)[-1] in BUFFERS}
        hyper = plain(content.get("hyper_parameters")) if isinstance(content, Mapping) else None
        hyper = hyper if isinstance(hyper, Mapping) else {}
        settings = hyper.get("cfg", hyper)
        settings = settings if isinstance(settings, Mapping) else {}
        outputs = rows(network, "mlp_out_X.2.weight", path), rows(network, "mlp_out_E.2.weight", path)
        stored = hyper.get("dataset_infos")
        data, origin = _data(dataset, statistics, stored, path, outputs)
        largest = stored.get("max_n_nodes") if isinstance(stored, Mapping) and origin == "file" else None
        largest = largest if isinstance(largest, int) and largest > 0 else len(data.node_counts) - 1
        source = GraphSource(path, network, buffers, data, origin, _noise(noise, settings), largest, settings)
        source._check_classes(outputs)
        return source

    # -- what the file states

    def setting(self, group: str, name: str) -> Any:
        """Return a value of the stored configuration; None where there is none."""
        found = self.settings.get(group)
        return found.get(name) if isinstance(found, Mapping) else None

    def number(self, given: float | None, group: str, name: str, otherwise: float, origin: str = "published") -> Fact[float]:
        """Return an option if it is given, else a stored number, else ``otherwise``.

        Raises:
            CheckpointError: if what is stored is no finite number.
        """
        if given is not None:
            return Fact(given, "option")
        stored = self.setting(group, name)
        if stored is None:
            return Fact(otherwise, origin)
        if isinstance(stored, bool) or not isinstance(stored, int | float) or not math.isfinite(stored):
            raise CheckpointError(f"path: {self.path} stores {group}.{name} {brief(stored)}, expected a number")
        return Fact(stored, "file")

    def whole(self, given: int | None, group: str, name: str, otherwise: int, origin: str = "published") -> Fact[int]:
        """Return the same for whole numbers, of which a stored one is at least 1."""
        found = self.number(given, group, name, otherwise, origin)
        if found.origin == "file" and (found.value != int(found.value) or found.value < 1):
            raise CheckpointError(f"path: {self.path} stores {group}.{name} {found.value}, expected a whole number of at least 1")
        return Fact(int(found.value), found.origin)

    def text(self, given: str | None, group: str, name: str, otherwise: str) -> Fact[str]:
        """Return the same for names."""
        if given is not None:
            return Fact(given, "option")
        stored = self.setting(group, name)
        return Fact(otherwise, "published") if stored is None else Fact(str(stored), "file")

    def expect(self, group: str, name: str, known: tuple[Any, ...], what: str) -> None:
        """Raise CheckpointError if the file states a setting that is none of ``known``."""
        stored = self.setting(group, name)
        if stored is not None and stored not in known:
            expected = " or ".join(str(k) for k in known)
            raise CheckpointError(f"path: {self.path} stores {group}.{name} {brief(stored)}, expected {expected}: {what}")

    # -- what follows from it

    def priors(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What nodes and edges are noised towards: the stored buffers, else by the name of the noise.

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
                raise CheckpointError(f"path: {self.path} stores {name} {weights}, expected shares of at least 0, and one above it")
            found.append(tuple(w / sum(weights) for w in weights))
        return found[0], found[1]

    def sizes(self) -> Fact[tuple[float, ...]]:
        """Shares of graphs of 0, 1, 2, ... nodes: those that a fine-tuned checkpoint has learned, else those of the data.

        ``grpo.node_count_min`` and ``node_count_max`` move what lies outside to the bounds, ``target_node_count`` moves all, as
        Graph-GRPO's sampler does.
        """
        counts = self.buffers.get("node_count_prob")
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
        """A number of nodes that the sampler of a fine-tuned checkpoint is bounded by; 0 and None bound nothing."""
        stored = self.setting("grpo", name)
        if stored is None:
            return otherwise
        if isinstance(stored, bool) or not isinstance(stored, int) or not 0 <= stored < MOST_NODES:
            raise CheckpointError(f"path: {self.path} stores grpo.{name} {brief(stored)}, expected 1 to {MOST_NODES - 1}")
        return stored or otherwise

    def _check_classes(self, outputs: tuple[int, int]) -> None:
        """Raise ValueError unless the network predicts the classes of the data, a mask class that it may also predict aside."""
        shares = self.data.node_marginal, self.data.edge_marginal
        if all(len(share) <= out <= len(prior(self.noise.value, share)) for share, out in zip(shares, outputs, strict=True)):
            return
        x, e = self.data.classes
        raise ValueError(
            f"dataset: {self.data.name!r} has {x} node and {e} edge classes, expected {outputs[0]} and {outputs[1]} "
            f"of {self.path}; what fits: {_fitting(outputs)}"
        )

    def features(self, inputs: tuple[int, ...], time_width: int, rrwp_steps: int | None) -> tuple[Features, int, bool]:
        """Which features make up the input's widths: their kind, K of random walks, and whether there are molecular ones.

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
        self.expect("model", "extra_features", _names(kind), "features of this name are not known")
        if kind.startswith("rrwp"):
            self._check_walks(length, rrwp_steps, inputs, time_width)
        elif rrwp_steps is not None:
            raise ValueError(f"rrwp_steps: {rrwp_steps}, expected none: {self.path} reads no random walks (features {kind})")
        self._check_atoms(molecular)
        return kind, length, molecular

    def _check_walks(self, length: int, given: int | None, inputs: tuple[int, ...], time_width: int) -> None:
        stored = self.setting("model", "rrwp_steps")
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
        """Name the noises with other states under which the inputs are published features."""
        fit = []
        for noise in cast(tuple[PriorName, ...], get_args(PriorName)):
            x, e = (len(prior(noise, share)) for share in (self.data.node_marginal, self.data.edge_marginal))
            found = _widths(inputs, (x, e), time_width)
            differs = (x, e) != tuple(len(p) for p in self.priors())
            if differs and found and (found[1] in PUBLISHED_WALKS or not found[0].startswith("rrwp")):
                fit.append(f"noise {noise} gives features {found[0]}" + (f" of {found[1]} steps" if found[1] else ""))
        return f" ({'; '.join(fit)})" if fit else ""

    def _check_atoms(self, molecular: bool) -> None:
        """Raise ValueError if the model is one of molecules and its atoms or their weights are not known."""
        if not molecular and not self.data.weights:
            return
        for name, known in (("atoms", self.data.atoms), ("weights", self.data.weights)):
            if not known:
                reads = "reads molecular features" if molecular else "stores weights of atoms"
                raise ValueError(
                    f"dataset: no {name} are known ({self.data_origin}), and {self.path} {reads}; "
                    f"expected statistics with {name}, or a dataset; what fits: {_fitting(self.data.classes)}"
                )


def brief(value: Any) -> str:
    """The representation of a stored value in one line of at most 40 characters."""
    return " ".join(repr(value).split())[:40]


def rows(network: Mapping[str, Tensor], name: str, path: object) -> int:
    """Rows of a matrix of the network."""
    return shape(network, name, path)[0]


def shape(network: Mapping[str, Tensor], name: str, path: object) -> tuple[int, int]:
    """Shape of a matrix of the network.

    Raises:
        CheckpointError: if it is missing or no matrix.
    """
    found = network.get(name)
    if found is None or found.ndim != 2:
        raise CheckpointError(f"path: {path} does not fit: {name} {'missing' if found is None else tuple(found.shape)}")
    return found.shape[0], found.shape[1]


def _fitting(classes: tuple[int, int]) -> str:
    """The options that name a published data set with these numbers of classes."""
    return ", ".join(f"--dataset={name}" for name in fitting(*classes)) or "none of the published data sets, give statistics"


def _ignored(name: str) -> bool:
    return name.startswith(IGNORED) or "metrics" in name


def _prefix(named: Mapping[str, Tensor], path: object) -> str:
    """What stands before the network's names: nothing, ``model.``, ``model.model.`` or another, the shortest if several."""
    found = sorted((k[: -len(FIRST)] for k in named if k.endswith(FIRST)), key=len)
    if not found:
        first = ", ".join(sorted(named)[:3]) or "no tensors"
        raise CheckpointError(f"path: {path} has no {FIRST} ({first}), expected a network of DiGress, DeFoG or Graph-GRPO")
    return found[0]


def _noise(given: PriorName | None, settings: Mapping[str, Any]) -> Fact[PriorName]:
    """What a model noises towards: an option, else as stored, else marginal as most published models."""
    group = settings.get("model")
    stored = group.get("transition") if isinstance(group, Mapping) else None
    found = given or (str(stored) if stored else "marginal")
    one_of("noise", found, get_args(PriorName))
    return Fact(cast(PriorName, found), "option" if given else "file" if stored else "assumed")


def _data(
    dataset: DataName | None, statistics: Any, stored: Any, path: object, outputs: tuple[int, int]
) -> tuple[TrainingData, str]:
    """The numbers of the training data and where they come from: an option, else the file."""
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
    """From the ``dataset_infos`` of a Lightning checkpoint; an absorbing model's list of atoms ends in a made-up one."""
    lists: dict[Any, Any] = {k: v.flatten().tolist() if isinstance(v, Tensor) else v for k, v in stored.items()}
    classes = len(lists["node_types"])
    atoms = (lists.get("atom_decoder") or [])[:classes]
    name = "".join(c for c in str(lists.get("name") or "stored") if c.isprintable())[:60]
    fields = {"name": name, "node_counts": lists["n_nodes"], "node_marginal": lists["node_types"]}
    fields |= {"edge_marginal": lists["edge_types"], "atoms": atoms}
    if isinstance(lists.get("atom_weights"), Mapping) and lists.get("max_weight"):
        fields |= {"weights": list(lists["atom_weights"].values())[:classes], "max_weight": float(lists["max_weight"])}
    return data_from(fields, path)


def _widths(inputs: tuple[int, ...], states: tuple[int, int], time_width: int) -> tuple[Features, int, bool] | None:
    """The kind of features, K of random walks, and whether there are molecular ones; None if nothing gives these widths."""
    length = inputs[1] - states[1]
    for kind in cast(tuple[Features, ...], get_args(Features)):
        x, e, y = feature_widths(kind, max(length, 0))
        for molecular in (False, True):
            if inputs == (states[0] + x + 2 * molecular, states[1] + e, y + molecular + 1 + time_width):
                return kind, length if kind.startswith("rrwp") else 0, molecular
    return None


def _names(kind: Features) -> tuple[str | None, ...]:
    """What the peers' configurations call features of a kind; DeFoG's ``eigenvalues`` are cycle counts alone."""
    return ("eigenvalues", "cycles") if kind == "cycles" else (None, "null", "none") if kind == "none" else (kind,)
