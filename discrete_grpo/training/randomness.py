"""The global random states of a process. Nothing here draws from them; a user's reward may."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["global_state", "restore_global_state"]


def global_state() -> dict[str, Any]:
    """Those of python, numpy, torch and its accelerator, as tensors and numbers for a checkpoint."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "keys": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            "rest": [int(position), int(has_gauss), float(cached)],
        },
        "torch": torch.get_rng_state(),
        "cuda": [state.cpu() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
    }


def restore_global_state(state: Mapping[str, Any]) -> None:
    """Go on from :func:`global_state`; what belongs to accelerators that are not here is left out."""
    python, (position, has_gauss, cached) = state["python"], state["numpy"]["rest"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(("MT19937", state["numpy"]["keys"].numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
