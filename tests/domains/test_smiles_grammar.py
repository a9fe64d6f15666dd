"""Genes of SMILES strings."""

import random

import pytest

from discrete_grpo.domains.smiles import parse
from discrete_grpo.domains.smiles_grammar import GENE_LENGTH, GRAMMAR, decode_gene, encode_gene, mutate_gene

TEXTS = [
    "C",
    "CC(=O)Oc1ccccc1C(=O)O",
    "N[C@@H](Cc1c[nH]c2ccccc12)C(=O)[O-]",
    "F/C=C/C(Cl)=C\\Br",
    "C[N+](C)(C)CC#N",
    "[13CH3]C",
    "[2H]OC",
    "[238P]",
    "C1CC=1",
    "O=S(=O)(c1ccc(-n2nc(C(F)(F)F)cc2-c2ccc(C)cc2)cc1)N",
    "[NH3+]C[O-]",
    "[S+2]",
    "[P+3]c1ccsc1",
    "C(" * 30 + "C" + ")" * 30,
]


@pytest.mark.parametrize("text", TEXTS)
def test_genes_round_trip(text: str) -> None:
    for seed in range(5):
        gene = encode_gene(text, random.Random(seed), length=1000)
        assert gene is not None
        assert len(gene) == 1000
        assert all(0 <= codon < 256 for codon in gene)
        assert decode_gene(gene) == text


def test_a_gene_by_hand() -> None:
    # chain of atom, bond, chain; atom alone, aliphatic, C; double; chain of one atom; atom alone, aliphatic, O
    choices = [2, 0, 1, 1, 1, 0, 0, 1, 3]
    assert decode_gene(choices) == "C=O"
    counts = [3, 4, 3, 10, 5, 3, 4, 3, 10]
    gene = encode_gene("C=O", random.Random(0), length=9)
    assert gene is not None
    assert [codon % count for codon, count in zip(gene, counts, strict=True)] == choices
    assert max(gene) > 10, "the multiple of the count is random"
    assert decode_gene([codon + count for codon, count in zip(choices, counts, strict=True)]) == "C=O"
    assert decode_gene(choices[:-1]) is None, "the codons end first"
    assert decode_gene([*choices, 7, 7]) == "C=O", "codons at the end are silent"
    assert encode_gene("C=O", random.Random(0), length=8) is None


def test_codons_are_drawn_from_all_that_choose_the_same() -> None:
    genes = [encode_gene("C=O", random.Random(seed), length=20) for seed in range(1000)]
    assert {gene[5] for gene in genes if gene is not None} == set(range(0, 256, 3))  # alternative 0 of 3
    assert {gene[8] for gene in genes if gene is not None} == set(range(3, 256, 10))  # alternative 3 of 10
    assert len({gene[19] for gene in genes if gene is not None}) > 240  # a silent one


@pytest.mark.parametrize(
    "text", ["", "C.C", "[Na+]", "C(", "C)", "C%10CC%10", "[Se]", "C1CC1 ", "CC=", "[C", "C" * 301, "C" * 5000]
)
def test_strings_without_a_gene(text: str) -> None:
    assert encode_gene(text, random.Random(0)) is None


def test_a_long_string_does_not_recurse_deeply() -> None:
    text = "C" * 1000 + "(" + "C(" * 200 + "C" + ")" * 200 + ")C"
    assert decode_gene(encode_gene(text, random.Random(0), length=10_000) or ()) == text


def test_genes_have_a_length() -> None:
    gene = encode_gene("CCO", random.Random(0))
    assert gene is not None
    assert len(gene) == GENE_LENGTH == 300
    with pytest.raises(ValueError, match="length: 0"):
        encode_gene("CCO", random.Random(0), length=0)


def test_a_mutation_changes_one_codon() -> None:
    rng = random.Random(0)
    gene = encode_gene(TEXTS[1], rng)
    assert gene is not None
    places = set()
    codons: set[int] = set()
    for _ in range(2000):
        other = mutate_gene(gene, rng)
        changed = [k for k, (old, new) in enumerate(zip(gene, other, strict=True)) if old != new]
        assert len(changed) <= 1
        places.update(changed)
        codons.update(other[k] for k in changed)
    assert len(places) > 0.99 * GENE_LENGTH
    assert {0, GENE_LENGTH - 1} <= places
    assert len(codons) > 250


def test_mutations_find_new_molecules() -> None:
    rng = random.Random(1)
    genes = [gene for text in TEXTS[:5] if (gene := encode_gene(text, rng)) is not None]
    texts = {decode_gene(mutate_gene(rng.choice(genes), rng)) for _ in range(1000)}
    assert sum(parse(text) is not None for text in texts - set(TEXTS)) > 20


def test_equal_seeds_give_equal_genes() -> None:
    assert encode_gene("CCO", random.Random(3)) == encode_gene("CCO", random.Random(3)) != encode_gene("CCO", random.Random(4))


def test_every_rule_is_reached_from_the_start() -> None:
    reached, new = set[str](), {"smiles"}
    while new:
        reached |= new
        new = {part for name in new for rule in GRAMMAR[name] for part in rule if part in GRAMMAR} - reached
    assert reached == GRAMMAR.keys()
