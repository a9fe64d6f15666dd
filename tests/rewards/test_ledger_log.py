"""Counters and log of a ledger: they say what a scan would, checkpoints stay small, and damaged or old files come back whole."""

from __future__ import annotations

import contextlib
import io
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.scoring import BudgetExhausted
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.rewards.ledger_log import LedgerLog
from discrete_grpo.rewards.ledger_rows import row_checksum
from tests.rewards.test_ledger_sources import OLD


def length(samples: list[Any], **columns: Any) -> list[float | None]:
    return [None if "?" in s else float(len(s)) / 3 for s in samples]


def ledger_at(path: Path | None, **options: Any) -> Ledger:
    return Ledger(path, **options)


def sql(path: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(path)
    with connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found


def content(ledger: Ledger) -> tuple[Any, ...]:
    found = ledger.history()
    return found.keys, found.names, found.scores.nan_to_num(-1).tolist(), found.sources


@pytest.mark.parametrize("budget", [None, 60])
def test_counters_say_what_a_scan_says_whoever_is_first(tmp_path: Path, budget: int | None) -> None:
    """Two processes out of step, which go back to earlier turns as resumed ones do."""
    drawn = random.Random(budget)
    both = [Ledger(tmp_path / "ledger.sqlite", rank=rank, max_oracle_calls=budget) for rank in (0, 1)]
    for _ in range(60):
        one = drawn.choice(both)
        one.turn = max(0, one.turn - drawn.choice([0, 0, 0, 1, 7]))
        with contextlib.suppress(BudgetExhausted):
            one.score([length], [str(drawn.randrange(150)) for _ in range(5)])
        for ledger in both:
            ((counted,),) = sql(tmp_path / "ledger.sqlite", f"SELECT COUNT(*) FROM calls WHERE turn <= {ledger.turn}")
            assert ledger.calls == counted
    ((total,),) = sql(tmp_path / "ledger.sqlite", "SELECT COUNT(*) FROM calls")
    assert total == budget if budget is not None else total > 100
    for ledger in both:
        ledger.close()


def test_a_checkpoint_does_not_grow_with_the_calls(tmp_path: Path) -> None:
    ledger, sizes = ledger_at(tmp_path / "ledger.sqlite"), []
    for turn in range(3):
        ledger.score([length], [f"{turn}-{k}" for k in range(500)])
        file = io.BytesIO()
        torch.save(ledger.state_dict(), file)
        sizes.append(len(file.getvalue()))
    assert max(sizes) - min(sizes) < 64
    assert ledger.state_dict(1) == {"turn": 1, "calls": 500, "scored": 1500, "cache": None}


def test_a_lost_file_comes_back_from_the_log_beyond_the_checkpoint_too(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = ledger_at(path, max_oracle_calls=5)
    ledger.score([length], ["a", "bb", "?"], source=["policy", "", "é"])
    state = ledger.state_dict()
    ledger.score([length], ["dddd", "a"])
    whole = content(ledger)
    ledger.close()
    path.unlink()
    again = ledger_at(path, max_oracle_calls=5)
    again.load_state_dict(state)
    assert again.calls == 3
    again.score([length], ["new", "ne"])  # the call of turn 2 was paid for, so one is left
    assert again.score([length], ["dddd"]).tolist() == [[4 / 3]]
    assert again.calls == 5
    again.close()
    read = ledger_at(path)
    read.catch_up()
    assert set(content(read)[0]) == {*whole[0], "new"}
    read.close()


def test_calls_that_are_in_neither_file_stop_the_run(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = ledger_at(path)
    ledger.score([length], ["a", "bb"])
    state = ledger.state_dict()
    ledger.close()
    for file in tmp_path.iterdir():
        file.unlink()
    for where, named in ((path, "ledger.sqlite and its log"), (None, "a ledger in memory")):
        again = ledger_at(where)
        with pytest.raises(
            ValueError, match=f"^ledger: 0 calls in .*{named}, expected at least the 2 that the checkpoint has seen"
        ):
            again.load_state_dict(state)
        again.close()


def test_lost_scores_come_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = ledger_at(path)
    ledger.score([length], ["a", "bb", "?"])
    whole, state = content(ledger), ledger.state_dict()
    ledger.close()
    sql(path, "DELETE FROM scores WHERE key = 'bb'")
    again = ledger_at(path)  # each of its rows is sound
    again.load_state_dict(state)
    assert content(again) == whole
    again.close()


def test_torn_and_damaged_lines_of_the_log_are_left_out(tmp_path: Path) -> None:
    path, log = tmp_path / "ledger.sqlite", tmp_path / "ledger.sqlite.log"
    ledger = ledger_at(path)
    for name in ("a", "bb", "ccc"):
        ledger.score([length], [name])
    ledger.close()
    text = log.read_bytes()
    log.write_bytes(text.replace(b'"bb",2', b'"bb",1') + b'\n00000000 {"calls":[["x",1')
    ledger = ledger_at(path)
    ledger.catch_up()
    ledger.score([length], ["dddd"])  # behind the torn line
    ledger.close()
    path.unlink()
    again = ledger_at(path)
    again.load_state_dict({"turn": 4, "calls": 3, "scored": 3, "cache": None})
    assert content(again)[0] == ("a", "ccc", "dddd")
    again.close()


def test_a_new_ledger_does_not_take_the_log_of_one_that_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    for name in ("old", "new"):
        ledger = ledger_at(path)
        ledger.score([length], [name])
        state = ledger.state_dict()
        ledger.close()
        path.unlink()
    again = ledger_at(path)
    again.load_state_dict(state)
    assert content(again)[0] == ("new",)
    again.close()


@pytest.mark.parametrize(
    "change", ["UPDATE counts SET calls = 7", "DELETE FROM counts", "UPDATE counts SET turn = 9 WHERE turn = 1"]
)
def test_counts_that_are_not_those_of_the_calls_are_made_anew(tmp_path: Path, change: str) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = ledger_at(path)
    for name in ("a", "bb", "ccc"):
        ledger.score([length], [name])
    ledger.close()
    sql(path, change)
    again = ledger_at(path)  # no row is damaged, so nothing is said
    for turn in range(4):
        again.turn = turn
        assert again.calls == turn
    again.close()


@pytest.mark.parametrize("change", ["position = 'x'", "turn = turn + 4294967296.5", "rank = NULL", "key = x'61'", "source = NULL"])
def test_values_of_another_type_are_damage(tmp_path: Path, change: str) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = ledger_at(path)
    ledger.score([length], ["a", "bb"], source="policy")
    ledger.close()
    sql(path, f"UPDATE calls SET {change} WHERE key = 'a'")
    with pytest.warns(RuntimeWarning, match="1 damaged rows were left out"):
        again = ledger_at(path)
    again.catch_up()
    assert content(again)[0] == ("bb",)
    again.close()


@pytest.mark.parametrize("value", [0.0, 1 / 3, -1e300, 5e-324, -0.1, 2.0**61, None])
def test_the_checksum_of_a_score_is_the_one_that_sqlite_computes(tmp_path: Path, value: float | None) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = ledger_at(path)
    ledger.score([lambda samples, **_: [value] * len(samples)], ["a", "é\0?"], source="ü")
    whole = content(ledger)
    ledger.close()
    again = ledger_at(path)  # no warning
    again.catch_up()
    assert content(again) == whole
    again.close()
    sql(path, "UPDATE scores SET value = 0.5 * COALESCE(value, 2.0) + 0.25 WHERE key = 'a'")
    with pytest.warns(RuntimeWarning, match="1 damaged rows were left out"):
        ledger_at(path).close()


def old_version(path: Path, samples: list[str]) -> dict[str, Any]:
    """A ledger and its checkpoint as the version before wrote them: no counts, BLAKE2b checksums, all calls in the checkpoint."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"CREATE TABLE calls ({OLD['calls']}, source TEXT) WITHOUT ROWID")
        connection.execute(f"CREATE TABLE scores ({OLD['scores']}) WITHOUT ROWID")
        for k, key in enumerate(samples):
            value = float(len(key)) / 3
            connection.execute("INSERT INTO calls VALUES (?, 1, 0, ?, ?, 'policy')", (key, k, row_checksum(key, 1, 0, k, "policy")))
            connection.execute("INSERT INTO scores VALUES ('length', ?, ?, ?)", (key, value, row_checksum("length", key, value)))
    connection.close()
    return {
        "turn": 1,
        "keys": samples,
        "when": torch.tensor([[1, 0, k] for k in range(len(samples))]),
        "sources": ["policy"] * len(samples),
        "scores": {"length": torch.tensor([len(key) / 3 for key in samples], dtype=torch.float64)},
        "asked": {"length": torch.ones(len(samples), dtype=torch.bool)},
        "cache": None,
    }


@pytest.mark.parametrize("lost", [False, True])
def test_old_ledgers_and_old_checkpoints_go_on(tmp_path: Path, lost: bool) -> None:
    path, samples = tmp_path / "ledger.sqlite", ["a", "bb", "caf\u00e9", "nul\0nul"]
    state = old_version(path, samples)
    if lost:
        path.unlink()
    ledger = ledger_at(path)
    ledger.load_state_dict(state)
    ledger.score([length], ["a", "new"])
    assert ledger.calls == 5
    whole, state = content(ledger), ledger.state_dict()
    assert whole[0] == (*samples, "new")
    ledger.close()
    ledger_at(path).close()  # with checksums of this version: no warning
    path.unlink()
    again = ledger_at(path)
    again.load_state_dict(state)  # what the old file held is in the log
    assert content(again) == whole
    again.close()


def test_a_file_with_a_damaged_page_is_restored_from_the_log(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = ledger_at(path)
    ledger.score([length], [f"sample {k}" for k in range(3000)])
    whole, state = content(ledger), ledger.state_dict()
    ledger.close()
    with path.open("r+b") as file:
        file.seek(4096 * 20)
        file.write(b"\xff" * 4096)
    with pytest.warns(RuntimeWarning, match="damaged"):
        again = ledger_at(path)
    again.load_state_dict(state)
    assert content(again) == whole
    again.close()


def test_of_very_many_rows_at_once_all_are_in_the_log(tmp_path: Path) -> None:
    path, samples = tmp_path / "ledger.sqlite", [str(k) for k in range(10_001)]

    def number(texts: list[str], **columns: Any) -> list[float]:
        return [float(text) for text in texts]

    ledger = Ledger(path)
    ledger.score([number], samples)
    state = ledger.state_dict()
    ledger.close()
    for file in tmp_path.glob("ledger.sqlite*"):
        if file.suffix != ".log":
            file.unlink()
    again = Ledger(path)
    again.load_state_dict(state)
    assert again.calls == len(samples)
    assert again.history().of("number") == [float(text) for text in samples]
    again.close()


def test_the_log_is_on_the_disk_before_a_checkpoint_counts_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(LedgerLog, "sync", lambda log: synced.append(log.path))
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.score([lambda samples, **columns: [0.0] * len(samples)], ["a"])
    ledger.state_dict()
    assert synced == [tmp_path / "ledger.sqlite.log"]
    ledger.close()
