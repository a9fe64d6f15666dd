"""Pictures of molecules in space."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from discrete_grpo.domains.spatial_molecules import SpatialMolecule, from_cxsmiles, to_cxsmiles
from discrete_grpo.runs.report.page import page
from discrete_grpo.runs.report.spatial import render_spatial

ODD = SpatialMolecule(
    ("C", "N", "O", "H", "Si"),
    (0, 0, 0, 0, 0),
    ((0, 1, 2), (0, 2, 3), (0, 3, 1), (3, 4, 4)),
    ((0.1, 0, 0), (1.25, 0.3, 0), (0, 1, -1.5), (-1, -2, 0.4), (-4, 0.2, 0.1)),
)


def drawn(molecule: SpatialMolecule) -> ET.Element:
    found = render_spatial(to_cxsmiles(molecule))
    assert found is not None
    return ET.fromstring(found)


def positions(picture: ET.Element) -> np.ndarray:
    return np.array([[float(x) for x in row.split()] for row in picture.attrib["data-positions"].split(";")])


def test_a_picture_has_every_atom_and_bond_inside_its_frame() -> None:
    picture = drawn(ODD)
    circles, lines = (list(picture.iter(f"{{http://www.w3.org/2000/svg}}{kind}")) for kind in ("circle", "line"))
    assert len(circles) == 5
    assert len(lines) == 2 + 3 + 1 + 2
    assert [("stroke-dasharray" in line.attrib) for line in lines].count(True) == 1
    for circle in circles:
        assert abs(float(circle.attrib["cx"])) + float(circle.attrib["r"]) <= 110
        assert abs(float(circle.attrib["cy"])) + float(circle.attrib["r"]) <= 85


def test_it_is_the_molecule_and_not_its_mirror_image() -> None:
    seen, real = positions(drawn(ODD)), from_cxsmiles(to_cxsmiles(ODD)).coordinates
    volume = lambda x: float(np.linalg.det(x[1:4] - x[0]))  # noqa: E731
    assert volume(seen) == pytest.approx(volume(real), rel=0.02)
    apart = lambda x: np.linalg.norm(x[:, None] - x[None], axis=-1)  # noqa: E731
    np.testing.assert_allclose(apart(seen), apart(real), atol=3e-3)


def test_nearer_parts_are_drawn_later() -> None:
    picture = drawn(ODD)
    z = positions(picture)[:, 2]
    depths = [
        np.mean([z[int(k)] for k in part.attrib["data-part"].split()[:2]]) if part.tag.endswith("line") else None
        for part in picture
    ]
    circles = [z[int(part.attrib["data-part"])] for part in picture if part.tag.endswith("circle")]
    assert circles == sorted(circles)
    assert (found := [d for d in depths if d is not None]) == sorted(found)


def test_what_is_no_molecule_has_no_picture() -> None:
    assert render_spatial("CCO") is None
    assert render_spatial("") is None
    many = SpatialMolecule(("H",) * 201, (0,) * 201, (), tuple((float(k), 0.0, 0.0) for k in range(201)))
    assert render_spatial(to_cxsmiles(many)) is None
    assert drawn(SpatialMolecule(("O",), (0,), (), ((3.0, 1.0, 2.0),))) is not None


def test_the_script_of_the_page_reads_what_the_picture_holds() -> None:
    picture, script = drawn(ODD), page("title", "")
    for name in ("data-positions", "data-scale"):
        assert name in picture.attrib
    assert re.search(r"svg\[data-positions\]", script)
    assert len(picture.attrib["data-scale"].split()) == 3
    assert {len(part.attrib["data-part"].split()) for part in picture if "data-part" in part.attrib} == {1, 3}
