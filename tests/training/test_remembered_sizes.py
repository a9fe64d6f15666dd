"""Node counts that a graph policy is asked for in rounds: their law against the sum over parents and shifts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from rdkit import Chem

from discrete_grpo.core.drawing import draw
from discrete_grpo.core.rollout import Context
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.loading import load_policy, rebuilt
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.training.memory import ScoredMemory, rank_weights
from discrete_grpo.training.objectives import Likelihood
from discrete_grpo.training.remembered_sizes import RememberedSizes
from discrete_grpo.training.rounds import Rounds
from discrete_grpo.training.rounds_config import RoundsConfig
from tests.benchmarking.parts import OXYGENS
from tests.benchmarking.test_methods import chains

KNOWN = [("CCO", 3.0), ("CCCCCCC", 2.0), ("C" * 40, 1.5), ("CCCCCCCCN", 1.0)]  # of 3, 7, 40 (too large) and 9 atoms


def remembered() -> ScoredMemory:
    memory = ScoredMemory()
    memory.add([(smiles, smiles, score) for smiles, score in KNOWN], "test")
    return memory


@pytest.fixture(scope="module")
def policy() -> Any:
    """A policy that draws 3 to 9 atoms, and never 8."""
    return rebuilt(load_policy("qm9-small"), lambda _: {"node_counts": (0, 0, 0, 0.1, 0.1, 0.1, 0.1, 0.2, 0, 0.4)})


@pytest.mark.parametrize(("share", "spread"), [(0.25, 0), (0.75, 1), (1.0, 2), (0.0, 1)])
def test_the_law_of_what_is_asked_for(policy: Any, share: float, spread: int) -> None:
    count = 1_000
    made = RememberedSizes(policy, share, spread)(remembered(), count, torch.Generator().manual_seed(1))
    assert [context.group for context in made] == list(range(count))
    found = Counter(context.columns.get("num_nodes") for context in made)
    wanted: Counter[int | None] = Counter({None: 1 - share})
    weights = (rank_weights(3, 0.01) / rank_weights(3, 0.01).sum()).tolist()
    for size, weight in zip((3, 7, 9), weights, strict=True):
        for by in range(-spread, spread + 1):
            moved = size + by if 0 < size + by < 10 and policy.node_counts[size + by] > 0 else size
            wanted[moved] += share * weight / (2 * spread + 1)
    assert sum(wanted.values()) == pytest.approx(1)
    assert set(found) <= {size for size, p in wanted.items() if p > 0}
    for asked, p in wanted.items():
        assert found[asked] / count == pytest.approx(p, abs=4 * (p * (1 - p) / count) ** 0.5 + 1e-9)


def test_the_policy_draws_what_it_is_asked_for(policy: Any) -> None:
    asked = RememberedSizes(policy, share=1.0, spread=0)(remembered(), 12, torch.Generator().manual_seed(0))
    drawn = draw(policy, asked, generator=torch.Generator().manual_seed(0))
    assert drawn.size.tolist() == [context.columns["num_nodes"] for context in asked]


def test_rounds_ask_the_policy_for_it() -> None:
    policy, ledger = load_policy("qm9-small", SamplerOptions(num_steps=5)), Ledger(key=molecule_key, max_oracle_calls=12)
    seen: list[int] = []

    def three(memory: ScoredMemory, count: int, generator: torch.Generator) -> list[Context]:
        seen.append(count)
        return [Context(k, {"num_nodes": 3}) for k in range(count)]

    config = RoundsConfig(draws=20, children=0, passes=0)
    loop = Rounds(policy, OXYGENS, ledger, molecule_key, Likelihood(), config, contexts=three, generator=torch.Generator())
    found = loop.run()
    assert set(seen) == {20}
    assert len(found) > 3
    assert all(Chem.MolFromSmiles(entry.sample).GetNumAtoms() == 3 for entry in found.kept)


def test_equal_seeds_ask_for_the_same_and_an_empty_memory_for_nothing(policy: Any) -> None:
    sizes = RememberedSizes(policy)
    first, again = (sizes(remembered(), 30, torch.Generator().manual_seed(5)) for _ in range(2))
    assert [context.columns for context in first] == [context.columns for context in again]
    unknown = ScoredMemory()
    unknown.add([("C" * 40, "C" * 40, 1.0)], "test")
    for memory in (ScoredMemory(), unknown):
        assert all(not context.columns for context in sizes(memory, 4, torch.Generator()))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"share": 1.5}, "share: 1.5, expected 0 to 1"),
        ({"spread": -1}, "spread: -1, expected at least 0"),
        ({"rank_coefficient": 0}, "rank_coefficient: 0, expected more than 0"),
    ],
)
def test_numbers_out_of_their_range_are_refused(policy: Any, given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        replace(RememberedSizes(policy), **given)


def test_a_policy_without_node_counts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^policy: TokenPolicy, expected a graph policy with graphs_of"):
        RememberedSizes(chains())
