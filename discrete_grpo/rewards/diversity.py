"""Diversity as a reward: a memory of what was found before, and what a sample adds to the set it was drawn in.

Samples are SMILES or None; invalid ones keep the score of the wrapped reward and are never remembered. None of these
rewards gives equal samples equal scores, so none may be cached (``cached_as = None``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias

from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator
from rdkit.Chem.Scaffolds import MurckoScaffold

from discrete_grpo.core.scoring import reward_name, score_one
from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains import molecules as chemistry

__all__ = [
    "DiversityContribution",
    "DiversityFilter",
    "FilterKind",
    "MeanDistance",
    "Penalty",
    "diversity_metrics",
    "erf_penalty",
    "linear_penalty",
    "sigmoid_penalty",
    "step_penalty",
    "tanh_penalty",
    "topological_scaffold",
]

FilterKind: TypeAlias = Literal[
    "IdenticalMurckoScaffold", "IdenticalTopologicalScaffold", "ScaffoldSimilarity", "PenalizeSameSmiles"
]
Penalty: TypeAlias = Literal["Step", "Linear", "Tanh", "Sigmoid", "Erf"]


# -- what is left of a score when its bucket has been hit n times, this time included; REINVENT4's shapes


def step_penalty(count: int, bucket_size: int) -> float:
    """1 while n <= size, then 0. Source: Blaschke et al. (2020); REINVENT4 up to 4.8 (4.9 gives 0 from n = size on).

    >>> step_penalty(25, 25), step_penalty(26, 25)
    (1.0, 0.0)
    """
    return float(count <= bucket_size)


def linear_penalty(count: int, bucket_size: int) -> float:
    """max(0, 1 - n / size). Source: REINVENT4 4.9."""
    return max(0.0, 1.0 - count / bucket_size)


def tanh_penalty(count: int, bucket_size: int) -> float:
    """1 - tanh(3 (n - 1) / size). Source: REINVENT4 4.9."""
    return 1.0 - math.tanh(3.0 * (count - 1) / bucket_size)


def sigmoid_penalty(count: int, bucket_size: int) -> float:
    """1 - 1 / (1 + exp(-(2 n / size - 1) / 0.15)): one half at n = size / 2. Source: REINVENT4 4.9."""
    return 0.5 * (1.0 - math.tanh((2.0 * count / bucket_size - 1.0) / 0.3))  # the same, without an exponential that overflows


def erf_penalty(count: int, bucket_size: int) -> float:
    """1 + erf(√π / size) - erf(√π n / size). Source: REINVENT4 4.9."""
    scale = math.sqrt(math.pi) / bucket_size
    return 1.0 + math.erf(scale) - math.erf(scale * count)


# -- buckets


def topological_scaffold(mol: Chem.Mol) -> str:
    """SMILES of the Murcko scaffold with every atom a carbon and every bond single; empty for a molecule without rings.

    Also empty where that is no molecule (a ring atom with more than four neighbours).
    """
    try:
        return str(Chem.MolToSmiles(MurckoScaffold.MakeScaffoldGeneric(MurckoScaffold.GetScaffoldForMol(mol))))
    except ValueError:
        return ""


@lru_cache(maxsize=65536)
def _murcko(smiles: str) -> str:
    """By sample, as the filter and the metrics ask for the same ones."""
    mol = chemistry.parse(smiles)
    return "" if mol is None else molecule_properties.murcko_scaffold(mol)


def _topological(smiles: str) -> str:
    mol = chemistry.parse(smiles)
    return "" if mol is None else topological_scaffold(mol)


def _atom_pairs(scaffold: str) -> DataStructs.ULongSparseIntVect:
    """Atom pair counts, unfolded."""
    mol = chemistry.parse_smiles(scaffold)
    assert mol is not None  # a scaffold that RDKit wrote itself
    return rdFingerprintGenerator.GetAtomPairGenerator().GetSparseCountFingerprint(mol)


_SCAFFOLDS: dict[FilterKind, Callable[[str], str] | None] = {
    "IdenticalMurckoScaffold": _murcko,
    "IdenticalTopologicalScaffold": _topological,
    "ScaffoldSimilarity": _murcko,
    "PenalizeSameSmiles": None,
}
_PENALTIES: dict[Penalty, Callable[[int, int], float]] = {
    "Step": step_penalty,
    "Linear": linear_penalty,
    "Tanh": tanh_penalty,
    "Sigmoid": sigmoid_penalty,
    "Erf": erf_penalty,
}


class DiversityFilter:
    """A reward on molecules that pays less for what a run has found before, as REINVENT4's diversity filter.

    Samples are taken in order, so of two equal ones in a batch only the first is new. With a scaffold kind, a SMILES that
    was remembered scores 0; a new one of score >= ``minscore`` is remembered, counts in the bucket of its scaffold and
    keeps ``penalty(n, bucket_size)`` of its score, n being the bucket's count with it; a lower score passes as it is. All
    molecules without rings share one bucket. ``PenalizeSameSmiles`` has no buckets: it remembers every valid SMILES and
    multiplies the score of a repeat by ``penalty_multiplier``.

    The wrapped reward is not asked about a SMILES whose repeat scores 0 anyway. What it leaves unknown stays unknown and is
    not remembered. Each process has a memory of its own, so a pool goes into the filter and not the filter into a pool.
    Evaluate with :attr:`reward`: every call of the filter is remembered.

    Args:
        reward: any reward on SMILES; above 0 where a molecule is any good.
        kind: what makes a bucket: the Murcko scaffold, its topology (all carbon, all single bonds), or the most similar
            scaffold remembered (Dice on atom pair counts); or nothing but the SMILES itself.
        bucket_size: how many molecules a bucket takes, at least 1.
        minscore: what a score must reach to be remembered, at least 0.
        minsimilarity: from which similarity, in [0, 1], a scaffold counts as one remembered (``ScaffoldSimilarity``).
        penalty_multiplier: what a repeat is worth, in [0, 1] (``PenalizeSameSmiles``).
        penalty: shape of the decline as a bucket fills.

    Raises:
        ValueError: if a setting is out of its range.

    Source: Blaschke et al. (2020), Memory-assisted reinforcement learning; Loeffler et al. (2024), REINVENT4.

    >>> def ones(samples, **columns): return [1.0] * len(samples)
    >>> once = DiversityFilter(ones, bucket_size=1)
    >>> once(["Cc1ccccc1", "Cc1ccccc1", "CCc1ccccc1", "C1CC1"])
    [1.0, 0.0, 0.0, 1.0]
    """

    cached_as: ClassVar[None] = None

    def __init__(
        self,
        reward: Callable[..., Sequence[float | None]],
        kind: FilterKind = "IdenticalMurckoScaffold",
        *,
        bucket_size: int = 25,
        minscore: float = 0.4,
        minsimilarity: float = 0.4,
        penalty_multiplier: float = 0.5,
        penalty: Penalty = "Step",
    ) -> None:
        if not callable(reward):
            raise ValueError(f"reward: {reward!r}, expected a callable from samples to numbers")
        for name, value, known in (("kind", kind, _SCAFFOLDS), ("penalty", penalty, _PENALTIES)):
            if value not in known:
                raise ValueError(f"{name}: {value!r}, expected one of {', '.join(known)}")
        if bucket_size < 1:
            raise ValueError(f"bucket_size: {bucket_size}, expected at least 1")
        if not 0.0 <= minscore < math.inf:
            raise ValueError(f"minscore: {minscore}, expected a finite number of at least 0")
        for name, share in (("minsimilarity", minsimilarity), ("penalty_multiplier", penalty_multiplier)):
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"{name}: {share}, expected a number from 0 to 1")
        self.reward, self.kind, self.penalty = reward, kind, penalty
        self.bucket_size, self.minscore = bucket_size, minscore
        self.minsimilarity, self.penalty_multiplier = minsimilarity, penalty_multiplier
        self._seen: dict[str, None] = {}  # a set that keeps its order
        self._buckets: dict[str, int] = {}
        self._pairs: dict[str, DataStructs.ULongSparseIntVect] = {}  # of the buckets' scaffolds, in their order

    @property
    def name(self) -> str:
        """For logs."""
        return f"{reward_name(self.reward)} filtered"

    @property
    def buckets(self) -> Mapping[str, int]:
        """Scaffold -> how often it was hit, oldest first."""
        return dict(self._buckets)

    def take_failures(self) -> list[Any]:
        """What the wrapped reward could not score since the last call, if it keeps such a list (a pool)."""
        return list(getattr(self.reward, "take_failures", list)())

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """One number a sample, None where the wrapped reward's is unknown; the memory grows.

        Raises:
            RewardError: if the wrapped reward fails.
        """
        smiles = [None if mol is None else chemistry.to_smiles(mol) for mol in chemistry.parse_all(samples)]
        scores = self._scores(samples, smiles, columns)
        change = self._repeat if self.kind == "PenalizeSameSmiles" else self._bucketed
        pairs = zip(smiles, scores, strict=True)
        return [score if text is None or score is None else change(text, score) for text, score in pairs]

    def _scores(
        self, samples: Sequence[str | None], smiles: Sequence[str | None], columns: Mapping[str, Sequence[Any]]
    ) -> list[float | None]:
        """The wrapped reward's, None where unknown; 0 without asking where a repeat scores nothing."""
        skip = self._seen if self.kind != "PenalizeSameSmiles" else {}
        todo = [k for k, text in enumerate(smiles) if text is None or text not in skip]
        scores: list[float | None] = [0.0] * len(samples)
        if todo:
            picked = {name: [values[k] for k in todo] for name, values in columns.items()}
            found = score_one(self.reward, [samples[k] for k in todo], picked).tolist()
            for k, score in zip(todo, found, strict=True):
                scores[k] = None if math.isnan(score) else score
        return scores

    def _repeat(self, smiles: str, score: float) -> float:
        known = smiles in self._seen
        self._seen[smiles] = None
        return min(score, self.penalty_multiplier * score) if known else score

    def _bucketed(self, smiles: str, score: float) -> float:
        if smiles in self._seen:
            return 0.0
        if score < self.minscore:
            return score
        bucket = self._bucket(smiles)
        self._seen[smiles] = None
        count = self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        return score * _PENALTIES[self.penalty](count, self.bucket_size)

    def _bucket(self, smiles: str) -> str:
        """The scaffold whose bucket takes the molecule."""
        scaffold_of = _SCAFFOLDS[self.kind]
        assert scaffold_of is not None  # only kinds with buckets come here
        scaffold = scaffold_of(smiles)
        if self.kind != "ScaffoldSimilarity" or not scaffold:
            return scaffold
        for other in self._buckets:
            if other and other not in self._pairs:
                self._pairs[other] = _atom_pairs(other)
        others = list(self._pairs)
        alike = DataStructs.BulkDiceSimilarity(_atom_pairs(scaffold), list(self._pairs.values())) if others else [-1.0]
        closest = max(range(len(alike)), key=alike.__getitem__)  # the oldest of equals
        return others[closest] if alike[closest] >= self.minsimilarity else scaffold

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The memory as plain JSON, whose order matters."""
        return {"kind": self.kind, "seen": list(self._seen), "buckets": [[name, count] for name, count in self._buckets.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError: if the memory is one of another kind.
        """
        if state["kind"] != self.kind:
            raise ValueError(f"kind: {self.kind}, expected {state['kind']} as in the memory to go on from")
        self._seen = dict.fromkeys(map(str, state["seen"]))
        self._buckets = {str(name): int(count) for name, count in state["buckets"]}
        self._pairs = {}


