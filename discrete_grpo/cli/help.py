"""The help of the commands with a recipe: their options by topic with defaults and ranges; no recipe is imported."""

from __future__ import annotations

import ast
import importlib
import shutil
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from discrete_grpo.cli.commands import COMMANDS, RECIPES, presets
from discrete_grpo.cli.signatures import Definition, Field, choices, constant, dataclass_fields, field_docs, find, first_line
from discrete_grpo.core.checks import check_range

__all__ = ["MOST_USED", "TOPICS", "Option", "help_width", "options", "options_of", "overview", "run_help", "topics"]

_INDENT = 36
_LIGHT = "discrete_grpo.training.config"
"""A module of settings that does not import torch, so that its classes can be constructed to find their ranges."""

MOST_USED = (
    "policy",
    "reward",
    "output_dir",
    "grpo.max_steps",
    "grpo.num_generations",
    "grpo.generation_batch_size",
    "grpo.learning_rate",
    "grpo.beta",
    "grpo.seed",
    "evaluation_samples",
)
"""The options of ``train`` that come first in its help."""

TOPICS = {
    "reward": [
        "columns",
        "evaluation_columns",
        "rewards_see",
        "max_oracle_calls",
        "reward_cache",
        "grpo.scale_rewards",
        "grpo.baseline",
        "grpo.reward_weights",
        "grpo.multi_objective_aggregation",
        "grpo.advantage_clip",
        "grpo.zero_std_groups",
        "grpo.max_resampling_rounds",
        "grpo.patience",
        "grpo.when_stale",
    ],
    "KL": [
        "grpo.kl_estimator",
        "grpo.kl_direction",
        "grpo.kl_in",
        "grpo.use_bias_correction_kl",
        "grpo.sync_ref_model",
        "grpo.ref_model_mixup_alpha",
        "grpo.ref_model_sync_steps",
    ],
    "entropy": [
        "grpo.entropy_coef",
        "grpo.use_adaptive_entropy",
        "grpo.entropy_coef_min",
        "grpo.entropy_coef_max",
        "grpo.entropy_coef_delta",
        "grpo.entropy_target",
        "grpo.top_entropy_quantile",
    ],
    "measured scores": ["data", "score_column", "group_column", "sample_column", "offline_steps", "offline_likelihood"],
    "replay": ["grpo.replay_samples", "grpo.replay_memory", "grpo.refine_fraction", "grpo.refine_time", "grpo.refine_memory"],
    "run": [
        "report_to",
        "stop_above",
        "stop_metric",
        "stop_after",
        "grpo.save_steps",
        "grpo.save_total_limit",
        "grpo.metric_for_best_model",
        "grpo.greater_is_better",
        "grpo.load_best_model_at_end",
        "grpo.generation_shards",
        "grpo.bf16",
        "grpo.torch_compile",
        "grpo.checkpoint_layers",
    ],
}
"""The options of ``train`` by topic; all others belong to the policy (``what to train``) or the loss (``GRPO``)."""

CHECKS = ("check_range", "check_whole")
"""Functions whose calls in the source of settings contain the ranges."""
_BOUNDS = ("least", "above", "most", "below")
_TITLES = ("what to train", "reward", "measured scores", "GRPO", "KL", "entropy", "replay", "run")
_VALUES = {"int": "N", "float": "X", "str": "TEXT", "tuple": "LIST", "list": "LIST", "dict": "MAPPING", "Callable": "REWARD"}

EXAMPLES = {
    "train": (
        "discrete-grpo train demo --reward=logp --grpo.max_steps=50",
        "discrete-grpo train mine.yaml --policy=runs/pretrain --reward=my_rewards.length --output_dir=runs/length",
    ),
    "pretrain": ("discrete-grpo pretrain enumerated-tiny", "discrete-grpo pretrain --data=molecules.smi --pretrain.max_steps=2000"),
    "pretrain-graphs": ("discrete-grpo pretrain-graphs tree-16", "discrete-grpo pretrain-graphs --data=graphs.npz --shape=planar"),
    "pretrain-graph-sequences": (
        "discrete-grpo pretrain-graph-sequences tree-64-sequences",
        "discrete-grpo pretrain-graph-sequences --data=graphs.npz --shape=planar",
    ),
    "pretrain-smiles": ("discrete-grpo pretrain-smiles --data=molecules.smi --layers=4",),
    "pretrain-text": ("discrete-grpo pretrain-text --data=lines.txt --output_dir=runs/lines",),
    "judge": ("discrete-grpo judge --data=lines.txt --policy=runs/lines",),
    "pretrain-digits": ("discrete-grpo pretrain-digits digits-all",),
    "pretrain-spatial": ("discrete-grpo pretrain-spatial --data=molecules.sdf", "discrete-grpo pretrain-spatial qm9-3d --jobs=2"),
    "sft": ("discrete-grpo sft --policy=smiles-zinc --data=actives.smi", "discrete-grpo sft --policy=tree-64 --data=graphs.g6"),
    "optimise": ("discrete-grpo optimise --reward=my_rewards.docking --max_oracle_calls=2000",),
    "search": ("discrete-grpo search --policy=qm9-small --reward=qed --rounds=5",),
    "score": (
        "discrete-grpo score known.smi --reward=my_rewards.length",
        "discrete-grpo score known.csv --reward='[qed, logp]' --out=scores.csv",
    ),
}


