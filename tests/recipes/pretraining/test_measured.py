"""Policies of molecules are conditioned on measured columns of their file: values, what is said and refused, and use."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rdkit import Chem

from discrete_grpo import GRPOConfig, PretrainConfig, PretrainRecipe, SFTRecipe, load_policy, pretrain, sample, train
from discrete_grpo.cli import main
from discrete_grpo.datasets.measured import read_measured
from discrete_grpo.domains.molecule_properties import descriptor
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.pretraining import molecules as graphs
from discrete_grpo.recipes.pretraining import smiles as texts
from discrete_grpo.recipes.pretraining.measured import measured_columns
from discrete_grpo.recipes.pretraining.smiles import PretrainSmilesRecipe
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.runs.checkpoint import load_metadata
from tests.recipes.pretraining.sft_cases import made, written

ROWS = ("CCO,1.5,0.1", "CN,,0.2", "no molecule,3,0.3", "CCCCCCCC,4,0.4", "CC,NaN,0.5", "CO,-2e0,0.6", "CCN,2.5,0.7")
"""The molecule of the fourth line is too large, the third is none, and two have no solubility."""
KNOWN = {"CCO": 1.5, "CO": -2.0, "CCN": 2.5}
LOOP = PretrainConfig(max_steps=1, batch_size=4, warmup_steps=0)
TINY: dict[str, Any] = {"pretrain": LOOP, "max_broken": 0.5, "evaluation_samples": 0}


def table(where: Path, rows: tuple[str, ...] = ROWS, header: str = "smiles,solubility,qed") -> str:
    return written(where / "my.csv", [header, *rows])


def graph_recipe(data: str, out: Path, **changed: Any) -> PretrainRecipe:
    sizes = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4, walk_length=2)
    given: dict[str, Any] = {"data": data, "output_dir": str(out), "network": sizes, "num_steps": 3, "max_atoms": 5, **TINY}
    return PretrainRecipe(**given | changed)


def smiles_recipe(data: str, out: Path, **changed: Any) -> PretrainSmilesRecipe:
    given: dict[str, Any] = {"data": data, "output_dir": str(out), "layers": 1, "heads": 2, "width": 16, **TINY}
    return PretrainSmilesRecipe(**given | changed)


def values_of(recipe: PretrainRecipe | PretrainSmilesRecipe) -> tuple[tuple[str, ...], torch.Tensor, Any]:
    """The molecules that a recipe trains on, their standardised conditions, and the properties."""
    if isinstance(recipe, PretrainSmilesRecipe):
        found = texts._data(recipe)
        rows = [found.tokenizer.decode(row) for row in found.data.batch(torch.arange(len(found.data))).tokens.tolist()]
        return tuple(rows), found.data.batch(torch.arange(len(rows))).properties, found.properties
    given: Any = graphs._conditioned(recipe, graphs._dataset(recipe), measured_columns(recipe))
    return given.data.smiles, given.values, given.properties


@pytest.mark.parametrize("make", [graph_recipe, smiles_recipe])
@pytest.mark.parametrize("cache", [None, "cache"])
def test_each_molecule_has_the_number_of_its_row(make: Any, cache: str | None, tmp_path: Path) -> None:
    where = None if cache is None else str(tmp_path / cache)
    recipe = make(table(tmp_path), tmp_path / "run", properties=("MolWt", "solubility"), cache_dir=where)
    for _ in range(1 if cache is None else 2):  # the second time from the cache
        molecules, values, scales = values_of(recipe)
        assert [scale.name for scale in scales] == ["MolWt", "solubility"]
        known = {"CCCCCCCC": 4.0, **KNOWN} if make is smiles_recipe else KNOWN
        mean = sum(known.values()) / len(known)
        assert scales[1].mean == pytest.approx(mean)
        assert set(molecules) == {"CN", "CC", *known}
        for name, row in zip(molecules, values.tolist(), strict=True):
            mol = Chem.MolFromSmiles(name)
            assert row[0] * scales[0].std + scales[0].mean == pytest.approx(descriptor("MolWt")(mol), rel=1e-5)
            wanted = known.get(name, math.nan)
            assert row[1] * scales[1].std + scales[1].mean == pytest.approx(wanted, rel=1e-5, nan_ok=True)


def test_what_is_unknown_and_what_is_a_descriptor_too_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = table(tmp_path)
    _, values, scales = values_of(graph_recipe(data, tmp_path / "run", properties=("qed", "solubility")))
    said = capsys.readouterr().err
    assert f"{data}: qed: read from the file, and not computed by RDKit\n" in said
    assert f"{data}: solubility is unknown for 2 of 5 molecules, which are trained on without it\n" in said
    assert "qed is unknown" not in said
    assert (values[:, 0] * scales[0].std + scales[0].mean).tolist() == pytest.approx([0.1, 0.2, 0.5, 0.6, 0.7])


def test_descriptors_alone_are_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    molecules, values, scales = values_of(graph_recipe(table(tmp_path), tmp_path / "run", properties=("TPSA",)))
    assert "read from the file" not in capsys.readouterr().err
    raw = torch.tensor([[descriptor("TPSA")(Chem.MolFromSmiles(name))] for name in molecules], dtype=torch.float64)
    mean, std = (torch.tensor([value]) for value in (scales[0].mean, scales[0].std))
    assert torch.equal(values, ((raw - mean) / std).float())


@pytest.mark.parametrize("command", ["pretrain", "pretrain-smiles"])
@pytest.mark.parametrize(
    ("name", "header", "row", "told"),
    [
        (
            "solubilty",
            None,
            None,
            "is neither a column of 'my.csv' nor a descriptor of RDKit; did you mean 'solubility'? (columns ",
        ),
        ("TPAS", None, None, "did you mean 'TPSA'? (columns 'solubility', 'qed'; "),
        ("smiles", None, None, "properties: 'smiles' is neither a column"),
        ("solubility", None, "CO,>3,1", "properties: line 3 of 'my.csv' holds '>3' in 'solubility', expected a number or nothing"),
        ("solubility", None, "CO,inf,1", "holds 'inf' in 'solubility', expected a number or nothing"),
        ("solubility", None, "CO,1,5,1", "data: line 3 of 'my.csv' has 4 cells, expected 3 as the header has"),
        ("x", "smiles,x,x", None, "properties: 'x' is the name of several columns of 'my.csv', expected one of that name"),
        ("qed,TPSA,qed", None, None, "properties: 'qed' is given twice, expected each once"),
        ("reward", "smiles,reward,x", None, "properties: a column named 'reward', expected another name: step, group"),
        ("num_nodes", "smiles,num_nodes,x", None, "properties: a column named 'num_nodes', expected another name"),
        ("measured_x", "smiles,measured_x,x", None, "properties: a column named 'measured_x', expected another name: step, group"),
        ("solubility", None, "CO,1e300,1", "holds '1e300' in 'solubility', expected a number of at most 1e+30 in size"),
    ],
)
def test_other_names_and_cells_are_refused(
    command: str,
    name: str,
    header: str | None,
    row: str | None,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path, ("CCO,1,1", *([row] if row else [])), header or "smiles,solubility,qed")
    assert main([command, "--data=my.csv", f"--properties=[{name}]", "--output_dir=run", "--pretrain.max_steps=1"]) == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
    assert not Path("run").exists()


@pytest.mark.parametrize("make", [graph_recipe, smiles_recipe])
def test_the_range_of_each_condition_is_told(make: Any, capsys: Any, tmp_path: Path) -> None:
    data = table(tmp_path, ("CCO,1,7", "CN,,7", "CO,-9999,7", "CC,3,7"), "smiles,value,same")
    pretrain(make(data, tmp_path / "run", properties=("value", "same"), condition_dropout=0.2))
    told = " ".join(capsys.readouterr().err.split())
    assert "value: -9999 to 3 in 3 molecules, mean -3332, deviation 4715" in told
    assert "same: 7 in all 4 molecules that have it, so a policy learns nothing from it" in told


def test_other_delimiters_are_named(tmp_path: Path) -> None:
    data = written(tmp_path / "comma.csv", ["smiles;solubility", "CO;1,5"])
    with pytest.raises(ValueError, match=r"holds '1,5' in 'solubility', expected a number or nothing; decimals follow a point$"):
        pretrain(smiles_recipe(data, tmp_path / "run", properties=("solubility",)))
    data = written(tmp_path / "bar.txt", ["CO|1", "CCO|2"])
    said = r"^properties: 'log S' is no descriptor of RDKit, and '.*bar\.txt' has no header of columns \(separated by a comma, a"
    with pytest.raises(ValueError, match=said):
        pretrain(smiles_recipe(data, tmp_path / "run", properties=("log S",)))


@pytest.mark.parametrize("make", [graph_recipe, smiles_recipe])
def test_conditions_that_are_never_shown_are_refused(make: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^condition_dropout: 1, expected less than 1, as qed, TPSA would never be shown$"):
        make("my.csv", tmp_path, properties=("qed", "TPSA"), condition_dropout=1)
    make("my.csv", tmp_path, condition_dropout=1)


def test_a_few_very_long_molecules_are_told(capsys: Any, tmp_path: Path) -> None:
    for count, told in ((1, True), (0, False)):
        data = written(tmp_path / f"{count}.smi", [*("C" * (1 + k % 7) + "O" for k in range(300)), *["C" * 90] * count])
        texts._data(smiles_recipe(data, tmp_path / "run"))
        said = "99 % of the molecules have at most 8 tokens, and 1 up to 90, so the policy may draw texts of 90"
        assert (said in " ".join(capsys.readouterr().err.split())) == told


def test_a_list_of_smiles_has_descriptors_alone(tmp_path: Path) -> None:
    data = written(tmp_path / "list.smi", ["CCO", "CN"])
    with pytest.raises(ValueError, match=r"has no header of columns \(separated by .* or a tab\); did you mean 'TPSA'\?$"):
        measured_columns(graph_recipe(data, tmp_path / "run", properties=("TPAS",)))


@pytest.mark.parametrize("make", [graph_recipe, smiles_recipe])
def test_a_policy_with_a_measured_condition_is_used_like_any_other(make: Any, tmp_path: Path, capsys: Any) -> None:
    folder = pretrain(make(table(tmp_path), tmp_path / "run", properties=("solubility", "MolWt")))
    assert load_metadata(folder)["measured"] == ["solubility"]
    policy: Any = load_policy(folder)
    assert [one.name for one in policy.properties] == ["solubility", "MolWt"]
    conditions = [{"solubility": 1.0}, {"solubility": -1.0, "MolWt": 40.0}]
    assert len(sample(folder, 4, columns=conditions)) == 4
    grpo = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4, per_device_batch_size=4)
    run = tmp_path / "grpo"
    train(str(folder), qed, output_dir=str(run), grpo=grpo, columns=conditions, evaluation_samples=4)
    assert load_metadata(run / "policy")["measured"] == ["solubility"]
    capsys.readouterr()
    more = SFTRecipe(str(run), written(tmp_path / "more.smi", ["CCO", "CO", "CN", "CC"]), test_share=0.3)
    batch = made(more).train.batch(torch.arange(3))
    assert [torch.isnan(column).all().item() for column in batch.properties.unbind(1)] == [True, False]
    told = "solubility: neither a column of the data nor computed by RDKit, so the samples are trained on without it"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("make", [graph_recipe, smiles_recipe])
def test_further_training_reads_the_measured_conditions_of_the_policy(make: Any, tmp_path: Path, capsys: Any) -> None:
    folder = pretrain(make(table(tmp_path), tmp_path / "run", properties=("solubility", "MolWt")))
    capsys.readouterr()
    rows = ("CCO,7,1.5,1", "no molecule,7,9,9", "CSi,7,8,8", "C[Si],7,8,8", "CO,7,,3", "CN,7,-2,4", "OCC,7,2.5,5", "CC,7,4,6")
    (tmp_path / "more").mkdir()
    more = SFTRecipe(str(folder), table(tmp_path / "more", rows, "smiles,MolWt,solubility,other"), test_share=0.2, max_broken=0.9)
    found = made(more)
    assert found.held_out is not None
    assert bool(found.held_out.batch(torch.tensor([0])).properties.isnan().all())
    scales = found.policy.properties
    batch = found.train.batch(torch.arange(len(found.train)))
    raw = [column * scale.std + scale.mean for column, scale in zip(batch.properties.double().unbind(1), scales, strict=True)]
    known = {"CCO": [1.5, 2.5], "CO": [math.nan], "CN": [-2.0], "CC": [4.0]}
    read: dict[str, list[float]] = {}
    for smiles, solubility, weight in zip(found.samples, raw[0].tolist(), raw[1].tolist(), strict=True):
        mol = Chem.MolFromSmiles(smiles)
        assert weight == pytest.approx(descriptor("MolWt")(mol), rel=1e-5)  # computed, as for the policy
        read.setdefault(Chem.MolToSmiles(mol), []).append(solubility)
    assert len(read) == 3  # the fourth is held out
    for smiles, values in read.items():
        assert values == pytest.approx(known[smiles], abs=1e-5, nan_ok=True)
    assert "solubility is unknown for 1 of 6 molecules" in capsys.readouterr().err
    wrong = SFTRecipe(str(folder), table(tmp_path / "more", ("CCO,7,high,1", "CO,7,1,1"), "smiles,MolWt,solubility,other"))
    with pytest.raises(ValueError, match=r"^properties: line 2 of .* holds 'high' in 'solubility', expected a number or nothing"):
        made(wrong)


def test_the_command_samples_and_evaluates_under_a_measured_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pretrain(smiles_recipe(table(tmp_path), Path("run"), properties=("solubility",)))
    asked = json.dumps({"solubility": 2.0})
    assert main(["sample", "run", "-n", "8", "--out=drawn.csv", f"--columns={asked}"]) == 0
    assert "solubility" in Path("drawn.csv").read_text().splitlines()[0]
    assert main(["evaluate", "drawn.csv"]) == 0


def test_rows_come_in_the_order_of_the_lines_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("smiles,y\nC,1\nCC,2\nCCC,3\n")
    found = read_measured(tmp_path / "a.csv", ["y"], [4, 2, 4])
    assert found.flatten().tolist() == [3.0, 1.0, 3.0]
    with pytest.raises(ValueError, match=r"^lines: 9, expected numbers of lines of "):
        read_measured(tmp_path / "a.csv", ["y"], [2, 9])


@pytest.mark.parametrize("name", ["my.tsv", "my.smi", "my.txt"])
def test_empty_cells_between_tabs_move_no_value(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("\nsmiles\tmade by\tlogp\tpIC50\nCCO\tsome one\t\t5.1\nCC\t\t0.5\t6\n")
    found = read_measured(file, ["logp", "pIC50"], [3, 4])
    assert torch.equal(found.isnan(), torch.tensor([[True, False], [False, False]]))
    assert found.nan_to_num(-1.0).tolist() == [[-1.0, 5.1], [0.5, 6.0]]
