"""A small policy that obeys every law, and twins of it, each with one mistake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import Sites, gather, sample, score_sites
from discrete_grpo.core.rollout import Context, Rollout


class Words(nn.Module):
    """Letters (classes 1 and 2) until a stop (class 0) or ``length`` letters; each group has a mood, drawn before the first."""

    def __init__(self, length: int = 3, temperature: float = 1.0, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.length, self.temperature, self.dropout = length, temperature, dropout
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            first, last = nn.Linear(3 * length + 2, 16), nn.Linear(16, 3)
        self.network = nn.Sequential(first, nn.Dropout(dropout), nn.Tanh(), last)
        with torch.no_grad():
            last.weight.mul_(4)

    def init_args(self) -> dict[str, Any]:
        return {"length": self.length, "temperature": self.temperature, "dropout": self.dropout}

    # -- what drawing and scoring share

    def features(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        before = torch.arange(letters.shape[1], device=steps.device) < steps[..., None]
        shown = nn.functional.one_hot(letters.long(), 3)[:, None] * before[..., None]
        history = nn.functional.pad(shown.flatten(2), (0, 3 * (self.length - letters.shape[1])))
        moods = nn.functional.one_hot(mood.long(), 2)[:, None].expand(-1, steps.shape[1], -1)
        return torch.cat([history, moods], -1).to(next(self.parameters()).dtype)

    def logits(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        found: Tensor = self.network(self.features(letters, steps, mood))
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def tables(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        return (self.logits(letters, steps, mood) / self.temperature).log_softmax(-1)

    # -- Policy protocol

    def moods(self, contexts: Sequence[Context], generator: torch.Generator | None) -> Tensor:
        groups = {c.group: c.columns.get("mood") for c in contexts}
        device = next(self.parameters()).device
        drawn = torch.randint(2, (len(groups),), generator=generator, device=device).tolist()
        by_group = {g: m if m is not None else d for (g, m), d in zip(groups.items(), drawn, strict=True)}
        return torch.tensor([by_group[c.group] for c in contexts], device=device)

    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        mood = self.moods(contexts, generator)
        letters = torch.zeros(len(contexts), self.length, dtype=torch.uint8, device=mood.device)
        on, logps, units = torch.ones_like(mood, dtype=torch.bool), [], []
        for k in range(self.length):
            table = self.tables(letters, torch.full_like(mood[:, None], k), mood)[:, 0]
            drawn = torch.where(on, sample(table.exp(), generator), 0)
            letters[:, k] = drawn.to(torch.uint8)
            logps.append(torch.where(on, gather(table, drawn), 0.0))
            units.append(on.long())
            on = on & (drawn > 0)
        longest = int(torch.stack(units, 1).sum(1).max())
        return self.rollout(contexts, letters[:, :longest], mood, torch.stack(logps[:longest], 1))

    def rollout(self, contexts: Sequence[Context], letters: Tensor, mood: Tensor, logp: Tensor) -> Rollout:
        units = nn.functional.pad((letters > 0).cumprod(1), (1, 0), value=1)[:, :-1]
        names = dict.fromkeys(name for c in contexts for name in c.columns)
        return Rollout(
            states={"letters": letters, "mood": mood},
            group=torch.tensor([c.group for c in contexts], device=mood.device),
            logp=logp,
            units=units,
            size=units.sum(1),
            max_units=self.length,
            samples=tuple("".join("-ab"[k] for k in row if k) for row in letters.tolist()),
            columns={name: tuple(c.columns.get(name) for c in contexts) for name in names},
        )

    def mask(self, rollout: Rollout, steps: Tensor) -> Tensor:
        return rollout.units.gather(1, steps).bool()

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        letters, mood = rollout.states["letters"], rollout.states["mood"]
        if steps is None:
            steps = torch.arange(letters.shape[1], device=mood.device).expand(len(rollout), -1)
        table = self.tables(letters, steps, mood)
        return [Sites(table[:, :, None], letters.gather(1, steps)[..., None], self.mask(rollout, steps)[..., None])]

    # -- for the tests

    def space(self) -> Rollout:
        """Every word with every mood; a mood is a start."""
        rows = [(m, w) for m in (0, 1) for w in product(range(3), repeat=self.length)]
        rows = [(m, w) for m, w in rows if 0 not in w or not any(w[w.index(0) :])]
        letters = torch.tensor([w for _, w in rows], dtype=torch.uint8)
        mood = torch.tensor([m for m, _ in rows])
        return self.rollout([Context(m) for m, _ in rows], letters, mood, torch.zeros(letters.shape))


class Spells(Words):
    """Words in one mood, which learns from words that it did not draw."""

    def moods(self, contexts: Sequence[Context], generator: torch.Generator | None) -> Tensor:
        return torch.zeros(len(contexts), dtype=torch.long, device=next(self.parameters()).device)

    def can_draw(self, sample: Any) -> bool:
        return isinstance(sample, str) and set(sample) <= {"a", "b"} and len(sample) <= self.length

    def rollout_of(self, samples: Sequence[str], *, generator: torch.Generator | None = None) -> Rollout:
        contexts, longest = [Context(k) for k in range(len(samples))], min(self.length, 1 + max(map(len, samples)))
        mood = self.moods(contexts, generator)
        rows = [["-ab".index(c) for c in word] + [0] * (longest - len(word)) for word in samples]
        letters = torch.tensor(rows, dtype=torch.uint8, device=mood.device)
        return self.rollout(contexts, letters, mood, torch.full(letters.shape, torch.nan, device=mood.device))


class Anagrams(Spells):
    """The letters of a word in order, so that most samples have several trajectories, of which one is given."""

    def rollout(self, *parts: Any) -> Rollout:
        made = super().rollout(*parts)
        return replace(made, samples=tuple("".join(sorted(word)) for word in made.samples))

    def decode(self, word: str) -> str:
        return "".join(sorted(word))


# ---------------------------------------------------------------- twins of Words


class SpellsWithoutStop(Spells):
    """The stop after the last letter is no site of a word that it did not draw."""

    def rollout_of(self, samples: Sequence[str], *, generator: torch.Generator | None = None) -> Rollout:
        made = super().rollout_of(samples, generator=generator)
        return replace(made, units=(made.states["letters"] > 0).long())


class AnagramsWithoutStop(Anagrams, SpellsWithoutStop):
    """The same mistake, where a sample need not have been drawn along its trajectory."""


class DecodesWithoutStop(SpellsWithoutStop):
    """The same, with a method that has the name of the function which maps texts to samples elsewhere."""

    def decode(self, word: str) -> str:
        return word


class SpellsTheFirst(Spells):
    """Every trajectory is that of the first sample."""

    def rollout_of(self, samples: Sequence[str], *, generator: torch.Generator | None = None) -> Rollout:
        return super().rollout_of([samples[0]] * len(samples), generator=generator)


class SpellsImpossible(Spells):
    """A word of a class that it never draws: log π is -inf."""

    def tables(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        table = super().tables(letters, steps, mood)
        return torch.cat(
            [table[..., :2].logsumexp(-1, keepdim=True), table[..., 2:], torch.full_like(table[..., :1], -torch.inf)], -1
        )

    def rollout_of(self, samples: Sequence[str], *, generator: torch.Generator | None = None) -> Rollout:
        made = super().rollout_of(samples, generator=generator)
        return replace(made, states={**made.states, "letters": torch.full_like(made.states["letters"], 2)})


class UnmaskedPadding(Words):
    def mask(self, rollout: Rollout, steps: Tensor) -> Tensor:
        return torch.ones_like(steps, dtype=torch.bool)


class RawLogits(Words):
    """Draws at a temperature, scores without it."""

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        self.temperature = 0.6
        drawn = super().sample(contexts, generator=generator)
        self.temperature = 1.0
        with torch.no_grad():
            return replace(drawn, logp=score_sites(self.sites(drawn)).logp.sum(-1))


class ResampledLatent(Words):
    """Draws the mood again when it scores."""

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        mood = torch.randint_like(rollout.states["mood"], 2)
        return super().sites(replace(rollout, states={**rollout.states, "mood": mood}), steps)


class ForgottenLatent(Words):
    """Scores with a mood of its own, always the same."""

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        mood = torch.zeros_like(rollout.states["mood"])
        return super().sites(replace(rollout, states={**rollout.states, "mood": mood}), steps)


class GlobalRandom(Words):
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        return super().sample(contexts)


class ResetsGlobalRandom(Words):
    """Draws right, yet seeds everybody else."""

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        torch.manual_seed(0)
        return super().sites(rollout, steps)


class Unnormalised(Words):
    def tables(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        return self.logits(letters, steps, mood)


class StepsDescending(Words):
    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        return super().sites(rollout, None if steps is None else steps.flip(1))


class MutatesWeights(Words):
    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        drawn = super().sample(contexts, generator=generator)
        next(self.parameters()).mul_(1 + 1e-6)
        return drawn


class SwitchesMode(Words):
    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        self.train()
        return super().sites(rollout, steps)


class NoInitArgs(Words):
    init_args = None  # type: ignore[assignment]


class ForgetsTemperature(Words):
    """Its checkpoint loads, and scores otherwise."""

    def init_args(self) -> dict[str, Any]:
        return {"length": self.length}


class OddTensor(Tensor):
    """A tensor that a safe load refuses."""


class OddStates(Words):
    def rollout(self, contexts: Sequence[Context], letters: Tensor, mood: Tensor, logp: Tensor) -> Rollout:
        made = super().rollout(contexts, letters, mood, logp)
        return replace(made, states={**made.states, "mood": mood.as_subclass(OddTensor)})


class SeesItsBatch(Words):
    def logits(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        found = super().logits(letters, steps, mood)
        return found - found.mean(0, keepdim=True) * torch.tensor([1.0, 0.0, 0.0])


class ReversedGradient(Words):
    def tables(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        table = super().tables(letters, steps, mood)
        return 2 * table.detach() - table


class DetachedBody(Words):
    """Some thousand weights, of which only those of the last layer learn."""

    def __init__(self, length: int = 3, temperature: float = 1.0, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__(length, temperature, dropout, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body, self.head = nn.Sequential(nn.Linear(3 * length + 2, 256), nn.Tanh()), nn.Linear(256, 3)

    def logits(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(self.features(letters, steps, mood)).detach())
        return found.to(torch.promote_types(found.dtype, torch.float32))


class HalvesOfABatch(Words):
    """The second half of a large batch repeats the first."""

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        drawn, half = super().sample(contexts, generator=generator), len(contexts) // 2
        if half < 100:
            return drawn
        rows = torch.arange(len(contexts)) % half
        return replace(drawn.index(rows), columns=drawn.columns, group=drawn.group)


class NoGradient(Words):
    @torch.no_grad()
    def tables(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        return super().tables(letters, steps, mood)


class InfiniteGradient(Words):
    def logits(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        found = super().logits(letters, steps, mood)
        return found + (found - found.detach()).square().sum(-1, keepdim=True).sqrt()


class HalfTables(Words):
    """Normalises in whatever dtype the network gives."""

    def tables(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        found: Tensor = self.network(self.features(letters, steps, mood))
        return found - found.logsumexp(-1, keepdim=True)


class MatrixTables(Words):
    """Multiplies probabilities by a matrix, which autocast rounds to 16 bits."""

    def tables(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        rows = torch.full((3, 3), 0.1).fill_diagonal_(0.8)
        return ((self.logits(letters, steps, mood).softmax(-1) @ rows).float()).log()


class DropsColumns(Words):
    def rollout(self, contexts: Sequence[Context], letters: Tensor, mood: Tensor, logp: Tensor) -> Rollout:
        return replace(super().rollout(contexts, letters, mood, logp), columns={})


class KeepsGraph(Words):
    """Stores log-probs that still know how they were computed."""

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        drawn = super().sample(contexts, generator=generator)
        return replace(drawn, logp=score_sites(self.sites(drawn)).logp.sum(-1))


class NumberMask(Words):
    def mask(self, rollout: Rollout, steps: Tensor) -> Tensor:
        return super().mask(rollout, steps).float()


class ActionBeyond(Words):
    """Numbers its letters from 1 where it scores."""

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        return [replace(s, action=s.action + 1) for s in super().sites(rollout, steps)]


class CountsStops(Words):
    """Forgets that drawing the stop is a choice too, where it counts units."""

    def rollout(self, contexts: Sequence[Context], letters: Tensor, mood: Tensor, logp: Tensor) -> Rollout:
        made = super().rollout(contexts, letters, mood, logp)
        return replace(made, units=(letters > 0).long())

    def mask(self, rollout: Rollout, steps: Tensor) -> Tensor:
        drawn = nn.functional.pad((rollout.states["letters"] > 0).cumprod(1), (1, 0), value=1)[:, :-1]
        return drawn.gather(1, steps).bool()


class StoresMeans(Words):
    def rollout(self, contexts: Sequence[Context], letters: Tensor, mood: Tensor, logp: Tensor) -> Rollout:
        return super().rollout(contexts, letters, mood, logp / 2)


class MostDrawn(Words):
    def rollout(self, contexts: Sequence[Context], letters: Tensor, mood: Tensor, logp: Tensor) -> Rollout:
        made = super().rollout(contexts, letters, mood, logp)
        return replace(made, max_units=int(made.size.max()))


class CopiesInGroups(Words):
    """Draws one word per group and repeats it."""

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        drawn = super().sample(contexts, generator=generator)
        groups = drawn.group.tolist()
        return replace(drawn.index(torch.tensor([groups.index(g) for g in groups])), columns=drawn.columns, group=drawn.group)


class OneNumberPerRow(Words):
    """Draws every letter of a word by inversion of the same uniform number: each alone has its probability."""

    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        mood, b = self.moods(contexts, generator), len(contexts)
        uniform = torch.rand(b, 1, generator=generator)
        letters, on, logps = torch.zeros(b, self.length, dtype=torch.uint8), torch.ones(b, dtype=torch.bool), []
        for k in range(self.length):
            table = self.tables(letters, torch.full_like(mood[:, None], k), mood)[:, 0]
            drawn = torch.where(on, (table.exp().cumsum(-1) < uniform).sum(-1).clamp(max=2), 0)
            letters[:, k] = drawn.to(torch.uint8)
            logps.append(torch.where(on, gather(table, drawn), 0.0))
            on = on & (drawn > 0)
        longest = min(self.length, int((letters > 0).sum(1).max()) + 1)
        return self.rollout(contexts, letters[:, :longest], mood, torch.stack(logps[:longest], 1))


class Raises(Words):
    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        if steps is not None:
            raise KeyError("nothing known of\nsteps")
        return super().sites(rollout)
