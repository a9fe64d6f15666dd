"""The identity of a reward: one digest of its source code, its settings and the files that it reads.

A cached score of a reward that was edited is a wrong result, while a score that is computed twice only costs time. The
digest therefore covers everything that may matter, and a reward with a part that cannot be inspected has no identity.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discrete_grpo.rewards.object_parts import SLOT, is_bookkeeping, is_plain, is_python, is_set, is_static
from discrete_grpo.rewards.sources import OWN, CodeSources, Sources, Unidentified, imported_inside, is_user_code, source_file

__all__ = ["Unidentified", "code_identity", "identify", "reward_identity"]

_PLAIN = (type(None), bool, int, float, complex, bytes, types.EllipsisType, types.NotImplementedType)
_LRU = type(functools.lru_cache(lambda: None))


def reward_identity(reward: object) -> str | None:
    """The digest of :func:`identify`, or None for a reward without one.

    >>> reward_identity(len) == reward_identity(len), reward_identity(len) == reward_identity(sum)
    (True, False)
    """
    try:
        return identify(reward)
    except Unidentified:
        return None


def identify(reward: object, ignore: Iterable[str | os.PathLike[str]] = ()) -> str:
    """Return a digest of a reward's source, settings and files; equal digests mean equal scores.

    It covers

    * the content of the module that defines the reward, of its base classes, decorators and inner rewards, and of every module
      that these import, directly or not. Of installed packages other than the reward's own only the version counts;
    * arguments and state: attributes and slots, defaults, closures, arguments of partials, weights and plain attributes of
      modules, and the values of the globals that its functions name;
    * the content of files: those named by a text or a path in its state, and those named by a literal in its source, seen from
      the module's folder or from the working folder.

    Functions are hashed both in memory and on disk. If a file is edited while a process runs, the identity in this process
    therefore differs from those of the old and the new version. Values cached by ``cached_property`` or ``lru_cache`` are
    ignored.

    The digest cannot cover files and modules whose names are composed at run time, environment variables that are read in a
    call, and external services. For such rewards an attribute ``cached_as`` sets the identity: a text, which must change when
    the scores do, another reward that gives the same scores, or None for a reward that must not be cached (because it compares
    the samples of a batch, or is random).

    Args:
        reward: any reward.
        ignore: files to ignore where they are named, since the caller writes them.

    Raises:
        Unidentified: naming the part of the reward that cannot be inspected, such as an object of a C library.
    """
    view = _View(Sources(ignore))
    try:
        described = view.describe(reward)
        return _digest_of((described, view.sources.digests()))
    except Unidentified:
        raise
    except Exception as error:  # properties and descriptors of other code run here
        raise Unidentified(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def code_identity(reward: object, sources: CodeSources | None = None) -> str | None:
    """Return a digest of a reward's own code and values, or None for a reward without one.

    Files are ignored, both those that it reads and other code in the files that define it. The digest is therefore unchanged after
    an edit elsewhere in the script that defines the reward, and after the reward has written to a file. Modules that a function
    imports when it is called count as a whole, with the user's modules that they import, as they may not be loaded yet, and so
    does a module with a global of the reward that cannot be described, such as an object of a C library. ``sources`` collects them.

    >>> code_identity(len) == code_identity(len), code_identity(len) == code_identity(sum)
    (True, False)
    """
    try:
        sources = CodeSources() if sources is None else sources
        described = _View(sources).describe(reward)
        inside = sources.imported.digests()
        return _digest_of((described, inside) if inside else described)
    except Exception:  # as for identify
        return None


def _digest_of(described: Any) -> str:
    return hashlib.blake2b(repr(described).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class _View:
    """Describes values as nested tuples of plain values, and collects the modules that they come from."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._above: list[int] = []
        self._known: dict[int, tuple[Any, str]] = {}
        """Digests of functions and classes; with the objects, so that no id is used twice."""

    def describe(self, value: Any) -> Any:
        """Describe ``value`` as nested tuples of plain values.

        Raises:
            Unidentified: if it contains an object that cannot be described.
        """
        if type(value) in _PLAIN:
            return value
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._above:
            return ("itself", len(self._above) - self._above.index(id(value)))
        self._above.append(id(value))
        try:
            found = self._cached_as(value)
        finally:
            self._above.pop()
        if isinstance(value, types.FunctionType | type):
            found = hashlib.blake2b(repr(found).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
            self._known[id(value)] = (value, found)
        return found

    def _lenient(self, value: Any, home: str | None) -> Any:
        """Like :meth:`describe`; an object that cannot be described is only named, as the source around it says how it is made.

        That source is the module ``home``, which then counts as a whole, also where files are ignored otherwise.
        """
        try:
            return self.describe(value)
        except Unidentified:
            if home is not None:
                self.sources.add_imported(home)
            return ("unseen", _path(type(value)))

    def _cached_as(self, value: Any) -> Any:
        if isinstance(value, type | types.ModuleType) or not hasattr(value, "cached_as"):
            return self._by_type(value)
        given = value.cached_as
        if given is None:
            raise Unidentified("its cached_as is None")
        if callable(given):
            return self.describe(given)
        named = _path(value if hasattr(value, "__qualname__") else type(value))
        return ("as", named if isinstance(given, str) else self.describe(type(value)), self.describe(given))

    def _by_type(self, value: Any) -> Any:
        for kinds, description in self._rules():
            if isinstance(value, kinds):
                return description(value)
        return self._object(value)

    def _rules(self) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
        yield enum.Enum, lambda v: ("enum", self.describe(type(v)), v.name, self.describe(v.value))
        yield types.FunctionType, self._function
        yield type, self._class
        yield types.MethodType, lambda v: ("method", v.__name__, self.describe(v.__self__), self.describe(v.__func__))
        yield types.BuiltinFunctionType, self._builtin
        yield types.CodeType, self._code
        yield types.ModuleType, self._module
        yield _LRU, lambda v: ("cached", self.describe(v.__wrapped__))
        yield functools.partial, lambda v: ("partial", *map(self.describe, (v.func, v.args, v.keywords)))
        yield (staticmethod, classmethod), lambda v: (type(v).__name__, self.describe(v.__func__))
        yield property, lambda v: ("property", *map(self.describe, (v.fget, v.fset)))
        yield functools.cached_property, lambda v: ("cached_property", self.describe(v.func))
        yield PurePath, lambda v: ("path", str(v), self.sources.named(str(v)))
        yield Tensor, _tensor
        yield (np.ndarray, np.generic), self._array
        yield (str, dict, list, tuple, set, frozenset, types.MappingProxyType), self._content

    # -- values

    def _array(self, value: Any) -> Any:
        if type(value).__module__ != "numpy" or isinstance(value, np.ma.MaskedArray):
            return self._reduced(value)
        if value.dtype.hasobject:
            return ("array", value.shape, str(value.dtype), self.describe(value.tolist()))
        return ("array", value.shape, str(value.dtype), hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest())

    def _content(self, value: Any) -> Any:
        """Texts and containers; those of a class of their own with the class and the attributes."""
        kind = type(value)
        own = () if kind.__module__ == "builtins" else (self.describe(kind), self._attributes(value))
        if isinstance(value, str):
            return (*own, self._text(str(value)))
        if isinstance(value, Mapping):
            own = (*own, self.describe(getattr(value, "default_factory", None)))
            return ("mapping", *own, *((self.describe(k), self.describe(v)) for k, v in value.items()))
        if isinstance(value, set | frozenset):
            return ("set", *own, *sorted(repr(self.describe(v)) for v in sorted(value, key=_order)))
        return (kind.__name__, *own, *map(self.describe, value))

    def _text(self, value: str) -> Any:
        """Describe a text, with the content of the file that it names, also as an option ``--name=file`` of a program.

        A single character, or a text of only dots and slashes, is taken for SMILES and not for the name of a file.
        """
        for part in dict.fromkeys((value, value.rpartition("=")[2])):
            found = self.sources.named(part) if len(part) > 1 and part.strip("./") else None
            if found is not None:
                if part.endswith(".py"):
                    self.sources.add_script(part)
                return ("file", value, found)
        return value

    # -- code

    def _function(self, value: types.FunctionType) -> Any:
        home = value.__globals__.get("__name__")
        for name in {value.__module__, home}:
            self.sources.add(name)
        sourced = home is not None and source_file(home) is not None
        made = not sourced or bool(value.__code__.co_flags & inspect.CO_NESTED)  # by other code, which may put anything into it
        lenient = functools.partial(self._lenient, home=home)
        look = self.describe if made else lenient
        cells = tuple(self.describe(_cell(cell)) for cell in value.__closure__ or ())
        settings = [tuple(map(look, value.__defaults__ or ())), _looked(value.__kwdefaults__, look), _looked(vars(value), look)]
        found = ("function", _path(value), cells, *settings)
        if not is_user_code(home):
            return found
        for name in imported_inside(value.__code__, value.__globals__.get("__package__")):
            self.sources.add_imported(name)
        return (*found, self.describe(value.__code__), self._globals(value, lenient if sourced else self.describe))

    def _code(self, value: types.CodeType) -> Any:
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        counts = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
        covered = getattr(value, "co_exceptiontable", b"")  # since Python 3.11 the lines that a try covers are in it alone
        return ("code", value.co_code, *names, *counts, tuple(map(self.describe, value.co_consts)), *([covered] if covered else []))

    def _globals(self, value: types.FunctionType, look: Callable[[Any], Any]) -> Any:
        """The globals that a function names, and what it may name in the modules among them."""
        names = sorted(set(_names(value.__code__)))
        found = []
        for name in (name for name in names if name in value.__globals__):
            held = value.__globals__[name]
            found += [(name, look(held)), *self._inside(name, held, names, ())]
        return tuple(found)

    def _inside(self, path: str, held: Any, names: Sequence[str], above: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
        """Attributes of a user's module, and of the modules in it, that a function may use, such as ``package.module.value``."""
        if not isinstance(held, types.ModuleType) or not is_user_code(held.__name__) or held in above:
            return
        for name in (name for name in names if name in vars(held)):
            part = vars(held)[name]
            yield f"{path}.{name}", self._lenient(part, held.__name__)
            yield from self._inside(f"{path}.{name}", part, names, (*above, held))

    def _class(self, value: type) -> Any:
        rewards = any("__call__" in vars(base) for base in value.__mro__) and not issubclass(value, nn.Module)
        self.sources.add(value.__module__, follow=rewards)
        if not is_user_code(value.__module__):
            return ("class", _path(value))
        sourced = source_file(value.__module__) is not None
        look = functools.partial(self._lenient, home=value.__module__) if sourced else self.describe
        parts = [(n, part) for n, part in sorted(vars(value).items()) if not is_bookkeeping(n, part)]
        bases = [self.describe(base) for base in (type(value), *value.__bases__)]
        return ("class", _path(value), *bases, *((name, look(part)) for name, part in parts))

    def _builtin(self, value: types.BuiltinFunctionType) -> Any:
        holder = value.__self__
        if holder is None or isinstance(holder, types.ModuleType):
            self.sources.add(value.__module__, follow=False)
            return ("builtin", _path(value))
        return ("method", value.__name__, self.describe(holder))

    def _module(self, value: types.ModuleType) -> Any:
        self.sources.add(value.__name__, follow=False)
        if source_file(value.__name__) is None and is_user_code(value.__name__):
            raise Unidentified(f"the module {value.__name__} has no source file")
        return ("module", value.__name__)

    # -- objects

    def _object(self, value: Any) -> Any:
        kind = type(value)
        if _path(kind) == "rdkit.Chem.rdchem.Mol":
            return _molecule(value)
        if kind is object or hasattr(kind, "__next__") or not all(map(is_python, map(type, kind.__mro__))):
            raise Unidentified(f"a {_path(kind)} cannot be told from others of its kind")
        reduces = any(name in vars(base) for base in kind.__mro__[:-1] for name in ("__reduce__", "__reduce_ex__"))
        if not is_plain(kind) or (reduces and not is_user_code(kind.__module__) and kind.__module__.partition(".")[0] != OWN):
            return self._reduced(value)
        return ("object", self.describe(kind), self._attributes(value))

    def _attributes(self, value: Any) -> Any:
        """Slots and attributes by name, without what properties keep there."""
        classes = type(value).__mro__
        hidden = {n for c in classes for n, part in vars(c).items() if isinstance(part, functools.cached_property)}
        slots = [(f"{c.__qualname__}.{n}", part, c) for c in classes for n, part in vars(c).items() if isinstance(part, SLOT)]
        found = {name: part.__get__(value) for name, part, c in slots if not is_static(c) and is_set(part, value)}
        found |= {str(n): held for n, held in getattr(value, "__dict__", {}).items() if n not in hidden}
        return tuple((name, self._attribute(value, name, held)) for name, held in sorted(found.items()))

    def _attribute(self, owner: Any, name: str, value: Any) -> Any:
        if isinstance(owner, nn.Module) and name.endswith("_hooks") and isinstance(value, dict):
            value = list(value.values())  # the keys count all hooks of the process
        try:
            return self.describe(value)
        except Unidentified as error:
            raise Unidentified(f"{type(owner).__name__}.{name}: {error}") from None

    def _reduced(self, value: Any) -> Any:
        """Describe an object that is not pure Python by the result of its pickle reduction."""
        try:
            registered: Any = copyreg.dispatch_table.get(type(value))
            found: Any = value.__reduce_ex__(4) if registered is None else registered(value)
        except Exception as error:
            raise Unidentified(f"a {_path(type(value))} cannot be told from others of its kind") from error
        parts = (found,) if isinstance(found, str) else tuple(list(p) if hasattr(p, "__next__") else p for p in found)
        return ("reduced", self.describe(type(value)), self._maker(parts[0]), *map(self.describe, parts[1:]))

    def _maker(self, value: Any) -> Any:
        """Describe the functions that pickle would call; those of an installed package are known by its version."""
        if not isinstance(value, types.FunctionType) or is_user_code(value.__module__):
            return self.describe(value)
        self.sources.add(value.__module__, follow=False)
        return ("function", _path(value))


def _tensor(value: Tensor) -> Any:
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise Unidentified(f"a tensor of layout {value.layout} on {value.device}")
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data: Any = flat.view(torch.uint8).numpy()
    content = hashlib.blake2b(data, digest_size=16).hexdigest()
    return ("tensor", type(value).__name__, tuple(value.shape), str(value.dtype), content)


def _molecule(value: Any) -> Any:
    """A molecule or a pattern, without what RDKit keeps in it of earlier computations."""
    copy = type(value)(value)
    copy.ClearComputedProps()
    return ("molecule", hashlib.blake2b(copy.ToBinary(), digest_size=16).hexdigest())


def _path(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _looked(values: Mapping[str, Any] | None, look: Callable[[Any], Any]) -> Any:
    return tuple((name, look(value)) for name, value in sorted((values or {}).items()))


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that a function and the functions within it use."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _order(value: Any) -> tuple[str, str]:
    """A sort key for members of a set that is the same in every process, if they have one."""
    return type(value).__name__, str(getattr(value, "__qualname__", repr(value) if isinstance(value, str | int | float) else ""))
