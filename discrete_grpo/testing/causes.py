"""Finds the likely cause of a broken law by experiments: a cause is reported if it is observed, or if the law holds without it."""

from __future__ import annotations

import copy
import inspect
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from discrete_grpo.core.rollout import is_scorer
from discrete_grpo.core.unregistered import unregistered
from discrete_grpo.domains.global_random import seeded_everywhere
from discrete_grpo.testing.behaviour import loaded_again
from discrete_grpo.testing.case import Case, Law, Skip, same

__all__ = ["likely"]

SCORING_LAWS = ("stored log-probs", "ratio eval", "ratio train", "ratio bf16", "padding", "batch size", "steps", "permutation")
LEARNING_LAWS = ("gradient", "reinforce", "reference", "checkpoint")
HALF_PRECISION = (torch.bfloat16, torch.float16)
UNNORMALISED = 1e-2
"""Deviation of a sum of probabilities from 1 that rounding cannot explain."""
MIN_DISTINCT_VALUES = 8
"""Smallest number of distinct values from which the precision of a table can be inferred."""


def likely(name: str, law: Law, case: Case) -> str:
    """Return the likely cause of the failure of the law ``name``; empty if no experiment finds one."""
    for names, diagnosis in DIAGNOSES:
        if name in names:
            try:
                found = diagnosis(name, law, case)
            except Exception:  # a failed experiment gives no information
                continue
            if found:
                return found
    return ""


# -- experiments


def _twin(case: Case) -> Case:
    return replace(case, policy=copy.deepcopy(case.policy))


def _redrawn(case: Case) -> Case:
    """Return the case with a new rollout of its current policy."""
    case.module.eval()
    return replace(case, rollout=case.policy.sample(case.contexts, generator=case.generator()))


def _holds(law: Law, case: Case, under: Callable[[], AbstractContextManager[Any]] = nullcontext) -> bool:
    """Return whether the law holds for a changed copy of the policy, sampled and scored in the context ``under()``."""
    with under():
        found = law(_redrawn(case))
    return not isinstance(found, Skip) and found.error <= found.tolerance


def _names(case: Case, kinds: type | tuple[type, ...], where: Callable[[Any], bool] = lambda module: True) -> list[str]:
    """Names of the modules of some kinds."""
    return [name or "the policy itself" for name, m in case.module.named_modules() if isinstance(m, kinds) and where(m)]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# -- 16 bits


def _sixteen_bits(name: str, law: Law, case: Case) -> str:
    """Seen: the tables, or the scores, are of a 16-bit dtype, or have no more digits than one."""
    with torch.autocast(case.device.type, torch.bfloat16, enabled=name == "ratio bf16"), torch.no_grad():
        tables = [case.scores(case.rollout).logp] if case.no_sites else [s.log_probs for s in case.categoricals(case.rollout)]
    advice = "cast the logits to float32 before they are normalised"
    for table in tables:
        if table.dtype in HALF_PRECISION:
            return f"log-probabilities are {table.dtype}: {advice}"
        values = table[table.isfinite()]
        for half in HALF_PRECISION:
            if torch.equal(values.to(half).to(values.dtype), values) and len(values.unique()) >= MIN_DISTINCT_VALUES:
                return f"log-probabilities are {table.dtype} but have the digits of {half}: {advice}"
    return ""


# -- torch's fast path


@contextmanager
def _slow_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _fast_path(name: str, law: Law, case: Case) -> str:
    """Removed: the other kernel that nn.TransformerEncoder and its parts take in eval mode without gradient."""
    kinds = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
    found = _names(case, kinds)
    if not found or not torch.backends.mha.get_fastpath_enabled() or not _holds(law, _twin(case), _slow_path):
        return ""
    return (
        f"torch's inference fast path: {type(case.module.get_submodule(found[0])).__name__} ({found[0]}) takes another kernel in"
        " eval mode without gradient, so that old and new log-probs differ; call torch.backends.mha.set_fastpath_enabled(False)"
    )


# -- dropout


