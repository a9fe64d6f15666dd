"""Alphabets: cutting, round trips, errors that name the token."""

from __future__ import annotations

import gzip

import pytest
import torch

from discrete_grpo.datasets.enumeration import enumerated_smiles
from discrete_grpo.datasets.text import mask_lines
from discrete_grpo.domains.tokenizer import (
    BOS,
    EOS,
    MASK,
    NUM_SPECIAL,
    PAD,
    SMILES,
    Property,
    TokenBatch,
    Tokenizer,
    matches,
    pad_left,
)
from tests.shared_data import SHARED

ZINC = SHARED / "zinc250k_test.smi.gz"


def test_special_ids_stand_apart() -> None:
    tokenizer = Tokenizer.of(["CCl", "<M>"])
    assert {PAD, BOS, EOS, MASK} == set(range(NUM_SPECIAL))
    assert min(tokenizer.encode("CCl<M>")) == NUM_SPECIAL
    assert len(tokenizer) == NUM_SPECIAL + 5  # C, l, <, M, >
    assert tokenizer.decode([BOS, *tokenizer.encode("lC"), EOS, PAD]) == "lC"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("C[C@@H](Br)Cl", ["C", "[C@@H]", "(", "Br", ")", "Cl"]),
        ("c1ccc2%10c1.C%10", ["c", "1", "c", "c", "c", "2", "%10", "c", "1", ".", "C", "%10"]),
        ("[O-]C(=O)/C=C\\[NH3+]", ["[O-]", "C", "(", "=", "O", ")", "/", "C", "=", "C", "\\", "[NH3+]"]),
    ],
)
def test_smiles_are_cut_into_atoms_bonds_and_rings(text: str, tokens: list[str]) -> None:
    tokenizer = Tokenizer.of([text], SMILES)
    assert tokenizer.split(text) == tokens
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_bundled_molecule_survives_the_round_trip() -> None:
    texts = enumerated_smiles()
    tokenizer = Tokenizer.of(texts, SMILES)
    assert all(tokenizer.decode(tokenizer.encode(t)) == t for t in texts)


@pytest.mark.skipif(not ZINC.is_file(), reason="the shared data is not here")
def test_every_zinc_molecule_survives_the_round_trip() -> None:
    texts = gzip.decompress(ZINC.read_bytes()).decode().split()
    tokenizer = Tokenizer.of(texts, SMILES)
    assert all(tokenizer.decode(tokenizer.encode(t)) == t for t in texts)
    assert "[C@@H]" in tokenizer.tokens
    assert "[NH+]" in tokenizer.tokens


def test_what_is_no_token_is_named() -> None:
    tokenizer = Tokenizer.of(["CCO"], SMILES)
    with pytest.raises(ValueError, match=r"text: 'CCN' has the token 'N', expected one of the alphabet's 2"):
        tokenizer.encode("CCN")
    with pytest.raises(ValueError, match=r"text: 'C O' has ' ' at position 1, where no token fits"):
        tokenizer.encode("C O")
    assert tokenizer.knows("OC")
    assert not tokenizer.knows("N")


@pytest.mark.parametrize(
    ("tokens", "pattern", "said"),
    [((), ".", "tokens: "), (("a", ""), ".", "tokens: "), (("a", "a"), ".", "'a' is given twice"), (("a",), "(", "no regular")],
)
def test_an_impossible_alphabet_is_refused(tokens: tuple[str, ...], pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Tokenizer(tokens, pattern)


def test_prompts_are_padded_in_front_and_scales_are_positive() -> None:
    assert pad_left([[], [4, 5]]).tolist() == [[PAD, PAD], [4, 5]]
    assert pad_left([]).shape == (0, 0)
    assert pad_left([[1]]).dtype == torch.long
    with pytest.raises(ValueError, match="std: 0"):
        Property("x", 0.0, 0.0)


def test_groups_in_an_expression_make_no_difference() -> None:
    tokenizer = Tokenizer.of(["aab"], r"(a)+|b")
    assert tokenizer.tokens == Tokenizer.of(["aab"], r"(?:a)+|b").tokens == ("aa", "b")
    assert mask_lines(["aab"], 1.0, pattern=r"(a)+|b") == ["__"]
    assert matches("aab", r"(a)+|b")
    assert not matches("aac", r"(a)+|b")


def test_a_batch_moves_with_its_conditions() -> None:
    whole = TokenBatch(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 5))
    moved = whole.to("meta")
    for name in ("tokens", "prompt", "properties"):
        before, after = getattr(whole, name), getattr(moved, name)
        assert (after.device.type, after.shape, after.dtype) == ("meta", before.shape, before.dtype)
    alone = TokenBatch(whole.tokens).to("meta")
    assert (alone.prompt, alone.properties) == (None, None)
