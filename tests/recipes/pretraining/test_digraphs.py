"""A labelled set of directed acyclic graphs goes through all commands to the report, with directions and classes intact."""

from __future__ import annotations

import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data

from discrete_grpo import GRPOConfig, PretrainConfig, evaluate
from discrete_grpo.cli import main
from discrete_grpo.datasets.graph_files import to_graphml
from discrete_grpo.datasets.own_digraphs import own_digraphs
from discrete_grpo.datasets.own_graphs import own_graphs
from discrete_grpo.domains.named_graphs import Labels, named_graph, to_line
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.evaluate import evaluate_file
from discrete_grpo.recipes.families import FileOptions, SamplerOptions
from discrete_grpo.recipes.kinds.digraphs import digraph_family, load_reference, reference_of
from discrete_grpo.recipes.kinds.graphs import labels_of
from discrete_grpo.recipes.loading import load, load_policy
from discrete_grpo.recipes.pretraining.digraphs import digraph_policy
from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe, own_graph_policy, run_pretrain_graphs
from discrete_grpo.recipes.sample import sample, sample_file
from discrete_grpo.recipes.train import TrainRecipe, run_train
from discrete_grpo.rewards.digraphs import acyclic
from discrete_grpo.runs.checkpoint import Checkpoints, load_metadata
from discrete_grpo.runs.recorder import read_metrics, read_samples
from discrete_grpo.runs.serialization import CheckpointError
from tests.directed_sets import OPS, PORTS, dags, write_all
from tests.run_as_reference import run_is_reference

TINY = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4)
LABELS = Labels(OPS, ("no edge", *PORTS), "op", "port")
SEEN: list[Any] = []


def sources(graphs: list[nx.DiGraph | None], **columns: Any) -> list[float]:
    """Share of additions among the nodes of networkx graphs."""
    SEEN.extend(graphs)
    return [0.0 if g is None else sum(c == "add" for _, c in g.nodes(data="op")) / len(g) for g in graphs]


def lefts(graphs: list[Data | None], **columns: Any) -> list[float]:
    """Number of left arcs of PyG data, which list each once."""
    SEEN.extend(graphs)
    return [0.0 if g is None else float((g.edge_attr == 1).sum()) for g in graphs]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def files(work: Path) -> dict[str, Path]:
    return write_all(work, dags())


def recipe(data: Path, folder: Path, **changes: Any) -> PretrainGraphsRecipe:
    loop = PretrainConfig(max_steps=30, batch_size=8, learning_rate=1e-2, warmup_steps=0, save_steps=15)
    fixed: dict[str, Any] = {"num_steps": 4, "network": TINY, "pretrain": loop, "evaluation_samples": 8, "test_share": 0.25}
    return PretrainGraphsRecipe(data=str(data), output_dir=str(folder), **fixed | changes)


@pytest.fixture(scope="module")
def pretrained(work: Path, files: dict[str, Path]) -> Path:
    return run_pretrain_graphs(recipe(files["graphml"], work / "pretrained"))


