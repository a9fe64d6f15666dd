"""Docking with AutoDock Vina as a reward: the packages ``vina`` and ``meeko`` (extra ``docking``).

A docking takes seconds and can hang or crash. Run it in a :class:`~discrete_grpo.rewards.pool.RewardPool` with one core per
worker.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import math
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from rdkit import Chem, rdBase
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

from discrete_grpo.core.checks import check_whole
from discrete_grpo.domains.smiles import parse_all
from discrete_grpo.rewards.sources import file_digest

__all__ = ["Docking"]


@dataclass(frozen=True)
class Docking:
    """Negative Vina score of the best pose of a molecule in a receptor, in kcal/mol.

    The conformer, the search and therefore the score depend on ``seed`` and on every setting here. All of them are part of the
    identity of the reward in a cache, as are the content of the receptor file and the versions of both packages.

    Args:
        receptor: path of a PDBQT file, which may be compressed (``.gz``).
        center: x, y, z of the box's centre in Å, finite.
        box_size: edges of the box in Å, each more than 0.
        exhaustiveness: exhaustiveness of the search, at least 1.
        n_poses: number of poses kept, at least 1.
        seed: random seed of conformer and search, at least 1 (Vina takes 0 to mean a random seed).
        cpu: cores per docking, at least 1.

    Raises:
        ValueError: for an argument out of its range, or a receptor that is not a file or cannot be unpacked.
        ImportError: when called, if vina or meeko is not installed.

    Source: Trott and Olson (2010); Eberhardt et al. (2021), https://doi.org/10.1021/acs.jcim.1c00203

    Example::

        reward:
          class_path: discrete_grpo.rewards.pool.RewardPool
          init_args:
            reward: discrete_grpo.rewards.docking.Docking
            init_args: {receptor: receptor.pdbqt, center: [10.0, 5.0, -3.0], box_size: [20.0, 20.0, 20.0]}
            workers: 8
    """

    receptor: str
    center: tuple[float, float, float]
    box_size: tuple[float, float, float]
    exhaustiveness: int = 8
    n_poses: int = 1
    seed: int = 42
    cpu: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.receptor, str | PurePath):
            raise ValueError(f"receptor: {self.receptor!r}, expected a PDBQT file")
        object.__setattr__(self, "receptor", str(self.receptor))
        for name in ("center", "box_size"):
            values = _three(getattr(self, name))
            if values is None or not all(math.isfinite(x) and (name == "center" or x > 0) for x in values):
                above = "" if name == "center" else " above 0"
                raise ValueError(f"{name}: {getattr(self, name)!r}, expected three finite numbers{above}")
            object.__setattr__(self, name, values)
        for name in ("exhaustiveness", "n_poses", "seed", "cpu"):
            check_whole(name, getattr(self, name), least=1)
        if not Path(self.receptor).is_file():
            raise ValueError(f"receptor: {self.receptor!r}, expected a PDBQT file")
        if self._packed:
            self._unpacked()

    @property
    def name(self) -> str:
        """The name in logs."""
        return f"docking({Path(self.receptor.removesuffix('.gz')).stem})"

    @cached_property
    def cached_as(self) -> tuple[Any, ...]:
        """Every value that the score depends on."""
        settings = (self.center, self.box_size, self.exhaustiveness, self.n_poses, self.seed)
        return (self._digest, *settings, *_versions().values())

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that a score depends on, by name, for tables of results, including the versions of vina, meeko and RDKit.

        Raises:
            ImportError: if vina or meeko is not installed.
        """
        search = {name: getattr(self, name) for name in ("center", "box_size", "exhaustiveness", "n_poses", "seed")}
        receptor = {"receptor": Path(self.receptor).name, "receptor_digest": self._digest}
        conformer = "ETKDG, MMFF94"
        return {**receptor, **search, "scoring": "vina", "conformer": conformer, **_versions(), "rdkit": rdBase.rdkitVersion}

    @property
    def _packed(self) -> bool:
        return self.receptor.endswith(".gz")

    def _unpacked(self) -> bytes:
        try:
            return gzip.decompress(Path(self.receptor).read_bytes())
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"receptor: {self.receptor!r} cannot be unpacked: {error}") from None

    @property
    def _digest(self) -> str:
        """The digest of the receptor's content, compressed or not."""
        return hashlib.blake2b(self._unpacked(), digest_size=16).hexdigest() if self._packed else file_digest(self.receptor)

    @cached_property
    def _vina(self) -> Any:
        engine = _package("vina").Vina(sf_name="vina", cpu=self.cpu, seed=self.seed, verbosity=0)
        if self._packed:
            with tempfile.TemporaryDirectory() as folder:  # Vina reads files only, and at once
                plain = Path(folder) / "receptor.pdbqt"
                plain.write_bytes(self._unpacked())
                engine.set_receptor(str(plain))
        else:
            engine.set_receptor(self.receptor)
        engine.compute_vina_maps(center=list(self.center), box_size=list(self.box_size))
        return engine

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """Dock each molecule.

        Returns:
            One number per sample in kcal/mol, mostly between 0 and 15, higher for stronger binding; 0 for an invalid molecule, None
            where RDKit finds no conformer.
        """
        return [0.0 if mol is None else self.score(mol) for mol in parse_all(samples)]

    def score(self, mol: Chem.Mol) -> float | None:
        """Dock one valid molecule; None where RDKit finds no conformer."""
        ligand = self._prepared(mol)
        if ligand is None:
            return None
        self._vina.set_ligand_from_string(ligand)
        self._vina.dock(exhaustiveness=self.exhaustiveness, n_poses=self.n_poses)
        return -float(self._vina.energies(n_poses=1)[0][0])

    def _prepared(self, mol: Chem.Mol) -> str | None:
        """Prepare the ligand as PDBQT text: hydrogens, one conformer by ETKDG, MMFF94; None where RDKit finds no conformer."""
        full = Chem.AddHs(mol)
        if rdDistGeom.EmbedMolecule(full, randomSeed=self.seed) != 0:
            return None
        if rdForceFieldHelpers.MMFFHasAllMoleculeParams(full):
            rdForceFieldHelpers.MMFFOptimizeMolecule(full)
        meeko = _package("meeko")
        text, fine, reason = meeko.PDBQTWriterLegacy.write_string(meeko.MoleculePreparation().prepare(full)[0])
        if not fine:
            raise ValueError(f"meeko: {reason}")
        return str(text)


def _three(values: Any) -> tuple[float, ...] | None:
    """Three numbers, or None for anything else, also for a text of three digits."""
    try:
        found = () if isinstance(values, str | bytes) else tuple(float(x) for x in values)
    except (TypeError, ValueError):
        return None
    return found if len(found) == 3 else None


def _versions() -> dict[str, str]:
    return {name: str(getattr(_package(name), "__version__", "unknown")) for name in ("vina", "meeko")}


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = getattr(error, "name", None)
        what = f"{name}, which is not installed" if missing in (None, name) else f"{missing}, without which {name} does not work"
        raise ImportError(f"docking: needs {what}; pip install 'discrete-grpo[docking]'") from None
