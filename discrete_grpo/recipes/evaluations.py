"""The two evaluations of a run, on fresh samples before and after training."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from discrete_grpo.core.advantages import sum_rewards
from discrete_grpo.core.checks import LAST_SEED, check_range, check_whole
from discrete_grpo.core.description import description
from discrete_grpo.core.reward_arguments import reward_names
from discrete_grpo.core.rollout import Reward
from discrete_grpo.core.scoring import BudgetExhausted, score_samples, take_failures
from discrete_grpo.recipes.conditions import conditions_met, renamed_measured
from discrete_grpo.recipes.families import Columns, Family
from discrete_grpo.recipes.output_files import as_text, plain_columns
from discrete_grpo.recipes.reward_memories import RewardMemories
from discrete_grpo.recipes.reward_workers import tell_slow
from discrete_grpo.recipes.sample import sample_policy
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.runs.checkpoint import Checkpoints
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.failures import FailureLog
from discrete_grpo.runs.folder import EVALUATION, EVALUATION_TABLES
from discrete_grpo.runs.recorder import read_evaluation, write_json, write_table
from discrete_grpo.training.config import GRPOConfig

__all__ = ["Evaluations", "Results", "check_evaluation_budget"]

Results: TypeAlias = dict[str, dict[str, float]]


def check_evaluation_budget(max_oracle_calls: int | None, evaluation_samples: int) -> None:
    """Raise ``ValueError`` for a budget that both evaluations alone could use up."""
    if max_oracle_calls is not None:
        check_whole("max_oracle_calls", max_oracle_calls, least=1, note=" or none")
        note = f": evaluation_samples ({evaluation_samples}) are scored before and after"
        check_range("max_oracle_calls", max_oracle_calls, above=2 * evaluation_samples, note=note)


class EvaluatedRun(Protocol):
    """The settings of a run that its evaluations read."""

    @property
    def rewards(self) -> Sequence[Reward]:
        """Rewards of the run; empty in a run with only off-line updates."""
        ...

    @property
    def grpo(self) -> GRPOConfig:
        """Settings of the training loop: the weights of the rewards, and the seed."""
        ...

    @property
    def evaluation_samples(self) -> int:
        """Number of samples per evaluation; 0 draws none."""
        ...


@dataclass(frozen=True)
class Evaluations:
    """Measures a policy before and after training, into ``evaluation.json`` and a table of samples.

    Attributes:
        run: settings of the run.
        family: family of the policy.
        folder: the run folder.
        columns: conditions of the samples.
        ledger: counter of reward calls.
        memories: initial memories of the rewards.
        device: where the samples are drawn.
    """

    run: EvaluatedRun
    family: Family
    folder: Path
    columns: Sequence[Columns] | None
    ledger: Ledger
    memories: RewardMemories
    device: torch.device

    def before(self, policy: Any) -> Results:
        """Evaluate the policy that training starts from.

        Once training has a checkpoint, the first evaluation is kept and not repeated, as ``policy`` may then be that of the
        checkpoint. Until then it is repeated with the same result, as no checkpoint includes its draws and calls.
        """
        if not self._has_begun():
            return self._measure(policy, "before", 0)
        stored = self._stored()
        if "before" in stored and self.ledger.turn == 0:
            self.ledger.skip()  # no checkpoint of on-line training has counted it
        elif "before" not in stored and self.run.evaluation_samples:
            told = "no evaluation before training, and it cannot be made again, as training has begun"
            print_notes([f"{self.folder / EVALUATION}: {told}"])
        return stored

    def after(self, policy: Any, updates: int) -> Results:
        """Evaluate the policy after the last of ``updates`` updates."""
        return self._measure(policy, "after", updates + 1)

    def _has_begun(self) -> bool:
        return any(Checkpoints(folder).all() for folder in (self.folder, self.folder / "offline"))

    def _stored(self) -> Results:
        stored = read_evaluation(self.folder)
        return {part: {k: math.nan if v is None else v for k, v in row.items()} for part, row in stored.items()}

    def _measure(self, policy: Any, when: Literal["before", "after"], step: int) -> Results:
        """Evaluate ``policy`` on fresh samples; failed samples are logged as those of update ``step``."""
        result, count = self._stored(), self.run.evaluation_samples
        if count == 0:
            return result
        seed = (self.run.grpo.seed + 1) % (LAST_SEED + 1)
        samples, found = sample_policy(policy.to(self.device), count, seed=seed, columns=self.columns)
        found = dict.fromkeys((name for row in self.columns or () for name in row), [None] * count) | found
        rewards, row = self._scored(samples, found, step)
        properties = renamed_measured(self.family.table(samples), found)
        table = {"sample": as_text(samples), **rewards, **properties}
        write_table(self.folder / EVALUATION_TABLES[when], {**plain_columns(found), **table})
        met = conditions_met(samples, found, self.family.name, description(policy).get("measured", ()))
        measured = {**self.family.evaluate(samples), **met}
        result[when] = row | measured | {"oracle_calls": float(self.ledger.calls)}
        write_json(self.folder / EVALUATION, result)
        if when == "after" and result["after"].get("valid") == 0 and (earlier := result.get("before", {}).get("valid", 0)) > 0:
            told = f"valid: none of {count} samples after training, {earlier:.1%} before it"
            print_notes([f"{told}; the policy has collapsed, try a lower learning_rate (docs/troubleshooting.md)"])
        return result

    def _scored(
        self, samples: Sequence[Any], columns: Mapping[str, Sequence[Any]], step: int
    ) -> tuple[dict[str, Sequence[Any]], dict[str, float]]:
        """The rewards of samples, as columns of a table and as means; scores beyond the budget are unknown."""
        rewards = self.run.rewards
        if not rewards:
            return {}, {}
        begun = time.perf_counter()
        try:
            with self.memories.put_back():
                scores = score_samples(rewards, samples, columns, self.ledger)
        except BudgetExhausted as spent:
            scores = spent.scores
        if step == 0:
            tell_slow(rewards, time.perf_counter() - begun, len(samples))
        failures = FailureLog(self.folder)
        failures.forget_after(step - 1)
        failures.add(step, take_failures(rewards))
        names = reward_names(rewards)
        total = sum_rewards(scores, torch.tensor(self.run.grpo.reward_weights or (1.0,) * len(names), dtype=torch.float64))
        if step == 0 and total.isnan().all() and not self.ledger.exhausted:
            told = f"reward {', '.join(names)}: unknown (None or NaN) for all of {len(samples)} samples before training"
            print_notes([f"{told}; GRPO cannot learn while every reward is unknown"])
        found = {"reward": total}
        if len(names) > 1:
            found |= {f"reward_{name}": scores[:, k] for k, name in enumerate(names)}
        means = {name: _mean_known(values) for name, values in found.items()}
        if bool(total.isnan().any()):  # the means are of the other samples
            means["frac_reward_unknown"] = float(total.isnan().double().mean())
        return {name: values.tolist() for name, values in found.items()}, means


def _mean_known(values: Tensor) -> float:
    """The mean of the known rewards, as in training."""
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else math.nan
