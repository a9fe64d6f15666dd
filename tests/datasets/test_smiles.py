"""Molecule files as token sequences: conditions, ragged storage, the cache, errors."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from rdkit import Chem

from discrete_grpo.datasets.molecules import property_scales
from discrete_grpo.datasets.smiles import alphabet, load_smiles, parse_lines, smiles_from_lines, token_dataset
from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains.tokenizer import EOS, PAD, Tokenizer
from discrete_grpo.importers.molgpt import StartedTokenizer

LINES = ["C[C@H](N)c1ccccc1", "OCC", "C1CC1C[NH3+]", "broken(", "c1ccncc1"]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_molecules_come_with_scaffolds_and_descriptors(tmp_path: Path) -> None:
    data = load_smiles(write(tmp_path / "m.smi", LINES), properties=("MolLogP", "TPSA"), max_broken=0.5)
    assert data.smiles == ("C[C@H](N)c1ccccc1", "CCO", "[NH3+]CC1CC1", "c1ccncc1")
    assert data.scaffolds == ("c1ccccc1", "", "C1CC1", "c1ccncc1")
    assert data.broken == ((4, "broken("),)
    mols = [Chem.MolFromSmiles(s) for s in data.smiles]
    expected = [[molecule_properties.crippen_logp(m), molecule_properties.descriptor("TPSA")(m)] for m in mols]
    torch.testing.assert_close(data.values, torch.tensor(expected))


def test_batches_are_the_texts_with_eos_and_prompts_in_front() -> None:
    data = smiles_from_lines(enumerate(LINES[:3], 1), "here", properties=("MolWt",))
    tokenizer = alphabet(data)
    scales = property_scales(data.properties, data.values)
    found = token_dataset(data.smiles, tokenizer, prompts=data.scaffolds, values=data.values, properties=scales)
    assert len(found) == 3
    assert found.sizes.tolist() == [len(tokenizer.encode(s)) + 1 for s in data.smiles]
    batch = found.batch(torch.tensor([2, 1, 0]))
    for row, m in enumerate((2, 1, 0)):
        ids = [k for k in batch.tokens[row].tolist() if k != PAD]
        assert ids == [*tokenizer.encode(data.smiles[m]), EOS]
        assert batch.tokens[row, : len(ids)].tolist() == ids
        assert batch.prompt is not None
        prompt = tokenizer.encode(data.scaffolds[m])
        assert batch.prompt[row].tolist() == [PAD] * (batch.prompt.shape[1] - len(prompt)) + prompt
    weights = torch.tensor([molecule_properties.molar_mass(Chem.MolFromSmiles(s)) for s in data.smiles])
    assert batch.properties is not None
    torch.testing.assert_close(batch.properties[:, 0], ((weights - weights.mean()) / weights.std(correction=0))[[2, 1, 0]])


def test_without_conditions_a_batch_has_none() -> None:
    data = smiles_from_lines([(1, "CCO")], "here", scaffolds=False)
    batch = token_dataset(data.smiles, alphabet(data)).batch(torch.tensor([0, 0]))
    assert batch.prompt is None
    assert batch.properties is None
    assert len(batch) == 2


def test_the_cache_gives_the_same_and_depends_on_what_was_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "m.smi", LINES)
    options = {"max_broken": 0.5, "cache_dir": tmp_path / "cache"}
    first, again = (load_smiles(path, properties=("TPSA",), **options) for _ in range(2))  # type: ignore[arg-type]
    assert (first.smiles, first.scaffolds, first.broken) == (again.smiles, again.scaffolds, again.broken)
    assert torch.equal(first.values, again.values)
    other = load_smiles(path, properties=("MolWt",), **options)  # type: ignore[arg-type]
    assert not torch.equal(first.values, other.values)
    chains = load_smiles(write(tmp_path / "c.smi", ["CCO"]), scaffolds=False, **options)  # type: ignore[arg-type]
    assert load_smiles(tmp_path / "c.smi", scaffolds=False, **options).scaffolds == chains.scaffolds == ("",)  # type: ignore[arg-type]
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_a_broken_cell_of_several_lines_survives_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_bytes(b'smiles,name\nCCO,a\n"bad\nx",b\n"no\tgood\r\n",c\n"(\ty",d\nCC,e\n')
    first, again = (load_smiles(path, max_broken=0.9, cache_dir=tmp_path / "cache") for _ in range(2))
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert first.broken == again.broken == ((4, "bad x"), (6, "no good"), (7, "( y"))
    assert first.smiles == again.smiles == ("CCO", "CC")


def test_no_properties_have_no_scales_and_no_warning() -> None:
    data = smiles_from_lines([(1, "CCO"), (2, "C")], "here")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert property_scales(data.properties, data.values) == ()


def test_a_constant_property_is_standardised_to_zero() -> None:
    (scale,) = property_scales(("temperature",), torch.full((400, 1), 298.15))
    assert scale.std == 1.0
    assert abs((298.15 - scale.mean) / scale.std) < 1e-4


def test_a_tokenizer_that_begins_every_text_has_no_prompts_to_encode() -> None:
    data = token_dataset(["CC", "CO"], cast(Any, StartedTokenizer(Tokenizer(("C", "O")), "C")))
    assert data.batch(torch.tensor([0, 1])).prompt is None


def test_bad_files_and_descriptors_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is no file"):
        load_smiles(tmp_path / "none.smi")
    with pytest.raises(ValueError, match="holds no molecules"):
        load_smiles(write(tmp_path / "empty.smi", []))
    with pytest.raises(ValueError, match=r"1 of 5 lines that are no molecule .* line 4: 'broken\('"):
        load_smiles(write(tmp_path / "m.smi", LINES))
    with pytest.raises(ValueError, match="properties: 'logp' is no RDKit descriptor; did you mean 'MolLogP'"):
        load_smiles(tmp_path / "m.smi", properties=("logp",))
    with pytest.raises(ValueError, match="texts: none given"):
        token_dataset([], alphabet(smiles_from_lines([(1, "C")], "here")))


def test_a_dative_bond_is_a_broken_line(tmp_path: Path) -> None:
    data = load_smiles(write(tmp_path / "m.smi", ["CCO"] * 30 + ["[NH3][Pt]([NH3])(Cl)Cl"]), cache_dir=None)
    assert (len(data.smiles), data.broken) == (30, ((31, "[NH3][Pt]([NH3])(Cl)Cl"),))
    assert alphabet(data).tokens == ("C", "O")


def test_scales_are_those_of_the_molecules_that_have_the_property(tmp_path: Path) -> None:
    lines = ["CCO", "CCN", "C[Pt](C)(C)C", "c1ccccc1"]
    data = load_smiles(write(tmp_path / "m.smi", lines), properties=("MinPartialCharge", "MolWt"), cache_dir=None)
    assert data.values.isnan().tolist() == [[k == 2, False] for k in range(4)]
    charge, weight = property_scales(data.properties, data.values)
    known = data.values[[0, 1, 3], 0].double()
    assert (charge.mean, charge.std) == pytest.approx((float(known.mean()), float(known.std(correction=0))))
    assert weight.mean == pytest.approx(float(data.values[:, 1].double().mean()))
    with pytest.raises(ValueError, match="properties: MinPartialCharge is finite for none of 1 molecules"):
        property_scales(("MinPartialCharge",), data.values[2:3, :1])


def test_a_cache_folder_that_cannot_be_made_is_named_before_the_file_is_parsed(tmp_path: Path) -> None:
    path = write(tmp_path / "m.smi", ["CCO"])
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"^cache_dir: .*inner cannot be made \(Not a directory\), expected a folder to write in$"):
        load_smiles(path, cache_dir=tmp_path / "file" / "inner")
    with pytest.raises(ValueError, match=r"^cache_dir: .*file cannot be made \(File exists\), expected a folder to write in$"):
        load_smiles(path, cache_dir=tmp_path / "file")


def test_a_descriptor_that_is_no_finite_number_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discrete_grpo.datasets.smiles.descriptor", lambda name: lambda mol: math.inf if name == "far" else 2.0)
    ((far, near),) = parse_lines([(1, "CO")], ("far", "near"), False)[2]
    assert math.isnan(far)
    assert near == 2.0
