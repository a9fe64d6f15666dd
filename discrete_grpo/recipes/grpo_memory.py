"""The method ``grpo-memory`` for any reward: its settings, its components, and its warm start.

This description applies to SMILES policies; :mod:`discrete_grpo.recipes.memory_methods` has the differences for graph policies.

A round draws candidates from the policy and from a graph genetic algorithm, a Gaussian process fitted to all scored samples selects
those to score, and the policy makes updates with GRPO's clipped loss on samples drawn by rank from the best scored ones, with
advantages relative to its own draws and exact ratios to the policy at the beginning of the round. The Gaussian process is fitted to
scored molecules only, each of which is a counted call. If the ten best do not change for 800 calls, policy, memory and Gaussian
process are reset; every second reset keeps everything that was scored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discrete_grpo.recipes.method_settings import whole_numbers

if TYPE_CHECKING:
    import torch

    from discrete_grpo.core.rollout import Reward
    from discrete_grpo.rewards.ledger import Ledger
    from discrete_grpo.training.gaussian_process import Features
    from discrete_grpo.training.memory import Remembered, ScoredMemory

__all__ = [
    "GRAPH_SETTINGS",
    "PART_NAMES",
    "TOKEN_SETTINGS",
    "changes_of_method",
    "check_warm_start",
    "fill_memory",
    "parts_of_method",
]

TOKEN_SETTINGS: dict[str, Any] = {
    "memory_size": 1024,
    "mutation_rate": 0.3,
    "kappa": 0.3,
    "screen": True,
    "objective": {"temperature": 0.005, "new_share": 0.4, "epsilon": 0.2},
    "draws": 160,
    "children": 48,
    "take": 40,
    "unscreened": 10,
    "take_children": 10,
    "passes": 6,
    "batch_size": 64,
    "learning_rate": 5e-4,
    "temperature": 1.0,
    "patience": 10,
    "plateau": 800,
    "when_stale": "islands",
}
"""Settings of the method: those of :func:`parts_of_method`, ``temperature`` of the policy, and fields of
:class:`~discrete_grpo.training.rounds_config.RoundsConfig`."""
GRAPH_SETTINGS: dict[str, Any] = {
    "memory_size": 256,
    "mutation_rate": 0.3,
    "kappa": 0.3,
    "screen": True,
    "objective": {"epsilon": 0.2},
    "num_steps": 25,
    "elbo_draws": 2,
    "refine_time": 0.3,
    "size_share": 0.75,
    "draws": 128,
    "children": 48,
    "take": 40,
    "unscreened": 10,
    "take_children": 30,
    "passes": 6,
    "batch_size": 64,
    "learning_rate": 5e-4,
    "max_grad_norm": 1.0,
    "patience": 10,
    "plateau": 800,
    "when_stale": "islands",
}
"""The same for graph policies: settings of :data:`~discrete_grpo.recipes.memory_methods.GRAPHS`, and fields of
:class:`~discrete_grpo.training.rounds_config.RoundsConfig`."""
PART_NAMES = ("memory_size", "mutation_rate", "kappa", "screen", "objective")
"""Names of the settings that :func:`parts_of_method` takes."""


def changes_of_method(settings: Mapping[str, Any] | None, known: Mapping[str, Any] = TOKEN_SETTINGS) -> dict[str, Any]:
    """Changes to the settings ``known``, where ``objective.name``, as a command line gives it, is a field of the objective.

    >>> changes_of_method({"draws": 1e2, "objective.epsilon": 0.1})
    {'draws': 100, 'objective': {'epsilon': 0.1}}
    >>> changes_of_method({"objective": {"new_share": "5e-1"}, "objective.epsilon": 0.1})
    {'objective': {'new_share': 0.5, 'epsilon': 0.1}}
    """
    found: dict[str, Any] = {}
    for name, value in (settings or {}).items():
        if not isinstance(name, str):
            raise ValueError(f"settings: {name!r} is a name, expected texts as names")
        group, _, field_name = name.partition(".")
        fields = {field_name: value} if group == "objective" and field_name else value
        if group == "objective" and isinstance(fields, Mapping):
            found[group] = {**found.get(group, {}), **{key: _number_of_text(field) for key, field in fields.items()}}
        else:
            found[name] = value
    return whole_numbers(found, known)


def _number_of_text(value: Any) -> Any:
    """The number that a text such as 1e-3 stands for, which YAML takes for a text; others as they are."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def parts_of_method(
    generator: torch.Generator,
    *,
    memory_size: int,
    mutation_rate: float,
    kappa: float,
    screen: bool,
    objective: dict[str, Any],
) -> dict[str, Any]:
    """Objective, memory, proposers and screen, as :class:`~discrete_grpo.training.rounds.Rounds` takes them.

    Args:
        generator: random generator of the screen.
        memory_size: number of best samples from which the passes draw.
        mutation_rate: mutation rate of the genetic operators.
        kappa: weight of the uncertainty in the upper confidence bound.
        screen: whether a Gaussian process chooses among the candidates.
        objective: fields of :class:`~discrete_grpo.training.objectives.SelfImitation`.
    """
    from discrete_grpo.recipes.proposers import GraphGenetic
    from discrete_grpo.training.gaussian_process import GaussianProcessScreen
    from discrete_grpo.training.memory import ScoredMemory
    from discrete_grpo.training.objectives import SelfImitation

    return {
        "objective": SelfImitation(**objective),
        "memory": ScoredMemory(memory_size),
        "proposers": [GraphGenetic(mutation_rate=mutation_rate)],
        "screen": GaussianProcessScreen(_features, kappa=kappa, generator=generator) if screen else None,
    }


