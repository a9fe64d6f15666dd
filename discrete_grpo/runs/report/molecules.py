"""Pictures of molecules for the report; RDKit is imported only when one is rendered."""

from __future__ import annotations

import re
from html import escape
from typing import Any

__all__ = ["render_smiles"]

# Colours that read on a white and on a dark page alike; carbon is replaced by the text colour afterwards.
_PALETTE = {
    6: (0.0, 0.0, 0.0),
    1: (0.5, 0.5, 0.5),
    5: (0.80, 0.45, 0.30),
    7: (0.20, 0.47, 0.92),
    8: (0.88, 0.24, 0.22),
    9: (0.10, 0.60, 0.38),
    15: (0.85, 0.45, 0.05),
    16: (0.70, 0.53, 0.02),
    17: (0.10, 0.60, 0.38),
    35: (0.65, 0.33, 0.18),
    53: (0.55, 0.30, 0.70),
}


def render_smiles(smiles: str, *, width: int = 220, height: int = 170) -> str | None:
    """Render a molecule as an SVG element that scales, has no ids, and takes the page's text colour.

    Args:
        smiles: the molecule.
        width: of the picture's own coordinates.
        height: of the picture's own coordinates.

    Returns:
        The ``<svg>`` element; None if RDKit cannot read ``smiles`` or it is empty.
    """
    from rdkit import Chem, rdBase
    from rdkit.Chem.Draw import rdMolDraw2D

    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
        if molecule is None or molecule.GetNumAtoms() == 0:
            return None
        drawer = rdMolDraw2D.MolDraw2DSVG(width, height)
        options: Any = drawer.drawOptions()  # RDKit's stubs type every option wrongly
        options.clearBackground = False
        options.bondLineWidth = 1.6
        options.padding = 0.06
        options.fixedBondLength = 28  # small molecules are not blown up
        options.minFontSize = 10
        options.setAtomPalette(_PALETTE)
        rdMolDraw2D.PrepareAndDrawMolecule(drawer, molecule)
        drawer.FinishDrawing()
    return _inline(drawer.GetDrawingText(), smiles)


def _inline(drawing: str, label: str) -> str:
    """Strip XML header, comments, ids, classes and fixed size from an RDKit drawing, and add a title for screen readers."""
    body = drawing[drawing.index("<svg") : drawing.rindex("</svg>")]
    head, inner = body.split(">", 1)
    box = re.search(r"viewBox='([^']*)'", head)
    inner = re.sub(r"<!--.*?-->|\s(?:id|class)='[^']*'", "", inner, flags=re.DOTALL)
    inner = re.sub(r"#000000", "currentColor", inner).replace("\n", "")
    view = box.group(1) if box else "0 0 220 170"
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" role="img"><title>{escape(label)}</title>{inner}</svg>'
