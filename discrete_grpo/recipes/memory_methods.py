"""``grpo-memory`` for each kind of policies: its settings, the policy that draws and learns, and the components of the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from discrete_grpo.core.checks import MOST_STEPS, check_range, check_whole
from discrete_grpo.policies.options import graph_part
from discrete_grpo.policies.surrogate import ElboLikelihood
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.grpo_memory import GRAPH_SETTINGS, PART_NAMES, TOKEN_SETTINGS, changes_of_method, parts_of_method
from discrete_grpo.recipes.loading import with_sampler
from discrete_grpo.recipes.method_settings import check_known_settings, told_within
from discrete_grpo.training.rounds_config import RoundsConfig

if TYPE_CHECKING:
    from discrete_grpo.policies.graph import GraphPolicy

__all__ = ["GRAPHS", "MEMORY_METHODS", "TOKENS", "MemoryMethod", "check_settings", "method_for", "methods_with"]


@dataclass(frozen=True)
class MemoryMethod:
    """The method for one kind of policies.

    Attributes:
        kind: name of the kind of policies in errors.
        settings: every setting with its default.
        of_policy: names of the settings that ``drawing`` takes.
        of_parts: names of the settings that ``parts`` takes.
        drawing: (policy, ``**of_policy``) -> the policy that draws and learns, with the same weights.
        parts: (that policy, generator, ``**of_parts``) -> arguments of :class:`~discrete_grpo.training.rounds.Rounds`.
        check: (``**of_policy`` and ``**of_parts``) raises ValueError for a value out of its range.
    """

    kind: str
    settings: Mapping[str, Any]
    of_policy: tuple[str, ...]
    of_parts: tuple[str, ...]
    drawing: Callable[..., Any]
    parts: Callable[..., dict[str, Any]]
    check: Callable[..., None]

    def changed(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """All settings, with the changes; those of the objective change single fields of it.

        Raises:
            ValueError: for a setting that is unknown or of another kind of policies, of another type, or out of its range.
        """
        changes = changes_of_method(given, self.settings)
        for name in (name for name in changes if name not in self.settings):
            if others := [method.kind for method in MEMORY_METHODS if name in method.settings]:
                told = f"{name!r} is a setting of {others[0]}"
                raise ValueError(f"settings: {told}, expected one of {self.kind}: {', '.join(self.settings)}")
        check_known_settings("settings", changes, self.settings)
        objective = changes.get("objective", {})
        check_known_settings("settings: objective", objective, self.settings["objective"])
        found = {**self.settings, **changes, "objective": {**self.settings["objective"], **objective}}
        told_within("settings", partial(self.check, **{name: found[name] for name in (*self.of_policy, *self.of_parts)}))
        told_within("settings", partial(self.rounds_config, found))
        return found

    def rounds_config(self, settings: Mapping[str, Any]) -> RoundsConfig:
        """The settings of the loop."""
        own = (*self.of_policy, *self.of_parts)
        return RoundsConfig(**{name: value for name, value in settings.items() if name not in own})


def methods_with(names: Mapping[str, Any] | None) -> list[MemoryMethod]:
    """The methods that have all of these settings, at least one.

    Raises:
        ValueError: for a setting that no method has, or settings of different methods.
    """
    given = changes_of_method(names, TOKEN_SETTINGS)
    if found := [method for method in MEMORY_METHODS if given.keys() <= method.settings.keys()]:
        return found
    check_known_settings("settings", dict.fromkeys(given), {name: 0 for method in MEMORY_METHODS for name in method.settings})
    wrong = {method.kind: [name for name in given if name not in method.settings] for method in MEMORY_METHODS}
    told = "; ".join(f"{kind} have no {', '.join(names)}" for kind, names in wrong.items())
    raise ValueError(f"settings: {', '.join(given)}, expected settings of one kind of policies ({told})")


def check_settings(given: Mapping[str, Any] | None) -> None:
    """Check changes to the settings before the kind of the policy is known.

    Raises:
        ValueError: if they fit no kind of policies.
    """
    refused: list[ValueError] = []
    for method in (possible := methods_with(given)):
        try:
            method.changed(given)
        except ValueError as error:
            refused.append(error)
    if len(refused) == len(possible):
        raise refused[0]


def method_for(policy: Any) -> MemoryMethod | None:
    """The method for policies of this kind; None if there is none."""
    if isinstance(policy, TokenPolicy):
        return TOKENS
    return None if graph_part(policy) is None else GRAPHS


# -- SMILES policies


def _tempered(policy: TokenPolicy, *, temperature: float) -> Any:
    return with_sampler(policy, SamplerOptions(temperature=temperature))


def _token_parts(policy: TokenPolicy, generator: torch.Generator, **settings: Any) -> dict[str, Any]:
    return parts_of_method(generator, **settings)


def _check_tokens(*, temperature: float, memory_size: int, **settings: Any) -> None:
    check_whole("memory_size", memory_size, least=1)
    Truncation(temperature=temperature)
    _check_parts(TOKEN_SETTINGS, settings)


def _check_parts(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Build each part with one setting changed, so that an error can name that setting."""
    usual = {name: defaults[name] for name in PART_NAMES}
    for name, value in given.items():
        make = partial(parts_of_method, torch.Generator(), **{**usual, name: value})
        if name == "objective":
            told_within(name, make)
        else:
            make()


