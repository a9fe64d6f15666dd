"""Policies of molecules in space: data to fields and back, pretraining, GRPO and the kit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from discrete_grpo.core.rollout import Context
from discrete_grpo.datasets.spatial import conformers, spatial_statistics
from discrete_grpo.datasets.spatial_fields import decode, encode, spatial_graphs
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, smiles_of
from discrete_grpo.models.equivariant import EquivariantSizes
from discrete_grpo.recipes.pretraining.spatial import SpatialOptions, spatial_policy
from discrete_grpo.rewards.spatial import atom_stability
from discrete_grpo.testing import check_policy
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer

SMILES = ("O", "CO", "C#N", "[NH4+]", "C=O", "CC", "N", "C[O-]")
TINY = EquivariantSizes(layers=2, heads=2, width=16, edge_width=8, global_width=8)
DATA = conformers(SMILES)
STATS = spatial_statistics(DATA, "tiny")


def policy(**options: Any) -> Any:
    return spatial_policy(STATS, TINY, SpatialOptions(**{"num_steps": 5} | options))


def test_molecules_become_fields_and_come_back() -> None:
    batch = encode(DATA.molecules, STATS)
    assert batch.positions is not None
    torch.testing.assert_close(batch.positions.sum(1), torch.zeros(len(DATA), 3), rtol=0, atol=1e-5)
    squares = float(batch.positions.square().sum()) / (3 * int(batch.mask.sum()))
    assert squares == pytest.approx(1.0, abs=1e-5)  # in units of the deviation of the data
    for one, back in zip(DATA.molecules, decode(batch, STATS), strict=True):
        assert back is not None
        assert (back.symbols, back.charges, sorted(back.bonds)) == (one.symbols, one.charges, sorted(one.bonds))
        centre = one.coordinates.mean(0)
        assert abs(back.coordinates - (one.coordinates - centre)).max() < 1e-5
        assert smiles_of(back) == smiles_of(one)


def test_a_batch_holds_each_molecule_as_it_is_alone() -> None:
    data, rows = spatial_graphs(DATA.molecules, STATS), [3, 0, 7, 3]
    batch = data.batch(torch.tensor(rows))
    assert batch.positions is not None
    assert batch.num_nodes == max(len(DATA[k]) for k in rows)
    assert data.sizes.tolist() == [len(one) for one in DATA]
    for k, row in enumerate(rows):
        one = DATA[row]
        n = len(one)
        assert batch.mask[k].tolist() == [True] * n + [False] * (batch.num_nodes - n)
        assert batch.nodes["atom"][k].tolist() == [STATS.symbols.index(x) for x in one.symbols] + [0] * (batch.num_nodes - n)
        assert batch.nodes["charge"][k].tolist() == [STATS.charges.index(x) for x in one.charges] + [0] * (batch.num_nodes - n)
        bonds = torch.zeros(batch.num_nodes, batch.num_nodes, dtype=torch.long)
        for i, j, order in one.bonds:
            bonds[i, j] = bonds[j, i] = order
        assert torch.equal(batch.edges["bond"][k], bonds)
        expected = (one.coordinates - one.coordinates.mean(0)) / STATS.position_std
        assert abs(batch.positions[k, :n].numpy() - expected).max() < 1e-6
        assert not batch.positions[k, n:].any()


def test_a_position_that_is_not_finite_makes_no_molecule() -> None:
    batch = encode(DATA.molecules[:2], STATS)
    assert batch.positions is not None
    batch.positions[1, 0, 0] = math.nan
    first, second = decode(batch, STATS)
    assert first is not None
    assert second is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"symbols": ("F", "H", "H")}, "samples: element 'F', expected one of H, C, N, O"),
        ({"charges": (2, 0, 0)}, "samples: charge 2, expected one of -1, 0, 1"),
        ({"bonds": ((0, 1, 4),)}, "samples: bond order: 4, expected at most 3|samples: bond order: 4, expected 1 to 3"),
    ],
)
def test_what_the_data_does_not_have_is_refused(change: dict[str, Any], said: str) -> None:
    water = DATA.molecules[0]
    with pytest.raises(ValueError, match=said):
        encode([replace(water, **change)], STATS)
    with pytest.raises(ValueError, match="samples: str, expected a SpatialMolecule"):
        encode(["O"], STATS)  # type: ignore[list-item]


def test_the_loss_falls() -> None:
    made = policy(learned_variance=True)
    data = spatial_graphs(DATA.molecules, STATS)
    optimizer = torch.optim.Adam(made.network.parameters(), lr=5e-3)
    random = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(80):
        loss = made.likelihood_loss(data.batch(torch.arange(len(data)).repeat(4)), generator=random)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < 0.75 * sum(losses[:10])


def test_samples_are_molecules_that_rewards_see_and_grpo_trains() -> None:
    made = policy()
    samples = made.sample([Context(k) for k in range(6)], generator=torch.Generator().manual_seed(0)).samples
    assert all(isinstance(one, SpatialMolecule) for one in samples)
    assert all(made.can_draw(one) for one in samples)
    config = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, beta=0.1, learning_rate=1e-3)
    lines = GRPOTrainer(made, atom_stability, config).train()
    assert all(math.isfinite(value) for line in lines for name, value in line.items() if name.startswith("fields/"))


def test_the_kit() -> None:
    made = spatial_policy(STATS, TINY, SpatialOptions(num_steps=3))
    report = check_policy(made, [Context(k // 2) for k in range(4)], samples=200, skip=("learning",))
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_steps": 0}, "num_steps: 0"),
        ({"exponents": (1.0,)}, "exponents: .*expected four numbers"),
        ({"exponents": (1.0, 0.0, 1.0, 1.0)}, "exponents: 0"),
        ({"weights": (1.0, -1.0, 1.0, 1.0)}, "weights: -1"),
        ({"min_std": 0.0}, "min_std: 0"),
    ],
)
def test_options_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        policy(**given)
