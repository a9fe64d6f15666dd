"""The kinds of samples that commands support, one value per kind: how samples are measured, keyed, shown, written and read.

The modules of a kind are imported when the kind is used, or when the kind of a file has to be recognised, and not before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from discrete_grpo.core.checks import MOST_STEPS, check_fields, did_you_mean
from discrete_grpo.core.option_names import known_options
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.diffusion.choices import Distortion, KernelName
from discrete_grpo.policies.truncation import LEAST, check_temperature
from discrete_grpo.rewards.ledger import text_key
from discrete_grpo.runs.folder import SEARCH
from discrete_grpo.runs.serialization import TRUSTED, CheckpointError

if TYPE_CHECKING:
    from discrete_grpo.metrics.suite import SuiteOptions, SuiteResult

__all__ = [
    "KINDS",
    "Columns",
    "Family",
    "FileOptions",
    "SamplerOptions",
    "View",
    "check_view",
    "family_of",
    "run_family",
]

Columns = Mapping[str, Any]
Samples = Sequence[Any]
Table = Mapping[str, Sequence[Any]]
View = Literal["text", "networkx", "pyg", "smiles"]
"""Forms in which rewards can see samples."""


# -- options


@known_options()
@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """Changes to the sampler of a loaded policy; None keeps the value of the checkpoint.

    Attributes:
        num_steps: steps of a graph policy's sampler; None keeps the policy's.
        temperature: divides the network's logits, more than 0; None keeps the policy's.
        top_k: number of most probable tokens that a token or text policy chooses from, at least 1; None keeps the policy's.
        top_p: probability of the tokens that a token or text policy chooses from, above 0 and at most 1; None keeps the policy's.
        guidance: weight of classifier-free guidance of a conditional graph policy; None keeps the policy's.
        kernel: reverse step of a graph policy: d3pm, flow or flow_euler; None keeps the policy's.
        eta: stochasticity of kernel flow_euler, at least 0; None keeps the policy's.
        omega: target guidance of kernel flow_euler, at least 0; None keeps the policy's.
        sample_distortion: time grid of a graph policy: identity, cos, revcos, polyinc or polydec; None keeps the policy's.
        shared_steps: number of first steps of a graph policy that a group takes together and is not trained on; None keeps
            the policy's.

    Raises:
        ValueError: for a value out of its range.
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

    def __post_init__(self) -> None:
        check_fields(self, "num_steps", least=1, most=MOST_STEPS)
        check_fields(self, "top_k", least=1)
        check_fields(self, "shared_steps eta omega", least=0)
        if self.temperature is not None:
            check_temperature(self.temperature)
        check_fields(self, "top_p", above=0, most=1)
        if self.top_p is not None and self.top_p < LEAST:
            raise ValueError(f"top_p: {self.top_p}, expected at least {LEAST}, below which it is 0 in float32 and keeps no token")

    def given(self) -> dict[str, Any]:
        """The sampler options that are not None."""
        return {f.name: value for f in fields(SamplerOptions) if (value := getattr(self, f.name)) is not None}


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Options of reading a file of samples and of the reference that they are compared with.

    Attributes:
        reference: molecules that novelty is measured against, a SMILES file; of molecules in space an SDF or xyz
            file; of graphs a named set, an npz file of splits, or any file or folder of graphs.
        shape: what makes a graph valid: planar, tree, sbm or connected; None takes that of a named set, or of the
            published ``planar.npz``, ``tree.npz`` and ``sbm.npz``, as the reference, and else connected. Of directed
            graphs dag or connected; None takes dag where the graphs of the reference are acyclic.
        smiles_column: name of the column of SMILES in the file; None finds it.
        reference_smiles_column: name of the column of SMILES in the reference; None finds it.
        max_nodes: largest number of nodes of a graph.
        max_bytes: largest size that a gzipped file may unpack to.
        suite: suite of distribution metrics: moses, guacamol, graphs or spatial; None computes the usual numbers.
        train: with suite moses: training molecules that novelty is measured against, a SMILES file; None takes the reference.
        bootstrap: with a suite: number of parts drawn for each interval; None takes 100, and 0 leaves intervals out.
        folds: with a suite: number of equal runs of samples whose mean and deviation are computed; None leaves them out.
        sbm_method: with suite graphs and shape sbm: how blocks are found: louvain or graph-tool; None takes louvain.
        node_attribute: of graphs: attribute of nodes that holds their class, in both files; None takes the only one.
        edge_attribute: of graphs: attribute of edges that holds their class, in both files; None takes the only one.
    """

    reference: str | None = None
    shape: str | None = None
    smiles_column: str | None = None
    reference_smiles_column: str | None = None
    max_nodes: int = 10_000
    max_bytes: int = MAX_BYTES
    suite: str | None = None
    train: str | None = None
    bootstrap: int | None = None
    folds: int | None = None
    sbm_method: str | None = None
    node_attribute: str | None = None
    edge_attribute: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, "max_nodes max_bytes", least=1)


# -- families


def _no_columns(samples: Samples) -> Table:
    return {}


def _keep(policy: Any, metadata: Columns) -> None:
    """Leave the decoding of the policy unchanged."""


def _unchanged(policy: Any, metadata: Columns, condition: Columns) -> Columns:
    """Return the condition unchanged."""
    return condition


def _any_reward(policy: Any, rewards: Samples) -> None:
    """Accept every reward."""


@dataclass(frozen=True)
class Family:
    """One kind of samples.

    Only the first four fields are needed; a policy class of another package may give such a value as its attribute ``family``.

    Attributes:
        name: the kind, as checkpoints name it.
        column: name of the samples' column in a table.
        sample_metrics: cheap numbers of a batch of samples, logged with every update.
        evaluate: the numbers of an evaluation.
        table: further columns of a table of samples.
        draw: turns a sample's text into an SVG element, or None where it cannot be drawn.
        picture: draws several samples with captions as one PNG image, for trackers.
        sheet: writes the samples as one PNG file.
        writers: functions that make the content of a file of samples, by its ending, if it is neither a table nor a list of lines.
        lines: endings of files with one sample per line; None takes every ending of no other format.
        reward_view: makes a reward that sees samples as objects of another library (``networkx``, ``pyg``, ``smiles``) one
            that sees them as the policy gives them, from the reward and the name of the library.
        key: canonical form of a sample for the ledger; None for an invalid one.
        identity: returns equal values for samples that the metric ``unique`` counts as the same, and None for one that ``valid``
            does not count; where it is None, ``key`` is taken.
        decode: sets the decoder of a policy's samples from the metadata of the checkpoint.
        condition: converts a condition to the form that the policy reads.
        scaffolds: whether a policy can be conditioned on a scaffold.
        check_rewards: raises ``ValueError`` for rewards that cannot read a policy's samples, such as those of this package for
            another kind.
        holds: whether a file contains such samples, by its name and its first line.
        read: the samples of a file and its columns of labels.
        compare: the numbers of an evaluation of a file, against the reference of its options.
        measure: the metrics of a suite, against the reference of the options.
        options: the fields of :class:`FileOptions` that the family uses, besides ``max_bytes``.
    """

    name: str
    column: str
    sample_metrics: Callable[[Samples], Mapping[str, float]]
    evaluate: Callable[[Samples], Mapping[str, float]]
    table: Callable[[Samples], Table] = _no_columns
    draw: Callable[[str], str | None] | None = None
    picture: Callable[[Sequence[str], Sequence[str]], bytes | None] | None = None
    sheet: Callable[[Path, Samples], Path] | None = None
    writers: Mapping[str, Callable[[Samples], bytes]] = field(default_factory=dict)
    lines: tuple[str, ...] | None = None
    reward_view: Callable[[Any, Any], Any] | None = None
    key: Callable[[Any], str | None] = text_key
    identity: Callable[[Any], Hashable | None] | None = None
    decode: Callable[[Any, Columns], None] = _keep
    condition: Callable[[Any, Columns, Columns], Columns] = _unchanged
    scaffolds: Callable[[Any], bool] = lambda policy: False
    check_rewards: Callable[[Any, Samples], None] = _any_reward
    holds: Callable[[Path, str], bool] = lambda path, first: False
    read: Callable[[str, FileOptions], tuple[Samples, Table]] | None = None
    compare: Callable[[Samples, Table, FileOptions], Mapping[str, float]] | None = None
    measure: Callable[[Samples, FileOptions, SuiteOptions], SuiteResult] | None = None
    options: tuple[str, ...] = ()


def _molecules(metadata: Columns) -> Family:
    from discrete_grpo.recipes.kinds.molecules import MOLECULES

    return MOLECULES


def _graphs(metadata: Columns) -> Family:
    from discrete_grpo.recipes.kinds.graphs import graph_family

    return graph_family(metadata)


def _digraphs(metadata: Columns) -> Family:
    from discrete_grpo.recipes.kinds.digraphs import digraph_family

    return digraph_family(metadata)


def _text(metadata: Columns) -> Family:
    from discrete_grpo.recipes.kinds.text import TEXT

    return TEXT


def _images(metadata: Columns) -> Family:
    from discrete_grpo.recipes.kinds.images import IMAGES

    return IMAGES


def _spatial(metadata: Columns) -> Family:
    from discrete_grpo.recipes.kinds.spatial import SPATIAL

    return SPATIAL


def _other(metadata: Columns) -> Family:
    from discrete_grpo.recipes.kinds.text import OTHER

    return OTHER


KINDS: Mapping[str, Callable[[Columns], Family]] = {
    "digraphs": _digraphs,
    "graphs": _graphs,
    "images": _images,
    "text": _text,
    "spatial": _spatial,
    "molecules": _molecules,
    "samples": _other,
}
"""The families by name, each made from the metadata of a checkpoint; files are recognised in this order."""


def check_view(view: str) -> None:
    """Raise ``ValueError`` unless ``rewards_see`` names a form that rewards of some kind of samples can see."""
    if view not in get_args(View):
        raise ValueError(f"rewards_see: {view!r}, expected text, networkx, pyg or smiles")


def family_of(metadata: Columns, policy: Any = None) -> Family:
    """The family of a policy's samples.

    It is the attribute ``family`` of the policy, if any: a :class:`Family` or the name of a kind. Otherwise the ``kind`` of
    the checkpoint decides. Without either, the samples of a policy of another package are of unknown kind, and all others are
    molecules.

    Args:
        metadata: metadata of the checkpoint.
        policy: the policy; None if only the checkpoint is known.

    Raises:
        CheckpointError: for an unknown kind.
    """
    own = getattr(policy, "family", None)
    if own is not None and not isinstance(own, str):
        found: Family = own
        return found
    kind = own or (metadata["kind"] if "kind" in metadata else _default_kind(metadata, policy))
    if not isinstance(kind, str) or kind not in KINDS:
        told = f"family: {kind!r} of {type(policy).__name__}" if own else f"kind: {kind!r} of the checkpoint"
        hint = f"{did_you_mean(str(kind), KINDS)} ".lstrip()
        raise CheckpointError(f"{told}, {hint}expected one of {', '.join(KINDS)}")
    return KINDS[kind](metadata)


def _default_kind(metadata: Columns, policy: Any) -> str:
    own = policy is not None and "statistics" not in metadata and type(policy).__module__.split(".")[0] not in TRUSTED
    return "samples" if own else "molecules"


def run_family(run: Path) -> Family:
    """The family of a run folder's samples, by its newest checkpoint or the policy of a search; molecules if it has neither."""
    from discrete_grpo.runs.checkpoint import Checkpoints, load_metadata

    made = [*reversed(Checkpoints(run).all()), *reversed(Checkpoints(run / "offline").all())]
    for folder in (run / "policy", *made, *_searched(run)):
        try:
            return family_of(load_metadata(folder))
        except CheckpointError:
            continue
    return _molecules({})


def _searched(run: Path) -> list[Path]:
    """The checkpoint of the policy that a search was made with, if it is still there."""
    from discrete_grpo.runs.checkpoint_names import find_checkpoint

    try:
        policy = str(json.loads((run / SEARCH).read_text(encoding="utf-8"))["policy"])
        return [find_checkpoint(policy.partition("@")[2] or policy)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
