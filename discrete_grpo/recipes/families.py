"""What recipes need to know of a kind of samples - molecules, text, images - and loading any trained policy for use."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.core.rollout import Context
from discrete_grpo.diffusion.choices import Distortion, KernelName
from discrete_grpo.domains import graph6 as topology
from discrete_grpo.domains import molecules as chemistry
from discrete_grpo.metrics import graphs as graph_metrics
from discrete_grpo.metrics import images as image_metrics
from discrete_grpo.metrics import molecules as molecule_metrics
from discrete_grpo.metrics import text as text_metrics
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.options import graph_part
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.recipes.digits import image_properties, write_sheet
from discrete_grpo.recipes.graphs import reference_of
from discrete_grpo.recipes.molecules import (
    load_molecule_policy,
    load_statistics,
    output_path,
    property_columns,
    scaffold_sites,
    with_sampler,
)
from discrete_grpo.rewards.diversity import diversity_metrics
from discrete_grpo.rewards.ledger import molecule_key, text_key
from discrete_grpo.runs.checkpoint import BUNDLED, CheckpointError, Checkpoints, find_checkpoint, load_metadata, load_policy
from discrete_grpo.runs.console import print_table, progress
from discrete_grpo.runs.report.graphs import draw_graph
from discrete_grpo.runs.report.images import draw_image
from discrete_grpo.runs.report.molecules import draw_smiles

__all__ = [
    "Family",
    "SamplerOptions",
    "family_of",
    "load_trained",
    "prepare_columns",
    "read_columns",
    "run_family",
    "sample_file",
    "sample_policy",
]

Columns = Mapping[str, Any]
RESERVED = ("step", "group", "sample", "reward", "advantage", "smiles", "text", "image")
"""Names that the columns of sample tables have already."""


@dataclass(frozen=True)
class Family:
    """One kind of samples.

    Attributes:
        column: name of the samples' column in a table.
        sample_metrics: cheap numbers of a batch of samples, for every step.
        evaluate: the numbers of an evaluation.
        table: further columns of a table of samples.
        draw: a sample's text as an SVG element, or None where it cannot be drawn.
        key: what makes two samples the same to a ledger; None for an invalid one.
    """

    column: str
    sample_metrics: Callable[[Sequence[Any]], Mapping[str, float]]
    evaluate: Callable[[Sequence[Any]], Mapping[str, float]]
    table: Callable[[Sequence[Any]], Mapping[str, Sequence[Any]]]
    draw: Callable[[str], str | None] | None
    key: Callable[[Any], str | None] = text_key


def _molecule_metrics(samples: Sequence[Any]) -> Mapping[str, float]:
    return dict(molecule_metrics.sample_metrics(samples)) | diversity_metrics(samples)


MOLECULES = Family("smiles", _molecule_metrics, molecule_metrics.evaluate, property_columns, draw_smiles, molecule_key)
TEXT = Family("text", text_metrics.sample_metrics, text_metrics.evaluate, lambda samples: {}, None)
IMAGES = Family("image", image_metrics.sample_metrics, image_metrics.evaluate, image_properties, draw_image)


def family_of(metadata: Mapping[str, Any]) -> Family:
    """The kind of samples a checkpoint's policy makes, by its ``kind``: molecules (the default), graphs, text or images.

    Raises:
        CheckpointError: for another kind.
    """
    kind = metadata.get("kind", "molecules")
    if kind == "graphs":
        return _graphs(metadata)
    known = {"molecules": MOLECULES, "text": TEXT, "images": IMAGES}
    if not isinstance(kind, str) or kind not in known:
        raise CheckpointError(f"kind: {kind!r} of the checkpoint, expected one of graphs, {', '.join(known)}")
    return known[kind]


def _graphs(metadata: Mapping[str, Any]) -> Family:
    """Plain graphs, measured against the set their policy was trained on."""
    shape = metadata.get("shape", "connected")

    def evaluate(samples: Sequence[Any]) -> Mapping[str, float]:
        return graph_metrics.evaluate(samples, reference_of(metadata), shape)

    return Family("graph", partial(graph_metrics.sample_metrics, shape=shape), evaluate, _graph_sizes, draw_graph)


def _graph_sizes(samples: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
    graphs = [None if s is None else topology.from_graph6(s) for s in samples]
    return {
        "nodes": [None if g is None else g.number_of_nodes() for g in graphs],
        "edges": [None if g is None else g.number_of_edges() for g in graphs],
    }


def run_family(run: Path) -> Family:
    """The kind of samples of a run folder, by its newest checkpoint; molecules where it has none."""
    for folder in (run / "policy", *reversed(Checkpoints(run).all())):
        try:
            return family_of(load_metadata(folder))
        except CheckpointError:
            continue
    return MOLECULES


# -- loading


GRAPH_OPTIONS = ("num_steps", "guidance", "kernel", "eta", "omega", "sample_distortion", "shared_steps")
"""Settings that only graph policies have."""


@dataclass(frozen=True)
class SamplerOptions:
    """How a loaded policy draws, where it differs from what its checkpoint says; None keeps that.

    Attributes:
        num_steps: steps of a graph policy's sampler.
        temperature: of the logits.
        top_k, top_p: truncation of token and text policies.
        guidance: weight of classifier-free guidance of a conditional graph policy.
        kernel: the reverse step of a graph policy, of the same noise and schedule: d3pm, flow, flow_euler.
        eta: stochasticity of kernel flow_euler.
        omega: target guidance of kernel flow_euler.
        sample_distortion: of a graph policy's grid: identity, cos, revcos, polyinc or polydec.
        shared_steps: first steps of a graph policy's sampler that a group takes together.
    """

    num_steps: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    guidance: float | None = None
    kernel: KernelName | None = None
    eta: float | None = None
    omega: float | None = None
    sample_distortion: Distortion | None = None
    shared_steps: int | None = None

    def given(self, *names: str) -> dict[str, Any]:
        """Those of ``names`` that are not None."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def of_graphs(self) -> dict[str, Any]:
        """What a graph policy can change."""
        return self.given(*GRAPH_OPTIONS, "temperature")

    def refuse(self, policy: object, *names: str) -> None:
        """Raise ValueError if one of ``names`` is given: ``policy`` has no such setting."""
        for name, value in self.given(*names).items():
            raise ValueError(f"{name}: {value}, expected none: {type(policy).__name__} has no such setting")


