"""The program of a worker process of a reward pool, in plain Python, so that a light reward has a light process.

Of this package a worker imports only :mod:`discrete_grpo.core.reward_values`, :mod:`discrete_grpo.core.reward_hints` and, once a
reward fails, :mod:`discrete_grpo.core.error_place`, which need no library, so that it holds what its reward needs and no more. They
are imported inside functions, since a worker first receives the search path of the parent process. Messages are tuples of builtins
and samples; the other side is :mod:`discrete_grpo.rewards.pool_backends`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import math
import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from multiprocessing.connection import Connection
from typing import Any

Answers = list[tuple[float | None, str | None]]
"""A number, or None and why; None and no reason is the reward's own "unknown"."""


def find(path: str) -> Callable[..., Any]:
    """The function or class of an import path.

    Raises:
        ValueError: if there is none.
    """
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name) if module else None
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reward: {path!r} cannot be imported ({error})") from error
    if not callable(found):
        raise ValueError(f"reward: {path!r}, expected the import path of a function or a class, such as my_file.my_reward")
    return found


def resolve(path: str, init_args: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """A reward by import path: the function, or an object of the class.

    Raises:
        ValueError: if there is none, or arguments are given to a function.
    """
    found = find(path)
    if isinstance(found, type):
        found = found(**(init_args or {}))
    elif init_args:
        raise ValueError(f"init_args: {dict(init_args)}, expected none for {path!r}, which is no class")
    if not callable(found):
        raise ValueError(f"reward: {path!r} makes {type(found).__name__} objects, which cannot be called")
    return found


def load_reward(payload: bytes) -> Callable[..., Any]:
    """The reward that a pool was made with: pickled, or an import path and arguments."""
    reward, init_args = pickle.loads(payload)  # from the parent process, through a private socket
    if isinstance(reward, str):
        reward = resolve(reward, init_args)
    torch = sys.modules.get("torch")
    if torch is not None:  # processes are the parallelism here
        torch.set_num_threads(1)
    return reward


def answer(reward: Callable[..., Any], samples: Sequence[Any], columns: Mapping[str, Sequence[Any]]) -> Answers | str:
    """Return a value or a reason per sample; one reason (text) if the whole call failed."""
    from discrete_grpo.core.reward_hints import count_hint, error_hint
    from discrete_grpo.core.reward_values import same_folder

    try:
        with same_folder():
            found = reward(list(samples), **columns)
            if inspect.isawaitable(found):
                found = asyncio.run(_wait(found))
        if isinstance(found, str | bytes | bytearray | memoryview | Mapping | Set) or not hasattr(found, "__len__"):
            return f"returned a {type(found).__name__}, expected one number per sample{count_hint(found)}"
        values = list(found)
    except _Ended:
        raise
    except BaseException as error:  # SystemExit too: only the pool ends a worker
        _failures(reward)  # those of this call
        from discrete_grpo.core.error_place import error_place  # 30 ms, and no library

        ends = f"{error_place(error)}{error_hint(error, samples)}"
        return f"raised {type(error).__name__}: {' '.join(str(error).split())}{ends}"
    if len(values) != len(samples):
        return f"returned {len(values)} values for {len(samples)} samples, expected one per sample"
    failed = _failures(reward)
    if len(samples) == 1:  # a reward around the one that failed may have given it another object
        failed = [(samples[0], reason) for _, reason in failed]
    return [_checked(value, sample, failed) for value, sample in zip(values, samples, strict=True)]


def _failures(reward: Any) -> list[tuple[Any, str]]:
    """Samples and reasons that the reward, or one inside it, has recorded since the last call."""
    from discrete_grpo.core.reward_values import reward_parts

    takes = (getattr(part, "take_failures", None) for part in reward_parts(reward))
    return [(failure.sample, failure.reason) for take in takes if callable(take) for failure in take()]


async def _wait(values: Any) -> Any:
    return await values


def _checked(value: Any, sample: Any, failed: list[tuple[Any, str]]) -> tuple[float | None, str | None]:
    from discrete_grpo.core.reward_values import finite_number, shown_value

    try:
        number = finite_number(value)
    except ValueError as error:
        return None, f"returned {shown_value(value)}, {error}"
    if not math.isnan(number):
        return number, None
    known = next((entry for entry in failed if entry[0] is sample), None)  # a reward that names its own failures
    return None, known[1] if known else None


class _Ended(SystemExit):
    """The pool ends this worker."""


def _end(number: int, frame: Any) -> None:
    raise _Ended(0)


def _end_with_parent(connection: Connection) -> None:
    """End this process and its children when the pool's end is gone, also in the middle of a sample."""
    poll = select.poll()
    poll.register(connection.fileno(), 0)  # hang-ups are always reported
    poll.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Serve until the pool closes the connection."""
    own = os.getpid()
    connection = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGTERM, _end)
    sys.path[:], payload = pickle.loads(connection.recv_bytes())  # from the parent process
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    try:
        importlib.import_module("discrete_grpo.core.reward_values")  # before the reward, which may change the working folder
        reward = load_reward(payload)
    except BaseException as error:
        connection.send(("broken", f"{type(error).__name__}: {' '.join(str(error).split())}"))
        return
    connection.send(("ready",))
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            while True:
                samples, columns = connection.recv()
                try:
                    found = answer(reward, samples, columns)
                finally:
                    if os.getpid() != own:  # a process that the reward forked came back from it
                        os._exit(1)
                connection.send(("done", found))
        finally:
            getattr(reward, "close", lambda: None)()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # an exception while Python ends would be printed


if __name__ == "__main__":
    main()
