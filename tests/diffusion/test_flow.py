"""Flow kernels against loops over the published rates, path marginals, stochastic steps and the conformance kit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.stats import chi2

from discrete_grpo import group_contexts
from discrete_grpo.diffusion import choices
from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import Noise, absorbing
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule, PolydecDistortion
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.testing import check_policy
from tests.toys import node_classes, tiny_network

PRIORS = {
    "full": ((0.5, 0.2, 0.3), 3),
    "zero mass": ((0.6, 0.0, 0.4), 3),
    "mask": ((0.0, 0.0, 1.0), 2),
    "uniform": ((0.25,) * 4, 4),
}
TIMES = [(1.0, 0.9), (0.8, 0.75), (0.5, 0.2), (0.05, 0.0)]


def path(prior: tuple[float, ...], kappa: float, c: int) -> list[float]:
    return [kappa * (z == c) + (1 - kappa) * p for z, p in enumerate(prior)]


def euler_row(prior: tuple[float, ...], kappa: float, step: float, z: int, c: int, eta: float, omega: float) -> list[float]:
    """A row of DeFoG's step given c, written out."""
    p, k_range = path(prior, kappa, c), range(len(prior))
    if kappa + step >= 1:
        return [float(k == c) for k in k_range]
    slope = [(k == c) - prior[k] for k in k_range]
    reached = [x > 0 for x in path(prior, max(kappa, 1e-6), c)]  # their first step is at 1e-6
    support, row = sum(reached), [0.0] * len(prior)
    for k in k_range:
        if k != z and p[z] > 0 and reached[k]:
            rate = max(0.0, slope[k] - slope[z]) / (support * p[z]) + eta * p[k]
            rate += omega * (k == c) * (c != z) / (support * p[z])
            row[k] = rate * step if rate <= 1e5 else 0.0
    row[z] = max(0.0, 1 - sum(row))
    return [x / sum(row) for x in row]


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(("t", "s"), TIMES)
@pytest.mark.parametrize(("eta", "omega"), [(0.0, 0.0), (5.0, 0.0), (0.0, 0.3), (40.0, 0.1)])
def test_euler_tables_equal_the_rates_written_out(prior: str, t: float, s: float, eta: float, omega: float) -> None:
    p0, clean = PRIORS[prior]
    table = FlowEuler(Noise(p0, LinearSchedule(), clean), eta, omega).table(t, s)
    for z in range(len(p0)):
        for c in range(clean):
            row = euler_row(p0, 1 - t, t - s, z, c, eta, omega)
            torch.testing.assert_close(table[z, c], torch.tensor(row, dtype=torch.float64), rtol=0, atol=1e-12)


def kernels(prior: str, schedule: Any) -> list[Any]:
    p0, clean = PRIORS[prior]
    return [FlowInterpolation(Noise(p0, schedule, clean)), FlowEuler(Noise(p0, schedule, clean), 3.0, 0.2)]


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("schedule", [LinearSchedule(), CosineSchedule()])
@pytest.mark.parametrize("which", [0, 1])
def test_transitions_are_the_tables_averaged_over_the_clean_class(prior: str, schedule: Any, which: int) -> None:
    kernel = kernels(prior, schedule)[which]
    generator = torch.Generator().manual_seed(0)
    p_clean = torch.rand(4, 5, kernel.noise.num_clean, generator=generator, dtype=torch.float64)
    p_clean = p_clean / p_clean.sum(-1, keepdim=True)
    state = torch.randint(0, kernel.noise.num_states, (4, 5), generator=generator)
    t, s = (torch.tensor(x, dtype=torch.float64) for x in zip(*TIMES, strict=True))
    found = kernel.transition(p_clean, state, t, s)
    for b in range(4):
        rows = kernel.table(float(t[b]), float(s[b]))[state[b]]
        torch.testing.assert_close(found[b], torch.einsum("nc,nck->nk", p_clean[b], rows), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(-1), torch.ones(4, 5, dtype=torch.float64), rtol=0, atol=1e-12)
    assert bool((found >= 0).all())


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(("t", "s"), TIMES)
def test_interpolation_carries_the_path_exactly(prior: str, t: float, s: float) -> None:
    kernel = kernels(prior, CosineSchedule())[0]
    now, later = (float(CosineSchedule().alpha_bar(torch.tensor(x, dtype=torch.float64))) for x in (t, s))
    for c in range(kernel.noise.num_clean):
        start, end = (torch.tensor(path(kernel.noise.prior, x, c), dtype=torch.float64) for x in (now, later))
        torch.testing.assert_close(start @ kernel.table(t, s)[:, c], end, rtol=0, atol=1e-12)


