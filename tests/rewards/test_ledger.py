"""The ledger: what counts, what is paid once, the budget, and counts that survive being killed and several processes."""

from __future__ import annotations

import math
import multiprocessing
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.scoring import Accounts, BudgetExhausted, RewardError, score_samples
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.ledger import Ledger, molecule_key, text_key
from discrete_grpo.rewards.molecules import qed, validity
from discrete_grpo.runs.checkpoint import tensors_to_cpu


class Oracle:
    """The length of a text; remembers what it was asked."""

    name = "length"

    def __init__(self, cached_as: str | None = "length") -> None:
        self.cached_as = cached_as
        self.asked: list[Any] = []

    def __call__(self, samples: list[Any], **columns: Any) -> list[float | None]:
        self.asked += samples
        return [None if s == "unknown" else 0.0 if s is None else float(len(s)) for s in samples]


def calls(ledger: Ledger) -> tuple[str, ...]:
    return ledger.history().keys


# -- counting


@pytest.mark.filterwarnings("ignore:reward .* repeats are scored again")  # where a checker of types wraps functions
def test_new_valid_samples_count_once_whatever_their_spelling() -> None:
    ledger = Ledger(key=molecule_key, cache=ScoreCache())
    assert isinstance(ledger, Accounts)
    samples = ["OCC", "CCO", None, "C.C", "not a molecule", "N[C@@H](C)O", "N[C@H](C)O"]
    found = score_samples([qed, validity], samples, ledger=ledger)
    assert torch.equal(found, score_samples([qed, validity], samples))
    assert ledger.calls == 3  # ethanol, and both hands of the other
    assert ledger.metrics() == {"oracle/calls": 3.0}
    ledger.score([qed], ["C(O)C", "CCC"])
    assert ledger.calls == 4
    assert ledger.calls_by_reward() == {"qed": 4, "validity": 3}
    assert not ledger.exhausted


def test_text_counts_as_it_is() -> None:
    assert [text_key(s) for s in ("OCC", None, 3, "\ud800")] == ["OCC", None, "3", "\\ud800"]
    ledger = Ledger(cache=ScoreCache())
    ledger.score([Oracle()], ["OCC", "CCO", None, "", "\ud800"])
    assert calls(ledger) == ("OCC", "CCO", "", "\\ud800")


def test_repeats_are_not_scored_again_and_invalid_ones_are() -> None:
    ledger, oracle = Ledger(cache=ScoreCache()), Oracle()
    assert ledger.score([oracle], ["a", "bb", "a", None]).flatten().tolist() == [1.0, 2.0, 1.0, 0.0]
    assert oracle.asked == ["a", "bb", None]
    assert ledger.score([oracle], ["bb", "ccc", None, "a"]).flatten().tolist() == [2.0, 3.0, 0.0, 1.0]
    assert oracle.asked == ["a", "bb", None, "ccc", None]
    assert ledger.score([oracle], ["a"]).tolist() == [[1.0]]
    assert len(oracle.asked) == 5
    assert ledger.calls == 3


def test_without_a_cache_all_is_scored_and_the_count_is_the_same() -> None:
    ledger, oracle = Ledger(), Oracle()
    ledger.score([oracle], ["a", "bb", "a"])
    ledger.score([oracle], ["a"])
    assert oracle.asked == ["a", "bb", "a", "a"]
    assert ledger.calls == 2


def test_a_reward_that_must_not_be_cached_sees_the_whole_batch() -> None:
    ledger, oracle = Ledger(cache=ScoreCache()), Oracle(cached_as=None)
    for _ in range(2):
        ledger.score([oracle], ["a", "a", None])
    assert oracle.asked == ["a", "a", None] * 2
    assert ledger.calls == 1


def test_a_reward_without_plain_settings_is_told_of() -> None:
    oracle = Oracle("x")
    oracle.cached_as = object()  # type: ignore[assignment]
    ledger = Ledger(cache=ScoreCache())
    with pytest.warns(RuntimeWarning, match="reward length: repeats are scored again"):
        ledger.score([oracle], ["a"])
    ledger.score([oracle], ["a"])  # told once
    assert oracle.asked == ["a", "a"]


