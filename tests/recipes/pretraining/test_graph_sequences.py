"""Autoregressive policies of graphs from data to GRPO, on tiny networks, and the bundled ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from discrete_grpo import GRPOConfig, PretrainConfig
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import Context
from discrete_grpo.datasets.graph_files import to_graphml
from discrete_grpo.datasets.graph_splits import load_splits, write_npz
from discrete_grpo.datasets.graph_tokens import GraphTokens, graph_tokens
from discrete_grpo.datasets.synthetic_graphs import GraphSplits, tree
from discrete_grpo.domains.graph6 import from_graph6, graph6
from discrete_grpo.domains.graph_sequences import PATTERN, GraphSequences, vocabulary
from discrete_grpo.domains.named_graphs import named_graph
from discrete_grpo.domains.tokenizer import BOS, EOS, PAD, Tokenizer
from discrete_grpo.metrics.graphs import evaluate
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.grammar import along
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.loading import load, load_policy
from discrete_grpo.recipes.pretraining.graph_sequences import (
    PretrainGraphSequencesRecipe,
    graph_sequence_policy,
    run_pretrain_graph_sequences,
)
from discrete_grpo.recipes.pretraining.held_out import held_out_loss
from discrete_grpo.recipes.pretraining.pretrain import pretrain
from discrete_grpo.recipes.sample import sample
from discrete_grpo.recipes.train import TrainRecipe, run_train
from discrete_grpo.rewards.graphs import tree_valid
from discrete_grpo.runs.checkpoint import load_metadata
from discrete_grpo.runs.checkpoint_names import find_checkpoint
from discrete_grpo.runs.recorder import read_metrics, read_samples
from discrete_grpo.testing import check_policy

TINY: dict[str, Any] = {"layers": 1, "heads": 2, "width": 16, "orders": 4, "candidates": 1, "evaluation_samples": 0}
FAST = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, save_steps=1, learning_rate=1e-3)


def recipe(folder: Path, **changes: Any) -> PretrainGraphSequencesRecipe:
    config = PretrainConfig(max_steps=3, batch_size=8, save_steps=2)
    return PretrainGraphSequencesRecipe(**{"data": "tree-16", "output_dir": str(folder), "pretrain": config, **TINY, **changes})


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrain(recipe(tmp_path_factory.mktemp("sequences") / "run", evaluation_samples=4))


# -- data


def small_set(orders: int = 3, seed: int = 0) -> tuple[list[nx.Graph], GraphTokens]:
    rng = np.random.default_rng(0)
    graphs = [tree(n, rng) for n in (5, 9, 7)]
    return graphs, graph_tokens(graphs, Tokenizer(vocabulary(9), PATTERN), orders=orders, candidates=2, seed=seed)


def test_each_row_is_one_order_of_its_graph_and_always_the_same() -> None:
    graphs, data = small_set()
    assert len(data) == 9
    rows = torch.arange(9)
    batch = data.batch(rows)
    assert torch.equal(batch.tokens, data.batch(rows).tokens)
    assert not torch.equal(batch.tokens[:3], small_set(seed=1)[1].batch(rows[:3]).tokens[:, : batch.tokens.shape[1]])
    lines = GraphSequences()([data.tokenizer.decode(row) for row in batch.tokens.tolist()])
    for row, line in enumerate(lines):
        assert line is not None
        assert nx.is_isomorphic(from_graph6(line), graphs[row % 3])
    assert len({data.text(row) for row in (1, 4, 7)}) > 1
    lengths = (batch.tokens != PAD).sum(1)
    assert (batch.tokens[rows, lengths - 1] == EOS).all()
    assert (lengths <= data.sizes).all()


def test_data_out_of_range_is_refused() -> None:
    graphs, data = small_set()
    with pytest.raises(ValueError, match=r"graphs\[1\]: 0 nodes"):
        graph_tokens([graphs[0], nx.Graph()], data.tokenizer)
    with pytest.raises(ValueError, match="graphs: none given"):
        graph_tokens([], data.tokenizer)
    with pytest.raises(ValueError, match="orders: 0"):
        dataclasses.replace(data, orders=0)
    with pytest.raises(ValueError, match="candidates: 0"):
        PretrainGraphSequencesRecipe(candidates=0)


# -- the policy


def test_the_policy_passes_the_conformance_kit() -> None:
    policy = graph_sequence_policy(4, 8, layers=1, heads=2, width=16)
    check_policy(policy, [Context(k // 3) for k in range(6)], samples=400).raise_on_failure()


def test_log_probs_of_graphs_it_did_not_draw_are_those_of_their_text() -> None:
    policy = graph_sequence_policy(6, 14, layers=1, heads=2, width=16).double()
    lines = [graph6(nx.cycle_graph(5)), graph6(nx.path_graph(3))]
    assert policy.can_draw(lines[0])
    assert not policy.can_draw(graph6(nx.path_graph(40)))
    rollout = policy.rollout_of(lines)
    assert rollout.samples == tuple(lines)
    with torch.no_grad():
        logp = score_sites(policy.sites(rollout)).logp.flatten(1).sum(1)
    for row, text in enumerate(policy.decoder.encode(lines)):
        ids = torch.tensor([*policy.policy.tokenizer.encode(text), EOS])
        with torch.no_grad():
            grammar = policy.policy.grammar
            legal, features = along(grammar, ids.unsqueeze(0), grammar.legal, grammar.features)
            logits = policy.policy.network(torch.tensor([[BOS, *ids[:-1]]]), features=features)[0]
        logits[~legal[0]] = -torch.inf
        assert float(logp[row]) == pytest.approx(float(logits.log_softmax(-1)[torch.arange(len(ids)), ids].sum()), abs=1e-10)


# -- recipes


def test_a_policy_is_pretrained_loaded_and_resumed(trees: Path, tmp_path: Path) -> None:
    loaded = load(trees)
    assert isinstance(loaded.policy, DecodedPolicy)
    assert loaded.family.name == "graphs"
    metadata = load_metadata(trees)
    assert (metadata["kind"], metadata["shape"], metadata["data"]["graphs"]) == ("graphs", "tree", 128)
    assert "eval/vun" in {name for line in read_metrics(trees.parent) for name in line}
    other = recipe(tmp_path / "run")
    run_pretrain_graph_sequences(dataclasses.replace(other, pretrain=dataclasses.replace(other.pretrain, max_steps=2)))
    run_pretrain_graph_sequences(other, resume=True)
    assert [line["step"] for line in read_metrics(tmp_path / "run") if "loss" in line] == [2, 3]
    assert load_policy(trees, SamplerOptions(temperature=0.5)).policy.truncation.temperature == 0.5


def test_the_loss_of_test_graphs_is_logged(trees: Path) -> None:
    found = [line["eval/test_loss"] for line in read_metrics(trees.parent) if "eval/test_loss" in line]
    assert len(found) == 2
    policy = load_policy(trees)
    orders = {"orders": 4, "candidates": 1, "seed": PretrainConfig().seed}
    data = graph_tokens(load_splits("tree-16").test, policy.policy.tokenizer, None, **orders)
    assert found[1] == held_out_loss(policy, data, 8)


def test_test_graphs_that_the_policy_cannot_draw_are_left_out(tmp_path: Path) -> None:
    graphs = [nx.path_graph(n) for n in (3, 4, 5, 4, 3, 9)]
    kept, left_out = (GraphSplits(tuple(graphs[:4]), (), tuple(test), "mine") for test in (graphs[4:], graphs[5:]))
    for name, splits in (("kept", kept), ("left_out", left_out)):
        write_npz(tmp_path / f"{name}.npz", splits)
        pretrain(recipe(tmp_path / name, data=str(tmp_path / f"{name}.npz"), evaluation_samples=2, shape="connected"))
    logged = {name: {key for line in read_metrics(tmp_path / name) for key in line} for name in ("kept", "left_out")}
    assert "eval/test_loss" in logged["kept"]
    assert "eval/test_loss" not in logged["left_out"]


def test_grpo_trains_and_resumes_it_with_a_reward_of_graphs(trees: Path, tmp_path: Path) -> None:
    run = TrainRecipe(policy=str(trees), reward=tree_valid, output_dir=str(tmp_path / "run"), grpo=FAST, evaluation_samples=4)
    result = run_train(run)
    assert set(result) == {"before", "after"}
    assert {"valid", "vun", "reward"} <= set(result["after"])
    assert {"nodes", "edges"} <= set(read_samples(tmp_path / "run/evaluation_after.csv.gz"))
    run_train(dataclasses.replace(run, grpo=dataclasses.replace(FAST, max_steps=3)), resume=True)
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [1, 2, 3]


def test_graphs_with_classes_are_written_with_their_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    graphs = [tree(int(rng.integers(4, 8)), rng) for _ in range(10)]
    for graph in graphs:
        nx.set_node_attributes(graph, {v: ("red", "blue")[int(rng.integers(2))] for v in graph}, "colour")
        nx.set_edge_attributes(graph, {e: ("thin", "thick")[int(rng.integers(2))] for e in graph.edges}, "width")
    (tmp_path / "own.graphml").write_bytes(to_graphml(iter(graphs)))
    own = recipe(tmp_path / "run", data=str(tmp_path / "own.graphml"), node_attribute="colour", edge_attribute="width")
    policy = load_policy(run_pretrain_graph_sequences(own))
    assert policy.decoder.labels.nodes == ("blue", "red")
    (text,) = policy.decoder.encode(["A_ nodes=red,blue edges=thin"])
    assert named_graph(policy.decoder([text])[0]).nodes(data="label") == {0: "red", 1: "blue"}.items()


def test_bad_settings_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_length: 5, expected at least 32, the most tokens of a graph of the data"):
        run_pretrain_graph_sequences(recipe(tmp_path, max_length=5))
    with pytest.raises(ValueError, match="node_attribute: 'colour', expected none with tree-16"):
        run_pretrain_graph_sequences(recipe(tmp_path, node_attribute="colour"))


# -- the bundled policies


@pytest.mark.parametrize("name", ["tree-64-sequences", "planar-64-sequences"])
def test_a_bundled_policy_is_small_says_where_it_is_from_and_draws_what_its_set_has(name: str) -> None:
    folder = find_checkpoint(name)
    assert sum(p.stat().st_size for p in folder.iterdir()) < 4_000_000
    metadata = load_metadata(folder)
    assert {"name", "graphs", "licence"} <= set(metadata["data"])
    samples = sample(name, 24, seed=1)
    found = evaluate(samples, shape=metadata["shape"])
    assert found["valid"] >= 0.9
    assert found["unique"] == 1
    assert abs(found["nodes"] - 64) < 2
