"""Policies of images of digits, which are sequences of codes: pretraining, sampling and evaluation."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.core.checks import check_range
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.core.seeding import seeded
from discrete_grpo.datasets.digits import LICENCE, NUM_CLASSES, DigitImages, load_digits
from discrete_grpo.datasets.smiles import TokenDataset, token_dataset
from discrete_grpo.datasets.text_files import MAX_BYTES, text_lines
from discrete_grpo.domains.images import Image, contact_sheet, png
from discrete_grpo.domains.tokenizer import Tokenizer
from discrete_grpo.metrics.images import evaluate, sample_metrics
from discrete_grpo.models.convnet import ConvNet, ConvNetConfig
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.models.vq import VQAutoencoder, VQConfig
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.decoders import CODES, VQDecoder, code_text
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.rewards.images import ink
from discrete_grpo.runs.checkpoint import load_metadata, save
from discrete_grpo.runs.console import print_table, progress
from discrete_grpo.runs.recorder import write_json
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Pretrainer, fit

__all__ = [
    "PretrainDigitsRecipe",
    "evaluate_file",
    "holds_images",
    "image_columns",
    "image_policy",
    "image_properties",
    "run_pretrain_digits",
    "sample_images",
    "write_sheet",
]


@dataclass(frozen=True)
class PretrainDigitsRecipe:
    """Likelihood training of a class-conditional policy of image codes on scikit-learn's digits.

    Three networks are trained, each in its part of the run folder: an autoencoder that turns images into codes
    (``autoencoder/``), a classifier for rewards (``classifier/``) and the policy.

    Attributes:
        output_dir: run folder to make.
        codes: number of entries of the codebook.
        code_width: length of an entry.
        layers: depth of the transformer.
        heads: attention heads of the transformer.
        width: width of its hidden states.
        dropout: dropout probability in the transformer while pretraining.
        condition_dropout: share of training images whose label is hidden, so that the policy also works without.
        autoencoder: settings of the training loop of the autoencoder.
        classifier: settings of the training loop of the classifier.
        pretrain: settings of the training loop of the policy.
        evaluation_samples: images sampled at every checkpoint to log validity; 0 means none.
    """

    output_dir: str = "runs/pretrain-digits"
    codes: int = 32
    code_width: int = 4
    layers: int = 3
    heads: int = 4
    width: int = 64
    dropout: float = 0.2
    condition_dropout: float = 0.0
    autoencoder: PretrainConfig = field(default_factory=lambda: _small(1500, 2e-3))
    classifier: PretrainConfig = field(default_factory=lambda: _small(1000, 2e-3))
    pretrain: PretrainConfig = field(default_factory=lambda: _small(1000, 2e-3))
    evaluation_samples: int = 200

    def __post_init__(self) -> None:
        check_range("evaluation_samples", self.evaluation_samples, least=0)


def _small(steps: int, rate: float) -> PretrainConfig:
    return PretrainConfig(max_steps=steps, batch_size=128, learning_rate=rate, warmup_steps=50, ema_decay=0.99)


# -- policies


def image_policy(
    autoencoder: VQAutoencoder,
    *,
    layers: int = 3,
    heads: int = 4,
    width: int = 64,
    dropout: float = 0.0,
    condition_dropout: float = 0.0,
    seed: int = 42,
) -> DecodedPolicy:
    """An untrained policy of the codes of ``autoencoder``, which reads a context's ``label`` and decodes to images.

    Args:
        autoencoder: its codebook and decoder, frozen, become the decoder of the policy.
        layers: depth of the transformer.
        heads: attention heads of the transformer.
        width: width of its hidden states.
        dropout: dropout probability while pretraining.
        condition_dropout: share of training images whose label is hidden.
        seed: random seed of the initial weights; the global random state is not changed.
    """
    sizes = autoencoder.config
    codes = tuple(f"<{k}>" for k in range(sizes.codes))
    tokenizer = Tokenizer((*codes, *map(str, range(NUM_CLASSES))), CODES)
    config = GPTConfig(len(tokenizer), sizes.length, layers=layers, heads=heads, width=width, dropout=dropout)
    with seeded(seed):
        network = GPT(config)
    policy = TokenPolicy(
        network,
        tokenizer,
        max_length=sizes.length,
        min_length=sizes.length,
        prompt="label",
        max_prompt=1,
        only=codes,
        condition_dropout=condition_dropout,
    )
    return DecodedPolicy(policy, VQDecoder(autoencoder.decoder, sizes.length, sizes.codes))


# -- pretraining


def run_pretrain_digits(recipe: PretrainDigitsRecipe, *, resume: bool = False) -> Path:
    """Train autoencoder, classifier and policy; returns the folder of the exported policy."""
    run, train, test = Path(recipe.output_dir), load_digits("train"), load_digits("test")
    metadata = {
        "kind": "images",
        "data": {"name": "scikit-learn digits, training part", "images": len(train), "licence": LICENCE},
        "seed": recipe.pretrain.seed,
    }
    autoencoder = _train_autoencoder(recipe, run / "autoencoder", train, test, metadata, resume)
    _train_classifier(recipe, run / "classifier", train, test, metadata, resume)
    policy = image_policy(
        autoencoder,
        layers=recipe.layers,
        heads=recipe.heads,
        width=recipe.width,
        dropout=recipe.dropout,
        condition_dropout=recipe.condition_dropout,
        seed=recipe.pretrain.seed,
    )
    tokenizer = policy.policy.tokenizer
    data, held_out = (_token_data(part, autoencoder, tokenizer) for part in (train, test))
    everything = held_out.batch(torch.arange(len(held_out)))

    @torch.no_grad()
    def measure(averaged: DecodedPolicy) -> Mapping[str, float]:
        loss = averaged.likelihood_loss(everything.to(averaged.device), generator=torch.Generator(averaged.device))["loss"]
        count = recipe.evaluation_samples
        samples = sample_images(averaged, count, columns=image_columns()) if count else []
        return {"test_loss": float(loss)} | (sample_metrics(samples) if count else {})

    return fit(policy, data, recipe, metadata=metadata, evaluate=measure, resume=resume)


def _train_autoencoder(
    recipe: PretrainDigitsRecipe, folder: Path, train: DigitImages, test: DigitImages, metadata: Mapping[str, Any], resume: bool
) -> VQAutoencoder:
    seed = recipe.autoencoder.seed
    with seeded(seed):
        network = VQAutoencoder(VQConfig(train.pixels.shape[-1], codes=recipe.codes, code_width=recipe.code_width))
    network.initialise(train.pixels, torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def measure(averaged: VQAutoencoder) -> Mapping[str, float]:
        pixels = test.pixels.to(averaged.decoder.codebook.weight.device)
        return {"test_error": float((averaged(pixels) - pixels).square().mean())}

    config = recipe.autoencoder
    trainer = Pretrainer(network, train, config, folder, metadata=metadata, resume=resume, evaluate=measure)
    trainer.train()
    found: VQAutoencoder = trainer.averaged.cpu()
    return found


def _train_classifier(
    recipe: PretrainDigitsRecipe, folder: Path, train: DigitImages, test: DigitImages, metadata: Mapping[str, Any], resume: bool
) -> None:
    with seeded(recipe.classifier.seed):
        network = ConvNet(ConvNetConfig(train.pixels.shape[-1], NUM_CLASSES))

    @torch.no_grad()
    def measure(averaged: ConvNet) -> Mapping[str, float]:
        pixels = test.pixels.to(next(averaged.parameters()).device)
        return {"test_accuracy": float((averaged(pixels).argmax(-1).cpu() == test.labels).double().mean())}

    config = recipe.classifier
    trainer = Pretrainer(network, train, config, folder, metadata=metadata, resume=resume, evaluate=measure)
    trainer.metadata |= {"kind": "classifier"}
    exported = trainer.train()
    result = measure(trainer.averaged)
    save(exported, trainer.averaged, metadata=load_metadata(exported) | dict(result))
    print_table(f"{folder}: classifier of {len(test)} test images", {"after": dict(result)})


def _token_data(data: DigitImages, autoencoder: VQAutoencoder, tokenizer: Tokenizer) -> TokenDataset:
    """The images as sequences of codes, with their labels as prompts."""
    texts = [code_text(row) for row in autoencoder.encode(data.pixels).tolist()]
    return token_dataset(texts, tokenizer, prompts=[str(c) for c in data.labels.tolist()])


# -- sampling and evaluation


def image_columns(labels: Sequence[Any] = range(NUM_CLASSES)) -> list[Mapping[str, Any]]:
    """The conditions of a run: one per label.

    >>> image_columns([3])
    [{'label': 3}]
    """
    return [{"label": int(label)} for label in labels]


def sample_images(
    policy: Any, count: int, *, seed: int = 0, batch_size: int = 256, columns: Sequence[Mapping[str, Any]] | None = None
) -> list[Image | None]:
    """``count`` images, None where the codes are none; image k is drawn under ``columns[k % len(columns)]``.

    Raises:
        ValueError: if ``count`` is less than 1, or there are columns and none of them.
    """
    if count < 1:
        raise ValueError(f"n: {count}, expected at least 1")
    if columns is not None and not columns:
        raise ValueError("columns: an empty list, expected at least one condition or None")
    generator = torch.Generator(policy.device).manual_seed(seed)
    samples: list[Image | None] = []
    with progress("sampling", count) as bar:
        while len(samples) < count:
            size = min(batch_size, count - len(samples))
            given = None if columns is None else [columns[(len(samples) + k) % len(columns)] for k in range(size)]
            samples.extend(policy.sample(group_contexts(size, 1, given), generator=generator).samples)
            bar.advance(size)
    return samples


def image_properties(samples: Sequence[Image | None]) -> dict[str, list[float | None]]:
    """Ink of every sample, None where it is no image: the property columns of tables."""
    return {"ink": [None if image is None else x for image, x in zip(samples, ink(samples), strict=True)]}


def write_sheet(path: str | Path, samples: Sequence[Image | None], columns: int = 10) -> Path:
    """The images of ``samples`` side by side as a PNG file; what is no image is left out.

    Raises:
        ValueError: if there is no image.
    """
    drawn = [image for image in samples if image is not None]
    if not drawn:
        raise ValueError(f"samples: no image among {len(samples)}, expected at least one to draw")
    with atomic_write(path) as file:
        file.write(png(contact_sheet(drawn, columns)))
    return Path(path)


def holds_images(file: str) -> bool:
    """Whether a file is one that :func:`evaluate_file` reads: a column ``image``, or an image as its first line."""
    path = Path(file)
    if not path.is_file():
        return False
    try:
        first = next(text_lines(path), "").strip()
        return "image" in first.split(",") or Image.parse(first) is not None
    except (ValueError, OSError):  # other text, or none
        return False


def evaluate_file(file: str, *, out: str | None = None, max_bytes: int = MAX_BYTES) -> dict[str, float]:
    """The table of a file of image samples: one a line as text, or CSV with a column ``image`` or ``sample``.

    An empty line or cell is an invalid sample; a column ``label`` gives the class each was asked for. A gzipped file may unpack to
    at most ``max_bytes``.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming the line that is no image, or if there is no line or no such column.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"file: {file} does not exist")
    text = "".join(text_lines(path, max_bytes, argument="file"))
    labels: list[str] | None = None
    first, lines = 1, text.splitlines()
    if path.name.removesuffix(".gz").endswith(".csv"):
        rows = list(csv.DictReader(io.StringIO(text)))
        name = next((n for n in ("image", "sample") if rows and n in rows[0]), None)
        if name is None:
            raise ValueError(f"file: {file} has no row, or no column 'image' or 'sample', expected a table of image samples")
        first, lines = 2, [row[name] for row in rows]
        labels = [row["label"] for row in rows] if "label" in rows[0] else None
    if not lines:
        raise ValueError(f"file: {file} is empty, expected one image a line")
    result = evaluate([_image(line, f"{file}, line {k}") for k, line in enumerate(lines, first)], labels)
    print_table(f"{file}: {len(lines)} samples", {k: {"value": v} for k, v in result.items()})
    if out is not None:
        write_json(Path(out), {"file": file, "samples": len(lines)} | result)
    return result


def _image(line: str, place: str) -> Image | None:
    try:
        return Image.parse(line.strip()) if line.strip() else None
    except ValueError as error:
        raise ValueError(f"{place}: {str(error).removeprefix('text: ')}") from error
