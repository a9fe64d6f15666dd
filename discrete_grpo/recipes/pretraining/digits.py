"""Policies that draw images of digits as sequences of codes, and their pretraining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from discrete_grpo.core.checks import check_fields, check_sizes
from discrete_grpo.core.option_names import known_options
from discrete_grpo.core.processes import is_first
from discrete_grpo.core.seeding import seeded
from discrete_grpo.datasets.digits import LICENCE, NUM_CLASSES, DigitImages, load_digits
from discrete_grpo.datasets.smiles import TokenDataset, token_dataset
from discrete_grpo.domains.tokenizer import Tokenizer
from discrete_grpo.metrics.images import sample_metrics
from discrete_grpo.models.convnet import ConvNet, ConvNetConfig
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.models.vq import VQAutoencoder, VQConfig
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.decoders import CODES, VQDecoder, code_text
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.recipes.pretraining.fitting import fit
from discrete_grpo.recipes.sample import sample
from discrete_grpo.runs.checkpoint import load_metadata, save
from discrete_grpo.runs.console import print_table
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Pretrainer

__all__ = [
    "PretrainDigitsRecipe",
    "image_columns",
    "image_policy",
    "run_pretrain_digits",
]


@known_options()
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
    autoencoder: PretrainConfig = field(
        default_factory=partial(PretrainConfig, max_steps=1500, batch_size=128, learning_rate=2e-3, warmup_steps=50, ema_decay=0.99)
    )
    classifier: PretrainConfig = field(
        default_factory=partial(PretrainConfig, max_steps=1000, batch_size=128, learning_rate=2e-3, warmup_steps=50, ema_decay=0.99)
    )
    pretrain: PretrainConfig = field(
        default_factory=partial(PretrainConfig, max_steps=1000, batch_size=128, learning_rate=2e-3, warmup_steps=50, ema_decay=0.99)
    )
    evaluation_samples: int = 200

    def __post_init__(self) -> None:
        check_fields(self, "evaluation_samples", least=0)
        check_fields(self, "codes", least=2, most=256 - NUM_CLASSES - 4)
        check_fields(self, "code_width layers heads width", least=1)
        check_fields(self, "dropout condition_dropout", least=0, below=1)


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
    check_sizes("", config, GPTConfig)
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
    _policy_of(recipe, _new_autoencoder(recipe, train))  # raises for sizes that do not fit, before anything is trained
    autoencoder = _train_autoencoder(recipe, run / "autoencoder", train, test, metadata, resume)
    _train_classifier(recipe, run / "classifier", train, test, metadata, resume)
    policy = _policy_of(recipe, autoencoder)
    tokenizer = policy.policy.tokenizer
    data, held_out = (_token_data(part, autoencoder, tokenizer) for part in (train, test))
    everything = held_out.batch(torch.arange(len(held_out)))

    @torch.no_grad()
    def measure(averaged: DecodedPolicy) -> tuple[Mapping[str, float], list[Any]]:
        loss = averaged.likelihood_loss(everything.to(averaged.device), generator=torch.Generator(averaged.device))["loss"]
        count = recipe.evaluation_samples
        samples = sample(averaged, count, columns=image_columns()) if count else []
        return {"test_loss": float(loss)} | (sample_metrics(samples) if count else {}), samples

    return fit(policy, data, recipe, metadata=metadata, evaluate=measure, resume=resume)


def _policy_of(recipe: PretrainDigitsRecipe, autoencoder: VQAutoencoder) -> DecodedPolicy:
    """The untrained policy of a recipe."""
    return image_policy(
        autoencoder,
        layers=recipe.layers,
        heads=recipe.heads,
        width=recipe.width,
        dropout=recipe.dropout,
        condition_dropout=recipe.condition_dropout,
        seed=recipe.pretrain.seed,
    )


def _new_autoencoder(recipe: PretrainDigitsRecipe, train: DigitImages) -> VQAutoencoder:
    """The untrained autoencoder of a recipe."""
    with seeded(recipe.autoencoder.seed):
        return VQAutoencoder(VQConfig(train.pixels.shape[-1], codes=recipe.codes, code_width=recipe.code_width))


def _train_autoencoder(
    recipe: PretrainDigitsRecipe, folder: Path, train: DigitImages, test: DigitImages, metadata: Mapping[str, Any], resume: bool
) -> VQAutoencoder:
    network = _new_autoencoder(recipe, train)
    network.initialise(train.pixels, torch.Generator().manual_seed(recipe.autoencoder.seed))

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
    if not is_first():
        return
    result = measure(trainer.averaged)
    save(exported, trainer.averaged, metadata=load_metadata(exported) | dict(result))
    print_table(f"{folder}: classifier of {len(test)} test images", {"after": dict(result)})


def _token_data(data: DigitImages, autoencoder: VQAutoencoder, tokenizer: Tokenizer) -> TokenDataset:
    """The images as sequences of codes, with their labels as prompts."""
    texts = [code_text(row) for row in autoencoder.encode(data.pixels).tolist()]
    return token_dataset(texts, tokenizer, prompts=[str(c) for c in data.labels.tolist()])


# -- conditions


def image_columns(labels: Sequence[Any] = range(NUM_CLASSES)) -> list[Mapping[str, Any]]:
    """The conditions of a run: one per label.

    >>> image_columns([3])
    [{'label': 3}]
    """
    return [{"label": int(label)} for label in labels]
