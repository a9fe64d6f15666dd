"""Fitted models of molecular fingerprints in skops and ONNX files: what classifiers and regression models as rewards share."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from jaxtyping import Int

from discrete_grpo.core.checks import check_whole
from discrete_grpo.rewards.sources import file_digest

if TYPE_CHECKING:
    from rdkit import Chem

__all__ = ["PACKAGES", "PICKLES", "Fingerprint", "FingerprintModel", "OnnxModel"]

Fingerprint = Literal["morgan", "atom_pairs"]
PACKAGES = {".skops": ("skops", "sklearn"), ".onnx": ("onnxruntime",)}
"""Kind of file -> the packages that read it."""
PICKLES = (".pkl", ".pickle", ".joblib", ".sav")
_TYPES = {"tensor(double)": np.float64, "tensor(int64)": np.int64}
"""Type of an ONNX input -> that of the rows given to it; float32 for any other."""
Predict = Callable[[Int[np.ndarray, "batch size"]], Any]
"""Rows of inputs -> what the model says of each."""


class FingerprintModel:
    """Base of the rewards that are a model in a file, which is given the folded fingerprint of each molecule.

    A subclass is a frozen dataclass with at least these fields, and decides which models it takes and what they are asked for.

    Attributes:
        path: the ``.skops`` or ``.onnx`` file.
        fingerprint: ``"morgan"`` or ``"atom_pairs"``.
        radius: radius of the Morgan fingerprint in bonds.
        size: number of positions to which the fingerprint is folded.
        counts: whether a position has the number of occurrences; otherwise 0 or 1.
        features: whether the Morgan fingerprint distinguishes atoms by their pharmacophoric role.
        trusted: types in the skops file that may be instantiated.
    """

    path: str
    fingerprint: Fingerprint
    radius: int
    size: int
    counts: bool
    features: bool
    trusted: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        if isinstance(self.trusted, str) or not isinstance(self.trusted, Iterable):
            raise ValueError(f"trusted: {self.trusted!r}, expected a list of types, such as ['sklearn.tree._tree.Tree']")
        object.__setattr__(self, "trusted", tuple(self.trusted))
        if self.fingerprint not in get_args(Fingerprint):
            raise ValueError(f"fingerprint: {self.fingerprint!r}, expected one of {', '.join(get_args(Fingerprint))}")
        check_whole("radius", self.radius, least=0)
        check_whole("size", self.size, least=1)
        _check_file(type(self).__name__.lower(), self.path)

    def __getstate__(self) -> dict[str, Any]:
        """The settings alone: the model itself cannot be sent to another process, which reads the file again."""
        return {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}

    @property
    def name(self) -> str:
        """The name in logs."""
        return f"{type(self).__name__.lower()}({Path(self.path).stem})"

    @cached_property
    def cached_as(self) -> tuple[Any, ...]:
        """Every value that the score depends on."""
        settings = [getattr(self, name) for name in self.__getstate__() if name not in ("path", "trusted")]
        versions = [importlib.import_module(name).__version__ for name in ("rdkit", *PACKAGES[Path(self.path).suffix.lower()])]
        return (file_digest(self.path), *settings, *versions)

    def check(self) -> None:
        """Open the file once to check it, without keeping the model.

        Raises:
            ValueError: if its model is of another kind, has types that are not trusted, or takes another number of inputs.
        """
        self._opened()

    def _predictions(self, mols: Sequence[Chem.Mol]) -> list[float]:
        """One number per molecule, all in one call of the model."""
        return [float(x) for x in self._model(np.stack([self._row(mol) for mol in mols]))] if mols else []

    def _row(self, mol: Chem.Mol) -> Int[np.ndarray, " size"]:
        from discrete_grpo.domains.fingerprints import atom_pairs, folded_counts, morgan_counts

        found = morgan_counts(mol, self.radius, features=self.features) if self.fingerprint == "morgan" else atom_pairs(mol)
        row = np.zeros(self.size, dtype=np.int32)
        for position, count in folded_counts(found, self.size).items():
            row[position] = count if self.counts else 1
        return row

    @cached_property
    def _model(self) -> Predict:
        return self._opened()

    def _opened(self) -> Predict:
        if Path(self.path).suffix.lower() == ".skops":
            model = _read_skops(self.path, self.trusted)
            predict, inputs = self._of_skops(model), getattr(model, "n_features_in_", None)
        else:
            session = OnnxModel(self.path)
            predict, inputs = self._of_onnx(session), session.width
        if inputs is not None and inputs != self.size:
            raise ValueError(f"size: {self.size}, but the model of {self.path} takes {inputs} inputs")
        return predict

    def _of_skops(self, model: Any) -> Predict:
        raise NotImplementedError

    def _of_onnx(self, model: OnnxModel) -> Predict:
        raise NotImplementedError


# -- files


def _check_file(reward: str, path: str) -> None:
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
            raise ImportError(f"{reward}: needs {package}, which is not installed; pip install 'discrete-grpo[classifiers]'")


def _read_skops(path: str, trusted: Sequence[str]) -> Any:
    reader = importlib.import_module("skops.io")
    try:
        missing = sorted(set(reader.get_untrusted_types(file=path)) - set(trusted))
    except Exception as error:  # of zipfile, json and skops
        raise ValueError(f"path: {path!r} is no skops file ({type(error).__name__})") from error
    if missing:
        raise ValueError(f"path: {path!r} holds types that are not trusted; if you trust the file: trusted={missing}")
    return reader.load(path, trusted=list(trusted))


class OnnxModel:
    """A model of an ONNX file, run on one thread of the CPU.

    Args:
        path: the file.

    Attributes:
        width: number of inputs of its first argument; None where the file does not say.
        outputs: its outputs, each with ``name`` and ``type``.

    Raises:
        ValueError: if onnxruntime cannot read the file.
    """

    def __init__(self, path: str) -> None:
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            self._session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of the C++ library
            raise ValueError(f"path: {path!r} is no ONNX file that onnxruntime reads ({type(error).__name__})") from error
        self._entry = self._session.get_inputs()[0]
        width = self._entry.shape[-1] if self._entry.shape else None
        self.width: int | None = width if isinstance(width, int) else None
        self.outputs: list[Any] = list(self._session.get_outputs())

    def __call__(self, rows: Int[np.ndarray, "batch size"]) -> Any:
        """Compute the last output for rows of inputs."""
        given = rows.astype(_TYPES.get(getattr(self._entry, "type", ""), np.float32))
        (found,) = self._session.run([self.outputs[-1].name], {self._entry.name: given})
        return found
