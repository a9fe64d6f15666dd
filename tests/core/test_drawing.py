"""Training and sampling check what the ``sample`` of a user's own policy returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.drawing import PolicyError, draw
from discrete_grpo.core.rollout import Context, Rollout, group_contexts
from discrete_grpo.recipes.sample import sample_policy
from tests.toys import share_of_class_two, tiny_policy

CONTEXTS = group_contexts(2, 2, [{"target": 1}, {"target": 2}])


class Changed(torch.nn.Module):
    """A policy whose rollouts are changed."""

    def __init__(self, change: Callable[[Rollout], Any]) -> None:
        super().__init__()
        self.inner, self.change = tiny_policy(), change

    def sample(self, contexts: Any, *, generator: Any = None) -> Any:
        return self.change(self.inner.sample(contexts, generator=generator))

    def sites(self, rollout: Rollout, steps: Any = None) -> Any:
        return self.inner.sites(rollout, steps)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: None, "returned None, expected a Rollout"),
        (lambda r: [r], "returned a list, expected a Rollout"),
        (lambda r: replace(r, samples=r.samples[:-1]), "samples has 3 entries for 4 contexts, expected one per context"),
        (lambda r: replace(r, samples=(*r.samples, None)), "samples has 5 entries for 4 contexts, expected one per context"),
        (lambda r: replace(r, columns={"target": (1, 1, 2)}), "columns['target'] has 3 entries for 4 contexts"),
        (lambda r: replace(r, columns={}), "columns of the contexts are missing in the rollout: target; expected every one"),
        (lambda r: replace(r, group=r.group[:, None]), "group has shape (4, 1), expected (4,) for 4 contexts"),
        (lambda r: replace(r, group=torch.zeros(4, dtype=torch.long)), "group has other numbers than the contexts"),
        (lambda r: replace(r, size=r.size[0]), "size has shape (), expected (4,) for 4 contexts"),
        (lambda r: replace(r, logp=r.logp.sum(1)), "logp has shape (4,), expected (4, S) for 4 contexts and S steps"),
        (lambda r: replace(r, logp=r.logp * torch.nan), "logp is NaN in 4 of 4 trajectories; see whether weights and outputs"),
        (lambda r: replace(r, units=r.units.sum(1)), "units has shape (4,), expected (4, 4) for 4 contexts"),
        (lambda r: replace(r, units=r.units[:, 1:]), "units has shape (4, 3), expected (4, 4) for 4 contexts"),
        (lambda r: replace(r, states={"x": torch.zeros(3, 1)}), "states['x'] has shape (3, 1), expected (4, ...) for 4 contexts"),
    ],
)
def test_what_is_no_rollout_of_the_contexts_is_named(change: Any, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        draw(Changed(change), CONTEXTS)
    assert str(caught.value).startswith(f"policy Changed.sample: {said}")


def test_a_column_that_was_added_need_not_come_back() -> None:
    policy = Changed(lambda r: replace(r, columns={"target": r.columns["target"]}))
    contexts = [replace(context, columns={**context.columns, "kept": "a"}) for context in CONTEXTS]
    with pytest.raises(PolicyError, match="missing in the rollout: kept;"):
        draw(policy, contexts)
    assert len(draw(policy, contexts, added={"kept"})) == 4


def test_a_rollout_of_the_contexts_is_given_on() -> None:
    drawn = draw(Changed(lambda r: r), CONTEXTS, generator=torch.Generator().manual_seed(0))
    assert drawn.samples == tiny_policy().sample(CONTEXTS, generator=torch.Generator().manual_seed(0)).samples


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("oops"), r"^policy Changed\.sample: raised RuntimeError: oops \(test_drawing\.py, line \d+\)$"),
        (KeyError("length"), r"KeyError: 'length' \(test_drawing\.py, line \d+\); no context has such a column"),
        (KeyError("target"), r"KeyError: 'target' \(test_drawing\.py, line \d+\)$"),
    ],
)
def test_an_error_is_told_with_its_place(error: Exception, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        draw(Changed(lambda r: _raise(error)), CONTEXTS)


def test_an_error_of_this_package_and_one_of_memory_stay_as_they_are() -> None:
    with pytest.raises(ValueError, match="num_nodes"):
        draw(tiny_policy(), [Context(0, {"num_nodes": 99})])
    with pytest.raises(torch.OutOfMemoryError):
        draw(Changed(lambda r: _raise(torch.OutOfMemoryError("full"))), CONTEXTS)


def test_sampling_and_training_end_with_it() -> None:
    policy = Changed(lambda r: replace(r, samples=r.samples[:-1]))
    with pytest.raises(PolicyError, match="1 contexts"):
        sample_policy(policy, 5, batch_size=1)
    with pytest.raises(PolicyError, match="samples has 7 entries for 8 contexts"):
        GRPOTrainer(policy, share_of_class_two, GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8)).train()
