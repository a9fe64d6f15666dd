"""Judges of text, trained to separate real lines from corrupted and filled ones."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from discrete_grpo.core.checks import check_fields, check_sizes
from discrete_grpo.core.option_names import known_options
from discrete_grpo.core.seeding import seeded
from discrete_grpo.datasets.text import LabelledTextDataset, TextDataset, corrupt_lines, mask_lines, text_dataset
from discrete_grpo.metrics.text import ranking_quality
from discrete_grpo.models.encoder import EncoderConfig, EncoderSizes, PooledEncoder
from discrete_grpo.recipes.filling import fill_texts, load_text_policy
from discrete_grpo.recipes.pretraining.fitting import fit
from discrete_grpo.recipes.pretraining.text import PATTERNS, TextOptions, split_lines, text_metadata
from discrete_grpo.rewards.judge import ModuleReward, TextScorer

__all__ = ["JudgeRecipe", "run_judge", "text_judge"]


@known_options()
@dataclass(frozen=True, kw_only=True)
class JudgeRecipe(TextOptions):
    """Training of a judge that tells real text from corrupted text and from the fills of a policy.

    Attributes:
        output_dir: run folder to make.
        corruptions: corrupted copies per line.
        policy: policy whose fills count as not real: a bundled policy, a checkpoint or a run folder; None means no fills.
        fills: filled copies per line, with random shares of blanks.
        fill_rounds: rounds of unmasking of the fills; several values take turns.
        fill_temperatures: temperatures of the fills; several values take turns. Low ones give the most probable fills, which
            fine-tuning reaches first.
        evaluation_samples: held-out lines that are judged at every checkpoint, with as many corrupted ones; 0 means none.
    """

    output_dir: str = "runs/judge"
    corruptions: int = 1
    policy: str | None = None
    fills: int = 1
    fill_rounds: tuple[int, ...] = (1, 4)
    fill_temperatures: tuple[float, ...] = (1.0, 0.3)
    evaluation_samples: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "corruptions fills evaluation_samples", least=0)
        if self.corruptions == 0 and (self.policy is None or self.fills == 0):
            raise ValueError("corruptions: 0 without fills of a policy, expected something to tell real text from")
        for name in ("fill_rounds", "fill_temperatures"):
            if self.policy is not None and self.fills and not getattr(self, name):
                raise ValueError(f"{name}: {getattr(self, name)}, expected at least one value where a policy's fills are shown")


def text_judge(
    data: TextDataset, network: EncoderSizes | None = None, *, block_size: int | None = None, seed: int = 42
) -> TextScorer:
    """An untrained judge of texts like those of ``data``.

    Args:
        data: gives the alphabet, and the longest text where ``block_size`` is None.
        network: sizes of the transformer; None means default sizes.
        block_size: the longest text in tokens.
        seed: random seed of the initial weights; the global random state is not changed.
    """
    block = block_size or data.block_size
    config = EncoderConfig(len(data.tokenizer), block, **vars(network or EncoderSizes()))
    check_sizes("network", config, EncoderConfig)
    with seeded(seed):
        network_of_judge = PooledEncoder(config)
    return TextScorer(network_of_judge, data.tokenizer, block)


def run_judge(recipe: JudgeRecipe, *, resume: bool = False) -> Path:
    """Train a judge; returns the folder of the exported judge."""
    alphabet = None if recipe.policy is None else load_text_policy(recipe.policy).tokenizer  # the judge reads its fills
    data, held = split_lines(recipe, recipe.evaluation_samples, alphabet)
    seed = recipe.pretrain.seed
    real = {*data.lines, *held}
    fakes = _fakes(recipe, data.lines, real, seed)
    if not fakes:
        raise ValueError(f"data: {data.name!r} has no line that can be corrupted, expected lines of several different tokens")
    texts = text_dataset([*data.lines, *fakes], tokenizer=data.tokenizer, name=data.name)
    labelled = LabelledTextDataset(texts, torch.arange(len(texts)) < len(data))
    held_fakes = _fakes(recipe, held, real, seed + 1) if held else []

    def measure(averaged: TextScorer) -> tuple[Mapping[str, float], tuple[()]]:
        judge = ModuleReward(averaged)
        real, other = judge(held), judge(held_fakes)
        means = {"real": float(torch.tensor(real).mean()), "other": float(torch.tensor(other).mean())}
        return means | {"ranking_quality": ranking_quality(real, other)}, ()

    scorer = text_judge(data, recipe.network, block_size=recipe.block_size, seed=seed)
    metadata = text_metadata(recipe, "judge", data, held) | {"corrupted_lines": len(fakes), "fills_of": recipe.policy}
    facts = {"digest of the corrupted lines and fills": hashlib.sha256("\n".join(fakes).encode()).hexdigest()[:12]}
    return fit(scorer, labelled, recipe, metadata=metadata, evaluate=measure if held else None, facts=facts, resume=resume)


def _fakes(recipe: JudgeRecipe, lines: Sequence[str], real: Collection[str], seed: int) -> list[str]:
    """Corrupted copies of lines and a policy's fills of them, except those that equal a ``real`` line."""
    generator = torch.Generator().manual_seed(seed)
    pattern = PATTERNS[recipe.tokens]
    made = [fake for _ in range(recipe.corruptions) for fake in corrupt_lines(lines, generator, pattern=pattern)]
    if recipe.policy is not None and recipe.fills:
        turns = list(itertools.product(recipe.fill_rounds, recipe.fill_temperatures))
        for turn, (rounds, temperature) in enumerate(turns):
            policy = load_text_policy(recipe.policy, rounds=rounds, temperature=temperature)
            part = [line for _ in range(recipe.fills) for line in lines[turn :: len(turns)]]
            made += fill_texts(policy, _any_blanks(part, policy.blank, pattern, generator), seed=seed + turn)
    return [fake for fake in made if fake not in real]


def _any_blanks(lines: Sequence[str], blank: str, pattern: str, generator: torch.Generator) -> list[str]:
    """The lines with blanks, of which share and length are random in each line."""
    rates = (0.1 + 0.6 * torch.rand(len(lines), generator=generator)).tolist()
    spans = torch.randint(1, 9, (len(lines),), generator=generator).tolist()
    options: dict[str, Any] = {"blank": blank, "pattern": pattern}
    return [
        mask_lines([line], rate, generator, span=span, **options)[0] for line, rate, span in zip(lines, rates, spans, strict=True)
    ]
