"""Likelihood training in two processes is that of one: gradients, metrics, files; they stop, fail and go on together."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.batch_share import WHOLE, BatchShare, Mean
from discrete_grpo.runs.checkpoint import Checkpoints, load_training, read_policy
from discrete_grpo.runs.recorder import read_metrics
from discrete_grpo.training.distributed import ProcessGroup, RankShare
from discrete_grpo.training.pretrain import Pretrainer, batches, decayed_rate
from tests.pretrain_cases import CONFIG, FAMILIES, pretrainer
from tests.pretrain_worker import IDLE, OTHERS, gradient

ROOT = Path(__file__).parents[2]
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.pretrain_worker"]
COMPARED = ["graphs", "tokens", "fields", "judge", "codes", "idle"]


def settings(case: str) -> tuple[str, dict[str, Any]]:
    """Family and changed settings of a case."""
    return ("graphs", IDLE) if case == "idle" else (case, {})


def stopped_after(updates: int, run: Path) -> None:
    """A run of one process that was stopped."""
    trainer = pretrainer("graphs", run)
    rows = trainer._rows()
    for _ in range(updates):
        for name, value in trainer._update(next(rows)).items():
            trainer._sums[name] = trainer._sums.get(name, 0.0) + value
        trainer.step, trainer._summed = trainer.step + 1, trainer._summed + 1
    trainer._save()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The runs of two processes, and what they wrote to standard error."""
    folder = tmp_path_factory.mktemp("two")
    stopped_after(1, folder / "resumed" / "run")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *LAUNCH, str(folder), *COMPARED, *OTHERS, "resumed"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done.stderr


