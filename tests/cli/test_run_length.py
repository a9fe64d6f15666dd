"""Runs that have ended go on for longer, with the few settings that may change."""

from __future__ import annotations

import dataclasses
import sys
import typing
from pathlib import Path

import pytest
import yaml

from discrete_grpo import GRPOConfig, PretrainConfig
from discrete_grpo.cli import main
from discrete_grpo.cli.changes import check_changes, may_change, written
from discrete_grpo.cli.commands import RUNS, UsageError, recipe_of
from discrete_grpo.core.interrupt import Interrupted
from discrete_grpo.recipes.run_length import check_run_length
from tests.command_line import PRETRAIN, Refuse, outcome, train

pytestmark = pytest.mark.usefixtures("here")


def settings(folder: str) -> dict[str, typing.Any]:
    return {**yaml.safe_load(Path(folder, "config.yaml").read_text()), "output_dir": None}


def test_a_finished_training_goes_on_to_the_bits_of_a_longer_one(capsys: pytest.CaptureFixture[str], refuse: Refuse) -> None:
    options = ["--evaluation_samples=0", "--grpo.ema_decay=0.9", "--grpo.beta=0.01", "--grpo.steps_per_generation=2"]
    assert main(train(*options, "--grpo.max_steps=5", out="long")) == 0
    assert main(train(*options)) == 0  # 3 updates, which end in the middle of a generation
    assert outcome("run") != outcome("long")
    before = Path("run/config.yaml").read_bytes()
    for change, said in (
        ("--grpo.beta=0.5", "grpo.beta: 0.5, expected 0.01 as in the run to resume; what may change is grpo.max_steps,"),
        ("--reward=logp", "reward: discrete_grpo.rewards.molecules.logp, expected discrete_grpo.rewards.molecules.qed as in"),
        ("--output_dir=long", "output_dir: long, expected run as in the run to resume"),
        ("--grpo.max_step=5", "unknown field 'grpo.max_step'; did you mean 'grpo.max_steps'?"),
        ("--grpo.max_steps=2", "grpo.max_steps: 2, expected at least 3, the updates that were made"),
        ("--grpo.max_steps=five", "grpo.max_steps: 'five', expected int"),
        ("--max_oracle_calls=40", "max_oracle_calls: 40, expected null as in the run to resume"),
    ):
        assert refuse("resume", "run", change).startswith(said)
        assert Path("run/config.yaml").read_bytes() == before
    assert main(["resume", "run", "--grpo.max_steps=5", "--grpo.beta=0.01"]) == 0
    said = capsys.readouterr().err
    assert "grpo.max_steps: was 3 in the run so far, is 5 from here on" in said
    assert "learning rate" not in said  # it is constant
    assert outcome("run") == outcome("long")
    assert settings("run") == settings("long")
    assert main(["resume", "run"]) == 0
    assert outcome("run") == outcome("long")


def test_a_refused_number_of_updates_changes_nothing_although_a_killed_write_left_a_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = ["--pretrain.max_steps=4", "--pretrain.save_steps=1", "--evaluation_samples=0"]
    assert main(["pretrain", "enumerated-tiny", *PRETRAIN, *steps, "--output_dir=p"]) == 0
    before = {name: Path("p", name).read_bytes() for name in ("config.yaml", "settings.json")}
    Path("p/checkpoints/.step-00000005.0123abcd.tmp").mkdir()
    capsys.readouterr()
    assert main(["resume", "p", "--pretrain.max_steps=2"]) == 2
    assert capsys.readouterr().err == (
        "discrete-grpo: error: pretrain.max_steps: 2, expected at least 4, the updates that were made\n"
    )
    assert {name: Path("p", name).read_bytes() for name in before} == before


def test_a_pretraining_that_goes_on_says_what_its_learning_rate_does(capsys: pytest.CaptureFixture[str]) -> None:
    steps = ["--pretrain.max_steps=2", "--pretrain.warmup_steps=0", "--pretrain.learning_rate=0.1", "--evaluation_samples=0"]
    assert main(["pretrain", "enumerated-tiny", *PRETRAIN, *steps, "--output_dir=p"]) == 0
    capsys.readouterr()
    assert main(["resume", "p", "--pretrain.max_steps", "4"]) == 0
    told = "learning rate: its decay ends at update 4 in place of 2; update 2 had 0.0505, update 3 has 0.0505\n"
    assert told in capsys.readouterr().err
    assert settings("p")["pretrain"]["max_steps"] == 4


def test_a_run_that_a_mistyped_metric_ended_is_resumed_with_the_right_one(refuse: Refuse) -> None:
    steps = ["--pretrain.max_steps=4", "--pretrain.save_steps=2", "--evaluation_samples=8"]
    told = refuse("pretrain", "enumerated-tiny", *PRETRAIN, *steps, "--pretrain.metric_for_best_model=eval/vaild", "--output_dir=p")
    assert told.startswith("metric_for_best_model: 'eval/vaild' is not logged; did you mean 'eval/valid'? expected one of")
    assert told.endswith("; resume p with the right name")
    assert main(["resume", "p", "--pretrain.metric_for_best_model=eval/valid"]) == 0
    assert (
        main(["pretrain", "enumerated-tiny", *PRETRAIN, *steps, "--pretrain.metric_for_best_model=eval/valid", "--output_dir=q"])
        == 0
    )
    assert outcome("p") == outcome("q")
    assert Path("p/checkpoints/best.json").is_file()


