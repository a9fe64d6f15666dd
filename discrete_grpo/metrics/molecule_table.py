"""Features of molecules that metrics of sets share, each computed once per molecule and at its first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from rdkit import Chem, DataStructs
from rdkit.Chem.Scaffolds import MurckoScaffold

from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains.smiles import parse_smiles
from discrete_grpo.metrics.alerts import passes_filters

__all__ = ["DESCRIPTORS", "PROPERTIES", "MoleculeTable", "fragments", "scaffold"]

PROPERTIES: Mapping[str, Callable[[Chem.Mol], float]] = {
    "logp": molecule_properties.crippen_logp,
    "sa": molecule_properties.sa_score,
    "qed": molecule_properties.qed_score,
    "weight": molecule_properties.molar_mass,
}
"""The properties whose distributions MOSES compares."""

DESCRIPTORS: Mapping[str, str] = {
    "bertz": "BertzCT",
    "logp": "MolLogP",
    "weight": "MolWt",
    "tpsa": "TPSA",
    "acceptors": "NumHAcceptors",
    "donors": "NumHDonors",
    "rotatable_bonds": "NumRotatableBonds",
    "aliphatic_rings": "NumAliphaticRings",
    "aromatic_rings": "NumAromaticRings",
}
"""The descriptors of GuacaMol's KL and their names in RDKit; the first four are continuous."""


def fragments(mol: Chem.Mol) -> tuple[str, ...]:
    """SMILES of the parts between the BRICS bonds of a molecule, with numbered ends; the molecule itself where there are none.

    Source: Degen et al. (2008), doi 10.1002/cmdc.200800178, as in RDKit.

    >>> fragments(Chem.MolFromSmiles("CCOC(C)=O"))
    ('[1*]C(C)=O', '[3*]O[3*]', '[4*]CC')
    """
    return tuple(Chem.MolToSmiles(Chem.FragmentOnBRICSBonds(mol)).split("."))


def scaffold(mol: Chem.Mol, least_rings: int = 2) -> str | None:
    """SMILES of the Bemis-Murcko scaffold with stereo, None with fewer than ``least_rings`` rings, as MOSES counts scaffolds.

    >>> scaffold(Chem.MolFromSmiles("Cc1ccccc1")), scaffold(Chem.MolFromSmiles("CC1CC1c1ccccc1"))
    (None, 'c1ccc(C2CC2)cc1')
    """
    found = MurckoScaffold.GetScaffoldForMol(mol)
    return str(Chem.MolToSmiles(found)) if found.GetRingInfo().NumRings() >= least_rings else None


def _bits(mols: Sequence[Chem.Mol], size: int) -> np.ndarray:
    """ECFP4 as bytes 0 and 1."""
    found = np.zeros((len(mols), size), dtype=np.uint8)
    for row, mol in zip(found, mols, strict=True):
        DataStructs.ConvertToNumpyArray(molecule_properties.bit_fingerprint(mol, 2, size), row)
    return found


def _descriptors(mols: Sequence[Chem.Mol]) -> np.ndarray:
    functions = [molecule_properties.descriptor(name) for name in DESCRIPTORS.values()]
    found = np.array([[f(mol) for f in functions] for mol in mols], dtype=np.float64).reshape(len(mols), len(functions))
    return np.where(np.isfinite(found), found, 0.0)


def _property(function: Callable[[Chem.Mol], float]) -> Callable[[Sequence[Chem.Mol]], np.ndarray]:
    return lambda mols: np.array([function(mol) for mol in mols], dtype=np.float64)


_FEATURES: Mapping[str, Callable[[Sequence[Chem.Mol]], Any]] = {
    "ecfp4": lambda mols: _bits(mols, 1024),
    "ecfp4_4096": lambda mols: _bits(mols, 4096),
    "fragments": lambda mols: [fragments(mol) for mol in mols],
    "scaffold": lambda mols: [scaffold(mol) for mol in mols],
    "passes": lambda mols: np.array([passes_filters(mol) for mol in mols], dtype=np.float64),
    "descriptors": _descriptors,
    **{name: _property(f) for name, f in PROPERTIES.items()},
}


class MoleculeTable:
    """Molecules with their features.

    Args:
        smiles: strings that sanitise, connected or not.

    Raises:
        ValueError: if one does not.

    >>> table = MoleculeTable(["CCO", "c1ccccc1"])
    >>> table.feature("weight").round().tolist(), table.take(np.array([1])).feature("weight").round().tolist()
    ([46.0, 78.0], [78.0])
    """

    def __init__(self, smiles: Sequence[str]) -> None:
        self.smiles = tuple(smiles)
        self._mols: list[Chem.Mol] | None = None
        self._features: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.smiles)

    @property
    def mols(self) -> list[Chem.Mol]:
        """The molecules."""
        if self._mols is None:
            self._mols = [self._parsed(text) for text in self.smiles]
        return self._mols

    @staticmethod
    def _parsed(text: str) -> Chem.Mol:
        mol = parse_smiles(text)
        if mol is None:
            raise ValueError(f"smiles: {text!r}, expected a molecule that sanitises")
        return mol

    def feature(self, name: str) -> Any:
        """One value per molecule.

        Args:
            name: ``ecfp4``, ``ecfp4_4096``, ``fragments``, ``scaffold``, ``passes``, ``descriptors``, or one of ``PROPERTIES``.
        """
        return self.cached(name, lambda: _FEATURES[name](self.mols))

    def cached(self, name: str, compute: Callable[[], Any]) -> Any:
        """The value of ``compute``, one row per molecule, kept under a name."""
        if name not in self._features:
            self._features[name] = compute()
        return self._features[name]

    def take(self, rows: Int[np.ndarray, " row"]) -> MoleculeTable:
        """The molecules of these rows with the features that are known."""

        def taken(values: Any) -> Any:
            return values[rows] if isinstance(values, np.ndarray) else [values[k] for k in rows]

        part = MoleculeTable(taken(self.smiles))
        part._mols = None if self._mols is None else taken(self._mols)
        part._features = {name: taken(values) for name, values in self._features.items()}
        return part
