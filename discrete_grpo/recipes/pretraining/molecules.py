"""Building blocks of recipes for molecules: untrained policies and data files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import nn

from discrete_grpo.core.description import attach_metadata
from discrete_grpo.datasets.downloads import DOWNLOADS, download
from discrete_grpo.datasets.molecules import MoleculeStatistics
from discrete_grpo.datasets.reading import check_broken
from discrete_grpo.datasets.shards import ShardFolder
from discrete_grpo.diffusion.schedules import Schedule
from discrete_grpo.domains import molecules as chemistry
from discrete_grpo.domains.tokenizer import Property
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions, diffusion_policy

__all__ = [
    "DiffusionOptions",
    "NetworkSizes",
    "check_shard_options",
    "data_file",
    "molecule_policy",
]


# -- policies


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


def data_file(name: str) -> Path:
    """Return the path of a file of molecules; a named data set is downloaded unless a file of that name exists.

    With several processes all must call this: the first downloads, and the others wait for it.
    """
    if name not in DOWNLOADS or Path(name).exists():
        return Path(name)
    from discrete_grpo.training.distributed import ProcessGroup, accelerator

    return ProcessGroup(accelerator()).after_first(lambda: download(name))


def check_shard_options(folder: ShardFolder, max_broken: float, smiles_column: str | None, max_atoms: int | None = None) -> None:
    """Check the options of a recipe that a folder of shards has fixed when it was made.

    Raises:
        ValueError: if a larger share of lines than ``max_broken`` was broken, or an option differs from that of the folder.
    """
    for name, value in (("smiles_column", smiles_column), ("max_atoms", max_atoms)):
        made = folder.options[name]
        if value is not None and value != made:
            raise ValueError(f"{name}: {value!r}, expected {made!r}, with which the folder {str(folder.path)!r} was made, or null")
    check_broken(folder.path, len(folder) + folder.dropped, folder.examples, max_broken, count=folder.broken)
