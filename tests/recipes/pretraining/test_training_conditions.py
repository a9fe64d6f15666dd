"""A policy that draws nothing without conditions is measured under those of its training samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rdkit import Chem

from discrete_grpo import SFTRecipe, load_policy, pretrain
from discrete_grpo.core.rollout import Rollout
from discrete_grpo.datasets.smiles import token_dataset
from discrete_grpo.domains.molecule_properties import descriptor
from discrete_grpo.domains.tokenizer import SMILES, Property, Tokenizer
from discrete_grpo.importers import import_molgpt
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.recipes.pretraining.smiles import smiles_policy
from discrete_grpo.recipes.pretraining.training_conditions import training_conditions
from discrete_grpo.runs.checkpoint import save
from discrete_grpo.runs.recorder import read_evaluation, read_metrics
from tests.molgpt_reference import random_state
from tests.recipes.pretraining.sft_cases import loop, made, texts, written
from tests.recipes.pretraining.test_measured import graph_recipe, smiles_recipe, table

ROWS = ("CC1CC1,1.5", "CN,", "CO,-2e0", "OC1CC1,2.5", "CCN,0.5", "CC=O,1", "CCC,3")
HEADER = "smiles,solubility"
FIRST = [1.5, -2.0, 2.5, 0.5, 1.0]
MORE: dict[str, Any] = {"condition_dropout": 0.0, "evaluation_samples": 5, "pretrain": loop(2)}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The conditions of all samples that are drawn."""
    found: list[dict[str, Any]] = []
    for kind in (TokenPolicy, GraphPolicy):
        own = kind.sample

        def sample(self: Any, contexts: Any, *, own: Any = own, **more: Any) -> Rollout:
            found.extend(dict(context.columns) for context in contexts)
            rollout: Rollout = own(self, contexts, **more)
            return rollout

        monkeypatch.setattr(kind, "sample", sample)
    return found


def values(rows: list[dict[str, Any]]) -> Any:
    return pytest.approx([row["solubility"] for row in rows], abs=1e-5)


@pytest.mark.parametrize("make", [graph_recipe, smiles_recipe])
def test_pretraining_without_hidden_properties_is_measured_and_resumed(
    make: Any, tmp_path: Path, drawn: list[dict[str, Any]]
) -> None:
    recipe = make(table(tmp_path, ROWS, HEADER), tmp_path / "run", properties=("solubility",), **MORE)
    pretrain(recipe)
    assert len([line for line in read_metrics(tmp_path / "run") if "eval/unique" in line]) == 2
    assert {tuple(row) for row in drawn} == {("solubility",)}
    assert values(drawn[:5]) == FIRST
    pretrain(replace(recipe, pretrain=loop(3)), resume=True)
    assert len([line for line in read_metrics(tmp_path / "run") if "eval/unique" in line]) == 3
    assert drawn[5:10] == drawn[:5] == drawn[-5:]


def test_a_scaffold_and_properties_are_given_together(tmp_path: Path, drawn: list[dict[str, Any]]) -> None:
    data = table(tmp_path, ROWS, HEADER)
    pretrain(smiles_recipe(data, tmp_path / "run", properties=("solubility", "MolWt"), scaffold=True, **MORE))
    weights = [descriptor("MolWt")(Chem.MolFromSmiles(smiles)) for smiles in ("CC1CC1", "CO", "OC1CC1", "CCN", "CC=O")]
    assert [row["scaffold"] for row in drawn[:5]] == ["C1CC1", "", "C1CC1", "", ""]
    assert [row["MolWt"] for row in drawn[:5]] == pytest.approx(weights, rel=1e-5)
    assert values(drawn[:5]) == FIRST


def test_a_policy_that_draws_without_conditions_is_measured_without(tmp_path: Path, drawn: list[dict[str, Any]]) -> None:
    data = table(tmp_path, ROWS, HEADER)
    pretrain(smiles_recipe(data, tmp_path / "run", properties=("solubility",), scaffold=True, **MORE | {"condition_dropout": 0.1}))
    pretrain(smiles_recipe(data, tmp_path / "none", **MORE))
    assert drawn == [{}] * 20


def test_samples_without_a_value_in_common_are_refused_before_the_run(tmp_path: Path) -> None:
    data = table(tmp_path, ("CO,1,", "CN,,2", "CCO,3,"), "smiles,a,b")
    with pytest.raises(
        ValueError, match=r"^properties: no training sample has all of a, b, expected some, or evaluation_samples 0$"
    ):
        pretrain(smiles_recipe(data, tmp_path / "run", properties=("a", "b"), **MORE))
    assert not (tmp_path / "run").exists()


def test_as_many_are_taken_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discrete_grpo.recipes.pretraining.training_conditions.ROWS", 2)
    tokenizer, scale = Tokenizer.of(["CO"], SMILES), Property("x", 2.0, 3.0)
    table = torch.tensor([[2.0], [torch.nan], [5.0], [8.0]])
    data = token_dataset(["C", "CO", "CC", "O"], tokenizer, values=table, properties=[scale])
    policy = smiles_policy(tokenizer, max_length=4, properties=[scale], condition_dropout=0.0, layers=1, heads=2, width=8)
    assert training_conditions(policy, data, 2) == [{"x": 2.0}, {"x": 5.0}]
    assert training_conditions(policy, data, 9) == [{"x": 2.0}, {"x": 5.0}, {"x": 8.0}]
    assert training_conditions(policy, data, 0) is None


