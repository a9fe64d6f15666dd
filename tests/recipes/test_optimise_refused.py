"""What ``optimise`` refuses before any work: settings, arguments, policies, and folders in use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.recipes.optimise import OptimiseRecipe, optimise
from discrete_grpo.recipes.train import train
from discrete_grpo.rewards.molecules import qed
from tests.recipes.optimise_parts import run


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_oracle_calls": 0}, "max_oracle_calls: 0, expected at least 1"),
        ({"keep": 0}, "keep: 0, expected at least 1"),
        ({"settings": {"drawz": 3}}, "settings: 'drawz' is unknown; did you mean 'draws'"),
        ({"settings": {"take": 0}}, "take: 0"),
        ({"settings": {"kappa": -1.0}}, "kappa: -1"),
        ({"settings": {"temperature": 0.0}}, "temperature: 0"),
        ({"settings": {"draws": "many"}}, "settings: draws 'many', expected int"),
        ({"settings": {"draws": 2.5}}, "settings: draws 2.5, expected int"),
        ({"settings": {"screen": 1}}, "settings: screen 1, expected bool"),
        ({"settings": {"screen": None}}, "settings: screen None, expected bool"),
        ({"settings": {"draws": True}}, "settings: draws True, expected int"),
        ({"settings": {"kappa": False}}, "settings: kappa False, expected float"),
        ({"settings": {"objective": {"temprature": 0.1}}}, "settings: objective: 'temprature' is unknown; did you mean"),
        ({"settings": {"objective": None}}, "settings: objective: None, expected a mapping of temperature"),
        ({"settings": {"memory_size": 0}}, "^settings: memory_size: 0, expected at least 1"),
        ({"settings": {"objective": {"temperature": -1.0}}}, "^settings: objective: temperature: -1"),
        ({"warm_start_calls": 4}, "warm_start_calls: 4, expected none without a file"),
        ({"max_oracle_calls": 2.5}, "^max_oracle_calls: 2.5, expected a whole number, at least 1$"),
        ({"max_oracle_calls": "10"}, "^max_oracle_calls: '10', expected a whole number, at least 1$"),
        ({"keep": None}, "^keep: None, expected a whole number, at least 1$"),
        ({"seed": -1}, "^seed: -1, expected 0 to 4294967295$"),
        ({"seed": "a"}, "^seed: 'a', expected a whole number, 0 to 4294967295$"),
    ],
)
def test_settings_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OptimiseRecipe(**given)


def asks_more(samples: Sequence[str], target: float) -> list[float]:
    raise AssertionError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seeds": 3}, r"^seeds: unknown option; did you mean 'seed'\?$"),
        ({"reward": None}, "^reward: None, expected a function of a list of samples, or a list of such functions$"),
        ({"reward": "qed"}, "^reward: 'qed', expected a function"),
        ({"reward": [qed, 3]}, "^reward: .*, expected a function"),
        ({"reward": []}, "^reward: an empty list, expected at least one reward$"),
        ({"reward": asks_more}, "^reward: asks_more.*missing a required argument: 'target'.*, expected a function"),
    ],
)
def test_arguments_of_the_function_are_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        run(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("function", [optimise, train])
def test_no_policy_is_refused(function: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^policy: None, expected a name or a policy$"):
        function(None, qed, output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_policy_of_graphs_and_a_folder_in_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"warm_start: 'none.smi' does not exist, expected a SMILES file"):
        run(tmp_path / "d", warm_start="none.smi")
    with pytest.raises(
        ValueError, match="policy: tree-16 is a GraphPolicy that makes graphs, expected a TokenPolicy that writes SMILES or"
    ):
        optimise("tree-16", qed, output_dir=tmp_path / "a")
    with pytest.raises(ValueError, match=r"policy: tree-64-sequences is a .* expected a TokenPolicy that writes SMILES"):
        optimise("tree-64-sequences", qed, output_dir=tmp_path / "b")
    run(tmp_path / "c", budget=12)
    with pytest.raises(ValueError, match="holds results of another run"):
        run(tmp_path / "c", budget=12)
