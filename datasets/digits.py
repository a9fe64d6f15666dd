"""Handwritten digits: the 1797 grey images of 8 by 8 pixels that scikit-learn includes.

Source: Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits (test part), UCI Machine Learning Repository,
CC BY 4.0; the copy in scikit-learn (BSD 3-Clause), which the optional extra ``images`` installs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.core.precision import place

__all__ = ["LICENCE", "NUM_CLASSES", "DigitImages", "ImageBatch", "class_means", "load_digits"]

NUM_CLASSES = 10
LICENCE = "Optical Recognition of Handwritten Digits (Alpaydin and Kaynak 1998), UCI, CC BY 4.0; via scikit-learn, BSD 3-Clause"
_SPLIT_SEED = 0
_TEST_SHARE = 0.2


@dataclass(frozen=True)
class ImageBatch:
    """Batch of labelled images for likelihood training.

    Attributes:
        pixels: ink in [0, 1].
        labels: class of each image.
    """

    pixels: Float[Tensor, "batch height width"]
    labels: Int[Tensor, " batch"]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> ImageBatch:
        """Return a copy on ``device``."""
        return ImageBatch(place(self.pixels, torch.device(device)), place(self.labels, torch.device(device)))


@dataclass(frozen=True)
class DigitImages:
    """Data set of M labelled images for likelihood training.

    Attributes:
        pixels: ink in [0, 1].
        labels: class of each image.
        name: name of the set in reports.
    """

    pixels: Float[Tensor, "image height width"]
    labels: Int[Tensor, " image"]
    name: str = "digits"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sizes(self) -> Int[Tensor, " image"]:
        """Return 1 per image, since all have one size."""
        return torch.ones_like(self.labels)

    def batch(self, rows: Int[Tensor, " row"]) -> ImageBatch:
        """Return the images at ``rows``."""
        return ImageBatch(self.pixels[rows], self.labels[rows])


def load_digits(split: Literal["train", "test", "all"] = "train") -> DigitImages:
    """Load one part of a fixed split: a fifth of each class, drawn with a fixed seed, is ``test``.

    Raises:
        ImportError: if scikit-learn is not installed.
        ValueError: for an unknown part.
    """
    if split not in ("train", "test", "all"):
        raise ValueError(f"split: {split!r}, expected train, test or all")
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError("digits: scikit-learn is not installed; pip install 'discrete-grpo[images]'") from error
    stored = datasets.load_digits()
    pixels, labels = torch.from_numpy(stored.images).float() / 16, torch.from_numpy(stored.target).long()
    if split == "all":
        return DigitImages(pixels, labels)
    rows = _part(labels, split)
    return DigitImages(pixels[rows], labels[rows], f"digits {split}")


def _part(labels: Tensor, split: str) -> Int[Tensor, " row"]:
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    parts = []
    for c in range(NUM_CLASSES):
        own = (labels == c).nonzero().squeeze(1)
        own = own[torch.randperm(len(own), generator=generator)]
        cut = round(_TEST_SHARE * len(own))
        parts.append(own[:cut] if split == "test" else own[cut:])
    return torch.cat(parts).sort().values


def class_means(data: DigitImages) -> Float[Tensor, "class height width"]:
    """Compute the mean image of every class."""
    return torch.stack([data.pixels[data.labels == c].mean(0) for c in range(NUM_CLASSES)])
