"""Suggests the right option for a mistyped name or one of another program, on command lines and in Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from discrete_grpo.core.checks import did_you_mean, nearest_name

__all__ = ["OTHER_NAMES", "STAND_INS", "check_keywords", "check_options", "known_options", "right_field"]

T = TypeVar("T")

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
    "per_device_batch_size": "micro_batch_size mini_batch_size minibatch_size per_device_train_batch_size",
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
    "on_update": "callbacks callback",
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
    "columns": "scaffold conditions",
    "n": "num_samples n_samples count num",
    "distinct": "unique unique_molecules",
    "stop_above": "max_score target_reward",
    "stop_after": "min_steps",
    "out": "output output_file outfile output_dir save_to",
}
"""The options of this package by the last part of their names, and the names that TRL, nanoGPT-like scripts, PPO and DDPO trainers
and REINVENT give them."""

STAND_INS = {"generation_batch_size": "batch_size", "per_device_batch_size": "batch_size", "num_generations": "n"}
"""Names of options in commands that lack the usual name."""

NO_FIELD = {
    **dict.fromkeys(
        ("gamma", "discount", "gae_lambda", "lam", "vf_coef", "value_coef", "value_loss_coef", "critic_lr", "cliprange_value"),
        "GRPO has no value function and no discount",
    ),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "grad_accum", "grad_accum_steps", "accumulation_steps"),
        "an update learns from generation_batch_size / steps_per_generation samples (in pretraining batch_size), however few "
        "of them fit into memory at once",
    ),
    **dict.fromkeys(("adam_epsilon", "adam_eps"), "Adam's epsilon is that of torch"),
    **dict.fromkeys(("logging_steps", "logging_strategy", "log_every", "log_completions"), "every update and sample is logged"),
    **dict.fromkeys(
        ("eval_steps", "eval_strategy", "eval_every"), "training is evaluated before and after, pretraining at every checkpoint"
    ),
    **dict.fromkeys(("device", "cuda", "gpu"), "a run takes the GPU that torch finds, and CUDA_VISIBLE_DEVICES chooses one"),
    **dict.fromkeys(("resume", "resume_from_checkpoint"), "a run goes on with 'discrete-grpo resume RUN'"),
    "disable_dropout": "networks are in eval mode, except in pretraining",
    "mask_truncated_completions": "texts that end at max_length count like all others",
}


MISSPELT = 0.85
"""Similarity from which a name is taken for a misspelt one of nested settings, which have many names."""

OF_SOME = {"log_steps": "logging_steps log_every", "device": "cuda gpu"}
"""Options that only some settings have, and names of :data:`NO_FIELD` that mean them there."""


def right_field(key: str, names: Sequence[str]) -> str:
    """Return a hint for an unknown option: the right one, the nearest one, the reason why there is none, or the known ones.

    >>> right_field("train.colour", ["seed", "train.steps", "train.batch"])
    'known: train.steps, train.batch'
    """
    plain = key.replace("-", "_")
    leaf = plain.rpartition(".")[2].casefold()
    known = _known_as(leaf) | {field for field, others in OF_SOME.items() if leaf in others.split()}
    found = [n for n in names if n.rpartition(".")[2] in known]
    same = [n for n in found if n.rpartition(".")[0] == plain.rpartition(".")[0]]
    if found:
        return f"did you mean {(same or found)[0]!r}?"
    if leaf in NO_FIELD:
        return f"{NO_FIELD[leaf]}, so there is no such setting"
    if near := did_you_mean(plain, names, cutoff=0.7):
        return near
    if own := [n for n in names if "." in plain and n.rpartition(".")[0] == plain.rpartition(".")[0]]:
        return f"known: {', '.join(own)}"
    return f"known: {', '.join(dict.fromkeys(n if '.' not in n else n.partition('.')[0] + '.*' for n in names))}"


def _known_as(leaf: str) -> set[str]:
    """The last parts of our options that another program calls ``leaf``, and ``leaf`` itself, where only the group is wrong."""
    ours = {field for field, others in OTHER_NAMES.items() if leaf in others.split()}
    return ours | {STAND_INS[field] for field in ours if field in STAND_INS} | {leaf}


def known_options(elsewhere: Mapping[str, str] | None = None) -> Callable[[type[T]], type[T]]:
    """Class decorator of a dataclass of settings that makes the error for an unknown argument suggest the right name.

    Args:
        elsewhere: maps names of arguments of other functions that are often given here to where they belong.

    >>> from dataclasses import dataclass
    >>> @known_options({"output_dir": "an argument of train"})
    ... @dataclass
    ... class Settings:
    ...     beta: float = 0.0
    >>> Settings(kl_coef=0.1)
    Traceback (most recent call last):
    TypeError: Settings: kl_coef: unknown option; did you mean 'beta'?
    >>> Settings(output_dir="run")
    Traceback (most recent call last):
    TypeError: Settings: output_dir: unknown option, it is an argument of train
    """

    def decorate(settings: type[T]) -> type[T]:
        init: Callable[..., None] = settings.__init__
        known = {field.name for field in fields(settings) if field.init}  # type: ignore[arg-type]

        @functools.wraps(init)
        def checked(self: T, *args: Any, **given: Any) -> None:
            for name in given:
                if name not in known:
                    right = _renamed(name, list(elsewhere or {}))
                    renamed = f"{right}, " if right != name else ""
                    told = (
                        f"unknown option, it is {renamed}{elsewhere[right]}" if elsewhere and right else _unknown(name, type(self))
                    )
                    raise TypeError(f"{type(self).__name__}: {name}: {told}")
            init(self, *args, **given)

        settings.__init__ = checked  # type: ignore[assignment, method-assign]
        return settings

    return decorate


def check_options(given: Iterable[str], settings: type, also: Iterable[str] = ()) -> None:
    """Raise ``ValueError`` for a name that is no field of a dataclass of settings; the right or the nearest one is given.

    For a field of nested settings, or another program's name of one, the error names the settings that it belongs to.

    Args:
        given: the names.
        settings: the dataclass.
        also: names of further arguments, which a mistyped name may stand for.
    """
    known = {field.name for field in fields(settings)}
    for name in given:
        if name not in known:
            raise ValueError(f"{name}: {_unknown(name, settings, also)}")


def _unknown(name: str, settings: type, also: Iterable[str] = ()) -> str:
    """The text of an error about a name that is no field of a dataclass of settings."""
    known = [*(field.name for field in fields(settings)), *also]
    inner: dict[str, tuple[str, str]] = {}
    for field in fields(settings):
        kind = field.default_factory
        if isinstance(kind, type) and is_dataclass(kind):
            inner |= {part.name: (field.name, kind.__name__) for part in fields(kind) if part.name not in known}
    return _told(name, known, inner)


def check_keywords(given: Iterable[str], known: Sequence[str], groups: Mapping[str, type]) -> None:
    """Raise ``ValueError`` for a name that is no argument of a function; the right or the nearest one is given.

    Args:
        given: the names.
        known: the arguments of the function.
        groups: argument -> the dataclass of settings that it takes; a field of it is told to belong there.
    """
    inner = {part.name: (name, kind.__name__) for name, kind in groups.items() for part in fields(kind) if part.name not in known}
    for name in given:
        raise ValueError(f"{name}: {_told(name, known, inner)}")


def _told(name: str, known: Sequence[str], inner: Mapping[str, tuple[str, str]]) -> str:
    """The text of an error about an unknown name; ``inner`` has the settings within each setting: field -> its place and class."""
    near = None if name in NO_FIELD else nearest_name(name, [*known, *inner], 0.7)
    if near is not None and near in inner and nearest_name(name, [near], MISSPELT) is None:
        near = nearest_name(name, known, 0.7)
    right = _renamed(name, known) or _renamed(name, list(inner)) or near
    if right is not None and right in inner:
        field_name, class_name = inner[right]
        return f"a field of {class_name}, expected it as {field_name}={class_name}({right}=...)"
    return f"unknown option; {right_field(name, known)}"


def _renamed(name: str, known: Sequence[str]) -> str | None:
    """The known option that is meant by a name of it or of another program; None for all other names."""
    meant = _known_as(name.casefold())
    return next((other for other in known if other in meant), None)
