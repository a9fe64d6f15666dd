"""GPT-2 of ``transformers`` with its key-value cache, the cached baseline of ``smiles_speed``.

``generate`` as its users call it: ``do_sample=True, use_cache=True``, default cache, prompts padded on the left. A row ends where
a logits processor makes its end certain, and ``generate`` stops when every row has ended; until then rows that have ended are
computed like the others. A real-valued property has no place in GPT-2, so a token that texts do not have (MASK) stands for it:
the same number of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from discrete_grpo.domains.tokenizer import BOS, EOS, MASK, PAD
from discrete_grpo.models.huggingface import transformers_library

__all__ = ["cached_gpt2", "cached_sample", "prompts"]


def cached_gpt2(vocabulary: int, positions: int, layers: int, heads: int, width: int) -> nn.Module:
    """A GPT-2 with random weights, an untied head and no dropout.

    Raises:
        ImportError: if ``transformers`` is not installed.
    """
    library = transformers_library()
    sizes = {"n_layer": layers, "n_head": heads, "n_embd": width, "n_positions": positions, "vocab_size": vocabulary}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    special = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    config = library.GPT2Config(**sizes, **dropout, **special, activation_function="gelu", tie_word_embeddings=False)
    return library.GPT2LMHeadModel(config).eval()


def prompts(scaffolds: Sequence[Sequence[int]]) -> Tensor:
    """Scaffold, a property's stand-in, BOS of every row, padded on the left [B, P]."""
    width = max(len(s) for s in scaffolds)
    return torch.tensor([[PAD] * (width - len(s)) + [*s, MASK, BOS] for s in scaffolds])


class _Lengths:
    """Logits with which row b ends with its ``lengths[b]``-th token and no other special token is drawn."""

    def __init__(self, lengths: Tensor, prompt: int) -> None:
        self.lengths, self.prompt = lengths, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        scores[:, [PAD, BOS, MASK]] = -torch.inf
        scores[:, EOS] = torch.where(self.lengths == input_ids.shape[1] - self.prompt + 1, 1e4, -1e4)
        return scores


def cached_sample(net: nn.Module, prompt: Tensor, lengths: Tensor, seed: int, **options: Any) -> Any:
    """Draw a text per row, ``lengths[b]`` tokens with its end, and PAD after it [B, max(lengths)].

    ``options`` go to ``generate``; with ``return_dict_in_generate=True`` the result is what it returns, prompt included.
    """
    model: Any = net
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # generate takes no generator
        found = model.generate(
            input_ids=prompt,
            attention_mask=(prompt != PAD).long(),
            max_new_tokens=int(lengths.max()),
            logits_processor=[_Lengths(lengths, prompt.shape[1])],
            do_sample=True,
            use_cache=True,
            top_k=0,
            **options,
        )
    return found if options.get("return_dict_in_generate") else found[:, prompt.shape[1] :]
