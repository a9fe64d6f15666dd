"""Molecule policies: made, found, loaded, sampled and evaluated. The parts that recipes and users share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.datasets.molecules import MoleculeStatistics
from discrete_grpo.datasets.reading import read_smiles
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.diffusion import choices
from discrete_grpo.diffusion.choices import Distortion, GraphKernel, KernelName, NoiseName
from discrete_grpo.diffusion.schedules import CosineSchedule, Schedule
from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains import molecules as chemistry
from discrete_grpo.domains.tokenizer import Property
from discrete_grpo.metrics.molecules import canonical, evaluate
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.policies.options import change_graph_policy, graph_part
from discrete_grpo.runs.checkpoint import CheckpointError, bundled_policies, find_checkpoint, load_metadata, load_policy
from discrete_grpo.runs.console import print_table, progress
from discrete_grpo.runs.recorder import write_json

__all__ = [
    "NetworkSizes",
    "bundled_policies",
    "evaluate_file",
    "find_checkpoint",
    "load_molecule_policy",
    "load_statistics",
    "molecule_policy",
    "output_path",
    "property_columns",
    "report_broken",
    "sample_molecules",
    "scaffold_sites",
    "with_sampler",
]

PROPERTIES: Mapping[str, Callable[[Any], float]] = {
    "QED": molecule_properties.qed_score,
    "logP": molecule_properties.crippen_logp,
    "SA": molecule_properties.sa_score,
    "weight": molecule_properties.molar_mass,
}


# -- policies


@dataclass(frozen=True)
class NetworkSizes:
    """Sizes of the graph transformer; see :class:`~discrete_grpo.models.graph_transformer.GraphTransformerConfig`.

    Attributes:
        layers: depth.
        heads: attention heads.
        width: node width, a multiple of ``heads``.
        edge_width: pair width.
        global_width: width of the graph's global state.
        expansion: hidden over outer width in feed-forward parts.
        walk_length: random-walk powers given as features.
        dropout: in feed-forward parts.
        connectivity: components, effective resistances and bridges as features too, for graphs of far-reaching structure.
        log_time: log t as a feature too; for preconditioned policies.
    """

    layers: int = 6
    heads: int = 8
    width: int = 128
    edge_width: int = 48
    global_width: int = 64
    expansion: int = 2
    walk_length: int = 8
    dropout: float = 0.0
    connectivity: bool = False
    log_time: bool = False


def molecule_policy(
    stats: MoleculeStatistics,
    network: NetworkSizes | None = None,
    *,
    noise: NoiseName = "marginal",
    kernel: KernelName = "d3pm",
    schedule: Schedule | None = None,
    num_steps: int = 50,
    train_distortion: Distortion = "identity",
    sample_distortion: Distortion = "identity",
    eta: float = 0.0,
    omega: float = 0.0,
    precondition: bool = False,
    properties: Sequence[Property] = (),
    condition_dropout: float = 0.1,
    seed: int = 42,
) -> GraphPolicy:
    """An untrained graph diffusion or flow policy for molecules of the kind ``stats`` describes.

    Args:
        stats: vocabulary, sizes and marginals of the training data.
        network: sizes; None means the small setting.
        noise: what is noised towards; ``absorbing`` is masked diffusion.
        kernel: the reverse step; see :func:`discrete_grpo.diffusion.choices.make_kernel`.
        schedule: ᾱ(t); None means cosine.
        num_steps: steps of the sampler.
        train_distortion: of the times trained at.
        sample_distortion: of the sampler's grid.
        eta: stochasticity of kernel ``flow_euler``.
        omega: target guidance of kernel ``flow_euler``.
        precondition: add log q(x_t|x_0) of a site to the network's logits.
        properties: descriptors it is conditioned on.
        condition_dropout: share of training in which they are hidden.
        seed: of the initial weights; the global random state is left as it was.
    """
    schedule = schedule or CosineSchedule()
    node_kernel, edge_kernel = (
        choices.make_kernel(kernel, choices.make_noise(noise, share, schedule), eta=eta, omega=omega)
        for share in (stats.node_marginal, stats.edge_marginal)
    )
    config = GraphTransformerConfig(
        node_states=node_kernel.noise.num_states,
        edge_states=edge_kernel.noise.num_states,
        node_classes=node_kernel.noise.num_clean,
        edge_classes=edge_kernel.noise.num_clean,
        num_properties=len(properties),
        **vars(network or NetworkSizes()),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = GraphTransformer(config)
    decode = partial(chemistry.decode, vocabulary=stats.vocabulary)
    return GraphPolicy(
        net,
        node_kernel,
        edge_kernel,
        stats.node_counts,
        num_steps=num_steps,
        precondition=precondition,
        properties=properties,
        condition_dropout=condition_dropout,
        train_distortion=choices.make_distortion(train_distortion),
        sample_distortion=choices.make_distortion(sample_distortion),
        decode=decode,
    )


def load_molecule_policy(name: str | Path, **changes: Any) -> Any:
    """A graph policy over molecules from a checkpoint, decoding to SMILES.

    Args:
        name: a bundled policy's name, a checkpoint folder or a run folder.
        changes: to how it draws; those of :func:`with_sampler`.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged or not of molecules.
        ValueError: for a change out of its range.
    """
    folder = find_checkpoint(name)
    policy = load_policy(folder)
    stats = load_statistics(folder)
    inner = graph_part(policy)
    if inner is None:
        raise CheckpointError(f"checkpoint: {folder} is a {type(policy).__name__}, expected a graph policy")
    types, classes = len(stats.vocabulary), inner.node_kernel.noise.num_clean
    if types != classes:
        raise CheckpointError(f"checkpoint: {folder} has a vocabulary of {types} atom types, expected the policy's {classes}")
    policy.decode = partial(chemistry.decode, vocabulary=stats.vocabulary)
    return with_sampler(policy, **changes)


def with_sampler(
    policy: Any,
    *,
    num_steps: int | None = None,
    temperature: float | None = None,
    guidance: float | None = None,
    kernel: KernelName | None = None,
    eta: float | None = None,
    omega: float | None = None,
    sample_distortion: Distortion | None = None,
    shared_steps: int | None = None,
) -> Any:
    """The same network drawn from in another way; None keeps what the policy has.

    Args:
        policy: a graph policy, or one that wraps it.
        num_steps: steps of the sampler.
        temperature: of the network's logits.
        guidance: of a conditional policy.
        kernel: the reverse step, of the same noise and schedule.
        eta: stochasticity of kernel ``flow_euler``.
        omega: target guidance of kernel ``flow_euler``.
        sample_distortion: of the sampler's grid.
        shared_steps: first steps that a group takes together.

    Raises:
        ValueError: for a change out of its range, or one that the kernel does not have.
    """
    given = {"num_steps": num_steps, "temperature": temperature, "guidance": guidance, "shared_steps": shared_steps}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if sample_distortion is not None:
        changes["sample_distortion"] = choices.make_distortion(sample_distortion)

    def change(inner: GraphPolicy) -> GraphPolicy:
        kernels = {name: _other_kernel(getattr(inner, name), kernel, eta, omega) for name in ("node_kernel", "edge_kernel")}
        return GraphPolicy(**inner.init_args() | {"decode": inner.decode} | kernels | changes).eval()

    rates = (kernel, eta, omega)
    return change_graph_policy(policy, change) if changes or any(x is not None for x in rates) else policy


def _other_kernel(old: GraphKernel, name: KernelName | None, eta: float | None, omega: float | None) -> GraphKernel:
    """A kernel for the noise of ``old``; a rate that is not given is kept where the new kind has rates."""
    if name is None and eta is None and omega is None:
        return old
    kind = name or choices.kernel_name(old)
    kept = {"eta": getattr(old, "eta", 0.0), "omega": getattr(old, "omega", 0.0)} if kind == "flow_euler" else {}
    given = {k: v for k, v in (("eta", eta), ("omega", omega)) if v is not None}
    return choices.make_kernel(kind, old.noise, **kept | given)


def load_statistics(folder: Path) -> MoleculeStatistics:
    """The molecule statistics a checkpoint was saved with.

    Raises:
        CheckpointError: if it has none, or they cannot be read.
    """
    metadata = load_metadata(folder)
    if "statistics" not in metadata:
        raise CheckpointError(f"checkpoint: {folder} has no molecule statistics, expected a policy over molecules")
    try:
        return MoleculeStatistics.from_json(metadata["statistics"])
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint: {folder} has molecule statistics that cannot be read ({error})") from error


def scaffold_sites(smiles: str, vocabulary: chemistry.Vocabulary, max_nodes: int | None = None) -> FixedSites:
    """A scaffold as fixed sites: its atoms first, and every bond and non-bond between them.

    Raises:
        ValueError: if ``smiles`` is no molecule, has atoms outside the vocabulary, or more than ``max_nodes`` of them.
    """
    mol = chemistry.parse(smiles)
    if mol is None:
        raise ValueError(f"scaffold: {smiles!r}, expected a valid, connected SMILES")
    try:
        nodes, bonds = chemistry.molecule_to_classes(mol, vocabulary)
    except ValueError as error:
        raise ValueError(f"scaffold: {smiles!r}, {str(error).removeprefix('mol: ')}") from error
    if max_nodes is not None and len(nodes) > max_nodes:
        raise ValueError(f"scaffold: {smiles!r} has {len(nodes)} atoms, expected at most the policy's {max_nodes}")
    edges = {(i, j): 0 for j in range(len(nodes)) for i in range(j)}
    edges |= {(min(i, j), max(i, j)): c for i, j, c in bonds}
    return FixedSites(dict(enumerate(nodes)), edges)


# -- sampling and evaluation


def sample_molecules(
    policy: Any, count: int, *, seed: int = 0, batch_size: int = 256, columns: Mapping[str, Any] | None = None
) -> list[str | None]:
    """``count`` molecules as SMILES (None where the graph is no valid molecule), each of a size of its own.

    Raises:
        ValueError: if ``count`` is less than 1.
    """
    if count < 1:
        raise ValueError(f"n: {count}, expected at least 1")
    generator = torch.Generator(policy.device).manual_seed(seed)
    samples: list[str | None] = []
    with progress("sampling", count) as bar:
        while len(samples) < count:
            size = min(batch_size, count - len(samples))
            contexts = group_contexts(size, 1, None if columns is None else [columns] * size)
            samples.extend(policy.sample(contexts, generator=generator).samples)
            bar.advance(size)
    return samples


def property_columns(samples: Sequence[str | None]) -> dict[str, list[float | None]]:
    """QED, logP, SA and weight of every sample, None where it is invalid: the property columns of tables."""
    molecules = chemistry.parse_all(samples)
    return {name: [None if m is None else f(m) for m in molecules] for name, f in PROPERTIES.items()}


def output_path(out: str) -> Path:
    """``out`` as a path that can be written, found out before the work and not after it."""
    path = Path(out)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"out: folder {path.parent} does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"out: {path} is a folder, expected a file")
    return path


def evaluate_file(
    file: str,
    *,
    reference: str | None = None,
    out: str | None = None,
    smiles_column: str | None = None,
    reference_smiles_column: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> dict[str, float]:
    """Validity, uniqueness, novelty against ``reference``, diversity and property means of a file of SMILES.

    Lines that are no molecules count as invalid samples and are listed on standard error; the table is printed and, with
    ``out``, written as JSON.

    Args:
        file: the samples; see :func:`~discrete_grpo.datasets.reading.read_smiles`.
        reference: the molecules that novelty is measured against.
        out: JSON file for the numbers.
        smiles_column: name of the column of SMILES in ``file``; None finds it.
        reference_smiles_column: the same of ``reference``.
        max_bytes: largest size that a gzipped file may unpack to.
    """
    path = None if out is None else output_path(out)
    found = read_smiles(file, max_broken=1.0, smiles_column=smiles_column, max_bytes=max_bytes)
    report_broken(file, found.broken, len(found.smiles))
    samples: list[str | None] = [*found.smiles, *(None for _ in found.broken)]
    known = None
    if reference is not None:
        try:
            stored = read_smiles(reference, smiles_column=reference_smiles_column, max_bytes=max_bytes)
        except ValueError as error:  # the option has another name here
            raise ValueError(str(error).replace("smiles_column", "reference_smiles_column")) from error
        report_broken(reference, stored.broken, len(stored.smiles))
        known = {s for s in map(canonical, stored.smiles) if s is not None}
    result = evaluate(samples, known)
    print_table(f"{file}: {len(samples)} samples", {k: {"value": v} for k, v in result.items()})
    if path is not None:
        write_json(path, {"file": file, "reference": reference, "samples": len(samples)} | result)
    return result


def report_broken(file: str | Path, broken: Sequence[tuple[int, str]], good: int, kind: str = "molecule", shown: int = 5) -> None:
    """Count and list on standard error the lines of a file that are no molecule, or none of ``kind``; silent without any."""
    if not broken:
        return
    listed = "; ".join(f"line {number}: {text[:60]!r}" for number, text in broken[:shown])
    more = f"; and {len(broken) - shown} more" if len(broken) > shown else ""
    print(f"{file}: {len(broken)} of {good + len(broken)} lines are no {kind}: {listed}{more}", file=sys.stderr)
