"""Progress and tables on a terminal and in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from discrete_grpo.runs.console import print_table, progress


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


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_number_is_cut_on_a_terminal(width: int) -> None:
    names = [*["reward", "valid", "unique", "novel", "internal_diversity"], "reward_of_a_part_with_a_very_long_name_" + 60 * "x"]
    rows = {stage: {name: 0.1234 + k for k, name in enumerate(names)} for stage in ("before", "after")}
    out = io.StringIO()
    print_table("t", rows, console=Console(file=out, force_terminal=True, width=width))
    assert all(out.getvalue().count(f"{k}.12") + out.getvalue().count(f"{k}.123") >= 2 for k in range(len(names)))
    assert "…" not in out.getvalue()


def test_a_narrow_terminal_shows_how_far_a_loop_is() -> None:
    out = io.StringIO()
    with progress("oracle", 10_000, console=Console(file=out, force_terminal=True, width=80)) as bar:
        bar.reach(4120, update="412/1000", reward=0.5, valid=0.987, kl=0.00123, calls=123456)
    assert "4120/10000" in out.getvalue()


def test_a_table_without_rows_is_its_title() -> None:
    out = io.StringIO()
    print_table("runs/[a]: the best of 20 calls", {}, console=Console(file=out, width=30))
    assert out.getvalue() == "runs/[a]: the best of 20 calls\n"
