"""Recipes: the one place that joins networks, data, policies and rewards into runs.

Each command of the command line is one frozen dataclass of settings and one function here; both are the Python API too.
"""

from __future__ import annotations

import csv
import datetime
import difflib
import gzip
import io
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from discrete_grpo import chemistry
from discrete_grpo.advantages import sum_rewards
from discrete_grpo.atomic import atomic_write
from discrete_grpo.checkpoint import CheckpointError, Checkpoints, load_metadata, load_policy, save
from discrete_grpo.config import GRPOConfig, PretrainConfig
from discrete_grpo.datasets.downloads import DOWNLOADS, download
from discrete_grpo.datasets.molecules import MoleculeDataset, MoleculeStatistics, load_molecules, read_smiles, statistics
from discrete_grpo.diffusion import kernels
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule, Schedule
from discrete_grpo.metrics.molecules import canonical, evaluate, sample_metrics
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.pretrain import Pretrainer
from discrete_grpo.reporting.console import print_table, progress
from discrete_grpo.reporting.draw import draw_smiles
from discrete_grpo.reporting.report import write_report
from discrete_grpo.reporting.run_folder import write_json, write_table
from discrete_grpo.rollout import Reward, group_contexts
from discrete_grpo.scoring import reward_names, score_samples
from discrete_grpo.trainer import GRPOTrainer

__all__ = [
    "NetworkSizes",
    "PretrainRecipe",
    "TrainRecipe",
    "bundled_policies",
    "evaluate_file",
    "find_checkpoint",
    "load_molecule_policy",
    "molecule_policy",
    "run_pretrain",
    "run_train",
    "sample_file",
    "sample_molecules",
    "scaffold_sites",
]

