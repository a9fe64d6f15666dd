"""Import of checkpoints of MiDi: network, priors, noise schedules and statistics of molecules in space.

The tensors determine the sizes. Noise and steps come from the configuration that a Lightning checkpoint stores (read, never
executed). The published files store no data set, so classes, marginals and numbers of atoms come from a JSON file.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from discrete_grpo.datasets.spatial import SpatialStatistics
from discrete_grpo.datasets.spatial_fields import decode, encode
from discrete_grpo.diffusion.gaussian import GaussianDiffusion
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import Noise
from discrete_grpo.diffusion.schedules import DigressSchedule, SquaredSchedule
from discrete_grpo.importers.graph_data import one_of
from discrete_grpo.importers.graph_source import ignored, shape
from discrete_grpo.importers.lightning import read_lightning
from discrete_grpo.importers.midi_data import MidiData, midi_data
from discrete_grpo.importers.settings import Fact, Settings, brief, hyper_parameters
from discrete_grpo.importers.tensors import below, check_tensors, named_tensors, network_prefix
from discrete_grpo.models.digress_pooling import Pooling
from discrete_grpo.models.midi_transformer import MidiConfig, MidiTransformer
from discrete_grpo.policies.fields import Field, FieldPolicy, Positions
from discrete_grpo.runs.checkpoint import CheckpointError

__all__ = ["MidiModel", "import_midi"]

FIRST = "mlp_in_pos.mlp.0.weight"
FIELDS = {"p": "positions", "x": "atom", "c": "charge", "e": "bond"}
"""Names of the fields in MiDi's settings and here; its fifth, ``y``, is empty."""
EXPONENTS: Mapping[str, Mapping[str, float]] = {
    "adaptive": {"positions": 2.5, "atom": 1.0, "charge": 1.0, "bond": 1.5},
    "uniform": dict.fromkeys(FIELDS.values(), 1.0),
}
"""Exponents of the two published kinds of experiments."""
WEIGHTS = (3.0, 0.4, 1.0, 2.0)
STEPS = 500