# -- graph policies


def graph_policy(policy: Any, *, num_steps: int, elbo_draws: int) -> ElboLikelihood:
    """The graph policy with few steps, whose likelihood is the evidence lower bound at ``elbo_draws`` noised states.

    A learned choice of the node count is removed, as the sizes come from the memory.

    Raises:
        ValueError: for a policy that cannot read SMILES strings and therefore cannot learn from molecules.
    """
    inner: GraphPolicy | None = graph_part(policy)
    if inner is not None and inner.encode is None:
        told = "policy: it has no encode and so learns from no SMILES string, expected one that makes graphs of them"
        raise ValueError(f"{told}; train and search take others")
    options = SamplerOptions(num_steps=num_steps, shared_steps=0)
    return ElboLikelihood(with_sampler(inner, options), draws=elbo_draws).eval()


def graph_parts(
    policy: ElboLikelihood,
    generator: torch.Generator,
    *,
    refine_time: float,
    size_share: float,
    objective: Mapping[str, Any],
    **settings: Any,
) -> dict[str, Any]:
    """Parts as of :func:`~discrete_grpo.recipes.grpo_memory.parts_of_method`, regeneration of the best, and their sizes.

    Genetic operators make molecules that the policy cannot draw. Updates, regeneration and sizes therefore use a second
    memory of those that it can draw.

    Args:
        policy: of :func:`graph_policy`.
        generator: of the screen.
        refine_time: time to which good molecules are re-noised before they are regenerated, 0 (data) < t < 1 (noise).
        size_share: share of the draws that request about as many atoms as good molecules have, in [0, 1].
        objective: fields of :class:`~discrete_grpo.training.objectives.SelfImitation` besides ``temperature``, which is 0, as
            only a bound of the likelihood of a graph is known.
        settings: as of ``parts_of_method``.
    """
    from discrete_grpo.training.memory import ScoredMemory
    from discrete_grpo.training.proposers import Regeneration
    from discrete_grpo.training.remembered_sizes import RememberedSizes

    found = parts_of_method(generator, objective={**objective, "temperature": 0.0}, **settings)
    drawable = ScoredMemory(found["memory"].size)
    found["proposers"] = [*found["proposers"], Regeneration(policy, time=refine_time, memory=drawable)]
    return found | {"drawable": drawable, "contexts": RememberedSizes(policy, share=size_share) if size_share > 0 else None}


def _check_graphs(
    *, num_steps: int, elbo_draws: int, refine_time: float, size_share: float, memory_size: int, objective: Any, **settings: Any
) -> None:
    for name, value in {"memory_size": memory_size, "num_steps": num_steps, "elbo_draws": elbo_draws}.items():
        check_whole(name, value, least=1, most=MOST_STEPS if name == "num_steps" else None)
    check_range("refine_time", refine_time, above=0, below=1)
    check_range("size_share", size_share, least=0, most=1)
    _check_parts(TOKEN_SETTINGS, settings | {"objective": {**objective, "temperature": 0.0}})


TOKENS = MemoryMethod(
    kind="SMILES policies",
    settings=TOKEN_SETTINGS,
    of_policy=("temperature",),
    of_parts=PART_NAMES,
    drawing=_tempered,
    parts=_token_parts,
    check=_check_tokens,
)
GRAPHS = MemoryMethod(
    kind="graph policies",
    settings=GRAPH_SETTINGS,
    of_policy=("num_steps", "elbo_draws"),
    of_parts=(*PART_NAMES, "refine_time", "size_share"),
    drawing=graph_policy,
    parts=graph_parts,
    check=_check_graphs,
)
MEMORY_METHODS = (TOKENS, GRAPHS)
"""The method for every supported kind of policies."""
