"""Off-line updates: the GRPO loss on samples with given scores, against a frozen reference.

The samples become trajectories of the policy by :class:`~discrete_grpo.core.rollout.Replayable`, drawn anew for every update: a
graph is noised again, a text is tokenized deterministically. The probability with which the samples were drawn is unknown, so
π_old of the ratio is the reference:

    L = -Σ_units w · surrogate(π_θ/π_ref, A) + β Σ_units w · KL(π_θ, π_ref)

The clipped surrogate is constant once a unit of a good sample is 1+ε times as probable as under the reference, or a unit of a bad
one 1-ε times; without such a bound, as with cispo and sapo, the log-prob of bad samples falls without limit. No reward is called.

Source: the ratio to the policy that the data come from, clipped: Zhuang et al. (2023), BPPO, arXiv 2302.11312.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from discrete_grpo.core.advantages import advantages, constant_groups
from discrete_grpo.core.checks import check_samples, check_whole
from discrete_grpo.core.interrupt import Interrupt, Interrupted, interruptible
from discrete_grpo.core.precision import place
from discrete_grpo.core.rollout import Policy, Replayable, as_module, is_replayable
from discrete_grpo.core.scoring import shown_value
from discrete_grpo.runs.checkpoint import Checkpoints, load_training, tensors_to_cpu
from discrete_grpo.runs.console import progress
from discrete_grpo.runs.recorder import Recorder
from discrete_grpo.training.bf16 import decide_and_tell
from discrete_grpo.training.compatibility import check_scorer
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.distributed import ProcessGroup, accelerator
from discrete_grpo.training.lora import without_lora
from discrete_grpo.training.minibatches import MicroBatch, TrainRows, windows
from discrete_grpo.training.network import check_determinism, checkpoint_layers, compile_network, deterministic, tf32_products
from discrete_grpo.training.optim import adamw
from discrete_grpo.training.pass_size import memory_advice, with_passes
from discrete_grpo.training.sampler import GroupSampler, make_shards
from discrete_grpo.training.state import RunState, check_device_kind
from discrete_grpo.training.update import Learner, policy_scores

__all__ = ["OfflineTrainer", "ScoredSamples", "offline_config", "row_numbers"]


@dataclass(frozen=True)
class ScoredSamples:
    """Samples with known scores.

    Attributes:
        samples: M samples of the kind that the policy's ``rollout_of`` takes.
        scores: one finite score per sample; higher is better.
        groups: number of the group of each sample; None compares the samples of an update with each other.

    Raises:
        ValueError: for lengths that differ, no samples, or a score that is not finite.
    """

    samples: Sequence[Any]
    scores: Float[Tensor, " sample"]
    groups: Int[Tensor, " sample"] | None = None

    def __post_init__(self) -> None:
        check_samples(self.samples)
        if not len(self.samples):
            raise ValueError("samples: none given, expected at least one")
        for name, wanted in (("scores", "number"), ("groups", "whole number")):
            if (given := getattr(self, name)) is None and name == "groups":
                continue
            try:
                object.__setattr__(self, name, torch.as_tensor(given))
            except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a None
                raise ValueError(f"{name}: {shown_value(given)}, expected one {wanted} per sample") from error
        for name, values in (("scores", self.scores), ("groups", self.groups)):
            if values is not None and values.shape != (len(self.samples),):
                raise ValueError(f"{name}: shape {tuple(values.shape)}, expected one per sample ({len(self.samples)})")
        if not bool(self.scores.isfinite().all()):
            raise ValueError("scores: a value that is not finite, expected finite scores")

    def __len__(self) -> int:
        return len(self.samples)

    def advantages(self, rows: Int[Tensor, " row"], config: GRPOConfig) -> tuple[Float[Tensor, " row"], Bool[Tensor, " row"]]:
        """Compute the advantages of some samples, and whether each has a signal: its group has different scores.

        With groups, a sample is compared with all samples of its group, whichever are in ``rows``: A = (r - b_g) / (σ + 1e-4) by
        :func:`~discrete_grpo.core.advantages.group_advantages`. Without, the samples at ``rows`` are the group.
        """
        whole = self.groups is not None
        chosen = torch.arange(len(self)) if whole else rows
        scores = self.scores.double()[chosen]
        group = torch.zeros_like(chosen) if self.groups is None else self.groups
        scaling: dict[str, Any] = {"scale_rewards": config.scale_rewards, "baseline": config.baseline}
        found = advantages(scores[:, None], group, clip=config.advantage_clip, **scaling)
        signal = ~constant_groups(scores, group)
        return (found[rows], signal[rows]) if whole else (found, signal)


def offline_config(config: GRPOConfig, steps: int) -> GRPOConfig:
    """The settings of on-line training as they apply to ``steps`` off-line updates.

    Settings of sampling, rewards and several updates per generation do not apply: the entropy bonus, replay, refinement,
    patience, a KL in the reward, a moving reference and the moving average are off.

    Raises:
        ValueError: if ``steps`` is below 1, or for an estimated KL, which needs samples of the policy.
    """
    if config.beta > 0 and config.kl_estimator != "exact":
        raise ValueError(
            f"kl_estimator: {config.kl_estimator!r}, expected exact off-line, where the policy did not draw the samples"
        )
    check_whole("offline_steps", steps, least=1)
    return replace(
        config,
        max_steps=steps,
        num_iterations=1,
        steps_per_generation=1,
        generation_shards=None,
        entropy_coef=0.0,
        use_adaptive_entropy=False,
        kl_in="loss",
        sync_ref_model=False,
        zero_std_groups="mask" if config.zero_std_groups == "resample" else config.zero_std_groups,
        refine_fraction=0.0,
        replay_samples=0,
        patience=None,
        patience_threshold=0.0,
        when_stale="stop",
        ema_decay=None,
        metric_for_best_model=None,
        greater_is_better=None,
        load_best_model_at_end=False,
    )


def row_numbers(count: int, batch_size: int, step: int, seed: int) -> Int[Tensor, " row"]:
    """Numbers of the samples of update ``step``, counted from 0: every pass goes through all samples in a new order.

    A pass has floor(count / batch_size) updates of equal size, so it leaves out a remainder, which differs from pass to pass.

    >>> [len(row_numbers(10, 4, step, seed=0)) for step in range(3)], len(row_numbers(3, 4, 0, seed=0))
    ([4, 4, 4], 3)
    """
    size = min(batch_size, count)
    turn, at = divmod(step, count // size)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + turn)
    return torch.randperm(count, generator=generator)[at * size : (at + 1) * size]


class OfflineTrainer:
    """Trains a policy in place on scored samples that it did not draw; one process only.

    Args:
        policy: policy to train, a module and a :class:`~discrete_grpo.core.rollout.Replayable`, with the weights that the frozen
            reference has. One that is a :class:`~discrete_grpo.core.rollout.Scorer` (an ELBO, clean-class likelihoods) gives
            log-probs and KL itself.
        data: samples with their scores.
        config: settings of GRPO; :func:`offline_config` lists those that apply. ``generation_batch_size`` is the number of
            samples per update.
        steps: number of updates, at least 1.
        run: folder for metrics and checkpoints; None writes nothing to disk.
        metadata: JSON values that every checkpoint stores.
        resume: whether to continue from the newest checkpoint in ``run``, or from the start if there is none.

    Raises:
        ValueError: if the arguments are not compatible, or ``run`` holds another run and ``resume`` is false.
    """

    def __init__(
        self,
        policy: Policy,
        data: ScoredSamples,
        config: GRPOConfig | None = None,
        *,
        steps: int,
        run: str | Path | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> None:
        self.config = config = offline_config(config or GRPOConfig(), steps)
        self.policy, self.data, self.metadata = policy, data, dict(metadata or {})
        self.accelerator = accelerator()
        self._check()
        check_determinism(config.full_determinism, self.accelerator.device)
        self.module: nn.Module = as_module(policy).to(self.accelerator.device).eval()
        probe = torch.Generator(self.accelerator.device)
        cast(Replayable, policy).rollout_of([data.samples[0]], generator=probe)  # raises early for a policy with top-k or top-p
        self.checkpoints = None if run is None else Checkpoints(run, config.save_total_limit)
        stored = None
        if resume and self.checkpoints is not None and self.checkpoints.all():
            stored = load_training(self.checkpoints.latest())
        elif self.checkpoints is not None and not resume:
            self.checkpoints.check_new()
        self.bf16 = decide_and_tell(config.bf16, ProcessGroup(self.accelerator), kept=None if stored is None else stored["bf16"])
        if config.checkpoint_layers is not None:
            checkpoint_layers(self.module, config.checkpoint_layers)
        kept = None if stored is None else stored.get("passes")
        self.config = config = with_passes(policy, config, None, self.precision, kept=kept)
        self.state = self._new_state()
        self.learner = Learner(policy, self.state, config, self.accelerator.backward, self.precision)
        self.step = 0
        self.history: list[dict[str, float]] = []
        self._saved: int | None = None  # the step of the newest checkpoint
        self.recorder = None if run is None else Recorder(run)
        if stored is not None:
            self._restore(stored)
        elif resume and self.recorder is not None:  # stopped before its first checkpoint
            self.recorder.restore(None)

    def _check(self) -> None:
        if self.accelerator.num_processes > 1:
            raise ValueError(f"processes: {self.accelerator.num_processes}, expected 1; off-line updates run in one process")
        if not is_replayable(self.policy):
            name = type(self.policy).__name__
            raise ValueError(f"policy: {name} has no method rollout_of, expected one that can learn from any sample")
        if self.config.importance_sampling_level == "sequence" and self.config.timestep_chunk not in (None, "auto"):
            wanted = "expected none with importance_sampling_level sequence"
            raise ValueError(f"timestep_chunk: {self.config.timestep_chunk}, {wanted}")
        check_scorer(self.policy, self.config)
        _, signal = self.data.advantages(torch.arange(len(self.data)), self.config)
        if not bool(signal.any()):
            said = "the scores" if self.data.groups is None else "the scores within every group"
            raise ValueError(f"scores: {said} are all equal, expected different ones, as their differences are what is learned")

    def _new_state(self) -> RunState:
        """Optimizer, frozen reference, and the generator of the noise."""
        config, module, processes = self.config, self.module, ProcessGroup()
        reference = cast(Policy, copy.deepcopy(module).requires_grad_(False))
        for used in (module, cast(nn.Module, reference)) if config.torch_compile else ():
            compile_network(used)
        optimizer = adamw([p for p in module.parameters() if p.requires_grad], config)
        shards = make_shards(self.policy, config, 1, device=self.accelerator.device)
        sampler = GroupSampler(self.policy, (), config, None, shards, processes, None, lambda batch: None, self.precision)
        return RunState(module, self.accelerator.prepare(optimizer), None, reference, None, None, (), None, sampler, processes)

    @property
    def reference(self) -> Policy:
        """The policy as it was before the first update."""
        return cast(Policy, self.state.reference)

    @property
    def generator(self) -> torch.Generator:
        """Generator of the trajectories and of the choice of steps."""
        return self.state.sampler.shards[0].generator

    def precision(self) -> torch.autocast:
        """The autocast context of the networks."""
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=self.bf16)

    # -- the loop

    def train(self) -> list[dict[str, float]]:
        """Make the remaining updates; returns the metrics of those that this call made.

        Raises:
            Interrupted: after Ctrl-C, once a checkpoint is saved.
        """
        if self._saved is None:
            self.save()
        with interruptible() as stop:
            self._loop(stop)
            if self._saved != self.step:
                self.save()
        if stop or self.step < self.config.max_steps:
            raise Interrupted(f"stopped at off-line update {self.step} of {self.config.max_steps}")
        return self.history

    def _loop(self, stop: Interrupt) -> None:
        with progress("off-line training", self.config.max_steps, done=self.step) as bar:
            while self.step < self.config.max_steps and not stop:
                line = self.update()
                shown = {name: line[name] for name in ("kl",) if name in line}  # a scorer may not measure it
                bar.reach(self.step, ratio=line["offline/ratio"], **shown)
                if self.step % self.config.save_steps == 0 and self.step < self.config.max_steps:
                    self.save()

    def update(self) -> dict[str, float]:
        """Make one update; returns its metrics."""
        start, config = time.perf_counter(), self.config
        numbers = row_numbers(len(self.data), self.config.generation_batch_size, self.step, self.config.seed)
        advantage, signal = self.data.advantages(numbers, self.config)
        rows = self._rows(numbers, advantage, signal)
        micros = windows([rows], self.config, self.generator)[0]
        device = self.accelerator.device
        with memory_advice("an update"), tf32_products(config.tf32, device), deterministic(config.full_determinism):
            old = self._reference_log_probs(micros)
            found = self.learner.update(self.step, [replace(m, stored=o) for m, o in zip(micros, old, strict=True)], old)
        self.step += 1
        scores = self.data.scores.double()[numbers]
        line = {"offline/score": float(scores.mean()), "offline/score_std": float(scores.std()) if len(scores) > 1 else 0.0}
        line |= {"offline/frac_without_signal": float((~signal).double().mean())}
        line |= {"advantages/abs_mean": float(advantage.abs().mean()), "offline/ratio": found.pop("replay/ratio"), **found}
        line["step_time"] = time.perf_counter() - start
        self.history.append(line)
        if self.recorder is not None:
            self.recorder.record(self.step, line)
        return line

    def _rows(self, numbers: Tensor, advantage: Tensor, signal: Tensor) -> TrainRows:
        """Trajectories of the samples at ``numbers``, newly drawn, with their advantages."""
        samples = [self.data.samples[k] for k in numbers.tolist()]
        with self.precision():
            rollout = cast(Replayable, self.policy).rollout_of(samples, generator=self.generator)
        on = torch.ones_like(signal) if self.config.zero_std_groups == "keep" else signal
        marks = (advantage, on, on, torch.zeros_like(on))
        return TrainRows(rollout, *(place(mark, rollout.group.device) for mark in marks))

    @torch.no_grad()
    def _reference_log_probs(self, micros: Sequence[MicroBatch]) -> list[Tensor]:
        """Log π_ref of each micro-batch, computed in the passes of the update, so that the first ratio is exactly 1."""
        with self.precision():
            return [policy_scores(self.reference, micro).logp for micro in micros]

    # -- checkpoints

    def save(self) -> None:
        """Write a checkpoint of the state after the last update, if there is a run folder."""
        if self.checkpoints is None or self.recorder is None:
            return
        state = {"step": self.step, "bf16": self.bf16, "passes": self.config.passes, "device": self.accelerator.device.type}
        state |= {"position": self.recorder.position(), **self.state.learning(), **self.state.drawing([self.state.snapshot()])}
        metadata = self.metadata | {"offline_steps": self.step}
        self.checkpoints.save(self.step, without_lora(self.module), metadata=metadata, training=tensors_to_cpu(state))
        self._saved = self.step

    def _restore(self, state: Mapping[str, Any]) -> None:
        check_device_kind(state, state["shards"][0]["generator"], self.accelerator.device)
        self.state.restore(state)
        self.step = self._saved = int(state["step"])
        if self.recorder is not None:
            self.recorder.restore(state["position"])
