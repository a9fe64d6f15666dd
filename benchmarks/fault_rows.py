"""The rows of the fault drill: what is done to a run, and what must come of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.fault_rewards import FAULT, SAMPLE
from benchmarks.fault_runs import (
    Ended,
    Fault,
    FileOperations,
    FullDisk,
    NaNGradient,
    StopAfter,
    children,
    command,
    counted,
    differences,
    lost,
    molecules,
    run,
    started,
    table,
    unknown,
)
from discrete_grpo.checkpoint import CheckpointError, Checkpoints
from discrete_grpo.reporting.run_folder import METRICS, SAMPLES
from discrete_grpo.rewards.ledger import molecule_key

__all__ = [
    "Drill", "Row", "asked_to_stop", "changed_rows", "full_disk", "garbage", "kill_command", "kill_files", "kill_times",
    "nan_gradient", "reward_ends", "reward_nan", "reward_pool", "truncated", "two_processes",
]  # fmt: skip

REWARD = "benchmarks.fault_rewards.carbon_share"
POOL = {"reward": REWARD, "workers": 2, "timeout": 2.0, "start_timeout": 60.0}


@dataclass
class Row:
    """What a fault did.

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


class Drill:
    """Runs in a scratch folder, with the undisturbed ones that they are compared with.

    Args:
        folder: scratch.
        seed: of the moments.
        kills: how many.
    """

    def __init__(self, folder: Path, seed: int, kills: int) -> None:
        self.folder, self.seed, self.kills = folder, seed, kills
        self._whole: dict[tuple[str, str], tuple[Path, Ended, int]] = {}
        self._numbers = itertools.count()

    def new(self, name: str) -> Path:
        """A folder name that no run has."""
        return self.folder / f"{name}-{next(self._numbers)}"

    def random(self, name: str) -> random.Random:
        """Numbers of a row, the same whichever other rows run."""
        return random.Random(f"{self.seed} {name}")

    def run(self, arguments: Sequence[str], fault: Fault | None = None, **options: Any) -> Ended:
        """A command in a forked process."""
        return run(arguments, self.new("log"), fault, **options)

    def whole(self, case: str, reward: str = "qed", bad: tuple[str, str] | None = None) -> tuple[Path, Ended, int]:
        """The undisturbed run of a case: its folder, how it ended, and how many file operations it made."""
        key = (case, f"{reward} {bad}")
        if key not in self._whole:
            folder, counter = self.new(f"whole-{case}"), FileOperations()
            ended = self.run(command(case, folder, reward), counter, environment=faulty(bad))
            if ended.code:
                raise RuntimeError(f"the undisturbed run failed: {ended.text}")
            self._whole[key] = (folder, ended, counter.count.value)
        return self._whole[key]

    @cached_property
    def halfway(self) -> Path:
        """A run that was killed after update 5 of 8, in the middle of a generation; checkpoints of 2 and 4 are there."""
        folder = self.new("halfway")
        self.run(command("reuse", folder), StopAfter(5))
        return folder

    def copy(self) -> Path:
        """A copy of the half run, to be damaged."""
        return Path(shutil.copytree(self.halfway, self.new("copy")))

    def go_on(self, folder: Path, first: Sequence[str]) -> Ended:
        """Continue a run; where nothing of it is left yet, the same command again."""
        return self.run(["resume", str(folder)] if (folder / "run.json").is_file() else first)


def faulty(bad: tuple[str, str] | None) -> dict[str, str]:
    """The environment in which the reward has this fault on this sample."""
    return {} if bad is None else {FAULT: bad[0], SAMPLE: bad[1]}


def one_line(ended: Ended, wanted: str, code: int = 2) -> bool:
    """Whether a run ended with one line which says what is ``wanted`` (a pattern)."""
    return ended.code == code and len(ended.lines) == 1 and re.search(wanted, ended.lines[0]) is not None


# -- killed


