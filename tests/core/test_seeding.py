"""Draws from torch's global generator that leave its state as it was."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from discrete_grpo.core.seeding import seeded
from discrete_grpo.domains.global_random import seeded_everywhere


def test_a_seed_holds_for_the_block_alone() -> None:
    before = torch.random.get_rng_state()
    with seeded(3):
        first = torch.rand(4)
    with seeded(3, torch.device("cpu")):
        again = torch.rand(4)
    with seeded(4):
        other = torch.rand(4)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first, torch.rand(4, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(before, torch.random.get_rng_state())


def fail() -> None:
    with seeded(3):
        torch.rand(4)
        raise ZeroDivisionError


def test_the_state_is_restored_after_an_error() -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(before, torch.random.get_rng_state())


def test_no_generator_of_another_device_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    with seeded(3):
        pass
    assert not seeds


def test_all_global_generators_are_seeded_for_the_block_alone() -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002

    def states() -> str:
        arrays = np.random.get_state(legacy=False)["state"]["key"].tolist()  # noqa: NPY002
        return str((random.getstate(), arrays, torch.random.get_rng_state().tolist()))

    before = states()
    found = []
    for seed in (3, 3, 4):
        with seeded_everywhere(seed):
            found.append(draws())
        assert states() == before
    assert found[0] == found[1]
    assert all(a != b for a, b in zip(found[1], found[2], strict=True))
