"""Images as a kind of samples: drawings, contact sheets and files of images as text."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from discrete_grpo.datasets.text_files import header_cells, suffix_of, table_rows, text_lines
from discrete_grpo.domains.images import Image, contact_sheet, png
from discrete_grpo.metrics import images as metrics
from discrete_grpo.recipes.families import Family, FileOptions
from discrete_grpo.recipes.reward_kinds import check_kind
from discrete_grpo.rewards.images import ink
from discrete_grpo.runs.recorder import write_bytes

__all__ = ["IMAGES", "image_properties", "write_sheet"]


def image_properties(samples: Sequence[Image | None]) -> dict[str, list[float | None]]:
    """Ink of every sample, None where it is no image: the property columns of tables."""
    return {"ink": [None if image is None else x for image, x in zip(samples, ink(samples), strict=True)]}


def _draw(text: str) -> str | None:
    from discrete_grpo.runs.report.images import render_image

    return render_image(text)


def write_sheet(path: str | Path, samples: Sequence[Image | None], columns: int = 10) -> Path:
    """Write the images of ``samples`` side by side as a PNG file; what is no image is left out.

    Raises:
        ValueError: if there is no image.
    """
    drawn = [image for image in samples if image is not None]
    if not drawn:
        raise ValueError(f"samples: no image among {len(samples)}, expected at least one to draw")
    write_bytes(path, png(contact_sheet(drawn, columns)))
    return Path(path)


def _holds(path: Path, first: str) -> bool:
    """Whether a file has a column ``image``, or an image as its first line."""
    try:
        return "image" in header_cells(first) or Image.parse(first) is not None
    except ValueError:  # other text, or none
        return False


def _read(file: str, options: FileOptions) -> tuple[list[Image | None], Mapping[str, Sequence[Any]]]:
    """One image per line as text, or a csv file with a column ``image`` or ``sample``.

    An empty line or cell is an invalid sample; a column ``label`` gives the class that each was asked for.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming the line that is no image, or if there is no line or no such column.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"file: {file} does not exist")
    text = "".join(text_lines(path, options.max_bytes, argument="file"))
    columns: dict[str, Sequence[Any]] = {}
    first, lines = 1, text.splitlines()
    if suffix_of(path) == ".csv":
        name, rows = table_rows(io.StringIO(text), "image", "sample")
        if name is None:
            raise ValueError(f"file: {file} has no row, or no column 'image' or 'sample', expected a table of image samples")
        first, lines = 2, [row[name] or "" for row in rows]
        columns = {"label": [row["label"] or "" for row in rows]} if "label" in rows[0] else {}
    if not lines:
        raise ValueError(f"file: {file} is empty, expected one image per line")
    return [_image(line, f"{file}, line {k}") for k, line in enumerate(lines, first)], columns


def _image(line: str, place: str) -> Image | None:
    try:
        return Image.parse(line.strip()) if line.strip() else None
    except ValueError as error:
        raise ValueError(f"{place}: {str(error).removeprefix('text: ')}") from error


def _compare(samples: Sequence[Any], columns: Mapping[str, Sequence[Any]], options: FileOptions) -> Mapping[str, float]:
    return metrics.evaluate([Image.parse(s) if isinstance(s, str) else s for s in samples], columns.get("label"))


IMAGES = Family(
    name="images",
    column="image",
    sample_metrics=metrics.sample_metrics,
    evaluate=metrics.evaluate,
    table=image_properties,
    draw=_draw,
    sheet=write_sheet,
    lines=(".txt",),
    holds=_holds,
    read=_read,
    compare=_compare,
    check_rewards=lambda policy, rewards: check_kind(rewards, "images"),
)
