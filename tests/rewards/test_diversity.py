"""Diversity rewards: the filter against a plain reading of its definition, set-level ones against brute force."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch
from rdkit import Chem, DataStructs
from rdkit.Chem.AtomPairs import Pairs
from rdkit.Chem.Scaffolds import MurckoScaffold

from discrete_grpo.core.reward_arguments import remembers, reward_name
from discrete_grpo.core.rollout import Reward
from discrete_grpo.core.scoring import RewardError, score_samples, take_failures
from discrete_grpo.domains import molecule_properties
from discrete_grpo.domains.smiles import parse
from discrete_grpo.domains.spatial_molecules import SpatialMolecule
from discrete_grpo.metrics.molecules import internal_diversity
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.combine import WeightedSum
from discrete_grpo.rewards.diversity import (
    DiversityContribution,
    DiversityFilter,
    FilterKind,
    MeanDistance,
    diversity_metrics,
    topological_scaffold,
)
from discrete_grpo.rewards.graph_views import GraphView
from discrete_grpo.rewards.graphs import NovelTo
from discrete_grpo.rewards.identity import reward_identity
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.rewards.molecules import InRange, Target, qed
from discrete_grpo.rewards.penalties import Penalty, erf_penalty, linear_penalty, sigmoid_penalty, step_penalty, tanh_penalty
from discrete_grpo.rewards.pool import RewardPool
from discrete_grpo.rewards.spatial import OfSmiles

RINGS = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CC1", "c1ccc2ccccc2c1", "C1CCCNC1=O", "c1ccoc1"]
CHAINS = ["", "C", "CC", "O", "N", "F", "OC", "CCO"]
MOLECULES = [f"{chain}{ring}" for ring in RINGS for chain in CHAINS] + ["CCO", "CCN", "CCCC"]


def ones(samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
    return [0.0 if s is None else 1.0 for s in samples]


def lengths(samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
    return [0.0 if s is None else len(s) / 12 for s in samples]


def drawn(count: int, seed: int) -> list[str | None]:
    return random.Random(seed).choices([*MOLECULES, None, "C(", "C.C"], k=count)


# -- penalties


@pytest.mark.parametrize("size", [1, 3, 25])
def test_the_shapes_are_those_of_the_source(size: int) -> None:
    for n in range(1, 4 * size + 2):
        assert step_penalty(n, size) == (0.0 if n > size else 1.0)
        assert linear_penalty(n, size) == pytest.approx(max(0.0, (size - n) / size), abs=1e-12)
        up, down = math.exp(3 * (n - 1) / size), math.exp(-3 * (n - 1) / size)
        assert tanh_penalty(n, size) == pytest.approx(1 - (up - down) / (up + down), abs=1e-12)
        assert sigmoid_penalty(n, size) == pytest.approx(1 - 1 / (1 + math.exp(-(n / size * 2 - 1) / 0.15)), abs=1e-12)
        # erf by its integral, Simpson's rule
        a, b, m = math.sqrt(math.pi) / size, math.sqrt(math.pi) / size * n, 400
        grid = [a + (b - a) * k / m for k in range(m + 1)]
        weights = [1, *([4, 2] * m)[: m - 1], 1]
        area = sum(w * math.exp(-x * x) for w, x in zip(weights, grid, strict=True)) * (b - a) / m / 3
        assert erf_penalty(n, size) == pytest.approx(1 - 2 / math.sqrt(math.pi) * area, abs=1e-7)
    assert 0.0 <= sigmoid_penalty(10**9, size) < 1e-12


# -- the filter


def plainly(samples: Sequence[str | None], scores: Sequence[float | None], kind: str, **settings: Any) -> list[float | None]:
    """The filter read off its definition, with lists and RDKit's older fingerprints."""
    size, minscore = settings.get("bucket_size", 25), settings.get("minscore", 0.4)
    seen: list[str] = []
    hits: list[str] = []
    result: list[float | None] = []
    for sample, score in zip(samples, scores, strict=True):
        mol = parse(sample)
        if mol is None or score is None:
            result.append(score)
            continue
        text = Chem.MolToSmiles(mol)
        if kind == "PenalizeSameSmiles":
            result.append(score * 0.5 if text in seen else score)
            seen.append(text)
            continue
        core = MurckoScaffold.GetScaffoldForMol(mol)
        if kind == "IdenticalTopologicalScaffold":
            core = MurckoScaffold.MakeScaffoldGeneric(core)
        scaffold = Chem.MolToSmiles(core)
        if kind == "ScaffoldSimilarity" and scaffold:
            old = [h for h in dict.fromkeys(hits) if h]
            pairs: Any = Pairs  # RDKit's stubs leave the function out
            own = pairs.GetAtomPairFingerprint(Chem.MolFromSmiles(scaffold))
            alike = [DataStructs.DiceSimilarity(own, pairs.GetAtomPairFingerprint(Chem.MolFromSmiles(h))) for h in old]
            if alike and max(alike) >= 0.4:
                scaffold = old[alike.index(max(alike))]
        if text in seen:
            result.append(0.0)
        elif score < minscore:
            result.append(score)
        else:
            seen.append(text)
            hits.append(scaffold)
            result.append(score if hits.count(scaffold) <= size else 0.0)
    return result


