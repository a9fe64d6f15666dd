"""What a policy that is trained further takes from its data, and what is held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from rdkit import Chem

from discrete_grpo import SFTRecipe, load_policy, pretrain
from discrete_grpo.core.description import description
from discrete_grpo.datasets.own_graphs import own_graphs
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.domains.molecule_properties import descriptor
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.recipes.kinds.graph_sources import changed_source
from discrete_grpo.recipes.loading import load
from discrete_grpo.recipes.pretraining.graphs import own_graph_policy
from discrete_grpo.recipes.pretraining.sft import held_out_loss
from discrete_grpo.recipes.pretraining.sft_files import samples_of
from discrete_grpo.runs.checkpoint import load_metadata, save
from tests.recipes.pretraining.sft_cases import (
    FAMILIES,
    MOLECULES,
    RINGS,
    SCALES,
    SPELLED,
    STEPS,
    TINY,
    coloured,
    made,
    plain,
    quick,
    written,
)


def test_graphs_are_drawn_as_large_as_those_of_the_data(tmp_path: Path) -> None:
    policy = plain(tmp_path / "policy", [nx.path_graph(3), nx.path_graph(4)])
    data = written(tmp_path / "data.g6", [graph6(nx.path_graph(n)) for n in (3, 6, 6, 7)])
    found = made(SFTRecipe(policy, data, test_share=0.3))
    assert found.policy.node_counts == (0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.5, 0.25)
    assert found.policy.edge_kernel == load_policy(policy).edge_kernel, "the noise is that of the policy"
    assert (len(found.train), len(found.held_out or ()), found.count) == (3, 1, 4)


def test_the_noise_can_end_in_the_frequencies_of_the_data(tmp_path: Path) -> None:
    given = own_graph_policy(own_graphs(coloured(), node_attribute="colour"), TINY, STEPS)
    policy = str(save(tmp_path / "policy", given, metadata=description(given)))
    graphs = coloured([5, 7, 2])
    recipe = SFTRecipe(policy, output_dir=str(tmp_path / "run"), marginals="data", test_share=0.3, node_attribute="colour")
    folder = pretrain(quick(recipe), data=graphs)
    found: Any = load_policy(folder)
    names = [name for graph in graphs for _, name in graph.nodes(data="colour")]
    edges, pairs = sum(map(nx.number_of_edges, graphs)), sum(len(graph) * (len(graph) - 1) // 2 for graph in graphs)
    assert found.node_kernel.noise.prior == pytest.approx([names.count(c) / len(names) for c in ("blue", "red")])
    assert found.edge_kernel.noise.prior == pytest.approx([1 - edges / pairs, edges / pairs])
    assert type(found.edge_kernel) is type(given.edge_kernel)
    noises: Any = found.edge_kernel.noise, given.edge_kernel.noise
    assert noises[0] == replace(noises[1], prior=noises[0].prior)


def test_a_learned_node_count_gives_way_to_that_of_the_data(small_molecules: str, tmp_path: Path) -> None:
    inner: Any = load_policy(small_molecules)
    sized = SizedPolicy(inner, LearnedSizes(inner.node_counts))
    policy = str(save(tmp_path / "policy", sized, metadata=load_metadata(small_molecules)))
    found = made(SFTRecipe(policy, written(tmp_path / "data.smi", MOLECULES))).policy
    assert not isinstance(found, SizedPolicy)
    assert found.node_counts == pytest.approx((0.0, 0.0, 0.5, 0.5))


def test_conditions_are_computed_as_the_policy_was_trained_on_them(tmp_path: Path) -> None:
    policy, data = FAMILIES["smiles"](tmp_path)
    found = made(SFTRecipe(policy, data, test_share=0.3))
    batch = found.train.batch(torch.arange(len(found.train)))
    assert batch.properties is not None
    assert batch.prompt is not None
    for row, smiles in enumerate(found.samples):
        mol = Chem.MolFromSmiles(smiles)
        wanted = [(descriptor(scale.name)(mol) - scale.mean) / scale.std for scale in SCALES]
        assert batch.properties[row].tolist() == pytest.approx(wanted, abs=1e-5)
    cores = {"CCO": "", "c1ccccc1CO": "c1ccccc1", "OCC1CC1": "C1CC1"}
    shown = {smiles: SPELLED.decode(row) for smiles, row in zip(found.samples, batch.prompt.tolist(), strict=True)}
    assert {shown[smiles] == core for smiles, core in cores.items() if smiles in shown} == {True}


def test_properties_of_a_graph_policy_are_computed_too(tmp_path: Path) -> None:
    from discrete_grpo.datasets.enumeration import load_enumerated
    from discrete_grpo.datasets.molecules import statistics
    from discrete_grpo.recipes.pretraining.molecules import molecule_policy

    stats = statistics(load_enumerated(4))
    given = molecule_policy(stats, TINY, STEPS, properties=SCALES)
    policy = str(save(tmp_path / "policy", given, metadata={"kind": "molecules", "statistics": stats.to_json()}))
    found = made(SFTRecipe(policy, written(tmp_path / "data.smi", ["CO", "CCO", "CC"]), test_share=0.4))
    batch = found.train.batch(torch.tensor([0]))
    mol = Chem.MolFromSmiles(found.samples[0])
    wanted = [(descriptor(scale.name)(mol) - scale.mean) / scale.std for scale in SCALES]
    assert batch.properties[0].tolist() == pytest.approx(wanted, abs=1e-5)
    assert found.held_out is not None
    assert bool(found.held_out.batch(torch.tensor([0])).properties.isnan().all())
    other = made(SFTRecipe(policy, written(tmp_path / "two.smi", ["CO", "CCO"]), test_share=0.4, marginals="data")).policy
    bonds = other.edge_kernel.noise.prior  # 3 of 4 pairs of atoms are bonded
    assert bonds == pytest.approx((0.25, 0.75, *(0.0 for _ in bonds[2:])))


def test_copies_of_a_sample_and_spellings_of_a_molecule_are_all_held_out_or_none(tmp_path: Path) -> None:
    policy, _ = FAMILIES["smiles"](tmp_path)
    spellings = []
    for mol in map(Chem.MolFromSmiles, RINGS):
        spellings += [*[Chem.MolToSmiles(mol)] * 2, Chem.MolToSmiles(mol, rootedAtAtom=1, canonical=False)]
    assert len(set(spellings)) > len(RINGS)
    found = samples_of(SFTRecipe(policy, written(tmp_path / "copies.smi", spellings), test_share=0.3), load(policy))
    train, held = ({Chem.CanonSmiles(smiles) for smiles in part} for part in (found.train, found.held_out))
    assert (len(found.train), len(train), len(found.held_out), len(held)) == (18, 6, 2, 2)
    assert not train & held
    copies = written(tmp_path / "one.smi", ["CCO", "OCC"])
    found = samples_of(SFTRecipe(policy, copies, test_share=0.3), load(policy))
    assert (list(found.train), list(found.held_out)) == (["CCO", "OCC"], [])  # with one molecule there is none to hold out


def test_a_graph_policy_does_not_tell_stereo_from_none(small_molecules: str, tmp_path: Path) -> None:
    chains = ["C" * length for length in range(2, 10)]
    data = written(tmp_path / "stereo.smi", [text for chain in chains for text in (f"{chain}[C@H](O)C#N", f"{chain}[C@@H](O)C#N")])
    found = samples_of(SFTRecipe(small_molecules, data, test_share=0.5), load(small_molecules))
    train, held = ({smiles.replace("@@", "@") for smiles in part} for part in (found.train, found.held_out))
    assert (len(found.train), len(train), len(held)) == (8, 4, 4)
    assert not train & held


def test_the_loss_of_held_out_samples_is_measured_without_conditions(tmp_path: Path) -> None:
    policy, data = FAMILIES["smiles"](tmp_path)
    found = made(SFTRecipe(policy, data, test_share=0.3))
    assert found.held_out is not None
    batch = found.held_out.batch(torch.arange(len(found.held_out)))
    assert batch.prompt is None
    assert batch.properties is not None
    assert bool(batch.properties.isnan().all())
    assert {held_out_loss(found.policy.eval(), found.held_out, 64, seed=seed) for seed in range(4)} == {
        held_out_loss(found.policy, found.held_out, 64)
    }


def test_a_file_with_splits_has_its_own_held_out_part(tmp_path: Path) -> None:
    found = made(SFTRecipe(plain(tmp_path / "policy", [nx.path_graph(16)]), "tree-16"))
    assert (len(found.train), len(found.held_out or ())) == (128, 40)


def test_the_held_out_loss_is_the_mean_over_the_samples_and_the_same_in_every_call(tmp_path: Path) -> None:
    policy, data = FAMILIES["text"](tmp_path)
    found = made(SFTRecipe(policy, data, test_share=0.3))
    model = found.policy.eval()
    assert found.held_out is not None
    first = held_out_loss(model, found.held_out, 64, draws=512)
    assert held_out_loss(model, found.held_out, 64, draws=512) == first
    generator, rows = torch.Generator().manual_seed(42), torch.zeros(512, dtype=torch.long)
    with torch.no_grad():
        parts = [model.likelihood_loss(found.held_out.batch(part), generator=generator)["loss"] for part in rows.split(64)]
    assert first == pytest.approx(float(torch.stack(parts).mean()), rel=1e-6)


def test_the_content_of_a_file_of_graphs_is_known_later(tmp_path: Path) -> None:
    policy, data = FAMILIES["graphs"](tmp_path)
    recipe = SFTRecipe(policy, data)
    about = dict(samples_of(recipe, load(policy)).about)
    assert about["source"] == data
    assert not changed_source(about)
    Path(data).write_text(Path(data).read_text() + "Bw\n")
    assert changed_source(about)
