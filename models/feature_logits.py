"""Logits of tokens with a part that is linear in the features of a grammar.

logits_t = network(x_<t, f_≤t) + SCALE Σ_k W_k[f_tk], with one row of W_k per value of feature k. The probability of an edge to each
open node of a graph, for example, depends on many features of which each is about a token of its own. A hidden state of few
numbers cannot pass them all on; a linear map from features to logits can.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["FeatureLogits"]

SCALE = 8.0
"""W is 0 at first, and an optimizer such as Adam changes a weight by its learning rate per update, whatever the gradient is; logits
change by this many times as much, so that they reach a few units in hundreds of updates and not in thousands."""


class FeatureLogits(nn.Module):
    """A network of tokens that reads features, with logits that also depend on them directly.

    Args:
        network: a network with features, such as :class:`~discrete_grpo.models.gpt.GPT`.

    Raises:
        ValueError: if the network reads none.
    """

    offsets: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.config = network, network.config
        self.feature_sizes: tuple[int, ...] = tuple(getattr(network, "feature_sizes", ()))
        if not self.feature_sizes:
            raise ValueError("network: reads no features, expected at least one")
        sizes = torch.tensor(self.feature_sizes)
        self.register_buffer("offsets", sizes.cumsum(0) - sizes, persistent=False)
        self.weight = nn.Parameter(torch.zeros(sum(self.feature_sizes), self.config.num_tokens))  # type: ignore[union-attr, arg-type]

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this network again."""
        return {"network": self.network}

    def cache(self, rows: int, prompt_length: int = 0) -> Any:
        """An empty cache of the network."""
        return self.network.cache(rows, prompt_length)  # type: ignore[operator]

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        prompt: Int[Tensor, "batch prompt"] | None = None,
        properties: Float[Tensor, "batch property"] | None = None,
        cache: Any = None,
        features: Int[Tensor, "batch time feature"] | None = None,
    ) -> Float[Tensor, "batch time class"]:
        """Logits of the token that follows each of ``tokens``; the arguments are those of the network, and features are needed."""
        if features is None:
            raise ValueError(f"features: None, expected {len(self.feature_sizes)} beside each token")
        logits = self.network(tokens, prompt, properties, cache=cache, features=features)
        rows = (features + self.offsets).flatten()
        first = torch.arange(0, len(rows), len(self.offsets), device=rows.device)
        direct = nn.functional.embedding_bag(rows, self.weight, first, mode="sum")
        return logits + SCALE * direct.unflatten(0, tokens.shape)
