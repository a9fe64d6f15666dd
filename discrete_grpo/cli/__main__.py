"""The command line: ``discrete-grpo COMMAND``. Thin: it parses, calls a recipe, and turns errors into one line."""

from __future__ import annotations

from discrete_grpo.cli.import_path import append_working_folder, remove_working_folder

if __name__ == "__main__":  # before anything is imported that a file in the working folder may be called like
    remove_working_folder()

import difflib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from discrete_grpo.cli.parser import RUNS, UsageError, bad_value, known_rewards, parse, presets, recipe_of, unknown_key
from discrete_grpo.core.interrupt import Interrupted

__all__ = ["main"]

DESCRIPTION = "GRPO of discrete generative models: pretrain a policy, fine-tune it against a reward, sample, evaluate, report."
EPILOG = """Fields of a preset are overridden as --name=value or --group.name=value, for example
  discrete-grpo train demo --grpo.num_generations=16 --grpo.max_steps=10 --reward=qed"""


def _parsed(command: str, arguments: Sequence[str]) -> tuple[Any, str]:
    """What :func:`parse` gives; a reward that is not installed is looked for in the working folder, and nothing else is."""
    try:
        return parse(command, arguments)
    except (UsageError, ImportError) as error:
        if command not in ("train", "search") or "No module named" not in str(error.__cause__ or error):
            raise
    append_working_folder()
    return parse(command, arguments)


def _find_policy_class(settings: Any, name: str = "policy") -> None:
    """Look for modules in the working folder too where a policy class is named."""
    from discrete_grpo.recipes.loading import class_name

    if class_name(getattr(settings, name, None) or ""):
        append_working_folder()


def _start(command: str, arguments: Sequence[str]) -> None:
    from discrete_grpo.runs.recorder import check_unused, write_json, write_text

    recipe, settings = _parsed(command, arguments)
    _find_policy_class(recipe)
    if not recipe.output_dir.strip():
        raise UsageError(f"output_dir: {recipe.output_dir!r}, expected the name of a folder to make")
    folder = Path(recipe.output_dir)
    _, run = recipe_of(command)
    if int(os.environ.get("RANK", "0")) > 0:  # the first process makes the folder; the others meet it inside the run
        _guarded(folder, lambda: run(recipe))
        return
    if (folder / "run.json").exists():
        raise UsageError(
            f"output_dir: {folder} already holds a run; continue it with 'discrete-grpo resume {folder}' or name another folder"
        )
    check_unused(folder)
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"output_dir: {folder} cannot be made a folder ({error.strerror})") from error
    write_text(folder / "config.yaml", settings)
    write_json(folder / "run.json", {"command": command})
    try:
        _guarded(folder, lambda: run(recipe))
    except (Interrupted, KeyboardInterrupt):
        raise
    except Exception:
        _withdraw(folder, made)
        raise


def _withdraw(folder: Path, made: bool) -> None:
    """Take back the files of a run that failed before it had anything to keep, so that the corrected command can be given."""
    if _has_results(folder):
        return
    databases = [f"{name}.sqlite{part}" for name in ("ledger", "scores") for part in ("", "-wal", "-shm")]
    evaluation = ("evaluation.json", "evaluation_before.csv.gz")
    for name in ("config.yaml", "run.json", "columns.jsonl", "evaluation_columns.jsonl", *evaluation, *databases):
        (folder / name).unlink(missing_ok=True)
    if made and not any(folder.iterdir()):
        folder.rmdir()


def _has_results(folder: Path) -> bool:
    """Whether a run that failed is worth continuing: it has a checkpoint, or is a search that has scored something."""
    if (folder / "checkpoints").exists():
        return True
    if json.loads((folder / "run.json").read_text())["command"] != "search" or not (folder / "ledger.sqlite").exists():
        return False
    from discrete_grpo.rewards.ledger import Ledger

    ledger = Ledger(folder / "ledger.sqlite")
    try:
        ledger.catch_up()
        return bool(ledger.calls_by_reward())
    finally:
        ledger.close()


