"""Similarity to the nearest molecule of a set: to known actives, or to a training set that new molecules must differ from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rdkit import Chem, DataStructs

from discrete_grpo.core.checks import check_samples
from discrete_grpo.datasets.reading import smiles_rows
from discrete_grpo.domains.molecule_properties import bit_fingerprint
from discrete_grpo.domains.smiles import parse_all, parse_smiles

__all__ = ["NearestSimilarity", "TrainingSet", "check_smiles_file", "smiles_of"]


class TrainingSet:
    """The molecules that a novel one must differ from, as Morgan fingerprints of radius 2 with 1024 bits.

    Args:
        smiles: SMILES of the training set, at least one.

    Raises:
        ValueError: for a SMILES that cannot be read, or none at all.

    >>> round(TrainingSet(["CCO", "c1ccccc1"]).similarity(Chem.MolFromSmiles("CCCO")), 3)
    0.556
    """

    def __init__(self, smiles: Iterable[str]) -> None:
        check_samples(smiles, "reference", "SMILES")
        self._smiles = list(smiles)
        if not self._smiles:
            raise ValueError("reference: no molecule, expected at least one of the training set")

    @cached_property
    def _fingerprints(self) -> list[DataStructs.ExplicitBitVect]:
        mols = [parse_smiles(text) for text in self._smiles]
        for text, mol in zip(self._smiles, mols, strict=True):
            if mol is None:
                raise ValueError(f"reference: {text!r} is no SMILES that RDKit reads")
        return [bit_fingerprint(mol) for mol in mols if mol is not None]

    def similarity(self, mol: Chem.Mol) -> float:
        """The largest Tanimoto similarity of a molecule to one of the set, in [0, 1]."""
        return _nearest(mol, self._fingerprints)


def _nearest(mol: Chem.Mol, prints: list[DataStructs.ExplicitBitVect]) -> float:
    return float(max(DataStructs.BulkTanimotoSimilarity(bit_fingerprint(mol), prints)))


def smiles_of(file: str | Path) -> Iterator[str]:
    """Yield the SMILES of a file; lines that are no molecule are left out."""
    return (text for _, text in smiles_rows(Path(file)) if parse_smiles(text) is not None)


def check_smiles_file(argument: str, file: str | Path) -> None:
    """Raise ``ValueError``, naming the argument, unless a file exists and holds a molecule."""
    if not Path(file).is_file():
        raise ValueError(f"{argument}: {str(file)!r} does not exist, expected a SMILES file")
    if next(smiles_of(file), None) is None:
        raise ValueError(f"{argument}: {str(file)!r} holds no molecule, expected at least one SMILES string")


@dataclass(frozen=True)
class NearestSimilarity:
    """Largest Tanimoto similarity of a molecule to those of a file, by Morgan fingerprints (radius 2, 1024 bits) without stereo.

    As it stands, it rewards molecules like known ones. Within :class:`~discrete_grpo.rewards.molecules.InRange` it is a gate that
    only novel molecules pass; published docking tables call a molecule novel whose similarity to the training set is below 0.4.

    Args:
        data: SMILES file, also a table with a column of SMILES, also with .gz. Lines that are no molecule are left out. It is read
            at the first call.

    Raises:
        ValueError: if there is no such file, or it holds no molecule.

    Example:
        class_path: Gated
        init_args:
          reward: my_rewards.docking
          gates:
            - class_path: InRange
              init_args: {property: {class_path: NearestSimilarity, init_args: {data: train.smi}}, low: 0, high: 0.4}
    """

    data: str | Path

    def __post_init__(self) -> None:
        if not isinstance(self.data, str | Path):
            raise ValueError(f"data: {self.data!r}, expected the name of a SMILES file")
        check_smiles_file("data", self.data)

    @cached_property
    def _known(self) -> list[DataStructs.ExplicitBitVect]:
        mols = (parse_smiles(text) for _, text in smiles_rows(Path(self.data)))
        return [bit_fingerprint(mol) for mol in mols if mol is not None]

    @property
    def name(self) -> str:
        """The name in logs."""
        return f"similarity to {Path(self.data).name}"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """Compute the largest similarity of each sample.

        Returns:
            A number in [0, 1] per sample, 1 for a molecule with the fingerprint of one of the file; 0 for an invalid one.
        """
        return [0.0 if mol is None else _nearest(mol, self._known) for mol in parse_all(samples)]
