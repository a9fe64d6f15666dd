"""The loss against TRL's own ``GRPOTrainer._compute_loss`` on the same tensors, value and gradient; skipped without ``trl``.

Seen green with trl 1.16.0. What differs is on the options page, in "Differences from TRL", and tested here as a difference.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.core.categorical import Scores
from discrete_grpo.core.entropy import entropy_bonus, high_entropy, top_entropy_threshold
from discrete_grpo.core.kl import importance_corrected, reverse_estimate
from discrete_grpo.core.loss import grpo_loss, off_policy_rows, row_weights
from discrete_grpo.training.config import GRPOConfig

try:
    from trl import GRPOTrainer as TRLTrainer
except (ImportError, RuntimeError) as missing:  # trl imports its trainers lazily and reports what is missing as a RuntimeError
    pytest.skip(f"needs trl: {str(missing).splitlines()[0]}", allow_module_level=True)

MOST = 7
"""The longest completion, n_max; the tensors are shorter."""


def case(seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Five texts of 1 to 6 tokens, moved away from the policy that drew them, with a reference and entropies."""
    g = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(5, 6, generator=g, dtype=torch.float64)

    logp = -2 * torch.rand(5, 6, generator=g, dtype=torch.float64)
    length = torch.tensor([6, 1, 4, 5, 3])
    tensors = {"logp": logp, "old": logp + noise(0.4), "ref": logp + noise(0.3), "entropy": noise(1.0).abs()}
    mask = torch.arange(6) < length[:, None]
    return {name: x.to(dtype) for name, x in tensors.items()} | {
        "mask": mask,
        "advantage": torch.tensor([1.0, -0.5, 0.25, -0.75, 0.0], dtype=dtype),
    }


def config_of(**options: Any) -> GRPOConfig:
    """Options as they are named here; a cap is given where cispo needs one."""
    given: dict[str, Any] = {"kl_estimator": "k3", "use_bias_correction_kl": False}
    cap = {"epsilon_high": 5.0} if options.get("loss_type") == "cispo" else {}
    return GRPOConfig(**given | cap | options)


def trl_loss(given: dict[str, Tensor], c: GRPOConfig, max_length: int = MOST) -> tuple[float, Tensor]:
    """Loss and ∂L/∂logp of TRL's code, in one micro-batch of one process."""
    leaf = given["logp"].clone().requires_grad_()
    mask, high = given["mask"], c.epsilon if c.epsilon_high is None else c.epsilon_high
    trainer: Any = TRLTrainer.__new__(TRLTrainer)  # nothing of it but the loss is wanted
    same = ("top_entropy_quantile", "off_policy_mask_threshold", "importance_sampling_level", "beta", "loss_type", "entropy_coef")
    here = {name: getattr(c, name) for name in same}
    here |= {"epsilon_low": c.epsilon, "epsilon_high": high, "max_completion_length": max_length}
    here |= {"_metrics": {"train": defaultdict(list)}, "use_vllm": False, "use_adaptive_entropy": False, "aux_loss_enabled": False}
    here |= {"model": SimpleNamespace(training=True), "current_gradient_accumulation_steps": 1}
    here |= {"_entropy_bonus_enabled": c.entropy_coef > 0}
    one = SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        gather=lambda x: x,
        pad_across_processes=lambda x, **_: x,
        reduce=lambda x, **_: x,
    )
    arguments = ("delta", "sapo_temperature_pos", "sapo_temperature_neg", "use_bias_correction_kl")
    args = SimpleNamespace(steps_per_generation=1, **{name: getattr(c, name) for name in arguments})
    scored = (leaf, given["entropy"], None)
    here |= {"accelerator": one, "args": args, "_get_per_token_logps_and_entropies": lambda *_, **__: scored}
    for name, value in here.items():
        object.__setattr__(trainer, name, value)
    prompt = torch.zeros(len(mask), 0, dtype=torch.long)
    inputs = {"prompt_ids": prompt, "prompt_mask": prompt, "completion_ids": mask.long(), "completion_mask": mask.long()}
    inputs |= {"advantages": given["advantage"], "num_items_in_batch": mask.sum(), "ref_per_token_logps": given["ref"]}
    default = torch.get_default_dtype()
    torch.set_default_dtype(leaf.dtype)  # in which TRL makes the temperatures of sapo
    try:
        loss = TRLTrainer._compute_loss(trainer, None, inputs | {"old_per_token_logps": given["old"]})
    finally:
        torch.set_default_dtype(default)
    return float(loss.detach()), torch.autograd.grad(loss, leaf)[0]


def own_loss(given: dict[str, Tensor], c: GRPOConfig, layout: str, max_length: int = MOST) -> tuple[float, Tensor]:
    """The same of this toolkit: a token is a step of one site (``steps``), or a site of the only step (``sites``)."""
    leaf = given["logp"].clone().requires_grad_()
    axis = {"steps": -1, "sites": 1}[layout]
    logp, old, ref, entropy, mask = (x.unsqueeze(axis) for x in (leaf, *(given[k] for k in ("old", "ref", "entropy", "mask"))))
    entropy = torch.where(mask, entropy, 0.0)
    keep = None
    if c.top_entropy_quantile < 1:
        keep = high_entropy(entropy, mask, top_entropy_threshold(entropy[mask], c.top_entropy_quantile))
    if c.off_policy_mask_threshold is not None:
        drift = torch.where(mask, old - logp.detach(), 0.0).sum((1, 2)) / mask.sum((1, 2))
        rows = off_policy_rows(drift, given["advantage"], c.off_policy_mask_threshold)[:, None, None]
        keep = rows if keep is None else keep & rows
    penalty = reverse_estimate(logp, ref, mask, "k3")
    if c.use_bias_correction_kl:
        penalty = importance_corrected(penalty, logp, old, mask, "k3")
    found = grpo_loss(
        Scores(torch.where(mask, logp, 0.0), entropy, mask),
        torch.where(mask, old, 0.0),
        given["advantage"],
        row_weights(mask.sum(-1), c.loss_type, max_length, level=c.importance_sampling_level),
        level=c.importance_sampling_level,
        loss_type=c.loss_type,
        epsilon=c.epsilon,
        epsilon_high=c.epsilon_high,
        delta=c.delta,
        sapo_temperature_pos=c.sapo_temperature_pos,
        sapo_temperature_neg=c.sapo_temperature_neg,
        beta=c.beta,
        penalty=penalty,
        keep=keep,
    ).loss
    if c.entropy_coef > 0:
        found = found + entropy_bonus(entropy, row_weights(mask.sum(-1), "dapo", max_length), c.entropy_coef)
    return float(found.detach()), torch.autograd.grad(found, leaf)[0]


