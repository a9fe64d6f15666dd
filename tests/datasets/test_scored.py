"""Tables of measured scores: columns by name, scores that are unknown, and every kind of bad input in one line."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.datasets.scored import ScoredTable, read_scored


def written(folder: Path, text: str, name: str = "scored.csv") -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["scored.csv", "scored.tsv.gz"])
def test_columns_are_found_by_name_under_every_delimiter(tmp_path: Path, delimiter: str, name: str) -> None:
    rows = [
        ["id", "Canonical SMILES", "pIC50", "assay"],
        ["1", "CCO", "6.5", "a"],
        ["2", "CCN", "7", "b"],
        ["3", "C", "-1e-2", "a"],
    ]
    path = written(tmp_path, "\n".join(delimiter.join(row) for row in rows), name)
    found = read_scored(path, "PIC50", group_column="assay")
    assert found == ScoredTable(("CCO", "CCN", "C"), (6.5, 7.0, -0.01), ("a", "b", "a"), (2, 3, 4))
    assert read_scored(path, "pIC50", sample_column="id").samples == ("1", "2", "3")
    assert read_scored(path, "pIC50").groups is None


def test_unknown_scores_are_left_out_and_counted(tmp_path: Path) -> None:
    cells = ["1.5", "", "NaN", " n/a ", "None", "2"]
    body = "\n".join(f"{'C' * (k + 1)},{cell}" for k, cell in enumerate(cells))
    found = read_scored(written(tmp_path, f"smiles,y\n{body}\n\nO\n"), "y")  # the last row has no second cell
    assert (found.samples, found.scores, found.unscored) == (("C", "CCCCCC"), (1.5, 2.0), 5)
    assert found.lines == (2, 7)


def test_a_quoted_cell_may_hold_the_delimiter(tmp_path: Path) -> None:
    found = read_scored(written(tmp_path, 'text,y\n"a, b",1\n'), "y")
    assert found.samples == ("a, b",)
    assert read_scored(written(tmp_path, 'text,y,note\na,1,"two\nlines, 5"\nb,2,6" pipe\n'), "y").samples == ("a", "b")
    assert read_scored(written(tmp_path, "text,y\na,1,,\n"), "y").samples == ("a",)


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("smiles,pIC50\nC,1\n", {"score_column": "pIC5"}, r"score_column: 'pIC5' is no column .* did you mean 'pIC50'\?"),
        ("smiles,y\nC,1\n", {"group_column": "assay"}, r"group_column: 'assay' is no column of '.*' \(columns 'smiles', 'y'\)"),
        ("smiles,y\nC,1\n", {"sample_column": "mol"}, "sample_column: 'mol' is no column"),
        ("name,y\nC,1\n", {}, "sample_column: None, expected a name, as no column has a usual name"),
        ("sample,text,y\nC,a,1\n", {}, "several columns have a usual name"),
        ("smiles,y\nC,1\nCC,>5\n", {}, "score_column: line 3 of .* holds '>5' in 'y', expected a number or nothing"),
        ("smiles,y\nC,1_0\n", {}, "line 2 of .* holds '1_0'"),
        ("smiles,y\nC,inf\n", {}, "line 2 of .* holds 'inf'"),
        ("smiles,y,g\nC,1,a\nCC,,\nCO,1,\n", {"group_column": "g"}, "group_column: line 4 of .* a score and no group in 'g', exp"),
        ("smiles,y\n", {}, "has no rows below its header"),
        ("\n", {}, "is empty"),
        ("smiles,y\nC,\nCC,nan\n", {}, "has no score in its 2 rows"),
        ("smiles,y\nC,1\n", {"sample_column": "y"}, "expected different columns"),
        ("smiles,y\nC,5,0\n", {}, "line 2 of .* has 3 cells, expected 2 as the header has; .* such as a decimal comma"),
        ('smiles,y,name\nC,1,"a\nCC,2,b\nCCC,3,c\n', {}, r"line 4 ends a cell of \d lines; is a quote left open above\?"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, text: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        read_scored(written(tmp_path, text), **{"score_column": "y"} | arguments)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data: .*absent\.csv' is no file"):
        read_scored(tmp_path / "absent.csv", "y")
