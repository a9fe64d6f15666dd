"""Measures of one run of a method: areas under the curve, means of the best, diversity, calls by source."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains.smiles import parse_all
from discrete_grpo.rewards.auc import auc_spacing, auc_top_k
from discrete_grpo.rewards.ledger import Ledger

__all__ = ["best_calls", "curve", "measure", "pairwise_diversity"]

CURVE_POINTS = 38
"""Number of stored points of a curve after the first, dense at the beginning."""
KEPT = 20
"""Number of best samples stored with a row, for the page."""


def best_calls(scores: Sequence[float], k: int) -> list[int]:
    """Positions of the best ``k`` known scores, best first; ties go to the earliest.

    >>> best_calls([0.2, float("nan"), 0.7, 0.7], 2)
    [2, 3]
    """
    known = [place for place, score in enumerate(scores) if not math.isnan(score)]
    return heapq.nsmallest(k, known, key=lambda place: (-scores[place], place))


def curve(scores: Sequence[float], budget: int, k: int = 10) -> list[tuple[int, float]]:
    """(t, m(t)) at about 39 numbers of calls t from 0 to the budget, m(t) the mean of the best ``k`` of the first t calls.

    m(0) = 0, and after the last call m keeps its value, as in :func:`~discrete_grpo.rewards.auc.auc_top_k`.

    >>> curve([0.5, 1.0], budget=4, k=1)
    [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.0), (4, 1.0)]
    """
    check_whole("budget", budget, least=1)
    places = sorted({round(budget * (n / CURVE_POINTS) ** 2) for n in range(CURVE_POINTS + 1)})
    best: list[float] = []
    found, seen = [], 0
    for place in places:
        for score in scores[seen:place]:
            if not math.isnan(score):
                (heapq.heappush if len(best) < k else heapq.heappushpop)(best, score)
        seen = place
        found.append((place, math.fsum(best) / len(best) if best else 0.0))
    return found


def pairwise_diversity(smiles: Sequence[str]) -> float | None:
    """1 - mean Tanimoto similarity over the unordered pairs of entries, ECFP4 of 2,048 bits.

    A molecule that is given twice counts twice; those of a row are all different.

    Returns:
        A number in [0, 1]; None for fewer than two valid entries.

    Source: Huang et al. (2021), Therapeutics Data Commons, ``Diversity``.

    >>> pairwise_diversity(["CCO", "OCC"]), pairwise_diversity(["CCO"])
    (0.0, None)
    """
    prints = [molecule_properties.bit_fingerprint(mol, 2, 2048) for mol in parse_all(smiles) if mol is not None]
    pairs = [molecule_properties.tanimoto(a, b) for k, a in enumerate(prints) for b in prints[:k]]
    return 1.0 - math.fsum(pairs) / len(pairs) if pairs else None


def measure(ledger: Ledger, budget: int, kind: str, name: str) -> dict[str, Any]:
    """Compute the numbers of a row from the scores of the task ``name`` for the calls of a ledger.

    Returns:
        ``calls``; ``auc_top1``, ``auc_top10``, ``auc_top100``; ``top1``, ``top10``, ``top100`` (means of the best); for molecules
        ``diversity_top100`` and ``sa_top10`` (None where there are none); ``sources`` (calls by source); ``asked`` (samples
        handed to the ledger) and, for molecules, ``valid_share`` of them; ``best`` and ``curve`` for the page.

    Raises:
        ValueError: if the ledger holds more calls than the budget, because its limit was changed.
    """
    history = ledger.history()
    check_range("calls", len(history.keys), most=budget, note=" (budget)")
    scores = history.of(name)
    order = best_calls(scores, 100)
    top = [scores[place] for place in order]
    row: dict[str, Any] = {"calls": len(history.keys)}
    row |= {f"auc_top{k}": auc_top_k(scores, k, budget, auc_spacing(budget)) for k in (1, 10, 100)}
    row |= {f"top{k}": math.fsum(top[:k]) / len(top[:k]) if top else None for k in (1, 10, 100)}
    molecules = [history.keys[place] for place in order] if kind == "molecules" else []
    easy = [molecule_properties.sa_score(mol) for mol in parse_all(molecules[:10]) if mol is not None]
    row["diversity_top100"] = pairwise_diversity(molecules)
    row["sa_top10"] = math.fsum(easy) / len(easy) if easy else None
    row["sources"] = ledger.sources()
    row["asked"] = ledger.asked
    row["valid_share"] = 1.0 - ledger.invalid / ledger.asked if ledger.asked and kind == "molecules" else None
    row["best"] = [[history.keys[place], scores[place]] for place in order[:KEPT]]
    row["curve"] = [list(point) for point in curve(scores, budget)]
    return row
