"""Tasks on the enumerated molecules: the definitions by RDKit alone, the stored optima, and what lies outside the list."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from rdkit import Chem
from rdkit.Chem import QED, Crippen, rdFingerprintGenerator, rdMolDescriptors

from discrete_grpo.datasets.enumeration import enumerate_molecules, enumerated_smiles
from discrete_grpo.rewards import enumerated_tasks
from discrete_grpo.rewards.enumerated_tasks import OPTIMA, TASKS, TOP10_OPTIMUM, ListedMolecule, Trap, optima
from discrete_grpo.rewards.identity import reward_identity

BEST = {
    "enumerated_qed": "CCOc1c[nH]o1 CCOc1co[nH]1 CCCc1c[nH]o1 CCCc1co[nH]1 COCc1c[nH]o1 COCc1co[nH]1 FCCc1c[nH]o1 FCCc1co[nH]1 "
    "CCNc1c[nH]o1 CCNc1co[nH]1",
    "enumerated_logp": "CCC(C)(C)CC CCC(CC)CC CCCC(C)(C)C CCCC(C)CC CCCCC(C)C CCCCCCC C=C(C)CCCC C=C(CC)CCC C=CCCCCC CC=C(C)CCC",
    "enumerated_rediscovery": "N#CC1CCOC1 N#CC1COC1 N#CC1CCC1 N#CC1COCO1 C#CC1CCOC1 N#CC1CCCC1 N#CC1CCNC1 N#CC1CCON1 N#CC1CNOC1 "
    "N#CC1CCO1",
    "enumerated_polar": "N=NC1=CN=C=N1 C#CN=NCN=N CN=NC#CN=N O=NC1(N=O)CC1 C=C(N=O)N=O O=NC=CN=O C=C(C#N)N=N N#CC=CN=N C=CC(N=O)N=O"
    " C=NN=C(F)N=N",
    "enumerated_isomers": "C#CC(CO)NO C#CC(CO)ON C#CC(O)CNO C#CC(O)CON C#CC(OC)ON C#CCOCON C#CN(O)CCO C#CNOCCO C#CNOCOC C#COC(C)ON",
    "enumerated_deceptive": "CC1OC1C(N)=O C F N O C#C C#N C=C C=O CC",
}


def similarity(smiles: str, target: str) -> float:
    """Tanimoto similarity of atom pair counts, summed by hand."""
    generator = rdFingerprintGenerator.GetAtomPairGenerator(minDistance=1, maxDistance=10)
    a, b = (generator.GetSparseCountFingerprint(Chem.MolFromSmiles(s)).GetNonzeroElements() for s in (smiles, target))
    shared = sum(min(n, b.get(bit, 0)) for bit, n in a.items())
    return shared / (sum(a.values()) + sum(b.values()) - shared)


def bell(x: float, mean: float, sigma: float) -> float:
    return math.exp(-((x - mean) ** 2) / (2 * sigma**2))


def log_p(mol: Chem.Mol) -> float:
    return float(Crippen.MolLogP(mol))  # type: ignore[attr-defined]


def polar(smiles: str) -> float:
    mol = Chem.MolFromSmiles(smiles)
    return math.sqrt(bell(rdMolDescriptors.CalcTPSA(mol), 60, 5) * bell(log_p(mol), 1, 0.2))


def isomer(smiles: str) -> float:
    """Closeness to C4H7NO2: each element by 1, all 14 atoms by 2."""
    full = Chem.AddHs(Chem.MolFromSmiles(smiles))
    found = [sum(a.GetSymbol() == e for a in full.GetAtoms()) for e in "CHNO"]
    terms = [bell(n, k, 1) for n, k in zip(found, (4, 7, 1, 2), strict=True)] + [bell(full.GetNumAtoms(), 14, 2)]
    return math.prod(terms) ** (1 / 5)


def trap(smiles: str) -> float:
    x = similarity(smiles, "CC1OC1C(N)=O")
    return 0.8 * (1 - x / 0.4) if x < 0.4 else (x - 0.4) / 0.6


ORACLES: dict[str, Callable[[str], float]] = {
    "enumerated_qed": lambda s: float(QED.qed(Chem.MolFromSmiles(s))),
    "enumerated_logp": lambda s: bell(log_p(Chem.MolFromSmiles(s)), 2.9, 0.2),
    "enumerated_rediscovery": lambda s: similarity(s, "N#CC1CCOC1"),
    "enumerated_polar": polar,
    "enumerated_isomers": isomer,
    "enumerated_deceptive": trap,
}


@pytest.fixture(scope="module")
def part_of_the_list() -> list[str]:
    """All molecules of up to 4 atoms, a fiftieth of the others, and the best of every task."""
    listed = enumerated_smiles()
    assert len(listed) == len(set(listed)) == 38_075
    found = dict.fromkeys([*listed[:196], *listed[196::50], *" ".join(BEST.values()).split()])
    assert set(found) <= set(listed)
    return list(found)


@pytest.mark.parametrize("name", list(TASKS))
def test_the_definition_and_its_optimum(name: str, part_of_the_list: list[str]) -> None:
    scores = TASKS[name](part_of_the_list)
    assert scores == pytest.approx([ORACLES[name](s) for s in part_of_the_list], abs=1e-9)
    best = optima(TASKS[name], part_of_the_list)
    assert {s for s in BEST[name].split() if ORACLES[name](s) > best[9][0] + 1e-9} <= {s for _, s in best}
    assert best[0][0] == pytest.approx(OPTIMA[name][0], abs=1e-6)
    assert sum(score for score, _ in best) / 10 == pytest.approx(OPTIMA[name][1], abs=1e-6)
    assert TASKS[name].optimum == OPTIMA[name][0]
    assert TOP10_OPTIMUM[name] == OPTIMA[name][1]
    symbols = {a.GetSymbol() for a in Chem.MolFromSmiles(best[0][1]).GetAtoms()}
    assert TASKS[name].elements <= symbols


def test_the_gate_is_the_list() -> None:
    """Every molecule of up to 4 atoms scores above 0 if it is of the list and 0 if it is not."""
    everything, listed = enumerate_molecules(4), set(enumerated_smiles())
    task = TASKS["enumerated_isomers"]  # never 0 by itself
    scores = task(everything)
    assert [score != 0 for score in scores] == [smiles in listed for smiles in everything]
    assert sum(score != 0 for score in scores) == 196


def test_other_molecules_score_less_than_the_ten_best() -> None:
    task, never_zero = TASKS["enumerated_rediscovery"], TASKS["enumerated_isomers"]
    outside = ["Clc1ccc[nH]1", "C[NH3+]", "[13CH3]C", "[CH3]", "[CH2]C", "N#C[C@@H]1CCOC1", "C/C=C/C", "OO", None, "C.C", "[H][H]"]
    outside += ["[CH3:1]C", "N#C[CH:7]1CCOC1", "[CH3:1]CCCCCCC"]
    assert never_zero(outside) == [0.0] * len(outside)
    assert task(["N#CC1CCOC1C", "N#CC1CCOC1CC"]) == pytest.approx(
        [similarity("N#CC1CCOC1C", "N#CC1CCOC1") / 2, similarity("N#CC1CCOC1CC", "N#CC1CCOC1") / 4]
    )
    for name in TASKS:  # a larger molecule has at most half of the largest value of the definition
        largest = {"enumerated_qed": 0.948, "enumerated_rediscovery": 21 / 28}.get(name, 1.0)
        assert largest / 2 < ORACLES[name](BEST[name].split()[-1])


def test_the_trap_leads_away_from_its_optimum() -> None:
    def x(mol: float) -> float:
        return mol

    trap_at = Trap(x, 0.4)
    assert [trap_at(v) for v in (0.0, 0.2, 0.4, 0.7, 1.0)] == pytest.approx([0.8, 0.4, 0.0, 0.5, 1.0])
    near, nearer = "CC1CO1", "CC1OC1C"  # parts of the hidden molecule
    assert similarity(near, "CC1OC1C(N)=O") < similarity(nearer, "CC1OC1C(N)=O") < 0.4
    first, second, last = TASKS["enumerated_deceptive"]([near, nearer, "CC1OC1C(N)=O"])
    assert first is not None
    assert second is not None
    assert 0.8 > first > second
    assert last == 1.0


def test_kept_scores_belong_to_the_task() -> None:
    assert len({reward_identity(task) for task in TASKS.values()}) == len(TASKS)
    assert repr(ListedMolecule(TASKS["enumerated_qed"].score.part)) == repr(TASKS["enumerated_qed"].score)  # type: ignore[attr-defined]


def test_the_command_names_a_wrong_task(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        enumerated_tasks.command_line(["enumerated_qde"])
    assert "'enumerated_qde' is no task, expected enumerated_qed, " in capsys.readouterr().err
