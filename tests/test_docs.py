"""The code in README and docs runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "docs/tutorial.md", "docs/extending.md", "docs/importing.md"]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_code_runs_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(page)
    assert found
    names: dict[str, object] = {"__name__": "__main__"}
    for block in found:
        exec(compile(block, page, "exec"), names)


def test_tutorial_is_short() -> None:
    lines = [line for block in blocks("docs/tutorial.md") for line in block.splitlines() if line.strip()]
    assert len(lines) <= 60


@pytest.mark.parametrize("page", [*PAGES, "docs/mathematics.md", "docs/metrics.md", "CONTRIBUTING.md"])
def test_links_within_the_repository_exist(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_every_logged_metric_is_documented() -> None:
    from discrete_grpo import GRPOConfig, GRPOTrainer
    from discrete_grpo.metrics.molecules import sample_metrics
    from tests.toys import share_of_class_two, tiny_policy

    config = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4, beta=0.1)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, config, sample_metrics=lambda s: sample_metrics([None] * len(s)))
    line = trainer.train()[0]
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    for name in line:
        assert f"`{name.replace('share_of_class_two', 'NAME')}`" in page, name
