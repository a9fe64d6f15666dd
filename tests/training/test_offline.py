"""Off-line updates: advantages by hand, the gradient of one update written out, the exact KL of clean classes, exact resume."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import Sites, score_sites
from discrete_grpo.core.interrupt import Interrupted
from discrete_grpo.core.rollout import Rollout, group_contexts
from discrete_grpo.domains.graphs import GraphBatch, node_mask, unpack
from discrete_grpo.policies.surrogate import EagerLikelihood, ElboLikelihood
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.runs.recorder import read_metrics
from discrete_grpo.training import offline
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.minibatches import windows
from discrete_grpo.training.offline import OfflineTrainer, ScoredSamples, offline_config, row_numbers
from tests.letters import letters_policy, texts, worth
from tests.toys import tiny_policy

SMALL = GRPOConfig(generation_batch_size=8, num_generations=2, learning_rate=1e-2, max_grad_norm=None, save_steps=2)
WORDS = [text for text in texts() if text]
DATA = ScoredSamples(WORDS, torch.tensor([worth(t) for t in WORDS], dtype=torch.float64))


# -- advantages


def test_scores_and_groups_may_be_lists() -> None:
    data = ScoredSamples(list("ab"), [1.0, 2.0], [3, 3])  # type: ignore[arg-type]
    assert (data.scores.tolist(), data.groups.tolist()) == ([1.0, 2.0], [3, 3])  # type: ignore[union-attr]


def test_advantages_by_group_compare_a_row_with_its_whole_group() -> None:
    scores, groups = torch.tensor([1.0, 2.0, 6.0, 5.0, 5.0, 9.0]), torch.tensor([0, 0, 0, 1, 1, 2])
    data = ScoredSamples(list("abcdef"), scores, groups)
    found, signal = data.advantages(torch.tensor([2, 0, 4, 5]), SMALL)
    std = math.sqrt(((1 - 3) ** 2 + (2 - 3) ** 2 + (6 - 3) ** 2) / 2)
    assert found.tolist() == pytest.approx([3 / (std + 1e-4), -2 / (std + 1e-4), 0, 0])
    assert signal.tolist() == [True, True, False, False]  # equal scores, and a group of a single row


def test_advantages_by_batch_compare_the_rows_of_an_update() -> None:
    data = ScoredSamples(list("abcd"), torch.tensor([1.0, 100.0, 3.0, 8.0]))
    found, signal = data.advantages(torch.tensor([0, 3, 2]), SMALL)
    std = math.sqrt((9 + 16 + 1) / 2)
    assert found.tolist() == pytest.approx([-3 / (std + 1e-4), 4 / (std + 1e-4), -1 / (std + 1e-4)])
    assert signal.all()
    plain, _ = data.advantages(torch.tensor([0, 3]), replace(SMALL, scale_rewards="none", baseline="leave_one_out"))
    assert plain.tolist() == [-7, 7]


def test_every_pass_visits_rows_once_in_a_new_order() -> None:
    passes = [torch.cat([row_numbers(11, 3, 3 * turn + k, seed=5) for k in range(3)]).tolist() for turn in range(2)]
    assert all(len(set(rows)) == 9 for rows in passes)
    assert passes[0] != passes[1]
    assert sorted(row_numbers(4, 8, 7, seed=0).tolist()) == [0, 1, 2, 3]


# -- the gradient


def graphs(likelihood: Callable[[Any], Any]) -> tuple[Any, ScoredSamples]:
    """A graph policy of 2 to 4 nodes in float64 with graphs that it drew and their scores."""
    policy = tiny_policy(num_steps=3).double()
    drawn = policy.sample(group_contexts(8, 1), generator=torch.Generator().manual_seed(1))
    return likelihood(policy), ScoredSamples(finished(drawn), torch.linspace(0, 1, 8, dtype=torch.float64) ** 2)


def finished(rollout: Rollout) -> list[GraphBatch]:
    """The finished graph of each trajectory, as a batch of one."""
    n = int(rollout.size.max())
    batch = unpack(rollout.states["nodes"][:, -1], rollout.states["pairs"][:, -1], node_mask(rollout.size, n))
    return [batch.index(torch.tensor([k])).crop(int(rollout.size[k])) for k in range(len(rollout))]


def shaken(trainer: OfflineTrainer) -> None:
    """Move the policy away from the reference, so that ratios differ from 1 and the KL from 0."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in trainer.module.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator, dtype=p.dtype))


