"""Rewards on images: callables from :class:`~discrete_grpo.domains.images.Image` samples to one number per sample.

A sample that is None scores 0. :class:`SSIMToClassMean` and :class:`ClassifierProbability` read the column ``label``, the class
that was requested for each image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from discrete_grpo.core.checks import check_columns, check_range, check_whole, plain_scalar
from discrete_grpo.datasets.digits import class_means, load_digits
from discrete_grpo.domains.images import Image, stack
from discrete_grpo.rewards.gaussian import gaussian
from discrete_grpo.runs.checkpoint import TRUSTED, read_policy
from discrete_grpo.runs.checkpoint_names import find_checkpoint

__all__ = ["ClassifierProbability", "InkAmount", "SSIMToClassMean", "ink"]

Samples = Sequence["Image | None"]


def ink(samples: Samples, **columns: Sequence[Any]) -> list[float]:
    """Compute the mean ink of an image's pixels.

    Returns:
        A number in [0, 1], 0 for a blank image and for None, 1 for one that is all ink.

    >>> ink([Image(1, 2, bytes([0, 255])), None])
    [0.5, 0.0]
    """
    return [0.0 if image is None else sum(image.levels) / (255 * len(image.levels)) for image in samples]


@dataclass(frozen=True)
class InkAmount:
    """Gaussian of the mean ink around a target value: exp(-((ink - value) / scale)² / 2).

    Args:
        value: where the maximum lies, 0 to 1.
        scale: the standard deviation, more than 0.

    Raises:
        ValueError: for an argument out of its range.

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
        """The name in logs."""
        return f"ink={self.value:g}"

    def __call__(self, samples: Samples, **columns: Sequence[Any]) -> list[float]:
        """Compute the Gaussian of each image's mean ink.

        Returns:
            A number in [0, 1] per sample, 1 where the mean ink has the target value; 0 for None.
        """
        near = [gaussian(x, self.value, self.scale) for x in ink(samples)]
        return [0.0 if image is None else x for image, x in zip(samples, near, strict=True)]


def _labels(labels: Sequence[Any] | None, count: int, classes: int) -> list[int]:
    """Read the column ``label`` as class numbers.

    Raises:
        ValueError: if the column is missing, or holds an entry that is no class.
    """
    if labels is None:
        raise ValueError("label: no such column, expected one class per sample; give the trainer columns=[{'label': ...}, ...]")
    check_columns({"label": labels}, count)
    found = []
    for label in labels:
        text = str(plain_scalar(label))
        if not text.isdecimal() or int(text) >= classes:
            raise ValueError(f"label: {label!r}, expected a class from 0 to {classes - 1}")
        found.append(int(text))
    return found


@dataclass(frozen=True)
class SSIMToClassMean:
    """Structural similarity of an image to the mean training image of its requested class.

    SSIM(x, y) = mean over windows of (2 μ_x μ_y + C₁)(2 σ_xy + C₂) / ((μ_x² + μ_y² + C₁)(σ_x² + σ_y² + C₂)), by scikit-image.

    Args:
        window: side of the square windows in pixels: 3, 5 or 7.

    Raises:
        ImportError: if scikit-image is not installed.
        ValueError: if ``window`` is out of its range.

    Source: Wang et al. (2004), doi 10.1109/TIP.2003.819861.

    Example::

        reward:
          class_path: discrete_grpo.rewards.images.SSIMToClassMean
          init_args: {window: 5}
    """

    window: int = 5

    def __post_init__(self) -> None:
        if self.window not in (3, 5, 7):
            raise ValueError(f"window: {self.window}, expected 3, 5 or 7")
        if find_spec("skimage") is None:
            raise ImportError("ssim: scikit-image is not installed; pip install 'discrete-grpo[images]'")

    @cached_property
    def means(self) -> Float[Tensor, "class height width"]:
        """The mean images of the training split of the digits."""
        return class_means(load_digits("train"))

    @property
    def name(self) -> str:
        """The name in logs."""
        return "ssim"

    def __call__(self, samples: Samples, *, label: Sequence[Any] | None = None, **columns: Sequence[Any]) -> list[float]:
        """Compare each image with the mean image of its class.

        Returns:
            A number in [-1, 1] per sample, 1 for the mean image itself; 0 for None.

        Raises:
            ImportError: if scikit-learn is not installed.
            ValueError: if the column ``label`` is missing or holds no class, or an image is of another size.
        """
        from skimage.metrics import structural_similarity

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
    """Probability p(label | image) of the requested class of an image under a frozen classifier.

    Args:
        checkpoint: name of a bundled classifier, a checkpoint folder or a run folder. It holds a module
            ``ink [B, height, width] -> logits [B, classes]``.
        batch_size: images per forward pass, at least 1.
        trusted: top-level packages whose classes may be instantiated; add your own package for a custom network.

    Raises:
        CheckpointError: if there is no such checkpoint or it is damaged.
        ValueError: if ``batch_size`` is below 1.

    Example::

        reward:
          class_path: discrete_grpo.rewards.images.ClassifierProbability
          init_args: {checkpoint: digits-classifier}
    """

    name = "classifier"

    def __init__(self, checkpoint: str = "digits-classifier", batch_size: int = 256, trusted: Sequence[str] = TRUSTED) -> None:
        check_whole("batch_size", batch_size, least=1)
        self.checkpoint, self.batch_size = checkpoint, batch_size
        self.network: nn.Module = read_policy(find_checkpoint(checkpoint, "classifier"), trusted=trusted).requires_grad_(False)

    @torch.no_grad()
    def __call__(self, samples: Samples, *, label: Sequence[Any] | None = None, **columns: Sequence[Any]) -> list[float]:
        """Compute the probability of each image's class.

        Returns:
            A number in [0, 1] per sample, higher where the classifier is more certain of the class; 0 for None.

        Raises:
            ValueError: if the column ``label`` is missing or holds no class, or for images of another size than the classifier's.
        """
        known = [image for image in samples if image is not None]
        parts = [known[k : k + self.batch_size] for k in range(0, len(known), self.batch_size)]
        try:
            tables = [self.network(stack(part)).softmax(-1) for part in parts]
        except RuntimeError as error:
            sizes = sorted({(image.height, image.width) for image in known})
            raise ValueError(f"samples: images of {sizes}, expected the size of the classifier ({error})") from error
        classes = _labels(label, len(samples), tables[0].shape[1] if tables else 10**9)
        rows = iter(torch.cat(tables).tolist() if tables else [])
        return [0.0 if image is None else next(rows)[c] for image, c in zip(samples, classes, strict=True)]
