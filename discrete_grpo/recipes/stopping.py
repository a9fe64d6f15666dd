"""Ends on-line training at the first update of which a metric reaches a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discrete_grpo.core.checks import check_fields, check_text, did_you_mean
from discrete_grpo.core.reward_arguments import reward_names
from discrete_grpo.recipes.families import Family
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.folder import METRICS
from discrete_grpo.runs.recorder import read_metrics
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.on_update import OnUpdate
from discrete_grpo.training.trainer import GRPOTrainer

if TYPE_CHECKING:
    from discrete_grpo.recipes.train import TrainRecipe

__all__ = ["Stop", "StopOptions", "end_if_reached", "logged_names", "with_stop"]

ALWAYS = (
    *("reward", "reward_std", "frac_reward_zero_std", "frac_reward_unknown", "advantages/abs_mean", "oracle/calls"),
    *("size/mean", "size/min", "size/max", "loss", "policy_loss", "entropy", "grad_norm", "learning_rate"),
    *("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"),
)
"""Metrics of every update; those of clipping, which some losses lack, are refused after the first one there."""
OCCASIONAL = ("replay/ratio", "oracle/new_calls")
"""Metrics that some updates lack, the first one perhaps; also those that end in ``/failed``."""


@dataclass(frozen=True, kw_only=True)
class StopOptions:
    """An end of on-line training before ``grpo.max_steps``; see ``docs/runs.md``.

    Attributes:
        stop_above: training ends at the first update whose ``stop_metric`` is at least this number; None never ends it so.
        stop_metric: with stop_above: name of the metric, as in ``metrics.jsonl``.
        stop_after: with stop_above: number of updates that are made in any case.
    """

    stop_above: float | None = None
    stop_metric: str = "reward"
    stop_after: int = 0

    def check_stop(self, rewards: Sequence[Any]) -> None:
        """Check the options of a run with these rewards.

        Raises:
            ValueError: for a number out of its range, a part of them without ``stop_above``, or ``stop_above`` without a reward.
        """
        check_fields(self, "stop_above")
        check_fields(self, "stop_after", least=0)
        check_text("stop_metric", self.stop_metric, "the name of a metric")
        if self.stop_above is None:
            for name in ("stop_metric", "stop_after"):
                if (value := getattr(self, name)) != getattr(StopOptions, name):
                    raise ValueError(f"{name}: {value!r}, expected none without stop_above (the number that ends training)")
        elif not rewards:
            raise ValueError(f"stop_above: {self.stop_above}, expected none without a reward: off-line updates have their number")


@dataclass(frozen=True)
class Stop:
    """Function for ``on_update`` that ends a run at the first update whose metric is at least a number.

    Attributes:
        metric: name of the metric.
        above: the number.
        after: number of updates that are made in any case.
        own: a user's function, which is called before and may end the run too.
    """

    metric: str
    above: float
    after: int = 0
    own: OnUpdate | None = None

    def __call__(self, trainer: GRPOTrainer, metrics: Mapping[str, float]) -> Any:
        """Whether the run ends; the first process says so in one line.

        Raises:
            ValueError: after the first update, if it has no such metric.
        """
        said = None if self.own is None else self.own(trainer, dict(metrics))
        if len(trainer.history) == 1 and self.metric not in (*OCCASIONAL, *metrics) and not self.metric.endswith("/failed"):
            raise _not_logged(self.metric, metrics)
        if not self.reached(trainer.step, metrics):
            return said
        if trainer.processes.first:
            print_notes([f"{self.told(trainer.step, metrics)}, so training ends here"])
        return said or True  # an answer that is no truth value is refused as in other updates

    def reached(self, step: int, metrics: Mapping[str, float | None]) -> bool:
        """Whether the run ends at this update; an unknown metric never ends it."""
        value = metrics.get(self.metric)
        return step >= self.after and value is not None and value >= self.above

    def told(self, step: int, metrics: Mapping[str, float | None]) -> str:
        """The metric of an update that has reached the number, in words."""
        return f"stop_above: {self.metric} is {metrics[self.metric]:.4g} at update {step}, at least {self.above:g}"


def with_stop(recipe: TrainRecipe, family: Family, functions: Mapping[str, Any]) -> Mapping[str, Any]:
    """The custom functions of a run, of which ``on_update`` also ends it as the recipe says.

    Raises:
        ValueError: for a metric that no update of the run can have, with the nearest one that it has.
    """
    if recipe.stop_above is None:
        return functions
    known = logged_names(recipe.grpo, recipe.rewards, family, budget=recipe.max_oracle_calls is not None)
    if known and recipe.stop_metric not in known and not recipe.stop_metric.startswith("fields/"):
        raise _not_logged(recipe.stop_metric, known)
    return {**functions, "on_update": Stop(recipe.stop_metric, recipe.stop_above, recipe.stop_after, functions.get("on_update"))}


def end_if_reached(trainer: GRPOTrainer, folder: Path) -> None:
    """Let a resumed run make no other update if its last one has reached the number, as one that was stopped after it has."""
    stop = trainer.on_update
    if not isinstance(stop, Stop) or trainer.step == 0:
        return
    written = trainer.processes.first and (folder / METRICS).is_file()
    last = trainer.processes.run_all(lambda: read_metrics(folder)[-1:] if written else [])[0]
    if last and last[0]["step"] == trainer.step and stop.reached(trainer.step, last[0]):
        trainer.config = replace(trainer.config, max_steps=trainer.step)
        if trainer.processes.first:
            print_notes([f"{stop.told(trainer.step, last[0])}, so no other update is made; resume with a larger number for more"])


def logged_names(config: GRPOConfig, rewards: Sequence[Any], family: Family, *, budget: bool) -> set[str]:
    """Names of the metrics that an update of a run can have, ``fields/...`` left out; none where a family of one's own hides them.

    The duration of an update is no such metric, since it would end a run at another update every time.
    """
    try:
        names = {*ALWAYS, *family.sample_metrics([None])}
    except Exception:  # a user's function, which need not accept it
        return set()
    names |= {f"rewards/{name}/{kind}" for name in reward_names(rewards) for kind in ("mean", "std", "failed")}
    optional = {
        ("kl", "kl_forward"): config.beta > 0,
        ("cispo_clip_ratio",): config.loss_type == "cispo",
        ("frac_refined", "refined/reward", "fresh/reward"): config.refine_fraction > 0,
        ("replay/rows", "replay/reward", "replay/ratio"): config.replay_samples > 0,
        ("resampling_rounds",): config.zero_std_groups == "resample",
        ("entropy_coef",): config.entropy_coef > 0 or config.use_adaptive_entropy,
        ("oracle/new_calls", "oracle/patience", "oracle/restarts"): config.patience is not None,
        ("oracle/left",): budget,
    }
    return names.union(*(own for own, given in optional.items() if given))


def _not_logged(name: str, known: Sequence[str] | set[str] | Mapping[str, float]) -> ValueError:
    names = sorted(set(known) - {"step_time"})
    told = f"{did_you_mean(name, names)} expected one of {', '.join(names)}".lstrip()
    return ValueError(f"stop_metric: {name!r} is not logged; {told}")
