"""Policies of molecules in space: fields of atoms and bonds, positions, the data they are trained on, and pretraining."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discrete_grpo.core.checks import MOST_STEPS, check_fields, check_range, check_text, told_as
from discrete_grpo.core.description import attach_metadata
from discrete_grpo.core.option_names import known_options
from discrete_grpo.core.processes import is_first
from discrete_grpo.core.seeding import some_of
from discrete_grpo.datasets.reading import SUFFIXES, check_cache_dir, read_smiles
from discrete_grpo.datasets.spatial import SpatialDataset, SpatialStatistics, conformers, load_spatial, spatial_statistics
from discrete_grpo.datasets.spatial_fields import bond_shares, decode, encode, fits, spatial_graphs
from discrete_grpo.datasets.text_files import MAX_BYTES, suffix_of, text_lines
from discrete_grpo.diffusion.gaussian import GaussianDiffusion
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import marginal
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.domains.spatial_files import to_sdf
from discrete_grpo.domains.spatial_geometry import bond_lengths
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, smiles_of
from discrete_grpo.metrics.spatial import sample_metrics
from discrete_grpo.models.equivariant import EquivariantSizes
from discrete_grpo.policies.fields import Field, FieldPolicy, Positions
from discrete_grpo.recipes.kinds.spatial import SPATIAL
from discrete_grpo.recipes.left_out import report_broken
from discrete_grpo.recipes.pretraining.field_options import equivariant_network
from discrete_grpo.recipes.pretraining.fitting import fit, fresh_metrics
from discrete_grpo.recipes.pretraining.held_out import NOISY_DRAWS, with_held_out
from discrete_grpo.recipes.pretraining.molecule_files import data_file
from discrete_grpo.runs.console import print_notes
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.distributed import ProcessGroup, accelerator

__all__ = [
    "PretrainSpatialRecipe",
    "SpatialOptions",
    "run_pretrain_spatial",
    "spatial_policy",
    "split_molecules",
]

USUAL_BOND = (0.8, 2.2)
"""Lengths in Å between which the median bond of molecules in space lies."""


@dataclass(frozen=True, kw_only=True)
class SpatialOptions:
    """Noise, loss weights and sampler of a policy of molecules in space; the defaults are MiDi's.

    Attributes:
        num_steps: steps of the sampler, 1 to 10,000.
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
        check_fields(self, "num_steps", least=1, most=MOST_STEPS)
        for name in ("exponents", "weights"):
            if len(getattr(self, name)) != 4:
                raise ValueError(f"{name}: {getattr(self, name)}, expected four numbers: positions, atoms, charges, bonds")
        for value in self.exponents:
            check_range("exponents", value, above=0)
        for value in self.weights:
            check_range("weights", value, least=0)


