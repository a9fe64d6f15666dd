"""Samples of a file as training data of a policy that is there already: read, checked, counted and held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from discrete_grpo.core.checks import told_as
from discrete_grpo.core.processes import is_first
from discrete_grpo.datasets.encoded import EncodedSamples
from discrete_grpo.datasets.text_files import path_named
from discrete_grpo.diffusion.noise import Noise
from discrete_grpo.policies.fields import FieldPolicy
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.recipes.families import FileOptions
from discrete_grpo.recipes.loading import LoadedPolicy
from discrete_grpo.runs.console import print_notes
from discrete_grpo.training.pretrain import Dataset

if TYPE_CHECKING:
    from discrete_grpo.recipes.sft import SFTRecipe

__all__ = ["Samples", "Taught", "samples_of", "taught"]

NOISY_DRAWS = 512
"""Number of draws of times and noise that a held-out loss of diffusion or of blanks is the mean of, at least."""


@dataclass(frozen=True)
class Samples:
    """Samples of a file.

    Attributes:
        train: those to train on.
        held_out: those that are kept out of the training.
        about: what a checkpoint says of the data.
    """

    train: Sequence[Any]
    held_out: Sequence[Any]
    about: Mapping[str, Any]


@dataclass(frozen=True)
class Taught:
    """A policy and data that it can be trained on.

    Attributes:
        policy: has the weights of the one that was given, and draws graphs as large as those of the data.
        train: training data.
        held_out: data that the loss is measured on, without conditions; None if there is none.
        samples: the samples of ``train``.
        count: number of samples of both.
        draws: number of losses that the held-out one is the mean of, at least; more than one where it depends on noise.
    """

    policy: Any
    train: Dataset
    held_out: Dataset | None
    samples: Sequence[Any]
    count: int
    draws: int


# -- files


def samples_of(recipe: SFTRecipe, loaded: LoadedPolicy) -> Samples:
    """The samples of ``recipe.source``, of the kind that the policy makes; broken lines are counted on standard error.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, or the policy makes samples that no file holds.
    """
    kind = loaded.family.name
    others = ("smiles_column",) if kind in ("graphs", "digraphs") else ("node_attribute", "edge_attribute")
    for name in others:
        if (value := getattr(recipe, name)) is not None:
            raise ValueError(f"{name}: {value!r}, expected none with {kind}")
    if kind in ("graphs", "digraphs"):
        return _graphs(recipe, loaded)
    readers: dict[str, Callable[[SFTRecipe, LoadedPolicy], Sequence[Any]]] = {
        "molecules": _molecules,
        "spatial": _spatial,
        "text": _lines,
        "samples": _lines,
    }
    if kind not in readers:
        known = ", ".join(("graphs", "digraphs", *readers))
        raise ValueError(f"policy: {recipe.policy!r} makes samples of the kind {kind}, expected one of {known}")
    return _split(recipe, loaded, readers[kind](recipe, loaded))


def _split(recipe: SFTRecipe, loaded: LoadedPolicy, found: Sequence[Any]) -> Samples:
    """The same held-out samples in every run; copies of a sample, and other spellings of a molecule, stay together."""
    from discrete_grpo.datasets.listed_graphs import split_rows

    if not found:
        wanted = ", expected a file of molecules with positions (.sdf, .xyz)" if loaded.family.name == "spatial" else ""
        raise ValueError(f"data: {recipe.source!r} holds no sample of the kind {loaded.family.name}{wanted}")
    names = _names(loaded, found)
    first = dict(zip(reversed(names), reversed(found), strict=True))
    distinct = list(dict.fromkeys(names))
    held = [distinct[k] for k in split_rows(len(distinct), None, recipe.test_share)[1]]
    kept_out = set(held) if len(distinct) > 1 else set()
    about = {"name": recipe.data_name or Path(recipe.source).name.split(".")[0], "licence": recipe.data_licence}
    train = [x for x, name in zip(found, names, strict=True) if name not in kept_out]
    return Samples(train, [first[name] for name in held], about)


def _names(loaded: LoadedPolicy, found: Sequence[Any]) -> Sequence[Any]:
    """What tells samples apart: of molecules the canonical SMILES, without stereo unless the policy writes texts."""
    if loaded.family.name != "molecules":
        return found
    from discrete_grpo.metrics.molecules import canonical

    key = loaded.family.key if hasattr(loaded.policy, "tokenizer") else canonical
    return [key(sample) or sample for sample in found]


def _molecules(recipe: SFTRecipe, loaded: LoadedPolicy) -> Sequence[str]:
    """The SMILES of a file as they stand there."""
    from discrete_grpo.datasets.reading import read_smiles
    from discrete_grpo.recipes.molecules import data_file, report_broken

    path = data_file(recipe.source)
    with path_named("data"):
        found = read_smiles(path, recipe.max_broken, smiles_column=recipe.smiles_column, max_bytes=recipe.max_bytes)
    report_broken(path, found.broken, len(found.smiles))
    return found.smiles


def _spatial(recipe: SFTRecipe, loaded: LoadedPolicy) -> Sequence[Any]:
    assert loaded.family.read is not None
    with told_as("data", "file"):
        found, _ = loaded.family.read(recipe.source, FileOptions(smiles_column=recipe.smiles_column, max_bytes=recipe.max_bytes))
    known = [sample for sample in found if sample is not None]
    if (lost := len(found) - len(known)) > recipe.max_broken * len(found) and known:
        wanted = f"expected at most a share of max_broken ({recipe.max_broken:g})"
        raise ValueError(f"data: {recipe.source}: {lost} of {len(found)} records are no molecule in space, {wanted}")
    return known


def _lines(recipe: SFTRecipe, loaded: LoadedPolicy) -> Sequence[str]:
    from discrete_grpo.datasets.text import read_lines

    with path_named("data"):
        return [line for _, line in read_lines(recipe.source, max_bytes=recipe.max_bytes)]


def _graphs(recipe: SFTRecipe, loaded: LoadedPolicy) -> Samples:
    """Lines of graphs, with the names of their classes where the policy has any."""
    from discrete_grpo.datasets.graph_splits import load_splits
    from discrete_grpo.datasets.own_digraphs import own_digraphs
    from discrete_grpo.datasets.own_graphs import is_own, labelled_splits, own_graphs
    from discrete_grpo.domains.named_graphs import to_line
    from discrete_grpo.recipes.graph_family import labels_of

    limits: dict[str, Any] = {"max_nodes": recipe.max_nodes, "max_bytes": recipe.max_bytes}
    attributes: dict[str, Any] = {"node_attribute": recipe.node_attribute, "edge_attribute": recipe.edge_attribute}
    about: dict[str, Any] = {"source": recipe.source, "licence": recipe.data_licence}
    if recipe.source.endswith(".npz") or is_own(recipe.source):
        read = own_digraphs if loaded.family.name == "digraphs" else own_graphs
        own = read(recipe.source, labels=labels_of(loaded.metadata), **attributes, **limits)
        if labels_of(loaded.metadata) is None and not own.labels.plain:
            raise ValueError(f"data: {recipe.source} has classes of nodes or edges, expected none, as {recipe.policy} has none")
        splits = labelled_splits(own, recipe.test_share)
        about |= {**attributes, "test_share": recipe.test_share} if is_own(recipe.source) or not own.labels.plain else {}
    else:
        splits = load_splits(recipe.source, **limits)
    train, held = ([to_line(graph) for graph in part] for part in (splits.train, splits.test))
    return Samples(train, held, {"name": recipe.data_name or splits.name, **about})


# -- data sets


def taught(recipe: SFTRecipe, loaded: LoadedPolicy, found: Samples) -> Taught:
    """The policy with data sets of the samples that it can draw; those that are left out are counted on standard error.

    Raises:
        ValueError: if more than a share ``max_broken`` of the samples, or all of a part, are left out; or for a policy that cannot
            be trained on samples alone.
    """
    policy = _trained_part(recipe, loaded)
    inner = policy.policy if hasattr(policy, "policy") else policy
    if isinstance(policy, GraphPolicy | FieldPolicy):
        form: Callable[[Any], Any] = partial(_readable, policy)
    elif isinstance(inner, TokenPolicy):
        form = partial(_written, policy, inner, loaded)
    elif isinstance(policy, MaskedTextPolicy):
        form = partial(_fitting, policy)
    else:
        raise ValueError(f"policy: {recipe.policy!r} is a {type(policy).__name__}, expected a policy of graphs or tokens")
    if recipe.marginals == "data" and not isinstance(policy, GraphPolicy):
        raise ValueError(f"marginals: 'data', expected 'policy' with {recipe.policy}, which is no diffusion policy of graphs")
    parts = [[form(sample) for sample in part] for part in (found.train, found.held_out)]
    _tell_left_out(recipe, [*found.train, *found.held_out], [*parts[0], *parts[1]])
    train, held = ([sample for sample in part if sample is not None] for part in parts)
    if not train:
        raise ValueError(f"data: {recipe.source!r} has no sample for training that the policy can draw")
    if isinstance(policy, GraphPolicy | FieldPolicy):
        policy, make = _graph_data(recipe, policy, [*train, *held])
    elif isinstance(policy, MaskedTextPolicy):
        make = partial(_text_data, policy)
    else:
        make = partial(_token_data, recipe, policy, inner, loaded)
    draws = 1 if isinstance(inner, TokenPolicy) else NOISY_DRAWS
    test = _without_conditions(make(held)) if held else None
    return Taught(policy, make(train), test, train, len(train) + len(held), draws)


def _without_conditions(data: Any) -> Dataset:
    """The same data without prompts and properties, as the policy draws without a condition."""
    changes: dict[str, Any] = {}
    if getattr(data, "values", None) is not None:
        changes["values"] = torch.full_like(data.values, torch.nan)
    if hasattr(data, "prompts"):
        changes |= {"prompts": data.prompts[:0], "prompt_starts": torch.zeros_like(data.prompt_starts)}
    found: Dataset = replace(data, **changes) if changes else data
    return found


def _trained_part(recipe: SFTRecipe, loaded: LoadedPolicy) -> Any:
    """The policy without wrappers that make no difference to its likelihood: a likelihood of GRPO, a drawn node count."""
    from discrete_grpo.policies.node_count import SizedPolicy
    from discrete_grpo.policies.options import without_likelihood

    policy = without_likelihood(loaded.policy)
    while isinstance(policy, SizedPolicy):
        policy = policy.policy
    if not hasattr(policy, "likelihood_loss"):
        raise ValueError(f"policy: {recipe.policy!r} is a {type(policy).__name__}, expected one with likelihood_loss")
    return policy


def _tell_left_out(recipe: SFTRecipe, given: Sequence[Any], forms: Sequence[Any]) -> None:
    from discrete_grpo.domains.sample_text import sample_text

    lost = [sample for sample, form in zip(given, forms, strict=True) if form is None]
    if not lost:
        return
    first = sample_text(lost[0])[:60]
    told = f"{len(lost)} of {len(given)} samples cannot be drawn by the policy, such as {first!r}"
    if len(lost) > recipe.max_broken * len(given):
        raise ValueError(f"data: {recipe.source}: {told}; expected at most a share of max_broken ({recipe.max_broken:g})")
    if is_first():
        print_notes([f"{recipe.source}: {told}; they are left out"])


# -- data of graphs


def _readable(policy: Any, sample: Any) -> Any:
    """The sample if it is a graph of the policy's classes, of at least one node; else None."""
    try:
        found = policy.encode is not None and int(policy.encode([sample]).sizes[0]) > 0
    except ValueError:
        return None
    return sample if found else None


