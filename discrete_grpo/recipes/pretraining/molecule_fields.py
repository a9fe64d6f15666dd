"""Policies of molecules whose formal charge is a field beside the atom type, from the options of the recipe of molecules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.molecule_fields import MoleculeFieldStatistics
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.domains.molecule_fields import decode, encode
from discrete_grpo.models.equivariant import EquivariantSizes
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.fields import Field, FieldPolicy
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.field_options import check_plain, equivariant_network, equivariant_sizes

__all__ = ["POLICY_WORDS", "ChargeOptions", "check_field_options", "molecule_field_policy"]

POLICY_WORDS = "charges as a field"
"""Name of such policies in error messages."""

BOND_WEIGHT = 5.0
"""Weight of the bonds in the loss, λ of DiGress, as in :meth:`~discrete_grpo.policies.graph.GraphPolicy.likelihood_loss`."""


@dataclass(frozen=True, kw_only=True)
class ChargeOptions(DiffusionOptions):
    """Noise and sampler of a policy of molecules, with those of a field of charges.

    Attributes:
        charge_weight: weight of the charges in the loss, at least 0; that of atoms is 1 and that of bonds 5.
        charge_exponent: ν of the cosine schedule of charges, more than 0: a larger one keeps them clean for longer than the
            atoms and bonds, whose ν is 1.

    Raises:
        ValueError: for a value out of its range, or a ``charge_exponent`` with another schedule than cosine.
    """

    charge_weight: float = 1.0
    charge_exponent: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("charge_weight", self.charge_weight, least=0)
        check_range("charge_exponent", self.charge_exponent, above=0)
        if self.charge_exponent != 1 and self.schedule != "cosine":
            raise ValueError(f"charge_exponent: {self.charge_exponent}, expected 1 with schedule {self.schedule}; it is of cosine")


def check_field_options(options: DiffusionOptions, sizes: NetworkSizes | None = None) -> None:
    """Raise ``ValueError`` for an option that a policy with charges as a field does not have."""
    check_plain(options, ("precondition", "train_distortion", "sample_distortion"), POLICY_WORDS)
    if sizes is not None:
        equivariant_sizes(sizes, POLICY_WORDS)


def molecule_field_policy(
    stats: MoleculeFieldStatistics,
    sizes: EquivariantSizes | None = None,
    options: ChargeOptions | None = None,
    *,
    seed: int = 42,
) -> FieldPolicy:
    """An untrained policy of molecules like those that ``stats`` describes, with fields atom, charge and bond.

    Its samples are canonical SMILES, or None, as those of :func:`~discrete_grpo.recipes.pretraining.molecules.molecule_policy`.

    Args:
        stats: elements, charges, sizes and class frequencies of the training data, see
            :func:`~discrete_grpo.datasets.molecule_fields.field_statistics`.
        sizes: sizes of the network, see :class:`~discrete_grpo.models.equivariant.EquivariantSizes`; None means the defaults.
        options: noise, loss weight and sampler; None means the defaults.
        seed: random seed of the initial weights; the global random state is not changed.

    Raises:
        ValueError: for an option that a policy over fields does not have.
    """
    options = options or ChargeOptions()
    check_field_options(options)
    own = CosineSchedule(exponent=options.charge_exponent) if options.schedule == "cosine" else None
    nodes = [
        Field("atom", options.make_kernel(stats.atom_marginal)),
        Field("charge", options.make_kernel(stats.charge_marginal, own), options.charge_weight),
    ]
    bond = Field("bond", options.make_kernel(stats.bond_marginal), BOND_WEIGHT)
    return FieldPolicy(
        equivariant_network(nodes, [bond], sizes, seed=seed),
        nodes,
        [bond],
        stats.node_counts,
        num_steps=options.num_steps,
        decode=partial(decode, fields=stats.fields),
        encode=partial(encode, fields=stats.fields),
    )
