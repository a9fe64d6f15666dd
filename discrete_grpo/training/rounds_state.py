"""The state of a loop over rounds, for a checkpoint: tensors, numbers, texts and containers of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from discrete_grpo.core.rollout import as_module
from discrete_grpo.training.memory import Remembered
from discrete_grpo.training.objectives import Adaptive

if TYPE_CHECKING:
    from discrete_grpo.training.rounds import Rounds

__all__ = ["RoundsProgress", "Stateful", "restore_rounds", "rounds_state"]


@dataclass
class RoundsProgress:
    """Counters and best scores of a loop.

    Attributes:
        rounds: rounds made.
        restarts: restarts made.
        idle: rounds in a row without a new sample.
        known: number of samples scored at the last restart; -1 before the first.
        best: the ten best scores of the memory at the last restart.
        top: the ten best scores of the memory now.
        risen_at: number of samples scored when ``top`` last changed.
        ended: whether the loop ended by itself.
    """

    rounds: int = 0
    restarts: int = 0
    idle: int = 0
    known: int = -1
    best: list[float] = field(default_factory=list)
    top: list[float] = field(default_factory=list)
    risen_at: int = 0
    ended: bool = False


@runtime_checkable
class Stateful(Protocol):
    """An object with a state for checkpoints: a module, a screen, an objective that changes from round to round."""

    def state_dict(self) -> dict[str, Any]:
        """Return all state that has changed since the object was created."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        """Restore the result of :meth:`state_dict`."""
        ...


def _changes(objective: Any) -> bool:
    return isinstance(objective, Stateful | Adaptive)


def _kept(name: str, part: Any) -> dict[str, Any]:
    if not isinstance(part, Stateful):
        told = f"{name}: {type(part).__name__} has no state_dict and load_state_dict"
        raise TypeError(f"{told}, expected both in a loop whose state is saved")
    return copy.deepcopy(part.state_dict())


def rounds_state(loop: Rounds) -> dict[str, Any]:
    """A copy of the state of a loop between two rounds, without its ledger; keys and samples are kept as they are.

    Raises:
        TypeError: for a screen, or an objective that changes, without ``state_dict`` and ``load_state_dict``.
    """
    return {
        "policy": copy.deepcopy(as_module(loop.policy).state_dict()),
        "optimizer": copy.deepcopy(loop.optimizer.state_dict()),
        "objective": _kept("objective", loop.objective) if _changes(loop.objective) else None,
        "screen": None if loop.screen is None else _kept("screen", loop.screen),
        "generator": loop.generator.get_state(),
        "progress": asdict(loop.progress),
        "scored": [[entry.key, entry.sample, entry.score, entry.source] for entry in loop.entry_of.values()],
        "memory": [entry.key for entry in loop.memory.kept],
        "drawable": None if loop.drawable is None else [entry.key for entry in loop.drawable.kept],
        "met": list(loop.met),
        "unknown": list(loop.unknown),
        "ref_logp": dict(loop.ref_logp),
    }


def restore_rounds(loop: Rounds, state: Mapping[str, Any]) -> None:
    """Restore the state in a new loop with the same arguments; its next round is bit-identical."""
    as_module(loop.policy).load_state_dict(state["policy"])
    for part, kept in ((loop.objective, state["objective"]), (loop.screen, state["screen"])):
        if kept is not None:
            cast(Stateful, part).load_state_dict(kept)
    loop.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    loop.generator.set_state(state["generator"])
    loop.progress = RoundsProgress(**state["progress"])
    entries = [Remembered(*entry) for entry in state["scored"]]
    loop.entry_of = {entry.key: entry for entry in entries}
    loop.everything.clear()
    for entry in entries:
        loop.everything.add([(entry.key, entry.sample, entry.score)], entry.source)
    loop.memory.replace([loop.entry_of[key] for key in state["memory"]])
    if loop.drawable is not None:
        loop.drawable.replace([loop.entry_of[key] for key in state.get("drawable") or ()])
        if state.get("drawable") is None:  # a checkpoint of an earlier version
            loop.remember_drawable(loop.memory.kept)
    loop.met = set(state["met"])
    loop.unknown = dict.fromkeys(state.get("unknown", ()))  # checkpoints of earlier versions have none
    loop.ref_logp = dict(state["ref_logp"])
