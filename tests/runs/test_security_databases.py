"""Databases of strangers: no trigger, no pickle in a row and no statement of a file does anything."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.ledger import Ledger, open_ledger
from tests.runs.traps import Trap


def sql(path: Path, *statements: str, values: tuple[Any, ...] = ()) -> None:
    connection = sqlite3.connect(path)
    try:
        for statement in statements:
            connection.execute(statement, values)
        connection.commit()
    finally:
        connection.close()


def test_a_trigger_cannot_hide_behind_the_name_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    connection = sqlite3.connect(path)
    kept = dict(connection.execute("SELECT name, sql FROM sqlite_master").fetchall())
    connection.execute("DROP TABLE scores")
    connection.execute("CREATE TRIGGER scores AFTER INSERT ON calls BEGIN DELETE FROM calls; END")
    connection.execute(kept["scores"])
    assert dict(connection.execute("SELECT name, sql FROM sqlite_master").fetchall()) == kept, "by names it cannot be seen"
    connection.commit()
    connection.close()
    with pytest.warns(RuntimeWarning, match="damaged"):
        ledger = Ledger(path)
    ledger.score([lambda samples, **columns: [1.0] * len(samples)], ["a", "b"])
    assert ledger.calls == 2


@pytest.mark.parametrize("make", [lambda path: ScoreCache(path), lambda path: Ledger(path)], ids=["cache", "ledger"])
def test_a_file_that_is_no_database(tmp_path: Path, canary: Path, make: Callable[[Path], Any]) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(pickle.dumps(Trap(canary)))
    with pytest.raises(ValueError, match=r"^path: .*x\.sqlite is no database, expected "):
        make(path)
    assert path.read_bytes() == pickle.dumps(Trap(canary))


@pytest.mark.parametrize("name", ["ledger", "scores"])
def test_a_file_of_a_run_folder_that_is_no_database(tmp_path: Path, canary: Path, name: str) -> None:
    (tmp_path / f"{name}.sqlite").write_bytes(pickle.dumps(Trap(canary)))
    with pytest.warns(RuntimeWarning, match="damaged"), open_ledger(tmp_path, str):
        pass
    assert [p.name for p in tmp_path.glob("*.damaged-*")]


@pytest.mark.parametrize("blob", ["value", "checksum", "id"])
def test_pickles_in_the_rows_of_the_cache(tmp_path: Path, canary: Path, blob: str) -> None:
    path = tmp_path / "c.sqlite"
    key = ScoreCache.key("reward", "C", {})
    assert key is not None
    ScoreCache(path).close()
    row: dict[str, Any] = {"id": key, "value": 0.5, "checksum": b"x"} | {blob: pickle.dumps(Trap(canary))}
    sql(path, "INSERT INTO scores VALUES (?, ?, ?)", values=(row["id"], row["value"], row["checksum"]))
    cache = ScoreCache(path)
    told = pytest.warns(RuntimeWarning, match="1 damaged rows were left out")
    with nullcontext() if blob == "id" else told:  # a row under another key is not met
        assert cache.get([key]) == {}
    cache.close()


def test_pickles_in_the_rows_of_the_ledger(tmp_path: Path, canary: Path) -> None:
    path, trap = tmp_path / "l.sqlite", pickle.dumps(Trap(canary))
    Ledger(path).close()
    sql(path, "INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?)", values=(trap,) * 6)
    sql(path, "INSERT INTO scores VALUES (?, ?, ?, ?)", values=(trap, trap, trap, trap))
    with pytest.warns(RuntimeWarning, match="2 damaged rows were left out"):
        ledger = Ledger(path)
    assert ledger.calls == 0


@pytest.mark.parametrize("statement", ["SELECT load_extension('/tmp/evil.so')", "SELECT readfile('/etc/passwd')"])
def test_no_statement_of_a_file_can_load_code(tmp_path: Path, statement: str) -> None:
    cache = ScoreCache(tmp_path / "c.sqlite")
    assert cache._file is not None
    with pytest.raises(OSError, match=r"not authorized|no such function"):
        cache._file.run(lambda connection: connection.execute(statement).fetchall())


def test_names_of_samples_are_values_and_no_statements(tmp_path: Path) -> None:
    evil = "'); DROP TABLE calls; ATTACH DATABASE 'x.sqlite' AS x; --"
    ledger = Ledger(tmp_path / "l.sqlite", cache=ScoreCache(tmp_path / "c.sqlite"))
    ledger.score([lambda samples, **columns: [1.0] * len(samples)], [evil, "C"])
    assert ledger.history().keys == (evil, "C")
    assert sorted(p.name.split("-")[0] for p in tmp_path.iterdir() if p.name.endswith(".sqlite")) == ["c.sqlite", "l.sqlite"]
