"""The public rewards of this package, read from their source without importing them, and the page that lists them.

``python -m discrete_grpo.rewards.reference > docs/rewards-reference.md`` writes that page. The docstring of a reward has the
sections Args (or Attributes), Returns and an example; of a class, Returns stands in the docstring of ``__call__``.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RewardEntry", "public_rewards", "reference_page"]

MODULES = {
    "molecules": "Properties of molecules",
    "nearest": "Similarity to the molecules of a file",
    "spatial": "Molecules in space",
    "conditions": "Molecules compared with a condition of their group",
    "diversity": "Diversity of molecules",
    "docking": "Docking of molecules",
    "graphs": "Plain graphs",
    "digraphs": "Directed graphs",
    "images": "Images",
    "judge": "Text, and networks as rewards",
    "transforms": "Components of scores as in REINVENT",
    "components": "Further components of scores as in REINVENT",
    "combine": "Combinations of rewards",
    "pool": "Rewards in worker processes",
    "classifier": "Classifiers of molecules",
    "regressor": "Regression models of molecules",
    "external": "External programs",
    "task": "Tasks of benchmarks",
}
"""Modules with public rewards, in the order of the page -> heading."""
DECORATORS = ("molecule_reward",)
"""Functions that make a reward of the function they decorate."""
PAGE = Path(__file__).parents[2] / "docs" / "rewards-reference.md"
HEADING = re.compile(r"(Args|Attributes|Returns|Raises|Example|Source)\b[^:]*:{1,2}")
INTRODUCTION = """# Rewards reference

A reward takes samples (and columns of conditions) and returns one number per sample. GRPO maximises it: a higher number is
better. `None` stands for an unknown score, which is left out of baseline and loss. A reward is named in a preset or on the
command line by its name here or by its import path; arguments of a class are given under `init_args`.
[Rewards](rewards.md) explains how to write one, pools, external programs, caches and identities.

This page is generated from the docstrings by `python -m discrete_grpo.rewards.reference > docs/rewards-reference.md`.
"""


@dataclass(frozen=True)
class RewardEntry:
    """A public reward as its source describes it.

    Attributes:
        name: the name under which it is exported.
        module: the module that defines it, in full.
        signature: the name with the arguments of the class, their types and defaults; of a function, the name alone.
        about: the first line of the docstring.
        details: the paragraphs between the first line and the first section.
        arguments: name -> description of each argument of the class.
        returns: range and direction of the scores.
        example: doctest lines, or the text of the section Example.
        source: the publication the reward follows; empty for a formula of this package.
    """

    name: str
    module: str
    signature: str
    about: str
    details: str
    arguments: dict[str, str]
    returns: str
    example: str
    source: str

    @property
    def path(self) -> str:
        """The import path."""
        return f"{self.module}.{self.name}"


def public_rewards() -> dict[str, RewardEntry]:
    """Find the public rewards by name, in the order of the page."""
    found: dict[str, RewardEntry] = {}
    for module in MODULES:
        tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
        nodes = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        for name in sorted(_exported(tree) & nodes.keys(), key=lambda name: nodes[name].lineno):
            if _is_reward(nodes[name]):
                found[name] = _entry(f"discrete_grpo.rewards.{module}", nodes[name])
    return found


def _exported(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def _is_reward(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether a function, or the objects of a class, are called as ``reward(samples, **columns)``."""
    if isinstance(node, ast.ClassDef):
        call = _method(node, "__call__")
        return call is not None and _takes_samples(call) and not any(ast.unparse(base) == "Protocol" for base in node.bases)
    return _takes_samples(node) or any(ast.unparse(made) in DECORATORS for made in node.decorator_list)


def _takes_samples(node: ast.FunctionDef) -> bool:
    return "samples" in [a.arg for a in node.args.args[:2]] and node.args.kwarg is not None


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((line for line in node.body if isinstance(line, ast.FunctionDef) and line.name == name), None)


# -- one reward


