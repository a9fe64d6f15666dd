"""Loading a trained policy for use: by name, from a checkpoint or run folder, or as a class of the user's own module."""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from discrete_grpo.core.checks import check_samples, check_whole, signature_of
from discrete_grpo.core.description import attach_metadata, description, innermost
from discrete_grpo.core.drawing import check_sample
from discrete_grpo.core.rollout import as_module
from discrete_grpo.core.seeding import seeded
from discrete_grpo.core.suggestions import absent_attribute, absent_module
from discrete_grpo.recipes.families import Family, SamplerOptions, family_of
from discrete_grpo.runs import checkpoint
from discrete_grpo.runs.checkpoint import CheckpointError
from discrete_grpo.runs.checkpoint_names import find_checkpoint
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.folder import REFERENCE
from discrete_grpo.runs.serialization import TRUSTED, check_init_args
from discrete_grpo.runs.weights import check_sums

__all__ = ["LoadedPolicy", "class_name", "initial_policy", "load", "load_policy", "policy_object", "rebuilt", "with_sampler"]

CLASS_NAME = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)(?:@(?P<folder>.+))?")
GRAPH_OPTIONS = ("num_steps", "temperature", "guidance", "shared_steps", "kernel", "eta", "omega", "sample_distortion")
"""Sampler options that graph policies have."""
TRUNCATION = ("temperature", "top_k", "top_p")
"""Sampler options that policies with a truncation have."""


@dataclass(frozen=True)
class LoadedPolicy:
    """A loaded policy with the kind of its samples and the metadata of its checkpoint.

    Attributes:
        policy: the policy, which decodes its samples for rewards; in eval mode.
        family: the kind of its samples.
        metadata: of its checkpoint.
    """

    policy: Any
    family: Family
    metadata: Mapping[str, Any]


def load_policy(name: str | Path, options: SamplerOptions | None = None, *, trusted: Sequence[str] = ()) -> Any:
    """Load any trained policy, ready to draw what rewards see: molecules as canonical SMILES, graphs, text, images.

    Args:
        name: a bundled policy's name, a checkpoint folder, a run folder, or a policy class of your own: ``module:Class`` for a
            new policy, ``module:Class@FOLDER`` for one that is read from a checkpoint or run folder, where ``Class`` may also be
            that of its network.
        options: changes to how it draws.
        trusted: further top-level packages whose classes a checkpoint may name, such as that of a custom network.

    Raises:
        CheckpointError: if the checkpoint is missing or damaged, or names a class of another package.
        ValueError: if the policy has no such option, or the option is out of its range.
        ImportError: if the class cannot be imported.

    >>> load_policy("qm9-small", SamplerOptions(num_steps=5)).num_steps
    5
    """
    return load(name, options, trusted=trusted).policy


def load(name: str | Path, options: SamplerOptions | None = None, *, seed: int = 42, trusted: Sequence[str] = ()) -> LoadedPolicy:
    """Load a policy as :func:`load_policy` does, with the family of the samples and the metadata.

    Args:
        name: as for :func:`load_policy`.
        options: changes to how it draws.
        seed: random seed of the initial weights of a new policy; the global random state is not changed.
        trusted: as for :func:`load_policy`.
    """
    if not isinstance(name, str | Path):
        raise ValueError(f"policy: {name!r}, expected the name of a policy or its folder")
    named = CLASS_NAME.fullmatch(str(name)) if class_name(name) else None
    if named is None:
        return _from_checkpoint(find_checkpoint(name), options, trusted)
    found = _imported(named["module"], named["name"])
    if named["folder"] is None:
        return policy_object(_made(found, str(name), seed), options)
    owner = found if isinstance(found, type) else type(innermost(made := _made(found, str(name), seed)))
    packages = {named["module"].split(".")[0], (owner if isinstance(found, type) else type(made)).__module__.split(".")[0]}
    folder = find_checkpoint(named["folder"])
    loaded = _from_checkpoint(folder, options, sorted({*packages, *trusted}))
    _check_class(loaded.policy, owner, folder)
    return loaded


def _check_class(policy: Any, owner: type, folder: Path) -> None:
    """Raise ``ValueError`` unless the policy of a checkpoint, or a part such as its network, is of the class that was named."""
    if not any(isinstance(part, owner) for part in as_module(policy).modules()):
        raise ValueError(f"policy: {folder} holds a {type(policy).__name__}, expected a {owner.__name__} or one with it inside")