def written_out(trainer: OfflineTrainer, beta: float, forward: bool) -> list[Tensor]:
    """The gradient of the next update, site by site in plain loops: clipped ratios to π_ref, weights of dapo, exact KL."""
    config = trainer.config
    numbers = row_numbers(len(trainer.data), config.generation_batch_size, trainer.step, config.seed)
    state = trainer.generator.get_state()
    advantage, signal = trainer.data.advantages(numbers, config)
    rows = trainer._rows(numbers, advantage, signal)
    (micro,) = windows([rows], config, trainer.generator)[0]
    trainer.generator.set_state(state)
    policy, rollout = trainer.policy, micro.rollout
    if hasattr(policy, "score"):
        own, ref = policy.score(rollout, micro.steps, trainer.reference), trainer.reference.score(rollout, micro.steps)  # type: ignore[attr-defined]
        kl = own.kl_forward if forward else own.kl
    else:
        mine, theirs = policy.sites(rollout, micro.steps), trainer.reference.sites(rollout, micro.steps)
        own, ref, kl = score_sites(mine), score_sites(theirs), summed_over_classes(mine, theirs, forward)
    total, count = own.logp.new_zeros(()), int(own.mask.sum())
    for b, s, u in own.mask.nonzero().tolist():
        a = float(micro.advantage[b])
        ratio = (own.logp[b, s, u] - ref.logp[b, s, u].detach()).exp()
        value = float(ratio.detach())
        bounded = min(max(value, 1 - config.epsilon), 1 + config.epsilon)
        term = ratio * a if value * a <= bounded * a else torch.tensor(bounded * a, dtype=torch.float64)
        total = total - term / count + beta * kl[b, s, u] / count
    used = [p for p in trainer.module.parameters() if p.requires_grad]
    return list(torch.autograd.grad(total, used, allow_unused=True))


def summed_over_classes(mine: Any, theirs: Any, forward: bool) -> Tensor:
    """Σ_c p_c (log p_c - log q_c) of every site that exists, in plain loops."""
    parts = []
    for one, other in zip(mine, theirs, strict=True):
        found = torch.zeros(one.mask.shape, dtype=torch.float64)
        for b, s, u in one.mask.nonzero().tolist():
            p, q = one.log_probs[b, s, u], other.log_probs[b, s, u].detach()
            p, q = (q, p) if forward else (p, q)
            inside = [c for c in range(len(p)) if float(p[c].detach()) > -math.inf]
            found[b, s, u] = sum(p[c].exp() * (p[c] - q[c]) for c in inside)
        parts.append(found)
    return torch.cat(parts, -1)


CASES: dict[str, Callable[[], tuple[Any, ScoredSamples]]] = {
    "letters": lambda: (letters_policy(), DATA),
    "eager": lambda: graphs(EagerLikelihood),
    "elbo": lambda: graphs(lambda policy: ElboLikelihood(policy, 3)),
}


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_an_update_is_that_of_the_loss_written_out(case: str, forward: bool) -> None:
    policy, data = CASES[case]()
    config = replace(SMALL, beta=0.3, epsilon=0.02, kl_direction="forward" if forward else "reverse")
    trainer = OfflineTrainer(policy, data, config, steps=2)
    shaken(trainer)
    expected = written_out(trainer, 0.3, forward)
    line = trainer.update()
    assert line["clip_ratio/region_mean"] > 0
    assert line["offline/ratio"] != 1
    for parameter, gradient in zip((p for p in trainer.module.parameters() if p.requires_grad), expected, strict=True):
        given = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert torch.allclose(given, torch.zeros_like(parameter) if gradient is None else gradient, atol=1e-12)


def test_the_first_ratio_is_exactly_one_whatever_the_micro_batches() -> None:
    policy, data = graphs(EagerLikelihood)
    trainer = OfflineTrainer(policy, data, replace(SMALL, per_device_batch_size=3, timestep_chunk=2), steps=1)
    line = trainer.update()
    assert (line["offline/ratio"], line["clip_ratio/region_mean"]) == (1, 0)
    assert line["kl"] == pytest.approx(0, abs=1e-12)


