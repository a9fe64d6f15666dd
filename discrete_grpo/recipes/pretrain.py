"""Pretraining of graph policies over molecules by likelihood."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from discrete_grpo.datasets.downloads import DOWNLOADS, download
from discrete_grpo.datasets.molecules import MoleculeDataset, conditioned, load_molecules, statistics
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.diffusion.choices import Distortion, KernelName, Noise, ScheduleName, schedule
from discrete_grpo.metrics.molecules import sample_metrics
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.recipes.molecules import NetworkSizes, molecule_policy, report_broken, sample_molecules
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Pretrainer

__all__ = ["PretrainRecipe", "run_pretrain"]


@dataclass(frozen=True)
class PretrainRecipe:
    """Likelihood training of a graph diffusion policy on a file of molecules.

    Attributes:
        data: path of a SMILES file (.smi, .txt, .csv, .tsv, each optionally .gz), ``enumerated`` for the bundled set, or the
            name of a download (``qm9``, ``zinc250k``).
        output_dir: run folder to make.
        noise: what is noised towards: uniform, marginal or absorbing (masked diffusion).
        kernel: the reverse step kept with the policy: d3pm, flow or flow_euler; the network is the same.
        schedule: cosine, or linear (flow matching's path).
        train_distortion: of the times trained at: identity, cos, revcos, polyinc or polydec.
        sample_distortion: of the sampler's grid, likewise.
        eta: stochasticity of kernel flow_euler.
        omega: target guidance of kernel flow_euler.
        num_steps: steps of the sampler kept with the policy.
        precondition: add to the network's logits what a noisy atom or bond says of itself, so that it need not be learned.
        properties: RDKit descriptors the policy can be conditioned on.
        condition_dropout: share of training in which they are hidden, so that the policy also works without.
        network: sizes of the graph transformer.
        pretrain: settings of the training loop.
        max_broken: largest share of lines of ``data`` that may be no molecule.
        smiles_column: name of the column of SMILES in ``data``; None finds it by its name.
        max_bytes: largest size that a gzipped file may unpack to.
        max_atoms: leave out larger molecules.
        cache_dir: folder where the parsed data is kept for the next time.
        evaluation_samples: molecules drawn with every checkpoint to log validity; 0 draws none.
        data_name: written into the checkpoint.
        data_licence: written into the checkpoint.
    """

    data: str = "enumerated"
    output_dir: str = "runs/pretrain"
    noise: Noise = "marginal"
    kernel: KernelName = "d3pm"
    schedule: ScheduleName = "cosine"
    train_distortion: Distortion = "identity"
    sample_distortion: Distortion = "identity"
    eta: float = 0.0
    omega: float = 0.0
    num_steps: int = 50
    precondition: bool = False
    properties: tuple[str, ...] = ()
    condition_dropout: float = 0.1
    network: NetworkSizes = field(default_factory=NetworkSizes)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    max_broken: float = 0.05
    smiles_column: str | None = None
    max_bytes: int = MAX_BYTES
    max_atoms: int | None = None
    cache_dir: str | None = None
    evaluation_samples: int = 256
    data_name: str | None = None
    data_licence: str = "unknown"

    def __post_init__(self) -> None:
        if self.evaluation_samples < 0:
            raise ValueError(f"evaluation_samples: {self.evaluation_samples}, expected at least 0")


def _dataset(recipe: PretrainRecipe) -> MoleculeDataset:
    if recipe.data == "enumerated":
        from discrete_grpo.datasets.enumeration import load_enumerated

        return load_enumerated(7 if recipe.max_atoms is None else recipe.max_atoms)
    path = download(recipe.data) if recipe.data in DOWNLOADS and not Path(recipe.data).exists() else recipe.data
    data = load_molecules(
        path,
        recipe.max_broken,
        max_atoms=recipe.max_atoms,
        smiles_column=recipe.smiles_column,
        max_bytes=recipe.max_bytes,
        cache_dir=recipe.cache_dir,
    )
    report_broken(path, data.broken, len(data))
    return data


def run_pretrain(recipe: PretrainRecipe, *, resume: bool = False) -> Path:
    """Train, log and export; returns the folder of the exported policy."""
    data = _dataset(recipe)
    stats = statistics(data)
    given = conditioned(data, recipe.properties) if recipe.properties else None
    policy = molecule_policy(
        stats,
        recipe.network,
        noise=recipe.noise,
        kernel=recipe.kernel,
        schedule=schedule(recipe.schedule),
        num_steps=recipe.num_steps,
        precondition=recipe.precondition,
        train_distortion=recipe.train_distortion,
        sample_distortion=recipe.sample_distortion,
        eta=recipe.eta,
        omega=recipe.omega,
        properties=given.properties if given else (),
        condition_dropout=recipe.condition_dropout,
        seed=recipe.pretrain.seed,
    )
    metadata = {
        "statistics": stats.to_json(),
        "data": {"name": recipe.data_name or data.name, "molecules": len(data), "licence": recipe.data_licence},
        "date": datetime.date.today().isoformat(),
    }

    def measure(averaged: GraphPolicy) -> Mapping[str, float]:
        return sample_metrics(sample_molecules(averaged, recipe.evaluation_samples))

    trainer = Pretrainer(
        policy,
        given or data,
        recipe.pretrain,
        recipe.output_dir,
        metadata=metadata,
        resume=resume,
        evaluate=measure if recipe.evaluation_samples else None,
    )
    return trainer.train()
