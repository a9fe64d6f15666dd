"""The line of a user's own file that an error came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import discrete_grpo
from discrete_grpo.core.error_place import error_place


def raised(file: str, code: str, **names: object) -> BaseException:
    """The error of code as if it stood in a file."""
    try:
        exec(compile(code, file, "exec"), dict(names))
    except BaseException as error:
        here = error.__traceback__
        return error.with_traceback(here.tb_next if here is not None else None)  # without the line of this file
    raise AssertionError("no error")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("/home/me/my_reward.py", " (my_reward.py, line 2)"),
        ("my_reward.py", " (my_reward.py, line 2)"),
        ("/tmp/ipykernel_17/3920.py", " (notebook cell, line 2)"),
        ("/home/me/.venv/lib/python3.12/site-packages/rdkit/Chem/__init__.py", ""),
        ("/usr/lib/python3/dist-packages/rdkit/Chem/__init__.py", ""),
        (str(Path(discrete_grpo.__file__).parent / "rewards/molecules.py"), ""),
        (json.__file__, ""),
        ("<string>", ""),
    ],
)
def test_files_of_the_user_are_named_and_no_others(file: str, said: str) -> None:
    assert error_place(raised(file, "x = 1\n1 / 0")) == said


def test_the_line_is_the_last_of_the_user_on_the_way_into_a_library() -> None:
    inner = raised("/home/me/chemistry.py", "import json\ndef score(s):\n    return json.loads(s)\nscore('two')")
    assert error_place(inner) == " (chemistry.py, line 3)"
    called = raised("/home/me/my_reward.py", "\n\nzeros(-1)", zeros=torch.zeros)
    assert error_place(called) == " (my_reward.py, line 3)"


def test_nothing_is_added_where_the_message_says_it_or_nothing_was_on_the_way() -> None:
    assert error_place(raised("/home/me/my_reward.py", "compile('def f(:', 'broken.py', 'exec')")) == ""
    assert error_place(KeyError("never raised")) == ""
