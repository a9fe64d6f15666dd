"""Scores the samples of a file by rewards, without a policy: a look at a reward before a run, or at samples of other programs."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.advantages import sum_rewards
from discrete_grpo.core.checks import check_fields, told_as
from discrete_grpo.core.csv_cells import csv_text
from discrete_grpo.core.reward_arguments import check_at_least_one, checked_weights, component_columns, reward_names
from discrete_grpo.core.scoring import score_samples, take_failures
from discrete_grpo.datasets.text_files import suffix_of
from discrete_grpo.recipes.conditions import read_columns
from discrete_grpo.recipes.evaluate import check_kind_name, check_no_run, family_of_file, read_samples
from discrete_grpo.recipes.families import KINDS, Family, FileOptions, View, check_view
from discrete_grpo.recipes.output_files import as_text, named_file, output_path
from discrete_grpo.recipes.reward_kinds import check_kind
from discrete_grpo.recipes.reward_workers import in_workers
from discrete_grpo.rewards.cache import ScoreCache, check_cache_file
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.runs.console import print_notes, print_table, progress
from discrete_grpo.runs.recorder import write_bytes

__all__ = ["FileScores", "ScoreRecipe", "run_score", "score_file"]

AT_ONCE = 256
"""Number of samples in a call of a reward, as many as most runs draw at a time."""
TOLD = 3
"""Number of failures of a reward that are printed."""


@dataclass(frozen=True, kw_only=True)
class ScoreRecipe:
    """Scores by one reward or several of the samples in a file; no policy is needed.

    Attributes:
        data: file of samples, as of ``evaluate``: molecules (.smi, .txt, .csv, .tsv), molecules in space (.sdf, .xyz), graphs, text
            or images, each optionally with .gz.
        reward: one reward or several, by import path (a bare name is looked up in ``discrete_grpo.rewards``).
        out: table to write, .csv or .csv.gz; null prints rewards and samples, one per line.
        kind: kind of the samples: molecules, spatial, graphs, digraphs, text, images or samples; null recognises it.
        columns: conditions that the rewards get with every sample, such as {logP: 2}.
        reward_weights: weights of several rewards in their sum; null means 1 each.
        reward_workers: number of worker processes that score the samples, as of ``train``; 0 scores in this process.
        reward_cache: SQLite file of scores that runs share, so that a stopped scoring goes on; null keeps scores in memory only.
        rewards_see: form in which rewards see samples, as of ``train``.
        smiles_column: name of the column of SMILES in the file; null finds it.
    """

    data: str | None = None
    reward: Callable[..., Any] | list[Callable[..., Any]] = "discrete_grpo.rewards.molecules.qed"  # type: ignore[assignment]
    out: str | None = None
    kind: str | None = None
    columns: dict[str, Any] | None = None
    reward_weights: tuple[float, ...] | None = None
    reward_workers: int = 0
    reward_cache: str | None = None
    rewards_see: View = "text"
    smiles_column: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, "reward_workers", least=0)
        check_view(self.rewards_see)
        check_kind_name(self.kind)
        checked_weights(self.reward_weights, len(self.rewards))

    @property
    def rewards(self) -> list[Any]:
        """The reward, or several, as a list."""
        return list(self.reward) if isinstance(self.reward, list | tuple) else [self.reward]


class FileScores(NamedTuple):
    """The samples of a file with their scores.

    Attributes:
        family: the kind of the samples.
        texts: the samples as the file writes them, in its order.
        samples: the samples as rewards receive them, None for what is no valid sample.
        names: the names of the rewards.
        scores: one column per reward, float64, NaN where unknown.
        reward: their weighted sum; NaN where all are unknown.
        failed: reasons of failures in worker processes and external programs.
    """

    family: Family
    texts: Sequence[str]
    samples: Sequence[Any]
    names: list[str]
    scores: Float[Tensor, "sample reward"]
    reward: Float[Tensor, " sample"]
    failed: list[str]

    def table(self) -> dict[str, Sequence[Any]]:
        """Sample, reward, and the score by each of several rewards; an unknown number is an empty cell."""
        parts = component_columns(self.scores.tolist(), self.names)
        numbers = {name: [_cell(x) for x in values] for name, values in ({"reward": self.reward.tolist()} | parts).items()}
        return {self.family.column: self.texts, **numbers}


def run_score(recipe: ScoreRecipe) -> FileScores:
    """Score a file and print the scores, or with ``out`` write them as a table and print their summary.

    Raises:
        FileNotFoundError, ValueError: as :func:`score_file`, and for an ``out`` that cannot be written, before anything is scored.
    """
    path = None if recipe.out is None else output_path(recipe.out)
    if path is not None:
        if suffix_of(path) != ".csv":
            raise ValueError(f"out: {recipe.out!r}, expected a table ending in .csv or .csv.gz")
        if recipe.data is not None and path.resolve() == Path(recipe.data).resolve():
            raise ValueError(f"out: {recipe.out!r} is read as data, expected another name")
    found = score_file(recipe)
    table = found.table()
    if path is None:
        print("".join(f"{reward}\t{text}\n" for text, reward in zip(*list(table.values())[:2], strict=True)), end="")
    else:
        content = csv_text([tuple(table), *zip(*table.values(), strict=True)]).encode()
        write_bytes(named_file(path), gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
        columns = {"reward": found.reward} | (dict(zip(found.names, found.scores.T, strict=True)) if len(found.names) > 1 else {})
        print_table(f"{recipe.data}: {len(found.samples)} samples", {name: _summary(values) for name, values in columns.items()})
        print(path)
    print_notes(_notes(found))
    return found


def score_file(recipe: ScoreRecipe) -> FileScores:
    """Score the samples of a file; each different valid sample is scored once, and molecules as canonical SMILES, as in a run.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for a file that cannot be read, or rewards for another kind of samples.
        RewardError: if a reward raises an exception.
    """
    if recipe.data is None:
        raise ValueError("data: no file, expected one of samples")
    check_no_run("data", recipe.data)
    conditions = None if recipe.columns is None else read_columns([recipe.columns])[0]
    rewards = check_at_least_one(recipe.rewards, conditions or ())
    kind = recipe.kind or ("molecules" if recipe.smiles_column is not None else None)
    with told_as("data", "file"):
        family = KINDS[kind]({}) if kind else family_of_file(recipe.data)
        rewards = _seen(rewards, family, recipe.rewards_see)
        if recipe.reward_cache is not None:
            check_cache_file(recipe.reward_cache)
        texts, samples = _samples(family, recipe.data, recipe.smiles_column)
    names, weights = reward_names(rewards), torch.tensor(checked_weights(recipe.reward_weights, len(rewards)), dtype=torch.float64)
    with in_workers(rewards, recipe.reward_workers) as scored:
        ledger = Ledger(key=family.key, cache=ScoreCache(recipe.reward_cache))
        scores = _scored(scored, samples, conditions or {}, ledger)
        failed = [one.reason for found in take_failures(scored).values() for one in found]
    return FileScores(family, texts, samples, names, scores, sum_rewards(scores, weights), failed)


def _seen(rewards: Sequence[Any], family: Family, view: View) -> list[Any]:
    """The rewards, wrapped so that each receives samples in the form that it expects."""
    if view == "text":
        also = ("molecules",) if family.name == "text" else ()
        check_kind(rewards, family.name, *also, origin="the file holds")
        return list(rewards)
    if family.reward_view is None:
        raise ValueError(f"rewards_see: {view!r}, expected 'text' with samples of the kind {family.name}")
    return [family.reward_view(reward, view) for reward in rewards]


def _samples(family: Family, file: str, smiles_column: str | None) -> tuple[Sequence[str], Sequence[Any]]:
    """The samples in the order of the file: as they are written, and in the form in which a policy draws them."""
    if family.name != "molecules":
        samples, _ = read_samples(family, file, FileOptions(smiles_column=smiles_column))
        return as_text(samples), samples
    from discrete_grpo.datasets.reading import smiles_rows

    with told_as("file", "path"):
        texts = [text for _, text in smiles_rows(Path(file), smiles_column)]
    samples = [family.key(text) for text in texts]
    if all(sample is None for sample in samples):
        raise ValueError(f"file: {file!r} holds no molecule ({len(samples)} lines were looked at)")
    return texts, samples


def _scored(
    rewards: Sequence[Any], samples: Sequence[Any], conditions: Mapping[str, Any], ledger: Ledger
) -> Float[Tensor, "sample reward"]:
    found = []
    with progress("scoring", len(samples)) as bar:
        for start in range(0, len(samples), AT_ONCE):
            part = samples[start : start + AT_ONCE]
            columns = {name: [value] * len(part) for name, value in conditions.items()}
            found.append(score_samples(rewards, part, columns, ledger))
            bar.advance(len(part))
    return torch.cat(found)


def _cell(number: float) -> str:
    return "" if math.isnan(number) else repr(number)


def _summary(values: Float[Tensor, " sample"]) -> dict[str, float]:
    known = values[~values.isnan()]
    if not len(known):
        return {"known": 0}
    return {
        "known": len(known),
        "mean": float(known.mean()),
        "std": float(known.std(correction=0)),
        "lowest": float(known.min()),
        "highest": float(known.max()),
    }


def _notes(found: FileScores) -> list[str]:
    """What a reader of the numbers should know: invalid samples, unknown scores, and failures."""
    invalid, unknown = sum(sample is None for sample in found.samples), int(found.reward.isnan().sum())
    notes = [f"{invalid} of {len(found.samples)} samples are invalid, and score what the reward gives them"] if invalid else []
    notes += [f"{unknown} of {len(found.samples)} rewards are unknown"] if unknown else []
    return notes + [f"failed: {reason}" for reason in list(dict.fromkeys(found.failed))[:TOLD]]
