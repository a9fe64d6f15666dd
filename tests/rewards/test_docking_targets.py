"""Docking tasks with a Vina that scores a ligand by its atoms, and the novel hits against the published definition."""

from __future__ import annotations

import gzip
import importlib.util
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rdkit import Chem, DataStructs
from rdkit.Chem import QED, AllChem

from discrete_grpo.rewards.docking import Docking
from discrete_grpo.rewards.docking_targets import (
    TARGETS,
    DockingScore,
    NovelHits,
    docking_task,
    find_receptor,
    novel_hits,
    row_numbers,
)
from discrete_grpo.rewards.identity import reward_identity
from discrete_grpo.rewards.nearest import TrainingSet
from discrete_grpo.rewards.pool import RewardPool
from tests.rewards.test_docking import FakeMeeko, FakeVina
from tests.shared_data import SHARED

RECEPTORS = SHARED / "docking"


class ReadingVina(FakeVina):
    """Reads the receptor at once, as Vina does."""

    def set_receptor(self, path: str) -> None:
        super().set_receptor(path)
        self.told["content"] = Path(path).read_text()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of receptors, one of them not compressed."""
    FakeVina.made.clear()
    monkeypatch.setitem(sys.modules, "vina", SimpleNamespace(Vina=ReadingVina, __version__="1.2.7"))
    monkeypatch.setitem(sys.modules, "meeko", FakeMeeko)
    for name in ("parp1", "jak2"):
        (tmp_path / f"{name}.pdbqt.gz").write_bytes(gzip.compress(b"ATOM " + name.encode()))
    (tmp_path / "fa7.pdbqt").write_text("ATOM fa7")
    return tmp_path


def test_the_boxes_and_thresholds_are_the_published_ones() -> None:
    assert {name: target.threshold for name, target in TARGETS.items()} == {
        "docking-parp1": 10.0, "docking-fa7": 8.5, "docking-5ht1b": 8.7845, "docking-braf": 10.3, "docking-jak2": 9.1,
    }  # fmt: skip
    rows = {
        "parp1": (26.413, 11.282, 27.238, 18.521, 17.479, 19.995),
        "fa7": (10.131, 41.879, 32.097, 20.673, 20.198, 21.362),
        "5ht1b": (-26.602, 5.277, 17.898, 22.5, 22.5, 22.5),
        "braf": (84.194, 6.949, -7.081, 22.032, 19.211, 14.106),
        "jak2": (114.758, 65.496, 11.345, 19.033, 17.929, 20.283),
    }
    assert {target.protein: (*target.center, *target.box_size) for target in TARGETS.values()} == rows
    assert all(name == target.name == f"docking-{target.protein}" for name, target in TARGETS.items())


def test_a_task_docks_with_the_box_of_its_target(data: Path) -> None:
    task = docking_task("parp1", data=data, exhaustiveness=2, n_poses=3, seed=5)
    assert (task.name, task.suite, task.kind) == ("docking-parp1", "docking", "molecules")
    assert task(["CCO", None, "C.C"]) == [9.0, 0.0, 0.0]
    (engine,) = FakeVina.made
    assert engine.told["center"] == [26.413, 11.282, 27.238]
    assert engine.told["content"] == "ATOM parp1"
    assert not Path(engine.told["receptor"]).exists()  # the unpacked copy is gone
    assert engine.told["exhaustiveness"] == 2
    assert docking_task("docking-fa7", data / "fa7.pdbqt")(["C"]) == [5.0]


def test_every_setting_is_shown(data: Path) -> None:
    score = docking_task("jak2", data=data).score
    assert isinstance(score, DockingScore)
    settings = score.settings
    digest = settings.pop("receptor_digest")
    assert settings.pop("rdkit")
    assert settings == {
        "target": "docking-jak2", "receptor": "jak2.pdbqt.gz", "center": (114.758, 65.496, 11.345),
        "box_size": (19.033, 17.929, 20.283), "exhaustiveness": 1, "n_poses": 1, "seed": 42, "scoring": "vina",
        "conformer": "ETKDG, MMFF94", "vina": "1.2.7", "meeko": FakeMeeko.__version__, "hit_above": 9.1,
    }  # fmt: skip
    (data / "jak2.pdbqt").write_text("ATOM jak2")
    assert Docking(str(data / "jak2.pdbqt"), (0, 0, 0), (1, 1, 1)).settings["receptor_digest"] == digest  # compressed or not


def test_kept_scores_belong_to_the_settings(data: Path) -> None:
    base = reward_identity(docking_task("parp1", data=data))
    assert reward_identity(docking_task("parp1", data=data, cpu=2)) == base
    others = [
        docking_task("parp1", data=data, seed=1),
        docking_task("parp1", data=data, exhaustiveness=8),
        docking_task("jak2", data=data),
    ]
    assert len({base, *map(reward_identity, others)}) == 4
    assert reward_identity(RewardPool(docking_task("parp1", data=data), workers=1)) == base


def test_what_is_missing_is_one_line(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[dict[str, Any], str]] = [
        ({"target": "parp2", "data": data}, "target: 'parp2', expected one of docking-parp1, docking-fa7, "),
        (
            {"target": "parp1"},
            "receptor: none given for docking-parp1, expected its path (receptor) or a folder with parp1.pdbqt.gz",
        ),
        ({"target": "braf", "data": data}, f"receptor: {str(data)!r} holds no braf.pdbqt or braf.pdbqt.gz, expected the prepared"),
        (
            {"target": "parp1", "receptor": "no.pdbqt"},
            "receptor: 'no.pdbqt' is no file, expected the prepared receptor of docking-parp1",
        ),
        ({"target": "parp1", "data": data, "exhaustiveness": 0}, "exhaustiveness: 0, expected at least 1"),
    ]
    for arguments, said in told:
        with pytest.raises(ValueError, match="expected") as error:
            docking_task(**arguments)
        assert str(error.value).startswith(said)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="did you mean 'parp1'"):
        docking_task("prp1", data=data)
    (data / "braf.pdbqt.gz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"receptor: .* cannot be unpacked: Not a gzipped file"):
        docking_task("braf", data=data)
    monkeypatch.setitem(sys.modules, "meeko", None)
    with pytest.raises(ImportError, match=r"^docking: needs meeko, which is not installed; pip install"):
        docking_task("parp1", data=data)


def test_an_uncompressed_receptor_comes_first(data: Path) -> None:
    (data / "parp1.pdbqt").write_text("ATOM")
    assert find_receptor(TARGETS["docking-parp1"], data=data).name == "parp1.pdbqt"


# -- novel hits

DRUGS = [
    "CC(=O)Nc1ccc(O)cc1", "CC(C)Cc1ccc(cc1)C(C)C(=O)O", "CN1C=NC2=C1C(=O)N(C(=O)N2C)C", "c1ccc2c(c1)C(=O)NN=C2Cc1ccc(F)cc1",
    "O=C(Nc1ccccc1)c1ccncc1", "CC(=O)Oc1ccccc1C(=O)O", "CCCCCCCCCCCCCCCCCC", "OC1CCCCC1NC(=O)c1ccco1", "C1CC1C(=O)NCc1ccsc1",
    "Cc1ccccc1S(=O)(=O)N1CCOCC1", "FC(F)(F)c1ccc(cc1)C1CCNC1=O", "N#Cc1ccc(cc1)N1CCC(O)C1", "OC1C2CC3C1C3(F)C2NC(=O)C",
    "COc1ccc2[nH]ccc2c1",
    "CC1(C)OC2CC3C4CCC5=CC(=O)C=CC5(C)C4(F)C(O)CC3(C)C2(O1)C(=O)CO",
    "O=C1CCC(N1)c1ccccc1", "CC(C)(C)OC(=O)N1CCNCC1", "Clc1ccc(cc1)C#N",
    "c1ccc(cc1)-c1cn[nH]c1", "CNC(=O)c1cccc(c1)C1CC1",
]  # fmt: skip


def ecfp(mol: Chem.Mol) -> Any:
    return AllChem.GetMorganFingerprintAsBitVect(mol, 2, 1024)  # type: ignore[attr-defined]


def published(smiles: list[str], scores: list[float], threshold: float, train: list[str]) -> tuple[float, float, int]:
    """The published evaluation, step by step on plain lists, for valid canonical SMILES."""
    from rdkit.Contrib.SA_Score import sascorer

    num, rows, seen = len(smiles), [], set()
    prints = [ecfp(Chem.MolFromSmiles(s)) for s in train]
    for text, score in zip(smiles, scores, strict=True):
        if text not in seen:
            seen.add(text)
            if math.isnan(score):
                num -= 1
            else:
                rows.append((text, score))
    kept = []
    for text, score in rows:
        mol = Chem.MolFromSmiles(text)
        sim = max(DataStructs.TanimotoSimilarity(ecfp(mol), p) for p in prints)
        if QED.qed(mol) > 0.5 and (10 - sascorer.calculateScore(mol)) / 9 > (10 - 5) / 9 and sim < 0.4:
            kept.append(score)
    kept.sort(reverse=True)
    best = kept[: int(num * 0.05)]
    return sum(score > threshold for score in kept) / num, sum(best) / len(best), len(kept)


def test_hits_are_counted_as_published() -> None:
    train = ["CC(=O)Nc1ccc(OC)cc1", "O=C(Nc1ccccc1)c1cccnc1", "CCCCCC"]
    smiles = [Chem.CanonSmiles(s) for s in DRUGS * 3]
    scores = [math.nan if k % 20 == 4 else 8.0 + (7 * k % 20) / 5 for k in range(len(smiles))]
    ratio, top, passed = published(smiles, scores, 10.0, train)
    found = novel_hits(smiles, scores, "parp1", train)
    assert 0 < passed < 19  # the gates take some and leave some
    assert 0 < ratio < passed / 59
    assert found.hit_ratio == pytest.approx(ratio, abs=1e-12)
    assert found.top5_score == pytest.approx(top, abs=1e-12)
    assert (found.samples, found.valid, found.unique, found.failed, found.counted) == (60, 60, 20, 1, 59)
    assert found.passed == passed
    assert found.hits == round(ratio * 59)


def test_each_gate_alone_keeps_a_molecule_out() -> None:
    far, good = ["CCCCCCCC"], "O=C(Nc1ccccc1)c1ccncc1"
    assert novel_hits([good], [11.0], "parp1", far).hit_ratio == 1.0
    assert novel_hits([good], [10.0], "parp1", far).hits == 0  # above the threshold, not at it
    assert novel_hits([good], [11.0], "parp1", [good]).passed == 0  # not novel
    assert novel_hits(["CCCCCCCCCCCCCCCCCC"], [11.0], "parp1", ["c1ccccc1"]).passed == 0  # QED 0.3
    cage = DRUGS[12]
    assert QED.qed(Chem.MolFromSmiles(cage)) > 0.5
    assert novel_hits([cage], [11.0], "parp1", far).passed == 0  # SA 5.9


def test_invalid_samples_and_repeats_count_in_the_denominator() -> None:
    good = "O=C(Nc1ccccc1)c1ccncc1"
    found = novel_hits([good, "c1ccncc1C(=O)Nc1ccccc1", None, "C.C", good], [11.0, 3.0, 0.0, 0.0, 12.0], "parp1", ["CCCCCCCC"])
    assert (found.samples, found.valid, found.unique, found.counted, found.hits) == (5, 3, 2, 5, 1)
    assert found.hit_ratio == 0.2
    assert math.isnan(found.top5_score)  # ⌊0.05 · 5⌋ = 0
    cases: tuple[list[float | None], ...] = ([None, 12.0], [12.0, None], [12.0, 3.0])
    for scores in cases:  # the first known score of repeats counts
        found = novel_hits([good, good], scores, "parp1", ["CCCCCCCC"])
        assert (found.unique, found.failed, found.counted, found.hits) == (1, 0, 2, 1)
    empty = novel_hits([], [], "parp1", ["C"])
    assert math.isnan(empty.hit_ratio)
    assert isinstance(empty, NovelHits)
    assert math.isnan(novel_hits([good], [None], "parp1", ["C"]).hit_ratio)  # the only docking failed


def test_bad_training_sets_and_lengths_are_named() -> None:
    with pytest.raises(ValueError, match=r"^scores: 1 given, expected one per sample \(2\)$"):
        novel_hits(["C", "CC"], [1.0], "parp1", ["C"])
    with pytest.raises(ValueError, match=r"^reference: no molecule, expected at least one"):
        TrainingSet([])
    with pytest.raises(ValueError, match=r"^reference: 'CCO', expected a list of SMILES, such as \['CCO'\]$"):
        TrainingSet("CCO")
    with pytest.raises(ValueError, match=r"^reference: 'C1' is no SMILES"):
        TrainingSet(["C", "C1"]).similarity(Chem.MolFromSmiles("C"))


def test_a_row_counts_the_hits_that_its_reference_does_not_hold(data: Path) -> None:
    train, good = data / "train.smi", "O=C(Nc1ccccc1)c1ccncc1"
    train.write_text("CCCCCCCC\nno molecule\n")
    samples, scores = [good, *DRUGS[:19]], [11.0, *[3.0] * 18, math.nan]
    found = row_numbers(docking_task("parp1", data=data, reference=train), samples, scores)
    wanted = novel_hits(samples, scores, "parp1", ["CCCCCCCC"])
    assert found == {"novel_hits": 1, "hit_ratio": 1 / 19, "top5_score": None}
    assert (found["novel_hits"], found["hit_ratio"]) == (wanted.hits, wanted.hit_ratio)
    assert row_numbers(docking_task("parp1", data=data, reference=train), samples * 2, scores * 2)["top5_score"] == 11.0
    assert row_numbers(docking_task("parp1", data=data), samples, scores) == dict.fromkeys(found)  # no reference
    train.write_text(f"{good}\n")
    assert row_numbers(docking_task("parp1", data=data, reference=train), samples, scores)["novel_hits"] == 0
    for text, said in (("header\n", "train.smi' holds no molecule"), (None, "train.smi' does not exist")):
        train.unlink() if text is None else train.write_text(text)
        with pytest.raises(ValueError, match=f"^reference: .*{said}"):
            docking_task("parp1", data=data, reference=train)


def test_the_reference_is_a_setting_but_no_part_of_the_score(data: Path) -> None:
    train = data / "train.smi"
    train.write_text("CCCCCCCC\n")
    plain, told = docking_task("parp1", data=data), docking_task("parp1", data=data, reference=train)
    assert reward_identity(plain) == reward_identity(told)
    assert told.score.settings["reference"] == "train.smi"  # type: ignore[attr-defined]
    assert "reference" not in plain.score.settings  # type: ignore[attr-defined]


@pytest.mark.skipif(not RECEPTORS.is_dir() or not importlib.util.find_spec("vina"), reason="needs vina and the receptors")
def test_a_real_docking() -> None:
    (score,) = docking_task("parp1", data=RECEPTORS)(["c1ccc2c(c1)C(=O)NN=C2Cc1ccc(F)cc1"])
    assert score is not None
    assert 8.5 < score < 11.0
