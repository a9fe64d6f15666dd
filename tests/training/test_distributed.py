"""Two processes do what one does: the same samples, the same gradient, the same files; and they stop together."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.scoring import BudgetExhausted, RewardError
from discrete_grpo.policies.node_count import SizedPolicy
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.runs.checkpoint import Checkpoints, load_training
from discrete_grpo.runs.recorder import read_metrics, read_samples
from discrete_grpo.training.compatibility import check_observers
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.distributed import ProcessGroup
from discrete_grpo.training.sampler import check_shards, make_shards, num_shards
from discrete_grpo.training.trainer import GRPOTrainer
from tests.process_worker import CASES, SMALL, interrupted, trainer
from tests.toys import share_of_class_two, tiny_policy

ROOT = Path(__file__).parents[2]
COMPARED = [
    "plain",
    "grpo",
    "dr_grpo",
    "reuse",
    "entropy",
    "reward_kl",
    "resample",
    "refine",
    "replay",
    "own",
    "sizes",
    "shards",
    "stale",
]
COMPARED += ["interrupted"]
OTHERS = ["idle", "budget", "audited", "uneven"]
ALONE = ("step_time", "described_by_second")
"""Metrics that one process has otherwise than two."""
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.process_worker"]


def launch(folder: Path, *cases: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *LAUNCH, str(folder), *cases]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of two processes."""
    folder = tmp_path_factory.mktemp("two")
    done = launch(folder, *COMPARED, *OTHERS)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def lines(run: Path) -> list[dict[str, Any]]:
    return [{k: math.nan if v is None else v for k, v in line.items() if k not in ALONE} for line in read_metrics(run)]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(load_training(Checkpoints(run).latest())["weights"])


@pytest.mark.parametrize("case", COMPARED)
def test_two_processes_equal_one(case: str, two: Path, tmp_path: Path) -> None:
    if case == "interrupted":  # against the run that was not interrupted
        made = trainer("reuse", tmp_path, generation_shards=2)
    else:
        made = trainer(case, tmp_path, generation_shards=CASES[case].get("generation_shards", 2))
    made.train()
    assert (two / case / "samples.csv.gz").read_bytes() == (tmp_path / "samples.csv.gz").read_bytes()
    exact = case != "shards"  # there each process adds up two shards before they meet
    torch.testing.assert_close(weights(two / case), weights(tmp_path), rtol=0, atol=0 if exact else 1e-10)
    for found, wanted in zip(lines(two / case), lines(tmp_path), strict=True):
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12, nan_ok=True)
    best = Path("checkpoints/best.json")
    assert (two / case / best).is_file() == ("metric_for_best_model" in CASES.get(case, {}) or case == "interrupted")
    if (two / case / best).is_file():
        assert json.loads((two / case / best).read_text()) == pytest.approx(json.loads((tmp_path / best).read_text()))


def test_all_processes_end_where_one_says_so(two: Path) -> None:
    assert len(read_metrics(two / "own")) == 5, "on_update of the last process, before max_steps"


def test_a_budget_that_ends_in_one_process_ends_all_with_one_best_checkpoint(two: Path) -> None:
    assert len(lines(two / "uneven")) == 3
    assert json.loads((two / "uneven/checkpoints/best.json").read_text())["checkpoint"] == "step-00000003"


def test_each_process_describes_the_samples_that_it_drew(two: Path, tmp_path: Path) -> None:
    found = {line["described_by_second"] for case in ("plain", "replay", "shards") for line in read_metrics(two / case)}
    assert found == {0.5}
    trainer("plain", tmp_path).train()
    assert {line["described_by_second"] for line in read_metrics(tmp_path)} == {0.0}


