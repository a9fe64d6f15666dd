"""A labelled graph set goes through pretraining, GRPO, sampling and evaluation to the report with every class intact."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data

from discrete_grpo import GRPOConfig, PretrainConfig, evaluate
from discrete_grpo.datasets.graph_files import to_graphml
from discrete_grpo.datasets.own_digraphs import OwnDigraphs, read_own
from discrete_grpo.datasets.own_graphs import own_graphs
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.domains.named_graphs import Labels, named_graph
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.evaluate import evaluate_file
from discrete_grpo.recipes.families import FileOptions
from discrete_grpo.recipes.kinds.graphs import graph_family, labels_of, load_reference, reference_of
from discrete_grpo.recipes.loading import load, load_policy
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.digraphs import digraph_policy
from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe, own_graph_policy, run_pretrain_graphs
from discrete_grpo.recipes.sample import sample, sample_file
from discrete_grpo.recipes.train import TrainRecipe, run_train
from discrete_grpo.rewards.graph_views import GraphView
from discrete_grpo.runs.checkpoint import load_metadata
from discrete_grpo.runs.checkpoint_names import BUNDLED
from discrete_grpo.runs.recorder import read_metrics, read_samples
from discrete_grpo.runs.serialization import CheckpointError
from tests.labelled_sets import COLOURS, KINDS, coloured, write_all
from tests.run_as_reference import run_is_reference

TINY = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4, walk_length=2)
LABELS = Labels(COLOURS, ("no edge", *KINDS), "colour", "kind")
SEEN: list[Any] = []


def green(graphs: list[nx.Graph | None], **columns: Any) -> list[float]:
    """Share of green nodes of networkx graphs."""
    SEEN.extend(graphs)
    return [0.0 if g is None else sum(c == "green" for _, c in g.nodes(data="colour")) / len(g) for g in graphs]


def thick(graphs: list[Data | None], **columns: Any) -> list[float]:
    """Number of thick edges of PyG data."""
    SEEN.extend(graphs)
    return [0.0 if g is None else float((g.edge_attr == 1).sum()) / 2 for g in graphs]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def files(work: Path) -> dict[str, Path]:
    return write_all(work, coloured())


@pytest.fixture(scope="module")
def pretrained(work: Path, files: dict[str, Path]) -> Path:
    loop = PretrainConfig(max_steps=30, batch_size=8, learning_rate=1e-2, warmup_steps=0, save_steps=30)
    recipe = PretrainGraphsRecipe(
        data=str(files["graphml"]),
        output_dir=str(work / "pretrained"),
        num_steps=4,
        network=TINY,
        pretrain=loop,
        evaluation_samples=8,
        test_share=0.25,
    )
    return run_pretrain_graphs(recipe)


def test_a_run_is_a_reference_for_its_samples_as_long_as_its_data_are_there(
    pretrained: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    run_is_reference(pretrained.parent, str(files["json"]), tmp_path)


def test_runs_that_are_no_reference_are_told(pretrained: Path, tmp_path: Path) -> None:
    table = str(pretrained.parent / "evaluation_after.csv.gz")
    shutil.copytree(BUNDLED / "digits", tmp_path / "digits")
    with pytest.raises(ValueError, match=r"^reference: .*digits' is a run whose samples are images, expected one of graphs$"):
        evaluate_file(table, FileOptions(reference=str(tmp_path / "digits")))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/metrics.jsonl").touch()
    with pytest.raises(ValueError, match=r"^reference: "):
        evaluate_file(table, FileOptions(reference=str(tmp_path / "empty")))
    with pytest.raises(ValueError, match=r"^reference: .*empty is a run folder, expected a file of samples"):
        evaluate(["CCO"], reference=str(tmp_path / "empty"))


def test_every_class_survives_from_the_file_to_the_report(pretrained: Path, files: dict[str, Path], work: Path) -> None:
    metadata = load_metadata(pretrained)
    assert labels_of(metadata) == LABELS
    assert metadata["data"]["graphs"] == 18
    assert {"eval/tv_node_class", "eval/tv_edge_given_ends"} <= {name for line in read_metrics(pretrained.parent) for name in line}

    lines = sample(str(pretrained), 30, seed=1)
    assert {c for s in lines for _, c in named_graph(s).nodes(data="label")} == set(COLOURS)
    assert {c for s in lines for *_, c in named_graph(s).edges(data="label")} == set(KINDS)
    results = {}
    for name in ("s.graphml", "s.json", "s.csv", "s.g6", "s.json.gz"):
        sample_file(str(pretrained), 30, str(work / name), seed=1)
        results[name] = evaluate_file(str(work / name), FileOptions(reference=str(files["json"])))
    assert all(result == pytest.approx(results["s.csv"], nan_ok=True) for result in results.values())
    assert results["s.g6"]["tv_edge_given_ends"] > 0
    read = own_graphs(work / "s.graphml")
    assert (read.labels.node_attribute, read.labels.edge_attribute) == ("colour", "kind")
    assert [s for s in (work / "s.g6").read_text().split("\n") if s] == lines

    run, grpo = work / "run", GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, save_steps=1, learning_rate=1e-2)
    trained = TrainRecipe(
        policy=str(pretrained), reward=green, output_dir=str(run), grpo=grpo, evaluation_samples=6, rewards_see="networkx"
    )
    SEEN.clear()
    result = run_train(trained)
    assert all(isinstance(graph, nx.Graph) for graph in SEEN)
    table = read_samples(run / "evaluation_after.csv.gz")
    wanted = [sum(c == "green" for _, c in named_graph(s).nodes(data="label")) / len(named_graph(s)) for s in table["sample"]]
    assert [float(r) for r in table["reward"]] == pytest.approx(wanted)
    assert {"tv_node_class", "novel"} <= set(result["after"])
    page = (run / "report.html").read_text()
    drawn = set(re.findall(r'<text x="[\d.]+" y="[\d.]+">([^<]+)</text></?', page)) | set(re.findall(r'">([a-z ]+)</text>', page))
    assert set(COLOURS) & drawn
    assert set(KINDS) & drawn
    assert labels_of(load_metadata(run / "policy")) == LABELS
    assert reference_of(load_metadata(run / "policy")) is not None


def test_rewards_see_pyg_data_by_choice(pretrained: Path, tmp_path: Path) -> None:
    grpo = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4)
    recipe = TrainRecipe(
        policy=str(pretrained), reward=thick, output_dir=str(tmp_path), grpo=grpo, evaluation_samples=4, rewards_see="pyg"
    )
    SEEN.clear()
    run_train(recipe)
    assert all(isinstance(graph, Data) for graph in SEEN)
    table = read_samples(tmp_path / "evaluation_after.csv.gz")
    counts = [sum(c == "thick" for *_, c in named_graph(s).edges(data="label")) for s in table["sample"]]
    assert [float(r) for r in table["reward"]] == counts


def test_objects_have_the_metrics_of_their_file(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    graphs = coloured()
    wanted = evaluate(str(files["json"]))
    assert "node_class_green" in wanted
    assert evaluate(graphs) == pytest.approx(wanted, nan_ok=True)
    paths = [nx.path_graph(3) for _ in range(8)]
    for k, graph in enumerate(paths):
        nx.set_node_attributes(graph, {v: "red" if (k >> v) & 1 else "blue" for v in graph}, "colour")
    assert evaluate(paths)["unique"] == 6 / 8  # colourings of a path of 3 nodes up to its reflection
    pyg = [
        Data(x=torch.tensor([[(k >> v) & 1] for v in range(3)]), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
        for k in range(8)
    ]
    assert evaluate(pyg)["unique"] == 6 / 8
    assert capsys.readouterr().err == ""
    assert evaluate(paths, reference=[nx.path_graph(3), nx.path_graph(4)])["unique"] == 1 / 8
    told = "samples: the attributes colour of the graphs are left out: the reference has no classes"
    assert told in capsys.readouterr().err
    assert evaluate(pyg, reference=[nx.path_graph(3), nx.path_graph(4)])["unique"] == 1 / 8
    assert "the attributes x of the graphs are left out" in capsys.readouterr().err


def test_attributes_that_hold_no_classes_are_left_out_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    placed = [nx.random_geometric_graph(5, 0.9, seed=seed) for seed in range(4)]
    bare = [nx.Graph(graph.edges) for graph in placed]
    assert evaluate(placed) == pytest.approx(evaluate(bare), nan_ok=True)
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith(
        "samples: the attributes pos of the graphs are left out: they cannot be read as classes (graph 0, node 0"
    )
    two = nx.path_graph(3)
    nx.set_node_attributes(two, "red", "colour")
    nx.set_node_attributes(two, "hot", "heat")
    assert evaluate([two, nx.path_graph(3)])["unique"] == 0.5
    assert "the attributes colour, heat of the graphs are left out" in capsys.readouterr().err
    assert evaluate([Data(x=torch.rand(2, 3), edge_index=torch.tensor([[0, 1], [1, 0]]))])["valid"] == 1.0
    assert "the attributes x of the graphs" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"^samples: graph 0, node 0 has a self-loop, expected none$"):
        evaluate([nx.Graph([(0, 0, {"weight": 0.5}), (0, 1, {"weight": 0.5})])])


@pytest.mark.parametrize("form", ["gml", "npz", "one-hot", "g6"])
def test_any_format_is_a_reference(pretrained: Path, files: dict[str, Path], work: Path, form: str) -> None:
    wanted = load_reference(FileOptions(reference=str(files["json"])))
    found = load_reference(FileOptions(reference=str(files[form])))
    assert found.labels is not None
    assert len(found.splits.train) == (22 if form == "npz" else 24)
    if form in ("gml", "g6"):
        assert (found.labels.nodes, found.labels.edges) == (COLOURS, ("no edge", *KINDS))
        assert evaluate(str(files["g6"]), reference=str(files[form])) == pytest.approx(
            evaluate(str(files["graphml"]), reference=str(files["json"])), nan_ok=True
        )
    assert wanted.labels is not None


def test_plain_graph6_files_train_plain_policies(tmp_path: Path) -> None:
    (tmp_path / "set.g6").write_text("".join(f"{graph6(nx.path_graph(3 + k % 2))}\n" for k in range(12)))
    recipe = PretrainGraphsRecipe(
        data=str(tmp_path / "set.g6"),
        output_dir=str(tmp_path / "run"),
        num_steps=3,
        network=TINY,
        pretrain=PretrainConfig(max_steps=1, batch_size=4),
        evaluation_samples=0,
    )
    folder = run_pretrain_graphs(recipe)
    assert "labels" not in load_metadata(folder)
    assert all(" " not in line for line in sample(str(folder), 4))
    metadata = load_metadata(folder)
    assert reference_of(metadata) is not None
    assert reference_of({**metadata, "data": {**metadata["data"], "test_share": None}}) is None


def test_classes_that_are_unknown_are_named(pretrained: Path, files: dict[str, Path], tmp_path: Path) -> None:
    graph = coloured(1)[0]
    graph.nodes[0]["colour"] = "purple"
    (tmp_path / "odd.graphml").write_bytes(to_graphml([graph]))
    with pytest.raises(ValueError, match="file: graph 0: node class 'purple', expected one of blue, deep red, green"):
        evaluate_file(str(tmp_path / "odd.graphml"), FileOptions(reference=str(files["json"])))
    with pytest.raises(ValueError, match=r"graphs\[0\]: node class 'purple', expected one of"):
        load_policy(pretrained).encode(["A_ nodes=purple,green edges=thin"])
    with pytest.raises(ValueError, match="node_attribute: 'size', expected one of colour"):
        evaluate_file(str(files["json"]), FileOptions(node_attribute="size"))
    assert "kind" not in evaluate(str(files["json"]), node_attribute="colour", edge_attribute="kind")


def test_options_that_do_not_fit_are_named(pretrained: Path, files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="node_attribute: 'colour', expected none with tree-16"):
        run_pretrain_graphs(PretrainGraphsRecipe(data="tree-16", node_attribute="colour", output_dir=str(tmp_path / "a")))
    with pytest.raises(ValueError, match="test_share: 1"):
        PretrainGraphsRecipe(test_share=1.0)
    with pytest.raises(ValueError, match="rewards_see: 'dgl', expected text, networkx, pyg or smiles"):
        TrainRecipe(rewards_see="dgl")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rewards_see: 'pyg', expected 'text' with samples of the kind molecules"):
        run_train(TrainRecipe(policy="qm9-small", reward=thick, output_dir=str(tmp_path / "b"), rewards_see="pyg"))
    with pytest.raises(ValueError, match="view: 'text', expected one of networkx, pyg"):
        GraphView(green, "text")  # type: ignore[arg-type]


@pytest.mark.parametrize("view", ["networkx", "pyg"])
def test_a_line_that_is_no_graph_is_an_invalid_sample(view: Any) -> None:
    reward = GraphView(lambda graphs: [0.0 if graph is None else 1.0 for graph in graphs], view)
    assert reward(["Bg", None, "~~not a graph", "", "Bg nodes=a edges=b"]) == [1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph])
def test_marginal_noise_needs_a_graph_of_two_nodes(kind: type[nx.Graph]) -> None:
    data = read_own([nx.empty_graph(1, create_using=kind)] * 3)
    make: Any = digraph_policy if isinstance(data, OwnDigraphs) else own_graph_policy
    with pytest.raises(ValueError, match=r"^data: no graph to train on has two nodes, expected at least one that has"):
        make(data)
    assert make(data, options=DiffusionOptions(noise="uniform", num_steps=2)).num_steps == 2


def test_labels_that_do_not_fit_the_policy_are_refused(pretrained: Path) -> None:
    loaded = load(pretrained)
    short = {**loaded.metadata, "labels": Labels(("a",), ("no edge", "x")).to_json()}
    with pytest.raises(CheckpointError, match="it has 1 names of node classes and 2 of edge classes, expected 3 and 3"):
        graph_family(short).decode(loaded.policy, short)
    with pytest.raises(CheckpointError, match="labels: nothing of the checkpoint"):
        graph_family({"labels": "nothing"})


def test_a_pyg_network_is_pretrained_on_own_graphs(files: dict[str, Path], tmp_path: Path) -> None:
    from discrete_grpo.models.pyg import MessagePassing, PyGDenoiser

    torch.manual_seed(0)
    recipe = PretrainGraphsRecipe(
        data=str(files["integers"]),
        output_dir=str(tmp_path / "run"),
        num_steps=3,
        pretrain=PretrainConfig(max_steps=2, batch_size=8),
        evaluation_samples=0,
    )
    folder = run_pretrain_graphs(recipe, network=PyGDenoiser(MessagePassing(3, 3, width=8, layers=1), 8, 3, 3))
    assert {c for s in sample(str(folder), 8) for _, c in named_graph(s).nodes(data="label")} <= {"0", "1", "2"}
