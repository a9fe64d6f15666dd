"""Optimisation in rounds: propose, score, remember, and learn from the memory in several passes.

A round takes samples of the policy and of other proposers, scores the new ones through the ledger, keeps them in a
:class:`~discrete_grpo.training.memory.ScoredMemory`, and makes a number of updates on samples drawn from it by rank. While
:class:`~discrete_grpo.training.trainer.GRPOTrainer` learns from the latest draws of its policy, this loop learns from all
samples scored so far, from any source. Log-probs are recomputed in every pass.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from discrete_grpo.core.advantages import sum_rewards
from discrete_grpo.core.categorical import Scores, score_sites
from discrete_grpo.core.drawing import draw
from discrete_grpo.core.reward_arguments import checked_weights, reward_list
from discrete_grpo.core.rollout import Context, Policy, Replayable, Reward, Rollout, as_module, is_replayable, is_scorer
from discrete_grpo.core.scoring import Accounts, BudgetExhausted
from discrete_grpo.training.bf16 import decide_bf16
from discrete_grpo.training.memory import Remembered, ScoredMemory
from discrete_grpo.training.objectives import Adaptive, Draws, MemoryBatch, Objective
from discrete_grpo.training.proposers import Proposer, Screen
from discrete_grpo.training.rounds_checks import check_parts
from discrete_grpo.training.rounds_config import RoundsConfig
from discrete_grpo.training.rounds_metrics import rounds_metrics
from discrete_grpo.training.rounds_state import RoundsProgress, restore_rounds, rounds_state

__all__ = ["Rounds"]


@dataclass
class Rounds:
    """The loop over rounds.

    Args:
        policy: policy that draws and learns; with ``passes`` above 0 it must be an :class:`~discrete_grpo.core.rollout.Replayable`.
        reward: reward to optimise, or several, whose weighted sum is.
        ledger: counter of the calls; its budget ends the run.
        key: canonical form of a sample, None for an invalid one; the canonical form must itself be a sample.
        objective: loss of an update.
        config: settings.
        memory: memory of scored samples; entries that it has already, such as a warm start, are used from the first round
            on, also by the screen.
        known: scored samples for which the memory has no room; they are not proposed again, and the screen sees them.
        proposers: sources of candidates besides the policy.
        screen: model that chooses among the candidates; None scores all of them.
        rewrite: maps a sample to another text of it for a pass, such as a SMILES in random order; None keeps the sample.
        contexts: function that maps a memory, a number of draws and a generator to as many contexts for the policy, such as
            :class:`~discrete_grpo.training.remembered_sizes.RememberedSizes`; None uses empty contexts.
        drawable: memory of the scored samples that the policy can draw, empty at first. Updates and ``contexts`` use it, so that
            samples of proposers that the policy cannot draw do not displace all others. With None they use ``memory`` and skip
            samples that the policy cannot draw.
        generator: random generator of all draws, on the policy's device.
        reward_weights: one weight per reward; None means 1 each. A sample's unknown rewards count as 0 unless all are unknown.

    Raises:
        ValueError: if the policy cannot learn from samples that it did not draw, for a screen with several generations, and for a
            component that lacks a required method, such as a proposer without ``propose``.
    """

    policy: Policy
    reward: Reward | Sequence[Reward]
    ledger: Accounts
    key: Callable[[Any], Hashable | None]
    objective: Objective
    config: RoundsConfig = field(default_factory=RoundsConfig)
    memory: ScoredMemory = field(default_factory=ScoredMemory)
    known: Sequence[Remembered] = ()
    proposers: Sequence[Proposer] = ()
    screen: Screen | None = None
    rewrite: Callable[[Any, torch.Generator], Any] | None = None
    contexts: Callable[[ScoredMemory, int, torch.Generator], Sequence[Context]] | None = None
    drawable: ScoredMemory | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)
    reward_weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_parts(**{part.name: getattr(self, part.name) for part in fields(self)})
        if (self.config.passes > 0 or self.drawable is not None) and not is_replayable(self.policy):
            raise ValueError(
                f"policy: {type(self.policy).__name__} has no method rollout_of, expected one that can learn from any sample"
            )
        if self.screen is not None and self.config.generations > 1:
            raise ValueError(f"generations: {self.config.generations}, expected 1 with a screen")
        self._weights = torch.tensor(checked_weights(self.reward_weights, len(self.rewards)), dtype=torch.float64)
        module = as_module(self.policy).eval()  # the same mode for drawing and scoring
        self._device = next(module.parameters()).device
        self._bf16 = decide_bf16(self.config.bf16, self._device)[0]
        self.reference = cast(Policy, copy.deepcopy(module).eval().requires_grad_(False))
        self.everything = ScoredMemory(size=None, rank_coefficient=self.memory.rank_coefficient)
        scored = [*self.memory.kept, *self.known]
        for entry in scored:
            self.everything.add([(entry.key, entry.sample, entry.score)], entry.source)
        self.remember_drawable(scored)
        if self.screen is not None and scored:
            scores = torch.tensor([entry.score for entry in scored], dtype=torch.float64)
            self.screen.observe([entry.sample for entry in scored], scores)
        self.ref_logp: dict[Hashable, float] = {}
        self.entry_of: dict[Hashable, Remembered] = {entry.key: entry for entry in scored}  # in the order of scoring
        self.met: set[Hashable] = set(self.entry_of)  # keys of the samples of this island
        self.unknown: dict[Hashable, None] = {}  # keys of the samples whose score the reward could not give
        self.draws: list[tuple[Hashable | None, float]] = []  # key and log-prob of what the policy drew in this round
        self.learned: list[int] = []  # samples of each update of this round
        self.new_share = 0.0
        self._drawn = False  # whether the policy draws the trajectories of samples
        self.progress = RoundsProgress()
        self.latest: list[Remembered] = []  # samples scored in the last round
        self.scores_of: dict[Hashable, list[float]] = {}  # their scores by each reward
        self._first_objective = copy.deepcopy(self.objective)
        self.optimizer = self._new_optimizer()

    @property
    def rewards(self) -> list[Reward]:
        """The reward, or several, as a list."""
        return reward_list(self.reward)

    def total(self, scores: Float[Tensor, "sample reward"]) -> Float[Tensor, " sample"]:
        """The weighted sum of the scores by each reward, float64; NaN where all are unknown."""
        return sum_rewards(scores, self._weights)

    def _new_optimizer(self) -> torch.optim.Optimizer:
        c = self.config
        groups = [{"params": [p for p in as_module(self.policy).parameters() if p.requires_grad], "lr": c.learning_rate}]
        if isinstance(self.objective, nn.Module) and (own := list(self.objective.parameters())):
            groups.append({"params": own, "lr": c.objective_learning_rate})
        return torch.optim.Adam(groups)

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16)

    # -- the loop

    def run(self, after_round: Callable[[], None] | None = None) -> ScoredMemory:
        """Run rounds until the budget is used up, the goal is reached, or the run is stale or flat; return all scored samples.

        A restart that brings no new sample, or no better one, ends the run.

        Args:
            after_round: called after every round, where :meth:`state_dict` is the whole state; None does nothing.
        """
        while not (self.progress.ended or self.ledger.exhausted):
            self._advance()
            if after_round is not None:
                after_round()
        return self.everything

    def _advance(self) -> None:
        """Make a round; if the run is stale or flat, restart or end it."""
        c, p = self.config, self.progress
        p.idle = 0 if self.round() else p.idle + 1
        stale, flat = p.idle >= c.patience, self._on_plateau()
        best = [entry.score for entry in self.everything.kept[:10]]  # of all islands
        if c.goal is not None and len(best) == 10 and best[-1] >= c.goal - 1e-9:
            p.ended = True
        elif stale or flat:
            nothing = (stale and len(self.everything) == p.known) or (flat and p.top == p.best)
            if c.when_stale == "stop" or nothing:
                p.ended = True
                return
            self._restart()
            p.idle, p.known, p.best, p.risen_at = 0, len(self.everything), p.top, len(self.everything)

    def round(self) -> int:
        """Propose, score, remember and learn once; returns the number of new samples that were scored."""
        self.scores_of = {}
        new = self._score(self._choose(self._propose()))
        for _ in range(1, self.config.generations):
            if not self.ledger.exhausted:
                new += self._score(self._choose(self._children({})))
        self.latest, self.learned = new, []
        self.progress.rounds += 1
        if self.config.passes and len(self.memory) > 1 and not self.ledger.exhausted:
            self._learn(new)
        return len(new)

    def _on_plateau(self) -> bool:
        top = [entry.score for entry in self.memory.kept[:10]]
        if top != self.progress.top:
            self.progress.top, self.progress.risen_at = top, len(self.everything)
        return self.config.plateau is not None and len(self.everything) - self.progress.risen_at >= self.config.plateau

    def _restart(self) -> None:
        as_module(self.policy).load_state_dict(as_module(self.reference).state_dict())
        if self.config.when_stale == "islands":
            self._leave_island()
        self.optimizer = self._new_optimizer()
        self.progress.restarts += 1

    def _leave_island(self) -> None:
        """Start an empty island, or every second time one with all scored samples."""
        self.objective = copy.deepcopy(self._first_objective)
        self.memory.clear()
        if self.drawable is not None:
            self.drawable.clear()
        self.met.clear()
        if self.screen is not None:
            self.screen.forget()
        if self.progress.restarts % 2:
            self.met.update(self.entry_of)
            self._remember(list(self.entry_of.values()))
        self.progress.top = []

    def _remember(self, entries: Sequence[Remembered]) -> None:
        """Put samples of known score into memory and screen."""
        for entry in entries:
            self.memory.add([(entry.key, entry.sample, entry.score)], entry.source)
        self.remember_drawable(entries)
        if self.screen is not None and entries:
            scores = torch.tensor([entry.score for entry in entries], dtype=torch.float64)
            self.screen.observe([entry.sample for entry in entries], scores)

    def remember_drawable(self, entries: Sequence[Remembered]) -> None:
        """Add the samples that the policy can draw to ``drawable``, if there is one."""
        if self.drawable is None:
            return
        known = cast(Replayable, self.policy)
        for entry in entries:
            if self.drawable.has_room(entry.score) and known.can_draw(entry.sample):
                self.drawable.add([(entry.key, entry.sample, entry.score)], entry.source)

    @property
    def _reachable(self) -> ScoredMemory:
        """The memory from which the policy learns."""
        return self.memory if self.drawable is None else self.drawable

    # -- numbers and checkpoints

    def metrics(self) -> dict[str, float]:
        """Numbers of the last round and of the memory, see :func:`~discrete_grpo.training.rounds_metrics.rounds_metrics`."""
        return rounds_metrics(self)

    def state_dict(self) -> dict[str, Any]:
        """The state between two rounds, for a checkpoint; the ledger has a state of its own."""
        return rounds_state(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the checkpoint of a loop that was created with the same arguments; what follows is bit-identical."""
        restore_rounds(self, state)

    # -- proposing and scoring

    def _propose(self) -> dict[Hashable, tuple[Any, str]]:
        """New valid candidates: key -> (canonical sample, source), the policy's first."""
        asked: Sequence[Context] = [Context(k) for k in range(self.config.draws)]
        if self.contexts is not None:
            asked = self.contexts(self._reachable, self.config.draws, self.generator)
        drawn = draw(self.policy, asked, generator=self.generator)
        self.draws = [(self.key(sample), logp) for sample, logp in zip(drawn.samples, drawn.logp.sum(1).tolist(), strict=True)]
        found = self._new(drawn.samples, "policy", {})
        self.new_share = len(found) / len(self.draws)
        return self._children(found)

    def _children(self, found: dict[Hashable, tuple[Any, str]]) -> dict[Hashable, tuple[Any, str]]:
        """The candidates ``found`` and those of the proposers."""
        found = dict(found)
        for proposer in self.proposers if self.config.children else ():
            found |= self._new(proposer.propose(self.memory, self.config.children, self.generator), proposer.name, found)
        return found

    def _new(self, samples: Sequence[Any], source: str, found: dict[Hashable, tuple[Any, str]]) -> dict[Hashable, tuple[Any, str]]:
        keys = dict.fromkeys(key for sample in samples if (key := self.key(sample)) is not None)
        if self.config.when_stale == "islands":
            self._meet([key for key in keys if key in self.everything])
        known = (found, self.everything, self.unknown)
        return {key: (key, source) for key in keys if not any(key in those for those in known)}

    def _meet(self, keys: Sequence[Hashable]) -> None:
        """Take samples of earlier islands, whose scores are known, into this one."""
        new = [key for key in keys if key not in self.met]
        self.met.update(new)
        self._remember([self.entry_of[key] for key in new])

    def _choose(self, candidates: dict[Hashable, tuple[Any, str]]) -> list[tuple[Hashable, Any, str]]:
        """All candidates; with a screen ``take`` of them: the first ``unscreened`` of the policy and the best by merit."""
        every = [(key, sample, source) for key, (sample, source) in candidates.items()]
        if self.screen is None or not every:
            return every
        merit = self.screen.merit([sample for _, sample, _ in every])
        if merit is None:
            return every[: self.config.take]
        if not isinstance(merit, Tensor) or merit.shape != (len(every),) or bool(merit.isnan().any()):
            found = f"a tensor of shape {tuple(merit.shape)}" if isinstance(merit, Tensor) else f"a {type(merit).__name__}"
            wanted = f"expected a tensor of {len(every)} numbers, one per candidate, none of them NaN"
            raise ValueError(f"screen: {type(self.screen).__name__}.merit returned {found}, {wanted}")
        free = [k for k, (_, _, source) in enumerate(every) if source == "policy"][: self.config.unscreened]
        ranked = [k for k in merit.argsort(descending=True, stable=True).tolist() if k not in set(free)]
        if self.config.take_children is not None:
            beyond = [k for k in ranked if every[k][2] != "policy"][self.config.take_children :]
            ranked = [k for k in ranked if k not in set(beyond)]
        return [every[k] for k in [*ranked[: self.config.take - len(free)], *free]]

    def _score(self, chosen: Sequence[tuple[Hashable, Any, str]]) -> list[Remembered]:
        """Score samples and remember them; returns those with a known score."""
        if not chosen:
            return []
        samples, sources = [sample for _, sample, _ in chosen], [source for _, _, source in chosen]
        try:
            by_reward = self.ledger.score(self.rewards, samples, source=sources)
        except BudgetExhausted as spent:
            by_reward = spent.scores
        scores = self.total(by_reward)
        self.scores_of |= {key: row for (key, _, _), row in zip(chosen, by_reward.tolist(), strict=True)}
        if not self.ledger.exhausted:  # otherwise some are unknown because the budget ran out
            self.unknown |= {one[0]: None for one, score in zip(chosen, scores.tolist(), strict=True) if score != score}
        if self.screen is not None:
            self.screen.observe(samples, scores)
        pairs = [(one, score) for one, score in zip(chosen, scores.tolist(), strict=True) if score == score]
        for (key, sample, source), score in pairs:
            self.memory.add([(key, sample, score)], source)
            self.everything.add([(key, sample, score)], source)
            self.entry_of[key] = Remembered(key, sample, score, source)
            self.met.add(key)
        found = [Remembered(key, sample, score, source) for (key, sample, source), score in pairs]
        self.remember_drawable(found)
        return found

    # -- learning

    def _learn(self, new: Sequence[Remembered]) -> None:
        """Make the updates of a round, whose new samples are ``new``."""
        fresh, draws = self.config.fresh_passes, self._known_draws()
        if isinstance(self.objective, Adaptive):
            self.objective.begin_round(draws)
        batches = [self._batch(new if k < fresh else ()) for k in range(self.config.passes)]
        batches = [batch for batch in batches if len(batch) > 1]
        self.learned = [len(batch) for batch in batches]
        before = self.generator.get_state()
        rollouts = [self._rollout(batch) for batch in batches]
        self._drawn = not torch.equal(before, self.generator.get_state())
        old: list[Tensor | None] = [None] * len(batches)
        if self.objective.needs_old and len(batches) > 1:
            with torch.no_grad():
                old[1:] = [self._scores(self.policy, rollout).logp for rollout in rollouts[1:]]
        for batch, rollout, old_logp in zip(batches, rollouts, old, strict=True):
            self._update(batch, rollout, old_logp, draws)

    def _batch(self, new: Sequence[Remembered]) -> list[Remembered]:
        """Samples of one pass as the policy learns them: remembered ones, and ``new``."""
        c = self.config
        drawn = self._reachable.draw(c.batch_size - c.explore, self.generator)
        batch = list({entry.key: entry for entry in [*new, *drawn]}.values())
        if c.explore:
            count = len(self.everything)
            rows = torch.randperm(count, generator=self.generator, device=self.generator.device)[: c.explore].tolist()
            taken = {entry.key for entry in batch}
            batch += [entry for k in rows if (entry := self.everything.kept[k]).key not in taken]
        if self.rewrite is not None:
            batch = [replace(entry, sample=self.rewrite(entry.sample, self.generator)) for entry in batch]
        return [entry for entry in batch if cast(Replayable, self.policy).can_draw(entry.sample)]

    def _rollout(self, batch: Sequence[Remembered]) -> Rollout:
        return cast(Replayable, self.policy).rollout_of([entry.sample for entry in batch], generator=self.generator)

    def _scores(self, policy: Policy, rollout: Rollout) -> Scores:
        with self._precision():
            return policy.score(rollout) if is_scorer(policy) else score_sites(policy.sites(rollout))

    def _update(self, batch: Sequence[Remembered], rollout: Rollout, old_logp: Tensor | None, draws: Draws) -> None:
        needed = getattr(self.objective, "needs_ref", True)
        ref_logp = self._reference_logp(batch, rollout) if needed else torch.full((len(batch),), torch.nan, device=self._device)
        scores = self._scores(self.policy, rollout)
        reward = torch.tensor([entry.score for entry in batch], device=self._device, dtype=scores.logp.dtype)
        seen = MemoryBatch(scores, reward, ref_logp.to(scores.logp), old_logp, rollout.max_units, draws, rollout.max_steps)
        loss = self.objective(seen)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        most = math.inf if self.config.max_grad_norm is None else self.config.max_grad_norm
        norm = float(nn.utils.clip_grad_norm_(as_module(self.policy).parameters(), most))
        if not math.isfinite(norm):
            raise FloatingPointError(f"gradient norm is {norm} after {len(self.everything)} samples; lower learning_rate")
        self.optimizer.step()

    def _known_draws(self) -> Draws:
        known = [(self.entry_of[key].score, logp) for key, logp in self.draws if key is not None and key in self.entry_of]
        table = torch.tensor(known, device=self._device).reshape(-1, 2)
        return Draws(table[:, 0], table[:, 1], self.new_share)

    def _reference_logp(self, batch: Sequence[Remembered], rollout: Rollout) -> Float[Tensor, " batch"]:
        """log π_ref of the samples, computed once for samples with a single trajectory, as the reference never changes."""
        if self._drawn:
            self.ref_logp.clear()
        rows = [k for k, entry in enumerate(batch) if entry.sample not in self.ref_logp]
        if rows:
            part = rollout.index(torch.tensor(rows, device=self._device))
            with torch.no_grad():
                scores = self._scores(self.reference, part)
            for k, value in zip(rows, (scores.logp * scores.mask).sum((-2, -1)).tolist(), strict=True):
                self.ref_logp[batch[k].sample] = value
        return torch.tensor([self.ref_logp[entry.sample] for entry in batch], device=self._device)
