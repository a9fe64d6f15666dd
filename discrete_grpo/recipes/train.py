"""Recipes: the one place that joins networks, data, policies and rewards into runs.

Each command of the command line is one frozen dataclass of settings and one function here; both are the Python API too.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discrete_grpo.core.advantages import sum_rewards
from discrete_grpo.core.rollout import Reward
from discrete_grpo.core.scoring import BudgetExhausted, reward_names, score_samples
from discrete_grpo.datasets.downloads import DOWNLOADS, download
from discrete_grpo.datasets.molecules import MoleculeDataset, conditioned, load_molecules, statistics
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.diffusion.choices import Distortion, KernelName, NoiseName, ScheduleName, make_schedule
from discrete_grpo.metrics.molecules import sample_metrics
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.options import Likelihood, NodeCount, with_options, without_likelihood
from discrete_grpo.recipes.accounts import ReportTo, check_budget, open_ledger, open_trackers, reserved
from discrete_grpo.recipes.families import (
    MOLECULES,
    Family,
    SamplerOptions,
    family_of,
    load_trained,
    plain_columns,
    prepare_columns,
    read_columns,
    sample_file,
    sample_policy,
    shown,
)
from discrete_grpo.recipes.molecules import (
    NetworkSizes,
    bundled_policies,
    evaluate_file,
    find_checkpoint,
    load_molecule_policy,
    molecule_policy,
    report_broken,
    sample_molecules,
    scaffold_sites,
)
from discrete_grpo.recipes.text import check_rewards
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.runs.checkpoint import CheckpointError, Checkpoints, load_metadata, load_policy, save
from discrete_grpo.runs.console import print_table
from discrete_grpo.runs.recorder import EVALUATION, check_unused, read_evaluation, write_json, write_table, write_text
from discrete_grpo.runs.report.report import write_report
from discrete_grpo.training.config import GRPOConfig, PretrainConfig
from discrete_grpo.training.distributed import Processes, accelerator
from discrete_grpo.training.lora import LoraOptions, add_lora
from discrete_grpo.training.pretrain import Pretrainer
from discrete_grpo.training.trainer import GRPOTrainer

__all__ = [
    "NetworkSizes",
    "PretrainRecipe",
    "SamplerOptions",
    "TrainRecipe",
    "bundled_policies",
    "evaluate_file",
    "find_checkpoint",
    "load_molecule_policy",
    "load_trained",
    "molecule_policy",
    "run_pretrain",
    "run_train",
    "sample_file",
    "sample_molecules",
    "sample_policy",
    "scaffold_sites",
]

# -- pretraining


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
    noise: NoiseName = "marginal"
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
        schedule=make_schedule(recipe.schedule),
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


# -- fine-tuning


@dataclass(frozen=True)
class TrainRecipe:
    """GRPO fine-tuning of a policy of any family.

    Attributes:
        policy: a bundled policy's name, a checkpoint folder or a run folder.
        reward: one reward or several, by import path (a bare name is looked up in ``discrete_grpo.rewards``).
        output_dir: run folder to make.
        grpo: settings of the training loop.
        columns: conditions, a mapping a group, gone through in turn; or a file of JSON lines. Rewards see each as a
            keyword argument. None means no conditions.
        evaluation_columns: conditions of the samples drawn before and after; None means those of training.
        scaffold: SMILES every sample should contain: fixed atoms and bonds of a graph policy, the prompt of a SMILES
            policy; None leaves all free.
        num_steps: steps of a graph policy's sampler; None keeps the policy's.
        temperature: of the network's logits; None keeps the policy's.
        top_k, top_p: truncation of a token or text policy; None keeps the policy's.
        guidance: classifier-free guidance of a conditional graph policy; None keeps the policy's.
        kernel: the reverse step of a graph policy: d3pm, flow or flow_euler; None keeps the policy's.
        eta, omega: stochasticity and target guidance of kernel flow_euler; None keeps the policy's.
        sample_distortion: of a graph policy's grid; None keeps the policy's.
        shared_steps: first steps of a graph policy's sampler that a group takes together, and is not trained on.
        likelihood: of a graph policy: transition (exact, of the steps as drawn), or the surrogates eager and elbo.
        elbo_draws: states that likelihood elbo is estimated at.
        node_count: of a graph policy: prior (the histogram, drawn once a group), or learned or running, where the choice is a
            step of the policy.
        lora: low-rank adapters: the network is frozen and they are trained; the exported policy has them merged.
        evaluation_samples: samples drawn before and after to compare; 0 draws none.
        max_oracle_calls: how many different valid samples may be scored in all, evaluations included; the run ends when no
            more is left than the last evaluation needs. None: no end.
        reward_cache: SQLite file of scores that several runs may share; None: one in the run folder. What it knows is not
            computed again, and counts as a call all the same.
        report_to: copies of the metrics: ``tensorboard``, ``wandb``; each is an extra to install.
    """

    policy: str = "qm9-small"
    reward: Callable[..., Any] | list[Callable[..., Any]] = "discrete_grpo.rewards.molecules.qed"  # type: ignore[assignment]
    output_dir: str = "runs/train"
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    columns: str | list[dict[str, Any]] | None = None
    evaluation_columns: str | list[dict[str, Any]] | None = None
    scaffold: str | None = None
    num_steps: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    guidance: float | None = None
    kernel: KernelName | None = None
    eta: float | None = None
    omega: float | None = None
    sample_distortion: Distortion | None = None
    shared_steps: int | None = None
    likelihood: Likelihood = "transition"
    elbo_draws: int = 10
    node_count: NodeCount = "prior"
    lora: LoraOptions = field(default_factory=LoraOptions)
    evaluation_samples: int = 500
    max_oracle_calls: int | None = None
    reward_cache: str | None = None
    report_to: tuple[ReportTo, ...] = ()

    def __post_init__(self) -> None:
        if self.evaluation_samples < 0:
            raise ValueError(f"evaluation_samples: {self.evaluation_samples}, expected at least 0")
        check_budget(self.max_oracle_calls, self.evaluation_samples)
        if self.shared_steps and self.grpo.replay_samples > 0:
            raise ValueError(f"shared_steps: {self.shared_steps}, expected 0 with replay_samples: replayed rows share no steps")

    @property
    def rewards(self) -> list[Reward]:
        """The rewards as a list."""
        return list(self.reward) if isinstance(self.reward, list | tuple) else [self.reward]

    @property
    def sampler(self) -> SamplerOptions:
        """How the policy draws, where it differs from its checkpoint."""
        return SamplerOptions(**{f.name: getattr(self, f.name) for f in fields(SamplerOptions)})


def run_train(recipe: TrainRecipe, *, resume: bool = False) -> dict[str, dict[str, float]]:
    """Measure, train, measure again, export the policy and write the report; returns both measurements.

    Under ``torchrun`` every process calls this; the first one measures and writes.

    Args:
        recipe: the settings.
        resume: continue the run in ``output_dir``, from its start where it was stopped before its first checkpoint.

    Raises:
        ValueError: if ``output_dir`` holds results of another run and ``resume`` is false.
    """
    processes = Processes(accelerator())
    folder, source = Path(recipe.output_dir), _source(recipe, resume)
    processes.share(lambda: check_unused(folder) if processes.first and not resume else None)
    loaded, metadata = load_trained(source, recipe.sampler), load_metadata(source)
    policy = with_options(loaded, recipe.likelihood, recipe.node_count, recipe.elbo_draws)
    if recipe.lora.r:
        add_lora(policy, recipe.lora.r, recipe.lora.lora_alpha, recipe.lora.target_modules, seed=recipe.grpo.seed)
    family = family_of(metadata)
    if isinstance(policy, MaskedTextPolicy):
        check_rewards(policy, recipe.rewards)
    read = processes.share(
        lambda: [_kept_columns(recipe, name, resume) for name in ("columns", "evaluation_columns")] if processes.first else []
    )[0]
    columns = prepare_columns(policy, source, read[0], recipe.scaffold)
    held_out = columns if read[1] is None else prepare_columns(policy, source, read[1], recipe.scaffold)
    metadata |= {"policy": str(recipe.policy), "rewards": reward_names(recipe.rewards)}
    tracker = open_trackers(folder, recipe.report_to, {"grpo": asdict(recipe.grpo)}, molecules=family is MOLECULES)
    with open_ledger(
        folder, family.key, max_oracle_calls=recipe.max_oracle_calls, reward_cache=recipe.reward_cache, rank=processes.rank
    ) as ledger:
        trainer = GRPOTrainer(
            policy,
            recipe.rewards,
            recipe.grpo,
            columns=columns,
            run=folder,
            sample_metrics=family.sample_metrics,
            metadata=metadata,
            resume=resume and bool(Checkpoints(folder).all()),
            ledger=ledger,
            tracker=tracker if processes.first else None,
        )
        measure = partial(_measure, recipe, family, folder, held_out, ledger)
        # "before" is kept by a run that is resumed: it comes before any checkpoint
        _in_first(processes, ledger, lambda: measure(load_trained(source, recipe.sampler), "before"))
        with reserved(ledger, recipe.evaluation_samples):
            trainer.train()
        return _in_first(processes, ledger, lambda: _finish(recipe, family, trainer, metadata, measure))


def _in_first(processes: Processes, ledger: Ledger, work: Callable[[], dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Let the first process do something; all know the result and take its turns for theirs, and all fail if it does."""
    result, ledger.turn = processes.share(lambda: (work() if processes.first else {}, ledger.turn))[0]
    return result


