"""The checkpoint that a name stands for: a bundled one, a checkpoint folder or a run folder."""

from __future__ import annotations

from pathlib import Path

from discrete_grpo.core.checks import did_you_mean
from discrete_grpo.runs.checkpoint import CheckpointError, Checkpoints, load_metadata

__all__ = ["BUNDLED", "bundled_policies", "find_checkpoint"]

BUNDLED = Path(__file__).parents[1] / "bundled"
"""The folder of the policies, judges and classifiers of this package."""


def bundled_policies(role: str = "policy") -> list[str]:
    """List the policies bundled with the package; with ``role``, the judges or classifiers."""
    kinds = {p.parent.name: load_metadata(p.parent).get("kind") for p in BUNDLED.glob("*/config.json")}
    return sorted(name for name, kind in kinds.items() if role == (kind if kind in ("judge", "classifier") else "policy"))


def find_checkpoint(name: str | Path, role: str = "policy") -> Path:
    """Find the checkpoint folder meant by a bundled name, a checkpoint folder or a run folder.

    Args:
        name: name of a bundled checkpoint, or a path.
        role: ``policy``, ``judge`` or ``classifier``, for the error message.

    Raises:
        CheckpointError: if there is none.
    """
    path = Path(name)
    for candidate in (path, path / "policy", BUNDLED / str(name)):
        if (candidate / "config.json").is_file():
            return candidate
    for run in (path, path / "offline"):
        if (run / "checkpoints").is_dir():
            return Checkpoints(run).latest()
    known, within = bundled_policies(role), Path("runs", name)  # where presets put their runs
    plain = path.name == str(name)  # and no path, which is not compared with the names of bundled policies
    a_run = role == "policy" and plain and any((within / part).exists() for part in ("policy", "checkpoints"))
    near = f"did you mean '{within.as_posix()}'?" if a_run else did_you_mean(str(name), known) if plain else ""
    if (parts := str(name).split("."))[1:] and all(map(str.isidentifier, parts)) and Path(*parts[:-1]).with_suffix(".py").is_file():
        near = f"a class is named as {'.'.join(parts[:-1])}:{parts[-1]}"
    told = f"{role}: {str(name)!r} is no checkpoint folder, run folder or bundled {role}"
    raise CheckpointError(f"{told}; {near}" if near else f"{told} (bundled: {', '.join(known) or 'none'})")
