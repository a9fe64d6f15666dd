"""Runs of ``optimise`` that go on: to the same bits whatever stopped them, and what was changed since is told or refused."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discrete_grpo import GRPOConfig
from discrete_grpo.core.interrupt import Interrupt, Interrupted
from discrete_grpo.core.rollout import as_module
from discrete_grpo.core.scoring import Failure, RewardError
from discrete_grpo.recipes import optimise as module
from discrete_grpo.recipes.grpo_memory import TOKEN_SETTINGS
from discrete_grpo.recipes.optimise import OptimiseRecipe, optimise
from discrete_grpo.recipes.optimise_run import OptimiseRun
from discrete_grpo.recipes.reward_changes import changed_rewards, tell_changed_rewards
from discrete_grpo.recipes.train import train
from discrete_grpo.rewards.diversity import DiversityFilter
from discrete_grpo.runs.checkpoint import CheckpointError, save
from discrete_grpo.runs.recorder import read_samples
from discrete_grpo.training.rounds import Rounds
from tests.benchmarking.test_methods import chains
from tests.recipes.optimise_parts import SMALL, carbons, files, oxygens, run


def zeros(samples: Sequence[str], **columns: Any) -> list[float]:
    return [0.0 for _ in samples]


KEPT = f"objective.temperature {TOKEN_SETTINGS['objective']['temperature']}"


class Failing:
    """Oxygens until so many molecules were scored; then it raises, once."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.cached_as: str | None = "oxygens of the test"

    def __call__(self, samples: Sequence[str], **columns: Any) -> list[float]:
        self.left -= len(samples)
        if self.left < 0:
            self.left = 10**9
            raise OSError("the oracle is away")
        return oxygens(samples)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The files of a run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, Failing(10**9), budget=260)
    return files(folder)


@pytest.mark.parametrize("after", [5, 15, 75, 230])  # in the first round, before the first checkpoint, later, with a fitted screen
def test_a_run_whose_reward_fails_goes_on_to_the_same_bits(after: int, whole: dict[str, Any], tmp_path: Path) -> None:
    reward = Failing(after)
    with pytest.raises(RewardError, match="the oracle is away"):
        run(tmp_path / "run", reward, budget=260)
    run(tmp_path / "run", reward, budget=260, resume=True)
    assert files(tmp_path / "run") == whole


class Halves(Failing):
    """Scores 0.5 for every molecule until so many were scored; then it raises, once."""

    def __call__(self, samples: Sequence[str], **columns: Any) -> list[float]:
        return [0.5 for _ in super().__call__(samples, **columns)]