def _finish(
    recipe: TrainRecipe,
    family: Family,
    trainer: GRPOTrainer,
    metadata: Mapping[str, Any],
    measure: Callable[[Any, str], dict[str, dict[str, float]]],
) -> dict[str, dict[str, float]]:
    """Export the policy, measure it and write the report."""
    folder, best = Path(recipe.output_dir), without_likelihood(trainer.best_policy)
    save(folder / "policy", best, metadata={**metadata, "grpo_steps": trainer.step})
    result = measure(best, "after")
    write_report(folder, draw=family.draw)
    if result:
        print_table(f"{folder}", result)
    return result


def _kept_columns(recipe: TrainRecipe, name: str, resume: bool) -> list[Mapping[str, Any]] | None:
    """The conditions of a run; those of a file are copied into the run folder, and a resumed run reads them there."""
    given = getattr(recipe, name)
    kept = Path(recipe.output_dir) / f"{name}.jsonl"
    if given is None or not isinstance(given, str):
        return None if given is None else read_columns(given)
    if resume and kept.is_file():
        return read_columns(str(kept))
    found = read_columns(given)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_text(kept, "".join(f"{json.dumps(condition)}\n" for condition in found))
    return found


def _source(recipe: TrainRecipe, resume: bool) -> Path:
    """Where to build the policy from: its checkpoint, or the run's own when resuming, which needs nothing but the run folder."""
    for path in reversed(Checkpoints(recipe.output_dir).all() if resume else []):
        try:
            load_policy(path)
        except CheckpointError:
            continue
        return path
    return find_checkpoint(recipe.policy)


