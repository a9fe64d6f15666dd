"""Reward specifications of command lines and YAML files: a name, an import path, or a class with its arguments."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from discrete_grpo.cli.commands import UsageError
from discrete_grpo.cli.importing import imported
from discrete_grpo.cli.type_words import is_plain, type_words
from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.rewards.reference import public_rewards

__all__ = ["complete_reward", "make_reward", "with_argument"]


def complete_reward(spec: Any) -> Any:
    """Complete the specification of a reward, or of a list: names become import paths, and classes get all their arguments.

    Args:
        spec: a name of ``discrete-grpo list``, an import path, a mapping with ``class_path`` and ``init_args``, or a list of these.

    Raises:
        UsageError: if it does not name a reward, or its arguments do not fit.
    """
    if isinstance(spec, list | tuple):
        return [complete_reward(one) for one in spec]
    if isinstance(spec, Mapping):
        path, given = _class_path(spec)
        kind = _load(path)
        if not isinstance(kind, type):
            told = f"reward: {path} is a function, which takes no arguments here ({', '.join(given) or 'none are given'})"
            raise UsageError(f"{told}, expected a class with them in its __init__, or the name of a function alone")
        _check_objects(path, kind)
        return {"class_path": path, "init_args": _completed(path, kind, given)}
    if not isinstance(spec, str) or not spec:
        raise UsageError(f"reward: {spec or 'nothing'} is no reward: expected an import path")
    path = _full_path(spec)
    found = _load(path)
    if not isinstance(found, type):
        return path
    _check_objects(path, found)
    arguments = _completed(path, found, {})
    return {"class_path": path, "init_args": arguments} if arguments else {"class_path": path}


def _check_objects(path: str, kind: type) -> None:
    """Raise ``UsageError`` for a class whose objects cannot be called."""
    if not any("__call__" in vars(base) for base in kind.__mro__):
        raise UsageError(f"reward: {path} is no reward: expected a function, or a class with __call__")


def make_reward(spec: Any) -> Any:
    """Create the reward, or the list of rewards, of a completed specification.

    Raises:
        UsageError: if the constructor of a class refuses its arguments.
    """
    if isinstance(spec, list):
        return [make_reward(one) for one in spec]
    if isinstance(spec, str):
        return _load(spec)
    kind: Any = _load(spec["class_path"])
    parser = _parser_of(kind)
    try:
        arguments = parser.instantiate(parser.parse_object(spec.get("init_args", {})))
        return kind(**vars(arguments))
    except (ArgumentError, ValueError, TypeError, OSError, ImportError) as error:
        raise UsageError(f"reward: {' '.join(str(error).split())}") from error


def with_argument(spec: Any, name: str, value: Any) -> Any:
    """Add one argument of the class of a reward, or of the last of several, as given by ``--reward.NAME=VALUE``.

    ``class_path`` is not an argument: it selects another reward, without arguments.
    """
    if isinstance(spec, list) and spec:
        return [*spec[:-1], with_argument(spec[-1], name, value)]
    if name == "class_path":
        return value
    whole = dict(spec) if isinstance(spec, Mapping) else {"class_path": spec}
    given = whole.get("init_args")
    whole["init_args"] = {**(given if isinstance(given, Mapping) else {}), name.removeprefix("init_args."): value}
    return whole


def _class_path(spec: Mapping[Any, Any]) -> tuple[str, Mapping[str, Any]]:
    path, given = spec.get("class_path"), spec.get("init_args") or {}
    unknown = [str(key) for key in spec if key not in ("class_path", "init_args")]
    if not isinstance(path, str) or not isinstance(given, Mapping) or unknown:
        raise UsageError(f"reward: {dict(spec)} is no reward: expected a mapping with class_path and init_args")
    return _full_path(path), given


def _full_path(name: str) -> str:
    """The import path of a name; a path is returned unchanged."""
    if not name.isidentifier():
        return name
    known = public_rewards()
    same = [name] if name in known else [other for other in known if other.casefold() == name.casefold()]
    if len(same) != 1:
        hint = f"{did_you_mean(name, known)} ".lstrip()
        raise UsageError(
            f"reward: {name!r} is unknown; {hint}known: {', '.join(known)}, or an import path such as my_file.my_reward"
        )
    return known[same[0]].path


def _wanted(name: str) -> str:
    """The text of an error about a name that is not an import path; for a judge, it explains the use of the class ``Judge``."""
    if name.endswith("-judge") or (Path(name) / "policy").is_dir() or (Path(name) / "model.safetensors").is_file():
        return f"expected the import path of one; of a judge it is --reward=Judge --reward.checkpoint={name}"
    dotted = name.removeprefix("./").replace(".py:", ":").replace(":", ".").replace("/", ".")
    dotted = f"{dotted.removesuffix('.py')}.my_reward" if dotted.endswith(".py") else dotted
    near = f"; did you mean {dotted!r}?" if dotted != name and all(part.isidentifier() for part in dotted.split(".")) else ""
    return f"expected an import path such as my_file.my_reward{near}"


def _load(path: str) -> Callable[..., Any]:
    """The function or class of an import path."""
    said = f"reward: {path} is no reward:"
    module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")) or not module:
        raise UsageError(f"{said} {_wanted(path)}")
    found: Any = imported(said, module, name)
    if not callable(found):
        raise UsageError(f"{said} expected a function or a class, found a value of type {type(found).__name__}")
    return found


def _parser_of(kind: type) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(kind, fail_untyped=False)  # an argument without a type takes any value
    return parser


def _completed(path: str, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a class, checked and with its defaults; rewards among them are completed too."""
    said = f"reward: {path} is no reward:"
    accepted = inspect.signature(kind).parameters.values()
    names = [p.name for p in accepted if p.kind is not p.VAR_KEYWORD]
    unknown = [str(name) for name in given if name not in names]
    if unknown and len(names) == len(accepted):
        hint = did_you_mean(unknown[0], names) or f"known: {', '.join(names) or 'none'}"
        if "." in unknown[0]:
            hint = "arguments of a reward inside another are set in a YAML file, under its init_args"
        raise UsageError(f"{said} {unknown[0]!r} is none of its arguments; {hint}")
    missing = [p.name for p in accepted if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if missing := [name for name in missing if name not in given]:
        raise UsageError(f"{said} the following arguments are required: {', '.join(missing)}")
    hints = _hints(kind)
    whole = {name: _with_rewards(value, hints.get(name)) for name, value in given.items()}
    parser = _parser_of(kind)
    try:
        found: Namespace = parser.parse_object(whole)
        return dict(yaml.safe_load(parser.dump(found, skip_unset=False)) or {})
    except (ArgumentError, ValueError, TypeError) as error:
        raise UsageError(f"{said} {_wrong_argument(str(error), given, hints)}") from error


def _wrong_argument(said: str, given: Mapping[str, Any], hints: Mapping[str, Any]) -> str:
    """The message of the parser, reworded like other messages if it is about the type of one argument."""
    found = re.match(r'Parser key "(\w+)":', said)
    if found is None or found[1] not in given or not is_plain(hints.get(found[1])):
        return " ".join(said.split())
    quotes = "; text that YAML reads otherwise needs quotes of its own, as in '\"[OH]\"'"
    hint = quotes if hints[found[1]] is str and isinstance(given[found[1]], bool | list | dict) else ""
    return f"{found[1]}: {given[found[1]]!r}, expected {type_words(hints[found[1]])}{hint}"


def _hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind.__init__)
    except (NameError, TypeError):
        return {}


def _with_rewards(value: Any, hint: Any) -> Any:
    """Complete the rewards in an argument, and refuse functions that are given arguments."""
    if isinstance(value, Mapping):
        return complete_reward(value) if "class_path" in value else {k: _with_rewards(v, None) for k, v in value.items()}
    if isinstance(value, list):
        return [_with_rewards(one, hint) for one in value]
    return complete_reward(value) if isinstance(value, str) and "Callable" in str(hint) else value
