"""Files that are the old ones or the new ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from discrete_grpo.core.atomic import atomic_write


def test_atomic_write_replaces_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with atomic_write(path, "w") as file:
        file.write("new\n")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_bytes() == b"new\n"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_leaves_the_old_file_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as file:  # noqa: PT012
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_gives_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with atomic_write(tmp_path / "ours"):
        pass
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_atomic_write_refuses_other_modes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mode: 'a', expected 'wb' or 'w'"):
        atomic_write(tmp_path / "file", "a")  # type: ignore[call-overload]
