"""What one optimiser update is made of: which rows and steps of a generation, in which forward passes, with which terms.

A *window* is the part of a generation that one update learns from. Its weights are computed before any forward pass, from
counts over the whole window, so that cutting it into passes changes nothing but memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from discrete_grpo.categorical import Scores, score_sites
from discrete_grpo.config import GRPOConfig
from discrete_grpo.entropy import EntropyController, entropy_bonus, high_entropy, site_entropy, top_entropy_threshold
from discrete_grpo.generation import Draw
from discrete_grpo.kl_estimators import forward_estimate, forward_kl, importance_corrected, reverse_estimate, trajectory_sum
from discrete_grpo.objective import Loss, grpo_loss, off_policy_rows, row_weights
from discrete_grpo.rollout import Policy, Rollout, Scorer, num_selected
from discrete_grpo.timesteps import chosen_steps

__all__ = [
    "Chunk",
    "Plan",
    "Terms",
    "check_scorer",
    "chunk_loss",
    "plan_update",
    "policy_scores",
    "terms_of",
    "trajectory_kl",
    "update_metrics",
    "windows",
]


@dataclass(frozen=True)
class Chunk:
    """Some steps of some trajectories: one forward pass.

    Attributes:
        rollout: the trajectories.
        steps: numbers of the steps.
        advantage: A.
        weight: of a site of the policy and KL terms, see :func:`discrete_grpo.objective.row_weights`.
        mean_weight: of a site in the mean over all sites of the window.
        rows: numbers of the trajectories within the generation.
    """

    rollout: Rollout
    steps: Int[Tensor, "batch step"]
    advantage: Float[Tensor, " batch"]
    weight: Float[Tensor, " batch"]
    mean_weight: Float[Tensor, " batch"]
    rows: Int[Tensor, " batch"]


# -- rows and steps


def _passes(
    rollout: Rollout, steps: Tensor, wanted: Tensor, refined: Tensor, config: GRPOConfig
) -> Iterator[tuple[Tensor, Rollout, Sequence[Tensor]]]:
    """Rows of like size together, their trajectories, and the pieces of their steps: a forward pass each.

    Refined rows stand in passes of their own, without the steps that none of them has drawn.
    """
    units = rollout.units.gather(1, steps)
    for part, again in ((wanted & ~refined, False), (wanted & refined, True)):
        order = part.nonzero()[:, 0]
        order = order[torch.argsort(rollout.size[order], stable=True)]
        for rows in order.split(config.per_device_batch_size) if len(order) else ():
            chosen = steps[rows][:, (units[rows] > 0).any(0)] if again else steps[rows]
            yield rows, rollout.index(rows), chosen.split(config.timestep_chunk or steps.shape[1], 1)


def windows(draws: Sequence[Draw], config: GRPOConfig, generator: torch.Generator | None = None) -> list[list[Chunk]]:
    """The forward passes of each update of one round through a generation: ``steps_per_generation`` windows, disjoint in rows.

    Rows are dealt to windows at random; each window has its own normaliser.
    """
    fraction = config.timestep_fraction
    steps = [chosen_steps(d.rollout.units, fraction, config.timestep_selection, generator) for d in draws]
    sites = torch.cat([d.rollout.units.gather(1, s).sum(-1) for d, s in zip(draws, steps, strict=True)])
    counted = torch.cat([d.counted for d in draws])
    one = draws[0].rollout
    max_units = math.ceil(one.max_units * num_selected(one.num_steps, fraction) / one.num_steps)
    made = []
    for part in _deal(len(sites), config.steps_per_generation, sites.device, generator):
        inside = torch.zeros_like(counted)
        inside[part] = True
        units, on = sites[:, None], counted & inside
        # Rows outside have weight 0 and are not counted: the same as rows that are not there.
        weight = row_weights(units, config.loss_type, max_units, on)
        mean_weight = row_weights(units, "dapo", max_units, on)
        made.append(_window(draws, steps, inside, weight, mean_weight, config))
    return made


def _deal(count: int, parts: int, device: torch.device, generator: torch.Generator | None) -> list[Tensor]:
    if parts == 1:
        return [torch.arange(count, device=device)]
    order = torch.randperm(count, generator=generator, device=device if generator is None else generator.device).to(device)
    return list(order.tensor_split(parts))


def _window(
    draws: Sequence[Draw], steps: Sequence[Tensor], inside: Tensor, weight: Tensor, mean_weight: Tensor, config: GRPOConfig
) -> list[Chunk]:
    needed = torch.cat([d.needed for d in draws]) & inside
    needed = needed if bool(needed.any()) else inside  # an update without any signal still logs its entropy
    chunks, first = [], 0
    for draw, chosen in zip(draws, steps, strict=True):
        here = slice(first, first + len(draw.rollout))
        w, m = weight[here], mean_weight[here]
        for rows, part, pieces in _passes(draw.rollout, chosen, needed[here], draw.refined, config):
            own = (draw.advantage[rows], w[rows], m[rows], rows + first)
            chunks += [Chunk(part, piece, *own) for piece in pieces]  # one copy of the states for all pieces
        first = here.stop
    return chunks


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
    if config.beta > 0 and config.kl_in != "reward" and (config.kl_estimator, config.kl_direction) == ("exact", "forward"):
        raise ValueError(f"kl_direction: 'forward', expected reverse, or an estimate {said}")


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
    tables = bonus or (in_loss and (config.kl_estimator, config.kl_direction) == ("exact", "forward"))
    if tables:
        return _terms_of_tables(policy, chunk, reference, config, in_loss, bonus, old_logp)
    scores = policy_scores(policy, chunk, reference)
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
    total = torch.zeros(len(rollout), dtype=torch.float64, device=device)
    steps = torch.arange(rollout.num_steps, device=device).expand(len(rollout), -1)
    refined = refined.to(device)
    for rows, part, pieces in _passes(rollout, steps, torch.ones_like(refined), refined, config):
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
        threshold: of the entropy of a site, below which it has no policy term; None: all have.
        drift: mean of log π_old - log π_θ over the sites of each row of the generation; None: no row is dropped.
        mean_entropy: of the sites of the window; None: unknown.
        entropy_coef: c of the bonus.
    """

    threshold: Float[Tensor, ""] | None = None
    drift: Float[Tensor, " row"] | None = None
    mean_entropy: float | None = None
    entropy_coef: float = 0.0

    def keep(self, scores: Scores, chunk: Chunk, config: GRPOConfig) -> Tensor | None:
        """Where the policy term of a chunk stays, of a shape that broadcasts to [B, S, U]; None: everywhere."""
        on = None if self.threshold is None else high_entropy(scores.entropy, scores.mask, self.threshold)
        if self.drift is None or config.off_policy_mask_threshold is None:
            return on
        rows = off_policy_rows(self.drift[chunk.rows], chunk.advantage, config.off_policy_mask_threshold)[:, None, None]
        return rows if on is None else on & rows


