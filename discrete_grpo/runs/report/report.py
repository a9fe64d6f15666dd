"""The report of a run: one HTML file made from the files of the run folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from discrete_grpo.runs.recorder import METRICS, read_evaluation, read_metrics, read_samples, write_text
from discrete_grpo.runs.report.charts import MOST_POINTS, Line, line_chart
from discrete_grpo.runs.report.diagnosis import diagnosis
from discrete_grpo.runs.report.formatting import chart_card, format_value, label_of, shortened
from discrete_grpo.runs.report.page import embedded, page
from discrete_grpo.runs.report.samples import best_samples_section, distributions_section, examples_section

__all__ = ["RunReport", "write_report"]


@dataclass(frozen=True)
class _Chart:
    """A chart of the metrics whose whole name matches ``pattern``; the pattern's first group names the curve."""

    ident: str
    title: str
    y_label: str
    pattern: str
    y_range: tuple[float, float] | None = None
    spread: str | None = None  # the metric that gives the band of the first curve
    least: int = 1  # curves, or there is no chart


_CHARTS = (
    _Chart("chart-reward", "Reward", "reward, mean of the samples of each {unit}", "(reward)", spread="reward_std"),
    _Chart("chart-best", "Best so far", "reward of the best samples of the run", r"best/(.+)"),
    _Chart("chart-rewards", "Reward by component", "reward, mean of the samples of each {unit}", r"rewards/(.+)/mean", least=2),
    _Chart("chart-valid", "Validity", "valid samples (fraction)", "(valid)", (0.0, 1.0)),
    _Chart("chart-unique", "Uniqueness", "unique samples (fraction)", "(unique)", (0.0, 1.0)),
    _Chart("chart-novel", "Novelty", "novel samples (fraction)", "(novel)", (0.0, 1.0)),
    _Chart("chart-diversity", "Diversity", "of valid samples (fraction)", "(unique_scaffolds|internal_diversity)", (0.0, 1.0)),
    _Chart("chart-oracle", "Oracle calls", "different valid samples scored", "(oracle/calls)"),
    _Chart("chart-kl", "KL divergence from the reference", "KL (nats)", "(kl|kl_.+|kl/.+)"),
    _Chart("chart-entropy", "Entropy of the policy", "entropy (nats)", "(entropy)"),
    _Chart("chart-clip", "Clipped ratios", "clipped terms (fraction)", r"clip_ratio/(.+)"),
    _Chart("chart-zero-std", "Groups without signal", "groups of equal rewards (fraction)", "(frac_reward_zero_std)", (0.0, 1.0)),
    _Chart("chart-grad", "Gradient norm", "gradient norm before clipping", "(grad_norm)"),
)

_CURVE_NAMES = {
    "kl": "KL(policy ‖ reference)",
    "kl_forward": "KL(reference ‖ policy)",
    "frac_reward_zero_std": "zero-spread groups",
    "unique_scaffolds": "distinct scaffolds",
    "internal_diversity": "internal diversity",
    "oracle/calls": "calls",
    "top1": "the best",
    "top10": "mean of the ten best",
    "low_mean": "below",
    "high_mean": "above",
    "region_mean": "either side",
}
CALLS = "oracle_calls"
_MOST_ROWS = 400  # of the table of key numbers
_MOST_CHARTS = 100  # of quantities without a chart of their own
_MOST_TEXT = 100_000  # characters of the configuration
_UNITS = {"step_time": "seconds per {unit}"}


