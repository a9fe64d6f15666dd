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

import yaml
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


class _Parser(ArgumentParser):
    """A parser whose dump can also write a list of rewards, so that its YAML can always be read again."""

    def dump(self, cfg: Namespace, **options: Any) -> str:
        rewards = cfg.get("reward")
        if not isinstance(rewards, list):
            return str(super().dump(cfg, **options))
        single = cfg.clone()
        single["reward"] = "discrete_grpo.rewards.molecules.qed"
        content = yaml.safe_load(super().dump(single, **options))
        content["reward"] = [_reward_spec(reward) for reward in rewards]
        return yaml.safe_dump(content, sort_keys=False)


def _reward_spec(reward: Any) -> Any:
    """A parsed reward as YAML knows it: an import path, or a class path with its arguments."""
    if isinstance(reward, Namespace):
        return reward.as_dict()
    return reward if isinstance(reward, str | dict) else f"{reward.__module__}.{reward.__qualname__}"


def _recipe_parser(command: str) -> ArgumentParser:
    from discrete_grpo.recipes import PretrainRecipe, TrainRecipe

    recipe: type = {"pretrain": PretrainRecipe, "train": TrainRecipe}[command]
    parser = _Parser(
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
    """A leading preset becomes ``--config``; bare reward names, also in YAML files, become import paths."""
    rest = list(arguments)
    if rest and not rest[0].startswith("-"):
        rest[0] = f"--config={_preset_path(command, rest[0])}"
    for k, word in enumerate(rest):
        name, joined, value = word.partition("=")
        if not joined and k and not word.startswith("-"):  # "--name value"
            name, value = rest[k - 1], word
        if name in ("--reward", "--reward+"):
            rest[k] = word.removesuffix(value) + _full_rewards(value)
        elif name == "--config" and Path(value).is_file():
            text = Path(value).read_text(encoding="utf-8")
            full = _full_rewards(text, key="reward")
            rest[k] = word if full == text else word.removesuffix(value) + full
    return rest


def _full_rewards(text: str, key: str | None = None) -> str:
    """YAML with the bare reward names in it (under ``key``; None: the whole is rewards) as import paths; the rest as it was."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return text  # the parser says what is wrong with it
    if key is not None:
        node = _child(node, key)
    parts = [part if isinstance(part, yaml.ScalarNode) else _child(part, "class_path") for part in _items(node)]
    for part in reversed([p for p in parts if isinstance(p, yaml.ScalarNode) and re.fullmatch(r"[A-Za-z_]\w*", p.value)]):
        text = text[: part.start_mark.index] + _reward_path(part.value) + text[part.end_mark.index :]
    return text


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else [] if node is None else [node]


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    return next((v for k, v in node.value if k.value == key), None) if isinstance(node, yaml.MappingNode) else None


def _reward_names() -> list[str]:
    from discrete_grpo.rewards import molecules

    found = {name: getattr(molecules, name) for name in molecules.__all__ if name != "molecule_reward"}
    return [name for name, reward in found.items() if callable(reward) and not getattr(reward, "_is_protocol", False)]


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


_UNKNOWN = (
    r"unrecognized arguments: --([\w.]+)",
    r"[Kk]ey \"?'?([\w.]+)\"?'? is not expected",
    r"^Option '([\w.]+)' is not accepted",
    r"^Group '([\w.]+)' does not accept option '([\w.]+)'",
)


def _unknown_key(text: str, names: Sequence[str]) -> str | None:
    """A line for an unknown key in a parser's message, with the nearest right one; None if it says something else."""
    match = next(filter(None, (re.search(pattern, text) for pattern in _UNKNOWN)), None)
    if match is None:
        return None
    key = ".".join(match.groups())
    near = difflib.get_close_matches(key, names, 1, 0.5)
    if not near:
        near = [n for n in names if n.rpartition(".")[2] == key.rpartition(".")[2]][:1]
    return f"unknown field {key!r}" + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}")


