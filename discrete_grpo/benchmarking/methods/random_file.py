"""The control ``random``: screening of a file of molecules in random order."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discrete_grpo.benchmarking.jobs import sample_key
from discrete_grpo.benchmarking.method import Method

if TYPE_CHECKING:
    from discrete_grpo.rewards.ledger import Ledger
    from discrete_grpo.rewards.task import Task

__all__ = ["METHOD", "random_file"]


def random_file(task: Task, policy: Any, ledger: Ledger, seed: int, *, file: str | None = None, batch_size: int = 64) -> None:
    """Score the molecules of a file in random order until the budget is used up or the file ends.

    Args:
        task: what is optimised.
        policy: not used.
        ledger: counts the calls.
        seed: of the order.
        file: SMILES file (``.smi``, ``.txt``, ``.csv``, ``.tsv``, each optionally with ``.gz``); None takes the bundled molecules
            of at most 7 atoms.
        batch_size: molecules per call of the ledger.
    """
    smiles, key = _molecules(file), sample_key(task.kind)
    random.Random(seed).shuffle(smiles)
    for start in range(0, len(smiles), batch_size):
        if ledger.exhausted:
            return
        batch = smiles[start : start + batch_size]
        ledger.score([task], [key(text) or text for text in batch], source="screen")  # scores do not depend on the file's spelling


def _molecules(file: str | None) -> list[str]:
    """The different SMILES of a file, as they are written."""
    from discrete_grpo.datasets.enumeration import enumerated_smiles
    from discrete_grpo.datasets.reading import smiles_rows

    return enumerated_smiles() if file is None else list(dict.fromkeys(text for _, text in smiles_rows(Path(file))))


METHOD = Method(
    name="random",
    about="control: screens a file of molecules in random order (--screen FILE; by default the bundled small molecules)",
    source="",
    run=random_file,
    settings={"file": None, "batch_size": 64},
    needs_policy=False,
    task_kinds=("molecules",),
)
