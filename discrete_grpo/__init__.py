"""GRPO (group relative policy optimisation) of discrete generative models, graphs first.

The core stands here; molecules are joined in :mod:`discrete_grpo.recipes`. Names are imported when they are first used, so
that importing this package loads neither torch nor rdkit nor torch_geometric.
"""

import importlib

TYPE_CHECKING = False  # of the typing module, which this package does not load by itself
if TYPE_CHECKING:
    from discrete_grpo.categorical import Scores, Sites, score_sites
    from discrete_grpo.config import GRPOConfig, PretrainConfig
    from discrete_grpo.graph import GraphBatch
    from discrete_grpo.graph_kl import posterior_kl
    from discrete_grpo.rollout import Context, Policy, Reward, Rollout, Scorer, group_contexts
    from discrete_grpo.scoring import RewardError
    from discrete_grpo.trainer import GRPOTrainer

__all__ = [
    "Context",
    "GRPOConfig",
    "GRPOTrainer",
    "GraphBatch",
    "Policy",
    "PretrainConfig",
    "Reward",
    "RewardError",
    "Rollout",
    "Scorer",
    "Scores",
    "Sites",
    "group_contexts",
    "posterior_kl",
    "score_sites",
]

_MODULES = {
    "categorical": ("Scores", "Sites", "score_sites"),
    "config": ("GRPOConfig", "PretrainConfig"),
    "graph": ("GraphBatch",),
    "graph_kl": ("posterior_kl",),
    "rollout": ("Context", "Policy", "Reward", "Rollout", "Scorer", "group_contexts"),
    "scoring": ("RewardError",),
    "trainer": ("GRPOTrainer",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"discrete_grpo.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
