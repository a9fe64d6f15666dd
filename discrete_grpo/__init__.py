"""GRPO (group relative policy optimisation) of discrete generative models, graphs first.

The names below are the public interface: :func:`train` fine-tunes a policy against a reward, and :class:`GRPOTrainer` is its
training loop. They are imported when they are first used, so that importing this package loads neither torch nor rdkit nor
torch_geometric.
"""

import importlib

TYPE_CHECKING = False  # of the typing module, which this package does not load by itself
if TYPE_CHECKING:
    from discrete_grpo.benchmarking.method import Method
    from discrete_grpo.benchmarking.runner import benchmark
    from discrete_grpo.core.categorical import Scores, Sites, score_sites
    from discrete_grpo.core.rollout import Context, Policy, Reward, Rollout, Scorer, group_contexts
    from discrete_grpo.core.scoring import RewardError
    from discrete_grpo.diffusion.graph_kl import posterior_kl
    from discrete_grpo.domains.graphs import GraphBatch
    from discrete_grpo.models.graph_transformer import NetworkSizes
    from discrete_grpo.recipes.evaluate import evaluate
    from discrete_grpo.recipes.families import SamplerOptions
    from discrete_grpo.recipes.likelihood import likelihood
    from discrete_grpo.recipes.loading import load_policy
    from discrete_grpo.recipes.optimise import optimise
    from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
    from discrete_grpo.recipes.pretraining.digits import PretrainDigitsRecipe
    from discrete_grpo.recipes.pretraining.graph_sequences import PretrainGraphSequencesRecipe
    from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe
    from discrete_grpo.recipes.pretraining.judge import JudgeRecipe
    from discrete_grpo.recipes.pretraining.molecules import PretrainRecipe, molecule_policy
    from discrete_grpo.recipes.pretraining.pretrain import pretrain
    from discrete_grpo.recipes.pretraining.sft import SFTRecipe
    from discrete_grpo.recipes.pretraining.smiles import PretrainSmilesRecipe
    from discrete_grpo.recipes.pretraining.spatial import PretrainSpatialRecipe
    from discrete_grpo.recipes.pretraining.text import PretrainTextRecipe
    from discrete_grpo.recipes.sample import sample
    from discrete_grpo.recipes.train import TrainRecipe, train
    from discrete_grpo.rewards.molecules import molecule_reward
    from discrete_grpo.rewards.task import Task
    from discrete_grpo.testing import check_policy
    from discrete_grpo.training.config import GRPOConfig, PretrainConfig
    from discrete_grpo.training.local_search import local_search
    from discrete_grpo.training.pretrain import Pretrainer
    from discrete_grpo.training.trainer import GRPOTrainer

__all__ = [
    "Context",
    "DiffusionOptions",
    "GRPOConfig",
    "GRPOTrainer",
    "GraphBatch",
    "JudgeRecipe",
    "Method",
    "NetworkSizes",
    "Policy",
    "PretrainConfig",
    "PretrainDigitsRecipe",
    "PretrainGraphSequencesRecipe",
    "PretrainGraphsRecipe",
    "PretrainRecipe",
    "PretrainSmilesRecipe",
    "PretrainSpatialRecipe",
    "PretrainTextRecipe",
    "Pretrainer",
    "Reward",
    "RewardError",
    "Rollout",
    "SFTRecipe",
    "SamplerOptions",
    "Scorer",
    "Scores",
    "Sites",
    "Task",
    "TrainRecipe",
    "benchmark",
    "check_policy",
    "evaluate",
    "group_contexts",
    "likelihood",
    "load_policy",
    "local_search",
    "molecule_policy",
    "molecule_reward",
    "optimise",
    "posterior_kl",
    "pretrain",
    "sample",
    "score_sites",
    "train",
]

_MODULES = {
    "core.categorical": ("Scores", "Sites", "score_sites"),
    "training.config": ("GRPOConfig", "PretrainConfig"),
    "domains.graphs": ("GraphBatch",),
    "diffusion.graph_kl": ("posterior_kl",),
    "core.rollout": ("Context", "Policy", "Reward", "Rollout", "Scorer", "group_contexts"),
    "core.scoring": ("RewardError",),
    "models.graph_transformer": ("NetworkSizes",),
    "recipes.pretraining.diffusion": ("DiffusionOptions",),
    "recipes.pretraining.molecules": ("PretrainRecipe", "molecule_policy"),
    "recipes.optimise": ("optimise",),
    "recipes.pretraining.pretrain": ("pretrain",),
    "recipes.pretraining.digits": ("PretrainDigitsRecipe",),
    "recipes.pretraining.graph_sequences": ("PretrainGraphSequencesRecipe",),
    "recipes.pretraining.graphs": ("PretrainGraphsRecipe",),
    "recipes.pretraining.judge": ("JudgeRecipe",),
    "recipes.pretraining.sft": ("SFTRecipe",),
    "recipes.pretraining.smiles": ("PretrainSmilesRecipe",),
    "recipes.pretraining.spatial": ("PretrainSpatialRecipe",),
    "recipes.pretraining.text": ("PretrainTextRecipe",),
    "training.local_search": ("local_search",),
    "training.pretrain": ("Pretrainer",),
    "training.trainer": ("GRPOTrainer",),
    "recipes.evaluate": ("evaluate",),
    "recipes.families": ("SamplerOptions",),
    "recipes.likelihood": ("likelihood",),
    "recipes.loading": ("load_policy",),
    "recipes.sample": ("sample",),
    "recipes.train": ("TrainRecipe", "train"),
    "rewards.molecules": ("molecule_reward",),
    "rewards.task": ("Task",),
    "benchmarking.method": ("Method",),
    "benchmarking.runner": ("benchmark",),
    "testing": ("check_policy",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"discrete_grpo.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