def load_trained(name: str | Path, options: SamplerOptions | None = None) -> Any:
    """Any trained policy, ready to draw what rewards see: molecules as canonical SMILES, text, images.

    Args:
        name: a bundled policy's name, a checkpoint folder or a run folder.
        options: changes to how it draws.

    Raises:
        CheckpointError: if the checkpoint is missing or damaged.
        ValueError: if the policy has no such option, or the option is out of its range.
    """
    options, folder = options or SamplerOptions(), find_checkpoint(name)
    policy = load_policy(folder)
    inner = graph_part(policy)
    if inner is not None:
        options.refuse(policy, "top_k", "top_p")
        if load_metadata(folder).get("kind") == "graphs":
            inner.decode = topology.batch_to_graph6
            return with_sampler(policy, **options.of_graphs)
        return load_molecule_policy(folder, **options.of_graphs)
    changed = _with_truncation(policy, options)
    if isinstance(changed, TokenPolicy) and load_metadata(folder).get("kind", "molecules") == "molecules":
        changed.decode = chemistry.canonical_samples
    return changed.eval()


def _with_truncation(policy: Any, options: SamplerOptions) -> Any:
    """A token or text policy with the temperature, top-k and top-p of ``options``."""
    options.refuse(policy, *GRAPH_OPTIONS)
    changes = options.given("temperature", "top_k", "top_p")
    if not changes:
        return policy
    args = policy.init_args()
    if isinstance(policy, DecodedPolicy):
        return type(policy)(**args | {"policy": _with_truncation(args["policy"], options)})
    if not isinstance(args.get("truncation"), Truncation):
        options.refuse(policy, "temperature", "top_k", "top_p")
    return type(policy)(**args | {"truncation": replace(args["truncation"], **changes)})


# -- conditions


def read_columns(given: str | Sequence[Columns]) -> list[Columns]:
    """Conditions as a list of mappings: as given, or from a JSON-lines file (a path, or one inside the bundled policies).

    Raises:
        ValueError: if there are none, or a line is no JSON object.
        FileNotFoundError: if there is no such file.
    """
    if not isinstance(given, str):
        found = list(given)
        source = "columns"
    else:
        path = next((p for p in (Path(given), BUNDLED / given) if p.is_file()), None)
        if path is None:
            raise FileNotFoundError(f"columns: {given!r} is no file of JSON lines, expected one, or a list such as [{{label: 3}}]")
        found, source = [], f"columns: {path}"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"columns: {path} line {number} is no JSON ({error})") from error
    for condition in found:
        if not isinstance(condition, Mapping):
            raise ValueError(f"{source}: {condition!r}, expected a mapping of column names to values")
        if taken := [name for name in condition if name in RESERVED]:
            raise ValueError(f"{source}: a condition named {taken[0]!r}, expected none of {', '.join(RESERVED)}")
    if not found:
        raise ValueError(f"{source}: no conditions, expected at least one")
    return found


def prepare_columns(policy: Any, folder: Path, given: Sequence[Columns] | None, scaffold: str | None) -> list[Columns] | None:
    """The conditions as the policy reads them, each tried once so that a bad one is named before any work.

    ``scaffold`` is added to each. A graph policy reads a scaffold as fixed atoms and bonds, a SMILES policy as a prompt in
    the form it was trained on; rewards see it as the column ``scaffold``.

    Raises:
        ValueError: if a condition is one the policy cannot follow.
    """
    if given is None and scaffold is None:
        return None
    reads = isinstance(policy, GraphPolicy) or (isinstance(policy, TokenPolicy) and policy.prompt == "scaffold")
    if scaffold is not None and not reads:
        raise ValueError(f"scaffold: {scaffold!r}, expected none: the policy was not trained on scaffolds")
    base = {} if scaffold is None else {"scaffold": scaffold}
    conditions = [_prepared(policy, folder, {**base, **condition}) for condition in (given if given is not None else [{}])]
    for condition in conditions:
        _check_names(policy, condition)
        check = getattr(policy, "check_condition", None)
        if check is not None:
            check(condition)
    return conditions


