"""The page of all rewards says of each what it needs, what it returns and how it is called, and is never stale."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.rewards import reference
from discrete_grpo.rewards.reference import RewardEntry, public_rewards, reference_page

ENTRIES = public_rewards()
FOLDER = Path(reference.__file__).parent


def test_the_page_is_what_the_docstrings_say() -> None:
    stale = "stale: python -m discrete_grpo.rewards.reference > docs/rewards-reference.md"
    assert reference.PAGE.read_text(encoding="utf-8") == reference_page(), stale


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_every_reward_is_described_whole(entry: RewardEntry) -> None:
    made: Any = getattr(importlib.import_module(entry.module), entry.name)
    wanted = set(inspect.signature(made).parameters) if isinstance(made, type) else set()
    assert set(entry.arguments) == wanted
    assert all(entry.arguments.values())
    assert entry.about.endswith(".")
    assert entry.returns, "no section Returns: range and direction"
    assert entry.example, "no example"
    assert f"### {entry.name}\n" in reference_page()


def is_reward(value: Any) -> bool:
    """Whether a value, or the objects of a class, are called with ``samples``; found by other means than the page's."""
    if not callable(value) or getattr(value, "_is_protocol", False):
        return False
    call = value.__call__ if isinstance(value, type) else value
    parameters = inspect.signature(call).parameters
    return "samples" in list(parameters)[:2] and any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def test_every_public_reward_has_an_entry() -> None:
    found = set()
    for path in FOLDER.glob("*.py"):
        module = importlib.import_module(f"discrete_grpo.rewards.{path.stem}")
        found |= {name for name in getattr(module, "__all__", ()) if is_reward(getattr(module, name))}
    assert found == set(ENTRIES)


def test_the_list_needs_no_library() -> None:
    code = "import sys, discrete_grpo.rewards.reference as r; r.public_rewards(); print({'torch', 'rdkit'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_docstring_is_read_by_its_sections() -> None:
    entry = ENTRIES["Similarity"]
    assert entry.signature == "Similarity(target: str, radius: int = 2)"
    assert (
        "reward: str | Callable[..., Any], init_args: dict[str, Any] | None = None, *, workers: " in ENTRIES["RewardPool"].signature
    )
    assert list(entry.arguments) == ["target", "radius"]
    assert entry.example.splitlines() == ['>>> Similarity("CCO")(["CCO", "c1ccccc1", None])', "[1.0, 0.0, 0.0]"]
