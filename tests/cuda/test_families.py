"""Every family on a real GPU; skipped on a machine without one.

CUBLAS_WORKSPACE_CONFIG=:4096:8 python -m pytest tests/cuda
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import Rollout, group_contexts
from discrete_grpo.testing import check_policy
from discrete_grpo.training.bf16 import decide_bf16
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.distributed import accelerator
from discrete_grpo.training.network import CUBLAS, WORKSPACES, compile_network
from discrete_grpo.training.pretrain import Pretrainer
from discrete_grpo.training.trainer import GRPOTrainer
from discrete_grpo.training.update import Learner
from tests.families import FAMILIES, Case
from tests.models.test_digress_transformer import SMALL, graphs, network, times
from tests.training.pretend_cuda_parts import CONFIG, Rows, by_name
from tests.training.test_pretend_cuda_sampling import RECORDED

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
CUDA = torch.device("cuda")
every_family = pytest.mark.parametrize("name", FAMILIES)


def here(case: Case) -> Any:
    """The policy of a family on the GPU."""
    return case.make().to(CUDA)


def drawn(policy: Any, case: Case, seed: int = 0) -> Rollout:
    """Two groups of three."""
    contexts = group_contexts(2, 3, None if case.columns is None else [case.columns] * 2)
    rollout: Rollout = policy.sample(contexts, generator=torch.Generator(next(policy.parameters()).device).manual_seed(seed))
    return rollout


def waits(job: Callable[[], object]) -> list[str]:
    """Where the host waits for the GPU in ``job``."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            job()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [f"{one.filename}:{one.lineno}" for one in told if "synchroniz" in str(one.message)]


def same(one: Rollout, other: Rollout) -> bool:
    pairs = [*zip(one.states.values(), other.states.values(), strict=True), (one.logp, other.logp)]
    return all(torch.equal(a, b) for a, b in pairs)


@every_family
def test_the_kit_passes(name: str) -> None:
    case = FAMILIES[name]
    contexts = group_contexts(2, 3, None if case.columns is None else [case.columns] * 2)
    trusted = ("discrete_grpo", "tests")
    report = check_policy(here(case), contexts, samples=300, seconds=1, skip=("learning",), trusted=trusted)
    assert report.passed, str(report)


@every_family
def test_log_probs_are_those_of_the_cpu(name: str) -> None:
    case = FAMILIES[name]
    policy = case.make().double()
    rollout = drawn(policy, case)
    found = []
    for device in (torch.device("cpu"), CUDA):
        policy, rollout = policy.to(device), rollout.to(device)
        found.append(score_sites(policy.sites(rollout)).logp.cpu())
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


@every_family
def test_the_same_generator_draws_the_same_bits(name: str) -> None:
    case, policy = FAMILIES[name], here(FAMILIES[name])
    assert same(drawn(policy, case), drawn(policy, case))


@pytest.mark.parametrize("name", [name for name, case in FAMILIES.items() if hasattr(case.make(), "num_steps")])
def test_a_step_of_diffusion_waits_for_nothing(name: str) -> None:
    case, found = FAMILIES[name], []
    for steps in (3, 6):
        policy = case.make()
        policy = type(policy)(**policy.init_args() | {"num_steps": steps}).to(CUDA).eval()
        drawn(policy, case)
        found.append(waits(lambda policy=policy: drawn(policy, case)))  # type: ignore[misc]
    few, many = found
    assert len(many) == len(few), str(many)


