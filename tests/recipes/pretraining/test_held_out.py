"""Held-out samples of pretraining: which they are, and their loss in metrics, evaluation and report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

from discrete_grpo import PretrainConfig, PretrainRecipe, load_policy, pretrain
from discrete_grpo.datasets.enumeration import load_enumerated
from discrete_grpo.datasets.shard_building import ShardOptions
from discrete_grpo.datasets.sharded import ShardedMolecules
from discrete_grpo.datasets.spatial import conformers, spatial_statistics
from discrete_grpo.datasets.spatial_fields import fits, spatial_graphs
from discrete_grpo.datasets.synthetic_graphs import dataset_from_networkx
from discrete_grpo.domains.spatial_molecules import smiles_of
from discrete_grpo.domains.tokenizer import EOS, PAD, TokenBatch
from discrete_grpo.models.equivariant import EquivariantSizes
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.pretraining import molecules
from discrete_grpo.recipes.pretraining.graph_sequences import PretrainGraphSequencesRecipe
from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe
from discrete_grpo.recipes.pretraining.held_out import (
    NOISY_DRAWS,
    held_out_loss,
    hold_out,
    no_larger,
    of_drawn_sizes,
    with_held_out,
)
from discrete_grpo.recipes.pretraining.preprocess import preprocess
from discrete_grpo.recipes.pretraining.smiles import PretrainSmilesRecipe, _data
from discrete_grpo.recipes.pretraining.spatial import PretrainSpatialRecipe, split_molecules
from discrete_grpo.runs.checkpoint import load_metadata
from discrete_grpo.runs.recorder import read_evaluation, read_metrics
from discrete_grpo.training.data_on_device import in_memory
from tests.policies.test_tokens import token_policy
from tests.recipes.pretraining.sft_cases import weights, written

SIZES = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4, walk_length=2)
LOOP = PretrainConfig(max_steps=4, batch_size=8, warmup_steps=0, save_steps=2, learning_rate=1e-2, ema_decay=0.5)
MOLECULES = ("CCO", "OCC", "CO", "CN", "CCN", "CC", "CCCO", "CCC", "COC", "CCO")
"""Eight molecules, one of them three times."""


def graph_recipe(data: str, out: Path, **changed: Any) -> PretrainRecipe:
    given: dict[str, Any] = {"network": SIZES, "num_steps": 3, "pretrain": LOOP, "evaluation_samples": 0, "test_share": 0.25}
    return PretrainRecipe(data=data, output_dir=str(out), **given | changed)


def smiles_recipe(data: str, out: Path, **changed: Any) -> PretrainSmilesRecipe:
    given: dict[str, Any] = {"layers": 1, "heads": 2, "width": 16, "pretrain": LOOP, "evaluation_samples": 0, "test_share": 0.25}
    return PretrainSmilesRecipe(data=data, output_dir=str(out), **given | changed)


def losses(run: Path) -> list[Any]:
    return [line["eval/test_loss"] for line in read_metrics(run) if "eval/test_loss" in line]


def test_copies_are_held_out_together_and_once() -> None:
    data = load_enumerated(4)
    names = ["a", "b", "a", "c", "d", "a"]
    train, held = hold_out(data, names, 0.5)
    assert held is not None
    assert not {names[k] for k in train.rows.tolist()} & {names[k] for k in held.rows.tolist()}
    assert len({names[k] for k in held.rows.tolist()}) == len(held) == 2
    assert {names[k] for k in [*train.rows.tolist(), *held.rows.tolist()]} == set(names)
    assert held.sizes.tolist() == data.sizes[held.rows].tolist()
    assert torch.equal(held.batch(torch.tensor([1, 0])).nodes, data.batch(held.rows[[1, 0]]).nodes)
    assert hold_out(data, names, 0.5)[1].rows.tolist() == held.rows.tolist()  # type: ignore[union-attr]
    assert hold_out(data, names, 0.0) == (data, None)
    with pytest.raises(ValueError, match=r"^test_share: 0.5, expected 0, since all samples are equal$"):
        hold_out(data, ["a", "a"], 0.5)


@pytest.mark.parametrize("make", [graph_recipe, smiles_recipe])
def test_the_share_is_a_share(make: Any) -> None:
    for wrong in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"^test_share: {wrong}, expected at least 0 and less than 1"):
            make("enumerated", Path("run"), test_share=wrong)


@pytest.mark.parametrize("make", [graph_recipe, smiles_recipe])
def test_the_loss_of_molecules_is_logged_at_every_checkpoint_and_told_at_the_end(make: Any, tmp_path: Path, capsys: Any) -> None:
    recipe = make(written(tmp_path / "data.smi", MOLECULES), run := tmp_path / "run")
    folder = pretrain(recipe)
    assert "test_loss" in capsys.readouterr().out
    found = losses(run)
    assert len(found) == 2
    assert found[0] != found[1]
    assert read_evaluation(run)["after"] == {"test_loss": found[1]}
    assert "loss of test data" in (run / "report.html").read_text()
    if make is graph_recipe:
        data: Any = molecules._dataset(recipe)
        _, held = hold_out(data, data.smiles, 0.25)
    else:
        data = _data(recipe)
        _, held = hold_out(data.data, data.names, 0.25)
    assert held is not None
    assert len(held) == 2
    assert 6 <= load_metadata(folder)["data"]["molecules"] <= 8
    exported = load_policy(folder)  # with averaged weights
    assert held_out_loss(exported, held, 8, draws=NOISY_DRAWS if make is graph_recipe else 1) == found[1]


@pytest.mark.parametrize("make", [graph_recipe, smiles_recipe])
def test_measuring_it_changes_no_bit_of_the_training(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(tmp_path / "data.smi", MOLECULES)
    measured = weights(load_policy(pretrain(make(data, tmp_path / "measured"))))
    module = "molecules" if make is graph_recipe else "smiles"
    monkeypatch.setattr(f"discrete_grpo.recipes.pretraining.{module}.with_held_out", lambda *given, **options: None)
    plain = weights(load_policy(pretrain(make(data, tmp_path / "plain"))))
    assert losses(tmp_path / "plain") == []
    assert all(torch.equal(plain[name], value) for name, value in measured.items())


def test_without_a_share_nothing_is_held_out(tmp_path: Path) -> None:
    folder = pretrain(
        graph_recipe(written(tmp_path / "data.smi", MOLECULES), tmp_path / "run", test_share=0.0, evaluation_samples=2)
    )
    assert load_metadata(folder)["data"]["molecules"] == len(MOLECULES)
    assert losses(tmp_path / "run") == []


def test_molecules_of_shards_are_held_out_too(tmp_path: Path) -> None:
    data = written(tmp_path / "data.smi", MOLECULES)
    shards = preprocess(data, tmp_path / "shards", ShardOptions(form="graphs"), jobs=1)
    folder = pretrain(graph_recipe(str(shards), tmp_path / "run"))
    assert len(losses(tmp_path / "run")) == 2
    assert load_metadata(folder)["data"]["molecules"] == 8
    train, _ = hold_out(ShardedMolecules(shards), range(10), 0.25)
    assert not in_memory(train)
    assert in_memory(hold_out(load_enumerated(4), MOLECULES, 0.25)[0])


def test_the_loss_of_conditions_is_measured_with_them(tmp_path: Path) -> None:
    data = written(tmp_path / "my.csv", ["smiles,y", *(f"{name},{k}" for k, name in enumerate(MOLECULES))])
    pretrain(smiles_recipe(data, tmp_path / "run", properties=("y",)))
    assert len(losses(tmp_path / "run")) == 2


@pytest.mark.parametrize("directed", [False, True])
def test_the_loss_of_test_graphs_is_logged(directed: bool, tmp_path: Path) -> None:
    kind = nx.DiGraph if directed else nx.Graph
    graphs = [nx.path_graph(n, create_using=kind) for n in (3, 4, 5, 3, 4, 5, 3, 4)]
    sizes = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4) if directed else SIZES
    fixed: dict[str, Any] = {"num_steps": 3, "network": sizes, "pretrain": LOOP, "test_share": 0.25}
    pretrain(PretrainGraphsRecipe(output_dir=str(tmp_path / "run"), evaluation_samples=2, **fixed), data=graphs)
    found = losses(tmp_path / "run")
    assert len(found) == 2
    assert read_evaluation(tmp_path / "run")["after"]["test_loss"] == found[1]
    pretrain(PretrainGraphsRecipe(output_dir=str(tmp_path / "none"), evaluation_samples=0, **fixed), data=graphs)
    assert losses(tmp_path / "none") == found  # samples are not drawn, and change no bit


@pytest.mark.parametrize("directed", [False, True])
def test_held_out_graphs_of_a_size_between_those_trained_on_do_not_stop_the_run(directed: bool, tmp_path: Path) -> None:
    kind = nx.DiGraph if directed else nx.Graph
    graphs = [nx.path_graph(n, create_using=kind) for n in range(3, 15)]
    sizes = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4) if directed else SIZES
    fixed: dict[str, Any] = {"num_steps": 3, "network": sizes, "pretrain": LOOP, "test_share": 0.4, "evaluation_samples": 0}
    policy = load_policy(pretrain(PretrainGraphsRecipe(output_dir=str(tmp_path / "run"), **fixed), data=graphs))
    assert min(n for n, p in enumerate(policy.node_counts) if p) < 12
    assert any(p == 0 for p in policy.node_counts[4:]), "a size between is held out"
    assert len(losses(tmp_path / "run")) == (0 if directed else 2)  # all that is held out has a size of its own


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph])
def test_a_graph_without_a_node_is_refused_before_any_work(kind: Any, tmp_path: Path) -> None:
    graphs = [nx.path_graph(3, create_using=kind), kind(), nx.path_graph(4, create_using=kind)]
    recipes: list[Any] = [PretrainGraphsRecipe(output_dir=str(tmp_path / "run"), pretrain=LOOP)]
    if kind is nx.Graph:
        recipes.append(PretrainGraphSequencesRecipe(output_dir=str(tmp_path / "run"), pretrain=LOOP))
    for recipe in recipes:
        with pytest.raises(ValueError, match=r"^data: graph 1 has no node, expected at least one$"):
            pretrain(recipe, data=graphs)


def test_sizes_that_a_policy_of_several_fields_does_not_draw_are_left_out() -> None:
    graphs = dataset_from_networkx([nx.path_graph(n) for n in (3, 9, 4, 3, 5)])
    assert of_drawn_sizes(graphs, (0.0, 0.0, 0.0, 0.5, 0.0, 0.5)).sizes.tolist() == [3, 3, 5]


def test_the_loss_of_molecules_in_space_is_logged(tmp_path: Path) -> None:
    data = written(tmp_path / "data.smi", ["O", "CO", "C#N", "C=O", "CC", "N", "C", "C#C"])
    sizes = EquivariantSizes(layers=1, heads=2, width=16, edge_width=8, global_width=8)
    fixed: dict[str, Any] = {"num_steps": 3, "network": sizes, "pretrain": LOOP, "test_share": 0.25, "evaluation_samples": 0}
    recipe = PretrainSpatialRecipe(data=data, output_dir=str(tmp_path / "run"), **fixed)
    policy = load_policy(pretrain(recipe))
    held_out, train, _ = split_molecules(recipe)
    stats = spatial_statistics(train)
    test = spatial_graphs([one for one in held_out if fits(one, stats)], stats)
    assert 0 < len(test) <= len(held_out) == 2
    assert losses(tmp_path / "run")[1] == held_out_loss(policy, test, 8, draws=NOISY_DRAWS)
    assert losses(tmp_path / "run")[0] != losses(tmp_path / "run")[1]


def test_a_failed_run_leaves_no_held_out_molecules_that_block_the_next_one(tmp_path: Path) -> None:
    sizes = EquivariantSizes(layers=1, heads=2, width=16, edge_width=8, global_width=8)
    loop = replace(LOOP, max_steps=4, save_steps=4, learning_rate=1e30)
    given: dict[str, Any] = {"num_steps": 3, "network": sizes, "test_share": 0.25, "evaluation_samples": 0}
    recipe = PretrainSpatialRecipe(
        data=written(tmp_path / "data.smi", ["O", "CO", "C#N", "C=O"]), output_dir=str(tmp_path / "run"), pretrain=loop, **given
    )
    with pytest.raises(FloatingPointError, match="gradient norm is nan"):
        pretrain(recipe)
    assert not (tmp_path / "run").exists()


def test_copies_and_conformers_of_a_molecule_in_space_are_not_trained_on_and_held_out(tmp_path: Path) -> None:
    lines = ["CO", "CCO", "CC", "C=O", "CN", "CCN", "CCC", "COC"]
    recipe = PretrainSpatialRecipe(
        data=written(tmp_path / "data.smi", lines * 3), output_dir=str(tmp_path / "run"), test_share=0.25
    )
    held_out, train, _ = split_molecules(recipe)
    assert (len(held_out), len(train)) == (2, 18)
    assert not {smiles_of(one) for one in held_out} & {smiles_of(one) for one in train}
    once = split_molecules(replace(recipe, data=written(tmp_path / "once.smi", lines)))
    assert [smiles_of(one) for one in once[0]] == [smiles_of(one) for one in held_out]
    held_out, train, _ = split_molecules(replace(recipe, data=written(tmp_path / "one.smi", ["CO"] * 4)))
    assert (len(held_out), len(train)) == (1, 3)  # of one molecule alone


def test_broken_lines_of_molecules_in_space_are_told(tmp_path: Path, capsys: Any) -> None:
    data = written(tmp_path / "data.smi", ["O", "nothing", "CO", "C#N"])
    split_molecules(PretrainSpatialRecipe(data=data, output_dir=str(tmp_path / "run"), max_broken=0.5))
    assert "1 of 4 lines are no molecule: line 2: 'nothing'" in capsys.readouterr().err


def test_molecules_in_space_that_the_policy_cannot_draw_are_left_out() -> None:
    stats = spatial_statistics(conformers(["CO", "C=O"]).molecules)
    shown = {text: fits(conformers([text]).molecules[0], stats) for text in ("CO", "OO", "C", "CC", "N", "C#C", "[OH-]")}
    assert shown == {"CO": True, "OO": True, "C": False, "CC": False, "N": False, "C#C": False, "[OH-]": False}


class _Lengths:
    """Texts of some lengths."""

    def __init__(self, *lengths: int) -> None:
        self.sizes = torch.tensor(lengths)

    def __len__(self) -> int:
        return len(self.sizes)

    def batch(self, rows: torch.Tensor) -> TokenBatch:
        tokens = torch.full((len(rows), int(self.sizes[rows].max()) + 1), PAD)
        for row, n in enumerate(self.sizes[rows].tolist()):
            tokens[row, : n + 1] = torch.tensor([*[4, 5, 6, 4][:n], EOS])
        return TokenBatch(tokens)


def test_the_loss_is_one_of_all_tokens_in_any_number_of_passes() -> None:
    policy, texts = token_policy(), _Lengths(1, 1, 3, 1, 2, 3)
    whole = float(policy.likelihood_loss(texts.batch(torch.arange(6)))["loss"].detach())
    for size in (1, 2, 4, 6, 9):
        assert held_out_loss(policy, texts, size) == pytest.approx(whole, rel=1e-12)
    of_rows = [float(policy.likelihood_loss(texts.batch(torch.tensor([k])))["loss"].detach()) for k in range(6)]
    assert abs(sum(of_rows) / 6 - whole) > 0.01


def test_graphs_larger_than_all_that_are_trained_on_are_left_out() -> None:
    graphs = dataset_from_networkx([nx.path_graph(n) for n in (3, 9, 4)])
    shown = no_larger(graphs, 4)
    assert shown.sizes.tolist() == [3, 4]
    assert with_held_out(None, no_larger(graphs, 2), 8) is None


def test_passes_of_a_policy_without_shares_are_weighed_by_their_samples() -> None:
    class Values:
        sizes = torch.ones(5, dtype=torch.long)

        def __len__(self) -> int:
            return 5

        def batch(self, rows: torch.Tensor) -> torch.Tensor:
            return rows.double()

    class Mean(torch.nn.Linear):
        def likelihood_loss(self, batch: torch.Tensor, *, generator: torch.Generator) -> dict[str, torch.Tensor]:
            return {"loss": batch.mean()}

    assert held_out_loss(Mean(1, 1), Values(), 2) == pytest.approx(2.0)
