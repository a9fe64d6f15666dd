"""Scores of the samples of a file: those of the rewards to the bit, in the order of the file, with unknown and invalid ones."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from discrete_grpo.cli import main
from discrete_grpo.core.scoring import score_samples
from discrete_grpo.recipes.score import ScoreRecipe, score_file
from discrete_grpo.rewards.graphs import tree_closeness
from discrete_grpo.rewards.molecules import logp, qed, validity

LINES = ["OCC", "C1CC", "c1ccccc1O", "CC.O", "CCO", "CN"]
SEEN = ["CCO", None, "Oc1ccccc1", None, "CCO", "CN"]


def counted(samples: Sequence[Any], **columns: Any) -> list[float | None]:
    """The length of each text; unknown for short ones. The calls are kept."""
    CALLS.append(list(samples))
    return [None if s is None or len(s) < 3 else float(len(s)) for s in samples]


CALLS: list[list[Any]] = []


@pytest.fixture
def molecules(tmp_path: Path) -> Path:
    path = tmp_path / "known.csv"
    path.write_text("name,smiles\n" + "".join(f"m{k},{line}\n" for k, line in enumerate(LINES)))
    return path


def table(path: Path) -> list[dict[str, str]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return list(csv.DictReader(io.StringIO(content.decode())))


def test_they_are_the_scores_of_the_rewards_in_the_order_of_the_file(molecules: Path) -> None:
    found = score_file(ScoreRecipe(data=str(molecules), reward=[qed, logp], reward_weights=(1.0, 0.5)))
    wanted = score_samples([qed, logp], SEEN)
    assert found.scores.tolist() == wanted.tolist()
    assert found.reward.tolist() == (wanted[:, 0] + 0.5 * wanted[:, 1]).tolist()
    assert (found.names, found.texts, found.samples) == (["qed", "logp"], LINES, SEEN)


def test_the_table_has_a_column_per_reward_and_empty_cells_for_unknown_ones(molecules: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv.gz"
    assert main(["score", str(molecules), "--reward=[qed, tests.recipes.test_score.counted]", f"--out={out}"]) == 0
    rows = table(out)
    assert list(rows[0]) == ["smiles", "reward", "reward_qed", "reward_counted"]
    assert [row["smiles"] for row in rows] == LINES
    assert [row["reward_counted"] for row in rows] == ["3.0", "", "9.0", "", "3.0", ""]
    assert [float(row["reward_qed"]) for row in rows] == score_samples([qed], SEEN)[:, 0].tolist()
    assert float(rows[5]["reward"]) == qed(["CN"])[0]  # an unknown score counts as 0 beside a known one


def test_without_a_file_a_line_per_sample_is_printed(molecules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(molecules), "--reward=tests.recipes.test_score.counted"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == ["3.0\tOCC", "\tC1CC", "9.0\tc1ccccc1O", "\tCC.O", "3.0\tCCO", "\tCN"]
    assert "2 of 6 samples are invalid" in said.err
    assert "3 of 6 rewards are unknown" in said.err


def test_a_molecule_is_scored_once_and_a_cache_keeps_its_score(molecules: Path, tmp_path: Path) -> None:
    recipe = ScoreRecipe(data=str(molecules), reward=counted, reward_cache=str(tmp_path / "scores.sqlite"))
    CALLS.clear()
    first = score_file(recipe)
    assert [sorted(str(s) for s in call if s is not None) for call in CALLS] == [["CCO", "CN", "Oc1ccccc1"]]
    CALLS.clear()
    again = score_file(recipe)
    assert [s for call in CALLS for s in call if s == "CCO" or s == "Oc1ccccc1"] == []
    assert str(again.scores.tolist()) == str(first.scores.tolist())


def test_long_files_are_scored_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "many.smi"
    path.write_text("".join(f"{'C' * (k % 30 + 1)}\n" for k in range(600)))
    CALLS.clear()
    found = score_file(ScoreRecipe(data=str(path), reward=counted))
    assert found.reward[29].item() == 30.0
    assert found.reward[599].item() == 30.0
    assert len(found.reward) == 600
    assert max(map(len, CALLS)) <= 256


def refuses_rings(samples: Sequence[Any], **columns: Any) -> list[float]:
    """A reward that fails on a sample with a ring."""
    if any("1" in (s or "") for s in samples):
        raise ValueError("no rings")
    return [1.0] * len(samples)


def test_workers_give_the_same_scores_and_tell_failures(molecules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = ScoreRecipe(data=str(molecules), reward=qed, reward_workers=1)
    assert score_file(recipe).scores.tolist() == score_samples([qed], SEEN).tolist()
    options = ["--reward=tests.recipes.test_score.refuses_rings", "--reward_workers=1"]
    assert main(["score", str(molecules), *options]) == 0
    said = capsys.readouterr()
    assert [line.split("\t")[0] for line in said.out.splitlines()] == ["1.0", "1.0", "", "1.0", "1.0", "1.0"]
    assert "1 of 6 rewards are unknown" in said.err
    assert "failed: raised ValueError: no rings" in said.err


def test_conditions_are_passed_to_every_sample(molecules: Path) -> None:
    def close(samples: Sequence[Any], size: Sequence[float], **columns: Any) -> list[float]:
        return [-abs(len(s or "") - n) for s, n in zip(samples, size, strict=True)]

    found = score_file(ScoreRecipe(data=str(molecules), reward=close, columns={"size": 4}))
    assert found.reward.tolist() == [-abs(len(s or "") - 4) for s in SEEN]
    with pytest.raises(ValueError, match="missing a required argument: 'size'"):
        score_file(ScoreRecipe(data=str(molecules), reward=close))


def test_graphs_are_scored_as_text_or_as_objects(tmp_path: Path) -> None:
    graphs = [nx.path_graph(4), nx.cycle_graph(5)]
    lines = [nx.to_graph6_bytes(graph, header=False).decode().strip() for graph in graphs]
    path = tmp_path / "graphs.g6"
    path.write_text("\n".join([*lines, "no graph!"]) + "\n")

    def edges(samples: Sequence[Any], **columns: Any) -> list[float | None]:
        return [None if graph is None else float(graph.number_of_edges()) for graph in samples]

    assert score_file(ScoreRecipe(data=str(path), reward=tree_closeness)).reward.tolist() == tree_closeness([*lines, None])
    found = score_file(ScoreRecipe(data=str(path), reward=edges, rewards_see="networkx")).reward.tolist()
    assert found[:2] == [3.0, 5.0]
    assert math.isnan(found[2])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "data: no file, expected one of samples"),
        (["{file}", "--reward=tree_valid"], "reward: tree_valid is for graphs, expected one for molecules, which the file holds"),
        (["nowhere.smi"], "data: 'nowhere.smi' is no file"),
        (["{file}", "--out={file}"], "is read as data, expected another name"),
        (["{file}", "--out={folder}/scores.txt"], "scores.txt', expected a table ending in .csv or .csv.gz"),
        (["{file}", "--smiles_column=nam"], "smiles_column: 'nam' is no column of"),
        (["{file}", "--smiles_column=name"], "holds no molecule (6 lines were looked at)"),
        (["{file}", "--kind=graph"], "kind: 'graph', expected one of"),
        (["{file}", "--reward_weights=[1, 2]"], "reward_weights: 2 weights, expected one per reward (1)"),
        (["{file}", "--rewards_see=networkx"], "rewards_see: 'networkx', expected 'text' with samples of the kind molecules"),
        (["{file}", "--columns={{reward: 1}}"], "a condition named 'reward', expected none of"),
        (["{file}", "--reward_worker=1"], "did you mean 'reward_workers'?"),
    ],
)
def test_mistakes_are_named(molecules: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", *(option.format(file=molecules, folder=molecules.parent) for option in options)]) == 2
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in molecules.parent.iterdir()) == ["known.csv"]


def test_validity_counts_fragments_as_a_run_does(molecules: Path) -> None:
    assert score_file(ScoreRecipe(data=str(molecules), reward=validity)).reward.tolist() == [1, 0, 1, 0, 1, 1]
