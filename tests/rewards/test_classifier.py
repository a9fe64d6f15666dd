"""Classifiers read from skops and ONNX files: the fingerprint, the probability, what is refused, and the tasks made of them."""

from __future__ import annotations

import csv
import gzip
import pickle
import shutil
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import AllChem

from discrete_grpo.benchmarking.runner import benchmark
from discrete_grpo.domains.smiles import parse
from discrete_grpo.rewards.classifier import CLASSIFIED, Classifier, classifier_task, classifier_tasks
from discrete_grpo.rewards.identity import reward_identity
from discrete_grpo.rewards.ledger import Ledger, molecule_key

ensemble = pytest.importorskip("sklearn.ensemble")
skops_io = pytest.importorskip("skops.io")

MOLECULES = ["CCO", "CC(=O)Nc1ccc(O)cc1", "c1ccccc1Cl", "CCN", "OC(=O)c1ccccc1", "CCCl", "NCCc1ccc(O)cc1", "C1CCNCC1"]
TREE = ("sklearn.tree._tree.Tree",)


def bits(smiles: str, size: int = 64) -> Any:
    """ECFP4 as RDKit's older function folds it."""
    found = AllChem.GetMorganFingerprintAsBitVect(Chem.MolFromSmiles(smiles), 2, nBits=size)  # type: ignore[attr-defined]
    return np.array(list(found))


def feature_counts(smiles: str, size: int = 2048) -> Any:
    """FCFP6 with counts, folded by the remainder, as the drd2 task of TDC does."""
    found = AllChem.GetMorganFingerprint(Chem.MolFromSmiles(smiles), 3, useCounts=True, useFeatures=True)  # type: ignore[attr-defined]
    row = np.zeros(size, np.int32)
    for identifier, count in found.GetNonzeroElements().items():
        row[identifier % size] += count
    return row


def forest(rows: Any) -> Any:
    return ensemble.RandomForestClassifier(7, random_state=0, n_jobs=1).fit(rows, [k % 2 for k in range(len(rows))])


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Any, Path]:
    model = forest(np.stack([bits(s) for s in MOLECULES]))
    skops_io.dump(model, tmp_path / "toy.skops")
    return model, tmp_path / "toy.skops"


def test_the_probability_is_the_model_s(saved: tuple[Any, Path]) -> None:
    model, path = saved
    reward = Classifier(str(path), size=64, trusted=TREE)
    wanted = model.predict_proba(np.stack([bits(s) for s in MOLECULES]))[:, 1]
    assert 0.0 < wanted.min() < wanted.max()
    found = reward(["C.C", *MOLECULES, None, ""])
    assert found == pytest.approx([0.0, *wanted, 0.0, 0.0], abs=1e-15)
    assert reward([None]) == [0.0]
    mol = parse(MOLECULES[0])
    assert mol is not None
    assert reward.probability(mol) == pytest.approx(wanted[0], abs=1e-15)


@pytest.mark.parametrize("dictionaries", [True, False])
def test_an_onnx_file_gives_the_same(saved: tuple[Any, Path], tmp_path: Path, dictionaries: bool) -> None:
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    pytest.importorskip("onnxruntime")
    model, path = saved
    made = to_onnx(model, np.zeros((1, 64), np.float32), options={id(model): {"zipmap": dictionaries}})
    (tmp_path / "toy.onnx").write_bytes(made.SerializeToString())
    wanted = Classifier(str(path), size=64, trusted=TREE)(MOLECULES)
    assert Classifier(str(tmp_path / "toy.onnx"), size=64)(MOLECULES) == pytest.approx(wanted, abs=1e-6)
    with pytest.raises(ValueError, match="size: 32, but the model"):
        Classifier(str(tmp_path / "toy.onnx"), size=32)(["C"])


