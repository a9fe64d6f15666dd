"""Import of MolGPT weights as a SMILES policy, unconditional or conditioned on properties.

MolGPT is a GPT whose texts all begin with one given token (it has no BOS) and end with the padding token ``<``. Its
tensors map onto :class:`~discrete_grpo.models.gpt.GPT` one to one: BOS has the embedding row of the first token, and the
property token of features [value, given] has the weights [W | 0]. Scaffold conditions are refused: the scaffold of MolGPT has no
positions and is padded to a fixed length, which this GPT does not support.
Source: Bagal et al. (2022), doi 10.1021/acs.jcim.1c00600.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from discrete_grpo.core.checks import check_samples
from discrete_grpo.core.condition_names import reserved, reserved_names
from discrete_grpo.domains.smiles import canonical_samples
from discrete_grpo.domains.tokenizer import SMILES, Property, Tokenizer
from discrete_grpo.importers.settings import brief, check_heads
from discrete_grpo.importers.tensors import (
    below,
    check_tensors,
    network_prefix,
    read_json,
    read_pickle,
    read_safetensors,
    select_rows,
    state_dict_in,
)
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.runs.checkpoint import CheckpointError

__all__ = ["StartedTokenizer", "import_molgpt"]

END = "<"
FIRST = "tok_emb.weight"
MASK_BUFFER = re.compile(r"blocks\.\d+\.attn\.mask")


@dataclass(frozen=True)
class StartedTokenizer:
    """Tokenizer of texts that all begin with one token, which is given and not drawn: text = start + decode(ids).

    Attributes:
        tokenizer: tokenizer of the text after the first token.
        start: the first token.

    >>> tokenizer = StartedTokenizer(Tokenizer(("C", "O")), "C")
    >>> tokenizer.encode("CCO"), tokenizer.decode([4, 5])
    ([4, 5], 'CCO')
    """

    tokenizer: Tokenizer
    start: str

    def __len__(self) -> int:
        """Number of ids, special ones included."""
        return len(self.tokenizer)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Ordinary tokens."""
        return self.tokenizer.tokens

    def split(self, text: str) -> list[str]:
        """Split ``text`` into tokens and drop the first.

        Raises:
            ValueError: if the text begins with another token, or has a token outside the alphabet.
        """
        parts = self.tokenizer.split(text)
        if parts[:1] != [self.start]:
            raise ValueError(
                f"text: {text!r} begins with {''.join(parts[:1])!r}, expected {self.start!r} as every text of this policy"
            )
        return parts[1:]

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` after its first token.

        Raises:
            ValueError: if the text begins with another token, or has a token outside the alphabet.
        """
        self.split(text)
        return self.tokenizer.encode(text)[1:]

    def knows(self, text: str) -> bool:
        """Return whether the policy can draw ``text``."""
        try:
            self.split(text)
        except ValueError:
            return False
        return True

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids`` without special ids."""
        return self.start + self.tokenizer.decode(ids)


def import_molgpt(
    path: str | os.PathLike[str],
    *,
    vocabulary: str | os.PathLike[str],
    heads: int = 8,
    properties: Sequence[str] = (),
    start: str = "C",
) -> TokenPolicy:
    """Import MolGPT weights as a policy; MolGPT has no missing properties, so every context has to give all of them.

    Args:
        path: weights, as a ``state_dict`` of ``torch.save``, which may be under a key such as ``model_state_dict`` and have
            names that begin with ``module.``, or a safetensors file.
        vocabulary: JSON file of the tokens: token -> row, or a list in the order of the rows.
        heads: number of attention heads, which the weights do not determine; 8 in the published models.
        properties: names of the context columns that are its conditions, in the order of its training.
        start: first token of every molecule.

    Raises:
        CheckpointError: if a file is missing or damaged, or the tensors do not fit.
        ValueError: if an option does not fit the weights.
    """
    _check_names(properties)
    found = read_safetensors(path) if Path(path).suffix == ".safetensors" else read_pickle(path)
    tokens = _tokens(read_json(vocabulary, "vocabulary"), vocabulary)
    if start not in tokens or start == END:
        raise ValueError(f"start: {start!r}, expected a token of {vocabulary} other than {END!r}")
    found, config = _sizes(found, len(tokens), heads, properties, path)
    ordinary = [t for t in tokens if t != END]
    tokenizer = Tokenizer(tuple(ordinary), SMILES)
    if odd := [t for t in ordinary if re.fullmatch(SMILES, t) is None]:
        raise CheckpointError(f"vocabulary: {odd[0]!r} in {vocabulary} is no token of SMILES")
    end = tokens.index(END)
    ids = [end, tokens.index(start), end, end, *(k for k, t in enumerate(tokens) if t != END)]
    with torch.random.fork_rng(devices=[]):
        network = GPT(config)
    network.load_state_dict(_renamed(found, ids, config))
    return TokenPolicy(
        network,
        cast(Tokenizer, StartedTokenizer(tokenizer, start)),
        max_length=config.block_size,
        properties=tuple(Property(name) for name in properties),
        condition_dropout=0.0,
        decode=canonical_samples,
    ).eval()


def _tokens(table: Any, path: object) -> list[str]:
    """Return the tokens in the order of their rows."""
    if isinstance(table, dict) and sorted(table.values(), key=str) == sorted(range(len(table)), key=str):
        table = sorted(table, key=table.__getitem__)
    if not isinstance(table, list) or not all(isinstance(t, str) for t in table) or len(set(table)) != len(table):
        raise CheckpointError(f"vocabulary: {path} is no list of distinct tokens and no table of tokens and rows")
    if END not in table:
        raise CheckpointError(f"vocabulary: {path} has no {END!r}, which ends a molecule in MolGPT")
    return table


def _check_names(properties: Sequence[str]) -> None:
    """Raise ``ValueError`` unless the names are a list of distinct texts that are not empty."""
    check_samples(properties, "properties", "names")
    for k, name in enumerate(properties):
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"properties: {name!r}, expected the name of a context column")
        if name in properties[:k]:
            raise ValueError(f"properties: {name!r} twice, expected distinct names")
    if taken := reserved(properties):
        raise ValueError(f"properties: {taken[0]!r}, expected none of {reserved_names()}")


def _network(found: Any, path: object) -> dict[str, Any]:
    """Return the state dict in a file, without a prefix of the names and without the stored causal masks."""
    found = state_dict_in(found)
    if not isinstance(found, Mapping):
        raise CheckpointError(f"path: {path} holds {type(found).__name__}, expected a state_dict")
    if (odd := next((name for name in found if not isinstance(name, str)), None)) is not None:
        raise CheckpointError(f"path: {path} has the key {brief(odd)}, expected a state_dict with names of tensors")
    inside = below(found, network_prefix(found, FIRST, path, "MolGPT"), FIRST)
    return {name: t for name, t in inside.items() if not MASK_BUFFER.fullmatch(name)}


def _sizes(found: Any, num_tokens: int, heads: int, properties: Sequence[str], path: object) -> tuple[dict[str, Tensor], GPTConfig]:
    """Return the tensors without the stored causal masks, and the sizes, after a check of all shapes."""
    found = _network(found, path)
    if any(name.startswith("lstm.") for name in found):
        raise CheckpointError(f"path: {path} is conditioned on scaffolds through an LSTM, expected no scaffold condition")
    shapes = {name: tuple(t.shape) for name, t in found.items() if isinstance(t, Tensor)}
    for name, ndim in (("tok_emb.weight", 2), ("pos_emb", 3), ("prop_nn.weight", 2)):  # which tell the sizes
        if len(shape := shapes.get(name, (0,) * ndim)) != ndim:
            raise CheckpointError(f"path: {path} does not fit: {name} {shape}, expected a tensor of {ndim} dimensions")
    width = shapes.get("tok_emb.weight", (0, 0))[1]
    block = shapes.get("pos_emb", (1, 0, 0))[1]
    layers = 1 + max((int(name.split(".")[1]) for name in shapes if re.match(r"blocks\.\d+\.", name)), default=-1)
    if not (width and block > 1 and layers):
        raise CheckpointError(f"path: {path} has no tok_emb.weight, pos_emb or blocks, expected the tensors of MolGPT")
    num_properties = shapes.get("prop_nn.weight", (0, 0))[1]
    if num_properties != len(properties):
        given = ", ".join(properties) or "none"
        raise ValueError(f"properties: {given}, expected {num_properties} names, as many as {path} was trained with")
    check_heads(heads, width)
    config = GPTConfig(num_tokens + 3, block, num_properties, layers, heads, width)  # PAD, BOS and MASK are added
    check_tensors(found, _expected(num_tokens, config), path)
    return found, config


def _expected(num_tokens: int, config: GPTConfig) -> dict[str, tuple[int, ...]]:
    d, block = config.width, config.block_size
    shapes: dict[str, tuple[int, ...]] = {
        "tok_emb.weight": (num_tokens, d),
        "type_emb.weight": (2, d),
        "pos_emb": (1, block, d),
        "ln_f.weight": (d,),
        "ln_f.bias": (d,),
        "head.weight": (num_tokens, d),
    }
    if config.num_properties:
        shapes |= {"prop_nn.weight": (d, config.num_properties), "prop_nn.bias": (d,)}
    linear = {f"attn.{name}": (d, d) for name in ("query", "key", "value", "proj")} | {"mlp.0": (4 * d, d), "mlp.2": (d, 4 * d)}
    for k in range(config.layers):
        for name, shape in linear.items():
            shapes |= {f"blocks.{k}.{name}.weight": shape, f"blocks.{k}.{name}.bias": shape[:1]}
        for name in ("ln1", "ln2"):
            shapes |= {f"blocks.{k}.{name}.weight": (d,), f"blocks.{k}.{name}.bias": (d,)}
    return shapes


def _renamed(found: Mapping[str, Tensor], ids: list[int], config: GPTConfig) -> dict[str, Tensor]:
    """Rename the tensors, join q, k and v, and permute the rows of the alphabet to the token ids of the policy."""
    moved = {
        "token.weight": select_rows(found["tok_emb.weight"], ids),
        "head.weight": select_rows(found["head.weight"], ids),
        "position.weight": found["pos_emb"][0].float(),
        "kind.weight": found["type_emb.weight"].float(),
    }
    if config.num_properties:
        value = found["prop_nn.weight"].float()
        moved |= {"property.weight": torch.cat([value, torch.zeros_like(value)], 1), "property.bias": found["prop_nn.bias"].float()}
    for kind in ("weight", "bias"):
        moved[f"norm.{kind}"] = found[f"ln_f.{kind}"].float()
        for k in range(config.layers):
            theirs = {name: found[f"blocks.{k}.{name}.{kind}"].float() for name in BLOCK}
            moved |= {f"blocks.{k}.{BLOCK[name]}.{kind}": t for name, t in theirs.items() if BLOCK[name] != "qkv"}
            moved[f"blocks.{k}.qkv.{kind}"] = torch.cat([theirs[f"attn.{name}"] for name in ("query", "key", "value")])
    return moved


BLOCK = {
    "ln1": "norm1",
    "ln2": "norm2",
    "attn.query": "qkv",
    "attn.key": "qkv",
    "attn.value": "qkv",
    "attn.proj": "out",
    "mlp.0": "feed.0",
    "mlp.2": "feed.2",
}
"""Names of the parts of a block in MolGPT and in :class:`~discrete_grpo.models.gpt.GPT`."""
