"""What a user may have meant: fields by the names that other programs give them, and modules and rewards by near names."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["nearest", "reward_hint", "right_field"]

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
    "max_length": "max_len max_seq_len max_new_tokens max_completion_length",
    "data": "dataset dataset_path data_path dataset_name train_file train_data smiles_file smi_path",
    "smiles_column": "smiles_col smiles_key",
    "layers": "n_layers n_layer num_layers depth num_hidden_layers",
    "heads": "n_head n_heads num_heads nhead",
    "width": "n_embd hidden_size d_model embed_dim hidden_dim",
    "r": "lora_r lora_rank rank",
    "n": "num_samples n_samples count num",
    "out": "output output_file outfile",
}
"""Our fields by their last part, and what TRL, nanoGPT-like scripts, PPO and DDPO trainers and REINVENT call them."""

STAND_INS = {"generation_batch_size": "batch_size", "per_device_batch_size": "batch_size", "num_generations": "n"}
"""What a field is called where a command has none of that name."""

NO_FIELD = dict.fromkeys(
    ("gamma", "discount", "gae_lambda", "lam", "vf_coef", "value_coef", "value_loss_coef", "critic_lr", "cliprange_value"),
    "GRPO has no value function and no discount",
)


def right_field(key: str, names: Sequence[str]) -> str:
    """What to say of an unknown field: the right one, the nearest, why there is none, or all that are known."""
    plain = key.replace("-", "_")
    leaf = plain.rpartition(".")[2].casefold()
    found = [n for n in names if n.rpartition(".")[2] in _known_as(leaf)]
    same = [n for n in found if n.rpartition(".")[0] == plain.rpartition(".")[0]]
    if found:
        return f"did you mean {(same or found)[0]!r}?"
    if leaf in NO_FIELD:
        return f"{NO_FIELD[leaf]}, so there is no such setting"
    near = difflib.get_close_matches(plain, names, 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"


def _known_as(leaf: str) -> set[str]:
    """The last parts of our fields that another program calls ``leaf``; itself, where only its group is wrong."""
    ours = {field for field, others in OTHER_NAMES.items() if leaf in others.split()}
    return ours | {STAND_INS[field] for field in ours if field in STAND_INS} | {leaf}


def nearest(name: str, known: Iterable[str]) -> str:
    """``"did you mean ...? "`` with the nearest of some names, whatever its case; empty where none is near."""
    folded = {k.casefold(): k for k in known}
    near = difflib.get_close_matches(name.casefold(), folded, 1)
    return f"did you mean {folded[near[0]]!r}? " if near else ""


def reward_hint(reason: str, folder: Path) -> str:
    """What to add to the reason why a reward cannot be imported: where it was looked for, and a near name; maybe nothing."""
    missing = re.search(r"No module named '([\w.]+)'", reason)
    if missing:
        parent, _, leaf = missing[1].rpartition(".")
        place = folder.joinpath(*parent.split(".")) if parent else folder
        found = (
            [p.stem for p in place.iterdir() if p.suffix == ".py" or (p.is_dir() and p.name.isidentifier())]
            if place.is_dir()
            else []
        )
        return f"; it is neither installed nor in {place}; {nearest(leaf, found)}".rstrip("; ")
    absent = re.search(r"module '([\w.]+)' has no attribute '(\w+)'", reason)
    if absent and absent[1] in sys.modules:
        module = sys.modules[absent[1]]
        hint = nearest(absent[2], [name for name in vars(module) if not name.startswith("_")])
        return f" ({module.__file__}); {hint}".rstrip("; ") if getattr(module, "__file__", None) else ""
    return ""
