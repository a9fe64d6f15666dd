"""Training state: what a checkpoint writes can be read again, and values of other types are refused when it is written."""

from __future__ import annotations

import io
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pytest
import torch

from discrete_grpo.runs.plain_state import plain_state


def test_numbers_of_numpy_become_those_of_python_everywhere() -> None:
    state = {
        "a": np.float64(0.5),
        "b": [np.int64(2), (np.bool_(True), np.str_("C"))],
        np.int64(3): {np.str_("x")},
        "t": torch.ones(2),
    }
    found = plain_state(state)
    assert torch.equal(found.pop("t"), torch.ones(2))
    assert found == {"a": 0.5, "b": [2, (True, "C")], 3: {"x"}}
    assert [type(x) for x in (found["a"], found["b"][0], *found["b"][1])] == [float, int, bool, str]


def test_what_passes_can_be_read() -> None:
    state: dict[str, Any] = {
        "size": torch.Size([1]),
        "counts": Counter("aab"),
        "order": OrderedDict(a=[None, 1j, b"x"]),
        "kind": torch.float32,
    }
    file = io.BytesIO()
    torch.save(plain_state(state), file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"rewards": [{"seen": deque([1])}]}, "state of the run: rewards[0]['seen'] is of type deque, expected tensors"),
        ({"rewards": [{"table": np.zeros(3)}]}, "rewards[0]['table'] is of type ndarray"),
        ({"x": {frozenset([1])}}, "an entry of x is of type frozenset"),
    ],
)
def test_other_types_are_named(state: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError) as error:
        plain_state(state)
    assert said in str(error.value)
