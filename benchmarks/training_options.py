r"""Time and peak memory of compiled layers, activation checkpointing, LoRA and bfloat16, per forward pass and per update.

    MALLOC_TRIM_THRESHOLD_=2000000000 MALLOC_MMAP_THRESHOLD_=33554432 OMP_NUM_THREADS=1 \
        python -m benchmarks.training_options    # the committed table: CPU, about 5 minutes

Each option against the same network without, turn by turn. A forward pass is one of drawing, without gradients; an update is a
forward pass, a backward pass and a step of AdamW. The peak is what an update has allocated at once above weights and moments.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import ROOT, Clock, interleaved, paired_ratio, peak_allocated, stamp, write_result
from discrete_grpo.domains.graphs import node_mask, num_pairs, pair_mask, symmetrise
from discrete_grpo.models.graph_transformer import BASE, SMALL, GraphTransformer, GraphTransformerConfig
from discrete_grpo.runs.console import print_table
from discrete_grpo.training.lora import add_lora
from discrete_grpo.training.network import checkpoint_layers, compile_network

__all__ = ["main", "measure"]

SOURCES = (
    "models/graph_transformer.py",
    "models/pairs.py",
    "models/recompute.py",
    "discrete_grpo/training/lora.py",
    "discrete_grpo/training/network.py",
    "benchmarks/training_options.py",
)
SETTINGS: dict[str, tuple[dict[str, Any], int, int]] = {
    "SMALL, N=9, batch 256": (SMALL, 9, 256),
    "SMALL, N=38, batch 16": (SMALL, 38, 16),
    "BASE, N=24, batch 8": (BASE, 24, 8),
}
OPTIONS: dict[str, Callable[[nn.Module], object]] = {
    "compiled": compile_network,
    "checkpoint_layers": checkpoint_layers,
    "lora, r=8": lambda network: add_lora(network, r=8),
    "bf16": lambda network: None,
}
MIB = 2**20


def inputs(nodes: int, batch: int, seed: int) -> tuple[Tensor, ...]:
    """Noisy graphs of up to ``nodes`` nodes, and times."""
    g = torch.Generator().manual_seed(seed)
    sizes = torch.randint(max(1, nodes - 2), nodes + 1, (batch,), generator=g)
    sizes[0] = nodes
    mask = node_mask(sizes, nodes)
    x = torch.where(mask, torch.randint(4, mask.shape, generator=g), 0)
    e = torch.where(pair_mask(mask), torch.randint(4, (batch, num_pairs(nodes)), generator=g), 0)
    return x, symmetrise(e, nodes), torch.rand(batch, generator=g), mask


class Job:
    """A network with one option, its passes and its optimizer."""

    def __init__(self, network: nn.Module, given: tuple[Tensor, ...], half: bool = False) -> None:
        self.network, self.given, self.half = network, given, half
        self.trained = [p for p in network.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=0.0)

    def _run(self) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16) if self.half else nullcontext():
            x, e = self.network(*self.given)
        return x.float().square().mean() + e.float().square().mean()

    def forward(self) -> None:
        """A pass without gradients."""
        with torch.no_grad():
            self._run()

    def update(self) -> None:
        """A pass, its gradients and a step."""
        self.optimizer.zero_grad(set_to_none=True)
        self._run().backward()
        self.optimizer.step()


def measure(sizes: dict[str, Any], nodes: int, batch: int, *, repeats: int, clock: Clock, seed: int) -> dict[str, Any]:
    """By option: how many times faster a forward pass and an update are than without, peak of an update, trained weights."""
    torch.manual_seed(seed)
    plain = GraphTransformer(GraphTransformerConfig(9, 4, 9, 4, **sizes)).eval()
    given, found = inputs(nodes, batch, seed), {}
    base = Job(copy.deepcopy(plain), given)
    base.update()
    found["none"] = {"peak": peak_allocated(base.update), "trained": sum(p.numel() for p in base.trained)}
    for name, option in OPTIONS.items():
        network = copy.deepcopy(plain)
        option(network)
        job, start = Job(network, given, half=name == "bf16"), time.perf_counter()
        job.update()
        row: dict[str, Any] = {"first_update_seconds": time.perf_counter() - start}
        for kind in ("forward", "update"):
            ours, theirs = interleaved([getattr(job, kind), getattr(base, kind)], repeats, warmup=2)
            row[kind] = paired_ratio(ours.by(clock), theirs.by(clock))
            row[f"{kind}_seconds"] = [min(t.by(clock)) for t in (ours, theirs)]
        found[name] = row | {"peak": peak_allocated(job.update), "trained": sum(p.numel() for p in job.trained)}
    return found


def show(result: dict[str, Any]) -> None:
    """The table of the documentation."""
    for setting, rows in result["settings"].items():
        plain = rows["none"]
        table: dict[str, dict[str, float | str | None]] = {}
        for name, row in rows.items():
            if name != "none":
                speed = {k: f"{row[k][0]:.2f}x ({row[k][1]:.2f} to {row[k][2]:.2f})" for k in ("forward", "update")}
                table[name] = {
                    **speed,
                    "peak": f"{row['peak'] / MIB:.0f} MiB of {plain['peak'] / MIB:.0f}",
                    "trained": row["trained"],
                }
        print_table(setting, table)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="cpu", help="cpu leaves out the time other processes took")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "training_options.json")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    measured = {
        name: measure(*SETTINGS[name], repeats=given.repeats, clock=given.clock, seed=given.seed) for name in given.settings
    }
    result = stamp(given.seed, sources=SOURCES) | {"clock": given.clock, "repeats": given.repeats, "settings": measured}
    write_result(given.out, result)
    show(result)
    return result


if __name__ == "__main__":
    main()
