"""Pickles of strangers, each made to leave a trace when it is run: none may, in checkpoints of any kind."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.importers.lightning import read_lightning
from discrete_grpo.importers.tensors import read_pickle
from discrete_grpo.runs.checkpoint import CheckpointError, Checkpoints, load_training, read_policy, save
from discrete_grpo.runs.files import write_sums
from tests.runs.traps import Trap, one_line
from tests.toys import transformer_policy

FILES = ("config.json", "model.safetensors", "training.pt")
SOURCES = ("molgpt", "reinvent", "digress", "defog", "graph-grpo", "midi")


def test_the_traps_would_run(tmp_path: Path) -> None:
    for k, load in enumerate((pickle.loads, lambda data: torch.load(io.BytesIO(data), weights_only=False))):
        file = io.BytesIO()
        trap = Trap(tmp_path / str(k))
        pickle.dump(trap, file) if k == 0 else torch.save({"a": [trap]}, file)
        load(file.getvalue())
        assert (tmp_path / str(k)).is_dir()


# -- pickles


def pickled(path: Path, trap: Trap, form: str, **more: Any) -> Path:
    """A file whose pickle holds a trap, in one of the forms that torch reads."""
    content = {"state_dict": {"w": torch.zeros(2)}, "step": trap, **more}
    if form == "bare":
        path.write_bytes(pickle.dumps(content))
    elif form == "opcodes":  # protocol 0 names what it calls by other opcodes
        path.write_bytes(pickle.dumps(trap, protocol=0))
    elif form == "appended":
        torch.save({"w": torch.zeros(2)}, path)
        path.write_bytes(pickle.dumps(trap) + path.read_bytes())
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    return path


@pytest.mark.parametrize("form", ["zip", "legacy", "bare", "opcodes", "appended"])
def test_training_state(tmp_path: Path, canary: Path, form: str) -> None:
    store = Checkpoints(tmp_path)
    folder = store.save(1, transformer_policy(), metadata={}, training={"step": 1})
    pickled(folder / "training.pt", Trap(canary), form)
    with pytest.raises(CheckpointError, match=r"training\.pt cannot be read") as error:
        load_training(folder)
    one_line(error)
    with pytest.raises(CheckpointError, match=r"training\.pt is not what was written") as error:
        store.latest()
    one_line(error)
    write_sums(folder, FILES)  # as a stranger would
    with pytest.raises(CheckpointError, match=r"training\.pt cannot be read"):
        load_training(store.latest())


@pytest.mark.parametrize("form", ["zip", "legacy", "bare", "opcodes"])
def test_weights_that_are_a_pickle(tmp_path: Path, canary: Path, form: str) -> None:
    folder = save(tmp_path / "p", transformer_policy(), metadata={})
    pickled(folder / "model.safetensors", Trap(canary), form)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read") as error:
        read_policy(folder)
    one_line(error)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("form", ["zip", "legacy", "bare", "opcodes", "appended"])
def test_foreign_checkpoints(tmp_path: Path, canary: Path, refused: Callable[..., str], source: str, form: str) -> None:
    more = {"hyper_parameters": Trap(canary), "network": {"a": Trap(canary)}, "callbacks": [Trap(canary)]}
    path = pickled(tmp_path / "foreign.ckpt", Trap(canary), form, **more)
    (tmp_path / "tokens.json").write_text('["C", "<"]')
    options = [f"--vocabulary={tmp_path / 'tokens.json'}"] if source == "molgpt" else []
    assert "foreign.ckpt" in refused("import", path, f"--from={source}", f"--out={tmp_path / 'out'}", *options)
    assert not (tmp_path / "out").exists()


# -- what a Lightning file can do short of running


def raw(body: bytes) -> bytes:
    """A file as torch.save writes it, with any pickle in it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + body + b".")
        archive.writestr("archive/version", b"3\n")
    return file.getvalue()


@pytest.mark.parametrize("name", ["_rebuild_tensor_v2", "_rebuild_parameter"])
def test_a_pickle_cannot_change_the_functions_it_names(tmp_path: Path, canary: Path, name: str) -> None:
    function = getattr(torch._utils, name)
    defaults = function.__defaults__
    change = f"ctorch._utils\n{name}\n".encode() + b"(" + b"N}X\x0c\x00\x00\x00__defaults__" + b"(K\x01K\x02K\x03ts" + b"tb"
    (tmp_path / "x.ckpt").write_bytes(raw(change))
    try:
        read_lightning(tmp_path / "x.ckpt")
        assert function.__defaults__ == defaults
    finally:
        function.__defaults__ = defaults


def program(path: Path) -> bytes:
    """A compiled program, as torch.jit writes it."""
    module = torch.jit.trace(torch.nn.Linear(1, 1), torch.zeros(1, 1))
    torch.jit.save(module, path)
    return path.read_bytes()


@pytest.mark.filterwarnings("ignore:'torch.load' received a zip file")
@pytest.mark.parametrize("hidden", [False, True], ids=["plain", "hidden"])
def test_a_compiled_program_is_not_loaded_however_its_archive_is_laid_out(
    tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    path = tmp_path / "x.ckpt"
    data = program(path)
    if hidden:  # a second directory right before the end, which zipfile takes, and torch does not
        end = data.rindex(b"PK\x05\x06")
        size, start = struct.unpack("<II", data[end + 12 : end + 20])
        other = data[start : start + size].replace(b"constants.pkl", b"constants.pkx")
        data = data[: start + size] + other + b"PK\x05\x06" + data[end + 4 : end + 20] + b"\0\0"
        path.write_bytes(data)
        with zipfile.ZipFile(path) as archive:
            assert not any(name.endswith("constants.pkl") for name in archive.namelist())
    monkeypatch.setattr(torch.jit, "load", lambda *a, **k: canary.mkdir())
    for read in (read_lightning, read_pickle):
        with pytest.raises(CheckpointError, match=r"x\.ckpt") as error:
            read(path)
        one_line(error)
    with pytest.raises(CheckpointError, match=r"compiled program|cannot be read"):
        read_lightning(path)
