"""Patience on the ledger: a policy that repeats its samples ends the run or begins again, and both resume to the same bits."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.scoring import RewardError
from discrete_grpo.policies.options import with_options
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.runs.checkpoint import Checkpoints
from discrete_grpo.runs.report.diagnosis import diagnosis
from discrete_grpo.runs.report.report import write_report
from discrete_grpo.training.patience import Patience
from tests.toys import share_of_class_two, tiny_policy, transformer_policy

COLLAPSES: dict[str, Any] = {
    "num_generations": 4,
    "generation_batch_size": 16,
    "learning_rate": 0.1,
    "save_steps": 1000,
    "patience": 3,
}
"""With this learning rate the toy policy draws one sample over and over after some ten updates."""


def run(
    config: GRPOConfig, folder: Path | None = None, *, seed: int = 0, resume: bool = False, make: Any = tiny_policy, **options: Any
) -> GRPOTrainer:
    policy = make(seed=seed, sizes=(0.0, 0.0, 0.0, 0.0, 1.0))
    ledger = Ledger(None if folder is None else folder / "ledger.sqlite", key=str)
    return GRPOTrainer(policy, share_of_class_two, config, run=folder, resume=resume, ledger=ledger, **options)


def strip(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "step_time"} for line in lines]


def trailing(lines: Sequence[dict[str, float]]) -> int:
    """Number of last updates whose generation brought no new call, from the ledger's own count."""
    calls = [line["oracle/calls"] for line in lines]
    return next(k for k, c in enumerate(reversed([0.0, *calls])) if c != calls[-1]) - 1


def test_a_stale_policy_ends_the_run_and_both_log_and_report_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = GRPOConfig(**COLLAPSES, max_steps=200)
    trainer = run(config, tmp_path)
    lines = trainer.train()
    assert len(lines) < 150
    assert trailing(lines) == 3  # not one update more
    assert max(trailing(lines[: k + 1]) for k in range(len(lines) - 1)) < 3
    assert [line["oracle/patience"] for line in lines[-4:]] == [3.0, 2.0, 1.0, 0.0]
    assert "oracle/restarts" not in lines[-1]
    assert trainer.checkpoints is not None
    assert trainer.checkpoints.latest().name.endswith(str(len(lines)))  # the state at the end is kept
    said = "The run ended for patience: its last 3 updates brought no new call"
    assert said in " ".join(capsys.readouterr().err.split())
    assert said in write_report(tmp_path).read_text(encoding="utf-8")
    again = run(config, tmp_path, resume=True)
    assert again.train() == []  # it stays ended
    unlimited = run(GRPOConfig(**COLLAPSES | {"patience": None}, max_steps=len(lines) + 2))
    assert len(unlimited.train()) == len(lines) + 2
    assert "oracle/patience" not in unlimited.history[-1]


def test_a_restart_puts_the_first_weights_back_and_keeps_memory_and_reference() -> None:
    options = COLLAPSES | {"when_stale": "restart", "beta": 0.001, "sync_ref_model": True, "ref_model_sync_steps": 2}
    trainer = run(GRPOConfig(**options, max_steps=200, replay_samples=1, ema_decay=0.5))
    first = [p.detach().clone() for p in trainer.module.parameters()]
    while trainer.patience is not None and not trainer.patience.restarts_now:
        assert trainer.update() is not None
    moved = [p.detach().clone() for p in trainer.module.parameters()]
    assert any(not torch.equal(a, b) for a, b in zip(first, moved, strict=True))
    kept = [sample.text for sample in trainer.sampler.shards[0].replay.kept]  # type: ignore[union-attr]
    trainer.state.restart_stale()
    assert trainer.reference is not None
    assert trainer.average is not None
    for module in (trainer.module, trainer.reference, trainer.average.module):
        assert all(torch.equal(a, b) for a, b in zip(first, module.parameters(), strict=True))  # type: ignore[union-attr]
    assert len(trainer.optimizer.state) == 0
    assert int(trainer.average.n_averaged) == 0
    assert kept
    assert [sample.text for sample in trainer.sampler.shards[0].replay.kept] == kept  # type: ignore[union-attr]
    line = trainer.update()
    assert line is not None
    assert line["oracle/restarts"] == 1.0
    assert line["oracle/new_calls"] > 0  # the policy is alive again
    assert len(trainer.optimizer.state) > 0


