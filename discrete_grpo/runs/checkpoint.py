"""Checkpoints: weights as safetensors, the policy's construction as JSON, training state beside them.

A checkpoint is a folder::

    model.safetensors   the policy's weights (the moving average where one is kept)
    config.json         how to build the policy, the types of its tensors, and metadata (data, licence, statistics)
    training.pt         optimiser, generators, counters, raw weights; read with ``weights_only``, absent in an export
    SHA256SUMS          checksums of these files, for ``sha256sum --check``; absent in an export

Folders are written under another name, synced and renamed, so that a reader never sees part of one. Loading executes no code
from a checkpoint: classes are found by import path, and only inside packages the caller trusts.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.core.checks import check_whole, did_you_mean
from discrete_grpo.core.json_files import read_json, write_json
from discrete_grpo.runs.files import clear_files, copy_mode, explained, real_name, remove, whole_folder, write_sums
from discrete_grpo.runs.plain_state import plain_state
from discrete_grpo.runs.recorder import METRICS
from discrete_grpo.runs.serialization import TRUSTED, CheckpointError, build, describe, describe_types, restore_types
from discrete_grpo.runs.weights import WEIGHTS, check_sums, load_weights, saved_weights

__all__ = [
    "TRUSTED",
    "CheckpointError",
    "Checkpoints",
    "build",
    "describe",
    "load_metadata",
    "load_training",
    "load_weights",
    "read_policy",
    "save",
    "tensors_to_cpu",
    "withdraw_export",
]

FORMAT = 2
"""Version of the format that is written. Format 1 names old modules, see :mod:`~discrete_grpo.runs.serialization`."""
READABLE = (1, FORMAT)
FILES = (*WEIGHTS, "training.pt")
_METRICS = "metrics.json"
"""Name of the file in which :meth:`Checkpoints.judge` notes the metric of a checkpoint."""
STEP = re.compile(r"step-(\d{8,})")


# -- writing one checkpoint


def save(
    folder: str | os.PathLike[str],
    policy: nn.Module,
    *,
    metadata: Mapping[str, Any],
    training: Mapping[str, Any] | None = None,
    sums: bool = False,
) -> Path:
    """Write a checkpoint folder atomically, replacing an older one of that name.

    Args:
        folder: the folder to make.
        policy: a module with ``init_args()``; users of the checkpoint get its weights, with low-rank adapters (LoRA) merged.
        metadata: JSON values kept beside the weights.
        training: the state for an exact resume: tensors, numbers, strings and containers of them.
        sums: whether checksums are written without such a state too.

    Raises:
        TypeError: if the policy or the metadata cannot be described.
        OSError: if it cannot be written (a full disk); an older checkpoint is left unchanged.
    """
    final = Path(folder)
    config = _config(policy, metadata)
    with (
        explained(final, lambda: "what was there is as it was" if final.exists() else "nothing of it is left"),
        whole_folder(final) as temporary,
    ):
        _write_files(temporary, policy, config, training)
        if sums and training is None:
            write_sums(temporary, WEIGHTS)
    return final


def _config(policy: nn.Module, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Make the content of ``config.json``."""
    return {"format": FORMAT, "policy": describe(policy), "metadata": describe(metadata)} | describe_types(policy)


