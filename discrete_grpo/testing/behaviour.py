"""Laws of behaviour: generators, contents of a rollout, absence of side effects, and serialisation."""

from __future__ import annotations

import copy
import io
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from discrete_grpo.core.rollout import Rollout
from discrete_grpo.runs import checkpoint
from discrete_grpo.testing.case import Case, Measured, claims, gap, same

__all__ = ["checkpoints", "contexts", "detached", "generator", "global_random_state", "loaded_again", "rollout_file", "unchanged"]


def _tensors(rollout: Rollout) -> dict[str, Tensor]:
    own = {name: getattr(rollout, name) for name in ("group", "logp", "units", "size")}
    return own | {f"states[{name!r}]": value for name, value in rollout.states.items()}


def contexts(case: Case) -> Measured:
    """There is one trajectory per context, in order, with its group and columns, and ``index`` and ``to`` work."""
    rollout, given = case.rollout, case.contexts
    b = len(given)
    names = {name for c in given for name in c.columns}
    found = {
        "one row per context": len(rollout) == b,
        "one sample per row": len(rollout.samples) == b,
        "group ids in order": rollout.group.tolist() == [c.group for c in given],
        "columns carried": all(
            name in rollout.columns and same(list(rollout.columns[name]), [c.columns.get(name) for c in given]) for name in names
        ),
        "logp, units [B, S] and size [B]": rollout.logp.shape == rollout.units.shape == (b, rollout.num_steps)
        and rollout.size.shape == (b,),
        "every state [B, ...]": all(value.shape[:1] == (b,) for value in rollout.states.values()),
        "logp float32 or float64": rollout.logp.dtype in (torch.float32, torch.float64),
        "at most max_units sites": int(rollout.units.sum(-1).max()) <= rollout.max_units,
        "at most max_steps steps": rollout.max_steps is None or rollout.num_steps <= rollout.max_steps,
        **{f"{name} on the policy's device": value.device == case.device for name, value in _tensors(rollout).items()},
    }
    alone = [case.policy.sample([context], generator=case.generator(7)) for context in given]
    found["the same max_units for every context"] = {one.max_units for one in alone} == {rollout.max_units}
    found["the same max_steps for every context"] = {one.max_steps for one in alone} == {rollout.max_steps}
    if all(found.values()):
        rows = torch.arange(b - 1, -1, -1, device=case.device)
        columns = {name: tuple(values) for name, values in rollout.columns.items()}  # lists are allowed
        whole = replace(rollout, samples=tuple(rollout.samples), columns=columns)
        found["index turns the rows round"] = same(whole.index(rows).index(rows), replace(whole, largest=None))
        found["to moves every tensor"] = same(whole.to(case.device), whole)
    return claims(found, f"{b} contexts, {rollout.num_steps} steps")


def generator(case: Case) -> Measured:
    """Equal generators give equal rollouts to the bit, another seed another rollout."""
    one, equal, other = (case.policy.sample(case.contexts, generator=case.generator(k)) for k in (7, 7, 8))
    found = {
        "equal seeds, equal states": same(dict(one.states), dict(equal.states)),
        "equal seeds, equal log-probs": same(one.logp, equal.logp),
        "equal seeds, equal samples": same(one.samples, equal.samples),
        "another seed, another rollout": not (same(dict(one.states), dict(other.states)) and same(one.logp, other.logp)),
    }
    return claims(found)


def _random_state(device: torch.device) -> tuple[Tensor, ...]:
    cpu = torch.random.get_rng_state()
    return (cpu, torch.cuda.get_rng_state(device)) if device.type == "cuda" else (cpu,)


def global_random_state(case: Case) -> Measured:
    """``sample`` and scoring neither advance nor reset torch's global random state."""
    with torch.random.fork_rng(devices=[case.device] if case.device.type == "cuda" else []):
        for device in {torch.device("cpu"), case.device}:
            torch.rand(1, device=device)  # a state that no fixed seed gives
        start = _random_state(case.device)
        drawn = case.policy.sample(case.contexts, generator=case.generator(7))
        after_sample = _random_state(case.device)
        case.replay(drawn)
        after_scoring = _random_state(case.device)
    return claims({"sample leaves it": same(after_sample, start), "scoring leaves it": same(after_scoring, after_sample)})


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and all buffers, also those that ``state_dict`` leaves out because they are not persistent."""
    return {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}


def unchanged(case: Case) -> Measured:
    """``sample`` and scoring change no weight, no buffer, no mode and no stored state."""
    weights = copy.deepcopy(_weights(case.module))
    modes = [m.training for m in case.module.modules()]
    drawn = case.policy.sample(case.contexts, generator=case.generator(7))
    kept = {name: value.detach().clone() for name, value in _tensors(drawn).items()}
    after_sample = same(_weights(case.module), weights)
    case.replay(drawn)
    found = {
        "sample leaves weights and buffers": after_sample,
        "scoring leaves weights and buffers": same(_weights(case.module), weights),
        "scoring leaves the rollout": same(_tensors(drawn), kept),
        "train or eval mode stays": modes == [m.training for m in case.module.modules()],
    }
    return claims(found)


def detached(case: Case) -> Measured:
    """No tensor of a rollout carries a gradient."""
    with torch.enable_grad():
        drawn = case.policy.sample(case.contexts, generator=case.generator(7))
    return claims({f"{name} without gradient": not value.requires_grad for name, value in _tensors(drawn).items()})


def checkpoints(case: Case) -> Measured:
    """A policy saved and loaded scores the same rollout with the same bits."""
    found = replace(case, policy=loaded_again(case)).replay(case.rollout)  # type: ignore[arg-type]
    return Measured(gap(found.logp, case.replay(case.rollout).logp), 0.0)


def loaded_again(case: Case) -> nn.Module:
    """The policy, saved as a checkpoint and loaded from it."""
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.save(Path(folder) / "policy", case.module, metadata={})
        loaded: nn.Module = checkpoint.read_policy(path, trusted=(*checkpoint.TRUSTED, *case.trusted)).to(case.device)
        return loaded


def rollout_file(case: Case) -> Measured:
    """A rollout's tensors survive ``torch.save`` and ``torch.load(weights_only=True)``."""
    file = io.BytesIO()
    torch.save(_tensors(case.rollout), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    return claims({name: same(loaded[name], value) for name, value in _tensors(case.rollout).items()})