def test_a_memory_begins_again_where_a_run_failed_before_its_first_checkpoint(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", DiversityFilter(Halves(10**9)))
    reward = DiversityFilter(Halves(15))
    with pytest.raises(RewardError, match="the oracle is away"):
        run(tmp_path / "run", reward)
    assert run(tmp_path / "run", reward, resume=True) == whole


def test_the_area_is_that_of_the_reward_with_which_a_run_goes_on(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="the oracle is away"):
        run(tmp_path, Failing(15))
    found = run(tmp_path, zeros, resume=True)
    assert found.auc_top10 == 0.0


class Noisy(Failing):
    """The same with noise from the global random state; such scores cannot be kept."""

    def __init__(self, after: int) -> None:
        super().__init__(after)
        self.cached_as = None

    def __call__(self, samples: Sequence[str], **columns: Any) -> list[float]:
        return [score + random.random() for score in super().__call__(samples, **columns)]


@pytest.mark.parametrize("kinds", [(Failing, None), (Noisy,)])
def test_a_warm_start_with_two_rewards_or_a_random_one_goes_on_to_the_same_bits(kinds: Any, tmp_path: Path) -> None:
    def rewards(after: int) -> list[Any]:
        return [carbons if kind is None else kind(after) for kind in kinds]

    known = tmp_path / "known.smi"
    known.write_text("OCOCO\nOO\nOCO\nCCO\n")
    given: dict[str, Any] = {"budget": 60, "warm_start": str(known), "settings": SMALL | {"memory_size": 3}, "keep": 60}
    random.seed(1)
    whole = run(tmp_path / "whole", rewards(10**9), **given)
    assert {entry.sample for entry in whole.best} >= {"OO", "OCO", "OCOCO", "CCO"}
    random.seed(1)
    stopped = rewards(45)
    with pytest.raises(RewardError):
        run(tmp_path / "run", stopped, **given)
    known.unlink()  # a checkpoint holds what it gave
    random.seed(2)
    run(tmp_path / "run", stopped, **given, resume=True)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_run_of_several_rewards_goes_on_with_the_columns_of_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = Failing(45)
    with monkeypatch.context() as patch:  # as in an earlier version
        patch.setattr("discrete_grpo.recipes.optimise_run.component_columns", lambda rows, names: {})
        with pytest.raises(RewardError, match="the oracle is away"):
            run(tmp_path, [reward, carbons], budget=60)
    run(tmp_path, [reward, carbons], budget=60, resume=True)
    assert list(read_samples(tmp_path / "samples.csv.gz")) == ["step", "sample", "reward", "source"]
    assert "reward_carbons" in read_samples(tmp_path / "best.csv.gz")


def test_a_run_goes_on_with_what_it_was_made_of_alone(tmp_path: Path) -> None:
    run(tmp_path, budget=30)
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        (
            {"settings": SMALL | {"memory_size": 10, "objective.temperature": 0.5}},
            f"^settings: memory_size 10, objective.temperature 0.5, expected memory_size 40, {KEPT} as in the run to resume$",
        ),
        ({"reward": carbons}, r"reward: \['carbons'\], expected \['oxygens'\] as in the run to resume"),
        ({"seed": 4}, "seed: 4, expected 3 as in the run to resume"),
    )
    for change, said in changes:
        before = files(tmp_path)
        with pytest.raises(ValueError, match=said):
            run(tmp_path, budget=60, resume=True, **change)
        assert files(tmp_path) == before
    found = run(tmp_path, budget=60, resume=True)  # a larger budget is another matter
    assert found.calls == 60


def test_an_interrupted_run_saves_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "whole")
    inner = Rounds.round

    def stopping(self: Any) -> int:
        made = inner(self)
        if self.progress.rounds == 3:
            flags[-1].asked = True
        return made

    flags: list[Interrupt] = []
    go = OptimiseRun.go

    def noted(self: Any, stop: Interrupt) -> None:
        flags.append(stop)
        go(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(OptimiseRun, "go", noted)
        patch.setattr(Rounds, "round", stopping)
        with pytest.raises(Interrupted, match=r"stopped after round 3 with \d+ of 120 calls"):
            run(tmp_path / "run")
    assert [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir())] == ["step-00000002", "step-00000003"]
    run(tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_the_initial_policy_of_a_run_has_checksums_and_a_line_says_if_it_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, budget=30)
    kept, told = tmp_path / "reference", "is missing; TokenPolicy as it is now is taken for the policy that the run began with"
    weights = kept / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"reference/model\.safetensors is not what was written \(see SHA256SUMS\)"):
        run(tmp_path, budget=40, resume=True)
    weights.write_bytes(whole)
    run(tmp_path, budget=40, resume=True)
    (kept / "SHA256SUMS").unlink()  # as in a run of an earlier version
    run(tmp_path, budget=50, resume=True)
    assert told not in capsys.readouterr().err
    shutil.rmtree(kept)
    run(tmp_path, budget=60, resume=True)
    assert f"policy: {kept} {told}\n" in capsys.readouterr().err


