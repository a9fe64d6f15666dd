"""Similarity to the nearest molecule of a file: the definition by hand, what is left out, as a gate, and refusals in one line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import yaml
from rdkit import Chem
from rdkit.Chem import rdMolDescriptors

from discrete_grpo.cli.reward_spec import complete_reward, make_reward
from discrete_grpo.rewards.combine import Gated
from discrete_grpo.rewards.identity import reward_identity
from discrete_grpo.rewards.molecules import InRange, qed, validity
from discrete_grpo.rewards.nearest import NearestSimilarity
from discrete_grpo.rewards.pool import RewardPool

KNOWN = ["CC(=O)Nc1ccc(O)cc1", "c1ccncc1C(=O)N", "CCCCO", "N[C@@H](C)C(=O)O"]
SAMPLES = ["CC(=O)Nc1ccc(OC)cc1", "CCCCCO", "NC(C)C(=O)O", "C1CC1"]


def bits(smiles: str) -> frozenset[int]:
    """The bits of the Morgan fingerprint by RDKit's older function."""
    return frozenset(rdMolDescriptors.GetMorganFingerprintAsBitVect(Chem.MolFromSmiles(smiles), 2, nBits=1024).GetOnBits())


def nearest(smiles: str) -> float:
    """max over the set of |a ∩ b| / |a ∪ b|."""
    return max(len(bits(smiles) & bits(one)) / len(bits(smiles) | bits(one)) for one in KNOWN)


@pytest.fixture
def known(tmp_path: Path) -> Path:
    path = tmp_path / "known.smi"
    path.write_text("\n".join(["no molecule", *KNOWN, "C1CC"]) + "\n")
    return path


def test_it_is_the_largest_tanimoto_similarity_of_the_bits(known: Path) -> None:
    found = NearestSimilarity(known)([*SAMPLES, *KNOWN, None, "C.C"])
    assert found[:4] == pytest.approx([nearest(one) for one in SAMPLES], abs=1e-15)
    assert found[2] == 1.0  # stereo is not compared
    assert found[4:] == [1.0] * 4 + [0.0, 0.0]
    assert max(found[0], found[1], found[3]) < 1.0


def test_tables_and_compressed_files_are_read(known: Path, tmp_path: Path) -> None:
    table = tmp_path / "known.csv.gz"
    table.write_bytes(gzip.compress("\n".join(["name,smiles", *(f"{k},{one}" for k, one in enumerate(KNOWN))]).encode()))
    assert NearestSimilarity(str(table))(SAMPLES) == NearestSimilarity(known)(SAMPLES)


def test_within_a_range_it_is_a_gate_for_novel_molecules(known: Path) -> None:
    gate = InRange(NearestSimilarity(known), low=0, high=0.4)
    assert Gated(validity, (gate,))([*SAMPLES, None]) == [float(nearest(one) <= 0.4) for one in SAMPLES] + [0.0]
    assert 0 < sum(nearest(one) <= 0.4 for one in SAMPLES) < len(SAMPLES)


def test_scores_are_cached_by_the_content_of_the_file(known: Path) -> None:
    first = reward_identity(NearestSimilarity(known))
    used = NearestSimilarity(known)
    used(SAMPLES)
    assert reward_identity(used) == first is not None
    known.write_text("CCC\n")
    assert reward_identity(NearestSimilarity(known)) != first


def test_workers_give_the_same_scores(known: Path) -> None:
    with RewardPool(NearestSimilarity(known), workers=1) as pool:
        assert pool(SAMPLES) == NearestSimilarity(known)(SAMPLES)


def test_it_is_a_gate_in_a_file_of_settings(known: Path) -> None:
    text = f"""
        class_path: Gated
        init_args:
          reward: qed
          gates:
            - class_path: InRange
              init_args: {{property: {{class_path: NearestSimilarity, init_args: {{data: {known}}}}}, low: 0, high: 0.4}}
    """
    made = make_reward(complete_reward(yaml.safe_load(text)))
    assert made(SAMPLES) == Gated(qed, (InRange(NearestSimilarity(known), low=0, high=0.4),))(SAMPLES)


def test_files_without_molecules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^data: '.*none\.smi' does not exist, expected a SMILES file$"):
        NearestSimilarity(str(tmp_path / "none.smi"))
    (tmp_path / "empty.smi").write_text("nothing\n")
    with pytest.raises(ValueError, match=r"^data: '.*empty\.smi' holds no molecule, expected at least one SMILES string$"):
        NearestSimilarity(tmp_path / "empty.smi")
    with pytest.raises(ValueError, match=r"^data: 3, expected the name of a SMILES file$"):
        NearestSimilarity(3)  # type: ignore[arg-type]
