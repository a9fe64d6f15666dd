"""Oracle ledger with a million calls: seconds of a checkpoint, of opening it again, of a turn and of a count.

The calls are texts of 20 to 60 characters, made by ``Ledger.score`` with a reward that costs nothing, in batches of 10,000. The
script uses nothing but what earlier versions have too, so that it measures them from their own folder::

    git worktree add /tmp/before COMMIT && cp benchmarks/ledger_speed.py /tmp/before/benchmarks
    cd /tmp/before && python -m benchmarks.ledger_speed --out ledger_speed_before.json
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.common import stamp, write_result
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.runs.checkpoint import load_training, save

RESULTS = Path(__file__).parent / "results"
SOURCES = ("discrete_grpo/rewards/ledger.py", "discrete_grpo/rewards/ledger_rows.py", "discrete_grpo/runs/database.py")


class Policy(nn.Module):
    """A policy of one weight, whose checkpoint is the ledger's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def init_args(self) -> dict[str, Any]:
        """No arguments."""
        return {}


def length(samples: list[str], **columns: Any) -> list[float]:
    """The length of a text."""
    return [float(len(sample)) for sample in samples]


def texts(count: int, drawn: random.Random) -> list[str]:
    """Distinct texts as long as SMILES of drug-like molecules."""
    return ["C" * drawn.randint(4, 44) + f"{drawn.getrandbits(64):016x}" for _ in range(count)]


def timed(job: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """The result of a job, its wall and its processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = job()
    return found, {"wall_s": round(time.perf_counter() - wall, 4), "cpu_s": round(time.process_time() - cpu, 4)}


def measure(folder: Path, calls: int, seed: int) -> dict[str, Any]:
    """Fill a ledger with ``calls`` calls and measure it."""
    drawn, path, policy = random.Random(seed), folder / "ledger.sqlite", Policy()
    ledger = Ledger(path)

    def fill() -> None:
        for _ in range(calls // 10_000):
            ledger.score([length], texts(10_000, drawn))

    _, filled = timed(fill)
    times = {"fill": filled}
    _, times["turn of 64 new samples"] = timed(lambda: ledger.score([length], texts(64, drawn)))
    _, times["count"] = timed(lambda: [ledger.metrics() for _ in range(10)])
    _, times["checkpoint"] = timed(
        lambda: save(folder / "checkpoint", policy, metadata={}, training={"ledger": ledger.state_dict()})
    )
    counted = ledger.calls
    ledger.close()

    def reopen() -> Ledger:
        again = Ledger(path)
        again.load_state_dict(load_training(folder / "checkpoint")["ledger"])
        return again

    again, times["open again"] = timed(reopen)
    assert again.calls == counted == calls + 64
    again.close()
    sizes = {p.name: p.stat().st_size for p in sorted(folder.glob("ledger*"))}
    sizes["training.pt"] = (folder / "checkpoint" / "training.pt").stat().st_size
    return {"calls": counted, "seconds": times, "bytes": sizes}


def main() -> None:
    """Measure an empty and a full ledger and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000, help="calls of the full ledger, a multiple of 10,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="ledger_speed.json", help="file in benchmarks/results")
    options = parser.parse_args()
    rows = []
    for calls in (0, options.calls):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(Path(folder), calls, options.seed))
            print(rows[-1])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result = stamp(options.seed, sources=SOURCES) | {"rows": rows, "peak_memory_mb": round(most, 1)}
    write_result(RESULTS / options.out, result)


if __name__ == "__main__":
    main()
