"""A classifier on molecular fingerprints as a reward: scikit-learn models from skops files, any model from ONNX files.

The classifiers of three PMO tasks, drd2, gsk3b and jnk3, are published as pickles, which run code when they are read and are
therefore refused here. Convert one if you trust its origin::

    python -c "import pickle, skops.io; skops.io.dump(pickle.load(open('gsk3b.pkl', 'rb')), 'gsk3b.skops')"

A pickle of an older scikit-learn must be read by that version. Packages: the extra ``classifiers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Float, Int

from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.rewards.fingerprint_models import PACKAGES, PICKLES, Fingerprint, FingerprintModel, OnnxModel, Predict
from discrete_grpo.rewards.pmo import PUBLISHED, PUBLISHED_PRESCREENED
from discrete_grpo.rewards.task import Task

if TYPE_CHECKING:
    from rdkit import Chem

__all__ = ["CLASSIFIED", "Classifier", "classifier_task", "classifier_tasks"]


@dataclass(frozen=True)
class Classifier(FingerprintModel):
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

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float]:
        """Compute the probability for each molecule, all in one call of the model.

        Returns:
            A number in [0, 1] per sample, higher for a molecule that is more likely of the second class; 0 for an invalid one.
        """
        from discrete_grpo.domains.smiles import parse_all

        mols = parse_all(samples)
        found = iter(self._predictions([mol for mol in mols if mol is not None]))
        return [0.0 if mol is None else next(found) for mol in mols]

    def probability(self, mol: Chem.Mol) -> float:
        """Compute the probability for one molecule."""
        return self._predictions([mol])[0]

    def _of_skops(self, model: Any) -> Predict:
        if not hasattr(model, "predict_proba"):
            told = "expected a classifier with predict_proba; for a regression model use Regressor"
            raise ValueError(f"path: {self.path!r} holds a {type(model).__name__}, {told}")
        classes = getattr(model, "classes_", (0, 1))
        if isinstance(classes, list):  # one array per output
            told = f"has {len(classes)} outputs, expected a classifier with one output of two classes"
            raise ValueError(f"path: {self.path!r} {told}")
        self._check_classes(len(classes))
        return lambda rows: model.predict_proba(rows)[:, 1]

    def _of_onnx(self, model: OnnxModel) -> Predict:
        def predict(rows: Int[np.ndarray, "batch size"]) -> Float[np.ndarray, " batch"]:
            found = model(rows)
            if isinstance(found, list):  # one mapping from class to probability per row
                self._check_classes(len(found[0]))
                return np.array([row[sorted(row)[1]] for row in found])
            table = np.asarray(found).reshape(len(rows), -1)
            if table.shape[1] != 1:  # of the second class alone
                self._check_classes(table.shape[1])
            return cast(Any, table[:, -1])

        if model.width is not None:
            predict(np.zeros((1, model.width), dtype=np.int32))  # only then the number of classes is known
        return predict

    def _check_classes(self, number: int) -> None:
        if number != 2:
            raise ValueError(f"path: {self.path!r} tells {number} classes apart, expected a classifier of two")


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
