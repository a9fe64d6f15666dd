"""Results of benchmarks are of the code as it stands, or a register says which are not."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from pathlib import Path

import pytest

from benchmarks.freshness import MOVED, ROOT, SECTION, code_hash, entries, faults, stale, stamps

CODE = '"""Doc."""\n\nimport math\n\n\ndef f(x):\n    """Doc of f."""\n    return math.exp(x)  # a comment\n'
REFORMATTED = "# nothing is left of the words\nimport math\ndef f(x):\n    return math.exp(\n        x,\n    )\n"


def register(*rows: str) -> str:
    return "\n".join(["# Benchmarks", "", SECTION, "", "| file | commit | what has changed since |", "|---|---|---|", *rows, ""])


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A root with one source and one current result of it."""
    (tmp_path / "source.py").write_text(CODE)
    write(tmp_path, code_hash(tmp_path / "source.py"))
    return tmp_path


def write(root: Path, pinned: str, name: str = "source.py") -> None:
    (root / "results").mkdir(exist_ok=True)
    stamp = {"commit": "0123456789abcdef", "sources": {name: pinned}}
    (root / "results/speed.json").write_text(json.dumps(stamp | {"rows": []}))


def found(root: Path, *rows: str) -> list[str]:
    return faults(root / "results", register(*rows), root)


@pytest.mark.slow
def test_no_result_is_stale_without_being_named() -> None:
    page = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    assert faults(ROOT / "benchmarks/results", page) == []


def test_every_result_but_the_logs_has_a_stamp() -> None:
    for path in (ROOT / "benchmarks/results").glob("*.json"):
        assert list(stamps(json.loads(path.read_text(encoding="utf-8")))), path.name


def test_comments_docstrings_and_formatting_do_not_count(measured: Path) -> None:
    (measured / "source.py").write_text(REFORMATTED)
    assert found(measured) == []
    (measured / "source.py").write_text(REFORMATTED.replace("exp", "expm1"))
    assert "speed.json: changed since it was measured: source.py" in found(measured)[0]


@pytest.mark.parametrize(
    "other",
    ["def f(a, b=1): return a", "def f(a, *, b=1): return a", "def f(a, b=2): return a", "def f(a, b=True): return a", "f = 1"],
)
def test_other_code_has_another_hash(tmp_path: Path, other: str) -> None:
    (tmp_path / "a.py").write_text("def f(a, b=1): return a + b")
    (tmp_path / "b.py").write_text(other)
    assert code_hash(tmp_path / "a.py") != code_hash(tmp_path / "b.py")


def test_comments_of_presets_do_not_count(tmp_path: Path) -> None:
    hashes = []
    for k, text in enumerate(("# train: a\nrate: 1.0e-3\n", "rate: 0.001  # b\n", "rate: 0.002\n")):
        (tmp_path / f"{k}.yaml").write_text(text)
        hashes.append(code_hash(tmp_path / f"{k}.yaml"))
    assert hashes[0] == hashes[1] != hashes[2]


def test_an_earlier_stamp_holds_the_hash_of_the_whole_file(measured: Path) -> None:
    write(measured, hashlib.sha256(CODE.encode()).hexdigest())
    assert found(measured) == []
    (measured / "source.py").write_text(CODE + "# a comment\n")  # nobody knows what that file was without its comments
    assert found(measured)


def test_a_stale_result_is_named_with_its_commit(measured: Path) -> None:
    write(measured, "0" * 64)
    assert len(found(measured)) == 1
    assert found(measured, "| `speed.json` | 0123456 | It is faster. |") == []
    assert "measured at 7654321" in found(measured, "| `speed.json` | 7654321 | It is faster. |")[0]


def test_a_name_without_cause_is_refused(measured: Path) -> None:
    row = "| `speed.json` | 0123456 | It is faster. |"
    assert "it is current" in found(measured, row)[0]
    assert "no such result" in found(measured, row.replace("speed", "gone"))[0]
    with pytest.raises(ValueError, match="named twice"):
        found(measured, row, row)
    with pytest.raises(ValueError, match="no section"):
        entries("# Benchmarks\n")


def test_a_source_that_moved_is_followed_and_one_that_is_gone_is_not(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(measured, code_hash(measured / "source.py"), "old.py")
    assert "changed since it was measured: old.py" in found(measured)[0]
    monkeypatch.setitem(MOVED, "old.py", "source.py")
    assert found(measured) == []


def test_an_import_of_a_module_that_moved_is_the_same_code(tmp_path: Path) -> None:
    hashes = []
    for k, module in enumerate(("recipes.graph_family", "recipes.kinds.graphs", "recipes.kinds.molecules")):
        (tmp_path / f"{k}.py").write_text(f"from discrete_grpo.{module} import shape_of")
        hashes.append(code_hash(tmp_path / f"{k}.py"))
    assert hashes[0] == hashes[1] != hashes[2]


def test_every_stamp_of_a_result_of_several_runs_counts(measured: Path) -> None:
    good = {"commit": "a" * 40, "sources": {"source.py": code_hash(measured / "source.py")}}
    assert stale({"runs": [good, good]}, measured) == []
    assert stale({"runs": [good, good | {"sources": {"source.py": "0"}}]}, measured) == ["source.py"]


def test_moved_files_are_where_the_table_says() -> None:
    assert all((ROOT / new).exists() and not (ROOT / old).exists() for old, new in MOVED.items())


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_sources_that_scripts_name_exist(script: Path) -> None:
    if script.stem == "freshness":
        return
    strings = [node.value for node in ast.walk(ast.parse(script.read_bytes())) if isinstance(node, ast.Constant)]
    named = [
        s
        for s in strings
        if isinstance(s, str) and re.fullmatch(r"(discrete_grpo|models|datasets|benchmarks|tests)/[\w/.-]+\.py", s)
    ]
    assert not [name for name in named if not (ROOT / name).exists()]