def class_name(name: str | Path) -> str | None:
    """Return the part ``module:Class`` of the name of a policy class, with or without ``@FOLDER``; None for any other policy.

    >>> class_name("my_policy:MyPolicy@runs/a"), class_name("qm9-small")
    ('my_policy:MyPolicy', None)
    """
    found = CLASS_NAME.fullmatch(str(name))
    return None if found is None or Path(name).exists() else f"{found['module']}:{found['name']}"


def _imported(module: str, name: str) -> Any:
    try:
        holder = importlib.import_module(module)
    except ImportError as error:
        near = absent_module(str(error.name), Path.cwd()) if isinstance(error, ModuleNotFoundError) else ""
        raise ImportError(f"policy: '{module}:{name}' cannot be imported: {error}{near}") from error
    if not hasattr(holder, name):
        raise ImportError(f"policy: {absent_attribute(holder, name)}")
    return getattr(holder, name)


def policy_object(policy: Any, options: SamplerOptions | None = None) -> LoadedPolicy:
    """Wrap a policy object of the caller, with the family in its description or its attribute ``family``.

    Raises:
        TypeError: if it is not an ``nn.Module`` with the methods of a policy and ``init_args``, or cannot be built from these.
    """
    module = as_module(policy)
    if missing := [name for name in ("sample", "init_args") if not hasattr(policy, name)]:
        raise TypeError(f"policy: {type(policy).__name__} has no {' and no '.join(missing)}, expected a policy")
    if not (hasattr(policy, "sites") or hasattr(policy, "score")):
        raise TypeError(f"policy: {type(policy).__name__} has neither sites nor score, expected a policy")
    check_sample(policy)
    check_init_args("policy", policy)
    inner, told = innermost(policy), description(policy)
    if told and (found := _as_described(module, told, options or SamplerOptions())) is not None:
        return found
    kept = getattr(inner, "decode", None) is not None
    family = family_of({"kind": "graphs" if hasattr(inner, "node_kernel") and not kept else "samples"}, policy)
    changed = with_sampler(module, options or SamplerOptions())
    if not kept:
        family.decode(changed, {})
    return LoadedPolicy(changed.eval(), family, {"kind": family.name})


def _as_described(policy: Any, told: Mapping[str, Any], options: SamplerOptions) -> LoadedPolicy | None:
    """Set sampler and decoder of a policy by its description; return None if the policy already has a different decoder."""
    family, changed = family_of(told, policy), with_sampler(policy, options)
    own = getattr(innermost(changed), "decode", None)
    family.decode(changed, told)
    if own is not None and _function(own) is not _function(innermost(changed).decode):
        innermost(changed).decode = own
        return None
    return LoadedPolicy(changed.eval(), family, dict(told))


def _function(decode: Any) -> Any:
    """The function that a ``functools.partial`` calls; any other decoder is returned unchanged."""
    return getattr(decode, "func", decode)


def _from_checkpoint(folder: Path, options: SamplerOptions | None, trusted: Sequence[str] = ()) -> LoadedPolicy:
    check_samples(trusted, "trusted", "packages")
    policy = checkpoint.read_policy(folder, trusted=(*TRUSTED, *trusted))
    metadata = checkpoint.load_metadata(folder)
    family = family_of(metadata, policy)
    changed = with_sampler(policy, options or SamplerOptions())
    try:
        family.decode(changed, metadata)
    except CheckpointError as error:
        raise CheckpointError(str(error).replace("checkpoint: it", f"checkpoint: {folder}", 1)) from error
    if family.name != "molecules" and "kind" not in metadata:
        metadata["kind"] = family.name
    return LoadedPolicy(attach_metadata(changed, metadata).eval(), family, metadata)


def _made(found: Any, name: str, seed: int) -> Any:
    """A new policy from a class or a factory function, or a copy of a policy; the global random state is kept."""
    if isinstance(found, nn.Module):
        return copy.deepcopy(found)
    if (signature := signature_of(found)) is not None:
        try:
            signature.bind()
        except TypeError as error:
            raise ValueError(
                f"policy: {name!r} cannot be called without arguments ({error}), expected a class or function that can, or a policy"
            ) from error
    with seeded(seed):
        return found()


# -- how a policy draws