@pytest.mark.parametrize("eta", [0.0, 4.0])
@pytest.mark.parametrize("prior", PRIORS)
def test_euler_steps_that_need_no_clamp_carry_the_path_exactly(prior: str, eta: float) -> None:
    """dp_t/dκ is constant on a linear path, so Euler's method has no error there."""
    p0, clean = PRIORS[prior]
    kernel = FlowEuler(Noise(p0, LinearSchedule(), clean), eta)
    for c in range(clean):
        mass = torch.tensor(path(p0, 0.1, c), dtype=torch.float64)
        for k in range(70):
            mass = mass @ kernel.table(0.9 - 0.01 * k, 0.9 - 0.01 * (k + 1))[:, c]
        torch.testing.assert_close(mass, torch.tensor(path(p0, 0.8, c), dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("which", [0, 1])
def test_a_million_steps_that_draw_the_clean_class_first(which: int) -> None:
    kernel, t, s = kernels("full", LinearSchedule())[which], 0.6, 0.5
    p_clean, z, n = torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64), 2, 1_000_000
    generator = torch.Generator().manual_seed(0)
    clean = torch.multinomial(p_clean, n, replacement=True, generator=generator)
    counts = torch.zeros(3, dtype=torch.float64)
    for c in range(3):
        size = int((clean == c).sum())
        drawn = torch.multinomial(kernel.table(t, s)[z, c], size, replacement=True, generator=generator)
        counts += torch.bincount(drawn, minlength=3)
    times = (torch.tensor([x], dtype=torch.float64) for x in (t, s))
    expected = kernel.transition(p_clean[None, None], torch.tensor([[z]]), *times)[0, 0] * n
    assert chi2.sf(float(((counts - expected) ** 2 / expected).sum()), 2) > 1e-3


@pytest.mark.parametrize("which", [0, 1])
def test_noise_has_the_law_of_the_path(which: int) -> None:
    kernel = kernels("zero mass", LinearSchedule())[which]
    x0 = torch.ones(1, 200_000, dtype=torch.long)
    drawn = kernel.noise.sample(x0, torch.tensor([0.7]), torch.Generator().manual_seed(0))
    share = torch.bincount(drawn[0], minlength=3).double() / drawn.numel()
    torch.testing.assert_close(share, torch.tensor(path(kernel.noise.prior, 0.3, 1), dtype=torch.float64), rtol=0, atol=0.005)
    assert torch.equal(kernel.noise.sample(x0, torch.tensor([0.0])), x0)
    assert kernel.noise.initial().tolist() == list(kernel.noise.prior)


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_graph_policy_with_a_flow_kernel_passes_the_kit(which: int) -> None:
    nodes, edges = kernels("full", CosineSchedule())[which], kernels("full", CosineSchedule())[which]
    pairs = type(edges)(Noise((0.6, 0.4), CosineSchedule(), 2))
    network = tiny_network()
    policy = GraphPolicy(network, nodes, pairs, (0.0, 0.0, 0.5, 0.5), num_steps=4, decode=node_classes)
    check_policy(policy, group_contexts(3, 3), samples=600).raise_on_failure()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prior": (0.5, 0.2)}, "prior: "),
        ({"num_clean": 4}, "num_clean: 4, expected 1 to 3"),
        ({"eta": -1.0}, "eta: -1.0, expected at least 0"),
        ({"omega": float("nan")}, "omega: nan"),
    ],
)
def test_arguments_out_of_range_are_named(options: dict[str, Any], said: str) -> None:
    noise: dict[str, Any] = {"prior": (0.5, 0.2, 0.3), "schedule": LinearSchedule(), "num_clean": 3}
    noise |= {name: value for name, value in options.items() if name in noise}
    rates = {name: value for name, value in options.items() if name not in noise}
    with pytest.raises(ValueError, match=said):
        FlowEuler(Noise(**noise), **rates)
    with pytest.raises(ValueError, match=r"s: 0.5, expected 0 to 0.2 \(t\)"):
        FlowEuler(Noise((0.5, 0.5), LinearSchedule(), 2)).table(0.2, 0.5)


