"""The command likelihood: its table and its summary, what it leaves out and why, its conditions, and its refusals."""

from __future__ import annotations

import csv
import gzip
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo import Context, SamplerOptions, likelihood, load_policy
from discrete_grpo.cli import main
from discrete_grpo.core.description import attach_metadata
from discrete_grpo.domains.tokenizer import SMILES, Tokenizer
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.likelihood import GraphBound
from discrete_grpo.policies.surrogate import ElboLikelihood
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.recipes.pretraining.graph_sequences import graph_sequence_policy
from discrete_grpo.recipes.pretraining.smiles import smiles_policy
from discrete_grpo.runs.checkpoint import save
from tests.letters import letters_policy, texts
from tests.policies.surrogate_parts import two_nodes
from tests.recipes.pretraining.sft_cases import SCALES, SPELLED, written
from tests.toys import SIZES, tiny_policy

LINES = ("OCC", "CCO", "C1CC", "C[Xe]", "C" * 20, "CC=O")


@pytest.fixture(scope="module")
def smiles(tmp_path_factory: pytest.TempPathFactory) -> str:
    policy = smiles_policy(SPELLED, max_length=14, layers=1, heads=2, width=16, scaffold=True)
    return str(save(tmp_path_factory.mktemp("smiles") / "policy", policy, metadata={"kind": "molecules"}))


