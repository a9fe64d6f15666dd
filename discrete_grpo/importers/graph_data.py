"""Classes, sizes and marginals of the training data of published graph models, which their checkpoints do not store.

The numbers are those of the data set classes of DiGress, DeFoG and GDPO; for planar graphs, trees and block models they are
counts of the published splits (edges of the 128 training graphs, sizes of these and the 32 for validation).
Sources: Vignac et al. (2022), arXiv 2209.14734; Qin et al. (2024), arXiv 2410.04263; Liu et al. (2024), arXiv 2402.16302;
Martinkus et al. (2022), arXiv 2204.01613.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from discrete_grpo.core.checks import check_whole
from discrete_grpo.domains.molecules import AROMATIC as AROMATIC_BOND
from discrete_grpo.domains.molecules import Vocabulary
from discrete_grpo.importers.tensors import read_json

__all__ = ["DataName", "PriorName", "TrainingData", "data_from", "fitting", "known_data", "one_of", "prior", "read_statistics"]

BOND_CLASSES = 1 + AROMATIC_BOND
"""Most edge classes of molecules: none, single, double, triple, aromatic."""

DataName = Literal["qm9", "qm9-h", "zinc", "zinc-gdpo", "moses", "guacamol", "planar", "tree", "sbm"]

PriorName = Literal["marginal", "uniform", "absorbing", "absorbfirst", "argmax"]
"""Names that DiGress and DeFoG give to the prior of their noise."""


@dataclass(frozen=True)
class TrainingData:
    """Statistics of the training data of a model; shares need not sum to 1, since some published ones do not.

    Attributes:
        name: name of the set.
        node_counts: share of graphs of 0, 1, 2, ... nodes.
        node_marginal, edge_marginal: share of each class; edge class 0 is none.
        atoms: labels of the node classes; none for plain graphs.
        weights: weights of the atoms in the molecular feature, whose sum is divided by ``max_weight``.
        steps: diffusion steps of the published configuration.
    """

    name: str
    node_counts: tuple[float, ...]
    node_marginal: tuple[float, ...]
    edge_marginal: tuple[float, ...]
    atoms: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    max_weight: float = 0.0
    steps: int = 500

    def __post_init__(self) -> None:
        for field in ("node_counts", "node_marginal", "edge_marginal"):
            values = getattr(self, field)
            if not values or min(values) < 0 or not 0 < sum(values) < float("inf"):
                raise ValueError(f"{field}: {values}, expected shares >= 0 with a positive sum")
        if self.node_counts[0] or len(self.node_counts) < 2:
            raise ValueError(f"node_counts: {self.node_counts}, expected shares of 0, 1, 2, ... nodes, the first 0")
        for field in ("atoms", "weights"):
            if getattr(self, field) and len(getattr(self, field)) != len(self.node_marginal):
                raise ValueError(f"{field}: {len(getattr(self, field))}, expected {len(self.node_marginal)}, one per node class")
        if not all(0 <= weight < float("inf") for weight in self.weights):
            raise ValueError(f"weights: {self.weights}, expected finite numbers >= 0")
        if self.atoms:
            Vocabulary(self.atoms)
            if len(self.edge_marginal) > BOND_CLASSES:
                told = f"edge_marginal: {len(self.edge_marginal)} classes, expected at most {BOND_CLASSES} with atoms"
                raise ValueError(f"{told}: none, single, double, triple and aromatic bonds")
        given: object = self.steps
        if isinstance(given, float) and given.is_integer():  # as JSON of other programs may have it
            object.__setattr__(self, "steps", int(given))
        check_whole("steps", self.steps, least=1)

    @property
    def classes(self) -> tuple[int, int]:
        """Number of node classes and of edge classes."""
        return len(self.node_marginal), len(self.edge_marginal)


def _after(start: int, *shares: float) -> tuple[float, ...]:
    """Return shares of 0, 1, 2, ... of which the first ``start`` are 0."""
    return (0.0,) * start + shares


QM9 = TrainingData(
    "qm9",
    _after(1, 2.2930e-05, 3.8217e-05, 6.8791e-05, 2.3695e-04, 9.7072e-04, 0.0046472, 0.023985, 0.13666, 0.83337),
    (0.7230, 0.1151, 0.1593, 0.0026),
    (0.7261, 0.2384, 0.0274, 0.0081),
    ("C", "N", "O", "F"),
    (12.0, 14.0, 16.0, 19.0),
    150.0,
)
# fmt: off
QM9_H = TrainingData(
    "qm9-h",
    _after(
        3, 1.5287e-05, 3.0574e-05, 3.8217e-05, 9.1721e-05, 1.5287e-04, 4.9682e-04, 1.3147e-03, 3.6918e-03, 8.0486e-03, 1.6732e-02,
        3.0780e-02, 5.1654e-02, 7.8085e-02, 1.0566e-01, 1.2970e-01, 1.3332e-01, 1.3870e-01, 9.4802e-02, 1.0063e-01, 3.3845e-02,
        4.8628e-02, 5.4421e-03, 1.4698e-02, 4.5096e-04, 2.7211e-03, 0.0, 2.6752e-04,
    ),
    (0.5122, 0.3526, 0.0562, 0.0777, 0.0013),
    (0.88162, 0.11062, 5.9875e-03, 1.7758e-03),
    ("H", "C", "N", "O", "F"),
    (1.0, 12.0, 14.0, 16.0, 19.0),
    390.0,
)
ZINC = TrainingData(
    "zinc",
    _after(
        6, 1.3359e-05, 2.2265e-05, 5.7889e-05, 2.9835e-04, 7.9263e-04, 2.9123e-03, 4.6890e-03, 7.1515e-03, 1.1275e-02, 1.7117e-02,
        2.5360e-02, 3.5014e-02, 4.6707e-02, 5.8178e-02, 7.0829e-02, 8.1472e-02, 7.4922e-02, 8.4384e-02, 9.3099e-02, 9.1451e-02,
        7.7175e-02, 6.3397e-02, 4.0331e-02, 3.1131e-02, 2.4394e-02, 1.9237e-02, 1.5029e-02, 1.0362e-02, 6.9155e-03, 4.1190e-03,
        1.5942e-03, 5.6108e-04, 8.9060e-06,
    ),
    (7.3678e-01, 1.2211e-01, 9.9746e-02, 1.3745e-02, 2.4428e-05, 1.7806e-02, 7.4231e-03, 2.2057e-03, 1.5522e-04),
    (9.0658e-01, 6.9411e-02, 2.3771e-02, 2.3480e-04),
    ("C", "N", "O", "F", "P", "S", "Cl", "Br", "I"),
    (12.0, 14.0, 16.0, 19.0, 30.0, 32.0, 35.5, 78.0, 127.0),
    500.0,
)
ZINC_GDPO = TrainingData(
    "zinc-gdpo",
    _after(
        6, 1.3981581596510197e-05, 2.3302635994183663e-05, 6.058685358487752e-05, 0.0003075947951232243, 0.0007922896238022445,
        0.002908168972074121, 0.004665187726035569, 0.0071212855598225275, 0.011357704783565117, 0.017206666418105216,
        0.025348607434472988, 0.034981917154468516, 0.04650740091719175, 0.0583125163118452, 0.07078408709593229,
        0.08152194176205212, 0.07490399313970396, 0.08415980015659372, 0.0930520860519742, 0.09145818574997204,
        0.07730882517430372, 0.06324335408821447, 0.04033686290593192, 0.03122553223220611, 0.024472428321091682,
        0.01929924313038291, 0.014974273889862421, 0.010365012490212893, 0.006967488162260915, 0.004129227098169345,
        0.0016218634651951828, 0.0005592632638604079, 9.321054397673465e-06,
    ),
    (7.3680e-01, 1.2209e-01, 9.9772e-02, 1.3708e-02, 2.3351e-05, 1.7811e-02, 7.4484e-03, 2.1972e-03, 1.5560e-04),
    (0.89740, 0.0472947, 0.062670, 0.0003524, 0.0486),
    ("C", "N", "O", "F", "P", "S", "Cl", "Br", "I"),
    (12.0, 14.0, 16.0, 19.0, 31.0, 32.1, 35.45, 79.9, 126.9),
    350.0,
)
MOSES = TrainingData(
    "moses",
    _after(
        8, 3.097634362347889692e-06, 1.858580617408733815e-05, 5.007842264603823423e-05, 5.678996240021660924e-05,
        1.244216400664299726e-04, 4.486406978685408831e-04, 2.253012731671333313e-03, 3.231865121051669121e-03,
        6.709992419928312302e-03, 2.289564721286296844e-02, 5.411050841212272644e-02, 1.099515631794929504e-01,
        1.223291903734207153e-01, 1.280680745840072632e-01, 1.445975750684738159e-01, 1.505961418151855469e-01,
        1.436946094036102295e-01, 9.265746921300888062e-02, 1.820066757500171661e-02, 2.065089574898593128e-06,
    ),
    (0.722338, 0.13661, 0.163655, 0.103549, 0.1421803, 0.005411, 0.00150, 0.0),
    (0.89740, 0.0472947, 0.062670, 0.0003524, 0.0486),
    ("C", "N", "S", "O", "F", "Cl", "Br", "H"),
    (12.0, 14.0, 32.0, 16.0, 19.0, 35.4, 79.9, 1.0),
    350.0,
)
GUACAMOL = TrainingData(
    "guacamol",
    _after(
        2, 3.5760e-06, 2.7893e-05, 6.9374e-05, 1.6020e-04, 2.8036e-04, 4.3484e-04, 7.3022e-04, 1.1722e-03, 1.7830e-03, 2.8129e-03,
        4.0981e-03, 5.5421e-03, 7.9645e-03, 1.0824e-02, 1.4459e-02, 1.8818e-02, 2.3961e-02, 2.9558e-02, 3.6324e-02, 4.1931e-02,
        4.8105e-02, 5.2316e-02, 5.6601e-02, 5.7483e-02, 5.6685e-02, 5.2317e-02, 5.2107e-02, 4.9651e-02, 4.8100e-02, 4.4363e-02,
        4.0704e-02, 3.5719e-02, 3.1685e-02, 2.6821e-02, 2.2542e-02, 1.8591e-02, 1.6114e-02, 1.3399e-02, 1.1543e-02, 9.6116e-03,
        8.4744e-03, 6.9532e-03, 6.2001e-03, 4.9921e-03, 4.4378e-03, 3.5803e-03, 3.3078e-03, 2.7085e-03, 2.6784e-03, 2.2050e-03,
        2.0533e-03, 1.5598e-03, 1.5177e-03, 9.8626e-04, 8.6396e-04, 5.6429e-04, 5.0422e-04, 2.9323e-04, 2.2243e-04, 9.8697e-05,
        9.9413e-05, 6.0077e-05, 6.9374e-05, 3.0754e-05, 3.5045e-05, 1.6450e-05, 2.1456e-05, 1.2874e-05, 1.2158e-05, 5.7216e-06,
        7.1520e-06, 2.8608e-06, 2.8608e-06, 7.1520e-07, 2.8608e-06, 1.4304e-06, 7.1520e-07, 0.0, 0.0, 0.0, 7.1520e-07, 0.0,
        1.4304e-06, 7.1520e-07, 7.1520e-07, 0.0, 1.4304e-06,
    ),
    (7.4090e-01, 1.0693e-01, 1.1220e-01, 1.4213e-02, 6.0579e-05, 1.7171e-03, 8.4113e-03, 2.2902e-04, 5.6947e-04, 1.4673e-02,
     4.1532e-05, 5.3416e-05),
    (9.2526e-01, 3.6241e-02, 4.8489e-03, 1.6513e-04, 3.3489e-02),
    ("C", "N", "O", "F", "B", "Br", "Cl", "I", "P", "S", "Se", "Si"),
    (12.0, 14.0, 16.0, 19.0, 10.81, 79.9, 35.45, 126.9, 30.97, 30.07, 78.97, 28.09),
    1000.0,
)
SBM_SIZES = (
    1, 0, 0, 0, 0, 1, 0, 0, 2, 3, 0, 4, 1, 2, 3, 2, 1, 6, 1, 2, 5, 1, 0, 2, 0, 3, 1, 2, 2, 2, 1, 1, 3, 1, 1, 1, 1, 1, 1, 1, 2, 2,
    0, 1, 3, 1, 3, 3, 2, 1, 2, 0, 0, 2, 1, 3, 1, 2, 2, 1, 1, 2, 2, 0, 0, 0, 0, 0, 2, 1, 0, 3, 2, 1, 0, 0, 1, 0, 1, 2, 1, 2, 0, 3,
    1, 2, 1, 0, 0, 0, 1, 1, 0, 1, 1, 3, 0, 5, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 2, 2, 1, 1, 1, 0, 1, 3, 1, 1, 2, 0, 2, 3,
    0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1,
)
"""Numbers of graphs with 44, 45, ... 187 nodes of 160 graphs."""
# fmt: on
PLANAR = TrainingData("planar", _after(64, 1.0), (1.0,), (1 - 22762 / 258048, 22762 / 258048), steps=1000)
TREE = TrainingData("tree", _after(64, 1.0), (1.0,), (1 - 2 / 64, 2 / 64), steps=1000)
SBM = TrainingData("sbm", _after(44, *map(float, SBM_SIZES)), (1.0,), (0.91865853099051, 0.08134146900949), steps=1000)


AROMATIC = tuple(replace(data, edge_marginal=(*data.edge_marginal, 0.0)) for data in (QM9, QM9_H))
"""QM9 with the aromatic class, whose published share is 0: DiGress always has it, DeFoG with ``dataset.aromatic``."""
PUBLISHED = (QM9, QM9_H, ZINC, ZINC_GDPO, MOSES, GUACAMOL, PLANAR, TREE, SBM, *AROMATIC)


LISTS = ("node_counts", "node_marginal", "edge_marginal", "atoms", "weights")
"""Fields of :class:`TrainingData` that are lists in a file."""


def known_data(name: DataName, edge_classes: int | None = None) -> TrainingData:
    """Return a published data set; for QM9, which has two sets of bond classes, the one with ``edge_classes`` if there is one.

    Raises:
        ValueError: for an unknown name.
    """
    found = [data for data in PUBLISHED if data.name == name]
    if not found:
        raise ValueError(f"dataset: {name!r}, expected one of {', '.join(get_args(DataName))}")
    return next((data for data in found if len(data.edge_marginal) == edge_classes), found[0])


def fitting(node_classes: int, edge_classes: int) -> tuple[str, ...]:
    """Return the names of the published data sets with these numbers of classes.

    >>> fitting(9, 5), fitting(7, 3)
    (('zinc-gdpo',), ())
    """
    return tuple(data.name for data in PUBLISHED if data.classes == (node_classes, edge_classes))


def read_statistics(path: str | Path) -> TrainingData:
    """Read a JSON file with the fields of :class:`TrainingData`, of which the second to fourth are required.

    Raises:
        CheckpointError: if the file cannot be read.
        ValueError: if a field is missing, unknown or no list of numbers.
    """
    return data_from(read_json(path, "statistics"), path)


def data_from(fields: Any, where: object) -> TrainingData:
    """Make a :class:`TrainingData` from plain fields, with lists for tuples."""
    if not isinstance(fields, Mapping):
        raise ValueError(f"statistics: {where} holds {type(fields).__name__}, expected a dictionary")
    names = list(TrainingData.__dataclass_fields__)
    wrong = [f"{name} missing" for name in names[1:4] if name not in fields]
    wrong += [f"{name} unknown" for name in fields if name not in names]
    if wrong:
        raise ValueError(f"statistics: {where}: {'; '.join(wrong[:5])}; expected {', '.join(names)}")
    for name in LISTS:
        if fields.get(name) is not None and (isinstance(fields[name], str) or not isinstance(fields[name], Sequence)):
            raise ValueError(f"statistics: {where}: {name} is of type {type(fields[name]).__name__}, expected a list")
    try:
        made: dict[str, Any] = {k: _tuple(k, v) if k in LISTS else v for k, v in fields.items() if v is not None}
        return TrainingData(**{"name": "given"} | made)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"statistics: {where}: {error}") from error


def _tuple(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(str(v) for v in values) if name == "atoms" else tuple(float(v) for v in values)


def prior(noise: PriorName, share: tuple[float, ...]) -> tuple[float, ...]:
    """Return the prior of a noise for classes of the given shares; there is a mask class only with several classes.

    >>> prior("absorbing", (0.9, 0.1)), prior("absorbing", (1.0,))
    ((0.0, 0.0, 1.0), (1.0,))
    """
    size, most = len(share), max(range(len(share)), key=share.__getitem__)
    table: dict[str, Callable[[], tuple[float, ...]]] = {
        "marginal": lambda: tuple(p / sum(share) for p in share),
        "uniform": lambda: (1.0 / size,) * size,
        "absorbing": lambda: (1.0,) if size == 1 else (0.0,) * size + (1.0,),
        "absorbfirst": lambda: (1.0,) + (0.0,) * (size - 1),
        "argmax": lambda: tuple(float(k == most) for k in range(size)),
    }
    return table[one_of("noise", noise, get_args(PriorName))]()


def one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``known``, else raise ValueError."""
    if value not in known:
        raise ValueError(f"{name}: {value!r}, expected one of {', '.join(known)}")
    return value