def _resume(folder: Path) -> None:
    try:
        command = json.loads((folder / "run.json").read_text())["command"]
        if command not in RUNS or not (folder / "config.yaml").is_file():
            raise ValueError("config.yaml is missing" if command in RUNS else f"command {command!r}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"run: {folder} is no run folder of 'discrete-grpo train' or 'pretrain' ({error})") from error
    recipe, _ = _parsed(command, [f"--config={folder / 'config.yaml'}", f"--output_dir={folder}"])
    _find_policy_class(recipe)
    _, run = recipe_of(command)
    _guarded(folder, lambda: run(recipe, resume=True))  # from its start where it was killed before its first checkpoint


def _guarded(folder: Path, run: Any) -> None:
    from discrete_grpo.core.scoring import RewardError

    try:
        run()
    except (Interrupted, RewardError, KeyboardInterrupt) as stopped:
        if isinstance(stopped, RewardError) and not _has_results(folder):
            raise  # a reward that does not fit the conditions: nothing was done yet
        stopped.args = (f"{str(stopped) or 'stopped'}; saved, continue with: discrete-grpo resume {folder}",)
        raise
    print(f"finished: {folder}")


_IMPORT_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("vocabulary", str | None, "MolGPT: JSON file of the tokens."),
    ("heads", int | None, "MolGPT and graph models: attention heads; default what the file says, else 8 as published."),
    ("properties", list[str] | None, "MolGPT: names of the properties it was trained with, in order."),
    ("start", str | None, "MolGPT: the token every molecule begins with."),
    ("max_length", int | None, "HuggingFace: the most tokens of a text."),
    ("bos", str | None, "HuggingFace: the token a text begins after."),
    ("eos", str | None, "HuggingFace: the token that ends a text."),
    ("dataset", str | None, "Graphs: the published data set: qm9, qm9-h, zinc, zinc-gdpo, moses, guacamol, planar, tree or sbm."),
    ("statistics", str | None, "Graphs: JSON file with node counts and marginals, instead of dataset."),
    ("noise", str | None, "Graphs: what is noised towards; default what the file says, else marginal."),
    ("num_steps", int | None, "Graphs: steps of the sampler; default what the file says, else the published number."),
    ("rrwp_steps", int | None, "DeFoG, Graph-GRPO: K of random-walk features other than the published 12 and 20."),
    ("diffusion_steps", int | None, "DiGress: steps of its schedule."),
    ("eta", float | None, "DeFoG, Graph-GRPO: stochasticity of the sampler; default for DeFoG what the file says, else 0."),
    ("omega", float | None, "DeFoG, Graph-GRPO: target guidance of the sampler; default for DeFoG what the file says, else 0."),
    ("sample_distortion", str | None, "DeFoG, Graph-GRPO: of the sampler's grid; default what the file says, else identity."),
    ("variant", str | None, "DiGress: main or fixed_bug."),
    ("padding", str | None, "Graphs: safe, or published, where padding counts as in the original code."),
    ("checkpoint_layers", bool | None, "Graphs: compute layers again for gradients: less memory, more time; off by default."),
)


_SAMPLER_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("num_steps", int | None, "Steps of a graph sampler; default the policy's."),
    ("temperature", float | None, "Of the logits; default the policy's."),
    ("top_k", int | None, "Most probable tokens kept; default the policy's."),
    ("top_p", float | None, "Probability kept; default the policy's."),
    ("guidance", float | None, "Of a conditional graph policy."),
    ("kernel", str | None, "Reverse step of a graph policy; the network is the same."),
    ("eta", float | None, "Stochasticity of kernel flow_euler."),
    ("omega", float | None, "Target guidance of kernel flow_euler."),
    ("sample_distortion", str | None, "Of a graph sampler's grid."),
)


