"""A pool whose workers are actors of Ray, and rewards that a pool keeps apart."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from discrete_grpo.core.scoring import RewardError
from discrete_grpo.rewards.identity import Unidentified, identify
from discrete_grpo.rewards.pool import RewardPool
from discrete_grpo.rewards.pool_backends import RayActors
from tests import pool_rewards
from tests.rewards.test_pool import RAISED

# -- ray, without ray


class FakeRay:
    """Actors that answer at once, in this process; ``die`` kills one."""

    class exceptions:
        class RayError(Exception):
            pass

    def __init__(self) -> None:
        self.killed = 0
        self.initialised = False

    def is_initialized(self) -> bool:
        return self.initialised

    def init(self, **options: Any) -> None:
        self.initialised = True

    def remote(self, **options: Any) -> Any:
        return lambda kind: SimpleNamespace(remote=lambda *arguments: self._actor(kind, *arguments))

    def _actor(self, kind: Any, *arguments: Any) -> Any:
        try:
            made = kind(*arguments)
        except Exception as error:
            broken = error
            return SimpleNamespace(
                ready=SimpleNamespace(remote=lambda: SimpleNamespace(value=self.exceptions.RayError(str(broken))))
            )

        def answer(samples: list[str], columns: Any) -> Any:
            death = self.exceptions.RayError("node lost")
            return SimpleNamespace(value=death if "die" in samples else made.answer(samples, columns))

        ready = SimpleNamespace(value=made.ready())
        return SimpleNamespace(ready=SimpleNamespace(remote=lambda: ready), answer=SimpleNamespace(remote=answer))

    def wait(self, refs: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return refs[:num_returns], refs[num_returns:]

    def get(self, ref: Any) -> Any:
        if isinstance(ref.value, Exception):
            raise ref.value
        return ref.value

    def kill(self, actor: Any, no_restart: bool) -> None:
        self.killed += 1


def test_the_same_pool_on_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    with RewardPool(pool_rewards.moody_without_death, workers=2, retries=0, backend="ray") as pool:
        assert pool(["a", "die", "raise", "b"]) == [1.0, None, None, 1.0]
        assert sorted(f.reason for f in pool.take_failures()) == [
            "its actor died: node lost",
            f"raised RuntimeError: two lines{RAISED}",
        ]
        assert pickle.loads(pickle.dumps(pool)).__getstate__()["backend"] == "ray"
    assert ray.killed >= 2
    with (
        RewardPool("tests.pool_rewards.CannotBeMade", backend="ray") as pool,
        pytest.raises(RewardError, match=r"no receptor\.pdbqt"),
    ):
        pool(["a"])


def test_ray_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="backend: ray, which is not installed; pip install ray"):
        RayActors()


class Uncached:
    """A reward that must not be kept."""

    cached_as = None

    def __call__(self, samples: Sequence[Any], **columns: Any) -> list[float]:
        return [0.0 for _ in samples]


class Versioned:
    """A reward that is kept by its version."""

    def __init__(self, version: int) -> None:
        self.cached_as = f"version {version}"

    cached_as = "any"

    def __call__(self, samples: Sequence[Any], **columns: Any) -> list[float]:
        return [0.0 for _ in samples]


def test_a_class_by_import_path_is_kept_and_refused_as_its_objects_are() -> None:
    with pytest.raises(Unidentified):
        identify(RewardPool(f"{__name__}.Uncached"))
    assert identify(RewardPool(f"{__name__}.Versioned", {"version": 2})) == identify(Versioned(2))
    with pytest.raises(ValueError, match=r"reward: DiversityFilter remembers earlier samples"):
        RewardPool("discrete_grpo.rewards.diversity.DiversityFilter", {"reward": 1})
