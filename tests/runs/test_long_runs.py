"""Ten thousand updates: a report that stays small and keeps every peak, and readers that hold no more than they must."""

from __future__ import annotations

import gc
import json
import math
import random
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.ledger import open_ledger
from discrete_grpo.runs.recorder import METRICS, Recorder, write_json, write_table, write_text
from discrete_grpo.runs.report.report import write_report
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer
from tests.toys import share_of_class_two, transformer_policy

UPDATES = 10_000
NAMES = ["reward", "reward_std", "valid", "unique", "kl", "entropy", "grad_norm", "oracle/calls", "step_time"]
NAMES += [f"rewards/part {k}/mean" for k in range(6)] + [f"clip_ratio/{k}" for k in ("low_mean", "high_mean")]
NAMES += [f"quantity {k}" for k in range(60)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten thousand noisy updates, with one peak, long samples, many columns and many key numbers."""
    folder, drawn = tmp_path_factory.mktemp("long"), random.Random(0)
    with (folder / METRICS).open("w") as file:
        for step in range(1, UPDATES + 1):
            values = {name: math.sin(k + step / 2000) + drawn.gauss(0, 0.2) for k, name in enumerate(NAMES)}
            values["grad_norm"] = 77.0 if step == 7777 else 1.0 + drawn.random()
            file.write(json.dumps({"step": step, **values}) + "\n")
    texts = [f"{k} " + "CNO" * 20_000 for k in range(30)]
    Recorder(folder / "other").record_samples(1, {"sample": texts, "reward": [float(k) for k in range(30)]})
    (folder / "other" / "samples.csv.gz").rename(folder / "samples.csv.gz")
    for place in ("before", "after"):
        columns: dict[str, list[Any]] = {
            "scaffold": texts[:20],
            "sample": texts[10:30],
            "reward": [drawn.random() for _ in range(20)],
        }
        columns |= {f"property {k}": [drawn.random() for _ in range(20)] for k in range(60)}
        write_table(folder / f"evaluation_{place}.csv.gz", columns)
    numbers = {f"number {k}": drawn.random() for k in range(5000)}
    write_json(folder / "evaluation.json", {"before": numbers, "after": numbers})
    write_text(folder / "config.yaml", "name: x\n" * 100_000)
    return folder


@pytest.fixture(scope="module")
def report(run: Path) -> str:
    start = time.process_time()
    path = write_report(run, render=lambda text: f"<svg>{text[:1] * 200_000}</svg>")
    assert time.process_time() - start < 30
    return path.read_text("utf-8")


@pytest.mark.slow
def test_the_report_of_ten_thousand_updates_is_small_and_says_what_is_left_out(report: str) -> None:
    text = report
    assert len(text.encode()) < 5e6
    assert "Of 10,000 updates at most 400 are drawn" in text
    for said in ("The first 400 of 5,000 rows.", "The first 100,000 of 800,000 characters.", "The first 40 of 61 columns."):
        assert said in text


@pytest.mark.slow
def test_the_drawn_curves_keep_the_peak(report: str) -> None:
    chart = report[report.index('id="chart-grad"') :]
    curve = re.search(r'class="curve" data-name="[^"]*" d="([^"]*)"', chart)
    domain = re.search(r'data-domain="([^"]*)"', chart)
    assert curve is not None
    assert domain is not None
    points = [tuple(map(float, pair)) for pair in re.findall(r"([-.\d]+),([-.\d]+)", curve[1])]
    x_low, x_high, y_low, y_high, left, right, bottom, top = map(float, domain[1].split())
    x, y = min(points, key=lambda point: point[1])
    assert x_low + (x - left) / (right - left) * (x_high - x_low) == pytest.approx(7777, abs=5)
    assert y_low + (y - bottom) / (top - bottom) * (y_high - y_low) == pytest.approx(77.0, abs=0.5)
    assert len(points) <= 400


def test_scores_in_memory_are_bounded_where_a_file_keeps_them(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.sqlite", most=100)
    keys = [ScoreCache.key("x", str(k), {}) for k in range(450)]
    pairs = {key: float(k) for k, key in enumerate(keys) if key is not None}
    for first in range(0, 450, 50):
        cache.put(dict(list(pairs.items())[first : first + 50]))
        assert len(cache._scores) <= 100
    assert cache.get(list(pairs)) == pairs  # the oldest from the file
    assert len(cache._scores) <= 100
    cache.close()
    alone = ScoreCache(most=100)  # nothing else keeps them
    alone.put(pairs)
    assert alone.get(list(pairs)) == pairs


@pytest.mark.slow
def test_memory_grows_by_the_lines_of_metrics_alone(tmp_path: Path) -> None:
    """An update keeps its line of metrics (``GRPOTrainer.history``) and nothing else: ten thousand of them some 30 MB."""
    config = GRPOConfig(max_steps=200, num_generations=4, generation_batch_size=8, save_steps=20, seed=0)
    with open_ledger(tmp_path / "run", str) as ledger:
        trainer = GRPOTrainer(
            transformer_policy(num_steps=2, layers=1), share_of_class_two, config, run=tmp_path / "run", ledger=ledger
        )

        def updates(count: int) -> int:
            for _ in range(count):
                trainer.update()
            trainer.save()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            before = updates(20)
            grown = (updates(40) - before) / 40
        finally:
            tracemalloc.stop()
    assert len(trainer.history) == 60
    assert grown < 6000