@pytest.mark.parametrize("kind", get_args(FilterKind))
@pytest.mark.parametrize("bucket_size", [1, 3])
def test_the_filter_is_its_definition(kind: FilterKind, bucket_size: int) -> None:
    samples = drawn(160, 3)
    filtered = DiversityFilter(lengths, kind, bucket_size=bucket_size, minscore=0.6)
    found = [score for k in range(0, 160, 32) for score in filtered(samples[k : k + 32])]
    assert found == plainly(samples, lengths(samples), kind, bucket_size=bucket_size, minscore=0.6)
    assert found != lengths(samples)


def test_kinds_differ_in_what_they_call_the_same() -> None:
    samples = ["Cc1ccccc1", "CC1CCCCC1", "Cc1ccncc1", "Cc1ccoc1"]
    counts = {kind: DiversityFilter(ones, kind) for kind in get_args(FilterKind)}
    for reward in counts.values():
        reward(samples)
    assert list(counts["IdenticalMurckoScaffold"].buckets.values()) == [1, 1, 1, 1]
    assert counts["IdenticalTopologicalScaffold"].buckets == {"C1CCCCC1": 3, "C1CCCC1": 1}
    assert sum(counts["ScaffoldSimilarity"].buckets.values()) == 4
    assert len(counts["ScaffoldSimilarity"].buckets) < 4
    assert counts["PenalizeSameSmiles"].buckets == {}
    assert topological_scaffold(Chem.MolFromSmiles("CCO")) == ""


def test_the_same_molecule_in_another_spelling_is_the_same() -> None:
    assert DiversityFilter(ones)(["Cc1ccccc1", "c1ccccc1C"]) == [1.0, 0.0]
    assert DiversityFilter(ones)(["C[C@H](O)F", "C[C@@H](O)F"]) == [1.0, 1.0], "enantiomers are two molecules"


@pytest.mark.parametrize("penalty", get_args(Penalty))
def test_a_bucket_fills_by_its_shape(penalty: Penalty) -> None:
    shape = {"Step": step_penalty, "Linear": linear_penalty, "Tanh": tanh_penalty, "Sigmoid": sigmoid_penalty, "Erf": erf_penalty}
    chain = [f"{'C' * k}c1ccccc1" for k in range(1, 8)]
    found = DiversityFilter(ones, bucket_size=4, penalty=penalty)(chain)
    assert found == [shape[penalty](n, 4) for n in range(1, 8)]


