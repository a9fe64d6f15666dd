"""The five docking targets of the published ZINC250k tables: boxes, thresholds, tasks, and the novel hits among samples.

The receptors are not part of this package. A table of docking scores means little without the settings of the docking: print
``task.score.settings`` beside every number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdkit import Chem

from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.domains.molecule_properties import qed_score, sa_score
from discrete_grpo.domains.smiles import parse_all, to_smiles
from discrete_grpo.rewards.docking import Docking
from discrete_grpo.rewards.nearest import TrainingSet, check_smiles_file, smiles_of
from discrete_grpo.rewards.sources import file_digest
from discrete_grpo.rewards.task import Task

__all__ = [
    "TARGETS",
    "DockingScore",
    "DockingTarget",
    "NovelHits",
    "docking_task",
    "find_receptor",
    "novel_hits",
    "row_numbers",
]

MIN_QED = 0.5
"""QED that a hit must exceed."""
MAX_SA = 5.0
"""Synthetic accessibility score below which a hit must lie, on RDKit's scale from 1 (easy) to 10."""
MAX_SIMILARITY = 0.4
"""Tanimoto similarity to every molecule of the training set below which a hit must lie."""
SOURCE = "Yang et al. (2021), FREED, arXiv 2110.01219; boxes and thresholds as in Lee et al. (2023), MOOD, arXiv 2206.07632"


@dataclass(frozen=True)
class DockingTarget:
    """A protein with its search box.

    Attributes:
        name: name of the task.
        protein: name of the receptor's file without its ending.
        about: the protein in words.
        center: x, y, z of the box's centre in Å.
        box_size: edges of the box in Å.
        threshold: negative Vina score in kcal/mol that a hit must exceed.
    """

    name: str
    protein: str
    about: str
    center: tuple[float, float, float]
    box_size: tuple[float, float, float]
    threshold: float


TARGETS: dict[str, DockingTarget] = {
    target.name: target
    for target in (
        DockingTarget(
            "docking-parp1", "parp1", "poly(ADP-ribose) polymerase 1", (26.413, 11.282, 27.238), (18.521, 17.479, 19.995), 10.0
        ),
        DockingTarget("docking-fa7", "fa7", "coagulation factor VII", (10.131, 41.879, 32.097), (20.673, 20.198, 21.362), 8.5),
        DockingTarget("docking-5ht1b", "5ht1b", "serotonin receptor 1B", (-26.602, 5.277, 17.898), (22.5, 22.5, 22.5), 8.7845),
        DockingTarget("docking-braf", "braf", "kinase B-Raf", (84.194, 6.949, -7.081), (22.032, 19.211, 14.106), 10.3),
        DockingTarget("docking-jak2", "jak2", "kinase JAK2", (114.758, 65.496, 11.345), (19.033, 17.929, 20.283), 9.1),
    )
}
"""Name of the task -> target."""


# -- tasks


@dataclass(frozen=True)
class DockingScore:
    """The docking score of a molecule, in kcal/mol with the sign turned: the ``score`` of a docking task.

    Attributes:
        target: the target.
        docking: receptor and settings.
        reference: SMILES file of the training molecules, which novel hits must differ from; None counts no novel hits. The score
            does not depend on it.

    Raises:
        ValueError: if ``reference`` is no file, or holds no molecule.
    """

    target: DockingTarget
    docking: Docking
    reference: str | None = None

    def __post_init__(self) -> None:
        if self.reference is not None:
            check_smiles_file("reference", self.reference)

    @property
    def settings(self) -> dict[str, Any]:
        """All settings and versions that the score and the novel hits depend on, by name, and the threshold of a hit."""
        told = {"target": self.target.name, **self.docking.settings, "hit_above": self.target.threshold}
        if self.reference is not None:
            told |= {"reference": Path(self.reference).name, "reference_digest": file_digest(self.reference)}
        return told

    @property
    def cached_as(self) -> tuple[Any, ...]:
        """Every value that the score depends on."""
        return self.docking.cached_as

    def __call__(self, mol: Chem.Mol) -> float | None:
        """Dock a molecule; None where RDKit finds no conformer."""
        return self.docking.score(mol)


