"""Content hashes of the source files and data files that a reward is made of.

Nothing is imported or executed here: imports are found by their text, so that a module which is imported later, inside a
function, counts too. The text is read generously: what only looks like an import or a file name costs at most a score that is
computed again.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.metadata
import os
import re
import stat
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from discrete_grpo.core.digests import add_file

__all__ = ["CodeSources", "Sources", "Unidentified", "file_digest", "imported_inside", "is_user_code", "path_digest", "source_file"]

OWN = __name__.partition(".")[0]
MAX_FILES = 1000
"""Largest number of files in a folder that is hashed as a whole."""
MAX_FOLLOWED = 200
"""Modules of an installed package that are hashed one by one; a larger package stands for itself by its version."""
_LARGE = 1 << 20
_INSTALLED = {"site-packages", "dist-packages"}
_IMPORT = re.compile(r"\bfrom\s+(\.*)\s*([\w.]*)\s*import\b\s*(\([^)]*\)|[^\n;]*)|\bimport\s+([\w. \t,]+)")
_DYNAMIC = re.compile(r"""(?:import_module|__import__)\(\s*["'](\.*)([\w.]+)["']""")
_LITERALS = re.compile(r"""(?:(["'])(?:(?!\1)[^\\\n])+\1[\s,/]*)+""")
_LITERAL = re.compile(r"""(["'])((?:(?!\1)[^\\\n])+)\1""")


class Unidentified(Exception):
    """A reward cannot be distinguished from an edited version of itself; the message gives the reason."""


# -- files


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@functools.lru_cache(maxsize=4096)
def _large_digest(path: Path, size: int, changed: int, inode: int) -> str:
    return add_file(hashlib.blake2b(digest_size=16), path).hexdigest()


def file_digest(path: str | os.PathLike[str]) -> str:
    """The digest of a file's content. One above 1 MiB is read again only when its size, time of change or inode differ.

    Raises:
        Unidentified: if the file cannot be read.
    """
    file = Path(path)
    try:
        found = file.stat()
        if found.st_size > _LARGE:
            return _large_digest(file.absolute(), found.st_size, found.st_mtime_ns, found.st_ino)
        return _digest(file.read_bytes())
    except OSError as error:
        raise Unidentified(f"{file} cannot be read ({error.strerror})") from error


def path_digest(path: str) -> str | None:
    """The digest of the file or folder that a text names; None if it names none.

    Raises:
        Unidentified: if it cannot be read, or the folder holds more than 1,000 files.
    """
    kind = None if len(path) > 1024 or "\n" in path or not path else _kind(path)
    if kind is None:
        return None
    return file_digest(path) if stat.S_ISREG(kind) else _folder_digest(Path(path)) if stat.S_ISDIR(kind) else None


def _kind(path: str | Path) -> int | None:
    """The mode of what lies at a path; None if nothing does."""
    try:
        return Path(path).stat().st_mode
    except (OSError, ValueError):
        return None


def _is_file(path: str | Path) -> bool:
    return stat.S_ISREG(_kind(path) or 0)


def _folder_digest(path: Path) -> str:
    files: list[Path] = []
    for folder, inner, names in os.walk(path):
        inner[:] = [name for name in inner if name != "__pycache__"]
        files += [Path(folder) / name for name in names]
        if len(files) > MAX_FILES:
            raise Unidentified(f"the folder {path} holds more than {MAX_FILES:,} files")
    pairs = [(str(file.relative_to(path)), file_digest(file)) for file in sorted(files) if _is_file(file)]
    return _digest(repr(pairs).encode("utf-8", "surrogatepass"))


# -- modules


def source_file(name: str) -> Path | None:
    """The file of a module by its name, loaded or not; None if it has none (built in, made by hand, or not there)."""
    module = sys.modules.get(name)
    if module is not None:
        found = getattr(module, "__file__", None)
    else:
        spec = _spec(name)
        found = spec.origin if spec is not None and spec.has_location else None
    return Path(found) if isinstance(found, str) and _is_file(found) else None


def _spec(name: str) -> Any:
    """The spec of a module that is not loaded, without loading its parents as :func:`importlib.util.find_spec` would."""
    parent = name.rpartition(".")[0]
    places = None
    if parent:
        loaded = sys.modules.get(parent)
        spec = None if loaded is not None else _spec(parent)
        places = getattr(loaded, "__path__", None) if loaded is not None else getattr(spec, "submodule_search_locations", None)
        if places is None:
            return None
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, places)
        except Exception:  # a finder that cannot look: as if it found nothing
            continue
        if spec is not None:
            return spec
    return None


@functools.cache
def _standard() -> tuple[str, ...]:
    return tuple(os.path.realpath(sysconfig.get_path(kind)) + os.sep for kind in ("stdlib", "platstdlib"))


def _is_installed(path: Path) -> bool:
    return bool(_INSTALLED.intersection(path.parts))


def _is_standard(path: Path) -> bool:
    return not _is_installed(path) and os.path.realpath(path).startswith(_standard())


def is_user_code(name: str | None) -> bool:
    """Whether a module belongs neither to Python, nor to an installed package, nor to this one; true also without a file."""
    if name is None or name.partition(".")[0] == OWN or name == "builtins":
        return False
    path = source_file(name)
    if path is None:
        return name.partition(".")[0] not in sys.stdlib_module_names
    return not _is_installed(path) and not _is_standard(path)


@functools.lru_cache(maxsize=4096)
def _imports(text: str, name: str, package: bool) -> tuple[str, ...]:
    """Every name that may be a module imported by the text of module ``name``."""
    return tuple(_found_imports(text, name, package))


def _found_imports(text: str, name: str, package: bool) -> Iterator[str]:
    for match in _IMPORT.finditer(text.replace("\\\n", " ")):
        dots, base, names, plain = match.groups()
        if plain is not None:
            yield from (part.split()[0] for part in plain.split(",") if part.split())
        elif (whole := _absolute(name, package, len(dots), base)) is not None:
            yield whole
            words = (part.split() for part in re.sub(r"#[^\n]*|[()]", "", names).split(","))
            yield from (f"{whole}.{part[0]}" for part in words if part and part[0].isidentifier())
    for dots, base in _DYNAMIC.findall(text):
        if (whole := _absolute(name, package, len(dots), base)) is not None:
            yield whole


def _absolute(name: str, package: bool, dots: int, base: str) -> str | None:
    if not dots:
        return base or None
    parts = name.split(".") if package else name.split(".")[:-1]
    kept = parts[: max(0, len(parts) - dots + 1)]
    return ".".join([*kept, base] if base else kept) or None


@functools.lru_cache(maxsize=4096)
def _literals(text: str) -> tuple[str, ...]:
    """The string literals of a module that may name a file, alone or as parts of a path."""
    found: dict[str, None] = {}
    for row in _LITERALS.finditer(text):
        words = [word for _, word in _LITERAL.findall(row[0])]
        found |= dict.fromkeys([*words, *("/".join(words[k:]) for k in range(len(words) - 1))][:50])
    return tuple(word for word in found if len(word) < 256)


def _named_files(text: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Files that the literals of a module name, seen from its folder or the working one."""
    for word in _literals(text):
        for path in (folder / word, Path(word)):
            if _is_file(path):
                yield word, path


@functools.cache
def _version(top: str) -> str | None:
    """The version of the distribution of a top-level package; where it has another name, the files that tell its version."""
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        pass
    path = source_file(top)
    if path is None:
        return None
    names = [path.name, "_version.py", "version.py", "__about__.py"] if path.stem == "__init__" else [path.name]
    return " ".join(file_digest(path.with_name(name)) for name in names if path.with_name(name).is_file())


def imported_inside(code: types.CodeType, package: str | None) -> Iterator[str]:
    """Names that may be modules of the user's which a function imports when it is called, and the functions within it."""
    before: list[Any] = [0, None]
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            level, names = before
            whole = _absolute(package or "", True, int(level or 0), str(step.argval))
            every = [] if whole is None else [whole, *(f"{whole}.{name}" for name in names or ())]
            yield from (name for name in every if is_user_code(name) and source_file(name) is not None)
        elif step.opname == "LOAD_CONST" or step.opname == "LOAD_SMALL_INT":
            before = [before[1], step.argval]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from imported_inside(inner, package)


class Sources:
    """Collects the modules and scripts that a reward is made of, and hashes them.

    Args:
        ignore: files that do not count where they are named.
    """

    def __init__(self, ignore: Iterable[str | os.PathLike[str]] = ()) -> None:
        self._ignored = {os.path.realpath(path) for path in ignore}
        self._modules: dict[str, bool] = {}
        self._scripts: set[Path] = set()

    def named(self, path: str) -> str | None:
        """As :func:`path_digest`; None for a file that does not count."""
        return None if self._ignored and os.path.realpath(path) in self._ignored else path_digest(path)

    def _named(self, text: str, folder: Path) -> list[tuple[str, Any]]:
        return [(word, self.named(str(path))) for word, path in _named_files(text, folder)]

    def add(self, name: str | None, *, follow: bool = True) -> None:
        """Count a module.

        Args:
            name: of the module; None does nothing.
            follow: whether the modules of its package that it imports count too where it is an installed package; those of
                other code always do.
        """
        if name is not None:
            self._modules[name] = follow or self._modules.get(name, False)

    def add_imported(self, name: str) -> None:
        """Count a module that a function imports when it is called, or whose globals cannot be described: here it counts anyway."""

    def add_script(self, path: str) -> None:
        """Count a Python file by its path, with the files beside it that it imports."""
        self._scripts.add(Path(path))

    def digests(self) -> list[tuple[str, Any]]:
        """Names and digests of all sources, names and versions of the installed packages they import, sorted.

        Raises:
            Unidentified: if a file cannot be read.
        """
        followed = {name.partition(".")[0] for name, follow in self._modules.items() if follow}
        found = self._closure(followed)
        sizes: dict[str, int] = {}
        for name, _ in found:
            sizes[name.partition(".")[0]] = sizes.get(name.partition(".")[0], 0) + 1
        large = {top for top in followed if sizes.get(top, 0) > MAX_FOLLOWED and _is_installed_package(top)}
        if large:
            found = self._closure(followed - large)
        return sorted([*found, *self._script_digests()], key=repr)

    def _closure(self, followed: set[str]) -> list[tuple[str, Any]]:
        waiting, seen, found = sorted(self._modules, reverse=True), set[str](), list[tuple[str, Any]]()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            path = source_file(name)
            top = name.partition(".")[0]
            if path is None or _is_standard(path):
                continue
            if _is_installed(path) and top not in followed and top != OWN:
                if top not in seen or top == name:
                    found.append((top, _version(top)))
                seen.add(top)
                continue
            found.append((name, file_digest(path)))
            if path.suffix in (".py", ".pyw"):  # nothing can be read in a compiled one
                text = _text(path)
                found += self._named(text, path.parent) if is_user_code(name) else []
                waiting += _found_in(name, path, text)
        return found

    def _script_digests(self) -> list[tuple[str, Any]]:
        waiting, seen, found = [(path, path.parent) for path in sorted(self._scripts)], set[Path](), list[tuple[str, Any]]()
        while waiting:
            path, root = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            text = _text(path)
            found += [(f"script {path.relative_to(root)}", file_digest(path)), *self._named(text, path.parent)]
            names = sorted({name.replace(".", "/") for name in _imports(text, "", False)})
            near = [base / f"{name}{end}" for base in (root, path.parent) for name in names for end in (".py", "/__init__.py")]
            waiting += [(file, root) for file in near if file.is_file()]
        return found


class CodeSources(Sources):
    """Sources without files: only modules that functions import when they are called, or whose globals cannot be described."""

    def __init__(self) -> None:
        super().__init__()
        self.imported = _OfTheUser()

    def named(self, path: str) -> str | None:
        """None for every path."""
        return None

    def add_imported(self, name: str) -> None:
        """Add the module to :attr:`imported`."""
        self.imported.add(name)


class _OfTheUser(Sources):
    """Sources that contain only the user's modules, without this package and without the files that the modules name."""

    def named(self, path: str) -> str | None:
        """None for every path."""
        return None

    def _closure(self, followed: set[str]) -> list[tuple[str, Any]]:
        return [(name, digest) for name, digest in super()._closure(followed) if digest and name.partition(".")[0] != OWN]


def _is_installed_package(top: str) -> bool:
    path = source_file(top)
    return path is not None and _is_installed(path)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise Unidentified(f"{path} cannot be read ({error.strerror})") from error


def _found_in(name: str, path: Path, text: str) -> list[str]:
    """The modules that a module may use."""
    more = [found for found in _imports(text, name, path.name == "__init__.py") if found != OWN]  # it only collects names
    return [*more, *_parents(name), *_loaded(name)] if is_user_code(name) else more


def _parents(name: str) -> Iterable[str]:
    parts = name.split(".")
    return (".".join(parts[:k]) for k in range(1, len(parts)))


def _loaded(name: str) -> Iterator[str]:
    """The modules of what a loaded module holds, however it came there."""
    for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
        try:
            holder = value.__name__ if isinstance(value, type(sys)) else getattr(value, "__module__", None)
        except Exception:  # an object whose attributes cannot be asked for
            continue
        if isinstance(holder, str) and holder != name and holder in sys.modules and is_user_code(holder):
            yield holder
