"""Conditions that a function of one molecule reads through ``molecule_reward``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from rdkit import Chem

from discrete_grpo.core.reward_arguments import check_callables
from discrete_grpo.core.scoring import score_samples
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.rewards.molecules import molecule_reward


@molecule_reward(invalid=-1.0)
def size_gap(mol: Chem.Mol, num_nodes: int | None, scale: float = 1.0) -> float:
    return 9.0 if num_nodes is None else abs(mol.GetNumAtoms() - num_nodes) * scale


def test_each_molecule_is_scored_with_its_own_conditions() -> None:
    given: dict[str, list[Any]] = {"num_nodes": [5, 5, 2, None], "scale": [2.0, 2.0, None, 3.0], "label": [0, 0, 0, 0]}
    assert size_gap(["CCO", None, "CCO", "C"], **given) == [4.0, -1.0, 1.0, 9.0]
    assert score_samples([size_gap], ["CCO", "C"], {"num_nodes": [5, 5]}).tolist() == [[2.0], [4.0]]


def test_a_function_of_every_condition_gets_those_that_a_sample_has() -> None:
    seen: list[dict[str, Any]] = []

    @molecule_reward
    def every(mol: Chem.Mol, **conditions: Any) -> float:
        seen.append(conditions)
        return 0.0

    every(["C", "CC"], logP=[1.0, None], scaffold=["C", "CC"])
    assert seen == [{"logP": 1.0, "scaffold": "C"}, {"scaffold": "CC"}]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ((), r"^reward: size_gap\(samples, \*, num_nodes, scale=None, \*\*columns\) \(missing a required argument: 'num_nodes'\)"),
        (("label", "scale"), r"missing a required argument: 'num_nodes'.*keywords \(here label, scale\)"),
        (("num_nodes", "label"), None),
    ],
)
def test_a_condition_that_nothing_gives_is_told_before_a_run(columns: Sequence[str], said: str | None) -> None:
    if said is None:
        assert check_callables([size_gap], columns) == [size_gap]
    else:
        with pytest.raises(ValueError, match=said):
            check_callables([size_gap], columns)


def test_lengths_and_functions_of_several_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^num_nodes: 1 values, expected one per sample \(2\)$"):
        size_gap(["C", "CC"], num_nodes=[1])
    with pytest.raises(
        ValueError, match=r"score: <lambda>\(mol, samples\) .*'samples'.*, expected a function of one RDKit molecule"
    ):
        molecule_reward(lambda mol, samples: 0.0)


def test_scores_are_kept_by_the_conditions_that_the_function_reads() -> None:
    asked: list[str] = []

    @molecule_reward
    def counted(mol: Chem.Mol, target: float = 0.0) -> float:
        asked.append(Chem.MolToSmiles(mol))
        return target

    ledger = Ledger(key=molecule_key, cache=ScoreCache())
    for label, target in ((1, 2.0), (2, 2.0), (2, 3.0)):
        assert score_samples([counted], ["CCO"], {"label": [label], "target": [target]}, ledger).tolist() == [[target]]
    assert asked == ["CCO"] * 2  # another label is no other score
