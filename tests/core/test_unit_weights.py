"""What the weights of the losses make of the expected gradient where sizes differ: all groups of tiny policies, enumerated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import Sites
from discrete_grpo.core.rollout import Context, Rollout, group_contexts
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import absorbing, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from discrete_grpo.domains.graphs import GraphBatch, symmetrise
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.minibatches import Batch, TrainRows, choose_steps, microbatches, train_rows, window_weights
from discrete_grpo.training.update import UpdatePlan, loss_terms, micro_batch_loss
from tests import oracles

LEVELS = ["token", "step", "step_mean", "sequence"]
LOSSES = ["grpo", "dapo", "dr_grpo"]
levels = pytest.mark.parametrize("level", LEVELS)


# -- graphs of one or two nodes in some steps, with a learned size head


class OneOrTwoNodes(nn.Module):
    """Free logits for every state of a graph of one node, and of a graph of two."""

    def __init__(self, states: tuple[int, int]) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(3)
        self.one = nn.Parameter(torch.randn(2, states[0], 2, generator=g, dtype=torch.float64))
        self.two = oracles.LookupNetwork(states[0], states[1], 2, 2)

    def forward(self, nodes: Tensor, edges: Tensor, time: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        single = self.one[(time > 0.75).long(), nodes[:, 0]][:, None]
        if nodes.shape[1] == 1:
            return single, single.new_zeros(len(nodes), 1, 1, 2)
        pair, between = self.two(nodes, edges, time, mask)
        return torch.where(mask[:, 1, None, None], pair, single), between


KERNELS = {
    "uniform": (D3PM(uniform(2, CosineSchedule())), D3PM(uniform(2, LinearSchedule()))),
    "absorbing": (D3PM(absorbing(2, LinearSchedule())), D3PM(absorbing(2, CosineSchedule()))),
}


def sized(kind: str, num_steps: int) -> SizedPolicy:
    """Sizes 1 and 2 with equal mass in the histogram; the head has moved off it."""
    kernels = KERNELS[kind]
    network = OneOrTwoNodes((kernels[0].noise.num_states, kernels[1].noise.num_states))
    head = LearnedSizes([0.0, 0.5, 0.5], gain=1.0).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([0.4, -0.3]))
    return SizedPolicy(GraphPolicy(network, *kernels, [0.0, 0.5, 0.5], num_steps=num_steps), head)


Path = tuple[tuple[int, ...], ...]


def graph_paths(policy: SizedPolicy, kind: str) -> dict[tuple[int, Path], Tensor]:
    """p(n, x_1, ..., x_0) of every trajectory with mass, differentiable; a state is (left, right, pair), or (node,)."""
    x, e = KERNELS[kind]
    inner, found = policy.policy, dict[tuple[int, Path], Tensor]()
    log_sizes = policy.head.log_probs()
    for n in (1, 2):
        classes = [range(x.noise.num_states)] * n + [range(e.noise.num_states)] * (n - 1)
        states = list(itertools.product(*classes))
        priors = [x.noise.initial()] * n + [e.noise.initial()] * (n - 1)
        paths: dict[Path, Tensor] = {}
        for s in states:
            p = torch.stack([m[c] for m, c in zip(priors, s, strict=True)]).double().prod()
            if p > 0:
                paths[(s,)] = p * log_sizes[n].exp()
        for k in range(inner.num_steps):
            grown: dict[Path, Tensor] = {}
            for path, p in paths.items():
                tables = step_tables(inner, path[-1], n, k)
                for s in states:
                    q = torch.stack([t[c] for t, c in zip(tables, s, strict=True)]).prod()
                    if float(q.detach()) > 0:
                        grown[(*path, s)] = p * q
            paths = grown
        found |= {(n, path): p for path, p in paths.items()}
    return found


def step_tables(inner: GraphPolicy, state: tuple[int, ...], n: int, k: int) -> list[Tensor]:
    pairs = torch.tensor([state[2:]]) if n == 2 else torch.zeros(1, 0, dtype=torch.long)
    graph = GraphBatch(torch.tensor([state[:n]]), symmetrise(pairs, n), torch.ones(1, n, dtype=torch.bool))
    of_nodes, of_pairs = inner.transition(graph, torch.tensor([k]))
    return [*of_nodes[0], *of_pairs[0]]


def graph_rollout(paths: Sequence[tuple[int, Path]]) -> Rollout:
    """What :meth:`SizedPolicy.sample` stores; every trajectory in group 0."""
    size = torch.tensor([n for n, _ in paths])
    stored = torch.tensor([[[*s, 0, 0][:3] if n == 1 else s for s in path] for n, path in paths], dtype=torch.uint8)
    steps = stored.shape[1] - 1
    on = torch.ones(len(paths), dtype=torch.bool)
    sites = torch.where(size == 2, 3, 1)[:, None].expand(-1, steps)
    return Rollout(
        states={
            "nodes": stored[..., :2],
            "pairs": stored[..., 2:],
            "size_count": size,
            "size_chosen": on,
            "size_least": torch.ones_like(size),
        },
        group=torch.zeros_like(size),
        logp=torch.zeros(len(paths), steps + 1),
        units=torch.cat([on.long()[:, None], sites], 1),
        size=size,
        max_units=1 + 3 * steps,
        samples=tuple(paths),
        max_steps=1 + steps,
    )


def graph_reward(sample: tuple[int, Path]) -> float:
    """Neither symmetric nor linear in the sites, and not a function of the size alone."""
    n, path = sample
    last = path[-1]
    return 0.3 + 1.1 * last[0] if n == 1 else 1.3 * last[0] - 0.4 * last[1] + 2.0 * last[0] * last[2] - 0.2


# -- texts that stop when they like


class Stopping(nn.Module):
    """Goes on with probability σ(logit of the step) up to ``most`` steps; a step is one site, as a token is."""

    most = 3

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([[0.2, -0.5], [-0.4, 0.6], [0.0, 0.0]], dtype=torch.float64))

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        """One text per context, all in group 0."""
        shares = torch.stack(list(text_paths(self).values())).detach()
        drawn = torch.multinomial(shares, len(contexts), replacement=True, generator=generator)
        return self.rollout((drawn + 1).tolist())

    def rollout(self, lengths: Sequence[int]) -> Rollout:
        """Texts of these lengths; the last step is no choice."""
        size = torch.tensor(lengths)
        drawn = int(size.clamp_max(self.most - 1).max())  # as many steps as the longest text chose, as a sampler stores them
        choices = (torch.arange(drawn) < size.clamp_max(self.most - 1)[:, None]).long()
        return Rollout({}, torch.zeros_like(size), torch.zeros(choices.shape), choices, size, 2, tuple(lengths))

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> list[Sites]:
        """Class 1 is to stop."""
        at = torch.arange(rollout.num_steps).expand(len(rollout), -1) if steps is None else steps
        stopped = (at + 1 >= rollout.size[:, None]).long()
        on = rollout.units.gather(1, at) > 0
        return [Sites(self.logits.log_softmax(-1)[at][:, :, None], stopped[:, :, None], on[:, :, None])]


def text_paths(policy: Stopping) -> dict[int, Tensor]:
    p = policy.logits.log_softmax(-1).exp()
    return {1: p[0, 1], 2: p[0, 0] * p[1, 1], 3: p[0, 0] * p[1, 0]}


def text_reward(length: int) -> float:
    return [0.0, 1.0, -0.5, 0.9][length]


# -- the expected gradient


def loss_gradient(policy: Any, draws: Sequence[TrainRows], config: GRPOConfig) -> Tensor:
    """∇L of one update on these draws, through the weights and the passes of the trainer."""
    choice = choose_steps(draws, config)
    (weights,) = window_weights([choice.counts], config)
    total = torch.zeros(())
    for chunk in microbatches(draws, choice, weights[0], config):
        total = total + micro_batch_loss(loss_terms(policy, chunk, None, config), chunk, None, UpdatePlan(), config).loss
    return flat(torch.autograd.grad(total, list(policy.parameters()), materialize_grads=True))


def flat(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients])


def over_all_pairs(policy: Any, paths: dict[Any, Tensor], rollout: Any, reward: Any, config: GRPOConfig) -> tuple[Tensor, Tensor]:
    """-∇E[R], and E[∇L] over every group of two: all pairs of trajectories, with the advantages and weights of each."""
    expected = torch.stack([p * reward(path) for path, p in paths.items()]).sum()
    wanted = flat(torch.autograd.grad(-expected, list(policy.parameters()), retain_graph=True, materialize_grads=True))
    found = torch.zeros_like(wanted)
    for (one, p), (two, q) in itertools.combinations_with_replacement(paths.items(), 2):
        rewards = torch.tensor([[reward(one)], [reward(two)]], dtype=torch.float64)
        batch = Batch(rollout([one, two]), rewards, torch.zeros(2, dtype=torch.bool), [None, None])
        orders = 1 if one == two else 2  # both orders of two rows have one loss
        found += orders * float((p * q).detach()) * loss_gradient(policy, train_rows([batch], config), config)
    return wanted, found


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def pairs_config(loss_type: Any, level: Any) -> GRPOConfig:
    """Leave-one-out and unscaled: the expected sum of A ∇log π over a group is ∇E[R] for each member."""
    options: dict[str, Any] = {"loss_type": loss_type, "importance_sampling_level": level, "epsilon": 1e6}
    return GRPOConfig(num_generations=2, generation_batch_size=2, scale_rewards="none", baseline="leave_one_out", **options)


@levels
@pytest.mark.parametrize("loss_type", LOSSES)
def test_graphs_of_two_sizes_and_a_learned_size_head(loss_type: str, level: str) -> None:
    """dr_grpo is -∇E[R]/n_max at every level; grpo and dapo only at level step, as graphs of all sizes have equally many steps."""
    policy = sized("absorbing", 1)
    paths = graph_paths(policy, "absorbing")
    assert len(paths) == 10
    assert float(sum(p.detach() for p in paths.values())) == pytest.approx(1.0, abs=1e-12)
    wanted, found = over_all_pairs(policy, paths, graph_rollout, graph_reward, pairs_config(loss_type, level))
    assert wanted[-2:].abs().min() > 1e-2  # the size head
    if loss_type == "dr_grpo" or level == "step":
        assert cosine(found, wanted) == pytest.approx(1.0, abs=1e-9)
        torch.testing.assert_close(found * (2 if level == "step" else 4), wanted, rtol=0, atol=1e-12)  # n_max: steps, or sites
    else:
        assert cosine(found, wanted) < 0.99


def test_the_enumerated_rollout_is_like_a_drawn_one() -> None:
    policy = sized("absorbing", 2)
    drawn = policy.sample(group_contexts(4, 2), generator=torch.Generator().manual_seed(0))
    paths = [(n, ((0, 0, 0)[: 2 * n - 1],) * 3) for n in drawn.size.tolist()]
    made = graph_rollout(paths)
    assert (made.max_units, made.max_steps) == (drawn.max_units, drawn.max_steps) == (7, 3)
    assert drawn.states.keys() == made.states.keys()
    for name in ("units", "size"):
        assert torch.equal(getattr(made, name), getattr(drawn, name))


@pytest.mark.parametrize("level", ["token", "step"])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_texts_of_several_lengths(loss_type: str, level: str) -> None:
    """Where the number of steps differs, dr_grpo alone is unbiased, at level step too."""
    policy = Stopping()
    paths = text_paths(policy)
    wanted, found = over_all_pairs(policy, paths, policy.rollout, text_reward, pairs_config(loss_type, level))
    if loss_type == "dr_grpo":
        torch.testing.assert_close(found * 2, wanted, rtol=0, atol=1e-12)
    else:
        assert cosine(found, wanted) < 0.999


@pytest.mark.parametrize("kind", KERNELS)
@levels
def test_the_expected_gradient_over_all_trajectories(kind: str, level: Any) -> None:
    """Two steps: each trajectory is a row whose advantage is its reward times its probability, which the loss is linear in."""
    policy = sized(kind, 2)
    paths = graph_paths(policy, kind)
    assert len(paths) == {"uniform": 2**3 + 8**3, "absorbing": 4 + 4**3}[kind]
    p, rows = torch.stack(list(paths.values())), list(paths)
    reward = torch.tensor([graph_reward(path) for path in rows], dtype=torch.float64)
    wanted = flat(torch.autograd.grad(-(p * reward).sum(), list(policy.parameters()), retain_graph=True))
    on = torch.ones(len(rows), dtype=torch.bool)
    for baseline in (0.0, 0.7):
        draw = TrainRows(graph_rollout(rows), p.detach() * (reward - baseline), on, on, ~on)
        config = GRPOConfig(loss_type="dr_grpo", importance_sampling_level=level, epsilon=1e6, per_device_batch_size=len(rows))
        found = loss_gradient(policy, [draw], config)
        most = 3 if level == "step" else 7
        assert cosine(found, wanted) == pytest.approx(1.0, abs=1e-9)
        torch.testing.assert_close(found * most * len(rows), wanted, rtol=0, atol=1e-12)
        assert wanted[-2:].abs().min() > 1e-3  # the size head
