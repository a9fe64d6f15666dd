"""DiGress's and DeFoG's network as imported against the published equations written out, same weights, in one process.

    python -m benchmarks.import_speed                      # the committed table: CPU, one thread, some minutes
    python -m benchmarks.import_speed --device cuda --batch 32

The other side (``tests/digress_oracle.py``, written from the equations for this) is batched as the peers run it and does no work
they do not do; its inputs are ready-made, while ours computes the features in every call. Outputs are compared before anything is
timed. Both sides take turns, and a ratio is the median over pairs; with one CPU thread the clock is processor time.

First, in processes of their own: two GRPO updates of an imported DeFoG checkpoint of ZINC's published size, without and with
layers computed again for gradients, and those processes' largest resident memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import ROOT, Clock, Timing, interleaved, paired_ratio, peak_allocated, stamp, write_result
from discrete_grpo.domains.graphs import num_pairs, symmetrise
from discrete_grpo.importers import import_defog
from discrete_grpo.importers.graph_data import DataName, known_data
from discrete_grpo.models.digress_features import MoleculeFeatures
from discrete_grpo.models.digress_transformer import DigressConfig, DigressTransformer
from discrete_grpo.runs.console import print_table
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer
from tests.digress_oracle import LiteralNetwork, Variant, random_state

__all__ = ["CASES", "Case", "main"]

SOURCES = (
    "models/digress_transformer.py",
    "models/digress_attention.py",
    "models/digress_features.py",
    "tests/digress_oracle.py",
    "benchmarks/import_speed.py",
)
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Case:
    """A published DeFoG network: its data, sizes, and how many graphs of the largest size go at once."""

    data: DataName
    layers: int
    global_width: int
    edge_hidden: int
    mlp: tuple[int, int, int]
    walk_length: int
    batch: int

    def config(self) -> DigressConfig:
        """The network's sizes."""
        known = known_data(self.data)
        x, e = len(known.node_marginal), len(known.edge_marginal)
        molecule = MoleculeFeatures(known.weights, known.max_weight) if known.weights else None
        node_mlp, edge_mlp, global_mlp = self.mlp
        return DigressConfig(
            x,
            e,
            x,
            e,
            x,
            e,
            len(known.node_counts) - 1,
            layers=self.layers,
            global_width=self.global_width,
            edge_hidden=self.edge_hidden,
            node_mlp=node_mlp,
            edge_mlp=edge_mlp,
            global_mlp=global_mlp,
            walk_length=self.walk_length,
            molecule=molecule,
        )

    def state(self, seed: int) -> dict[str, Tensor]:
        """Random weights under the published names."""
        c = self.config()
        widths = (c.width, c.edge_width, c.global_width)
        hidden = (c.node_hidden, c.edge_hidden, c.global_hidden)
        outputs = (c.node_outputs, c.edge_outputs)
        return random_state(c.input_widths, outputs, layers=c.layers, widths=widths, hidden=hidden, mlp=self.mlp, seed=seed)


CASES = {
    "qm9": Case("qm9", 9, 64, 128, (256, 128, 128), 12, 256),
    "zinc": Case("zinc", 12, 128, 128, (256, 128, 256), 20, 16),
    "planar": Case("planar", 10, 64, 64, (128, 64, 128), 12, 8),
}


