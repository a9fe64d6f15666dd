r"""Pretraining and GRPO in 1, 2 and 4 processes: speed, bytes sent, and a model of the time of an update on 8 and 64 GPUs.

    OMP_NUM_THREADS=1 python -m benchmarks.scale_out    # the committed table: CPU, gloo, about 5 minutes on two idle cores

Each number of processes is started by torchrun, ``rounds`` times in turn, and makes the same updates on the same batches: a
fixed batch is dealt to more processes. Times and bytes are those between two updates, after the first ones.

Processes beyond the cores of a machine share them, so the speed cannot rise there. The processor time of a process says what each
would take with a core of its own; its fit C(n) = repeated + dealt / n is the model's measured term, with the bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.datasets.graph_splits import load_splits
from discrete_grpo.datasets.synthetic_graphs import dataset_from_networkx
from discrete_grpo.policies.noising import noised, stratified_times
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.runs.console import print_table
from discrete_grpo.training.config import GRPOConfig, PretrainConfig
from discrete_grpo.training.distributed import leave
from discrete_grpo.training.pretrain import Pretrainer
from discrete_grpo.training.trainer import GRPOTrainer

__all__ = ["Link", "Settings", "Terms", "fitted", "main", "message_seconds", "modelled", "work"]

SOURCES = (
    "discrete_grpo/core/batch_share.py",
    "discrete_grpo/training/distributed.py",
    "discrete_grpo/training/optim.py",
    "discrete_grpo/training/pretrain.py",
    "discrete_grpo/training/trainer.py",
    "discrete_grpo/policies/graph.py",
    "models/graph_transformer.py",
    "benchmarks/scale_out.py",
)


@dataclass(frozen=True)
class Settings:
    """Settings of the workloads of the benchmark.

    Attributes:
        updates: number of updates that are timed.
        warmup: number of updates before them.
        batch: graphs of an update of pretraining, over all processes.
        generation: molecules of a generation of GRPO, over all processes.
        steps: steps of the sampler of GRPO.
        seed: random seed.
    """

    updates: int = 8
    warmup: int = 2
    batch: int = 64
    generation: int = 64
    steps: int = 10
    seed: int = 0


@dataclass(frozen=True)
class Link:
    """The connection of GPUs, as assumed.

    Attributes:
        gpus: number of GPUs.
        name: what connects them.
        bandwidth: bytes per second that a GPU sends in a ring.
        latency: seconds that a collective takes whatever its size.
    """

    gpus: int
    name: str
    bandwidth: float
    latency: float


LINKS = (Link(8, "NVLink in one machine", 200e9, 30e-6), Link(64, "8 machines, 400 Gbit/s per GPU", 40e9, 100e-6))
SPEEDUPS = (1.0, 100.0, 1000.0)
"""Assumed speeds of a GPU in cores of the machine that was measured: the faster it computes, the more the messages count."""


# -- what a process does


class Messages:
    """Counts the collectives that a process calls, and the bytes that it hands to them."""

    def __init__(self) -> None:
        self.calls, self.bytes, self.seconds = 0, 0, 0.0

    def __enter__(self) -> Messages:
        sizes: dict[str, Callable[..., int]] = {
            "all_reduce": lambda tensor, *rest: tensor.numel() * tensor.element_size(),
            "broadcast": lambda tensor, *rest: tensor.numel() * tensor.element_size(),
            "all_gather_object": lambda found, value, *rest: len(pickle.dumps(value)),
            "gather_object": lambda value, *rest: len(pickle.dumps(value)),
        }
        self._before = {name: getattr(dist, name) for name in sizes}
        for name, call in self._before.items():
            setattr(dist, name, self._counted(call, sizes[name]))
        return self

    def __exit__(self, *error: object) -> None:
        for name, call in self._before.items():
            setattr(dist, name, call)

    def _counted(self, call: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.calls += 1
            self.bytes += size(*args)
            start = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                self.seconds += time.perf_counter() - start

        return counted


class Marks:
    """Clocks and counts at the same place of every update."""

    def __init__(self, messages: Messages) -> None:
        self.messages, self.found = messages, list[dict[str, float]]()

    def __call__(self) -> None:
        now = {"wall": time.perf_counter(), "processor": time.process_time()}
        m = self.messages
        self.found.append(now | {"calls": m.calls, "bytes": m.bytes, "in_messages": m.seconds})

    def per_update(self, warmup: int) -> dict[str, float]:
        """Means of the updates after the first ``warmup``."""
        first, last = self.found[warmup], self.found[-1]
        return {name: (last[name] - first[name]) / (len(self.found) - 1 - warmup) for name in first}


class Watched:
    """A data set that marks each batch."""

    def __init__(self, data: Any, mark: Callable[[], None]) -> None:
        self.data, self.sizes, self.mark = data, data.sizes, mark

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Tensor) -> Any:
        """The graphs at ``rows``."""
        self.mark()
        return self.data.batch(rows)


def pretrain(settings: Settings, messages: Messages) -> dict[str, float]:
    """Updates of the bundled policy of trees by likelihood; ``whole_batch`` is the time to read and noise all rows."""
    policy, marks = load_policy("tree-16"), Marks(messages)
    data = dataset_from_networkx(load_splits("tree-16").train, "tree-16")
    count = settings.warmup + settings.updates + 1
    config = PretrainConfig(max_steps=count, batch_size=settings.batch, log_steps=count, save_steps=count, seed=settings.seed)
    with tempfile.TemporaryDirectory() as run:
        Pretrainer(policy, Watched(data, marks), config, run).train()
    generator, start = torch.Generator().manual_seed(settings.seed), time.process_time()
    for _ in range(settings.updates):
        graphs = data.batch(torch.arange(settings.batch))
        t = stratified_times(len(graphs), graphs.nodes.device, policy.train_distortion, generator)
        noised((policy.node_kernel, policy.edge_kernel), graphs, t, generator)
    whole = (time.process_time() - start) / settings.updates
    return marks.per_update(settings.warmup) | {"whole_batch": whole, "samples": settings.batch}


def train(settings: Settings, messages: Messages) -> dict[str, float]:
    """GRPO of the bundled policy of molecules on QED: drawing, scoring and one update per generation, in four shards."""
    policy, marks = load_policy("qm9-small", SamplerOptions(num_steps=settings.steps)), Marks(messages)
    shards = 4
    calls = []

    def reward(samples: Sequence[str | None], **columns: Any) -> list[float]:
        calls.append(len(samples))
        if len(calls) % (shards // own) == 1 or shards == own:  # a process scores its shards one after another
            marks()
        return qed(samples)

    own = int(os.environ.get("WORLD_SIZE", "1"))
    config = GRPOConfig(
        max_steps=settings.warmup + settings.updates + 1,
        num_generations=8,
        generation_batch_size=settings.generation,
        per_device_batch_size=settings.generation,
        generation_shards=shards,
        seed=settings.seed,
    )
    GRPOTrainer(policy, reward, config).train()
    return marks.per_update(settings.warmup) | {"whole_batch": 0.0, "samples": settings.generation}


WORKLOADS: dict[str, Callable[[Settings, Messages], dict[str, float]]] = {"pretrain": pretrain, "train": train}


def work(settings: Settings) -> dict[str, dict[str, float]]:
    """Both workloads in this process: what each takes per update."""
    torch.set_num_threads(1)
    found = {}
    for name, run in WORKLOADS.items():
        with Messages() as messages:
            found[name] = run(settings, messages)
    return found


# -- processes


def launched(processes: int, settings: Settings, threads: str = "1") -> list[dict[str, dict[str, float]]]:
    """The measurements of every process of a group."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command += ["-m", "benchmarks.scale_out", "--worker", folder, json.dumps(asdict(settings))]
        environment = os.environ | {"OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise RuntimeError(f"scale_out: {processes} processes failed: {done.stderr[-2000:]}")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(processes)]


def _worker(folder: str, settings: Settings) -> None:
    found = work(settings)
    (Path(folder) / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    if dist.is_initialized():
        dist.barrier()
        leave()


def summed_up(rounds: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """The measurements of a workload: the median over rounds, of the slowest process where it is a time.

    Args:
        rounds: what each process took per update, in each round.
    """
    row: dict[str, float] = {}
    for name in ("wall", "in_messages", "whole_batch"):
        row[name] = statistics.median([max(own[name] for own in ranks) for ranks in rounds])
    row["processor"] = statistics.median([statistics.mean(own["processor"] for own in ranks) for ranks in rounds])
    row |= {name: statistics.mean(own[name] for own in rounds[0]) for name in ("bytes", "calls")}
    return row | {"samples_per_second": rounds[0][0]["samples"] / row["wall"]}


# -- the model


@dataclass(frozen=True)
class Terms:
    """Measured cost of an update.

    Attributes:
        dealt: processor seconds that are divided among the processes.
        repeated: processor seconds that every process takes whatever their number.
        whole_batch: part of ``repeated`` that grows with the batch.
        bytes: bytes that a process hands to the collectives.
        calls: number of collectives.
    """

    dealt: float
    repeated: float
    whole_batch: float
    bytes: float
    calls: float


def fitted(seconds: Mapping[int, float]) -> tuple[float, float]:
    """Least squares fit of C(n) = repeated + dealt / n to the processor seconds of a process; returns ``dealt, repeated``.

    >>> fitted({1: 11.0, 2: 6.0, 4: 3.5})
    (10.0, 1.0)
    """
    if len(seconds) == 1:
        return next(iter(seconds.values())) * next(iter(seconds)), 0.0
    x, y = [1 / n for n in seconds], list(seconds.values())
    slope, start = statistics.linear_regression(x, y)
    return slope, max(start, 0.0)


def message_seconds(terms: Terms, link: Link) -> float:
    """Seconds in messages: 2 (P - 1)/P bytes / bandwidth of a ring, and the latency of each collective."""
    return 2 * (link.gpus - 1) / link.gpus * terms.bytes / link.bandwidth + terms.calls * link.latency


def modelled(terms: Terms, link: Link, speedup: float) -> dict[str, float]:
    """Efficiency on P GPUs, each ``speedup`` times as fast as the core that was measured.

    Returns:
        ``message_seconds``; ``same_batch``, T(1) / (P T(P)) with the batch dealt to P; and ``batch_times_gpus``, T(1) / T(P) with a
        batch P times as large.
    """
    one, sent = (terms.repeated + terms.dealt) / speedup, message_seconds(terms, link)
    same = (terms.repeated + terms.dealt / link.gpus) / speedup + sent
    larger = (terms.repeated + (link.gpus - 1) * terms.whole_batch + terms.dealt) / speedup + sent
    return {"message_seconds": sent, "same_batch": one / (link.gpus * same), "batch_times_gpus": one / larger}


def described(rows: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """Measurements, terms and model of a workload, given those of each number of processes."""
    dealt, repeated = fitted({n: row["processor"] for n, row in rows.items()})
    first, most = rows[min(rows)], rows[max(rows)]
    terms = Terms(dealt, max(repeated, first["whole_batch"]), first["whole_batch"], most["bytes"], most["calls"])
    table = {}
    for n, row in rows.items():
        faster, less = first["wall"] / row["wall"], first["processor"] / row["processor"]
        table[n] = dict(row) | {"efficiency": faster * min(rows) / n, "processor_efficiency": less * min(rows) / n}
    model = [asdict(link) | {"speedup": s} | modelled(terms, link, s) for link in LINKS for s in SPEEDUPS]
    return {"processes": table, "terms": asdict(terms), "model": model}


def show(name: str, found: Mapping[str, Any]) -> None:
    """Both tables of a workload."""
    table: dict[str, dict[str, float | str | None]] = {}
    for n, row in found["processes"].items():
        table[f"{n} processes"] = {
            "samples/s": f"{row['samples_per_second']:.1f}",
            "efficiency": f"{row['efficiency']:.2f}",
            "processor s per process": f"{row['processor']:.3f}",
            "efficiency by it": f"{row['processor_efficiency']:.2f}",
            "MB per update": f"{row['bytes'] / 1e6:.2f}",
            "collectives": f"{row['calls']:.1f}",
        }
    print_table(f"{name}: an update on {os.cpu_count()} cores", table)
    table = {}
    for row in found["model"]:
        table[f"{row['gpus']} GPUs, {row['name']}, each {row['speedup']:g} cores"] = {
            "ms in messages": f"{1e3 * row['message_seconds']:.2f}",
            "efficiency, same batch": f"{row['same_batch']:.2f}",
            "batch times GPUs": f"{row['batch_times_gpus']:.2f}",
        }
    print_table(f"{name}: model", table)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], help="numbers of processes: 1, 2 or 4")
    parser.add_argument("--rounds", type=int, default=3, help="times that each number of processes is started, in turn")
    parser.add_argument("--updates", type=int, default=Settings.updates)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "scale_out.json")
    given = parser.parse_args(arguments)
    settings = replace(Settings(), updates=given.updates, seed=given.seed)
    measured: dict[int, list[Any]] = {n: [] for n in given.processes}
    for _ in range(given.rounds):
        for n in given.processes:
            measured[n].append(launched(n, settings))
    found = {
        name: described({n: summed_up([[own[name] for own in ranks] for ranks in rounds]) for n, rounds in measured.items()})
        for name in WORKLOADS
    }
    result = stamp(given.seed, sources=SOURCES) | {"settings": asdict(settings), "rounds": given.rounds, "workloads": found}
    write_result(given.out, result)
    for name, row in found.items():
        show(name, row)
    return result


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        _worker(sys.argv[2], Settings(**json.loads(sys.argv[3])))
    else:
        main()
