"""Folders of shards: equal to the data in memory, built in parallel, finished after a kill, refused when damaged."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.datasets import shard_building, shards
from discrete_grpo.datasets.enumeration import enumerated_smiles
from discrete_grpo.datasets.molecules import conditioned, load_molecules, property_scales, statistics
from discrete_grpo.datasets.shard_building import ShardOptions, build_shards
from discrete_grpo.datasets.sharded import ShardedConditionedMolecules, ShardedMolecules, ShardedTokens
from discrete_grpo.datasets.shards import ShardFolder
from discrete_grpo.datasets.smiles import alphabet, load_smiles, token_dataset

ROWS = torch.tensor([5, 190, 0, 61, 60, 60, 133, 2])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred molecules of changing alphabets and sizes, some lines broken, some empty."""
    few = [s for _, s in zip(range(3000), enumerated_smiles(), strict=False)][::16]
    more = ["C[N+](C)(C)C", "F[C@H](Cl)Br", "c1ccc2ccccc2c1", "C1CC1C[NH3+]", "[O-]c1ccncc1", "O", "N#CC=O", "CCC%10CCCC%10"]
    lines = [*few[:70], "broken(", *more, "", *few[70:], "C(("]
    path = tmp_path_factory.mktemp("data") / "some.smi"
    path.write_text("".join(f"{line}\tname\n" if line else "\n" for line in lines))
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# -- the same as in memory


@pytest.mark.parametrize("scaffold", [False, True])
@pytest.mark.parametrize("properties", [(), ("MolLogP", "TPSA")])
def test_tokens_equal_those_in_memory(file: Path, tmp_path: Path, scaffold: bool, properties: tuple[str, ...]) -> None:
    lines = load_smiles(file, properties=properties, scaffolds=scaffold)
    scales = property_scales(lines.properties, lines.values)
    prompts = lines.scaffolds if scaffold else None
    expected = token_dataset(lines.smiles, alphabet(lines), prompts=prompts, values=lines.values, properties=scales)
    build_shards(file, tmp_path / "f", ShardOptions(scaffold=scaffold, properties=properties, shard_lines=60), jobs=1)
    found = ShardedTokens(tmp_path / "f", properties, scaffold)
    assert len(found.folder.shards) == 4
    assert len({shard.classes for shard in found.folder.shards}) > 1, "shards have alphabets of their own"
    assert (len(found), found.tokenizer, found.properties) == (len(expected), alphabet(lines), scales)
    assert torch.equal(found.sizes.long(), expected.sizes)
    for rows in (ROWS, torch.arange(len(found)), torch.tensor([7])):
        ours, theirs = found.batch(rows), expected.batch(rows)
        for name in ("tokens", "prompt", "properties"):
            a, b = getattr(ours, name), getattr(theirs, name)
            assert (b is None) == (name in ("prompt", "properties") and not {"prompt": scaffold, "properties": properties}[name])
            assert a is b is None or (a.dtype == b.dtype and torch.equal(a, b)), name


def test_a_folder_with_conditions_serves_a_policy_without(file: Path, tmp_path: Path) -> None:
    build_shards(file, tmp_path / "f", ShardOptions(scaffold=True, properties=("TPSA", "MolWt"), shard_lines=60), jobs=1)
    lines = load_smiles(file, scaffolds=False)
    expected, found = token_dataset(lines.smiles, alphabet(lines)).batch(ROWS), ShardedTokens(tmp_path / "f").batch(ROWS)
    assert torch.equal(found.tokens, expected.tokens)
    assert found.prompt is found.properties is None
    both, one = (ShardedTokens(tmp_path / "f", names).batch(ROWS).properties for names in (("TPSA", "MolWt"), ("MolWt",)))
    assert both is not None
    assert one is not None
    assert torch.equal(both[:, 1:], one)


