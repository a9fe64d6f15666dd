"""Policies that fill blanks and judges of text: made, loaded, used and evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from discrete_grpo.core.rollout import Reward, group_contexts
from discrete_grpo.datasets.text import TextDataset, is_sentence, mask_lines, sentences
from discrete_grpo.domains.tokenizer import MASK
from discrete_grpo.metrics.text import diversity, evaluate, recovered
from discrete_grpo.models.encoder import Encoder, EncoderConfig, EncoderSizes, PooledEncoder
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.rewards.judge import Judge, TextScorer
from discrete_grpo.runs.checkpoint import CheckpointError, find_checkpoint, load_policy
from discrete_grpo.runs.console import progress

__all__ = [
    "EncoderSizes",
    "check_rewards",
    "evaluate_fills",
    "fill_in_prompts",
    "fill_texts",
    "load_text_policy",
    "text_judge",
    "text_policy",
]


# -- policies and judges


def _seeded(make: type[nn.Module], config: EncoderConfig, seed: int) -> nn.Module:
    """A network with initial weights of ``seed``; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(config)


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
    """An untrained policy that fills blanks in texts of the kind of ``data``.

    Args:
        data: gives the alphabet, and the longest text where ``block_size`` is None.
        network: sizes; None means the small setting.
        block_size: the longest text in tokens.
        rounds: of unmasking.
        truncation: of drawing and scoring.
        blank: the character that marks a blank.
        seed: of the initial weights; the global random state is left as it was.
    """
    block = block_size or data.block_size
    config = EncoderConfig(len(data.tokenizer), block, **vars(network or EncoderSizes()))
    encoder = _seeded(Encoder, config, seed)
    return MaskedTextPolicy(encoder, data.tokenizer, block, rounds=rounds, truncation=truncation, blank=blank)


def text_judge(
    data: TextDataset, network: EncoderSizes | None = None, *, block_size: int | None = None, seed: int = 42
) -> TextScorer:
    """An untrained judge of texts of the kind of ``data``; arguments as for :func:`text_policy`."""
    block = block_size or data.block_size
    config = EncoderConfig(len(data.tokenizer), block, **vars(network or EncoderSizes()))
    return TextScorer(_seeded(PooledEncoder, config, seed), data.tokenizer, block)


def load_text_policy(
    name: str | Path,
    *,
    rounds: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
) -> MaskedTextPolicy:
    """A policy that fills blanks, from a checkpoint.

    Args:
        name: a bundled policy's name, a checkpoint folder or a run folder.
        rounds: of unmasking; None keeps the checkpoint's, as for the others.
        temperature: divides the logits.
        top_k: keep the k most probable characters.
        top_p: keep the fewest characters of this probability.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged or not of such a policy.
        ValueError: for a value out of its range.
    """
    folder = find_checkpoint(name)
    policy = load_policy(folder)
    if not isinstance(policy, MaskedTextPolicy):
        raise CheckpointError(f"checkpoint: {folder} holds a {type(policy).__name__}, expected a policy that fills blanks in text")
    old = vars(policy.truncation)
    new = {k: v for k, v in (("temperature", temperature), ("top_k", top_k), ("top_p", top_p)) if v is not None}
    args = policy.init_args() | {"truncation": Truncation(**(old | new))} | ({} if rounds is None else {"rounds": rounds})
    return MaskedTextPolicy(**args).eval()


def check_rewards(policy: MaskedTextPolicy, rewards: Sequence[Reward]) -> None:
    """Refuse a judge of another alphabet than the policy's before the run.

    Raises:
        ValueError: naming the first character the judge does not know.
    """
    for reward in rewards:
        if isinstance(reward, Judge):
            reward.check(policy.tokenizer.tokens)


# -- prompts, filling and evaluation


def fill_in_prompts(
    count: int = 512, seed: int = 1, *, held_out: bool = False, rate: float = 0.4, span: int = 6
) -> list[dict[str, str]]:
    """Columns ``masked`` and ``original`` of sentences with blanks; none of the ``held_out`` is ever trained on.

    Args:
        count: how many.
        seed: of sentences and blanks.
        held_out: whether from the part kept for evaluation.
        rate: share of characters that are blank.
        span: characters a run of blanks.

    >>> fill_in_prompts(1)[0]["masked"]
    'an _____t read___________em before noon'
    """
    lines = sentences(count, seed, held_out=held_out)
    masked = mask_lines(lines, rate, torch.Generator().manual_seed(seed), span=span)
    return [{"masked": m, "original": line} for m, line in zip(masked, lines, strict=True)]


def fill_texts(
    policy: MaskedTextPolicy, masked: Sequence[str], count: int = 1, *, seed: int = 0, batch_size: int = 256
) -> list[Any]:
    """``count`` fills of each prompt, a prompt's together: ``result[k]`` fills ``masked[k // count]``.

    Raises:
        ValueError: if ``count`` is less than 1, or a prompt cannot be filled (no blank, unknown character, too long).
    """
    if count < 1:
        raise ValueError(f"count: {count}, expected at least 1")
    generator = torch.Generator(policy.device).manual_seed(seed)
    contexts = group_contexts(len(masked), count, [{"masked": m} for m in masked])
    samples: list[Any] = []
    with progress("filling", len(contexts)) as bar:
        for start in range(0, len(contexts), batch_size):
            part = contexts[start : start + batch_size]
            samples.extend(policy.sample(part, generator=generator).samples)
            bar.advance(len(part))
    return samples


def evaluate_fills(
    policy: MaskedTextPolicy, prompts: Sequence[Mapping[str, str]], count: int = 4, *, judge: Any = None, seed: int = 0
) -> dict[str, float]:
    """How well ``count`` fills of each prompt do.

    Returns:
        The table of :func:`~discrete_grpo.metrics.text.evaluate`; ``distinct_fills``: distinct / fills of a prompt; where the
        prompts have an ``original``, ``recovered``: share of blanks filled as there, and ``sentences``: share of fills that
        are sentences of the grammar, if the originals are; with a judge ``judge`` and ``judge_original``, its mean scores.
    """
    masked = [p["masked"] for p in prompts for _ in range(count)]
    samples = fill_texts(policy, [p["masked"] for p in prompts], count, seed=seed)
    found = evaluate(samples) | {"distinct_fills": diversity(samples, masked)}
    originals = [p["original"] for p in prompts if "original" in p]
    if len(originals) == len(prompts):
        encode = policy.tokenizer.encode
        given, wanted = [policy.encode(m) for m in masked], [encode(o) for o in originals for _ in range(count)]
        found["recovered"] = recovered([None if s is None else encode(s) for s in samples], given, wanted, MASK)
        if all(map(is_sentence, originals)):
            found["sentences"] = sum(map(is_sentence, samples)) / len(samples)
    if judge is not None:
        found["judge"] = float(torch.tensor(judge(samples)).mean())
        if originals:
            found["judge_original"] = float(torch.tensor(judge(originals)).mean())
    return found
