"""The sections of a report that show samples: property distributions, examples by condition and the best samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

from discrete_grpo.runs.best import LARGEST, Scored, best_scored
from discrete_grpo.runs.report.charts import Values, histogram
from discrete_grpo.runs.report.formatting import chart_card, format_value, label_of, shortened

__all__ = ["best_samples_section", "distributions_section", "drawn_samples_section", "examples_section"]

_MOST_SAMPLES = 24
_MOST_PARTS = 8  # scores below a picture
_MOST_EXAMPLES = 10
_MOST_TEXT = 2000  # characters of a sample or a condition
_MOST_DRAWING = 60_000  # characters of a picture
_MOST_HISTOGRAMS = 40
_NO_PROPERTY = {"step", "group", "sample", "advantage", "valid"}  # columns of sample tables without a histogram
_PROPERTIES = {  # title and name of the axis, by column
    "qed": ("QED", "drug-likeness (0–1)"),
    "logp": ("logP", "octanol–water partition (log10)"),
    "sa": ("SA score", "synthetic accessibility (1 easy – 10 hard)"),
    "weight": ("Molecular weight", "g/mol"),
    "mw": ("Molecular weight", "g/mol"),
    "molecular_weight": ("Molecular weight", "g/mol"),
    "tpsa": ("Polar surface area", "Å²"),
    "num_atoms": ("Atoms", "heavy atoms"),
    "stable_atoms": ("Stable atoms, octet rule", "share of the atoms of a molecule"),
    "strain_per_atom": ("Strain per atom", "kcal/mol"),
}


def _numbers(cells: Sequence[str]) -> list[float]:
    """Read the numbers of a column that can be drawn; empty if any cell is neither a number nor empty."""
    try:
        values = [float(cell) for cell in cells if cell]
    except ValueError:
        return []
    return [value for value in values if abs(value) < LARGEST]


def _conditions(tables: Mapping[str, Mapping[str, Sequence[str]]]) -> list[str]:
    """Name the columns of conditions: those before the samples that are the same before and after training."""
    if len(tables) < 2:
        return []
    first, second = tables.values()
    asked = list(first)[: list(first).index("sample")] if "sample" in first else []
    return [name for name in asked if name not in _NO_PROPERTY and first[name] == second.get(name)]


def examples_section(tables: Mapping[str, Mapping[str, Sequence[str]]], render: Callable[[str], str | None] | None) -> str:
    """Show, for some conditions, the samples drawn under them before and after training."""
    names = _conditions(tables)
    if not names:
        return ""
    first = next(iter(tables.values()))
    asked = list(zip(*(first[n] for n in names), strict=True))
    body = []
    for condition in list(dict.fromkeys(asked))[:_MOST_EXAMPLES]:
        cells = [f"<td>{_as_text(cell, empty='')}</td>" for cell in condition]
        rows = [k for k, other in enumerate(asked) if other == condition]
        for table in tables.values():
            k = next((k for k in rows if table["sample"][k]), rows[0])
            reward = _numbers([table.get("reward", [""] * (k + 1))[k]])
            picture = _drawing(table["sample"][k], render) or _as_text(table["sample"][k])
            cells.append(f"<td>{picture}<small>{format_value(reward[0]) if reward else ''}</small></td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f'<th scope="col">{escape(label_of(n))}</th>' for n in [*names, *tables])
    note = '<p class="note">The first sample per condition that could be decoded, before and after training, with its reward.</p>'
    return (
        f'<section id="examples"><h2>Examples by condition</h2>{note}<div class="card scroll" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div></section>"
    )


def _as_text(sample: str, empty: str = "<i>invalid</i>") -> str:
    return f"<code>{escape(shortened(sample, _MOST_TEXT))}</code>" if sample else empty


def _drawing(sample: str, render: Callable[[str], str | None] | None) -> str | None:
    """The picture of a sample; None if there is none, or it is too long for the page."""
    found = render(sample) if render is not None and sample else None
    return found if found is None or len(found) <= _MOST_DRAWING else None


def distributions_section(tables: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """Show histograms of every numeric column of the evaluation before and after training."""
    left_out = {*_NO_PROPERTY, *_conditions(tables)}
    names = dict.fromkeys(name for table in tables.values() for name in table if name not in left_out)
    cards: list[str] = []
    for k, name in enumerate(names):
        if len(cards) == _MOST_HISTOGRAMS:
            break
        sets = [Values(place, values) for place, table in tables.items() if (values := _numbers(table.get(name, ())))]
        if sets:
            plain = label_of(name)
            title, label = _PROPERTIES.get(name.lower().removeprefix("measured_"), (plain[:1].upper() + plain[1:], plain))
            cards.append(
                chart_card(title, histogram(sets, ident=f"chart-distribution-{k}", title=f"Distribution of {name}", x_label=label))
            )
    if not cards:
        return ""
    which = " and ".join(f"{place} training" for place in tables)
    more = f" The first {_MOST_HISTOGRAMS} of {len(names)} columns." if len(cards) == _MOST_HISTOGRAMS < len(names) else ""
    note = f'<p class="note">Samples drawn {escape(which)}. Dashed: mean.{more}</p>'
    return f'<section id="distributions"><h2>Property distributions</h2>{note}<div class="grid">{"".join(cards)}</div></section>'


def _caption(found: Scored) -> str:
    """The text below a picture: reward, the scores by each of several rewards, and origin."""
    shown = list(found.parts.items())[:_MOST_PARTS]
    parts = "".join(f"<small>{escape(label_of(n).removeprefix('reward '))} {format_value(value)}</small>" for n, value in shown)
    return f"<figcaption><b>{format_value(found.reward)}</b>{parts}{escape(found.origin)}</figcaption>"


def _figure(sample: str, render: Callable[[str], str | None] | None, caption: str) -> str:
    """A sample as its picture, or as text where it has none."""
    drawing, title = _drawing(sample, render), escape(shortened(sample, _MOST_TEXT))
    text = escape(shortened(sample, 301))
    picture = f'{drawing}<code title="{title}">{text}</code>' if drawing else f'<div class="text">{text}</div>'
    return f'<figure class="card">{picture}{caption}</figure>'


def best_samples_section(run: Path, render: Callable[[str], str | None] | None, unit: str = "update") -> str:
    """Show the samples of highest reward, each with its picture, reward and origin."""
    figures = [_figure(found.sample, render, _caption(found)) for found in best_scored(run, _MOST_SAMPLES, unit=unit)]
    if not figures:
        return ""
    text = f"The {len(figures)} unique samples of highest reward, with the reward and where each was first reached."
    return _samples("Best samples", text, figures)


def drawn_samples_section(tables: Mapping[str, Mapping[str, Sequence[str]]], render: Callable[[str], str | None] | None) -> str:
    """Show the first samples of the evaluation after training that could be decoded, where there are no rewards to choose by."""
    table = tables.get("after", {})
    if "reward" in table:
        return ""
    figures = [_figure(sample, render, "") for sample in [s for s in table.get("sample", ()) if s][:_MOST_SAMPLES]]
    return _samples("Samples", "The first samples of the trained policy.", figures) if figures else ""


def _samples(title: str, note: str, figures: Sequence[str]) -> str:
    grid = f'<div class="grid">{"".join(figures)}</div>'
    return f'<section id="samples"><h2>{title}</h2><p class="note">{note}</p>{grid}</section>'
