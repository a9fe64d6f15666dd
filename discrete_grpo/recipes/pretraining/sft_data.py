"""Conversion of samples to training data of an existing policy: those that it can draw, in the form that it is trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.processes import is_first
from discrete_grpo.datasets.encoded import EncodedSamples
from discrete_grpo.diffusion.noise import Noise
from discrete_grpo.policies.fields import FieldPolicy
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.recipes.loading import LoadedPolicy
from discrete_grpo.recipes.pretraining.held_out import NOISY_DRAWS
from discrete_grpo.recipes.pretraining.sft_files import Samples
from discrete_grpo.recipes.pretraining.training_conditions import always_conditioned
from discrete_grpo.runs.console import print_notes
from discrete_grpo.training.pretrain import Dataset

if TYPE_CHECKING:
    from discrete_grpo.recipes.pretraining.sft import SFTRecipe

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """A policy and data that it can be trained on.

    Attributes:
        policy: policy with the weights of the given one, which draws graphs with the sizes of the data.
        train: training data.
        held_out: data that the loss is measured on, without conditions unless the policy was always trained with them; None if
            there is none.
        samples: the samples of ``train``.
        count: number of samples of both.
        draws: least number of losses over which the held-out loss is averaged; more than one if it depends on noise.
    """

    policy: Any
    train: Dataset
    held_out: Dataset | None
    samples: Sequence[Any]
    count: int
    draws: int


Conditions: TypeAlias = Mapping[str, Sequence[float]]
"""Measured conditions of samples by name; NaN where one is unknown."""


class _MakeData(Protocol):
    """Makes a data set of samples, without conditions or with those that are given, by name, and those that can be computed."""

    def __call__(self, samples: Sequence[Any], *, conditions: Conditions | None) -> Dataset: ...


def _same(policy: Any, samples: Sequence[Any]) -> Any:
    return policy


class _Kind(NamedTuple):
    """How a kind of policies is trained on samples.

    Attributes:
        form: the sample in a form that the policy can draw; None if there is none.
        make: makes a data set of samples in that form.
        draws: as in :class:`Prepared`.
        adapted: the policy for these samples.
    """

    form: Callable[[Any], Any]
    make: _MakeData
    draws: int
    adapted: Callable[[Any, Sequence[Any]], Any] = _same


def prepare(recipe: SFTRecipe, loaded: LoadedPolicy, found: Samples) -> Prepared:
    """Build data sets of the samples that the policy can draw; those that are left out are counted on standard error.

    Raises:
        ValueError: if more than a share ``max_broken`` of the samples, or all of those to train on, are left out; for a policy
            that cannot be trained on samples alone; or for a condition that is missing and that the policy was always trained with.
    """
    policy = _trained_part(recipe, loaded)
    kind = _kind(recipe, loaded, policy)
    parts = [[kind.form(sample) for sample in part] for part in (found.train, found.held_out)]
    _tell_left_out(recipe, [*found.train, *found.held_out], [*parts[0], *parts[1]])
    train, held = ([sample for sample in part if sample is not None] for part in parts)
    if not train:
        raise ValueError(f"data: {recipe.source!r} has no sample for training that the policy can draw")
    given, of_held_out = map(_kept, (found.measured, found.held_out_measured), parts)
    data, adapted = kind.make(train, conditions=given), kind.adapted(policy, [*train, *held])
    test = kind.make(held, conditions=of_held_out if always_conditioned(policy) else None) if held else None
    return Prepared(adapted, data, test, train, len(train) + len(held), kind.draws)


def _kept(conditions: Conditions, forms: Sequence[Any]) -> Conditions:
    """The conditions of the samples that have a form."""
    rows = [row for row, form in enumerate(forms) if form is not None]
    return {name: [values[row] for row in rows] for name, values in conditions.items()}


def _kind(recipe: SFTRecipe, loaded: LoadedPolicy, policy: Any) -> _Kind:
    if recipe.marginals == "data" and not isinstance(policy, GraphPolicy):
        raise ValueError(f"marginals: 'data', expected 'policy' with {recipe.policy}, which is no diffusion policy of graphs")
    inner = getattr(policy, "policy", policy)
    if isinstance(policy, GraphPolicy | FieldPolicy):
        return _graph_kind(recipe, policy, loaded)
    if isinstance(policy, MaskedTextPolicy):
        return _Kind(partial(_fitting, policy), partial(_text_data, policy), NOISY_DRAWS)
    if isinstance(policy, TokenPolicy):
        return _Kind(partial(_written, policy, loaded), partial(_token_data, recipe, policy, loaded), 1)
    if isinstance(inner, TokenPolicy):
        return _Kind(partial(_sequence, policy), partial(_sequence_data, recipe, policy), 1)
    raise ValueError(f"policy: {recipe.policy!r} is a {type(policy).__name__}, expected a policy of graphs or tokens")


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


def _graph_kind(recipe: SFTRecipe, policy: Any, loaded: LoadedPolicy) -> _Kind:
    """Samples that are graphs of the policy's classes, of any size but 0 that its network reads."""
    encode = policy.encode
    if encode is None:
        raise ValueError(f"policy: {recipe.policy!r} has no encode, expected one that makes graphs of samples")

    most = getattr(policy.network, "most_nodes", math.inf)

    @cache
    def size(sample: Any) -> int:
        try:
            nodes = int(encode([sample]).sizes[0])
        except ValueError:
            return 0
        return nodes if nodes <= most else 0

    def make(samples: Sequence[Any], *, conditions: Conditions | None) -> EncodedSamples:
        values = _values(recipe, samples, policy, loaded, conditions) if getattr(policy, "properties", ()) else None
        return EncodedSamples(tuple(samples), torch.tensor([size(sample) for sample in samples]), encode, values)

    def adapted(policy: Any, samples: Sequence[Any]) -> Any:
        """The policy with node counts, and maybe frequencies of classes, of the samples."""
        from discrete_grpo.recipes.loading import rebuilt

        data = make(samples, conditions=None)
        counts = torch.bincount(data.sizes).double()
        changes: dict[str, Any] = {"node_counts": tuple((counts / counts.sum()).tolist())}
        changes |= _kernels_of(recipe, policy, data) if recipe.marginals == "data" else {}
        return rebuilt(policy, lambda old: changes)

    return _Kind(lambda sample: sample if size(sample) else None, make, NOISY_DRAWS, adapted)


