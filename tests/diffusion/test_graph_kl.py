"""The KL of dense posteriors against enumeration of joint states, loops and the packed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo import Sites, posterior_kl, score_sites
from discrete_grpo.core.categorical import safe_log
from discrete_grpo.core.rollout import Context
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import absorbing
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from discrete_grpo.policies.graph import GraphPolicy
from tests import oracles
from tests.toys import tiny_policy

DIRECTIONS = ["reverse", "forward"]


def distributions(*shape: int, seed: int = 0, holes: bool = False) -> Tensor:
    p = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if holes:
        p[..., 0] *= torch.rand(shape[:-1], generator=torch.Generator().manual_seed(seed + 1)) > 0.5
    return p / p.sum(-1, keepdim=True)


def mirrored(edges: Tensor) -> Tensor:
    """Edges whose lower triangle is the upper one."""
    n = edges.shape[1]
    above = torch.ones(n, n).triu(1).bool()[None, :, :, None]
    return torch.where(above, edges, edges.transpose(1, 2))


def posteriors(b: int = 3, n: int = 4, seed: int = 0, holes: bool = False) -> tuple[Tensor, Tensor]:
    return distributions(b, n, 3, seed=seed, holes=holes), mirrored(distributions(b, n, n, 2, seed=seed + 7))


def arguments(b: int = 3, n: int = 4) -> dict[str, Any]:
    nodes, edges = posteriors(b, n)
    ref_nodes, ref_edges = posteriors(b, n, seed=50)
    mask = torch.arange(n) < torch.tensor([n, n - 1, 1][:b])[:, None]
    return {"nodes": nodes, "edges": edges, "ref_nodes": ref_nodes, "ref_edges": ref_edges, "mask": mask}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_kl_of_a_graph_is_that_of_its_joint_distribution(direction: Any) -> None:
    """Σ over all 3^3 · 2^3 joint states of a graph of three nodes, of p log p/q."""
    given = arguments(2, 3)
    given["mask"] = torch.ones(2, 3, dtype=torch.bool)
    found = posterior_kl(**given, direction=direction)
    pairs = [(0, 1), (0, 2), (1, 2)]
    for b in range(2):
        total = 0.0
        for state in product(range(3), range(3), range(3), range(2), range(2), range(2)):
            p, q = (
                math.prod(float(x[b, i, c]) for i, c in enumerate(state[:3]))
                * math.prod(float(e[b, i, j, c]) for (i, j), c in zip(pairs, state[3:], strict=True))
                for x, e in ((given["nodes"], given["edges"]), (given["ref_nodes"], given["ref_edges"]))
            )
            p, q = (p, q) if direction == "reverse" else (q, p)
            total += p * math.log(p / q)
        assert float(found.per_graph[b]) == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_site_is_the_loop_and_each_pair_counts_once(direction: Any) -> None:
    given = arguments()
    found = posterior_kl(**given, direction=direction)
    assert found.nodes.shape == (3, 4)
    assert found.edges.shape == (3, 4, 4)

    def loop(p: Tensor, q: Tensor) -> float:
        p, q = (p, q) if direction == "reverse" else (q, p)
        return oracles.kl(p.tolist(), q.tolist())

    for b, i in product(range(3), range(4)):
        here = bool(given["mask"][b, i])
        wanted = loop(given["nodes"][b, i], given["ref_nodes"][b, i]) if here else 0.0
        assert float(found.nodes[b, i]) == pytest.approx(wanted, abs=1e-14)
        for j in range(4):
            on = here and bool(given["mask"][b, j]) and i < j
            wanted = loop(given["edges"][b, i, j], given["ref_edges"][b, i, j]) if on else 0.0
            assert float(found.edges[b, i, j]) == pytest.approx(wanted, abs=1e-14)
    torch.testing.assert_close(found.per_graph, found.nodes.sum(-1) + found.edges.sum((1, 2)), rtol=0, atol=1e-14)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_gradient_is_that_of_finite_differences_and_the_reference_has_none(direction: Any) -> None:
    given = arguments(2, 3)
    x, e = (
        torch.randn(given[k].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) for k in ("nodes", "edges")
    )
    ref, ref_edges = (given[name].clone().requires_grad_() for name in ("ref_nodes", "ref_edges"))

    def of_logits(x: Tensor, e: Tensor) -> Tensor:
        mirrored = (e + e.transpose(1, 2)).softmax(-1)
        return posterior_kl(x.softmax(-1), mirrored, ref, ref_edges, given["mask"], direction=direction).per_graph

    x.requires_grad_(), e.requires_grad_()
    assert torch.autograd.gradcheck(of_logits, (x, e), atol=1e-8)
    of_logits(x, e).sum().backward()
    assert ref.grad is None
    assert ref_edges.grad is None


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_garbage_under_the_mask_and_on_the_diagonal_reaches_neither_value_nor_gradient(direction: Any) -> None:
    given = arguments()
    clean = {name: value.clone().requires_grad_(name in ("nodes", "edges")) for name, value in given.items()}
    padded = ~given["mask"]
    dead = padded[:, :, None] | padded[:, None] | torch.eye(4, dtype=torch.bool)
    for junk in (math.nan, math.inf, -5.0):
        dirty = dict(given)
        for name in ("nodes", "ref_nodes"):
            dirty[name] = given[name].masked_fill(padded[..., None], junk)
        for name in ("edges", "ref_edges"):
            dirty[name] = given[name].masked_fill(dead[..., None], junk)
        dirty = {name: value.clone().requires_grad_(name in ("nodes", "edges")) for name, value in dirty.items()}
        one, two = (posterior_kl(**x, direction=direction) for x in (clean, dirty))
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
        wanted = torch.autograd.grad(one.per_graph.sum(), (clean["nodes"], clean["edges"]))
        found = torch.autograd.grad(two.per_graph.sum(), (dirty["nodes"], dirty["edges"]))
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
        assert not bool(found[0][padded].any())
        assert not bool(found[1][dead].any())


def test_zero_times_log_zero_is_zero_and_lost_mass_is_infinite() -> None:
    e = torch.full((1, 1, 1, 2), 0.5)
    mask = torch.ones(1, 1, dtype=torch.bool)
    point, half = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.5, 0.5]]])
    leaf = point.clone().requires_grad_()
    kl = posterior_kl(leaf, e, half, e, mask).per_graph
    assert float(kl.detach()) == pytest.approx(math.log(2))
    assert torch.autograd.grad(kl.sum(), leaf)[0].isfinite().all()
    assert float(posterior_kl(half, e, point, e, mask).per_graph) == math.inf
    assert float(posterior_kl(point, e, half, e, mask, direction="forward").per_graph) == math.inf
    assert float(posterior_kl(point, e, point, e, mask).per_graph) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fewer_bits_are_computed_with_as_float32(dtype: torch.dtype) -> None:
    given = {name: value if name == "mask" else value.to(dtype) for name, value in arguments().items()}
    found = posterior_kl(**given)
    assert found.per_graph.dtype == torch.float32
    torch.testing.assert_close(found.per_graph.double(), posterior_kl(**arguments()).per_graph, rtol=0, atol=2e-2)


@pytest.mark.parametrize("n", [0, 1])
def test_graphs_without_pairs(n: int) -> None:
    x, e = torch.full((2, n, 2), 0.5), torch.full((2, n, n, 2), 0.5)
    found = posterior_kl(x, e, x, e, torch.ones(2, n, dtype=torch.bool))
    assert found.edges.shape == (2, n, n)
    assert found.per_graph.tolist() == [0.0, 0.0]


# ---------------------------------------------------------------- refusals


def changed(name: str, at: tuple[int, ...], value: Any) -> Any:
    def change(given: dict[str, Tensor]) -> None:
        given[name] = given[name].clone()
        given[name][at] = torch.tensor(value, dtype=given[name].dtype)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed("edges", (0, 2, 1), [0.5, 0.5]), r"edges: entries \[b, i, j\] and \[b, j, i\] differ by up to 0\.\d+"),
        (changed("ref_edges", (1, 0, 2), [0.5, 0.5]), r"ref_edges: entries .* expected symmetric edges"),
        (changed("nodes", (0, 0), [0.5, 0.5, 0.5]), r"nodes: a row sums to 1 ± 0.5, expected"),
        (changed("ref_nodes", (1, 2), [0.2, 0.2, 0.2]), "ref_nodes: a row sums to 1 ± 0.4"),
        (changed("nodes", (0, 0), [1.5, -0.5, 0.0]), r"nodes: least entry -0.5, expected probabilities of at least 0"),
        (changed("nodes", (0, 0), [math.nan, 0.5, 0.5]), "nodes: least entry nan"),
        (lambda g: g.update(nodes=g["nodes"][0]), r"nodes: shape \(4, 3\), expected \[B, N, C\]"),
        (lambda g: g.update(edges=g["edges"][:, :3]), r"edges: shape \(3, 3, 4, 2\), expected \(3, 4, 4, C\)"),
        (lambda g: g.update(ref_nodes=g["ref_nodes"][..., :2]), r"ref_nodes: shape \(3, 4, 2\), expected \(3, 4, 3\)"),
        (lambda g: g.update(ref_edges=g["ref_edges"][0]), r"ref_edges: shape \(4, 4, 2\), expected"),
        (lambda g: g.update(mask=g["mask"][:, :3]), r"mask: shape \(3, 3\), expected \(3, 4\)"),
        (lambda g: g.update(mask=g["mask"].float()), "mask: dtype torch.float32, expected torch.bool"),
        (lambda g: g.update(nodes=g["nodes"].long()), "nodes: dtype torch.int64, expected probabilities"),
        (lambda g: g.update(direction="both"), "direction: 'both', expected reverse or forward"),
    ],
)
def test_what_is_no_posterior_is_refused_by_name(change: Any, said: str) -> None:
    given = arguments()
    posterior_kl(**given)
    change(given)
    with pytest.raises(ValueError, match=said):
        posterior_kl(**given)


def test_log_probabilities_are_refused() -> None:
    given = arguments()
    with pytest.raises(ValueError, match="nodes: least entry -"):
        posterior_kl(**given | {"nodes": given["nodes"].log()})


# ---------------------------------------------------------------- graph policies


def absorbing_policy(seed: int) -> GraphPolicy:
    """A policy whose states have a mask class, so that its tables are wider than its clean classes."""
    config = GraphTransformerConfig(4, 3, 3, 2, layers=1, heads=1, width=8, edge_width=8, global_width=8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = GraphTransformer(config)
    kernels = D3PM(absorbing(3, CosineSchedule())), D3PM(absorbing(2, LinearSchedule()))
    return GraphPolicy(network, *kernels, [0.0, 0.0, 0.3, 0.3, 0.4], num_steps=4)


@pytest.mark.parametrize("make", [lambda seed: tiny_policy(seed=seed), absorbing_policy], ids=["uniform", "absorbing"])
def test_posteriors_of_a_policy_give_the_kl_of_the_packed_form(make: Callable[[int], GraphPolicy]) -> None:
    policy, reference = make(0).double(), make(1).double()
    rollout = policy.sample([Context(k) for k in range(6)], generator=torch.Generator().manual_seed(0))
    steps = torch.tensor([[0, 2], [1, 3], [0, 1], [2, 3], [0, 3], [1, 2]])
    for chosen in (None, steps):
        own, ref = policy.posteriors(rollout, chosen), reference.posteriors(rollout, chosen)
        scores = score_sites(policy.sites(rollout, chosen), reference.sites(rollout, chosen))
        for direction, wanted in (("reverse", scores.kl), ("forward", scores.kl_forward)):
            assert wanted is not None
            found = posterior_kl(own.nodes, own.edges, ref.nodes, ref.edges, own.mask, direction=direction)  # type: ignore[arg-type]
            torch.testing.assert_close(found.per_graph.unflatten(0, wanted.shape[:2]), wanted.sum(-1), rtol=0, atol=1e-12)
            assert float(wanted.detach().sum()) > 1e-4
    gradients = [
        torch.autograd.grad(kl.sum(), tuple(policy.parameters()), retain_graph=True, materialize_grads=True, allow_unused=True)
        for kl in (posterior_kl(own.nodes, own.edges, ref.nodes, ref.edges, own.mask).per_graph, scores.kl)
        if kl is not None
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_the_dense_form_is_refused_where_the_packed_one_is_expected() -> None:
    policy = tiny_policy()
    rollout = policy.sample([Context(k, {"num_nodes": 4}) for k in range(3)], generator=torch.Generator().manual_seed(0))
    found = policy.posteriors(rollout, torch.full((3, 1), 2))
    both = found.mask[:, :, None] & found.mask[:, None] & ~torch.eye(4, dtype=torch.bool)
    with torch.no_grad(), pytest.raises(ValueError, match="each pair counts twice"):
        score_sites([Sites(safe_log(found.edges), torch.zeros(both.shape, dtype=torch.long), both)])
