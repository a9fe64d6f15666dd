"""Wrong policies, networks, rewards and trackers of a user are refused by name before the first update, or switched off."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from discrete_grpo import GRPOConfig, GRPOTrainer, Rollout
from discrete_grpo.core.drawing import PolicyError
from discrete_grpo.recipes.loading import policy_object
from discrete_grpo.runs.serialization import check_savable
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Pretrainer
from tests import broken_policies as twins
from tests.broken_scorers import FlatScores
from tests.toys import tiny_policy

SMALL: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 8, "max_steps": 2}


def short(samples: Sequence[str], **_: Any) -> list[float]:
    return [-float(len(text)) for text in samples]


def trainer(policy: Any, **options: Any) -> GRPOTrainer:
    settings = {name: options.pop(name) for name in list(options) if name in GRPOConfig.__dataclass_fields__}
    return GRPOTrainer(policy, short, GRPOConfig(**SMALL | settings), **options)


class AllSteps(twins.Words):
    """Gives tables of all steps, whichever are asked for."""

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Any:
        return super().sites(rollout)


class Detached(twins.Words):
    """Tables without a gradient."""

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Any:
        return [replace(part, log_probs=part.log_probs.detach()) for part in super().sites(rollout, steps)]


class Flat(twins.Words):
    """Log-probs of whole trajectories in place of steps."""

    def sample(self, contexts: Any, *, generator: torch.Generator | None = None) -> Rollout:
        drawn = super().sample(contexts, generator=generator)
        return replace(drawn, logp=drawn.logp.sum(1))


class Bare(twins.Words):
    """Tables without their actions."""

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Any:
        return (super().sites(rollout, steps)[0].log_probs,)


class NoList(twins.Words):
    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Any:
        return super().sites(rollout, steps)[0]


class SixteenBits(twins.Words):
    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Any:
        return [replace(part, log_probs=part.log_probs.bfloat16()) for part in super().sites(rollout, steps)]


class ListedGroups(twins.Words):
    def sample(self, contexts: Any, *, generator: torch.Generator | None = None) -> Rollout:
        drawn = super().sample(contexts, generator=generator)
        return replace(drawn, group=drawn.group.tolist())  # type: ignore[arg-type]


class Raises(twins.Words):
    """Looks up a name that is not there."""

    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Any:
        return {"tables": super().sites(rollout, steps)}["sites"]


def test_an_error_of_the_tables_names_the_method_and_the_line() -> None:
    told = r"^policy Raises\.sites: raised KeyError: 'sites' \(test_wrong_policies\.py, line \d+\)$"
    with pytest.raises(PolicyError, match=told):
        trainer(Raises()).train()


@pytest.mark.parametrize("settings", [{}, {"timestep_chunk": 1}, {"timestep_fraction": 0.5}])
def test_tables_of_steps_that_were_not_asked_for_are_refused(settings: dict[str, Any]) -> None:
    """Else the loss would be of too many steps, and larger by as much."""
    told = (
        r"^policy: AllSteps.sites returned tables of \(1, \d\) trajectories and steps, expected \(1, \d\): of the steps asked for$"
    )
    with pytest.raises(ValueError, match=told):
        trainer(AllSteps(), **settings).train()
    assert len(trainer(twins.Words(), **settings).train()) == 2


def test_scores_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^policy: FlatScores.score returned logp of shape \(1, 2\), expected \(1, 2, U\)"):
        trainer(FlatScores(twins.Words())).train()


@pytest.mark.parametrize(
    ("policy", "error", "told"),
    [
        (Detached(), ValueError, r"^policy: the log-probs of Detached.sites have no gradient, expected them to depend on weights"),
        (Bare(), ValueError, r"^policy: Bare.sites returned a tuple with a Tensor, expected a list with a Sites for each kind of"),
        (NoList(), ValueError, r"^policy: NoList.sites returned a Sites, expected a list with a Sites for each kind of site$"),
        (ListedGroups(), PolicyError, r"^policy ListedGroups.sample: group is a list, expected a tensor$"),
        (Flat(), PolicyError, r"^policy Flat.sample: logp has shape \(8,\), expected \(8, S\) for 8 contexts and S steps$"),
    ],
)
def test_what_a_policy_returns_is_told_by_name(policy: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        trainer(policy).train()


def test_coarse_tables_are_told() -> None:
    with pytest.warns(RuntimeWarning, match=r"^policy: SixteenBits.sites returned log_probs of type torch.bfloat16, which is too"):
        assert len(trainer(SixteenBits()).train()) == 2


def test_a_policy_that_is_no_module_is_told() -> None:
    with pytest.raises(TypeError, match=r"^policy: str is no torch.nn.Module, so it has no parameters to train$"):
        trainer("qm9-small")
    with pytest.raises(TypeError, match=r"^policy: Words is a class, expected an instance, such as Words\(...\)$"):
        trainer(twins.Words)


def test_a_policy_without_weights_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^policy: it has no weights to train, expected at least one parameter"):
        trainer(twins.Words().requires_grad_(False))
    with pytest.raises(ValueError, match=r"^policy: it has no weights to train, expected at least one parameter"):
        trainer(twins.Words().requires_grad_(False), per_device_batch_size="auto")


def test_the_letters_of_a_name_are_no_rewards() -> None:
    with pytest.raises(ValueError, match=r"^reward_funcs: 'qed', expected a function reward\(samples, \*\*columns\) or several$"):
        GRPOTrainer(twins.Words(), "qed", GRPOConfig(**SMALL))  # type: ignore[arg-type]


def test_a_tracker_of_ones_own_that_fails_is_switched_off() -> None:
    class Gone:
        def start(self, step: int) -> None: ...

        def log(self, step: int, metrics: Any) -> None:
            raise ConnectionError("no host")

        def log_samples(self, step: int, samples: Any, captions: Any) -> None: ...

        def close(self) -> None: ...

    with pytest.warns(RuntimeWarning, match="tracker Gone: switched off, the run goes on; ConnectionError: no host"):
        assert len(trainer(twins.Words(), tracker=Gone()).train()) == 2


# -- what a checkpoint could not make again


class Misspelt(twins.Words):
    def init_args(self) -> dict[str, Any]:
        return {"lenght": self.length}


def test_init_args_that_the_class_does_not_take_are_refused_before_a_run() -> None:
    told = r"^policy: Misspelt.init_args gives lenght \(.*\), expected the arguments of Misspelt\(length, temperature, dropout, se"
    with pytest.raises(TypeError, match=told):
        policy_object(Misspelt())


class Wide(nn.Module):
    """A policy of one weight, with what its checkpoints lack."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.zeros(width))


