"""Time updates of ``train demo`` while another program occupies one core, with and without the limit on spinning threads.

    python -m benchmarks.busy_core                       # -> results/busy_core.json, about 15 minutes on two cores

Each run is a process of its own with as many threads as ``--threads``, and runs on as many cores. ``limited`` is the command as it
stands (``discrete_grpo/cli/threads.py``); ``unlimited`` sets ``GOMP_SPINCOUNT`` to the 300,000 turns that GNU OpenMP takes by
default. ``busy`` has an endless loop on the first of the cores, as if started in another terminal; ``idle`` has not. The four
follow each other in every repeat. The seconds are those of an update, without the first.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.runs.console import print_table
from discrete_grpo.runs.recorder import read_metrics

SPINS = {"limited": None, "unlimited": "300000"}
"""``GOMP_SPINCOUNT`` of the runs; None leaves it to the command."""
SOURCES = ("discrete_grpo/cli/threads.py", "benchmarks/busy_core.py")


@contextlib.contextmanager
def occupied(core: int | None) -> Iterator[int | None]:
    """Keep one core busy with an endless loop, whose process it yields; None keeps none busy."""
    if core is None:
        yield None
        return
    code = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as loop:  # the scheduler shares by session
        try:
            yield loop.pid
        finally:
            loop.kill()


def update_times(folder: Path, spins: str | None, cores: Sequence[int], updates: int) -> list[float]:
    """Seconds of each update of one run of the demo on these cores, without the first."""
    options = [f"--output_dir={folder}", f"--grpo.max_steps={updates}", "--evaluation_samples=0"]
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environment = kept | {"OMP_NUM_THREADS": str(len(cores)), "PYTHONPATH": str(ROOT)}
    environment |= {} if spins is None else {"GOMP_SPINCOUNT": spins}
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # which the run inherits
    try:
        command = [sys.executable, "-m", "discrete_grpo.cli", "train", "demo", *options]
        subprocess.run(command, check=True, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
    finally:
        os.sched_setaffinity(0, mine)
    return [taken for line in read_metrics(folder) if (taken := line.get("step_time")) is not None][1:]


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Median, least and most seconds per update over the repeats of each of the four."""
    times: dict[str, list[float]] = {}
    for row in rows:
        times.setdefault(f"{row['spinning']}, {row['core']}", []).extend(row["seconds"])
    return {name: {"median": statistics.median(taken), "least": min(taken), "most": max(taken)} for name, taken in times.items()}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, default=4, help="of each run; the first is not counted")
    parser.add_argument("--threads", type=int, default=2, help="of each run, and its cores")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/busy_core.json")
    given = parser.parse_args(argv)
    cores = sorted(os.sched_getaffinity(0))[: given.threads]
    head = stamp(42, sources=[*SOURCES, "discrete_grpo/cli/presets/demo.yaml"])
    result, rows = head, []
    with tempfile.TemporaryDirectory() as folder:
        for repeat, core, spinning in itertools.product(range(given.repeats), ("idle", "busy"), SPINS):
            with occupied(cores[0] if core == "busy" else None):
                seconds = update_times(Path(folder) / f"{repeat}-{core}-{spinning}", SPINS[spinning], cores, given.updates)
            rows.append({"repeat": repeat, "core": core, "spinning": spinning, "seconds": seconds})
            result = head | {"threads": len(cores), "seconds_per_update": summary(rows), "rows": rows}
            write_result(given.out, result)
    print_table("seconds per update", result["seconds_per_update"])
    return result


if __name__ == "__main__":
    main()
