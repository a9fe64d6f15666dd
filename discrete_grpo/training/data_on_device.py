"""Training sets that fit a GPU are kept there, one byte per class, so that the host sends row numbers alone.

A batch of 64 graphs of 64 nodes is 2 MB once its edges are written out as int64, and an update of a small network waits for the
host that writes them.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["MOST_BYTES", "MemoryDataset", "data_on_device"]

MOST_BYTES = 1 << 30
"""Bytes of the largest training set that is kept on a GPU."""


@runtime_checkable
class MemoryDataset(Protocol):
    """A data set in memory, of one byte per class, that can make its batches on another device."""

    @property
    def sizes(self) -> Tensor:
        """A measure of length or graph size [M]."""
        ...

    @property
    def nbytes(self) -> int:
        """Number of bytes that are moved."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def batch(self, rows: Tensor) -> Any:
        """The samples at ``rows``, which is on the CPU, on the device of the set."""
        ...

    def to(self, device: torch.device) -> MemoryDataset:
        """The same set on ``device``."""
        ...


def data_on_device(data: Any, policy: Any, device: torch.device, batch_size: int) -> MemoryDataset | None:
    """Move a training set to a GPU, after every sample of it is checked: a look at a batch on the GPU would make the host wait.

    Args:
        data: the training set, on the CPU.
        policy: may have a method ``check_batch``, which raises ValueError for a batch that it cannot be trained on.
        device: where the policy is trained.
        batch_size: number of samples that are checked at once, since no more of them need to fit in memory.

    Returns:
        The set on ``device``; None if batches are to be moved one by one, because ``device`` is the CPU, the set is no
        :class:`MemoryDataset`, or it has more than ``MOST_BYTES`` bytes.
    """
    if device.type == "cpu" or not isinstance(data, MemoryDataset) or data.nbytes > MOST_BYTES:
        return None
    if (check := getattr(policy, "check_batch", None)) is not None:
        for rows in torch.argsort(data.sizes, descending=True).split(batch_size):
            check(data.batch(rows))
    return data.to(device)
