"""Download of named molecule sets from their public addresses, with a cache.

A set is downloaded only on request, and the package redistributes none. If the ``sha256`` of an entry is None, its checksum was
not known when the entry was written: the hash of the **first** download is printed, recorded beside the file
(``<file>.sha256``) and required on every later call. This detects a file that changes, but not one that was wrong at first.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from discrete_grpo.core.atomic import atomic_write
from discrete_grpo.core.digests import add_file

__all__ = ["DOWNLOADS", "Download", "default_cache", "download"]


@dataclass(frozen=True)
class Download:
    """Address of a file on the web.

    Attributes:
        url: address of the file.
        filename: name in the cache; its ending determines the format.
        sha256: checksum; None if it is not known.
    """

    url: str
    filename: str
    sha256: str | None = None


DOWNLOADS: dict[str, Download] = {
    "qm9": Download("https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/qm9.csv", "qm9.csv"),
    "zinc250k": Download(
        "https://raw.githubusercontent.com/aspuru-guzik-group/chemical_vae/master/models/zinc_properties/"
        "250k_rndm_zinc_drugs_clean_3.csv",
        "zinc250k.csv",
    ),
}


def default_cache() -> Path:
    """Return ``$DISCRETE_GRPO_CACHE``, or else the cache folder of pooch for this user and system."""
    import pooch

    return Path(os.environ.get("DISCRETE_GRPO_CACHE") or pooch.os_cache("discrete-grpo"))


def download(name: str, cache_dir: str | Path | None = None) -> Path:
    """Return the path of a named data set, which the first call downloads.

    Args:
        name: a key of :data:`DOWNLOADS`: ``"qm9"`` or ``"zinc250k"``.
        cache_dir: folder of the file; None is :func:`default_cache`.

    Raises:
        ValueError: if the name is unknown, or the file does not match its checksum.
        ConnectionError: if the download fails.
    """
    if name not in DOWNLOADS:
        raise ValueError(f"name: {name!r}, expected one of {sorted(DOWNLOADS)} or a path to a file of your own")
    entry = DOWNLOADS[name]
    folder = default_cache() if cache_dir is None else Path(cache_dir)
    path, record = folder / entry.filename, folder / f"{entry.filename}.sha256"
    known = entry.sha256 or (record.read_text().strip() if record.is_file() else None)
    if not path.is_file():
        _fetch(name, entry, folder)
    found = add_file(hashlib.sha256(), path).hexdigest()
    if known is None:
        with atomic_write(record, "w") as file:
            file.write(found + "\n")
        print(f"{name}: first download of {entry.url}, sha256 {found} recorded in {record}", file=sys.stderr)
    elif found != known:
        also = "" if entry.sha256 else f", and {record} too if its content may have changed,"
        raise ValueError(f"name: {name!r}: {path} has sha256 {found}, expected {known}; delete it{also} to download it again")
    return path


def _fetch(name: str, entry: Download, folder: Path) -> None:
    """Download into ``folder``; pooch writes a temporary file and renames it."""
    import pooch

    try:
        pooch.retrieve(entry.url, known_hash=None, fname=entry.filename, path=folder, progressbar=False)
    except Exception as error:  # requests, urllib, sockets and file systems raise different exceptions
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConnectionError(
            f"name: {name!r} could not be fetched from {entry.url} ({reason[:200]}); pass the path of a file you have instead"
        ) from None