def _graph_data(recipe: SFTRecipe, policy: Any, samples: Sequence[Any]) -> tuple[Any, Callable[[Sequence[Any]], Dataset]]:
    """The policy with node counts, and maybe frequencies of classes, of the data, and the function that makes data sets for it."""
    from discrete_grpo.recipes.loading import rebuilt

    every = EncodedSamples(tuple(samples), _sizes(policy, samples), policy.encode)
    counts = torch.bincount(every.sizes).double()
    changes: dict[str, Any] = {"node_counts": tuple((counts / counts.sum()).tolist())}
    if recipe.marginals == "data":
        changes |= _kernels_of(recipe, policy, every)
    changed = rebuilt(policy, lambda old: changes)

    def make(part: Sequence[Any]) -> Dataset:
        values = _values(part, policy.properties) if getattr(policy, "properties", ()) else None
        return EncodedSamples(tuple(part), _sizes(policy, part), policy.encode, values)

    return changed, make


def _sizes(policy: Any, samples: Sequence[Any]) -> Tensor:
    return torch.tensor([int(policy.encode([sample]).sizes[0]) for sample in samples])


def _values(smiles: Sequence[str], properties: Sequence[Any]) -> Tensor:
    """Descriptors of molecules, standardised as the policy was trained on them [M, K]."""
    from discrete_grpo.datasets.molecules import descriptors

    raw = descriptors(smiles, [one.name for one in properties])
    mean, std = (torch.tensor([getattr(one, part) for one in properties]) for part in ("mean", "std"))
    return ((raw - mean) / std).float()


