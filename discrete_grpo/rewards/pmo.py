"""The 20 tasks of the PMO benchmark that RDKit alone can score; the three others are in :mod:`discrete_grpo.rewards.classifier`.

A budget of 10,000 calls and the area under the curve of the ten best scores
(:func:`discrete_grpo.rewards.auc.auc_top_k`) make the benchmark. Every score lies in [0, 1].

In the definitions, ECFPd, FCFPd and AP(target) are Tanimoto similarities of count fingerprints (Morgan, Morgan of features, atom
pairs up to 10 bonds), PHCO(target) that of 2D pharmacophore bits; clip(x, u) = min(x / u, 1); G is a Gaussian, Gmin and Gmax its
halves that are 1 below and above the mean; gm and am are the geometric and arithmetic mean; Isomer is the gm over the elements of
a formula with standard deviation 1 and over all atoms with standard deviation 2.

Source: Gao et al. (2022), PMO, https://arxiv.org/abs/2206.12411, whose oracles are those of TDC; Brown et al. (2019), GuacaMol,
https://doi.org/10.1021/acs.jcim.8b00839
"""

from __future__ import annotations

from discrete_grpo.rewards.scoring_parts import (
    ArithmeticMean,
    AtomCount,
    Clipped,
    Contains,
    Gaussian,
    GeometricMean,
    Isomer,
    Lacks,
    MaxGaussian,
    MinGaussian,
    MoleculeProperty,
    Part,
    Tanimoto,
)
from discrete_grpo.rewards.task import Task

__all__ = ["PUBLISHED", "PUBLISHED_PRESCREENED", "TASKS"]

GUACAMOL = "Brown et al. (2019), GuacaMol, https://doi.org/10.1021/acs.jcim.8b00839"
LOGP, TPSA = MoleculeProperty("MolLogP"), MoleculeProperty("TPSA")

ALBUTEROL = "CC(C)(C)NCC(O)c1ccc(O)c(CO)c1"
MESTRANOL = "COc1ccc2[C@H]3CC[C@@]4(C)[C@@H](CC[C@@]4(O)C#C)[C@@H]3CCc2c1"
CELECOXIB = "CC1=CC=C(C=C1)C1=CC(=NN1C1=CC=C(C=C1)S(N)(=O)=O)C(F)(F)F"
TROGLITAZONE = "Cc1c(C)c2OC(C)(COc3ccc(CC4SC(=O)NC4=O)cc3)CCc2c(C)c1O"
THIOTHIXENE = "CN(C)S(=O)(=O)c1ccc2Sc3ccccc3C(=CCCN4CCN(C)CC4)c2c1"
CAMPHOR, MENTHOL = "CC1(C)C2CCC1(C)C(=O)C2", "CC(C)C1CCC(C)CC1O"
TADALAFIL = "O=C1N(CC(N2C1CC3=C(C2C4=CC5=C(OCO5)C=C4)NC6=C3C=CC=C6)=O)C"
SILDENAFIL = "CCCC1=NN(C2=C1N=C(NC2=O)C3=C(C=CC(=C3)S(=O)(=O)N4CCN(CC4)C)OCC)C"
OSIMERTINIB = "COc1cc(N(C)CCN(C)C)c(NC(=O)C=C)cc1Nc2nccc(n2)c3cn(C)c4ccccc34"
FEXOFENADINE = "CC(C)(C(=O)O)c1ccc(cc1)C(O)CCCN2CCC(CC2)C(O)(c3ccccc3)c4ccccc4"
RANOLAZINE = "COc1ccccc1OCC(O)CN2CCN(CC(=O)Nc3c(C)cccc3C)CC2"
PERINDOPRIL = "O=C(OCC)C(NC(C(=O)N1C(C(=O)O)CC2CCCCC12)C)CCC"
AMLODIPINE = r"Clc1ccccc1C2C(=C(/N/C(=C2/C(=O)OCC)COCCN)C)\C(=O)OC"
SITAGLIPTIN = "Fc1cc(c(F)cc1F)CC(N)CC(=O)N3Cc2nnc(n2CC3)C(F)(F)F"
SITAGLIPTIN_OF_VALSARTAN = "NC(CC(=O)N1CCn2c(nnc2C(F)(F)F)C1)Cc1cc(F)c(F)cc1F"
ZALEPLON = "O=C(C)N(CC)C1=CC=CC(C2=CC=NC3=C(C=NN23)C#N)=C1"
VALSARTAN_PATTERN = "CN(C=O)Cc1ccc(c2ccccc2)cc1"
HOP_REFERENCE = "CCCOc1cc2ncnc(Nc3ccc4ncsc4c3)c2cc1S(=O)(=O)C(C)(C)C"
HOP_SCAFFOLD = "[#7]-c1n[c;h1]nc2[c;h1]c(-[#8])[c;h0][c;h1]c12"
HOP_SULFONE, HOP_THIAZOLE = "CS([#6])(=O)=O", "[#7]-c1ccc2ncsc2c1"
HOP_DECORATION = "[#6]-[#6]-[#6]-[#8]-[#6]~[#6]~[#6]~[#6]~[#6]-[#7]-c1ccc2ncsc2c1"

