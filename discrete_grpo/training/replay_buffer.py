"""Good samples that are learned from again: the best unique ones, with their trajectories and the log-probs they were drawn with.

They join the groups of later generations as rows drawn by an older policy: no reward is asked again, and their ratio is
π_θ / π_stored. Source: Li et al. (2025), RePO, arXiv 2506.09340.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import Policy, Rollout
from discrete_grpo.training.batch import Batch
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.rollout_queue import rollout_of, rollout_state

__all__ = ["Kept", "Replay"]


@dataclass(frozen=True)
class Kept:
    """A sample worth learning from again; its tensors are on the CPU.

    Attributes:
        text: what makes it the same sample, together with its condition.
        reward: its total reward.
        origin: number of the condition it was drawn under; None without conditions.
        rollout: its trajectory, one row.
        rewards: one column a reward.
        old: log π_old of every site of every step.
    """

    text: str
    reward: float
    origin: int | None
    rollout: Rollout
    rewards: Float[Tensor, "1 reward"]
    old: Float[Tensor, "1 step site"]

    @property
    def layout(self) -> tuple[Any, ...]:
        """Equal for rows that can stand in one rollout, where their sites have the places they had when they were scored alone."""
        one = self.rollout
        shapes = tuple((name, value.shape) for name, value in one.states.items())
        return shapes, one.logp.shape, int(one.size), tuple(one.columns)


class Replay:
    """The best unique samples drawn, best first; of equal ones the older.

    Args:
        policy: draws them.
        config: how many are kept and how many join a group.
    """

    def __init__(self, policy: Policy, config: GRPOConfig) -> None:
        self.policy, self.config = policy, config
        self.kept: list[Kept] = []

    def add(self, batch: Batch, reward: Float[Tensor, " batch"]) -> None:
        """Keep the best of a batch; its policy must still be the one that drew it.

        Unknown rewards (NaN) and samples that stand for nothing (None) are left out.
        """
        found: list[tuple[float, tuple[int | None, str], Kept | int]] = [(k.reward, (k.origin, k.text), k) for k in self.kept]
        for b, (total, sample) in enumerate(zip(reward.tolist(), batch.rollout.samples, strict=True)):
            if total == total and sample is not None:
                found.append((total, (batch.origins[b], str(sample)), b))
        best: dict[tuple[int | None, str], tuple[float, Kept | int]] = {}
        for total, key, entry in sorted(found, key=lambda f: -f[0]):  # stable: the older of equals stays first
            best.setdefault(key, (total, entry))
        first = list(best.items())[: self.config.replay_memory]
        self.kept = [e if isinstance(e, Kept) else self._entry(batch, e, key[1], total) for key, (total, e) in first]

    def _entry(self, batch: Batch, row: int, text: str, reward: float) -> Kept:
        rollout = batch.rollout.index(torch.tensor([row], device=batch.rollout.group.device))
        old = self._log_probs(rollout).cpu()
        return Kept(text, reward, batch.origins[row], rollout.to("cpu"), batch.rewards[[row]], old)

    @torch.no_grad()
    def _log_probs(self, rollout: Rollout) -> Float[Tensor, "1 step site"]:
        """Log π of every site by replay. Alone, so that where a site stands depends on no other row."""
        steps = torch.arange(rollout.num_steps, device=rollout.group.device)[None]
        pieces = steps.split(self.config.timestep_chunk or rollout.num_steps, 1)
        return torch.cat([score_sites(self.policy.sites(rollout, piece)).logp for piece in pieces], 1)

    def join(self, batch: Batch, generator: torch.Generator | None = None) -> list[Batch]:
        """For each group of a batch ``replay_samples`` of its condition at random, none twice; fewer if there are no more."""
        device = "cpu" if generator is None else generator.device
        alike: dict[tuple[Any, ...], list[tuple[Kept, int]]] = {}
        for group, origin in dict(zip(batch.rollout.group.tolist(), batch.origins, strict=True)).items():
            pool = [kept for kept in self.kept if kept.origin == origin]
            order = torch.randperm(len(pool), generator=generator, device=device)[: self.config.replay_samples]
            for k in order.tolist():
                alike.setdefault(pool[k].layout, []).append((pool[k], group))
        return [_batch(rows, batch.rollout.group.device) for rows in alike.values()]

    def state(self) -> list[dict[str, Any]]:
        """Tensors and plain values, for a checkpoint."""
        plain = ("text", "reward", "origin", "rewards", "old")
        return [{name: getattr(k, name) for name in plain} | {"rollout": rollout_state(k.rollout)} for k in self.kept]

    def load(self, state: Iterable[Mapping[str, Any]]) -> None:
        """What :meth:`state` gave; classes are built from this package and from the policy's own."""
        trusted = ("discrete_grpo", type(self.policy).__module__.split(".")[0])
        self.kept = [Kept(**{**s, "rollout": rollout_of(s["rollout"], trusted, torch.device("cpu"))}) for s in state]


def _batch(rows: Sequence[tuple[Kept, int]], device: torch.device) -> Batch:
    """Rows of one layout, each in its group."""
    ones = [kept.rollout for kept, _ in rows]
    rollout = Rollout(
        states={name: torch.cat([one.states[name] for one in ones]) for name in ones[0].states},
        group=torch.tensor([group for _, group in rows]),
        logp=torch.cat([one.logp for one in ones]),
        units=torch.cat([one.units for one in ones]),
        size=torch.cat([one.size for one in ones]),
        max_units=ones[0].max_units,
        max_steps=ones[0].max_steps,
        samples=(None,) * len(rows),
        columns={name: tuple(one.columns[name][0] for one in ones) for name in ones[0].columns},
    ).to(device)
    return Batch(
        rollout,
        rewards=torch.cat([kept.rewards for kept, _ in rows]),
        refined=torch.zeros(len(rows), dtype=torch.bool),
        origins=[kept.origin for kept, _ in rows],
        old=torch.cat([kept.old for kept, _ in rows]).to(device),
    )
