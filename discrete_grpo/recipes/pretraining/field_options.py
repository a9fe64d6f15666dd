"""Networks of policies over fields, and conversion of options of graph policies to theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from discrete_grpo.core.checks import check_sizes
from discrete_grpo.core.seeding import seeded
from discrete_grpo.models.equivariant import EquivariantConfig, EquivariantSizes, EquivariantTransformer
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.fields import Field
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions

__all__ = ["check_plain", "equivariant_network", "equivariant_sizes"]


def equivariant_network(
    node_fields: Sequence[Field],
    edge_fields: Sequence[Field],
    sizes: EquivariantSizes | None = None,
    *,
    positions: bool = False,
    seed: int = 42,
) -> EquivariantTransformer:
    """An untrained equivariant transformer for the fields of a policy.

    Args:
        node_fields: fields of nodes.
        edge_fields: fields of pairs of nodes.
        sizes: sizes of the network; None means the defaults.
        positions: whether nodes have positions.
        seed: random seed of the initial weights; the global random state is not changed.
    """
    fields = (node_fields, edge_fields)
    states = [{field.name: field.kernel.noise.num_states for field in part} for part in fields]
    classes = [{field.name: field.kernel.noise.num_clean for field in part} for part in fields]
    config = EquivariantConfig(
        node_fields=states[0],
        edge_fields=states[1],
        node_classes=classes[0],
        edge_classes=classes[1],
        directed=tuple(field.name for field in edge_fields if field.directed),
        positions=positions,
        **vars(sizes or EquivariantSizes()),
    )
    with seeded(seed):
        return EquivariantTransformer(config)


def equivariant_sizes(sizes: NetworkSizes, kind: str) -> EquivariantSizes:
    """The sizes of an equivariant transformer that a graph transformer of ``sizes`` corresponds to.

    Args:
        sizes: of a graph transformer.
        kind: name of the policies in error messages.

    Raises:
        ValueError: for a feature that an equivariant transformer does not have.
    """
    check_sizes("network", sizes, NetworkSizes)
    for name in ("walk_length", "connectivity", "log_time"):
        wanted = getattr(NetworkSizes, name)
        if (value := getattr(sizes, name)) != wanted:
            raise ValueError(f"network.{name}: {value}, expected {wanted} with {kind}: the network has no such feature")
    shared = {field.name for field in dataclasses.fields(NetworkSizes)} & {
        field.name for field in dataclasses.fields(EquivariantSizes)
    }
    return EquivariantSizes(**{name: getattr(sizes, name) for name in shared})


def check_plain(options: DiffusionOptions, names: tuple[str, ...], kind: str) -> None:
    """Raise ``ValueError`` for one of the options ``names`` that is not at its default."""
    for name in names:
        wanted = getattr(DiffusionOptions, name)
        if (value := getattr(options, name)) != wanted:
            raise ValueError(f"{name}: {value!r}, expected {wanted!r} with {kind}")
