"""Untrained graph policies of molecules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from discrete_grpo.datasets.molecules import MoleculeStatistics
from discrete_grpo.diffusion import choices
from discrete_grpo.diffusion.choices import Distortion, KernelName, NoiseName
from discrete_grpo.diffusion.schedules import CosineSchedule, Schedule
from discrete_grpo.domains import molecules as chemistry
from discrete_grpo.domains.tokenizer import Property
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import GraphPolicy

__all__ = ["NetworkSizes", "molecule_policy", "report_broken"]

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


def report_broken(file: str | Path, broken: Sequence[tuple[int, str]], good: int, kind: str = "molecule", shown: int = 5) -> None:
    """Count and list on standard error the lines of a file that are no molecule, or none of ``kind``; silent without any."""
    if not broken:
        return
    listed = "; ".join(f"line {number}: {text[:60]!r}" for number, text in broken[:shown])
    more = f"; and {len(broken) - shown} more" if len(broken) > shown else ""
    print(f"{file}: {len(broken)} of {good + len(broken)} lines are no {kind}: {listed}{more}", file=sys.stderr)
