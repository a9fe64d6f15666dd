"""Off-line training in a run: reads, checks and stores the rows of a table of measured scores, and trains on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from discrete_grpo.core.checks import check_fields
from discrete_grpo.core.rollout import Replayable, is_replayable
from discrete_grpo.policies.options import Likelihood, graph_part, with_options, without_likelihood
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.recorder import read_samples, write_table
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.offline import OfflineTrainer, ScoredSamples

if TYPE_CHECKING:
    from discrete_grpo.datasets.scored import ScoredTable

__all__ = ["OfflineOptions", "offline_likelihood", "offline_trainer", "scored_samples"]

KEPT = "scored.csv.gz"
"""File with the rows of a run in its folder, so that it can be resumed without the original table."""
FOLDER = "offline"
"""Folder of the metrics and checkpoints of the off-line updates, in that of the run."""


@dataclass(frozen=True, kw_only=True)
class OfflineOptions(SamplerOptions):
    """Updates on samples with given scores, before any sample is drawn; see ``docs/offline.md``.

    Attributes:
        data: table of samples with measured scores, a csv or tsv file with a header; None makes no off-line updates.
        score_column: with data: name of the column of scores; higher is better.
        group_column: with data: name of the column of groups, such as an assay, whose scores are compared with each other; None
            compares the samples of an update.
        sample_column: with data: name of the column of samples; None finds it by its name.
        offline_steps: with data: number of updates on its samples, which come before ``grpo.max_steps``.
        offline_likelihood: with data: log-probs and KL of the off-line updates of a graph policy: eager (of the clean classes),
            elbo or transition; None takes eager, or that of ``likelihood`` if it is a surrogate.
    """

    data: str | None = None
    score_column: str | None = None
    group_column: str | None = None
    sample_column: str | None = None
    offline_steps: int = 100
    offline_likelihood: Likelihood | None = None

    def check_offline(self, **conditions: Any) -> None:
        """Check that the options are compatible, and that a run with ``data`` has none of the ``conditions``.

        Raises:
            ValueError: naming the option.
        """
        check_fields(self, "offline_steps", least=1)
        if self.data is None:
            for name in ("score_column", "group_column", "sample_column", "offline_likelihood"):
                if (value := getattr(self, name)) is not None:
                    raise ValueError(f"{name}: {value!r}, expected none without data (a table of scored samples)")
            if self.offline_steps != OfflineOptions.offline_steps:
                raise ValueError(f"offline_steps: {self.offline_steps}, expected none without data (a table of scored samples)")
            return
        if self.score_column is None:
            raise ValueError("score_column: None, expected the name of the column of scores in data")
        for name, value in conditions.items():
            if value is not None:
                raise ValueError(f"{name}: {value!r}, expected none with data, whose samples have no conditions")


# -- the rows


@dataclass(frozen=True)
class _Rows:
    """Samples that the policy can draw, their scores and the names of their groups."""

    samples: tuple[str, ...]
    scores: tuple[float, ...]
    groups: tuple[str, ...] | None


def scored_samples(
    options: OfflineOptions, policy: Any, key: Callable[[Any], str | None], folder: Path, *, resume: bool = False
) -> ScoredSamples:
    """Return the samples of the table that the policy can draw; skipped rows are counted on standard error.

    Samples are taken in canonical form, in which policies are trained, unless the policy can draw the text of the table only. The
    rows are kept in the run folder, and a resumed run reads them there.

    Args:
        options: name of the table and of its columns.
        policy: the policy to train.
        key: canonical form of a sample; None for an invalid one.
        folder: the run folder.
        resume: whether the run is resumed.

    Raises:
        ValueError: if the table cannot be read, see :func:`~discrete_grpo.datasets.scored.read_scored`, or if the policy can draw
            none of its samples, or cannot learn from samples that it did not draw.
    """
    kept = folder / KEPT
    if resume and kept.is_file():
        return _numbered(_read_kept(kept))
    if not is_replayable(policy):
        raise ValueError(f"data: {options.data!r}, expected none: {type(policy).__name__} cannot learn from any sample")
    from discrete_grpo.datasets.scored import read_scored  # it imports RDKit

    file, column = str(options.data), str(options.score_column)
    table = read_scored(file, column, sample_column=options.sample_column, group_column=options.group_column)
    rows = _drawable(file, table, policy, key)
    _tell_groups(rows, str(options.group_column))
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Sequence[Any]] = {"sample": rows.samples, "score": rows.scores}
    write_table(kept, found if rows.groups is None else {**found, "group": rows.groups})
    return _numbered(rows)


def _drawable(file: str, table: ScoredTable, policy: Replayable, key: Callable[[Any], str | None]) -> _Rows:
    texts = [_drawn_form(text, policy, key) for text in table.samples]
    at = [k for k, text in enumerate(texts) if text is not None]
    lost = [k for k, text in enumerate(texts) if text is None]
    first = f"line {table.lines[lost[0]]}: {table.samples[lost[0]][:60]!r}" if lost else ""
    if not at:
        raise ValueError(f"data: {file!r} has {len(lost)} samples, none of which the policy can draw ({first})")
    said = [f"{table.unscored} without a score"] if table.unscored else []
    said += [f"{len(lost)} that the policy cannot draw ({first})"] if lost else []
    print_notes([f"{file}: {len(at)} samples" + (f"; left out: {', '.join(said)}" if said else "")])
    if salts := sum(_is_salt(table.samples[k], key) for k in lost):
        print_notes([f"{salts} of those left out have several fragments, as salts have; strip them to use the samples"])
    _tell_repeats([(texts[k], None if table.groups is None else table.groups[k]) for k in at], [table.scores[k] for k in at])
    groups = None if table.groups is None else tuple(table.groups[k] for k in at)
    return _Rows(tuple(texts[k] or "" for k in at), tuple(table.scores[k] for k in at), groups)


def _drawn_form(text: str, policy: Replayable, key: Callable[[Any], str | None]) -> str | None:
    """The canonical form of a sample, or else its own text, if the policy can draw it; None for neither, or an invalid sample."""
    canonical = key(text)
    if canonical is None:
        return None
    return next((form for form in (canonical, text) if policy.can_draw(form)), None)


def _is_salt(text: str, key: Callable[[Any], str | None]) -> bool:
    """Whether an invalid sample is a list of valid ones with dots between them."""
    parts = text.split(".")
    return len(parts) > 1 and key(text) is None and all(key(part) is not None for part in parts)


def _tell_repeats(keys: Sequence[tuple[Any, Any]], scores: Sequence[float]) -> None:
    """Print a note if samples are there several times, in the same group where there are groups, with different scores."""
    found: dict[tuple[Any, Any], set[float]] = {}
    for sample, score in zip(keys, scores, strict=True):
        found.setdefault(sample, set()).add(score)
    if several := {sample: values for sample, values in found.items() if len(values) > 1}:
        (first, _), values = next(iter(several.items()))
        shown = f"{first[:60]!r}: {', '.join(f'{value:g}' for value in sorted(values)[:3])}"
        subject = "1 sample has" if len(several) == 1 else f"{len(several)} samples have"
        print_notes([f"{subject} different scores in several rows, which are all learned from ({shown})"])


def _tell_groups(rows: _Rows, column: str) -> None:
    single = [name for name, count in Counter(rows.groups or ()).items() if count == 1]
    if single:
        named = ", ".join(map(repr, single[:5])) + (", ..." if len(single) > 5 else "")
        said = "group has a single row and no signal" if len(single) == 1 else "groups have a single row each and no signal"
        print_notes([f"group_column {column}: {len(single)} {said}: {named}"])


def _read_kept(path: Path) -> _Rows:
    table = read_samples(path)
    groups = tuple(table["group"]) if "group" in table else None
    return _Rows(tuple(table["sample"]), tuple(map(float, table["score"])), groups)


def _numbered(rows: _Rows) -> ScoredSamples:
    names = None if rows.groups is None else {name: k for k, name in enumerate(dict.fromkeys(rows.groups))}
    groups = None if names is None else torch.tensor([names[name] for name in rows.groups or ()])
    return ScoredSamples(rows.samples, torch.tensor(rows.scores, dtype=torch.float64), groups)


# -- the updates


def offline_likelihood(policy: Any, chosen: Likelihood | None, elbo_draws: int = 10) -> Any:
    """The policy with the likelihood of the off-line updates; it shares its weights with ``policy``.

    By default, a graph policy uses that of clean classes (``eager``) unless it has a surrogate already; any other policy uses its
    own.

    Raises:
        ValueError: if the policy has no such likelihood.
    """
    inner = without_likelihood(policy)
    plain = graph_part(inner) is inner
    if chosen is None:
        return with_options(inner, "eager") if inner is policy and plain else policy
    if chosen != "transition" and not plain:
        raise ValueError(f"offline_likelihood: {chosen!r}, expected none: {type(inner).__name__} has no such setting")
    return with_options(inner, chosen, elbo_draws=elbo_draws)


def offline_trainer(
    policy: Any,
    data: ScoredSamples,
    options: OfflineOptions,
    grpo: GRPOConfig,
    folder: Path,
    *,
    elbo_draws: int = 10,
    metadata: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> OfflineTrainer:
    """The trainer of the off-line updates of the run in ``folder``; it trains ``policy`` in place."""
    learner = offline_likelihood(policy, options.offline_likelihood, elbo_draws)
    return OfflineTrainer(learner, data, grpo, steps=options.offline_steps, run=folder / FOLDER, metadata=metadata, resume=resume)
