"""The report of a run: one HTML file made of whatever the run folder holds."""

from __future__ import annotations

import heapq
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from discrete_grpo.runs.report.diagnosis import diagnosis
from discrete_grpo.runs.report.page import page
from discrete_grpo.runs.recorder import (
    METRICS,
    SAMPLES,
    iter_samples,
    read_evaluation,
    read_metrics,
    read_samples,
    write_text,
)
from discrete_grpo.runs.report.charts import Line, Values, histogram, line_chart

__all__ = ["write_report"]

_MOST_SAMPLES = 24
_MOST_EXAMPLES = 10
_NO_PROPERTY = {"step", "group", "sample", "advantage", "valid"}  # columns of sample tables of which no histogram is drawn


@dataclass(frozen=True)
class _Chart:
    """Which metrics make a chart: those whose name ``pattern`` matches whole; its first group names the curve."""

    ident: str
    title: str
    y_label: str
    pattern: str
    y_range: tuple[float, float] | None = None
    spread: str | None = None  # the metric that gives the band of the first curve
    least: int = 1  # curves, or there is no chart


_CHARTS = (
    _Chart("chart-reward", "Reward", "reward, mean of an update’s samples", "(reward)", spread="reward_std"),
    _Chart("chart-rewards", "Reward by component", "reward, mean of an update’s samples", r"rewards/(.+)/mean", least=2),
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
    "low_mean": "below",
    "high_mean": "above",
    "region_mean": "either side",
}
CALLS = "oracle_calls"
_UNITS = {"step_time": "seconds an update"}
_PROPERTIES = {  # title and name of the axis, by column
    "qed": ("QED", "drug-likeness (0–1)"),
    "logp": ("logP", "octanol–water partition (log10)"),
    "sa": ("SA score", "synthetic accessibility (1 easy – 10 hard)"),
    "weight": ("Molecular weight", "g/mol"),
    "mw": ("Molecular weight", "g/mol"),
    "molecular_weight": ("Molecular weight", "g/mol"),
    "tpsa": ("Polar surface area", "Å²"),
    "num_atoms": ("Atoms", "heavy atoms"),
}


def write_report(folder: str | os.PathLike[str], *, draw: Callable[[str], str | None] | None = None) -> Path:
    """Write ``report.html`` into a run folder, from whatever of its files exist; the run may still be going.

    Args:
        folder: a run folder; see :mod:`discrete_grpo.runs.recorder`.
        draw: gives the picture of a sample as an ``<svg>`` element, or None if it cannot be drawn (it is shown as text then).

    Returns:
        The path of the report.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if a file of the folder holds something else than this program writes.
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
        _distributions(tables),
        _examples(tables, draw),
        _best_samples(run, draw),
        _other_curves(metrics),
        _config(run / "config.yaml"),
    ]
    target = run / "report.html"
    write_text(target, page(f"{name}: report", "\n".join(part for part in sections if part)))
    return target


def _known(metrics: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(v) for record in metrics if isinstance(v := record.get(name), (int, float))]


def _diagnosis(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Why nothing was learned and what to try, where that is so."""
    notes = "<br>".join(map(escape, diagnosis(metrics)))
    return f'<p class="card" id="diagnosis" role="note">{notes}</p>' if notes else ""


def _calls(metrics: Sequence[Mapping[str, Any]], measured: Mapping[str, Mapping[str, Any]]) -> tuple[str, str, str] | None:
    """The tile of the oracle calls of the whole run: those of the last evaluation, too, once there is one."""
    trained, left = _known(metrics, "oracle/calls"), _known(metrics, "oracle/left")
    if not trained:
        return None
    total = max([trained[-1], *_known(list(measured.values()), CALLS)])
    if total > trained[-1]:
        return "oracle calls", f"{total:,.0f}", f"{trained[-1]:,.0f} before the last evaluation"
    return "oracle calls", f"{total:,.0f}", f"{left[-1]:,.0f} left" if left else "different valid samples scored"


def _tiles(metrics: Sequence[Mapping[str, Any]], measured: Mapping[str, Mapping[str, Any]]) -> str:
    """The run in a few numbers: means over the first and the last tenth of the updates."""
    if not metrics:
        return '<p class="note">No update has been recorded.</p>'
    tiles = [("updates", f"{len(metrics)}", _spent(sum(_known(metrics, "step_time"))))]
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
            show = (lambda v: f"{100 * v:.1f} %") if name in ("valid", "unique") else _show
            tiles.append((label, show(last), f"from {show(first)}"))
    if calls := _calls(metrics, measured):
        tiles.append(calls)
    cards = "".join(
        f'<div class="card"><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(c)}</small></dd></div>' for a, b, c in tiles
    )
    return (
        '<p class="note">Means over the last tenth of the updates, and over the first tenth below them.</p>'
        f'<dl class="tiles" id="summary">{cards}</dl>'
    )