METHODS = ("InVirtuoGen", "Genetic GFN", "Mol GA", "REINVENT", "Graph GA")
METHODS_PRESCREENED = ("InVirtuoGen", "GenMol", "f-RAG")
_ROWS: dict[str, tuple[float, ...]] = {
    "albuterol_similarity": (0.950, 0.949, 0.896, 0.882, 0.838, 0.975, 0.937, 0.977),
    "amlodipine_mpo": (0.733, 0.761, 0.688, 0.635, 0.661, 0.836, 0.810, 0.749),
    "celecoxib_rediscovery": (0.798, 0.802, 0.567, 0.713, 0.630, 0.839, 0.826, 0.778),
    "deco_hop": (0.748, 0.733, 0.649, 0.666, 0.619, 0.968, 0.960, 0.936),
    "drd2": (0.985, 0.974, 0.936, 0.945, 0.964, 0.995, 0.995, 0.992),
    "fexofenadine_mpo": (0.845, 0.856, 0.825, 0.784, 0.760, 0.904, 0.894, 0.856),
    "gsk3b": (0.952, 0.881, 0.843, 0.865, 0.788, 0.988, 0.986, 0.969),
    "isomers_c7h8n2o2": (0.968, 0.969, 0.878, 0.852, 0.862, 0.988, 0.942, 0.955),
    "isomers_c9h10n2o2pf2cl": (0.874, 0.897, 0.865, 0.642, 0.719, 0.898, 0.833, 0.850),
    "jnk3": (0.825, 0.764, 0.702, 0.783, 0.553, 0.898, 0.906, 0.904),
    "median1": (0.342, 0.379, 0.257, 0.356, 0.294, 0.386, 0.398, 0.340),
    "median2": (0.288, 0.294, 0.301, 0.276, 0.273, 0.377, 0.359, 0.323),
    "mestranol_similarity": (0.797, 0.708, 0.591, 0.618, 0.579, 0.991, 0.982, 0.671),
    "osimertinib_mpo": (0.870, 0.860, 0.844, 0.837, 0.831, 0.881, 0.876, 0.866),
    "perindopril_mpo": (0.645, 0.595, 0.547, 0.537, 0.538, 0.753, 0.718, 0.681),
    "qed": (0.942, 0.942, 0.941, 0.941, 0.940, 0.943, 0.942, 0.939),
    "ranolazine_mpo": (0.848, 0.819, 0.804, 0.760, 0.728, 0.854, 0.821, 0.820),
    "scaffold_hop": (0.589, 0.615, 0.527, 0.560, 0.517, 0.711, 0.628, 0.576),
    "sitagliptin_mpo": (0.709, 0.634, 0.582, 0.021, 0.433, 0.743, 0.584, 0.601),
    "thiothixene_rediscovery": (0.625, 0.583, 0.519, 0.534, 0.479, 0.652, 0.692, 0.584),
    "troglitazone_rediscovery": (0.595, 0.511, 0.427, 0.441, 0.390, 0.853, 0.867, 0.448),
    "valsartan_smarts": (0.210, 0.135, 0.000, 0.178, 0.000, 0.935, 0.822, 0.627),
    "zaleplon_mpo": (0.536, 0.552, 0.519, 0.358, 0.346, 0.624, 0.584, 0.486),
}
PUBLISHED: dict[str, dict[str, float]] = {name: dict(zip(METHODS, row[:5], strict=True)) for name, row in _ROWS.items()}
"""Task -> method -> AUC top-10, mean of 3 to 5 seeds, of methods that count every call; of all 23 tasks.

Source: the results of InVirtuoGen, which quote those of the other papers.
"""
PUBLISHED_PRESCREENED: dict[str, dict[str, float]] = {
    name: dict(zip(METHODS_PRESCREENED, row[5:], strict=True)) for name, row in _ROWS.items()
}
"""The same of methods that score ZINC250k with the oracle first and do not count these calls."""


