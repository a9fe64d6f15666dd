"""The conformance test: every law, measured on one policy."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import torch

from discrete_grpo.core.checks import check_function, check_samples
from discrete_grpo.core.drawing import PolicyError, policy_errors
from discrete_grpo.core.error_place import error_place
from discrete_grpo.core.rollout import Context, Policy, Reward, Rollout, as_module
from discrete_grpo.testing import behaviour, causes, divergence, independence, learning, probability, replay
from discrete_grpo.testing.case import Case, Change, Law, Skip, why_no_sites
from discrete_grpo.testing.interface import check_arguments, check_methods, check_returned, whole_space
from discrete_grpo.testing.learning import LAST
from discrete_grpo.testing.report import Report, Row
from discrete_grpo.training.config import GRPOConfig

__all__ = ["LAWS", "check_policy"]

LAWS: Mapping[str, Law] = MappingProxyType(
    {
        "shapes": probability.shapes,
        "contexts": behaviour.contexts,
        "probabilities": probability.probabilities,
        "probabilities bf16": probability.probabilities_bf16,
        "gaussian sites": probability.gaussian_sites,
        "units": replay.units,
        "mask": replay.masked_sites,
        "stored log-probs": replay.stored_log_probs,
        "ratio eval": replay.ratio_eval,
        "ratio train": replay.ratio_train,
        "ratio bf16": replay.ratio_bf16,
        "padding": replay.padding,
        "batch size": replay.batch_size,
        "steps": replay.steps,
        "permutation": replay.permutation,
        "replayable": replay.replayable,
        "total mass": probability.total_mass,
        "frequencies": probability.frequencies,
        "calibration": probability.calibration,
        "independence": independence.independence,
        "generator": behaviour.generator,
        "global random state": behaviour.global_random_state,
        "unchanged": behaviour.unchanged,
        "detached": behaviour.detached,
        "gradient": learning.gradient,
        "derivative": learning.derivative,
        "reinforce": learning.reinforce,
        "reference": replay.reference,
        "kl": divergence.kl_mean,
        "learning": learning.learning,
        "checkpoint": behaviour.checkpoints,
        "rollout file": behaviour.rollout_file,
    }
)
"""Every law by name, in the order of the report."""

ON_TABLES = frozenset(
    {"probabilities", "probabilities bf16", "gaussian sites", "mask", "total mass", "frequencies", "calibration", "independence"}
)
"""Laws of sites, which are skipped for a policy without sites."""

LEARNING_CONFIG = GRPOConfig(
    max_steps=400, num_generations=16, generation_batch_size=128, per_device_batch_size=128, learning_rate=5e-3
)
"""Settings of the law ``learning``."""


def _skipped(name: str, note: str) -> Row:
    return Row(name, math.nan, math.nan, "skipped", note)


def _judged(name: str, law: Law, case: Case) -> Row:
    if name in ON_TABLES and case.no_sites:
        return _skipped(name, case.no_sites)
    case.module.eval()  # a law may leave another mode behind
    try:
        found = law(case)
    except Exception as error:  # a law that raises has failed; the others are still measured
        said = " ".join(str(error).split())
        return Row(name, math.inf, math.nan, "failed", f"{type(error).__name__}: {said[:300]}{error_place(error)}")
    if isinstance(found, Skip):
        return _skipped(name, found.note)
    if found.error <= found.tolerance:
        return Row(name, found.error, found.tolerance, "passed", found.note)
    return Row(name, found.error, found.tolerance, "failed", found.note, causes.likely(name, law, case))


def _case(
    policy: Policy, contexts: Sequence[Context], space: Rollout | Callable[[], Rollout] | None, seed: int, **given: Any
) -> Case:
    """The case of a copy of ``policy`` in eval mode, with one rollout of ``contexts``; ``given`` holds the other fields."""
    check_methods(policy)
    module = copy.deepcopy(as_module(policy)).eval()
    if next(module.parameters(), None) is None:
        raise ValueError("policy: no parameters, expected at least one")
    device = next(module.parameters()).device
    tested = cast(Policy, module)
    whole = whole_space(space)
    kept = copy.deepcopy(contexts)  # so that a policy that takes columns out of those it is given is noticed
    try:
        with policy_errors("sample", kept):
            drawn = tested.sample(contexts, generator=torch.Generator(device).manual_seed(seed))
    except PolicyError as error:
        raise ValueError(str(error)) from error
    except Exception as error:  # of a library; no law can be measured
        raise ValueError(f"sample: raised {type(error).__name__}: {' '.join(str(error).split())}") from error
    check_returned(tested, drawn)
    whole = None if whole is None else whole.to(device)
    return Case(tested, kept, drawn, whole, seed=seed, no_sites=why_no_sites(tested, drawn), **given)


def check_policy(
    policy: Policy,
    contexts: Sequence[Context],
    *,
    space: Rollout | Callable[[], Rollout] | None = None,
    permute: Change | None = None,
    pad: Change | None = None,
    reward: Reward | None = None,
    trusted: Sequence[str] = (),
    samples: int = 2000,
    seed: int = 0,
    seconds: float = 5.0,
    learning: GRPOConfig = LEARNING_CONFIG,
    skip: Collection[str] = (),
) -> Report:
    """Test a policy against the laws of :data:`LAWS`, on a copy in eval mode, on the policy's device and in its dtype.

    Args:
        policy: the policy under test, which is not changed. A :class:`~discrete_grpo.core.rollout.Scorer` is tested by its
            ``score``; if it has no ``sites``, the laws on tables are skipped.
        contexts: contexts to draw from; several, and of several sizes if the policy has sizes.
        space: a rollout with every trajectory of ``contexts[0]`` exactly once (its ``logp`` and ``samples`` are not
            read). The state before the first step has no log-prob and is called the *start*; rows of one start have one
            ``group``. None skips the laws that need it.
        permute: ``(rollout, generator) -> rollout``, the same trajectories relabelled; None relabels graphs whose states are
            called ``nodes`` and ``pairs`` (or ``edges``) or are those of a policy over fields, and skips the law for all other
            policies.
        pad: ``(rollout, generator) -> rollout``, the same trajectories with more padding, or other values in it.
        reward: a reward in [0, 1] that the policy has to learn; None takes a property of the samples' text.
        trusted: further top-level packages whose classes a checkpoint may name, such as that of the policy.
        samples: number of trajectories drawn for the laws on frequencies.
        seed: seed of everything random.
        seconds: processor time that learning may take; it counts after 50 updates.
        learning: settings of the law ``learning``.
        skip: names of laws to leave out.

    Raises:
        ValueError: if an argument is out of its range, the policy lacks a method or parameters, or its methods return
            something else than the protocol says.
    """
    if isinstance(skip, str):
        raise ValueError(f"skip: {skip!r}, expected a list of names, such as [{skip!r}]")
    check_samples(trusted, "trusted", "packages")
    contexts = contexts if isinstance(contexts, Context) else list(contexts)
    if unknown := set(skip) - LAWS.keys():
        raise ValueError(f"skip: {', '.join(sorted(unknown))}, expected some of {', '.join(LAWS)}")
    for name, change in (("permute", permute), ("pad", pad)):
        if change is not None:
            check_function(name, change, "(rollout, generator)", 2)
    check_arguments(contexts, space, samples=samples, seed=seed, seconds=seconds, learning=learning)
    if learning.max_steps < LAST and "learning" not in skip:
        raise ValueError(f"learning: max_steps={learning.max_steps}, expected at least {LAST}, over which the reward is averaged")
    given = {"permute": permute, "pad": pad, "reward": reward, "trusted": trusted}
    limits = {"samples": samples, "seconds": seconds, "learning": learning}
    case = _case(policy, contexts, space, seed, **given, **limits)
    rows = (_skipped(name, "left out by the caller") if name in skip else _judged(name, law, case) for name, law in LAWS.items())
    return Report(tuple(rows))