def _other_parsers() -> dict[str, ArgumentParser]:
    def parser(command: str, about: str) -> ArgumentParser:
        return ArgumentParser(prog=f"discrete-grpo {command}", description=about, exit_on_error=False, allow_abbrev=False)

    resume = parser("resume", "Continue a stopped run to its end; only the run folder is needed.")
    resume.add_argument("run", type=str, help="Run folder.")
    sample = parser("sample", "Draw samples from a checkpoint.")
    sample.add_argument("checkpoint", type=str, help="Bundled policy, checkpoint folder or run folder.")
    sample.add_argument("-n", "--n", type=int, default=100, help="How many.")
    sample.add_argument(
        "--out", type=str, required=True, help=".csv or .csv.gz with all columns, .png of images, else a sample a line."
    )
    sample.add_argument("--seed", type=int, default=0, help="Of the generator.")
    sample.add_argument("--scaffold", type=str | None, default=None, help="SMILES that every sample should contain.")
    sample.add_argument("--columns", type=str | None, default=None, help="Conditions: a JSON mapping, or a file of JSON lines.")
    for name, kind, about in _SAMPLER_OPTIONS:
        sample.add_argument(f"--{name}", type=kind, default=None, help=about)
    evaluate = parser("evaluate", "The table of a file of samples: SMILES, images or graphs (V.U.N., MMDs, ratio).")
    evaluate.add_argument(
        "file", type=str, help="File of samples (.smi, .txt, .csv, .tsv, .g6, each optionally .gz; .npz of splits)."
    )
    evaluate.add_argument(
        "--reference",
        type=str | None,
        default=None,
        help="What novelty is measured against: a SMILES file; of graphs, a set or npz.",
    )
    evaluate.add_argument(
        "--shape", type=str | None, default=None, help="Valid graphs: planar, tree, sbm, connected; else the set's."
    )
    evaluate.add_argument("--out", type=str | None, default=None, help="JSON file for the numbers.")
    evaluate.add_argument("--smiles_column", type=str | None, default=None, help="Column of SMILES; default found by its name.")
    evaluate.add_argument("--reference_smiles_column", type=str | None, default=None, help="The same of the reference.")
    evaluate.add_argument("--max_bytes", type=int, default=4 << 30, help="Largest size that a gzipped file may unpack to.")
    evaluate.add_argument("--max_nodes", type=int, default=10_000, help="Largest number of nodes of a graph.")
    report = parser("report", "Write RUN/report.html again.")
    report.add_argument("run", type=str, help="Run folder.")
    listing = parser("list", "Presets, bundled policies, rewards and data sets.")
    bring = parser("import", "Make a policy of a checkpoint from elsewhere.")
    bring.add_argument("checkpoint", type=str, help="Folder or file.")
    sources = "huggingface, molgpt, reinvent, digress, defog or graph-grpo."
    bring.add_argument("--from", dest="source", type=str, required=True, help=sources)
    bring.add_argument("--out", type=str, required=True, help="Checkpoint folder to make.")
    for name, kind, about in _IMPORT_OPTIONS:
        bring.add_argument(f"--{name}", type=kind, default=None, help=about)
    found = {"resume": resume, "sample": sample, "evaluate": evaluate, "report": report, "list": listing}
    return found | {"import": bring}


def _list() -> None:
    from discrete_grpo.datasets.synthetic_graphs import NAMED_SETS
    from discrete_grpo.runs.checkpoint import bundled_policies

    for command in RUNS:
        print(f"presets for {command}:".ljust(29) + ", ".join(presets(command)))
    print("bundled policies:".ljust(29) + ", ".join(bundled_policies()))
    print("rewards:".ljust(29) + ", ".join(known_rewards()))
    print("data sets:".ljust(29) + "enumerated (bundled), qm9 and zinc250k (downloaded), or a SMILES file")
    print("graph sets:".ljust(29) + f"{', '.join(NAMED_SETS)} (made here), or an npz file of splits")


