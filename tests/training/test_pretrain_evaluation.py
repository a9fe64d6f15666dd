"""A checkpoint is written before its evaluation: a kill or a stop within it costs no update and changes no bit."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.interrupt import Interrupted
from discrete_grpo.runs.checkpoint import Checkpoints, load_training, read_policy
from discrete_grpo.runs.recorder import read_metrics
from discrete_grpo.training.pretrain import Pretrainer
from tests.toys import transformer_policy
from tests.training.test_pretrain import CONFIG, DATA, stop_after

BEST = dataclasses.replace(CONFIG, metric_for_best_model="eval/first", save_total_limit=20)


def first_weight(policy: Any) -> float:
    return float(next(policy.parameters()).detach().flatten()[0])


class Evaluation:
    """Measures a weight; ``act`` is called at the evaluation of that number, counted from 1."""

    def __init__(self, number: int = 0, act: Callable[[], Any] = lambda: None) -> None:
        self.number, self.act, self.calls, self.ended = number, act, 0, 0

    def __call__(self, policy: Any) -> Mapping[str, float]:
        self.calls += 1
        if self.calls == self.number:
            self.act()
        self.ended += 1
        return {"first": first_weight(policy)}


def trainer(run: Path, evaluate: Evaluation | None, *, resume: bool = False, **changed: Any) -> Pretrainer:
    return Pretrainer(transformer_policy(), DATA, dataclasses.replace(BEST, **changed), run, resume=resume, evaluate=evaluate)


def outcome(run: Path) -> dict[str, Any]:
    """All that a run has left but for its speed."""
    lines = [{k: v for k, v in line.items() if k != "samples_per_second"} for line in read_metrics(run)]
    metrics = {path.name: json.loads((path / "config.json").read_text()).get("metrics") for path in Checkpoints(run).all()}
    best = json.loads((run / "checkpoints/best.json").read_text())
    generator = load_training(Checkpoints(run).latest())["generator"].tolist()
    weights = {name: value.tolist() for name, value in read_policy(run / "policy").state_dict().items()}
    return {"lines": lines, "metrics": metrics, "best": best, "generator": generator, "weights": weights}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of an uninterrupted run."""
    trainer(run := tmp_path_factory.mktemp("whole"), Evaluation()).train()
    return outcome(run)


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def terminated() -> None:
    signal.raise_signal(signal.SIGTERM)


def caught() -> None:
    """Ctrl-C in code that goes on after it."""
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()


def failed() -> None:
    raise MemoryError("of the evaluation")


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(
    ("act", "error"), [(ctrl_c, Interrupted), (terminated, Interrupted), (caught, Interrupted), (failed, MemoryError)]
)
def test_what_ends_an_evaluation_costs_no_update_and_changes_no_bit(
    act: Callable[[], None], error: type[Exception], number: int, whole: dict[str, Any], tmp_path: Path
) -> None:
    stopped = Evaluation(number, act)
    with pytest.raises(
        error, match="of the evaluation" if error is MemoryError else f"^stopped at update {4 * number} of 12, before"
    ):
        trainer(tmp_path, stopped).train()
    assert stopped.ended == (number if act is caught else number - 1)
    assert Checkpoints(tmp_path).latest().name == f"step-{4 * number:08d}"
    assert [line["step"] for line in read_metrics(tmp_path) if "eval/first" in line] == [4 * k for k in range(1, number)]
    goes_on = trainer(tmp_path, again := Evaluation(), resume=True)
    assert goes_on.step == 4 * number
    goes_on.train()
    assert again.calls == 4 - number
    assert outcome(tmp_path) == whole


def test_the_averaged_policy_is_evaluated(whole: dict[str, Any]) -> None:
    *_, last = (line["eval/first"] for line in whole["lines"] if "eval/first" in line)
    name, _ = next(iter(transformer_policy().named_parameters()))
    assert last == torch.tensor(whole["weights"][name]).flatten()[0]


def test_a_kill_between_the_line_and_its_checkpoint_writes_no_line_twice(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = trainer(tmp_path, Evaluation())
    write = killed._write
    monkeypatch.setattr(killed, "_write", lambda *, regular: failed() if regular else write(regular=regular))
    with pytest.raises(MemoryError):
        killed.train()
    assert "eval/first" in read_metrics(tmp_path)[-1]
    trainer(tmp_path, Evaluation(), resume=True).train()
    assert outcome(tmp_path) == whole


def test_no_evaluation_begins_after_a_stop(whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(trainer(tmp_path, evaluation := Evaluation()), 4, monkeypatch)
    assert evaluation.calls == 0
    trainer(tmp_path, Evaluation(), resume=True).train()
    assert outcome(tmp_path) == whole


def test_a_run_that_goes_on_without_evaluation_has_the_weights(whole: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        trainer(tmp_path, Evaluation(1, ctrl_c)).train()
    trainer(tmp_path, None, resume=True, metric_for_best_model="loss").train()
    weights = read_policy(tmp_path / "policy").state_dict()
    assert all(torch.equal(value, torch.tensor(whole["weights"][name])) for name, value in weights.items())
