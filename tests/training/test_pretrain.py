"""Likelihood training: learns, averages, resumes with the same bits, batches by size."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from discrete_grpo import PretrainConfig
from discrete_grpo.core.interrupt import Interrupted
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.domains.graphs import GraphBatch, node_mask, symmetrise
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.runs.checkpoint import Checkpoints, load_training, read_policy
from discrete_grpo.runs.files import write_sums
from discrete_grpo.runs.recorder import read_metrics
from discrete_grpo.training.optim import averaged, ema_decay_at
from discrete_grpo.training.pretrain import Pretrainer, batches, decayed_rate
from tests.toys import tiny_network, tiny_policy, transformer_policy


@dataclasses.dataclass(frozen=True)
class Paths:
    """Graphs of 2 to 4 nodes of class 1, joined in a path: data with one graph a size."""

    sizes: torch.Tensor

    def __len__(self) -> int:
        return len(self.sizes)

    def batch(self, rows: torch.Tensor) -> GraphBatch:
        size = self.sizes[rows]
        n = int(size.max())
        mask = node_mask(size, n)
        i, j = torch.tril_indices(n, n, -1).flip(0)
        pairs = ((j - i == 1) & mask[:, i] & mask[:, j]).long()
        return GraphBatch(mask.long(), symmetrise(pairs, n), mask)


DATA = Paths(torch.tensor([2, 3, 4] * 40))
CONFIG = PretrainConfig(max_steps=12, batch_size=16, learning_rate=1e-2, warmup_steps=2, log_steps=3, save_steps=4, ema_decay=0.9)


def state(folder: Path) -> dict[str, Any]:
    return dict(read_policy(folder).state_dict())


def test_learns_the_data(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, max_steps=120, save_steps=1000)
    policy = read_policy(Pretrainer(transformer_policy(num_steps=8), DATA, config, tmp_path).train())
    lines = read_metrics(tmp_path)
    assert lines[-1]["loss"] < 0.6 * lines[0]["loss"]  # type: ignore[operator]
    final = policy.sample(group_contexts(200, 1), generator=torch.Generator().manual_seed(0)).samples
    right = sum(bool((g.nodes == DATA.batch(torch.tensor([g.num_nodes - 2])).nodes).all()) for g in final)
    assert right > 150


def with_dropout(dropout: float, seed: int = 0) -> GraphPolicy:
    args = tiny_policy().init_args() | {"network": tiny_network(seed=seed, dropout=dropout)}
    return GraphPolicy(**args)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_resume_ends_with_the_same_bits(tmp_path: Path, dropout: float) -> None:
    whole = Pretrainer(with_dropout(dropout), DATA, CONFIG, tmp_path / "whole").train()
    torch.rand(7)  # the global state is nobody's business
    part = Pretrainer(with_dropout(dropout), DATA, CONFIG, tmp_path / "part")
    rows = part._rows()
    while part.step < 6:
        part._update(next(rows))
        part.step += 1
        if part.step == 4:
            part._save()
    resumed = Pretrainer(with_dropout(dropout, seed=3), DATA, CONFIG, tmp_path / "part", resume=True)
    assert resumed.step == 4
    a, b = state(whole), state(resumed.train())
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert [p.name for p in Checkpoints(tmp_path / "part").all()] == ["step-00000008", "step-00000012"]


def test_a_run_of_another_kind_of_device_is_refused_by_name(tmp_path: Path) -> None:
    Pretrainer(tiny_policy(), DATA, CONFIG, tmp_path).train()
    folder = Checkpoints(tmp_path).latest()
    assert load_training(folder)["device"] == "cpu"
    torch.save(load_training(folder) | {"device": "mps"}, folder / "training.pt")
    write_sums(folder, ("config.json", "model.safetensors", "training.pt"))
    with pytest.raises(ValueError, match="device: cpu, expected mps as in the run to resume"):
        Pretrainer(tiny_policy(), DATA, CONFIG, tmp_path, resume=True)


def test_large_samples_weigh_as_much_as_others_where_no_batch_divides_the_set() -> None:
    sizes = (torch.arange(450) % 50)[torch.randperm(450, generator=torch.Generator().manual_seed(0))]
    weight = torch.zeros(450)
    for epoch in range(20):
        parts = list(batches(sizes, 64, seed=1, epoch=epoch))
        assert sorted(map(len, parts)) == [56] * 6 + [57] * 2
        for rows in parts:
            weight[rows] += 1 / len(rows)
    assert weight.max() / weight.min() < 57 / 56 + 1e-4


def test_every_row_once_an_epoch_and_sizes_together() -> None:
    sizes = torch.randint(1, 30, (1000,), generator=torch.Generator().manual_seed(0))
    parts = list(batches(sizes, 16, seed=1, epoch=0))
    assert sorted(torch.cat(parts).tolist()) == list(range(1000))
    waste = sum(int((sizes[p].max() - sizes[p]).sum()) for p in parts) / int(sizes.sum())
    shuffled = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).split(16)
    assert waste < 0.2 * sum(int((sizes[p].max() - sizes[p]).sum()) for p in shuffled) / int(sizes.sum())
    assert not torch.equal(parts[0], next(iter(batches(sizes, 16, seed=1, epoch=1))))


def test_average_is_the_recursion() -> None:
    module = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(1.0)
    average = averaged(module, 0.5)
    average.update_parameters(module)
    expected = 1.0
    for n, value in enumerate((3.0, -2.0, 5.0), 1):
        with torch.no_grad():
            module.weight.fill_(value)
        average.update_parameters(module)
        decay = ema_decay_at(0.5, n)
        expected = decay * expected + (1 - decay) * value
    weight = dict(average.module.named_parameters())["weight"]
    assert float(weight.detach()) == pytest.approx(expected)


def test_empty_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data: 0 samples"):
        Pretrainer(tiny_policy(), Paths(torch.zeros(0, dtype=torch.long)), CONFIG, tmp_path)


@pytest.mark.parametrize(("warmup", "total"), [(0, 7), (3, 50), (13, 200), (60, 50)])
def test_the_learning_rate_is_the_cosine_down_to_a_hundredth_to_the_bit(warmup: int, total: int) -> None:
    config = PretrainConfig(max_steps=total, warmup_steps=warmup, learning_rate=7e-4)
    for step in range(total):
        done = (step - warmup) / max(1, total - warmup)
        cosine = 0.01 + (1 - 0.01) * 0.5 * (1 + math.cos(math.pi * done))
        assert decayed_rate(step, config) == 7e-4 * ((step + 1) / warmup if step < warmup else cosine)


def test_a_metric_that_is_not_logged_is_refused_at_the_first_update(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, metric_for_best_model="los")
    made = Pretrainer(tiny_policy(), DATA, config, tmp_path)
    with pytest.raises(ValueError, match=r"^metric_for_best_model: 'los' is not logged; did you mean 'loss'"):
        made.train()
    assert made.step == 0


def test_a_metric_that_the_evaluation_lacks_costs_no_update(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, metric_for_best_model="eval/vnu")
    with pytest.raises(ValueError, match=r"^metric_for_best_model: 'eval/vnu' is not logged; did you mean 'eval/vun'"):
        Pretrainer(tiny_policy(), DATA, config, tmp_path, evaluate=lambda policy: {"vun": 0.5}).train()
    (kept,) = Checkpoints(tmp_path).all()
    assert kept.name == f"step-{config.save_steps:08d}"
    right = dataclasses.replace(config, metric_for_best_model="eval/vun")
    resumed = Pretrainer(tiny_policy(), DATA, right, tmp_path, resume=True, evaluate=lambda policy: {"vun": 0.5})
    assert resumed.step == config.save_steps
    with pytest.raises(ValueError, match="'eval/vun' is not logged"):
        Pretrainer(tiny_policy(), DATA, right, tmp_path / "none").train()


@pytest.mark.parametrize("evaluate", [None, lambda policy: {"vun": 0.5}])
def test_a_right_metric_is_no_error_at_a_checkpoint_before_the_first_line(tmp_path: Path, evaluate: Any) -> None:
    config = dataclasses.replace(CONFIG, max_steps=6, save_steps=2, log_steps=5, metric_for_best_model="loss")
    made = Pretrainer(tiny_policy(), DATA, config, tmp_path, evaluate=evaluate)
    made.train()
    assert made.step == 6


def test_the_speed_is_that_of_the_samples_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch cannot be larger than the data."""
    clock = iter(range(100))
    monkeypatch.setattr("discrete_grpo.training.pretrain.time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    few = Paths(torch.tensor([2, 3, 4, 4]))
    config = dataclasses.replace(CONFIG, max_steps=3, batch_size=64, log_steps=3)
    Pretrainer(tiny_policy(), few, config, tmp_path).train()
    assert [line["samples_per_second"] for line in read_metrics(tmp_path)] == [12.0]  # three times four in a second


def test_other_entries_of_the_loss_may_be_numbers(tmp_path: Path) -> None:
    policy = tiny_policy()
    loss = policy.likelihood_loss
    policy.likelihood_loss = lambda batch, **options: loss(batch, **options) | {"half": 0.5}  # type: ignore[method-assign]
    Pretrainer(policy, DATA, dataclasses.replace(CONFIG, max_steps=1, log_steps=1), tmp_path).train()
    assert read_metrics(tmp_path)[0]["half"] == 0.5


def stop_after(pretrainer: Pretrainer, updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train as if Ctrl-C came in the update of that number."""
    update = pretrainer._update

    def stopped(rows: torch.Tensor) -> dict[str, float]:
        if pretrainer.step + 1 == updates:
            signal.raise_signal(signal.SIGINT)
        return update(rows)

    monkeypatch.setattr(pretrainer, "_update", stopped)
    with pytest.raises(Interrupted):
        pretrainer.train()


def test_a_stop_between_two_checkpoints_changes_neither_the_best_one_nor_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(CONFIG, log_steps=1, metric_for_best_model="loss", save_total_limit=20)
    Pretrainer(tiny_policy(), DATA, config, tmp_path / "whole").train()
    stop_after(Pretrainer(tiny_policy(), DATA, config, tmp_path / "part"), 6, monkeypatch)
    assert json.loads((tmp_path / "part/checkpoints/step-00000006/config.json").read_text()).get("metrics") is None
    Pretrainer(tiny_policy(), DATA, config, tmp_path / "part", resume=True).train()
    losses = [loss for line in read_metrics(tmp_path / "whole") if (loss := line.get("loss")) is not None]
    for step in (4, 8, 12):
        found = [json.loads((tmp_path / f"{run}/checkpoints/step-{step:08d}/config.json").read_text()) for run in ("whole", "part")]
        assert found[0]["metrics"] == found[1]["metrics"]
        assert found[0]["metrics"]["loss"] == pytest.approx(sum(losses[step - 4 : step]) / 4)
    best = [json.loads((tmp_path / run / "checkpoints/best.json").read_text()) for run in ("whole", "part")]
    assert best[0] == best[1]


def test_the_loss_is_a_mean_also_where_a_run_goes_on_with_other_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = dataclasses.replace(CONFIG, log_steps=1)
    Pretrainer(tiny_policy(), DATA, each, tmp_path / "each").train()
    losses = [line["loss"] for line in read_metrics(tmp_path / "each") if "loss" in line]
    stop_after(Pretrainer(tiny_policy(), DATA, dataclasses.replace(CONFIG, log_steps=6), tmp_path / "run"), 5, monkeypatch)
    Pretrainer(tiny_policy(), DATA, dataclasses.replace(CONFIG, log_steps=4), tmp_path / "run", resume=True).train()
    found = {line["step"]: line["loss"] for line in read_metrics(tmp_path / "run") if "loss" in line}
    assert found == pytest.approx({8: sum(losses[:8]) / 8, 12: sum(losses[8:]) / 4})  # type: ignore[arg-type]


@pytest.mark.parametrize("last", [0.0, 0.1, 1.0])
def test_the_cosine_ends_at_the_share_that_is_asked_for(last: float) -> None:
    config = dataclasses.replace(CONFIG, max_steps=50, warmup_steps=5, learning_rate=2.0, min_lr_rate=last)
    for step in range(5, 51):
        half = 0.5 * (1 + math.cos(math.pi * (step - 5) / 45))
        assert decayed_rate(step, config) == pytest.approx(2.0 * (last + (1 - last) * half), abs=1e-12)
    with pytest.raises(ValueError, match=r"^min_lr_rate: 1.5, expected 0 to 1"):
        dataclasses.replace(CONFIG, min_lr_rate=1.5)
    for name in ("tf32", "torch_compile", "full_determinism", "checkpoint_layers", "load_best_model_at_end"):
        with pytest.raises(ValueError, match=f"^{name}: 'no', expected True or False$"):
            PretrainConfig(**{name: "no"})  # type: ignore[arg-type]


def test_layers_are_computed_again_or_compiled_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr("discrete_grpo.training.pretrain.compile_network", compiled.append)
    plain, again = (dataclasses.replace(CONFIG, max_steps=3, checkpoint_layers=on) for on in (None, True))
    fitted = [Pretrainer(transformer_policy(), DATA, plain, tmp_path / "plain")]
    assert compiled == []
    fitted.append(Pretrainer(transformer_policy(), DATA, dataclasses.replace(again, torch_compile=True), tmp_path / "again"))
    assert compiled == [fitted[1].policy]
    assert [one.policy.network.checkpoint_layers for one in fitted] == [False, True]
    weights = [state(one.train()) for one in fitted]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_resumed_run_takes_the_changed_weight_decay(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, max_steps=4)
    Pretrainer(tiny_policy(), DATA, config, tmp_path).train()
    changed = dataclasses.replace(config, max_steps=8, weight_decay=0.7)
    resumed = Pretrainer(tiny_policy(), DATA, changed, tmp_path, resume=True)
    assert {group["weight_decay"] for group in resumed.optimizer.param_groups} <= {0.7, 0.0}
    assert 0.7 in {group["weight_decay"] for group in resumed.optimizer.param_groups}


def test_every_update_is_in_train_mode_and_has_a_dropout_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Pretrainer(tiny_policy().eval(), DATA, dataclasses.replace(CONFIG, max_steps=3), tmp_path)  # as one that was loaded
    losses, drawn = made._losses, list[float]()

    def noted(batch: Any) -> dict[str, torch.Tensor]:
        assert made.policy.training
        drawn.append(float(torch.rand(())))  # what dropout would draw from
        return losses(batch)

    monkeypatch.setattr(made, "_losses", noted)
    made.train()
    assert len(set(drawn)) == 3


def test_vectors_do_not_decay_and_the_best_is_that_of_the_settings(tmp_path: Path) -> None:
    config = replace(CONFIG, weight_decay=0.5, metric_for_best_model="loss", greater_is_better=True)
    made = Pretrainer(transformer_policy(), DATA, config, tmp_path)
    decay = {id(p): group["weight_decay"] for group in made.optimizer.param_groups for p in group["params"]}
    for parameter in made.policy.parameters():
        assert decay[id(parameter)] == (0.5 if parameter.ndim > 1 else 0.0)
    assert any(parameter.ndim <= 1 for parameter in made.policy.parameters())
    assert made.checkpoints.greater_is_better