@every_family
def test_an_update_waits_less_than_five_times(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, found, update = FAMILIES[name], list[list[str]](), Learner.update

    def counted(learner: Learner, *args: Any) -> Any:
        lines: list[Any] = []
        found.append(waits(lambda: lines.append(update(learner, *args))))
        return lines[0]

    monkeypatch.setattr(Learner, "update", counted)
    columns = None if case.columns is None else [case.columns]
    lines = GRPOTrainer(case.make(), by_name, dataclasses.replace(CONFIG, max_steps=3), columns=columns).train()
    assert all(line["grad_norm"] > 0 for line in lines)
    assert len(found[-1]) < 5, str(found[-1])


@every_family
def test_an_update_of_pretraining_waits_less_than_five_times(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case, found, update = FAMILIES[name], list[list[str]](), Pretrainer._update

    def counted(pretrainer: Pretrainer, rows: Tensor) -> Any:
        lines: list[Any] = []
        found.append(waits(lambda: lines.append(update(pretrainer, rows))))
        return lines[0]

    monkeypatch.setattr(Pretrainer, "_update", counted)
    Pretrainer(case.make(), Rows(case.batch()), PretrainConfig(max_steps=3, batch_size=2, warmup_steps=1), tmp_path).train()
    assert len(found[-1]) < 5, str(found[-1])


def grpo(case: Case, run: Path, steps: int, *, resume: bool = False, **options: Any) -> GRPOTrainer:
    columns = None if case.columns is None else [case.columns]
    config = dataclasses.replace(CONFIG, max_steps=steps, save_steps=2, **options)
    made = GRPOTrainer(case.make(), by_name, config, columns=columns, run=run, resume=resume)
    made.train()
    return made


def equal_weights(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


ORDERED = pytest.mark.skipif(os.environ.get(CUBLAS) not in WORKSPACES, reason=f"the same bits need {CUBLAS}={WORKSPACES[0]}")


def pretrained(case: Case, run: Path, steps: int, *, resume: bool = False, **options: Any) -> Pretrainer:
    constant: dict[str, Any] = {"warmup_steps": 0, "min_lr_rate": 1.0}  # so that the first part of a run is a shorter run
    config = PretrainConfig(max_steps=steps, batch_size=2, save_steps=2, log_steps=1, **constant, **options)
    made = Pretrainer(case.make(), Rows(case.batch()), config, run, resume=resume)
    made.train()
    return made


@ORDERED
@every_family
@pytest.mark.parametrize("trained", [grpo, pretrained])
def test_a_run_resumed_on_the_gpu_ends_with_the_same_bits(trained: Callable[..., Any], name: str, tmp_path: Path) -> None:
    whole = trained(FAMILIES[name], tmp_path / "whole", 4, full_determinism=True)
    trained(FAMILIES[name], tmp_path / "part", 2, full_determinism=True)
    resumed = trained(FAMILIES[name], tmp_path / "part", 4, full_determinism=True, resume=True)
    assert next(whole.policy.parameters()).device.type == "cuda"
    assert equal_weights(whole.policy, resumed.policy)


@ORDERED
@every_family
def test_recorded_passes_of_pretraining_give_the_same_bits(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"full_determinism": True}
    plain = pretrained(FAMILIES[name], tmp_path / "plain", 6, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="cuda_graphs")
        recorded = pretrained(FAMILIES[name], tmp_path / "recorded", 6, cuda_graphs=True, **options)
    assert equal_weights(plain.policy, recorded.policy)


@every_family
def test_bfloat16_trains(name: str, tmp_path: Path) -> None:
    trained = pretrained(FAMILIES[name], tmp_path / "pretrained", 3, bf16=True)
    assert all(p.isfinite().all() for p in trained.policy.parameters())
    tuned = grpo(FAMILIES[name], tmp_path / "grpo", 2, bf16=True)
    assert all(p.isfinite().all() for p in tuned.policy.parameters())  # type: ignore[attr-defined]


def test_imported_networks_have_gradients_in_bfloat16() -> None:
    """Their own backward pass; trainers call it outside autocast."""
    net, batch = network(SMALL, torch.float32)[0].to(CUDA), graphs()
    nodes, edges, mask = (x.to(CUDA) for x in (batch.nodes, batch.edges, batch.mask))
    with torch.autocast("cuda", torch.bfloat16):
        loss = net(nodes, edges, times(batch).float().to(CUDA), mask)[1].float().square().mean()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_step_draws_the_same_bits(name: str) -> None:
    case, policy = FAMILIES[name], here(FAMILIES[name])
    plain = drawn(policy, case)
    policy.record_steps = True
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="sampling step")
        assert same(plain, drawn(policy, case))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("name", ["graph", "positions", "masked text"])
def test_compiled_layers_give_the_same_log_probs(name: str) -> None:
    case, policy, plain = FAMILIES[name], here(FAMILIES[name]), here(FAMILIES[name])
    compile_network(policy)
    rollout = drawn(policy, case)
    found = [score_sites(one.sites(rollout)).logp for one in (policy, plain)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_memory_of_passes_is_measured() -> None:
    config = dataclasses.replace(CONFIG, per_device_batch_size="auto", timestep_chunk="auto")
    lines = GRPOTrainer(FAMILIES["graph"].make(), by_name, config).train()
    assert len(lines) == 2


def test_the_trainers_take_the_gpu() -> None:
    assert accelerator().device.type == "cuda"
    assert decide_bf16("auto", accelerator().device)[0]
