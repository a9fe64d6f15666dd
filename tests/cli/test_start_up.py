"""What a command imports before it knows that it needs it, and that reading source files finds what importing would."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import os
import pkgutil
import shutil
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import discrete_grpo
from discrete_grpo import rewards
from discrete_grpo.cli import main
from discrete_grpo.cli.commands import RECIPES, presets, recipe_of
from discrete_grpo.cli.help import MOST_USED, TOPICS, options, options_of, run_help, topics
from discrete_grpo.cli.listing import print_list
from discrete_grpo.cli.signatures import Definition
from discrete_grpo.rewards.reference import public_rewards
from discrete_grpo.training.config import GRPOConfig

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "rdkit", "jsonargparse", "networkx", "rich", "yaml", "numpy")
CODE = """
import contextlib, io, sys
from discrete_grpo.cli import (main)
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print(*sorted(sys.modules))
"""


def modules_after(*arguments: str) -> set[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE, *arguments]
    return set(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split())


LIGHT = [
    "",
    "--version",
    "-h",
    "trian",
    "list",
    "list -h",
    "sample -h",
    "benchmark -h",
    "evaluate --refrence=x",
    *(f"{name} -h" for name in RECIPES),
]


@pytest.mark.parametrize("arguments", LIGHT)
def test_help_list_and_mistyped_commands_import_no_library(arguments: str) -> None:
    loaded = modules_after(*arguments.split())
    assert "discrete_grpo.cli.__main__" in loaded
    assert loaded & set(HEAVY) == set()


def test_train_imports_no_other_recipe() -> None:
    loaded = modules_after("pretrain-graphs", "tree-16", "--print_config")
    assert "discrete_grpo.recipes.pretraining.graphs" in loaded
    assert "scipy.stats" not in loaded  # a second of every start
    assert loaded & {f"discrete_grpo.recipes.{name}" for name in ("train", "judge", "digits", "smiles", "search")} == set()


# -- read from source, and as it is


def real_options(settings: type) -> dict[str, Any]:
    """Option names and defaults of a dataclass of settings, by importing it."""
    hints = typing.get_type_hints(settings)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        default: Any = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[operator]
        if dataclasses.is_dataclass(hints[field.name]):
            found |= {f"{field.name}.{inner.name}": getattr(default, inner.name) for inner in dataclasses.fields(default)}
        else:
            found[field.name] = default
    return found


def shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("command", RECIPES)
def test_the_help_names_every_option_once_with_its_true_default(command: str) -> None:
    true, read = real_options(recipe_of(command)[0]), options(command)
    assert [option.name for option in read] == list(true)
    assert {option.name: option.default for option in read if option.default} == {
        option.name: shown(true[option.name]) for option in read if option.default
    }
    assert [option.name for option in read if not option.default] == []
    text = run_help(command).split()
    assert all(text.count(f"--{name}") == 1 for name in true)
    assert all(preset in " ".join(text) for preset in presets(command))


def test_the_help_of_train_starts_with_the_ten_most_used_and_ends_with_two_examples() -> None:
    found = topics("train")
    assert list(found) == ["most used", "what to train", "reward", "measured scores", "GRPO", "KL", "entropy", "replay", "run"]
    assert tuple(option.name for option in found["most used"]) == MOST_USED
    assert len(MOST_USED) == 10
    known = {option.name for option in options("train")}
    assert known >= {name for names in TOPICS.values() for name in names}
    assert all(found.values())
    assert [line.startswith("  discrete-grpo train ") for line in run_help("train").splitlines()[-3:]] == [False, True, True]


def test_every_option_of_train_has_a_text() -> None:
    found = options("train")
    assert [option.name for option in found if not option.about] == []
    assert [option.name for option in found if option.name.startswith("grpo.") and option.about.startswith(("of ", "see "))] == []


def test_ranges_are_those_that_the_settings_check() -> None:
    ranges = {option.name: option.range for option in options("train")}
    with pytest.raises(ValueError, match=f"num_generations: 1, expected {ranges['grpo.num_generations']}"):
        GRPOConfig(num_generations=1)
    with pytest.raises(ValueError, match=f"refine_time: 1.0, expected {ranges['grpo.refine_time']}"):
        GRPOConfig(refine_time=1.0)
    assert all(ranges[f"grpo.{name}"] for name in ("max_steps", "learning_rate", "epsilon", "beta", "ema_decay"))
    assert ranges["grpo.loss_type"] == ranges["policy"] == ""


def test_a_range_is_read_from_a_call_of_check_range_too() -> None:
    body = "n: int = 3\n    a: float | None = None\n    def __post_init__(self):\n        check_range('n', self.n, least=1, most=9)"
    node = ast.parse(f"class Settings:\n    {body}").body[0]
    assert [(o.name, o.default, o.range) for o in options_of(Definition("discrete_grpo.core.checks", node))] == [
        ("n", "3", "1 to 9"),
        ("a", "null", ""),
    ]


def real_rewards() -> dict[str, Any]:
    """The rewards of the package by name, by importing every module."""
    found = {}
    for info in pkgutil.iter_modules(rewards.__path__):
        module = importlib.import_module(f"{rewards.__name__}.{info.name}")
        for name in getattr(module, "__all__", ()):
            reward = getattr(module, name)
            if not callable(reward) or getattr(reward, "_is_protocol", False):
                continue
            parameters = inspect.signature(reward.__call__ if isinstance(reward, type) else reward).parameters
            if "samples" in list(parameters)[:2] and any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                found[name] = reward
    return found


def test_each_bundled_policy_is_described_from_its_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "policies"]) == 0
    told = capsys.readouterr().out
    names = [p.parent.name for p in Path(discrete_grpo.__file__).parent.glob("bundled/*/config.json")]
    assert len(names) >= 14
    assert all(f"{name}: a " in told for name in names)
    assert "\n  GraphPolicy with GraphTransformer, 5.5 MB; 12,000 updates on 132,040 molecules\n  data: QM9 (Ramakrishnan" in told
    assert "tree-64-grpo: a policy of graphs, trained on tree and by GRPO\n" in told
    assert "4,000 updates on 128 graphs, then 30 of GRPO on novel tree_valid\n" in told
    assert "DecodedPolicy" not in told
    assert "TokenPolicy with GPT" in told  # inside the wrapper that decodes its texts


def test_every_public_reward_is_listed_with_a_line_and_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    true, read = real_rewards(), public_rewards()
    assert set(read) == set(true)
    assert {"qed", "Similarity", "DiversityFilter", "Docking", "NovelTo", "RewardPool"} <= set(read)
    print_list()
    text = capsys.readouterr().out
    for name, known in read.items():
        assert known.path == f"{true[name].__module__}.{name}"
        assert known.about
        assert f"  {known.signature}\n      {known.about}\n" in text
        if isinstance(true[name], type):
            arguments = known.signature.removeprefix(f"{name}(").removesuffix(")")
            given = [p for p in inspect.signature(true[name]).parameters.values() if p.kind is not p.VAR_KEYWORD]
            written = ast.parse(f"def made({arguments}): ...").body[0]
            assert isinstance(written, ast.FunctionDef)
            found = written.args
            assert [a.arg for a in [*found.args, *found.kwonlyargs]] == [p.name for p in given]
            defaults = [ast.unparse(d) for d in [*found.defaults, *found.kw_defaults] if d is not None]
            true_ones = [repr(p.default) for p in given if p.default is not p.empty]
            assert len(defaults) == len(true_ones)
            both = zip(defaults, true_ones, strict=True)
            assert all(a == b or a.isupper() or b == "<factory>" for a, b in both)  # or a name of a constant, or a made one
        else:
            assert known.signature == name


def test_a_reader_that_leaves_ends_the_command_in_silence() -> None:
    code = "import sys; from discrete_grpo.cli import main; sys.exit(main(['list']))"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.close()
        said = started.stderr.read()
    assert (started.returncode, said) == (141, b"")


def test_texts_of_options_go_on_in_further_lines_and_may_be_of_several_names() -> None:
    text = '"""Settings.\n\n    Attributes:\n        a, b: one number\n            each, at least 1.\n        c: another.\n    """'
    node = ast.parse(f"class Settings:\n    {text}\n    a: int = 1\n    b: int = 2\n    c: float = 0.5").body[0]
    assert [(o.name, o.about, o.default) for o in options_of(Definition("discrete_grpo.core.checks", node))] == [
        ("a", "one number each, at least 1", "1"),
        ("b", "one number each, at least 1", "2"),
        ("c", "another", "0.5"),
    ]


@pytest.mark.parametrize(("columns", "width"), [(20, 70), (90, 90), (300, 112)])
def test_texts_of_the_help_fit_the_terminal(columns: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda fallback: os.terminal_size((columns, 24)))
    texts = [line for line in run_help("train").splitlines() if line.startswith(" " * 36)]
    assert width - 5 < max(map(len, texts)) <= width


def test_the_help_tells_the_default_and_the_range() -> None:
    text = " ".join(run_help("train").split())
    assert "Mixing weight α of sync_ref_model, 0 to 1. As in TRL (default 0.6)" in text
