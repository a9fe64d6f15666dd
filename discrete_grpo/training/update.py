"""One optimiser update: the terms of the loss, the statistics of its window, the forward and backward passes, the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from discrete_grpo.core.categorical import Scores, score_sites
from discrete_grpo.core.entropy import EntropyController, entropy_bonus, high_entropy, site_entropy, top_entropy_threshold
from discrete_grpo.core.kl import kl_term, trajectory_sum
from discrete_grpo.core.loss import Loss, grpo_loss, log_ratio, off_policy_rows
from discrete_grpo.core.own_surrogate import SurrogateFunc
from discrete_grpo.core.precision import widen, widest
from discrete_grpo.core.rollout import Policy, Rollout, Scorer, as_module, is_scorer
from discrete_grpo.training.compatibility import check_tables, exact_forward
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.minibatches import MicroBatch, passes
from discrete_grpo.training.optim import GradientSum, learning_rate, mix_reference, update_average
from discrete_grpo.training.reference_tables import ReferenceTables
from discrete_grpo.training.state import RunState

__all__ = [
    "Learner",
    "LossTerms",
    "UpdatePlan",
    "loss_terms",
    "micro_batch_loss",
    "plan_update",
    "policy_scores",
    "trajectory_kl",
    "update_metrics",
]

Reference = Policy | ReferenceTables


# -- the terms of the loss


@dataclass(frozen=True)
class LossTerms:
    """The terms of the loss of one forward pass, each [B, S, U].

    Attributes:
        scores: log-probs, entropy and exact KL.
        kl: the KL term of the loss, by estimator and direction; None if the loss has none.
        entropy: entropy with its gradient; None without an entropy bonus.
    """

    scores: Scores
    kl: Float[Tensor, "batch step site"] | None = None
    entropy: Float[Tensor, "batch step site"] | None = None


def policy_scores(policy: Policy, micro: MicroBatch, reference: Policy | None = None) -> Scores:
    """Log-probs and entropy of a micro-batch, and with a reference its exact KL."""
    return _score(policy, micro, reference).scores


def loss_terms(
    policy: Policy,
    micro: MicroBatch,
    reference: Reference | None,
    config: GRPOConfig,
    *,
    old_logp: Float[Tensor, "batch step site"] | None = None,
    bonus: bool = False,
) -> LossTerms:
    """Compute the differentiable terms of one forward pass.

    Args:
        policy: θ.
        micro: micro-batch to score.
        reference: frozen reference; None if there is no KL.
        config: settings, with the estimator and the direction of the KL.
        old_logp: log π_old, for the importance correction of an estimated KL.
        bonus: whether the entropy is needed with its gradient.
    """
    in_loss = reference is not None and config.kl_in != "reward"
    found = _score(policy, micro, reference, forward_gradient=in_loss and exact_forward(config), bonus=bonus)
    if not in_loss:
        return LossTerms(found.scores, None, found.entropy)
    ref_logp = None if config.kl_estimator == "exact" else found.ref_logp()
    options: dict[str, Any] = {"ref_logp": ref_logp, "old_logp": old_logp, "corrected": config.use_bias_correction_kl}
    return LossTerms(found.scores, kl_term(config.kl_estimator, config.kl_direction, found.scores, **options), found.entropy)


@dataclass(frozen=True)
class _Scored:
    """Scores of a micro-batch, the entropy with its gradient, and a function that returns log π_ref of the classes drawn."""

    scores: Scores
    entropy: Float[Tensor, "batch step site"] | None
    ref_logp: Callable[[], Float[Tensor, "batch step site"]]


def _score(
    policy: Policy, micro: MicroBatch, reference: Reference | None, *, forward_gradient: bool = False, bonus: bool = False
) -> _Scored:
    if is_scorer(policy):
        own = policy.score(micro.rollout, micro.steps, cast(Policy | None, reference))  # which has no tables to keep
        return _Scored(own, None, lambda: _reference_scores(cast(Scorer, reference), micro).logp)
    sites = policy.sites(micro.rollout, micro.steps)
    if reference is None:
        other = None
    else:
        with torch.no_grad():
            other = reference.sites(micro.rollout, micro.steps)
    scores = score_sites(sites, other, forward_gradient=forward_gradient)
    return _Scored(scores, site_entropy(sites) if bonus else None, lambda: score_sites(other or ()).logp)


@torch.no_grad()
def _reference_scores(reference: Scorer, micro: MicroBatch) -> Scores:
    return reference.score(micro.rollout, micro.steps)


@torch.no_grad()
def trajectory_kl(
    policy: Policy, reference: Policy, rollout: Rollout, refined: Bool[Tensor, " batch"], config: GRPOConfig
) -> Float[Tensor, " batch"]:
    """KL of each trajectory to the reference by the configured estimator, summed over **all** of its sites, in float64."""
    device = rollout.group.device
    total = torch.zeros(len(rollout), dtype=widest(device), device=device)
    steps = torch.arange(rollout.num_steps, device=device).expand(len(rollout), -1)
    refined = refined.to(device)
    for rows, part, pieces in passes(rollout, steps, torch.ones_like(refined), refined, config):
        for piece in pieces:
            found = _score(policy, MicroBatch(part, piece, total[rows], total[rows], total[rows], rows), reference)
            ref_logp = None if config.kl_estimator == "exact" else found.ref_logp()
            values = kl_term(config.kl_estimator, config.kl_direction, found.scores, ref_logp=ref_logp)
            total[rows] += trajectory_sum(values, found.scores.mask)
    return total


# -- statistics of the whole window, computed before the update


@dataclass(frozen=True)
class UpdatePlan:
    """Statistics of the whole window of an update, known before its first backward pass.

    Attributes:
        threshold: entropy below which a site gets no gradient from the policy term; None means that all sites get one.
        drift: mean of log π_old - log π_θ over the sites of each row of the generation; None means that no row is dropped.
        mean_entropy: mean entropy of the sites of the window; None if it was not computed.
        entropy_coef: coefficient c of the entropy bonus.
    """

    threshold: Float[Tensor, ""] | None = None
    drift: Float[Tensor, " row"] | None = None
    mean_entropy: float | None = None
    entropy_coef: float = 0.0

    def keep(self, scores: Scores, micro: MicroBatch, config: GRPOConfig) -> Tensor | None:
        """Sites that get a gradient from the policy term, in a shape that broadcasts to [B, S, U]; None means all of them."""
        on = None if self.threshold is None else high_entropy(scores.entropy, scores.mask, self.threshold)
        if self.drift is None or config.off_policy_mask_threshold is None:
            return on
        rows = off_policy_rows(self.drift[micro.rows], micro.advantage, config.off_policy_mask_threshold)[:, None, None]
        return rows if on is None else on & rows


def _alone(work: Callable[[], Tensor]) -> Sequence[Tensor]:
    return [work()]


@torch.no_grad()
def plan_update(
    policy: Policy,
    micros: Sequence[MicroBatch],
    old: Sequence[Tensor | None],
    config: GRPOConfig,
    controller: EntropyController | None = None,
    run_all: Callable[[Callable[[], Tensor]], Sequence[Tensor]] = _alone,
) -> UpdatePlan:
    """Score the whole window once without gradient, if an option needs its statistics.

    The micro-batches are those of the update, so that the statistics hold for the update to the bit.

    Args:
        policy: policy that is trained.
        micros: micro-batches of this process.
        old: log π_old of each.
        config: settings.
        controller: controller of the entropy bonus; None if its weight is fixed.
        run_all: function that runs its argument in all processes and returns all results.
    """
    select, adapt = config.top_entropy_quantile < 1, controller is not None
    drop = config.off_policy_mask_threshold is not None and any(o is not None for o in old)
    if not (select or adapt or drop):
        return UpdatePlan(entropy_coef=config.entropy_coef)
    drift: list[Tensor] = []

    def look() -> Tensor:
        entropies, gap = _look(policy, micros, old)
        drift.append(gap)
        return entropies

    every = torch.cat(list(run_all(look))) if select or adapt else look()
    mean = float(every.mean()) if len(every) else math.nan
    return UpdatePlan(
        threshold=top_entropy_threshold(every, config.top_entropy_quantile) if select else None,
        drift=drift[0] if drop else None,
        mean_entropy=mean,
        entropy_coef=config.entropy_coef if controller is None else controller.coef_at(mean),
    )


def _look(
    policy: Policy, micros: Sequence[MicroBatch], old: Sequence[Tensor | None]
) -> tuple[Float[Tensor, " site"], Float[Tensor, " row"]]:
    """Entropy of each counted site, on the CPU, and the drift of each row from π_old."""
    count = 1 + int(torch.stack([micro.rows.max() for micro in micros]).max()) if micros else 0
    device = micros[0].rows.device if micros else torch.device("cpu")
    gap, sites = (torch.zeros(count, dtype=widest(device), device=device) for _ in range(2))
    entropies, counted = [], []
    for micro, old_logp in zip(micros, old, strict=True):
        scores = policy_scores(policy, micro)
        on = scores.mask & (micro.weight > 0)[:, None, None]
        entropies.append(scores.entropy.flatten())
        counted.append(on.flatten())
        if old_logp is not None:
            gap.index_add_(0, micro.rows, trajectory_sum(old_logp - scores.logp, scores.mask))
            sites.index_add_(0, micro.rows, widen(scores.mask.sum((-2, -1))))
    if not micros:
        return torch.empty(0, dtype=torch.float64), gap
    return torch.cat(entropies).cpu()[torch.cat(counted).cpu()].double(), gap / sites.clamp_min(1)


def micro_batch_loss(
    terms: LossTerms,
    micro: MicroBatch,
    old_logp: Float[Tensor, "batch step site"] | None,
    plan: UpdatePlan,
    config: GRPOConfig,
    surrogate_func: SurrogateFunc | None = None,
) -> Loss:
    """The loss of one micro-batch; the losses of all micro-batches add up to the loss of the update."""
    part = grpo_loss(
        terms.scores,
        old_logp,
        micro.advantage,
        micro.weight,
        level=config.importance_sampling_level,
        loss_type=config.loss_type,
        epsilon=config.epsilon,
        epsilon_high=config.epsilon_high,
        delta=config.delta,
        sapo_temperature_pos=config.sapo_temperature_pos,
        sapo_temperature_neg=config.sapo_temperature_neg,
        beta=0.0 if config.kl_in == "reward" else config.beta,
        penalty=terms.kl,
        keep=plan.keep(terms.scores, micro, config),
        surrogate_func=surrogate_func,
    )
    sums = part.sums | _replay_sums(terms.scores, micro)
    if terms.entropy is None:
        return Loss(part.loss, sums)
    return Loss(part.loss + entropy_bonus(terms.entropy, micro.mean_weight, plan.entropy_coef), sums)


@torch.no_grad()
def _replay_sums(scores: Scores, micro: MicroBatch) -> dict[str, Tensor]:
    if micro.stored is None:
        return {}
    ratio = log_ratio(scores.logp, micro.stored, scores.mask, "token").exp()
    return {"replay_ratio": widen((ratio * scores.mask).sum()), "replay_sites": widen(scores.mask.sum())}


def update_metrics(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Means of the metrics of an update, under TRL's names, from sums over its sites."""
    n = max(1.0, float(sums["sites"]))
    line = {"policy_loss": float(sums["policy_loss"]), "entropy": float(sums["entropy"]) / n}
    if "clip_low" in sums:
        low, high = float(sums["clip_low"]) / n, float(sums["clip_high"]) / n
        line |= {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low + high}
    if "cispo_clip" in sums:
        line["cispo_clip_ratio"] = float(sums["cispo_clip"]) / n
    if "replay_sites" in sums:
        line["replay/ratio"] = float(sums["replay_ratio"]) / max(1.0, float(sums["replay_sites"]))
    for name, value in sums.items():  # means over the sites of one kind, where kinds have names
        kind, _, what = name.rpartition("/")
        if kind and what != "sites":
            line[f"fields/{kind}/{what}"] = float(value) / max(1.0, float(sums[f"{kind}/sites"]))
    return line | {name: float(sums[name]) / n for name in ("kl", "kl_forward") if name in sums}