def test_conditions_are_part_of_what_is_cached_and_not_of_what_counts() -> None:
    def hits(samples: list[str], *, aim: list[float], **columns: Any) -> list[float]:
        asked.extend(aim)
        return [a - len(s) for s, a in zip(samples, aim, strict=True)]

    asked: list[float] = []
    hits.cached_as = "hits"  # type: ignore[attr-defined]
    ledger = Ledger(cache=ScoreCache())
    batch: dict[str, Sequence[Any]] = {"aim": [5.0, 6.0, 5.0], "scaffold": ["x", "x", "y"]}
    assert ledger.score([hits], ["a", "a", "a"], batch).flatten().tolist() == [4.0, 5.0, 4.0]
    assert (ledger.calls, asked) == (1, [5.0, 6.0, 5.0])
    ledger.score([hits], ["a"], {"aim": [6.0], "scaffold": ["x"]})
    assert ledger.history().scores.tolist() == [[4.0]]  # of the first time
    hits.reads = ("aim",)  # type: ignore[attr-defined]
    ledger.score([hits], ["a", "a", "a"], batch)
    assert asked == [5.0, 6.0, 5.0, 5.0, 6.0]


def test_an_unknown_score_counts_and_is_asked_for_again() -> None:
    ledger, oracle = Ledger(cache=ScoreCache()), Oracle()
    for _ in range(2):
        assert ledger.score([oracle], ["unknown"]).isnan().all()
    assert (ledger.calls, oracle.asked) == (1, ["unknown", "unknown"])
    assert ledger.calls_by_reward() == {"length": 1}


def test_settings_of_a_reward_are_part_of_what_is_cached() -> None:
    cache, first, second = ScoreCache(), Oracle("v1"), Oracle("v2")
    Ledger(cache=cache).score([first], ["a"])
    Ledger(cache=cache).score([second], ["a"])
    assert (first.asked, second.asked) == (["a"], ["a"])


def test_runs_share_scores_and_not_counts(tmp_path: Path) -> None:
    oracle = Oracle()
    one = Ledger(tmp_path / "one.sqlite", cache=ScoreCache(tmp_path / "scores.sqlite"))
    two = Ledger(tmp_path / "two.sqlite", cache=ScoreCache(tmp_path / "scores.sqlite"))
    one.score([oracle], ["a", "bb"])
    assert two.score([oracle], ["bb", "ccc"]).flatten().tolist() == [2.0, 3.0]
    assert oracle.asked == ["a", "bb", "ccc"]
    assert (one.calls, two.calls) == (2, 2)
    one.close()
    two.close()


def test_errors_of_a_reward_come_through_and_cost_the_claim_once() -> None:
    def broken(samples: list[str], **columns: Any) -> list[float]:
        raise KeyError("x")

    ledger = Ledger(cache=ScoreCache())
    for _ in range(2):
        with pytest.raises(RewardError, match="reward broken: raised KeyError"):
            ledger.score([broken], ["a"])
    assert ledger.calls == 1


# -- the budget


def test_what_fits_is_scored_and_the_rest_is_unknown() -> None:
    ledger, oracle = Ledger(max_oracle_calls=3, cache=ScoreCache()), Oracle()
    ledger.score([oracle], ["a", "bb"])
    assert not ledger.exhausted
    assert ledger.metrics() == {"oracle/calls": 2.0, "oracle/left": 1.0}
    found = ledger.score([oracle], ["bb", "ccc", None, "dddd", "ccc", "a"]).flatten()
    assert found.nan_to_num(-1.0).tolist() == [2.0, 3.0, 0.0, -1.0, 3.0, 1.0]
    assert ledger.exhausted
    assert ledger.metrics() == {"oracle/calls": 3.0, "oracle/left": 0.0}
    assert "dddd" not in oracle.asked


def test_after_the_budget_repeats_are_free_and_anything_new_ends_the_run() -> None:
    ledger, oracle = Ledger(max_oracle_calls=2, cache=ScoreCache()), Oracle()
    ledger.score([oracle], ["a", "bb"])
    assert ledger.score([oracle], ["bb", "a", None]).flatten().tolist() == [2.0, 1.0, 0.0]
    with pytest.raises(BudgetExhausted, match="max_oracle_calls: all 2 are used up") as caught:
        ledger.score([oracle], ["bb", "ccc"])
    assert caught.value.scores[0].tolist() == [2.0]
    assert caught.value.scores[1].isnan().all()
    assert ledger.calls == 2
    assert oracle.asked == ["a", "bb", None]


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_budget_of_nothing_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match="max_oracle_calls"):
        Ledger(max_oracle_calls=wrong)


# -- killed and resumed


def batch(turn: int) -> list[str]:
    """What a run draws in a turn: new ones, repeats, invalid ones."""
    drawn = random.Random(turn)
    return [drawn.choice(["", "x", "yy"]) + str(drawn.randrange(30)) for _ in range(8)]


