"""Launches, synchronisations and blocking copies of a sampling step and of an update, counted on a pretend CUDA device.

    python -m benchmarks.launches                # the committed table: CPU, some minutes

No GPU is needed: tensors say that they are on cuda:0, hold their data on the CPU and count (``tests/pretend_cuda.py``). Counts do
not depend on the number of samples, so few are drawn. A step is the difference between a draw with more and one with fewer steps,
divided by the number of steps between them; an update is the second of a run. Layers are not compiled. Times are not measured.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.diffusion.choices import make_kernel, make_noise, make_schedule
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.runs.console import print_table
from discrete_grpo.training import trainer
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer
from discrete_grpo.training.update import Learner
from tests.pretend_cuda import Counts, Cuda, accelerator, pretending

__all__ = ["main", "of_a_step", "of_an_update"]

SOURCES = (
    "benchmarks/launches.py",
    "tests/pretend_cuda.py",
    "tests/pretend_tensors.py",
    "discrete_grpo/policies/recorded.py",
    "discrete_grpo/policies/graph_steps.py",
    "discrete_grpo/policies/field_steps.py",
    "discrete_grpo/policies/graph.py",
    "discrete_grpo/policies/fields.py",
    "discrete_grpo/policies/tokens.py",
    "discrete_grpo/training/update.py",
    "models/graph_transformer.py",
    "models/gpt.py",
)
COLUMNS: dict[str, Any] = {"digits": {"label": 3}, "fill-in": {"masked": "the ___ are __"}}
BUNDLED = ("qm9-small", "tree-16", "planar-16", "qm9-3d", "smiles-zinc", "digits", "fill-in")
PRESET = "tree, planar, sbm (presets, untrained)"
FEW, MANY = 3, 7
"""Steps of the two draws of a diffusion policy."""


def policy_of(name: str) -> Any:
    """A bundled policy, or an untrained one with the depth, features and noise of the presets of 64 nodes and narrow layers."""
    if name != PRESET:
        return load_policy(name)
    schedule = make_schedule("linear")
    kernels = [make_kernel("d3pm", make_noise("marginal", shares, schedule)) for shares in ((1.0,), (0.9, 0.1))]
    sizes: dict[str, Any] = {"layers": 8, "heads": 8, "width": 16, "edge_width": 8, "global_width": 8, "walk_length": 16}
    network = GraphTransformer(GraphTransformerConfig(1, 2, 1, 2, **sizes, connectivity=True, log_time=True))
    sizes_of_graphs = [0.0] * 12 + [1.0]
    return GraphPolicy(network, kernels[0], kernels[1], sizes_of_graphs, precondition=True, decode=_edges).eval()


def _edges(graphs: GraphBatch) -> list[tuple[int, ...]]:
    return [tuple(row) for row in graphs.edges.flatten(1).tolist()]


def _with_steps(policy: Any, steps: int) -> Any:
    made = type(policy)(**policy.init_args() | {"num_steps": steps})
    made.load_state_dict(policy.state_dict())
    made.decode = policy.decode
    return made.eval()


def _drawn(cuda: Cuda, policy: Any, columns: Any, record: bool) -> tuple[Counts, int]:
    """Counts of the second draw of a policy, and its number of steps; the first one copies the constants."""
    moved = cuda.move(policy)
    if record:
        moved.record_steps = True  # type: ignore[assignment]
    contexts = group_contexts(1, 4, None if columns is None else [columns])
    for _ in range(2):
        with cuda.counting() as counts:
            rollout = policy.sample(contexts, generator=cuda.generator())
    return counts, rollout.num_steps


def of_a_step(name: str, *, record: bool = False) -> dict[str, float]:
    """Counts of a sampling step of a policy; with ``record`` of a step that is recorded as a CUDA graph."""
    policy, columns = policy_of(name), COLUMNS.get(name)
    with pretending() as cuda:
        if hasattr(policy, "num_steps"):
            (few, a), (many, b) = (_drawn(cuda, _with_steps(policy, k), columns, record) for k in (FEW, MANY))
        else:  # texts end by themselves; what a whole draw copies is divided among their tokens
            (few, a), (many, b) = (Counts(), 0), _drawn(cuda, policy, columns, record)
    pairs = [("launches", few.launches, many.launches), ("synchronisations", few.waits, many.waits)]
    pairs.append(("blocking_copies", few.blocking_copies, many.blocking_copies))
    return {key: round((after - before) / (b - a), 2) for key, before, after in pairs}


def _by_name(samples: Sequence[Any], **columns: Any) -> list[float]:
    return [zlib.crc32(str(one).encode()) % 1000 / 1000 for one in samples]


@contextmanager
def _counted(cuda: Cuda, found: list[Counts]) -> Iterator[None]:
    """Let trainers run on the device and note the counts of each update."""
    update = Learner.update

    def counted(learner: Learner, *arguments: Any) -> dict[str, float]:
        with cuda.counting() as counts:
            line = update(learner, *arguments)
        found.append(counts)
        return line

    with mock.patch.object(Learner, "update", counted), mock.patch.object(trainer, "accelerator", accelerator):
        yield


def of_an_update(name: str) -> dict[str, float]:
    """Counts of an update with the exact KL and a moving average, in two forward passes of all steps."""
    config = GRPOConfig(
        max_steps=2, num_generations=2, generation_batch_size=4, per_device_batch_size=2, beta=0.1, ema_decay=0.9, seed=42
    )
    policy, columns = policy_of(name), COLUMNS.get(name)
    if hasattr(policy, "num_steps"):
        policy = _with_steps(policy, FEW)
    found: list[Counts] = []
    with pretending() as cuda, _counted(cuda, found):
        GRPOTrainer(policy, _by_name, config, columns=None if columns is None else [columns]).train()
    last = found[-1]
    return {"launches": last.launches, "synchronisations": last.waits, "blocking_copies": last.blocking_copies}


def measured(name: str) -> dict[str, Any]:
    """Counts of a policy."""
    found: dict[str, Any] = {"step": of_a_step(name), "update": of_an_update(name)}
    if hasattr(policy_of(name), "record_steps"):
        found["recorded step"] = of_a_step(name, record=True)
    return found


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Count, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=[*BUNDLED, PRESET], help="bundled policies, or the presets of 64 nodes")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "launches.json"))
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(42)
    found = {name: measured(name) for name in given.policies}
    for part in ("step", "recorded step", "update"):
        if rows := {name: row[part] for name, row in found.items() if part in row}:
            print_table(f"counts of one {part}", rows)
    write_result(Path(given.out), {**stamp(42, sources=SOURCES), "policies": found})
    return found


if __name__ == "__main__":
    main()
