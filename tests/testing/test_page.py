"""The example of a new policy passes the kit and learns, and the page on extending lists every law."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from discrete_grpo.testing import LAWS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_is_short_passes_and_learns() -> None:
    path = ROOT / "examples/new_policy.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=environment, check=True)
    assert f"{len(LAWS)} laws: {len(LAWS) - 3} passed, 0 failed, 3 skipped" in done.stdout
    found = re.search(r"reward (\S+) -> (\S+)\s", done.stdout.splitlines()[-1] + " ")
    assert found is not None
    before, after = map(float, found.groups())
    assert before < 0.65
    assert after > 0.9


def test_the_page_lists_every_law_in_order_and_its_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([^`]+)` \|", page.split("## 7. The laws")[1].split("\n## ")[0], re.M) == list(LAWS)
    for target in re.findall(r"\]\(([^)#:]+)\)", page):
        assert (ROOT / "docs" / target).exists(), target
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert blocks
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, "docs/extending.md", "exec"), names)
