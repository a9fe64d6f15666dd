"""Report of the conformance kit: one row per law, printed as a plain table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["Report", "Row"]


@dataclass(frozen=True)
class Row:
    """Result of one law.

    Attributes:
        law: name of the law.
        error: measured error; NaN if the law was skipped, inf if it could not be measured.
        tolerance: largest error that passes; NaN if nothing was measured.
        outcome: ``passed`` if error <= tolerance.
        note: details of the measurement, the reason for skipping, or the violation.
        cause: likely cause of a failure, if one was found.
    """

    law: str
    error: float
    tolerance: float
    outcome: Literal["passed", "failed", "skipped"]
    note: str = ""
    cause: str = ""

    @property
    def said(self) -> str:
        """Note and cause in one line."""
        return "; ".join(filter(None, (self.note, self.cause and f"likely cause: {self.cause}")))


@dataclass(frozen=True)
class Report:
    """Results of one run of the kit; ``str(report)`` is a table.

    >>> print(Report((Row("units", 2.0, 0.0, "failed", "the mask has 2 more"),)))
    law    error  tolerance  result  note
    units  2      0          failed  the mask has 2 more
    1 law: 0 passed, 1 failed, 0 skipped
    """

    rows: tuple[Row, ...]

    @property
    def passed(self) -> bool:
        """Whether no law failed; skipped laws are ignored."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the laws that failed."""
        return tuple(row.law for row in self.rows if row.outcome == "failed")

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the laws that were not measured."""
        return tuple(row.law for row in self.rows if row.outcome == "skipped")

    def raise_on_failure(self) -> None:
        """Raise unless every law holds.

        Raises:
            AssertionError: if a law failed; its text is the table.
        """
        if not self.passed:
            raise AssertionError(f"policy: breaks {', '.join(self.failed)}\n{self}")

    def __str__(self) -> str:
        header = ("law", "error", "tolerance", "result", "note")
        notes = zip(self.rows, self._notes(), strict=True)
        lines = [(r.law, _number(r.error), _number(r.tolerance), r.outcome, note) for r, note in notes]
        widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
        table = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in (header, *lines)]
        counts = [f"{sum(r.outcome == x for r in self.rows)} {x}" for x in ("passed", "failed", "skipped")]
        return "\n".join([*table, f"{len(self.rows)} law{'s' * (len(self.rows) != 1)}: {', '.join(counts)}"])

    def _notes(self) -> Iterator[str]:
        """Yield the note of each row; a failure with the same note as an earlier one, such as an exception, refers to it."""
        first: dict[str, str] = {}
        for row in self.rows:
            repeated = row.outcome == "failed" and row.said in first
            yield f"as {first[row.said]}" if repeated else row.said
            if row.outcome == "failed" and row.said:
                first.setdefault(row.said, row.law)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2g}"
