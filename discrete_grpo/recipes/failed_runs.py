"""Clean-up of run folders after a failure before the first results, so that the corrected call can use the same folder."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from discrete_grpo.core.processes import is_first
from discrete_grpo.runs.folder import (
    CONFIG,
    EVALUATION,
    EVALUATION_TABLES,
    FAILURES,
    LEDGER,
    MEMORIES,
    METRICS,
    PARTS,
    REFERENCE,
    REWARDS,
    RUN,
    SAMPLES,
    SCORED,
    SETTINGS,
    check_unused,
)
from discrete_grpo.runs.lock import locked_folder
from discrete_grpo.runs.settings import put_back_on_refusal

__all__ = ["has_results", "withdrawn_on_failure"]

GIVEN = (CONFIG, RUN, "columns.jsonl", "evaluation_columns.jsonl", "test.sdf", SCORED)
RECORDS = (METRICS, SAMPLES, REWARDS, SETTINGS, FAILURES, EVALUATION, EVALUATION_TABLES["before"], MEMORIES)
DATABASES = tuple(f"{name}.sqlite{part}" for name in ("ledger", "scores") for part in ("", "-wal", "-shm", ".log"))


def has_results(folder: Path, *, calls_count: bool, before: frozenset[str] | None = None) -> bool:
    """Whether a failed run can usefully be resumed: it or a part of it has a checkpoint or, if calls are results, there are scores.

    Args:
        folder: the run folder.
        calls_count: whether calls are results, as in a search or an optimisation.
        before: names of the entries of the folder before the run, whose checkpoints are of another one; None if there were none.
    """
    own = [part for part in ("", *PARTS) if part not in (before or ())]
    if any((folder / part / "checkpoints").exists() for part in own):
        return True
    if not calls_count or not (folder / LEDGER).exists():
        return False
    from discrete_grpo.rewards.ledger import Ledger

    ledger = Ledger(folder / LEDGER)
    try:
        ledger.catch_up()
        return bool(ledger.calls_by_reward())
    finally:
        ledger.close()


def _held(folder: Path) -> frozenset[str] | None:
    """Names of what a folder holds; None if there is no such folder."""
    return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else None


def _withdraw(folder: Path, before: frozenset[str] | None) -> None:
    """Remove the files of a run that failed before it had results, and the folder if the run created it and it is empty.

    Known scores, which may have taken hours, are kept for the corrected call.

    Args:
        folder: the run folder.
        before: names of its entries before the run, which are kept; None if there was no such folder.
    """
    kept = before or frozenset()
    scored = _has_scores(folder / "scores.sqlite")
    values = (path.name for path in folder.glob("data.*"))  # training data that was given as values
    for name in {*GIVEN, *RECORDS, *DATABASES, *values} - kept:
        if scored and name.startswith("scores."):
            continue
        (folder / name).unlink(missing_ok=True)
    if REFERENCE not in kept:
        shutil.rmtree(folder / REFERENCE, ignore_errors=True)
    for part in (folder / name for name in PARTS if name not in kept and (folder / name).is_dir()):
        for name in RECORDS:
            (part / name).unlink(missing_ok=True)
        if not any(part.iterdir()):
            part.rmdir()
    if before is None and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


@contextmanager
def withdrawn_on_failure(folder: Path, *, calls_count: bool) -> Iterator[None]:
    """Remove the files of a new run that fails inside the block before it has results; a stop is not a failure.

    Earlier content of the folder is kept, and a folder with results of another run is left unchanged. A resumed run that fails
    before its next checkpoint keeps the settings that it had.

    Raises:
        ValueError: if ``folder`` is a file, or another process works in it.
    """
    for path in (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise ValueError(f"output_dir: {path} is a file, expected the name of a folder to make")
    before, used = _held(folder), _in_use(folder)
    with locked_folder(folder):
        try:
            with put_back_on_refusal(folder):
                yield
        except Exception:
            with suppress(OSError, ValueError, sqlite3.Error):  # the error of the run is the one to report
                if not used and is_first() and not has_results(folder, calls_count=calls_count, before=before):
                    _withdraw(folder, before)
            raise


def _has_scores(file: Path) -> bool:
    if not file.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            return bool(connection.execute("SELECT COUNT(*) FROM scores").fetchone()[0])
    except sqlite3.Error:
        return False


def _in_use(folder: Path) -> bool:
    try:
        check_unused(folder)
    except ValueError:
        return True
    return False
