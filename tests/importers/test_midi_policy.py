"""A checkpoint of MiDi as a policy: its steps are the published ones, the kit passes, and the commands know it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from discrete_grpo import GRPOConfig, GRPOTrainer, check_policy, group_contexts, load_policy
from discrete_grpo.cli import main
from discrete_grpo.datasets.spatial import conformers
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, smiles_of
from discrete_grpo.importers import import_checkpoint, import_midi
from discrete_grpo.recipes.families import family_of
from discrete_grpo.rewards.spatial import atom_stability
from discrete_grpo.runs.checkpoint import load_metadata
from tests.importers.test_midi import DATA, checkpoint, weights

HERE = DATA | {"node_counts": [0, 0, 1, 2, 1, 1, 1]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("midi")
    path = folder / "data.json"
    path.write_text(json.dumps(HERE), encoding="utf-8")
    return checkpoint(folder / "midi.ckpt", weights()), path


def test_a_step_is_the_published_posterior(files: tuple[Path, Path]) -> None:
    """The mean and variance of MiDi's Eq. 2, with α_t = ᾱ(t) and σ_t² = 1 - ᾱ(t)², and Bayes' rule for each field."""
    model = import_midi(files[0], statistics=files[1], schedule="adaptive", num_steps=10, diffusion_steps=50)
    policy = model.policy
    rollout = policy.sample(group_contexts(1, 3), generator=torch.Generator().manual_seed(0))
    k = 6
    state = policy.layout.read(rollout.states, rollout.size, torch.full((3, 1), k))
    t, s = 1 - k / 10, 1 - (k + 1) / 10
    assert state.positions is not None
    with torch.no_grad():
        found = policy.network(state.nodes, state.edges, state.positions, torch.full((3,), t), state.mask)
        law = policy.transition(state, torch.full((3,), k))
    exact = model.position_schedule.schedule
    a_t, a_s = (float(exact.alpha_bar(torch.tensor([x], dtype=torch.float64))) for x in (t, s))
    v_t, v_s = 1 - a_t**2, 1 - a_s**2
    between = v_t - (a_t / a_s) ** 2 * v_s
    mean = a_t / a_s * v_s / v_t * state.positions + a_s * between / v_t * found.positions
    assert law.positions is not None
    torch.testing.assert_close(law.positions[0], mean.to(law.positions[0]), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        law.positions[1].double(), torch.full((3,), (between * v_s / v_t) ** 0.5).double(), atol=1e-6, rtol=1e-4
    )
    keep = model.noise("charge").schedule
    kept = [float(keep.alpha_bar(torch.tensor([x], dtype=torch.float64))) for x in (t, s)]
    prior = torch.tensor(model.priors["charge"], dtype=torch.float64)
    matrices = {}
    for name, share in (("s", kept[1]), ("ts", kept[0] / kept[1]), ("t", kept[0])):
        matrices[name] = share * torch.eye(3, dtype=torch.float64) + (1 - share) * prior.expand(3, 3)
    guess = found.nodes["charge"].double().softmax(-1)
    wanted = torch.zeros_like(guess)
    for graph, node in state.mask.nonzero().tolist():
        now = int(state.nodes["charge"][graph, node])
        for clean in range(3):
            posterior = matrices["ts"][:, now] * matrices["s"][clean] / matrices["t"][clean, now]
            wanted[graph, node] += guess[graph, node, clean] * posterior
    torch.testing.assert_close(law.nodes["charge"].double()[state.mask], wanted[state.mask], atol=1e-6, rtol=1e-4)


def test_the_policy_passes_the_kit_and_is_trained(files: tuple[Path, Path]) -> None:
    policy = import_midi(files[0], statistics=files[1], schedule="adaptive", num_steps=3).policy
    report = check_policy(policy, group_contexts(2, 2), samples=200, skip=("learning",))
    assert report.passed, str(report)
    config = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, beta=0.1)
    lines = GRPOTrainer(policy, atom_stability, config).train()
    assert all(math.isfinite(line["fields/positions/kl"]) for line in lines)
    assert lines[0]["fields/bond/log_ratio"] == pytest.approx(0.0, abs=1e-6)


def test_molecules_of_its_classes_become_fields(files: tuple[Path, Path]) -> None:
    model = import_midi(files[0], statistics=files[1], schedule="adaptive")
    water, peroxide, ammonium = conformers(("O", "OO", "[NH4+]"))
    policy = model.policy
    assert policy.can_draw(water)
    batch = policy.graphs_of([water, peroxide, ammonium])
    assert batch.nodes["atom"][0].tolist() == [3, 0, 0, 0, 0]
    assert set(batch.nodes["charge"][batch.mask].tolist()) == {1, 2}  # no charge, and +1
    assert policy.decode is not None
    assert [smiles_of(one) for one in policy.decode(batch)] == ["O", "OO", "[NH4+]"]
    fluorine = SpatialMolecule(("F", "F"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (1.4, 0, 0)))
    assert not policy.can_draw(fluorine)


def test_the_commands_import_and_use_it(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, samples = tmp_path / "policy", tmp_path / "samples.sdf"
    given = ["import", str(files[0]), "--from=midi", f"--statistics={files[1]}", f"--out={out}"]
    assert main([*given, "--schedule=adaptive", "--num_steps=4"]) == 0
    assert "exponents:" in capsys.readouterr().out
    metadata = load_metadata(out)
    assert family_of(metadata).name == "spatial"
    assert load_policy(out).num_steps == 4
    assert main(["sample", str(out), "-n", "5", f"--out={samples}"]) == 0
    assert 0 < samples.read_text(encoding="utf-8").count("$$$$") <= 5
    again = import_checkpoint(files[0], "midi", out, statistics=files[1], schedule="uniform")
    assert load_metadata(again)["taken"]["exponents"][0] == "positions 1, atom 1, charge 1, bond 1"
    capsys.readouterr()
    assert main([*given, "--dataset=qm9"]) == 2
    assert "dataset" in capsys.readouterr().err
