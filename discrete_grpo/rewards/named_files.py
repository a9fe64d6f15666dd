"""The files and folders that a reward names, with digests of their content."""

from __future__ import annotations

from pathlib import Path

from discrete_grpo.rewards.identity import code_identity
from discrete_grpo.rewards.sources import CodeSources, Unidentified, is_user_code, path_digest, source_file

__all__ = ["named_files"]


def named_files(reward: object) -> dict[str, str | None]:
    """Name -> digest of the content of each file and folder that a reward names.

    As for :func:`~discrete_grpo.rewards.identity.identify`, a text or a path in its state, or a literal of its functions, names a
    file, seen from the working folder or from the folder of a module of the reward; the latter has the module before its name. The
    digest is None for a file that cannot be read, and for a folder with more than 1,000 files. Sources of the reward itself are
    left out: its code has an identity of its own.
    """
    names = _Names()
    code_identity(reward, names)
    working = Path.cwd()
    found = {text: _digest(text) for text in names.texts if Path(text) not in names.sources}
    for folder, module in names.folders.items():
        if folder != working:
            found |= {f"{module}: {text}": _digest(str(folder / text)) for text in names.texts if not Path(text).is_absolute()}
    return {name: digest for name, digest in sorted(found.items()) if digest != ""}


def _digest(path: str) -> str | None:
    """The digest of what lies at a path, empty if nothing does."""
    try:
        found = path_digest(path)
    except Unidentified:
        return None
    return "" if found is None else found


class _Names(CodeSources):
    """Sources that collect the texts that may name a file, and the folders of the user's modules."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, None] = {}
        self.folders: dict[Path, str] = {}
        """Folder -> the first of the modules in it."""
        self.sources: set[Path] = set()

    def named(self, path: str) -> str | None:
        """None for every path, which is kept."""
        self.texts[path] = None
        return super().named(path)

    def add(self, name: str | None, *, follow: bool = True) -> None:
        """Count a module, and keep its folder."""
        super().add(name, follow=follow)
        path = source_file(name) if name is not None and is_user_code(name) else None
        if name is not None and path is not None:
            self.folders.setdefault(path.absolute().parent, name)
            self.sources |= {path, path.absolute()}
