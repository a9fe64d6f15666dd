"""Import of checkpoints of DiGress, GDPO, DeFoG and Graph-GRPO as graph policies: network, priors and reverse step.

The tensors determine the sizes. Classes, marginals, numbers of nodes and steps come from the objects that a Lightning checkpoint
stores (read, never executed), from the published data sets, or from a JSON file. The policy has no dropout, so that sampling and
scoring have equal probabilities.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast, get_args

import torch

from discrete_grpo.datasets.molecules import MoleculeStatistics
from discrete_grpo.diffusion import choices
from discrete_grpo.diffusion.flow import FlowEuler
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import Noise
from discrete_grpo.diffusion.schedules import DigressSchedule, LinearSchedule
from discrete_grpo.domains import graph6, molecules
from discrete_grpo.domains.molecules import Vocabulary
from discrete_grpo.importers.graph_data import DataName, PriorName, one_of, prior
from discrete_grpo.importers.graph_source import GraphSource, shape
from discrete_grpo.importers.settings import Fact, check_heads
from discrete_grpo.importers.tensors import check_tensors
from discrete_grpo.models.digress_features import MoleculeFeatures
from discrete_grpo.models.digress_pooling import Pooling
from discrete_grpo.models.digress_transformer import DigressConfig, DigressTransformer
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.runs.checkpoint import CheckpointError

__all__ = ["ImportedGraphs", "Padding", "import_defog", "import_digress", "import_graph_grpo"]

Padding = Literal["safe", "published"]
"""``safe``: padding changes no logit. ``published``: graphs are padded to the largest size, and padding counts as in the published
code: in the pooling of the main branch of DiGress and of DeFoG, in the molecular weight, and in the eigenvalues of DiGress."""
TIME_WIDTH = 64
HEADS = 8


@dataclass(frozen=True)
class ImportedGraphs:
    """Imported graph policy and the metadata of its checkpoint.

    Attributes:
        policy: graph policy, in eval mode.
        statistics: statistics of molecules; None for plain graphs.
        taken: facts of the import by name, each in words with its origin (an option, the file, a data set, ...).
    """

    policy: GraphPolicy
    statistics: MoleculeStatistics | None
    taken: Mapping[str, tuple[str, str]]

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the checkpoint: ``kind``, ``taken`` and, for molecules, the statistics."""
        taken = {name: list(fact) for name, fact in self.taken.items()}
        if self.statistics is None:
            return {"kind": "graphs", "taken": taken}
        return {"kind": "molecules", "statistics": self.statistics.to_json(), "taken": taken}


def import_digress(
    path: str | os.PathLike[str],
    *,
    dataset: DataName | None = None,
    statistics: str | os.PathLike[str] | None = None,
    noise: PriorName | None = None,
    num_steps: int | None = None,
    diffusion_steps: int | None = None,
    heads: int | None = None,
    variant: Literal["main", "fixed_bug"] = "main",
    padding: Padding = "safe",
    checkpoint_layers: bool = False,
) -> ImportedGraphs:
    """Import a checkpoint of DiGress or GDPO: D3PM with the discrete cosine schedule.

    Args:
        path: Lightning's ``.ckpt``, GDPO's ``.pt``, or a state dict.
        dataset: the published data set it was trained on, whatever the file stores; None takes what the file stores.
        statistics: JSON file with the fields of :class:`~discrete_grpo.importers.graph_data.TrainingData`, instead.
        noise: ``marginal`` or ``uniform``; None takes what the file stores, else marginal.
        num_steps: steps of the sampler, at most those of the diffusion, which None takes.
        diffusion_steps: T of its schedule; None takes what the file stores, else the published T of the data set.
        heads: attention heads; None takes what the file stores, else 8.
        variant: branch of DiGress: ``fixed_bug`` pools over existing entries only and counts 5-cycles correctly.
        padding: see :data:`Padding`. In ``fixed_bug`` padding counts in the molecule's weight and in eigenvalues only.
        checkpoint_layers: whether gradients recompute layers: less memory, more time.

    Raises:
        CheckpointError: if the file cannot be read, its tensors do not fit, or it is of a kind that is not known.
        ValueError: for an option that does not fit, or if classes, marginals or sizes are not known from any source.
    """
    source = GraphSource.read(path, dataset, statistics, noise)
    if source.noise.value not in ("marginal", "uniform"):
        raise ValueError(f"noise: {source.noise.value!r}, expected marginal or uniform")
    source.settings.expect("model", "type", ("discrete",), "Gaussian diffusion of graphs is not known")
    source.settings.expect("model", "diffusion_noise_schedule", ("cosine",), "other schedules are not known")
    fixed = one_of("variant", variant, ("main", "fixed_bug")) == "fixed_bug"
    diffusion = source.settings.whole("diffusion_steps", diffusion_steps, "model", "diffusion_steps", source.data.steps)
    steps = source.settings.steps(num_steps, diffusion)
    published = one_of("padding", padding, get_args(Padding)) == "published"
    pooling: Pooling = "variance" if fixed else "padded" if published else "masked"
    config, facts = _config(source, heads, None, clock="noise", time_width=0, pooling=pooling, published=published)
    config = replace(config, five_cycles="corrected" if fixed else "published")
    node_prior, edge_prior = source.priors()
    schedule = DigressSchedule(diffusion.value)
    kernels = D3PM(Noise(node_prior, schedule, config.node_classes)), D3PM(Noise(edge_prior, schedule, config.edge_classes))
    facts |= {"schedule": Fact(f"cosine, T = {diffusion.value}", diffusion.origin), "branch": Fact(variant, "option")}
    return _assemble(source, config, kernels, steps, checkpoint_layers, facts | {"padding": Fact(padding, "option")})