def test_a_checkpoint_is_not_judged_by_the_policy_after_a_restart(tmp_path: Path) -> None:
    changed = {"save_steps": 1, "save_total_limit": 100, "metric_for_best_model": "reward", "when_stale": "restart"}
    trainer = run(GRPOConfig(**COLLAPSES | changed, max_steps=40), tmp_path)
    lines = trainer.train()
    restarts = [0.0, *(line["oracle/restarts"] for line in lines)]
    (step, *_) = (k for k in range(1, 41) if restarts[k] > restarts[k - 1])  # update k + 1 is the first after the restart
    judged = {int(path.parent.name[5:]) for path in tmp_path.glob("checkpoints/*/metrics.json")}
    assert step - 1 not in judged
    assert {step - 2, step} <= judged


def test_restarts_spend_more_of_the_budget_and_are_told() -> None:
    stopped = run(GRPOConfig(**COLLAPSES, max_steps=30)).train()
    restarted = run(GRPOConfig(**COLLAPSES, max_steps=30, when_stale="restart")).train()
    assert len(restarted) == 30
    assert strip(restarted)[: len(stopped) - 1] == [line | {"oracle/restarts": 0.0} for line in strip(stopped[:-1])]
    assert restarted[-1]["oracle/calls"] > stopped[-1]["oracle/calls"]
    assert restarted[-1]["oracle/restarts"] >= 1
    (note,) = diagnosis(restarted)
    assert f"({restarted[-1]['oracle/restarts']:.0f}x)" in note
    assert diagnosis(restarted[:2]) == []


def test_a_restart_that_brings_nothing_new_ends_the_run_and_the_report_says_so(tmp_path: Path) -> None:
    """A policy that has drawn all of its samples, or makes no valid one, would else make updates for ever."""
    policy = tiny_policy(sizes=(0.0, 1.0))  # three samples
    options: dict[str, Any] = {"num_generations": 8, "generation_batch_size": 32, "patience": 3, "when_stale": "restart"}
    config = GRPOConfig(**options, learning_rate=1e-4, max_steps=200)

    def trainer(resume: bool = False) -> GRPOTrainer:
        ledger = Ledger(tmp_path / "ledger.sqlite", key=str, max_oracle_calls=100)
        return GRPOTrainer(policy, share_of_class_two, config, run=tmp_path, resume=resume, ledger=ledger)

    lines = trainer().train()
    assert lines[-1]["oracle/restarts"] == 1
    assert lines[-1]["oracle/calls"] == 3
    assert trailing(lines) == 3 + 3  # until the restart, and until the end
    note = "It drew nothing new with these either, which ended the run: all that it draws was scored, or is invalid."
    assert any(note in line for line in diagnosis(lines))
    assert not any(note in line for line in diagnosis(lines[:-1]))
    assert trainer(resume=True).train() == []  # it stays ended


def test_a_restart_that_brings_something_is_followed_by_another() -> None:
    patience = Patience(2, weights=[torch.zeros(1)], few=1.0)
    for calls, ends, restarts in ((0, False, False), (0, False, True)):
        patience.count(calls, updates=1)
        assert (patience.ends, patience.restarts_now) == (ends, restarts)
    patience.restart([torch.zeros(1)], torch.optim.SGD([torch.zeros(1)], lr=0.1))
    for calls, ends, restarts in ((1, False, False), (0, False, True)):  # one new call is few, and is not none
        patience.count(calls, updates=1)
        assert (patience.ends, patience.restarts_now) == (ends, restarts)
    patience.restart([torch.zeros(1)], torch.optim.SGD([torch.zeros(1)], lr=0.1))
    kept = patience.state_dict()
    patience = Patience(2, weights=[torch.zeros(1)], few=1.0)
    patience.load_state_dict(kept)
    patience.count(0, updates=2)
    assert (patience.ends, patience.restarts_now) == (True, False)


