"""Drawing until there are enough distinct valid samples: which they are, what is told, and what happens if there are too few."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from discrete_grpo import SamplerOptions, evaluate, sample
from discrete_grpo.cli import main
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.domains.named_graphs import to_line
from discrete_grpo.metrics.molecules import canonical
from discrete_grpo.recipes.distinct import Draws, TooFewDistinct, first_distinct
from discrete_grpo.recipes.families import KINDS
from discrete_grpo.recipes.sample import sample_distinct, sample_file, sample_policy
from tests.toys import tiny_policy

FAST: dict[str, Any] = {"options": SamplerOptions(num_steps=3)}


def first_of(samples: list[str | None], count: int) -> tuple[list[str], int, int]:
    """The first distinct molecules of a list, the number of samples up to the last of them, and that of valid ones."""
    found: dict[str, str] = {}
    valid = 0
    for number, one in enumerate(samples, 1):
        if one is not None and (name := canonical(one)) is not None:
            valid += 1
            found.setdefault(name, one)
        if len(found) == count:
            return list(found.values()), number, valid
    raise AssertionError(f"{len(found)} distinct samples")


def test_they_are_the_first_of_a_long_plain_draw(small_molecules: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = sample(small_molecules, 240, seed=3, batch_size=12, **FAST)
    wanted, drawn, valid = first_of(plain, 40)
    assert 40 < valid < drawn < 240, "repeated and invalid ones are among them"
    capsys.readouterr()
    assert sample(small_molecules, 40, seed=3, batch_size=12, distinct=True, **FAST) == wanted
    assert f"distinct: {drawn} drawn, {valid} valid, 40 distinct\n" in capsys.readouterr().err
    few = sample(small_molecules, 9, seed=3, distinct=True, **FAST)  # drawn nine at a time, and not 256
    assert few == first_of(sample(small_molecules, 90, seed=3, batch_size=9, **FAST), 9)[0]
    assert few[0] == next(s for s in sample(small_molecules, 9, seed=3, **FAST) if s is not None and "." not in s)


def test_a_file_has_as_many_rows_and_its_numbers_are_below_those_of_the_draws(
    small_molecules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [{"num_nodes": 3}, {"num_nodes": 4}]
    path = sample_file(small_molecules, 30, str(tmp_path / "a.csv"), seed=1, columns=columns, distinct=True, **FAST)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    _, found = sample_policy(tiny_policy(), 2, columns=columns)
    assert len({canonical(row["smiles"]) for row in rows}) == len(rows) == 30
    assert {row["num_nodes"] for row in rows} == set(map(str, found["num_nodes"]))
    assert all(len(row["smiles"]) >= int(row["num_nodes"]) for row in rows), "each condition stays with its sample"
    shown = {line.split("│")[1].strip(): line.split("│")[2:4] for line in capsys.readouterr().out.splitlines() if "│" in line}
    assert float(shown["num_samples"][1]) == 30
    assert float(shown["num_samples"][0]) > 30
    assert float(shown["valid"][0]) < float(shown["valid"][1]) == 1
    assert float(shown["unique"][0]) < float(shown["unique"][1]) == 1
    assert evaluate(path)["unique"] == 1


def test_too_few_are_written_and_end_with_one_line(
    small_molecules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.smi"
    given = ["sample", small_molecules, "-n", "25", '--columns={"num_nodes": 2}', "--max_draws=60", "--num_steps=3"]
    assert main([*given, "--distinct", f"--out={out}"]) == 2
    found = out.read_text().split()
    assert 0 < len(found) < 25
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("discrete-grpo: error: distinct: 60 drawn, ")
    assert f" {len(found)} distinct, expected 25 distinct within 60 draws (max_draws); {out} has the {len(found)} that were" in last
    assert main([*given, "--distinct=true"]) == 2
    assert capsys.readouterr().out.split() == found, "without a file they are printed"
    with pytest.raises(TooFewDistinct) as few:
        sample(small_molecules, 25, columns=[{"num_nodes": 2}], distinct=True, max_draws=60, **FAST)
    assert few.value.samples == found
    assert few.value.draws.drawn == 60


def test_no_file_without_a_sample(small_molecules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discrete_grpo.recipes.sample.first_distinct", lambda *_: ([], {}, Draws(20, 0, 0)))
    out = tmp_path / "a.csv"
    with pytest.raises(TooFewDistinct, match=r"^distinct: 20 drawn, 0 valid, 0 distinct, expected 2 .*a\.csv is not written$"):
        sample_file(small_molecules, 2, str(out), distinct=True, **FAST)
    assert not out.exists()
    assert Draws(20, 0, 0).shares == {"num_samples": 20, "valid": 0, "unique": 0}


def test_a_hundred_draws_per_sample_are_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, drawn = tiny_policy(num_steps=1), list[int]()

    def same(batch: GraphBatch) -> list[str]:
        drawn.append(len(batch.sizes))
        return ["one"] * len(batch.sizes)

    monkeypatch.setattr(policy, "decode", same)
    with pytest.raises(TooFewDistinct, match=r"^distinct: 300 drawn, 300 valid, 1 distinct, expected 3 "):
        sample(policy, 3, distinct=True)
    assert drawn == [3] * 100


@pytest.mark.parametrize("kind", ["graphs", "digraphs"])
def test_graphs_are_distinct_up_to_isomorphism_and_of_their_shape(kind: str) -> None:
    edges = [[(0, 1), (1, 2)], [(1, 0), (0, 2)], [(0, 1)], [(0, 1), (1, 2), (2, 0)]]
    graphs = [nx.empty_graph(3, nx.DiGraph if kind == "digraphs" else nx.Graph) for _ in edges]
    for graph, own in zip(graphs, edges, strict=True):
        graph.add_edges_from(own)
    lines = list(map(to_line, graphs))
    assert lines[0] != lines[1]
    family = KINDS[kind]({})
    assert family.identity is not None
    found, _, draws = first_distinct([(lines, {})], 9, family.identity)
    assert found[0] == lines[0]
    assert draws.shares == {"num_samples": len(lines)} | {k: family.sample_metrics(lines)[k] for k in ("valid", "unique")}
    assert draws.distinct < draws.valid < draws.drawn


def test_molecules_that_differ_in_stereo_alone_and_conformers_are_one() -> None:
    molecules, spatial = KINDS["molecules"]({}), KINDS["spatial"]({})
    assert molecules.identity is not None
    assert spatial.identity is not None
    found, _, draws = first_distinct([(["C[C@H](N)O", "OCC", "C.C", "C[C@@H](N)O", "CCO", None], {})], 9, molecules.identity)
    assert found == ["C[C@H](N)O", "OCC"]
    assert (draws.drawn, draws.valid) == (6, 4)
    from discrete_grpo.datasets.spatial import conformers

    made = list(conformers(["CO", "CC"]).molecules)
    assert len(first_distinct([([made[0], made[1], made[0]], {})], 9, spatial.identity)[0]) == 2


def test_samples_of_unknown_kind_are_compared_as_text() -> None:
    policy = tiny_policy()
    plain = sample(policy, 60, batch_size=6)
    assert sample(policy, 6, distinct=True) == list(dict.fromkeys(plain))[:6]


def test_every_bundled_kind_can_be_drawn_so() -> None:
    assert len(set(sample("tree-64-sequences", 2, distinct=True))) == 2
    prompt = {"masked": "some quiet br____ sleeps at home", "original": "some quiet brother sleeps at home"}
    assert len(set(sample("fill-in", 2, columns=[prompt], distinct=True))) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"distinct": True, "max_draws": 4}, r"^max_draws: 4, expected at least 5 \(n\)$"),
        ({"distinct": True, "max_draws": 9.5}, "^max_draws: 9.5, expected a whole number"),
        ({"max_draws": 9}, "^max_draws: 9, expected none without distinct$"),
        ({"distinct": 1}, "^distinct: 1, expected True or False$"),
        ({"unique": True}, "^unique: unknown option; did you mean 'distinct'"),
    ],
)
def test_other_arguments_are_refused_before_any_draw(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sample("none", 5, **given)
    if "unique" not in given:
        with pytest.raises(ValueError, match=said):
            sample_file("none", 5, "a.smi", **given)
    with pytest.raises(ValueError, match="columns: an empty list"):
        sample_distinct(tiny_policy(), 2, KINDS["samples"]({}), columns=[])