class Sides:
    """Both networks with the same weights, and the same noisy graphs in each one's own terms."""

    def __init__(self, case: Case, batch: int, device: str, seed: int) -> None:
        config, state = case.config(), case.state(seed)
        c, self.device = config, device
        self.ours = DigressTransformer(config).eval()
        self.ours.load_state_dict(state)
        molecule: dict[str, Any] = {"weights": c.molecule.weights, "max_weight": c.molecule.max_weight} if c.molecule else {}
        how = Variant("rrwp", c.walk_length, c.max_nodes, c.heads, "padded", "data", c.time_width, **molecule)
        self.literal = LiteralNetwork(state, how)
        self.ours.to(device)
        self.literal.to(device)
        known, g, n = known_data(case.data), torch.Generator().manual_seed(seed), c.max_nodes
        nodes = torch.multinomial(torch.tensor(known.node_marginal), batch * n, True, generator=g).view(batch, n)
        pairs = torch.multinomial(torch.tensor(known.edge_marginal), batch * num_pairs(n), True, generator=g).view(batch, -1)
        graphs = (nodes, symmetrise(pairs, n), torch.linspace(0, 1, batch), torch.ones(batch, n, dtype=torch.bool))
        nodes, edges, clock, mask = (t.to(device) for t in graphs)
        self.graphs = (nodes, edges, clock, mask)
        found = self.ours._features(nodes, edges, mask, (edges > 0).double())
        one_hot = nn.functional.one_hot
        self.inputs = (
            torch.cat([one_hot(nodes, c.node_states), found.nodes], -1).float(),
            torch.cat([one_hot(edges, c.edge_states), found.edges], -1).float(),
            torch.cat([found.graph, (1 - clock)[:, None]], -1).float(),
            mask,
        )
        self.off = ~torch.eye(n, dtype=torch.bool, device=device)

    def run(self, side: str) -> tuple[Tensor, Tensor]:
        """Node logits, and edge logits off the diagonal."""
        nodes, edges = self.ours(*self.graphs) if side == "ours" else self.literal(*self.inputs)
        return nodes, edges[:, self.off]

    def forward(self, side: str, half: bool) -> Callable[[], Any]:
        """One call without gradients."""

        def job() -> Any:
            with torch.no_grad(), torch.autocast(self.device, torch.bfloat16, enabled=half):
                return self.run(side)

        return job

    def update(self, side: str, *, again: bool = False) -> Callable[[], None]:
        """Gradients of a loss of both outputs; with ``again`` our side computes layers again for them."""
        network = self.ours if side == "ours" else self.literal

        def job() -> None:
            self.ours.checkpoint_layers = again
            network.zero_grad(set_to_none=False)  # so that memory is that of activations, once gradients exist
            nodes, edges = self.run(side)
            (nodes.square().mean() + edges.square().mean()).backward()

        return job

    def difference(self) -> float:
        """Largest difference of a logit."""
        pairs = zip(self.forward("ours", False)(), self.forward("literal", False)(), strict=True)
        return max(float((a - b).abs().max()) for a, b in pairs)


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Times and memory of one case."""
    torch.set_num_threads(options.threads)
    sides = Sides(case, options.batch or case.batch, options.device, options.seed)
    difference = sides.difference()
    if not difference <= TOLERANCE:
        raise SystemExit(f"{case.data}: outputs differ by {difference}, expected at most {TOLERANCE}")
    clock: Clock = "cpu" if options.device == "cpu" and options.threads == 1 else "wall"
    jobs = {
        "forward_fp32": (sides.forward("ours", False), sides.forward("literal", False)),
        "forward_bf16": (sides.forward("ours", True), sides.forward("literal", True)),
        "update_fp32": (sides.update("ours"), sides.update("literal")),
        "update_fp32_checkpointed": (sides.update("ours", again=True), sides.update("literal")),
    }
    found: dict[str, Any] = {"nodes": sides.graphs[0].shape[1], "batch": len(sides.graphs[0]), "largest_difference": difference}
    found["parameters"] = sum(p.numel() for p in sides.ours.parameters())
    fp32: Timing | None = None
    for name, pair in jobs.items():
        ours, literal = interleaved(pair, options.repeats, device=options.device)
        fp32 = fp32 or literal
        found[name] = _ratio(ours.by(clock), literal.by(clock))
        if name == "forward_bf16":
            found["forward_bf16_against_fp32"] = _ratio(ours.by(clock), fp32.by(clock))
    found["activations"] = memory(sides)
    return found


def _ratio(ours: Sequence[float], literal: Sequence[float]) -> dict[str, Any]:
    ratio, low, high = paired_ratio(ours, literal)
    seconds = {"ours_s": statistics.median(ours), "literal_s": statistics.median(literal)}
    return {"ratio": round(ratio, 3), "least": round(low, 3), "largest": round(high, 3), **seconds}


def memory(sides: Sides) -> dict[str, Any]:
    """Most bytes alive during an update, beyond parameters and their gradients."""
    found: dict[str, Any] = {}
    for name, side, again in (("literal", "literal", False), ("ours", "ours", False), ("checkpointed", "ours", True)):
        job = sides.update(side, again=again)
        if sides.device == "cpu":
            found[name] = peak_allocated(job)
        else:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            job()
            found[name] = torch.cuda.max_memory_allocated() - before
    return found | {name + "_less": round(found["literal"] / found[name], 1) for name in ("ours", "checkpointed")}


def _memory_row(found: dict[str, Any]) -> dict[str, float]:
    return {"activations": found["ours_less"], "activations, checkpointed": found["checkpointed_less"]}


# -- GRPO on a checkpoint of the published size


def grpo(seed: int, checkpointed: bool) -> dict[str, Any]:
    """Two updates from a file on; this process's largest resident memory counts everything."""
    torch.set_num_threads(1)
    start, case = time.perf_counter(), CASES["zinc"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "defog.ckpt"
        torch.save({"state_dict": {"model." + k: t for k, t in case.state(seed).items()}}, path)
        policy = import_defog(path, dataset="zinc", num_steps=10, checkpoint_layers=checkpointed).policy
    config = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, per_device_batch_size=4, beta=0.02, seed=seed)
    lines = GRPOTrainer(policy, _length, config, columns=[{"num_nodes": 38}, {"num_nodes": 30}]).train()
    return {
        "parameters": sum(p.numel() for p in policy.parameters()),
        "updates": len(lines),
        "sampler_steps": policy.num_steps,
        "samples_an_update": config.generation_batch_size,
        "nodes": [38, 30],
        "checkpoint_layers": checkpointed,
        "wall_s": round(time.perf_counter() - start, 1),
        "peak_resident_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3),
    }


