"""Optimisation of molecules within a budget of oracle calls: the settings of a run, the run itself, and both as one function."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from discrete_grpo.core.checks import LAST_SEED, check_folder_name, check_whole, plain_number
from discrete_grpo.core.interrupt import interruptible
from discrete_grpo.core.option_names import check_options
from discrete_grpo.core.processes import check_one_process
from discrete_grpo.core.reward_arguments import check_at_least_one, checked_reward, checked_weights, component_columns, reward_names
from discrete_grpo.core.rollout import Reward, as_module
from discrete_grpo.core.scoring import shown_value
from discrete_grpo.policies.options import graph_part, without_likelihood
from discrete_grpo.recipes.conditions import check_unconditional
from discrete_grpo.recipes.devices import to_device
from discrete_grpo.recipes.failed_runs import withdrawn_on_failure
from discrete_grpo.recipes.families import Family
from discrete_grpo.recipes.grpo_memory import check_warm_start
from discrete_grpo.recipes.kinds.molecules import MOLECULES
from discrete_grpo.recipes.loading import LoadedPolicy, class_name, initial_policy, load, policy_object
from discrete_grpo.recipes.memory_methods import MemoryMethod, check_settings, method_for
from discrete_grpo.recipes.optimise_run import OptimiseRun
from discrete_grpo.recipes.reward_changes import tell_changed_rewards
from discrete_grpo.recipes.reward_memories import RewardMemories
from discrete_grpo.recipes.reward_workers import in_workers
from discrete_grpo.rewards.auc import auc_spacing, auc_top_k
from discrete_grpo.rewards.ledger import open_ledger
from discrete_grpo.runs.checkpoint import Checkpoints, load_training, save, withdraw_export
from discrete_grpo.runs.console import print_table
from discrete_grpo.runs.folder import BEST, MEMORIES, OPTIMISED, check_unused
from discrete_grpo.runs.recorder import write_json, write_table
from discrete_grpo.runs.serialization import check_savable
from discrete_grpo.runs.settings import tell_new_folder
from discrete_grpo.runs.weights import load_weights
from discrete_grpo.training.memory import Remembered

__all__ = ["OptimiseRecipe", "Optimised", "optimise", "run_optimise"]


@dataclass(frozen=True)
class OptimiseRecipe:
    """Search for the molecules with the highest reward within a budget of calls, by the method grpo-memory.

    Attributes:
        policy: SMILES policy or graph diffusion policy of molecules to begin with: a bundled policy's name, a checkpoint folder, a
            run folder, or a class of your own as module:Class or module:Class@FOLDER.
        reward: one reward, or several that are added, by import path (a bare name is looked up in ``discrete_grpo.rewards``).
        output_dir: run folder to make; ``best.csv.gz``, ``optimise.json`` and ``report.html`` are written there.
        max_oracle_calls: number of different valid molecules that may be scored, at least 1; the run ends with them.
        seed: random seed of all draws, at least 0.
        keep: number of best molecules that are written, at least 1.
        warm_start: SMILES file whose molecules are scored first, each counted as a call, and remembered; None starts with none.
        warm_start_calls: how many of them, the first different valid ones, at least 1; None takes all that the budget covers.
        save_rounds: rounds between two checkpoints, at least 1.
        settings: changes to the settings of the method by name, as {draws: 100}; None changes none. See docs/optimising.md.
        reward_cache: SQLite file of scores that several runs may share; None takes one in ``output_dir``.
        reward_workers: number of worker processes that score the molecules, as of ``train``; 0 scores in this process.
        device: device to run on, such as cuda; None means the CPU.
        reward_weights: weights of several rewards in the sum that is optimised; null means 1 each.
    """

    policy: str = "smiles-zinc"
    reward: Callable[..., Any] | list[Callable[..., Any]] = "discrete_grpo.rewards.molecules.qed"  # type: ignore[assignment]
    output_dir: str = "runs/optimise"
    max_oracle_calls: int = 10_000
    seed: int = 42
    keep: int = 100
    warm_start: str | None = None
    warm_start_calls: int | None = None
    save_rounds: int = 10
    settings: dict[str, Any] | None = None
    reward_cache: str | None = None
    reward_workers: int = 0
    device: str | None = None
    reward_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("max_oracle_calls", "seed", "keep", "warm_start_calls", "save_rounds", "reward_workers"):
            object.__setattr__(self, name, plain_number(getattr(self, name)))
        for name in ("max_oracle_calls", "keep", "save_rounds"):
            check_whole(name, getattr(self, name), least=1)
        for name, most in (("seed", LAST_SEED), ("reward_workers", None)):
            check_whole(name, getattr(self, name), least=0, most=most)
        if not isinstance(self.warm_start, str | Path | None):
            raise ValueError(f"warm_start: {shown_value(self.warm_start)}, expected the name of a SMILES file or None")
        if self.warm_start_calls is not None:
            if self.warm_start is None:
                raise ValueError(f"warm_start_calls: {self.warm_start_calls}, expected none without a file to score (warm_start)")
            check_whole("warm_start_calls", self.warm_start_calls, least=1, note=" or none")
        checked_weights(self.reward_weights, len(self.rewards))
        self._check_settings()

    def _check_settings(self) -> None:
        """Raise ValueError for a setting of the method that is unknown, of another type, or out of its range."""
        if self.settings is not None and not isinstance(self.settings, Mapping):
            raise ValueError(f"settings: {self.settings!r}, expected a mapping of names to values, such as {{'draws': 100}}")
        check_settings(self.settings)

    @property
    def rewards(self) -> list[Reward]:
        """The rewards as a list."""
        return list(self.reward) if isinstance(self.reward, list | tuple) else [self.reward]


@dataclass(frozen=True)
class Optimised:
    """The result of a run.

    Attributes:
        best: the best molecules, best first, each with its score and its source (policy, graph-ga, regeneration or file).
        calls: oracle calls that were made.
        auc_top10: area under the curve of the mean of the ten best scores against calls, divided by the budget.
        rounds: rounds that were made.
        restarts: restarts among them.
        sources: calls by source.
    """

    best: tuple[Remembered, ...] = field(repr=False)
    calls: int
    auc_top10: float
    rounds: int
    restarts: int
    sources: Mapping[str, int]


def optimise(
    policy: str | Path | nn.Module,
    reward: Reward | Sequence[Reward],
    *,
    output_dir: str | Path,
    max_oracle_calls: int = 10_000,
    resume: bool = False,
    **options: Any,
) -> Optimised:
    """Search for the molecules with the highest reward within a budget of calls, by the method grpo-memory.

    Args:
        policy: a name as for :func:`~discrete_grpo.recipes.loading.load_policy`, a
            :class:`~discrete_grpo.policies.tokens.TokenPolicy` over SMILES, or a
            :class:`~discrete_grpo.policies.graph.GraphPolicy` of molecules, which is left as it was.
        reward: a function ``reward(samples)`` that gives one number per sample, or several of them, which are added.
        output_dir: run folder to make.
        max_oracle_calls: number of different valid molecules that may be scored.
        resume: continue the run in ``output_dir``.
        **options: further fields of :class:`OptimiseRecipe`, such as ``seed`` or ``warm_start``.

    Raises:
        ValueError: for an option out of its range, a policy that makes no molecules, or if ``output_dir`` holds another run and
            ``resume`` is false.
        Interrupted: after Ctrl-C, once a checkpoint is saved.
    """
    check_options(options, OptimiseRecipe)
    if policy is None:
        raise ValueError("policy: None, expected a name or a policy")
    check_folder_name("output_dir", output_dir)
    recipe = OptimiseRecipe(
        policy=str(policy) if isinstance(policy, str | Path) else type(policy).__name__,
        reward=checked_reward(reward),
        output_dir=str(output_dir),
        max_oracle_calls=max_oracle_calls,
        **options,
    )
    if resume:
        tell_new_folder(Path(output_dir))
    with withdrawn_on_failure(Path(output_dir), calls_count=True):
        return run_optimise(recipe, resume=resume, policy=None if isinstance(policy, str | Path) else policy)


def run_optimise(recipe: OptimiseRecipe, *, resume: bool = False, policy: nn.Module | None = None) -> Optimised:
    """Run rounds with checkpoints until the budget is used up or no new samples come, and write the results.

    Args:
        recipe: the settings.
        resume: continue the run in ``output_dir``, from its start where it was stopped before its first checkpoint.
        policy: a policy to start from instead of the one that the recipe names.

    Raises:
        ValueError: if ``output_dir`` holds results of another run and ``resume`` is false, or the policy makes no molecules.
        Interrupted: after Ctrl-C, once a checkpoint is saved.
    """
    folder = Path(recipe.output_dir)
    check_one_process("optimise")
    if not resume:
        check_unused(folder)
    check_at_least_one(recipe.rewards, columns=())
    stored = load_training(found.latest()) if resume and (found := Checkpoints(folder)).all() else None
    if stored is None and recipe.warm_start is not None and not Path(recipe.warm_start).is_file():
        raise ValueError(f"warm_start: {recipe.warm_start!r} does not exist, expected a SMILES file")
    kept = initial_policy(folder, recipe.policy, begun=stored is not None) if resume else None
    loaded, method, settings = _loaded(recipe, policy, kept)
    loaded.family.check_rewards(loaded.policy, recipe.rewards)
    if stored is None and recipe.warm_start is not None:
        check_warm_start(recipe.warm_start, loaded.family.key)
    tell_changed_rewards(folder, recipe.rewards, resume=resume)
    budget: dict[str, Any] = {"max_oracle_calls": recipe.max_oracle_calls, "reward_cache": recipe.reward_cache}
    with in_workers(recipe.rewards, recipe.reward_workers) as rewards, open_ledger(folder, loaded.family.key, **budget) as ledger:
        if stored is None:  # a run that was stopped before its first checkpoint begins again
            RewardMemories(rewards, folder / MEMORIES, resume=resume).begin()
        run = OptimiseRun.begin(replace(recipe, reward=rewards), loaded, method, settings, ledger, stored)
        if resume and not (run.loop.progress.ended or ledger.exhausted):
            withdraw_export(folder)
        with interruptible() as stop:
            run.go(stop)
        return _finish(run, loaded.family)


def _loaded(
    recipe: OptimiseRecipe, policy: nn.Module | None, kept: Path | None
) -> tuple[LoadedPolicy, MemoryMethod, dict[str, Any]]:
    """Load the initial policy, ready to draw and learn, its method and all settings; ``kept`` is the copy in the run folder.

    Raises:
        ValueError: if it does not draw molecules, or has no such settings.
    """
    own = class_name(recipe.policy)
    if policy is not None:
        found = policy_object(copy.deepcopy(policy))
        if kept is not None:
            load_weights(kept, as_module(found.policy))  # those that the run began with, to which restarts return
    elif kept is not None:
        found = load(f"{own}@{kept}" if own else kept)
    else:
        found = load(recipe.policy, seed=recipe.seed)
    method = method_for(found.policy)
    if method is None or found.family.name not in ("molecules", "samples"):
        told = f"policy: {recipe.policy} is a {type(found.policy).__name__} that makes {found.family.name}"
        wanted = "expected a TokenPolicy that writes SMILES or a GraphPolicy of molecules"
        raise ValueError(f"{told}, {wanted}; for others there are the commands train and search")
    check_savable("policy", found.policy)
    check_unconditional(found.policy)
    settings = method.changed(recipe.settings)
    own_decoder = found.family.name == "samples" and graph_part(found.policy) is not None
    if not own_decoder:
        MOLECULES.decode(found.policy, found.metadata)
    metadata = found.metadata if own_decoder else {**found.metadata, "kind": MOLECULES.name}
    drawn = method.drawing(found.policy, **{name: settings[name] for name in method.of_policy})
    return LoadedPolicy(to_device(drawn, recipe.device), MOLECULES, metadata), method, settings


def _finish(run: OptimiseRun, family: Family) -> Optimised:
    """Write the best molecules, the numbers of the run, its last policy and the report."""
    from discrete_grpo.runs.report.report import write_report

    recipe, loop, ledger, folder = run.recipe, run.loop, run.ledger, run.recorder.folder
    names, history = reward_names(recipe.rewards), ledger.history()
    scores = torch.tensor([history.of(name) for name in names], dtype=torch.float64).T
    of_key: dict[Any, list[float]] = dict(zip(history.keys, scores.tolist(), strict=True))
    area = auc_top_k(loop.total(scores).tolist(), 10, recipe.max_oracle_calls, auc_spacing(recipe.max_oracle_calls))
    best, made = tuple(loop.everything.kept[: recipe.keep]), loop.progress
    found = Optimised(best, ledger.calls, area, made.rounds, made.restarts, ledger.sources())
    samples = [entry.sample for entry in best]
    table: dict[str, Sequence[Any]] = {family.column: samples, "reward": [entry.score for entry in best]}
    table |= component_columns([of_key[entry.key] for entry in best], names)
    write_table(folder / BEST, table | {"source": [entry.source for entry in best], **family.table(samples)})
    write_json(folder / OPTIMISED, {name: value for name, value in vars(found).items() if name != "best"})
    save(folder / "policy", as_module(without_likelihood(loop.policy)), metadata={**run.metadata, "rounds": made.rounds})
    write_report(folder, render=family.draw)
    shown: dict[str, dict[str, float | str | None]] = {}
    for entry in best[:5]:
        shown[entry.sample] = {"reward": entry.score, "source": entry.source}
    print_table(f"{folder}: the best of {found.calls} calls, AUC top-10 {area:.3f}", shown)
    return found
