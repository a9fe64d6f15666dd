"""Import of a HuggingFace causal language model of SMILES as a policy.

The model is read from its folder, without a network connection and without running code of the folder. Every token of the
vocabulary that is not special keeps its row; the policy draws one of them or the end, so π is the softmax of the logits over
these tokens. The tokenizer of the folder splits the text, and the checkpoint stores it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch

from discrete_grpo.core.checks import check_range
from discrete_grpo.domains.smiles import canonical_samples
from discrete_grpo.domains.tokenizer import NUM_SPECIAL, Tokenizer
from discrete_grpo.importers.tensors import check_floating, read_json
from discrete_grpo.models.huggingface import HuggingFaceLM, local_settings, transformers_library, with_own_attention
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.runs.serialization import CheckpointError
from discrete_grpo.runs.weights import not_finite

__all__ = ["SubwordTokenizer", "import_huggingface"]

EXAMPLES = ("CCO", "c1ccccc1", "CC(=O)Nc1ccc(O)cc1")


@dataclass(frozen=True)
class SubwordTokenizer:
    """Tokenizer of the library ``tokenizers``, with any segmentation and any marker of word beginnings.

    Attributes:
        definition: content of ``tokenizer.json``.
        ids: id of the library for each ordinary token; ``ids[k]`` belongs to our id ``k + NUM_SPECIAL``.
        spaced: whether decoding puts spaces between tokens, so that all spaces are removed.
    """

    definition: str
    ids: tuple[int, ...]
    spaced: bool = False

    @cached_property
    def _library(self) -> Any:
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError("tokenizers is not installed; run: pip install 'discrete-grpo[huggingface]'") from error
        return tokenizers.Tokenizer.from_str(self.definition)

    @cached_property
    def _ours(self) -> dict[int, int]:
        return {theirs: k + NUM_SPECIAL for k, theirs in enumerate(self.ids)}

    def __len__(self) -> int:
        """Number of ids, special ones included."""
        return len(self.ids) + NUM_SPECIAL

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """Ordinary tokens as the vocabulary writes them, markers included."""
        return tuple(self._library.id_to_token(k) for k in self.ids)

    def split(self, text: str) -> list[str]:
        """Split ``text`` into tokens as the vocabulary writes them.

        Raises:
            ValueError: if the tokens do not decode to the text.
        """
        return [self.tokens[k - NUM_SPECIAL] for k in self.encode(text)]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``, without BOS and EOS.

        Raises:
            ValueError: if the tokens do not decode to the text, because part of it is outside the vocabulary.
        """
        ids = [self._ours.get(k) for k in self._library.encode(text, add_special_tokens=False).ids]
        known = [k for k in ids if k is not None]
        if len(known) < len(ids) or self.decode(known) != text:
            raise ValueError(f"text: {text!r} is read as {self.decode(known)!r}, expected text of the vocabulary's tokens")
        return known

    def knows(self, text: str) -> bool:
        """Return whether ``text`` can be written in tokens of the vocabulary."""
        try:
            self.encode(text)
        except ValueError:
            return False
        return True

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids`` without special ids and without spaces at the ends."""
        theirs = [self.ids[k - NUM_SPECIAL] for k in ids if k >= NUM_SPECIAL]
        text: str = self._library.decode(theirs, skip_special_tokens=True)
        return text.replace(" ", "") if self.spaced else text.strip(" ")


def import_huggingface(
    folder: str | os.PathLike[str],
    *,
    max_length: int | None = None,
    bos: str | None = None,
    eos: str | None = None,
    examples: Sequence[str] = EXAMPLES,
) -> TokenPolicy:
    """Import a causal language model as a policy without dropout.

    Args:
        folder: folder with ``config.json``, weights as safetensors and a tokenizer, as ``save_pretrained`` writes them.
        max_length: largest number of tokens of a molecule; None takes the number of positions of the model.
        bos: first token of a text; None takes the token that the tokenizer puts before a text, else its BOS, else its EOS.
        eos: last token of a text; None takes the token that the tokenizer puts after a text, else its EOS.
        examples: molecules as the model writes them; at least one has to be decoded from its tokens without change.

    Raises:
        ImportError: if ``transformers`` is not installed.
        CheckpointError: if the folder lacks a part, the weights do not fit, or the model is not causal.
        ValueError: if an option does not fit the model.
    """
    folder = Path(folder)
    theirs = _tokenizer(folder)
    first, last = _ends(theirs, bos, eos)
    model = _model(folder)
    ids = _ordinary(theirs, first, last, model.get_input_embeddings().num_embeddings)
    tokenizer = _subwords(theirs, ids, examples)
    network = HuggingFaceLM(_without_dropout(model.config.to_diff_dict()), [last, first, last, last, *ids])
    weights = model.state_dict()
    if broken := not_finite(weights, {name for name, _ in model.named_parameters()}):
        raise CheckpointError(f"path: {folder} holds weights that are no finite numbers: {broken}")
    network.model.load_state_dict(weights)
    network.eval()
    _check_causal(network, folder)
    return TokenPolicy(
        network,
        cast(Tokenizer, tokenizer),
        max_length=_length(model.config, max_length),
        decode=canonical_samples,
    ).eval()


def _tokenizer(folder: Path) -> Any:
    """Load the tokenizer of the folder."""
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"folder: {folder} has no config.json, expected a folder written by save_pretrained")
    if not any(folder.glob("*.safetensors")):
        pickled = ", ".join(sorted(p.name for p in folder.glob("*.bin"))) or "no weights"
        raise CheckpointError(
            f"folder: {folder} has {pickled}, expected *.safetensors (model.save_pretrained(folder, safe_serialization=True))"
        )
    try:
        theirs = transformers_library().AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"folder: the tokenizer of {folder} cannot be read ({_first_line(error)})") from error
    if not theirs.is_fast:
        raise CheckpointError(
            f"folder: {folder} has a tokenizer in Python, expected one of the library tokenizers (tokenizer.json)"
        )
    return theirs


def _model(folder: Path) -> Any:
    """Load the model of the folder in float32, with every weight from the folder."""
    library = transformers_library()
    load = library.AutoModelForCausalLM.from_pretrained
    safely = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    lenient = {"dtype": torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True}
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"folder: the model of {folder} cannot be read (config.json names no model_type)")
    try:
        with _quiet():
            settings = library.AutoConfig.for_model(**local_settings(config))
            model, report = with_own_attention(load, folder, config=settings, **lenient, **safely)
    except Exception as error:  # the library raises many exceptions for a folder it cannot use
        raise CheckpointError(f"folder: the model of {folder} cannot be read ({_first_line(error)})") from error
    wrong = [f"{name} missing" for name in sorted(report["missing_keys"])]
    wrong += [f"{name} unexpected" for name in sorted(report["unexpected_keys"])]
    wrong += [f"{k if isinstance(k, str) else k[0]} of another shape" for k in report["mismatched_keys"]]  # str or tuple
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        wrapper = next((p for p in ("module.", "_orig_mod.") for name in report["unexpected_keys"] if name.startswith(p)), None)
        hint = f"; names that begin with {wrapper!r} are those of a wrapper, expected the model inside it" if wrapper else ""
        raise CheckpointError(f"folder: the weights of {folder} do not fit its config.json: {'; '.join(wrong[:5])}{more}{hint}")
    for file in sorted(folder.glob("*.safetensors")):
        check_floating(file, {name for name, _ in model.named_parameters()})
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Switch off the progress bars of the library and its report of weights that do not fit."""
    log = transformers_library().utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _ends(theirs: Any, bos: str | None, eos: str | None) -> tuple[int, int]:
    """Return the ids of the library for the beginning and the end of a text."""
    bare = theirs("C", add_special_tokens=False)["input_ids"]
    whole = theirs("C")["input_ids"]
    at = next((k for k in range(len(whole)) if whole[k : k + len(bare)] == bare), len(whole))
    before, after = whole[:at], whole[at + len(bare) :]
    if (len(before) > 1 and bos is None) or (len(after) > 1 and eos is None):
        raise ValueError(
            f"bos, eos: the tokenizer puts {len(before)} tokens before and {len(after)} behind a text, expected 0 or 1"
        )
    last = _token_id(theirs, eos, "eos", [*after, theirs.eos_token_id])
    return _token_id(theirs, bos, "bos", [*before, theirs.bos_token_id, last]), last


