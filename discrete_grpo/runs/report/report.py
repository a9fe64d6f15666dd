"""The report of a run: one HTML file made from the files of the run folder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from discrete_grpo.runs.folder import CONFIG, EVALUATION_TABLES, METRICS, REPORT, SEARCH
from discrete_grpo.runs.recorder import read_evaluation, read_metrics, read_samples, read_search, write_text
from discrete_grpo.runs.report.curves import Metrics, curves_section, kind_of, merged, other_curves, unit_of
from discrete_grpo.runs.report.diagnosis import diagnosis, search_diagnosis
from discrete_grpo.runs.report.formatting import format_value, label_of, left_out, shortened
from discrete_grpo.runs.report.page import embedded, page
from discrete_grpo.runs.report.samples import best_samples_section, distributions_section, drawn_samples_section, examples_section

__all__ = ["RunReport", "write_report"]

CALLS = "oracle_calls"
_MOST_ROWS = 400  # of the table of key numbers
_MOST_TEXT = 100_000  # characters of the configuration
_TILES = {
    "training": {"reward": "reward", "valid": "valid", "unique": "unique", "kl": "KL (nats)", "entropy": "entropy (nats)"},
    "pretraining": {
        "loss": "loss",
        "eval/test_loss": "loss of test data",
        "eval/valid": "valid",
        "eval/unique": "unique",
        "eval/novel": "novel",
        "eval/vun": "V.U.N.",
    },
    "search": {"best": "best reward", "mean": "mean of the population", "drawn": "samples drawn"},
}
_ROUNDS = {"best/top1": "best reward", "best/top10": "mean of the ten best"}  # beside those of training, of an optimisation
_SHOWN: dict[str, Callable[[float], str]] = dict.fromkeys(("valid", "unique", "novel", "vun"), lambda v: f"{100 * v:.1f} %")
_SHOWN["drawn"] = lambda v: f"{v:,.0f}"


def write_report(folder: str | os.PathLike[str], *, render: Callable[[str], str | None] | None = None) -> Path:
    """Write ``report.html`` into a run folder from the files that exist; the run may still be going.

    Args:
        folder: a run folder; see :mod:`discrete_grpo.runs.recorder`.
        render: maps a sample to its picture as an ``<svg>`` element, or to None if it is to be shown as text.

    Returns:
        The path of the report.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if the metrics or samples of the folder hold anything else than this program writes.
    """
    run = Path(folder)
    if not run.is_dir():
        raise FileNotFoundError(f"folder: {run} is no folder, expected that of a run")
    metrics, measured = _metrics(run), _measured(run)
    evaluations = {place: run / table for place, table in EVALUATION_TABLES.items()}
    tables = {place: read_samples(path) for place, path in evaluations.items() if path.exists()}
    name = run.resolve().name
    sections = [
        f"<header><h1>{escape(name)}</h1>{_diagnosis(metrics)}{_tiles(metrics, measured)}</header>",
        _evaluation(measured),
        curves_section(metrics),
        distributions_section(tables),
        examples_section(tables, render),
        best_samples_section(run, render, unit_of(metrics)),
        drawn_samples_section(tables, render),
        other_curves(metrics),
        _config(run / CONFIG),
    ]
    target = run / REPORT
    write_text(target, page(f"{name}: report", "\n".join(part for part in sections if part)))
    return target


def _metrics(run: Path) -> Metrics:
    """The records of a run, or the rounds of a search."""
    for folder in (run, run / "offline"):  # off-line updates alone
        if (folder / METRICS).exists():
            return merged(read_metrics(folder))
    return [{"step": line.get("round"), **line} for line in read_search(run)] if (run / SEARCH).exists() else []


def _measured(run: Path) -> dict[str, dict[str, Any]]:
    """The evaluations of a run; a damaged file is reported and skipped."""
    try:
        return read_evaluation(run)
    except ValueError as error:
        warnings.warn(f"{error}; the report is made without it", RuntimeWarning, stacklevel=3)
        return {}


class RunReport:
    """The key numbers and training curves of a run folder, for a notebook; the run may still be going.

    Args:
        folder: a run folder; it is read anew each time the object is shown.

    Raises:
        FileNotFoundError: if there is no such folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(f"folder: {self.folder} is no folder, expected that of a run")

    def __repr__(self) -> str:
        metrics = _metrics(self.folder)
        name = next((n for n in ("reward", "loss") if _known(metrics, n)), None)
        values = [] if name is None else _known(metrics, name)
        about = f", {name} {format_value(values[0])} to {format_value(values[-1])}" if values else ""
        return f"RunReport({os.fspath(self.folder)!r}: {_count(metrics)} {unit_of(metrics)}s{about})"

    def _repr_html_(self) -> str:
        metrics, measured = _metrics(self.folder), _measured(self.folder)
        head = f"<h2>{escape(self.folder.resolve().name)}</h2>{_diagnosis(metrics)}{_tiles(metrics, measured)}"
        return embedded(head + _evaluation(measured) + curves_section(metrics))


def _known(metrics: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(v) for record in metrics if isinstance(v := record.get(name), (int, float))]


