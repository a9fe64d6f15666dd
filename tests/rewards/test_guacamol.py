"""The GuacaMol suite: definitions against a second writing, and the score over the best molecules by hand."""

from __future__ import annotations

import math

import pytest
from rdkit import Chem
from rdkit.rdBase import BlockLogs

from discrete_grpo.rewards import pmo
from discrete_grpo.rewards.guacamol import ARIPIPRAZOLE, TASKS, guacamol_score, row_numbers
from discrete_grpo.rewards.identity import reward_identity
from tests.pmo_definitions import GUACAMOL, PRINTS
from tests.rewards.test_pmo import INVALID, MOLECULES


def test_the_suite_has_the_twenty_tasks() -> None:
    assert len(TASKS) == 20
    assert set(TASKS) == set(GUACAMOL)
    for name, task in TASKS.items():
        assert (task.name, task.suite, task.published) == (name, "guacamol", {})


@pytest.mark.parametrize("name", ["aripiprazole_similarity", "isomers_c11h24", "zaleplon_mpo"])
def test_the_second_writing_gives_the_same(name: str) -> None:
    for told, smiles in (MOLECULES | {"target": ARIPIPRAZOLE, "undecane": "CCCCCCCCCCC"}).items():
        with BlockLogs():
            wanted = GUACAMOL[name](Chem.MolFromSmiles(smiles))
        assert TASKS[name]([smiles]) == pytest.approx([wanted], rel=1e-12, abs=1e-15), told
    assert TASKS[name](INVALID) == [0.0] * len(INVALID)


def test_shared_tasks_are_those_of_pmo_under_another_name_in_the_cache() -> None:
    shared = set(TASKS) & set(pmo.TASKS)
    assert len(shared) == 18
    for name in shared:
        assert TASKS[name].score is pmo.TASKS[name].score
        assert reward_identity(TASKS[name]) != reward_identity(pmo.TASKS[name])


def test_aripiprazole_is_compared_by_atoms_and_not_by_features() -> None:
    assert TASKS["aripiprazole_similarity"]([ARIPIPRAZOLE]) == [1.0]
    mol, target = Chem.MolFromSmiles("Clc1cccc(N2CCNCC2)c1Cl"), Chem.MolFromSmiles(ARIPIPRAZOLE)
    by_features = Chem.DataStructs.TanimotoSimilarity(PRINTS["FCFP4"](mol), PRINTS["FCFP4"](target)) / 0.75
    assert TASKS["aripiprazole_similarity"](["Clc1cccc(N2CCNCC2)c1Cl"]) != pytest.approx([by_features], abs=1e-3)


def test_the_score_by_hand() -> None:
    assert guacamol_score("median1", [0.9] + [0.6] * 9 + [0.3] * 90 + [0.1] * 50) == pytest.approx(
        (0.9 + (0.9 + 9 * 0.6) / 10 + (0.9 + 9 * 0.6 + 90 * 0.3) / 100) / 3
    )
    assert guacamol_score("celecoxib_rediscovery", [0.2, 0.7, 0.1]) == 0.7
    assert guacamol_score("isomers_c11h24", [1.0] * 200) == 1.0
    assert guacamol_score("isomers_c11h24", [1.0] * 100) == pytest.approx(100 / 159)
    assert guacamol_score("isomers_c9h10n2o2pf2cl", [1.0] * 200) == pytest.approx(0.8)
    assert guacamol_score(TASKS["median2"], [0.5, math.nan]) == pytest.approx((0.5 + 0.05 + 0.005) / 3)
    assert guacamol_score("median2", [None, 0.5]) == guacamol_score("median2", [0.5])
    assert guacamol_score("median1", []) == 0.0
    with pytest.raises(ValueError, match="did you mean 'median1'"):
        guacamol_score("median_1", [1.0])
    with pytest.raises(ValueError, match="qed"):
        guacamol_score(pmo.TASKS["qed"], [1.0])


def test_a_row_counts_each_molecule_once_without_stereo() -> None:
    task = TASKS["median1"]
    samples, scores = ["C[C@H](F)Cl", "C[C@@H](F)Cl", "CCO", "CCN", "CCC"], [0.8, 0.9, math.nan, 0.5, 0.4]
    assert row_numbers(task, samples, scores) == {"guacamol_score": guacamol_score(task, [0.9, 0.5, 0.4])}
    many = ["C" * k for k in range(1, 200)]
    values = [1.0 - k / 400 for k in range(199)]
    assert row_numbers(task, many[::-1], values[::-1]) == {"guacamol_score": guacamol_score(task, values)}
    assert row_numbers(task, [], []) == {"guacamol_score": 0.0}
