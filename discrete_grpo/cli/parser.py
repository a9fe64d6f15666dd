"""Parses a command line into a recipe: presets, YAML files and options, with one-line errors."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from discrete_grpo.cli.commands import UsageError, preset_path, recipe_of
from discrete_grpo.cli.numbers import written_out
from discrete_grpo.cli.reward_spec import complete_reward, make_reward, with_argument
from discrete_grpo.cli.type_words import takes_mapping, type_words
from discrete_grpo.core.option_names import right_field

__all__ = ["loaded", "loaded_columns", "parse", "settings_text"]

NUMBER = re.compile(r"[-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+")
"""Values that YAML 1.1 reads as text but the parser of the settings reads as numbers."""


@dataclass
class _Given:
    """Options that a command line and its YAML files give.

    Attributes:
        words: options for the parser, without the reward.
        values: each option and its text, in the order given.
        reward: the reward as given; None if none is given.
        print_config: whether the resulting options are only printed.
    """

    words: list[str] = field(default_factory=list)
    values: list[tuple[str, str]] = field(default_factory=list)
    reward: Any = None
    print_config: bool = False


class _Names:
    """The options of a recipe: the names of single fields, of groups, and of fields that are mappings."""

    def __init__(self, recipe: type) -> None:
        hints = typing.get_type_hints(recipe)
        self.types: dict[str, Any] = {}
        self.groups: set[str] = set()
        self.defaults = {f.name: f.default for f in fields(recipe)}
        for name in (f.name for f in fields(recipe)):
            if is_dataclass(hints[name]) and isinstance(hints[name], type):
                self.groups.add(name)
                inner = typing.get_type_hints(hints[name])
                self.types |= {f"{name}.{f.name}": inner[f.name] for f in fields(hints[name])}
            else:
                self.types[name] = hints[name]

    def check(self, name: str) -> None:
        """Raise UsageError unless a name is an option or a part of one that is a mapping."""
        first = name.partition(".")[0]
        if name in self.types or (first in self.types and (first == "reward" or "dict" in str(self.types[first]))):
            return
        raise UsageError(f"unknown field {name!r}; {right_field(name, list(self.types))}")

    def check_option(self, name: str) -> None:
        """Raise UsageError unless a name may stand on a command line."""
        if name != "config" and name not in self.groups:
            self.check(name)

    def plain(self, name: str, text: str) -> str:
        """The text of an option, where ``1e5`` is 100000 if the option takes whole numbers and no others."""
        kinds = (self.types.get(name), *typing.get_args(self.types.get(name)))
        return written_out(text) if int in kinds and float not in kinds else text


def parse(command: str, arguments: Sequence[str]) -> tuple[Any, str]:
    """Return the recipe of a command line, and its resolved settings as YAML.

    Raises:
        UsageError: for an unknown option, a value of the wrong type, or a reward that cannot be found.
        SystemExit: after ``--print_config`` printed the settings.
    """
    found = _resolved(command, arguments)
    if found.print_config:
        print(found.text, end="")
        raise SystemExit(0)
    rewards = {} if found.reward is None else {"reward": make_reward(found.reward)}
    return found.recipe(**found.values, **rewards), found.text


def settings_text(command: str, arguments: Sequence[str]) -> str:
    """Return the resolved settings of a command line as YAML; no reward is made.

    Raises:
        UsageError: as :func:`parse` does.
    """
    return _resolved(command, arguments).text


class _Resolved(NamedTuple):
    """A recipe, its field values, the specification of its reward, the settings as YAML, and whether only to print these."""

    recipe: Any
    values: dict[str, Any]
    reward: Any
    text: str
    print_config: bool


def _resolved(command: str, arguments: Sequence[str]) -> _Resolved:
    recipe, _ = recipe_of(command)
    names = _Names(recipe)
    given = _read(command, arguments, names)
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(recipe, skip={"reward"})
    try:
        settings: Namespace = parser.parse_args(given.words)
        built = parser.instantiate(settings)
    except (ArgumentError, ValueError) as error:
        raise UsageError(_wrong_value(parser, given, names) or _within_group(" ".join(str(error).split()), names)) from error
    values = {k: v for k, v in vars(built).items() if k in names.defaults}
    content = yaml.safe_load(parser.dump(settings, skip_unset=False)) or {}
    spec = None
    if "reward" in names.types:
        spec = complete_reward(names.defaults["reward"] if given.reward is None else given.reward)
        content = {**content, "reward": spec}
        content = {name: content[name] for name in names.defaults if name in content}
    return _Resolved(recipe, values, spec, _dumped(content), given.print_config)


class _Dumper(yaml.SafeDumper):
    """Quotes texts that would be read as numbers."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if NUMBER.fullmatch(text) else None)


