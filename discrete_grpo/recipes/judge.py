"""Recipes of text: training a policy that fills blanks, and a judge of what it writes."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from discrete_grpo.datasets.text import (
    LabelledTextDataset,
    TextDataset,
    corrupt_lines,
    mask_lines,
    read_lines,
    sentences,
    text_dataset,
)
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.tokenizer import CHARACTERS, SMILES, Tokenizer
from discrete_grpo.metrics.text import ranking_quality
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.recipes.text import EncoderSizes, evaluate_fills, fill_texts, load_text_policy, text_judge, text_policy
from discrete_grpo.rewards.judge import ModuleReward, TextScorer
from discrete_grpo.runs.recorder import write_text
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Pretrainer

__all__ = ["EncoderSizes", "JudgeRecipe", "PretrainTextRecipe", "run_judge", "run_pretrain_text"]

SENTENCES = "sentences"
PATTERNS = {"characters": CHARACTERS, "smiles": SMILES}
Tokens = Literal["characters", "smiles"]


@dataclass(frozen=True)
class PretrainTextRecipe:
    """Likelihood training of a policy that fills blanks in text.

    Attributes:
        data: a text file, one sample a line (.txt, .smi, any other, each optionally .gz), or ``sentences`` for English
            sentences of a small grammar, made here.
        output_dir: run folder to make.
        tokens: what a blank stands for: one of the ``characters``, or a token of ``smiles``.
        num_lines: sentences to make; files are read whole.
        block_size: the longest text in tokens; None takes the longest line.
        long_lines: whether a longer line is an ``error`` or is ``split``.
        rounds: of unmasking, kept with the policy.
        truncation: temperature, top-k and top-p, kept with the policy.
        blank: character that marks a blank, not in the alphabet.
        network: sizes of the transformer.
        pretrain: settings of the training loop.
        evaluation_samples: held-out lines that are blanked and filled with every checkpoint; 0 for none. Of a file a tenth
            is the most.
        num_prompts: prompts made of training lines; with those of the held-out lines they are written into the run folder as
            ``prompts.jsonl`` and ``prompts-held-out.jsonl``, for the ``columns`` and ``evaluation_columns`` of ``train``.
        mask_rate: share of the tokens of a prompt that is blank.
        mask_span: tokens a run of blanks.
        data_name: written into the checkpoint.
        data_licence: written into the checkpoint.
        max_bytes: largest size that a gzipped file may unpack to.
    """

    data: str = SENTENCES
    output_dir: str = "runs/pretrain-text"
    tokens: Tokens = "characters"
    num_lines: int = 20_000
    block_size: int | None = None
    long_lines: Literal["error", "split"] = "error"
    rounds: int = 4
    truncation: Truncation = field(default_factory=Truncation)
    blank: str = "_"
    network: EncoderSizes = field(default_factory=EncoderSizes)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    evaluation_samples: int = 200
    num_prompts: int = 512
    mask_rate: float = 0.4
    mask_span: int = 6
    data_name: str | None = None
    data_licence: str | None = None
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        for name in ("evaluation_samples", "num_prompts"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)}, expected at least 0")


@dataclass(frozen=True)
class JudgeRecipe:
    """Training of a judge that tells real text from corrupted text and from the fills of a policy.

    Attributes:
        data: as for ``pretrain-text``.
        output_dir: run folder to make.
        tokens: what a token is: one of the ``characters`` or a token of ``smiles``.
        num_lines: sentences to make; files are read whole.
        block_size: the longest text in tokens; None takes the longest line.
        long_lines: whether a longer line is an ``error`` or is ``split``.
        corruptions: corrupted copies of each line.
        policy: whose fills are shown as not real: a bundled policy, checkpoint or run folder; None shows none.
        fills: filled copies of each line, at random shares of blanks.
        fill_rounds: rounds of unmasking of these fills; several take turns.
        fill_temperatures: of these fills; several take turns. Low ones show what a policy is surest of, where fine-tuning
            goes first.
        network: sizes of the transformer.
        pretrain: settings of the training loop.
        evaluation_samples: held-out lines judged with every checkpoint, beside as many corrupted ones; 0 for none.
        data_name: written into the checkpoint.
        data_licence: written into the checkpoint.
        max_bytes: largest size that a gzipped file may unpack to.
    """

    data: str = SENTENCES
    output_dir: str = "runs/judge"
    tokens: Tokens = "characters"
    num_lines: int = 20_000
    block_size: int | None = None
    long_lines: Literal["error", "split"] = "error"
    corruptions: int = 1
    policy: str | None = None
    fills: int = 1
    fill_rounds: tuple[int, ...] = (1, 4)
    fill_temperatures: tuple[float, ...] = (1.0, 0.3)
    network: EncoderSizes = field(default_factory=EncoderSizes)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    evaluation_samples: int = 500
    data_name: str | None = None
    data_licence: str | None = None
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        for name in ("corruptions", "fills", "evaluation_samples"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)}, expected at least 0")
        if self.corruptions == 0 and (self.policy is None or self.fills == 0):
            raise ValueError("corruptions: 0 without fills of a policy, expected something to tell real text from")
        for name in ("fill_rounds", "fill_temperatures"):
            if self.policy is not None and self.fills and not getattr(self, name):
                raise ValueError(f"{name}: {getattr(self, name)}, expected at least one value where a policy's fills are shown")


def _lines(recipe: PretrainTextRecipe | JudgeRecipe, tokenizer: Tokenizer | None = None) -> tuple[TextDataset, list[str]]:
    """Training data, and lines kept out of it; of a file each line, or piece of a split one, counts once."""
    options: dict[str, Any] = {"block_size": recipe.block_size, "long_lines": recipe.long_lines}
    options |= {"pattern": PATTERNS[recipe.tokens], "tokenizer": tokenizer}
    seed, kept = recipe.pretrain.seed, recipe.evaluation_samples
    if recipe.data == SENTENCES:
        made = sentences(recipe.num_lines, seed)
        return text_dataset(made, name=SENTENCES, **options), sentences(kept, seed, held_out=True) if kept else []
    found = read_lines(recipe.data, max_bytes=recipe.max_bytes)
    whole = text_dataset([line for _, line in found], name=recipe.data, numbers=[k for k, _ in found], **options)
    first = {line: k for k, line in reversed([*enumerate(whole.lines)])}  # a line that is there twice must not be kept out and seen
    distinct = torch.tensor(sorted(first.values()))
    order = distinct[torch.randperm(len(distinct), generator=torch.Generator().manual_seed(seed))].tolist()
    held = sorted(order[: min(kept, len(order) // 10)])
    rest = torch.tensor(sorted(order[len(held) :]))
    lines = tuple(whole.lines[k] for k in rest.tolist())
    data = TextDataset(whole.tokens[rest], whole.sizes[rest], whole.tokenizer, lines, whole.name)
    return data, [whole.lines[k] for k in held]


def _metadata(recipe: PretrainTextRecipe | JudgeRecipe, kind: str, data: TextDataset, held: Sequence[str]) -> dict[str, Any]:
    made = recipe.data == SENTENCES
    licence = recipe.data_licence or ("made by this package's grammar, no outside text" if made else "unknown")
    name = recipe.data_name or Path(recipe.data).name
    described = {"name": name, "lines": len(data), "held_out_lines": len(held), "licence": licence}
    return {"kind": kind, "data": described, "seed": recipe.pretrain.seed, "date": datetime.date.today().isoformat()}


def _kind(recipe: PretrainTextRecipe) -> str:
    """What the samples are, for metrics and reports."""
    return "molecules" if recipe.tokens == "smiles" else "text"


def _prompts(recipe: PretrainTextRecipe, lines: Sequence[str], seed: int) -> list[dict[str, str]]:
    options: dict[str, Any] = {"span": recipe.mask_span, "blank": recipe.blank, "pattern": PATTERNS[recipe.tokens]}
    masked = mask_lines(lines, recipe.mask_rate, torch.Generator().manual_seed(seed), **options)
    return [{"masked": m, "original": line} for m, line in zip(masked, lines, strict=True)]


def run_pretrain_text(recipe: PretrainTextRecipe, *, resume: bool = False) -> Path:
    """Train, log and export; returns the folder of the exported policy. Prompts are left in the run folder."""
    data, held = _lines(recipe)
    seed = recipe.pretrain.seed
    policy = text_policy(
        data,
        recipe.network,
        block_size=recipe.block_size,
        rounds=recipe.rounds,
        truncation=recipe.truncation,
        blank=recipe.blank,
        seed=seed,
    )
    prompts = _prompts(recipe, held, seed)

    def measure(averaged: MaskedTextPolicy) -> Mapping[str, float]:
        wanted = ("valid", "unique", "distinct_fills", "recovered", "sentences")
        return {k: v for k, v in evaluate_fills(averaged, prompts, 1).items() if k in wanted}

    trainer = Pretrainer(
        policy,
        data,
        recipe.pretrain,
        recipe.output_dir,
        metadata=_metadata(recipe, _kind(recipe), data, held),
        resume=resume,
        evaluate=measure if prompts else None,
    )
    for name, some in (("prompts", _prompts(recipe, data.lines[: recipe.num_prompts], seed + 1)), ("prompts-held-out", prompts)):
        write_text(Path(recipe.output_dir) / f"{name}.jsonl", "".join(f"{json.dumps(p)}\n" for p in some))
    return trainer.train()


def _fakes(recipe: JudgeRecipe, lines: Sequence[str], seed: int) -> list[str]:
    """Corrupted copies of lines and a policy's fills of them; what came out as a line of the data is left out."""
    generator = torch.Generator().manual_seed(seed)
    pattern = PATTERNS[recipe.tokens]
    made = [fake for _ in range(recipe.corruptions) for fake in corrupt_lines(lines, generator, pattern=pattern)]
    if recipe.policy is not None and recipe.fills:
        turns = list(itertools.product(recipe.fill_rounds, recipe.fill_temperatures))
        for turn, (rounds, temperature) in enumerate(turns):
            policy = load_text_policy(recipe.policy, rounds=rounds, temperature=temperature)
            part = [line for _ in range(recipe.fills) for line in lines[turn :: len(turns)]]
            made += fill_texts(policy, _any_blanks(part, policy.blank, pattern, generator), seed=seed + turn)
    real = set(lines)
    return [fake for fake in made if fake not in real]


