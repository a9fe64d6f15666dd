"""Atomic, durable directory writes with SHA-256 checksums."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from discrete_grpo.core.atomic import sync_folder
from discrete_grpo.core.digests import add_file

__all__ = [
    "SUMS",
    "changed_file",
    "clear_files",
    "clear_replaced",
    "copy_mode",
    "explained",
    "real_name",
    "remove",
    "whole_folder",
    "write_sums",
]

SUMS = "SHA256SUMS"
LEFTOVER = re.compile(r"\.(.+)\.[0-9a-f]{8}\.(tmp|old)")
"""Suffixes of leftovers of killed writes: ``tmp`` is a new folder before its rename, ``old`` the one that it replaces."""


@contextmanager
def whole_folder(final: Path, leftovers: str | None = None) -> Iterator[Path]:
    """Yield a folder to write into, which replaces ``final`` atomically and durably at the end of the block.

    It is made beside ``final`` under another name. If the block raises, it is removed and ``final`` is left unchanged.

    Args:
        final: the folder to make or replace; missing parents are made.
        leftovers: pattern of names whose leftovers of killed writes are cleared first; None: those of ``final``.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    _clear(final.parent, re.escape(final.name) if leftovers is None else leftovers)
    temporary = _beside(final, "tmp")
    temporary.mkdir()
    try:
        yield temporary
        for written in temporary.iterdir():
            with written.open("rb+") as file:
                os.fsync(file.fileno())
        sync_folder(temporary)
        _replace(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _beside(final: Path, kind: str) -> Path:
    return final.with_name(f".{final.name}.{secrets.token_hex(4)}.{kind}")


def _replace(temporary: Path, final: Path) -> None:
    """Rename a folder to ``final``; an older one moves aside and is removed when the new one is safe on the disk."""
    old = _beside(final, "old") if os.path.lexists(final) else None
    if old is not None:
        final.rename(old)
    try:
        temporary.rename(final)
    except BaseException:
        if old is not None:
            old.rename(final)
        raise
    sync_folder(final.parent)
    if old is not None:
        remove(old)


def real_name(path: Path) -> str:
    """Return the name of a folder, also of one that a killed write had moved aside without a replacement."""
    match = LEFTOVER.fullmatch(path.name)
    return match[1] if match is not None and match[2] == "old" else path.name


def _clear(folder: Path, name: str) -> None:
    """Remove leftovers of killed writes of ``name`` (a pattern), or rename a folder back that has no replacement."""
    for path in sorted(folder.iterdir()):
        match = LEFTOVER.fullmatch(path.name)
        if match is None or re.fullmatch(name, match[1]) is None:
            continue
        if match[2] == "old" and not os.path.lexists(folder / match[1]):
            path.rename(folder / match[1])
        else:
            remove(path)


def remove(path: Path) -> None:
    """Remove a folder or a link (not its target). It is renamed first, so that its name never refers to an incomplete folder."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    nameless = path if LEFTOVER.fullmatch(path.name) else path.rename(_beside(path, "tmp"))
    shutil.rmtree(nameless, ignore_errors=True)  # leftovers that cannot be removed are tried again next time


def clear_files(folder: Path) -> None:
    """Remove the temporary files that killed writes of :func:`discrete_grpo.core.atomic.atomic_write` left in a folder."""
    for path in folder.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{12}\.tmp", path.name) and path.is_file():
            path.unlink()


def clear_replaced(folder: Path) -> None:
    """Remove the folders that killed writes of :func:`whole_folder` left in a folder, except those without a replacement."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = LEFTOVER.fullmatch(path.name)
        if match is not None and (match[2] == "tmp" or os.path.lexists(folder / match[1])):
            remove(path)


def copy_mode(source: Path, target: Path) -> None:
    """Give a file the permissions of another one; where they are equal, nothing is asked of the file system."""
    if source.stat().st_mode != target.stat().st_mode:
        shutil.copymode(source, target)


# -- sums


def write_sums(folder: Path, names: Sequence[str]) -> None:
    """Write SHA256SUMS of these files of a folder, in the format of ``sha256sum --check``."""
    (folder / SUMS).write_text("".join(f"{_digest(folder / name)}  {name}\n" for name in names), encoding="utf-8")


def changed_file(folder: Path, names: Sequence[str]) -> tuple[Path, str] | None:
    """Find the first of these files that differs from its checksum of :func:`write_sums`, and how; None if none does."""
    lines = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    sums = {name: found for found, _, name in (line.partition("  ") for line in lines)}
    for name in names:
        if name not in sums:
            return folder / SUMS, f"has no sum of {name}"
        try:
            found = _digest(folder / name)
        except OSError as error:
            return folder / name, f"cannot be read ({error.strerror})"
        if found != sums[name]:
            return folder / name, f"is not what was written (see {SUMS})"
    return None


def _digest(path: Path) -> str:
    return add_file(hashlib.sha256(), path).hexdigest()


# -- what went wrong


@contextmanager
def explained(path: Path, what_is_left: Callable[[], str]) -> Iterator[None]:
    """Turn disk errors of any library while ``path`` is written into one line that says what is left there.

    Raises:
        OSError: in place of such an error, with its number; other errors are passed on.
    """
    try:
        yield
    except Exception as error:
        found = _of_the_system(error)
        if found is None:
            raise
        raise OSError(found[0], f"{path}: cannot be written ({found[1]}); {what_is_left()}") from error


def _of_the_system(error: BaseException) -> tuple[int, str] | None:
    """Find number and text of the operating system's error behind another one: torch chains it, safetensors quotes it."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError):
            return link.errno or errno.EIO, link.strerror or str(link)
        link = link.__cause__ or link.__context__
    quoted = re.search(r"\(os error (\d+)\)", str(error))
    return None if quoted is None else (int(quoted[1]), os.strerror(int(quoted[1])))
