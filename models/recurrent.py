"""Recurrent language model of tokens: an embedding, a stack of GRU or LSTM layers, and a linear head.

h_t = RNN(E x_t, h_{t-1}), logits_t = W h_t + b. Source: Olivecrona et al. (2017), doi 10.1186/s13321-017-0235-x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from discrete_grpo.core.checks import check_whole

__all__ = ["Recurrent", "RecurrentConfig", "State"]

CELLS = ("gru", "lstm")


@dataclass(frozen=True)
class RecurrentConfig:
    """Sizes of a :class:`Recurrent`.

    Attributes:
        num_tokens: V, size of the alphabet with special tokens; at least 2.
        cell: ``gru`` or ``lstm``.
        layers: number of layers.
        width: width of the hidden states.
        embedding: width of the token embedding.
        normalise: whether the output of each step is scaled to mean 0 and deviation 1 before the head.

    Raises:
        ValueError: for a value out of its range.
    """

    num_tokens: int
    cell: Literal["gru", "lstm"] = "lstm"
    layers: int = 3
    width: int = 512
    embedding: int = 256
    normalise: bool = False

    def __post_init__(self) -> None:
        for name, low in {"num_tokens": 2, "layers": 1, "width": 1, "embedding": 1}.items():
            check_whole(name, getattr(self, name), least=low)
        if self.cell not in CELLS:
            raise ValueError(f"cell: {self.cell!r}, expected one of {', '.join(CELLS)}")


class State:
    """Recurrent state after the tokens read so far: h, and c for an LSTM, each [layers, B, width]."""

    def __init__(self) -> None:
        self.tensors: tuple[Tensor, ...] = ()

    def select(self, rows: Int[Tensor, " row"]) -> None:
        """Keep these rows only; the rows of finished sequences are dropped."""
        self.tensors = tuple(t[:, rows] for t in self.tensors)


class Recurrent(nn.Module):
    """Recurrent network: tokens [B, T] that start with BOS -> logits [B, T, V] of the token that follows each.

    Args:
        config: sizes.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        cell = nn.LSTM if config.cell == "lstm" else nn.GRU
        self.token = nn.Embedding(config.num_tokens, config.embedding)
        self.rnn = cell(config.embedding, config.width, config.layers, batch_first=True)
        self.head = nn.Linear(config.width, config.num_tokens)

    def init_args(self) -> dict[str, RecurrentConfig]:
        """Return the constructor arguments that a checkpoint stores."""
        return {"config": self.config}

    def train(self, mode: bool = True) -> Recurrent:
        """Set the mode of all modules but the recurrent layers, which stay in train mode, where cuDNN has gradients."""
        super().train(mode)
        self.rnn.train()
        return self

    def cache(self, rows: int, prompt_length: int = 0) -> State:
        """Return an empty state; the first call that fills it sets its number of rows."""
        return State()

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        prompt: Tensor | None = None,
        properties: Tensor | None = None,
        cache: State | None = None,
    ) -> Float[Tensor, "batch time class"]:
        """Logits of the token that follows each of ``tokens``.

        Args:
            tokens: BOS and the tokens after it; with a filled cache only the new tokens.
            prompt: must be None, since this network has no conditions.
            properties: must be None, likewise.
            cache: a recurrent state, which this call updates; None for none.

        Raises:
            ValueError: if a condition is given.
        """
        if prompt is not None or properties is not None:
            raise ValueError("prompt, properties: given, expected None: a recurrent network has no conditions")
        x, start = self.token(tokens), () if cache is None else tuple(t.contiguous() for t in cache.tensors)
        state: Tensor | tuple[Tensor, ...]
        if isinstance(self.rnn, nn.LSTM):
            read = lstm_by_cells if x.device.type == "cpu" else nn.LSTM.__call__
            x, state = read(self.rnn, x, start or None)
        else:
            x, state = self.rnn(x, *start)
        if cache is not None:
            cache.tensors = (state,) if isinstance(state, Tensor) else tuple(state)
        if self.config.normalise:
            x = nn.functional.layer_norm(x, x.shape[-1:])
        return self.head(x)


def lstm_by_cells(
    rnn: nn.LSTM, x: Float[Tensor, "batch time channel"], start: tuple[Tensor, ...] | None
) -> tuple[Float[Tensor, "batch time width"], tuple[Tensor, Tensor]]:
    """Output of ``rnn`` on the CPU, one cell at a time: bit-identical with gradients, without them and step by step.

    The kernel of ``nn.LSTM`` on the CPU (oneDNN) rounds differently where no gradient is needed, so that the first ratio of an
    update would not be 1, and refuses bfloat16 on processors without such instructions.

    Args:
        rnn: layers with ``batch_first``, without dropout and in one direction.
        x: inputs.
        start: h and c before the first step, each [layers, B, width]; None for zeros.

    Returns:
        h of the last layer at each step, and (h, c) of all layers after the last step.
    """
    zeros = x.new_zeros(rnn.num_layers, len(x), rnn.hidden_size)
    ends = []
    for weights, h, c in zip(rnn.all_weights, *(start or (zeros, zeros)), strict=True):
        steps = []
        for now in x.unbind(1):
            h, c = torch.lstm_cell(now, (h, c), *weights)
            steps.append(h)
        x = torch.stack(steps, 1)
        ends.append((h, c))
    last_h, last_c = (torch.stack(states) for states in zip(*ends, strict=True))
    return x, (last_h, last_c)
