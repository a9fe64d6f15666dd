"""What a checkpoint must say of a policy, so that its samples can be decoded again: kept on the policy itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

__all__ = ["describe", "description"]

P = TypeVar("P")


def describe(policy: P, metadata: Mapping[str, Any]) -> P:
    """Keep ``metadata`` on a policy, or on the one that it wraps, and return the policy.

    Args:
        policy: a policy; a wrapper has the other one as its attribute ``policy``.
        metadata: JSON values, such as ``kind`` and ``statistics``; they are stored with every checkpoint of the policy.
    """
    _innermost(policy).sample_metadata = dict(metadata)
    return policy


def description(policy: Any) -> dict[str, Any]:
    """The metadata that :func:`describe` kept on a policy; empty for any other.

    >>> class Policy: ...
    >>> description(describe(Policy(), {"kind": "text"})), description(Policy())
    ({'kind': 'text'}, {})
    """
    found = getattr(_innermost(policy), "sample_metadata", None)
    return dict(found) if isinstance(found, Mapping) else {}


def _innermost(policy: Any) -> Any:
    while hasattr(policy, "policy"):
        policy = policy.policy
    return policy
