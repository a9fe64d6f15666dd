"""A generation that updates are still to be made on: what a checkpoint between two of its updates must keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from discrete_grpo.core.precision import place
from discrete_grpo.core.rollout import Rollout
from discrete_grpo.runs.checkpoint import build, describe
from discrete_grpo.training.batch import Draw
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.minibatches import Choice, Chunk, Counts, Weights, cut

__all__ = ["Pending", "rollout_of", "rollout_state"]

TENSORS = ("group", "logp", "units", "size")
MARKS = ("advantage", "counted", "needed", "refined")
MOST = ("max_units", "max_steps")


@dataclass
class Pending:
    """The draws of this process and the updates to be made on them.

    Attributes:
        shards: numbers of the shards of this process.
        draws: of each shard.
        choices: of each shard.
        parts: the forward passes of each window.
        old: log π_old of each pass; None where the first update is the only one and nothing is replayed.
        shared: metrics of the generation, logged with each of its updates.
        done: updates made.
    """

    shards: Sequence[int]
    draws: Sequence[Sequence[Draw]]
    choices: Sequence[Choice]
    parts: list[list[Chunk]]
    shared: dict[str, float]
    old: list[list[Tensor | None]] = field(default_factory=list)
    done: int = 0

    @staticmethod
    def of(
        shards: Sequence[int],
        draws: Sequence[Sequence[Draw]],
        choices: Sequence[Choice],
        weights: Sequence[Sequence[Weights]],
        config: GRPOConfig,
        shared: Mapping[str, float],
    ) -> Pending:
        """Cut the draws into passes; ``weights[k][i]`` are those of window k in the i-th shard here."""
        parts: list[list[Chunk]] = [[] for _ in weights]
        first = 0
        for i, number in enumerate(shards):
            for part, own in zip(parts, weights, strict=True):
                part += cut(draws[i], choices[i], own[i], config, shard=number, first=first)
            first += sum(len(d.rollout) for d in draws[i])
        return Pending(shards, draws, choices, parts, dict(shared), [[c.stored for c in part] for part in parts])

    def updates(self, config: GRPOConfig) -> int:
        """How many updates are made on it in all."""
        return config.num_iterations * len(self.parts)

    def states(self) -> list[dict[str, Any]]:
        """One a shard, for a checkpoint."""
        found = []
        for i, number in enumerate(self.shards):
            old = [
                [o for c, o in zip(p, old, strict=True) if c.shard == number] for p, old in zip(self.parts, self.old, strict=True)
            ]
            choice = {"steps": list(self.choices[i].steps), "counts": list(self.choices[i].counts)}
            found.append({"draws": [_draw_state(d) for d in self.draws[i]], "choice": choice, "old": old})
        return found

    @staticmethod
    def read(state: Mapping[str, Any], trusted: Sequence[str], device: torch.device) -> tuple[list[Draw], Choice]:
        """The draws and the choice of a shard; classes are built from the ``trusted`` packages alone."""
        draws = [_draw(d, trusted, device) for d in state["draws"]]
        steps = tuple(s.to(device) for s in state["choice"]["steps"])
        counts = state["choice"]["counts"]
        units = counts[5:] or counts[:1]  # earlier versions counted sites at every level
        return draws, Choice(steps, Counts(*counts[:5], *units))

    def load_old(self, states: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        """Take up the log-probs that :meth:`states` kept."""
        for k in range(len(self.parts)):
            kept = [o for state in states for o in state["old"][k]]
            self.old[k] = [None if o is None else o.to(device) for o in kept]


def _draw_state(draw: Draw) -> dict[str, Any]:
    return rollout_state(draw.rollout) | {name: getattr(draw, name) for name in MARKS} | {"stored": draw.old}


def _draw(state: Mapping[str, Any], trusted: Sequence[str], device: torch.device) -> Draw:
    marks, stored = {name: place(state[name], device) for name in MARKS}, state.get("stored")
    return Draw(rollout_of(state, trusted, device), **marks, old=None if stored is None else stored.to(device))


def rollout_state(rollout: Rollout) -> dict[str, Any]:
    """Without the samples: rewards have seen them, updates read only the states."""
    tensors = {name: getattr(rollout, name) for name in TENSORS}
    columns = describe({name: list(values) for name, values in rollout.columns.items()})
    most = {name: getattr(rollout, name) for name in MOST}
    return {**tensors, **most, "states": dict(rollout.states), "columns": columns}


def rollout_of(state: Mapping[str, Any], trusted: Sequence[str], device: torch.device) -> Rollout:
    """What :func:`rollout_state` gave; classes are built from the ``trusted`` packages alone."""
    states = {name: value.to(device) for name, value in state["states"].items()}
    columns = {name: tuple(values) for name, values in build(state["columns"], tuple(trusted)).items()}
    tensors = {name: state[name].to(device) for name in TENSORS}
    samples = (None,) * len(state["group"])
    most: dict[str, Any] = {name: state.get(name) for name in MOST}
    return Rollout(states=states, samples=samples, columns=columns, **tensors, **most)
