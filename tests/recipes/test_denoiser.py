"""A network of one's own in place of the graph transformer: checked, trained, sampled, saved and loaded."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo import GRPOConfig, GRPOTrainer, PretrainConfig, molecule_policy, pretrain
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.datasets.enumeration import load_enumerated
from discrete_grpo.datasets.molecules import MoleculeStatistics, statistics
from discrete_grpo.diffusion.schedules import DigressSchedule, PolydecDistortion
from discrete_grpo.domains.molecules import decode
from discrete_grpo.domains.tokenizer import Property
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions, diffusion_policy
from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe
from discrete_grpo.recipes.pretraining.judge import JudgeRecipe
from discrete_grpo.recipes.pretraining.molecules import PretrainRecipe
from discrete_grpo.recipes.pretraining.smiles import PretrainSmilesRecipe
from discrete_grpo.rewards.molecules import validity
from discrete_grpo.runs.checkpoint import CheckpointError, load_metadata, read_policy
from discrete_grpo.runs.recorder import read_metrics
from tests.denoiser import PlainDenoiser

SHORT = PretrainConfig(max_steps=40, batch_size=64, learning_rate=1e-2, warmup_steps=2, log_steps=10, save_steps=40, ema_decay=0.5)
FAST = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=16, per_device_batch_size=16, save_steps=2)


@pytest.fixture(scope="module")
def stats() -> MoleculeStatistics:
    return statistics(load_enumerated(4))


def denoiser(stats: MoleculeStatistics, masked: int = 0, seed: int = 0) -> PlainDenoiser:
    nodes, edges = len(stats.node_marginal), len(stats.edge_marginal)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return PlainDenoiser(nodes + masked, edges + masked, nodes, edges)


def test_an_own_denoiser_is_pretrained_loaded_sampled_and_fine_tuned(stats: MoleculeStatistics, tmp_path: Path) -> None:
    network = denoiser(stats)
    recipe = PretrainRecipe(
        output_dir=str(tmp_path / "pre"), max_atoms=4, num_steps=6, noise="uniform", pretrain=SHORT, evaluation_samples=8
    )
    folder = pretrain(recipe, network=network)
    losses = [line["loss"] for line in read_metrics(folder.parent) if "loss" in line]
    assert losses[-1] < 0.9 * losses[0]  # type: ignore[operator]  # every line has a loss
    with pytest.raises(CheckpointError, match="is outside the trusted packages"):
        read_policy(folder)
    policy = read_policy(folder, trusted=("discrete_grpo", "tests"))
    assert isinstance(policy.network, PlainDenoiser)
    assert policy.num_steps == 6
    policy.decode = partial(decode, vocabulary=stats.vocabulary)
    again = read_policy(folder, trusted=("discrete_grpo", "tests"))
    contexts, draw = group_contexts(6, 2), torch.Generator
    first, second = (p.sample(contexts, generator=draw().manual_seed(1)) for p in (policy, again))
    assert torch.equal(first.states["pairs"], second.states["pairs"])
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    GRPOTrainer(policy, validity, FAST, run=tmp_path / "grpo").train()
    assert any(not torch.equal(before[k], v) for k, v in policy.state_dict().items())
    tuned = read_policy(max((tmp_path / "grpo/checkpoints").iterdir()), trusted=("discrete_grpo", "tests"))
    assert isinstance(tuned.network, PlainDenoiser)


@pytest.mark.parametrize("noise", ["uniform", "marginal", "absorbing"])
def test_molecule_policy_takes_a_module(noise: Any, stats: MoleculeStatistics) -> None:
    network = denoiser(stats, masked=int(noise == "absorbing")).train()
    before = torch.random.get_rng_state()
    policy = molecule_policy(stats, network=network, options=DiffusionOptions(noise=noise, num_steps=4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert policy.network is network
    assert network.training, "the check leaves the mode as it was"
    rollout = policy.sample(group_contexts(3, 2), generator=torch.Generator().manual_seed(0))
    replayed = sum((s.log_probs.gather(-1, s.action.long()[..., None])[..., 0] * s.mask).sum(-1) for s in policy.sites(rollout))
    torch.testing.assert_close(replayed, rollout.logp, rtol=0, atol=1e-4)


class Wrapped(nn.Module):
    """A denoiser whose answer is changed."""

    def __init__(self, inner: nn.Module, change: Any) -> None:
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, *arguments: Tensor) -> Any:
        return self.change(*self.inner(*arguments))


WRONG = {
    "one tensor": (lambda x, e: x, "returns one Tensor, expected two tensors: node logits and edge logits"),
    "three values": (lambda x, e: (x, e, e), "returns 3 values, expected two tensors"),
    "class": (
        lambda x, e: (x[..., 1:], e),
        r"returns node logits of shape \(2, 3, 3\), expected \(2, 3, 4\), \[graph, node, class\]",
    ),
    "pairs": (
        lambda x, e: (x, e[:, 0]),
        r"returns edge logits of shape \(2, 3, 4\), expected \(2, 3, 3, 4\), \[graph, node, node, class\]",
    ),
    "type": (lambda x, e: (x, e.argmax(-1, keepdim=True).expand_as(e)), "returns edge logits of type torch.int64"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_network_of_another_shape_is_refused_in_one_line(name: str, stats: MoleculeStatistics) -> None:
    change, text = WRONG[name]
    with pytest.raises(ValueError, match=f"^network: Wrapped {text}") as error:
        molecule_policy(stats, Wrapped(denoiser(stats), change))
    assert "\n" not in str(error.value)


def test_a_network_that_cannot_be_called_is_refused_in_one_line(stats: MoleculeStatistics) -> None:
    with pytest.raises(
        ValueError, match=r"^network: Linear fails when called as network\(nodes, edges, time, mask\) with classes 0 to \d of nodes"
    ) as error:
        molecule_policy(stats, nn.Linear(2, 2))
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"^network: Flatten has no parameters, expected a module that can be trained$"):
        molecule_policy(stats, nn.Flatten())
    with pytest.raises(ValueError, match=r"^network: PlainDenoiser fails when called .*index out of range"):  # no mask class
        molecule_policy(stats, denoiser(stats), DiffusionOptions(noise="absorbing"))


def test_a_network_without_the_properties_of_its_policy_is_refused(stats: MoleculeStatistics) -> None:
    blind = molecule_policy(stats).network
    for properties, said in (((Property("TPSA"),), "of 0 properties, expected 1"), ((), "of 1 properties, expected 0")):
        network = blind if properties else molecule_policy(stats, properties=(Property("TPSA"),)).network
        with pytest.raises(ValueError, match=f"^network: {said} as the policy has$"):
            molecule_policy(stats, network, properties=properties)


def test_a_network_is_called_with_and_without_properties(stats: MoleculeStatistics) -> None:
    seen: list[int] = []

    class Counting(PlainDenoiser):
        def forward(self, *arguments: Any) -> tuple[Tensor, Tensor]:
            seen.append(len(arguments))
            return super().forward(*arguments)

    network = Counting(4, 4, 4, 4)
    assert molecule_policy(stats, network, properties=(Property("MolWt"),)).properties == (Property("MolWt"),)
    assert seen == [4, 5]


def test_an_own_denoiser_belongs_to_recipes_of_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = PlainDenoiser(1, 2, 1, 2)
    for recipe in (PretrainSmilesRecipe(output_dir=str(tmp_path / "a")), JudgeRecipe(output_dir=str(tmp_path / "a"))):
        with pytest.raises(ValueError, match=f"^network: PlainDenoiser with {type(recipe).__name__}, expected none"):
            pretrain(recipe, network=network)
    assert not (tmp_path / "a").exists()
    with pytest.raises(TypeError, match=r"^recipe: GRPOConfig, expected a recipe of pretraining"):
        pretrain(FAST)  # type: ignore[arg-type]
    config = PretrainConfig(max_steps=2, batch_size=8, warmup_steps=1)
    trees = PretrainGraphsRecipe(
        data="tree-16", output_dir=str(tmp_path / "trees"), num_steps=3, pretrain=config, evaluation_samples=0
    )
    folder = pretrain(trees, network=network)
    assert load_metadata(folder)["shape"] == "tree"
    assert isinstance(read_policy(folder, trusted=("discrete_grpo", "tests")).network, PlainDenoiser)
    unused = "network: the sizes that the recipe has are not used, as a network of your own is given"
    assert unused not in capsys.readouterr().err
    pretrain(replace(trees, output_dir=str(tmp_path / "sized"), network=NetworkSizes(layers=1)), network=network)
    assert unused in capsys.readouterr().err


def test_pretrain_runs_the_recipe_it_is_given(tmp_path: Path) -> None:
    config = PretrainConfig(max_steps=2, batch_size=8, warmup_steps=1)
    recipe = PretrainSmilesRecipe(
        data=str(tmp_path / "a.smi"),
        output_dir=str(tmp_path / "smiles"),
        layers=1,
        heads=1,
        width=8,
        pretrain=config,
        evaluation_samples=0,
    )
    (tmp_path / "a.smi").write_text("CCO\nCCN\nCCC\nCC=O\n")
    folder = pretrain(recipe)
    assert folder == tmp_path / "smiles" / "policy"
    assert load_metadata(folder)["data"]["molecules"] == 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_steps": 0}, "num_steps: 0, expected 1 to 10000"),
        ({"eta": 1.0}, "eta: 1.0, expected 0 with kernel d3pm"),
        ({"kernel": "euler"}, "kernel: 'euler', expected one of d3pm, flow, flow_euler"),
        ({"schedule": "sine"}, "schedule: 'sine', expected one of cosine, linear"),
        ({"train_distortion": "cosine"}, "train_distortion: 'cosine', expected one of identity"),
        ({"sample_distortion": "x"}, "sample_distortion: 'x', expected one of identity"),
    ],
)
@pytest.mark.parametrize("kind", [DiffusionOptions, PretrainRecipe, PretrainGraphsRecipe])
def test_options_of_diffusion_are_checked_before_any_work(kind: type, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        kind(**options)


def test_options_reach_the_policy(stats: MoleculeStatistics) -> None:
    options = DiffusionOptions(
        kernel="flow_euler", eta=1.5, omega=0.5, num_steps=9, precondition=True, train_distortion="polydec", sample_distortion="cos"
    )
    policy: GraphPolicy = molecule_policy(stats, denoiser(stats), options)
    assert (policy.edge_kernel.eta, policy.node_kernel.omega) == (1.5, 0.5)  # type: ignore[attr-defined]  # FlowEuler has both
    assert (policy.num_steps, policy.precondition, policy.train_distortion) == (9, True, PolydecDistortion())
    own = molecule_policy(stats, denoiser(stats), schedule=PolydecDistortion())
    assert own.edge_kernel.noise.schedule == PolydecDistortion()  # type: ignore[attr-defined]  # Noise has a schedule


def test_a_schedule_that_ends_with_noise_has_no_masks() -> None:
    shares = ((0.5, 0.5), (0.7, 0.3))
    assert diffusion_policy(shares, (0, 0.5, 0.5), schedule=DigressSchedule(50)).num_steps > 0
    with pytest.raises(ValueError, match=r"^schedule: DigressSchedule has ᾱ\(0\) = 0\.99\d+, expected 1 with noise absorbing"):
        diffusion_policy(shares, (0, 0.5, 0.5), options=DiffusionOptions(noise="absorbing"), schedule=DigressSchedule(50))
