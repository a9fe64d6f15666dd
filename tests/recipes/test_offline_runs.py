"""Runs that begin with measured scores: no calls, weights handed over to on-line training, resume, and rows that cannot be used."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from discrete_grpo import train
from discrete_grpo.core.scoring import RewardError
from discrete_grpo.policies.options import with_options
from discrete_grpo.policies.surrogate import EagerLikelihood, ElboLikelihood
from discrete_grpo.recipes.offline import OfflineOptions, offline_likelihood, scored_samples
from discrete_grpo.recipes.train import TrainRecipe
from discrete_grpo.rewards.ledger import Ledger, molecule_key, text_key
from discrete_grpo.runs.checkpoint import Checkpoints, load_training, read_policy
from discrete_grpo.runs.recorder import read_evaluation, read_metrics, read_samples
from discrete_grpo.training import offline
from discrete_grpo.training.config import GRPOConfig
from tests.letters import Worth, letters_policy, texts, worth
from tests.toys import tiny_policy

GRPO = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, learning_rate=1e-2, beta=0.1, save_steps=1)
WORDS = [text for text in texts() if text]


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table of all words and their worth."""
    path = tmp_path / "scored.csv"
    path.write_text("text,y,half\n" + "".join(f"{t},{worth(t)!r},{k % 2}\n" for k, t in enumerate(WORDS)), encoding="utf-8")
    return str(path)


def run(folder: Path, table: str | None, reward: Any = None, **settings: Any) -> Any:
    given = {"data": table, "score_column": "y", "offline_steps": 3} if table is not None else {}
    options: dict[str, Any] = {"grpo": GRPO, "evaluation_samples": 8} | given | settings
    return train(letters_policy(), Worth() if reward is None else reward, output_dir=folder, **options)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_policy(folder, trusted=("discrete_grpo", "tests")).state_dict()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(x, b[name]) for name, x in a.items())


def test_on_line_training_begins_with_the_off_line_weights_and_the_phase_makes_no_call(tmp_path: Path, table: str) -> None:
    reward = Worth()
    run(tmp_path / "run", table, reward, grpo=replace(GRPO, ema_decay=0.9, patience=5, when_stale="restart", save_total_limit=9))
    last = load_training(Checkpoints(tmp_path / "run" / "offline").latest())["weights"]
    first = load_training(Checkpoints(tmp_path / "run").all()[0])
    assert not same(last, letters_policy().state_dict())
    assert same(last, first["weights"])
    assert same(last, first["reference"])
    assert all(torch.equal(x, first["average"][f"module.{name}"]) for name, x in last.items())
    assert [torch.equal(a, b) for a, b in zip(first["patience"]["first"], last.values(), strict=True)] == [True] * len(last)
    assert len(read_metrics(tmp_path / "run" / "offline")) == 3
    plain = tmp_path / "plain"
    asked = Worth()
    run(plain, None, asked)
    before = read_samples(tmp_path / "run" / "evaluation_before.csv.gz")
    assert before == read_samples(plain / "evaluation_before.csv.gz")  # of the policy as it was given
    ledger = Ledger(tmp_path / "run" / "ledger.sqlite")
    ledger.catch_up()
    tables = [before, *(read_samples(tmp_path / "run" / f"{name}.csv.gz") for name in ("samples", "evaluation_after"))]
    assert set(reward.asked) == {text for found in tables for text in found["sample"]}
    assert ledger.calls == len(set(reward.asked))
    ledger.close()


@pytest.mark.parametrize("phase", ["offline", "online"])
def test_a_stopped_run_is_resumed_to_the_same_bits_without_its_table(
    phase: str, tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "whole", table, group_column="half")
    update, made = offline.OfflineTrainer.update, []

    def killed(self: Any) -> Any:
        made.append(1)
        if phase == "offline" and len(made) == 3:
            raise MemoryError
        return update(self)

    class Failing(Worth):
        __qualname__ = "Worth"

        def __call__(self, samples: Sequence[str], **columns: Any) -> list[float]:
            if phase == "online" and len(self.asked) > 8:
                raise OSError("away")
            return super().__call__(samples, **columns)

    Failing.__name__ = "Worth"
    with monkeypatch.context() as patched:
        patched.setattr(offline.OfflineTrainer, "update", killed)
        with pytest.raises((MemoryError, RewardError)):
            run(tmp_path / "part", table, Failing(), group_column="half")
    Path(table).unlink()
    run(tmp_path / "part", table, group_column="half", resume=True)
    assert same(weights(tmp_path / "whole" / "policy"), weights(tmp_path / "part" / "policy"))
    assert read_evaluation(tmp_path / "whole") == read_evaluation(tmp_path / "part")
    assert (tmp_path / "whole" / "samples.csv.gz").read_bytes() == (tmp_path / "part" / "samples.csv.gz").read_bytes()
    times = [{k: v for k, v in line.items() if k != "step_time"} for line in read_metrics(tmp_path / "part" / "offline")]
    assert times == [{k: v for k, v in line.items() if k != "step_time"} for line in read_metrics(tmp_path / "whole" / "offline")]


def test_without_rewards_a_run_ends_after_the_off_line_updates(tmp_path: Path, table: str) -> None:
    run(tmp_path / "run", table, [])
    kept = load_training(Checkpoints(tmp_path / "run" / "offline").latest())["weights"]
    assert same(weights(tmp_path / "run" / "policy"), kept)
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert (tmp_path / "run" / "report.html").is_file()
    ledger = Ledger(tmp_path / "run" / "ledger.sqlite")
    ledger.catch_up()
    assert ledger.calls == 0
    ledger.close()
    with pytest.raises(ValueError, match=r"holds results of another run .*offline"):
        run(tmp_path / "run", table, [])


