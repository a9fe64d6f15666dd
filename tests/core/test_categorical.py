"""Log-prob, entropy, exact KL and drawing, against closed forms, loops and frequencies."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from discrete_grpo.core.categorical import Sites, entropy, gather, kl_divergence, safe_log, sample, score_sites
from discrete_grpo.domains.graphs import symmetrise, upper
from tests import oracles

NODES = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.3, -1.0]], dtype=torch.float64)
NODES_REFERENCE = torch.tensor([[0.8, 1.5, 0.9], [0.2, 0.0, -0.5]], dtype=torch.float64)
EDGE = torch.tensor([[0.1, -0.4]], dtype=torch.float64)
EDGE_REFERENCE = torch.zeros(1, 2, dtype=torch.float64)


def tables(*shape: int, seed: int = 0, holes: bool = True) -> Tensor:
    """Random log-probability tables, some classes without mass."""
    p = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if holes:
        p[..., seed % shape[-1]] *= torch.rand(shape[:-1], generator=torch.Generator().manual_seed(seed + 1)) > 0.5
    return safe_log(p / p.sum(-1, keepdim=True))


def test_closed_form_kl_values() -> None:
    nodes = kl_divergence(NODES.log_softmax(-1), NODES_REFERENCE.log_softmax(-1))
    edge = kl_divergence(EDGE.log_softmax(-1), EDGE_REFERENCE.log_softmax(-1))
    assert nodes.tolist() == pytest.approx([0.0556359750, 0.0474798035], abs=1e-10)
    assert edge.tolist() == pytest.approx([0.0302998620], abs=1e-10)
    assert float(nodes.sum() + edge.sum()) == pytest.approx(0.1334156405, abs=1e-10)


def test_kl_agrees_with_monte_carlo() -> None:
    log_p, log_q = NODES.log_softmax(-1), NODES_REFERENCE.log_softmax(-1)
    drawn = sample(log_p.exp().expand(500_000, -1, -1), torch.Generator().manual_seed(0))
    gap = gather(log_p.expand(500_000, -1, -1), drawn) - gather(log_q.expand(500_000, -1, -1), drawn)
    error = 4 * gap.std(0) / math.sqrt(len(gap))
    assert ((gap.mean(0) - kl_divergence(log_p, log_q)).abs() < error).all()


@pytest.mark.parametrize("seed", range(4))
def test_entropy_and_both_kls_are_the_loops(seed: int) -> None:
    log_p, log_q = tables(6, 4, seed=seed), tables(6, 4, seed=seed + 10, holes=False)
    for p, q in ((log_p, log_q), (log_q, log_p), (log_p, log_p)):
        wanted = [oracles.kl(a, b) for a, b in zip(p.exp().tolist(), q.exp().tolist(), strict=True)]
        assert kl_divergence(p, q).tolist() == pytest.approx(wanted, abs=1e-14)
    assert entropy(log_p).tolist() == pytest.approx([oracles.entropy(p) for p in log_p.exp().tolist()], abs=1e-14)


def test_kl_is_zero_between_equals_positive_between_others_and_infinite_where_the_other_has_no_mass() -> None:
    log_p, log_q = tables(200, 5, seed=2), tables(200, 5, seed=3, holes=False)
    assert (kl_divergence(log_p, log_p) == 0).all()
    assert (kl_divergence(log_p, log_q) > 0).all()
    some = torch.tensor([0.5, 0.5, 0.0]).log(), torch.tensor([1.0, 0.0, 0.0]).log()
    assert kl_divergence(*some) == math.inf
    assert kl_divergence(some[1], some[0]) == pytest.approx(math.log(2))


def test_classes_without_mass_give_no_nan_gradient() -> None:
    logits = torch.tensor([[0.5, -1.0, 2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([[0.0, 1.0, 0.3, 5.0]], dtype=torch.float64)
    hole = torch.tensor([True, True, True, False])

    def table(x: Tensor) -> Tensor:
        p = x.softmax(-1) * hole
        return safe_log(p / p.sum(-1, keepdim=True))

    for value in (kl_divergence(table(logits), table(other)), kl_divergence(table(other), table(logits)), entropy(table(logits))):
        (found,) = torch.autograd.grad(value.sum(), logits)
        assert torch.isfinite(found).all()
        assert found[0, 3] == pytest.approx(0.0, abs=1e-15)
        assert found.abs().sum() > 1e-3
    p, q = (x[0, :3].softmax(-1).tolist() for x in (logits.detach(), other))  # d KL / d logit_c = p_c (log p_c/q_c - KL)
    whole = oracles.kl(p, q)
    (found,) = torch.autograd.grad(kl_divergence(table(logits), table(other)).sum(), logits)
    wanted = [a * (math.log(a / b) - whole) for a, b in zip(p, q, strict=True)]
    assert found[0, :3].tolist() == pytest.approx(wanted, abs=1e-12)
    (at_equality,) = torch.autograd.grad(kl_divergence(table(logits), table(logits.detach())).sum(), logits)
    assert at_equality.abs().max() < 1e-15


def test_kl_gradient_is_the_expected_score_times_log_ratio() -> None:
    """∇KL(π‖ref) = E_π[∇log π (log π - log ref)], what in-loss k1 (whose own gradient is 0) gets wrong."""
    logits = NODES[:1].clone().requires_grad_()
    log_p, log_q = logits.log_softmax(-1), NODES_REFERENCE[:1].log_softmax(-1)
    (exact,) = torch.autograd.grad(kl_divergence(log_p, log_q).sum(), logits, retain_graph=True)
    wanted = torch.zeros_like(exact)
    for c in range(3):
        (score,) = torch.autograd.grad(log_p[0, c], logits, retain_graph=True)
        wanted += (log_p[0, c].exp() * score * (log_p[0, c] - log_q[0, c])).detach()
    torch.testing.assert_close(exact, wanted, rtol=0, atol=1e-14)


def test_safe_log_is_log_with_a_zero_gradient_at_zero() -> None:
    p = torch.tensor([1.0, 0.25, 0.0, 1e-30], requires_grad=True)
    value = safe_log(p)
    assert value.tolist() == pytest.approx([0.0, math.log(0.25), -math.inf, math.log(1e-30)], rel=1e-6)
    (found,) = torch.autograd.grad(value[p > 0].sum() + 0.0 * value[2].detach().exp(), p)
    assert found.tolist() == pytest.approx([1.0, 4.0, 0.0, 1e30], rel=1e-6)
    (zero,) = torch.autograd.grad(safe_log(p).exp().sum(), p)
    assert torch.isfinite(zero).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_draws_have_the_frequencies_of_the_table(dtype: torch.dtype, scale: float) -> None:
    p = torch.tensor([[0.1, 0.0, 0.6, 0.3, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0], [0.2, 0.2, 0.2, 0.2, 0.2]], dtype=dtype)
    drawn = sample((scale * p).expand(40_000, -1, -1), torch.Generator().manual_seed(1))
    for row, column in zip(p, drawn.unbind(1), strict=True):
        counts = torch.bincount(column, minlength=5).double()
        assert counts[row == 0].sum() == 0
        if int((row > 0).sum()) > 1:
            assert (
                chisquare(counts[row > 0].numpy(), (row[row > 0].double() / row.double().sum() * len(drawn)).numpy()).pvalue > 1e-3
            )


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.5, 1 - 2**-24])
def test_no_uniform_number_draws_a_class_without_mass(uniform: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero, a number equal to a partial sum, and the largest float32 below one are the traps of inversion."""
    monkeypatch.setattr(torch, "rand", lambda shape, **options: torch.full(shape, uniform, dtype=options["dtype"]))
    p = torch.tensor(
        [[0, 0.25, 0, 0.25, 0, 0.5, 0], [0, 0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0, 0], [1 / 7] * 7, [0, 0, 0, 0, 0, 0, 3]]
    )
    smallest = (p > 0) * 1.4e-45  # times a number just below one, it is itself again
    for table in (p, p / 3, p * 1e-30, p.double(), smallest):
        drawn = sample(table)
        assert (table.gather(-1, drawn[:, None]) > 0).all()
    tiny = torch.tensor([[1.0, 1e-12, 0.0]])  # lost in the sum: never drawn is fine, class 2 is not
    assert int(sample(tiny)) in (0, 1)


