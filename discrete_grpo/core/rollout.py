"""Protocols of policies and rewards, and the data that they exchange with the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from discrete_grpo.core.categorical import Scores, SiteKind
from discrete_grpo.core.checks import signature_of

__all__ = [
    "Context",
    "Observer",
    "Policy",
    "Refinable",
    "Replayable",
    "Reward",
    "Rollout",
    "Scorer",
    "as_module",
    "check_decoder",
    "group_contexts",
    "is_observer",
    "is_refinable",
    "is_replayable",
    "is_scorer",
    "is_size_drawer",
]


@dataclass(frozen=True)
class Context:
    """Start of one trajectory.

    Attributes:
        group: trajectories of one group are compared with each other; a policy draws what a group shares
            (the number of nodes, say) once per distinct group.
        columns: conditions by name; the policy may read them, and rewards receive each as a keyword argument
            holding one value per sample.
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
        raise ValueError(f"columns: {len(given)} entries, expected one per group ({num_groups})")
    return [Context(g, given[g]) for g in range(num_groups) for _ in range(num_generations)]


@dataclass(frozen=True)
class Rollout:
    """B finished trajectories of at most S steps.

    Attributes:
        states: tensors [B, ...] that only the policy reads; classes are small integers.
        group: group id of each trajectory [B]; ids need not be contiguous or sorted.
        logp: log-probability of each step as drawn [B, S], summed over its sites, in float32 or wider.
        units: number of sites that the policy chooses at each step [B, S], which normalisers count.
        size: a policy's measure of length or graph size [B]; rows of similar size need little padding together.
        max_units: the most sites a trajectory of this policy can have (Dr. GRPO's constant).
        samples: objects that rewards score, one per trajectory.
        columns: conditions, with one value per trajectory each.
        max_steps: the most steps a trajectory of this policy can have, whatever S is; None if unknown, and ``max_units`` is used
            instead, as steps without sites do not count.
        largest: the largest ``size``, if the host knows it; reading it from an accelerator makes the host wait.
    """

    states: Mapping[str, Tensor]
    group: Int[Tensor, " batch"]
    logp: Float[Tensor, "batch step"]
    units: Int[Tensor, "batch step"]
    size: Int[Tensor, " batch"]
    max_units: int
    samples: tuple[Any, ...]
    columns: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    max_steps: int | None = None
    largest: int | None = None

    def __len__(self) -> int:
        return self.group.shape[0]

    def __repr__(self) -> str:
        """Show the numbers of trajectories, groups and steps instead of the tensors."""
        groups = len(set(self.group.tolist()))
        return f"Rollout({len(self)} trajectories, {groups} groups, {self.num_steps} steps, {self.group.device})"

    @property
    def num_steps(self) -> int:
        """Number of steps S."""
        return self.logp.shape[1]

    @property
    def max_size(self) -> int:
        """The largest ``size`` of a trajectory; waits for the device unless ``largest`` is given."""
        return int(self.size.max()) if self.largest is None else self.largest

    def index(self, rows: Int[Tensor, " row"], on_host: Int[Tensor, " row"] | None = None) -> Rollout:
        """The trajectories at ``rows``, in that order; ``on_host`` are the same rows on the CPU, where they are there already."""
        picked = (rows if on_host is None else on_host).tolist()
        return Rollout(
            states={name: value[rows] for name, value in self.states.items()},
            group=self.group[rows],
            logp=self.logp[rows],
            units=self.units[rows],
            size=self.size[rows],
            max_units=self.max_units,
            samples=tuple(self.samples[k] for k in picked),
            columns={name: tuple(value[k] for k in picked) for name, value in self.columns.items()},
            max_steps=self.max_steps,
        )

    def to(self, device: torch.device | str) -> Rollout:
        """The same trajectories with every tensor on ``device``."""
        states = {name: value.to(device) for name, value in self.states.items()}
        moved = {name: getattr(self, name).to(device) for name in ("group", "logp", "units", "size")}
        return replace(self, states=states, **moved)

    def bare(self) -> Rollout:
        """A copy without states and log-probs, as rewards and metrics need it, that is cheap to send."""
        none = torch.empty(len(self), 0, dtype=torch.long)
        return replace(self, states={}, logp=none.float(), units=none, size=self.size.cpu(), group=self.group.cpu())

    def nbytes(self) -> int:
        """Bytes of the stored states."""
        return sum(value.numel() * value.element_size() for value in self.states.values())


@runtime_checkable
class Policy(Protocol):
    """A network and the process by which it draws samples step by step. Implementations are ``nn.Module``s."""

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        """Draw one trajectory per context, without gradient."""
        ...

    def sites(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None) -> Sequence[SiteKind]:
        """Compute the distributions of stored sites, differentiably.

        Args:
            rollout: B trajectories.
            steps: step numbers of each row in ascending order [B, S']; None means all.

        Returns:
            One entry per kind of sites, such as nodes and edges, each with normalised log-probs [B, S', U, C], the chosen classes
            [B, S', U] and a mask of the sites that the policy chose [B, S', U].
        """
        ...


@runtime_checkable
class Scorer(Protocol):
    """A policy that computes the scores of a rollout itself, such as a surrogate likelihood.

    It has ``sample`` like every :class:`Policy`; the trainer never calls its ``sites``. Random numbers that a score depends on are
    drawn in ``sample`` and stored in the rollout, so that new, old and reference policy are compared at equal numbers.
    ``docs/extending.md`` has an example.

    If an attribute ``forward_kl_gradient`` is True, ``kl_forward`` of its scores is differentiable, so that
    ``kl_direction: forward`` can be used with ``kl_estimator: exact``.
    """

    def score(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None, reference: Any | None = None) -> Scores:
        """Compute the scores of stored steps [B, S'], differentiable; ``steps`` are as of :meth:`Policy.sites`.

        ``reference`` is a frozen copy of this policy, or None.
        """
        ...


