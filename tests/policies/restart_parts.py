"""Parts of the tests of restarts: contexts that start again from one graph, and a policy that cannot."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from discrete_grpo.core.rollout import Context
from discrete_grpo.policies.restart import Restart

State = tuple[int, ...]
CLEAN: State = (1, 0, 1)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def again(step: int, count: int = 1, group: int = 0, graph: State = CLEAN) -> list[Context]:
    return [Context(group, {"restart": Restart(graph[:2], graph[2:], step)})] * count


class Plain(nn.Module):
    """A policy that cannot start from a finished sample."""

    def sample(self, contexts: Any, *, generator: Any = None) -> Any: ...

    def sites(self, rollout: Any, steps: Any = None) -> Any: ...
