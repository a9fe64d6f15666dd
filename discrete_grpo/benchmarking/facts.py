"""The circumstances of a benchmark: versions, commit, machine, and the policy it starts from."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from discrete_grpo.core.digests import add_file

__all__ = ["circumstances", "policy_facts", "short_sha256"]


def circumstances() -> dict[str, Any]:
    """Versions of this package (with its commit, where it is a checkout), Python, torch and RDKit, and the machine."""
    return {
        "version": _version("discrete-grpo"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "rdkit": _version("rdkit"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _commit() -> str | None:
    """The commit of the checkout that contains this package, with a plus sign if files have changed since; None without one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        found = [_git(root, "rev-parse", "--short=12", "HEAD"), _git(root, "status", "--porcelain", "--untracked-files=no")]
    except (OSError, subprocess.SubprocessError):
        return None
    return found[0] + ("+" if found[1] else "")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def short_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, its first 16 digits."""
    return add_file(hashlib.sha256(), path).hexdigest()[:16]


def policy_facts(name: str | None, loaded: Any) -> dict[str, Any]:
    """Name, digests of weights and settings, number of parameters and data of a policy.

    The digest of the settings is None where the policy cannot be described, as it could not be written to a checkpoint either.

    Args:
        name: as it was given; None for a policy object.
        loaded: a :class:`~discrete_grpo.recipes.loading.LoadedPolicy`.
    """
    import torch

    from discrete_grpo.core.rollout import as_module

    state = as_module(loaded.policy).state_dict()
    digest = hashlib.sha256()
    for key in sorted(state):
        raw = state[key].detach().cpu().contiguous().reshape(-1).view(torch.uint8)  # numpy has no bfloat16
        digest.update(key.encode() + raw.numpy().tobytes())
    data = loaded.metadata.get("data")
    return {
        "name": name or type(loaded.policy).__name__,
        "sha256": digest.hexdigest()[:16],
        "settings_sha256": _settings_digest(loaded.policy),
        "parameters": sum(p.numel() for p in as_module(loaded.policy).parameters()),
        "data": data.get("name") if isinstance(data, dict) else None,
    }


def _settings_digest(policy: Any) -> str | None:
    """SHA-256 of what a checkpoint says of a policy besides its weights, its first 16 digits."""
    from discrete_grpo.runs.serialization import describe

    try:
        told = json.dumps(describe(policy), sort_keys=True)
    except (TypeError, ValueError):
        return None
    return hashlib.sha256(told.encode()).hexdigest()[:16]
