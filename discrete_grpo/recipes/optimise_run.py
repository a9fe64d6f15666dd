"""The rounds of an optimisation, with a line of metrics after each, checkpoints, and their restoration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from discrete_grpo.core.checks import check_whole
from discrete_grpo.core.interrupt import Interrupt, Interrupted
from discrete_grpo.core.reward_arguments import component_columns, remembers, reward_names
from discrete_grpo.core.rollout import as_module
from discrete_grpo.core.scoring import NoScores, RewardError, take_failures
from discrete_grpo.policies.options import without_likelihood
from discrete_grpo.recipes.devices import device_of
from discrete_grpo.recipes.grpo_memory import fill_memory
from discrete_grpo.recipes.loading import LoadedPolicy
from discrete_grpo.recipes.memory_methods import MemoryMethod
from discrete_grpo.recipes.method_settings import check_same
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.runs.checkpoint import Checkpoints, save
from discrete_grpo.runs.console import print_notes, progress
from discrete_grpo.runs.failures import FailureLog
from discrete_grpo.runs.folder import REFERENCE
from discrete_grpo.runs.recorder import Recorder
from discrete_grpo.training.rounds import Rounds
from discrete_grpo.training.state import check_device_kind, global_state, restore_global_state

if TYPE_CHECKING:
    from discrete_grpo.recipes.optimise import OptimiseRecipe

__all__ = ["UNKNOWN_CALLS", "OptimiseRun"]

UNKNOWN_CALLS = 100
"""Number of calls without a known score after which a run ends."""


@dataclass
class OptimiseRun:
    """The rounds of an optimisation with their ledger, their records and their checkpoints."""

    recipe: OptimiseRecipe
    settings: Mapping[str, Any]
    loop: Rounds
    ledger: Ledger
    recorder: Recorder
    failures: FailureLog
    checkpoints: Checkpoints
    metadata: Mapping[str, Any]
    saved: int = -1  # rounds of the newest checkpoint
    since: float = field(default_factory=time.perf_counter)

    @staticmethod
    def begin(
        recipe: OptimiseRecipe,
        loaded: LoadedPolicy,
        method: MemoryMethod,
        settings: Mapping[str, Any],
        ledger: Ledger,
        stored: Mapping[str, Any] | None,
    ) -> OptimiseRun:
        """Create the loop, and restore the state of a checkpoint."""
        folder, rewards = Path(recipe.output_dir), recipe.rewards
        own, of_screen = (torch.Generator(device_of(loaded.policy)).manual_seed(recipe.seed) for _ in range(2))
        parts = method.parts(loaded.policy, of_screen, **{name: settings[name] for name in method.of_parts})
        metadata = {**loaded.metadata, "policy": recipe.policy, "rewards": reward_names(rewards)}
        recorder, failures = Recorder(folder), FailureLog(folder)
        if stored is None:
            recorder.restore(None)
            failures.forget_after(0)
            save(folder / REFERENCE, as_module(without_likelihood(loaded.policy)), metadata=metadata, sums=True)
            if recipe.warm_start is not None:
                skipped: list[str] = []
                of_file = (recipe.warm_start, recipe.warm_start_calls, skipped, recipe.reward_weights)
                parts["known"] = fill_memory(rewards, ledger, parts["memory"], *of_file)
                if skipped:
                    count = "1 line is no molecule" if len(skipped) == 1 else f"{len(skipped)} lines are no molecules, such as"
                    print_notes([f"warm_start: {count} {skipped[0]}"])
        config = method.rounds_config(settings)
        parts |= {"config": config, "generator": own, "reward_weights": recipe.reward_weights}
        loop = Rounds(loaded.policy, rewards, ledger, loaded.family.key, **parts)
        run = OptimiseRun(recipe, settings, loop, ledger, recorder, failures, Checkpoints(folder), metadata)
        if stored is not None:
            run._restore(stored)
        return run

    def go(self, stop: Interrupt) -> None:
        """Make the remaining rounds, with a line of metrics after each.

        Raises:
            Interrupted: where a stop was asked for, after a checkpoint.
        """
        with progress("optimising", self.recipe.max_oracle_calls, done=self.ledger.calls) as bar:

            def after_round() -> None:
                self._record()
                self._check_scores()
                metrics = self.loop.metrics()
                bar.reach(self.ledger.calls, **{name: metrics[name] for name in ("best/top1", "best/top10") if name in metrics})
                stopping = bool(stop)  # read once: a signal may come at any time
                if stopping or self.loop.progress.rounds % self.recipe.save_rounds == 0:
                    self._save()
                if stopping and not (self.ledger.exhausted or self.loop.progress.ended):
                    told = f"stopped after round {self.loop.progress.rounds}"
                    raise Interrupted(f"{told} with {self.ledger.calls} of {self.recipe.max_oracle_calls} calls")

            self.loop.run(after_round)
        self._check_scores()  # no round was made if the budget was used up before
        self._save()

    def _check_scores(self) -> None:
        """Stop a run whose reward returns no known score.

        Raises:
            RewardError: after a checkpoint, if none of the first :data:`UNKNOWN_CALLS` calls gave a number; NoScores if no call
                is left.
        """
        calls = self.ledger.calls
        if not len(self.loop.everything) and calls >= min(UNKNOWN_CALLS, self.recipe.max_oracle_calls):
            self._save()
            names = ", ".join(reward_names(self.recipe.rewards))
            error = NoScores if self.ledger.exhausted else RewardError
            raise error(f"reward {names}: unknown (None or NaN) for all of {calls} molecules, expected numbers")

    def _record(self) -> None:
        step, latest, now = self.loop.progress.rounds, self.loop.latest, time.perf_counter()
        self.recorder.record(step, self.loop.metrics() | self.ledger.metrics() | {"step_time": now - self.since})
        columns = {"sample": [entry.sample for entry in latest], "reward": [entry.score for entry in latest]}
        columns |= component_columns([self.loop.scores_of[entry.key] for entry in latest], reward_names(self.recipe.rewards))
        columns |= {"source": [entry.source for entry in latest]}
        begun = self.recorder.columns or list(columns)  # earlier versions had no columns of the components
        self.recorder.record_samples(step, {name: columns[name] for name in begun})
        self.failures.add(step, take_failures(self.recipe.rewards))
        self.since = now

    def _save(self) -> None:
        """Write a checkpoint, unless the newest one is of this round."""
        rounds = self.loop.progress.rounds
        if self.saved == rounds:
            return
        state = {
            "rounds": self.loop.state_dict(),
            "ledger": self.ledger.state_dict(),
            "rewards": [cast(Any, reward).state_dict() if remembers(reward) else None for reward in self.recipe.rewards],
            "made": self._made(),
            "position": self.recorder.position(),
            "global": global_state(),
            "device": device_of(self.loop.policy).type,
        }
        policy, metadata = as_module(without_likelihood(self.loop.policy)), {**self.metadata, "rounds": rounds}
        self.checkpoints.save(rounds, policy, metadata=metadata, training=state)
        self.saved = rounds

    def _made(self) -> dict[str, Any]:
        """Settings, names of the rewards and seed, which must be the same when a run is resumed."""
        return {"settings": self.settings, "reward": reward_names(self.recipe.rewards), "seed": self.recipe.seed}

    def _restore(self, state: Mapping[str, Any]) -> None:
        for name, value in self._made().items():
            check_same(name, value, state["made"][name])
        check_device_kind(state, state["rounds"]["generator"], device_of(self.loop.policy))
        self.ledger.catch_up()
        check_whole("max_oracle_calls", self.recipe.max_oracle_calls, least=self.ledger.calls, note=", the calls that are paid for")
        self.ledger.load_state_dict(state["ledger"])
        self.loop.load_state_dict(state["rounds"])
        for reward, kept in zip(self.recipe.rewards, state["rewards"], strict=True):
            if kept is not None and remembers(reward):
                cast(Any, reward).load_state_dict(kept)
        self.recorder.restore(state["position"])
        self.failures.forget_after(self.loop.progress.rounds)
        restore_global_state(state["global"])
        self.saved = self.loop.progress.rounds
