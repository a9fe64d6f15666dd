"""Every family on a pretend CUDA device: no mix of devices, no blocking copy in a step, few waits in an update."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.categorical import sample
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.core.seeding import seeded
from discrete_grpo.domains.graphs import pair_index
from discrete_grpo.models import pairs
from discrete_grpo.models.connectivity import effective_resistance
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.models.pairs import PairLayout
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.recipes.sample import moved, sample_policy
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.training import pass_size, pretrain, trainer
from discrete_grpo.training.config import GRPOConfig, PretrainConfig
from discrete_grpo.training.gaussian_process import GaussianProcessScreen
from discrete_grpo.training.local_search import local_search
from discrete_grpo.training.memory import ScoredMemory
from discrete_grpo.training.network import compile_network
from discrete_grpo.training.objectives import GroupRelative, SelfImitation, TrajectoryBalance
from discrete_grpo.training.optim import adamw
from discrete_grpo.training.pretrain import Pretrainer
from discrete_grpo.training.rounds import Rounds
from discrete_grpo.training.rounds_config import RoundsConfig
from discrete_grpo.training.trainer import GRPOTrainer
from discrete_grpo.training.update import Learner
from tests.families import FAMILIES, Case
from tests.letters import LETTERS, Worth, not_empty
from tests.pretend_cuda import CUDA, Counts, Cuda, DeviceError, accelerator, pretending
from tests.pretend_tensors import bare
from tests.toys import tiny_policy
from tests.training.test_rounds_state import letters

CONFIG = GRPOConfig(
    max_steps=2, num_generations=4, generation_batch_size=8, per_device_batch_size=4, beta=0.1, ema_decay=0.9,
    sync_ref_model=True, ref_model_sync_steps=1,
)  # fmt: skip


def by_name(samples: Sequence[Any], **columns: Any) -> list[float]:
    """A reward that differs between samples."""
    return [zlib.crc32(str(one).encode()) % 1000 / 1000 for one in samples]


# -- the device itself


def test_the_device_refuses_what_cuda_refuses() -> None:
    with pretending() as cuda:
        x = torch.ones(2, 2, device="cuda")
        assert (x + 1).device == CUDA
        assert x.is_cuda
        for broken in (
            lambda: x + torch.ones(2, 2),
            lambda: torch.cat([x, torch.ones(2, 2)]),
            lambda: x.numpy(),
            lambda: torch.rand(2, device="cuda", generator=torch.Generator()),
            lambda: torch.rand(2, generator=cuda.generator()),
            lambda: x.uniform_(generator=torch.Generator()),
            lambda: torch.ones(2)[torch.zeros(1, dtype=torch.long, device="cuda")],
        ):
            with pytest.raises(DeviceError):
                broken()


def test_launches_waits_and_copies_are_counted() -> None:
    with pretending() as cuda:
        x = torch.arange(6.0).to("cuda").view(2, 3)
        with cuda.counting() as views:
            x.transpose(0, 1).unsqueeze(0).expand(4, -1, -1)
        with cuda.counting() as work:
            (x + 1).sum()
        assert (views.launches, work.launches) == (0, 2)
        for wait in (lambda: float(x[0, 0]), lambda: x[x > 1], lambda: x.nonzero(), lambda: x.cpu(), lambda: bool(x.any())):
            with cuda.counting() as found:
                wait()
            assert found.waits == 1
        for copy in (lambda: torch.ones(2).to("cuda"), lambda: torch.tensor([1, 2], device="cuda"), lambda: x[torch.tensor([0])]):
            with cuda.counting() as found:
                copy()
            assert (found.blocking_copies, found.waits) == (1, 0)
        with cuda.counting() as found:
            torch.ones(2).pin_memory().to("cuda", non_blocking=True)
        assert found.blocking_copies == 0


def test_places_are_lines_of_this_project() -> None:
    with pretending() as cuda, cuda.counting() as found:
        cuda.by_line = True
        sample(torch.ones(2, 3, device="cuda")).tolist()
        same = torch.ones(1, 3, 3, device="cuda", dtype=torch.bool)
        effective_resistance(same.float() - torch.eye(3, device="cuda"), same)
    assert any("core/categorical.py" in line for line in found.lines)
    assert any("models/connectivity.py" in line for line in found.lines)
    assert found.waits == 1  # tolist


def test_a_recorded_graph_repeats_its_operations_on_the_same_memory() -> None:
    with pretending() as cuda:
        x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            x.add_(1)
        assert bare(x).tolist() == [1.0] * 3  # recorded, not run
        with cuda.counting() as found:
            graph.replay()
            graph.replay()
        assert (found.launches, found.replays) == (2, 2)
        assert (bare(y).tolist(), bare(x).tolist()) == ([4.0] * 3, [3.0] * 3)
        for broken in (lambda: float(x[0]), lambda: torch.tensor([1.0], device="cuda"), lambda: torch.rand(3, device="cuda")):
            with pytest.raises(DeviceError), torch.cuda.graph(torch.cuda.CUDAGraph()):
                broken()


def moved_to(cuda: Cuda, policy: Any) -> Any:
    """The policy on the device."""
    return cuda.move(policy)


# -- sampling


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


@pytest.mark.parametrize("kernel", ["graph", "graph with evidence", "graph by Euler steps", "graph with a mask class"])
def test_a_recorded_step_draws_the_same_bits(kernel: str) -> None:
    found = []
    for record in (False, True):
        with pretending() as cuda:
            policy: Any = cuda.move(FAMILIES[kernel].make())
            policy.record_steps = record
            with cuda.counting() as counts:
                rollout = policy.sample(group_contexts(2, 3), generator=cuda.generator(5))
            found.append(([bare(x) for x in (*rollout.states.values(), rollout.logp)], counts))
    (plain, many), (recorded, few) = found
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    assert many.replays == 0
    assert few.replays > 0


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


class _Failing:
    def __init__(self) -> None:
        raise RuntimeError("no graphs here")


def test_the_compiler_records_steps_on_cuda_alone() -> None:
    def nothing(model: Any, inputs: Any) -> Any:
        return model.forward

    policy = tiny_policy()
    compile_network(policy, backend=nothing)
    assert not policy.record_steps
    with pretending() as cuda:
        there: Any = cuda.move(tiny_policy())
        compile_network(there, backend=nothing)
        assert there.record_steps


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


# -- training


def run(case: Case, monkeypatch: pytest.MonkeyPatch, config: GRPOConfig = CONFIG) -> tuple[list[Counts], list[dict[str, float]]]:
    """Counts of each update of a run, and its metrics."""
    updates: list[Counts] = []
    update = Learner.update
    with pretending() as cuda:

        def counted(learner: Learner, *args: Any) -> dict[str, float]:
            with cuda.counting() as found:
                line = update(learner, *args)
            updates.append(found)
            return line

        monkeypatch.setattr(Learner, "update", counted)
        monkeypatch.setattr(trainer, "accelerator", accelerator)
        columns = None if case.columns is None else [case.columns]
        lines = GRPOTrainer(case.make(), by_name, config, columns=columns).train()
    return updates, lines


@pytest.mark.parametrize("name", FAMILIES)
def test_an_update_waits_less_than_five_times(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, lines = run(FAMILIES[name], monkeypatch)
    assert len(lines) == 2
    assert all(line["grad_norm"] > 0 for line in lines)
    for found in updates:
        assert found.waits < 5, str(found)
        assert found.blocking_copies == 0, str(found)


@pytest.mark.parametrize("name", ["graph", "positions", "tokens", "masked text"])
def test_passes_are_measured_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_size, "free_bytes", lambda device: {"cuda": 2**30}[device.type])
    config = dataclasses.replace(CONFIG, per_device_batch_size="auto", timestep_chunk="auto")
    updates, lines = run(FAMILIES[name], monkeypatch, config)
    assert len(lines) == len(updates) == 2
    assert all(line["grad_norm"] > 0 for line in lines)


def test_an_update_with_every_statistic_waits_less_than_five_times_more(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GRPOConfig(
        max_steps=2, num_generations=4, generation_batch_size=8, per_device_batch_size=4, beta=0.1, top_entropy_quantile=0.5,
        off_policy_mask_threshold=0.1, num_iterations=2, use_adaptive_entropy=True, entropy_coef=0.01, replay_samples=1,
    )  # fmt: skip
    updates, _ = run(FAMILIES["graph"], monkeypatch, config)
    assert all(found.waits < 9 for found in updates), str(updates[-1])


class Rows:
    """A batch as a data set of one batch."""

    def __init__(self, batch: Any) -> None:
        self.whole = batch
        self.sizes = torch.ones(len(batch), dtype=torch.long)

    def __len__(self) -> int:
        return len(self.sizes)

    def batch(self, rows: torch.Tensor) -> Any:
        return self.whole


@pytest.mark.parametrize("name", FAMILIES)
def test_an_update_of_pretraining_waits_less_than_five_times(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case, update, updates = FAMILIES[name], Pretrainer._update, list[Counts]()
    with pretending() as cuda:

        def counted(pretrainer: Pretrainer, rows: torch.Tensor) -> dict[str, float]:
            with cuda.counting() as found:
                line = update(pretrainer, rows)
            updates.append(found)
            return line

        monkeypatch.setattr(Pretrainer, "_update", counted)
        monkeypatch.setattr(pretrain, "accelerator", accelerator)
        monkeypatch.setattr(Pretrainer, "_save", lambda self: None)
        monkeypatch.setattr(pretrain, "save", lambda folder, *_, **__: folder)
        config = PretrainConfig(max_steps=2, batch_size=2, warmup_steps=1)
        Pretrainer(case.make(), Rows(case.batch()), config, tmp_path).train()
    first, second = updates
    assert first.waits < 5, str(first)
    assert (second.waits < 5, second.blocking_copies) == (True, 0), str(second)  # the first one copies constants


@pytest.mark.parametrize("name", ["graph", "fields", "tokens"])
def test_data_of_pretraining_are_checked_before_they_are_moved(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = FAMILIES[name]
    policy, batch = case.make(), case.batch()
    refused: list[Any] = []

    def refuse(policy: Any, batch: Any) -> None:
        refused.append(batch)
        raise KeyError

    monkeypatch.setattr(type(policy), "check_batch", refuse)
    with pretending():
        monkeypatch.setattr(pretrain, "accelerator", accelerator)
        with pytest.raises(KeyError):
            Pretrainer(policy, Rows(batch), PretrainConfig(max_steps=1, batch_size=2, warmup_steps=1), tmp_path).train()
    assert refused == [batch]


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_of_an_evaluation_are_drawn_on_the_device(name: str) -> None:
    case = FAMILIES[name]
    with pretending() as cuda:
        found, _ = sample_policy(cuda.move(case.make()), 3, columns=None if case.columns is None else [case.columns])
    assert len(found) == 3


def test_search_starts_again_from_samples_on_the_device() -> None:
    with pretending() as cuda:
        for name in ("graph", "fields"):
            policy: Any = cuda.move(FAMILIES[name].make())
            options: dict[str, Any] = {"rounds": 2, "population": 2, "children": 2}
            found = local_search(policy, by_name, **options, generator=cuda.generator())
            assert found.drawn == 12


@pytest.mark.parametrize("objective", [SelfImitation(0.02, new_share=0.5), TrajectoryBalance(20.0), GroupRelative(beta=0.1)])
def test_rounds_over_a_memory_mix_no_devices(objective: Any) -> None:
    with pretending() as cuda:
        with seeded(0):
            network = GPT(GPTConfig(len(LETTERS), 5, layers=1, heads=2, width=8))
        policy: Any = cuda.move(TokenPolicy(network, LETTERS, max_length=5).eval())
        if isinstance(objective, torch.nn.Module):
            objective = cuda.move(objective)
        config = RoundsConfig(draws=12, passes=2, batch_size=6, explore=2, plateau=1, when_stale="islands", max_grad_norm=1.0)
        screen = GaussianProcessScreen(letters, start=12, size=24, generator=cuda.generator())
        parts: dict[str, Any] = {"memory": ScoredMemory(20), "screen": screen, "generator": cuda.generator()}
        loop = Rounds(policy, Worth(), Ledger(key=not_empty, max_oracle_calls=120), not_empty, objective, config, **parts)
        loop.run()
        assert loop.progress.restarts >= 1
        assert len(loop.everything) > 12


# -- determinism


@contextmanager
def deterministic() -> Iterator[None]:
    """Torch with deterministic algorithms alone."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", FAMILIES)
