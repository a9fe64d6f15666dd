"""Squared losses on the log-probability of whole samples: trajectory balance, its group relative form, augmented likelihood.

They compare log π_θ(x) of a finished sample with a number that depends on its reward. The sample may come from any source,
as no ratio to the distribution that drew it is needed.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

__all__ = ["augmented_likelihood_loss", "group_balance_loss", "trajectory_balance_loss"]


def trajectory_balance_loss(
    logp: Float[Tensor, " batch"], reward: Float[Tensor, " batch"], log_z: Float[Tensor, ""], beta: float
) -> Float[Tensor, ""]:
    """Mean of (log Z + log π_θ(x) - β R(x))²; where it is 0 on all of a space, π_θ(x) = exp(β R(x)) / Z.

    The backward policy is omitted, as its probability is 1 for a text and for any sample that is built in one order only.

    Args:
        logp: log π_θ(x) of whole samples.
        reward: R(x).
        log_z: log Z, a parameter that is learned along with the policy.
        beta: β, the inverse temperature of the reward.

    Source: Malkin et al. (2022), Eq. 14, arXiv 2201.13259; R' = exp(β R) as in Genetic GFN, arXiv 2402.05961.

    >>> import torch
    >>> float(trajectory_balance_loss(torch.tensor([-1.0, -2.0]), torch.tensor([0.5, 0.5]), torch.tensor(3.0), 4.0))
    0.5
    """
    return (log_z + logp - beta * reward).square().mean()


def group_balance_loss(
    logp: Float[Tensor, " batch"], reward: Float[Tensor, " batch"], ref_logp: Float[Tensor, " batch"], beta: float, alpha: float
) -> Float[Tensor, ""]:
    """Mean of (δ_i - mean δ)² over a group, δ = log π_θ(x) - α log π_ref(x) - β R(x).

    It is trajectory balance with log Z estimated from the group, and has GRPO's gradient with one more term: each sample has
    -2/B A_i ∇ log π_θ(x_i) with A_i = β (R_i - mean R) - (log π_θ/π_ref^α - its mean), which vanishes at
    π_θ ∝ π_ref^α exp(β R). No sample has to be drawn by the policy, and no ratio is clipped.

    Args:
        logp: log π_θ(x) of whole samples of one group.
        reward: R(x).
        ref_logp: log π_ref(x) of the frozen prior.
        beta: β, the inverse temperature of the reward.
        alpha: α, the weight of the prior in the optimum; 0 leaves it out.

    Source: log-variance loss: Richter et al. (2020), arXiv 2010.10436; of off-policy groups: Bartoldson et al. (2025), arXiv
    2503.18929.

    >>> import torch
    >>> zero = torch.zeros(2)
    >>> float(group_balance_loss(torch.tensor([-1.0, -2.0]), torch.tensor([0.5, 0.25]), zero, 4.0, 0.0))
    0.0
    """
    gap = logp - alpha * ref_logp - beta * reward
    return (gap - gap.mean()).square().mean()


def augmented_likelihood_loss(
    logp: Float[Tensor, " batch"], reward: Float[Tensor, " batch"], ref_logp: Float[Tensor, " batch"], sigma: float
) -> Float[Tensor, ""]:
    """Mean of (log π_ref(x) + σ R(x) - log π_θ(x))², the difference between augmented and posterior likelihood (DAP).

    Args:
        logp: log π_θ(x) of whole samples.
        reward: R(x).
        ref_logp: log π_ref(x) of the frozen prior.
        sigma: σ, the weight of the reward in nats.

    Source: Olivecrona et al. (2017), section 3.2, arXiv 1704.07555.

    >>> import torch
    >>> float(augmented_likelihood_loss(torch.tensor([-1.0]), torch.tensor([0.5]), torch.tensor([-3.0]), 2.0))
    1.0
    """
    return (ref_logp + sigma * reward - logp).square().mean()
