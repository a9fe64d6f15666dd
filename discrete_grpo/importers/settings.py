"""Settings that the checkpoint of another program states, and facts about a model with their origins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.importers.lightning import plain
from discrete_grpo.runs.checkpoint import CheckpointError

__all__ = ["Fact", "Settings", "brief", "check_heads", "hyper_parameters"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Fact(Generic[_T]):
    """Value and its origin: ``option``, ``file``, ``published``, ``shapes``, ``assumed`` or the name of a data set."""

    value: _T
    origin: str

    @property
    def text(self) -> tuple[str, str]:
        """Value in words and origin."""
        return f"{self.value:g}" if isinstance(self.value, float) else str(self.value), self.origin


@dataclass(frozen=True)
class Settings:
    """Stored configuration of a checkpoint: groups of named values.

    Attributes:
        path: path of the file, for messages.
        values: groups; empty where the file states nothing.
    """

    path: object
    values: Mapping[str, Any]

    @staticmethod
    def of(content: Any, path: object) -> Settings:
        """Read the configuration that Lightning stores as ``cfg``, or as the hyper-parameters themselves."""
        hyper = hyper_parameters(content)
        values = hyper.get("cfg", hyper)
        return Settings(path, values if isinstance(values, Mapping) else {})

    def get(self, group: str, name: str) -> Any:
        """Return a stored value; None where there is none."""
        found = self.values.get(group)
        return found.get(name) if isinstance(found, Mapping) else None

    def number(self, given: float | None, group: str, name: str, otherwise: float, origin: str = "published") -> Fact[float]:
        """Return an option if it is given, else a stored number, else ``otherwise``.

        Raises:
            CheckpointError: if what is stored is no finite number.
            ValueError: naming the option ``name``, if what is given is none.
        """
        if given is not None:
            check_range(name, given)
            return Fact(given, "option")
        stored = self.get(group, name)
        if stored is None:
            return Fact(otherwise, origin)
        if isinstance(stored, Tensor) and stored.numel() == 1:
            stored = stored.item()
        if stored == {}:  # what is left of an object, such as a NumPy number
            raise CheckpointError(f"path: {self.path} stores {group}.{name} as an object that is not read, expected a number")
        if isinstance(stored, bool) or not isinstance(stored, int | float) or not math.isfinite(stored):
            raise CheckpointError(f"path: {self.path} stores {group}.{name} {brief(stored)}, expected a number")
        return Fact(stored, "file")

    def whole(self, option: str, given: int | None, group: str, name: str, otherwise: int) -> Fact[int]:
        """Return an option, stored value or published default as :meth:`number` does, for integers of at least 1.

        Raises:
            CheckpointError: if what is stored is no such number.
            ValueError: naming the ``option``, if what is given is none.
        """
        if given is not None:
            check_whole(option, given, least=1)
        found = self.number(given, group, name, otherwise)
        if found.value != int(found.value) or found.value < 1:
            raise CheckpointError(f"path: {self.path} stores {group}.{name} {found.value}, expected a whole number of at least 1")
        return Fact(int(found.value), found.origin)

    def steps(self, given: int | None, diffusion: Fact[int]) -> Fact[int]:
        """Return the steps of a sampler on a schedule of discrete steps: those given, at most the schedule's; else all of them.

        The schedule rounds times to its steps. On a finer grid some steps of the sampler would change nothing; where the last
        one does not, the policy gives the states before the end of a given graph probability 0.

        Raises:
            ValueError: if more are given than the schedule has, or no whole number of at least 1.
        """
        if given is None:
            return diffusion
        check_whole("num_steps", given, least=1, most=diffusion.value, note=" (diffusion_steps)")
        return Fact(given, "option")

    def text(self, given: str | None, group: str, name: str, otherwise: str) -> Fact[str]:
        """Return an option, stored value or default as :meth:`number` does, for names."""
        if given is not None:
            return Fact(given, "option")
        stored = self.get(group, name)
        return Fact(otherwise, "published") if stored is None else Fact(str(stored), "file")

    def expect(self, group: str, name: str, known: tuple[Any, ...], what: str) -> None:
        """Raise CheckpointError if the file states a setting that is none of ``known``."""
        stored = self.get(group, name)
        if stored is not None and stored not in known:
            expected = " or ".join(str(k) for k in known)
            raise CheckpointError(f"path: {self.path} stores {group}.{name} {brief(stored)}, expected {expected}: {what}")


def brief(value: Any) -> str:
    """Return the representation of a stored value in one line of at most 40 characters."""
    return " ".join(repr(value).split())[:40]


def check_heads(heads: int, width: int) -> None:
    """Raise ``ValueError`` unless a number of attention heads divides the width that the tensors have."""
    check_whole("heads", heads, least=1)
    if width % heads:
        raise ValueError(f"heads: {heads}, expected a divisor of {width}, the width of the tensors")


def hyper_parameters(content: Any) -> Mapping[str, Any]:
    """Return the hyper-parameters of a Lightning checkpoint as plain values; empty where there are none."""
    found = plain(content.get("hyper_parameters")) if isinstance(content, Mapping) else None
    return found if isinstance(found, Mapping) else {}
