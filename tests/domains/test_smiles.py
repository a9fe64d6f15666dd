"""Parsing of SMILES: which texts are valid molecules."""

import pytest

from discrete_grpo.domains.molecules import Vocabulary, encode
from discrete_grpo.domains.smiles import LONGEST, canonical_samples, parse, parse_smiles, to_smiles


def test_parse_wants_one_connected_molecule() -> None:
    assert parse("C1.C1") is not None  # a dot, and yet one piece: ethane
    assert [parse(s) for s in ("", "C.C", "C C", "CCO name", "c1cccc1", None)] == [None] * 6
    with pytest.raises((ValueError, TypeError), match="sample"):  # TypeError: the beartype run
        parse(3)  # type: ignore[arg-type]


def test_text_too_long_to_canonicalise_is_no_molecule() -> None:
    assert parse_smiles("C" * LONGEST) is not None
    assert parse_smiles("C" * (LONGEST + 1)) is None
    assert canonical_samples(["C" * 10**6, "CC"]) == [None, "CC"]


@pytest.mark.parametrize("text", ["CC\u041e", "C\x00", "\x01CC", "CC\u200b", "\u00e9CC", "CC\x1f", "CC\t", " CC"])
def test_text_that_is_not_printable_ascii_is_no_molecule(text: str) -> None:
    assert canonical_samples([text, "CC"]) == [None, "CC"]  # RDKit drops such characters and reads the rest
    assert parse_smiles(text) is None
    with pytest.raises(ValueError, match=r"smiles\[0\]: .*, expected a SMILES string that RDKit parses"):
        encode([text], Vocabulary(("C",)))


def test_a_molecule_keeps_what_its_smiles_leaves_out() -> None:
    mol = parse("[2H]C[C@H](F)[CH2:1]Cl")
    assert mol is not None
    whole = to_smiles(mol)
    assert to_smiles(mol, stereo=False) == "CC(F)CCl"
    assert to_smiles(mol) == whole  # parsed molecules are shared
