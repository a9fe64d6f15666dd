"""The command ``list``: presets, bundled policies, rewards and data sets with one line each."""

from __future__ import annotations

import ast
import importlib.resources
import json
from typing import NamedTuple

from discrete_grpo.cli.commands import RUNS, preset_about
from discrete_grpo.cli.signatures import Definition, constant, dataclass_fields, exported, find, first_line

__all__ = ["KnownReward", "known_rewards", "print_list"]

_REWARDS = "discrete_grpo.rewards"


class KnownReward(NamedTuple):
    """A reward of this package.

    Attributes:
        path: its import path.
        about: the first line of its docstring.
        signature: the name with its arguments, such as ``Similarity(target, radius=2)``; of a function, the name alone.
    """

    path: str
    about: str
    signature: str


def known_rewards() -> dict[str, KnownReward]:
    """The public rewards of this package by name, read from their source without importing them."""
    found: dict[str, KnownReward] = {}
    folder = importlib.resources.files(_REWARDS)
    for name in sorted(p.name.removesuffix(".py") for p in folder.iterdir() if p.name.endswith(".py") and p.name[0] != "_"):
        module = f"{_REWARDS}.{name}"
        for public in exported(module):
            definition = find(module, public)
            if definition is not None and _is_reward(definition):
                found[public] = KnownReward(f"{module}.{public}", first_line(definition.node), _signature(public, definition))
    return found


def _is_reward(definition: Definition) -> bool:
    """Whether a function, or the objects of a class, are called as ``reward(samples, **columns)``."""
    module, node = definition
    if isinstance(node, ast.FunctionDef):
        return _takes_samples(node) or any(_makes_reward(module, maker) for maker in node.decorator_list)
    if not isinstance(node, ast.ClassDef) or any(ast.unparse(base) == "Protocol" for base in node.bases):
        return False
    return any(isinstance(line, ast.FunctionDef) and line.name == "__call__" and _takes_samples(line) for line in node.body)


def _takes_samples(node: ast.FunctionDef) -> bool:
    return "samples" in [a.arg for a in node.args.args[:2]] and node.args.kwarg is not None


def _makes_reward(module: str, decorator: ast.expr) -> bool:
    """Whether a decorator says by its annotation that it returns a protocol that is called with samples."""
    maker = find(module, decorator.id) if isinstance(decorator, ast.Name) else None
    made = maker.node.returns if maker is not None and isinstance(maker.node, ast.FunctionDef) else None
    kind = find(maker.module, made.id) if maker is not None and isinstance(made, ast.Name) else None
    lines = kind.node.body if kind is not None and isinstance(kind.node, ast.ClassDef) else []
    return any(isinstance(line, ast.FunctionDef) and line.name == "__call__" and _takes_samples(line) for line in lines)


def _signature(name: str, definition: Definition) -> str:
    module, node = definition
    if not isinstance(node, ast.ClassDef):
        return name
    maker = next((line for line in node.body if isinstance(line, ast.FunctionDef) and line.name == "__init__"), None)
    if maker is None:
        given = [(field.name, field.default) for field in dataclass_fields(definition)]
    else:
        names = [a.arg for a in maker.args.args[1:]]
        without = len(names) - len(maker.args.defaults)
        given = list(zip(names, [None] * without + list(maker.args.defaults), strict=True))
        given += [(a.arg, default) for a, default in zip(maker.args.kwonlyargs, maker.args.kw_defaults, strict=True)]
    return f"{name}({', '.join(k if default is None else f'{k}={_default(module, default)}' for k, default in given)})"


def _default(module: str, node: ast.expr) -> str:
    try:
        return repr(constant(module, node))
    except LookupError:
        return ast.unparse(node)


def _bundled() -> dict[str, dict[str, str]]:
    """One line about each bundled checkpoint, by role and name."""
    found: dict[str, dict[str, str]] = {"bundled policies": {}, "bundled judges and classifiers": {}}
    folder = importlib.resources.files("discrete_grpo.bundled")
    for place in sorted((p for p in folder.iterdir() if (p / "config.json").is_file()), key=lambda p: p.name):
        metadata = json.loads((place / "config.json").read_text(encoding="utf-8"))["metadata"]
        kind, data = metadata.get("kind", "molecules"), metadata.get("data", {})
        trained = f"trained on {data.get('name', 'unknown data')}"
        if kind in ("judge", "classifier"):
            found["bundled judges and classifiers"][place.name] = f"a {kind}, {trained}"
        else:
            found["bundled policies"][place.name] = f"a policy of {kind}, {trained}"
    return found


def _graph_sets() -> list[str]:
    found = find("discrete_grpo.datasets.synthetic_graphs", "NAMED_SETS")
    assert found is not None
    assert isinstance(found.node, ast.AnnAssign)
    assert isinstance(found.node.value, ast.Dict)
    return [str(ast.literal_eval(key)) for key in found.node.value.keys if key is not None]


def _print_section(title: str, lines: dict[str, str]) -> None:
    print(f"{title}:")
    width = max(map(len, lines), default=0)
    for name, about in lines.items():
        print(f"  {name.ljust(width)}  {about}")
    print()


def print_list() -> None:
    """Print presets, bundled policies, rewards and data sets."""
    for command in RUNS:
        if about := preset_about(command):
            _print_section(f"presets for {command}", about)
    for title, lines in _bundled().items():
        _print_section(title, lines)
    print("rewards, by name or by import path:")
    for reward in known_rewards().values():
        print(f"  {reward.signature}\n      {reward.about}")
    print()
    sets = {
        "enumerated": "all small C/N/O/F molecules, bundled",
        "qm9, zinc250k": "molecules, downloaded at the first use",
        "FILE": "a SMILES file of your own",
        ", ".join(_graph_sets()): "graphs, made on this machine",
        "FILE.npz": "splits of graphs of your own",
    }
    _print_section("data sets", sets)
