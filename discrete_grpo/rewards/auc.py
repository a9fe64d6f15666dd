"""The area under the curve of the best scores over oracle calls, the metric of the PMO benchmark."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from discrete_grpo.core.checks import check_whole

__all__ = ["auc_spacing", "auc_top_k"]


def auc_top_k(history: Iterable[float | None], k: int = 10, budget: int = 10_000, freq_log: int = 100) -> float:
    """(1/T) ∫_0^T m(t) dt, m(t) the mean of the best k of the first t calls, by trapezoids at every ``freq_log``-th call.

    m(0) = 0, and after the last call m keeps its value up to T. PMO's headline number is k = 10, T = 10,000.

    Args:
        history: one score per call, in order of the calls; unknown ones (None or NaN) count as calls but not in m.
        k: number of best scores in the mean, at least 1.
        budget: T, at least 1; calls beyond it are left out.
        freq_log: number of calls between two points, at least 1.

    Raises:
        ValueError: for an argument out of its range.

    Source: Gao et al. (2022), PMO, ``top_auc`` of its code.

    >>> auc_top_k([1.0] * 200, budget=1000)
    0.95
    """
    for name, value in (("k", k), ("budget", budget), ("freq_log", freq_log)):
        check_whole(name, value, least=1)
    best: list[float] = []
    area = before = 0.0
    last = count = 0
    for score in history:
        if count == budget:
            break
        count += 1
        if score is not None and not math.isnan(score):
            (heapq.heappush if len(best) < k else heapq.heappushpop)(best, score)
        if count % freq_log == 0:
            now = sum(best) / len(best) if best else 0.0
            area += freq_log * (now + before) / 2
            before, last = now, count
    final = sum(best) / len(best) if best else 0.0
    area += (count - last) * (final + before) / 2
    return (area + (budget - count) * final) / budget


def auc_spacing(budget: int) -> int:
    """Number of calls between two points of the curve: 100 as in PMO from 10,000 calls on, else a hundredth of the budget.

    >>> auc_spacing(10_000), auc_spacing(1_000), auc_spacing(50)
    (100, 10, 1)
    """
    return min(100, max(1, budget // 100))