def lines(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run without its speed."""
    return [{k: v for k, v in line.items() if k != "samples_per_second"} for line in read_metrics(run)]


def assert_same_run(found: Path, wanted: Path) -> None:
    """Both runs ended with the same weights and metrics, but for rounding."""
    for one, other in zip(lines(found), lines(wanted), strict=True):
        assert one == pytest.approx(other, rel=1e-7, abs=1e-9)
    states = [load_training(Checkpoints(run).latest()) for run in (found, wanted)]
    assert states[0]["step"] == states[1]["step"]
    assert torch.equal(states[0]["generator"], states[1]["generator"])
    for name, value in states[1]["weights"].items():
        torch.testing.assert_close(states[0]["weights"][name], value, rtol=0, atol=1e-6)
    exported = [dict(read_policy(run / "policy").state_dict()) for run in (found, wanted)]
    for name, value in exported[1].items():
        torch.testing.assert_close(exported[0][name], value, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPARED)
def test_two_processes_equal_one(case: str, two: tuple[Path, str], tmp_path: Path) -> None:
    family, changed = settings(case)
    wanted = gradient(family, tmp_path / "first", **changed)
    found = torch.load(two[0] / case / "gradient.pt", weights_only=True)
    assert [g is None for g in found] == [g is None for g in wanted]
    for one, other in zip(found, wanted, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    pretrainer(family, tmp_path / "run", **changed).train()
    assert_same_run(two[0] / case / "run", tmp_path / "run")


def test_ctrl_c_in_one_process_stops_all_after_one_update_with_one_checkpoint(two: tuple[Path, str]) -> None:
    run = two[0] / "interrupted" / "run"
    assert [p.name for p in Checkpoints(run).all()] == ["step-00000003", "step-00000004"]
    assert load_training(Checkpoints(run).latest())["processes"] == 2


def test_one_process_goes_on_with_a_run_of_two(two: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretrainer("graphs", run := two[0] / "interrupted" / "run", resume=True).train()
    assert capsys.readouterr().err.count("processes: 2 -> 1; ") == 1
    pretrainer("graphs", tmp_path).train()
    assert_same_run(run, tmp_path)


def test_two_processes_go_on_with_a_run_of_one(two: tuple[Path, str], tmp_path: Path) -> None:
    assert two[1].count("processes: 1 -> 2; ") == 1  # said by the first alone
    pretrainer("graphs", tmp_path).train()
    assert_same_run(two[0] / "resumed" / "run", tmp_path)


def test_the_first_process_evaluates_and_writes_alone(two: tuple[Path, str]) -> None:
    assert [line["eval/rank"] for line in read_metrics(two[0] / "evaluated" / "run") if "eval/rank" in line] == [0.0, 0.0]


# -- alone


class Part:
    """A share whose means are those of the rows of ``parts`` processes, computed one after another."""

    def __init__(self, rank: int, parts: int) -> None:
        self.own, self.seen = slice(rank, None, parts), list[Mean]()

    def means(self, *own: Mean) -> tuple[torch.Tensor, ...]:
        self.seen = [(mean.detach(), count) for mean, count in own]
        return WHOLE.means(*own)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_means_of_three_parts_weighed_by_their_counts_are_those_of_the_batch(family: str) -> None:
    policy, data = FAMILIES[family](torch.float64)
    policy.train()
    batch = data.batch(torch.arange(11))

    def terms(rank: int, parts: int) -> list[Mean]:
        share = Part(rank, parts)
        with torch.no_grad():
            policy.likelihood_loss(batch, generator=torch.Generator().manual_seed(5), share=share)
        return share.seen

    whole, parts = terms(0, 1), [terms(rank, 3) for rank in range(3)]
    for k, (mean, count) in enumerate(whole):
        assert sum(part[k][1] for part in parts) == count > 0
        total = sum(part[k][0] * part[k][1] for part in parts if part[k][1])
        exact = mean.dtype == torch.float64  # accuracies are counted in float32
        torch.testing.assert_close(total / count, mean, rtol=1e-12 if exact else 1e-6, atol=1e-14)


def test_shares_are_shares() -> None:
    group = ProcessGroup()
    assert isinstance(WHOLE, BatchShare)
    assert isinstance(RankShare(group, 3), BatchShare)
    group.count = 2
    owns = []
    for group.rank in (0, 1):
        owns.append(torch.arange(5)[RankShare(group, 5).own].tolist())
    assert owns == [[0, 2, 4], [1, 3]]
    assert RankShare(group, 1).own == slice(0, 1)  # computed, and weighed by 0


def test_a_process_alone_asks_nobody() -> None:
    group = ProcessGroup()
    assert group.any([True, False]) == [True, False]
    assert group.after_first(lambda: 3) == 3
    assert math.isclose(float(RankShare(group, 4).means((torch.tensor(1.5), torch.tensor(4)))[0]), 1.5)


def test_a_mean_keeps_its_type() -> None:
    (found,) = RankShare(ProcessGroup(), 4).means((torch.tensor(1.5, requires_grad=True), torch.tensor(4)))
    assert found.dtype == torch.float32


@pytest.mark.parametrize("family", ["graphs", "tokens"])
def test_one_process_is_a_plain_loop_to_the_bit(family: str, tmp_path: Path) -> None:
    trainer = pretrainer(family, tmp_path, torch.float32)
    trainer.train()
    policy, data = FAMILIES[family](torch.float32)
    policy.train()
    kinds = [[p for p in policy.parameters() if (p.ndim > 1) is wide] for wide in (True, False)]
    groups = [{"params": kinds[0], "weight_decay": CONFIG.weight_decay}, {"params": kinds[1], "weight_decay": 0.0}]
    optimizer, generator = torch.optim.AdamW(groups, betas=(0.9, 0.99)), torch.Generator().manual_seed(CONFIG.seed)
    order = [rows for epoch in (0, 1) for rows in batches(data.sizes, CONFIG.batch_size, CONFIG.seed, epoch)]
    for step, rows in enumerate(order[: CONFIG.max_steps]):
        for group in optimizer.param_groups:
            group["lr"] = decayed_rate(step, CONFIG)
        optimizer.zero_grad()
        policy.likelihood_loss(data.batch(rows), generator=generator)["loss"].backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), CONFIG.max_grad_norm)
        optimizer.step()
    for name, value in policy.state_dict().items():
        assert torch.equal(trainer.policy.state_dict()[name], value), name


def test_a_stopped_run_of_one_process_says_nothing_when_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped_after(2, tmp_path)
    capsys.readouterr()
    pretrainer("graphs", tmp_path, resume=True).train()
    assert "processes:" not in capsys.readouterr().err


def test_all_processes_begin_with_the_weights_and_buffers_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[torch.Tensor] = []
    monkeypatch.setattr(ProcessGroup, "copy_from_first", lambda self, tensors: copied.extend(tensors))
    policy, data = FAMILIES["graphs"](torch.float64)
    policy.register_buffer("frequencies", torch.rand(3), persistent=False)
    Pretrainer(policy, data, CONFIG, tmp_path)
    assert {id(x) for x in copied} == {id(x) for x in [*policy.parameters(), *policy.buffers()]}


def test_sums_are_of_tensors_of_every_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.all_reduce", lambda flat: flat.mul_(3))
    group = ProcessGroup()
    group.count = 3
    tensors = [torch.ones(2), torch.ones(2, 2, dtype=torch.float64), torch.tensor(1)]
    group.add(tensors)
    assert all(bool((one == 3).all()) for one in tensors)


def test_a_process_without_rows_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.all_reduce", lambda flat: flat)  # what the others add is 0
    group = ProcessGroup()
    group.count = 2
    for group.rank, whole in ((0, 1.5), (1, 0.0)):
        mean = torch.tensor(1.5, requires_grad=True)
        (found,) = RankShare(group, 1).means((mean, torch.tensor(4)))
        found.backward()
        assert (float(found.detach()), float(mean.grad or 0)) == (whole, float(group.rank == 0))
