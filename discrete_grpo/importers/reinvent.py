"""Import of priors of REINVENT 2, 3 and 4 as SMILES policies: embedding, GRU or LSTM, linear head.

A prior is a dictionary written by ``torch.save``: ``network`` (weights), ``network_params``, ``max_sequence_length``,
``vocabulary`` (a dictionary, in older files an object), and objects without weights (``tokenizer``, ``metadata``). Objects
of known class names are replaced by stand-ins, so that none of their code runs. A pair NAME.safetensors and NAME.json can be read
too.
Source: Olivecrona et al. (2017), doi 10.1186/s13321-017-0235-x; Loeffler et al. (2024), doi 10.1186/s13321-024-00812-5.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discrete_grpo.domains.smiles import canonical_samples
from discrete_grpo.domains.tokenizer import Tokenizer
from discrete_grpo.importers.settings import brief
from discrete_grpo.importers.tensors import Inert, check_tensors, read_json, read_pickle, read_safetensors, select_rows
from discrete_grpo.models.recurrent import Recurrent, RecurrentConfig
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.runs.checkpoint import CheckpointError

__all__ = ["import_reinvent"]

INERT = ("Vocabulary", "SMILESTokenizer", "ModelMetaData", "UUID")
START, STOP = "^", "$"
PATTERN = r"\[[^\]]*\]|%[0-9]{2}|Br|Cl|(?s:.)"
GATES = {"gru": 3, "lstm": 4}


def import_reinvent(path: str | os.PathLike[str]) -> TokenPolicy:
    """Import a de novo REINVENT prior as a policy.

    With ``layer_normalization``, the sampler of REINVENT normalises the output of each step by itself, and so does the policy.

    Args:
        path: a prior, or NAME.safetensors with NAME.json beside it: ``tokens`` (token -> row), ``max_sequence_length`` and
            ``network_params`` as the prior holds them.

    Raises:
        CheckpointError: if the file is missing, damaged, of another kind of model, or its tensors do not fit.
    """
    source = Path(path)
    parts = _pair(source) if source.suffix == ".safetensors" else read_pickle(source, INERT)
    if not isinstance(parts, Mapping) or not isinstance(parts.get("network"), Mapping):
        raise CheckpointError(f"path: {path} has no network, expected a prior of a de novo REINVENT model")
    if parts.get("model_type", "Reinvent") != "Reinvent":
        raise CheckpointError(f"model_type: {parts['model_type']!r} in {path}, expected 'Reinvent' (de novo, without a prompt)")
    tokens = _tokens(parts.get("vocabulary"), path)
    config = _config(parts.get("network_params") or {}, len(tokens), path)
    _check(parts["network"], config, len(tokens), path)
    ordinary = sorted((t for t in tokens if t not in (START, STOP)), key=tokens.__getitem__)
    stop = tokens[STOP]
    ids = [stop, tokens[START], stop, stop, *(tokens[t] for t in ordinary)]
    with torch.random.fork_rng(devices=[]):
        network = Recurrent(config)
    network.load_state_dict(_renamed(parts["network"], ids))
    return TokenPolicy(
        network, Tokenizer(tuple(ordinary), PATTERN), max_length=_max_length(parts, path), decode=canonical_samples
    ).eval()


def _pair(path: Path) -> dict[str, Any]:
    """Read the parts of a prior from a safetensors file and the JSON file beside it."""
    described = read_json(path.with_suffix(".json"))
    if not isinstance(described, dict):
        raise CheckpointError(f"path: {path.with_suffix('.json')} holds {type(described).__name__}, expected a dictionary")
    return {**described, "vocabulary": described.get("tokens"), "network": read_safetensors(path)}


def _max_length(parts: Mapping[str, Any], path: object) -> int:
    """Return the largest number of draws per molecule, including the end; the number of REINVENT includes the start token too."""
    length = parts.get("max_sequence_length")
    if not isinstance(length, int) or length < 2:
        raise CheckpointError(f"max_sequence_length: {length!r} in {path}, expected a whole number of at least 2")
    return length - 1


def _tokens(vocabulary: Any, path: object) -> dict[str, int]:
    """Return token -> row, from a dictionary, the nested dictionary of REINVENT 4, or the object of an older file."""
    if isinstance(vocabulary, Inert):
        vocabulary = vars(vocabulary).get("_tokens")
    if isinstance(vocabulary, Mapping) and isinstance(vocabulary.get("tokens"), Mapping):
        vocabulary = vocabulary["tokens"]
    if not isinstance(vocabulary, Mapping):
        raise CheckpointError(f"vocabulary: {type(vocabulary).__name__} in {path}, expected tokens and their rows")
    tokens = {t: k for t, k in vocabulary.items() if isinstance(t, str)}
    if missing := [t for t in (START, STOP) if t not in tokens]:
        raise CheckpointError(f"vocabulary: no token {missing[0]!r} in {path}, expected {START!r} (start) and {STOP!r} (end)")
    if sorted(tokens.values(), key=str) != sorted(range(len(tokens)), key=str):
        raise CheckpointError(f"vocabulary: rows of {path} are not 0 to {len(tokens) - 1}, each once")
    return tokens


def _config(params: Any, num_tokens: int, path: object) -> RecurrentConfig:
    """Return the sizes in ``network_params``, with the defaults of REINVENT and without dropout."""
    if not isinstance(params, Mapping):
        raise CheckpointError(f"network_params: {brief(params)} in {path}, expected names and their values")
    try:
        return RecurrentConfig(
            num_tokens=num_tokens + 2,  # PAD and MASK are added
            cell=params.get("cell_type", "gru").lower(),
            layers=params.get("num_layers", 3),
            width=params.get("layer_size", 512),
            embedding=params.get("embedding_layer_size", 256),
            normalise=bool(params.get("layer_normalization", False)),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"network_params: {dict(params)} in {path}: {error}") from error


def _check(found: Mapping[str, Tensor], config: RecurrentConfig, num_tokens: int, path: object) -> None:
    wide = GATES[config.cell] * config.width
    expected: dict[str, tuple[int, ...]] = {"_embedding.weight": (num_tokens, config.embedding)}
    for k in range(config.layers):
        expected |= {
            f"_rnn.weight_ih_l{k}": (wide, config.width if k else config.embedding),
            f"_rnn.weight_hh_l{k}": (wide, config.width),
            f"_rnn.bias_ih_l{k}": (wide,),
            f"_rnn.bias_hh_l{k}": (wide,),
        }
    expected |= {"_linear.weight": (num_tokens, config.width), "_linear.bias": (num_tokens,)}
    check_tensors(found, expected, path)


def _renamed(found: Mapping[str, Tensor], ids: list[int]) -> dict[str, Tensor]:
    """Rename the tensors and permute the rows of the alphabet to the token ids of the policy."""
    moved = {"rnn." + name.removeprefix("_rnn."): t.float() for name, t in found.items() if name.startswith("_rnn.")}
    return moved | {
        "token.weight": select_rows(found["_embedding.weight"], ids),
        "head.weight": select_rows(found["_linear.weight"], ids),
        "head.bias": select_rows(found["_linear.bias"], ids),
    }