def _length(samples: Sequence[str | None], **columns: Any) -> list[float]:
    return [float(len(s or "")) + 0.1 * k for k, s in enumerate(samples)]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark and write its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than published, for a trial")
    parser.add_argument("--batch", type=int, default=0, help="graphs at once; 0 is the case's own")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-grpo", action="store_true")
    parser.add_argument("--only-grpo", action="store_true", help="the two updates alone, in this process")
    parser.add_argument("--checkpointed", action="store_true", help="with --only-grpo: compute layers again for gradients")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "import_speed.json"))
    options = parser.parse_args(arguments)
    if options.only_grpo:
        found = grpo(options.seed, options.checkpointed)
        print(json.dumps(found))
        return found
    chosen = {name: replace(CASES[name], layers=options.layers or CASES[name].layers) for name in options.cases}
    result = stamp(options.seed, device=options.device, sources=SOURCES)
    if not options.without_grpo:  # first, while this process is small: a child's largest resident memory starts from its parent's
        command = [sys.executable, "-m", "benchmarks.import_speed", "--only-grpo", f"--seed={options.seed}"]
        for name, more in (("grpo_zinc", ""), ("grpo_zinc_checkpointed", "--checkpointed")):
            done = subprocess.run([*command, *more.split()], cwd=ROOT, check=True, capture_output=True, text=True)
            result[name] = json.loads(done.stdout.splitlines()[-1])
    result["cases"] = {name: measure(case, options) for name, case in chosen.items()}
    write_result(options.out, result)
    columns = ("forward_fp32", "forward_bf16", "forward_bf16_against_fp32", "update_fp32", "update_fp32_checkpointed")
    table = {name: {k: c[k]["ratio"] for k in columns} | _memory_row(c["activations"]) for name, c in result["cases"].items()}
    print_table("how many times faster or smaller the imported network is (literal / ours)", table)
    return result


if __name__ == "__main__":
    main()