def test_drd2_sees_counts_of_features(tmp_path: Path) -> None:
    model = forest(np.stack([feature_counts(s) for s in MOLECULES]))
    skops_io.dump(model, tmp_path / "drd2.skops")
    task = classifier_task("drd2", str(tmp_path / "drd2.skops"), trusted=TREE)
    assert (task.name, task.suite, task.published["REINVENT"], task.published_prescreened["GenMol"]) == (
        "drd2",
        "pmo",
        0.945,
        0.995,
    )
    rows = np.stack([feature_counts(s) for s in MOLECULES])
    assert rows.max() > 1
    assert task(MOLECULES) == pytest.approx(model.predict_proba(rows)[:, 1].tolist(), abs=1e-15)


@pytest.mark.parametrize("name", ["gsk3b", "jnk3"])
def test_the_other_two_see_2048_bits(tmp_path: Path, name: str) -> None:
    rows = np.stack([bits(s, 2048) for s in MOLECULES])
    skops_io.dump(forest(rows), tmp_path / "model.skops")
    task = classifier_task(name, str(tmp_path / "model.skops"), trusted=TREE)
    assert task(MOLECULES) == pytest.approx(forest(rows).predict_proba(rows)[:, 1].tolist(), abs=1e-15)


def test_calls_are_counted_as_of_any_task(saved: tuple[Any, Path]) -> None:
    ledger = Ledger(key=molecule_key, max_oracle_calls=3)
    ledger.score([Classifier(str(saved[1]), size=64, trusted=TREE)], ["CCO", "OCC", "C.C", "CCN"])
    assert ledger.calls == 2


def test_the_identity_follows_the_file(tmp_path: Path) -> None:
    path, rows = tmp_path / "jnk3.skops", np.stack([bits(s, 2048) for s in MOLECULES])
    skops_io.dump(forest(rows), path)
    before = reward_identity(classifier_task("jnk3", str(path), trusted=TREE))
    assert before is not None
    assert before == reward_identity(classifier_task("jnk3", str(path)))
    skops_io.dump(forest(rows[::-1]), path)
    assert reward_identity(classifier_task("jnk3", str(path))) not in (None, before)
    assert reward_identity(Classifier(str(path))) != reward_identity(Classifier(str(path), radius=3))


