"""Conversion of options of graph policies to those of policies over fields."""

from __future__ import annotations

from dataclasses import fields

from discrete_grpo.core.checks import check_sizes
from discrete_grpo.models.equivariant import EquivariantSizes
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions

__all__ = ["check_plain", "equivariant_sizes"]


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
    shared = {field.name for field in fields(NetworkSizes)} & {field.name for field in fields(EquivariantSizes)}
    return EquivariantSizes(**{name: getattr(sizes, name) for name in shared})


def check_plain(options: DiffusionOptions, names: tuple[str, ...], kind: str) -> None:
    """Raise ``ValueError`` for one of the options ``names`` that is not at its default."""
    for name in names:
        wanted = getattr(DiffusionOptions, name)
        if (value := getattr(options, name)) != wanted:
            raise ValueError(f"{name}: {value!r}, expected {wanted!r} with {kind}")
