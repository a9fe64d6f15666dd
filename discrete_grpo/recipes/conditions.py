"""Condition columns of commands: reads them from lists and files, and converts them to the form that a policy reads."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from discrete_grpo.core.checks import plain_number, told_as
from discrete_grpo.core.condition_names import reserved, reserved_names
from discrete_grpo.core.description import innermost
from discrete_grpo.core.processes import is_first
from discrete_grpo.datasets.text_files import suffix_of, text_lines
from discrete_grpo.domains.molecule_properties import descriptor, descriptor_names, finite_value
from discrete_grpo.domains.smiles import parse_all
from discrete_grpo.recipes.families import Columns
from discrete_grpo.recipes.loading import LoadedPolicy
from discrete_grpo.rewards.conditions import keeps_scaffold
from discrete_grpo.runs.checkpoint_names import BUNDLED
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.folder import check_free
from discrete_grpo.runs.recorder import write_text
from discrete_grpo.runs.serialization import TRUSTED
from discrete_grpo.training.compatibility import check_condition

__all__ = [
    "check_read",
    "check_unconditional",
    "column_names",
    "conditions_met",
    "kept_columns",
    "prepare_and_tell",
    "prepare_columns",
    "property_errors",
    "read_columns",
    "renamed_measured",
    "scaffold_share",
    "tell_unread",
]

READ_WITH: Mapping[str, tuple[str, ...]] = {
    "node_kernel": ("num_nodes", "fixed", "restart", "scaffold"),
    "node_fields": ("num_nodes", "restart"),
    "blank": ("masked",),
}
"""Conditions that are read by a policy with an attribute of that name."""
FAR = 6.0
"""Standard deviations from the mean of the training data beyond which a condition is reported."""
CARRIED: Mapping[str, tuple[str, ...]] = {"blank": ("original",)}
"""Further columns in the files of conditions for such a policy, which it does not read."""


def read_columns(given: str | Sequence[Columns]) -> list[Columns]:
    """Return conditions as a list of mappings, from such a list or a JSON-lines file (a path, or one inside the bundled policies).

    Raises:
        ValueError: if there are none, or a line is not a JSON object.
        FileNotFoundError: if there is no such file.
    """
    if not isinstance(given, str):
        if isinstance(given, Mapping) or not isinstance(given, Iterable):
            raise ValueError(f"columns: {given!r}, expected a list of mappings")
        found = list(given)
        source = "columns"
    else:
        found, source = _lines_of(given)
    for condition in found:
        if not isinstance(condition, Mapping):
            raise ValueError(f"{source}: {condition!r}, expected a mapping of column names to values")
        if taken := reserved(condition):
            raise ValueError(f"{source}: a condition named {taken[0]!r}, expected none of {reserved_names()}")
    found = [{name: plain_number(value) for name, value in condition.items()} for condition in found]
    if not found:
        raise ValueError(f"{source}: no conditions, expected at least one")
    return found


def _lines_of(given: str) -> tuple[list[Any], str]:
    """Return the values of a file of JSON lines, and the name of the file in errors."""
    path = next((p for p in (Path(given), BUNDLED / given) if p.is_file()), None)
    if path is None:
        raise FileNotFoundError(f'columns: {given!r} is no file of JSON lines, expected one, or a list such as [{{"label": 3}}]')
    if suffix_of(path) in (".csv", ".tsv"):
        raise ValueError(f'columns: {path} is a table, expected a file of JSON lines, such as {{"MolLogP": 2.5}} in each')
    found = []
    for number, line in enumerate(text_lines(path, argument="columns"), 1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"columns: {path} line {number} is no JSON ({error})") from error
    return found, f"columns: {path}"


def renamed_measured(table: Mapping[str, Sequence[Any]], conditions: Collection[str]) -> dict[str, Sequence[Any]]:
    """Properties of samples beside the conditions of that name, which become ``measured_NAME``.

    >>> renamed_measured({"logP": [1.2], "SA": [2.0]}, ["logP"])
    {'measured_logP': [1.2], 'SA': [2.0]}
    """
    return {f"measured_{name}" if name in conditions else name: values for name, values in table.items()}


def scaffold_share(samples: Sequence[Any], columns: Mapping[str, Sequence[Any]], kind: str) -> dict[str, float]:
    """``keeps_scaffold``, the share of molecules that contain the scaffold of their condition; nothing if it names no molecule.

    >>> scaffold_share(["c1ccccc1C", "CC", None, "CCO"], {"scaffold": ["c1ccccc1"] * 3 + [None]}, "molecules")
    {'keeps_scaffold': 0.3333333333333333}
    """
    if kind != "molecules" or all(core is None for core in columns.get("scaffold", ())):
        return {}
    try:
        kept = [one for one in keeps_scaffold(samples, scaffold=columns["scaffold"]) if one is not None]
    except ValueError:  # a condition for rewards of one's own
        return {}
    return {"keeps_scaffold": sum(kept) / len(kept)}


def property_errors(
    samples: Sequence[Any], columns: Mapping[str, Sequence[Any]], kind: str, measured: Collection[str] = ()
) -> dict[str, float]:
    """``error_NAME`` of each condition that names a descriptor of RDKit: mean |descriptor - condition| of the valid molecules.

    Args:
        samples: SMILES, None for invalid ones.
        columns: conditions of the samples.
        kind: kind of the samples; only ``molecules`` have descriptors.
        measured: conditions that were read from a file in training, of which RDKit's values may differ.

    >>> property_errors(["CCO", None, "CC"], {"HeavyAtomCount": [5, 1, None], "logp": [0, 0, 0]}, "molecules")
    {'error_HeavyAtomCount': 2.0}
    """
    names = [name for name in columns if name in descriptor_names() and name not in measured] if kind == "molecules" else []
    mols, found = parse_all(samples) if names else [], {}
    for name in names:
        compute = descriptor(name)
        pairs = [(mol, wanted) for mol, wanted in zip(mols, columns[name], strict=True) if mol is not None and wanted is not None]
        values = [(finite_value(compute, mol), wanted) for mol, wanted in pairs if isinstance(wanted, int | float)]
        if errors := [abs(value - wanted) for value, wanted in values if value is not None]:
            found[f"error_{name}"] = sum(errors) / len(errors)
    return found


def conditions_met(
    samples: Sequence[Any], columns: Mapping[str, Sequence[Any]], kind: str, measured: Collection[str]
) -> dict[str, float]:
    """How well samples follow their conditions: :func:`scaffold_share` and :func:`property_errors`."""
    return scaffold_share(samples, columns, kind) | property_errors(samples, columns, kind, measured)


def column_names(policy: Any, conditions: Sequence[Columns] | None) -> Collection[str] | None:
    """The names of the columns that rewards receive; None for a policy of another package without any, which may add its own."""
    if conditions is not None:
        return dict.fromkeys(name for condition in conditions for name in condition)
    return () if type(innermost(policy)).__module__.split(".")[0] in TRUSTED else None


def prepare_columns(loaded: LoadedPolicy, given: Sequence[Columns] | None, scaffold: str | None = None) -> list[Columns] | None:
    """Convert conditions to the form that the policy reads, and check each once so that errors are raised before any work.

    Args:
        loaded: the policy.
        given: conditions; None together with no scaffold means none.
        scaffold: scaffold added to each condition. A graph policy reads it as fixed atoms and bonds, a SMILES policy as a
            prompt in the form it was trained on; rewards receive it as the column ``scaffold``.

    Raises:
        ValueError: if the policy cannot follow a condition.
    """
    if given is None and scaffold is None:
        return None
    policy, family = loaded.policy, loaded.family
    if scaffold is not None and not family.scaffolds(policy):
        raise ValueError(f"scaffold: {scaffold!r}, expected none: the policy reads no scaffolds")
    base = {} if scaffold is None else {"scaffold": scaffold}
    if twice := [c["scaffold"] for c in given or () if scaffold is not None and "scaffold" in c]:
        raise ValueError(f"scaffold: {scaffold!r}, expected none: the columns have the scaffold {twice[0]!r}")
    whole = [{**base, **condition} for condition in (given if given is not None else [{}])]
    conditions = [family.condition(policy, loaded.metadata, condition) for condition in whole]
    for condition in conditions:
        _check_names(policy, condition)
        check_condition(policy, condition)
    _tell_far(policy, conditions)
    return conditions


def _tell_far(policy: Any, conditions: Sequence[Columns]) -> None:
    """Print which number of each property lies far outside those that the policy was trained on, if any does."""
    for one in getattr(innermost(policy), "properties", ()):
        if one.mean == 0 and one.std == 1:  # of an imported policy, whose scale is not known
            continue
        values = [float(condition[one.name]) for condition in conditions if condition.get(one.name) is not None]
        value = max(values, key=lambda number: abs(number - one.mean), default=one.mean)
        if (far := abs(value - one.mean) / one.std) > FAR and is_first():
            told = f"{far:.3g} standard deviations from the mean of the training data, {one.mean:.4g}"
            print_notes([f"columns: {one.name} {value:g} is {told}"])


def check_unconditional(policy: Any) -> None:
    """Raise ``ValueError`` for a policy that draws nothing without a condition."""
    if error := _lack(policy):
        raise ValueError(f"policy: it needs conditions, expected one that draws without any ({error})") from error


def _lack(policy: Any) -> ValueError | None:
    """The error of a policy that draws nothing without a condition; None if it draws."""
    try:
        check_condition(policy, {})
    except ValueError as error:
        return error
    return None


def check_read(policy: Any, given: Iterable[Columns] | None, *, scaffolds: bool = False) -> None:
    """Raise ``ValueError`` for a condition that neither a policy of this package nor any reward reads.

    It is also raised without conditions for a policy that needs them.

    Args:
        policy: the policy; all conditions are accepted for a policy of another package.
        given: the conditions; None for none.
        scaffolds: whether a condition ``scaffold`` is put into the form that the policy reads.
    """
    if given is None and (error := _lack(policy)):
        name = str(error).partition(":")[0]
        numbers = [one.name for one in getattr(innermost(policy), "properties", ())]
        example = json.dumps([{name: 1.0 if name in numbers else "..."}])
        raise ValueError(f"columns: None, expected conditions, as --columns='{example}' ({error})") from error
    conditions = list(given or ())
    for condition in conditions if _known(policy) else ():
        _check_names(policy, condition)
    unread, reads = _unread(policy, conditions, scaffolds)
    if unread:
        told = f"one that the policy reads: {', '.join(reads)}" if reads else "none: the policy reads no conditions"
        raise ValueError(f"columns: a condition named {unread[0]!r}, expected {told}")


def tell_unread(policy: Any, given: Iterable[Columns] | None, *, scaffolds: bool = False, argument: str = "columns") -> None:
    """Print on standard error which conditions a policy of this package does not read, if rewards may read them.

    Args:
        policy: as for :func:`check_read`, as is ``scaffolds``.
        given: the conditions; None for none.
        scaffolds: whether a condition ``scaffold`` is put into the form that the policy reads.
        argument: name of the conditions in the line.
    """
    unread, _ = _unread(policy, list(given or ()), scaffolds)
    if unread and is_first():
        print(f"{argument}: {', '.join(map(repr, unread))}: not read by the policy, only by rewards", file=sys.stderr)


def _known(policy: Any) -> bool:
    """Whether a policy and all that it wraps are of this package."""
    while type(policy).__module__.split(".")[0] in TRUSTED:
        if not hasattr(policy, "policy"):
            return True
        policy = policy.policy
    return False


def _unread(policy: Any, conditions: Sequence[Columns], scaffolds: bool) -> tuple[list[str], list[str]]:
    """Names in conditions that a policy does not read, and those that it reads; empty for a policy of another package."""
    if not _known(policy):
        return [], []
    inner = innermost(policy)
    reads = [name for name in _reads(inner) if name != "scaffold" or scaffolds or getattr(inner, "prompt", None) == name]
    carried = [name for attribute, names in CARRIED.items() if hasattr(inner, attribute) for name in names]
    return [name for name in dict.fromkeys(n for c in conditions for n in c) if name not in (*reads, *carried)], reads


def _reads(inner: Any) -> list[str]:
    """Names of the conditions that a policy without wrappers reads."""
    reads = [p.name for p in getattr(inner, "properties", ())]
    reads += [name for attribute, names in READ_WITH.items() if hasattr(inner, attribute) for name in names]
    return [*reads, prompt] if isinstance(prompt := getattr(inner, "prompt", None), str) else reads


def _check_names(policy: Any, condition: Columns) -> None:
    """Refuse a name that is close to one that the policy reads; other names are for rewards."""
    reads = _reads(innermost(policy))
    for name in condition:
        near = difflib.get_close_matches(name, reads, 1, 0.8)
        if name not in reads and near:
            raise ValueError(f"columns: a condition named {name!r}; did you mean {near[0]!r}?")


def prepare_and_tell(
    loaded: LoadedPolicy, given: Sequence[Columns] | None, scaffold: str | None, *, argument: str = "columns"
) -> list[Columns] | None:
    """Do :func:`prepare_columns` with errors that name ``argument``, and print the conditions that only rewards read."""
    with told_as(argument, "columns"):
        found = prepare_columns(loaded, given, scaffold)
    tell_unread(loaded.policy, found, scaffolds=loaded.family.scaffolds(loaded.policy), argument=argument)
    return found


def kept_columns(
    given: str | Sequence[Columns] | None, kept: Path, *, resume: bool, argument: str = "columns"
) -> list[Columns] | None:
    """Read the conditions of a run; those of a file are copied to the file ``kept``, which a resumed run reads instead."""
    with told_as(argument, "columns"):
        return _kept_columns(given, kept, resume)


def _differs(given: str, kept: Path, found: list[Columns]) -> bool:
    """Whether a file of conditions that is still there holds others than a run has kept."""
    if not Path(given).is_file() or Path(given).resolve() == kept.resolve():
        return False
    try:
        return read_columns(given) != found
    except ValueError:
        return True


def _kept_columns(given: str | Sequence[Columns] | None, kept: Path, resume: bool) -> list[Columns] | None:
    if given is None or not isinstance(given, str):
        return None if given is None else read_columns(given)
    if resume and kept.is_file():
        found = read_columns(str(kept))
        if is_first() and _differs(given, kept, found):
            print_notes([f"columns: {given} is not used, as the run goes on with the conditions in {kept.name}, which differ"])
        return found
    found, text = read_columns(given), Path(given) if Path(given).is_file() else BUNDLED / given
    content = "".join(f"{json.dumps(condition)}\n" for condition in found)
    if not kept.exists() or kept.resolve() != text.resolve():
        check_free(kept, content.encode())
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(kept, content)
    return found
