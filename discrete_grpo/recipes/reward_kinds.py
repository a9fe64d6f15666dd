"""Which samples a reward scores and in which form: runs whose rewards could only score 0 are refused early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from discrete_grpo.core.reward_arguments import reward_name
from discrete_grpo.recipes.families import Family, View

__all__ = ["check_judges", "check_kind", "kind_of", "rewards_for"]

REWARDS = "discrete_grpo.rewards"
MODULES = {
    f"{REWARDS}.{module}": kind
    for kind, modules in {
        "molecules": (
            *("molecules", "conditions", "diversity", "docking", "docking_targets"),
            *("classifier", "regressor", "components", "nearest", "transforms"),
        ),
        "graphs": ("graphs",),
        "digraphs": ("digraphs",),
        "spatial": ("spatial",),
        "images": ("images",),
    }.items()
    for module in modules
}
"""The kind of the rewards of a module; those of other modules are for any samples, or wrap other rewards."""
TOLD = {"digraphs": "directed graphs", "spatial": "molecules in space"}


def kind_of(reward: Any) -> str | None:
    """The kind of samples that a reward of this package scores; None for any other reward, and for one that scores any samples.

    >>> from discrete_grpo.rewards.graphs import tree_valid
    >>> kind_of(tree_valid), kind_of(len)
    ('graphs', None)
    """
    module = str(getattr(reward, "__module__", ""))
    if module == f"{REWARDS}.task":
        return None if reward.kind == "text" else str(reward.kind)
    if module == f"{REWARDS}.combine":
        return next((kind for part in reward.inner if (kind := kind_of(part)) is not None), None)
    return MODULES.get(module)


def check_kind(rewards: Sequence[Any], kind: str, *also: str, origin: str = "the policy draws") -> None:
    """Check that no reward of this package is for samples of another kind.

    Args:
        rewards: the rewards.
        kind: kind of the samples.
        also: kinds that its samples may be of as well, such as the molecules that a text can stand for.
        origin: where the samples come from, for the error.

    Raises:
        ValueError: naming the first such reward.
    """
    for reward in rewards:
        found = kind_of(reward)
        if found is not None and found not in (kind, *also):
            told = f"{reward_name(reward)} is for {TOLD.get(found, found)}"
            note = ", or rewards_see: smiles" if (kind, found) == ("spatial", "molecules") else ""
            raise ValueError(f"reward: {told}, expected one for {TOLD.get(kind, kind)}, which {origin}{note}")


def check_judges(policy: Any, rewards: Sequence[Any]) -> None:
    """Check that the judges among ``rewards`` can read the alphabet of ``policy``, if it has one.

    Raises:
        ValueError: naming the first character that the judge cannot read.
    """
    if not hasattr(policy, "tokenizer"):
        return
    from discrete_grpo.rewards.judge import Judge

    for reward in rewards:
        if isinstance(reward, Judge):
            reward.check(policy.tokenizer.tokens)


def rewards_for(rewards: Sequence[Any], policy: Any, family: Family, view: View) -> list[Any]:
    """Check rewards against the samples of a policy, and wrap them so that each receives samples in the form that it expects.

    Args:
        rewards: the rewards as the user gave them.
        policy: the policy that draws the samples.
        family: the kind of its samples.
        view: form in which the rewards see samples.

    Raises:
        ValueError: if samples of the kind do not have that form, or a reward cannot read them.
    """
    if view == "text":
        seen = list(rewards)
    elif family.reward_view is None:
        raise ValueError(f"rewards_see: {view!r}, expected 'text' with samples of the kind {family.name}")
    else:
        if view == "smiles":
            check_kind(rewards, "molecules")
        else:
            family.check_rewards(policy, rewards)  # a wrapped reward does not show its kind
        seen = [family.reward_view(reward, view) for reward in rewards]
    family.check_rewards(policy, seen)
    return seen
