"""The kind of samples that a reward of this package scores, so that a run that could only score 0 is refused early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from discrete_grpo.core.reward_arguments import reward_name

__all__ = ["check_judges", "check_kind", "kind_of"]

REWARDS = "discrete_grpo.rewards"
MODULES = {
    f"{REWARDS}.{module}": kind
    for kind, modules in {
        "molecules": ("molecules", "conditions", "diversity", "docking", "docking_targets", "classifier"),
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


def check_kind(rewards: Sequence[Any], kind: str, *also: str) -> None:
    """Check that no reward of this package is for samples of another kind.

    Args:
        rewards: the rewards.
        kind: kind of samples that the policy draws.
        also: kinds that its samples may be of as well, such as the molecules that a text can stand for.

    Raises:
        ValueError: naming the first such reward.
    """
    for reward in rewards:
        found = kind_of(reward)
        if found is not None and found not in (kind, *also):
            told = f"{reward_name(reward)} is for {TOLD.get(found, found)}"
            note = ", or rewards_see: smiles" if (kind, found) == ("spatial", "molecules") else ""
            raise ValueError(f"reward: {told}, expected one for {TOLD.get(kind, kind)}, which the policy draws{note}")


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