def test_deterministic_algorithms_change_no_bit_of_a_run(name: str) -> None:
    case = FAMILIES[name]
    columns = None if case.columns is None else [case.columns]
    weights = []
    for mode in (nullcontext(), deterministic()):
        policy = case.make()
        with mode:
            GRPOTrainer(policy, by_name, CONFIG, columns=columns).train()
            policy.likelihood_loss(case.batch(), generator=torch.Generator().manual_seed(0))["loss"].backward()
        weights.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize("name", ["graph", "positions", "tokens", "masked text"])
def test_no_operation_of_a_run_on_cuda_lacks_a_deterministic_algorithm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretending(), deterministic():
        with pytest.raises(DeviceError, match="cumsum"):
            torch.ones(3, device="cuda").cumsum(0)
        with pytest.raises(DeviceError, match="bincount"):
            torch.arange(3, device="cuda").bincount(torch.ones(3, device="cuda"))
        torch.arange(3, device="cuda").bincount()
    with deterministic():
        _, lines = run(FAMILIES[name], monkeypatch)
    assert len(lines) == 2


def test_tf32_is_set_during_an_update_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def reward(samples: Sequence[Any], **columns: Any) -> list[float]:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return by_name(samples)

    for tf32 in (False, True):
        with pretending():
            monkeypatch.setattr(trainer, "accelerator", accelerator)
            config = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=2, tf32=tf32)
            GRPOTrainer(FAMILIES["graph"].make(), reward, config).train()
    monkeypatch.undo()
    GRPOTrainer(FAMILIES["graph"].make(), reward, config).train()
    assert seen == [False, True, False]
    assert not torch.backends.cuda.matmul.allow_tf32


