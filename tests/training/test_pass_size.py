"""``per_device_batch_size: auto`` and ``timestep_chunk: auto``: what a pass needs, what fits, and that a run keeps it."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo import GRPOConfig
from discrete_grpo.core.rollout import Rollout, group_contexts
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.training import pass_size as module
from discrete_grpo.training.minibatches import TrainRows, windows
from discrete_grpo.training.network import checkpoint_layers
from discrete_grpo.training.pass_size import (
    CPU_BYTES,
    SHARE,
    PassCost,
    PassSize,
    free_bytes,
    measure_passes,
    pass_size,
    peak_bytes,
)
from discrete_grpo.training.reference_tables import MAX_BYTES
from discrete_grpo.training.update import UpdatePlan, loss_terms, micro_batch_loss
from tests.families import FAMILIES
from tests.toys import tiny_policy, transformer_policy

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
AUTO: dict[str, Any] = {"per_device_batch_size": "auto", "timestep_chunk": "auto"}
GRPO = GRPOConfig(max_steps=4, num_generations=4, generation_batch_size=16, learning_rate=1e-2, save_steps=1, beta=0.1)
GIB = 2**30


# -- the account


def test_the_peak_is_that_of_live_storages() -> None:
    def work() -> None:
        x = torch.ones(1000)
        y = x.view(10, 100).transpose(0, 1)  # no storage of its own
        x.add_(1)  # nor has this
        z = torch.cat([x, x])
        del x, y, z
        torch.ones(2500)

    assert peak_bytes(work) == 4 * 3000


def test_what_was_there_before_is_not_counted() -> None:
    x = torch.ones(1000)
    assert peak_bytes(lambda: x.add_(1)) == 0


def test_the_peak_includes_the_backward_pass() -> None:
    weight = torch.ones(1, requires_grad=True)

    def work() -> None:
        x = (torch.ones(500) * weight).exp().exp()
        torch.autograd.grad(x.sum(), [weight])

    exact = _peak_by_profiler(work)
    assert peak_bytes(work) == pytest.approx(exact, abs=64)  # scalars
    assert exact > 4 * 500 * 4


def _peak_by_profiler(work: Any) -> int:
    """The same from the events of torch's own allocator."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    assert profile.profiler is not None
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events)
    return max(itertools.accumulate((size for _, size in changes), initial=0))


# -- the cost of a pass


def true_peak(policy: Any, config: GRPOConfig, rollout: Rollout) -> int:
    """Peak of the first pass of an update on all trajectories."""
    on = torch.ones(len(rollout), dtype=torch.bool)
    rows = TrainRows(rollout, torch.ones(len(rollout)), on, on, ~on)
    micro = windows([rows], config, torch.Generator().manual_seed(0))[0][-1]  # the largest are last

    def work() -> None:
        terms = loss_terms(policy, micro, policy, config)
        loss = micro_batch_loss(terms, micro, None, UpdatePlan(), config).loss
        torch.autograd.grad(loss, [p for p in policy.parameters() if p.requires_grad], allow_unused=True)

    return peak_bytes(work)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_cost_bounds_the_peak_of_larger_passes(name: str) -> None:
    case = FAMILIES[name]
    policy = case.make().eval()
    columns = None if case.columns is None else [case.columns]
    cost = measure_passes(policy, GRPO, columns, nullcontext)
    contexts = group_contexts(16, 2, None if columns is None else columns * 16)
    rollout = policy.sample(contexts, generator=torch.Generator().manual_seed(1))
    config = dataclasses.replace(GRPO, per_device_batch_size=32)
    assert true_peak(policy, config, rollout) <= 1.05 * cost.bytes_of(32, rollout.num_steps)


def test_the_cost_is_close_where_gradients_are_small() -> None:
    policy = tiny_policy()
    cost = measure_passes(policy, GRPO, None, nullcontext)
    rollout = policy.sample(group_contexts(32, 2), generator=torch.Generator().manual_seed(1))
    exact = true_peak(policy, dataclasses.replace(GRPO, per_device_batch_size=64), rollout)
    assert 0.9 * exact < cost.bytes_of(64, rollout.num_steps) < 1.3 * exact


def test_the_gradients_of_a_wide_network_do_not_hide_the_steps() -> None:
    """In a pass of few steps they are most of what is needed."""
    config = GraphTransformerConfig(3, 2, 3, 2, layers=2, heads=2, width=96, edge_width=8, global_width=64, walk_length=3)
    tiny = tiny_policy()
    policy = GraphPolicy(GraphTransformer(config), tiny.node_kernel, tiny.edge_kernel, [0.0] * 6 + [1.0], num_steps=48)
    cost = measure_passes(policy, GRPO, None, nullcontext)
    rollout = policy.sample(group_contexts(16, 2), generator=torch.Generator().manual_seed(1))
    exact = true_peak(policy, dataclasses.replace(GRPO, per_device_batch_size=32), rollout)
    assert 0.95 * exact < cost.bytes_of(32, 48) < 1.3 * exact


