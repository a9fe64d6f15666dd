"""Policies that fill blanks in text, and their pretraining."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from discrete_grpo.core.checks import check_choices, check_fields, check_sizes, check_text, told_as
from discrete_grpo.core.option_names import known_options
from discrete_grpo.core.processes import is_first
from discrete_grpo.core.seeding import seeded, some_of
from discrete_grpo.datasets.text import TextDataset, mask_lines, read_lines, sentences, text_dataset
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.tokenizer import CHARACTERS, SMILES, Tokenizer
from discrete_grpo.models.encoder import Encoder, EncoderConfig, EncoderSizes
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.recipes.filling import evaluate_fills
from discrete_grpo.recipes.pretraining.fitting import fit
from discrete_grpo.runs.console import print_notes
from discrete_grpo.training.config import PretrainConfig

__all__ = [
    "PATTERNS",
    "EncoderSizes",
    "PretrainTextRecipe",
    "TextOptions",
    "run_pretrain_text",
    "split_lines",
    "text_metadata",
    "text_policy",
]

SENTENCES = "sentences"
PATTERNS = {"characters": CHARACTERS, "smiles": SMILES}
"""Regular expressions of the tokens that ``TextOptions.tokens`` names."""


# -- data


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Data, network and training loop of a policy or a judge of text.

    Attributes:
        data: a text file with one sample per line (.txt, .smi or any other ending, each optionally .gz), or ``sentences`` for
            English sentences of a small grammar, generated on the spot.
        tokens: what a token is: one of the ``characters``, or a token of ``smiles``.
        num_lines: number of sentences to generate; files are read whole.
        block_size: the longest text in tokens; None means the longest line.
        long_lines: whether a line longer than ``block_size`` is an ``error`` or is ``split``.
        network: sizes of the transformer.
        pretrain: settings of the training loop.
        data_name: name kept with the checkpoint; None means that of ``data``.
        data_licence: licence kept with the checkpoint; None means "unknown" for a file.
        max_bytes: largest size that a gzipped file may unpack to.
    """

    data: str = SENTENCES
    tokens: Literal["characters", "smiles"] = "characters"
    num_lines: int = 20_000
    block_size: int | None = None
    long_lines: Literal["error", "split"] = "error"
    network: EncoderSizes = field(default_factory=EncoderSizes)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    data_name: str | None = None
    data_licence: str | None = None
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        check_text("data", self.data, f"the name of a file of text, or {SENTENCES}")
        check_sizes("network", self.network, EncoderSizes)
        check_fields(self, "num_lines block_size max_bytes", least=1)
        check_choices(self)
        if self.long_lines == "split" and self.block_size is None:
            raise ValueError("long_lines: 'split', expected 'error' without a block_size, as then no line is too long")


