"""The suites of MOSES and GuacaMol: each metric against its definition written out on a few molecules."""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import BRICS, QED, Crippen, Descriptors, rdFingerprintGenerator
from rdkit.Chem.Scaffolds import MurckoScaffold
from scipy.stats import entropy, gaussian_kde

from discrete_grpo.core.json_files import read_json, write_json
from discrete_grpo.domains import molecule_properties
from discrete_grpo.metrics import chemnet, molecule_table
from discrete_grpo.metrics import guacamol as module
from discrete_grpo.metrics.distances import frechet_distance
from discrete_grpo.metrics.guacamol import guacamol
from discrete_grpo.metrics.molecule_suite import cosine_statistic, repair_statistics
from discrete_grpo.metrics.molecule_table import MoleculeTable
from discrete_grpo.metrics.moses import _counts, distances, fcd_statistic, moses
from discrete_grpo.metrics.resampling import Estimate, Statistic, whole
from discrete_grpo.metrics.suite import SuiteOptions, SuiteResult, check_suite

VALUES = SuiteOptions(bootstrap=0)
GENERATED = [
    "CC(=O)Nc1ccccc1",
    "C((",
    "c1ccc(-c2ccccc2)cc1",
    "CCOC(=O)c1ccc(N)cc1",
    "OCC",
    "CCO",
    "C[C@H](N)C(=O)O",
    "C[C@@H](N)C(=O)O",
    "c1ccc2[nH]ccc2c1",
    "CC.O",
    None,
    "CN(C)(C)C",
]
REFERENCE = [
    "CCO",
    "CC(=O)Nc1ccc(O)cc1",
    "c1ccc2[nH]ccc2c1",
    "Cc1ccc(-c2ccccc2)cc1",
    "CCN(CC)CC",
    "C[C@H](N)C(=O)O",
    "CCOC(=O)C1CCNCC1",
    "COc1ccc2ncccc2c1",
]
VALID = [Chem.MolToSmiles(m) for s in GENERATED if s and (m := Chem.MolFromSmiles(s))]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """ChemNet is left out."""
    monkeypatch.setattr(chemnet, "missing", lambda: "fcd: left out")


def value(result: SuiteResult, name: str) -> float:
    return result.metrics[name].value


def mols(smiles: Sequence[str]) -> list[Chem.Mol]:
    return [Chem.MolFromSmiles(s) for s in smiles]


def similarities(left: Sequence[str], right: Sequence[str], size: int) -> np.ndarray:
    morgan = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=size)
    a, b = ([set(morgan.GetFingerprint(m).GetOnBits()) for m in mols(side)] for side in (left, right))
    return np.array([[len(x & y) / len(x | y) for y in b] for x in a])


# -- MOSES


def test_moses_counts_by_hand() -> None:
    found = moses(GENERATED, REFERENCE, options=VALUES)
    assert value(found, "valid") == 9 / 12  # "CC.O" is valid in MOSES
    assert value(found, "connected") == 8 / 9
    assert value(found, "unique@1k") == value(found, "unique@10k") == 8 / 9  # ethanol twice; the stereo isomers differ
    assert value(found, "novel") == 5 / 8  # ethanol, L-alanine and indole are known
    assert value(found, "valid_relaxed") == 10 / 12
    assert value(found, "unique_relaxed") == 9 / 10
    assert value(found, "novel_relaxed") == 6 / 9
    assert value(found, "molecule_stable") == 9 / 12
    assert found.notes == ("fcd: left out",)
    assert found.settings == {"reference_molecules": 8, "valid_molecules": 9}


def test_moses_compares_with_the_training_strings_as_they_are() -> None:
    assert value(moses(["OCC"], REFERENCE, train=["OCC"], options=VALUES), "novel") == 1.0
    assert value(moses(["OCC"], REFERENCE, train=["CCO"], options=VALUES), "novel") == 0.0


def test_a_molecule_that_the_reference_repeats_counts_each_time_in_moses_alone() -> None:
    repeated = ["CCO", "OCC", "CCN"]
    assert moses(["CCO", "CCC"], repeated, options=VALUES).settings["reference_molecules"] == 3
    assert guacamol(["CCO", "CCC"], repeated, VALUES).settings["reference_molecules"] == 2