def _features(smiles: str) -> Features:
    from discrete_grpo.domains.molecule_features import molecule_counts, molecule_numbers
    from discrete_grpo.training.gaussian_process import Features

    return Features(molecule_counts(smiles), molecule_numbers(smiles))


def check_warm_start(file: str, key: Callable[[Any], str | None], argument: str = "warm_start") -> None:
    """Raise ``ValueError`` for a file without a molecule, or whose column of SMILES strings cannot be identified.

    Args:
        file: SMILES file.
        key: canonical form of a sample, as for a ledger.
        argument: name of the argument in the error.
    """
    try:
        first = next(_different(file, key), None)
    except ValueError as error:
        told = re.sub(r"name it with smiles_column=\w+", "give the column of SMILES the header smiles", str(error))
        raise ValueError(f"{argument}: {told.removeprefix('path: ')}") from error
    if first is None:
        raise ValueError(f"{argument}: {file!r} holds no molecule, expected at least one SMILES string")


def fill_memory(
    reward: Reward | Sequence[Reward],
    ledger: Ledger,
    memory: ScoredMemory,
    file: str,
    calls: int | None = None,
    skipped: list[str] | None = None,
    weights: Sequence[float] | None = None,
) -> list[Remembered]:
    """Score the first different valid molecules of a SMILES file, in their order, and remember them under the source ``file``.

    Args:
        reward: reward to optimise, or several.
        ledger: ledger that counts each as a call.
        memory: memory that keeps the best of them.
        file: SMILES file.
        calls: number of molecules; None takes all that the budget covers.
        skipped: list to which a line about each text that is not a molecule is added; None ignores these.
        weights: one weight per reward; None means 1 each.

    Returns:
        The scored molecules for which the memory has no room.
    """
    from discrete_grpo.core.reward_arguments import reward_list
    from discrete_grpo.training.memory import Remembered, ScoredMemory
    from discrete_grpo.training.warm_start import warm_start

    scored = ScoredMemory(size=None)
    warm_start(islice(_different(file, ledger.key, skipped), calls), reward_list(reward), ledger, scored, weights=weights)
    memory.add([(entry.key, entry.sample, entry.score) for entry in scored.kept], "file")
    return [Remembered(entry.key, entry.sample, entry.score, "file") for entry in scored.kept if entry.key not in memory]


def _different(file: str, key: Callable[[Any], str | None], skipped: list[str] | None = None) -> Iterator[str]:
    """The canonical forms of the valid molecules of a file, each once."""
    from discrete_grpo.datasets.reading import smiles_rows

    seen: set[str] = set()
    for line, text in smiles_rows(Path(file)):
        found = key(text)
        if found is None and skipped is not None:
            skipped.append(f"{text!r} (line {line})")
        if found is not None and found not in seen:
            seen.add(found)
            yield found
