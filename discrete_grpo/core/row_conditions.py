"""Conditions of one sample, given as keyword arguments to a function of one sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from discrete_grpo.core.checks import check_columns, signature_of

__all__ = ["RowConditions"]

_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class RowConditions:
    """The conditions that a function of one sample reads: its parameters after the first, by their names.

    Attributes:
        required: names of the parameters without a default.
        optional: names of those with a default.
        every: whether it takes any other condition too, as ``**conditions``.
    """

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    every: bool = False

    @classmethod
    def of(cls, function: Callable[..., Any]) -> RowConditions:
        """Read them from the signature of a function; none for a function without one, as some written in C.

        >>> def score(mol, logP, weight=1.0): ...
        >>> RowConditions.of(score)
        RowConditions(required=('logP',), optional=('weight',), every=False)
        """
        if (signature := signature_of(function)) is None:
            return cls()
        named = [p for p in list(signature.parameters.values())[1:] if p.kind in _KEYWORDS and p.name != "samples"]
        required = tuple(p.name for p in named if p.default is inspect.Parameter.empty)
        every = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
        return cls(required, tuple(p.name for p in named if p.name not in required), every)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return (*self.required, *self.optional)

    @property
    def signature(self) -> inspect.Signature:
        """Signature of a reward of several samples that reads the conditions from its columns."""
        rest = "columns"
        while rest in self.names:
            rest += "_"
        keyword, absent = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
        named = [inspect.Parameter(name, keyword, default=absent if name in self.required else None) for name in self.names]
        first = inspect.Parameter("samples", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return inspect.Signature([first, *named, inspect.Parameter(rest, inspect.Parameter.VAR_KEYWORD)])

    def rows(self, columns: Mapping[str, Sequence[Any]], count: int) -> list[dict[str, Any]]:
        """Return the keyword arguments for each of ``count`` samples.

        A condition that a sample does not have, which is None in a column, is left out, so that the default of the function
        applies; only a parameter without a default is given None.

        Raises:
            ValueError: if a column that is read has another length.

        >>> RowConditions(("logP",), ("size",)).rows({"logP": [1.0, None], "size": [None, 3], "label": [7, 8]}, 2)
        [{'logP': 1.0}, {'logP': None, 'size': 3}]
        """
        read = {name: values for name, values in columns.items() if self.every or name in self.names}
        check_columns(read, count)
        given = ({name: values[k] for name, values in read.items()} for k in range(count))
        return [{name: v for name, v in row.items() if v is not None or name in self.required} for row in given]
