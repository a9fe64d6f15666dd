"""Components of scores as REINVENT has them: descriptors, sigmoids of a property, and alerts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from rdkit import Chem
from rdkit.Chem.FilterCatalog import FilterCatalog, FilterCatalogParams

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.reward_arguments import reward_name
from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains.smiles import parse_all
from discrete_grpo.rewards.molecules import Substructure, check_property, modified

__all__ = ["CatalogAlerts", "CustomAlerts", "Descriptor", "DoubleSigmoid", "ReverseSigmoid", "Sigmoid"]


@dataclass(frozen=True)
class Descriptor:
    """Compute a descriptor of RDKit, such as ``TPSA``, ``NumHDonors`` or ``NumRotatableBonds``.

    Args:
        descriptor: a name of ``rdkit.Chem.Descriptors``.

    Raises:
        ValueError: if RDKit has no such descriptor; the nearest is named.

    >>> [round(x, 2) for x in Descriptor("TPSA")(["CCO", None])]
    [20.23, 0.0]
    """

    descriptor: str

    def __post_init__(self) -> None:
        molecule_properties.descriptor(self.descriptor, "descriptor")

    @property
    def name(self) -> str:
        """The name in logs."""
        return self.descriptor

    @cached_property
    def _value(self) -> Callable[[Chem.Mol], float]:
        return molecule_properties.descriptor(self.descriptor)

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """Compute the descriptor of each sample.

        Returns:
            A number in the unit of the descriptor per sample; 0 for an invalid molecule, None where RDKit gives no finite number.
            By itself it only favours large values, so use it within :class:`Sigmoid`,
            :class:`~discrete_grpo.rewards.molecules.InRange` or :class:`~discrete_grpo.rewards.molecules.Target`.
        """
        mols = parse_all(samples)
        return [0.0 if mol is None else molecule_properties.finite_value(self._value, mol) for mol in mols]


def sigmoid10(x: float) -> float:
    """Compute 1 / (1 + 10^(-x)) without overflow.

    >>> sigmoid10(0.0), sigmoid10(-400.0), sigmoid10(400.0)
    (0.5, 0.0, 1.0)
    """
    power = 10.0 ** -abs(x)  # 0 where it is too small
    return 1.0 / (1.0 + power) if x >= 0 else power / (1.0 + power)


def _check_ends(low: float, high: float) -> None:
    check_range("low", low)
    check_range("high", high, above=low, note=" (low)")


@dataclass(frozen=True)
class Sigmoid:
    """Rising sigmoid of a property x, 1 / (1 + 10^(-10 k (x - m) / (high - low))) with m = (low + high) / 2.

    Args:
        property: any reward on molecules, such as ``Descriptor("TPSA")``.
        low: where the score is near 0 (0.003 with the default ``k``), in the property's unit.
        high: where it is near 1 (0.997), more than ``low``.
        k: steepness, more than 0.

    Raises:
        ValueError: for an argument out of its range.

    Source: the transform ``sigmoid`` of REINVENT4, Loeffler et al. (2024).

    >>> [round(x, 3) for x in Sigmoid(Descriptor("MolWt"), low=0, high=92.138)(["CCO", "CCCCCCCC", None])]
    [0.5, 1.0, 0.0]
    """

    property: Callable[..., Sequence[float | None]]
    low: float
    high: float
    k: float = 0.5

    def __post_init__(self) -> None:
        check_property(self.property)
        _check_ends(self.low, self.high)
        check_range("k", self.k, above=0)

    @cached_property
    def name(self) -> str:
        """The name in logs."""
        return f"{reward_name(self.property)} above {self.low:g}..{self.high:g}"

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The property, alone."""
        return (self.property,)

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """Compute the sigmoid of each sample's property.

        Returns:
            A number in [0, 1] per sample; 0 for an invalid molecule, None where the property is unknown.
        """
        return modified(self.property, lambda x: _rise(x, self.low, self.high, self.k), samples, columns)


def _rise(x: float, low: float, high: float, k: float) -> float:
    return sigmoid10(10.0 * k * (x - (low + high) / 2.0) / (high - low))