@dataclass(frozen=True)
class MidiModel:
    """Imported network and all that a policy over its fields needs.

    Attributes:
        network: ``(nodes, edges, positions, time, mask) -> FieldLogits`` over ``atom``, ``charge`` and ``bond``, in eval mode.
        data: elements and charges of the classes, marginals, and shares of molecules of 0, 1, 2, ... atoms. Classes of bonds are
            none, single, double, triple and aromatic.
        priors: law of noise of the fields ``atom``, ``charge`` and ``bond``; each sums to 1.
        exponents: exponent of the noise schedule of each field and of ``positions``.
        weights: weight of each field and of ``positions`` in the training loss: cross-entropies, and the mean squared error.
        diffusion_steps: T of the schedules.
        num_steps: steps of the sampler.
        taken: facts of the import by name, each in words with its origin (an option, the file, ``published``, ...).
    """

    network: MidiTransformer
    data: MidiData
    priors: Mapping[str, tuple[float, ...]]
    exponents: Mapping[str, float]
    weights: Mapping[str, float]
    diffusion_steps: int
    num_steps: int
    taken: Mapping[str, tuple[str, str]]

    @property
    def node_counts(self) -> tuple[float, ...]:
        """Probability of a molecule of 0, 1, 2, ... atoms."""
        return _normalised(self.data.node_counts)

    def noise(self, field: str) -> Noise:
        """Noise of ``atom``, ``charge`` or ``bond``: its classes stay with probability ᾱ(t), else they are drawn from the prior."""
        prior = self.priors[field]
        return Noise(prior, DigressSchedule(self.diffusion_steps, exponent=self.exponents[field]), len(prior))

    @property
    def statistics(self) -> SpatialStatistics:
        """The data as statistics of molecules in space, with positions in units of 1 Å."""
        data = self.data
        shares = (_normalised(getattr(data, f"{name}_marginal")) for name in ("atom", "charge", "bond"))
        atom, charge, bond = shares
        return SpatialStatistics(self.node_counts, data.atoms, atom, data.charges, charge, bond, 1.0, 0, data.name)

    @property
    def policy(self) -> FieldPolicy:
        """A policy with the network, MiDi's noise of each field, and its posterior steps; its samples are molecules in space."""
        fields = [Field(name, D3PM(self.noise(name)), self.weights[name]) for name in ("atom", "charge", "bond")]
        positions = Positions(GaussianDiffusion(self.position_schedule), self.weights["positions"])
        made = FieldPolicy(
            self.network,
            fields[:2],
            fields[2:],
            self.node_counts,
            positions=positions,
            num_steps=self.num_steps,
            decode=partial(decode, stats=self.statistics),
            encode=partial(encode, stats=self.statistics),
        )
        return made.eval()

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the checkpoint: ``kind``, ``taken`` and the statistics."""
        taken = {name: list(fact) for name, fact in self.taken.items()}
        return {"kind": "spatial", "statistics": self.statistics.to_json(), "taken": taken}

    @property
    def position_schedule(self) -> SquaredSchedule:
        """Schedule ᾱ_r(t)² of positions: r_t = ᾱ_r r_0 + sqrt(1 - ᾱ_r²) ε with ε standard normal of zero mean over the atoms."""
        return SquaredSchedule(DigressSchedule(self.diffusion_steps, exponent=self.exponents["positions"]))


def import_midi(
    path: str | os.PathLike[str],
    *,
    statistics: str | os.PathLike[str] | None = None,
    schedule: Literal["adaptive", "uniform"] | None = None,
    num_steps: int | None = None,
    diffusion_steps: int | None = None,
    variant: Literal["main", "first"] = "main",
    checkpoint_layers: bool = False,
) -> MidiModel:
    """Import a checkpoint of MiDi.

    Args:
        path: Lightning's ``.ckpt`` or a state dict.
        statistics: JSON file with the fields of :class:`~discrete_grpo.importers.midi_data.MidiData`; None takes what the file
            stores.
        schedule: exponents of the noise: ``adaptive`` (positions 2.5, bonds 1.5, else 1) or ``uniform`` (1), as in the published
            experiments; None takes what the file stores.
        num_steps: steps of the sampler, at most those of the diffusion, which None takes.
        diffusion_steps: T of its schedules; None takes what the file stores, else 500 as published.
        variant: version of MiDi's code: ``first`` pools standard deviations where later versions pool variances.
        checkpoint_layers: whether gradients recompute layers: less memory, more time.

    Raises:
        CheckpointError: if the file cannot be read, its tensors do not fit, or it is of a kind that is not known.
        ValueError: for an option that does not fit, or if data or schedule are not known from any source.
    """
    pooling: Pooling = "masked" if one_of("variant", variant, ("main", "first")) == "first" else "variance"
    content = read_lightning(path)
    named = named_tensors(content)
    inside = below(named, network_prefix(named, FIRST, path, "MiDi"), FIRST)
    network = {k: t for k, t in inside.items() if not ignored(k)}
    settings = Settings.of(content, path)
    settings.expect("model", "type", ("discrete",), "Gaussian diffusion of classes is not known")
    settings.expect("model", "transition", ("marginal",), "other priors are not known")
    settings.expect("model", "diffusion_noise_schedule", ("cosine",), "other schedules are not known")
    settings.expect("model", "extra_features", (None, "null", "none"), "features of this name are not known")
    data, origin = midi_data(statistics, hyper_parameters(content).get("dataset_infos"), path)
    exponents, weights = _exponents(settings, schedule), _weights(settings)
    diffusion = settings.whole("diffusion_steps", diffusion_steps, "model", "diffusion_steps", STEPS)
    steps = settings.steps(num_steps, diffusion)
    made = _network(network, data, path, pooling, checkpoint_layers)
    taken: dict[str, Fact[Any]] = {
        "data": Fact(data.name, origin),
        "atoms": Fact(" ".join(data.atoms), origin),
        "charges": Fact(" ".join(f"{c:+d}" if c else "0" for c in data.charges), origin),
        "largest size": Fact(len(data.node_counts) - 1, origin),
        "exponents": _listed(exponents),
        "weights": _listed(weights),
        "T": diffusion,
        "steps": steps,
        "heads": Fact(made.config.heads, "shapes"),
        "variant": Fact(variant, "option"),
    }
    priors = {name: _normalised(getattr(data, f"{name}_marginal")) for name in ("atom", "charge", "bond")}
    words = {name: fact.text for name, fact in taken.items()}
    return MidiModel(made, data, priors, exponents.value, weights.value, diffusion.value, steps.value, words)


def _normalised(shares: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(share / sum(shares) for share in shares)


def _listed(fact: Fact[dict[str, float]]) -> Fact[str]:
    return Fact(", ".join(f"{name} {value:g}" for name, value in fact.value.items()), fact.origin)


# -- what the file states


def _exponents(settings: Settings, given: str | None) -> Fact[dict[str, float]]:
    """Exponents by field: those of a named schedule, else the stored ones.

    Raises:
        CheckpointError: if what is stored are no positive numbers.
        ValueError: if they are not known.
    """
    if given is not None:
        return Fact(dict(EXPONENTS[one_of("schedule", given, tuple(EXPONENTS))]), "option")
    stored = settings.get("model", "nu")
    if stored is None:
        raise ValueError(f"schedule: None, and {settings.path} stores no exponents (model.nu), expected adaptive or uniform")
    found = stored if isinstance(stored, Mapping) else {}
    values: dict[str, Any] = {name: found.get(key) for key, name in FIELDS.items()}
    if not all(_is_number(value) and value > 0 for value in values.values()):
        raise CheckpointError(f"path: {settings.path} stores model.nu {brief(stored)}, expected numbers above 0 of p, x, c and e")
    return Fact({name: float(value) for name, value in values.items()}, "file")


def _weights(settings: Settings) -> Fact[dict[str, float]]:
    """Weights of the training loss by field: the stored ones, else those of QM9 with hydrogens."""
    stored = settings.get("model", "lambda_train")
    if stored is None:
        return Fact(dict(zip(FIELDS.values(), WEIGHTS, strict=True)), "published")
    values = stored[: len(FIELDS)] if isinstance(stored, list) else []
    if len(values) < len(FIELDS) or not all(_is_number(value) and value >= 0 for value in values):
        raise CheckpointError(f"path: {settings.path} stores model.lambda_train {brief(stored)}, expected numbers of at least 0")
    return Fact({name: float(value) for name, value in zip(FIELDS.values(), values, strict=True)}, "file")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# -- the network


def _network(
    found: Mapping[str, Tensor], data: MidiData, path: object, pooling: Pooling, checkpoint_layers: bool
) -> MidiTransformer:
    """Build the network from the shapes of its tensors, and load them.

    Raises:
        CheckpointError: if a tensor is missing, unexpected or of another shape, or the network reads other features.
        ValueError: if the data has other classes than the network.
    """
    shape_of = partial(shape, found, path=path)
    classes = len(data.atoms), len(data.charges), len(data.bond_marginal)
    outputs = shape_of("mlp_out_X.2.weight")[0], shape_of("mlp_out_E.2.weight")[0]
    if outputs != (classes[0] + classes[1], classes[2]):
        raise ValueError(
            f"statistics: {classes[0]} atoms, {classes[1]} charges and {classes[2]} bonds in {data.name}, expected "
            f"{outputs[0]} atoms and charges together and {outputs[1]} bonds, the outputs of {path}"
        )
    inputs = tuple(shape_of(f"mlp_in_{m}.0.weight")[1] for m in "XEy")
    if inputs != (*outputs, 1):
        expected = f"expected {(*outputs, 1)}: other features are not known"
        raise CheckpointError(f"path: {path} reads {inputs} numbers of nodes, edges and graph, {expected}")
    (d, node_mlp), (de, edge_mlp), (dy, global_mlp) = (shape_of(f"mlp_in_{m}.2.weight") for m in "XEy")
    first = "tf_layers.0."
    config = MidiConfig(
        *classes,
        layers=1 + max((int(k.split(".")[1]) for k in found if re.match(r"tf_layers\.\d+\.", k)), default=0),
        heads=shape_of(f"{first}self_attn.a.weight")[0],
        width=d,
        edge_width=de,
        global_width=dy,
        node_hidden=shape_of(f"{first}linX1.weight")[0],
        edge_hidden=shape_of(f"{first}linE1.weight")[0],
        global_hidden=shape_of(f"{first}lin_y1.weight")[0],
        node_mlp=node_mlp,
        edge_mlp=edge_mlp,
        global_mlp=global_mlp,
        position_mlp=shape_of(FIRST)[0],
        pooling=pooling,
    )
    with torch.random.fork_rng(devices=[]):
        network = MidiTransformer(config, checkpoint_layers)
    check_tensors(found, {k: tuple(t.shape) for k, t in network.state_dict().items()}, path)
    network.load_state_dict({k: t.float() for k, t in found.items()})
    return network.eval()