def _values(
    recipe: SFTRecipe, smiles: Sequence[str], policy: Any, loaded: LoadedPolicy, given: Conditions | None
) -> Float[Tensor, "sample property"]:
    """Conditions of molecules, standardised as the policy was trained on them.

    Those that RDKit does not compute as the policy was trained on them are NaN unless they are ``given``; all are where it is None.
    """
    from discrete_grpo.datasets.molecules import descriptors
    from discrete_grpo.recipes.pretraining.measured import not_computed

    properties = policy.properties
    names, others = [one.name for one in properties], not_computed(properties, loaded.metadata)
    raw = torch.full((len(smiles), len(names)), torch.nan, dtype=torch.float64)
    if given is not None:
        computed = [k for k, name in enumerate(names) if name not in others]
        raw[:, computed] = descriptors(smiles, [names[k] for k in computed])
        for name, values in given.items():
            raw[:, names.index(name)] = torch.tensor(values, dtype=torch.float64)
        if always_conditioned(policy):
            _check_known(recipe, smiles, dict(zip(names, raw.isnan().unbind(1), strict=True)), others)
        elif (unknown := [name for name in others if name not in given]) and is_first():
            told = "neither a column of the data nor computed by RDKit, so the samples are trained on without it"
            print_notes([f"{', '.join(unknown)}: {told}"])
    mean, std = (torch.tensor([getattr(one, part) for one in properties]) for part in ("mean", "std"))
    return ((raw - mean) / std).float()


