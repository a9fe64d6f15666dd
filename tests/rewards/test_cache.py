"""Scores on disk: found again, shared, never believed when damaged, and never executed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sqlite3
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.rewards.cache import SCORES, ScoreCache, check_cache_file
from discrete_grpo.rewards.ledger import Ledger, open_ledger
from discrete_grpo.runs.database import Database


def key(sample: str, identity: str = "r", **columns: Any) -> bytes:
    found = ScoreCache.key(identity, sample, columns)
    assert found is not None
    return found


def sql(path: Path, query: str, *values: Any) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        found = connection.execute(query, values).fetchall()
        connection.commit()
    finally:
        connection.close()
    return found


# -- the file


def test_memory_and_its_checkpoint() -> None:
    cache = ScoreCache()
    cache.put({key("C"): 0.5, key("CC"): -1.0})
    assert cache.get([key("C"), key("N"), key("C")]) == {key("C"): 0.5}
    again = ScoreCache()
    again.load_state_dict(cache.state_dict())
    assert again.get([key("CC"), key("C")]) == {key("C"): 0.5, key("CC"): -1.0}
    empty = ScoreCache()
    empty.load_state_dict(ScoreCache().state_dict())
    assert empty.get([key("C")]) == {}


def test_two_runs_share_a_file(tmp_path: Path) -> None:
    first, second = ScoreCache(tmp_path / "deep" / "c.sqlite"), ScoreCache(tmp_path / "deep" / "c.sqlite")
    many = {key(str(k)): k / 7 for k in range(1200)}
    first.put(many)
    assert second.get(list(many)) == many
    second.put({key("x"): 2.0})
    assert first.get([key("x")]) == {key("x"): 2.0}
    assert len(first.state_dict()["ids"]) == 0  # the file has them
    first.close()
    second.close()


def write_some(path: Path) -> None:
    cache = ScoreCache(path)
    for k in range(60):
        wanted = {key(str(j)): float(j) for j in range(k, k + 5)}
        known = cache.get(list(wanted))
        cache.put({i: x for i, x in wanted.items() if i not in known})
    cache.close()


def test_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    children = [multiprocessing.get_context("fork").Process(target=write_some, args=(path,)) for _ in range(2)]
    for child in children:
        child.start()
    write_some(path)
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    cache = ScoreCache(path)
    assert cache.get([key(str(j)) for j in range(64)]) == {key(str(j)): float(j) for j in range(64)}
    cache.close()


# -- damage


def flip(path: Path, column: str, value: Any) -> None:
    sql(path, f"UPDATE scores SET {column} = ? WHERE id = ?", value, key("C"))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("value", 0.75),
        ("value", "x"),
        ("value", b"\x80\x04."),
        ("value", None),
        ("value", float("inf")),
        ("checksum", b""),
        ("checksum", "x"),
    ],
)
def test_a_damaged_row_is_forgotten_and_the_others_stay(tmp_path: Path, column: str, value: Any) -> None:
    path = tmp_path / "c.sqlite"
    cache = ScoreCache(path)
    cache.put({key("C"): 0.5, key("CC"): 1.0})
    cache.close()
    flip(path, column, value)
    cache = ScoreCache(path)
    with pytest.warns(RuntimeWarning, match="1 damaged rows were left out"):
        assert cache.get([key("C"), key("CC")]) == {key("CC"): 1.0}
    assert cache.damaged == 1
    cache.put({key("C"): 0.5})
    cache.close()
    cache = ScoreCache(path)
    assert cache.get([key("C")]) == {key("C"): 0.5}
    cache.close()


def test_a_row_moved_to_another_key_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    cache = ScoreCache(path)
    cache.put({key("C"): 0.5})
    cache.close()
    sql(path, "UPDATE scores SET id = ?", key("CC"))
    cache = ScoreCache(path)
    with pytest.warns(RuntimeWarning, match="1 damaged rows were left out"):
        assert cache.get([key("CC")]) == {}
    cache.close()


def test_a_damaged_file_is_moved_aside(tmp_path: Path) -> None:
    path, content = tmp_path / "c.sqlite", b"SQLite format 3\x00" + b"\xff" * 5000
    path.write_bytes(content)
    with pytest.warns(RuntimeWarning, match=r"c\.sqlite: damaged .* moved to c\.sqlite\.damaged-"):
        cache = ScoreCache(path)
    cache.put({key("C"): 0.5})
    cache.close()
    kept = [p for p in tmp_path.iterdir() if "damaged" in p.name]
    assert [p.read_bytes() for p in kept] == [content]
    cache = ScoreCache(path)
    assert cache.get([key("C")]) == {key("C"): 0.5}
    cache.close()


def test_a_file_that_another_process_has_begun_anew_is_not_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    cache = ScoreCache(path)
    cache.put({key("C"): 0.5})
    database = cache._file
    assert database is not None
    database._move_aside("damaged", path.stat().st_ino + 1)  # the number of the file that it saw
    database._move_aside("damaged", None)
    assert not [p for p in tmp_path.iterdir() if "damaged" in p.name]
    cache.close()
    cache = ScoreCache(path)
    assert cache.get([key("C")]) == {key("C"): 0.5}
    cache.close()


def test_damage_in_the_middle_of_a_run_costs_only_what_was_stored(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    cache = ScoreCache(path)
    cache.put({key(str(k)): 1.0 for k in range(2000)})
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    fresh = ScoreCache.__new__(ScoreCache)
    fresh.__dict__ |= cache.__dict__ | {"_scores": {}}
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert fresh.get([key("5")]) == {}
    fresh.put({key("5"): 3.0})
    assert fresh.get([key("5")]) == {key("5"): 3.0}
    fresh.close()


def test_a_file_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "c.sqlite")
    cache.put({key("C"): 0.5})
    assert cache._file is not None
    cache._file._connection.execute("PRAGMA max_page_count = 3")  # a full disk
    with pytest.warns(RuntimeWarning, match="scores are kept in memory only"):
        _full(cache)
    assert cache.get([key("1999")]) == {key("1999"): 1.0}
    cache.close()


def _full(cache: ScoreCache) -> None:
    reopen = cache._file.reopen  # type: ignore[union-attr]
    cache._file.reopen = lambda: None  # type: ignore[method-assign, union-attr]
    cache.put({key(str(k)): 1.0 for k in range(2000)})
    cache._file.reopen = reopen  # type: ignore[method-assign, union-attr]


# -- security


class Evil:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_nothing_in_a_cache_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    payload = pickle.dumps(Evil(mark))
    pickle.loads(payload)
    assert mark.exists(), "the payload works"
    mark.unlink()

    path = tmp_path / "pickled.sqlite"
    path.write_bytes(payload)
    with pytest.raises(ValueError, match="is no database"):
        ScoreCache(path)
    with pytest.warns(RuntimeWarning, match="damaged"):
        Database(path, SCORES).close()

    path = tmp_path / "row.sqlite"
    ScoreCache(path).close()
    for column in ("value", "checksum"):
        sql(path, "DELETE FROM scores")
        sql(path, f"INSERT INTO scores (id, {column}) VALUES (?, ?)", key("C"), payload)
        cache = ScoreCache(path)
        with pytest.warns(RuntimeWarning, match="1 damaged rows were left out"):
            assert cache.get([key("C")]) == {}
        cache.close()
    assert not mark.exists()


@pytest.mark.parametrize(
    "trap",
    [
        "CREATE TRIGGER t AFTER INSERT ON scores BEGIN DELETE FROM scores; END",
        "CREATE VIEW v AS SELECT load_extension('evil.so')",
        "CREATE INDEX i ON scores (load_extension('evil.so'))",
        "DROP TABLE scores",
    ],
)
def test_a_file_with_anything_but_our_tables_is_not_used(tmp_path: Path, trap: str) -> None:
    path = tmp_path / "c.sqlite"
    ScoreCache(path).close()
    try:
        sql(path, trap)
    except sqlite3.OperationalError:
        pytest.skip("this SQLite does not let the trap be set")
    if trap.startswith("DROP"):
        sql(path, "CREATE VIEW scores AS SELECT 1 AS id, 2 AS value, 3 AS checksum")
    with pytest.warns(RuntimeWarning, match="damaged"):
        cache = ScoreCache(path)
    cache.put({key("C"): 0.5})
    cache.close()
    assert sql(path, "SELECT count(*) FROM scores") == [(1,)]
    assert [row[0] for row in sql(path, "SELECT name FROM sqlite_master")] == ["scores"]


def test_a_folder_that_is_not_there_to_write_is_said_in_one_line() -> None:
    with pytest.raises(OSError, match=r"/proc/nowhere|/dev/null"):
        Database("/dev/null/c.sqlite", {"t": "k TEXT PRIMARY KEY"})


# -- files that were named by mistake


def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    table, database, ledger = tmp_path / "table.csv", tmp_path / "mine.sqlite", tmp_path / "ledger.sqlite"
    table.write_text("smiles,score\nC,1\n")
    sql(database, "CREATE TABLE mine (x)")
    Ledger(ledger, key=str).close()
    tables = {table: "no database", database: "a database of mine", ledger: "a database of .*calls.*", tmp_path: "a folder"}
    for path, said in tables.items():
        before = path.read_bytes() if path.is_file() else b""
        with (
            pytest.raises(ValueError, match=rf"^reward_cache: {path} is {said}, expected a file of scores, or a new name$"),
            open_ledger(tmp_path / "run", str, reward_cache=str(path)),
        ):
            pass
        with pytest.raises(ValueError, match=rf"^path: {path} is {said}, expected a file of scores, or a new name$"):
            ScoreCache(path)
        if path != ledger:
            with pytest.raises(ValueError, match=rf"^path: {path} is {said}, expected the file of a ledger, or a new name$"):
                Ledger(path)
        assert (path.read_bytes() if path.is_file() else b"") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.sqlite", "mine.sqlite", "table.csv"]


def test_files_of_a_run_folder_without_their_headers_are_moved_aside(tmp_path: Path) -> None:
    with open_ledger(tmp_path, str) as ledger:
        ledger.score([len_of], ["a", "bb"])
        state = ledger.state_dict()
    for name in ("ledger.sqlite", "scores.sqlite"):
        (tmp_path / name).write_bytes(b"garbage" * 1000)
    with ExitStack() as opened:
        with pytest.warns(RuntimeWarning, match=r"(ledger|scores)\.sqlite: damaged .*moved to"):
            ledger = opened.enter_context(open_ledger(str(tmp_path), str))
        ledger.load_state_dict(state)
        assert ledger.calls == 2
    assert len(list(tmp_path.glob("*.damaged-*"))) == 2
    (tmp_path / "ledger.sqlite").write_bytes(b"garbage" * 1000)
    with pytest.warns(RuntimeWarning, match=r"ledger\.sqlite: damaged"):  # the log beside it says whose it is
        Ledger(tmp_path / "ledger.sqlite").close()


def len_of(samples: list[str], **columns: Any) -> list[float]:
    return [float(len(sample)) for sample in samples]


def test_a_cache_an_empty_file_and_a_damaged_database_pass(tmp_path: Path) -> None:
    ScoreCache(tmp_path / "known.sqlite").close()
    (tmp_path / "empty.sqlite").touch()
    (tmp_path / "zeros.sqlite").write_bytes(b"\0" * 4096)
    (tmp_path / "torn.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    for name in ("known", "empty", "zeros", "torn", "new"):
        check_cache_file(tmp_path / f"{name}.sqlite")
    cache = ScoreCache(tmp_path / "known.sqlite")  # while it is open, too
    cache.put({key("C"): 0.5})
    check_cache_file(tmp_path / "known.sqlite")
    cache.close()


def test_scores_of_a_checkpoint_have_all_their_digits() -> None:
    first, second = ScoreCache(), ScoreCache()
    first.put({key("C"): 0.1})
    second.load_state_dict(first.state_dict())
    assert second.get([key("C")]) == {key("C"): 0.1}


def test_the_newest_scores_are_held_in_memory(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.sqlite", most=2)
    scores = {key(str(k)): float(k) for k in range(4)}
    for one, score in scores.items():
        cache.put({one: score})
    assert list(cache._scores) == list(scores)[2:]
    assert cache.get(list(scores)) == scores
    cache.close()


def test_a_cache_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "scores.sqlite"
    said = rf"^reward_cache: '{path}' cannot be opened \(.+\), expected a file that can be written$"
    with pytest.raises(OSError, match=said), open_ledger(tmp_path / "run", str, reward_cache=str(path)):
        pass


def test_scores_that_the_file_lacks_stay_in_memory_however_many_they_are(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "c.sqlite", most=10)
    assert cache._file is not None
    cache._file._connection.execute("PRAGMA max_page_count = 3")  # a full disk
    with pytest.warns(RuntimeWarning, match="scores are kept in memory only"):
        _full(cache)
    assert cache.get([key("0"), key("1999")]) == {key("0"): 1.0, key("1999"): 1.0}
    assert len(cache.state_dict()["ids"]) == 2000  # a checkpoint keeps them
    cache._file._connection.execute("PRAGMA max_page_count = 100000")
    cache.put({key("new"): 0.5})
    assert len(cache.state_dict()["ids"]) == 0
    cache.close()
    again = ScoreCache(tmp_path / "c.sqlite")
    assert again.get([key("0"), key("1999"), key("new")]) == {key("0"): 1.0, key("1999"): 1.0, key("new"): 0.5}
    again.close()