@dataclass(frozen=True)
class ReverseSigmoid:
    """Falling sigmoid of a property, 1 minus that of :class:`Sigmoid`.

    Args:
        property: any reward on molecules.
        low: where the score is near 1, in the property's unit.
        high: where it is near 0, more than ``low``.
        k: steepness, more than 0.

    Raises:
        ValueError: for an argument out of its range.

    Source: the transform ``reverse_sigmoid`` of REINVENT4, Loeffler et al. (2024).

    >>> [round(x, 3) for x in ReverseSigmoid(Descriptor("MolWt"), low=0, high=92.138)(["CCO", "CCCCCCCC", None])]
    [0.5, 0.0, 0.0]
    """

    property: Callable[..., Sequence[float | None]]
    low: float
    high: float
    k: float = 0.5

    def __post_init__(self) -> None:
        check_property(self.property)
        _check_ends(self.low, self.high)
        check_range("k", self.k, above=0)

    @cached_property
    def name(self) -> str:
        """The name in logs."""
        return f"{reward_name(self.property)} below {self.low:g}..{self.high:g}"

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The property, alone."""
        return (self.property,)

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """Compute the sigmoid of each sample's property.

        Returns:
            A number in [0, 1] per sample; 0 for an invalid molecule, None where the property is unknown.
        """
        return modified(self.property, lambda x: _rise(-x, -self.high, -self.low, self.k), samples, columns)


@dataclass(frozen=True)
class DoubleSigmoid:
    """Sigmoid that rises at ``low`` and falls at ``high``; it is 0.5 at both.

    With the middle m = (low + high) / 2 it is 1 / (1 + 10^(-coef_si (x - low) / coef_div)) for x < m and
    1 / (1 + 10^(coef_se (x - high) / coef_div)) for x >= m.

    Args:
        property: any reward on molecules.
        low: lower end of the range, in the property's unit.
        high: upper end, more than ``low``.
        coef_div: divisor of both steepnesses, more than 0.
        coef_si: steepness at the lower end, more than 0.
        coef_se: steepness at the upper end, more than 0.

    Raises:
        ValueError: for an argument out of its range.

    Source: the transform ``double_sigmoid`` of REINVENT4, Loeffler et al. (2024), with its names and defaults.

    >>> [round(x, 3) for x in DoubleSigmoid(Descriptor("MolWt"), low=46.069, high=60)(["CCO", "CCCO", "CCCCCCCC", None])]
    [0.5, 0.418, 0.0, 0.0]
    """

    property: Callable[..., Sequence[float | None]]
    low: float
    high: float
    coef_div: float = 100.0
    coef_si: float = 150.0
    coef_se: float = 150.0

    def __post_init__(self) -> None:
        check_property(self.property)
        _check_ends(self.low, self.high)
        for name in ("coef_div", "coef_si", "coef_se"):
            check_range(name, getattr(self, name), above=0)

    @cached_property
    def name(self) -> str:
        """The name in logs."""
        return f"{reward_name(self.property)} within {self.low:g}..{self.high:g}"

    @property
    def inner(self) -> tuple[Callable[..., Sequence[float | None]], ...]:
        """The property, alone."""
        return (self.property,)

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """Compute the sigmoid of each sample's property.

        Returns:
            A number in [0, 1] per sample; 0 for an invalid molecule, None where the property is unknown.
        """
        return modified(self.property, self._shape, samples, columns)

    def _shape(self, x: float) -> float:
        if x < (self.low + self.high) / 2.0:
            return sigmoid10(self.coef_si * (x - self.low) / self.coef_div)
        return sigmoid10(self.coef_se * (self.high - x) / self.coef_div)


@dataclass(frozen=True)
class CustomAlerts:
    """Test that a molecule contains none of several SMARTS patterns.

    Args:
        smarts: at least one pattern, as of :class:`~discrete_grpo.rewards.molecules.Substructure`; a single one needs no tuple.

    Raises:
        ValueError: if there is none, or RDKit cannot read one of them.

    >>> CustomAlerts(("N=[N+]=[N-]", "C#C"))(["CCO", "C#CC", None])
    [1.0, 0.0, 0.0]
    """

    smarts: str | tuple[str, ...]

    def __post_init__(self) -> None:
        given = (self.smarts,) if isinstance(self.smarts, str) else tuple(self.smarts)
        if not given:
            raise ValueError("smarts: none, expected at least one SMARTS pattern")
        object.__setattr__(self, "smarts", given)
        _ = self._alerts  # raises now rather than in the first step of a run

    @cached_property
    def _alerts(self) -> tuple[Substructure, ...]:
        return tuple(map(Substructure, self.smarts))

    @property
    def name(self) -> str:
        """The name in logs."""
        return "custom_alerts"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """Test each sample.

        Returns:
            1 for a molecule without any of the patterns, 0 for any other sample.
        """
        found = [alert(samples) for alert in self._alerts]
        valid = [mol is not None for mol in parse_all(samples)]
        return [float(ok and not any(row)) for ok, row in zip(valid, zip(*found, strict=True), strict=True)]


@dataclass(frozen=True)
class CatalogAlerts:
    """Test that a molecule contains none of the alerts of RDKit's filter catalogs.

    Args:
        catalogs: at least one name, such as PAINS, BRENK, NIH, ZINC or CHEMBL; a single one needs no tuple.

    Raises:
        ValueError: if there is none, or RDKit has no such catalog.

    Source: the catalogs of ``rdkit.Chem.FilterCatalog``; PAINS: Baell and Holloway (2010), BRENK: Brenk et al. (2008).

    >>> CatalogAlerts("PAINS")(["CCO", "Oc1ccccc1O", None])
    [1.0, 0.0, 0.0]
    """

    catalogs: str | tuple[str, ...] = ("PAINS", "BRENK")

    def __post_init__(self) -> None:
        given = (self.catalogs,) if isinstance(self.catalogs, str) else tuple(self.catalogs)
        known = FilterCatalogParams.FilterCatalogs.names
        for name in given:
            if name not in known:
                raise ValueError(f"catalogs: {name!r}, expected one of {', '.join(known)}")
        if not given:
            raise ValueError("catalogs: none, expected at least one, such as PAINS")
        object.__setattr__(self, "catalogs", given)

    @property
    def name(self) -> str:
        """The name in logs: ``catalog_alerts(PAINS)``."""
        return f"catalog_alerts({', '.join(self.catalogs)})"

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """Test each sample.

        Returns:
            1 for a molecule without any of the alerts, 0 for any other sample.
        """
        catalog = _catalog(tuple(self.catalogs))
        return [float(mol is not None and not catalog.HasMatch(mol)) for mol in parse_all(samples)]


@cache
def _catalog(names: tuple[str, ...]) -> FilterCatalog:
    parameters = FilterCatalogParams()
    for name in names:
        parameters.AddCatalog(FilterCatalogParams.FilterCatalogs.names[name])
    return FilterCatalog(parameters)
