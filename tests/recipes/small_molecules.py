"""A policy of molecules of two to four atoms with a network of a few thousand weights, for runs that need no better one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.runs.checkpoint import load_metadata, save
from discrete_grpo.runs.checkpoint_names import find_checkpoint
from tests.toys import tiny_network

BONDS = (0.3, 0.62, 0.07, 0.01)
"""About how often it draws no bond, a single, a double and a triple one: some three of four samples are molecules."""


def save_small_molecules(folder: Path) -> Path:
    """Save a policy like ``qm9-small`` with another network, so that a sample costs next to nothing and few are alike."""
    bundled: Any = load_policy("qm9-small")
    network = tiny_network(4, 4, layers=1)
    outputs = (network.node_out[-1], bundled.node_kernel.noise.prior), (network.edge_out[-1], BONDS)
    with torch.no_grad():
        for layer, probs in outputs:
            assert isinstance(layer, nn.Linear)
            layer.weight.mul_(0.5)
            layer.bias.copy_(torch.tensor(probs).log())
    given = bundled.init_args() | {"network": network, "node_counts": (0.0, 0.0, 0.1, 0.3, 0.6)}
    return save(folder, GraphPolicy(**given), metadata=load_metadata(find_checkpoint("qm9-small")))