def test_the_cost_is_that_of_the_largest_graph_whatever_was_drawn() -> None:
    sizes = [0.0, 0.0, 0.0, 1.0]
    small, rare = (tiny_policy(sizes=[*sizes, *more]) for more in ([], [0.0, 0.0, 0.0, 1e-12]))
    one, other = (measure_passes(policy, GRPO, None, nullcontext).bytes_of(8, 4) for policy in (small, rare))
    assert other == pytest.approx(one * (7 + 21) / (3 + 3))


def test_recomputed_layers_cost_less() -> None:
    policy = FAMILIES["graph"].make().eval()
    stored = measure_passes(policy, GRPO, None, nullcontext)
    checkpoint_layers(policy)
    again = measure_passes(policy, GRPO, None, nullcontext)
    assert again.bytes_of(8, 5) < 0.8 * stored.bytes_of(8, 5)


def test_measuring_draws_nothing_from_the_run_and_leaves_no_gradient() -> None:
    policy = tiny_policy()
    before = torch.get_rng_state()
    measure_passes(policy, GRPO, None, nullcontext)
    assert torch.equal(before, torch.get_rng_state())
    assert all(p.grad is None for p in policy.parameters())


def test_what_the_run_needs_besides_is_counted() -> None:
    policy = tiny_policy()
    size = sum(4 * p.numel() for p in policy.parameters())
    copies = {(0.0, None): 3, (0.1, None): 4, (0.1, 0.9): 5}
    for (beta, decay), count in copies.items():
        config = dataclasses.replace(GRPO, beta=beta, ema_decay=decay)
        assert measure_passes(policy, config, None, nullcontext).constant == count * size
    twice = dataclasses.replace(GRPO, beta=0.1, num_iterations=2)  # keeps tables of the reference
    assert measure_passes(policy, twice, None, nullcontext).constant == 4 * size + MAX_BYTES
    frozen, *_ = policy.parameters()
    frozen.requires_grad_(False)  # as all but the adapters of LoRA are
    fewer = measure_passes(policy, dataclasses.replace(GRPO, beta=0.1, ema_decay=0.9), None, nullcontext).constant
    assert fewer == 5 * size - 3 * 4 * frozen.numel()


