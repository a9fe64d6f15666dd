"""The GRPO loop: sample groups, compute rewards and advantages, update, log, write checkpoints.

Three policies are distinguished. *theta* is the policy that is trained. *old* is the policy that drew the samples; only its
log-probs are stored. The *reference* is a frozen copy of the initial policy and is used in the KL only.
"""

from __future__ import annotations

import copy
import html
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from discrete_grpo.core.description import description
from discrete_grpo.core.interrupt import Interrupted, interruptible
from discrete_grpo.core.own_surrogate import SurrogateFunc
from discrete_grpo.core.reward_arguments import function_names, reward_list, reward_names
from discrete_grpo.core.rollout import Policy, Reward, as_module
from discrete_grpo.core.sample_metrics import SampleMetrics
from discrete_grpo.core.scoring import Accounts, BudgetExhausted, RewardError
from discrete_grpo.runs.checkpoint import Checkpoints, tensors_to_cpu
from discrete_grpo.runs.trackers import Tracker
from discrete_grpo.training.best_checkpoint import BestCheckpoint
from discrete_grpo.training.bf16 import decide_and_tell
from discrete_grpo.training.compatibility import check_given, check_observers, check_own_functions, check_scorer, checked_shards
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.distributed import ProcessGroup, accelerator
from discrete_grpo.training.generation_advantages import AdvantageFunc
from discrete_grpo.training.generation_metrics import generation_metrics
from discrete_grpo.training.log import RunLog, check_names, training_bar
from discrete_grpo.training.lora import without_lora
from discrete_grpo.training.minibatches import Batch, MiniBatches, StepChoice, TrainRows, choose_steps, window_weights
from discrete_grpo.training.network import check_determinism, checkpoint_layers, compile_network, deterministic, tf32_products
from discrete_grpo.training.on_update import OnUpdate, check_on_update, ends_run
from discrete_grpo.training.optim import adamw, averaged, entropy_controller
from discrete_grpo.training.pass_size import memory_advice, with_passes
from discrete_grpo.training.patience import calls_made, new_patience
from discrete_grpo.training.reference_tables import reference_tables
from discrete_grpo.training.rollout_queue import cut_as_before, cut_of, load_old, queue_states, read_rows, trusted_packages
from discrete_grpo.training.sampler import GroupSampler, make_shards
from discrete_grpo.training.state import RunState, checkpoints_of, settings_of, stored_state
from discrete_grpo.training.update import Learner, trajectory_kl

__all__ = ["GRPOTrainer"]


