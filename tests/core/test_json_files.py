"""JSON files: which values they keep, and that they are written as a whole."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from discrete_grpo.core.json_files import plain, read_json, write_json


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(False), False),
        (np.array(4), 4),
        (torch.tensor(2.0), 2.0),
        (torch.tensor(True), True),
        (Decimal("0.25"), 0.25),
        (Fraction(10**400), f"1{'0' * 400}"),
        (math.inf, None),
        (torch.tensor(math.nan), None),
        (Path("a/b"), "a/b"),
        ((1, [2, (3,)]), [1, [2, [3]]]),
        (MappingProxyType({1: {"x": None}}), {"1": {"x": None}}),
        ("é", "é"),
    ],
)
def test_plain_is_what_a_file_gives_back(tmp_path: Path, value: Any, expected: Any) -> None:
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)
    write_json(tmp_path / "found.json", {"value": value})
    assert read_json(tmp_path / "found.json") == {"value": expected}


def test_a_string_that_is_no_text_can_be_written_and_read(tmp_path: Path) -> None:
    write_json(tmp_path / "found.json", {"name": "a\udcffb"})
    assert json.loads((tmp_path / "found.json").read_bytes()) == {"name": "a\udcffb"}


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    write_json(tmp_path / "found.json", {"a": 1})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        write_json(tmp_path / "found.json", endless)
    assert read_json(tmp_path / "found.json") == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["found.json"]


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_no_mapping_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "found.json").write_bytes(content)
    assert read_json(tmp_path / "found.json") is None
    assert read_json(tmp_path / "none.json") is None
