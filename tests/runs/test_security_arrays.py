"""Files of NumPy from strangers: arrays of Python objects are never read."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discrete_grpo.datasets.graph_splits import read_npz
from discrete_grpo.datasets.molecules import load_molecules
from discrete_grpo.datasets.smiles import load_smiles
from tests.runs.traps import Trap, objects, one_line


def test_the_arrays_would_run(tmp_path: Path) -> None:
    path = objects(tmp_path / "x.npz", tmp_path / "ran", ("a",))
    with np.load(path, allow_pickle=True) as found:
        found["a"]
    assert (tmp_path / "ran").is_dir()


def test_graph_data(tmp_path: Path, canary: Path, refused: Callable[..., str]) -> None:
    names = tuple(f"{split}_{part}" for split in ("train", "val", "test") for part in ("num_nodes", "edges", "offsets"))
    path = objects(tmp_path / "x.npz", canary, names)
    with pytest.raises(ValueError, match="allow_pickle=False") as error:
        read_npz(path)
    one_line(error)
    assert "allow_pickle" in refused("evaluate", path)
    path.write_bytes(pickle.dumps(Trap(canary)))
    with pytest.raises(ValueError, match=r"x\.npz cannot be read"):
        read_npz(path)


@pytest.mark.parametrize("load", [load_molecules, load_smiles])
@pytest.mark.parametrize("form", ["objects", "pickle"])
def test_caches_of_molecules(tmp_path: Path, canary: Path, load: Callable[..., Any], form: str) -> None:
    (tmp_path / "good.smi").write_text("CCO\nCCN\n")
    load(tmp_path / "good.smi", cache_dir=tmp_path / "cache")
    (cached,) = (tmp_path / "cache").iterdir()
    if form == "objects":
        objects(cached, canary, ("nodes", "pairs", "sizes", "broken", "vocabulary", "smiles", "scaffolds", "values"))
    else:
        cached.write_bytes(pickle.dumps(Trap(canary)))
    with pytest.warns(RuntimeWarning, match="damaged, and made again; (ValueError: .*pickle|BadZipFile: File is not a zip file)"):
        assert load(tmp_path / "good.smi", cache_dir=tmp_path / "cache").smiles == ("CCO", "CCN")
    assert not canary.exists()
