"""Training data given as values, which is written into the run folder so that a recipe can read it like a user's file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from discrete_grpo.core.json_files import read_json
from discrete_grpo.core.processes import is_first
from discrete_grpo.datasets.values import file_of_values
from discrete_grpo.recipes.loading import load
from discrete_grpo.recipes.pretraining.graph_sequences import PretrainGraphSequencesRecipe
from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe
from discrete_grpo.recipes.pretraining.judge import JudgeRecipe
from discrete_grpo.recipes.pretraining.molecules import PretrainRecipe
from discrete_grpo.recipes.pretraining.sft import SFTRecipe
from discrete_grpo.recipes.pretraining.smiles import PretrainSmilesRecipe
from discrete_grpo.recipes.pretraining.spatial import PretrainSpatialRecipe
from discrete_grpo.recipes.pretraining.text import PretrainTextRecipe
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.folder import SETTINGS, check_free, check_unused
from discrete_grpo.runs.recorder import write_bytes
from discrete_grpo.training.distributed import ProcessGroup, accelerator

__all__ = ["with_data", "with_kept_data"]

Recipe = TypeVar("Recipe", bound=Any)

_KINDS: Sequence[tuple[type, str]] = (
    (PretrainRecipe, "molecules"),
    (PretrainSmilesRecipe, "molecules"),
    (PretrainSpatialRecipe, "spatial"),
    (PretrainGraphsRecipe, "graphs"),
    (PretrainGraphSequencesRecipe, "graphs"),
    (PretrainTextRecipe, "text"),
    (JudgeRecipe, "text"),
)


def with_data(recipe: Recipe, data: Iterable[Any], *, resume: bool) -> Recipe:
    """Write ``data`` to a file in the ``output_dir`` of a recipe, and return the recipe with this file as its data.

    Args:
        recipe: recipe of pretraining.
        data: as for :func:`~discrete_grpo.datasets.values.file_of_values`, as fits the recipe.
        resume: whether the run is resumed, with the data that it began with.

    Raises:
        ValueError: for data that the recipe cannot read, for other data than a resumed run began with, and for a folder that
            holds another run.
    """
    kind, names = _kind_of(recipe), ("node_attribute", "edge_attribute", "max_nodes")
    options = {name: getattr(recipe, name) for name in names if kind in ("graphs", "digraphs")}
    ending, content = file_of_values(kind, data, **options)
    folder = Path(recipe.output_dir)
    file = folder / f"data{ending}"
    if resume and Path(kept := str((read_json(folder / SETTINGS) or {}).get("data", file))).name != file.name:
        raise ValueError(f"data: a list, expected none: the run began with {kept}")
    if resume and file.is_file():
        if file.read_bytes() != content:
            raise ValueError(f"data: other than in {file}, expected those that the run began with")
        return replace(recipe, data=str(file))
    ProcessGroup(accelerator()).run_all(lambda: _write(file, content, resume) if is_first() else None)  # the others wait for it
    return replace(recipe, data=str(file))


def _write(file: Path, content: bytes, resume: bool) -> None:
    """Write the data; a new run refuses a folder that holds another one, or a file that would be replaced."""
    if not resume:
        check_unused(file.parent)
        check_free(file, content)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(file, content)


def _kind_of(recipe: Any) -> str:
    """The kind of samples that a recipe reads; the name of its class if it reads none."""
    if isinstance(recipe, SFTRecipe):
        return load(recipe.policy).family.name
    return next((kind for type_, kind in _KINDS if isinstance(recipe, type_)), type(recipe).__name__)


def with_kept_data(recipe: Recipe) -> Recipe:
    """The recipe of a resumed run, with the file of values that the run began with, if any."""
    folder = Path(recipe.output_dir)
    file = folder / Path(str((read_json(folder / SETTINGS) or {}).get("data", ""))).name  # the folder may have been moved
    if file.name.split(".")[0] != "data" or not file.is_file():  # no other file of the run folder has this name
        return recipe
    kept = str(file)
    if recipe.data not in (kept, next(part.default for part in fields(recipe) if part.name == "data")):
        print_notes([f"data: {recipe.data} is not used, the run goes on with {kept}"])
    return replace(recipe, data=kept)