def test_a_run_needs_nothing_but_its_folder_to_go_on(tmp_path: Path) -> None:
    save(tmp_path / "mine", chains(), metadata={"kind": "molecules"})
    few = {"draws": 6, "passes": 1, "take": 5, "unscreened": 1, "take_children": 1}
    given: dict[str, Any] = {"output_dir": tmp_path / "run", "save_rounds": 1, "settings": few}
    optimise(tmp_path / "mine", Failing(10**9), max_oracle_calls=20, **given | {"output_dir": tmp_path / "whole"})
    reward = Failing(12)
    with pytest.raises(RewardError):
        optimise(tmp_path / "mine", reward, max_oracle_calls=20, **given)
    shutil.rmtree(tmp_path / "mine")
    optimise(tmp_path / "mine", reward, max_oracle_calls=20, resume=True, **given)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_larger_budget_goes_on_and_one_that_is_spent_is_refused(tmp_path: Path) -> None:
    run(tmp_path, budget=60)
    before = files(tmp_path)
    with pytest.raises(ValueError, match=r"^max_oracle_calls: 40, expected at least 60, the calls that are paid for$"):
        run(tmp_path, budget=40, resume=True)
    assert files(tmp_path) == before
    assert run(tmp_path, budget=90, resume=True).calls == 90


NAMED = "def named(samples, **columns):\n    return [text.count('O') / {} for text in samples]\n"


def _named(divisor: int, more: str = "") -> Any:
    """A reward of the same name in each call, as a module that was edited would give it."""
    space: dict[str, Any] = {"__name__": "edited_reward"}
    exec(NAMED.format(divisor) + more, space)
    return space["named"]


def test_a_reward_that_was_edited_is_told_when_a_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "reward named: its code or its values have changed since the run began; scores so far are those of the old code\n"
    config = GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8, save_steps=1)
    for name in ("optimise", "train"):

        def go(reward: Any, folder: Path = tmp_path / name, **options: Any) -> str:
            if folder.name == "optimise":
                run(folder, reward, budget=24, **options)
            else:
                train(chains(), reward, output_dir=folder, grpo=config, evaluation_samples=0, **options)
            return capsys.readouterr().err

        assert "its code" not in go(_named(8))
        assert "its code" not in go(_named(8, "x = 3\n"), resume=True)
        assert told in go(_named(4), resume=True)
        (tmp_path / name / "rewards.json").write_text('{"score"')
        assert "rewards.json is damaged, so it is not known whether the rewards have changed" in go(_named(4), resume=True)
        (tmp_path / name / "rewards.json").unlink()  # as in a run of an earlier version
        assert "its code" not in go(_named(4), resume=True)


@dataclass(frozen=True)
class _Table:
    """A reward that reads a file."""

    path: str

    def __call__(self, samples: Any, **columns: Any) -> list[float]:
        return [float(Path(self.path).read_text(encoding="utf-8")) for _ in samples]


def test_a_file_of_a_reward_that_was_edited_is_told_when_a_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, stored = tmp_path / "table.csv", tmp_path / "run" / "rewards.json"
    table.write_text("1", encoding="utf-8")
    config = GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8, save_steps=1)

    def go(**options: Any) -> str:
        train(chains(), _Table(str(table)), output_dir=tmp_path / "run", grpo=config, evaluation_samples=0, **options)
        return capsys.readouterr().err

    told = f"reward _Table: {table}, which it names, has changed since the run began; scores so far are those of the old file\n"
    assert "changed since the run began" not in go() + go(resume=True)
    table.write_text("2", encoding="utf-8")
    assert told in go(resume=True)
    ((name, found),) = json.loads(stored.read_text(encoding="utf-8")).items()
    stored.write_text(json.dumps({name: found["code"]}), encoding="utf-8")  # as in a run of an earlier version
    assert "changed since the run began" not in go(resume=True)
    stored.write_text(json.dumps({name: "0"}), encoding="utf-8")
    assert f"reward {name}: its code or its values have changed since the run began" in go(resume=True)