def _task(name: str, about: str, score: Part, *, optimum: float | None = None, elements: str = "", source: str = GUACAMOL) -> Task:
    return Task(
        name,
        "pmo",
        about,
        source,
        score,
        optimum=optimum,
        published=PUBLISHED[name],
        published_prescreened=PUBLISHED_PRESCREENED[name],
        elements=frozenset(elements.split()),
    )


_ALL = (
    _task("albuterol_similarity", "clip(FCFP4(albuterol), .75)", Clipped(Tanimoto("FCFP4", ALBUTEROL), 0.75), optimum=1.0),
    _task(
        "amlodipine_mpo",
        "gm[ECFP4(amlodipine), G(rings; 3, .5)]",
        GeometricMean((Tanimoto("ECFP4", AMLODIPINE), Gaussian(MoleculeProperty("RingCount"), 3.0, 0.5))),
    ),
    _task("celecoxib_rediscovery", "ECFP4(celecoxib)", Tanimoto("ECFP4", CELECOXIB), optimum=1.0, elements="C N O S F"),
    _task(
        "deco_hop",
        "am[clip(PHCO(reference), .85), no sulfone, no benzothiazole amine, has the quinazoline scaffold]",
        ArithmeticMean(
            (
                Clipped(Tanimoto("PHCO", HOP_REFERENCE), 0.85),
                Lacks(HOP_SULFONE),
                Lacks(HOP_THIAZOLE),
                Contains(HOP_SCAFFOLD),
            )
        ),
        optimum=1.0,
        elements="C N O",
    ),
    _task(
        "fexofenadine_mpo",
        "gm[clip(AP(fexofenadine), .8), Gmax(TPSA; 90, 10), Gmin(logP; 4, 1)]",
        GeometricMean((Clipped(Tanimoto("AP", FEXOFENADINE), 0.8), MaxGaussian(TPSA, 90.0, 10.0), MinGaussian(LOGP, 4.0, 1.0))),
    ),
    _task("isomers_c7h8n2o2", "Isomer(C7H8N2O2)", Isomer("C7H8N2O2"), optimum=1.0, elements="C N O"),
    _task(
        "isomers_c9h10n2o2pf2cl",
        "Isomer(C9H10N2O2PF2Cl)",
        Isomer("C9H10N2O2PF2Cl"),
        optimum=1.0,
        elements="C N O P F Cl",
    ),
    _task(
        "median1",
        "gm[ECFP4(camphor), ECFP4(menthol)]",
        GeometricMean((Tanimoto("ECFP4", CAMPHOR), Tanimoto("ECFP4", MENTHOL))),
    ),
    _task(
        "median2",
        "gm[ECFP6(tadalafil), ECFP6(sildenafil)]",
        GeometricMean((Tanimoto("ECFP6", TADALAFIL), Tanimoto("ECFP6", SILDENAFIL))),
    ),
    _task("mestranol_similarity", "clip(AP(mestranol), .75)", Clipped(Tanimoto("AP", MESTRANOL), 0.75), optimum=1.0),
    _task(
        "osimertinib_mpo",
        "gm[clip(FCFP4(osimertinib), .8), Gmin(ECFP6(osimertinib); .85, .1), Gmax(TPSA; 100, 10), Gmin(logP; 1, 1)]",
        GeometricMean(
            (
                Clipped(Tanimoto("FCFP4", OSIMERTINIB), 0.8),
                MinGaussian(Tanimoto("ECFP6", OSIMERTINIB), 0.85, 0.1),
                MaxGaussian(TPSA, 100.0, 10.0),
                MinGaussian(LOGP, 1.0, 1.0),
            )
        ),
    ),
    _task(
        "perindopril_mpo",
        "gm[ECFP4(perindopril), G(aromatic rings; 2, .5)]",
        GeometricMean((Tanimoto("ECFP4", PERINDOPRIL), Gaussian(MoleculeProperty("NumAromaticRings"), 2.0, 0.5))),
    ),
    _task(
        "qed",
        "quantitative estimate of drug-likeness",
        MoleculeProperty("qed"),
        source="Bickerton et al. (2012), https://doi.org/10.1038/nchem.1243",
    ),
    _task(
        "ranolazine_mpo",
        "gm[clip(AP(ranolazine), .7), Gmax(logP; 7, 1), Gmax(TPSA; 95, 20), G(fluorine atoms; 1, 1)]",
        GeometricMean(
            (
                Clipped(Tanimoto("AP", RANOLAZINE), 0.7),
                MaxGaussian(LOGP, 7.0, 1.0),
                MaxGaussian(TPSA, 95.0, 20.0),
                Gaussian(AtomCount("F"), 1.0, 1.0),
            )
        ),
        elements="F",
    ),
    _task(
        "scaffold_hop",
        "am[clip(PHCO(reference), .75), has the decoration, lacks the quinazoline scaffold]",
        ArithmeticMean((Clipped(Tanimoto("PHCO", HOP_REFERENCE), 0.75), Contains(HOP_DECORATION), Lacks(HOP_SCAFFOLD))),
        optimum=1.0,
        elements="C N O S",
    ),
    _task(
        "sitagliptin_mpo",
        "gm[G(ECFP4(sitagliptin); 0, .1), G(logP; its, .2), G(TPSA; its, 5), Isomer(C16H15F6N5O)]",
        GeometricMean(
            (
                Gaussian(Tanimoto("ECFP4", SITAGLIPTIN), 0.0, 0.1),
                Gaussian(LOGP, SITAGLIPTIN, 0.2),
                Gaussian(TPSA, SITAGLIPTIN, 5.0),
                Isomer("C16H15F6N5O"),
            )
        ),
        elements="C N O F",
    ),
    _task("thiothixene_rediscovery", "ECFP4(thiothixene)", Tanimoto("ECFP4", THIOTHIXENE), optimum=1.0, elements="C N O S"),
    _task(
        "troglitazone_rediscovery",
        "ECFP4(troglitazone)",
        Tanimoto("ECFP4", TROGLITAZONE),
        optimum=1.0,
        elements="C N O S",
    ),
    _task(
        "valsartan_smarts",
        "gm[has the pattern of valsartan, G(logP; sitagliptin's, .2), G(TPSA; its, 5), G(BertzCT; its, 30)]",
        GeometricMean(
            (
                Contains(VALSARTAN_PATTERN),
                Gaussian(LOGP, SITAGLIPTIN_OF_VALSARTAN, 0.2),
                Gaussian(TPSA, SITAGLIPTIN_OF_VALSARTAN, 5.0),
                Gaussian(MoleculeProperty("BertzCT"), SITAGLIPTIN_OF_VALSARTAN, 30.0),
            )
        ),
        elements="C N O",
    ),
    _task(
        "zaleplon_mpo",
        "gm[ECFP4(zaleplon), Isomer(C19H17N3O2)]",
        GeometricMean((Tanimoto("ECFP4", ZALEPLON), Isomer("C19H17N3O2"))),
        elements="C N O",
    ),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
"""Name -> task."""
