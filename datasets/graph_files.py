"""Files of graphs with classes: GraphML, GML, JSON node-link, edge lists, graph6 and digraph6 lines, and PyG data saved by torch.

A file of one graph or of many, or a folder of such files. Reading runs no code from a file.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import networkx as nx
import torch

from discrete_grpo.datasets.text_files import MAX_BYTES, suffix_of, text_lines
from discrete_grpo.domains.named_graphs import named_graph

__all__ = ["SUFFIXES", "iter_graph_objects", "read_graph_objects", "to_graphml", "to_node_link"]

_OF_FILES = (OSError, EOFError, zlib.error, nx.NetworkXException, ParseError)
UNREADABLE = (*_OF_FILES, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors of the readers for a file whose content does not match its ending."""


def read_graph_objects(path: Path, max_bytes: int = MAX_BYTES) -> list[Any]:
    """The graphs of a file, or of all files of a folder by name, as networkx graphs or PyG data.

    ========================  ===============================================================================
    ending                    content
    ========================  ===============================================================================
    .graphml, .gml            networkx graphs with node and edge attributes; a GraphML file may hold many
    .json, .jsonl             node-link data: one graph, a list of graphs, or one graph per line
    .edgelist, .edges         ``u v``, ``u v class`` or ``u v {'attribute': value}`` per line; a blank line ends a graph
    .arcs                     the same, each line an arc from u to v
    .g6, .d6, .txt            graph6 or digraph6 lines, with ``nodes=NAMES edges=NAMES`` after them or without
    .pt, .pth                 a list of PyG ``Data``, or what ``InMemoryDataset`` saves
    ========================  ===============================================================================

    All but the last may be gzipped (``.gz``).

    Args:
        path: the file or folder.
        max_bytes: largest size of a file, unpacked.

    Raises:
        FileNotFoundError: if there is no such file or folder.
        ValueError: naming the file, for another ending, or if it cannot be read or is too large.
    """
    return list(iter_graph_objects(path, max_bytes))


def iter_graph_objects(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[Any]:
    """Like :func:`read_graph_objects`, but yield one graph at a time."""
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if suffix_of(p) in SUFFIXES)
        if not files:
            raise ValueError(f"data: folder {str(path)!r} has no file ending in {', '.join(SUFFIXES)}, expected at least one")
        for file in files:
            yield from iter_graph_objects(file, max_bytes)
        return
    kind = suffix_of(path)
    if kind not in SUFFIXES:
        raise ValueError(f"data: {str(path)!r}, expected a folder or a file ending in {', '.join(SUFFIXES)} or .npz")
    if not path.is_file():
        raise FileNotFoundError(f"data: {path} does not exist, expected a file of graphs")
    if path.suffix != ".gz" and (size := path.stat().st_size) > max_bytes:
        raise ValueError(f"max_bytes: {size} bytes in {str(path)!r}, expected at most {max_bytes}")
    try:
        yield from SUFFIXES[kind](path, max_bytes)
    except UNREADABLE as error:
        said = " ".join(str(error).split()) or type(error).__name__
        if said.startswith("data: "):
            raise
        raise ValueError(f"data: {str(path)!r} cannot be read as {kind[1:]}: {said}") from error


# -- text


def _text(path: Path, max_bytes: int) -> str:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"data: {str(path)!r} has more than {max_bytes:,} bytes (max_bytes)")
    return content.decode("utf-8-sig")


def _graphml(path: Path, max_bytes: int) -> Iterator[nx.Graph]:
    reader = nx.readwrite.graphml.GraphMLReader()
    for number, graph in enumerate(reader(string=_text(path, max_bytes))):
        listed = reader.xml.findall(f"{{{reader.NS_GRAPHML}}}graph")[number].findall(f"{{{reader.NS_GRAPHML}}}node")
        _check_once([node.get("id") for node in listed])
        yield graph