def import_defog(
    path: str | os.PathLike[str],
    *,
    dataset: DataName | None = None,
    statistics: str | os.PathLike[str] | None = None,
    noise: PriorName | None = None,
    num_steps: int | None = None,
    eta: float | None = None,
    omega: float | None = None,
    sample_distortion: choices.Distortion | None = None,
    rrwp_steps: int | None = None,
    heads: int | None = None,
    padding: Padding = "safe",
    checkpoint_layers: bool = False,
) -> ImportedGraphs:
    """Import a checkpoint of DeFoG: flow matching by Euler steps, averaged over the predicted clean class.

    Args:
        path: Lightning's ``.ckpt`` or a state dict.
        dataset: the published data set it was trained on, whatever the file stores; None takes what the file stores.
        statistics: JSON file with the data's numbers instead, as in :func:`import_digress`.
        noise: name of the prior of the noise; None takes what the file stores, else marginal.
        num_steps: steps of the sampler; None takes what the file stores, else the published T of the data set.
        eta: stochasticity of the sampler; None takes what the file stores, else 0.
        omega: target guidance of the sampler; None takes what the file stores, else 0.
        sample_distortion: of the sampler's grid; None takes what the file stores, else ``identity``.
        rrwp_steps: K of the random-walk features; needed, with ``noise``, where it is none of the published 12 and 20 and the
            file does not state it.
        heads: attention heads; None takes what the file stores, else 8.
        padding: see :data:`Padding`.
        checkpoint_layers: whether gradients recompute layers: less memory, more time.

    Raises:
        CheckpointError: if the file cannot be read, its tensors do not fit, or it is of a kind that is not known.
        ValueError: for an option that does not fit, or if classes, marginals or sizes are not known from any source.
    """
    source = GraphSource.read(path, dataset, statistics, noise)
    _refuse_graph_grpo(source)
    published = one_of("padding", padding, get_args(Padding)) == "published"
    etas = source.settings.number(eta, "sample", "eta", 0.0)
    omegas = source.settings.number(omega, "sample", "omega", 0.0)
    if etas.value > 0:
        what = "other designs of the stochastic rates are not known (eta=0 leaves them out)"
        source.settings.expect("sample", "rdb", ("general",), what)
    steps = source.settings.whole("num_steps", num_steps, "sample", "sample_steps", source.data.steps)
    pooling: Pooling = "padded" if published else "masked"
    config, facts = _config(source, heads, rrwp_steps, clock="data", time_width=TIME_WIDTH, pooling=pooling, published=published)
    facts |= {"eta": etas, "omega": omegas, "padding": Fact(padding, "option")}
    return _flow(source, config, steps, (etas.value, omegas.value), sample_distortion, checkpoint_layers, facts)


def _refuse_graph_grpo(source: GraphSource) -> None:
    """Raise ValueError for a checkpoint of Graph-GRPO given as one of DeFoG."""
    if source.buffers:
        found = ", ".join(sorted(source.buffers))
        raise ValueError(
            f"source: 'defog', expected graph-grpo: {source.path} holds {found}, and the pooling of Graph-GRPO differs from DeFoG's"
        )


