"""Formatting of numbers, names and cards in the sections of a report."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from discrete_grpo.runs.console import printable

__all__ = ["chart_card", "format_value", "label_of", "left_out", "shortened"]


_LABELS = {
    "qed": "QED",
    "logp": "logP",
    "sa": "SA score",
    "vun": "V.U.N.",
    "ratio": "MMD ratio",
    "strain": "strain, median (kcal/mol)",
    "strain_per_atom": "strain per atom, median (kcal/mol)",
    "mean_strain": "strain, mean (kcal/mol)",
    "rmsd": "RMSD to relaxed positions (Å)",
    "atom_stable": "stable atoms, of all (MiDi)",
}


def format_value(value: Any) -> str:
    """Format a number with about three digits; a dash for None.

    >>> format_value(0.12345), format_value(-1200.0), format_value(4.36e-9), format_value(None)
    ('0.123', '−1200', '4.36e−9', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    count = isinstance(value, int) or (abs(value) >= 100 and value.is_integer())
    if value == 0 or count or abs(value) >= 1000:
        text = f"{value:.0f}"
    elif abs(value) < 1e-3:
        text = re.sub("e-0*", "e-", f"{value:.2e}")
    else:
        text = f"{value:.{3 if abs(value) < 10 else 2 if abs(value) < 100 else 1}f}"
    return text.replace("-", "−")


def label_of(name: str) -> str:
    """Format the name of a metric or column for readers; a reward keeps its own name.

    >>> label_of("clip_ratio/low_mean"), label_of("qed"), label_of("reward_keeps_scaffold")
    ('clip ratio / low mean', 'QED', 'reward keeps_scaffold')
    """
    if name.startswith("reward_"):
        return f"reward {printable(name.removeprefix('reward_'))}"
    return _LABELS.get(name, printable(name.replace("_", " ").replace("/", " / ")))


def shortened(text: str, most: int) -> str:
    """Cut a text to ``most`` characters, with an ellipsis as the last one.

    >>> shortened("CCCCOC", 4), shortened("CCO", 4)
    ('CCC…', 'CCO')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def left_out(count: int, most: int, what: str) -> str:
    """Say that a table or a text is cut; empty if it is whole."""
    return f'<p class="note">The first {most:,} of {count:,} {what}.</p>' if count > most else ""


def chart_card(title: str, svg: str) -> str:
    """Put a chart under its title."""
    return f'<figure class="card chart"><figcaption>{escape(title)}</figcaption>{svg}</figure>'
