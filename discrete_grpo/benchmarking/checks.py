"""Checks of the arguments of a benchmark, each with a one-line error before any work."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.core.checks import LAST_SEED, check_distinct, check_whole, did_you_mean

if TYPE_CHECKING:
    from discrete_grpo.rewards.task import Task

__all__ = [
    "check_budget",
    "check_fit",
    "check_folder_names",
    "check_known_policy",
    "check_policy_fits",
    "check_seeds",
    "chosen",
    "chosen_tasks",
    "listed",
    "policy_kind",
]

T = TypeVar("T")
SAFE = re.compile(r"[A-Za-z0-9][\w.+-]*")
ORGANIC = {"b": "B", "c": "C", "n": "N", "o": "O", "p": "P", "s": "S"}
BRACKET = re.compile(r"\[\d*([A-Z][a-z]?|[a-z][a-z]?)")


def listed(what: str, given: Any, of: str) -> tuple[Any, ...]:
    """Return the values of a list or of any other iterable, which is run through once.

    Raises:
        ValueError: for a text, and for what is no iterable.

    >>> listed("methods", "random", "methods")
    Traceback (most recent call last):
    ValueError: methods: 'random', expected a list of methods, such as ['random']
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        example = f", such as [{given!r}]" if isinstance(given, str) else ""
        raise ValueError(f"{what}: {given!r}, expected a list of {of}{example}")
    return tuple(given)


def chosen(what: str, given: Iterable[str] | None, known: Mapping[str, T]) -> list[T]:
    """Return the values of some names, or of all.

    Raises:
        ValueError: for a name that is unknown (the nearest is given) or repeated, and for no name at all.
    """
    if isinstance(given, str):
        raise ValueError(f"{what}: {given!r}, expected a list of names, such as [{given!r}]")
    names = list(known) if given is None else list(given)
    if not names:
        raise ValueError(f"{what}: no names, expected at least one" + (f" of {', '.join(known)}" if known else ""))
    for name in names:
        if name not in known:
            hint = f"{did_you_mean(name, known)} ".lstrip()
            raise ValueError(f"{what}: {name!r} is unknown; {hint}known: {', '.join(known)}")
    check_distinct(what, names)
    return [known[name] for name in names]


def chosen_tasks(given: Sequence[str | Task] | None, known: Mapping[str, T], reserved: Container[str] = ()) -> list[T | Task]:
    """Return the tasks of a suite by name, or all, and custom tasks, in the given order.

    Args:
        given: names and tasks.
        known: tasks of the suite.
        reserved: further names of the suite, which custom tasks must not have.

    Raises:
        ValueError: as :func:`chosen`, for a value that is not a task, and for two tasks of one name.
    """
    if given is None or isinstance(given, str):
        return [*chosen("tasks", given, known)]
    own = [one for one in given if not isinstance(one, str)]
    for one in own:
        if not hasattr(one, "score") or not hasattr(one, "kind"):
            raise ValueError(f"tasks: {one!r}, expected the name of a task or a Task")
        if one.name in known or one.name in reserved:
            raise ValueError(f"tasks: one of your own is named {one.name!r}, as one of the suite is, expected another name")
    check_folder_names("tasks", [one.name for one in own])
    names = [one for one in given if isinstance(one, str)]
    of_suite = iter(chosen("tasks", names, known) if names or not own else ())
    return [next(of_suite) if isinstance(one, str) else one for one in given]


