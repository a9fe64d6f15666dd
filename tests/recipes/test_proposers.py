"""Proposers of molecules: children are valid, new and decided by the generator; parents are the best by rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.domains.smiles import to_smiles
from discrete_grpo.recipes import proposers
from discrete_grpo.recipes.proposers import GraphGenetic, SmilesGenetic, Splicing
from discrete_grpo.rewards.ledger import molecule_key
from discrete_grpo.training.memory import ScoredMemory, rank_weights
from discrete_grpo.training.proposers import Proposer

DRUGS = [
    "CC(=O)Oc1ccccc1C(=O)O",
    "CC(C)Cc1ccc(C(C)C(=O)O)cc1",
    "COc1ccc2[nH]cc(CCNC(C)=O)c2c1",
    "CCOc1ccc(OCC)c(C(=O)NCc2ccccc2)c1",
    "O=C(Nc1ccccc1)c1ccc(CN2CCOCC2)cc1",
    "CCN(CC)CCOC(=O)c1ccc(N)cc1",
]


def memory_of(count: int, rank_coefficient: float = 0.05) -> ScoredMemory:
    memory = ScoredMemory(rank_coefficient=rank_coefficient)
    keys = [str(molecule_key(text)) for text in DRUGS[:count]]
    memory.add([(key, key, 1 - k / 10) for k, key in enumerate(keys)])
    return memory


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


ALL: list[Any] = [GraphGenetic(mutation_rate=0.5), SmilesGenetic(), Splicing()]
every = pytest.mark.parametrize("proposer", ALL, ids=lambda proposer: proposer.name)


@every
def test_children_are_valid_new_and_different(proposer: Proposer) -> None:
    memory = memory_of(6)
    found = proposer.propose(memory, 12, generator())
    assert 1 <= len(found) <= 12  # most mutations of a gene are silent, or give no molecule
    assert len(set(found)) == len(found)
    assert all(molecule_key(child) is not None for child in found)
    assert not set(found) & {entry.key for entry in memory.kept}
    assert len(memory) == 6


@every
def test_the_generator_decides(proposer: Proposer) -> None:
    memory = memory_of(6)
    assert proposer.propose(memory, 8, generator()) == proposer.propose(memory, 8, generator())
    assert proposer.propose(memory, 8, generator()) != proposer.propose(memory, 8, generator(1))
    random = generator()
    assert proposer.propose(memory, 8, random) != proposer.propose(memory, 8, random)


@every
def test_too_few_parents_have_no_children(proposer: Proposer) -> None:
    assert proposer.propose(ScoredMemory(), 5, generator()) == []
    if not isinstance(proposer, SmilesGenetic):
        assert proposer.propose(memory_of(1), 5, generator()) == []
    assert proposer.propose(memory_of(6), 0, generator()) == []


def test_parents_of_the_graph_operators_are_the_best_weighed_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], list[float]]] = []

    def reproduce(parents: list[str], rng: Any, *, weights: list[float], mutation_rate: float) -> str | None:
        assert mutation_rate == 0.25
        seen.append((parents, weights))
        return None if len(seen) % 2 else parents[0]  # no child, or one that is known

    monkeypatch.setattr(proposers, "reproduce", reproduce)
    memory = memory_of(6)
    assert GraphGenetic(4, 0.25, 0.3).propose(memory, 5, generator()) == []
    assert seen == [([entry.sample for entry in memory.kept[:4]], rank_weights(4, 0.3).tolist())] * 30  # six tries per child
    seen.clear()
    GraphGenetic(mutation_rate=0.25).propose(memory, 1, generator())
    assert seen[0] == ([entry.sample for entry in memory.kept], rank_weights(6, 0.01).tolist())


def test_parents_of_splicing_have_the_odds_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(proposers, "splice", lambda a, b, rng: seen.extend(to_smiles(x) for x in (a, b)))
    memory = memory_of(6, rank_coefficient=0.1)
    assert Splicing(population=3).propose(memory, 250, generator()) == []
    counts = [seen.count(str(entry.key)) for entry in memory.kept]
    weights = [1 / (0.3 + rank) for rank in range(3)]
    assert counts[3:] == [0, 0, 0]
    assert sum(counts) == 2 * 6 * 250
    assert [n / 3000 for n in counts[:3]] == pytest.approx([w / sum(weights) for w in weights], abs=0.03)


def test_parents_of_the_genes_are_the_population(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(proposers, "encode_gene", lambda text, rng: seen.append(text))
    memory = memory_of(6)
    assert SmilesGenetic(population=2).propose(memory, 100, generator()) == []
    assert len(seen) == 600
    assert set(seen) == {entry.sample for entry in memory.kept[:2]}
    assert 250 < seen.count(memory.kept[0].sample) < 350  # all alike


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (GraphGenetic, {"population": 1}, "population: 1, expected at least 2 or None"),
        (GraphGenetic, {"mutation_rate": 1.1}, "mutation_rate: 1.1"),
        (GraphGenetic, {"rank_coefficient": 0.0}, "rank_coefficient: 0"),
        (SmilesGenetic, {"population": 0}, "population: 0"),
        (Splicing, {"population": 1}, "population: 1"),
    ],
)
def test_settings_are_refused(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind(**given)


def all_children() -> list[list[str]]:
    return [proposer.propose(memory_of(6), 12, generator(3)) for proposer in ALL]


@pytest.mark.slow
def test_children_are_the_same_in_a_process_with_other_hashes() -> None:
    code = "from tests.recipes.test_proposers import all_children; print(all_children())"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == str(all_children())