def docking_task(
    target: str,
    receptor: str | Path | None = None,
    *,
    data: str | Path | None = None,
    exhaustiveness: int = 1,
    n_poses: int = 1,
    seed: int = 42,
    cpu: int = 1,
    reference: str | Path | None = None,
) -> Task:
    """The task of docking into one of :data:`TARGETS`; its score is that of :class:`~discrete_grpo.rewards.docking.Docking`.

    A docking takes seconds and can fail on a molecule, so score the task in a pool: ``RewardPool(docking_task(...), workers=2)``.
    Published tables use different settings: GDPO docks with exhaustiveness 16, Graph-GRPO with 1.

    Args:
        target: name of the target, with or without ``docking-``.
        receptor: path of the prepared receptor (PDBQT, may end in ``.gz``).
        data: folder that holds it under the name of the protein, such as ``parp1.pdbqt.gz``; used if no ``receptor`` is given.
        exhaustiveness: exhaustiveness of the search, at least 1.
        n_poses: number of poses kept, at least 1.
        seed: random seed of conformer and search, at least 1.
        cpu: cores per docking, at least 1.
        reference: SMILES file of the training molecules, for the novel hits of :func:`row_numbers`; None counts none.

    Raises:
        ValueError: for an unknown target, a file that is not there, or a setting out of its range.
        ImportError: if vina or meeko is not installed.
    """
    found = _target(target)
    path = find_receptor(found, receptor, data)
    docking = Docking(str(path), found.center, found.box_size, exhaustiveness, n_poses, seed, cpu)
    score = DockingScore(found, docking, None if reference is None else str(reference))
    _ = score.settings  # a missing package is reported now, not after the first samples were drawn
    about = f"Vina score of docking into {found.about} ({found.protein}), sign turned, in kcal/mol"
    return Task(found.name, "docking", about, SOURCE, score)


def find_receptor(target: DockingTarget, receptor: str | Path | None = None, data: str | Path | None = None) -> Path:
    """The receptor's file: ``receptor`` if it is given, else ``protein.pdbqt`` or ``protein.pdbqt.gz`` in the folder ``data``.

    Raises:
        ValueError: if it is not there.
    """
    if receptor is not None:
        if not Path(receptor).is_file():
            raise ValueError(f"receptor: {str(receptor)!r} is no file, expected the prepared receptor of {target.name} (PDBQT)")
        return Path(receptor)
    names = [f"{target.protein}.pdbqt", f"{target.protein}.pdbqt.gz"]
    if data is None:
        raise ValueError(f"receptor: none given for {target.name}, expected its path (receptor) or a folder with {names[1]} (data)")
    for name in names:
        if (path := Path(data) / name).is_file():
            return path
    raise ValueError(f"receptor: {str(data)!r} holds no {' or '.join(names)}, expected the prepared receptor of {target.name}")


def _target(name: str) -> DockingTarget:
    found = TARGETS.get(name) or TARGETS.get(f"docking-{name}")
    if found is None:
        hint = did_you_mean(name, [*TARGETS, *(target.protein for target in TARGETS.values())])
        raise ValueError(f"target: {name!r}, expected one of {', '.join(TARGETS)}" + (f"; {hint}" if hint else ""))
    return found


# -- novel hits


@dataclass(frozen=True)
class NovelHits:
    """Novel hits among samples, with all counts behind the two published numbers.

    Attributes:
        samples: samples given, repeats and invalid ones included.
        valid: valid ones.
        unique: different ones among them, by canonical SMILES; all that follows is about these.
        failed: those without a docking score.
        counted: samples - failed, the denominator of both numbers.
        passed: those with a score, QED > 0.5, SA < 5 and a largest similarity to the training set < 0.4.
        hits: those of them with a score above the threshold.
        hit_ratio: hits / counted, in [0, 1]; NaN if nothing counts.
        top5_score: mean score of the best ⌊0.05 counted⌋ that passed, or of all that passed where they are fewer, in kcal/mol with
            the sign turned; NaN where there are none.
    """

    samples: int
    valid: int
    unique: int
    failed: int
    counted: int
    passed: int
    hits: int
    hit_ratio: float
    top5_score: float


