"""A classifier on molecular fingerprints as a reward: scikit-learn models from skops files, any model from ONNX files.

The classifiers of three PMO tasks, drd2, gsk3b and jnk3, are published as pickles, which run code when they are read and are
therefore refused here. Convert one if you trust its origin::

    python -c "import pickle, skops.io; skops.io.dump(pickle.load(open('gsk3b.pkl', 'rb')), 'gsk3b.skops')"

A pickle of an older scikit-learn must be read by that version. Packages: the extra ``classifiers``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from jaxtyping import Float, Int

from discrete_grpo.core.checks import check_whole, did_you_mean
from discrete_grpo.rewards.pmo import PUBLISHED, PUBLISHED_PRESCREENED
from discrete_grpo.rewards.sources import file_digest
from discrete_grpo.rewards.task import Task

if TYPE_CHECKING:
    from rdkit import Chem

__all__ = ["CLASSIFIED", "Classifier", "classifier_task", "classifier_tasks"]

Fingerprint = Literal["morgan", "atom_pairs"]
PACKAGES = {".skops": ("skops", "sklearn"), ".onnx": ("onnxruntime",)}
PICKLES = (".pkl", ".pickle", ".joblib", ".sav")


@dataclass(frozen=True)
class Classifier:
    """Probability of the second class under a fitted classifier of molecular fingerprints with two classes.

    Args:
        path: a ``.skops`` file of a scikit-learn classifier with ``predict_proba``, or an ``.onnx`` file whose last output are the
            probabilities, of both classes or of the second alone.
        fingerprint: ``"morgan"`` or ``"atom_pairs"`` (at most 10 bonds).
        radius: radius of the Morgan fingerprint in bonds, at least 0.
        size: number of positions to which the fingerprint is folded, at least 1; the model must take as many.
        counts: whether a position has the number of occurrences; otherwise 0 or 1.
        features: whether the Morgan fingerprint tells atoms apart by their pharmacophoric role (FCFP) and not by element (ECFP).
        trusted: types in the skops file that may be instantiated, in addition to those that skops trusts. A forest holds
            ``sklearn.tree._tree.Tree``, in which a forged file can hide indices out of range: list it for files you trust.

    Raises:
        ValueError: for an argument out of its range, a path that is no file of a known kind, and, when first called, for types that
            are not trusted, another number of inputs, or other than two classes.
        ImportError: if the package that reads the file is not installed.

    Source: Olivecrona et al. (2017) for drd2, Li et al. (2018) for gsk3b and jnk3; as in TDC.

    Example::

        reward:
          class_path: discrete_grpo.rewards.classifier.Classifier
          init_args: {path: gsk3b.skops, radius: 2, size: 2048, trusted: [sklearn.tree._tree.Tree]}
    """

    path: str
    fingerprint: Fingerprint = "morgan"
    radius: int = 2
    size: int = 2048
    counts: bool = False
    features: bool = False
    trusted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        if isinstance(self.trusted, str) or not isinstance(self.trusted, Iterable):
            raise ValueError(f"trusted: {self.trusted!r}, expected a list of types, such as ['sklearn.tree._tree.Tree']")
        object.__setattr__(self, "trusted", tuple(self.trusted))
        if self.fingerprint not in get_args(Fingerprint):
            raise ValueError(f"fingerprint: {self.fingerprint!r}, expected one of {', '.join(get_args(Fingerprint))}")
        check_whole("radius", self.radius, least=0)
        check_whole("size", self.size, least=1)
        _check_file(self.path)

    @property
    def name(self) -> str:
        """The name in logs."""
        return f"classifier({Path(self.path).stem})"

    @cached_property
    def cached_as(self) -> tuple[Any, ...]:
        """Every value that the score depends on."""
        settings = (self.fingerprint, self.radius, self.size, self.counts, self.features)
        versions = [importlib.import_module(name).__version__ for name in ("rdkit", *PACKAGES[Path(self.path).suffix.lower()])]
        return (file_digest(self.path), *settings, *versions)

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """Compute the probability for each molecule, all in one call of the model.

        Returns:
            A number in [0, 1] per sample, higher for a molecule that is more likely of the second class; 0 for an invalid one.
        """
        from discrete_grpo.domains.smiles import parse_all

        mols = parse_all(samples)
        valid = [mol for mol in mols if mol is not None]
        found = iter(self._probabilities(np.stack([self._row(mol) for mol in valid])) if valid else ())
        return [0.0 if mol is None else float(next(found)) for mol in mols]

    def check(self) -> None:
        """Open the file once to check it, without keeping the model.

        Raises:
            ValueError: if it is no classifier of two classes, has types that are not trusted, or takes another number of inputs.
        """
        self._opened()

    def probability(self, mol: Chem.Mol) -> float:
        """Compute the probability for one molecule."""
        return float(self._probabilities(self._row(mol)[None])[0])

    def _row(self, mol: Chem.Mol) -> Int[np.ndarray, " size"]:
        from discrete_grpo.domains.fingerprints import atom_pairs, folded_counts, morgan_counts

        found = morgan_counts(mol, self.radius, features=self.features) if self.fingerprint == "morgan" else atom_pairs(mol)
        row = np.zeros(self.size, dtype=np.int32)
        for position, count in folded_counts(found, self.size).items():
            row[position] = count if self.counts else 1
        return row

    @cached_property
    def _probabilities(self) -> Callable[[Int[np.ndarray, "batch size"]], Float[np.ndarray, " batch"]]:
        return self._opened()

    def _opened(self) -> Callable[[Int[np.ndarray, "batch size"]], Float[np.ndarray, " batch"]]:
        opened = _open_skops(self.path, self.trusted) if Path(self.path).suffix.lower() == ".skops" else _open_onnx(self.path)
        predict, inputs = opened
        if inputs is not None and inputs != self.size:
            raise ValueError(f"size: {self.size}, but the model of {self.path} takes {inputs} inputs")
        return predict


# -- files of models

Opened = tuple[Callable[[Any], Any], int | None]
"""Rows of inputs -> probability of the second class; and the number of inputs, where it is known."""


def _check_file(path: str) -> None:
    suffix = Path(path).suffix.lower()
    if suffix in PICKLES:
        to = f"{Path(path).stem}.skops"
        code = f"import pickle, skops.io; skops.io.dump(pickle.load(open({path!r}, 'rb')), {to!r})"
        told = "is a pickle, which runs code when it is read; where you trust it, convert it by"
        raise ValueError(f'path: {path!r} {told} python -c "{code}"')
    if suffix not in PACKAGES or not Path(path).is_file():
        raise ValueError(f"path: {path!r}, expected a .skops or .onnx file")
    for package in PACKAGES[suffix]:
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"classifier: needs {package}, which is not installed; pip install 'discrete-grpo[classifiers]'")


def _open_skops(path: str, trusted: Sequence[str]) -> Opened:
    reader = importlib.import_module("skops.io")
    try:
        missing = sorted(set(reader.get_untrusted_types(file=path)) - set(trusted))
    except Exception as error:  # of zipfile, json and skops
        raise ValueError(f"path: {path!r} is no skops file ({type(error).__name__})") from error
    if missing:
        raise ValueError(f"path: {path!r} holds types that are not trusted; if you trust the file: trusted={missing}")
    model = reader.load(path, trusted=list(trusted))
    if not hasattr(model, "predict_proba"):
        raise ValueError(f"path: {path!r} holds a {type(model).__name__}, expected a classifier with predict_proba")
    classes = getattr(model, "classes_", (0, 1))
    if isinstance(classes, list):  # one array per output
        raise ValueError(f"path: {path!r} has {len(classes)} outputs, expected a classifier with one output of two classes")
    _check_classes(path, len(classes))
    return (lambda rows: model.predict_proba(rows)[:, 1]), getattr(model, "n_features_in_", None)


def _check_classes(path: str, number: int) -> None:
    if number != 2:
        raise ValueError(f"path: {path!r} tells {number} classes apart, expected a classifier of two")


def _open_onnx(path: str) -> Opened:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of the C++ library
        raise ValueError(f"path: {path!r} is no ONNX file that onnxruntime reads ({type(error).__name__})") from error
    entry, leave = session.get_inputs()[0], session.get_outputs()[-1].name
    width = entry.shape[-1] if entry.shape else None

    def predict(rows: Any) -> Any:
        (found,) = session.run([leave], {entry.name: rows.astype(np.float32)})
        if isinstance(found, list):  # one mapping from class to probability per row
            _check_classes(path, len(found[0]))
            return np.array([row[sorted(row)[1]] for row in found])
        table = np.asarray(found).reshape(len(rows), -1)
        if table.shape[1] != 1:  # of the second class alone
            _check_classes(path, table.shape[1])
        return table[:, -1]

    if isinstance(width, int):
        predict(np.zeros((1, width)))  # only then the number of classes is known
    return predict, width if isinstance(width, int) else None


# -- the tasks


@dataclass(frozen=True)
class _Probability:
    """The probability as a scoring part, a function of a molecule."""

    classifier: Classifier

    @property
    def settings(self) -> dict[str, Any]:
        """The classifier's file and the versions that read it."""
        found, path = self.classifier.cached_as, Path(self.classifier.path)
        versions = dict(zip(("rdkit", *PACKAGES[path.suffix.lower()]), found[6:], strict=True))
        return {"classifier": path.name, "classifier_digest": found[0], **versions}

    @property
    def cached_as(self) -> tuple[Any, ...]:
        return self.classifier.cached_as

    def __call__(self, mol: Chem.Mol) -> float:
        return self.classifier.probability(mol)


_TASKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "drd2": (
        "probability of activity at DRD2; support vectors on FCFP6 counts folded to 2,048",
        "Olivecrona et al. (2017), https://doi.org/10.1186/s13321-017-0235-x; TDC, doi 10.7910/DVN/21LKWG file 6413411",
        {"radius": 3, "counts": True, "features": True},
    ),
    "gsk3b": (
        "probability of activity at GSK3β; random forest on ECFP4, 2,048 bits",
        "Li et al. (2018), https://doi.org/10.1186/s13321-018-0287-6; TDC, doi 10.7910/DVN/21LKWG file 6413412",
        {"radius": 2},
    ),
    "jnk3": (
        "probability of activity at JNK3; random forest on ECFP4, 2,048 bits",
        "Li et al. (2018), https://doi.org/10.1186/s13321-018-0287-6; TDC, doi 10.7910/DVN/21LKWG file 6413420",
        {"radius": 2},
    ),
}


def classifier_task(name: str, path: str, *, trusted: Sequence[str] = ()) -> Task:
    """Make the PMO task drd2, gsk3b or jnk3 from a file with its classifier.

    Only the published classifier gives the numbers of PMO; a task with another one is a surrogate, and its results should be
    labelled so.

    Args:
        name: ``"drd2"``, ``"gsk3b"`` or ``"jnk3"``.
        path: as of :class:`Classifier`, whose fingerprint this function chooses.
        trusted: as of :class:`Classifier`.

    Raises:
        ValueError: for another name, and as :class:`Classifier` does.
        ImportError: as :class:`Classifier` does.
    """
    if name not in _TASKS:
        hint = did_you_mean(name, _TASKS)
        raise ValueError(f"name: {name!r}, expected one of {', '.join(_TASKS)}{hint and f'; {hint}'}")
    about, source, settings = _TASKS[name]
    score = _Probability(Classifier(path, trusted=cast(tuple[str, ...], trusted), **settings))
    known = PUBLISHED[name], PUBLISHED_PRESCREENED[name]
    return Task(name, "pmo", about, source, score, published=known[0], published_prescreened=known[1])