def _diagnosis(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Explain why nothing was learned and what to try, if that is the case."""
    found = search_diagnosis(metrics) if kind_of(metrics) == "search" else diagnosis(metrics)
    notes = "<br>".join(map(escape, found))
    return f'<p class="card" id="diagnosis" role="note">{notes}</p>' if notes else ""


def _calls(metrics: Sequence[Mapping[str, Any]], measured: Mapping[str, Mapping[str, Any]]) -> tuple[str, str, str] | None:
    """Make the tile of the oracle calls of the whole run, the last evaluation included."""
    trained, left = _known(metrics, "oracle/calls"), _known(metrics, "oracle/left")
    if not trained:
        return None
    total = max([trained[-1], *_known(list(measured.values()), CALLS)])
    if total > trained[-1]:
        return "oracle calls", f"{total:,.0f}", f"{trained[-1]:,.0f} before the last evaluation"
    return "oracle calls", f"{total:,.0f}", f"{left[-1]:,.0f} left" if left else "different samples scored"


def _count(metrics: Metrics) -> int:
    """Number of updates or rounds: of pretraining and of searches, whose first record is of no round, the last record's."""
    steps = _known(metrics, "step") if kind_of(metrics) in ("pretraining", "search") else []
    return int(steps[-1]) if steps else len(metrics)


def _tiles(metrics: Metrics, measured: Mapping[str, Mapping[str, Any]]) -> str:
    """Summarise the run in a few numbers: means over the first and the last tenth of the records."""
    if not metrics:
        return '<p class="note">No update has been recorded.</p>'
    unit, kind = unit_of(metrics), kind_of(metrics)
    tiles = [(f"{unit}s", f"{_count(metrics):,}", _spent(sum(_known(metrics, "step_time"))))]
    of_rounds = _ROUNDS if kind == "training" and unit == "round" else {}
    for name, label in {**of_rounds, **_TILES[kind]}.items():
        if values := _known(metrics, name):
            tenth = max(1, len(values) // 10) if kind != "search" else 1
            first, last = sum(values[:tenth]) / tenth, sum(values[-tenth:]) / tenth
            show = _SHOWN.get(name.removeprefix("eval/"), format_value)
            tiles.append((label, show(last), f"from {show(first)}" if len(values) > 1 else ""))
    if calls := _calls(metrics, measured):
        tiles.append(calls)
    cards = "".join(
        f'<div class="card"><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(c)}</small></dd></div>' for a, b, c in tiles
    )
    if len(metrics) == 1:
        note = f"The only {unit}."
    elif kind == "search" or len(metrics) < 20:
        note = f"The last {unit}; below it, the first."
    else:
        of = "records" if kind == "pretraining" else f"{unit}s"
        note = f"Means over the last tenth of the {of}; below them, means over the first tenth."
    return f'<p class="note">{note}</p><dl class="tiles" id="summary">{cards}</dl>'


def _spent(seconds: float) -> str:
    if seconds <= 0:
        return ""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"in {seconds / size:.1f} {unit}"
    return f"in {seconds:.1f} s"


def _counted(stage: Mapping[str, Any]) -> dict[str, Any]:
    """Convert numbers of calls and of samples to whole numbers, as in the tiles."""
    whole = (CALLS, "num_samples")
    return {k: int(v) if k in whole and isinstance(v, float) and v.is_integer() else v for k, v in stage.items()}


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested metrics to ``outer/inner`` names; lists are left out."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}/")
        elif not isinstance(value, list):
            flat[f"{prefix}{name}"] = value
    return flat


def _evaluation(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """Make the table of key numbers, one row per metric and one column each for before and after training."""
    stages = {name: _counted(_flat(stage)) for name, stage in measured.items()}
    names = list(dict.fromkeys(name for stage in stages.values() for name in stage))
    if not names:
        return ""
    compare = {"before", "after"} <= stages.keys()
    head = "".join(f'<th scope="col">{escape(label_of(s))}</th>' for s in [*stages, *(["change"] if compare else [])])
    rows, more = [], left_out(len(names), _MOST_ROWS, "rows")
    for name in names[:_MOST_ROWS]:
        cells = [shortened(format_value(stage.get(name)), 300) for stage in stages.values()]
        if compare:
            cells.append(_change(stages["before"].get(name), stages["after"].get(name)))
        rows.append(
            f'<tr><th scope="row">{escape(label_of(name))}</th>' + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>"
        )
    return (
        f'<section id="evaluation"><h2>Key numbers</h2>{more}<div class="card scroll" tabindex="0"><table>'
        f'<thead><tr><th scope="col">metric</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div></section>'
    )


def _change(before: Any, after: Any) -> str:
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in (before, after)):
        return "–"
    difference = after - before
    if abs(difference) <= 1e-6 * max(abs(before), abs(after)):  # sums in another order
        difference = 0
    return ("+" if difference > 0 else "") + format_value(difference)


def _config(path: Path) -> str:
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    more, shown = left_out(len(text), _MOST_TEXT, "characters"), escape(text[:_MOST_TEXT])
    return f'<details id="config"><summary>Configuration</summary>{more}<pre class="card">{shown}</pre></details>'
