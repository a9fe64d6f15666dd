"""Activations of ChemNet from the package fcd_torch, which includes the weights, so nothing is downloaded."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float

from discrete_grpo.metrics.extras import missing_package

__all__ = ["activations", "missing"]

_needs = partial(missing_package, "fcd_torch", "fcd_torch", "fcd")


def missing() -> str:
    """Return one line on how to install the package, or an empty text if it is installed."""
    needs = _needs()
    return f"fcd: left out, it {needs}" if needs else ""


def activations(smiles: Sequence[str]) -> Float[np.ndarray, "molecule 512"]:
    """Activations of the last hidden layer of ChemNet for valid molecules, about 4 ms each on one core.

    Raises:
        ImportError: if fcd_torch is not installed.

    Source: Preuer et al. (2018), doi 10.1021/acs.jcim.8b00234; weights of FCD in PyTorch by Insilico Medicine (MIT).
    """
    if needs := _needs():
        raise ImportError(f"fcd: activations of ChemNet {needs}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the package uses deprecated names of numpy
        return np.asarray(importlib.import_module("fcd_torch").FCD().get_predictions(list(smiles)))