def _check_known(recipe: SFTRecipe, smiles: Sequence[str], missing: Mapping[str, Tensor], read: Collection[str]) -> None:
    """Raise ``ValueError`` for a property that samples lack although the policy was always trained with one.

    Args:
        recipe: gives the name of the data.
        smiles: the samples.
        missing: by the name of each property, which samples lack it.
        read: names of the properties that are read from columns; the others are computed.
    """
    for name, rows in missing.items():
        if not bool(rows.any()):
            continue
        lost = f"{int(rows.sum())} of {len(smiles)} samples, such as {smiles[int(rows.int().argmax())][:60]!r}"
        column = f"a number of each in a column {name!r} of {recipe.source}"
        wanted = column if name in read else "samples that RDKit computes it for"
        raise ValueError(f"{name}: unknown for {lost}, expected {wanted}, as the policy was trained with one always")


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
    """The numbers of nodes and of unordered pairs of each class."""
    from discrete_grpo.domains.graphs import pair_mask, upper

    found = [torch.zeros(number, dtype=torch.float64) for number in classes]
    for part in torch.arange(len(data)).split(rows):
        graphs = data.encode([data.samples[row] for row in part.tolist()])
        for counts, sites in zip(found, (graphs.nodes[graphs.mask], upper(graphs.edges)[pair_mask(graphs.mask)]), strict=True):
            counts += torch.bincount(sites, minlength=len(counts))
    return found


# -- data of tokens


def _written(policy: TokenPolicy, loaded: LoadedPolicy, sample: Any) -> Any:
    """The sample in a form that the policy can draw, with its condition; None if there is none."""
    forms = [sample]
    if loaded.family.name == "molecules":
        from discrete_grpo.metrics.molecules import canonical

        forms = [loaded.family.key(sample), canonical(sample), sample]
    drawn = next((form for form in forms if form is not None and policy.can_draw(form)), None)
    if drawn is None or policy.prompt != "scaffold":
        return drawn
    prompt = _scaffold(drawn)
    fits = not prompt or (policy.tokenizer.knows(prompt) and len(policy.tokenizer.encode(prompt)) <= policy.max_prompt)
    return drawn if fits else None


def _scaffold(smiles: str) -> str:
    from discrete_grpo.domains.molecule_properties import murcko_scaffold
    from discrete_grpo.domains.smiles import parse_smiles

    mol = parse_smiles(smiles)
    return "" if mol is None else murcko_scaffold(mol)


def _token_data(
    recipe: SFTRecipe, policy: TokenPolicy, loaded: LoadedPolicy, samples: Sequence[str], *, conditions: Conditions | None
) -> Dataset:
    from discrete_grpo.datasets.smiles import token_dataset

    molecules, scaffold = loaded.family.name == "molecules", policy.prompt == "scaffold"
    for name, known in ((policy.properties, molecules), (policy.prompt, scaffold)):
        if name and not known:
            raise ValueError(f"policy: {recipe.policy!r} is conditioned on {name!r}, which a file of samples does not tell")
    prompts = [_scaffold(one) for one in samples] if scaffold and conditions is not None else None
    data = token_dataset(samples, policy.tokenizer, prompts=prompts)
    if not policy.properties:
        return data
    return replace(data, values=_values(recipe, samples, policy, loaded, conditions))


def _sequence(policy: Any, sample: Any) -> Any:
    """The graph if the policy can write it in every order; else None."""
    from discrete_grpo.domains.graph_sequences import most_tokens
    from discrete_grpo.domains.named_graphs import graph_of

    graph = graph_of(sample)
    short = graph is not None and most_tokens(graph, policy.decoder.labels) <= policy.policy.max_length
    return sample if short and policy.can_draw(sample) else None


def _sequence_data(recipe: SFTRecipe, policy: Any, samples: Sequence[str], *, conditions: Conditions | None) -> Dataset:
    from discrete_grpo.datasets.graph_tokens import graph_tokens
    from discrete_grpo.domains.named_graphs import named_graph

    graphs = [named_graph(sample) for sample in samples]
    return graph_tokens(graphs, policy.policy.tokenizer, policy.decoder.labels, seed=recipe.pretrain.seed)


def _fitting(policy: MaskedTextPolicy, sample: str) -> str | None:
    known = bool(sample) and policy.tokenizer.knows(sample)
    return sample if known and len(policy.tokenizer.encode(sample)) <= policy.block_size else None


def _text_data(policy: MaskedTextPolicy, samples: Sequence[str], *, conditions: Conditions | None) -> Dataset:
    from discrete_grpo.datasets.text import text_dataset

    return text_dataset(samples, tokenizer=policy.tokenizer, block_size=policy.block_size)