@pytest.mark.parametrize("when_stale", ["stop", "restart"])
def test_resumed_in_the_middle_to_the_same_bits(tmp_path: Path, when_stale: Any) -> None:
    options = COLLAPSES | {"patience": 4, "steps_per_generation": 2, "replay_samples": 1, "ema_decay": 0.8, "beta": 0.001}
    options["learning_rate"] = 0.06  # at 0.1 some weights overflow before the policy is stale, which takes 20 to 30 updates
    config = GRPOConfig(**options, max_steps=48, when_stale=when_stale)
    cuts: list[int] = []
    states: dict[int, list[torch.Tensor]] = {}

    def copied(trainer: GRPOTrainer, metrics: Mapping[str, float]) -> bool:
        """Keeps the run as it is in the middle of a generation with half of the patience used, once stale, and one update later."""
        states[trainer.step] = [value.clone() for value in trainer.module.state_dict().values()]
        left = [line["oracle/patience"] for line in trainer.history]
        half = left[-1] == 2.0 and not cuts
        if half or (when_stale == "restart" and left.count(0.0) == 1 and 0.0 in left[-2:]):
            trainer.save()
            shutil.copytree(tmp_path / "whole", tmp_path / f"cut{trainer.step}")
            cuts.append(trainer.step)
        return False

    whole = run(config, tmp_path / "whole", on_update=copied)
    whole.train()
    left = [line["oracle/patience"] for line in whole.history]
    wanted = [left.index(2.0) + 1]
    if when_stale == "restart":
        assert whole.history[-1]["oracle/restarts"] >= 1
        wanted += [left.index(0.0) + 1, left.index(0.0) + 2]
    assert cuts == wanted
    for cut in cuts:
        longer = replace(config, max_steps=min(cut + 9, whole.step))  # from half of the patience past the restart
        resumed = run(longer, tmp_path / f"cut{cut}", seed=9, resume=True)  # other weights: all must come from the checkpoint
        assert resumed.step == cut
        resumed.train()
        assert strip(resumed.history) == strip(whole.history[cut : resumed.step])
        assert resumed.step == longer.max_steps
        assert all(torch.equal(a, b) for a, b in zip(resumed.module.state_dict().values(), states[resumed.step], strict=True))


def test_the_updates_of_a_generation_count_together() -> None:
    patience = Patience(3)
    patience.count(1, updates=4)  # new calls: none of its updates counts
    assert patience.stale == 0
    patience.count(0, updates=4)
    assert (patience.stale, patience.ends, patience.restarts_now) == (4, True, False)
    assert patience.metrics() == {"oracle/patience": 0.0}


def test_few_new_calls_count_as_none_below_the_threshold() -> None:
    patience = Patience(2, few=3.2)
    for new_calls, stale in ((3, 1), (4, 0), (0, 1), (3, 2)):
        patience.count(new_calls, updates=1)
        assert patience.stale == stale
    assert patience.ends


def test_the_threshold_is_a_share_of_the_generation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nearly = run(GRPOConfig(**COLLAPSES, patience_threshold=0.5, max_steps=200), tmp_path, make=transformer_policy)
    lines = nearly.train()
    new = [line["oracle/new_calls"] for line in lines]
    few = [calls <= 0.5 * 16 for calls in new]
    assert few[-3:] == [True] * 3
    assert not any(all(few[k : k + 3]) for k in range(len(few) - 3))  # not one update more
    assert new[-1] > 0  # a run with the threshold 0 would have gone on
    assert "its last updates brought hardly a new call" in " ".join(capsys.readouterr().err.split())


