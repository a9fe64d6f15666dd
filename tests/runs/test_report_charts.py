"""Charts of the report and drawings of molecules: to scale, well formed, finite whatever the numbers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from discrete_grpo.runs.report.charts import Line, Values, histogram, line_chart, nice_ticks, standalone
from discrete_grpo.runs.report.molecules import render_smiles

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.93, 0.94), (-3, 17), (0, 2e-6), (0, 123456), (-1e-3, 1e-3), (5, 5.5)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 8
    assert all(low - 1e-9 <= t <= high + 1e-9 for t in ticks)


def chart(*lines: Line) -> ET.Element:
    return ET.fromstring(line_chart(lines, ident="chart-x", title="a < b", x_label="update", y_label="y & z"))


def numbers(path: ET.Element) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in re.findall(r"[ML]([-\d.]+),([-\d.]+)", path.attrib["d"])]


def test_curve_is_drawn_to_scale() -> None:
    root = chart(Line("y", [1, 2, 4], [0.0, 10.0, 5.0]))
    x0, x1, y0, y1, left, right, bottom, top = (float(v) for v in root.attrib["data-domain"].split())
    (path,) = (p for p in root.iter(f"{SVG}path") if p.get("class") == "curve")
    back = [
        (x0 + (x - left) / (right - left) * (x1 - x0), y0 + (y - bottom) / (top - bottom) * (y1 - y0)) for x, y in numbers(path)
    ]
    assert np.allclose(back, [(1, 0), (2, 10), (4, 5)], atol=0.05)
    assert root.attrib["role"] == "img"
    assert root.find(f"{SVG}title").text == "a < b"  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [1, 5, 12, 40])
def test_many_curves_make_a_taller_chart_and_leave_the_plot_its_height(count: int) -> None:
    root = chart(*(Line(f"reward of the long named part number {k}", [1, 2], [0.0, k + 1.0]) for k in range(count)))
    *_, bottom, top = (float(v) for v in root.attrib["data-domain"].split())
    assert bottom - top >= 130
    assert float(root.attrib["viewBox"].split()[3]) == bottom + 42
    labels = [t for t in root.iter(f"{SVG}text") if (t.text or "").startswith("reward of")]
    assert len(labels) == (count if count > 1 else 0)
    assert all(float(t.attrib["y"]) < top for t in labels)


def test_curves_differ_in_colour_or_dashes() -> None:
    root = chart(*(Line(f"{k}", [1, 2], [0.0, k + 1.0]) for k in range(12)))
    curves = [p for p in root.iter(f"{SVG}path") if p.get("class") == "curve"]
    assert len({(p.attrib["stroke"], p.get("stroke-dasharray")) for p in curves}) == 12
    marks = [m.get("stroke-dasharray") for m in root.iter(f"{SVG}line") if m.get("stroke-width") == "3"]
    assert marks == [p.get("stroke-dasharray") for p in curves if p.get("stroke-dasharray")]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 1.6e-4),
        (1.3891, 1.3904),
        (0.99995, 1),
        (4.3199, 4.3203),
        (999.6, 1000.4),
        (8000, 11000),
        (123474, 123476),
        (0, 3e-9),
        (-2e-5, 2e-5),
    ],
)
def test_tick_labels_differ_and_have_one_notation(low: float, high: float) -> None:
    root = chart(Line("y", [1, 2], [low, high]))
    labels = [t.text or "" for t in root.iter(f"{SVG}text") if t.get("text-anchor") == "end"]
    assert len(set(labels)) == len(labels) >= 2
    assert "-" not in "".join(labels)
    assert len({re.sub(r"[−\d.]*", "", text.partition("e")[0]) + text.partition("e")[2] for text in labels if text != "0"}) == 1


def test_a_chart_of_its_own_has_a_ground_and_a_font() -> None:
    text = standalone(line_chart([Line("y", [1, 2], [0.0, 1.0])], ident="i", title="t", x_label="x", y_label="y"))
    shapes = list(ET.fromstring(text))
    assert shapes[2].attrib == {"width": "100%", "height": "100%", "fill": "#ffffff"}  # before everything that is drawn
    assert "inherit" not in text


@pytest.mark.parametrize(
    "values",
    [[1.0], [0.0, 0.0], [2.0, 2.0, 2.0], [None, 1.0, None, 2.0, 3.0, None], [1e-9, 2e-9], [-1e6, 1e6], [0.1] * 50 + [None] * 50],
)
def test_odd_curves_make_well_formed_finite_charts(values: list[float | None]) -> None:
    steps = [float(k) for k in range(1, len(values) + 1)]
    text = line_chart([Line("y", steps, values, values)], ident="i", title="t", x_label="x", y_label="y")
    ET.fromstring(text)
    assert "nan" not in text
    assert "inf" not in text.replace("infinity", "")


def test_gaps_break_the_curve_and_long_curves_are_thinned_with_their_extremes() -> None:
    assert ET.tostring(chart(Line("y", [1, 2, 3, 4], [1.0, None, 2.0, 3.0]))).count(b"<ns0:circle") == 1
    values: list[float | None] = [0.5] * 5000
    values[1234] = 9.0
    root = chart(Line("y", list(range(5000)), values))
    (path,) = (p for p in root.iter(f"{SVG}path") if p.get("class") == "curve")
    points = numbers(path)
    assert len(points) <= 400
    assert min(y for _, y in points) < 60  # the spike


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [0.0, 0.0],
        [1, 2, 2, 3],
        [0.1, 0.2, 0.9],
        list(range(1000)),
        [0.0] * 99 + [1e6],
        [5e-324, 0.0],
        [5.99e-314, 3.07e-291, 0.0, 1.0],
    ],
)
def test_histogram_shares_add_up(values: list[float]) -> None:
    root = ET.fromstring(histogram([Values("a", values), Values("b", [values[0]])], ident="h", title="t", x_label="x"))
    assert len([p for p in root.iter(f"{SVG}path") if p.get("class") == "bars"]) == 2
    assert "nan" not in ET.tostring(root, "unicode")


@pytest.mark.parametrize("values", [[0.0, 5e-324], [1e-310, 2e-310], [3.07e-291, 1.0]])
def test_tiny_values_are_drawn(values: list[float]) -> None:
    assert "nan" not in ET.tostring(chart(Line("y", [1, 2], values)), "unicode")


def test_drawings_are_inlinable_and_bad_smiles_are_none() -> None:
    drawing = render_smiles("CC(=O)Nc1ccc(O)cc1")
    assert drawing is not None
    root = ET.fromstring(drawing)
    assert root.find(f"{SVG}title").text == "CC(=O)Nc1ccc(O)cc1"  # type: ignore[union-attr]
    assert len(list(root.iter(f"{SVG}path"))) > 10
    assert "id=" not in drawing
    assert render_smiles("C1CC") is None
    assert render_smiles("") is None