def test_a_run_is_a_reference_for_its_samples_as_long_as_its_data_are_there(
    pretrained: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    run_is_reference(pretrained.parent, str(files["json"]), tmp_path)


def test_every_class_survives_from_the_file_to_the_report(pretrained: Path, files: dict[str, Path], work: Path) -> None:
    metadata = load_metadata(pretrained)
    assert (metadata["kind"], metadata["shape"], labels_of(metadata)) == ("digraphs", "dag", LABELS)
    assert metadata["data"]["graphs"] == 18
    logged = {name for line in read_metrics(pretrained.parent) for name in line}
    assert {"eval/tv_edge_given_ends", "eval/w1_longest_path", "loss_node", "loss_edge"} <= logged

    lines = sample(str(pretrained), 30, seed=1)
    assert all(isinstance(named_graph(s), nx.DiGraph) for s in lines)
    assert {c for s in lines for _, c in named_graph(s).nodes(data="label")} == set(OPS)
    assert {c for s in lines for *_, c in named_graph(s).edges(data="label")} == set(PORTS)
    results = {}
    for name in ("s.graphml", "s.json", "s.csv", "s.g6", "s.json.gz", "s.txt"):
        sample_file(str(pretrained), 30, str(work / name), seed=1)
        results[name] = evaluate_file(str(work / name), FileOptions(reference=str(files["json"])))
    assert all(result == pytest.approx(results["s.csv"], nan_ok=True) for result in results.values())
    assert results["s.g6"]["tv_edge_given_ends"] > 0
    read = own_digraphs(work / "s.graphml")
    assert (read.labels.node_attribute, read.labels.edge_attribute) == ("op", "port")
    assert [s for s in (work / "s.g6").read_text().split("\n") if s] == lines

    grpo = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, save_steps=1, learning_rate=1e-2, beta=0.1)
    trained = TrainRecipe(
        policy=str(pretrained),
        reward=sources,
        output_dir=str(work / "run"),
        grpo=grpo,
        evaluation_samples=6,
        rewards_see="networkx",
    )
    SEEN.clear()
    result = run_train(trained)
    assert all(isinstance(graph, nx.DiGraph) for graph in SEEN)
    table = read_samples(work / "run" / "evaluation_after.csv.gz")
    wanted = [sum(c == "add" for _, c in named_graph(s).nodes(data="label")) / len(named_graph(s)) for s in table["sample"]]
    assert [float(r) for r in table["reward"]] == pytest.approx(wanted)
    assert {"tv_node_class", "novel", "w1_in_degree"} <= set(result["after"])
    assert {"fields/edge/kl", "fields/node/log_ratio"} <= set(read_metrics(work / "run")[-1])
    page = (work / "run" / "report.html").read_text()
    drawn = set(re.findall(r'">([a-z ]+)</text>', page))
    assert {*OPS, *PORTS} <= drawn
    assert "directed graph of" in page
    assert labels_of(load_metadata(work / "run" / "policy")) == LABELS
    assert reference_of(load_metadata(work / "run" / "policy")) is not None


def test_grpo_updates_on_acyclic_by_the_command(pretrained: Path, tmp_path: Path) -> None:
    sizes = ["--grpo.num_generations=4", "--grpo.generation_batch_size=16", "--grpo.max_steps=2", "--evaluation_samples=20"]
    command = ["train", f"--policy={pretrained}", "--reward=acyclic", f"--output_dir={tmp_path / 'run'}", *sizes]
    assert main(command) == 0
    table = read_samples(tmp_path / "run" / "evaluation_before.csv.gz")
    assert [float(r) for r in table["reward"]] == acyclic(table["sample"])
    assert len(read_metrics(tmp_path / "run")) == 2
    assert load_policy(tmp_path / "run").sample is not None


def test_rewards_see_pyg_data_by_choice(pretrained: Path, tmp_path: Path) -> None:
    grpo = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4)
    SEEN.clear()
    run_train(
        TrainRecipe(
            policy=str(pretrained), reward=lefts, output_dir=str(tmp_path), grpo=grpo, evaluation_samples=4, rewards_see="pyg"
        )
    )
    assert all(isinstance(graph, Data) for graph in SEEN)
    table = read_samples(tmp_path / "evaluation_after.csv.gz")
    counts = [sum(c == "left" for *_, c in named_graph(s).edges(data="label")) for s in table["sample"]]
    assert [float(r) for r in table["reward"]] == counts


def test_a_run_that_was_stopped_goes_on_to_the_same_policy(files: dict[str, Path], pretrained: Path, tmp_path: Path) -> None:

    shutil.copytree(pretrained.parent, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "policy")
    shutil.rmtree(Checkpoints(tmp_path / "again").all()[-1])
    made = run_pretrain_graphs(recipe(files["graphml"], tmp_path / "again"), resume=True)
    assert (made / "model.safetensors").read_bytes() == (pretrained / "model.safetensors").read_bytes()


@pytest.mark.parametrize("form", ["gml", "jsonl", "g6", "d6", "txt", "csv"])
def test_any_format_is_evaluated_and_a_reference(files: dict[str, Path], form: str) -> None:
    wanted = evaluate(str(files["graphml"]), reference=str(files["json"]))
    assert (wanted["valid"], wanted["novel"], wanted["w1_in_degree"], wanted["tv_edge_given_ends"]) == (1.0, 0.0, 0.0, 0.0)
    found = evaluate(str(files[form]), reference=str(files["json"]))
    if form == "csv":  # its first sample is an invalid one
        assert found["num_samples"] == wanted["num_samples"] + 1
        return
    assert found == pytest.approx(wanted)
    options = FileOptions(reference=str(files[form]))
    attribute = None if form in ("gml", "jsonl") else "label"
    wanted_labels = LABELS if attribute is None else replace(LABELS, node_attribute=attribute, edge_attribute=attribute)
    assert load_reference(options).labels == wanted_labels
    if form != "gml":
        assert evaluate(str(files["json"]), reference=str(files[form])) == pytest.approx(wanted)


