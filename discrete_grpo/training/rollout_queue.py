"""The rest of a generation in a checkpoint that is written between two of its updates.

Checkpoints cannot be restricted to the boundaries between generations: the policy in a checkpoint must have the weights after its
own update, rewards that no ledger caches would be called twice and could return other values, and runs that were stopped within a
generation by an earlier version must still be resumed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from discrete_grpo.core.precision import place
from discrete_grpo.core.rollout import Rollout
from discrete_grpo.runs.checkpoint import build, describe
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.minibatches import Counts, MiniBatches, StepChoice, TrainRows, recounted

__all__ = ["cut_as_before", "cut_of", "load_old", "queue_states", "read_rows", "rollout_of", "rollout_state", "trusted_packages"]

TENSORS = ("group", "logp", "units", "size")
MARKS = ("advantage", "counted", "needed", "refined")
MOST = ("max_units", "max_steps")
COUNTED = ("importance_sampling_level", "timestep_fraction")
"""Settings by which the units of a trajectory are counted."""


def cut_of(queue: MiniBatches) -> dict[str, Any]:
    """Return the settings by which a generation was split into updates and forward passes, for a checkpoint."""
    rows, steps = queue.config.passes
    told = {name: getattr(queue.config, name) for name in ("num_iterations", "steps_per_generation")}
    return {**told, "per_device_batch_size": rows, "timestep_chunk": steps}


def cut_as_before(config: GRPOConfig, cut: Mapping[str, Any]) -> GRPOConfig:
    """Return the settings with those of :func:`cut_of`, which a resumed run must keep until the generation is used up.

    The log-probs of the policy that drew the rows are stored per forward pass, so other passes could not use them.

    Raises:
        ValueError: for ratios of whole trajectories, where the generation was split into passes of some steps.
    """
    if config.importance_sampling_level == "sequence" and (steps := cut.get("timestep_chunk")) is not None:
        wanted = f"expected the level of the run, whose forward passes have {steps} steps until its samples are used up"
        raise ValueError(f"importance_sampling_level: 'sequence', {wanted}")
    found = copy.copy(config)
    for name, value in cut.items():  # not by replace: they need not fit a changed size of generations
        object.__setattr__(found, name, value)
    return found


def queue_states(queue: MiniBatches) -> list[dict[str, Any]]:
    """One entry of a checkpoint per shard: its rows, its chosen steps and the log-probs of the policy that drew the rows."""
    found = []
    for i, number in enumerate(queue.shards):
        old = [
            [o for micro, o in zip(part, given, strict=True) if micro.shard == number]
            for part, given in zip(queue.parts, queue.old, strict=True)
        ]
        choice = {"steps": list(queue.choices[i].steps), "counts": list(queue.choices[i].counts)}
        choice |= {name: getattr(queue.config, name) for name in COUNTED}
        found.append({"draws": [_rows_state(rows) for rows in queue.rows[i]], "choice": choice, "old": old})
    return found


def read_rows(
    state: Mapping[str, Any], trusted: Sequence[str], device: torch.device, config: GRPOConfig
) -> tuple[list[TrainRows], StepChoice]:
    """Rows and chosen steps of one shard from a checkpoint; only classes of the ``trusted`` packages are built.

    Units are counted again if ``config`` has another importance sampling level than the run had, since the loss uses it at once.
    """
    rows = [_rows(d, trusted, device) for d in state["draws"]]
    steps = tuple(s.to(device) for s in state["choice"]["steps"])
    counts = state["choice"]["counts"]
    units = counts[5:] or counts[:1]  # earlier versions counted sites at every level
    choice = StepChoice(steps, Counts(*counts[:5], *units))
    level = state["choice"].get("importance_sampling_level", config.importance_sampling_level)  # missing in earlier versions
    if level == config.importance_sampling_level:
        return rows, choice
    before = copy.copy(config)
    object.__setattr__(before, "timestep_fraction", state["choice"]["timestep_fraction"])  # the steps are chosen already
    return rows, recounted(choice, rows, before)


def load_old(queue: MiniBatches, states: Sequence[Mapping[str, Any]], device: torch.device) -> None:
    """Restore the log-probs that :func:`queue_states` wrote."""
    for k in range(len(queue.parts)):
        kept = [o for state in states for o in state["old"][k]]
        queue.old[k] = [None if o is None else o.to(device) for o in kept]


def _rows_state(rows: TrainRows) -> dict[str, Any]:
    return rollout_state(rows.rollout) | {name: getattr(rows, name) for name in MARKS} | {"stored": rows.old}


def _rows(state: Mapping[str, Any], trusted: Sequence[str], device: torch.device) -> TrainRows:
    marks, stored = {name: place(state[name], device) for name in MARKS}, state.get("stored")
    return TrainRows(rollout_of(state, trusted, device), **marks, old=None if stored is None else stored.to(device))


def trusted_packages(policy: object, columns: object) -> tuple[str, ...]:
    """The packages whose classes a stored rollout may name: this one, that of the policy, and those of the values of conditions."""
    named: list[str] = []
    _add_class_paths(describe(columns), named)
    return tuple(dict.fromkeys(["discrete_grpo", *(path.split(".")[0] for path in (type(policy).__module__, *named))]))


def _add_class_paths(described: object, named: list[str]) -> None:
    if isinstance(described, Mapping):
        if isinstance(path := described.get("class_path"), str) and "init_args" in described:
            named.append(path)
        for value in described.values():
            _add_class_paths(value, named)
    elif isinstance(described, list):
        for value in described:
            _add_class_paths(value, named)


def rollout_state(rollout: Rollout) -> dict[str, Any]:
    """A rollout as tensors and plain values, without its samples, which updates do not need."""
    tensors = {name: getattr(rollout, name) for name in TENSORS}
    columns = describe({name: list(values) for name, values in rollout.columns.items()})
    most = {name: getattr(rollout, name) for name in MOST}
    return {**tensors, **most, "states": dict(rollout.states), "columns": columns}


def rollout_of(state: Mapping[str, Any], trusted: Sequence[str], device: torch.device) -> Rollout:
    """The rollout that :func:`rollout_state` described; only classes of the ``trusted`` packages are built."""
    states = {name: value.to(device) for name, value in state["states"].items()}
    columns = {name: tuple(values) for name, values in build(state["columns"], tuple(trusted)).items()}
    tensors = {name: state[name].to(device) for name in TENSORS}
    samples = (None,) * len(state["group"])
    most: dict[str, Any] = {name: state.get(name) for name in MOST}
    return Rollout(states=states, samples=samples, columns=columns, **tensors, **most)
