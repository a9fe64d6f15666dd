"""Refusals of the commands sample and evaluate, in one line that names the argument."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from rdkit import Chem

from discrete_grpo import GRPOConfig, SamplerOptions, evaluate, sample, train
from discrete_grpo.cli import main
from discrete_grpo.datasets.spatial import conformers
from discrete_grpo.domains.molecule_properties import descriptor
from discrete_grpo.domains.named_graphs import to_line
from discrete_grpo.domains.spatial_molecules import to_cxsmiles
from discrete_grpo.domains.tokenizer import Property, Tokenizer
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.recipes.conditions import _tell_far, check_read, property_errors, read_columns, scaffold_share, tell_unread
from discrete_grpo.recipes.evaluate import evaluate_file
from discrete_grpo.recipes.families import FileOptions
from discrete_grpo.recipes.loading import load, load_policy
from discrete_grpo.recipes.output_files import as_text
from discrete_grpo.recipes.sample import sample_file, sample_lines, sample_policy
from discrete_grpo.rewards.conditions import keeps_scaffold
from discrete_grpo.rewards.molecules import validity
from discrete_grpo.runs.recorder import read_samples
from tests.recipes.pretraining.sft_cases import SCALES, texts
from tests.toys import tiny_policy


@pytest.mark.parametrize(
    ("name", "condition", "said"),
    [
        ("smiles-zinc", {"NumHDonors": 2}, "columns: a condition named 'NumHDonors', expected "),
        ("qm9-small", {"num_nodes": 5, "target": 2}, "'target', expected one that the policy reads: num_nodes, fixed, restart"),
    ],
)
def test_a_condition_that_the_policy_does_not_read_is_refused(
    name: str, condition: dict[str, int], said: str, tmp_path: Path
) -> None:
    for policy in (name, load_policy(name)):
        with pytest.raises(ValueError, match=said):
            sample(policy, 2, columns=[condition])
    with pytest.raises(ValueError, match=said):
        sample_file(name, 2, str(tmp_path / "a.csv"), columns=[condition])
    assert not list(tmp_path.iterdir())


def test_conditions_of_a_policy_without_its_checkpoint_and_of_prompts() -> None:
    alone = load_policy("qm9-small")
    del alone.sample_metadata
    with pytest.raises(ValueError, match="'scaffold', expected one that the policy reads: num_nodes, fixed, restart"):
        sample(alone, 1, columns=[{"scaffold": "CC"}])  # its classes have no elements
    prompt = {"masked": "some quiet br____ sleeps at home", "original": "some quiet brother sleeps at home"}
    assert len(sample("fill-in", 2, columns=[prompt])) == 2


class Elsewhere:
    """A policy of another package, of which nothing is known, around one of this."""

    properties = ("length",)

    def __init__(self, policy: Any) -> None:
        self.policy = policy


def test_conditions_that_only_rewards_read_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    tell_unread(load_policy("qm9-small"), [{"num_nodes": 5}, {"logp": 2, "num_nodes": 5}])
    assert capsys.readouterr().err == "columns: 'logp': not read by the policy, only by rewards\n"
    tell_unread(load_policy("qm9-small"), [{"scaffold": "CC"}], scaffolds=True)
    tell_unread(load_policy("fill-in"), [{"masked": "a __", "original": "a cat"}])
    tell_unread(load_policy("qm9-small"), None)
    for policy in (Elsewhere(load_policy("qm9-small")), Elsewhere(None)):
        tell_unread(policy, [{"lengths": 2}])
        check_read(policy, [{"lengths": 2}, {"num_node": 3}])
    assert capsys.readouterr().err == ""


def test_a_property_that_the_policy_was_never_trained_without_has_to_be_given(tmp_path: Path) -> None:
    always = texts(tmp_path / "always", properties=SCALES, condition_dropout=0.0)
    needed = "MolWt: None, expected a number, as the policy was trained with one always"
    with pytest.raises(ValueError, match=rf"^columns: None, expected conditions, as --columns='.*MolWt.*' \({needed}\)$"):
        sample(always, 1)
    with pytest.raises(ValueError, match=needed.replace("MolWt", "TPSA")):
        sample(always, 1, columns=[{"MolWt": 40.0}])
    given = [{"MolWt": 40.0, "TPSA": 10.0}]
    assert len(sample(always, 2, columns=given)) == 2
    assert len(sample(texts(tmp_path / "sometimes", properties=SCALES, condition_dropout=0.1), 2)) == 2
    with pytest.raises(ValueError, match=needed):
        train(always, validity, output_dir=tmp_path / "run", grpo=GRPOConfig(max_steps=1))
    assert not (tmp_path / "run").exists()


def test_a_scaffold_may_be_any_smiles_of_it_for_a_policy_object_too() -> None:
    for name, spelled, options in (
        ("smiles-zinc", "C1=CC=NC=C1", None),
        ("qm9-small", "C1CO1", SamplerOptions(num_steps=4)),
    ):
        found = sample(name, 8, columns=[{"scaffold": spelled}], options=options)
        assert sample(load_policy(name), 8, columns=[{"scaffold": spelled}], options=options) == found
    assert sample(load_policy("smiles-zinc"), 8, columns=[{"scaffold": "c1ccncc1"}]) == sample(
        "smiles-zinc", 8, columns=[{"scaffold": "C1=CC=NC=C1"}]
    )
    with pytest.raises(ValueError, match=r"^scaffold: 'c1ccncc', expected a valid, connected SMILES$"):
        sample(load_policy("smiles-zinc"), 1, columns=[{"scaffold": "c1ccncc"}])


def test_samples_around_a_scaffold_say_how_many_keep_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sample_file("smiles-zinc", 12, str(tmp_path / "s.csv"), scaffold="c1ccncc1")
    smiles = [row["smiles"] or None for row in csv.DictReader(path.read_text().splitlines())]
    kept = sum(one is not None and keeps_scaffold([one], scaffold=["c1ccncc1"])[0] == 1 for one in smiles)
    shown = dict(re.findall(r"│ (\w+) +│ +([\d.]+) │", capsys.readouterr().out))
    assert float(shown["keeps_scaffold"]) == pytest.approx(kept / 12, abs=1e-4)
    grpo, columns = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=2), [{"scaffold": "c1ccncc1"}, {}]
    found = train("smiles-zinc", validity, output_dir=tmp_path / "run", grpo=grpo, columns=columns, evaluation_samples=6)
    table = read_samples(tmp_path / "run/evaluation_after.csv.gz")
    asked = [sample for sample, core in zip(table["sample"], table["scaffold"], strict=True) if core]
    assert len(asked) == 3
    assert found["after"]["keeps_scaffold"] == sum(x or 0.0 for x in keeps_scaffold(asked, scaffold=["c1ccncc1"] * 3)) / 3
    assert scaffold_share(["CC"], {"scaffold": ["a name"]}, "molecules") == {}
    assert scaffold_share(["CC"], {"scaffold": ["CC"]}, "text") == {}
    assert scaffold_share(["CC"], {}, "molecules") == {}


def test_the_conditions_of_a_policy_object_of_unknown_kind_are_those_given() -> None:
    letters = Tokenizer(("a", "b"))
    network = GPT(GPTConfig(len(letters), 4, 0, 1, 1, 4))
    policy = TokenPolicy(network, letters, max_length=4, prompt="scaffold")
    assert len(sample(policy, 2, columns=[{"scaffold": "ab"}])) == 2  # no molecule


def test_samples_are_printed_where_no_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "smiles-zinc", "-n", "4", "--seed=1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [s for s in sample("smiles-zinc", 4, seed=1) if s is not None]
    assert printed == sample_lines("smiles-zinc", 4, seed=1)


def test_lines_of_graphs_with_classes_are_no_molecules(tmp_path: Path) -> None:
    """The graph6 of a small graph is often a SMILES too."""
    lines = ["CF nodes=a,b,a,b edges=x,y,x", "C~ nodes=a,b,a,b edges=x,y,x,x,y,y"]
    (tmp_path / "s.txt").write_text("\n".join(lines) + "\n")
    found = evaluate(tmp_path / "s.txt")
    assert found == evaluate(lines)
    assert found["edges"] == 4.5


def test_names_of_columns_may_be_quoted_and_cells_long(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('"step","text"\n1,"some words"\n')
    assert evaluate(file)["num_samples"] == 1
    large = to_line(nx.path_graph(1300))
    assert len(large) > 131_072
    for name in ("graph", "sample"):
        file.write_text(f'"step","{name}"\n1,{large}\n2,Bw\n')
        assert evaluate(file)["nodes"] == 651.5


def test_one_graph_is_no_list_of_samples() -> None:
    with pytest.raises(ValueError, match=r"samples: .*Graph.*, expected a list of samples or the name of a file"):
        evaluate(nx.path_graph(3))


def test_two_scaffolds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scaffold: 'CCO', expected none: the columns have the scaffold 'CC'"):
        sample_file("qm9-small", 2, str(tmp_path / "a.csv"), scaffold="CCO", columns=[{"num_nodes": 5}, {"scaffold": "CC"}])


@pytest.mark.parametrize("ending", [".sdf", ".json", ".graphml", ".tsv", ".png.gz", ".csvx"])
def test_an_ending_that_samples_do_not_have_is_refused(tmp_path: Path, ending: str) -> None:
    endings = {"qm9-small": r"\.csv, \.smi, \.smiles or \.txt", "digits": r"\.csv, \.txt, also with \.gz, or \.png"}
    endings["fill-in"] = r"\.csv, \.txt, \.smi or \.smiles"
    for name, known in endings.items():
        with pytest.raises(ValueError, match=rf"out: .*, expected a file of \w+ ending in {known}"):
            sample_file(name, 2, str(tmp_path / f"a{ending}"))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, int]] = []

    def read_only(path: Any, mode: int) -> bool:
        asked.append((path, mode))
        return False

    monkeypatch.setattr(os, "access", read_only)
    out = tmp_path / "samples.csv"
    for exists in (False, True):
        if exists:
            out.write_text("older\n")
        with pytest.raises(PermissionError, match=r"^out: .*samples\.csv cannot be written, expected a file in a folder with"):
            sample_file("no such policy", 2, str(out))
        with pytest.raises(PermissionError, match=r"^out: .*samples\.csv cannot be written"):
            evaluate_file("no such file", out=str(out))
    assert set(asked) == {(tmp_path, os.W_OK | os.X_OK)}
    assert out.read_text() == "older\n"


@pytest.mark.parametrize("ending", ["csv", "png"])
def test_a_full_disk_names_the_file_of_samples(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / f"digits.{ending}"
    out.write_text("older")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    said = rf"digits\.{ending}: cannot be written \(No space left on device\); what was there is as it was$"
    with pytest.raises(OSError, match=said) as error:
        sample_file("digits", 1, str(out), columns=[{"label": 1}])
    assert error.value.errno == errno.ENOSPC
    assert out.read_text() == "older"


def test_samples_are_kept_where_their_numbers_cannot_be_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(samples: Any) -> Any:
        raise MemoryError

    loaded = load("qm9-small", SamplerOptions(num_steps=2))
    monkeypatch.setattr(
        "discrete_grpo.recipes.sample.load", lambda *_: replace(loaded, family=replace(loaded.family, evaluate=failing))
    )
    with pytest.raises(MemoryError):
        sample_file("qm9-small", 3, str(tmp_path / "a.csv"))
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 4


def test_numbers_of_a_draw_are_checked_before_the_policy_is_read(tmp_path: Path) -> None:
    said = "seed: -3, expected 0 to 4294967295"
    with pytest.raises(ValueError, match=said):
        sample("none", 2, seed=-3)
    with pytest.raises(ValueError, match=said):
        sample_file("none", 2, str(tmp_path / "a.smi"), seed=-3)
    with pytest.raises(ValueError, match=r"seed: 100000000000000000000, expected 0 to 4294967295"):
        sample("none", 2, seed=10**20)
    with pytest.raises(ValueError, match="n: 0, expected at least 1"):
        sample_file("none", 0, str(tmp_path / "a.smi"))
    with pytest.raises(ValueError, match="batch_size: 0, expected at least 1"):
        sample("none", 2, batch_size=0)
    for wrong, name in [({"seed": 1.5}, "seed"), ({"batch_size": 0}, "batch_size")]:
        with pytest.raises(ValueError, match=f"{name}: "):
            sample_policy(load_policy("smiles-zinc"), 2, **wrong)  # type: ignore[arg-type]


def test_a_table_of_invalid_samples_alone_is_of_molecules(tmp_path: Path) -> None:
    (file := tmp_path / "collapsed.csv").write_text("smiles,seed\n,0\n,0\n")
    (reference := tmp_path / "reference.smi").write_text("CCO\n")
    found = evaluate(file, reference=reference)
    assert (found["num_samples"], found["valid"], found["unique"]) == (2, 0, 0)
    (file := tmp_path / "other.csv").write_text("smiles,seed\n,0\nbad(,0\n")
    with pytest.raises(ValueError, match=r"^file: .*other\.csv' has no molecule in 2 lines"):
        evaluate(file)


def test_lines_of_text_are_evaluated_by_their_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fills.txt"
    file.write_text("some quiet brother sleeps at home\nsome quiet brewers sleeps at home\n")
    assert main(["evaluate", str(file)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "fills.txt' has no molecule in 2 lines: line 1: 'some'; line 2: 'some'; expected at least one, or another kind" in said
    assert "max_broken" not in said
    with pytest.raises(ValueError, match=r"^file: .* has no molecule in 2 lines"):
        evaluate(file)
    assert main(["evaluate", str(file), "--kind=text", f"--out={tmp_path / 'out.json'}"]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["num_samples"] == 2
    assert main(["evaluate", str(file), "--kind=texts"]) == 2
    assert "kind: 'texts', expected one of digraphs, graphs, images, text" in capsys.readouterr().err


def test_a_reference_may_be_given_as_values(tmp_path: Path) -> None:
    (tmp_path / "known.smi").write_text("CCO\nCC\n", encoding="utf-8")
    samples = ["CCO", None, "CN"]
    found = evaluate(samples, reference=["CCO", "CC"])
    assert found["novel"] == 0.5
    assert found == pytest.approx(evaluate(samples, reference=tmp_path / "known.smi"), nan_ok=True)
    trees = [nx.path_graph(4), nx.star_graph(3)]
    lines = [nx.to_graph6_bytes(tree, header=False).decode().strip() for tree in trees]
    drawn, shape = [lines[0], "DhC"], "tree"
    by_graphs, by_lines = (evaluate(drawn, kind="graphs", reference=given, shape=shape) for given in (trees, lines))
    assert by_graphs["novel"] == 0.5
    assert by_graphs == pytest.approx(by_lines, nan_ok=True)
    molecules = list(conformers(["CO", "CC"]).molecules)
    texts = list(map(to_cxsmiles, molecules))
    for reference in (molecules, texts):
        assert evaluate(molecules[:1], kind="spatial", reference=reference)["novel"] == 0.0


@pytest.mark.parametrize(
    ("kind", "reference", "said"),
    [
        ("molecules", ["C C"], "reference: entry 0 is 'C C', expected a SMILES string"),
        ("molecules", 5, "reference: 5, expected a list"),
        ("images", ["a"], "reference: 'a list', expected none with a file of images"),
        ("graphs", [3], "reference: graph 0 is a int, expected networkx graphs"),
    ],
)
def test_a_reference_of_other_values_is_one_line(kind: str, reference: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        evaluate(["A"], kind=kind, reference=reference)


def test_a_file_that_is_not_there_is_told_before_any_kind_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discrete_grpo.recipes.evaluate.KINDS", {})
    for ending in (".smi", ".csv", ".sdf"):
        with pytest.raises(FileNotFoundError, match=r"^file: .* is no file"):
            evaluate(tmp_path / f"none{ending}")
        with pytest.raises(FileNotFoundError, match=r"^file: .* is no file"):
            evaluate_file(str(tmp_path / f"none{ending}"))


def test_a_policy_that_needs_conditions_says_how_they_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "fill-in", "-n", "1", f"--out={tmp_path / 'a.txt'}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1  # and no bar
    assert 'columns: None, expected conditions, as --columns=\'[{"masked": "..."}]\' (masked: None, expected a text' in lines[0]
    for policy in ("fill-in", load_policy("fill-in")):
        with pytest.raises(ValueError, match=r"^columns: None, expected conditions"):
            sample(policy, 1)


def test_the_distance_from_a_wanted_property_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sample_file("smiles-zinc", 12, str(tmp_path / "s.csv"), columns=[{"MolLogP": 3.0}, {}])
    rows = [row for row in csv.DictReader(path.read_text().splitlines()) if row["smiles"] and row["MolLogP"]]
    errors = [abs(descriptor("MolLogP")(Chem.MolFromSmiles(row["smiles"])) - 3.0) for row in rows]
    shown = dict(re.findall(r"│ (\w+) +│ +([\d.]+) │", capsys.readouterr().out))
    assert float(shown["error_MolLogP"]) == pytest.approx(sum(errors) / len(errors), abs=1e-4)
    assert 0 < len(errors) <= 6
    grpo, columns = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=2), [{"MolLogP": 3.0}]
    found = train("smiles-zinc", validity, output_dir=tmp_path / "run", grpo=grpo, columns=columns, evaluation_samples=6)
    kept = [s for s in read_samples(tmp_path / "run/evaluation_after.csv.gz")["sample"] if s]
    errors = [abs(descriptor("MolLogP")(Chem.MolFromSmiles(s)) - 3.0) for s in kept]
    assert found["after"]["error_MolLogP"] == pytest.approx(sum(errors) / len(errors))
    alone = property_errors(["CC"], {"SPS": [1.0]}, "molecules")
    assert property_errors(["[H][H]", "CC"], {"SPS": [1.0, 1.0]}, "molecules") == alone  # RDKit divides by zero for the first
    assert property_errors(["CC"], {"MolLogP": [1.0]}, "molecules", ["MolLogP"]) == {}  # one that was measured
    assert property_errors(["CC"], {"MolLogP": [1.0]}, "text") == property_errors([None], {"MolLogP": [1.0]}, "molecules") == {}


def test_numbers_far_from_the_training_data_are_told_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    sample("smiles-zinc", 1, columns=[{"MolLogP": 2.0}, {"MolLogP": 8.0}])
    assert "columns" not in capsys.readouterr().err
    sample("smiles-zinc", 1, columns=[{"MolLogP": 2.0}, {"MolLogP": -50.0}])
    told = " ".join(capsys.readouterr().err.split())
    assert "columns: MolLogP -50 is 36.6 standard deviations from the mean of the training data, 2.458" in told
    with pytest.raises(ValueError, match=r"^MolLogP: 1e\+30, expected a number at most 1e\+06 standard deviations"):
        sample("smiles-zinc", 1, columns=[{"MolLogP": 1e30}])


def test_an_error_in_a_list_speaks_of_the_list() -> None:
    with pytest.raises(ValueError, match=r"^reference: the list has 1 of 2 lines that are no molecule .*: line 2: 'xx\('$"):
        evaluate(["CCO"], reference=["CCO", "xx("])
    with pytest.raises(ValueError, match=r"^train: the list has 1 of 1 lines that are no molecule "):
        evaluate(["CCO"], suite="moses", reference=["CCO"], train=["C(("])


def test_conditions_take_turns_across_the_batches() -> None:
    columns = [{"num_nodes": 2}, {"num_nodes": 3}, {"num_nodes": 4}]
    samples, found = sample_policy(tiny_policy(), 7, batch_size=2, columns=columns)
    assert found == {"num_nodes": [2, 3, 4, 2, 3, 4, 2]}
    assert [len(sample) for sample in samples] == found["num_nodes"]


def test_a_sample_without_a_condition_keeps_its_place_in_the_column() -> None:
    columns: list[dict[str, Any]] = [{"num_nodes": 4}, {}, {}]
    samples, found = sample_policy(tiny_policy(), 5, batch_size=1, columns=columns)
    assert found == {"num_nodes": [4, None, None, 4, None]}
    assert len(samples[0]) == len(samples[3]) == 4


def test_numbers_further_than_six_deviations_are_told_where_the_scale_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    policy = SimpleNamespace(properties=(Property("x"), Property("y", 1.0, 2.0)))
    _tell_far(policy, [{"x": 100.0, "y": 13.0}, {"x": None}])
    assert capsys.readouterr().err == ""
    _tell_far(policy, [{"x": 100.0, "y": 13.5}, {"y": -5.0}])
    told = " ".join(capsys.readouterr().err.split())
    assert told == "columns: y 13.5 is 6.25 standard deviations from the mean of the training data, 1"


def test_conditions_of_numpy_are_numbers_and_one_number_is_no_list_of_conditions() -> None:
    (found,) = read_columns([{"a": np.int64(3), "b": np.float32(0.5), "c": "3"}])
    assert [(value, type(value)) for value in found.values()] == [(3, int), (0.5, float), ("3", str)]
    wrong: Any = 5
    with pytest.raises(ValueError, match=r"^columns: 5, expected a list of mappings$"):
        read_columns(wrong)


def test_samples_of_a_table_are_whole() -> None:
    assert as_text([nx.path_graph(3), None, "CC"]) == ["Bg", "", "CC"]


def test_a_column_of_smiles_makes_a_file_one_of_molecules(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,mol\nsome words,CCO\nothers,CC\n")
    assert evaluate_file(str(tmp_path / "a.csv"))["num_samples"] == 2
    found = evaluate_file(str(tmp_path / "a.csv"), FileOptions(smiles_column="mol"))
    assert (found["num_samples"], found["valid"]) == (2, 1.0)


def test_a_table_of_a_policy_that_collapsed_is_evaluated(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("smiles,seed\n,0\n,0\n")
    (tmp_path / "a.smi").write_text("")
    assert evaluate_file(str(tmp_path / "a.csv"))["valid"] == 0.0
