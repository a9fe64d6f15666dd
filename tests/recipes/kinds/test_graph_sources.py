"""The graphs that samples of a policy are compared with are those of its training, whatever its file is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from discrete_grpo.datasets.graph_splits import write_npz
from discrete_grpo.datasets.synthetic_graphs import GraphSplits
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.evaluate import evaluate
from discrete_grpo.recipes.kinds.graphs import graph_family, reference_of
from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe, run_pretrain_graphs
from discrete_grpo.runs.checkpoint import load_metadata
from discrete_grpo.training.config import PretrainConfig

TINY = NetworkSizes(layers=1, heads=1, width=4, edge_width=4, global_width=4)
PATHS = tuple(nx.path_graph(n) for n in (3, 4, 5, 3, 4, 5))


def metadata_of(folder: Path, data: str) -> dict[str, Any]:
    """Metadata of a checkpoint after one update on the graphs of a file."""
    recipe = PretrainGraphsRecipe(
        data=data,
        output_dir=str(folder),
        num_steps=3,
        network=TINY,
        pretrain=PretrainConfig(max_steps=1, batch_size=2),
        evaluation_samples=0,
    )
    return dict(load_metadata(run_pretrain_graphs(recipe)))


@pytest.mark.parametrize("name", ["community-20.npz", "mine.npz"])
def test_a_file_named_like_a_named_set_is_its_own_reference(tmp_path: Path, name: str) -> None:
    write_npz(tmp_path / name, GraphSplits(PATHS, (), PATHS[:2], ""))
    metadata = metadata_of(tmp_path / "run", str(tmp_path / name))
    reference = reference_of(metadata)
    assert reference is not None
    assert sorted(map(len, reference.splits.train)) == sorted(map(len, PATHS))
    assert metadata["shape"] == "connected"


def test_another_file_in_the_place_of_the_training_graphs_is_no_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [graph6(graph) for graph in PATHS]
    Path("p.g6").write_text("\n".join(lines))
    metadata = metadata_of(tmp_path / "run", "p.g6")
    assert {"novel", "vun"} <= graph_family(metadata).evaluate(lines).keys()
    capsys.readouterr()
    for text, said in (
        ("\n".join(lines[:-1]), "it is not what the policy was trained on"),
        (None, "the training graphs are not here"),
    ):
        Path("p.g6").unlink()
        if text is not None:
            Path("p.g6").write_text(text)
        family = graph_family(metadata)
        for _ in range(2):
            assert {"novel", "vun"}.isdisjoint(family.evaluate(lines))
        wanted = f"p.g6: {said}; novelty, V.U.N. and distances to the training set are left out\n"
        assert capsys.readouterr().err == wanted  # once


def test_the_name_of_a_file_does_not_decide_what_is_valid(tmp_path: Path) -> None:
    circles = [graph6(nx.cycle_graph(n)) for n in (3, 4, 5)]
    for name in ("rings.g6", "tree-colours.g6", "sbm.g6"):
        (tmp_path / name).write_text("\n".join(circles))
        assert evaluate(circles, kind="graphs", reference=str(tmp_path / name))["valid"] == 1
    write_npz(tmp_path / "tree.npz", GraphSplits(PATHS, (), PATHS, ""))  # as the published splits are called
    assert evaluate(circles, kind="graphs", reference=str(tmp_path / "tree.npz"))["valid"] == 0
