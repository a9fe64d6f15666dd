"""Molecules with the charge as a field go through pretraining, GRPO, sampling and evaluation to the report."""

from __future__ import annotations

import csv
import gzip
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rdkit import Chem
from torch import nn

from discrete_grpo import GRPOConfig, PretrainConfig
from discrete_grpo.benchmarking.checks import policy_elements
from discrete_grpo.core.rollout import Context
from discrete_grpo.datasets.enumeration import load_enumerated
from discrete_grpo.datasets.molecule_fields import FieldMolecules, field_statistics
from discrete_grpo.datasets.molecules import dataset_from_smiles, statistics
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.domains.molecule_fields import encode
from discrete_grpo.domains.smiles import parse
from discrete_grpo.models.equivariant import EquivariantSizes
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.fields import FieldPolicy
from discrete_grpo.recipes.conditions import prepare_columns
from discrete_grpo.recipes.evaluate import evaluate_file
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.kinds.molecules import MOLECULES
from discrete_grpo.recipes.loading import load
from discrete_grpo.recipes.pretraining.field_options import equivariant_sizes
from discrete_grpo.recipes.pretraining.molecule_fields import POLICY_WORDS, ChargeOptions, molecule_field_policy
from discrete_grpo.recipes.pretraining.molecules import PretrainRecipe
from discrete_grpo.recipes.pretraining.pretrain import pretrain
from discrete_grpo.recipes.sample import sample, sample_file
from discrete_grpo.recipes.search import SearchRecipe, run_search
from discrete_grpo.recipes.train import TrainRecipe, run_train
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.runs.checkpoint import Checkpoints, load_metadata
from discrete_grpo.runs.recorder import read_metrics
from discrete_grpo.runs.serialization import CheckpointError
from discrete_grpo.testing import check_policy

TINY = NetworkSizes(layers=1, heads=2, width=16, edge_width=8, global_width=8)
CHARGED = ("C[O-]", "C[NH3+]", "[NH3+]C[O-]", "C[N+](=O)[O-]", "[C-]#[O+]", "N[O-]", "C[OH2+]")
SMILES = (*load_enumerated(3).smiles, *CHARGED)
STATS = field_statistics(statistics(dataset_from_smiles(SMILES, "small")))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("charges")
    (folder / "small.smi").write_text("\n".join(SMILES) + "\n", encoding="utf-8")
    return folder


def recipe(work: Path, **changes: Any) -> PretrainRecipe:
    loop = PretrainConfig(max_steps=80, batch_size=32, learning_rate=1e-2, warmup_steps=0, save_steps=40, seed=3)
    fixed: dict[str, Any] = {"data": str(work / "small.smi"), "output_dir": str(work / "pretrained"), "charges": "field"}
    fixed |= {"num_steps": 6, "network": TINY, "pretrain": loop, "evaluation_samples": 8}
    return PretrainRecipe(**fixed | changes)


@pytest.fixture(scope="module")
def pretrained(work: Path) -> Path:
    return pretrain(recipe(work))


def test_pretraining_keeps_what_it_takes_to_use_the_policy(pretrained: Path) -> None:
    metadata = load_metadata(pretrained)
    assert metadata["statistics"] == STATS.to_json()
    assert metadata["data"]["molecules"] == len(SMILES)
    lines = read_metrics(pretrained.parent)
    assert {"loss_atom", "loss_charge", "loss_bond", "eval/valid"} <= {name for line in lines for name in line}
    loaded = load(pretrained, SamplerOptions(num_steps=3, temperature=0.5))
    assert loaded.family is MOLECULES
    assert isinstance(loaded.policy, FieldPolicy)
    assert [field.name for field in loaded.policy.node_fields] == ["atom", "charge"]
    assert (loaded.policy.num_steps, loaded.policy.temperature) == (3, 0.5)
    assert all(loaded.policy.can_draw(text) for text in SMILES)
    assert not loaded.policy.can_draw("CCCCC")  # too large
    assert not loaded.policy.can_draw("C[S-]")
    assert policy_elements(loaded) == frozenset({"C", "N", "O", "F"})


def test_a_run_that_was_stopped_goes_on_to_the_same_policy(pretrained: Path, work: Path) -> None:
    shutil.copytree(pretrained.parent, work / "again")
    shutil.rmtree(work / "again" / "policy")
    shutil.rmtree(Checkpoints(work / "again").all()[-1])  # as if it had been killed half-way
    made = pretrain(recipe(work, output_dir=str(work / "again")), resume=True)
    assert (made / "model.safetensors").read_bytes() == (pretrained / "model.safetensors").read_bytes()


