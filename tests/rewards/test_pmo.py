"""Each PMO task against a second writing of its published definition, against numbers written down, and at the edges."""

from __future__ import annotations

import pytest
from rdkit import Chem
from rdkit.rdBase import BlockLogs

from discrete_grpo.rewards import pmo
from discrete_grpo.rewards.pmo import TASKS
from tests.pmo_definitions import PMO

NAMES = "ALBUTEROL MESTRANOL CELECOXIB TROGLITAZONE THIOTHIXENE CAMPHOR MENTHOL TADALAFIL SILDENAFIL OSIMERTINIB FEXOFENADINE"
MORE = "RANOLAZINE PERINDOPRIL AMLODIPINE SITAGLIPTIN ZALEPLON SITAGLIPTIN_OF_VALSARTAN HOP_REFERENCE"
REFERENCES = {name: getattr(pmo, name) for name in f"{NAMES} {MORE}".split()}
VALSARTAN = "CCCCC(=O)N(Cc1ccc(cc1)-c1ccccc1-c1nnn[nH]1)[C@@H](C(C)C)C(=O)O"
EDGES = {
    "hydrogen": "[H][H]",
    "proton": "[H+]",
    "helium": "[He]",
    "any atom": "*",
    "methane": "C",
    "ion": "[Na+]",
    "deuterium": "[2H]C([2H])([2H])O",
    "carbon-13": "[13CH3]C(=O)Nc1ccc(O)cc1",
    "zwitterion": "[NH3+][C@@H](Cc1ccccc1)C(=O)[O-]",
    "radical": "[CH2]CC",
    "cis": r"F/C=C\Cl",
    "trans": "F/C=C/Cl",
    "left": "C[C@H](N)C(=O)O",
    "right": "C[C@@H](N)C(=O)O",
    "nitro": "O=[N+]([O-])c1ccccc1",
    "boron, silicon, selenium": "OB(O)c1ccc([Si](C)(C)[Se]C)cc1",
    "macrocycle": "O=C1CCCCCCCCCCCCCCO1",
    "cubane": "C12C3C4C1C5C2C3C45",
    "huge": "CCO" * 66 + "CC",
    "isomer of C7H8N2O2": "COc1ccc(C(N)=O)nc1",
    "isomer of C9H10N2O2PF2Cl": "CP(=O)(NN)Oc1cc(F)c(Cl)c(F)c1C=C",
    "valsartan": VALSARTAN,
    "scaffold of the hop": "CCCOc1cc2ncnc(Nc3ccc(F)cc3)c2cc1C(=O)C(C)(C)C",
}
MOLECULES = REFERENCES | EDGES
PEPTIDE = "N" + "C(=O)NC(Cc1ccc(O)cc1)" * 16 + "C(=O)O"
INVALID = ["", "C.C", "CC(=O)O.[Na+].[Cl-]", "C(C)(C)(C)(C)C", "not a molecule", "c1cccc1", None]


@pytest.mark.parametrize("name", TASKS)
def test_the_second_writing_gives_the_same(name: str) -> None:
    found = TASKS[name](list(MOLECULES.values()))
    assert len(found) >= 20
    for (told, smiles), score in zip(MOLECULES.items(), found, strict=True):
        with BlockLogs():
            wanted = PMO[name](Chem.MolFromSmiles(smiles))
        assert score == pytest.approx(wanted, rel=1e-12, abs=1e-15), told
        assert score is not None
        assert 0.0 <= score <= 1.0
    assert len(set(found)) > 1


@pytest.mark.parametrize("name", [name for name in TASKS if "hop" not in name])
def test_a_molecule_of_196_atoms(name: str) -> None:
    mol = Chem.MolFromSmiles(PEPTIDE)
    assert mol.GetNumAtoms() == 196
    assert TASKS[name]([PEPTIDE]) == pytest.approx([PMO[name](mol)], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", TASKS)
def test_what_is_no_connected_molecule_scores_nothing(name: str) -> None:
    assert TASKS[name](INVALID) == [0.0] * len(INVALID)
    assert TASKS[name]([]) == []


PARACETAMOL = "CC(=O)Nc1ccc(O)cc1"


@pytest.mark.parametrize(
    ("name", "smiles", "score"),
    [
        ("albuterol_similarity", pmo.ALBUTEROL, 1.0),
        ("mestranol_similarity", pmo.MESTRANOL, 1.0),
        ("celecoxib_rediscovery", pmo.CELECOXIB, 1.0),
        ("thiothixene_rediscovery", pmo.THIOTHIXENE, 1.0),
        ("troglitazone_rediscovery", pmo.TROGLITAZONE, 1.0),
        ("isomers_c7h8n2o2", EDGES["isomer of C7H8N2O2"], 1.0),
        ("isomers_c9h10n2o2pf2cl", EDGES["isomer of C9H10N2O2PF2Cl"], 1.0),
        ("celecoxib_rediscovery", "C", 0.0),
        ("valsartan_smarts", PARACETAMOL, 0.0),
    ],
)
def test_numbers_known_beforehand(name: str, smiles: str, score: float) -> None:
    assert TASKS[name]([smiles]) == [score]