def write_report(folder: str | os.PathLike[str], *, render: Callable[[str], str | None] | None = None) -> Path:
    """Write ``report.html`` into a run folder from the files that exist; the run may still be going.

    Args:
        folder: a run folder; see :mod:`discrete_grpo.runs.recorder`.
        render: maps a sample to its picture as an ``<svg>`` element, or to None if it is to be shown as text.

    Returns:
        The path of the report.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if a file of the folder holds anything else than this program writes.
    """
    run = Path(folder)
    if not run.is_dir():
        raise FileNotFoundError(f"folder: {run} is no folder, expected that of a run")
    metrics = read_metrics(run) if (run / METRICS).exists() else []
    measured = read_evaluation(run)
    evaluations = {place: run / f"evaluation_{place}.csv.gz" for place in ("before", "after")}
    tables = {place: read_samples(path) for place, path in evaluations.items() if path.exists()}
    name = run.resolve().name
    sections = [
        f"<header><h1>{escape(name)}</h1>{_diagnosis(metrics)}{_tiles(metrics, measured)}</header>",
        _evaluation(measured),
        _curves(metrics),
        distributions_section(tables),
        examples_section(tables, render),
        best_samples_section(run, render, _unit(metrics)),
        _other_curves(metrics),
        _config(run / "config.yaml"),
    ]
    target = run / "report.html"
    write_text(target, page(f"{name}: report", "\n".join(part for part in sections if part)))
    return target


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

    def _metrics(self) -> list[dict[str, float | None]]:
        return read_metrics(self.folder) if (self.folder / METRICS).exists() else []

    def __repr__(self) -> str:
        metrics = self._metrics()
        rewards = _known(metrics, "reward")
        about = f", reward {format_value(rewards[0])} to {format_value(rewards[-1])}" if rewards else ""
        return f"RunReport({os.fspath(self.folder)!r}: {len(metrics)} {_unit(metrics)}s{about})"

    def _repr_html_(self) -> str:
        metrics, measured = self._metrics(), read_evaluation(self.folder)
        head = f"<h2>{escape(self.folder.resolve().name)}</h2>{_diagnosis(metrics)}{_tiles(metrics, measured)}"
        return embedded(head + _evaluation(measured) + _curves(metrics))


def _unit(metrics: Sequence[Mapping[str, Any]]) -> str:
    """The unit of a line of metrics: ``update``, or ``round`` for runs that make several updates on a memory."""
    return "round" if any("restarts" in record and "memory" in record for record in metrics) else "update"


def _known(metrics: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(v) for record in metrics if isinstance(v := record.get(name), (int, float))]


def _diagnosis(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Say why nothing was learned and what to try, where that is so."""
    notes = "<br>".join(map(escape, diagnosis(metrics)))
    return f'<p class="card" id="diagnosis" role="note">{notes}</p>' if notes else ""


def _calls(metrics: Sequence[Mapping[str, Any]], measured: Mapping[str, Mapping[str, Any]]) -> tuple[str, str, str] | None:
    """Make the tile of the oracle calls of the whole run, the last evaluation included."""
    trained, left = _known(metrics, "oracle/calls"), _known(metrics, "oracle/left")
    if not trained:
        return None
    total = max([trained[-1], *_known(list(measured.values()), CALLS)])
    if total > trained[-1]:
        return "oracle calls", f"{total:,.0f}", f"{trained[-1]:,.0f} before the last evaluation"
    return "oracle calls", f"{total:,.0f}", f"{left[-1]:,.0f} left" if left else "different valid samples scored"


def _tiles(metrics: Sequence[Mapping[str, Any]], measured: Mapping[str, Mapping[str, Any]]) -> str:
    """Summarise the run in a few numbers: means over the first and the last tenth of the updates."""
    if not metrics:
        return '<p class="note">No update has been recorded.</p>'
    unit = _unit(metrics)
    tiles = [(f"{unit}s", f"{len(metrics)}", _spent(sum(_known(metrics, "step_time"))))]
    for name, label in (
        ("reward", "reward"),
        ("valid", "valid"),
        ("unique", "unique"),
        ("kl", "KL (nats)"),
        ("entropy", "entropy (nats)"),
    ):
        if values := _known(metrics, name):
            tenth = max(1, len(values) // 10)
            first, last = sum(values[:tenth]) / tenth, sum(values[-tenth:]) / tenth
            show = (lambda v: f"{100 * v:.1f} %") if name in ("valid", "unique") else format_value
            tiles.append((label, show(last), f"from {show(first)}"))
    if calls := _calls(metrics, measured):
        tiles.append(calls)
    cards = "".join(
        f'<div class="card"><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(c)}</small></dd></div>' for a, b, c in tiles
    )
    return (
        f'<p class="note">Means over the last tenth of the {unit}s; below them, means over the first tenth.</p>'
        f'<dl class="tiles" id="summary">{cards}</dl>'
    )


def _spent(seconds: float) -> str:
    if seconds <= 0:
        return ""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"in {seconds / size:.1f} {unit}"
    return f"in {seconds:.1f} s"


def _counted(stage: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the number of oracle calls to a whole number, as in the tile."""
    return {k: int(v) if k == CALLS and isinstance(v, float) and v.is_integer() else v for k, v in stage.items()}


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
    rows, more = [], _left_out(len(names), _MOST_ROWS, "rows")
    for name in names[:_MOST_ROWS]:
        cells = [shortened(format_value(stage.get(name)), 300) for stage in stages.values()]
        if compare:
            cells.append(_change(stages["before"].get(name), stages["after"].get(name)))
        rows.append(
            f'<tr><th scope="row">{escape(label_of(name))}</th>' + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>"
        )
    return (
        f'<section id="evaluation"><h2>Key numbers</h2>{more}<div class="card scroll"><table>'
        f'<thead><tr><th scope="col">metric</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div></section>'
    )


def _left_out(count: int, most: int, what: str) -> str:
    """Say that a table or a text is cut; empty if it is whole."""
    return f'<p class="note">The first {most:,} of {count:,} {what}.</p>' if count > most else ""


def _change(before: Any, after: Any) -> str:
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in (before, after)):
        return "–"
    difference = after - before
    return ("+" if difference > 0 else "") + format_value(difference)


