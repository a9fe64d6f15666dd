"""The GRPO loop: sample groups, reward, advantage, update, log, checkpoint.

Three roles never mix. *theta* is the policy being trained; *old* is the policy that drew the samples, present only as
log-probs; the *reference* is a frozen copy of the first policy, used only in the KL.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, groupby
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from discrete_grpo.core.entropy import EntropyController
from discrete_grpo.core.interrupt import Interrupted, interruptible
from discrete_grpo.core.precision import widen
from discrete_grpo.core.rollout import Policy, Reward, as_module, select_steps
from discrete_grpo.core.scoring import Accounts, BudgetExhausted, RewardError, remembers, reward_names
from discrete_grpo.runs.checkpoint import CheckpointError, Checkpoints, load_training, load_weights, tensors_to_cpu
from discrete_grpo.runs.trackers import Tracker
from discrete_grpo.training.averaging import averaged
from discrete_grpo.training.batch import Batch, Draw
from discrete_grpo.training.bf16 import decide_bf16
from discrete_grpo.training.compiled import compile_network
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.distributed import Processes, accelerator
from discrete_grpo.training.log import RunLog, training_bar
from discrete_grpo.training.lora import has_lora, merge_lora, without_lora
from discrete_grpo.training.minibatches import Choice, Chunk, choose, window_weights
from discrete_grpo.training.network import checkpoint_layers
from discrete_grpo.training.optim import GradientSum, learning_rate
from discrete_grpo.training.reference import mix_reference
from discrete_grpo.training.rollout_queue import Pending
from discrete_grpo.training.sampler import GroupSampler
from discrete_grpo.training.shards import check_shards, make_shards, num_shards
from discrete_grpo.training.state import Parts, check_device_kind
from discrete_grpo.training.update import (
    Plan,
    check_scorer,
    chunk_loss,
    plan_update,
    policy_scores,
    terms_of,
    trajectory_kl,
    update_metrics,
)

__all__ = ["GRPOTrainer", "select_steps"]


class GRPOTrainer:
    """Group relative policy optimisation of any :class:`~discrete_grpo.core.rollout.Policy`.

    Under ``torchrun`` or ``accelerate launch`` every process makes one of these and calls the same methods; each draws and
    scores whole groups, and all make the same updates.

    Args:
        policy: trained in place; an ``nn.Module``.
        reward_funcs: one reward or several; see :class:`~discrete_grpo.core.rollout.Reward`.
        config: settings.
        columns: conditions, one mapping a group context, visited in shuffled order; None for unconditional policies.
        run: folder for metrics, samples and checkpoints; None keeps nothing on disk.
        sample_metrics: extra metrics of each batch of samples (validity, say).
        metadata: JSON values kept with every checkpoint.
        resume: continue the run in folder ``run`` from its newest checkpoint.
        ledger: counts what is scored, and ends the run when a budget is used up; see
            :class:`~discrete_grpo.rewards.ledger.Ledger`. None: nothing is counted.
        tracker: takes a copy of the metrics and of the best samples; see :mod:`discrete_grpo.runs.trackers`.

    Raises:
        ValueError: if the arguments do not go together.
    """

    def __init__(
        self,
        policy: Policy,
        reward_funcs: Reward | Sequence[Reward],
        config: GRPOConfig | None = None,
        *,
        columns: Sequence[Mapping[str, Any]] | None = None,
        run: str | Path | None = None,
        sample_metrics: Callable[[Sequence[Any]], Mapping[str, float]] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume: bool = False,
        ledger: Accounts | None = None,
        tracker: Tracker | None = None,
    ) -> None:
        self.config = config = config or GRPOConfig()
        self.rewards: list[Reward] = [reward_funcs] if callable(reward_funcs) else list(reward_funcs)
        self.accelerator = accelerator()
        self.processes = Processes(self.accelerator)
        self._check(columns)
        self.metadata, self.ledger = dict(metadata or {}), ledger
        check_scorer(policy, config)
        self.policy = policy
        self.controller = _controller(config)
        module = as_module(policy).to(self.accelerator.device).eval()  # one mode for drawing and scoring alike
        self.module: nn.Module = module
        self.checkpoints = _checkpoints(run, config)
        stored = self._stored() if resume else None
        self.bf16 = self._decide_bf16(None if stored is None else stored.get("bf16"))
        self.sampler = self._sampler(columns, None if stored is None else len(stored["shards"]))
        self.reference = cast(Policy, copy.deepcopy(module).requires_grad_(False)) if config.beta > 0 else None
        self.average = averaged(module, config.ema_decay) if config.ema_decay is not None else None
        self._prepare_networks()
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        betas = (config.adam_beta1, config.adam_beta2)
        optimizer = torch.optim.AdamW(self.parameters, lr=config.learning_rate, betas=betas, weight_decay=config.weight_decay)
        self.optimizer = self.accelerator.prepare(optimizer)
        own = (self.optimizer, self.average, self.reference, self.controller)
        self.parts = Parts(module, *own, tuple(self.rewards), ledger, self.sampler, self.processes)
        names = reward_names(self.rewards)
        self.log = RunLog(config, names, run, sample_metrics, tracker) if self.processes.first else None
        self.step = 0
        self.history: list[dict[str, float]] = []
        self._new: list[dict[str, float]] = []  # lines since the last checkpoint that was due
        self.pending: Pending | None = None
        if stored is not None:
            self._restore(stored)
        self._safe = self.parts.snapshot()
        if self.log is not None:
            self.log.start(self.step)

    def _decide_bf16(self, kept: bool | None) -> bool:
        """Whether networks run in bfloat16, as the first process decides and says."""
        device, setting = self.accelerator.device, self.config.bf16
        on, told = self.processes.share(lambda: decide_bf16(setting, device, kept=kept))[0]
        if told is not None and self.processes.first:
            print(told, file=sys.stderr)
        return on

    def _prepare_networks(self) -> None:
        """Activation checkpointing and compilation, where asked for."""
        if self.config.checkpoint_layers is not None:
            checkpoint_layers(self.module, self.config.checkpoint_layers)
        for used in (self.module, self.reference) if self.config.torch_compile else ():
            if used is not None:  # copies are not compiled: the reference is compiled as such
                compile_network(cast(nn.Module, used))

    def _sampler(self, columns: Sequence[Mapping[str, Any]] | None, stored: int | None) -> GroupSampler:
        """What draws and scores, with the shards that fall to this process."""
        config, own = self.config, self.processes
        if stored is not None and config.generation_shards not in (None, stored):
            raise ValueError(f"generation_shards: {config.generation_shards}, expected {stored} as in the run to resume")
        count = num_shards(config, own.count, stored)
        check_shards(count, config, own.count)
        shards = make_shards(self.policy, config, count, rank=own.rank, processes=own.count, device=self.accelerator.device)
        return GroupSampler(self.policy, self.rewards, config, columns, shards, own, self.ledger, self._penalty, self.precision)

    def _check(self, columns: Sequence[Mapping[str, Any]] | None) -> None:
        config = self.config
        if not self.rewards:
            raise ValueError("reward_funcs: none given, expected at least one")
        if config.reward_weights is not None and len(config.reward_weights) != len(self.rewards):
            raise ValueError(f"reward_weights: {len(config.reward_weights)} weights, expected one a reward ({len(self.rewards)})")
        if config.importance_sampling_level == "sequence" and config.timestep_chunk is not None:
            raise ValueError(f"timestep_chunk: {config.timestep_chunk}, expected none with importance_sampling_level sequence")
        if columns is not None and not columns:
            raise ValueError("columns: an empty list, expected at least one condition or None")
        for name, reward in zip(reward_names(self.rewards), self.rewards, strict=True):
            if self.processes.count > 1 and remembers(reward):
                raise ValueError(f"reward {name}: remembers samples, expected one that does not with several processes")

    @property
    def best_policy(self) -> Any:
        """The policy to use after training: averaged weights where ``ema_decay`` is set, else the trained ones; adapters merged."""
        return without_lora(self._kept)

    @property
    def _kept(self) -> nn.Module:
        return self.average.module.eval() if self.average is not None else self.module

    def precision(self) -> torch.autocast:
        """bfloat16 inside networks if asked for; not accelerate's own setting, which one process can choose only once."""
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=self.bf16)

    # -- the loop

    def train(self) -> list[dict[str, float]]:
        """Run until ``max_steps`` updates are made or the ledger's budget is used up; returns the metrics of the updates made here.

        Raises:
            RewardError: if a reward fails; everything up to the last update is saved first.
            Interrupted: after Ctrl-C, likewise.
        """
        if self.checkpoints is not None and self.processes.share(lambda: self.step == 0 and not self._runs())[0]:
            self.save()
        try:
            shown = training_bar(self.step, self.config.max_steps, self.ledger) if self.processes.first else nullcontext()
            with interruptible() as stop, shown as show:
                while self.step < self.config.max_steps:
                    if self._stopped(stop):
                        break
                    line = self.update()
                    if line is None:
                        break
                    if show is not None:
                        show(self.step, line)
                    if self.step % self.config.save_steps == 0 or self.step == self.config.max_steps:
                        self.save()
            if self.log is not None:
                self.log.finish(self.history)
        finally:
            if self.log is not None:
                self.log.close()
        self._load_best()
        return self.history

    def _load_best(self) -> None:
        """Go back to the policy of the best checkpoint, if that is asked for."""
        if self.checkpoints is None or not self.config.load_best_model_at_end:
            return
        if (best := self.checkpoints.best()) is not None:
            load_weights(best, merge_lora(self._kept) if has_lora(self._kept) else self._kept)

    def _runs(self) -> bool:
        return self.checkpoints is not None and bool(self.checkpoints.all())

    def _stopped(self, stop: object) -> bool:
        """Whether the run ends here, in all processes; everything is saved if so.

        Raises:
            Interrupted: after Ctrl-C in any of them.
        """
        spent = self.pending is None and self.ledger is not None and self.ledger.exhausted
        asked, ends = (any(found) for found in zip(*self.processes.gather((bool(stop), spent)), strict=True))
        if asked or ends:
            self.save()
        if asked:
            raise Interrupted(f"stopped at update {self.step} of {self.config.max_steps}")
        return ends

    def update(self) -> dict[str, float] | None:
        """One update, after drawing and scoring samples where the last ones are used up; its metrics.

        Returns:
            None if the budget ended while samples were scored; everything up to the last update is saved.

        Raises:
            RewardError: if a reward fails; likewise.
        """
        start = time.perf_counter()
        if self.pending is None:
            try:
                self._draw_and_score()
            except BudgetExhausted:
                self.save()
                return None
            except RewardError:
                self.save()
                raise
        line = self._learn(cast(Pending, self.pending))
        line["step_time"] = time.perf_counter() - start
        if self.checkpoints is not None and not self.history:
            self.checkpoints.check_metric(line)
        self.history.append(line)
        self._new.append(line)
        if self.log is not None:
            self.log.update(self.step, line)
        return line

    def generation(self) -> list[dict[str, float]]:
        """One batch of samples and the updates made with it, or what is left of them; one line of metrics an update."""
        lines = [self.update()]
        while self.pending is not None and self.step < self.config.max_steps:
            lines.append(self.update())
        return [line for line in lines if line is not None]

    # -- drawing and scoring

    def _penalty(self, batch: Batch) -> Tensor | None:
        """The KL of each trajectory to the reference, where it is part of the reward."""
        if self.reference is None or self.config.kl_in == "loss":
            return None
        with self.precision():
            return trajectory_kl(self.policy, self.reference, batch.rollout, batch.refined, self.config).cpu().double()

    def _draw_and_score(self) -> None:
        """Fill :attr:`pending`. If anything fails, what a checkpoint would hold is still the state after the last update."""
        drawn = self.sampler.draw()
        shared = self.processes.share(lambda: self.log.metrics(drawn, self.ledger) if self.log is not None else {})[0]
        choices = [choose(own, self.config, shard.generator) for own, shard in zip(drawn.draws, self.sampler.shards, strict=True)]
        pending = self._cut(drawn.draws, choices, shared)
        old: list[list[Tensor | None]] = []  # filled inside: what is returned goes to all processes
        if pending.updates(self.config) > 1:
            self.processes.share(lambda: old.extend(self._old_log_probs(part) for part in pending.parts))
            pending.old = old
        self.processes.share(lambda: self.sampler.remember(drawn.mine))
        self.pending, self._safe = pending, self.parts.snapshot()
        if self.log is not None:
            self.log.samples(self.step + 1, drawn)

    def _cut(self, draws: Sequence[Sequence[Draw]], choices: Sequence[Choice], shared: Mapping[str, float]) -> Pending:
        counts = list(chain(*self.processes.gather([choice.counts for choice in choices])))
        numbers = [shard.number for shard in self.sampler.shards]
        weights = [[window[k] for k in numbers] for window in window_weights(counts, self.config)]
        return Pending.of(numbers, draws, choices, weights, self.config, shared)

    # -- the update

    @torch.no_grad()
    def _old_log_probs(self, chunks: Sequence[Chunk]) -> list[Tensor | None]:
        """Log π_old, stored or by replay in the very chunks of the update: the first ratio is then exactly 1."""
        with self.precision():
            return [policy_scores(self.policy, c).logp if c.stored is None else c.stored for c in chunks]

    def _learn(self, pending: Pending) -> dict[str, float]:
        """The next update on what was drawn."""
        k = pending.done % len(pending.parts)
        line = pending.shared | self._update(pending.parts[k], pending.old[k])
        pending.done += 1
        self.step += 1
        if pending.done == pending.updates(self.config):
            self.pending = None
        return line

    def _update(self, chunks: Sequence[Chunk], old: Sequence[Tensor | None]) -> dict[str, float]:
        c = self.config
        rate = learning_rate(self.step, c)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision():
            plan = plan_update(self.policy, chunks, old, c, self.controller, self.processes.share)
        gradient = GradientSum(self.parameters)
        parts = self.processes.share(lambda: self._passes(chunks, old, plan, gradient))
        gradient.finish(self.processes)
        sums = {name: cast(Tensor, sum(part[name] for part in parts if name in part)) for name in {n: 0 for p in parts for n in p}}
        loss = float(sums.pop("loss", torch.zeros(())))
        norm = nn.utils.clip_grad_norm_(self.parameters, c.max_grad_norm if c.max_grad_norm is not None else math.inf)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"gradient norm is {float(norm)} at update {self.step}; lower learning_rate or raise beta")
        self.optimizer.step()
        self._follow(plan.mean_entropy)
        line = {"loss": loss, "grad_norm": float(norm), "learning_rate": rate} | update_metrics(sums)
        return line | ({"entropy_coef": plan.entropy_coef} if c.entropy_coef > 0 or self.controller is not None else {})

    def _passes(
        self, chunks: Sequence[Chunk], old: Sequence[Tensor | None], plan: Plan, gradient: GradientSum
    ) -> dict[str, Tensor]:
        """Forward and backward through the chunks of this process; the sums that metrics are made of, and the loss."""
        c, sums = self.config, dict[str, Tensor]()
        for _, shard in groupby(zip(chunks, old, strict=True), key=lambda pair: pair[0].shard):
            for chunk, old_logp in shard:
                with self.precision():
                    terms = terms_of(self.policy, chunk, self.reference, c, old_logp=old_logp, bonus=plan.entropy_coef > 0)
                part = chunk_loss(terms, chunk, old_logp, plan, c)
                self.accelerator.backward(part.loss)
                found = {**part.sums, "loss": widen(part.loss.detach())}
                sums |= {name: value.cpu().double() + sums.get(name, 0.0) for name, value in found.items()}
            gradient.add()
        return sums

    def _follow(self, mean_entropy: float | None) -> None:
        """What moves after each step of the optimizer: the average, the reference, the weight of the entropy."""
        c = self.config
        if self.average is not None:
            self.average.update_parameters(self.module)
        if c.sync_ref_model and self.reference is not None and (self.step + 1) % c.ref_model_sync_steps == 0:
            mix_reference(as_module(self.reference), self.module, c.ref_model_mixup_alpha)
        if self.controller is not None and mean_entropy is not None and not math.isnan(mean_entropy):
            self.controller.observe(mean_entropy)

    # -- checkpoints

    def save(self) -> None:
        """Write a checkpoint of the state after the last update, in all processes at once; nothing happens without a run folder."""
        if self.checkpoints is None:
            return
        pending = tensors_to_cpu(self.pending.states()) if self.pending is not None else None
        told = self.processes.gather((self._safe, pending))
        self.processes.share(lambda: self._write(told, self.log) if self.log is not None else None)
        self._new = [] if self._due() else self._new

    def _due(self) -> bool:
        """Whether an undisturbed run makes a checkpoint here too; only such ones are compared for the best."""
        c, spent = self.config, self.pending is None and self.ledger is not None and self.ledger.exhausted
        return self.step % c.save_steps == 0 or self.step == c.max_steps or spent

    def _write(self, told: Sequence[tuple[Mapping[str, Any], list[Any] | None]], log: RunLog) -> None:
        pending = None
        if self.pending is not None:
            shards = [state for _, states in told for state in states or ()]
            pending = {"shards": shards, "shared": self.pending.shared, "done": self.pending.done}
        drawing = [snapshot for snapshot, _ in told]
        state = {"step": self.step, "rewards": reward_names(self.rewards), "pending": pending, "position": log.position()}
        state["device"] = self.accelerator.device.type
        lines = self._new if self._due() else []
        state |= {"new": [] if lines else self._new, "bf16": self.bf16}
        state |= self.parts.learning() | self.parts.drawing(drawing)
        metadata = self.metadata | {"grpo_steps": self.step}
        cast(Checkpoints, self.checkpoints).save(
            self.step, self.best_policy, metadata=metadata, training=tensors_to_cpu(state), lines=lines
        )

    def _stored(self) -> dict[str, Any]:
        """The training state of the newest checkpoint."""
        if self.checkpoints is None:
            raise ValueError("resume: True, expected a run folder to resume from (run=...)")
        state = load_training(self.checkpoints.latest())
        if "shards" not in state:
            raise CheckpointError(f"{self.checkpoints.latest()}: made by another version, which this one cannot go on from")
        check_device_kind(state, state["shards"][0]["generator"], self.accelerator.device)
        if state["rewards"] != reward_names(self.rewards):
            named = ", ".join(reward_names(self.rewards))
            raise ValueError(f"reward_funcs: {named}, expected {', '.join(state['rewards'])} as in the run to resume")
        return state

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.step = int(state["step"])
        self.parts.restore(state)
        self._new = list(state.get("new", ()))
        if state["pending"] is not None:
            self._restore_pending(state["pending"])
        if self.log is not None:
            self.log.restore(state["position"], self.step + (self.pending is not None))

    def _restore_pending(self, state: Mapping[str, Any]) -> None:
        """Go on between two updates of a generation."""
        trusted = ("discrete_grpo", type(self.policy).__module__.split(".")[0])
        kept = [state["shards"][shard.number] for shard in self.sampler.shards]
        read = [Pending.read(part, trusted, self.accelerator.device) for part in kept]
        self.pending = self._cut([draws for draws, _ in read], [choice for _, choice in read], state["shared"])
        self.pending.load_old(kept, self.accelerator.device)
        self.pending.done = int(state["done"])


def _checkpoints(run: str | Path | None, config: GRPOConfig) -> Checkpoints | None:
    if run is None:
        if config.load_best_model_at_end:
            raise ValueError("load_best_model_at_end: True, expected a run folder that keeps checkpoints (run=...)")
        return None
    best = {"metric_for_best_model": config.metric_for_best_model, "greater_is_better": config.greater_is_better}
    return Checkpoints(run, config.save_total_limit, **best)  # type: ignore[arg-type]


def _controller(config: GRPOConfig) -> EntropyController | None:
    if not config.use_adaptive_entropy:
        return None
    low, high = config.entropy_coef_min, config.entropy_coef_max
    return EntropyController(config.entropy_coef, target=config.entropy_target, delta=config.entropy_coef_delta, low=low, high=high)