def test_a_trial_is_of_the_larger_half_and_with_the_entropy_where_it_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = transformer_policy(num_steps=4, layers=1)
    contexts = group_contexts(module.TRIAL_GROUPS, module.TRIAL_ROWS, None)
    drawn = policy.sample(contexts, generator=torch.Generator().manual_seed(GRPO.seed)).units.sum(1).sort(descending=True).values
    trial = module._trial(policy, GRPO, None, nullcontext)
    assert drawn[0] > drawn[-1]
    assert trial.units.sum(1).tolist() == drawn[: len(drawn) // 2].tolist()
    asked: list[bool] = []

    def noted(*given: Any, bonus: bool) -> Any:
        asked.append(bonus)
        return loss_terms(*given, bonus=bonus)

    monkeypatch.setattr(module, "loss_terms", noted)
    for settings in ({}, {"entropy_coef": 0.1}, {"use_adaptive_entropy": True}):
        asked.clear()
        measure_passes(policy, dataclasses.replace(GRPO, **settings), None, nullcontext)
        assert set(asked) == {bool(settings)}


# -- what fits


def size_of(free: float, cost: PassCost, device: torch.device = CUDA, processes: int = 1, **settings: Any) -> PassSize:
    config = GRPOConfig(num_generations=8, generation_batch_size=256, **AUTO | settings)
    return pass_size(config, cost, int(free / SHARE) + 1, device, processes)


COST = PassCost(per_row=100.0, per_step=1000.0, steps=20)


@pytest.mark.parametrize(
    ("free", "settings", "size"),
    [
        (256 * 20_100, {}, (256, None)),  # everything at once
        (256 * 20_100 - 1000, {}, (256, 19)),
        (256 * 1_100, {}, (256, 1)),
        (100 * 1_100, {}, (100, 1)),  # one step of each does not fit
        (10, {}, (1, 1)),
        (64 * 5_100, {"per_device_batch_size": 64}, (64, 5)),
        (64 * 5_100, {"timestep_chunk": 5}, (64, 5)),
        (64 * 20_100, {"timestep_chunk": None}, (64, None)),
        (64 * 20_100, {"timestep_chunk": 50}, (64, 50)),  # of 20 steps
        (64 * 20_100, {"importance_sampling_level": "sequence"}, (64, None)),
        (64 * 5_100, {"per_device_batch_size": 64, "importance_sampling_level": "sequence"}, (64, None)),
        (128 * 20_100, {"processes": 2}, (128, None)),
        (256 * 20_100, {"beta": 0.1, "kl_in": "reward"}, (256, 20)),  # the KL is of all steps, not of these 20 alone
        (256 * 20_100, {"beta": 0.1, "kl_in": "loss"}, (256, None)),
    ],
)
def test_the_largest_pass_that_fits(free: int, settings: dict[str, Any], size: tuple[int, int | None]) -> None:
    assert size_of(free, COST, **settings) == PassSize(*size)


TEXT = PassCost(per_row=20_000.0, per_step=1.0, steps=72)


@pytest.mark.parametrize(
    ("free", "settings", "size"),
    [
        (256 * 20_072, {}, (256, None)),
        (100 * 20_072, {}, (100, None)),
        (100, {}, (1, None)),
        (100 * 20_072, {"per_device_batch_size": 256}, (256, None)),  # fewer steps would save nothing
        (100 * 20_072, {"timestep_chunk": 8}, (100, 8)),
    ],
)
def test_texts_are_not_cut(free: int, settings: dict[str, Any], size: tuple[int, int | None]) -> None:
    """Each pass runs through the whole text, whichever of its tokens are asked for."""
    assert size_of(free, TEXT, **settings) == PassSize(*size)


def test_steps_are_cut_where_that_costs_little() -> None:
    assert COST.fewest == 1
    assert TEXT.fewest == 72
    mixed = PassCost(per_row=2000.0, per_step=1000.0, steps=20)
    work = [-(-20 // s) * 2000 + 20 * 1000 for s in range(1, 21)]
    assert mixed.fewest == next(s for s, each in enumerate(work, 1) if each <= 1.2 * work[-1])
    assert size_of(256 * 3000, mixed) == PassSize(int(256 * 3000 / mixed.bytes_of(1, mixed.fewest)), mixed.fewest)


def test_a_trial_is_small_where_little_is_free() -> None:
    policy = transformer_policy(num_steps=16, layers=1)
    peaks: list[int] = []

    def counted(work: Any) -> int:
        peaks.append(peak_bytes(work))
        return peaks[-1]

    for free in (float("inf"), 1.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "GRADIENTS", 10**9)
            patch.setattr(module, "peak_bytes", counted)
            measure_passes(policy, GRPO, None, nullcontext, free)
        peaks.append(0)
    assert len(peaks[: peaks.index(0)]) == 5  # 1, 2, 4, 8, 16 steps
    assert len(peaks[peaks.index(0) + 1 : -1]) == 2


def test_memory_of_weights_is_not_free() -> None:
    held = dataclasses.replace(COST, constant=GIB)
    assert pass_size(GRPOConfig(**AUTO), held, GIB, CUDA) == PassSize(1, 1)
    assert pass_size(GRPOConfig(**AUTO), held, 2 * GIB, CUDA) == pass_size(GRPOConfig(**AUTO), COST, GIB, CUDA)


def test_a_processor_takes_no_more_than_is_of_use() -> None:
    assert size_of(100 * GIB, COST, CPU) == PassSize(64, None)
    heavy = PassCost(per_row=0.0, per_step=2**20, steps=100)
    assert size_of(100 * GIB, heavy, CPU) == PassSize(64, CPU_BYTES // 2**20 // 64)
    assert size_of(GIB / 4, heavy, CPU) == PassSize(64, 4)
    assert size_of(GIB / 4, heavy) == PassSize(256, 1)


# -- free memory


def system(folder: Path, available: int, limit: str | None = None, used: int = 0) -> Path:
    (folder / "proc").mkdir()
    (folder / "proc/meminfo").write_text(f"MemTotal: 999999 kB\nMemFree: 5 kB\nMemAvailable: {available} kB\n")
    if limit is not None:
        (folder / "sys/fs/cgroup").mkdir(parents=True)
        (folder / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
        (folder / "sys/fs/cgroup/memory.current").write_text(f"{used}\n")
        (folder / "sys/fs/cgroup/memory.stat").write_text("anon 1\nfile 900000\ninactive_file 50000\nactive_file 7\n")
    return folder


@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [(None, 0, 2000 * 1024), ("max", 7, 2000 * 1024), ("1000000", 400_000, 650_000), ("1000000", 2_000_000, 0)],
)
def test_free_memory_is_that_of_machine_or_control_group(tmp_path: Path, limit: str | None, used: int, free: int) -> None:
    assert module._free_on_host(system(tmp_path, 2000, limit, used)) == free


def test_free_memory_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert module._free_on_host(tmp_path) > 2**20


def test_free_memory_is_shared_by_the_processes_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_free_on_host", lambda: 4000)
    assert free_bytes(CPU) == 4000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free_bytes(CPU) == 1000


def test_free_memory_of_a_gpu_includes_what_torch_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (700, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 250)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 50)
    assert free_bytes(CUDA) == 900