def spatial_policy(
    stats: SpatialStatistics,
    sizes: EquivariantSizes | None = None,
    options: SpatialOptions | None = None,
    *,
    seed: int = 42,
) -> FieldPolicy:
    """An untrained policy of molecules in space like those that ``stats`` describes, with fields atom, charge and bond.

    Positions are diffused in units of the standard deviation of the data's coordinates.

    Args:
        stats: elements, charges, sizes, class frequencies and spread of the training data.
        sizes: sizes of the network, see :class:`~discrete_grpo.models.equivariant.EquivariantSizes`; None means the defaults.
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
    diffusion = GaussianDiffusion(CosineSchedule(exponent=space), options.min_std)
    policy = FieldPolicy(
        equivariant_network(fields[:2], fields[2:], sizes, positions=True, seed=seed),
        fields[:2],
        fields[2:],
        stats.node_counts,
        positions=Positions(diffusion, weight, options.learned_variance),
        num_steps=options.num_steps,
        decode=partial(decode, stats=stats),
        encode=partial(encode, stats=stats),
    )
    return attach_metadata(policy, {"kind": "spatial", "statistics": stats.to_json()})


# -- pretraining


@known_options()
@dataclass(frozen=True)
class PretrainSpatialRecipe(SpatialOptions):
    """Likelihood training of a diffusion policy of molecules in space: atoms, charges, bonds and positions.

    Attributes:
        data: molecules with positions (.sdf, .xyz), or without, for which conformers are made: a SMILES file (.smi, .txt, .csv,
            .tsv), ``enumerated`` for the bundled set, or the name of a download (``qm9``, ``zinc250k``); files optionally .gz.
        output_dir: run folder to make.
        max_molecules: number of molecules of ``data`` that are taken, drawn at random by ``conformer_seed``; None takes all.
        hydrogens: whether hydrogens are atoms; stability needs them.
        aromatic: whether aromatic bonds are a class of their own; otherwise rings are kekulised.
        conformer_seed: of the conformers, and of what is taken and held out.
        jobs: number of processes that make conformers.
        cache_dir: folder where the conformers are kept for the next run.
        test_share: share of the molecules that is not trained on; it is written to ``test.sdf`` of the run folder, and its loss,
            ``eval/test_loss``, is logged at every checkpoint with the same times and noise.
        network: sizes of the equivariant transformer.
        pretrain: settings of the training loop.
        max_broken: largest share of ``data`` that may be no molecule or have no conformer.
        smiles_column: name of the column of SMILES in ``data``; None finds it by its name.
        max_bytes: largest size that a gzipped file may unpack to.
        evaluation_samples: molecules sampled at every checkpoint to log stability and validity; 0 means none.
        data_name: name kept with the checkpoint; None means that of ``data``.
        data_licence: licence kept with the checkpoint.
    """

    data: str = "qm9"
    output_dir: str = "runs/pretrain-spatial"
    max_molecules: int | None = None
    hydrogens: bool = True
    aromatic: bool = False
    conformer_seed: int = 0
    jobs: int = 1
    cache_dir: str | None = None
    test_share: float = 0.05
    network: EquivariantSizes = field(default_factory=EquivariantSizes)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    max_broken: float = 0.05
    smiles_column: str | None = None
    max_bytes: int = MAX_BYTES
    evaluation_samples: int = 64
    data_name: str | None = None
    data_licence: str = "unknown"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text("data", self.data, "the name of a set, or of a file of molecules")
        check_fields(self, "evaluation_samples", least=0)
        check_fields(self, "conformer_seed", least=0, most=2**31 - 2)
        check_fields(self, "test_share", above=0, below=1)
        check_fields(self, "jobs max_bytes", least=1)
        check_fields(self, "max_molecules", least=2)
        if self.aromatic and not self.hydrogens:
            raise ValueError("aromatic: True, expected False where hydrogens is False")


def run_pretrain_spatial(recipe: PretrainSpatialRecipe, *, resume: bool = False) -> Path:
    """Pretrain a policy of molecules in space; returns the folder of the exported policy.

    Args:
        recipe: the settings.
        resume: whether to continue a stopped run.
    """
    held_out, train, name = split_molecules(recipe)
    stats = spatial_statistics(train, recipe.data_name or name)
    policy = spatial_policy(stats, recipe.network, recipe, seed=recipe.pretrain.seed)
    metadata = {
        "kind": "spatial",
        "statistics": stats.to_json(),
        "data": {"name": stats.name, "molecules": len(train), "licence": recipe.data_licence},
    }
    fresh = fresh_metrics(recipe.evaluation_samples, sample_metrics)
    test = spatial_graphs([one for one in held_out if fits(one, stats)], stats)
    evaluate = with_held_out(fresh, test, recipe.pretrain.batch_size, draws=NOISY_DRAWS)
    data, files = spatial_graphs(train, stats), {"test.sdf": to_sdf(held_out)}
    return fit(policy, data, recipe, metadata=metadata, evaluate=evaluate, files=files, resume=resume)


def split_molecules(recipe: PretrainSpatialRecipe) -> tuple[list[SpatialMolecule], list[SpatialMolecule], str]:
    """Split ``recipe.data``; return the held-out molecules, the training molecules, at least one each, and the name of the set.

    Conformers and copies of a held-out molecule, by its SMILES without stereo, are not trained on; the first of them is held out.
    They are split like others if the data has one molecule alone.

    Raises:
        FileNotFoundError, ValueError: if the data cannot be read, more of it than allowed is no molecule in space, or
            ``cache_dir`` cannot be made.
    """
    data = _molecules(recipe)
    names = [smiles_of(one) or one for one in data.molecules]
    rows: dict[Any, list[int]] = {}
    for k, name in enumerate(names):
        rows.setdefault(name, []).append(k)
    parts = list(rows.values()) if len(rows) > 1 else [[k] for k in range(len(data))]
    order = torch.randperm(len(parts), generator=torch.Generator().manual_seed(recipe.conformer_seed)).tolist()
    count = min(max(1, round(recipe.test_share * len(parts))), len(parts) - 1)
    trained = [data[row] for k in order[count:] for row in parts[k]]
    return [data[parts[k][0]] for k in order[:count]], trained, data.name


def _molecules(recipe: PretrainSpatialRecipe) -> SpatialDataset:
    """The molecules of ``recipe.data``, at most ``max_molecules``; broken ones are listed on standard error."""
    if recipe.cache_dir is not None:
        check_cache_dir(recipe.cache_dir)
    if suffix_of(Path(recipe.data)) in (".sdf", ".xyz"):
        path, unit = Path(recipe.data), "record"
        if recipe.smiles_column is not None:
            raise ValueError(f"smiles_column: {recipe.smiles_column!r}, expected none: {path.name} has no columns")
        with told_as("data", "path"):
            found = load_spatial(
                path,
                recipe.max_broken,
                hydrogens=recipe.hydrogens,
                aromatic=recipe.aromatic,
                max_bytes=recipe.max_bytes,
                cache=recipe.cache_dir,
            )
        if recipe.max_molecules is not None:
            found = replace(found, molecules=some_of(found.molecules, recipe.max_molecules, recipe.conformer_seed), sources=())
    else:
        path, unit = data_file(recipe.data), "molecule"
        smiles, name = _smiles(recipe, path)
        make = partial(
            conformers,
            smiles if recipe.max_molecules is None else some_of(smiles, recipe.max_molecules, recipe.conformer_seed),
            seed=recipe.conformer_seed,
            hydrogens=recipe.hydrogens,
            aromatic=recipe.aromatic,
            jobs=recipe.jobs,
            cache=recipe.cache_dir,
            name=name,
        )
        # of several processes the first makes what the others read from the cache
        found = make() if recipe.cache_dir is None else ProcessGroup(accelerator()).after_first(make)
        _check_conformers(recipe, found)
    report_broken(path, [(k + 1, reason) for k, reason in found.broken], len(found), "molecule in space", unit=unit)
    if len(found) < 2:
        raise ValueError(f"data: {recipe.data} has {len(found)} molecules in space, expected at least 2")
    if not any(one.bonds for one in found):
        raise ValueError(f"data: no molecule of {recipe.data} has a bond, expected at least one that has")
    _tell_doubtful(recipe, found.molecules)
    return found


def _tell_doubtful(recipe: PretrainSpatialRecipe, molecules: Sequence[SpatialMolecule]) -> None:
    """Print what speaks against the positions: bonds that are too short or long for Å, drawings in a plane, missing hydrogens."""
    if not is_first():
        return
    lengths = np.concatenate([bond_lengths(one).value for one in molecules])
    usual = float(np.median(lengths)) if len(lengths) else math.nan
    if usual < USUAL_BOND[0] or usual > USUAL_BOND[1]:
        print_notes([f"data: half of the bonds are longer than {usual:.3g} Å, expected about 1 to 1.5 Å; are the positions in Å?"])
    flat = sum(len(one) > 3 and not one.coordinates[:, 2].any() for one in molecules)
    if 2 * flat > len(molecules):
        print_notes([f"data: all z are 0 in {flat} of {len(molecules)} molecules, as in drawings, expected positions in space"])
    bare = sum(len(one) > 1 and "H" not in one.symbols for one in molecules)
    if recipe.hydrogens and 2 * bare > len(molecules):
        told = f"{bare} of {len(molecules)} molecules have no hydrogen atoms"
        print_notes([f"data: {told}; with hydrogens, expected them as atoms, or --hydrogens=false"])


def _check_conformers(recipe: PretrainSpatialRecipe, found: SpatialDataset) -> None:
    total = len(found) + len(found.broken)
    if len(found.broken) > recipe.max_broken * total:
        which = "; ".join(reason for _, reason in found.broken[:5])
        share = f"{len(found.broken) / total:.1%}, max_broken {recipe.max_broken:.1%}"
        raise ValueError(f"data: {recipe.data} has {len(found.broken)} of {total} molecules without a conformer ({share}): {which}")


def _smiles(recipe: PretrainSpatialRecipe, path: Path) -> tuple[Sequence[str], str]:
    """The SMILES of ``recipe.data``, and the name of the set."""
    if recipe.data == "enumerated":
        from discrete_grpo.datasets.enumeration import load_enumerated

        return load_enumerated().smiles, "enumerated"
    if path.is_file() and suffix_of(path) not in SUFFIXES:
        endings = ", ".join((".sdf", ".xyz", *SUFFIXES))
        raise ValueError(f"data: {str(path)!r}, expected a file ending in {endings}, or one of these with .gz")
    if path.is_file() and SPATIAL.holds(path, next(iter(text_lines(path, recipe.max_bytes, argument="data")), "")):
        wanted = "them in .sdf or .xyz, or SMILES alone, of which conformers are made"
        raise ValueError(f"data: {recipe.data} has positions, expected {wanted}")
    with told_as("data", "path"):
        read = read_smiles(path, recipe.max_broken, smiles_column=recipe.smiles_column, max_bytes=recipe.max_bytes)
    report_broken(path, read.broken, len(read.smiles))
    return read.smiles, path.name.split(".")[0]
