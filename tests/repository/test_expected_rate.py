"""Graph-GRPO's clamp of the expected rate, a kernel of the benchmarks: its formula, and why policies have no such kernel."""

from __future__ import annotations

import pytest
import torch

from benchmarks.expected_rate import FlowExpectedRate
from benchmarks.kernel_comparison import EXPECTED_RATE, load
from discrete_grpo.core.categorical import kl_divergence, safe_log
from discrete_grpo.diffusion import choices
from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM, Kernel
from discrete_grpo.diffusion.noise import Noise, absorbing
from discrete_grpo.diffusion.schedules import LinearSchedule
from discrete_grpo.runs.checkpoint import CheckpointError, build, describe
from tests.diffusion.test_flow import PRIORS, path


def expected_rate(
    prior: tuple[float, ...], clean: int, p: list[float], z: int, kappa: float, eta: float, omega: float
) -> list[float]:
    """E_c R(k|z,c) by summing the three published rates over the clean class."""
    total = [0.0] * len(prior)
    for c in range(clean):
        reached, at = [x > 0 for x in path(prior, 0.5, c)], path(prior, kappa, c)
        slope = [(k == c) - prior[k] for k in range(len(prior))]
        for k in range(len(prior)):
            if k == z or not reached[z]:
                continue
            rate = eta * at[k]
            if at[z] > 0 and reached[k]:
                rate += (max(0.0, slope[k] - slope[z]) + omega * (k == c) * (c != z)) / (sum(reached) * at[z])
            total[k] += p[c] * rate
    return total


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("kappa", [0.05, 0.5, 0.95])
@pytest.mark.parametrize(("eta", "omega"), [(0.0, 0.0), (7.0, 0.0), (0.0, 0.4), (30.0, 0.9)])
def test_expected_rates_equal_the_sum_over_clean_classes(prior: str, kappa: float, eta: float, omega: float) -> None:
    p0, clean = PRIORS[prior]
    kernel = FlowExpectedRate(Noise(p0, LinearSchedule(), clean), eta, omega)
    p = torch.rand(clean, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    p = p / p.sum()
    wide = torch.nn.functional.pad(p, (0, len(p0) - clean)).expand(1, len(p0), -1)
    found = kernel.rate(wide, torch.arange(len(p0))[None], torch.tensor(kappa, dtype=torch.float64))[0]
    for z in range(len(p0)):
        row = torch.tensor(expected_rate(p0, clean, p.tolist(), z, kappa, eta, omega), dtype=torch.float64)
        keep = torch.arange(len(p0)) != z
        torch.testing.assert_close(found[z][keep], row[keep], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prior", PRIORS)
def test_the_clamp_of_the_expected_rate_differs_only_where_a_row_overflows(prior: str) -> None:
    p0, clean = PRIORS[prior]
    p = torch.rand(50, 1, clean, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p = p / p.sum(-1, keepdim=True)
    state = torch.randint(len(p0), (50, 1), generator=torch.Generator().manual_seed(2))
    state[torch.tensor(p0)[state] == 0] = len(p0) - 1  # a state the prior reaches
    both = [kind(Noise(p0, LinearSchedule(), clean)) for kind in (FlowEuler, FlowExpectedRate)]
    for t, s, same in ((0.9, 0.899, True), (0.02, 0.004, False)):
        times = [torch.full((50,), x, dtype=torch.float64) for x in (t, s)]
        mixture, clamped = (kernel.transition(p, state, *times) for kernel in both)
        torch.testing.assert_close(clamped.sum(-1), torch.ones(50, 1, dtype=torch.float64))
        if same:
            torch.testing.assert_close(mixture, clamped, rtol=0, atol=1e-12)
        elif prior == "full":
            assert not torch.allclose(mixture, clamped, atol=1e-3)
    last = both[1].transition(p, state, torch.tensor(0.1), torch.tensor(0.0))
    torch.testing.assert_close(last[..., :clean], p)


def test_tables_of_the_expected_rate_are_its_rows_of_sure_clean_classes() -> None:
    p0, clean = PRIORS["full"]
    table = FlowExpectedRate(Noise(p0, LinearSchedule(), clean), 2.0).table(0.5, 0.49)
    torch.testing.assert_close(table, FlowEuler(Noise(p0, LinearSchedule(), clean), 2.0).table(0.5, 0.49), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="eta: -1"):
        FlowExpectedRate(Noise(p0, LinearSchedule(), clean), -1.0)


def test_under_a_mask_it_is_the_one_masked_kernel() -> None:
    like = D3PM(absorbing(3, LinearSchedule()))
    kernel = FlowExpectedRate(like.noise)
    p = torch.rand(6, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p = p / p.sum(-1, keepdim=True)
    state = torch.full((6, 4), 3)
    times = [torch.linspace(a, b, 6, dtype=torch.float64) for a, b in ((1.0, 0.1), (0.9, 0.0))]
    torch.testing.assert_close(kernel.transition(p, state, *times), like.transition(p, state, *times), rtol=0, atol=1e-12)


def test_its_kl_is_infinite_where_the_clamp_acts_and_that_of_the_mixture_is_not() -> None:
    """From a rare state z, the expected rate leaves no mass on z under one network and some under another."""
    p0 = (0.05, 0.45, 0.5)
    sure, unsure = (torch.tensor([[p]], dtype=torch.float64) for p in ([0.01, 0.98, 0.01], [0.9, 0.05, 0.05]))
    at = torch.zeros(1, 1, dtype=torch.long), torch.tensor(0.5), torch.tensor(0.2)

    def kl(kernel: Kernel) -> float:
        return float(kl_divergence(*(safe_log(kernel.transition(p, *at)) for p in (unsure, sure))))

    assert kl(FlowExpectedRate(Noise(p0, LinearSchedule(), 3))) == float("inf")
    assert 0 < kl(FlowEuler(Noise(p0, LinearSchedule(), 3))) < 10


def test_no_policy_has_it_and_a_file_that_names_it_is_told_so() -> None:
    noise = absorbing(3, LinearSchedule())
    with pytest.raises(ValueError, match=r"^kernel: 'flow_expected_rate', expected one of d3pm, flow, flow_euler$"):
        choices.make_kernel("flow_expected_rate", noise)  # type: ignore[arg-type]
    spec = describe(FlowEuler(Noise((0.5, 0.5), LinearSchedule(), 2), 1.0))
    spec["class_path"] = "discrete_grpo.diffusion.flow.FlowExpectedRate"
    with pytest.raises(CheckpointError, match=r"FlowExpectedRate is no kernel of policies any more .*FlowEuler") as error:
        build(spec)
    assert "\n" not in str(error.value)


def test_the_comparison_runs_it_when_it_is_named() -> None:
    policy = load("planar-16", EXPECTED_RATE, 3)
    assert isinstance(policy.node_kernel, FlowExpectedRate)
    assert isinstance(policy.edge_kernel, FlowExpectedRate)
    assert policy.num_steps == 3
    assert isinstance(load("planar-16", "flow", 3).edge_kernel, FlowInterpolation)
