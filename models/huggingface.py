"""A causal language model of HuggingFace transformers as a token network of ours: their weights, our ids.

Our id k is their id ``ids[k]``: logits(x)[k] = model(ids[x])[ids[k]].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["HuggingFaceLM", "KeyValues", "local_settings", "transformers_library", "with_own_attention"]

OUTSIDE = frozenset(  # what a configuration could name code by: kernels of a hub, classes of a folder, other libraries
    [f"{before}{part}_implementation{after}" for part in ("attn", "experts") for before in ("", "_") for after in ("", "_internal")]
    + ["allow_all_kernels", "auto_map", "kernel_config", "quantization_config", "use_kernels"]
)


def transformers_library() -> Any:
    """The library ``transformers``, an optional one.

    Raises:
        ImportError: with the command that installs it.
    """
    try:
        import transformers
    except ImportError as error:
        raise ImportError("transformers is not installed; run: pip install 'discrete-grpo[huggingface]'") from error
    return transformers


def local_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as plain values, at every depth without the keys that could name code outside the library.

    >>> local_settings({"n_embd": 16, "text": {"attn_implementation": "somebody/kernel", "n_layer": 2}})
    {'n_embd': 16, 'text': {'n_layer': 2}}
    """
    return {key: _plain(value) for key, value in config.items() if key not in OUTSIDE}


def with_own_attention(build: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What ``build`` makes with torch's own attention or, for an architecture without it, with written-out attention."""
    try:
        return build(*args, attn_implementation="sdpa", **options)
    except (ImportError, ValueError):  # of the library where an architecture lacks it; any other one comes again
        return build(*args, attn_implementation="eager", **options)


class KeyValues:
    """Keys and values of the tokens read so far, in the library's own cache."""

    def __init__(self, library_cache: Any) -> None:
        self.library_cache = library_cache

    def select(self, rows: Int[Tensor, " row"]) -> None:
        """Keep these rows only: finished sequences leave."""
        self.library_cache.batch_select_indices(rows)


class HuggingFaceLM(nn.Module):
    """A causal language model: tokens [B, T] that start with BOS -> logits [B, T, V] of the token that follows each.

    It is built from its configuration alone, without a network connection; the weights come from a checkpoint.

    Args:
        config: the library's configuration as plain values, ``model_type`` among them; keys that could name code outside
            the library, such as an attention kernel, are left out.
        ids: their id of each of ours.

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
        """What a checkpoint needs to build this network again."""
        return {"config": self.config, "ids": self.ids.tolist()}

    def cache(self, rows: int, prompt_length: int = 0) -> KeyValues:
        """An empty cache; its rows are those of the first call that fills it."""
        return KeyValues(transformers_library().DynamicCache(config=self.model.config))

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        prompt: Tensor | None = None,
        properties: Tensor | None = None,
        cache: KeyValues | None = None,
    ) -> Float[Tensor, "batch time class"]:
        """Logits of the token after each of ``tokens``.

        Args:
            tokens: BOS and what follows; with a filled cache only the new ones. What follows a sequence's end is ignored
                by everything before it.
            prompt: None, since this network reads no conditions.
            properties: None, likewise.
            cache: filled by this call.

        Raises:
            ValueError: if a condition is given.
        """
        if prompt is not None or properties is not None:
            raise ValueError("prompt, properties: given, expected None: an imported language model reads no conditions")
        past = None if cache is None else cache.library_cache
        out = self.model(input_ids=self.ids[tokens], past_key_values=past, use_cache=past is not None)
        return out.logits[..., self.ids]


def _plain(value: Any) -> Any:
    """Mappings as dicts and sequences as lists, as the library's configuration wants them."""
    if isinstance(value, Mapping):
        return local_settings(value)
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _separate(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Give every name its own memory: safetensors refuses weights that two names share, such as a tied head."""
    seen: set[int] = set()
    for name, value in state.items():
        if name.startswith(prefix) and isinstance(value, Tensor):
            if value.data_ptr() in seen and value.numel():
                state[name] = value.clone()
            seen.add(value.data_ptr())
