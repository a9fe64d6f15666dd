"""The commands, the presets, and the recipe that each command runs; no recipe is imported before it is needed."""

from __future__ import annotations

import importlib
import importlib.resources
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from discrete_grpo.cli.bundled import about_bundled
from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.runs.folder import RUN

__all__ = ["COMMANDS", "RECIPES", "RUNS", "Recipe", "UsageError", "preset_about", "preset_path", "presets", "recipe_of"]


class UsageError(ValueError):
    """Raised for a command line that cannot be run; its text is the line shown to the user."""


class Recipe(NamedTuple):
    """Import paths of a command's settings (a dataclass) and of its function."""

    module: str
    settings: str
    function: str


RUNS: dict[str, Recipe] = {
    "train": Recipe("discrete_grpo.recipes.train", "TrainRecipe", "run_train"),
    "pretrain": Recipe("discrete_grpo.recipes.pretraining.molecules", "PretrainRecipe", "run_pretrain"),
    "pretrain-graphs": Recipe("discrete_grpo.recipes.pretraining.graphs", "PretrainGraphsRecipe", "run_pretrain_graphs"),
    "pretrain-graph-sequences": Recipe(
        "discrete_grpo.recipes.pretraining.graph_sequences", "PretrainGraphSequencesRecipe", "run_pretrain_graph_sequences"
    ),
    "pretrain-smiles": Recipe("discrete_grpo.recipes.pretraining.smiles", "PretrainSmilesRecipe", "run_pretrain_smiles"),
    "pretrain-text": Recipe("discrete_grpo.recipes.pretraining.text", "PretrainTextRecipe", "run_pretrain_text"),
    "judge": Recipe("discrete_grpo.recipes.pretraining.judge", "JudgeRecipe", "run_judge"),
    "pretrain-digits": Recipe("discrete_grpo.recipes.pretraining.digits", "PretrainDigitsRecipe", "run_pretrain_digits"),
    "pretrain-spatial": Recipe("discrete_grpo.recipes.pretraining.spatial", "PretrainSpatialRecipe", "run_pretrain_spatial"),
    "sft": Recipe("discrete_grpo.recipes.pretraining.sft", "SFTRecipe", "run_sft"),
    "optimise": Recipe("discrete_grpo.recipes.optimise", "OptimiseRecipe", "run_optimise"),
    "search": Recipe("discrete_grpo.recipes.search", "SearchRecipe", "run_search"),
}
"""The commands that make a run folder."""

RECIPES: dict[str, Recipe] = {**RUNS, "score": Recipe("discrete_grpo.recipes.score", "ScoreRecipe", "run_score")}
"""The commands whose options are those of a recipe: these, and ``score``, which makes no folder."""

COMMANDS = {
    "train": "fine-tune a policy against a reward",
    "pretrain": "train a graph diffusion policy of molecules by likelihood",
    "pretrain-graphs": "train a diffusion or flow policy of plain or labelled graphs by likelihood",
    "pretrain-graph-sequences": "train an autoregressive policy that writes graphs as token sequences by likelihood",
    "pretrain-smiles": "train an autoregressive SMILES policy by likelihood",
    "pretrain-text": "train a policy that fills blanks in text by likelihood",
    "judge": "train a judge of text, to be used as a reward",
    "pretrain-digits": "train a policy of handwritten digits by likelihood",
    "pretrain-spatial": "train a diffusion policy of molecules with their positions in space by likelihood",
    "sft": "train a policy further by likelihood on samples of your own (supervised fine-tuning, transfer learning)",
    "preprocess": "write a file of molecules as shards, for pretraining on data that does not fit in memory",
    "optimise": "find the molecules with the highest reward within a budget of oracle calls",
    "search": "search around the best samples of a policy without changing it",
    "benchmark": "compare methods of reward optimisation on a suite of tasks, within a budget of oracle calls",
    "resume": "continue a stopped run, or a finished one for longer",
    "sample": "draw samples from a policy",
    "evaluate": "print the metrics of a file of samples",
    "score": "score the samples of a file by rewards",
    "likelihood": "compute the log-probabilities of the samples of a file under a policy",
    "best": "print or write the best samples of a run",
    "report": "write the report of a run again",
    "import": "convert a checkpoint of another program",
    "list": "show presets, bundled policies, rewards and data sets; 'list policies', 'list tasks' and 'list methods' show more",
}
"""All commands with their descriptions."""


def recipe_of(command: str) -> tuple[type, Callable[..., Any]]:
    """The settings and the function of a command with a recipe; imports the module of its own recipe only."""
    module, settings, function = RECIPES[command]
    found = importlib.import_module(module)
    return getattr(found, settings), getattr(found, function)


def _preset_texts(command: str) -> dict[str, str]:
    folder = importlib.resources.files("discrete_grpo.cli.presets")
    texts = {p.name.removesuffix(".yaml"): p.read_text(encoding="utf-8") for p in folder.iterdir() if p.name.endswith(".yaml")}
    return {name: texts[name] for name in sorted(texts) if texts[name].startswith(f"# {command}:")}


def presets(command: str) -> list[str]:
    """Names of the presets of a command."""
    return list(_preset_texts(command))


def preset_about(command: str) -> dict[str, str]:
    """One line about each preset of a command: the comment at the top of its file."""
    return {name: text.partition("\n")[0].partition(":")[2].strip() for name, text in _preset_texts(command).items()}


def _is_file(path: Path) -> bool:
    """Whether a file exists; False for a name that is too long for one."""
    try:
        return path.is_file()
    except OSError:
        return False


def preset_path(command: str, name: str) -> Path:
    """The file of a preset by its name, or of a YAML file by its path.

    Raises:
        UsageError: if there is none.
    """
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise UsageError(f"preset: file {name!r} does not exist")
        return Path(name)
    if name in (known := presets(command)):
        return Path(str(importlib.resources.files("discrete_grpo.cli.presets") / f"{name}.yaml"))
    expected = f"known: {', '.join(known)}" if known else f"{command} has no presets, expected options alone or a YAML file"
    raise UsageError(f"preset: {name!r} is unknown; {f'{_meant(command, name, known)} '.lstrip()}{expected}")


def _meant(command: str, name: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown preset name: the option that it should be given to, or the nearest preset."""
    options = {field.name for field in fields(recipe_of(command)[0])}
    if "policy" in options and name in about_bundled()["bundled policies"]:
        return f"it is a bundled policy, which is given as --policy={name};"
    if "policy" in options and _is_file(Path(name) / RUN):
        return f"it is a run folder, whose policy is given as --policy={name};"
    if "data" in options and _is_file(Path(name)):
        return f"it is a file; data are given as --data={name};"
    return did_you_mean(name, known)
