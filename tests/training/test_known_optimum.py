"""Ground truth: on the enumerated molecules the best reward is known, and GRPO reaches it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo import GRPOConfig, GRPOTrainer, PretrainConfig
from discrete_grpo.datasets.enumeration import enumerate_molecules
from discrete_grpo.datasets.molecules import dataset_from_smiles, statistics
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.molecules import molecule_policy
from discrete_grpo.recipes.sample import sample
from discrete_grpo.rewards.molecules import logp
from discrete_grpo.training.pretrain import Pretrainer


@pytest.mark.slow
def test_grpo_reaches_the_known_best_molecule(tmp_path: Path) -> None:
    """All 5,453 valid C/N/O/F graphs of up to 5 atoms are known, and so the best logP of any: the policy moves onto it."""
    known = enumerate_molecules(5)
    scores = dict(zip(known, logp(known), strict=True))
    optimum = max(scores, key=scores.__getitem__)
    data = dataset_from_smiles(known)
    sizes = NetworkSizes(layers=2, heads=4, width=48, edge_width=24, global_width=24, walk_length=4)
    policy = molecule_policy(statistics(data), sizes, DiffusionOptions(num_steps=8), seed=0)
    pretrain = PretrainConfig(max_steps=250, batch_size=128, learning_rate=4e-3, save_steps=1000)
    Pretrainer(policy, data, pretrain, tmp_path).train()
    policy.node_counts = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)  # the best molecule has five atoms; all else is the policy's to find
    before = sample(policy, 200)

    def checked(samples: Sequence[str | None], **columns: Any) -> list[float]:
        assert all(s is None or "." in s or s in scores for s in samples), "a molecule outside the exhaustive enumeration"
        return logp(samples)

    config = GRPOConfig(
        max_steps=60, num_generations=16, generation_batch_size=128, per_device_batch_size=128, learning_rate=1.5e-3
    )
    GRPOTrainer(policy, checked, config).train()
    after = sample(policy, 200)
    assert before.count(optimum) < 10
    assert Counter(after).most_common(1)[0][0] == optimum
    assert after.count(optimum) > 60
    assert sum(logp(before)) / 200 < 0.2 * scores[optimum]
    assert sum(logp(after)) / 200 > 0.85 * scores[optimum]
