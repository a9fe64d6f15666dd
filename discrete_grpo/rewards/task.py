"""Tasks of benchmarks: rewards with a name, a suite, a definition and published results."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import FunctionType
from typing import Any, Literal, get_args

from discrete_grpo.core.checks import check_function, check_range, check_samples, check_whole

__all__ = ["Kind", "Task"]

Kind = Literal["molecules", "graphs", "text"]
OWN = __name__.partition(".")[0]
PACKAGE: dict[str, str] = {"molecules": "rdkit", "graphs": "networkx"}
"""Kind -> the package whose version a score may depend on."""


@dataclass(frozen=True)
class Task:
    """A task of a benchmark: the score of one valid sample, and what is known about it.

    Args:
        name: the name within the suite, such as ``"zaleplon_mpo"``.
        suite: the benchmark, such as ``"pmo"``.
        about: the definition in one line.
        source: the publication.
        score: number, at least 0, of one valid sample in its parsed form: an RDKit molecule, a ``networkx.Graph`` or a text. None
            or NaN stands for an unknown score.
        kind: what the samples are: ``"molecules"``, ``"graphs"`` or ``"text"``.
        optimum: the largest score that is known to be reached; None if none is known.
        published: method -> published AUC top-10 over 10,000 counted calls.
        published_prescreened: the same of methods that score a data set first without counting these calls.
        elements: symbols of the atoms that a perfect sample cannot do without; empty if it needs none in particular.
        version: number of the definition, at least 1. It must grow when ``score`` changes, since kept scores belong to a version.

    Raises:
        ValueError: for an empty name or suite, a score that is no function of one sample, an unknown kind, an optimum that is no
            number, or a version below 1.

    >>> def carbons(mol): return mol.GetNumAtoms() / 10
    >>> task = Task("atoms", "toy", "heavy atoms / 10", "this project", carbons)
    >>> task(["CCO", "C.C", None])
    [0.3, 0.0, 0.0]
    """

    name: str
    suite: str
    about: str
    source: str
    score: Callable[[Any], float | None]
    kind: Kind = "molecules"
    optimum: float | None = None
    published: Mapping[str, float] = field(default_factory=dict, hash=False)
    published_prescreened: Mapping[str, float] = field(default_factory=dict, hash=False)
    elements: frozenset[str] = frozenset()
    version: int = 1

    def __post_init__(self) -> None:
        for key in ("name", "suite"):
            if not isinstance(given := getattr(self, key), str) or not given:
                raise ValueError(f"{key}: {given!r}, expected a text that is not empty")
        check_function("score", self.score, "one sample", 1)
        if self.optimum is not None:
            check_range("optimum", self.optimum, note=" or None")
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind: {self.kind!r}, expected one of {', '.join(get_args(Kind))}")
        check_whole("version", self.version, least=1)

    @cached_property
    def cached_as(self) -> Any:
        """What kept scores belong to: name, suite, version, the version of the library that scores, and ``score``.

        Parts of this package count by their settings, so that another revision of this package keeps the scores as long as
        ``version`` stands; any other function counts with its source, also as a part of one of them. None if ``score`` must not
        be cached.
        """
        package = PACKAGE.get(self.kind)
        library = "" if package is None else f", {package} {importlib.metadata.version(package)}"
        named = f"{self.suite}/{self.name} version {self.version}{library}"
        settings = _settings(self.score)
        return None if settings is None else f"{named}: {settings}" if isinstance(settings, str) else (named, self.score)

    def __call__(self, samples: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
        """Score each sample.

        Returns:
            One number per sample in the range that ``about`` says, higher is better; 0 for an invalid sample, None where the score
            is unknown.

        Raises:
            RewardError: if ``score`` raises; names the task and the sample. A failure is not taken for a bad score.
        """
        check_samples(samples)
        parsed = _PARSERS[self.kind](samples)
        return [0.0 if one is None else self._scored(one, sample) for one, sample in zip(parsed, samples, strict=True)]

    def _given(self, parsed: Any) -> Any:
        """The argument of ``score``: the parsed sample, or a copy of a molecule."""
        if self.kind != "molecules":
            return parsed
        from discrete_grpo.domains.smiles import as_given_to

        return as_given_to(self.score)(parsed)

    def _scored(self, parsed: Any, sample: Any) -> Any:
        try:
            value = self.score(self._given(parsed))
            return value if value is None or isinstance(value, str) else float(value)  # scoring refuses a text
        except Exception as error:
            from discrete_grpo.core.scoring import RewardError, shown_value  # imports torch

            said = " ".join(str(error).split())
            raise RewardError(f"reward {self.name}: sample {shown_value(sample)}: {type(error).__name__}: {said}") from error


def _settings(score: Callable[..., Any]) -> Any:
    """The settings of a score as text; None if it must not be cached, the score itself if its source must be looked at."""
    missing = object()
    given = getattr(score, "cached_as", missing)
    if given is not missing and (given is None or isinstance(given, str | tuple)):
        return None if given is None else repr(given)
    if not str(getattr(score, "__module__", "")).startswith(f"{OWN}."):
        return score
    if dataclasses.is_dataclass(score):
        return repr(score) if all(map(_is_told, _values(score))) else score
    if not isinstance(score, FunctionType) or "<" in score.__qualname__:  # a method, a lambda, a function within another
        return score
    return f"{score.__module__}.{score.__qualname__}"


def _values(part: Any) -> list[Any]:
    return [getattr(part, one.name) for one in dataclasses.fields(part)]


def _is_told(value: Any) -> bool:
    """Whether ``repr`` says all that a score can depend on: plain values, and parts of this package that read no file."""
    if type(value) in (tuple, list):
        return all(map(_is_told, value))
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith(f"{OWN}.") and not hasattr(value, "cached_as"):
        return all(map(_is_told, _values(value)))
    return value is None or isinstance(value, bool | int | float | str)


# -- samples in their parsed form, None for an invalid one


def _molecules(samples: Sequence[Any]) -> Sequence[Any]:
    from discrete_grpo.domains.smiles import parse_all

    return parse_all(samples)


def _graphs(samples: Sequence[Any]) -> Sequence[Any]:
    from discrete_grpo.domains.graph6 import from_graph6
    from discrete_grpo.domains.graph_validity import matrix_of

    valid = [matrix_of(sample) is not None for sample in samples]
    return [(from_graph6(s) if isinstance(s, str) else s) if ok else None for s, ok in zip(samples, valid, strict=True)]


def _texts(samples: Sequence[Any]) -> Sequence[Any]:
    return samples


_PARSERS: dict[str, Callable[[Sequence[Any]], Sequence[Any]]] = {"molecules": _molecules, "graphs": _graphs, "text": _texts}
