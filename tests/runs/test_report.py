"""The run folder, the terminal and the page."""

from __future__ import annotations

import gzip
import html
import io
import json
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from discrete_grpo.runs.console import print_table, progress
from discrete_grpo.runs.recorder import METRICS, SAMPLES, Recorder, read_metrics, read_samples, write_json, write_table, write_text
from discrete_grpo.runs.report.charts import Line, Values, histogram, line_chart, nice_ticks
from discrete_grpo.runs.report.diagnosis import diagnosis
from discrete_grpo.runs.report.molecules import render_smiles
from discrete_grpo.runs.report.report import RunReport, write_report

SVG = "{http://www.w3.org/2000/svg}"
AWKWARD = ["C,C", 'a "quoted" one', "two\nlines", "a\rreturn", "", " spaces ", "naïve ‖ 分子"]


# --- run folder -------------------------------------------------------------------------------------------------------


def update(recorder: Recorder, step: int) -> None:
    recorder.record(step, {"reward": step / 3, "kl": math.nan, "valid": 1})
    rewards = [step / 7, None, math.nan]
    recorder.record_samples(step, {"group": [0, 0, 1], "sample": [f"C{step}", 'N,"x"', "a\nb"], "reward": rewards})


def contents(folder: Path) -> tuple[bytes, bytes]:
    return (folder / METRICS).read_bytes(), (folder / SAMPLES).read_bytes()


def test_metrics_are_valid_json_whatever_the_numbers(tmp_path: Path) -> None:
    Recorder(tmp_path / "run").record(1, {"a": math.inf, "b": float(np.float32(0.5)), "c": 3, "d": None})
    text = (tmp_path / "run" / METRICS).read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"step": 1, "a": None, "b": 0.5, "c": 3, "d": None}
    assert text.endswith("}\n")


def test_samples_are_one_csv_for_any_gzip_reader(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for step in (1, 2):
        update(recorder, step)
    with gzip.open(tmp_path / SAMPLES, "rt", newline="") as file:
        text = file.read()
    assert text.count("step,group,sample,reward\n") == 1
    columns = read_samples(tmp_path / SAMPLES)
    assert columns["step"] == ["1"] * 3 + ["2"] * 3
    assert columns["sample"][:3] == ["C1", 'N,"x"', "a\nb"]
    assert columns["reward"][:3] == [repr(1 / 7), "", ""]


@pytest.mark.parametrize("extra", [0, 1, 2])
@pytest.mark.parametrize("torn", [0, 1, 9])
def test_killed_and_resumed_run_ends_with_the_same_bytes(tmp_path: Path, extra: int, torn: int) -> None:
    whole, killed = Recorder(tmp_path / "whole"), Recorder(tmp_path / "killed")
    for step in range(1, 6):
        update(whole, step)
    for step in range(1, 3):
        update(killed, step)
    checkpoint = json.loads(json.dumps(killed.position()))
    for step in range(3, 3 + extra):
        update(killed, step)
    for name in (METRICS, SAMPLES):  # a record that reached the disk in part
        with (tmp_path / "killed" / name).open("ab") as file:
            file.write((tmp_path / "whole" / name).read_bytes()[:torn])
    resumed = Recorder(tmp_path / "killed")
    resumed.restore(checkpoint)
    for step in range(3, 6):
        update(resumed, step)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_run_killed_before_its_first_checkpoint_starts_over(tmp_path: Path) -> None:
    whole, killed = Recorder(tmp_path / "whole"), Recorder(tmp_path / "killed")
    update(whole, 1)
    killed.record(1, {"reward": 0.0})
    again = Recorder(tmp_path / "killed")
    again.restore(None)
    update(again, 1)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_recorder_does_not_run_into_another_run(tmp_path: Path) -> None:
    update(Recorder(tmp_path), 1)
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match=r"metrics\.jsonl: \d+ bytes, expected 0; call restore"):
        Recorder(tmp_path).record(1, {})
    assert contents(tmp_path) == before