@runtime_checkable
class Refinable(Protocol):
    """A policy that can start again from a finished sample."""

    def restarts(self, rollout: Rollout, rows: Int[Tensor, " row"], time: float) -> Sequence[Mapping[str, Any]]:
        """Columns, one mapping per row, that make :meth:`Policy.sample` re-noise the sample to ``time`` and continue from there.

        They are added to the columns of the context of the sample. Values are plain, or dataclasses of plain values, as
        checkpoints store them. t = 0 is data and t = 1 is noise.
        """
        ...


class Replayable(Protocol):
    """A policy that can learn from finished samples that it did not draw."""

    def rollout_of(self, samples: Sequence[Any], *, generator: torch.Generator | None = None) -> Rollout:
        """The trajectories by which this policy could have drawn these samples, one each, in groups of their own.

        ``logp`` is NaN, as the policy did not draw them; :meth:`Policy.sites` gives log π_θ. If a sample has many trajectories, one
        is drawn with ``generator``.

        Raises:
            ValueError: for a sample that the policy cannot draw; see :meth:`can_draw`.
        """
        ...

    def can_draw(self, sample: Any) -> bool:
        """Whether the policy has a trajectory that ends in this sample."""
        ...


def is_replayable(policy: Any) -> bool:
    """Whether a policy is :class:`Replayable`, which for a wrapper depends on the policy inside it."""
    return hasattr(policy, "rollout_of") and hasattr(policy, "can_draw")


@runtime_checkable
class SizeDrawer(Protocol):
    """A policy that draws one size per group before its trajectories, and reads it from the column ``num_nodes`` if it is given.

    The trainer then draws the sizes of all groups of a generation at once, and distributes them to balance the work.
    """

    def draw_sizes(self, count: int, *, generator: torch.Generator | None = None) -> list[int]:
        """Draw the sizes of ``count`` groups from the law that :meth:`Policy.sample` uses."""
        ...


@runtime_checkable
class Observer(Protocol):
    """A policy that learns from each generation without a gradient, such as a running histogram; called once per shard.

    It may have an attribute ``observed_states``, the names of the states that :meth:`observe` reads; processes then exchange only
    these.
    """

    def observe(self, rollout: Rollout, advantage: Float[Tensor, " batch"]) -> None:
        """Process the samples of a shard, or of a batch of groups that were drawn again, after scoring and before the updates."""
        ...


def is_scorer(policy: Any) -> TypeGuard[Scorer]:
    """Whether a policy is a :class:`Scorer`; a wrapper is one only if the policy inside it is."""
    return hasattr(policy, "score")


def is_refinable(policy: Any) -> TypeGuard[Refinable]:
    """Whether a policy is :class:`Refinable`."""
    return hasattr(policy, "restarts")


def is_observer(policy: Any) -> TypeGuard[Observer]:
    """Whether a policy is an :class:`Observer`."""
    return hasattr(policy, "observe")


def is_size_drawer(policy: Any) -> TypeGuard[SizeDrawer]:
    """Whether a policy is a :class:`SizeDrawer`."""
    return hasattr(policy, "draw_sizes")


@runtime_checkable
class Reward(Protocol):
    """A callable ``reward(samples, **columns)`` that scores finished samples.

    It receives the samples as a list and every condition column as a keyword argument with one value per sample; its signature
    may name the columns that it reads. None or NaN means unknown, and such samples are left out of the baseline and of the loss.
    """

    def __call__(self, *samples: Any, **columns: Any) -> Sequence[float | None]:
        """Return one number per sample, in order."""
        ...


def as_module(policy: Policy) -> nn.Module:
    """The policy as the ``nn.Module`` it must be.

    Raises:
        TypeError: if it is not one.
        ValueError: if its argument ``decode`` or ``encode`` is a network, see :func:`check_decoder`.
    """
    if not isinstance(policy, nn.Module):
        if isinstance(policy, type):
            raise TypeError(f"policy: {policy.__name__} is a class, expected an instance, such as {policy.__name__}(...)")
        raise TypeError(f"policy: {type(policy).__name__} is no torch.nn.Module, so it has no parameters to train")
    part: Any = policy
    while isinstance(part, nn.Module):  # a wrapper, then the policy inside it
        for name, network in part.named_children():
            if name in ("decode", "encode") and _is_lost(part, name):
                check_decoder(name, network)
        part = getattr(part, "policy", None)
    return policy


def _is_lost(policy: nn.Module, name: str) -> bool:
    """Whether checkpoints leave out a part of a policy, or an attribute of its class hides it, as in a wrapper."""
    if hasattr(type(policy), name):
        return True
    signature, given = signature_of(type(policy)), getattr(policy, "init_args", None)  # without the latter it has no checkpoints
    return signature is not None and given is not None and name in signature.parameters and name not in given()


def check_decoder(name: str, value: object) -> None:
    """Raise ValueError if the argument ``decode`` or ``encode`` of a policy is a network.

    PyTorch would make it a part of the policy. Its weights would then be trained, and stand in checkpoints from which the policy
    is built without it.
    """
    if isinstance(value, nn.Module):
        advice = " (DecodedPolicy(policy, network) wraps one)" if name == "decode" else ""
        raise ValueError(f"{name}: {type(value).__name__} is a network, expected a function{advice}")
