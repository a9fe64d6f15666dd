"""Node counts of good samples, requested from a graph policy in optimisation in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.rollout import Context, is_replayable
from discrete_grpo.training.memory import ScoredMemory, rank_weights

__all__ = ["RememberedSizes"]


@dataclass(frozen=True)
class RememberedSizes:
    """Makes contexts for a graph policy, a share of which request about as many nodes as good samples have.

    With probability ``share`` a draw has n = n_i + d nodes, where n_i is the node count of a sample i drawn from the memory by rank
    and d is uniform in {-``spread``, ..., ``spread``}; if n has no mass under the policy, it has n_i. Otherwise the policy
    draws the node count as usual. Without this, a policy with the node counts of its training data would keep drawing sizes at
    which no good sample was found.

    Attributes:
        policy: a graph policy with ``graphs_of`` and ``can_draw``, whose contexts may have a column ``num_nodes``.
        share: probability of such a request, in [0, 1].
        spread: largest |d|, at least 0.
        rank_coefficient: k of :func:`~discrete_grpo.training.memory.rank_weights`.

    Raises:
        ValueError: for a policy without node counts, or a number out of its range.
    """

    policy: Any
    share: float = 0.5
    spread: int = 1
    rank_coefficient: float = 0.01

    def __post_init__(self) -> None:
        if not (is_replayable(self.policy) and hasattr(self.policy, "graphs_of") and hasattr(self.policy, "node_counts")):
            wanted = "expected a graph policy with graphs_of, can_draw and node_counts"
            raise ValueError(f"policy: {type(self.policy).__name__}, {wanted}")
        check_range("share", self.share, least=0, most=1)
        check_whole("spread", self.spread, least=0)
        check_range("rank_coefficient", self.rank_coefficient, above=0)

    def __call__(self, memory: ScoredMemory, count: int, generator: torch.Generator) -> list[Context]:
        """Return ``count`` contexts, each a group of its own."""
        known = [entry.sample for entry in memory.kept if self.policy.can_draw(entry.sample)]
        if not known:
            return [Context(k) for k in range(count)]
        weights = rank_weights(len(known), self.rank_coefficient).to(generator.device, torch.float32)
        rows = torch.multinomial(weights, count, replacement=True, generator=generator).tolist()
        moved = torch.randint(-self.spread, self.spread + 1, (count,), generator=generator, device=generator.device).tolist()
        asked = (torch.rand(count, generator=generator, device=generator.device) < self.share).tolist()
        sizes = self._sizes([known[k] for k in rows])
        return [
            Context(k, {"num_nodes": self._near(size, by)} if on else {})
            for k, (size, by, on) in enumerate(zip(sizes, moved, asked, strict=True))
        ]

    def _sizes(self, samples: Sequence[Any]) -> list[int]:
        found: list[int] = self.policy.graphs_of(samples).sizes.tolist()
        return found

    def _near(self, size: int, by: int) -> int:
        counts = self.policy.node_counts
        return size + by if 0 < size + by < len(counts) and counts[size + by] > 0 else size
