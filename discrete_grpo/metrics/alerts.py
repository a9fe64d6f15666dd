"""The structural filters of MOSES: medicinal chemistry filters (MCF), PAINS, rings, charges and elements."""

from __future__ import annotations

from functools import cache

from rdkit import Chem
from rdkit.Chem import FilterCatalog

__all__ = ["ELEMENTS", "MCF", "passes_filters"]

ELEMENTS = frozenset({"C", "N", "S", "O", "F", "Cl", "Br", "H"})
"""Elements that a molecule may have to pass."""

MCF: tuple[str, ...] = (
    "[#6]=&!@[#6]-[#6]#[#7]",
    "[#6]=&!@[#6]-[#16](=[#8])=[#8]",
    "[#6]=&!@[#6&!H0]-&!@[#6](=[#8])-&!@[#7]",
    "[H]C([H])([#6])[F,Cl,Br,I]",
    "[#6]1-[#8]-[#6]-1",
    "[#6]-[#7]=[#6]=[#8]",
    "[#6&!H0]=[#8]",
    "[#6](=&!@[#7&!H0])-&!@[#6,#7,#8,#16]",
    "[#6]1-[#7]-[#6]-1",
    "[#6]~&!@[#7]~&!@[#7]~&!@[#6]",
    "[#7]=&!@[#7]",
    "[H][#6]-1=[#6]([H])-[#6]=[#6](-*)-[#8]-1",
    "[H][#6]-1=[#6]([H])-[#6]=[#6](-*)-[#16]-1",
    "[#17,#35,#53]-c(:*):[!#1!#6]:*",
    "[H][#7]([H])-[#6]-1=[#6]-[#6]=[#6]-[#6]=[#6]-1",
    "[#16]~[#16]",
    "[#7]~&!@[#7]~&!@[#7]",
    "[#7]-&!@[#6&!H0&!H1]-&!@[#7]",
    "[#6&!H0](-&!@[#8])-&!@[#8]",
    "[#35].[#35].[#35]",
    "[#17].[#17].[#17].[#17]",
    "[#9].[#9].[#9].[#9].[#9].[#9].[#9]",
)
"""SMARTS of the 22 medicinal chemistry filters, in the order of their numbers, matched on a molecule with hydrogens."""

LARGEST_RING = 7


@cache
def _patterns() -> tuple[Chem.Mol, ...]:
    return tuple(map(Chem.MolFromSmarts, MCF))


@cache
def _pains() -> FilterCatalog.FilterCatalog:
    parameters = FilterCatalog.FilterCatalogParams()
    parameters.AddCatalog(FilterCatalog.FilterCatalogParams.FilterCatalogs.PAINS)
    return FilterCatalog.FilterCatalog(parameters)


def passes_filters(mol: Chem.Mol) -> bool:
    """Whether a molecule is uncharged, of C N O S F Cl Br H, has no ring above 7 atoms, no MCF and none of the 480 PAINS.

    The PAINS are those of RDKit's catalog, which corrects 17 of the 480 patterns that MOSES has (1 of 1,500 ZINC molecules is
    judged otherwise), so the metric is called ``filters_rdkit`` and not Filters.

    Source: Polykovskiy et al. (2020), MOSES, arXiv 1811.12823; PAINS: Baell and Holloway (2010), doi 10.1021/jm901137j.

    >>> passes_filters(Chem.MolFromSmiles("Cc1ccccc1")), passes_filters(Chem.MolFromSmiles("CC=O"))
    (True, False)
    """
    atoms = mol.GetAtoms()
    if any(atom.GetFormalCharge() or atom.GetSymbol() not in ELEMENTS for atom in atoms):
        return False
    if any(len(ring) > LARGEST_RING for ring in mol.GetRingInfo().AtomRings()):
        return False
    full = Chem.AddHs(mol)
    return not any(full.HasSubstructMatch(pattern) for pattern in _patterns()) and not _pains().HasMatch(full)
