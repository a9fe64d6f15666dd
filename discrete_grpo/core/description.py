"""Metadata that a checkpoint stores about a policy to decode its samples, kept as an attribute of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

__all__ = ["attach_metadata", "description", "innermost"]

P = TypeVar("P")


def attach_metadata(policy: P, metadata: Mapping[str, Any]) -> P:
    """Attach ``metadata`` to a policy, or to the one that it wraps, and return the policy.

    Args:
        policy: a policy; a wrapper has the inner policy as its attribute ``policy``.
        metadata: JSON values, such as ``kind`` and ``statistics``; they are stored with every checkpoint of the policy.
    """
    innermost(policy).sample_metadata = dict(metadata)
    return policy


def description(policy: Any) -> dict[str, Any]:
    """Return the metadata that :func:`attach_metadata` attached to a policy; empty if there is none.

    >>> class Policy: ...
    >>> description(attach_metadata(Policy(), {"kind": "text"})), description(Policy())
    ({'kind': 'text'}, {})
    """
    found = getattr(innermost(policy), "sample_metadata", None)
    return dict(found) if isinstance(found, Mapping) else {}


def innermost(policy: Any) -> Any:
    """The policy inside all wrappers, or ``policy`` itself; a wrapper keeps the other one as its attribute ``policy``."""
    while hasattr(policy, "policy"):
        policy = policy.policy
    return policy