def test_scaffolds_of_data_without_a_ring_are_empty() -> None:
    tokenizer = Tokenizer.of(["CO"], SMILES)
    data = token_dataset(["C", "CO"], tokenizer, prompts=["", ""])
    policy = smiles_policy(tokenizer, max_length=4, scaffold=True, condition_dropout=0.0, layers=1, heads=2, width=8)
    assert training_conditions(policy, data, 2) == [{"scaffold": ""}] * 2


# -- further training


def always(folder: Path) -> str:
    """A policy that was always trained with a measured property, and with the molar mass."""
    return texts(folder, properties=(Property("solubility", 1.0, 2.0), Property("MolWt", 40.0, 9.0)), condition_dropout=0.0)


def test_further_training_samples_and_measures_under_the_conditions_of_its_rows(
    tmp_path: Path, drawn: list[dict[str, Any]]
) -> None:
    rows = [row for row in ROWS if not row.endswith(",")]
    data = table(tmp_path, (*rows, "CC#CO,7"), HEADER)
    recipe = SFTRecipe(always(tmp_path / "policy"), data, str(tmp_path / "run"), test_share=0.3, pretrain=loop(1))
    ready = made(recipe)
    assert ready.held_out is not None
    known = {Chem.CanonSmiles(row.split(",")[0]): float(row.split(",")[1]) for row in (*rows, "CC#CO,7")}
    for part in (ready.train, ready.held_out):
        batch = part.batch(torch.arange(len(part)))
        for tokens, (solubility, weight) in zip(batch.tokens.tolist(), batch.properties.tolist(), strict=True):
            smiles = Chem.CanonSmiles(ready.policy.tokenizer.decode(tokens))
            assert solubility == pytest.approx((known[smiles] - 1) / 2)
            assert weight == pytest.approx((descriptor("MolWt")(Chem.MolFromSmiles(smiles)) - 40) / 9, abs=1e-5)
    pretrain(replace(recipe, evaluation_samples=4))
    assert drawn[:4] == drawn[4:8]
    assert values(drawn[:4]) == [known[Chem.CanonSmiles(smiles)] for smiles in ready.samples[:4]]
    assert {"test_loss", "unique"} <= set(read_evaluation(tmp_path / "run")["after"])


def test_the_held_out_loss_of_a_policy_that_always_had_a_scaffold_has_one(tmp_path: Path) -> None:
    data = written(tmp_path / "data.smi", ["CC1CC1", "OC1CC1", "c1ccccc1", "Cc1ccccc1"])
    for share in (0.0, 0.1):
        policy = texts(tmp_path / f"policy-{share}", scaffold=True, condition_dropout=share)
        held_out: Any = made(SFTRecipe(policy, data, test_share=0.5)).held_out
        prompt = held_out.batch(torch.arange(2)).prompt
        assert (prompt is None) == (share > 0)


def test_missing_conditions_of_a_policy_that_always_had_them_are_refused(tmp_path: Path) -> None:
    policy = always(tmp_path / "policy")
    told = r"expected a number of each in a column 'solubility' of .*, as the policy was trained with one always$"
    with pytest.raises(ValueError, match=rf"^solubility: unknown for 3 of 3 samples, such as 'C.*', {told}"):
        made(SFTRecipe(policy, written(tmp_path / "none.smi", ["CO", "CN", "CC", "CCO"]), test_share=0.1))
    some = table(tmp_path, ("CO,1", "CN,", "CC,", "CCO,"), HEADER)
    with pytest.raises(ValueError, match=rf"^solubility: unknown for [23] of 3 samples, such as 'C.*', {told}"):
        made(SFTRecipe(policy, some, test_share=0.1))


def test_a_conditional_model_of_molgpt_is_trained_further(tmp_path: Path, drawn: list[dict[str, Any]]) -> None:
    tokens = ["<", "C", "N", "O", "1", "="]
    torch.save(random_state(len(tokens), 12, num_properties=2), tmp_path / "molgpt.pt")
    (tmp_path / "stoi.json").write_text(json.dumps({token: k for k, token in enumerate(tokens)}))
    given = import_molgpt(tmp_path / "molgpt.pt", vocabulary=tmp_path / "stoi.json", heads=4, properties=["solubility", "TPSA"])
    policy = str(save(tmp_path / "policy", given, metadata={"kind": "molecules"}))
    data = table(tmp_path, ("CO,1", "CN,2", "CCO,3", "CC=O,4", "CC,5"), HEADER)
    recipe = SFTRecipe(policy, data, str(tmp_path / "run"), test_share=0.2, pretrain=loop(1), evaluation_samples=3)
    pretrain(recipe)
    assert {tuple(row) for row in drawn} == {("solubility", "TPSA")}
    assert load_policy(tmp_path / "run").condition_dropout == 0
    data = written(tmp_path / "more.smi", ["CO", "CN", "CCO"])
    with pytest.raises(ValueError, match=r"^solubility: unknown for 2 of 2 samples"):
        pretrain(replace(recipe, data=data, output_dir=str(tmp_path / "more")))
    assert not (tmp_path / "more").exists()
