"""Molecules are parsed once per generation, by whoever asks first: ledger, rewards, metrics and tables share them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from discrete_grpo.core.scoring import score_samples
from discrete_grpo.domains import molecule_properties, smiles
from discrete_grpo.domains.smiles import _Parsed, parse, parse_smiles, to_smiles
from discrete_grpo.metrics.molecules import evaluate, sample_metrics
from discrete_grpo.recipes.kinds import molecules as molecular
from discrete_grpo.recipes.kinds.molecules import property_columns
from discrete_grpo.rewards import diversity
from discrete_grpo.rewards.diversity import DiversityFilter, diversity_metrics
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.rewards.molecules import molecular_weight, qed, validity

GENERATION = 5000


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every SMILES that RDKit is given, beginning with nothing parsed."""
    given: list[str] = []
    original = parse_smiles

    def counted(text: str) -> object:
        given.append(text)
        return original(text)

    monkeypatch.setattr(smiles, "_PARSED", _Parsed())
    monkeypatch.setattr(smiles, "parse_smiles", counted)
    for slow in ("qed_score", "crippen_logp", "sa_score"):
        monkeypatch.setattr(molecule_properties, slow, lambda mol: 0.0)
    monkeypatch.setattr(molecular, "PROPERTIES", {"weight": molecule_properties.molar_mass})
    molecule_key.cache_clear()
    yield given
    molecule_key.cache_clear()


def chains(count: int) -> list[str]:
    """Different small molecules, written as RDKit writes them."""
    found = ("".join(atoms) for size in itertools.count(4) for atoms in itertools.product("CNO", repeat=size))
    canonical = dict.fromkeys(to_smiles(mol) for text in itertools.islice(found, 2 * count) if (mol := parse(text)))
    assert len(canonical) >= count
    return list(canonical)[:count]


def generation(samples: Sequence[str | None]) -> None:
    """What a run does with the samples of a generation."""
    score_samples([molecular_weight, validity], samples, ledger=Ledger(key=molecule_key))
    sample_metrics(samples)
    diversity_metrics(samples)


@pytest.mark.slow
def test_a_generation_larger_than_the_usual_room_is_parsed_once(parses: list[str]) -> None:
    samples = chains(2 * GENERATION)
    parses.clear()
    for part in (samples[:GENERATION], samples[GENERATION:]):
        generation(part)
    assert GENERATION * 2 <= len(parses) <= 1.01 * GENERATION * 2


def test_rewards_without_a_ledger_and_tables_parse_once_too(parses: list[str]) -> None:
    samples = chains(GENERATION)
    parses.clear()
    score_samples([molecular_weight, validity], samples)
    evaluate([*samples, None], {"CCO"})
    property_columns(samples)
    assert GENERATION <= len(parses) <= 1.01 * GENERATION


def test_an_evaluation_of_more_than_is_kept_is_parsed_once(parses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Parsed, "LEAST", 64)
    monkeypatch.setattr(_Parsed, "MOST", 64)
    monkeypatch.setattr(smiles, "_PARSED", _Parsed())
    samples = chains(300)
    parses.clear()
    evaluate(samples, {"CCO"})
    assert len(parses) == 300


def test_what_is_kept_is_bounded() -> None:
    kept = _Parsed()
    rooms = [kept.room]
    for count in (1, 4096, 4097, 5000, 100, 16384, 10**9):
        kept.reserve(count)
        rooms.append(kept.room)
    assert rooms == [4096, 4096, 4096, 8192, 8192, 8192, 16384, 16384]
    assert kept.get.cache_info().maxsize == 16384
    kept.get("CCO")
    kept.reserve(10**9)
    assert kept.get.cache_info().currsize == 1  # it is not emptied where it cannot grow


def test_the_scaffolds_of_a_filter_are_compared_by_fingerprints_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    fingerprint = diversity._atom_pairs
    monkeypatch.setattr(diversity, "_atom_pairs", lambda s: made.append(s) or fingerprint(s))  # type: ignore[func-returns-value]
    rings = ["C1CC1", "c1ccccc1", "C1CCNCC1", "c1ccc2ccccc2c1", "C1CCC2CC2C1", "c1ccsc1"]
    found = DiversityFilter(qed, "ScaffoldSimilarity", minscore=0.0, minsimilarity=1.0)
    found(rings)
    assert len(found.buckets) == len(rings)
    assert len(made) <= 2 * len(rings)  # that of the new scaffold, and that of its bucket
    state = found.state_dict()
    again = DiversityFilter(qed, "ScaffoldSimilarity", minscore=0.0, minsimilarity=1.0)
    again.load_state_dict(state)
    fresh = ["c1ccncc1", "Cc1ccccc1"]
    assert again(fresh) == found(fresh)
    assert again.buckets == found.buckets
