"""The conformance kit passes on healthy policies and leaves them as they were."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from rdkit import Chem

from discrete_grpo.core.rollout import Context, Rollout, group_contexts
from discrete_grpo.testing import LAWS, check_policy
from discrete_grpo.testing.case import same
from tests import broken_policies as twins
from tests.testing.parts import WORDS, check_graphs, check_words, row, small_graphs
from tests.toys import share_of_class_two, transformer_policy


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64], ids=str)
def test_the_graph_policy_passes_every_law(dtype: torch.dtype) -> None:
    policy = small_graphs().to(dtype)
    start = time.process_time()
    report = check_graphs(policy)
    report.raise_on_failure()
    assert report.skipped == ()
    assert tuple(r.law for r in report.rows) == tuple(LAWS)
    assert time.process_time() - start < 15


def test_a_graph_policy_passes_without_a_space() -> None:
    contexts = [Context(k // 2, {"num_nodes": [4, 2, 3][k // 2]}) for k in range(6)]
    report = check_policy(transformer_policy(), contexts, reward=share_of_class_two, samples=1000)
    report.raise_on_failure()
    assert report.skipped == ("replayable", "total mass", "frequencies")
    assert row(report, "replayable").note == "can_draw is False for every sample drawn"
    assert row(report, "permutation").note == "nodes relabelled by the kit"


def test_padding_is_not_said_to_hold_where_no_row_is_padded() -> None:
    def padding(sizes: Sequence[int]) -> tuple[str, str]:
        contexts = [Context(k, {"num_nodes": size}) for k, size in enumerate(sizes)]
        found = row(check_policy(transformer_policy(), contexts, skip=[law for law in LAWS if law != "padding"]), "padding")
        return found.outcome, found.note

    assert padding((3, 3, 3)) == ("skipped", "no row is padded: give contexts of several sizes, if the policy has any")
    assert padding((3, 2, 3)) == ("passed", "3 rows alone, 0 empty steps")


def test_words_of_any_length_pass_every_law() -> None:
    policy = twins.Words(temperature=0.8)
    assert policy.sample(WORDS, generator=torch.Generator().manual_seed(0)).num_steps <= 3
    report = check_words(policy, samples=3000, skip=[])
    report.raise_on_failure()
    assert report.skipped == ("permutation", "replayable")
    assert row(report, "permutation").note == "no permute given"
    assert int(row(report, "padding").note.split()[3]) > 0  # there were steps without units


def test_words_with_columns_pass() -> None:
    contexts = group_contexts(2, 4, [{"mood": 0}, {"mood": 1}])
    check_words(twins.Words(), contexts, skip=["frequencies"]).raise_on_failure()


class Objects(twins.Words):
    """Words whose samples are objects of a library, which has no equality of two of them or one by identity."""

    made: Callable[[int], Any]

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        drawn = super().sample(contexts, generator=generator)
        return replace(drawn, samples=tuple(self.made(len(word)) for word in drawn.samples))


def chain(atoms: int) -> Any:
    return Chem.MolFromSmiles("C" * (atoms + 1))


def test_nan_is_the_same_as_nan_alone() -> None:
    assert same(math.nan, float("nan"))
    assert not same(math.nan, 1.0)
    assert not same(1.0, math.nan)


@pytest.mark.parametrize("made", [np.ones, nx.path_graph, chain])
def test_samples_are_compared_by_their_content(made: Callable[[int], Any]) -> None:
    policy = Objects()
    policy.made = made
    report = check_words(policy, skip=LAWS.keys() - {"generator", "contexts"})
    report.raise_on_failure()
    assert not same([made(1)], [made(2)])


def test_the_policy_is_left_as_it_was() -> None:
    policy = twins.Words().train()
    weights = {name: value.clone() for name, value in policy.state_dict().items()}
    before = torch.random.get_rng_state()
    check_words(policy, skip=[])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert policy.training
    assert all(torch.equal(value, weights[name]) for name, value in policy.state_dict().items())
    assert all(p.grad is None for p in policy.parameters())
