"""The GRPO loop: sample groups, reward, advantage, update, log, checkpoint.

Three roles never mix. *theta* is the policy being trained; *old* is the policy that drew the samples, present only as
log-probs; the *reference* is a frozen copy of the first policy, used only in the KL.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from jaxtyping import Float, Int
from torch import Tensor, nn

from discrete_grpo.advantages import advantages, constant_groups, sum_rewards
from discrete_grpo.averaging import averaged
from discrete_grpo.categorical import Scores, score_sites
from discrete_grpo.checkpoint import Checkpoints, load_training, tensors_to_cpu
from discrete_grpo.config import GRPOConfig
from discrete_grpo.interrupt import Interrupted, interruptible
from discrete_grpo.objective import grpo_loss, row_weights
from discrete_grpo.refinement import Memory, Start, group_starts, seen_columns
from discrete_grpo.reporting.console import progress
from discrete_grpo.reporting.run_folder import Recorder
from discrete_grpo.rollout import Observer, Policy, Reward, Rollout, Scorer, as_module, group_contexts, num_selected, select_steps
from discrete_grpo.scoring import RewardError, reward_names, score_samples

__all__ = ["GRPOTrainer", "select_steps"]


@dataclass(frozen=True)
class _Chunk:
    """Some steps of some trajectories: one forward pass."""

    rollout: Rollout
    steps: Int[Tensor, "batch step"]
    advantage: Float[Tensor, " batch"]
    weight: Float[Tensor, " batch"]


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
        self.policy = policy
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
        """One batch of samples and the ``num_iterations`` updates made with it; one line of metrics an update."""
        start = time.perf_counter()
        starts = self._starts()
        rollout = self._sample(starts)
        rewards = score_samples(self.rewards, rollout.samples, seen_columns(rollout, starts))
        advantage = self._advantages(rewards, rollout.group.cpu())
        rows = [s for s in starts for _ in range(self.config.num_generations)]
        refined = torch.tensor([s.refined for s in rows])
        shared = self._sample_metrics(rollout, rewards, advantage, refined)
        if isinstance(self.policy, Observer):
            self.policy.observe(rollout, advantage.to(rollout.group.device))
        chunks = self._chunks(rollout, advantage, self._total(rewards), refined)
        old = self._old_log_probs(chunks) if self.config.num_iterations > 1 else [None] * len(chunks)
        lines = []
        for _ in range(min(self.config.num_iterations, self.config.max_steps - self.step)):
            line = shared | self._update(chunks, old)
            line["step_time"] = time.perf_counter() - start
            start = time.perf_counter()
            self.step += 1
            lines.append(line)
        if self.memory is not None:
            self.memory.add(rollout, self._total(rewards), [s.origin for s in rows])
        self._safe_generator = self.generator.get_state()
        self._record(lines, rollout, rewards, advantage, refined)
        return lines

    def draw(self) -> Rollout:
        """A generation batch: whole groups, each of one context."""
        return self._sample(self._starts())

    def _starts(self) -> list[Start]:
        c = self.config
        return group_starts(c.num_groups, self.columns, self.memory, c.refine_fraction, self.generator)

    def _sample(self, starts: Sequence[Start]) -> Rollout:
        contexts = group_contexts(len(starts), self.config.num_generations, [s.columns for s in starts])
        with self._precision():
            return self.policy.sample(contexts, generator=self.generator)

    def _total(self, rewards: Tensor) -> Tensor:
        weights = self.config.reward_weights or (1.0,) * rewards.shape[1]
        return sum_rewards(rewards, torch.tensor(weights, dtype=torch.float64))

    def _advantages(self, rewards: Tensor, group: Tensor) -> Tensor:
        c = self.config
        return advantages(
            rewards,
            group,
            weights=c.reward_weights,
            multi_objective_aggregation=c.multi_objective_aggregation,
            scale_rewards=c.scale_rewards,
            baseline=c.baseline,
            clip=c.advantage_clip,
        )

    # -- the update

    def _chunks(self, rollout: Rollout, advantage: Tensor, total: Tensor, refined: Tensor | None = None) -> list[_Chunk]:
        """The batch cut into forward passes: rows of like size together, then steps; weights fixed beforehand.

        Refined rows stand in passes of their own, without the steps that none of them has drawn.
        """
        c, device = self.config, rollout.group.device
        steps = select_steps(rollout.units, c.timestep_fraction, self.generator)
        units = rollout.units.gather(1, steps)
        max_units = math.ceil(rollout.max_units * num_selected(rollout.num_steps, c.timestep_fraction) / rollout.num_steps)
        weight = row_weights(units, c.loss_type, max_units, ~total.isnan().to(device))
        advantage = advantage.to(device)
        again = torch.zeros(len(rollout), dtype=torch.bool, device=device) if refined is None else refined.to(device)
        chunks = []
        for part in (~again, again):
            order = part.nonzero()[:, 0]
            order = order[torch.argsort(rollout.size[order], stable=True)]
            for rows in order.split(c.per_device_batch_size) if len(order) else ():
                chosen = steps[rows] if part is not again else steps[rows][:, (units[rows] > 0).any(0)]
                pieces = chosen.split(c.timestep_chunk or steps.shape[1], 1)
                chunks += [_Chunk(rollout.index(rows), piece, advantage[rows], weight[rows]) for piece in pieces]
        return chunks

    def _score(self, chunk: _Chunk, reference: Policy | None) -> Scores:
        if isinstance(self.policy, Scorer):
            return self.policy.score(chunk.rollout, chunk.steps, reference)
        sites = self.policy.sites(chunk.rollout, chunk.steps)
        if reference is None:
            return score_sites(sites)
        with torch.no_grad():
            other = reference.sites(chunk.rollout, chunk.steps)
        return score_sites(sites, other)

    def _scores(self, chunk: _Chunk) -> Scores:
        with self._precision():
            return self._score(chunk, self.reference)

    @torch.no_grad()
    def _old_log_probs(self, chunks: Sequence[_Chunk]) -> list[Tensor | None]:
        """Log π_old by replay, in the very chunks of the update: the first ratio is then exactly 1."""
        with self._precision():
            return [self._score(chunk, None).logp for chunk in chunks]

    def _update(self, chunks: Sequence[_Chunk], old: Sequence[Tensor | None]) -> dict[str, float]:
        c = self.config
        rate = c.learning_rate * _lr_factor(self.step, c)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        loss = 0.0
        for chunk, old_logp in zip(chunks, old, strict=True):
            part = grpo_loss(
                self._scores(chunk),
                old_logp,
                chunk.advantage,
                chunk.weight,
                level=c.importance_sampling_level,
                epsilon=c.epsilon,
                epsilon_high=c.epsilon_high,
                beta=c.beta,
            )
            self.accelerator.backward(part.loss)
            loss += float(part.loss.detach())
            sums = {name: value + sums.get(name, 0.0) for name, value in part.sums.items()}
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), c.max_grad_norm if c.max_grad_norm is not None else math.inf)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"gradient norm is {float(norm)} at update {self.step}; lower learning_rate or raise beta")
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.module)
        return {"loss": loss, "grad_norm": float(norm), "learning_rate": rate} | _means(sums)

    # -- metrics and files

    def _sample_metrics(self, rollout: Rollout, rewards: Tensor, advantage: Tensor, refined: Tensor) -> dict[str, float]:
        total, group = self._total(rewards), rollout.group.cpu()
        known = total[~total.isnan()]
        line = {
            "reward": _mean(total),
            "reward_std": float(known.std()) if len(known) > 1 else math.nan,
            "frac_reward_zero_std": float(constant_groups(total, group).double().mean()),
            "frac_reward_unknown": float(total.isnan().double().mean()),
            "advantages/abs_mean": float(advantage.abs().mean()),
        }
        for k, name in enumerate(reward_names(self.rewards)):
            column = rewards[:, k][~rewards[:, k].isnan()]
            line[f"rewards/{name}/mean"] = _mean(column)
            line[f"rewards/{name}/std"] = float(column.std()) if len(column) > 1 else math.nan
        if self.memory is not None:
            line["frac_refined"] = float(refined.double().mean())
            line |= {"refined/reward": _mean(total[refined]), "fresh/reward": _mean(total[~refined])}
        return line | dict(self.sample_metrics(rollout.samples) if self.sample_metrics else {})

    def _record(
        self, lines: Sequence[dict[str, float]], rollout: Rollout, rewards: Tensor, advantage: Tensor, refined: Tensor
    ) -> None:
        self.history.extend(lines)
        if self.recorder is None:
            return
        first = self.step - len(lines) + 1
        for k, line in enumerate(lines):
            self.recorder.record(first + k, line)
        columns: dict[str, Sequence[Any]] = {"group": rollout.group.tolist(), "sample": [_text(s) for s in rollout.samples]}
        columns["reward"] = self._total(rewards).tolist()
        for k, name in enumerate(reward_names(self.rewards)):
            columns[f"reward_{name}"] = rewards[:, k].tolist()
        if self.memory is not None:
            columns["refined"] = refined.int().tolist()
        self.recorder.record_samples(first, columns | {"advantage": advantage.tolist()})

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


def _means(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Sums over the sites of an update as means under TRL's names."""
    n = max(1.0, float(sums["sites"]))
    low, high = float(sums["clip_low"]) / n, float(sums["clip_high"]) / n
    line = {
        "policy_loss": float(sums["policy_loss"]),
        "entropy": float(sums["entropy"]) / n,
        "clip_ratio/low_mean": low,
        "clip_ratio/high_mean": high,
        "clip_ratio/region_mean": low + high,
    }
    return line | {name: float(sums[name]) / n for name in ("kl", "kl_forward") if name in sums}


def _mean(values: Tensor) -> float:
    """Of those that are known."""
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else math.nan


def _text(sample: Any) -> str:
    return "" if sample is None else str(sample)
