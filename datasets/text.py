"""Text data sets, one sample per line: any text file, or English sentences of a small built-in grammar.

The module also makes prompts with blanks for infilling, and corrupted lines for training a judge. All random functions take a
generator.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.precision import place
from discrete_grpo.datasets.reading import smiles_rows
from discrete_grpo.datasets.text_files import MAX_BYTES, suffix_of, text_lines
from discrete_grpo.domains.tokenizer import CHARACTERS, PAD, Tokenizer, tokens_of

__all__ = [
    "LabelledText",
    "LabelledTextDataset",
    "TextDataset",
    "corrupt_lines",
    "is_sentence",
    "mask_lines",
    "read_lines",
    "sentences",
    "text_dataset",
]

LongLines = Literal["error", "split"]

# Data sets -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextDataset:
    """M texts as token ids, without BOS and EOS.

    Attributes:
        tokens: [M, L], PAD after each text's end; bytes, or integers of 16 bits for alphabets of more than 256 ids and of 32
            bits for those of more than 32,767. Batches are made on their device.
        sizes: number of tokens of each text [M], at least 1, on the CPU.
        tokenizer: alphabet of the ids.
        lines: texts.
        name: name of the set in reports.
    """

    tokens: Integer[Tensor, "text ..."]
    sizes: Int[Tensor, " text"]
    tokenizer: Tokenizer
    lines: tuple[str, ...]
    name: str = ""

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def block_size(self) -> int:
        """L, the number of tokens of the longest text."""
        return self.tokens.shape[1]

    def batch(self, rows: Int[Tensor, " row"]) -> Int[Tensor, "row ..."]:
        """Return the token ids of the texts at ``rows``, padded to the longest of them."""
        longest = int(self.sizes[rows].max()) if rows.numel() else 0
        return self.tokens[place(rows, self.tokens.device), :longest].long()

    @property
    def nbytes(self) -> int:
        """Number of bytes of the token ids."""
        return int(self.tokens.nbytes)

    def to(self, device: torch.device | str) -> TextDataset:
        """Return the same with the token ids on ``device``, where batches of them are then made."""
        return replace(self, tokens=place(self.tokens, torch.device(device)))


@dataclass(frozen=True)
class LabelledText:
    """Batch of real and corrupted texts.

    Attributes:
        tokens: ids [B, L], PAD after each text's end.
        real: 1 for a real text, 0 for a corrupted one [B].
    """

    tokens: Int[Tensor, "batch ..."]
    real: Float[Tensor, " batch"]

    def to(self, device: torch.device | str) -> LabelledText:
        """Return a copy on ``device``."""
        return LabelledText(place(self.tokens, torch.device(device)), place(self.real, torch.device(device)))


@dataclass(frozen=True)
class LabelledTextDataset:
    """Data set of real and corrupted texts for training a judge.

    Attributes:
        texts: real and corrupted texts.
        real: True for a real text [M].
    """

    texts: TextDataset
    real: Bool[Tensor, " text"]

    @property
    def sizes(self) -> Int[Tensor, " text"]:
        """Number of tokens of each text [M]."""
        return self.texts.sizes

    def __len__(self) -> int:
        return len(self.texts)

    def batch(self, rows: Int[Tensor, " row"]) -> LabelledText:
        """Return the texts at ``rows`` with their labels."""
        return LabelledText(self.texts.batch(rows), self.real[place(rows, self.real.device)].float())

    @property
    def nbytes(self) -> int:
        """Number of bytes of token ids and labels."""
        return int(self.texts.nbytes + self.real.nbytes)

    def to(self, device: torch.device | str) -> LabelledTextDataset:
        """Return the same with token ids and labels on ``device``, where batches of them are then made."""
        return LabelledTextDataset(self.texts.to(device), place(self.real, torch.device(device)))


@contextmanager
def _line_named(name: str, number: int) -> Iterator[None]:
    """Make errors of a tokenizer name the line of a file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"data: {name!r} line {number}: {str(error).removeprefix('text: ')}") from error