def _other(command: str, arguments: Sequence[str]) -> None:
    parser = _other_parsers()[command]
    try:
        given = parser.parse_args(list(arguments))
    except ArgumentError as error:
        names = [a.dest for a in parser._actions]
        raise UsageError(unknown_key(str(error), names) or bad_value(str(error))) from error
    if command == "list":
        _list()
    elif command == "resume":
        _resume(Path(given.run))
    elif command == "sample":
        _sample(given)
    elif command == "evaluate":
        _evaluate(given)
    elif command == "report":
        _report(Path(given.run))
    elif command == "import":
        from discrete_grpo.importers import import_checkpoint

        if not given.out.strip():
            raise UsageError(f"out: {given.out!r}, expected the name of a folder to make")
        options = {name: given[name] for name, *_ in _IMPORT_OPTIONS if given[name] is not None}
        folder = import_checkpoint(given.checkpoint, given.source, given.out, **options)
        _print_taken(folder)
        print(folder)


def _print_taken(folder: Path) -> None:
    """Print what an import of a graph model rests on and where each fact came from."""
    from discrete_grpo.runs.checkpoint import load_metadata

    for name, (value, origin) in load_metadata(folder).get("taken", {}).items():
        print(f"{name}:".ljust(17) + f"{value} ({origin})")


def _evaluate(given: Namespace) -> None:
    from discrete_grpo.recipes.evaluate import evaluate_file
    from discrete_grpo.recipes.families import FileOptions

    options = FileOptions(**{f.name: given[f.name] for f in fields(FileOptions)})
    evaluate_file(given.file, options, out=given.out)


def _sample(given: Namespace) -> None:
    from discrete_grpo.recipes.families import SamplerOptions
    from discrete_grpo.recipes.sample import sample_file

    _find_policy_class(given, "checkpoint")
    options = SamplerOptions(**{name: given[name] for name, *_ in _SAMPLER_OPTIONS})
    columns = given.columns
    if columns is not None and columns.lstrip().startswith("{"):
        try:
            columns = [json.loads(columns)]
        except ValueError as error:
            raise UsageError(f"columns: {given.columns!r} is no JSON ({error})") from error
    path = sample_file(
        given.checkpoint, given.n, given.out, seed=given.seed, scaffold=given.scaffold, columns=columns, options=options
    )
    print(path)


def _report(folder: Path) -> None:
    from discrete_grpo.recipes.families import run_family
    from discrete_grpo.runs.report.report import write_report

    if not any((folder / name).is_file() for name in ("run.json", "metrics.jsonl")):
        raise UsageError(f"run: {folder} is no run folder, expected one with run.json or metrics.jsonl")
    print(write_report(folder, draw=run_family(folder).draw))


COMMANDS = (*RUNS, "resume", "sample", "evaluate", "report", "import", "list")


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
    elif command in RUNS:
        _start(command, rest)
    elif command in COMMANDS:
        _other(command, rest)
    else:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"command: {command!r} is unknown; {hint}known: {', '.join(COMMANDS)}")


def _tell(text: str) -> None:
    """One line on standard error; what a reward or a file put into it cannot steer the terminal."""
    from discrete_grpo.runs.console import printable

    print(f"discrete-grpo: {printable(text)}", file=sys.stderr)


@contextmanager
def _readable_warnings() -> Iterator[None]:
    """Likewise for warnings that are printed within the block."""
    before = warnings.formatwarning

    def readable(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
        from discrete_grpo.runs.console import printable

        return "\n".join(map(printable, before(message, category, filename, lineno, line).split("\n")))

    warnings.formatwarning = readable
    try:
        yield
    finally:
        warnings.formatwarning = before


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 2 bad input or a failed reward, 130 stopped by Ctrl-C."""
    # oneDNN keeps what it compiled for each of the last 1,024 shapes; over texts of all lengths in bfloat16 that is many GB.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [a for a in given if a != "--debug"]
    try:
        with _readable_warnings():
            _dispatch(given)
    except (Interrupted, KeyboardInterrupt) as stopped:
        _tell(f"{stopped or 'stopped'}")
        return 130
    except Exception as error:
        if debug:
            raise
        said = " ".join(str(error).split())
        if not isinstance(error, ValueError | OSError | RuntimeError | ArithmeticError):  # not one of ours: say its kind too
            said = f"{type(error).__name__}: {said}"
        _tell(f"error: {said or type(error).__name__}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