def _entry(module: str, node: ast.FunctionDef | ast.ClassDef) -> RewardEntry:
    text = ast.get_docstring(node) or ""
    sections = _sections(text)
    call = _sections(ast.get_docstring(_method(node, "__call__") or node) or "") if isinstance(node, ast.ClassDef) else sections
    about, _, details = sections[""].partition("\n\n")
    return RewardEntry(
        name=node.name,
        module=module,
        signature=_signature(node),
        about=_joined(about),
        details="\n\n".join(_joined(part) for part in details.split("\n\n")),
        arguments=_arguments(sections.get("Args", sections.get("Attributes", ""))),
        returns=_joined(call.get("Returns", "")),
        example=_example(text, sections),
        source=_joined(sections.get("Source", "")),
    )


def _sections(text: str) -> dict[str, str]:
    """The parts of a docstring by the word that begins them; the part before the first one under the empty name."""
    found, name = {"": ""}, ""
    for line in re.sub(r"(?m)^>>> [\s\S]*", "", text).splitlines():
        if match := HEADING.match(line):
            name, line = match[1], line[match.end() :] if match[1] == "Source" else ""
            found[name] = ""
        elif name == "Source" and not line.strip():
            name = ""
        found[name] += f"{line}\n"
    return {name: inspect.cleandoc(part) for name, part in found.items()}


def _joined(text: str) -> str:
    return " ".join(text.split())


def _arguments(text: str) -> dict[str, str]:
    parts = re.split(r"(?m)^(\w+): ", text)
    return {name: _joined(about) for name, about in zip(parts[1::2], parts[2::2], strict=True)}


def _example(text: str, sections: dict[str, str]) -> str:
    match = re.search(r"(?m)^>>> [\s\S]*", text)
    return match[0].strip() if match else sections.get("Example", "")


def _signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    return f"{node.name}({', '.join(_parameters(node))})" if isinstance(node, ast.ClassDef) else node.name


def _parameters(node: ast.ClassDef) -> Iterator[str]:
    """The arguments of a class as Python writes them: those of ``__init__``, else the fields of a dataclass."""
    made = _method(node, "__init__")
    if made is not None:
        given, named = made.args.args[1:], made.args.kwonlyargs
        defaults = [None] * (len(given) - len(made.args.defaults)) + list(made.args.defaults)
        yield from map(_parameter, given, defaults)
        yield from ["*"] * bool(named)
        yield from map(_parameter, named, made.args.kw_defaults)
        return
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and not ast.unparse(line.annotation).startswith("ClassVar"):
            yield ast.unparse(line)


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + ("" if default is None else f" = {ast.unparse(default)}")


# -- the page


def reference_page() -> str:
    """Make the text of ``docs/rewards-reference.md``."""
    entries = public_rewards().values()
    titles = dict.fromkeys(MODULES[entry.module.rpartition(".")[2]] for entry in entries)
    links = " ·\n".join(f"[{title}](#{re.sub(r'[^a-z ]', '', title.lower()).replace(' ', '-')})" for title in titles)
    parts, last = [INTRODUCTION, f"**Contents.** {links}\n"], ""
    for entry in entries:
        if entry.module != last:
            parts.append(f"## {MODULES[entry.module.rpartition('.')[2]]}\n")
            last = entry.module
        parts.append(_paragraphs(entry))
    return "\n".join(parts)


def _paragraphs(entry: RewardEntry) -> str:
    lines = [f"### {entry.name}", f"{_markdown(entry.about)}", f"`{entry.module}.{entry.name}`"]
    if entry.signature != entry.name:
        lines.append(f"```python\n{entry.signature}\n```")
    lines += [_markdown(entry.details)] if entry.details else []
    if entry.arguments:
        lines.append("\n".join(f"- `{name}`: {_markdown(about)}" for name, about in entry.arguments.items()))
    lines.append(f"**Scores.** {_markdown(entry.returns)}")
    if entry.source:
        lines.append(f"**Source.** {_markdown(entry.source)}")
    lines.append(f"```{'python' if entry.example.startswith('>>>') else 'yaml'}\n{entry.example}\n```\n")
    return "\n\n".join(lines)


def _markdown(text: str) -> str:
    """Text of a docstring as Markdown: roles and double backquotes become code."""
    return re.sub(r":\w+:`~?([^`]+)`", lambda m: f"`{m[1].rpartition('.')[2]}`", text).replace("``", "`")


if __name__ == "__main__":
    print(reference_page(), end="")
