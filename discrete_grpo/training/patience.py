"""Patience on the ledger: ends the run, or restores the initial weights, if the policy draws only samples that were scored before.

Such a policy has collapsed: its updates spend no calls, so a budget of calls would never end the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from discrete_grpo.core.scoring import Accounts
from discrete_grpo.training.config import GRPOConfig

__all__ = ["Patience", "calls_made", "changing_weights", "new_patience"]


class Patience:
    """Counts updates without a new call of the ledger, and keeps the weights that a restart restores.

    A generation with at most ``few`` new calls adds all its updates to the count when they are made; any other one sets the count
    to 0. If a restart brought no new call at all, the run ends, as another restart would bring none either. The numbers come from
    metrics that all processes share, so that all reach the same decision.

    Args:
        limit: number of updates without a new call after which the policy is stale, at least 1.
        weights: result of :func:`changing_weights`, whose current values a restart restores; None if a stale policy ends the run.
        few: largest number of new calls of a generation that is still treated as no new call.

    >>> patience = Patience(2)
    >>> for new_calls in (3, 0, 0):
    ...     patience.count(new_calls, updates=1)
    >>> patience.stale, patience.ends
    (2, True)
    """

    def __init__(self, limit: int, weights: Sequence[Tensor] | None = None, few: float = 0.0) -> None:
        self.limit, self.few, self.stale, self.restarts = limit, few, 0, 0
        self.brought: float | None = None  # new calls since the last restart; None before the first
        self.first = None if weights is None else [w.detach().clone() for w in weights]

    @property
    def ends(self) -> bool:
        """Whether the run ends here, as the policy is stale and a restart would not help."""
        return self.stale >= self.limit and (self.first is None or self.brought == 0)

    @property
    def restarts_now(self) -> bool:
        """Whether the initial weights are restored before the policy draws again."""
        return self.stale >= self.limit and not self.ends

    def count(self, new_calls: float, updates: int) -> None:
        """Count the updates of a generation that brought ``new_calls`` new calls."""
        self.stale = 0 if new_calls > self.few else self.stale + updates
        if self.brought is not None:
            self.brought += new_calls

    def metrics(self) -> dict[str, float]:
        """``oracle/patience``, the updates without a new call that are left, and ``oracle/restarts`` where there can be any."""
        left = {"oracle/patience": float(max(0, self.limit - self.stale))}
        return left if self.first is None else left | {"oracle/restarts": float(self.restarts)}

    @torch.no_grad()
    def restart(self, weights: Sequence[Tensor], optimizer: Any) -> None:
        """Restore the initial weights and reset the moments of their optimizer."""
        for weight, first in zip(weights, self.first or (), strict=True):
            weight.copy_(first)
        optimizer.state.clear()
        self.stale, self.restarts, self.brought = 0, self.restarts + 1, 0.0

    def begin_here(self, weights: Sequence[Tensor]) -> None:
        """Make the current weights those that a restart restores."""
        if self.first is not None:
            self.first = [w.detach().clone() for w in weights]

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {"stale": self.stale, "restarts": self.restarts, "brought": self.brought, "first": self.first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.stale, self.restarts = int(state["stale"]), int(state["restarts"])
        self.brought = state.get("brought")  # checkpoints of earlier versions have none
        if self.first is not None and state["first"] is not None:
            kept = [*state["first"], *self.first[len(state["first"]) :]]  # earlier checkpoints lack the buffers
            self.first = [first.to(own) for own, first in zip(self.first, kept, strict=True)]


def changing_weights(module: nn.Module) -> list[Tensor]:
    """The tensors that training changes: trained parameters, and buffers in the state dict, such as a histogram of node counts."""
    kept = module.state_dict(keep_vars=True).keys()
    trained = [p for p in module.parameters() if p.requires_grad]
    return [*trained, *(buffer for name, buffer in module.named_buffers() if name in kept)]


def new_patience(config: GRPOConfig, ledger: Accounts | None, module: nn.Module) -> Patience | None:
    """Create the patience that ``config`` sets; None if it sets none.

    Raises:
        ValueError: if there is no ledger whose calls could be counted.
    """
    if config.patience is None:
        return None
    if calls_made(ledger) is None:
        raise ValueError(f"patience: {config.patience}, expected None without a ledger that counts calls (ledger=...)")
    weights = changing_weights(module) if config.when_stale == "restart" else None
    return Patience(config.patience, weights, config.patience_threshold * config.generation_batch_size)


def calls_made(ledger: Accounts | None) -> float | None:
    """Number of calls that a ledger counted, its metric ``oracle/calls``; None without such a ledger."""
    return None if ledger is None else ledger.metrics().get("oracle/calls")