# -- of a set


def _similarities(mols: Sequence[Chem.Mol]) -> list[list[float]]:
    """T_ij, Tanimoto of Morgan bits (radius 2, 1024), a molecule with itself included, [m,m]."""
    prints = [molecule_properties.bit_fingerprint(mol, radius=2, size=1024) for mol in mols]
    return [list(DataStructs.BulkTanimotoSimilarity(own, prints)) for own in prints]


def _by_set(
    samples: Sequence[str | None],
    columns: Mapping[str, Sequence[Any]],
    by: str | None,
    measure: Callable[[Sequence[Chem.Mol]], Sequence[float]],
) -> list[float]:
    """``measure`` within each set of valid samples; 0 for the rest."""
    if by is not None and by not in columns:
        raise ValueError(
            f"{by}: no such column, expected one to tell the sets apart (columns given: {', '.join(columns) or 'none'})"
        )
    labels = [None] * len(samples) if by is None else columns[by]
    sets: dict[Any, list[tuple[int, Chem.Mol]]] = {}
    for k, (mol, label) in enumerate(zip(chemistry.parse_all(samples), labels, strict=True)):
        if mol is not None:
            sets.setdefault(label, []).append((k, mol))
    scores = [0.0] * len(samples)
    for members in sets.values():
        for (k, _), value in zip(members, measure([mol for _, mol in members]), strict=True):
            scores[k] = value
    return scores