def gap(given: dict[str, Tensor], c: GRPOConfig, layout: str) -> tuple[float, float]:
    """How far the two are apart: value, and the largest entry of the gradient, relative to the largest."""
    (a, found), (b, wanted) = own_loss(given, c, layout), trl_loss(given, c)
    assert wanted.abs().max() > 1e-3
    assert (found[~given["mask"]] == 0).all()
    return abs(a - b), float((found - wanted).abs().max() / wanted.abs().max())


SURROGATES = ["grpo", "dapo", "dr_grpo", "cispo", "sapo"]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "asymmetric": {"epsilon": 0.1, "epsilon_high": 0.28},
    "delta": {"delta": 1.3},
    "k3": {"beta": 0.2},
    "off policy": {"off_policy_mask_threshold": 0.01},
    "entropy bonus": {"entropy_coef": 0.3},
    "all": {"delta": 1.4, "beta": 0.1, "off_policy_mask_threshold": 0.01, "epsilon_high": 0.3, "entropy_coef": 0.1},
}
TOKEN_OPTIONS: dict[str, dict[str, Any]] = {
    "k3, use_bias_correction_kl": {"beta": 0.2, "use_bias_correction_kl": True},
    "top entropy": {"top_entropy_quantile": 0.4},
    "top entropy, k3": {"top_entropy_quantile": 0.3, "beta": 0.2},
    "top entropy, off policy": {"top_entropy_quantile": 0.6, "off_policy_mask_threshold": 0.01},
}
CASES = [(level, name, options) for level in ("token", "sequence") for name, options in OPTIONS.items()]
CASES += [("token", name, options) for name, options in TOKEN_OPTIONS.items()]


@pytest.mark.parametrize("layout", ["steps", "sites"])
@pytest.mark.parametrize("loss_type", SURROGATES)
@pytest.mark.parametrize(("level", "name", "options"), CASES, ids=[f"{level}, {name}" for level, name, _ in CASES])
def test_value_and_gradient(level: str, name: str, options: dict[str, Any], loss_type: str, layout: str) -> None:
    c = config_of(loss_type=loss_type, importance_sampling_level=level, **options)
    for seed in range(3):
        assert max(gap(case(seed), c, layout)) < 1e-9
    assert max(gap(case(0, torch.float32), c, layout)) < 1e-5


@pytest.mark.parametrize("loss_type", SURROGATES)
def test_a_text_is_a_trajectory_whose_steps_have_one_site(loss_type: str) -> None:
    """Level ``step`` of such a trajectory is TRL's token level."""
    given = case(1)
    c = config_of(loss_type=loss_type, importance_sampling_level="step", beta=0.2)
    a, found = own_loss(given, c, "steps")
    b, wanted = trl_loss(given, config_of(loss_type=loss_type, beta=0.2))
    assert a == pytest.approx(b, abs=1e-12)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


# -- the differences that the options page names


def test_top_entropy_at_level_sequence_is_another_gradient() -> None:
    """TRL scales the sequence's ratio by the share of tokens that are kept, and its gradient reaches the dropped ones."""
    given = case(0)
    c = config_of(loss_type="grpo", importance_sampling_level="sequence", top_entropy_quantile=0.5)
    keep = given["entropy"] >= torch.quantile(given["entropy"][given["mask"]], 0.5)
    dropped = given["mask"] & ~keep
    (_, found), (_, wanted) = own_loss(given, c, "sites"), trl_loss(given, c)
    assert (found[dropped] == 0).all()
    assert wanted[dropped].abs().max() > 1e-3


def test_the_bias_correction_at_level_sequence_takes_each_token_s_own_ratio() -> None:
    c = config_of(loss_type="grpo", importance_sampling_level="sequence", beta=0.5, use_bias_correction_kl=True)
    assert min(gap(case(0), c, "sites")) > 1e-3


def test_the_entropy_bonus_covers_the_dropped_sites_too() -> None:
    c = config_of(top_entropy_quantile=0.45, entropy_coef=0.3)
    value, gradient = gap(case(0), c, "sites")
    assert value > 1e-3
    assert gradient < 1e-9  # of the policy term; the entropies are constants here


def test_log_ratios_are_clamped() -> None:
    given = case(0)
    given["old"] = given["logp"] - 30.0
    c = config_of(loss_type="sapo")
    (a, _), (b, _) = own_loss(given, c, "sites"), trl_loss(given, c)
    assert a == pytest.approx(b, abs=1e-9)  # a gate that has closed: e^20 and e^30 are the same
    given["advantage"] = -given["advantage"].abs() - 1
    c = config_of(loss_type="dapo")
    (a, _), (b, _) = own_loss(given, c, "sites"), trl_loss(given, c)
    assert b / a == pytest.approx(float(torch.tensor(10.0).exp()), rel=1e-6)
