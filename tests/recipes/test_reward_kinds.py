"""Rewards that cannot read the samples or the conditions of a run, refused before anything is drawn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from discrete_grpo import GRPOConfig
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.recipes.kinds.images import IMAGES
from discrete_grpo.recipes.kinds.molecules import MOLECULES
from discrete_grpo.recipes.kinds.spatial import SPATIAL
from discrete_grpo.recipes.kinds.text import TEXT
from discrete_grpo.recipes.train import train
from discrete_grpo.rewards.graphs import tree_valid
from discrete_grpo.rewards.images import ink
from discrete_grpo.rewards.judge import Judge
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.rewards.spatial import mmff_energy
from tests.benchmarking.test_methods import chains


def lengths(samples: list[Any], **columns: Any) -> list[float]:
    """A reward of somebody else, which may be for any samples."""
    return [float(len(sample or "")) for sample in samples]


@pytest.mark.parametrize(
    ("family", "reward", "said"),
    [
        (TEXT, tree_valid, "reward: tree_valid is for graphs, expected one for text, which the policy draws"),
        (TEXT, ink, "reward: ink is for images, expected one for text"),
        (IMAGES, qed, "reward: qed is for molecules, expected one for images, which the policy draws$"),
        (IMAGES, mmff_energy, "reward: mmff_energy is for molecules in space, expected one for images"),
        (SPATIAL, tree_valid, "reward: tree_valid is for graphs, expected one for molecules in space, which the policy draws$"),
        (SPATIAL, qed, "expected one for molecules in space, which the policy draws, or rewards_see: smiles$"),
        (
            MOLECULES,
            mmff_energy,
            "reward: mmff_energy is for molecules in space, expected one for molecules, which the policy draws$",
        ),
    ],
)
def test_rewards_for_samples_of_another_kind_are_refused(family: Any, reward: Any, said: str) -> None:
    family.check_rewards(object(), [lengths])
    with pytest.raises(ValueError, match=said):
        family.check_rewards(object(), [lengths, reward])


def test_rewards_that_fit_are_accepted() -> None:
    TEXT.check_rewards(object(), [qed])  # a text may be a SMILES string
    IMAGES.check_rewards(object(), [ink])
    SPATIAL.check_rewards(object(), [mmff_energy])
    MOLECULES.check_rewards(object(), [qed])


def test_a_judge_that_cannot_read_the_tokens_of_a_policy_is_refused_whatever_the_policy() -> None:
    policy = chains()
    assert not isinstance(policy, MaskedTextPolicy)
    for family in (TEXT, MOLECULES):
        with pytest.raises(ValueError, match=r"judge: 'fill-in-judge' has no '[A-Z]' in its alphabet"):
            family.check_rewards(policy, [Judge()])


def test_a_reward_that_takes_no_condition_of_the_run_is_refused_before_a_sample_is_drawn(tmp_path: Path) -> None:
    def deaf(samples: list[Any]) -> list[float]:
        return [0.0] * len(samples)

    def needy(samples: list[Any], target: Any) -> list[float]:
        return [0.0] * len(samples)

    config = GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8)
    with pytest.raises(ValueError, match=r"reward: needy\(.*missing a required argument: 'target'.*columns as keywords"):
        train(chains(), needy, output_dir=tmp_path / "run", grpo=config)
    with pytest.raises(ValueError, match=r"reward: Judge is a class, expected an instance, such as Judge\(\.\.\.\)"):
        train(chains(), cast(Any, Judge), output_dir=tmp_path / "run", grpo=config)
    with pytest.raises(TypeError, match=r"policy: MaskedTextPolicy is a class, expected an instance, such as MaskedTextPolicy"):
        train(MaskedTextPolicy, lengths, output_dir=tmp_path / "run", grpo=config)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"columns: None, expected conditions, as --columns='\[\{\"masked\": \"\.\.\.\"\}\]'"):
        train("fill-in", lengths, output_dir=tmp_path / "run", grpo=config)
    for columns in ({"columns": [{"target": 1.0}]}, {"columns": None, "evaluation_columns": [{"target": 1.0}]}):
        with pytest.raises(ValueError, match=r"reward: deaf\(.*unexpected keyword argument 'target'.*columns as keywords"):
            train(chains(), deaf, output_dir=tmp_path / "run", grpo=config, evaluation_samples=8, **columns)
    mixed: list[dict[str, Any]] = [{"target": 1.0}, {"length": 2}]  # not in the first condition alone
    with pytest.raises(ValueError, match=r"needy.*argument 'length'.*\(here target, length\), or \*\*columns for"):
        train(chains(), needy, output_dir=tmp_path / "run", grpo=config, columns=mixed)
    assert not (tmp_path / "run").exists()


def test_rewards_get_the_columns_of_all_conditions_in_every_call(tmp_path: Path) -> None:
    calls: list[tuple[int, dict[str, list[Any]]]] = []

    def scored(samples: list[Any], **columns: Any) -> list[float]:
        calls.append((len(samples), {name: list(values) for name, values in columns.items()}))
        return [0.0] * len(samples)

    config = GRPOConfig(max_steps=3, num_generations=4, generation_batch_size=4)  # a generation has one condition
    conditions: list[dict[str, Any]] = [{"target": 1.0}, {"length": 2}, {}]
    train(chains(), scored, output_dir=tmp_path / "run", grpo=config, evaluation_samples=2, columns=conditions)
    assert {frozenset(columns) for _, columns in calls} == {frozenset({"target", "length"})}
    assert all(len(values) == count for count, columns in calls for values in columns.values())
    drawn = [(columns["target"][0], columns["length"][0]) for count, columns in calls if count == 4]
    assert sorted(drawn, key=str) == [(1.0, None), (None, 2), (None, None)]


def test_conditions_of_the_evaluations_are_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def scored(samples: list[Any], **columns: Any) -> list[float]:
        return [0.0] * len(samples)

    options: dict[str, Any] = {"grpo": GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8), "evaluation_samples": 8}
    for given, kind, said in (
        ("missing.jsonl", FileNotFoundError, "evaluation_columns: 'missing.jsonl' is no file of JSON lines"),
        ([], ValueError, "evaluation_columns: no conditions, expected at least one"),
        ([{"num_nodez": 3}], ValueError, "evaluation_columns: a condition named 'num_nodez'; did you mean 'num_nodes'?"),
    ):
        with pytest.raises(kind, match=f"^{re.escape(said)}"):
            train("qm9-small", scored, output_dir=tmp_path / "refused", evaluation_columns=given, **options)
    capsys.readouterr()
    train("qm9-small", scored, output_dir=tmp_path / "run", evaluation_columns=[{"logp": 3}], num_steps=3, **options)
    assert "evaluation_columns: 'logp': not read by the policy, only by rewards" in capsys.readouterr().err
