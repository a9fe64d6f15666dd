"""Where each call of a ledger came from: kept in its file and its checkpoints, and absent in files of older versions."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.rewards.ledger_rows import row_checksum

OLD = {
    "calls": "key TEXT PRIMARY KEY, turn INTEGER, rank INTEGER, position INTEGER, checksum BLOB",
    "scores": "reward TEXT, key TEXT, value REAL, checksum BLOB, PRIMARY KEY (reward, key)",
}


def length(samples: list[Any], **columns: Any) -> list[float]:
    return [0.0 if s is None else float(len(s)) for s in samples]


def old_file(path: Path) -> None:
    """A ledger as versions wrote it that kept no sources."""
    with sqlite3.connect(path) as connection:
        for name, columns in OLD.items():
            connection.execute(f"CREATE TABLE {name} ({columns}) WITHOUT ROWID")
        connection.execute("INSERT INTO calls VALUES ('a', 1, 0, 0, ?)", (row_checksum("a", 1, 0, 0),))
        connection.execute("INSERT INTO scores VALUES ('length', 'a', 1.0, ?)", (row_checksum("length", "a", 1.0),))
    connection.close()


def test_each_call_keeps_the_source_of_its_first_time(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", max_oracle_calls=4)
    ledger.score([length], ["a", "b"], source="policy")
    ledger.score([length], ["b", "c", "c", None], source=["children", "children", "policy", "policy"])
    ledger.score([length], ["d", "e"])
    assert ledger.history().keys == ("a", "b", "c", "d")
    assert ledger.history().sources == ("policy", "policy", "children", "")
    assert ledger.sources() == {"": 1, "children": 1, "policy": 2}
    assert (ledger.asked, ledger.invalid) == (8, 1)
    with pytest.raises(ValueError, match="source: 1 texts, expected one or one per sample \\(2\\)"):
        ledger.score([length], ["f", "g"], source=["policy"])
    ledger.close()
    again = Ledger(tmp_path / "ledger.sqlite")
    again.catch_up()
    assert again.sources() == {"": 1, "children": 1, "policy": 2}


def test_an_earlier_turn_of_another_process_brings_its_source(tmp_path: Path) -> None:
    first, second = (Ledger(tmp_path / "ledger.sqlite", rank=rank) for rank in (0, 1))
    second.score([length], ["a"], source="second")
    first.score([length], ["a"], source="first")
    assert first.history().sources == ("first",)


def test_a_checkpoint_keeps_sources_and_one_without_them_is_read() -> None:
    ledger = Ledger()
    ledger.score([length], ["a"], source="policy")
    state = ledger.state_dict()
    for sources, expected in ((["policy"], ("policy",)), (None, ("",))):
        kept = {name: value for name, value in state.items() if name != "sources"} | ({"sources": sources} if sources else {})
        again = Ledger()
        again.load_state_dict(kept)
        assert again.history().sources == expected
        assert again.calls == 1


def test_a_file_of_an_older_version_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    old_file(path)
    ledger = Ledger(path)
    ledger.catch_up()
    ledger.score([length], ["a", "b"], source="policy")
    assert ledger.history().keys == ("a", "b")
    assert ledger.history().scores.flatten().tolist() == [1.0, 1.0]
    assert ledger.sources() == {"": 1, "policy": 1}
    ledger.close()
    assert Ledger(path).calls_by_reward() == {}  # before catching up, with no row lost
    assert [p.name for p in tmp_path.glob("*damaged*")] == []


def test_a_changed_source_is_a_damaged_row(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.score([length], ["a", "b"], source="policy")
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
        connection.execute("UPDATE calls SET source = 'children' WHERE key = 'a'")
    connection.close()
    with pytest.warns(RuntimeWarning, match="1 damaged rows"):
        again = Ledger(tmp_path / "ledger.sqlite")
    again.catch_up()
    assert again.history().keys == ("b",)


def test_an_old_file_with_a_stranger_in_it_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    old_file(path)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON calls BEGIN DELETE FROM scores; END")
    connection.close()
    with pytest.warns(RuntimeWarning, match="moved to ledger.sqlite.damaged"):
        ledger = Ledger(path)
    assert ledger.calls == 0