def test_wrong_files_are_refused_in_one_line(saved: tuple[Any, Path], tmp_path: Path) -> None:
    (tmp_path / "old.pkl").write_bytes(pickle.dumps({}))
    (tmp_path / "none.skops").write_bytes(pickle.dumps({}))
    (tmp_path / "none.onnx").write_bytes(pickle.dumps({}))
    skops_io.dump(__import__("sklearn.linear_model").linear_model.LinearRegression(), tmp_path / "line.skops")
    untrusted = r"not trusted; if you trust the file: trusted=\['sklearn.tree._tree.Tree'\]"
    for make, said in (
        (lambda: Classifier(str(tmp_path / "old.pkl")), "is a pickle, which runs code .* convert it by python -c .*old.skops"),
        (lambda: Classifier(str(tmp_path / "absent.skops")), "absent.skops', expected a .skops or .onnx file"),
        (lambda: Classifier(str(tmp_path)), "expected a .skops or .onnx file"),
        (lambda: Classifier(str(saved[1]), fingerprint="ecfp"), "fingerprint: 'ecfp', expected one of morgan, atom_pairs"),  # type: ignore[arg-type]
        (lambda: Classifier(str(saved[1]), radius=-1), "radius: -1"),
        (lambda: Classifier(str(saved[1]), size=0), "size: 0"),
        (lambda: Classifier(str(saved[1]), size=64)(["C"]), untrusted),
        (lambda: Classifier(str(saved[1]), trusted=TREE)(["C"]), "size: 2048, but the model of .* takes 64 inputs"),
        (lambda: Classifier(str(tmp_path / "none.skops"))(["C"]), "is no skops file"),
        (lambda: Classifier(str(tmp_path / "line.skops"))(["C"]), "holds a LinearRegression, expected a classifier"),
        (lambda: classifier_task("gsk3", str(saved[1])), "name: 'gsk3', expected one of drd2, gsk3b, jnk3; did you mean 'gsk3b'?"),
    ):
        with pytest.raises(ValueError, match=said) as caught:
            make()
        assert "\n" not in str(caught.value)
    pytest.importorskip("onnxruntime")
    with pytest.raises(ValueError, match="is no ONNX file"):
        Classifier(str(tmp_path / "none.onnx"))(["C"])


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ([0] * 8, "tells 1 classes apart, expected a classifier of two"),
        ([k % 3 for k in range(8)], "tells 3 classes apart, expected a classifier of two"),
        ([[k % 2, k // 4] for k in range(8)], "has 2 outputs, expected a classifier with one output of two classes"),
    ],
)
def test_a_classifier_that_is_not_binary_is_refused(tmp_path: Path, classes: Any, said: str) -> None:
    rows = np.stack([bits(s, 2048) for s in MOLECULES])
    model = ensemble.RandomForestClassifier(3, random_state=0, n_jobs=1).fit(rows, classes)
    skops_io.dump(model, tmp_path / "gsk3b.skops")
    for check in (
        lambda: Classifier(str(tmp_path / "gsk3b.skops"), trusted=TREE).check(),
        lambda: classifier_tasks(tmp_path, trusted=TREE, checked=None),
    ):
        with pytest.raises(ValueError, match=rf"^path: '.*gsk3b\.skops' {said}$"):
            check()


@pytest.mark.parametrize("dictionaries", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_onnx_gives_the_second_of_two_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dictionaries: bool, known: bool
) -> None:
    """With a runtime that answers every row by the same probabilities."""
    given: list[float] = [0.75, 0.25]

    class Session:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def get_inputs(self) -> list[Any]:
            return [SimpleNamespace(name="x", shape=[None, 64 if known else None])]

        def get_outputs(self) -> list[Any]:
            return [SimpleNamespace(name="label"), SimpleNamespace(name="probabilities")]

        def run(self, names: list[str], feed: dict[str, Any]) -> list[Any]:
            rows = len(feed["x"])
            return [[dict(enumerate(given))] * rows if dictionaries else np.tile(np.array(given, np.float32), (rows, 1))]

    runtime = ModuleType("onnxruntime")
    runtime.__spec__ = ModuleSpec("onnxruntime", None)
    vars(runtime).update(SessionOptions=SimpleNamespace, InferenceSession=Session, __version__="0")
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    (tmp_path / "toy.onnx").touch()
    reward = Classifier(str(tmp_path / "toy.onnx"), size=64)
    assert reward(["CCO", None, "C"]) == [0.25, 0.0, 0.25]
    given[:] = [0.5, 0.25, 0.25]
    with pytest.raises(ValueError, match=r"toy\.onnx' tells 3 classes apart, expected a classifier of two$"):
        reward.check() if known else reward(["C"])
    if not dictionaries:
        given[:] = [0.25]  # a sigmoid
        assert reward(["CCO"]) == [0.25]


def test_trusted_is_a_list_of_types(saved: tuple[Any, Path]) -> None:
    for given in (TREE[0], 5):
        trusted: Any = given
        for make in (Classifier, lambda path, trusted: classifier_task("gsk3b", path, trusted=trusted)):
            with pytest.raises(ValueError, match=rf"^trusted: {given!r}, expected a list of types, such as \['sklearn.tree._tree"):
                make(str(saved[1]), trusted=trusted)


def test_a_folder_gives_the_tasks_whose_classifiers_it_holds(saved: tuple[Any, Path], tmp_path: Path) -> None:
    shutil.copy(saved[1], tmp_path / "gsk3b.skops")
    shutil.copy(saved[1], tmp_path / "jnk3.skops")
    (tmp_path / "jnk3.onnx").write_bytes(b"another kind, which comes second")
    found = classifier_tasks(tmp_path, trusted=TREE)
    assert {name: task.score.settings["classifier"] for name, task in found.items()} == {  # type: ignore[attr-defined]
        "gsk3b": "gsk3b.skops",
        "jnk3": "jnk3.skops",
    }
    assert set(found) < set(CLASSIFIED) == {"drd2", "gsk3b", "jnk3"}
    (tmp_path / "drd2.pkl").write_bytes(pickle.dumps({}))
    with pytest.raises(ValueError, match="is a pickle, which runs code"):
        classifier_tasks(tmp_path)
    with pytest.raises(ValueError, match=r"^classifiers: '.*absent' holds none of drd2.skops, gsk3b.skops, jnk3.skops"):
        classifier_tasks(tmp_path / "absent")


def test_a_benchmark_opens_the_classifiers_of_its_tasks_before_any_work(saved: tuple[Any, Path], tmp_path: Path) -> None:
    shutil.copy(saved[1], tmp_path / "gsk3b.skops")
    (tmp_path / "jnk3.skops").write_bytes(b"nothing")
    asked: dict[str, Any] = {"methods": ["random"], "budget": 20, "seeds": [0], "classifiers": str(tmp_path)}
    for task, said in (("jnk3", "is no skops file"), ("gsk3b", "holds types that are not trusted")):
        with pytest.raises(ValueError, match=said):
            benchmark("pmo", tasks=[task], output_dir=tmp_path / "out", **asked)
    with pytest.raises(ValueError, match=r"size: 2048, but the model of .*gsk3b\.skops takes 64 inputs"):
        classifier_tasks(tmp_path, trusted=TREE, checked=None)
    assert set(classifier_tasks(tmp_path, trusted=TREE, checked=["qed"])) == {"gsk3b", "jnk3"}
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_benchmark_has_the_tasks_of_the_user_s_classifiers(tmp_path: Path) -> None:
    model = forest(np.stack([bits(s, 2048) for s in MOLECULES]))
    skops_io.dump(model, tmp_path / "jnk3.skops")
    asked: dict[str, Any] = {"methods": ["random"], "budget": 20, "seeds": [0], "output_dir": tmp_path / "out"}
    given: dict[str, Any] = {"classifiers": str(tmp_path), "trusted": TREE}
    (row,) = benchmark("pmo", tasks=["jnk3"], **given, **asked).rows
    with gzip.open(tmp_path / "out/jobs/pmo/jnk3/random/0/calls.csv.gz", "rt") as file:
        calls = list(csv.DictReader(file))
    wanted = model.predict_proba(np.stack([bits(line["smiles"], 2048) for line in calls]))[:, 1]
    assert [float(line["score"]) for line in calls] == pytest.approx(list(wanted), abs=1e-15)
    assert row["calls"] == len(calls) == 20
    assert row["conditions"]["task_settings"]["classifier"] == "jnk3.skops"
    skops_io.dump(forest(np.stack([bits(s, 2048) for s in MOLECULES[::-1]])), tmp_path / "jnk3.skops")
    with pytest.raises(ValueError, match=r"the row of jnk3, random, seed 0 was made otherwise \(task_settings"):
        benchmark("pmo", tasks=["jnk3"], **given, **asked)


def test_a_missing_package_is_named(saved: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs skops, which is not installed; pip install 'discrete-grpo\[classifiers\]'"):
        Classifier(str(saved[1]))


def test_a_file_of_another_task_may_wait_to_be_converted(tmp_path: Path) -> None:
    skops_io.dump(forest(np.stack([bits(s, 2048) for s in MOLECULES])), tmp_path / "gsk3b.skops")
    (tmp_path / "drd2.pkl").write_bytes(b"")
    assert set(classifier_tasks(tmp_path, trusted=TREE, checked=["qed", "gsk3b"])) == {"gsk3b"}
    for checked in (None, ["drd2"], ()):
        with pytest.raises(ValueError, match=r"drd2\.pkl' is a pickle"):
            classifier_tasks(tmp_path, trusted=TREE, checked=checked)
    (tmp_path / "gsk3b.skops").unlink()
    with pytest.raises(ValueError, match=r"drd2\.pkl' is a pickle"):
        classifier_tasks(tmp_path, trusted=TREE, checked=["qed"])