def test_moses_uniqueness_is_of_the_first_valid_ones() -> None:
    smiles = ["C", "N"] * 500 + ["O", "F", "CC"]
    found = _counts([None, *smiles], MoleculeTable(smiles), {"C"})
    assert whole(found["unique@1k"]) == 2 / 1000
    assert whole(found["unique@10k"]) == 5 / 1003
    assert whole(found["valid"]) == 1003 / 1004


def test_moses_similarities() -> None:
    found = moses(GENERATED, REFERENCE, options=VALUES)
    assert value(found, "snn") == pytest.approx(similarities(VALID, REFERENCE, 1024).max(1).mean())
    own = similarities(VALID, VALID, 1024)
    assert value(found, "int_div_1") == pytest.approx(1 - own.mean(), abs=1e-6)
    assert value(found, "int_div_2") == pytest.approx(1 - np.sqrt((own**2).mean(1)).mean(), abs=1e-6)


def test_moses_fragments_and_scaffolds() -> None:
    found = moses(GENERATED, REFERENCE, options=VALUES)

    def fragments(smiles: Sequence[str]) -> Counter[str]:
        return Counter(part for m in mols(smiles) for part in Chem.MolToSmiles(BRICS.BreakBRICSBonds(m)).split("."))

    x, y = fragments(VALID), fragments(REFERENCE)
    norms = [math.sqrt(sum(c * c for c in table.values())) for table in (x, y)]
    assert value(found, "frag") == pytest.approx(sum(x[k] * y[k] for k in x) / math.prod(norms))
    # generated: biphenyl and indole; reference: indole, biphenyl, quinoline
    assert value(found, "scaf") == pytest.approx(2 / math.sqrt(2 * 3))
    parts = [Chem.MolToSmiles(MurckoScaffold.GetScaffoldForMol(m)) for m in mols(REFERENCE)]
    assert {"c1ccc2[nH]ccc2c1", "c1ccc(-c2ccccc2)cc1", "c1ccc2ncccc2c1"} < set(parts)


def test_nothing_has_no_cosine_and_no_stable_atoms() -> None:
    for items, reference in (([["a"]], [[]]), ([[]], [["a"]]), ([[]], [[]])):
        assert math.isnan(whole(cosine_statistic(items, reference)))
    assert math.isnan(whole(repair_statistics([None, "C(("], set())["atom_stable"]))


def test_moses_properties() -> None:
    found = moses(GENERATED, REFERENCE, options=VALUES)
    functions = {"logp": Crippen.MolLogP, "qed": QED.qed, "weight": Descriptors.MolWt}  # type: ignore[attr-defined]
    for name, function in functions.items():
        x, y = sorted(map(function, mols(VALID))), sorted(map(function, mols(REFERENCE)))
        both = np.sort([*x, *y])
        f, g = (np.searchsorted(side, both[:-1], side="right") / len(side) for side in (x, y))
        assert value(found, f"w1_{name}") == pytest.approx((np.abs(f - g) * np.diff(both)).sum())
    assert value(found, "filters_rdkit") == 1 - 1 / 9 * sum(bool(Chem.GetFormalCharge(m)) for m in mols(VALID))


@pytest.mark.parametrize("of", [distances, lambda own, other: module._distances(own, own, other)])
def test_statistics_of_rows_are_those_of_the_molecules_there(of: Callable[..., dict[str, Statistic]]) -> None:
    own, other, rows = MoleculeTable(VALID), MoleculeTable(REFERENCE), np.array([1, 3, 4, 7])
    part = of(own.take(rows), other)
    for name, statistic in of(own, other).items():
        assert statistic.of(rows) == pytest.approx(whole(part[name])), name


def test_the_order_of_samples_makes_no_difference() -> None:
    shuffled = random.Random(0).sample(GENERATED, len(GENERATED))
    for suite in (moses, guacamol):
        first, second = (suite(samples, REFERENCE, options=VALUES) for samples in (GENERATED, shuffled))
        for name, estimate in first.metrics.items():
            assert value(second, name) == pytest.approx(estimate.value, abs=1e-6, nan_ok=True), name


# -- GuacaMol


def test_guacamol_counts_by_hand() -> None:
    found = guacamol(GENERATED, REFERENCE, VALUES)
    assert value(found, "valid") == 9 / 12
    assert value(found, "unique") == 7 / 9  # ethanol and alanine twice, without stereo
    assert value(found, "novel") == 4 / 7
    assert found.settings == {"reference_molecules": 8, "distinct_molecules": 7}


