"""Hints for the errors of rewards that expect other samples than they are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["count_hint", "error_hint"]

LIST = "; it is given a list of samples (discrete_grpo.molecule_reward makes a reward of a function of one molecule)"


def error_hint(error: BaseException, samples: Sequence[Any]) -> str:
    """Return a hint for an error that a reward raised, or an empty text.

    There is one for rewards that take the list of samples for one sample, an invalid sample (None) for a valid one, or the text of
    a molecule or graph for an object.

    >>> try:
    ...     "CCO".GetNumAtoms()
    ... except AttributeError as error:
    ...     error_hint(error, ["CCO"])
    "; samples are text, such as 'CCO': molecule_reward passes RDKit molecules; rewards_see in train, or a GraphView, passes graphs"
    """
    if not isinstance(error, TypeError | AttributeError):
        return ""
    said = str(error)
    if any(sign in said for sign in ("'list' object", "not list", "(list)", "(list,")):  # the last two as RDKit says it
        return LIST
    if "NoneType" in said and any(sample is None for sample in samples):
        return "; a sample that is invalid is None, and its score may be None or a number"
    text, failed = next((sample for sample in samples if isinstance(sample, str)), ""), getattr(error, "obj", None)
    if text and ("(str)" in said or "(str," in said or (isinstance(failed, str) and failed in samples)):
        shown = f"{text[:40]}..." if len(text) > 40 else text
        passes = "molecule_reward passes RDKit molecules; rewards_see in train, or a GraphView, passes graphs"
        return f"; samples are text, such as {shown!r}: {passes}"
    return ""


def count_hint(values: Any) -> str:
    """Return a hint for a result that is not one number per sample, or an empty text: one number may be meant for one sample.

    >>> count_hint(0.5)
    '; it is given a list of samples (discrete_grpo.molecule_reward makes a reward of a function of one molecule)'
    >>> count_hint({"CCO": 0.5})
    ''
    """
    return LIST if hasattr(values, "__float__") else ""
