"""Metrics of a generation: each process describes its own samples, and the first one combines the descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from discrete_grpo.core.error_place import error_place
from discrete_grpo.core.sample_metrics import SampleMetrics
from discrete_grpo.core.scoring import Accounts, RewardError, shown_value
from discrete_grpo.training.distributed import ProcessGroup
from discrete_grpo.training.log import RunLog
from discrete_grpo.training.sampler import Generation

__all__ = ["generation_metrics"]

OfSamples = Callable[[Sequence[Any]], Mapping[str, float]]


def generation_metrics(
    generation: Generation,
    of_samples: OfSamples | None,
    log: RunLog | None,
    ledger: Accounts | None,
    before: float | None,
    processes: ProcessGroup,
) -> dict[str, float]:
    """Metrics of a generation, the same in all processes.

    Args:
        generation: the generation.
        of_samples: computes metrics of samples in the first process; a
            :class:`~discrete_grpo.core.sample_metrics.SampleMetrics` has every process describe its own samples.
        log: log of the first process; None in the others.
        ledger: counter of reward calls; None if calls are not counted.
        before: number of calls before the generation was drawn; None omits the metric of new calls.
        processes: all processes of the run.

    Raises:
        ValueError: if ``of_samples`` returns anything but a mapping of names to numbers, or a name of the trainer's own metrics.
        RewardError: in all processes, if a function of samples raises.
    """
    described = _described(of_samples, generation, processes)

    def work() -> dict[str, float]:
        if log is None:
            return {}
        samples = [sample for batch in generation.batches for sample in batch.rollout.samples]
        if isinstance(of_samples, SampleMetrics) and described is not None:
            found = _checked(_called(of_samples.summarise, samples, described))
        else:
            found = {} if of_samples is None else _checked(_called(of_samples, samples))
        return log.metrics(generation, found, ledger, before)

    return processes.run_all(work)[0]


def _called(of_samples: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function of samples; an exception becomes a :class:`RewardError`, before which the trainer saves the run."""
    try:
        return of_samples(*arguments)
    except Exception as error:
        said = " ".join(str(error).split())
        raise RewardError(f"sample_metrics: raised {type(error).__name__}: {said}{error_place(error)}") from error


def _checked(found: object) -> dict[str, float]:
    """The metrics that a function of samples returned.

    Raises:
        ValueError: unless it is a mapping of names to numbers.
        RewardError: for None in place of a number.
    """
    if not isinstance(found, Mapping):
        raise ValueError(f"sample_metrics: returned {shown_value(found)}, expected a mapping of names to numbers")
    numbers: dict[str, float] = {}
    for name, value in found.items():
        try:
            if isinstance(value, str):
                raise TypeError
            numbers[name] = value if type(value) is int else float(value)  # numpy's numbers cannot be read from a checkpoint
        except (TypeError, ValueError):
            kind = RewardError if value is None else ValueError  # None may be the mean of no sample of this generation
            raise kind(f"sample_metrics: {name!r} is {shown_value(value)}, expected a number") from None
    return numbers


def _described(of_samples: OfSamples | None, generation: Generation, processes: ProcessGroup) -> list[Any] | None:
    """Descriptions of all samples of ``generation.batches`` in the first process; None in others, and for plain functions."""
    if not isinstance(of_samples, SampleMetrics):
        return None
    own = list[Any]()
    fresh = [batch for batches in generation.mine for batch in batches if not batch.replayed]
    processes.run_all(lambda: own.extend(chain(*(_called(of_samples.of_own, batch.rollout.samples) for batch in fresh))))
    found = processes.gather_to_first(own)
    return None if found is None else list(chain(*found))