def test_the_invalid_and_the_unknown_are_not_remembered() -> None:
    answers: Iterator[list[float | None]] = iter([[None, 0.3, 1.0, -0.5], [1.0, 1.0, -0.5]])

    def told(samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        return next(answers)

    filtered = DiversityFilter(told)
    assert filtered(["Cc1ccccc1", "C1CC1", "c1ccccc1", None]) == [None, 0.3, 1.0, -0.5]
    assert filtered(["Cc1ccccc1", "C1CC1", "c1ccccc1", "C("]) == [1.0, 1.0, 0.0, -0.5]
    assert dict(filtered.buckets) == {"c1ccccc1": 2, "C1CC1": 1}
    known = DiversityFilter(lambda samples, **columns: [-1.0] * len(samples), "PenalizeSameSmiles")
    assert known(["C", "C"]) == [-1.0, -1.0], "a repeat gains nothing by being one"


def test_the_wrapped_reward_is_asked_no_more_than_it_must() -> None:
    asked: list[tuple[str | None, int]] = []

    def reward(samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        asked.extend(zip(samples, columns["k"], strict=True))
        return [1.0] * len(samples)

    filtered = DiversityFilter(reward)
    filtered(["C", "CC"], k=[1, 2])
    assert filtered(["CC", "CCC", "C"], k=[3, 4, 5]) == [0.0, 1.0, 0.0]
    assert asked == [("C", 1), ("CC", 2), ("CCC", 4)]
    assert filtered(["C"], k=[6]) == [0.0]
    assert reward_name(filtered) == "reward filtered"
    assert take_failures([filtered]) == {}


def test_a_failing_reward_is_named_and_leaves_the_memory_alone() -> None:
    def broken(samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        raise RuntimeError("no licence")

    filtered = DiversityFilter(broken)
    with pytest.raises(RewardError, match="reward broken: raised RuntimeError: no licence"):
        filtered(["C"])
    assert filtered.state_dict() == DiversityFilter(ones).state_dict()


@pytest.mark.parametrize("kind", get_args(FilterKind))
def test_a_memory_goes_through_json_and_goes_on_the_same(kind: FilterKind) -> None:
    first, second = drawn(60, 0), drawn(60, 1)
    whole = DiversityFilter(lengths, kind, bucket_size=2, minscore=0.5, penalty="Tanh")
    whole(first)
    text = json.dumps(whole.state_dict(), sort_keys=True)
    again = DiversityFilter(lengths, kind, bucket_size=2, minscore=0.5, penalty="Tanh")
    again(drawn(10, 2))  # forgotten by what follows
    again.load_state_dict(json.loads(text))
    assert json.dumps(again.state_dict(), sort_keys=True) == text
    assert again(second) == whole(second)
    assert again.state_dict() == whole.state_dict()
    other: FilterKind = "PenalizeSameSmiles" if kind != "PenalizeSameSmiles" else "ScaffoldSimilarity"
    with pytest.raises(ValueError, match=f"kind: {other}, expected {kind}"):
        DiversityFilter(lengths, other).load_state_dict(whole.state_dict())


def test_a_state_is_a_copy() -> None:
    filtered = DiversityFilter(ones)
    filtered(["C1CC1"])
    state = filtered.state_dict()
    filtered(["CC1CC1"])
    assert state["buckets"] == [["C1CC1", 1]]


def test_nothing_with_a_memory_or_a_set_is_cached() -> None:
    rewards: list[Reward] = [DiversityFilter(qed), DiversityContribution(), MeanDistance()]
    assert [reward_identity(reward) for reward in rewards] == [None] * 3
    ledger = Ledger(key=molecule_key, cache=ScoreCache())
    for turn in range(2):
        scores = score_samples([DiversityFilter(ones), *rewards[1:]], ["C1CC1", "C1CC1", None], ledger=ledger)
        assert scores[:, 0].tolist() == [1.0, 0.0, 0.0], turn
        assert scores[:, 2].tolist() == [0.0, 0.0, 0.0]
    ledger.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "Murcko"}, "kind: 'Murcko', expected one of IdenticalMurckoScaffold, "),
        ({"penalty": "step"}, "penalty: 'step', expected one of Step, "),
        ({"bucket_size": 0}, "bucket_size: 0"),
        ({"minscore": -0.1}, "minscore: -0.1"),
        ({"minscore": math.nan}, "minscore: nan"),
        ({"minsimilarity": 1.1}, "minsimilarity: 1.1"),
        ({"penalty_multiplier": -1}, "penalty_multiplier: -1"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DiversityFilter(ones, **settings)
    with pytest.raises(ValueError, match="reward: 3"):
        DiversityFilter(3)  # type: ignore[arg-type]


# -- sets


def brute_diversity(samples: Sequence[str]) -> float:
    if not samples:
        return 0.0
    prints = [molecule_properties.bit_fingerprint(Chem.MolFromSmiles(s), 2, 1024) for s in samples]
    pairs = [DataStructs.TanimotoSimilarity(a, b) for a, b in itertools.product(prints, prints)]
    return 1.0 - sum(pairs) / len(pairs)


@pytest.mark.parametrize("count", [1, 2, 3, 11])
def test_a_contribution_is_what_leaving_the_sample_out_costs(count: int) -> None:
    valid = random.Random(count).choices(MOLECULES, k=count)
    samples = [*valid[:1], None, *valid[1:], "C("]
    found = DiversityContribution()(samples)
    left_out = [brute_diversity(valid) - brute_diversity(valid[:k] + valid[k + 1 :]) for k in range(count)]
    expected = [left_out[0], 0.0, *left_out[1:], 0.0]
    assert found == pytest.approx(expected, abs=1e-12)
    assert brute_diversity(valid) == pytest.approx(internal_diversity(samples), abs=1e-12)


def test_a_copy_adds_less_than_nothing_and_distance_orders_alike() -> None:
    samples = ["Cc1ccccc1", "Cc1ccccc1", "CCc1ccccc1", "CCO", "C1CC1"]
    gain, distance = DiversityContribution()(samples), MeanDistance()(samples)
    assert max(gain[:2]) < 0 < min(gain[3:])
    assert sorted(range(5), key=gain.__getitem__) == sorted(range(5), key=distance.__getitem__)
    prints = [molecule_properties.bit_fingerprint(Chem.MolFromSmiles(s), 2, 1024) for s in samples]
    for k, own in enumerate(prints):
        others = [1 - DataStructs.TanimotoSimilarity(own, other) for j, other in enumerate(prints) if j != k]
        assert distance[k] == pytest.approx(sum(others) / 4, abs=1e-12)
    assert MeanDistance()(["C", None]) == [1.0, 0.0]
    assert DiversityContribution()([None]) == [0.0]
    assert MeanDistance()([]) == []


@pytest.mark.parametrize("measure", [DiversityContribution, MeanDistance])
def test_sets_are_told_apart_by_a_column(measure: type[DiversityContribution] | type[MeanDistance]) -> None:
    samples, labels = drawn(40, 5), [k % 3 for k in range(40)]
    found = measure(by="target")(samples, target=labels)
    for label in range(3):
        own = [k for k in range(40) if labels[k] == label]
        assert [found[k] for k in own] == measure()([samples[k] for k in own])
    with pytest.raises(ValueError, match=r"target: no such column, .* \(columns given: other\)"):
        measure(by="target")(samples, other=labels)


@pytest.mark.parametrize("make", [torch.tensor, lambda k: torch.tensor([k]), np.int64, np.array])
def test_labels_of_other_libraries_count_by_their_value(make: Callable[[int], Any]) -> None:
    samples, labels = ["CCO", "CCO", "CCC", "CCC"], [0, 1, 1, 1]
    found = MeanDistance(by="target")(samples, target=[make(k) for k in labels])
    assert found == MeanDistance(by="target")(samples, target=labels) != [1.0] * 4


@pytest.mark.parametrize("label", [[1], torch.zeros(2), np.zeros(2), ([1],)])
def test_labels_that_tell_nothing_apart_are_refused(label: Any) -> None:
    with pytest.raises(ValueError, match=r"^target: .*, expected labels that tell the sets apart, such as numbers or texts$"):
        MeanDistance(by="target")(["CCO", "CCC"], target=[label, label])


# -- metrics


def test_metrics_are_those_of_the_table() -> None:
    samples = drawn(90, 7)
    found = diversity_metrics(samples)
    mols = [mol for mol in map(parse, samples) if mol is not None]
    assert found["unique_scaffolds"] == len({molecule_properties.murcko_scaffold(mol) for mol in mols}) / len(mols)
    assert found["internal_diversity"] == pytest.approx(internal_diversity(samples), abs=1e-12)
    assert diversity_metrics([None, "C("]) == diversity_metrics([]) == {"unique_scaffolds": 0.0, "internal_diversity": 0.0}


def test_of_many_samples_evenly_spaced_ones_are_taken() -> None:
    samples = drawn(100, 8)
    assert diversity_metrics(samples, max_samples=50) == diversity_metrics(samples[::2])
    assert diversity_metrics(samples, max_samples=99) == diversity_metrics([s for k, s in enumerate(samples) if k != 99])
    with pytest.raises(ValueError, match="max_samples: 0"):
        diversity_metrics(samples, max_samples=0)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda reward: WeightedSum((qed, reward), (1.0, 1.0)),
        lambda reward: Target(reward, value=1.0, scale=1.0),
        lambda reward: InRange(reward, low=0.0, high=1.0),
        lambda reward: GraphView(reward, "networkx"),
        RewardPool,
        DiversityFilter,
        lambda reward: NovelTo(reward, "tree-16"),
    ],
)
def test_a_reward_that_remembers_is_refused_inside_another(wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"^reward: qed filtered remembers earlier samples, expected one that does not; "):
        wrap(DiversityFilter(qed))


