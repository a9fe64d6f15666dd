"""Trackers of a run's metrics: TensorBoard and Weights & Biases, each an extra that is imported when it is used.

The run folder already has all metrics (:mod:`discrete_grpo.runs.recorder`). A tracker is a copy for live inspection, so
the run continues even if it fails (:class:`Trackers`).
"""

from __future__ import annotations

import importlib
import io
import math
import os
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from discrete_grpo.core.atomic import atomic_write

__all__ = [
    "Picture",
    "ReportTo",
    "TensorBoard",
    "Tracker",
    "Trackers",
    "WeightsAndBiases",
    "best_distinct",
    "molecule_grid",
    "open_trackers",
]

Picture: TypeAlias = Callable[[Sequence[str], Sequence[str]], bytes | None]
"""Function that draws samples and their captions as one PNG image, or None if there is nothing to draw."""
ReportTo = Literal["tensorboard", "wandb"]


@runtime_checkable
class Tracker(Protocol):
    """Interface of a tracker, which receives the metrics and some samples during a run."""

    def start(self, step: int) -> None:
        """Start at update ``step``, first and again after :meth:`close`; entries logged for later updates are obsolete."""
        ...

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Log the metrics of one update; values that are None or not finite are left out."""
        ...

    def log_samples(self, step: int, samples: Sequence[str], captions: Sequence[str]) -> None:
        """Log some samples of one update, with a text for each."""
        ...

    def close(self) -> None:
        """Close the tracker; if the run goes on in the same process, the next call is :meth:`start`."""
        ...


# -- what is shown


def best_distinct(
    samples: Sequence[Any], rewards: Sequence[float | None], count: int = 30
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ``count`` distinct samples of highest reward, best first, and their rewards as captions; unknown ones are left out.

    >>> best_distinct(["C", "CC", "C", None], [0.1, 0.7, 0.1, 0.0])
    (('CC', 'C'), ('0.7', '0.1'))
    """
    known: dict[str, float] = {}
    for sample, reward in zip(samples, rewards, strict=True):
        if sample is not None and reward is not None and not math.isnan(reward):
            known[str(sample)] = max(reward, known.get(str(sample), -math.inf))
    best = sorted(known, key=lambda s: -known[s])[:count]  # stable: of equals the first drawn
    return tuple(best), tuple(f"{known[s]:.3g}" for s in best)


def molecule_grid(
    smiles: Sequence[str], captions: Sequence[str], *, columns: int = 6, width: int = 180, height: int = 150
) -> bytes | None:
    """Draw molecules in rows as a PNG image, each above its caption, without those that RDKit cannot read; None if none is left.

    Args:
        smiles: what to draw.
        captions: one per molecule.
        columns: number of molecules per row.
        width: of one molecule's cell, in pixels.
        height: likewise.
    """
    from rdkit import Chem, rdBase
    from rdkit.Chem.Draw import rdMolDraw2D

    with rdBase.BlockLogs():
        pairs = [(Chem.MolFromSmiles(s), caption) for s, caption in zip(smiles, captions, strict=True)]
        shown = [(mol, caption) for mol, caption in pairs if mol is not None and mol.GetNumAtoms()]
        if not shown:
            return None
        columns = min(columns, len(shown))
        drawer = rdMolDraw2D.MolDraw2DCairo(columns * width, math.ceil(len(shown) / columns) * height, width, height)
        drawer.DrawMolecules([mol for mol, _ in shown], legends=[caption for _, caption in shown])
        drawer.FinishDrawing()
    return bytes(drawer.GetDrawingText())


def _pixels(png: bytes) -> Any:
    """A PNG as an array of bytes, [height,width,3]."""
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def _finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)}


