"""The identity of a function's own code, by which a benchmark and a resumed run notice that it was edited."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from rdkit import Chem
from rdkit.Chem import QED

from discrete_grpo.rewards.identity import code_identity, identify
from discrete_grpo.rewards.sources import imported_inside


def test_the_identity_of_code_leaves_out_what_stands_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    texts = ["def score(samples):\n    open('calls.log')\n    return [0.5 for s in samples]\n"]
    texts += [texts[0] + "RESUME = True\n", texts[0].replace("0.5", "0.6")]
    found = []
    monkeypatch.chdir(tmp_path)
    for k, text in enumerate(texts):
        (tmp_path / "calls.log").write_text(f"{k}")
        (tmp_path / "beside_it.py").write_text(text)
        sys.modules.pop("beside_it", None)
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        found.append(code_identity(importlib.import_module("beside_it").score))
    sys.modules.pop("beside_it", None)
    assert found[0] == found[1] != found[2]
    assert None not in found


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("from helper_inside import value", ""),
        ("import helper_inside as h; value = h.value", ""),
        ("from .helper_inside import value", "package_inside"),
        ("from . import helper_inside as h; value = h.value", "package_inside"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_the_identity_of_code_has_the_modules_that_a_function_imports_when_it_is_called(
    line: str, package: str, nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that these import. Python has not loaded them yet, so that only their files can tell."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / package
    folder.mkdir(exist_ok=True)
    name = f"{package}.task_inside".removeprefix(".")
    below = (
        "    def inner():\n        {line}\n        return value\n    return inner()\n"
        if nested
        else "    {line}\n    return value\n"
    )
    (folder / "__init__.py").write_text("")
    (folder / "task_inside.py").write_text("def score(mol):\n" + below.format(line=line))
    further = "from .further_inside import value\n" if package else "from further_inside import value\n"
    found = []
    for helper, other in (
        (further, "value = 1\n"),
        (further, "value = 1  # as before\n"),
        (further, "value = 2\n"),
        ("value = 2\n", ""),
    ):
        (folder / "helper_inside.py").write_text(helper)
        (folder / "further_inside.py").write_text(other)
        importlib.invalidate_caches()
        for known in [known for known in sys.modules if known.partition(".")[0] in ("package_inside", "task_inside")]:
            monkeypatch.delitem(sys.modules, known)
        found.append(code_identity(importlib.import_module(name).score))
    assert None not in found
    assert len(set(found)) == 4


def test_the_identity_of_code_leaves_out_this_package_where_a_function_imports_it() -> None:
    def with_import(mol: Any) -> Any:
        from discrete_grpo.rewards.molecules import qed

        return qed([mol])

    assert list(imported_inside(with_import.__code__, "")) == []
    assert code_identity(with_import) is not None


PATTERN = "from rdkit import Chem\nHELD = Chem.MolFromSmarts('{}')\n"
HELD = {
    "a pattern": PATTERN + "def score(mol): return float(mol.HasSubstructMatch(HELD))\n",
    "a table of patterns": PATTERN + "TABLE = {{'a': HELD}}\ndef score(mol): return len(TABLE)\n",
    "a class attribute": PATTERN + "class Score:\n    held = HELD\n    def __call__(self, mol): return 1.0\nscore = Score()\n",
    "a default": PATTERN + "def score(mol, held=HELD): return 1.0\n",
    "an object of a C library": "from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator\n"
    "HELD = GetMorganGenerator(len('{}'))\ndef score(mol): return len(HELD.GetSparseCountFingerprint(mol).GetNonzeroElements())\n",
}


@pytest.mark.parametrize("case", HELD)
def test_the_identity_of_code_changes_with_what_cannot_be_described(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = []
    for held in ("[F]", "[F]", "[Cl]"):
        (tmp_path / "holds_it.py").write_text(HELD[case].format(held))
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, "holds_it", raising=False)
        found.append(code_identity(importlib.import_module("holds_it").score))
    assert None not in found
    assert found[0] == found[1] != found[2]


def test_a_molecule_is_the_same_after_it_was_used() -> None:
    pattern, mol = Chem.MolFromSmarts("[OX2H]"), Chem.MolFromSmiles("CCOc1ccccc1")

    def score(sample: Any) -> float:
        return float(sample.HasSubstructMatch(pattern)) + mol.GetNumAtoms()

    before = code_identity(score)
    QED.qed(mol)
    mol.HasSubstructMatch(pattern)
    Chem.GetSSSR(mol)
    assert code_identity(score) == before is not None


@pytest.mark.parametrize("use", ["package_deep.inner.deep.WEIGHT", "package_deep.inner.deep.weight()"])
def test_what_is_named_through_several_modules_counts(use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "package_deep" / "inner").mkdir(parents=True)
    for folder in ("package_deep", "package_deep/inner"):
        (tmp_path / folder / "__init__.py").write_text("")
    (tmp_path / "package_deep/inner/deep.py").write_text("WEIGHT = 1.0\ndef weight():\n    return WEIGHT\n")
    (tmp_path / "task_deep.py").write_text(
        f"import package_deep.inner.deep\ndef score(samples):\n    return [{use} for _ in samples]\n"
    )
    module, deep = importlib.import_module("task_deep"), importlib.import_module("package_deep.inner.deep")
    before = identify(module.score), code_identity(module.score)
    monkeypatch.setattr(deep, "WEIGHT", 2.0)
    after = identify(module.score), code_identity(module.score)
    assert None not in after
    assert not set(before) & set(after)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the bytecode differs before")
def test_the_lines_that_a_try_covers_count() -> None:
    """Their bytecode can be the same."""
    covered = "def score(x):\n    try:\n        y = f(x)\n        return g(y)\n    except ValueError:\n        return 0.0\n"
    free = "def score(x):\n    try:\n        y = f(x)\n    except ValueError:\n        return 0.0\n    else:\n        return g(y)\n"
    made = []
    for text in (covered, free):
        names: dict[str, Any] = {"__name__": "cell_of_a_notebook"}
        exec(text, names)
        made.append(names["score"])
    assert made[0].__code__.co_exceptiontable != made[1].__code__.co_exceptiontable
    assert code_identity(made[0]) != code_identity(made[1])
