"""Checks that the policy, the rewards, the conditions and the settings of a trainer are compatible."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.categorical import SiteKind, Sites
from discrete_grpo.core.checks import check_function, plain_number
from discrete_grpo.core.description import innermost
from discrete_grpo.core.drawing import policy_errors
from discrete_grpo.core.own_surrogate import SurrogateFunc, own_surrogate
from discrete_grpo.core.precision import place
from discrete_grpo.core.processes import started_processes
from discrete_grpo.core.reward_arguments import checked_weights, remembers, reward_names
from discrete_grpo.core.rollout import Policy, Reward, Rollout, as_module, is_scorer
from discrete_grpo.core.scoring import shown_value
from discrete_grpo.core.unregistered import check_registered
from discrete_grpo.runs.serialization import check_savable, describe
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.generation_advantages import AdvantageFunc, own_advantages
from discrete_grpo.training.lora import LoraOptions
from discrete_grpo.training.sampler import check_shards, num_shards

__all__ = [
    "check_adapters",
    "check_condition",
    "check_conditions",
    "check_given",
    "check_observers",
    "check_own_functions",
    "check_scorer",
    "check_tables",
    "checked_shards",
    "exact_forward",
]

ADVANTAGE_FIELDS = ("scale_rewards", "baseline", "advantage_clip")
FIRST_STEPS = 4
"""Number of sampling steps whose probability tables are checked before the first update of a run."""
MAX_OFF = 0.05
"""Largest accepted difference between the sum of a table and 1; tables in bfloat16 stay within it."""
WIDE = (torch.float32, torch.float64)
"""Types of log-probs whose ratios are exact enough; 16 bits leave an error of the size of the clip range."""
SURROGATE_FIELDS = ("epsilon", "epsilon_high", "delta", "sapo_temperature_pos", "sapo_temperature_neg")


def checked_shards(config: GRPOConfig, processes: int, stored: int | None = None) -> int:
    """Return the number of shards of all processes; ``stored`` is that of the run to resume.

    Raises:
        ValueError: if it is not that of the run to resume, if processes or groups cannot be distributed evenly over it, or for
            a setting of a new run that has no effect.
    """
    if stored is not None and config.generation_shards not in (None, stored):
        raise ValueError(f"generation_shards: {config.generation_shards}, expected {stored} as in the run to resume")
    count = num_shards(config, processes, stored)
    check_shards(count, config, processes)
    if stored is None:  # earlier versions accepted these, and their runs go on
        _check_effects(config, config.num_groups // count)
    return count


def _check_effects(config: GRPOConfig, groups: int) -> None:
    """Raise ``ValueError`` for a setting that has no effect in a run with so many groups per shard."""
    share = config.refine_fraction
    if share > 0 and not round(share * groups):
        raise ValueError(f"refine_fraction: {share}, expected 0 or at least one of the {groups} groups of each shard")
    if config.multi_objective_aggregation == "normalize_then_sum" and config.scale_rewards != "group":
        wanted = "expected group with multi_objective_aggregation normalize_then_sum, which standardises over the batch"
        raise ValueError(f"scale_rewards: {config.scale_rewards!r}, {wanted}")


def check_adapters(options: LoraOptions) -> None:
    """Raise ``ValueError`` for settings of adapters of a new run that has none, and that would train all weights in their place."""
    defaults = LoraOptions()
    for name in ("lora_alpha", "target_modules"):
        value, left = getattr(options, name), getattr(defaults, name)
        if options.r == 0 and value != left:
            raise ValueError(f"lora.{name}: {value!r}, expected {left} without adapters (lora.r is 0, which trains all weights)")


def check_given(
    policy: Any,
    rewards: Sequence[Reward],
    config: GRPOConfig,
    columns: Sequence[Mapping[str, Any]] | None,
    processes: int,
    *,
    stores: bool,
) -> None:
    """Check the rewards and conditions of a run with these settings in ``processes`` processes.

    Args:
        policy: the policy, which may need conditions.
        rewards: the rewards.
        config: the settings.
        columns: the conditions.
        processes: number of processes.
        stores: whether the run writes checkpoints.

    Raises:
        ValueError: naming the argument.
        TypeError: for a policy with weights that are not trained, or that a checkpoint would not give back.
    """
    if not isinstance(config, GRPOConfig):
        raise ValueError(f"config: {config!r}, expected a GRPOConfig")
    if rewards and all(isinstance(reward, str) and len(reward) == 1 for reward in rewards):  # a string given as a list
        raise ValueError(f"reward_funcs: {''.join(map(str, rewards))!r}, expected a function reward(samples, **columns) or several")
    if not rewards:
        raise ValueError("reward_funcs: none given, expected at least one")
    for reward in rewards:
        if not callable(reward):
            raise ValueError(f"reward_funcs: {reward!r}, expected a function reward(samples, **columns) or several")
    checked_weights(config.reward_weights, len(rewards))
    if config.importance_sampling_level == "sequence" and config.timestep_chunk not in (None, "auto"):
        raise ValueError(f"timestep_chunk: {config.timestep_chunk}, expected none with importance_sampling_level sequence")
    check_conditions(columns)
    _check_followed(policy, columns)
    _check_weights(policy, stores)
    _check_storable(columns if stores else None, config)
    for name, reward in zip(reward_names(rewards), rewards, strict=True):
        if processes > 1 and remembers(reward):
            raise ValueError(f"reward {name}: remembers samples, expected one that does not with several processes")


def _check_weights(policy: Any, stores: bool) -> None:
    """Check that the weights of a policy can be trained, and stored where checkpoints are written."""
    module = as_module(policy)
    if any(p.dtype == torch.float16 and p.requires_grad for p in module.parameters()):  # Adam's epsilon is 0 in float16
        raise ValueError("policy: it has weights in float16 to train, expected float32 (policy.float()); bf16=True saves time then")
    (check_savable if stores else check_registered)("policy", module)


def _check_followed(policy: Any, columns: Sequence[Mapping[str, Any]] | None) -> None:
    """Check that the policy can follow each condition, or draw without one."""
    for k, condition in enumerate([{}] if columns is None else columns):
        try:
            check_condition(policy, condition)
        except ValueError as error:
            raise ValueError(f"columns: {'None' if columns is None else f'entry {k}'}: {error}") from error


def check_condition(policy: Any, condition: Mapping[str, Any]) -> None:
    """Check that a policy can follow a condition, and that it has the properties that the policy was always trained with.

    Raises:
        ValueError: naming the column.
    """
    if (check := getattr(policy, "check_condition", None)) is not None:
        check(condition)
    inner = innermost(policy)
    if getattr(inner, "condition_dropout", None) == 0:
        for name in [one.name for one in getattr(inner, "properties", ())]:
            if condition.get(name) is None:
                raise ValueError(f"{name}: None, expected a number, as the policy was trained with one always")


def _check_storable(columns: Sequence[Mapping[str, Any]] | None, config: GRPOConfig) -> None:
    """Check conditions that checkpoints hold: those between two updates of a generation, and those of replayed samples.

    Raises:
        ValueError: naming the first entry with a value that cannot be written.
    """
    if config.num_iterations * config.steps_per_generation == 1 and not config.replay_samples:
        return
    for k, row in enumerate(columns or ()):
        for name, value in row.items():
            try:
                describe(plain_number(value))
            except TypeError:
                kind = type(value).__name__
                wanted = "numbers, texts, lists and mappings of them, or dataclasses, which checkpoints can hold"
                raise ValueError(f"columns: entry {k}: {name!r} is of type {kind}, expected {wanted}") from None


TRACKS = ("start", "log", "log_samples", "close")
"""Methods of a tracker."""


def check_observers(sample_metrics: object, ledger: object, tracker: object) -> None:
    """Check what is called while a run is under way, each None or of its interface.

    Raises:
        ValueError: naming the argument.
    """
    if sample_metrics is not None:
        check_function("sample_metrics", sample_metrics, "the samples of a generation", 1)
    if ledger is not None and not callable(getattr(ledger, "score", None)):
        raise ValueError(f"ledger: {ledger!r}, expected a ledger of calls, such as Ledger(max_oracle_calls=1000), or None")
    if getattr(ledger, "in_memory", False) and (count := started_processes()) > 1:
        raise ValueError(f"ledger: in memory, expected one with a file, which {count} processes share")
    if tracker is not None and not all(callable(getattr(tracker, name, None)) for name in TRACKS):
        raise ValueError(f"tracker: {tracker!r}, expected an object with the methods {', '.join(TRACKS)}, or None")


def check_conditions(columns: object) -> None:
    """Check that conditions are None or a list of at least one mapping.

    Raises:
        ValueError: naming the first entry that is not a mapping.
    """
    if columns is None:
        return
    if isinstance(columns, str | Mapping) or not isinstance(columns, Sequence):
        raise ValueError(f"columns: {shown_value(columns)}, expected a list of mappings, such as [{{'label': 3}}]")
    if not columns:
        raise ValueError("columns: an empty list, expected at least one condition or None")
    for k, condition in enumerate(columns):
        if not isinstance(condition, Mapping):
            raise ValueError(f"columns: entry {k} is {shown_value(condition)}, expected a mapping, such as {{'label': 3}}")
        if odd := [name for name in condition if not isinstance(name, str)]:
            raise ValueError(f"columns: entry {k} has the name {odd[0]!r}, expected texts as names")
        if "samples" in condition:
            raise ValueError(f"columns: entry {k} has 'samples', expected another name: rewards take samples under it")


def check_scorer(policy: Policy, config: GRPOConfig) -> None:
    """Check that a policy which computes its own scores is not used with options that need probability tables.

    Raises:
        ValueError: naming the option.
    """
    if not is_scorer(policy):
        return
    said = f"with a policy that gives its scores itself ({type(policy).__name__})"
    if config.use_adaptive_entropy:
        raise ValueError(f"use_adaptive_entropy: True, expected False {said}")
    if config.entropy_coef > 0:
        raise ValueError(f"entropy_coef: {config.entropy_coef}, expected 0 {said}")
    if config.replay_samples > 0:
        raise ValueError(f"replay_samples: {config.replay_samples}, expected 0 {said}")
    penalised = config.beta > 0 and config.kl_in != "reward"
    if penalised and exact_forward(config) and not getattr(policy, "forward_kl_gradient", False):
        raise ValueError(f"kl_direction: 'forward', expected reverse, or an estimate {said} without a gradient of kl_forward")


def check_tables(policy: Policy, rollout: Rollout, steps: Int[Tensor, "batch step"]) -> None:
    """Check that the policy returns normalised log-probs with a gradient for exactly the steps asked for, on one trajectory.

    For a policy that computes its own scores, these are checked. :func:`discrete_grpo.testing.check_policy` has many more checks.

    Raises:
        PolicyError: if a user's own policy raises.
        ValueError: naming the policy and the sum of a table, or the shape of what the policy returned.
    """
    if not steps.numel():
        return
    first = torch.zeros(1, dtype=torch.long)
    one = replace(rollout.index(place(first, steps.device), first), largest=rollout.largest)
    few = steps[:1, : max(1, min(FIRST_STEPS, rollout.num_steps - 1))]  # not all, to detect a policy that ignores them
    name = type(policy).__name__
    if is_scorer(policy):
        with torch.enable_grad(), policy_errors(f"policy {name}.score"):
            logp = policy.score(one, few).logp
        if logp.ndim != 3 or logp.shape[:2] != few.shape:
            told = f"policy: {name}.score returned logp of shape {tuple(logp.shape)}"
            raise ValueError(f"{told}, expected (1, {few.shape[1]}, U): of the steps asked for")
        _check_gradient(logp, f"{name}.score")
        return
    with torch.enable_grad(), policy_errors(f"policy {name}.sites"):
        sites = policy.sites(one, few)
    _check_sites(sites, f"{name}.sites", tuple(few.shape))
    tables = [part.log_probs for part in sites if isinstance(part, Sites)]
    if tables and len(tables) == len(sites) and not any(table.requires_grad for table in tables):
        _check_gradient(tables[0], f"{name}.sites")
    _check_sums([part for part in sites if isinstance(part, Sites)], name)


def _check_sites(sites: Any, name: str, shape: tuple[int, ...]) -> None:
    """Check that the kinds of sites are of these trajectories and steps, and that the tables have enough digits for ratios."""
    if not isinstance(sites, list | tuple):
        raise ValueError(f"policy: {name} returned a {type(sites).__name__}, expected a list with a Sites for each kind of site")
    for part in sites:
        if not isinstance(part, SiteKind):
            told = f"policy: {name} returned a {type(sites).__name__} with a {type(part).__name__}"
            raise ValueError(f"{told}, expected a list with a Sites for each kind of site")
        if part.shape[:2] != shape:
            told = f"policy: {name} returned tables of {tuple(part.shape[:2])} trajectories and steps"
            raise ValueError(f"{told}, expected {shape}: of the steps asked for")
        if isinstance(part, Sites) and part.log_probs.dtype not in WIDE:
            told = f"policy: {name} returned log_probs of type {part.log_probs.dtype}, which is too coarse for ratios"
            warnings.warn(f"{told}; convert the logits to float32 before log_softmax", RuntimeWarning, stacklevel=2)


def _check_gradient(logp: Tensor, name: str) -> None:
    if not logp.requires_grad:
        raise ValueError(f"policy: the log-probs of {name} have no gradient, expected them to depend on weights that are trained")


@torch.no_grad()
def _check_sums(parts: Sequence[Sites], name: str) -> None:
    totals = [part.log_probs.float().logsumexp(-1).exp().where(part.mask, 1.0).flatten() for part in parts]
    if not any(total.numel() for total in totals):
        return
    found = torch.cat(totals)
    worst = float(found[(found - 1).abs().nan_to_num(torch.inf).argmax(0, keepdim=True)])
    if not abs(worst - 1) <= MAX_OFF:
        raise ValueError(
            f"policy: a table of {name}.sites has probabilities with the sum {worst:.4g}, "
            "expected 1: log_probs are normalised (log_softmax over the last dimension)"
        )


def exact_forward(config: GRPOConfig) -> bool:
    """Whether the KL of the loss is the exact KL(π_ref ‖ π_θ)."""
    return (config.kl_estimator, config.kl_direction) == ("exact", "forward")


def check_own_functions(
    advantage_func: AdvantageFunc | None, surrogate_func: SurrogateFunc | None, config: GRPOConfig, rewards: int
) -> None:
    """Check custom functions on a small example, and that no setting is given which they replace.

    Args:
        advantage_func: function that computes the advantages; None follows the settings.
        surrogate_func: function that computes the surrogate; None follows the settings.
        config: settings.
        rewards: number of rewards.

    Raises:
        ValueError: naming the function or the setting.
    """
    for name, function in (("advantage_func", advantage_func), ("surrogate_func", surrogate_func)):
        if function is not None and not callable(function):
            raise ValueError(f"{name}: {function!r}, expected a function")
    if advantage_func is not None:
        _check_defaults(config, ADVANTAGE_FIELDS, "advantage_func")
        if config.beta > 0 and config.kl_in != "loss":
            raise ValueError(f"kl_in: {config.kl_in!r}, expected 'loss' with advantage_func, which sees rewards alone")
        rows = 2 * config.num_generations
        example = torch.arange(float(rows * rewards), dtype=torch.float64).reshape(rows, rewards)
        with _named("advantage_func", f"on {rows} rows in groups of {config.num_generations}"):
            own_advantages(advantage_func, example, torch.arange(rows) // config.num_generations)
    if surrogate_func is not None:
        _check_defaults(config, SURROGATE_FIELDS, "surrogate_func")
        if config.loss_type in ("cispo", "sapo"):
            raise ValueError(f"loss_type: {config.loss_type!r}, expected grpo, dapo or dr_grpo with surrogate_func")
        with _named("surrogate_func", "on a ratio of shape (2, 3, 4)"):
            _check_surrogate(surrogate_func)


@contextmanager
def _named(function: str, example: str) -> Iterator[None]:
    """Turn an error that a custom function raises inside the block into a ValueError that names the function and the example."""
    try:
        yield
    except Exception as error:
        if str(error).startswith(f"{function}: "):
            raise
        raise ValueError(f"{function}: raised {type(error).__name__} {example}: {error}") from error


def _check_defaults(config: GRPOConfig, names: tuple[str, ...], function: str) -> None:
    usual = {field.name: field.default for field in fields(config)}
    for name in names:
        if (value := getattr(config, name)) != usual[name]:
            raise ValueError(f"{name}: {value!r}, expected none with {function}, which takes its place")


def _check_surrogate(surrogate_func: SurrogateFunc) -> None:
    with torch.enable_grad():
        log_prob = torch.full((2, 3, 4), -1.0, requires_grad=True)
        ratio = (log_prob - log_prob.detach()).exp()
        found = own_surrogate(surrogate_func, log_prob, ratio, torch.tensor([1.0, -1.0])[:, None, None])
    if not found.requires_grad:
        raise ValueError("surrogate_func: returned a tensor without a gradient, expected one that depends on log_prob or ratio")
    if not bool(found.isfinite().all()):
        raise ValueError(
            "surrogate_func: returned NaN or infinity for log_prob -1, ratio 1, advantages ±1, expected finite numbers"
        )