def test_guacamol_divides_by_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discrete_grpo.metrics.guacamol.REQUESTED", 3)
    found = guacamol(["CCO", "CCO", None, "CCN", "CCC", "CCF", "CCCl"], ["CCF", "CCN", "CCCC"], VALUES)
    assert value(found, "unique") == 2 / 3  # of CCO CCO CCN
    assert value(found, "novel") == 2 / 3  # of CCO CCN CCC
    assert value(guacamol(REFERENCE, REFERENCE, VALUES), "novel") == 0.0  # all of the reference is known


def test_guacamol_kl_against_a_transcription() -> None:
    found = guacamol(GENERATED, REFERENCE, VALUES)
    own = list(dict.fromkeys(Chem.MolToSmiles(m, isomericSmiles=False) for m in mols(VALID)))
    other = list(dict.fromkeys(Chem.MolToSmiles(m, isomericSmiles=False) for m in mols(REFERENCE)))
    functions = dict(Descriptors.descList)

    def continuous(p: np.ndarray, q: np.ndarray) -> float:
        grid = np.linspace(min([*p, *q]), max([*p, *q]), num=1000)
        return float(entropy(gaussian_kde(p)(grid) + 1e-10, gaussian_kde(q)(grid) + 1e-10))

    def discrete(p: np.ndarray, q: np.ndarray) -> float:
        heights, edges = np.histogram(p, bins=10, density=True)
        return float(entropy(heights + 1e-10, np.histogram(q, bins=edges, density=True)[0] + 1e-10))

    names = ["BertzCT", "MolLogP", "MolWt", "TPSA", "NumHAcceptors", "NumHDonors", "NumRotatableBonds"]
    names += ["NumAliphaticRings", "NumAromaticRings"]
    expected = []
    for k, name in enumerate(names):
        p, q = (np.array([functions[name](m) for m in mols(side)], dtype=float) for side in (other, own))
        expected.append((continuous if k < 4 else discrete)(p, q))
    nearest = [(similarities(side, side, 4096) - np.eye(len(side))).max(1) for side in (other, own)]
    expected.append(continuous(*nearest))
    kl = [estimate.value for name, estimate in found.metrics.items() if name.startswith("kl_") and name != "kl_score"]
    assert kl == pytest.approx(expected, rel=1e-5)
    assert value(found, "kl_score") == pytest.approx(np.exp(-np.array(expected)).mean(), rel=1e-5)


def test_a_ring_with_a_double_bond_is_aliphatic() -> None:
    assert MoleculeTable(["C1=CCCCC1"]).feature("descriptors")[0, 7:].tolist() == [1, 0]


def test_descriptors_that_are_no_numbers_count_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = {"TPSA": math.nan, "MolWt": math.inf}
    monkeypatch.setattr(molecule_properties, "descriptor", lambda name: lambda mol: bad.get(name, 1.0))
    assert MoleculeTable(["CCO"]).feature("descriptors").tolist() == [[1, 1, 0, 0, 1, 1, 1, 1, 1]]


def test_descriptors_that_all_lie_outside_the_reference_add_nothing_to_the_score(tmp_path: Path) -> None:
    rings = ["c1ccc2ccccc2c1", "c1ccc2cc3ccccc3cc2c1", "Cc1ccc2ccccc2c1", "Oc1ccc2ccccc2c1"]  # no molecule without an aromatic ring
    plain = ["CCO", "CCN", "CCCC", "CCOC"]
    found = guacamol([*rings, *plain], plain, SuiteOptions(bootstrap=5, folds=2))
    apart = guacamol(rings, plain, VALUES)
    assert value(apart, "kl_aromatic_rings") == math.inf
    divergences = [e.value for name, e in apart.metrics.items() if name.startswith("kl_") and name != "kl_score"]
    assert value(apart, "kl_score") == pytest.approx(np.exp(-np.array(divergences)).mean(), nan_ok=True)
    rows = found.metrics["kl_aromatic_rings"]
    assert rows.mean == math.inf  # one fold of rings alone
    assert math.isnan(rows.deviation)
    write_json(tmp_path / "suite.json", {name: asdict(estimate) for name, estimate in apart.metrics.items()})
    written = read_json(tmp_path / "suite.json")
    assert written is not None
    assert written["kl_aromatic_rings"]["value"] is None