def undisturbed(turns: int, **options: Any) -> tuple[Ledger, list[float], list[Any]]:
    ledger = Ledger(cache=ScoreCache(), **options)
    logged, scores = [], []
    for turn in range(turns):
        scores.append(ledger.score([Oracle()], batch(turn)).tolist())
        logged.append(ledger.metrics()["oracle/calls"])
    return ledger, logged, scores


@pytest.mark.parametrize("where", ["file", "memory"])
@pytest.mark.parametrize("budget", [None, 35])
@pytest.mark.parametrize(("saved", "killed"), [(2, 5), (0, 3), (4, 4), (1, 2)])
def test_a_killed_run_counts_like_one_that_was_not(tmp_path: Path, where: str, budget: int | None, saved: int, killed: int) -> None:
    path = tmp_path / "ledger.sqlite" if where == "file" else None
    turns = 6 if budget is None else undisturbed_until_exhausted(budget)
    assert turns >= 5
    plain, logged, scores = undisturbed(turns, max_oracle_calls=budget)

    first = Ledger(path, max_oracle_calls=budget, cache=ScoreCache())
    state = tensors_to_cpu(first.state_dict())
    for turn in range(killed):
        first.score([Oracle()], batch(turn))
        if turn + 1 == saved:
            state = tensors_to_cpu(first.state_dict())
    first.close()  # killed: what the checkpoint does not know stands in the file only

    torch.save(state, tmp_path / "training.pt")
    again = Ledger(path, max_oracle_calls=budget, cache=ScoreCache())
    again.load_state_dict(torch.load(tmp_path / "training.pt", weights_only=True))
    for turn in range(saved, turns):
        assert not again.exhausted
        assert again.score([Oracle()], batch(turn)).nan_to_num(-1).tolist() == torch.tensor(scores[turn]).nan_to_num(-1).tolist()
        assert again.metrics()["oracle/calls"] == logged[turn]
    assert again.exhausted == (budget is not None)
    assert again.calls == plain.calls
    ours, theirs = again.history(), plain.history()
    assert (ours.keys, ours.names) == (theirs.keys, theirs.names)
    assert torch.equal(ours.scores, theirs.scores)
    again.close()


def undisturbed_until_exhausted(budget: int) -> int:
    ledger = Ledger(max_oracle_calls=budget)
    while not ledger.exhausted:
        ledger.score([Oracle()], batch(ledger.turn))
    return ledger.turn


