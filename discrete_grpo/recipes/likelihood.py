"""Log-probabilities of given samples under a policy: exact for texts and graph sequences, a lower bound for graph diffusion."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from discrete_grpo.core.checks import LAST_SEED, check_whole, told_as
from discrete_grpo.core.description import description
from discrete_grpo.core.drawing import evaluating
from discrete_grpo.core.option_names import check_keywords
from discrete_grpo.core.rollout import Context
from discrete_grpo.datasets.text_files import suffix_of
from discrete_grpo.policies.conditions import property_table
from discrete_grpo.policies.likelihood import GraphBound, log_size_probs, text_log_probs, text_part, why_not_drawn
from discrete_grpo.policies.options import graph_part, without_likelihood
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.recipes.conditions import check_read, prepare_columns, read_columns
from discrete_grpo.recipes.devices import to_device
from discrete_grpo.recipes.families import Columns, Family, FileOptions, SamplerOptions, family_of
from discrete_grpo.recipes.loading import LoadedPolicy, load, rebuilt, with_sampler
from discrete_grpo.recipes.output_files import as_text, named_file, output_path, table_text
from discrete_grpo.runs.console import print_notes, print_table, progress
from discrete_grpo.runs.folder import is_run
from discrete_grpo.runs.recorder import write_bytes

__all__ = ["Likelihoods", "SampleLikelihood", "Spelling", "likelihood", "likelihood_file"]

Spelling = Literal["canonical", "written"]
Fault = tuple[str, str]
"""Why a sample cannot be drawn: a word and a sentence."""


@dataclass(frozen=True)
class SampleLikelihood:
    """The log-probability of one sample.

    Attributes:
        sample: the sample as it was given.
        logp: log p in nats, or its lower bound, with log p(n) of the node count; None for a sample that the policy cannot draw.
        units: number of tokens with the end token, or of nodes and pairs of a graph.
        text: the text that was scored; None for graphs of a diffusion policy.
        log_size: of graphs of a diffusion policy, log p(n), which ``logp`` includes.
        reason: why the policy cannot draw the sample: invalid, vocabulary, length, grammar or size; None if it can.
        detail: the same as a sentence.
    """

    sample: Any
    logp: float | None = None
    units: int | None = None
    text: str | None = None
    log_size: float | None = None
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True)
class Likelihoods:
    """Log-probabilities of samples under a policy.

    Attributes:
        rows: one entry per sample, in their order.
        exact: whether they are log p itself; if not, they are lower bounds in the mean over seeds.
        draws: number of states at which each bound is estimated; 0 if exact.
        seed: random seed of these states.
        column: name of the column of samples in a table.
        what: what the log-probabilities are of, such as the canonical SMILES.
    """

    rows: tuple[SampleLikelihood, ...]
    exact: bool
    draws: int
    seed: int
    column: str = "sample"
    what: str = "each text"

    @property
    def logp(self) -> list[float | None]:
        """Log p of each sample in nats, or its lower bound; None for a sample that the policy cannot draw."""
        return [row.logp for row in self.rows]

    def summary(self) -> dict[str, float]:
        """The mean negative log-likelihood in nats, per sample and per token or site, over the samples that can be drawn."""
        scored = [row for row in self.rows if row.logp is not None]
        total, units = -sum(row.logp or 0.0 for row in scored), sum(row.units or 0 for row in scored)
        name, unit = ("nll", "token") if self.exact else ("nll_bound", "site")
        found: dict[str, float] = {"samples": len(self.rows), "scored": len(scored)}
        found |= {name: total / len(scored), f"{name}_per_{unit}": total / units} if scored else {}
        if scored and not self.exact:
            found["nll_nodes"] = -sum(row.log_size or 0.0 for row in scored) / len(scored)
        return found

    def table(self) -> dict[str, Sequence[Any]]:
        """The columns of a table with one row per sample."""
        samples: dict[str, Sequence[Any]] = {self.column: as_text([row.sample for row in self.rows])}
        if self.exact:
            own = {"logp": "logp", "tokens": "units", "text": "text", "reason": "reason"}
        else:
            own = {"bound": "logp", "log_p_nodes": "log_size", "sites": "units", "reason": "reason"}
        return samples | {name: [getattr(row, attribute) for row in self.rows] for name, attribute in own.items()}

    def notes(self) -> list[str]:
        """Sentences on what the numbers are, and on the samples that cannot be drawn."""
        lost = [row for row in self.rows if row.reason is not None]
        said = [f"nll is the mean of -log p of {self.what}, exact, in nats"]
        if not self.exact:
            told = f"nll_bound is an upper bound of the mean of -log p of {self.what}, in nats"
            said = [f"{told}: {self.draws} draws per sample, seed {self.seed}; -log p(n) of the node count (nll_nodes) is included"]
        if lost:
            first = {str(row.reason): row for row in reversed(lost)}
            parts = [f"{sum(row.reason == word for row in lost)} {word} ({_short(first[word])})" for word in sorted(first)]
            said.append(f"{len(lost)} of {len(self.rows)} samples cannot be drawn and are left out: {'; '.join(parts)}")
        return said


def _short(row: SampleLikelihood) -> str:
    """The reason why a sample cannot be drawn, with the sample."""
    sample = "" if row.sample is None else repr(row.sample)[:60]
    return (str(row.detail) if sample in str(row.detail) else f"{sample}: {row.detail}")[:160]


def likelihood(
    policy: Any,
    samples: str | Path | Sequence[Any],
    *,
    spelling: Spelling = "canonical",
    draws: int = 50,
    seed: int = 0,
    columns: str | Sequence[Columns] | None = None,
    scaffold: str | None = None,
    options: SamplerOptions | None = None,
    reading: FileOptions | None = None,
    batch_size: int = 64,
    device: str | None = None,
    **other: Any,
) -> Likelihoods:
    """Compute log p of given samples under a policy, such as held-out or known active molecules.

    It is exact for autoregressive policies, of texts and of graph sequences: log p of one text of the sample. For graph diffusion
    it is a lower bound in the mean over seeds, with log p(n) of the node count. See ``docs/metrics.md``.

    Args:
        policy: a policy, or the name of one as for :func:`~discrete_grpo.recipes.loading.load_policy`.
        samples: the samples as rewards see them, or a file of samples.
        spelling: of molecules: ``canonical`` scores the canonical SMILES, in which policies are trained, and ``written`` the text
            as it stands.
        draws: of graph diffusion: number of noised states at which each bound is estimated, at least 1; each is one call of the
            network. With as many as the sampler has steps, each step is seen once.
        seed: of graph diffusion: random seed of these states.
        columns: conditions that the policy reads, one for all samples or one per sample, or a file of JSON lines.
        scaffold: scaffold that a SMILES policy reads, for all samples.
        options: changes to how the policy draws, such as its temperature.
        reading: how a file is read.
        batch_size: number of texts that are scored at a time, which does not change the result.
        device: device to compute on, to which the policy is moved; None means the device where it is.
        **other: not accepted; the error for another name suggests the right one.

    Raises:
        ValueError: for a policy without such log-probabilities, a condition that it cannot follow, or an argument out of its range.

    >>> found = likelihood("smiles-zinc", ["CCO", "OCC", "C[Xe]"])
    >>> found.logp[0] == found.logp[1], found.rows[2].reason
    (True, 'vocabulary')
    """
    known = ("spelling", "draws", "seed", "columns", "scaffold", "options", "reading", "batch_size", "device")
    check_keywords(other, known, {"options": SamplerOptions, "reading": FileOptions})
    if spelling not in ("canonical", "written"):
        raise ValueError(f"spelling: {spelling!r}, expected canonical or written")
    check_whole("draws", draws, least=1)
    check_whole("seed", seed, least=0, most=LAST_SEED)
    check_whole("batch_size", batch_size, least=1)
    by_name = isinstance(policy, str | Path)
    with nullcontext() if by_name else evaluating(policy):
        loaded = load(policy, options) if by_name else _of_object(policy, options)
        loaded = replace(loaded, policy=to_device(loaded.policy, device))
        scorer = _scorer(loaded, str(policy) if by_name else type(policy).__name__, draws, seed, batch_size)
        found = _samples(loaded.family, samples, reading or FileOptions())
        conditions = _conditions(loaded, columns, scaffold, len(found), isinstance(scorer, _Bound))
        forms = [_form(loaded, sample, spelling) for sample in found]
        rows = scorer.score(found, forms, conditions)
    exact = isinstance(scorer, _Exact)
    return Likelihoods(tuple(rows), exact, 0 if exact else draws, seed, loaded.family.column, _what(loaded, spelling))


def likelihood_file(policy: str, file: str, *, out: str | None = None, **options: Any) -> Likelihoods:
    """Compute log p of the samples of a file, print the means and, with ``out``, write a table with one row per sample.

    Args:
        policy: name of the policy, as for :func:`likelihood`.
        file: the samples, as for :func:`likelihood`.
        out: ``.csv`` or ``.csv.gz`` for the table; its columns are in ``docs/metrics.md``.
        options: further arguments of :func:`likelihood`.

    Raises:
        ValueError: as :func:`likelihood`, for another ending, and if the policy can draw none of the samples.
        FileNotFoundError: if there is no such file, or no folder for ``out``.
    """
    path = None if out is None else output_path(out)
    if path is not None and suffix_of(path) != ".csv":
        raise ValueError(f"out: {str(path)!r}, expected a file ending in .csv, also with .gz")
    if path is not None and path.resolve() == Path(file).resolve():
        raise ValueError(f"out: {str(path)!r} is read as file, expected another name")
    with told_as("file", "samples"):
        found = likelihood(policy, file, **options)
    if not (scored := found.summary())["scored"]:
        row = found.rows[0]
        raise ValueError(f"file: {file!r} has {len(found.rows)} samples, none of which the policy can draw ({_short(row)})")
    print_table(f"{file} under {policy}", {name: {"value": value} for name, value in scored.items()})
    print_notes(found.notes())
    if path is not None:
        content = table_text(found.table()).encode()
        write_bytes(named_file(path), gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return found


# -- policies and samples


def _of_object(policy: Any, options: SamplerOptions | None) -> LoadedPolicy:
    """A policy object of the caller; samples of which no kind is known are read as they stand."""
    told = description(policy)
    family = family_of(told or {"kind": "samples"}, policy)
    return LoadedPolicy(with_sampler(policy, options or SamplerOptions()), family, told)


def _samples(family: Family, given: str | Path | Sequence[Any], options: FileOptions) -> Sequence[Any]:
    """The samples in their order, those of a file as they are written; None for one that is empty or no sample of its kind."""
    if not isinstance(given, str | Path):
        if not isinstance(given, Sequence) or not given:
            raise ValueError(f"samples: {given!r}, expected a list of at least one sample or the name of a file")
        return given
    if is_run(given):
        raise ValueError(f"samples: {given} is a run folder, expected a file of samples, such as samples.csv.gz in it")
    if family.read is None:
        raise ValueError(f"samples: {given}, expected a list: samples of the kind {family.name} are not read from files")
    if family.name != "molecules":
        with told_as("samples", "file"):
            return family.read(str(given), options)[0]
    from discrete_grpo.datasets.reading import check_file, smiles_rows  # it imports RDKit

    with told_as("samples", "path"):
        check_file(Path(given))
        return [text or None for _, text in smiles_rows(Path(given), options.smiles_column, options.max_bytes)]


def _form(loaded: LoadedPolicy, sample: Any, spelling: Spelling) -> Any:
    """The form of a sample that is scored; None for an invalid one."""
    if not isinstance(sample, str):
        return sample
    if loaded.family.name == "molecules":
        as_written = spelling == "written" and isinstance(loaded.policy, TokenPolicy)
        key = sample if as_written else loaded.family.key(sample)
        return sample if key is not None and spelling == "written" else key
    if loaded.family.name == "graphs":
        from discrete_grpo.metrics.graphs import is_graph  # it imports networkx

        return sample if is_graph(sample) else None
    return sample


def _what(loaded: LoadedPolicy, spelling: Spelling) -> str:
    if not isinstance(loaded.policy, TokenPolicy):
        return "each graph" if graph_part(loaded.policy) is not None else "one text of each sample"
    if loaded.family.name != "molecules":
        return "each text"
    return "the canonical SMILES" if spelling == "canonical" else "the SMILES as written"


def _conditions(
    loaded: LoadedPolicy, columns: str | Sequence[Columns] | None, scaffold: str | None, count: int, graphs: bool
) -> Sequence[Columns] | None:
    """The condition of each sample in the form that the policy reads; None for no conditions."""
    given = None if columns is None else read_columns(columns)
    for name in ("scaffold", "fixed", "restart", "num_nodes") if graphs else ():
        held = [condition[name] for condition in (*(given or ()), {"scaffold": scaffold}) if condition.get(name) is not None]
        if held:
            told = "expected none: a bound is of the whole graph, of which no part is given"
            raise ValueError(f"{name}: {held[0]!r}, {told}")
    if given is not None and len(given) not in (1, count):
        raise ValueError(f"columns: {len(given)} conditions for {count} samples, expected one for all or one per sample")
    alone = given if scaffold is None else given or []
    check_read(loaded.policy, alone, scaffolds=loaded.family.scaffolds(loaded.policy))
    found = prepare_columns(loaded, given, scaffold)
    return found if found is None or len(found) == count else found * count


# -- scoring


def _scorer(loaded: LoadedPolicy, name: str, draws: int, seed: int, batch_size: int) -> _Exact | _Bound:
    """What computes the log-probabilities of a policy."""
    policy = loaded.policy
    if (part := text_part(policy)) is not None:
        if part[0].truncation.restricts:
            raise ValueError(f"policy: {name!r} draws with {part[0].truncation}, expected top_k None and top_p 1")
        return _Exact(*part, batch_size)
    if (graph := graph_part(policy)) is not None:
        if graph.shared_steps:  # which a sample alone in its group does not have
            graph = rebuilt(graph, lambda _: {"shared_steps": 0})
        return _Bound(without_likelihood(policy), GraphBound(graph, draws), seed)
    wanted = "an autoregressive policy, whose log-probs are exact, or one of graph diffusion, which has a lower bound"
    raise ValueError(f"policy: {name!r} is a {type(policy).__name__}, which gives no log p of given samples; expected {wanted}")


@dataclass(frozen=True)
class _Exact:
    """Scores texts by an autoregressive policy."""

    policy: TokenPolicy
    encode: Callable[[Any], str]
    batch_size: int

    def score(self, samples: Sequence[Any], forms: Sequence[Any], conditions: Sequence[Columns] | None) -> list[SampleLikelihood]:
        """One entry per sample; texts of similar length are scored together."""
        rows = [self._text(sample, form) for sample, form in zip(samples, forms, strict=True)]
        known = sorted((k for k, row in enumerate(rows) if row.reason is None), key=lambda k: len(rows[k].text or ""))
        if not known:
            return rows
        with progress("scoring", len(known)) as bar:
            for start in range(0, len(known), self.batch_size):
                part = known[start : start + self.batch_size]
                contexts = None if conditions is None else [Context(k, conditions[k]) for k in part]
                logp, tokens = text_log_probs(self.policy, [rows[k].text or "" for k in part], contexts)
                for k, value, count in zip(part, logp.tolist(), tokens.tolist(), strict=True):
                    rows[k] = replace(rows[k], logp=value, units=count)
                bar.advance(len(part))
        return rows

    def _text(self, sample: Any, form: Any) -> SampleLikelihood:
        """A sample with the text that is scored, or with the reason why there is none."""
        fault: Fault | None = ("invalid", "no valid sample")
        text = None
        if form is not None:
            try:
                text = self.encode(form)
            except ValueError as error:
                fault = "vocabulary", _said(error)
            else:
                fault = why_not_drawn(self.policy, text) if isinstance(text, str) else ("invalid", "no text")
        return SampleLikelihood(sample, text=text) if fault is None else _lost(sample, fault)


@dataclass(frozen=True)
class _Bound:
    """Scores graphs by a policy of graph diffusion, one at a time."""

    policy: Any
    bound: GraphBound
    seed: int

    def score(self, samples: Sequence[Any], forms: Sequence[Any], conditions: Sequence[Columns] | None) -> list[SampleLikelihood]:
        """One entry per sample."""
        log_sizes, rows = log_size_probs(self.policy).tolist(), []
        with progress("scoring", len(samples)) as bar:
            for k, (sample, form) in enumerate(zip(samples, forms, strict=True)):
                rows.append(self._row(sample, form, log_sizes, None if conditions is None else conditions[k]))
                bar.advance()
        return rows

    def _row(self, sample: Any, form: Any, log_sizes: Sequence[float], condition: Columns | None) -> SampleLikelihood:
        if form is None:
            return _lost(sample, ("invalid", "no valid sample"))
        try:
            graph = self.policy.graphs_of([form])
        except ValueError as error:
            said = _said(error)
            return _lost(sample, ("size" if said.startswith("a graph of ") else "vocabulary", said))
        inner, n = self.bound.policy, graph.num_nodes
        table = None if condition is None else property_table([Context(0, condition)], inner.properties, inner.dtype)
        bound = self.bound.of_graph(graph, seed=self.seed, properties=table)
        return SampleLikelihood(sample, bound + log_sizes[n], n * (n + 1) // 2, log_size=log_sizes[n])


def _lost(sample: Any, fault: Fault) -> SampleLikelihood:
    return SampleLikelihood(sample, reason=fault[0], detail=fault[1])


def _said(error: ValueError) -> str:
    """The text of an error about a list of one sample, without the name of the argument."""
    return re.sub(r"^(samples|smiles|graphs?)(\[0\])?: ", "", str(error)).replace(", mol: ", ": ")
