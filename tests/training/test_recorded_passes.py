"""Passes of pretraining recorded as CUDA graphs, on the pretend device: the same bits, one launch, a way back."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Pretrainer
from discrete_grpo.training.recorded_passes import MOST_GRAPHS, RecordedPasses
from tests.families import FAMILIES
from tests.pretend_cuda import Counts, pretending
from tests.pretend_tensors import bare
from tests.training.pretend_cuda_parts import count_pretraining


class Graphs:
    """Graphs of two sizes, which are batched apart."""

    def __init__(self, sizes: tuple[int, ...] = (4, 4, 4, 4, 3, 3)) -> None:
        self.whole = FAMILIES["graph"].batch().index(torch.tensor([0 if n == 4 else 1 for n in sizes]))
        self.sizes = torch.tensor(sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def batch(self, rows: torch.Tensor) -> Any:
        return self.whole.index(rows).crop(int(self.sizes[rows].max()))


def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[list[torch.Tensor], list[Counts]]:
    """Weights, moments and average after a few updates, and the counts of each."""
    with pretending() as cuda, monkeypatch.context() as patch:
        found = count_pretraining(cuda, patch)
        config = PretrainConfig(max_steps=9, batch_size=2, warmup_steps=1, learning_rate=0.01, **options)
        trainer = Pretrainer(FAMILIES["graph"].make(), Graphs(), config, tmp_path)
        trainer.train()
        moments = [value for state in trainer.optimizer.state.values() for value in state.values()]
        weights = [*trainer.policy.parameters(), *trainer.average.parameters(), *moments]
        kept = [bare(x.detach()).clone() for x in weights]
        return [*kept, bare(trainer.generator.get_state())], found


@pytest.mark.parametrize("options", [{}, {"checkpoint_layers": True}], ids=["kept", "recomputed"])
def test_recorded_passes_give_the_same_bits(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, many = trained(tmp_path / "plain", monkeypatch, **options)
    recorded, few = trained(tmp_path / "recorded", monkeypatch, cuda_graphs=True, **options)
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    assert sum(found.replays for found in many) == 0
    assert sum(found.replays for found in few) == 7  # 9 updates of two sizes, whose first updates warm up
    assert few[-1].launches < many[-1].launches / 4
    assert few[-1].waits == 1


def test_other_devices_ignore_the_setting(tmp_path: Path) -> None:
    runs = []
    for on in (False, True):
        config = PretrainConfig(max_steps=3, batch_size=2, warmup_steps=1, cuda_graphs=on)
        trainer = Pretrainer(FAMILIES["graph"].make(), Graphs(), config, tmp_path / str(on))
        trainer.train()
        runs.append([p.detach() for p in trainer.policy.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A batch of another kind, with more than tensors."""

    rows: tuple[torch.Tensor, ...]
    named: dict[str, torch.Tensor]
    text: str = "kept"


def passes(refuse: bool = False) -> tuple[RecordedPasses, torch.nn.Parameter]:
    """Passes of one weight."""
    weight = torch.nn.Parameter(torch.tensor([2.0]).to("cuda"))

    def losses(batch: Numbers) -> dict[str, torch.Tensor]:
        if refuse:
            raise RuntimeError("operation not permitted when stream is capturing")
        assert batch.text == "kept"
        return {"loss": (weight * batch.rows[0] * batch.named["x"]).sum()}

    return RecordedPasses(losses, [weight], torch.Generator("cuda")), weight


def numbers(size: int, value: float) -> Numbers:
    return Numbers((torch.full((size,), value, device="cuda"),), {"x": torch.ones(size, device="cuda")})


def test_each_kind_of_batch_has_its_own_graph() -> None:
    with pretending():
        recorded, weight = passes()
        assert [recorded.run(numbers(n, 1.0)) for n in (1, 2)] == [None, None]
        for size, value in ((1, 3.0), (2, 5.0), (1, 7.0)):
            found = recorded.run(numbers(size, value))
            assert found is not None
            assert weight.grad is not None
            assert (float(found["loss"]), float(weight.grad[0])) == (2 * size * value, size * value)
        for size in range(3, MOST_GRAPHS + 4):
            assert recorded.run(numbers(size, 1.0)) is None
        assert recorded.run(numbers(MOST_GRAPHS, 1.0)) is not None
        assert recorded.run(numbers(MOST_GRAPHS + 1, 1.0)) is None


def test_a_kind_is_recorded_once_and_its_batches_stay_as_they_are() -> None:
    with pretending():
        calls: list[int] = []
        weight = torch.nn.Parameter(torch.tensor([2.0]).to("cuda"))

        def losses(batch: Numbers) -> dict[str, torch.Tensor]:
            calls.append(len(batch.rows[0]))
            return {"loss": (weight * batch.rows[0] * batch.named["x"]).sum()}

        recorded = RecordedPasses(losses, [weight], torch.Generator("cuda"))
        first, other = numbers(2, 3.0), dataclasses.replace(numbers(2, 5.0), named={"x": torch.full((2,), 4.0, device="cuda")})
        assert recorded.run(first) is None
        for batch, value in ((first, 12.0), (other, 80.0), (first, 12.0)):
            found = recorded.run(batch)
            assert found is not None
            assert float(found["loss"]) == value
        assert calls == [2]
        assert (float(first.rows[0][0]), float(first.named["x"][0])) == (3.0, 1.0)
        double = dataclasses.replace(first, rows=(first.rows[0].double(),))
        assert recorded.run(double) is None  # numbers of another type are of another kind


def test_a_policy_that_cannot_be_recorded_is_told_once() -> None:
    with pretending():
        recorded, weight = passes(refuse=True)
        assert recorded.run(numbers(1, 1.0)) is None
        with pytest.warns(UserWarning, match=r"cuda_graphs: the passes were not recorded \(operation not permitted"):
            assert recorded.run(numbers(1, 1.0)) is None
        assert weight.grad is None
        assert recorded.run(numbers(1, 1.0)) is None


def test_entries_that_are_no_tensors_are_not_recorded() -> None:
    with pretending():
        weight = torch.nn.Parameter(torch.tensor([2.0]).to("cuda"))
        losses = lambda batch: {"loss": (weight * batch.rows[0]).sum(), "half": 0.5}  # noqa: E731
        recorded = RecordedPasses(losses, [weight], torch.Generator("cuda"))
        assert recorded.run(numbers(1, 1.0)) is None
        with pytest.warns(UserWarning, match=r"'half' of the losses is no tensor"):
            assert recorded.run(numbers(1, 1.0)) is None


def test_batches_of_graphs_are_compared_by_shape() -> None:
    graphs: GraphBatch = FAMILIES["graph"].batch()
    seen: list[GraphBatch] = []
    recorded = RecordedPasses(lambda batch: seen.append(batch) or {}, [], torch.Generator())  # type: ignore[func-returns-value]
    assert recorded.run(graphs) is None
    assert recorded.run(graphs.crop(3)) is None
    assert seen == []
