"""Masked characters as a policy: blanks in a text are filled at once or over several rounds of unmasking.

A prompt is a text with blanks; the blanks' positions are split into rounds at random, and round k fills the positions of
its share, each from its own categorical given the visible characters and those filled before:
p_θ(fills, order) = p(order) Π_k Π_{i in round k} p_θ(x_i | visible, rounds before k).
p(order) is free of θ, so it enters neither ratio nor KL; the order is stored and is the mask of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from discrete_grpo.core.batch_share import WHOLE, BatchShare, mean_of
from discrete_grpo.core.categorical import Sites, gather, sample
from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.precision import widest
from discrete_grpo.core.rollout import Context, Rollout, check_decoder
from discrete_grpo.domains.tokenizer import MASK, NUM_SPECIAL, PAD, Tokenizer
from discrete_grpo.policies.conditions import check_network, columns_of
from discrete_grpo.policies.delegation import network_size, one_line
from discrete_grpo.policies.truncation import Truncation, pack_bits, unpack_bits

__all__ = ["MaskedTextPolicy", "reveal_order"]


def reveal_order(blanks: Bool[Tensor, "batch ..."], rounds: int, generator: torch.Generator | None = None) -> Tensor:
    """The round 1..``rounds`` in which each blank is filled [B, L], 0 where there is none: a uniform random split.

    Round k takes ceil(left / (rounds - k + 1)) of the blanks that are left, so a row of fewer blanks than rounds is
    finished early and its shares are otherwise equal to within one.

    >>> sorted(reveal_order(torch.tensor([[True, True, False, True]]), 2).squeeze(0).tolist())
    [0, 1, 1, 2]
    """
    device = blanks.device if generator is None else generator.device
    scores = torch.rand(blanks.shape, generator=generator, device=device).to(blanks.device)
    rank = torch.where(blanks, scores, 2.0).argsort(-1).argsort(-1)  # 0..n-1 for the n blanks of a row
    left = blanks.sum(-1, keepdim=True)
    taken = torch.zeros_like(left)
    order = torch.zeros_like(rank)
    for k in range(rounds):
        share = -(-left // (rounds - k))
        order = torch.where(blanks & (rank >= taken) & (rank < taken + share), k + 1, order)
        left, taken = left - share, taken + share
    return order


class MaskedTextPolicy(nn.Module):
    """Filling blanks in character text as a policy for GRPO; visible characters are never changed.

    A step is a round, its sites are the L positions, and its mask the positions filled in that round.

    Args:
        network: ``(tokens [B, L], mask [B, L]) -> logits [B, L, V]``; the mask is True where a token exists.
        tokenizer: the alphabet; its special ids are never drawn.
        block_size: the longest text in tokens.
        truncation: temperature, top-k and top-p of drawing and scoring alike.
        rounds: S, the number of rounds of unmasking, at most 255; 1 fills all blanks at once.
        blank: the character that marks a blank, which is one token, in a prompt; not in the alphabet.
        decode: maps filled texts to the samples that rewards see; None gives the texts.

    Raises:
        ValueError: for an argument out of its range.
    """

    def __init__(
        self,
        network: nn.Module,
        tokenizer: Tokenizer,
        block_size: int,
        *,
        truncation: Truncation | None = None,
        rounds: int = 1,
        blank: str = "_",
        decode: Callable[[Sequence[str]], Sequence[Any]] | None = None,
    ) -> None:
        super().__init__()
        check_whole("rounds", rounds, least=1, most=255)
        check_whole("block_size", block_size, least=1)
        if len(blank) != 1 or any(blank in token for token in tokenizer.tokens):
            raise ValueError(f"blank: {blank!r}, expected one character that no token of the alphabet has")
        check_range("ids of tokenizer", len(tokenizer), most=32767, note=" (trajectories are small integers)")
        check_network(network, tokenizer, block_size)
        check_decoder("decode", decode)
        self.network, self.tokenizer, self.block_size = network, tokenizer, block_size
        self.truncation = truncation or Truncation()
        self.rounds, self.blank, self.decode = rounds, blank, decode

    @property
    def device(self) -> torch.device:
        """Device of the network's parameters."""
        return next(self.parameters()).device

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this policy again (without ``decode``, which is set again after loading)."""
        names = ("network", "tokenizer", "block_size", "truncation", "rounds", "blank")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        facts = f"{self.rounds} steps", "absorbing noise", f"{len(self.tokenizer)} tokens"
        return one_line(self, network_size(self.network), *facts)

    # -- what drawing and scoring share

    def logits(self, tokens: Int[Tensor, "batch ..."], visible: Bool[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """The network's logits [B, L, V] of ``tokens`` with what is not ``visible`` masked; PAD is padding."""
        exists = tokens != PAD
        return self.network(torch.where(visible | ~exists, tokens, MASK), exists)

    def _letters(self, logits: Tensor) -> Tensor:
        """Mask of the classes that may be drawn, the ordinary tokens, in the shape of ``logits``."""
        return (torch.arange(logits.shape[-1], device=logits.device) >= NUM_SPECIAL).expand_as(logits)

    # -- Policy protocol

    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        """Draw one filled text per context.

        Column read: ``masked``, a text in which each blank character stands for one token to fill.

        Raises:
            ValueError: if a context has no such text, no blank in it, a token outside the alphabet, or too many of them.
        """
        if not contexts:
            raise ValueError("contexts: none given, expected at least one")
        prompts = [self.encode(c.columns.get("masked")) for c in contexts]
        size = torch.tensor([len(p) for p in prompts], device=self.device)
        tokens = torch.full((len(prompts), int(size.max())), PAD)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        tokens = tokens.to(self.device)
        order = reveal_order(tokens == MASK, self.rounds, generator)
        states, logps = self._fill(tokens, order, generator)
        texts = [self.tokenizer.decode(row) for row in states["tokens"].tolist()]
        return Rollout(
            states=states,
            group=torch.tensor([c.group for c in contexts], device=self.device),
            logp=logps,
            units=torch.stack([(order == k + 1).sum(-1) for k in range(self.rounds)], 1),
            size=size,
            max_units=self.block_size,
            max_steps=self.rounds,
            samples=tuple(texts if self.decode is None else self.decode(texts)),
            columns=columns_of(contexts),
        )

    def _fill(self, tokens: Tensor, order: Tensor, generator: torch.Generator | None) -> tuple[dict[str, Tensor], Tensor]:
        """All rounds: the stored states, and the log-probs [B, S] as drawn."""
        kept_sets: Tensor | None = None
        logps = []
        for k in range(self.rounds):
            now = order == k + 1
            logits = self.logits(tokens, order <= k)
            kept = self.truncation.keep(logits, self._letters(logits))
            log_probs = self.truncation.log_probs(logits, kept)
            drawn = sample(log_probs.exp(), generator)
            tokens = torch.where(now, drawn, tokens)
            logps.append(torch.where(now, gather(log_probs, drawn), 0.0).sum(-1))
            if self.truncation.restricts:
                packed = pack_bits(kept)
                kept_sets = torch.where(now.unsqueeze(-1), packed, 0 if kept_sets is None else kept_sets)
        small = torch.uint8 if len(self.tokenizer) <= 256 else torch.int16
        states = {"tokens": tokens.to(small), "order": order.to(torch.uint8)}
        if kept_sets is not None:
            states["kept"] = kept_sets.to(torch.uint8)
        return states, torch.stack(logps, 1)

    def sites(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None) -> Sequence[Sites]:
        """The categoricals of stored rounds, one kind of site [B, S', L, V]; all rounds if None."""
        length = rollout.max_size
        tokens, order = (rollout.states[name][:, :length].long() for name in ("tokens", "order"))
        if steps is None:
            steps = torch.arange(self.rounds, device=tokens.device).expand(len(rollout), -1)
        whole = tokens.unsqueeze(1).expand(-1, steps.shape[1], -1)
        seen = order.unsqueeze(1) <= steps.unsqueeze(-1)
        logits = self.logits(whole.flatten(0, 1), seen.flatten(0, 1)).unflatten(0, steps.shape)
        now = order.unsqueeze(1) == steps.unsqueeze(-1) + 1
        kept = self._letters(logits)
        if "kept" in rollout.states:
            stored = unpack_bits(rollout.states["kept"][:, :length], logits.shape[-1])
            kept = torch.where(now.unsqueeze(-1), stored.unsqueeze(1), kept)
        return [Sites(self.truncation.log_probs(logits, kept), whole, now)]

    # -- prompts

    def check_condition(self, columns: Mapping[str, Any]) -> None:
        """Raise the error that :meth:`sample` would raise for a condition, so that a run fails before it starts."""
        self.encode(columns.get("masked"))

    def encode(self, masked: Any) -> list[int]:
        """Token ids of a prompt, MASK at its blanks.

        Raises:
            ValueError: if it is no text, has no blank, a token outside the alphabet, or more tokens than ``block_size``.
        """
        if not isinstance(masked, str) or self.blank not in masked:
            raise ValueError(f"masked: {masked!r}, expected a text with at least one blank {self.blank!r}")
        ids: list[int] = []
        for k, part in enumerate(masked.split(self.blank)):
            try:
                ids += ([MASK] if k else []) + (self.tokenizer.encode(part) if part else [])
            except ValueError as error:
                raise ValueError(f"masked: {masked!r}, {str(error).removeprefix('text: ')}") from error
        if len(ids) > self.block_size:
            raise ValueError(f"masked: {masked!r} has {len(ids)} tokens, expected at most block_size ({self.block_size})")
        return ids

    # -- likelihood training

    def check_batch(self, batch: Any) -> None:
        """Raise ``ValueError`` unless ``batch`` holds ids of letters [B, L], PAD after each text's end, of texts with a letter."""
        if not isinstance(batch, Tensor) or batch.dim() != 2 or batch.is_floating_point():
            raise ValueError(f"batch: {type(batch).__name__}, expected token ids [B, L]")
        if batch.shape[1] > self.block_size:
            raise ValueError(f"batch: texts of {batch.shape[1]} tokens, expected at most block_size ({self.block_size})")
        exists, most = batch != PAD, len(self.tokenizer) - 1
        wrong = batch[exists & ((batch < NUM_SPECIAL) | (batch > most))]
        if len(wrong):
            raise ValueError(f"batch: id {int(wrong[0])}, expected ids of letters, {NUM_SPECIAL} to {most}, and PAD after a text")
        if not bool(exists[:, 0].all()) or bool((exists[:, 1:] & ~exists[:, :-1]).any()):
            raise ValueError("batch: PAD at or before the start of a text, expected PAD after each text's end only")

    def likelihood_loss(
        self, batch: Int[Tensor, "batch ..."], *, generator: torch.Generator | None = None, share: BatchShare = WHOLE
    ) -> dict[str, Tensor]:
        """Mean over texts of (1/n) Σ_{i masked} -log p_θ(x_i | the rest), n = ceil(u L) of L tokens masked, u uniform in (0, 1].

        Its expectation is the mean over orders of -log p_θ(x)/L filled one token per round, so every share of blanks is
        trained. Rates are stratified over the batch.
        Source: Hoogeboom et al. (2022), Eq. 4, arXiv 2110.02037; Uria et al. (2014), Eq. 9, arXiv 1310.1757.

        Args:
            batch: token ids [B, L], PAD after each text's end; no text is empty.
            generator: of rates and places.
            share: rows that this process computes, and the means over all.
        """
        exists = batch != PAD
        b, device = len(batch), batch.device
        u = torch.rand((), generator=generator, device=device, dtype=widest(device))
        rate = 1 - ((torch.arange(b, device=device) + u) / b)[torch.randperm(b, generator=generator, device=device)]  # (0, 1]
        count = (rate * exists.sum(-1)).ceil().long().clamp_min(1)
        scores = torch.rand(batch.shape, generator=generator, device=device)
        rank = torch.where(exists, scores, 2.0).argsort(-1).argsort(-1)
        hidden = exists & (rank < count[:, None])
        batch, hidden, count = (x[share.own] for x in (batch, hidden, count))
        logits = self.logits(batch, ~hidden)
        log_probs = Truncation().log_probs(logits, self._letters(logits))  # temperature 1, nothing cut off
        nll = torch.where(hidden, -gather(log_probs, batch), 0.0)
        right = (log_probs.argmax(-1) == batch) & hidden
        loss, accuracy = share.means(*(mean_of(x.sum(-1) / count) for x in (nll, right)))
        return {"loss": loss, "accuracy": accuracy.detach()}
