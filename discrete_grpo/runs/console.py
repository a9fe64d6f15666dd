"""Progress and tables on the terminal, or a few plain lines if the output is a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Column, Table
from rich.text import Text

__all__ = ["Progress", "print_notes", "print_table", "printable", "progress"]


def printable(text: str) -> str:
    r"""Replace control and format characters by escapes, so that a terminal shows them instead of executing them.

    >>> printable("\x1b[2Jé"), printable("one\u202etwo")
    ('\\x1b[2Jé', 'one\\u202etwo')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Progress(Protocol):
    """The interface of the object that :func:`progress` yields."""

    def advance(self, n: int = 1, **fields: float | str) -> None:
        """Count ``n`` more items as done; ``fields`` are shown beside the bar until the next call."""
        ...

    def reach(self, done: int, **fields: float | str) -> None:
        """Set the number of items done."""
        ...


@contextmanager
def progress(
    description: str,
    total: int | None,
    *,
    done: int = 0,
    console: Console | None = None,
    interval: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """Show the progress of a loop: a bar on a terminal, else a line at most every ``interval`` seconds and one at the end.

    Args:
        description: the activity in a word or two.
        total: number of items; None if unknown.
        done: items done before; rate and time left refer to the rest.
        console: where to write; standard error by default.
        interval: seconds between two plain lines.
        clock: returns seconds, for the plain lines.
    """
    out = console if console is not None else Console(stderr=True)
    if out.is_terminal:
        with _bar(out) as bar:
            yield _Bar(bar, description, total, done)
        return
    lines = _Lines(out, description, total, done, interval, clock)
    try:
        yield lines
    finally:
        lines.write()


def print_table(title: str, rows: Mapping[str, Mapping[str, float | str | None]], *, console: Console | None = None) -> None:
    """Print named rows as a table; its columns are all names in order of appearance, and a missing entry is a dash.

    Few rows of many numbers, which would make lines of more than 100 characters, are printed as columns.
    """
    out = console if console is not None else Console()
    if not rows:  # a title is no wider than its table
        out.print(printable(title), markup=False, highlight=False, soft_wrap=True)
        return
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    if len(rows) <= 3 and _row_width(rows, names) > (min(100, out.width) if out.is_terminal else 100):
        rows = {name: {label: row.get(name) for label, row in rows.items()} for name in names}
        names = list(next(iter(rows.values())))
    table = Table(title=_safe(title), title_justify="left", header_style="bold")
    table.add_column("", overflow="fold")
    for name in names:
        longest = max(len(printable(_show(row.get(name)))) for row in rows.values())
        table.add_column(_safe(name), justify="right", no_wrap=True, min_width=min(longest, 12))
    for label, row in rows.items():
        table.add_row(_safe(label), *[_safe(_show(row.get(name))) for name in names])
    if not out.is_terminal:  # a log file has no width, so no column is cut
        table.width = out.measure(table, options=out.options.update(width=100_000)).maximum
    out.print(table, crop=out.is_terminal)


def _row_width(rows: Mapping[str, Mapping[str, float | str | None]], names: Iterable[str]) -> int:
    return 4 + max(map(len, rows)) + sum(3 + max(len(name), 6) for name in names)


def print_notes(notes: Iterable[str], *, console: Console | None = None) -> None:
    """Print whole sentences, one per line, on standard error by default."""
    out = console if console is not None else Console(stderr=True)
    for note in notes:
        out.print(printable(note), markup=False, highlight=False, soft_wrap=True)


def _safe(text: str) -> str:
    return escape(printable(text))


def _show(value: float | str | None) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else str(value)


def _note(fields: Mapping[str, float | str]) -> str:
    shown = (f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in fields.items())
    return printable("  ".join(shown))


def _rate(speed: float | None) -> str:
    if not speed:
        return "–/s"
    return f"{speed:.3g}/s" if speed >= 0.1 else f"{1 / speed:.3g} s each"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_rate(task.finished_speed or task.speed), style="cyan")


def _bar(console: Console) -> RichProgress:
    return RichProgress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=max(4, min(28, console.width - 80))),
        MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=11)),
        _RateColumn(table_column=Column(no_wrap=True, min_width=6)),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn("{task.fields[note]}", markup=False, style="dim"),
        console=console,
    )


class _Bar:
    def __init__(self, bar: RichProgress, description: str, total: int | None, done: int) -> None:
        self._bar, self._done = bar, done
        self._task = bar.add_task(description, total=total, completed=done, note="")
        self._fields: dict[str, float | str] = {}

    def advance(self, n: int = 1, **fields: float | str) -> None:
        self.reach(self._done + n, **fields)

    def reach(self, done: int, **fields: float | str) -> None:
        self._done = done
        self._fields.update(fields)
        self._bar.update(self._task, completed=done, note=_note(self._fields))


class _Lines:
    def __init__(
        self, console: Console, description: str, total: int | None, done: int, interval: float, clock: Callable[[], float]
    ) -> None:
        self._console, self._description, self._total = console, description, total
        self._interval, self._clock = interval, clock
        self._start = self._last = clock()
        self._done = self._before = done
        self._fields: dict[str, float | str] = {}

    def advance(self, n: int = 1, **fields: float | str) -> None:
        self.reach(self._done + n, **fields)

    def reach(self, done: int, **fields: float | str) -> None:
        self._done = done
        self._fields.update(fields)
        if self._clock() - self._last >= self._interval and self._done != self._total:  # the last line is the end's
            self.write()

    def write(self) -> None:
        self._last = self._clock()
        spent = self._last - self._start
        speed = (self._done - self._before) / spent if spent > 0 else None
        parts = [f"{self._description} {self._done}" + (f"/{self._total}" if self._total is not None else ""), _rate(speed)]
        if self._total is not None and self._done < self._total and speed:
            parts.append(f"{_duration((self._total - self._done) / speed)} left")
        else:
            parts.append(f"{_duration(spent)} spent")
        if self._fields:
            parts.append(_note(self._fields))
        self._console.print("  ".join(parts), markup=False, highlight=False, soft_wrap=True)
