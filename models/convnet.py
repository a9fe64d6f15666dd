"""Convolutional classifier of grey images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from discrete_grpo.core.batch_share import WHOLE, BatchShare, mean_of
from discrete_grpo.core.checks import check_range, check_whole

__all__ = ["ConvNet", "ConvNetConfig"]


@dataclass(frozen=True)
class ConvNetConfig:
    """Sizes of a :class:`ConvNet`.

    Attributes:
        size: side of the square images in pixels, a multiple of 4.
        classes: number of classes, at least 2.
        width: channels of the first layer; the last has four times as many.
        dropout: dropout rate before the last layer, in [0, 1).

    Raises:
        ValueError: for a value out of its range.
    """

    size: int = 8
    classes: int = 10
    width: int = 12
    dropout: float = 0.3

    def __post_init__(self) -> None:
        for name, low in {"size": 4, "classes": 2, "width": 1}.items():
            check_whole(name, getattr(self, name), least=low)
        if self.size % 4:
            raise ValueError(f"size: {self.size}, expected a multiple of 4")
        check_range("dropout", self.dropout, least=0, below=1)


class ConvNet(nn.Module):
    """Pixel intensities [B, size, size] -> logits [B, classes].

    Args:
        config: sizes.
    """

    def __init__(self, config: ConvNetConfig) -> None:
        super().__init__()
        self.config = config
        w = config.width
        self.net = nn.Sequential(
            *(nn.Conv2d(1, w, 3, padding=1), nn.GELU()),
            *(nn.Conv2d(w, 2 * w, 3, stride=2, padding=1), nn.GELU()),
            *(nn.Conv2d(2 * w, 4 * w, 3, stride=2, padding=1), nn.GELU()),
            *(nn.Flatten(), nn.Dropout(config.dropout), nn.Linear(4 * w * (config.size // 4) ** 2, config.classes)),
        )

    def init_args(self) -> dict[str, Any]:
        """Return the constructor arguments that a checkpoint stores."""
        return {"config": self.config}

    def forward(self, pixels: Float[Tensor, "batch height width"]) -> Float[Tensor, "batch class"]:
        """log p(class | image) up to a constant."""
        return self.net(pixels.unsqueeze(1))

    def likelihood_loss(
        self, batch: Any, *, generator: torch.Generator | None = None, share: BatchShare = WHOLE
    ) -> dict[str, Tensor]:
        """Mean of -log p(label | image) over the batch, and the accuracy.

        Args:
            batch: has ``pixels`` [B, size, size] and ``labels`` [B].
            generator: not used; the trainer seeds the dropout.
            share: rows that this process computes, and the means over all.
        """
        logits, labels = self(batch.pixels[share.own]), batch.labels[share.own]
        losses, right = nn.functional.cross_entropy(logits, labels, reduction="none"), logits.argmax(-1) == labels
        loss, accuracy = share.means(mean_of(losses), mean_of(right.float()))
        return {"loss": loss, "accuracy": accuracy.detach()}
