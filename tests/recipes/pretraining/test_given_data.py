"""Training data given as values: what is written is what was given, and a resumed run keeps it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from discrete_grpo import GRPOConfig, PretrainConfig, SamplerOptions, evaluate, pretrain, sample, train
from discrete_grpo.core.interrupt import Interrupted
from discrete_grpo.datasets.own_digraphs import read_own
from discrete_grpo.datasets.spatial import conformers
from discrete_grpo.domains.graph6 import from_graph6
from discrete_grpo.domains.named_graphs import to_line
from discrete_grpo.models.encoder import EncoderSizes
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.pretraining.digits import PretrainDigitsRecipe
from discrete_grpo.recipes.pretraining.given_data import with_data
from discrete_grpo.recipes.pretraining.graph_sequences import PretrainGraphSequencesRecipe
from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe
from discrete_grpo.recipes.pretraining.judge import JudgeRecipe
from discrete_grpo.recipes.pretraining.molecules import PretrainRecipe
from discrete_grpo.recipes.pretraining.sft import SFTRecipe
from discrete_grpo.recipes.pretraining.smiles import PretrainSmilesRecipe
from discrete_grpo.recipes.pretraining.spatial import PretrainSpatialRecipe
from discrete_grpo.recipes.pretraining.text import PretrainTextRecipe
from discrete_grpo.runs.checkpoint import CheckpointError, load_metadata

SMILES = ("CO", "CCO", "CC", "C=O", "CN", "C#N", "CC=O", "NC=O")
TINY = NetworkSizes(layers=1, heads=2, width=16, edge_width=8, global_width=8)


def loop(steps: int = 2) -> PretrainConfig:
    return PretrainConfig(max_steps=steps, batch_size=4, warmup_steps=0, save_steps=1)


def coloured() -> list[nx.Graph]:
    graphs = []
    for n in (3, 4, 5, 4):
        graph = nx.path_graph(n)
        nx.set_node_attributes(graph, {k: ("red", "blue")[k % 2] for k in graph}, "colour")
        nx.set_node_attributes(graph, n, "size")
        graphs.append(graph)
    return graphs


def arcs() -> list[nx.DiGraph]:
    graph = nx.DiGraph([(0, 1), (2, 1)])
    graph.edges[0, 1]["port"], graph.edges[2, 1]["port"] = "left", "right"
    return [graph, nx.DiGraph([(0, 1, {"port": "left"})])]


def one_hot() -> list[Data]:
    kinds, ends = torch.eye(3)[torch.tensor([0, 2, 1])], torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    return [Data(x=kinds, edge_index=ends, edge_attr=torch.tensor([1, 1, 2, 2]))]


@pytest.mark.parametrize(
    ("graphs", "attribute"),
    [(coloured(), "colour"), (arcs(), None), ([nx.path_graph(4), nx.star_graph(3)], None), (one_hot(), None)],
)
def test_graphs_are_read_again_as_they_were_given(graphs: Sequence[Any], attribute: str | None, tmp_path: Path) -> None:
    recipe = PretrainGraphsRecipe(output_dir=str(tmp_path), node_attribute=attribute)
    written = with_data(recipe, graphs, resume=False)
    given, found = read_own(graphs, node_attribute=attribute), read_own(written.data, node_attribute=written.node_attribute)
    assert found.labels == given.labels
    rows = range(len(graphs))
    assert list(map(to_line, found.networkx(rows))) == list(map(to_line, given.networkx(rows)))


def test_a_policy_of_graphs_is_pretrained_on_values_and_measured_against_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = PretrainGraphsRecipe(
        output_dir=str(run), num_steps=2, network=TINY, pretrain=loop(), evaluation_samples=2, node_attribute="colour"
    )
    folder = pretrain(recipe, data=coloured())
    assert load_metadata(folder)["data"]["source"] == str(run / "data.json")
    assert load_metadata(folder)["labels"]["nodes"] == ["blue", "red"]
    assert "tv_edge_given_ends" in evaluate(sample(run, 3), kind="graphs", reference=run / "data.json")
    with pytest.raises(ValueError, match="holds results of another run"):
        pretrain(recipe, data=coloured())
    with pytest.raises(ValueError, match=r"data: other than in .*data\.json, expected those that the run began with"):
        pretrain(recipe, data=coloured()[:2], resume=True)
    assert pretrain(recipe, data=coloured(), resume=True) == folder


@pytest.mark.slow
def test_sequences_of_graphs_and_molecules_and_texts_are_pretrained_on_values(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"layers": 1, "heads": 2, "width": 16}
    common: dict[str, Any] = {"pretrain": loop(), "evaluation_samples": 0}
    lines = ("a red cat", "a blue cat", "the red sea", "one blue sea") * 3
    text: dict[str, Any] = {"network": EncoderSizes(**sizes), **common}
    cases: list[tuple[type[Any], Sequence[Any], dict[str, Any], str]] = [
        (PretrainGraphSequencesRecipe, coloured(), {**sizes, "orders": 2, "node_attribute": "colour", **common}, "data.json"),
        (PretrainRecipe, SMILES, {"num_steps": 2, "network": TINY, **common}, "data.smi"),
        (PretrainSmilesRecipe, SMILES, {**sizes, **common}, "data.smi"),
        (PretrainTextRecipe, lines, {"rounds": 2, **text}, "data.txt"),
        (JudgeRecipe, lines, text, "data.txt"),
        (PretrainSpatialRecipe, SMILES, {"num_steps": 2, "test_share": 0.2, **common}, "data.smi"),
    ]
    for number, (recipe, data, options, name) in enumerate(cases):
        run = tmp_path / str(number)
        policy = pretrain(recipe(output_dir=str(run), **options), data=iter(data))
        assert load_metadata(policy)["data"]["name"].startswith("data"), recipe
        if name != "data.json":
            assert (run / name).read_text().split("\n") == [*data, ""]


def test_molecules_with_positions_keep_them(tmp_path: Path) -> None:
    molecules = list(conformers(SMILES[:3]).molecules)
    recipe = PretrainSpatialRecipe(output_dir=str(tmp_path))
    assert Path(with_data(recipe, molecules, resume=False).data).suffix == ".sdf"


@pytest.mark.parametrize(
    ("recipe", "data", "said"),
    [
        (PretrainRecipe, ["CO", "C O"], "data: entry 1 is 'C O', expected a SMILES string"),
        (PretrainSmilesRecipe, [], "data: an empty list, expected at least one entry"),
        (PretrainSmilesRecipe, [None], "data: entry 0 is None, expected a SMILES string"),
        (PretrainTextRecipe, ["a\nb"], r"data: entry 0 is 'a\\nb', expected a line of text"),
        (PretrainTextRecipe, "a file", "data: 'a file', expected a list"),
        (PretrainGraphsRecipe, 3, "data: 3, expected a list"),
        (PretrainGraphsRecipe, ["Bw", "%%%"], "data: entry 1 is '%%%', expected a line of graph6"),
        (PretrainGraphsRecipe, nx.path_graph(3), "data: a Graph, expected a list"),
        (PretrainGraphsRecipe, [b"Bw"], "data: graph 0 is a bytes, expected networkx graphs or PyG Data$"),
        (PretrainDigitsRecipe, [1], "data: a list, expected none with PretrainDigitsRecipe"),
        (PretrainGraphsRecipe, [nx.Graph([(0, 0)])], "self-loop"),
    ],
)
def test_values_that_do_not_fit_leave_no_folder(recipe: type[Any], data: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        pretrain(recipe(output_dir=str(tmp_path / "run")), data=data)
    assert not (tmp_path / "run").exists()


def test_a_run_that_began_with_values_goes_on_with_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"

    def recipe(steps: int, **changes: Any) -> PretrainGraphsRecipe:
        options: dict[str, Any] = {"num_steps": 2, "network": TINY, "evaluation_samples": 0}
        return PretrainGraphsRecipe(output_dir=str(run), pretrain=loop(steps), **options | changes)

    pretrain(recipe(1), data=["Bw"] * 8)
    capsys.readouterr()
    folder = pretrain(recipe(2), resume=True)
    told = capsys.readouterr().err
    assert "pretrain.max_steps: was 1 in the run so far, is 2 from here on" in told
    assert "data" not in told
    assert load_metadata(folder)["data"]["source"] == str(run / "data.txt")
    pretrain(recipe(3, data="tree-16"), resume=True)
    assert f"data: tree-16 is not used, the run goes on with {run / 'data.txt'}" in capsys.readouterr().err
    moved = pretrain(replace(recipe(4), output_dir=str(run.rename(tmp_path / "moved"))), resume=True)
    assert load_metadata(moved)["data"]["source"] == str(tmp_path / "moved" / "data.txt")
    (tmp_path / "moved").rename(run)
    wide = NetworkSizes(layers=1, heads=2, width=32, edge_width=8, global_width=8)
    with pytest.raises(CheckpointError, match=r"^policy: names or shapes of its weights differ from those of the run \(.*\), .*$"):
        pretrain(recipe(5, network=wide), resume=True)


def test_a_run_that_began_with_a_file_takes_no_values_and_tells_another_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def recipe(data: str) -> PretrainGraphsRecipe:
        options: dict[str, Any] = {"num_steps": 2, "network": TINY, "evaluation_samples": 0, "pretrain": loop(1)}
        return PretrainGraphsRecipe(output_dir=str(tmp_path / "run"), data=data, **options)

    pretrain(recipe("tree-16"), resume=True)
    assert f"output_dir: {tmp_path / 'run'} is new, so there is no run to resume" in capsys.readouterr().err
    with pytest.raises(ValueError, match="data: a list, expected none: the run began with tree-16"):
        pretrain(recipe("tree-16"), data=["Bw"], resume=True)
    pretrain(recipe("planar-16"), resume=True)
    assert "data: was tree-16 in the run so far, is planar-16 from here on" in capsys.readouterr().err


def test_a_file_of_the_user_with_the_name_of_a_file_of_the_run_is_still_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "samples.txt").write_text("Bw\n" * 8)

    def recipe(steps: int) -> PretrainGraphsRecipe:
        options: dict[str, Any] = {"num_steps": 2, "network": TINY, "evaluation_samples": 0, "pretrain": loop(steps)}
        return PretrainGraphsRecipe(output_dir=str(tmp_path / "run"), data=str(tmp_path / "mine" / "samples.txt"), **options)

    pretrain(recipe(1))
    (tmp_path / "run" / "samples.txt").write_text("C~\n" * 8)
    folder = pretrain(recipe(2), resume=True)
    assert "is not used" not in capsys.readouterr().err
    assert load_metadata(folder)["data"]["source"] == str(tmp_path / "mine" / "samples.txt")


def test_a_policy_that_a_resumed_run_does_not_use_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4)
    options: dict[str, Any] = {"evaluation_samples": 0, "num_steps": 2}

    def go(policy: str, **more: Any) -> str:
        train(policy, lambda samples, **columns: [1.0] * len(samples), output_dir=tmp_path, grpo=config, **options, **more)
        return capsys.readouterr().err

    go("planar-16")
    for _ in range(2):
        assert "policy: tree-16 is not used, the run goes on with planar-16" in go("tree-16", resume=True)
    assert "is not used" not in go("planar-16", resume=True)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    config = PretrainConfig(max_steps=np.int64(2), learning_rate=np.float32(0.5))  # type: ignore[arg-type]
    assert (type(config.max_steps), type(config.learning_rate)) == (int, float)
    drawn = sample("planar-16", np.int64(2), options=SamplerOptions(num_steps=np.int64(2)), columns=[{"num_nodes": np.int64(4)}])  # type: ignore[arg-type]
    assert [from_graph6(line).number_of_nodes() for line in drawn] == [4, 4]


def test_files_of_the_user_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "data.smi").write_text("C\n")
    with pytest.raises(ValueError, match=r"^output_dir: .* holds a file data\.smi, which would be overwritten, expected a folder"):
        pretrain(PretrainSmilesRecipe(output_dir=str(tmp_path), pretrain=loop()), data=SMILES)
    assert (tmp_path / "data.smi").read_text() == "C\n"
    (tmp_path / "held").mkdir()
    (tmp_path / "held/test.sdf").write_text("mine")
    molecules = conformers(list(SMILES) * 3, seed=0)
    with pytest.raises(ValueError, match=r"^output_dir: .* holds a file test\.sdf, which would be overwritten"):
        pretrain(PretrainSpatialRecipe(output_dir=str(tmp_path / "held"), pretrain=loop()), data=molecules)
    assert (tmp_path / "held/test.sdf").read_text() == "mine"


def test_results_of_a_run_of_another_kind_are_refused_in_python_too(tmp_path: Path) -> None:
    (tmp_path / "data.smi").write_text("\n".join(SMILES))
    (tmp_path / "policy").mkdir()
    recipe = PretrainSmilesRecipe(data=str(tmp_path / "data.smi"), output_dir=str(tmp_path), pretrain=loop())
    with pytest.raises(ValueError, match=r"^output_dir: .* holds results of another run \(policy\)"):
        pretrain(recipe)


@pytest.mark.parametrize(("metric", "resume"), [(None, False), (None, True), ("eval/unknown", False)])
def test_the_folder_of_a_refused_call_takes_corrected_values(metric: str | None, resume: bool, tmp_path: Path) -> None:
    """A call is refused for its values, or inside the training loop for a metric."""
    options: dict[str, Any] = {"output_dir": str(tmp_path / "new"), "policy": "smiles-zinc", "pretrain": loop(1), "test_share": 0.3}
    recipe = SFTRecipe(**options, evaluation_samples=0)
    broken = recipe if metric is None else replace(recipe, pretrain=replace(loop(2), metric_for_best_model=metric))
    with pytest.raises(ValueError, match=r"^(data|metric_for_best_model): "):
        pretrain(broken, data=["C(C"] * 4 if metric is None else SMILES, resume=resume)
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    (tmp_path / "new/notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"^(data|metric_for_best_model): "):
        pretrain(broken, data=["C(C"] * 4 if metric is None else SMILES, resume=resume)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["notes.txt"]
    assert pretrain(recipe, data=SMILES[::-1], resume=resume) == tmp_path / "new/policy"


def test_a_stopped_call_keeps_its_values_and_a_refused_one_those_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> Path:
        raise Interrupted("stopped")

    recipe = PretrainSmilesRecipe(output_dir=str(tmp_path), pretrain=loop())
    with monkeypatch.context() as patch:
        patch.setattr("discrete_grpo.recipes.pretraining.smiles.run_pretrain_smiles", stop)
        with pytest.raises(Interrupted):
            pretrain(recipe, data=SMILES)
    with pytest.raises(ValueError, match="network: Linear"):
        pretrain(recipe, data=SMILES, network=torch.nn.Linear(1, 1))
    assert (tmp_path / "data.smi").read_text().split() == list(SMILES)


def test_a_folder_in_which_another_process_works_keeps_its_data(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom discrete_grpo.runs.lock import locked_folder\n"
        "with locked_folder(sys.argv[1]): print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ValueError, match="another process is working"):
            pretrain(PretrainSmilesRecipe(output_dir=str(tmp_path), pretrain=loop()), data=SMILES)
        other.kill()
    assert not (tmp_path / "data.smi").exists()


def test_the_first_process_alone_writes_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discrete_grpo.recipes.pretraining.given_data.is_first", lambda: False)
    (tmp_path / "data.smi").write_text("mine")
    made = with_data(PretrainSmilesRecipe(output_dir=str(tmp_path)), SMILES, resume=False)
    assert made.data == str(tmp_path / "data.smi")
    assert (tmp_path / "data.smi").read_text() == "mine"
