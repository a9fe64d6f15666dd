"""Run the first updates of every preset and compare their metrics, bit for bit, with those of another commit.

    python -m benchmarks.first_updates --out before.json           # in a checkout of the commit to compare with
    python -m benchmarks.first_updates --compare before.json       # in the changed one: names every metric that moved

Each preset runs in a process of its own with one thread, its own seed and no evaluation. Presets of pretraining use small
batches, and those that need a SMILES file are left out unless ``--data`` names the folder with the files. Metrics that
measure time are left out. The numbers hold for one machine and one version of torch only, so no result is committed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, write_result
from discrete_grpo.cli.commands import RUNS, presets

FILES = {"qm9-small": "qm9.smi.gz", "smiles-zinc": "zinc250k_test.smi.gz", "zinc-graph": "zinc250k_test.smi.gz"}
CLOCKS = ("seconds", "time", "per_second", "memory")
UPDATES = 3


def arguments_of(command: str, preset: str, data: Path | None) -> list[str] | None:
    """The options that shorten a preset to its first updates; None if it needs a file that is not at hand."""
    if command == "train":
        return [f"--grpo.max_steps={UPDATES}", "--evaluation_samples=0"]
    parts = ("autoencoder", "classifier", "pretrain") if command == "pretrain-digits" else ("pretrain",)
    options = [f"--{part}.{option}" for part in parts for option in (f"max_steps={UPDATES}", "batch_size=4")]
    options += ["--evaluation_samples=0"]
    if preset in FILES:
        return None if data is None else [*options, f"--data={data / FILES[preset]}"]
    return options


def metrics_of(command: str, preset: str, folder: Path, data: Path | None) -> list[dict[str, Any]] | str | None:
    """The logged metrics of a preset's first updates; the error's last line if it fails; None if it was left out."""
    options = arguments_of(command, preset, data)
    if options is None:
        return None
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "discrete_grpo.cli", command, preset, *options, f"--output_dir={folder}"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    files = sorted(folder.rglob("metrics.jsonl"))
    rows = [json.loads(row) for file in files for row in file.read_text().splitlines()]
    return [{name: value for name, value in row.items() if not any(clock in name for clock in CLOCKS)} for row in rows]


def moved(before: Any, after: Any) -> list[str]:
    """List the metrics of one preset that differ between two commits; an empty list if none does."""
    if not isinstance(before, list) or not isinstance(after, list):
        return [] if before == after else [f"{before!r} -> {after!r}"]
    if len(before) != len(after):
        return [f"{len(before)} rows -> {len(after)}"]
    found = []
    for k, (old, new) in enumerate(zip(before, after, strict=True)):
        names = [name for name in {**old, **new} if repr(old.get(name)) != repr(new.get(name))]
        found += [f"row {k}: {name} {old.get(name)!r} -> {new.get(name)!r}" for name in names]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the presets, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--compare", type=Path, help="JSON file of another commit")
    parser.add_argument("--data", type=Path, help="folder with qm9.smi.gz and zinc250k_test.smi.gz")
    parser.add_argument("--presets", nargs="*", help="only these")
    given = parser.parse_args(arguments)
    before: Mapping[str, Any] = json.loads(given.compare.read_text()) if given.compare else {}
    result: dict[str, Any] = {}
    for command in RUNS:
        for preset in presets(command):
            if given.presets and preset not in given.presets:
                continue
            with tempfile.TemporaryDirectory() as folder:
                result[preset] = metrics_of(command, preset, Path(folder) / "run", given.data)
            found = moved(before.get(preset), result[preset]) if given.compare else []
            said = "left out" if result[preset] is None else result[preset] if isinstance(result[preset], str) else "ran"
            print(f"{preset}: {said if not given.compare else 'moved' if found else 'equal'}", flush=True)
            for text in found:
                print(f"    {text}", flush=True)
            if given.out:
                write_result(given.out, result)


if __name__ == "__main__":
    main()
