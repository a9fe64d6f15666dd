"""Rewards and metrics of images against their formulas by loops."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.domains.images import Image
from discrete_grpo.metrics.images import diversity, evaluate, sample_metrics
from discrete_grpo.models.convnet import ConvNet, ConvNetConfig
from discrete_grpo.rewards.images import ClassifierProbability, InkAmount, SSIMToClassMean, ink
from discrete_grpo.runs.checkpoint import CheckpointError, save


def pictures(count: int, size: int = 8, seed: int = 0) -> list[Image]:
    generator = torch.Generator().manual_seed(seed)
    return [Image.of(torch.rand(size, size, generator=generator)) for _ in range(count)]


# -- ink


def test_ink_is_the_mean_of_the_levels() -> None:
    images = pictures(3)
    wanted = [sum(image.levels) / 255 / 64 for image in images]
    assert ink([*images, None], label=["0"] * 4) == pytest.approx([*wanted, 0.0])
    found = InkAmount(0.45, 0.1)([*images, None])
    assert found == pytest.approx([*(math.exp(-((x - 0.45) ** 2) / (2 * 0.01)) for x in wanted), 0.0])
    assert InkAmount(0.0)([None]) == [0.0]  # no image is not an image without ink


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((1.5,), "value: 1.5, expected 0 to 1"),
        ((0.5, 0.0), "scale: 0.0, expected more than 0"),
        ((math.nan,), "value: nan, expected 0 to 1"),
    ],
)
def test_ink_arguments_are_checked(given: tuple[float, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        InkAmount(*given)


# -- structural similarity


def ssim_by_loops(x: list[list[float]], y: list[list[float]], window: int) -> float:
    """Wang et al. (2004), Eq. 13, with uniform windows that lie inside the image, the sample covariance and range 1."""
    c1, c2, size = 0.01**2, 0.03**2, len(x)
    values = []
    for top, left in itertools.product(range(size - window + 1), repeat=2):
        places = [(top + i, left + j) for i in range(window) for j in range(window)]
        a, b = [x[i][j] for i, j in places], [y[i][j] for i, j in places]
        n = len(places)
        mean_a, mean_b = sum(a) / n, sum(b) / n
        var_a, var_b = (sum((v - m) ** 2 for v in values) / (n - 1) for values, m in ((a, mean_a), (b, mean_b)))
        both = sum((v - mean_a) * (w - mean_b) for v, w in zip(a, b, strict=True)) / (n - 1)
        above = (2 * mean_a * mean_b + c1) * (2 * both + c2)
        values.append(above / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2)))
    return sum(values) / len(values)


@pytest.mark.parametrize("window", [3, 5, 7])
def test_ssim_is_the_formula(window: int) -> None:
    pytest.importorskip("skimage")
    pytest.importorskip("sklearn")
    reward, images = SSIMToClassMean(window), pictures(3)
    labels: list[Any] = [7, "0", 3]
    wanted = [
        ssim_by_loops(image.tensor().double().tolist(), reward.means[int(c)].double().tolist(), window)
        for image, c in zip(images, labels, strict=True)
    ]
    assert reward([*images, None], label=[*labels, 1]) == pytest.approx([*wanted, 0.0], abs=1e-6)


def test_the_mean_image_of_a_class_scores_one() -> None:
    pytest.importorskip("skimage")
    pytest.importorskip("sklearn")
    reward = SSIMToClassMean()
    drawn = [Image.of(mean) for mean in reward.means]
    assert min(reward(drawn, label=[str(c) for c in range(10)])) > 0.999
    assert min(reward(drawn, label=list(torch.arange(10)))) > 0.999
    assert max(reward(drawn, label=[(c + 1) % 10 for c in range(10)])) < 0.9


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (None, "label: no such column, expected one class per sample"),
        (["3"], r"label: 1 values, expected one per sample \(2\)"),
        (["3", "10"], "label: '10', expected a class from 0 to 9"),
        ([torch.zeros(2), "3"], r"label: tensor\(\[0., 0.\]\), expected a class from 0 to 9"),
        (["3", None], "label: None, expected a class from 0 to 9"),
    ],
)
def test_a_wrong_label_is_named(label: Any, said: str) -> None:
    pytest.importorskip("skimage")
    pytest.importorskip("sklearn")
    with pytest.raises(ValueError, match=said):
        SSIMToClassMean()(pictures(2), label=label)


def test_ssim_errors_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="window: 4, expected 3, 5 or 7"):
        SSIMToClassMean(4)
    pytest.importorskip("skimage")
    pytest.importorskip("sklearn")
    with pytest.raises(ValueError, match=r"samples: an image of 4 by 4 pixels, expected \(8, 8\)"):
        SSIMToClassMean()(pictures(1, size=4), label=[0])


def test_a_missing_package_is_told_when_the_reward_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(ImportError, match=r"scikit-image is not installed; pip install 'discrete-grpo\[images\]'"):
        SSIMToClassMean()


# -- the classifier


def classifier(folder: Path) -> ConvNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = ConvNet(ConvNetConfig(size=8, classes=4, width=2)).eval()
    save(folder, network, metadata={})
    return network


def test_the_probability_of_the_label(tmp_path: Path) -> None:
    network, images = classifier(tmp_path / "own"), pictures(5)
    reward = ClassifierProbability(str(tmp_path / "own"), batch_size=2)
    labels = [3, 0, 1, 2, 2]
    wanted = []
    for image, c in zip(images, labels, strict=True):
        table = network(image.tensor()[None])[0].double().exp().tolist()
        wanted.append(table[c] / sum(table))
    samples = [*images[:2], None, *images[2:]]
    found = reward(samples, label=[*labels[:2], 3, *labels[2:]])
    assert found == pytest.approx([*wanted[:2], 0.0, *wanted[2:]], rel=1e-5)
    assert reward([None], label=["1"]) == [0.0]
    assert not any(p.requires_grad for p in reward.network.parameters())
    assert not reward.network.training
    with pytest.raises(ValueError, match="label: 4, expected a class from 0 to 3"):
        reward(images[:1], label=[4])


def test_a_missing_classifier_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"classifier: 'digit-classifier' is no checkpoint folder.*digits-classifier"):
        ClassifierProbability("digit-classifier")
    with pytest.raises(ValueError, match="batch_size: 0, expected at least 1"):
        ClassifierProbability(str(tmp_path), batch_size=0)


# -- metrics


def test_diversity_is_the_mean_distance_of_pairs() -> None:
    images = pictures(5)
    distances = [
        math.sqrt(sum(((a - b) / 255) ** 2 for a, b in zip(x.levels, y.levels, strict=True)) / 64)
        for x, y in itertools.combinations(images, 2)
    ]
    assert diversity([None, *images]) == pytest.approx(sum(distances) / len(distances), rel=1e-6)
    assert math.isnan(diversity(images[:1]))
    assert 0 < diversity(images, max_images=3) == diversity(images, max_images=3)


def test_the_table_of_a_generator() -> None:
    a, b, c = pictures(3)
    found = evaluate([a, a, b, None, c, c], labels=[0, 0, 1, 1, 1, 1], reference={a})
    assert found["num_samples"] == 6
    assert found["valid"] == pytest.approx(5 / 6)
    assert found["unique"] == pytest.approx(3 / 5)
    assert found["novel"] == pytest.approx(2 / 3)
    assert found["diversity"] == pytest.approx(diversity([a, a, b, c, c]))
    assert found["class_diversity"] == pytest.approx((0 + diversity([b, c, c])) / 2)
    assert found["ink"] == pytest.approx(sum(ink([a, a, b, c, c])) / 5)
    assert sample_metrics([]) == {"valid": 0.0, "unique": 0.0}
    assert math.isnan(evaluate([None])["ink"])
    with pytest.raises(ValueError, match=r"labels: 1, expected one per sample \(2\)"):
        evaluate([a, b], labels=[0])


def test_images_of_another_size_than_the_classifier_s(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^samples: images of \[\(4, 4\)\], expected the size of the classifier"):
        ClassifierProbability()([Image(4, 4, bytes(16))], label=[1])