def test_samples_are_smiles_some_of_which_are_charged(pretrained: Path, work: Path) -> None:
    drawn = sample(pretrained, 60, seed=1)
    assert drawn == sample(pretrained, 60, seed=1)
    mols = [mol for text in drawn if (mol := parse(text)) is not None]
    assert len(mols) > 20
    assert {atom.GetFormalCharge() for mol in mols for atom in mol.GetAtoms()} > {0}
    path = sample_file(str(pretrained), 60, str(work / "samples.csv"), seed=1)
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [row["smiles"] or None for row in rows] == drawn
    assert evaluate_file(str(path))["valid"] == pytest.approx(len(mols) / 60)


def test_grpo_logs_the_charges_and_reports_molecules(pretrained: Path, work: Path) -> None:
    config = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=16, learning_rate=1e-3, beta=0.1)
    found = run_train(
        TrainRecipe(policy=str(pretrained), reward=qed, grpo=config, evaluation_samples=8, output_dir=str(work / "run"))
    )
    line = read_metrics(work / "run")[-1]
    for name in ("atom", "charge", "bond"):
        assert (line[f"fields/{name}/kl"] or 0) > 0
        assert {f"fields/{name}/log_ratio", f"fields/{name}/entropy"} <= set(line)
    assert {"valid", "qed"} <= set(found["after"])
    assert "<svg" in (work / "run" / "report.html").read_text(encoding="utf-8")
    after = sample(work / "run", 4, seed=2)
    assert all(text is None or Chem.MolFromSmiles(text) is not None for text in after)


def test_it_learns_from_molecules_that_somebody_else_measured(pretrained: Path, work: Path) -> None:
    table = work / "scored.csv"
    table.write_text("smiles,score\n" + "".join(f"{text},{k % 5}\n" for k, text in enumerate(SMILES)), encoding="utf-8")
    config = GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8, learning_rate=1e-3)
    settings: dict[str, Any] = {"data": str(table), "score_column": "score", "offline_steps": 1, "evaluation_samples": 0}
    run_train(TrainRecipe(policy=str(pretrained), reward=[], grpo=config, output_dir=str(work / "offline"), **settings))
    assert math.isfinite(read_metrics(work / "offline" / "offline")[-1]["fields/charge/entropy"] or math.nan)


def test_search_and_refinement_start_from_its_molecules(pretrained: Path, work: Path) -> None:
    found = run_search(
        SearchRecipe(policy=str(pretrained), reward=qed, output_dir=str(work / "search"), rounds=2, population=4, children=4)
    )
    assert found.rewards[0] >= found.history[0]["best"]
    assert all(parse(text) is not None for text in found.samples[:1])
    table = (work / "search" / "best.csv.gz").read_bytes()
    assert gzip.decompress(table).decode().startswith("smiles,reward,")
    config = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=16, refine_fraction=0.5, learning_rate=1e-3)
    run_train(TrainRecipe(policy=str(pretrained), reward=qed, grpo=config, evaluation_samples=0, output_dir=str(work / "refined")))
    assert len(read_metrics(work / "refined")) == 2


def test_options_reach_the_fields() -> None:
    options = ChargeOptions(kernel="flow", noise="absorbing", charge_weight=0.25, charge_exponent=2.0, num_steps=7)
    made = molecule_field_policy(STATS, equivariant_sizes(TINY, POLICY_WORDS), options)
    fields: dict[str, Any] = {field.name: field for field in (*made.node_fields, *made.edge_fields)}
    assert {name: field.weight for name, field in fields.items()} == {"atom": 1.0, "charge": 0.25, "bond": 5.0}
    schedules = {name: field.kernel.noise.schedule for name, field in fields.items()}
    assert schedules == {"atom": CosineSchedule(), "charge": CosineSchedule(exponent=2.0), "bond": CosineSchedule()}
    assert {type(field.kernel).__name__ for field in fields.values()} == {"FlowInterpolation"}
    assert [fields[name].kernel.noise.num_states for name in ("atom", "charge", "bond")] == [5, 4, 5]  # a mask each
    assert made.num_steps == 7
    assert made.network.config.width == TINY.width  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"noise": "absorbing", "kernel": "flow"},
        {"noise": "uniform", "kernel": "flow_euler", "eta": 2.0, "schedule": "linear"},
    ],
)
def test_every_noise_draws_molecules_and_has_a_loss(options: dict[str, Any]) -> None:
    made = molecule_field_policy(STATS, equivariant_sizes(TINY, POLICY_WORDS), ChargeOptions(num_steps=4, **options))
    random = torch.Generator().manual_seed(0)
    drawn = made.sample([Context(k) for k in range(6)], generator=random).samples
    assert all(text is None or isinstance(text, str) for text in drawn)
    data = FieldMolecules(dataset_from_smiles(SMILES), STATS.fields)
    losses = made.likelihood_loss(data.batch(torch.arange(len(data))), generator=random)
    parts = losses["loss_atom"] + losses["loss_charge"] + 5 * losses["loss_bond"]
    torch.testing.assert_close(losses["loss"].detach(), parts)


