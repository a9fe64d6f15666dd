"""Autoregressive policies of stochastic block models: V.U.N. and ratio before and after GRPO, beside updates on random rewards.

    discrete-grpo pretrain-graph-sequences sbm-sequences --data=sbm.npz --shape=sbm --affinities=0 --output_dir=runs/sbm-plain
    discrete-grpo pretrain-graph-sequences sbm-sequences --data=sbm.npz --shape=sbm                 # -> runs/sbm-sequences
    python -m benchmarks.block_models --policies runs/sbm-plain runs/sbm-sequences --data sbm.npz   # -> results/block_models.json

Every policy is measured with 5 folds of 40 samples as ``benchmarks.vun`` does, and GRPO (the preset ``sbm-sequences-grpo``) starts
from the last one, ``--jobs`` runs at a time, each with one thread. The file is written after every row.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import ROOT, stamp, write_result
from benchmarks.graph_sequences import SEQUENCES, of_another_set, tuned
from benchmarks.vun import measure, shown
from discrete_grpo.runs.console import print_table

PRESET = "sbm-sequences-grpo"
NOISE = "benchmarks.graph_sequences.noise"
SOURCES = (
    *SEQUENCES,
    "models/feature_logits.py",
    "discrete_grpo/domains/graph_affinity.py",
    "discrete_grpo/domains/graph_sequence_states.py",
    f"discrete_grpo/cli/presets/{PRESET}.yaml",
    "benchmarks/block_models.py",
)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--policies", nargs="+", required=True, help="folders of pretrained policies; GRPO starts from the last")
    parser.add_argument("--data", required=True, help="set that they were trained on: a name or an npz file")
    parser.add_argument("--seeds", nargs="*", type=int, default=[42, 0, 1])
    parser.add_argument("--control", nargs="*", type=int, default=[42, 0, 1], help="seeds of the runs on random rewards")
    parser.add_argument("--jobs", type=int, default=1, help="runs of GRPO at a time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples that are measured")
    parser.add_argument("--out", default="block_models.json", help="file name under benchmarks/results")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    head, rows = stamp(given.seed, sources=SOURCES), dict[str, Any]()

    def keep(name: str, policy: str | Path, **more: Any) -> None:
        rows[name] = measure(policy, given.data, given.seed) | more
        write_result(ROOT / "benchmarks/results" / given.out, head | {"rows": rows})
        print_table("folds of 40 samples, mean ± deviation", {key: shown(value) for key, value in rows.items()})

    for policy in given.policies:
        keep(policy, policy)
    start = of_another_set(PRESET, given.policies[-1], given.data)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        jobs = {}
        for kind, seeds, options in (("GRPO", given.seeds, []), ("random rewards", given.control, [f"--reward={NOISE}"])):
            for seed in seeds:
                name = f"{kind}, seed {seed}"
                jobs[pool.submit(tuned, PRESET, Path(folder) / name.replace(", ", "-"), seed, [*start, *options])] = name
        for job in as_completed(jobs):
            policy, seconds = job.result()
            metrics = [json.loads(line) for line in (policy.parent / "metrics.jsonl").read_text().splitlines()]
            rewards = [line["reward"] for line in metrics if "reward" in line]
            keep(jobs[job], policy, seconds_training=seconds, rewards=rewards)
    return head | {"rows": rows}


if __name__ == "__main__":
    main()
