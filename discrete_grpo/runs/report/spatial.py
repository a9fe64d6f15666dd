"""Pictures of molecules in space for the report, which the reader can turn."""

from __future__ import annotations

from html import escape

import numpy as np
from jaxtyping import Float

from discrete_grpo.domains.spatial_molecules import SpatialMolecule, from_cxsmiles, smiles_of

__all__ = ["render_spatial"]

_COLOURS = {
    "H": "#b4bac4",
    "C": "#6f7785",
    "N": "#3b7dd8",
    "O": "#d8433f",
    "F": "#7cc48f",
    "P": "#d98324",
    "S": "#c9a21b",
    "Cl": "#1f7a3d",
    "Br": "#a0522d",
    "I": "#8c4fb0",
}
_OTHER = "#c060a0"
_LARGEST = 200  # atoms; a picture of more shows nothing
_SCALE = 24.0  # picture units per Å at most; small molecules are not blown up
_MARGIN = 14.0
_APART = 2.6  # of the lines of a double bond
_GROWTH = 0.06  # of an atom, per Å towards the reader


def render_spatial(text: str, *, width: int = 220, height: int = 170) -> str | None:
    """Render a molecule in space as an SVG element, seen along its shortest principal axis, nearer atoms larger and on top.

    The script of the report's page turns it when it is dragged.

    Args:
        text: the molecule, see :func:`~discrete_grpo.domains.spatial_molecules.to_cxsmiles`.
        width: of the picture's own coordinates.
        height: of the picture's own coordinates.

    Returns:
        The ``<svg>`` element; None if ``text`` is no molecule with positions or has more than 200 atoms.
    """
    try:
        molecule = from_cxsmiles(text)
    except ValueError:
        return None
    if len(molecule) > _LARGEST:
        return None
    at = _posed(molecule)
    room = np.array([width, height]) / 2 - _MARGIN
    scale = float(min(_SCALE, *(room / np.abs(at[:, :2]).max(0).clip(1e-6))))
    parts = [
        *(_bond(at, scale, *bond) for bond in molecule.bonds),
        *(_atom(at, scale, k, x) for k, x in enumerate(molecule.symbols)),
    ]
    drawn = "".join(element for _, element in sorted(parts, key=lambda part: part[0]))
    positions = ";".join(" ".join(f"{x:.3f}" for x in row) for row in at)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-width / 2:g} {-height / 2:g} {width} {height}" role="img" '
        f'data-positions="{positions}" data-scale="{scale:.3f} {_APART} {_GROWTH}">'
        f"<title>{escape(smiles_of(molecule) or 'no valid molecule')}</title>{drawn}</svg>"
    )


def _posed(molecule: SpatialMolecule) -> Float[np.ndarray, "atom 3"]:
    """Positions about the centroid along the principal axes, longest first, and no mirror image."""
    x = molecule.coordinates
    x = x - x.mean(0)
    axes = np.linalg.eigh(x.T @ x)[1][:, ::-1]
    axes[:, 2] *= np.linalg.det(axes)
    return x @ axes


def _atom(at: Float[np.ndarray, "atom 3"], scale: float, k: int, symbol: str) -> tuple[float, str]:
    """Depth and circle of an atom."""
    x, y, z = at[k]
    size = (0.25 if symbol == "H" else 0.4) * scale
    style = f'fill="{_COLOURS.get(symbol, _OTHER)}" stroke="currentColor" stroke-opacity="0.35" stroke-width="0.7"'
    radius = size * (1 + _GROWTH * z)
    place = f'data-part="{k}" data-size="{size:.2f}" cx="{scale * x:.2f}" cy="{-scale * y:.2f}" r="{radius:.2f}"'
    return z, f"<circle {place} {style}><title>{escape(symbol)}</title></circle>"


def _bond(at: Float[np.ndarray, "atom 3"], scale: float, i: int, j: int, order: int) -> tuple[float, str]:
    """Depth and lines of a bond; one of the two lines of an aromatic bond is dashed."""
    dx, dy, _ = at[j] - at[i]
    lines = []
    for place, shift in enumerate({1: (0.0,), 2: (-0.5, 0.5), 3: (-1.0, 0.0, 1.0), 4: (-0.5, 0.5)}[order]):
        by = shift * _APART / (float(np.hypot(dx, dy)) or 1.0)
        ends = " ".join(
            f'x{n}="{scale * at[k, 0] + by * dy:.2f}" y{n}="{-scale * at[k, 1] + by * dx:.2f}"' for n, k in ((1, i), (2, j))
        )
        dash = ' stroke-dasharray="3 2"' if order == 4 and place else ""
        lines.append(f'<line data-part="{i} {j} {shift:g}" {ends} stroke="currentColor" stroke-width="1.7"{dash}/>')
    return float(at[i, 2] + at[j, 2]) / 2, "".join(lines)
