"""The data that passes between a policy, a reward and the trainer, and the two protocols they obey."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from discrete_grpo.categorical import Sites

__all__ = ["Context", "Policy", "Reward", "Rollout", "as_module", "group_contexts"]


@dataclass(frozen=True)
class Context:
    """What one trajectory starts from.

    Attributes:
        group: trajectories of one group are compared with each other; a policy draws what a group shares
            (the number of nodes, say) once per distinct group.
        columns: conditions by name; the policy may read them, and rewards receive each as a keyword argument
            holding one value a sample.
    """

    group: int
    columns: Mapping[str, Any] = field(default_factory=dict)


def group_contexts(num_groups: int, num_generations: int, columns: Sequence[Mapping[str, Any]] | None = None) -> list[Context]:
    """``num_groups`` groups of ``num_generations`` equal contexts each; ``columns[g]`` are group g's conditions.

    >>> [c.group for c in group_contexts(2, 3)]
    [0, 0, 0, 1, 1, 1]
    """
    given: Sequence[Mapping[str, Any]] = columns if columns is not None else [{}] * num_groups
    if len(given) != num_groups:
        raise ValueError(f"columns: {len(given)} entries, expected one a group ({num_groups})")
    return [Context(g, given[g]) for g in range(num_groups) for _ in range(num_generations)]


@dataclass(frozen=True)
class Rollout:
    """B finished trajectories of at most S steps.

    Attributes:
        states: tensors [B, ...] only the policy that made them reads; classes are small integers.
        group: group id of each trajectory [B]; ids need not be contiguous or sorted.
        logp: log-probability of each step as drawn [B, S], summed over its sites, at least float32.
        units: number of sites of each step that the policy chooses [B, S]; what normalisers count.
        size: a policy's measure of length or graph size [B]; rows of like size waste no padding together.
        max_units: the most sites a trajectory of this policy can have (Dr. GRPO's constant).
        samples: what rewards see, one object a trajectory.
        columns: conditions, one value a trajectory each.
    """

    states: Mapping[str, Tensor]
    group: Int[Tensor, " batch"]
    logp: Float[Tensor, "batch step"]
    units: Int[Tensor, "batch step"]
    size: Int[Tensor, " batch"]
    max_units: int
    samples: tuple[Any, ...]
    columns: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.group.shape[0]

    @property
    def num_steps(self) -> int:
        """S."""
        return self.logp.shape[1]

    def index(self, rows: Int[Tensor, " row"]) -> Rollout:
        """The trajectories at ``rows``, in that order."""
        picked = rows.tolist()
        return Rollout(
            states={name: value[rows] for name, value in self.states.items()},
            group=self.group[rows],
            logp=self.logp[rows],
            units=self.units[rows],
            size=self.size[rows],
            max_units=self.max_units,
            samples=tuple(self.samples[k] for k in picked),
            columns={name: tuple(value[k] for k in picked) for name, value in self.columns.items()},
        )

    def to(self, device: torch.device | str) -> Rollout:
        """The same trajectories with every tensor on ``device``."""
        states = {name: value.to(device) for name, value in self.states.items()}
        moved = {name: getattr(self, name).to(device) for name in ("group", "logp", "units", "size")}
        return replace(self, states=states, **moved)

    def nbytes(self) -> int:
        """Bytes of the stored states."""
        return sum(value.numel() * value.element_size() for value in self.states.values())


@runtime_checkable
class Policy(Protocol):
    """A network and the rule by which it draws samples, step by step. Implementations are ``nn.Module``s."""

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        """One trajectory a context, without gradient."""
        ...

    def sites(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None) -> Sequence[Sites]:
        """The categoricals of stored steps, differentiable; ``steps[b]`` are step numbers of row b, None means all."""
        ...


@runtime_checkable
class Reward(Protocol):
    """A callable ``reward(samples, **columns)`` that scores finished samples.

    It is given the samples as a list and every condition column as a keyword argument with one value a sample; it may name
    the columns it reads. None or NaN means unknown: left out of baseline and loss.
    """

    def __call__(self, *samples: Any, **columns: Any) -> Sequence[float | None]:
        """One number a sample, in order."""
        ...


def as_module(policy: Policy) -> nn.Module:
    """The policy as the ``nn.Module`` it must be.

    Raises:
        TypeError: if it is none.
    """
    if not isinstance(policy, nn.Module):
        raise TypeError(f"policy: {type(policy).__name__} is no torch.nn.Module, so it has no parameters to train")
    return policy