def test_pyg_files_are_evaluated(files: dict[str, Path]) -> None:
    assert evaluate(str(files["pt"]))["acyclic"] == 1.0


def test_data_with_cycles_and_without_classes(tmp_path: Path) -> None:
    (tmp_path / "rings.arcs").write_text("".join("0 1\n1 2\n2 0\n\n" if k % 2 else "0 1\n1 0\n\n" for k in range(12)))
    folder = run_pretrain_graphs(
        recipe(tmp_path / "rings.arcs", tmp_path / "run", pretrain=PretrainConfig(max_steps=2, batch_size=4))
    )
    metadata = load_metadata(folder)
    assert metadata["shape"] == "connected"
    lines = sample(str(folder), 6)
    assert all(line.startswith("&") and " " not in line for line in lines)
    assert evaluate(str(tmp_path / "rings.arcs"), reference=str(tmp_path / "rings.arcs"))["valid"] == 1.0
    assert evaluate(str(tmp_path / "rings.arcs"))["valid"] == 0.0
    assert evaluate(str(tmp_path / "rings.arcs"), shape="connected")["valid"] == 1.0
    assert load(folder, SamplerOptions(num_steps=2, temperature=0.5)).policy.num_steps == 2


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("distortion", ["identity", "polydec", "cos"])
def test_noise_is_that_of_undirected_graphs(schedule: Any, distortion: Any) -> None:
    """What is left of the data at each point of the sampler's grid."""
    options = PretrainGraphsRecipe(
        num_steps=5, schedule=schedule, train_distortion=distortion, sample_distortion=distortion, noise="uniform"
    )
    mine = digraph_policy(own_digraphs(dags(4)), TINY, options)
    other = own_graph_policy(own_graphs([g.to_undirected() for g in dags(4)]), TINY, options)
    for field, kernel in zip((*mine.node_fields, *mine.edge_fields), (other.node_kernel, other.edge_kernel), strict=True):
        left = field.kernel.noise.schedule.alpha_bar(mine.grid)  # type: ignore[attr-defined]
        assert torch.allclose(left, kernel.noise.schedule.alpha_bar(other.grid))  # type: ignore[attr-defined]
        assert len(field.kernel.noise.initial()) == len(kernel.noise.initial())


@pytest.mark.parametrize("noise", ["uniform", "absorbing"])
@pytest.mark.parametrize("kernel", ["flow", "flow_euler"])
def test_noises_and_kernels(noise: Any, kernel: Any) -> None:
    made = digraph_policy(own_digraphs(dags(6)), TINY, PretrainGraphsRecipe(num_steps=3, noise=noise, kernel=kernel))
    assert {len(named_graph(s)) for s in sample(made, 4)} <= {4, 5, 6, 7}


