"""The checkpoints that are bundled with the package, with one line about each."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator
from typing import Any

__all__ = ["about_bundled", "bundled_checkpoints"]

WORDS = {"spatial": "molecules in space", "digraphs": "directed graphs"}
"""Names for the samples of a kind, if they differ from the name of the kind."""


def bundled_checkpoints() -> Iterator[tuple[Any, dict[str, Any]]]:
    """The folder and the configuration of each bundled checkpoint."""
    folder = importlib.resources.files("discrete_grpo.bundled")
    for place in sorted((p for p in folder.iterdir() if (p / "config.json").is_file()), key=lambda p: p.name):
        yield place, json.loads((place / "config.json").read_text(encoding="utf-8"))


def about_bundled() -> dict[str, dict[str, str]]:
    """Describe each bundled checkpoint in one line, by role and name."""
    found: dict[str, dict[str, str]] = {"bundled policies": {}, "bundled judges and classifiers": {}}
    for place, config in bundled_checkpoints():
        metadata = config["metadata"]
        kind, data = metadata.get("kind", "molecules"), metadata.get("data", {})
        trained = f"trained on {data.get('name', 'unknown data')}{' and by GRPO' if 'grpo_steps' in metadata else ''}"
        if kind in ("judge", "classifier"):
            found["bundled judges and classifiers"][place.name] = f"a {kind}, {trained}"
        else:
            found["bundled policies"][place.name] = f"a policy of {WORDS.get(kind, kind)}, {trained}"
    return found
