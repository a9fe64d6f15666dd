"""A Gaussian process surrogate of the score that selects candidates: Tanimoto kernels of counts and a kernel of descriptors.

It is fitted to scored samples only, each of which cost a call. The prior covariance is k = Σ_j w_j T_j + v D + Σ_j u_j T_j D
with Σ_j w_j + v + Σ_j u_j = 1, T_j the Tanimoto similarity of the j-th counts and D a Gaussian kernel of standardised numbers.

Source: Rasmussen and Williams (2006), Algorithm 2.1; Tanimoto kernels: Ralaivola et al. (2005), doi 10.1016/j.neunet.2005.07.009.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.scoring import shown_value
from discrete_grpo.training.bf16 import bf16_units

__all__ = ["Features", "GaussianProcessScreen", "Hyperparameters", "tanimoto_table", "unary_bits"]

WIDTH = 8192
"""Number of bits of a folded fingerprint."""
EXACT = 256
"""Integers up to this value are exact in bfloat16, and so are sums over as many bits."""
BLOCK = 64
"""The number of rows of a matrix product in bfloat16 is a multiple of this."""
LEVELS = 16
"""Counts above this value are clipped to it."""
LENGTHS = (2.0, 4.0, 8.0)
NOISES = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Features:
    """Features of a sample, the input of the kernels.

    Attributes:
        counts: fingerprints, each a mapping from the number of a feature, modulo 2^64, to its count.
        numbers: descriptors on any scale, finite.
    """

    counts: tuple[Mapping[int, int], ...]
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Hyperparameters:
    """Weights of the kernels T_j, D and T_j D, length of D, variance of the noise, and the common scale of all variances."""

    weights: tuple[float, ...]
    length: float
    noise: float
    scale: float


def unary_bits(counts: Mapping[int, int]) -> np.ndarray:
    """Return the numbers of the bits (feature, level) with level ≤ count, folded to ``WIDTH``.

    Up to collisions, the Tanimoto similarity of two such sets is Σ min / Σ max of the counts.
    """
    if not counts:
        return np.empty(0, dtype=np.int64)
    features = np.fromiter((feature % 2**64 for feature in counts), dtype=np.uint64, count=len(counts))
    levels = np.minimum(np.fromiter(counts.values(), dtype=np.int64, count=len(counts)), LEVELS)
    level = np.arange(levels.sum()) - np.repeat(levels.cumsum() - levels, levels)
    mixed = np.repeat(features, levels) * np.uint64(0x9E3779B97F4A7C15) + level.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.unique((mixed >> np.uint64(51)).astype(np.int64))


def tanimoto_table(x: Float[Tensor, "row bit"], y: Float[Tensor, "column bit"]) -> Float[Tensor, "row column"]:
    """|x ∧ y| / |x ∨ y| of 0-1 rows, float32; 1 where both are empty.

    Sums are exact in bfloat16 too, as they are formed over pieces in which no row has more than ``EXACT`` bits.
    """
    if x.dtype == torch.bfloat16:  # the number of rows is padded to a multiple, since every new shape of a product stays in a cache
        long, wide = (nn.functional.pad(table, (0, 0, 0, -len(table) % BLOCK)) for table in (x, y))
        size = _piece(x if len(x) < len(y) else y)
        pieces = [long[:, k : k + size] @ wide[:, k : k + size].T for k in range(0, x.shape[1], size)]
        both = sum(pieces[1:], start=pieces[0].float())[: len(x), : len(y)]
    else:
        both = x @ y.T
    either = x.sum(1, dtype=torch.float32)[:, None] + y.sum(1, dtype=torch.float32) - both
    return torch.where(either > 0, both / either.clamp_min(1), 1.0)


def _piece(rows: Float[Tensor, "row bit"]) -> int:
    """Return the largest piece size, ``EXACT`` times a power of two, such that no row has more than ``EXACT`` bits in any piece."""
    count = nn.functional.pad(rows, (0, -rows.shape[1] % EXACT)).unflatten(1, (-1, EXACT)).sum(-1, dtype=torch.float32)
    size = EXACT
    while size < rows.shape[1]:
        count = nn.functional.pad(count, (0, count.shape[1] % 2)).unflatten(1, (-1, 2)).sum(-1)
        if count.numel() and count.max() > EXACT:
            break
        size *= 2
    return size


@dataclass(frozen=True)
class _Inputs:
    """Features of a list of samples as tables: 0-1 rows of each fingerprint, and the numbers."""

    bits: tuple[Tensor, ...]
    numbers: Tensor

    @classmethod
    def of(cls, found: Sequence[_Row]) -> _Inputs:
        dtype = torch.bfloat16 if bf16_units(torch.device("cpu")) else torch.float32
        tables = []
        for k in range(len(found[0].bits)):
            count = torch.tensor([len(one.bits[k]) for one in found])
            columns = torch.from_numpy(np.concatenate([one.bits[k] for one in found]))
            table = torch.zeros(len(found), WIDTH, dtype=dtype)
            table[torch.arange(len(found)).repeat_interleave(count), columns] = 1
            tables.append(table)
        return cls(tuple(tables), torch.tensor([one.numbers for one in found], dtype=torch.float32))

    def kernels(self, other: _Inputs) -> list[Tensor]:
        """Tanimoto tables and squared distances of the numbers."""
        return [*self.tanimoto(other), self.distances(other)]

    def tanimoto(self, other: _Inputs) -> list[Tensor]:
        return [tanimoto_table(x, y) for x, y in zip(self.bits, other.bits, strict=True)]

    def distances(self, other: _Inputs) -> Tensor:
        return torch.cdist(self.numbers, other.numbers, compute_mode="donot_use_mm_for_euclid_dist").square()

    def rows(self, at: Tensor) -> _Inputs:
        return _Inputs(tuple(table[at] for table in self.bits), self.numbers[at])

    def standardised(self, mean: Tensor, std: Tensor) -> _Inputs:
        return _Inputs(self.bits, (self.numbers - mean) / std)


@dataclass(frozen=True)
class _Row:
    bits: tuple[np.ndarray, ...]
    numbers: tuple[float, ...]


def _covariance(kernels: Sequence[Tensor], found: Hyperparameters) -> Tensor:
    """The prior covariance, float64, from Tanimoto tables and squared distances."""
    tables = [table.double() for table in kernels[:-1]]
    gaussian = torch.exp(kernels[-1].double() / (-2 * found.length**2))
    parts = [*tables, gaussian, *(table * gaussian for table in tables)]
    used = [w * part for w, part in zip(found.weights, parts, strict=True) if w > 0]
    return sum(used[1:], start=used[0])


def _simplex(count: int) -> Iterator[tuple[float, ...]]:
    """Candidate weights of ``count`` kernels: a single one, two with equal weights, all with equal weights, and one dominant."""
    yield from (tuple(float(k == j) for k in range(count)) for j in range(count))
    yield from (tuple(0.5 if k in (i, j) else 0.0 for k in range(count)) for i in range(count) for j in range(i))
    if count > 2:
        yield (1 / count,) * count
        yield from (tuple(0.7 if k == j else 0.3 / (count - 1) for k in range(count)) for j in range(count))


class GaussianProcessScreen:
    """Ranks candidates by an upper confidence bound of their score: posterior mean + κ · posterior standard deviation.

    Args:
        featurize: function from a valid sample to its features.
        kappa: κ, at least 0.
        start: number of scored samples below which :meth:`merit` returns None, at least 2.
        size: largest number of samples in a fit: half are the best, a quarter the newest, the rest random; at least 4.
        generator: random generator that chooses the rest.

    Raises:
        ValueError: for an argument out of its range.
    """

    def __init__(
        self,
        featurize: Callable[[Any], Features],
        *,
        kappa: float = 0.5,
        start: int = 200,
        size: int = 1500,
        generator: torch.Generator | None = None,
    ) -> None:
        check_range("kappa", kappa, least=0)
        check_whole("start", start, least=2)
        check_whole("size", size, least=4)
        self.featurize, self.kappa, self.start, self.size = featurize, kappa, start, size
        self.generator = generator or torch.Generator()
        self.found: Hyperparameters | None = None
        self._samples: list[Any] = []
        self._rows: list[_Row] = []  # their features
        self._scores: list[float] = []
        self._fits = 0
        self._fitted: list[int] = []  # the samples of the last fit
        self._tables: list[Tensor] = []  # their Tanimoto tables

    def observe(self, samples: Sequence[Any], scores: Float[Tensor, " batch"]) -> None:
        """Add scored samples; those with a NaN score are ignored."""
        for sample, score in zip(samples, scores.tolist(), strict=True):
            if score == score:
                self._samples.append(sample)
                self._rows.append(self._features(sample))
                self._scores.append(score)

    def forget(self) -> None:
        """Remove all samples, and the hyperparameters that were fitted to them."""
        self._samples, self._rows, self._scores, self._fitted, self._tables = [], [], [], [], []
        self.found, self._fits = None, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the samples with their scores, the fitted hyperparameters and the generator; features are computed again."""
        kept = {"samples": list(self._samples), "scores": list(self._scores), "fits": self._fits}
        return kept | {"found": None if self.found is None else asdict(self.found), "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint; the merits that follow are bit-identical."""
        self.forget()
        self._samples, self._scores, self._fits = list(state["samples"]), list(state["scores"]), int(state["fits"])
        self._rows = [self._features(sample) for sample in self._samples]
        self.found = None if state["found"] is None else Hyperparameters(**state["found"])
        self.generator.set_state(state["generator"])

    def merit(self, samples: Sequence[Any]) -> Float[Tensor, " batch"] | None:
        """Upper confidence bound of each sample; None below ``start`` observed samples, or if fitted scores do not vary."""
        if len(self._rows) < self.start or not samples:
            return None
        chosen = self._chosen()
        if len({self._scores[k] for k in chosen}) < 2:
            return None
        spread = float(torch.tensor([self._scores[k] for k in chosen], dtype=torch.float64).std())
        if not 0 < spread < math.inf:  # scores of about 1e160, or differences of 1e-170, whose squares no float holds
            return None
        mean, deviation = self._posterior([self._features(sample) for sample in samples], chosen)
        return mean + self.kappa * deviation

    def _features(self, sample: Any) -> _Row:
        found = self.featurize(sample)
        if not all(map(math.isfinite, found.numbers)):
            raise ValueError(f"featurize: numbers {shown_value(found.numbers)}, expected finite ones")
        return _Row(tuple(unary_bits(counts) for counts in found.counts), found.numbers)

    def _chosen(self) -> list[int]:
        """Choose the samples of the fit."""
        n, scores = len(self._scores), torch.tensor(self._scores)
        if n <= self.size:
            return list(range(n))
        best = scores.topk(self.size // 2).indices.tolist()
        kept = dict.fromkeys([*best, *range(n - self.size // 4, n)])
        rest = [k for k in self._shuffled(n).tolist() if k not in kept]
        return sorted([*kept, *rest[: self.size - len(kept)]])

    def _shuffled(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator, device=self.generator.device).cpu()

    def _posterior(self, rows: Sequence[_Row], chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Posterior mean and standard deviation of the score of each row given the chosen samples, float64."""
        seen = _Inputs.of([self._rows[k] for k in chosen])
        mean = seen.numbers.mean(0)
        std = (seen.numbers.std(0) if len(mean) else mean) + 1e-3
        seen, new = seen.standardised(mean, std), _Inputs.of(rows).standardised(mean, std)
        scores = torch.tensor([self._scores[k] for k in chosen], dtype=torch.float64)
        centre, spread = scores.mean(), scores.std()
        z, kernels = (scores - centre) / spread, [*self._tanimoto_of(seen, chosen), seen.distances(seen)]
        if self.found is None or self._fits % 8 == 0:
            self.found = self._best_hyperparameters(kernels, z)
        self._fits += 1
        root = _root(_covariance(kernels, self.found), self.found.noise)
        across = _covariance(new.kernels(seen), self.found)
        alpha = torch.cholesky_solve(z[:, None], root)[:, 0]
        left = torch.linalg.solve_triangular(root, across.T, upper=False)
        variance = (1 - left.square().sum(0)).clamp_min(1e-6) * self.found.scale
        return across @ alpha * spread + centre, variance.sqrt() * spread

    def _tanimoto_of(self, seen: _Inputs, chosen: Sequence[int]) -> list[Tensor]:
        """Tanimoto tables between the chosen samples; pairs that were in the last fit are reused."""
        known = {sample: k for k, sample in enumerate(self._fitted)}
        old = torch.tensor([k for k, sample in enumerate(chosen) if sample in known], dtype=torch.long)
        new = torch.tensor([k for k, sample in enumerate(chosen) if sample not in known], dtype=torch.long)
        at = torch.tensor([known[chosen[k]] for k in old.tolist()], dtype=torch.long)
        tables = []
        for before, part in zip(self._tables or [torch.empty(0, 0)] * len(seen.bits), seen.rows(new).tanimoto(seen), strict=True):
            table = part.new_empty(len(chosen), len(chosen))
            table[old[:, None], old] = before[at[:, None], at]
            table[new], table[:, new] = part, part.T
            tables.append(table)
        self._fitted, self._tables = list(chosen), tables
        return tables

    def _best_hyperparameters(self, kernels: Sequence[Tensor], z: Tensor, most: int = 400) -> Hyperparameters:
        """Maximise the marginal likelihood of the best and as many other samples on a grid; the optimal scale is zᵀ K⁻¹ z / n."""
        best = z.topk(min(len(z), most // 2)).indices
        rows = torch.cat([best, self._shuffled(len(z))[: most // 2]]).unique()
        part, target = [k[rows][:, rows] for k in kernels], z[rows]
        found: tuple[float, Hyperparameters | None] = (-math.inf, None)
        for weights in _simplex(2 * len(kernels) - 1):
            for length in LENGTHS if any(weights[len(kernels) - 1 :]) else LENGTHS[:1]:
                prior = _covariance(part, Hyperparameters(weights, length, 0.0, 1.0))
                for noise in NOISES:
                    root = _root(prior, noise)
                    scale = float(target @ torch.cholesky_solve(target[:, None], root)[:, 0]) / len(rows)
                    likelihood = -0.5 * len(rows) * math.log(scale) - float(root.diagonal().log().sum())
                    if likelihood > found[0]:
                        found = (likelihood, Hyperparameters(weights, length, noise, scale))
        assert found[1] is not None
        return found[1]


def _root(covariance: Tensor, noise: float) -> Tensor:
    """Cholesky factor of the covariance plus noise, with more noise where rounding needs it."""
    unit = torch.eye(len(covariance), dtype=covariance.dtype)
    for more in (0.0, 1e-5, 1e-4, 1e-3, 1e-2):
        root, failed = torch.linalg.cholesky_ex(covariance + (noise + more) * unit)
        if not failed:
            break
    return root
