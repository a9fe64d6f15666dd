"""``optimise``: the method of the benchmark on any reward, with checkpoints, from Python and from the command line."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discrete_grpo import GRPOConfig, load_policy
from discrete_grpo.benchmarking.methods import METHODS
from discrete_grpo.cli import main
from discrete_grpo.core.interrupt import Interrupt, Interrupted
from discrete_grpo.core.scoring import NoScores, RewardError
from discrete_grpo.recipes import optimise as module
from discrete_grpo.recipes.grpo_memory import SETTINGS
from discrete_grpo.recipes.loading import policy_object
from discrete_grpo.recipes.optimise import Optimised, OptimiseRecipe, optimise
from discrete_grpo.recipes.train import train
from discrete_grpo.rewards.diversity import DiversityFilter
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.runs.checkpoint import load_metadata, save
from discrete_grpo.runs.recorder import read_metrics, read_samples
from discrete_grpo.training.rounds import Rounds
from tests.benchmarking.parts import OXYGENS
from tests.benchmarking.test_methods import chains

SMALL: dict[str, Any] = {
    "draws": 24, "children": 8, "take": 10, "unscreened": 3, "take_children": 4, "passes": 2, "batch_size": 8, "plateau": 60,
    "memory_size": 40,
}  # fmt: skip


def oxygens(samples: Sequence[str], **columns: Any) -> list[float]:
    return [text.upper().count("O") / 8 for text in samples]


def carbons(samples: Sequence[str], **columns: Any) -> list[float]:
    return [text.upper().count("C") / 100 for text in samples]


def zeros(samples: Sequence[str], **columns: Any) -> list[float]:
    return [0.0 for _ in samples]


KEPT = f"objective.temperature {SETTINGS['objective']['temperature']}"


def asks_more(samples: Sequence[str], target: float) -> list[float]:
    raise AssertionError


def run(folder: Path, reward: Any = oxygens, budget: int = 120, **options: Any) -> Optimised:
    given: dict[str, Any] = {"seed": 3, "save_rounds": 2, "settings": SMALL} | options
    return optimise(chains(), reward, output_dir=folder, max_oracle_calls=budget, **given)


def files(folder: Path) -> dict[str, Any]:
    """Files and metrics of a run that do not depend on the clock."""
    lines = [{name: value for name, value in line.items() if name != "step_time"} for line in read_metrics(folder)]
    texts = {name: gzip.decompress((folder / name).read_bytes()) for name in ("samples.csv.gz", "best.csv.gz")}
    weights = [p.tolist() for p in load_policy(folder).parameters()]
    return {"metrics": lines, **texts, "told": json.loads((folder / "optimise.json").read_text()), "weights": weights}


def test_it_is_the_method_of_the_benchmark(tmp_path: Path) -> None:
    found = run(tmp_path / "run", OXYGENS, budget=260)  # the screen is fitted from 200 on
    ledger = Ledger(key=molecule_key, max_oracle_calls=260)
    METHODS["grpo-memory"].run(OXYGENS, chains(), ledger, 3, **SETTINGS | SMALL)
    rows = read_samples(tmp_path / "run" / "samples.csv.gz")
    assert tuple(rows["sample"]) == ledger.history().keys
    assert tuple(rows["source"]) == ledger.history().sources
    assert found.calls == 260
    assert found.sources == ledger.sources()
    assert len(found.sources) == 2


def test_what_is_written(tmp_path: Path) -> None:
    found = run(tmp_path, keep=7)
    scores = [float(score) for score in read_samples(tmp_path / "samples.csv.gz")["reward"]]
    assert [entry.score for entry in found.best] == sorted(scores, reverse=True)[:7]
    table = read_samples(tmp_path / "best.csv.gz")
    assert table["smiles"] == [entry.sample for entry in found.best]
    last = read_metrics(tmp_path)[-1]
    assert last["best/top1"] == max(scores)
    assert last["best/top10"] == pytest.approx(sum(sorted(scores, reverse=True)[:10]) / 10)
    assert last["oracle/calls"] == 120
    told = json.loads((tmp_path / "optimise.json").read_text())
    assert told == {name: getattr(found, name) for name in ("calls", "auc_top10", "rounds", "restarts", "sources")}
    assert "Best so far" in (tmp_path / "report.html").read_text()
    assert load_metadata(tmp_path / "policy")["kind"] == "molecules"
    torch.testing.assert_close(found.auc_top10, _area(scores, 120))


def _area(scores: Sequence[float], budget: int) -> float:
    """Mean over the calls of the mean of the ten best, by trapezoids at every call."""
    means = [0.0] + [sum(top := sorted(scores[:t], reverse=True)[:10]) / len(top) for t in range(1, len(scores) + 1)]
    return sum((a + b) / 2 for a, b in pairwise(means)) / budget


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


@pytest.mark.parametrize("after", [5, 15, 75, 230])  # in the first round, before the first checkpoint, later, with a fitted screen
def test_a_run_whose_reward_fails_goes_on_to_the_same_bits(after: int, tmp_path: Path) -> None:
    run(tmp_path / "whole", Failing(10**9), budget=260)
    reward = Failing(after)
    with pytest.raises(RewardError, match="the oracle is away"):
        run(tmp_path / "run", reward, budget=260)
    run(tmp_path / "run", reward, budget=260, resume=True)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"settings": SMALL | {"memory_size": 10, "objective.temperature": 0.5}},
            f"^settings: memory_size 10, objective.temperature 0.5, expected memory_size 40, {KEPT} as in the run to resume$",
        ),
        ({"reward": carbons}, r"reward: \['carbons'\], expected \['oxygens'\] as in the run to resume"),
        ({"seed": 4}, "seed: 4, expected 3 as in the run to resume"),
    ],
)
def test_a_run_goes_on_with_what_it_was_made_of_alone(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    run(tmp_path, budget=30)
    with pytest.raises(ValueError, match=said):
        run(tmp_path, budget=60, resume=True, **change)
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
    go = module._Run.go

    def noted(self: Any, stop: Interrupt) -> None:
        flags.append(stop)
        go(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(module._Run, "go", noted)
        patch.setattr(Rounds, "round", stopping)
        with pytest.raises(Interrupted, match=r"stopped after round 3 with \d+ of 120 calls"):
            run(tmp_path / "run")
    assert [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir())] == ["step-00000002", "step-00000003"]
    run(tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_run_needs_nothing_but_its_folder_to_go_on(tmp_path: Path) -> None:
    save(tmp_path / "mine", load_policy("smiles-zinc"), metadata={"kind": "molecules"})
    few = {"draws": 6, "passes": 1, "take": 5, "unscreened": 1, "take_children": 1}
    given: dict[str, Any] = {"output_dir": tmp_path / "run", "save_rounds": 1, "settings": few}
    optimise(tmp_path / "mine", Failing(10**9), max_oracle_calls=20, **given | {"output_dir": tmp_path / "whole"})
    reward = Failing(12)
    with pytest.raises(RewardError):
        optimise(tmp_path / "mine", reward, max_oracle_calls=20, **given)
    shutil.rmtree(tmp_path / "mine")
    optimise(tmp_path / "mine", reward, max_oracle_calls=20, resume=True, **given)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_several_rewards_are_added(tmp_path: Path) -> None:
    found = run(tmp_path, [oxygens, carbons], budget=30)
    assert all(entry.score == pytest.approx(sum(f([entry.sample])[0] for f in (oxygens, carbons))) for entry in found.best)


def test_a_file_is_scored_first(tmp_path: Path) -> None:
    (tmp_path / "known.smi").write_text("OCOCO\nOO\nOCO\n")
    found = run(tmp_path / "run", budget=30, warm_start=str(tmp_path / "known.smi"), warm_start_calls=2)
    assert found.sources["file"] == 2
    assert found.calls == 30


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_oracle_calls": 0}, "max_oracle_calls: 0, expected at least 1"),
        ({"keep": 0}, "keep: 0, expected at least 1"),
        ({"settings": {"drawz": 3}}, "settings: 'drawz' is unknown; did you mean 'draws'"),
        ({"settings": {"take": 0}}, "take: 0"),
        ({"settings": {"kappa": -1.0}}, "kappa: -1"),
        ({"settings": {"temperature": 0.0}}, "temperature: 0"),
        ({"settings": {"draws": "many"}}, "settings: draws 'many', expected int"),
        ({"settings": {"draws": 2.5}}, "settings: draws 2.5, expected int"),
        ({"settings": {"screen": 1}}, "settings: screen 1, expected bool"),
        ({"settings": {"objective": {"temprature": 0.1}}}, "settings: objective: 'temprature' is unknown; did you mean"),
        ({"settings": {"objective": None}}, "settings: objective: None, expected a mapping of temperature"),
        ({"settings": {"memory_size": 0}}, "^settings: memory_size: 0, expected at least 1"),
        ({"settings": {"objective": {"temperature": -1.0}}}, "^settings: objective: temperature: -1"),
        ({"warm_start_calls": 4}, "warm_start_calls: 4, expected none without a file"),
        ({"max_oracle_calls": 2.5}, "^max_oracle_calls: 2.5, expected a whole number, at least 1$"),
        ({"max_oracle_calls": "10"}, "^max_oracle_calls: '10', expected a whole number, at least 1$"),
        ({"keep": None}, "^keep: None, expected a whole number, at least 1$"),
        ({"seed": -1}, "^seed: -1, expected at least 0$"),
        ({"seed": "a"}, "^seed: 'a', expected a whole number, at least 0$"),
    ],
)
def test_settings_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OptimiseRecipe(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seeds": 3}, r"^seeds: unknown option; did you mean 'seed'\?$"),
        ({"reward": None}, "^reward: None, expected a function of a list of samples, or a list of such functions$"),
        ({"reward": "qed"}, "^reward: 'qed', expected a function"),
        ({"reward": [qed, 3]}, "^reward: .*, expected a function"),
        ({"reward": []}, "^reward: an empty list, expected at least one reward$"),
        ({"reward": asks_more}, "^reward: asks_more.*missing a required argument: 'target'.*, expected a function"),
    ],
)
def test_arguments_of_the_function_are_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        run(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("function", [optimise, train])
def test_no_policy_is_refused(function: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^policy: None, expected a name or a policy$"):
        function(None, qed, output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def broken(samples: Sequence[str], **columns: Any) -> list[float]:
    raise OSError("no oracle")


def test_the_folder_of_a_run_that_failed_at_once_can_be_used_again(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="no oracle"):
        run(tmp_path / "new", broken)
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(RewardError, match="no oracle"):
        run(tmp_path / "empty", broken)
    assert not list((tmp_path / "empty").iterdir())
    run(tmp_path / "empty", budget=12)
    before = files(tmp_path / "empty")
    with pytest.raises(ValueError, match="holds results of another run"):
        run(tmp_path / "empty", broken)
    assert files(tmp_path / "empty") == before


def test_other_files_stay_and_a_file_is_no_folder(tmp_path: Path) -> None:
    for name in ("notes.txt", "config.yaml", "run.json"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(RewardError, match="no oracle"):
        run(tmp_path, broken)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "notes.txt", "run.json"]
    assert (tmp_path / "config.yaml").read_text() == "mine"
    with pytest.raises(ValueError, match=r"^output_dir: .*notes.txt is a file, expected the name of a folder to make$"):
        run(tmp_path / "notes.txt", broken)
    with pytest.raises(ValueError, match=r"^output_dir: .*notes.txt is a file, expected the name of a folder to make$"):
        run(tmp_path / "notes.txt" / "run", broken)


def test_the_error_of_the_run_is_shown_where_the_folder_cannot_be_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: Any, **__: Any) -> None:
        raise PermissionError("in use")

    monkeypatch.setattr("discrete_grpo.recipes.new_run.withdraw", locked)
    with pytest.raises(RewardError, match="no oracle"):
        run(tmp_path / "run", broken)


def test_the_folder_of_a_training_run_that_failed_at_once_can_be_used_again(tmp_path: Path) -> None:
    config = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4)
    for evaluated in (0, 4):  # the reward is met in the evaluation, or in the first update, where a checkpoint is there already
        with pytest.raises(RewardError, match="no oracle"):
            train(chains(), broken, output_dir=tmp_path / f"run{evaluated}", grpo=config, evaluation_samples=evaluated)
    assert not (tmp_path / "run4").exists()
    assert (tmp_path / "run0" / "checkpoints").is_dir()
    train(chains(), oxygens, output_dir=tmp_path / "run4", grpo=config, evaluation_samples=4)


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_reward_that_says_nothing_ends_the_run(value: Any, tmp_path: Path) -> None:
    def silent(samples: Sequence[str], **columns: Any) -> list[Any]:
        return [value] * len(samples)

    with pytest.raises(RewardError, match=r"^reward silent: unknown \(None or NaN\) for all of 1\d\d molecules, expected numbers$"):
        run(tmp_path, silent, budget=1000)
    assert (tmp_path / "checkpoints").is_dir()
    with pytest.raises(RewardError, match="for all of 20 molecules"):
        run(tmp_path / "small", silent, budget=20)
    with pytest.raises(NoScores, match=r"^reward silent: .* for all of 20 molecules, expected numbers$"):
        run(tmp_path / "small", silent, budget=20, resume=True)
    assert not (tmp_path / "small" / "optimise.json").exists()


def test_no_command_goes_on_with_a_run_that_spent_its_budget_without_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("discrete_grpo.recipes.optimise.load", lambda *_, **__: policy_object(chains()))
    settings = f"--settings={json.dumps(SMALL)}"
    (tmp_path / "says_nothing.py").write_text("def silent(samples, **columns):\n    return [None for s in samples]\n")
    words = ["optimise", "--reward=says_nothing.silent", "--max_oracle_calls=20", "--output_dir=run", settings]
    for line in (words, ["resume", "run"]):
        assert main(line) == 2
        said = capsys.readouterr().err
        assert "reward silent: unknown (None or NaN) for all of 20 molecules, expected numbers" in said
        assert "continue with" not in said


def test_a_larger_budget_goes_on_and_one_that_is_spent_is_refused(tmp_path: Path) -> None:
    run(tmp_path, budget=60)
    before = files(tmp_path)
    with pytest.raises(ValueError, match=r"^max_oracle_calls: 40, expected at least 60, the calls that are paid for$"):
        run(tmp_path, budget=40, resume=True)
    assert files(tmp_path) == before
    assert run(tmp_path, budget=90, resume=True).calls == 90


def test_lines_of_a_warm_start_that_are_no_molecules_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known, none = tmp_path / "known.smi", tmp_path / "none.smi"
    known.write_text("OCOCO\nO(\nOO\nnope\n")
    none.write_text("O(\nnope\n")
    run(tmp_path / "run", budget=30, warm_start=str(known))
    assert "warm_start: 2 lines are no molecules, such as 'O(' (line 2)" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"^warm_start: '.*none.smi' holds no molecule, expected at least one SMILES string$"):
        run(tmp_path / "other", budget=30, warm_start=str(none))
    assert not (tmp_path / "other").exists()


def test_the_report_shows_the_molecules_of_a_warm_start_and_speaks_of_rounds(tmp_path: Path) -> None:
    (tmp_path / "known.smi").write_text("OOOOOOOOOOOO\n")
    found = run(tmp_path / "run", budget=30, warm_start=str(tmp_path / "known.smi"))
    assert found.best[0].source == "file"
    page = (tmp_path / "run" / "report.html").read_text()
    samples = page[page.index('id="samples"') :]
    assert re.search(r"<b>1\.5\d*</b>file", samples)
    assert "</b>round 1" in samples
    assert "update" not in re.sub(r"<[^>]*>", "", page[: page.index('id="samples"')]).lower()


def test_a_run_whose_warm_start_used_the_budget_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "known.smi").write_text("OOOO\nOCO\nOO\n")
    run(tmp_path / "run", budget=3, warm_start=str(tmp_path / "known.smi"))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    (tmp_path / "run" / "report.html").unlink()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_setting_of_the_objective_changes_alone() -> None:
    wanted = SETTINGS["objective"] | {"temperature": 0.01}
    for settings in ({"objective": {"temperature": 0.01}}, {"objective.temperature": 0.01}):
        assert OptimiseRecipe(settings=settings).method()["objective"] == wanted


def test_a_policy_of_graphs_and_a_folder_in_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"warm_start: 'none.smi' does not exist, expected a SMILES file"):
        run(tmp_path / "d", warm_start="none.smi")
    with pytest.raises(ValueError, match="policy: qm9-small is a GraphPolicy that makes molecules, expected a TokenPolicy"):
        optimise("qm9-small", qed, output_dir=tmp_path / "a")
    with pytest.raises(ValueError, match=r"policy: tree-64-sequences is a .* expected a TokenPolicy that writes SMILES"):
        optimise("tree-64-sequences", qed, output_dir=tmp_path / "b")
    run(tmp_path / "c", budget=12)
    with pytest.raises(ValueError, match="holds results of another run"):
        run(tmp_path / "c", budget=12)


def test_the_command_runs_and_a_finished_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["optimise", "--reward=qed", "--max_oracle_calls=24", "--output_dir=run", "--settings={draws: 12, passes: 1, take: 10}"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "run: the best of 24 calls, AUC top-10 0." in told
    before = files(Path("run"))
    assert main(["resume", "run"]) == 0
    assert files(Path("run")) == before
    assert main(words) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert main([*words[:-2], "--output_dir=other", "--settings.drawz=3"]) == 2
    assert "did you mean 'draws'" in capsys.readouterr().err


def test_the_command_leaves_a_config_of_the_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("reward: qed\n")
    assert main(["optimise", "--config=config.yaml", "--output_dir=."]) == 2
    assert "output_dir: . holds a config.yaml, which would be overwritten" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert Path("config.yaml").read_text() == "reward: qed\n"


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
        (tmp_path / name / "rewards.json").unlink()  # as in a run of an earlier version
        assert "its code" not in go(_named(4), resume=True)


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


def test_scores_that_are_known_stay_where_a_run_is_withdrawn(tmp_path: Path) -> None:
    config = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4)
    for _ in range(2):
        with pytest.raises(RewardError, match="no oracle"):
            train(chains(), [oxygens, broken], output_dir=tmp_path / "run", grpo=config, evaluation_samples=4)
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["scores.sqlite"]


def test_a_new_run_that_was_asked_to_go_on_notes_its_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8, save_steps=1)
    for reward in (_named(8), _named(9)):
        train(chains(), reward, output_dir=tmp_path, grpo=config, evaluation_samples=0, resume=True)
        config = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, save_steps=1)
    assert "reward named: its code or its values have changed" in capsys.readouterr().err
