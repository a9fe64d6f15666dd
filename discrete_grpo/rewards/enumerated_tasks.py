"""Benchmark tasks with a known optimum, on the small molecules that :mod:`discrete_grpo.datasets.enumeration` lists.

The space is the bundled list: 38,075 molecules of at most 7 C, N, O and F atoms. Other molecules of this size, and all with other
elements, charges, radicals, isotopes, stereo marks or atom map numbers, score 0. A molecule of n > 7 atoms scores s / 2^(n - 7),
where s in [0, 1] is the value of the definition: less than the ten best of the list, which therefore stay the optima.

``python -m discrete_grpo.rewards.enumerated_tasks`` computes the optima over the whole list again, in one or two minutes.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from discrete_grpo.datasets.enumeration import BUNDLED_ATOMS, enumerated_smiles, gdb_like
from discrete_grpo.rewards.scoring_parts import Gaussian, GeometricMean, Isomer, MoleculeProperty, Part, Tanimoto
from discrete_grpo.rewards.task import Task

__all__ = ["TASKS", "TOP10_OPTIMUM", "ListedMolecule", "Trap", "optima"]

HIDDEN = "N#CC1CCOC1"
"""The molecule to rediscover."""
TRAPPED = "CC1OC1C(N)=O"
"""The molecule at the optimum, which the trap surrounds."""
_ELEMENTS = frozenset("CNOF")


@dataclass(frozen=True)
class Trap:
    """0.8 (z - x) / z for x < z, else (x - z) / (1 - z), of a part x in [0, 1]: the way to the optimum at 1 leads down to z first.

    Attributes:
        part: the number x.
        edge: z, more than 0 and less than 1.

    Source: Ackley (1987), A Connectionist Machine for Genetic Hillclimbing; Deb and Goldberg (1993), Analyzing Deception in Trap
    Functions. The height 0.8 of the local optimum is this project's.
    """

    part: Part
    edge: float

    def __call__(self, mol: Any) -> float:
        """Compute the number, in [0, 1]."""
        x = self.part(mol)
        return 0.8 * (self.edge - x) / self.edge if x < self.edge else (x - self.edge) / (1 - self.edge)


@dataclass(frozen=True)
class ListedMolecule:
    """A part in [0, 1] for a molecule of the list, less for a larger one, else 0: the ``score`` of the tasks here."""

    part: Part

    def __call__(self, mol: Any) -> float:
        """Score a molecule, in [0, 1]."""
        if not all(map(_plain, mol.GetAtoms())) or any(int(bond.GetStereo()) for bond in mol.GetBonds()):
            return 0.0
        size = mol.GetNumAtoms()
        if size > BUNDLED_ATOMS:
            return self.part(mol) / 2.0 ** (size - BUNDLED_ATOMS)
        return self.part(mol) if gdb_like(mol) else 0.0


def _plain(atom: Any) -> bool:
    odd = atom.GetFormalCharge() or atom.GetNumRadicalElectrons() or atom.GetIsotope() or int(atom.GetChiralTag())
    odd = odd or atom.GetAtomMapNum()  # another spelling of the same molecule, which would count as another call
    return atom.GetSymbol() in _ELEMENTS and not odd


PARTS: dict[str, tuple[str, Part, frozenset[str]]] = {
    "enumerated_qed": ("QED", MoleculeProperty("qed"), frozenset()),
    "enumerated_logp": (
        "log P near 2.9 (standard deviation 0.2), where few molecules are",
        Gaussian(MoleculeProperty("MolLogP"), 2.9, 0.2),
        frozenset("C"),
    ),
    "enumerated_rediscovery": (f"atom pair similarity to {HIDDEN}", Tanimoto("AP", HIDDEN), frozenset("CNO")),
    "enumerated_polar": (
        "geometric mean of TPSA near 60 (standard deviation 5) and log P near 1 (0.2), which exclude each other",
        GeometricMean((Gaussian(MoleculeProperty("TPSA"), 60.0, 5.0), Gaussian(MoleculeProperty("MolLogP"), 1.0, 0.2))),
        frozenset("CN"),
    ),
    "enumerated_isomers": ("isomers of C4H7NO2", Isomer("C4H7NO2"), frozenset("CNO")),
    "enumerated_deceptive": (
        f"a trap around {TRAPPED}: with the atom pair similarity the score falls from 0.8 to 0 at 0.4, then rises to 1",
        Trap(Tanimoto("AP", TRAPPED), 0.4),
        frozenset("CNO"),
    ),
}
"""Name -> definition, the part, and elements that a perfect molecule needs."""
OPTIMA: Mapping[str, tuple[float, float]] = {
    "enumerated_qed": (0.6031983366798089, 0.5954950232051969),  # CCOc1c[nH]o1, tenth 0.5826
    "enumerated_logp": (0.9447976513236418, 0.8702897612870373),  # CCC(C)(C)CC, tenth 0.7625
    "enumerated_rediscovery": (1.0, 0.6243811743811742),  # N#CC1CCOC1, tenth 0.5000
    "enumerated_polar": (0.9913002332710437, 0.9854596457526904),  # N=NC1=CN=C=N1, tenth 0.9808
    "enumerated_isomers": (1.0, 1.0),  # C#CC(CO)NO, tenth 1.0000
    "enumerated_deceptive": (1.0, 0.82),  # CC1OC1C(N)=O, tenth 0.8000
}
"""Name -> the largest score, and the mean of the ten largest, over the whole list."""


def _task(name: str, about: str, part: Part, elements: frozenset[str]) -> Task:
    about += "; molecules of up to 7 C, N, O, F atoms, larger ones halved per atom"
    score, optimum = ListedMolecule(part), OPTIMA[name][0]
    return Task(name, "enumerated", about, "this project", score, optimum=optimum, elements=elements, version=2)


TASKS: dict[str, Task] = {name: _task(name, *parts) for name, parts in PARTS.items()}
"""The tasks by name."""
TOP10_OPTIMUM: Mapping[str, float] = {name: top10 for name, (_, top10) in OPTIMA.items()}
"""Name -> mean score of the ten best molecules, the largest value of a top-10 once ten different molecules were scored."""


def optima(task: Task, smiles: Iterable[str] | None = None) -> list[tuple[float, str]]:
    """Score and SMILES of the ten best molecules of a list, best first; among equals the one listed first.

    Args:
        task: the task.
        smiles: different molecules; None takes the bundled list.
    """
    listed = enumerated_smiles() if smiles is None else list(smiles)
    scores = task(listed)
    best = heapq.nlargest(10, ((score or 0.0, -k) for k, score in enumerate(scores)))
    return [(score, listed[-k]) for score, k in best]


def command_line(arguments: Sequence[str] | None = None) -> None:
    """Run ``python -m discrete_grpo.rewards.enumerated_tasks [NAME ...]``: print the optima of all tasks, or of those named."""
    parser = argparse.ArgumentParser(description=command_line.__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args(arguments).names
    for name in (wrong for wrong in names if wrong not in TASKS):
        parser.error(f"{name!r} is no task, expected {', '.join(TASKS)}")
    for name in names or TASKS:
        best = optima(TASKS[name])
        print(f'    "{name}": ({best[0][0]!r}, {sum(score for score, _ in best) / 10!r}),  # {best[0][1]}, tenth {best[9][0]:.4f}')


if __name__ == "__main__":
    command_line()
