"""Autoregressive tokens as a policy: SMILES first, and any other alphabet (image codes, SELFIES, edge lists).

A step draws one token; its one site has the alphabet as classes. A trajectory is x_1 ... x_L and EOS, at most
``max_length`` steps; a text that reaches ``max_length`` tokens ends there without a draw. Drawing and scoring share
:meth:`TokenPolicy.tables`, so temperature, top-k and top-p are in the log-probs too. A network is a module
``(tokens [B,T], prompt [B,P] | None, properties [B,K] | None, cache) -> logits [B,T,V]`` with a method
``cache(rows, prompt_length)``, whose object has ``select(rows)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from discrete_grpo.core.batch_share import WHOLE, BatchShare, cross_entropy
from discrete_grpo.core.categorical import Sites
from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.precision import widen
from discrete_grpo.core.rollout import Context, Rollout, check_decoder
from discrete_grpo.domains.tokenizer import BOS, EOS, MASK, PAD, Property, TokenBatch, Tokenizer, pad_left
from discrete_grpo.policies.conditions import check_network, columns_of, property_table
from discrete_grpo.policies.delegation import network_size, one_line
from discrete_grpo.policies.grammar import TokenGrammar, along, check_grammar, legal_along
from discrete_grpo.policies.token_drawing import draw_tokens
from discrete_grpo.policies.truncation import Truncation, pack_bits, unpack_bits

__all__ = ["TokenPolicy"]


class TokenPolicy(nn.Module):
    """An autoregressive policy π_θ(x | c) = Π_t π_θ(x_t | x_<t, c), up to and with EOS.

    Args:
        network: network with the signature described at the top of this module.
        tokenizer: the alphabet.
        max_length: the most tokens of a text, EOS not counted; at least 1.
        min_length: number of tokens before which EOS is not drawn; equal to ``max_length`` for texts of fixed length.
        prompt: name of the context column whose text the network reads first (a scaffold, a label); None for none.
        max_prompt: the most tokens of a prompt; None means ``max_length``.
        properties: properties that the network is conditioned on, each a context column of that name.
        truncation: temperature, top-k and top-p, in drawing and in scoring alike.
        only: the tokens that may be drawn (prompts may have others); None means all.
        grammar: which tokens may follow the beginning of a text, in drawing and in scoring alike; None means all.
        condition_dropout: probability in training of hiding the prompt, and of hiding each property, in [0, 1].
        decode: maps finished texts to the samples that rewards see; None gives the texts.

    Raises:
        ValueError: for an argument out of its range.
    """

    drawable: Tensor

    def __init__(
        self,
        network: nn.Module,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        min_length: int = 0,
        prompt: str | None = None,
        max_prompt: int | None = None,
        properties: Sequence[Property] = (),
        truncation: Truncation | None = None,
        only: Sequence[str] | None = None,
        grammar: TokenGrammar | None = None,
        condition_dropout: float = 0.5,
        decode: Callable[[Sequence[str]], Sequence[Any]] | None = None,
    ) -> None:
        super().__init__()
        check_whole("max_length", max_length, least=1)
        check_whole("min_length", min_length, least=0, most=max_length, note=" (max_length)")
        check_range("condition_dropout", condition_dropout, least=0, most=1)
        check_network(network, tokenizer, max_length, len(properties))
        check_decoder("decode", decode)
        self.network, self.tokenizer = network, tokenizer
        self.max_length, self.min_length = max_length, min_length
        self.prompt, self.properties = prompt, tuple(properties)
        self.max_prompt = max_length if max_prompt is None else max_prompt
        check_whole("max_prompt", self.max_prompt, least=1, most=max_length, note=" (max_length)")
        self.truncation, self.condition_dropout = truncation or Truncation(), condition_dropout
        self.only, self.decode, self.grammar = None if only is None else tuple(only), decode, grammar
        self.feature_sizes = check_grammar(grammar, network, len(tokenizer))
        if grammar is not None:
            _check_rules(min_length, only)
        drawable = torch.ones(len(tokenizer), dtype=torch.bool)
        if self.only is not None:
            drawable = torch.zeros_like(drawable)
            drawable[[k for token in self.only for k in tokenizer.encode(token)]] = True
        drawable[[PAD, BOS, EOS, MASK]] = False
        if self.only is not None and not drawable.any():
            raise ValueError("only: no tokens, expected at least one or None")
        self._drawn = frozenset(drawable.nonzero()[:, 0].tolist())  # on the host
        self.register_buffer("drawable", drawable, persistent=False)

    @property
    def device(self) -> torch.device:
        """Device of the network's parameters."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the network's parameters."""
        return next(self.parameters()).dtype

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this policy again (without ``decode``, which is set again after loading)."""
        names = ("network", "tokenizer", "max_length", "min_length", "prompt", "properties", "truncation", "condition_dropout")
        less_common = {
            "only": self.only,
            "grammar": self.grammar,
            "max_prompt": self.max_prompt if self.max_prompt != self.max_length else None,
        }
        given = {name: value for name, value in less_common.items() if value is not None}
        return {name: getattr(self, name) for name in names} | given

    def __repr__(self) -> str:
        return one_line(self, network_size(self.network), f"at most {self.max_length} steps", f"{len(self.tokenizer)} tokens")

    # -- the one function that drawing and scoring share

    @property
    def restricts(self) -> bool:
        """Whether the tokens that a step may draw depend on more than its number; if so, they are stored."""
        return self.truncation.restricts or self.grammar is not None

    def tables(
        self,
        logits: Float[Tensor, "*any class"],
        step: Int[Tensor, "*any"],
        packed: Tensor | None,
        legal: Bool[Tensor, "*any class"] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """log π of every token [..., V], and which tokens are kept.

        Args:
            logits: the network's.
            step: number of each step.
            packed: stored kept sets; None decides them here.
            legal: tokens that the grammar allows, if there is one and no sets are stored.
        """
        if packed is not None:
            kept = unpack_bits(packed, len(self.tokenizer))
        else:
            allowed = self.allowed(step)
            kept = self.truncation.keep(logits, allowed if legal is None else allowed & legal)
        return self.truncation.log_probs(logits, kept), kept

    def allowed(self, step: Int[Tensor, "*any"]) -> Bool[Tensor, "*any class"]:
        """Mask of the tokens that may be drawn at ``step``: ordinary ones, and EOS from ``min_length`` on."""
        allowed = self.drawable.expand(*step.shape, -1).clone()
        allowed[..., EOS] = step >= self.min_length
        return allowed

    def _along(self, tokens: Int[Tensor, "batch step"]) -> tuple[Tensor, dict[str, Tensor]]:
        """The legal tokens at each place of given texts, and the features that the network reads there."""
        grammar: Any = self.grammar
        legal, *features = along(grammar, tokens, grammar.legal, *([grammar.features] if self.feature_sizes else []))
        return legal, {"features": features[0]} if features else {}

    # -- Policy protocol

    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        """Draw one text per context.

        Columns read: the one named by ``prompt`` and those named in ``properties``; a missing column or None means not given.

        Raises:
            ValueError: if a prompt has a token outside the alphabet or is too long, or a property is no finite number.
        """
        if not contexts:
            raise ValueError("contexts: none given, expected at least one")
        prompt, properties = self._conditions(contexts)
        states, logp, length = draw_tokens(self, len(contexts), prompt, properties, generator)
        if prompt is not None:
            states["prompt"] = prompt.to(states["tokens"].dtype)
        if properties is not None:
            states["properties"] = properties
        texts = [self.tokenizer.decode(row) for row in states["tokens"].tolist()]
        steps = torch.arange(logp.shape[1], device=self.device)
        return Rollout(
            states=states,
            group=torch.tensor([c.group for c in contexts], device=self.device),
            logp=logp,
            units=(steps < length[:, None]).long(),
            size=length + (0 if prompt is None else (prompt != PAD).sum(1)),
            max_units=self.max_length,
            max_steps=self.max_length,
            samples=tuple(texts if self.decode is None else self.decode(texts)),
            columns=columns_of(contexts),
        )

    def sites(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None) -> Sequence[Sites]:
        """The token categoricals of stored steps [B, S', 1, V]; all steps if None."""
        states = rollout.states
        length = rollout.units.sum(1)
        if steps is None:
            steps = torch.arange(rollout.num_steps, device=length.device).expand(len(rollout), -1)
        n = max(1, _longest(rollout, length))
        tokens = states["tokens"][:, :n].long()
        inputs = torch.cat([torch.full_like(tokens[:, :1], BOS), tokens[:, :-1]], 1)
        read = {"features": states["features"][:, :n].long()} if "features" in states else {}
        logits = self.network(inputs, _trim(states.get("prompt")), states.get("properties"), **read)
        at, row = steps.clamp_max(n - 1), torch.arange(len(rollout), device=length.device)[:, None]
        packed = states["kept"][row, at] if "kept" in states else None
        log_probs, _ = self.tables(logits[row, at], at, packed)
        return [Sites(log_probs.unsqueeze(2), tokens[row, at].unsqueeze(2), (steps < length[:, None]).unsqueeze(2))]

    # -- samples that it did not draw

    def can_draw(self, sample: Any) -> bool:
        """Whether a text has tokens of the alphabet only, neither too few nor too many of them, and follows the grammar."""
        if not self._spelt(sample):
            return False
        if self.grammar is None:
            return True
        row = torch.tensor([[*self.tokenizer.encode(sample), EOS][: self.max_length]], device=self.device)
        return bool(legal_along(self.grammar, row).gather(2, row.unsqueeze(2)).all())

    def _spelt(self, sample: Any) -> bool:
        """Whether a text has tokens that are drawn only, neither too few nor too many of them."""
        if not isinstance(sample, str) or not self.tokenizer.knows(sample):
            return False
        ids = self.tokenizer.encode(sample)
        return self.min_length <= len(ids) <= self.max_length and self._drawn.issuperset(ids)

    def rollout_of(self, samples: Sequence[str], *, generator: torch.Generator | None = None) -> Rollout:
        """The trajectory of each text, without a prompt and properties: the tokens into which the alphabet cuts it.

        It is the only trajectory if every text has a unique tokenization, as with SMILES. With other alphabets, such as byte
        pairs or the tokens of graph sequences, the policy can also draw the same text by other tokens, and log π of this
        trajectory is less than that of the text.

        ``logp`` is NaN, as the texts were not drawn. The samples are the texts as the alphabet spells them, without ``decode``.

        Raises:
            ValueError: for a text that this policy cannot draw, or if its tables depend on top-k or top-p.
        """
        if not samples:
            raise ValueError("samples: none given, expected at least one")
        if self.truncation.restricts:
            raise ValueError(f"rollout_of: {self.truncation}, expected top_k None and top_p 1")
        _refuse([not self._spelt(text) for text in samples], samples)
        rows = [[*self.tokenizer.encode(text), EOS][: self.max_length] for text in samples]
        length = torch.tensor([len(row) for row in rows])
        tokens = torch.full((len(rows), int(length.max())), PAD)
        tokens[torch.arange(tokens.shape[1]) < length[:, None]] = torch.tensor([k for row in rows for k in row])
        steps = torch.arange(tokens.shape[1])
        states = {"tokens": tokens}
        if self.grammar is not None:
            inside, tried = (steps < length[:, None]).unsqueeze(2).to(self.device), tokens.to(self.device)
            follows = legal_along(self.grammar, tried).gather(2, tried.unsqueeze(2)) | ~inside
            _refuse((~follows.all(1)[:, 0]).tolist(), samples)
            legal, read = self._along(tried)  # only for legal texts: the features of others are undefined
            states["kept"] = pack_bits(legal & self.allowed(steps.to(self.device)) & inside)
            states |= {name: values.to(torch.uint8) for name, values in read.items()}
        return Rollout(
            states=states,
            group=torch.arange(len(rows)),
            logp=torch.full(tokens.shape, torch.nan),
            units=(steps < length[:, None]).long(),
            size=length,
            max_units=self.max_length,
            max_steps=self.max_length,
            samples=tuple(samples),
        ).to(self.device)

    # -- likelihood training

    def check_batch(self, batch: TokenBatch) -> None:
        """Check a training batch, before it is moved to a GPU, where that would make the host wait.

        Raises:
            ValueError: if a text is shorter than ``min_length``, longer than ``max_length``, or has a token outside ``only``, or if
                a prompt is longer than ``max_prompt``.
        """
        lengths = ((batch.tokens != PAD) & (batch.tokens != EOS)).sum(1)
        check_range("tokens of a text", int(lengths.max()), most=self.max_length, note=" (max_length)")
        check_range("tokens of a text", int(lengths.min()), least=self.min_length, note=" (min_length)")
        if self.only is not None:
            drawn = torch.isin(batch.tokens, torch.tensor([PAD, EOS, *self._drawn]))
            if not drawn.all():
                other = self.tokenizer.decode([int(batch.tokens[~drawn][0])])
                raise ValueError(f"tokens of a text: {other!r}, expected tokens that the policy draws (only)")
        if batch.prompt is not None:
            check_range("tokens of a prompt", batch.prompt.shape[1], most=self.max_prompt, note=" (max_prompt)")

    def likelihood_loss(
        self, batch: TokenBatch, *, generator: torch.Generator | None = None, share: BatchShare = WHOLE
    ) -> dict[str, Tensor]:
        """-log p_θ(x | c) per token, EOS counted and padding not, at temperature 1.

        As in drawing, p_θ is the softmax over the tokens that :meth:`allowed` and the grammar leave: the logits of PAD, BOS and
        MASK, of which imported networks have copies of other tokens', do not count.

        Raises:
            ValueError: as :meth:`check_batch`, for a batch on the CPU.
        """
        if batch.tokens.device.type == "cpu":
            self.check_batch(batch)
        targets = batch.tokens
        inputs = torch.cat([torch.full_like(targets[:, :1], BOS), targets[:, :-1]], 1)[:, : self.max_length]
        targets = targets[:, : self.max_length]
        tokens = widen((targets != PAD).sum())
        given = [None if x is None else x[share.own] for x in self._hide(batch, generator)]
        inputs, targets = inputs[share.own], targets[share.own]
        legal, read = (None, {}) if self.grammar is None else self._along(targets)
        logits = self.network(inputs, *given, **read)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        allowed = self.allowed(torch.arange(targets.shape[1], device=targets.device))
        logits = logits.masked_fill(~(allowed if legal is None else allowed & legal), -torch.inf)
        (loss,) = share.means(cross_entropy(logits, targets, targets != PAD))
        return {"loss": loss, "tokens": tokens}

    def _hide(self, batch: TokenBatch, generator: torch.Generator | None) -> tuple[Tensor | None, Tensor | None]:
        """The conditions of a training batch: the prompt shown to all rows or to none, each property by a draw of its own."""
        device, share = batch.tokens.device, self.condition_dropout
        prompt, properties = batch.prompt, batch.properties
        if prompt is not None and float(torch.rand((), generator=generator, device=device)) < share:
            prompt = None
        if properties is not None:
            hidden = torch.rand(properties.shape, generator=generator, device=device) < share
            properties = properties.masked_fill(hidden, torch.nan)
        return prompt, properties

    # -- drawing

    def _conditions(self, contexts: Sequence[Context]) -> tuple[Tensor | None, Tensor | None]:
        """Prompt ids [B, P] and standardised properties [B, K] of the contexts; None where no context has any."""
        given = [c.columns.get(self.prompt) if self.prompt is not None else None for c in contexts]
        rows = [[] if text is None else self._prompt_ids(str(text)) for text in given]
        prompt = pad_left(rows).to(self.device) if any(rows) else None
        table = property_table(contexts, self.properties, self.dtype)
        return prompt, None if table is None else table.to(self.device)

    def check_condition(self, columns: Mapping[str, Any]) -> None:
        """Raise the error that :meth:`sample` would raise for a context with these columns, and one for a prompt that it lacks.

        Raises:
            ValueError: also without a prompt, where the policy never saw a sample without one in training.
        """
        if self.prompt is not None and self.condition_dropout == 0 and columns.get(self.prompt) is None:
            raise ValueError(f"{self.prompt}: None, expected one, as the policy was trained with one always")
        self._conditions([Context(0, columns)])

    def _prompt_ids(self, text: str) -> list[int]:
        try:
            ids = self.tokenizer.encode(text)
        except ValueError as error:
            raise ValueError(f"{self.prompt}: {str(error).removeprefix('text: ')}") from error
        if len(ids) > self.max_prompt:
            raise ValueError(f"{self.prompt}: {text!r} has {len(ids)} tokens, expected at most {self.max_prompt}")
        return ids


def _check_rules(min_length: int, only: Sequence[str] | None) -> None:
    """Raise ValueError for a further rule besides a grammar, which could leave a step without a token."""
    if min_length or only is not None:
        name, value, other = ("only", only, None) if only is not None else ("min_length", min_length, 0)
        raise ValueError(f"{name}: {value!r}, expected {other} with a grammar")


def _longest(rollout: Rollout, length: Tensor) -> int:
    """The largest ``length``; on an accelerator, an upper bound that is known on the host, if there is one."""
    if rollout.largest is None or length.device.type == "cpu":
        return int(length.max())
    return min(rollout.num_steps, rollout.largest)


def _trim(prompt: Tensor | None) -> Tensor | None:
    """Prompt ids without columns that are PAD in every row, which are kept on an accelerator; None if nothing is left."""
    if prompt is None:
        return None
    if prompt.device.type != "cpu":
        return prompt.long()
    used = (prompt != PAD).any(0)
    return prompt[:, used].long() if bool(used.any()) else None


def _refuse(wrong: Sequence[bool], texts: Sequence[str]) -> None:
    if any(wrong):
        raise ValueError(f"samples: {texts[list(wrong).index(True)]!r}, expected a text that the policy can draw")
