"""The samples of highest reward that a run has scored, from the tables in its folder."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from discrete_grpo.runs.folder import BEST, EVALUATION_TABLES, SAMPLES
from discrete_grpo.runs.recorder import iter_samples

__all__ = ["LARGEST", "Scored", "best_scored", "non_dominated", "number_of"]

LARGEST = 1e100
"""Numbers beyond it are not read, as their sums would overflow."""
_AT_ONCE = 4096


class Scored(NamedTuple):
    """A sample with its reward, where it was first reached, and its scores by each of several rewards; None for unknown ones."""

    sample: str
    reward: float
    origin: str
    parts: dict[str, float | None]


def best_scored(run: Path, most: int, *, unit: str = "update", accept: Callable[[str], bool] | None = None) -> list[Scored]:
    """Return the different samples of highest reward, best first and the first reached before later ones.

    Args:
        run: the run folder.
        most: largest number of samples.
        unit: what a step of the run is called, as in ``update 12``.
        accept: called with each sample from the best on until there are enough; False leaves it out. None takes all; otherwise
            all different samples of the run are held in memory.
    """
    rewards: dict[str, float] = {}
    for sample, reward, _, _ in _scored_rows(run, unit):
        if reward > rewards.get(sample, -math.inf):
            rewards[sample] = reward
        if accept is None and len(rewards) > _AT_ONCE + most:  # a long run has more samples than memory should hold
            rewards = dict(heapq.nlargest(most, rewards.items(), key=lambda item: item[1]))
    ranked = sorted(rewards, key=lambda sample: -rewards[sample])
    chosen = list(islice((sample for sample in ranked if accept is None or accept(sample)), most))
    missing, found = set(chosen), dict[str, Scored]()
    for sample, reward, origin, row in _scored_rows(run, unit):
        if sample in missing and reward == rewards[sample]:
            parts = {name: number_of(cell) for name, cell in row.items() if name.startswith("reward_")}
            found[sample] = Scored(sample, reward, origin, parts)
            missing.remove(sample)
    best = [found[sample] for sample in chosen]
    several = len({name for one in best for name in one.parts}) > 1  # the score by a single reward is the reward
    return best if several else [one._replace(parts={}) for one in best]


def non_dominated(found: Sequence[Scored], signs: Sequence[float]) -> list[Scored]:
    """The samples that no other one dominates (the Pareto front), in their order; those with an unknown score are left out.

    x dominates y if s_k x_k >= s_k y_k for the scores by every reward k, and > for at least one.

    Args:
        found: samples with their scores by several rewards.
        signs: 1 for a reward whose higher scores are better, -1 for one whose lower scores are, 0 for one that does not count.

    >>> found = [Scored(s, a + b, "", {"a": a, "b": b}) for s, a, b in (("x", 2, 0), ("y", 1, 0), ("z", 0, 1))]
    >>> [one.sample for one in non_dominated(found, (1, 1))]
    ['x', 'z']
    """
    known = [one for one in found if None not in one.parts.values()]
    points = np.array([list(one.parts.values()) for one in known], dtype=float).reshape(len(known), -1) * np.asarray(signs)
    front: list[int] = []
    for k in np.argsort(-points.sum(1), kind="stable"):  # a sample that dominates another comes before it
        above = points[front] - points[k]
        if not ((above >= 0).all(1) & (above > 0).any(1)).any():
            front.append(int(k))
    return [known[k] for k in sorted(front)]


def number_of(cell: str | None) -> float | None:
    """The number in a cell; None for any other text, and for numbers that cannot be added up."""
    try:
        value = float(cell or "")
    except ValueError:
        return None
    return value if abs(value) < LARGEST else None


def _scored_rows(run: Path, unit: str) -> Iterator[tuple[str, float, str, dict[str, str]]]:
    """Sample, reward and origin of every row with a known reward: of training, the evaluations, or a search."""
    origins = {  # in the order of time
        EVALUATION_TABLES["before"]: "evaluation before training",
        SAMPLES: unit,
        EVALUATION_TABLES["after"]: "evaluation after training",
        BEST: "search",
    }
    for name, origin in origins.items():
        path = run / name
        for row in iter_samples(path) if path.exists() else ():
            reward = number_of(row.get("reward"))
            sample = row.get("sample", next(iter(row.values()), "") if name == BEST else "")
            if reward is not None and sample:
                where = row.get("source", origin) if name == BEST else origin
                yield sample, reward, f"{where} {row['step']}" if "step" in row else where, row