def test_the_clean_class_kl_is_exact_and_the_mean_of_the_difference_of_losses_over_the_reference() -> None:
    policy, data = graphs(EagerLikelihood)
    trainer = OfflineTrainer(policy, data, SMALL, steps=1)
    shaken(trainer)
    rollout = policy.rollout_of(data.samples, generator=torch.Generator().manual_seed(0))
    steps = torch.arange(3).expand(8, -1)
    mine, theirs = policy._clean_sites(rollout, steps), trainer.reference._clean_sites(rollout, steps)  # type: ignore[attr-defined]
    scores = policy.score(rollout, steps, trainer.reference)
    assert torch.allclose(scores.kl, summed_over_classes(mine, theirs, forward=False), atol=1e-12)
    differences = []  # E over c ~ p̂_ref of CE_θ(c) - CE_ref(c), class by class as if each had been the datum
    for one, other in zip(mine, theirs, strict=True):
        mean = torch.zeros(one.mask.shape, dtype=torch.float64)
        for c in range(one.log_probs.shape[-1]):
            drawn = torch.full_like(one.action, c)
            loss, ref_loss = (-score_sites([Sites(x.log_probs, drawn, x.mask)]).logp for x in (one, other))
            mean += (other.log_probs[..., c].exp() * (loss - ref_loss)).masked_fill(~one.mask, 0)
        differences.append(mean)
    assert torch.allclose(scores.kl_forward, torch.cat(differences, -1), atol=1e-12)
    single = -(scores.logp - trainer.reference.score(rollout, steps).logp)  # type: ignore[attr-defined]
    assert bool((single < -1e-3).any())  # the difference at the datum alone is negative where the policy is surer
    assert bool((scores.kl_forward >= -1e-12).all())


# -- learning


def expected_score(policy: Any) -> float:
    with torch.no_grad():
        logp = score_sites(policy.sites(policy.rollout_of(WORDS))).logp.sum((1, 2))
    return float((logp.exp() * DATA.scores).sum())


def test_the_expected_score_rises_and_the_reference_holds_the_policy() -> None:
    policy = letters_policy()
    before = expected_score(policy)
    trainer = OfflineTrainer(policy, DATA, replace(SMALL, generation_batch_size=16), steps=60)
    trainer.train()
    assert expected_score(policy) > 1.4 * before
    assert expected_score(trainer.reference) == pytest.approx(before, abs=1e-15)
    held = letters_policy()
    line = OfflineTrainer(held, DATA, replace(SMALL, generation_batch_size=16, beta=20.0), steps=60).train()[-1]
    assert line["kl"] < 0.2 * trainer.history[-1]["kl"]


def test_groups_without_a_signal_can_be_left_out() -> None:
    groups = torch.arange(len(DATA)) // 2
    groups[0] = 1000
    data = ScoredSamples(WORDS, DATA.scores, groups)
    trainer = OfflineTrainer(letters_policy(), data, replace(SMALL, zero_std_groups="mask"), steps=1)
    numbers = torch.tensor([0, 1, 2, 3])
    rows = trainer._rows(numbers, *data.advantages(numbers, trainer.config))
    assert rows.counted.tolist() == rows.needed.tolist() == [False, False, True, True]  # row 0 is alone, and then row 1 is
    kept = OfflineTrainer(letters_policy(), data, SMALL, steps=1)
    assert kept._rows(numbers, *data.advantages(numbers, kept.config)).counted.all()


# -- resume


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "step_time"} for line in read_metrics(run)]