def _write_files(folder: Path, policy: nn.Module, config: Mapping[str, Any], training: Mapping[str, Any] | None) -> None:
    save_file(saved_weights(policy), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    copy_mode(folder / "config.json", folder / "model.safetensors")  # safetensors makes a private file (0600)
    if training is not None:
        with (folder / "training.pt").open("wb") as file:  # a file opened by Python, whose errors name the cause
            torch.save(plain_state(dict(training)), file)
        write_sums(folder, FILES)


# -- reading one checkpoint


def _read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise CheckpointError(f"checkpoint: {folder} has no config.json, expected a folder written by discrete-grpo")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint: {path} is no JSON ({error}); the file is truncated or was edited") from error
    found = config.get("format") if isinstance(config, dict) else None
    if found is None and isinstance(config, dict) and "model_type" in config:
        how = f"discrete-grpo import {quote(str(folder))} --from=huggingface --out=FOLDER"
        raise CheckpointError(f"checkpoint: {folder} is a model of HuggingFace; import it by: {how}")
    if type(found) is not int or found not in READABLE:
        raise CheckpointError(f"checkpoint: {path} has format {found!r}, expected {' or '.join(map(str, READABLE))}")
    if missing := [name for name in ("policy", "metadata") if not isinstance(config.get(name), dict)]:
        raise CheckpointError(f"checkpoint: {path} has no {' and no '.join(missing)}; the file was edited")
    return config


def load_metadata(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the metadata that a checkpoint was saved with."""
    return dict(_read_config(folder)["metadata"])


def read_policy(folder: str | os.PathLike[str], *, trusted: Sequence[str] = TRUSTED) -> Any:
    """Load the policy of a checkpoint on the CPU in eval mode, each tensor in the type it was saved in.

    Args:
        folder: the checkpoint.
        trusted: top-level packages whose classes may be instantiated; add your own for a custom policy or network.

    Raises:
        CheckpointError: if the policy cannot be built or its weights do not fit.
    """
    config = _read_config(folder)
    policy = build(config["policy"], trusted)
    if not isinstance(policy, nn.Module):
        raise CheckpointError(f"checkpoint: {folder} describes {type(policy).__name__}, expected a policy, which is an nn.Module")
    restore_types(policy, config)
    load_weights(folder, policy)
    return policy.eval()


def load_training(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the training state of a checkpoint without executing code from it.

    Raises:
        CheckpointError: if there is none or it cannot be read.
    """
    path = Path(folder) / "training.pt"
    if not path.is_file():
        raise CheckpointError(f"checkpoint: {folder} has no training.pt, so there is no run to resume from it")
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises many kinds for a damaged file
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"checkpoint: {path} cannot be read ({first}); the file is truncated or was changed") from error


def _check(folder: Path) -> None:
    """Raise CheckpointError, naming the file, unless a run's checkpoint is as it was written."""
    _read_config(folder)
    if check_sums(folder, FILES):
        return
    load_training(folder)  # from an earlier version without checksums; it is only checked to be readable
    _read_header(folder / "model.safetensors")


def _read_header(path: Path) -> None:
    try:
        with safe_open(path, "pt"):
            pass
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint: {path} cannot be read ({error}); the file is missing or truncated") from error


def _first_whole(paths: Iterable[Path], none: str) -> Path:
    """Return the first undamaged checkpoint; warn of those before it, or name all of them in the error."""
    reasons: list[str] = []
    for path in paths:
        try:
            _check(path)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        for reason in reasons:
            warnings.warn(f"{reason}; {path.name} is taken instead", RuntimeWarning, stacklevel=3)
        return path
    raise CheckpointError("; ".join([none, *reasons]))


# -- the checkpoints of a run


class Checkpoints:
    """The numbered checkpoints of a run folder, ``RUN/checkpoints/step-00000010``: the newest few and the best one.

    With a metric, the value of a checkpoint is what :meth:`judge` notes, or else the mean of that metric over the lines given to
    :meth:`save`. The best one is kept however old it is; among equal ones it is the older. ``RUN/checkpoints/best.json`` names it.

    Args:
        run: the run folder.
        save_total_limit: how many of the newest are kept, at least 1; the best one is kept in addition. None keeps all.
        metric_for_best_model: name of a logged metric; None: no checkpoint is the best.
        greater_is_better: None: True unless the metric's name ends in "loss", as in transformers.

    Raises:
        ValueError: if ``save_total_limit`` is below 1.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        save_total_limit: int | None = 2,
        *,
        metric_for_best_model: str | None = None,
        greater_is_better: bool | None = None,
    ) -> None:
        if save_total_limit is not None:
            check_whole("save_total_limit", save_total_limit, least=1)
        self.folder = Path(run) / "checkpoints"
        self.save_total_limit, self.metric_for_best_model = save_total_limit, metric_for_best_model
        falls = (metric_for_best_model or "").endswith("loss")
        self.greater_is_better = not falls if greater_is_better is None else greater_is_better

    def all(self) -> list[Path]:
        """List the complete checkpoints, oldest first, including one that a killed write had moved aside."""
        found: dict[int, Path] = {}
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():  # "." sorts first: the final name wins
            if (match := STEP.fullmatch(real_name(path))) is not None and path.is_dir():
                found[int(match[1])] = path
        return [found[step] for step in sorted(found)]

    def latest(self) -> Path:
        """Return the newest undamaged checkpoint; damaged newer ones are skipped with a warning.

        Raises:
            CheckpointError: if there is none.
        """
        return _first_whole(reversed(self.all()), f"checkpoint: {self.folder} holds no checkpoint to resume from")

    def best(self) -> Path | None:
        """Return the undamaged checkpoint with the best metric; None if no checkpoint has that metric.

        Raises:
            CheckpointError: if all checkpoints with the metric are damaged.
        """
        ranked = self._ranked()
        return _first_whole(ranked, f"checkpoint: {self.folder} holds no whole one with a metric") if ranked else None

    def check_new(self) -> None:
        """Refuse a folder with checkpoints or metrics of another run, which the first checkpoint of a new run would remove.

        Raises:
            ValueError: naming the newest of them.
        """
        run = self.folder.parent
        if found := [*self.all()[-1:], *(path for path in (run / METRICS,) if path.exists())]:
            wanted = "expected a folder without them, or resume=True to continue it"
            raise ValueError(f"run: {run} holds results of another run ({found[0].name}), {wanted}")

    def check_metric(self, names: Iterable[str]) -> None:
        """Raise ValueError if ``metric_for_best_model`` is set and not among the logged ``names``."""
        name, known = self.metric_for_best_model, sorted(names)
        if name is not None and name not in known:
            told = f"{did_you_mean(name, known)} expected one of {', '.join(known)}".lstrip()
            kept = [real_name(path) for path in self.all()]
            again = f"; resume {self.folder.parent} with the right name" if kept else ""
            if kept == [f"step-{0:08d}"]:
                again = f"; {self.folder.parent} keeps no update, so begin again in another folder"
            raise ValueError(f"metric_for_best_model: {name!r} is not logged; {told}{again}")

    def save(
        self,
        step: int,
        policy: nn.Module,
        *,
        metadata: Mapping[str, Any],
        training: Mapping[str, Any],
        lines: Sequence[Mapping[str, float | None]] = (),
        awaited: int | None = None,
    ) -> Path:
        """Write the checkpoint of ``step``, then remove those that are neither among the newest nor the best.

        Later checkpoints are removed too: they belong to a run that was resumed from an earlier one because they were damaged.

        Args:
            step: number of updates made.
            policy: see :func:`save`.
            metadata: see :func:`save`.
            training: see :func:`save`.
            lines: the metrics logged since the previous checkpoint; empty where a checkpoint is written again.
            awaited: step of an earlier checkpoint that is kept as well, because :meth:`judge` is still to be called for it.

        Raises:
            OSError: if it cannot be written (a full disk), naming the checkpoints that exist; they are left unchanged.
        """
        final = self._path(step)
        metrics = self._mean(lines) if lines else _metrics(final)
        config = _config(policy, metadata) | ({"metrics": metrics} if metrics else {})
        with explained(final, self._what_is_left):
            with whole_folder(final, leftovers=STEP.pattern) as temporary:
                _write_files(temporary, policy, config, training)
            clear_files(self.folder)
            there = self.all()
            for later in there[there.index(final) + 1 :]:
                remove(later)
            self._keep_best(awaited)
        return final

    def _keep_best(self, awaited: int | None = None) -> None:
        """Name the best checkpoint in a file, and remove those that are neither among the newest nor the best nor awaited."""
        best = self._ranked()[:1]
        self._note(best)
        kept = best if awaited is None else [*best, self._path(awaited)]
        for old in self.all()[: -self.save_total_limit] if self.save_total_limit is not None else ():
            if old not in kept:
                remove(old)

    def judge(self, step: int, line: Mapping[str, float | None]) -> None:
        """Note the metric of the checkpoint of ``step`` from the metrics of samples that its policy drew after it was written.

        Nothing is noted where the metric is unknown, or the checkpoint is not there.

        Raises:
            OSError: if it cannot be written (a full disk).
        """
        folder, found = self._path(step), self._mean([line])
        if not found or not folder.is_dir():
            return
        with explained(folder / _METRICS, self._what_is_left):
            write_json(folder / _METRICS, found)
            self._keep_best()

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _mean(self, lines: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
        """Compute the metric's mean over the lines that have it; empty where none does."""
        name = self.metric_for_best_model or ""
        values = [float(x) for line in lines if (x := line.get(name)) is not None and math.isfinite(x)]
        return {name: math.fsum(values) / len(values)} if values else {}

    def _what_is_left(self) -> str:
        there = self.all()
        return f"a resumed run goes on from {there[-1].name}" if there else f"{self.folder} holds no checkpoint yet"

    def _ranked(self) -> list[Path]:
        """List the checkpoints that have the metric, best first; equal ones in their order."""
        metrics = [(_metrics(path), path) for path in self.all()]
        worth = [(found[name], path) for found, path in metrics if (name := self.metric_for_best_model or "") in found]
        return [path for _, path in sorted(worth, key=lambda pair: -pair[0] if self.greater_is_better else pair[0])]

    def _note(self, best: Sequence[Path]) -> None:
        """Write best.json for readers of the folder; this program does not read it."""
        name = self.metric_for_best_model
        if name is None or not best:
            return
        found = {"checkpoint": best[0].name, "metric": name, "value": _metrics(best[0])[name]}
        with atomic_write(self.folder / "best.json", "w") as file:
            file.write(json.dumps(found | {"greater_is_better": self.greater_is_better}, indent=1) + "\n")


def _metrics(folder: Path) -> dict[str, float]:
    """Read the metric of a checkpoint by its name; empty where it has none or cannot be read."""
    try:
        found = read_json(folder / _METRICS) or _read_config(folder).get("metrics")
    except CheckpointError:
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: float(value) for name, value in pairs if isinstance(value, int | float) and math.isfinite(value)}


def tensors_to_cpu(tree: Any) -> Any:
    """Copy a nested state with every tensor detached on the CPU."""
    if isinstance(tree, Tensor):
        return tree.detach().cpu().clone()
    if isinstance(tree, Mapping):
        return {k: tensors_to_cpu(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(tensors_to_cpu(v) for v in tree)
    return tree


def withdraw_export(run: str | os.PathLike[str]) -> None:
    """Remove the exported policy of an ended run that is continued, so that its newest checkpoint is used until it ends again."""
    remove(Path(run) / "policy")
