"""Scaffolds with attachment points and of several fragments, around which graph policies draw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo import GRPOConfig
from discrete_grpo.core.rollout import Context
from discrete_grpo.datasets.molecules import MoleculeStatistics
from discrete_grpo.domains.molecules import Vocabulary
from discrete_grpo.domains.smiles import parse
from discrete_grpo.policies.conditions import FixedSites
from discrete_grpo.recipes.conditions import prepare_columns
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.kinds.molecules import scaffold_sites
from discrete_grpo.recipes.loading import LoadedPolicy, load
from discrete_grpo.recipes.sample import sample
from discrete_grpo.recipes.train import train
from discrete_grpo.rewards.conditions import keeps_scaffold
from discrete_grpo.rewards.molecules import validity
from discrete_grpo.runs.recorder import read_samples

CNOF = Vocabulary(("C", "N", "O", "F"))
SHORT = SamplerOptions(num_steps=20)


@pytest.fixture(scope="module")
def small() -> LoadedPolicy:
    return load("qm9-small", SHORT)


@pytest.mark.parametrize(
    ("smiles", "expected"),
    [
        ("O*", FixedSites({0: 2}, {(0, 1): 1}, (0,))),
        ("[2*:1]=CO", FixedSites({1: 0, 2: 2}, {(0, 1): 2, (0, 2): 0, (1, 2): 1}, (1, 2))),
        ("*C*", FixedSites({1: 0}, {(0, 1): 1, (1, 2): 1}, (1,))),  # the pair of both points is free
        ("C*O", FixedSites({0: 0, 2: 2}, {(0, 1): 1, (0, 2): 0, (1, 2): 1}, (0, 2))),
        ("[H]N(*)C", FixedSites({0: 1, 2: 0}, {(0, 1): 1, (0, 2): 1, (1, 2): 0}, (0, 2))),
        ("CN.O", FixedSites({0: 0, 1: 1, 2: 2}, {(0, 1): 1})),
        ("O*.F*", FixedSites({0: 2, 2: 3}, {(0, 1): 1, (2, 3): 1}, (0, 2))),
        ("C.O.CF", FixedSites({0: 0, 1: 2, 2: 0, 3: 3}, {(2, 3): 1})),
    ],
)
def test_atoms_with_attachment_points_are_closed_and_pairs_of_fragments_are_free(smiles: str, expected: FixedSites) -> None:
    assert scaffold_sites(smiles, CNOF, 4) == expected


@pytest.mark.parametrize(
    ("smiles", "said"),
    [
        ("*", "scaffold: '*' has an attachment point without a neighbour, expected each * bonded to an atom"),
        ("**", "scaffold: '**' has an attachment point without a neighbour"),
        ("CO.*", "scaffold: 'CO.*' has an attachment point without a neighbour"),
        ("[H]*", "scaffold: '[H]*' has an attachment point without a neighbour"),
        ("C*.O", "scaffold: 'C*.O' has a fragment without an attachment point, expected one (*) in each fragment or in none"),
        ("CCCC*", "scaffold: 'CCCC*' has 5 atoms and attachment points, expected at most the policy's 4"),
        ("CC.CCC", "scaffold: 'CC.CCC' has 5 atoms, expected at most the policy's 4"),
        ("[*+]C", "scaffold: '[*+]C', atom '*+1' is not in the vocabulary ['C', 'N', 'O', 'F']"),
        (5, "scaffold: 5, expected a valid SMILES"),
    ],
)
def test_a_scaffold_without_room_or_sense_is_refused_in_a_line(smiles: Any, said: str) -> None:
    with pytest.raises(ValueError, match="scaffold") as error:
        scaffold_sites(smiles, CNOF, 4)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("smiles", ["C1CCC1*", "*C1CC1.*C1CC1", "C1CC1.C1CC1", "C1CC1*C1CC1"])
def test_samples_grow_at_attachment_points_only_and_contain_the_scaffold(small: LoadedPolicy, smiles: str) -> None:
    columns = prepare_columns(small, None, smiles)
    assert columns is not None
    fixed: FixedSites = columns[0]["fixed"]
    drawn = small.policy.eval().sample([Context(g, columns[0]) for g in range(200)], generator=torch.Generator().manual_seed(0))
    pairs = drawn.states["pairs"][:, -1]
    for j in range(drawn.max_size):
        for i in range(j):
            if (i, j) in fixed.edges or i in fixed.closed or j in fixed.closed:
                assert (pairs[:, j * (j - 1) // 2 + i] == fixed.edges.get((i, j), 0)).all()
    assert all((drawn.states["nodes"][:, -1, i] == c).all() for i, c in fixed.nodes.items())
    free = set(range(fixed.min_nodes)) - set(fixed.nodes)
    assert all(len(drawn.states["nodes"][:, -1, i].unique()) > 1 for i in free)
    sanitised = [s for s in drawn.samples if s is not None]
    valid = [s for s in sanitised if parse(s) is not None]
    assert len(valid) > len(sanitised) / 2 > 60
    assert keeps_scaffold(drawn.samples, scaffold=[smiles] * 200) == [float(parse(s) is not None) for s in drawn.samples]


def test_a_number_of_nodes_has_room_for_attachment_points(small: LoadedPolicy) -> None:
    with pytest.raises(ValueError, match=r"^num_nodes: 4, expected 5 to 9$"):
        prepare_columns(small, [{"num_nodes": 4}], "C1CCC1*")
    with pytest.raises(ValueError, match=r"^scaffold: 'C1CC1\*\.C1CCCC1\*' has 10 atoms and attachment points, expected at most"):
        prepare_columns(small, None, "C1CC1*.C1CCCC1*")


def test_a_run_and_its_evaluations_draw_around_attachment_points(tmp_path: Path) -> None:
    grpo = GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8)
    columns = [{"scaffold": "C1CCC1*"}, {"scaffold": "C1CC1.CO", "num_nodes": 6}]
    options: dict[str, Any] = {"num_steps": 8, "columns": columns, "evaluation_samples": 12}
    found = train("qm9-small", [validity, keeps_scaffold], output_dir=tmp_path / "run", grpo=grpo, **options)
    for name in ("before", "after"):
        table = read_samples(tmp_path / f"run/evaluation_{name}.csv.gz")
        kept = keeps_scaffold([s or None for s in table["sample"]], scaffold=table["scaffold"])
        assert 0 < sum(x or 0.0 for x in kept) == pytest.approx(12 * found[name]["keeps_scaffold"])
        assert found[name]["keeps_scaffold"] == pytest.approx(found[name]["reward_keeps_scaffold"])


def test_a_smiles_policy_reads_no_attachment_points() -> None:
    policy = load("smiles-zinc")
    with pytest.raises(
        ValueError, match=r"^scaffold: 'c1ccccc1\[\*:1\]', expected no attachment point \(\*\): only graph policies"
    ):
        prepare_columns(policy, None, "c1ccccc1[*:1]")
    with pytest.raises(ValueError, match=r"^scaffold: 'C1CC1\.C1CC1', expected a valid, connected SMILES$"):
        prepare_columns(policy, None, "C1CC1.C1CC1")
    unprompted = replace(policy, policy=type(policy.policy)(**policy.policy.init_args() | {"prompt": None}))
    assert prepare_columns(unprompted, [{"scaffold": "C1CC1.C1CC1[*:1]"}]) == [{"scaffold": "*C1CC1.C1CC1"}]  # for rewards
    with pytest.raises(ValueError, match=r"^scaffold: 'C1CC', expected a valid SMILES$"):
        prepare_columns(unprompted, [{"scaffold": "C1CC"}])


def test_a_policy_that_draws_hydrogens_has_no_attachment_points(small: LoadedPolicy) -> None:
    statistics = MoleculeStatistics.from_json(small.metadata["statistics"])
    with_hydrogens = {"statistics": replace(statistics, vocabulary=Vocabulary(("H", "C", "N", "O"))).to_json()}
    with pytest.raises(ValueError, match=r"^scaffold: 'C\*', expected no attachment point: the policy draws hydrogens as atoms$"):
        small.family.condition(small.policy, with_hydrogens, {"scaffold": "C*"})
    assert small.family.condition(small.policy, with_hydrogens, {"scaffold": "C.O"})["fixed"].nodes == {0: 1, 1: 3}


def test_the_same_samples_come_from_python(small: LoadedPolicy) -> None:
    found = sample("qm9-small", 6, columns=[{"scaffold": "*C1CC1"}], options=SHORT)
    assert found == sample(small.policy, 6, columns=[{"scaffold": "*C1CC1"}])
