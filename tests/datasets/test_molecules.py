"""Molecule files, packed data sets, statistics, downloads."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.datasets import downloads
from discrete_grpo.datasets.downloads import Download, download
from discrete_grpo.datasets.molecules import MoleculeStatistics, dataset_from_smiles, load_molecules, statistics
from discrete_grpo.datasets.reading import read_smiles
from discrete_grpo.datasets.smiles import load_smiles
from discrete_grpo.domains.molecules import decode, encode
from tests.shared_data import SHARED

SMILES = ["CCO", "c1ccccc1", "C[N+](C)(C)C", "N#CC=O", "F[C@H](Cl)Br"]


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.smi", "CCO ethanol\nCN\tname\n\n"),
        ("a.txt", "CCO\r\nCN"),
        ("a.smi.gz", "CCO\nCN\n"),
        ("a.csv", "id,SMILES,logP\n1,CCO,2\n2,CN,3\n"),
        ("a.csv.gz", 'smiles,x\n"CCO\n",2\n"CN\n",3\n'),
        ("b.csv", "CCO,2\nCN,3\n"),
        ("c.csv", "structure,x\nCCO,2\nCN,3\n"),
    ],
)
def test_every_kind_of_file(tmp_path: Path, name: str, text: str) -> None:
    found = read_smiles(write(tmp_path / name, text))
    assert (found.smiles, found.broken) == (("CCO", "CN"), ())


def test_broken_lines_are_listed_and_fatal_only_above_the_share(tmp_path: Path) -> None:
    path = write(tmp_path / "a.smi", "CCO\nC(\nCN\n\nxyz\n")
    found = read_smiles(path, max_broken=0.5)
    assert found.broken == ((2, "C("), (5, "xyz"))
    message = r"2 of 4 lines that are no molecule \(50\.0%, max_broken 49\.0%\): line 2: 'C\('; line 5: 'xyz'"
    for read in (read_smiles, load_molecules):
        with pytest.raises(ValueError, match=message):
            read(path, max_broken=0.49)
    many = write(tmp_path / "b.smi", "C\n" + "(\n" * 9)
    with pytest.raises(ValueError, match="line 6: ") as caught:
        read_smiles(many)
    assert "line 7" not in str(caught.value)


def test_files_that_cannot_be_read_give_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"path: '.*none\.smi' is no file"):
        load_molecules(tmp_path / "none.smi")
    for name, content, message in [
        ("empty.smi", b"", "holds no molecules"),
        ("blank.csv", b"smiles\n\n", "holds no molecules"),
        ("plain.smi.gz", b"CCO\n", "cannot be read as text"),
        ("cut.smi.gz", gzip.compress(b"CCO\n" * 1000)[:-9], "cannot be read as text"),
        ("binary.smi", b"\xff\xfe\x00", "cannot be read as text"),
        (
            "latin.smi",
            b"CCO\nCC caf\xe9\n",
            r"cannot be read as text, expected UTF-8, gzipped only if it ends in \.gz: line 2: .* byte 0xe9 in position 6",
        ),
        ("a.sdf", b"CCO\n", "expected a file ending in"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message) as caught:
            load_molecules(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_packed_graphs_equal_encoded_ones(tmp_path: Path) -> None:
    data = load_molecules(write(tmp_path / "a.smi", "\n".join(SMILES)))
    assert data.vocabulary.atoms == ("C", "N", "N+1", "O", "F", "Cl", "Br")
    assert (data.graphs.nodes.dtype, data.graphs.pairs.dtype, data.sizes.dtype) == (torch.uint8, torch.uint8, torch.int64)
    expected = encode(SMILES, data.vocabulary)
    found = data.batch(range(len(data)))
    assert torch.equal(found.nodes, expected.nodes)
    assert torch.equal(found.edges, expected.edges)
    assert torch.equal(found.mask, expected.mask)
    assert data.batch([0, 3]).num_nodes == 4  # cropped to the largest asked for, not to six
    assert decode(data.batch(torch.tensor([3, 0])), data.vocabulary) == ["N#CC=O", "CCO"]
    assert data.smiles[4] == "FC(Cl)Br"


def test_size_limits_shrink_padding_and_vocabulary(tmp_path: Path) -> None:
    data = load_molecules(write(tmp_path / "a.smi", "\n".join(SMILES)), min_atoms=4, max_atoms=5)
    assert data.smiles == ("C[N+](C)(C)C", "N#CC=O", "FC(Cl)Br")
    assert data.num_nodes == 5
    assert data.vocabulary.atoms == ("C", "N", "N+1", "O", "F", "Cl", "Br")
    small = load_molecules(tmp_path / "a.smi", max_atoms=3)
    assert (small.vocabulary.atoms, small.smiles, small.graphs.nodes.tolist()) == (("C", "O"), ("CCO",), [0, 0, 1])
    with pytest.raises(ValueError, match=r"^min_atoms 7: no molecule is left, as those of .*a.smi have up to 6 heavy atoms$"):
        load_molecules(tmp_path / "a.smi", min_atoms=7)


@pytest.mark.parametrize("load", [load_molecules, load_smiles])
@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: b"", lambda data: data[:-40] + bytes(40)])
def test_a_damaged_cache_is_made_again(load: Callable[..., Any], damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = write(tmp_path / "a.smi", "CCO\nCN\n" + "CC\n" * 30)
    first = load(path, cache_dir=tmp_path / "cache")
    (cached,) = (tmp_path / "cache").iterdir()
    whole = cached.read_bytes()
    cached.write_bytes(damage(whole))
    with pytest.warns(RuntimeWarning, match=f"{cached.name}: damaged, and made again"):
        assert load(path, cache_dir=tmp_path / "cache").smiles == first.smiles
    assert cached.read_bytes() == whole


def test_cache_gives_the_same_and_follows_the_content(tmp_path: Path) -> None:
    path = write(tmp_path / "a.smi", "CCO\nC(\tx\nCN\n" + "CC\n" * 30)
    cache = tmp_path / "deep" / "cache"
    first = load_molecules(path, cache_dir=cache)
    assert len(list(cache.iterdir())) == 1
    second = load_molecules(path, cache_dir=cache)
    for name in ("nodes", "pairs", "sizes"):
        assert torch.equal(getattr(first.graphs, name), getattr(second.graphs, name))
    for name in ("vocabulary", "smiles", "broken", "name"):
        assert getattr(first, name) == getattr(second, name)
    assert second.broken == ((2, "C("),)
    with pytest.raises(ValueError, match="max_broken"):
        load_molecules(path, max_broken=0.0, cache_dir=cache)
    write(path, "CF\n")
    assert load_molecules(path, cache_dir=cache).smiles == ("CF",)
    assert sorted(p.suffix for p in cache.iterdir()) == [".npz", ".npz"]  # no temporary files


def test_statistics_by_hand() -> None:
    found = statistics(dataset_from_smiles(["CCO", "C#N", "N"], name="three"))
    assert found.node_counts == pytest.approx((0, 1 / 3, 1 / 3, 1 / 3))
    assert found.node_marginal == pytest.approx((3 / 6, 2 / 6, 1 / 6))
    assert found.edge_marginal == pytest.approx((1 / 4, 2 / 4, 0, 1 / 4))  # of CCO's three pairs and CN's one
    assert (found.num_molecules, found.name, found.vocabulary.atoms) == (3, "three", ("C", "N", "O"))
    assert MoleculeStatistics.from_json(json.loads(json.dumps(found.to_json()))) == found
    with pytest.raises(ValueError, match="statistics: fields"):
        MoleculeStatistics.from_json({"name": "x"})


def test_qm9_priors(tmp_path: Path) -> None:
    path = SHARED / "qm9.smi.gz"
    if not path.is_file():
        pytest.skip("no shared data here")
    data = load_molecules(path, cache_dir=tmp_path)
    found = statistics(data)
    assert len(data) == 132_040
    assert data.vocabulary.atoms == ("C", "N", "O", "F")
    assert found.node_marginal == pytest.approx((0.7212, 0.1172, 0.1587, 0.0028), abs=5e-5)
    assert found.edge_marginal == pytest.approx((0.7264, 0.2344, 0.0311, 0.0081), abs=5e-5)


# Downloads -----------------------------------------------------------------------------------------------------------


def test_first_download_is_recorded_and_later_ones_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def retrieve(url: str, *, fname: str, path: Path, **_: object) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / fname).write_text("smiles\nCCO\n")

    monkeypatch.setattr("pooch.retrieve", retrieve)
    monkeypatch.setitem(downloads.DOWNLOADS, "toy", Download("https://example.org/toy.csv", "toy.csv"))
    path = download("toy", tmp_path / "cache")
    record = path.with_name("toy.csv.sha256").read_text().strip()
    assert record in capsys.readouterr().err
    assert len(record) == 64
    assert load_molecules(path).smiles == ("CCO",)
    assert download("toy", tmp_path / "cache") == path
    assert capsys.readouterr().err == ""
    path.write_text("smiles\nCCN\n")
    with pytest.raises(ValueError, match=r"toy\.csv has sha256"):
        download("toy", tmp_path / "cache")
    monkeypatch.setitem(downloads.DOWNLOADS, "toy", Download("https://example.org/toy.csv", "other.csv", "0" * 64))
    with pytest.raises(ValueError, match="expected 0000"):
        download("toy", tmp_path / "cache")


def test_a_failed_download_says_to_pass_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def retrieve(*_: object, **__: object) -> None:
        raise OSError("no route to host\nsecond line")

    monkeypatch.setattr("pooch.retrieve", retrieve)
    with pytest.raises(ConnectionError, match=r"'qm9' could not be fetched .*no route to host\); pass the path") as caught:
        download("qm9", tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"name: 'qm8', expected one of \['qm9', 'zinc250k'\]"):
        download("qm8", tmp_path)


def test_what_no_class_can_stand_for_is_a_broken_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.smi", "CCO\n" * 50 + "CC*\n")
    found = load_molecules(path, cache_dir=None)
    assert (len(found), found.broken) == (50, ((51, "CC*"),))
    with pytest.raises(ValueError, match=r"1 of 51 lines that are no molecule \(2\.0%.*line 51: 'CC\*'"):
        load_molecules(path, max_broken=0.01, cache_dir=None)


def test_molecules_without_heavy_atoms_are_left_out() -> None:
    assert dataset_from_smiles(["[H][H]", "[H+]", "CCO"]).sizes.tolist() == [3]


def test_the_smiles_are_those_of_the_packed_graphs() -> None:
    data = dataset_from_smiles(["[CH3]", "[2H]C([2H])([2H])O", "[13CH3]N", "C[C@H](N)O"])
    assert data.smiles == ("C", "CO", "CN", "CC(N)O")
    assert decode(data.batch(torch.arange(4)), data.vocabulary) == list(data.smiles)


def test_too_many_types_of_atoms_are_named(tmp_path: Path) -> None:
    metals = ("Na", "Fe", "Cu", "Zn", "Co", "Ni", "Mn", "Cr", "Ti", "V", "Sc", "Ca", "K", "Li", "Mg", "Al")
    lines = [f"[{metal}{charge:+d}]" for metal in metals for charge in (*range(-8, 0), *range(1, 10))]
    path = write(tmp_path / "a.smi", "\n".join(lines))
    with pytest.raises(ValueError, match=r"types of atoms: 257, expected at most 256") as caught:
        load_molecules(path, cache_dir=None)
    assert "\n" not in str(caught.value)
