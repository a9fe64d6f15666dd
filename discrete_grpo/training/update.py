"""The terms of one optimiser update: what is computed from the scores of its forward passes, and what must be known before."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from discrete_grpo.core.categorical import Scores, score_sites
from discrete_grpo.core.entropy import EntropyController, entropy_bonus, high_entropy, site_entropy, top_entropy_threshold
from discrete_grpo.core.kl import forward_estimate, forward_kl, importance_corrected, reverse_estimate, trajectory_sum
from discrete_grpo.core.loss import Loss, grpo_loss, log_ratio, off_policy_rows
from discrete_grpo.core.precision import widen, widest
from discrete_grpo.core.rollout import Policy, Rollout, Scorer
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.minibatches import Chunk, passes

__all__ = [
    "Plan",
    "Terms",
    "check_scorer",
    "chunk_loss",
    "plan_update",
    "policy_scores",
    "terms_of",
    "trajectory_kl",
    "update_metrics",
]


# -- the terms of the loss


@dataclass(frozen=True)
class Terms:
    """What the loss is made of, each [B, S, U].

    Attributes:
        scores: log-probs, entropy and KL.
        penalty: the KL term where it is not the exact KL(π_θ ‖ π_ref); None: that is ``scores.kl``.
        entropy: differentiable; None without a bonus.
    """

    scores: Scores
    penalty: Float[Tensor, "batch step site"] | None = None
    entropy: Float[Tensor, "batch step site"] | None = None


def check_scorer(policy: Policy, config: GRPOConfig) -> None:
    """Raise for options that need tables which a policy with scores of its own does not give.

    Raises:
        ValueError: naming the option.
    """
    if not isinstance(policy, Scorer):
        return
    said = f"with a policy that gives its scores itself ({type(policy).__name__})"
    if config.entropy_coef > 0 or config.use_adaptive_entropy:
        raise ValueError(f"entropy_coef: {config.entropy_coef}, expected 0 and no use_adaptive_entropy {said}")
    if config.replay_samples > 0:
        raise ValueError(f"replay_samples: {config.replay_samples}, expected 0 {said}")
    penalised = config.beta > 0 and config.kl_in != "reward"
    if penalised and _exact_forward(config) and not getattr(policy, "forward_kl_gradient", False):
        raise ValueError(f"kl_direction: 'forward', expected reverse, or an estimate {said} without a gradient of kl_forward")


def _exact_forward(config: GRPOConfig) -> bool:
    return (config.kl_estimator, config.kl_direction) == ("exact", "forward")


def policy_scores(policy: Policy, chunk: Chunk, reference: Policy | None = None) -> Scores:
    """Log-probs and entropy, and with a reference the exact KL, of the steps of a chunk."""
    if isinstance(policy, Scorer):
        return policy.score(chunk.rollout, chunk.steps, reference)
    sites = policy.sites(chunk.rollout, chunk.steps)
    if reference is None:
        return score_sites(sites)
    with torch.no_grad():
        other = reference.sites(chunk.rollout, chunk.steps)
    return score_sites(sites, other)


def _reference_log_probs(reference: Policy, chunk: Chunk) -> Float[Tensor, "batch step site"]:
    with torch.no_grad():
        return policy_scores(reference, chunk).logp


def _estimate(scores: Scores, ref_logp: Tensor, config: GRPOConfig) -> Tensor:
    estimate = reverse_estimate if config.kl_direction == "reverse" else forward_estimate
    return estimate(scores.logp, ref_logp, scores.mask, config.kl_estimator)  # type: ignore[arg-type]  # never "exact" here


def terms_of(
    policy: Policy,
    chunk: Chunk,
    reference: Policy | None,
    config: GRPOConfig,
    *,
    old_logp: Float[Tensor, "batch step site"] | None = None,
    bonus: bool = False,
) -> Terms:
    """The differentiable terms of one forward pass.

    Args:
        policy: θ.
        chunk: what is scored.
        reference: frozen; None: there is no KL.
        config: which KL it is.
        old_logp: log π_old, for the importance correction of an estimate.
        bonus: whether the entropy is wanted with its gradient.
    """
    in_loss = reference is not None and config.kl_in != "reward"
    forward = in_loss and _exact_forward(config)
    if bonus or (forward and not isinstance(policy, Scorer)):
        return _terms_of_tables(policy, chunk, reference, config, in_loss, bonus, old_logp)
    scores = policy_scores(policy, chunk, reference)
    if forward:
        return Terms(scores, scores.kl_forward)
    if reference is None or not in_loss or config.kl_estimator == "exact":
        return Terms(scores)
    return Terms(scores, _penalty(scores, _reference_log_probs(reference, chunk), old_logp, config))


def _penalty(scores: Scores, ref_logp: Tensor, old_logp: Tensor | None, config: GRPOConfig) -> Tensor:
    values = _estimate(scores, ref_logp, config)
    if not config.use_bias_correction_kl:
        return values
    return importance_corrected(values, scores.logp, old_logp, scores.mask, config.kl_estimator)  # type: ignore[arg-type]


def _terms_of_tables(
    policy: Policy,
    chunk: Chunk,
    reference: Policy | None,
    config: GRPOConfig,
    in_loss: bool,
    bonus: bool,
    old_logp: Tensor | None,
) -> Terms:
    sites = policy.sites(chunk.rollout, chunk.steps)
    entropy = site_entropy(sites) if bonus else None
    if reference is None:
        return Terms(score_sites(sites), None, entropy)
    with torch.no_grad():
        other = reference.sites(chunk.rollout, chunk.steps)
    scores = score_sites(sites, other)
    if not in_loss or (config.kl_estimator, config.kl_direction) == ("exact", "reverse"):
        return Terms(scores, None, entropy)
    if config.kl_estimator == "exact":
        return Terms(scores, forward_kl(sites, other), entropy)
    return Terms(scores, _penalty(scores, score_sites(other).logp, old_logp, config), entropy)


@torch.no_grad()
def trajectory_kl(
    policy: Policy, reference: Policy, rollout: Rollout, refined: Bool[Tensor, " batch"], config: GRPOConfig
) -> Float[Tensor, " batch"]:
    """The KL of each trajectory to the reference, by the configured estimate, summed over **all** its sites; float64."""
    device = rollout.group.device
    total = torch.zeros(len(rollout), dtype=widest(device), device=device)
    steps = torch.arange(rollout.num_steps, device=device).expand(len(rollout), -1)
    refined = refined.to(device)
    for rows, part, pieces in passes(rollout, steps, torch.ones_like(refined), refined, config):
        for piece in pieces:
            chunk = Chunk(part, piece, total[rows], total[rows], total[rows], rows)
            total[rows] += _kl_of(policy, reference, chunk, config)
    return total


def _kl_of(policy: Policy, reference: Policy, chunk: Chunk, config: GRPOConfig) -> Float[Tensor, " batch"]:
    scores = policy_scores(policy, chunk, reference)
    values = scores.kl if config.kl_direction == "reverse" else scores.kl_forward
    if config.kl_estimator != "exact":
        values = _estimate(scores, _reference_log_probs(reference, chunk), config)
    if values is None:
        raise ValueError(f"kl_in: {config.kl_in!r}, expected a policy whose scores have a KL to the reference")
    return trajectory_sum(values, scores.mask)


# -- what needs a look at the whole window before the update


@dataclass(frozen=True)
class Plan:
    """What an update must know of its whole window before its first backward pass.

    Attributes:
        threshold: of the entropy of a site, below which it gets no gradient from the policy term; None: all get it.
        drift: mean of log π_old - log π_θ over the sites of each row of the generation; None: no row is dropped.
        mean_entropy: of the sites of the window; None: unknown.
        entropy_coef: c of the bonus.
    """

    threshold: Float[Tensor, ""] | None = None
    drift: Float[Tensor, " row"] | None = None
    mean_entropy: float | None = None
    entropy_coef: float = 0.0

    def keep(self, scores: Scores, chunk: Chunk, config: GRPOConfig) -> Tensor | None:
        """Sites that get a gradient from the policy term, of a shape that broadcasts to [B, S, U]; None: all of them."""
        on = None if self.threshold is None else high_entropy(scores.entropy, scores.mask, self.threshold)
        if self.drift is None or config.off_policy_mask_threshold is None:
            return on
        rows = off_policy_rows(self.drift[chunk.rows], chunk.advantage, config.off_policy_mask_threshold)[:, None, None]
        return rows if on is None else on & rows


def _alone(work: Callable[[], Tensor]) -> Sequence[Tensor]:
    return [work()]


@torch.no_grad()
def plan_update(
    policy: Policy,
    chunks: Sequence[Chunk],
    old: Sequence[Tensor | None],
    config: GRPOConfig,
    controller: EntropyController | None = None,
    share: Callable[[Callable[[], Tensor]], Sequence[Tensor]] = _alone,
) -> Plan:
    """Look at the whole window without gradient, one more forward pass each; only if an option asks for it.

    The passes are those of the update itself, so what is measured here is what the update will see, to the bit.

    Args:
        policy: what is trained.
        chunks: the passes of this process.
        old: log π_old of each.
        config: settings.
        controller: of the entropy bonus; None: its weight is fixed.
        share: does something in every process and gives back what each returned.
    """
    select, adapt = config.top_entropy_quantile < 1, controller is not None
    drop = config.off_policy_mask_threshold is not None and any(o is not None for o in old)
    if not (select or adapt or drop):
        return Plan(entropy_coef=config.entropy_coef)
    drift: list[Tensor] = []

    def look() -> Tensor:
        entropies, gap = _look(policy, chunks, old)
        drift.append(gap)
        return entropies

    every = torch.cat(list(share(look))) if select or adapt else look()
    mean = float(every.mean()) if len(every) else math.nan
    return Plan(
        threshold=top_entropy_threshold(every, config.top_entropy_quantile) if select else None,
        drift=drift[0] if drop else None,
        mean_entropy=mean,
        entropy_coef=config.entropy_coef if controller is None else controller.coef_at(mean),
    )


def _look(
    policy: Policy, chunks: Sequence[Chunk], old: Sequence[Tensor | None]
) -> tuple[Float[Tensor, " site"], Float[Tensor, " row"]]:
    """The entropy of every counted site, on the CPU, and the drift of every row from π_old."""
    count = 1 + max((int(chunk.rows.max()) for chunk in chunks), default=-1)
    device = chunks[0].rows.device if chunks else torch.device("cpu")
    gap, sites = (torch.zeros(count, dtype=widest(device), device=device) for _ in range(2))
    entropies = [torch.empty(0, dtype=torch.float64)]
    for chunk, old_logp in zip(chunks, old, strict=True):
        scores = policy_scores(policy, chunk)
        on = scores.mask & (chunk.weight > 0)[:, None, None]
        entropies.append(scores.entropy[on].cpu().double())
        if old_logp is not None:
            gap.index_add_(0, chunk.rows, trajectory_sum(old_logp - scores.logp, scores.mask))
            sites.index_add_(0, chunk.rows, widen(scores.mask.sum((-2, -1))))
    return torch.cat(entropies), gap / sites.clamp_min(1)


def chunk_loss(
    terms: Terms, chunk: Chunk, old_logp: Float[Tensor, "batch step site"] | None, plan: Plan, config: GRPOConfig
) -> Loss:
    """The part of the update's loss that one forward pass has: the parts add up to the whole."""
    part = grpo_loss(
        terms.scores,
        old_logp,
        chunk.advantage,
        chunk.weight,
        level=config.importance_sampling_level,
        loss_type=config.loss_type,
        epsilon=config.epsilon,
        epsilon_high=config.epsilon_high,
        delta=config.delta,
        sapo_temperature_pos=config.sapo_temperature_pos,
        sapo_temperature_neg=config.sapo_temperature_neg,
        beta=0.0 if config.kl_in == "reward" else config.beta,
        penalty=terms.penalty,
        keep=plan.keep(terms.scores, chunk, config),
    )
    sums = part.sums | _replay_sums(terms.scores, chunk)
    if terms.entropy is None:
        return Loss(part.loss, sums)
    return Loss(part.loss + entropy_bonus(terms.entropy, chunk.mean_weight, plan.entropy_coef), sums)


@torch.no_grad()
def _replay_sums(scores: Scores, chunk: Chunk) -> dict[str, Tensor]:
    if chunk.stored is None:
        return {}
    ratio = log_ratio(scores.logp, chunk.stored, scores.mask, "token").exp()
    return {"replay_ratio": widen((ratio * scores.mask).sum()), "replay_sites": widen(scores.mask.sum())}


def update_metrics(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Sums over the sites of an update as means under TRL's names."""
    n = max(1.0, float(sums["sites"]))
    line = {"policy_loss": float(sums["policy_loss"]), "entropy": float(sums["entropy"]) / n}
    if "clip_low" in sums:
        low, high = float(sums["clip_low"]) / n, float(sums["clip_high"]) / n
        line |= {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low + high}
    if "cispo_clip" in sums:
        line["cispo_clip_ratio"] = float(sums["cispo_clip"]) / n
    if "replay_sites" in sums:
        line["replay/ratio"] = float(sums["replay_ratio"]) / max(1.0, float(sums["replay_sites"]))
    return line | {name: float(sums[name]) / n for name in ("kl", "kl_forward") if name in sums}
