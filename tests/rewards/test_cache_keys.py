"""Keys of the cache: which rewards have equal scores, and in which processes."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rdkit import Chem

from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.combine import WeightedSum
from discrete_grpo.rewards.identity import reward_identity
from discrete_grpo.rewards.molecules import InRange, Similarity, Target, logp, molecule_reward, qed
from tests.rewards.test_cache import key

ROOT = Path(__file__).parents[2]


# -- keys


def test_a_key_is_of_reward_sample_and_conditions() -> None:
    keys = [key("C"), key("CC"), key("C", "s"), key("C", logP=1.0), key("C", logP=2.0), key("C", logP=1.0, n=1)]
    assert len(set(keys)) == len(keys)
    assert key("C", a=1, b=2) == key("C", b=2, a=1)
    assert ScoreCache.key(None, "C", {}) is None
    assert ScoreCache.key("r", "C", {"graph": object()}) is None
    for one in (np.float64(1.5), np.float32(1.5), torch.tensor(1.5)):
        assert key("C", logP=one) == key("C", logP=1.5)
    assert key("C", n=np.int64(3)) == key("C", n=3)


def make(code: str, name: str = "f") -> Any:
    space: dict[str, Any] = {"__name__": "somewhere"}
    exec(code, space)
    return space[name]


def test_identity_is_code_and_settings() -> None:
    same = "def f(samples): return [len(s) for s in samples]"
    assert reward_identity(make(same)) == reward_identity(make(same)) is not None
    others = [
        same,
        same.replace("len", "sum"),
        same.replace("len(s)", "len(s) + 1"),
        same.replace("(samples)", "(samples, k=1)"),
        same.replace("(samples)", "(samples, k=2)"),
        same.replace("(samples)", "(samples, *, k=1)"),
        same.replace("(samples)", "(samples, *, k=2)"),
        same.replace("def f", "def g"),
        "def outer(x):\n def f(samples): return [x] * len(samples)\n return f\nf = outer(1)",
        "def outer(x):\n def f(samples): return [x] * len(samples)\n return f\nf = outer(2)",
    ]
    identities = [reward_identity(make(code, "g" if "def g" in code else "f")) for code in others]
    assert None not in identities
    assert len(set(identities)) == len(others)


def skip_where_functions_are_wrapped(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("jaxtyping_packages", None):
        pytest.skip("a checker of types wraps the package's functions, whose settings are then no plain values")


def test_identity_of_the_rewards_here(request: pytest.FixtureRequest) -> None:
    skip_where_functions_are_wrapped(request)
    rewards = [
        qed,
        logp,
        Similarity("CC"),
        Similarity("CCO"),
        Similarity("CC", radius=3),
        Target(qed, 0.5, 1.0),
        Target(qed, 0.6, 1.0),
    ]
    rewards += [Target(logp, 0.5, 1.0), InRange(qed, 0, 1), WeightedSum.of({qed: 1.0}), WeightedSum.of({qed: 2.0})]
    rewards += [functools.partial(qed, k=[1]), functools.partial(qed, k=[2])]
    identities = [reward_identity(reward) for reward in rewards]
    assert None not in identities
    assert len(set(identities)) == len(rewards)
    used = Similarity("CC")
    used(["CCO"])  # fills what it keeps for itself
    assert reward_identity(used) == identities[2]


class Attributes:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, samples: list[str], **columns: Any) -> list[float]:
        return [0.0] * len(samples)


def test_identity_of_attributes() -> None:
    weights = [torch.zeros(3), torch.ones(3), torch.zeros(3, 1), torch.zeros(3, dtype=torch.float64)]
    values = [1, 1.5, "1", {"a": 1}, {"a": 2}, {1, 2}, [1, 2], Path("x"), None, *weights, *(w.numpy() for w in weights[:2])]
    identities = [reward_identity(Attributes(value)) for value in values]
    assert None not in identities
    assert len(set(identities)) == len(values)
    with torch.random.fork_rng():
        layers = [torch.nn.Linear(2, 1) for _ in range(2)]
    assert reward_identity(Attributes(layers[0])) not in (None, reward_identity(Attributes(layers[1])))


def test_what_has_no_plain_settings_has_no_identity() -> None:
    for value in (object(), threading.Lock(), iter([1])):
        assert reward_identity(Attributes(value)) is None
    assert reward_identity(Attributes(Chem.MolFromSmiles("CC"))) is not None
    loop = Attributes(None)
    loop.value = loop
    assert reward_identity(loop) is not None


def test_cached_as_decides(request: pytest.FixtureRequest) -> None:
    skip_where_functions_are_wrapped(request)

    class Same(Attributes):
        @property
        def cached_as(self) -> Any:
            return self.value

    assert reward_identity(Same(None)) is None
    assert reward_identity(Same("v1")) != reward_identity(Same("v2"))
    assert reward_identity(Same(qed)) == reward_identity(Same(qed)) != reward_identity(Same(logp))


def test_a_decorated_reward_is_what_it_decorates(request: pytest.FixtureRequest) -> None:
    skip_where_functions_are_wrapped(request)
    rewards = [molecule_reward(make(f"def f(mol): return {k}")) for k in (1, 2)]
    assert reward_identity(rewards[0]) != reward_identity(rewards[1])


def test_identity_does_not_depend_on_the_order_of_a_set() -> None:
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    assert reward_identity(Attributes(one)) == reward_identity(Attributes(other))


@pytest.mark.slow
def test_identity_is_the_same_in_another_process(request: pytest.FixtureRequest) -> None:
    skip_where_functions_are_wrapped(request)
    code = """
from discrete_grpo.rewards.identity import (reward_identity)
from discrete_grpo.rewards.combine import (WeightedSum)
from discrete_grpo.rewards.molecules import (Similarity, qed)
print([reward_identity(reward) for reward in (qed, Similarity("CC"), WeightedSum.of({qed: 1.0}))])
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == str([reward_identity(r) for r in (qed, Similarity("CC"), WeightedSum.of({qed: 1.0}))])
