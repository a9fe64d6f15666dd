"""Policies of molecules in space: fields of atoms and bonds, positions, and the data they are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.seeding import seeded
from discrete_grpo.datasets.spatial import SpatialStatistics
from discrete_grpo.diffusion.gaussian import GaussianDiffusion
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import marginal
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.domains.fields import FieldBatch, centred
from discrete_grpo.domains.spatial_molecules import SpatialMolecule
from discrete_grpo.models.equivariant import SMALL, EquivariantConfig, EquivariantTransformer
from discrete_grpo.policies.fields import Field, FieldPolicy, Positions

__all__ = ["SpatialGraphs", "SpatialOptions", "decode", "encode", "spatial_policy"]


@dataclass(frozen=True, kw_only=True)
class SpatialOptions:
    """Noise, loss weights and sampler of a policy of molecules in space; the defaults are MiDi's.

    Attributes:
        num_steps: steps of the sampler, at least 1.
        exponents: ν of the cosine schedule of positions, atoms, charges and bonds, each more than 0: a larger one keeps a field
            clean for longer, so that positions and bonds are settled before atoms and charges.
        weights: weight of each in the loss, in the same order, at least 0.
        min_std: least deviation of a step of the positions, in units of the standard deviation of the data's coordinates.
        learned_variance: whether the variance of each step of the positions is learned.

    Raises:
        ValueError: for a value out of its range, or another number of exponents or weights.

    Source: Vignac et al. (2023), MiDi, sections 3 and 4, arXiv 2302.09048.
    """

    num_steps: int = 100
    exponents: tuple[float, float, float, float] = (2.5, 1.0, 1.0, 1.5)
    weights: tuple[float, float, float, float] = (3.0, 0.4, 1.0, 2.0)
    min_std: float = 0.01
    learned_variance: bool = False

    def __post_init__(self) -> None:
        check_range("num_steps", self.num_steps, least=1)
        for name in ("exponents", "weights"):
            if len(getattr(self, name)) != 4:
                raise ValueError(f"{name}: {getattr(self, name)}, expected four numbers: positions, atoms, charges, bonds")
        for value in self.exponents:
            check_range("exponents", value, above=0)
        for value in self.weights:
            check_range("weights", value, least=0)


def spatial_policy(
    stats: SpatialStatistics,
    sizes: dict[str, Any] | None = None,
    options: SpatialOptions | None = None,
    *,
    seed: int = 42,
) -> FieldPolicy:
    """An untrained policy of molecules in space like those that ``stats`` describes, with fields atom, charge and bond.

    Positions are diffused in units of the standard deviation of the data's coordinates.

    Args:
        stats: elements, charges, sizes, class frequencies and spread of the training data.
        sizes: sizes of the network, see :class:`~discrete_grpo.models.equivariant.EquivariantConfig`; None means ``SMALL``.
        options: noise and sampler; None means the defaults.
        seed: random seed of the initial weights; the global random state is not changed.
    """
    options = options or SpatialOptions()
    space, *others = options.exponents
    weight, *weights = options.weights
    shares = (stats.symbol_marginal, stats.charge_marginal, bond_shares(stats))
    fields = [
        Field(name, D3PM(marginal(share, CosineSchedule(exponent=exponent))), w)
        for name, share, exponent, w in zip(("atom", "charge", "bond"), shares, others, weights, strict=True)
    ]
    states = {field.name: field.kernel.noise.num_states for field in fields}
    classes = {field.name: field.kernel.noise.num_clean for field in fields}
    config = EquivariantConfig(
        node_fields={name: states[name] for name in ("atom", "charge")},
        edge_fields={"bond": states["bond"]},
        node_classes={name: classes[name] for name in ("atom", "charge")},
        edge_classes={"bond": classes["bond"]},
        positions=True,
        **(SMALL if sizes is None else sizes),
    )
    with seeded(seed):
        network = EquivariantTransformer(config)
    diffusion = GaussianDiffusion(CosineSchedule(exponent=space), options.min_std)
    return FieldPolicy(
        network,
        fields[:2],
        fields[2:],
        stats.node_counts,
        positions=Positions(diffusion, weight, options.learned_variance),
        num_steps=options.num_steps,
        decode=partial(decode, stats=stats),
        encode=partial(encode, stats=stats),
    )


def bond_shares(stats: SpatialStatistics) -> tuple[float, ...]:
    """Frequencies of no bond and of the orders up to the highest that occurs."""
    most = max(order for order, share in enumerate(stats.bond_marginal) if share > 0 or order == 1)
    return stats.bond_marginal[: most + 1]


# -- molecules as fields and back


def decode(graphs: FieldBatch, stats: SpatialStatistics) -> list[SpatialMolecule | None]:
    """The molecules of finished graphs, with positions in Å; None where a position is not finite."""
    assert graphs.positions is not None
    found: list[SpatialMolecule | None] = []
    positions = graphs.positions.double() * stats.position_std
    atoms, charges, bonds = graphs.nodes["atom"].tolist(), graphs.nodes["charge"].tolist(), graphs.edges["bond"].tolist()
    for b, n in enumerate(graphs.sizes.tolist()):
        if not bool(positions[b, :n].isfinite().all()):
            found.append(None)
            continue
        pairs = ((i, j, bonds[b][i][j]) for j in range(n) for i in range(j) if bonds[b][i][j])
        found.append(
            SpatialMolecule(
                tuple(stats.symbols[k] for k in atoms[b][:n]),
                tuple(stats.charges[k] for k in charges[b][:n]),
                tuple(pairs),
                tuple((x, y, z) for x, y, z in positions[b, :n].tolist()),
            )
        )
    return found


def encode(samples: Sequence[SpatialMolecule], stats: SpatialStatistics) -> FieldBatch:
    """The graphs of molecules, centred and in units of ``stats.position_std``.

    Raises:
        ValueError: for an element, a charge or a bond order that ``stats`` does not have, or a sample that is no molecule.
    """
    for one in samples:
        if not isinstance(one, SpatialMolecule):
            raise ValueError(f"samples: {type(one).__name__}, expected a SpatialMolecule")
    n = max((len(one) for one in samples), default=0)
    known = {"element": stats.symbols, "charge": stats.charges}
    nodes = {name: torch.zeros(len(samples), n, dtype=torch.long) for name in ("atom", "charge")}
    bonds = torch.zeros(len(samples), n, n, dtype=torch.long)
    positions, mask = torch.zeros(len(samples), n, 3), torch.zeros(len(samples), n, dtype=torch.bool)
    highest = len(bond_shares(stats)) - 1
    for b, one in enumerate(samples):
        size = len(one)
        for name, kind, values in (("atom", "element", one.symbols), ("charge", "charge", one.charges)):
            if unknown := [value for value in values if value not in known[kind]]:
                raise ValueError(f"samples: {kind} {unknown[0]!r}, expected one of {', '.join(map(str, known[kind]))}")
            nodes[name][b, :size] = torch.tensor([known[kind].index(value) for value in values])
        for i, j, order in one.bonds:
            check_range("samples: bond order", order, least=1, most=highest)
            bonds[b, i, j] = bonds[b, j, i] = order
        positions[b, :size] = torch.tensor(one.positions, dtype=torch.float64).float() / stats.position_std
        mask[b, :size] = True
    return FieldBatch(nodes, {"bond": bonds}, centred(positions, mask), mask)


@dataclass(frozen=True)
class SpatialGraphs:
    """Molecules in space as training data.

    Attributes:
        molecules: the molecules.
        stats: their statistics.
    """

    molecules: Sequence[SpatialMolecule]
    stats: SpatialStatistics

    @cached_property
    def sizes(self) -> Int[Tensor, " molecule"]:
        """Number of atoms of each."""
        return torch.tensor([len(one) for one in self.molecules])

    def __len__(self) -> int:
        return len(self.molecules)

    def batch(self, rows: Int[Tensor, " row"]) -> FieldBatch:
        """The molecules at ``rows``."""
        return encode([self.molecules[k] for k in rows.tolist()], self.stats)