def test_an_update_alone_has_ordered_algorithms_and_on_cuda_the_variable_they_need(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[bool] = []

    def reward(samples: Sequence[Any], **columns: Any) -> list[float]:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return by_name(samples)

    config = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=2, full_determinism=True)
    GRPOTrainer(FAMILIES["graph"].make(), reward, config).train()
    GRPOTrainer(FAMILIES["graph"].make(), reward, dataclasses.replace(config, full_determinism=False)).train()
    assert seen == [True, False]
    assert not torch.are_deterministic_algorithms_enabled()
    case = FAMILIES["graph"]
    options = PretrainConfig(max_steps=1, batch_size=2, warmup_steps=1, full_determinism=True)
    said = r"^full_determinism: True with CUBLAS_WORKSPACE_CONFIG=, expected :4096:8 or :16:8 in the environment"
    for value in (None, ":4096:8"):
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
        if value is not None:
            monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
        with pretending():
            monkeypatch.setattr(trainer, "accelerator", accelerator)
            monkeypatch.setattr(pretrain, "accelerator", accelerator)
            for make in (
                lambda: GRPOTrainer(case.make(), reward, config).update(),
                lambda: Pretrainer(case.make(), Rows(case.batch()), options, tmp_path)._update(torch.arange(2)),
            ):
                with nullcontext() if value is not None else pytest.raises(ValueError, match=said):
                    make()
    assert seen == [True, False, True]


