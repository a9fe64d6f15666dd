"""Metrics of generated text. Samples are strings, or None for an invalid sample."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import chain, groupby, pairwise
from typing import Any

import torch

from discrete_grpo.core.checks import check_samples

__all__ = ["diversity", "evaluate", "ranking_quality", "recovered", "sample_metrics"]


def sample_metrics(samples: Sequence[str | None]) -> dict[str, float]:
    """Compute ``valid``: texts / all samples; ``unique``: distinct / texts, 0 where there are none.

    >>> sample_metrics(["a cat", "a cat", "a dog", None])
    {'valid': 0.75, 'unique': 0.6666666666666666}
    """
    texts = [sample for sample in samples if sample is not None]
    return {"valid": _ratio(len(texts), len(samples)), "unique": _ratio(len(set(texts)), len(texts))}


def diversity(samples: Sequence[str | None], prompts: Sequence[str]) -> float:
    """Compute the mean over prompts of distinct fills / fills; 0 where no prompt has a fill.

    >>> diversity(["a cat", "a cat", "a dog", "a fox"], ["a c__", "a c__", "a ___", "a ___"])
    0.75
    """
    pairs = sorted((p, s) for p, s in zip(prompts, samples, strict=True) if s is not None)
    groups = [[s for _, s in group] for _, group in groupby(pairs, key=lambda pair: pair[0])]
    return sum(len(set(g)) / len(g) for g in groups) / len(groups) if groups else 0.0


def recovered(
    samples: Sequence[Sequence[Any] | None], prompts: Sequence[Sequence[Any]], originals: Sequence[Sequence[Any]], blank: Any = "_"
) -> float:
    """Compute the share of the blanks that were filled as in the original; texts as strings or as lists of tokens; 0 for None.

    >>> recovered(["a cot"], ["a c__"], ["a cat"])
    0.5
    """
    right = blanks = 0
    for sample, prompt, original in zip(samples, prompts, originals, strict=True):
        places = [k for k, c in enumerate(prompt) if c == blank]
        blanks += len(places)
        right += sum(sample is not None and sample[k : k + 1] == original[k : k + 1] for k in places)
    return _ratio(right, blanks)


def ranking_quality(real: Sequence[float], other: Sequence[float]) -> float:
    """Compute P(score of a real text > score of another), ties ½: the area under the ROC curve; NaN where either is empty.

    Raises:
        ValueError: for a score that is no number.

    >>> ranking_quality([0.9, 0.5], [0.5, 0.1])
    0.875
    """
    for name, scores in (("real", real), ("other", other)):
        if any(score is None or math.isnan(score) for score in scores):
            raise ValueError(f"{name}: a score that is None or NaN, expected numbers; leave unknown scores out")
    if not real or not other:
        return math.nan
    a, b = torch.tensor(real, dtype=torch.float64), torch.tensor(other, dtype=torch.float64).sort().values
    below, upto = torch.searchsorted(b, a), torch.searchsorted(b, a, right=True)
    return float((below + upto).double().mean() / (2 * len(b)))


def evaluate(samples: Sequence[str | None], reference: Collection[str] | None = None) -> dict[str, float]:
    """Evaluate a text generator.

    Args:
        samples: texts or None, one per generated object.
        reference: texts of the training set; None leaves ``novel`` out.

    Returns:
        ``num_samples``; ``valid`` and ``unique`` as :func:`sample_metrics`; ``novel``: distinct texts not in the reference /
        distinct texts; ``length``: mean number of characters, NaN where there is no text; ``distinct_2``: distinct pairs of
        neighbouring characters / pairs.

    Source of ``distinct_2``: Li et al. (2016), arXiv 1510.03055, over characters.
    """
    check_samples(samples)
    texts = [sample for sample in samples if sample is not None]
    found = {"num_samples": float(len(samples))} | sample_metrics(samples)
    if reference is not None:
        found["novel"] = _ratio(len(set(texts).difference(reference)), len(set(texts)))
    pairs = set(chain.from_iterable(pairwise(t) for t in texts))
    found["length"] = sum(map(len, texts)) / len(texts) if texts else math.nan
    found["distinct_2"] = _ratio(len(pairs), sum(max(0, len(t) - 1) for t in texts))
    return found


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