def test_a_filter_of_smiles_keeps_its_memory_where_molecules_have_positions() -> None:
    methane = SpatialMolecule(("C",), (0,), (), ((0.0, 0.0, 0.0),))
    filtered = OfSmiles(DiversityFilter(qed, minscore=0.0))
    assert remembers(filtered)
    assert not remembers(OfSmiles(qed))
    first = filtered.state_dict()
    assert filtered([methane, methane])[1] == 0.0
    assert filtered([methane]) == [0.0]
    filtered.load_state_dict(first)
    assert filtered([methane]) != [0.0]


def test_a_scaffold_that_is_no_molecule_by_itself_counts_as_none() -> None:
    strange = "C[c-]1cccc1"
    assert molecule_properties.murcko_scaffold(Chem.MolFromSmiles(strange)) == ""
    for kind in ("IdenticalMurckoScaffold", "ScaffoldSimilarity"):
        assert DiversityFilter(qed, kind=kind)([strange, "c1ccccc1C"])[0] == pytest.approx(qed([strange])[0])


@pytest.mark.parametrize("made", [lambda: DiversityFilter(qed), DiversityContribution, lambda: RewardPool(qed, workers=1)])
def test_columns_of_another_length_are_named(made: Any) -> None:
    reward = made()
    try:
        with pytest.raises(ValueError, match=r"^label: 1 values, expected one per sample \(2\)$"):
            reward(["CCO", "CC"], label=[3])
    finally:
        getattr(reward, "close", lambda: None)()


