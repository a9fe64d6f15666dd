"""Common parts of the suites of distribution metrics: options, result, and the estimates of a table of statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Int

from discrete_grpo.core.checks import check_fields, did_you_mean
from discrete_grpo.metrics.resampling import Estimate, Statistic, interval, whole

__all__ = ["SBM_METHODS", "SUITES", "SuiteOptions", "SuiteResult", "check_suite", "estimates"]

SUITES: Mapping[str, str] = {"moses": "molecules", "guacamol": "molecules", "graphs": "graphs", "spatial": "spatial"}
"""Each suite and the kind of samples that it measures."""

SbmMethod = Literal["louvain", "graph-tool"]
SBM_METHODS: tuple[str, ...] = get_args(SbmMethod)
Rows: TypeAlias = Int[np.ndarray, " row"]


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """Options of a suite.

    Attributes:
        bootstrap: number of parts drawn for each interval, at least 2; 0 leaves intervals out.
        folds: number of equal runs of consecutive samples whose mean and deviation are computed, at least 2; 0 leaves them out.
        sbm_method: how the block-model test of graphs finds the blocks: louvain or graph-tool.
        seed: random seed of all draws.

    Raises:
        ValueError: if a number is out of its range, or for another method.
    """

    bootstrap: int = 100
    folds: int = 0
    sbm_method: str = "louvain"
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "bootstrap folds seed", least=0)
        for name in ("bootstrap", "folds"):
            if getattr(self, name) == 1:
                raise ValueError(f"{name}: 1, expected 0 or at least 2, as one part has no spread")
        if self.sbm_method not in SBM_METHODS:
            raise ValueError(f"sbm_method: {self.sbm_method!r}, expected one of {', '.join(SBM_METHODS)}")


@dataclass(frozen=True)
class SuiteResult:
    """The metrics of a suite.

    Attributes:
        metrics: name of each metric and its estimate.
        notes: metrics that were left out and the reasons, one line each.
        settings: settings that the numbers depend on, such as the size of the reference.
    """

    metrics: Mapping[str, Estimate]
    notes: tuple[str, ...] = ()
    settings: Mapping[str, float | str] = field(default_factory=dict)


def check_suite(name: str, kind: str) -> None:
    """Raise ``ValueError`` for an unknown suite, with the nearest name, or for a suite of another kind of samples.

    >>> check_suite("mose", "molecules")
    Traceback (most recent call last):
    ValueError: suite: 'mose' is unknown; did you mean 'moses'? known: moses, guacamol, graphs, spatial
    """
    if name not in SUITES:
        hint = f"{did_you_mean(name, SUITES)} ".lstrip()
        raise ValueError(f"suite: {name!r} is unknown; {hint}known: {', '.join(SUITES)}")
    if SUITES[name] != kind:
        fitting = [other for other, of in SUITES.items() if of == kind]
        expected = f"expected {' or '.join(fitting)}" if fitting else "expected none"
        raise ValueError(f"suite: {name!r} measures {SUITES[name]}, {expected} with {kind}")


def estimates(
    statistics: Callable[[Rows], Mapping[str, Statistic]],
    count: int,
    perfect: Callable[[], Mapping[str, float]],
    options: SuiteOptions,
) -> dict[str, Estimate]:
    """Compute value, interval, perfect value and folds of each metric.

    Args:
        statistics: function from row numbers of samples to the metrics of these samples.
        count: number of samples.
        perfect: called last, when the features of the reference are known; gives the metrics of fresh data.
        options: options of the suite.

    Raises:
        ValueError: if the folds do not divide the number of samples.
    """
    if options.folds and (not count or count % options.folds):
        raise ValueError(f"folds: {options.folds} of {count} samples, expected a divisor of a positive number of samples")
    parts = np.split(np.arange(count), options.folds) if options.folds else []
    every = statistics(np.arange(count))
    values = {name: (whole(statistic), *interval(statistic, options.bootstrap, options.seed)) for name, statistic in every.items()}
    folded = [{name: whole(s) for name, s in statistics(rows).items()} for rows in parts]  # features are known by now
    ideal, found = perfect(), {}
    for name, (value, low, high) in values.items():
        column = [fold[name] for fold in folded]
        mean = float(np.mean(column)) if column else math.nan
        deviation = float(np.std(column)) if math.isfinite(mean) else math.nan
        found[name] = Estimate(value, low, high, ideal.get(name, math.nan), mean, deviation)
    return found
