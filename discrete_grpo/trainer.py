"""The GRPO loop: sample groups, reward, advantage, update, log, checkpoint.

Three roles never mix. *theta* is the policy being trained; *old* is the policy that drew the samples, present only as
log-probs; the *reference* is a frozen copy of the first policy, used only in the KL.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from discrete_grpo.averaging import averaged
from discrete_grpo.categorical import Scores
from discrete_grpo.checkpoint import Checkpoints, load_training, tensors_to_cpu
from discrete_grpo.config import GRPOConfig
from discrete_grpo.entropy import EntropyController
from discrete_grpo.generation import (
    Batch,
    Draw,
    advantages_of,
    draws_of,
    groups_missing,
    reward_metrics,
    sample_table,
    total_reward,
)
from discrete_grpo.interrupt import Interrupted, interruptible
from discrete_grpo.reference import mix_reference
from discrete_grpo.refinement import Memory, Start, group_starts, seen_columns
from discrete_grpo.reporting.console import progress
from discrete_grpo.reporting.run_folder import Recorder
from discrete_grpo.rollout import Observer, Policy, Reward, Rollout, as_module, group_contexts, select_steps
from discrete_grpo.scoring import RewardError, reward_names, score_samples
from discrete_grpo.updates import (
    Chunk,
    check_scorer,
    chunk_loss,
    plan_update,
    policy_scores,
    terms_of,
    trajectory_kl,
    update_metrics,
    windows,
)

__all__ = ["GRPOTrainer", "select_steps"]


class GRPOTrainer:
    """Group relative policy optimisation of any :class:`~discrete_grpo.rollout.Policy`.

    Args:
        policy: trained in place; an ``nn.Module``.
        reward_funcs: one reward or several; see :class:`~discrete_grpo.rollout.Reward`.
        config: settings.
        columns: conditions, one mapping a group context, visited in shuffled order; None for unconditional policies.
        run: folder for metrics, samples and checkpoints; None keeps nothing on disk.
        sample_metrics: extra metrics of each batch of samples (validity, say).
        metadata: JSON values kept with every checkpoint.
        resume: continue the run in folder ``run`` from its newest checkpoint.

    Raises:
        ValueError: if the arguments do not go together.
    """

    def __init__(
        self,
        policy: Policy,
        reward_funcs: Reward | Sequence[Reward],
        config: GRPOConfig | None = None,
        *,
        columns: Sequence[Mapping[str, Any]] | None = None,
        run: str | Path | None = None,
        sample_metrics: Callable[[Sequence[Any]], Mapping[str, float]] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> None:
        self.config = config = config or GRPOConfig()
        self.rewards: list[Reward] = [reward_funcs] if callable(reward_funcs) else list(reward_funcs)
        self._check(columns)
        self.columns, self.sample_metrics, self.metadata = columns, sample_metrics, dict(metadata or {})
        self.accelerator = Accelerator()
        if self.accelerator.num_processes > 1:
            raise ValueError(f"processes: {self.accelerator.num_processes}, expected 1; runs over several are not supported yet")
        check_scorer(policy, config)
        self.policy = policy
        self.controller = _controller(config)
        self.memory = Memory(policy, config.refine_memory, config.refine_time) if config.refine_fraction > 0 else None
        module = as_module(policy).to(self.accelerator.device).eval()  # one mode for drawing and scoring alike
        self.module: nn.Module = module
        self.reference = cast(Policy, copy.deepcopy(module).requires_grad_(False)) if config.beta > 0 else None
        self.average = averaged(module, config.ema_decay) if config.ema_decay is not None else None
        betas = (config.adam_beta1, config.adam_beta2)
        optimizer = torch.optim.AdamW(module.parameters(), lr=config.learning_rate, betas=betas, weight_decay=config.weight_decay)
        self.optimizer = self.accelerator.prepare(optimizer)
        self.generator = torch.Generator(self.accelerator.device).manual_seed(config.seed)
        self.recorder = Recorder(run) if run is not None else None
        self.checkpoints = Checkpoints(run, config.save_total_limit) if run is not None else None
        self.step = 0
        self.history: list[dict[str, float]] = []
        self._safe_generator = self.generator.get_state()
        if resume:
            self._resume()

    def _check(self, columns: Sequence[Mapping[str, Any]] | None) -> None:
        config = self.config
        if not self.rewards:
            raise ValueError("reward_funcs: none given, expected at least one")
        if config.reward_weights is not None and len(config.reward_weights) != len(self.rewards):
            raise ValueError(f"reward_weights: {len(config.reward_weights)} weights, expected one a reward ({len(self.rewards)})")
        if config.importance_sampling_level == "sequence" and config.timestep_chunk is not None:
            raise ValueError(f"timestep_chunk: {config.timestep_chunk}, expected none with importance_sampling_level sequence")
        if columns is not None and not columns:
            raise ValueError("columns: an empty list, expected at least one condition or None")

    @property
    def best_policy(self) -> Any:
        """The policy to use after training: averaged weights where ``ema_decay`` is set, else the trained ones."""
        return self.average.module.eval() if self.average is not None else self.policy

    def _precision(self) -> torch.autocast:
        """bfloat16 inside networks if asked for; not accelerate's own setting, which one process can choose only once."""
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=self.config.bf16)

    # -- the loop

    def train(self) -> list[dict[str, float]]:
        """Run until ``max_steps`` updates are made; returns the metrics of every update made here.

        Raises:
            RewardError: if a reward fails; everything up to the last update is saved first.
            Interrupted: after Ctrl-C, likewise.
        """
        if self.step == 0 and self.checkpoints is not None and not self.checkpoints.all():
            self.save()
        with interruptible() as stop, progress("training", self.config.max_steps - self.step) as bar:
            while self.step < self.config.max_steps:
                if stop:
                    self.save()
                    raise Interrupted(f"stopped at update {self.step} of {self.config.max_steps}")
                before = self.step
                try:
                    lines = self.generation()
                except RewardError:
                    self.save()
                    raise
                for line in lines:
                    shown = {k: line[k] for k in ("reward", "valid", "kl") if k in line}
                    bar.advance(1, **shown)
                last = self.step >= self.config.max_steps
                if last or before // self.config.save_steps != self.step // self.config.save_steps:
                    self.save()
        return self.history

    def generation(self) -> list[dict[str, float]]:
        """One batch of samples and the updates made with it; one line of metrics an update."""
        start = time.perf_counter()
        batches = self._batches()
        draws = draws_of(batches, self.config, self._kl_in_reward(batches))
        advantage = torch.cat([d.advantage for d in draws]).cpu()
        shared = self._sample_metrics(batches, advantage)
        if isinstance(self.policy, Observer):
            for draw in draws:
                self.policy.observe(draw.rollout, draw.advantage)
        parts = windows(draws, self.config, self.generator)
        count = self.config.num_iterations * len(parts)
        old = [self._old_log_probs(chunks) if count > 1 else [None] * len(chunks) for chunks in parts]
        lines = []
        for k in range(min(count, self.config.max_steps - self.step)):
            line = shared | self._update(parts[k % len(parts)], old[k % len(parts)])
            line["step_time"] = time.perf_counter() - start
            start = time.perf_counter()
            self.step += 1
            lines.append(line)
        if self.memory is not None:
            for batch in batches:
                self.memory.add(batch.rollout, self._total(batch.rewards), batch.origins)
        self._safe_generator = self.generator.get_state()
        self._record(lines, batches, advantage)
        return lines

    def draw(self) -> Rollout:
        """A generation batch: whole groups, each of one context."""
        return self._sample(self._starts())

    def _starts(self, count: int | None = None) -> list[Start]:
        c = self.config
        return group_starts(c.num_groups if count is None else count, self.columns, self.memory, c.refine_fraction, self.generator)

    def _sample(self, starts: Sequence[Start]) -> Rollout:
        contexts = group_contexts(len(starts), self.config.num_generations, [s.columns for s in starts])
        with self._precision():
            return self.policy.sample(contexts, generator=self.generator)

    def _batch(self, count: int) -> Batch:
        """``count`` groups, scored."""
        starts = self._starts(count)
        rollout = self._sample(starts)
        rewards = score_samples(self.rewards, rollout.samples, seen_columns(rollout, starts))
        rows = [s for s in starts for _ in range(self.config.num_generations)]
        return Batch(rollout, rewards, torch.tensor([s.refined for s in rows]), [s.origin for s in rows])

    def _batches(self) -> list[Batch]:
        """The groups of a generation; with ``resample`` also what was drawn in the place of those without a signal."""
        c = self.config
        batches = [self._batch(c.num_groups)]
        for _ in range(c.max_resampling_rounds if c.zero_std_groups == "resample" else 0):
            missing = groups_missing(batches, c)
            if not missing:
                break
            batches.append(self._batch(missing))
        return batches

    def _kl_in_reward(self, batches: Sequence[Batch]) -> Tensor | None:
        if self.reference is None or self.config.kl_in == "loss":
            return None
        with self._precision():
            return torch.cat([trajectory_kl(self.policy, self.reference, b.rollout, b.refined, self.config).cpu() for b in batches])

    def _total(self, rewards: Tensor) -> Tensor:
        return total_reward(rewards, self.config)

    def _advantages(self, rewards: Tensor, group: Tensor) -> Tensor:
        return advantages_of(rewards, group, self.config)

    # -- the update

    def _chunks(self, rollout: Rollout, advantage: Tensor, total: Tensor, refined: Tensor | None = None) -> list[Chunk]:
        """The forward passes of one update on all of a rollout."""
        on = torch.ones(len(rollout), dtype=torch.bool)
        tensors = (advantage, ~total.isnan(), on, ~on if refined is None else refined)
        draw = Draw(rollout, *(x.to(rollout.group.device) for x in tensors))
        return windows([draw], replace(self.config, steps_per_generation=1), self.generator)[0]

    def _scores(self, chunk: Chunk) -> Scores:
        with self._precision():
            return policy_scores(self.policy, chunk, self.reference)

    @torch.no_grad()
    def _old_log_probs(self, chunks: Sequence[Chunk]) -> list[Tensor | None]:
        """Log π_old by replay, in the very chunks of the update: the first ratio is then exactly 1."""
        with self._precision():
            return [policy_scores(self.policy, chunk).logp for chunk in chunks]

    def _update(self, chunks: Sequence[Chunk], old: Sequence[Tensor | None]) -> dict[str, float]:
        c = self.config
        rate = c.learning_rate * _lr_factor(self.step, c)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision():
            plan = plan_update(self.policy, chunks, old, c, self.controller)
        sums: dict[str, Tensor] = {}
        loss = 0.0
        for chunk, old_logp in zip(chunks, old, strict=True):
            with self._precision():
                terms = terms_of(self.policy, chunk, self.reference, c, old_logp=old_logp, bonus=plan.entropy_coef > 0)
            part = chunk_loss(terms, chunk, old_logp, plan, c)
            self.accelerator.backward(part.loss)
            loss += float(part.loss.detach())
            sums = {name: value + sums.get(name, 0.0) for name, value in part.sums.items()}
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), c.max_grad_norm if c.max_grad_norm is not None else math.inf)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"gradient norm is {float(norm)} at update {self.step}; lower learning_rate or raise beta")
        self.optimizer.step()
        self._follow(plan.mean_entropy)
        line = {"loss": loss, "grad_norm": float(norm), "learning_rate": rate} | update_metrics(sums)
        return line | ({"entropy_coef": plan.entropy_coef} if c.entropy_coef > 0 or self.controller is not None else {})

    def _follow(self, mean_entropy: float | None) -> None:
        """What moves after each step of the optimizer: the average, the reference, the weight of the entropy."""
        c = self.config
        if self.average is not None:
            self.average.update_parameters(self.module)
        if c.sync_ref_model and self.reference is not None and (self.step + 1) % c.ref_model_sync_steps == 0:
            mix_reference(as_module(self.reference), self.module, c.ref_model_mixup_alpha)
        if self.controller is not None and mean_entropy is not None and not math.isnan(mean_entropy):
            self.controller.observe(mean_entropy)

    # -- metrics and files

    def _sample_metrics(self, batches: Sequence[Batch], advantage: Tensor) -> dict[str, float]:
        samples = [s for b in batches for s in b.rollout.samples]
        line = reward_metrics(batches, advantage, reward_names(self.rewards), self.config)
        return line | dict(self.sample_metrics(samples) if self.sample_metrics else {})

    def _record(self, lines: Sequence[dict[str, float]], batches: Sequence[Batch], advantage: Tensor) -> None:
        self.history.extend(lines)
        if self.recorder is None:
            return
        first = self.step - len(lines) + 1
        for k, line in enumerate(lines):
            self.recorder.record(first + k, line)
        self.recorder.record_samples(first, sample_table(batches, advantage, reward_names(self.rewards), self.config))

    # -- checkpoints

    def save(self) -> None:
        """Write a checkpoint of the state after the last update; nothing happens without a run folder."""
        if self.checkpoints is None or self.recorder is None:
            return
        state = {
            "step": self.step,
            "rewards": reward_names(self.rewards),
            "weights": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self._safe_generator,
            "average": self.average.state_dict() if self.average is not None else None,
            "reference": cast(nn.Module, self.reference).state_dict() if self.reference is not None else None,
            "memory": self.memory.state() if self.memory is not None else None,
            "entropy": self.controller.state_dict() if self.controller is not None else None,
            "position": self.recorder.position(),
        }
        metadata = self.metadata | {"grpo_steps": self.step}
        self.checkpoints.save(self.step, self.best_policy, metadata=metadata, training=tensors_to_cpu(state))

    def _resume(self) -> None:
        if self.checkpoints is None or self.recorder is None:
            raise ValueError("resume: True, expected a run folder to resume from (run=...)")
        state = load_training(self.checkpoints.latest())
        if state["rewards"] != reward_names(self.rewards):
            named = ", ".join(reward_names(self.rewards))
            raise ValueError(f"reward_funcs: {named}, expected {', '.join(state['rewards'])} as in the run to resume")
        self.step = int(state["step"])
        self.module.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self._safe_generator = state["generator"]
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.reference is not None:
            cast(nn.Module, self.reference).load_state_dict(state["reference"])
        if self.memory is not None:
            self.memory.load(state.get("memory") or ())  # none in a checkpoint of a run without
        if self.controller is not None and state.get("entropy"):
            self.controller.load_state_dict(state["entropy"])
        self.recorder.restore(state["position"])


def _lr_factor(step: int, config: GRPOConfig) -> float:
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.max_steps - config.warmup_steps)
    if config.lr_scheduler_type == "linear":
        return 1.0 - done
    if config.lr_scheduler_type == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    return 1.0


def _controller(config: GRPOConfig) -> EntropyController | None:
    if not config.use_adaptive_entropy:
        return None
    low, high = config.entropy_coef_min, config.entropy_coef_max
    return EntropyController(config.entropy_coef, target=config.entropy_target, delta=config.entropy_coef_delta, low=low, high=high)
