"""Signatures, defaults and docstrings of this package, read from its source files without importing them.

``discrete-grpo train -h`` and ``discrete-grpo list`` describe settings and rewards whose modules import torch and rdkit. They read
the syntax trees of these modules instead, which is much faster.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Definition",
    "Field",
    "choices",
    "constant",
    "dataclass_fields",
    "field_docs",
    "find",
    "first_line",
    "plain",
]

_PACKAGE = "discrete_grpo"
_SECTIONS = ("Args:", "Attributes:")


class Definition(NamedTuple):
    """A class, a function or an assignment of a module."""

    module: str
    node: ast.AST


class Field(NamedTuple):
    """A field of a dataclass; ``default`` is its syntax tree, None if the field is required."""

    name: str
    module: str
    annotation: ast.expr
    default: ast.expr | None


@lru_cache(maxsize=64)
def _tree(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"module {module!r} has no source file")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def find(module: str, name: str) -> Definition | None:
    """The definition of a name in a module of this package, through imports from other modules; None if there is none."""
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return Definition(module, node)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return Definition(module, node)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return Definition(module, node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return find(str(node.module), alias.name)
    return None


def first_line(node: ast.AST) -> str:
    """The first line of a docstring as plain text."""
    text = ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None
    return plain(text.splitlines()[0]) if text else ""


def plain(text: str) -> str:
    """Text without reStructuredText markup.

    >>> plain("as ``uniform`` in :class:`~discrete_grpo.GRPOConfig`")
    'as uniform in GRPOConfig'
    """
    parts = text.replace("``", "").split("`")
    for k in range(0, len(parts) - 1, 2):
        role = parts[k].rpartition(":")[0].rpartition(":")
        if parts[k].endswith(":") and role[2].isalpha():
            parts[k] = role[0]
            parts[k + 1] = parts[k + 1].rpartition(".")[2] if parts[k + 1].startswith("~") else parts[k + 1]
    return "".join(parts)


def field_docs(definition: Definition) -> dict[str, str]:
    """The texts about the fields of a dataclass, with those of its bases."""
    found: dict[str, str] = {}
    for base in _bases(definition):
        found |= field_docs(base)
    return found | _attribute_docs(definition.node)


def _bases(definition: Definition) -> list[Definition]:
    """The base classes that this package defines."""
    bases = definition.node.bases if isinstance(definition.node, ast.ClassDef) else []
    found = [find(definition.module, base.id) for base in bases if isinstance(base, ast.Name)]
    return [base for base in found if base is not None and isinstance(base.node, ast.ClassDef)]


def _attribute_docs(node: ast.AST) -> dict[str, str]:
    """The texts of the sections ``Attributes`` and ``Args`` of a docstring by name; names in one entry get the same text."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    inside = False
    for line in (ast.get_docstring(node) or "").splitlines() if isinstance(node, ast.ClassDef | ast.FunctionDef) else []:
        if not line.startswith(" "):
            inside = line in _SECTIONS if line.strip() else inside
            continue
        if inside and line[4:5] not in ("", " "):  # a new entry; further lines of one are indented more
            head, _, text = line.strip().partition(":")
            names = [name.strip() for name in head.split(",")]
            found |= {name: [text.strip()] for name in names}
        elif inside:
            for name in names:
                found[name].append(line.strip())
    return {name: plain(" ".join(lines)).strip() for name, lines in found.items()}


def dataclass_fields(definition: Definition) -> list[Field]:
    """The fields of a dataclass in the order of its constructor, with those of its bases first."""
    module, node = definition
    assert isinstance(node, ast.ClassDef)
    found: dict[str, Field] = {}
    for base in reversed(_bases(definition)):  # as Python collects them, from the last to the first
        found |= {field.name: field for field in dataclass_fields(base)}
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and _is_argument(line):
            found[line.target.id] = Field(line.target.id, module, line.annotation, _default_of(line.value))
    return list(found.values())


def _default_of(value: ast.expr | None) -> ast.expr | None:
    """The default of a field; that of ``field(default=X)`` is X."""
    keywords = value.keywords if isinstance(value, ast.Call) and ast.unparse(value.func) == "field" else []
    return next((k.value for k in keywords if k.arg == "default"), value)


def _is_argument(line: ast.AnnAssign) -> bool:
    if ast.unparse(line.annotation).startswith("ClassVar"):
        return False
    keywords = line.value.keywords if isinstance(line.value, ast.Call) else []
    return not any(k.arg == "init" and isinstance(k.value, ast.Constant) and k.value.value is False for k in keywords)


def choices(module: str, annotation: ast.expr) -> list[str] | None:
    """The values that an annotation allows where it is a ``Literal``, also under an alias or beside None; else None."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return [str(ast.literal_eval(value)) for value in inner]
    if isinstance(annotation, ast.BinOp):
        parts = [choices(module, part) for part in (annotation.left, annotation.right)]
        return next((part for part in parts if part), None)
    found = find(module, annotation.id) if isinstance(annotation, ast.Name) else None
    if found is not None and isinstance(found.node, ast.Assign | ast.AnnAssign) and found.node.value is not None:
        return choices(found.module, found.node.value)
    return None


def constant(module: str, node: ast.expr) -> object:
    """The value of an expression of numbers and texts, also under a name.

    Raises:
        LookupError: if it is anything else.
    """
    if isinstance(node, ast.Name):
        found = find(module, node.id)
        if found is not None and isinstance(found.node, ast.Assign | ast.AnnAssign) and found.node.value is not None:
            return constant(found.module, found.node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):  # sizes, such as 4 << 30
        return int(str(constant(module, node.left))) << int(str(constant(module, node.right)))
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise LookupError(f"{ast.unparse(node)} in {module} is no constant") from error