def rows(path: Path) -> list[dict[str, str]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return list(csv.DictReader(text.splitlines()))


# -- texts


def test_a_file_of_molecules_has_one_row_each(smiles: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = written(tmp_path / "a.smi", LINES), tmp_path / "a.csv.gz"
    assert main(["likelihood", smiles, file, f"--out={out}"]) == 0
    table, shown = rows(out), capsys.readouterr()
    assert list(table[0]) == ["smiles", "logp", "tokens", "text", "reason"]
    assert [row["smiles"] for row in table] == list(LINES)
    assert [row["reason"] for row in table] == ["", "", "invalid", "vocabulary", "length", ""]
    assert [row["text"] for row in table] == ["CCO", "CCO", "", "", "", "CC=O"]
    assert [row["logp"] == "" for row in table] == [False, False, True, True, True, False]
    assert table[0]["logp"] == table[1]["logp"]
    wanted = load_policy(smiles).rollout_of(["CCO", "CC=O"])
    with torch.no_grad():
        (sites,) = load_policy(smiles).sites(wanted)
    total = sites.log_probs.gather(-1, sites.action.unsqueeze(-1))[..., 0, 0].masked_fill(~sites.mask[..., 0], 0).sum(1)
    assert [float(table[k]["logp"]) for k in (0, 5)] == pytest.approx(total.tolist(), abs=1e-5)
    assert [table[k]["tokens"] for k in (0, 5)] == ["4", "5"]
    nll = -sum(float(row["logp"]) for row in table if row["logp"]) / 3
    assert f"{nll:.4g}" in shown.out
    assert f"{nll * 3 / 13:.4g}" in shown.out
    assert "-log p of the canonical SMILES, exact" in shown.err
    said = "3 of 6 samples cannot be drawn and are left out: 1 invalid ('C1CC': no valid sample); 1 length ('CCCC"
    assert said in shown.err
    assert "20 tokens, expected 0 to 14); 1 vocabulary ('C[Xe]' has the token '[Xe]'" in shown.err


def test_the_text_as_written_is_scored_if_it_is_asked_for(smiles: str) -> None:
    found = likelihood(smiles, ["OCC", "CCO", "C1CC"], spelling="written")
    assert [row.text for row in found.rows] == ["OCC", "CCO", "C1CC"]  # an invalid molecule is a text too
    assert None not in found.logp
    assert found.logp[0] != found.logp[1]
    assert likelihood(smiles, ["OCC"]).logp[0] == pytest.approx(found.logp[1], abs=1e-6)


def test_the_number_scored_at_a_time_changes_nothing() -> None:
    policy, space = letters_policy(), texts()[::-1]
    whole = likelihood(policy, space)
    assert sum(math.exp(value or 0.0) for value in whole.logp) == pytest.approx(1.0, abs=1e-12)
    assert [row.sample for row in whole.rows] == space
    alone = likelihood(policy, ["ab"]).logp[0]
    assert whole.logp[space.index("ab")] == pytest.approx(alone, abs=1e-12)
    for size in (1, 7):
        assert likelihood(policy, space, batch_size=size).logp == pytest.approx(whole.logp, abs=1e-12)


def test_the_temperature_and_the_mode_are_those_of_drawing() -> None:
    policy = letters_policy().train()
    warm = likelihood(policy, ["ab"], options=SamplerOptions(temperature=2.0))
    assert all(module.training for module in policy.modules())
    assert warm.logp == likelihood(letters_policy(truncation=Truncation(2.0)), ["ab"]).logp
    assert warm.logp != likelihood(policy, ["ab"]).logp


def test_conditions_are_one_for_all_or_one_per_sample(smiles: str) -> None:
    cores = [{"scaffold": "C1CC1"}, {"scaffold": "c1ccccc1"}]
    apart = [likelihood(smiles, ["CCO"], columns=[core]).logp[0] for core in cores]
    assert apart[0] != apart[1]
    assert likelihood(smiles, ["CCO"] * 2, columns=cores).logp == pytest.approx(apart, abs=1e-6)
    assert likelihood(smiles, ["CCO"] * 3, scaffold="C1CC1").logp == pytest.approx([apart[0]] * 3, abs=1e-6)
    with pytest.raises(ValueError, match=r"^columns: 2 conditions for 3 samples, expected one for all or one per sample$"):
        likelihood(smiles, ["CCO"] * 3, columns=cores)
    always = smiles_policy(SPELLED, max_length=14, layers=1, heads=2, width=16, properties=SCALES, condition_dropout=0.0)
    with pytest.raises(ValueError, match=r"^columns: None, expected conditions, .*MolWt"):
        likelihood(attach_metadata(always, {"kind": "molecules"}), ["CCO"])


def test_graph_sequences_are_scored_by_the_text_of_a_graph(tmp_path: Path) -> None:
    policy = graph_sequence_policy(5, 12, layers=1, heads=2, width=16).eval()
    found = likelihood(attach_metadata(policy, {"kind": "graphs", "shape": "connected"}), ["Bw", "not a graph", "IheA@GUAo"])
    assert isinstance(policy, DecodedPolicy)
    assert found.exact
    assert [row.reason for row in found.rows][:2] == [None, "invalid"]
    assert found.rows[2].reason in ("length", "vocabulary", "grammar")
    assert found.rows[0].text == "*++.>."
    drawn = policy.policy.rollout_of(["*++.>."])
    with torch.no_grad():
        (sites,) = policy.policy.sites(drawn)
    total = sites.log_probs.gather(-1, sites.action.unsqueeze(-1)).squeeze(-1).masked_fill(~sites.mask, 0).sum()
    assert found.logp[0] == pytest.approx(float(total), abs=1e-5)


# -- graphs


def test_a_bound_says_that_it_is_one(small_molecules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = written(tmp_path / "a.smi", ["CCO", "OCC", "CC(C)(C)C", "CBr", "C1CC"]), tmp_path / "a.csv"
    arguments = ["likelihood", small_molecules, file, f"--out={out}", "--draws=4", "--num_steps=5"]
    assert main([*arguments, "--seed=7"]) == 0
    table, shown = rows(out), capsys.readouterr()
    assert list(table[0]) == ["smiles", "bound", "log_p_nodes", "sites", "reason"]
    assert [row["reason"] for row in table] == ["", "", "size", "vocabulary", "invalid"]
    assert table[0]["bound"] == table[1]["bound"]
    assert float(table[0]["log_p_nodes"]) == pytest.approx(math.log(0.3), abs=1e-9)
    assert table[0]["sites"] == "6"
    assert "upper bound of the mean of -log p of each graph, in nats: 4 draws per sample, seed 7" in shown.err
    assert "1 size ('CC(C)(C)C': a graph of 5 nodes, expected a size that the policy draws (2, 3, 4))" in shown.err
    assert main([*arguments, "--seed=7"]) == 0
    assert rows(out) == table
    assert main([*arguments, "--seed=8"]) == 0
    assert rows(out)[0]["bound"] != table[0]["bound"]
    found = likelihood(small_molecules, ["CBr", "CCO"], draws=4, seed=7, options=SamplerOptions(num_steps=5))
    assert found.logp == [None, float(table[0]["bound"])]  # to the bit, whatever else is in the file


def test_a_bound_includes_the_node_count_and_needs_no_shared_steps() -> None:
    plain, shared = tiny_policy(), tiny_policy(shared_steps=2)
    plain.decode = shared.decode = None
    graphs = plain.sample([Context(k) for k in range(3)], generator=torch.Generator().manual_seed(0)).samples
    found = likelihood(plain, graphs, draws=3)
    sizes = [one.num_nodes for one in graphs]
    assert [row.log_size for row in found.rows] == pytest.approx([math.log(SIZES[n]) for n in sizes], abs=1e-9)
    given = [GraphBound(plain, 3).of_graph(one) for one in graphs]
    assert found.logp == pytest.approx([math.log(SIZES[n]) + value for n, value in zip(sizes, given, strict=True)], abs=1e-9)
    assert [row.units for row in found.rows] == [n * (n + 1) // 2 for n in sizes]
    assert likelihood(shared, graphs, draws=3).logp == found.logp
    assert likelihood(ElboLikelihood(plain, 2), graphs, draws=3).logp == found.logp
    summary = found.summary()
    assert summary["nll_bound"] == pytest.approx(-sum(value or 0.0 for value in found.logp) / 3, abs=1e-12)
    assert summary["nll_nodes"] == pytest.approx(-sum(math.log(SIZES[n]) for n in sizes) / 3, abs=1e-9)


# -- refusals


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        ("fill-in", {}, r"policy: 'fill-in' is a MaskedTextPolicy, which gives no log p of given samples; expected an autoreg"),
        ("digits", {}, r"policy: 'digits' is a DecodedPolicy, which gives no log p of given samples"),
        ("smiles-zinc", {"options": SamplerOptions(top_k=3)}, r"policy: 'smiles-zinc' draws with Truncation.*expected top_k None"),
        ("qm9-small", {"scaffold": "C1CC1"}, r"scaffold: 'C1CC1', expected none: a bound is of the whole graph"),
        ("qm9-small", {"columns": [{"num_nodes": 3}]}, r"num_nodes: 3, expected none: a bound is of the whole graph"),
        ("smiles-zinc", {"columns": [{"logp": 3}]}, r"columns: a condition named 'logp', expected one that the policy reads"),
        ("smiles-zinc", {"spelling": "random"}, r"spelling: 'random', expected canonical or written"),
        ("smiles-zinc", {"draws": 0}, r"draws: 0, expected at least 1"),
        ("smiles-zinc", {"seed": -1}, r"seed: -1, expected"),
        ("smiles-zinc", {"batch_size": 0}, r"batch_size: 0, expected at least 1"),
        ("smiles-zinc", {"temperature": 2.0}, r"temperature: a field of SamplerOptions, expected it as options="),
    ],
)
def test_what_cannot_be_computed_is_refused_in_one_line(policy: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        likelihood(policy, ["CCO"], **options)


def test_files_that_cannot_be_read_or_written(smiles: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "a.smi", ["CCO"])
    none = written(tmp_path / "none.smi", ["C[Xe]", "C1CC"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    for arguments, said in (
        ([file, f"--out={tmp_path}/a.smi"], "expected a file ending in .csv, also with .gz"),
        ([str(tmp_path / "nosuch.smi")], "nosuch.smi' is no file"),
        ([str(tmp_path / "run")], "run is a run folder, expected a file of samples"),
        ([none], "none.smi' has 2 samples, none of which the policy can draw ('C[Xe]' has the token '[Xe]'"),
    ):
        assert main(["likelihood", smiles, *arguments]) == 2
        shown = capsys.readouterr()
        assert said in shown.err
        assert shown.err.startswith("discrete-grpo: error: ")
        assert shown.err.count("\n") == 1
    table = written(tmp_path / "a.csv", ["smiles", "CCO"])
    assert main(["likelihood", smiles, table, f"--out={table}"]) == 2
    assert "is read as file, expected another name" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"^samples: \[\], expected a list of at least one sample or the name of a file$"):
        likelihood(smiles, [])


def test_a_policy_without_a_description_reads_texts_as_they_stand() -> None:
    policy = smiles_policy(Tokenizer.of(["CCO"], SMILES), max_length=5, layers=1, heads=2, width=16).eval()
    assert [row.text for row in likelihood(policy, ["OCC"]).rows] == ["CCO"]
    del policy.sample_metadata
    assert [row.text for row in likelihood(policy, ["OCC", 3]).rows] == ["OCC", None]
    assert likelihood(two_nodes("uniform"), ["C"]).rows[0].reason == "vocabulary"  # a sample of a form that it does not read
