"""A policy in one file: permutations, drawn one item at a time without replacement.

Run it with ``python examples/new_policy.py``.
"""

from collections.abc import Sequence
from itertools import pairwise, permutations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from discrete_grpo import Context, GRPOConfig, GRPOTrainer, Rollout, Sites, group_contexts
from discrete_grpo.core.categorical import gather, sample
from discrete_grpo.testing import check_policy


class PermutationPolicy(nn.Module):
    """π(order) = Π_k π(item k | the items before it); a taken item has probability 0."""

    def __init__(self, items: int, width: int = 32) -> None:
        super().__init__()
        self.items, self.width = items, width
        self.network = nn.Sequential(nn.Linear(2 * items, width), nn.Tanh(), nn.Linear(width, items))

    def init_args(self) -> dict[str, Any]:
        return {"items": self.items, "width": self.width}

    def tables(self, order: Tensor, steps: Tensor) -> Tensor:
        """Log-probs of the next item [B, S', n]; drawing and scoring share this function."""
        before = torch.arange(self.items, device=steps.device) < steps[..., None]  # places filled before the step [B, S', n]
        taken = (one_hot(order, self.items)[:, None] * before[..., None]).sum(2)  # items [B, S', n]
        last = one_hot(order.gather(1, (steps - 1).clamp_min(0)), self.items) * (steps > 0)[..., None]
        logits = self.network(torch.cat([taken, last], -1).to(next(self.parameters())))
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).masked_fill(taken > 0, -torch.inf).log_softmax(-1)

    def rollout(self, contexts: Sequence[Context], order: Tensor, logp: Tensor) -> Rollout:
        group = torch.tensor([c.group for c in contexts], device=order.device)
        size = torch.full_like(group, self.items)
        samples = tuple(map(tuple, order.tolist()))
        columns = {name: tuple(c.columns.get(name) for c in contexts) for name in contexts[0].columns}
        return Rollout({"order": order}, group, logp, torch.ones_like(order), size, self.items, samples, columns)

    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        order = torch.zeros(len(contexts), self.items, dtype=torch.long, device=next(self.parameters()).device)
        logps = []
        for k in range(self.items):
            table = self.tables(order, torch.full_like(order[:, :1], k))[:, 0]
            order[:, k] = sample(table.exp(), generator)
            logps.append(gather(table, order[:, k]))
        return self.rollout(contexts, order, torch.stack(logps, 1))

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        order = rollout.states["order"]
        steps = torch.arange(self.items, device=order.device).expand_as(order) if steps is None else steps
        action = order.gather(1, steps)[..., None]
        return [Sites(self.tables(order, steps)[:, :, None], action, torch.ones_like(action, dtype=torch.bool))]


def ascending(samples: Sequence[tuple[int, ...]], **columns: Any) -> list[float]:
    """The share of neighbours in ascending order."""
    return [sum(a < b for a, b in pairwise(s)) / (len(s) - 1) for s in samples]


if __name__ == "__main__":
    torch.manual_seed(0)
    policy = PermutationPolicy(items=5)
    orders = torch.tensor(list(permutations(range(5))))
    space = policy.rollout([Context(0)] * len(orders), orders, torch.zeros(orders.shape))
    report = check_policy(policy, group_contexts(4, 2), space=space, trusted=["__main__"])
    print(report)
    report.raise_on_failure()
    lines = GRPOTrainer(policy, ascending, GRPOConfig(max_steps=60, learning_rate=1e-2)).train()
    print(f"reward {lines[0]['reward']:.2f} -> {lines[-1]['reward']:.2f}")
