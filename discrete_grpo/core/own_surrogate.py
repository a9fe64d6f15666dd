"""Custom surrogates in place of those of :mod:`discrete_grpo.core.loss`."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.reward_arguments import shape_or_type

__all__ = ["SurrogateFunc", "own_surrogate"]

SurrogateFunc = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Function ``(log_prob, ratio, advantage) -> surrogate`` of each unit, to be maximised.

``log_prob`` is log π_θ and ``ratio`` is r = π_θ/π_old of each unit as :func:`~discrete_grpo.core.loss.unit_values` combines sites:
sums at level ``step``, means at ``step_mean`` and ``sequence``. Both have a gradient and one shape, which the result has too.
``advantage`` [B, 1, 1] broadcasts against them. Weights, masks and the KL are applied to the result; its values at masked units,
where ``log_prob`` is 0, are ignored.
"""


def own_surrogate(
    surrogate_func: SurrogateFunc, log_prob: Float[Tensor, "*unit"], ratio: Float[Tensor, "*unit"], advantage: Tensor
) -> Float[Tensor, "*unit"]:
    """Compute the surrogate of each unit by a custom function.

    Raises:
        ValueError: if the function does not return a tensor of the shape of ``ratio``.
    """
    found = surrogate_func(log_prob, ratio, advantage)
    if not isinstance(found, Tensor) or found.shape != ratio.shape:
        wanted = f"expected a tensor of the shape of ratio, {tuple(ratio.shape)}"
        raise ValueError(f"surrogate_func: returned {shape_or_type(found)}, {wanted}")
    return found
