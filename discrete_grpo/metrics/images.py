"""Metrics of generated images: samples are :class:`~discrete_grpo.domains.images.Image` or None, equal if all pixels are."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch

from discrete_grpo.domains.images import Image, stack

__all__ = ["diversity", "evaluate", "sample_metrics"]


def sample_metrics(samples: Sequence[Image | None]) -> dict[str, float]:
    """Compute ``valid``: images / samples; ``unique``: distinct images / images, 0 where there is none.

    >>> sample_metrics([Image(1, 1, b"a"), Image(1, 1, b"a"), None, Image(1, 1, b"b")])
    {'valid': 0.75, 'unique': 0.6666666666666666}
    """
    valid = [image for image in samples if image is not None]
    return {"valid": _ratio(len(valid), len(samples)), "unique": _ratio(len(set(valid)), len(valid))}


def diversity(samples: Sequence[Image | None], max_images: int = 2000, seed: int = 0) -> float:
    """Compute the mean over all pairs i < j of √(mean over pixels of (x_i - x_j)²), ink in [0, 1].

    Args:
        samples: images of one size or None, which is left out.
        max_images: if there are more images, a seeded draw of this many is used (the cost is quadratic).
        seed: random seed of that draw.

    Returns:
        A number in [0, 1]; NaN with fewer than two images.

    >>> diversity([Image(1, 1, bytes([0])), Image(1, 1, bytes([255])), Image(1, 1, bytes([255]))])
    0.6666666666666666
    """
    valid = [image for image in samples if image is not None]
    if len(valid) < 2:
        return math.nan
    pixels = stack(valid).double().flatten(1)
    if len(pixels) > max_images:
        pixels = pixels[torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))[:max_images]]
    return float(torch.nn.functional.pdist(pixels).mean()) / math.sqrt(pixels.shape[1])


def evaluate(
    samples: Sequence[Image | None],
    labels: Sequence[Any] | None = None,
    reference: Collection[Image] | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Evaluate an image generator.

    Args:
        samples: images of one size or None.
        labels: the requested class of each image, None or empty for one without; None omits ``class_diversity``.
        reference: images as the decoder draws the training set; None leaves ``novel`` out.
        seed: of the draw for ``diversity``.

    Returns:
        ``num_samples``; ``valid``: images / samples; ``unique``: distinct / images; ``novel``: distinct not in the
        reference / distinct; ``diversity``; ``class_diversity``: its mean over classes, each by itself; ``ink``: mean over
        images, NaN where there is none.
    """
    valid = [image for image in samples if image is not None]
    found = {"num_samples": float(len(samples)), **sample_metrics(samples)}
    if reference is not None:
        distinct = set(valid)
        found["novel"] = _ratio(len(distinct.difference(reference)), len(distinct))
    found["diversity"] = diversity(samples, seed=seed)
    if labels is not None:
        if len(labels) != len(samples):
            raise ValueError(f"labels: {len(labels)}, expected one per sample ({len(samples)})")
        own = [label.item() if hasattr(label, "item") else label for label in labels]  # tensors are compared by identity
        classes = [label for label in dict.fromkeys(own) if label not in (None, "")]
        known = [[s for s, one in zip(samples, own, strict=True) if one == c] for c in classes]
        within = [x for x in (diversity(part, seed=seed) for part in known) if not math.isnan(x)]
        found["class_diversity"] = sum(within) / len(within) if within else math.nan
    inks = [sum(image.levels) / (255 * len(image.levels)) for image in valid]
    found["ink"] = sum(inks) / len(inks) if inks else math.nan
    return found


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
