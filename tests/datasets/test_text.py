"""Text files, the grammar of sentences, blanks and corruption."""

from __future__ import annotations

import gzip
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.datasets.text import (
    GRAMMAR,
    LabelledTextDataset,
    TextDataset,
    corrupt_lines,
    is_sentence,
    mask_lines,
    read_lines,
    sentences,
    text_dataset,
)
from discrete_grpo.domains.tokenizer import MASK, PAD, SMILES, Tokenizer
from discrete_grpo.training.pretrain import batches

LINES = ["the cat", "a dog", "an owl sat"]


def loaded(path: Path, **options: Any) -> TextDataset:
    """The lines of a file as a set, as the recipe reads them."""
    found = read_lines(path)
    return text_dataset([line for _, line in found], name=str(path), numbers=[k for k, _ in found], **options)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["a.txt", "a.log", "a", "a.txt.gz"])
def test_any_text_file_gives_its_lines_and_their_numbers(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    text = "the cat\n\n  a dog \r\nÄ owl sat".encode()
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    assert read_lines(path) == [(1, "the cat"), (3, "  a dog "), (4, "Ä owl sat")]


def test_a_smiles_file_gives_first_words(tmp_path: Path) -> None:
    path = tmp_path / "a.smi"
    path.write_text("CCO ethanol\nCCl\tchloride\n")
    data = loaded(path, pattern=SMILES)
    assert data.lines == ("CCO", "CCl")
    assert data.sizes.tolist() == [3, 2]
    assert data.tokenizer.tokens == ("C", "Cl", "O")


def test_a_data_set_gives_padded_ids_and_the_lines_back() -> None:
    data = text_dataset(LINES)
    assert (len(data), data.block_size, data.tokens.dtype) == (3, 10, torch.uint8)
    rows = torch.tensor([1, 0])
    ids = data.batch(rows)
    assert (ids.dtype, ids.shape) == (torch.int64, (2, 7))
    assert [data.tokenizer.decode(row) for row in ids.tolist()] == ["a dog", "the cat"]
    assert ids[0].tolist()[5:] == [PAD, PAD]
    assert MASK not in data.tokens
    assert sorted(torch.cat(list(batches(data.sizes, 2, 0, 0))).tolist()) == [0, 1, 2]
    many = text_dataset(["".join(chr(0x4E00 + k) for k in range(300))])
    assert (many.tokens.dtype, int(many.tokens.max())) == (torch.int16, 303)


def test_long_lines_are_an_error_or_split(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abc\n\nabcdefgh\n")
    with pytest.raises(ValueError, match="line 3 has 8 tokens, expected 1 to 3"):
        loaded(path, block_size=3)
    data = loaded(path, block_size=3, long_lines="split")
    assert data.lines == ("abc", "abc", "def", "gh")
    assert data.sizes.tolist() == [3, 3, 3, 2]
    with pytest.raises(ValueError, match="long_lines: 'drop', expected error or split"):
        text_dataset(["a"], long_lines="drop")  # type: ignore[arg-type]


def test_errors_name_the_file_the_line_and_the_token(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(FileNotFoundError, match=r"a\.txt' is no file"):
        read_lines(path)
    path.write_text("\n \n")
    with pytest.raises(ValueError, match=r"a\.txt' is empty, expected at least one line of text"):
        read_lines(path)
    path.write_text("ab\nabx\n")
    with pytest.raises(ValueError, match=r"a\.txt' line 2: 'abx' has the token 'x', expected one of the alphabet's 2") as error:
        loaded(path, tokenizer=Tokenizer(("a", "b")))
    assert "\n" not in str(error.value)
    path.write_text("CC\nC O\n")
    with pytest.raises(ValueError, match=r"^data: .*a\.txt' line 2: 'C O' has ' ' at position 1, where no token fits$"):
        loaded(path, pattern=SMILES)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="cannot be read as text, expected UTF-8"):
        read_lines(path)
    (tmp_path / "b.gz").write_bytes(b"plain")
    with pytest.raises(ValueError, match="gzipped only if it ends in"):
        read_lines(tmp_path / "b.gz")
    with pytest.raises(ValueError, match="'text' holds no text"):
        text_dataset([])
    with pytest.raises(ValueError, match="line 2 has 0 tokens, expected 1 to 1"):
        text_dataset(["a", ""])


def test_labels_go_with_their_texts() -> None:
    data = LabelledTextDataset(text_dataset(LINES), torch.tensor([True, False, True]))
    batch = data.batch(torch.tensor([2, 1])).to("cpu")
    assert batch.real.tolist() == [1.0, 0.0]
    assert data.texts.tokenizer.decode(batch.tokens[1].tolist()) == "a dog"
    assert (len(data), data.sizes.tolist()) == (3, [7, 5, 10])


# ---------------------------------------------------------------- blanks and corruption


@pytest.mark.parametrize("span", [1, 3, 50])
@pytest.mark.parametrize("rate", [0.01, 0.4, 1.0])
def test_blanks_are_a_share_of_the_line_and_the_rest_is_left(rate: float, span: int) -> None:
    lines = sentences(50)
    masked = mask_lines(lines, rate, seeded(0), span=span)
    for line, prompt in zip(lines, masked, strict=True):
        assert len(prompt) == len(line)
        assert prompt.count("_") == max(1, round(rate * len(line)))
        assert all(p in (c, "_") for p, c in zip(prompt, line, strict=True))
    assert masked == mask_lines(lines, rate, seeded(0), span=span)
    assert masked != mask_lines(lines, rate, seeded(1), span=span) or rate == 1.0 or span == 50


def test_blanks_come_in_runs() -> None:
    ones, runs = (mask_lines(["x" * 40] * 200, 0.3, seeded(0), span=span) for span in (1, 6))
    assert sum(len(re.findall("_+", m)) for m in runs) < 0.4 * sum(len(re.findall("_+", m)) for m in ones)
    assert mask_lines(["CClBr"], 0.67, seeded(0), pattern=SMILES)[0] in ("__Br", "_Cl_", "C__")


def test_blanks_out_of_range_are_refused() -> None:
    for rate in (0.0, 1.1):
        with pytest.raises(ValueError, match=f"rate: {rate}, expected more than 0 and at most 1"):
            mask_lines(LINES, rate)
    with pytest.raises(ValueError, match="span: 0, expected at least 1"):
        mask_lines(LINES, 0.5, span=0)
    with pytest.raises(ValueError, match="'a_b' has the blank '_' in it already"):
        mask_lines(["a_b"], 0.5)


def test_corrupted_lines_differ_keep_their_length_and_stay_in_the_alphabet() -> None:
    lines = sentences(300)
    made = corrupt_lines(lines, seeded(0))
    assert len(made) == 300
    changed = [sum(a != b for a, b in zip(line, fake, strict=True)) for line, fake in zip(lines, made, strict=True)]
    assert min(changed) >= 1
    assert sum(n <= 2 for n in changed) > 60  # from little
    assert sum(n >= 8 for n in changed) > 20  # to much
    assert set("".join(made)) <= set("".join(lines))
    assert sum(sorted(a) == sorted(b) for a, b in zip(lines, made, strict=True)) > 30  # some are only swaps
    assert made == corrupt_lines(lines, seeded(0)) != corrupt_lines(lines, seeded(1))
    assert corrupt_lines(["aaa", "aa", "a"], seeded(0)) == []
    with pytest.raises(ValueError, match=r"max_rate: 0, expected more than 0 and at most 1"):
        corrupt_lines(lines, max_rate=0)


# ---------------------------------------------------------------- sentences


def expand(symbol: str) -> list[str]:
    """Every text of a symbol, by brute force."""
    texts = []
    for choice in GRAMMAR[symbol]:
        parts = re.split(r"\{(\w+)\}", choice)
        options = [expand(part) if k % 2 else [part] for k, part in enumerate(parts)]
        texts += ["".join(words) for words in itertools.product(*options)]
    return texts


def test_every_sentence_is_one_by_enumeration_and_by_expression() -> None:
    everything = set(expand("line"))
    assert len(everything) > 50_000
    made = sentences(2000, 3)
    assert len(set(made)) == 2000
    assert set(made) <= everything
    assert all(map(is_sentence, made))
    assert max(map(len, made)) <= 40
    fakes = [fake for fake in corrupt_lines(made, seeded(0)) if fake not in everything]
    assert len(fakes) > 1900
    assert not any(map(is_sentence, fakes))


@pytest.mark.parametrize("text", ["the baker eat warm bread", "an baker sleeps at home", "two baker sleep at home", "", None])
def test_agreement_is_part_of_the_grammar(text: str | None) -> None:
    assert not is_sentence(text)
    assert is_sentence("the baker eats warm bread")


def test_held_out_sentences_never_meet_the_others() -> None:
    train = set(sentences(3000, 0)) | set(sentences(3000, 1))
    held = set(sentences(300, 0, held_out=True)) | set(sentences(300, 9, held_out=True))
    assert not train & held
    assert sentences(5, 4) == sentences(5, 4) != sentences(5, 5)
    with pytest.raises(ValueError, match="count: 0, expected at least 1"):
        sentences(0)
    with pytest.raises(ValueError, match=r"count: 9, expected at most 0 \(sentences of at most 12 characters\)"):
        sentences(9, max_length=12)


def test_more_sentences_than_there_are_is_told_at_once() -> None:
    def every(symbol: str) -> Iterator[str]:
        for choice in GRAMMAR[symbol]:
            parts = re.split(r"\{(\w+)\}", choice)
            pools = [[part] if k % 2 == 0 else list(every(part)) for k, part in enumerate(parts)]
            yield from map("".join, itertools.product(*pools))

    there = sum(len(line) <= 40 for line in set(every("line")))
    with pytest.raises(ValueError, match=rf"count: 1000000, expected at most {there} \(sentences of at most 40 characters\)"):
        sentences(1_000_000)
    with pytest.raises(ValueError, match=r"count: 40, expected no more than readily found: \d+ that are held out, among 45"):
        sentences(40, max_length=22, held_out=True)


def test_an_alphabet_of_more_than_fifteen_bits() -> None:
    words = [f"w{k}" for k in range(33_000)]
    data = text_dataset(words, pattern=r"\w+|\s")
    assert data.lines[-1] == words[-1]
    assert int(data.tokens.max()) == len(data.tokenizer) - 1


@pytest.mark.parametrize("block_size", [0, -1, 2.5])
def test_a_block_size_that_is_none_is_refused(block_size: Any) -> None:
    with pytest.raises(ValueError, match=r"^block_size: .*, expected .*at least 1$"):
        text_dataset(["abc"], block_size=block_size)
