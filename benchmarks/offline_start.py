"""Calls to reach a level of mean reward, with and without a start on scores that somebody else measured.

    python -m benchmarks.offline_start                                   # -> results/offline_start.json, about 20 minutes
    python -m benchmarks.offline_start --rows 32 --offline_steps 2 --updates 2 --batch 8 --num_steps 4 --seeds 0 --out tiny.json

The table is a random part of the bundled list of all molecules of C, N, O and F, those with ``num_nodes`` atoms, scored by the
task; these scores are given and cost no call. Then
the same on-line run of molecules of that size, once from the policy as it is and once after the off-line updates.
A call is a different valid molecule that the ledger counts, also if it is in the table. The mean reward of an update is smoothed
over the updates up to it.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.datasets.enumeration import enumerated_smiles
from discrete_grpo.policies.options import Likelihood
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.recipes.offline import offline_likelihood
from discrete_grpo.rewards.enumerated_tasks import TASKS
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.runs.console import print_table
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.offline import OfflineTrainer, ScoredSamples
from discrete_grpo.training.trainer import GRPOTrainer

SOURCES = ("discrete_grpo/training/offline.py", "discrete_grpo/recipes/offline.py", "discrete_grpo/training/update.py")
WINDOW = 3
"""Number of updates whose mean reward is averaged before it is compared with a level."""


@dataclass(frozen=True)
class Settings:
    """Settings that all runs of a result share.

    Attributes:
        task: task of ``enumerated``.
        policy: policy that both runs start from.
        num_nodes: number of atoms of all molecules, at most 7.
        rows: samples of the table.
        offline_steps: updates on the table.
        likelihood: of these updates.
        epsilon: range of their ratios.
        updates: of the on-line run.
        batch: samples per update, in both phases.
        group: samples compared with each other on-line.
        num_steps: of the sampler.
        learning_rate: of AdamW, in both phases.
        beta: of the exact KL, in both phases.
    """

    task: str = "enumerated_qed"
    policy: str = "qm9-small"
    num_nodes: int = 7
    rows: int = 1000
    offline_steps: int = 100
    likelihood: Likelihood = "eager"
    epsilon: float = 0.2
    updates: int = 60
    batch: int = 64
    group: int = 16
    num_steps: int = 10
    learning_rate: float = 3e-4
    beta: float = 0.02


def table_of(settings: Settings, seed: int) -> ScoredSamples:
    """Different molecules of the list of one size, drawn with equal odds, with their scores."""
    listed = [smiles for smiles in enumerated_smiles() if sum(letter in "CNOFcno" for letter in smiles) == settings.num_nodes]
    chosen = random.Random(seed).sample(listed, min(settings.rows, len(listed)))
    scores = [score or 0.0 for score in TASKS[settings.task](chosen)]
    return ScoredSamples(chosen, torch.tensor(scores, dtype=torch.float64))


def config_of(settings: Settings, seed: int) -> GRPOConfig:
    """Settings of both phases."""
    return GRPOConfig(
        max_steps=settings.updates,
        num_generations=min(settings.group, settings.batch),
        generation_batch_size=settings.batch,
        per_device_batch_size=settings.batch,
        timestep_fraction=0.5,
        learning_rate=settings.learning_rate,
        epsilon=settings.epsilon,
        beta=settings.beta,
        seed=seed,
    )


def run(settings: Settings, start: str, seed: int) -> dict[str, Any]:
    """One run: the calls and the mean reward of every on-line update; ``start`` is ``none`` or ``table``."""
    policy = load_policy(settings.policy, SamplerOptions(num_steps=settings.num_steps))
    config, begun, found = config_of(settings, seed), time.perf_counter(), dict[str, Any]()
    if start == "table":
        data = table_of(settings, seed)
        data = kept(data, [k for k, sample in enumerate(data.samples) if policy.can_draw(sample)])
        learner = offline_likelihood(policy, settings.likelihood)
        history = OfflineTrainer(learner, data, config, steps=settings.offline_steps).train()
        found = {"rows": len(data), "offline_seconds": time.perf_counter() - begun}
        found |= {name: history[-1][f"{name}"] for name in ("offline/ratio", "kl")}
    ledger = Ledger(key=molecule_key)
    lines = GRPOTrainer(policy, TASKS[settings.task], config, ledger=ledger, columns=[{"num_nodes": settings.num_nodes}]).train()
    calls, reward = ([line[name] for line in lines] for name in ("oracle/calls", "reward"))
    return {**found, "calls": calls, "reward": reward, "seconds": time.perf_counter() - begun}


def kept(data: ScoredSamples, rows: Sequence[int]) -> ScoredSamples:
    """The samples at ``rows``."""
    return ScoredSamples([data.samples[k] for k in rows], data.scores[list(rows)])


def calls_to_reach(level: float, calls: Sequence[float], reward: Sequence[float], width: int = WINDOW) -> float | None:
    """Calls after the first update whose reward, averaged over ``width`` updates up to it, is at least ``level``; None if none is.

    >>> calls_to_reach(0.5, [10, 20, 30], [0.2, 0.6, 0.7], width=2), calls_to_reach(0.9, [10], [0.2])
    (30, None)
    """
    for k, count in enumerate(calls):
        if statistics.fmean(reward[max(0, k + 1 - width) : k + 1]) >= level:
            return count
    return None


def levels_of(rows: Sequence[Mapping[str, Any]], given: Sequence[float] | None) -> list[float]:
    """The levels: those given, or a half, three quarters and all of the way of runs without a table, by their mean."""
    if given:
        return list(given)
    plain = [row["reward"] for row in rows if row["start"] == "none"] or [row["reward"] for row in rows]
    low, high = (statistics.fmean(statistics.fmean(part) for part in parts) for parts in zip(*map(_ends, plain), strict=True))
    return [round(low + share * (high - low), 4) for share in (0.5, 0.75, 1.0)]


def _ends(reward: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    return reward[:WINDOW], reward[-WINDOW:]


def table(rows: Sequence[Mapping[str, Any]], levels: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Per start: the reward of the first and last update, and calls to each level, seed by seed where they are reached."""
    found = {}
    for start in dict.fromkeys(row["start"] for row in rows):
        runs = [row for row in rows if row["start"] == start]
        line: dict[str, Any] = {"first_reward": statistics.fmean(row["reward"][0] for row in runs)}
        line["last_reward"] = statistics.fmean(row["reward"][-1] for row in runs)
        for level in levels:
            reached = [calls_to_reach(level, row["calls"], row["reward"]) for row in runs]
            line[f"calls to {level:g}"] = ", ".join("never" if x is None else f"{x:g}" for x in reached)
        found[f"start: {start}"] = line
    return found


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run, print and write; the file is written after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    for name, default in asdict(Settings()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--levels", type=float, nargs="+", help="levels of mean reward; by default of the way of the plain runs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/offline_start.json")
    given = parser.parse_args(argv)
    if given.task not in TASKS:
        parser.error(f"--task: {given.task!r}, expected one of {', '.join(TASKS)}")
    torch.set_num_threads(1)
    settings = Settings(**{name: getattr(given, name) for name in asdict(Settings())})
    result = stamp(given.seeds[0], sources=SOURCES) | {"settings": asdict(settings), "seeds": given.seeds}
    rows: list[dict[str, Any]] = []
    for seed, start in itertools.product(given.seeds, ("none", "table")):
        rows.append({"start": start, "seed": seed, **run(settings, start, seed)})
        print(f"seed {seed}, start {start}: {rows[-1]['reward'][0]:.3f} -> {rows[-1]['reward'][-1]:.3f}", flush=True)
        levels = levels_of(rows, given.levels)
        result |= {"levels": levels, "table": table(rows, levels), "rows": rows}
        write_result(given.out, result)
    print_table(f"{settings.task}: calls to a level of mean reward", result["table"])
    return result


if __name__ == "__main__":
    main()
