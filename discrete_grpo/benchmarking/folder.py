"""The folder of a benchmark: names of its files, and checks of what it holds."""

from __future__ import annotations

from pathlib import Path

from discrete_grpo.core.checks import check_folder_name
from discrete_grpo.core.json_files import read_json
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.folder import BENCHMARK, RUN, check_free, check_unused

__all__ = [
    "CALLS",
    "FAILED",
    "PAGE",
    "PLAN",
    "RESULTS",
    "ROW",
    "SCORES_FILE",
    "TABLE",
    "benchmark_folder",
    "has_rows",
    "no_benchmark",
]

PLAN, SCORES_FILE = BENCHMARK, "scores.sqlite"
RESULTS, TABLE, PAGE = "results.json", "results.md", "results.html"
ROW, FAILED, CALLS = "row.json", "failed.json", "calls.csv.gz"
"""Files of a job."""


def benchmark_folder(given: str | Path, suite: str) -> Path:
    """The output folder, which must be new, empty or hold a benchmark of the same suite."""
    check_folder_name("output_dir", given)
    folder = Path(given)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output_dir: {folder} is a file, expected a folder")
    before = read_json(folder / PLAN)
    if before is not None and before.get("suite") != suite:
        raise ValueError(
            f"output_dir: {folder} holds a benchmark of {before.get('suite')}, expected one of {suite} or another folder"
        )
    if before is None and (folder / RUN).exists():
        raise ValueError(f"output_dir: {folder} holds a run of another kind, expected a benchmark or another folder")
    if before is None and has_rows(folder):
        if _has_entries(folder):
            raise ValueError(no_benchmark(folder))
        told = f"{PLAN}: missing or damaged, and begun anew; rows in {folder / 'jobs'} are kept"
        print_notes([f"{told}, and those of other tasks, methods and seeds are in the table once these are asked for again"])
    elif before is None and folder.exists():
        check_unused(folder, own=(PLAN,))
        for name in (RESULTS, PAGE, TABLE):
            check_free(folder / name, b"")
    return folder


def has_rows(folder: Path) -> bool:
    """Whether a folder holds a row of a benchmark."""
    return next(folder.glob(f"jobs/*/*/*/*/{ROW}"), None) is not None


def _has_entries(folder: Path) -> bool:
    """Whether ``results.json`` has the entries of ``benchmark.json``."""
    return "runs" in (read_json(folder / RESULTS) or {})


def no_benchmark(folder: Path) -> str:
    """Error message for a folder without a readable ``benchmark.json``, with a way to restore the file."""
    told = f"{PLAN} is {'damaged' if (folder / PLAN).exists() else 'missing'}"
    if not has_rows(folder):
        return f"output_dir: {folder} holds no benchmark ({told})"
    wanted = f"put {PLAN} back or run the benchmark again"
    if _has_entries(folder):
        wanted = f"copy {RESULTS}, which has the same entries, to {PLAN}"
    return f"output_dir: {folder} holds rows in jobs, but {told}; {wanted}, or name another folder"