def _contributions(mols: Sequence[Chem.Mol]) -> list[float]:
    """D(S) - D(S without i) with D(S) = 1 - Σ_ij T_ij / m², self pairs included; D of nothing is 0."""
    m, table = len(mols), _similarities(mols)
    rows = [math.fsum(row) for row in table]
    total = math.fsum(rows)
    whole = 1.0 - total / m**2
    if m == 1:
        return [whole]
    # row i and column i go, and T_ii = 1 stands in both
    return [whole - (1.0 - (total - 2.0 * row + 1.0) / (m - 1) ** 2) for row in rows]


def _distances(mols: Sequence[Chem.Mol]) -> list[float]:
    """1 - Σ_{j≠i} T_ij / (m - 1); 1 for a molecule that stands alone."""
    m = len(mols)
    if m == 1:
        return [1.0]
    return [1.0 - (math.fsum(row) - 1.0) / (m - 1) for row in _similarities(mols)]


@dataclass(frozen=True)
class DiversityContribution:
    """D(S) - D(S∖{i}): what a sample adds to the internal diversity of its set, in (-1, 1); 0 for an invalid sample.

    D(S) = 1 - Σ_ij T_ij / m² over the m valid samples, T being Tanimoto on Morgan bits (radius 2, 1024), as ``internal_diversity``
    is measured. A copy of another sample adds less than nothing, so next to a reward of 0 for the invalid it wants the
    company of one for validity; :class:`MeanDistance` orders a set the same way and is never negative.

    Attributes:
        by: column whose values tell the sets of a batch apart; None: the whole batch is one.

    Raises:
        ValueError: when called, if there is no such column.

    >>> [round(x, 3) for x in DiversityContribution()(["CCO", "CCO", "c1ccccc1", None])]
    [-0.056, -0.056, 0.444, 0.0]
    """

    by: str | None = None
    cached_as: ClassVar[None] = None
    name: ClassVar[str] = "diversity_contribution"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """One number a sample."""
        return _by_set(samples, columns, self.by, _contributions)


