"""The oracle ledger: counts the different samples that a run has scored in training, evaluation and search.

A call is a new sample in canonical form; repeats and invalid samples cost nothing. Requests are counted: a score found in
a cache shared with another run is still a call of this run, and so is one that stayed unknown.

Source of the counting rule: Gao et al. (2022), PMO, https://arxiv.org/abs/2206.12411
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from discrete_grpo.core.checks import check_whole
from discrete_grpo.core.reward_arguments import reward_name, reward_names
from discrete_grpo.core.rollout import Reward
from discrete_grpo.core.scoring import BudgetExhausted, RewardError, score_one
from discrete_grpo.domains.sample_text import sample_text
from discrete_grpo.domains.smiles import parse, reserve, to_smiles
from discrete_grpo.rewards.cache import SCORES, ScoreCache, check_cache_file
from discrete_grpo.rewards.identity import Unidentified, identify
from discrete_grpo.rewards.ledger_file import LedgerFile, calls_of, check_ledger_file, scores_of
from discrete_grpo.rewards.ledger_rows import ADDED, TABLES, calls_until, known_calls
from discrete_grpo.rewards.same_name import check_same_reward
from discrete_grpo.runs.database import move_if_damaged

__all__ = ["History", "Ledger", "molecule_key", "open_ledger", "reserved", "text_key"]


@lru_cache(maxsize=65536)
def molecule_key(sample: Any) -> str | None:
    """The canonical isomeric SMILES of a valid molecule, else None.

    >>> molecule_key("OCC"), molecule_key("C.C"), molecule_key(None)
    ('CCO', None, None)
    """
    mol = parse(sample)
    return None if mol is None else to_smiles(mol)


def text_key(sample: Any) -> str | None:
    """The text that identifies a sample, see :func:`~discrete_grpo.domains.sample_text.sample_text`; None only for None."""
    return None if sample is None else sample_text(sample).encode("utf-8", "backslashreplace").decode()


# -- the ledger


@dataclass(frozen=True)
class History:
    """The calls of a run in the order in which they were first made.

    Attributes:
        keys: n canonical samples.
        names: names of the R rewards.
        scores: score by each reward [n, R], float64; NaN where it is unknown or was not computed.
        sources: source of each sample, as given to :meth:`Ledger.score`; empty if none was given.
    """

    keys: tuple[str, ...]
    names: tuple[str, ...]
    scores: Float[Tensor, "call reward"]
    sources: tuple[str, ...] = ()

    def of(self, name: str) -> list[float]:
        """Scores of all calls by the reward of this name; NaN where the score is unknown or was not computed."""
        if name not in self.names:
            return [math.nan] * len(self.keys)
        found: list[float] = self.scores[:, self.names.index(name)].tolist()
        return found


class Ledger:
    """Scores samples for every part of a run, counts the different ones and serves repeats from a cache.

    Each use of :meth:`score` is a *turn*. Calls are ordered by turn, process and position in the batch, so the order does not
    depend on which of several processes was faster; :attr:`calls` counts those up to the current turn. After a resume the turns
    since the checkpoint are repeated, and samples that they had scored already are not counted twice.

    Attributes:
        asked: number of samples passed to :meth:`score` of this object, repeats and invalid ones included.
        invalid: number of invalid ones among them.
        owners: maps a name to the only reward that may have it, so that scores of different rewards are not mixed.

    Args:
        path: SQLite file in the run folder that all processes of the run on this machine share, with a log of the same rows
            beside it, ``PATH.log``, from which a damaged file is restored; checkpoints hold the number of calls only. None keeps
            calls in memory; checkpoints then hold all calls, and scores after the last checkpoint are lost if the run is killed.
        key: canonical form of a sample, None for an invalid one: :func:`molecule_key` or :func:`text_key`.
        max_oracle_calls: budget of calls; None sets no limit.
        cache: cache of scores; None scores every sample again, also repeats within a batch.
        rank: number of this process.

    Raises:
        ValueError: if the budget is below 1, and for a file of something else, which is left as it is; a damaged database is moved
            aside and restored from its log.
        OSError: if the file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        key: Callable[[Any], str | None] = text_key,
        max_oracle_calls: int | None = None,
        cache: ScoreCache | None = None,
        rank: int = 0,
    ) -> None:
        if max_oracle_calls is not None:
            check_whole("max_oracle_calls", max_oracle_calls, least=1, note=" or None")
        self.key, self.max_oracle_calls, self.cache, self.rank = key, max_oracle_calls, cache, rank
        self.asked = self.invalid = 0
        self._active = Counter[int]()
        self.owners: dict[str, Reward] = {}
        self._named: dict[str, Reward] = {}
        if path is not None:
            check_ledger_file(path)
        self._rows = LedgerFile(path)
        self._file = self._rows.database
        self._identities: dict[int, tuple[Reward, str | None]] = {}
        self.turn = 0
        self._process, self._lock = os.getpid(), threading.RLock()

    def _ask(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._rows.read(lambda connection: connection.execute(query, values).fetchall())

    @property
    def calls(self) -> int:
        """Number of different valid samples scored so far."""
        return self._rows.calls(self.turn)

    @property
    def in_memory(self) -> bool:
        """Whether no file holds the calls, so that several processes cannot share them."""
        return self._file.path is None

    @property
    def exhausted(self) -> bool:
        """Whether the budget is used up."""
        return self.max_oracle_calls is not None and self.calls >= self.max_oracle_calls

    def is_scoring(self, reward: Reward) -> bool:
        """Whether a reward is being computed by :meth:`score`."""
        return self._active[id(reward)] > 0

    def _count(self, reward: Reward, change: int) -> None:
        with self._lock:
            self._active[id(reward)] += change

    def calls_by_reward(self) -> dict[str, int]:
        """Number of calls per reward: different valid samples that it was to score."""
        query = "SELECT reward, COUNT(*) FROM scores JOIN calls USING (key) WHERE turn <= ? GROUP BY reward ORDER BY reward"
        return dict(self._ask(query, (self.turn,)))

    def sources(self) -> dict[str, int]:
        """Calls so far by source, as given to :meth:`score`; those without a source are under the empty text."""
        query = "SELECT COALESCE(source, '') AS name, COUNT(*) FROM calls WHERE turn <= ? GROUP BY name ORDER BY name"
        return dict(self._ask(query, (self.turn,)))

    def metrics(self) -> dict[str, float]:
        """``oracle/calls``, and ``oracle/left`` of the budget."""
        calls = self.calls
        left = {} if self.max_oracle_calls is None else {"oracle/left": float(max(0, self.max_oracle_calls - calls))}
        return {"oracle/calls": float(calls)} | left

    def history(self) -> History:
        """Every call up to now, in order."""
        state = self._rows.content(self.turn)
        names = tuple(state["scores"])
        columns = [state["scores"][name] for name in names]
        scores = torch.stack(columns, -1) if columns else torch.empty(len(state["keys"]), 0)
        return History(tuple(state["keys"]), names, scores, tuple(state["sources"]))

    # -- scoring

    def skip(self) -> None:
        """Count a turn in which another process scores alone (an evaluation), so that the turns of all processes agree."""
        self.turn += 1

    def catch_up(self) -> None:
        """Make the last turn of the file the current one, to read the ledger of a finished run."""
        self.turn = int(self._ask("SELECT COALESCE(MAX(turn), 0) FROM calls")[0][0])

    def score(
        self,
        rewards: Sequence[Reward],
        samples: Sequence[Any],
        columns: Mapping[str, Sequence[Any]] | None = None,
        source: str | Sequence[str] = "",
    ) -> Float[Tensor, "batch reward"]:
        """Score every sample by every reward, float64; NaN is unknown, also for new samples beyond the budget.

        Invalid samples are passed to the rewards unchanged, which define their scores.

        Args:
            rewards: one reward or several.
            samples: B samples.
            columns: conditions by name, with one value per sample.
            source: source of the samples, such as ``"policy"``; one text, or one per sample. The first source of repeats is kept.

        Raises:
            RewardError: as :func:`discrete_grpo.core.scoring.score_one`, if the file cannot be written, and in a copy of this
                process (fork), whose calls this object would not see. Threads can score at the same time.
            BudgetExhausted: if there is a new sample and the budget was used up in earlier turns.
            ValueError: if there are not as many sources as samples, a reward has a name that another one owns, or the name of
                another one that was scored before.
        """
        if isinstance(samples, str):
            raise ValueError(f"samples: {samples!r}, expected a list of samples, such as [{samples!r}]")
        if callable(rewards):
            raise ValueError(f"rewards: {reward_name(rewards)}, expected a list of rewards, such as [{reward_name(rewards)}]")
        if not isinstance(source, str | Sequence):
            raise ValueError(f"source: {source!r}, expected a text or one per sample")
        sources = [source] * len(samples) if isinstance(source, str) else list(source)
        if len(sources) != len(samples):
            raise ValueError(f"source: {len(sources)} texts, expected one or one per sample ({len(samples)})")
        if os.getpid() != self._process:
            told = f"ledger: opened in process {self._process} and used in process {os.getpid()}, whose calls it would not count"
            raise RewardError(f"{told}; score in the first one, or open Ledger(path) in each")
        named = list(zip(reward_names(rewards), rewards, strict=True))
        for name, reward in named:
            if self.owners.get(name, reward) is not reward:
                raise ValueError(f"rewards: {name!r} is the name of the task, expected the task that was given, or another name")
            check_same_reward(name, self._named.setdefault(name, reward), reward)
        reserve(len(samples))  # the next scoring or metric of these samples finds their molecules parsed
        keys = [self.key(sample) for sample in samples]
        with self._lock:  # a reward may score by the same ledger, also in threads of its own, so that they are computed without it
            self.turn += 1
            self.asked, self.invalid = self.asked + len(keys), self.invalid + keys.count(None)
            paid, spent = self._claim(keys, sources)
        rows = [k for k, key in enumerate(keys) if key is None or key in paid]
        result = torch.full((len(samples), len(rewards)), torch.nan, dtype=torch.float64)
        picked = {name: [values[k] for k in rows] for name, values in (columns or {}).items()}
        for j, (name, reward) in enumerate(named):
            found = self._scored(name, reward, [samples[k] for k in rows], [keys[k] for k in rows], picked)
            result[rows, j] = torch.tensor(found, dtype=torch.float64)
            self._keep(name, zip([keys[k] for k in rows], found, strict=True))
        if spent and len(rows) < len(samples):
            raise BudgetExhausted(f"max_oracle_calls: all {self.max_oracle_calls} are used up", result)
        return result

    def _claim(self, keys: Sequence[str | None], sources: Sequence[str]) -> tuple[set[str], bool]:
        """Count new keys as calls within the budget; return all counted keys, and whether earlier turns used up the budget."""
        places = {key: position for position, key in reversed(list(enumerate(keys))) if key is not None}
        ordered = sorted(places, key=lambda key: places[key])

        def work(connection: sqlite3.Connection) -> tuple[set[str], bool]:
            known = set(known_calls(connection, ordered))
            total, before = calls_until(connection), calls_until(connection, self.turn - 1)
            limit = math.inf if self.max_oracle_calls is None else self.max_oracle_calls
            new = [key for key in ordered if key not in known]
            paid = known.union(new if limit == math.inf else new[: max(0, int(limit) - total)])
            mine = [(key, self.turn, self.rank, places[key], sources[places[key]]) for key in ordered if key in paid]
            self._rows.write(connection, mine)
            return paid, before >= limit

        return self._rows.run(work)

    def _scored(
        self, name: str, reward: Reward, samples: Sequence[Any], keys: Sequence[str | None], columns: Mapping[str, Sequence[Any]]
    ) -> list[float]:
        """Compute one reward of these samples: equal samples once, known ones not at all."""
        ids = self._cache_keys(name, reward, keys, columns)
        known = {} if self.cache is None else self.cache.get([key for key in ids if key is not None])
        first = {key: k for k, key in reversed(list(enumerate(ids))) if key is not None}
        todo = [k for k, key in enumerate(ids) if key is None or (key not in known and first[key] == k)]
        values = [math.nan] * len(samples)
        if todo:
            picked = {column: [given[k] for k in todo] for column, given in columns.items()}
            self._count(reward, 1)
            try:
                found = score_one(reward, [samples[k] for k in todo], picked, name=name).tolist()
            finally:
                self._count(reward, -1)
            for k, value in zip(todo, found, strict=True):
                values[k] = value
        new = {key: values[k] for k in todo if (key := ids[k]) is not None and not math.isnan(values[k])}
        if self.cache is not None:
            self.cache.put(new)
        return [value if key is None else known.get(key, values[first[key]]) for key, value in zip(ids, values, strict=True)]

    def _cache_keys(
        self, name: str, reward: Reward, keys: Sequence[str | None], columns: Mapping[str, Sequence[Any]]
    ) -> list[bytes | None]:
        if self.cache is None:
            return [None] * len(keys)
        identity = self._identity(name, reward)
        reads = getattr(reward, "reads", None)
        seen = {column: values for column, values in columns.items() if reads is None or column in reads}
        rows = [{column: values[k] for column, values in seen.items()} for k in range(len(keys))]
        return [None if key is None else ScoreCache.key(identity, key, row) for key, row in zip(keys, rows, strict=True)]

    def _identity(self, name: str, reward: Reward) -> str | None:
        if id(reward) not in self._identities:
            log = None if self._rows.log is None else self._rows.log.path
            files = (self._file.path, log, None if self.cache is None else self.cache.path)
            written = [path for path in files if path is not None]
            try:
                identity = identify(reward, ignore=written)
            except Unidentified as reason:
                identity = None
                if not _refuses_cache(reward):
                    told = f"repeats are scored again and no score is kept, since it cannot be identified: {reason}"
                    hint = "an attribute cached_as (a text) would name it"
                    warnings.warn(f"reward {name}: {told}; {hint}", RuntimeWarning, stacklevel=2)
            self._identities[id(reward)] = (reward, identity)  # the reward too: its id must stay its own
        return self._identities[id(reward)][1]

    def _keep(self, name: str, values: Iterable[tuple[str | None, float]]) -> None:
        """Record the scores of a reward for calls; the first known value is kept."""
        self._rows.add(scores=[(name, key, None if math.isnan(value) else value) for key, value in values if key is not None])

    # -- checkpoints

    def state_dict(self, turn: int | None = None) -> dict[str, Any]:
        """Return the state up to ``turn`` (None means the current one), for a checkpoint.

        With a file, it is the number of rows, which the file must have when the run is resumed; in memory, it is the calls
        themselves and the scores of each reward.
        """
        turn = self.turn if turn is None else turn
        cache = None if self.cache is None else self.cache.state_dict()
        if self._rows.log is None:
            return self._rows.content(turn) | {"cache": cache}
        self._rows.log.sync()
        return {"turn": turn, "calls": self._rows.calls(turn), "scored": self._rows.scores(), "cache": cache}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint. Calls in the file beyond it have been counted and are not counted again.

        Raises:
            ValueError: if calls that the checkpoint has seen are neither in the file nor in its log.
        """
        self.turn = int(state["turn"])
        if "keys" in state:  # in memory, or of an older version
            self._rows.add(calls_of(state), scores_of(state))
        elif self.calls < state["calls"] or self._rows.scores() < state["scored"]:
            self._rows.restore()
            if self.calls < state["calls"]:
                where = "a ledger in memory" if self._file.path is None else f"{self._file.path} and its log"
                wanted = f"expected at least the {state['calls']} that the checkpoint has seen; put these files back"
                raise ValueError(f"ledger: {self.calls} calls in {where}, {wanted}")
        if self.cache is not None and state["cache"] is not None:
            self.cache.load_state_dict(state["cache"])

    def close(self) -> None:
        """Close the files."""
        self._rows.close()
        if self.cache is not None:
            self.cache.close()


def _refuses_cache(reward: Reward) -> bool:
    """Whether a reward itself says that it must not be cached."""
    try:
        return getattr(reward, "cached_as", reward) is None
    except Exception:  # a property that fails; calling the reward will raise the error
        return False


# -- opening a ledger


@contextmanager
def open_ledger(
    folder: str | Path,
    key: Callable[[Any], str | None],
    *,
    max_oracle_calls: int | None = None,
    reward_cache: str | None = None,
    rank: int = 0,
) -> Iterator[Ledger]:
    """Open ``ledger.sqlite`` of a run folder, with scores in ``scores.sqlite`` beside it or in a file that several runs share.

    Raises:
        ValueError: if ``reward_cache`` is a file of another kind.
        OSError: if a file cannot be opened.
    """
    if reward_cache is not None:
        check_cache_file(reward_cache)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    move_if_damaged(folder / "ledger.sqlite", TABLES, ADDED)
    if reward_cache is None:
        move_if_damaged(folder / "scores.sqlite", SCORES)
    try:
        cache = ScoreCache(reward_cache or folder / "scores.sqlite")
    except OSError as error:
        if reward_cache is None:
            raise
        raise OSError(f"reward_cache: {reward_cache!r} cannot be opened ({error}), expected a file that can be written") from error
    ledger = Ledger(folder / "ledger.sqlite", key=key, max_oracle_calls=max_oracle_calls, cache=cache, rank=rank)
    try:
        yield ledger
    finally:
        ledger.close()


@contextmanager
def reserved(ledger: Ledger, calls: int) -> Iterator[None]:
    """Reserve ``calls`` of the budget for the time after the block."""
    whole = ledger.max_oracle_calls
    if whole is not None:
        ledger.max_oracle_calls = whole - calls
    try:
        yield
    finally:
        ledger.max_oracle_calls = whole
