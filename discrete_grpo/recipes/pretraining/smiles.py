"""Autoregressive policies of SMILES strings and their pretraining."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from discrete_grpo.core.checks import check_fields, check_range, check_sizes, check_text, told_as
from discrete_grpo.core.description import attach_metadata
from discrete_grpo.core.option_names import known_options
from discrete_grpo.core.processes import is_first
from discrete_grpo.core.seeding import seeded
from discrete_grpo.datasets.enumeration import enumerated_smiles
from discrete_grpo.datasets.molecules import property_scales, with_measured
from discrete_grpo.datasets.reading import AUTO
from discrete_grpo.datasets.sharded import ShardedTokens
from discrete_grpo.datasets.shards import is_shard_folder
from discrete_grpo.datasets.smiles import SmilesLines, alphabet, load_smiles, smiles_from_lines, token_dataset
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.smiles import canonical_samples
from discrete_grpo.domains.tokenizer import Property, Tokenizer
from discrete_grpo.metrics.molecules import sample_metrics
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.recipes.left_out import report_broken, report_kept
from discrete_grpo.recipes.pretraining.fitting import fit, fresh_metrics
from discrete_grpo.recipes.pretraining.held_out import hold_out, with_held_out
from discrete_grpo.recipes.pretraining.measured import (
    check_shown,
    measured_columns,
    measured_in,
    measured_values,
    tell_properties,
)
from discrete_grpo.recipes.pretraining.molecule_files import check_shard_options, data_file
from discrete_grpo.recipes.pretraining.training_conditions import training_conditions
from discrete_grpo.runs.console import print_notes
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Dataset

__all__ = ["PretrainSmilesRecipe", "run_pretrain_smiles", "smiles_policy"]


@known_options()
@dataclass(frozen=True)
class PretrainSmilesRecipe:
    """Likelihood training of an autoregressive SMILES policy on a file of molecules.

    Attributes:
        data: path of a SMILES file (.smi, .txt, .csv, .tsv, each optionally .gz) or of a folder of shards made by ``preprocess``,
            ``enumerated`` for the bundled set, or the name of a download (``qm9``, ``zinc250k``).
        output_dir: run folder to make.
        properties: conditions of the policy: names of columns of numbers in ``data``, and else of RDKit descriptors. A molecule
            whose cell is empty is trained on without that condition. A folder of shards has those that it was made with.
        scaffold: whether the policy can be conditioned on Murcko scaffolds.
        condition_dropout: share of training molecules whose conditions are hidden, so that the policy also works without. With 0
            the ``evaluation_samples`` are drawn under conditions of training molecules.
        layers: depth of the transformer.
        heads: attention heads of the transformer.
        width: width of its hidden states.
        dropout: dropout probability in the transformer while pretraining.
        max_length: largest number of tokens of a molecule; None means that of the data.
        temperature: temperature of sampling, kept with the policy; it is 1 in training.
        pretrain: settings of the training loop.
        max_broken: largest share of lines of ``data`` that may not be a molecule.
        smiles_column: name of the column of SMILES in ``data``; None finds it by its name.
        max_bytes: largest size that a gzipped file may unpack to.
        cache_dir: folder where the parsed data is kept for the next run; ``auto`` is that of the user, for large files, None none.
        evaluation_samples: molecules sampled at every checkpoint to log validity; 0 means none.
        data_name: name kept with the checkpoint; None means that of ``data``.
        data_licence: licence kept with the checkpoint.
        test_share: share of the different molecules that is not trained on, and whose loss is logged at every checkpoint as
            ``eval/test_loss``, with the same hidden conditions each time; 0 trains on all of them. Of a folder
            of shards it is a share of the lines.
    """

    data: str = "enumerated"
    output_dir: str = "runs/pretrain-smiles"
    properties: tuple[str, ...] = ()
    scaffold: bool = False
    condition_dropout: float = 0.5
    layers: int = 6
    heads: int = 4
    width: int = 144
    dropout: float = 0.0
    max_length: int | None = None
    temperature: float = 1.0
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    max_broken: float = 0.05
    smiles_column: str | None = None
    max_bytes: int = MAX_BYTES
    cache_dir: str | None = AUTO
    evaluation_samples: int = 256
    data_name: str | None = None
    data_licence: str = "unknown"
    test_share: float = 0.0

    def __post_init__(self) -> None:
        check_text("data", self.data, "the name of a set, or of a file or folder of molecules")
        check_fields(self, "evaluation_samples", least=0)
        check_fields(self, "test_share", least=0, below=1)
        check_fields(self, "layers heads width max_length max_bytes", least=1)
        check_shown(self.condition_dropout, [*self.properties, *(["scaffold"] if self.scaffold else [])])


def smiles_policy(
    tokenizer: Tokenizer,
    *,
    max_length: int,
    properties: Sequence[Property] = (),
    scaffold: bool = False,
    condition_dropout: float = 0.5,
    layers: int = 6,
    heads: int = 4,
    width: int = 144,
    dropout: float = 0.0,
    temperature: float = 1.0,
    seed: int = 42,
) -> TokenPolicy:
    """An untrained SMILES policy; its samples are canonical SMILES, or None for a string that is not a molecule.

    Args:
        tokenizer: the alphabet.
        max_length: largest number of tokens of a molecule.
        properties: descriptors the policy is conditioned on.
        scaffold: whether the policy reads a context's ``scaffold``.
        condition_dropout: share of training molecules whose conditions are hidden.
        layers: depth of the transformer.
        heads: attention heads of the transformer.
        width: width of its hidden states.
        dropout: dropout probability in training.
        temperature: temperature of sampling.
        seed: random seed of the initial weights; the global random state is not changed.
    """
    config = GPTConfig(len(tokenizer), max_length, len(properties), layers, heads, width, dropout=dropout)
    check_sizes("", config, GPTConfig)
    with seeded(seed):
        network = GPT(config)
    prompt = "scaffold" if scaffold else None
    policy = TokenPolicy(
        network,
        tokenizer,
        max_length=max_length,
        prompt=prompt,
        properties=properties,
        condition_dropout=condition_dropout,
        truncation=Truncation(temperature),
        decode=canonical_samples,
    )
    return attach_metadata(policy, {"kind": "molecules"})


class _Data(NamedTuple):
    """Training data with its tokenizer, properties, largest number of tokens, name, measured columns and one name per row."""

    data: Dataset
    tokenizer: Tokenizer
    properties: tuple[Property, ...]
    longest: int
    name: str
    measured: tuple[str, ...]
    names: Sequence[Hashable]


def _data(recipe: PretrainSmilesRecipe) -> _Data:
    """The molecules of ``recipe.data``; lines that are not a molecule are listed on standard error."""
    if recipe.data != "enumerated" and is_shard_folder(recipe.data):
        shards = ShardedTokens(recipe.data, recipe.properties, recipe.scaffold)
        check_shard_options(shards.folder, recipe.max_broken, recipe.smiles_column)
        longest = max(int(shards.sizes.max()) - 1, shards.longest_prompt if recipe.scaffold else 0)
        measured = measured_in(shards.folder, recipe.properties)
        return _Data(shards, shards.tokenizer, shards.properties, longest, shards.folder.name, measured, range(len(shards)))
    measured = measured_columns(recipe)
    lines = _lines(recipe, measured)
    values = with_measured(recipe.properties, lines.properties, lines.values, measured_values(recipe, measured, lines.lines))
    tokenizer, scales = alphabet(lines), property_scales(recipe.properties, values)
    prompts = lines.scaffolds if recipe.scaffold else None
    data = token_dataset(lines.smiles, tokenizer, prompts=prompts, values=values, properties=scales)
    tell_properties(scales, data.values)
    longest = max(int(data.sizes.max()) - 1, int(data.prompt_starts.diff().max()))
    _tell_long(data.sizes - 1, longest)
    return _Data(data, tokenizer, scales, longest, lines.name, measured, lines.smiles)


def _tell_long(sizes: Tensor, longest: int) -> None:
    """Print the length of the longest molecules if a few of them are much longer than all others, as it is that of all draws."""
    usual = int(sizes.double().quantile(0.99)) if len(sizes) < 2**24 else longest  # the most that `quantile` takes
    if longest > 2 * usual and is_first():
        few = int((sizes > usual).sum())
        told = f"99 % of the molecules have at most {usual} tokens, and {few} up to {longest}"
        print_notes([f"data: {told}, so the policy may draw texts of {longest}; leave these out for a faster policy"])


def _lines(recipe: PretrainSmilesRecipe, measured: Sequence[str]) -> SmilesLines:
    """The molecules of a file, with the properties that are computed."""
    computed = tuple(name for name in recipe.properties if name not in measured)
    options: dict[str, Any] = {"properties": computed, "scaffolds": recipe.scaffold, "max_broken": recipe.max_broken}
    if recipe.data == "enumerated":
        return smiles_from_lines(enumerate(enumerated_smiles(), 1), "enumerated", name="enumerated", **options)
    path = data_file(recipe.data)
    options |= {"smiles_column": recipe.smiles_column, "max_bytes": recipe.max_bytes}
    with told_as("data", "path"):
        data = load_smiles(path, cache_dir=recipe.cache_dir, **options)
    report_broken(path, data.broken, len(data))
    report_kept(path, data.smiles)
    return data


def run_pretrain_smiles(recipe: PretrainSmilesRecipe, *, resume: bool = False) -> Path:
    """Pretrain a SMILES policy; returns the folder of the exported policy."""
    data, tokenizer, scales, longest, name, measured, names = _data(recipe)
    train, held_out = hold_out(data, names, recipe.test_share)
    if recipe.max_length is not None:
        check_range("max_length", recipe.max_length, least=longest, note=", the most tokens of a molecule of the data")
    policy = smiles_policy(
        tokenizer,
        max_length=recipe.max_length or max(2, longest),
        properties=scales,
        scaffold=recipe.scaffold,
        condition_dropout=recipe.condition_dropout,
        layers=recipe.layers,
        heads=recipe.heads,
        width=recipe.width,
        dropout=recipe.dropout,
        temperature=recipe.temperature,
        seed=recipe.pretrain.seed,
    )
    metadata: dict[str, Any] = {
        "kind": "molecules",
        "data": {"name": recipe.data_name or name, "molecules": len(train), "licence": recipe.data_licence},
    }
    if measured:
        metadata["measured"] = list(measured)
    columns = training_conditions(policy, train, recipe.evaluation_samples)
    fresh = fresh_metrics(recipe.evaluation_samples, sample_metrics, columns=columns)
    evaluate = with_held_out(fresh, held_out, recipe.pretrain.batch_size)
    return fit(policy, train, recipe, metadata=metadata, evaluate=evaluate, resume=resume)
