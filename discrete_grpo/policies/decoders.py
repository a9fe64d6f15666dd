"""Frozen decoders from the text of a token policy to images and molecules.

A decoder is a callable ``texts -> objects`` that returns None for a text that is not an object. One with a method ``encode``,
``objects -> texts``, lets a policy learn from objects that it did not draw; with an argument ``generator`` it draws one of the
texts of an object.

================== =============================== ==========================================
decoder            text                            object
================== =============================== ==========================================
``VQDecoder``      ``<12><7>...``, codes of cells  :class:`~discrete_grpo.domains.images.Image`
``SelfiesDecoder`` ``[C][=O]...``                  canonical SMILES
================== =============================== ==========================================

The decoder to graphs is :class:`~discrete_grpo.domains.graph_sequences.GraphSequences`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from discrete_grpo.core.checks import check_whole
from discrete_grpo.domains.images import Image
from discrete_grpo.domains.smiles import parse, to_smiles

__all__ = ["CODES", "SELFIES", "SelfiesDecoder", "VQDecoder", "code_text"]

CODES = r"<\d+>|[0-9]"
"""A code of an image, or a digit: the label of an image, which prompts hold and texts do not."""

SELFIES = r"\[[^\]]*\]"
"""A symbol of SELFIES."""


# -- images


def code_text(codes: Sequence[int]) -> str:
    """Convert codes to the text that a token policy reads and writes.

    >>> code_text([12, 7])
    '<12><7>'
    """
    return "".join(f"<{code}>" for code in codes)


class VQDecoder(nn.Module):
    """Texts of codes -> images, by a network that draws an image from codes.

    Args:
        network: codes [B, L] -> ink [B, height, width] in [0, 1], such as
            :class:`~discrete_grpo.models.vq.CodeDecoder`.
        length: L, codes of an image.
        codes: size of the codebook.
        batch_size: number of images per forward pass.
    """

    def __init__(self, network: nn.Module, length: int, codes: int, batch_size: int = 256) -> None:
        super().__init__()
        for name, value in {"length": length, "codes": codes, "batch_size": batch_size}.items():
            check_whole(name, value, least=1)
        self.network, self.length, self.codes, self.batch_size = network, length, codes, batch_size

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this decoder again."""
        return {name: getattr(self, name) for name in ("network", "length", "codes", "batch_size")}

    def parse(self, text: str) -> list[int] | None:
        """The codes of a text; None unless it is ``length`` codes of the codebook and nothing else."""
        if re.fullmatch(r"(<\d{1,9}>)*", text) is None:
            return None
        found = [int(code) for code in re.findall(r"\d+", text)]
        return found if len(found) == self.length and all(code < self.codes for code in found) else None

    @torch.no_grad()
    def forward(self, texts: Sequence[str]) -> list[Image | None]:
        """Draw one image per text; None for a text that is no image."""
        parsed = [self.parse(text) for text in texts]
        known = [codes for codes in parsed if codes is not None]
        device = next((p.device for p in self.network.parameters()), torch.device("cpu"))
        drawn: list[Tensor] = []
        for start in range(0, len(known), self.batch_size):
            drawn += self.network(torch.tensor(known[start : start + self.batch_size], device=device)).cpu().unbind(0)
        images = iter(drawn)
        return [None if codes is None else Image.of(next(images)) for codes in parsed]


# -- molecules


@dataclass(frozen=True)
class SelfiesDecoder:
    """Decoder from SELFIES to canonical SMILES; None for a text without atoms or one that RDKit rejects.

    Every sequence of symbols describes a molecule, so nearly every text is valid. It needs the extra ``selfies``.
    Source: Krenn et al. (2020), doi 10.1088/2632-2153/aba947.

    >>> SelfiesDecoder()(["[C][C][O]", "[C][=O]", ""])
    ['CCO', 'C=O', None]
    """

    def __call__(self, texts: Sequence[str]) -> list[str | None]:
        """Decode each text to one SMILES string.

        Raises:
            ImportError: if the package ``selfies`` is not installed.
        """
        selfies = _selfies()

        def decode(text: str) -> str | None:
            try:
                mol = parse(selfies.decoder(text))
            except selfies.DecoderError:
                return None
            return None if mol is None else to_smiles(mol)

        return [decode(text) for text in texts]

    def encode(self, samples: Sequence[str]) -> list[str]:
        """Return one of the many texts that decode to each SMILES string.

        Raises:
            ImportError: if the package ``selfies`` is not installed.
            ValueError: for a sample that is not a SMILES string, or that SELFIES cannot represent.

        >>> SelfiesDecoder().encode(["CCO"])
        ['[C][C][O]']
        """
        selfies = _selfies()
        found = []
        for sample in samples:
            if not isinstance(sample, str) or parse(sample) is None:
                raise ValueError(f"samples: {sample!r}, expected a valid, connected SMILES string")
            try:
                found.append(selfies.encoder(sample))
            except selfies.EncoderError as error:
                raise ValueError(f"samples: {sample!r}, expected a molecule that SELFIES can write") from error
        return found


def _selfies() -> Any:
    try:
        import selfies
    except ImportError as error:
        raise ImportError("decoder: selfies is not installed; pip install 'discrete-grpo[selfies]'") from error
    return selfies
