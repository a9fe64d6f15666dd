"""PolyGraph discrepancy (PGD) of plain graphs, from the package polygraph-benchmark."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial

import networkx as nx

from discrete_grpo.metrics.extras import missing_package

__all__ = ["missing", "pgd"]

_needs = partial(missing_package, "polygraph.metrics", "polygraph-benchmark", "polygraph")


def missing() -> str:
    """Return one line on how to install the package, or an empty text if it is installed."""
    needs = _needs()
    return f"pgd: left out, it {needs}" if needs else ""


def pgd(generated: Sequence[nx.Graph], reference: Sequence[nx.Graph]) -> float:
    """The largest Jensen-Shannon distance that a classifier can prove between two sets of graphs, over six descriptors, in [0, 1].

    The package trains TabPFN on half of both sets and measures on the other half; TabPFN fetches its weights at the first use.

    Raises:
        ImportError: if polygraph-benchmark is not installed.

    Source: Krimmel et al. (2025), PolyGraph discrepancy.
    """
    if needs := _needs():
        raise ImportError(f"pgd: PolyGraph discrepancy {needs}")
    return float(importlib.import_module("polygraph.metrics").StandardPGD(list(reference)).compute(list(generated))["pgd"])