class Option(NamedTuple):
    """An option of a command in its help; ``default`` and ``range`` are empty if unknown."""

    name: str
    value: str
    about: str
    default: str
    range: str


def options_of(definition: Definition) -> list[Option]:
    """The options of a dataclass of settings, with those of the groups in it, read from its source."""
    found: list[Option] = []
    docs = field_docs(definition)
    for field in dataclass_fields(definition):
        group = _group(field)
        if group is None:
            found.append(_option(definition, field, field.name, docs, known_default=True))
        else:
            inner = field_docs(group)
            given = _given_to_its_class(field)
            parts = [f if given is None else f._replace(default=given.get(f.name, f.default)) for f in dataclass_fields(group)]
            found += [_option(group, f, f"{field.name}.{f.name}", inner, given is not None) for f in parts]
    return found


def options(command: str) -> list[Option]:
    """The options of a command with a recipe."""
    return options_of(_settings(command))


def _settings(command: str) -> Definition:
    module, settings, _ = RECIPES[command]
    definition = find(module, settings)
    assert definition is not None
    return definition


def _group(field: Field) -> Definition | None:
    """The dataclass of a field that is a group of settings."""
    found = find(field.module, field.annotation.id) if isinstance(field.annotation, ast.Name) else None
    return found if found is not None and isinstance(found.node, ast.ClassDef) else None


def _given_to_its_class(field: Field) -> dict[str, ast.expr] | None:
    """The arguments with which the default of a group is constructed from its class; None if it is made in another way.

    ``default_factory`` is the class, or ``partial`` of the class with arguments by name. All other defaults of the class hold.
    """
    keywords = field.default.keywords if isinstance(field.default, ast.Call) else []
    factory = next((k.value for k in keywords if k.arg == "default_factory"), None)
    name = ast.unparse(field.annotation)
    if isinstance(factory, ast.Name) and factory.id == name:
        return {}
    if isinstance(factory, ast.Call) and [ast.unparse(x) for x in (factory.func, *factory.args)] == ["partial", name]:
        return {k.arg: k.value for k in factory.keywords if k.arg is not None}
    return None


def _option(owner: Definition, field: Field, name: str, docs: dict[str, str], known_default: bool) -> Option:
    about = docs.get(field.name, "").rstrip(".").replace("None", "null")
    default = _default(field) if known_default else ""
    return Option(name, _value(field), about, default, _range(owner, field))


def _value(field: Field) -> str:
    """A placeholder of the value, such as ``N`` of a whole number or ``{first,last}`` of a choice."""
    named: list[str] = []
    others: list[str] = []
    for part in _parts(field.annotation):
        text = ast.unparse(part)
        if text == "bool":
            named += ["true", "false"]
        elif text != "None":
            allowed = choices(field.module, part)
            named += allowed or []
            others += [] if allowed else [_VALUES.get(text.partition("[")[0], "VALUE")]
    return "|".join(dict.fromkeys([f"{{{','.join(named)}}}"] * bool(named) + others))


def _parts(annotation: ast.expr) -> Iterator[ast.expr]:
    if isinstance(annotation, ast.BinOp):
        yield from _parts(annotation.left)
        yield from _parts(annotation.right)
    else:
        yield annotation


