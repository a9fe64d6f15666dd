"""Rewards on images: callables from :class:`~discrete_grpo.domains.images.Image` samples to one number each; None scores 0.

:class:`SSIMToClassMean` and :class:`ClassifierProbability` read the column ``label``, the class each image was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from discrete_grpo.core.checks import check_range
from discrete_grpo.datasets.digits import class_means, load_digits
from discrete_grpo.domains.images import Image, stack
from discrete_grpo.runs.checkpoint import TRUSTED, find_checkpoint, load_policy

__all__ = ["ClassifierProbability", "InkAmount", "SSIMToClassMean", "ink"]

Samples = Sequence["Image | None"]


def ink(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Mean ink of the image's pixels, in [0, 1].

    >>> ink([Image(1, 2, bytes([0, 255])), None])
    [0.5, 0.0]
    """
    return [0.0 if image is None else sum(image.levels) / (255 * len(image.levels)) for image in samples]


@dataclass(frozen=True)
class InkAmount:
    """exp(-((ink - value) / scale)² / 2): 1 where the mean ink hits a value.

    Attributes:
        value: where the maximum lies, in [0, 1].
        scale: the standard deviation, above 0.

    Raises:
        ValueError: for a value out of its range.

    >>> InkAmount(0.5, 0.1)([Image(1, 2, bytes([0, 255])), None])
    [1.0, 0.0]
    """

    value: float
    scale: float = 0.05

    def __post_init__(self) -> None:
        check_range("value", self.value, least=0, most=1)
        check_range("scale", self.scale, above=0)

    @property
    def name(self) -> str:
        """For logs."""
        return f"ink={self.value:g}"

    def __call__(self, samples: Samples, **columns: Sequence[Any]) -> list[float]:
        """One number in [0, 1] a sample."""
        near = [math.exp(-(((x - self.value) / self.scale) ** 2) / 2) for x in ink(samples)]
        return [0.0 if image is None else x for image, x in zip(samples, near, strict=True)]


def _labels(labels: Sequence[Any] | None, count: int, classes: int) -> list[int]:
    """The column ``label`` as class numbers.

    Raises:
        ValueError: if it is missing, or holds something that is no class.
    """
    if labels is None:
        raise ValueError("label: no such column, expected one class a sample; give the trainer columns=[{'label': ...}, ...]")
    if len(labels) != count:
        raise ValueError(f"label: {len(labels)} values, expected one a sample ({count})")
    found = []
    for label in labels:
        text = str(label)
        if not text.isdecimal() or int(text) >= classes:
            raise ValueError(f"label: {label!r}, expected a class from 0 to {classes - 1}")
        found.append(int(text))
    return found


@dataclass(frozen=True)
class SSIMToClassMean:
    """Structural similarity of an image to the mean training image of the class it was asked for, in [-1, 1].

    SSIM(x, y) = mean over windows of (2 μ_x μ_y + C₁)(2 σ_xy + C₂) / ((μ_x² + μ_y² + C₁)(σ_x² + σ_y² + C₂)), by scikit-image.
    Source: Wang et al. (2004), doi 10.1109/TIP.2003.819861.

    Attributes:
        window: side of the square windows in pixels, odd, from 3 to 7.

    Raises:
        ValueError: if ``window`` is out of its range.
    """

    window: int = 5

    def __post_init__(self) -> None:
        if self.window not in (3, 5, 7):
            raise ValueError(f"window: {self.window}, expected 3, 5 or 7")

    @cached_property
    def means(self) -> Float[Tensor, "class height width"]:
        """The mean images of the training part of the digits."""
        return class_means(load_digits("train"))

    @property
    def name(self) -> str:
        """For logs."""
        return "ssim"

    def __call__(self, samples: Samples, *, label: Sequence[Any] | None = None, **columns: Sequence[Any]) -> list[float]:
        """One number a sample.

        Raises:
            ImportError: if scikit-image or scikit-learn is not installed.
            ValueError: if the column ``label`` is missing or holds no class, or an image is of another size.
        """
        try:
            from skimage.metrics import structural_similarity
        except ImportError as error:
            raise ImportError("ssim: scikit-image is not installed; pip install discrete-grpo[images]") from error
        means = self.means.double().numpy()
        found = []
        for image, c in zip(samples, _labels(label, len(samples), len(means)), strict=True):
            if image is not None and (image.height, image.width) != means.shape[1:]:
                raise ValueError(f"samples: an image of {image.height} by {image.width} pixels, expected {means.shape[1:]}")
            pixels = None if image is None else image.tensor().double().numpy()
            same = 0.0 if pixels is None else structural_similarity(pixels, means[c], win_size=self.window, data_range=1.0)
            found.append(float(same))
        return found


class ClassifierProbability:
    """p(label | image) by a frozen classifier, in [0, 1].

    Args:
        checkpoint: a bundled classifier's name, a checkpoint folder or a run folder; holds a module
            ``ink [B, height, width] -> logits [B, classes]``.
        batch_size: images a forward pass.
        trusted: top-level packages whose classes may be built; name yours for a network of your own.

    Raises:
        CheckpointError: if there is no such checkpoint or it is damaged.
        ValueError: if ``batch_size`` is below 1.
    """

    name = "classifier"

    def __init__(self, checkpoint: str = "digits-classifier", batch_size: int = 256, trusted: Sequence[str] = TRUSTED) -> None:
        check_range("batch_size", batch_size, least=1)
        self.checkpoint, self.batch_size = checkpoint, batch_size
        self.network: nn.Module = load_policy(find_checkpoint(checkpoint, "classifier"), trusted=trusted).requires_grad_(False)

    @torch.no_grad()
    def __call__(self, samples: Samples, *, label: Sequence[Any] | None = None, **columns: Sequence[Any]) -> list[float]:
        """One probability a sample.

        Raises:
            ValueError: if the column ``label`` is missing or holds no class.
        """
        known = [image for image in samples if image is not None]
        parts = [known[k : k + self.batch_size] for k in range(0, len(known), self.batch_size)]
        tables = [self.network(stack(part)).softmax(-1) for part in parts]
        classes = _labels(label, len(samples), tables[0].shape[1] if tables else 10**9)
        rows = iter(torch.cat(tables).tolist() if tables else [])
        return [0.0 if image is None else next(rows)[c] for image, c in zip(samples, classes, strict=True)]