def _spent(seconds: float) -> str:
    if seconds <= 0:
        return ""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"in {seconds / size:.1f} {unit}"
    return f"in {seconds:.1f} s"


def _show(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    count = isinstance(value, int) or (abs(value) >= 100 and value.is_integer())
    if value == 0 or count or abs(value) >= 1000:
        text = f"{value:.0f}"
    elif abs(value) < 1e-3:
        text = f"{value:.2e}"
    else:
        text = f"{value:.{3 if abs(value) < 10 else 2 if abs(value) < 100 else 1}f}"
    return text.replace("-", "−")


def _pretty(name: str) -> str:
    return name.replace("_", " ").replace("/", " / ")


def _counted(stage: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the oracle calls as a whole number, as the tile has it."""
    return {k: int(v) if k == CALLS and isinstance(v, float) and v.is_integer() else v for k, v in stage.items()}


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested metrics by ``outer/inner`` name; lists are left out."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}/")
        elif not isinstance(value, list):
            flat[f"{prefix}{name}"] = value
    return flat


def _evaluation(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of key numbers: a row a metric, a column each of before and after."""
    stages = {name: _counted(_flat(stage)) for name, stage in measured.items()}
    names = list(dict.fromkeys(name for stage in stages.values() for name in stage))
    if not names:
        return ""
    compare = {"before", "after"} <= stages.keys()
    head = "".join(f'<th scope="col">{escape(_pretty(s))}</th>' for s in [*stages, *(["change"] if compare else [])])
    rows = []
    for name in names:
        cells = [_show(stage.get(name)) for stage in stages.values()]
        if compare:
            cells.append(_change(stages["before"].get(name), stages["after"].get(name)))
        rows.append(f'<tr><th scope="row">{escape(_pretty(name))}</th>' + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")
    return (
        '<section id="evaluation"><h2>Key numbers</h2><div class="card scroll"><table>'
        f'<thead><tr><th scope="col">metric</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div></section>'
    )


def _change(before: Any, after: Any) -> str:
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in (before, after)):
        return "–"
    difference = after - before
    return ("+" if difference > 0 else "") + _show(difference)


def _lines(chart: _Chart, metrics: Sequence[Mapping[str, Any]]) -> list[Line]:
    names = dict.fromkeys(name for record in metrics for name in record)
    lines: list[Line] = []
    for name in names:
        found = re.fullmatch(chart.pattern, name)
        values = [v if isinstance(v := record.get(name), (int, float)) else None for record in metrics]
        if found is None or all(v is None for v in values):
            continue
        label = _CURVE_NAMES.get(found.group(1), _pretty(found.group(1)))
        spread = [record.get(chart.spread) for record in metrics] if chart.spread and not lines else []
        band = spread if any(s is not None for s in spread) else None
        steps = [float(record.get("step") or k) for k, record in enumerate(metrics, 1)]
        lines.append(Line(f"{label} ± standard deviation" if band else label, steps, values, band))
    return lines


def _chart_card(title: str, svg: str) -> str:
    return f'<figure class="card chart"><figcaption>{escape(title)}</figcaption>{svg}</figure>'


def _charts(charts: Iterable[_Chart], metrics: Sequence[Mapping[str, Any]]) -> str:
    cards = []
    for chart in charts:
        lines = _lines(chart, metrics)
        if len(lines) >= chart.least:
            svg = line_chart(
                lines, ident=chart.ident, title=chart.title, x_label="update", y_label=chart.y_label, y_range=chart.y_range
            )
            cards.append(_chart_card(chart.title, svg))
    return f'<div class="grid">{"".join(cards)}</div>' if cards else ""


def _curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    charts = _charts(_CHARTS, metrics)
    note = '<p class="note">Faint: each update. Bold: moving average over a twentieth of the run.</p>' if len(metrics) >= 40 else ""
    return f'<section id="curves"><h2>Training</h2>{note}{charts}</section>' if charts else ""


def _other_curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Everything recorded that no chart above shows, folded away."""
    names = list(dict.fromkeys(name for record in metrics for name in record))
    shown = {"step", "reward_std"}
    for chart in _CHARTS:
        matched = [name for name in names if re.fullmatch(chart.pattern, name)]
        shown |= set(matched) if len(matched) >= chart.least else set()
    rest = [name for name in names if name not in shown]
    charts = _charts(
        [_Chart(f"chart-other-{k}", _pretty(n), _UNITS.get(n, _pretty(n)), f"({re.escape(n)})") for k, n in enumerate(rest)],
        metrics,
    )
    return f'<details id="other"><summary>Other recorded quantities</summary>{charts}</details>' if charts else ""


def _numbers(cells: Sequence[str]) -> list[float]:
    """The finite numbers of a column; none if any cell is neither a number nor empty."""
    try:
        values = [float(cell) for cell in cells if cell]
    except ValueError:
        return []
    return [value for value in values if math.isfinite(value)]


def _conditions(tables: Mapping[str, Mapping[str, Sequence[str]]]) -> list[str]:
    """What the samples were asked for: the columns that stand before them, where they are the same before and after."""
    if len(tables) < 2:
        return []
    first, second = tables.values()
    asked = list(first)[: list(first).index("sample")] if "sample" in first else []
    return [name for name in asked if name not in _NO_PROPERTY and first[name] == second.get(name)]


def _examples(tables: Mapping[str, Mapping[str, Sequence[str]]], draw: Callable[[str], str | None] | None) -> str:
    """For some conditions in turn, the samples drawn under them before and after training."""
    names = _conditions(tables)
    if not names:
        return ""
    first = next(iter(tables.values()))
    asked = list(zip(*(first[n] for n in names), strict=True))
    rows = list({condition: k for k, condition in reversed(list(enumerate(asked)))}.values())[::-1][:_MOST_EXAMPLES]
    body = []
    for k in rows:
        cells = [f"<td><code>{escape(cell)}</code></td>" for cell in asked[k]]
        for table in tables.values():
            reward = _numbers([table.get("reward", [""] * (k + 1))[k]])
            picture = (draw(table["sample"][k]) if draw and table["sample"][k] else None) or _as_text(table["sample"][k])
            cells.append(f"<td>{picture}<small>{_show(reward[0]) if reward else ''}</small></td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f'<th scope="col">{escape(_pretty(n))}</th>' for n in [*names, *tables])
    note = '<p class="note">One sample a condition, drawn before and after training, with its reward.</p>'
    return (
        f'<section id="examples"><h2>Examples by condition</h2>{note}<div class="card scroll"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div></section>"
    )


def _as_text(sample: str) -> str:
    return f"<code>{escape(sample)}</code>" if sample else "<i>invalid</i>"


def _distributions(tables: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    left_out = {*_NO_PROPERTY, *_conditions(tables)}
    names = dict.fromkeys(name for table in tables.values() for name in table if name not in left_out)
    cards = []
    for k, name in enumerate(names):
        sets = [Values(place, values) for place, table in tables.items() if (values := _numbers(table.get(name, ())))]
        if sets:
            plain = _pretty(name)
            title, label = _PROPERTIES.get(name.lower(), (plain[:1].upper() + plain[1:], plain))
            cards.append(
                _chart_card(title, histogram(sets, ident=f"chart-distribution-{k}", title=f"Distribution of {name}", x_label=label))
            )
    if not cards:
        return ""
    which = " and ".join(f"{place} training" for place in tables)
    note = f'<p class="note">Samples drawn {escape(which)}. Dashed: mean.</p>'
    return f'<section id="distributions"><h2>Property distributions</h2>{note}<div class="grid">{"".join(cards)}</div></section>'


def _top(best: Mapping[str, tuple[float, str]]) -> dict[str, tuple[float, str]]:
    return dict(heapq.nlargest(_MOST_SAMPLES, best.items(), key=lambda item: item[1][0]))


def _best(run: Path) -> dict[str, tuple[float, str]]:
    """The unique samples of highest reward, of training and of the evaluation after it: reward, and where it was reached."""
    best: dict[str, tuple[float, str]] = {}
    for path in (run / SAMPLES, run / "evaluation_after.csv.gz"):
        for row in iter_samples(path) if path.exists() else ():
            reward = _numbers([row.get("reward", "")])
            sample = row.get("sample", "")
            if reward and sample and (sample not in best or reward[0] > best[sample][0]):
                best[sample] = (reward[0], f"update {row['step']}" if "step" in row else "evaluation")
            if len(best) > 4096:  # a long run has more samples than memory should hold
                best = _top(best)
    return _top(best)


def _best_samples(run: Path, draw: Callable[[str], str | None] | None) -> str:
    figures = []
    for sample, (reward, origin) in _best(run).items():
        drawing = draw(sample) if draw is not None else None
        text = escape(sample if len(sample) <= 300 else f"{sample[:300]}…")
        picture = f'{drawing}<code title="{escape(sample)}">{text}</code>' if drawing else f'<div class="text">{text}</div>'
        figures.append(f'<figure class="card">{picture}<figcaption><b>{_show(reward)}</b>{escape(origin)}</figcaption></figure>')
    if not figures:
        return ""
    text = f"The {len(figures)} unique samples of highest reward, with the reward and where each was first reached."
    note = f'<p class="note">{text}</p>'
    return f'<section id="samples"><h2>Best samples</h2>{note}<div class="grid">{"".join(figures)}</div></section>'


def _config(path: Path) -> str:
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    return f'<details id="config"><summary>Configuration</summary><pre class="card">{escape(text)}</pre></details>'