def check_folder_names(what: str, names: Sequence[str]) -> None:
    """Raise ``ValueError`` unless the names are different and can be names of folders."""
    for k, name in enumerate(names):
        if SAFE.fullmatch(name) is None:
            raise ValueError(f"{what}: {name!r}, expected letters, digits and any of _ . + - (it is the name of a folder)")
        if name in names[:k]:
            raise ValueError(f"{what}: two are named {name!r}, expected different names")


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise ``ValueError`` unless there are seeds, whole numbers from 0 to 2^32 - 1, each once."""
    if isinstance(seeds, str) or not isinstance(seeds, Sequence):
        raise ValueError(f"seeds: {seeds!r}, expected a list of whole numbers")
    if not seeds:
        raise ValueError("seeds: an empty list, expected at least one seed")
    for seed in seeds:
        check_whole("seeds", seed, least=0, most=LAST_SEED)
    check_distinct("seeds", seeds)


def check_budget(budget: int, methods: Sequence[Method]) -> None:
    """Raise ``ValueError`` for a budget that is too small for a method."""
    check_whole("budget", budget, least=1)
    for method in methods:
        if budget < method.least_budget:
            calls = method.settings.get("warm_start_calls")
            warm = f" after a warm start of {calls} calls" if calls else ""
            raise ValueError(
                f"budget: {budget}, expected at least {method.least_budget}, the first population of {method.name}{warm}"
            )


def check_fit(methods: Sequence[Method], tasks: Sequence[Task]) -> None:
    """Raise ``ValueError`` for a method that does not work with the kind of a task."""
    for task in tasks:
        for method in methods:
            if task.kind not in method.task_kinds:
                able = " and ".join(method.task_kinds)
                raise ValueError(f"methods: {method.name} works with {able}, expected one for {task.kind} (task {task.name})")


# -- the policy


def policy_kind(policy: Any) -> str:
    """How a policy draws: ``"graph"``, ``"tokens"``, ``"masked text"`` or ``"other"``."""
    from discrete_grpo.core.description import innermost
    from discrete_grpo.policies.tokens import TokenPolicy

    inner = innermost(policy)
    if hasattr(inner, "node_kernel"):
        return "graph"
    if isinstance(inner, TokenPolicy):
        return "tokens"
    return "masked text" if hasattr(inner, "blank") else "other"


def policy_elements(loaded: Any) -> frozenset[str] | None:
    """Symbols of the elements that a policy of molecules can draw; None where they are not known.

    Args:
        loaded: a :class:`~discrete_grpo.recipes.loading.LoadedPolicy`.
    """
    from discrete_grpo.core.description import innermost
    from discrete_grpo.domains.tokenizer import SMILES

    if loaded.family.name != "molecules":
        return None
    inner, kind = innermost(loaded.policy), policy_kind(loaded.policy)
    if kind == "graph" and "statistics" in loaded.metadata:
        from discrete_grpo.datasets.molecules import MoleculeStatistics

        vocabulary = MoleculeStatistics.from_json(loaded.metadata["statistics"]).vocabulary
        return frozenset(atom.symbol for atom in vocabulary.types)
    if hasattr(inner, "node_fields") and "statistics" in loaded.metadata:
        from discrete_grpo.datasets.molecule_fields import MoleculeFieldStatistics

        return frozenset(MoleculeFieldStatistics.from_json(loaded.metadata["statistics"]).symbols)
    if kind == "tokens" and getattr(inner.tokenizer, "pattern", None) == SMILES:
        return smiles_elements(inner.tokenizer.tokens if inner.only is None else inner.only)
    return None


def smiles_elements(tokens: Iterable[str]) -> frozenset[str]:
    """Symbols of the elements that SMILES tokens stand for.

    >>> sorted(smiles_elements(["C", "Cl", "n", "[nH]", "[Si@@H]", "=", "(", "1", "[se]"]))
    ['C', 'Cl', 'N', 'Se', 'Si']
    """
    found = set()
    for token in tokens:
        bracket = BRACKET.match(token)
        if bracket is not None:
            found.add(bracket[1].capitalize() if bracket[1].islower() else bracket[1])
        elif token.isalpha():
            found.add(ORGANIC.get(token, token))
    return frozenset(found)


def check_known_policy(policy: Any) -> None:
    """Raise ``ValueError`` for the name of a policy that does not exist, although no method draws from it."""
    from discrete_grpo.recipes.loading import load

    if isinstance(policy, str | Path):
        load(policy)


def check_policy_fits(name: str, loaded: Any, methods: Sequence[Method], tasks: Sequence[Task]) -> None:
    """Raise ``ValueError`` for a policy whose kind a task or method does not support, or that lacks the atoms or size of a task."""
    from discrete_grpo.benchmarking.methods import METHODS
    from discrete_grpo.core.rollout import is_replayable

    kind = policy_kind(loaded.policy)
    told = f"a {kind} policy" if kind != "other" else f"a {type(loaded.policy).__name__}"
    for method in methods:
        if method.policy_kinds and kind not in method.policy_kinds:
            wanted = f"expected a policy of {' or '.join(method.policy_kinds)} for method {method.name}"
            raise ValueError(f"policy: {name} is {told}, {wanted}")
        if method.settings.get("passes") and method.name in METHODS and not is_replayable(loaded.policy):
            wanted = f"expected one with a method rollout_of for method {method.name}, which learns from remembered samples"
            raise ValueError(f"policy: {name} is {told} and learns from its own draws alone, {wanted}")
    elements = policy_elements(loaded)
    for task in tasks:
        if loaded.family.name not in (task.kind, "samples"):
            raise ValueError(f"policy: {name} makes {loaded.family.name}, expected a policy of {task.kind} for task {task.name}")
        missing = sorted(task.elements - elements) if elements is not None else []
        if missing:
            known = ", ".join(sorted(elements or ()))
            raise ValueError(f"policy: {name} cannot make the atoms {', '.join(missing)} of task {task.name}; it has {known}")
        _check_size(name, loaded.policy, task)


def _check_size(name: str, policy: Any, task: Task) -> None:
    """Raise ``ValueError`` if a task scores only graphs of one size that a graph diffusion policy never draws."""
    from discrete_grpo.core.description import innermost
    from discrete_grpo.rewards.graph_tasks import GraphScore

    counts = getattr(innermost(policy), "node_counts", None)
    if not isinstance(task.score, GraphScore) or counts is None:
        return
    drawn, wanted = [size for size, share in enumerate(counts) if share > 0], task.score.nodes
    if wanted not in drawn:
        told = f"{', '.join(map(str, drawn[:8]))}{', ...' if len(drawn) > 8 else ''}"
        raise ValueError(f"policy: {name} draws graphs of {told} nodes, expected one of graphs of {wanted} for task {task.name}")