BUNDLED = Path(__file__).parent / "bundled"
PROPERTIES: Mapping[str, Callable[[Any], float]] = {
    "QED": chemistry.qed,
    "logP": chemistry.logp,
    "SA": chemistry.synthetic_accessibility,
    "weight": chemistry.molecular_weight,
}


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
    """

    layers: int = 6
    heads: int = 8
    width: int = 128
    edge_width: int = 48
    global_width: int = 64
    expansion: int = 2
    walk_length: int = 8
    dropout: float = 0.0


def molecule_policy(
    stats: MoleculeStatistics,
    network: NetworkSizes | None = None,
    *,
    noise: Literal["uniform", "marginal", "absorbing"] = "marginal",
    schedule: Schedule | None = None,
    num_steps: int = 50,
    seed: int = 42,
) -> GraphPolicy:
    """An untrained graph diffusion policy for molecules of the kind ``stats`` describes.

    Args:
        stats: vocabulary, sizes and marginals of the training data.
        network: sizes; None means the small setting.
        noise: what the diffusion noises towards.
        schedule: ᾱ(t); None means cosine.
        num_steps: steps of the sampler.
        seed: of the initial weights; the global random state is left as it was.
    """
    schedule = schedule or CosineSchedule()
    marginals = (stats.node_marginal, stats.edge_marginal)
    if noise == "marginal":
        node_kernel, edge_kernel = (kernels.marginal(m, schedule) for m in marginals)
    elif noise in ("uniform", "absorbing"):
        make = kernels.uniform if noise == "uniform" else kernels.absorbing
        node_kernel, edge_kernel = (make(len(m), schedule) for m in marginals)
    else:
        raise ValueError(f"noise: {noise!r}, expected uniform, marginal or absorbing")
    config = GraphTransformerConfig(
        node_states=node_kernel.num_states,
        edge_states=edge_kernel.num_states,
        node_classes=node_kernel.num_clean,
        edge_classes=edge_kernel.num_clean,
        **vars(network or NetworkSizes()),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = GraphTransformer(config)
    decode = partial(chemistry.decode, vocabulary=stats.vocabulary)
    return GraphPolicy(net, node_kernel, edge_kernel, stats.node_counts, num_steps=num_steps, decode=decode)


def bundled_policies() -> list[str]:
    """Names of the policies that come with the package."""
    return sorted(p.parent.name for p in BUNDLED.glob("*/config.json"))


def find_checkpoint(name: str | Path) -> Path:
    """The checkpoint folder meant by a bundled policy's name, a checkpoint folder or a run folder.

    Raises:
        CheckpointError: if there is none.
    """
    path = Path(name)
    for candidate in (path, path / "policy", BUNDLED / str(name)):
        if (candidate / "config.json").is_file():
            return candidate
    if (path / "checkpoints").is_dir():
        return Checkpoints(path).latest()
    known = bundled_policies()
    near = difflib.get_close_matches(str(name), known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else f" (bundled: {', '.join(known) or 'none'})"
    raise CheckpointError(f"policy: {str(name)!r} is no checkpoint folder, run folder or bundled policy{hint}")


def load_molecule_policy(name: str | Path, *, num_steps: int | None = None, temperature: float | None = None) -> GraphPolicy:
    """A graph policy over molecules from a checkpoint, decoding to SMILES.

    Args:
        name: a bundled policy's name, a checkpoint folder or a run folder.
        num_steps: steps of the sampler; None keeps the checkpoint's.
        temperature: of the network's logits; None keeps the checkpoint's.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged or not of molecules.
    """
    folder = find_checkpoint(name)
    policy = load_policy(folder)
    stats = _statistics(folder)
    types, classes = len(stats.vocabulary), policy.node_kernel.num_clean
    if types != classes:
        raise CheckpointError(f"checkpoint: {folder} has a vocabulary of {types} atom types, expected the policy's {classes}")
    policy.decode = partial(chemistry.decode, vocabulary=stats.vocabulary)
    if num_steps is None and temperature is None:
        return policy
    args = policy.init_args() | {"decode": policy.decode}
    args |= {k: v for k, v in (("num_steps", num_steps), ("temperature", temperature)) if v is not None}
    return GraphPolicy(**args).eval()


def _statistics(folder: Path) -> MoleculeStatistics:
    metadata = load_metadata(folder)
    if "statistics" not in metadata:
        raise CheckpointError(f"checkpoint: {folder} has no molecule statistics, expected a policy over molecules")
    try:
        return MoleculeStatistics.from_json(metadata["statistics"])
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint: {folder} has molecule statistics that cannot be read ({error})") from error


def scaffold_sites(smiles: str, vocabulary: chemistry.Vocabulary, max_nodes: int | None = None) -> FixedSites:
    """A scaffold as fixed sites: its atoms first, and every bond and non-bond between them.

    Raises:
        ValueError: if ``smiles`` is no molecule, has atoms outside the vocabulary, or more than ``max_nodes`` of them.
    """
    mol = chemistry.parse(smiles)
    if mol is None:
        raise ValueError(f"scaffold: {smiles!r}, expected a valid, connected SMILES")
    try:
        nodes, bonds = chemistry.molecule_to_classes(mol, vocabulary)
    except ValueError as error:
        raise ValueError(f"scaffold: {smiles!r}, {str(error).removeprefix('mol: ')}") from error
    if max_nodes is not None and len(nodes) > max_nodes:
        raise ValueError(f"scaffold: {smiles!r} has {len(nodes)} atoms, expected at most the policy's {max_nodes}")
    edges = {(i, j): 0 for j in range(len(nodes)) for i in range(j)}
    edges |= {(min(i, j), max(i, j)): c for i, j, c in bonds}
    return FixedSites(dict(enumerate(nodes)), edges)


# -- sampling and evaluation


def sample_molecules(
    policy: GraphPolicy, count: int, *, seed: int = 0, batch_size: int = 256, columns: Mapping[str, Any] | None = None
) -> list[str | None]:
    """``count`` molecules as SMILES (None where the graph is no valid molecule), each of a size of its own.

    Raises:
        ValueError: if ``count`` is less than 1.
    """
    if count < 1:
        raise ValueError(f"n: {count}, expected at least 1")
    generator = torch.Generator(policy.device).manual_seed(seed)
    samples: list[str | None] = []
    with progress("sampling", count) as bar:
        while len(samples) < count:
            size = min(batch_size, count - len(samples))
            contexts = group_contexts(size, 1, None if columns is None else [columns] * size)
            samples.extend(policy.sample(contexts, generator=generator).samples)
            bar.advance(size)
    return samples


def _property_columns(samples: Sequence[str | None]) -> dict[str, list[float | None]]:
    molecules = [chemistry.parse(s) for s in samples]
    return {name: [None if m is None else f(m) for m in molecules] for name, f in PROPERTIES.items()}


def sample_file(
    checkpoint: str, n: int, out: str, *, seed: int = 0, scaffold: str | None = None, num_steps: int | None = None
) -> Path:
    """Sample ``n`` molecules into ``out``: ``.csv`` or ``.csv.gz`` with properties, else the valid SMILES, one a line."""
    policy = load_molecule_policy(checkpoint, num_steps=num_steps)
    columns = None
    if scaffold is not None:
        columns = {"fixed": scaffold_sites(scaffold, _statistics(find_checkpoint(checkpoint)).vocabulary, policy.max_nodes)}
    path = _output(out)
    samples = sample_molecules(policy, n, seed=seed, columns=columns)
    _write_samples(path, samples)
    print_table(f"{n} samples of {checkpoint}", {str(path): dict(evaluate(samples))})
    return path


def _output(out: str) -> Path:
    """``out`` as a path that can be written, found out before the work and not after it."""
    path = Path(out)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"out: folder {path.parent} does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"out: {path} is a folder, expected a file")
    return path


def _write_samples(path: Path, samples: Sequence[str | None]) -> None:
    kind = path.name.removesuffix(".gz")
    if kind.endswith(".csv"):
        buffer = io.StringIO()
        rows = csv.writer(buffer, lineterminator="\n")
        columns: dict[str, Sequence[Any]] = {"smiles": [s or "" for s in samples], **_property_columns(samples)}
        rows.writerows([columns, *zip(*columns.values(), strict=True)])
        text = buffer.getvalue()
    else:
        text = "".join(f"{s}\n" for s in samples if s is not None)
    with atomic_write(path) as file:
        file.write(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def evaluate_file(file: str, *, reference: str | None = None, out: str | None = None) -> dict[str, float]:
    """Validity, uniqueness, novelty against ``reference``, diversity and property means of a file of SMILES.

    Lines that are no molecules count as invalid samples and are listed on standard error; the table is printed and, with
    ``out``, written as JSON.
    """
    path = None if out is None else _output(out)
    found = read_smiles(file, max_broken=1.0)
    _report_broken(file, found.broken, len(found.smiles))
    samples: list[str | None] = [*found.smiles, *(None for _ in found.broken)]
    known = None
    if reference is not None:
        stored = read_smiles(reference)
        _report_broken(reference, stored.broken, len(stored.smiles))
        known = {s for s in map(canonical, stored.smiles) if s is not None}
    result = evaluate(samples, known)
    print_table(f"{file}: {len(samples)} samples", {k: {"value": v} for k, v in result.items()})
    if path is not None:
        write_json(path, {"file": file, "reference": reference, "samples": len(samples)} | result)
    return result


def _report_broken(file: str | Path, broken: Sequence[tuple[int, str]], good: int, shown: int = 5) -> None:
    """Count and list on standard error the lines of a file that are no molecule; silent if there are none."""
    if not broken:
        return
    listed = "; ".join(f"line {number}: {text[:60]!r}" for number, text in broken[:shown])
    more = f"; and {len(broken) - shown} more" if len(broken) > shown else ""
    print(f"{file}: {len(broken)} of {good + len(broken)} lines are no molecule: {listed}{more}", file=sys.stderr)


# -- pretraining


@dataclass(frozen=True)
class PretrainRecipe:
    """Likelihood training of a graph diffusion policy on a file of molecules.

    Attributes:
        data: path of a SMILES file (.smi, .txt, .csv, each optionally .gz), ``enumerated`` for the bundled set, or the
            name of a download (``qm9``, ``zinc250k``).
        output_dir: run folder to make.
        noise: what the diffusion noises towards: uniform, marginal or absorbing.
        schedule: cosine or linear.
        num_steps: steps of the sampler kept with the policy.
        network: sizes of the graph transformer.
        pretrain: settings of the training loop.
        max_broken: largest share of lines of ``data`` that may be no molecule.
        max_atoms: leave out larger molecules.
        cache_dir: folder where the parsed data is kept for the next time.
        evaluation_samples: molecules drawn with every checkpoint to log validity; 0 draws none.
        data_name: written into the checkpoint.
        data_licence: written into the checkpoint.
    """

    data: str = "enumerated"
    output_dir: str = "runs/pretrain"
    noise: Literal["uniform", "marginal", "absorbing"] = "marginal"
    schedule: Literal["cosine", "linear"] = "cosine"
    num_steps: int = 50
    network: NetworkSizes = field(default_factory=NetworkSizes)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    max_broken: float = 0.05
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
    data = load_molecules(path, recipe.max_broken, max_atoms=recipe.max_atoms, cache_dir=recipe.cache_dir)
    _report_broken(path, data.broken, len(data))
    return data


def run_pretrain(recipe: PretrainRecipe, *, resume: bool = False) -> Path:
    """Train, log and export; returns the folder of the exported policy."""
    data = _dataset(recipe)
    stats = statistics(data)
    schedule = CosineSchedule() if recipe.schedule == "cosine" else LinearSchedule()
    seed = recipe.pretrain.seed
    policy = molecule_policy(stats, recipe.network, noise=recipe.noise, schedule=schedule, num_steps=recipe.num_steps, seed=seed)
    metadata = {
        "statistics": stats.to_json(),
        "data": {"name": recipe.data_name or data.name, "molecules": len(data), "licence": recipe.data_licence},
        "date": datetime.date.today().isoformat(),
    }

    def measure(averaged: GraphPolicy) -> Mapping[str, float]:
        return sample_metrics(sample_molecules(averaged, recipe.evaluation_samples))

    trainer = Pretrainer(
        policy,
        data,
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
    """GRPO fine-tuning of a molecule policy.

    Attributes:
        policy: a bundled policy's name, a checkpoint folder or a run folder.
        reward: one reward or several, by import path (a bare name is looked up in ``discrete_grpo.rewards``).
        output_dir: run folder to make.
        grpo: settings of the training loop.
        num_steps: steps of the sampler; None keeps the policy's.
        temperature: of the network's logits; None keeps the policy's.
        scaffold: SMILES every sample must contain, as fixed atoms and bonds; None leaves all free.
        evaluation_samples: molecules drawn before and after to compare; 0 draws none.
    """

    policy: str = "qm9-small"
    reward: Callable[..., Any] | list[Callable[..., Any]] = "discrete_grpo.rewards.molecules.qed"  # type: ignore[assignment]
    output_dir: str = "runs/train"
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    num_steps: int | None = None
    temperature: float | None = None
    scaffold: str | None = None
    evaluation_samples: int = 500

    def __post_init__(self) -> None:
        if self.evaluation_samples < 0:
            raise ValueError(f"evaluation_samples: {self.evaluation_samples}, expected at least 0")

    @property
    def rewards(self) -> list[Reward]:
        """The rewards as a list."""
        return list(self.reward) if isinstance(self.reward, list | tuple) else [self.reward]


def run_train(recipe: TrainRecipe, *, resume: bool = False) -> dict[str, dict[str, float]]:
    """Measure, train, measure again, export the policy and write the report; returns both measurements."""
    folder = Path(recipe.output_dir)
    source = _source(recipe, resume)
    policy = load_molecule_policy(source, num_steps=recipe.num_steps, temperature=recipe.temperature)
    columns: list[Mapping[str, Any]] | None = None
    if recipe.scaffold is not None:
        columns = [{"fixed": scaffold_sites(recipe.scaffold, _statistics(source).vocabulary, policy.max_nodes)}]
    metadata = load_metadata(source) | {"policy": str(recipe.policy), "rewards": reward_names(recipe.rewards)}
    trainer = GRPOTrainer(
        policy,
        recipe.rewards,
        recipe.grpo,
        columns=columns,
        run=folder,
        sample_metrics=sample_metrics,
        metadata=metadata,
        resume=resume,
    )
    before = load_molecule_policy(source, num_steps=recipe.num_steps, temperature=recipe.temperature)
    _measure(recipe, before, folder, "before", columns)  # kept by a run that is resumed: it comes before any checkpoint
    trainer.train()
    save(folder / "policy", trainer.best_policy, metadata=metadata | {"grpo_steps": trainer.step})
    result = _measure(recipe, trainer.best_policy, folder, "after", columns)
    write_report(folder, draw=draw_smiles)
    print_table(f"{folder}", result)
    return result


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
    recipe: TrainRecipe, policy: GraphPolicy, folder: Path, when: str, columns: Sequence[Mapping[str, Any]] | None
) -> dict[str, dict[str, float]]:
    """Evaluate ``policy`` on fresh samples into ``evaluation.json``; what an earlier part of the run measured is kept."""
    path = folder / "evaluation.json"
    stored = json.loads(path.read_text()) if path.is_file() else {}
    result = {part: {k: math.nan if v is None else v for k, v in row.items()} for part, row in stored.items()}
    if recipe.evaluation_samples == 0 or (when == "before" and "before" in result):
        return result
    given = None if columns is None else columns[0]
    samples = sample_molecules(policy, recipe.evaluation_samples, seed=recipe.grpo.seed + 1, columns=given)
    names = reward_names(recipe.rewards)
    extra = {} if given is None else {k: [v] * len(samples) for k, v in given.items()}
    scores = score_samples(recipe.rewards, samples, extra)
    weights = recipe.grpo.reward_weights or (1.0,) * len(names)
    total = sum_rewards(scores, torch.tensor(weights, dtype=torch.float64))
    known = total[~total.isnan()]  # an unknown reward is left out, here as in training
    table: dict[str, Sequence[Any]] = {"sample": [s or "" for s in samples], "reward": total.tolist()}
    if len(names) > 1:
        table |= {f"reward_{n}": scores[:, k].tolist() for k, n in enumerate(names)}
    write_table(folder / f"evaluation_{when}.csv.gz", {**table, **_property_columns(samples)})
    result[when] = {"reward": float(known.mean()) if len(known) else math.nan, **evaluate(samples)}
    write_json(path, result)
    return result
