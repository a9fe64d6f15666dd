"""Proposers of molecules: genetic operators on molecules of the memory."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.domains.molecule_operators import reproduce, splice
from discrete_grpo.domains.smiles import parse, to_smiles
from discrete_grpo.domains.smiles_grammar import decode_gene, encode_gene, mutate_gene
from discrete_grpo.training.memory import ScoredMemory, rank_weights

__all__ = ["GraphGenetic", "SmilesGenetic", "Splicing"]

TRIES = 6
"""Number of attempts per requested child."""


def _rng(generator: torch.Generator) -> random.Random:
    """A generator of Python's for the operators, seeded by one draw."""
    return random.Random(int(torch.randint(2**62, (), generator=generator, device=generator.device)))


@dataclass(frozen=True)
class GraphGenetic:
    """Crossover and mutation of molecular graphs (Jensen 2019) on parents drawn from the memory by rank.

    Attributes:
        population: number of the best that can be parents, at least 2; None takes all that the memory holds.
        mutation_rate: probability of a mutation after the crossover, in [0, 1].
        rank_coefficient: k of :func:`~discrete_grpo.training.memory.rank_weights` for the parents.
        name: of the source in the ledger.
    """

    population: int | None = None
    mutation_rate: float = 0.067
    rank_coefficient: float = 0.01
    name: str = "graph-ga"

    def __post_init__(self) -> None:
        if self.population is not None:
            check_whole("population", self.population, least=2, note=" or None")
        check_range("mutation_rate", self.mutation_rate, least=0, most=1)
        check_range("rank_coefficient", self.rank_coefficient, above=0)

    def propose(self, memory: ScoredMemory, count: int, generator: torch.Generator) -> list[str]:
        """At most ``count`` different children that the memory does not hold."""
        parents = memory.kept[: self.population]
        if len(parents) < 2:
            return []
        rng, weights = _rng(generator), rank_weights(len(parents), self.rank_coefficient).tolist()
        smiles, found = [entry.sample for entry in parents], dict[str, None]()
        for _ in range(TRIES * count):
            child = reproduce(smiles, rng, weights=weights, mutation_rate=self.mutation_rate)
            if child is not None and child not in memory:
                found[child] = None
                if len(found) == count:
                    break
        return list(found)


@dataclass(frozen=True)
class SmilesGenetic:
    """Mutation of the grammatical genes of SMILES strings (ChemGE, Yoshikawa et al. 2018).

    Attributes:
        population: number of the best that can be parents, at least 1.
        name: of the source in the ledger.
    """

    population: int = 100
    name: str = "smiles-ga"

    def __post_init__(self) -> None:
        check_whole("population", self.population, least=1)

    def propose(self, memory: ScoredMemory, count: int, generator: torch.Generator) -> list[str]:
        """At most ``count`` children, each a parent with one mutated gene."""
        parents = memory.kept[: self.population]
        rng, found = _rng(generator), dict[str, None]()
        for _ in range(TRIES * count if parents else 0):
            gene = encode_gene(rng.choice(parents).sample, rng)
            text = None if gene is None else decode_gene(mutate_gene(gene, rng))
            mol = None if text is None or text in memory else parse(text)  # two codons of three are silent
            if mol is not None and (smiles := to_smiles(mol)) not in memory:
                found[smiles] = None
                if len(found) == count:
                    break
        return list(found)


@dataclass(frozen=True)
class Splicing:
    """Exchange of BRICS fragments between parents drawn from the memory by rank.

    Attributes:
        population: number of the best that can be parents, at least 2; None takes all that the memory holds.
        name: of the source in the ledger.
    """

    population: int | None = None
    name: str = "splicing"

    def __post_init__(self) -> None:
        if self.population is not None:
            check_whole("population", self.population, least=2, note=" or None")

    def propose(self, memory: ScoredMemory, count: int, generator: torch.Generator) -> list[str]:
        """At most ``count`` different children that the memory does not hold."""
        parents = memory.kept[: self.population]
        if len(parents) < 2:
            return []
        rng, weights = _rng(generator), rank_weights(len(parents), memory.rank_coefficient).tolist()
        found = dict[str, None]()
        for _ in range(TRIES * count):
            a, b = (parse(entry.sample) for entry in rng.choices(parents, weights, k=2))
            child = None if a is None or b is None else splice(a, b, rng)
            if child is not None and (smiles := to_smiles(child)) not in memory:
                found[smiles] = None
                if len(found) == count:
                    break
        return list(found)