def _default(field: Field) -> str:
    if field.default is None:
        return ""
    try:
        value = constant(field.module, field.default)
    except LookupError:
        return ""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _range(owner: Definition, field: Field) -> str:
    """The accepted range of a number, in the words of the error for a value that is not a number."""
    if not {"int", "float"} & {ast.unparse(part) for part in _parts(field.annotation)}:
        return ""
    assert isinstance(owner.node, ast.ClassDef)
    try:
        if owner.module == _LIGHT:
            getattr(importlib.import_module(owner.module), owner.node.name)(**{field.name: float("nan")})
        elif bounds := _bounds(owner.node, field):
            least, above, most, below = (bounds.get(name) for name in _BOUNDS)
            check_range(field.name, float("nan"), least=least, above=above, most=most, below=below)
    except ValueError as error:
        name, _, wanted = str(error).partition(": nan, expected ")
        return wanted.removeprefix("a whole number, ") if name == field.name else ""
    return ""


def _bounds(settings: ast.ClassDef, field: Field) -> dict[str, float]:
    """The bounds of a field in a call of one of :data:`CHECKS` with its name."""
    for call in (node for node in ast.walk(settings) if isinstance(node, ast.Call)):
        named = isinstance(call.func, ast.Name) and call.func.id in CHECKS and call.args
        if named and isinstance(call.args[0], ast.Constant) and call.args[0].value == field.name:
            given = {str(k.arg): constant(field.module, k.value) for k in call.keywords if k.arg in _BOUNDS}
            return {name: value for name, value in given.items() if isinstance(value, int | float)}
    return {}


def topics(command: str) -> dict[str, list[Option]]:
    """The options of a command by topic, each once; those of ``train`` as in :data:`TOPICS`, those of other commands by group."""
    found: dict[str, list[Option]] = {}
    every = {option.name: option for option in options(command)}
    if command == "train":
        found["most used"] = [every.pop(name) for name in MOST_USED if name in every]
        by_name = {name: topic for topic, names in TOPICS.items() for name in names}
        found |= {title: [] for title in _TITLES}
        for name, option in every.items():
            found[by_name.get(name, "GRPO" if name.startswith("grpo.") else "what to train")].append(option)
        return found
    for name, option in every.items():
        found.setdefault(name.rpartition(".")[0] or "options", []).append(option)
    return found


def help_width() -> int:
    """Characters of a line of help: those of the terminal, from 70 to 112."""
    return min(112, max(70, shutil.get_terminal_size((112, 24)).columns))


def _shown(option: Option) -> str:
    said = option.range in option.about or any(w in option.about for w in ("at least", "at most", "more than", "less than"))
    notes = [option.default and f"default {option.default}", "" if said else option.range]
    note = "; ".join(note for note in notes if note)
    about = f"{option.about} ({note})" if note else option.about
    head = f"  --{option.name} {option.value}"
    body = textwrap.fill(about, help_width(), initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT, break_on_hyphens=False)
    return f"{head}\n{body}" if len(head) > _INDENT - 2 else head.ljust(_INDENT) + body[_INDENT:]


def run_help(command: str) -> str:
    """The whole help of a command with a recipe."""
    names = ", ".join(presets(command))
    about = first_line(_settings(command).node) + (f" Presets: {names}." if names else "")
    lines = [
        f"usage: discrete-grpo {command} {_FIRST.get(command, '[PRESET | FILE.yaml]')} [--name=value ...]",
        "",
        textwrap.fill(about, help_width(), break_on_hyphens=False),
    ]
    for topic, found in topics(command).items():
        lines += ["", f"{topic}:", *map(_shown, found)]
    lines += ["", "general:"]
    lines += [f"  {name.ljust(_INDENT - 2)}{about}" for name, about in _GENERAL.items()]
    lines += ["", "examples:", *(f"  {example}" for example in EXAMPLES[command])]
    return "\n".join(lines)


_FIRST = {"score": "FILE"}
"""The first word of commands that have no presets."""
_GENERAL = {
    "--config FILE.yaml": "YAML file of options; it may stand anywhere, and later options replace its values",
    "--print_config": "print the resulting options as YAML and stop",
    "--debug": "print full tracebacks",
    "-h, --help": "print this help and stop",
}


def overview() -> str:
    """The help of the program: every command with one line."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name.ljust(width)}  {about}" for name, about in COMMANDS.items())
    return f"""usage: discrete-grpo COMMAND ...

GRPO of discrete generative models: pretrain a policy, fine-tune it against a reward, sample, evaluate, report.

commands:
{commands}

Add -h to a command for its options, and --debug for full tracebacks; --version prints the version.
Options of a preset are replaced by --name=value or --group.name=value.

examples:
  discrete-grpo train demo
  discrete-grpo train demo --grpo.num_generations=16 --grpo.max_steps=10 --reward=qed"""
