"""Rewards on molecules and their combination, each against an oracle."""

import gzip
import math
import pickle
from collections import Counter
from typing import Any

import pytest
from rdkit import Chem
from rdkit.Chem import QED, Crippen, Descriptors

from discrete_grpo.core.reward_arguments import reward_name
from discrete_grpo.core.scoring import RewardError, score_samples
from discrete_grpo.domains.smiles import parse
from discrete_grpo.rewards.combine import WeightedSum
from discrete_grpo.rewards.molecules import (
    InRange,
    Similarity,
    Substructure,
    Target,
    logp,
    molecular_weight,
    molecule_reward,
    penalised_logp,
    qed,
    synthetic_accessibility,
    validity,
)
from tests.shared_data import SHARED

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"
MOLECULES = [ASPIRIN, "CCO", "C1CCCCCCC1", "CCN(CC)CC", "c1ccc2ccccc2c1"]
INVALID = [None, "", "C.C", "C(C)(C)(C)(C)C", "c1ccc1("]
PLAIN = [qed, logp, penalised_logp, synthetic_accessibility, molecular_weight, validity]
MADE = [Similarity("CCO"), Substructure("O"), Target(molecular_weight, 46.0, 10.0), InRange(logp, -1.0, 1.0)]


@pytest.mark.parametrize("reward", PLAIN + MADE, ids=reward_name)
def test_every_reward_scores_zero_for_what_is_no_molecule_and_keeps_the_order(reward) -> None:  # type: ignore[no-untyped-def]
    samples = [*INVALID, *MOLECULES]
    found = reward(samples, prompt=["ignored"] * len(samples))
    assert found[: len(INVALID)] == [0.0] * len(INVALID)
    assert found[len(INVALID) :] == [reward([s])[0] for s in MOLECULES]
    assert all(isinstance(x, float) for x in found)
    assert reward([]) == []


def test_properties_equal_rdkits() -> None:
    mols = [Chem.MolFromSmiles(s) for s in MOLECULES]
    assert qed(MOLECULES) == pytest.approx([QED.qed(m) for m in mols])
    assert logp(MOLECULES) == pytest.approx([Crippen.MolLogP(m) for m in mols])  # type: ignore[attr-defined]
    assert molecular_weight(MOLECULES) == pytest.approx([Descriptors.MolWt(m) for m in mols])  # type: ignore[attr-defined]
    assert validity(MOLECULES) == [1.0] * len(MOLECULES)


def test_synthetic_accessibility_is_scaled_to_the_unit_interval() -> None:
    from rdkit.Contrib.SA_Score import sascorer

    for smiles, found in zip(MOLECULES, synthetic_accessibility(MOLECULES), strict=True):
        raw = sascorer.calculateScore(Chem.MolFromSmiles(smiles))
        assert found == pytest.approx(1 - (raw - 1) / 9)  # the other form in use
        assert 0 <= found <= 1


def test_penalised_logp_by_its_parts() -> None:
    from rdkit.Contrib.SA_Score import sascorer

    for smiles, ring in ((ASPIRIN, 6), ("C1CCCCCCC1", 8), ("CCO", 0)):
        mol = Chem.MolFromSmiles(smiles)
        z_logp = (Crippen.MolLogP(mol) - 2.4570953396190123) / 1.434324401111988  # type: ignore[attr-defined]
        z_easy = (3.0525811293166134 - sascorer.calculateScore(mol)) / 0.8335207024513095
        z_ring = (0.0485696876403053 - max(ring - 6, 0)) / 0.2860212110245455
        assert penalised_logp([smiles]) == pytest.approx([z_logp + z_easy + z_ring])


def test_penalised_logp_is_centred_on_zinc() -> None:
    path = SHARED / "zinc250k_test.smi.gz"
    if not path.is_file():
        pytest.skip("no shared data here")
    found = penalised_logp(gzip.decompress(path.read_bytes()).decode().split()[:3000])
    mean = sum(found) / len(found)
    assert abs(mean) < 0.15  # three z-scores: a wrong sign or constant moves it by whole units
    assert max(found) < 4.6  # published best of ZINC250k: 4.52


def morgan_counts(smiles: str) -> Counter[tuple[object, ...]]:
    """Radius-0 environments only: an oracle for Similarity(radius=0) that uses no fingerprint of RDKit."""
    mol = Chem.MolFromSmiles(smiles)
    return Counter(
        (a.GetAtomicNum(), a.GetTotalDegree(), a.GetTotalNumHs(), a.GetFormalCharge(), a.IsInRing()) for a in mol.GetAtoms()
    )