# -- refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precondition": True}, "precondition: True, expected False with directed graphs"),
        ({"network": replace(TINY, connectivity=True)}, "network.connectivity: True, expected False with directed graphs"),
        ({"network": replace(TINY, walk_length=4)}, "network.walk_length: 4, expected 8 with directed graphs"),
        ({"network": replace(TINY, log_time=True)}, "network.log_time: True, expected False with directed graphs"),
        ({"sample_distortion": "cos"}, "sample_distortion: 'cos' with train_distortion 'polydec', expected the same with directed"),
        ({"shape": "tree"}, "shape: 'tree', expected connected or none with directed graphs"),
        ({"node_attribute": "colour"}, "node_attribute: 'colour', expected one of op"),
    ],
)
def test_options_that_directed_graphs_do_not_have(
    files: dict[str, Path], tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        run_pretrain_graphs(recipe(files["json"], tmp_path / "run", **changes))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_mixed_data_and_networks_of_undirected_graphs_are_one_line(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mixed.graphml").write_bytes(to_graphml([*dags(2), nx.path_graph(3)]))
    assert main(["pretrain-graphs", f"--data={tmp_path / 'mixed.graphml'}", f"--output_dir={tmp_path / 'run'}"]) != 0
    [said] = capsys.readouterr().err.strip().splitlines()
    expected = "expected directed graphs alone or undirected graphs alone"
    assert said == f"discrete-grpo: error: data: graph 0 is directed and graph 2 is not, {expected}"
    (tmp_path / "mixed.g6").write_text("&BP?\nBg\n")
    with pytest.raises(ValueError, match=r"mixed\.g6 line 2 is undirected, expected directed graphs alone"):
        evaluate_file(str(tmp_path / "mixed.g6"))
    (tmp_path / "mixed.g6").write_text("Bg\n&BP?\n")
    with pytest.raises(ValueError, match=r"mixed\.g6 line 2 is directed, expected undirected graphs alone"):
        evaluate_file(str(tmp_path / "mixed.g6"))
    with pytest.raises(ValueError, match="network: Linear, expected none with directed graphs, only sizes"):
        run_pretrain_graphs(recipe(files["json"], tmp_path / "run"), network=torch.nn.Linear(1, 1))


def test_files_and_references_that_do_not_fit_are_one_line(files: dict[str, Path], tmp_path: Path) -> None:
    file = str(files["graphml"])
    (tmp_path / "plain.g6").write_text("Bg\n")
    for options, said in (
        (FileOptions(suite="graphs", reference=file), "suite: 'graphs' measures graphs, expected none with digraphs"),
        (FileOptions(reference="tree-16"), "reference: 'tree-16', expected a file or folder of directed graphs"),
        (FileOptions(reference=str(tmp_path / "plain.g6")), "reference: graph 0 is undirected, expected directed graphs"),
        (FileOptions(shape="planar"), "shape: 'planar', expected one of dag, connected with directed graphs"),
        (FileOptions(shape="planar", reference=file), "shape: 'planar', expected one of dag, connected with directed graphs"),
        (FileOptions(sbm_method="louvain"), "sbm_method: 'louvain', expected none without a suite"),
        (FileOptions(max_nodes=3), "file: nodes of graph 0: "),
    ):
        with pytest.raises(ValueError, match=said) as raised:
            evaluate_file(file, options)
        assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="reference: graph 0 is directed, expected undirected graphs"):
        evaluate_file(str(tmp_path / "plain.g6"), FileOptions(reference=file))
    odd = dags(1)[0]
    odd.nodes[0]["op"] = "subtract"
    (tmp_path / "odd.graphml").write_bytes(to_graphml([odd]))
    with pytest.raises(ValueError, match="file: graph 0: node class 'subtract', expected one of add, mul"):
        evaluate_file(str(tmp_path / "odd.graphml"), FileOptions(reference=file))


def test_labels_that_do_not_fit_the_policy_are_refused(pretrained: Path) -> None:
    loaded = load(pretrained)
    short = {**loaded.metadata, "labels": Labels(("a",), ("no edge", "x")).to_json()}
    with pytest.raises(CheckpointError, match="it has 1 names of node classes and 2 of arc classes, expected those of the fields"):
        digraph_family(short).decode(loaded.policy, short)
    with pytest.raises(CheckpointError, match="has no labels, expected the names of the classes"):
        digraph_family({}).decode(loaded.policy, {})
    assert reference_of({"data": {"source": "nowhere.graphml"}, "labels": LABELS.to_json()}) is None
    assert reference_of({"data": {"source": "nowhere.graphml"}, "labels": {"nodes": 3}}) is None
    with pytest.raises(ValueError, match=r"graphs\[0\]: node class 'sub', expected one of add, mul"):
        loaded.policy.encode(["&AO nodes=sub,add edges=left"])
    assert loaded.policy.can_draw(sample(loaded.policy, 1)[0])


def test_a_table_of_a_run_of_directed_graphs_is_evaluated(tmp_path: Path) -> None:
    table = tmp_path / "evaluation_after.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["sample", "reward"], ["", 0], *([to_line(graph), 1] for graph in dags(3))])
    found = evaluate_file(str(table))
    assert (found["num_samples"], found["valid"]) == (4, 0.75)
