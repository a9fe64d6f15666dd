"""Rewards that read a condition's column."""

from __future__ import annotations

import math
from typing import Any

import pytest

from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains.smiles import parse
from discrete_grpo.rewards.conditions import HitsProperty, keeps_scaffold
from discrete_grpo.rewards.molecules import InRange, Target, logp


def test_a_property_is_compared_with_the_samples_own_target() -> None:
    samples = ["CCO", "c1ccccc1", None, "nonsense("]
    targets = [0.0, 1.0, 2.0, 3.0]
    found = HitsProperty("MolLogP", scale=0.5)(samples, MolLogP=targets, other=[1] * 4)
    values = [molecule_properties.crippen_logp(mol) for s in samples[:2] if (mol := parse(s)) is not None]
    expected = [math.exp(-((v - t) ** 2) / (2 * 0.25)) for v, t in zip(values, targets, strict=False)]
    assert found == pytest.approx([*expected, 0.0, 0.0])
    assert HitsProperty("TPSA").name == "hits_TPSA"


def test_a_scaffold_is_a_substructure_with_its_aromaticity() -> None:
    samples = ["Cc1ccccc1", "CC1CCCCC1", "CC1CCCCC1", None, "c1ccncc1"]
    scaffolds = ["c1ccccc1", "c1ccccc1", "C1CCCCC1", "C", "c1ccccc1"]
    assert keeps_scaffold(samples, scaffold=scaffolds) == [1.0, 0.0, 1.0, 0.0, 0.0]
    anilide = ["[*:1]C(=O)Nc1ccccc1"] * 3
    assert keeps_scaffold(["CC(=O)Nc1ccccc1", "O=CNc1ccccc1", "CC(=O)Nc1ccncc1"], scaffold=anilide) == [1.0, 0.0, 0.0]
    assert keeps_scaffold(["CCO", "CO", "C=CO"], scaffold=["[2*]CO"] * 3) == [1.0, 0.0, 0.0]


def test_fragments_of_a_scaffold_are_apart_from_each_other() -> None:
    samples = ["C1CC1CC1CC1", "C1CC1C1CC1", "CC1CC1", "C1CC1.C1CC1"]
    assert keeps_scaffold(samples, scaffold=["C1CC1.C1CC1"] * 4) == [1.0, 1.0, 0.0, 0.0]  # the last is no connected molecule
    assert keeps_scaffold(["C1CC1CCC1CC1", *samples[:2]], scaffold=["*C1CC1.*C1CC1"] * 3) == [1.0, 0.0, 0.0]


def test_what_is_missing_or_wrong_is_named() -> None:
    with pytest.raises(ValueError, match=r"MolLogP: no such condition is given, .* \(columns given: scaffold\)"):
        HitsProperty("MolLogP")(["C"], scaffold=["C"])
    with pytest.raises(ValueError, match="scaffold: no such condition is given"):
        keeps_scaffold(["C", "C"], scaffolds=["C", "C"])
    with pytest.raises(ValueError, match=r"scaffold: 'C\(', expected a valid"):
        keeps_scaffold(["C"], scaffold=["C("])
    for wrong in ("abc", [1.0], math.nan):
        with pytest.raises(ValueError, match=r"^TPSA: .*, expected a finite number, the target of a sample$"):
            HitsProperty("TPSA")(["CCO", None], TPSA=[1.0, wrong])
    with pytest.raises(ValueError, match="did you mean 'TPSA'"):
        HitsProperty("TSPA")
    with pytest.raises(ValueError, match="scale: 0"):
        HitsProperty("TPSA", 0.0)


def test_a_descriptor_that_divides_by_zero_is_unknown() -> None:
    assert HitsProperty("SPS")(["[H][H]", None], SPS=[1.0, 1.0]) == [None, 0.0]


def test_a_miss_beyond_every_float_scores_0_and_what_has_no_value_is_unknown() -> None:
    assert HitsProperty("MolLogP", scale=1e-200)(["CCO"], MolLogP=[5.0]) == [0.0]
    assert Target(logp, value=5.0, scale=1e-200)(["CCO"]) == [0.0]
    assert InRange(logp, low=5.0, high=6.0, scale=1e-200)(["CCO"]) == [0.0]


def test_a_column_of_another_length_and_a_descriptor_that_is_none_are_named() -> None:
    with pytest.raises(ValueError, match=r"^TPSA: 1 values, expected one per sample \(2\)$"):
        HitsProperty("TPSA")(["CCO", "CC"], TPSA=[30.0])
    with pytest.raises(ValueError, match=r"^scaffold: 3 values, expected one per sample \(2\)$"):
        keeps_scaffold(["CCO", "CC"], scaffold=["C"] * 3)
    with pytest.raises(ValueError, match=r"^property: 'TPS' is no RDKit descriptor; did you mean 'TPSA'\?$"):
        HitsProperty("TPS")
    with pytest.raises(ValueError, match=r"^property: 5 is no RDKit descriptor$"):
        HitsProperty(5)  # type: ignore[arg-type]


def test_a_sample_without_the_condition_has_no_score() -> None:
    samples, some = ["c1ccccc1CO", "CCO", None], [None, 1.0, 2.0]
    assert HitsProperty("MolLogP")(samples, MolLogP=some) == [None, *HitsProperty("MolLogP")(samples[1:], MolLogP=some[1:])]
    assert keeps_scaffold(samples, scaffold=[None, "CC", "CC"]) == [None, 1.0, 0.0]
    columns: dict[str, Any] = {"scaffold": ["c1ccccc1", None, None], "MolLogP": [None, None, 3.0]}
    assert keeps_scaffold(samples, **columns) == [1.0, None, None]
    assert HitsProperty("MolLogP")(samples, **columns) == [None, None, 0.0]
