"""Freed memory stays in the process of a command, and what the user has set stays too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import os, resource, sys
from discrete_grpo.cli.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
import torch
torch.set_num_threads(1)

def work():
    tensors = [torch.zeros(2_000_000) for _ in range(4)]  # 8 MB each

for _ in range(3):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, os.environ.get("THP_MEM_ALLOC_ENABLE"))
"""


def faults(how: str, **environment: str) -> tuple[int, str]:
    """Page faults of ten times 32 MB that are made and freed, and the environment variable of huge pages."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "THP_", "GLIBC_"))}
    command = [sys.executable, "-c", CODE, how]
    told = subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True).stdout.split()
    return int(told[0]), told[1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc only")  # type: ignore[operator]
def test_freed_memory_is_used_again() -> None:
    kept, huge = faults("kept")
    assert kept < 1_000  # 80,000 pages; a machine short of huge pages takes a few hundred small ones
    assert huge == "1"
    mapped, huge = faults("kept", MALLOC_MMAP_THRESHOLD_="1000000", THP_MEM_ALLOC_ENABLE="0")  # as the user has set
    assert mapped > 10_000
    assert huge == "0"
