"""Likelihood training of a policy's network: AdamW, cosine decay, a moving average of the weights, exact resume.

Works for any policy with ``likelihood_loss(batch, generator=...)`` and any data set with ``batch(rows)``.

Under ``torchrun`` or ``accelerate launch`` the processes share every batch, and a run equals that of one process up to the
rounding of sums. Each process draws the times and the noise of the whole batch, which is cheap compared with a forward pass, from
a generator that is in the same state in all of them, and then computes its own rows. A checkpoint therefore has one generator, and
a run can be resumed with any number of processes. Only dropout differs, as each process draws its own.
"""

from __future__ import annotations

import datetime
import inspect
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from discrete_grpo.core.description import description
from discrete_grpo.core.interrupt import Interrupt, Interrupted, interruptible
from discrete_grpo.core.precision import place, widen
from discrete_grpo.core.rollout import as_module
from discrete_grpo.core.seeding import seeded
from discrete_grpo.runs.checkpoint import Checkpoints, load_training, load_weights, save
from discrete_grpo.runs.console import progress
from discrete_grpo.runs.recorder import Recorder
from discrete_grpo.runs.serialization import check_savable
from discrete_grpo.training.bf16 import decide_and_tell
from discrete_grpo.training.config import GRPOConfig, PretrainConfig
from discrete_grpo.training.data_on_device import data_on_device
from discrete_grpo.training.distributed import ProcessGroup, RankShare, accelerator
from discrete_grpo.training.lora import has_lora, merge_lora, without_lora
from discrete_grpo.training.network import check_determinism, checkpoint_layers, compile_network, deterministic, tf32_products
from discrete_grpo.training.optim import GradientSum, averaged, learning_rate, load_optimizer, update_average
from discrete_grpo.training.recorded_passes import RecordedPasses
from discrete_grpo.training.state import check_device_kind, restore_weights

__all__ = ["Dataset", "LikelihoodPolicy", "Pretrainer", "decayed_rate"]


