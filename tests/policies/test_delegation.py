"""Wrappers pass on what they do not change, and every policy has a one-line ``repr``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import discrete_grpo
from discrete_grpo.core.rollout import Context, as_module, is_refinable, is_replayable, is_size_drawer
from discrete_grpo.diffusion.flow import FlowEuler
from discrete_grpo.diffusion.noise import absorbing, marginal, uniform
from discrete_grpo.diffusion.schedules import LinearSchedule
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.policies.surrogate import EagerLikelihood, ElboLikelihood
from discrete_grpo.runs.checkpoint import read_policy
from tests.toys import tiny_policy

BUNDLED = Path(discrete_grpo.__file__).parent / "bundled"
WRAPPERS: dict[str, Any] = {
    "eager": EagerLikelihood,
    "elbo": ElboLikelihood,
    "sized": lambda policy: SizedPolicy(policy, LearnedSizes(policy.node_counts)),
    "decoded": lambda policy: DecodedPolicy(policy, list),
}


@pytest.fixture(params=sorted(WRAPPERS))
def wrapped(request: pytest.FixtureRequest) -> Any:
    return WRAPPERS[request.param](tiny_policy())


def test_a_wrapper_passes_on_what_it_does_not_change(wrapped: Any) -> None:
    inner = wrapped.policy
    assert wrapped.device == inner.device
    assert wrapped.likelihood_loss == inner.likelihood_loss
    assert wrapped.check_batch == inner.check_batch
    assert is_size_drawer(wrapped) == (not isinstance(wrapped, SizedPolicy))
    with pytest.raises(ValueError, match="num_nodes: 99, expected"):
        wrapped.check_condition({"num_nodes": 99})
    rollout = wrapped.sample([Context(0), Context(0)], generator=torch.Generator().manual_seed(0))
    assert len(rollout) == 2


@pytest.mark.parametrize("name", ["eager", "elbo", "sized"])
def test_decode_is_read_from_and_written_to_the_inner_policy(name: str) -> None:
    wrapped = WRAPPERS[name](tiny_policy())
    wrapped.decode = len
    assert wrapped.policy.decode is wrapped.decode is len
    assert "decode" not in wrapped.__dict__
    wrapped.decode = nn.Identity()  # which nn.Module keeps as a part of the wrapper
    with pytest.raises(ValueError, match="decode: Identity is a network, expected a function"):
        as_module(wrapped)


def test_a_wrapper_lacks_what_the_inner_policy_lacks() -> None:
    class Bare(nn.Module):
        pass

    wrapped = DecodedPolicy(Bare(), list)  # type: ignore[arg-type]
    assert getattr(wrapped, "check_condition", None) is None
    with pytest.raises(AttributeError, match="sites"):
        wrapped.sites  # noqa: B018


@pytest.mark.parametrize(
    ("noise", "name"),
    [(uniform, "uniform noise"), (absorbing, "absorbing noise"), (lambda _, s: marginal((0.25, 0.75), s), "marginal noise")],
)
def test_repr_of_a_graph_policy_names_network_steps_kernel_and_noise(noise: Any, name: str) -> None:
    network = nn.Linear(30, 50)
    nodes, edges = (FlowEuler(noise(2, LinearSchedule())) for _ in range(2))
    policy = GraphPolicy(network, nodes, edges, (0.0, 1.0), num_steps=8)
    assert repr(policy) == f"GraphPolicy(Linear of 1,550 parameters, 8 steps, FlowEuler of {name})"


def test_repr_of_a_wrapper_holds_that_of_the_inner_policy(wrapped: Any) -> None:
    text = repr(wrapped)
    assert text.startswith(f"{type(wrapped).__name__}({wrapped.policy!r}")
    assert "\n" not in text
    if isinstance(wrapped, ElboLikelihood):
        assert text.endswith(", 10 draws)")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("smiles-zinc", ("TokenPolicy(GPT of ", " parameters, at most ", " steps, ", " tokens)")),
        ("fill-in", ("MaskedTextPolicy(Encoder of ", " parameters, ", " steps, absorbing noise, ", " tokens)")),
        ("digits", ("DecodedPolicy(TokenPolicy(", "), VQDecoder)")),
    ],
)
def test_repr_of_bundled_token_policies(name: str, parts: tuple[str, ...]) -> None:
    text, at = repr(read_policy(BUNDLED / name)), 0
    for part in parts:
        at = text.index(part, at) + len(part)
    assert at == len(text)
    assert text.startswith(parts[0])


def test_a_sized_policy_replays_and_refines_only_if_the_policy_inside_it_does() -> None:
    inner = tiny_policy()
    sized = WRAPPERS["sized"](inner)
    assert is_replayable(sized)
    assert is_refinable(sized)

    class Plain(nn.Module):
        max_nodes, node_counts = inner.max_nodes, inner.node_counts

        def sites(self) -> None: ...

    plain = SizedPolicy(Plain(), LearnedSizes(inner.node_counts))
    assert not is_replayable(plain)
    assert not is_refinable(plain)
    assert not hasattr(plain, "graphs_of")
