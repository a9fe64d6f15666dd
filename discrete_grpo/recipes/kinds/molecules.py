"""Molecules as a kind of samples: SMILES strings, scaffolds as conditions, files of SMILES."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from discrete_grpo.core.checks import told_as
from discrete_grpo.core.description import innermost
from discrete_grpo.core.sample_metrics import SampleMetrics
from discrete_grpo.domains import molecule_fields, molecule_properties
from discrete_grpo.domains import molecules as chemistry
from discrete_grpo.domains.smiles import canonical_samples, parse, parse_all, parse_smiles, to_smiles
from discrete_grpo.metrics import molecules as metrics
from discrete_grpo.metrics.suite import SuiteOptions, SuiteResult
from discrete_grpo.policies.conditions import FixedSites
from discrete_grpo.recipes.families import Columns, Family, FileOptions
from discrete_grpo.recipes.reward_kinds import check_judges, check_kind
from discrete_grpo.rewards.diversity import diversity_metrics
from discrete_grpo.rewards.ledger import molecule_key
from discrete_grpo.runs.checkpoint import CheckpointError
from discrete_grpo.runs.console import print_notes

if TYPE_CHECKING:
    from discrete_grpo.datasets.molecules import MoleculeStatistics

__all__ = ["MOLECULES", "property_columns", "scaffold_sites"]

_Statistics = TypeVar("_Statistics")

POINT: Mapping[tuple[str, int], int] = {("*", 0): -1}
"""Class of an attachment point, which may be an atom of any type."""

PROPERTIES: Mapping[str, Callable[[Any], float]] = {
    "QED": molecule_properties.qed_score,
    "logP": molecule_properties.crippen_logp,
    "SA": molecule_properties.sa_score,
    "weight": molecule_properties.molar_mass,
}


# -- numbers and drawings


def _summary(samples: Sequence[str | None], names: Sequence[str | None]) -> Mapping[str, float]:
    return metrics.metrics_of_names(names) | diversity_metrics(samples)


def property_columns(samples: Sequence[str | None]) -> dict[str, list[float | None]]:
    """QED, logP, SA and weight of every sample, None where it is invalid: the property columns of tables."""
    molecules = parse_all(samples)
    return {name: [None if m is None else f(m) for m in molecules] for name, f in PROPERTIES.items()}


def _draw(text: str) -> str | None:
    from discrete_grpo.runs.report.molecules import render_smiles

    return render_smiles(text)


def _picture(samples: Sequence[str], captions: Sequence[str]) -> bytes | None:
    from discrete_grpo.runs.trackers import molecule_grid

    return molecule_grid(samples, captions)


# -- policies


def _read_statistics(metadata: Columns, read: Callable[[dict[str, Any]], _Statistics]) -> _Statistics:
    """The molecule statistics that a checkpoint was saved with.

    Raises:
        CheckpointError: if it has none, or they cannot be read.
    """
    if "statistics" not in metadata:
        raise CheckpointError(
            "checkpoint: it has no molecule statistics, expected metadata with statistics, such as Pretrainer(..., metadata="
            '{"statistics": stats.to_json()}), or with kind: graphs'
        )
    try:
        return read(metadata["statistics"])
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint: it has molecule statistics that cannot be read ({error})") from error


def _molecules(metadata: Columns) -> MoleculeStatistics:
    """The statistics of a policy whose atom types have the charges in them."""
    from discrete_grpo.datasets.molecules import MoleculeStatistics

    return _read_statistics(metadata, MoleculeStatistics.from_json)


def _decode(policy: Any, metadata: Columns) -> None:
    """Make the policy decode to canonical SMILES, for graphs and for texts."""
    inner = innermost(policy)
    if hasattr(inner, "node_kernel"):
        stats = _molecules(metadata)
        vocabulary = stats.vocabulary
        types, classes = len(vocabulary), inner.node_kernel.noise.num_clean
        if types != classes:
            raise CheckpointError(f"checkpoint: it has a vocabulary of {types} atom types, expected the policy's {classes}")
        inner.decode = partial(chemistry.decode, vocabulary=vocabulary)
        inner.encode = chemistry.encoder(vocabulary, stats.node_marginal, stats.edge_marginal)
        return
    if hasattr(inner, "node_fields"):
        _decode_fields(inner, metadata)
        return
    from discrete_grpo.policies.masked_text import MaskedTextPolicy
    from discrete_grpo.policies.tokens import TokenPolicy

    if isinstance(policy, TokenPolicy | MaskedTextPolicy):
        policy.decode = canonical_samples


def _decode_fields(policy: Any, metadata: Columns) -> None:
    """Make a policy with the charges as a field decode to canonical SMILES."""
    from discrete_grpo.datasets.molecule_fields import MoleculeFieldStatistics

    fields = _read_statistics(metadata, MoleculeFieldStatistics.from_json).fields
    found = {field.name: field.kernel.noise.num_clean for field in policy.node_fields}
    wanted = {"atom": len(fields.symbols), "charge": len(fields.charges)}
    if found != wanted:
        told, expected = (", ".join(f"{name} {count}" for name, count in sizes.items()) for sizes in (wanted, found))
        raise CheckpointError(f"checkpoint: it has statistics of classes {told}, expected the policy's {expected}")
    policy.decode, policy.encode = partial(molecule_fields.decode, fields=fields), partial(molecule_fields.encode, fields=fields)


def _reads_scaffolds(policy: Any) -> bool:
    policy = innermost(policy)  # a drawn node count or a likelihood of its own is a wrapper
    return hasattr(policy, "node_kernel") or getattr(policy, "prompt", None) == "scaffold"


def _condition(policy: Any, metadata: Columns, condition: Columns) -> Columns:
    """Convert a scaffold to fixed atoms and bonds for a graph policy, or to the spelling that a SMILES policy was trained on."""
    text = condition.get("scaffold")
    if text is None:
        return condition
    if not isinstance(text, str):
        raise ValueError(f"scaffold: {text!r}, expected a SMILES string")
    inner = innermost(policy)
    if hasattr(inner, "node_fields"):
        raise ValueError(f"scaffold: {text!r}, expected none: a policy with charges as a field fixes no atoms")
    if hasattr(inner, "node_kernel"):
        stats = _molecules(metadata)
        if "*" in text and chemistry.has_hydrogens(stats.vocabulary, stats.node_marginal):
            raise ValueError(f"scaffold: {text!r}, expected no attachment point: the policy draws hydrogens as atoms")
        aromatic = chemistry.has_aromatic(stats.edge_marginal)
        return {**condition, "fixed": scaffold_sites(text, stats.vocabulary, inner.max_nodes, aromatic=aromatic)}
    prompted = getattr(inner, "prompt", None) == "scaffold"  # otherwise rewards alone read it
    mol = parse(text) if prompted else parse_smiles(text)
    if mol is None:
        raise ValueError(f"scaffold: {text!r}, expected a valid{', connected' if prompted else ''} SMILES")
    if prompted and "*" in text and "*" not in inner.tokenizer.tokens:
        raise ValueError(f"scaffold: {text!r}, expected no attachment point (*): only graph policies read them")
    return {**condition, "scaffold": to_smiles(mol, stereo=False)}


def scaffold_sites(
    smiles: str, vocabulary: chemistry.Vocabulary, max_nodes: int | None = None, *, aromatic: bool = False
) -> FixedSites:
    """A scaffold as fixed sites: its heavy atoms first, and every bond and non-bond within each of its fragments.

    An attachment point, ``*`` or ``[*:1]``, is an atom of any type that has the bonds of the SMILES to the scaffold. If there is
    one, all other atoms of the scaffold are closed: they have no bonds but those of the SMILES.

    Args:
        smiles: the scaffold, whose fragments are joined by ``.``; a bond between two atoms that are not closed is free there.
        vocabulary: atom types of the policy's node classes.
        max_nodes: size of the largest graph that the policy draws; None means any.
        aromatic: whether the policy draws aromatic bonds; otherwise they are kekulised.

    Raises:
        ValueError: if ``smiles`` is no SMILES, has atoms outside the vocabulary or more than ``max_nodes`` atoms and attachment
            points, an attachment point is bonded to no atom, or a fragment has none while another has one.
    """
    mol = parse_smiles(smiles) if isinstance(smiles, str) else None
    if mol is None:
        raise ValueError(f"scaffold: {smiles!r}, expected a valid SMILES")
    try:
        classes, bonds = chemistry.molecule_to_classes(mol, vocabulary, aromatic=aromatic, others=POINT)
    except ValueError as error:
        raise ValueError(f"scaffold: {smiles!r}, {str(error).removeprefix('mol: ')}") from error
    nodes, count = {i: c for i, c in enumerate(classes) if c >= 0}, len(classes)
    if max_nodes is not None and count > max_nodes:
        told = " and attachment points" if len(nodes) < count else ""
        raise ValueError(f"scaffold: {smiles!r} has {count} atoms{told}, expected at most the policy's {max_nodes}")
    fragment = _fragments(count, bonds)
    closed = tuple(nodes) if len(nodes) < count else ()
    if closed or not nodes:
        _check_points(smiles, nodes, bonds, fragment)
    edges = {(i, j): 0 for j in range(count) for i in range(j) if fragment[i] == fragment[j] and (i in nodes or j in nodes)}
    return FixedSites(nodes, edges | {(i, j): c for i, j, c in bonds}, closed)


def _fragments(count: int, bonds: Sequence[tuple[int, int, int]]) -> list[int]:
    """Number of the fragment of each atom: the same for two atoms that a path of bonds connects."""
    found = list(range(count))
    for i, j, _ in bonds:
        found = [found[i] if one == found[j] else one for one in found]
    return found


def _check_points(smiles: str, nodes: Mapping[int, int], bonds: Sequence[tuple[int, int, int]], fragment: Sequence[int]) -> None:
    """Raise ``ValueError`` for an attachment point that is bonded to no atom, and for a fragment that has none."""
    points = [i for i in range(len(fragment)) if i not in nodes]
    bonded = {i for a, b, _ in bonds for i, other in ((a, b), (b, a)) if other in nodes}
    if not bonded.issuperset(points):
        raise ValueError(f"scaffold: {smiles!r} has an attachment point without a neighbour, expected each * bonded to an atom")
    if {fragment[i] for i in points} != set(fragment):
        told = "a fragment without an attachment point, expected one (*) in each fragment or in none"
        raise ValueError(f"scaffold: {smiles!r} has {told}")


def _check_rewards(policy: Any, rewards: Sequence[Any]) -> None:
    check_kind(rewards, "molecules")
    check_judges(policy, rewards)


# -- files


def _read(file: str, options: FileOptions) -> tuple[list[str | None], Mapping[str, Sequence[Any]]]:
    """Read the molecules of a file, with None for a line that is not a molecule; these lines are listed on standard error.

    For a suite, all lines are returned as written and in order, as it repairs some and uses runs of consecutive ones.
    """
    from discrete_grpo.datasets.reading import NoMoleculesError, read_smiles, smiles_rows
    from discrete_grpo.recipes.left_out import report_broken

    try:
        with told_as("file", "path"):
            found = read_smiles(file, max_broken=1.0, smiles_column=options.smiles_column, max_bytes=options.max_bytes)
    except NoMoleculesError as error:
        if not any(text for _, text in error.broken):  # a table of samples that are all invalid
            return [None] * len(error.broken), {}
        others = "another kind, such as text, named with kind"
        raise ValueError(f"{error}; expected at least one, or {others}") from error
    report_broken(file, found.broken, len(found.smiles))
    if options.suite is not None:
        return [text or None for _, text in smiles_rows(Path(file), options.smiles_column, options.max_bytes)], {}
    return [*found.smiles, *(None for _ in found.broken)], {}


def _compare(samples: Sequence[Any], columns: Mapping[str, Sequence[Any]], options: FileOptions) -> Mapping[str, float]:
    """Validity, uniqueness, novelty against the reference, diversity and property means."""
    if options.reference is None:
        return metrics.evaluate(samples)
    stored = _stored(options.reference, options)
    return metrics.evaluate(samples, {s for s in map(metrics.canonical, stored) if s is not None})


def _stored(file: str | Path, options: FileOptions, argument: str = "reference") -> Sequence[str]:
    """The molecules of a reference, or of the file of another argument; lines that are none are listed on standard error."""
    from discrete_grpo.datasets.reading import read_smiles
    from discrete_grpo.recipes.left_out import report_broken

    if not isinstance(file, str | Path):
        raise ValueError(f"{argument}: a {type(file).__name__}, expected the name of a file of molecules")
    try:
        with told_as(argument, "path"):
            stored = read_smiles(file, smiles_column=options.reference_smiles_column, max_bytes=options.max_bytes)
    except ValueError as error:  # the option has another name here
        raise ValueError(str(error).replace("smiles_column", "reference_smiles_column")) from error
    report_broken(file, stored.broken, len(stored.smiles))
    return stored.smiles


def _measure(samples: Sequence[Any], options: FileOptions, settings: SuiteOptions) -> SuiteResult:
    """The metrics of MOSES or GuacaMol against the reference."""
    if options.reference is None:
        raise ValueError(f"reference: None, expected a file of molecules with suite {options.suite!r}")
    if options.suite == "moses":
        from discrete_grpo.metrics.moses import moses

        train = None if options.train is None else _stored(options.train, options, "train")
        stored = _stored(options.reference, options)
        result = moses(samples, stored, train, settings)
        _tell_stereo(samples, stored if train is None else train, "reference" if train is None else "train")
        return result
    if options.train is not None:
        raise ValueError(f"train: {options.train!r}, expected none with suite 'guacamol', whose reference is the training set")
    from discrete_grpo.metrics.guacamol import guacamol

    return guacamol(samples, _stored(options.reference, options), settings)


def _tell_stereo(samples: Sequence[Any], known: Sequence[str], argument: str) -> None:
    """Print a note if known molecules have stereo and no valid sample has any, such as samples of a graph policy."""
    from discrete_grpo.metrics.molecule_suite import canonical_valid

    if any(_has_stereo(canonical_valid([sample])[0] or "") for sample in samples if sample and _has_stereo(sample)):
        return
    if count := sum(map(_has_stereo, known)):
        told = f"{count} of {len(known)} molecules of {argument} have stereo, no sample has any"
        known_too = "a sample that lacks only the stereo of one counts as novel; to count it as known, write both without stereo"
        print_notes([f"novel: {told}; novelty is counted against them as they are, so {known_too}"])


def _has_stereo(smiles: str) -> bool:
    return any(mark in smiles for mark in "@/\\")


MOLECULES = Family(
    name="molecules",
    column="smiles",
    sample_metrics=SampleMetrics(metrics.canonical_all, _summary),
    evaluate=metrics.evaluate,
    table=property_columns,
    lines=(".smi", ".smiles", ".txt"),
    draw=_draw,
    picture=_picture,
    key=molecule_key,
    identity=metrics.canonical,
    decode=_decode,
    condition=_condition,
    scaffolds=_reads_scaffolds,
    check_rewards=_check_rewards,
    holds=lambda path, first: path.is_file(),
    read=_read,
    compare=_compare,
    measure=_measure,
    options=("reference", "smiles_column", "reference_smiles_column", "suite", "train", "bootstrap", "folds"),
)