@pytest.mark.parametrize("suite", [moses, guacamol])
def test_a_text_in_place_of_a_list_is_refused(suite: Callable[..., SuiteResult]) -> None:
    with pytest.raises(ValueError, match=r"^samples: 'CCO', expected a list of samples, such as \['CCO'\]$"):
        suite("CCO", REFERENCE)
    with pytest.raises(ValueError, match=r"^reference: 'CCO', expected a list of samples"):
        suite(["CCO"], "CCO")


# -- both


@pytest.mark.parametrize("suite", [moses, guacamol])
@pytest.mark.parametrize("samples", [[], [None], ["C((", "C(C)(C)(C)(C)C"], ["CCO"], ["CCO", None]])
def test_few_or_no_valid_samples(suite: Callable[..., SuiteResult], samples: list[str | None]) -> None:
    found: Mapping[str, Estimate] = suite(samples, REFERENCE, options=SuiteOptions(bootstrap=3)).metrics
    assert all(math.isnan(e.low) for e in found.values())
    good = samples.count("CCO")
    if samples:
        assert found["valid"].value == good / len(samples)
    name = "snn" if suite is moses else "novel"
    assert math.isnan(found[name].value) == (not good)


@pytest.mark.parametrize("suite", [moses, guacamol])
@pytest.mark.parametrize("reference", [[], ["CCO"], ["C((", "CCO"]])
def test_a_reference_of_one_molecule_is_refused(suite: Callable[..., SuiteResult], reference: list[str]) -> None:
    with pytest.raises(ValueError, match=r"reference: [01] different molecules, expected at least 2"):
        suite(["CCO"], reference)


@pytest.mark.parametrize("suite", [moses, guacamol])
def test_intervals_folds_and_the_perfect_value(suite: Callable[..., SuiteResult]) -> None:
    samples = ["CCO", "CCN", "CCC", None, "c1ccccc1O", "c1ccccc1N", "Cc1ccccc1", "CCCl"]
    options = SuiteOptions(bootstrap=20, folds=2)
    found = suite(samples, REFERENCE, options=options).metrics
    assert repr(found) == repr(suite(samples, REFERENCE, options=options).metrics)  # NaN is not equal to itself
    valid = found["valid"]
    assert (valid.value, valid.mean, valid.deviation, valid.perfect) == (7 / 8, 7 / 8, 1 / 8, 1.0)
    assert valid.low < 7 / 8 <= valid.high <= 1.0
    halves = [suite(part, REFERENCE, options=VALUES).metrics for part in (samples[:4], samples[4:])]
    for name, estimate in found.items():
        values = [half[name].value for half in halves]
        assert estimate.mean == pytest.approx(np.mean(values), abs=1e-6, nan_ok=True), name
        assert estimate.deviation == pytest.approx(np.std(values), abs=1e-6, nan_ok=True), name
        assert not estimate.low > estimate.value + 1e-9
        assert not estimate.high < estimate.value - 1e-9
    with pytest.raises(ValueError, match="folds: 3 of 8 samples, expected a divisor"):
        suite(samples, REFERENCE, options=SuiteOptions(folds=3))


def test_the_perfect_value_is_that_of_disjoint_parts_of_the_reference() -> None:
    found = moses(["CCO", "CCN", None], REFERENCE, options=VALUES).metrics
    assert found["novel"].perfect == 1.0  # no molecule of the reference occurs twice
    assert 0 < found["snn"].perfect < 1
    many = moses(REFERENCE * 2, REFERENCE * 2, train=REFERENCE, options=VALUES).metrics
    assert many["snn"].value == pytest.approx(1.0)
    assert many["novel"].perfect == 0.0


def test_unknown_suites_and_options() -> None:
    with pytest.raises(ValueError, match=r"suite: 'guacamoll' is unknown; did you mean 'guacamol'\?"):
        check_suite("guacamoll", "molecules")
    with pytest.raises(ValueError, match="'moses' measures molecules, expected graphs with graphs"):
        check_suite("moses", "graphs")
    with pytest.raises(ValueError, match="'moses' measures molecules, expected none with text"):
        check_suite("moses", "text")
    for options, said in (
        ({"bootstrap": -1}, "bootstrap: -1"),
        ({"folds": -1}, "folds: -1"),
        ({"sbm_method": "x"}, "sbm_method: 'x'"),
        ({"seed": -1}, "seed: -1, expected at least 0"),
        ({"seed": 1.5}, "seed: 1.5, expected a whole number, at least 0"),
    ):
        with pytest.raises(ValueError, match=said):
            SuiteOptions(**options)


