"""Calls as they are made in notebooks: what is misspelt, forgotten or given in another form is answered in one line."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import discrete_grpo as dg
from discrete_grpo.core.checks import check_folder_name
from discrete_grpo.core.condition_cells import condition_cells
from discrete_grpo.core.reward_arguments import checked_reward
from discrete_grpo.rewards.molecules import molecule_reward
from discrete_grpo.runs.folder import check_unused
from discrete_grpo.runs.lock import locked_folder
from discrete_grpo.runs.trackers import open_trackers
from tests.broken_policies import Words


def length(samples: list[Any], **columns: Any) -> list[float]:
    return [float(len(str(s))) for s in samples]


class Scores:
    def score(self, mol: Any) -> float:
        return float(mol.GetNumAtoms())


grpo: Any = dg
make: Any = dg.PretrainSmilesRecipe
one: Any = "wandb"


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda: grpo.train("qm9-small", length, output_dir="x", resum=True), ValueError, "did you mean 'resume'?"),
        (lambda: grpo.evaluate(["CC"], kin="molecules"), ValueError, "kin: unknown option; did you mean 'kind'?"),
        (lambda: grpo.train("qm9-small", length, output_dir="~/x"), ValueError, "output_dir: '~/x', expected a path"),
        (lambda: grpo.train("qm9-small", {"a": length}, output_dir="x"), ValueError, "such functions"),
        (lambda: grpo.pretrain(dg.PretrainSmilesRecipe), TypeError, "recipe: the class PretrainSmilesRecipe, expec"),
        (lambda: make(num_step=4), TypeError, "PretrainSmilesRecipe: num_step: unknown option; known: "),
        (lambda: make(max_step=4), TypeError, "max_step: a field of PretrainConfig, expected it as pretrain="),
        (lambda: open_trackers(Path("x"), one, {}), ValueError, "report_to: 'wandb', expected a list of names, such as ['wandb']"),
        (lambda: molecule_reward(Scores.score), ValueError, "score: a method, expected a function; molecule_reward(object.method)"),
        (lambda: dg.GRPOTrainer(Words().half(), length), ValueError, "policy: it has weights in float16 to train, expected float"),
    ],
)  # fmt: skip
def test_what_is_meant_is_told(
    call: Callable[[], Any], error: type[Exception], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=re.escape(told)):
        call()
    assert not any(tmp_path.iterdir())


def test_a_mapping_of_rewards_is_not_taken_for_their_names() -> None:
    with pytest.raises(ValueError, match=r"such functions$"):
        checked_reward({"a": length})
    assert molecule_reward(Scores().score)(["CCO"]) == [3.0]


def test_a_folder_named_like_a_backup_is_no_home() -> None:
    for name in ("runs/~", "a~", "~backup/x"):
        check_folder_name("output_dir", name)


def test_a_run_in_the_same_folder_is_told_that_it_can_go_on(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ValueError, match=r"name another folder or remove these, or go on with it \(resume\)$"):
        check_unused(tmp_path)


def test_another_thread_is_refused_and_a_nested_block_is_not(tmp_path: Path) -> None:
    found: list[str] = []

    def other() -> None:
        try:
            with locked_folder(tmp_path / "run"):
                found.append("held")
        except ValueError as error:
            found.append(str(error))

    with locked_folder(tmp_path / "run"), locked_folder(tmp_path / "run"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    other()
    assert found == [f"output_dir: another thread is working in {tmp_path / 'run'}, expected one at a time", "held"]


def test_conditions_that_are_tensors_or_arrays_are_in_the_table() -> None:
    given = [torch.tensor(3.0), np.arange(2), np.float32(0.5), torch.tensor([[1, 2]])]
    assert condition_cells(given) == [3.0, "[0, 1]", 0.5, "[[1, 2]]"]
