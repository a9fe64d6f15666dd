"""GRPO (group relative policy optimisation) of discrete generative models, graphs first.

The core stands here; molecules are joined in :mod:`discrete_grpo.recipes`. Importing this package loads neither rdkit
nor torch_geometric.
"""

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
