"""PolyGraph discrepancy (PGD) of plain graphs, from the package polygraph-benchmark."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import networkx as nx

__all__ = ["missing", "pgd"]


def missing() -> str:
    """Return one line on how to install the package, or an empty text if it is installed."""
    try:
        importlib.import_module("polygraph.metrics")
    except ImportError:
        return "pgd: left out, it needs polygraph-benchmark; pip install 'discrete-grpo[polygraph]'"
    return ""


def pgd(generated: Sequence[nx.Graph], reference: Sequence[nx.Graph]) -> float:
    """The largest Jensen-Shannon distance that a classifier can prove between two sets of graphs, over six descriptors, in [0, 1].

    The package trains TabPFN on half of both sets and measures on the other half; TabPFN fetches its weights at the first use.

    Raises:
        ImportError: if polygraph-benchmark is not installed.

    Source: Krimmel et al. (2025), PolyGraph discrepancy.
    """
    if missing():
        raise ImportError(missing().replace("left out, it", "PolyGraph discrepancy"))
    return float(importlib.import_module("polygraph.metrics").StandardPGD(list(reference)).compute(list(generated))["pgd"])
