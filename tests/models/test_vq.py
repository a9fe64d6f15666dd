"""The vector-quantised autoencoder against its formulas by loops, and the classifier's loss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu, linear

from discrete_grpo.core.batch_share import WHOLE
from discrete_grpo.models.convnet import ConvNet, ConvNetConfig
from discrete_grpo.models.vq import RECONSTRUCTION_WEIGHT, CodeDecoder, VQAutoencoder, VQConfig, nearest_code

CONFIG = VQConfig(size=4, halvings=1, codes=5, code_width=3, width=6, commitment=0.25)


def autoencoder(config: VQConfig = CONFIG, seed: int = 0) -> VQAutoencoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return VQAutoencoder(config).double()


def pictures(count: int = 3, size: int = 4) -> Tensor:
    return torch.rand(count, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_loops(vectors: Tensor, codebook: Tensor) -> list[int]:
    found = []
    for z in vectors.tolist():
        distances = [sum((a - b) ** 2 for a, b in zip(z, e, strict=True)) for e in codebook.tolist()]
        found.append(distances.index(min(distances)))
    return found


def test_nearest_is_the_entry_of_least_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors, codebook = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (40, 7))
    assert nearest_code(vectors, codebook).tolist() == by_loops(vectors, codebook)
    assert nearest_code(torch.tensor([[1.0]]), torch.tensor([[0.0], [2.0], [2.0]])).tolist() == [0]


def test_codes_and_images_of_the_grid() -> None:
    model, pixels = autoencoder(), pictures()
    codes = model.encode(pixels)
    assert codes.shape == (3, CONFIG.length) == (3, 4)
    wanted = by_loops(model.vectors(pixels).flatten(0, -2), model.decoder.codebook.weight)
    assert codes.flatten().tolist() == wanted
    drawn = model(pixels)
    assert drawn.shape == (3, 4, 4)
    assert bool(((drawn > 0) & (drawn < 1)).all())
    assert torch.equal(drawn, model.decoder(codes))
    one = [model.decoder.draw(model.decoder.codebook.weight[row].reshape(1, 2, 2, 3)) for row in codes]
    torch.testing.assert_close(drawn, torch.cat(one))


def parts_by_loops(model: VQAutoencoder, pixels: Tensor) -> dict[str, Any]:
    """Loss and gradients from the formula, the straight-through step written out by hand."""
    z = model.vectors(pixels)
    flat = z.detach().flatten(0, -2)
    codes = by_loops(flat, model.decoder.codebook.weight)
    e = model.decoder.codebook.weight.detach()[codes].reshape(z.shape).requires_grad_()
    reconstruction = (
        sum(float((a - b) ** 2) for a, b in zip(model.decoder.draw(e).flatten().tolist(), pixels.flatten().tolist(), strict=True))
        / pixels.numel()
    )
    (at_e,) = torch.autograd.grad((model.decoder.draw(e) - pixels).square().mean() * RECONSTRUCTION_WEIGHT, e)
    distance = sum((a - b) ** 2 for a, b in zip(flat.flatten().tolist(), e.flatten().tolist(), strict=True)) / flat.numel()
    gradient_z = at_e + CONFIG.commitment * 2 * (z.detach() - e.detach()) / z.numel()
    gradient_book = torch.zeros_like(model.decoder.codebook.weight)
    for place, code in enumerate(codes):
        gradient_book[code] += 2 * (e.detach().flatten(0, -2)[place] - flat[place]) / flat.numel()
    z.backward(gradient_z)
    encoder = [p.grad.clone() for p in model.encoder.parameters() if p.grad is not None]
    shares = [codes.count(k) / len(codes) for k in set(codes)]
    perplexity = float(torch.tensor([-s * torch.tensor(s).double().log() for s in shares]).sum().exp())
    loss = RECONSTRUCTION_WEIGHT * reconstruction + (1 + CONFIG.commitment) * distance
    found = {"loss": loss, "reconstruction": reconstruction, "quantisation": distance, "perplexity": perplexity}
    return found | {"encoder": encoder, "codebook": gradient_book}


def test_the_loss_and_its_gradient_follow_the_formula() -> None:
    pixels = pictures()
    wanted = parts_by_loops(autoencoder(), pixels)
    model = autoencoder()
    found = model.likelihood_loss(SimpleNamespace(pixels=pixels))
    for name in ("loss", "reconstruction", "quantisation", "perplexity"):
        assert float(found[name].detach()) == pytest.approx(wanted[name], rel=1e-6), name
    found["loss"].backward()
    for parameter, gradient in zip(model.encoder.parameters(), wanted["encoder"], strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    torch.testing.assert_close(model.decoder.codebook.weight.grad, wanted["codebook"])


def test_initial_entries_are_vectors_of_the_images() -> None:
    model, pixels = autoencoder(), pictures(4)
    model.initialise(pixels, torch.Generator().manual_seed(0))
    vectors = model.vectors(pixels).detach().flatten(0, -2)
    distance = torch.cdist(model.decoder.codebook.weight.detach(), vectors).min(1).values
    assert float(distance.max()) < 1e-9
    again = autoencoder()
    again.initialise(pixels, torch.Generator().manual_seed(0))
    assert torch.equal(again.decoder.codebook.weight, model.decoder.codebook.weight)


def test_training_lowers_the_error() -> None:
    model, pixels = autoencoder(VQConfig(size=4, codes=8, code_width=3, width=8)), pictures(6)
    model.initialise(pixels, torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = float((model(pixels) - pixels).square().mean().detach())
    for _ in range(80):
        optimizer.zero_grad()
        model.likelihood_loss(SimpleNamespace(pixels=pixels))["loss"].backward()
        optimizer.step()
    assert float((model(pixels) - pixels).square().mean().detach()) < 0.7 * before


@pytest.mark.parametrize(("halvings", "grid"), [(0, 8), (1, 4), (2, 2)])
def test_the_grid_follows_from_the_halvings(halvings: int, grid: int) -> None:
    config = VQConfig(size=8, halvings=halvings, codes=4, width=4)
    model = VQAutoencoder(config)
    assert (config.grid, config.length) == (grid, grid * grid)
    assert model.encode(torch.rand(2, 8, 8)).shape == (2, grid * grid)
    assert CodeDecoder(config)(torch.zeros(2, grid * grid, dtype=torch.long)).shape == (2, 8, 8)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size": 0}, "size: 0, expected at least 1"),
        ({"size": 6, "halvings": 2}, r"size: 6, expected a multiple of 2\^halvings \(4\)"),
        ({"codes": 1}, "codes: 1, expected at least 2"),
        ({"commitment": -1.0}, "commitment: -1.0, expected at least 0"),
    ],
)
def test_sizes_are_checked(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        VQConfig(**change)


# -- the classifier


def test_the_classifiers_loss_is_the_mean_log_probability() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ConvNet(ConvNetConfig(size=4, classes=3, width=2)).double().eval()
    pixels, labels = pictures(5), torch.tensor([0, 2, 1, 1, 0])
    table = model(pixels).detach().exp()
    wanted = -sum(float((row[c] / row.sum()).log()) for row, c in zip(table, labels.tolist(), strict=True)) / 5
    right = sum(row.tolist().index(max(row.tolist())) == c for row, c in zip(table, labels.tolist(), strict=True)) / 5
    found = model.likelihood_loss(SimpleNamespace(pixels=pixels, labels=labels))
    assert float(found["loss"].detach()) == pytest.approx(wanted)
    assert float(found["accuracy"]) == pytest.approx(right)
    assert table.shape == (5, 3)


def test_the_classifier_is_three_convolutions_and_a_linear_layer() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ConvNet(ConvNetConfig(size=8, classes=3, width=2, dropout=0.5)).double().eval()
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    shapes = [tuple(layer.weight.shape) for layer in layers]
    assert shapes == [(2, 1, 3, 3), (4, 2, 3, 3), (8, 4, 3, 3), (3, 8 * 2 * 2)]
    x = pictures(5, 8).unsqueeze(1)
    for layer, stride in zip(layers[:-1], (1, 2, 2), strict=True):
        x = gelu(conv2d(x, layer.weight, layer.bias, stride, padding=1))
    torch.testing.assert_close(model(pictures(5, 8)), linear(x.flatten(1), layers[-1].weight, layers[-1].bias))
    kept: list[Tensor] = []
    layers[-1].register_forward_hook(lambda module, args, out: kept.append(args[0]))
    model.train()(torch.cat([pictures(5, 8)] * 40))
    assert float((kept[0] == 0).double().mean()) == pytest.approx(0.5, abs=0.03)


def test_the_classifiers_loss_is_of_the_rows_of_this_process() -> None:
    class Second:
        own = slice(1, 2)
        means = WHOLE.means

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ConvNet(ConvNetConfig(size=4, classes=3, width=2)).double().eval()
    pixels, labels = pictures(3), torch.tensor([0, 2, 1])
    found, alone = (
        model.likelihood_loss(SimpleNamespace(pixels=pixels[rows], labels=labels[rows]), share=share)
        for rows, share in ((slice(None), Second()), (slice(1, 2), WHOLE))
    )
    assert torch.equal(found["loss"], alone["loss"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size": 6}, "size: 6, expected a multiple of 4"),
        ({"size": 0}, "size: 0, expected at least 4"),
        ({"classes": 1}, "classes: 1, expected at least 2"),
        ({"width": 0}, "width: 0, expected at least 1"),
        ({"dropout": 1.0}, "dropout: 1.0, expected at least 0 and less than 1"),
    ],
)
def test_sizes_of_the_classifier_are_checked(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ConvNetConfig(**change)