def split_lines(options: TextOptions, held_out: int, tokenizer: Tokenizer | None = None) -> tuple[TextDataset, list[str]]:
    """Training data, and at most ``held_out`` lines that are kept out of it: of a file, a tenth of its distinct lines at most."""
    how: dict[str, Any] = {"block_size": options.block_size, "long_lines": options.long_lines}
    how |= {"pattern": PATTERNS[options.tokens], "tokenizer": tokenizer}
    seed = options.pretrain.seed
    if options.data == SENTENCES:
        data = text_dataset(sentences(options.num_lines, seed), name=SENTENCES, **how)
        known = [line for line in sentences(held_out, seed, held_out=True) if data.tokenizer.knows(line)] if held_out else []
        if known and options.long_lines == "split":
            known = list(text_dataset(known, **how | {"tokenizer": data.tokenizer}).lines)
        longest = options.block_size or int(data.sizes.max())
        return data, [line for line in known if len(data.tokenizer.encode(line)) <= longest]
    with told_as("data", "path"):
        found = read_lines(options.data, max_bytes=options.max_bytes)
    whole = text_dataset([line for _, line in found], name=options.data, numbers=[k for k, _ in found], **how)
    first = {line: k for k, line in reversed([*enumerate(whole.lines)])}  # copies of a line stay together
    distinct = torch.tensor(sorted(first.values()))
    order = distinct[torch.randperm(len(distinct), generator=torch.Generator().manual_seed(seed))].tolist()
    held = sorted(order[: min(held_out, len(order) // 10)])
    rest = torch.tensor(sorted(order[len(held) :]))
    lines = tuple(whole.lines[k] for k in rest.tolist())
    data = TextDataset(whole.tokens[rest], whole.sizes[rest], whole.tokenizer, lines, whole.name)
    return data, [whole.lines[k] for k in held]


def text_metadata(options: TextOptions, kind: str, data: TextDataset, held: Sequence[str]) -> dict[str, Any]:
    """Metadata of a checkpoint trained on ``data``, with the lines ``held`` kept out of it."""
    generated = options.data == SENTENCES
    licence = options.data_licence or ("made by this package's grammar, no outside text" if generated else "unknown")
    name = options.data_name or Path(options.data).name
    described = {"name": name, "lines": len(data), "held_out_lines": len(held), "licence": licence}
    return {"kind": kind, "data": described, "seed": options.pretrain.seed}


# -- pretraining


@known_options()
@dataclass(frozen=True, kw_only=True)
class PretrainTextRecipe(TextOptions):
    """Likelihood training of a policy that fills blanks in text.

    Attributes:
        output_dir: run folder to make.
        rounds: rounds of unmasking, kept with the policy.
        truncation: temperature, top-k and top-p, kept with the policy.
        blank: character that marks a blank; it is not in the alphabet.
        evaluation_samples: held-out lines that are blanked and filled at every checkpoint; 0 means none. At most a tenth of the
            lines of a file are held out.
        num_prompts: number of prompts made of training lines, which are drawn at random. They are written into the run folder as
            ``prompts.jsonl``, and those of the held-out lines as ``prompts-held-out.jsonl``, for ``columns`` and
            ``evaluation_columns`` of ``train``.
        mask_rate: share of the tokens of a prompt that is blank.
        mask_span: tokens per run of blanks.
    """

    output_dir: str = "runs/pretrain-text"
    rounds: int = 4
    truncation: Truncation = field(default_factory=Truncation)
    blank: str = "_"
    evaluation_samples: int = 200
    num_prompts: int = 512
    mask_rate: float = 0.4
    mask_span: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "evaluation_samples num_prompts", least=0)
        check_fields(self, "rounds mask_span", least=1)
        check_fields(self, "mask_rate", above=0, most=1)


def text_policy(
    data: TextDataset,
    network: EncoderSizes | None = None,
    *,
    block_size: int | None = None,
    rounds: int = 1,
    truncation: Truncation | None = None,
    blank: str = "_",
    seed: int = 42,
) -> MaskedTextPolicy:
    """An untrained policy that fills blanks in texts like those of ``data``.

    Args:
        data: gives the alphabet, and the longest text where ``block_size`` is None.
        network: sizes of the transformer; None means default sizes.
        block_size: the longest text in tokens.
        rounds: rounds of unmasking.
        truncation: temperature, top-k and top-p, in sampling and in scoring.
        blank: the character that marks a blank.
        seed: random seed of the initial weights; the global random state is not changed.
    """
    block = block_size or data.block_size
    config = EncoderConfig(len(data.tokenizer), block, **vars(network or EncoderSizes()))
    check_sizes("network", config, EncoderConfig)
    with seeded(seed):
        encoder = Encoder(config)
    return MaskedTextPolicy(encoder, data.tokenizer, block, rounds=rounds, truncation=truncation, blank=blank)


def run_pretrain_text(recipe: PretrainTextRecipe, *, resume: bool = False) -> Path:
    """Pretrain a policy that fills blanks and write prompts into the run folder; returns the folder of the exported policy."""
    data, held = split_lines(recipe, recipe.evaluation_samples)
    seed, block = recipe.pretrain.seed, recipe.block_size
    how: dict[str, Any] = {"rounds": recipe.rounds, "truncation": recipe.truncation, "blank": recipe.blank}
    policy = text_policy(data, recipe.network, block_size=block, seed=seed, **how)
    if recipe.tokens == "smiles":
        from discrete_grpo.domains.smiles import canonical_samples

        policy.decode = canonical_samples
    prompts = _prompts(recipe, held, seed)

    def measure(averaged: MaskedTextPolicy) -> tuple[Mapping[str, float], tuple[()]]:
        wanted = ("valid", "unique", "distinct_fills", "recovered", "sentences")
        return {k: v for k, v in evaluate_fills(averaged, prompts, 1).items() if k in wanted}, ()

    metadata = text_metadata(recipe, "molecules" if recipe.tokens == "smiles" else "text", data, held)
    shown = {
        "prompts": _prompts(recipe, some_of(list(dict.fromkeys(data.lines)), recipe.num_prompts, seed), seed + 1),
        "prompts-held-out": prompts,
    }
    files = {f"{name}.jsonl": "".join(f"{json.dumps(p)}\n" for p in some) for name, some in shown.items()}
    evaluate = measure if prompts else None
    if recipe.evaluation_samples and not held and is_first():
        print_notes([f"data: {recipe.data}: {len(data)} different lines are too few to hold any out, so no fills are measured"])
    return fit(policy, data, recipe, metadata=metadata, evaluate=evaluate, files=files, resume=resume)


def _prompts(recipe: PretrainTextRecipe, lines: Sequence[str], seed: int) -> list[dict[str, str]]:
    """Each line with blanks, beside the line itself."""
    options: dict[str, Any] = {"span": recipe.mask_span, "blank": recipe.blank, "pattern": PATTERNS[recipe.tokens]}
    masked = mask_lines(lines, recipe.mask_rate, torch.Generator().manual_seed(seed), **options)
    return [{"masked": m, "original": line} for m, line in zip(masked, lines, strict=True)]