def _kernels_of(recipe: SFTRecipe, policy: GraphPolicy, data: EncodedSamples) -> dict[str, Any]:
    """Kernels of the same kind and schedule that noise to the frequencies of the classes in the data."""
    kernels: dict[str, Any] = {"node_kernel": policy.node_kernel, "edge_kernel": policy.edge_kernel}
    for kernel in kernels.values():
        if not isinstance(kernel.noise, Noise) or kernel.noise.num_states != kernel.noise.num_clean:
            raise ValueError(f"marginals: 'data', expected 'policy' with the noise of {recipe.policy}, which ends in no data class")
    counts = _class_counts(data, [kernel.noise.num_clean for kernel in kernels.values()])
    for (name, kernel), count in zip(kernels.items(), counts, strict=True):
        if float(count.sum()):  # graphs of one node have no pairs
            kernels[name] = replace(kernel, noise=replace(kernel.noise, prior=tuple((count / count.sum()).tolist())))
    return kernels


def _class_counts(data: EncodedSamples, classes: Sequence[int], rows: int = 512) -> list[Tensor]:
    """How many nodes, and how many unordered pairs, have each class."""
    from discrete_grpo.domains.graphs import pair_mask, upper

    found = [torch.zeros(number, dtype=torch.float64) for number in classes]
    for part in torch.arange(len(data)).split(rows):
        graphs = data.batch(part)
        for counts, sites in zip(found, (graphs.nodes[graphs.mask], upper(graphs.edges)[pair_mask(graphs.mask)]), strict=True):
            counts += torch.bincount(sites, minlength=len(counts))
    return found


