"""Fixtures of the recipe tests: a small policy of molecules, and references of named graph sets that are computed once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from discrete_grpo.datasets.synthetic_graphs import NAMED_SETS
from discrete_grpo.recipes.kinds import graphs as graph_family
from tests.recipes.small_molecules import save_small_molecules


@pytest.fixture(scope="session")
def small_molecules(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a policy of molecules of at most four atoms, with which a run takes little time."""
    return str(save_small_molecules(tmp_path_factory.mktemp("small") / "molecules"))


REFERENCES: dict[tuple[str, str], Any] = {}
"""The references of named sets, by the set and the shape: the same every time, and a second of work each."""


@pytest.fixture(scope="module", autouse=True)
def named_sets_are_described_once() -> Iterator[None]:
    """Let all runs of this folder that were trained on a named set measure against one reference of it."""
    trained_on = graph_family._trained_on

    def once(source: str, data: Any, metadata: Any) -> Any:
        if source not in NAMED_SETS or "test_share" in data:
            return trained_on(source, data, metadata)
        key = source, metadata.get("shape", "connected")
        if key not in REFERENCES:
            REFERENCES[key] = trained_on(source, data, metadata)
        return REFERENCES[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_family, "_trained_on", once)
        yield