@torch.no_grad()
def plan_update(
    policy: Policy,
    chunks: Sequence[Chunk],
    old: Sequence[Tensor | None],
    config: GRPOConfig,
    controller: EntropyController | None = None,
) -> Plan:
    """Look at the whole window without gradient, one more forward pass each; only if an option asks for it.

    The passes are those of the update itself, so what is measured here is what the update will see, to the bit.
    """
    select, adapt = config.top_entropy_quantile < 1, controller is not None
    drop = config.off_policy_mask_threshold is not None and any(o is not None for o in old)
    if not (select or adapt or drop):
        return Plan(entropy_coef=config.entropy_coef)
    entropies = []
    count = 1 + max(int(chunk.rows.max()) for chunk in chunks)
    gap, sites = (torch.zeros(count, dtype=torch.float64, device=chunks[0].rows.device) for _ in range(2))
    for chunk, old_logp in zip(chunks, old, strict=True):
        scores = policy_scores(policy, chunk)
        on = scores.mask & (chunk.weight > 0)[:, None, None]
        entropies.append(scores.entropy[on].double())
        if drop and old_logp is not None:
            gap.index_add_(0, chunk.rows, trajectory_sum(old_logp - scores.logp, scores.mask))
            sites.index_add_(0, chunk.rows, scores.mask.sum((-2, -1)).double())
    every = torch.cat(entropies)
    mean = float(every.mean()) if len(every) else math.nan
    return Plan(
        threshold=top_entropy_threshold(every, config.top_entropy_quantile) if select else None,
        drift=gap / sites.clamp_min(1) if drop else None,
        mean_entropy=mean,
        entropy_coef=config.entropy_coef if controller is None else controller.coef_at(mean),
    )


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
    if terms.entropy is None:
        return part
    return Loss(part.loss + entropy_bonus(terms.entropy, chunk.mean_weight, plan.entropy_coef), part.sums)


def update_metrics(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Sums over the sites of an update as means under TRL's names."""
    n = max(1.0, float(sums["sites"]))
    line = {"policy_loss": float(sums["policy_loss"]), "entropy": float(sums["entropy"]) / n}
    if "clip_low" in sums:
        low, high = float(sums["clip_low"]) / n, float(sums["clip_high"]) / n
        line |= {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low + high}
    if "cispo_clip" in sums:
        line["cispo_clip_ratio"] = float(sums["cispo_clip"]) / n
    return line | {name: float(sums[name]) / n for name in ("kl", "kl_forward") if name in sums}
