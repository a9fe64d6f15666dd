"""Fault drill: each row is a fault, after which the resumed run must equal an undisturbed one to the bit.

    python -m benchmarks.fault_drill                          # the committed table: CPU, about 5 minutes
    python -m benchmarks.fault_drill --quick                  # the cheap rows, 3 kills: a minute
    python -m benchmarks.fault_drill --only cache-row sigint  # these rows

Every run is a whole ``discrete-grpo train`` of the bundled policy: an evaluation, some updates with checkpoints between (also in
the middle of updates on the same samples), an evaluation, a report. After the fault it is continued by ``discrete-grpo resume``.
Compared byte for byte are the exported weights, all samples with their rewards, both evaluations, every logged metric but the
clock, and the ledger, which must hold each different molecule of these tables once. *Lost* are samples that are missing, not
scored or not counted beyond the one that a fault names.

To save the seconds of a start, the commands run in processes forked from this one, which has imported the package and computed
nothing; rows that say "command" start an interpreter, as a user does. Linux or macOS; a full disk is a small tmpfs where this may
mount one (root on Linux), else a limit on the size of files.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, stamp, write_result
from benchmarks.fault_rows import (
    Row,
    asked_to_stop,
    asked_to_stop_best,
    changed_rows,
    full_disk,
    garbage,
    kill_command,
    kill_files,
    kill_times,
    nan_gradient,
    reward_ends,
    reward_nan,
    reward_pool,
    truncated,
    two_processes,
)
from benchmarks.fault_runs import Drill, warm_up
from discrete_grpo.runs.console import print_table

__all__ = ["ROWS", "main"]

SOURCES = tuple(f"benchmarks/fault_{name}.py" for name in ("drill", "rows", "runs", "compare", "rewards"))

ROWS: dict[str, Callable[[Drill], Row]] = {
    "kill": kill_times,
    "kill-write": kill_files,
    "kill-command": kill_command,
    "pool-hang": partial(reward_pool, fault="hang"),
    "pool-exit": partial(reward_pool, fault="exit"),
    "pool-segfault": partial(reward_pool, fault="segfault"),
    "reward-nan": reward_nan,
    "reward-short": partial(reward_ends, fault="short", wanted=r"carbon_share: returned \d+ values for \d+ samples"),
    "reward-raise": partial(reward_ends, fault="raise", wanted="carbon_share: raised RuntimeError: two lines"),
    "disk-checkpoint": partial(
        full_disk,
        case="reuse",
        update=6,
        what="a checkpoint is due",
        wanted="step-00000006: cannot be written .* from step-00000004",
        step=4,
    ),
    "disk-ledger": partial(
        full_disk, case="fresh", update=3, what="samples are scored", wanted="ledger.sqlite.* from step-00000002", step=2
    ),
    "truncated-weights": partial(truncated, name="model.safetensors"),
    "truncated-config": partial(truncated, name="config.json"),
    "truncated-state": partial(truncated, name="training.pt"),
    "truncated-sums": partial(truncated, name="SHA256SUMS"),
    "cache-row": partial(
        changed_rows, file="scores.sqlite", change="UPDATE scores SET value = value / 2", done="every row of the cache changed"
    ),
    "ledger-row": partial(
        changed_rows,
        file="ledger.sqlite",
        change="UPDATE calls SET turn = turn + 1 WHERE key = (SELECT MIN(key) FROM calls)",
        done="a row of the ledger changed",
    ),
    "cache-garbage": partial(garbage, file="scores.sqlite"),
    "ledger-garbage": partial(garbage, file="ledger.sqlite"),
    "nan-gradient": nan_gradient,
    "sigint": partial(asked_to_stop, number=signal.SIGINT),
    "sigterm": partial(asked_to_stop, number=signal.SIGTERM),
    "sigint-best": asked_to_stop_best,
    "two-first": partial(two_processes, rank=0, processes=1),
    "two-second": partial(two_processes, rank=1, processes=2),
}
QUICK = (
    "kill",
    "reward-raise",
    "disk-checkpoint",
    "truncated-weights",
    "truncated-state",
    "cache-row",
    "ledger-row",
    "ledger-garbage",
    "nan-gradient",
    "sigint",
)
"""Rows that share two undisturbed runs."""


def show(rows: dict[str, Row]) -> None:
    """One line a fault."""
    lines: dict[str, dict[str, float | str | None]] = {}
    for row in rows.values():
        lines[row.done] = {
            "outcome": row.outcome,
            "as expected": "yes" if row.expected else "NO",
            "lost": row.lost,
            "bits": "equal" if not row.differs else f"DIFFER: {', '.join(row.differs)}",
        }
    print_table("faults", lines)


def attempt(name: str, drill: Drill) -> Row:
    """A row; what keeps it from being one stands in it."""
    try:
        return ROWS[name](drill)
    except Exception as error:
        return Row(name, f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}", False, 0, ["not compared"])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Go through the faults; returns what is written. The exit code of the script is that of its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="Of the moments.")
    parser.add_argument("--kills", type=int, default=20, help="How many random moments.")
    parser.add_argument("--quick", action="store_true", help="3 kills, and the cheap rows only.")
    parser.add_argument("--only", nargs="+", choices=ROWS, metavar="ROW", help=f"Of {', '.join(ROWS)}.")
    parser.add_argument("--out", default="fault_drill.json", help="In benchmarks/results.")
    given = parser.parse_args(arguments)
    start, rows = time.perf_counter(), {}
    warm_up()
    chosen = given.only or (QUICK if given.quick else tuple(ROWS))
    with tempfile.TemporaryDirectory() as folder:
        drill = Drill(Path(folder), given.seed, 3 if given.quick else given.kills)
        for name in chosen:
            rows[name] = attempt(name, drill)
            print(f"{time.perf_counter() - start:5.0f} s  {name}: {'survived' if rows[name].survived else 'NOT AS IT SHOULD BE'}")
    show(rows)
    told = {name: asdict(row) | {"survived": row.survived} for name, row in rows.items()}
    result = stamp(given.seed, sources=SOURCES) | {"rows": told, "seconds": time.perf_counter() - start}
    write_result(ROOT / "benchmarks/results" / given.out, result)
    return result


if __name__ == "__main__":
    sys.exit(0 if all(row["survived"] for row in main()["rows"].values()) else 1)
