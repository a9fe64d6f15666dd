"""Recipes of plain graphs, options of graph policies in a run, and local search, end to end on tiny networks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo import GRPOConfig, PretrainConfig, RewardError
from discrete_grpo.datasets.graph_splits import read_npz
from discrete_grpo.diffusion.flow import FlowEuler
from discrete_grpo.diffusion.schedules import PolydecDistortion
from discrete_grpo.domains import graph6 as topology
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.node_count import LearnedSizes, RunningSizes, SizedPolicy
from discrete_grpo.policies.options import graph_part, with_options, without_likelihood
from discrete_grpo.policies.surrogate import EagerLikelihood, ElboLikelihood
from discrete_grpo.recipes.evaluate import evaluate, evaluate_file
from discrete_grpo.recipes.families import FileOptions, SamplerOptions
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe, run_pretrain_graphs
from discrete_grpo.recipes.reward_kinds import check_kind
from discrete_grpo.recipes.sample import sample, sample_file
from discrete_grpo.recipes.search import SearchRecipe, run_search
from discrete_grpo.recipes.train import TrainRecipe, run_train, train
from discrete_grpo.rewards.combine import WeightedSum
from discrete_grpo.rewards.digraphs import acyclic
from discrete_grpo.rewards.graphs import tree_valid
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.runs import checkpoint
from discrete_grpo.runs.checkpoint import load_metadata
from discrete_grpo.runs.recorder import read_metrics, read_samples
from tests.toys import tiny_policy

TINY = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4, walk_length=2)
FAST = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, save_steps=1, learning_rate=1e-2)
EMPTY = GraphBatch(torch.zeros(6, 3, dtype=torch.long), torch.zeros(6, 3, 3, dtype=torch.long), torch.ones(6, 3, dtype=torch.bool))


def edges(samples: list[str], **columns: Any) -> list[float]:
    """A reward that counts edges."""
    return [float(topology.from_graph6(s).number_of_edges()) for s in samples]


@pytest.fixture(scope="module")
def planar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = PretrainGraphsRecipe(
        data="community-20",
        output_dir=str(tmp_path_factory.mktemp("graphs") / "run"),
        kernel="flow_euler",
        eta=2.0,
        num_steps=4,
        network=TINY,
        pretrain=PretrainConfig(max_steps=3, batch_size=8, save_steps=2),
        evaluation_samples=4,
    )
    return run_pretrain_graphs(recipe)


def test_a_policy_of_plain_graphs_is_pretrained_and_loaded(planar: Path) -> None:
    policy = load_policy(planar)
    assert isinstance(policy.edge_kernel, FlowEuler)
    assert (policy.edge_kernel.eta, policy.edge_kernel.noise.num_clean, policy.node_kernel.noise.num_clean) == (2.0, 2, 1)
    assert policy.train_distortion == policy.sample_distortion == PolydecDistortion()
    assert load_metadata(planar)["kind"] == "graphs"
    assert load_metadata(planar)["data"]["graphs"] == 128
    assert "eval/connected" in {name for line in read_metrics(planar.parent) for name in line}
    other = load_policy(planar, SamplerOptions(kernel="d3pm", sample_distortion="identity", num_steps=7))
    torch.testing.assert_close(other.grid, torch.linspace(1, 0, 8, dtype=torch.float64))
    assert other.edge_kernel.noise.prior == policy.edge_kernel.noise.prior


@pytest.mark.parametrize(
    ("options", "wrapper"),
    [
        ({}, GraphPolicy),
        ({"likelihood": "eager"}, EagerLikelihood),
        ({"likelihood": "elbo", "elbo_draws": 3}, ElboLikelihood),
        ({"node_count": "learned"}, SizedPolicy),
        ({"node_count": "running"}, SizedPolicy),
    ],
)
def test_every_choice_trains_resumes_and_exports(planar: Path, tmp_path: Path, options: dict[str, Any], wrapper: type) -> None:
    recipe = TrainRecipe(
        policy=str(planar), reward=edges, output_dir=str(tmp_path / "run"), grpo=FAST, evaluation_samples=4, **options
    )
    result = run_train(recipe)
    assert set(result) == {"before", "after"}
    assert isinstance(checkpoint.read_policy(next(iter(sorted((tmp_path / "run/checkpoints").iterdir())))), wrapper)
    exported = load_policy(tmp_path / "run/policy")
    assert isinstance(exported, SizedPolicy if wrapper is SizedPolicy else GraphPolicy)
    assert topology.from_graph6(read_samples(tmp_path / "run/evaluation_after.csv.gz")["sample"][0]).number_of_nodes() >= 12
    named = load_policy(f"discrete_grpo.policies.graph:GraphPolicy@{tmp_path / 'run'}")
    assert type(named) is type(exported), "a wrapper of the class that is named"
    more = dataclasses.replace(recipe, grpo=dataclasses.replace(FAST, max_steps=3))
    run_train(more, resume=True)
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [1, 2, 3]


def test_options_of_a_wrapped_policy_reach_the_graph_policy(planar: Path) -> None:
    plain = load_policy(planar)
    sized = with_options(plain, node_count="learned")
    assert isinstance(sized.head, LearnedSizes)
    assert isinstance(with_options(plain, node_count="running").head, RunningSizes)
    assert graph_part(sized) is plain
    assert graph_part(torch.nn.Linear(1, 1)) is None
    assert with_options(sized, node_count="learned") is sized, "a resumed run keeps the wrapper of its checkpoint"
    assert with_options(sized) is sized
    eager = with_options(plain, "eager")
    assert without_likelihood(eager) is plain
    assert without_likelihood(sized) is sized


def test_choices_that_do_not_fit_are_named(planar: Path) -> None:
    plain = load_policy(planar)
    for policy, choices, said in (
        (plain, ("exact",), "likelihood: 'exact', expected transition, eager or elbo"),
        (plain, ("transition", "fixed"), "node_count: 'fixed', expected prior, learned or running"),
        (plain, ("eager", "learned"), "node_count: 'learned', expected prior with likelihood eager"),
        (
            with_options(plain, node_count="learned"),
            ("eager",),
            "likelihood: 'eager', expected transition: the policy has a learned node",
        ),
        (
            with_options(plain, node_count="running"),
            ("transition", "learned"),
            "node_count: 'learned', expected running or prior: the policy has a running node count",
        ),
        (
            with_options(plain, "elbo"),
            ("eager",),
            "likelihood: 'eager', expected elbo or transition: the policy has the likelihood elbo",
        ),
        (
            with_options(plain, "eager"),
            ("eager", "learned"),
            "node_count: 'learned', expected prior: the policy has the likelihood eager",
        ),
        (torch.nn.Linear(1, 1), ("eager",), "likelihood: 'eager', expected transition: Linear has no such setting"),
        (torch.nn.Linear(1, 1), ("transition", "learned"), "node_count: 'learned', expected prior: Linear has no such setting"),
    ):
        with pytest.raises(ValueError, match=said):
            with_options(policy, *choices)


def test_local_search_writes_what_it_found(planar: Path, tmp_path: Path) -> None:
    recipe = SearchRecipe(str(planar), edges, str(tmp_path / "run"), rounds=2, population=3, children=4)
    found = run_search(recipe)
    table = read_samples(tmp_path / "run/best.csv.gz")
    assert [float(r) for r in table["reward"]] == list(found.rewards) == sorted(found.rewards, reverse=True)
    assert edges(table["graph"]) == list(found.rewards)
    assert found.drawn == 3 * 12
    assert run_search(recipe, resume=True).samples == found.samples
    kept = {name: (tmp_path / "run" / name).read_bytes() for name in ("best.csv.gz", "search.json")}
    calls: list[int] = []

    def stopped(samples: list[str], **columns: Any) -> list[float]:
        calls.append(len(samples))
        if len(calls) == 2:
            raise RuntimeError("no more")
        return edges(samples, **columns)

    stopped.cached_as = None  # type: ignore[attr-defined]
    with pytest.raises(RewardError, match="no more"):
        run_search(dataclasses.replace(recipe, reward=stopped), resume=True)
    assert kept == {name: (tmp_path / "run" / name).read_bytes() for name in kept}  # one round is less than what was there


def test_a_search_for_several_rewards_writes_each(planar: Path, tmp_path: Path) -> None:
    def half(samples: list[str], **columns: Any) -> list[float]:
        return [value / 2 for value in edges(samples, **columns)]

    found = run_search(SearchRecipe(str(planar), [edges, half], str(tmp_path), rounds=1, population=3, children=4))
    table = {name: [float(x) for x in column] for name, column in read_samples(tmp_path / "best.csv.gz").items() if name != "graph"}
    graphs = read_samples(tmp_path / "best.csv.gz")["graph"]
    assert table["reward_edges"] == edges(graphs)
    assert table["reward_half"] == half(graphs)
    assert (
        table["reward"] == [a + b for a, b in zip(table["reward_edges"], table["reward_half"], strict=True)] == list(found.rewards)
    )


@pytest.mark.parametrize("name", ["a.gml", "a.jsonl", "a.edgelist.gz", "a.pt", "a.tsv", "a.sdf", "a.smi", "a"])
def test_an_ending_that_graphs_do_not_have_is_refused_before_drawing(planar: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    said = r"expected a file of graphs ending in \.csv, \.graphml, \.json, \.g6 or \.txt, also with \.gz"
    with pytest.raises(ValueError, match=f"out: '{out}', {said}"):
        sample_file(str(planar), 2, str(out))
    assert not out.exists()


def test_tables_of_a_run_of_graphs_are_evaluated(planar: Path, tmp_path: Path) -> None:
    run_train(TrainRecipe(policy=str(planar), reward=edges, output_dir=str(tmp_path / "run"), grpo=FAST, evaluation_samples=4))
    for name, count in (("evaluation_after.csv.gz", 4), ("samples.csv.gz", 16)):
        found = evaluate_file(str(tmp_path / "run" / name), FileOptions(reference="community-20"))
        assert found["num_samples"] == count
        assert "degree" in " ".join(found)
    molecules = tmp_path / "molecules.csv"
    molecules.write_text("sample,reward\nCC,1\nCCO,2\n,0\n")
    assert evaluate_file(str(molecules))["valid"] == pytest.approx(2 / 3)


def test_a_search_shows_rewards_graphs_as_they_see_them(planar: Path, tmp_path: Path) -> None:
    def seen(graphs: list[Any], **columns: Any) -> list[float]:
        return [float(graph.number_of_edges()) for graph in graphs]

    plain = SearchRecipe(str(planar), edges, str(tmp_path / "a"), rounds=1, population=2, children=2)
    viewed = dataclasses.replace(plain, reward=seen, output_dir=str(tmp_path / "b"), rewards_see="networkx")
    assert run_search(viewed).rewards == run_search(plain).rewards
    with pytest.raises(ValueError, match="rewards_see: 'smiles', expected text, networkx or pyg with graphs"):
        run_search(dataclasses.replace(viewed, output_dir=str(tmp_path / "c"), rewards_see="smiles"))
    with pytest.raises(ValueError, match="rewards_see: 'dgl', expected text, networkx, pyg or smiles"):
        dataclasses.replace(viewed, rewards_see="dgl")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reward", "name"), [(qed, "qed"), (acyclic, "acyclic"), (WeightedSum((edges, qed), (1.0, 1.0)), r"1\*edges \+ 1\*qed")]
)
def test_a_reward_for_other_samples_is_refused_before_any_work(planar: Path, tmp_path: Path, reward: Any, name: str) -> None:
    said = rf"reward: {name} is for (molecules|directed graphs), expected one for graphs, which the policy draws"
    with pytest.raises(ValueError, match=said):
        run_train(TrainRecipe(policy=str(planar), reward=reward, output_dir=str(tmp_path / "run"), grpo=FAST))
    with pytest.raises(ValueError, match=said):
        run_search(SearchRecipe(str(planar), reward, str(tmp_path / "found")))
    with pytest.raises(ValueError, match="reward: tree_valid is for graphs, expected one for directed graphs"):
        check_kind([edges, acyclic, tree_valid], "digraphs")


def test_arguments_of_a_wrong_kind_are_named(tmp_path: Path) -> None:
    given: dict[str, Any] = {"output_dir": tmp_path / "run"}
    for changes, said in (
        ({"columns": {"num_nodes": 5}}, r"columns: {'num_nodes': 5}, expected a list of mappings"),
        ({"columns": [5]}, "columns: 5, expected a mapping"),
        ({"grpo": {"max_steps": 1}}, r"grpo: {'max_steps': 1}, expected a GRPOConfig"),
        ({"output_dir": 3}, "output_dir: 3, expected the name of a folder"),
        ({"elbo_draws": 0}, "elbo_draws: 0, expected at least 1"),
    ):
        with pytest.raises(ValueError, match=said):
            train("tree-16", edges, **given | changes)
    with pytest.raises(ValueError, match=r"columns: {'num_nodes': 5}, expected a list of mappings"):
        sample("tree-16", 2, columns={"num_nodes": 5})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reward_weights: 'a', expected a finite number"):
        GRPOConfig(reward_weights=["a"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="foo: unknown option; known: reference, shape"):
        evaluate(["Bw"], kind="graphs", foo=1)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="samples: 3, expected a list of samples or the name of a file"):
        evaluate(3)  # type: ignore[call-overload]


def test_time_distortions_move_the_grid_and_the_times_trained_at() -> None:
    grid = tiny_policy(num_steps=4, sample_distortion=PolydecDistortion()).grid
    torch.testing.assert_close(grid, torch.tensor([1.0, 0.5625, 0.25, 0.0625, 0.0], dtype=torch.float64))
    seen: list[torch.Tensor] = []

    class Watching(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, nodes: Any, edges: Any, time: torch.Tensor, mask: Any) -> Any:
            seen.append(time)
            return self.inner(nodes, edges, time, mask)

    for distortion in (None, PolydecDistortion()):
        policy = tiny_policy(train_distortion=distortion)
        policy.network = Watching(policy.network)
        policy.likelihood_loss(EMPTY, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(seen[1].double(), seen[0].double() ** 2, rtol=0, atol=1e-6)  # 1 - f(1-t) = t² for polydec


def test_an_unknown_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data: 'planar-17', expected one of planar-16"):
        run_pretrain_graphs(PretrainGraphsRecipe(data="planar-17", output_dir=str(tmp_path)))
    with pytest.raises(ValueError, match="evaluation_samples: -1, expected at least 0"):
        PretrainGraphsRecipe(evaluation_samples=-1)
    with pytest.raises(FileNotFoundError, match="is no file, expected an npz file of splits"):
        read_npz(tmp_path / "no.npz")


def test_graphs_that_a_policy_does_not_know_are_named() -> None:
    policy = tiny_policy()
    nodes, edges, mask = EMPTY.nodes, EMPTY.edges, EMPTY.mask
    for graphs, said in (
        (GraphBatch(nodes + 3, edges, mask), "node class in graphs: 3, expected 0 to 2"),
        (GraphBatch(nodes, edges - 1, mask), "edge class in graphs: -1, expected 0 to 1"),
        (EMPTY.pad(5), "nodes of graphs: 5, expected at most 4"),
    ):
        with pytest.raises(ValueError, match=said):
            policy.likelihood_loss(graphs)
