"""Charts as SVG text: data in, one ``<svg>`` element out.

Colours come from CSS variables of the page (``--series-1``, ``--ink``, ``--muted``, ``--grid``) with defaults, so that a chart
follows a light or dark page and still stands alone. Sizes are those of a third of a wide page; the page scales them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from discrete_grpo.runs.report.formatting import shortened

__all__ = ["MOST_POINTS", "Line", "Values", "histogram", "line_chart", "nice_ticks", "standalone"]

_WIDTH, _HEIGHT = 360, 240
_RIGHT, _BOTTOM = 14, 42
_INK, _MUTED, _GRID = "var(--ink, #1d2433)", "var(--muted, #667085)", "var(--grid, #e4e7ec)"
_COLOURS = ("#2563eb", "#d9580d", "#0d9468", "#a23bb5", "#b07d00", "#0b8fac", "#d6336c", "#6b7280")
_DASHES = ("", "7 5", "0.1 5", "9 5 0.1 5")  # every three curves, so that no two are told apart by a pair of hues alone
_MOST_NAME = 48  # letters that the width has room for
MOST_POINTS = 400
"""Number of points per drawn curve, more than the page can resolve."""


@dataclass(frozen=True)
class Line:
    """A curve of a :func:`line_chart`.

    Attributes:
        name: for the legend.
        x: positions, increasing.
        y: values; None leaves a gap.
        spread: the standard deviation at each position, drawn as a band about the curve; None for no band.
        noisy: whether a long curve is drawn faint, with its moving average over it.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    spread: Sequence[float | None] | None = None
    noisy: bool = True


@dataclass(frozen=True)
class Values:
    """One data set of a :func:`histogram`: finite numbers and a name for the legend."""

    name: str
    values: Sequence[float]


_LEAST = 1e-300
"""Ranges below this count as empty, as their parts are no normal floating-point numbers."""


