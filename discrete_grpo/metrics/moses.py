"""The distribution metrics of MOSES: generated molecules against a reference set.

Samples are SMILES or None. **Valid** means here what it means in MOSES: RDKit sanitises the string, connected or not.

Source: Polykovskiy et al. (2020), MOSES, arXiv 1811.12823.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np
from jaxtyping import Float

from discrete_grpo.core.checks import check_samples
from discrete_grpo.metrics import chemnet
from discrete_grpo.metrics.distances import frechet_to, mean_similarity, nearest_similarity, wasserstein
from discrete_grpo.metrics.molecule_suite import (
    Rows,
    Samples,
    canonical_valid,
    cosine_statistic,
    distinct_share,
    novel_share,
    reference_table,
    repair_statistics,
)
from discrete_grpo.metrics.molecule_table import PROPERTIES, MoleculeTable
from discrete_grpo.metrics.nspdk import nspdk_statistic
from discrete_grpo.metrics.resampling import Statistic, disjoint_halves, mean_of, whole
from discrete_grpo.metrics.suite import SuiteOptions, SuiteResult, estimates

__all__ = ["PAIRS", "distances", "fcd_statistic", "moses"]

PAIRS = 1000
"""Largest number of molecules per part in the interval of a metric over all pairs."""


def moses(
    samples: Samples, reference: Samples, train: Collection[str] | None = None, options: SuiteOptions | None = None
) -> SuiteResult:
    """Compute the metrics of MOSES, and further metrics that papers on graph models report.

    Args:
        samples: SMILES or None, one per generated object, in the order in which they were drawn.
        reference: SMILES of the test set; strings that do not sanitise are left out.
        train: SMILES of the training set. As in MOSES they are compared unchanged with canonical SMILES of the samples, so they
            must be canonical. None takes the reference in canonical form.
        options: of intervals and folds.

    Returns:
        ``valid``: sanitised / all; ``unique@1k``, ``unique@10k``: distinct / all of the first 1,000 and 10,000 valid ones, or of
        those there are; ``novel``: distinct ones not in the training set / distinct; those of :func:`distances`; and those of
        :func:`discrete_grpo.metrics.molecule_suite.repair_statistics`.

    Raises:
        ValueError: if the reference has fewer than 2 molecules, or the folds do not divide the samples.

    >>> round(moses(["CCO", "CCN", None], ["CCO", "CCC"]).metrics["valid"].value, 3)
    0.667
    """
    options = options or SuiteOptions()
    check_samples(samples)
    check_samples(train, "train")
    table = reference_table(reference)
    names = canonical_valid(samples)
    generated = MoleculeTable([s for s in names if s is not None])
    place = np.cumsum([s is not None for s in names], dtype=np.int64) - 1
    known = frozenset(table.smiles if train is None else train)

    def statistics(rows: Rows) -> dict[str, Statistic]:
        valid = np.array([place[k] for k in rows if names[k] is not None], dtype=np.int64)
        part = generated if len(valid) == len(generated) else generated.take(valid)
        return _counts([samples[k] for k in rows], part, known) | distances(part, table)

    def perfect() -> dict[str, float]:
        first, second = (table.take(rows) for rows in disjoint_halves(len(table), len(generated), options.seed))
        seen = frozenset(second.smiles) if train is None else known
        ideal = _counts(first.smiles, first, seen) | distances(first, second)
        return {name: whole(statistic) for name, statistic in ideal.items()}

    note = chemnet.missing()
    found = estimates(statistics, len(samples), perfect, options)
    return SuiteResult(found, (note,) * bool(note), {"reference_molecules": len(table), "valid_molecules": len(generated)})


def _counts(samples: Samples, valid: MoleculeTable, known: Collection[str]) -> dict[str, Statistic]:
    """The shares of valid, unique and novel samples, and those after repairs."""
    share = np.zeros(len(samples))
    share[: len(valid)] = 1.0  # a share does not depend on the order of the samples
    found = {"valid": mean_of(share, 0.0, 1.0)}
    found |= {f"unique@{k // 1000}k": distinct_share(valid.smiles[:k]) for k in (1000, 10_000)}
    return found | {"novel": novel_share(valid.smiles, known)} | repair_statistics(samples, known)


def distances(generated: MoleculeTable, reference: MoleculeTable) -> dict[str, Statistic]:
    """The metrics of valid molecules against a reference.

    Returns:
        ``snn``: mean over the generated of the largest Tanimoto similarity (ECFP4, 1024 bits) to the reference, in [0, 1];
        ``frag``, ``scaf``: cosine of the counts of BRICS fragments, and of Murcko scaffolds of at least 2 rings, in [0, 1];
        ``int_div_1``, ``int_div_2``: 1 - mean_i (mean_j T_ij^p)^(1/p), pairs of a molecule with itself included, the root taken
        per molecule, in [0, 1]; ``filters_rdkit``: share that passes
        :func:`discrete_grpo.metrics.alerts.passes_filters`; ``w1_logp``, ``w1_sa``, ``w1_qed``, ``w1_weight`` (g/mol): Wasserstein
        distances; ``nspdk``: :func:`discrete_grpo.metrics.nspdk.nspdk_statistic`; ``fcd``: Frechet distance of ChemNet's
        activations, where its package is installed.
    """
    bits = generated.feature("ecfp4")
    found = {"snn": mean_of(nearest_similarity(bits, reference.feature("ecfp4")), 0.0, 1.0)}
    found["frag"] = cosine_statistic(generated.feature("fragments"), reference.feature("fragments"))
    own, other = ([[s] if s else [] for s in table.feature("scaffold")] for table in (generated, reference))
    found["scaf"] = cosine_statistic(own, other)
    for p in (1, 2):
        found[f"int_div_{p}"] = _diversity(bits, p)
    found["filters_rdkit"] = mean_of(generated.feature("passes"), 0.0, 1.0)
    found |= {f"w1_{name}": _wasserstein(generated.feature(name), reference.feature(name)) for name in PROPERTIES}
    found["nspdk"] = nspdk_statistic(generated, reference)
    if not chemnet.missing():
        found["fcd"] = fcd_statistic(generated, reference)
    return found


def _diversity(bits: np.ndarray, p: int) -> Statistic:
    return Statistic(lambda rows: float(1.0 - mean_similarity(bits[rows], p).mean()), len(bits), 0.0, 1.0, PAIRS)


def _wasserstein(own: np.ndarray, reference: np.ndarray) -> Statistic:
    return Statistic(lambda rows: wasserstein(own[rows], reference), len(own), 0.0)


def activations(table: MoleculeTable) -> Float[np.ndarray, "molecule unit"]:
    """ChemNet's activations of the molecules, computed once."""
    found: Float[np.ndarray, "molecule unit"] = table.cached("chemnet", partial(chemnet.activations, table.smiles))
    return found


def fcd_statistic(generated: MoleculeTable, reference: MoleculeTable) -> Statistic:
    """The Frechet ChemNet distance of two sets of molecules, at least 0; NaN with fewer than 2 molecules in one."""
    own, other = activations(generated), activations(reference)
    distance = frechet_to(other)
    return Statistic(lambda rows: distance(own[rows]), len(own), 0.0)
