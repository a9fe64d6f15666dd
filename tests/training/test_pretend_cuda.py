"""The pretend CUDA device itself: what it refuses, counts and records; devices that are not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from discrete_grpo.core.categorical import sample
from discrete_grpo.models.connectivity import effective_resistance
from discrete_grpo.recipes.devices import to_device
from discrete_grpo.training.network import compile_network
from discrete_grpo.training.optim import adamw
from tests.pretend_cuda import CUDA, DeviceError, pretending
from tests.pretend_tensors import bare
from tests.toys import transformer_policy
from tests.training.pretend_cuda_parts import CONFIG


def test_the_device_refuses_what_cuda_refuses() -> None:
    with pretending() as cuda:
        x = torch.ones(2, 2, device="cuda")
        assert (x + 1).device == CUDA
        assert x.is_cuda
        for broken in (
            lambda: x + torch.ones(2, 2),
            lambda: torch.cat([x, torch.ones(2, 2)]),
            lambda: x.numpy(),
            lambda: torch.rand(2, device="cuda", generator=torch.Generator()),
            lambda: torch.rand(2, generator=cuda.generator()),
            lambda: x.uniform_(generator=torch.Generator()),
            lambda: torch.ones(2)[torch.zeros(1, dtype=torch.long, device="cuda")],
        ):
            with pytest.raises(DeviceError):
                broken()


def test_launches_waits_and_copies_are_counted() -> None:
    with pretending() as cuda:
        x = torch.arange(6.0).to("cuda").view(2, 3)
        with cuda.counting() as views:
            x.transpose(0, 1).unsqueeze(0).expand(4, -1, -1)
        with cuda.counting() as work:
            (x + 1).sum()
        assert (views.launches, work.launches) == (0, 2)
        for wait in (lambda: float(x[0, 0]), lambda: x[x > 1], lambda: x.nonzero(), lambda: x.cpu(), lambda: bool(x.any())):
            with cuda.counting() as found:
                wait()
            assert found.waits == 1
        for copy in (lambda: torch.ones(2).to("cuda"), lambda: torch.tensor([1, 2], device="cuda"), lambda: x[torch.tensor([0])]):
            with cuda.counting() as found:
                copy()
            assert (found.blocking_copies, found.waits) == (1, 0)
        with cuda.counting() as found:
            torch.ones(2).pin_memory().to("cuda", non_blocking=True)
        assert found.blocking_copies == 0


def test_places_are_lines_of_this_project() -> None:
    with pretending() as cuda, cuda.counting() as found:
        cuda.by_line = True
        sample(torch.ones(2, 3, device="cuda")).tolist()
        same = torch.ones(1, 3, 3, device="cuda", dtype=torch.bool)
        effective_resistance(same.float() - torch.eye(3, device="cuda"), same)
    assert any("core/categorical.py" in line for line in found.lines)
    assert any("models/connectivity.py" in line for line in found.lines)
    assert found.waits == 1  # tolist


def test_a_recorded_graph_repeats_its_operations_on_the_same_memory() -> None:
    with pretending() as cuda:
        x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            x.add_(1)
        assert bare(x).tolist() == [1.0] * 3  # recorded, not run
        with cuda.counting() as found:
            graph.replay()
            graph.replay()
        assert (found.launches, found.replays) == (2, 2)
        assert (bare(y).tolist(), bare(x).tolist()) == ([4.0] * 3, [3.0] * 3)
        for broken in (lambda: float(x[0]), lambda: torch.tensor([1.0], device="cuda"), lambda: torch.rand(3, device="cuda")):
            with pytest.raises(DeviceError), torch.cuda.graph(torch.cuda.CUDAGraph()):
                broken()


def test_the_compiler_records_steps_on_cuda_alone() -> None:
    def nothing(model: Any, inputs: Any) -> Any:
        return model.forward

    policy = transformer_policy()
    compile_network(policy, backend=nothing)
    assert not policy.record_steps
    with pretending() as cuda:
        there: Any = cuda.move(transformer_policy())
        compile_network(there, backend=nothing)
        assert there.record_steps


def test_weights_on_cuda_have_the_fused_optimizer() -> None:
    with pretending() as cuda:
        there = adamw(list(cuda.move(transformer_policy()).parameters()), CONFIG)
        here = adamw(list(transformer_policy().parameters()), CONFIG)
    assert (there.defaults["fused"], here.defaults["fused"]) == (True, None)


def test_a_device_that_is_not_there_is_named() -> None:
    for name in ("cuda:99", "teapot"):
        with pytest.raises(ValueError, match=f"device: '{name}', expected one of this machine"):
            to_device(transformer_policy(), name)
    assert to_device(transformer_policy(), None).device == to_device(transformer_policy(), "cpu").device == torch.device("cpu")
