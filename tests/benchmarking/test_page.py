"""The page of a benchmark: whole, safe and without requests."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.benchmarking.page import write_page
from discrete_grpo.benchmarking.results import Results

METHODS = [f"m{k}" for k in range(10)]


def facts(**more: Any) -> dict[str, Any]:
    return {"about": "a <b> & c", "source": "", "kind": "molecules", "optimum": 1.0, "published": {}, "settings": {}} | more


def about() -> dict[str, Any]:
    run = {
        "command": "discrete-grpo benchmark <x>",
        "date": "2026-01-01",
        "version": "0",
        "commit": "abc",
        "python": "3",
        "torch": "2",
    }
    methods = {name: {"about": "way", "source": "", "settings": {"a": 1}, "uncounted": "tuning"} for name in METHODS}
    return {
        "suite": "toy",
        "budget": 100,
        "tasks": {"one": facts(published={"REINVENT": 0.5}, published_prescreened={"GenMol": 0.9}), "two": facts(kind="text")},
        "methods": methods,
        "seeds": [0, 1],
        "policies": {"p": {"name": "p", "parameters": 12345, "data": None, "sha256": "ff"}},
        "runs": [run | {"python": "3", "torch": "2", "rdkit": "1", "processor": "P", "cores": 2, "system": "S"}],
    }


def row(task: str, method: str, seed: int, value: float) -> dict[str, Any]:
    numbers = dict.fromkeys(("auc_top1", "auc_top10", "auc_top100", "top1", "top10", "top100", "cpu_seconds"), value)
    curve = [[k, value * k / 100] for k in (0, 1, 10, 100)]
    best = [["CCO", value], ["<script>", 0.1]]
    about = {"sources": {"policy": 3, "": 1}, "best": best, "curve": curve, "calls": 4, "sa_top10": None}
    return {"task": task, "method": method, "seed": seed, **numbers, **about}


class Reader(HTMLParser):
    """Checks that elements close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def text_of(folder: Path, rows: list[dict[str, Any]], failed: list[dict[str, Any]]) -> str:
    return write_page(Results(folder, about(), tuple(rows), tuple(failed))).read_text()


def test_the_numbers_of_a_suite_have_their_headings(tmp_path: Path) -> None:
    rows = [row("one", "m0", 0, 0.5) | {"novel_hits": 3, "hit_ratio": 0.125, "top5_score": None}]
    text = write_page(Results(tmp_path, about() | {"suite": "docking"}, tuple(rows), ())).read_text()
    table = text[text.index('id="numbers"') : text.index("</table>", text.index('id="numbers"'))]
    assert re.findall(r'<th scope="col">([^<]*)', table)[:4] == [
        "method", "novel hits", "novel hits (share)", "novel top-5 % score",
    ]  # fmt: skip
    first = table[table.index('<th scope="row">m0') :]
    assert [value.rstrip("0.") for value in re.findall(r"<td>([^<]*)", first)[:3]] == ["3", "0.125", "–"]
    assert "novel hits" not in text_of(tmp_path, rows, [])  # of a suite of another name


def test_the_page_is_whole_and_asks_for_nothing(tmp_path: Path) -> None:
    rows = [row("one", m, seed, 0.1 * k) for k, m in enumerate(METHODS[:9]) for seed in (0, 1)]
    text = text_of(tmp_path, rows, [{"task": "two", "method": "m0", "seed": 0, "error": "ValueError: <oops>"}])
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert "default-src 'none'" in text
    assert not [a for _, attributes in reader.found for a in attributes if a in ("src", "href") or a.startswith("on")]
    assert [tag for tag, _ in reader.found].count("script") == 1
    for said in ("0.800 ± 0.000", "missing", "failed", "ValueError: &lt;oops&gt;", "discrete-grpo benchmark &lt;x&gt;", "GenMol*"):
        assert said in text
    assert "prescreen" in text
    assert "budget of 100, so the differences compare unequal things" in text
    assert "policy 75 %, not said 25 %" in text
    assert "a 1" in text
    assert "12,345 parameters" in text


def test_the_best_of_several_methods_is_bold(tmp_path: Path) -> None:
    alone = [row("one", "m1", seed, 0.3) for seed in (0, 1)]
    assert "<b>0.300 ± 0.000" not in text_of(tmp_path, alone, [])
    text = text_of(tmp_path, [*alone, *(row("one", "m2", seed, 0.2) for seed in (0, 1))], [])
    assert re.findall(r"<b>(0\.\d+ ±[^<]*)", text) == ["0.300 ± 0.000"]


def test_published_sums_are_over_the_tasks_of_the_table(tmp_path: Path) -> None:
    text = text_of(tmp_path, [row("one", "m1", seed, 0.3) for seed in (0, 1)], [])
    table = text[text.index('id="published"') :]
    assert re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)', table)[:2] == [
        ("REINVENT", "0.500 (1)"), ("GenMol*", "0.900 (1)"),
    ]  # fmt: skip


def test_colours_are_those_of_the_methods_with_the_largest_sums(tmp_path: Path) -> None:
    rows = [row("one", m, seed, 0.1 * k) for k, m in enumerate(METHODS) for seed in (0, 1)]
    rows += [row("two", m, seed, 0.5) for m in METHODS[5:7] for seed in (0, 1)]
    text = text_of(tmp_path, rows, [])
    charts = re.findall(r'<svg[^>]*id="curve-\d".*?</svg>', text, re.S)
    names = [re.findall(r'class="curve" data-name="(\w+)"', chart) for chart in charts]
    assert names[0] == names[1] == METHODS[2:]
    assert "smooth" not in charts[0]


def test_scores_of_zero_alone_are_drawn(tmp_path: Path) -> None:
    assert 'id="curve-0"' in text_of(tmp_path, [row("one", "m1", 0, 0.0)], [])


@pytest.mark.parametrize("seeds", [(), (0,)])
def test_a_page_of_few_rows(seeds: tuple[int, ...], tmp_path: Path) -> None:
    text = text_of(tmp_path, [row("one", "m1", seed, 0.3) for seed in seeds], [])
    assert ("0.300 (1 of 2 seeds)" in text) == bool(seeds)
    assert ('id="curves"' in text) == bool(seeds)
