"""What the conformance kit found: a row a law, printed as a plain table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Report", "Row"]


@dataclass(frozen=True)
class Row:
    """One law and what came of it.

    Attributes:
        law: its name.
        error: what was measured, smaller is better; NaN where skipped, inf where the law could not be measured.
        tolerance: the largest error that passes; NaN where nothing was measured.
        outcome: ``passed`` where error <= tolerance.
        note: what was measured, why it was skipped, or what is wrong.
        cause: why a law fails, where that could be found out: the law holds once the cause is removed.
    """

    law: str
    error: float
    tolerance: float
    outcome: Literal["passed", "failed", "skipped"]
    note: str = ""
    cause: str = ""

    @property
    def said(self) -> str:
        """Note and cause."""
        return "; ".join(filter(None, (self.note, self.cause and f"likely cause: {self.cause}")))


@dataclass(frozen=True)
class Report:
    """The rows of one run of the kit; ``str(report)`` is a table.

    >>> print(Report((Row("units", 2.0, 0.0, "failed", "the mask has 2 more"),)))
    law    error  tolerance  result  note
    units  2      0          failed  the mask has 2 more
    1 law: 0 passed, 1 failed, 0 skipped
    """

    rows: tuple[Row, ...]

    @property
    def passed(self) -> bool:
        """True if no law failed; skipped ones do not count."""
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
        """Nothing if every law holds.

        Raises:
            AssertionError: with the table as its text.
        """
        if not self.passed:
            raise AssertionError(f"policy: breaks {', '.join(self.failed)}\n{self}")

    def __str__(self) -> str:
        header = ("law", "error", "tolerance", "result", "note")
        lines = [(r.law, _number(r.error), _number(r.tolerance), r.outcome, r.said) for r in self.rows]
        widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
        table = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in (header, *lines)]
        counts = [f"{sum(r.outcome == x for r in self.rows)} {x}" for x in ("passed", "failed", "skipped")]
        return "\n".join([*table, f"{len(self.rows)} law{'s' * (len(self.rows) != 1)}: {', '.join(counts)}"])


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2g}"
