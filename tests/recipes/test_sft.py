"""Further training of a policy of every family on samples of a file: what is kept, what the data changes, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from rdkit import Chem
from torch import Tensor

from discrete_grpo import PretrainConfig, SFTRecipe, load_policy, pretrain
from discrete_grpo.core.description import description
from discrete_grpo.datasets.own_digraphs import own_digraphs
from discrete_grpo.datasets.own_graphs import own_graphs
from discrete_grpo.datasets.spatial import conformers, spatial_statistics
from discrete_grpo.datasets.synthetic_graphs import dataset_from_networkx, graph_statistics
from discrete_grpo.datasets.text import text_dataset
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.domains.molecule_properties import descriptor
from discrete_grpo.domains.spatial_files import to_sdf
from discrete_grpo.domains.tokenizer import SMILES, Property, Tokenizer
from discrete_grpo.models.encoder import EncoderSizes
from discrete_grpo.models.equivariant import EquivariantSizes
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.recipes.diffusion import DiffusionOptions
from discrete_grpo.recipes.digraphs import digraph_policy
from discrete_grpo.recipes.graph_sequences import graph_sequence_policy
from discrete_grpo.recipes.graphs import graph_policy, own_graph_policy
from discrete_grpo.recipes.loading import load
from discrete_grpo.recipes.sft import held_out_loss, run_sft
from discrete_grpo.recipes.sft_data import Taught, samples_of, taught
from discrete_grpo.recipes.smiles import smiles_policy
from discrete_grpo.recipes.spatial import SpatialOptions, spatial_policy
from discrete_grpo.recipes.text import text_policy
from discrete_grpo.runs.checkpoint import load_metadata, save
from discrete_grpo.runs.recorder import read_evaluation, read_metrics, read_samples

TINY = NetworkSizes(layers=1, heads=2, width=16, edge_width=8, global_width=8, walk_length=3)
STEPS = DiffusionOptions(num_steps=2)
MOLECULES = ("CO", "CCO", "CC", "C=O", "CN", "C#N", "CC=O", "NC=O", "CCN", "COC")
RINGS = ("c1ccccc1CO", "C1CC1O", "C1CCC1", "CCO", "c1ccccc1", "OCC1CC1", "CC1CC1", "c1ccccc1C")
CYCLES = tuple(nx.cycle_graph(n) for n in (8, 9, 10, 11))
SPELLED = Tokenizer.of(["c1ccccc1CO", "C1CCN1=#"], SMILES)
SCALES = (Property("MolWt", 70.0, 20.0), Property("TPSA", 5.0, 8.0))


def loop(steps: int = 2, **changes: Any) -> PretrainConfig:
    return PretrainConfig(**{"max_steps": steps, "batch_size": 4, "warmup_steps": 0, "save_steps": 1, "log_steps": 1} | changes)


def written(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def coloured(sizes: Sequence[int] = (3, 4, 5, 4), directed: bool = False) -> list[nx.Graph]:
    graphs = []
    for n in sizes:
        graph = nx.path_graph(n, create_using=nx.DiGraph if directed else nx.Graph)
        nx.set_node_attributes(graph, {k: ("red", "blue")[k % 2] for k in graph}, "colour")
        graphs.append(graph)
    return graphs


def plain(folder: Path, graphs: Sequence[nx.Graph], options: DiffusionOptions = STEPS) -> str:
    """A policy of plain graphs like ``graphs``."""
    policy = graph_policy(graph_statistics(dataset_from_networkx(graphs)), TINY, options)
    return str(save(folder, policy, metadata={"kind": "graphs", "shape": "connected"}))


def texts(folder: Path, **options: Any) -> str:
    """A SMILES policy."""
    policy = smiles_policy(SPELLED, max_length=14, layers=1, heads=2, width=16, **options)
    return str(save(folder, policy, metadata={"kind": "molecules"}))


def made(recipe: SFTRecipe) -> Taught:
    loaded = load(recipe.policy)
    return taught(recipe, loaded, samples_of(recipe, loaded))


def weights(policy: Any) -> dict[str, Tensor]:
    return {name: value for name, value in policy.state_dict().items() if "network" in name}


# -- every family


def _graphs(where: Path) -> tuple[str, str]:
    paths = [nx.path_graph(n) for n in (3, 4, 4, 5)]
    return plain(where / "policy", paths), written(where / "data.g6", list(map(graph6, CYCLES)))


def _labelled(where: Path) -> tuple[str, str]:
    policy = own_graph_policy(own_graphs(coloured(), node_attribute="colour"), TINY, STEPS)
    nx.write_graphml(coloured([6])[0], where / "data.graphml")
    return str(save(where / "policy", policy, metadata=description(policy))), str(where / "data.graphml")


def _directed(where: Path) -> tuple[str, str]:
    policy = digraph_policy(own_digraphs(coloured(directed=True), node_attribute="colour"), _sized(), STEPS)
    nx.write_graphml(coloured([4], directed=True)[0], where / "data.graphml")
    return str(save(where / "policy", policy, metadata=description(policy))), str(where / "data.graphml")


def _sized() -> NetworkSizes:
    return NetworkSizes(layers=1, heads=2, width=16, edge_width=8, global_width=8)


def _sequences(where: Path) -> tuple[str, str]:
    policy = graph_sequence_policy(11, 24, layers=1, heads=2, width=16)
    data = written(where / "data.g6", list(map(graph6, CYCLES)))
    return str(save(where / "policy", policy, metadata={"kind": "graphs", "shape": "connected"})), data


def _smiles(where: Path) -> tuple[str, str]:
    return texts(where / "policy", properties=SCALES, scaffold=True), written(where / "data.smi", RINGS)


def _spatial(where: Path) -> tuple[str, str]:
    molecules = list(conformers(MOLECULES).molecules)
    stats = spatial_statistics(molecules)
    sizes = EquivariantSizes(layers=1, heads=2, width=16, edge_width=8, global_width=8)
    policy = spatial_policy(stats, sizes, SpatialOptions(num_steps=2))
    (where / "data.sdf").write_text(to_sdf(molecules[:4]))
    return str(save(where / "policy", policy, metadata={"kind": "spatial", "statistics": stats.to_json()})), str(where / "data.sdf")


def _text(where: Path) -> tuple[str, str]:
    lines = ("a red cat", "a blue cat", "the red sea", "one blue sea")
    policy = text_policy(text_dataset(lines), EncoderSizes(layers=1, heads=2, width=16), block_size=20)
    return str(save(where / "policy", policy, metadata={"kind": "text"})), written(where / "data.txt", lines * 3)


FAMILIES = {
    "graphs": _graphs,
    "labelled graphs": _labelled,
    "directed graphs": _directed,
    "graph sequences": _sequences,
    "smiles": _smiles,
    "molecules in space": _spatial,
    "text": _text,
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_policy_of_every_family_is_trained_further(family: str, tmp_path: Path) -> None:
    policy, data = FAMILIES[family](tmp_path)
    run = tmp_path / "run"
    config = loop(12, learning_rate=3e-3, ema_decay=0.0, save_steps=6)
    folder = run_sft(SFTRecipe(policy, data, str(run), test_share=0.3, pretrain=config, evaluation_samples=4))
    found, given = load_metadata(folder), load_metadata(policy)
    assert found["trained_from"] == policy
    assert {"kind", "labels", "statistics", "shape"} & set(given) <= {k for k in found if found[k] == given.get(k)}
    stages = read_evaluation(run)
    assert stages["after"]["test_loss"] < stages["before"]["test_loss"], (
        "held-out samples like those of the training are more probable"
    )
    lines = [line["eval/test_loss"] for line in read_metrics(run) if "eval/test_loss" in line]
    assert lines[-1] == stages["after"]["test_loss"]
    assert len(lines) == 2
    load_policy(folder)
    if family != "text":
        assert len(read_samples(run / "evaluation_before.csv.gz")["sample"]) == 4
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("family", FAMILIES)
def test_it_begins_with_the_weights_of_the_policy(family: str, tmp_path: Path) -> None:
    policy, data = FAMILIES[family](tmp_path)
    before, now = weights(load_policy(policy)), weights(made(SFTRecipe(policy, data, test_share=0.3)).policy)
    assert list(now) == list(before)
    assert all(torch.equal(now[name], value) for name, value in before.items())


def test_a_resumed_run_has_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, data = _smiles(tmp_path)
    whole = SFTRecipe(policy, data, str(tmp_path / "whole"), test_share=0.3, pretrain=loop(4), evaluation_samples=4)
    stopped = SFTRecipe(policy, data, str(tmp_path / "stopped"), test_share=0.3, pretrain=loop(4), evaluation_samples=4)
    expected = weights(load_policy(run_sft(whole)))
    from discrete_grpo.training.pretrain import Pretrainer

    update, calls = Pretrainer._update, iter([False, False, False, True])

    def killed(self: Any, rows: Tensor) -> Any:
        if next(calls, False):
            raise KeyboardInterrupt
        return update(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Pretrainer, "_update", killed)
        with pytest.raises(KeyboardInterrupt):
            run_sft(stopped)
    before = read_evaluation(tmp_path / "stopped")
    assert list(before) == ["before"]
    found = weights(load_policy(run_sft(stopped, resume=True)))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert read_evaluation(tmp_path / "stopped") == read_evaluation(tmp_path / "whole")
    assert read_evaluation(tmp_path / "stopped")["before"] == before["before"]


# -- what the data changes


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
    folder = pretrain(_quick(recipe), data=graphs)
    found: Any = load_policy(folder)
    names = [name for graph in graphs for _, name in graph.nodes(data="colour")]
    edges, pairs = sum(map(nx.number_of_edges, graphs)), sum(len(graph) * (len(graph) - 1) // 2 for graph in graphs)
    assert found.node_kernel.noise.prior == pytest.approx([names.count(c) / len(names) for c in ("blue", "red")])
    assert found.edge_kernel.noise.prior == pytest.approx([1 - edges / pairs, edges / pairs])
    assert type(found.edge_kernel) is type(given.edge_kernel)
    noises: Any = found.edge_kernel.noise, given.edge_kernel.noise
    assert noises[0] == replace(noises[1], prior=noises[0].prior)


def _quick(recipe: SFTRecipe) -> SFTRecipe:
    return replace(recipe, pretrain=loop(1), evaluation_samples=0)


def test_a_learned_node_count_gives_way_to_that_of_the_data(small_molecules: str, tmp_path: Path) -> None:
    inner: Any = load_policy(small_molecules)
    sized = SizedPolicy(inner, LearnedSizes(inner.node_counts))
    policy = str(save(tmp_path / "policy", sized, metadata=load_metadata(small_molecules)))
    found = made(SFTRecipe(policy, written(tmp_path / "data.smi", MOLECULES))).policy
    assert not isinstance(found, SizedPolicy)
    assert found.node_counts == pytest.approx((0.0, 0.0, 0.5, 0.5))


def test_conditions_are_computed_as_the_policy_was_trained_on_them(tmp_path: Path) -> None:
    policy, data = _smiles(tmp_path)
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
    from discrete_grpo.recipes.molecules import molecule_policy

    stats = statistics(load_enumerated(4))
    given = molecule_policy(stats, TINY, STEPS, properties=SCALES)
    policy = str(save(tmp_path / "policy", given, metadata={"kind": "molecules", "statistics": stats.to_json()}))
    found = made(SFTRecipe(policy, written(tmp_path / "data.smi", ["CO", "CCO", "CC"]), test_share=0.4))
    batch = found.train.batch(torch.tensor([0]))
    mol = Chem.MolFromSmiles(found.samples[0])
    wanted = [(descriptor(scale.name)(mol) - scale.mean) / scale.std for scale in SCALES]
    assert batch.properties[0].tolist() == pytest.approx(wanted, abs=1e-5)


def test_copies_of_a_sample_and_spellings_of_a_molecule_are_all_held_out_or_none(tmp_path: Path) -> None:
    policy, _ = _smiles(tmp_path)
    spellings = []
    for mol in map(Chem.MolFromSmiles, RINGS):
        spellings += [*[Chem.MolToSmiles(mol)] * 2, Chem.MolToSmiles(mol, rootedAtAtom=1, canonical=False)]
    assert len(set(spellings)) > len(RINGS)
    found = samples_of(SFTRecipe(policy, written(tmp_path / "copies.smi", spellings), test_share=0.3), load(policy))
    train, held = ({Chem.CanonSmiles(smiles) for smiles in part} for part in (found.train, found.held_out))
    assert (len(found.train), len(train), len(found.held_out), len(held)) == (18, 6, 2, 2)
    assert not train & held


def test_a_graph_policy_does_not_tell_stereo_from_none(small_molecules: str, tmp_path: Path) -> None:
    data = written(tmp_path / "stereo.smi", ["C[C@H](O)C#N", "C[C@@H](O)C#N", "CCO", "CO", "CC"])
    found = samples_of(SFTRecipe(small_molecules, data, test_share=0.5), load(small_molecules))
    pair = {"C[C@H](O)C#N", "C[C@@H](O)C#N"}
    assert not pair & set(found.held_out) or not pair & set(found.train)
    assert len(found.held_out) == 2, "half of four molecules"


def test_the_loss_of_held_out_samples_is_measured_without_conditions(tmp_path: Path) -> None:
    policy, data = _smiles(tmp_path)
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
    policy, data = _text(tmp_path)
    found = made(SFTRecipe(policy, data, test_share=0.3))
    model = found.policy.eval()
    assert found.held_out is not None
    first = held_out_loss(model, found.held_out, 64, draws=512)
    assert held_out_loss(model, found.held_out, 64, draws=512) == first
    generator, rows = torch.Generator().manual_seed(42), torch.zeros(512, dtype=torch.long)
    with torch.no_grad():
        parts = [model.likelihood_loss(found.held_out.batch(part), generator=generator)["loss"] for part in rows.split(64)]
    assert first == pytest.approx(float(torch.stack(parts).mean()), rel=1e-6)


# -- what is refused


def test_samples_that_cannot_be_drawn_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy, _ = _smiles(tmp_path)
    data = written(tmp_path / "mixed.smi", [*RINGS, "CCBr"])
    found = made(SFTRecipe(policy, data, test_share=0.3, max_broken=0.2))
    assert found.count == len(RINGS)
    told = capsys.readouterr().err
    assert f"{data}: 1 of 9 samples cannot be drawn by the policy, such as 'CCBr'; they are left out" in told
    with pytest.raises(ValueError, match=r"1 of 9 samples cannot .*; expected at most a share of max_broken \(0.1\)$"):
        made(SFTRecipe(policy, data, test_share=0.3, max_broken=0.1))


def test_a_graph_without_nodes_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = plain(tmp_path / "policy", [nx.path_graph(3), nx.path_graph(4)])
    data = written(tmp_path / "data.g6", ["?", *map(graph6, CYCLES)])
    assert made(SFTRecipe(policy, data, test_share=0.3, max_broken=0.5)).count == len(CYCLES)
    assert "1 of 5 samples cannot be drawn by the policy, such as '?'; they are left out" in capsys.readouterr().err


def test_broken_records_in_space_are_counted(tmp_path: Path) -> None:
    policy, data = _spatial(tmp_path)
    text = Path(data).read_text()
    Path(data).write_text(text + text.split("$$$$")[0].replace(" V2000", " V2OOO") + "$$$$\n")
    assert made(SFTRecipe(policy, data, test_share=0.3, max_broken=0.3)).count == 4
    with pytest.raises(
        ValueError, match=r"1 of 5 records are no molecule in space, expected at most a share of max_broken \(0.1\)$"
    ):
        made(SFTRecipe(policy, data, test_share=0.3, max_broken=0.1))


def test_a_wrong_name_of_a_metric_costs_no_update(tmp_path: Path) -> None:
    policy, data = _smiles(tmp_path)
    config = loop(3, metric_for_best_model="eval/test_los")
    with pytest.raises(ValueError, match=r"^metric_for_best_model: 'eval/test_los' is not logged; did you mean 'eval/test_loss'\?"):
        run_sft(SFTRecipe(policy, data, str(tmp_path / "run"), test_share=0.3, pretrain=config, evaluation_samples=0))
    assert not (tmp_path / "run/checkpoints").exists()


def test_larger_molecules_than_the_policy_drew_are_trained_on_by_graphs_and_left_out_by_texts(
    small_molecules: str, tmp_path: Path
) -> None:
    data = written(tmp_path / "long.smi", ["CCCCCCCCCCCCCCCO", "CCO", "CCN"])
    assert made(SFTRecipe(small_molecules, data, test_share=0.3)).policy.max_nodes == 16
    assert made(SFTRecipe(texts(tmp_path / "texts"), data, test_share=0.3, max_broken=0.5)).count == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": " "}, "data: ' ', expected the name of a file of samples"),
        ({}, "data: None, expected the name of a file of samples"),
        ({"data": "none.smi"}, "data: 'none.smi' is no file"),
        ({"policy": "digits", "data": "x.smi"}, "policy: 'digits' makes samples of the kind images, expected one of graphs,"),
        ({"policy": "tree-16", "data": "tree-61"}, "data: 'tree-61', expected one of planar-16"),
        ({"data": "x.smi", "node_attribute": "colour"}, "node_attribute: 'colour', expected none with molecules"),
        ({"policy": "tree-16", "data": "tree-16", "smiles_column": "s"}, "smiles_column: 's', expected none with graphs"),
        ({"policy": "tree-16", "data": "sets.json"}, "data: sets.json has classes of nodes or edges, expected none, as"),
        ({"policy": "qm9-3d", "data": "x.smi"}, "data: 'x.smi' holds no sample of the kind spatial"),
        (
            {"policy": "smiles-zinc", "data": "x.smi", "marginals": "data"},
            "marginals: 'data', expected 'policy' with smiles-zinc",
        ),
    ],
)
def test_it_says_in_one_line_what_does_not_fit(
    changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("x.smi"), MOLECULES)
    from discrete_grpo.datasets.graph_files import to_node_link

    Path("sets.json").write_bytes(to_node_link(coloured()))
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        run_sft(SFTRecipe(pretrain=loop(1), evaluation_samples=0, **changes))
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"test_share": 1.0}, "test_share: 1.0, expected more than 0 and less than 1"),
        ({"max_broken": 1.5}, "max_broken: 1.5, expected 0 to 1"),
        ({"marginals": "own"}, "marginals: 'own', expected one of policy, data"),
        ({"policy": 3}, "policy: a int, expected the name of a policy or its folder"),
    ],
)
def test_settings_out_of_their_range_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        SFTRecipe(**changes)


def test_masked_diffusion_has_no_frequencies(tmp_path: Path) -> None:
    policy = plain(tmp_path / "policy", [nx.path_graph(4)], DiffusionOptions(num_steps=2, noise="absorbing"))
    with pytest.raises(ValueError, match=r"^marginals: 'data', expected 'policy' .*, which ends in no data class"):
        made(SFTRecipe(policy, "tree-16", marginals="data"))


def test_a_policy_with_other_conditions_is_refused(tmp_path: Path) -> None:
    from discrete_grpo.models.gpt import GPT, GPTConfig
    from discrete_grpo.policies.tokens import TokenPolicy

    letters = Tokenizer(("a", "b"))
    given = TokenPolicy(GPT(GPTConfig(len(letters), 6, layers=1, heads=2, width=8)), letters, max_length=6, prompt="label")
    policy = str(save(tmp_path / "policy", given, metadata={"kind": "samples"}))
    with pytest.raises(ValueError, match=r"is conditioned on 'label', which a file of samples does not tell$"):
        made(SFTRecipe(policy, written(tmp_path / "data.txt", ["ab", "ba", "aab"]), test_share=0.4))


def test_values_are_given_from_python(tmp_path: Path) -> None:
    policy, _ = _smiles(tmp_path)
    recipe = _quick(SFTRecipe(policy, output_dir=str(tmp_path / "run"), test_share=0.3))
    folder = pretrain(recipe, data=RINGS)
    assert load_metadata(folder)["data"] == {"name": "data", "licence": "unknown", "samples": len(RINGS)}
    assert (tmp_path / "run/data.smi").read_text().split() == list(RINGS)
    assert pretrain(recipe, resume=True) == folder
