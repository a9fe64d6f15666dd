"""Which column of a file is read: delimiters, headers, usual names, and refusals where it is not certain."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.cli import main
from discrete_grpo.datasets.molecules import load_molecules
from discrete_grpo.datasets.reading import read_smiles
from discrete_grpo.datasets.smiles import load_smiles

READERS = [
    lambda path, **options: read_smiles(path, **options).smiles,
    lambda path, **options: load_molecules(path, **options).smiles,
    lambda path, **options: load_smiles(path, **options).smiles,
]
ASSAY = "scaffold,canonical_smiles,pIC50\nc1ccccc1,Oc1ccccc1,5.1\nC1CC1,CC1CC1,6.2\n"


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("read", READERS)
def test_a_column_of_scaffolds_is_not_trained_on(read: Callable[..., Any], tmp_path: Path) -> None:
    path = write(tmp_path / "assay.csv", ASSAY)
    assert read(path) == ("Oc1ccccc1", "CC1CC1")
    assert read(path, smiles_column="scaffold") == ("c1ccccc1", "C1CC1")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("comma.csv", "id,SMILES,x\n1,CCO,2\n2,CN,3\n"),
        ("semicolon.csv", "id;Smiles;x\n1;CCO;2,5\n2;CN;3,5\n"),
        ("tab.csv", "id\tcanonical_smiles\tx\n1\tCCO\t2\n2\tCN\t3\n"),
        ("tab.tsv", "id\tCanonical SMILES\tx\n1\tCCO\ta,b\n2\tCN\tc,d\n"),
        ("upper.CSV", "id,smi\n1,CCO\n2,CN\n"),
        ("mark.csv", "\ufeffsmiles,x\nCCO,2\nCN,3\n"),
        ("mark.smi", "\ufeffCCO\nCN\n"),
        ("quoted.csv", '"x, y","smiles"\n"a,b","CCO"\n"c;d\n\te","CN"\n'),
        ("index.csv", ",structure\n0,CCO\n1,CN\n"),
        ("return.csv", "smiles,x\rCCO,2\rCN,3\r"),
        ("exact.csv", "canonical_smiles,smiles,iso_smiles\nC,CCO,C\nC,CN,C\n"),
        ("run.csv", "step,group,sample,reward\n1,0,CCO,.5\n1,1,CN,.25\n"),
        ("one.csv", "CCO\nCN\n"),
        ("one_named.csv", "Structure\nCCO\nCN\n"),
        ("bare.csv", "CHEMBL1,CCO,5.1\nCHEMBL2,CN,6.2\n"),
        ("bare.tsv", "CCO\tethanol\nCN\tamine\n"),
        ("header.smi", "SMILES Name\nCCO ethyl alcohol\nCN amine\n"),
        ("header_one.smi", "SMILES\nCCO ethyl alcohol\nCN\n"),
        ("last.smi", "name\tsmiles\nethyl alcohol\tCCO\namine\tCN\n"),
        ("words.txt", "id smiles\n1 CCO\n2 CN\n"),
        ("table.txt", "id,smiles\n1,CCO\n2,CN\n"),
        ("names.smi", "CCO\tethyl alcohol\nCN amine\n"),
    ],
)
def test_the_column_is_found(name: str, text: str, tmp_path: Path) -> None:
    found = read_smiles(write(tmp_path / name, text))
    assert (found.smiles, found.broken) == (("CCO", "CN"), ())


def test_an_empty_cell_in_quotes_is_a_broken_molecule_and_a_blank_line_none(tmp_path: Path) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([["smiles"], ["CCO"], [""], ["CN"], [""]])
    for name, content, broken in (("written.csv", text.getvalue(), [3, 5]), ("blank.csv", "smiles\nCCO\n\nCN\n  \n", [])):
        found = read_smiles(write(tmp_path / name, content), max_broken=0.5)
        assert found.smiles == ("CCO", "CN")
        assert [number for number, _ in found.broken] == broken


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scaffold,ligand,pIC50\nC1CC1,CCO,5.1\n", "(columns 'scaffold': 'C1CC1', 'ligand': 'CCO', 'pIC50': '5.1')"),
        ("scaffold;ligand\nC1CC1;CCO\n", "(columns 'scaffold': 'C1CC1', 'ligand': 'CCO')"),
        ("canonical_smiles,isosmiles\nCO,CCO\n", "several columns have names of SMILES"),
        ("smiles,smiles\nCO,CCO\n", "several columns have names of SMILES"),
        ("structure,x\nbenzene,1\nethanol,2\n", "no column has a usual name of SMILES"),
        ("structure,molecule\nC1CC1,CCO\nC,CN\n", "no column has a usual name of SMILES"),
        (
            "C1CC1,CCO\nC1CCC1,CN\n",
            "there is no header, and several columns parse as molecules; name it with smiles_column=NUMBER (columns 1: 'C1CC1'",
        ),
        ("C,1\nN,2\nO,3\n", "there is no header, and no column parses as molecules"),
        ("C,group\n1,CCO\n2,CCN\n", "no column has a usual name of SMILES; name it with smiles_column=NAME (columns 'C': '1'"),
        ("name,formula\na,CO\nb,CN\n", "no column has a usual name of SMILES"),
    ],
)
def test_an_uncertain_column_is_refused_with_the_columns(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no column that is certainly of SMILES") as caught:
        read_smiles(write(tmp_path / "a.csv", text), max_broken=1.0)
    assert said in str(caught.value)
    assert "smiles_column" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_column_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "Scaffold;Ligand;pIC50\nC1CC1;CCO;5,1\nC1CC1;CN;6,2\n")
    assert read_smiles(path, smiles_column="Ligand").smiles == ("CCO", "CN")
    assert read_smiles(path, smiles_column="ligand").smiles == ("CCO", "CN")
    assert read_smiles(path, smiles_column="2").smiles == ("CCO", "CN")
    with pytest.raises(ValueError, match=r"smiles_column: 'ligands' is no column of .*mean 'Ligand'\? \(columns 'Scaffold'"):
        read_smiles(path, smiles_column="ligands")
    for wrong in ("", "4", "0"):
        with pytest.raises(ValueError, match="smiles_column: "):
            read_smiles(path, smiles_column=wrong)
    bare = write(tmp_path / "b.csv", "C1CC1,CCO\nC1CCC1,CN\n")
    assert read_smiles(bare, smiles_column="2").smiles == ("CCO", "CN")
    spaced = write(tmp_path / "c.smi", "scaffold ligand\nC1CC1 CCO\nC1CC1 CN\n")
    assert read_smiles(spaced, smiles_column="ligand").smiles == ("CCO", "CN")


def test_a_number_is_that_of_a_column_unless_a_header_has_it(tmp_path: Path) -> None:
    bare = write(tmp_path / "a.csv", "2,CCO,5.1\n3,CN,6.2\n")
    assert read_smiles(bare, smiles_column="2").smiles == ("CCO", "CN")  # 2 is also a value of the first column
    headed = write(tmp_path / "b.csv", "0,1\nCCO,5.1\nCN,6.2\n")
    assert read_smiles(headed, smiles_column="0").smiles == ("CCO", "CN")
    with pytest.raises((ValueError, TypeError), match="smiles_column"):  # TypeError: the beartype run
        read_smiles(bare, smiles_column=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("read", READERS)
def test_text_outside_ascii_is_a_broken_line(read: Callable[..., Any], tmp_path: Path) -> None:
    path = write(tmp_path / "a.smi", "CCO\nCC\u041e\nCN name \u00e9\nC\x00\n")
    assert read(path, max_broken=0.5) == ("CCO", "CN")


def test_a_first_line_that_is_no_molecule_of_a_plain_list_is_told(tmp_path: Path) -> None:
    found = read_smiles(write(tmp_path / "a.csv", "CFC\nCCO\nCN\n"), max_broken=0.5)
    assert (found.smiles, found.broken) == (("CCO", "CN"), ((1, "CFC"),))


def test_a_long_file_is_read_to_its_end(tmp_path: Path) -> None:
    rows = "".join(f'"{k}\n{k}",{"C" * (k % 7 + 1)}\n' for k in range(300))
    found = read_smiles(write(tmp_path / "a.csv", f"note,smiles\n{rows}"))
    assert found.smiles == tuple("C" * (k % 7 + 1) for k in range(300))


@pytest.mark.parametrize("load", [load_molecules, load_smiles])
def test_the_cache_knows_the_column(load: Callable[..., Any], tmp_path: Path) -> None:
    path, cache = write(tmp_path / "assay.csv", ASSAY), tmp_path / "cache"
    assert load(path, cache_dir=cache).smiles == ("Oc1ccccc1", "CC1CC1")
    assert load(path, cache_dir=cache, smiles_column="scaffold").smiles == ("c1ccccc1", "C1CC1")
    assert load(path, cache_dir=cache).smiles == ("Oc1ccccc1", "CC1CC1")


@pytest.mark.parametrize("command", ["pretrain", "pretrain-smiles"])
def test_the_commands_that_train_take_the_option(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv", "scaffold,ligand\nC1CC1,CCO\nC1CC1,CN\n")
    options = [command, "--data=a.csv", "--output_dir=run", "--evaluation_samples=0", "--pretrain.max_steps=1"]
    assert main(options) == 2
    assert "(columns 'scaffold': 'C1CC1', 'ligand': 'CCO')" in capsys.readouterr().err
    assert main([*options, "--smiles_column=ligand", "--max_bytes=100", "--pretrain.batch_size=2"]) == 0
    assert "smiles_column: ligand" in (tmp_path / "run/config.yaml").read_text()


def test_evaluate_takes_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv", "graph,ligand\nC1CC1,CCO\nC1CC1,CN\n")
    write(tmp_path / "b.csv", "core,whole\nC1CC1,CCO\nC1CCC1,CF\n")
    assert main(["evaluate", "a.csv", "--smiles_column=ligand", "--reference=b.csv"]) == 2
    assert "name it with reference_smiles_column=NAME (columns 'core': 'C1CC1', 'whole': 'CCO')" in capsys.readouterr().err
    columns = ["--smiles_column=ligand", "--reference_smiles_column=whole"]
    assert main(["evaluate", "a.csv", "--reference=b.csv", "--out=o.json", *columns]) == 0
    assert '"novel": 0.5' in (tmp_path / "o.json").read_text()
