"""The command line: ``discrete-grpo COMMAND``. Thin: it parses, calls a recipe, and turns errors into one line."""

from __future__ import annotations

import difflib
import importlib.resources
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from discrete_grpo.interrupt import Interrupted

__all__ = ["main"]

DESCRIPTION = "GRPO of discrete generative models: pretrain a policy, fine-tune it against a reward, sample, evaluate, report."
EPILOG = """Fields of a preset are overridden as --name=value or --group.name=value, for example
  discrete-grpo train demo --grpo.num_generations=16 --grpo.max_steps=10 --reward=qed"""


class UsageError(ValueError):
    """A command line that cannot be run; its text is the one line the user sees."""


def _presets(command: str) -> list[str]:
    folder = importlib.resources.files("discrete_grpo.presets")
    found = [p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")]
    return sorted(n for n in found if (folder / f"{n}.yaml").read_text().startswith(f"# {command}:"))


def _preset_path(command: str, name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise UsageError(f"preset: file {name!r} does not exist")
        return Path(name)
    known = _presets(command)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"preset: {name!r} is unknown; {hint}known: {', '.join(known)}")
    return Path(str(importlib.resources.files("discrete_grpo.presets") / f"{name}.yaml"))


def _recipe_parser(command: str) -> ArgumentParser:
    from discrete_grpo.recipes import PretrainRecipe, TrainRecipe

    recipe: type = {"pretrain": PretrainRecipe, "train": TrainRecipe}[command]
    parser = ArgumentParser(
        prog=f"discrete-grpo {command}",
        usage=f"discrete-grpo {command} [PRESET | FILE.yaml] [--field=value ...]",
        description=(recipe.__doc__ or "").splitlines()[0] + f" Presets: {', '.join(_presets(command))}.",
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--config", action="config", help="YAML file of fields; a preset is one.")
    parser.add_class_arguments(recipe)
    return parser


def _expand(command: str, arguments: Sequence[str]) -> list[str]:
    """A leading preset becomes ``--config``; a bare reward name becomes its import path."""
    rest = list(arguments)
    if rest and not rest[0].startswith("-"):
        rest[0] = f"--config={_preset_path(command, rest[0])}"
    joined = re.compile(r"^(--reward\+?=)([A-Za-z_]\w*)$")
    for k, word in enumerate(rest):
        match = joined.match(word)
        if match:
            rest[k] = match[1] + _reward_path(match[2])
        elif k and rest[k - 1] in ("--reward", "--reward+") and re.fullmatch(r"[A-Za-z_]\w*", word):
            rest[k] = _reward_path(word)
    return rest


def _reward_names() -> list[str]:
    from discrete_grpo.rewards import molecules

    return [n for n in molecules.__all__ if n != "molecule_reward" and callable(getattr(molecules, n))]


def _reward_path(name: str) -> str:
    known = _reward_names()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(
            f"reward: {name!r} is unknown; {hint}known: {', '.join(known)}, or an import path such as my_file.my_reward"
        )
    return f"discrete_grpo.rewards.molecules.{name}"


def _field_names(recipe: type) -> list[str]:
    names = []
    for f in fields(recipe):
        nested = f.default_factory() if callable(f.default_factory) else None
        if is_dataclass(nested) and not isinstance(nested, type):
            names += [f"{f.name}.{inner.name}" for inner in fields(nested)]
        else:
            names.append(f.name)
    return names


def _unknown_key(text: str, names: Sequence[str]) -> str | None:
    """A line for an unknown key in a parser's message, with the nearest right one; None if it says something else."""
    match = re.search(r"unrecognized arguments: --([\w.]+)", text) or re.search(r"[Kk]ey \"?'?([\w.]+)\"?'? is not expected", text)
    match = match or re.search(r"(?:No action|not expected)[^\n]*?\"?'?([\w]+\.?[\w.]*)\"?'?", text)
    if match is None:
        return None
    near = difflib.get_close_matches(match[1], names, 1, 0.5)
    if not near:
        near = [n for n in names if n.rpartition(".")[2] == match[1].rpartition(".")[2]][:1]
    return f"unknown field {match[1]!r}" + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}")


def _parse(command: str, arguments: Sequence[str]) -> tuple[Any, str]:
    """The recipe, and its resolved settings as YAML."""
    from discrete_grpo.recipes import PretrainRecipe, TrainRecipe

    recipe: type = {"pretrain": PretrainRecipe, "train": TrainRecipe}[command]
    parser = _recipe_parser(command)
    try:
        settings: Namespace = parser.parse_args(_expand(command, arguments))
        built = parser.instantiate(settings)
    except ArgumentError as error:
        text = str(error)
        raise UsageError(_unknown_key(text, _field_names(recipe)) or " ".join(text.split())) from error
    values = {k: v for k, v in vars(built).items() if k not in ("config", "print_config")}
    return recipe(**values), parser.dump(settings, skip_unset=False)


def _start(command: str, arguments: Sequence[str]) -> None:
    from discrete_grpo import recipes
    from discrete_grpo.reporting.run_folder import write_json, write_text

    recipe, yaml = _parse(command, arguments)
    folder = Path(recipe.output_dir)
    if (folder / "run.json").exists():
        raise UsageError(
            f"output_dir: {folder} already holds a run; continue it with 'discrete-grpo resume {folder}' or name another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.yaml", yaml)
    write_json(folder / "run.json", {"command": command})
    run = recipes.run_pretrain if command == "pretrain" else recipes.run_train
    _guarded(folder, lambda: run(recipe))


def _resume(folder: Path) -> None:
    from discrete_grpo import recipes
    from discrete_grpo.checkpoint import Checkpoints

    try:
        command = json.loads((folder / "run.json").read_text())["command"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"run: {folder} is no run folder of 'discrete-grpo train' or 'pretrain' ({error})") from error
    recipe, _ = _parse(command, [f"--config={folder / 'config.yaml'}", f"--output_dir={folder}"])
    run = recipes.run_pretrain if command == "pretrain" else recipes.run_train
    _guarded(folder, lambda: run(recipe, resume=bool(Checkpoints(folder).all())))


def _guarded(folder: Path, run: Any) -> None:
    from discrete_grpo.scoring import RewardError

    try:
        run()
    except (Interrupted, RewardError) as stopped:
        stopped.args = (f"{stopped}; saved, continue with: discrete-grpo resume {folder}",)
        raise
    print(f"finished: {folder}")


def _other_parsers() -> dict[str, ArgumentParser]:
    def parser(command: str, about: str) -> ArgumentParser:
        return ArgumentParser(prog=f"discrete-grpo {command}", description=about, exit_on_error=False, allow_abbrev=False)

    resume = parser("resume", "Continue a stopped run to its end; only the run folder is needed.")
    resume.add_argument("run", type=str, help="Run folder.")
    sample = parser("sample", "Draw molecules from a checkpoint.")
    sample.add_argument("checkpoint", type=str, help="Bundled policy, checkpoint folder or run folder.")
    sample.add_argument("-n", "--n", type=int, default=100, help="How many.")
    sample.add_argument("--out", type=str, required=True, help="File: .csv or .csv.gz with properties, else SMILES a line.")
    sample.add_argument("--seed", type=int, default=0, help="Of the generator.")
    sample.add_argument("--scaffold", type=str | None, default=None, help="SMILES that every sample must contain.")
    sample.add_argument("--num_steps", type=int | None, default=None, help="Steps of the sampler; default the policy's.")
    evaluate = parser("evaluate", "Validity, uniqueness, novelty, diversity and property means of a SMILES file.")
    evaluate.add_argument("file", type=str, help="SMILES file (.smi, .txt, .csv, each optionally .gz).")
    evaluate.add_argument("--reference", type=str | None, default=None, help="SMILES file that novelty is measured against.")
    evaluate.add_argument("--out", type=str | None, default=None, help="JSON file for the numbers.")
    report = parser("report", "Write RUN/report.html again.")
    report.add_argument("run", type=str, help="Run folder.")
    listing = parser("list", "Presets, bundled policies, rewards and data sets.")
    return {"resume": resume, "sample": sample, "evaluate": evaluate, "report": report, "list": listing}


def _list() -> None:
    from discrete_grpo.recipes import bundled_policies

    print("presets for train:    " + ", ".join(_presets("train")))
    print("presets for pretrain: " + ", ".join(_presets("pretrain")))
    print("bundled policies:     " + ", ".join(bundled_policies()))
    print("rewards:              " + ", ".join(_reward_names()))
    print("data sets:            enumerated (bundled), qm9 and zinc250k (downloaded), or a SMILES file")


def _other(command: str, arguments: Sequence[str]) -> None:
    parser = _other_parsers()[command]
    try:
        given = parser.parse_args(list(arguments))
    except ArgumentError as error:
        names = [a.dest for a in parser._actions]
        raise UsageError(_unknown_key(str(error), names) or " ".join(str(error).split())) from error
    if command == "list":
        _list()
    elif command == "resume":
        _resume(Path(given.run))
    elif command == "sample":
        from discrete_grpo.recipes import sample_file

        print(
            sample_file(given.checkpoint, given.n, given.out, seed=given.seed, scaffold=given.scaffold, num_steps=given.num_steps)
        )
    elif command == "evaluate":
        from discrete_grpo.recipes import evaluate_file

        evaluate_file(given.file, reference=given.reference, out=given.out)
    elif command == "report":
        from discrete_grpo.reporting.draw import draw_smiles
        from discrete_grpo.reporting.report import write_report

        print(write_report(given.run, draw=draw_smiles))


COMMANDS = ("pretrain", "train", "resume", "sample", "evaluate", "report", "list")


def _dispatch(arguments: Sequence[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: discrete-grpo COMMAND ...\n\n{DESCRIPTION}\n\ncommands: {', '.join(COMMANDS)}\n\n{EPILOG}")
        print("\nAdd -h to a command for its fields, --debug for full tracebacks.")
        return
    command, rest = arguments[0], arguments[1:]
    if command == "--version":
        from importlib.metadata import version

        print(version("discrete-grpo"))
    elif command in ("pretrain", "train"):
        _start(command, rest)
    elif command in COMMANDS:
        _other(command, rest)
    else:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"command: {command!r} is unknown; {hint}known: {', '.join(COMMANDS)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 2 bad input or a failed reward, 130 stopped by Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [a for a in given if a != "--debug"]
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # so that --reward=my_file.my_reward finds a file beside the user
    try:
        _dispatch(given)
    except (Interrupted, KeyboardInterrupt) as stopped:
        print(f"discrete-grpo: {stopped or 'stopped'}", file=sys.stderr)
        return 130
    except (ValueError, OSError, RuntimeError, TypeError, ArithmeticError) as error:
        if debug:
            raise
        print(f"discrete-grpo: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