@dataclass(frozen=True)
class _Axis:
    """Data [low, high] laid on pixels [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def nice_ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten within [low, high], about ``count`` of them.

    >>> nice_ticks(0, 1)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    >>> nice_ticks(1, 120, 6, whole=True)
    [25.0, 50.0, 75.0, 100.0]
    """
    rough = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.85)
    if whole:
        step = max(1.0, step if step >= 5 else float(round(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def format_tick(value: float, step: float) -> str:
    """A tick's label: as many decimals as ``step`` needs, k and M for large steps, and one power of ten for all of a small axis.

    >>> format_tick(0.25, 0.25), format_tick(20000.0, 5000.0), format_tick(2e-6, 1e-6), format_tick(300.0, 50.0)
    ('0.25', '20k', '2e−6', '300')
    """
    if value == 0:
        return "0"
    size, letter = next((one for one in ((1e6, "M"), (1e3, "k")) if step >= one[0]), (1.0, ""))
    value, step = value / size, step / size
    if step < 1e-4 and abs(value) < 1000 * step:  # all ticks of an axis with one exponent
        power = math.floor(math.log10(step))
        return f"{value / 10.0**power:.4g}e{power}".replace("-", "−")
    decimals = next((d for d in range(12) if abs(step * 10**d - round(step * 10**d)) < 1e-6), 12)
    return f"{value:.{decimals}f}{letter}".replace("-", "−")


def line_chart(
    lines: Sequence[Line],
    *,
    ident: str,
    title: str,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
) -> str:
    """Curves over a common x; long noisy curves are drawn faint, with their moving average over them.

    Args:
        lines: at least one curve with at least one value.
        ident: the element's id.
        title: read by screen readers; the page shows it above.
        x_label: with unit.
        y_label: with unit.
        y_range: shown at least; the data's own range by default.
    """
    named = len(lines) > 1 or lines[0].spread is not None
    legend = [shortened(line.name, _MOST_NAME - len(of := _of(line))) + of for line in lines] if named else []
    y_low, y_high = _span([v for line in lines for v in _extremes(line)], y_range)
    xs = [x for line in lines for x in line.x]
    x_low, x_high = (min(xs), max(xs)) if max(xs) > min(xs) else (xs[0] - 0.5, xs[0] + 0.5)
    left, top = _left(y_low, y_high), _top(legend)
    x, y = _Axis(x_low, x_high, left, _WIDTH - _RIGHT), _Axis(y_low, y_high, _bottom(top), top)
    parts = [_band(line, x, y, k) for k, line in enumerate(lines)] + [_curve(line, x, y, k) for k, line in enumerate(lines)]
    domain = " ".join(f"{v:.7g}" for v in (x.low, x.high, y.low, y.high, x.start, x.end, y.start, y.end))
    rule = _rule(0, 0, y.start, y.end, _MUTED, ' class="rule" stroke-dasharray="3 3" visibility="hidden"')
    body = _frame(x, y, x_label, y_label, whole=True) + _legend(legend, dashed=True) + "".join(parts) + rule
    return _svg(ident, title, _summary(lines), body, y.start + _BOTTOM, f' data-domain="{domain}" data-x="{escape(x_label)}"')


def histogram(data: Sequence[Values], *, ident: str, title: str, x_label: str, most_bins: int = 32) -> str:
    """Overlaid histograms with common bins, as shares of each data set; a tick at the top marks each mean.

    Args:
        data: at least one set with at least one number.
        ident: the element's id.
        title: read by screen readers; the page shows it above.
        x_label: with unit.
        most_bins: largest number of bins.
    """
    edges = _edges(np.concatenate([np.asarray(d.values, dtype=float) for d in data]), most_bins)
    shares = [np.histogram(d.values, edges)[0] / len(d.values) for d in data]
    legend = [f"{d.name} (mean {_short(float(np.mean(d.values)))})" for d in data]
    y_high = 1.08 * 100 * max(float(s.max()) for s in shares)
    left, top = _left(0.0, y_high), _top(legend)
    x, y = _Axis(float(edges[0]), float(edges[-1]), left, _WIDTH - _RIGHT), _Axis(0.0, y_high, _bottom(top), top)
    bars = "".join(_steps(edges, share * 100, x, y, k) for k, share in enumerate(shares))
    means = "".join(
        _rule(x(m), x(m), y.start, y.end, _colour(k), ' stroke-width="1.3" stroke-dasharray="4 3"')
        for k, m in enumerate(float(np.mean(d.values)) for d in data)
    )
    summary = "; ".join(f"{name}, {len(d.values)} samples" for name, d in zip(legend, data, strict=True))
    whole = float(edges[0] * 2).is_integer() and bool(np.all(np.diff(edges) == 1))
    body = _frame(x, y, x_label, "share of samples (%)", whole=whole) + _legend(legend) + bars + means
    return _svg(ident, title, summary, body, y.start + _BOTTOM, "")


def standalone(svg: str) -> str:
    """A chart as the content of a file of its own: on white, whatever is around it, and in a font without serifs."""
    start, text, rest = svg.partition("</desc>")
    return f'{start}{text}<rect width="100%" height="100%" fill="#ffffff"/>{rest}'.replace('"inherit"', '"sans-serif"', 1)


def _svg(ident: str, title: str, description: str, body: str, height: float, extra: str) -> str:
    name = escape(ident)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" viewBox="0 0 {_WIDTH} {height:g}" role="img" '
        f'aria-labelledby="{name}-title {name}-text" font-family="inherit" font-size="12"{extra}>'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-text">{escape(description)}</desc>{body}</svg>'
    )


def _colour(k: int) -> str:
    place = k % len(_COLOURS)
    return f"var(--series-{place + 1}, {_COLOURS[place]})"


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _rule(x1: float, x2: float, y1: float, y2: float, colour: str, extra: str = "") -> str:
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="{colour}"{extra}/>'


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = _MUTED) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _frame(x: _Axis, y: _Axis, x_label: str, y_label: str, *, whole: bool) -> str:
    """Grid, tick labels and axis names."""
    parts = []
    ticks = nice_ticks(y.low, y.high)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(ticks[0]) or 1.0
    for tick in ticks:
        place = y(tick)
        parts.append(_rule(x.start, x.end, place, place, _GRID))
        parts.append(_text(x.start - 7, place + 4, format_tick(tick, step), "end"))
    ticks = nice_ticks(x.low, x.high, 6, whole=whole)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(ticks[0]) or 1.0
    for tick in ticks:
        place = x(tick)
        parts.append(_rule(place, place, y.start, y.start + 4, _MUTED))
        parts.append(_text(place, y.start + 17, format_tick(tick, step), "middle"))
    parts.append(_rule(x.start, x.end, y.start, y.start, _MUTED))
    parts.append(_text((x.start + x.end) / 2, y.start + 35, shortened(x_label, _MOST_NAME), "middle"))
    parts.append(_text(2, 12, shortened(y_label, _MOST_NAME)))
    return "".join(parts)


def _places(names: Sequence[str]) -> list[tuple[float, float]]:
    """Place legend entries from left to right, then on the next line."""
    places, x, y = [], 2.0, 31.0
    for name in names:
        width = 22 + 6.6 * len(name)
        if x > 2 and x + width > _WIDTH:
            x, y = 2.0, y + 18
        places.append((x, y))
        x += width + 12
    return places


def _top(names: Sequence[str]) -> float:
    places = _places(names)
    return places[-1][1] + 16 if places else 30


def _legend(names: Sequence[str], *, dashed: bool = False) -> str:
    parts = []
    for k, (name, (x, y)) in enumerate(zip(names, _places(names), strict=True)):
        if dashed and _dash(k):
            parts.append(_rule(x + 1, x + 15, y - 4, y - 4, _colour(k), f' stroke-width="3"{_dash(k)}'))
        else:
            parts.append(f'<rect x="{x}" y="{y - 8}" width="14" height="8" rx="2" fill="{_colour(k)}"/>')
        parts.append(_text(x + 20, y, name, colour=_INK))
    return "".join(parts)


def _dash(k: int) -> str:
    """Attributes of the dashes of curve ``k``; empty for a solid one."""
    dashes = _DASHES[k // 3 % len(_DASHES)]
    return f' stroke-dasharray="{dashes}" stroke-linecap="round"' if dashes else ""


def _bottom(top: float) -> float:
    """Lower end of the y axis: more rows of a legend make the chart taller, not the plot smaller."""
    return _HEIGHT - _BOTTOM + max(0.0, top - 65.0)


def _left(low: float, high: float) -> float:
    """Room for the labels of the y axis."""
    ticks = nice_ticks(low, high)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    return 14 + 7 * max(len(format_tick(tick, step)) for tick in ticks)


def _of(line: Line) -> str:
    return "" if line.spread is None else " ± standard deviation"


def _extremes(line: Line) -> list[float]:
    spread = line.spread or [None] * len(line.y)
    return [end for v, s in zip(line.y, spread, strict=True) if v is not None for end in (v - (s or 0.0), v + (s or 0.0))]


def _span(values: Sequence[float], shown: tuple[float, float] | None) -> tuple[float, float]:
    """A little more than the data; from zero if positive data come near it; never empty."""
    low, high = min(values), max(values)
    if shown is not None:
        return min(low, shown[0]), max(high, shown[1])
    if high - low <= max(1e-9 * max(abs(low), abs(high)), _LEAST):
        room = abs(low) * 0.1 or 1.0
        return (0.0 if low == 0 else low - room), high + room
    room = 0.06 * (high - low)
    return (0.0 if 0 <= low < 0.4 * high else low - room), high + room


def _thin(line: Line) -> list[int]:
    """The points to draw: all, or the lowest and the highest of each of many short segments."""
    count = len(line.x)
    if count <= MOST_POINTS:
        return list(range(count))
    chosen: set[int] = set()
    for stretch in np.array_split(np.arange(count), MOST_POINTS // 2):
        known = [int(k) for k in stretch if line.y[int(k)] is not None] or [int(stretch[0])]
        chosen |= {min(known, key=lambda k: line.y[k] or 0.0), max(known, key=lambda k: line.y[k] or 0.0)}
    return sorted(chosen)


def _runs(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """The stretches without gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if run]


def _path(run: Sequence[tuple[float, float]], x: _Axis, y: _Axis, start: str = "M") -> str:
    return start + "L".join(f"{x(a):.1f},{y(b):.1f}" for a, b in run)


def _band(line: Line, x: _Axis, y: _Axis, k: int) -> str:
    if line.spread is None:
        return ""
    points = [(line.x[i], line.y[i], line.spread[i]) for i in _thin(line)]
    tops = _runs([(a, None if v is None or s is None else v + s) for a, v, s in points])
    lows = _runs([(a, None if v is None or s is None else v - s) for a, v, s in points])
    outline = "".join(_path(t, x, y) + _path(low[::-1], x, y, "L") + "Z" for t, low in zip(tops, lows, strict=True))
    lone = [(x(t[0][0]), y(low[0][1]), y(t[0][1])) for t, low in zip(tops, lows, strict=True) if len(t) == 1]
    bars = "".join(_rule(at, at, low, top, _colour(k), ' stroke-width="6" stroke-opacity="0.25"') for at, low, top in lone)
    return f'<path class="band" d="{outline}" fill="{_colour(k)}" fill-opacity="0.14"/>{bars}'


def _curve(line: Line, x: _Axis, y: _Axis, k: int) -> str:
    kept = _thin(line)
    runs = _runs([(line.x[i], line.y[i]) for i in kept])
    average = _moving_average(line.y) if line.noisy and len(line.x) >= 40 else []
    smooth = _runs([(line.x[i], average[i]) for i in kept]) if average else []
    solid = ' stroke-linecap="round"'
    faint = f'{solid} stroke-width="1" stroke-opacity="0.4"' if smooth else f'{_dash(k) or solid} stroke-width="2"'
    style = f'fill="none" stroke="{_colour(k)}" stroke-linejoin="round"'
    parts = [f'<path class="curve" data-name="{escape(line.name)}" d="{"".join(_path(r, x, y) for r in runs)}" {style}{faint}/>']
    bold = f'{_dash(k) or solid} stroke-width="2.2"'
    parts += [f'<path class="smooth" d="{_path(r, x, y)}" {style}{bold}/>' for r in smooth if len(r) > 1]
    parts += [f'<circle cx="{x(r[0][0]):.1f}" cy="{y(r[0][1]):.1f}" r="3" fill="{_colour(k)}"/>' for r in runs if len(r) == 1]
    return "".join(parts)


def _moving_average(values: Sequence[float | None]) -> list[float | None]:
    """Mean over a twentieth of the curve, centred, cut off at the ends; gaps stay gaps."""
    half = max(2, len(values) // 40)
    data = np.array([math.nan if v is None else v for v in values])
    known = np.isfinite(data)
    sums, counts = np.cumsum(np.r_[0.0, np.where(known, data, 0.0)]), np.cumsum(np.r_[0, known])
    at = np.arange(len(data))
    first, last = np.maximum(at - half, 0), np.minimum(at + half + 1, len(data))
    return [float((sums[b] - sums[a]) / (counts[b] - counts[a])) if k else None for a, b, k in zip(first, last, known, strict=True)]


def _edges(values: np.ndarray, most: int) -> np.ndarray:
    """Bin edges: one bin per whole number where the values are few whole numbers, else Freedman and Diaconis's width."""
    low, high = float(values.min()), float(values.max())
    exact = max(abs(low), abs(high)) < 2**53  # float64 can still separate neighbouring edges
    if exact and high - low < most and bool(np.all(values == np.round(values))):
        return np.arange(low - 0.5, high + 1.0)
    if high - low < _LEAST:
        return np.array([low - abs(low) * 0.05 - 1e-9, high + abs(high) * 0.05 + 1e-9])
    q1, q3 = np.quantile(values, [0.25, 0.75])
    width = 2 * (q3 - q1) / len(values) ** (1 / 3)
    count = most if width * most <= high - low else math.ceil((high - low) / width)
    return np.linspace(low, high, min(max(count, 8), most) + 1)


def _steps(edges: np.ndarray, heights: np.ndarray, x: _Axis, y: _Axis, k: int) -> str:
    points = [(float(edges[0]), 0.0)]
    for a, b, height in zip(edges[:-1], edges[1:], heights, strict=True):
        points += [(float(a), float(height)), (float(b), float(height))]
    outline = _path([*points, (float(edges[-1]), 0.0)], x, y)
    colour = _colour(k)
    style = f'fill="{colour}" fill-opacity="0.22" stroke="{colour}" stroke-width="1.5" stroke-linejoin="round"'
    return f'<path class="bars" d="{outline}Z" {style}/>'


def _summary(lines: Sequence[Line]) -> str:
    """Describe a chart of curves for screen readers."""
    parts = []
    for line in lines:
        known = [v for v in line.y if v is not None]
        parts.append(
            f"{line.name}: {len(known)} points, first {_short(known[0])}, last {_short(known[-1])}" if known else line.name
        )
    return "; ".join(parts)
