"""Metrics of samples in two stages, the first of which runs in the process that drew the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["SampleMetrics"]


@dataclass(frozen=True)
class SampleMetrics:
    """Metrics in two stages: each process describes its own samples, and the first process summarises all descriptions.

    Every process of a run calls ``describe`` with its own samples, which should be the costly part, and the first one calls
    ``summarise`` with all of them. A plain function of samples in its place is called by the first process alone.

    Attributes:
        describe: one description per sample that can be pickled and is small, e.g. the canonical form of a valid one.
        summarise: the metrics, from all samples and their descriptions in the same order.

    >>> longest = SampleMetrics(lambda samples: [len(s) for s in samples], lambda samples, found: {"longest": max(found)})
    >>> longest(["CC", "CCCC"])
    {'longest': 4}
    """

    describe: Callable[[Sequence[Any]], Sequence[Any]]
    summarise: Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float]]

    def __call__(self, samples: Sequence[Any]) -> dict[str, float]:
        """The metrics of samples of this process.

        Raises:
            ValueError: if ``describe`` returns another number of descriptions than there are samples.
        """
        return dict(self.summarise(samples, self.of_own(samples)))

    def of_own(self, samples: Sequence[Any]) -> list[Any]:
        """Descriptions of samples, one per sample.

        Raises:
            ValueError: if ``describe`` returns another number of them.
        """
        found = list(self.describe(samples))
        if len(found) != len(samples):
            raise ValueError(f"sample_metrics: {len(found)} descriptions, expected one per sample ({len(samples)})")
        return found
