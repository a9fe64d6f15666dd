"""The report as a browser sees it: parsed, scripts run, nothing blocked, nothing too wide."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from discrete_grpo.runs.report.molecules import draw_smiles
from discrete_grpo.runs.report.report import write_report
from discrete_grpo.runs.recorder import Recorder, write_json, write_table, write_text

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome installed")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--virtual-time-budget=2000",
]
SMILES = ["CCO", "CC(=O)Nc1ccc(O)cc1", "c1ccc2[nH]ccc2c1", "CN1C=NC2=C1C(=O)N(C)C(=O)N2C", "CS(=O)(=O)c1ccc(F)cc1"]


class Count(HTMLParser):
    """Counts elements by the ids and tags they stand in."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[tuple[str, str]] = []
        self.inside: dict[str, dict[str, int]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for holder in {mark for entry in self.stack for mark in entry if mark}:
            counts = self.inside.setdefault(holder, {})
            counts[tag] = counts.get(tag, 0) + 1
        if tag not in ("meta", "link", "br", "img", "input", "hr"):
            self.stack.append((tag, dict(attrs).get("id") or ""))

    def handle_endtag(self, tag: str) -> None:
        while self.stack and self.stack.pop()[0] != tag:
            pass


def make_run(folder: Path) -> Path:
    recorder = Recorder(folder)
    for step in range(1, 61):
        share = step / 60
        metrics = {
            "reward": share,
            "reward_std": 0.1,
            "valid": 0.9,
            "unique": 1 - share / 9,
            "kl": share,
            "kl_forward": share,
            "entropy": 3.0,
        }
        recorder.record(step, metrics)
        recorder.record_samples(step, {"sample": SMILES, "reward": [share * k for k in range(5)]})
    for place in ("before", "after"):
        write_table(
            folder / f"evaluation_{place}.csv.gz", {"sample": SMILES, "reward": [0.1] * 5, "qed": [0.1, 0.2, 0.3, 0.4, 0.5]}
        )
    write_json(folder / "evaluation.json", {"before": {"qed": 0.3}, "after": {"qed": 0.4}})
    write_text(folder / "config.yaml", "beta: 0.1\n")
    return write_report(folder, draw=draw_smiles)


def browse(page: Path, profile: Path, width: int = 1200) -> tuple[str, str]:
    command = [
        str(BROWSER),
        *FLAGS,
        f"--user-data-dir={profile}",
        f"--window-size={width},900",
        "--enable-logging=stderr",
        "--dump-dom",
    ]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=90, check=True)
    return done.stdout, done.stderr


def test_browser_shows_curves_and_drawings_and_runs_the_script(tmp_path: Path) -> None:
    dom, log = browse(make_run(tmp_path / "run"), tmp_path / "profile")
    count = Count()
    count.feed(dom)
    for ident, least in {"chart-reward": 3, "chart-valid": 2, "chart-unique": 2, "chart-kl": 4, "chart-entropy": 2}.items():
        assert count.inside[ident]["path"] >= least, ident
    assert count.inside["distributions"]["path"] >= 4
    assert count.inside["samples"]["figure"] == len(SMILES)
    assert count.inside["samples"]["svg"] == len(SMILES)
    assert '<div id="tip" hidden="">' in dom  # made by the page's script, so the policy lets it run
    assert "CONSOLE" not in log  # neither a script error nor a blocked request


def test_nothing_is_wider_than_a_narrow_window(tmp_path: Path) -> None:
    page = make_run(tmp_path / "run")
    frame = tmp_path / "frame.html"  # headless windows are at least 500 wide, a frame is as narrow as we like
    probe = "f.onload = () => setTimeout(() => document.body.dataset.wide = f.contentDocument.documentElement.scrollWidth, 100)"
    frame.write_text(
        f'<body><iframe id="f" width="420" height="900" src="{page.as_uri()}"></iframe><script>{probe}</script></body>'
    )
    command = [str(BROWSER), *FLAGS, "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    dom = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=90, check=True).stdout
    assert 'data-wide="' in dom
    assert int(dom.split('data-wide="')[1].split('"')[0]) <= 420