def _measure(
    recipe: TrainRecipe,
    family: Family,
    folder: Path,
    columns: Sequence[Mapping[str, Any]] | None,
    ledger: Ledger,
    policy: Any,
    when: str,
) -> dict[str, dict[str, float]]:
    """Evaluate ``policy`` on fresh samples into ``evaluation.json``; what an earlier part of the run measured is kept."""
    path, stored = folder / EVALUATION, read_evaluation(folder)
    result = {part: {k: math.nan if v is None else v for k, v in row.items()} for part, row in stored.items()}
    if when == "before" and "before" in result and ledger.turn == 0:
        ledger.skip()  # it was measured, and the run stopped before its first checkpoint
    if recipe.evaluation_samples == 0 or (when == "before" and "before" in result):
        return result
    samples, found = sample_policy(policy, recipe.evaluation_samples, seed=recipe.grpo.seed + 1, columns=columns)
    names = reward_names(recipe.rewards)
    try:
        scores = score_samples(recipe.rewards, samples, found, ledger)
    except BudgetExhausted as spent:
        scores = spent.scores
    weights = recipe.grpo.reward_weights or (1.0,) * len(names)
    total = sum_rewards(scores, torch.tensor(weights, dtype=torch.float64))
    table: dict[str, Sequence[Any]] = {"sample": shown(samples), "reward": total.tolist()}
    row = {"reward": _mean_known(total)}
    if len(names) > 1:
        table |= {f"reward_{n}": scores[:, k].tolist() for k, n in enumerate(names)}
        row |= {f"reward_{n}": _mean_known(scores[:, k]) for k, n in enumerate(names)}
    write_table(folder / f"evaluation_{when}.csv.gz", {**plain_columns(found), **table, **family.table(samples)})
    result[when] = row | dict(family.evaluate(samples)) | {"oracle_calls": float(ledger.calls)}
    write_json(path, result)
    return result


def _mean_known(values: Tensor) -> float:
    """The mean; an unknown reward is left out, here as in training."""
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else math.nan