class GRPOTrainer:
    """Group relative policy optimisation of any :class:`~discrete_grpo.core.rollout.Policy`.

    Under ``torchrun`` or ``accelerate launch`` every process constructs a trainer and calls the same methods. Each process draws
    and scores whole groups, and all make the same updates.

    Args:
        policy: policy to train in place; an ``nn.Module``.
        reward_funcs: one reward or several; see :class:`~discrete_grpo.core.rollout.Reward`.
        config: settings.
        columns: conditions, one mapping per group, in an order drawn anew for every generation; None for unconditional ones.
        run: folder for metrics, samples and checkpoints; None writes nothing to disk.
        sample_metrics: function that computes extra metrics from the samples of a generation, such as their validity, in the
            first process; a :class:`~discrete_grpo.core.sample_metrics.SampleMetrics` has each process describe its own.
        metadata: JSON values that every checkpoint stores, in addition to the metadata that is attached to the policy.
        resume: whether to continue the run in folder ``run`` from its newest checkpoint.
        ledger: counter of reward calls, which ends the run when a budget is used up; see
            :class:`~discrete_grpo.rewards.ledger.Ledger`. None means that calls are not counted.
        tracker: tracker that receives the metrics and the best samples; see :mod:`discrete_grpo.runs.trackers`.
        advantage_func: function ``(rewards [B, R], group [B]) -> [B]`` that computes the advantages in place of the settings; see
            :data:`~discrete_grpo.training.generation_advantages.AdvantageFunc`.
        surrogate_func: function ``(log_prob, ratio, advantage) -> surrogate`` to be maximised, in place of that of ``loss_type``;
            see :data:`~discrete_grpo.core.own_surrogate.SurrogateFunc`.
        on_update: function that :meth:`train` calls after every update; see :data:`~discrete_grpo.training.on_update.OnUpdate`.

    Raises:
        ValueError: if the arguments are not compatible, or ``run`` holds another run and ``resume`` is false.
    """

    def __init__(
        self,
        policy: Policy,
        reward_funcs: Reward | Sequence[Reward],
        config: GRPOConfig | None = None,
        *,
        columns: Sequence[Mapping[str, Any]] | None = None,
        run: str | Path | None = None,
        sample_metrics: SampleMetrics | Callable[[Sequence[Any]], Mapping[str, float]] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume: bool = False,
        ledger: Accounts | None = None,
        tracker: Tracker | None = None,
        advantage_func: AdvantageFunc | None = None,
        surrogate_func: SurrogateFunc | None = None,
        on_update: OnUpdate | None = None,
    ) -> None:
        self.config = config = config or GRPOConfig()
        self.rewards: list[Reward] = reward_list(reward_funcs)
        self.accelerator = accelerator()
        self.processes = ProcessGroup(self.accelerator)
        check_given(policy, self.rewards, config, columns, self.processes.count, stores=run is not None)
        check_own_functions(advantage_func, surrogate_func, config, len(self.rewards))
        check_on_update(on_update)
        check_observers(sample_metrics, ledger, tracker)
        check_determinism(config.full_determinism, self.accelerator.device)
        self.metadata = {**description(policy), **(metadata or {})}
        self.ledger, self.sample_metrics, self.on_update = ledger, sample_metrics, on_update
        check_scorer(policy, config)
        self.policy = policy
        self.controller = entropy_controller(config)
        self.module: nn.Module = as_module(policy).to(self.accelerator.device).eval()  # the same mode for sampling and scoring
        module = self.module
        self.processes.copy_from_first([*module.parameters(), *module.buffers()])  # one of your own may begin with others
        self.checkpoints = checkpoints_of(run, config)
        self.best = BestCheckpoint(self.checkpoints, self.processes)
        self.functions = function_names(advantage_func=advantage_func, surrogate_func=surrogate_func)
        stored = stored_state(self.checkpoints, self.rewards, config, self.functions, self.processes) if resume else None
        self.settings = settings_of(config)
        if self.checkpoints is not None and not resume:
            self.checkpoints.check_new()
        self.bf16 = decide_and_tell(config.bf16, self.processes, kept=None if stored is None else stored.get("bf16"))
        if config.checkpoint_layers is not None:
            checkpoint_layers(module, config.checkpoint_layers)
        shards = checked_shards(config, self.processes.count, None if stored is None else len(stored["shards"]))
        kept = None if stored is None else stored.get("passes")
        self.config = config = with_passes(policy, config, columns, self.precision, processes=self.processes, kept=kept)
        self.sampler = self._sampler(columns, shards, advantage_func)
        self.reference = cast(Policy, copy.deepcopy(module).requires_grad_(False)) if config.beta > 0 else None
        self.average = averaged(module, config.ema_decay) if config.ema_decay is not None else None
        for used in (module, self.reference) if config.torch_compile else ():
            if used is not None:  # a copy is not compiled, so the reference is compiled too
                compile_network(cast(nn.Module, used))
        trained = [p for p in module.parameters() if p.requires_grad]
        self.optimizer = self.accelerator.prepare(adamw(trained, config))
        self.patience = new_patience(config, ledger, module)
        own = (self.optimizer, self.average, self.reference, self.controller, self.patience)
        self.state = RunState(module, *own, tuple(self.rewards), ledger, self.sampler, self.processes)
        tables = reference_tables(policy, self.reference, config)
        self.learner = Learner(policy, self.state, config, self.accelerator.backward, self.precision, surrogate_func, tables)
        self.log = RunLog(config, reward_names(self.rewards), run, tracker, self.sampler.columns) if self.processes.first else None
        self.step = 0
        self.history: list[dict[str, float]] = []
        self.ended = False  # whether on_update has ended the run
        self.pending: MiniBatches | None = None  # the generation that updates are being made on
        if stored is not None:
            self._restore(stored)
        self._safe = self.state.snapshot()
        if self.log is not None:
            self.log.start(self.step)

    def __repr__(self) -> str:
        """Policy, rewards and progress in one line."""
        rewards = ", ".join(reward_names(self.rewards))
        last = f", reward {self.history[-1]['reward']:.4g}" if self.history else ""
        return f"GRPOTrainer({type(self.policy).__name__}, rewards: {rewards}, update {self.step} of {self.config.max_steps}{last})"

    def _repr_html_(self) -> str:
        """The same line above a table of the last metrics, for notebooks."""
        line = self.history[-1] if self.history else {}
        rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{value:.4g}</td></tr>" for name, value in line.items())
        return f"<p>{html.escape(repr(self))}</p>" + (f"<table>{rows}</table>" if rows else "")

    def _sampler(
        self, columns: Sequence[Mapping[str, Any]] | None, count: int, advantage_func: AdvantageFunc | None
    ) -> GroupSampler:
        """The sampler, with the shards of this process."""
        config, own = self.config, self.processes
        shards = make_shards(self.policy, config, count, rank=own.rank, processes=own.count, device=self.accelerator.device)
        common = (self.policy, self.rewards, config, columns, shards, own, self.ledger)
        return GroupSampler(*common, self._reward_kl, self.precision, advantage_func)

    @property
    def best_policy(self) -> Any:
        """The policy to use after training, with merged adapters and, if ``ema_decay`` is set, averaged weights."""
        return without_lora(self._kept)

    @property
    def _kept(self) -> nn.Module:
        return self.average.module.eval() if self.average is not None else self.module

    def precision(self) -> torch.autocast:
        """The autocast context of the networks; accelerate's own setting can be chosen only once per process and is not used."""
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=self.bf16)

    # -- the loop

    def train(self) -> list[dict[str, float]]:
        """Train until ``max_steps`` updates are made, or the budget of the ledger, ``patience`` or ``on_update`` ends the run.

        Returns:
            The metrics of all updates that this object made.

        Raises:
            RewardError: if a reward fails, after a checkpoint of the last update was written. Called again, this method draws the
                same generation again, as a resumed run does.
            Interrupted: after Ctrl-C, likewise.
        """
        kept = self.checkpoints
        if kept is not None and self.processes.run_all(lambda: self.step == 0 and not kept.all())[0]:
            if self.pending is None:  # calls and draws since this object was created, such as those of an evaluation, count too
                self._safe = self.state.snapshot()
            self.save()
        try:
            shown = training_bar(self.step, self.config.max_steps, self.ledger) if self.processes.first else nullcontext()
            with interruptible() as stop, shown as show:
                while self.step < self.config.max_steps and not self._stopped(stop):
                    line = self.update()
                    if line is not None and show is not None:
                        show(self.step, line)
                    if line is None or self._ends_after(line):
                        break
                if any(self.processes.gather(bool(stop))):  # during the last update
                    self._interrupted()
            self.best.ended()
            if self.log is not None:
                self.log.finish(self.history)
        finally:
            self.learner.forget_tables()
            if self.log is not None:
                self.log.close()
        if self.config.load_best_model_at_end:
            self.best.load_best(self._kept)
        return self.history

    def _stopped(self, stop: object) -> bool:
        """Whether the run ends here in all processes, after a checkpoint was written.

        Raises:
            Interrupted: after Ctrl-C in any process.
        """
        asked, ends = (any(found) for found in zip(*self.processes.gather((bool(stop), self._over)), strict=True))
        if asked:
            self._interrupted()
        if ends:
            self.save()
        return ends

    def _interrupted(self) -> NoReturn:
        self.save()
        raise Interrupted(f"stopped at update {self.step} of {self.config.max_steps}")

    def _ends_after(self, line: Mapping[str, float]) -> bool:
        """Whether ``on_update`` ends the run after this update; a regular checkpoint is written before it is called."""
        if self.step % self.config.save_steps == 0 or self.step == self.config.max_steps:
            self.save()
        return ends_run(self.on_update, self, line)

    @property
    def _over(self) -> bool:
        """Whether no other generation is drawn: the budget is used up, or the policy is stale."""
        spent = self.ledger is not None and self.ledger.exhausted
        return self.pending is None and (spent or (self.patience is not None and self.patience.ends))

    def update(self) -> dict[str, float] | None:
        """Make one update; a new generation is drawn and scored first if the last one is used up.

        Returns:
            The metrics of the update; None if the budget ended while samples were scored, after a checkpoint was written.

        Raises:
            RewardError: if a reward fails, after a checkpoint of the last update was written.
        """
        start = time.perf_counter()
        device = self.accelerator.device
        restarts = self.pending is None and self.patience is not None and self.patience.restarts_now
        if restarts:  # the weights that follow belong to no update
            self.save()
            self.best.restarted()
        with tf32_products(self.config.tf32, device), deterministic(self.config.full_determinism):
            try:
                if self.pending is None:
                    with memory_advice("a generation", "lower generation_batch_size or per_device_batch_size"):
                        self._draw_and_score()
            except BudgetExhausted:
                self.save()
                return None
            except RewardError:
                if not restarts:
                    self.save()
                self.state.go_back(self._safe)  # this trainer can go on, too
                raise
            queue = cast(MiniBatches, self.pending)
            first = queue.done == 0
            with memory_advice("an update"):
                line = self._learn(queue)
        line["step_time"] = time.perf_counter() - start
        if self.checkpoints is not None and not self.history:
            self.checkpoints.check_metric(line)
        if first:
            self.best.drew(line)
        self.history.append(line)
        if self.log is not None:
            self.log.update(self.step, line)
        return line

    def generation(self) -> list[dict[str, float]]:
        """Make all updates, or the remaining ones, on one generation; returns the metrics of each update."""
        lines = [self.update()]
        while self.pending is not None and self.step < self.config.max_steps:
            lines.append(self.update())
        return [line for line in lines if line is not None]

    # -- drawing and scoring

    def _reward_kl(self, batch: Batch) -> Tensor | None:
        """KL of each trajectory to the reference if it is part of the reward, else None."""
        if self.reference is None or self.config.kl_in == "loss":
            return None
        with self.precision():
            return trajectory_kl(self.policy, self.reference, batch.rollout, batch.refined, self.config).cpu().double()

    def _draw_and_score(self) -> None:
        """Set :attr:`pending` to a new generation; if anything fails, checkpoints still hold the state after the last update."""
        self.state.restart_stale()
        before = calls_made(self.ledger) if self.patience is not None else None
        with self.state.buffers_kept():
            new = self.sampler.draw()
            metrics = generation_metrics(new, self.sample_metrics, self.log, self.ledger, before, self.processes)
            choices = [choose_steps(own, self.config, s.generator) for own, s in zip(new.rows, self.sampler.shards, strict=True)]
            queue = self._minibatches(new.rows, choices, metrics, self.config)
            old: list[list[Tensor | None]] = []  # not returned by the function below, as results are sent to all processes
            if queue.updates > 1:
                self.processes.run_all(lambda: old.extend(self.learner.old_log_probs(part) for part in queue.parts))
                queue.old = old
            self.processes.run_all(lambda: self.sampler.remember(new.mine))
        self.pending, self._safe = queue, self.state.snapshot()
        if self.log is not None:
            self.log.samples(self.step + 1, new)

    def _minibatches(
        self, rows: Sequence[Sequence[TrainRows]], choices: Sequence[StepChoice], metrics: Mapping[str, float], config: GRPOConfig
    ) -> MiniBatches:
        counts = list(chain(*self.processes.gather([choice.counts for choice in choices])))
        numbers = [shard.number for shard in self.sampler.shards]
        weights = [[window[k] for k in numbers] for window in window_weights(counts, config)]
        return MiniBatches.of(numbers, rows, choices, weights, config, metrics)

    def _learn(self, queue: MiniBatches) -> dict[str, float]:
        """Make the next update on a generation; returns its metrics."""
        micros, old = queue.next()
        made = self.learner.update(self.step, micros, old)
        check_names(queue.metrics, {*made, "step_time"})
        line = queue.metrics | made
        queue.done += 1
        self.step += 1
        if queue.done >= queue.updates:
            self.pending = None
            self.learner.forget_tables()
            if self.patience is not None and "oracle/new_calls" in line:  # not counted if patience was set in the middle of it
                self.patience.count(line["oracle/new_calls"], queue.done)
        return line if self.patience is None else line | self.patience.metrics()

    # -- checkpoints

    def save(self) -> None:
        """Write a checkpoint of the state after the last update, if there is a run folder; all processes must call this."""
        if self.checkpoints is None:
            return
        pending = tensors_to_cpu(queue_states(self.pending)) if self.pending is not None else None
        told = self.processes.gather((self._safe, pending))
        if any(self.processes.gather(self._due())):  # a budget may be used up in one process before another
            self.best.saved(self.step, fresh=self.pending is None)
        self.processes.run_all(lambda: self._write(told, self.log) if self.log is not None else None)

    def _due(self) -> bool:
        """Whether a checkpoint here is a regular one; only regular checkpoints are compared for the best."""
        return self.step % self.config.save_steps == 0 or self.step == self.config.max_steps or self._over or self.ended

    def _write(self, told: Sequence[tuple[Mapping[str, Any], list[Any] | None]], log: RunLog) -> None:
        pending = None
        if self.pending is not None:
            shards = [state for _, states in told for state in states or ()]
            pending = {"shards": shards, "shared": self.pending.metrics, "done": self.pending.done, "cut": cut_of(self.pending)}
        drawing = [snapshot for snapshot, _ in told]
        state = {"step": self.step, "rewards": reward_names(self.rewards), "pending": pending, "position": log.position()}
        state |= {"functions": self.functions, "config": self.settings, "device": self.accelerator.device.type}
        state |= {"best": self.best.state_dict(), "bf16": self.bf16, "passes": self.config.passes}
        state |= self.state.learning() | self.state.drawing(drawing)
        metadata = self.metadata | {"grpo_steps": self.step}
        cast(Checkpoints, self.checkpoints).save(
            self.step, self.best_policy, metadata=metadata, training=tensors_to_cpu(state), awaited=self.best.awaited
        )

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.step = int(state["step"])
        self.state.restore(state)
        if "best" in state:
            self.best.load_state_dict(state["best"])
        elif self._due():  # of an earlier version
            self.best.saved(self.step, fresh=state["pending"] is None)
        if state["pending"] is not None:
            self._restore_pending(state["pending"])
        if self.log is not None:
            self.log.restore(state["position"], self.step + (self.pending is not None))

    def _restore_pending(self, state: Mapping[str, Any]) -> None:
        """Continue between two updates of a generation."""
        trusted = trusted_packages(self.policy, self.sampler.columns)
        kept = [state["shards"][shard.number] for shard in self.sampler.shards]
        config = cut_as_before(self.config, state.get("cut", {}))  # missing in checkpoints of earlier versions
        read = [read_rows(part, trusted, self.accelerator.device, config) for part in kept]
        self.pending = self._minibatches([rows for rows, _ in read], [choice for _, choice in read], state["shared"], config)
        load_old(self.pending, kept, self.accelerator.device)
        self.pending.done = int(state["done"])
