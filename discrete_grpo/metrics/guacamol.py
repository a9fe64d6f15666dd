"""The distribution metrics of GuacaMol, which compare generated molecules with the training set.

Samples are SMILES or None. **Valid** means that RDKit sanitises the string, connected or not. Stereochemistry is removed before
molecules are compared.

Source: Brown et al. (2019), GuacaMol, arXiv 1811.09621.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float, Int, UInt8

from discrete_grpo.core.checks import check_samples
from discrete_grpo.metrics import chemnet
from discrete_grpo.metrics.distances import continuous_kl, discrete_kl, nearest_similarity
from discrete_grpo.metrics.molecule_suite import Rows, Samples, canonical_valid, distinct_share, reference_table, repair_statistics
from discrete_grpo.metrics.molecule_table import DESCRIPTORS, MoleculeTable
from discrete_grpo.metrics.moses import PAIRS, activations, fcd_statistic
from discrete_grpo.metrics.resampling import Statistic, disjoint_halves, mean_of, whole
from discrete_grpo.metrics.suite import SuiteOptions, SuiteResult, estimates

__all__ = ["guacamol", "kl_divergences"]

REQUESTED = 10_000
"""Number of generated molecules, and of reference molecules, in GuacaMol."""
CONTINUOUS = 4
"""The first descriptors, compared by densities; the others by histograms."""


def guacamol(samples: Samples, reference: Samples, options: SuiteOptions | None = None) -> SuiteResult:
    """Compute the metrics of GuacaMol, and further metrics that papers on graph models report.

    GuacaMol draws from the generator until it has 10,000 valid, or different, molecules, and divides by that number. A file is
    finite, so ``unique`` is computed on its first 10,000 valid samples and ``novel`` on its first 10,000 different molecules, or on
    all if there are fewer; the numbers equal the published definition if the file holds 10,000 different molecules.

    Args:
        samples: SMILES or None, one per generated object, in the order in which they were drawn.
        reference: SMILES of the training set; distributions are compared with a seeded draw of 10,000, novelty with all of them.
        options: of intervals and folds.

    Returns:
        ``valid``: sanitised / all; ``unique``: distinct / valid; ``novel``: distinct ones not in the reference / distinct;
        ``kl_score``: mean of exp(-KL) over ten distributions of distinct molecules, and each KL as ``kl_NAME``, see
        :func:`kl_divergences`; ``fcd`` of the first 10,000 valid samples, repeats included, and ``fcd_score`` = exp(-0.2 FCD),
        where the package is installed; and those of
        :func:`discrete_grpo.metrics.molecule_suite.repair_statistics`.

    Raises:
        ValueError: if the reference has fewer than 2 different molecules, or the folds do not divide the samples.
    """
    options = options or SuiteOptions()
    check_samples(samples)
    known = reference_table(reference, stereo=False)
    drawn, rest = np.split(np.random.default_rng(42).permutation(len(known)), [REQUESTED])
    table = known.take(np.sort(drawn))
    names = canonical_valid(samples, stereo=False)
    everything = frozenset(known.smiles)
    features = MoleculeTable(list(dict.fromkeys(s for s in names if s is not None)))
    place = {s: k for k, s in enumerate(features.smiles)}
    for name in ("descriptors", "ecfp4_4096"):  # once per molecule, however often it was drawn and in how many folds
        features.feature(name)
    if not chemnet.missing():
        activations(features)

    def statistics(rows: Rows) -> dict[str, Statistic]:
        valid = [s for k in rows if (s := names[k]) is not None]
        distinct = list(dict.fromkeys(valid))[:REQUESTED]
        part, repeated = (features.take(_places(place, chosen)) for chosen in (distinct, valid[:REQUESTED]))
        return _counts([samples[k] for k in rows], valid, part, everything) | _distances(part, repeated, table)

    def perfect() -> dict[str, float]:
        wanted = min(len(features), REQUESTED)
        if len(rest) >= wanted:  # of equal size, as distances depend on it
            fresh = np.random.default_rng(options.seed).permutation(rest)[:wanted]
            first, second = known.take(np.sort(fresh)), table
        else:
            first, second = (table.take(rows) for rows in disjoint_halves(len(table), wanted, options.seed))
        seen = frozenset(second.smiles)
        ideal = _counts(first.smiles, list(first.smiles), first, seen) | _distances(first, first, second)
        return {name: whole(statistic) for name, statistic in ideal.items()}

    note = chemnet.missing()
    found = estimates(statistics, len(samples), perfect, options)
    settings: dict[str, float | str] = {"reference_molecules": len(table), "distinct_molecules": len(features)}
    return SuiteResult(found, (note,) * bool(note), settings)


def _counts(samples: Samples, valid: list[str], distinct: MoleculeTable, known: frozenset[str]) -> dict[str, Statistic]:
    share = np.zeros(len(samples))
    share[: len(valid)] = 1.0  # a share does not depend on the order of the samples
    found = {"valid": mean_of(share, 0.0, 1.0), "unique": distinct_share(valid[:REQUESTED])}
    found["novel"] = mean_of(np.array([s not in known for s in distinct.smiles]), 0.0, 1.0)
    return found | repair_statistics(samples, known, stereo=False)


def _places(place: Mapping[str, int], chosen: list[str]) -> Int[np.ndarray, " row"]:
    return np.array([place[s] for s in chosen], dtype=np.int64)


def _distances(distinct: MoleculeTable, repeated: MoleculeTable, reference: MoleculeTable) -> dict[str, Statistic]:
    divergences = kl_divergences(distinct, reference)

    def score(rows: Rows) -> float:
        return float(np.mean([math.exp(-divergence(rows)) for divergence in divergences.values()]))

    found = {"kl_score": Statistic(score, len(distinct), 0.0, 1.0, PAIRS)}
    found |= {f"kl_{name}": Statistic(f, len(distinct), 0.0, math.inf, PAIRS) for name, f in divergences.items()}
    if not chemnet.missing():
        found["fcd"] = fcd = fcd_statistic(repeated, reference)
        found["fcd_score"] = Statistic(lambda rows: math.exp(-0.2 * fcd.of(rows)), fcd.size, 0.0, 1.0)
    return found


def kl_divergences(distinct: MoleculeTable, reference: MoleculeTable) -> dict[str, Callable[[Rows], float]]:
    """The ten divergences KL(reference ‖ samples) of GuacaMol, each a function of rows of the samples.

    Returns:
        The four continuous descriptors ``bertz``, ``logp``, ``weight`` and ``tpsa``
        (:func:`discrete_grpo.metrics.distances.continuous_kl`), the five counts ``acceptors``, ``donors``, ``rotatable_bonds``,
        ``aliphatic_rings`` and ``aromatic_rings`` (:func:`discrete_grpo.metrics.distances.discrete_kl`), and the continuous
        ``internal_similarity``: of the largest Tanimoto similarity (ECFP4, 4096 bits) to another molecule of the same set.
    """
    own, other = distinct.feature("descriptors"), reference.feature("descriptors")
    found: dict[str, Callable[[Rows], float]] = {}
    for k, name in enumerate(DESCRIPTORS):
        kl = continuous_kl if k < CONTINUOUS else discrete_kl
        found[name] = lambda rows, k=k, kl=kl: kl(other[:, k], own[rows, k])  # type: ignore[misc]
    bits, nearest = distinct.feature("ecfp4_4096"), _to_others(reference.feature("ecfp4_4096"))
    return found | {"internal_similarity": lambda rows: continuous_kl(nearest, _to_others(bits[rows]))}


def _to_others(bits: UInt8[np.ndarray, "row bit"]) -> Float[np.ndarray, " row"]:
    return nearest_similarity(bits, bits, others=True)