def test_a_resumed_run_does_not_pay_again_where_it_goes_other_ways(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    first = Ledger(path, max_oracle_calls=3)
    first.score([Oracle()], ["a"])
    state = first.state_dict()
    first.score([Oracle()], ["b", "c"])
    first.close()
    again = Ledger(path, max_oracle_calls=3)
    again.load_state_dict(state)
    assert again.score([Oracle()], ["d", "c"]).flatten().nan_to_num(-1).tolist() == [-1.0, 1.0]  # the third call was b's
    assert again.calls == 3
    assert again.exhausted
    again.close()


def test_the_checkpoint_restores_a_lost_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    first = Ledger(path)
    first.score([Oracle()], ["a", "unknown"])
    state = first.state_dict()
    first.close()
    path.write_bytes(b"garbage" * 1000)
    with pytest.warns(RuntimeWarning, match="damaged"):
        again = Ledger(path)
    again.load_state_dict(state)
    assert calls(again) == ("a", "unknown")
    assert again.calls_by_reward() == {"length": 2}
    assert again.history().scores[0].tolist() == [1.0]
    again.close()


@pytest.mark.parametrize("change", ["turn = 7", "key = 'other'", "checksum = x''", "position = 'x'"])
def test_a_damaged_call_is_left_out_with_a_warning(tmp_path: Path, change: str) -> None:
    path = tmp_path / "ledger.sqlite"
    first = Ledger(path)
    first.score([Oracle()], ["a", "bb"])
    state = first.state_dict()
    first.close()
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE calls SET {change} WHERE key = 'a'")
    connection.execute("UPDATE scores SET value = 9.0 WHERE key = 'bb'")
    connection.commit()
    connection.close()
    with pytest.warns(RuntimeWarning, match="2 damaged rows were left out"):
        again = Ledger(path)
    again.load_state_dict(state)
    assert calls(again) == ("a", "bb")
    assert again.history().scores.flatten().tolist() == [1.0, 2.0]
    again.close()


def test_a_file_that_cannot_be_written_stops_the_scoring(tmp_path: Path) -> None:
    ledger, oracle = Ledger(tmp_path / "ledger.sqlite"), Oracle()
    ledger._file._connection.execute("PRAGMA max_page_count = 4")  # a full disk
    with pytest.raises(RewardError, match=r"^ledger: .*ledger\.sqlite: database or disk is full"):
        ledger.score([oracle], [str(k) for k in range(3000)])
    assert oracle.asked == []
    ledger.close()


# -- several processes


def rank_batch(rank: int, turn: int) -> list[str]:
    own = [f"shared-{turn}", f"{rank}-{turn}", "0-0", f"shared-{turn // 2}"]
    return own if rank == 0 else [own[1], own[0], *own[2:]]


def run_rank(path: Path, rank: int, budget: int | None) -> None:
    ledger = Ledger(path, max_oracle_calls=budget, rank=rank)
    for turn in range(20):
        try:
            ledger.score([Oracle()], rank_batch(rank, turn))
        except BudgetExhausted:
            break
    ledger.close()


@pytest.mark.parametrize("budget", [None, 30])
def test_two_processes_share_one_count(tmp_path: Path, budget: int | None) -> None:
    path = tmp_path / "ledger.sqlite"
    child = multiprocessing.get_context("fork").Process(target=run_rank, args=(path, 1, budget))
    child.start()
    run_rank(path, 0, budget)
    child.join(60)
    assert child.exitcode == 0
    ledger = Ledger(path)
    ledger.catch_up()
    everything = {s for rank in (0, 1) for turn in range(20) for s in rank_batch(rank, turn)}
    assert ledger.calls == (len(everything) if budget is None else budget)
    if budget is None:  # the order does not say who was faster
        wanted = [s for turn in range(20) for rank in (0, 1) for s in rank_batch(rank, turn)]
        assert calls(ledger) == tuple(dict.fromkeys(wanted))
    ledger.close()


def test_a_process_that_sits_out_keeps_step(tmp_path: Path) -> None:
    zero, one = (Ledger(tmp_path / "ledger.sqlite", rank=rank) for rank in (0, 1))
    zero.score([Oracle()], ["evaluation"])
    one.skip()
    one.score([Oracle()], ["second"])
    zero.score([Oracle()], ["first"])
    assert calls(zero) == calls(one) == ("evaluation", "first", "second")
    zero.close()
    one.close()


# -- the audit


@pytest.mark.filterwarnings("ignore:reward .* repeats are scored again")
def test_the_count_is_the_number_of_different_molecules() -> None:
    drawn = random.Random(0)
    pool = ["CCO", "OCC", "C(C)O", "c1ccccc1", "C1=CC=CC=C1", "CC(C)C", "C.C", "[Na+].[Cl-]", "x", None, "CN", "NC", "CS"]
    ledger, seen = Ledger(key=molecule_key, cache=ScoreCache()), []
    for _ in range(20):
        samples = [drawn.choice(pool) for _ in range(7)]
        ledger.score([qed, validity], samples)
        seen += samples
    assert ledger.calls == len({molecule_key(s) for s in seen} - {None}) == 5
    assert calls(ledger) == tuple(dict.fromkeys(k for k in map(molecule_key, seen) if k is not None))


def test_one_sample_or_one_reward_in_place_of_a_list_is_refused() -> None:
    ledger, oracle = Ledger(), Oracle()
    with pytest.raises(ValueError, match=r"^samples: 'CCO', expected a list of samples, such as \['CCO'\]$"):
        ledger.score([oracle], "CCO")
    with pytest.raises(ValueError, match=r"^rewards: .*, expected a list of rewards, such as \["):
        ledger.score(oracle, ["CCO"])  # type: ignore[arg-type]
    assert ledger.calls == 0


def test_of_equal_samples_in_a_batch_the_first_known_score_is_kept() -> None:
    def places(samples: Sequence[Any], **columns: Any) -> list[float | None]:
        return [None if place == 0 else float(place) for place in range(len(samples))]

    ledger = Ledger()
    assert ledger.score([places], ["a", "b", "a", "b", "a"])[1:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert ledger.history().of("places") == [2.0, 1.0]


@pytest.mark.parametrize("stored", [False, True])
def test_a_score_that_was_unknown_is_recorded_once_it_is_known(tmp_path: Path, stored: bool) -> None:
    answers = iter([None, 0.5, 0.25])
    ledger = Ledger(tmp_path / "ledger.sqlite" if stored else None)

    def flaky(samples: list[str], **columns: Any) -> list[float | None]:
        return [next(answers) for _ in samples]

    assert math.isnan(ledger.score([flaky], ["a"]).item())
    ledger.score([flaky], ["a"])
    ledger.score([flaky], ["a"])  # the first known value is kept
    assert ledger.calls == 1
    assert ledger.history().of("flaky") == [0.5]
    ledger.close()