@pytest.mark.parametrize("other", MOLECULES)
def test_similarity_is_tanimoto_of_counts(other: str) -> None:
    own, target = morgan_counts(other), morgan_counts(ASPIRIN)
    expected = sum((own & target).values()) / sum((own | target).values())
    assert Similarity(ASPIRIN, radius=0)([other]) == pytest.approx([expected])


def test_similarity_is_one_only_for_the_target() -> None:
    found = Similarity(ASPIRIN)(MOLECULES)
    assert found[0] == 1.0
    assert all(0 <= x < 0.5 for x in found[1:])
    assert Similarity("C" * 6)(["C" * 12])[0] < 1.0  # counts, not bits: the environments are the same


def test_target_is_a_gaussian() -> None:
    reward = Target(molecular_weight, value=120.0, scale=20.0)
    weight = Descriptors.MolWt(Chem.MolFromSmiles("CCO"))  # type: ignore[attr-defined]
    assert reward(["CCO"]) == pytest.approx([math.exp(-(((weight - 120) / 20) ** 2) / 2)])
    exact = Target(molecular_weight, weight, 1e-3)
    assert exact(["CCO", "COC", "CCN"])[:2] == [1.0, 1.0]  # isomers
    assert exact(["CCN"])[0] == 0.0


def test_an_invalid_sample_scores_zero_even_where_zero_is_the_target() -> None:
    assert Target(logp, value=0.0, scale=1.0)([None, "C.C"]) == [0.0, 0.0]
    assert InRange(logp, -1.0, 1.0)([None, "C.C"]) == [0.0, 0.0]


def test_in_range_edges() -> None:
    def given(samples: list[str], **columns: object) -> list[float]:
        return [1.0, 2.0, 3.0, 4.0][: len(samples)]

    assert InRange(given, 2.0, 3.0)(["C"] * 4) == [0.0, 1.0, 1.0, 0.0]
    soft = InRange(given, 2.0, math.inf, scale=2.0)(["C"] * 4)
    assert soft == pytest.approx([math.exp(-0.125), 1, 1, 1])


def test_unknown_stays_unknown() -> None:
    def given(samples: list[str], **columns: object) -> list[float | None]:
        return [None, math.nan, 1.0, None]

    samples = ["C", "C", "C", None]
    assert Target(given, 1.0, 1.0)(samples) == [None, None, 1.0, 0.0]
    assert InRange(given, 0.0, 1.0)(samples) == [None, None, 1.0, 0.0]
    assert WeightedSum((given, validity), (1.0, 1.0))(samples) == [None, None, 2.0, None]


