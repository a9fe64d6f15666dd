"""``optimise``: the method of the benchmark on any reward, what it writes, from Python and from the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.benchmarking.methods import METHODS
from discrete_grpo.cli import main
from discrete_grpo.recipes.grpo_memory import TOKEN_SETTINGS
from discrete_grpo.recipes.memory_methods import TOKENS
from discrete_grpo.recipes.optimise import OptimiseRecipe
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.runs.checkpoint import load_metadata
from discrete_grpo.runs.recorder import read_metrics, read_samples
from tests.benchmarking.parts import OXYGENS
from tests.benchmarking.test_methods import chains
from tests.recipes.optimise_parts import SMALL, carbons, files, oxygens, run


def test_it_is_the_method_of_the_benchmark(tmp_path: Path) -> None:
    found = run(tmp_path / "run", OXYGENS, budget=260)  # the screen is fitted from 200 on
    ledger = Ledger(key=molecule_key, max_oracle_calls=260)
    METHODS["grpo-memory"].run(OXYGENS, chains(), ledger, 3, **TOKEN_SETTINGS | SMALL)
    rows = read_samples(tmp_path / "run" / "samples.csv.gz")
    assert tuple(rows["sample"]) == ledger.history().keys
    assert tuple(rows["source"]) == ledger.history().sources
    assert found.calls == 260
    assert found.sources == ledger.sources()
    assert len(found.sources) == 2


def test_what_is_written(tmp_path: Path) -> None:
    found = run(tmp_path, keep=7)
    scores = [float(score) for score in read_samples(tmp_path / "samples.csv.gz")["reward"]]
    assert [entry.score for entry in found.best] == sorted(scores, reverse=True)[:7]
    table = read_samples(tmp_path / "best.csv.gz")
    assert table["smiles"] == [entry.sample for entry in found.best]
    last = read_metrics(tmp_path)[-1]
    assert last["best/top1"] == max(scores)
    assert last["best/top10"] == pytest.approx(sum(sorted(scores, reverse=True)[:10]) / 10)
    assert last["oracle/calls"] == 120
    told = json.loads((tmp_path / "optimise.json").read_text())
    assert told == {name: getattr(found, name) for name in ("calls", "auc_top10", "rounds", "restarts", "sources")}
    assert "Best so far" in (tmp_path / "report.html").read_text()
    assert load_metadata(tmp_path / "policy")["kind"] == "molecules"
    torch.testing.assert_close(found.auc_top10, _area(scores, 120))


def _area(scores: Sequence[float], budget: int) -> float:
    """Mean over the calls of the mean of the ten best, by trapezoids at every call."""
    means = [0.0] + [sum(top := sorted(scores[:t], reverse=True)[:10]) / len(top) for t in range(1, len(scores) + 1)]
    return sum((a + b) / 2 for a, b in pairwise(means)) / budget


def _rarely(samples: Sequence[str], **columns: Any) -> list[float | None]:
    return [None if len(text) % 2 else 0.25 for text in samples]


def test_several_rewards_are_added_and_kept(tmp_path: Path) -> None:
    warm = tmp_path / "warm.smi"
    warm.write_text("CO\nCCO\n")
    rewards: list[Any] = [oxygens, carbons, _rarely]
    found = run(tmp_path / "run", rewards, budget=30, reward_weights=[1, 2, 0.5], warm_start=str(warm))
    for table, column in (("best.csv.gz", "smiles"), ("samples.csv.gz", "sample")):
        rows = read_samples(tmp_path / "run" / table)
        for k, sample in enumerate(rows[column]):
            parts = [f([sample])[0] for f in rewards]
            written = [rows[f"reward_{name}"][k] for name in ("oxygens", "carbons", "_rarely")]
            assert [float(cell) if cell else None for cell in written] == parts
            total = sum(
                w * (part or 0.0) for w, part in zip([1, 2, 0.5], parts, strict=True)
            )  # unknown counts as 0, as in training
            assert float(rows["reward"][k]) == pytest.approx(total)
    assert len(found.best) == 30
    scores = [entry.score for entry in found.best]
    assert scores == sorted(scores, reverse=True)
    last = read_metrics(tmp_path / "run")[-1]
    latest = read_samples(tmp_path / "run" / "samples.csv.gz")
    cells = [float(x) for x, step in zip(latest["reward_carbons"], latest["step"], strict=True) if step == latest["step"][-1]]
    assert last["rewards/carbons/mean"] == pytest.approx(sum(cells) / len(cells))


def test_a_reward_of_weight_0_is_only_written(tmp_path: Path) -> None:
    alone = run(tmp_path / "alone", budget=60)
    both = run(tmp_path / "both", [oxygens, carbons], budget=60, reward_weights=[1, 0])
    assert [(entry.sample, entry.score) for entry in both.best] == [(entry.sample, entry.score) for entry in alone.best]
    assert both.auc_top10 == alone.auc_top10
    found = run(tmp_path / "tenth", budget=60, reward_weights=[0.1])
    scores = [float(score) for score in read_samples(tmp_path / "tenth" / "samples.csv.gz")["reward"]]
    torch.testing.assert_close(found.auc_top10, _area(scores, 60), rtol=1e-12, atol=0)  # weights are not rounded to float32
    with pytest.raises(ValueError, match=r"^reward_weights: 1 weights, expected one per reward \(2\)$"):
        run(tmp_path / "wrong", [oxygens, carbons], reward_weights=[1])


def test_a_setting_of_the_objective_changes_alone() -> None:
    wanted = TOKEN_SETTINGS["objective"] | {"temperature": 0.01}
    for settings in ({"objective": {"temperature": 0.01}}, {"objective.temperature": 0.01}):
        assert TOKENS.changed(OptimiseRecipe(settings=settings).settings)["objective"] == wanted


def test_the_command_runs_and_a_finished_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["optimise", "--reward=qed", "--max_oracle_calls=24", "--output_dir=run", "--settings={draws: 12, passes: 1, take: 10}"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "run: the best of 24 calls, AUC top-10 0." in told
    before = files(Path("run"))
    assert main(["resume", "run"]) == 0
    assert files(Path("run")) == before
    assert main(words) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert main([*words[:-2], "--output_dir=other", "--settings.drawz=3"]) == 2
    assert "did you mean 'draws'" in capsys.readouterr().err


def test_the_command_leaves_a_config_of_the_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("reward: qed\n")
    assert main(["optimise", "--config=config.yaml", "--output_dir=."]) == 2
    assert "output_dir: . holds a file config.yaml, which would be overwritten" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert Path("config.yaml").read_text() == "reward: qed\n"