def where(folder: Path) -> str:
    """What a killed run was doing, by what it left."""
    if not (folder / "run.json").is_file():
        return "before anything"
    if any((folder / "checkpoints").glob(".*")):
        return "in a checkpoint"
    if not (folder / "checkpoints").is_dir():
        return "first evaluation"
    if (folder / "policy").is_dir():
        return "last evaluation"
    drawn = {row["step"] for row in table(folder / SAMPLES)}
    lines = (folder / METRICS).read_bytes().count(b"\n") if (folder / METRICS).is_file() else 0
    return "between updates on the same samples" if drawn and lines and str(lines + 1) not in drawn and lines % 4 else "training"


def kills(drill: Drill, name: str, done: str, kill: Callable[[str, float, list[str], random.Random], Ended]) -> Row:
    """Killed at moments spread over the whole run, every second one with reuse of samples; each is continued."""
    details, numbers = [], drill.random(name)
    for k in range(drill.kills):
        case, moment = ("reuse", "fresh")[k % 2], (k + numbers.random()) / drill.kills
        for _ in range(20):
            folder = drill.new(name)
            first = command(case, folder)
            if kill(case, moment, first, numbers).code == -signal.SIGKILL:
                break
            moment *= 0.9  # it was over by then
        found, whole = where(folder), drill.whole(case)[0]
        again = drill.go_on(folder, first)
        row = {"case": case, "moment": round(moment, 4), "where": found, "code": again.code, "lost": lost(folder, whole)}
        details.append(row | {"differs": differences(folder, whole), "said": again.lines})
        shutil.rmtree(folder, ignore_errors=True)
    places = ", ".join(f"{n} {place}" for place, n in Counter(row["where"] for row in details).most_common())
    return Row(
        done,
        f"{sum(row['code'] == 0 for row in details)} of {len(details)} ran to their end ({places})",
        all(row["code"] == 0 for row in details),
        sum(row["lost"] for row in details),
        sorted({name for row in details for name in row["differs"]}),
        details,
    )


def kill_times(drill: Drill) -> Row:
    """SIGKILL after a delay."""

    def kill(case: str, moment: float, first: list[str], numbers: random.Random) -> Ended:
        delay = moment * drill.whole(case)[1].seconds

        def meanwhile(process: Any) -> None:
            process.join(delay)
            process.kill()

        return drill.run(first, meanwhile=meanwhile)

    return kills(drill, "kill", f"SIGKILL at {drill.kills} random moments", kill)


def kill_files(drill: Drill) -> Row:
    """SIGKILL in the middle of writing."""

    def kill(case: str, moment: float, first: list[str], numbers: random.Random) -> Ended:
        return drill.run(first, FileOperations(1 + int(moment * drill.whole(case)[2])))

    return kills(drill, "kill-write", f"SIGKILL between two file operations, {drill.kills} random ones", kill)


