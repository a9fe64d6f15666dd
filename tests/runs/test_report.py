"""The page of a run: its parts, what it says of a run that could not learn, files of another form, a notebook."""

from __future__ import annotations

import html
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.runs.recorder import METRICS, Recorder, read_metrics, write_json, write_table, write_text
from discrete_grpo.runs.report.diagnosis import diagnosis
from discrete_grpo.runs.report.molecules import render_smiles
from discrete_grpo.runs.report.report import RunReport, write_report


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


def test_a_change_of_rounding_alone_is_none_and_rewards_keep_their_names(tmp_path: Path) -> None:
    Recorder(tmp_path).record(1, {"reward": 0.4, "reward_std": 0.1, "rewards/a_b/c/mean": 0.1, "rewards/x/mean": 0.2})
    before = {"reward_a_b/c": 0.1 + 0.2, "qed": 0.5, "reward_\u202eo": 1.0}
    write_json(tmp_path / "evaluation.json", {"before": before, "after": {"reward_a_b/c": 0.3, "qed": 0.501}})
    text = write_report(tmp_path).read_text("utf-8")
    assert '<th scope="row">reward a_b/c</th><td>0.300</td><td>0.300</td><td>0</td>' in text
    assert '<th scope="row">QED</th><td>0.500</td><td>0.501</td><td>+0.001</td>' in text
    assert "\u202e" not in text
    assert 'data-name="a_b/c"' in text
    assert "The only update." in text
    assert 'stroke-opacity="0.25"' in text  # the band of a single point


def test_the_best_samples_show_their_scores_by_each_reward(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.record(1, {"reward": 0.5})
    rows: dict[str, Any] = {"sample": ["a", "b"], "reward": [0.5, 0.75], "reward_q<d": [0.25, None], "reward_x_y": [0.25, 0.75]}
    recorder.record_samples(1, rows)
    text = write_report(tmp_path).read_text("utf-8")
    assert "<b>0.750</b><small>q&lt;d –</small><small>x_y 0.750</small>update 1" in text
    assert "<b>0.500</b><small>q&lt;d 0.250</small><small>x_y 0.250</small>update 1" in text


def test_rounds_of_an_optimisation_show_the_best_so_far(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for step, best in ((1, 0.9), (2, 1.0)):
        recorder.record(step, {"reward": 0.5, "restarts": 0, "memory": 9, "best/top1": best, "best/top10": 0.7})
    text = write_report(tmp_path).read_text("utf-8")
    assert "<dt>best reward</dt><dd>1.000<small>from 0.900" in text
    assert "<dt>mean of the ten best</dt>" in text


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


@pytest.mark.parametrize(("left", "said"), [(None, "different samples scored"), (766.0, "766 left")])
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
        (
            IDLE | {"frac_reward_unknown": 0.5},
            "No group of this run had a signal: in all of its 2 updates as many samples had an unknown",
        ),
        (
            IDLE | {"frac_reward_unknown": 0.4},
            "No group of this run had a signal: in all of its 2 updates the samples of each group had",
        ),
        (IDLE | {"frac_reward_zero_std": 0.99, "frac_reward_unknown": 0.5}, None),
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
    assert "<dt>rounds</dt><dd>2<small>" in text  # after the first draw
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
    for place, samples in (("before", ["", "", "ca", "ob"]), ("after", ["cat", "dog", "cob", "cot"])):
        rewards = [0.1, 0.2, 0.3, 0.4]
        table: dict[str, Any] = {
            "masked": ["c_t", "_og", "c_t", "c_t"],
            "sample": samples,
            "reward": rewards,
            "reward_judge": rewards,
        }
        write_table(tmp_path / f"evaluation_{place}.csv.gz", table | {"length": [1.0, 2.0, 3.0 + (place == "after"), 4.0]})
    text = write_report(tmp_path).read_text()
    section = text[text.index('<section id="examples">') :].split("</section>")[0]
    assert section.count("<tr>") == 1 + 2  # a row a distinct condition
    assert [word in section for word in ("c_t", "<code>ca</code>", "cat", "dog", "<i>invalid</i>")] == [True] * 5
    assert section.count("<i>invalid</i>") == 1  # where no sample of the condition is valid
    assert [word in section for word in ("cob", "cot", "ob</code>")] == [False] * 3
    assert "Distribution of length" in text
    assert "Distribution of masked" not in text
    drawn = write_report(tmp_path, render=lambda sample: f'<svg data-of="{sample}"></svg>').read_text()
    assert 'data-of="dog"' in drawn


def test_the_best_samples_are_of_the_whole_run(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.record(1, {"reward": 0.5})
    write_table(tmp_path / "evaluation_before.csv.gz", {"sample": ["CC", "CCO"], "reward": [0.9, 0.2]})
    write_table(tmp_path / "samples.csv.gz", {"step": [1, 1], "sample": ["CCO", "CCN"], "reward": [0.2, 0.6]})
    write_table(tmp_path / "evaluation_after.csv.gz", {"sample": ["CCN", "CCF"], "reward": [0.6, 0.7]})
    figures = re.findall(r"<b>([^<]+)</b>([^<]*)</figcaption>", write_report(tmp_path).read_text("utf-8"))
    assert figures == [
        ("0.900", "evaluation before training"),
        ("0.700", "evaluation after training"),
        ("0.600", "update 1"),
        ("0.200", "evaluation before training"),
    ]