def test_guacamol_takes_the_distance_of_all_that_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def activations(smiles: Sequence[str]) -> np.ndarray:
        counted.append(len(smiles))
        return np.array([[len(s), s.count("C"), s.count("N")] for s in smiles], dtype=np.float64)

    monkeypatch.setattr(chemnet, "missing", lambda: "")
    monkeypatch.setattr(chemnet, "activations", activations)
    drawn = ["CCO", "CCC", "CCN(C)C", "CCCCC", "c1ccccc1N"]
    reference = ["CC", "CCCO", "CCNC", "CCCCCC"]
    few, many = (value(guacamol(samples, reference, VALUES), "fcd") for samples in (drawn, drawn + ["CCC"] * 50))
    assert max(counted) <= len(drawn)  # repeats are computed once
    rows, others = (activations([Chem.CanonSmiles(s) for s in part]) for part in (drawn + ["CCC"] * 50, reference))
    assert many == pytest.approx(frechet_distance(rows, others))
    assert many != pytest.approx(few)
    flat = guacamol(drawn, reference, VALUES)
    assert value(flat, "fcd_score") == pytest.approx(math.exp(-0.2 * value(flat, "fcd")))
    table = MoleculeTable([Chem.CanonSmiles(s) for s in drawn])
    assert fcd_statistic(table, MoleculeTable(reference)).of(np.array([0, 2, 3])) == pytest.approx(
        frechet_distance(rows[[0, 2, 3]], others)
    )


def test_guacamol_takes_stereo_off_repaired_molecules_too() -> None:
    found = guacamol(["C[C@H](O)F", "C[C@@H](O)F", "CCO"], ["CC(O)F", "CCO", "CCN", "c1ccccc1O"], VALUES)
    assert value(found, "novel") == value(found, "novel_relaxed") == 0.0
    assert value(found, "unique") == value(found, "unique_relaxed") == pytest.approx(2 / 3)
    kept = moses(["C[C@H](O)F", "C[C@@H](O)F"], ["CC(O)F", "CCO", "CCN", "c1ccccc1O"], options=VALUES)
    assert value(kept, "unique_relaxed") == 1.0


def test_the_perfect_values_of_guacamol_are_of_as_many_molecules_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []

    def seen(distinct: MoleculeTable, repeated: MoleculeTable, reference: MoleculeTable) -> dict[str, Statistic]:
        sizes.append((len(distinct), len(reference)))
        return {}

    monkeypatch.setattr(module, "_distances", seen)
    monkeypatch.setattr(module, "REQUESTED", 6)
    known = ["C" * k for k in range(1, 20)]
    guacamol(["N" * k + "C" for k in range(1, 6)], known, VALUES)
    assert sizes == [(5, 6), (5, 6)]
    sizes.clear()
    guacamol(["N" * k + "C" for k in range(1, 6)], known[:8], VALUES)
    assert sizes == [(5, 6), (3, 3)]  # too few for a fresh part
    sizes.clear()
    guacamol(["N" * k + "C" for k in range(1, 6)], known[:11], VALUES)
    assert sizes == [(5, 6), (5, 6)]  # just enough
    sizes.clear()
    guacamol(["N" * k + "C" for k in range(1, 9)], known, VALUES)
    assert sizes == [(6, 6), (6, 6)]  # of more molecules than are asked for


@pytest.mark.parametrize(("suite", "feature"), [(moses, "passes"), (guacamol, "descriptors")])
def test_folds_compute_no_feature_again(suite: Callable[..., SuiteResult], feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    compute = molecule_table._FEATURES[feature]

    def counted(mols: Sequence[Chem.Mol]) -> object:
        made.append(len(mols))
        return compute(mols)

    monkeypatch.setitem(molecule_table._FEATURES, feature, counted)
    for folds in (0, 2):
        made.clear()
        suite(["CCO", "CCN", "CCC", "CCF", "CCCl", "CCBr"], REFERENCE, options=SuiteOptions(bootstrap=0, folds=folds))
        assert made.count(6) == 1
        assert 3 not in made


@pytest.mark.parametrize("suite", [moses, guacamol])
def test_an_entry_that_is_no_text_is_named(suite: Callable[..., SuiteResult]) -> None:
    with pytest.raises(ValueError, match=r"^samples: entry 1 is 5, expected a SMILES or None$"):
        suite(["CCO", 5], REFERENCE)