def test_the_first_shard_is_the_stream_of_a_run_without_shards() -> None:
    config = GRPOConfig(**SMALL)
    (alone,), (first, second) = (make_shards(tiny_policy(), config, count) for count in (1, 2))
    drawn = [torch.rand(4, generator=shard.generator) for shard in (alone, first, second)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_one_process_goes_on_with_a_run_of_two(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "plain", tmp_path / "run")
    newest = Checkpoints(tmp_path / "run").latest()
    shutil.rmtree(newest)  # back to update 2
    made = trainer("plain", tmp_path / "run", resume=True)
    assert made.step == 2
    made.train()
    torch.testing.assert_close(weights(tmp_path / "run"), weights(two / "plain"), rtol=0, atol=0)
    assert (tmp_path / "run/samples.csv.gz").read_bytes() == (two / "plain/samples.csv.gz").read_bytes()


def test_a_process_without_a_usable_group_holds_nobody_up(two: Path) -> None:
    """The second process scores everything 0: all its groups are masked."""
    table = read_samples(two / "idle/samples.csv.gz")
    assert all(float(r) == 0 for r, g in zip(table["reward"], table["group"], strict=True) if int(g) >= 2)
    assert len(lines(two / "idle")) == SMALL["max_steps"]
    assert all(line["grad_norm"] > 0 for line in lines(two / "idle"))


def test_a_budget_ends_all_processes_and_the_count_is_that_of_the_samples(two: Path) -> None:
    ledger = Ledger(two / "budget/ledger.sqlite")
    ledger.catch_up()
    table = read_samples(two / "budget/samples.csv.gz")
    scored = {s for s, r in zip(table["sample"], table["reward"], strict=True) if r}
    assert ledger.calls == len(scored) <= 30
    last = lines(two / "budget")[-1]
    assert last["oracle/calls"] == ledger.calls
    assert last["oracle/left"] == 30 - ledger.calls


def test_the_ledger_of_two_processes_that_stopped_and_went_on_has_each_molecule_once(two: Path) -> None:
    run = two / "audited"
    tables = [read_samples(run / f"{name}.csv.gz") for name in ("samples", "evaluation_before", "evaluation_after")]
    assert len(tables[0]["sample"]) == 4 * 16
    assert set(tables[0]["step"]) == {"1", "2", "3", "4"}
    molecules = {molecule_key(s) for table in tables for s in table["sample"]} - {None}
    ledger = Ledger(run / "ledger.sqlite", key=molecule_key)
    ledger.catch_up()
    in_order = dict.fromkeys(molecule_key(s) for k in (1, 0, 2) for s in tables[k]["sample"])
    assert list(ledger.history().keys) == [key for key in in_order if key is not None]
    assert ledger.calls == len(molecules)
    assert (run / "report.html").is_file()


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The run ``fails``, and in the same two processes after it one with broken metrics, which ends them."""
    folder = tmp_path_factory.mktemp("failed")
    return folder, launch(folder, "fails", "broken_metrics")


@pytest.mark.slow
def test_an_error_in_one_process_stops_all_with_its_message(failed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = failed
    message = "reward fails_in_the_second: raised OSError: no licence here"
    assert done.stderr.count(f"RewardError: {message}") >= 2  # each of them says so
    assert Checkpoints(folder / "fails").latest().name.endswith("0")  # what there was is saved


@pytest.mark.slow
def test_an_error_in_the_first_alone_stops_all(failed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = failed
    assert done.returncode != 0
    assert "ArithmeticError: of the first process alone" in done.stderr
    assert done.stderr.count("RewardError: sample_metrics: raised ArithmeticError: of the first process alone") == 2  # in both


# -- alone


def test_a_run_stopped_between_updates_of_a_generation_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = trainer("reuse", tmp_path / "whole")
    whole.train()
    part = interrupted(tmp_path / "part")
    assert part.step == 3
    assert part.pending is not None
    assert part.pending.done == 3
    part.train()
    torch.testing.assert_close(weights(tmp_path / "part"), weights(tmp_path / "whole"), rtol=0, atol=0)
    assert str(lines(tmp_path / "whole")) == str(lines(tmp_path / "part"))
    assert (tmp_path / "whole/samples.csv.gz").read_bytes() == (tmp_path / "part/samples.csv.gz").read_bytes()


def test_each_process_has_its_own_part_of_the_shards() -> None:
    config = GRPOConfig(**SMALL)
    numbers = [s.number for rank in range(2) for s in make_shards(tiny_policy(), config, 4, rank=rank, processes=2)]
    assert numbers == [0, 1, 2, 3]
    assert (num_shards(config, 2), num_shards(config, 2, stored=4), num_shards(replace(config, generation_shards=3), 2)) == (
        2,
        4,
        3,
    )


def test_what_does_not_go_together_is_one_line(tmp_path: Path) -> None:
    config = GRPOConfig(**SMALL)
    with pytest.raises(ValueError, match="generation_shards: 3, expected a multiple of the number of processes \\(2\\)"):
        check_shards(3, config, 2)
    with pytest.raises(ValueError, match="generation_batch_size: 16, expected num_generations \\(4\\) times a multiple of"):
        GRPOTrainer(tiny_policy(), share_of_class_two, replace(config, generation_shards=3))
    with pytest.raises(
        ValueError, match="steps_per_generation: 9, expected at most the rows of each of the 2 generation_shards \\(8\\)"
    ):
        GRPOTrainer(tiny_policy(), share_of_class_two, replace(config, generation_shards=2, steps_per_generation=9))
    first = GRPOTrainer(tiny_policy(), share_of_class_two, replace(config, generation_shards=2), run=tmp_path)
    first.save()
    with pytest.raises(ValueError, match="generation_shards: 4, expected 2 as in the run to resume"):
        GRPOTrainer(tiny_policy(), share_of_class_two, replace(config, generation_shards=4), run=tmp_path, resume=True)


class Told(ProcessGroup):
    """Several processes whose messages are made up."""

    def __init__(self, rank: int, *others: Any) -> None:
        super().__init__()
        self.rank, self.count, self.others = rank, len(others) + 1, list(others)

    def gather(self, value: Any) -> list[Any]:
        return [*self.others[: self.rank], value, *self.others[self.rank :]]


def failing(error: Exception | None) -> Callable[[], int]:
    def work() -> int:
        if error is None:
            return 1
        raise error

    return work


def errors() -> Iterator[Any]:
    """What the other process said, what this one did, and what both must raise."""
    fine, own = failing(None), failing(ValueError("mine"))
    spent = failing(BudgetExhausted("spent", torch.empty(0, 0)))
    for said, work, kind, message in (
        (("reward", "reward x: broke"), fine, RewardError, "^reward x: broke$"),
        (("budget", "spent"), fine, BudgetExhausted, "^spent$"),
        (("other", "OSError: disk"), fine, RuntimeError, "^process 1: OSError: disk$"),
        (("other", "OSError: disk"), own, ValueError, "^mine$"),  # that of the lowest rank
        (("reward", "broke"), spent, RewardError, "^broke$"),  # a budget last
    ):
        yield pytest.param(Told(0, (None, said)), work, kind, message, id=f"{said[0]}-{kind.__name__}")


@pytest.mark.parametrize(("processes", "work", "kind", "message"), errors())
def test_all_processes_raise_the_same(
    processes: ProcessGroup, work: Callable[[], int], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        processes.run_all(work)


def test_processes_tell_each_other_what_is_learned_from_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for case, names in (("plain", set()), ("sizes", {"size_chosen", "size_count"})):
        sampler = trainer(case, tmp_path / case).sampler
        batch = sampler.batch(sampler.shards[0])
        told = sampler._told(batch)
        assert torch.equal(told.rewards, batch.rewards)
        assert set(told.rollout.states) == names
        assert told.rollout.samples == (None,) * len(batch.rollout)
        assert len(pickle.dumps(told)) < len(pickle.dumps(batch)) / 2
    monkeypatch.delattr(SizedPolicy, "observed_states")  # a policy that may read everything
    everything = sampler._told(batch)
    assert set(everything.rollout.states) == set(batch.rollout.states)
    assert everything.rollout.samples == batch.rollout.samples


def test_what_each_returned_is_in_order_of_rank() -> None:
    assert Told(1, ("a", None), ("c", None)).run_all(lambda: "b") == ["a", "b", "c"]
    assert ProcessGroup().run_all(lambda: "b") == ["b"]


def test_processes_share_a_ledger_with_a_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_observers(None, Ledger(max_oracle_calls=5), None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_observers(None, Ledger(tmp_path / "ledger.sqlite"), None)
    with pytest.raises(ValueError, match=r"^ledger: in memory, expected one with a file, which 2 processes share$"):
        check_observers(None, Ledger(max_oracle_calls=5), None)
