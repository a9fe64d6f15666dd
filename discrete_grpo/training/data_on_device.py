"""Keeps a training set on the GPU if it fits, with one byte per class, so that the host sends only row numbers.

A batch of 64 graphs of 64 nodes takes 2 MB once its edges are expanded to int64, and an update of a small network would wait
for the host to expand them.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

__all__ = ["MOST_BYTES", "MemoryDataset", "data_on_device", "in_memory"]

MOST_BYTES = 1 << 30
"""Bytes of the largest training set that is kept on a GPU."""


class MemoryDataset(Protocol):
    """An in-memory data set with one byte per class that can form its batches on another device."""

    @property
    def sizes(self) -> Tensor:
        """A measure of length or graph size [M]."""
        ...

    @property
    def nbytes(self) -> int:
        """Number of bytes that :meth:`to` moves."""
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


def in_memory(data: Any) -> TypeGuard[MemoryDataset]:
    """Whether a data set is a :class:`MemoryDataset`; a property that raises AttributeError is not there."""
    return all(hasattr(data, name) for name in ("sizes", "nbytes", "batch", "to"))


def data_on_device(data: Any, policy: Any, device: torch.device, batch_size: int) -> MemoryDataset | None:
    """Check every sample of a training set and move it to a GPU; checks of batches on the GPU would make the host wait.

    Args:
        data: the training set, on the CPU.
        policy: policy to train; its method ``check_batch``, if any, raises ValueError for a batch that it cannot be trained on.
        device: where the policy is trained.
        batch_size: number of samples that are checked at once; only so many need to fit in memory.

    Returns:
        The set on ``device``; None if batches must be moved one by one, because ``device`` is the CPU, the set is not a
        :class:`MemoryDataset`, or it has more than ``MOST_BYTES`` bytes.
    """
    if device.type == "cpu" or not in_memory(data) or data.nbytes > MOST_BYTES:
        return None
    if (check := getattr(policy, "check_batch", None)) is not None:
        for rows in torch.argsort(data.sizes, descending=True).split(batch_size):
            check(data.batch(rows))
    return data.to(device)
