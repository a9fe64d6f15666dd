"""A cache of the tables of the reference policy, computed once per generation if several passes are made over it."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.categorical import SiteKind, Sites
from discrete_grpo.core.gaussian import GaussianSites
from discrete_grpo.core.rollout import Policy, Rollout, is_scorer
from discrete_grpo.training.config import GRPOConfig

__all__ = ["MAX_BYTES", "ReferenceTables", "reference_tables"]

MAX_BYTES = 512 * 1024**2
"""Most bytes of tables that are kept; those of further micro-batches are computed in every pass."""


def reference_tables(policy: Policy, reference: Policy | None, config: GRPOConfig) -> ReferenceTables | None:
    """Create the cache of a run; None if tables are needed only once, or for a policy that computes its own scores."""
    wanted = config.num_iterations > 1 and not is_scorer(policy)
    return ReferenceTables(reference) if reference is not None and wanted else None


class ReferenceTables:
    """Caches ``sites`` of a frozen reference for micro-batches that are scored again.

    With ``num_iterations`` > 1 each micro-batch of a generation is scored that many times, and the reference gives the same tables
    each time.

    Args:
        reference: the reference policy.
        max_bytes: most bytes of tables that are kept.
    """

    def __init__(self, reference: Policy, max_bytes: int = MAX_BYTES) -> None:
        self.reference, self.max_bytes = reference, max_bytes
        self.bytes = 0
        # the rollout and the steps are kept with their tables, so that no other object can have their ids meanwhile
        self._kept: dict[tuple[int, int], tuple[Rollout, Tensor, Sequence[SiteKind]]] = {}

    def sites(self, rollout: Rollout, steps: Int[Tensor, "batch step"]) -> Sequence[SiteKind]:
        """The distributions of the reference at these steps; a cached result needs the same two objects, not equal ones."""
        key = (id(rollout), id(steps))
        if key in self._kept:
            return self._kept[key][-1]
        found = self.reference.sites(rollout, steps)
        known = all(isinstance(part, Sites | GaussianSites) for part in found)  # kinds of others may hold more than their fields
        size = sum(value.nbytes for part in found for value in vars(part).values() if isinstance(value, Tensor)) if known else 0
        if known and self.bytes + size <= self.max_bytes:
            self._kept[key] = (rollout, steps, found)
            self.bytes += size
        return found

    def clear(self) -> None:
        """Forget all tables: the generation is used up, or the reference has moved."""
        self._kept.clear()
        self.bytes = 0
