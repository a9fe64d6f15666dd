"""Pooling of the DiGress transformer: the nodes or pairs of a graph as mean, minimum, maximum and spread.

Source: Vignac et al. (2022), appendix B, arXiv 2209.14734, and the published code of the models named in :data:`Pooling`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["Pool", "Pooling", "pool_statistics", "run_checkpointed", "run_once"]

Pooling = Literal["padded", "variance", "biased_std", "masked"]
"""Fourth statistic of the nodes and pairs of a graph, beside mean, minimum and maximum.

* ``padded``: standard deviation over all places, padding included (DiGress, DeFoG); the logits depend on the padding;
* ``variance``: variance over the items that exist (DiGress's branch fixed_bug, MiDi);
* ``biased_std``: square root of that variance plus 1e-6 (Graph-GRPO);
* ``masked``: standard deviation over the items that exist, equal to ``padded`` wherever there is no padding.
"""

POOL_ELEMENTS = 1 << 17
"""Number of elements that are pooled at once; it is exceeded only where one graph has more."""


def run_once(job: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``job(*arguments)``; autograd keeps the intermediate results."""
    return job(*arguments)


def run_checkpointed(job: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``job(*arguments)``; autograd keeps the arguments only, and the backward pass runs ``job`` a second time."""
    if not torch.is_grad_enabled():
        return job(*arguments)
    return checkpoint(job, *arguments, use_reentrant=False, preserve_rng_state=False)


class Pool(nn.Module):
    """Linear map of the mean, minimum, maximum and spread of a set to the global width; parameters have the published names."""

    def __init__(self, width: int, global_width: int, pooling: Pooling) -> None:
        super().__init__()
        self.pooling = pooling
        self.lin = nn.Linear(4 * width, global_width)

    def forward(
        self, x: Float[Tensor, "batch item d"], mask: Bool[Tensor, "batch item"] | None, keep: bool
    ) -> Float[Tensor, "batch dy"]:
        """Pool the items of each graph.

        A few graphs are pooled at a time (:data:`POOL_ELEMENTS`).

        Args:
            x: items.
            mask: which items exist; None if all of them do, or if padding counts.
            keep: whether autograd keeps the intermediate results; otherwise it keeps ``x`` only and computes them twice.
        """
        graphs = max(1, POOL_ELEMENTS // x[0].numel())
        masks = [None] * len(x) if mask is None else mask.split(graphs)
        run = run_once if keep else run_checkpointed
        parts = [run(self._summary, part, there) for part, there in zip(x.split(graphs), masks, strict=False)]
        return self.lin(torch.cat(parts))

    def _summary(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return torch.cat(pool_statistics(x, mask, self.pooling), -1)


def pool_statistics(
    x: Float[Tensor, "batch item d"], mask: Bool[Tensor, "batch item"] | None, pooling: Pooling
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, minimum, maximum and spread over the items; the deviation of a single item is 0 (NaN in the published code)."""
    if mask is None:
        count: Tensor | int = x.shape[1]
        mean, low, high = x.mean(1), x.amin(1), x.amax(1)
        squares = (x - mean.unsqueeze(1)).square().sum(1)
    else:
        there = mask.unsqueeze(-1)
        count = mask.sum(1, keepdim=True)
        mean = (x * there).sum(1) / count
        low, high = x.masked_fill(~there, torch.inf).amin(1), x.masked_fill(~there, -torch.inf).amax(1)
        squares = ((x - mean.unsqueeze(1)) * there).square().sum(1)
    if pooling == "variance":
        return mean, low, high, squares / count
    if pooling == "biased_std":
        return mean, low, high, (squares / count + 1e-6).sqrt()
    less = max(count - 1, 1) if isinstance(count, int) else (count - 1).clamp_min(1)
    spread = torch.where(squares > 0, squares, 1.0).div(less).sqrt()  # a root at 0 would have an infinite gradient
    return mean, low, high, torch.where(squares > 0, spread, 0.0)
