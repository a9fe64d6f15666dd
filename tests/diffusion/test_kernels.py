"""Kernels against Bayes by enumeration of paths, against their own table, and against draws."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import Noise, absorbing, marginal, uniform
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from tests import oracles

SCHEDULES = {"cosine": (CosineSchedule(), oracles.cosine_alpha_bar), "linear": (LinearSchedule(), oracles.linear_alpha_bar)}
MAKERS = {
    "uniform": lambda schedule: D3PM(uniform(4, schedule)),
    "marginal": lambda schedule: D3PM(marginal([6.0, 3.0, 1.0], schedule)),  # need not be normalised
    "zero mass": lambda schedule: D3PM(marginal([0.5, 0.0, 0.3, 0.2], schedule)),
    "absorbing": lambda schedule: D3PM(absorbing(3, schedule)),
    "one class": lambda schedule: D3PM(uniform(1, schedule)),
}
PRIORS = {
    "uniform": ([0.25] * 4, 4),
    "marginal": ([0.6, 0.3, 0.1], 3),
    "zero mass": ([0.5, 0.0, 0.3, 0.2], 4),
    "absorbing": ([0.0, 0.0, 0.0, 1.0], 3),
    "one class": ([1.0], 1),
}
TIMES = [
    (1.0, 0.98),
    (1.0, 0.5),
    (1.0, 0.0),
    (0.75, 0.5),
    (0.5, 0.25),
    (0.02, 0.0),
    (1e-6, 0.0),
    (0.3, 0.3),
    (0.0, 0.0),
    (1.0, 1.0),
]
CASES = list(itertools.product(MAKERS, SCHEDULES))
every_case = pytest.mark.parametrize(("name", "schedule"), CASES, ids=[f"{n}-{s}" for n, s in CASES])
times = pytest.mark.parametrize(("t", "s"), TIMES)


def kernel_of(name: str, schedule: str) -> D3PM:
    return MAKERS[name](SCHEDULES[schedule][0])


def bars(schedule: str, t: float, s: float) -> tuple[float, float]:
    alpha_bar = SCHEDULES[schedule][1]
    return alpha_bar(t), alpha_bar(s)


def f64(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def predictions(clean: int, seed: int = 0) -> Tensor:
    """Soft, nearly certain and one-hot predictions, one a row."""
    soft = torch.rand(3, clean, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.01
    sharp = torch.full((1, clean), 1e-9, dtype=torch.float64)
    sharp[0, 0] = 1.0
    return torch.cat([soft / soft.sum(-1, keepdim=True), sharp / sharp.sum(), torch.eye(clean, dtype=torch.float64)])


@every_case
@times
def test_a_reverse_step_is_bayes_by_enumeration(name: str, schedule: str, t: float, s: float) -> None:
    kernel, (prior, clean) = kernel_of(name, schedule), PRIORS[name]
    assert (kernel.noise.num_states, kernel.noise.num_clean) == (len(prior), clean)
    table = oracles.posterior(prior, clean, *bars(schedule, t, s))
    own = kernel.table(t, s)
    for z, p in itertools.product(range(len(prior)), predictions(clean)):
        found = kernel.transition(p[None], torch.tensor([z]), f64(t), f64(s))[0]
        wanted = oracles.reverse_step(p.tolist(), table[z], z, len(prior))
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)
        assert float(found.min()) >= 0
        assert float(found.sum()) == pytest.approx(1.0, abs=1e-12)
        mixture = p @ own[z]  # the kernel's own brute force, where every class with p > 0 can have led to z
        if float(mixture.sum()) > 0:
            torch.testing.assert_close(found, mixture / mixture.sum(), rtol=0, atol=1e-12)


@every_case
@times
def test_the_table_is_bayes_by_enumeration_and_zero_where_nothing_leads(name: str, schedule: str, t: float, s: float) -> None:
    kernel, (prior, clean) = kernel_of(name, schedule), PRIORS[name]
    rows = oracles.posterior(prior, clean, *bars(schedule, t, s))
    wanted = torch.tensor([[q if q is not None else [0.0] * len(prior) for q in row] for row in rows], dtype=torch.float64)
    torch.testing.assert_close(kernel.table(t, s), wanted, rtol=0, atol=1e-12)


@every_case
def test_times_may_differ_along_the_batch_and_sites_may_have_any_shape(name: str, schedule: str) -> None:
    kernel, clean = kernel_of(name, schedule), PRIORS[name][1]
    g = torch.Generator().manual_seed(3)
    t, s = torch.tensor(TIMES, dtype=torch.float64).unbind(-1)
    p = torch.rand(len(TIMES), 2, 5, clean, generator=g, dtype=torch.float64).softmax(-1)
    state = torch.randint(kernel.noise.num_states, p.shape[:-1], generator=g)
    together = kernel.transition(p, state, t, s)
    for b, (at, to) in enumerate(TIMES):
        torch.testing.assert_close(together[b], kernel.transition(p[b], state[b], f64(at), f64(to)), rtol=0, atol=1e-15)
    assert torch.equal(kernel.transition(p[:, 0, 0], state[:, 0, 0], t, s), together[:, 0, 0])
    single = kernel.transition(p.float(), state, t, s)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), together, rtol=0, atol=3e-6)


def test_a_class_that_cannot_have_led_here_is_left_out_and_the_rest_renormalised() -> None:
    kernel = D3PM(absorbing(3, LinearSchedule()))
    p = torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64)
    found = kernel.transition(p, torch.tensor([1]), f64(0.5), f64(0.25))  # class 1 shows, so class 1 it was
    assert found[0].tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["zero mass", "absorbing"])
def test_a_state_that_nothing_can_have_led_to_stays(name: str) -> None:
    kernel = kernel_of(name, "cosine")
    p = torch.zeros(1, kernel.noise.num_clean, dtype=torch.float64, requires_grad=True)
    p.data[0, 0] = 1.0  # class 0 for sure, but class 1 shows, and neither prior has mass there
    found = kernel.transition(p, torch.tensor([1]), f64(0.5), f64(0.25))
    assert found[0].tolist() == [0.0, 1.0, 0.0, 0.0]
    (gradient,) = torch.autograd.grad(found.sum(), p)
    assert torch.isfinite(gradient).all()


@every_case
def test_the_last_step_of_an_absorbing_or_any_kernel_returns_clean_classes_only(name: str, schedule: str) -> None:
    kernel = kernel_of(name, schedule)
    last = kernel.transition(
        predictions(kernel.noise.num_clean)[:1], torch.tensor([kernel.noise.num_states - 1]), f64(1.0), f64(0.0)
    )
    torch.testing.assert_close(last[0, : kernel.noise.num_clean], predictions(kernel.noise.num_clean)[0], rtol=0, atol=1e-12)
    assert float(last[0, kernel.noise.num_clean :].sum()) == 0.0


@every_case
def test_two_noising_steps_are_one(name: str, schedule: str) -> None:
    prior, _ = PRIORS[name]
    for t, s in TIMES:
        bar_t, bar_s = bars(schedule, t, s)
        two = oracles.product(oracles.noise_matrix(prior, bar_s), oracles.noise_matrix(prior, oracles.between(bar_t, bar_s)))
        wanted = torch.tensor(oracles.noise_matrix(prior, bar_t), dtype=torch.float64)
        torch.testing.assert_close(torch.tensor(two, dtype=torch.float64), wanted, rtol=0, atol=1e-14)


@every_case
@pytest.mark.parametrize("steps", [1, 3, 10])
def test_knowing_the_clean_class_the_chain_has_the_marginals_of_the_noise(name: str, schedule: str, steps: int) -> None:
    kernel, (prior, clean) = kernel_of(name, schedule), PRIORS[name]
    grid = [1 - k / steps for k in range(steps)] + [0.0]
    eye = torch.arange(len(prior))
    for c in range(clean):
        known = torch.nn.functional.one_hot(torch.tensor(c), clean).double().expand(len(prior), -1)
        now = kernel.noise.initial()
        for t, s in itertools.pairwise(grid):
            now = now @ kernel.transition(known, eye, f64(t), f64(s))
            wanted = oracles.noise_matrix(prior, SCHEDULES[schedule][1](s))[c]
            torch.testing.assert_close(now, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)
        assert now[c] == pytest.approx(1.0, abs=1e-12)


@every_case
@times
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_everywhere(name: str, schedule: str, t: float, s: float, dtype: torch.dtype) -> None:
    kernel = kernel_of(name, schedule)
    p = predictions(kernel.noise.num_clean).to(dtype).requires_grad_()
    for z in range(kernel.noise.num_states):
        found = kernel.transition(p, torch.full((len(p),), z), f64(t), f64(s))
        assert torch.isfinite(found).all()
        (gradient,) = torch.autograd.grad((found * torch.arange(1.0, kernel.noise.num_states + 1, dtype=dtype)).sum(), p)
        assert torch.isfinite(gradient).all()


def test_the_gradient_is_that_of_the_formula() -> None:
    kernel = kernel_of("zero mass", "cosine")
    p = predictions(4)[:3].requires_grad_()
    for z in range(4):
        assert torch.autograd.gradcheck(lambda q, z=z: kernel.transition(q, torch.full((3,), z), f64(0.6), f64(0.4)), (p,))


@every_case
@pytest.mark.parametrize("t", [0.0, 0.3, 0.8, 1.0])
def test_noise_has_the_frequencies_of_the_formula(name: str, schedule: str, t: float) -> None:
    kernel, (prior, clean) = kernel_of(name, schedule), PRIORS[name]
    g = torch.Generator().manual_seed(5)
    for c in range(clean):
        drawn = kernel.noise.sample(torch.full((40, 500), c), torch.full((40,), t), g)
        counts = torch.bincount(drawn.flatten(), minlength=len(prior)).double()
        wanted = torch.tensor(oracles.noise_matrix(prior, SCHEDULES[schedule][1](t))[c], dtype=torch.float64) * drawn.numel()
        assert counts[wanted == 0].sum() == 0
        if int((wanted > 0).sum()) > 1:
            assert chisquare(counts[wanted > 0].numpy(), wanted[wanted > 0].numpy()).pvalue > 1e-3


def test_noise_takes_a_time_a_row_and_scalars_and_is_reproducible() -> None:
    kernel = D3PM(absorbing(2, LinearSchedule()))
    x0 = torch.randint(2, (3, 1000), generator=torch.Generator().manual_seed(0))
    rows = kernel.noise.sample(x0, torch.tensor([0.0, 0.5, 1.0]), torch.Generator().manual_seed(1))
    masked = (rows == 2).double().mean(1)
    assert torch.equal(rows[0], x0[0])
    assert masked[2] == 1
    assert masked[1] == pytest.approx(0.5, abs=0.06)
    assert torch.equal(rows[1][rows[1] < 2], x0[1][rows[1] < 2])
    again = [kernel.noise.sample(x0, torch.tensor(0.5), torch.Generator().manual_seed(k)) for k in (1, 1, 2)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


def test_the_initial_distribution_is_the_noise_at_time_one() -> None:
    for name, (prior, _) in PRIORS.items():
        assert kernel_of(name, "cosine").noise.initial().tolist() == pytest.approx(prior)


def test_bad_arguments_are_named() -> None:
    schedule = LinearSchedule()
    for prior in ((), (0.5, 0.4), (1.5, -0.5), (math.nan, 1.0)):
        with pytest.raises(ValueError, match=r"^prior: .*, expected probabilities >= 0 that sum to 1"):
            Noise(prior, schedule, 1)
    for num_clean in (0, 3):
        with pytest.raises(ValueError, match=f"^num_clean: {num_clean}, expected 1 to 2"):
            Noise((0.5, 0.5), schedule, num_clean)
    with pytest.raises(ValueError, match=r"^num_classes: 0, expected at least 1"):
        uniform(0, schedule)
    with pytest.raises(ValueError, match=r"^num_classes: 0, expected at least 1"):
        absorbing(0, schedule)
    for zero in ([], [0.0, 0.0]):
        with pytest.raises(ValueError, match=r"^sum of probabilities: 0\.0, expected more than 0"):
            marginal(zero, schedule)
    with pytest.raises(ValueError, match=r"^sum of probabilities: nan, expected more than 0"):
        marginal([math.nan, 1.0], schedule)
    for t, s, said in (
        (0.2, 0.3, "s: 0.3, expected 0 to 0.2"),
        (1.1, 0.5, "t: 1.1, expected 0 to 1"),
        (0.5, -0.1, "s: -0.1, expected 0 to 0.5"),
    ):
        with pytest.raises(ValueError, match=f"^{said}"):
            D3PM(uniform(2, schedule)).table(t, s)


@every_case
@pytest.mark.parametrize("t", [0.02, 0.5, 0.98])
def test_evidence_is_what_a_site_says_of_itself(name: str, schedule: str, t: float) -> None:
    """Two sites with a joint distribution of their own, by summation: p(x_0^1|x_t) from p(x_0^1|x_t^2) and the evidence."""
    kernel, (prior, clean) = kernel_of(name, schedule), PRIORS[name]
    bar, _ = bars(schedule, t, 0.0)
    joint = torch.rand(clean, clean, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    m = torch.tensor(prior, dtype=torch.float64)
    eye = torch.eye(len(m), dtype=torch.float64)
    q = torch.stack([bar * eye[c] + (1 - bar) * m for c in range(clean)])  # [c, z]
    for z1, z2 in itertools.product(range(len(m)), repeat=2):
        both = joint * q[:, None, z1] * q[None, :, z2]
        if both.sum() == 0:
            continue
        rest = (joint * q[None, :, z2]).sum(1)
        found = (rest.log() + kernel.noise.evidence(torch.tensor([z1]), f64(t))[0]).softmax(0)
        torch.testing.assert_close(found, both.sum(1) / both.sum(), rtol=0, atol=1e-12)


def test_evidence_is_finite_at_both_ends() -> None:
    kernel = D3PM(marginal([0.5, 0.0, 0.5], LinearSchedule()))
    state = torch.tensor([[0, 1, 2]])
    assert (kernel.noise.evidence(state, f64(1.0)) == 0)[0, [0, 2]].all()
    assert kernel.noise.evidence(state, f64(0.0)).isfinite().all()
    assert kernel.noise.evidence(state, torch.tensor([0.0]).double())[0, 0].softmax(-1)[0] == 1


@pytest.mark.parametrize("kernel", [D3PM, FlowInterpolation, FlowEuler])
@pytest.mark.parametrize("noise", [uniform, absorbing])
def test_a_prediction_that_is_no_number_gives_no_probabilities(kernel: Any, noise: Any) -> None:
    step = kernel(noise(3, LinearSchedule()))
    p_clean = torch.tensor([[[0.2, 0.3, 0.5], [torch.nan] * 3]])
    found = step.transition(p_clean, torch.tensor([[2, 2]]), torch.tensor(0.5), torch.tensor(0.4))
    assert found[0, 0].sum() == pytest.approx(1.0)
    assert found[0, 1].isnan().any()


@pytest.mark.parametrize("kernel", [D3PM, FlowInterpolation, FlowEuler])
def test_one_site_per_row_needs_no_axis_of_sites(kernel: Any) -> None:
    step, times = kernel(uniform(3, LinearSchedule())), (torch.tensor(0.5), torch.tensor(0.4))
    p_clean, state = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.1, 0.3]]), torch.tensor([2, 1])
    found = step.transition(p_clean, state, *times)
    assert torch.equal(found, step.transition(p_clean[:, None], state[:, None], *times)[:, 0])