def _token_id(theirs: Any, token: str | None, name: str, candidates: Sequence[int | None]) -> int:
    """Return the id of ``token``, or the first candidate that is not None."""
    if token is None:
        known = [k for k in candidates if k is not None]
        if not known:
            raise ValueError(f"{name}: None, and the tokenizer names none; expected a token of the vocabulary")
        return known[0]
    vocabulary = theirs.get_vocab()
    if token not in vocabulary:
        raise ValueError(f"{name}: {token!r}, expected a token of the vocabulary")
    return int(vocabulary[token])


def _ordinary(theirs: Any, first: int, last: int, rows: int) -> list[int]:
    """Return the ids of the library that are no special token, in order."""
    marked = (k for k, token in theirs.added_tokens_decoder.items() if token.special)  # also without a role, such as BOS
    special = {*theirs.all_special_ids, *marked, first, last}
    ids = sorted(set(theirs.get_vocab().values()) - special)
    if not ids or max(*ids, first, last) >= rows:
        raise CheckpointError(
            f"folder: the tokenizer has ids up to {max([*ids, first, last])}, expected less than {rows} (rows of the model)"
        )
    return ids


def _subwords(theirs: Any, ids: Sequence[int], examples: Sequence[str]) -> SubwordTokenizer:
    """Return the tokenizer that decodes at least one example from its tokens."""
    definition = theirs.backend_tokenizer.to_str()
    for spaced in (False, True):
        found = SubwordTokenizer(definition, tuple(ids), spaced)
        if any(found.knows(text) for text in examples):
            return found
    raise CheckpointError(f"folder: its tokenizer decodes none of the examples {', '.join(examples)}; expected a model of SMILES")


