"""The range check accepts what lies inside and names what does not."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from discrete_grpo.core.checks import check_range


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
        with pytest.raises(ValueError, match=f"^{re.escape(f'x: {value}, expected {said} (note)')}$"):
            check_range("x", value, note=" (note)", **bounds)


def test_a_whole_number_too_large_for_a_float_is_compared_as_it_is() -> None:
    with pytest.raises(ValueError, match="expected at most 255"):
        check_range("rounds", 10**400, most=255)
