"""Check that every pin of constraints.txt exists for every Python that setup.cfg names: ``python tests/pins.py``.

Asks pip which versions of each package have a wheel that a given Python takes on this machine, or at least a source
distribution; nothing is downloaded or installed. The exit code is 1 where a pin is missing, and 0 with a word where the
package index cannot be reached.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import os
import re
import runpy
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
CONTROL = "numpy"
"""A package that is there for every Python, if the index can be reached."""


def pythons(root: Path = ROOT) -> list[str]:
    """The versions of Python that setup.cfg names, such as 3.10."""
    return re.findall(r"Programming Language :: Python :: (3\.\d+)", (root / "setup.cfg").read_text(encoding="utf-8"))


def direct_dependencies(root: Path = ROOT) -> set[str]:
    """Names of what setup.cfg requires, those of the extras too."""
    config = configparser.ConfigParser()
    config.read(root / "setup.cfg", encoding="utf-8")
    texts = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    return {canonicalize_name(Requirement(line).name) for text in texts for line in text.splitlines() if line.strip()}


def pins(python: str, root: Path = ROOT) -> dict[str, str]:
    """Package -> version that constraints.txt pins for a Python.

    Raises:
        ValueError: if a line is no pin of one version, or two of them are for the same package.
    """
    found: dict[str, str] = {}
    for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        required = Requirement(line)
        exact = re.fullmatch(r"==([^,*]+)", str(required.specifier))
        if exact is None:
            raise ValueError(f"constraints.txt: {line!r}, expected NAME==VERSION, with a marker or without")
        if required.marker is not None and not required.marker.evaluate(environment(python)):
            continue
        name = canonicalize_name(required.name)
        if name in found:
            raise ValueError(f"constraints.txt: {line!r}, but {name}=={found[name]} applies to Python {python} too")
        found[name] = exact[1]
    return found


def environment(python: str) -> dict[str, str]:
    """What markers read, for a Python that need not be this one."""
    return {"python_version": python, "python_full_version": f"{python}.0"}


def versions(name: str, python: str, *, source: bool = False) -> list[Version]:
    """The versions of a package that have a wheel for a Python on this machine; none where pip finds nothing.

    Args:
        name: of the package.
        python: such as 3.10.
        source: count source distributions too.
    """
    said = io.StringIO()
    ask = ["download", f"{name}==0+none", "--no-deps", "--python-version", python]  # no such version: pip lists those there are
    ask += [] if source else ["--only-binary=:all:"]
    os.environ["PIP_CONSTRAINT"] = os.devnull  # a limit that this machine sets says nothing of what there is, and hides it
    sys.argv = ["pip", *ask, "--disable-pip-version-check", "--no-input", "--retries=1", "--timeout=20"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        runpy.run_module("pip", run_name="__main__")  # in this process: starting pip takes longer than asking it
    listed = re.search(r"\(from versions: ([^)]*)\)", said.getvalue())
    return [] if listed is None or listed[1] == "none" else [Version(text) for text in listed[1].split(", ")]


def _there(task: tuple[str, str, str], *, source: bool = False) -> bool:
    name, version, python = task
    return Version(version) in versions(name, python, source=source)


def missing(wanted: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Of triples (package, version, Python) those that the index does not have."""
    tasks = list(wanted)
    with ProcessPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        return [task for task, there in zip(tasks, pool.map(_there, tasks, chunksize=4), strict=True) if not there]


def main(root: Path = ROOT) -> int:
    """The exit code."""
    table: Mapping[str, dict[str, str]] = {python: pins(python, root) for python in pythons(root)}
    unpinned = [f"{name} for Python {p}" for p, known in table.items() for name in sorted(direct_dependencies(root) - known.keys())]
    if unpinned:
        print(f"pins: constraints.txt has none of {', '.join(unpinned)}")
        return 1
    if not versions(CONTROL, pythons(root)[-1]):
        print("pins: skipped, the package index cannot be reached")
        return 0
    gone = missing((name, version, python) for python, known in table.items() for name, version in known.items())
    gone = [task for task in gone if not _there(task)]  # asked again: one answer may have been lost
    if gone and not versions(CONTROL, pythons(root)[-1]):
        print("pins: skipped, the package index cannot be reached any more")
        return 0
    lost = 0
    for name, version, python in gone:
        built = _there((name, version, python), source=True)
        lost += not built
        print(f"pins: {name}=={version} {'has to be built from source' if built else 'does not exist'} for Python {python}")
    count = sum(map(len, table.values()))
    print(f"pins: {count - lost} of {count} exist, for Python {', '.join(table)}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
