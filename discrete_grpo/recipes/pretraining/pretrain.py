"""Pretraining by likelihood from Python: one function for the recipes of all kinds of policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import nn

from discrete_grpo.core.checks import check_folder_name
from discrete_grpo.core.processes import is_first
from discrete_grpo.recipes.failed_runs import withdrawn_on_failure
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.folder import check_unused
from discrete_grpo.runs.settings import tell_new_folder

if TYPE_CHECKING:
    from discrete_grpo.recipes.pretraining.digits import PretrainDigitsRecipe
    from discrete_grpo.recipes.pretraining.graph_sequences import PretrainGraphSequencesRecipe
    from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe
    from discrete_grpo.recipes.pretraining.judge import JudgeRecipe
    from discrete_grpo.recipes.pretraining.molecules import PretrainRecipe
    from discrete_grpo.recipes.pretraining.sft import SFTRecipe
    from discrete_grpo.recipes.pretraining.smiles import PretrainSmilesRecipe
    from discrete_grpo.recipes.pretraining.spatial import PretrainSpatialRecipe
    from discrete_grpo.recipes.pretraining.text import PretrainTextRecipe

__all__ = ["pretrain"]

AnyRecipe: TypeAlias = (
    "PretrainRecipe | PretrainGraphsRecipe | PretrainGraphSequencesRecipe | PretrainSmilesRecipe | PretrainTextRecipe | JudgeRecipe"
    " | PretrainDigitsRecipe | PretrainSpatialRecipe | SFTRecipe"
)


def pretrain(
    recipe: AnyRecipe, *, data: Iterable[Any] | None = None, network: nn.Module | None = None, resume: bool = False
) -> Path:
    """Train a policy by likelihood, log into ``recipe.output_dir`` and export it; returns the folder of the exported policy.

    The type of the recipe says which policy is trained:

    ==================================================== =================================================
    recipe                                               policy
    ==================================================== =================================================
    :class:`~discrete_grpo.PretrainRecipe`               graph diffusion or flow over molecules
    :class:`~discrete_grpo.PretrainGraphsRecipe`         diffusion or flow over graphs, directed ones too
    :class:`~discrete_grpo.PretrainGraphSequencesRecipe` autoregressive graphs
    :class:`~discrete_grpo.PretrainSmilesRecipe`         autoregressive SMILES
    :class:`~discrete_grpo.PretrainTextRecipe`           text with blanks to fill
    :class:`~discrete_grpo.JudgeRecipe`                  a judge of text, which is a reward and no policy
    :class:`~discrete_grpo.PretrainDigitsRecipe`         images of digits
    :class:`~discrete_grpo.PretrainSpatialRecipe`        diffusion over molecules with positions in space
    :class:`~discrete_grpo.SFTRecipe`                    an existing policy, on samples of your own
    ==================================================== =================================================

    Args:
        recipe: the settings.
        data: training data as values, in place of the file that ``recipe.data`` names: SMILES strings, lines of text, networkx
            graphs, PyG ``Data`` or molecules in space. They are written to a file ``data`` in ``recipe.output_dir``, so that a
            resumed run does not need them again.
        network: a denoiser of your own for molecules or undirected graphs, in place of ``recipe.network``; see
            :class:`~discrete_grpo.recipes.pretraining.diffusion.Denoiser`.
        resume: whether to continue a stopped run in ``recipe.output_dir``.

    Raises:
        ValueError: for ``data`` or a ``network`` that does not fit, or one with another recipe.
        TypeError: for anything but a recipe of pretraining.
    """
    if isinstance(recipe, type):
        raise TypeError(f"recipe: the class {recipe.__name__}, expected an instance, such as {recipe.__name__}()")
    if not hasattr(recipe, "output_dir"):
        raise TypeError(f"recipe: {type(recipe).__name__}, expected a recipe of pretraining such as PretrainRecipe")
    check_folder_name("output_dir", recipe.output_dir)
    folder = Path(recipe.output_dir)
    if resume:
        tell_new_folder(folder)
    elif is_first():
        check_unused(folder)
    with withdrawn_on_failure(folder, calls_count=False):
        return _pretrain(recipe, data, network, resume)


def _pretrain(recipe: AnyRecipe, data: Iterable[Any] | None, network: nn.Module | None, resume: bool) -> Path:
    """Do the work of :func:`pretrain`, inside the lock of the run folder."""
    from discrete_grpo.models.graph_transformer import NetworkSizes
    from discrete_grpo.recipes.pretraining import (
        digits,
        given_data,
        graph_sequences,
        graphs,
        judge,
        molecules,
        sft,
        smiles,
        spatial,
        text,
    )

    if resume and data is None:
        recipe = given_data.with_kept_data(recipe)
    if data is not None:
        recipe = given_data.with_data(recipe, data, resume=resume)
    sizes = getattr(recipe, "network", None)
    if is_first() and network is not None and isinstance(sizes, NetworkSizes) and sizes != NetworkSizes():
        print_notes(["network: the sizes that the recipe has are not used, as a network of your own is given"])
    if isinstance(recipe, molecules.PretrainRecipe):
        return molecules.run_pretrain(recipe, network=network, resume=resume)
    if isinstance(recipe, graphs.PretrainGraphsRecipe):
        return graphs.run_pretrain_graphs(recipe, network=network, resume=resume)
    if network is not None:
        raise ValueError(f"network: {type(network).__name__} with {type(recipe).__name__}, expected none")
    runs: dict[type, Callable[..., Path]] = {
        graph_sequences.PretrainGraphSequencesRecipe: graph_sequences.run_pretrain_graph_sequences,
        smiles.PretrainSmilesRecipe: smiles.run_pretrain_smiles,
        text.PretrainTextRecipe: text.run_pretrain_text,
        judge.JudgeRecipe: judge.run_judge,
        digits.PretrainDigitsRecipe: digits.run_pretrain_digits,
        spatial.PretrainSpatialRecipe: spatial.run_pretrain_spatial,
        sft.SFTRecipe: sft.run_sft,
    }
    for kind, run in runs.items():
        if isinstance(recipe, kind):
            return run(recipe, resume=resume)
    raise TypeError(f"recipe: {type(recipe).__name__}, expected a recipe of pretraining such as PretrainRecipe")