def import_graph_grpo(
    path: str | os.PathLike[str],
    *,
    dataset: DataName | None = None,
    statistics: str | os.PathLike[str] | None = None,
    noise: PriorName | None = None,
    num_steps: int | None = None,
    eta: float = 0.0,
    omega: float = 0.0,
    sample_distortion: choices.Distortion | None = None,
    rrwp_steps: int | None = None,
    heads: int | None = None,
    padding: Padding = "safe",
    checkpoint_layers: bool = False,
) -> ImportedGraphs:
    """Import a checkpoint of Graph-GRPO, pretrained or fine-tuned; its stored prior and node counts replace those of the data.

    Args:
        path: Lightning's ``.ckpt`` or a state dict; also one of DeFoG, as Graph-GRPO would run it.
        dataset: as in :func:`import_defog`.
        statistics: as in :func:`import_defog`.
        noise: as in :func:`import_defog`.
        num_steps: steps of the sampler; None takes ``grpo.forward_steps`` or ``sample.sample_steps`` of the file, else the
            published T of the data set.
        eta: stochasticity of the sampler; Graph-GRPO's has none, whatever the file stores.
        omega: target guidance of the sampler; Graph-GRPO's has none, whatever the file stores.
        sample_distortion: as in :func:`import_defog`.
        rrwp_steps: as in :func:`import_defog`.
        heads: as in :func:`import_defog`.
        padding: Graph-GRPO pools over existing entries only, but the molecule's weight counts each padded node as an atom of
            class 0. ``safe`` leaves that out; ``published`` pads every graph to the largest size and counts it.
        checkpoint_layers: whether gradients recompute layers: less memory, more time.

    Raises:
        CheckpointError: if the file cannot be read, its tensors do not fit, or it is of a kind that is not known.
        ValueError: for an option that does not fit, or if classes, marginals or sizes are not known from any source.
    """
    source = GraphSource.read(path, dataset, statistics, noise)
    published = one_of("padding", padding, get_args(Padding)) == "published"
    tuned = source.settings.get("grpo", "forward_steps") is not None
    named = ("grpo", "forward_steps") if tuned else ("sample", "sample_steps")
    steps = source.settings.whole("num_steps", num_steps, *named, source.data.steps)
    config, facts = _config(
        source, heads, rrwp_steps, clock="data", time_width=TIME_WIDTH, pooling="biased_std", published=published
    )
    facts |= {name: Fact(value, "option" if value else "published") for name, value in (("eta", eta), ("omega", omega))}
    facts["temperature"] = source.settings.number(None, "grpo", "sampling_temperature", 1.0)
    facts["padding"] = Fact(padding, "option")
    return _flow(source, config, steps, (eta, omega), sample_distortion, checkpoint_layers, facts)


def _flow(
    source: GraphSource,
    config: DigressConfig,
    steps: Fact[int],
    rates: tuple[float, float],
    sample_distortion: choices.Distortion | None,
    checkpoint_layers: bool,
    facts: dict[str, Fact[Any]],
) -> ImportedGraphs:
    """Make a policy of flow matching; ``rates`` is (eta, omega)."""
    priors = zip(source.priors(), (config.node_classes, config.edge_classes), strict=True)
    kernels = [FlowEuler(Noise(prior, LinearSchedule(), classes), *rates) for prior, classes in priors]
    named = source.settings.text(sample_distortion, "sample", "time_distortion", "identity")
    if named.origin == "file" and named.value not in get_args(choices.Distortion):
        known = ", ".join(get_args(choices.Distortion))
        raise CheckpointError(f"path: {source.path} stores sample.time_distortion {named.value!r}, expected one of {known}")
    distortion = choices.make_distortion(cast(choices.Distortion, named.value), "sample_distortion")
    facts |= {"time distortion": named}
    temperature = facts["temperature"].value if "temperature" in facts else 1.0
    sampler = {"sample_distortion": distortion, "temperature": temperature}
    return _assemble(source, config, (kernels[0], kernels[1]), steps, checkpoint_layers, facts, **sampler)


# -- the network