def _gml(path: Path, max_bytes: int) -> Iterator[nx.Graph]:
    """Read the one graph of a GML file, in which ``label`` is the name of a node.

    It is kept as an attribute, which may hold a class, only if nodes have no other attribute and it is not a distinct number for
    each node, which networkx writes for nodes without names.
    """
    graph = nx.parse_gml(_text(path, max_bytes), label="id")
    names = [str(name) for _, name in graph.nodes(data="label") if name is not None]
    numbered = len(names) == len(graph) == len(set(names)) and all(name.isdecimal() for name in names)
    if numbered or any(row.keys() - {"label"} for _, row in graph.nodes(data=True)):
        for _, row in graph.nodes(data=True):
            row.pop("label", None)
    yield graph


def _json(path: Path, max_bytes: int) -> Iterator[nx.Graph]:
    found = json.loads(_text(path, max_bytes))
    return map(_node_link, found if isinstance(found, list) else [found])


def _json_lines(path: Path, max_bytes: int) -> Iterator[nx.Graph]:
    return (_node_link(json.loads(line)) for line in text_lines(path, max_bytes, argument="data") if line.strip())


def _node_link(value: Any) -> nx.Graph:
    key = "links" if isinstance(value, Mapping) and "edges" not in value else "edges"
    if not isinstance(value, Mapping) or "nodes" not in value or key not in value:
        raise ValueError("no node-link data, expected a mapping with nodes and edges (or links)")
    single = {"multigraph": False, **value}  # files of other programs lack this key
    graph = nx.node_link_graph(single, edges=key)
    listed = nx.node_link_graph({**single, key: []}, edges=key)
    names = [node.get("id", k) for k, node in enumerate(value["nodes"])]
    _check_once([tuple(name) if isinstance(name, list) else name for name in names])
    if not graph.is_multigraph() and len(value[key]) != graph.number_of_edges():
        raise ValueError("an edge stands twice, expected at most one between two nodes")
    stray = next((node for node in graph if node not in listed), None)
    if stray is not None:
        raise ValueError(f"an edge to node {stray!r}, expected one of the nodes listed")
    return graph


def _check_once(names: Sequence[Any]) -> None:
    """Raise ValueError if a node is listed again, whose attributes would replace those of the first."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"a node stands twice, {twice!r}, expected each once")


def _edge_list(path: Path, max_bytes: int, kind: type[nx.Graph] = nx.Graph) -> Iterator[nx.Graph]:
    block: list[str] = []
    for line in (*text_lines(path, max_bytes, argument="data"), ""):
        if line.strip():
            block.append(line)
        elif block:
            if kept := [row for row in block if not row.lstrip().startswith("#")]:  # more than comments
                yield _edges(kept, kind)
            block = []


def _arc_list(path: Path, max_bytes: int) -> Iterator[nx.DiGraph]:
    return _edge_list(path, max_bytes, nx.DiGraph)


def _edges(lines: Sequence[str], kind: type[nx.Graph]) -> nx.Graph:
    """One graph of an edge list; a third column is the class, or a mapping of attributes."""
    rows = [line.split(None, 2) for line in lines]
    named = any(len(row) == 3 and not row[2].startswith("{") for row in rows)
    wrong = [row for row in rows if len(row) < 2 or (named and len(row[-1].split()) > 1)]
    if wrong:
        raise ValueError(f"{' '.join(wrong[0]).strip()!r}, expected two nodes, and a class or nothing")
    if named and (short := next((row for row in rows if len(row) == 2), None)):
        raise ValueError(f"{' '.join(short)!r}, expected two nodes and a class, as on other lines of the graph")
    classes: dict[tuple[str, ...], str] = {}
    rows = [[first, second, *map(_whole, rest)] for first, second, *rest in rows]
    for first, second, *rest in rows:
        if named and (number := _fraction(rest[0].strip())) is not None:
            raise ValueError(f"{f'{first} {second} {number}'!r} has {number} as its class, expected a whole number or text")
        ends, said = (first, second) if kind is nx.DiGraph else tuple(sorted((first, second))), " ".join(rest).strip()
        if classes.setdefault(ends, said) != said:
            raise ValueError(f"{f'{first} {second} {said}'!r}, expected {classes[ends]!r} as on an earlier line of the same edge")
    return nx.parse_edgelist(map(" ".join, rows), comments=None, create_using=kind, data=[("label", str)] if named else True)


def _whole(text: str) -> str:
    """A class as other formats have it: ``1`` for ``1.0``."""
    number = text.strip()
    return number.split(".")[0] if re.fullmatch(r"[+-]?\d+\.0*", number) else text


def _fraction(text: str) -> str | None:
    """Return the text of a number that is not an integer; None for any other text, which can be a class."""
    try:
        return None if float(text).is_integer() else text
    except ValueError:
        return None


def _graph6(path: Path, max_bytes: int) -> Iterator[nx.Graph]:
    for number, line in enumerate(text_lines(path, max_bytes, argument="data"), 1):
        if line.strip():
            try:
                yield named_graph(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error


# -- PyG


def _saved(path: Path, max_bytes: int) -> Iterable[Any]:
    """A list of ``Data``, or the pair or triple that ``InMemoryDataset.save`` writes; only classes of PyG's storage are built."""
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    try:
        with torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]):
            found = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # the file may be a pickle of any object
        about = "expected a list of Data, or the file that InMemoryDataset.save writes"
        raise ValueError(f"data: {str(path)!r} holds objects that are not read ({_first(error)}), {about}") from error
    if isinstance(found, Data):
        return [found]
    if isinstance(found, list) and all(isinstance(data, Data) for data in found):
        return found
    if isinstance(found, tuple) and len(found) in (2, 3) and isinstance(found[0], Data | dict):
        return _separated(Data.from_dict(found[0]) if isinstance(found[0], dict) else found[0], found[1])
    raise ValueError(f"data: {str(path)!r} holds a {type(found).__name__}, expected a list of PyG Data or a saved InMemoryDataset")