def _check_names(policy: Any, condition: Columns) -> None:
    """Refuse a name that is nearly one the policy reads; others are the rewards' own."""
    inner = policy.policy if isinstance(policy, DecodedPolicy) else graph_part(policy) or policy
    reads = [p.name for p in getattr(inner, "properties", ())]
    if isinstance(inner, GraphPolicy):
        reads += ["num_nodes", "fixed", "scaffold"]
    elif isinstance(inner, MaskedTextPolicy):
        reads += ["masked"]
    elif getattr(inner, "prompt", None) is not None:
        reads += [inner.prompt]
    for name in condition:
        near = difflib.get_close_matches(name, reads, 1, 0.8)
        if name not in reads and near:
            raise ValueError(f"columns: a condition named {name!r}; did you mean {near[0]!r}?")


def _prepared(policy: Any, folder: Path, condition: Columns) -> Columns:
    text = condition.get("scaffold")
    if text is None:
        return condition
    if not isinstance(text, str):
        raise ValueError(f"scaffold: {text!r}, expected a SMILES string")
    inner = graph_part(policy)
    if inner is not None:
        vocabulary = load_statistics(folder).vocabulary
        return {**condition, "fixed": scaffold_sites(text, vocabulary, inner.max_nodes)}
    mol = chemistry.parse(text)
    if mol is None:
        raise ValueError(f"scaffold: {text!r}, expected a valid, connected SMILES")
    return {**condition, "scaffold": chemistry.to_smiles(mol, stereo=False)}


# -- sampling


def sample_policy(
    policy: Any, count: int, *, seed: int = 0, batch_size: int = 256, columns: Sequence[Columns] | None = None
) -> tuple[list[Any], dict[str, list[Any]]]:
    """``count`` samples, each a group of its own, and their condition columns; conditions are gone through in turn.

    Raises:
        ValueError: if ``count`` is less than 1.
    """
    if count < 1:
        raise ValueError(f"n: {count}, expected at least 1")
    generator = torch.Generator(policy.device).manual_seed(seed)
    samples: list[Any] = []
    found: dict[str, list[Any]] = {}
    with progress("sampling", count) as bar:
        while len(samples) < count:
            rows = range(len(samples), min(count, len(samples) + batch_size))
            contexts = [Context(k, columns[k % len(columns)] if columns else {}) for k in rows]
            rollout = policy.sample(contexts, generator=generator)
            for name, values in rollout.columns.items():
                found.setdefault(name, [None] * len(samples)).extend(values)
            samples.extend(rollout.samples)
            for values in found.values():
                values.extend([None] * (len(samples) - len(values)))
            bar.advance(len(rows))
    return samples, found


def sample_file(
    checkpoint: str,
    n: int,
    out: str,
    *,
    seed: int = 0,
    scaffold: str | None = None,
    columns: str | Sequence[Columns] | None = None,
    options: SamplerOptions | None = None,
) -> Path:
    """Draw ``n`` samples into ``out``: ``.csv`` or ``.csv.gz`` with all columns, ``.png`` for images, else the valid ones."""
    path, folder = output_path(out), find_checkpoint(checkpoint)
    policy, family = load_trained(folder, options), family_of(load_metadata(folder))
    if path.suffix == ".png" and family is not IMAGES:
        raise ValueError(f"out: {out}, expected no .png: {checkpoint} makes no images")
    conditions = prepare_columns(policy, folder, None if columns is None else read_columns(columns), scaffold)
    samples, found = sample_policy(policy, n, seed=seed, columns=conditions)
    if path.suffix == ".png":
        return write_sheet(path, samples)
    if path.name.removesuffix(".gz").endswith(".csv"):
        text = table_text({family.column: shown(samples), **plain_columns(found), **family.table(samples)})
    else:
        text = "".join(f"{s}\n" for s in samples if s is not None)
    with atomic_write(path) as file:
        file.write(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())
    print_table(f"{n} samples of {checkpoint}", {str(path): dict(family.evaluate(samples))})
    return path


def shown(samples: Sequence[Any]) -> list[str]:
    """Samples as the text of a table; empty for invalid ones."""
    return ["" if s is None else str(s) for s in samples]


def plain_columns(columns: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """The condition columns that a table can hold: text and numbers."""
    return {k: v for k, v in columns.items() if all(x is None or isinstance(x, str | int | float) for x in v)}


def table_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns of equal length as csv."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([columns, *zip(*columns.values(), strict=True)])
    return buffer.getvalue()
