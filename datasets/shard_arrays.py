"""The arrays of one shard: molecules of numbered lines as token sequences or packed graphs, with their conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discrete_grpo.datasets.measured import Cells, Columns
from discrete_grpo.datasets.molecules import NUM_BOND_CLASSES, descriptors, with_measured
from discrete_grpo.datasets.packing import pack_lines
from discrete_grpo.datasets.shards import Array
from discrete_grpo.datasets.smiles import parse_lines
from discrete_grpo.domains.molecules import AtomType
from discrete_grpo.domains.tokenizer import EOS, SMILES, Tokenizer

__all__ = ["EXAMPLES", "Conditions", "graph_arrays", "token_arrays"]

EXAMPLES = 5
"""Number of broken lines that a record lists."""


@dataclass(frozen=True)
class Conditions:
    """The conditions of the molecules of a shard: names, columns that are read, and cells by line."""

    names: Sequence[str]
    columns: Columns | None
    cells: Mapping[int, Cells]

    @property
    def computed(self) -> tuple[str, ...]:
        """Names of those that RDKit computes."""
        return tuple(name for name in self.names if self.columns is None or name not in self.columns.names)

    def values(self, computed: Tensor, lines: Sequence[int]) -> Tensor:
        """All conditions [M, K] of the molecules of ``lines``, from those that RDKit computes."""
        if self.columns is None:
            return computed
        rows = [self.columns.numbers(line, self.cells[line]) for line in lines]
        table = torch.tensor(rows, dtype=torch.float64).reshape(len(lines), len(self.columns.names))
        return with_measured(self.names, self.computed, computed, dict(zip(self.columns.names, table.unbind(1), strict=True)))


def token_arrays(
    rows: Sequence[tuple[int, str]], conditions: Conditions, *, scaffold: bool
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays of form ``smiles`` of numbered lines, and the entries of the shard's record.

    Args:
        rows: (line number, SMILES) of each line.
        conditions: those of its molecules.
        scaffold: whether to keep Murcko scaffolds.
    """
    good, cores, computed, broken, lines = parse_lines(rows, conditions.computed, scaffold)
    own = Tokenizer.of(good, SMILES).tokens if good else ()
    every = Tokenizer.of([*good, *cores], SMILES) if good else None
    kind = np.uint8 if every is None or len(every) <= 256 else np.uint16
    arrays: dict[str, Array] = {}
    arrays["tokens"], arrays["starts"] = _flat([[*every.encode(t), EOS] for t in good] if every else [], kind)
    if scaffold:
        arrays["prompts"], arrays["prompt_starts"] = _flat([every.encode(t) for t in cores] if every else [], kind)
    if conditions.names:
        values = torch.tensor(computed, dtype=torch.float64).reshape(len(good), len(conditions.computed))
        arrays["values"] = conditions.values(values, lines).float().numpy().ravel()
    lengths = Counter(np.diff(arrays["starts"]).tolist())
    longest = int(np.diff(arrays["prompt_starts"]).max(initial=0)) if scaffold else 0
    counts = {"tokens": own, "lengths": {str(n): lengths[n] for n in sorted(lengths)}, "longest_prompt": longest}
    facts = {"rows": len(good), "dropped": 0, "broken": len(broken), "examples": tuple(broken[:EXAMPLES]), "largest": 0}
    return arrays, facts | {"classes": every.tokens if every else (), "counts": counts}


def _flat(parts: Sequence[Sequence[int]], kind: type[np.generic]) -> tuple[Array, Array]:
    """Lists of ids end to end, and where each starts, with the end of the last."""
    starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return np.fromiter((k for part in parts for k in part), dtype=kind, count=int(starts[-1])), starts


def graph_arrays(
    rows: Sequence[tuple[int, str]], conditions: Conditions, path: Path, *, max_atoms: int | None
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays of form ``graphs``, as :func:`token_arrays`.

    Args:
        rows: (line number, SMILES) of each line.
        conditions: those of its molecules.
        path: the file, for errors.
        max_atoms: larger molecules are left out; None keeps all.
    """
    packer = pack_lines(rows, path, None, max_atoms)
    sizes = np.array(packer.sizes, dtype=np.int64)
    nodes, pairs = np.frombuffer(packer.nodes, dtype=np.uint8), np.frombuffer(packer.pairs, dtype=np.uint8)
    arrays: dict[str, Array] = {"nodes": nodes, "node_starts": np.cumsum(np.append(0, sizes)), "pairs": pairs}
    arrays["pair_starts"] = np.cumsum(np.append(0, sizes * (sizes - 1) // 2))
    if conditions.names:
        arrays["values"] = conditions.values(descriptors(packer.smiles, conditions.computed), packer.lines).numpy().ravel()
    counts = {
        "nodes": np.bincount(nodes, minlength=len(packer.types)).tolist(),
        "pairs": np.bincount(pairs, minlength=NUM_BOND_CLASSES).tolist(),
        "sizes": np.bincount(sizes).tolist(),
    }
    classes = tuple(AtomType(*kind).label for kind in packer.types)
    facts = {"rows": len(sizes), "dropped": packer.dropped, "broken": len(packer.broken), "largest": packer.largest}
    return arrays, facts | {"examples": tuple(packer.broken[:EXAMPLES]), "classes": classes, "counts": counts}
