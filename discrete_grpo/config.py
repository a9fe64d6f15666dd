"""Settings of the training loops: frozen dataclasses, TRL's names where the meaning is TRL's, checked when made."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

__all__ = ["GRPOConfig", "PretrainConfig"]


def _between(
    config: object, name: str, low: int | float | None, high: int | float | None = None, *, open_low: bool = False
) -> None:
    """Raise unless ``low <= config.name <= high``; None passes (an option that is off)."""
    value = getattr(config, name)
    if value is None:
        return
    below = low is not None and (value <= low if open_low else value < low)
    if value != value or below or (high is not None and value > high):
        sign = ">" if open_low else ">="
        wanted = f"{sign} {low}" + (f" and <= {high}" if high is not None else "")
        raise ValueError(f"{name}: {value}, expected {wanted}")


def _one_of(config: object, name: str, choices: Collection[str]) -> None:
    if getattr(config, name) not in choices:
        raise ValueError(f"{name}: {getattr(config, name)!r}, expected one of {', '.join(choices)}")


@dataclass(frozen=True)
class GRPOConfig:
    """Everything that decides a GRPO run, given a policy and rewards.

    Attributes:
        max_steps: optimiser updates in the whole run.
        num_generations: G, samples a group; at least 2.
        generation_batch_size: samples drawn between updates, a multiple of ``num_generations``.
        per_device_batch_size: trajectories in one forward pass; memory only, the gradient is the same.
        timestep_chunk: steps of a trajectory in one forward pass (None: all); memory only, the gradient is the same.
        num_iterations: μ, updates made with each generation batch.
        timestep_fraction: share of each trajectory's steps that an update learns from, drawn anew per sample.
        loss_type: how units are weighted: ``grpo`` (mean of each trajectory's mean), ``dapo`` (mean over all units) or
            ``dr_grpo`` (sum over units by a constant).
        importance_sampling_level: ``token`` (a ratio per site), ``step`` (product over a step's sites), ``step_mean``
            (their geometric mean) or ``sequence`` (geometric mean over the trajectory, GSPO).
        epsilon, epsilon_high: ratios are clipped to [1 - ε, 1 + ε_high]; ``epsilon_high`` None means ε.
        beta: weight of the exact KL(π_θ ‖ π_ref) penalty; 0 loads no reference.
        scale_rewards: what advantages are divided by: the standard deviation of the ``group``, of the ``batch``, or
            ``none``.
        baseline: ``mean`` of the group or ``leave_one_out``.
        multi_objective_aggregation: ``sum_then_normalize`` or ``normalize_then_sum`` for several rewards.
        reward_weights: one weight a reward; None means 1 each.
        advantage_clip: advantages are clamped to ± this; None leaves them.
        refine_fraction: share of the groups of a generation that start from a good sample instead of noise: it is re-noised
            and regenerated, and the regenerated steps are trained on. 0: off; needs a policy that can.
        refine_time: how far back they go, 0 (data) < t < 1 (noise); the nearest point of the sampler's grid is taken.
        refine_memory: how many of the best unique samples of the run are kept to start from.
        learning_rate, weight_decay, adam_beta1, adam_beta2: of AdamW.
        lr_scheduler_type, warmup_steps: ``constant``, ``linear`` or ``cosine`` decay to 0 after a linear warm-up.
        max_grad_norm: gradients are clipped to this norm; None leaves them.
        ema_decay: decay of an exponential moving average of the weights, used for evaluation and export; None: off.
        bf16: run networks under bfloat16 autocast (log-probs stay float32).
        seed: of everything random in the run.
        save_steps, save_total_limit: updates between checkpoints, and how many are kept.

    Raises:
        ValueError: naming the field, its value and the accepted range.
    """

    max_steps: int = 100
    num_generations: int = 8
    generation_batch_size: int = 64
    per_device_batch_size: int = 64
    timestep_chunk: int | None = None
    num_iterations: int = 1
    timestep_fraction: float = 1.0
    loss_type: Literal["grpo", "dapo", "dr_grpo"] = "dapo"
    importance_sampling_level: Literal["token", "step", "step_mean", "sequence"] = "token"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    beta: float = 0.0
    scale_rewards: Literal["group", "batch", "none"] = "group"
    baseline: Literal["mean", "leave_one_out"] = "mean"
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    reward_weights: tuple[float, ...] | None = None
    advantage_clip: float | None = None
    refine_fraction: float = 0.0
    refine_time: float = 0.5
    refine_memory: int = 64
    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    max_grad_norm: float | None = 1.0
    ema_decay: float | None = None
    bf16: bool = False
    seed: int = 42
    save_steps: int = 10
    save_total_limit: int = 2

    def __post_init__(self) -> None:
        for name in ("max_steps", "generation_batch_size", "per_device_batch_size", "timestep_chunk", "num_iterations"):
            _between(self, name, 1)
        for name in ("save_steps", "save_total_limit", "refine_memory"):
            _between(self, name, 1)
        _between(self, "num_generations", 2)
        if self.generation_batch_size % self.num_generations:
            wanted = f"a multiple of num_generations ({self.num_generations})"
            raise ValueError(f"generation_batch_size: {self.generation_batch_size}, expected {wanted}")
        _between(self, "timestep_fraction", 0, 1, open_low=True)
        for name in ("learning_rate", "epsilon", "epsilon_high", "advantage_clip", "max_grad_norm"):
            _between(self, name, 0, open_low=True)
        for name in ("beta", "weight_decay", "warmup_steps", "seed"):
            _between(self, name, 0)
        for name in ("adam_beta1", "adam_beta2", "ema_decay", "refine_fraction"):
            _between(self, name, 0, 1)
        if not 0 < self.refine_time < 1:
            raise ValueError(f"refine_time: {self.refine_time}, expected > 0 and < 1")
        _one_of(self, "loss_type", ("grpo", "dapo", "dr_grpo"))
        _one_of(self, "importance_sampling_level", ("token", "step", "step_mean", "sequence"))
        _one_of(self, "scale_rewards", ("group", "batch", "none"))
        _one_of(self, "baseline", ("mean", "leave_one_out"))
        _one_of(self, "multi_objective_aggregation", ("sum_then_normalize", "normalize_then_sum"))
        _one_of(self, "lr_scheduler_type", ("constant", "linear", "cosine"))

    @property
    def num_groups(self) -> int:
        """Groups in a generation batch."""
        return self.generation_batch_size // self.num_generations


@dataclass(frozen=True)
class PretrainConfig:
    """Settings of likelihood training.

    Attributes:
        max_steps: optimiser updates in the whole run.
        batch_size: samples an update.
        learning_rate, weight_decay: of AdamW (β = 0.9, 0.99); cosine decay to 1 % after ``warmup_steps``.
        max_grad_norm: gradients are clipped to this norm.
        ema_decay: decay of the moving average of the weights, which is what gets saved for use.
        bf16: run the network under bfloat16 autocast.
        seed: of everything random in the run.
        log_steps, save_steps, save_total_limit: updates between lines, between checkpoints, and how many are kept.

    Raises:
        ValueError: naming the field, its value and the accepted range.
    """

    max_steps: int = 10_000
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup_steps: int = 200
    max_grad_norm: float = 1.0
    ema_decay: float = 0.999
    bf16: bool = False
    seed: int = 42
    log_steps: int = 50
    save_steps: int = 500
    save_total_limit: int = 2

    def __post_init__(self) -> None:
        for name in ("max_steps", "batch_size", "log_steps", "save_steps", "save_total_limit"):
            _between(self, name, 1)
        for name in ("learning_rate", "max_grad_norm"):
            _between(self, name, 0, open_low=True)
        for name in ("weight_decay", "warmup_steps", "seed"):
            _between(self, name, 0)
        _between(self, "ema_decay", 0, 1)
