"""What a run keeps account of beside its policy: the ledger of scored samples, and trackers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.runs.trackers import Picture, TensorBoard, Tracker, Trackers, WeightsAndBiases, molecule_grid

__all__ = ["ReportTo", "check_budget", "open_ledger", "open_trackers", "reserved"]

ReportTo = Literal["tensorboard", "wandb"]
LEDGER, SCORES = "ledger.sqlite", "scores.sqlite"


@contextmanager
def open_ledger(
    folder: Path,
    key: Callable[[Any], str | None],
    *,
    max_oracle_calls: int | None = None,
    reward_cache: str | None = None,
    rank: int = 0,
) -> Iterator[Ledger]:
    """The ledger of a run folder, ``ledger.sqlite``; scores are kept beside it, or in a file that several runs share."""
    folder.mkdir(parents=True, exist_ok=True)
    cache = ScoreCache(reward_cache or folder / SCORES)
    ledger = Ledger(folder / LEDGER, key=key, max_oracle_calls=max_oracle_calls, cache=cache, rank=rank)
    try:
        yield ledger
    finally:
        ledger.close()


def check_budget(max_oracle_calls: int | None, evaluation_samples: int) -> None:
    """Raise for a budget that both evaluations alone could use up.

    Raises:
        ValueError: naming both.
    """
    if max_oracle_calls is None:
        return
    if max_oracle_calls < 1:
        raise ValueError(f"max_oracle_calls: {max_oracle_calls}, expected at least 1 or none")
    if max_oracle_calls <= 2 * evaluation_samples:
        wanted = f"more than {2 * evaluation_samples}: evaluation_samples ({evaluation_samples}) are scored before and after"
        raise ValueError(f"max_oracle_calls: {max_oracle_calls}, expected {wanted}")


@contextmanager
def reserved(ledger: Ledger, calls: int) -> Iterator[None]:
    """Keep so much of the budget back for what comes after."""
    whole = ledger.max_oracle_calls
    if whole is not None:
        ledger.max_oracle_calls = whole - calls
    try:
        yield
    finally:
        ledger.max_oracle_calls = whole


def open_trackers(folder: Path, report_to: Sequence[ReportTo], settings: Mapping[str, Any], *, molecules: bool) -> Tracker | None:
    """The trackers of a run by name; None for none. W&B's mode is that of its own variable WANDB_MODE.

    Raises:
        ValueError: for an unknown name.
        ImportError: if a package is missing.
    """
    picture: Picture | None = molecule_grid if molecules else None
    found: dict[str, Tracker] = {}
    for name in report_to:
        if name == "tensorboard":
            found[name] = TensorBoard(folder / "tensorboard", picture=picture)
        elif name == "wandb":
            mode: Literal["online", "offline"] = "offline" if os.environ.get("WANDB_MODE") == "offline" else "online"
            found[name] = WeightsAndBiases(folder, config=settings, picture=picture, mode=mode)
        else:
            raise ValueError(f"report_to: {name!r}, expected one of {', '.join(get_args(ReportTo))}")
    return Trackers(found) if found else None
