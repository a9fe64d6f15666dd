"""The benchmark of several processes: its counts and its model are what they say, and a process measures itself."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks import scale_out
from benchmarks.scale_out import Link, Marks, Messages, Settings, Terms, described, fitted, message_seconds, modelled, work
from discrete_grpo.training import distributed

TERMS = Terms(dealt=8.0, repeated=1.0, whole_batch=0.25, bytes=3e9, calls=5.0)
LINK = Link(4, "a cable", bandwidth=1e9, latency=0.1)


def test_messages_are_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.add_(1))
    monkeypatch.setattr(dist, "all_gather_object", lambda found, value: found.append(value))
    own, told = torch.zeros(3, dtype=torch.float64), list[str]()
    before = dist.all_reduce
    with Messages() as messages:
        dist.all_reduce(own)
        dist.all_gather_object(told, "rank")
    assert own.tolist() == [1.0] * 3
    assert told == ["rank"]
    assert (messages.calls, messages.bytes) == (2, 24 + len(pickle.dumps("rank")))
    assert dist.all_reduce is before


def test_every_collective_of_the_package_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(distributed.__file__).read_text(encoding="utf-8")
    used = set(re.findall(r"\bdist\.(\w+)\(", text)) - {"is_initialized", "get_backend", "destroy_process_group"}
    assert used == {"all_reduce", "broadcast", "all_gather_object", "gather_object"}
    for name in used:
        monkeypatch.setattr(dist, name, lambda *_: None)
    plain = {name: getattr(dist, name) for name in used}
    with Messages():
        assert all(getattr(dist, name) is not call for name, call in plain.items())


def test_marks_are_means_of_the_updates_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks(messages := Messages())
    for calls in (0, 7, 10, 13):
        messages.calls = calls
        marks()
    assert marks.per_update(1)["calls"] == 3.0


def test_the_fit_and_the_model_are_those_of_their_formulas() -> None:
    assert fitted({1: 9.0, 2: 5.0, 4: 3.0}) == pytest.approx((8.0, 1.0))
    assert fitted({2: 5.0}) == (10.0, 0.0)
    assert message_seconds(TERMS, LINK) == pytest.approx(2 * 3 / 4 * 3 + 0.5)  # a ring of 4 sends each byte 1.5 times
    found = modelled(TERMS, LINK, speedup=2.0)
    assert found["same_batch"] == pytest.approx(4.5 / (4 * ((1 + 8 / 4) / 2 + 5.0)))
    assert found["batch_times_gpus"] == pytest.approx(4.5 / ((1 + 3 * 0.25 + 8) / 2 + 5.0))


@pytest.mark.slow
def test_a_process_measures_both_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    seen: list[int] = []
    count = Marks.per_update

    def per_update(self: Marks, warmup: int) -> dict[str, float]:
        seen.append(len(self.found))
        return count(self, warmup)

    monkeypatch.setattr(scale_out.Marks, "per_update", per_update)
    found = work(Settings(updates=1, warmup=1, batch=4, generation=32, steps=2))
    assert seen == [3, 3], "one mark per update"
    for row in found.values():
        assert row["wall"] > 0
        assert row["processor"] > 0
        assert row["bytes"] == 0  # nobody to send to
    rows = {1: {"wall": 4.0, "processor": 4.0, "whole_batch": 0.1, "bytes": 0.0, "calls": 0.0},
            2: {"wall": 2.5, "processor": 2.5, "whole_batch": 0.1, "bytes": 8.0, "calls": 3.0}}  # fmt: skip
    table = described(rows)
    assert table["terms"] == pytest.approx({"dealt": 3.0, "repeated": 1.0, "whole_batch": 0.1, "bytes": 8.0, "calls": 3.0})
    assert table["processes"][2]["efficiency"] == table["processes"][2]["processor_efficiency"] == pytest.approx(0.8)
