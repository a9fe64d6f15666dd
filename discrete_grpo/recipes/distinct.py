"""The first distinct valid samples of a long draw, and how many samples had to be drawn for them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from discrete_grpo.core.checks import check_whole

__all__ = ["DRAWS_PER_SAMPLE", "Draws", "TooFewDistinct", "check_distinct_draws", "first_distinct"]

DRAWS_PER_SAMPLE = 100
"""Largest number of draws per wanted sample where ``max_draws`` is not given."""


@dataclass(frozen=True)
class Draws:
    """Numbers of samples up to the last one that was kept; of all samples, if fewer were found than wanted.

    Attributes:
        drawn: samples that were drawn.
        valid: those of them that are valid.
        distinct: different ones among the valid, all of which are kept.
    """

    drawn: int
    valid: int
    distinct: int

    def __str__(self) -> str:
        """The three numbers in words."""
        return f"{self.drawn} drawn, {self.valid} valid, {self.distinct} distinct"

    @property
    def shares(self) -> dict[str, float]:
        """``num_samples``, ``valid`` and ``unique`` of what was drawn, as an evaluation computes them."""
        unique = self.distinct / self.valid if self.valid else 0.0
        return {"num_samples": float(self.drawn), "valid": self.valid / self.drawn, "unique": unique}


class TooFewDistinct(RuntimeError):
    """Raised after ``max_draws`` samples if fewer distinct valid ones than wanted are among them.

    Args:
        wanted: number of samples that were asked for.
        draws: what was drawn.
        samples: the distinct samples that were found.
        place: text that says where they are; empty where they are in the attribute alone.
    """

    def __init__(self, wanted: int, draws: Draws, samples: Sequence[Any], place: str = "") -> None:
        self.draws, self.samples = draws, list(samples)
        kept = f"; {place}" if place else ""
        super().__init__(f"distinct: {draws}, expected {wanted} distinct within {draws.drawn} draws (max_draws){kept}")


def check_distinct_draws(distinct: bool, max_draws: int | None, count: int) -> int:
    """Check both arguments; return the largest number of draws.

    Raises:
        ValueError: if ``distinct`` is no truth value, or ``max_draws`` is less than ``count``, or given without ``distinct``.
    """
    if not isinstance(distinct, bool):
        raise ValueError(f"distinct: {distinct!r}, expected True or False")
    if max_draws is None:
        return DRAWS_PER_SAMPLE * count
    if not distinct:
        raise ValueError(f"max_draws: {max_draws}, expected none without distinct")
    check_whole("max_draws", max_draws, least=count, note=" (n)")
    return int(max_draws)


def first_distinct(
    batches: Iterable[tuple[Sequence[Any], Mapping[str, Sequence[Any]]]],
    count: int,
    identity: Callable[[Any], Hashable | None],
    reach: Callable[[Draws], object] = lambda draws: None,
) -> tuple[list[Any], dict[str, list[Any]], Draws]:
    """The first ``count`` distinct valid samples, their columns, and the numbers up to the last of them.

    Args:
        batches: samples and columns of each batch; no other batch is taken once enough are found.
        count: number of samples.
        identity: returns equal values for samples that count as the same, and None for an invalid one.
        reach: called with the numbers so far after every batch.

    >>> samples, columns, draws = first_distinct([(["a", None, "a", "b"], {"k": [0, 1, 2, 3]}), (["c"], {})], 2, lambda s: s)
    >>> samples, columns, str(draws)
    (['a', 'b'], {'k': [0, 3]}, '4 drawn, 3 valid, 2 distinct')
    """
    seen = set[Hashable]()
    kept: list[tuple[Any, dict[str, Any]]] = []
    drawn = valid = 0
    for samples, columns in batches:
        for k, sample in enumerate(samples):
            own = None if sample is None else identity(sample)
            drawn, valid = drawn + 1, valid + (own is not None)
            if own is not None and own not in seen:
                seen.add(own)
                kept.append((sample, {name: values[k] for name, values in columns.items()}))
            if len(kept) == count:
                break
        reach(Draws(drawn, valid, len(kept)))
        if len(kept) == count:
            break
    names = dict.fromkeys(name for _, row in kept for name in row)
    found = {name: [row.get(name) for _, row in kept] for name in names}
    return [sample for sample, _ in kept], found, Draws(drawn, valid, len(kept))
