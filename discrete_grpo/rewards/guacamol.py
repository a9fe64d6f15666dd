"""The 20 tasks of GuacaMol's goal-directed suite, version 2, and its score.

Eighteen are tasks of :mod:`discrete_grpo.rewards.pmo` under the same name and with the same definition; the similarity to
aripiprazole and the isomers of C11H24 are added. GuacaMol counts no calls: a method submits its best molecules, and
:func:`guacamol_score` is a mean over them.

Source: Brown et al. (2019), GuacaMol, https://doi.org/10.1021/acs.jcim.8b00839
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.rewards import pmo
from discrete_grpo.rewards.scoring_parts import Clipped, Isomer, Tanimoto
from discrete_grpo.rewards.task import Task

__all__ = ["TASKS", "TOP", "guacamol_score", "row_numbers"]

ARIPIPRAZOLE = "Clc4cccc(N3CCN(CCCCOc2ccc1c(NC(=O)CC1)c2)CC3)c4Cl"
SHARED = (
    "celecoxib_rediscovery",
    "troglitazone_rediscovery",
    "thiothixene_rediscovery",
    "albuterol_similarity",
    "mestranol_similarity",
    "isomers_c9h10n2o2pf2cl",
    "median1",
    "median2",
    "osimertinib_mpo",
    "fexofenadine_mpo",
    "ranolazine_mpo",
    "perindopril_mpo",
    "amlodipine_mpo",
    "sitagliptin_mpo",
    "zaleplon_mpo",
    "valsartan_smarts",
    "deco_hop",
    "scaffold_hop",
)
"""Tasks of PMO with the same definition."""


def _shared(name: str) -> Task:
    return replace(pmo.TASKS[name], suite="guacamol", published={}, published_prescreened={})


_ALL = (
    *map(_shared, SHARED),
    Task(
        "aripiprazole_similarity",
        "guacamol",
        "clip(ECFP4(aripiprazole), .75); TDC takes FCFP4",
        pmo.GUACAMOL,
        Clipped(Tanimoto("ECFP4", ARIPIPRAZOLE), 0.75),
        optimum=1.0,
    ),
    Task(
        "isomers_c11h24",
        "guacamol",
        "Isomer(C11H24); 159 molecules score 1, stereo aside",
        pmo.GUACAMOL,
        Isomer("C11H24"),
        optimum=1.0,
        elements=frozenset({"C"}),
    ),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
"""Name -> task."""
TOP: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(TASKS, (1, 10, 100)),
    **dict.fromkeys((name for name in TASKS if name.endswith("_rediscovery")), (1,)),
    "isomers_c11h24": (159,),
    "isomers_c9h10n2o2pf2cl": (250,),
}
"""Name -> the numbers of best molecules whose mean scores are averaged."""


def guacamol_score(task: Task | str, scores: Iterable[float | None]) -> float:
    """Mean over k of the mean of the best k scores, where missing and unknown scores count as 0.

    k is 1, 10 and 100; 1 alone for a rediscovery; 159 for C11H24 and 250 for C9H10N2O2PF2Cl.

    Args:
        task: a task of this suite, or its name.
        scores: one score per distinct molecule; None or NaN where it is unknown. GuacaMol removes stereochemistry before it
            compares molecules.

    Returns:
        A number in [0, 1], higher is better.

    Raises:
        ValueError: if the suite has no such task; the nearest is named.

    >>> guacamol_score("isomers_c9h10n2o2pf2cl", [1.0] * 125)
    0.5
    """
    name = task if isinstance(task, str) else task.name
    if name not in TOP:
        raise ValueError(f"task: {name!r} is not in the suite guacamol; {did_you_mean(name, TOP)}".rstrip("; "))
    best = sorted((score for score in scores if score is not None and not math.isnan(score)), reverse=True)
    return math.fsum(math.fsum(best[:k]) / k for k in TOP[name]) / len(TOP[name])


def row_numbers(task: Task, samples: Sequence[str], scores: Sequence[float]) -> dict[str, float | None]:
    """The entry ``guacamol_score`` of a benchmark's row: :func:`guacamol_score` over its calls, each molecule once without stereo.

    Args:
        task: a task of this suite.
        samples: SMILES of all calls.
        scores: score of each, NaN where it is unknown.
    """
    known = [(score, sample) for sample, score in zip(samples, scores, strict=True) if not math.isnan(score)]
    best: dict[str, float] = {}
    for score, sample in sorted(known, key=lambda one: -one[0]):
        if len(best) == max(TOP[task.name]):
            break
        best.setdefault(_without_stereo(sample), score)
    return {"guacamol_score": guacamol_score(task, best.values())}


def _without_stereo(smiles: str) -> str:
    from discrete_grpo.domains.smiles import parse, to_smiles  # imports RDKit

    mol = parse(smiles)
    return smiles if mol is None else to_smiles(mol, stereo=False)
