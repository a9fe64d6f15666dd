"""The picture of the README: the first samples of a run's evaluation before and after training, drawn by the report's code.

``python -m benchmarks.demo_picture --run runs/demo --out docs/demo.svg`` after ``make demo``. The samples are the first ones of
each table, so nothing is picked by hand.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.runs.report.molecules import render_smiles

WIDTH, HEIGHT, CAPTION, TITLE = 150, 110, 20, 24


def first_samples(run: Path, stage: str, count: int) -> list[tuple[str, float]]:
    """SMILES and QED of the first ``count`` samples of an evaluation; an empty text stands for an invalid sample."""
    text = gzip.decompress((run / f"evaluation_{stage}.csv.gz").read_bytes()).decode()
    rows = list(csv.DictReader(io.StringIO(text)))[:count]
    return [(row["sample"], float(row["QED"] or 0.0)) for row in rows]


def row_of(title: str, samples: Sequence[tuple[str, float]], top: int) -> str:
    """One row of molecules under a title, each with its QED."""
    parts = [f'<text x="8" y="{top + 16}" font-weight="bold">{escape(title)}</text>']
    for k, (smiles, qed) in enumerate(samples):
        left, drawing = k * WIDTH, render_smiles(smiles) if smiles else None
        if drawing is not None:
            placed = f'<svg x="{left}" y="{top + TITLE}" width="{WIDTH}" height="{HEIGHT}" '
            parts.append(drawing.replace("<svg ", placed, 1))
        said = "invalid" if drawing is None else "disconnected" if "." in smiles else f"QED {qed:.2f}"
        parts.append(f'<text x="{left + WIDTH / 2}" y="{top + TITLE + HEIGHT + 14}" text-anchor="middle">{said}</text>')
    return "\n".join(parts)


def picture(run: Path, count: int = 6) -> str:
    """The whole picture as SVG text on white."""
    row = TITLE + HEIGHT + CAPTION
    body = [row_of(f"{stage} training", first_samples(run, stage, count), k * row) for k, stage in enumerate(("before", "after"))]
    width, height = count * WIDTH, 2 * row + 4
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    style = 'font-family="sans-serif" font-size="13" color="#222" fill="#222"'
    return f'{head} {style}>\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the picture of a run folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/demo"), help="run folder of `discrete-grpo train demo`")
    parser.add_argument("--out", type=Path, default=Path("docs/demo.svg"), help="SVG file to write")
    given = parser.parse_args(arguments)
    text = picture(given.run)
    with atomic_write(given.out, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
