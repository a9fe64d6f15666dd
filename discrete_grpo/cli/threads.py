"""How long idle threads of a parallel computation keep their cores busy."""

from __future__ import annotations

import os

__all__ = ["limit_spinning"]

SPINS = "10000"
"""Turns of GNU OpenMP's waiting loop before a thread sleeps; by default there are 30 times as many."""


def limit_spinning() -> None:
    """Let threads of GNU OpenMP that wait for each other sleep soon, so that they leave their cores to the thread they wait for.

    By default they spin for milliseconds, which is no slower on idle cores. Where another program occupies one core of two, each
    operation then waits until the scheduler interrupts the spinning thread. ``GOMP_SPINCOUNT`` and ``OMP_WAIT_POLICY`` of the user
    are kept. Call this before torch is imported, which reads the variable then.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