class _Dropouts(TorchFunctionMode):
    """Function mode that replaces every dropout by the identity and counts the active ones."""

    def __init__(self) -> None:
        super().__init__()
        self.active = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Call ``func`` unless it is a dropout."""
        given = dict(kwargs or {})
        if "dropout" not in getattr(func, "__name__", ""):
            return func(*args, **given)
        if inspect.isfunction(func):
            bound = inspect.signature(func).bind(*args, **given)
            bound.apply_defaults()
            named = bound.arguments
            self.active += bool(named.get("training", True) and named.get("p", 1) > 0)
            return named["input"]
        self.active += 1
        return args[0] if args else given["input"]


def _drops(module: Any) -> bool:
    """Return whether a module has a positive dropout rate."""
    return float(module.p if isinstance(module, _DropoutNd) else module.dropout) > 0


def _dropout(name: str, law: Law, case: Case) -> str:
    """Removed: every dropout, of modules and of functions."""
    kinds = (_DropoutNd, nn.MultiheadAttention, nn.RNNBase)
    training = name == "ratio train"
    found = _names(case, kinds, lambda module: _drops(module) and (training or module.training))
    other = _twin(case)
    for module in other.module.modules():
        if isinstance(module, kinds):
            setattr(module, "p" if isinstance(module, _DropoutNd) else "dropout", 0.0)
    dropouts = _Dropouts()
    holds = _holds(law, other, lambda: dropouts)
    if not holds or not (found or dropouts.active):
        return ""
    where = _listed(found) if found else "torch.nn.functional.dropout, which drops unless training=False is given"
    if not training:
        return f"dropout is active in eval mode ({where})"
    return f"dropout is active in train mode ({where}); the trainer draws and scores in eval mode, so you may skip this law"


# -- batch normalisation


def _batch_norm(name: str, law: Law, case: Case) -> str:
    """Removed: statistics of the batch, by those that were stored (0 and 1 where none were)."""
    found = _names(case, _NormBase, lambda module: module.running_mean is None or module.training or name == "ratio train")
    found = [n for n in found if "Batch" in type(_module(case, n)).__name__]
    if not found:
        return ""
    other = _twin(case)
    for n in found:
        _freeze(cast(_NormBase, _module(other, n)))
    if not _holds(law, other):
        return ""
    return f"batch normalisation takes the statistics of the batch ({_listed(found)}): a row's log-probs depend on the other rows"


def _module(case: Case, name: str) -> nn.Module:
    return case.module if name == "the policy itself" else case.module.get_submodule(name)


def _freeze(norm: _NormBase) -> None:
    if norm.running_mean is None:
        weight = norm.weight if norm.weight is not None else torch.empty(())
        norm.register_buffer("running_mean", weight.new_zeros(norm.num_features).detach())
        norm.register_buffer("running_var", weight.new_ones(norm.num_features).detach())
        norm.track_running_stats = True
    norm.training = False
    object.__setattr__(norm, "train", lambda mode=True: norm)


# -- randomness


class _Draws(TorchDispatchMode):
    """Dispatch mode that records the random operations without a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Call ``func``, and record its name if it draws from the global state."""
        given = kwargs or {}
        given_one = any(isinstance(x, torch.Generator) for x in (*args, *given.values()))
        if torch.Tag.nondeterministic_seeded in func.tags and not given_one and not _drops_nothing(func, args, given):
            self.names[func.name().split(".")[0].replace("::", ".")] = None
        return func(*args, **given)


def _drops_nothing(func: Any, args: Any, given: Mapping[str, Any]) -> bool:
    """Return whether an operation that can drop at random, such as attention, is called with the rate 0."""
    rates = [(k, one) for k, one in enumerate(func._schema.arguments) if one.name == "dropout_p"]
    return any((args[k] if k < len(args) else given.get(one.name, one.default_value)) == 0 for k, one in rates)


def _other_states() -> dict[str, Any]:
    """Return the random states of Python and numpy."""
    numpy = sys.modules.get("numpy")
    return {"random": random.getstate()} | ({"numpy.random": numpy.random.get_state()[1:3]} if numpy is not None else {})


def _sources(run: Callable[[], Any], case: Case) -> list[str]:
    """List the sources of random numbers of a call, apart from its generator."""
    draws, before = _Draws(), _other_states()
    with torch.random.fork_rng(devices=[case.device] if case.device.type == "cuda" else []), draws:
        run()
    after = _other_states()
    changed = [f"the module {name}" for name in before if str(before[name]) != str(after[name])]
    return [*(f"torch's global state ({x})" for x in draws.names), *changed]


def _fixed(case: Case, method: str) -> None:
    """Replace a method of the policy by one that starts from the same random numbers at every call."""
    inner = getattr(case.policy, method)

    def call(*args: Any, **options: Any) -> Any:
        with seeded_everywhere(0, case.device):
            return inner(*args, **options)

    object.__setattr__(case.policy, method, call)


def _random_scores(name: str, law: Law, case: Case) -> str:
    """Removed: that scoring draws other random numbers at every call."""
    found = _sources(lambda: case.replay(case.rollout), case)
    if not found:
        return ""
    other = _twin(case)
    _fixed(other, "score" if is_scorer(case.policy) else "sites")
    if not _holds(law, other):
        return ""
    return f"scoring draws random numbers from {_listed(found)}: draw them in sample and store them in the states"


def _random_draws(name: str, law: Law, case: Case) -> str:
    """Seen: random operations of ``sample`` or of scoring without the generator."""
    generator = case.generator(7)
    found = _sources(lambda: case.policy.sample(case.contexts, generator=generator), case)
    if found:
        return f"sample draws from {_listed(found)} and not from its generator"
    if name == "generator":
        unused = torch.equal(generator.get_state(), case.generator(7).get_state())
        return "sample draws no number from its generator, whose state is the same after the call" if unused else ""
    found = _sources(lambda: case.replay(case.rollout), case)
    return f"scoring draws random numbers from {_listed(found)}" if found else ""


# -- tables and masks


def _unnormalised(name: str, law: Law, case: Case) -> str:
    """Seen: probabilities of a table do not sum to 1."""
    with torch.no_grad():
        sums = [s.log_probs.double().exp().sum(-1)[s.mask] for s in case.categoricals(case.rollout)]
    found = torch.cat(sums)
    worst = float(found[(found - 1).abs().argmax()]) if len(found) else 1.0
    if not math.isfinite(worst) or abs(worst - 1) < UNNORMALISED:
        return ""
    return f"probabilities of a table sum to {worst:.3g}: log_probs are logits, on which log_softmax(-1) is to be called"


def _full_mask(name: str, law: Law, case: Case) -> str:
    """Seen: every site counts, although a step has fewer units than sites."""
    scores = case.replay(case.rollout)
    if not bool(scores.mask.all()) or not bool((case.rollout.units < scores.mask.shape[-1]).any()):
        return ""
    return (
        "mask is true at every site, so that padding and steps after the end of a sample count as if they were drawn; or units is"
        " too small"
    )


# -- weights outside of a checkpoint


def _not_stored(name: str, law: Law, case: Case) -> str:
    """Seen: trainable weights that torch does not find, or a tensor that the loaded policy has with other values."""
    if lost := [attribute for attribute, _ in unregistered(case.module)]:
        return f"torch does not find the weights in {_listed(lost)}, so that they are neither trained nor stored: use nn.ModuleList"
    loaded = dict(loaded_again(case).named_modules())
    for prefix, part in case.module.named_modules():
        for attribute, value in vars(part).items():
            other = vars(loaded[prefix]).get(attribute)
            if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor) and not same(value.cpu(), other.cpu()):
                path = f"{prefix}.{attribute}".removeprefix(".")
                return f"the tensor {path} is no part of a checkpoint, and the loaded policy has another one: use register_buffer"
    return ""


Diagnosis = Callable[[str, Law, Case], str]
DIAGNOSES: tuple[tuple[tuple[str, ...], Diagnosis], ...] = (
    (("checkpoint",), _not_stored),
    (("shapes", "probabilities", *SCORING_LAWS), _sixteen_bits),
    ((*SCORING_LAWS, *LEARNING_LAWS), _fast_path),
    ((*SCORING_LAWS, *LEARNING_LAWS), _dropout),
    ((*SCORING_LAWS, *LEARNING_LAWS), _batch_norm),
    ((*SCORING_LAWS, *LEARNING_LAWS), _random_scores),
    (("generator", "global random state"), _random_draws),
    (("probabilities", "probabilities bf16", "calibration", "total mass", "reference"), _unnormalised),
    (("units", "padding", "batch size"), _full_mask),
)
"""Laws and the experiments that are made for them, in this order."""
