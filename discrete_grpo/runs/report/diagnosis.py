"""Diagnosis of a run that learned nothing or drew nothing new, from its metrics, with advice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

__all__ = ["diagnosis", "search_diagnosis"]


def diagnosis(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Explain why a run had nothing to learn from in any of its updates, or what patience did; empty for any other run.

    Args:
        metrics: of each update, as logged.

    >>> diagnosis([{"valid": 0.5, "frac_reward_zero_std": 0.9}])
    []
    """
    return _signal([line for line in metrics if "frac_reward_zero_std" in line]) + _patience(metrics)


def search_diagnosis(history: Sequence[Mapping[str, float | None]]) -> list[str]:
    """Explain why a search found nothing; empty where any reward was known.

    Args:
        history: one line per round, with the mean ``reward`` of its samples, NaN or None where none was known.

    >>> search_diagnosis([{"round": 0, "reward": 0.5}])
    []
    """
    if any((reward := line.get("reward")) is not None and not math.isnan(reward) for line in history):
        return []
    count = f"all of its {len(history)} rounds" if len(history) > 1 else "its only round"
    return [
        f"The reward of every sample of this search was unknown, in {count}, so it found nothing.",
        "Try: call the reward on a few samples by hand; it returned None or NaN each time.",
    ]


def _signal(updates: Sequence[Mapping[str, Any]]) -> list[str]:
    count = f"all of its {len(updates)} updates" if len(updates) > 1 else "its only update"
    if _always(updates, "valid", 0.0):
        return [
            f"Every sample of this run was invalid, in {count}.",
            "Try: look at samples of the policy before training (discrete-grpo sample), more num_steps or a lower temperature, "
            "a policy trained on data of this kind.",
        ]
    if _always(updates, "frac_reward_unknown", 1.0):
        return [
            f"The reward of every sample of this run was unknown, in {count}, so the policy was taught nothing.",
            "Try: call the reward on a few samples by hand; it returned None or NaN each time.",
        ]
    if _always(updates, "frac_reward_zero_std", 1.0):
        shares = [(line.get("frac_reward_unknown") or 0, line.get("valid") or 0) for line in updates]
        if all(unknown >= valid > 0 for unknown, valid in shares):
            return [
                f"No group of this run had a signal: in {count} as many samples had an unknown reward as were valid, and the "
                "others of each group had equal rewards.",
                "Try: call the reward on a few valid samples by hand; does the function return a number, and not None?",
            ]
        return [
            f"No group of this run had a signal: in {count} the samples of each group had equal rewards, so the "
            "policy was taught nothing.",
            "Try: a reward that also tells poor samples apart (a number in the place of yes or no), more num_generations, "
            "a higher temperature.",
        ]
    return []


def _patience(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Explain that a run was ended, or its policy restarted, because updates brought no new call."""
    last = metrics[-1] if metrics else {}
    if restarts := int(last.get("oracle/restarts") or 0):
        told = (
            f"The policy drew nothing new for as many updates as patience allows and went back to its first weights ({restarts}x)."
        )
        since = [line for line in metrics if line.get("oracle/restarts") == restarts]
        if last.get("oracle/patience") == 0 and not any(line.get("oracle/new_calls") for line in since):
            told += " It drew nothing new with these either, which ended the run: all that it draws was scored, or is invalid."
        return [told]
    if "oracle/restarts" in last or last.get("oracle/patience") != 0:
        return []
    stale = sum(1 for _ in takewhile(lambda line: line.get("oracle/new_calls") == 0, reversed(metrics)))
    brought = f"its last {stale} updates brought no new call, as every sample was invalid or scored before."
    if not stale:  # of its last generations each brought a few, which patience_threshold allows
        brought = "its last updates brought hardly a new call, as nearly every sample was invalid or scored before."
    return [
        f"The run ended for patience: {brought}",
        "Try: when_stale=restart, replay_samples, a KL to the reference (beta), an entropy bonus, a higher temperature.",
    ]


def _always(updates: Sequence[Mapping[str, Any]], name: str, value: float) -> bool:
    return bool(updates) and all(line.get(name) == value for line in updates)
