"""Our GraphTransformer + GraphPolicy against a peer-shaped implementation of equal widths, in one process.

    python -m benchmarks.graph_policy_speed                     # the committed table: CPU, one thread, some minutes
    python -m benchmarks.graph_policy_speed --device cuda --dtype bf16 --layers 10 --batch 64

Every graph of a case has the full N nodes, so nothing here measures padding. Ours and the baseline take turns in every
repeat and a ratio is the median over pairs, so that a slow spell of the machine falls on both. With one CPU thread the
clock is processor time, since a shared machine's wall clock also counts its other users; both are in the result.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.baseline_graph import PeerNetwork, PeerPolicy
from benchmarks.common import ROOT, Clock, Timing, interleaved, paired_ratio, peak_allocated, stamp, write_result
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.loss import grpo_loss, row_weights
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import marginal
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.models.graph_transformer import BASE, SMALL, GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.runs.console import print_table

__all__ = ["CASES", "Baseline", "Case", "Ours", "main"]

SOURCES = (
    "models/graph_transformer.py",
    "models/pairs.py",
    "discrete_grpo/policies/graph.py",
    "discrete_grpo/domains/graphs.py",
    "discrete_grpo/diffusion/kernels.py",
    "discrete_grpo/core/categorical.py",
    "benchmarks/baseline_graph.py",
    "benchmarks/graph_policy_speed.py",
)
WIDTHS: dict[str, dict[str, Any]] = {"small": SMALL, "base": BASE}


@dataclass(frozen=True)
class Case:
    """Graphs of ``nodes`` nodes, whose classes have the data's (rounded) marginals, and how many go at once."""

    name: str
    nodes: int
    node_prior: tuple[float, ...]
    edge_prior: tuple[float, ...]
    batch: int


CASES = {
    case.name: case
    for case in (
        Case("qm9", 9, (0.72, 0.12, 0.15, 0.01), (0.73, 0.23, 0.02, 0.02), 64),
        Case("zinc", 38, (0.74, 0.11, 0.11, 0.01, 0.01, 0.005, 0.005, 0.005, 0.005), (0.90, 0.08, 0.01, 0.01), 8),
        Case("planar", 64, (1.0,), (0.91, 0.09), 4),
    )
}


@dataclass(frozen=True)
class Settings:
    """Settings of the measurement, as on the command line."""

    layers: int
    steps: int
    update_steps: int
    repeats: int
    device: str
    dtype: str
    threads: int
    seed: int

    @property
    def clock(self) -> Clock:
        """Processor time where one thread does all the work, else the wall clock."""
        return "cpu" if torch.device(self.device).type == "cpu" and self.threads == 1 else "wall"


def network_config(case: Case, widths: str, layers: int) -> GraphTransformerConfig:
    """Sizes shared by both networks."""
    nodes, edges = len(case.node_prior), len(case.edge_prior)
    return GraphTransformerConfig(nodes, edges, nodes, edges, **(WIDTHS[widths] | {"layers": layers}))


# -- the two sides: the same three jobs in each one's own terms


class _Side:
    """Parts that both sides share: the trained module, its optimizer and the steps an update uses."""

    inputs: tuple[Tensor, ...]

    def __init__(self, module: GraphPolicy | PeerPolicy, case: Case, settings: Settings) -> None:
        self.module = module.to(settings.device).eval()
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5)
        self.generator = torch.Generator(settings.device).manual_seed(settings.seed)
        self.batch, self.settings = case.batch, settings
        spacing = settings.steps / settings.update_steps
        self.steps = [int((k + 0.5) * spacing) for k in range(settings.update_steps)]
        self.advantage = torch.linspace(-1.0, 1.0, case.batch, device=settings.device)

    def autocast(self) -> torch.autocast:
        kind = torch.device(self.settings.device).type
        return torch.autocast(kind, torch.bfloat16, enabled=self.settings.dtype == "bf16")

    def forward(self) -> Any:
        """One call of the network."""
        with torch.no_grad(), self.autocast():
            return self.module.network(*self.inputs)

    def update_with(self, part: Callable[[int], Tensor]) -> None:
        """One optimizer step; ``part(position)`` is the loss of one of the steps, and each is backpropagated alone."""
        self.optimizer.zero_grad(set_to_none=True)
        for position in range(len(self.steps)):
            with self.autocast():
                loss = part(position)
            loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()

    @property
    def parameters(self) -> int:
        """Trained numbers."""
        return sum(p.numel() for p in self.module.parameters())


