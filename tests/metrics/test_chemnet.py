"""The Frechet ChemNet distance, where the package with the network is installed, and metrics of real molecules, where there are."""

from __future__ import annotations

import gzip
import math
import random
import sys

import pytest

from discrete_grpo.metrics import chemnet
from discrete_grpo.metrics.distances import frechet_distance
from discrete_grpo.metrics.guacamol import guacamol
from discrete_grpo.metrics.moses import moses
from discrete_grpo.metrics.suite import SuiteOptions
from tests.shared_data import SHARED

VALUES = SuiteOptions(bootstrap=0)
GENERATED = ["CCO", "CC(=O)Nc1ccccc1", "c1ccc2[nH]ccc2c1", "CCOC(=O)c1ccc(N)cc1"]
REFERENCE = ["CCO", "CC(=O)Nc1ccc(O)cc1", "Cc1ccc(-c2ccccc2)cc1", "CCN(CC)CC", "CCOC(=O)C1CCNCC1"]


def test_frechet_chemnet_distance() -> None:
    pytest.importorskip("fcd_torch")
    found = moses(GENERATED, REFERENCE, options=VALUES)
    expected = frechet_distance(chemnet.activations(GENERATED), chemnet.activations(REFERENCE))
    assert found.metrics["fcd"].value == pytest.approx(expected, rel=1e-6)
    assert found.notes == ()
    assert chemnet.activations(["OCC"]) == pytest.approx(chemnet.activations(["CCO"]))
    assert chemnet.activations([]).shape == (0, 512)
    flat = guacamol(GENERATED, REFERENCE, VALUES).metrics
    assert flat["fcd_score"].value == pytest.approx(math.exp(-0.2 * flat["fcd"].value))


def test_a_missing_package_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcd_torch", None)
    for found in (moses(["CCO"], REFERENCE, options=VALUES), guacamol(["CCO"], REFERENCE, VALUES)):
        assert "fcd" not in found.metrics
        assert found.notes == ("fcd: left out, it needs fcd_torch; pip install 'discrete-grpo[fcd]'",)
    with pytest.raises(ImportError, match="fcd: activations of ChemNet needs fcd_torch"):
        chemnet.activations(["CCO"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the data sets are not beside the repository")
def test_train_against_test_of_zinc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chemnet, "missing", lambda: "fcd: left out")
    train, test = (
        gzip.decompress((SHARED / f"zinc250k_{part}.smi.gz").read_bytes()).decode().split() for part in ("train", "test")
    )
    found = moses(random.Random(0).sample(train, 250), random.Random(0).sample(test, 250), options=VALUES).metrics
    assert found["valid"].value == 1.0
    assert 0.84 < found["int_div_1"].value < 0.89  # MOSES, also of ZINC: 0.857
    assert 0.2 < found["snn"].value < 0.45  # grows with the reference: 0.64 with 176,000 molecules
    assert found["frag"].value > 0.95
    assert found["w1_qed"].value < 0.05
