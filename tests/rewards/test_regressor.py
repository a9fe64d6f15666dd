"""Regression models read from skops and ONNX files: the prediction, the score of an invalid molecule, and what is refused."""

from __future__ import annotations

import math
import pickle
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from rdkit import Chem
from rdkit.Chem import AllChem

from discrete_grpo.cli.reward_spec import complete_reward, make_reward
from discrete_grpo.recipes.reward_kinds import kind_of
from discrete_grpo.rewards.classifier import Classifier
from discrete_grpo.rewards.identity import reward_identity
from discrete_grpo.rewards.reference import public_rewards
from discrete_grpo.rewards.regressor import Regressor
from discrete_grpo.rewards.transforms import Sigmoid

ensemble = pytest.importorskip("sklearn.ensemble")
linear = pytest.importorskip("sklearn.linear_model")
skops_io = pytest.importorskip("skops.io")

MOLECULES = ["C" * length + end for length in range(1, 11) for end in ("O", "N", "Cl", "c1ccccc1", "C(=O)O")]
LENGTHS = [float(len(s)) - 9.5 for s in MOLECULES]  # some of them below 0
TREE = ("sklearn.tree._tree.Tree",)


def bits(smiles: str, size: int = 64) -> Any:
    """ECFP4 as RDKit's older function folds it."""
    found = AllChem.GetMorganFingerprintAsBitVect(Chem.MolFromSmiles(smiles), 2, nBits=size)  # type: ignore[attr-defined]
    return np.array(list(found))


def feature_counts(smiles: str, size: int = 64) -> Any:
    """FCFP6 with counts, folded by the remainder."""
    found = AllChem.GetMorganFingerprint(Chem.MolFromSmiles(smiles), 3, useCounts=True, useFeatures=True)  # type: ignore[attr-defined]
    row = np.zeros(size, np.int32)
    for identifier, count in found.GetNonzeroElements().items():
        row[identifier % size] += count
    return row


def pair_bits(smiles: str, size: int = 64) -> Any:
    """Atom pairs at most 10 bonds apart, folded by the remainder."""
    found = AllChem.GetAtomPairGenerator(maxDistance=10).GetSparseCountFingerprint(Chem.MolFromSmiles(smiles))  # type: ignore[attr-defined]
    row = np.zeros(size, np.int32)
    row[[identifier % size for identifier in found.GetNonzeroElements()]] = 1
    return row


ROWS = np.stack([bits(s) for s in MOLECULES])


def forest() -> Any:
    return ensemble.RandomForestRegressor(7, random_state=0, n_jobs=1)


def saved(folder: Path, model: Any, name: str = "toy") -> str:
    skops_io.dump(model, folder / f"{name}.skops")
    return str(folder / f"{name}.skops")


@pytest.mark.parametrize(
    ("rows_of", "settings"),
    [
        (bits, {}),
        (feature_counts, {"radius": 3, "counts": True, "features": True}),
        (pair_bits, {"fingerprint": "atom_pairs"}),
    ],
)
@pytest.mark.parametrize("make", [forest, lambda: linear.Ridge(0.5)])
def test_the_score_is_the_prediction_of_the_model(tmp_path: Path, make: Any, rows_of: Any, settings: dict[str, Any]) -> None:
    rows = np.stack([rows_of(s) for s in MOLECULES])
    model = make().fit(rows, LENGTHS)
    reward = Regressor(saved(tmp_path, model), invalid=-20.0, size=64, trusted=TREE, **settings)
    wanted = model.predict(rows)
    assert wanted.min() < 0.0 < wanted.max()
    found = reward(["C.C", *MOLECULES, None, ""])
    assert found == pytest.approx([-20.0, *wanted, -20.0, -20.0], abs=1e-9)
    assert all(type(value) is float for value in found)
    assert reward([None]) == [-20.0]
    assert reward([]) == []


def test_a_pipeline_and_a_column_of_targets_are_read_too(tmp_path: Path) -> None:
    pipeline = pytest.importorskip("sklearn.pipeline").make_pipeline(
        pytest.importorskip("sklearn.preprocessing").StandardScaler(), linear.Ridge()
    )
    model = pipeline.fit(ROWS, np.array(LENGTHS)[:, None])  # predicts a column [50, 1]
    assert model.predict(ROWS).shape == (50, 1) or model.predict(ROWS).ndim == 1
    found = Regressor(saved(tmp_path, model), 0.0, size=64)(MOLECULES)
    assert found == pytest.approx(model.predict(ROWS).ravel().tolist(), abs=1e-9)


