"""The means of the parts of a row's calls."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from benchmarks.score_curves import main, mean, parts, table


def row(folder: Path, method: str, scores: list[float]) -> None:
    file = folder / "jobs" / "pmo" / "qed" / method / "0" / "calls.csv.gz"
    file.parent.mkdir(parents=True)
    lines = [f'{k},"C{k}",{score},policy' for k, score in enumerate(scores, 1)]
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.write("\n".join(["call,smiles,score,source", *lines]) + "\n")


def test_means_are_of_the_part_and_the_best_of_all_calls_so_far() -> None:
    scores = [float(k) for k in range(30)]
    assert list(parts(scores[::-1], 15)) == [(22.0, 24.5), (7.0, 24.5)]
    assert list(parts(scores, 20)) == [(9.5, 14.5), (24.5, 24.5)]  # the last part is shorter


def test_a_table_has_a_row_per_method_also_where_one_ended_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row(tmp_path, "long", [0.0, 0.5, 1.0, 1.0])
    row(tmp_path, "short", [0.25])
    main([str(tmp_path), "--every", "2"])
    assert capsys.readouterr().out.splitlines() == [
        "| task | method | seed | to call 2 | to call 4 |",
        "| --- | --- | --- | --- | --- |",
        "| qed | long | 0 | 0.250, 0.250 | 1.000, 0.625 |",
        "| qed | short | 0 | 0.250, 0.250 |  |",
    ]


def test_unknown_scores_are_in_no_mean_and_sources_have_means_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert next(parts([None, 1.0, None, None], 2)) == (1.0, 1.0)
    assert math.isnan(mean([None]))
    file = tmp_path / "jobs" / "docking" / "parp1" / "mine" / "0" / "calls.csv.gz"
    file.parent.mkdir(parents=True)
    calls = [(9.0, "policy"), (1.0, "policy"), ("", "policy"), (4.0, "graph-ga"), (2.0, "policy")]
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.write("call,smiles,score,source\n" + "".join(f"{k},C,{score},{source}\n" for k, (score, source) in enumerate(calls, 1)))
    main([str(tmp_path), "--sources_after", "1"])
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| parp1 | mine | 0 | graph-ga | 1 | 4.000 |",
        "| parp1 | mine | 0 | policy | 3 | 1.500 |",
    ]
    main([str(tmp_path), "--above", "2"])  # not those that equal it, and none that is unknown
    assert capsys.readouterr().out.splitlines()[-1] == "| parp1 | mine | 0 | 2 | 5 |"


def test_bad_input_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])
    assert "error: folder: " in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match=r"^folder: .* has no calls\.csv\.gz of a row, expected a folder of"):
        table(tmp_path, 2)
    with pytest.raises(ValueError, match=r"^every: 0, expected at least 1$"):
        list(parts([1.0], 0))
