"""The report as a browser sees it: parsed, scripts run, nothing blocked, nothing too wide."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from discrete_grpo.domains.spatial_molecules import SpatialMolecule, to_cxsmiles
from discrete_grpo.runs.recorder import Recorder, write_json, write_table, write_text
from discrete_grpo.runs.report.molecules import render_smiles
from discrete_grpo.runs.report.page import page
from discrete_grpo.runs.report.report import write_report
from discrete_grpo.runs.report.spatial import render_spatial

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
    return write_report(folder, render=render_smiles)


def browse(path: Path, profile: Path, width: int = 1200) -> tuple[str, str]:
    command = [
        str(BROWSER),
        *FLAGS,
        f"--user-data-dir={profile}",
        f"--window-size={width},900",
        "--enable-logging=stderr",
        "--dump-dom",
    ]
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=90, check=True)
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
    made = make_run(tmp_path / "run")
    frame = tmp_path / "frame.html"  # headless windows are at least 500 wide, a frame is as narrow as we like
    probe = "f.onload = () => setTimeout(() => document.body.dataset.wide = f.contentDocument.documentElement.scrollWidth, 100)"
    frame.write_text(
        f'<body><iframe id="f" width="420" height="900" src="{made.as_uri()}"></iframe><script>{probe}</script></body>'
    )
    command = [str(BROWSER), *FLAGS, "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    dom = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=90, check=True).stdout
    assert 'data-wide="' in dom
    assert int(dom.split('data-wide="')[1].split('"')[0]) <= 420


def test_dragging_turns_a_molecule_in_space(tmp_path: Path) -> None:
    molecule = SpatialMolecule(
        ("C", "O", "N", "H"), (0,) * 4, ((0, 1, 2), (0, 2, 1)), ((0, 0, 0), (2, 0, 0), (0, 1, 0), (1, 1, 1.5))
    )
    picture = render_spatial(to_cxsmiles(molecule))
    assert picture is not None
    drag = """<script>
      const svg = document.querySelector("svg[data-positions]"); svg.setPointerCapture = () => {};
      const send = (kind, x, y) => svg.dispatchEvent(new PointerEvent(kind, { clientX: x, clientY: y, bubbles: true }));
      send("pointermove", 500, 500); send("pointerdown", 100, 100); send("pointermove", 170, 100); send("pointerup", 170, 100);
      send("pointermove", 300, 300);
    </script>"""
    html = re.sub(r"<meta http-equiv[^>]*>", "", page("title", picture)).replace("</body>", f"{drag}</body>")
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    dom, log = browse(tmp_path / "page.html", tmp_path / "profile")
    assert "CONSOLE" not in log
    found = ET.fromstring(re.search(r"<svg.*?</svg>", dom, re.DOTALL)[0])  # type: ignore[index]
    at = np.array([[float(x) for x in row.split()] for row in found.attrib["data-positions"].split(";")])
    scale, _, growth = map(float, found.attrib["data-scale"].split())
    turned = np.stack([np.cos(1) * at[:, 0] + np.sin(1) * at[:, 2], at[:, 1], np.cos(1) * at[:, 2] - np.sin(1) * at[:, 0]], 1)
    circles = [part.attrib for part in found.iter("{http://www.w3.org/2000/svg}circle")]
    depths = []
    for circle in circles:
        x, y, z = turned[int(circle["data-part"])]
        assert float(circle["cx"]) == pytest.approx(scale * x, abs=0.02)
        assert float(circle["cy"]) == pytest.approx(-scale * y, abs=0.02)
        assert float(circle["r"]) == pytest.approx(float(circle["data-size"]) * (1 + growth * z), abs=0.02)
        depths.append(z)
    assert depths == sorted(depths)
    lines = [part.attrib for part in found.iter("{http://www.w3.org/2000/svg}line")]
    single = next(line for line in lines if line["data-part"].split()[2] == "0")
    i, j = map(int, single["data-part"].split()[:2])
    ends = [float(single[name]) for name in ("x1", "y1", "x2", "y2")]
    assert ends == pytest.approx(
        [scale * turned[i, 0], -scale * turned[i, 1], scale * turned[j, 0], -scale * turned[j, 1]], abs=0.02
    )