def test_neutral_molecules_have_one_class_of_charge(work: Path) -> None:
    short = PretrainConfig(max_steps=2, batch_size=32)
    given = {"data": "enumerated", "max_atoms": 3, "output_dir": str(work / "neutral"), "evaluation_samples": 0}
    neutral = pretrain(recipe(work, pretrain=short, **given))
    loaded = load(neutral)
    assert loaded.metadata["statistics"]["charges"] == [0]
    assert {type(text) for text in sample(neutral, 20, seed=0)} <= {str, type(None)}


def test_the_kit() -> None:
    made = molecule_field_policy(STATS, EquivariantSizes(**vars(equivariant_sizes(TINY, POLICY_WORDS))), ChargeOptions(num_steps=3))
    report = check_policy(made, [Context(k // 2) for k in range(4)], samples=200, skip=("learning",))
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"charges": "both"}, "charges: 'both', expected joint or field"),
        ({"precondition": True}, "precondition: True, expected False with charges as a field"),
        ({"train_distortion": "polydec"}, "train_distortion: 'polydec', expected 'identity' with charges as a field"),
        ({"sample_distortion": "cos"}, "sample_distortion: 'cos', expected 'identity' with charges as a field"),
        ({"properties": ("MolLogP",)}, "properties: MolLogP, expected none with charges as a field"),
        ({"network": NetworkSizes(walk_length=4)}, "network.walk_length: 4, expected 8 with charges as a field"),
        ({"network": NetworkSizes(connectivity=True)}, "network.connectivity: True, expected False with charges as a field"),
        ({"network": NetworkSizes(log_time=True)}, "network.log_time: True, expected False with charges as a field"),
        ({"charge_weight": -1.0}, "charge_weight: -1"),
        ({"charge_exponent": 0.0}, "charge_exponent: 0"),
        ({"charge_exponent": 2.0, "schedule": "linear"}, "charge_exponent: 2.0, expected 1 with schedule linear"),
        ({"charges": "joint", "charge_weight": 2.0}, "charge_weight: 2.0, expected 1 unless charges is 'field'"),
        ({"charges": "joint", "charge_exponent": 2.0}, "charge_exponent: 2.0, expected 1 unless charges is 'field'"),
    ],
)
def test_options_that_do_not_exist_are_one_line_before_any_work(work: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"charge|network|properties|precondition|distortion") as caught:
        recipe(work, data="nowhere.smi", **given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_network_of_your_own_is_refused_before_the_data_is_read(work: Path) -> None:
    with pytest.raises(ValueError, match="network: Linear, expected none with charges as a field"):
        pretrain(recipe(work, data="nowhere.smi", output_dir=str(work / "refused")), network=nn.Linear(1, 1))


def test_scaffolds_and_misspelt_conditions_are_refused(pretrained: Path) -> None:
    loaded = load(pretrained)
    with pytest.raises(ValueError, match="scaffold: 'CO', expected none"):
        prepare_columns(loaded, None, "CO")
    with pytest.raises(ValueError, match="scaffold: 'CO', expected none: a policy with charges as a field fixes no atoms"):
        prepare_columns(loaded, [{"scaffold": "CO"}])
    with pytest.raises(ValueError, match="a condition named 'num_node'; did you mean 'num_nodes'"):
        prepare_columns(loaded, [{"num_node": 2}])
    mols = [parse(text) for text in sample(pretrained, 8, columns=[{"num_nodes": 2}])]
    assert {mol.GetNumAtoms() for mol in mols if mol is not None} == {2}


def test_statistics_that_are_missing_or_do_not_fit_are_one_line(pretrained: Path) -> None:
    policy = load(pretrained).policy
    plain = STATS.to_json()
    fewer = {"charges": plain["charges"][:2], "charge_marginal": plain["charge_marginal"][:2]}
    for metadata, said in (
        ({}, "has no molecule statistics"),
        ({"statistics": statistics(dataset_from_smiles(["CO"])).to_json()}, "cannot be read"),
        ({"statistics": plain | {"charges": None}}, "cannot be read"),
        ({"statistics": plain | fewer}, "has statistics of classes atom 4, charge 2, expected the policy's atom 4, charge 3"),
    ):
        with pytest.raises(CheckpointError, match=said) as caught:
            MOLECULES.decode(policy, metadata)
        assert "\n" not in str(caught.value)


def test_a_molecule_of_other_elements_is_refused(pretrained: Path) -> None:
    policy = load(pretrained).policy
    with pytest.raises(ValueError, match=r"smiles\[0\]: 'CS', "):
        policy.graphs_of(["CS"])
    batch = encode(["CO"], STATS.fields)
    assert torch.equal(policy.graphs_of(["CO"]).nodes["atom"], batch.nodes["atom"])
