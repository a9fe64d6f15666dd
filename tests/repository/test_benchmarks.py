"""The benchmarks' baseline computes the same probabilities as ours, and the scripts run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks import presets, vun
from benchmarks.baseline_graph import PeerNetwork, PeerPolicy, Trajectory, average_posterior, noise_matrix, posterior_over_x0
from benchmarks.common import ROOT, interleaved, paired_ratio, peak_allocated, stamp, write_result
from benchmarks.graph_policy_speed import CASES, Baseline, Ours, Settings, main
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.loss import grpo_loss, row_weights
from discrete_grpo.core.rollout import Rollout, group_contexts
from discrete_grpo.datasets.graph_splits import write_npz
from discrete_grpo.datasets.synthetic_graphs import make_splits
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import marginal, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.domains.graphs import unpack
from discrete_grpo.models.graph_transformer import GraphTransformerConfig
from discrete_grpo.policies.graph import GraphPolicy

CONFIG = GraphTransformerConfig(3, 2, 3, 2, layers=1, heads=2, width=8, edge_width=6, global_width=4, walk_length=3)
NODE_PRIOR, EDGE_PRIOR = (0.5, 0.2, 0.3), (0.8, 0.2)


class IntegerView(nn.Module):
    """A peer's network behind our interface: integer classes in, the same logits out."""

    def __init__(self, network: PeerNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, nodes: Tensor, edges: Tensor, time: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.network(*one_hot(nodes, edges), time, mask)


def one_hot(nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    encode = nn.functional.one_hot
    off_diagonal = 1.0 - torch.eye(nodes.shape[-1])
    return encode(nodes, 3).float(), encode(edges, 2).float() * off_diagonal[:, :, None]


def both_policies(nodes: int = 5, steps: int = 4) -> tuple[GraphPolicy, PeerPolicy]:
    torch.manual_seed(3)
    network, schedule = PeerNetwork(CONFIG).eval(), CosineSchedule()
    kernels = D3PM(marginal(NODE_PRIOR, schedule)), D3PM(marginal(EDGE_PRIOR, schedule))
    ours = GraphPolicy(IntegerView(network), *kernels, [0.0] * nodes + [1.0], num_steps=steps)
    return ours, PeerPolicy(network, *kernels, nodes, steps)


def as_one_hot(rollout: Rollout) -> Trajectory:
    """Our packed trajectory in the baseline's one-hot form."""
    states = rollout.states
    mask = torch.ones(len(rollout), states["nodes"].shape[2], dtype=torch.bool)
    graphs = [unpack(states["nodes"][:, k], states["pairs"][:, k], mask) for k in range(rollout.num_steps + 1)]
    pairs = [one_hot(g.nodes, g.edges) for g in graphs]
    return Trajectory(torch.stack([x for x, _ in pairs]), torch.stack([e for _, e in pairs]), rollout.logp)


@pytest.mark.parametrize("kernel", [D3PM(marginal((0.6, 0.3, 0.1), CosineSchedule())), D3PM(uniform(4, CosineSchedule()))])
@pytest.mark.parametrize(("t", "s"), [(1.0, 0.8), (0.6, 0.55), (0.1, 0.0)])
def test_posterior_of_the_baseline_is_our_transition(kernel: D3PM, t: float, s: float) -> None:
    c = kernel.noise.num_states
    generator = torch.Generator().manual_seed(1)
    p_clean = torch.rand(2, 7, c, generator=generator, dtype=torch.float64).softmax(-1)
    state = torch.randint(c, (2, 7), generator=generator)
    times = torch.full((2,), t, dtype=torch.float64), torch.full((2,), s, dtype=torch.float64)
    bar_t, bar_s = (kernel.noise.schedule.alpha_bar(x) for x in times)
    prior = kernel.noise.initial()
    matrices = noise_matrix(bar_t / bar_s, prior), noise_matrix(bar_s, prior), noise_matrix(bar_t, prior)
    table = posterior_over_x0(nn.functional.one_hot(state, c).double(), *matrices)
    for b in range(2):  # the whole table [x_0, x_s] first, against the kernel's own oracle
        assert torch.allclose(table[b], kernel.table(t, s)[state[b]], atol=1e-12)
    assert torch.allclose(average_posterior(p_clean, table), kernel.transition(p_clean, state, *times), atol=1e-12)


def test_log_prob_of_the_baseline_is_ours_given_identical_logits() -> None:
    ours, peer = both_policies()
    rollout = ours.sample(group_contexts(1, 6), generator=torch.Generator().manual_seed(0))
    trajectory = as_one_hot(rollout)
    scores = score_sites(ours.sites(rollout))
    for step in range(4):
        theirs = peer.log_prob(trajectory, step)
        assert torch.allclose(theirs, scores.logp[:, step].sum(-1), atol=1e-5)
        assert torch.allclose(theirs, rollout.logp[:, step], atol=1e-5)


def test_loss_and_gradient_of_the_baseline_are_ours_given_identical_logits() -> None:
    ours, peer = both_policies()
    rollout = ours.sample(group_contexts(1, 6), generator=torch.Generator().manual_seed(0))
    trajectory, advantage, steps = as_one_hot(rollout), torch.linspace(-1, 2, 6), [1, 3]
    chosen = torch.tensor(steps).expand(6, -1)
    weight = row_weights(rollout.units[:, steps], "grpo", rollout.max_units, level="step")
    mine = grpo_loss(score_sites(ours.sites(rollout, chosen)), None, advantage, weight, level="step").loss
    theirs = torch.stack([peer.loss(trajectory, steps, k, advantage) for k in range(2)]).sum()
    assert torch.allclose(mine, theirs, atol=1e-5)
    parameters = [p for p in peer.parameters() if p.requires_grad]
    for a, b in zip(*(torch.autograd.grad(loss, parameters, allow_unused=True) for loss in (mine, theirs)), strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert torch.allclose(a, b, atol=1e-5)


def test_states_of_the_baseline_are_simple_graphs_and_its_log_probs_those_it_drew_with() -> None:
    _, peer = both_policies()
    trajectory = peer.sample(6, torch.Generator().manual_seed(0))
    assert torch.equal(trajectory.e, trajectory.e.transpose(2, 3))
    assert trajectory.e.diagonal(dim1=2, dim2=3).abs().sum() == 0
    assert torch.equal(trajectory.x.sum(-1), torch.ones(5, 6, 5))
    assert trajectory.e.sum() == 5 * 6 * 5 * 4
    for step in range(4):
        assert torch.allclose(peer.log_prob(trajectory, step), trajectory.logp[:, step], atol=1e-5)


def test_the_baseline_network_is_permutation_equivariant() -> None:
    network = both_policies()[1].network
    generator = torch.Generator().manual_seed(2)
    nodes = torch.randint(3, (2, 5), generator=generator)
    edges = torch.randint(2, (2, 5, 5), generator=generator).triu(1)
    edges, order = edges + edges.transpose(1, 2), torch.tensor([3, 0, 4, 1, 2])
    mask = torch.ones(2, 5, dtype=torch.bool)
    x, e = network(*one_hot(nodes, edges), torch.tensor([0.2, 0.7]), mask)
    x_p, e_p = network(*one_hot(nodes[:, order], edges[:, order][:, :, order]), torch.tensor([0.2, 0.7]), mask)
    assert torch.allclose(x_p, x[:, order], atol=1e-5)
    assert torch.allclose(e_p, e[:, order][:, :, order], atol=1e-5)
    assert torch.equal(e, e.transpose(1, 2))


def test_both_sides_have_equal_widths_and_an_update_moves_their_weights() -> None:
    settings = Settings(layers=2, steps=2, update_steps=2, repeats=1, device="cpu", dtype="fp32", threads=1, seed=0)
    sides = [side(CASES["qm9"], "small", settings) for side in (Ours, Baseline)]
    configs = [side.policy.network.config for side in sides]
    assert configs[0] == configs[1]
    for side in sides:
        before = [p.detach().clone() for p in side.module.parameters()]
        side.update()
        assert any(not torch.equal(p, q) for p, q in zip(before, side.module.parameters(), strict=True))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_benchmark_runs_and_writes_what_it_promises(tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "result.json"
    small = ["--cases", "qm9", "--widths", "small", "--layers", "1", "--batch", "2", "--steps", "2", "--repeats", "1"]
    threads = torch.get_num_threads()
    try:
        main([*small, "--no-memory", "--dtype", dtype, "--seed", "5", "--out", str(out)])
    finally:
        torch.set_num_threads(threads)
    result = json.loads(out.read_text())
    assert {"command", "seed", "machine", "commit", "date", "load_average", "sources"} <= result.keys()
    assert result["seed"] == 5
    assert result["settings"]["dtype"] == dtype
    (row,) = result["rows"]
    assert row["trajectory_bytes"] == {"ours": 2 * 3 * 45, "baseline": 2 * 3 * 4 * (36 + 324), "ratio": 32.0}
    for job in ("forward", "update", "sampling"):
        assert row[job]["ratio"] > 0
        assert row[job]["per_second"]["ours"] > 0


@pytest.mark.slow
def test_the_command_in_the_stamp_is_the_one_given(tmp_path: Path) -> None:
    small = ["--cases", "qm9", "--widths", "small", "--layers", "1", "--batch", "8", "--steps", "2", "--repeats", "1"]
    command = [sys.executable, "-m", "benchmarks.graph_policy_speed", *small, "--out", str(tmp_path / "r.json")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"})
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["command"].startswith("python -m benchmarks.graph_policy_speed --cases qm9")
    peak = result["rows"][0]["peak_bytes"]
    assert peak["baseline"] > peak["ours"] > 0


def test_peak_memory_counts_what_is_alive_at_once() -> None:
    kept = torch.ones(1000)

    def job() -> None:
        for _ in range(3):  # 4 and 8 kB together, three times over, but never more than once at a time
            first, second = torch.empty(1000), torch.empty(2000)
            del first, second
        kept.add_(1)

    assert peak_allocated(job) == 12_000
    assert peak_allocated(lambda: None) == 0


def test_a_network_that_overflows_is_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Ours, "forward", lambda self: (torch.tensor([torch.inf]), torch.zeros(1)))
    with pytest.raises(FloatingPointError, match="Ours: logits of qm9"):
        main(["--cases", "qm9", "--widths", "small", "--layers", "1", "--batch", "2", "--no-memory", "--out", str(tmp_path / "r")])


def test_more_update_steps_than_steps_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--steps", "2", "--update-steps", "3"])
    assert "--update-steps: 3" in capsys.readouterr().err


def test_jobs_take_turns() -> None:
    order: list[str] = []
    first, second = interleaved([lambda: order.append("a"), lambda: order.append("b")], 3, warmup=1)
    assert order == ["a", "b"] * 4
    assert len(first.wall) == len(second.cpu) == 3
    with pytest.raises(ValueError, match="repeats: 0"):
        interleaved([], 0)


def test_one_cpu_thread_is_timed_by_processor_time() -> None:
    def settings(threads: int, device: str) -> Settings:
        return Settings(layers=1, steps=1, update_steps=1, repeats=1, device=device, dtype="fp32", threads=threads, seed=0)

    assert [settings(1, "cpu").clock, settings(2, "cpu").clock, settings(1, "cuda").clock] == ["cpu", "wall", "wall"]
    (slept,) = interleaved([lambda: time.sleep(0.05)], 1)
    assert slept.by("wall")[0] >= 0.05 > slept.by("cpu")[0]


def test_a_slow_spell_that_falls_on_a_pair_leaves_the_ratio() -> None:
    assert paired_ratio([1.0, 10.0, 1.0], [2.0, 20.0, 2.0]) == (2.0, 2.0, 2.0)


def test_a_result_is_whole_or_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    write_result(path, {"a": 1})
    with pytest.raises(ValueError, match="Out of range"):
        write_result(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]


def test_the_stamp_pins_the_sources() -> None:
    pinned = stamp(7, sources=["models/graph_transformer.py"])
    assert len(pinned["sources"]["models/graph_transformer.py"]) == 64
    assert pinned["machine"]["torch"] == torch.__version__
    json.dumps(pinned, allow_nan=False)


def test_presets_are_run_with_every_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def pretend(
        preset: str, folder: Path, seed: int | None = None, threads: int = 1, reward: str | None = None
    ) -> dict[str, object]:
        evaluation = {"after": {"reward": 0.5}}
        return {"preset": preset, "seed": seed, "threads": threads, "reward": reward, "seconds": 1.0, "evaluation": evaluation}

    monkeypatch.setattr(presets, "run", pretend)
    out = tmp_path / "demo.json"
    presets.main(["--presets", "demo", "--seeds", "42", "0", "--threads", "2", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [(row["preset"], row["seed"], row["threads"]) for row in rows] == [("demo", 42, 2), ("demo", 0, 2)]
    presets.main(["--presets", "digits", "--out", str(out)])
    assert [row["seed"] for row in json.loads(out.read_text())["rows"]] == [None]
    presets.main(["--presets", "digits", "--seeds", "1", "--control", "1", "2", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [(row["seed"], row["reward"]) for row in rows] == [(1, None), (1, presets.NOISE), (2, presets.NOISE)]


@pytest.mark.parametrize(
    ("source", "graph", "valid"), [("tree.npz", "Bw", 0.0), ("planar.npz", "D~{", 0.0), ("my.npz", "D~{", 1.0)]
)
def test_samples_are_valid_by_the_test_of_their_set(
    source: str, graph: str, valid: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(source, make_splits("tree-16"))
    monkeypatch.setattr(vun, "load_policy", lambda *_: None)
    monkeypatch.setattr(vun, "sample_policy", lambda *_, **__: ([graph] * 200, None))  # cliques of three and five
    assert vun.measure("a", source, 0)["valid"]["mean"] == valid
