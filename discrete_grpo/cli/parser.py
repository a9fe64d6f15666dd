"""From a command line to a recipe: presets, YAML, bare reward names, and one-line messages for what cannot be read."""

from __future__ import annotations

import difflib
import importlib
import importlib.resources
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from discrete_grpo.cli.suggestions import nearest, reward_hint, right_field

__all__ = ["RUNS", "UsageError", "bad_value", "known_rewards", "parse", "presets", "recipe_of", "unknown_key"]


class UsageError(ValueError):
    """A command line that cannot be run; its text is the one line the user sees."""


def presets(command: str) -> list[str]:
    """Names of the presets of a command."""
    folder = importlib.resources.files("discrete_grpo.cli.presets")
    found = [p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")]
    return sorted(n for n in found if (folder / f"{n}.yaml").read_text().startswith(f"# {command}:"))


def _preset_path(command: str, name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise UsageError(f"preset: file {name!r} does not exist")
        return Path(name)
    known = presets(command)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"preset: {name!r} is unknown; {hint}known: {', '.join(known)}")
    return Path(str(importlib.resources.files("discrete_grpo.cli.presets") / f"{name}.yaml"))


class _Parser(ArgumentParser):
    """A parser whose dump can also write a list of rewards, so that its YAML can always be read again."""

    def dump(self, cfg: Namespace, **options: Any) -> str:
        rewards = cfg.get("reward")
        if not isinstance(rewards, list):
            return str(super().dump(cfg, **options))
        single = cfg.clone()
        single["reward"] = "discrete_grpo.rewards.molecules.qed"
        content = yaml.safe_load(super().dump(single, **options))
        content["reward"] = [_reward_spec(reward) for reward in rewards]
        return yaml.safe_dump(content, sort_keys=False)


def _reward_spec(reward: Any) -> Any:
    """A parsed reward as YAML knows it: an import path, or a class path with its arguments."""
    if isinstance(reward, Namespace):
        return reward.as_dict()
    return reward if isinstance(reward, str | dict) else f"{reward.__module__}.{reward.__qualname__}"


RUNS = ("train", "pretrain", "pretrain-graphs", "pretrain-smiles", "pretrain-text", "judge", "pretrain-digits", "search")
"""The commands that make a run folder."""


def recipe_of(command: str) -> tuple[type, Callable[..., Any]]:
    """The settings and the function of a command that makes a run folder."""
    from discrete_grpo.recipes import digits as images
    from discrete_grpo.recipes import graphs as plain_graphs
    from discrete_grpo.recipes import judge, pretrain, smiles, text
    from discrete_grpo.recipes import search as searching
    from discrete_grpo.recipes import train as recipes

    known: dict[str, tuple[type, Callable[..., Any]]] = {
        "train": (recipes.TrainRecipe, recipes.run_train),
        "pretrain": (pretrain.PretrainRecipe, pretrain.run_pretrain),
        "pretrain-graphs": (plain_graphs.PretrainGraphsRecipe, plain_graphs.run_pretrain_graphs),
        "pretrain-smiles": (smiles.PretrainSmilesRecipe, smiles.run_pretrain_smiles),
        "pretrain-text": (text.PretrainTextRecipe, text.run_pretrain_text),
        "judge": (judge.JudgeRecipe, judge.run_judge),
        "search": (searching.SearchRecipe, searching.run_search),
        "pretrain-digits": (images.PretrainDigitsRecipe, images.run_pretrain_digits),
    }
    return known[command]


def _recipe_parser(command: str) -> ArgumentParser:
    recipe, _ = recipe_of(command)
    parser = _Parser(
        prog=f"discrete-grpo {command}",
        usage=f"discrete-grpo {command} [PRESET | FILE.yaml] [--field=value ...]",
        description=(recipe.__doc__ or "").splitlines()[0] + f" Presets: {', '.join(presets(command))}.",
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--config", action="config", help="YAML file of fields; a preset is one.")
    parser.add_class_arguments(recipe)
    return parser


def _expand(command: str, arguments: Sequence[str]) -> list[str]:
    """A leading preset becomes ``--config``; bare reward names, also in YAML files, become import paths."""
    rest = list(arguments)
    if rest and not rest[0].startswith("-"):
        rest[0] = f"--config={_preset_path(command, rest[0])}"
    for k, word in enumerate(rest):
        name, joined, value = word.partition("=")
        if not joined and k and not word.startswith("-"):  # "--name value"
            name, value = rest[k - 1], word
        if name in ("--reward", "--reward+"):
            rest[k] = word.removesuffix(value) + _full_rewards(value)
        elif name == "--config" and Path(value).is_file():
            text = Path(value).read_text(encoding="utf-8")
            _check_groups_of_file(text, recipe_of(command)[0])
            full = _full_rewards(text, key="reward")
            rest[k] = word if full == text else word.removesuffix(value) + full
    return rest


def _full_rewards(text: str, key: str | None = None) -> str:
    """YAML with the bare reward names in it (under ``key``; None: the whole is rewards) as import paths; the rest as it was."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return text  # the parser says what is wrong with it
    if key is not None:
        node = _child(node, key)
    parts = [part if isinstance(part, yaml.ScalarNode) else _child(part, "class_path") for part in _items(node)]
    for part in reversed([p for p in parts if isinstance(p, yaml.ScalarNode) and re.fullmatch(r"[A-Za-z_]\w*", p.value)]):
        text = text[: part.start_mark.index] + _reward_path(part.value) + text[part.end_mark.index :]
    return text


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else [] if node is None else [node]


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    return next((v for k, v in node.value if k.value == key), None) if isinstance(node, yaml.MappingNode) else None


def known_rewards() -> dict[str, str]:
    """Rewards that can be named without their module: name -> import path."""
    from discrete_grpo.rewards import conditions, graphs, images, judge, molecules

    found = {}
    for module in (molecules, conditions, judge, images, graphs):
        for name in module.__all__:
            reward = getattr(module, name)
            if reward is judge.ModuleReward:  # it wants a module, which no name on a command line can give
                continue
            if callable(reward) and _takes_samples(reward):
                found[name] = f"{module.__name__}.{name}"
    return found


def _takes_samples(reward: Any) -> bool:
    """Whether a function, or the objects of a class, are called as ``reward(samples, ...)``."""
    if getattr(reward, "_is_protocol", False):
        return False
    call = reward.__call__ if isinstance(reward, type) else reward
    names = list(inspect.signature(call).parameters)
    return "samples" in names[:2]


def _reward_path(name: str) -> str:
    known = known_rewards()
    same = [k for k in known if k.casefold() == name.casefold()]
    if name not in known and len(same) != 1:
        raise UsageError(
            f"reward: {name!r} is unknown; {nearest(name, known)}known: {', '.join(known)}, or an import path such as "
            "my_file.my_reward"
        )
    return known[name if name in known else same[0]]


def _field_names(recipe: type) -> list[str]:
    names = []
    for f in fields(recipe):
        nested = f.default_factory() if callable(f.default_factory) else None
        if is_dataclass(nested) and not isinstance(nested, type):
            names += [f"{f.name}.{inner.name}" for inner in fields(nested)]
        else:
            names.append(f.name)
    return names


_UNKNOWN = (
    r"unrecognized arguments: --([\w.-]+)",
    r"[Kk]ey \"?'?([\w.]+)\"?'? is not expected",
    r"^Option '([\w.]+)' is not accepted",
    r"^Group '([\w.]+)' does not accept option '([\w.]+)'",
)


def unknown_key(text: str, names: Sequence[str]) -> str | None:
    """A line for an unknown key in a parser's message, with the nearest right one; None if it says something else."""
    match = next(filter(None, (re.search(pattern, text) for pattern in _UNKNOWN)), None)
    if match is None:
        return None
    key = ".".join(match.groups())
    return f"unknown field {key!r}; {right_field(key, names)}"


def bad_value(text: str) -> str:
    """A parser's message about a value as ``name: value, expected ...``; other messages in one line as they are."""
    group = re.search(r"""Parser key "([\w.]+)": Unable to load config ['"](.*?)['"]""", text)
    if group is not None:
        return _no_group(group[1], group[2])
    match = re.search(r'Parser key "([\w.]+)":\s(.*)', text, re.DOTALL)
    value = re.search(r"^  Given value: (.*)|Got value: ([^\n]*)$", text, re.MULTILINE)
    if "collections.abc.Callable" in text and match is None:  # a reward, or one of several, that cannot be made
        reasons = re.findall(r"^ *- (.*)$", text, re.MULTILINE)
        told = [r for r in reasons if not r.startswith(("Expected a", "Type collections.abc.Callable"))]
        return f"reward: {told[0]}{reward_hint(told[0], Path.cwd())}" if told else " ".join(text.split())
    if match is None or value is None:
        return " ".join(text.split())
    name, given = match[1], value[1] or value[2] or ""
    if name == "reward":
        given = re.sub(r"^Namespace\(class_path='([^']*)'.*", r"\1", given)
        reasons = re.findall(r"^ *- (?:Type .*? callable class: )?(.*?)(?:\. Got value: .*)?$", match[2], re.MULTILINE)
        reasons = [r for r in reasons if not r.startswith(("Expected a <class", "Expected an import path or"))]
        reason = reasons[0] if reasons else "expected an import path"
        return f"reward: {given or 'nothing'} is no reward: {reason}{reward_hint(reason, Path.cwd())}"
    kinds = re.findall(r"Expected an? (?:<class '(\w+)'>|typing.Literal\[(.*?)\])", match[2])
    wanted = " or ".join(dict.fromkeys((kind or f"one of {choices}").replace("NoneType", "null") for kind, choices in kinds))
    return f"{name}: {given!r}, expected {wanted}" if wanted else " ".join(text.split())


def _no_group(name: str, given: Any) -> str:
    return f"{name}: {given!r}, expected a group of fields, such as --{name}.FIELD=VALUE or a mapping in YAML"


def _check_groups_of_file(text: str, recipe: type) -> None:
    """Raise UsageError where a value stands for a group of fields; the parser would pass it on, or drop it for options."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return  # the parser says what is wrong with it
    for group in {name.partition(".")[0] for name in _field_names(recipe) if "." in name}:
        found = _child(node, group)
        if found is not None and not isinstance(found, yaml.MappingNode):
            lines = text[found.start_mark.index : found.end_mark.index]
            raise UsageError(_no_group(group, " ".join(lines.split())[:60]))


def _check_classes(value: Any) -> None:
    """Raise UsageError where arguments are given to a function: the parser would call it at once, with whatever a file says."""
    if isinstance(value, list | tuple):
        for inner in value:
            _check_classes(inner)
    if not isinstance(value, dict):
        return
    path = value.get("class_path")
    if isinstance(path, str) and "." in path:
        module, _, name = path.rpartition(".")
        if not isinstance(getattr(importlib.import_module(module), name, None), type):
            raise UsageError(f"class_path: {path!r} is no class; a function is named without class_path and init_args")
    for inner in value.values():
        _check_classes(inner)


def parse(command: str, arguments: Sequence[str]) -> tuple[Any, str]:
    """The recipe, and its resolved settings as YAML."""
    recipe, _ = recipe_of(command)
    parser = _recipe_parser(command)
    try:
        settings: Namespace = parser.parse_args(_expand(command, arguments))
        _check_classes(settings.as_dict())
        built = parser.instantiate(settings)
    except (ArgumentError, ValueError) as error:
        text = str(error)
        raise UsageError(unknown_key(text, _field_names(recipe)) or bad_value(text)) from error
    values = {k: v for k, v in vars(built).items() if k not in ("config", "print_config")}
    return recipe(**values), parser.dump(settings, skip_unset=False)
