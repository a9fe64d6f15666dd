"""A policy that was loaded or made by a recipe is trained as an object like one that is named: the run makes the same samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import discrete_grpo as dg
from discrete_grpo.core.description import attach_metadata, description
from discrete_grpo.datasets.molecules import dataset_from_smiles, statistics
from discrete_grpo.domains.tokenizer import Tokenizer
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.loading import load, policy_object
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.molecules import molecule_policy
from discrete_grpo.recipes.pretraining.smiles import smiles_policy
from discrete_grpo.rewards.graphs import connected
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer

SHORT = GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8, learning_rate=1e-5)


def made_molecules() -> Any:
    data = dataset_from_smiles(["CCO", "CCN", "CC=O", "CCC", "COC"])
    return molecule_policy(statistics(data), NetworkSizes(layers=1, width=16, global_width=16), DiffusionOptions(num_steps=2))


def made_smiles() -> Any:
    return smiles_policy(Tokenizer(("C", "O")), max_length=4, layers=1, heads=1, width=8)


FEW = dg.SamplerOptions(num_steps=2)
MADE = {
    "loaded molecules": (lambda: dg.load_policy("qm9-small", FEW), qed, "molecules"),
    "loaded graphs": (lambda: dg.load_policy("tree-16", FEW), connected, "graphs"),
    "made molecules": (made_molecules, qed, "molecules"),
    "made SMILES": (made_smiles, qed, "molecules"),
}


@pytest.mark.parametrize("name", MADE)
def test_a_run_of_an_object_makes_the_samples_of_the_object(name: str, tmp_path: Path) -> None:
    make, reward, kind = MADE[name]
    policy = make()
    dg.train(policy, reward, output_dir=tmp_path / "run", grpo=SHORT, evaluation_samples=4)
    found = dg.sample(str(tmp_path / "run"), 4)
    assert all(one is None or isinstance(one, str) for one in found)
    assert load(tmp_path / "run").family.name == kind
    again = dg.load_policy(tmp_path / "run")
    dg.train(again, reward, output_dir=tmp_path / "second", grpo=SHORT, evaluation_samples=0)
    assert all(one is None or isinstance(one, str) for one in dg.sample(str(tmp_path / "second"), 4))


def test_a_trainer_without_metadata_leaves_checkpoints_that_make_molecules(tmp_path: Path) -> None:
    GRPOTrainer(made_molecules(), qed, SHORT, run=tmp_path).train()
    assert all(one is None or isinstance(one, str) for one in dg.sample(str(tmp_path), 4))


def test_another_decoder_is_kept() -> None:
    policy = made_smiles()
    policy.decode = lambda texts: [text.lower() for text in texts]
    loaded = policy_object(policy)
    assert loaded.family.name == "samples"
    assert loaded.policy.decode(["CO"]) == ["co"]


def test_a_description_is_kept_on_the_policy_inside_wrappers() -> None:
    class Wrapper:
        def __init__(self, policy: Any) -> None:
            self.policy = policy

    inner = made_smiles()
    assert attach_metadata(wrapper := Wrapper(Wrapper(inner)), {"kind": "text"}) is wrapper
    assert inner.sample_metadata == description(wrapper) == {"kind": "text"}


def test_options_at_the_wrong_place_are_told_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^beta: a field of GRPOConfig, expected it as grpo=GRPOConfig\(beta=\.\.\.\)$"):
        dg.train("qm9-small", qed, output_dir=tmp_path / "run", beta=0.1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"temperature": -1.0}, "temperature: -1"),
        ({"top_p": 1.5}, "top_p: 1.5"),
        ({"top_k": 0}, "top_k: 0"),
        ({"eta": -1.0}, "eta: -1"),
        ({"omega": -0.5}, "omega: -0.5"),
    ],
)
def test_sampler_options_out_of_their_range_are_refused_when_made(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        dg.SamplerOptions(**given)


def test_optimise_says_what_it_takes_before_it_looks_at_options(tmp_path: Path) -> None:
    policy = dg.load_policy("tree-16")
    with pytest.raises(
        ValueError, match="policy: GraphPolicy is a GraphPolicy that makes graphs, expected a TokenPolicy that writes"
    ):
        dg.optimise(policy, qed, output_dir=tmp_path / "run")
