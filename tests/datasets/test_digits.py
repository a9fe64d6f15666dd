"""The digits: sizes, a split that is fixed and stratified, class means."""

from __future__ import annotations

import sys

import pytest
import torch

pytest.importorskip("sklearn")

from discrete_grpo.datasets.digits import NUM_CLASSES, class_means, load_digits


def test_the_whole_set_is_that_of_scikit_learn() -> None:
    data = load_digits("all")
    assert data.pixels.shape == (1797, 8, 8)
    assert float(data.pixels.min()) == 0.0
    assert float(data.pixels.max()) == 1.0
    assert set((data.pixels * 16).unique().tolist()) == set(map(float, range(17)))
    assert data.labels[:10].tolist() == list(range(10))
    assert len(data) == len(data.sizes) == 1797


def test_the_split_is_fixed_disjoint_and_stratified() -> None:
    whole, train, test = (load_digits(part) for part in ("all", "train", "test"))
    parts = [
        [(*row.flatten().tolist(), label) for row, label in zip(d.pixels, d.labels.tolist(), strict=True)]
        for d in (whole, train, test)
    ]
    assert sorted(parts[1] + parts[2]) == sorted(parts[0])
    assert (len(train), len(test)) == (1438, 359)
    for c in range(NUM_CLASSES):
        total = int((whole.labels == c).sum())
        assert int((test.labels == c).sum()) == round(0.2 * total)
    assert torch.equal(load_digits("test").pixels, test.pixels)


def test_batches_are_the_rows_asked_for() -> None:
    data = load_digits("train")
    batch = data.batch(torch.tensor([5, 2])).to("cpu")
    assert len(batch) == 2
    assert torch.equal(batch.pixels, data.pixels[[5, 2]])
    assert batch.labels.tolist() == data.labels[[5, 2]].tolist()


def test_class_means_by_loops() -> None:
    data = load_digits("test")
    means = class_means(data)
    assert means.shape == (10, 8, 8)
    own = [x.double() for x, c in zip(data.pixels, data.labels.tolist(), strict=True) if c == 7]
    torch.testing.assert_close(means[7].double(), sum(own[1:], own[0]) / len(own))


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match="split: 'half', expected train, test or all"):
        load_digits("half")  # type: ignore[arg-type]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"scikit-learn is not installed; pip install 'discrete-grpo\[images\]'"):
        load_digits()
