"""The larger bundled graph policies: they are what their recipes say, and draw what they were trained on."""

from __future__ import annotations

import networkx as nx
import pytest
import yaml
from rdkit import Chem

from discrete_grpo import SamplerOptions, load_policy, sample
from discrete_grpo.cli.commands import preset_path
from discrete_grpo.diffusion.flow import FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule, PolydecDistortion
from discrete_grpo.domains.graph6 import from_graph6
from discrete_grpo.runs.checkpoint import load_metadata
from discrete_grpo.runs.checkpoint_names import BUNDLED


@pytest.mark.parametrize(("command", "name"), [("pretrain", "zinc-graph-small"), ("pretrain-graphs", "tree-64")])
def test_the_recipe_is_that_of_the_weights(command: str, name: str) -> None:
    preset = yaml.safe_load(preset_path(command, name).read_text(encoding="utf-8"))
    policy = load_policy(name)
    network = policy.network.config
    assert {key: getattr(network, key) for key in preset["network"]} == preset["network"]
    assert (policy.num_steps, policy.precondition) == (preset["num_steps"], preset["precondition"])
    assert isinstance(policy.edge_kernel, {"d3pm": D3PM, "flow": FlowInterpolation}[preset.get("kernel", "d3pm")])
    schedule = {"linear": LinearSchedule, "cosine": CosineSchedule}[preset["schedule"]]
    assert isinstance(policy.edge_kernel.noise.schedule, schedule)
    assert isinstance(policy.sample_distortion, PolydecDistortion)
    assert preset["sample_distortion"] == "polydec"
    assert isinstance(policy.train_distortion, PolydecDistortion) == (preset.get("train_distortion") == "polydec")
    assert load_metadata(BUNDLED / name)["pretraining_steps"] == preset["pretrain"]["max_steps"]
    assert (BUNDLED / name / "model.safetensors").stat().st_size < 4e6


def test_drug_like_molecules() -> None:
    drawn = sample("zinc-graph-small", 12, seed=0, options=SamplerOptions(num_steps=25))
    mols = [mol for text in drawn if text is not None and (mol := Chem.MolFromSmiles(text)) is not None]
    assert len(mols) >= 6
    assert 18 < sum(mol.GetNumHeavyAtoms() for mol in mols) / len(mols) < 28
    assert any(atom.GetSymbol() not in "CNO" for mol in mols for atom in mol.GetAtoms())


@pytest.mark.parametrize(("name", "count", "least"), [("tree-64", 8, 1), ("tree-64-grpo", 4, 2)])
def test_trees_of_64_nodes(name: str, count: int, least: int) -> None:
    drawn = sample(name, count, seed=0, options=SamplerOptions(num_steps=25, kernel="flow"))
    graphs = [from_graph6(text) for text in drawn if text is not None]
    assert [graph.number_of_nodes() for graph in graphs] == [64] * count
    assert all(58 <= graph.number_of_edges() <= 69 for graph in graphs)
    assert sum(nx.is_tree(graph) for graph in graphs) >= least


def test_the_trained_policy_of_trees_is_what_its_preset_made_of_the_other() -> None:
    before, after = load_policy("tree-64"), load_policy("tree-64-grpo")
    assert after.network.config == before.network.config
    assert after.num_steps == 50
    preset = yaml.safe_load(preset_path("train", "tree-64-grpo").read_text(encoding="utf-8"))
    metadata = load_metadata(BUNDLED / "tree-64-grpo")
    assert (metadata["policy"], metadata["grpo_steps"]) == (preset["policy"], preset["grpo"]["max_steps"])
    assert metadata["pretraining_steps"] == load_metadata(BUNDLED / "tree-64")["pretraining_steps"]
    assert preset["kernel"] == "flow"
    assert isinstance(after.edge_kernel, FlowInterpolation)