def _first(error: Exception) -> str:
    """The first sentence of an error of torch, without the advice that follows."""
    return " ".join(str(error).split()).partition(". ")[0][:120] or type(error).__name__


def _separated(data: Any, slices: Any) -> Iterator[Any]:
    from torch_geometric.data.separate import separate

    if slices is None:
        yield data
        return
    count = max(len(at) for at in slices.values()) - 1
    yield from (separate(type(data), data, k, slices, decrement=False) for k in range(count))


SUFFIXES: Mapping[str, Callable[[Path, int], Iterable[Any]]] = {
    ".graphml": _graphml,
    ".gml": _gml,
    ".json": _json,
    ".jsonl": _json_lines,
    ".edgelist": _edge_list,
    ".edges": _edge_list,
    ".arcs": _arc_list,
    ".g6": _graph6,
    ".d6": _graph6,
    ".txt": _graph6,
    ".pt": _saved,
    ".pth": _saved,
}
"""Readers by ending."""


# -- writing


def to_graphml(graphs: Iterable[nx.Graph]) -> bytes:
    """The content of one GraphML file with all graphs."""
    writer, buffer = nx.readwrite.graphml.GraphMLWriter(), io.BytesIO()
    for graph in graphs:
        writer.add_graph_element(graph)
        writer.attributes.clear()  # otherwise it would be written again with every later graph
    writer.dump(buffer)
    return buffer.getvalue()


def to_node_link(graphs: Iterable[nx.Graph]) -> bytes:
    """The content of a JSON file with a list of graphs in node-link form.

    Raises:
        ValueError: for an attribute of nodes or edges with a name that this form uses itself.
    """
    return (json.dumps([_as_node_link(graph) for graph in graphs]) + "\n").encode()


def _as_node_link(graph: nx.Graph) -> dict[str, Any]:
    nodes, edges = (row for _, row in graph.nodes(data=True)), (row for *_, row in graph.edges(data=True))
    for part, rows, own in (("node", nodes, ("id",)), ("edge", edges, ("source", "target"))):
        if (name := next((name for row in rows for name in own if name in row), None)) is not None:
            wanted = f"another name: JSON node-link files have {name} of their own (GraphML files do not)"
            raise ValueError(f"{part}_attribute: {name!r}, expected {wanted}")
    return dict(nx.node_link_data(graph, edges="edges"))
