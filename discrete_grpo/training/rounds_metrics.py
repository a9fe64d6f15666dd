"""Numbers of a round of the loop over rounds, as its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from discrete_grpo.core.reward_arguments import reward_names

if TYPE_CHECKING:
    from discrete_grpo.training.rounds import Rounds

__all__ = ["rounds_metrics"]


def rounds_metrics(loop: Rounds) -> dict[str, float]:
    """Numbers of the last round and of the memory.

    ``reward`` is the mean of what the round scored, ``rewards/NAME/mean`` that by each of several rewards, ``valid`` and ``new``
    are shares of the policy's draws, ``best/top1`` and ``best/top10`` the best score of the run and the mean of the ten best,
    ``memory`` the samples in it, ``learned`` the samples of the round's updates, each counted as often as it was learned from.
    """
    known = [entry.score for entry in loop.everything.kept[:10]]
    found = {"valid": sum(key is not None for key, _ in loop.draws) / max(1, len(loop.draws)), "new": loop.new_share}
    if loop.latest:
        found["reward"] = sum(entry.score for entry in loop.latest) / len(loop.latest)
        found |= _component_means(loop)
    if known:
        found |= {"best/top1": known[0], "best/top10": sum(known) / len(known)}
    found["learned"] = float(sum(loop.learned))
    return found | {"memory": float(len(loop.memory)), "restarts": float(loop.progress.restarts)}


def _component_means(loop: Rounds) -> dict[str, float]:
    """The mean of the known scores of the last round by each of several rewards."""
    if len(loop.rewards) == 1:
        return {}
    scores = torch.tensor([loop.scores_of[entry.key] for entry in loop.latest], dtype=torch.float64)
    return {f"rewards/{name}/mean": float(scores[:, k].nanmean()) for k, name in enumerate(reward_names(loop.rewards))}
