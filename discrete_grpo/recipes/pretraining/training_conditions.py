"""Conditions of training samples, under which a policy that draws nothing without conditions is measured."""

from __future__ import annotations

import math
from typing import Any

import torch

from discrete_grpo.core.description import innermost
from discrete_grpo.domains.tokenizer import Property
from discrete_grpo.training.pretrain import Dataset

__all__ = ["always_conditioned", "training_conditions"]

ROWS = 1024
"""Number of training samples that are read at a time."""


def always_conditioned(policy: Any) -> bool:
    """Whether a policy reads a prompt or properties of which none were hidden in its training, so that it draws nothing without."""
    inner = innermost(policy)
    reads = getattr(inner, "prompt", None) is not None or bool(getattr(inner, "properties", ()))
    return reads and getattr(inner, "condition_dropout", None) == 0


def training_conditions(policy: Any, data: Dataset, count: int) -> list[dict[str, Any]] | None:
    """Conditions of ``count`` training samples in the form that the policy reads; None for a policy that draws without any.

    They are those of the first samples that have a value of every property; there are fewer than ``count`` if fewer samples have.

    Args:
        policy: the policy.
        data: its training data, with prompts and properties if it reads them.
        count: number of conditions; None is returned for 0.

    Raises:
        ValueError: if no sample has a value of every property.
    """
    if not count or not always_conditioned(policy):
        return None
    inner, found = innermost(policy), list[dict[str, Any]]()
    for first in range(0, len(data), ROWS):
        found += _complete(inner, data.batch(torch.arange(first, min(first + ROWS, len(data)))))
        if len(found) >= count:
            return found[:count]
    if not found:
        names = ", ".join(one.name for one in inner.properties)
        raise ValueError(f"properties: no training sample has all of {names}, expected some, or evaluation_samples 0")
    return found


def _complete(policy: Any, batch: Any) -> list[dict[str, Any]]:
    """The conditions of those samples of a batch that have all of them."""
    prompts = _prompts(policy, batch) if getattr(policy, "prompt", None) is not None else [{}] * len(batch)
    values = _values(policy.properties, batch) if policy.properties else [{}] * len(batch)
    return [{**prompt, **row} for prompt, row in zip(prompts, values, strict=True) if not any(map(math.isnan, row.values()))]


def _prompts(policy: Any, batch: Any) -> list[dict[str, str]]:
    rows = [[]] * len(batch) if batch.prompt is None else batch.prompt.tolist()  # a scaffold is empty without a ring
    return [{policy.prompt: policy.tokenizer.decode(row)} for row in rows]


def _values(properties: tuple[Property, ...], batch: Any) -> list[dict[str, float]]:
    """The values of properties in their own units."""
    mean, std = (torch.tensor([getattr(one, part) for one in properties], dtype=torch.float64) for part in ("mean", "std"))
    raw = batch.properties.double() * std + mean
    return [dict(zip([one.name for one in properties], row, strict=True)) for row in raw.tolist()]
