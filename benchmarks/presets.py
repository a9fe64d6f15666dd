"""Run presets of ``discrete-grpo train`` as they stand, one after the other, and write the table of the README.

    python -m benchmarks.presets                         # all but demo, each some minutes on one CPU thread
    python -m benchmarks.presets --presets smiles-qed
    python -m benchmarks.presets --presets demo --seeds 42 0 1 --threads 2 --out benchmarks/results/demo.json   # the demo
    python -m benchmarks.presets --presets zinc-graph-qed --seeds 42 0 1 --control 42 --out benchmarks/results/zinc_graph_qed.json

Every run is a process of its own; time is the wall clock's from start to report. The file is written after every run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.datasets.text import is_sentence
from discrete_grpo.rewards.judge import Judge
from discrete_grpo.runs.console import print_table
from discrete_grpo.runs.recorder import read_metrics, read_samples

NOISE = "benchmarks.graph_sequences.noise"
"""A reward that is random: the control."""
PRESETS = ("smiles-qed", "smiles-scaffold-logp", "fill-in", "digits")
SOURCES = (
    "models/graph_transformer.py",
    "models/pairs.py",
    "models/gpt.py",
    "models/encoder.py",
    "discrete_grpo/training/sampler.py",
    "discrete_grpo/training/update.py",
    "benchmarks/presets.py",
    "benchmarks/graph_sequences.py",
)


def run(
    preset: str, folder: Path, seed: int | None = None, threads: int = 1, root: Path = ROOT, reward: str | None = None
) -> dict[str, Any]:
    """One preset: both measurements, what its conditions came to, seconds, and samples of one condition before and after.

    Args:
        preset: of ``discrete-grpo train``.
        folder: run folder to make.
        seed: of the run; None is the preset's own.
        threads: of the run.
        root: checkout whose code runs.
        reward: in the place of that of the preset.
    """
    command = [sys.executable, "-m", "discrete_grpo.cli", "train", preset, f"--output_dir={folder}"]
    command += [] if seed is None else [f"--grpo.seed={seed}"]
    command += [] if reward is None else [f"--reward={reward}", "--grpo.reward_weights=null"]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(root)}
    start, used = time.perf_counter(), processor_seconds()
    subprocess.run(command, check=True, env=environment, cwd=root, stdout=subprocess.DEVNULL)
    seconds, used = time.perf_counter() - start, processor_seconds() - used
    tables = {place: read_samples(folder / f"evaluation_{place}.csv.gz") for place in ("before", "after")}
    times = [taken for line in read_metrics(folder) if (taken := line.get("step_time")) is not None]
    return {
        "preset": preset,
        "seed": seed,
        "reward": reward or "of the preset",
        "threads": threads,
        "seconds": seconds,
        "processor_seconds": used,
        "seconds_per_update": statistics.median(times),
        "evaluation": json.loads((folder / "evaluation.json").read_text()),
        "logp_error": {place: logp_error(table) for place, table in tables.items()},
        "fills": fills(tables),
        "examples": [example(tables, k) for k in range(8)],
    }


def processor_seconds() -> float:
    """Processor time of all processes that this one started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def logp_error(table: dict[str, list[str]]) -> dict[str, float] | None:
    """Mean |logP - target| of the valid samples and the share of them that holds the scaffold; None without a target."""
    if "MolLogP" not in table:
        return None
    rows = [k for k, value in enumerate(table["logP"]) if value]
    errors = [abs(float(table["logP"][k]) - float(table["MolLogP"][k])) for k in rows]
    kept = [float(table["reward_keeps_scaffold"][k]) for k in rows]
    return {"mean_abs_error": sum(errors) / len(rows), "keeps_scaffold_of_valid": sum(kept) / len(rows)}


def fills(tables: dict[str, dict[str, list[str]]]) -> dict[str, float] | None:
    """The judge's mean score of the original lines and the share of the distance to it that training covered.

    Also the share of fills that are sentences of the grammar, which no reward sees. None without originals.
    """
    if "original" not in tables["before"]:
        return None
    real = Judge()(tables["before"]["original"])
    score = {place: [float(r) for r in table["reward"]] for place, table in tables.items()}
    before, after, goal = (sum(s) / len(s) for s in (score["before"], score["after"], real))
    right = {place: sum(map(is_sentence, table["sample"])) / len(table["sample"]) for place, table in tables.items()}
    found = {"real_text": goal, "share_of_distance": (after - before) / (goal - before)}
    return found | {f"sentences_{place}": share for place, share in right.items()}


def example(tables: dict[str, dict[str, list[str]]], k: int) -> dict[str, Any]:
    """Row k of both evaluations: the conditions, and the sample and reward before and after."""
    before = tables["before"]
    asked = {name: before[name][k] for name in list(before)[: list(before).index("sample")]}
    return asked | {place: [table["sample"][k], table["reward"][k]] for place, table in tables.items()}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[None], help="default: the presets' own")
    parser.add_argument("--control", nargs="*", type=int, default=[], help="seeds of further runs on random rewards")
    parser.add_argument("--threads", type=int, default=1, help="of each run")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/presets.json")
    given = parser.parse_args(argv)
    result = stamp(42, sources=[*SOURCES, *(f"discrete_grpo/cli/presets/{preset}.yaml" for preset in given.presets)])
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        jobs = [*((seed, None) for seed in given.seeds), *((seed, NOISE) for seed in given.control)]
        for preset, (seed, reward) in itertools.product(given.presets, jobs):
            place = Path(folder) / f"{preset}-{seed}-{len(rows)}"
            rows.append(run(preset, place, seed, given.threads, reward=reward))
            told = f"{preset}, seed {'of the preset' if seed is None else seed}{'' if reward is None else ', random rewards'}"
            print_table(f"{told}, {rows[-1]['seconds']:.0f} s", rows[-1]["evaluation"])
            write_result(given.out, result | {"rows": rows})
    return result | {"rows": rows}


if __name__ == "__main__":
    main()
