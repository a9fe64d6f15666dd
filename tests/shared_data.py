"""Data sets that are not part of the repository, for the tests that are skipped without them."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("DISCRETE_GRPO_SHARED", Path(__file__).parents[2] / "shared")) / "data"
"""Folder of qm9.smi.gz, zinc250k_test.smi.gz, planar.npz, sbm.npz, tree.npz and docking/: see CONTRIBUTING.md."""
