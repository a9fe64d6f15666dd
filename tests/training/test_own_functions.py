"""Advantages and surrogates of one's own: the same bits as the settings that they repeat, their own gradient, refusals, resume."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import discrete_grpo
from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.advantages import group_advantages
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.loss import clipped_surrogate, grpo_loss
from discrete_grpo.core.scoring import RewardError
from discrete_grpo.runs.checkpoint import Checkpoints
from tests import trainer_parts
from tests.toys import share_of_class_two, tiny_policy

SMALL: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 12, "learning_rate": 1e-2, "max_steps": 4}


def same_advantages(rewards: Tensor, group: Tensor) -> Tensor:
    return group_advantages(rewards[:, 0], group)


def same_surrogate(log_prob: Tensor, ratio: Tensor, advantage: Tensor) -> Tensor:
    return clipped_surrogate(ratio, advantage, 0.2, 0.2)


def ranks(rewards: Tensor, group: Tensor) -> Tensor:
    """1 for the best of each group, -1 for all others."""
    best = torch.stack([rewards[group == g, 0].max() for g in group.tolist()])
    return torch.where(rewards[:, 0] == best, 1.0, -1.0)


def trained(**settings: Any) -> tuple[list[dict[str, float]], list[Tensor]]:
    policy = tiny_policy()
    functions = {name: settings.pop(name) for name in ("advantage_func", "surrogate_func") if name in settings}
    trainer = GRPOTrainer(policy, share_of_class_two, GRPOConfig(**SMALL | settings), **functions)
    lines = trainer.train()
    return [{k: v for k, v in line.items() if "time" not in k} for line in lines], [p.detach() for p in policy.parameters()]


@pytest.mark.parametrize("level", ["token", "step", "sequence"])
def test_functions_that_repeat_the_settings_give_the_same_bits(level: str) -> None:
    settings: dict[str, Any] = {"num_iterations": 2, "importance_sampling_level": level}
    lines, weights = trained(**settings)
    found, again = trained(**settings, advantage_func=same_advantages, surrogate_func=same_surrogate)
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))
    for line, other in zip(lines, found, strict=True):
        assert {k: v for k, v in line.items() if not k.startswith("clip_ratio")} == other, "nothing is clipped by settings"


def test_advantages_are_those_of_the_function_over_the_whole_generation() -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    def noted(rewards: Tensor, group: Tensor) -> Tensor:
        seen.append((rewards, group))
        return ranks(rewards, group)

    trainer = GRPOTrainer(tiny_policy(), [share_of_class_two, share_of_class_two], GRPOConfig(**SMALL), advantage_func=noted)
    (example, _), *_ = seen
    assert example.shape == (8, 2), "tried on an example before any work"
    generation = trainer.sampler.draw()
    rewards, group = seen[-1]
    assert rewards.shape == (12, 2)
    assert rewards.dtype == torch.float64
    assert group.bincount().tolist() == [4, 4, 4]
    assert generation.rows[0][0].advantage.tolist() == ranks(rewards, group).tolist()


def test_rows_of_unknown_rewards_have_advantage_0() -> None:
    def some(samples: Any, **columns: Any) -> list[float]:
        return [float("nan") if k % 3 == 0 else float(k) for k in range(len(samples))]

    def everything(rewards: Tensor, group: Tensor) -> Tensor:
        rewards[rewards.isnan()] = 0  # of a copy
        return rewards[:, 0] + 7

    trainer = GRPOTrainer(tiny_policy(), some, GRPOConfig(**SMALL), advantage_func=everything)
    rows = trainer.sampler.draw().rows[0][0]
    assert rows.advantage.tolist() == [0.0 if k % 3 == 0 else k + 7.0 for k in range(12)]
    assert rows.counted.tolist() == [k % 3 != 0 for k in range(12)]


def test_the_gradient_is_that_of_the_surrogate() -> None:
    """L = -Σ w A r² has twice the gradient of REINFORCE at r = 1, and that of the formula away from it."""

    def squared(log_prob: Tensor, ratio: Tensor, advantage: Tensor) -> Tensor:
        return ratio**2 * advantage

    policy = tiny_policy().double()
    trainer = GRPOTrainer(policy, share_of_class_two, GRPOConfig(**SMALL))
    rollout = trainer_parts.sample(trainer)
    weight, advantage = (torch.rand(len(rollout), dtype=torch.float64) for _ in range(2))
    steps = torch.arange(rollout.num_steps).expand(len(rollout), -1)

    def gradient(shift: float, **options: Any) -> list[Tensor]:
        scores = score_sites(policy.sites(rollout, steps))
        loss = grpo_loss(scores, scores.logp.detach() - shift, advantage, weight, **options).loss
        return list(torch.autograd.grad(loss, [p for p in policy.parameters() if p.requires_grad], allow_unused=True))

    ratio = 1.1  # every ratio is exp(shift), inside of the clipping range
    shift = float(torch.tensor(ratio, dtype=torch.float64).log())
    for moved, r in ((0.0, 1.0), (shift, ratio)):
        for own, plain in zip(gradient(moved, surrogate_func=squared), gradient(moved), strict=True):
            if plain is not None:
                torch.testing.assert_close(own, 2 * r * plain, rtol=1e-9, atol=1e-12)


def test_masked_units_do_not_matter_even_where_the_surrogate_is_infinite() -> None:
    def unlikely(log_prob: Tensor, ratio: Tensor, advantage: Tensor) -> Tensor:
        return -(1 - log_prob.exp()).log() * advantage  # infinite at log-prob 0, which masked units have

    policy = tiny_policy(sizes=(0.0, 0.0, 0.5, 0.0, 0.5)).double()  # graphs of 2 and of 4 nodes, padded together
    rollout = trainer_parts.sample(GRPOTrainer(policy, share_of_class_two, GRPOConfig(**SMALL)))
    scores = score_sites(policy.sites(rollout))
    assert not scores.mask.all()
    advantage = weight = torch.ones(len(rollout), dtype=torch.float64)
    found = grpo_loss(scores, None, advantage, weight, surrogate_func=unlikely)
    wanted = (1 - scores.logp[scores.mask].exp()).log().sum()
    torch.testing.assert_close(found.loss, wanted, rtol=1e-12, atol=0)


def test_an_error_within_a_run_leaves_a_checkpoint_of_the_last_update(tmp_path: Path) -> None:
    calls: list[int] = []

    def fails(rewards: Tensor, group: Tensor) -> Tensor:
        calls.append(1)
        return rewards[:, 0] * (1 / (4 - len(calls)))  # the trial, two generations, and then

    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**SMALL), run=tmp_path, advantage_func=fails)
    with pytest.raises(RewardError, match=r"^advantage_func: ZeroDivisionError: .+ by zero$"):
        trainer.train()
    assert trainer.step == 2
    assert Checkpoints(tmp_path).latest().name == "step-00000002"


OPTIONS: list[dict[str, Any]] = [
    {"steps_per_generation": 2, "num_iterations": 2, "max_steps": 6},
    {"timestep_chunk": 1, "per_device_batch_size": 4},
    {"generation_shards": 3},
    {"replay_samples": 1},
    {"refine_fraction": 0.5},
    {"zero_std_groups": "resample"},
    {"top_entropy_quantile": 0.5},
    {"importance_sampling_level": "step_mean", "num_iterations": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: next(iter(o)))
def test_functions_that_repeat_the_settings_give_the_same_bits_with_every_option(options: dict[str, Any]) -> None:
    _, weights = trained(**options)
    _, again = trained(**options, advantage_func=same_advantages, surrogate_func=same_surrogate)
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))


def test_a_run_goes_on_in_the_middle_of_a_generation_to_the_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(name: str, steps: int, *, resume: bool = False, **given: Any) -> list[Tensor]:
        config = GRPOConfig(**SMALL | {"num_iterations": 3, "beta": 0.1, "max_steps": steps, "save_steps": 1})
        policy = tiny_policy()
        functions: dict[str, Any] = {"advantage_func": ranks, "surrogate_func": same_surrogate} | given
        GRPOTrainer(policy, share_of_class_two, config, run=tmp_path / name, resume=resume, **functions).train()
        return [p.detach() for p in policy.parameters()]

    whole = run("whole", 5)
    run("parts", 2)
    assert all(torch.equal(a, b) for a, b in zip(run("parts", 5, resume=True), whole, strict=True))
    assert capsys.readouterr().err.count("in the run so far") == 1  # max_steps
    run("parts", 6, resume=True, surrogate_func=None)
    said = capsys.readouterr().err
    assert said.count("surrogate_func: was same_surrogate in the run so far, is None from here on") == 1
    assert "advantage_func: " not in said
    (tmp_path / "parts/settings.json").write_text("{}")  # of `train`, which tells of them itself
    run("parts", 7, resume=True)
    assert "surrogate_func" not in capsys.readouterr().err


def test_other_settings_of_a_resumed_run_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(resume: bool = True, **changed: Any) -> list[str]:
        config = GRPOConfig(**SMALL | {"max_steps": 1, "beta": 0.1, "learning_rate": 0.01} | changed)
        GRPOTrainer(tiny_policy(), share_of_class_two, config, run=tmp_path, resume=resume).train()
        return [line for line in capsys.readouterr().err.splitlines() if "in the run so far" in line]

    assert run(resume=False) == []
    assert run() == []
    assert sorted(run(max_steps=2, learning_rate=0.02, beta=0.2, seed=7)) == [
        "beta: was 0.1 in the run so far, is 0.2 from here on",
        "learning_rate: was 0.01 in the run so far, is 0.02 from here on",
        "max_steps: was 1 in the run so far, is 2 from here on",
    ]  # the random states go on, whatever the seed


def broken(kind: str) -> Any:
    made = {
        "list": lambda rewards, group: rewards[:, 0].tolist(),
        "short": lambda rewards, group: rewards[:-1, 0],
        "infinite": lambda rewards, group: rewards[:, 0] / 0,
    }
    return made[kind]


@pytest.mark.parametrize(
    ("given", "settings", "said"),
    [
        ({"advantage_func": broken("list")}, {}, "advantage_func: returned a list, expected a tensor of shape (8,): one number"),
        ({"advantage_func": broken("short")}, {}, "advantage_func: returned shape (7,), expected a tensor of shape (8,)"),
        ({"advantage_func": broken("infinite")}, {}, "advantage_func: returned nan for rewards [0.0], expected a finite number"),
        ({"advantage_func": 3}, {}, "advantage_func: 3, expected a function"),
        ({"advantage_func": lambda r, g: r.view(5, 5)}, {}, "advantage_func: raised RuntimeError on 8 rows in groups of 4: shape"),
        ({"surrogate_func": lambda p, r: r}, {}, "surrogate_func: raised TypeError on a ratio of shape (2, 3, 4): "),
        ({"advantage_func": ranks}, {"scale_rewards": "none"}, "scale_rewards: 'none', expected none with advantage_func"),
        ({"advantage_func": ranks}, {"beta": 0.1, "kl_in": "both"}, "kl_in: 'both', expected 'loss' with advantage_func"),
        ({"surrogate_func": same_surrogate}, {"epsilon": 0.3}, "epsilon: 0.3, expected none with surrogate_func"),
        ({"surrogate_func": same_surrogate}, {"loss_type": "sapo"}, "loss_type: 'sapo', expected grpo, dapo or dr_grpo with"),
        ({"surrogate_func": lambda p, r, a: a}, {}, "surrogate_func: returned shape (2, 1, 1), expected a tensor of the shape of"),
        (
            {"surrogate_func": lambda p, r, a: r.mean(-1, keepdim=True) * a},
            {},
            "surrogate_func: returned shape (2, 3, 1),",
        ),
        ({"surrogate_func": lambda p, r, a: r * a * torch.nan}, {}, "surrogate_func: returned NaN or infinity for log_prob -1"),
        ({"surrogate_func": lambda p, r, a: 1.0}, {}, "surrogate_func: returned a float, expected a tensor"),
        ({"surrogate_func": lambda p, r, a: r.detach() * a}, {}, "surrogate_func: returned a tensor without a gradient"),
    ],
)
def test_bad_functions_and_settings_that_they_replace_are_named(given: dict[str, Any], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        GRPOTrainer(tiny_policy(), share_of_class_two, GRPOConfig(**SMALL | settings), **given)


def test_a_run_with_functions_resumes_to_the_bit_and_says_where_they_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, steps: int, **options: Any) -> Any:
        config = GRPOConfig(**SMALL | {"max_steps": steps, "save_steps": 2, "learning_rate": 1e-4})
        given = {"advantage_func": ranks, "surrogate_func": same_surrogate} | options
        discrete_grpo.train("tree-16", edges, output_dir=tmp_path / name, grpo=config, evaluation_samples=0, num_steps=3, **given)
        return torch.cat([p.flatten() for p in discrete_grpo.load_policy(tmp_path / name).parameters()])

    whole = run("whole", 4)
    run("parts", 2)
    assert torch.equal(run("parts", 4, resume=True), whole)
    assert "advantage_func" not in capsys.readouterr().err
    run("parts", 5, resume=True, advantage_func=None)
    assert capsys.readouterr().err.count("advantage_func: was ranks in the run so far, is None from here on") == 1
    offline: dict[str, Any] = {"output_dir": tmp_path / "new", "data": "x.csv", "score_column": "s"}
    with pytest.raises(ValueError, match="surrogate_func: given, expected none without a reward"):
        discrete_grpo.train("tree-16", [], surrogate_func=same_surrogate, **offline)


def edges(samples: Any, **columns: Any) -> list[float]:
    """Number of characters of each text, a reward that differs between samples."""
    return [float(len(str(s)) + str(s).count("_")) for s in samples]