def test_bad_arguments_fail_when_made() -> None:
    with pytest.raises(ValueError, match=r"target: 'C\.C'"):
        Similarity("C.C")
    for given, shown in ((["CCO", "CC"], r"\['CCO', 'CC'\]"), (None, "None"), (3, "3")):
        target: Any = given
        with pytest.raises(ValueError, match=rf"^target: {shown}, expected the SMILES of one connected molecule$"):
            Similarity(target)
    with pytest.raises(ValueError, match="radius: -1"):
        Similarity("C", radius=-1)
    for bad in ("", "[", "C(("):
        with pytest.raises(ValueError, match="smarts: "):
            Substructure(bad)
    for scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="scale: "):
            Target(qed, 0.5, scale)
    with pytest.raises(ValueError, match="value: nan"):
        Target(qed, math.nan, 1.0)
    with pytest.raises(ValueError, match=r"low, high: 2\.0, 1\.0"):
        InRange(qed, 2.0, 1.0)
    with pytest.raises((ValueError, TypeError), match="property"):  # TypeError: the beartype run
        Target("qed", 1.0, 1.0)  # type: ignore[arg-type]
    with pytest.raises(RewardError, match=r"^reward short: returned 0 values for 1 samples"):
        Target(short, 1.0, 1.0)(["C"])
    with pytest.raises(ValueError, match=r"weights: \[1\.0\], expected 2"):
        WeightedSum((qed, logp), (1.0,))
    with pytest.raises(ValueError, match=r"weights: \[1\.0, 2\.0\], expected 1"):
        WeightedSum((qed,), (1.0, 2.0))
    with pytest.raises(ValueError, match="weights: "):
        WeightedSum((qed,), (math.nan,))
    with pytest.raises(ValueError, match=r"^weights: \['a'\], expected 1 finite numbers, one per reward$"):
        WeightedSum((qed,), ("a",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rewards: "):
        WeightedSum((), ())
    assert WeightedSum(qed, 1.0) == WeightedSum((qed,), (1.0,))  # type: ignore[arg-type]
    with pytest.raises(RewardError, match=r"^reward short: returned 0 values"):
        WeightedSum.of({short: 1.0})(["C"])


def short(samples: list[str], **columns: object) -> list[float]:
    return []


def test_weighted_sum() -> None:
    reward = WeightedSum.of({qed: 0.5, logp: -2.0, Substructure("O"): 1.0})
    expected = [0.5 * a - 2.0 * b + c for a, b, c in zip(qed(MOLECULES), logp(MOLECULES), [1, 1, 0, 0, 0], strict=True)]
    assert reward(MOLECULES) == pytest.approx(expected)
    assert reward.name == "0.5*qed + -2*logp + 1*substructure(O)"


def test_columns_reach_every_part() -> None:
    def wanted(samples: list[str], *, size: list[int], **columns: object) -> list[float]:
        return [float(len(s) == k) for s, k in zip(samples, size, strict=True)]

    reward = WeightedSum.of({wanted: 1.0, Target(wanted, 1.0, 1e-3): 2.0})
    assert reward(["CC", "CCC"], size=[2, 2]) == [3.0, 0.0]


def test_decorator_keeps_the_name_and_does_not_hide_errors() -> None:
    @molecule_reward
    def rings(mol: Chem.Mol) -> float:
        """Count rings."""
        if mol.GetNumAtoms() == 1:
            raise RuntimeError("one atom")
        return mol.GetRingInfo().NumRings()

    assert (rings.__name__, rings.__doc__, reward_name(rings)) == ("rings", "Count rings.", "rings")  # type: ignore[attr-defined]
    assert rings(["c1ccc2ccccc2c1", None]) == [2.0, 0.0]
    with pytest.raises(RuntimeError, match="one atom"):
        rings(["C"])


def test_decorator_takes_the_score_of_invalid_samples_and_passes_unknown_ones_on() -> None:
    @molecule_reward(invalid=-10)
    def fewest(mol: Chem.Mol) -> float | None:
        return None if mol.GetNumAtoms() > 5 else -mol.GetNumAtoms()

    assert fewest.__name__ == "fewest"  # type: ignore[attr-defined]
    assert fewest(["CCO", None, "CCCCCC", "C.C"]) == [-3.0, -10.0, None, -10.0]
    assert molecule_reward(lambda mol: 1, invalid=None)(["C", None]) == [1.0, None]
    with pytest.raises(RewardError, match=r"'0\.5'"):
        score_samples([molecule_reward(lambda mol: "0.5")], ["C"])  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("reward", [*PLAIN, *MADE, WeightedSum.of({qed: 1.0, Similarity("CCO"): 1.0})], ids=reward_name)
def test_rewards_pass_between_processes(reward) -> None:  # type: ignore[no-untyped-def]
    before = reward(MOLECULES)
    again = pickle.loads(pickle.dumps(reward))
    assert again(MOLECULES) == before
    assert reward_name(again) == reward_name(reward)


@pytest.mark.parametrize("reward", [Similarity("C"), Substructure("C"), InRange(logp, -9, 9), Target(molecular_weight, 10, 1), qed])
def test_a_text_in_place_of_a_list_is_refused(reward: Any) -> None:
    with pytest.raises(ValueError, match=r"^samples: 'CCO', expected a list of (SMILES|samples), such as \['CCO'\]$"):
        reward("CCO")


@pytest.mark.parametrize(("low", "high", "said"), [("a", 1, "low: 'a'"), (0, None, "high: None")])
def test_ends_of_a_range_are_numbers(low: Any, high: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"{said}, expected a number"):
        InRange(qed, low, high)


def test_a_function_that_changes_its_molecule_leaves_other_scores_as_they_are() -> None:
    @molecule_reward
    def kekulized(mol: Chem.Mol) -> float:
        Chem.Kekulize(mol, clearAromaticFlags=True)
        return 1.0

    assert kekulized(["c1ccncc1CO"]) == [1.0]
    shared = parse("c1ccncc1CO")
    assert shared is not None
    assert shared.GetAtomWithIdx(0).GetIsAromatic()
