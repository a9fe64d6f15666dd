"""Metrics of samples in two parts."""

from collections.abc import Sequence

import pytest

from discrete_grpo.core.sample_metrics import SampleMetrics


def in_order(samples: Sequence[str], found: Sequence[str]) -> dict[str, float]:
    return {"in_order": float([*samples, *found] == list("abAB"))}


def test_descriptions_go_to_the_summary_in_order() -> None:
    metrics = SampleMetrics(lambda samples: [s.upper() for s in samples], in_order)
    assert metrics(["a", "b"]) == {"in_order": 1.0}
    assert metrics.of_own(("a", "b")) == ["A", "B"]


def test_one_description_per_sample() -> None:
    metrics = SampleMetrics(lambda samples: samples[1:], in_order)
    with pytest.raises(ValueError, match=r"^sample_metrics: 1 descriptions, expected one per sample \(2\)$"):
        metrics(["a", "b"])
