"""Graph diffusion and flow policies of molecules, and their pretraining."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from torch import nn

from discrete_grpo.core.checks import check_fields, check_sizes, check_text, told_as
from discrete_grpo.core.description import attach_metadata
from discrete_grpo.core.option_names import known_options
from discrete_grpo.datasets.molecule_fields import FieldMolecules, ShardedFieldMolecules, field_statistics
from discrete_grpo.datasets.molecules import (
    ConditionedMolecules,
    MoleculeDataset,
    MoleculeStatistics,
    conditioned,
    load_molecules,
    statistics,
)
from discrete_grpo.datasets.reading import AUTO
from discrete_grpo.datasets.sharded import ShardedConditionedMolecules, ShardedMolecules
from discrete_grpo.datasets.shards import is_shard_folder
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.diffusion.schedules import Schedule
from discrete_grpo.domains import molecules as chemistry
from discrete_grpo.domains.tokenizer import Property
from discrete_grpo.metrics.molecules import sample_metrics
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.recipes.left_out import report_broken, report_kept
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions, diffusion_policy
from discrete_grpo.recipes.pretraining.field_options import equivariant_sizes
from discrete_grpo.recipes.pretraining.fitting import fit, fresh_metrics
from discrete_grpo.recipes.pretraining.held_out import NOISY_DRAWS, hold_out, with_held_out
from discrete_grpo.recipes.pretraining.measured import (
    check_shown,
    measured_columns,
    measured_in,
    measured_values,
    tell_properties,
)
from discrete_grpo.recipes.pretraining.molecule_fields import (
    POLICY_WORDS,
    ChargeOptions,
    check_field_options,
    molecule_field_policy,
)
from discrete_grpo.recipes.pretraining.molecule_files import check_shard_options, data_file
from discrete_grpo.recipes.pretraining.training_conditions import training_conditions
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Dataset

__all__ = ["PretrainRecipe", "molecule_policy", "run_pretrain"]


def molecule_policy(
    stats: MoleculeStatistics,
    network: NetworkSizes | nn.Module | None = None,
    options: DiffusionOptions | None = None,
    *,
    schedule: Schedule | None = None,
    properties: Sequence[Property] = (),
    condition_dropout: float = 0.1,
    seed: int = 42,
) -> GraphPolicy:
    """An untrained graph diffusion or flow policy for molecules like those that ``stats`` describes.

    Args:
        stats: vocabulary, sizes and class frequencies of the training data, see
            :func:`~discrete_grpo.datasets.molecules.statistics`.
        network: sizes of a graph transformer, or a network of your own, which is called as
            :class:`~discrete_grpo.recipes.pretraining.diffusion.Denoiser` says and checked at once; None means default sizes.
        options: noise and sampler; None means the defaults.
        schedule: a noise schedule of your own, in place of ``options.schedule``.
        properties: descriptors the policy is conditioned on.
        condition_dropout: share of training molecules of which all properties are hidden; in the others each is hidden with the
            same probability.
        seed: random seed of the initial weights of a graph transformer; the global random state is not changed.

    Raises:
        ValueError: if a custom network cannot be called this way or returns other shapes.
    """
    policy = diffusion_policy(
        (stats.node_marginal, stats.edge_marginal),
        stats.node_counts,
        network,
        options,
        schedule=schedule,
        properties=properties,
        condition_dropout=condition_dropout,
        decode=partial(chemistry.decode, vocabulary=stats.vocabulary),
        encode=chemistry.encoder(stats.vocabulary, stats.node_marginal, stats.edge_marginal),
        seed=seed,
    )
    return attach_metadata(policy, {"kind": "molecules", "statistics": stats.to_json()})


# -- pretraining


@known_options()
@dataclass(frozen=True)
class PretrainRecipe(ChargeOptions):
    """Likelihood training of a graph diffusion policy on a file of molecules.

    Attributes:
        data: path of a SMILES file (.smi, .txt, .csv, .tsv, each optionally .gz) or of a folder of shards made by ``preprocess``,
            ``enumerated`` for the bundled set, or the name of a download (``qm9``, ``zinc250k``).
        output_dir: run folder to make.
        charges: ``joint``: an atom type is an element with its formal charge (N, N+1, O-1); ``field``: the charge is a class of
            its own beside the element, and the network an equivariant transformer.
        properties: conditions of the policy: names of columns of numbers in ``data``, and else of RDKit descriptors. A molecule
            whose cell is empty is trained on without that condition. A folder of shards has those that it was made with.
        condition_dropout: share of training molecules of which all properties are hidden, so that the policy also works without; in
            the others each is hidden with the same probability. With 0 the ``evaluation_samples`` are drawn under conditions of
            training molecules.
        network: sizes of the graph transformer, or with charges ``field`` of the equivariant one, which has no ``walk_length``,
            ``connectivity`` and ``log_time``.
        pretrain: settings of the training loop.
        max_broken: largest share of lines of ``data`` that may not be a molecule.
        smiles_column: name of the column of SMILES in ``data``; None finds it by its name.
        max_bytes: largest size that a gzipped file may unpack to.
        max_atoms: larger molecules are left out; None keeps all.
        cache_dir: folder where the parsed data is kept for the next run; ``auto`` is that of the user, for large files, None none.
        evaluation_samples: molecules sampled at every checkpoint to log validity; 0 means none.
        data_name: name kept with the checkpoint; None means that of ``data``.
        data_licence: licence kept with the checkpoint.
        test_share: share of the different molecules that is not trained on, and whose loss is logged at every checkpoint as
            ``eval/test_loss``, with the same times, noise and hidden conditions each time; 0 trains on all of them. Of a folder
            of shards it is a share of the lines.
    """

    data: str = "enumerated"
    output_dir: str = "runs/pretrain"
    charges: Literal["joint", "field"] = field(default="joint", kw_only=True)
    properties: tuple[str, ...] = ()
    condition_dropout: float = 0.1
    network: NetworkSizes = field(default_factory=NetworkSizes)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    max_broken: float = 0.05
    smiles_column: str | None = None
    max_bytes: int = MAX_BYTES
    max_atoms: int | None = None
    cache_dir: str | None = AUTO
    evaluation_samples: int = 256
    data_name: str | None = None
    data_licence: str = "unknown"
    test_share: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text("data", self.data, "the name of a set, or of a file or folder of molecules")
        check_sizes("network", self.network, NetworkSizes)
        check_fields(self, "evaluation_samples", least=0)
        check_fields(self, "max_bytes", least=1)
        check_fields(self, "max_atoms")
        check_fields(self, "test_share", least=0, below=1)
        check_shown(self.condition_dropout, self.properties)
        if self.charges not in ("joint", "field"):
            raise ValueError(f"charges: {self.charges!r}, expected joint or field")
        if self.charges == "field":
            check_field_options(self, self.network)
            if self.properties:
                raise ValueError(f"properties: {', '.join(self.properties)}, expected none with charges as a field")
        for name in ("charge_weight", "charge_exponent"):
            if self.charges == "joint" and getattr(self, name) != 1:
                raise ValueError(f"{name}: {getattr(self, name)}, expected 1 unless charges is 'field'")


Molecules: TypeAlias = MoleculeDataset | ShardedMolecules
"""Packed graphs in memory or on disk."""


def _dataset(recipe: PretrainRecipe) -> Molecules:
    """The molecules of ``recipe.data``; lines that are not a molecule are listed on standard error."""
    if recipe.data != "enumerated" and is_shard_folder(recipe.data):
        shards = ShardedMolecules(recipe.data)
        check_shard_options(shards.folder, recipe.max_broken, recipe.smiles_column, recipe.max_atoms)
        return shards
    if recipe.data == "enumerated":
        from discrete_grpo.datasets.enumeration import load_enumerated

        return load_enumerated(7 if recipe.max_atoms is None else recipe.max_atoms)
    path = data_file(recipe.data)
    with told_as("data", "path"):
        data = load_molecules(
            path,
            recipe.max_broken,
            max_atoms=recipe.max_atoms,
            smiles_column=recipe.smiles_column,
            max_bytes=recipe.max_bytes,
            cache_dir=recipe.cache_dir,
        )
    report_broken(path, data.broken, len(data))
    report_kept(path, data.smiles, data.dropped)
    return data


def run_pretrain(recipe: PretrainRecipe, *, network: nn.Module | None = None, resume: bool = False) -> Path:
    """Pretrain a graph policy of molecules; returns the folder of the exported policy.

    Args:
        recipe: the settings.
        network: a network of your own in place of ``recipe.network``, see
            :class:`~discrete_grpo.recipes.pretraining.diffusion.Denoiser`.
        resume: whether to continue a stopped run.
    """
    if network is not None and recipe.charges == "field":
        raise ValueError(f"network: {type(network).__name__}, expected none with charges as a field")
    measured = measured_columns(recipe)
    data = _dataset(recipe)
    if isinstance(data, ShardedMolecules):
        measured = measured_in(data.folder, recipe.properties)
    made = _with_field(recipe, data) if recipe.charges == "field" else _joint(recipe, data, measured, network)
    policy, given, stats = made
    train, held_out = hold_out(given, data.smiles if isinstance(data, MoleculeDataset) else range(len(data)), recipe.test_share)
    metadata: dict[str, Any] = {
        "statistics": stats,
        "data": {"name": recipe.data_name or data.name, "molecules": len(train), "licence": recipe.data_licence},
    }
    if measured:
        metadata["measured"] = list(measured)
    columns = training_conditions(policy, train, recipe.evaluation_samples)
    fresh = fresh_metrics(recipe.evaluation_samples, sample_metrics, columns=columns)
    evaluate = with_held_out(fresh, held_out, recipe.pretrain.batch_size, draws=NOISY_DRAWS)
    return fit(policy, train, recipe, metadata=metadata, evaluate=evaluate, resume=resume)


_Parts: TypeAlias = tuple[nn.Module, Dataset, dict[str, Any]]
"""A policy, the data it is trained on and the statistics that are kept with it."""


def _statistics(recipe: PretrainRecipe, data: Molecules) -> MoleculeStatistics:
    """The statistics of the molecules.

    Raises:
        ValueError: if noise ``marginal`` has no frequencies of bonds, since no molecule has two heavy atoms.
    """
    found = data.statistics if isinstance(data, ShardedMolecules) else statistics(data)
    if recipe.noise == "marginal" and not sum(found.edge_marginal) > 0:
        wanted = "expected at least one that has, or noise uniform or absorbing"
        raise ValueError(f"data: no molecule to train on has two heavy atoms, {wanted}")
    return found


def _conditioned(
    recipe: PretrainRecipe, data: Molecules, measured: Sequence[str]
) -> ConditionedMolecules | ShardedConditionedMolecules:
    if isinstance(data, ShardedMolecules):
        return ShardedConditionedMolecules(data, recipe.properties)
    found = conditioned(data, recipe.properties, measured_values(recipe, measured, data.lines))
    tell_properties(found.properties, found.values)
    return found


def _joint(recipe: PretrainRecipe, data: Molecules, measured: Sequence[str], network: nn.Module | None) -> _Parts:
    """A graph policy whose atom types include the charges."""
    stats = _statistics(recipe, data)
    given = _conditioned(recipe, data, measured) if recipe.properties else None
    policy = molecule_policy(
        stats,
        recipe.network if network is None else network,
        recipe,
        properties=given.properties if given else (),
        condition_dropout=recipe.condition_dropout,
        seed=recipe.pretrain.seed,
    )
    return policy, given or data, stats.to_json()


def _with_field(recipe: PretrainRecipe, data: Molecules) -> _Parts:
    """A policy with the charges as a field."""
    stats = field_statistics(_statistics(recipe, data))
    policy = molecule_field_policy(stats, equivariant_sizes(recipe.network, POLICY_WORDS), recipe, seed=recipe.pretrain.seed)
    if isinstance(data, ShardedMolecules):
        return policy, ShardedFieldMolecules(data, stats.fields), stats.to_json()
    return policy, FieldMolecules(data, stats.fields), stats.to_json()
