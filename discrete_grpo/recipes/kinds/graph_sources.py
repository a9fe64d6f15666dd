"""The source of the graphs that a policy was trained on: metadata of checkpoints, and whether its content is still the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from discrete_grpo.core.processes import is_first
from discrete_grpo.datasets.synthetic_graphs import NAMED_SETS
from discrete_grpo.domains.graph_validity import Shape
from discrete_grpo.recipes.families import Columns
from discrete_grpo.rewards.sources import Unidentified, path_digest
from discrete_grpo.runs.console import print_notes

__all__ = ["changed_source", "shape_of", "source_facts", "tell_no_reference"]


def shape_of(source: str) -> Shape:
    """Return the shape that a valid graph of a set has: a named set, or a file of published splits by its name.

    The graphs of any other source are valid where they are connected.

    >>> shape_of("planar-16"), shape_of("data/sbm.npz"), shape_of("community-20"), shape_of("tree-colours.graphml")
    ('planar', 'sbm', 'connected', 'connected')
    """
    known: dict[str, Shape] = {"planar": "planar", "tree": "tree", "sbm": "sbm"}
    path = Path(source)
    name = source.split("-")[0] if source in NAMED_SETS else path.stem if path.suffix == ".npz" else ""
    return known.get(name, "connected")


def source_facts(source: str) -> dict[str, Any]:
    """Metadata about the source of training graphs: its name and, for a file or folder, the digest of its content."""
    return {"source": source} if source in NAMED_SETS else {"source": source, "digest": _digest(source)}


def _digest(source: str) -> str | None:
    """None for what does not exist, cannot be read, or is a folder of more than 1,000 files."""
    try:
        return path_digest(source)
    except Unidentified:
        return None


def changed_source(data: Columns) -> bool:
    """Whether the source that a checkpoint names is a file or folder with another content than its training graphs had."""
    before = data.get("digest")
    return before is not None and _digest(str(data.get("source"))) not in (None, before)


def tell_no_reference(data: Columns) -> None:
    """Print that samples cannot be compared with the training graphs of a checkpoint that names a source of them."""
    if (source := data.get("source")) is not None and is_first():
        why = "it is not what the policy was trained on" if changed_source(data) else "the training graphs are not here"
        print_notes([f"{source}: {why}; novelty, V.U.N. and distances to the training set are left out"])
