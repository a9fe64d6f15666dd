"""Samples of any kind as unique text, the key by which calls are counted and scores are cached."""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["sample_text"]

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
"""The end of the default text of an object, its address in memory."""
SHOWN = 64
"""Arrays of more elements are named by a digest of their bytes."""


def sample_text(sample: object) -> str:
    """The text of a sample, different for different ones.

    Most samples are text, or have a complete one (``str(sample)``), unlike graphs, arrays, tensors and containers of these. Graphs
    are therefore written as graph6 or digraph6 lines, or with the attributes of nodes and edges if they have any, and arrays by
    their elements or a digest, those of scipy that are sparse included; RDKit molecules become SMILES, and sets are sorted by text.

    >>> import networkx, torch
    >>> sample_text("CCO"), sample_text(networkx.path_graph(3)), sample_text(torch.tensor([1, 2]))
    ('CCO', 'Bg', 'int64[2]([1, 2])')

    Raises:
        ValueError: for a sample whose text is its address in memory, which another one may have later.
    """
    if isinstance(sample, str):
        return sample
    if _is_graph(sample):
        return _graph_text(sample)
    if isinstance(sample, torch.Tensor):
        values = sample.detach().cpu().to_dense()
        return _array_text((values.float() if values.dtype == torch.bfloat16 else values).numpy())
    if isinstance(sample, np.ndarray):
        return _array_text(sample)
    if _is_sparse(sample):
        return _sparse_text(sample)
    if type(sample).__module__ == "rdkit.Chem.rdchem" and hasattr(sample, "GetNumConformers"):
        return _molecule_text(sample)
    if isinstance(sample, set | frozenset):
        return f"{type(sample).__name__}({', '.join(sorted(map(_inner_text, sample)))})"
    parts = _parts(sample)
    if parts is None or not _cut(sample):
        return _own_text(sample)
    return f"{type(sample).__name__}({', '.join(f'{name}={_inner_text(part)}' for name, part in parts.items())})"


def _inner_text(part: object) -> str:
    """The text of a part of a sample; texts are quoted, so that they end where they end and are not taken for numbers."""
    return repr(part) if isinstance(part, str) else sample_text(part)


def _cut(sample: object) -> bool:
    """Whether the text of a sample is incomplete because it is, or contains, a graph, an array or a tensor."""
    if _is_graph(sample) or isinstance(sample, torch.Tensor | np.ndarray | set | frozenset) or _is_sparse(sample):
        return True
    if type(sample).__module__ == "rdkit.Chem.rdchem":
        return True
    parts = None if isinstance(sample, str) else _parts(sample)
    return parts is not None and any(_cut(part) for part in parts.values())


def _own_text(sample: object) -> str:
    text = str(sample)
    if ADDRESS.search(text):
        told = f"samples: objects of type {type(sample).__name__} have no text of their own ({text[:80]})"
        raise ValueError(f"{told}, expected a method __str__ that tells them apart, or samples that are text")
    return text


def _molecule_text(mol: Any) -> str:
    from rdkit import Chem

    return Chem.MolToCXSmiles(mol) if mol.GetNumConformers() else Chem.MolToSmiles(mol)


def _is_graph(sample: object) -> bool:
    """Whether a sample is a graph of networkx, which is not imported for those that are not."""
    return any(base.__module__.startswith("networkx.") for base in type(sample).__mro__)


def _is_sparse(sample: object) -> bool:
    """Whether a sample is a sparse array of scipy, of whose own text the middle is left out."""
    return type(sample).__module__.startswith("scipy.sparse.")


def _sparse_text(array: Any) -> str:
    """The text of a sparse array, whatever the order in which its elements are stored."""
    rows = array.tocsr(copy=True)
    rows.sum_duplicates()
    parts = (rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data)
    return f"{type(array).__name__}{list(array.shape)}({', '.join(map(_array_text, parts))})"


def _parts(sample: Any) -> Mapping[str, Any] | None:
    """The parts of a dataclass without a text of its own, of a mapping, of a sequence, or of a graph of torch_geometric."""
    if is_dataclass(sample) and not isinstance(sample, type) and type(sample).__str__ is object.__str__:
        return {field.name: getattr(sample, field.name) for field in fields(sample)}
    if isinstance(sample, Mapping):
        return {_name_text(name): part for name, part in sample.items()}
    if isinstance(sample, list | tuple):
        return {str(k): part for k, part in enumerate(sample)}
    if type(sample).__module__.startswith("torch_geometric."):
        return {str(name): part for name, part in sample.to_dict().items()}
    return None


def _name_text(name: object) -> str:
    """The name of a part of a mapping; texts are quoted, unless they are identifiers, which no other name has as its text."""
    plain = isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
    return str(name) if plain else _inner_text(name)


def _graph_text(graph: Any) -> str:
    from discrete_grpo.domains.digraph6 import digraph6
    from discrete_grpo.domains.graph6 import graph6

    nodes, edges = list(graph.nodes(data=True)), list(graph.edges(data=True))
    special = graph.is_multigraph() or any(tail == head for tail, head, _ in edges) or list(graph) != list(range(len(graph)))
    if special or any(attributes for *_, attributes in (*nodes, *edges)):
        named = [f"{node!r}: {sample_text(attributes)}" for node, attributes in nodes]
        ends = [(tail, head) if graph.is_directed() else sorted((tail, head), key=repr) for tail, head, _ in edges]
        joined = sorted(f"{tail!r}-{head!r}: {sample_text(edge[2])}" for (tail, head), edge in zip(ends, edges, strict=True))
        return f"{type(graph).__name__}({', '.join(named)}; {', '.join(joined)})"
    return digraph6(graph) if graph.is_directed() else graph6(graph)


def _array_text(array: np.ndarray) -> str:
    shape = f"{array.dtype}{list(array.shape)}"
    if array.dtype == object:
        return f"{shape}({', '.join(map(_inner_text, array.ravel().tolist()))})"  # the shape is told before
    if array.size <= SHOWN:
        return f"{shape}({array.tolist()})"
    return f"{shape}({hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()})"