def _bad_value(text: str) -> str:
    """A parser's message about a value as ``name: value, expected ...``; other messages in one line as they are."""
    match = re.search(r'Parser key "([\w.]+)":\s(.*)', text, re.DOTALL)
    value = re.search(r"^  Given value: (.*)|Got value: ([^\n]*)$", text, re.MULTILINE)
    if match is None or value is None:
        return " ".join(text.split())
    name, given = match[1], value[1] or value[2] or ""
    if name == "reward":
        given = re.sub(r"^Namespace\(class_path='([^']*)'.*", r"\1", given)
        reasons = re.findall(r"^ *- (?:Type .*? callable class: )?(.*?)(?:\. Got value: .*)?$", match[2], re.MULTILINE)
        reasons = [r for r in reasons if not r.startswith(("Expected a <class", "Expected an import path or"))]
        return f"reward: {given or 'nothing'} is no reward: {reasons[0] if reasons else 'expected an import path'}"
    kinds = re.findall(r"Expected an? (?:<class '(\w+)'>|typing.Literal\[(.*?)\])", match[2])
    wanted = " or ".join(dict.fromkeys((kind or f"one of {choices}").replace("NoneType", "null") for kind, choices in kinds))
    return f"{name}: {given!r}, expected {wanted}" if wanted else " ".join(text.split())


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
        raise UsageError(_unknown_key(text, _field_names(recipe)) or _bad_value(text)) from error
    values = {k: v for k, v in vars(built).items() if k not in ("config", "print_config")}
    return recipe(**values), parser.dump(settings, skip_unset=False)


def _start(command: str, arguments: Sequence[str]) -> None:
    from discrete_grpo import recipes
    from discrete_grpo.reporting.run_folder import write_json, write_text
    from discrete_grpo.scoring import RewardError

    recipe, settings = _parse(command, arguments)
    folder = Path(recipe.output_dir)
    if (folder / "run.json").exists():
        raise UsageError(
            f"output_dir: {folder} already holds a run; continue it with 'discrete-grpo resume {folder}' or name another folder"
        )
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"output_dir: {folder} cannot be made a folder ({error.strerror})") from error
    write_text(folder / "config.yaml", settings)
    write_json(folder / "run.json", {"command": command})
    run = recipes.run_pretrain if command == "pretrain" else recipes.run_train
    try:
        _guarded(folder, lambda: run(recipe))
    except (Interrupted, RewardError, KeyboardInterrupt):
        raise
    except Exception:
        _withdraw(folder, made)
        raise


def _withdraw(folder: Path, made: bool) -> None:
    """Take back the files of a run that failed before it had anything to keep, so that the corrected command can be given."""
    if (folder / "checkpoints").exists():
        return
    for name in ("config.yaml", "run.json"):
        (folder / name).unlink(missing_ok=True)
    if made and not any(folder.iterdir()):
        folder.rmdir()


def _resume(folder: Path) -> None:
    from discrete_grpo import recipes
    from discrete_grpo.checkpoint import Checkpoints

    try:
        command = json.loads((folder / "run.json").read_text())["command"]
        if command not in ("pretrain", "train") or not (folder / "config.yaml").is_file():
            raise ValueError("config.yaml is missing" if command in ("pretrain", "train") else f"command {command!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"run: {folder} is no run folder of 'discrete-grpo train' or 'pretrain' ({error})") from error
    recipe, _ = _parse(command, [f"--config={folder / 'config.yaml'}", f"--output_dir={folder}"])
    run = recipes.run_pretrain if command == "pretrain" else recipes.run_train
    _guarded(folder, lambda: run(recipe, resume=bool(Checkpoints(folder).all())))


def _guarded(folder: Path, run: Any) -> None:
    from discrete_grpo.scoring import RewardError

    try:
        run()
    except (Interrupted, RewardError, KeyboardInterrupt) as stopped:
        stopped.args = (f"{str(stopped) or 'stopped'}; saved, continue with: discrete-grpo resume {folder}",)
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
        raise UsageError(_unknown_key(str(error), names) or _bad_value(str(error))) from error
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

        folder = Path(given.run)
        if not any((folder / name).is_file() for name in ("run.json", "metrics.jsonl")):
            raise UsageError(f"run: {folder} is no run folder, expected one with run.json or metrics.jsonl")
        print(write_report(folder, draw=draw_smiles))


COMMANDS = ("pretrain", "train", "resume", "sample", "evaluate", "report", "list")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("discrete-grpo")
    except PackageNotFoundError:
        return "unknown (run from a folder, not installed)"


def _dispatch(arguments: Sequence[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: discrete-grpo COMMAND ...\n\n{DESCRIPTION}\n\ncommands: {', '.join(COMMANDS)}\n\n{EPILOG}")
        print("\nAdd -h to a command for its fields, --debug for full tracebacks.")
        return
    command, rest = arguments[0], arguments[1:]
    if command == "--version":
        print(_version())
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
    except Exception as error:
        if debug:
            raise
        said = " ".join(str(error).split())
        if not isinstance(error, ValueError | OSError | RuntimeError | ArithmeticError):  # not one of ours: say its kind too
            said = f"{type(error).__name__}: {said}"
        print(f"discrete-grpo: error: {said or type(error).__name__}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