# -- rows


def options(path: Path, **given: Any) -> OfflineOptions:
    return OfflineOptions(data=str(path), score_column="y", **given)


@pytest.mark.parametrize("loss_type", ["dapo", "sapo"])
def test_a_loss_without_a_bound_is_told(tmp_path: Path, table: str, loss_type: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", table, reward=[], grpo=replace(GRPO, loss_type=loss_type))
    assert ("loss_type: sapo bounds no ratio" in capsys.readouterr().err) == (loss_type == "sapo")


def test_rows_that_cannot_be_used_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scored.csv"
    path.write_text("text,y,set\nab,1,p\nxyz,2,p\nabc,,p\nc,3,q\nabca,4,p\nb,5,p\n", encoding="utf-8")
    found = scored_samples(options(path, group_column="set"), letters_policy(), text_key, tmp_path)
    assert (found.samples, found.scores.tolist()) == (("ab", "c", "b"), [1, 3, 5])
    assert found.groups is not None
    assert found.groups.tolist() == [0, 1, 0]
    said = capsys.readouterr().err
    assert "3 samples; left out: 1 without a score, 2 that the policy cannot draw (line 3: 'xyz')" in said
    assert "group_column set: 1 group has a single row and no signal: 'q'" in said
    path.unlink()
    again = scored_samples(options(path, group_column="set"), letters_policy(), text_key, tmp_path, resume=True)
    assert (again.samples, again.scores.tolist(), again.groups.tolist()) == (found.samples, [1, 3, 5], [0, 1, 0])  # type: ignore[union-attr]


def test_salts_and_samples_of_different_scores_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("smiles,y,g\nCCN.Cl,1,a\nOCC,2,a\nCCO,3,a\nCCO,3,b\nC(,1,a\nCCC,1,a\nCCC,2,b\n", encoding="utf-8")
    policy = SimpleNamespace(rollout_of=None, can_draw=lambda text: True)
    scored_samples(options(path), policy, molecule_key, tmp_path / "alone")
    said = capsys.readouterr().err
    assert "1 of those left out have several fragments" in said
    assert "2 samples have different scores in several rows, which are all learned from ('CCO': 2, 3)" in said
    scored_samples(options(path, group_column="g"), policy, molecule_key, tmp_path / "groups")
    assert "1 sample has different scores in several rows" in capsys.readouterr().err


def test_a_sample_is_taken_in_canonical_form(tmp_path: Path) -> None:
    path = tmp_path / "scored.csv"
    path.write_text("text,y\nba,1\ncb,2\nxx,3\n", encoding="utf-8")

    def key(text: str) -> str | None:
        return {"ba": "ab", "cb": "unknown letters", "xx": None}[text]

    assert scored_samples(options(path), letters_policy(), key, tmp_path).samples == ("ab", "cb")


def test_a_table_of_samples_that_the_policy_cannot_draw_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scored.csv"
    path.write_text("text,y\nxyz,1\nuvw,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"has 2 samples, none of which the policy can draw \(line 2: 'xyz'\)"):
        scored_samples(options(path), letters_policy(), text_key, tmp_path)
    with pytest.raises(ValueError, match="Linear cannot learn from any sample"):
        scored_samples(options(path), torch.nn.Linear(1, 1), text_key, tmp_path)
    assert not (tmp_path / "scored.csv.gz").exists()


# -- settings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"score_column": "y"}, "score_column: 'y', expected none without data"),
        ({"offline_likelihood": "elbo"}, "offline_likelihood: 'elbo', expected none without data"),
        ({"data": "scored.csv"}, "score_column: None, expected the name"),
        ({"data": "scored.csv", "score_column": "y", "offline_steps": 0}, "offline_steps: 0, expected at least 1"),
        ({"data": "scored.csv", "score_column": "y", "columns": [{"a": 1}]}, "columns: .*expected none with data"),
        ({"data": "scored.csv", "score_column": "y", "scaffold": "C"}, "scaffold: 'C', expected none with data"),
        ({"reward": []}, "reward: an empty list, expected at least one reward, or data"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainRecipe(**given)


def test_the_likelihood_shares_the_weights_and_is_that_of_clean_classes_for_a_graph_policy() -> None:
    policy = tiny_policy()
    eager, elbo = offline_likelihood(policy, None), offline_likelihood(policy, "elbo", 4)
    assert isinstance(eager, EagerLikelihood)
    assert isinstance(elbo, ElboLikelihood)
    assert eager.policy is elbo.policy is policy
    assert elbo.draws == 4
    assert offline_likelihood(policy, "transition") is policy
    own = with_options(policy, "elbo")
    assert offline_likelihood(own, None) is own
    assert isinstance(offline_likelihood(own, "eager"), EagerLikelihood)
    letters = letters_policy()
    assert offline_likelihood(letters, None) is letters
    sized = with_options(copy.deepcopy(policy), node_count="learned")
    assert offline_likelihood(sized, None) is sized
    for other in (letters, sized):
        with pytest.raises(ValueError, match="offline_likelihood: 'elbo', expected none"):
            offline_likelihood(other, "elbo")
