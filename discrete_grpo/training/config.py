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


def _check_bf16(config: GRPOConfig | PretrainConfig) -> None:
    if config.bf16 not in (True, False, "auto"):
        raise ValueError(f"bf16: {config.bf16!r}, expected True, False or 'auto'")


def _check_best(config: GRPOConfig | PretrainConfig) -> None:
    """Raise for settings of the best checkpoint without a metric that says which it is."""
    for name in ("greater_is_better", "load_best_model_at_end"):
        if config.metric_for_best_model is None and getattr(config, name):
            raise ValueError(f"{name}: {getattr(config, name)}, expected metric_for_best_model to say what is compared")


@dataclass(frozen=True)
class GRPOConfig:
    """Everything that decides a GRPO run, given a policy and rewards.

    Attributes:
        max_steps: optimiser updates in the whole run.
        num_generations: G, samples a group; at least 2.
        generation_batch_size: samples drawn between updates, a multiple of ``num_generations``.
        per_device_batch_size: trajectories in one forward pass; memory only, the gradient is the same.
        timestep_chunk: steps of a trajectory in one forward pass (None: all); memory only, the gradient is the same.
        num_iterations: μ, how often each generation batch is gone through.
        steps_per_generation: updates made in going through it once, on disjoint parts drawn at random; each is normalised by
            its own part. (TRL counts micro-steps here; those are ``per_device_batch_size`` and ``timestep_chunk``.)
        timestep_fraction: share of each trajectory's steps that an update learns from.
        timestep_selection: which these are, of the steps with something to choose: ``random`` (drawn for each sample),
            ``first``, ``last``, or a ``window`` (a run of neighbours, its place drawn for each sample).
        loss_type: how units are weighted, and their surrogate: ``grpo`` (mean of each trajectory's mean), ``dapo`` (mean over
            all units) and ``dr_grpo`` (sum over units by a constant) clip the ratio; ``cispo`` (weighted as dapo) caps it and
            keeps every gradient; ``sapo`` (weighted as grpo) fades it out.
        importance_sampling_level: ``token`` (a ratio per site), ``step`` (product over a step's sites), ``step_mean``
            (their geometric mean) or ``sequence`` (geometric mean over the trajectory, GSPO). The unit that is weighted is a
            step at level ``step`` and a site at the others.
        epsilon, epsilon_high: ratios are clipped to [1 - ε, 1 + ε_high]; ``epsilon_high`` None means ε. For cispo it is the
            cap itself and must be given (5.0, say). Clipping acts from the second update on one generation: with one
            (``num_iterations`` and ``steps_per_generation`` 1) every ratio is exactly 1.
        delta: ratios of the unclipped term are at most δ, which bounds bad samples that became likely; more than 1 + ε_high.
        sapo_temperature_pos: τ of sapo for samples with a positive advantage.
        sapo_temperature_neg: τ of sapo for the other samples.
        off_policy_mask_threshold: samples with A < 0 whose mean log π_old - log π_θ is above this have no policy term.
        top_entropy_quantile: ρ, only the share ρ of an update's sites with the highest entropy get a gradient from the policy term.
        entropy_coef: c, weight of the mean entropy of a site as a bonus.
        use_adaptive_entropy: move c by ``entropy_coef_delta`` each update within [``entropy_coef_min``, ``entropy_coef_max``],
            up while the entropy is at most ``entropy_target`` nats, down above it, where the bonus is not applied.
        entropy_coef_min: smallest c with ``use_adaptive_entropy``.
        entropy_coef_max: largest c with ``use_adaptive_entropy``.
        entropy_coef_delta: change of c per update with ``use_adaptive_entropy``.
        entropy_target: mean entropy of a site in nats that ``use_adaptive_entropy`` keeps.
        beta: weight of the KL to the reference; 0 loads no reference.
        kl_estimator: ``exact`` (a sum over classes), or from the classes drawn ``k1``, ``k2`` or ``k3``.
        kl_direction: ``reverse`` is KL(π_θ ‖ π_ref), ``forward`` KL(π_ref ‖ π_θ).
        kl_in: a term of the ``loss``; summed over the trajectory and subtracted from the advantages (``reward``), where k1 has
            the gradient of the trajectory's KL; or ``both``, where the exact one has it.
        use_bias_correction_kl: multiply estimates in the loss by the ratio, which makes their gradient that of the KL. On,
            unlike in TRL; the exact KL needs none.
        sync_ref_model: let the reference follow: π_ref ← α π_θ + (1-α) π_ref every ``ref_model_sync_steps`` updates, with
            α = ``ref_model_mixup_alpha``.
        ref_model_mixup_alpha: α of ``sync_ref_model``, the share of the trained weights in the new reference.
        ref_model_sync_steps: number of updates between two changes of the reference with ``sync_ref_model``.
        scale_rewards: what advantages are divided by: the standard deviation of the ``group``, of the ``batch``, or
            ``none``.
        baseline: ``mean`` of the group or ``leave_one_out``.
        multi_objective_aggregation: ``sum_then_normalize`` or ``normalize_then_sum`` for several rewards.
        reward_weights: one weight a reward; None means 1 each.
        advantage_clip: advantages are clamped to ± this; None leaves them.
        zero_std_groups: what becomes of groups whose rewards are all equal: ``keep`` (advantage 0; a KL or entropy term still
            acts on them), ``mask`` (out of the loss and its normaliser), or ``resample`` (masked, and drawn again elsewhere).
        max_resampling_rounds: how often at most ``resample`` draws what is missing, for one generation.
        refine_fraction: share of the groups of a generation that start from a good sample instead of noise: it is re-noised
            and regenerated, and the regenerated steps are trained on. 0: off; needs a policy that can.
        refine_time: how far back they go, 0 (data) < t < 1 (noise); the nearest point of the sampler's grid is taken.
        refine_memory: how many of the best unique samples of the run are kept to start from.
        replay_samples: how many good samples of earlier generations join each group of their condition, with their rewards and
            the log-probs they were drawn with; nothing is scored again. 0: off.
        replay_memory: how many of the best unique samples of a shard are kept for that.
        learning_rate: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
        adam_beta1: β_1 of AdamW, the decay of its mean of gradients.
        adam_beta2: β_2 of AdamW, the decay of its mean of squared gradients.
        lr_scheduler_type: learning rate after the warm-up: ``constant``, or a ``linear`` or ``cosine`` decay to 0.
        warmup_steps: number of updates over which the learning rate grows linearly from 0.
        max_grad_norm: gradients are clipped to this norm; None leaves them. Graph policies have norms far below 1 (about 0.01),
            where 1 never acts.
        ema_decay: decay of an exponential moving average of the weights, used for evaluation and export; None: off.
        bf16: run networks under bfloat16 autocast (log-probs stay float32): True, False, or ``auto``, which means where the
            processor or GPU has units for it. What ``auto`` came to is kept with the run.
        torch_compile: compile the layers of the networks; the first updates wait for the compiler.
        checkpoint_layers: compute layers again for gradients, for memory; None leaves what the network has.
        seed: random seed of the run.
        generation_shards: independent random streams that the groups are drawn in, dealt out evenly to the processes. Results
            depend on it and not on the number of processes. None: one a process.
        save_steps: number of updates between two checkpoints.
        save_total_limit: number of the newest checkpoints that are kept.
        metric_for_best_model: name of a logged metric; the checkpoint with its best mean over the updates since the one before
            is kept too, however old. None: no checkpoint is the best.
        greater_is_better: whether a higher value of that metric is better; None: unless its name ends in "loss".
        load_best_model_at_end: end with the policy of the best checkpoint, which is then what is evaluated and exported.

    Raises:
        ValueError: naming the field, its value and the accepted range.
    """

    max_steps: int = 100
    num_generations: int = 8
    generation_batch_size: int = 64
    per_device_batch_size: int = 64
    timestep_chunk: int | None = None
    num_iterations: int = 1
    steps_per_generation: int = 1
    timestep_fraction: float = 1.0
    timestep_selection: Literal["random", "first", "last", "window"] = "random"
    loss_type: Literal["grpo", "dapo", "dr_grpo", "cispo", "sapo"] = "dapo"
    importance_sampling_level: Literal["token", "step", "step_mean", "sequence"] = "token"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    off_policy_mask_threshold: float | None = None
    top_entropy_quantile: float = 1.0
    entropy_coef: float = 0.0
    use_adaptive_entropy: bool = False
    entropy_coef_min: float = 0.0
    entropy_coef_max: float = 1.0
    entropy_coef_delta: float = 0.005
    entropy_target: float = 0.2
    beta: float = 0.0
    kl_estimator: Literal["exact", "k1", "k2", "k3"] = "exact"
    kl_direction: Literal["reverse", "forward"] = "reverse"
    kl_in: Literal["loss", "reward", "both"] = "loss"
    use_bias_correction_kl: bool = True
    sync_ref_model: bool = False
    ref_model_mixup_alpha: float = 0.6
    ref_model_sync_steps: int = 512
    scale_rewards: Literal["group", "batch", "none"] = "group"
    baseline: Literal["mean", "leave_one_out"] = "mean"
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    reward_weights: tuple[float, ...] | None = None
    advantage_clip: float | None = None
    zero_std_groups: Literal["keep", "mask", "resample"] = "keep"
    max_resampling_rounds: int = 4
    refine_fraction: float = 0.0
    refine_time: float = 0.5
    refine_memory: int = 64
    replay_samples: int = 0
    replay_memory: int = 64
    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    max_grad_norm: float | None = 1.0
    ema_decay: float | None = None
    bf16: bool | Literal["auto"] = False
    torch_compile: bool = False
    checkpoint_layers: bool | None = None
    seed: int = 42
    generation_shards: int | None = None
    save_steps: int = 10
    save_total_limit: int = 2
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    load_best_model_at_end: bool = False

    def __post_init__(self) -> None:
        for name in ("max_steps", "generation_batch_size", "per_device_batch_size", "timestep_chunk", "num_iterations"):
            _between(self, name, 1)
        for name in ("save_steps", "save_total_limit", "refine_memory", "steps_per_generation", "ref_model_sync_steps"):
            _between(self, name, 1)
        _between(self, "generation_shards", 1)
        _between(self, "max_resampling_rounds", 0)
        _between(self, "replay_samples", 0)
        _between(self, "replay_memory", 1)
        _between(self, "num_generations", 2)
        for name in ("timestep_fraction", "top_entropy_quantile"):
            _between(self, name, 0, 1, open_low=True)
        for name in ("learning_rate", "epsilon", "epsilon_high", "delta", "advantage_clip", "max_grad_norm"):
            _between(self, name, 0, open_low=True)
        for name in ("sapo_temperature_pos", "sapo_temperature_neg"):
            _between(self, name, 0, open_low=True)
        for name in ("beta", "weight_decay", "warmup_steps", "seed", "off_policy_mask_threshold", "entropy_target"):
            _between(self, name, 0)
        for name in ("entropy_coef", "entropy_coef_min", "entropy_coef_delta"):
            _between(self, name, 0)
        _between(self, "entropy_coef_max", self.entropy_coef_min)
        for name in ("adam_beta1", "adam_beta2", "ema_decay", "refine_fraction", "ref_model_mixup_alpha"):
            _between(self, name, 0, 1)
        _one_of(self, "loss_type", ("grpo", "dapo", "dr_grpo", "cispo", "sapo"))
        _one_of(self, "timestep_selection", ("random", "first", "last", "window"))
        _one_of(self, "zero_std_groups", ("keep", "mask", "resample"))
        _one_of(self, "kl_estimator", ("exact", "k1", "k2", "k3"))
        _one_of(self, "kl_direction", ("reverse", "forward"))
        _one_of(self, "kl_in", ("loss", "reward", "both"))
        _one_of(self, "importance_sampling_level", ("token", "step", "step_mean", "sequence"))
        _one_of(self, "scale_rewards", ("group", "batch", "none"))
        _one_of(self, "baseline", ("mean", "leave_one_out"))
        _one_of(self, "multi_objective_aggregation", ("sum_then_normalize", "normalize_then_sum"))
        _one_of(self, "lr_scheduler_type", ("constant", "linear", "cosine"))
        _check_bf16(self)
        _check_best(self)
        self._check_pairs()
        self._check_replay()

    def _check_pairs(self) -> None:
        """Raise for options that do not go together."""
        if not 0 < self.refine_time < 1:
            raise ValueError(f"refine_time: {self.refine_time}, expected > 0 and < 1")
        if self.generation_batch_size % self.num_generations:
            wanted = f"a multiple of num_generations ({self.num_generations})"
            raise ValueError(f"generation_batch_size: {self.generation_batch_size}, expected {wanted}")
        if self.steps_per_generation > self.generation_batch_size:
            wanted = f"at most generation_batch_size ({self.generation_batch_size})"
            raise ValueError(f"steps_per_generation: {self.steps_per_generation}, expected {wanted}")
        if self.loss_type == "cispo" and self.epsilon_high is None:
            raise ValueError("epsilon_high: None, expected the cap of the ratio with loss_type cispo (5.0, say)")
        if self.sync_ref_model and self.beta == 0:
            raise ValueError("sync_ref_model: True, expected a reference to follow (beta > 0)")
        if self.kl_direction == "forward" and self.kl_estimator == "k2":
            raise ValueError("kl_estimator: 'k2', expected exact, k1 or k3 with kl_direction forward")
        if self.kl_in == "both" and self.kl_estimator != "exact":
            raise ValueError(f"kl_estimator: {self.kl_estimator!r}, expected exact with kl_in both, where others count twice")
        if self.kl_estimator == "k1" and self.kl_in != "reward" and not self.use_bias_correction_kl:
            raise ValueError("kl_estimator: 'k1', expected use_bias_correction_kl in the loss: its own gradient there is zero")

    def _check_replay(self) -> None:
        """Raise for options that replayed samples do not go with."""
        given = f"replay_samples: {self.replay_samples}, expected"
        if self.replay_samples > self.replay_memory:
            raise ValueError(f"{given} at most replay_memory ({self.replay_memory})")
        others = {
            f"refine_fraction {self.refine_fraction}": self.refine_fraction > 0,
            "zero_std_groups resample": self.zero_std_groups == "resample",
            f"kl_in {self.kl_in}": self.beta > 0 and self.kl_in != "loss",
        }
        for other in (name for name, on in others.items() if on and self.replay_samples > 0):
            raise ValueError(f"{given} 0 with {other}")

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
        learning_rate: learning rate of AdamW (β = 0.9, 0.99); it decays to 1 % by a cosine after ``warmup_steps``.
        weight_decay: weight decay of AdamW.
        warmup_steps: number of updates over which the learning rate grows linearly from 0.
        max_grad_norm: gradients are clipped to this norm.
        ema_decay: decay of the moving average of the weights, which is what gets saved for use.
        bf16: run the network under bfloat16 autocast; ``auto`` as in :class:`GRPOConfig`.
        seed: random seed of the run.
        log_steps: number of updates between two lines of metrics.
        save_steps: number of updates between two checkpoints.
        save_total_limit: number of the newest checkpoints that are kept.
        metric_for_best_model: name of a logged metric; the checkpoint with its best mean since the one before is kept too.
        greater_is_better: whether a higher value of that metric is better; None: unless its name ends in "loss".
        load_best_model_at_end: end with the policy of the best checkpoint.

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
    bf16: bool | Literal["auto"] = False
    seed: int = 42
    log_steps: int = 50
    save_steps: int = 500
    save_total_limit: int = 2
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    load_best_model_at_end: bool = False

    def __post_init__(self) -> None:
        for name in ("max_steps", "batch_size", "log_steps", "save_steps", "save_total_limit"):
            _between(self, name, 1)
        for name in ("learning_rate", "max_grad_norm"):
            _between(self, name, 0, open_low=True)
        for name in ("weight_decay", "warmup_steps", "seed"):
            _between(self, name, 0)
        _between(self, "ema_decay", 0, 1)
        _check_bf16(self)
        _check_best(self)
