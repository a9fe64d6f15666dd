"""The last part of every pretraining recipe: the likelihood training, the metrics of the policy, and the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from discrete_grpo.core.json_files import read_json
from discrete_grpo.core.processes import is_first
from discrete_grpo.datasets.shards import MANIFEST
from discrete_grpo.recipes.families import family_of, run_family
from discrete_grpo.recipes.output_files import as_text
from discrete_grpo.recipes.run_length import check_run_length
from discrete_grpo.recipes.sample import sample_policy
from discrete_grpo.rewards.sources import Unidentified, file_digest
from discrete_grpo.runs.checkpoint import CheckpointError, withdraw_export
from discrete_grpo.runs.console import print_table
from discrete_grpo.runs.folder import EVALUATION, EVALUATION_TABLES, SETTINGS, check_free, check_unused
from discrete_grpo.runs.lock import locked_folder
from discrete_grpo.runs.recorder import read_evaluation, write_json, write_table, write_text
from discrete_grpo.runs.settings import tell_changed_settings
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Dataset, Pretrainer

__all__ = ["Measure", "PretrainSettings", "fit", "fresh_metrics"]

SIZE = "samples of the data"
"""Name of the number of samples among the settings of a run."""
DIGEST = "digest of the data"
"""Name of the digest of the file of data among the settings of a run."""
Measure: TypeAlias = Callable[[Any], tuple[Mapping[str, float], Sequence[Any]]]
"""Function that returns the metrics of a policy and the samples they were computed from, which may be empty."""


def fresh_metrics(
    count: int,
    metrics: Callable[[list[Any]], Mapping[str, float]],
    *,
    batch_size: int = 256,
    columns: Sequence[Mapping[str, Any]] | None = None,
) -> Measure | None:
    """Return a function that draws ``count`` samples from a policy and returns their metrics and the samples; None for 0.

    Args:
        count: number of samples.
        metrics: function that computes the metrics of samples.
        batch_size: number of samples drawn at a time.
        columns: conditions of the samples in the form that the policy reads, used in turn; None for none.
    """

    def measure(policy: Any) -> tuple[Mapping[str, float], list[Any]]:
        samples, _ = sample_policy(policy, count, batch_size=batch_size, columns=columns)
        return metrics(samples), samples

    return measure if count else None


@runtime_checkable
class PretrainSettings(Protocol):
    """The settings that every pretraining recipe has."""

    @property
    def output_dir(self) -> str:
        """Run folder to make."""
        ...

    @property
    def pretrain(self) -> PretrainConfig:
        """Settings of the training loop."""
        ...


class _Kept:
    """Measures a policy, and keeps the last result."""

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self.numbers: Mapping[str, float] = {}
        self.samples: Sequence[Any] = ()

    def __call__(self, policy: Any) -> Mapping[str, float]:
        self.numbers, self.samples = self.measure(policy)
        return self.numbers


def fit(
    policy: Any,
    data: Dataset,
    recipe: PretrainSettings,
    *,
    metadata: Mapping[str, Any],
    evaluate: Measure | None = None,
    files: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
    before: bool = False,
    resume: bool = False,
) -> Path:
    """Train ``policy`` on ``data`` as ``recipe`` says, export it and write the report; returns the folder of the exported policy.

    Args:
        policy: see :class:`~discrete_grpo.training.pretrain.Pretrainer`, as for ``data``, ``metadata`` and ``resume``.
        data: the training set.
        recipe: recipe with the run folder and the settings of the training loop.
        metadata: kept with every checkpoint.
        evaluate: function called at every checkpoint, whose last result gives the metrics and samples of the report; None for none.
        files: contents of further files of the run folder, by name.
        facts: what else determines the training, by name, beside the settings; a resumed run prints one that has changed.
        before: whether the given policy is also measured before training.
        resume: whether to continue a stopped run.
    """
    folder, kept = Path(recipe.output_dir), None if evaluate is None else _Kept(evaluate)
    with locked_folder(folder):
        given: dict[str, Any] = {"metadata": metadata, "files": files or {}, "facts": facts or {}}
        return _fit(policy, data, recipe, folder, kept, before=before, resume=resume, **given)


def _fit(
    policy: Any,
    data: Dataset,
    recipe: PretrainSettings,
    folder: Path,
    kept: _Kept | None,
    *,
    metadata: Mapping[str, Any],
    files: Mapping[str, str],
    facts: Mapping[str, Any],
    before: bool,
    resume: bool,
) -> Path:
    """Do the work of :func:`fit`, inside the lock of the run folder."""
    if is_first() and not resume:
        check_unused(folder)
        for name, text in files.items():
            check_free(folder / name, text.encode())
    with _data_named(folder, len(data)):
        trainer = Pretrainer(policy, data, recipe.pretrain, folder, metadata=metadata, resume=resume, evaluate=kept)
    if trainer.processes.first:
        if is_dataclass(recipe):
            settings = {name: value for name, value in asdict(recipe).items() if name != "output_dir"}
            settings |= {SIZE: len(data), **_file_facts(recipe), **facts}
            check = partial(check_run_length, folder, "pretrain", recipe.pretrain)
            tell_changed_settings(folder, settings, resume=resume, check=check)
        for name, text in files.items():
            write_text(folder / name, text)
        if trainer.step < recipe.pretrain.max_steps:  # a run that had ended and is extended
            _forget(folder)
            if resume:
                withdraw_export(folder)
    if before and kept is not None and trainer.step == 0:
        trainer.processes.run_all(lambda: _measure_before(folder, kept, trainer) if trainer.processes.first else None)
    exported = trainer.train()
    best = recipe.pretrain.load_best_model_at_end  # other weights than those of the last checkpoint
    trainer.processes.run_all(lambda: _finish(folder, kept, trainer.averaged, best) if trainer.processes.first else None)
    return exported


@contextmanager
def _data_named(folder: Path, size: int) -> Iterator[None]:
    """Add to the error of a checkpoint that does not fit that the data of the run have changed, if their number has."""
    try:
        yield
    except CheckpointError as error:
        if (before := (read_json(folder / SETTINGS) or {}).get(SIZE, size)) != size:
            told = f"the data have {size} samples and had {before}, and the alphabet and sizes of a policy come from its data"
            error.args = (f"{error}; {told}",)
        raise


def _file_facts(recipe: PretrainSettings) -> dict[str, str]:
    """The digest of the file, or of the manifest of the shards, that the recipe reads; nothing for a named set.

    The digest also differs where the number of samples does not: for other samples, and for another order.
    """
    source = getattr(recipe, "data", None)
    if not isinstance(source, str | Path):
        return {}
    file = Path(source) / MANIFEST if Path(source).is_dir() else Path(source)
    try:
        return {DIGEST: file_digest(file)} if file.is_file() else {}
    except Unidentified:  # it was read before, and is gone or locked since
        return {}


def _forget(folder: Path) -> None:
    """Remove the metrics after training from a run that is continued."""
    found = read_evaluation(folder)
    (folder / EVALUATION).unlink(missing_ok=True)
    if "before" in found:
        write_json(folder / EVALUATION, {"before": found["before"]})


def _measure_before(folder: Path, kept: _Kept, trainer: Pretrainer) -> None:
    """Write the metrics and samples of the policy before training."""
    kept(trainer.averaged)
    if (trainer.config.metric_for_best_model or "").startswith("eval/"):  # a wrong name is found before any update
        trainer.checkpoints.check_metric({f"eval/{name}" for name in kept.numbers})
    if len(kept.samples):
        table = {"sample": as_text(kept.samples), **family_of(trainer.metadata).table(kept.samples)}
        write_table(folder / EVALUATION_TABLES["before"], table)
    write_json(folder / EVALUATION, {"before": dict(kept.numbers)})
    kept.numbers, kept.samples = {}, ()


def _finish(folder: Path, kept: _Kept | None, exported: Any, best: bool) -> None:
    """Write and print the numbers of the exported policy and its samples, and write the report.

    A run that had ended before, or was killed here, measures its policy if its metrics are missing, as does one that ends with
    its best policy.
    """
    from discrete_grpo.runs.report.report import write_report

    family, found = run_family(folder), read_evaluation(folder)
    if kept is not None and (kept.numbers or "after" not in found):
        if best or not kept.numbers:
            kept(exported)
        if len(kept.samples):
            table = {"sample": as_text(kept.samples), **family.table(kept.samples)}
            write_table(folder / EVALUATION_TABLES["after"], table)
        stages = {name: found[name] for name in ("before",) if name in found} | {"after": dict(kept.numbers)}
        write_json(folder / EVALUATION, stages)  # written last, as it marks the run as complete
        shown = {name: {k: None if v is None or math.isnan(v) else v for k, v in row.items()} for name, row in stages.items()}
        print_table(str(folder), shown)
    write_report(folder, render=family.draw)
