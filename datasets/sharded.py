"""Data sets over folders of shards, with batches bit-identical to those in memory and 4 bytes of memory per molecule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.datasets.molecules import MoleculeStatistics
from discrete_grpo.datasets.shards import Array, MappedShard, ShardFolder
from discrete_grpo.domains.graphs import ConditionedGraphs, GraphBatch, node_mask, num_pairs, unpack
from discrete_grpo.domains.molecules import Vocabulary
from discrete_grpo.domains.tokenizer import NUM_SPECIAL, PAD, SMILES, Property, TokenBatch, Tokenizer

__all__ = ["ShardedConditionedMolecules", "ShardedMolecules", "ShardedTokens"]

Places = Sequence[tuple[int, MappedShard, int]]


def _piece(shard: MappedShard, name: str, starts: str, row: int) -> Array:
    """Row of a ragged array of a shard."""
    begin, end = shard[starts][row : row + 2].tolist()
    return shard[name][begin:end]


def _values(folder: ShardFolder, places: Places, columns: Sequence[int], kind: torch.dtype) -> Float[Tensor, "row property"]:
    """Standardised properties of rows, computed in the precision ``kind`` in which they are stored."""
    width, scales = len(folder.properties), [folder.properties[k] for k in columns]
    raw = np.array([shard["values"][row * width : (row + 1) * width] for _, shard, row in places]).reshape(len(places), width)
    mean, std = torch.tensor([p.mean for p in scales]), torch.tensor([p.std for p in scales])
    return ((torch.from_numpy(raw)[:, list(columns)].to(kind) - mean) / std).float()


class ShardedTokens:
    """Token sequences of SMILES in a folder of shards, as :class:`~discrete_grpo.datasets.smiles.TokenDataset` has them in memory.

    Args:
        path: folder of form ``smiles``.
        properties: names of the properties that batches have.
        scaffold: whether batches have scaffolds as prompts.

    Attributes:
        folder: the folder.
        sizes: number of tokens of each sequence [M], EOS included, int32.
        tokenizer: alphabet of the molecules, and with ``scaffold`` of their scaffolds.
        properties: names, means and deviations of the properties.

    Raises:
        ValueError: as :class:`~discrete_grpo.datasets.shards.ShardFolder`, and if the folder lacks a property or the scaffolds.
    """

    def __init__(self, path: str | Path, properties: Sequence[str] = (), scaffold: bool = False) -> None:
        self.folder = ShardFolder(path, "smiles")
        if scaffold and not self.folder.options["scaffold"]:
            raise ValueError(
                f"scaffold: true, expected false as the folder {str(path)!r} has no scaffolds; give it to 'preprocess'"
            )
        self._columns = self.folder.columns(properties)
        self.properties: tuple[Property, ...] = tuple(self.folder.properties[k] for k in self._columns)
        known = self.folder.statistics["tokens_with_scaffolds" if scaffold else "tokens"]
        self.tokenizer = Tokenizer(tuple(known), SMILES)
        self.sizes: Int[Tensor, " sequence"] = self.folder.lengths("starts")
        self._scaffold = scaffold and self.longest_prompt > 0
        ids = {token: k + NUM_SPECIAL for k, token in enumerate(known)}
        special = list(range(NUM_SPECIAL))
        self._ids = [np.array(special + [ids.get(t, PAD) for t in s.classes], dtype=np.int64) for s in self.folder.shards]

    def __len__(self) -> int:
        return len(self.folder)

    @property
    def longest_prompt(self) -> int:
        """Most tokens of a scaffold."""
        return int(self.folder.statistics["longest_prompt"])

    def batch(self, rows: Int[Tensor, " row"]) -> TokenBatch:
        """Return the sequences at ``rows``, padded to the longest of them."""
        places = self.folder.places(rows)
        tokens = self._padded(places, "tokens", "starts", left=False)
        prompt = self._padded(places, "prompts", "prompt_starts", left=True) if self._scaffold else None
        return TokenBatch(tokens, prompt, _values(self.folder, places, self._columns, torch.float32) if self.properties else None)

    def _padded(self, places: Places, name: str, starts: str, *, left: bool) -> Int[Tensor, "row width"]:
        parts = [self._ids[index][_piece(shard, name, starts, row)] for index, shard, row in places]
        width = max(map(len, parts))
        padded = np.full((len(parts), width), PAD, dtype=np.int64)
        for line, part in zip(padded, parts, strict=True):
            line[width - len(part) if left else 0 :][: len(part)] = part
        return torch.from_numpy(padded)


class ShardedMolecules:
    """Packed graphs in a folder of shards, as :class:`~discrete_grpo.datasets.molecules.MoleculeDataset` has them in memory.

    Args:
        path: folder of form ``graphs``.

    Attributes:
        folder: the folder.
        sizes: number of heavy atoms [M], int32.
        statistics: frequencies of sizes, node classes and bond classes.

    Raises:
        ValueError: as :class:`~discrete_grpo.datasets.shards.ShardFolder`.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = ShardFolder(path, "graphs")
        self.statistics = MoleculeStatistics.from_json(self.folder.statistics)
        self.sizes: Int[Tensor, " molecule"] = self.folder.lengths("node_starts")
        place = {label: k for k, label in enumerate(self.vocabulary.atoms)}
        self._classes = [np.array([place[label] for label in s.classes], dtype=np.uint8) for s in self.folder.shards]

    def __len__(self) -> int:
        return len(self.folder)

    @property
    def name(self) -> str:
        """Name of the set in reports."""
        return self.folder.name

    @property
    def vocabulary(self) -> Vocabulary:
        """Atom types of the node classes."""
        return self.statistics.vocabulary

    @cached_property
    def num_nodes(self) -> int:
        """Number of atoms of the largest molecule."""
        return len(self.statistics.node_counts) - 1

    def batch(self, rows: Int[Tensor, " row"] | Sequence[int]) -> GraphBatch:
        """Return the graphs at ``rows``, padded to the largest of them."""
        return self.at(self.folder.places(torch.as_tensor(rows, dtype=torch.long)))

    def at(self, places: Places) -> GraphBatch:
        """Return the graphs at the result of :meth:`ShardFolder.places`."""
        nodes = [self._classes[index][_piece(shard, "nodes", "node_starts", row)] for index, shard, row in places]
        pairs = [_piece(shard, "pairs", "pair_starts", row) for _, shard, row in places]
        sizes = torch.tensor([len(part) for part in nodes], dtype=torch.long)
        n = int(sizes.max()) if len(places) else 0
        return unpack(_filled(nodes, n), _filled(pairs, num_pairs(n)), node_mask(sizes, n))


def _filled(parts: Sequence[Array], width: int) -> Tensor:
    """Parts as rows, filled up with 0."""
    filled = np.zeros((len(parts), width), dtype=np.uint8)
    for line, part in zip(filled, parts, strict=True):
        line[: len(part)] = part
    return torch.from_numpy(filled)


class ShardedConditionedMolecules:
    """Molecules of a folder with standardised properties, as :func:`~discrete_grpo.datasets.molecules.conditioned` makes them.

    Args:
        data: the molecules.
        names: names of the properties.

    Raises:
        ValueError: if the folder lacks one.
    """

    def __init__(self, data: ShardedMolecules, names: Sequence[str]) -> None:
        self.data, self._columns = data, data.folder.columns(names)
        self.properties: tuple[Property, ...] = tuple(data.folder.properties[k] for k in self._columns)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def sizes(self) -> Int[Tensor, " molecule"]:
        """Number of heavy atoms [M]."""
        return self.data.sizes

    def batch(self, rows: Int[Tensor, " row"]) -> ConditionedGraphs:
        """Return the molecules at ``rows`` with their properties."""
        places = self.data.folder.places(rows)
        return ConditionedGraphs(self.data.at(places), _values(self.data.folder, places, self._columns, torch.float64))