class Ours(_Side):
    """:class:`GraphPolicy` with :class:`GraphTransformer`."""

    def __init__(self, case: Case, widths: str, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        schedule = CosineSchedule()
        self.policy = GraphPolicy(
            GraphTransformer(network_config(case, widths, settings.layers)),
            D3PM(marginal(case.node_prior, schedule)),
            D3PM(marginal(case.edge_prior, schedule)),
            [0.0] * case.nodes + [1.0],
            num_steps=settings.steps,
        )
        super().__init__(self.policy, case, settings)
        self.rollout = self.sample()
        mask = torch.ones(case.batch, case.nodes, dtype=torch.bool, device=settings.device)
        shape = (case.batch, case.nodes, case.nodes)
        edges = torch.randint(len(case.edge_prior), shape, generator=self.generator, device=settings.device).triu(1)
        nodes = torch.randint(len(case.node_prior), shape[:2], generator=self.generator, device=settings.device)
        self.inputs = nodes, edges + edges.transpose(1, 2), torch.full((case.batch,), 0.5, device=settings.device), mask

    @property
    def nbytes(self) -> int:
        """Bytes of a stored batch of trajectories."""
        return self.rollout.nbytes()

    def sample(self) -> Any:
        """A batch of trajectories."""
        with self.autocast():
            return self.policy.sample(group_contexts(1, self.batch), generator=self.generator)

    def update(self) -> None:
        """One optimizer step of the clipped surrogate."""
        units = self.rollout.units[:, self.steps]
        weight = row_weights(units, "grpo", self.rollout.max_units, level="step")
        self.update_with(lambda position: self.loss(position, weight))

    def loss(self, position: int, weight: Tensor) -> Tensor:
        """Share of one step in the clipped surrogate whose ratio is that of a whole step."""
        chosen = torch.full((self.batch, 1), self.steps[position], device=self.advantage.device)
        scores = score_sites(self.policy.sites(self.rollout, chosen))
        return grpo_loss(scores, None, self.advantage, weight, level="step").loss


class Baseline(_Side):
    """:class:`PeerPolicy` with :class:`PeerNetwork`."""

    def __init__(self, case: Case, widths: str, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        schedule = CosineSchedule()
        self.policy = PeerPolicy(
            PeerNetwork(network_config(case, widths, settings.layers)),
            D3PM(marginal(case.node_prior, schedule)),
            D3PM(marginal(case.edge_prior, schedule)),
            case.nodes,
            settings.steps,
        )
        super().__init__(self.policy, case, settings)
        self.trajectory = self.sample()
        middle = settings.steps // 2
        mask = torch.ones(case.batch, case.nodes, dtype=torch.bool, device=settings.device)
        time = torch.full((case.batch,), 0.5, device=settings.device)
        self.inputs = self.trajectory.x[middle], self.trajectory.e[middle], time, mask

    @property
    def nbytes(self) -> int:
        """Bytes of a stored batch of trajectories."""
        return self.trajectory.nbytes()

    def sample(self) -> Any:
        """A batch of trajectories."""
        with self.autocast():
            return self.policy.sample(self.batch, self.generator)

    def update(self) -> None:
        """One optimizer step of the clipped surrogate."""
        self.update_with(lambda position: self.policy.loss(self.trajectory, self.steps, position, self.advantage))


SIDES: dict[str, type[Ours | Baseline]] = {"ours": Ours, "baseline": Baseline}


# -- measuring


def measure(case: Case, widths: str, settings: Settings, memory: bool) -> dict[str, Any]:
    """One row of the table."""
    ours, baseline = Ours(case, widths, settings), Baseline(case, widths, settings)
    row: dict[str, Any] = {"case": case.name, "widths": widths, "nodes": case.nodes, "batch": case.batch}
    row["node_classes"], row["edge_classes"] = len(case.node_prior), len(case.edge_prior)
    row["parameters"] = {"ours": ours.parameters, "baseline": baseline.parameters}
    for side in (ours, baseline):
        if not all(logits.isfinite().all() for logits in side.forward()):
            raise FloatingPointError(
                f"{type(side).__name__}: logits of {case.name} at {widths} widths overflow; use fewer --layers"
            )
    jobs = {"forward": case.batch, "update": 1, "sampling": case.batch}
    for job, count in jobs.items():
        method = "sample" if job == "sampling" else job
        pair = getattr(ours, method), getattr(baseline, method)
        mine, theirs = interleaved(pair, settings.repeats, device=settings.device)
        row[job] = _compare(mine, theirs, count, settings.clock)
    row["trajectory_bytes"] = _sizes(ours.nbytes, baseline.nbytes)
    row["peak_bytes"] = _sizes(peak_memory(ours), peak_memory(baseline)) if memory else None
    return row


def _compare(ours: Timing, baseline: Timing, count: int, clock: Clock) -> dict[str, Any]:
    ratio, low, high = paired_ratio(ours.by(clock), baseline.by(clock))
    rates = {name: count / statistics.median(timing.by(clock)) for name, timing in (("ours", ours), ("baseline", baseline))}
    return {
        "ratio": ratio,
        "ratio_range": [low, high],
        "ratio_wall": paired_ratio(ours.wall, baseline.wall)[0],
        "per_second": rates,
        "seconds": {"ours": asdict(ours), "baseline": asdict(baseline)},
    }


def _sizes(ours: int, baseline: int) -> dict[str, float]:
    return {"ours": ours, "baseline": baseline, "ratio": baseline / max(1, ours)}


def peak_memory(side: Ours | Baseline) -> int:
    """Most bytes that sampling or an update has in use at once, above weights, gradients and optimizer state."""
    side.update()  # so that gradients and moments exist
    return max(_peak(job, side.settings.device) for job in (side.sample, side.update))


def _peak(job: Callable[[], object], device: str) -> int:
    if torch.device(device).type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        job()
        return torch.cuda.max_memory_allocated(device) - before
    return peak_allocated(job)


# -- the table


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Ratios, baseline over ours: more than 1 means ours is faster or smaller."""
    table = {}
    for row in rows:
        line: dict[str, float | str | None] = {}
        for job in ("forward", "update", "sampling"):
            low, high = row[job]["ratio_range"]
            line[job] = f"{row[job]['ratio']:.2f}x ({low:.2f}-{high:.2f})"
        for job, name in (("update", "updates/s"), ("sampling", "samples/s")):
            line[name] = " / ".join(f"{row[job]['per_second'][side]:.3g}" for side in SIDES)
        line["trajectory"] = f"{row['trajectory_bytes']['ratio']:.1f}x"
        if (peak := row["peak_bytes"]) is not None:
            line["peak memory"] = f"{peak['ratio']:.1f}x ({peak['ours'] / 2**20:.0f} / {peak['baseline'] / 2**20:.0f} MiB)"
        table[f"{row['widths']} {row['case']} N={row['nodes']} B={row['batch']}"] = line
    print_table("how many times faster or smaller ours is (ours / baseline)", table)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--widths", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--layers", type=int, default=3, help="of both networks")
    parser.add_argument("--batch", type=int, default=None, help="graphs at once; default: 64, 8 and 4 by case")
    parser.add_argument("--steps", type=int, default=5, help="reverse steps of a sample")
    parser.add_argument("--update-steps", type=int, default=2, help="steps of the trajectory an update replays, one at a time")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast, on both sides")
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True, help="measure peak memory too")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/graph_policy_speed.json")
    parsed = parser.parse_args(argv)
    if not 1 <= parsed.update_steps <= parsed.steps:
        parser.error(f"--update-steps: {parsed.update_steps}, expected 1 to --steps ({parsed.steps})")
    return parsed


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write."""
    given = arguments(argv)
    torch.set_num_threads(given.threads)
    settings = Settings(**{name: getattr(given, name) for name in Settings.__dataclass_fields__})
    result = stamp(given.seed, device=given.device, sources=SOURCES)
    result["settings"] = asdict(settings) | {
        "clock": settings.clock,
        "widths": {name: WIDTHS[name] | {"layers": given.layers} for name in given.widths},
    }
    rows = []
    for widths in given.widths:
        for name in given.cases:
            case = CASES[name]
            case = case if given.batch is None else Case(case.name, case.nodes, case.node_prior, case.edge_prior, given.batch)
            rows.append(measure(case, widths, settings, given.memory))
            show(rows[-1:])
    result |= {"rows": rows, "load_average_after": stamp(given.seed)["load_average"]}
    write_result(given.out, result)
    show(rows)
    return result


if __name__ == "__main__":
    main()
