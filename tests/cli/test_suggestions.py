"""What a wrong field, reward or type is answered with: the right one, in one line."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import discrete_grpo as dg
from discrete_grpo.cli import main
from discrete_grpo.cli.parser import parse
from discrete_grpo.cli.reward_spec import complete_reward, make_reward, with_argument
from discrete_grpo.core.option_names import OTHER_NAMES, STAND_INS, check_options, right_field
from discrete_grpo.recipes.families import family_of
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.recipes.optimise import OptimiseRecipe
from discrete_grpo.rewards.molecules import Target, qed
from discrete_grpo.runs import checkpoint
from discrete_grpo.runs.checkpoint import CheckpointError, load_metadata
from discrete_grpo.runs.checkpoint_names import BUNDLED
from discrete_grpo.training.config import BY_FUNCTION, OF_TRAIN, GRPOConfig, PretrainConfig


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command in an empty folder; the one line that it is refused with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        return lines[0].removeprefix("discrete-grpo: error: ")

    return run


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("grpo.lr", "grpo.learning_rate"),
        ("lr", "grpo.learning_rate"),
        ("grpo.group_size", "grpo.num_generations"),
        ("grpo.num_samples", "grpo.num_generations"),
        ("group-size", "grpo.num_generations"),
        ("grpo.kl_coef", "grpo.beta"),
        ("init_kl_coef", "grpo.beta"),
        ("grpo.clip_range", "grpo.epsilon"),
        ("clip_ratio_high", "grpo.epsilon_high"),
        ("grpo.normalize_advantages", "grpo.scale_rewards"),
        ("grpo.wandb_log", "report_to"),
        ("use_wandb", "report_to"),
        ("train.batch_size", "grpo.generation_batch_size"),
        ("train.micro_batch_size", "grpo.per_device_batch_size"),
        ("n_epochs", "grpo.max_steps"),
        ("num_inner_epochs", "grpo.num_iterations"),
        ("grad_clip", "grpo.max_grad_norm"),
        ("train.learning_rate", "grpo.learning_rate"),
        ("model_name_or_path", "policy"),
        ("reward_funcs", "reward"),
    ],
)
def test_names_of_other_programs_are_answered_with_the_right_field(told: Callable[..., str], given: str, right: str) -> None:
    assert told("train", "demo", f"--{given}=1") == f"unknown field {given!r}; did you mean {right!r}?"
    if "." in given:
        group, _, name = given.partition(".")
        Path("a.yaml").write_text(f"{group}:\n  {name}: 1\n")
        assert f"did you mean {right!r}?" in told("train", "a.yaml")


@pytest.mark.parametrize(
    ("command", "given", "right"),
    [
        ("pretrain", "pretrain.lr", "pretrain.learning_rate"),
        ("pretrain", "train_batch_size", "pretrain.batch_size"),
        ("pretrain", "network.n_layers", "network.layers"),
        ("pretrain-smiles", "n_embd", "width"),
        ("pretrain-smiles", "dataset", "data"),
    ],
)
def test_other_commands_answer_with_their_own_fields(told: Callable[..., str], command: str, given: str, right: str) -> None:
    assert told(command, f"--{given}=1") == f"unknown field {given!r}; did you mean {right!r}?"


def test_what_has_no_field_is_said(told: Callable[..., str]) -> None:
    assert told("train", "demo", "--grpo.gae_lambda=1") == (
        "unknown field 'grpo.gae_lambda'; GRPO has no value function and no discount, so there is no such setting"
    )
    accumulation = told("train", "demo", "--grpo.gradient_accumulation_steps=4")
    assert "an update learns from generation_batch_size / steps_per_generation samples" in accumulation
    assert "did you mean" not in accumulation


def test_no_name_in_the_table_is_one_of_ours_or_stands_for_two_fields() -> None:
    ours = {f.name for f in fields(GRPOConfig)}
    for others in OTHER_NAMES.values():
        assert not ours & set(others.split())
        for other in others.split():
            homes = {f for f, names in OTHER_NAMES.items() if other in names.split()}
            assert len(homes - {STAND_INS.get(home) for home in homes}) == 1
    assert right_field("nonsense", ["a", "b"]) == "known: a, b"


def test_a_name_without_a_field_in_training_may_have_one_elsewhere() -> None:
    for made, right in (
        (lambda: PretrainConfig(logging_steps=10), "log_steps"),  # type: ignore[call-arg]
        (lambda: check_options(["cuda"], OptimiseRecipe), "device"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"unknown option; did you mean '{right}'"):
            made()
    with pytest.raises(TypeError, match="every update and sample is logged, so there is no such setting"):
        GRPOConfig(logging_steps=3)  # type: ignore[call-arg]


# -- settings in Python


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: GRPOConfig(kl_coef=0.1), "GRPOConfig: kl_coef: unknown option; did you mean 'beta'?"),  # type: ignore[call-arg]
        (lambda: GRPOConfig(max_step=3), "GRPOConfig: max_step: unknown option; did you mean 'max_steps'?"),  # type: ignore[call-arg]
        (lambda: GRPOConfig(output_dir="x"), "GRPOConfig: output_dir: unknown option, it is an argument of train"),  # type: ignore[call-arg]
        (lambda: GRPOConfig(temp=1), "GRPOConfig: temp: unknown option, it is temperature, an argument of train"),  # type: ignore[call-arg]
        (lambda: GRPOConfig(eval_steps=1), "GRPOConfig: eval_steps: unknown option, it is done by on_update of train"),  # type: ignore[call-arg]
        (
            lambda: dg.TrainRecipe(max_step=3),  # type: ignore[call-arg]
            "TrainRecipe: max_step: a field of GRPOConfig, expected it as grpo=GRPOConfig(max_steps=...)",
        ),
        (
            lambda: dg.PretrainRecipe(lr=1e-3),  # type: ignore[call-arg]
            "PretrainRecipe: lr: a field of PretrainConfig, expected it as pretrain=PretrainConfig(learning_rate=...)",
        ),
        (lambda: dg.NetworkSizes(n_layer=3), "NetworkSizes: n_layer: unknown option; did you mean 'layers'?"),  # type: ignore[call-arg]
    ],
)
def test_settings_made_in_python_are_answered_alike(made: Callable[[], object], told: str) -> None:
    with pytest.raises(TypeError) as error:
        made()
    assert str(error.value) == told


def test_options_of_train_are_answered_alike(tmp_path: Path) -> None:
    for name, told in {
        "kl_coef": "kl_coef: a field of GRPOConfig, expected it as grpo=GRPOConfig(beta=...)",
        "lora_r": "lora_r: a field of LoraOptions, expected it as lora=LoraOptions(r=...)",
        "budget": "budget: unknown option; did you mean 'max_oracle_calls'?",
        "on_updates": "on_updates: unknown option; did you mean 'on_update'?",
    }.items():
        with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
            dg.train("qm9-small", len, output_dir=tmp_path / "run", **{name: 1})  # type: ignore[arg-type]


def test_every_public_class_of_settings_answers_and_what_is_elsewhere_is_there() -> None:
    settings: list[Any] = [kind for name in dg.__all__ if isinstance(kind := getattr(dg, name), type) and is_dataclass(kind)]
    asked = [kind for kind in settings if kind.__name__.endswith(("Recipe", "Config", "Options", "Sizes"))]
    assert len(asked) >= 12
    for kind in asked:
        with pytest.raises(TypeError, match=f"^{kind.__name__}: nonsense: unknown option"):
            kind(nonsense=1)
        assert set(inspect.signature(kind).parameters) == {field.name for field in fields(kind) if field.init}
    assert not set(BY_FUNCTION) & {field.name for field in fields(GRPOConfig)}
    arguments = {*inspect.signature(dg.train).parameters, *(field.name for field in fields(dg.TrainRecipe))}
    assert set(OF_TRAIN) <= arguments
    assert not set(OF_TRAIN) & {field.name for field in fields(GRPOConfig)}


# -- rewards


def test_a_reward_is_found_in_any_case(told: Callable[..., str]) -> None:
    for reward in ("QED", "[Qed,LOGP]"):
        assert told("train", "demo", f"--reward={reward}", "--policy=nosuch").startswith("policy: 'nosuch' is no checkpoint")
    assert told("train", "demo", "--reward=QEDD").startswith("reward: 'QEDD' is unknown; did you mean 'qed'? known: ")


def test_a_mistyped_module_is_answered_with_the_folder_and_a_near_name(told: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "my_scores.py").write_text("def length(samples, **columns): return [1.0] * len(samples)\n")
    where = f"No module named 'my_score'; it is neither installed nor in {tmp_path}; did you mean 'my_scores'?"
    for reward in ("my_score.length", "[qed,my_score.length]", "{class_path: my_score.Length}"):
        assert told("train", "demo", f"--reward={reward}").endswith(where)
    said = told("train", "demo", "--reward=my_scores.lenght")
    assert said.endswith(f"has no attribute 'lenght' ({tmp_path / 'my_scores.py'}); did you mean 'length'?")
    assert told("train", "demo", "--reward=other.f").endswith(f"it is neither installed nor in {tmp_path}")
    sys.modules.pop("my_scores")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--reward=Substructure", "--reward.smart=CO"], "'smart' is none of its arguments; did you mean 'smarts'?"),
        (
            ["--reward={class_path: qed, init_args: {a: 1}}"],
            "reward: discrete_grpo.rewards.molecules.qed is a function, which takes no arguments here (a)",
        ),
        (["--reward={class_path: Target, init_args: {property: nowhere.f, value: 1, scale: 1}}"], "No module named 'nowhere'"),
        (["--reward={class_path: Target, init_args: {property: qed, value: 1, scale: -1}}"], "reward: scale: -1.0, expected"),
        (
            ["--reward={class_path: Target, init_args: {property: qed, value: high, scale: 1}}"],
            "Target is no reward: value: 'high', expected float",
        ),
        (["--reward=Similarity", "--reward.target=3"], "Similarity is no reward: target: 3, expected str"),
        (
            ["--reward=Substructure", "--reward.smarts=[OH]"],
            "smarts: ['OH'], expected str; text that YAML reads otherwise needs quotes",
        ),
        (["--reward={class_path: Target, init_args: {property: qed, value: 1, scale: [1, 2]}}"], "scale: [1, 2], expected float"),
        (["--reward={class_path: WeightedSum, init_args: {rewards: [qed, 3], weights: [1, 1]}}"], "but got 3"),
        (["--reward={path: qed}"], "expected a mapping with class_path and init_args"),
        (
            ["--reward=Gated", "--reward.reward.weights=[1]"],
            "'reward.weights' is none of its arguments; arguments of a reward inside another are set in a YAML file",
        ),
        (["--reward="], "reward: nothing is no reward: expected an import path"),
        (["--reward=3"], "reward: 3 is no reward: expected an import path"),
        (["--reward=my_rewards:length"], "such as my_file.my_reward; did you mean 'my_rewards.length'?"),
        (["--reward=my_rewards.py:length"], "such as my_file.my_reward; did you mean 'my_rewards.length'?"),
        (["--reward=pk/rew.py:half"], "such as my_file.my_reward; did you mean 'pk.rew.half'?"),
        (["--reward=./pk/rew.py"], "such as my_file.my_reward; did you mean 'pk.rew.my_reward'?"),
        (["--reward=fill-in-judge"], "of a judge it is --reward=Judge --reward.checkpoint=fill-in-judge"),
        (["--reward=[qed"], "reward: '[qed' is no YAML"),
        (["--reward", "--policy=x"], "reward: no value, expected --reward=VALUE"),
        (["--grpo={max_step: 3}"], "unknown field 'grpo.max_step'; did you mean 'grpo.max_steps'?"),
        (["--grpo={max_steps: many}"], "grpo.max_steps: 'many', expected int"),
        (["--report_to=email"], "report_to: 'email', expected a list of one of 'tensorboard', 'wandb'"),
        (["-x"], "unrecognized arguments: -x"),
    ],
)
def test_rewards_and_values_that_cannot_be_read(told: Callable[..., str], options: list[str], said: str) -> None:
    assert said in told("train", "demo", *options)


def test_a_reward_among_the_arguments_of_another_may_be_a_name() -> None:
    spec = complete_reward({"class_path": "Target", "init_args": {"property": "QED", "value": "1", "scale": 0.5}})
    molecules = "discrete_grpo.rewards.molecules"
    assert spec == {"class_path": f"{molecules}.Target", "init_args": {"property": f"{molecules}.qed", "value": 1.0, "scale": 0.5}}
    assert complete_reward(spec) == spec
    assert make_reward([spec, f"{molecules}.qed"]) == [Target(qed, 1.0, 0.5), qed]


# -- groups, folders and types


@pytest.mark.parametrize("value", ["0.5", "[1, 2]", "hello", ""])
def test_a_value_where_a_group_is_expected(told: Callable[..., str], value: str) -> None:
    Path("a.yaml").write_text(f"policy: nosuch\ngrpo: {value}\n")
    said = f"grpo: {value!r}, expected a group of fields, such as --grpo.FIELD=VALUE or a mapping in YAML"
    assert told("train", "a.yaml") == said
    assert told("train", "a.yaml", "--grpo.max_steps=1") == said


def test_a_number_where_a_group_is_expected_on_the_command_line(told: Callable[..., str]) -> None:
    assert told("train", "demo", "--grpo=0.5").startswith("grpo: '0.5', expected a group of fields")
    assert told("pretrain", "--network=3").startswith("network: '3', expected a group of fields")


@pytest.mark.parametrize("command", ["train demo", "pretrain enumerated-tiny", "search --reward=qed", "pretrain-graphs tree-16"])
@pytest.mark.parametrize("folder", ["", " "])
def test_an_empty_output_dir_is_refused(told: Callable[..., str], command: str, folder: str, tmp_path: Path) -> None:
    assert told(*command.split(), f"--output_dir={folder}") == f"output_dir: {folder!r}, expected the name of a folder to make"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train demo", "pretrain-smiles", "optimise --reward=qed", "benchmark pmo"])
def test_a_home_that_the_shell_did_not_replace_is_refused(told: Callable[..., str], command: str, tmp_path: Path) -> None:
    assert "output_dir: '~/x', expected a path without ~, such as '" in told(*command.split(), "--output_dir=~/x")
    assert not any(tmp_path.iterdir())


def test_an_empty_folder_of_an_import_is_refused(told: Callable[..., str]) -> None:
    assert told("import", "x", "--from=defog", "--out=") == "out: '', expected the name of a folder to make"


def changed(folder: Path, *keys: str, value: Any) -> Path:
    """A copy of a bundled policy with one value of its config.json replaced."""
    shutil.copytree(BUNDLED / "qm9-small", folder)
    config = json.loads((folder / "config.json").read_text())
    place = config
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("num_steps", "x", "has num_steps: 'x', expected int"),
        ("num_steps", True, "has num_steps: True, expected int"),
        ("node_counts", 5, r"has node_counts: 5, expected Sequence\[float\]"),
        ("node_counts", ["a"], r"has node_counts: \('a',\), expected Sequence\[float\]"),
        ("node_kernel", 3, "has node_kernel: 3, expected Kernel"),
        ("network", "x", "has network: 'x', expected Module"),
        ("precondition", "yes", "has precondition: 'yes', expected bool"),
    ],
)
def test_a_wrong_type_in_a_checkpoint_is_refused_in_words(name: str, value: Any, said: str, tmp_path: Path) -> None:
    folder = changed(tmp_path / "c", "policy", "init_args", name, value=value)
    with pytest.raises(CheckpointError, match=rf"class_path: 'discrete_grpo\.policies\.graph\.GraphPolicy' {said}$"):
        checkpoint.read_policy(folder)


@pytest.mark.parametrize(
    ("keys", "value"), [(("kind",), []), (("kind",), 5), (("statistics", "node_counts"), 5), (("statistics",), 7)]
)
def test_a_wrong_type_in_the_metadata_is_refused_in_words(keys: tuple[str, ...], value: Any, tmp_path: Path) -> None:
    folder = changed(tmp_path / "c", "metadata", *keys, value=value)
    with pytest.raises(CheckpointError):
        family_of(load_metadata(load_policy(folder) and folder))


@pytest.mark.parametrize("name", sorted(p.parent.name for p in BUNDLED.glob("*/config.json")))
def test_every_bundled_policy_has_the_types_it_says(name: str) -> None:
    checkpoint.read_policy(BUNDLED / name)


# -- numbers


def test_a_whole_number_may_have_a_power_of_ten(tmp_path: Path, told: Callable[..., str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("num_steps: 2e1\ngrpo: {max_steps: 1.5e3, num_generations: 16}\n")
    recipe, text = parse("train", ["demo", f"--config={file}", "--grpo.save_steps=1E2", "--grpo.learning_rate=1e3"])
    assert (recipe.num_steps, recipe.grpo.max_steps, recipe.grpo.save_steps) == (20, 1500, 100)
    assert recipe.grpo.learning_rate == 1000.0
    assert "max_steps: 1500" in text
    file.write_text("grpo: {max_steps: 1.0e+2, learning_rate: 1.0e+3}\n")
    recipe, _ = parse("train", ["demo", f"--config={file}", "--grpo={num_generations: 1.6e1}", "--output_dir=1e5"])
    assert (recipe.grpo.max_steps, recipe.grpo.num_generations, recipe.grpo.learning_rate) == (100, 16, 1000.0)
    assert recipe.output_dir == "1e5"
    assert told("train", "demo", "--grpo.max_steps=1.55e1").startswith("grpo.max_steps: '1.55e1', expected int")
    assert told("train", "demo", "--grpo.max_steps=1e-1").startswith("grpo.max_steps: '1e-1', expected int")
    assert "nosuch" in told("sample", "nosuch", "-n", "3e1", "--out=o.smi")


def test_a_data_file_or_a_run_in_the_place_of_a_preset_is_told_its_option(told: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "mols.smi").write_text("CCO\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/run.json").write_text("{}")
    assert "preset: 'mols.smi' is unknown; it is a file; data are given as --data=mols.smi; known: " in told("pretrain", "mols.smi")
    assert "it is a run folder, whose policy is given as --policy=mine; known: " in told("train", "mine")


def test_arguments_are_added_to_the_last_of_several_rewards() -> None:
    first = with_argument(["qed", "Target"], "value", 1.5)
    assert first == ["qed", {"class_path": "Target", "init_args": {"value": 1.5}}]
    second = with_argument(first, "init_args.scale", 2.0)
    assert second == ["qed", {"class_path": "Target", "init_args": {"value": 1.5, "scale": 2.0}}]
    assert with_argument(second, "class_path", "logp") == ["qed", "logp"]


@pytest.mark.parametrize(
    ("text", "smarts"),
    [
        ("[#6]", "[#6]"),
        ("CO ", "CO"),
        ("CO #x", "CO #x"),  # no comment
        ('"[OH]"', "[OH]"),
    ],
)
def test_an_argument_that_is_text_is_as_it_stands(text: str, smarts: str) -> None:
    _, written = parse("train", ["demo", "--reward=Substructure", f"--reward.smarts={text}"])
    assert yaml.safe_load(written)["reward"]["init_args"]["smarts"] == smarts


def test_all_arguments_of_a_reward_are_written_out() -> None:
    spec = complete_reward("Judge")
    assert spec["class_path"] == "discrete_grpo.rewards.judge.Judge"
    assert spec["init_args"]["checkpoint"] == "fill-in-judge"
    assert complete_reward(spec) == spec


def test_a_reward_may_be_added_to_several_and_several_to_one() -> None:
    molecules = "discrete_grpo.rewards.molecules"
    for words in (["--reward=[qed,logp]", "--reward+=validity"], ["--reward=qed", "--reward+=[logp,validity]"]):
        _, written = parse("train", ["demo", *words])
        assert yaml.safe_load(written)["reward"] == [f"{molecules}.{name}" for name in ("qed", "logp", "validity")]


def test_fields_of_a_mapping_within_a_mapping_are_added_to_it() -> None:
    for words in (
        ["--settings={objective: {temperature: 0.01}}", "--settings.objective.epsilon=0.3"],
        ["--settings.objective={temperature: 0.01}", "--settings.objective.epsilon=0.3"],
        ["--settings.objective.temperature=0.01", "--settings.objective.epsilon=0.3"],
    ):
        recipe, _ = parse("optimise", words)
        assert recipe.settings == {"objective": {"temperature": 0.01, "epsilon": 0.3}}
