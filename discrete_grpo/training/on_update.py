"""A custom function that is called after every update of a run, to measure, to log or to end the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from discrete_grpo.core.checks import check_function
from discrete_grpo.core.interrupt import Interrupted

if TYPE_CHECKING:
    from discrete_grpo.training.trainer import GRPOTrainer

__all__ = ["OnUpdate", "check_on_update", "ends_run"]

OnUpdate = Callable[[Any, Mapping[str, float]], "bool | None"]
"""Function ``(trainer, metrics) -> bool | None`` of the trainer and the metrics of its last update.

It is called in every process, after the checkpoint if one is written; a resumed run does not call it again for that update. True
in any process ends the run in all of them, after a checkpoint. The function should draw from a random generator of its own, so
that a resumed run is bit-identical.
"""


def check_on_update(on_update: OnUpdate | None) -> None:
    """Raise ``ValueError`` unless there is no function, or one that takes a trainer and its metrics."""
    if on_update is not None:
        check_function("on_update", on_update, "(trainer, metrics)", 2)


def ends_run(on_update: OnUpdate | None, trainer: GRPOTrainer, metrics: Mapping[str, float]) -> bool:
    """Call the function, if there is one, in every process; return whether the run ends here, after a checkpoint was written.

    Raises:
        ValueError: if it returns anything but True, False or None.
        Exception: any error of the function. In both cases a checkpoint is written first.
    """
    if on_update is None:
        return False
    try:
        ends = any(trainer.processes.run_all(lambda: _answer(on_update(trainer, dict(metrics)))))
    except (Exception, Interrupted):  # also of a run that it started
        trainer.save()
        raise
    trainer.ended = ends  # the checkpoint of the end counts among the best, as that of the last update does
    if ends:
        trainer.save()
    return ends


def _answer(said: object) -> bool:
    truth = isinstance(said, bool | np.bool_) or (isinstance(said, Tensor) and said.dtype == torch.bool and said.ndim == 0)
    if said is not None and not truth:
        raise ValueError(f"on_update: returned {said!r}, expected True (the run ends here), False or None")
    return bool(said)
