"""Filling the blanks of text with a trained policy: loading it, prompts, fills, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from discrete_grpo.core.checks import check_whole
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.datasets.text import is_sentence, mask_lines, sentences
from discrete_grpo.domains.tokenizer import MASK
from discrete_grpo.metrics.text import diversity, evaluate, recovered
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.loading import rebuilt, with_sampler
from discrete_grpo.runs.checkpoint import CheckpointError, read_policy
from discrete_grpo.runs.checkpoint_names import find_checkpoint
from discrete_grpo.runs.console import progress

__all__ = ["evaluate_fills", "fill_in_prompts", "fill_texts", "load_text_policy"]


def load_text_policy(
    name: str | Path,
    *,
    rounds: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
) -> MaskedTextPolicy:
    """A policy that fills blanks, from a checkpoint; an option that is None keeps the value of the checkpoint.

    Args:
        name: name of a bundled policy, a checkpoint folder or a run folder.
        rounds: rounds of unmasking.
        temperature: divides the logits.
        top_k: number of most probable characters that are kept.
        top_p: the smallest set of characters with this probability is kept.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged or not of such a policy.
        ValueError: for a value out of its range.
    """
    folder = find_checkpoint(name)
    policy = read_policy(folder)
    if not isinstance(policy, MaskedTextPolicy):
        raise CheckpointError(f"checkpoint: {folder} holds a {type(policy).__name__}, expected a policy that fills blanks in text")
    policy = with_sampler(policy, SamplerOptions(temperature=temperature, top_k=top_k, top_p=top_p))
    found: MaskedTextPolicy = policy if rounds is None else rebuilt(policy, lambda old: {"rounds": rounds})
    return found.eval()


def fill_in_prompts(
    count: int = 512, seed: int = 1, *, held_out: bool = False, rate: float = 0.4, span: int = 6
) -> list[dict[str, str]]:
    """Columns ``masked`` and ``original`` of sentences with blanks.

    Args:
        count: number of sentences.
        seed: random seed of sentences and blanks.
        held_out: whether the sentences come from the part kept for evaluation, which no bundled policy was trained on.
        rate: share of characters that are blank.
        span: characters per run of blanks.

    >>> fill_in_prompts(1)[0]["masked"]
    'an _____t read___________em before noon'
    """
    lines = sentences(count, seed, held_out=held_out)
    masked = mask_lines(lines, rate, torch.Generator().manual_seed(seed), span=span)
    return [{"masked": m, "original": line} for m, line in zip(masked, lines, strict=True)]


def fill_texts(
    policy: MaskedTextPolicy, masked: Sequence[str], count: int = 1, *, seed: int = 0, batch_size: int = 256
) -> list[Any]:
    """``count`` fills of each prompt, one prompt after the other: ``result[k]`` fills ``masked[k // count]``.

    They are what the ``decode`` of the policy makes of the filled texts, or else these texts.

    Raises:
        ValueError: if ``count`` is less than 1, or a prompt cannot be filled (no blank, unknown character, too long).
    """
    return _decoded(policy, _texts(policy, masked, count, seed, batch_size))


def _decoded(policy: MaskedTextPolicy, texts: Sequence[str]) -> list[Any]:
    return list(texts if policy.decode is None else policy.decode(texts))


def _texts(policy: MaskedTextPolicy, masked: Sequence[str], count: int, seed: int, batch_size: int = 256) -> list[str]:
    """The fills as they are spelled."""
    check_whole("count", count, least=1)
    generator = torch.Generator(policy.device).manual_seed(seed)
    contexts = group_contexts(len(masked), count, [{"masked": m} for m in masked])
    texts: list[str] = []
    with progress("filling", len(contexts)) as bar:
        for start in range(0, len(contexts), batch_size):
            part = contexts[start : start + batch_size]
            drawn = policy.sample(part, generator=generator).states["tokens"]
            texts.extend(policy.tokenizer.decode(row) for row in drawn.tolist())
            bar.advance(len(part))
    return texts


def evaluate_fills(
    policy: MaskedTextPolicy, prompts: Sequence[Mapping[str, str]], count: int = 4, *, judge: Any = None, seed: int = 0
) -> dict[str, float]:
    """Metrics of ``count`` fills of each prompt.

    Returns:
        The table of :func:`~discrete_grpo.metrics.text.evaluate`, and ``distinct_fills``: share of different fills among the
        fills of a prompt. If the prompts have an ``original``, ``recovered``: share of blanks filled as in the original; if all
        originals are sentences of the grammar, ``sentences``: share of fills that are, too. With a judge, its mean scores of
        fills, ``judge``, and of originals, ``judge_original``.

    Raises:
        ValueError: for no prompts.
    """
    if not prompts:
        raise ValueError("prompts: none given, expected at least one")
    masked = [p["masked"] for p in prompts for _ in range(count)]
    texts = _texts(policy, [p["masked"] for p in prompts], count, seed)
    samples = _decoded(policy, texts)
    found = evaluate(samples) | {"distinct_fills": diversity(samples, masked)}
    originals = [p["original"] for p in prompts if "original" in p]
    if len(originals) == len(prompts):
        encode = policy.tokenizer.encode
        given, wanted = [policy.encode(m) for m in masked], [encode(o) for o in originals for _ in range(count)]
        found["recovered"] = recovered([encode(text) for text in texts], given, wanted, MASK)
        if all(map(is_sentence, originals)):
            found["sentences"] = sum(map(is_sentence, samples)) / len(samples)
    if judge is not None:
        found["judge"] = float(torch.tensor(judge(samples)).mean())
        if originals:
            found["judge_original"] = float(torch.tensor(judge(originals)).mean())
    return found