def _any_blanks(lines: Sequence[str], blank: str, pattern: str, generator: torch.Generator) -> list[str]:
    """Each line with a share of blanks of its own, in runs of a length of its own."""
    rates = (0.1 + 0.6 * torch.rand(len(lines), generator=generator)).tolist()
    spans = torch.randint(1, 9, (len(lines),), generator=generator).tolist()
    options: dict[str, Any] = {"blank": blank, "pattern": pattern}
    return [
        mask_lines([line], rate, generator, span=span, **options)[0] for line, rate, span in zip(lines, rates, spans, strict=True)
    ]


def run_judge(recipe: JudgeRecipe, *, resume: bool = False) -> Path:
    """Train, log and export a judge; returns the folder of the exported judge."""
    alphabet = None if recipe.policy is None else load_text_policy(recipe.policy).tokenizer  # whose fills it is to read
    data, held = _lines(recipe, alphabet)
    seed = recipe.pretrain.seed
    fakes = _fakes(recipe, data.lines, seed)
    if not fakes:
        raise ValueError(f"data: {data.name!r} has no line that can be corrupted, expected lines of several different tokens")
    texts = text_dataset([*data.lines, *fakes], tokenizer=data.tokenizer, name=data.name)
    labelled = LabelledTextDataset(texts, torch.arange(len(texts)) < len(data))
    held_fakes = _fakes(recipe, held, seed + 1) if held else []

    def measure(averaged: TextScorer) -> Mapping[str, float]:
        judge = ModuleReward(averaged)
        real, other = judge(held), judge(held_fakes)
        means = {"real": float(torch.tensor(real).mean()), "other": float(torch.tensor(other).mean())}
        return means | {"ranking_quality": ranking_quality(real, other)}

    trainer = Pretrainer(
        text_judge(data, recipe.network, block_size=recipe.block_size, seed=seed),
        labelled,
        recipe.pretrain,
        recipe.output_dir,
        metadata=_metadata(recipe, "judge", data, held) | {"corrupted_lines": len(fakes), "fills_of": recipe.policy},
        resume=resume,
        evaluate=measure if held else None,
    )
    return trainer.train()