@dataclass(frozen=True)
class MeanDistance:
    """1 - mean_{j≠i} T_ij: how unlike the rest of its set a sample is, in [0, 1]; 0 for an invalid sample, 1 for one alone.

    T is Tanimoto on Morgan bits (radius 2, 1024), over the valid samples.

    Attributes:
        by: column whose values tell the sets of a batch apart; None: the whole batch is one.

    Raises:
        ValueError: when called, if there is no such column.

    >>> MeanDistance()(["CCO", "CCO", "c1ccccc1", None])
    [0.5, 0.5, 1.0, 0.0]
    """

    by: str | None = None
    cached_as: ClassVar[None] = None
    name: ClassVar[str] = "mean_distance"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """One number a sample."""
        return _by_set(samples, columns, self.by, _distances)


def diversity_metrics(samples: Sequence[str | None], max_samples: int = 256) -> dict[str, float]:
    """``unique_scaffolds``: distinct Murcko scaffolds / valid; ``internal_diversity``: 1 - mean T_ij, self pairs included.

    Cheap enough for every step. Of more than ``max_samples`` samples, evenly spaced ones are taken; both are 0 where none of
    them is valid. Molecules without rings share the empty scaffold.

    Raises:
        ValueError: if ``max_samples`` is below 1.

    >>> diversity_metrics(["Cc1ccccc1", "Cc1ccccc1", None])
    {'unique_scaffolds': 0.5, 'internal_diversity': 0.0}
    """
    if max_samples < 1:
        raise ValueError(f"max_samples: {max_samples}, expected at least 1")
    count = len(samples)
    taken = samples if count <= max_samples else [samples[k * count // max_samples] for k in range(max_samples)]
    valid = [(s, mol) for s, mol in zip(taken, map(chemistry.parse, taken), strict=True) if s is not None and mol is not None]
    if not valid:
        return {"unique_scaffolds": 0.0, "internal_diversity": 0.0}
    m = len(valid)
    mean = math.fsum(math.fsum(row) for row in _similarities([mol for _, mol in valid])) / m**2
    return {"unique_scaffolds": len({_murcko(s) for s, _ in valid}) / m, "internal_diversity": 1.0 - mean}
