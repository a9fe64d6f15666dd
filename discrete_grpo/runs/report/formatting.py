"""Formatting of numbers, names and cards in the sections of a report."""

from __future__ import annotations

from html import escape
from typing import Any

__all__ = ["chart_card", "format_value", "label_of", "left_out", "shortened"]


def format_value(value: Any) -> str:
    """Format a number with about three digits; a dash for None.

    >>> format_value(0.12345), format_value(-1200.0), format_value(None)
    ('0.123', '−1200', '–')
    """
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


def label_of(name: str) -> str:
    """Format the name of a metric or column for readers.

    >>> label_of("clip_ratio/low_mean")
    'clip ratio / low mean'
    """
    return name.replace("_", " ").replace("/", " / ")


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
