"""Diversity as a reward: a filter that remembers earlier molecules, and the contribution of a sample to the diversity of its set.

Samples are SMILES or None. Invalid samples keep the score of the wrapped reward and are never remembered. Equal samples get
different scores from these rewards, so none of them may be cached (``cached_as = None``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias

from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator
from rdkit.Chem.Scaffolds import MurckoScaffold

from discrete_grpo.core.checks import check_columns, check_range, check_whole, plain_scalar
from discrete_grpo.core.reward_arguments import check_forgets, reward_name
from discrete_grpo.core.scoring import score_one
from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains.smiles import parse, parse_all, parse_smiles, to_smiles
from discrete_grpo.rewards.penalties import PENALTIES, Penalty

__all__ = [
    "DiversityContribution",
    "DiversityFilter",
    "FilterKind",
    "MeanDistance",
    "diversity_metrics",
    "topological_scaffold",
]

FilterKind: TypeAlias = Literal[
    "IdenticalMurckoScaffold", "IdenticalTopologicalScaffold", "ScaffoldSimilarity", "PenalizeSameSmiles"
]


# -- buckets


def topological_scaffold(mol: Chem.Mol) -> str:
    """Compute the SMILES of the Murcko scaffold with every atom a carbon and every bond single.

    It is empty for a molecule without rings, and where the result is no molecule (a ring atom with more than four neighbours).
    """
    try:
        return str(Chem.MolToSmiles(MurckoScaffold.MakeScaffoldGeneric(MurckoScaffold.GetScaffoldForMol(mol))))
    except ValueError:
        return ""


@lru_cache(maxsize=65536)
def _murcko(smiles: str) -> str:
    """Compute the Murcko scaffold of a sample; cached, since the filter and the metrics ask for the same ones."""
    mol = parse(smiles)
    return "" if mol is None else molecule_properties.murcko_scaffold(mol)


def _topological(smiles: str) -> str:
    mol = parse(smiles)
    return "" if mol is None else topological_scaffold(mol)


def _atom_pairs(scaffold: str) -> DataStructs.ULongSparseIntVect:
    """Compute the atom pair counts, unfolded."""
    mol = parse_smiles(scaffold)
    if mol is None:
        raise ValueError(f"scaffold: {scaffold!r}, expected a molecule")
    return rdFingerprintGenerator.GetAtomPairGenerator().GetSparseCountFingerprint(mol)


_SCAFFOLDS: dict[FilterKind, Callable[[str], str] | None] = {
    "IdenticalMurckoScaffold": _murcko,
    "IdenticalTopologicalScaffold": _topological,
    "ScaffoldSimilarity": _murcko,
    "PenalizeSameSmiles": None,
}


class DiversityFilter:
    """Reduces another reward on molecules for scaffolds that the run has found before, as REINVENT4's diversity filter does.

    Samples are taken in order, so only the first of two equal ones in a batch is new. With a scaffold kind, a SMILES that was
    remembered scores 0. A new one of score >= ``minscore`` is remembered, counts in the bucket of its scaffold and keeps
    ``penalty(n, bucket_size)`` of its score, n being the bucket's count with it; a lower score stays as it is. All molecules
    without rings share one bucket. ``PenalizeSameSmiles`` has no buckets: it remembers every valid SMILES and multiplies the
    score of each repeat by ``penalty_multiplier``.

    The wrapped reward is not called for a SMILES whose repeat scores 0. An unknown score stays unknown and is not remembered. Each
    process has a separate memory, so wrap a pool in the filter and not the filter in a pool. The evaluations of a run score from
    the memory that the filter had when the run began, and are not remembered.

    Args:
        reward: any reward on SMILES, above 0 for a good molecule.
        kind: definition of a bucket: the Murcko scaffold, its topology (all carbon, all single bonds), the most similar
            remembered scaffold (Dice similarity of atom pair counts), or only the SMILES itself.
        bucket_size: molecules per bucket, at least 1.
        minscore: the score from which a molecule is remembered, at least 0.
        minsimilarity: the similarity from which a scaffold counts as a remembered one, 0 to 1 (``ScaffoldSimilarity``).
        penalty_multiplier: factor on the score of a repeat, 0 to 1 (``PenalizeSameSmiles``).
        penalty: shape of the decline as a bucket fills: Step, Linear, Tanh, Sigmoid or Erf.

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
        check_forgets(reward)
        for name, value, known in (("kind", kind, _SCAFFOLDS), ("penalty", penalty, PENALTIES)):
            if value not in known:
                raise ValueError(f"{name}: {value!r}, expected one of {', '.join(known)}")
        check_whole("bucket_size", bucket_size, least=1)
        check_range("minscore", minscore, least=0)
        for name, share in (("minsimilarity", minsimilarity), ("penalty_multiplier", penalty_multiplier)):
            check_range(name, share, least=0, most=1)
        self.reward, self.kind, self.penalty = reward, kind, penalty
        self.bucket_size, self.minscore = bucket_size, minscore
        self.minsimilarity, self.penalty_multiplier = minsimilarity, penalty_multiplier
        self._seen: dict[str, None] = {}  # a set that keeps its order
        self._buckets: dict[str, int] = {}
        self._pairs: dict[str, DataStructs.ULongSparseIntVect] = {}  # of the buckets' scaffolds, in their order

    @property
    def name(self) -> str:
        """The name in logs."""
        return f"{reward_name(self.reward)} filtered"

    @property
    def buckets(self) -> Mapping[str, int]:
        """Number of hits of each scaffold, oldest first."""
        return dict(self._buckets)

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The filtered reward, alone."""
        return (self.reward,)

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """Score the samples and remember them.

        Returns:
            One number per sample, at most the wrapped reward's where that is positive; None where it is unknown.

        Raises:
            RewardError: if the wrapped reward fails.
        """
        check_columns(columns, len(samples))
        smiles = [None if mol is None else to_smiles(mol) for mol in parse_all(samples)]
        scores = self._scores(samples, smiles, columns)
        change = self._repeat if self.kind == "PenalizeSameSmiles" else self._bucketed
        pairs = zip(smiles, scores, strict=True)
        return [score if text is None or score is None else change(text, score) for text, score in pairs]

    def _scores(
        self, samples: Sequence[str | None], smiles: Sequence[str | None], columns: Mapping[str, Sequence[Any]]
    ) -> list[float | None]:
        """Compute the wrapped reward's scores, None where unknown; 0 without a call where a repeat scores 0."""
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
        return score * PENALTIES[self.penalty](count, self.bucket_size)

    def _bucket(self, smiles: str) -> str:
        """Find the scaffold of the bucket that takes the molecule."""
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
        """The memory as plain JSON, in order."""
        return {"kind": self.kind, "seen": list(self._seen), "buckets": [[name, count] for name, count in self._buckets.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the memory of a checkpoint.

        Raises:
            ValueError: if the memory is of another kind.
        """
        if state["kind"] != self.kind:
            raise ValueError(f"kind: {self.kind}, expected {state['kind']} as in the memory to go on from")
        self._seen = dict.fromkeys(map(str, state["seen"]))
        self._buckets = {str(name): int(count) for name, count in state["buckets"]}
        self._pairs = {}


# -- of a set


def _similarities(mols: Sequence[Chem.Mol]) -> list[list[float]]:
    """Compute T_ij, the Tanimoto similarity of Morgan bits (radius 2, 1024), self pairs included, [m, m]."""
    prints = [molecule_properties.bit_fingerprint(mol, radius=2, size=1024) for mol in mols]
    return [list(DataStructs.BulkTanimotoSimilarity(own, prints)) for own in prints]


def _by_set(
    samples: Sequence[str | None],
    columns: Mapping[str, Sequence[Any]],
    by: str | None,
    measure: Callable[[Sequence[Chem.Mol]], Sequence[float]],
) -> list[float]:
    """Compute ``measure`` within each set of valid samples; 0 for invalid ones."""
    if by is not None and by not in columns:
        raise ValueError(
            f"{by}: no such column, expected one to tell the sets apart (columns given: {', '.join(columns) or 'none'})"
        )
    check_columns(columns, len(samples))
    labels = [None] * len(samples) if by is None else [_label(by, value) for value in columns[by]]
    sets: dict[Any, list[tuple[int, Chem.Mol]]] = {}
    for k, (mol, label) in enumerate(zip(parse_all(samples), labels, strict=True)):
        if mol is not None:
            sets.setdefault(label, []).append((k, mol))
    scores = [0.0] * len(samples)
    for members in sets.values():
        for (k, _), value in zip(members, measure([mol for _, mol in members]), strict=True):
            scores[k] = value
    return scores


def _label(by: str, value: Any) -> Hashable:
    """The value of a column as a key, equal for tensors of equal content.

    Raises:
        ValueError: for a value that cannot be one, such as a list or a tensor of several elements.
    """
    label: Hashable = plain_scalar(value)
    try:
        hash(label)
    except TypeError:
        pass
    else:
        if not hasattr(label, "item"):
            return label
    raise ValueError(f"{by}: {value!r}, expected labels that tell the sets apart, such as numbers or texts")


def _contributions(mols: Sequence[Chem.Mol]) -> list[float]:
    """Compute D(S) - D(S without i) with D(S) = 1 - Σ_ij T_ij / m², self pairs included; D of the empty set is 0."""
    m, table = len(mols), _similarities(mols)
    rows = [math.fsum(row) for row in table]
    total = math.fsum(rows)
    whole = 1.0 - total / m**2
    if m == 1:
        return [whole]
    # row i and column i go, and T_ii = 1 stands in both
    return [whole - (1.0 - (total - 2.0 * row + 1.0) / (m - 1) ** 2) for row in rows]


def _distances(mols: Sequence[Chem.Mol]) -> list[float]:
    """Compute 1 - Σ_{j≠i} T_ij / (m - 1); 1 for a single molecule."""
    m = len(mols)
    if m == 1:
        return [1.0]
    return [1.0 - (math.fsum(row) - 1.0) / (m - 1) for row in _similarities(mols)]


@dataclass(frozen=True)
class DiversityContribution:
    """Contribution of a sample to the internal diversity of its set, D(S) - D(S∖{i}).

    D(S) = 1 - Σ_ij T_ij / m² over the m valid samples, T being the Tanimoto similarity of Morgan bits (radius 2, 1024), the
    formula of the metric ``internal_diversity``. A copy of another sample has a negative contribution and an invalid sample
    scores 0, so combine this reward with one for validity. :class:`MeanDistance` orders the samples of a set in the same way
    and is never negative.

    Args:
        by: column whose values separate the sets of a batch; None makes the whole batch one set.

    Raises:
        ValueError: when called, if there is no such column.

    >>> [round(x, 3) for x in DiversityContribution()(["CCO", "CCO", "c1ccccc1", None])]
    [-0.056, -0.056, 0.444, 0.0]
    """

    by: str | None = None
    cached_as: ClassVar[None] = None
    name: ClassVar[str] = "diversity_contribution"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """Compute the contribution of each sample.

        Returns:
            A number in (-1, 1) per sample, higher for a sample that adds more diversity; 0 for an invalid one.
        """
        return _by_set(samples, columns, self.by, _contributions)


@dataclass(frozen=True)
class MeanDistance:
    """Mean Tanimoto distance of a sample to the others of its set, 1 - mean_{j≠i} T_ij.

    T is the Tanimoto similarity of Morgan bits (radius 2, 1024) over the valid samples.

    Args:
        by: column whose values separate the sets of a batch; None makes the whole batch one set.

    Raises:
        ValueError: when called, if there is no such column.

    >>> MeanDistance()(["CCO", "CCO", "c1ccccc1", None])
    [0.5, 0.5, 1.0, 0.0]
    """

    by: str | None = None
    cached_as: ClassVar[None] = None
    name: ClassVar[str] = "mean_distance"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """Compute the mean distance of each sample.

        Returns:
            A number in [0, 1] per sample, higher for a sample that is less like the others, 1 for a single valid sample; 0 for
            an invalid one.
        """
        return _by_set(samples, columns, self.by, _distances)


def diversity_metrics(samples: Sequence[str | None], max_samples: int = 256) -> dict[str, float]:
    """Compute the metrics ``unique_scaffolds`` and ``internal_diversity`` of a batch of samples.

    They are distinct Murcko scaffolds / valid samples, and 1 - mean T_ij over all pairs, self pairs included. To be cheap
    enough for every step, they use evenly spaced ones of more than ``max_samples`` samples. Both are 0 if none of them is
    valid. Molecules without rings share the empty scaffold.

    Raises:
        ValueError: if ``max_samples`` is below 1.

    >>> diversity_metrics(["Cc1ccccc1", "Cc1ccccc1", None])
    {'unique_scaffolds': 0.5, 'internal_diversity': 0.0}
    """
    check_whole("max_samples", max_samples, least=1)
    count = len(samples)
    taken = samples if count <= max_samples else [samples[k * count // max_samples] for k in range(max_samples)]
    valid = [(s, mol) for s, mol in zip(taken, map(parse, taken), strict=True) if s is not None and mol is not None]
    if not valid:
        return {"unique_scaffolds": 0.0, "internal_diversity": 0.0}
    m = len(valid)
    mean = math.fsum(math.fsum(row) for row in _similarities([mol for _, mol in valid])) / m**2
    return {"unique_scaffolds": len({_murcko(s) for s, _ in valid}) / m, "internal_diversity": 1.0 - mean}
