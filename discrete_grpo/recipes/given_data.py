"""Training data that is given as values: it is written into the run folder, where a recipe reads it as it reads a user's file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.core.processes import is_first
from discrete_grpo.datasets.graph_files import to_node_link
from discrete_grpo.datasets.own_digraphs import read_own
from discrete_grpo.domains.named_graphs import to_line, to_networkx
from discrete_grpo.domains.spatial_files import to_sdf
from discrete_grpo.domains.spatial_molecules import SpatialMolecule
from discrete_grpo.recipes.graph_sequences import PretrainGraphSequencesRecipe
from discrete_grpo.recipes.graphs import PretrainGraphsRecipe
from discrete_grpo.recipes.judge import JudgeRecipe
from discrete_grpo.recipes.pretrain import PretrainRecipe
from discrete_grpo.recipes.smiles import PretrainSmilesRecipe
from discrete_grpo.recipes.spatial import PretrainSpatialRecipe
from discrete_grpo.recipes.text import PretrainTextRecipe
from discrete_grpo.runs.recorder import check_unused

__all__ = ["with_data"]

Recipe = TypeVar("Recipe", bound=Any)


def with_data(recipe: Recipe, data: Iterable[Any], *, resume: bool) -> Recipe:
    """The recipe with a file in its ``output_dir`` as its data, which holds ``data``.

    Args:
        recipe: of pretraining.
        data: SMILES strings, lines of text, networkx graphs, PyG ``Data`` or molecules in space, as fits the recipe.
        resume: whether the run goes on, with the data that it began with.

    Raises:
        ValueError: for data that the recipe cannot read, for other data than a resumed run began with, and for a folder that
            holds another run.
    """
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        raise ValueError(f"data: {data!r}, expected a list; the name of a file is the recipe's own data")
    write = next((write for kinds, write in _WRITERS if isinstance(recipe, kinds)), None)
    if write is None:
        raise ValueError(f"data: given with {type(recipe).__name__}, expected none")
    folder = Path(recipe.output_dir)
    ending, content = write(list(data), recipe)
    file = folder / f"data{ending}"
    if resume and file.is_file():
        if file.read_bytes() != content:
            raise ValueError(f"data: other than in {file}, expected those that the run began with")
    else:
        if is_first() and not resume:
            check_unused(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as out:
            out.write(content)
    names = {part.name for part in fields(recipe)}
    attributes = {name: None for name in ("node_attribute", "edge_attribute") if name in names}  # the file has one of each
    return replace(recipe, data=str(file), **attributes)


# -- writing


def _smiles(data: Sequence[Any], recipe: Any) -> tuple[str, bytes]:
    return ".smi", _lines(data, "a SMILES string", lambda text: len(text.split()) == 1)


def _text(data: Sequence[Any], recipe: Any) -> tuple[str, bytes]:
    return ".txt", _lines(data, "a line of text", lambda text: bool(text.strip()) and len(text.splitlines()) == 1)


def _lines(data: Sequence[Any], wanted: str, fits: Callable[[str], bool]) -> bytes:
    for number, text in enumerate(data):
        if not isinstance(text, str) or not fits(text):
            raise ValueError(f"data: entry {number} is {text!r}, expected {wanted}")
    return "".join(f"{text}\n" for text in data).encode()


def _graphs(data: Sequence[Any], recipe: Any) -> tuple[str, bytes]:
    """The graphs with the attributes that hold their classes, and without other ones."""
    options = {name: getattr(recipe, name) for name in ("node_attribute", "edge_attribute", "max_nodes")}
    own = read_own(data, **options)
    named = (to_networkx(to_line(graph), own.labels) for graph in own.networkx(range(len(own))))
    return ".json", to_node_link(named)


def _molecules(data: Sequence[Any], recipe: Any) -> tuple[str, bytes]:
    if data and all(isinstance(molecule, SpatialMolecule) for molecule in data):
        return ".sdf", to_sdf(data).encode()
    return _smiles(data, recipe)


_WRITERS: Sequence[tuple[tuple[type, ...], Callable[[Sequence[Any], Any], tuple[str, bytes]]]] = (
    ((PretrainGraphsRecipe, PretrainGraphSequencesRecipe), _graphs),
    ((PretrainRecipe, PretrainSmilesRecipe), _smiles),
    ((PretrainTextRecipe, JudgeRecipe), _text),
    ((PretrainSpatialRecipe,), _molecules),
)
