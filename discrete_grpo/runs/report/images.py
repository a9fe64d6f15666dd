"""Pictures of image samples for the report."""

from __future__ import annotations

from collections import defaultdict

from discrete_grpo.domains.images import Image

__all__ = ["render_image"]


def render_image(text: str, *, width: int = 220, height: int = 170) -> str | None:
    """Render an image sample as an SVG element: one path per grey level, ink white on black.

    Args:
        text: the sample as tables hold it, ``str`` of an :class:`~discrete_grpo.domains.images.Image`.
        width: of the picture's own coordinates.
        height: of the picture's own coordinates; the image is centred and keeps its shape.

    Returns:
        The ``<svg>`` element; None if ``text`` is no image.
    """
    try:
        image = Image.parse(text)
    except ValueError:
        return None
    scale = min(width / image.width, height / image.height)
    left, top = (width - scale * image.width) / 2, (height - scale * image.height) / 2
    paths = "".join(f'<path fill="#{level:02x}{level:02x}{level:02x}" d="{d}"/>' for level, d in _runs(image).items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>image of {image.height} by {image.width} pixels</title>"
        f'<g transform="translate({left:g} {top:g}) scale({scale:g})" shape-rendering="crispEdges">{paths}</g></svg>'
    )


def _runs(image: Image) -> dict[int, str]:
    """Collect the path data of each grey level: runs of equal pixels within a row, as rectangles of height 1."""
    found: defaultdict[int, str] = defaultdict(str)
    for y in range(image.height):
        row = image.levels[y * image.width : (y + 1) * image.width]
        x = 0
        while x < image.width:
            end = x + 1
            while end < image.width and row[end] == row[x]:
                end += 1
            found[row[x]] += f"M{x} {y}h{end - x}v1H{x}z"
            x = end
    return dict(found)
