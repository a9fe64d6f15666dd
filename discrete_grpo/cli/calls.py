"""Runs the commands without a run folder, by calling the functions of the recipes with their arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from discrete_grpo.cli.arguments import IMPORT_OPTIONS, sampler_options
from discrete_grpo.cli.commands import UsageError
from discrete_grpo.cli.importing import value_at
from discrete_grpo.cli.listing import print_list
from discrete_grpo.cli.runs import resume
from discrete_grpo.cli.working_folder import append_working_folder, names_class
from discrete_grpo.core.checks import check_folder_name
from discrete_grpo.runs.folder import BENCHMARK, METRICS, OPTIMISED, RUN, SEARCH

__all__ = ["call"]


def call(command: str, given: dict[str, Any]) -> None:
    """Run a command without a run folder.

    Args:
        command: its name.
        given: its arguments by name.
    """
    calls = {"sample": _sample, "evaluate": _evaluate, "import": _import, "benchmark": _benchmark, "preprocess": _preprocess}
    calls |= {"best": _best, "likelihood": _likelihood}
    if command == "list":
        print_list(given["what"])
    elif command == "resume":
        resume(Path(given["run"]), given["changes"])
    elif command == "report":
        _report(Path(given["run"]))
    else:
        calls[command](given)


def _sample(given: dict[str, Any]) -> None:
    from discrete_grpo.recipes.distinct import TooFewDistinct
    from discrete_grpo.recipes.families import SamplerOptions
    from discrete_grpo.recipes.sample import sample_file, sample_lines
    from discrete_grpo.runs.console import print_notes

    if names_class(given["checkpoint"]):
        append_working_folder()
    columns = _columns(given["columns"])
    options = SamplerOptions(**{option.name: given[option.name] for option in sampler_options()})
    kept = {name: given[name] for name in ("seed", "scaffold", "device", "max_draws")} | {"distinct": bool(given["distinct"])}
    if given["out"] is None:
        try:
            lines = sample_lines(given["checkpoint"], given["n"], columns=columns, options=options, **kept)
        except TooFewDistinct as few:
            print("".join(f"{line}\n" for line in few.samples), end="")
            raise
        print("".join(f"{line}\n" for line in lines), end="")
        if left_out := given["n"] - len(lines):
            print_notes([f"{left_out} of {given['n']} samples are invalid and are left out; with --out=FILE.csv each has a row"])
        return
    print(sample_file(given["checkpoint"], given["n"], given["out"], columns=columns, options=options, **kept))


def _columns(given: str | None) -> Any:
    """Conditions as a list if they are given as JSON; the name of a file is kept."""
    if given is None or not given.lstrip().startswith(("{", "[")):
        return given
    from discrete_grpo.cli.parser import loaded_columns

    found = loaded_columns(given)
    return found if isinstance(found, list) else [found]


def _likelihood(given: dict[str, Any]) -> None:
    from discrete_grpo.recipes.families import FileOptions, SamplerOptions
    from discrete_grpo.recipes.likelihood import likelihood_file

    if names_class(given["policy"]):
        append_working_folder()
    options = SamplerOptions(**{option.name: given[option.name] for option in sampler_options()})
    read = ("smiles_column", "node_attribute", "edge_attribute", "max_nodes", "max_bytes")
    kept = {name: given[name] for name in ("out", "spelling", "draws", "seed", "scaffold", "batch_size", "device")}
    reading = FileOptions(**{name: given[name] for name in read})
    likelihood_file(given["policy"], given["file"], columns=_columns(given["columns"]), options=options, reading=reading, **kept)


def _evaluate(given: dict[str, Any]) -> None:
    from dataclasses import fields

    from discrete_grpo.recipes.evaluate import evaluate_file
    from discrete_grpo.recipes.families import FileOptions

    options = FileOptions(**{f.name: given[f.name] for f in fields(FileOptions)})
    evaluate_file(given["file"], options, out=given["out"], kind=given["kind"])


def _preprocess(given: dict[str, Any]) -> None:
    from discrete_grpo.recipes.pretraining.preprocess import ShardOptions, preprocess

    given = {name: value for name, value in given.items() if value is not None}  # null: the default
    kept = {name: given[name] for name in ("form", "scaffold", "max_atoms", "smiles_column", "shard_lines") if name in given}
    options = ShardOptions(properties=tuple(given.get("properties", ())), **kept)
    check_folder_name("output_dir", given["output_dir"])
    limits = {name: given[name] for name in ("max_broken", "max_bytes", "jobs") if name in given}
    preprocess(given["data"], given["output_dir"], options, **limits)


def _as_given(value: Any) -> str:
    """A value in the form in which the command line accepts it."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list | tuple) else str(value)