def test_draws_follow_the_generator() -> None:
    p = torch.rand(50, 4, generator=torch.Generator().manual_seed(0))
    one, same, other = (sample(p, torch.Generator().manual_seed(k)) for k in (4, 4, 5))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def make(b: int, s: int, u: int, c: int, seed: int) -> Sites:
    g = torch.Generator().manual_seed(seed)
    log_p = tables(b, s, u, c, seed=seed, holes=False)
    return Sites(log_p, torch.randint(c, (b, s, u), generator=g), torch.rand(b, s, u, generator=g) < 0.6)


def test_scores_are_laid_end_to_end_and_equal_the_loops() -> None:
    kinds, reference = [make(2, 3, 4, 3, 0), make(2, 3, 5, 2, 1)], [make(2, 3, 4, 3, 2), make(2, 3, 5, 2, 3)]
    scores = score_sites(kinds, reference)
    assert scores.kl is not None
    assert scores.kl_forward is not None
    for b in range(2):
        for s in range(3):
            for u in range(9):
                kind, k = (0, u) if u < 4 else (1, u - 4)
                own, ref = kinds[kind], reference[kind]
                found = [float(x[b, s, u]) for x in (scores.logp, scores.entropy, scores.kl, scores.kl_forward)]
                p, q = own.log_probs[b, s, k].exp().tolist(), ref.log_probs[b, s, k].exp().tolist()
                values = [math.log(p[int(own.action[b, s, k])]), oracles.entropy(p), oracles.kl(p, q), oracles.kl(q, p)]
                on = bool(own.mask[b, s, k])
                assert bool(scores.mask[b, s, u]) == on
                assert found == pytest.approx(values if on else [0.0] * 4, abs=1e-13)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_garbage_at_masked_sites_reaches_neither_value_nor_gradient(garbage: float) -> None:
    clean = make(2, 3, 4, 3, 0)
    ref = Sites(make(2, 3, 4, 3, 1).log_probs, clean.action, clean.mask)

    def spoilt(sites: Sites) -> Sites:
        out = ~sites.mask
        log_p = sites.log_probs.masked_fill(out.unsqueeze(-1), garbage).requires_grad_()
        return Sites(log_p, sites.action.masked_fill(out, 99), sites.mask)

    results = []
    for own, other in ((clean, ref), (spoilt(clean), spoilt(ref))):
        own.log_probs.requires_grad_()
        scores = score_sites([own], [other])
        assert scores.kl is not None
        assert scores.kl_forward is not None
        total = (scores.logp + 2 * scores.entropy + 3 * scores.kl + 4 * scores.kl_forward).sum()
        results.append((total, *torch.autograd.grad(total, own.log_probs)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert (results[1][1][~clean.mask] == 0).all()


def test_actions_may_be_bytes_and_the_reference_gets_no_gradient() -> None:
    own, ref = make(1, 2, 3, 3, 0), make(1, 2, 3, 3, 1)
    ref.log_probs.requires_grad_()
    own.log_probs.requires_grad_()
    scores = score_sites([Sites(own.log_probs, own.action.to(torch.uint8), own.mask)], [ref])
    assert torch.equal(scores.logp, score_sites([own]).logp)
    assert scores.kl is not None
    scores.kl.sum().backward()
    assert ref.log_probs.grad is None
    assert score_sites([own]).kl is None


def test_a_reference_of_other_shapes_is_refused() -> None:
    one, two = make(1, 2, 3, 3, 0), make(1, 2, 4, 3, 1)
    for reference in ([two], [one, two], []):
        with pytest.raises(ValueError, match=r"^reference: tables of shapes .*, expected \[\(1, 2, 3, 3\)\]"):
            score_sites([one], reference)


def test_no_kind_of_site_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^sites: an empty list, expected at least one kind of site$"):
        score_sites([])


@pytest.mark.skipif(hasattr(score_sites, "__wrapped__"), reason="under jaxtyping's hook its own error comes first")
def test_one_kind_of_site_without_a_list_is_refused() -> None:
    one: Any = make(1, 2, 3, 3, 0)
    with pytest.raises(ValueError, match=r"^sites: Sites, expected a list with one entry per kind of site$"):
        score_sites(one)
    with pytest.raises(ValueError, match=r"^reference: Sites, expected a list with one entry per kind of site$"):
        score_sites([one], one)


# ---------------------------------------------------------------- what Sites refuses


def dense_edges(b: int, n: int, c: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Symmetric log-probabilities [B, N, N, C] and symmetric classes drawn from them."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(b, n, n, c, generator=g)
    log_p = (logits + logits.transpose(1, 2)).log_softmax(-1)
    return log_p, symmetrise(sample(upper(log_p).exp(), g), n)


@pytest.mark.parametrize(("b", "n"), [(1, 2), (1, 3), (4, 3), (2, 9), (2, 30)])
@pytest.mark.parametrize("diagonal", [False, True])
def test_a_full_edge_matrix_is_refused_and_its_packed_form_is_not(b: int, n: int, diagonal: bool) -> None:
    log_p, edges = dense_edges(b, n)
    exists = torch.arange(n) < torch.tensor([n, n - 1, n, n][:b])[:, None] if n > 2 else torch.ones(b, n, dtype=torch.bool)
    mask = exists[:, :, None] & exists[:, None]
    mask = mask if diagonal else mask & ~torch.eye(n, dtype=torch.bool)
    if n > 2:
        with pytest.raises(
            ValueError, match=r"each pair counts twice.*discrete_grpo.domains.graphs.upper.*discrete_grpo.posterior_kl"
        ):
            Sites(log_p, edges, mask)
        with pytest.raises(ValueError, match="each pair counts twice"):  # garbage where no pair is
            Sites(torch.where(mask[..., None], log_p, torch.nan), torch.where(mask, edges, 7), mask)
        with pytest.raises(ValueError, match="each pair counts twice"):  # both directions drawn
            Sites(log_p, sample(log_p.exp(), torch.Generator().manual_seed(1)), mask)
    Sites(upper(log_p)[:, None], upper(edges)[:, None], upper(mask)[:, None])


def test_a_full_edge_matrix_of_tables_that_are_all_alike_is_refused_when_there_are_many_pairs() -> None:
    log_p = torch.full((4, 4, 4, 2), 0.5).log()
    edges = symmetrise(sample(upper(log_p).exp(), torch.Generator().manual_seed(0)), 4)
    mask = (~torch.eye(4, dtype=torch.bool)).expand(4, 4, 4)
    with pytest.raises(ValueError, match="each pair counts twice"):
        Sites(log_p, edges, mask)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_policies_with_as_many_steps_as_sites_are_let_pass(size: int) -> None:
    """Equal tables everywhere, equal tables per step, per site or per row, and drawn tables: none is taken for edges."""
    g = torch.Generator().manual_seed(size)
    on = torch.ones(6, size, size, dtype=torch.bool)
    logits = [
        torch.zeros(1, 1, 1, 3),
        torch.randn(1, size, 1, 3, generator=g),
        torch.randn(1, 1, size, 3, generator=g),
        torch.randn(6, 1, 1, 3, generator=g),
        torch.randn(6, size, size, 3, generator=g),
    ]
    for z in logits:
        log_p = z.expand(6, size, size, 3).log_softmax(-1)
        for action in (torch.zeros(6, size, size, dtype=torch.long), sample(log_p.exp(), g)):
            Sites(log_p, action, on)
            Sites(log_p, action, torch.rand(6, size, size, generator=g) < 0.5)
    tilted = torch.zeros(1, size, size, 3)  # tables alike but for rounding
    tilted[..., 0] = 1e-5 * torch.arange(size * size).view(size, size)
    Sites(tilted.log_softmax(-1), torch.zeros(1, size, size, dtype=torch.long), on[:1])


def test_only_as_many_steps_as_sites_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """No value is read, so nothing waits for an accelerator, unless S = U > 1."""
    seen: list[tuple[Tensor, ...]] = []

    def look(*given: Tensor) -> bool:
        seen.append(given)
        return False

    monkeypatch.setattr("discrete_grpo.core.categorical._is_edge_matrix", look)
    for s, u in [(3, 2), (1, 1), (2, 3), (1, 4), (4, 1), (2, 2)]:
        Sites(torch.zeros(1, s, u, 1), torch.zeros(1, s, u, dtype=torch.long), torch.ones(1, s, u, dtype=torch.bool))
    assert [x[0].shape for x in seen] == [(1, 2, 2, 1)]


@pytest.mark.skipif(hasattr(score_sites, "__wrapped__"), reason="under jaxtyping's hook its own error comes first")
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"log_probs": torch.zeros(2, 5, 4, 4, 3)}, r"log_probs: shape \(2, 5, 4, 4, 3\), expected \[B, S, U, C\].*graphs.upper"),
        ({"log_probs": torch.zeros(2, 5, 3)}, r"log_probs: shape \(2, 5, 3\), expected \[B, S, U, C\]"),
        ({"action": torch.zeros(2, 5, dtype=torch.long)}, r"action: shape \(2, 5\), expected \(2, 5, 4\)"),
        ({"action": torch.zeros(2, 5, 4)}, "action: dtype torch.float32, expected an integer"),
        ({"mask": torch.ones(2, 5, 1, dtype=torch.bool)}, r"mask: shape \(2, 5, 1\), expected \(2, 5, 4\)"),
        ({"mask": torch.ones(2, 5, 4)}, "mask: dtype torch.float32, expected torch.bool"),
    ],
)
def test_wrong_shapes_and_dtypes_of_sites_are_named(changed: dict[str, Tensor], said: str) -> None:
    given: dict[str, Any] = {
        "log_probs": torch.zeros(2, 5, 4, 3),
        "action": torch.zeros(2, 5, 4, dtype=torch.uint8),
        "mask": torch.ones(2, 5, 4, dtype=torch.bool),
    }
    Sites(**given)
    with pytest.raises(ValueError, match=said):
        Sites(**given | changed)


@pytest.mark.parametrize("asked", [True, False])
def test_the_forward_kl_has_a_gradient_only_if_asked_for(asked: bool) -> None:
    own, other = make(2, 3, 4, 5, 0), make(2, 3, 4, 5, 1)
    own.log_probs.requires_grad_()
    scores = score_sites([own], [other], forward_gradient=asked)
    assert scores.kl is not None
    assert scores.kl_forward is not None
    assert (scores.logp.requires_grad, scores.kl.requires_grad) == (True, True)
    assert (scores.entropy.requires_grad, scores.kl_forward.requires_grad) == (False, asked)