def test_restore_refuses_files_shorter_than_the_checkpoint(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    update(recorder, 1)
    position = recorder.position()
    (tmp_path / SAMPLES).write_bytes(b"")
    with pytest.raises(ValueError, match=r"samples\.csv\.gz: 0 bytes, expected at least"):
        recorder.restore(position)


def test_recorder_refuses_wrong_columns(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with pytest.raises(ValueError, match="lengths"):
        recorder.record_samples(1, {"sample": ["C"], "reward": [1.0, 2.0]})
    recorder.record_samples(1, {"sample": ["C"], "reward": [1.0]})
    with pytest.raises(ValueError, match=r"columns: \['sample'\], expected \['sample', 'reward'\]"):
        recorder.record_samples(2, {"sample": ["C"]})
    with pytest.raises(ValueError, match="metrics: an entry 'step'"):
        recorder.record(1, {"step": 2})


def test_an_update_without_samples_keeps_the_header(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.record_samples(1, {"sample": []})
    recorder.record_samples(2, {"sample": ["C"]})
    assert read_samples(tmp_path / SAMPLES) == {"step": ["2"], "sample": ["C"]}


def test_readers_stop_at_every_possible_tear(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    ends = []
    for step in (1, 2):
        update(recorder, step)
        ends.append((recorder.position()[METRICS], recorder.position()[SAMPLES]))
    metrics, samples = contents(tmp_path / "run")
    for cut in range(ends[0][1] + 1, ends[1][1]):
        (tmp_path / SAMPLES).write_bytes(samples[:cut])
        with pytest.warns(RuntimeWarning, match="gzip member 2 is torn"):
            assert read_samples(tmp_path / SAMPLES)["step"] == ["1"] * 3
    for cut in range(ends[0][0] + 1, ends[1][0]):
        (tmp_path / METRICS).write_bytes(metrics[:cut])
        with pytest.warns(RuntimeWarning, match="line 2 is torn"):
            assert [r["step"] for r in read_metrics(tmp_path)] == [1]


def test_reader_stops_at_a_damaged_member(tmp_path: Path) -> None:
    update(Recorder(tmp_path), 1)
    data = bytearray((tmp_path / SAMPLES).read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / SAMPLES).write_bytes(data)
    with pytest.warns(RuntimeWarning, match="gzip member 1 is torn"):
        assert read_samples(tmp_path / SAMPLES) == {}


def test_table_round_trip_and_same_bytes(tmp_path: Path) -> None:
    numbers = [k / 7 for k in range(len(AWKWARD))]
    columns: dict[str, Any] = {"sample": AWKWARD, "x": np.array(numbers)}
    write_table(tmp_path / "a.csv.gz", columns)
    write_table(tmp_path / "b.csv.gz", columns)
    back = read_samples(tmp_path / "a.csv.gz")
    assert back["sample"] == AWKWARD
    assert [float(v) for v in back["x"]] == numbers
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    write_table(tmp_path / "one.csv.gz", {"sample": ["", "C"]})
    assert read_samples(tmp_path / "one.csv.gz") == {"sample": ["", "C"]}


def test_large_table_of_many_members_is_read_whole(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    noise = np.random.default_rng(0).random((3, 8000))
    for step, row in enumerate(noise, 1):  # members longer and shorter than the reader's chunk
        recorder.record_samples(step, {"x": row})
        recorder.record_samples(step, {"x": row[:2]})
    assert len(read_samples(tmp_path / SAMPLES)["x"]) == 3 * 8002


def test_write_json_takes_numpy_and_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": np.float64(0.5), "b": [math.nan, 1], "c": {"d": "é"}, "e": np.int64(3)})
    assert json.loads((tmp_path / "x.json").read_text("utf-8")) == {"a": 0.5, "b": [None, 1], "c": {"d": "é"}, "e": 3}


# --- terminal ---------------------------------------------------------------------------------------------------------


def test_progress_in_a_log_is_sparse_plain_lines() -> None:
    out, now = io.StringIO(), [0.0]
    with progress("train [x]", 100, console=Console(file=out), interval=10, clock=lambda: now[0]) as bar:
        for k in range(100):
            now[0] += 0.5
            bar.advance(reward=k / 100, valid=1.0)
    lines = out.getvalue().splitlines()
    assert len(lines) == 5  # at 10, 20, 30, 40 s and the end
    assert lines[0] == "train [x] 20/100  2/s  0:40 left  reward 0.19  valid 1"
    assert lines[-1] == "train [x] 100/100  2/s  0:50 spent  reward 0.99  valid 1"


def test_progress_of_a_loop_that_goes_on_counts_on_and_estimates_by_what_is_new() -> None:
    out, now = io.StringIO(), [0.0]
    with progress("train", 100, done=80, console=Console(file=out), interval=10, clock=lambda: now[0]) as bar:
        now[0] = 10.0
        bar.reach(85)
        now[0] = 20.0
        bar.advance(5)
    assert out.getvalue().splitlines()[:2] == ["train 85/100  0.5/s  0:30 left", "train 90/100  0.5/s  0:20 left"]
    out = io.StringIO()
    with progress("train", 4, done=2, console=Console(file=out, force_terminal=True, width=140)) as bar:
        bar.advance()
    assert "3/4" in out.getvalue()


def test_progress_tells_where_it_stopped() -> None:
    out = io.StringIO()
    with pytest.raises(RuntimeError), progress("train", None, console=Console(file=out)) as bar:  # noqa: PT012
        bar.advance(3)
        raise RuntimeError
    assert out.getvalue().startswith("train 3  ")


def test_progress_on_a_terminal_shows_bar_rate_and_fields() -> None:
    out = io.StringIO()
    with progress("train", 4, console=Console(file=out, force_terminal=True, width=140)) as bar:
        for _ in range(4):
            bar.advance(reward=0.5)
    text = out.getvalue()
    assert "4/4" in text
    assert "/s" in text
    assert "reward 0.5" in text


def test_print_table_cuts_nothing_in_a_log() -> None:
    out = io.StringIO()
    print_table(
        "runs", {f"[{k}] a run": {f"metric_number_{m}": m / 7 for m in range(12)} for k in range(4)}, console=Console(file=out)
    )
    assert "metric_number_11" in out.getvalue()
    assert "[1] a run" in out.getvalue()
    assert "…" not in out.getvalue()


def test_few_rows_of_many_numbers_are_printed_as_columns() -> None:
    out = io.StringIO()
    numbers = {f"metric_{m}": float(m) for m in range(12)}
    print_table("runs", {"before": numbers, "after": numbers | {"only_after": 3.5}}, console=Console(file=out))
    lines = [line.replace("│", " ").split() for line in out.getvalue().splitlines()]
    assert max(map(len, out.getvalue().splitlines())) < 60
    assert ["only_after", "–", "3.5"] in lines
    assert ["metric_7", "7", "7"] in lines


def test_a_table_without_rows_is_its_title() -> None:
    out = io.StringIO()
    print_table("runs/[a]: the best of 20 calls", {}, console=Console(file=out, width=30))
    assert out.getvalue() == "runs/[a]: the best of 20 calls\n"


# --- charts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.93, 0.94), (-3, 17), (0, 2e-6), (0, 123456), (-1e-3, 1e-3), (5, 5.5)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 8
    assert all(low - 1e-9 <= t <= high + 1e-9 for t in ticks)


def chart(*lines: Line) -> ET.Element:
    return ET.fromstring(line_chart(lines, ident="chart-x", title="a < b", x_label="update", y_label="y & z"))


def numbers(path: ET.Element) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in re.findall(r"[ML]([-\d.]+),([-\d.]+)", path.attrib["d"])]


def test_curve_is_drawn_to_scale() -> None:
    root = chart(Line("y", [1, 2, 4], [0.0, 10.0, 5.0]))
    x0, x1, y0, y1, left, right, bottom, top = (float(v) for v in root.attrib["data-domain"].split())
    (path,) = (p for p in root.iter(f"{SVG}path") if p.get("class") == "curve")
    back = [
        (x0 + (x - left) / (right - left) * (x1 - x0), y0 + (y - bottom) / (top - bottom) * (y1 - y0)) for x, y in numbers(path)
    ]
    assert np.allclose(back, [(1, 0), (2, 10), (4, 5)], atol=0.05)
    assert root.attrib["role"] == "img"
    assert root.find(f"{SVG}title").text == "a < b"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "values",
    [[1.0], [0.0, 0.0], [2.0, 2.0, 2.0], [None, 1.0, None, 2.0, 3.0, None], [1e-9, 2e-9], [-1e6, 1e6], [0.1] * 50 + [None] * 50],
)
def test_odd_curves_make_well_formed_finite_charts(values: list[float | None]) -> None:
    steps = [float(k) for k in range(1, len(values) + 1)]
    text = line_chart([Line("y", steps, values, values)], ident="i", title="t", x_label="x", y_label="y")
    ET.fromstring(text)
    assert "nan" not in text
    assert "inf" not in text.replace("infinity", "")


def test_gaps_break_the_curve_and_long_curves_are_thinned_with_their_extremes() -> None:
    assert ET.tostring(chart(Line("y", [1, 2, 3, 4], [1.0, None, 2.0, 3.0]))).count(b"<ns0:circle") == 1
    values: list[float | None] = [0.5] * 5000
    values[1234] = 9.0
    root = chart(Line("y", list(range(5000)), values))
    (path,) = (p for p in root.iter(f"{SVG}path") if p.get("class") == "curve")
    points = numbers(path)
    assert len(points) <= 400
    assert min(y for _, y in points) < 60  # the spike


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [0.0, 0.0],
        [1, 2, 2, 3],
        [0.1, 0.2, 0.9],
        list(range(1000)),
        [0.0] * 99 + [1e6],
        [5e-324, 0.0],
        [5.99e-314, 3.07e-291, 0.0, 1.0],
    ],
)
def test_histogram_shares_add_up(values: list[float]) -> None:
    root = ET.fromstring(histogram([Values("a", values), Values("b", [values[0]])], ident="h", title="t", x_label="x"))
    assert len([p for p in root.iter(f"{SVG}path") if p.get("class") == "bars"]) == 2
    assert "nan" not in ET.tostring(root, "unicode")


@pytest.mark.parametrize("values", [[0.0, 5e-324], [1e-310, 2e-310], [3.07e-291, 1.0]])
def test_tiny_values_are_drawn(values: list[float]) -> None:
    assert "nan" not in ET.tostring(chart(Line("y", [1, 2], values)), "unicode")


# --- report -----------------------------------------------------------------------------------------------------------


def fill(folder: Path, updates: int = 3, note: str = "plain") -> None:
    recorder = Recorder(folder)
    for step in range(1, updates + 1):
        recorder.record(
            step, {"reward": 0.1 * step, "reward_std": 0.1, "valid": 0.9, "unique": 1.0, "kl": 0.1, "entropy": 3.0, note: 1.0}
        )
        recorder.record_samples(step, {"sample": [note, "CCO", f"{'C' * step}"], "reward": [0.9, 0.5, 0.1 * step]})
    for place in ("before", "after"):
        write_table(folder / f"evaluation_{place}.csv.gz", {"sample": [note, "CO"], "reward": [0.2, 0.4], note: [1.5, 2.5]})
    write_json(folder / "evaluation.json", {"before": {"valid": 0.5, note: note}, "after": {"valid": 0.75}})
    write_text(folder / "config.yaml", f"name: {note}\n")


def idents(text: str) -> list[str]:
    return re.findall(r'\sid="([^"]*)"', text)


def test_report_holds_every_part(tmp_path: Path) -> None:
    fill(tmp_path / "run")
    path = write_report(tmp_path / "run", render=lambda s: f'<svg data-sample="{s}"></svg>' if s == "CCO" else None)
    text = path.read_text("utf-8")
    for ident in ("chart-reward", "chart-valid", "chart-unique", "chart-kl", "chart-entropy", "samples", "evaluation", "config"):
        assert ident in idents(text)
    assert len(idents(text)) == len(set(idents(text)))
    assert '<svg data-sample="CCO">' in text
    assert '<div class="text">plain</div>' in text
    assert "+0.250" in text
    again = write_report(tmp_path / "run", render=lambda s: f'<svg data-sample="{s}"></svg>' if s == "CCO" else None)
    assert again.read_text("utf-8") == text


def test_sizes_of_samples_are_one_chart_of_three_curves(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for step in range(1, 4):
        recorder.record(step, {"reward": 0.5, "size/mean": 8.0 + step, "size/min": 3.0, "size/max": 9.0 + step})
    text = write_report(tmp_path).read_text("utf-8")
    curves = "mean: 3 points, first 9, last 11; the smallest: 3 points, first 3, last 3; the largest: 3 points, first 10, last 12"
    assert f'<title id="chart-size-title">Size of the samples</title><desc id="chart-size-text">{curves}</desc>' in text
    assert "chart-other" not in text


def test_report_of_an_empty_or_partial_folder_leaves_parts_out(tmp_path: Path) -> None:
    assert "No update has been recorded" in write_report(tmp_path).read_text("utf-8")
    Recorder(tmp_path).record(1, {"reward": math.nan, "valid": 1.0})
    text = write_report(tmp_path).read_text("utf-8")
    assert "chart-valid" in idents(text)
    assert {"chart-reward", "chart-kl", "samples", "evaluation"}.isdisjoint(idents(text))
    with pytest.raises(FileNotFoundError, match="folder: "):
        write_report(tmp_path / "nowhere")


@pytest.mark.parametrize(("left", "said"), [(None, "different valid samples scored"), (766.0, "766 left")])
def test_report_tells_the_oracle_calls_and_the_diversity(tmp_path: Path, left: float | None, said: str) -> None:
    recorder = Recorder(tmp_path)
    for calls in (900.0, 1234.0):
        line: dict[str, float | None] = {"oracle/calls": calls, "unique_scaffolds": 0.5, "internal_diversity": 0.9}
        recorder.record(1, line | ({} if left is None else {"oracle/left": left}))
    text = write_report(tmp_path).read_text("utf-8")
    assert f"<dt>oracle calls</dt><dd>1,234<small>{said}</small></dd>" in text
    assert {"chart-oracle", "chart-diversity"} <= set(idents(text))


def test_tile_and_table_agree_on_the_oracle_calls(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.record(1, {"oracle/calls": 900.0, "oracle/left": 100.0})
    write_json(tmp_path / "evaluation.json", {"before": {"oracle_calls": 50.0}})
    text = write_report(tmp_path).read_text("utf-8")
    assert "<dt>oracle calls</dt><dd>900<small>100 left</small></dd>" in text  # the run is still going
    write_json(tmp_path / "evaluation.json", {"before": {"oracle_calls": 50.0}, "after": {"oracle_calls": 987.0}})
    text = write_report(tmp_path).read_text("utf-8")
    assert "<dt>oracle calls</dt><dd>987<small>900 before the last evaluation</small></dd>" in text
    assert '<th scope="row">oracle calls</th><td>50</td><td>987</td><td>+937</td>' in text


IDLE = {"valid": 0.5, "frac_reward_zero_std": 1.0, "frac_reward_unknown": 0.0}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (IDLE, "No group of this run had a signal: in all of its 2 updates"),
        (IDLE | {"valid": 0.0}, "Every sample of this run was invalid, in all of its 2 updates"),
        (IDLE | {"frac_reward_unknown": 1.0}, "The reward of every sample of this run was unknown"),
        (IDLE | {"frac_reward_zero_std": 0.99}, None),
        ({"loss": 0.0}, None),
    ],
)
def test_a_run_that_could_not_learn_says_so_and_what_to_try(tmp_path: Path, line: dict[str, float], said: str | None) -> None:
    recorder = Recorder(tmp_path)
    for step in (1, 2):
        recorder.record(step, line)
    text = write_report(tmp_path).read_text("utf-8")
    found = diagnosis(read_metrics(tmp_path))
    if said is None:
        assert found == []
        assert "diagnosis" not in idents(text)
        return
    assert found[0].startswith(said)
    assert found[1].startswith("Try: ")
    assert all(note in text for note in found)
    assert diagnosis([*read_metrics(tmp_path), {"valid": 0.5, "frac_reward_zero_std": 0.9, "frac_reward_unknown": 0.5}]) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"step": "one", "reward": 1.0}', "line 2: step is 'one', expected a number or null"),
        ('{"step": 1, "reward": [1.0]}', r"line 2: reward is \[1\.0\], expected a number or null"),
        ('{"step": 1, "reward": {"a": 1}}', "line 2: reward is {'a': 1}, expected"),
    ],
)
def test_metrics_of_wrong_types_are_named(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / METRICS).write_text(f'{{"step": 1, "reward": 0.5, "reward_std": 0.1}}\n{line}\n')
    with pytest.raises(ValueError, match=said):
        write_report(tmp_path)


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity", "1" + "0" * 400, "9" * 5000])
def test_numbers_beyond_all_bounds_are_unknown(tmp_path: Path, number: str) -> None:
    (tmp_path / METRICS).write_text(f'{{"step": 1, "reward": {number}, "reward_std": 0.1}}\n')
    (tmp_path / "evaluation.json").write_text(f'{{"before": {{"reward": {number}}}, "after": {{"reward": 0.5}}}}')
    assert read_metrics(tmp_path) == [{"step": 1, "reward": None, "reward_std": 0.1}]
    assert "<td>–</td><td>0.500</td><td>–</td>" in write_report(tmp_path).read_text("utf-8")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1, 2]", r"the file holds \[1, 2\], expected the numbers of each stage"),
        ('{"before": 3}', "before holds 3, expected"),
        ('{"before": ["reward"]}', "before holds"),
        ('{"before": {"reward"', r"no JSON \("),
        ("[" * 100_000, r"no JSON \("),
        (b"\xff\xfe", r"no JSON \("),
    ],
)
def test_an_evaluation_of_another_form_is_named(tmp_path: Path, content: str | bytes, said: str) -> None:
    path = tmp_path / "evaluation.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.warns(RuntimeWarning, match=rf"evaluation\.json: {said}"):
        text = write_report(tmp_path).read_text("utf-8")
    assert "evaluation" not in idents(text)


