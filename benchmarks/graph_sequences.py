"""Autoregressive graph policies before and after GRPO, beside the same updates on random rewards: V.U.N. and MMD ratios.

    python -m benchmarks.graph_sequences                              # -> results/graph_sequences.json
    python -m benchmarks.graph_sequences --seeds 42 --control --out tiny.json
    python -m benchmarks.graph_sequences --run RUN --data planar.npz --presets planar-64-sequences-grpo --out planar.json
    python -m benchmarks.graph_sequences --run tree-64 --data tree.npz --presets tree-64-grpo --seeds 42 --control --out t.json

Measures 5 folds of 40 samples as ``benchmarks.vun`` does, of each bundled policy as it stands and after its preset of
``discrete-grpo train``, one process per seed, beside fresh draws of the generator of the set, which are what a perfect policy would
score; with ``--run`` a policy of another set, such as a published one, or a diffusion policy of graphs of 64 nodes, drawn before
GRPO with the steps and the kernel of the preset. The file is written after every run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.common import ROOT, stamp, write_result
from benchmarks.vun import SOURCES, measure, perfect, shown
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.runs.console import print_table

POLICIES = {"tree-64-sequences": "tree-64", "planar-64-sequences": "planar-64"}
"""Bundled policy -> its set."""
PRESETS = {"tree-64-sequences-grpo": "tree-64-sequences", "planar-64-sequences-grpo": "planar-64-sequences"}
"""Preset of ``train`` -> its policy."""
SEQUENCES = (
    "models/gpt.py",
    "discrete_grpo/domains/graph_sequences.py",
    "discrete_grpo/domains/graph_sequence_grammar.py",
    "discrete_grpo/policies/tokens.py",
    "discrete_grpo/training/update.py",
    "discrete_grpo/metrics/graphs.py",
    "benchmarks/vun.py",
)
"""Sources of the results of sequence policies; those of diffusion policies are the sources of ``benchmarks.vun``."""


def sources(run: str | None, policies: Sequence[str], presets: Sequence[str]) -> list[str]:
    """Files whose change makes a result stale: code of the kinds of policy that it measures, weights, presets."""
    of_sequences = {name in PRESETS for name in presets} or {True, run is None}
    weights = [f"discrete_grpo/bundled/{name}/model.safetensors" for name in ([run] if run is not None else policies)]
    return [
        *dict.fromkeys(name for kind in sorted(of_sequences) for name in (SEQUENCES if kind else SOURCES)),
        *(name for name in weights if (ROOT / name).exists()),
        *(f"discrete_grpo/cli/presets/{name}.yaml" for name in presets),
    ]


def noise(samples: Sequence[str | None], **columns: Any) -> list[float]:
    """A random number in [0, 1) for each place in each batch, whatever the sample is, invalid or not: the control."""
    batch = hashlib.blake2b(repr(list(samples)).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(batch, "big")).random(len(samples)).tolist()


noise.cached_as = None  # type: ignore[attr-defined]  # the same sample has another number in another batch


def preset_of(name: str) -> dict[str, Any]:
    """The settings of a preset of ``train``."""
    found: dict[str, Any] = yaml.safe_load((ROOT / f"discrete_grpo/cli/presets/{name}.yaml").read_text())
    return found


def of_another_set(preset: str, run: str, data: str) -> list[str]:
    """Options that give a preset the policy of a run, and its reward the set of a file."""
    reward = preset_of(preset)["reward"]
    inner = reward["init_args"]["reward"]
    for part in (reward, *([inner] if isinstance(inner, dict) else [])):
        part["init_args"]["data"] = data
    return [f"--policy={run}", f"--reward={json.dumps(reward)}"]


def tuned(preset: str, folder: Path, seed: int, options: Sequence[str]) -> tuple[Path, float]:
    """Run a preset with a seed and further options; its policy and the seconds of the process."""
    command = [sys.executable, "-m", "discrete_grpo.cli", "train", preset, f"--output_dir={folder}", "--evaluation_samples=0"]
    command += [f"--grpo.seed={seed}", *options]
    start = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return folder / "policy", time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--run", help="policy to measure and to start from, by name or folder, instead of those of sequences")
    parser.add_argument("--data", help="set of --run: a name or an npz file")
    parser.add_argument("--seeds", nargs="*", type=int, default=[42, 0, 1])
    parser.add_argument("--control", nargs="*", type=int, default=[42, 0, 1], help="seeds of the runs on random rewards")
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples that are measured")
    parser.add_argument("--out", default="graph_sequences.json", help="file name under benchmarks/results")
    given = parser.parse_args(argv)
    if (given.run is None) != (given.data is None):
        parser.error("--run and --data go together")
    rows: dict[str, Any] = {}
    head = stamp(given.seed, sources=sources(given.run, given.policies, given.presets))

    def keep(name: str, row: dict[str, Any]) -> None:
        rows[name] = row
        write_result(ROOT / "benchmarks/results" / given.out, head | {"rows": rows})
        print_table("folds of 40 samples, mean ± deviation", {key: shown(value) for key, value in rows.items()})

    if given.run is not None:
        first = preset_of(given.presets[0]) if given.presets else {}
        drawn = {name: value for name, value in first.items() if name in ("num_steps", "kernel")}
        keep(given.run, measure(given.run, given.data, given.seed, SamplerOptions(**drawn)))
    for name in [] if given.run else given.policies:
        keep(f"{POLICIES[name]}, fresh draws", perfect(POLICIES[name], given.seed))
        keep(name, measure(name, POLICIES[name], given.seed))
    for preset in given.presets:
        data = given.data or POLICIES[PRESETS[preset]]
        for seed, noisy in [*((seed, False) for seed in given.seeds), *((seed, True) for seed in given.control)]:
            options = [] if given.run is None else of_another_set(preset, given.run, given.data)
            options += ["--reward=benchmarks.graph_sequences.noise"] if noisy else []
            with tempfile.TemporaryDirectory() as folder:
                policy, seconds = tuned(preset, Path(folder) / "run", seed, options)
                row = measure(policy, data, given.seed) | {"seconds_training": seconds}
            keep(f"{preset}, {'random rewards, ' if noisy else ''}seed {seed}", row)
    return head | {"rows": rows}


if __name__ == "__main__":
    main()
