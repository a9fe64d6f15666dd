"""Optimisation: learning rate, entropy controller, gradients summed in a fixed order, moving average, updates of the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from discrete_grpo.core.entropy import EntropyController
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.distributed import ProcessGroup

__all__ = [
    "GradientSum",
    "adamw",
    "averaged",
    "ema_decay_at",
    "entropy_controller",
    "learning_rate",
    "mix_reference",
    "update_average",
]


def learning_rate(step: int, config: GRPOConfig) -> float:
    """Learning rate of update ``step``, counted from 0: a linear warm-up, then constant, or a decay to 0 at ``max_steps``."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = min(1.0, (step - config.warmup_steps) / max(1, config.max_steps - config.warmup_steps))
    if config.lr_scheduler_type == "linear":
        return config.learning_rate * (1.0 - done)
    if config.lr_scheduler_type == "cosine":
        return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))
    return config.learning_rate


NO_WEIGHTS = "it has no weights to train, expected at least one parameter that requires a gradient"


def adamw(parameters: Sequence[nn.Parameter], config: GRPOConfig) -> torch.optim.AdamW:
    """Create AdamW with the settings of a run; on CUDA it is ``fused``, one kernel for many weights.

    Raises:
        ValueError: if there are no parameters.
    """
    if not parameters:
        raise ValueError(f"policy: {NO_WEIGHTS}")
    fused = all(p.device.type == "cuda" and p.is_floating_point() for p in parameters)
    betas = (config.adam_beta1, config.adam_beta2)
    return torch.optim.AdamW(
        parameters, lr=config.learning_rate, betas=betas, weight_decay=config.weight_decay, fused=True if fused else None
    )


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Restore an optimizer's moments; decay and betas stay those of its making, which a resumed run may have changed."""
    own = [{name: group[name] for name in ("weight_decay", "betas")} for group in optimizer.param_groups]
    optimizer.load_state_dict(dict(state))
    for group, kept in zip(optimizer.param_groups, own, strict=True):
        group.update(kept)


class GradientSum:
    """Sum of the gradients of all shards, in a fixed order.

    The gradient of a shard is complete before it is added. Two processes with one shard each and one process with two shards
    therefore compute the same sum to the bit.

    Args:
        parameters: parameters whose ``grad`` is read after each shard and set at the end.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.total: list[Tensor | None] = [None] * len(parameters)

    def add(self) -> None:
        """Add the gradients that the passes of one shard accumulated, and clear them."""
        grads = [p.grad for p in self.parameters]
        self.total = [b if a is None else a if b is None else a.add_(b) for a, b in zip(self.total, grads, strict=True)]
        for parameter in self.parameters:
            parameter.grad = None

    def finish(self, processes: ProcessGroup) -> None:
        """Sum over the processes; a parameter that no process used stays without a gradient."""
        used = processes.any([g is not None for g in self.total])
        for parameter, gradient, use in zip(self.parameters, self.total, used, strict=True):
            parameter.grad = gradient if gradient is not None or not use else torch.zeros_like(parameter)
        processes.add([p.grad for p in self.parameters if p.grad is not None])


def entropy_controller(config: GRPOConfig) -> EntropyController | None:
    """The controller of the adaptive entropy bonus; None if the bonus is not adaptive."""
    if not config.use_adaptive_entropy:
        return None
    low, high = config.entropy_coef_min, config.entropy_coef_max
    return EntropyController(config.entropy_coef, target=config.entropy_target, delta=config.entropy_coef_delta, low=low, high=high)


def ema_decay_at(decay: float, updates: int) -> float:
    """Decay after n updates, min(decay, (1 + n)/(10 + n)): the first weights in the average lose their influence quickly.

    >>> [round(ema_decay_at(0.999, n), 3) for n in (0, 100, 100_000)]
    [0.1, 0.918, 0.999]
    """
    return min(decay, (1 + updates) / (10 + updates))


def averaged(module: nn.Module, decay: float) -> AveragedModel:
    """A copy of ``module`` whose ``update_parameters`` computes the moving average θ' ← d θ' + (1 - d) θ.

    The first update copies, θ' ← θ, so the initial weights are not in the average; d of the n-th one after it is that of
    :func:`ema_decay_at`.
    """
    return AveragedModel(module, multi_avg_fn=_ema(decay))


@torch.no_grad()
def update_average(average: AveragedModel, module: nn.Module) -> None:
    """Update the average, bit-identical to ``average.update_parameters(module)`` but without waiting for an accelerator.

    The number of updates lies on the CPU, as :func:`averaged` makes it, and is not moved to the device of the weights and back.
    """
    updates = int(average.n_averaged)
    ours, theirs = ([p.detach() for p in m.parameters()] for m in (average.module, module))
    if not ours:
        return
    if updates == 0:
        torch._foreach_copy_(ours, theirs)
    else:
        cast(Callable[..., None], average.multi_avg_fn)(ours, theirs, updates)
    for buffer, other in zip(average.module.buffers(), module.buffers(), strict=True):
        buffer.copy_(other)
    average.n_averaged += 1


def _ema(decay: float) -> Callable[[Sequence[Tensor], Sequence[Tensor], Tensor | int], None]:
    @torch.no_grad()
    def update(average: Sequence[Tensor], current: Sequence[Tensor], updates: Tensor | int) -> None:
        torch._foreach_lerp_(list(average), list(current), 1.0 - ema_decay_at(decay, int(updates)))

    return update


@torch.no_grad()
def mix_reference(reference: nn.Module, policy: nn.Module, alpha: float) -> None:
    """Move the reference towards the policy (TR-DPO): π_ref ← α π_θ + (1-α) π_ref, in place; buffers are copied.

    Args:
        reference: a copy of the policy.
        policy: θ.
        alpha: α in [0, 1]; 1 makes the reference the policy.

    Source: Gorbatovski et al. (2024), TR-DPO, arXiv 2404.09656, as in TRL's ``ref_model_mixup_alpha``.
    """
    for parameter, towards in zip(reference.parameters(), policy.parameters(), strict=True):
        parameter.lerp_(towards, alpha)
    for buffer, other in zip(reference.buffers(), policy.buffers(), strict=True):
        buffer.copy_(other)