# -- data of tokens


def _written(policy: Any, inner: TokenPolicy, loaded: LoadedPolicy, sample: Any) -> Any:
    """The sample in a form that the policy can draw, with its condition; None if there is none."""
    if policy is not inner:  # texts of graphs
        from discrete_grpo.domains.graph_sequences import most_tokens
        from discrete_grpo.domains.named_graphs import graph_of

        graph = graph_of(sample)
        short = graph is not None and most_tokens(graph, policy.decoder.labels) <= inner.max_length
        return sample if short and policy.can_draw(sample) else None
    forms = [sample]
    if loaded.family.name == "molecules":
        from discrete_grpo.metrics.molecules import canonical

        forms = [loaded.family.key(sample), canonical(sample), sample]
    drawn = next((form for form in forms if form is not None and policy.can_draw(form)), None)
    if drawn is None or inner.prompt != "scaffold":
        return drawn
    prompt = _scaffold(drawn)
    fits = not prompt or (inner.tokenizer.knows(prompt) and len(inner.tokenizer.encode(prompt)) <= inner.max_prompt)
    return drawn if fits else None


def _scaffold(smiles: str) -> str:
    from discrete_grpo.domains.molecule_properties import murcko_scaffold
    from discrete_grpo.domains.molecules import parse_smiles

    mol = parse_smiles(smiles)
    return "" if mol is None else murcko_scaffold(mol)


def _token_data(recipe: SFTRecipe, policy: Any, inner: TokenPolicy, loaded: LoadedPolicy, samples: Sequence[str]) -> Dataset:
    if policy is not inner:
        from discrete_grpo.datasets.graph_tokens import graph_tokens
        from discrete_grpo.domains.named_graphs import named_graph

        graphs = [named_graph(sample) for sample in samples]
        return graph_tokens(graphs, inner.tokenizer, policy.decoder.labels, seed=recipe.pretrain.seed)
    from discrete_grpo.datasets.smiles import token_dataset

    molecules = loaded.family.name == "molecules"
    for name, read in (("properties", inner.properties), ("prompt", inner.prompt if inner.prompt != "scaffold" else None)):
        if read and not (molecules and name == "properties"):
            raise ValueError(f"policy: {recipe.policy!r} is conditioned on {read!r}, which a file of samples does not tell")
    prompts = [_scaffold(one) for one in samples] if inner.prompt == "scaffold" else None
    data = token_dataset(samples, inner.tokenizer, prompts=prompts)
    if not inner.properties:
        return data
    return replace(data, values=_values(samples, inner.properties))


def _fitting(policy: MaskedTextPolicy, sample: str) -> str | None:
    known = bool(sample) and policy.tokenizer.knows(sample)
    return sample if known and len(policy.tokenizer.encode(sample)) <= policy.block_size else None


def _text_data(policy: MaskedTextPolicy, samples: Sequence[str]) -> Dataset:
    from discrete_grpo.datasets.text import text_dataset

    return text_dataset(samples, tokenizer=policy.tokenizer, block_size=policy.block_size)