def with_sampler(policy: Any, options: SamplerOptions) -> Any:
    """Change how samples are drawn from the same network; wrappers around the policy are kept.

    A graph policy and a policy with a :class:`~discrete_grpo.policies.truncation.Truncation` have the options of their kind;
    any other policy has those that ``init_args()`` names.

    Raises:
        ValueError: for an option that the policy does not have, or out of its range.
    """
    if not isinstance(options, SamplerOptions):
        raise ValueError(f"options: {options!r}, expected SamplerOptions, such as SamplerOptions(num_steps=25)")
    given = options.given()
    if not given:
        return policy
    inner = innermost(policy)
    args = inner.init_args()
    if graphs := hasattr(inner, "node_kernel"):
        known: Sequence[str] = GRAPH_OPTIONS
    else:
        known = (*args, *(TRUNCATION if "truncation" in args else ()))
    for name, value in given.items():
        if name not in known:
            told = f"{name}: {value}, expected none: {type(policy).__name__} has no such setting"
            raise ValueError(f"{told}; where a preset gives it, --{name}=null takes it out")
    if (steps := given.get("num_steps")) is not None:
        _check_steps(inner, steps)
    return rebuilt(policy, (lambda old: _graph_args(old, given)) if graphs else (lambda old: _plain_args(old, given)))


def _check_steps(policy: Any, num_steps: int) -> None:
    """Raise ValueError for a sampler with more steps than the discrete schedule of an imported policy, which rounds its times."""
    from discrete_grpo.diffusion.schedules import DigressSchedule

    fields = (*getattr(policy, "node_fields", ()), *getattr(policy, "edge_fields", ()))
    kernels = (getattr(policy, "node_kernel", None), getattr(policy, "edge_kernel", None), *(field.kernel for field in fields))
    for kernel in kernels:
        schedule = getattr(getattr(kernel, "noise", None), "schedule", None)
        if isinstance(schedule, DigressSchedule):
            check_whole("num_steps", num_steps, least=1, most=schedule.steps, note=" (diffusion_steps)")


def rebuilt(policy: Any, change: Callable[[Any], Mapping[str, Any]]) -> Any:
    """A policy with other arguments, in the same wrappers.

    Args:
        policy: gives the network, the weights and all other arguments.
        change: function from the policy inside all wrappers to the arguments that change.
    """
    if hasattr(policy, "policy"):
        return type(policy)(**policy.init_args() | {"policy": rebuilt(policy.policy, change)}).eval()
    made = type(policy)(**policy.init_args() | change(policy)).to(next(policy.parameters()).device)
    made.load_state_dict(policy.state_dict())
    for name in ("decode", "encode", "sample_metadata"):
        if name in vars(policy):  # a method of the class is that of the new policy
            setattr(made, name, getattr(policy, name))
    return made.eval()


def _plain_args(policy: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
    args = policy.init_args()
    of_truncation = {name: value for name, value in given.items() if name not in args}
    rest = {name: value for name, value in given.items() if name in args}
    return rest | ({"truncation": replace(args["truncation"], **of_truncation)} if of_truncation else {})


def _graph_args(policy: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
    from discrete_grpo.diffusion import choices

    rates = {name: given.get(name) for name in ("kernel", "eta", "omega")}
    changes = {name: value for name, value in given.items() if name not in rates}
    if "sample_distortion" in changes:
        changes["sample_distortion"] = choices.make_distortion(changes["sample_distortion"], "sample_distortion")
    return changes | {name: _other_kernel(getattr(policy, name), **rates) for name in ("node_kernel", "edge_kernel")}


def _other_kernel(old: Any, kernel: Any, eta: float | None, omega: float | None) -> Any:
    """A kernel for the noise of ``old``; a rate that is not given is kept where the new kind has rates."""
    from discrete_grpo.diffusion import choices

    if kernel is None and eta is None and omega is None:
        return old
    kind = kernel or choices.kernel_name(old)
    kept = {"eta": getattr(old, "eta", 0.0), "omega": getattr(old, "omega", 0.0)} if kind == "flow_euler" else {}
    given = {k: v for k, v in (("eta", eta), ("omega", omega)) if v is not None}
    return choices.make_kernel(kind, old.noise, **kept | given)


def initial_policy(run: Path, policy: str, *, begun: bool) -> Path | None:
    """Find the initial policy that a run of ``optimise`` keeps; None if it is missing, which is printed for a run that has begun.

    Args:
        run: the run folder.
        policy: name of the policy in the settings of the run.
        begun: whether the run has a checkpoint.

    Raises:
        CheckpointError: if a file of it was changed.
    """
    kept = run / REFERENCE
    if kept.is_dir():
        check_sums(kept)  # earlier versions wrote none
        return kept
    if begun:
        print_notes([f"policy: {kept} is missing; {policy} as it is now is taken for the policy that the run began with"])
    return None
