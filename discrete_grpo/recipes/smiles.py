"""SMILES policies: made, pretrained and loaded. The autoregressive counterpart of :mod:`discrete_grpo.recipes.molecules`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discrete_grpo.core.checks import check_range
from discrete_grpo.core.seeding import seeded
from discrete_grpo.datasets.enumeration import enumerated_smiles
from discrete_grpo.datasets.molecules import property_scales
from discrete_grpo.datasets.smiles import SmilesLines, alphabet, load_smiles, smiles_from_lines, token_dataset
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.molecules import canonical_samples
from discrete_grpo.domains.tokenizer import Property, Tokenizer
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.recipes.molecules import data_file, report_broken, validity_metrics
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import fit

__all__ = ["PretrainSmilesRecipe", "run_pretrain_smiles", "smiles_policy"]


@dataclass(frozen=True)
class PretrainSmilesRecipe:
    """Likelihood training of an autoregressive SMILES policy on a file of molecules.

    Attributes:
        data: path of a SMILES file (.smi, .txt, .csv, .tsv, each optionally .gz), ``enumerated`` for the bundled set, or the
            name of a download (``qm9``, ``zinc250k``).
        output_dir: run folder to make.
        properties: RDKit descriptors the policy can be conditioned on.
        scaffold: whether it can be conditioned on Murcko scaffolds.
        condition_dropout: share of training in which a condition is hidden, so that the policy also works without.
        layers, heads, width: sizes of the transformer.
        dropout: in the transformer while pretraining.
        max_length: the most tokens of a molecule; None means the longest of the data.
        temperature: of the logits when the policy draws, kept with it; training is at 1.
        pretrain: settings of the training loop.
        max_broken: largest share of lines of ``data`` that may be no molecule.
        smiles_column: name of the column of SMILES in ``data``; None finds it by its name.
        max_bytes: largest size that a gzipped file may unpack to.
        cache_dir: folder where the parsed data is kept for the next time.
        evaluation_samples: molecules drawn with every checkpoint to log validity; 0 draws none.
        data_name: written into the checkpoint.
        data_licence: written into the checkpoint.
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
    cache_dir: str | None = None
    evaluation_samples: int = 256
    data_name: str | None = None
    data_licence: str = "unknown"

    def __post_init__(self) -> None:
        check_range("evaluation_samples", self.evaluation_samples, least=0)


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
    """An untrained SMILES policy; rewards see canonical SMILES, None for what is no molecule.

    Args:
        tokenizer: the alphabet.
        max_length: the most tokens of a molecule.
        properties: descriptors it is conditioned on.
        scaffold: whether it reads a context's ``scaffold``.
        condition_dropout: share of training in which a condition is hidden.
        layers: depth of the transformer.
        heads: of its attention.
        width: of its hidden states.
        dropout: in training.
        temperature: of the logits when it draws.
        seed: of the initial weights; the global random state is left as it was.
    """
    config = GPTConfig(len(tokenizer), max_length, len(properties), layers, heads, width, dropout=dropout)
    with seeded(seed):
        network = GPT(config)
    prompt = "scaffold" if scaffold else None
    return TokenPolicy(
        network,
        tokenizer,
        max_length=max_length,
        prompt=prompt,
        properties=properties,
        condition_dropout=condition_dropout,
        truncation=Truncation(temperature),
        decode=canonical_samples,
    )


def _lines(recipe: PretrainSmilesRecipe) -> SmilesLines:
    options: dict[str, Any] = {"properties": recipe.properties, "scaffolds": recipe.scaffold, "max_broken": recipe.max_broken}
    if recipe.data == "enumerated":
        return smiles_from_lines(enumerate(enumerated_smiles(), 1), "enumerated", name="enumerated", **options)
    path = data_file(recipe.data)
    options |= {"smiles_column": recipe.smiles_column, "max_bytes": recipe.max_bytes}
    data = load_smiles(path, cache_dir=recipe.cache_dir, **options)
    report_broken(path, data.broken, len(data))
    return data


def run_pretrain_smiles(recipe: PretrainSmilesRecipe, *, resume: bool = False) -> Path:
    """Train, log and export; returns the folder of the exported policy."""
    lines = _lines(recipe)
    tokenizer, scales = alphabet(lines), property_scales(lines.properties, lines.values)
    prompts = lines.scaffolds if recipe.scaffold else None
    data = token_dataset(lines.smiles, tokenizer, prompts=prompts, values=lines.values, properties=scales)
    longest = max(int(data.sizes.max()) - 1, int(data.prompt_starts.diff().max()))
    if recipe.max_length is not None and recipe.max_length < longest:
        raise ValueError(f"max_length: {recipe.max_length}, expected at least {longest}, the most tokens of a molecule of the data")
    policy = smiles_policy(
        tokenizer,
        max_length=recipe.max_length or longest,
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
    metadata = {
        "kind": "molecules",
        "data": {"name": recipe.data_name or lines.name, "molecules": len(lines), "licence": recipe.data_licence},
    }
    evaluate = validity_metrics(recipe.evaluation_samples)
    return fit(policy, data, recipe, metadata=metadata, evaluate=evaluate, resume=resume)
