"""Log of the samples that a reward could not score, failures.jsonl of a run folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from discrete_grpo.core.scoring import Failure
from discrete_grpo.runs.folder import FAILURES
from discrete_grpo.runs.recorder import shown_text, write_text

__all__ = ["FailureLog"]


class FailureLog:
    """Appends one line per failure: ``step``, ``reward``, ``sample`` and ``reason``.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / FAILURES

    def add(self, step: int, failures: Mapping[str, Sequence[Failure]]) -> None:
        """Append the failures of update ``step``; without failures no file is made."""
        rows = [
            {"step": step, "reward": name, "sample": None if f.sample is None else shown_text(f.sample), "reason": f.reason}
            for name, found in failures.items()
            for f in found
        ]
        if rows:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(row)}\n" for row in rows))

    def forget_after(self, step: int) -> None:
        """Remove the lines of updates after ``step``, which are made again, and a torn line."""
        if not self.path.is_file():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int) and row["step"] <= step:
                kept.append(line)
        write_text(self.path, "".join(f"{line}\n" for line in kept))