@pytest.mark.parametrize("case", ["letters", "elbo"])
@pytest.mark.parametrize("stopped", [0, 2, 3])
def test_a_stopped_run_ends_with_the_same_bits(case: str, stopped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(SMALL, beta=0.1, timestep_fraction=0.7, generation_batch_size=4)
    policy, data = CASES[case]()
    OfflineTrainer(policy, data, config, steps=5, run=tmp_path / "whole").train()
    part, _ = CASES[case]()
    broken = OfflineTrainer(part, data, config, steps=5, run=tmp_path / "part")
    update = broken.update

    def killed() -> dict[str, float]:
        if broken.step == stopped:
            raise MemoryError
        return update()

    monkeypatch.setattr(broken, "update", killed)
    with pytest.raises(MemoryError):
        broken.train()
    again, _ = CASES[case]()
    OfflineTrainer(again, data, config, steps=5, run=tmp_path / "part", resume=True).train()
    for (name, a), b in zip(policy.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert lines_of(tmp_path / "whole") == lines_of(tmp_path / "part")
    assert [line["step"] for line in lines_of(tmp_path / "part")] == [1, 2, 3, 4, 5]


def test_an_interrupt_saves_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager

    @contextmanager
    def asked() -> Any:
        yield True

    monkeypatch.setattr(offline, "interruptible", asked)
    trainer = OfflineTrainer(letters_policy(), DATA, SMALL, steps=5, run=tmp_path)
    with pytest.raises(Interrupted, match="off-line update 0 of 5"):
        trainer.train()


# -- bad input


def test_settings_of_drawing_are_off() -> None:
    given = GRPOConfig(
        num_iterations=3,
        replay_samples=2,
        entropy_coef=0.1,
        patience=3,
        patience_threshold=0.1,
        when_stale="restart",
        ema_decay=0.9,
        zero_std_groups="mask",
        beta=0.1,
    )
    found = offline_config(given, 7)
    assert (found.max_steps, found.num_iterations, found.replay_samples, found.entropy_coef) == (7, 1, 0, 0)
    assert (found.patience, found.ema_decay, found.zero_std_groups, found.beta) == (None, None, "mask", 0.1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": replace(SMALL, beta=0.1, kl_estimator="k3")}, "kl_estimator: 'k3', expected exact off-line"),
        ({"steps": 0}, "offline_steps: 0, expected at least 1"),
        ({"data": ScoredSamples(["a", "b"], torch.tensor([2.0, 2.0]))}, "the scores are all equal"),
        ({"data": ScoredSamples(["a", "b"], torch.tensor([2.0, 3.0]), torch.tensor([0, 1]))}, "within every group are all equal"),
        ({"policy": nn.Linear(1, 1)}, "policy: Linear has no method rollout_of"),
        ({"policy": letters_policy(truncation=Truncation(top_k=2))}, "expected top_k None"),
        ({"config": replace(SMALL, importance_sampling_level="sequence", timestep_chunk=1)}, "timestep_chunk: 1, expected none"),
    ],
)
def test_bad_input_is_one_line(change: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {"policy": letters_policy(), "data": DATA, "config": SMALL, "steps": 2} | change
    with pytest.raises(ValueError, match=said):
        OfflineTrainer(arguments.pop("policy"), arguments.pop("data"), arguments.pop("config"), **arguments)


@pytest.mark.parametrize(
    ("samples", "scores", "groups", "said"),
    [
        ([], torch.tensor([]), None, "samples: none given"),
        (["a"], torch.tensor([1.0, 2.0]), None, r"scores: shape \(2,\), expected one per sample \(1\)"),
        (["a"], torch.tensor([1.0]), torch.tensor([0, 0]), "groups: shape"),
        (["a"], torch.tensor([math.nan]), None, "not finite"),
    ],
)
def test_scored_samples_are_checked(samples: list[str], scores: Tensor, groups: Tensor | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ScoredSamples(samples, scores, groups)


def test_a_text_in_place_of_samples_and_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^samples: 'CCO', expected a list of samples"):
        ScoredSamples("CCO", [1.0, 2.0, 3.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^scores: \['a', 'b'\], expected one number per sample"):
        ScoredSamples(["CCO", "CCC"], ["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^scores: \[1.0, None\], expected one number per sample"):
        ScoredSamples(["CCO", "CCC"], [1.0, None])  # type: ignore[arg-type]
    for groups in ([0, None], ["x", "y"]):
        with pytest.raises(ValueError, match=r"^groups: \[.*\], expected one whole number per sample"):
            ScoredSamples(["CCO", "CCC"], [1.0, 2.0], groups)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^offline_steps: '5', expected a whole number"):
        offline_config(SMALL, "5")  # type: ignore[arg-type]


@pytest.mark.parametrize("groups", [None, torch.tensor([0, 0, 0, 0])])
def test_advantages_are_clipped(groups: Tensor | None) -> None:
    data = ScoredSamples(list("abcd"), torch.tensor([1.0, 2.0, 3.0, 30.0]), groups)
    free, clipped = (data.advantages(torch.arange(4), replace(SMALL, advantage_clip=clip))[0] for clip in (None, 0.5))
    assert float(free.max()) > 1
    assert torch.equal(clipped, free.clamp(-0.5, 0.5))


@pytest.mark.parametrize(
    ("name", "options", "off"),
    [
        ("sync_ref_model", {"sync_ref_model": True, "beta": 0.1}, False),
        ("kl_in", {"kl_in": "reward", "beta": 0.1}, "loss"),
        ("steps_per_generation", {"steps_per_generation": 4}, 1),
        ("zero_std_groups", {"zero_std_groups": "resample"}, "mask"),
        ("generation_shards", {"generation_shards": 2}, None),
        ("refine_fraction", {"refine_fraction": 0.5}, 0.0),
    ],
)
def test_settings_that_do_not_apply_off_line_are_off(name: str, options: dict[str, Any], off: Any) -> None:
    given = GRPOConfig(**options)
    assert getattr(given, name) == options[name] != off
    assert getattr(offline_config(given, 7), name) == off
