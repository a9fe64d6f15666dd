"""The loss of samples that a policy is not trained on."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from discrete_grpo.core.batch_share import Mean
from discrete_grpo.datasets.listed_graphs import split_rows
from discrete_grpo.recipes.pretraining.fitting import Measure
from discrete_grpo.training.pretrain import Dataset

__all__ = ["NOISY_DRAWS", "DatasetRows", "held_out_loss", "hold_out", "no_larger", "of_drawn_sizes", "with_held_out"]

NOISY_DRAWS = 512
"""Least number of draws of times and noise over which a held-out loss of diffusion or of blanks is averaged."""


@dataclass(frozen=True)
class DatasetRows:
    """A subset of the rows of a data set, as a data set.

    Attributes:
        data: the data set.
        rows: numbers of its rows.
    """

    data: Any
    rows: Int[Tensor, " row"]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> Int[Tensor, " row"]:
        """A measure of length or graph size."""
        found: Tensor = self.data.sizes[self.rows]
        return found

    def batch(self, rows: Int[Tensor, " row"]) -> Any:
        """The samples at ``rows`` of these rows."""
        return self.data.batch(self.rows[rows])

    @property
    def nbytes(self) -> int:
        """Number of bytes of the whole data set; AttributeError for one that is not in memory."""
        return int(self.data.nbytes)

    def to(self, device: torch.device | str) -> DatasetRows:
        """Return the same with the whole data set on ``device``."""
        return replace(self, data=self.data.to(device))


def hold_out(data: Any, names: Sequence[Hashable], test_share: float) -> tuple[Any, DatasetRows | None]:
    """Split a data set into training data and held-out data, which are the same in every run.

    Args:
        data: the data set.
        names: one name per row; rows of one name stay together, and only the first of them is held out.
        test_share: share of the different names that is held out; 0 for none.

    Raises:
        ValueError: if there are not two different names.
    """
    if not test_share:
        return data, None
    first: dict[Hashable, int] = {}
    for row, name in enumerate(names):
        first.setdefault(name, row)
    if len(first) < 2:
        raise ValueError(f"test_share: {test_share:g}, expected 0, since all samples are equal")
    distinct = list(first)
    held = {distinct[k] for k in split_rows(len(distinct), None, test_share)[1]}
    train = [row for row, name in enumerate(names) if name not in held]
    return DatasetRows(data, torch.tensor(train)), DatasetRows(
        data, torch.tensor([first[name] for name in distinct if name in held])
    )


def no_larger(data: Dataset, largest: int) -> DatasetRows:
    """The samples with at most ``largest`` nodes, since larger graphs have probability 0 under the policy."""
    return DatasetRows(data, (data.sizes <= largest).nonzero().flatten())


def of_drawn_sizes(data: Dataset, node_counts: Sequence[float]) -> DatasetRows:
    """The samples of a size that a policy over fields draws, since it has no loss for other sizes."""
    drawn = torch.tensor([*node_counts, *[0.0] * (int(data.sizes.max()) + 1 - len(node_counts))]) > 0
    return DatasetRows(data, drawn[data.sizes].nonzero().flatten())


def with_held_out(measure: Measure | None, held_out: Dataset | None, batch_size: int, *, draws: int = 1) -> Measure | None:
    """Return ``measure`` extended by the loss of held-out samples, ``test_loss``.

    Args:
        measure: measures a policy; None measures nothing else.
        held_out: the samples; None for none.
        batch_size: see :func:`held_out_loss`, as for ``draws``.
        draws: least number of losses that the mean is of.
    """
    if held_out is None or not len(held_out):
        return measure

    def both(policy: Any) -> tuple[Mapping[str, float], Sequence[Any]]:
        loss = held_out_loss(policy, held_out, batch_size, draws=draws)
        found, samples = ({}, ()) if measure is None else measure(policy)
        return {"test_loss": loss, **found}, samples

    return both


@dataclass(frozen=True)
class _AllPasses:
    """The argument ``share`` of a loss that is computed in several passes: means are over the sites of all passes so far.

    Attributes:
        so_far: sum over sites and number of sites, one of each per term of the loss.
    """

    so_far: list[tuple[float, float]] = field(default_factory=list)

    @property
    def own(self) -> slice:
        """All rows of a pass."""
        return slice(None)

    def means(self, *own: Mean) -> tuple[Tensor, ...]:
        """The means over all passes."""
        self.so_far.extend([(0.0, 0.0)] * (len(own) - len(self.so_far)))
        for k, (mean, count) in enumerate(own):
            total, number = self.so_far[k]
            self.so_far[k] = total + float(mean) * float(count), number + float(count)
        return tuple(mean.new_tensor(total / max(number, 1.0)) for (mean, _), (total, number) in zip(own, self.so_far, strict=True))


@torch.no_grad()
def held_out_loss(policy: Any, data: Dataset, batch_size: int, *, draws: int = 1, seed: int = 42) -> float:
    """The policy's ``likelihood_loss`` of samples that it was not trained on.

    It is that of one batch of all samples: its terms are means over the tokens, nodes or pairs of all of them, however many passes
    they take. If ``likelihood_loss`` has no argument ``share``, it is the mean of the losses of the passes, each weighted by its
    number of samples.

    Args:
        policy: a policy with ``likelihood_loss``.
        data: the samples.
        batch_size: number of samples of a pass; which times, noise and hidden conditions a sample gets depends on it.
        draws: least number of losses that the mean is of; fewer samples are taken several times, with other times and noise.
        seed: random seed of times and noise, which are the same in every call.
    """
    device = next(policy.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    rows = torch.arange(len(data)).repeat(-(-draws // len(data)))
    share = {"share": _AllPasses()} if "share" in inspect.signature(policy.likelihood_loss).parameters else {}
    loss, total = 0.0, 0.0
    for part in rows.split(batch_size):
        loss = float(policy.likelihood_loss(data.batch(part).to(device), generator=generator, **share)["loss"])
        total += loss * len(part)
    return loss if share else total / len(rows)
