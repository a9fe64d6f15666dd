"""Checkpoint files in the formats of other projects, made from random weights, and what every imported policy has to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.domains.graphs import GraphBatch, node_mask, num_pairs, pair_mask, symmetrise, upper
from discrete_grpo.importers.graph_data import DataName, known_data
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.runs.checkpoint import read_policy, save
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer
from tests import digress_oracle as oracle

__all__ = [
    "GDPO",
    "PLANAR",
    "QM9",
    "Made",
    "assert_their_logits",
    "check_as_a_policy",
    "defog",
    "digress",
    "digress_of",
    "lightning",
    "one_line",
    "weights",
]

SIZES: dict[str, Any] = {"layers": 3, "widths": (16, 6, 5), "hidden": (12, 9, 2048), "mlp": (10, 8, 7)}
QM9, PLANAR, GDPO = ((4, 4), (1, 2), (9, 5))
Made = tuple[dict[str, Tensor], oracle.Variant]


def weights(data: DataName, states: tuple[int, int], outputs: tuple[int, int], **variant: Any) -> Made:
    """A state dict for a published data set, and what else the equations need."""
    known = known_data(data, outputs[1])
    atoms: dict[str, Any] = {"weights": known.weights, "max_weight": known.max_weight} if known.weights else {}
    options: dict[str, Any] = {"max_nodes": len(known.node_counts) - 1} | atoms | variant
    how = oracle.Variant(**options)
    x, e, y = {"all": (6, 0, 11), "rrwp": (how.walk_length, how.walk_length, 5)}[how.features]
    widths = states[0] + x + 2 * bool(atoms), states[1] + e, y + bool(atoms) + 1 + how.time_width
    return oracle.random_state(widths, outputs, **SIZES), how


def digress_of(data: DataName, classes: tuple[int, int], **more: Any) -> Made:
    return weights(data, classes, classes, **{"features": "all", "pooling": "masked"} | more)


def digress(**more: Any) -> Made:
    return digress_of("qm9", QM9, **more)


def defog(data: DataName = "qm9", states: tuple[int, int] = QM9, outputs: tuple[int, int] = QM9, **more: Any) -> Made:
    how = {"features": "rrwp", "walk_length": 12, "pooling": "masked", "clock": "data", "time_width": 64}
    return weights(data, states, outputs, **how | more)


def lightning(path: Path, state: dict[str, Tensor], prefix: str = "model.", **more: Any) -> Path:
    """A file as Lightning writes it, with what is to be ignored in it."""
    others = {"noise_schedule.betas": torch.zeros(3), "train_loss.x": torch.zeros(1), "sampling_metrics.n": torch.zeros(2)}
    named = {prefix + name: t for name, t in state.items()}
    torch.save({"epoch": 3, "state_dict": others | named, "optimizer_states": [{"lr": 0.1}], **more}, path)
    return path


def noisy(sizes: tuple[int, ...], states: tuple[int, int]) -> GraphBatch:
    g = torch.Generator().manual_seed(3)
    mask = node_mask(torch.tensor(sizes), max(sizes))
    nodes = torch.where(mask, torch.randint(states[0], mask.shape, generator=g), 0)
    pairs = torch.randint(states[1], (len(sizes), num_pairs(max(sizes))), generator=g)
    return GraphBatch(nodes, symmetrise(torch.where(pair_mask(mask), pairs, 0), max(sizes)), mask)


def assert_their_logits(
    policy: GraphPolicy,
    made: Made,
    states: tuple[int, int] = QM9,
    clean: tuple[int, int] = QM9,
    sizes: tuple[int, ...] = (5, 2, 4),
) -> None:
    """Compare the logits of noisy graphs with the equations; where padding counts, these see graphs of the largest size."""
    state, how = made
    batch, time = noisy(sizes, states), torch.tensor([0.3, 0.0, 1.0])
    given = batch.pad(policy.max_nodes) if how.padded else batch
    inputs = oracle.literal_inputs(given.nodes, given.edges, time, given.mask, states, clean, how)
    x, e, y = (part.float() for part in inputs)
    nodes, edges = oracle.literal_forward(state, x, e, y, given.mask, how)
    found = policy.network(batch.nodes, batch.edges, time, batch.mask)
    exists, both, n = batch.mask, pair_mask(batch.mask), batch.num_nodes
    torch.testing.assert_close(found[0][exists], nodes[:, :n][exists][:, : clean[0]], atol=1e-5, rtol=1e-5)
    expected = upper(edges[:, :n, :n].contiguous())[both][:, : clean[1]]
    torch.testing.assert_close(upper(found[1])[both], expected, atol=1e-5, rtol=1e-5)


def check_as_a_policy(policy: TokenPolicy, folder: Path, columns: dict[str, Any]) -> None:
    """Draw, replay, save and load to the bit, and train."""
    policy.decode = None
    contexts = group_contexts(2, 8, [columns] * 2)
    rollout = policy.sample(contexts, generator=torch.Generator().manual_seed(0))
    (sites,) = policy.sites(rollout)
    replayed = sites.log_probs.gather(-1, sites.action.unsqueeze(-1)).flatten(1)
    torch.testing.assert_close(replayed.where(rollout.units > 0, 0.0), rollout.logp, atol=1e-4, rtol=1e-4)
    again = read_policy(save(folder, policy, metadata={"kind": "molecules"}))
    repeated = again.sample(contexts, generator=torch.Generator().manual_seed(0))
    assert repeated.samples == rollout.samples
    assert torch.equal(repeated.logp, rollout.logp)
    before = {name: t.clone() for name, t in policy.state_dict().items()}
    config = GRPOConfig(max_steps=2, num_generations=8, generation_batch_size=16, beta=0.1, learning_rate=1e-3)
    lines = GRPOTrainer(policy, length_reward, config, columns=[columns] * 2).train()
    assert len(lines) == 2
    moved = [name for name, t in policy.state_dict().items() if not torch.equal(t, before[name])]
    assert moved, "two updates change the weights"


def length_reward(samples: Sequence[str], **columns: Any) -> list[float]:
    return [float(len(s)) for s in samples]


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)