def _alphabet(lines: Sequence[str], numbers: Sequence[int], pattern: str, name: str) -> Tokenizer:
    """The alphabet of lines; an error names the first line that is not made of tokens."""
    try:
        return Tokenizer.of(lines, pattern)
    except ValueError:
        for number, line in zip(numbers, lines, strict=True):
            with _line_named(name, number):
                if line:
                    Tokenizer.of([line], pattern)
        raise


def text_dataset(
    lines: Sequence[str],
    *,
    pattern: str = CHARACTERS,
    tokenizer: Tokenizer | None = None,
    block_size: int | None = None,
    long_lines: LongLines = "error",
    name: str = "text",
    numbers: Sequence[int] | None = None,
) -> TextDataset:
    """Tokenize lines in memory.

    Args:
        lines: texts, none empty.
        pattern: regular expression of one token, used if ``tokenizer`` is None.
        tokenizer: alphabet; None takes the tokens of the lines.
        block_size: largest number of tokens of a text; None for no limit.
        long_lines: whether a longer line is an error or is split into pieces.
        name: name of the set in reports and errors.
        numbers: line numbers for errors; None counts from 1.

    Raises:
        ValueError: naming the line, if it is empty, too long, or has a token outside the alphabet; or if there is no line.
    """
    if not lines:
        raise ValueError(f"data: {name!r} holds no text, expected at least one line")
    if long_lines not in ("error", "split"):
        raise ValueError(f"long_lines: {long_lines!r}, expected error or split")
    if block_size is not None:
        check_whole("block_size", block_size, least=1)
    given = range(1, len(lines) + 1) if numbers is None else numbers
    tokenizer = tokenizer or _alphabet(lines, given, pattern, name)
    rows: list[list[int]] = []
    for number, line in zip(given, lines, strict=True):
        with _line_named(name, number):
            ids = tokenizer.encode(line)
        limit = block_size or max(len(ids), 1)
        if not ids or (len(ids) > limit and long_lines == "error"):
            hint = "; long_lines 'split' cuts it" if ids else ""
            raise ValueError(f"data: {name!r} line {number} has {len(ids)} tokens, expected 1 to {limit} (block_size){hint}")
        rows += [ids[k : k + limit] for k in range(0, len(ids), limit)]
    sizes = torch.tensor([len(row) for row in rows])
    small = torch.uint8 if len(tokenizer) <= 256 else torch.int16 if len(tokenizer) < 2**15 else torch.int32
    tokens = torch.full((len(rows), int(sizes.max())), PAD, dtype=small)
    for k, row in enumerate(rows):
        tokens[k, : len(row)] = torch.tensor(row, dtype=small)
    return TextDataset(tokens, sizes, tokenizer, tuple(tokenizer.decode(row) for row in rows), name)


