"""The conformance kit: each law is seen to fail on the mistake it is there for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo import score_sites
from discrete_grpo.core.categorical import Scores, Sites, gather
from discrete_grpo.core.loss import grpo_loss
from discrete_grpo.core.rollout import Rollout, group_contexts
from discrete_grpo.testing import LAWS, Report, learning, replay
from tests import broken_graph_policies as graph_twins
from tests import broken_policies as twins
from tests.testing.parts import check_graphs, check_words, row, small_graphs


class CountsCalls(twins.Words):
    """Counts in a buffer that ``state_dict`` leaves out."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        self.calls += 1
        return super().sites(rollout, steps)


MISTAKES: list[tuple[type[twins.Words], str]] = [
    (twins.NumberMask, "shapes"),
    (twins.ActionBeyond, "shapes"),
    (twins.DropsColumns, "contexts"),
    (twins.MostDrawn, "contexts"),
    (twins.Unnormalised, "probabilities"),
    (twins.Unnormalised, "total mass"),
    (twins.CountsStops, "units"),
    (twins.UnmaskedPadding, "units"),
    (twins.UnmaskedPadding, "padding"),
    (twins.StoresMeans, "stored log-probs"),
    (twins.ForgottenLatent, "stored log-probs"),
    (twins.ResampledLatent, "ratio eval"),
    (twins.ResampledLatent, "reinforce"),
    (twins.HalfTables, "ratio bf16"),
    (twins.MatrixTables, "probabilities bf16"),
    (twins.SeesItsBatch, "batch size"),
    (twins.SpellsImpossible, "replayable"),
    (twins.StepsDescending, "steps"),
    (twins.Raises, "steps"),
    (twins.RawLogits, "frequencies"),
    (twins.RawLogits, "calibration"),
    (twins.CopiesInGroups, "independence"),
    (twins.OneNumberPerRow, "independence"),
    (twins.GlobalRandom, "generator"),
    (twins.GlobalRandom, "global random state"),
    (twins.ResetsGlobalRandom, "global random state"),
    (twins.MutatesWeights, "unchanged"),
    (CountsCalls, "unchanged"),
    (twins.SwitchesMode, "unchanged"),
    (twins.KeepsGraph, "detached"),
    (twins.NoGradient, "gradient"),
    (twins.NoGradient, "reference"),
    (twins.NoGradient, "derivative"),
    (twins.ReversedGradient, "derivative"),
    (twins.DetachedBody, "derivative"),
    (twins.InfiniteGradient, "gradient"),
    (twins.NoInitArgs, "checkpoint"),
    (twins.ForgetsTemperature, "checkpoint"),
    (twins.OddStates, "rollout file"),
]
ELSEWHERE = {"mask", "ratio train", "permutation", "learning", "gaussian sites", "kl"}
"""Seen to fail below, in test_scorers.py and in tests/policies/test_fields.py."""
REPORTS: dict[type[twins.Words], Report] = {}


@pytest.mark.parametrize(("kind", "law"), MISTAKES, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_a_mistake_is_caught_by_name(kind: type[twins.Words], law: str) -> None:
    if kind not in REPORTS:
        policy = kind(temperature=0.8 if kind is twins.ForgetsTemperature else 1.0)
        REPORTS[kind] = check_words(policy, group_contexts(3, 3, [{"tag": k} for k in range(3)]))
    assert law in REPORTS[kind].failed, str(REPORTS[kind])


def test_a_policy_that_learns_from_any_word_passes() -> None:
    report = check_words(twins.Spells(), group_contexts(6, 3))
    report.raise_on_failure()
    assert row(report, "replayable").note == "18 samples"


def test_a_policy_that_draws_a_sample_in_several_ways_passes() -> None:
    """It has a method of its own called decode, which must not matter."""
    report = check_words(twins.Anagrams(), group_contexts(6, 3))
    report.raise_on_failure()
    assert row(report, "replayable").note == "18 samples"


@pytest.mark.parametrize(
    ("kind", "claim"),
    [
        (twins.SpellsWithoutStop, "log-probs of the draw"),
        (twins.DecodesWithoutStop, "log-probs of the draw"),
        (twins.AnagramsWithoutStop, "sum to at most 1"),
        (twins.SpellsTheFirst, "samples as given"),
    ],
)
def test_mistakes_in_the_trajectories_of_words_that_were_not_drawn(kind: type[twins.Words], claim: str) -> None:
    report = check_words(kind(), group_contexts(6, 3))
    assert report.failed == ("replayable",)
    assert claim in row(report, "replayable").note


def test_every_law_is_seen_to_fail() -> None:
    assert {law for _, law in MISTAKES} | ELSEWHERE == LAWS.keys()


def test_dropout_in_scoring_is_caught_in_train_mode_only() -> None:
    assert check_words(twins.Words(dropout=0.3)).failed == ("ratio train",)


def test_edges_counted_twice_are_caught_although_drawn_and_scored_alike() -> None:
    report = check_graphs(small_graphs(graph_twins.EdgesTwice), skip=["learning"])
    assert {"total mass", "frequencies"} <= set(report.failed)
    assert {"stored log-probs", "units", "ratio eval", "permutation"}.isdisjoint(report.failed)


@pytest.mark.parametrize("space", [True, False])
def test_one_random_number_for_all_sites_of_a_step_is_caught(space: bool) -> None:
    policy = small_graphs(graph_twins.OneNumberPerStep)
    report = check_graphs(policy, skip=["learning"], **({} if space else {"space": None}))
    assert report.failed == (("frequencies", "independence") if space else ("independence",))
    assert row(report, "independence").note.startswith("sites of a step: p at most ")


def test_what_shares_a_random_number_is_named() -> None:
    only = [law for law in LAWS if law != "independence"]
    shared = {twins.CopiesInGroups: "neighbouring rows", twins.OneNumberPerRow: "consecutive steps"}
    shared |= {twins.HalvesOfABatch: "rows half a batch apart"}
    for kind, what in shared.items():
        assert row(check_words(kind(), skip=only), "independence").note.startswith(f"{what}: p at most ")
    assert row(check_words(twins.Words(), skip=only), "independence").error < 1


def test_padded_nodes_are_caught() -> None:
    report = check_graphs(small_graphs(graph_twins.PaddedNodes), skip=["learning"])
    assert {"padding", "units"} <= set(report.failed)


def test_a_graph_policy_that_numbers_its_nodes_is_caught() -> None:
    assert check_graphs(small_graphs(graph_twins.NumbersNodes), skip=["learning"]).failed == ("permutation",)


def test_a_reversed_gradient_learns_nothing() -> None:
    report = check_words(twins.ReversedGradient(), skip=[], seconds=1.0)
    assert report.failed == ("derivative", "learning")
    assert row(report, "derivative").error > 1
    assert row(report, "learning").error > 0.1


def test_a_mask_that_is_not_obeyed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(sites: Sequence[Any]) -> Scores:
        return replace(score_sites(sites), logp=torch.cat([gather(s.log_probs, s.action.clamp_min(0)) for s in sites], -1))

    assert LAWS["mask"] is replay.masked_sites
    monkeypatch.setattr(replay, "score_sites", blind)
    assert "mask" in check_words(twins.Words()).failed


def test_another_gradient_than_reinforce_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "grpo_loss", lambda *args: replace(found := grpo_loss(*args), loss=1.01 * found.loss))
    report = check_words(twins.Words())
    assert report.failed == ("reinforce",)
    assert row(report, "reinforce").error == pytest.approx(0.01, rel=1e-2)