def test_a_score_of_exactly_the_least_one_is_remembered() -> None:
    once = DiversityFilter(lambda samples, **columns: [0.4] * len(samples), bucket_size=1, minscore=0.4)
    assert once(["Cc1ccccc1", "CCc1ccccc1"]) == [0.4, 0.0]


def test_of_equally_similar_scaffolds_the_oldest_takes_the_molecule() -> None:
    """Atom pairs do not tell the two isomers apart."""
    isomers = [r"C(=C/C1CC1)\C1CC1", r"C(=C\C1CC1)\C1CC1"]
    for oldest, other in (isomers, isomers[::-1]):
        similar = DiversityFilter(lambda samples, **columns: [1.0] * len(samples), "ScaffoldSimilarity")
        similar.load_state_dict({"kind": "ScaffoldSimilarity", "seen": [], "buckets": [[oldest, 1], [other, 1]]})
        similar(["CC1CC1/C=C/C1CC1"])
        assert similar.buckets == {oldest: 2, other: 1}


def test_a_scaffold_of_exactly_the_least_similarity_counts_as_the_remembered_one() -> None:
    benzene, pyridine = (Pairs.GetAtomPairFingerprint(Chem.MolFromSmiles(s)) for s in ("c1ccccc1", "c1ccncc1"))  # type: ignore[attr-defined]
    similarity = DataStructs.DiceSimilarity(benzene, pyridine)
    for least, count in ((similarity, 1), (math.nextafter(similarity, 1.0), 2)):
        found = DiversityFilter(ones, "ScaffoldSimilarity", minsimilarity=least)
        found(["Cc1ccccc1", "Cc1ccncc1"])
        assert len(found.buckets) == count


def test_molecules_without_rings_are_like_no_scaffold() -> None:
    found = DiversityFilter(ones, "ScaffoldSimilarity", minsimilarity=0.0)
    assert found(["Cc1ccccc1", "CCO", "CCN", "c1ccncc1"]) == [1.0] * 4
    assert found.buckets == {"c1ccccc1": 2, "": 2}


def test_a_topology_that_is_no_molecule_is_empty() -> None:
    sulphur = "C1CS23(C1)(CC2)CC3"  # a carbon in its place has six bonds
    assert topological_scaffold(Chem.MolFromSmiles(sulphur)) == ""
    assert DiversityFilter(ones, "IdenticalTopologicalScaffold")([sulphur]) == [1.0]


def test_a_score_of_zero_is_remembered_as_others_are() -> None:
    found = DiversityFilter(lambda samples, **columns: [0.0] * len(samples), minscore=0.0)
    found(["Cc1ccccc1"])
    assert found.buckets == {"c1ccccc1": 1}


def test_the_taken_samples_reach_to_the_end() -> None:
    samples = [*["CCO"] * 4, "c1ccccc1", "CCO", "C1CC1"]  # of 7 samples, 4 are those at 0, 1, 3 and 5
    assert diversity_metrics(samples, max_samples=4) == {"unique_scaffolds": 0.25, "internal_diversity": 0.0}
    assert diversity_metrics([*samples[:5], "c1ccccc1", "CCO"], max_samples=4)["unique_scaffolds"] == 0.5
