"""Results whose sources have changed since they were measured, against the register in ``benchmarks/README.md``.

    python -m benchmarks.freshness    # prints every stale result with the sources that changed, and what the register misses

A result is stale if a source of one of its stamps is gone or its code differs. It is then named in the section "Measured on
older code" with the commit it was measured at and what has changed since; a result that is current is not named there.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

__all__ = ["ROOT", "code_hash", "entries", "faults", "stale", "stamps"]

ROOT = Path(__file__).resolve().parent.parent
SECTION = "## Measured on older code"
ROW = re.compile(r"\| `([^`]+\.json)` \| ([^|]+) \| ([^|]+) \|")
UNRECORDED = "not recorded"  # the commit of a stamp made without a repository
RECIPES = {  # module in discrete_grpo/recipes: where it lies now
    "digraph_family": "kinds.digraphs",
    "graph_family": "kinds.graphs",
    "image_family": "kinds.images",
    "molecule_family": "kinds.molecules",
    "spatial_family": "kinds.spatial",
    "text_family": "kinds.text",
} | {
    name: f"{folder}.{name}"
    for folder, names in {
        "kinds": "graph_objects graph_sources",
        "pretraining": "diffusion digits digraphs field_options fitting given_data graph_sequences graphs held_out judge measured"
        " molecule_fields molecules preprocess pretrain sft sft_data sft_files smiles spatial text training_conditions",
    }.items()
    for name in names.split()
}
FORMER = {f"discrete_grpo.recipes.{new}": f"discrete_grpo.recipes.{old}" for old, new in RECIPES.items()}
"""Present name of a module: its name when results were measured; code that imports it by either is the same."""
MOVED = (
    {  # old path: path of the file that does its work now
        "discrete_grpo/categorical.py": "discrete_grpo/core/categorical.py",
        "discrete_grpo/compiled.py": "discrete_grpo/training/network.py",
        "discrete_grpo/graph.py": "discrete_grpo/domains/graphs.py",
        "discrete_grpo/lora.py": "discrete_grpo/training/lora.py",
        "discrete_grpo/lora_layers.py": "discrete_grpo/training/lora.py",
        "discrete_grpo/networks.py": "discrete_grpo/training/network.py",
        "discrete_grpo/policies/likelihoods.py": "discrete_grpo/policies/surrogate.py",
        "discrete_grpo/policies/smiles.py": "discrete_grpo/policies/tokens.py",
        "discrete_grpo/trainer.py": "discrete_grpo/training/trainer.py",
        "discrete_grpo/truncation.py": "discrete_grpo/policies/truncation.py",
        "discrete_grpo/updates.py": "discrete_grpo/training/update.py",
    }
    | {f"discrete_grpo/recipes/{old}.py": f"discrete_grpo/recipes/{new.replace('.', '/')}.py" for old, new in RECIPES.items()}
    | {
        f"discrete_grpo/presets/{name}.yaml": f"discrete_grpo/cli/presets/{name}.yaml"
        for name in ("demo", "digits", "fill-in", "planar-16-grpo", "smiles-qed", "smiles-scaffold-logp", "tree-16-grpo")
    }
)


# -- hashes of code


def code_hash(path: str | Path) -> str:
    """SHA-256 of a file; of Python and YAML, of what they say, so that comments, docstrings and formatting do not count."""
    content = Path(path).read_bytes()
    if Path(path).suffix == ".py":
        content = repr(_plain(ast.parse(content))).encode()
    elif Path(path).suffix == ".yaml":
        content = json.dumps(yaml.safe_load(content), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _plain(node: Any) -> Any:
    """A syntax tree as nested tuples without what is empty, so that every version of Python writes the same."""
    if isinstance(node, list):
        return tuple(_plain(x) for x in node if not _is_text(x))
    if not isinstance(node, ast.AST):
        return node
    if isinstance(node, ast.ImportFrom):
        node.module = FORMER.get(str(node.module), node.module)
    fields = ((name, _plain(value)) for name, value in ast.iter_fields(node) if name not in {"kind", "type_comment"})
    return type(node).__name__, *(
        (name, value) for name, value in fields if value not in (None, ()) or isinstance(node, ast.Constant)
    )


def _is_text(node: Any) -> bool:
    """Whether a statement is a string alone, as docstrings are."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


# -- results


def stamps(result: Any) -> Iterator[dict[str, Any]]:
    """The stamps of a result that name sources: at its head or, of a result of several runs, in a list there."""
    if isinstance(result, dict):
        lists = [value for value in result.values() if isinstance(value, list)]
        yield from (s for s in [result, *(x for xs in lists for x in xs if isinstance(x, dict))] if s.get("sources"))


def stale(result: Any, root: Path = ROOT) -> list[str]:
    """The sources of a result, by their names of today, that are gone or whose code has changed since.

    A stamp may hold the hash of the code or, as the earlier ones do, of the whole file.
    """
    found = []
    for name, pinned in ((name, pinned) for s in stamps(result) for name, pinned in s["sources"].items()):
        path = root / name
        path = path if path.exists() else root / MOVED.get(name, name)
        if not path.exists() or pinned not in {code_hash(path), hashlib.sha256(path.read_bytes()).hexdigest()}:
            found.append(path.relative_to(root).as_posix())
    return sorted(set(found))


def entries(page: str) -> dict[str, tuple[str, str]]:
    """The register: file -> (commit, what has changed since).

    Raises:
        ValueError: if the page has no such section, or a file is named twice.
    """
    _, found, rest = page.partition(f"\n{SECTION}\n")
    if not found:
        raise ValueError(f"page: it has no section {SECTION!r}")
    rows = ROW.findall(rest.split("\n## ")[0])
    if len({name for name, *_ in rows}) < len(rows):
        raise ValueError(f"{SECTION}: a file is named twice")
    return {name: (commit.strip(), change.strip()) for name, commit, change in rows}


def faults(folder: Path, page: str, root: Path = ROOT) -> list[str]:
    """Lines that name stale results missing in the register, entries without cause, and commits of another stamp."""
    register, found = entries(page), []
    results = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    for name, result in results.items():
        changed = stale(result, root)
        if changed and name not in register:
            found.append(
                f"{name}: changed since it was measured: {', '.join(changed)}; measure again, or name it in {SECTION[3:]!r}"
            )
        elif name in register and not changed:
            found.append(f"{name}: it is current; remove it from {SECTION[3:]!r}")
        elif name in register and register[name][0] not in (commits := _commits(result)):
            found.append(f"{name}: measured at {register[name][0]}, expected one of {sorted(commits)}")
    return found + [f"{name}: no such result; remove it from {SECTION[3:]!r}" for name in register.keys() - results.keys()]


def _commits(result: Any) -> set[str]:
    """The commits of the stamps, as the register writes them."""
    return {s["commit"][:7] if s.get("commit") else UNRECORDED for s in stamps(result)}


def main() -> None:
    """Print stale results and the faults of the register."""
    folder = ROOT / "benchmarks/results"
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if changed := stale(result):
            print(f"{path.name} ({', '.join(sorted(_commits(result)))}): {', '.join(changed)}")
    for line in faults(folder, (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")):
        print(f"FAULT {line}")


if __name__ == "__main__":
    main()
