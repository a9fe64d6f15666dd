"""Converts data sets that are given as values to the content of a file with the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from discrete_grpo.core.checks import told_as
from discrete_grpo.core.csv_cells import csv_text
from discrete_grpo.datasets.graph_files import to_node_link
from discrete_grpo.datasets.own_digraphs import read_own
from discrete_grpo.domains.named_graphs import graph_of, to_line, to_networkx
from discrete_grpo.domains.spatial_files import to_sdf
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, as_spatial, from_cxsmiles

__all__ = ["file_of_values"]


def file_of_values(kind: str, values: Iterable[Any], argument: str = "data", **options: Any) -> tuple[str, bytes]:
    r"""Return the ending and the content of a file with a data set.

    Args:
        kind: molecules (SMILES strings), graphs or digraphs (networkx graphs, PyG ``Data`` or graph6 lines), spatial
            (``SpatialMolecule``, RDKit molecules with a conformer, their texts, or SMILES strings) or text (lines).
        values: the data set.
        argument: name of the argument in errors.
        options: with graphs, those of :func:`~discrete_grpo.datasets.own_graphs.own_graphs`.

    Raises:
        ValueError: for a kind without such files, anything but a list, an empty one, or an entry that is not of the kind.

    >>> file_of_values("molecules", ["CCO", "CC"])
    ('.smi', b'CCO\nCC\n')
    """
    if kind not in _WRITERS:
        raise ValueError(f"{argument}: a list, expected none with {kind}")
    data_set = any(kind.__name__ == "Dataset" for kind in type(values).__mro__)  # of PyG, which has the attributes of its graphs
    one_graph = not data_set and (hasattr(values, "edge_index") or hasattr(values, "is_directed"))
    if isinstance(values, str | bytes | Mapping) or one_graph or not isinstance(values, Iterable):
        raise ValueError(f"{argument}: {_short(values)}, expected a list")
    if not (listed := list(values)):
        raise ValueError(f"{argument}: an empty list, expected at least one entry")
    return _WRITERS[kind](listed, argument, **options)


def _smiles(values: Sequence[Any], argument: str) -> tuple[str, bytes]:
    return ".smi", _lines(values, argument, "a SMILES string", lambda text: len(text.split()) == 1)


def _text(values: Sequence[Any], argument: str) -> tuple[str, bytes]:
    return ".txt", _lines(values, argument, "a line of text")


def _graphs(values: Sequence[Any], argument: str, **options: Any) -> tuple[str, bytes]:
    """Graphs with only the attributes that hold their classes."""
    if isinstance(values[0], str):
        return ".txt", _lines(values, argument, "a line of graph6", lambda text: graph_of(text) is not None)
    with told_as(argument):
        own = read_own(values, **options)
    named = (to_networkx(to_line(graph), own.labels) for graph in own.networkx(range(len(own))))
    return ".json", to_node_link(named)


def _spatial(values: Sequence[Any], argument: str) -> tuple[str, bytes]:
    values = [value if isinstance(value, str) else _in_space(value, number, argument) for number, value in enumerate(values)]
    in_space = sum(not isinstance(value, str) for value in values)
    if in_space and in_space < len(values):
        wanted = "expected these alone or texts alone"
        raise ValueError(f"{argument}: {in_space} molecules in space among {len(values)} entries, {wanted}")
    if in_space:
        return ".sdf", to_sdf(values).encode()
    content = _lines(values, argument, "a molecule in space or a text")
    if not any("|" in text for text in values):
        if argument != "data":
            raise ValueError(f"{argument}: texts without positions, expected molecules in space")
        return ".smi", content
    if argument == "data":
        return ".sdf", to_sdf([_from_text(text, number, argument) for number, text in enumerate(values)]).encode()
    return ".csv", csv_text([["sample"], *([text] for text in values)]).encode()  # SMILES with positions, the text of a sample


def _from_text(text: str, number: int, argument: str) -> SpatialMolecule:
    try:
        return from_cxsmiles(text)
    except ValueError as error:
        raise ValueError(f"{argument}: entry {number}: {error}") from error


def _in_space(value: Any, number: int, argument: str) -> SpatialMolecule:
    try:
        molecule = as_spatial(value)
    except ValueError as error:
        raise ValueError(f"{argument}: entry {number}: {error}") from error
    if not isinstance(molecule, SpatialMolecule):
        wanted = "a molecule in space (a SpatialMolecule or an RDKit molecule with a conformer) or a text"
        raise ValueError(f"{argument}: entry {number} is {_short(value)}, expected {wanted}")
    return molecule


def _lines(values: Sequence[Any], argument: str, wanted: str, fits: Callable[[str], bool] = lambda text: True) -> bytes:
    for number, text in enumerate(values):
        if not isinstance(text, str) or not text.strip() or len(text.splitlines()) > 1 or not fits(text):
            raise ValueError(f"{argument}: entry {number} is {_short(text)}, expected {wanted}")
    return "".join(f"{text}\n" for text in values).encode()


def _short(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, str | bytes | int | float) else f"a {type(value).__name__}"


_WRITERS: Mapping[str, Callable[..., tuple[str, bytes]]] = {
    "molecules": _smiles,
    "graphs": _graphs,
    "digraphs": _graphs,
    "spatial": _spatial,
    "text": _text,
}
