"""Grey images as samples: small immutable objects that are written as one line of text and read back from it."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.checks import check_whole

__all__ = ["Image", "contact_sheet", "png", "stack"]


@dataclass(frozen=True)
class Image:
    """An image of ``height`` times ``width`` grey levels, row by row; 0 is no ink, 255 is full ink.

    Its text is ``HEIGHTxWIDTH:`` and two hexadecimal digits per pixel, so that a table of samples holds the image itself.

    Raises:
        ValueError: if a side is below 1 or the number of levels is not their product.

    >>> image = Image.of(torch.tensor([[0.0, 1.0], [0.5, 0.0]]))
    >>> str(image), Image.parse("2x2:00ff8000") == image
    ('2x2:00ff8000', True)
    """

    height: int
    width: int
    levels: bytes

    def __post_init__(self) -> None:
        check_whole("height", self.height, least=1)
        check_whole("width", self.width, least=1)
        if len(self.levels) != self.height * self.width:
            raise ValueError(f"levels: {len(self.levels)}, expected height * width ({self.height * self.width})")

    @classmethod
    def of(cls, pixels: Float[Tensor, "height width"]) -> Image:
        """From numbers in [0, 1], each rounded to the nearest of 256 levels; what lies outside is cut off."""
        levels = (pixels.detach().cpu().double().clamp(0, 1) * 255).round().to(torch.uint8)
        height, width = levels.shape
        return cls(height, width, bytes(levels.flatten().tolist()))

    @classmethod
    def parse(cls, text: str) -> Image:
        """The image whose text is ``text``.

        Raises:
            ValueError: if it is no such text.
        """
        found = re.fullmatch(r"(\d{1,5})x(\d{1,5}):((?:[0-9a-f]{2})*)", text)
        if found is None:
            raise ValueError(f"text: {text[:60]!r}, expected HEIGHTxWIDTH: and two hexadecimal digits per pixel")
        return cls(int(found[1]), int(found[2]), bytes.fromhex(found[3]))

    def __str__(self) -> str:
        return f"{self.height}x{self.width}:{self.levels.hex()}"

    def tensor(self) -> Float[Tensor, "height width"]:
        """Pixel intensities in [0, 1], float32."""
        return torch.tensor(list(self.levels)).float().div(255).reshape(self.height, self.width)


def stack(images: Sequence[Image]) -> Float[Tensor, "batch height width"]:
    """Images of one size as a tensor, ink in [0, 1].

    Raises:
        ValueError: if there are none or their sizes differ.

    >>> stack([Image(1, 2, bytes([0, 255]))]).tolist()
    [[[0.0, 1.0]]]
    """
    sizes = {(image.height, image.width) for image in images}
    if len(sizes) != 1:
        raise ValueError(f"images: {len(images)} of sizes {sorted(sizes)}, expected at least one, all of one size")
    height, width = sizes.pop()
    flat = torch.frombuffer(bytearray(b"".join(image.levels for image in images)), dtype=torch.uint8)
    return flat.reshape(len(images), height, width).float() / 255


def contact_sheet(images: Sequence[Image], columns: int = 10, scale: int = 6) -> Image:
    """Images side by side, row by row, each pixel ``scale`` pixels wide, with a gap of ``scale`` between them.

    Raises:
        ValueError: if there are no images, their sizes differ, or a number is below 1.
    """
    check_whole("columns", columns, least=1)
    check_whole("scale", scale, least=1)
    pixels = stack(images)
    height, width = pixels.shape[1:]
    rows = -(-len(images) // columns)
    sheet = torch.full((rows * (height + 1) + 1, columns * (width + 1) + 1), 0.35)
    for k, picture in enumerate(pixels):
        top, left = k // columns * (height + 1) + 1, k % columns * (width + 1) + 1
        sheet[top : top + height, left : left + width] = picture
    return Image.of(sheet.repeat_interleave(scale, 0).repeat_interleave(scale, 1))


def png(image: Image) -> bytes:
    """The image as a PNG file of 256 grey levels; ink is white on black, as in the data."""
    rows = (image.levels[k : k + image.width] for k in range(0, len(image.levels), image.width))
    header = struct.pack(">IIBBBBB", image.width, image.height, 8, 0, 0, 0, 0)
    parts = {b"IHDR": header, b"IDAT": zlib.compress(b"".join(b"\0" + row for row in rows), 9), b"IEND": b""}
    chunks = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
