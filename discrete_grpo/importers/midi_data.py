"""Statistics of the training data of a MiDi model, which its published checkpoints do not store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

from torch import Tensor

from discrete_grpo.domains.molecules import Vocabulary
from discrete_grpo.importers.tensors import read_json

__all__ = ["MidiData", "midi_data"]

MARGINALS = ("node_counts", "atom_marginal", "charge_marginal", "bond_marginal")
LARGEST_CHARGE = 9
NUM_BONDS = 5


@dataclass(frozen=True)
class MidiData:
    """Classes and marginals of molecules in space; shares need not sum to 1.

    Attributes:
        atoms: elements of the classes of ``atom``.
        charges: formal charges of the classes of ``charge``.
        node_counts: share of molecules of 0, 1, 2, ... atoms.
        atom_marginal, charge_marginal: share of the atoms of each class.
        bond_marginal: share of the pairs of each class: none, single, double, triple, aromatic.
        name: name of the set.

    Raises:
        ValueError: for marginals that are no shares or have another number of classes, or atoms that are no elements.
    """

    atoms: tuple[str, ...]
    charges: tuple[int, ...]
    node_counts: tuple[float, ...]
    atom_marginal: tuple[float, ...]
    charge_marginal: tuple[float, ...]
    bond_marginal: tuple[float, ...]
    name: str = "given"

    def __post_init__(self) -> None:
        charged = [label for label, kind in zip(self.atoms, Vocabulary(self.atoms).types, strict=True) if kind.charge]
        if charged:
            raise ValueError(f"atoms: {charged[0]!r}, expected elements without charges, which are a field of their own")
        if len(set(self.charges)) != len(self.charges) or not all(abs(c) <= LARGEST_CHARGE for c in self.charges):
            raise ValueError(f"charges: {self.charges}, expected different charges of -{LARGEST_CHARGE} to {LARGEST_CHARGE}")
        for field in MARGINALS:
            values = getattr(self, field)
            if not values or not min(values) >= 0 or not 0 < sum(values) < float("inf"):
                raise ValueError(f"{field}: {values}, expected shares >= 0 with a positive sum")
        if self.node_counts[0] or len(self.node_counts) < 2:
            raise ValueError(f"node_counts: {self.node_counts}, expected shares of 0, 1, 2, ... atoms, the first 0")
        for field, classes in (("atom", len(self.atoms)), ("charge", len(self.charges)), ("bond", NUM_BONDS)):
            found = len(getattr(self, f"{field}_marginal"))
            if found != classes:
                raise ValueError(f"{field}_marginal: {found} classes, expected {classes}")


def midi_data(given: str | os.PathLike[str] | None, stored: Any, path: object) -> tuple[MidiData, str]:
    """Return the statistics of the training data and their origin: a JSON file, else what a checkpoint stores.

    Args:
        given: JSON file with the fields of :class:`MidiData`; None for what is stored.
        stored: ``dataset_infos`` of the checkpoint as plain values; None where there are none.
        path: path of the checkpoint.

    Raises:
        CheckpointError: if the JSON file cannot be read.
        ValueError: if there are none, or a field is missing, unknown or not of its kind.
    """
    names = [name for name in MidiData.__dataclass_fields__ if name != "name"]
    if given is not None:
        return _data(read_json(given, "statistics"), given), "statistics"
    if isinstance(stored, Mapping) and {"atom_decoder", "collapse_charges", "n_nodes", "atom_types"} <= stored.keys():
        return _data(_renamed(stored), path), "file"
    expected = f"{', '.join(names[:-1])} and {names[-1]}"
    raise ValueError(f"statistics: None, and {path} does not store its data; expected a JSON file with {expected}")


def _renamed(stored: Mapping[Any, Any]) -> dict[str, Any]:
    """Fields of the object that describes the data in MiDi's code, under our names."""
    found = {name: value.flatten().tolist() if isinstance(value, Tensor) else value for name, value in stored.items()}
    names = {"atoms": "atom_decoder", "charges": "collapse_charges", "node_counts": "n_nodes", "atom_marginal": "atom_types"}
    names |= {"charge_marginal": "charges_marginals", "bond_marginal": "edge_types"}
    name = "".join(c for c in str(found.get("name") or "stored") if c.isprintable())[:60]
    return {"name": name} | {ours: found[theirs] for ours, theirs in names.items() if found.get(theirs) is not None}


def _data(fields: Any, where: object) -> MidiData:
    """Make statistics from plain fields, with lists for tuples."""
    if not isinstance(fields, Mapping):
        raise ValueError(f"statistics: {where} holds {type(fields).__name__}, expected a dictionary")
    names = list(MidiData.__dataclass_fields__)
    wrong = [f"{name} missing" for name in names if name != "name" and name not in fields]
    wrong += [f"{name} unknown" for name in fields if name not in names]
    if wrong:
        raise ValueError(f"statistics: {where}: {'; '.join(wrong[:5])}; expected {', '.join(names)}")
    try:
        return MidiData(**{name: _tuple(name, value) for name, value in fields.items()})
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"statistics: {where}: {error}") from error


def _tuple(name: str, values: Any) -> Any:
    """The value of a field with the type of its class."""
    if name == "name":
        return str(values)
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"{name}: {values!r}, expected a list")
    if name == "atoms":
        return tuple(str(v) for v in values)
    if odd := [v for v in values if isinstance(v, str | bool) or not isinstance(v, SupportsFloat)]:
        raise ValueError(f"{name}: {str(odd[0])[:60]} in its list, expected numbers")
    numbers = tuple(float(v) for v in values)
    if name != "charges":
        return numbers
    if not all(v.is_integer() for v in numbers):  # infinite numbers are none
        raise ValueError(f"charges: {values}, expected whole numbers")
    return tuple(int(v) for v in numbers)
