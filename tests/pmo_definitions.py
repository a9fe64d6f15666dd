"""The objectives of PMO and GuacaMol written out once more, with plain RDKit calls, numpy and scipy and nothing of the package.

Fingerprints come from RDKit's older functions, hydrogens are counted as atoms, means are scipy's: other paths than the package's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from rdkit import Chem, DataStructs
from rdkit.Chem import QED, AllChem, Crippen, Descriptors, GraphDescriptors, rdMolDescriptors
from rdkit.Chem.Pharm2D import Generate, Gobbi_Pharm2D
from rdkit.rdBase import BlockLogs
from scipy.stats import gmean

PRINTS: dict[str, Callable[[Any], Any]] = {
    "ECFP4": lambda m: AllChem.GetMorganFingerprint(m, 2),  # type: ignore[attr-defined]
    "ECFP6": lambda m: AllChem.GetMorganFingerprint(m, 3),  # type: ignore[attr-defined]
    "FCFP4": lambda m: AllChem.GetMorganFingerprint(m, 2, useFeatures=True),  # type: ignore[attr-defined]
    "AP": lambda m: rdMolDescriptors.GetAtomPairFingerprint(m, maxLength=10),
    "PHCO": lambda m: Generate.Gen2DFingerprint(m, Gobbi_Pharm2D.factory),
}


def sim(mol: Any, smiles: str, kind: str) -> float:
    with BlockLogs():
        return float(DataStructs.TanimotoSimilarity(PRINTS[kind](mol), PRINTS[kind](Chem.MolFromSmiles(smiles))))


def clip(x: float, upper: float) -> float:
    return float(np.clip(x / upper, 0.0, 1.0))


def gauss(x: float, mu: float, sigma: float) -> float:
    return float(np.exp(-0.5 * np.power((x - mu) / sigma, 2.0)))


def gauss_min(x: float, mu: float, sigma: float) -> float:
    return 1.0 if x <= mu else gauss(x, mu, sigma)


def gauss_max(x: float, mu: float, sigma: float) -> float:
    return 1.0 if x >= mu else gauss(x, mu, sigma)


def gm(*values: float) -> float:
    return 0.0 if 0.0 in values else float(gmean(values))


def am(*values: float) -> float:
    return float(np.mean(values))


def isomer(mol: Any, formula: str) -> float:
    full = Chem.AddHs(mol)
    wanted = [(e, int(n or 1)) for e, n in re.findall(r"([A-Z][a-z]?)(\d*)", formula)]
    terms = [gauss(sum(a.GetSymbol() == e for a in full.GetAtoms()), n, 1.0) for e, n in wanted]
    return gm(*terms, gauss(full.GetNumAtoms(), sum(n for _, n in wanted), 2.0))


def has(mol: Any, smarts: str) -> float:
    return float(len(mol.GetSubstructMatches(Chem.MolFromSmarts(smarts))) > 0)


logp, tpsa, bertz = Crippen.MolLogP, Descriptors.TPSA, GraphDescriptors.BertzCT  # type: ignore[attr-defined]


def zaleplon(m: Any) -> float:
    return gm(sim(m, "O=C(C)N(CC)C1=CC=CC(C2=CC=NC3=C(C=NN23)C#N)=C1", "ECFP4"), isomer(m, "C19H17N3O2"))


def sitagliptin(m: Any) -> float:
    target = "Fc1cc(c(F)cc1F)CC(N)CC(=O)N3Cc2nnc(n2CC3)C(F)(F)F"
    own = Chem.MolFromSmiles(target)
    return gm(
        gauss(sim(m, target, "ECFP4"), 0.0, 0.1),
        gauss(logp(m), logp(own), 0.2),
        gauss(tpsa(m), tpsa(own), 5.0),
        isomer(m, "C16H15F6N5O"),
    )


def valsartan(m: Any) -> float:
    own = Chem.MolFromSmiles("NC(CC(=O)N1CCn2c(nnc2C(F)(F)F)C1)Cc1cc(F)c(F)cc1F")
    return gm(
        has(m, "CN(C=O)Cc1ccc(c2ccccc2)cc1"),
        gauss(logp(m), logp(own), 0.2),
        gauss(tpsa(m), tpsa(own), 5.0),
        gauss(bertz(m), bertz(own), 30.0),
    )


def osimertinib(m: Any) -> float:
    target = "COc1cc(N(C)CCN(C)C)c(NC(=O)C=C)cc1Nc2nccc(n2)c3cn(C)c4ccccc34"
    return gm(
        clip(sim(m, target, "FCFP4"), 0.8),
        gauss_min(sim(m, target, "ECFP6"), 0.85, 0.1),
        gauss_max(tpsa(m), 100, 10),
        gauss_min(logp(m), 1, 1),
    )


def fexofenadine(m: Any) -> float:
    target = "CC(C)(C(=O)O)c1ccc(cc1)C(O)CCCN2CCC(CC2)C(O)(c3ccccc3)c4ccccc4"
    return gm(clip(sim(m, target, "AP"), 0.8), gauss_max(tpsa(m), 90, 10), gauss_min(logp(m), 4, 1))


def ranolazine(m: Any) -> float:
    target = "COc1ccccc1OCC(O)CN2CCN(CC(=O)Nc3c(C)cccc3C)CC2"
    fluorine = sum(a.GetAtomicNum() == 9 for a in m.GetAtoms())
    return gm(clip(sim(m, target, "AP"), 0.7), gauss_max(logp(m), 7, 1), gauss_max(tpsa(m), 95, 20), gauss(fluorine, 1, 1))


def perindopril(m: Any) -> float:
    rings = rdMolDescriptors.CalcNumAromaticRings(m)
    return gm(sim(m, "O=C(OCC)C(NC(C(=O)N1C(C(=O)O)CC2CCCCC12)C)CCC", "ECFP4"), gauss(rings, 2, 0.5))


def amlodipine(m: Any) -> float:
    rings = rdMolDescriptors.CalcNumRings(m)
    return gm(sim(m, r"Clc1ccccc1C2C(=C(/N/C(=C2/C(=O)OCC)COCCN)C)\C(=O)OC", "ECFP4"), gauss(rings, 3, 0.5))


def median1(m: Any) -> float:
    return gm(sim(m, "CC1(C)C2CCC1(C)C(=O)C2", "ECFP4"), sim(m, "CC(C)C1CCC(C)CC1O", "ECFP4"))


def median2(m: Any) -> float:
    tadalafil = "O=C1N(CC(N2C1CC3=C(C2C4=CC5=C(OCO5)C=C4)NC6=C3C=CC=C6)=O)C"
    sildenafil = "CCCC1=NN(C2=C1N=C(NC2=O)C3=C(C=CC(=C3)S(=O)(=O)N4CCN(CC4)C)OCC)C"
    return gm(sim(m, tadalafil, "ECFP6"), sim(m, sildenafil, "ECFP6"))


HOP = "CCCOc1cc2ncnc(Nc3ccc4ncsc4c3)c2cc1S(=O)(=O)C(C)(C)C"
QUINAZOLINE = "[#7]-c1n[c;h1]nc2[c;h1]c(-[#8])[c;h0][c;h1]c12"


def deco_hop(m: Any) -> float:
    sulfone, thiazole = "CS([#6])(=O)=O", "[#7]-c1ccc2ncsc2c1"
    return am(clip(sim(m, HOP, "PHCO"), 0.85), 1 - has(m, sulfone), 1 - has(m, thiazole), has(m, QUINAZOLINE))


def scaffold_hop(m: Any) -> float:
    decoration = "[#6]-[#6]-[#6]-[#8]-[#6]~[#6]~[#6]~[#6]~[#6]-[#7]-c1ccc2ncsc2c1"
    return am(clip(sim(m, HOP, "PHCO"), 0.75), has(m, decoration), 1 - has(m, QUINAZOLINE))


ARIPIPRAZOLE = "Clc4cccc(N3CCN(CCCCOc2ccc1c(NC(=O)CC1)c2)CC3)c4Cl"
PMO: dict[str, Callable[[Any], float]] = {
    "albuterol_similarity": lambda m: clip(sim(m, "CC(C)(C)NCC(O)c1ccc(O)c(CO)c1", "FCFP4"), 0.75),
    "amlodipine_mpo": amlodipine,
    "celecoxib_rediscovery": lambda m: sim(m, "CC1=CC=C(C=C1)C1=CC(=NN1C1=CC=C(C=C1)S(N)(=O)=O)C(F)(F)F", "ECFP4"),
    "deco_hop": deco_hop,
    "fexofenadine_mpo": fexofenadine,
    "isomers_c7h8n2o2": lambda m: isomer(m, "C7H8N2O2"),
    "isomers_c9h10n2o2pf2cl": lambda m: isomer(m, "C9H10N2O2PF2Cl"),
    "median1": median1,
    "median2": median2,
    "mestranol_similarity": lambda m: clip(sim(m, "COc1ccc2[C@H]3CC[C@@]4(C)[C@@H](CC[C@@]4(O)C#C)[C@@H]3CCc2c1", "AP"), 0.75),
    "osimertinib_mpo": osimertinib,
    "perindopril_mpo": perindopril,
    "qed": QED.qed,
    "ranolazine_mpo": ranolazine,
    "scaffold_hop": scaffold_hop,
    "sitagliptin_mpo": sitagliptin,
    "thiothixene_rediscovery": lambda m: sim(m, "CN(C)S(=O)(=O)c1ccc2Sc3ccccc3C(=CCCN4CCN(C)CC4)c2c1", "ECFP4"),
    "troglitazone_rediscovery": lambda m: sim(m, "Cc1c(C)c2OC(C)(COc3ccc(CC4SC(=O)NC4=O)cc3)CCc2c(C)c1O", "ECFP4"),
    "valsartan_smarts": valsartan,
    "zaleplon_mpo": zaleplon,
}
GUACAMOL: dict[str, Callable[[Any], float]] = {
    **{name: score for name, score in PMO.items() if name not in ("isomers_c7h8n2o2", "qed")},
    "aripiprazole_similarity": lambda m: clip(sim(m, ARIPIPRAZOLE, "ECFP4"), 0.75),
    "isomers_c11h24": lambda m: isomer(m, "C11H24"),
}
