"""A task is a reward with a definition: samples of each kind, failures, and what its kept scores belong to."""

from __future__ import annotations

import importlib
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from discrete_grpo.core.scoring import RewardError, score_one
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.identity import code_identity, reward_identity
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.rewards.pmo import TASKS
from discrete_grpo.rewards.scoring_parts import Clipped, GeometricMean, Isomer, Tanimoto
from discrete_grpo.rewards.task import Task


def task(score: Any, **changed: Any) -> Task:
    return Task("toy", "test", "a number", "this test", score, **changed)


def heavy_atoms(mol: Any) -> float:
    return float(mol.GetNumAtoms())


def test_molecules_are_parsed_and_invalid_ones_score_zero() -> None:
    assert task(heavy_atoms)(["CCO", "C.C", "", None, "not", "[2H]C"]) == [3.0, 0.0, 0.0, 0.0, 0.0, 2.0]
    assert task(heavy_atoms)(["C"], target=["a column"]) == [1.0]


def test_graphs_and_texts_have_their_own_parsed_form() -> None:
    edges = task(lambda graph: graph.number_of_edges(), kind="graphs")
    assert edges([graph6(nx.path_graph(4)), nx.cycle_graph(5), None, "?", "no graph6 line"]) == [3.0, 5.0, 0.0, 0.0, 0.0]
    assert task(len, kind="text")(["three", "", None]) == [5.0, 0.0, 0.0]


def test_an_unknown_score_stays_unknown() -> None:
    assert task(lambda mol: None)(["C", None]) == [None, 0.0]
    assert math.isnan(score_one(task(lambda mol: math.nan), ["C"])[0])


def test_a_failure_is_an_error_that_names_task_and_sample() -> None:
    def fails(mol: Any) -> float:
        raise ArithmeticError("two\nlines")

    with pytest.raises(RewardError, match=r"^reward toy: sample 'CCO': ArithmeticError: two lines$"):
        task(fails)([None, "CCO"])
    with pytest.raises(RewardError, match=r"^reward toy: sample 'CCO': ArithmeticError: two lines$"):
        score_one(task(fails), ["CCO"])


WRONG = [("name", ""), ("name", 3), ("suite", ""), ("kind", "images"), ("version", 0), ("score", 3), ("optimum", "x")]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_wrong_arguments(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: {value!r}, expected"):
        replace(task(heavy_atoms), **{name: value})


def test_a_score_of_other_arguments_is_refused_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"^score: <lambda>\(\) \(too many positional arguments\), expected a function of one sample$"
    ):
        task(lambda: 1.0)


def test_what_rewards_refuse_a_task_refuses() -> None:
    with pytest.raises(RewardError, match=r"returned '1\.5' for sample 'CCO', expected a number or None"):
        score_one(task(lambda mol: "1.5"), ["CCO"])
    with pytest.raises(ValueError, match=r"^samples: 'CCO', expected a list of samples, such as \['CCO'\]$"):
        task(heavy_atoms)("CCO")


def test_the_identity_changes_with_the_definition_alone() -> None:
    one = task(Clipped(Isomer("CH4"), 0.75))
    same = [replace(one, about="other words"), replace(one, published={"a": 0.5}), task(Clipped(Isomer("CH4"), 0.75))]
    parts = [Clipped(Isomer("CH4"), 0.8), Clipped(Isomer("C2H6"), 0.75), Clipped(Tanimoto("ECFP4", "C"), 0.75)]
    other = [replace(one, version=2), replace(one, name="b"), replace(one, suite="b"), *map(task, parts)]
    assert {reward_identity(a) for a in same} == {reward_identity(one)} != {None}
    assert len({reward_identity(a) for a in [one, *other]}) == len(other) + 1


def test_a_score_of_the_user_counts_with_its_source_and_settings() -> None:
    scale = 2.0
    made = [task(heavy_atoms), task(lambda mol: scale), task(lambda mol: scale + 1), task(partial(pow, 2)), task(partial(pow, 3))]
    identities = [reward_identity(one) for one in made]
    assert None not in identities
    assert len(set(identities)) == len(made)


class Refuses:
    cached_as: Any = None

    def __call__(self, mol: Any) -> float:
        return 0.0


class Named(Refuses):
    def __init__(self, cached_as: Any) -> None:
        self.cached_as = cached_as


def test_a_score_can_say_itself_what_it_is_kept_as() -> None:
    assert task(Refuses()).cached_as is None
    assert reward_identity(task(Refuses())) is None
    identities = {reward_identity(task(Named(given))) for given in ("a", "b", ("a", 1))}
    assert len(identities) == 3
    assert None not in identities


PARTS = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    scale: float = 1.0

    def __call__(self, mol):
        return self.scale * {factor}

def plain(mol):
    return float({factor})
"""


def test_a_part_of_the_user_within_one_of_this_package_counts_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found, kept = list[list[str | None]](), list[Any]()
    for factor in (1, 1, 20):
        (tmp_path / "edited_parts.py").write_text(PARTS.format(factor=factor))
        monkeypatch.delitem(sys.modules, "edited_parts", raising=False)
        importlib.invalidate_caches()
        kept.append(importlib.import_module("edited_parts"))  # whose functions then have other addresses
        parts = [Clipped(part, 1.0) for part in (kept[-1].Mine(), kept[-1].plain)]
        made = [task(score) for part in parts for score in (part, GeometricMean((Isomer("CH4"), part)))]
        found.append([identity(one) for one in made for identity in (reward_identity, code_identity)])
    assert found[0] == found[1]
    assert not {*found[0], None} & set(found[2])
    monkeypatch.delitem(sys.modules, "edited_parts")


def test_a_part_within_one_of_this_package_can_say_what_it_is_kept_as() -> None:
    same, other = (task(GeometricMean((Isomer("CH4"), Clipped(Named(given), 1.0)))) for given in ("a", "b"))
    for identity in (reward_identity, code_identity):
        assert identity(same) not in (None, identity(other))
    assert reward_identity(task(Clipped(Refuses(), 1.0))) is None


def test_methods_share_kept_scores() -> None:
    cache, asked = ScoreCache(), list[str]()

    class Counted(Refuses):
        cached_as = "counted"

        def __call__(self, mol: Any) -> float:
            asked.append("call")
            return 0.5

    for _ in range(2):
        ledger = Ledger(key=molecule_key, max_oracle_calls=2, cache=cache)
        assert ledger.score([task(Counted())], ["CCO", "OCC", None, "CC"])[:, 0].tolist() == [0.5, 0.5, 0.0, 0.5]
        assert ledger.calls == 2
    assert asked == ["call", "call"]


def test_tasks_are_values() -> None:
    for one in TASKS.values():
        assert pickle.loads(pickle.dumps(one)) == one
        assert hash(one) == hash(pickle.loads(pickle.dumps(one)))


def test_reading_the_tasks_loads_neither_torch_nor_rdkit() -> None:
    code = "import sys, discrete_grpo.rewards.guacamol; print({'torch', 'rdkit', 'numpy', 'networkx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_score_that_changes_its_molecule_leaves_other_scores_as_they_are() -> None:
    from rdkit import Chem

    from discrete_grpo.domains.smiles import parse

    def kekulized(mol: Any) -> float:
        Chem.Kekulize(mol, clearAromaticFlags=True)
        return 1.0

    assert Task("kekulized", "toy", "1", "here", kekulized)(["c1ccncc1CN"]) == [1.0]
    shared = parse("c1ccncc1CN")
    assert shared is not None
    assert shared.GetAtomWithIdx(0).GetIsAromatic()