@pytest.mark.parametrize(
    ("group", "config", "said"),
    [
        ("grpo", GRPOConfig(max_steps=20), ""),
        ("grpo", GRPOConfig(max_steps=20, lr_scheduler_type="linear"), "update 10 had 1e-05, update 11 has 5e-05"),
        ("grpo", GRPOConfig(max_steps=20, lr_scheduler_type="cosine"), "update 10 had 2.45e-06, update 11 has 5e-05"),
        ("pretrain", PretrainConfig(max_steps=20, warmup_steps=0), "update 10 had 3.42e-05, update 11 has 0.000505"),
        ("pretrain", PretrainConfig(max_steps=20, min_lr_rate=1.0), ""),
    ],
)
def test_a_jump_of_the_learning_rate_is_told(
    capsys: pytest.CaptureFixture[str], group: str, config: GRPOConfig | PretrainConfig, said: str
) -> None:
    Path("checkpoints/step-00000010").mkdir(parents=True)
    check_run_length(Path(), group, config, {f"{group}.max_steps": 10})
    told = "learning rate: its decay ends at update 20 in place of 10; "
    assert capsys.readouterr().err == (f"{told}{said}\n" if said else "")
    check_run_length(Path(), group, config, {})  # the number of updates is the same
    assert capsys.readouterr().err == ""


def test_the_rate_of_the_last_update_is_that_of_the_settings_at_that_time(capsys: pytest.CaptureFixture[str]) -> None:
    Path("checkpoints/step-00000010").mkdir(parents=True)
    config = GRPOConfig(max_steps=20, lr_scheduler_type="linear", learning_rate=1e-2)
    check_run_length(Path(), "grpo", config, {"grpo.max_steps": 10, "grpo.learning_rate": 1e-4, "policy": "other"})
    assert "update 10 had 1e-05, update 11 has 0.005" in capsys.readouterr().err


def test_a_budget_may_grow_and_not_shrink() -> None:
    for after in ("max_oracle_calls: 60", "max_oracle_calls: null"):
        check_changes("train", "max_oracle_calls: 50", after)
    with pytest.raises(UsageError, match=r"^max_oracle_calls: 40, expected at least 50 as in the run to resume$"):
        check_changes("optimise", "max_oracle_calls: 50", "max_oracle_calls: 40")
    with pytest.raises(UsageError, match=r"^settings\.draws: 8, expected 16 as in the run to resume; what may change"):
        check_changes("optimise", "settings: {draws: 16}", "settings: {draws: 8}")
    for command in ("train", "search", "optimise"):  # as many as there are cores, whatever the machine
        check_changes(command, "reward_workers: 8", "reward_workers: 2")
    check_changes("train", "report_to: [wandb]", "report_to: []")  # as where it is not installed


@pytest.mark.parametrize("command", RUNS)
def test_what_may_change_are_options_of_the_command(command: str) -> None:
    recipe, _ = recipe_of(command)
    hints = typing.get_type_hints(recipe)
    names = {f.name for f in dataclasses.fields(recipe)}
    names |= {f"{n}.{f.name}" for n in names if dataclasses.is_dataclass(hints[n]) for f in dataclasses.fields(hints[n])}
    assert set(may_change(command)) <= names


@pytest.mark.parametrize(("error", "kept"), [(ValueError, False), (Interrupted, True), (KeyboardInterrupt, True)])
def test_settings_that_a_run_refuses_are_taken_back(error: type[BaseException], kept: bool) -> None:
    def refuse(checkpoint: str | None) -> None:
        with written(Path(), "new"):
            if checkpoint is not None:
                Path("checkpoints", checkpoint).mkdir(parents=True)
            raise error

    for checkpoint, text in ((None, "new" if kept else "own"), ("step-00000001", "new")):
        Path("config.yaml").write_text("own")
        with pytest.raises(error):
            refuse(checkpoint)
        assert Path("config.yaml").read_text() == text


REWARD = """
made = []

class Rings:
    def __init__(self, share=1.0):
        made.append(share)
        self.share = share

    def __call__(self, samples, **columns):
        return [self.share * (sample or "").count("1") for sample in samples]
"""


def test_a_reward_is_made_once_and_may_have_arguments_without_types(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("my_rings.py").write_text(REWARD)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    options = ["--evaluation_samples=0", "--grpo.max_steps=1", "--reward=my_rings.Rings", "--reward.share=0.5"]
    assert main([word for word in train(*options) if word != "--reward=qed"]) == 0
    import my_rings  # type: ignore[import-not-found]

    assert my_rings.made == [0.5]
    assert main(["resume", "run", "--grpo.max_steps=2"]) == 0
    assert my_rings.made == [0.5, 0.5]
    monkeypatch.delitem(sys.modules, "my_rings")


def test_rounds_of_a_search_may_grow_and_not_shrink() -> None:
    check_changes("search", "rounds: 5", "rounds: 6")
    with pytest.raises(UsageError, match=r"^rounds: 4, expected at least 5 as in the run to resume$"):
        check_changes("search", "rounds: 5", "rounds: 4")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (0, ""),  # there was no rate before
        (20, "learning rate: its decay ends at update 20 in place of 30\n"),  # there is none after
    ],
)
def test_only_rates_that_there_are_are_told(made: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(f"checkpoints/step-{made:08d}").mkdir(parents=True)
    check_run_length(Path(), "grpo", GRPOConfig(max_steps=20, lr_scheduler_type="linear"), {"grpo.max_steps": 30})
    assert capsys.readouterr().err == said
