"""Parses the arguments of the commands without a run folder, such as sample, evaluate, import and preprocess."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from discrete_grpo.benchmarking.suites import DEFAULT_METHODS, JOB_TIMEOUT, SUITES
from discrete_grpo.cli.changes import may_change
from discrete_grpo.cli.commands import COMMANDS, UsageError
from discrete_grpo.cli.help import Option, help_width, options_of
from discrete_grpo.cli.numbers import written_out
from discrete_grpo.cli.signatures import find
from discrete_grpo.core.option_names import right_field

__all__ = ["IMPORT_OPTIONS", "read_arguments", "sampler_options"]


class _Parser(argparse.ArgumentParser):
    """A parser that raises UsageError instead of printing the usage and ending the program."""

    def __init__(self, command: str, arguments: str, example: str) -> None:
        about = f"{COMMANDS[command][0].upper()}{COMMANDS[command][1:]}."
        super().__init__(
            prog=f"discrete-grpo {command}",
            usage=f"discrete-grpo {command} {arguments}".rstrip(),
            description=about,
            epilog=f"example:\n  discrete-grpo {command} {example}".rstrip(),
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=36, width=help_width()),
            allow_abbrev=False,
            exit_on_error=False,
        )

    def error(self, message: str) -> Any:
        """Raise UsageError with a message of argparse."""
        raise UsageError(message)

    def option(self, name: str, kind: Callable[[str], Any], value: str, about: str, default: Any = None, short: str = "") -> None:
        """Add an option; its help ends with its default, unless that is None."""
        note = "" if default is None else f" (default {default})"
        flags = [f"-{short}"] * bool(short) + [f"--{name}"]
        self.add_argument(*flags, dest=name, type=kind, metavar=value, default=default, help=f"{about}{note}".replace("%", "%%"))

    def flag(self, name: str, about: str) -> None:
        """Add an option that is true where its name stands alone, and false by default."""
        note = f"{about} (default false)"
        self.add_argument(f"--{name}", type=_flag, nargs="?", const=True, default=False, metavar="{true,false}", help=note)


def _number(kind: type, text: str) -> Any:
    if text == "null":
        return None
    try:
        return kind(written_out(text) if kind is int else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}, expected {kind.__name__}") from error


def _whole(text: str) -> int | None:
    return _number(int, text)


def _real(text: str) -> float | None:
    return _number(float, text)


def _text(text: str) -> str | None:
    return None if text == "null" else text


def _flag(text: str) -> bool | None:
    known = {"true": True, "false": False, "null": None}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r}, expected true or false")
    return known[text.lower()]


def _names(text: str) -> list[str] | None:
    """Names as ``[a, b]`` or ``a,b``."""
    inner = text.removeprefix("[").removesuffix("]")
    return None if text == "null" else [name.strip().strip("'\"") for name in inner.split(",") if name.strip()]


def _wholes(text: str) -> list[int]:
    """Whole numbers as ``[0, 1]`` or ``0,1``."""
    try:
        return [int(written_out(part)) for part in _names(text) or []]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a list of int") from error


IMPORT_OPTIONS: tuple[tuple[str, Callable[[str], Any], str, str], ...] = (
    ("vocabulary", _text, "FILE", "MolGPT: JSON file of the tokens"),
    (
        "heads",
        _whole,
        "N",
        "MolGPT, DiGress, DeFoG and Graph-GRPO: number of attention heads; by default that of the file, else the published 8",
    ),
    ("properties", _names, "LIST", "MolGPT: names of the properties of its training, in order, as [logp,sas]"),
    ("start", _text, "TOKEN", "MolGPT: token that every molecule begins with"),
    ("max_length", _whole, "N", "HuggingFace: largest number of tokens of a text"),
    ("bos", _text, "TOKEN", "HuggingFace: token that a text begins after"),
    ("eos", _text, "TOKEN", "HuggingFace: token that ends a text"),
    (
        "dataset",
        _text,
        "NAME",
        "DiGress, DeFoG and Graph-GRPO: published data set: qm9, qm9-h, zinc, zinc-gdpo, moses, guacamol, planar, tree or sbm",
    ),
    ("statistics", _text, "FILE", "graph models: JSON file with node counts and marginals; for MiDi also with its elements"),
    (
        "noise",
        _text,
        "NAME",
        "DiGress, DeFoG and Graph-GRPO: distribution of the noise; by default that of the file, else marginal",
    ),
    ("num_steps", _whole, "N", "graph models: steps of the sampler; by default those of the file, else the published number"),
    ("rrwp_steps", _whole, "N", "DeFoG and Graph-GRPO: steps of the random-walk features, if not the published 12 or 20"),
    ("diffusion_steps", _whole, "N", "DiGress and MiDi: steps of the noise schedule"),
    ("eta", _real, "X", "DeFoG and Graph-GRPO: stochasticity of the sampler; by default that of a DeFoG file, else 0"),
    ("omega", _real, "X", "DeFoG and Graph-GRPO: target guidance of the sampler; by default that of a DeFoG file, else 0"),
    (
        "sample_distortion",
        _text,
        "NAME",
        "DeFoG and Graph-GRPO: time grid of the sampler; by default that of the file, else identity",
    ),
    ("schedule", _text, "NAME", "MiDi: exponents of its noise, adaptive or uniform; by default those of the file"),
    ("variant", _text, "NAME", "DiGress: main or fixed_bug; MiDi: main or first"),
    ("padding", _text, "NAME", "DiGress, DeFoG and Graph-GRPO: safe, or published, where padding counts as in the original code"),
    (
        "checkpoint_layers",
        _flag,
        "{true,false}",
        "graph models: compute layers again in the backward pass, for memory (default false)",
    ),
)
"""The options of ``import``: name, type, placeholder of the value, and help."""


def sampler_options() -> list[Option]:
    """The options of ``sample`` that change the sampler of a policy."""
    found = find("discrete_grpo.recipes.families", "SamplerOptions")
    assert found is not None
    return [option for option in options_of(found) if option.name != "shared_steps"]


_CHANGES = f"""\
options, which the run keeps, also where it has finished:
  train      {", ".join(may_change("train"))}
  pretrain   {", ".join(may_change("pretrain"))}; sft and judge too
  optimise   {", ".join(may_change("optimise"))}
  search     {", ".join(may_change("search"))}"""


def _resume() -> _Parser:
    parser = _Parser("resume", "RUN [--name=value ...]", "runs/demo --grpo.max_steps=200")
    parser.add_argument("run", help="run folder; nothing else is needed but the data of a pretraining")
    parser.epilog = f"{_CHANGES}\n\n{parser.epilog}"
    return parser


def _report() -> _Parser:
    parser = _Parser("report", "RUN", "runs/demo")
    parser.add_argument("run", help="run folder, in which report.html is written; of a benchmark, results.html")
    return parser


def _best() -> _Parser:
    parser = _Parser("best", "RUN [--name=value ...]", "runs/demo -n 20 --per_scaffold=1 --out=best.sdf")
    parser.add_argument("run", help="run folder of train, optimise or search")
    parser.option("n", _whole, "N", "largest number of samples, at least 1", 50, short="n")
    about = "largest number of molecules with the same Murcko scaffold; those without rings have one in common; by default any"
    parser.option("per_scaffold", _whole, "N", about)
    about = "of several rewards: only samples that no other one dominates, as good by every reward and better by one"
    parser.flag("pareto", about)
    about = "file to write: .csv, .smi, .txt, .sdf or .png; by default rewards and samples are printed"
    parser.option("out", _text, "FILE", about)
    return parser


def _list() -> _Parser:
    parser = _Parser("list", "[policies | tasks | methods]", "policies")
    about = "bundled policies in full, or tasks or methods of benchmarks; by default presets, policies, rewards and data sets"
    parser.add_argument("what", nargs="?", choices=("policies", "tasks", "methods"), metavar="WHAT", help=about)
    return parser


def _benchmark() -> _Parser:
    parser = _Parser("benchmark", "SUITE [--name=value ...]", "pmo --tasks=qed,zaleplon_mpo --seeds='[0,1,2]' --jobs=2")
    parser.add_argument("suite", help=f"suite of tasks: {', '.join(SUITES)}")
    own = "own ones as my_module:my_"
    parser.option("tasks", _names, "LIST", f"tasks of the suite, as [qed,median1] (see 'list tasks'); {own}task; by default all")
    about = f"methods (see 'list methods'); {own}method; by default {' and '.join(DEFAULT_METHODS)}, if they fit"
    parser.option("methods", _names, "LIST", about)
    parser.option("policy", _text, "TEXT", "policy that methods start from; by default that of the suite")
    parser.option("budget", _whole, "N", "oracle calls per row, at least 1; by default those of the suite")
    parser.option("seeds", _wholes, "LIST", "random seeds, one row each", [0, 1, 2])
    parser.option("jobs", _whole, "N", "worker processes at a time, with one thread each, at least 1", 1)
    about = "folder to make; one that holds a benchmark of the suite goes on and keeps its rows"
    parser.option("output_dir", str, "FOLDER", about, "runs/benchmark")
    parser.option("screen", _text, "FILE", "SMILES file that method random screens; by default the bundled small molecules")
    about = "SMILES file whose molecules the methods with a memory score first, each counted as a call"
    parser.option("warm_start", _text, "FILE", about)
    parser.option("warm_start_calls", _whole, "N", "how many of them, in their order, at least 1; by default all within the budget")
    parser.option("receptors", _text, "FOLDER", "docking: folder of the prepared receptors (PDBQT)")
    parser.option("exhaustiveness", _whole, "N", "docking: exhaustiveness of the search, at least 1", 1)
    parser.option("reference", _text, "FILE", "docking: SMILES file of the training molecules, to count novel hits")
    about = "pmo: folder of drd2.skops, gsk3b.skops or jnk3.skops (or .onnx), to have these tasks too"
    parser.option("classifiers", _text, "FOLDER", about)
    parser.option("trusted", _names, "LIST", "types in these files that may be made, as [sklearn.tree._tree.Tree]", ())
    parser.option("job_timeout", _real, "X", "seconds after which a job counts as hanging and is ended; null for none", JOB_TIMEOUT)
    return parser


def _preprocess() -> _Parser:
    parser = _Parser("preprocess", "FILE --output_dir=FOLDER [--name=value ...]", "guacamol.smi.gz --output_dir=data/guacamol")
    parser.add_argument("data", help="file of molecules (.smi, .txt, .csv, .tsv, each optionally with .gz), or name of a download")
    about = "folder to make; one that was begun with the same file and options is finished, and its shards are kept"
    parser.option("output_dir", str, "FOLDER", about)
    parser.option("form", str, "{smiles,graphs}", "what to write: smiles for pretrain-smiles, graphs for pretrain", "smiles")
    parser.option(
        "properties", _names, "LIST", "conditions of a policy: columns of numbers in data, and else RDKit descriptors", ()
    )
    parser.option("scaffold", _flag, "{true,false}", "smiles: keep Murcko scaffolds, that a policy can be conditioned on", False)
    parser.option("max_atoms", _whole, "N", "graphs: leave out molecules with more heavy atoms; by default none")
    parser.option("max_broken", _real, "X", "largest share of lines that may not be a molecule, 0 to 1", 0.05)
    parser.option("smiles_column", _text, "NAME", "column of SMILES; by default it is found by its name")
    parser.option("max_bytes", _whole, "N", "largest size in bytes that a gzipped file may unpack to", 4 << 30)
    parser.option("shard_lines", _whole, "N", "lines of a shard, at least 1", 100_000)
    parser.option("jobs", _whole, "N", "processes, at least 1; by default one per core")
    return parser


def _sample() -> _Parser:
    parser = _Parser("sample", "CHECKPOINT [--out=FILE] [--name=value ...]", "qm9-small -n 1000 --out=molecules.csv --seed=1")
    parser.add_argument("checkpoint", help="bundled policy, checkpoint folder or run folder")
    about = (
        "file to write: .csv or .csv.gz for a table with the conditions, .png for images, .graphml, .json or .g6"
        " (.d6 if directed) for graphs, .sdf or .xyz for molecules in space, .smi or .txt for the valid ones, one per line; also"
        " .gz (default: the valid samples are printed)"
    )
    parser.option("out", _text, "FILE", about)
    parser.option("n", _whole, "N", "number of samples, at least 1", 100, short="n")
    parser.option("seed", _whole, "N", "random seed of the sampler", 0)
    parser.flag("distinct", "draw until n valid samples are found that all differ, and write these alone")
    parser.option("max_draws", _whole, "N", "with distinct: largest number of draws, at least n (default 100 per sample)")
    parser.option("scaffold", _text, "SMILES", "SMILES that every sample should contain, with * where a graph policy grows it")
    parser.option("device", _text, "DEVICE", "device to draw on, such as cuda (default cpu)")
    parser.option("columns", _text, "TEXT", "conditions of the samples: a JSON mapping, or a file of JSON lines")
    _add_sampler_options(parser)
    return parser


def _add_sampler_options(parser: _Parser) -> None:
    kinds = {"N": _whole, "X": _real}
    for option in sampler_options():
        parser.option(option.name, kinds.get(option.value, _text), option.value, option.about)


def _likelihood() -> _Parser:
    parser = _Parser("likelihood", "POLICY FILE [--out=FILE] [--name=value ...]", "smiles-zinc actives.smi --out=actives.csv")
    parser.add_argument(
        "policy", help="bundled policy, checkpoint folder or run folder, of texts, graph sequences or graph diffusion"
    )
    parser.add_argument("file", help="file of samples of the kind that the policy draws, as for the command evaluate")
    about = "file to write: .csv or .csv.gz, a table with one row per sample (default: the means are printed)"
    parser.option("out", _text, "FILE", about)
    about = "SMILES that is scored: canonical, or written for the text as it stands"
    parser.option("spelling", str, "{canonical,written}", about, "canonical")
    about = "graph diffusion: number of noised states per sample, at least 1, at which its lower bound is estimated"
    parser.option("draws", _whole, "N", about, 50)
    parser.option("seed", _whole, "N", "graph diffusion: random seed of these states", 0)
    parser.option(
        "columns", _text, "TEXT", "conditions, one for all samples or one per sample: a JSON mapping, or a file of JSON lines"
    )
    parser.option("scaffold", _text, "SMILES", "scaffold that a SMILES policy reads, for all samples")
    parser.option("batch_size", _whole, "N", "number of texts scored at a time, which does not change the result", 64)
    parser.option("device", _text, "DEVICE", "device to compute on, such as cuda (default cpu)")
    parser.option("smiles_column", _text, "NAME", "column of SMILES; by default it is found by its name")
    parser.option("node_attribute", _text, "NAME", "graphs: attribute of nodes that holds their class; by default the only one")
    parser.option("edge_attribute", _text, "NAME", "graphs: attribute of edges that holds their class; by default the only one")
    parser.option("max_nodes", _whole, "N", "largest number of nodes of a graph", 10_000)
    parser.option("max_bytes", _whole, "N", "largest size in bytes that a gzipped file may unpack to", 4 << 30)
    _add_sampler_options(parser)
    return parser


def _evaluate() -> _Parser:
    parser = _Parser("evaluate", "FILE [--name=value ...]", "molecules.smi --reference=train.smi --out=metrics.json")
    about = (
        "file of samples: molecules (.smi, .smiles, .txt, .csv, .tsv), molecules in space (.sdf, .xyz, .smi), graphs (.g6,"
        " .d6, .graphml, .gml, .json, .jsonl, .edgelist, .edges, .arcs), each optionally with .gz; of graphs also .pt, .pth, .npz"
        " of splits, or a folder; images and text as lines or tables"
    )
    parser.add_argument("file", help=about)
    about = (
        "data that novelty is measured against: a SMILES file; of molecules in space, an .sdf, .xyz or .smi file with positions; of"
        " graphs, a named set, a file or folder of graphs, or a run, for the graphs that it was trained on and tested with"
    )
    parser.option("reference", _text, "FILE", about)
    shapes = "planar, tree, sbm or connected, of directed graphs dag or connected"
    parser.option("shape", _text, "NAME", f"graphs that count as valid: {shapes}; by default those of the set")
    parser.option("out", _text, "FILE", "JSON file for the numbers")
    kinds = "molecules, spatial, graphs, digraphs, text, images or samples"
    parser.option("kind", _text, "NAME", f"kind of the samples: {kinds}; by default it is recognised")
    parser.option(
        "suite", _text, "NAME", "distribution metrics with intervals: moses, guacamol, graphs or spatial; needs --reference"
    )
    parser.option("train", _text, "FILE", "suite moses: training molecules for novelty; by default the reference")
    parser.option("bootstrap", _whole, "N", "suites: parts drawn for each interval, 0 for none; by default 100")
    parser.option("folds", _whole, "N", "suites: equal runs of samples whose mean and deviation are shown")
    parser.option("sbm_method", _text, "NAME", "suite graphs, shape sbm: louvain (default) or graph-tool")
    parser.option("node_attribute", _text, "NAME", "graphs: attribute of nodes that holds their class; by default the only one")
    parser.option("edge_attribute", _text, "NAME", "graphs: attribute of edges that holds their class; by default the only one")
    parser.option("smiles_column", _text, "NAME", "column of SMILES; by default it is found by its name")
    parser.option("reference_smiles_column", _text, "NAME", "column of SMILES in the reference; by default it is found by its name")
    parser.option("max_bytes", _whole, "N", "largest size in bytes that a gzipped file may unpack to", 4 << 30)
    parser.option("max_nodes", _whole, "N", "largest number of nodes of a graph", 10_000)
    return parser


def _import() -> _Parser:
    example = "digress.ckpt --from=digress --dataset=qm9 --out=policies/digress"
    parser = _Parser("import", "CHECKPOINT --from=PROGRAM --out=FOLDER [--name=value ...]", example)
    parser.add_argument("checkpoint", help="folder or file of the other program")
    parser.option("from", str, "PROGRAM", "huggingface, molgpt, reinvent, digress, defog, graph-grpo or midi")
    parser.option("out", str, "FOLDER", "checkpoint folder to make")
    for name, kind, value, about in IMPORT_OPTIONS:
        parser.option(name, kind, value, about)
    return parser


_PARSERS = {"resume": _resume, "sample": _sample, "evaluate": _evaluate, "report": _report, "list": _list, "import": _import}
_PARSERS |= {"benchmark": _benchmark, "preprocess": _preprocess, "best": _best, "likelihood": _likelihood}
_REQUIRED = {"preprocess": ("output_dir",), "import": ("from", "out")}


def read_arguments(command: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The arguments of a command by name.

    Raises:
        UsageError: for an unknown option, a value of the wrong type, or a missing argument.
        SystemExit: after ``-h`` printed the help.
    """
    parser = _PARSERS[command]()
    try:
        found, unknown = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        name = (error.argument_name or "").rpartition("/")[2].lstrip("-")
        raise UsageError(f"{name}: {error.message}" if name else error.message) from error
    given = vars(found)
    if command == "resume":
        return given | {"changes": unknown}
    for word in unknown:
        if word.startswith("--"):
            key = word.removeprefix("--").partition("=")[0]
            raise UsageError(f"unknown field {key!r}; {right_field(key, list(given))}")
        raise UsageError(f"unrecognized arguments: {word}")
    missing = [name for name in _REQUIRED.get(command, ()) if given[name] is None]
    if missing:
        raise UsageError(f"the following arguments are required: {', '.join(missing)}")
    return given
