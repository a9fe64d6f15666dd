"""Vector-quantised autoencoder: grey images to a grid of codes, and codes to images.

An encoder maps the image to a vector z at every place of a grid, each z is replaced by the nearest entry e of a codebook, and a
decoder maps the entries to an image. Source: van den Oord et al. (2017), Neural Discrete Representation Learning, arXiv 1711.00937.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from discrete_grpo.core.batch_share import WHOLE, BatchShare, mean_of
from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.precision import widen

__all__ = ["CodeDecoder", "VQAutoencoder", "VQConfig", "nearest_code"]


@dataclass(frozen=True)
class VQConfig:
    """Sizes of a :class:`VQAutoencoder`.

    Attributes:
        size: side of the square images in pixels, a multiple of 2^``halvings``.
        halvings: number of times that the encoder halves the side; the grid of codes has side ``size / 2^halvings``.
        codes: K, number of codebook entries, at least 2.
        code_width: length of a codebook entry.
        width: channels of the hidden layers.
        commitment: β of the loss, at least 0.

    Raises:
        ValueError: for a value out of its range.
    """

    size: int = 8
    halvings: int = 1
    codes: int = 64
    code_width: int = 8
    width: int = 32
    commitment: float = 0.25

    def __post_init__(self) -> None:
        for name, low in {"size": 1, "halvings": 0, "codes": 2, "code_width": 1, "width": 1}.items():
            check_whole(name, getattr(self, name), least=low)
        check_range("commitment", self.commitment, least=0)
        if self.size % 2**self.halvings:
            raise ValueError(f"size: {self.size}, expected a multiple of 2^halvings ({2**self.halvings})")

    @property
    def grid(self) -> int:
        """Side of the grid of codes."""
        return self.size // 2**self.halvings

    @property
    def length(self) -> int:
        """Number of codes per image."""
        return self.grid**2


def nearest_code(vectors: Float[Tensor, "batch width"], codebook: Float[Tensor, "code width"]) -> Int[Tensor, " batch"]:
    """Index argmin_k ‖z - e_k‖² of the nearest codebook entry; the smallest index of several.

    >>> nearest_code(torch.tensor([[0.9], [-3.0]]), torch.tensor([[0.0], [1.0]]))
    tensor([1, 0])
    """
    return torch.cdist(vectors, codebook, compute_mode="donot_use_mm_for_euclid_dist").argmin(-1)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.GELU(), nn.Conv2d(width, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x)


class CodeDecoder(nn.Module):
    """Codebook, and the network that maps its entries to an image: codes [B, L] -> ink [B, size, size] in (0, 1).

    Args:
        config: sizes.
    """

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.config = config
        w = config.width
        self.codebook = nn.Embedding(config.codes, config.code_width)
        layers: list[nn.Module] = [nn.Conv2d(config.code_width, w, 3, padding=1), _Residual(w)]
        for _ in range(config.halvings):
            layers += [nn.GELU(), nn.Upsample(scale_factor=2), nn.Conv2d(w, w, 3, padding=1), _Residual(w)]
        self.net = nn.Sequential(*layers, nn.GELU(), nn.Conv2d(w, 1, 3, padding=1))

    def init_args(self) -> dict[str, Any]:
        """Return the constructor arguments that a checkpoint stores."""
        return {"config": self.config}

    def draw(self, entries: Float[Tensor, "batch grid grid2 entry"]) -> Float[Tensor, "batch height width"]:
        """Decode vectors at the places of the grid to an image."""
        return self.net(entries.movedim(-1, 1)).squeeze(1).sigmoid()

    def forward(self, codes: Int[Tensor, "batch ..."]) -> Float[Tensor, "batch height width"]:
        """Decode codes [B, L], the grid row by row, to images."""
        return self.draw(self.codebook(codes).unflatten(1, (self.config.grid, self.config.grid)))


class VQAutoencoder(nn.Module):
    """Encoder, codebook and decoder, trained with :meth:`likelihood_loss`.

    Args:
        config: sizes.
    """

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.config = config
        w = config.width
        layers: list[nn.Module] = [nn.Conv2d(1, w, 3, padding=1)]
        for _ in range(config.halvings):
            layers += [nn.GELU(), nn.Conv2d(w, w, 4, stride=2, padding=1), _Residual(w)]
        self.encoder = nn.Sequential(*layers, nn.GELU(), nn.Conv2d(w, config.code_width, 1))
        self.decoder = CodeDecoder(config)

    def init_args(self) -> dict[str, Any]:
        """Return the constructor arguments that a checkpoint stores."""
        return {"config": self.config}

    def vectors(self, pixels: Float[Tensor, "batch height width"]) -> Float[Tensor, "batch grid grid2 entry"]:
        """Encode images: z at every place of the grid."""
        return self.encoder(pixels.unsqueeze(1)).movedim(1, -1)

    @torch.no_grad()
    def encode(self, pixels: Float[Tensor, "batch height width"]) -> Int[Tensor, "batch ..."]:
        """Encode images as codes [B, L], the grid row by row."""
        z = self.vectors(pixels)
        return nearest_code(z.flatten(0, -2), self.decoder.codebook.weight).reshape(len(pixels), -1)

    @torch.no_grad()
    def initialise(self, pixels: Float[Tensor, "image height width"], generator: torch.Generator | None = None) -> None:
        """Set the codebook entries to vectors of the encoder at randomly drawn places, so that all entries are in reach."""
        z = self.vectors(pixels).flatten(0, -2)
        rows = torch.randperm(len(z), generator=generator)[: self.config.codes]
        self.decoder.codebook.weight[: len(rows)] = z[rows]

    def forward(self, pixels: Float[Tensor, "batch height width"]) -> Float[Tensor, "batch height width"]:
        """Reconstruct images from their codes."""
        return self.decoder(self.encode(pixels))

    def likelihood_loss(
        self, batch: Any, *, generator: torch.Generator | None = None, share: BatchShare = WHOLE
    ) -> dict[str, Tensor]:
        """Loss L = 10 mean (x - D(e))² + mean (sg[z] - e)² + β mean (z - sg[e])²; the gradient at e is copied to z.

        Args:
            batch: has ``pixels`` [B, size, size].
            generator: not used; the loss is deterministic.
            share: rows that this process computes, and the means over all.

        Returns:
            ``loss``, its parts ``reconstruction`` and ``quantisation`` (mean (z - e)²), and ``perplexity``, exp of the
            entropy of the codes in the batch.
        """
        pixels = batch.pixels[share.own]
        z = self.vectors(pixels)
        codes = nearest_code(z.detach().flatten(0, -2), self.decoder.codebook.weight)
        entries = self.decoder.codebook(codes).reshape(z.shape)
        drawn = self.decoder.draw(z + (entries - z).detach())
        gaps = drawn - pixels, z.detach() - entries, z - entries.detach()
        used = widen(torch.bincount(codes, minlength=self.config.codes)) / len(codes)
        *means, used = share.means(*(mean_of(gap.square()) for gap in gaps), (used, torch.full((), len(codes), device=used.device)))
        reconstruction, codebook, commitment = means
        perplexity = torch.special.entr(used).sum().exp()
        loss = RECONSTRUCTION_WEIGHT * reconstruction + codebook + self.config.commitment * commitment
        return {"loss": loss, "reconstruction": reconstruction, "quantisation": codebook, "perplexity": perplexity}


RECONSTRUCTION_WEIGHT = 10.0
"""Weight of the squared error of a pixel, that of a Gaussian of variance 1/20."""