def kill_command(drill: Drill) -> Row:
    """SIGKILL of the command as a user starts it."""
    folder, whole = drill.new("command"), drill.whole("reuse")[0]
    process = started(command("reuse", folder), drill.new("log"))
    wait_for_updates(folder, 3, process.poll)
    process.kill()
    process.wait()
    again = started(["resume", str(folder)], drill.new("log")).wait()
    outcome = f"exit code {again} of discrete-grpo resume"
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
    said = f"; {failures[0]['reason']!r} in failures.jsonl" if failures else ""
    return Row(
        f"reward in a RewardPool: {fault} on {named}",
        f"exit code {ended.code}, unknown: {', '.join(unknown(folder)) or 'none'}{said}",
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
    outcome = f"exit code {ended.code}, unknown: {', '.join(unknown(folder)) or 'none'}"
    expected = ended.code == 0 and unknown(folder) == {named}
    return Row(f"reward: NaN for {named}", outcome, expected, lost(folder, whole, [named]), differences(folder, whole))


def reward_ends(drill: Drill, fault: str, wanted: str) -> Row:
    """A broken reward ends the run with one line; mended, it goes on."""
    whole = drill.whole("fresh", REWARD)[0]
    named = named_sample(whole)
    return stopped(drill, "fresh", f"reward: {fault} on {named}", wanted, reward=REWARD, environment=faulty((fault, named)))


# -- runs that end with a line


def stopped(
    drill: Drill,
    case: str,
    done: str,
    wanted: str,
    *,
    code: int = 2,
    reward: str = "qed",
    folder: Path | None = None,
    between: Callable[[], object] = lambda: None,
    **options: Any,
) -> Row:
    """A run that ends with one line (a pattern) and a whole checkpoint, and is continued after ``between``."""
    folder, whole = folder or drill.new("stopped"), drill.whole(case, reward)[0]
    ended = drill.run(command(case, folder, reward), **options)
    try:
        kept = Checkpoints(folder).latest().name
    except CheckpointError as error:
        kept = str(error)
    between()
    again = drill.run(["resume", str(folder)])
    said = ended.lines[0].replace(str(folder), "RUN") if ended.lines else "nothing said"
    return Row(
        done,
        f"{said!r} (exit code {ended.code}), {kept} whole; resumed: exit code {again.code}",
        one_line(ended, wanted, code) and kept.startswith("step-") and again.code == 0,
        lost(folder, whole),
        differences(folder, whole),
        [ended.lines, again.lines],
    )


def full_disk(drill: Drill, update: int, what: str, wanted: str) -> Row:
    """No space for what is written next; then there is again."""
    with small_disk(drill.new("disk")) as disk:
        ballast = disk / "others" if disk.is_mount() else None
        kind = "disk full" if ballast else "no file may grow"
        done = f"{kind} when {what}"
        fault = FullDisk(update, ballast)
        remove = (lambda: ballast.unlink()) if ballast else (lambda: None)
        return stopped(drill, "reuse", done, wanted, folder=disk / "run", between=remove, fault=fault)


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
    return stopped(drill, "reuse", "NaN in a gradient of update 6", "error: gradient norm is nan", fault=NaNGradient(5))


def asked_to_stop(drill: Drill, number: signal.Signals) -> Row:
    """A signal that may be handled, at a random moment of the updates."""
    numbers, folder = drill.random(number.name), drill.new(number.name)
    after, delay = numbers.randrange(1, 6), numbers.random() * 0.1

    def meanwhile(process: Any) -> None:
        wait_for_updates(folder, after, lambda: process.exitcode)
        time.sleep(delay)
        os.kill(process.pid, number)

    wanted = r"stopped at update \d+ of 8; saved, continue with: discrete-grpo resume"
    done = f"{number.name}, {delay:.2f} s after update {after}"
    return stopped(drill, "reuse", done, wanted, code=130, folder=folder, meanwhile=meanwhile)


# -- damaged files


def resumed(drill: Drill, folder: Path, done: str, warning: str) -> Row:
    """Continue a damaged copy of the half run; the damage must be named in a warning (a pattern)."""
    whole = drill.whole("reuse")[0]
    again = drill.run(["resume", str(folder)])
    said = [line.partition("Warning: ")[2] for line in again.text.splitlines() if "Warning: " in line]
    named = any(re.search(warning, line) for line in said)
    told = "; ".join(line.replace(str(folder), "RUN") for line in said) or "no warning"
    count = f"{len(counted(folder))} molecules counted of {len(molecules(folder))}"
    outcome = f"exit code {again.code}; {told}; {count}"
    return Row(done, outcome, again.code == 0 and named, lost(folder, whole), differences(folder, whole), [again.lines])


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
    launcher = started(command("shards", folder), log, processes=2)
    wait_for_updates(folder, 3, launcher.poll)
    ranks = children(launcher.pid)
    if len(ranks) == 2:
        os.kill(ranks[rank], signal.SIGKILL)
    code = launcher.wait(timeout=60)
    left = [pid for pid in ranks if Path(f"/proc/{pid}").exists()]
    done = f"command on two processes, SIGKILL of the {('first', 'second')[rank]}; resumed with {('one', 'two')[processes - 1]}"
    if len(ranks) != 2:
        said = next((line for line in log.read_text().splitlines() if line.startswith("discrete-grpo: ")), "")
        return Row(done, f"ended before: {said.replace(str(folder), 'RUN')}", False, lost(folder, whole), ["everything"])
    again = started(["resume", str(folder)], drill.new("log"), processes).wait(timeout=120)
    outcome = f"launcher's exit code {code}, {len(left)} processes left; resumed: exit code {again}"
    expected = code != 0 and not left and again == 0
    return Row(done, outcome, expected, lost(folder, whole), differences(folder, whole))
