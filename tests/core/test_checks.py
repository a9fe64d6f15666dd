"""The range check accepts what lies inside and names what does not; the nearest name is found in any case."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from discrete_grpo.core.checks import check_choices, check_fields, check_range, check_text, check_whole, did_you_mean


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "said"),
    [
        ({"least": 1}, [1, 7], [0, -1], "at least 1"),
        ({"above": 0}, [1e-9], [0, -1], "more than 0"),
        ({"most": 3}, [3, -5], [3.1], "at most 3"),
        ({"below": 3}, [2.9], [3], "less than 3"),
        ({"least": 0, "most": 1}, [0, 0.5, 1], [-0.1, 1.1], "0 to 1"),
        ({"above": 0, "most": 1}, [0.5, 1], [0, 1.1], "more than 0 and at most 1"),
        ({"least": 0, "below": 1}, [0, 0.5], [1, -1], "at least 0 and less than 1"),
        ({"above": 0, "below": 1}, [0.5], [0, 1], "more than 0 and less than 1"),
        ({}, [0, -3.5], [], "a finite number"),
    ],
)
def test_the_range_is_kept_and_named(bounds: dict[str, Any], inside: list[float], outside: list[float], said: str) -> None:
    for value in inside:
        check_range("x", value, **bounds)
    for value in [*outside, math.nan, math.inf, -math.inf]:
        below = "most" in bounds or "below" in bounds
        beyond = (value == math.inf and not below) or (value == -math.inf and not {"least", "above"} & bounds.keys())
        wanted = "a finite number" if beyond else re.escape(said)
        with pytest.raises(ValueError, match=f"^x: {value}, expected {wanted} \\(note\\)$"):
            check_range("x", value, **bounds, note=" (note)")


def test_infinity_above_a_bound_is_told_apart() -> None:
    with pytest.raises(ValueError, match=r"^learning_rate: inf, expected a finite number$"):
        check_range("learning_rate", math.inf, above=0)
    with pytest.raises(ValueError, match=r"^learning_rate: -inf, expected more than 0$"):
        check_range("learning_rate", -math.inf, above=0)


@pytest.mark.parametrize("value", ["10", None, [1], 1j])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^x: .*, expected a number, at least 1 or None$"):
        check_range("x", value, least=1, note=" or None")


@pytest.mark.parametrize("value", [2.0, 2.5, True, "2", None])
def test_whole_numbers_alone_are_whole(value: Any) -> None:
    check_whole("x", 2, least=0, most=2)
    with pytest.raises(ValueError, match=rf"^x: {value!r}, expected a whole number, 0 to 3$"):
        check_whole("x", value, least=0, most=3)
    with pytest.raises(ValueError, match=r"^x: 4, expected 0 to 3$"):
        check_whole("x", 4, least=0, most=3)


def test_a_whole_number_too_large_for_a_float_is_compared_as_it_is() -> None:
    with pytest.raises(ValueError, match="expected at most 255"):
        check_range("rounds", 10**400, most=255)


@pytest.mark.parametrize(
    ("name", "known", "cutoff", "said"),
    [
        ("trian", ["sample", "train"], 0.6, "did you mean 'train'?"),
        ("trian", {"train": 1, "trains": 2}, 0.6, "did you mean 'train'?"),
        ("MOLLOGP", ["MolLogP", "TPSA"], 0.9, "did you mean 'MolLogP'?"),
        ("logp", ["MolLogP", "TPSA"], 0.9, ""),
        ("logp", ["MolLogP", "TPSA"], 0.4, "did you mean 'MolLogP'?"),
        ("x", ["train"], 0.6, ""),
        ("x", [], 0.6, ""),
    ],
)
def test_the_nearest_known_name_is_asked_for(name: str, known: Iterable[str], cutoff: float, said: str) -> None:
    assert did_you_mean(name, known, cutoff=cutoff) == said


@dataclass(frozen=True)
class Settings:
    """Fields of all kinds that are checked by their types."""

    count: int = 1
    limit: int | None = None
    share: float = 0.5
    bound: int | float | None = None
    kind: Literal["a", "b"] = "a"
    other: Literal["c"] | None = None
    auto: int | Literal["auto"] = "auto"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 2.5}, "count: 2.5, expected a whole number, at least 1"),
        ({"count": True}, "count: True, expected a whole number, at least 1"),
        ({"count": None}, "count: None, expected a whole number, at least 1"),
        ({"limit": 3.0}, "limit: 3.0, expected a whole number, at least 1"),
        ({"limit": -1}, "limit: -1, expected at least 1"),
        ({"share": 0.5, "bound": 0.5}, "bound: 0.5, expected at least 1"),
        ({"kind": "c"}, "kind: 'c', expected one of a, b"),
        ({"kind": None}, "kind: None, expected one of a, b"),
        ({"other": "a"}, "other: 'a', expected one of c"),
        ({"kind": np.ones(2)}, "kind: array([1., 1.]), expected one of a, b"),
    ],
)
def test_fields_are_checked_by_their_types(given: dict[str, Any], said: str) -> None:
    def check(settings: Settings) -> None:
        check_fields(settings, "count limit bound", least=1)
        check_fields(settings, "share", above=0, below=1)
        check_choices(settings)

    check(Settings())
    check(Settings(count=3, limit=4, bound=1.5, kind="b", other="c", auto=7))
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        check(Settings(**given))


def test_text_alone_is_text() -> None:
    check_text("data", "a.g6", "a file")
    with pytest.raises(ValueError, match=r"^data: a list, expected a file$"):
        check_text("data", ["a.g6"], "a file")


@pytest.mark.parametrize("bounds", [{"least": 0}, {}])
def test_a_truth_value_is_no_number(bounds: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^beta: True, expected a "):
        check_range("beta", True, **bounds)
