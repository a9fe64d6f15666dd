"""Genes of SMILES strings: the representation of grammatical evolution.

A gene is a sequence of codons, numbers from 0 to 255. It is read from left to right while the leftmost nonterminal of a
context-free grammar of SMILES is replaced, beginning with ``smiles``: codon c chooses alternative c mod k of the k alternatives. A
nonterminal with one alternative takes no codon. Codons that are left over are silent; a gene that is too short gives no string.
A string that follows the grammar need not be a molecule: ring bonds may stay open, valences may be exceeded.

The grammar covers the organic subset, brackets with isotope, chirality, hydrogens and charge, bonds, branches and the ring bonds 1
to 9; salts and other elements have no gene. Its rules recurse to the right, so that one pass encodes a string.

Source: Yoshikawa et al. (2018), Chem. Lett. 47, 1431, doi 10.1246/cl.180665 (ChemGE), with genes of 300 codons and the mutation of
one codon; the nonterminals are those of the SMILES grammar of Kusner et al. (2017), arXiv 1703.01925.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from discrete_grpo.core.checks import check_whole

__all__ = ["GENE_LENGTH", "GRAMMAR", "Gene", "decode_gene", "encode_gene", "mutate_gene"]

Gene: TypeAlias = tuple[int, ...]

GENE_LENGTH = 300
CODONS = 256

_DIGITS = tuple((digit,) for digit in "123456789")
_CHARGES = tuple((sign + count,) for sign in "+-" for count in ("", "2", "3"))

GRAMMAR: Mapping[str, Sequence[Sequence[str]]] = {
    "smiles": (("chain",),),
    "chain": (("branched_atom",), ("branched_atom", "chain"), ("branched_atom", "bond", "chain")),
    "branched_atom": (("atom",), ("atom", "ring_bonds"), ("atom", "branches"), ("atom", "ring_bonds", "branches")),
    "ring_bonds": (("ring_bond",), ("ring_bond", "ring_bonds")),
    "ring_bond": (("digit",), ("bond", "digit")),
    "branches": (("branch",), ("branch", "branches")),
    "branch": (("(", "chain", ")"), ("(", "bond", "chain", ")")),
    "atom": (("bracket_atom",), ("aliphatic_organic",), ("aromatic_organic",)),
    "aliphatic_organic": tuple((symbol,) for symbol in ("B", "C", "N", "O", "S", "P", "F", "I", "Cl", "Br")),
    "aromatic_organic": tuple((symbol,) for symbol in ("c", "n", "o", "s")),
    "bracket_atom": (("[", "isotope", "symbol", "chiral", "hydrogens", "charge", "]"),),
    "symbol": (("aliphatic_organic",), ("aromatic_organic",), ("H",)),
    "isotope": ((), ("digit",), ("digit", "digit"), ("digit", "digit", "digit")),
    "chiral": ((), ("@",), ("@@",)),
    "hydrogens": ((), ("H",), ("H2",), ("H3",)),
    "charge": ((), *_CHARGES),
    "bond": tuple((bond,) for bond in ("-", "=", "#", "/", "\\")),
    "digit": _DIGITS,
}
"""Alternatives of each nonterminal; a symbol that is no key stands for itself."""

# Longest first: the first alternative that fits is then the right one, for no later part of a SMILES string changes the reading.
_TRIED = {
    name: sorted(range(len(rules)), key=lambda k: (-len(rules[k]), -sum(map(len, rules[k])))) for name, rules in GRAMMAR.items()
}


def encode_gene(text: str, rng: random.Random, *, length: int = GENE_LENGTH) -> Gene | None:
    """A gene of the given length that :func:`decode_gene` turns into ``text``; its free choices are random.

    Args:
        text: SMILES string.
        rng: generator of the multiple of k in each codon, and of the silent codons.
        length: number of codons, at least 1.

    Returns:
        The gene; None if the grammar lacks the string or its derivation takes more codons.

    >>> rng = random.Random(0)
    >>> decode_gene(encode_gene("Cc1cc[nH]c1", rng)), encode_gene("[Na+].[Cl-]", rng)
    ('Cc1cc[nH]c1', None)
    """
    check_whole("length", length, least=1)
    choices = _derivation(text) if len(text) <= length else None
    if choices is None or len(choices) > length:
        return None
    read = [rng.randrange(k, CODONS, count) for k, count in choices]
    return (*read, *rng.randbytes(length - len(read)))


def decode_gene(gene: Sequence[int]) -> str | None:
    """The string of a gene, which need not be a molecule; None if the codons end before the derivation does.

    >>> decode_gene([0, 0, 1, 1]), decode_gene([0, 0, 1]), decode_gene([0, 0, 4, 11, 99])
    ('C', None, 'C')
    """
    text, codons, stack = "", iter(gene), ["smiles"]
    while stack:
        symbol = stack.pop()
        rules = GRAMMAR.get(symbol)
        if rules is None:
            text += symbol
            continue
        codon = next(codons, None) if len(rules) > 1 else 0
        if codon is None:
            return None
        stack.extend(reversed(rules[codon % len(rules)]))
    return text


def mutate_gene(gene: Sequence[int], rng: random.Random) -> Gene:
    """The gene with one random codon drawn anew."""
    place = rng.randrange(len(gene))
    return (*gene[:place], rng.randrange(CODONS), *gene[place + 1 :])


_Choices: TypeAlias = tuple[tuple[int, int], ...]
"""For each nonterminal of a leftmost derivation: the alternative taken, and the number of alternatives if there are several."""


@lru_cache(maxsize=1024)  # a population of parents: each is read once, however many children it has
def _derivation(text: str) -> _Choices | None:
    """The choices that derive ``text``; None if the grammar lacks it."""
    known: dict[tuple[str, int], tuple[int, _Choices] | None] = {}

    def parse(symbol: str, start: int) -> tuple[int, _Choices] | None:
        if symbol not in GRAMMAR:
            return (start + len(symbol), ()) if text.startswith(symbol, start) else None
        if (symbol, start) not in known:
            known[symbol, start] = next(filter(None, (fit(symbol, k, start) for k in _TRIED[symbol])), None)
        return known[symbol, start]

    def fit(symbol: str, k: int, place: int) -> tuple[int, _Choices] | None:
        rules = GRAMMAR[symbol]
        choices: _Choices = ((k, len(rules)),) if len(rules) > 1 else ()
        for part in rules[k]:
            found = parse(part, place)
            if found is None:
                return None
            place, choices = found[0], choices + found[1]
        return place, choices

    for start in reversed(range(len(text))):  # from the end, so that long strings do not recurse deeply
        parse("chain", start)
    found = parse("smiles", 0)
    return found[1] if found is not None and found[0] == len(text) else None
