"""The rows of a training batch that a process computes, and means over the whole batch.

The loss of likelihood training is made of means over the nodes, pairs or tokens of a batch. Where several processes share a batch,
each computes the means over its own rows. They have different numbers of sites, so a mean of the processes' means is not the mean
over the batch; each has to be weighed by its share of the sites.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

__all__ = ["WHOLE", "BatchShare", "Mean", "WholeBatch", "cross_entropy", "mean_of"]

Mean: TypeAlias = tuple[Tensor, Tensor]
"""A mean over sites, and the number of sites as a scalar of the same device; the mean is 0 without any site."""


@runtime_checkable
class BatchShare(Protocol):
    """The share that a process has in a batch: an argument of the ``likelihood_loss`` of a policy.

    Random numbers are drawn for the whole batch, from a generator that is in the same state in all processes; each process then
    computes its own rows. Every term of the loss goes through :meth:`means`, in one call per batch.
    """

    @property
    def own(self) -> slice:
        """Rows of the batch that this process computes, at least one."""
        ...

    def means(self, *own: Mean) -> tuple[Tensor, ...]:
        """The means over the sites of the whole batch, given those of this process; 0 without a gradient where there is no site.

        The gradient is that of this process's part, (n_process / n_batch) mean_process, so that the gradients of any function
        of the means add up to that of one process.
        """
        ...


class WholeBatch:
    """The share of a process that computes all rows.

    >>> import torch
    >>> [float(m) for m in WHOLE.means((torch.tensor(1.5), torch.tensor(4)))]
    [1.5]
    """

    own = slice(None)

    def means(self, *own: Mean) -> tuple[Tensor, ...]:
        """The means as they are."""
        return tuple(mean for mean, _ in own)


WHOLE = WholeBatch()
IGNORED = -100
"""Class number that stands for the class of a site that does not exist."""


def mean_of(values: Float[Tensor, "*site"], exists: Bool[Tensor, "*site"] | None = None) -> Mean:
    """Mean of the values, or of those under the mask, and their number, without synchronising with a GPU.

    >>> import torch
    >>> [float(x) for x in mean_of(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False]))]
    [1.5, 2.0]
    """
    if exists is None:
        mean = values.mean() if values.numel() else values.sum()
        return mean, torch.full((), values.numel(), device=values.device)
    count = exists.sum()
    return torch.where(exists, values, 0.0).sum() / count.clamp(min=1), count


def cross_entropy(logits: Float[Tensor, "*site class"], classes: Int[Tensor, " *site"], exists: Bool[Tensor, " *site"]) -> Mean:
    """Mean of -log softmax(logits)[class] over the existing sites, and their number, without synchronising with a GPU.

    >>> import torch
    >>> classes = torch.tensor([[0, 1]])
    >>> mean, count = cross_entropy(torch.zeros(1, 2, 4), classes, classes > 0)
    >>> round(float(mean.exp()), 6), int(count)
    (4.0, 1)
    """
    known = torch.where(exists[..., None], logits, 0.0)  # logits of padding may have any value, also -inf
    wanted = torch.where(exists, classes, IGNORED)
    total = nn.functional.cross_entropy(known.flatten(0, -2), wanted.flatten(), ignore_index=IGNORED, reduction="sum")
    count = exists.sum()
    return total / count.clamp(min=1), count
