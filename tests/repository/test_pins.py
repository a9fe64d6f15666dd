"""Every direct dependency is pinned for every Python, and the check of the pins tells a missing one from a missing network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pins

SETUP = """[metadata]
classifiers =
    Programming Language :: Python :: 3.10
    Programming Language :: Python :: 3.13
[options]
install_requires =
    numpy>=1
[options.extras_require]
other =
    Some-Thing[extra]>=2
"""
PINS = """# a comment
numpy==2.2.6 ; python_version < "3.11"
numpy==2.4.6 ; python_version >= "3.11"
some_thing==2.5
"""


@pytest.mark.parametrize("python", pins.pythons())
def test_every_direct_dependency_has_one_pin(python: str) -> None:
    assert pins.direct_dependencies() - pins.pins(python).keys() == set()


def test_setup_cfg_names_every_python_from_3_10_on() -> None:
    assert pins.pythons() == ["3.10", "3.11", "3.12", "3.13"]


def project(root: Path, constraints: str = PINS) -> Path:
    (root / "setup.cfg").write_text(SETUP)
    (root / "constraints.txt").write_text(constraints)
    return root


def test_pins_follow_their_markers(tmp_path: Path) -> None:
    root = project(tmp_path)
    assert pins.direct_dependencies(root) == {"numpy", "some-thing"}
    assert pins.pins("3.10", root) == {"numpy": "2.2.6", "some-thing": "2.5"}
    assert pins.pins("3.13", root) == {"numpy": "2.4.6", "some-thing": "2.5"}


@pytest.mark.parametrize(
    ("line", "said"),
    [("numpy>=2", "'numpy>=2', expected NAME==VERSION"), ("numpy==3.0", r"numpy==2\.2\.6 applies to Python 3\.10 too")],
)
def test_a_line_that_pins_nothing_or_twice_is_refused(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pins.pins("3.10", project(tmp_path, f"{PINS}{line}\n"))


def checked(root: Path, wheels: list[str]) -> subprocess.CompletedProcess[str]:
    """The check of a small project, with a folder of wheels (empty files; pip reads their names) in the place of an index."""
    folder = root / "wheels"
    folder.mkdir(exist_ok=True)
    for name in wheels:
        (folder / name).touch()
    code = f"import pathlib, sys; from tests import pins; sys.exit(pins.main(pathlib.Path({str(root)!r})))"
    found = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **found}, cwd=pins.ROOT
    )


WHEELS = ["numpy-2.2.6-cp310-none-any.whl", "numpy-2.4.6-cp313-none-any.whl", "some_thing-2.5-py3-none-any.whl"]


@pytest.mark.parametrize(
    ("wheels", "code", "said"),
    [
        (WHEELS, 0, "pins: 4 of 4 exist, for Python 3.10, 3.13"),
        ([*WHEELS[1:], "numpy-2.2.5-cp310-none-any.whl"], 1, "pins: numpy==2.2.6 does not exist for Python 3.10\n"),
        (WHEELS[:2], 1, "pins: some-thing==2.5 does not exist for Python 3.13\n"),
        ([*WHEELS[:2], "some_thing-2.5.tar.gz"], 0, "pins: some-thing==2.5 has to be built from source for Python 3.13\n"),
        ([], 0, "pins: skipped, the package index cannot be reached\n"),
    ],
)
def test_a_missing_pin_fails_and_a_missing_index_does_not(tmp_path: Path, wheels: list[str], code: int, said: str) -> None:
    done = checked(project(tmp_path), wheels)
    assert (done.returncode, done.stderr) == (code, "")
    assert said in done.stdout


def test_a_dependency_without_a_pin_fails(tmp_path: Path) -> None:
    done = checked(project(tmp_path, "numpy==2.2.6\n"), WHEELS)
    assert (done.returncode, done.stdout) == (
        1,
        "pins: constraints.txt has none of some-thing for Python 3.10, some-thing for Python 3.13\n",
    )