def _needed(module: str, extra: str) -> None:
    """Raise early, before the first update, if a package is missing."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{extra}: {error}; expected the extra, pip install 'discrete-grpo[{extra}]'") from error


# -- TensorBoard and Weights & Biases


class TensorBoard:
    """Scalars, and samples as an image (or as text), in a TensorBoard folder.

    A resumed run continues in the same folder; steps beyond its checkpoint are marked as dropped, which TensorBoard and its
    readers respect.

    Args:
        folder: for the event files; made when the run starts.
        picture: draws samples; None: they are written as text.

    Raises:
        ImportError: if the package ``tensorboard`` is missing.
    """

    def __init__(self, folder: str | os.PathLike[str], *, picture: Picture | None = molecule_grid) -> None:
        _needed("torch.utils.tensorboard", "tensorboard")
        self.folder, self.picture = Path(folder), picture
        self._writer: Any = None

    def start(self, step: int) -> None:
        """Open a new event file of the folder; steps after ``step`` in older ones are dropped."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.folder), purge_step=step + 1)

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write one scalar per metric, which is on disk when this returns."""
        for name, value in _finite(metrics).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_samples(self, step: int, samples: Sequence[str], captions: Sequence[str]) -> None:
        """Write one image under the tag ``samples``, or a text."""
        png = self.picture(samples, captions) if self.picture is not None and samples else None
        if png is not None:
            self._writer.add_image("samples", _pixels(png), step, dataformats="HWC")
        else:  # indented by four is verbatim in Markdown
            self._writer.add_text("samples", "\n".join(f"    {c}  {s}" for s, c in zip(samples, captions, strict=True)), step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """Scalars, and samples as an image (or as a table), in a run of Weights & Biases.

    The id of the run is stored in ``wandb-id.txt`` of the folder, so that a resumed run continues the same W&B run. W&B
    accepts each step once: steps between the checkpoint and the interruption keep their values, which a resumed run repeats.

    Args:
        folder: the run folder; W&B keeps its own files in ``wandb`` there.
        project: name of the W&B project.
        name: name of the run; None takes that of the folder.
        mode: ``offline`` writes files only, for ``wandb sync``; ``disabled`` does nothing; None takes the mode of the variable
            WANDB_MODE, ``online`` if it is not set.
        config: settings to show with the run.
        picture: draws samples; None: they are logged as a table.

    Raises:
        ImportError: if the package ``wandb`` is missing.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        project: str = "discrete-grpo",
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        config: Mapping[str, Any] | None = None,
        picture: Picture | None = molecule_grid,
    ) -> None:
        if mode not in (None, "online", "offline", "disabled"):
            raise ValueError(f"mode: {mode!r}, expected online, offline, disabled or None")
        _needed("wandb", "wandb")
        self.folder, self.project, self.name, self.mode = Path(folder), project, name, mode
        self.config, self.picture = dict(config or {}), picture
        self._run: Any = None

    def start(self, step: int) -> None:
        """Start a new W&B run, or continue the one of the folder if ``step`` is above 0 or this object has started it."""
        wandb: Any = importlib.import_module("wandb")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=self.project,
            name=self.name or self.folder.resolve().name,
            id=self._id(new=step == 0 and self._run is None),
            resume="allow",
            dir=str(self.folder),
            mode=self.mode,
            config=self.config,
            settings=wandb.Settings(silent=True, console="off"),
        )

    def _id(self, *, new: bool) -> str:
        path = self.folder / "wandb-id.txt"
        if not new and path.exists():
            return path.read_text(encoding="utf-8").strip()
        made = uuid.uuid4().hex[:12]
        with atomic_write(path, "w") as file:
            file.write(made + "\n")
        return made

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Add one line to the history of the run."""
        self._run.log(_finite(metrics), step=step)

    def log_samples(self, step: int, samples: Sequence[str], captions: Sequence[str]) -> None:
        """Log one image under the name ``samples``, or a table, together with the metrics of the same step."""
        wandb: Any = importlib.import_module("wandb")
        png = self.picture(samples, captions) if self.picture is not None and samples else None
        if png is not None:
            shown = wandb.Image(_pixels(png))
        else:
            rows = [[sample, caption] for sample, caption in zip(samples, captions, strict=True)]
            shown = wandb.Table(columns=["sample", "caption"], data=rows)
        self._run.log({"samples": shown}, step=step)

    def close(self) -> None:
        """End the run, and wait until its files are written."""
        if self._run is not None:
            self._run.finish()


# -- several trackers as one


class Trackers:
    """Several trackers as one; a tracker that fails is reported in one warning and not called again.

    After :meth:`close`, the first entry for an update starts the others again at the update before it.

    Args:
        trackers: each with a name for the warning.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._on = dict(trackers)
        self._closed = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trackers that still work."""
        return tuple(self._on)

    def start(self, step: int) -> None:
        """See :class:`Tracker`."""
        self._closed = False
        self._each(lambda tracker: tracker.start(step))

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """See :class:`Tracker`."""
        self._reopen(step)
        self._each(lambda tracker: tracker.log(step, metrics))

    def log_samples(self, step: int, samples: Sequence[str], captions: Sequence[str]) -> None:
        """See :class:`Tracker`."""
        self._reopen(step)
        self._each(lambda tracker: tracker.log_samples(step, samples, captions))

    def close(self) -> None:
        """See :class:`Tracker`; trackers that are closed already are left as they are."""
        if not self._closed:
            self._closed = True
            self._each(lambda tracker: tracker.close())

    def _reopen(self, step: int) -> None:
        """Start closed trackers again before an entry for update ``step``."""
        if self._closed:
            self._closed = False
            self._each(lambda tracker: tracker.start(step - 1), stacklevel=4)

    def _each(self, what: Callable[[Tracker], None], *, stacklevel: int = 3) -> None:
        for name, tracker in list(self._on.items()):
            try:
                what(tracker)
            except Exception as error:
                del self._on[name]
                said = " ".join(f"{type(error).__name__}: {error}".split())
                warnings.warn(f"tracker {name}: switched off, the run goes on; {said}", RuntimeWarning, stacklevel=stacklevel)


# -- the trackers of a run


def open_trackers(
    folder: Path, report_to: Sequence[ReportTo], settings: Mapping[str, Any], *, picture: Picture | None = None
) -> Tracker | None:
    """Open the trackers of a run by name; None for none. The variable WANDB_MODE sets the mode of W&B.

    Args:
        folder: the run folder.
        report_to: names of trackers.
        settings: kept with the run by W&B.
        picture: draws samples; None: they are written as text.

    Raises:
        ValueError: for an unknown name.
        ImportError: if a package is missing.
    """
    found: dict[str, Tracker] = {}
    if isinstance(report_to, str):
        raise ValueError(f"report_to: {report_to!r}, expected a list of names, such as [{report_to!r}]")
    for name in report_to:
        if name == "tensorboard":
            found[name] = TensorBoard(folder / "tensorboard", picture=picture)
        elif name == "wandb":
            found[name] = WeightsAndBiases(folder, config=settings, picture=picture)
        else:
            raise ValueError(f"report_to: {name!r}, expected one of {', '.join(get_args(ReportTo))}")
    return Trackers(found) if found else None
