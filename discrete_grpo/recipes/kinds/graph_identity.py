"""Graphs that are equal if they are isomorphic, so that a set of them has one of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from discrete_grpo.domains.isomorphism import Form, isomorphic
from discrete_grpo.domains.named_graphs import labelled_form

__all__ = ["UpToIsomorphism", "graph_identity"]


class UpToIsomorphism:
    """A graph that is equal to all isomorphic ones, and to those of which the test was given up: nothing is counted twice.

    >>> from discrete_grpo.domains.isomorphism import form
    >>> len({UpToIsomorphism(form(line)) for line in ("Bg", "BW", "Bw")})
    2
    """

    def __init__(self, form: Form) -> None:
        self.form = form

    def __eq__(self, other: object) -> bool:
        """Whether the graphs are isomorphic, or may be."""
        return isinstance(other, UpToIsomorphism) and isomorphic(self.form, other.form) is not False

    def __hash__(self) -> int:
        """The hash of the key that isomorphic graphs share."""
        return hash(self.form.key)


def graph_identity(fits: Callable[[Any], bool]) -> Callable[[Any], UpToIsomorphism | None]:
    """The ``identity`` of a family of graphs of which those that ``fits`` accepts are valid; classes are compared too."""
    return lambda sample: UpToIsomorphism(labelled_form(sample)) if fits(sample) else None