def test_a_failure_after_a_restart_leaves_the_last_checkpoint_as_it_was(tmp_path: Path) -> None:
    first, kept = dict[str, Tensor](), dict[str, Tensor]()

    def weights_of(step: int) -> dict[str, Tensor]:
        return load_file(tmp_path / f"checkpoints/step-{step:08d}/model.safetensors")

    def failing(samples: Sequence[Any]) -> Mapping[str, float]:
        assert trainer.patience is not None
        if trainer.patience.restarts:
            raise RuntimeError("after the restart")
        return {}

    config = GRPOConfig(**{**COLLAPSES, "save_steps": 1}, max_steps=200, when_stale="restart")
    trainer = run(config, tmp_path, sample_metrics=failing)
    first |= {name: value.clone() for name, value in trainer.module.state_dict().items()}

    def keep(own: GRPOTrainer, line: Mapping[str, float]) -> None:
        kept.update(weights_of(own.step))

    trainer.on_update = keep
    with pytest.raises(RewardError, match="after the restart"):
        trainer.train()
    found = weights_of(trainer.step)
    assert all(torch.equal(found[name], value) for name, value in kept.items())
    assert not all(torch.equal(found[name], first[name]) for name in found)


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"^patience_threshold: 1.0, expected at least 0 and less than 1$"):
        GRPOConfig(patience=5, patience_threshold=1.0)
    with pytest.raises(ValueError, match=r"^patience_threshold: 0.05, expected 0 without patience$"):
        GRPOConfig(patience_threshold=0.05)
    with pytest.raises(ValueError, match=r"^patience: 0, expected at least 1$"):
        GRPOConfig(patience=0)
    with pytest.raises(ValueError, match=r"^when_stale: 'end', expected one of stop, restart$"):
        GRPOConfig(patience=5, when_stale="end")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^when_stale: 'restart', expected stop without patience$"):
        GRPOConfig(when_stale="restart")
    with pytest.raises(ValueError, match=r"^patience: 5, expected None without a ledger that counts calls \(ledger=\.\.\.\)$"):
        GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(patience=5))


def test_checkpoints_of_runs_without_patience_resume_with_it(tmp_path: Path) -> None:
    run(GRPOConfig(**COLLAPSES | {"patience": None}, max_steps=2), tmp_path).train()
    assert Checkpoints(tmp_path).all()
    resumed = run(GRPOConfig(**COLLAPSES, max_steps=3, when_stale="restart"), tmp_path, resume=True)
    assert resumed.train()[0]["oracle/restarts"] == 0.0


def test_a_restart_puts_the_histogram_of_node_counts_back_too(tmp_path: Path) -> None:
    def small(samples: Sequence[Any], **columns: Any) -> list[float]:
        return [float(len(sample) == 2) for sample in samples]

    def trainer(resume: bool = False) -> GRPOTrainer:
        config = GRPOConfig(num_generations=16, generation_batch_size=16, patience=2, when_stale="restart", learning_rate=1e-9)
        policy = with_options(tiny_policy(sizes=(0.0, 0.5, 0.5)), node_count="running")  # 12 samples: soon stale
        return GRPOTrainer(policy, small, config, run=tmp_path, resume=resume, ledger=Ledger(tmp_path / "ledger.sqlite"))

    first = trainer().module.state_dict()["head.histogram"].clone()
    made = trainer()
    while made.patience is not None and not made.patience.restarts_now:
        made.update()
    made.save()
    made = trainer(resume=True)
    collapsed = made.module.state_dict()["head.histogram"].clone()
    assert collapsed[2] > first[2] + 0.1
    made.state.restart_stale()
    assert torch.equal(made.module.state_dict()["head.histogram"], first)


def test_every_update_of_a_stale_generation_is_counted() -> None:
    trainer = run(GRPOConfig(**COLLAPSES | {"patience": 6, "num_iterations": 2}, max_steps=200))
    lines = trainer.train()
    assert [line["oracle/patience"] for line in lines[-6:]] == [6.0, 4.0, 4.0, 2.0, 2.0, 0.0]
