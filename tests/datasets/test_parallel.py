"""Parsing by several processes: the same result, errors in order, no main guard, workers that end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.processes import usable_cores
from discrete_grpo.datasets import packing, parallel, smiles
from discrete_grpo.datasets.molecules import load_molecules
from discrete_grpo.datasets.parallel import map_blocks
from discrete_grpo.datasets.smiles import load_smiles

LINES = ["C[C@H](N)c1ccccc1", "OCC", "C1CC1C[NH3+]", "broken(", "c1ccncc1", "FC(Cl)Br", "[O-]C=O", "xx", "CCN"] * 3


def test_results_keep_their_order_and_the_first_error_is_raised() -> None:
    assert list(map_blocks(partial(divmod, 100), range(1, 40), jobs=2)) == [divmod(100, k) for k in range(1, 40)]
    found = map_blocks(partial(divmod, 7), [1, 2, 0, "x"], jobs=2)
    assert [next(found), next(found)] == [(7, 0), (3, 1)]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_a_worker_that_dies_ends_the_work_with_one_line() -> None:
    with pytest.raises(RuntimeError, match=r"a process that reads data died \(status 3\); memory may be short: lower jobs"):
        list(map_blocks(os._exit, [3, 3, 3], jobs=2))


def test_few_items_and_one_job_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_Worker", None)
    assert list(map_blocks(abs, [-1, -2], jobs=2, alone=2)) == [1, 2]
    assert list(map_blocks(abs, [-1, -2, -3], jobs=1)) == [1, 2, 3]
    with pytest.raises(ValueError, match="jobs: 0, expected at least 1"):
        list(map_blocks(abs, [], jobs=0))


def test_cores_are_shared_by_the_processes_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert usable_cores() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert usable_cores() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert usable_cores() == 1


def test_a_result_that_cannot_be_sent_is_told_and_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(TypeError, match=r"^generator cannot be sent to the other process \("):
        list(map_blocks(iter_of, ["ab", "cd"], jobs=2))


def iter_of(text: str) -> Any:
    return (letter for letter in text)


def test_blocks_give_what_one_pass_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.smi"
    path.write_text("".join(f"{line}\n" for line in LINES))
    options: dict[str, Any] = {"max_broken": 0.5}
    graphs, texts = load_molecules(path, **options), load_smiles(path, properties=("TPSA",), **options)
    for module in (packing, smiles):
        monkeypatch.setattr(module, "BLOCK", 4)
        monkeypatch.setattr(module, "PARALLEL_ROWS", 8)
    again, text = load_molecules(path, jobs=2, **options), load_smiles(path, properties=("TPSA",), jobs=1, **options)
    for name in ("nodes", "pairs", "sizes"):
        assert torch.equal(getattr(graphs.graphs, name), getattr(again.graphs, name)), name
    for name in ("smiles", "broken", "vocabulary"):
        assert getattr(graphs, name) == getattr(again, name), name
    for name in ("smiles", "scaffolds", "broken"):
        assert getattr(texts, name) == getattr(text, name), name
    assert torch.equal(texts.values, text.values)
    monkeypatch.setattr(packing, "MAX_ATOMS", 8)
    with pytest.raises(ValueError, match=f"path: '{path}' line 1: atoms of the molecule: 9, expected at most 8"):
        load_molecules(path, jobs=1, **options)


def test_a_script_needs_no_main_guard_and_its_folder_hides_no_module(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('started')\n"
        "from discrete_grpo.datasets.parallel import map_blocks\n"
        "print(list(map_blocks(abs, [-1, -2, -3], jobs=2)))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    assert done.stdout == "started\n[1, 2, 3]\n"


# -- the cache of the user


def test_large_files_are_kept_in_the_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISCRETE_GRPO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    path = tmp_path / "m.smi"
    path.write_text("".join(f"{line}\n" for line in LINES))
    cache = tmp_path / "home" / "discrete-grpo" / "parsed"
    loads: tuple[Callable[..., Any], ...] = (load_molecules, load_smiles)
    for load in loads:
        load(path, max_broken=0.5, cache_dir="auto")
        assert not cache.exists(), "a small file is parsed faster than it is found"
    monkeypatch.setattr("discrete_grpo.datasets.reading.PARALLEL_ROWS", len(LINES) - 1)
    for k, load in enumerate(loads, 1):
        first = load(path, max_broken=0.5, cache_dir="auto")
        assert len(list(cache.iterdir())) == k
        again = load(path, max_broken=0.5, cache_dir="auto")
        assert again.smiles == first.smiles
    load_molecules(path, max_broken=0.5)
    assert len(list(cache.iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DISCRETE_GRPO_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("discrete_grpo.datasets.reading.PARALLEL_ROWS", 0)
    path = tmp_path / "m.smi"
    path.write_text("CCO\n")
    with pytest.warns(RuntimeWarning, match=r"the parsed data cannot be kept for the next run \(Not a directory\)"):
        assert load_molecules(path, cache_dir="auto").smiles == ("CCO",)
    with pytest.raises(ValueError, match=r"cache_dir: .*file cannot be made \((Not a directory|File exists)\), expected a folder"):
        load_molecules(path, cache_dir=tmp_path / "file")


def test_a_folder_that_cannot_be_written_in_is_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.smi"
    path.write_text("CCO\n")
    loads: tuple[Callable[..., Any], ...] = (load_molecules, load_smiles)
    found = [load(path, cache_dir=tmp_path / "cache").smiles for load in loads]
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    assert [load(path, cache_dir=tmp_path / "cache").smiles for load in loads] == found  # which is read only
    path.write_text("CCN\n")
    for load in loads:
        with pytest.raises(ValueError, match=r"^cache_dir: .*cache cannot be written in, expected a folder with write permission$"):
            load(path, cache_dir=tmp_path / "cache")


def test_without_a_home_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(name: str) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("DISCRETE_GRPO_CACHE", raising=False)
    monkeypatch.setattr("pooch.os_cache", homeless)
    monkeypatch.setattr("discrete_grpo.datasets.reading.PARALLEL_ROWS", 0)
    path = tmp_path / "m.smi"
    path.write_text("CCO\n")
    told = "^this user has no home directory, so parsed data is not kept for the next run; DISCRETE_GRPO_CACHE can name"
    with pytest.warns(RuntimeWarning, match=told):
        assert load_molecules(path, cache_dir="auto").smiles == ("CCO",)
