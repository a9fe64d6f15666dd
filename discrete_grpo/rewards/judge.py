"""Frozen networks as rewards: a judge of text loaded from a checkpoint, or any module that returns one number per sample.

The judge is trained separately (:class:`TextScorer` has the ``likelihood_loss`` that a pretrainer needs). It is frozen, in
eval mode, and not part of any policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from discrete_grpo.core.batch_share import WHOLE, BatchShare, mean_of
from discrete_grpo.core.checks import check_whole
from discrete_grpo.domains.tokenizer import PAD, Tokenizer
from discrete_grpo.runs.checkpoint import TRUSTED, CheckpointError, read_policy
from discrete_grpo.runs.checkpoint_names import find_checkpoint

__all__ = ["Judge", "ModuleReward", "TextScorer"]

Output = Literal["probability", "logit"]
SURELY_NOT = -20.0
"""Log-odds of a missing text."""


class TextScorer(nn.Module):
    """Network for the log-odds that a text is real.

    Args:
        network: ``(tokens [B, L], mask [B, L]) -> [B]``; the mask is True where a token exists.
        tokenizer: the alphabet.
        block_size: length of the longest text in tokens.
    """

    def __init__(self, network: nn.Module, tokenizer: Tokenizer, block_size: int) -> None:
        super().__init__()
        self.network, self.tokenizer, self.block_size = network, tokenizer, block_size

    def init_args(self) -> dict[str, Any]:
        """The arguments from which a checkpoint builds this network again."""
        return {name: getattr(self, name) for name in ("network", "tokenizer", "block_size")}

    def encode(self, texts: Sequence[str]) -> Int[Tensor, "batch ..."]:
        """Encode texts as token ids [B, L], with PAD after the end of each text.

        Raises:
            ValueError: naming the token outside the alphabet, or the text longer than ``block_size``.
        """
        rows = []
        for text in texts:
            try:
                rows.append(self.tokenizer.encode(text))
            except ValueError as error:
                raise ValueError(f"judge: {error}; it was trained on another alphabet") from error
            if len(rows[-1]) > self.block_size:
                raise ValueError(f"judge: text of {len(rows[-1])} tokens, expected at most block_size ({self.block_size})")
        tokens = torch.full((len(rows), max([1, *map(len, rows)])), PAD)
        for k, ids in enumerate(rows):
            tokens[k, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        return tokens

    def forward(self, tokens: Int[Tensor, "batch ..."]) -> Float[Tensor, " batch"]:
        """Compute log p/(1-p) of being real, one number per text, in float32 or wider."""
        logits = self.network(tokens, tokens != PAD)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def likelihood_loss(
        self, batch: Any, *, generator: torch.Generator | None = None, share: BatchShare = WHOLE
    ) -> dict[str, Tensor]:
        """Compute ½ mean over real texts of -log p + ½ mean over the others of -log(1-p).

        Both kinds have the same weight, whatever their numbers.

        Args:
            batch: has ``tokens`` [B, L] and ``real`` [B], 1 or 0.
            generator: not used, since the loss is deterministic.
            share: rows that this process computes, and the means over all.
        """
        tokens, real = batch.tokens[share.own], batch.real[share.own]
        logits = self(tokens)
        losses = nn.functional.binary_cross_entropy_with_logits(logits, real, reduction="none")
        right = ((logits > 0) == (real > 0.5)).float()
        *means, accuracy = share.means(mean_of(losses, real > 0.5), mean_of(losses, real <= 0.5), mean_of(right))
        found = (batch.real > 0.5).any().float() + (batch.real <= 0.5).any().float()  # kinds in the whole batch
        return {"loss": (means[0] + means[1]) / found, "accuracy": accuracy.detach()}


class ModuleReward:
    """Output of any frozen module as a reward: σ(module(encode(samples))), or the number itself.

    Args:
        module: maps the result of ``encode`` to one number per sample [B]; it is frozen and put in eval mode.
        encode: maps samples to the module's input (a tensor, or a tuple of them for several arguments); None uses the module's own
            ``encode``.
        output: ``probability`` applies σ to the number, ``logit`` leaves it as it is.
        missing: the reward of a sample that is None.
        batch_size: samples per forward pass, at least 1.
        name: for metrics and tables; None uses the module's class name.

    Raises:
        ValueError: for an argument out of its range.
        TypeError: if there is nothing to encode samples with.

    >>> sums = lambda samples: torch.tensor([[float(sum(s))] for s in samples])
    >>> ModuleReward(nn.Flatten(0), sums, output="logit")([(1, 2), None])
    [3.0, 0.0]
    """

    def __init__(
        self,
        module: nn.Module,
        encode: Callable[[Sequence[Any]], Any] | None = None,
        *,
        output: Output = "probability",
        missing: float = 0.0,
        batch_size: int = 256,
        name: str | None = None,
    ) -> None:
        if output not in ("probability", "logit"):
            raise ValueError(f"output: {output!r}, expected probability or logit")
        check_whole("batch_size", batch_size, least=1)
        encode = encode or getattr(module, "encode", None)
        if encode is None:
            raise TypeError(f"encode: None, expected a function, since {type(module).__name__} has no encode of its own")
        self.module = module.eval().requires_grad_(False)
        self.encode, self.output, self.missing, self.batch_size = encode, output, missing, batch_size
        self.name = name or type(module).__name__

    @torch.no_grad()
    def __call__(self, samples: Sequence[Any], **columns: Any) -> list[float]:
        """Compute the module's output of each sample.

        Returns:
            One number per sample, in (0, 1) with ``output="probability"`` and unbounded with ``"logit"``; ``missing`` for None.

        Raises:
            ValueError: if the number of values differs from that of the samples.
        """
        known = [sample for sample in samples if sample is not None]
        scores: list[float] = []
        for start in range(0, len(known), self.batch_size):
            part = known[start : start + self.batch_size]
            found = self._forward(self.encode(part))
            if found.shape != (len(part),):
                raise ValueError(f"module: {self.name} gave shape {tuple(found.shape)}, expected ({len(part)},)")
            scores += (found.sigmoid() if self.output == "probability" else found).tolist()
        given = iter(scores)
        return [self.missing if sample is None else next(given) for sample in samples]

    def _forward(self, inputs: Any) -> Tensor:
        device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        several = inputs if isinstance(inputs, tuple) else (inputs,)
        return self.module(*(x.to(device) if isinstance(x, Tensor) else x for x in several))


class Judge:
    """Probability that a text is real, by a frozen network trained to tell real lines from corrupted ones.

    Args:
        checkpoint: name of a bundled judge, a checkpoint folder or a run folder.
        output: ``probability`` in (0, 1), or ``logit``, its log-odds.
        batch_size: samples per forward pass, at least 1.
        device: device of the judge.
        trusted: top-level packages whose classes may be instantiated; add your own package for a custom network.

    Raises:
        CheckpointError: if there is no such checkpoint, it is damaged, or it is not a judge of text.

    Example::

        reward:
          class_path: discrete_grpo.rewards.judge.Judge
          init_args: {checkpoint: fill-in-judge, output: logit}
    """

    def __init__(
        self,
        checkpoint: str = "fill-in-judge",
        output: Output = "probability",
        batch_size: int = 256,
        device: str = "cpu",
        trusted: Sequence[str] = TRUSTED,
    ) -> None:
        scorer = read_policy(find_checkpoint(checkpoint, "judge"), trusted=trusted)
        if not isinstance(scorer, TextScorer):
            raise CheckpointError(f"checkpoint: {checkpoint!r} holds a {type(scorer).__name__}, expected a judge of text")
        self.checkpoint, self.scorer = checkpoint, scorer
        missing = SURELY_NOT if output == "logit" else 0.0
        self._reward = ModuleReward(scorer.to(device), output=output, missing=missing, batch_size=batch_size)
        self.name = "judge"

    def __call__(self, samples: Sequence[str | None], **columns: Any) -> list[float]:
        """Compute the judge's probability or log-odds of each text.

        Returns:
            A number in (0, 1) per text, higher for one that looks real, and 0 for None; with ``output="logit"`` an unbounded
            number, and -20 for None.

        Raises:
            ValueError: naming a character that the judge's alphabet lacks, or a text that is too long for it.
        """
        return self._reward(samples)

    def check(self, tokens: Iterable[str]) -> None:
        """Check before a run that the judge can read an alphabet.

        Raises:
            ValueError: naming the first token that the judge's alphabet lacks.
        """
        for token in tokens:
            if not self.scorer.tokenizer.knows(token):
                raise ValueError(f"judge: {self.checkpoint!r} has no {token!r} in its alphabet, expected one of the policy's text")