def test_the_kernels_of_a_mask_agree() -> None:
    """D3PM towards a mask, interpolation and Euler steps are one kernel for masked sites; D3PM alone keeps a class that it drew."""
    like = D3PM(absorbing(3, LinearSchedule()))
    for name in ("flow", "flow_euler"):
        other = choices.make_kernel(name, like.noise)
        p = torch.rand(6, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        p = p / p.sum(-1, keepdim=True)
        state = torch.randint(4, (6, 4), generator=torch.Generator().manual_seed(2))
        times = [torch.linspace(a, b, 6, dtype=torch.float64) for a, b in ((1.0, 0.1), (0.9, 0.0))]
        expected = like.transition(p, state, *times)
        known = state < 3
        torch.testing.assert_close(other.transition(p, state, *times)[~known], expected[~known], rtol=0, atol=1e-12)
        kept = torch.nn.functional.one_hot(state, 4).double()
        torch.testing.assert_close(expected[known], kept[known], rtol=0, atol=1e-12)
        assert not torch.allclose(other.transition(p, state, *times)[known], kept[known])  # the last step ends in the prediction
        sure = (p.log() + like.noise.evidence(state, times[0])).softmax(-1)  # as with precondition
        known[0] = False  # all sites are masked at t = 1
        torch.testing.assert_close(other.transition(sure, state, *times)[known], kept[known], rtol=0, atol=1e-12)
    r = 0.1 / 0.6
    row = like.transition(torch.tensor([[[0.2, 0.3, 0.5]]]), torch.tensor([[3]]), torch.tensor([0.6]), torch.tensor([0.5]))[0, 0]
    torch.testing.assert_close(row, torch.tensor([0.2 * r, 0.3 * r, 0.5 * r, 1 - r]))


def test_choices_keep_the_noise_and_name_what_is_wrong() -> None:
    marginal = choices.make_noise("marginal", (0.25, 0.75), choices.make_schedule("linear"))
    assert isinstance(marginal, Noise)
    assert marginal.prior == (0.25, 0.75)
    euler = choices.make_kernel("flow_euler", marginal, eta=2.0, omega=0.1)
    assert euler == FlowEuler(Noise((0.25, 0.75), LinearSchedule(), 2), 2.0, 0.1)
    assert choices.make_kernel("d3pm", euler.noise) == D3PM(marginal)
    assert choices.make_noise("uniform", (0.1, 0.9), CosineSchedule()).prior == (0.5, 0.5)
    assert choices.make_noise("absorbing", (0.1, 0.9), CosineSchedule()).num_states == 3
    assert choices.make_distortion("identity") is None
    assert choices.make_distortion("polydec") == PolydecDistortion()
    for call, said in (
        (lambda: choices.make_kernel("ddpm", marginal), "kernel: 'ddpm', expected one of d3pm, flow"),  # type: ignore[arg-type]
        (lambda: choices.make_kernel("flow", marginal, eta=1.0), "eta: 1.0, expected 0 with kernel flow"),
        (lambda: choices.make_noise("gauss", (1.0,), CosineSchedule()), "noise: 'gauss'"),  # type: ignore[arg-type]
        (lambda: choices.make_schedule("cos"), "schedule: 'cos', expected one of cosine, linear"),  # type: ignore[arg-type]
        (lambda: choices.make_distortion("poly"), "distortion: 'poly'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=said):
            call()


def test_a_rate_from_a_class_of_almost_no_mass_is_zero() -> None:
    table = FlowEuler(Noise((0.5 - 1e-8, 1e-8, 0.5), LinearSchedule(), 3)).table(0.5, 0.4)
    assert table[1, 0].tolist() == [0.0, 1.0, 0.0]  # to class 0 by a rate of about 3e7
    assert table[2, 0].tolist() == pytest.approx([0.4 / 3, 0.2 / 3, 0.8], abs=1e-6)
