"""Steps before a restart have no units: which steps are chosen, and every loss against a loop over units that exist."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.loss import grpo_loss
from discrete_grpo.core.rollout import Context
from discrete_grpo.core.step_selection import num_selected, select_steps
from tests import trainer_parts
from tests.policies.restart_parts import seeded
from tests.toys import share_of_class_two, tiny_policy


def test_chosen_steps_have_units_and_full_rows_keep_their_bits() -> None:
    draw = seeded(0)
    for total, fraction in itertools.product((1, 3, 4, 7, 10), (0.05, 0.3, 0.5, 0.8, 1.0)):
        units = torch.randint(0, 2, (60, total), generator=draw) * 5
        units[0], units[1] = 0, 5
        steps = select_steps(units, fraction, draw)
        for row, chosen in zip(units, steps, strict=True):
            n = int((row > 0).sum())
            assert len(set(chosen.tolist())) == steps.shape[1]
            assert chosen.tolist() == sorted(chosen.tolist())
            assert int((row[chosen] > 0).sum()) == num_selected(n, fraction)
        full = torch.ones(20, total, dtype=torch.long)
        count = max(1, round(fraction * total))
        plain = torch.rand(full.shape, generator=seeded(7)).argsort(-1)[:, :count].sort(-1).values
        if count < total:
            assert torch.equal(select_steps(full, fraction, seeded(7)), plain)
    units = torch.tensor([[0, 0, 3, 3, 3, 3], [1, 1, 1, 1, 1, 1]]).repeat(1500, 1)
    steps = select_steps(units, 0.5, draw)
    for row, wanted in ((0, [0, 0, 750, 750, 750, 750]), (1, [750] * 6)):
        picked = steps[row::2][units[row::2].gather(1, steps[row::2]) > 0]
        counts = torch.bincount(picked, minlength=6)
        assert (counts - torch.tensor(wanted)).abs().max() < 5 * math.sqrt(1500 / 4)


def refining(config: GRPOConfig, **options: Any) -> GRPOTrainer:
    """A trainer in float64 whose memory holds four graphs."""
    trainer = GRPOTrainer(tiny_policy(**options).double(), share_of_class_two, config)
    rollout = trainer.policy.sample([Context(k) for k in range(4)], generator=seeded(3))
    assert trainer.sampler.shards[0].elites is not None
    trainer.sampler.shards[0].elites.add(rollout, torch.tensor(share_of_class_two(rollout.samples)), [None] * 4)
    return trainer


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize(("fraction", "share"), [(1.0, 0.5), (0.5, 0.5), (0.5, 1.0)])
def test_every_loss_type_is_the_loop_over_units_that_exist(loss_type: Any, fraction: float, share: float) -> None:
    config = GRPOConfig(
        num_generations=3, generation_batch_size=12, refine_fraction=share, refine_time=0.5, loss_type=loss_type,
        timestep_fraction=fraction, per_device_batch_size=5,
    )  # fmt: skip
    trainer = refining(config)
    starts = trainer_parts.starts(trainer)
    assert [s.refined for s in starts] == ([False] * 2 + [True] * 2 if share == 0.5 else [True] * 4)
    rollout = trainer_parts.sample(trainer, starts)
    advantage = torch.randn(12, generator=seeded(1), dtype=torch.float64)
    total = torch.zeros(12, dtype=torch.float64)
    total[4] = torch.nan
    refined = torch.tensor([s.refined for s in starts]).repeat_interleave(3)
    chunks = trainer_parts.chunks(trainer, rollout, advantage, total, refined)
    old = [torch.randn(trainer_parts.scores(trainer, c).logp.shape, generator=seeded(2), dtype=torch.float64) for c in chunks]
    with torch.no_grad():
        old = [trainer_parts.scores(trainer, c).logp + 0.2 * noise for c, noise in zip(chunks, old, strict=True)]
        found = sum(
            float(grpo_loss(trainer_parts.scores(trainer, c), o, c.advantage, c.weight).loss)
            for c, o in zip(chunks, old, strict=True)
        )
        # The loop: every unit of every row by itself; n_i is what the row really drew.
        rows = []  # (size of the row's units, Σ of its terms)
        wanted = 0.0
        seen = []
        for c, o in zip(chunks, old, strict=True):
            for b in range(len(c.rollout)):
                scores = score_sites(trainer.policy.sites(c.rollout.index(torch.tensor([b])), c.steps[b : b + 1]))
                a, terms, n = float(c.advantage[b]), 0.0, 0
                own = trainer_parts.scores(trainer, c)
                for k, u in own.mask[b].nonzero().tolist():
                    ratio = math.exp(float(own.logp[b, k, u] - o[b, k, u]))
                    terms -= min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
                    n += 1
                assert n == int(scores.mask.sum())
                steps = int((own.mask[b].sum(-1) > 0).sum())
                free = 4 - int(c.rollout.states["start"][b])
                assert steps == max(1, round(fraction * free))
                known = float(c.weight[b]) > 0
                rows.append((n, terms, known))
                seen.append(n)
        count = sum(known for *_, known in rows)
        assert count == 11
        units = sum(n for n, _, known in rows if known)
        constant = math.ceil(rollout.max_units * max(1, round(fraction * 4)) / 4)
        for n, terms, known in rows:
            weight = {"grpo": 1 / (count * n), "dapo": 1 / units, "dr_grpo": 1 / (count * constant)}[loss_type]
            wanted += weight * terms * known
    assert found == pytest.approx(wanted, abs=1e-10)
    assert abs(found) > 1e-3
