"""Molecules as graphs with the fields ``atom`` (the element), ``charge`` and ``bond``, and back.

A pair of an element and a formal charge is an atom type. Both directions go through :mod:`discrete_grpo.domains.molecules` with
the vocabulary of all such pairs, so that hydrogens, rings, stereo, radicals and validity follow the conventions stated there: a
molecule has the same SMILES whether its charges are a field or a part of the atom type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.precision import constant
from discrete_grpo.domains import molecules as chemistry
from discrete_grpo.domains.fields import FieldBatch
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.domains.molecules import AtomType, Vocabulary

__all__ = ["AtomFields", "as_fields", "as_graphs", "decode", "encode"]


@dataclass(frozen=True)
class AtomFields:
    """Classes of the fields ``atom`` and ``charge``; a class is a position here.

    Attributes:
        symbols: elements such as ``("C", "N")``.
        charges: formal charges such as ``(-1, 0, 1)``, each from -9 to 9.

    Raises:
        ValueError: if one of them is empty, has an entry twice, or holds what is no heavy element or no such charge.
    """

    symbols: tuple[str, ...]
    charges: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("symbols", "charges"):
            given = tuple(getattr(self, name))
            object.__setattr__(self, name, given)  # JSON gives a list
            if not given or len(set(given)) != len(given):
                raise ValueError(f"{name}: {list(given)}, expected at least one and none twice")
        for symbol in self.symbols:
            if not isinstance(symbol, str) or AtomType.from_label(symbol).charge:
                raise ValueError(f"symbols: {symbol!r}, expected the symbol of an element")
            if symbol == "H":
                raise ValueError("symbols: 'H', expected heavy atoms only: hydrogens are implicit")
        for charge in self.charges:
            if isinstance(charge, bool) or not isinstance(charge, int):
                raise ValueError(f"charges: {charge!r}, expected a whole number")
            check_whole("charges", charge, least=-9, most=9)

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> AtomFields:
        """The elements of a vocabulary in its order, and its charges from the lowest.

        >>> AtomFields.of(Vocabulary(("C", "N", "N+1", "O-1", "O")))
        AtomFields(symbols=('C', 'N', 'O'), charges=(-1, 0, 1))
        """
        types = vocabulary.types
        return cls(tuple(dict.fromkeys(t.symbol for t in types)), tuple(sorted({t.charge for t in types})))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """All pairs of an element and a charge; class ``atom * len(charges) + charge``."""
        return Vocabulary(tuple(AtomType(symbol, charge).label for symbol in self.symbols for charge in self.charges))


def as_fields(graphs: GraphBatch, vocabulary: Vocabulary, fields: AtomFields) -> FieldBatch:
    """Graphs whose node classes are atom types of ``vocabulary``, with elements and charges as two fields.

    Raises:
        ValueError: for an atom type of the vocabulary whose element or charge is not among ``fields``.
    """
    if missing := [t.label for t in vocabulary.types if (t.symbol, t.charge) not in fields.vocabulary.index]:
        known = f"{', '.join(fields.symbols)} and a charge of {', '.join(map(str, fields.charges))}"
        raise ValueError(f"vocabulary: atom {missing[0]!r}, expected one of {known}")
    pairs = tuple(fields.vocabulary.index[t.symbol, t.charge] for t in vocabulary.types)
    classes, count = constant(pairs, graphs.nodes.device, torch.long)[graphs.nodes.long()], len(fields.charges)
    found = {"atom": classes // count, "charge": classes % count}
    nodes = {name: value.masked_fill(~graphs.mask, 0) for name, value in found.items()}
    return FieldBatch(nodes, {"bond": graphs.edges.long()}, None, graphs.mask)


def as_graphs(batch: FieldBatch, fields: AtomFields) -> GraphBatch:
    """Inverse of :func:`as_fields` for the vocabulary of all pairs, ``fields.vocabulary``.

    Raises:
        ValueError: for a class of a real node that is out of range.
    """
    clean = {name: batch.nodes[name].masked_fill(~batch.mask, 0) for name in ("atom", "charge")}
    for name, known in (("atom", fields.symbols), ("charge", fields.charges)):
        low, high = (int(x) for x in clean[name].aminmax()) if clean[name].numel() else (0, 0)
        check_range(f"class of field {name}", low if low < 0 else high, least=0, most=len(known) - 1)
    return GraphBatch(clean["atom"] * len(fields.charges) + clean["charge"], batch.edges["bond"], batch.mask)


def decode(batch: FieldBatch, fields: AtomFields) -> list[str | None]:
    """Canonical SMILES of each graph, or None where RDKit does not sanitise it. Nothing is corrected.

    Raises:
        ValueError: for a class that is out of range.
    """
    return chemistry.decode(as_graphs(batch, fields), fields.vocabulary)


def encode(smiles: Sequence[str], fields: AtomFields) -> FieldBatch:
    """Graphs of SMILES strings, padded to the largest; atoms in the order of the string.

    Raises:
        ValueError: if a string does not parse or has an atom outside ``fields``; names the position.

    >>> batch = encode(["C[O-]"], AtomFields(("C", "O"), (-1, 0)))
    >>> batch.nodes["atom"].tolist(), batch.nodes["charge"].tolist(), batch.edges["bond"].tolist()
    ([[0, 1]], [[1, 0]], [[[0, 1], [1, 0]]])
    """
    return as_fields(chemistry.encode(smiles, fields.vocabulary), fields.vocabulary, fields)
