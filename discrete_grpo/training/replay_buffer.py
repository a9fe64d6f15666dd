"""Replay of good samples: the best unique ones of a run, with their trajectories and the log-probs they were drawn with.

They join the groups of later generations as rows drawn by an older policy: no reward is called again, and their ratio is
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
from discrete_grpo.runs.recorder import text_of
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.elites import best_unique
from discrete_grpo.training.minibatches import Batch
from discrete_grpo.training.rollout_queue import rollout_of, rollout_state

__all__ = ["ReplayBuffer", "ReplayedSample"]


@dataclass(frozen=True)
class ReplayedSample:
    """A sample that is trained on again; its tensors are on the CPU.

    Attributes:
        text: identity of the sample, together with its condition.
        reward: its total reward.
        origin: number of the condition it was drawn under; None without conditions.
        rollout: its trajectory, one row.
        rewards: one column per reward.
        old: log π_old of each site of each step.
    """

    text: str
    reward: float
    origin: int | None
    rollout: Rollout
    rewards: Float[Tensor, "1 reward"]
    old: Float[Tensor, "1 step site"]

    @property
    def layout(self) -> tuple[Any, ...]:
        """Key of rows that can share a rollout: in it, their sites have the same positions as when each row is scored alone."""
        one = self.rollout
        shapes = tuple((name, value.shape) for name, value in one.states.items())
        return shapes, one.logp.shape, int(one.size), tuple(one.columns)


class ReplayBuffer:
    """The best unique samples drawn, best first; ties go to the older one.

    Args:
        policy: policy that draws the samples.
        config: settings, with the size of the buffer and the number of samples that join each group.
    """

    def __init__(self, policy: Policy, config: GRPOConfig) -> None:
        self.policy, self.config = policy, config
        self.kept: list[ReplayedSample] = []

    def add(self, batch: Batch, reward: Float[Tensor, " batch"]) -> None:
        """Add the samples of a batch that are among the best; the policy must not have changed since it drew them.

        Unknown rewards (NaN) and invalid samples (None) are skipped.
        """
        entries: list[tuple[tuple[int | None, str], float, ReplayedSample | int]] = []
        entries += [((sample.origin, sample.text), sample.reward, sample) for sample in self.kept]
        for b, (total, drawn) in enumerate(zip(reward.tolist(), batch.rollout.samples, strict=True)):
            if total == total and drawn is not None:
                entries.append(((batch.origins[b], text_of(drawn)), total, b))
        best = best_unique(entries, self.config.replay_memory)
        self.kept = [e if isinstance(e, ReplayedSample) else self._stored(batch, e, float(reward[e])) for e in best]

    def _stored(self, batch: Batch, row: int, reward: float) -> ReplayedSample:
        rollout = batch.rollout.index(torch.tensor([row], device=batch.rollout.group.device))
        old = self._log_probs(rollout).cpu()
        text = text_of(batch.rollout.samples[row])
        return ReplayedSample(text, reward, batch.origins[row], rollout.to("cpu"), batch.rewards[[row]], old)

    @torch.no_grad()
    def _log_probs(self, rollout: Rollout) -> Float[Tensor, "1 step site"]:
        """Log π of each site. The row is scored alone, so that the positions of its sites depend on no other row."""
        steps = torch.arange(rollout.num_steps, device=rollout.group.device)[None]
        pieces = steps.split(self.config.passes[1] or rollout.num_steps, 1)
        return torch.cat([score_sites(self.policy.sites(rollout, piece)).logp for piece in pieces], 1)

    def join(self, batch: Batch, generator: torch.Generator | None = None) -> list[Batch]:
        """Draw up to ``replay_samples`` distinct samples for each group of ``batch``, all of the condition of the group."""
        device = "cpu" if generator is None else generator.device
        alike: dict[tuple[Any, ...], list[tuple[ReplayedSample, int]]] = {}
        for group, origin in dict(zip(batch.rollout.group.tolist(), batch.origins, strict=True)).items():
            pool = [kept for kept in self.kept if kept.origin == origin]
            order = torch.randperm(len(pool), generator=generator, device=device)[: self.config.replay_samples]
            for k in order.tolist():
                alike.setdefault(pool[k].layout, []).append((pool[k], group))
        return [_batch(rows, batch.rollout.group.device) for rows in alike.values()]

    def state(self) -> list[dict[str, Any]]:
        """The buffer as tensors and plain values, for a checkpoint."""
        plain = ("text", "reward", "origin", "rewards", "old")
        return [{name: getattr(k, name) for name in plain} | {"rollout": rollout_state(k.rollout)} for k in self.kept]

    def load(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Restore the result of :meth:`state`; only classes of this package and of the policy's package are built."""
        trusted = ("discrete_grpo", type(self.policy).__module__.split(".")[0])
        self.kept = [ReplayedSample(**{**s, "rollout": rollout_of(s["rollout"], trusted, torch.device("cpu"))}) for s in state]


def _batch(rows: Sequence[tuple[ReplayedSample, int]], device: torch.device) -> Batch:
    """A batch of samples of one layout, each in the group given with it."""
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
