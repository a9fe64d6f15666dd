"""The suites of distribution metrics from the command line and from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from discrete_grpo import evaluate
from discrete_grpo.cli import main
from discrete_grpo.datasets.graph_splits import load_splits
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.metrics import chemnet

TREES = [graph6(g) for g in load_splits("tree-16").val[:4]]
TREES.insert(1, "")
SAMPLES = ["CCO", "CN(C)(C)C", "c1ccccc1O", "CCN", "C((", "CC"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chemnet, "missing", lambda: "fcd: left out")
    Path("gen.smi").write_text("\n".join(SAMPLES) + "\n")
    Path("ref.smi").write_text("CCO\nCCF\nc1ccccc1N\nCCC\n")
    Path("train.smi").write_text("CCN\nCC\n")
    Path("gen.csv").write_text("step,graph\n" + "\n".join(f"1,{s}" for s in TREES) + "\n")


def test_a_suite_of_molecules_is_printed_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["evaluate", "gen.smi", "--suite=moses", "--reference=ref.smi", "--train=train.smi", "--folds=2", "--out=m.json"]) == 0
    )
    shown = capsys.readouterr()
    assert all(name in shown.out for name in ("snn", "perfect", "deviation", "suite moses"))
    assert "fcd: left out" in shown.err
    written = json.loads(Path("m.json").read_text())
    assert (written["suite"], written["samples"], written["bootstrap"], written["reference"]) == ("moses", 6, 100, "ref.smi")
    valid = written["metrics"]["valid"]
    assert set(valid) == {"value", "low", "high", "perfect", "mean", "deviation"}
    assert valid["value"] == valid["mean"] == 4 / 6
    assert valid["deviation"] == 0.0  # lines keep their order, broken ones too
    assert written["metrics"]["valid_relaxed"]["value"] == 5 / 6  # lines that do not sanitise are repaired
    assert written["metrics"]["novel"]["value"] == 2 / 4
    assert written["metrics"]["scaf"]["value"] is None


def test_samples_without_stereo_are_told_beside_training_molecules_with_stereo(capsys: pytest.CaptureFixture[str]) -> None:
    Path("stereo.smi").write_text("C[C@H](N)O\nF/C=C/F\nCCN\n")
    Path("flat.smi").write_text("CC(N)O\nFC=CF\nCCN\nn/a\n")
    told = "novelty is counted against them as they are, so a sample that lacks only the stereo of one counts as novel"
    arguments = ["evaluate", "flat.smi", "--suite=moses", "--bootstrap=0", "--out=m.json"]
    assert main([*arguments, "--reference=ref.smi", "--train=stereo.smi"]) == 0
    shown = capsys.readouterr()
    assert [line for line in shown.err.splitlines() if told in line] == [
        f"novel: 2 of 3 molecules of train have stereo, no sample has any; {told}; to count it as known, write both without stereo"
    ]
    written = json.loads(Path("m.json").read_text())
    assert (written["notes"], written["metrics"]["novel"]["value"]) == (["fcd: left out"], 2 / 3)
    assert main([*arguments, "--reference=stereo.smi"]) == 0
    assert "novel: 2 of 3 molecules of reference have stereo" in capsys.readouterr().err
    for arguments in (["flat.smi", "--train=ref.smi"], ["stereo.smi", "--train=stereo.smi"]):
        assert main(["evaluate", *arguments, "--suite=moses", "--bootstrap=0", "--reference=ref.smi"]) == 0
        assert told not in capsys.readouterr().err


def test_from_python_a_suite_gives_estimates(capsys: pytest.CaptureFixture[str]) -> None:
    listed = evaluate(SAMPLES, suite="guacamol", reference="ref.smi", bootstrap=0)
    read = evaluate("gen.smi", suite="guacamol", reference="ref.smi", bootstrap=0)
    assert repr(listed) == repr(read)
    assert listed["unique"].value == 1.0
    assert "fcd: left out" in capsys.readouterr().err
    assert isinstance(evaluate("gen.smi")["valid"], float)


def test_a_suite_of_graphs() -> None:
    assert main(["evaluate", "gen.csv", "--suite=graphs", "--reference=tree-16", "--bootstrap=5", "--out=g.json"]) == 0
    found = json.loads(Path("g.json").read_text())
    assert (found["shape"], found["samples"], found["metrics"]["vun"]["value"]) == ("tree", 5, 4 / 5)
    assert evaluate("gen.csv", suite="graphs", reference="tree-16", bootstrap=0)["valid"].value == 4 / 5
    assert evaluate([line or None for line in TREES], suite="graphs", reference="tree-16", bootstrap=0)["vun"].value == 4 / 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("gen.smi --suite=mosse --reference=ref.smi", "suite: 'mosse' is unknown; did you mean 'moses'?"),
        (
            "gen.smi --suite=graphs --reference=tree-16",
            "suite: 'graphs' measures graphs, expected moses or guacamol with molecules",
        ),
        ("gen.csv --suite=moses --reference=ref.smi", "suite: 'moses' measures molecules, expected graphs with graphs"),
        ("gen.smi --suite=moses", "reference: None, expected a file of molecules with suite 'moses'"),
        ("gen.csv --suite=graphs", "reference: None, expected a named set or a file of graphs"),
        (
            "gen.smi --suite=guacamol --reference=ref.smi --train=train.smi",
            "train: 'train.smi', expected none with suite 'guacamol'",
        ),
        ("gen.smi --suite=moses --reference=ref.smi --bootstrap=-1", "bootstrap: -1, expected at least 0"),
        ("gen.smi --suite=moses --reference=ref.smi --folds=4", "folds: 4 of 6 samples, expected a divisor"),
        (
            "gen.smi --suite=moses --reference=ref.smi --sbm_method=louvain",
            "sbm_method: 'louvain', expected none with a file of molecules",
        ),
        (
            "gen.csv --suite=graphs --reference=tree-16 --sbm_method=louvain",
            "sbm_method: 'louvain', expected none with shape 'tree'",
        ),
        (
            "gen.csv --suite=graphs --reference=tree-16 --shape=sbm --sbm_method=mcmc",
            "sbm_method: 'mcmc', expected one of louvain, gra",
        ),
        ("gen.smi --max_nodes=5", "max_nodes: 5, expected none with a file of molecules"),
        ("gen.smi --bootstrap=10", "bootstrap: 10, expected none without a suite"),
        ("gen.smi --train=train.smi", "train: 'train.smi', expected none without a suite"),
        ("gen.smi --suite=moses --reference=train.smi --train=nosuch.smi", "train: 'nosuch.smi' is no file"),
    ],
)
def test_bad_input_is_one_line(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *arguments.split()]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_without_a_suite_nothing_changes() -> None:
    assert main(["evaluate", "gen.smi", "--reference=ref.smi", "--out=plain.json"]) == 0
    written = json.loads(Path("plain.json").read_text())
    assert list(written)[:4] == ["file", "reference", "samples", "num_samples"]
    assert written["valid"] == 4 / 6