CLASSIFIED: dict[str, str] = {name: f"{about} (needs its classifier)" for name, (about, _, _) in _TASKS.items()}
"""Name of each PMO task that needs a classifier -> one line about it."""


def classifier_tasks(folder: str | Path, *, trusted: Sequence[str] = (), checked: Sequence[str] | None = ()) -> dict[str, Task]:
    """Make the PMO tasks whose classifiers a folder holds under their names, such as ``gsk3b.skops`` or ``drd2.onnx``.

    Args:
        folder: folder of the files; if both kinds exist, the skops file is used.
        trusted: as of :class:`Classifier`.
        checked: names of the tasks whose files are opened here, so that a bad file is reported early; None opens all. Where there
            are names, tasks of other files that cannot be used are left out.

    Returns:
        Name -> task, at least one.

    Raises:
        ValueError: if the folder does not exist or holds none of them, and as :class:`Classifier` does.
        ImportError: as :class:`Classifier` does.
    """
    files = {name: [Path(folder) / f"{name}{suffix}" for suffix in (*PACKAGES, *PICKLES)] for name in _TASKS}
    found = {name: next((path for path in paths if path.is_file()), None) for name, paths in files.items()}
    tasks: dict[str, Task] = {}
    unasked: list[Exception] = []
    for name, path in found.items():
        try:
            if path is not None:
                tasks[name] = classifier_task(name, str(path), trusted=trusted)
        except (ValueError, ImportError) as error:
            if not checked or name in checked:
                raise
            unasked.append(error)  # such as a pickle that is to be converted later
    if not tasks and unasked:
        raise unasked[0]
    if not tasks:
        names = ", ".join(f"{name}.skops" for name in _TASKS)
        raise ValueError(f"classifiers: {str(folder)!r} holds none of {names}, expected a folder with one of them (or .onnx)")
    for name, task in tasks.items():
        if checked is None or name in checked:
            cast(_Probability, task.score).classifier.check()
    return tasks
