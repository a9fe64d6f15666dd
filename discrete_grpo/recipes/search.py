"""Local search with a trained policy: the best samples are re-noised, regenerated and scored again, round after round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from discrete_grpo.core.checks import LAST_SEED, check_fields, check_range
from discrete_grpo.core.processes import check_one_process
from discrete_grpo.core.reward_arguments import check_at_least_one, checked_weights, component_columns, reward_names
from discrete_grpo.core.rollout import is_refinable
from discrete_grpo.core.scoring import take_failures
from discrete_grpo.recipes.conditions import prepare_columns, tell_unread
from discrete_grpo.recipes.devices import device_of, to_device
from discrete_grpo.recipes.families import Family, SamplerOptions, View, check_view
from discrete_grpo.recipes.loading import LoadedPolicy, load
from discrete_grpo.recipes.output_files import as_text
from discrete_grpo.recipes.reward_kinds import rewards_for
from discrete_grpo.recipes.reward_workers import in_workers
from discrete_grpo.rewards.ledger import open_ledger
from discrete_grpo.runs.console import print_notes, print_table
from discrete_grpo.runs.failures import FailureLog
from discrete_grpo.runs.folder import BEST, SEARCH, check_unused
from discrete_grpo.runs.lock import locked_folder
from discrete_grpo.runs.recorder import read_search, write_json, write_table
from discrete_grpo.runs.report.diagnosis import search_diagnosis
from discrete_grpo.training.local_search import SearchResult, local_search

__all__ = ["SearchRecipe", "run_search"]


@dataclass(frozen=True)
class SearchRecipe(SamplerOptions):
    """Local search around the best samples of a policy that can start from finished ones; the policy is not changed.

    Attributes:
        policy: a bundled policy's name, a checkpoint folder, a run folder, or a class of your own as module:Class or
            module:Class@FOLDER.
        reward: one reward or several, by import path (a bare name is looked up in ``discrete_grpo.rewards``).
        output_dir: run folder to make; ``best.csv.gz`` and ``search.json`` are written there.
        rounds: rounds after the first draw.
        population: number of the best samples that each round starts from.
        children: number of samples made from each.
        time: time to which a sample is re-noised, 0 (data) < t < 1 (noise).
        keep: number of best unique samples that are written; None means as many as ``population``.
        columns: conditions of every sample.
        seed: random seed of all draws.
        max_oracle_calls: number of different valid samples that may be scored; None sets no limit.
        reward_cache: SQLite file of scores that several runs may share; None takes one in ``output_dir``.
        reward_workers: number of worker processes that score the samples, as of ``train``; 0 scores in this process.
        device: device to draw on, such as cuda; None means the CPU.
        rewards_see: form in which rewards see samples, as of ``train``: of graphs text, networkx or pyg; of molecules in space text
            or smiles; text for all others.
        reward_weights: weights of several rewards in the sum that is searched for; null means 1 each.
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
    seed: int = 42
    max_oracle_calls: int | None = None
    reward_cache: str | None = None
    reward_workers: int = 0
    device: str | None = None
    rewards_see: View = "text"
    reward_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "rounds reward_workers", least=0)
        check_fields(self, "seed", least=0, most=LAST_SEED)
        check_range("time", self.time, above=0, below=1)
        check_fields(self, "population children keep max_oracle_calls", least=1)
        check_view(self.rewards_see)
        checked_weights(self.reward_weights, len(self.reward) if isinstance(self.reward, list | tuple) else 1)


def run_search(recipe: SearchRecipe, *, resume: bool = False) -> SearchResult:
    """Search, print one line per round and write the best samples; a resumed search starts again and makes the same draws.

    ``best.csv.gz`` and ``search.json`` are written after every round, so that a stopped search keeps its results.

    Raises:
        ValueError: if ``output_dir`` holds results of another run and ``resume`` is false, or the policy cannot start from a
            finished sample.
    """
    with locked_folder(recipe.output_dir):
        return _search(recipe, resume)


