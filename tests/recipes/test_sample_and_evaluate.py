"""What the commands sample and evaluate refuse, in one line that names the argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from discrete_grpo import sample
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.recipes.sample import sample_file, sample_policy


@pytest.mark.parametrize(
    ("name", "condition", "said"),
    [
        ("smiles-zinc", {"NumHDonors": 2}, "columns: a condition named 'NumHDonors', expected "),
        ("qm9-small", {"num_nodes": 5, "target": 2}, "'target', expected one that the policy reads: num_nodes, fixed, restart"),
    ],
)
def test_a_condition_that_the_policy_does_not_read_is_refused(
    name: str, condition: dict[str, int], said: str, tmp_path: Path
) -> None:
    for policy in (name, load_policy(name)):
        with pytest.raises(ValueError, match=said):
            sample(policy, 2, columns=[condition])
    with pytest.raises(ValueError, match=said):
        sample_file(name, 2, str(tmp_path / "a.csv"), columns=[condition])
    assert not list(tmp_path.iterdir())


def test_conditions_of_a_policy_without_its_checkpoint_and_of_prompts() -> None:
    with pytest.raises(ValueError, match="'scaffold', expected one that the policy reads: num_nodes, fixed, restart"):
        sample(load_policy("qm9-small"), 1, columns=[{"scaffold": "CC"}])  # a policy alone reads no SMILES
    prompt = {"masked": "some quiet br____ sleeps at home", "original": "some quiet brother sleeps at home"}
    assert len(sample("fill-in", 2, columns=[prompt])) == 2


def test_two_scaffolds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scaffold: 'CCO', expected none: the columns have the scaffold 'CC'"):
        sample_file("qm9-small", 2, str(tmp_path / "a.csv"), scaffold="CCO", columns=[{"num_nodes": 5}, {"scaffold": "CC"}])


@pytest.mark.parametrize("ending", [".sdf", ".json", ".graphml", ".tsv", ".png.gz", ".csvx"])
def test_an_ending_that_samples_do_not_have_is_refused(tmp_path: Path, ending: str) -> None:
    endings = {"qm9-small": r"\.csv, \.smi, \.smiles or \.txt", "digits": r"\.csv, \.txt, also with \.gz, or \.png"}
    endings["fill-in"] = r"\.csv, \.txt, \.smi or \.smiles"
    for name, known in endings.items():
        with pytest.raises(ValueError, match=rf"out: .*, expected a file of \w+ ending in {known}"):
            sample_file(name, 2, str(tmp_path / f"a{ending}"))
    assert not list(tmp_path.iterdir())


def test_numbers_of_a_draw_are_checked_before_the_policy_is_read(tmp_path: Path) -> None:
    said = "seed: -3, expected at least 0"
    with pytest.raises(ValueError, match=said):
        sample("none", 2, seed=-3)
    with pytest.raises(ValueError, match=said):
        sample_file("none", 2, str(tmp_path / "a.smi"), seed=-3)
    with pytest.raises(ValueError, match="n: 0, expected at least 1"):
        sample_file("none", 0, str(tmp_path / "a.smi"))
    with pytest.raises(ValueError, match="batch_size: 0, expected at least 1"):
        sample("none", 2, batch_size=0)
    for wrong, name in [({"seed": 1.5}, "seed"), ({"batch_size": 0}, "batch_size")]:
        with pytest.raises(ValueError, match=f"{name}: "):
            sample_policy(load_policy("smiles-zinc"), 2, **wrong)  # type: ignore[arg-type]
