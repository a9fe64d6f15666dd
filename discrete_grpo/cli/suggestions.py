"""Hints for mistyped names: options under the names of other programs, modules and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from discrete_grpo.core.checks import did_you_mean

__all__ = ["absent_attribute", "absent_module", "right_field"]

OTHER_NAMES: dict[str, str] = {
    "learning_rate": "lr base_lr actor_lr policy_lr learn_rate",
    "num_generations": "group_size num_samples n_samples samples_per_prompt n_samples_per_prompt num_samples_per_prompt "
    "num_return_sequences num_rollouts n_rollouts rollouts_per_prompt n_generations num_image_per_prompt g",
    "beta": "kl_coef kl_coeff kl_beta kl_weight init_kl_coef kl_loss_coef kl_penalty kl_lambda kl ref_kl_coef",
    "kl_estimator": "kl_type kl_loss_type kl_penalty_type",
    "epsilon": "clip_range cliprange clip_eps clip_ratio clip_epsilon eps_clip clip_param ppo_clip ratio_clip clip eps "
    "epsilon_low clip_ratio_low",
    "epsilon_high": "clip_ratio_high clip_range_high clip_eps_high eps_high",
    "scale_rewards": "normalize_advantages normalise_advantages normalize_advantage norm_adv norm_advantages whiten_advantages "
    "whiten_rewards advantage_normalization normalize_rewards",
    "advantage_clip": "adv_clip_max adv_clip clip_advantages",
    "report_to": "wandb_log use_wandb wandb log_wandb wandb_project log_with logger tracker "
    "with_tracking tensorboard use_tensorboard",
    "generation_batch_size": "batch_size train_batch_size sample_batch_size rollout_batch_size",
    "per_device_batch_size": "gradient_accumulation_steps grad_accum grad_accum_steps accumulation_steps micro_batch_size "
    "mini_batch_size minibatch_size per_device_train_batch_size",
    "max_steps": "n_epochs epochs num_epochs num_train_epochs n_steps num_updates total_steps train_steps num_train_steps "
    "max_iters num_iters n_iter n_itr iterations",
    "num_iterations": "ppo_epochs num_ppo_epochs num_inner_epochs inner_epochs update_epochs k_epochs mu",
    "max_grad_norm": "grad_clip clip_grad clip_grad_norm gradient_clip_val gradient_clip grad_clip_norm max_norm",
    "entropy_coef": "ent_coef entropy_coeff entropy_weight entropy_bonus",
    "sync_ref_model": "sync_ref update_ref_model",
    "ref_model_sync_steps": "sync_ref_every ref_update_steps ref_update_freq ref_update_interval",
    "weight_decay": "wd adam_weight_decay",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "lr_scheduler_type": "scheduler lr_scheduler lr_schedule decay_lr",
    "warmup_steps": "warmup lr_warmup_steps num_warmup_steps warmup_iters warmup_ratio",
    "ema_decay": "ema use_ema ema_rate",
    "bf16": "fp16 mixed_precision precision dtype amp use_amp",
    "save_steps": "save_freq save_interval save_every checkpoint_every checkpoint_interval",
    "save_total_limit": "num_checkpoint_limit max_checkpoints",
    "evaluation_samples": "eval_samples num_eval_samples n_eval eval_size",
    "seed": "random_seed manual_seed rng_seed",
    "output_dir": "out_dir outdir save_dir log_dir logdir results_dir run_name",
    "policy": "model model_name model_path model_name_or_path checkpoint ckpt ckpt_path agent prior init_from",
    "reward": "rewards reward_fn reward_func reward_funcs reward_function scoring_function oracle objective",
    "num_steps": "diffusion_steps sampling_steps num_inference_steps timesteps num_timesteps",
    "guidance": "guidance_scale cfg_scale cfg guidance_weight",
    "temperature": "temp sampling_temperature",
    "max_oracle_calls": "oracle_budget budget max_oracle n_oracle max_calls",
    "max_length": "max_len max_seq_len max_new_tokens max_completion_length max_prompt_length",
    "checkpoint_layers": "gradient_checkpointing",
    "data": "dataset dataset_path data_path dataset_name train_file train_data smiles_file smi_path",
    "smiles_column": "smiles_col smiles_key",
    "layers": "n_layers n_layer num_layers depth num_hidden_layers",
    "heads": "n_head n_heads num_heads nhead",
    "width": "n_embd hidden_size d_model embed_dim hidden_dim",
    "r": "lora_r lora_rank rank",
    "n": "num_samples n_samples count num",
    "out": "output output_file outfile output_dir save_to",
}
"""The options of this package by the last part of their names, and the names that TRL, nanoGPT-like scripts, PPO and DDPO trainers
and REINVENT give them."""

STAND_INS = {"generation_batch_size": "batch_size", "per_device_batch_size": "batch_size", "num_generations": "n"}
"""The name of an option in a command that has none of the usual name."""

NO_FIELD = {
    **dict.fromkeys(
        ("gamma", "discount", "gae_lambda", "lam", "vf_coef", "value_coef", "value_loss_coef", "critic_lr", "cliprange_value"),
        "GRPO has no value function and no discount",
    ),
    **dict.fromkeys(("adam_epsilon", "adam_eps"), "Adam's epsilon is that of torch"),
    **dict.fromkeys(("logging_steps", "logging_strategy", "log_every", "log_completions"), "every update and sample is logged"),
    **dict.fromkeys(("eval_steps", "eval_strategy", "eval_every"), "a run is evaluated before and after training"),
    "disable_dropout": "networks are always in eval mode",
    "mask_truncated_completions": "texts that end at max_length count like all others",
}


def right_field(key: str, names: Sequence[str]) -> str:
    """A hint for an unknown option: the right one, the nearest one, why there is none, or all that are known."""
    plain = key.replace("-", "_")
    leaf = plain.rpartition(".")[2].casefold()
    found = [n for n in names if n.rpartition(".")[2] in _known_as(leaf)]
    same = [n for n in found if n.rpartition(".")[0] == plain.rpartition(".")[0]]
    if found:
        return f"did you mean {(same or found)[0]!r}?"
    if leaf in NO_FIELD:
        return f"{NO_FIELD[leaf]}, so there is no such setting"
    return did_you_mean(plain, names, cutoff=0.7) or f"known: {', '.join(names)}"


def _known_as(leaf: str) -> set[str]:
    """The last parts of our options that another program calls ``leaf``, and ``leaf`` itself, where only the group is wrong."""
    ours = {field for field, others in OTHER_NAMES.items() if leaf in others.split()}
    return ours | {STAND_INS[field] for field in ours if field in STAND_INS} | {leaf}


def absent_module(name: str, folder: Path) -> str:
    """The continuation of an error about a module that does not exist: where it was looked for, and a near name."""
    parent, _, leaf = name.rpartition(".")
    place = folder.joinpath(*parent.split(".")) if parent else folder
    found = []
    if place.is_dir():
        found = [p.stem for p in place.iterdir() if p.suffix == ".py" or (p.is_dir() and p.name.isidentifier())]
    return f"; it is neither installed nor in {place}; {did_you_mean(leaf, found)}".rstrip("; ")


def absent_attribute(holder: ModuleType | type, name: str) -> str:
    """The text of an error about a name that a module or class does not have: its file, and a near name."""
    file = getattr(holder, "__file__", None)
    hint = did_you_mean(name, [other for other in vars(holder) if not other.startswith("_")]) if file else ""
    kind = "class" if isinstance(holder, type) else "module"
    text = f"{kind} {holder.__name__!r} has no attribute {name!r}" + (f" ({file})" if file else "")
    return f"{text}; {hint}".rstrip("; ")