def _length(config: Any, wanted: int | None) -> int:
    """Return the largest number of tokens of a text: the positions of the model, or fewer."""
    positions = [getattr(config, name, None) for name in ("n_positions", "max_position_embeddings", "n_ctx")]
    most = next((n for n in positions if isinstance(n, int) and n > 0), None)
    if wanted is None and most is None:
        raise ValueError("max_length: None, and the model names no longest sequence; expected at least 1")
    if wanted is not None:
        check_range("max_length", wanted, least=1, most=most, note=" (positions of the model)" if most else "")
    return wanted or cast(int, most)


def _without_dropout(config: Any) -> Any:
    """Return the configuration with every dropout rate 0, so that scoring and sampling have equal probabilities."""
    if not isinstance(config, dict):
        return config
    return {name: 0.0 if "drop" in name and isinstance(value, float) else _without_dropout(value) for name, value in config.items()}


@torch.no_grad()
def _check_causal(network: HuggingFaceLM, folder: Path) -> None:
    """Raise CheckpointError unless the logits token by token equal those of one pass."""
    tokens = torch.tensor([[1, *range(NUM_SPECIAL, min(NUM_SPECIAL + 4, len(network.ids)))]])
    whole, cache = network(tokens), network.cache(1)
    steps = torch.cat([network(tokens[:, t : t + 1], cache=cache) for t in range(tokens.shape[1])], 1)
    if not torch.allclose(whole, steps, atol=1e-3, rtol=1e-3):
        far = float((whole - steps).abs().max())
        raise CheckpointError(
            f"folder: {folder} reads token by token otherwise than at once (logits differ by {far:.2g}), expected a causal model"
        )


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
