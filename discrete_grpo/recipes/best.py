"""The best samples of a run: as a table, as lines, as a picture, or as an SDF file."""

from __future__ import annotations

import gzip
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from discrete_grpo.core.checks import check_whole
from discrete_grpo.core.json_files import read_json
from discrete_grpo.datasets.text_files import suffix_of
from discrete_grpo.recipes.families import Family, run_family
from discrete_grpo.recipes.output_files import named_file, output_path, table_text
from discrete_grpo.runs.best import Scored, best_scored, non_dominated
from discrete_grpo.runs.folder import BEST, METRICS, SEARCH, SETTINGS, is_run
from discrete_grpo.runs.recorder import read_metrics, write_bytes
from discrete_grpo.runs.report.curves import unit_of
from discrete_grpo.runs.report.formatting import format_value

__all__ = ["best_samples", "write_best"]


def best_samples(run: str | Path, n: int = 50, *, per_scaffold: int | None = None, pareto: bool = False) -> list[Scored]:
    """Return the different samples of highest reward that a run has scored, best first.

    Args:
        run: run folder of ``train``, ``optimise`` or ``search``.
        n: largest number of samples, at least 1.
        per_scaffold: largest number of molecules with the same Murcko scaffold, at least 1; those without rings have one in common.
            None sets no limit.
        pareto: whether only samples count that no other one dominates, that is: none is as good by every reward and better by one.
            If the weight of a reward is negative, lower scores are better; if it is 0, the reward does not count.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: for a number out of its range, a folder that is no run or has no sample with a known reward, for
            ``per_scaffold`` with other samples than molecules, and for ``pareto`` with a run of one reward.
    """
    check_whole("n", n, least=1)
    folder = _run_folder(run)
    accept = None if per_scaffold is None else _scaffold_limit(per_scaffold, run_family(folder))
    unit = unit_of(read_metrics(folder)) if (folder / METRICS).is_file() else "update"
    found = _front(folder, n, unit, accept) if pareto else best_scored(folder, n, unit=unit, accept=accept)
    if not found:
        raise ValueError(f"run: {folder} has no sample with a known reward")
    return found


def _front(folder: Path, n: int, unit: str, accept: Callable[[str], bool] | None) -> list[Scored]:
    """The ``n`` samples of highest reward among those that no other one dominates."""
    every = best_scored(folder, sys.maxsize, unit=unit)
    if every and not every[0].parts:
        raise ValueError(f"pareto: {folder} has one reward, expected a run with several")
    names = list(every[0].parts) if every else []
    found = non_dominated([one for one in every if list(one.parts) == names], _signs(folder, len(names)))
    return list(islice((one for one in found if accept is None or accept(one.sample)), n))


def _signs(folder: Path, count: int) -> list[float]:
    """The signs of the weights of a run's rewards, 1 each where the run has none."""
    stored = read_json(folder / SETTINGS) or read_json(folder / SEARCH) or {}
    weights = stored.get("grpo.reward_weights", stored.get("reward_weights"))
    return [math.copysign(1.0, w) if w else 0.0 for w in weights] if weights else [1.0] * count


def write_best(run: str | Path, out: str | Path, n: int = 50, *, per_scaffold: int | None = None, pareto: bool = False) -> Path:
    """Write what :func:`best_samples` returns to a file; returns its path.

    Args:
        run: as for :func:`best_samples`, as are ``n`` and ``per_scaffold``.
        out: the file. Its ending decides what is written: .csv a table with rewards and, of molecules, their properties; .smi or
            .txt one sample per line; .sdf molecules as drawings with the numbers as properties; .png a picture; with .gz
            compressed.
        n: largest number of samples.
        per_scaffold: largest number of molecules of a scaffold.
        pareto: as for :func:`best_samples`.

    Raises:
        ValueError: as :func:`best_samples`, and for an ending that does not fit the samples.
    """
    path, family = output_path(str(out)), run_family(_run_folder(run))
    kinds: dict[str, Callable[[list[Scored], Family], bytes | None]] = {".csv": _table, ".smi": _lines, ".txt": _lines}
    kinds |= {".sdf": _sdf} if family.name == "molecules" else {}
    kinds |= {".png": _picture} if family.picture is not None else {}
    if (kind := suffix_of(path)) not in kinds:
        raise ValueError(f"out: {str(path)!r}, expected a file of {family.name} ending in {', '.join(kinds)}, also with .gz")
    content = kinds[kind](best_samples(run, n, per_scaffold=per_scaffold, pareto=pareto), family)
    if content is None:
        raise ValueError(f"out: {path}, expected another ending: no sample can be drawn")
    write_bytes(named_file(path), gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def _run_folder(run: str | Path) -> Path:
    folder = Path(run)
    if not folder.is_dir():
        raise FileNotFoundError(f"run: {folder} is no folder, expected that of a run")
    if not (is_run(folder) or (folder / BEST).is_file()):
        raise ValueError(f"run: {folder} is no run folder, expected one of train, optimise or search")
    return folder


def _scaffold_limit(most: int, family: Family) -> Callable[[str], bool]:
    """A function that accepts at most ``most`` molecules of each scaffold."""
    check_whole("per_scaffold", most, least=1)
    if family.name != "molecules":
        raise ValueError(f"per_scaffold: {most}, expected none with {family.name}, which have no scaffolds")
    from discrete_grpo.domains.molecule_properties import murcko_scaffold
    from discrete_grpo.domains.smiles import parse

    counts: Counter[str] = Counter()

    def accept(sample: str) -> bool:
        mol = parse(sample)
        scaffold = "" if mol is None else murcko_scaffold(mol)
        counts[scaffold] += 1
        return counts[scaffold] <= most

    return accept


def _columns(found: Sequence[Scored]) -> dict[str, list[Any]]:
    """Reward, the scores by each of several rewards, and origin."""
    names = dict.fromkeys(name for one in found for name in one.parts)
    parts = {name: [one.parts.get(name) for one in found] for name in names}
    return {"reward": [one.reward for one in found], **parts, "origin": [one.origin for one in found]}


def _table(found: list[Scored], family: Family) -> bytes:
    samples = [one.sample for one in found]
    properties = family.table(samples) if family.name == "molecules" else {}
    return table_text({family.column: samples, **_columns(found), **properties}).encode()


def _lines(found: list[Scored], family: Family) -> bytes:
    return "".join(f"{one.sample}\n" for one in found).encode()


def _picture(found: list[Scored], family: Family) -> bytes | None:
    assert family.picture is not None
    return family.picture([one.sample for one in found], [format_value(one.reward) for one in found])


def _sdf(found: list[Scored], family: Family) -> bytes:
    from discrete_grpo.domains.spatial_files import plane_sdf

    samples = [one.sample for one in found]
    return plane_sdf(samples, {**_columns(found), **family.table(samples)}).encode()
