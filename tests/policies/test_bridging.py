"""Trajectories of graphs that no policy drew: their law, their layout, samples as graphs, and what a policy refuses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import networkx as nx
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn

from discrete_grpo import load_policy
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.rollout import Context, is_replayable
from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM, Kernel, chain_law
from discrete_grpo.diffusion.noise import Noise, absorbing, marginal, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule, Schedule, time_grid
from discrete_grpo.domains import graph6, labelled_graphs, molecules
from discrete_grpo.domains.graphs import GraphBatch, node_mask, num_pairs, symmetrise, unpack, upper
from discrete_grpo.metrics import molecules as metrics
from discrete_grpo.policies.bridging import bridges
from discrete_grpo.policies.decoders import SelfiesDecoder
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.node_count import LearnedSizes, RunningSizes, SizedPolicy
from discrete_grpo.policies.surrogate import EagerLikelihood, ElboLikelihood
from discrete_grpo.recipes.families import SamplerOptions
from tests.denoiser import PlainDenoiser
from tests.toys import node_classes, tiny_policy

LINEAR, COSINE = LinearSchedule(), CosineSchedule()
KERNELS: dict[str, Kernel] = {
    "uniform": D3PM(uniform(3, COSINE)),
    "marginal": D3PM(marginal([0.5, 0.2, 0.3], LINEAR)),
    "marginal without class 1": D3PM(marginal([0.6, 0.0, 0.4], COSINE)),
    "absorbing": D3PM(absorbing(3, LINEAR)),
    "interpolation": FlowInterpolation(Noise((0.5, 0.2, 0.3), COSINE, 3)),
    "interpolation from a mask": FlowInterpolation(absorbing(3, LINEAR)),
    "euler": FlowEuler(Noise((0.5, 0.2, 0.3), LINEAR, 3)),
    "euler, stochastic": FlowEuler(Noise((1 / 3, 1 / 3, 1 / 3), COSINE, 3), eta=3.0, omega=0.1),
}
every_kernel = pytest.mark.parametrize("kind", KERNELS)
STEPS = 4
DRAWS = 3000
LEAST_P = 1e-4
EDGES = Noise((0.7, 0.3), LINEAR, 2)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_node(classes: Tensor) -> GraphBatch:
    b = len(classes)
    return GraphBatch(classes[:, None], torch.zeros(b, 1, 1, dtype=torch.long), torch.ones(b, 1, dtype=torch.bool))


def p_value(counts: Tensor, law: Tensor) -> float:
    """p-value of a chi-square test of counts against probabilities; 0 if something impossible was counted."""
    if bool(counts[law <= 1e-12].any()):
        return 0.0
    wanted = law[law > 1e-12] * counts.sum()
    found = counts[law > 1e-12]
    if len(found) < 2:
        return 1.0
    return float(chi2.sf(float(((found - wanted) ** 2 / wanted).sum()), len(found) - 1))


def some_graphs(sizes: Sequence[int], seed: int = 0) -> GraphBatch:
    """Random graphs with 3 node and 2 edge classes."""
    n, generator = max(sizes), seeded(seed)
    mask = node_mask(torch.tensor(sizes), n)
    nodes = torch.where(mask, torch.randint(3, mask.shape, generator=generator), 0)
    edges = symmetrise(torch.randint(2, (len(sizes), num_pairs(n)), generator=generator), n)
    return GraphBatch(nodes, torch.where(mask[:, :, None] & mask[:, None], edges, 0), mask)


def alone(graphs: GraphBatch) -> list[GraphBatch]:
    return [graphs.index(slice(b, b + 1)).crop(n) for b, n in enumerate(graphs.sizes.tolist())]


def policy_of(kind: str, **options: Any) -> GraphPolicy:
    """A policy with an untrained network whose node classes are noised by a kernel of :data:`KERNELS`."""
    kernel = KERNELS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = PlainDenoiser(kernel.noise.num_states, 2, 3, 2)
    given: dict[str, Any] = {"num_steps": STEPS} | options
    return GraphPolicy(network, kernel, FlowInterpolation(EDGES), [0.0, 0.3, 0.3, 0.4], **given)


# ---------------------------------------------------------------- the law


@every_kernel
@pytest.mark.parametrize("clean", [0, 1])
def test_every_state_has_the_law_of_the_noising_process(kind: str, clean: int) -> None:
    kernel, grid = KERNELS[kind], time_grid(STEPS)
    assert isinstance(kernel.noise, Noise)
    law = chain_law(kernel, grid) if isinstance(kernel, FlowEuler) else kernel.noise.law(grid)
    nodes, _ = bridges((kernel, kernel), one_node(torch.full((DRAWS,), clean)), grid, seeded(clean))
    for k in range(STEPS):
        counts = nodes[:, k, 0].long().bincount(minlength=kernel.noise.num_states).double()
        assert p_value(counts, law[k, clean]) > LEAST_P, f"grid point {k}"
    assert bool((nodes[:, -1, 0] == clean).all())


@every_kernel
def test_pairs_have_the_law_of_the_noising_process(kind: str) -> None:
    kernel, grid = KERNELS[kind], time_grid(2)
    edges = torch.tensor([[0, 2], [2, 0]]).expand(DRAWS, -1, -1)
    graphs = GraphBatch(torch.zeros(DRAWS, 2, dtype=torch.long), edges, torch.ones(DRAWS, 2, dtype=torch.bool))
    _, pairs = bridges((D3PM(uniform(2, LINEAR)), kernel), graphs, grid, seeded())
    counts = pairs[:, 1, 0].long().bincount(minlength=kernel.noise.num_states).double()
    assert p_value(counts, chain_law(kernel, grid)[1, 2]) > LEAST_P
    assert bool((pairs[:, -1] == 2).all())


@pytest.mark.parametrize(
    "kernel", [D3PM(uniform(2, LINEAR)), FlowEuler(Noise((0.7, 0.3), LINEAR, 2), eta=2.0)], ids=["d3pm", "euler"]
)
def test_a_trajectory_has_the_probability_of_the_product_of_its_steps(kernel: Kernel) -> None:
    """1 node, 2 classes, 3 steps: the law of (x_1, x_2/3, x_1/3) given x_0 = 1, by enumeration of the 8 trajectories."""
    grid, clean = time_grid(3), 1
    first, *later = kernel.noise.initial(), *(kernel.table(float(t), float(s)) for t, s in itertools.pairwise(grid[:3]))
    law = torch.einsum("a,ab,bc->abc", first, *(table[:, clean] for table in later))
    torch.testing.assert_close(law.sum(), torch.tensor(1.0, dtype=torch.float64))
    nodes, _ = bridges((kernel, kernel), one_node(torch.full((4000,), clean)), grid, seeded(3))
    place = nodes[:, 0, 0].long() * 4 + nodes[:, 1, 0].long() * 2 + nodes[:, 2, 0].long()
    assert p_value(place.bincount(minlength=8).double(), law.flatten()) > LEAST_P


def test_nodes_and_pairs_of_a_graph_are_independent_given_its_end() -> None:
    kernel, grid = D3PM(uniform(2, LINEAR)), time_grid(2)
    edges = torch.tensor([[0, 1], [1, 0]]).expand(4000, -1, -1)
    graphs = GraphBatch(torch.tensor([[0, 1]]).expand(4000, -1), edges, torch.ones(4000, 2, dtype=torch.bool))
    nodes, pairs = bridges((kernel, kernel), graphs, grid, seeded())
    at = kernel.noise.law(grid)[1]
    law = torch.einsum("a,b,c->abc", at[0], at[1], at[1]).flatten()
    place = nodes[:, 1, 0].long() * 4 + nodes[:, 1, 1].long() * 2 + pairs[:, 1, 0].long()
    assert p_value(place.bincount(minlength=8).double(), law) > LEAST_P


class LeavesNoise(LinearSchedule):
    """A schedule that leaves a fifth of the noise at t = 0."""

    def alpha_bar(self, t: Tensor) -> Tensor:
        return 0.8 * super().alpha_bar(t)


@pytest.mark.parametrize("schedule", [COSINE, LeavesNoise()], ids=["cosine", "noise at t = 0"])
def test_the_last_state_is_the_graph_whatever_noise_is_left(schedule: Schedule) -> None:
    kernel = D3PM(uniform(3, schedule))
    nodes, _ = bridges((kernel, kernel), one_node(torch.full((500,), 2)), time_grid(3), seeded())
    assert bool((nodes[:, -1] == 2).all())


# ---------------------------------------------------------------- the rollout


@every_kernel
def test_log_probs_are_finite_and_the_layout_is_that_of_a_draw(kind: str) -> None:
    policy, sizes = policy_of(kind), [3, 1, 2, 3, 2, 1, 3, 3]
    samples = alone(some_graphs(sizes))
    made = policy.rollout_of(samples, generator=seeded())
    drawn = policy.sample([Context(k, {"num_nodes": n}) for k, n in enumerate(sizes)], generator=seeded())
    assert is_replayable(policy)
    assert policy.can_draw(samples[0])
    assert made.samples == tuple(samples)
    assert bool(made.logp.isnan().all())
    assert made.group.tolist() == list(range(8))
    for name in ("states", "logp", "units", "size", "max_units", "max_steps"):
        a, b = getattr(made, name), getattr(drawn, name)
        if name == "states":
            assert {k: (v.shape, v.dtype) for k, v in a.items()} == {k: (v.shape, v.dtype) for k, v in b.items()}
        elif isinstance(a, Tensor):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
        else:
            assert a == b
    assert torch.equal(made.units, drawn.units)
    assert torch.equal(made.size, drawn.size)
    scores = score_sites(policy.sites(made))
    assert bool(scores.logp[scores.mask].isfinite().all())
    assert scores.mask.sum((-2, -1)).tolist() == drawn.units.sum(1).tolist()


def test_the_end_of_a_rollout_is_the_graph_and_padding_is_zero() -> None:
    policy, graphs = policy_of("absorbing"), some_graphs([2, 3, 1])
    made = policy.rollout_of(alone(graphs), generator=seeded())
    assert torch.equal(made.states["nodes"][:, -1].long(), graphs.nodes)
    assert torch.equal(made.states["pairs"][:, -1].long(), upper(graphs.edges))
    assert not bool(made.states["nodes"].transpose(1, 2)[~graphs.mask].any())
    assert not bool(made.states["pairs"][2].any())


def test_padding_within_a_batch_of_like_sizes_is_zero() -> None:
    graphs, kernel = some_graphs([10, 9, 10]), D3PM(uniform(3, COSINE))
    nodes, pairs = bridges((kernel, kernel), graphs, time_grid(3), seeded())
    assert not bool(nodes[1, :, 9:].any())
    assert not bool(pairs[1, :, num_pairs(9) :].any())
    assert bool(nodes[0, :, 9:].any())


def test_equal_generators_give_equal_bits() -> None:
    policy, samples = policy_of("uniform"), alone(some_graphs([3, 3, 2, 3]))
    one, equal, other = (policy.rollout_of(samples, generator=seeded(k)).states["nodes"] for k in (1, 1, 2))
    assert torch.equal(one, equal)
    assert not torch.equal(one, other)


def test_padding_and_the_order_of_a_batch_change_no_log_prob_and_no_bit() -> None:
    policy, samples = policy_of("uniform"), alone(some_graphs([3, 2, 3, 1]))
    made = policy.rollout_of(samples, generator=seeded())
    padded = policy.rollout_of([one.pad(3) for one in samples], generator=seeded())
    assert torch.equal(made.states["nodes"], padded.states["nodes"])
    assert torch.equal(made.states["pairs"], padded.states["pairs"])
    logp = score_sites(policy.sites(made)).logp.sum(-1)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(score_sites(policy.sites(made.index(order))).logp.sum(-1), logp[order])
    row = made.index(torch.tensor([1]))
    torch.testing.assert_close(score_sites(policy.sites(row)).logp.sum(-1), logp[1:2])


def test_junk_in_the_padding_of_a_sample_is_not_read() -> None:
    policy, graph = policy_of("uniform"), alone(some_graphs([2]))[0].pad(3)
    junk = GraphBatch(graph.nodes.masked_fill(~graph.mask, 77), graph.edges + 50 * (~graph.mask)[:, None].long(), graph.mask)
    a, b = (policy.rollout_of([one], generator=seeded()).states for one in (graph, junk))
    assert torch.equal(a["nodes"], b["nodes"])
    assert torch.equal(a["pairs"], b["pairs"])


@torch.no_grad()
def test_the_mean_of_weighted_trajectories_is_the_probability_of_the_graph() -> None:
    """p_θ(x_0) = E_q[p_θ(τ)/q(τ | x_0)] of 1 node, 3 classes, 2 steps: left by enumeration, right in the mean of 4000 draws."""
    policy = policy_of("uniform", num_steps=2)
    states = torch.cartesian_prod(*[torch.arange(3)] * 3)  # x_1, x_1/2, x_0
    made = policy.rollout_of([one for c in states[:, 2] for one in alone(one_node(c[None]))], generator=seeded())
    every = {**made.states, "nodes": states[..., None].to(torch.uint8)}
    whole = score_sites(policy.sites(type(made)(**{**vars(made), "states": every}))).logp.sum((1, 2)).double()
    law = torch.zeros(3).double().index_add(0, states[:, 2], whole.exp() / 3)  # x_1 is uniform
    torch.testing.assert_close(law.sum(), torch.tensor(1.0).double())
    drawn = policy.rollout_of(alone(one_node(torch.full((4000,), 1))), generator=seeded())
    table = policy.node_kernel.table(1.0, 0.5)[:, 1]
    x1, half = drawn.states["nodes"][:, 0, 0].long(), drawn.states["nodes"][:, 1, 0].long()
    weight = (score_sites(policy.sites(drawn)).logp.sum((1, 2)).double()).exp() / table[x1, half]
    assert abs(float(weight.mean() - law[1])) < 5 * float(weight.std()) / 4000**0.5


# ---------------------------------------------------------------- samples as graphs


def test_molecules_are_encoded_as_they_were_decoded() -> None:
    policy = load_policy("qm9-small")
    drawn = policy.sample([Context(k) for k in range(24)], generator=seeded())
    smiles = [s for s in drawn.samples if s is not None and policy.can_draw(s)]
    assert len(smiles) == sum(s is not None for s in drawn.samples) > 10
    vocabulary = policy.decode.keywords["vocabulary"]
    assert molecules.decode(policy.encode(smiles), vocabulary) == smiles
    made = policy.rollout_of(smiles[:3], generator=seeded())
    assert made.samples == tuple(smiles[:3])
    mask = node_mask(made.size, made.states["nodes"].shape[2])
    end = GraphBatch(made.states["nodes"][:, -1].long(), symmetrise(made.states["pairs"][:, -1].long(), mask.shape[1]), mask)
    assert molecules.decode(end, vocabulary) == smiles[:3]
    scores = score_sites(policy.sites(made, torch.tensor([[0, made.num_steps - 1]] * 3)))
    assert bool(scores.logp[scores.mask].isfinite().all())


def test_a_policy_of_molecules_refuses_what_it_cannot_draw() -> None:
    policy = load_policy("qm9-small")
    assert policy.can_draw("CCO")
    assert policy.can_draw("c1ccoc1")
    for sample in ("CBr", "C" * 10, "no molecule", "", None, 3):
        assert not policy.can_draw(sample)
    with pytest.raises(ValueError, match=r"^smiles\[1\]: 'CBr', mol: atom 'Br' is not in the vocabulary \['C', .*\]$") as caught:
        policy.rollout_of(["CCO", "CBr"])
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"^samples: a graph of 10 nodes, expected a size that the policy draws \(.*9\)$"):
        policy.rollout_of(["C" * 10])


@pytest.mark.parametrize("hydrogens", [False, True])
@pytest.mark.parametrize("aromatic", [False, True])
def test_a_trajectory_ends_in_the_form_that_the_policy_was_trained_on(hydrogens: bool, aromatic: bool) -> None:
    shares = (0.8, 0.1, 0.04, 0.02, 0.04 * aromatic)
    vocabulary = molecules.Vocabulary(("H", "C", "O") if hydrogens else ("C", "O"))
    nodes, edges = D3PM(uniform(len(vocabulary), LINEAR)), D3PM(uniform(5, LINEAR))
    decode = partial(molecules.decode, vocabulary=vocabulary)
    encode = molecules.encoder(vocabulary, (1 / len(vocabulary),) * len(vocabulary), shares)
    policy = GraphPolicy(nn.Linear(1, 1), nodes, edges, (0.0,) + (1 / 12,) * 12, num_steps=3, decode=decode, encode=encode)
    assert policy.can_draw("c1ccccc1")
    made = policy.rollout_of(["c1ccccc1", "CCO"], generator=seeded())
    end = unpack(made.states["nodes"][:, -1], made.states["pairs"][:, -1], node_mask(made.size, made.states["nodes"].shape[-1]))
    assert end.sizes.tolist() == ([12, 9] if hydrogens else [6, 3])
    assert int((end.edges[0] == 4).sum()) == 12 * aromatic
    drawn = molecules.decode(end, vocabulary)
    assert [metrics.canonical(one) for one in drawn] == ["c1ccccc1", "CCO"]
    assert [one.count("[H]") for one in drawn if one] == ([6, 6] if hydrogens else [0, 0])


def test_a_graph_policy_knows_its_sizes_and_classes() -> None:
    policy = tiny_policy()
    graph = alone(some_graphs([3]))[0]
    assert policy.can_draw(graph)
    assert not policy.can_draw(graph.crop(1))  # no mass
    assert policy.can_draw(graph.pad(5))
    assert not policy.can_draw(GraphBatch(graph.nodes + 3, graph.edges, graph.mask))
    assert not policy.can_draw(GraphBatch(graph.nodes, 2 * graph.edges.clamp_min(1), graph.mask))
    assert not policy.can_draw(node_classes(graph)[0])  # decoded, and nothing encodes it
    for wrong in ([], [(0, 1)], [some_graphs([2, 2])]):
        with pytest.raises(ValueError, match=r"^samples: "):
            policy.rollout_of(wrong)


def test_plain_graphs_become_batches_and_lines_again() -> None:
    graphs = [nx.path_graph(4), nx.cycle_graph(5), nx.empty_graph(1)]
    lines = [graph6.graph6(g) for g in graphs]
    assert graph6.batch_to_graph6(graph6.graphs_to_batch(lines)) == lines
    assert graph6.batch_to_graph6(graph6.graphs_to_batch(graphs)) == lines
    for wrong in ("Bg nodes=0,2,1 edges=1,3", "~", 3, nx.DiGraph([(0, 1)])):
        with pytest.raises(ValueError, match=r"^graph: "):
            graph6.graphs_to_batch([wrong])


def test_labelled_graphs_become_batches_and_lines_again() -> None:
    lines = labelled_graphs.batch_to_lines(some_graphs([4, 2, 3, 1]))
    assert labelled_graphs.batch_to_lines(labelled_graphs.graphs_to_batch(lines)) == lines
    parsed = [labelled_graphs.from_line(line) for line in lines]
    assert labelled_graphs.batch_to_lines(labelled_graphs.graphs_to_batch(parsed)) == lines
    with pytest.raises(ValueError, match="expected a whole number as the label"):
        labelled_graphs.graphs_to_batch([nx.path_graph(3)])


def test_a_bundled_policy_of_plain_graphs_encodes_its_samples() -> None:
    policy = load_policy("tree-16", SamplerOptions(num_steps=3))  # other settings keep what loading has set
    drawn = policy.sample([Context(k) for k in range(3)], generator=seeded())
    made = policy.rollout_of(drawn.samples, generator=seeded())
    assert made.samples == drawn.samples
    assert torch.equal(made.states["pairs"][:, -1], drawn.states["pairs"][:, -1])
    assert not policy.can_draw(graph6.graph6(nx.path_graph(40)))


def test_a_policy_of_labelled_graphs_encodes_its_samples() -> None:
    policy = policy_of("uniform", decode=labelled_graphs.batch_to_lines, encode=labelled_graphs.graphs_to_batch)
    drawn = policy.sample([Context(k) for k in range(5)], generator=seeded())
    made = policy.rollout_of(drawn.samples, generator=seeded())
    for name in ("nodes", "pairs"):
        assert torch.equal(made.states[name][:, -1], drawn.states[name][:, -1])
    assert "encode" not in policy.init_args()


# ---------------------------------------------------------------- wrappers


@pytest.mark.parametrize("head", [LearnedSizes, RunningSizes])
def test_the_node_count_is_the_first_step_of_a_sized_policy(head: Any) -> None:
    policy = SizedPolicy(tiny_policy(), head([0.0, 0.0, 0.5, 0.5]))
    samples = alone(some_graphs([2, 3, 3]))
    made = policy.rollout_of(samples, generator=seeded())
    drawn = policy.sample([Context(k) for k in range(3)], generator=seeded())
    assert {k: v.dtype for k, v in made.states.items()} == {k: v.dtype for k, v in drawn.states.items()}
    scores = score_sites(policy.sites(made))
    assert bool(scores.logp[scores.mask].isfinite().all())
    assert bool(made.logp.isnan().all())
    torch.testing.assert_close(scores.logp[:, 0].sum(-1), torch.full((3,), 0.5).log())
    assert torch.equal(scores.mask.sum(-1), made.units)
    assert policy.can_draw(samples[0])
    assert not policy.can_draw(alone(some_graphs([4]))[0])
    with pytest.raises(ValueError, match=r"^samples: a graph of 4 nodes, expected a size to which the head gives mass$"):
        policy.rollout_of(alone(some_graphs([4])))


def test_surrogates_encode_as_the_policy_inside() -> None:
    inner, samples = tiny_policy(), alone(some_graphs([2, 3]))
    eager, elbo = EagerLikelihood(inner), ElboLikelihood(inner, draws=3)
    for policy in (eager, elbo):
        made = policy.rollout_of(samples, generator=seeded())
        assert is_replayable(policy)
        assert policy.can_draw(samples[0])
        assert not policy.can_draw("CC")
        assert made.samples == tuple(samples)
        assert bool(made.logp.isnan().all())
        scores = policy.score(made)
        assert bool(scores.logp[scores.mask].isfinite().all())
    assert torch.equal(
        eager.rollout_of(samples, generator=seeded()).states["nodes"], inner.rollout_of(samples, generator=seeded()).states["nodes"]
    )


def test_a_decoder_with_an_inverse() -> None:
    pytest.importorskip("selfies")
    texts = SelfiesDecoder().encode(["CCO", "C1=CC=CC=C1"])
    assert SelfiesDecoder()(texts) == ["CCO", "c1ccccc1"]
    with pytest.raises(ValueError, match=r"^samples: 'C\.C', expected a valid"):
        SelfiesDecoder().encode(["C.C"])
