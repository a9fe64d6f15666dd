"""Local search with a trained policy: the best samples are re-noised, regenerated and scored again, round after round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from discrete_grpo.recipes.accounts import open_ledger
from discrete_grpo.recipes.families import SamplerOptions, family_of, load_trained, prepare_columns, shown
from discrete_grpo.runs.checkpoint import find_checkpoint, load_metadata
from discrete_grpo.runs.console import print_table
from discrete_grpo.runs.recorder import check_unused, write_json, write_table
from discrete_grpo.training.local_search import SearchResult, local_search

__all__ = ["SearchRecipe", "run_search"]


@dataclass(frozen=True)
class SearchRecipe:
    """Local search around the best samples of a policy that can start from finished ones; the policy is not changed.

    Attributes:
        policy: a bundled policy's name, a checkpoint folder or a run folder.
        reward: one reward or several, by import path (a bare name is looked up in ``discrete_grpo.rewards``).
        output_dir: run folder to make; ``best.csv.gz`` and ``search.json`` are written there.
        rounds: rounds after the first draw.
        population: how many of the best are started from in a round.
        children: samples made from each.
        time: how far back a sample is re-noised, 0 (data) < t < 1 (noise).
        keep: how many of the best unique samples are written; None means as many as ``population``.
        columns: conditions of every sample.
        num_steps: steps of the sampler; None keeps the policy's.
        seed: of all draws.
        max_oracle_calls: how many different valid samples may be scored; None: no end.
        reward_cache: SQLite file of scores that several runs may share; None: one in ``output_dir``.
    """

    policy: str = "qm9-small"
    reward: Callable[..., Any] | list[Callable[..., Any]] = "discrete_grpo.rewards.molecules.qed"  # type: ignore[assignment]
    output_dir: str = "runs/search"
    rounds: int = 10
    population: int = 16
    children: int = 8
    time: float = 0.3
    keep: int | None = None
    columns: dict[str, Any] | None = None
    num_steps: int | None = None
    seed: int = 42
    max_oracle_calls: int | None = None
    reward_cache: str | None = None


def run_search(recipe: SearchRecipe, *, resume: bool = False) -> SearchResult:
    """Search, print a line a round and write the best samples; a resumed search starts anew and draws the same.

    Raises:
        ValueError: if ``output_dir`` holds results of another run and ``resume`` is false.
    """
    folder, source = Path(recipe.output_dir), find_checkpoint(recipe.policy)
    if not resume:
        check_unused(folder)
    policy = load_trained(source, SamplerOptions(num_steps=recipe.num_steps))
    family = family_of(load_metadata(source))
    conditions = prepare_columns(policy, source, None if recipe.columns is None else [recipe.columns], None)
    with open_ledger(folder, family.key, max_oracle_calls=recipe.max_oracle_calls, reward_cache=recipe.reward_cache) as ledger:
        found = local_search(
            policy,
            recipe.reward,
            rounds=recipe.rounds,
            population=recipe.population,
            children=recipe.children,
            time=recipe.time,
            keep=recipe.keep,
            columns=conditions[0] if conditions else None,
            generator=torch.Generator(policy.device).manual_seed(recipe.seed),
            ledger=ledger,
        )
        calls = ledger.calls
    table: dict[str, Sequence[Any]] = {
        family.column: shown(found.samples),
        "reward": list(found.rewards),
        **family.table(found.samples),
    }
    write_table(folder / "best.csv.gz", table)
    write_json(folder / "search.json", {"scored": found.scored, "oracle_calls": calls, "history": list(map(dict, found.history))})
    print_table(f"{folder}: {found.scored} samples scored", {f"round {line['round']}": dict(line) for line in found.history})
    return found
