"""Settings of the training loops: frozen dataclasses with TRL's names where the meaning is TRL's, checked on construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from discrete_grpo.core.checks import LAST_SEED, check_choices, check_fields, check_range, check_switch, check_text
from discrete_grpo.core.option_names import known_options

__all__ = ["BY_FUNCTION", "OF_TRAIN", "GRPOConfig", "PretrainConfig"]

OF_TRAIN = (
    *("policy", "reward", "output_dir", "columns", "evaluation_samples", "max_oracle_calls", "reward_cache", "report_to", "lora"),
    *("num_steps", "temperature", "top_k", "top_p", "guidance", "advantage_func", "surrogate_func", "on_update", "resume"),
)
"""Arguments of ``train`` that are fields of the settings of other trainers."""
BY_FUNCTION = ("callbacks", "callback", "eval_steps", "eval_strategy", "eval_every")
"""Settings of other trainers whose purpose a custom function serves here, called after every update."""


def _check_auto(config: GRPOConfig, name: str, *, least: int) -> None:
    """Check a field that is a number or ``auto``."""
    value = getattr(config, name)
    if not isinstance(value, str):
        check_fields(config, name, least=least)
    elif value != "auto":
        raise ValueError(f"{name}: {value!r}, expected a whole number, at least {least}, or 'auto'")


def _check_best(config: GRPOConfig | PretrainConfig) -> None:
    """Check that settings of the best checkpoint come with a metric."""
    if config.metric_for_best_model is not None:
        check_text("metric_for_best_model", config.metric_for_best_model, "the name of a metric")
        if not config.metric_for_best_model:
            raise ValueError("metric_for_best_model: '', expected the name of a metric, or None")
    for name in ("greater_is_better", "load_best_model_at_end"):
        if config.metric_for_best_model is None and getattr(config, name):
            raise ValueError(f"{name}: {getattr(config, name)}, expected metric_for_best_model to say what is compared")


@known_options({**dict.fromkeys(OF_TRAIN, "an argument of train"), **dict.fromkeys(BY_FUNCTION, "done by on_update of train")})
@dataclass(frozen=True)
class GRPOConfig:
    """Settings of GRPO training.

    Attributes:
        max_steps: Number of optimiser updates in the whole run, at least 1.
        num_generations: Number of samples per group (G), at least 2. As in TRL.
        generation_batch_size: Number of samples drawn between updates, a multiple of ``num_generations``. As in TRL.
        per_device_batch_size: Number of trajectories in one forward pass, at least 1. It changes memory and speed, not the
            gradient. ``auto`` takes as many as the free memory allows, at most 64 on a processor.
        timestep_chunk: Number of steps of a trajectory in one forward pass, at least 1; None takes all. It changes memory and
            speed, not the gradient. ``auto`` takes as many as the free memory allows. A resumed run keeps what ``auto`` decided.
        num_iterations: Number of passes over each generation batch (μ), at least 1. As in TRL.
        steps_per_generation: Number of updates in one pass over a generation batch, at least 1. Each update uses its own random
            part of the batch and normalises by it. TRL counts micro-batches here instead.
        timestep_fraction: Share of the steps of each trajectory that an update is trained on, more than 0 and at most 1.
        timestep_selection: Which steps of a trajectory are trained on: ``random``, ``first``, ``last``, or ``window``, a run of
            neighbouring steps at a random place. Steps without a choice never count.
        loss_type: Loss. ``grpo`` (mean of the means per trajectory), ``dapo`` (mean over all units) and ``dr_grpo`` (sum over
            units divided by a constant) clip the ratio; ``cispo`` (weighted like dapo) caps it; ``sapo`` (weighted like grpo)
            fades it out. As in TRL.
        importance_sampling_level: What one ratio covers: ``token`` (one site), ``step`` (product over the sites of a step),
            ``step_mean`` (their geometric mean) or ``sequence`` (geometric mean over the trajectory, GSPO). The unit that is
            weighted is a step at level ``step`` and a site at the others. ``token`` and ``sequence`` are TRL's.
        epsilon: Ratios are clipped from below at 1 - ε; more than 0. Clipping acts from the second update on a generation, as
            every ratio of the first is 1. As in TRL.
        epsilon_high: Ratios are clipped from above at 1 + ε_high; more than 0; None takes ``epsilon``. For cispo it is the cap
            of the ratio itself, and it is required (5.0, say). As in TRL.
        delta: Upper bound of the ratio itself, not its distance from 1, for negative advantages (two-sided clipping); at least 1;
            one below 1 + ε_high also clips the ratios of positive advantages; None sets no bound. As in TRL.
        sapo_temperature_pos: Temperature of sapo for positive advantages, more than 0. As in TRL.
        sapo_temperature_neg: Temperature of sapo for all other advantages, more than 0. As in TRL.
        off_policy_mask_threshold: Samples with a negative advantage whose mean log π_old - log π_θ exceeds this have no policy
            term; at least 0; None keeps all. As in TRL.
        top_entropy_quantile: Share of the sites of an update, those with the highest entropy, that get a gradient from the
            policy term; more than 0 and at most 1. As in TRL.
        entropy_coef: Coefficient of the entropy bonus, which is the mean entropy of a site; at least 0. As in TRL.
        use_adaptive_entropy: Adapt the coefficient: it rises by ``entropy_coef_delta`` per update while the entropy is at most
            ``entropy_target``, else it falls and the bonus is not applied. As in TRL.
        entropy_coef_min: Smallest adaptive coefficient, at least 0.
        entropy_coef_max: Largest adaptive coefficient, at least ``entropy_coef_min``.
        entropy_coef_delta: Change of the adaptive coefficient per update, at least 0.
        entropy_target: Entropy in nats per site that the adaptive coefficient aims at, at least 0.
        beta: Coefficient of the KL to the reference policy, at least 0; with 0 no reference is kept. As in TRL.
        kl_estimator: How the KL is computed: ``exact`` (sum over classes), or estimated from the classes drawn by ``k1``, ``k2``
            or ``k3``. TRL has k3 only.
        kl_direction: ``reverse`` is KL(π_θ ‖ π_ref), ``forward`` is KL(π_ref ‖ π_θ).
        kl_in: Where the KL enters: as a term of the ``loss``, in the ``reward`` (summed over the trajectory and subtracted from
            the advantage), or ``both``. With ``baseline`` leave_one_out, k1 in the reward has the gradient of the KL of the
            trajectory, and so has exact with both.
        use_bias_correction_kl: Multiply estimates in the loss by the ratio, so that their gradient is that of the KL. TRL has
            this option too, off by default.
        sync_ref_model: Move the reference towards the policy every ``ref_model_sync_steps`` updates:
            π_ref ← α π_θ + (1-α) π_ref. As in TRL.
        ref_model_mixup_alpha: Mixing weight α of ``sync_ref_model``, 0 to 1. As in TRL.
        ref_model_sync_steps: Number of updates between two moves of the reference, at least 1. As in TRL.
        scale_rewards: Divisor of the advantages: the standard deviation of the ``group``, of the ``batch``, or ``none``; ``group``
            with ``normalize_then_sum``. As in TRL.
        baseline: Baseline of the advantages: the ``mean`` of the group, or of its other samples (``leave_one_out``).
        multi_objective_aggregation: How several rewards are combined: ``sum_then_normalize`` or ``normalize_then_sum``. As in
            TRL.
        reward_weights: Weights of the rewards, one per reward; None means 1 each. As in TRL.
        advantage_clip: Largest absolute advantage, more than 0; None does not clip.
        zero_std_groups: Treatment of groups whose rewards are all equal: ``keep`` (advantage 0; KL and entropy terms remain),
            ``mask`` (left out of the loss and its normaliser), or ``resample`` (masked and replaced by new groups).
        max_resampling_rounds: Largest number of times that ``resample`` draws missing groups per generation, at least 0.
        refine_fraction: Share of the groups of a generation that start from one of the best samples, which is re-noised and
            regenerated; 0 to 1. Only the regenerated steps are trained on. It needs a policy that can do this.
        refine_time: Time to which these samples are re-noised, more than 0 (data) and less than 1 (noise), rounded to the grid
            of the sampler.
        refine_memory: Number of best unique samples kept as starts, at least 1.
        replay_samples: Number of good samples of earlier generations that join each group of their condition, with their
            rewards and log-probs; at least 0, and at most ``replay_memory``.
        replay_memory: Number of best unique samples per shard that are kept for replay, at least 1.
        patience: Number of updates without a new call of the ledger after which the policy is stale, at least 1: all samples that
            it drew for them are invalid or were scored before. The updates of a generation count when the last of them is made.
            None sets no limit.
        patience_threshold: Share of the samples of a generation, 0 to less than 1: a generation whose share of new calls is not
            above it counts as one without a new call.
        when_stale: What happens when the policy is stale: ``stop`` ends the run; ``restart`` puts the weights from the start of the
            run back into policy, reference and moving average and resets the optimizer, and ends the run if that brings no new call
            either. Samples kept for replay and refinement, the ledger, the schedule of the learning rate and an adaptive entropy
            coefficient go on.
        learning_rate: Learning rate of AdamW, more than 0.
        weight_decay: Weight decay of AdamW, at least 0.
        adam_beta1: First momentum coefficient of AdamW, at least 0 and below 1.
        adam_beta2: Second momentum coefficient of AdamW, at least 0 and below 1.
        lr_scheduler_type: Learning rate after the warm-up: ``constant``, or ``linear`` or ``cosine`` decay to 0.
        warmup_steps: Number of updates of the linear warm-up of the learning rate, at least 0.
        max_grad_norm: Gradients are clipped to this norm, more than 0; None does not clip. Gradients of graph policies are often
            far below 1 (0.001 and less), where the default has no effect.
        ema_decay: Decay of the moving average of the weights, which is used for evaluation and export; 0 to 1; None keeps no
            average.
        bf16: Run networks under bfloat16 autocast: true, false, or ``auto``, which means true where the device has bfloat16
            units. Log-probs stay float32. A resumed run keeps the decision.
        tf32: Compute matrix products of float32 in TF32 on CUDA: faster, with 10 bits of mantissa in place of 23. Other devices
            ignore it.
        torch_compile: Compile the layers of the networks; the first updates wait for the compiler. On CUDA, a step of sampling
            graphs is recorded as a CUDA graph too.
        checkpoint_layers: Recompute activations in the backward pass, which saves memory; None keeps the setting of the network.
        full_determinism: Use only deterministic algorithms in draws and updates, so that two runs on one kind of GPU give the
            same bits: slower, and the environment variable CUBLAS_WORKSPACE_CONFIG must be :4096:8 or :16:8 on CUDA.
        seed: Random seed of the run, 0 to 2^32 - 1.
        generation_shards: Number of independent random streams in which groups are drawn, a multiple of the number of processes.
            Results depend on it and not on the number of processes. None means one per process.
        score_while_drawing: Score the groups of one shard in a thread while those of the next are drawn, in processes with
            several ``generation_shards``; the results are the same. True, false, or ``auto``, which means true where every reward
            runs in a pool of worker processes.
        save_steps: Number of updates between checkpoints, at least 1.
        save_total_limit: Number of newest checkpoints that are kept, at least 1; None keeps all.
        metric_for_best_model: Name of a logged metric. The checkpoint with its best value is kept as well: that of the generation
            drawn from the checkpoint (of the metrics of an update, such as ``kl``, that of its first update). The checkpoint at
            the end of a run, from which none is drawn, is compared by the last generation before it. The policy before training
            is not compared, nor are checkpoints within a generation. None keeps no best checkpoint.
        greater_is_better: Whether larger values of that metric are better; None means yes unless its name ends in "loss".
        load_best_model_at_end: End the run with the policy of the best checkpoint, which is then evaluated and exported.

    Raises:
        ValueError: naming the field, its value and the accepted range.
    """

    max_steps: int = 100
    num_generations: int = 8
    generation_batch_size: int = 64
    per_device_batch_size: int | Literal["auto"] = 64
    timestep_chunk: int | Literal["auto"] | None = None
    num_iterations: int = 1
    steps_per_generation: int = 1
    timestep_fraction: float = 1.0
    timestep_selection: Literal["random", "first", "last", "window"] = "random"
    loss_type: Literal["grpo", "dapo", "dr_grpo", "cispo", "sapo"] = "dapo"
    importance_sampling_level: Literal["token", "step", "step_mean", "sequence"] = "token"
    epsilon: float = 0.2
    epsilon_high: int | float | None = None
    delta: int | float | None = None
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    off_policy_mask_threshold: int | float | None = None
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
    advantage_clip: int | float | None = None
    zero_std_groups: Literal["keep", "mask", "resample"] = "keep"
    max_resampling_rounds: int = 4
    refine_fraction: float = 0.0
    refine_time: float = 0.5
    refine_memory: int = 64
    replay_samples: int = 0
    replay_memory: int = 64
    patience: int | None = None
    patience_threshold: float = 0.0
    when_stale: Literal["stop", "restart"] = "stop"
    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    max_grad_norm: float | None = 1.0
    ema_decay: int | float | None = None
    bf16: bool | Literal["auto"] = False
    tf32: bool = False
    torch_compile: bool = False
    checkpoint_layers: bool | None = None
    full_determinism: bool = False
    seed: int = 42
    generation_shards: int | None = None
    score_while_drawing: bool | Literal["auto"] = "auto"
    save_steps: int = 10
    save_total_limit: int | None = 2
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    load_best_model_at_end: bool = False

    def __post_init__(self) -> None:
        """Check the range of every field, and that the fields are compatible."""
        check_fields(self, "max_steps generation_batch_size num_iterations", least=1)
        for name in ("per_device_batch_size", "timestep_chunk"):
            _check_auto(self, name, least=1)
        check_fields(self, "save_steps save_total_limit refine_memory steps_per_generation ref_model_sync_steps", least=1)
        check_fields(self, "generation_shards replay_memory patience", least=1)
        check_fields(self, "num_generations", least=2)
        check_fields(self, "timestep_fraction top_entropy_quantile", above=0, most=1)
        check_fields(self, "learning_rate epsilon epsilon_high advantage_clip max_grad_norm", above=0)
        check_fields(self, "delta", least=1)
        check_fields(self, "sapo_temperature_pos sapo_temperature_neg", above=0)
        check_fields(self, "max_resampling_rounds replay_samples", least=0)
        check_fields(self, "beta weight_decay warmup_steps off_policy_mask_threshold entropy_target", least=0)
        check_fields(self, "seed", least=0, most=LAST_SEED)
        check_fields(self, "entropy_coef entropy_coef_min entropy_coef_delta", least=0)
        check_fields(self, "entropy_coef_max", least=self.entropy_coef_min)
        check_fields(self, "adam_beta1 adam_beta2", least=0, below=1)
        check_fields(self, "ema_decay refine_fraction ref_model_mixup_alpha", least=0, most=1)
        check_range("refine_time", self.refine_time, above=0, below=1)
        check_range("patience_threshold", self.patience_threshold, least=0, below=1)
        if self.reward_weights is not None and not isinstance(self.reward_weights, list | tuple):
            raise ValueError(f"reward_weights: {self.reward_weights!r}, expected a list of numbers, one per reward")
        for weight in self.reward_weights or ():
            check_range("reward_weights", weight)
        check_choices(self)
        check_switch("bf16", self.bf16)
        check_switch("score_while_drawing", self.score_while_drawing)
        _check_best(self)
        self._check_pairs()
        self._check_replay()

    def _check_pairs(self) -> None:
        """Check that options are compatible."""
        if self.generation_batch_size % self.num_generations:
            wanted = f"a multiple of num_generations ({self.num_generations})"
            raise ValueError(f"generation_batch_size: {self.generation_batch_size}, expected {wanted}")
        check_range(
            "steps_per_generation", self.steps_per_generation, most=self.generation_batch_size, note=" (generation_batch_size)"
        )
        if self.loss_type == "cispo" and self.epsilon_high is None:
            raise ValueError("epsilon_high: None, expected the cap of the ratio with loss_type cispo (5.0, say)")
        if self.patience is None and self.patience_threshold > 0:
            raise ValueError(f"patience_threshold: {self.patience_threshold}, expected 0 without patience")
        if self.patience is None and self.when_stale != "stop":
            raise ValueError(f"when_stale: {self.when_stale!r}, expected stop without patience")
        if self.sync_ref_model and self.beta == 0:
            raise ValueError("sync_ref_model: True, expected a reference to follow (beta > 0)")
        if self.kl_direction == "forward" and self.kl_estimator == "k2":
            raise ValueError("kl_estimator: 'k2', expected exact, k1 or k3 with kl_direction forward")
        if self.kl_in == "both" and self.kl_estimator != "exact":
            raise ValueError(f"kl_estimator: {self.kl_estimator!r}, expected exact with kl_in both, where others count twice")
        if self.kl_estimator == "k1" and self.kl_in != "reward" and not self.use_bias_correction_kl:
            raise ValueError("kl_estimator: 'k1', expected use_bias_correction_kl in the loss: its own gradient there is zero")

    def _check_replay(self) -> None:
        """Check that replay is not used with options that it does not support."""
        given = f"replay_samples: {self.replay_samples}, expected"
        check_range("replay_samples", self.replay_samples, most=self.replay_memory, note=" (replay_memory)")
        others = {
            f"refine_fraction {self.refine_fraction}": self.refine_fraction > 0,
            "zero_std_groups resample": self.zero_std_groups == "resample",
            f"kl_in {self.kl_in}": self.beta > 0 and self.kl_in != "loss",
        }
        for other in (name for name, on in others.items() if on and self.replay_samples > 0):
            raise ValueError(f"{given} 0 with {other}")

    @property
    def passes(self) -> tuple[int, int | None]:
        """Number of trajectories and of steps in one forward pass; all steps if None.

        Raises:
            ValueError: if one of them is ``auto``, which a trainer decides; see :mod:`discrete_grpo.training.pass_size`.
        """
        rows, steps = self.per_device_batch_size, self.timestep_chunk
        if isinstance(rows, str) or isinstance(steps, str):
            name = "per_device_batch_size" if isinstance(rows, str) else "timestep_chunk"
            raise ValueError(f"{name}: 'auto', expected a number outside of a trainer, which measures what fits")
        return rows, steps

    @property
    def num_groups(self) -> int:
        """Number of groups in a generation batch."""
        return self.generation_batch_size // self.num_generations


@known_options()
@dataclass(frozen=True)
class PretrainConfig:
    """Settings of pretraining by maximum likelihood.

    Attributes:
        max_steps: Number of optimiser updates in the whole run, at least 1.
        batch_size: Number of samples per update, over all processes, at least 1.
        learning_rate: Learning rate of AdamW (β = 0.9, 0.99) after the warm-up, more than 0; half a cosine down to ``min_lr_rate``
            of it follows.
        min_lr_rate: Learning rate that the curve reaches after the last update, as a share of the largest, 0 to 1.
        weight_decay: Weight decay of AdamW, at least 0.
        warmup_steps: Number of updates of the linear warm-up of the learning rate, at least 0.
        max_grad_norm: Gradients are clipped to this norm, more than 0.
        ema_decay: Decay of the moving average of the weights, which is the policy that is exported; 0 to 1.
        bf16: Run the network under bfloat16 autocast: true, false, or ``auto``, which means true where the device has bfloat16
            units. A resumed run keeps the decision.
        tf32: Compute matrix products of float32 in TF32 on CUDA: faster, with 10 bits of mantissa in place of 23. Other devices
            ignore it.
        torch_compile: Compile the layers of the network; the first updates wait for the compiler.
        cuda_graphs: On CUDA, record the passes of each kind of batch as a CUDA graph, which launches all their kernels at once and
            gives the same bits: faster for batches of one shape, such as graphs of equal size. Other devices ignore it.
        checkpoint_layers: Recompute activations in the backward pass, which saves memory; None keeps the setting of the network.
        full_determinism: Use only deterministic algorithms in updates, so that two runs on one kind of GPU give the same
            bits: slower, and the environment variable CUBLAS_WORKSPACE_CONFIG must be :4096:8 or :16:8 on CUDA.
        seed: Random seed of the run, 0 to 2^32 - 1.
        log_steps: Number of updates between lines of metrics, at least 1.
        save_steps: Number of updates between checkpoints, at least 1.
        save_total_limit: Number of newest checkpoints that are kept, at least 1; None keeps all.
        metric_for_best_model: Name of a logged metric. The checkpoint with its best value is kept as well: one of the evaluation
            (``eval/...``) is that of the checkpoint, others are means over the updates since the checkpoint before. None keeps no
            best checkpoint.
        greater_is_better: Whether larger values of that metric are better; None means yes unless its name ends in "loss".
        load_best_model_at_end: End the run with the policy of the best checkpoint.

    Raises:
        ValueError: naming the field, its value and the accepted range.
    """

    max_steps: int = 10_000
    batch_size: int = 256
    learning_rate: float = 1e-3
    min_lr_rate: float = 0.01
    weight_decay: float = 0.01
    warmup_steps: int = 200
    max_grad_norm: float = 1.0
    ema_decay: float = 0.999
    bf16: bool | Literal["auto"] = False
    tf32: bool = False
    torch_compile: bool = False
    cuda_graphs: bool = False
    checkpoint_layers: bool | None = None
    full_determinism: bool = False
    seed: int = 42
    log_steps: int = 50
    save_steps: int = 500
    save_total_limit: int | None = 2
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    load_best_model_at_end: bool = False

    def __post_init__(self) -> None:
        """Check the range of every field."""
        check_fields(self, "max_steps batch_size log_steps save_steps save_total_limit", least=1)
        check_fields(self, "learning_rate max_grad_norm", above=0)
        check_fields(self, "weight_decay warmup_steps", least=0)
        check_fields(self, "seed", least=0, most=LAST_SEED)
        check_fields(self, "ema_decay min_lr_rate", least=0, most=1)
        check_choices(self)
        check_switch("bf16", self.bf16)
        _check_best(self)