_Dumper.add_representer(str, _quoted)


def _dumped(content: Mapping[str, Any]) -> str:
    return str(yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True))


# -- reading


def _read(command: str, arguments: Sequence[str], names: _Names) -> _Given:
    """Sort the words of a command line, and refuse options that do not exist."""
    given, rest = _Given(), list(arguments)
    if rest and not rest[0].startswith("-"):
        rest[0] = f"--config={preset_path(command, rest[0])}"
    for name, value in _pairs(rest, names.check_option):
        key = name.removesuffix("+")
        if name.partition("=")[0] == "print_config":
            given.print_config = True
        elif name == "config":
            _read_file(value, given, names)
        elif key == "reward" or (key.startswith("reward.") and "reward" in names.types):
            names.check(key)
            given.reward = _reward_option(given.reward, names, name, value)
        else:
            _read_option(name, value, given, names)
    return given


def _pairs(words: Sequence[str], check: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    """Option names and their texts, of ``--name=value`` and of ``--name value``; ``check`` refuses names that do not exist."""
    left = iter(words)
    for word in left:
        name, joined, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            hint = f"; a further file is given as --config={word}" if word.endswith((".yaml", ".yml")) else ""
            raise UsageError(f"unrecognized arguments: {word}{hint}")
        if not joined and name != "print_config":
            value = next(left, "--")
            if value.startswith("--"):
                check(name.removesuffix("+"))
                raise UsageError(f"{name}: no value, expected --{name}=VALUE")
        yield name, value


def _reward_option(before: Any, names: _Names, name: str, text: str) -> Any:
    """The reward after ``--reward=``, ``--reward+=`` or ``--reward.ARGUMENT=``."""
    value = _argument(text) if name.startswith("reward.") else loaded(text, "reward")
    if name == "reward":
        return "" if value is None else value
    before = names.defaults["reward"] if before is None else before
    if name == "reward+":
        added = value if isinstance(value, list) else [value]
        return [*(before if isinstance(before, list) else [before]), *added]
    return with_argument(before, name.removeprefix("reward.").removesuffix("+"), value)


def _argument(text: str) -> Any:
    """The value of an argument of a reward: YAML, but text that is none, such as a SMILES, is as it stands, ``#`` included."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    quoted = text.lstrip().startswith(("'", '"', "|", ">"))
    return text.strip() if isinstance(value, str) and not quoted else value


def loaded(text: str, name: str) -> Any:
    """The value of a text in YAML.

    Raises:
        UsageError: naming the option, for text that is not YAML.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: {text!r} is no YAML ({' '.join(str(error).split())})") from error


def loaded_columns(text: str) -> Any:
    """Conditions in JSON, or else in YAML, in which 1e-3 is a text.

    Raises:
        UsageError: for text that is neither.
    """
    try:
        return json.loads(text)
    except ValueError:
        return loaded(text, "columns")


def _read_option(name: str, text: str, given: _Given, names: _Names) -> None:
    """Read one option; a group may be given as a mapping or as a file with a mapping."""
    key = name.removesuffix("+")
    if key in names.groups:
        if not Path(text).is_file():
            node = _composed(text, key)
            if not isinstance(node, yaml.MappingNode):
                raise UsageError(_no_group(key, text))
            given.values += _entries(node, names, key)
            text = yaml.serialize(node, Dumper=yaml.SafeDumper).strip()
    else:
        names.check(key)
        text = names.plain(key, text)
        given.values.append((key, text))
        if key not in names.types and key.count(".") > 1:
            name, text = _inner_mapping(key, given.values)
    given.words.append(f"--{name}={text}")


def _inner_mapping(key: str, values: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The mapping within a mapping to which ``a.b.c`` belongs, as the option ``a.b`` with all its fields so far.

    The parser alone would keep only the last given field, as text.
    """
    first, second, _ = key.split(".", 2)
    found: dict[str, Any] = {}
    for name, text in values:
        if name == first:
            found = dict((loaded(text, name) or {}).get(second) or {})
        elif name == f"{first}.{second}":
            found = dict(loaded(text, name) or {})
        elif name.startswith(f"{first}.{second}."):
            found[name.split(".", 2)[2]] = loaded(text, name)
    return f"{first}.{second}", str(yaml.safe_dump(found, default_flow_style=True, width=10**6)).strip()


def _read_file(name: str, given: _Given, names: _Names) -> None:
    """Read a YAML file, or a mapping given as text; its reward is handled separately."""
    file = Path(name)
    if not file.is_file() and not isinstance(_composed(name, "config"), yaml.MappingNode):
        raise UsageError(f"config: file {name!r} does not exist")
    try:
        text = file.read_text(encoding="utf-8") if file.is_file() else name
    except UnicodeDecodeError as error:
        raise UsageError(f"config: {name!r} cannot be read as text ({error.reason})") from error
    node = _composed(text, f"config: Problems parsing config {name}" if file.is_file() else "config")
    if node is None:
        raise UsageError(f"config: {name!r} holds no settings, expected a mapping of fields")
    if not isinstance(node, yaml.MappingNode):
        told = repr(name) if file.is_file() else "the text"
        raise UsageError(f"config: {told} holds {' '.join(text.split())[:60]}, expected a mapping of fields")
    given.values += _entries(node, names)
    for key, value in node.value:
        if key.value == "reward":
            spec = loaded(yaml.serialize(value, Dumper=yaml.SafeDumper), "reward")
            given.reward = "" if spec is None else spec
    node.value = [(key, value) for key, value in node.value if key.value != "reward"]
    if node.value:
        given.words.append(f"--config={yaml.serialize(node, Dumper=yaml.SafeDumper)}")


def _composed(text: str, name: str) -> yaml.Node | None:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: {' '.join(str(error).split())}") from error
    _check_once(node, name)
    return node


def _check_once(node: yaml.Node | None, name: str) -> None:
    """Raise ``UsageError`` for a mapping with a repeated key, of which YAML would keep the last."""
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if isinstance(key, yaml.ScalarNode):
            if key.value in first:
                raise UsageError(f"{name}: {key.value!r} is given twice, in lines {first[key.value]} and {line}, expected once")
            first[key.value] = line
        _check_once(value, name)


def _entries(node: yaml.MappingNode, names: _Names, group: str = "") -> Iterator[tuple[str, str]]:
    """Each option in a mapping with its text; raises UsageError for an unknown one, and for a value in place of a group."""
    for key, value in node.value:
        name = f"{group}.{key.value}" if group else str(key.value)
        text = _text(value)
        inner = isinstance(value, yaml.MappingNode)
        if name in names.groups and not inner:
            raise UsageError(_no_group(name, text[:60]))
        if inner and not group and (name in names.groups or name not in names.types):
            yield from _entries(value, names, name)
            continue
        names.check(name)
        if inner and not takes_mapping(names.types.get(name)):
            raise UsageError(f"{name}: {text!r}, expected {type_words(names.types[name])}")
        if isinstance(value, yaml.ScalarNode) and (plain := names.plain(name, text)) != text:
            value.tag, value.value, text = "tag:yaml.org,2002:int", plain, plain
        if name.partition(".")[0] != "reward":
            yield name, text


def _text(node: yaml.Node) -> str:
    """Convert a value of a YAML file to its text on a command line."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    flow = yaml.safe_dump(yaml.safe_load(yaml.serialize(node, Dumper=yaml.SafeDumper)), default_flow_style=True, width=10**6)
    return str(flow).strip()


# -- messages


def _no_group(name: str, given: str) -> str:
    return f"{name}: {given!r}, expected a group of fields, such as --{name}.FIELD=VALUE or a mapping in YAML"


def _wrong_value(parser: ArgumentParser, given: _Given, names: _Names) -> str | None:
    """A line about the first value whose type its option does not accept; None if each value is accepted."""
    for name, text in given.values:
        try:
            parser.parse_args([f"--{name}={text}"])
        except (ArgumentError, ValueError):
            if name in names.types:
                return f"{name}: {text!r}, expected {type_words(names.types[name])}"
    return None


def _within_group(said: str, names: _Names) -> str:
    """Replace the name of a field of a group at the beginning of a message by that of its option."""
    name = said.partition(":")[0]
    options = [option for option in names.types if option.endswith(f".{name}")]
    return said.replace(name, options[0], 1) if name not in names.types and len(options) == 1 else said
