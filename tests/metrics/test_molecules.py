"""Metrics of generated molecules."""

import math

import pytest
from rdkit import Chem, DataStructs
from rdkit.Chem import QED, Crippen, rdFingerprintGenerator

from discrete_grpo.metrics.molecules import canonical, evaluate, internal_diversity, novelty, sample_metrics

MOLECULES = ["CCO", "c1ccccc1O", "CC(=O)N", "C1CCNCC1", "CCCCCC"]


def test_validity_and_uniqueness_by_hand() -> None:
    samples = ["CCO", "OCC", "C.C", None, "C(C)(C)(C)(C)C", "N", "c1ccccc1", "C1=CC=CC=C1"]
    assert sample_metrics(samples) == {"valid": 5 / 8, "unique": 3 / 5}
    assert sample_metrics([None]) == {"valid": 0.0, "unique": 0.0}
    assert sample_metrics([]) == {"valid": 0.0, "unique": 0.0}


def test_stereo_isomers_count_once() -> None:
    assert canonical("C[C@H](N)O") == canonical("C[C@@H](N)O") == "CC(N)O"


def test_novelty_is_over_distinct_molecules() -> None:
    assert novelty(["CCO", "CCO", "OCC", "CC", "C", None], {"CC", "CCC"}) == 2 / 3
    assert novelty(["CC"], ["CC"]) == 0.0
    assert novelty([None], set()) == 0.0


def test_internal_diversity_against_all_pairs() -> None:
    morgan = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=1024)
    bits = [set(morgan.GetFingerprint(Chem.MolFromSmiles(s)).GetOnBits()) for s in MOLECULES]
    pairs = [len(a & b) / len(a | b) for a in bits for b in bits]
    assert internal_diversity([*MOLECULES, None, "C.C"]) == pytest.approx(1 - sum(pairs) / len(pairs))
    assert internal_diversity(["CCO"] * 3) == 0.0
    assert math.isnan(internal_diversity([None]))


def test_internal_diversity_of_a_draw_depends_on_the_seed_alone() -> None:
    few = [internal_diversity(MOLECULES, max_molecules=2, seed=s) for s in range(8)]
    assert few == [internal_diversity(MOLECULES, max_molecules=2, seed=s) for s in range(8)]
    assert len(set(few)) > 1
    assert all(0 < x <= 0.5 for x in few)  # two molecules: the self pairs alone give at most a half
    with pytest.raises(ValueError, match="max_molecules: 0"):
        internal_diversity(MOLECULES, max_molecules=0)


def test_evaluate() -> None:
    samples = [*MOLECULES, "CCO", "C.C", None, None, "N.N"]
    found = evaluate(samples, reference={"CCO", "NC=O"})
    assert found["num_samples"] == 10
    assert found["sanitised"] == 8 / 10
    assert found["connected"] == 6 / 8
    assert found["valid"] == 6 / 10
    assert found["unique"] == 5 / 6
    assert found["novel"] == 4 / 5
    assert found["internal_diversity"] == internal_diversity([*MOLECULES, "CCO"])
    mols = [Chem.MolFromSmiles(s) for s in [*MOLECULES, "CCO"]]
    assert found["qed"] == pytest.approx(sum(map(QED.qed, mols)) / 6)
    assert found["logp"] == pytest.approx(sum(map(Crippen.MolLogP, mols)) / 6)  # type: ignore[attr-defined]
    assert 1 <= found["sa"] <= 10
    assert set(evaluate(samples)) == set(found) - {"novel"}


def test_evaluate_without_a_single_molecule() -> None:
    found = evaluate([None, "C.C"], reference=[])
    assert (found["valid"], found["unique"], found["novel"], found["connected"], found["sanitised"]) == (0, 0, 0, 0, 0.5)
    assert all(math.isnan(found[k]) for k in ("internal_diversity", "qed", "logp", "sa"))
    assert evaluate([])["valid"] == 0.0


def test_bulk_similarity_is_the_one_meant() -> None:
    morgan = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=1024)
    a, b = (morgan.GetFingerprint(Chem.MolFromSmiles(s)) for s in MOLECULES[:2])
    assert internal_diversity(MOLECULES[:2]) == pytest.approx((1 - DataStructs.TanimotoSimilarity(a, b)) / 2)


def test_atom_map_numbers_make_no_other_molecule() -> None:
    assert canonical("[CH3:1][CH2:2]O") == "CCO"
    found = evaluate(["[CH3:1][CH3:2]", "CC"], {"CC"})
    assert (found["unique"], found["novel"]) == (0.5, 0.0)