def _benchmark(given: dict[str, Any]) -> None:
    import shlex

    from discrete_grpo.benchmarking.runner import benchmark
    from discrete_grpo.rewards.task import Task

    if names_class(given["policy"] or ""):
        append_working_folder()
    shown = {name: value for name, value in given.items() if name != "suite" and value not in (None, ())}
    words = [f"--{name}={shlex.quote(_as_given(value))}" for name, value in shown.items()]
    command = " ".join(["discrete-grpo benchmark", given["suite"], *words])
    wanted = "a function (task, policy, ledger, seed) or a discrete_grpo.Method"
    methods = _named("methods", given["methods"], lambda one: callable(one) and not isinstance(one, type), wanted)
    tasks = _named("tasks", given["tasks"], lambda one: isinstance(one, Task), "a discrete_grpo.Task")
    found = benchmark(**given | {"methods": methods, "tasks": tasks}, command=command)
    found.print()
    print(found.page)
    if now := len(found.failed_now):
        raise ValueError(f"jobs: {now} failed (see above); run the same command to try them again")


def _named(option: str, names: list[str] | None, fits: Callable[[Any], bool], wanted: str) -> list[Any] | None:
    """Keep names, and replace each import path by the object that it names."""

    def value(name: str) -> Any:
        if ":" not in name and "." not in name:
            return name
        found = value_at(option, name)
        if not fits(found):
            told = "a class" if isinstance(found, type) else f"a value of type {type(found).__name__}"
            raise UsageError(f"{option}: {name} is {told}, expected {wanted}")
        return found

    return None if names is None else [value(name) for name in names]


def _best(given: dict[str, Any]) -> None:
    from discrete_grpo.recipes.best import best_samples, write_best

    which = {"per_scaffold": given["per_scaffold"], "pareto": bool(given["pareto"])}
    if given["out"] is not None:
        print(write_best(given["run"], given["out"], given["n"], **which))
        return
    found = best_samples(given["run"], given["n"], **which)
    print("".join(f"{one.reward:.6g}\t{one.sample}\n" for one in found), end="")


def _report(folder: Path) -> None:
    from discrete_grpo.benchmarking.folder import has_rows
    from discrete_grpo.recipes.families import run_family
    from discrete_grpo.runs.report.report import write_report

    if (folder / BENCHMARK).is_file() or has_rows(folder):
        from discrete_grpo.benchmarking.runner import write_files

        print(write_files(folder).page)
        return
    known = (RUN, METRICS, f"offline/{METRICS}", OPTIMISED, SEARCH)
    if not any((folder / name).is_file() for name in known):
        raise UsageError(f"run: {folder} is no run folder, expected one with {', '.join(known)} or {BENCHMARK}")
    print(write_report(folder, render=run_family(folder).draw))


def _import(given: dict[str, Any]) -> None:
    from discrete_grpo.importers import import_checkpoint
    from discrete_grpo.runs.checkpoint import load_metadata

    check_folder_name("out", given["out"])
    options = {name: given[name] for name, *_ in IMPORT_OPTIONS if given[name] is not None}
    try:
        folder = import_checkpoint(given["checkpoint"], given["from"], given["out"], **options)
    except ValueError as error:
        if not str(error).startswith("source: "):
            raise
        raise UsageError(f"from: {str(error).removeprefix('source: ')}") from error  # its name here
    for name, (value, origin) in load_metadata(folder).get("taken", {}).items():  # facts of the import and their sources
        print(f"{name}:".ljust(17) + f"{value} ({origin})")
    print(folder)