@pytest.mark.parametrize("max_atoms", [None, 6])
def test_graphs_equal_those_in_memory(file: Path, tmp_path: Path, max_atoms: int | None) -> None:
    expected = load_molecules(file, max_atoms=max_atoms)
    names = ("MolLogP", "MolWt")
    options = ShardOptions("graphs", properties=names, max_atoms=max_atoms, shard_lines=60)
    build_shards(file, tmp_path / "f", options, jobs=1)
    found = ShardedMolecules(tmp_path / "f")
    assert found.statistics == statistics(expected)
    assert (found.vocabulary, found.num_nodes, len(found)) == (expected.vocabulary, expected.num_nodes, len(expected))
    assert torch.equal(found.sizes.long(), expected.sizes)
    rows = ROWS[len(found) > ROWS]
    with_values, by_hand = ShardedConditionedMolecules(found, names), conditioned(expected, names)
    assert with_values.properties == by_hand.properties
    assert torch.equal(with_values.batch(rows).properties, by_hand.batch(rows).properties)
    for part in (rows, torch.arange(len(found))):
        for ours, theirs in ((found.batch(part), expected.batch(part)), (with_values.batch(part).graphs, expected.batch(part))):
            for name in ("nodes", "edges", "mask"):
                assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def test_memory_maps_are_closed_and_opened_again(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_shards(file, tmp_path / "f", ShardOptions(shard_lines=60), jobs=1)
    found = ShardedTokens(tmp_path / "f")
    expected = found.batch(ROWS).tokens
    monkeypatch.setattr(shards, "ROOM", 3 * shards.TOUCHED)
    for _ in range(3):
        assert torch.equal(found.batch(ROWS).tokens, expected)
        assert len(found.folder._maps) == 4
        found.batch(torch.tensor([0]))
        assert len(found.folder._maps) == 1
    with pytest.raises(IndexError, match=r"rows: 0 to 5000, expected 0 to 195"):
        found.batch(torch.tensor([0, 5000]))


# -- building


def test_the_number_of_processes_changes_nothing(file: Path, tmp_path: Path) -> None:
    for jobs in (1, 2):
        build_shards(file, tmp_path / str(jobs), ShardOptions("graphs", shard_lines=60), jobs=jobs)
    assert content(tmp_path / "1") == content(tmp_path / "2")


def test_a_stopped_build_is_finished_and_whole_shards_are_kept(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ShardOptions("graphs", shard_lines=60)
    build_shards(file, tmp_path / "whole", options, jobs=1)
    expected = content(tmp_path / "whole")
    written: list[int] = []
    stop_at: int | None = None
    write = shard_building.write_shard

    def counted(task: Any, **rest: Any) -> Any:
        if stop_at is not None and task[0] == stop_at:
            raise KeyboardInterrupt
        written.append(task[0])
        return write(task, **rest)

    monkeypatch.setattr(shard_building, "write_shard", counted)
    folder, stop_at = tmp_path / "f", 2
    with pytest.raises(KeyboardInterrupt):
        build_shards(file, folder, options, jobs=1)
    with pytest.raises(ValueError, match=r"data: '.*f' is half built, 2 shards so far; give the same 'discrete-grpo preprocess'"):
        ShardFolder(folder, "graphs")
    assert (folder / "plan.json").is_file()
    (folder / ".shard-00002.bin.0123456789ab.tmp").write_bytes(b"half")  # as a kill leaves it
    (folder / "shard-00003.bin").write_bytes(b"data without a record")
    cut = folder / "shard-00000.bin"
    cut.write_bytes(cut.read_bytes()[:-1])
    stop_at, written[:] = None, []
    build_shards(file, folder, options, jobs=1)
    assert written == [0, 2, 3]
    assert content(folder) == expected


@pytest.mark.slow
def test_a_build_that_is_killed_at_any_moment(file: Path, tmp_path: Path) -> None:
    long = tmp_path / "some.smi"
    long.write_text(file.read_text() * 6)
    script = (
        "import sys; from discrete_grpo.datasets.shard_building import ShardOptions, build_shards\n"
        "print('go', flush=True); build_shards(sys.argv[1], sys.argv[2], ShardOptions(shard_lines=100), jobs=1)"
    )
    build_shards(long, tmp_path / "whole", ShardOptions(shard_lines=100), jobs=1)
    done = 0
    for wait in (0.001, 0.06):
        run = subprocess.Popen([sys.executable, "-c", script, str(long), str(tmp_path / "f")], stdout=subprocess.PIPE)
        assert run.stdout is not None
        run.stdout.readline()
        time.sleep(wait)
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        run.stdout.close()
        now = len(list((tmp_path / "f").glob("shard-*.json")))
        assert now >= done, "finished shards are kept"
        done = now
    build_shards(long, tmp_path / "f", ShardOptions(shard_lines=100), jobs=1)
    assert content(tmp_path / "f") == content(tmp_path / "whole")


def test_what_does_not_fit_is_refused_in_one_line(file: Path, tmp_path: Path) -> None:
    def refused(folder: str, options: ShardOptions | None = None, path: Path = file, **rest: Any) -> str:
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            build_shards(path, tmp_path / folder, options, jobs=1, **rest)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "2 of 198 lines that are no molecule (1.0%, max_broken 0.0%): line 71: 'broken('" in refused("f", max_broken=0.0)
    with pytest.raises(ValueError, match="half built"):
        ShardFolder(tmp_path / "f", "smiles")
    build_shards(file, tmp_path / "f", jobs=1)  # what was written is not lost
    assert "begun with other data or options (scaffold: False, given True)" in refused("f", ShardOptions(scaffold=True))
    other = tmp_path / "some.smi"
    other.write_text("CC\n")
    assert "(source key: " in refused("f", path=other)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    assert "holds other files and no readable plan.json or manifest.json, expected a new folder" in refused("mine")
    assert "is a file, expected a folder to make" in refused("some.smi")
    assert "max_atoms: 1 leaves no molecule; sizes are 1 to 2" in refused(
        "g", ShardOptions("graphs", max_atoms=1), path=alone(tmp_path)
    )
    assert not (tmp_path / "g").exists(), "shards without molecules are of no use"
    assert "is no file" in refused("h", path=tmp_path / "none.smi")
    for wrong, said in (
        ({"form": "text"}, "form: 'text', expected smiles or graphs"),
        ({"form": "graphs", "scaffold": True}, "scaffold: true, expected false with form graphs"),
        ({"max_atoms": 9}, "max_atoms: 9, expected none with form smiles"),
        ({"form": "graphs", "max_atoms": 0}, "max_atoms: 0, expected at least 1"),
        ({"shard_lines": 0}, "shard_lines: 0, expected at least 1"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            ShardOptions(**wrong)


def alone(folder: Path) -> Path:
    path = folder / "pair.smi"
    path.write_text("CC\nCO\n")
    return path


def test_a_refused_file_leaves_nothing_behind(tmp_path: Path) -> None:
    graphs, empty, table = tmp_path / "t.g6", tmp_path / "empty.smi", tmp_path / "table.csv"
    graphs.write_text("Bw\n")
    empty.write_text("\n")
    table.write_text("a,b\nx,y\n")
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "new", tmp_path / "mine"):
        for path, said in ((graphs, "expected a file ending in .smi"), (empty, "holds no molecules"), (table, "column")):
            existed = folder.exists()
            with pytest.raises(ValueError, match=said):
                build_shards(path, folder, jobs=1)
            assert folder.exists() == existed
            assert not existed or not list(folder.iterdir())
        assert build_shards(alone(tmp_path), folder, jobs=1)["molecules"] == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    below = alone(tmp_path) / "shards"
    with pytest.raises(ValueError, match=r"^output_dir: '.*pair\.smi/shards' cannot be made a folder \(Not a directory\)$"):
        build_shards(tmp_path / "pair.smi", below, jobs=1)


# -- damaged folders


@pytest.fixture
def folder(file: Path, tmp_path: Path) -> Path:
    build_shards(file, tmp_path / "f", ShardOptions(shard_lines=60), jobs=1)
    return tmp_path / "f"


def test_damage_is_named_in_one_line_and_repaired(file: Path, folder: Path) -> None:
    whole = content(folder)
    again = "give the same 'discrete-grpo preprocess' command again to repair it"

    def refused() -> str:
        with pytest.raises(ValueError, match="data: ") as caught:
            ShardFolder(folder, "smiles")
        build_shards(file, folder, ShardOptions(shard_lines=60), jobs=1)
        assert content(folder) == whole
        assert "\n" not in str(caught.value)
        return str(caught.value)

    data = folder / "shard-00001.bin"
    data.write_bytes(whole[data.name][:-5] + b"\xff" + whole[data.name][-4:])
    assert refused() == f"data: '{data}' is damaged (its SHA-256 is not the one it was written with); {again}"
    data.write_bytes(whole[data.name][:-5])
    assert f"is damaged (it has {len(whole[data.name]) - 5:,} bytes instead of {len(whole[data.name]):,})" in refused()
    data.unlink()
    assert "is damaged (it cannot be read: No such file or directory)" in refused()
    manifest = folder / "manifest.json"
    manifest.write_bytes(whole["manifest.json"][:-100])
    assert refused().startswith(f"data: '{manifest}' is damaged (JSONDecodeError")
    plain = json.loads(whole["manifest.json"])
    plain["shards"][0]["arrays"]["tokens"][2] = 10**9
    manifest.write_text(json.dumps(plain))
    assert "array 'tokens' of 1000000000 uint8" in refused()
    manifest.write_text(json.dumps({**json.loads(whole["manifest.json"]), "measured": None}))
    assert "is damaged (AttributeError" in refused()
    manifest.write_text(json.dumps({**json.loads(whole["manifest.json"]), "format": 2}))
    expected = "is of format 2 'smiles', expected 1 and smiles or graphs; make the folder again with 'discrete-grpo preprocess'"
    assert expected in refused()


@pytest.mark.parametrize("text", [None, "", "{"])
def test_a_lost_plan_is_taken_from_the_manifest(file: Path, folder: Path, text: str | None) -> None:
    whole, plan = content(folder), folder / "plan.json"
    plan.unlink()
    if text is not None:
        plan.write_text(text)
    with pytest.raises(ValueError, match=r"begun with other data or options \(shard_lines: 60, given 70\)"):
        build_shards(file, folder, ShardOptions(shard_lines=70), jobs=1)
    (folder / "shard-00001.bin").unlink()  # is repaired too
    build_shards(file, folder, ShardOptions(shard_lines=60), jobs=1)
    assert content(folder) == whole


def test_a_folder_whose_column_was_computed_is_not_gone_on_with(tmp_path: Path) -> None:
    """A folder begun by a version that read no columns has the descriptor of that name."""
    table, folder = tmp_path / "t.csv", tmp_path / "f"
    table.write_text("smiles,qed\nCC,100\nCO,200\nCN,300\n")
    options = ShardOptions(properties=("qed",), shard_lines=2)
    assert build_shards(table, folder, options, jobs=1)["options"]["measured"] == ["qed"]
    plan = json.loads((folder / "plan.json").read_text())
    del plan["options"]["measured"]
    (folder / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ValueError, match=r"begun with other data or options \(measured: None, given \['qed'\]\)"):
        build_shards(table, folder, options, jobs=1)


def test_folders_of_another_kind(file: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds molecules in the form smiles, expected graphs; make such a folder with"):
        ShardedMolecules(folder)
    with pytest.raises(ValueError, match=r"is a folder without manifest\.json, expected a file of molecules or a folder made by"):
        ShardedTokens(tmp_path)
    with pytest.raises(ValueError, match=r"properties: 'TPSA' is not in the folder '.*', which has none; give it to 'preprocess'"):
        ShardedTokens(folder, ("TPSA",))
    with pytest.raises(ValueError, match=r"scaffold: true, expected false as the folder '.*' has no scaffolds"):
        ShardedTokens(folder, scaffold=True)


def test_a_folder_with_only_the_leftover_of_a_killed_write_is_begun(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / ".plan.json.0123456789ab.tmp").write_text("{")
    build_shards(alone(tmp_path), tmp_path / "f", jobs=1)
    assert sorted(content(tmp_path / "f")) == ["manifest.json", "plan.json", "shard-00000.bin", "shard-00000.json"]
