"""The curves of a report: the quantities with a separate chart, by kind of run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from discrete_grpo.runs.report.charts import MOST_POINTS, Line, line_chart
from discrete_grpo.runs.report.formatting import chart_card, label_of, left_out

__all__ = ["Metrics", "curves_section", "kind_of", "merged", "other_curves", "unit_of"]

Metrics = Sequence[Mapping[str, Any]]
Kind = Literal["training", "pretraining", "search"]


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
    raw: bool = False  # the pattern's group is a name of the user's, shown as it is
    lone: bool = False  # a single curve is named before the y label
    noisy: bool = True  # long curves get a moving average


_GRADIENT = _Chart("chart-grad", "Gradient norm", "gradient norm before clipping", "(grad_norm)")
_TRAINING = (
    _Chart("chart-reward", "Reward", "reward, mean of the samples of each {unit}", "(reward)", spread="reward_std"),
    _Chart("chart-best", "Best so far", "reward of the best samples of the run", r"best/(.+)", noisy=False),
    _Chart(
        "chart-rewards",
        "Reward by component",
        "reward, mean of the samples of each {unit}",
        r"rewards/(.+)/mean",
        least=2,
        raw=True,
    ),
    _Chart("chart-valid", "Validity", "valid samples (fraction)", "(valid)", (0.0, 1.0)),
    _Chart("chart-unique", "Uniqueness", "unique samples (fraction)", "(unique)", (0.0, 1.0)),
    _Chart("chart-novel", "Novelty", "novel samples (fraction)", "(novel)", (0.0, 1.0)),
    _Chart(
        "chart-diversity",
        "Diversity",
        "of valid samples (fraction)",
        "(unique_scaffolds|internal_diversity)",
        (0.0, 1.0),
        lone=True,
    ),
    _Chart("chart-size", "Size of the samples", "nodes or tokens", "(size/mean|size/min|size/max)"),
    _Chart("chart-oracle", "Oracle calls", "different samples scored", "(oracle/calls)", noisy=False),
    _Chart("chart-kl", "KL divergence from the reference", "KL (nats)", "(kl|kl_.+|kl/.+)"),
    _Chart("chart-entropy", "Entropy of the policy", "entropy (nats)", "(entropy)"),
    _Chart("chart-clip", "Clipped ratios", "clipped terms (fraction)", r"clip_ratio/(.+)"),
    _Chart("chart-zero-std", "Groups without signal", "groups of equal rewards (fraction)", "(frac_reward_zero_std)", (0.0, 1.0)),
    _GRADIENT,
)
_PRETRAINING = (
    _Chart("chart-loss", "Loss", "loss, mean since the record before", "(loss|eval/test_loss)"),
    _Chart("chart-valid", "Validity", "valid samples (fraction)", "eval/(valid|connected|undecided)", (0.0, 1.0), lone=True),
    _Chart("chart-unique", "Uniqueness and novelty", "samples (fraction)", "eval/(unique|novel|vun)", (0.0, 1.0), lone=True),
    _Chart("chart-mmd", "Distance to the reference", "MMD", "eval/mmd_(.+)"),
    _Chart("chart-ratio", "MMD ratio", "of the distance of training graphs", "eval/(ratio)"),
    _Chart("chart-test", "Held-out data", "fraction", "eval/(test_accuracy|recovered|ranking_quality)", (0.0, 1.0), lone=True),
    _GRADIENT,
)
_SEARCH = (
    _Chart("chart-search", "Best samples", "reward", "(best|mean)", noisy=False),
    _Chart("chart-reward", "Reward", "reward, mean of the samples of each {unit}", "(reward)"),
    _Chart("chart-entered", "New among the best", "samples", "(entered)"),
)
_CHARTS: dict[Kind, tuple[_Chart, ...]] = {"training": _TRAINING, "pretraining": _PRETRAINING, "search": _SEARCH}

_CURVE_NAMES = {
    "kl": "KL(policy ‖ reference)",
    "kl_forward": "KL(reference ‖ policy)",
    "frac_reward_zero_std": "zero-spread groups",
    "unique_scaffolds": "distinct scaffolds",
    "internal_diversity": "internal diversity",
    "size/mean": "mean",
    "size/min": "the smallest",
    "size/max": "the largest",
    "oracle/calls": "calls",
    "top1": "the best",
    "top10": "mean of the ten best",
    "low_mean": "below",
    "high_mean": "above",
    "region_mean": "either side",
    "eval/test_loss": "test data",
    "vun": "valid, unique and novel",
    "best": "the best",
    "mean": "mean of the population",
}
_MOST_CHARTS = 100  # quantities without a separate chart
_UNITS = {"step_time": "seconds per {unit}"}


def merged(metrics: Metrics) -> list[Mapping[str, Any]]:
    """Neighbouring records of one step as one record; pretraining writes its evaluation as a record of its own."""
    found: list[Mapping[str, Any]] = []
    for record in metrics:
        same = bool(found) and record.get("step") is not None and found[-1].get("step") == record["step"]
        found[-1:] = [{**found[-1], **record}] if same else [*found[-1:], record]
    return found


def kind_of(metrics: Metrics) -> Kind:
    """The kind of run that wrote these metrics; lines of a search have the number of samples that entered its population."""
    if any("entered" in record for record in metrics):
        return "search"
    names = {name for record in metrics for name in record}
    likelihood = "loss" in names and "reward" not in names and not any(name.startswith("offline/") for name in names)
    return "pretraining" if likelihood else "training"


def unit_of(metrics: Metrics) -> str:
    """The unit of a line of metrics: ``update``, or ``round`` for runs that make several updates on a memory and for searches."""
    rounds = any("restarts" in record and "memory" in record for record in metrics) or kind_of(metrics) == "search"
    return "round" if rounds else "update"


def curves_section(metrics: Metrics) -> str:
    """The charts of the main quantities of a run of this kind."""
    charts = _charts(_CHARTS[kind_of(metrics)], metrics)
    title = "Search" if kind_of(metrics) == "search" else "Training"
    return f'<section id="curves"><h2>{title}</h2>{_note(metrics)}{charts}</section>' if charts else ""


def other_curves(metrics: Metrics) -> str:
    """Show every other recorded quantity in a collapsed section."""
    names = _names(metrics)
    shown = {"step", "reward_std"}
    for chart in _CHARTS[kind_of(metrics)]:
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
    more = left_out(len(rest), _MOST_CHARTS, "quantities")
    return f'<details id="other"><summary>Other recorded quantities</summary>{more}{charts}</details>' if charts else ""


def _names(metrics: Metrics) -> list[str]:
    return list(dict.fromkeys(name for record in metrics for name in record))


def _line(name: str, label: str, metrics: Metrics, spread: str | None, joined: bool, noisy: bool) -> Line | None:
    """The curve of a metric, ``joined`` across records without it or not; None if it has no value."""
    points = [
        (float(k if (step := record.get("step")) is None else step), record)
        for k, record in enumerate(metrics, 1)
        if name in record or not joined
    ]
    values = [v if isinstance(v := record.get(name), (int, float)) else None for _, record in points]
    if all(v is None for v in values):
        return None
    found = [record.get(spread) for _, record in points] if spread else []
    band = found if any(s is not None for s in found) else None
    return Line(label, [step for step, _ in points], values, band, noisy)


def _lines(chart: _Chart, metrics: Metrics, names: Sequence[str], joined: bool) -> list[Line]:
    lines: list[Line] = []
    for name, found in ((name, found) for name in names if (found := re.fullmatch(chart.pattern, name)) is not None):
        label = found.group(1) if chart.raw else _CURVE_NAMES.get(found.group(1), label_of(found.group(1)))
        line = _line(name, label, metrics, None if lines else chart.spread, joined, chart.noisy)
        lines += [] if line is None else [line]
    return lines


def _charts(charts: Iterable[_Chart], metrics: Metrics) -> str:
    cards, names, unit = [], _names(metrics), unit_of(metrics)
    joined = kind_of(metrics) == "pretraining"  # an evaluation is a record of some updates only
    for chart in charts:
        lines = _lines(chart, metrics, names, joined)
        if len(lines) >= chart.least:
            y_label = chart.y_label.replace("{unit}", unit)
            svg = line_chart(
                lines,
                ident=chart.ident,
                title=chart.title,
                x_label=unit,
                y_label=f"{lines[0].name}: {y_label}" if chart.lone and len(lines) == 1 else y_label,
                y_range=chart.y_range,
            )
            cards.append(chart_card(chart.title, svg))
    return f'<div class="grid">{"".join(cards)}</div>' if cards else ""


def _note(metrics: Metrics) -> str:
    """Say what is drawn, and what is left out of long runs."""
    count, unit = len(metrics), unit_of(metrics)
    if count < 40:
        return ""
    text = f"Faint: each {unit}. Bold: moving average over a twentieth of the run."
    if kind_of(metrics) == "pretraining":
        text = "Faint: each record. Bold: moving average over a twentieth of the run."
    if count > MOST_POINTS:
        stretch = "the lowest and the highest of each of many short stretches"
        text += f" Of {count:,} {unit}s at most {MOST_POINTS} are drawn: {stretch}. metrics.jsonl has all of them."
    return f'<p class="note">{text}</p>'
