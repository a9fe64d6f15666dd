"""Causal language models of HuggingFace transformers as token networks with the token ids of this package.

Our id k is their id ``ids[k]``: logits(x)[k] = model(ids[x])[ids[k]].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["HuggingFaceLM", "KeyValues", "local_settings", "transformers_library", "with_own_attention"]

OUTSIDE = frozenset(  # keys that can name code: kernels of a hub, classes in a folder, other libraries
    [f"{before}{part}_implementation{after}" for part in ("attn", "experts") for before in ("", "_") for after in ("", "_internal")]
    + ["allow_all_kernels", "auto_map", "kernel_config", "quantization_config", "use_kernels"]
)


def transformers_library() -> Any:
    """Import and return the optional library ``transformers``.

    Raises:
        ImportError: if it is not installed; the message has the command that installs it.
    """
    try:
        import transformers
    except ImportError as error:
        raise ImportError("transformers is not installed; run: pip install 'discrete-grpo[huggingface]'") from error
    return transformers


def local_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as plain values, without the keys, at any depth, that can name code outside the library.

    >>> local_settings({"n_embd": 16, "text": {"attn_implementation": "somebody/kernel", "n_layer": 2}})
    {'n_embd': 16, 'text': {'n_layer': 2}}
    """
    return {key: _plain(value) for key, value in config.items() if key not in OUTSIDE}


def with_own_attention(build: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call ``build`` with torch's fused attention or, for an architecture that lacks it, with eager attention."""
    try:
        return build(*args, attn_implementation="sdpa", **options)
    except (ImportError, ValueError):  # raised for an architecture that lacks it; any other cause is raised again by the next line
        return build(*args, attn_implementation="eager", **options)


class KeyValues:
    """Key-value cache of the tokens read so far, held in the cache class of the library."""

    def __init__(self, library_cache: Any) -> None:
        self.library_cache = library_cache

    def select(self, rows: Int[Tensor, " row"]) -> None:
        """Keep these rows only; the rows of finished sequences are dropped."""
        self.library_cache.batch_select_indices(rows)


class HuggingFaceLM(nn.Module):
    """A causal language model: tokens [B, T] that start with BOS -> logits [B, T, V] of the token that follows each.

    The network is built from its configuration alone, without a network connection; a checkpoint provides the weights.

    Args:
        config: the configuration of the library as plain values, including ``model_type``; keys that can name code outside
            the library, such as an attention kernel, are dropped.
        ids: the id of the library for each id of ours.

    Raises:
        ImportError: if ``transformers`` is not installed.
    """

    ids: Tensor

    def __init__(self, config: Mapping[str, Any], ids: Sequence[int]) -> None:
        super().__init__()
        library = transformers_library()
        self.config = local_settings(config)
        settings = library.AutoConfig.for_model(**self.config)
        with torch.random.fork_rng(devices=[]):
            build = library.AutoModelForCausalLM.from_config
            self.model = with_own_attention(build, settings, trust_remote_code=False)
        self.register_buffer("ids", torch.as_tensor(ids), persistent=False)
        self.register_state_dict_post_hook(_separate)

    def init_args(self) -> dict[str, Any]:
        """Return the constructor arguments that a checkpoint stores."""
        return {"config": self.config, "ids": self.ids.tolist()}

    def cache(self, rows: int, prompt_length: int = 0) -> KeyValues:
        """Return an empty cache; the first call that fills it sets its number of rows."""
        return KeyValues(transformers_library().DynamicCache(config=self.model.config))

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        prompt: Tensor | None = None,
        properties: Tensor | None = None,
        cache: KeyValues | None = None,
    ) -> Float[Tensor, "batch time class"]:
        """Logits of the token that follows each of ``tokens``.

        Args:
            tokens: BOS and the tokens after it; with a filled cache only the new tokens. Tokens after the end of a sequence
                do not change the logits before it.
            prompt: must be None, since this network has no conditions.
            properties: must be None, likewise.
            cache: a key-value cache, which this call extends; None for none.

        Raises:
            ValueError: if a condition is given.
        """
        if prompt is not None or properties is not None:
            raise ValueError("prompt, properties: given, expected None: an imported language model has no conditions")
        past = None if cache is None else cache.library_cache
        out = self.model(input_ids=self.ids[tokens], past_key_values=past, use_cache=past is not None)
        return out.logits[..., self.ids]


def _plain(value: Any) -> Any:
    """Convert mappings to dicts and sequences to lists, as the configuration of the library requires."""
    if isinstance(value, Mapping):
        return local_settings(value)
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _separate(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Copy tensors that share memory, such as a tied head, since safetensors refuses them."""
    seen: set[int] = set()
    for name, value in state.items():
        if name.startswith(prefix) and isinstance(value, Tensor):
            if value.data_ptr() in seen and value.numel():
                state[name] = value.clone()
            seen.add(value.data_ptr())