def _search(recipe: SearchRecipe, resume: bool) -> SearchResult:
    """Do the work of :func:`run_search`, inside the lock of the run folder."""
    folder = Path(recipe.output_dir)
    check_one_process("search")
    if not resume:
        check_unused(folder)
    rewards = check_at_least_one(
        recipe.reward if isinstance(recipe.reward, list | tuple) else [recipe.reward], () if recipe.columns is None else None
    )
    loaded = load(recipe.policy, recipe, seed=recipe.seed)
    _check_refinable(recipe.policy, loaded)
    policy, family = to_device(loaded.policy, recipe.device), loaded.family
    rewards = rewards_for(rewards, loaded.policy, family, recipe.rewards_see)
    conditions = prepare_columns(loaded, None if recipe.columns is None else [recipe.columns])
    tell_unread(loaded.policy, conditions, scaffolds=family.scaffolds(loaded.policy))
    names = reward_names(rewards)
    before = _rounds_before(folder) if resume else 0  # the existing files are better until then
    budget: dict[str, Any] = {"max_oracle_calls": recipe.max_oracle_calls, "reward_cache": recipe.reward_cache}
    failures = FailureLog(folder)
    failures.forget_after(-1)  # all rounds are made again
    with in_workers(rewards, recipe.reward_workers) as scored, open_ledger(folder, family.key, **budget) as ledger:

        def after_round(best: SearchResult) -> None:
            failures.add(len(best.history) - 1, take_failures(scored))
            if len(best.history) >= before:
                _write(folder, family, recipe, best, ledger.calls, names)

        found = local_search(
            policy,
            scored,
            rounds=recipe.rounds,
            population=recipe.population,
            children=recipe.children,
            time=recipe.time,
            keep=recipe.keep,
            columns=conditions[0] if conditions else None,
            reward_weights=recipe.reward_weights,
            generator=torch.Generator(device_of(policy)).manual_seed(recipe.seed),
            ledger=ledger,
            on_round=after_round,
        )
        calls, spent = ledger.calls, ledger.exhausted
    _write(folder, family, recipe, found, calls, names)
    _finish(folder, family, found, calls, recipe.max_oracle_calls if spent else None)
    return found


def _rounds_before(folder: Path) -> int:
    """Number of rounds of an earlier part of a search; 0 where it left none that can be read."""
    try:
        return len(read_search(folder))
    except (OSError, ValueError):
        return 0


def _write(folder: Path, family: Family, recipe: SearchRecipe, found: SearchResult, calls: int, names: Sequence[str]) -> None:
    """Write the best samples and the rounds so far; several rewards have a column each beside that of their sum."""
    table: dict[str, Sequence[Any]] = {family.column: as_text(found.samples), "reward": list(found.rewards)}
    table |= component_columns(found.scores, names)
    table |= family.table(found.samples)
    write_table(folder / BEST, table)
    history = list(map(dict, found.history))
    settings = {"policy": recipe.policy, "reward_weights": recipe.reward_weights}
    about = {**settings, "drawn": found.drawn, "oracle_calls": calls, "history": history}
    write_json(folder / SEARCH, about)


def _finish(folder: Path, family: Family, found: SearchResult, calls: int, budget: int | None) -> None:
    """Write the report and print the first draw and the last round; ``budget`` is None unless it is used up."""
    from discrete_grpo.runs.report.report import write_report

    write_report(folder, render=family.draw)
    ends = found.history[:1] + found.history[-1:]
    rounds = {f"round {line['round']}": {name: value for name, value in line.items() if name != "round"} for line in ends}
    print_table(f"{folder}: {found.drawn} samples drawn, {calls} calls", rounds)
    if budget is not None:
        print_notes([f"stopped: the budget of {budget} calls is used up"])
    print_notes(search_diagnosis(found.history))


def _check_refinable(name: str, loaded: LoadedPolicy) -> None:
    """Raise ValueError unless a policy can start from a finished sample."""
    if not is_refinable(loaded.policy):
        wanted = "expected one that can start from a finished sample, as policies of graphs and of molecules in space can"
        told = "policies that write SMILES have the command optimise" if loaded.family.name == "molecules" else "others have train"
        raise ValueError(f"policy: {name} is a {type(loaded.policy).__name__}, {wanted}; {told}")
