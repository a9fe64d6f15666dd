"""Components of scores as in REINVENT: the published formulas, their limits, and refusals in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import Descriptors

from discrete_grpo import GRPOConfig, train
from discrete_grpo.core.scoring import RewardError
from discrete_grpo.rewards.combine import Gated, GeometricMean
from discrete_grpo.rewards.diversity import DiversityFilter
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.rewards.transforms import (
    CatalogAlerts,
    CustomAlerts,
    Descriptor,
    DoubleSigmoid,
    ReverseSigmoid,
    Sigmoid,
    sigmoid10,
)

VALUES = (-200.0, -30.0, 0.0, 1.5, 3.9999, 4.0, 7.25, 10.0, 14.0, 200.0)
CHAINS = ["C" * (k + 1) for k in range(len(VALUES))]


def values(samples: Sequence[str | None], **columns: Any) -> list[float | None]:
    """The value of each chain by its length; unknown for other molecules."""
    return [VALUES[len(s) - 1] if s in CHAINS else None for s in samples]


def rising(x: float, low: float, high: float, k: float) -> float:
    """Σ as REINVENT4 writes it, in extended precision."""
    return float(1 / (1 + np.exp(np.longdouble(-math.log(10) * 10 * k * (x - (high + low) / 2) / (high - low)))))


def double(x: float, low: float, high: float, div: float, si: float, se: float) -> float:
    middle = (high - low) / 2 + low
    power = -si / div * (x - low) if x < middle else se / div * (x - high)
    return float(1 / (1 + np.exp(np.longdouble(math.log(10) * power))))


@pytest.mark.parametrize(("low", "high", "k"), [(0.0, 8.0, 0.5), (-5.0, 20.0, 0.25), (3.0, 4.0, 2.0)])
def test_sigmoids_are_those_of_the_publication(low: float, high: float, k: float) -> None:
    wanted = [rising(x, low, high, k) for x in VALUES]
    assert Sigmoid(values, low, high, k)(CHAINS) == pytest.approx(wanted, abs=1e-15)
    assert ReverseSigmoid(values, low, high, k)(CHAINS) == pytest.approx([1 - y for y in wanted], abs=1e-15)


@pytest.mark.parametrize("coefficients", [(100.0, 150.0, 150.0), (10.0, 5.0, 40.0)])
def test_the_double_sigmoid_is_that_of_the_publication(coefficients: tuple[float, float, float]) -> None:
    found = DoubleSigmoid(values, 1.5, 10.0, *coefficients)(CHAINS)
    assert found == pytest.approx([double(x, 1.5, 10.0, *coefficients) for x in VALUES], abs=1e-15)
    assert found[3] == found[7] == 0.5
    assert DoubleSigmoid(values, 1.5, 10.0)(CHAINS) == DoubleSigmoid(values, 1.5, 10.0, 100.0, 150.0, 150.0)(CHAINS)


def test_far_values_do_not_overflow() -> None:
    assert [sigmoid10(x) for x in (-1e308, -299.0, 0.0, 299.0, 1e308)] == [0.0, pytest.approx(1e-299), 0.5, 1.0, 1.0]


@pytest.mark.parametrize("kind", [Sigmoid, ReverseSigmoid, DoubleSigmoid])
def test_invalid_molecules_score_0_and_unknown_properties_stay_unknown(kind: Callable[..., Any]) -> None:
    assert kind(values, low=0.0, high=5.0)([None, "C(", "CO"]) == [0.0, 0.0, None]
    assert kind(values, low=0.0, high=5.0).inner == (values,)
    assert kind(qed, low=0.0, high=1.0).name in ("qed above 0..1", "qed below 0..1", "qed within 0..1")


def test_descriptors_are_those_of_rdkit() -> None:
    samples = ["CCO", "c1ccccc1O", "CC(=O)N"]
    for name in ("TPSA", "NumHDonors", "NumRotatableBonds", "MolWt"):
        wanted = [float(dict(Descriptors.descList)[name](Chem.MolFromSmiles(s))) for s in samples]
        assert Descriptor(name)([*samples, None, "C."]) == [*wanted, 0.0, 0.0]
    assert Descriptor("TPSA").name == "TPSA"
    assert Descriptor("AvgIpc")(["C"]) == [0.0]
    assert Descriptor("BCUT2D_MWHI")(["[Na+]"]) == [None]
    assert Descriptor("SPS")(["[H][H]"]) == [None]


def test_a_molecule_with_any_alert_scores_0() -> None:
    alerts = CustomAlerts(["C#C", "[N+](=O)[O-]"])  # type: ignore[arg-type]
    assert alerts(["CC", "C#CC", "C[N+](=O)[O-]", "C#CC[N+](=O)[O-]", None, "C("]) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert CustomAlerts("[#6]C(=O)[#8]-[#1]")(["CC(=O)O", "CC(=O)OC"]) == [0.0, 1.0]  # hydrogens are written out in published lists
    assert CustomAlerts("C#C") == CustomAlerts(("C#C",))


def test_the_catalogs_of_alerts_are_those_of_rdkit() -> None:
    catechol, hydrazine, nitro = "Oc1ccccc1O", "NN", "C[N+](=O)[O-]"
    assert CatalogAlerts("PAINS")(["CCO", catechol, nitro, None, "C("]) == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert CatalogAlerts()(["CCO", catechol, nitro, hydrazine]) == [1.0, 0.0, 0.0, 0.0]
    assert CatalogAlerts("PAINS") == CatalogAlerts(("PAINS",))


def test_a_geometric_mean_is_that_of_its_definition() -> None:
    def constant(value: float | None) -> Callable[..., list[float | None]]:
        return lambda samples, **columns: [value] * len(samples)

    found = GeometricMean((constant(0.25), constant(0.5), constant(1.0)), (2.0, 1.0, 3.0))(["C"])
    assert found == pytest.approx([(0.25**2 * 0.5) ** (1 / 6)])
    assert GeometricMean((constant(0.25), constant(1.0)))(["C", None]) == [0.5, 0.5]
    assert GeometricMean((constant(0.0), constant(1.0)))(["C"]) == [0.0]
    assert GeometricMean((constant(None), constant(0.0)))(["C"]) == [None]
    assert GeometricMean(constant(0.3))(["C"]) == [pytest.approx(0.3)]  # type: ignore[arg-type]
    assert GeometricMean((qed, Descriptor("TPSA"))).name == "geometric_mean(qed, TPSA)"
    with pytest.raises(RewardError, match=r"-0\.5 for 'C', expected at least 0 in a geometric mean$"):
        GeometricMean((constant(1.0), constant(-0.5)))(["C"])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Descriptor("TSPA"), "descriptor: 'TSPA' is no RDKit descriptor; did you mean 'TPSA'?"),
        (lambda: Sigmoid(qed, 1.0, 1.0), r"high: 1.0, expected .*\(low\)"),
        (lambda: Sigmoid(qed, math.nan, 1.0), "low: nan, expected"),
        (lambda: Sigmoid(qed, 0.0, 1.0, 0.0), "k: 0.0, expected"),
        (lambda: ReverseSigmoid(qed, 2.0, 1.0), "high: 1.0, expected"),
        (lambda: ReverseSigmoid("qed", 0.0, 1.0), "property: 'qed', expected a reward"),  # type: ignore[arg-type]
        (lambda: DoubleSigmoid(qed, 0.0, 1.0, coef_si=-1.0), "coef_si: -1.0, expected"),
        (lambda: CustomAlerts(()), "smarts: none, expected at least one"),
        (lambda: CatalogAlerts(()), "catalogs: none, expected at least one, such as PAINS"),
        (lambda: CatalogAlerts("pains"), "catalogs: 'pains', expected one of PAINS_A, PAINS_B, PAINS_C, PAINS, BRENK"),
        (lambda: CustomAlerts(("C", "C(")), r"smarts: 'C\(', expected a SMARTS"),
        (lambda: GeometricMean(()), "rewards: .*, expected at least one"),
        (lambda: GeometricMean((qed, qed), (1.0,)), "weights: .*, expected 2 finite numbers"),
        (lambda: GeometricMean((qed, qed), (1.0, 0.0)), "weights: 0.0, expected"),
        (lambda: GeometricMean((DiversityFilter(qed),)), "remembers"),
    ],
)
def test_what_is_wrong_is_named(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_a_score_of_several_components_trains_a_policy(tmp_path: Any) -> None:
    polar, light = DoubleSigmoid(Descriptor("TPSA"), 20, 120), ReverseSigmoid(Descriptor("MolWt"), 250, 500)
    score = Gated(GeometricMean((qed, polar, light), (2, 1, 1)), CustomAlerts(("C#C",)))  # type: ignore[arg-type]
    grpo = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4)
    found = train("smiles-zinc", DiversityFilter(score), output_dir=tmp_path, grpo=grpo, evaluation_samples=4)
    assert 0.0 < found["after"]["reward"] <= 1.0