def test_a_setting_that_was_changed_is_told_when_training_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def go(rate: float, steps: int, **options: Any) -> str:
        config = GRPOConfig(max_steps=steps, learning_rate=rate, num_generations=4, generation_batch_size=8, save_steps=1)
        train(chains(), _named(8), output_dir=tmp_path, grpo=config, evaluation_samples=0, **options)
        return capsys.readouterr().err

    assert "was" not in go(1e-3, 1)
    assert go(2e-3, 1, resume=True).splitlines()[0] == "grpo.learning_rate: was 0.001 in the run so far, is 0.002 from here on"
    told = go(2e-3, 2, resume=True)
    assert told.startswith("grpo.max_steps: was 1 in the run so far, is 2 from here on")
    assert "learning_rate" not in told
    (tmp_path / "settings.json").unlink()  # as in a run of an earlier version
    assert "was" not in go(1e-3, 2, resume=True)
    assert "was" not in go(1e-3, 2, resume=True)


def test_numbers_of_numpy_are_numbers_also_in_checkpoints(tmp_path: Path) -> None:
    run(tmp_path / "run", seed=np.int64(3), save_rounds=np.int64(2), budget=np.int64(60))  # type: ignore[arg-type]
    run(tmp_path / "same", budget=60)
    assert files(tmp_path / "run") == files(tmp_path / "same")
    run(tmp_path / "run", budget=120, resume=True)


def test_a_new_run_that_was_asked_to_go_on_notes_its_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8, save_steps=1)
    for reward in (_named(8), _named(9)):
        train(chains(), reward, output_dir=tmp_path, grpo=config, evaluation_samples=0, resume=True)
        config = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, save_steps=1)
    assert "reward named: its code or its values have changed" in capsys.readouterr().err


def test_a_policy_object_that_is_given_again_is_not_the_one_that_restarts_go_back_to(tmp_path: Path) -> None:
    few = {"draws": 6, "passes": 1, "take": 5, "unscreened": 1, "take_children": 1}
    given: dict[str, Any] = {"output_dir": tmp_path, "save_rounds": 1, "settings": few}
    first, other = chains(), chains()
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.01)
    reward = Failing(12)
    with pytest.raises(RewardError):
        optimise(first, reward, max_oracle_calls=20, **given)
    found = module._loaded(
        OptimiseRecipe(**given, policy="an object", reward=reward, max_oracle_calls=20), other, tmp_path / "reference"
    )[0]
    assert all(torch.equal(a, b) for a, b in zip(as_module(found.policy).parameters(), first.parameters(), strict=True))


def test_rounds_that_are_made_again_list_their_failures_once(tmp_path: Path) -> None:
    class Lossy:
        cached_as = None

        def __init__(self, after: int) -> None:
            self.left, self.found = after, list[Failure]()

        def __call__(self, samples: Sequence[str], **columns: Any) -> list[float | None]:
            self.left -= len(samples)
            if self.left < 0:
                self.left = 10**9
                raise OSError("the oracle is away")
            self.found.append(Failure(samples[0], "no answer"))
            return [None, *oxygens(samples[1:])]

        def take_failures(self) -> list[Failure]:
            taken, self.found = self.found, []
            return taken

    reward = Lossy(40)
    with pytest.raises(RewardError, match="the oracle is away"):
        run(tmp_path, reward, budget=60, save_rounds=3)
    run(tmp_path, reward, budget=60, save_rounds=3, resume=True)
    steps = Counter(json.loads(line)["step"] for line in (tmp_path / "failures.jsonl").read_text().splitlines())
    assert set(steps.values()) == {1}


def test_a_folder_that_a_reward_works_in_may_change(tmp_path: Path) -> None:
    work, run_folder = tmp_path / "work", tmp_path / "run"
    work.mkdir()
    tell_changed_rewards(run_folder, [_Table(str(work))], resume=False)
    (work / "scratch").write_text("1")
    assert changed_rewards(run_folder, [_Table(str(work))]) == []