@runtime_checkable
class Dataset(Protocol):
    """Samples by row number; rows of similar ``sizes`` are batched together."""

    @property
    def sizes(self) -> Tensor:
        """A measure of length or graph size [M]."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def batch(self, rows: Tensor) -> Any:
        """The samples at ``rows``, in the form that ``likelihood_loss`` takes, with a method ``to(device)``."""
        ...


@runtime_checkable
class LikelihoodPolicy(Protocol):
    """A policy that can be trained by likelihood."""

    def likelihood_loss(self, batch: Any, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """The ``loss`` to minimise, and other scalars to log.

        With several processes it is also given ``share``, see :class:`~discrete_grpo.core.batch_share.BatchShare`.
        """
        ...


def decayed_rate(step: int, config: PretrainConfig) -> float:
    """Learning rate of update ``step``, counted from 0: a linear warm-up, then half a cosine to ``min_lr_rate`` of the largest.

    The curve is that of the GRPO trainer with ``lr_scheduler_type="cosine"``, which ends at 0, raised at its end.

    >>> config = PretrainConfig(max_steps=100, warmup_steps=10, learning_rate=1.0)
    >>> [round(decayed_rate(s, config), 3) for s in (0, 9, 10, 55, 100)]
    [0.1, 1.0, 1.0, 0.505, 0.01]
    """
    warmup, total = config.warmup_steps, config.max_steps
    curve = GRPOConfig(max_steps=total, warmup_steps=warmup, learning_rate=1.0, lr_scheduler_type="cosine")
    share = learning_rate(step, curve)
    last = config.min_lr_rate
    return config.learning_rate * (share if step < warmup else last + (1 - last) * share)


def batches(sizes: Tensor, batch_size: int, seed: int, epoch: int, window: int = 32) -> Iterator[Tensor]:
    """Row numbers of every batch of an epoch: shuffled, then sorted by size within windows, which keeps padding small.

    The batches of a window are of equal size up to one row: a short last batch would always hold the largest samples of its window,
    whose weight in an update would then be larger than that of others.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(sizes), generator=generator)
    for rows in order.split(batch_size * window):
        parts = rows[torch.argsort(sizes[rows], stable=True)].tensor_split(-(-len(rows) // batch_size))
        for k in torch.randperm(len(parts), generator=generator).tolist():
            yield parts[k]


class Pretrainer:
    """Trains ``policy`` on ``data`` and logs into the run folder ``run``; :meth:`train` can continue a stopped run.

    Args:
        policy: a module with ``likelihood_loss`` and ``init_args``.
        data: the training set.
        config: settings.
        run: folder for ``metrics.jsonl``, checkpoints and the exported ``policy/``.
        metadata: JSON values that every checkpoint stores, together with the current ``date``.
        resume: whether to continue from the newest checkpoint of ``run``, or from the start if it was killed before the first.
        evaluate: computes metrics of the policy with averaged weights, which are logged at every checkpoint. The checkpoint is
            written first, so that a run that is killed or stopped meanwhile loses no update; a resumed run evaluates again.

    Raises:
        ValueError: if ``data`` is empty; if ``run`` holds another run and ``resume`` is false; or with several processes, if
            ``likelihood_loss`` of the policy has no argument ``share``.
    """

    def __init__(
        self,
        policy: Any,
        data: Dataset,
        config: PretrainConfig,
        run: str | Path,
        *,
        metadata: Mapping[str, Any] | None = None,
        resume: bool = False,
        evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    ) -> None:
        if len(data) == 0:
            raise ValueError("data: 0 samples, expected at least one")
        self.config, self.data, self.evaluate = config, data, evaluate
        self.metadata = {**description(policy), **(metadata or {}), "date": datetime.date.today().isoformat()}
        self.run = Path(run)
        self.accelerator = accelerator()
        self.processes = ProcessGroup(self.accelerator)
        self._check_policy(policy)
        check_determinism(config.full_determinism, self.accelerator.device)
        self._on_device = data_on_device(data, policy, self.accelerator.device, config.batch_size)
        self.policy: Any = policy.to(self.accelerator.device)
        first = [*self.policy.parameters(), *self.policy.buffers()]  # a network of your own may begin with others
        self.processes.copy_from_first(first)
        if config.checkpoint_layers is not None:
            checkpoint_layers(self.policy, config.checkpoint_layers)
        self.average = averaged(self.policy, config.ema_decay)
        if config.torch_compile:
            compile_network(self.policy)
        decay = [p for p in self.policy.parameters() if p.ndim > 1]
        rest = [p for p in self.policy.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        fused = True if self.accelerator.device.type == "cuda" else None
        self.optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.99), fused=fused)
        self.generator = torch.Generator(self.accelerator.device).manual_seed(config.seed)
        self._recorded = self._recording()
        self.recorder = Recorder(self.run) if self.processes.first else None
        self.checkpoints = Checkpoints(
            self.run,
            config.save_total_limit,
            metric_for_best_model=config.metric_for_best_model,
            greater_is_better=config.greater_is_better,
        )
        self._lines: list[Mapping[str, float]] = []  # the metrics logged since the newest regular checkpoint
        self.step = 0
        self._saved: int | None = None  # the step of the newest checkpoint
        self._unmeasured = False  # whether the evaluation of that checkpoint is still to be made
        self._stop = Interrupt()
        self._sums: dict[str, float] = {}  # sums of the values since the last line of metrics
        self._summed = 0  # number of updates in these sums
        if not resume:
            self.checkpoints.check_new()
        stored = load_training(self.checkpoints.latest()) if resume and self.checkpoints.all() else None
        self.bf16 = decide_and_tell(config.bf16, self.processes, kept=None if stored is None else stored.get("bf16"))
        if stored is not None:
            self._restore(stored)
        elif resume and self.recorder is not None:  # killed before its first checkpoint
            self.recorder.restore(None)

    def _check_policy(self, policy: Any) -> None:
        if self.processes.count > 1 and "share" not in inspect.signature(policy.likelihood_loss).parameters:
            told = f"policy: likelihood_loss of {type(policy).__name__} has no argument share"
            raise ValueError(f"{told}, expected one with several processes ({self.processes.count})")
        check_savable("policy", policy)
        as_module(policy)

    def _tell(self, line: str) -> None:
        if self.processes.first:
            print(line, file=sys.stderr)

    @property
    def averaged(self) -> Any:
        """The policy with averaged weights and merged adapters, in eval mode, which is the one that is exported."""
        return without_lora(self.average.module.eval())

    def train(self) -> Path:
        """Train to ``max_steps`` and export the averaged policy to ``RUN/policy``; returns that folder.

        Raises:
            Interrupted: after Ctrl-C, once a checkpoint is saved; an evaluation is ended at once.
        """
        with interruptible() as self._stop:
            if self._unmeasured:
                self._measure()
            self._loop()
            if self._saved != self.step:
                self._save()
        if self.step < self.config.max_steps:
            raise Interrupted(f"stopped at update {self.step} of {self.config.max_steps}")
        if self.config.load_best_model_at_end and (best := self.checkpoints.best()) is not None:
            kept = self.average.module.eval()
            load_weights(best, merge_lora(kept) if has_lora(kept) else kept)
        folder, metadata = self.run / "policy", self.metadata | {"pretraining_steps": self.step}
        self.processes.run_all(lambda: save(folder, self.averaged, metadata=metadata) if self.processes.first else None)
        return folder

    def _loop(self) -> None:
        config, since, seen = self.config, time.perf_counter(), 0
        shown = progress("pretraining", config.max_steps, done=self.step) if self.processes.first else nullcontext()
        with shown as bar:
            for rows in self._rows():
                found = self._update(rows)
                seen += len(rows)
                if not self._lines and not self._sums:
                    self._check_metric(found)
                for name, value in found.items():
                    self._sums[name] = self._sums.get(name, 0.0) + value
                self.step, self._summed = self.step + 1, self._summed + 1
                if bar is not None:
                    bar.advance(1, loss=self._sums["loss"] / self._summed)
                if self.step % config.log_steps == 0 or self.step == config.max_steps:
                    line = {name: value / self._summed for name, value in self._sums.items()}
                    rate = seen / (time.perf_counter() - since)
                    if self.recorder is not None:
                        self.recorder.record(self.step, line | {"samples_per_second": rate})
                    self._lines.append(line)
                    since, seen, self._sums, self._summed = time.perf_counter(), 0, {}, 0
                if self.processes.any([bool(self._stop)])[0]:  # in any process, so that all stop after the same update
                    return
                if self.step % config.save_steps == 0 and self.step < config.max_steps:
                    self._save()

    def _check_metric(self, found: Mapping[str, float]) -> None:
        """At the first update, refuse a ``metric_for_best_model`` that no line will have; evaluation metrics are checked later."""
        name = self.config.metric_for_best_model
        if name is not None and not (name.startswith("eval/") and self.evaluate is not None):
            self.checkpoints.check_metric(found)

    def _rows(self) -> Iterator[Tensor]:
        """Row numbers of the remaining batches; the position within the epoch follows from the step alone."""
        per_epoch = math.ceil(len(self.data) / self.config.batch_size)
        while self.step < self.config.max_steps:
            epoch, skip = divmod(self.step, per_epoch)
            for k, rows in enumerate(batches(self.data.sizes, self.config.batch_size, self.config.seed, epoch)):
                if k >= skip and self.step < self.config.max_steps:
                    yield rows

    def _update(self, rows: Tensor) -> dict[str, float]:
        self.policy.train()
        rate = decayed_rate(self.step, self.config)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        device = self.accelerator.device
        with tf32_products(self.config.tf32, device), deterministic(self.config.full_determinism):
            losses = self._gradients(rows)
        if self.processes.count > 1:
            gradient = GradientSum(list(self.policy.parameters()))
            gradient.add()
            gradient.finish(self.processes)
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm)
        values = torch.stack([widen(torch.as_tensor(x).detach().to(device)) for x in (*losses.values(), norm)]).tolist()  # one wait
        found = dict(zip((*losses, "grad_norm"), values, strict=True))
        if not math.isfinite(found["grad_norm"]):
            advice = "lower learning_rate" if math.isfinite(found["loss"]) else "the loss is no number: see what the network gives"
            told = f"pretraining: gradient norm is {found['grad_norm']} at update {self.step + 1}"
            raise FloatingPointError(f"{told}; {advice}")
        self.optimizer.step()
        update_average(self.average, self.policy)
        return found | {"learning_rate": rate}

    def _gradients(self, rows: Tensor) -> dict[str, Tensor]:
        """The losses of a batch, whose gradients are left at the weights."""
        device = self.accelerator.device
        batch = self._batch(rows, device) if self._on_device is None else self._on_device.batch(rows)
        share = {"share": RankShare(self.processes, len(rows))} if self.processes.count > 1 else {}
        self.optimizer.zero_grad(set_to_none=True)
        # Dropout takes no generator, so the global one is seeded by the step: a resumed run then repeats the same dropout.
        with seeded(self.config.seed * 1_000_003 + self.step + (self.processes.rank << 40), device):
            if self._recorded is not None and (found := self._recorded.run(batch)) is not None:
                return found
            losses = self._losses(batch, **share)
        losses["loss"].backward()
        return losses

    def _losses(self, batch: Any, **share: RankShare) -> dict[str, Tensor]:
        with torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=self.bf16):
            return dict(self.policy.likelihood_loss(batch, generator=self.generator, **share))

    def _recording(self) -> RecordedPasses | None:
        """The passes as CUDA graphs; None on another device, and with several processes, whose losses exchange sums."""
        if not self.config.cuda_graphs or self.accelerator.device.type != "cuda" or self.processes.count > 1:
            return None
        return RecordedPasses(self._losses, list(self.policy.parameters()), self.generator)

    def _batch(self, rows: Tensor, device: torch.device) -> Any:
        """A batch that is made on the CPU and moved to ``device``."""
        host = self.data.batch(rows)
        check = getattr(self.policy, "check_batch", None)  # the part of the loss that reads nothing from a GPU
        if device.type != "cpu" and check is not None:
            check(host)
        return place(host, device) if isinstance(host, Tensor) else host.to(device)

    def _save(self) -> None:
        """Write a checkpoint, then evaluate if due, which can take long, and write the checkpoint again with the result."""
        due = self._due()
        self._unmeasured = due and self.evaluate is not None
        self._write(regular=due and not self._unmeasured)
        if self._unmeasured:
            self._measure()

    def _due(self) -> bool:
        """Whether a checkpoint here is a regular one, and not one of an interrupt; only regular ones are compared for the best."""
        return self.step % self.config.save_steps == 0 or self.step == self.config.max_steps

    def _measure(self) -> None:
        """Evaluate in the first process and complete the checkpoint of this step.

        Raises:
            Interrupted: if a stop was requested before the end of the evaluation, which then logs nothing.
        """
        if not self.processes.run_all(lambda: self._evaluated(self.recorder) if self.recorder is not None else True)[0]:
            raise Interrupted(f"stopped at update {self.step} of {self.config.max_steps}, before the end of its evaluation")
        self._unmeasured = False
        self._write(regular=True)

    def _evaluated(self, recorder: Recorder) -> bool:
        """Log the metrics of the averaged policy; returns whether no stop came before they were there."""
        if self.evaluate is None:  # a run that goes on without evaluation
            return True
        try:
            with self._stop.cutting():
                found = {f"eval/{k}": v for k, v in self.evaluate(self.averaged).items()}
        except Interrupted:
            return False
        recorder.record(self.step, found)
        self._lines.append(found)
        return True

    def _write(self, *, regular: bool) -> None:
        """Write a checkpoint in the first process; the others wait, and fail if it does.

        Args:
            regular: whether the lines since the last regular checkpoint are those of this one, and it is compared for the best.
        """
        self.processes.run_all(lambda: self._checkpoint(self.recorder, regular) if self.recorder is not None else None)
        self._saved = self.step
        self._lines = [] if regular else self._lines

    def _checkpoint(self, recorder: Recorder, regular: bool) -> None:
        state = {
            "step": self.step,
            "weights": self.policy.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "device": self.accelerator.device.type,
            "sums": self._sums,
            "summed": self._summed,
            "lines": [] if regular else [dict(line) for line in self._lines],
            "unmeasured": self._unmeasured,
            "bf16": self.bf16,
            "processes": self.processes.count,
            "position": recorder.position(),
        }
        metadata = self.metadata | {"pretraining_steps": self.step}
        lines = self._lines if regular else []
        self.checkpoints.save(self.step, self.averaged, metadata=metadata, training=state, lines=lines)
        if regular and self.evaluate is not None and (self.config.metric_for_best_model or "").startswith("eval/"):
            self.checkpoints.check_metric({name for line in self._lines for name in line})

    def _restore(self, state: Mapping[str, Any]) -> None:
        check_device_kind(state, state["generator"], self.accelerator.device)
        self.step = self._saved = int(state["step"])
        self._sums, self._lines = dict(state["sums"]), list(state.get("lines", ()))
        self._unmeasured = bool(state.get("unmeasured", False))
        self._summed = state.get("summed", self.step % self.config.log_steps if self._sums else 0)  # older checkpoints have none
        restore_weights(self.policy, state["weights"])
        self.average.load_state_dict(state["average"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.generator.set_state(state["generator"])
        if self.recorder is not None:
            self.recorder.restore(state["position"])
        if (before := state.get("processes", 1)) != (now := self.processes.count):
            self._tell(f"processes: {before} -> {now}; batches and noise stay as they were, sums are rounded otherwise")
