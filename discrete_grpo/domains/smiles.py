"""SMILES strings to RDKit molecules and back: what counts as a molecule, with the molecules used last kept in memory.

A sample is a **valid** molecule if it parses, sanitises and is connected (:func:`parse`); its identity is the canonical SMILES
(:func:`to_smiles`). Graphs of molecules are in :mod:`discrete_grpo.domains.molecules`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from rdkit import Chem
from rdkit.rdBase import BlockLogs

__all__ = ["as_given_to", "canonical_samples", "parse", "parse_all", "parse_smiles", "reserve", "smarts_pattern", "to_smiles"]


LONGEST = 12_000
"""Characters of the longest text that is read as a molecule: RDKit writes its canonical SMILES in 2 s, and crashes at 20,000."""


def as_given_to(function: object) -> Callable[[Chem.Mol], Chem.Mol]:
    """How a parsed molecule, which is shared, is given to a function: as a copy, but as it is to one of this package."""
    ours = str(getattr(function, "__module__", "")).startswith("discrete_grpo.")
    return (lambda mol: mol) if ours else Chem.Mol


def parse_smiles(text: str) -> Chem.Mol | None:
    r"""The sanitised molecule of a SMILES string, connected or not; None if it does not parse, is empty or holds blanks.

    Text with other characters than printable ASCII is no molecule: RDKit drops those at the ends and parses the rest. Nor is one
    of more than 12,000 characters, whose canonical SMILES can exhaust RDKit's stack or keep it busy for hours.

    >>> parse_smiles("CCO").GetNumAtoms(), parse_smiles("CC\N{CYRILLIC CAPITAL LETTER O}"), parse_smiles("CC O")
    (3, None, None)
    """
    if not text or len(text) > LONGEST or not (text.isascii() and text.isprintable()) or " " in text:
        return None
    with BlockLogs():
        mol = Chem.MolFromSmiles(text)
    return mol if mol is not None and mol.GetNumAtoms() else None


class _Parsed:
    """The most recently used molecules by SMILES; None for an invalid one."""

    LEAST, MOST = 4096, 16384
    """Molecules kept. One of 9 heavy atoms takes about 13 kB, one of 38 about 56 kB."""

    def __init__(self) -> None:
        self._resize(self.LEAST)

    def _resize(self, room: int) -> None:
        self.room, self.get = room, lru_cache(maxsize=room)(_valid_molecule)

    def reserve(self, count: int) -> None:
        """Make room for ``count`` molecules; growing the cache empties it."""
        if count > self.room and self.room < self.MOST:
            self._resize(min(self.MOST, 1 << (count - 1).bit_length()))


def _valid_molecule(text: str) -> Chem.Mol | None:
    mol = parse_smiles(text)
    if mol is None or ("." in text and len(Chem.GetMolFrags(mol)) > 1):
        return None
    return mol


_PARSED = _Parsed()


def parse(sample: str | None) -> Chem.Mol | None:
    """The molecule of a sample if it is **valid**: parses, sanitises and is connected. Else None. Do not modify it.

    The molecules used last are kept, so that the rewards and metrics of a batch share them; see :func:`reserve`.

    >>> parse("CCO").GetNumAtoms(), parse("C.C"), parse("C(C)(C)(C)(C)C"), parse(None)
    (3, None, None, None)

    Raises:
        ValueError: if the sample is neither a string nor None.
    """
    if sample is None:
        return None
    if not isinstance(sample, str):
        raise ValueError(f"sample: {type(sample).__name__}, expected a SMILES string or None")
    return _PARSED.get(sample)


def parse_all(samples: Sequence[str | None]) -> list[Chem.Mol | None]:
    """:func:`parse` of each sample of a batch, all of which stay in the cache.

    Raises:
        ValueError: for a text in place of a list of them.

    >>> [mol is None for mol in parse_all(["CCO", "C.C", None])]
    [False, True, True]
    """
    if isinstance(samples, str):
        raise ValueError(f"samples: {samples!r}, expected a list of SMILES, such as [{samples!r}]")
    reserve(len(samples))
    return [parse(sample) for sample in samples]


def reserve(count: int) -> None:
    """Keep at least the last ``count`` molecules that :func:`parse` gave, 16,384 at most (they take 10 to 60 kB each)."""
    _PARSED.reserve(count)


def smarts_pattern(smarts: str) -> Chem.Mol:
    """The pattern of a SMARTS string, in which hydrogens that it writes as atoms are those of their neighbours.

    Raises:
        ValueError: naming ``smarts``, if RDKit cannot read it.

    >>> smarts_pattern("[#8]-[#1]").GetNumAtoms()
    1
    """
    with BlockLogs():
        pattern = Chem.MolFromSmarts(smarts) if isinstance(smarts, str) and smarts else None
    if pattern is None:
        raise ValueError(f"smarts: {smarts!r}, expected a SMARTS pattern that RDKit reads")
    return Chem.MergeQueryHs(pattern)  # [#1] would match nothing, as hydrogens are not atoms of the molecules


def to_smiles(mol: Chem.Mol, *, stereo: bool = True) -> str:
    """Canonical SMILES, with stereo, isotopes and atom map numbers or without; deuterium is then hydrogen.

    >>> to_smiles(Chem.MolFromSmiles("[2H]C([2H])([2H])O"), stereo=False), to_smiles(Chem.MolFromSmiles("[CH3:1]O"), stereo=False)
    ('CO', 'CO')
    """
    if not stereo and any(atom.GetAtomMapNum() or (atom.GetAtomicNum() == 1 and atom.GetIsotope()) for atom in mol.GetAtoms()):
        mol = Chem.Mol(mol)
        for atom in mol.GetAtoms():
            atom.SetIsotope(0)
            atom.SetAtomMapNum(0)
        mol = Chem.RemoveHs(mol)
    return str(Chem.MolToSmiles(mol, isomericSmiles=stereo))


def canonical_samples(texts: Sequence[str]) -> list[str | None]:
    """Convert generated texts to canonical SMILES with stereo; None for a text that is not a connected molecule.

    >>> canonical_samples(["OCC", "C1CC", "C.C"])
    ['CCO', None, None]
    """
    return [None if mol is None else to_smiles(mol) for mol in parse_all(texts)]
