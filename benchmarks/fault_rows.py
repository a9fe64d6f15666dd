"""Rows of the fault drill: faults and the required results."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fault_compare import counted, differences, lost, molecules, table, unknown
from benchmarks.fault_runs import Drill, Ended, FileOperations, FullDisk, NaNGradient, StopAfter, children, command, faulty, started
from discrete_grpo.rewards.ledger import molecule_key
from discrete_grpo.runs.checkpoint import CheckpointError, Checkpoints
from discrete_grpo.runs.recorder import METRICS, SAMPLES

__all__ = [
    "Row", "asked_to_stop", "asked_to_stop_best", "changed_rows", "full_disk", "garbage", "kill_command", "kill_files",
    "kill_times", "nan_gradient", "reward_ends", "reward_nan", "reward_pool", "truncated", "two_processes",
]  # fmt: skip

REWARD = "benchmarks.fault_rewards.carbon_share"
STOPPED = r"stopped at update \d+ of \d+; saved, continue with: discrete-grpo resume"
POOL = {"reward": REWARD, "workers": 2, "timeout": 2.0, "start_timeout": 60.0}


@dataclass
class Row:
    """Outcome of a fault.

    Attributes:
        done: what was done, in words.
        outcome: what came of it.
        expected: whether that is what should.
        lost: samples lost beyond the named one.
        differs: what is not as in the undisturbed run.
        details: of each repetition, or what the run said.
    """

    done: str
    outcome: str
    expected: bool
    lost: int
    differs: list[str]
    details: list[Any] = field(default_factory=list)

    @property
    def survived(self) -> bool:
        """Whether all is as it should be."""
        return self.expected and self.lost == 0 and not self.differs


def one_line(ended: Ended, wanted: str, code: int = 2) -> bool:
    """Whether a run ended with one line which says what is ``wanted`` (a pattern)."""
    return ended.code == code and len(ended.lines) == 1 and re.search(wanted, ended.lines[0]) is not None


def finished(code: int) -> str:
    """Outcome of ``discrete-grpo resume``."""
    return "resumed and finished" if code == 0 else f"resumed: exit code {code}"


# -- killed


def where(folder: Path, case: str) -> str:
    """Phase in which a run was killed, by the files that it left."""
    if not (folder / "run.json").is_file():
        return "at the start"
    if any((folder / "checkpoints").glob(".*")):
        return "in a checkpoint"
    if not (folder / "checkpoints").is_dir():
        return "in the first evaluation"
    if (folder / "policy").is_dir():
        return "in the last evaluation"
    lines = (folder / METRICS).read_bytes().count(b"\n") if (folder / METRICS).is_file() else 0
    return "among updates on the same samples" if case == "reuse" and lines % 4 else "in training"


def kills(drill: Drill, name: str, done: str, number: int, kill: Callable[[str, float, list[str]], Ended]) -> Row:
    """Killed at moments spread over the whole run, every second one with reuse of samples; each is continued."""
    details, numbers = list[dict[str, Any]](), drill.random(name)
    for k in range(number):
        case, moment = ("reuse", "fresh")[k % 2], (k + numbers.random()) / number
        for _ in range(20):
            folder = drill.new(name)
            first = command(case, folder)
            if kill(case, moment, first).code == -signal.SIGKILL:
                break
            moment *= 0.9  # it was over by then
        found, whole = where(folder, case), drill.whole(case)[0]
        again = drill.go_on(folder, first)
        row = {"case": case, "moment": round(moment, 4), "where": found, "code": again.code, "lost": lost(folder, whole)}
        details.append(row | {"differs": differences(folder, whole), "said": again.lines})
        shutil.rmtree(folder, ignore_errors=True)
    places = ", ".join(f"{n} {place}" for place, n in Counter(row["where"] for row in details).most_common())
    return Row(
        done,
        f"{sum(row['code'] == 0 for row in details)} of {len(details)} resumed and finished ({places})",
        all(row["code"] == 0 for row in details),
        sum(row["lost"] for row in details),
        sorted({name for row in details for name in row["differs"]}),
        details,
    )


def kill_times(drill: Drill) -> Row:
    """SIGKILL after a delay."""

    def kill(case: str, moment: float, first: list[str]) -> Ended:
        delay = moment * drill.whole(case)[1].seconds

        def meanwhile(process: Any) -> None:
            process.join(delay)
            process.kill()

        return drill.run(first, meanwhile=meanwhile)

    return kills(drill, "kill", f"SIGKILL at {drill.kills} random moments", drill.kills, kill)


def kill_files(drill: Drill) -> Row:
    """SIGKILL in the middle of writing."""

    def kill(case: str, moment: float, first: list[str]) -> Ended:
        return drill.run(first, FileOperations(1 + int(moment * drill.whole(case)[2])))

    number = -(-drill.kills // 2)
    return kills(drill, "kill-write", f"SIGKILL between file operations, {number} random ones", number, kill)


def kill_command(drill: Drill) -> Row:
    """SIGKILL of the command as a user starts it."""
    folder, whole = drill.new("command"), drill.whole("reuse")[0]
    process = started(command("reuse", folder), drill.new("log"))
    wait_for_updates(folder, 3, process.poll)
    process.kill()
    process.wait()
    again = started(["resume", str(folder)], drill.new("log")).wait()
    outcome = finished(again)
    return Row("SIGKILL of the command, after update 3", outcome, again == 0, lost(folder, whole), differences(folder, whole))


def wait_for_updates(folder: Path, number: int, ended: Callable[[], object]) -> None:
    """Until so many updates are logged, or the run ends."""
    path, patience = folder / METRICS, time.monotonic() + 120
    while ended() is None and time.monotonic() < patience:
        if path.is_file() and path.read_bytes().count(b"\n") >= number:
            return
        time.sleep(0.01)


# -- rewards


def named_sample(whole: Path) -> str:
    """A valid molecule that a run has once, in a generation past its first checkpoint."""
    times = Counter(molecule_key(row["sample"]) for name in ("evaluation_before.csv.gz", SAMPLES) for row in table(whole / name))
    rows = [row for row in table(whole / SAMPLES) if int(row["step"]) >= 4]
    return next(row["sample"] for row in rows if times[molecule_key(row["sample"])] == 1 and molecule_key(row["sample"]))


def ran(ended: Ended) -> str:
    """Outcome of ``discrete-grpo train``."""
    return "finished" if ended.code == 0 else f"exit code {ended.code}"


def reward_pool(drill: Drill, fault: str) -> Row:
    """In worker processes: the run ends as with a reward that says "unknown"."""
    named = named_sample(drill.whole("fresh", REWARD)[0])
    whole, folder = drill.whole("fresh", REWARD, ("unknown", named))[0], drill.new(fault)
    pool = json.dumps({"class_path": "discrete_grpo.rewards.pool.RewardPool", "init_args": POOL})
    ended = drill.run(command("fresh", folder, pool), environment=faulty((fault, named)))
    path = folder / "failures.jsonl"
    failures = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    logged = sum(json.loads(line).get("rewards/carbon_share/failed", 0) for line in (folder / METRICS).open())
    right = {f["sample"] for f in failures} == {named} == unknown(folder) and logged == len(failures)
    said = f", in failures.jsonl: {failures[0]['reason']}" if failures else ""
    return Row(
        f"reward in a pool: {fault} on {named}",
        f"{ran(ended)}; unknown: {', '.join(unknown(folder)) or 'none'}{said}",
        ended.code == 0 and right,
        lost(folder, whole, [named]),
        differences(folder, whole),
        [failures],
    )


def reward_nan(drill: Drill) -> Row:
    """Not a number is "unknown"."""
    named = named_sample(drill.whole("fresh", REWARD)[0])
    whole, folder = drill.whole("fresh", REWARD, ("unknown", named))[0], drill.new("nan")
    ended = drill.run(command("fresh", folder, REWARD), environment=faulty(("nan", named)))
    outcome = f"{ran(ended)}; unknown: {', '.join(unknown(folder)) or 'none'}"
    expected = ended.code == 0 and unknown(folder) == {named}
    return Row(f"reward: NaN for {named}", outcome, expected, lost(folder, whole, [named]), differences(folder, whole))


def reward_ends(drill: Drill, fault: str, wanted: str) -> Row:
    """A broken reward ends the run with one line; mended, it goes on."""
    whole = drill.whole("fresh", REWARD)[0]
    named = named_sample(whole)
    drawn_for = next(int(row["step"]) for row in table(whole / SAMPLES) if row["sample"] == named)
    environment = faulty((fault, named))
    return stopped(drill, "fresh", f"reward: {fault} on {named}", wanted, drawn_for - 1, reward=REWARD, environment=environment)


# -- runs that end with a line


def stopped(
    drill: Drill,
    case: str,
    done: str,
    wanted: str,
    step: int,
    *,
    code: int = 2,
    reward: str = "qed",
    folder: Path | None = None,
    between: Callable[[], object] = lambda: None,
    **options: Any,
) -> Row:
    """A run that ends with one line (a pattern) and a whole checkpoint of ``step``, and is continued after ``between``."""
    folder, whole = folder or drill.new("stopped"), drill.whole(case, reward)[0]
    ended = drill.run(command(case, folder, reward), **options)
    try:
        kept = Checkpoints(folder).latest().name
    except CheckpointError as error:
        kept = str(error)
    between()
    again = drill.run(["resume", str(folder)])
    right = one_line(ended, wanted, code)
    return Row(
        done,
        f"{'one line' if right else f'{len(ended.lines)} lines'}, exit code {ended.code}; {finished(again.code)} from {kept}",
        right and kept == f"step-{step:08d}" and again.code == 0,
        lost(folder, whole),
        differences(folder, whole),
        [line.replace(str(folder), "RUN") for line in (*ended.lines, *again.lines)],
    )


def full_disk(drill: Drill, case: str, update: int, what: str, wanted: str, step: int) -> Row:
    """No space for what is written after an update; then there is again."""
    with small_disk(drill.new("disk")) as disk:
        ballast = disk / "others" if disk.is_mount() else None
        done = f"{'disk full' if ballast else 'no file may grow'} when {what}"
        fault = FullDisk(update, ballast)
        remove = (lambda: ballast.unlink()) if ballast else (lambda: None)
        return stopped(drill, case, done, wanted, step, folder=disk / "run", between=remove, fault=fault)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 192 MB where one can be mounted, else a folder."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=192m", "none", str(folder)]
    mounted = sys.platform == "linux" and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def nan_gradient(drill: Drill) -> Row:
    """One NaN among the gradients."""
    return stopped(drill, "reuse", "NaN in a gradient of update 6", "error: gradient norm is nan", 4, fault=NaNGradient(5))


def asked_to_stop(drill: Drill, number: signal.Signals) -> Row:
    """A signal that may be handled, where no checkpoint is due."""
    update = drill.random(number.name).choice((3, 5, 7))
    done = f"{number.name} in update {update}, among updates on the same samples"
    return stopped(drill, "reuse", done, STOPPED, update, code=130, fault=StopAfter(update, number))


def asked_to_stop_best(drill: Drill) -> Row:
    """Ctrl-C makes a checkpoint that the undisturbed run has not; the best one must be the same."""
    done = "SIGINT after update 5, where the best checkpoint is exported"
    return stopped(drill, "best", done, STOPPED, 5, code=130, fault=StopAfter(5, signal.SIGINT))


# -- damaged files


def resumed(drill: Drill, folder: Path, done: str, warning: str) -> Row:
    """Continue a damaged copy of the half run; the damage must be named in a warning (a pattern)."""
    whole = drill.whole("reuse")[0]
    again = drill.run(["resume", str(folder)])
    said = [line.partition(" warning: ")[2] for line in again.text.splitlines() if " warning: " in line]
    named = any(re.search(warning, line) for line in said)
    told = "named in a warning" if named else "no warning of it"
    outcome = f"{told}; {finished(again.code)}; {len(counted(folder))} molecules counted of {len(molecules(folder))}"
    details = [line.replace(str(folder), "RUN") for line in (*said, *again.lines)]
    return Row(done, outcome, again.code == 0 and named, lost(folder, whole), differences(folder, whole), details)


def truncated(drill: Drill, name: str) -> Row:
    """Half of a file of the newest checkpoint."""
    folder = drill.copy()
    path = folder / "checkpoints/step-00000004" / name
    os.truncate(path, path.stat().st_size // 2)
    return resumed(drill, folder, f"{name} of the newest checkpoint cut in half", f"{name}.*step-00000002 is taken instead")


def changed_rows(drill: Drill, file: str, change: str, done: str) -> Row:
    """Rows of a database, without the change of their checksums."""
    folder = drill.copy()
    with contextlib.closing(sqlite3.connect(folder / file)) as connection, connection:
        assert connection.execute(change).rowcount > 0
    return resumed(drill, folder, done, f"{file}.*damaged")


def garbage(drill: Drill, file: str) -> Row:
    """Another file in the place of a database."""
    folder = drill.copy()
    for suffix in ("-wal", "-shm"):  # else SQLite mends the file from them
        (folder / f"{file}{suffix}").unlink(missing_ok=True)
    (folder / file).write_bytes(drill.random(file).randbytes(9000))
    return resumed(drill, folder, f"{file} replaced by garbage", f"{file}: damaged .* moved to")


# -- several processes


def two_processes(drill: Drill, rank: int, processes: int) -> Row:
    """One of two processes is killed: both end, and the run goes on in two or in one."""
    folder, whole, log = drill.new("two"), drill.whole("shards")[0], drill.new("log")
    done = f"SIGKILL of the {('first', 'second')[rank]} of two processes; resumed with {('one', 'two')[processes - 1]}"
    launcher = started(command("shards", folder), log, processes=2)
    wait_for_updates(folder, 3, launcher.poll)
    ranks = children(launcher.pid)
    if len(ranks) != 2:
        launcher.wait(timeout=60)
        said = [line.replace(str(folder), "RUN") for line in log.read_text().splitlines() if line.startswith("discrete-grpo: ")]
        return Row(done, "the command failed by itself", False, lost(folder, whole), differences(folder, whole), said)
    os.kill(ranks[rank], signal.SIGKILL)
    code = launcher.wait(timeout=60)
    left = sum(alive(pid) for pid in ranks)
    again = started(["resume", str(folder)], drill.new("log"), processes).wait(timeout=120)
    outcome = f"{2 - left} of 2 ended, the launcher with exit code {code}; {finished(again)}"
    expected = code != 0 and not left and again == 0
    return Row(done, outcome, expected, lost(folder, whole), differences(folder, whole))


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