class ForgetsWidth(Wide):
    def init_args(self) -> dict[str, Any]:
        return {}


class Growing(ForgetsWidth):
    def __init__(self, width: int = 3) -> None:
        super().__init__(width)
        if width == 3:
            self.register_buffer("more", torch.zeros(2))


class Once(ForgetsWidth):
    """Registers its name, which can be done once in a process, and draws random numbers."""

    names: ClassVar[list[str]] = []

    def __init__(self, width: int = 3) -> None:
        super().__init__(width)
        random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
        if self.names:
            raise ValueError("the name is taken")
        self.names.append("once")


class Lazy(ForgetsWidth):
    """Has weights without a shape, and a state that is no tensor."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.lazy = nn.LazyLinear(2)

    def get_extra_state(self) -> Any:
        return {"width": self.width}

    def set_extra_state(self, state: Any) -> None:
        self.width = state["width"]


OTHER = r"has other weights: weight \(4,\) becomes \(3,\)"


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (ForgetsWidth(4), rf"^policy: ForgetsWidth, built from its init_args, {OTHER}; expected init_args to give all arguments"),
        (Growing(4), rf"^policy: Growing, built from its init_args, {OTHER}; more \(2,\) is added; expected"),
    ],
)
def test_a_policy_that_its_init_args_do_not_build_again_is_refused(policy: nn.Module, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        check_savable("policy", policy)
    for one in (ForgetsWidth(), Growing(), Lazy()):
        check_savable("policy", one)


def test_a_policy_that_can_be_built_once_is_accepted_and_no_random_state_changes() -> None:
    policy = Once(4)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
    check_savable("policy", policy)
    after = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_a_class_without_an_import_path_is_not_built_again() -> None:
    class Local(ForgetsWidth):
        pass

    check_savable("policy", Local(4))


def test_weights_are_compared_before_a_run_that_stores_them(tmp_path: Path) -> None:
    policy = ForgetsLength(4)
    with pytest.raises(TypeError, match=r"^policy: ForgetsLength, built from its init_args, has other weights: network.0.weight "):
        trainer(policy, run=tmp_path)
    assert not any(tmp_path.iterdir())
    trainer(policy)  # nothing is stored


class ForgetsLength(twins.Words):
    def init_args(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([nn.Linear(2, 2)], "is a list with trainable weights, where torch does not find them, .* expected nn.ModuleList, or req"),
        ({"a": (nn.Linear(2, 2),)}, "is a dict with trainable weights, .* expected nn.ModuleDict, or requires_grad_"),
        (torch.zeros(2, requires_grad=True), "is a Tensor with trainable weights, .* expected nn.Parameter, or requires_grad_"),
    ],
)
def test_weights_that_torch_does_not_find_are_refused(value: Any, told: str) -> None:
    policy = twins.Words()
    policy.network.hidden = value
    with pytest.raises(TypeError, match=rf"^policy: Words.network.hidden {told}"):
        trainer(policy)


def test_weights_in_a_container_that_holds_itself_are_found() -> None:
    policy = twins.Words()
    table: dict[str, Any] = {"layer": nn.Linear(2, 2)}
    table["itself"] = table
    policy.table = table  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"^policy: Words.table is a dict with trainable weights, "):
        trainer(policy)


def test_weights_beside_the_module_that_are_not_trained_are_accepted() -> None:
    policy = twins.Words()
    policy.judge = [nn.Linear(2, 2).requires_grad_(False)]  # type: ignore[assignment]
    policy.same = [policy.network[0]]  # type: ignore[assignment]
    policy.constant = torch.zeros(2)
    table: dict[str, Any] = {"many": [[k] for k in range(200_000)]}
    table["itself"] = table
    policy.table = table  # type: ignore[assignment]
    started = time.process_time()
    trainer(policy)
    assert time.process_time() - started < 5


def test_a_network_as_decoder_is_refused_before_training(tmp_path: Path) -> None:
    policy = tiny_policy()
    policy.decode = nn.Identity()
    with pytest.raises(ValueError, match=r"^decode: Identity is a network, expected a function"):
        trainer(policy, run=tmp_path)
    with pytest.raises(ValueError, match=r"^decode: Identity is a network, expected a function"):
        Pretrainer(policy, [0] * 4, PretrainConfig(), tmp_path)  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())


class Network(nn.Module):
    def __init__(self, node_classes: int, edge_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(node_classes, edge_classes))


class Forgetful(Network):
    def init_args(self) -> dict[str, Any]:
        return {"node_classes": 3}


@pytest.mark.parametrize(
    ("network", "told"),
    [
        (Network(3, 2), r"^policy: Network: cannot be written to a checkpoint; give it init_args"),
        (Forgetful(3, 2), r"^policy: Forgetful.init_args gives node_classes \(missing .* 'edge_classes'\), expected the arguments"),
    ],
)
def test_a_network_that_cannot_be_saved_is_refused_before_pretraining(network: nn.Module, told: str, tmp_path: Path) -> None:
    policy = tiny_policy()
    policy.network = network
    with pytest.raises(TypeError, match=told):
        Pretrainer(policy, [0] * 4, PretrainConfig(), tmp_path)  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())
