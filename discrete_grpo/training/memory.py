"""Memory of scored samples from any source: the best unique ones in order, drawn with weights by rank.

Unlike :class:`~discrete_grpo.training.replay_buffer.ReplayBuffer`, which keeps trajectories that the policy drew, it keeps only
samples: those of a policy, of genetic operators or of a file. A policy with ``rollout_of``
(:class:`~discrete_grpo.core.rollout.Replayable`) recomputes their log-probs whenever it learns from them.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.checks import check_range, check_whole

__all__ = ["Remembered", "ScoredMemory", "rank_weights"]


def rank_weights(count: int, coefficient: float) -> Float[Tensor, " rank"]:
    """Weights 1 / (k N + rank) of N entries in order of rank, the best has rank 0; float64, not normalised.

    Args:
        count: N.
        coefficient: k, more than 0; smaller values give the best entries more weight.

    Source: Tripp et al. (2020), Eq. 2, arXiv 2006.09191.

    >>> rank_weights(2, 0.5).tolist()
    [1.0, 0.5]
    """
    check_range("rank_coefficient", coefficient, above=0)
    return 1 / (coefficient * count + torch.arange(count, dtype=torch.float64))


@dataclass(frozen=True)
class Remembered:
    """A scored sample.

    Attributes:
        key: identity of the sample, such as its canonical SMILES.
        sample: the sample as the policy and the rewards take it.
        score: its score, finite.
        source: name of the source that proposed it.
    """

    key: Hashable
    sample: Any
    score: float
    source: str = ""


@dataclass
class ScoredMemory:
    """The best unique samples seen, best first; ties go to the older one.

    Args:
        size: number of samples kept, at least 1; None keeps all.
        rank_coefficient: k of :func:`rank_weights`, with which :meth:`draw` prefers the best.
        kept: entries to begin with, best first.

    Raises:
        ValueError: for an argument out of its range.

    >>> memory = ScoredMemory(size=2)
    >>> memory.add([("a", "a", 0.1), ("b", "b", 0.3), ("c", "c", 0.2)], source="file")
    3
    >>> [entry.sample for entry in memory.kept]
    ['b', 'c']
    """

    size: int | None = 1024
    rank_coefficient: float = 0.01
    kept: list[Remembered] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.size is not None:
            check_whole("size", self.size, least=1, note=" or None")
        check_range("rank_coefficient", self.rank_coefficient, above=0)
        self._keys = {entry.key for entry in self.kept}

    def __len__(self) -> int:
        return len(self.kept)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def has_room(self, score: float) -> bool:
        """Whether a new sample with this score would be kept."""
        return self.size is None or len(self.kept) < self.size or score > self.kept[-1].score

    def add(self, entries: Sequence[tuple[Hashable, Any, float]], source: str = "") -> int:
        """Add scored samples as (key, sample, score); return how many entered, counting those that were displaced again.

        A known key keeps its first score. Unknown scores (NaN) are skipped.
        """
        entered = 0
        for key, sample, score in entries:
            if key in self._keys or math.isnan(score) or not self.has_room(score):
                continue
            if self.size is not None and len(self.kept) >= self.size:
                self._keys.discard(self.kept.pop().key)
            insort(self.kept, Remembered(key, sample, float(score), source), key=lambda entry: -entry.score)
            self._keys.add(key)
            entered += 1
        return entered

    def clear(self) -> None:
        """Remove all entries."""
        self.kept.clear()
        self._keys.clear()

    def replace(self, entries: Sequence[Remembered]) -> None:
        """Replace all entries by these, which are sorted best first."""
        self.kept = list(entries)
        self._keys = {entry.key for entry in self.kept}

    def draw(self, count: int, generator: torch.Generator | None = None) -> list[Remembered]:
        """At most ``count`` different entries, drawn without replacement with the weights of :func:`rank_weights`."""
        if not self.kept or count < 1:
            return []
        rows = torch.multinomial(self._weights(generator), min(count, len(self.kept)), replacement=False, generator=generator)
        return [self.kept[k] for k in rows.tolist()]

    def parents(self, count: int, generator: torch.Generator | None = None) -> list[Remembered]:
        """``count`` entries, drawn with replacement by the same weights; an empty list while the memory is empty."""
        if not self.kept or count < 1:
            return []
        rows = torch.multinomial(self._weights(generator), count, replacement=True, generator=generator)
        return [self.kept[k] for k in rows.tolist()]

    def _weights(self, generator: torch.Generator | None) -> Tensor:
        weights = rank_weights(len(self.kept), self.rank_coefficient)
        if generator is None or generator.device.type == "cpu":
            return weights
        return weights.float().to(generator.device)  # not every device has float64