def test_pretraining_multiplies_in_tf32_during_an_update_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case, seen = FAMILIES["graph"], list[bool]()
    loss = type(case.make()).likelihood_loss

    def noted(policy: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return loss(policy, *arguments, **options)

    monkeypatch.setattr(type(case.make()), "likelihood_loss", noted)
    monkeypatch.setattr(pretrain, "accelerator", accelerator)
    for tf32 in (False, True):
        with pretending():
            config = PretrainConfig(max_steps=1, batch_size=2, warmup_steps=1, tf32=tf32)
            Pretrainer(case.make(), Rows(case.batch()), config, tmp_path / str(tf32))._update(torch.arange(2))
    assert seen == [False, True]
    assert not torch.backends.cuda.matmul.allow_tf32


def test_weights_on_cuda_have_the_fused_optimizer() -> None:
    with pretending() as cuda:
        there, here = adamw(list(cuda.move(tiny_policy()).parameters()), CONFIG), adamw(list(tiny_policy().parameters()), CONFIG)
    assert (there.defaults["fused"], here.defaults["fused"]) == (True, None)


def test_a_device_that_is_not_there_is_named() -> None:
    for name in ("cuda:99", "teapot"):
        with pytest.raises(ValueError, match=f"device: '{name}', expected one of this machine"):
            moved(tiny_policy(), name)
    assert moved(tiny_policy(), None).device == moved(tiny_policy(), "cpu").device == torch.device("cpu")