def novel_hits(
    samples: Sequence[str | None],
    scores: Sequence[float | None],
    target: str | DockingTarget,
    reference: Iterable[str] | TrainingSet,
) -> NovelHits:
    """Count the novel hits among samples: the hit ratio and the top-5 % score of the published docking tables.

    Args:
        samples: SMILES or None; all drawn samples, since the ratio is over all of them.
        scores: score of each sample by the docking task, kcal/mol with the sign turned; None or NaN where docking failed. Of the
            scores of repeats the first known one counts.
        target: target or its name, which sets the threshold.
        reference: the training set; create a :class:`~discrete_grpo.rewards.nearest.TrainingSet` once to use it several times.

    Raises:
        ValueError: if there are not as many scores as samples, for an unknown target, or a bad training set.

    Source: ``evaluate`` of the published code of GDPO (Liu et al. (2024), arXiv 2402.16302), which excludes failed dockings from
    the denominator; MOOD, its origin, includes them.
    """
    if len(scores) != len(samples):
        raise ValueError(f"scores: {len(scores)} given, expected one per sample ({len(samples)})")
    threshold = (target if isinstance(target, DockingTarget) else _target(target)).threshold
    known = reference if isinstance(reference, TrainingSet) else TrainingSet(reference)
    first: dict[str, tuple[Chem.Mol, float]] = {}
    mols = parse_all(samples)
    for mol, score in zip(mols, scores, strict=True):
        if mol is not None:
            key, value = to_smiles(mol), math.nan if score is None else float(score)
            if key not in first or math.isnan(first[key][1]):
                first[key] = (mol, value)
    docked = [(mol, score) for mol, score in first.values() if not math.isnan(score)]
    passed = sorted((score for mol, score in docked if _passes(mol, known)), reverse=True)
    failed = len(first) - len(docked)
    counted, hits = len(samples) - failed, sum(score > threshold for score in passed)
    best = passed[: int(0.05 * counted)]
    return NovelHits(
        samples=len(samples),
        valid=sum(mol is not None for mol in mols),
        unique=len(first),
        failed=failed,
        counted=counted,
        passed=len(passed),
        hits=hits,
        hit_ratio=hits / counted if counted else math.nan,
        top5_score=math.fsum(best) / len(best) if best else math.nan,
    )


def _passes(mol: Chem.Mol, reference: TrainingSet) -> bool:
    """Whether a molecule passes the gates of a novel hit; the slowest, the similarity, is computed last."""
    return qed_score(mol) > MIN_QED and sa_score(mol) < MAX_SA and reference.similarity(mol) < MAX_SIMILARITY


def row_numbers(task: Task, samples: Sequence[str], scores: Sequence[float]) -> dict[str, float | None]:
    """Compute the novel hits among the calls of a benchmark run by :func:`novel_hits`, as entries of its row.

    Published tables count them among molecules that a trained policy draws afterwards; here they are those that a method found
    within its budget.

    Args:
        task: a task of :func:`docking_task`.
        samples: SMILES of all calls.
        scores: score of each, NaN where docking failed.

    Returns:
        ``novel_hits``, ``hit_ratio`` in [0, 1] and ``top5_score`` in kcal/mol with the sign turned; None where nothing counts, or
        the task has no ``reference``. Lines of the reference that are no molecule are left out.
    """
    score = task.score
    if not isinstance(score, DockingScore) or score.reference is None:
        return dict.fromkeys(("novel_hits", "hit_ratio", "top5_score"))
    found = novel_hits(samples, scores, score.target, TrainingSet(smiles_of(score.reference)))
    numbers = {"novel_hits": found.hits, "hit_ratio": found.hit_ratio, "top5_score": found.top5_score}
    return {name: None if math.isnan(value) else value for name, value in numbers.items()}
