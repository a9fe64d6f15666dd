"""Every family draws on a pretend CUDA device: no mix of devices, no blocking copy in a step, steps that are recorded."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.domains.graphs import pair_index
from discrete_grpo.models import pairs
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.models.pairs import PairLayout
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.policies.recorded import Tensors, recorded
from discrete_grpo.recipes.sample import sample_policy
from tests.families import FAMILIES, Case
from tests.pretend_cuda import CUDA, Counts, Cuda, pretending
from tests.pretend_tensors import bare
from tests.toys import tiny_policy


def moved_to(cuda: Cuda, policy: Any) -> Any:
    """The policy on the device."""
    return cuda.move(policy)


def drawn(case: Case, cuda: Cuda, steps: int | None = None) -> Counts:
    """Counts of one draw, after another that copies the constants."""
    policy = case.make()
    if steps is not None:
        policy = type(policy)(**policy.init_args() | {"num_steps": steps})
    policy = moved_to(cuda, policy.eval())
    contexts = group_contexts(2, 2, None if case.columns is None else [case.columns] * 2)
    policy.sample(contexts, generator=cuda.generator(0))
    with cuda.counting() as found:
        policy.sample(contexts, generator=cuda.generator(0))  # of the same sizes
    return found


@pytest.mark.parametrize("name", [name for name, case in FAMILIES.items() if hasattr(case.make(), "num_steps")])
def test_a_step_of_diffusion_copies_nothing_and_waits_for_nothing(name: str) -> None:
    """Three more steps launch more kernels, and make no other difference."""
    with pretending() as cuda:
        few, many = (drawn(FAMILIES[name], cuda, steps) for steps in (3, 6))
    assert (many.blocking_copies, many.waits) == (few.blocking_copies, few.waits)
    assert many.launches > few.launches


@pytest.mark.parametrize("name", ["tokens", "decoded tokens", "graph sequences", "masked text"])
def test_a_step_of_text_copies_nothing(name: str) -> None:
    with pretending() as cuda:
        found = drawn(FAMILIES[name], cuda)
    assert found.blocking_copies <= 5  # prompts and numbers of groups, whatever the number of steps
    assert found.waits <= 5


@pytest.mark.parametrize(
    "name", ["graph", "graph with evidence", "graph by Euler steps", "directed graph", "positions", "masked text"]
)
def test_the_device_draws_what_the_cpu_draws_without_padding(name: str) -> None:
    """One group, whose samples have one size: the order of the draws is that of the CPU."""
    case = FAMILIES[name]
    contexts = group_contexts(1, 3, None if case.columns is None else [case.columns])
    here = case.make().sample(contexts, generator=torch.Generator().manual_seed(0))
    with pretending() as cuda:
        there = moved_to(cuda, case.make()).sample(contexts, generator=cuda.generator(0))
        for key, value in here.states.items():
            torch.testing.assert_close(bare(there.states[key]), value, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(bare(there.logp), here.logp, rtol=1e-4, atol=1e-4)


RECORDED = (
    "graph",
    "graph with evidence",
    "graph by Euler steps",
    "graph with a mask class",
    "fields",
    "directed graph",
    "positions",
)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_step_draws_the_same_bits(name: str) -> None:
    found = []
    for record in (False, True):
        with pretending() as cuda:
            policy: Any = cuda.move(FAMILIES[name].make())
            policy.record_steps = record
            with cuda.counting() as counts:
                rollout = policy.sample(group_contexts(2, 3), generator=cuda.generator(5))
            found.append(([bare(x) for x in (*rollout.states.values(), rollout.logp)], counts))
    (plain, many), (recorded, few) = found
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    assert many.replays == 0
    assert few.replays > 0


@pytest.mark.slow
def test_a_recorded_step_of_the_preset_of_64_nodes_launches_a_handful_of_kernels() -> None:
    """Depth and features of ``tree``, ``planar`` and ``sbm``, which decide the launches; widths and sizes do not."""
    config = GraphTransformerConfig(
        1, 2, 1, 2, layers=8, heads=8, width=16, edge_width=8, global_width=8, walk_length=16, connectivity=True, log_time=True
    )
    template = tiny_policy(num_steps=9)
    policy: Any = GraphPolicy(
        GraphTransformer(config), _one_class(template), template.edge_kernel, [0.0] * 8 + [1.0], num_steps=9, precondition=True
    )
    with pretending() as cuda:
        cuda.move(policy.eval())
        policy.record_steps = True
        policy.sample(group_contexts(1, 2), generator=cuda.generator())
        with cuda.counting() as found:
            policy.sample(group_contexts(1, 2), generator=cuda.generator())
    assert found.replays == policy.num_steps - 1
    assert found.launches / policy.num_steps < 250


def test_pairs_of_a_new_size_are_laid_out_without_a_wait() -> None:
    """Whatever sizes were drawn before, an update may meet a size for the first time."""
    with pretending() as cuda:
        mask = torch.ones(2, 5, dtype=torch.bool, device="cuda")
        pairs._of_nodes.cache_clear()
        pair_index(5, CUDA)
        with cuda.counting() as found:
            layout = PairLayout.of(mask, True, torch.float32)
        assert (found.waits, found.blocking_copies) == (0, 0), str(found)
        assert all(
            torch.equal(bare(getattr(layout, x.name)), getattr(cpu_layout(), x.name)) for x in dataclasses.fields(layout)[:-1]
        )


def cpu_layout() -> PairLayout:
    return PairLayout.of(torch.ones(2, 5, dtype=torch.bool), True, torch.float32)


def _one_class(policy: GraphPolicy) -> Any:
    kernel: Any = policy.node_kernel
    return type(kernel)(type(kernel.noise)((1.0,), kernel.noise.schedule, 1))


def test_a_network_that_cannot_be_recorded_is_run_without(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretending() as cuda:
        policy: Any = cuda.move(tiny_policy())
        policy.record_steps = True
        monkeypatch.setattr(torch.cuda, "CUDAGraph", _Failing)
        with pytest.warns(UserWarning, match="not recorded"):
            policy.sample(group_contexts(1, 2), generator=cuda.generator())


def test_a_recorded_step_has_memory_of_its_own_and_casts_at_each_use() -> None:
    cached: list[bool] = []

    def step(state: Tensors, at: torch.Tensor, noise: Tensors) -> tuple[Tensors, Tensors]:
        cached.append(torch.is_autocast_cache_enabled())
        return (state[0] + noise[0] + 1,), (10 * state[0] + at,)

    with pretending():
        state, at, noise = (torch.zeros(2, device="cuda"),), torch.ones(2, device="cuda"), (torch.ones(2, device="cuda"),)
        made = recorded(step, state, at, noise)
        assert made is not None
        found = []
        for value in (0.0, 0.5, 0.25):
            made.noise[0].fill_(value)
            found.append((made.replay()[1][0], bare(made.state[0]).tolist()))
        assert [after for _, after in found] == [[1.0] * 2, [2.5] * 2, [3.75] * 2]
        assert [bare(kept).tolist() for kept, _ in found] == [[1.0] * 2, [12.0] * 2, [28.0] * 2]
        assert bare(state[0]).tolist() == [0.0] * 2
        assert bare(at).tolist() == [1.0] * 2
    assert cached == [False]
    assert torch.is_autocast_cache_enabled()


class _Failing:
    def __init__(self) -> None:
        raise RuntimeError("no graphs here")


def test_fixed_sites_are_drawn_without_a_copy_in_a_step() -> None:
    fixed = [{"fixed": FixedSites({0: 1}), "num_nodes": 3}]
    with pretending() as cuda:
        counts = []
        for steps in (3, 6):
            policy: Any = cuda.move(tiny_policy(num_steps=steps))
            policy.sample(group_contexts(1, 2, fixed), generator=cuda.generator())
            with cuda.counting() as found:
                policy.sample(group_contexts(1, 2, fixed), generator=cuda.generator())
            counts.append((found.blocking_copies, found.waits))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_of_an_evaluation_are_drawn_on_the_device(name: str) -> None:
    case = FAMILIES[name]
    with pretending() as cuda:
        found, _ = sample_policy(cuda.move(case.make()), 3, columns=None if case.columns is None else [case.columns])
    assert len(found) == 3
