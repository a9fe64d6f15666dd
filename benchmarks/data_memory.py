"""Memory and time of pretraining on data on disk and in memory, with millions of random SMILES.

Writes ``--count`` SMILES (random orders of the atoms of the molecules of ``--smiles``), makes a folder of shards of them with
``discrete-grpo preprocess``, trains ``pretrain-smiles`` on it, and trains on the first ``--part`` of the lines in memory, with the
same network and batches. Each part is a command of its own. Its memory is the largest sum, over its processes and sampled ten times
a second, of their resident memory: pages that processes share count for each, and pages of memory maps count too. ``order`` holds
what an epoch of ``--order-rows`` rows needs besides: their sizes and their order.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.datasets.parallel import blocks, map_blocks
from discrete_grpo.datasets.reading import smiles_rows
from discrete_grpo.domains.random_smiles import random_smiles
from discrete_grpo.domains.smiles import parse_smiles

SOURCES = [
    "benchmarks/data_memory.py",
    "datasets/parallel.py",
    "datasets/shards.py",
    "datasets/shard_arrays.py",
    "datasets/shard_building.py",
    "datasets/sharded.py",
    "datasets/smiles.py",
    "discrete_grpo/training/pretrain.py",
]
PERIOD = 0.1
"""Seconds between two looks at the memory."""
MIB = 1 << 20


@dataclass(frozen=True)
class Part:
    """A command: its wall time in seconds, and the peak of its resident memory in MiB."""

    name: str
    molecules: int
    seconds: float
    peak_mib: float
    processes: int


def resident(root: psutil.Process) -> tuple[int, int]:
    """Bytes of resident memory of a process and its children, and their number."""
    total = count = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            total, count = total + process.memory_info().rss, count + 1
        except psutil.NoSuchProcess:
            continue
    return total, count


def measured(name: str, molecules: int, command: Sequence[str]) -> Part:
    """Run a command and watch its memory.

    Raises:
        subprocess.CalledProcessError: if it fails.
    """
    start, peak, most = time.perf_counter(), 0, 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) as run:
        watched = psutil.Process(run.pid)
        while run.poll() is None:
            found, count = resident(watched)
            peak, most = max(peak, found), max(most, count)
            time.sleep(PERIOD)
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, list(command))
    part = Part(name, molecules, round(time.perf_counter() - start, 2), round(peak / MIB, 1), most)
    print(f"{name:<34} {molecules:>11,} molecules {part.seconds:>8.1f} s {part.peak_mib:>9,.0f} MiB", flush=True)
    return part


# -- the parts


def shuffled(task: tuple[int, list[str]], seed: int, copies: int) -> list[str]:
    """``copies`` random SMILES of each molecule."""
    index, texts = task
    rng = random.Random(seed * 1_000_003 + index)
    mols = [mol for mol in map(parse_smiles, texts) if mol is not None]
    return [random_smiles(mol, rng) for _ in range(copies) for mol in mols]


def write_smiles(source: Path, out: Path, count: int, seed: int, jobs: int) -> None:
    """Write ``count`` random SMILES of the molecules of a file, or fewer if some of its lines are broken."""
    from benchmarks.data_memory import shuffled as function  # workers know it by this name

    texts = [text for _, text in smiles_rows(source)]
    copies = -(-count // len(texts))
    left = count
    with out.open("w") as file:
        for found in map_blocks(partial(function, seed=seed, copies=copies), enumerate(blocks(texts, 2_000)), jobs):
            file.writelines(f"{text}\n" for text in islice(found, left))
            left -= min(left, len(found))


def order_peak(rows: int, batch_size: int) -> float:
    """MiB that the sizes of ``rows`` molecules and the order of an epoch take at their peak, above what the process has."""
    import torch

    from discrete_grpo.training.pretrain import batches

    before = _peak_kib()
    sizes = torch.ones(rows, dtype=torch.int32)
    next(batches(sizes, batch_size, 42, 0))
    return round((_peak_kib() - before) / 1024, 1)


def _peak_kib() -> int:
    """Peak resident KiB of this program; getrusage would count the program that started it, where that was larger."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1])


def run(settings: argparse.Namespace) -> dict[str, Any]:
    """Measure all parts."""
    folder: Path = settings.folder
    folder.mkdir(parents=True, exist_ok=True)
    whole, part, shards = folder / "whole.smi", folder / "part.smi", folder / "shards"
    start = time.perf_counter()
    write_smiles(settings.smiles, whole, settings.count, settings.seed, settings.jobs)
    made = time.perf_counter() - start
    with whole.open() as lines, part.open("w") as file:
        file.writelines(islice(lines, settings.part))
    for old in (shards, folder / "part-shards", *(folder / f"run-{k}" for k in ("shards", "part-shards", "memory"))):
        shutil.rmtree(old, ignore_errors=True)
    own = [sys.executable, "-m", "discrete_grpo.cli"]
    counts = [sum(1 for _ in path.open()) for path in (whole, part)]
    prepare = [*own, "preprocess", f"--jobs={settings.jobs}"]
    train = [*own, "pretrain-smiles", "--evaluation_samples=0", "--cache_dir=null", "--pretrain.bf16=false"]
    train += [
        f"--pretrain.max_steps={settings.updates}",
        f"--pretrain.batch_size={settings.batch}",
        "--pretrain.save_steps=1000000",
    ]
    data = {"shards": shards, "part-shards": folder / "part-shards", "memory": part}
    fit = {name: [*train, f"--data={path}", f"--output_dir={folder / f'run-{name}'}"] for name, path in data.items()}
    parts = [
        measured("preprocess", counts[0], [*prepare, str(whole), f"--output_dir={shards}"]),
        measured("pretrain-smiles on shards", counts[0], fit["shards"]),
        measured("preprocess, part", counts[1], [*prepare, str(part), f"--output_dir={data['part-shards']}"]),
        measured("pretrain-smiles on shards, part", counts[1], fit["part-shards"]),
        measured("pretrain-smiles in memory, part", counts[1], fit["memory"]),
    ]
    code = f"from benchmarks.data_memory import order_peak; print(order_peak({settings.order_rows}, {settings.batch}))"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    size = sum(path.stat().st_size for path in shards.iterdir())
    print(f"order of {settings.order_rows:,} rows: {float(asked.stdout):,.0f} MiB; shards: {size / MIB:,.0f} MiB on the disk")
    return {
        "parts": [asdict(found) for found in parts],
        "random_smiles_seconds": round(made, 2),
        "bytes_on_disk": size,
        "order": {"rows": settings.order_rows, "peak_mib": float(asked.stdout)},
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smiles", type=Path, required=True, help="molecules to write random SMILES of, such as ZINC250k")
    parser.add_argument("--folder", type=Path, default=Path("data_memory"), help="folder for data and runs, about 1 GB")
    parser.add_argument("--count", type=int, default=2_000_000)
    parser.add_argument("--part", type=int, default=200_000)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--order-rows", type=int, default=100_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "data_memory.json")
    settings = parser.parse_args(arguments)
    settings.smiles, settings.folder = settings.smiles.resolve(), settings.folder.resolve()
    found = run(settings)
    shown = {k: v.name if isinstance(v, Path) else v for k, v in vars(settings).items() if k not in ("out", "folder")}
    result = stamp(settings.seed, sources=SOURCES) | {"settings": shown} | found
    write_result(settings.out, result)
    return result


if __name__ == "__main__":
    main()