def _config(
    source: GraphSource,
    heads: int | None,
    rrwp_steps: int | None,
    *,
    clock: Literal["noise", "data"],
    time_width: int,
    pooling: Pooling,
    published: bool,
) -> tuple[DigressConfig, dict[str, Fact[Any]]]:
    """Infer the sizes from the shapes of the tensors, and return them with the facts from other sources."""
    shape_of = partial(shape, source.network, path=source.path)
    (d, node_mlp), (de, edge_mlp), (dy, global_mlp) = (shape_of(f"mlp_in_{m}.2.weight") for m in "XEy")
    node_prior, edge_prior = source.priors()
    inputs = tuple(shape_of(f"mlp_in_{m}.0.weight")[1] for m in "XEy")
    features, length, molecular = source.features(inputs, time_width, rrwp_steps)
    heads_of = _heads(source, heads, d)
    limit = len(source.sizes().value) - 1
    first = "tf_layers.0."
    config = DigressConfig(
        node_states=len(node_prior),
        edge_states=len(edge_prior),
        node_outputs=shape_of("mlp_out_X.2.weight")[0],
        edge_outputs=shape_of("mlp_out_E.2.weight")[0],
        node_classes=len(source.data.node_marginal),
        edge_classes=len(source.data.edge_marginal),
        max_nodes=source.largest,
        node_limit=limit,
        layers=1 + max((int(k.split(".")[1]) for k in source.network if re.match(r"tf_layers\.\d+\.", k)), default=0),
        heads=heads_of.value,
        width=d,
        edge_width=de,
        global_width=dy,
        node_hidden=shape_of(f"{first}linX1.weight")[0],
        edge_hidden=shape_of(f"{first}linE1.weight")[0],
        global_hidden=shape_of(f"{first}lin_y1.weight")[0],
        node_mlp=node_mlp,
        edge_mlp=edge_mlp,
        global_mlp=global_mlp,
        features=features,
        walk_length=length,
        molecule=MoleculeFeatures(source.data.weights, source.data.max_weight) if molecular else None,
        clock=clock,
        time_width=time_width,
        pooling=pooling,
        padding_counts=published,
        pad_to=limit if published else 0,
    )
    parts = [features, *([f"{length} steps"] if length else []), *(["charge, valency and weight"] if molecular else [])]
    return config, {"features": Fact(", ".join(parts), "shapes"), "heads": heads_of}


def _heads(source: GraphSource, given: int | None, width: int) -> Fact[int]:
    """Return the number of attention heads, which no shape determines."""
    stored = source.settings.get("model", "hidden_dims")
    if given is None and isinstance(stored, Mapping) and isinstance(stored.get("n_head"), int):
        found = Fact(int(stored["n_head"]), "file")
        if found.value < 1 or width % found.value:
            raise CheckpointError(f"path: {source.path} stores n_head {found.value}, expected a divisor of the width, {width}")
        return found
    heads = HEADS if given is None else given
    check_heads(heads, width)
    return Fact(heads, "published" if given is None else "option")


def _assemble(
    source: GraphSource,
    config: DigressConfig,
    kernels: tuple[D3PM, D3PM] | tuple[FlowEuler, FlowEuler],
    num_steps: Fact[int],
    checkpoint_layers: bool,
    facts: Mapping[str, Fact[Any]],
    **sampler: Any,
) -> ImportedGraphs:
    with torch.random.fork_rng(devices=[]):
        network = DigressTransformer(config, checkpoint_layers)
    check_tensors(source.network, {k: tuple(t.shape) for k, t in network.state_dict().items()}, source.path)
    network.load_state_dict({k: t.float() for k, t in source.network.items()})
    data, sizes = source.data, source.sizes()
    counts = tuple(p / sum(sizes.value) for p in sizes.value)
    stats = None
    if data.atoms:
        shares = prior("marginal", data.node_marginal), prior("marginal", data.edge_marginal)
        stats = MoleculeStatistics(counts, *shares, Vocabulary(data.atoms), 0, data.name)
    decode = partial(molecules.decode, vocabulary=stats.vocabulary) if stats else graph6.batch_to_graph6
    nodes, edges = kernels
    policy = GraphPolicy(network, nodes, edges, counts, num_steps=num_steps.value, decode=decode, **sampler)
    if stats:
        policy.encode = molecules.encoder(stats.vocabulary, *shares)
    elif (nodes.noise.num_clean, edges.noise.num_clean) == (1, 2):
        policy.encode = graph6.graphs_to_batch
    return ImportedGraphs(policy.eval(), stats, _taken(source, policy, {"steps": num_steps, **facts}))


def _taken(source: GraphSource, policy: GraphPolicy, facts: Mapping[str, Fact[Any]]) -> dict[str, tuple[str, str]]:
    """List the facts of an import in words, each with its origin."""
    data, origin = source.data, source.data_origin
    learned = [name in source.buffers for name in ("p0_node_dist", "p0_edge_dist")]
    priors = [", ".join(f"{p:.4g}" for p in noised) for noised in source.priors()]
    rows: dict[str, Fact[Any]] = {
        "kind": Fact("molecules" if data.atoms else "plain graphs", origin),
        "data": Fact(data.name, origin),
        "node classes": Fact(" ".join(data.atoms) or str(len(data.node_marginal)), origin),
        "edge classes": Fact(len(data.edge_marginal), origin),
        "noise": source.noise,
        "node prior": Fact(priors[0], "file" if learned[0] else origin),
        "edge prior": Fact(priors[1], "file" if learned[1] else origin),
        "largest size": Fact(policy.max_nodes, source.sizes().origin),
        "n is divided by": Fact(source.largest, origin),
        **facts,
    }
    return {name: fact.text for name, fact in rows.items()}
