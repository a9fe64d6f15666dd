"""Activations of ChemNet, from the package fcd_torch, whose weights come with it: nothing is downloaded."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

__all__ = ["activations", "missing"]


def missing() -> str:
    """One line that says how to get the package, or an empty text where it is installed."""
    try:
        importlib.import_module("fcd_torch")
    except ImportError:
        return "fcd: left out, it needs fcd_torch; pip install 'discrete-grpo[fcd]'"
    return ""


def activations(smiles: Sequence[str]) -> Float[np.ndarray, "molecule 512"]:
    """Activations of the last hidden layer of ChemNet for valid molecules, about 4 ms each on one core.

    Raises:
        ImportError: if fcd_torch is not installed.

    Source: Preuer et al. (2018), doi 10.1021/acs.jcim.8b00234; weights of FCD in PyTorch by Insilico Medicine (MIT).
    """
    if missing():
        raise ImportError(missing().replace("left out, it", "activations of ChemNet"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the package calls names that numpy is about to drop
        return np.asarray(importlib.import_module("fcd_torch").FCD().get_predictions(list(smiles)))