def read_lines(path: str | Path, *, max_bytes: int = MAX_BYTES) -> list[tuple[int, str]]:
    """Read (line number from 1, text) of every line of a text file that is not blank; a file ending in ``.gz`` is unpacked.

    The text of a ``.smi`` or ``.smiles`` file is the SMILES of the line, as :func:`~discrete_grpo.datasets.reading.read_smiles`
    finds it; the text of any other file is the line without its end.

    Args:
        path: the file.
        max_bytes: largest size that a gzipped file may unpack to.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is empty, no UTF-8 text, or too large.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path: {str(path)!r} is no file, expected a text file, plain or ending in .gz")
    if suffix_of(path) in (".smi", ".smiles"):
        found = list(smiles_rows(path, max_bytes=max_bytes))
    else:
        found = [(k, line.rstrip("\r\n")) for k, line in enumerate(text_lines(path, max_bytes), 1) if line.strip()]
    if not found:
        raise ValueError(f"path: {str(path)!r} is empty, expected at least one line of text")
    return found


# Blanks and corruption -----------------------------------------------------------------------------------------------


def _draw(high: int, generator: torch.Generator | None) -> int:
    """A uniform integer in [0, high)."""
    return int(torch.randint(high, (), generator=generator))


def mask_lines(
    lines: Sequence[str],
    rate: float,
    generator: torch.Generator | None = None,
    *,
    span: int = 1,
    blank: str = "_",
    pattern: str = CHARACTERS,
) -> list[str]:
    """Replace max(1, round(rate · L)) of the L tokens of each line by blanks, in random runs of ``span`` neighbours.

    Runs may touch or overlap, and the last one ends where the count is reached.

    >>> mask_lines(["a cat"], 0.4, torch.Generator().manual_seed(0), span=2)
    ['__cat']

    Raises:
        ValueError: if ``rate`` or ``span`` is out of its range, or a line has the blank in it already.
    """
    check_range("rate", rate, above=0, most=1)
    check_range("span", span, least=1)
    masked = []
    for line in lines:
        if blank in line:
            raise ValueError(f"line: {line!r} has the blank {blank!r} in it already, expected another blank character")
        tokens = tokens_of(line, pattern)
        count, hidden = max(1, round(rate * len(tokens))), set[int]()
        starts = torch.randperm(max(1, len(tokens) - span + 1), generator=generator).tolist()
        for start in starts:
            for k in range(start, min(start + span, len(tokens))):
                if len(hidden) < count:
                    hidden.add(k)
        masked.append("".join(blank if k in hidden else token for k, token in enumerate(tokens)))
    return masked


def corrupt_lines(
    lines: Sequence[str], generator: torch.Generator | None = None, *, pattern: str = CHARACTERS, max_rate: float = 0.5
) -> list[str]:
    """Corrupt each line: it keeps its number of tokens and differs from the original.

    Each line is changed in one of four ways, at a rate u² · ``max_rate`` with u uniform: tokens anywhere are replaced by tokens of
    other lines, neighbours are swapped, a span is replaced by tokens of other lines one by one, or a span is replaced by a span of
    one other line. A line that 20 draws do not change is left out.

    Raises:
        ValueError: if ``max_rate`` is out of (0, 1].
    """
    check_range("max_rate", max_rate, above=0, most=1)
    tokens = [tokens_of(line, pattern) for line in lines]
    result = []
    for row in tokens:
        for _ in range(20):  # a draw may leave the line as it is
            made = _corrupt(row, tokens, max_rate, generator)
            if made != row:
                result.append("".join(made))
                break
    return result


def _corrupt(row: Sequence[str], pool: Sequence[Sequence[str]], max_rate: float, generator: torch.Generator | None) -> list[str]:
    made, length, way = list(row), len(row), _draw(4, generator)
    count = max(1, round(max_rate * float(torch.rand((), generator=generator)) ** 2 * length))
    start = _draw(length - count + 1, generator)
    places = list(range(start, start + count))
    if way == 0:
        places = torch.randperm(length, generator=generator)[:count].tolist()
    if way == 1:
        for k in torch.randperm(max(1, length - 1), generator=generator)[:count].tolist():
            made[k : k + 2] = reversed(made[k : k + 2])
    elif way == 3:
        other = pool[_draw(len(pool), generator)]
        begin = _draw(max(1, len(other) - count + 1), generator)
        piece = other[begin : begin + count]
        made[start : start + len(piece)] = piece
    else:
        for k in places:
            other = pool[_draw(len(pool), generator)]
            made[k] = other[_draw(len(other), generator)]
    return made


# Sentences -----------------------------------------------------------------------------------------------------------

GRAMMAR: dict[str, tuple[str, ...]] = {
    "line": ("{one} {does}", "{one} {does} {when}", "{many} {do}", "{many} {do} {when}"),
    "one": ("the {person}", "my {person}", "the {adjective} {person}", "a {consonant}", "an {vowel}"),
    "many": ("the {person}s", "two {person}s", "some {adjective} {person}s", "my {adjective} {person}s", "all {person}s"),
    "consonant": ("{person_c}", "{adjective_c} {person}"),
    "vowel": ("{person_v}", "{adjective_v} {person}"),
    "person": ("{person_c}", "{person_v}"),
    "person_c": ("baker", "farmer", "sailor", "teacher", "painter", "doctor", "singer", "brother"),
    "person_v": ("artist", "uncle", "actor", "editor"),
    "adjective": ("{adjective_c}", "{adjective_v}"),
    "adjective_c": ("young", "happy", "quiet", "tall"),
    "adjective_v": ("old", "honest", "idle"),
    "does": ("eats {food}", "reads {text}", "paints {thing}", "sings {song}", "sleeps {place}", "walks {place}"),
    "do": ("eat {food}", "read {text}", "paint {thing}", "sing {song}", "sleep {place}", "walk {place}"),
    "food": ("warm bread", "an apple", "a ripe plum", "onion soup", "cold rice"),
    "text": ("a letter", "an old book", "the news", "a long poem", "the map"),
    "thing": ("a boat", "the gate", "an oak door", "the wall", "a red chair"),
    "song": ("a slow song", "an old tune", "the hymn", "for the king"),
    "place": ("by the sea", "in the garden", "near the river", "under a tree", "at home"),
    "when": ("at night", "in spring", "every day", "on sunday", "after lunch", "before noon"),
}
"""Productions of each symbol; number, article and kind of object agree. A sentence is an expansion of ``{line}``."""


def _written(symbol: str, generator: torch.Generator | None) -> str:
    choice = GRAMMAR[symbol][_draw(len(GRAMMAR[symbol]), generator)]
    return re.sub(r"\{(\w+)\}", lambda found: _written(found[1], generator), choice)


def _expression(symbol: str) -> str:
    parts = [re.sub(r"\{(\w+)\}", lambda found: _expression(found[1]), choice) for choice in GRAMMAR[symbol]]
    return f"(?:{'|'.join(parts)})"


@cache
def _lengths(symbol: str) -> Counter[int]:
    """Number of expansions of a symbol by their length."""
    found = Counter[int]()
    for choice in GRAMMAR[symbol]:
        words = re.split(r"\{(\w+)\}", choice)  # literals and symbols take turns
        numbers = Counter({sum(map(len, words[::2])): 1})
        for inner in words[1::2]:
            longer = Counter[int]()
            for (one, a), (other, b) in product(numbers.items(), _lengths(inner).items()):
                longer[one + other] += a * b
            numbers = longer
        found += numbers
    return found


def is_sentence(text: str | None) -> bool:
    """Return whether a text is a sentence of the grammar, which is the ground truth for a judge.

    >>> is_sentence("an old sailor reads the map"), is_sentence("a old sailor read the map"), is_sentence(None)
    (True, False, False)
    """
    return text is not None and _SENTENCE.fullmatch(text) is not None


_SENTENCE = re.compile(_expression("line"))


def sentences(count: int, seed: int = 0, *, held_out: bool = False, max_length: int = 40) -> list[str]:
    """Draw distinct sentences of the grammar, with at most ``max_length`` characters each.

    A tenth of all sentences, chosen by a checksum, is drawn only with ``held_out``, whatever the seed. Drawing ends where 2,000
    draws, and as many as sentences were found, gave no new one.

    Raises:
        ValueError: if ``count`` is less than 1 or more than the grammar readily gives.

    >>> sentences(1, seed=1)
    ['an artist reads a long poem before noon']
    """
    check_whole("count", count, least=1)
    given = sum(number for length, number in _lengths("line").items() if length <= max_length)
    check_range("count", count, most=given, note=f" (sentences of at most {max_length} characters)")
    generator, found = torch.Generator().manual_seed(seed), dict[str, None]()
    old = 0  # draws since the last new sentence
    while old < 2_000 + len(found):
        line, old = _written("line", generator), old + 1
        if line not in found and len(line) <= max_length and (zlib.crc32(line.encode()) % 10 == 0) == held_out:
            found[line], old = None, 0
        if len(found) == count:
            return list(found)
    part = "held out" if held_out else "not held out"
    told = f"{len(found)} that are {part}, among {given} sentences of at most {max_length} characters"
    raise ValueError(f"count: {count}, expected no more than readily found: {told}")