def _names(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for record in metrics for name in record))


def _lines(chart: _Chart, metrics: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Line]:
    lines: list[Line] = []
    for name, found in ((name, found) for name in names if (found := re.fullmatch(chart.pattern, name)) is not None):
        values = [v if isinstance(v := record.get(name), (int, float)) else None for record in metrics]
        if all(v is None for v in values):
            continue
        label = _CURVE_NAMES.get(found.group(1), label_of(found.group(1)))
        spread = [record.get(chart.spread) for record in metrics] if chart.spread and not lines else []
        band = spread if any(s is not None for s in spread) else None
        steps = [float(record.get("step") or k) for k, record in enumerate(metrics, 1)]
        lines.append(Line(f"{label} ± standard deviation" if band else label, steps, values, band))
    return lines


def _charts(charts: Iterable[_Chart], metrics: Sequence[Mapping[str, Any]]) -> str:
    cards, names, unit = [], _names(metrics), _unit(metrics)
    for chart in charts:
        lines = _lines(chart, metrics, names)
        if len(lines) >= chart.least:
            svg = line_chart(
                lines,
                ident=chart.ident,
                title=chart.title,
                x_label=unit,
                y_label=chart.y_label.replace("{unit}", unit),
                y_range=chart.y_range,
            )
            cards.append(chart_card(chart.title, svg))
    return f'<div class="grid">{"".join(cards)}</div>' if cards else ""


def _curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    charts = _charts(_CHARTS, metrics)
    return f'<section id="curves"><h2>Training</h2>{_curve_note(len(metrics), _unit(metrics))}{charts}</section>' if charts else ""


def _curve_note(updates: int, unit: str) -> str:
    """Say what is drawn, and what is left out of long runs."""
    if updates < 40:
        return ""
    text = f"Faint: each {unit}. Bold: moving average over a twentieth of the run."
    if updates > MOST_POINTS:
        stretch = "the lowest and the highest of each of many short stretches"
        text += f" Of {updates:,} {unit}s at most {MOST_POINTS} are drawn: {stretch}. metrics.jsonl has all of them."
    return f'<p class="note">{text}</p>'


def _other_curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Show every recorded quantity without a chart above, folded away."""
    names = _names(metrics)
    shown = {"step", "reward_std"}
    for chart in _CHARTS:
        matched = [name for name in names if re.fullmatch(chart.pattern, name)]
        shown |= set(matched) if len(matched) >= chart.least else set()
    rest = [name for name in names if name not in shown]
    charts = _charts(
        [
            _Chart(f"chart-other-{k}", label_of(n), _UNITS.get(n, label_of(n)), f"({re.escape(n)})")
            for k, n in enumerate(rest[:_MOST_CHARTS])
        ],
        metrics,
    )
    more = _left_out(len(rest), _MOST_CHARTS, "quantities")
    return f'<details id="other"><summary>Other recorded quantities</summary>{more}{charts}</details>' if charts else ""


def _config(path: Path) -> str:
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    more, shown = _left_out(len(text), _MOST_TEXT, "characters"), escape(text[:_MOST_TEXT])
    return f'<details id="config"><summary>Configuration</summary>{more}<pre class="card">{shown}</pre></details>'
