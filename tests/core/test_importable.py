"""Objects that a worker process can import are pickled; an error names one of the main script, also within another object."""

from __future__ import annotations

import functools
import pickle
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from discrete_grpo.core.importable import InMainScript, dumps_importable


def test_values_arrive_as_they_are() -> None:
    value = {"a": [1, 2.5], "function": len, "bytes of the name": b"__main__"}
    assert pickle.loads(dumps_importable(value)) == value


@pytest.mark.parametrize(
    "wrap", [lambda f: f, lambda f: [f], functools.partial, functools.lru_cache], ids=["bare", "list", "partial", "cached"]
)
def test_a_function_of_the_main_script_is_named(monkeypatch: pytest.MonkeyPatch, wrap: Any) -> None:
    def mine() -> None: ...

    mine.__module__, mine.__qualname__ = "__main__", "mine"
    monkeypatch.setattr(sys.modules["__main__"], "mine", mine, raising=False)
    with pytest.raises(InMainScript, match=r"^mine is defined in the main script$") as error:
        dumps_importable(wrap(mine))
    assert error.value.name == "mine"


@dataclass(frozen=True)
class Opens:
    """Keeps what cannot be sent."""

    path: str

    @cached_property
    def content(self) -> Any:
        return lambda: self.path


def test_what_a_cached_property_keeps_stays_here() -> None:
    used = Opens("model")
    assert used.content() == "model"
    (again,) = pickle.loads(dumps_importable([used]))
    assert again == used
    assert vars(again) == {"path": "model"}
    assert again.content() == "model"
    assert "content" in vars(used)
