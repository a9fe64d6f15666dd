"""A regression model on molecular fingerprints (QSAR) as a reward, read from a skops or an ONNX file.

Where a prediction should lie is a matter of a transform around the model, such as
:class:`~discrete_grpo.rewards.transforms.Sigmoid` or :class:`~discrete_grpo.rewards.molecules.Target`. Packages: the extra
``classifiers``.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from discrete_grpo.core.checks import check_range
from discrete_grpo.rewards.fingerprint_models import Fingerprint, FingerprintModel, OnnxModel, Predict

__all__ = ["Regressor"]

_NUMBERS = ("tensor(float)", "tensor(double)", "tensor(float16)")


@dataclass(frozen=True)
class Regressor(FingerprintModel):
    """Prediction of a fitted regression model of molecular fingerprints with one output, in the model's own unit.

    Args:
        path: a ``.skops`` file of a regression model or pipeline of scikit-learn, or an ``.onnx`` file with a single output.
        invalid: score of an invalid molecule, in the model's unit, or None for unknown. There is no default since 0 can be a good
            prediction: give a number below those of poor molecules, else the policy would learn to draw invalid ones. The
            transforms of this package, such as :class:`~discrete_grpo.rewards.transforms.Sigmoid`, give an invalid molecule 0
            whatever this number is.
        fingerprint: ``"morgan"`` or ``"atom_pairs"`` (at most 10 bonds).
        radius: radius of the Morgan fingerprint in bonds, at least 0.
        size: number of positions to which the fingerprint is folded, at least 1; the model must take as many.
        counts: whether a position has the number of occurrences; otherwise 0 or 1.
        features: whether the Morgan fingerprint distinguishes atoms by their pharmacophoric role (FCFP) instead of their element
            (ECFP).
        trusted: types in the skops file that may be instantiated, in addition to those that skops trusts. A forest holds
            ``sklearn.tree._tree.Tree``, in which a forged file can hide indices out of range: list it for files you trust.

    Raises:
        ValueError: for an argument out of its range, a path that is no file of a known kind, and, when first called, for types that
            are not trusted, a model that is no regression model or is not fitted, another number of inputs, or several outputs.
        ImportError: if the package that reads the file is not installed.

    Example::

        reward:
          class_path: discrete_grpo.rewards.transforms.Sigmoid
          init_args:
            property:
              class_path: discrete_grpo.rewards.regressor.Regressor
              init_args: {path: pic50.skops, invalid: 0, trusted: [sklearn.tree._tree.Tree]}
            low: 5
            high: 8
    """

    path: str
    invalid: float | None
    fingerprint: Fingerprint = "morgan"
    radius: int = 2
    size: int = 2048
    counts: bool = False
    features: bool = False
    trusted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.invalid is not None:
            check_range("invalid", self.invalid, note=" or None")
            object.__setattr__(self, "invalid", float(self.invalid))
        super().__post_init__()

    def __call__(self, samples: Sequence[str | None], **columns: Sequence[Any]) -> list[float | None]:
        """Predict the property of each molecule, all in one call of the model.

        Returns:
            A number in the unit of the model per sample, in the direction of the model; ``invalid`` for an invalid molecule, None
            where the model gives no finite number.
        """
        from discrete_grpo.domains.smiles import parse_all

        mols = parse_all(samples)
        found = iter(self._predictions([mol for mol in mols if mol is not None]))
        values = [self.invalid if mol is None else next(found) for mol in mols]
        return [value if value is not None and math.isfinite(value) else None for value in values]

    def _opened(self) -> Predict:
        predict = super()._opened()
        try:
            found = predict(np.zeros((1, self.size), dtype=np.int32))
        except Exception as error:  # such as of a model that is not fitted
            told = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ValueError(f"path: {self.path!r} holds a model that predicts nothing from {self.size} inputs ({told})") from error
        if np.size(found) != 1:
            raise ValueError(
                f"path: {self.path!r} predicts {np.size(found)} numbers per molecule, expected a regression model of one"
            )
        return lambda rows: np.asarray(predict(rows)).reshape(-1)

    def _of_skops(self, model: Any) -> Predict:
        try:
            fits = bool(importlib.import_module("sklearn.base").is_regressor(model))
        except (AttributeError, TypeError):  # no estimator
            fits = False
        if not fits:
            told = "expected a regression model; for a classifier use Classifier"
            raise ValueError(f"path: {self.path!r} holds a {type(model).__name__}, {told}")
        return cast(Predict, model.predict)

    def _of_onnx(self, model: OnnxModel) -> Predict:
        names = ", ".join(output.name for output in model.outputs)
        if len(model.outputs) != 1:  # a classifier has a label and probabilities
            told = "expected a regression model with one; for a classifier use Classifier"
            raise ValueError(f"path: {self.path!r} has {len(model.outputs)} outputs ({names}), {told}")
        if model.outputs[0].type not in _NUMBERS:
            raise ValueError(f"path: {self.path!r} gives {model.outputs[0].type} as {names}, expected one of {', '.join(_NUMBERS)}")
        return model