def test_a_pretraining_shows_its_loss_its_evaluations_and_its_samples(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for step in (50, 100, 150):
        recorder.record(step, {"loss": 300 / step, "grad_norm": 1.0})
        if step != 100:
            recorder.record(step, {"eval/valid": step / 200, "eval/mmd_degree": 0.1})
    write_table(tmp_path / "evaluation_after.csv.gz", {"sample": ["CCO", "", "CCN"], "weight": [46.0, None, 45.0]})
    text = write_report(tmp_path, render=render_smiles).read_text("utf-8")
    assert "<dt>updates</dt><dd>150<small>" in text
    assert "<dt>loss</dt><dd>2.000<small>from 6.000" in text
    assert "<dt>valid</dt><dd>75.0 %<small>from 25.0 %" in text
    assert {"chart-loss", "chart-valid", "chart-mmd", "chart-grad", "samples"} <= set(idents(text))
    assert text.count('<figure class="card"><svg') == 2  # drawn, without the invalid one
    chart = re.search(r'id="chart-valid".*?</svg>', text, re.DOTALL)
    assert chart is not None
    assert "<circle" not in chart[0], "evaluations are joined across the records between them"
    assert repr(RunReport(tmp_path)).endswith("150 updates, loss 6.000 to 2.000)")


def test_off_line_updates_are_no_pretraining(tmp_path: Path) -> None:
    for step in (1, 2):
        Recorder(tmp_path / str(step)).record(step, {"loss": 1.0, "kl": 0.5, "offline/score": 0.1})
        assert "chart-kl" in idents(write_report(tmp_path / str(step)).read_text("utf-8"))


def test_a_search_shows_its_rounds(tmp_path: Path) -> None:
    rounds = [{"round": k, "drawn": 6 * (k + 1), "best": 0.5 + k / 10, "mean": 0.4, "reward": 0.3, "entered": 2} for k in range(3)]
    write_json(tmp_path / "search.json", {"drawn": 18, "oracle_calls": 9, "history": rounds})
    write_table(tmp_path / "best.csv.gz", {"smiles": ["CCO"], "reward": [0.7]})
    text = write_report(tmp_path, render=render_smiles).read_text("utf-8")
    assert "<dt>rounds</dt><dd>3<small>" in text
    assert "<dt>samples drawn</dt><dd>18<small>from 6<" in text
    assert 'data-domain="0 2 ' in text  # the first draw is round 0
    assert "<dt>best reward</dt><dd>0.700<small>from 0.500" in text
    assert {"chart-search", "chart-reward", "chart-entered", "samples"} <= set(idents(text))
    (tmp_path / "search.json").write_text('{"drawn": 18')
    with pytest.raises(ValueError, match=r"search\.json: no rounds of a search \("):
        write_report(tmp_path)


def test_rewards_beyond_what_can_be_added_up_are_not_drawn(tmp_path: Path) -> None:
    write_table(tmp_path / "evaluation_after.csv.gz", {"sample": ["C", "CC"], "reward": [1e308, 1e308], "size": [1, 2]})
    text = write_report(tmp_path).read_text("utf-8")
    assert "Distribution of size" in text
    assert "Distribution of reward" not in text


def test_no_recorded_metric_is_lost(tmp_path: Path) -> None:
    Recorder(tmp_path).record(1, {"rewards/qed/mean": 0.5, "clip_ratio/low_mean": 0.1, "step_time": 2.0, "my_metric": 3.0})
    text = write_report(tmp_path).read_text("utf-8")
    for label in ("rewards / qed / mean", "Clipped ratios", "seconds per update", "my metric"):
        assert label in text


def test_report_escapes_every_user_string_and_asks_nothing_of_others(tmp_path: Path) -> None:
    evil = "</pre><script>alert('x')</script>\"><img src=http://x.example/>"
    run = tmp_path / "<i>&run"
    fill(run, note=evil)
    text = write_report(run).read_text("utf-8")
    assert evil not in text
    assert text.count("<script") == 1
    assert "<img" not in text
    assert "<i>" not in text
    assert "default-src 'none'" in text
    assert not re.findall(r"""\s(?:src|href)\s*=\s*["']?http|@import|url\(""", re.sub(r"&[a-z#0-9x]+;.*?&gt;", "", text))


def test_best_samples_are_unique_and_of_highest_reward(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for step in (1, 2):
        recorder.record_samples(
            step, {"sample": [f"s{k}" for k in range(60)], "reward": [None, *(float(k) + step for k in range(1, 60))]}
        )
    text = write_report(tmp_path).read_text("utf-8")
    assert re.findall(r'<div class="text">(s\d+)</div>', text) == [f"s{k}" for k in range(59, 35, -1)]
    assert text.count("update 2") == 24


def test_drawings_are_inlinable_and_bad_smiles_are_none() -> None:
    drawing = render_smiles("CC(=O)Nc1ccc(O)cc1")
    assert drawing is not None
    root = ET.fromstring(drawing)
    assert root.find(f"{SVG}title").text == "CC(=O)Nc1ccc(O)cc1"  # type: ignore[union-attr]
    assert len(list(root.iter(f"{SVG}path"))) > 10
    assert "id=" not in drawing
    assert render_smiles("C1CC") is None
    assert render_smiles("") is None


def test_a_report_in_a_notebook_shows_numbers_and_curves(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is no folder"):
        RunReport(tmp_path / "nowhere")
    assert repr(RunReport(tmp_path)) == f"RunReport({str(tmp_path)!r}: 0 updates)"
    recorder = Recorder(tmp_path)
    for step in (1, 2):
        recorder.record(step, {"reward": step / 4, "valid": 1.0})
    report = RunReport(tmp_path)
    assert repr(report) == f"RunReport({str(tmp_path)!r}: 2 updates, reward 0.250 to 0.500)"
    shown = report._repr_html_()
    assert shown.startswith("<iframe sandbox srcdoc=")
    inner = html.unescape(shown)
    assert 'id="summary"' in inner
    assert 'id="chart-reward"' in inner
    assert "<script" not in inner


def test_reporting_imports_neither_rdkit_nor_matplotlib() -> None:
    names = ["core.atomic", "runs.console", "runs.recorder"]
    names += [f"runs.report.{name}" for name in ("charts", "formatting", "molecules", "report", "samples")]
    code = "".join(f"import discrete_grpo.{n}\n" for n in names) + "import sys; print({'rdkit', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": "."}
    )
    assert done.stdout.strip() == "set()"


def test_conditions_get_a_table_of_examples_and_no_histogram(tmp_path: Path) -> None:
    for place, samples in (("before", ["ca", "", "ob"]), ("after", ["cat", "dog", "cob"])):
        table: dict[str, Any] = {
            "masked": ["c_t", "_og", "c_t"],
            "sample": samples,
            "reward": [0.1, 0.2, 0.3],
            "reward_judge": [0.1, 0.2, 0.3],
        }
        write_table(tmp_path / f"evaluation_{place}.csv.gz", table | {"length": [1.0, 2.0, 3.0 + (place == "after")]})
    text = write_report(tmp_path).read_text()
    section = text[text.index('<section id="examples">') :].split("</section>")[0]
    assert section.count("<tr>") == 1 + 2  # a row a distinct condition
    assert [word in section for word in ("c_t", "cat", "dog", "<i>invalid</i>")] == [True] * 4
    assert "cob" not in section
    assert "Distribution of length" in text
    assert "Distribution of masked" not in text
    drawn = write_report(tmp_path, render=lambda sample: f'<svg data-of="{sample}"></svg>').read_text()
    assert 'data-of="dog"' in drawn
