"""Peak memory of an update against trajectory length and graph size, and of stored trajectories against one-hot storage.

    python -m benchmarks.memory                  # the committed table: CPU, some minutes

Every graph has the full N nodes. A peak is what an update of :class:`GRPOTrainer` has allocated at once above weights,
moments, the stored trajectories and the cut of them into passes: exact, from torch's own account. It does not depend on what
the network has learned, so its weights are random. The setting of the stored trajectories is GDPO's on ZINC250k: 256 molecules
of up to 38 atoms in 500 steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import ROOT, peak_allocated, stamp, write_result
from discrete_grpo.core.rollout import Rollout, group_contexts
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import marginal
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.runs.console import print_table
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.minibatches import TrainRows, windows
from discrete_grpo.training.trainer import GRPOTrainer

__all__ = ["Setting", "main", "one_hot_bytes", "storage", "stored_bytes", "update_peak"]

SOURCES = (
    "models/graph_transformer.py",
    "models/pairs.py",
    "discrete_grpo/policies/graph.py",
    "discrete_grpo/domains/graphs.py",
    "discrete_grpo/training/trainer.py",
    "discrete_grpo/training/update.py",
    "benchmarks/memory.py",
)
NODE_PRIOR = (0.74, 0.11, 0.11, 0.01, 0.01, 0.005, 0.005, 0.005, 0.005)  # ZINC250k's marginals, rounded
EDGE_PRIOR = (0.90, 0.08, 0.01, 0.01)
MIB = 2**20


@dataclass(frozen=True)
class Setting:
    """Settings of the measurement.

    Attributes:
        nodes: sizes of the graphs.
        steps: lengths of the trajectories.
        batch: trajectories of an update, all in one pass.
        chunk: steps in one pass where passes are chunked.
        limit: largest number of node pairs, over all steps and trajectories, that is also run without chunks.
        layers: of the network.
        width: of its nodes.
        edge_width: of its pairs.
        storage_steps: length of the trajectories that are only stored.
        storage_batch: how many of them are drawn.
        storage_total: how many there are in the setting compared with: of each, bytes are in proportion.
        seed: of weights and trajectories.
    """

    nodes: tuple[int, ...] = (9, 24, 38, 64)
    steps: tuple[int, ...] = (10, 50, 100, 200)
    batch: int = 2
    chunk: int = 5
    limit: int = 1_000_000
    layers: int = 2
    width: int = 32
    edge_width: int = 16
    storage_steps: int = 500
    storage_batch: int = 4
    storage_total: int = 256
    seed: int = 0


def make_policy(nodes: int, steps: int, setting: Setting) -> GraphPolicy:
    """A policy with random weights for graphs of exactly ``nodes`` nodes."""
    torch.manual_seed(setting.seed)
    schedule, classes = CosineSchedule(), (len(NODE_PRIOR), len(EDGE_PRIOR))
    network = GraphTransformerConfig(
        *classes,
        *classes,
        layers=setting.layers,
        heads=4,
        width=setting.width,
        edge_width=setting.edge_width,
        global_width=setting.edge_width,
        walk_length=4,
    )
    priors = D3PM(marginal(NODE_PRIOR, schedule)), D3PM(marginal(EDGE_PRIOR, schedule))
    return GraphPolicy(GraphTransformer(network), *priors, [0.0] * nodes + [1.0], num_steps=steps)


def draw(policy: GraphPolicy, batch: int, seed: int) -> Rollout:
    """One group of trajectories."""
    return policy.sample(group_contexts(1, batch), generator=torch.Generator().manual_seed(seed))


# -- an update


def update_peak(nodes: int, steps: int, chunk: int | None, setting: Setting) -> dict[str, int]:
    """Bytes an update has at once, beside what was there before, and bytes of what its passes hold.

    Args:
        nodes: N.
        steps: length of the trajectories.
        chunk: steps in one pass; None: all.
        setting: the rest.

    Returns:
        ``peak``: of the update; ``passes``: trajectories that its passes hold meanwhile; ``count``: of passes.
    """
    config = GRPOConfig(
        max_steps=10, generation_batch_size=setting.batch, num_generations=setting.batch, timestep_chunk=chunk, beta=0.0
    )
    policy = make_policy(nodes, steps, setting)
    trainer = GRPOTrainer(policy, lambda samples, **columns: [0.0] * len(samples), config)
    rollout = draw(policy, setting.batch, setting.seed)
    advantage = torch.linspace(-1.0, 1.0, setting.batch)
    on = torch.ones(setting.batch, dtype=torch.bool)
    (cut,) = windows([TrainRows(rollout, advantage, on, on, ~on)], config)
    held = {id(chunk.rollout): chunk.rollout for chunk in cut}  # passes of the same rows share theirs
    first = cut[: max(1, len(cut) // 50)]
    trainer.learner.update(trainer.step, first, [None] * len(first))  # so that moments exist
    peak = peak_allocated(lambda: trainer.learner.update(trainer.step, cut, [None] * len(cut)))
    return {"peak": peak, "passes": sum(map(stored_bytes, held.values())), "count": len(cut)}


def updates(setting: Setting) -> list[dict[str, Any]]:
    """One row per graph size and length."""
    rows = []
    for nodes in setting.nodes:
        for steps in setting.steps:
            row: dict[str, Any] = {"nodes": nodes, "steps": steps}
            row["chunked"] = update_peak(nodes, steps, setting.chunk, setting)
            pairs = setting.batch * steps * nodes * (nodes - 1) // 2
            row["whole"] = update_peak(nodes, steps, None, setting) if pairs <= setting.limit else None
            rows.append(row)
    return rows


def growth(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """By graph size: peak of the longest trajectory over that of the shortest, of those that were run."""
    found: dict[str, dict[str, float | None]] = {}
    for nodes in dict.fromkeys(row["nodes"] for row in rows):
        line: dict[str, float | None] = {}
        for kind in ("chunked", "whole"):
            run = [(row["steps"], row[kind]["peak"]) for row in rows if row["nodes"] == nodes and row[kind] is not None]
            line[kind] = run[-1][1] / run[0][1] if run else None
            line[f"{kind}_steps"] = run[-1][0] / run[0][0] if run else None
        found[str(nodes)] = line
    return found


# -- stored trajectories


def stored_bytes(rollout: Rollout) -> int:
    """Bytes of everything a rollout keeps in tensors: states, log-probs, counts, groups and sizes."""
    rest = (rollout.logp, rollout.units, rollout.group, rollout.size)
    return rollout.nbytes() + sum(x.numel() * x.element_size() for x in rest)


def one_hot_bytes(nodes: int, steps: int, node_classes: int, edge_classes: int) -> int:
    """4 ((S + 1) (N C_x + N² C_e) + S): one trajectory as float32 one-hot states, both triangles, and one log-prob per step."""
    return 4 * ((steps + 1) * (nodes * node_classes + nodes**2 * edge_classes) + steps)


def storage(setting: Setting, nodes: int = 38) -> dict[str, Any]:
    """Stored trajectories of ZINC-size graphs: ours as drawn, one-hot ones by their formula."""
    policy = make_policy(nodes, setting.storage_steps, setting)
    each = stored_bytes(draw(policy, setting.storage_batch, setting.seed)) / setting.storage_batch
    other = one_hot_bytes(nodes, setting.storage_steps, len(NODE_PRIOR), len(EDGE_PRIOR))
    return {
        "nodes": nodes,
        "steps": setting.storage_steps,
        "trajectories": setting.storage_total,
        "ours": each * setting.storage_total,
        "one_hot": other * setting.storage_total,
        "ratio": other / each,
    }


# -- the table


def show(result: dict[str, Any], setting: Setting) -> None:
    """Peaks in MiB, and how they grow."""
    table: dict[str, dict[str, float | str | None]] = {}
    for row in result["updates"]:
        whole = row["whole"]
        table[f"N={row['nodes']} S={row['steps']}"] = {
            f"peak, {setting.chunk} steps a pass": f"{row['chunked']['peak'] / MIB:.2f} MiB",
            "peak, all at once": "not run" if whole is None else f"{whole['peak'] / MIB:.2f} MiB",
            "held by the passes": f"{row['chunked']['passes'] / MIB:.2f} MiB",
        }
    print_table(f"memory of an update of {setting.batch} trajectories", table)
    lines: dict[str, dict[str, float | str | None]] = {}
    for nodes, line in result["growth"].items():
        lines[f"N={nodes}"] = {
            kind: "not run" if line[kind] is None else f"{line[kind]:.2f}x for {line[f'{kind}_steps']:g}x the steps"
            for kind in ("chunked", "whole")
        }
    print_table("growth of the peak with the number of steps", lines)
    s = result["storage"]
    line = {"ours": f"{s['ours'] / MIB:.0f} MiB", "one-hot": f"{s['one_hot'] / MIB:.0f} MiB", "ratio": f"{s['ratio']:.1f}x"}
    print_table("stored trajectories", {f"{s['trajectories']} of N={s['nodes']} S={s['steps']}": line})


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Setting()
    for name in ("nodes", "steps"):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=list(getattr(default, name)))
    for name in ("batch", "chunk", "limit", "layers", "width", "edge_width", "storage_steps", "storage_batch", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(default, name))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "memory.json")
    given = vars(parser.parse_args(arguments))
    out = given.pop("out")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    setting = Setting(**values)
    start = time.perf_counter()
    rows = updates(setting)
    result = stamp(setting.seed, sources=SOURCES) | {
        "settings": asdict(setting),
        "updates": rows,
        "growth": growth(rows),
        "storage": storage(setting),
    }
    result["seconds"] = time.perf_counter() - start
    write_result(out, result)
    show(result, setting)
    return result


if __name__ == "__main__":
    main()