def test_an_onnx_file_gives_the_same(tmp_path: Path) -> None:
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    pytest.importorskip("onnxruntime")
    model = forest().fit(ROWS, LENGTHS)
    (tmp_path / "toy.onnx").write_bytes(to_onnx(model, np.zeros((1, 64), np.float32)).SerializeToString())
    reward = Regressor(str(tmp_path / "toy.onnx"), invalid=0.0, size=64)
    assert reward(MOLECULES) == pytest.approx(model.predict(ROWS).tolist(), abs=1e-5)
    with pytest.raises(ValueError, match="size: 32, but the model"):
        Regressor(str(tmp_path / "toy.onnx"), invalid=0.0, size=32)(["C"])
    few = ensemble.RandomForestClassifier(3, random_state=0).fit(ROWS, [x > 0 for x in LENGTHS])
    (tmp_path / "few.onnx").write_bytes(to_onnx(few, np.zeros((1, 64), np.float32)).SerializeToString())
    with pytest.raises(ValueError, match=r"has 2 outputs .*, expected a regression model with one"):
        Regressor(str(tmp_path / "few.onnx"), invalid=0.0, size=64)(["C"])


# -- ONNX through a runtime that stands for onnxruntime


class Runtime:
    """Predicts ``scale`` times the sum of the row in the type of the input, in a table [batch, columns]."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
        self.shape: list[Any] = [None, 64]
        self.given, self.outputs, self.scale, self.columns = "tensor(float)", [("variable", "tensor(float)")], 0.1, 1
        self.types = set[Any]()
        runtime = ModuleType("onnxruntime")
        runtime.__spec__ = ModuleSpec("onnxruntime", None)
        vars(runtime).update(SessionOptions=SimpleNamespace, InferenceSession=lambda *a, **k: self, __version__="0")
        monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
        file.touch()

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="x", shape=self.shape, type=self.given)]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name=name, type=kind) for name, kind in self.outputs]

    def run(self, names: list[str], feed: dict[str, Any]) -> list[Any]:
        rows = feed["x"]
        self.types.add(rows.dtype)
        assert names == [self.outputs[-1][0]]
        with np.errstate(invalid="ignore"):  # 0 times infinity
            return [np.tile(rows.sum(1, keepdims=True) * rows.dtype.type(self.scale), (1, self.columns))]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    return Runtime(monkeypatch, tmp_path / "toy.onnx")


@pytest.mark.parametrize("known", [True, False])
def test_the_only_output_of_an_onnx_file_is_the_prediction(tmp_path: Path, runtime: Runtime, known: bool) -> None:
    runtime.shape = [None, 64] if known else [None, None]
    reward = Regressor(str(tmp_path / "toy.onnx"), invalid=None, size=64)
    wanted = [0.1 * bits(s).sum() for s in ("CCO", "C")]
    assert wanted[0] != wanted[1]
    assert reward(["CCO", None, "C"]) == [pytest.approx(wanted[0], abs=1e-6), None, pytest.approx(wanted[1], abs=1e-6)]
    assert runtime.types == {np.dtype(np.float32)}


def test_inputs_have_the_type_that_the_onnx_file_says(tmp_path: Path, runtime: Runtime) -> None:
    runtime.given = "tensor(double)"
    assert Regressor(str(tmp_path / "toy.onnx"), invalid=0.0, size=64)(["CCO"]) == [
        pytest.approx(0.1 * bits("CCO").sum(), abs=1e-12)
    ]
    assert runtime.types == {np.dtype(np.float64)}


def test_a_prediction_that_is_not_finite_is_unknown(tmp_path: Path, runtime: Runtime) -> None:
    for scale in (math.inf, math.nan):
        runtime.scale = scale
        assert Regressor(str(tmp_path / "toy.onnx"), invalid=-1.0, size=64)(["CCO", None]) == [None, -1.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shape": [None, 32]}, "^size: 64, but the model of .*toy.onnx takes 32 inputs$"),
        ({"columns": 3}, "^path: '.*toy.onnx' predicts 3 numbers per molecule, expected a regression model of one$"),
        (
            {"outputs": [("label", "tensor(int64)"), ("probabilities", "tensor(float)")]},
            r"^path: '.*toy.onnx' has 2 outputs \(label, probabilities\), expected a regression model with one; for a classifier",
        ),
        (
            {"outputs": [("label", "tensor(int64)")]},
            r"gives tensor\(int64\) as label, expected one of tensor\(float\), tensor\(double",
        ),
        ({"scale": "x"}, r"^path: '.*' holds a model that predicts nothing from 64 inputs \(ValueError: could not convert"),
    ],
)
def test_onnx_files_of_other_models_are_refused(tmp_path: Path, runtime: Runtime, change: dict[str, Any], said: str) -> None:
    vars(runtime).update(change)
    reward = Regressor(str(tmp_path / "toy.onnx"), invalid=0.0, size=64)
    for ask in (reward.check, lambda: reward(["C"])):
        with pytest.raises(ValueError, match=said) as caught:
            ask()
        assert "\n" not in str(caught.value)


# -- identity, processes, refusals


def test_the_identity_follows_the_file_and_the_settings(tmp_path: Path) -> None:
    path = saved(tmp_path, linear.Ridge().fit(ROWS, LENGTHS))
    before = reward_identity(Regressor(path, 0.0, size=64))
    assert before is not None
    assert before == reward_identity(Regressor(path, 0, size=64, trusted=TREE))
    others: list[dict[str, Any]] = [{"invalid": -1.0}, {"radius": 3}, {"size": 32}, {"counts": True}, {"features": True}]
    others += [{"fingerprint": "atom_pairs"}, {"invalid": None}]
    assert len({before, *(reward_identity(Regressor(path, **({"invalid": 0.0, "size": 64} | other))) for other in others)}) == 8
    saved(tmp_path, linear.Ridge().fit(ROWS, LENGTHS[::-1]))
    assert reward_identity(Regressor(path, 0.0, size=64)) not in (None, before)


def test_it_is_sent_to_other_processes_as_its_settings(tmp_path: Path) -> None:
    reward = Regressor(saved(tmp_path, forest().fit(ROWS, LENGTHS)), -3.0, size=64, trusted=TREE)
    before, found = len(pickle.dumps(reward)), reward(MOLECULES)
    assert len(pickle.dumps(reward)) == before
    again = pickle.loads(pickle.dumps(reward))
    assert again == reward
    assert again([*MOLECULES, None]) == [*found, -3.0]


def test_a_transform_gives_invalid_molecules_0(tmp_path: Path) -> None:
    reward = Regressor(saved(tmp_path, linear.Ridge().fit(ROWS, LENGTHS), "pIC50"), invalid=99.0, size=64)
    assert (reward.name, kind_of(reward)) == ("regressor(pIC50)", "molecules")
    high, none = Sigmoid(reward, low=-5.0, high=5.0)(["CCCCCCCCCC", None])
    assert none == 0.0
    assert high is not None
    assert high > 0.0


def test_the_example_of_the_docstring_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.stack([bits(s, 2048) for s in MOLECULES])
    saved(tmp_path, forest().fit(rows, LENGTHS), "pic50")
    given = yaml.safe_load(public_rewards()["Regressor"].example)["reward"]
    reward = make_reward(complete_reward(given))
    assert isinstance(reward.property, Regressor)
    assert reward(["CCCCCCCCCCC(=O)O", None])[0] > 0.0


def test_wrong_files_are_refused_in_one_line(tmp_path: Path) -> None:
    line = saved(tmp_path, linear.Ridge().fit(ROWS, LENGTHS), "line")
    few = saved(tmp_path, ensemble.RandomForestClassifier(3, random_state=0).fit(ROWS, [x > 0 for x in LENGTHS]), "few")
    two = saved(tmp_path, linear.Ridge().fit(ROWS, np.stack([LENGTHS, LENGTHS], 1)), "two")
    blank = saved(tmp_path, linear.Ridge(), "blank")
    groups = saved(tmp_path, pytest.importorskip("sklearn.cluster").KMeans(2, n_init=1, random_state=0).fit(ROWS), "groups")
    table = saved(tmp_path, {"a": 1}, "table")
    for make, said in (
        (
            lambda: Regressor(few, 0.0, size=64, trusted=TREE)(["C"]),
            "holds a RandomForestClassifier, expected a regression model; for a",
        ),
        (lambda: Regressor(groups, 0.0, size=64)(["C"]), "holds a KMeans, expected a regression model"),
        (lambda: Regressor(table, 0.0, size=64)(["C"]), "holds a dict, expected a regression model"),
        (lambda: Regressor(two, 0.0, size=64).check(), "predicts 2 numbers per molecule, expected a regression model of one$"),
        (lambda: Regressor(blank, 0.0, size=64)(["C"]), r"predicts nothing from 64 inputs \(NotFittedError: This Ridge instance"),
        (lambda: Regressor(line, 0.0).check(), "^size: 2048, but the model of .*line.skops takes 64 inputs$"),
        (lambda: Regressor(str(tmp_path / "old.pkl"), 0.0), "old.pkl' is a pickle, which runs code"),
        (lambda: Regressor(str(tmp_path / "absent.onnx"), 0.0), "absent.onnx', expected a .skops or .onnx file"),
        (lambda: Regressor(line, math.nan), "^invalid: nan, expected a finite number or None$"),
        (lambda: Regressor(line, "0"), "^invalid: '0', expected a finite number or None$"),  # type: ignore[arg-type]
        (lambda: Regressor(line, 0.0, size=0), "^size: 0"),
        (
            lambda: Classifier(line, size=64)(["C"]),
            "holds a Ridge, expected a classifier with predict_proba; for a regression model use",
        ),
    ):
        with pytest.raises(ValueError, match=said) as caught:
            make()
        assert "\n" not in str(caught.value)
    with pytest.raises(TypeError, match="invalid"):
        Regressor(line)  # type: ignore[call-arg]


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, linear.Ridge().fit(ROWS, LENGTHS))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r"^regressor: needs skops, which is not installed; pip install 'discrete-grpo\[classifiers\]'$"
    ):
        Regressor(path, 0.0)