def _total(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Sums of scalars of one name, in float64 on the CPU; all of them are read from the device at once."""
    names = [name for part in parts for name in part]
    if not names:
        return {}
    values = torch.stack([widen(value) for part in parts for value in part.values()]).cpu().double()
    sums = dict[str, Tensor]()
    for name, value in zip(names, values.unbind(), strict=True):
        sums[name] = value + sums.get(name, 0.0)
    return sums


# -- the update


@dataclass(frozen=True)
class Learner:
    """Makes the optimiser updates of a run, the same in all processes.

    Attributes:
        policy: policy that is trained.
        state: state of the run, with the optimizer, the reference and the moving average.
        config: settings.
        backward: function that computes the gradients of a loss.
        precision: function that returns the autocast context of the networks.
        surrogate_func: function that computes the surrogate; None for that of the settings.
        tables: tables of the reference that are kept over passes; None computes them in each pass.
    """

    policy: Policy
    state: RunState
    config: GRPOConfig
    backward: Callable[[Tensor], None]
    precision: Callable[[], AbstractContextManager[Any]]
    surrogate_func: SurrogateFunc | None = None
    tables: ReferenceTables | None = None

    @torch.no_grad()
    def old_log_probs(self, micros: Sequence[MicroBatch]) -> list[Tensor | None]:
        """Log π_old of each micro-batch, stored or computed in the passes of the update, so that its first ratio is exactly 1."""
        with self.precision():
            return [policy_scores(self.policy, m).logp if m.stored is None else m.stored for m in micros]

    def update(self, step: int, micros: Sequence[MicroBatch], old: Sequence[Tensor | None]) -> dict[str, float]:
        """Make update ``step``, counted from 0, on the micro-batches of this process; returns its metrics.

        Raises:
            FloatingPointError: if the norm of the gradient is not finite.
        """
        c, optimizer, processes = self.config, self.state.optimizer, self.state.processes
        rate = learning_rate(step, c)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        with self.precision():
            if step == 0:
                processes.run_all(lambda: check_tables(self.policy, micros[0].rollout, micros[0].steps) if micros else None)
            plan = plan_update(self.policy, micros, old, c, self.state.controller, processes.run_all)
        gradient = GradientSum(self.state.parameters)
        parts = processes.run_all(lambda: self._backward(micros, old, plan, gradient))
        gradient.finish(processes)
        sums = {name: cast(Tensor, sum(part[name] for part in parts if name in part)) for name in {n: 0 for p in parts for n in p}}
        loss = float(sums.pop("loss", torch.zeros(())))
        most = c.max_grad_norm if c.max_grad_norm is not None else math.inf
        norm = float(nn.utils.clip_grad_norm_(self.state.parameters, most))
        if not math.isfinite(norm):
            raise FloatingPointError(f"gradient norm is {norm} at update {step}; lower learning_rate or raise beta")
        optimizer.step()
        self._follow(step, plan.mean_entropy)
        line = {"loss": loss, "grad_norm": norm, "learning_rate": rate} | update_metrics(sums)
        return line | ({"entropy_coef": plan.entropy_coef} if c.entropy_coef > 0 or self.state.controller is not None else {})

    def forget_tables(self) -> None:
        """Forget the tables of the reference: a generation is used up, or the reference has moved."""
        if self.tables is not None:
            self.tables.clear()

    def _backward(
        self, micros: Sequence[MicroBatch], old: Sequence[Tensor | None], plan: UpdatePlan, gradient: GradientSum
    ) -> dict[str, Tensor]:
        """Forward and backward passes of this process; returns the loss and the sums that metrics are computed from."""
        reference = self.tables or self.state.reference
        found: list[dict[str, Tensor]] = []  # read at the end: every read makes an accelerator wait
        for _, shard in groupby(zip(micros, old, strict=True), key=lambda pair: pair[0].shard):
            for micro, old_logp in shard:
                bonus = plan.entropy_coef > 0
                with self.precision():
                    terms = loss_terms(self.policy, micro, reference, self.config, old_logp=old_logp, bonus=bonus)
                part = micro_batch_loss(terms, micro, old_logp, plan, self.config, self.surrogate_func)
                self.backward(part.loss)
                found.append({**part.sums, "loss": part.loss.detach()})
            gradient.add()
        return _total(found)

    def _follow(self, step: int, mean_entropy: float | None) -> None:
        """Update the moving average, the reference and the coefficient of the entropy bonus after a step of the optimizer."""
        c, state = self.config, self.state
        if state.average is not None:
            update_average(state.average, state.module)
        if c.sync_ref_model and state.reference is not None and (step + 1) % c.ref_model_sync_steps == 0:
            mix_reference(as_module(state.reference), state.module, c.ref_model_mixup_alpha)
            self.forget_tables()
        if state.controller is not None and mean_entropy is not None and not math.isnan(mean_entropy):
            state.controller.observe(mean_entropy)
