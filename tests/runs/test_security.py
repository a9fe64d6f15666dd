"""Files of strangers, each made to leave a trace when it is run: none may, and what is refused is told in one line."""

from __future__ import annotations

import io
import json
import os
import pickle
import sqlite3
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from discrete_grpo.cli import main
from discrete_grpo.datasets.graph_splits import read_npz
from discrete_grpo.datasets.molecules import load_molecules
from discrete_grpo.datasets.smiles import load_smiles
from discrete_grpo.importers.lightning import read_lightning
from discrete_grpo.importers.tensors import read_json, read_pickle
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.runs.checkpoint import (
    CheckpointError,
    Checkpoints,
    build,
    describe,
    load_metadata,
    load_training,
    read_policy,
    save,
)
from discrete_grpo.runs.files import write_sums
from discrete_grpo.training.elites import EliteBuffer
from tests.toys import tiny_policy

FILES = ("config.json", "model.safetensors", "training.pt")
SOURCES = ("molgpt", "reinvent", "digress", "defog", "graph-grpo", "midi")


class Trap:
    """Makes the folder ``path`` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.makedirs, (str(self.path), 0o777, True)


@pytest.fixture
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A path where nothing may be after the test, whatever it read."""
    path = tmp_path_factory.mktemp("canary") / "ran"
    yield path
    assert not path.exists(), "something in a file was executed"


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert text
    assert "\n" not in text
    return text


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must be refused; its one line on the error output."""

    def run(*arguments: Any) -> str:
        capsys.readouterr()
        assert main([str(a) for a in arguments]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("discrete-grpo: error: ")
        return lines[0]

    return run


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
    folder = store.save(1, tiny_policy(), metadata={}, training={"step": 1})
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
    folder = save(tmp_path / "p", tiny_policy(), metadata={})
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


# -- names in JSON


def spec(path: Any, /, **arguments: Any) -> dict[str, Any]:
    return {"class_path": path, "init_args": arguments}


def calls(canary: Path) -> list[dict[str, Any]]:
    """Descriptions of objects whose making would leave a trace."""
    touch = f"mkdir {canary}"
    code = f"__import__('os').mkdir({str(canary)!r})"
    return [
        spec("os.system", command=touch),
        spec("os.mkdir", path=str(canary)),
        spec("builtins.eval", source=code),
        spec("builtins.exec", source=code),
        spec("subprocess.Popen", args=touch, shell=True),
        spec("subprocess.run", args=touch, shell=True),
        spec("posix.system", command=touch),
        spec("torch.load", f=touch, weights_only=False),
        spec("discrete_grpo.runs.checkpoint.os.system", command=touch),
        spec("discrete_grpo.runs.checkpoint.os", command=touch),
        spec("discrete_grpo.runs.files.os.mkdir", path=str(canary)),
        spec("discrete_grpo.runs.files.shutil.rmtree", path=str(canary)),
        spec("discrete_grpo.rewards.external.subprocess.run", args=touch, shell=True),
        spec("discrete_grpo.rewards.external.subprocess.Popen", args=touch, shell=True),
        spec("discrete_grpo.rewards.external.ExternalReward", command=["mkdir", str(canary)]),
        spec("discrete_grpo.rewards.external._Program", command=["mkdir", str(canary)], environment={}),
        spec("discrete_grpo.rewards.pool_worker.resolve", path="os.mkdir", init_args={"path": str(canary)}),
        spec("discrete_grpo.rewards.pool_worker.find", path="os.mkdir"),
        spec("discrete_grpo.rewards.pool.RewardPool", reward="os.mkdir", init_args={"path": str(canary)}),
        spec("discrete_grpo.rewards.identity.functools.partial", func="os.mkdir"),
        spec("discrete_grpo.importers.lightning.pickle.loads", data=code),
        spec("discrete_grpo.runs.recorder.write_text", path=str(canary), text=""),
        spec("discrete_grpo.runs.recorder.Recorder", folder=str(canary)),
        spec("discrete_grpo.runs.database.Database", path=str(canary), tables={}),
        spec("discrete_grpo.runs.checkpoint.Checkpoints", run=str(canary)),
        spec("discrete_grpo.cli.main", arguments=["import", "x", f"--out={canary}"]),
        spec("discrete_grpo.runs.checkpoint.Path", args=[str(canary)]),
        spec("discrete_grpo.domains.graphs.GraphBatch.__init__", nodes=0),
        spec("discrete_grpo.../../evil.Evil"),
        spec("discrete_grpo\n.os.system", command=touch),
        spec(".os.system", command=touch),
        spec("", command=touch),
        spec(None, command=touch),
        spec(["os", "system"], command=touch),
        spec({"a": 1}, command=touch),
    ]


NUMBERS = range(len(calls(Path())))


@pytest.mark.parametrize("number", NUMBERS)
def test_names_in_a_description(tmp_path: Path, canary: Path, number: int) -> None:
    evil = calls(canary)[number]
    folder = save(tmp_path / "p", tiny_policy(), metadata={})
    config = json.loads((folder / "config.json").read_text())
    inside = {"policy": config["policy"] | {"init_args": {"network": [{"a": evil}]}}}
    for changed in ({"policy": evil}, inside):
        (folder / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(CheckpointError, match="class_path") as error:
            read_policy(folder)
        one_line(error)


def test_metadata_is_never_built(tmp_path: Path, canary: Path) -> None:
    folder = save(tmp_path / "p", tiny_policy(), metadata={"evil": calls(canary)})
    read_policy(folder)
    assert load_metadata(folder)["evil"] == calls(canary)


def test_a_trusted_package_is_trusted_for_its_classes_only(canary: Path) -> None:
    for path in ("tests.runs.test_security.os.mkdir", "tests.runs.test_security.Trap", "tests.runs.test_security.main"):
        with pytest.raises(CheckpointError, match="class_path"):
            build(spec(path, path=str(canary)), trusted=("tests",))


def test_what_is_built_must_be_a_policy(tmp_path: Path) -> None:
    folder = save(tmp_path / "p", tiny_policy(), metadata={})
    config = json.loads((folder / "config.json").read_text())
    for other in (config["policy"]["init_args"]["node_kernel"], {"a": 1}):
        (folder / "config.json").write_text(json.dumps(config | {"policy": other}))
        with pytest.raises(CheckpointError, match=r"expected a policy, which is an nn\.Module") as error:
            read_policy(folder)
        one_line(error)


def test_json_that_is_too_deep(tmp_path: Path) -> None:
    path = save(tmp_path / "p", tiny_policy(), metadata={}) / "config.json"
    path.write_text("[" * 200_000)
    for read in (load_metadata, read_policy):
        with pytest.raises(CheckpointError, match=r"config\.json") as error:
            read(tmp_path / "p")
        one_line(error)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_json(path)


def test_the_memory_of_good_samples(canary: Path) -> None:
    memory = EliteBuffer(tiny_policy(), 4, 0.5)
    good = {"key": "a", "reward": 1.0, "origin": None}
    for evil in calls(canary):
        with pytest.raises(CheckpointError, match="class_path") as error:
            memory.load([good | {"restart": {"restart": evil}}])
        one_line(error)
    memory.load([good | {"restart": describe({"a": 1})}])
    assert memory.kept[0].restart == {"a": 1}


# -- names of files in JSON


def test_names_of_files_in_a_checkpoint_lead_nowhere_else(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path / "run", 1, metric_for_best_model="reward")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    folder = store.save(1, tiny_policy(), metadata={}, training={}, lines=[{"reward": 1.0}])
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  ../../../outside/kept\n" + (folder / "SHA256SUMS").read_text())
    assert store.latest() == folder
    (store.folder / "best.json").write_text(json.dumps({"checkpoint": "../../outside", "metric": "reward", "value": 9.0}))
    assert store.best() == folder
    for step in (2, 3):
        store.save(step, tiny_policy(), metadata={}, training={}, lines=[{"reward": 0.5}])
    assert store.best() == folder
    assert (outside / "kept").exists()
    assert json.loads((store.folder / "best.json").read_text())["checkpoint"] == "step-00000001"


@pytest.mark.parametrize("command", ["../../evil", "list", "os.system", None, ["train"], {"train": 1}])
def test_the_command_of_a_run_folder(tmp_path: Path, refused: Callable[..., str], command: Any) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"command": command}))
    (tmp_path / "config.yaml").write_text("output_dir: x\n")
    assert "is no run folder" in refused("resume", tmp_path)


def test_a_checkpoint_that_names_a_file_as_its_data(tmp_path: Path, canary: Path) -> None:
    from discrete_grpo.recipes.graph_family import reference_of

    path = objects(tmp_path / "evil.npz", canary, ("train_num_nodes", "train_edges", "train_offsets"))
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Trap(canary)))
    for name in (path, tmp_path / "bare.npz", "../../evil", "/dev/null"):
        assert reference_of({"data": {"name": str(name), "source": str(name)}, "shape": "planar"}) is None


# -- YAML


TAGS = [
    "!!python/object/apply:os.mkdir [{canary}]",
    "!!python/object/apply:os.system ['mkdir {canary}']",
    "!!python/object/apply:subprocess.check_call [[mkdir, {canary}]]",
    "!!python/object/new:subprocess.Popen [[mkdir, {canary}]]",
    "!!python/object/apply:builtins.eval [\"__import__('os').mkdir('{canary}')\"]",
    "!!python/object/new:tuple [!!python/object/apply:os.mkdir [{canary}]]",
    "!!python/name:os.system",
    "!!python/module:os",
]


@pytest.mark.parametrize(
    ("tag", "field"),
    [*((tag, "reward") for tag in TAGS), *((TAGS[0], field) for field in ("policy", "output_dir", "nowhere", "grpo"))],
)
def test_tags_in_a_configuration(
    tmp_path: Path, canary: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tag: str, field: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"{field}: {tag.format(canary=canary)}\n"
    Path("evil.yaml").write_text(text)
    assert "python/" in refused("train", "evil.yaml", *([] if field == "output_dir" else ["--output_dir=run"]))
    assert not Path("run").exists()
    Path("run").mkdir()
    Path("run/run.json").write_text('{"command": "train"}')
    Path("run/config.yaml").write_text(text)
    assert "python/" in refused("resume", "run")


def test_the_tags_would_run(tmp_path: Path) -> None:
    yaml.unsafe_load(f"reward: {TAGS[0].format(canary=tmp_path / 'ran')}")
    assert (tmp_path / "ran").is_dir()


def test_a_strangers_run_folder_can_be_looked_at(tmp_path: Path, canary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its config.yaml names code and is run by ``resume`` only."""
    run = tmp_path / "run"
    Checkpoints(run).save(1, tiny_policy(), metadata={"kind": "graphs", "shape": "tree"}, training={})
    (run / "run.json").write_text('{"command": "train"}')
    (run / "config.yaml").write_text(f"reward: {TAGS[1].format(canary=canary)}\npolicy: <script>alert(1)</script>\n")
    (run / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    assert main(["report", str(run)]) == 0
    assert "<script>alert" not in (run / "report.html").read_text()
    capsys.readouterr()


# -- arrays


def objects(path: Path, canary: Path, names: tuple[str, ...]) -> Path:
    """An npz file of arrays of Python objects, which NumPy stores as pickles."""
    trap = np.array([Trap(canary)], dtype=object)
    np.savez(path, **dict.fromkeys(names, trap))  # type: ignore[arg-type]
    return path


def test_the_arrays_would_run(tmp_path: Path) -> None:
    path = objects(tmp_path / "x.npz", tmp_path / "ran", ("a",))
    with np.load(path, allow_pickle=True) as found:
        found["a"]
    assert (tmp_path / "ran").is_dir()


def test_graph_data(tmp_path: Path, canary: Path, refused: Callable[..., str]) -> None:
    names = tuple(f"{split}_{part}" for split in ("train", "val", "test") for part in ("num_nodes", "edges", "offsets"))
    path = objects(tmp_path / "x.npz", canary, names)
    with pytest.raises(ValueError, match="allow_pickle=False") as error:
        read_npz(path)
    one_line(error)
    assert "allow_pickle" in refused("evaluate", path)
    path.write_bytes(pickle.dumps(Trap(canary)))
    with pytest.raises(ValueError, match=r"x\.npz cannot be read"):
        read_npz(path)


@pytest.mark.parametrize("load", [load_molecules, load_smiles])
@pytest.mark.parametrize("form", ["objects", "pickle"])
def test_caches_of_molecules(tmp_path: Path, canary: Path, load: Callable[..., Any], form: str) -> None:
    (tmp_path / "good.smi").write_text("CCO\nCCN\n")
    load(tmp_path / "good.smi", cache_dir=tmp_path / "cache")
    (cached,) = (tmp_path / "cache").iterdir()
    if form == "objects":
        objects(cached, canary, ("nodes", "pairs", "sizes", "broken", "vocabulary", "smiles", "scaffolds", "values"))
    else:
        cached.write_bytes(pickle.dumps(Trap(canary)))
    with pytest.warns(RuntimeWarning, match="damaged, and made again; (ValueError: .*pickle|BadZipFile: File is not a zip file)"):
        assert load(tmp_path / "good.smi", cache_dir=tmp_path / "cache").smiles == ("CCO", "CCN")
    assert not canary.exists()


# -- SQLite


def sql(path: Path, *statements: str, values: tuple[Any, ...] = ()) -> None:
    connection = sqlite3.connect(path)
    try:
        for statement in statements:
            connection.execute(statement, values)
        connection.commit()
    finally:
        connection.close()


def test_a_trigger_cannot_hide_behind_the_name_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    connection = sqlite3.connect(path)
    kept = dict(connection.execute("SELECT name, sql FROM sqlite_master").fetchall())
    connection.execute("DROP TABLE scores")
    connection.execute("CREATE TRIGGER scores AFTER INSERT ON calls BEGIN DELETE FROM calls; END")
    connection.execute(kept["scores"])
    assert dict(connection.execute("SELECT name, sql FROM sqlite_master").fetchall()) == kept, "by names it cannot be seen"
    connection.commit()
    connection.close()
    with pytest.warns(RuntimeWarning, match="damaged"):
        ledger = Ledger(path)
    ledger.score([lambda samples, **columns: [1.0] * len(samples)], ["a", "b"])
    assert ledger.calls == 2


@pytest.mark.parametrize("make", [lambda path: ScoreCache(path), lambda path: Ledger(path)], ids=["cache", "ledger"])
def test_a_file_that_is_no_database(tmp_path: Path, canary: Path, make: Callable[[Path], Any]) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(pickle.dumps(Trap(canary)))
    with pytest.warns(RuntimeWarning, match="damaged"):
        make(path).close()
    assert [p.name for p in tmp_path.glob("*.damaged-*")]


@pytest.mark.parametrize("blob", ["value", "checksum", "id"])
def test_pickles_in_the_rows_of_the_cache(tmp_path: Path, canary: Path, blob: str) -> None:
    path = tmp_path / "c.sqlite"
    key = ScoreCache.key("reward", "C", {})
    assert key is not None
    ScoreCache(path).close()
    row: dict[str, Any] = {"id": key, "value": 0.5, "checksum": b"x"} | {blob: pickle.dumps(Trap(canary))}
    sql(path, "INSERT INTO scores VALUES (?, ?, ?)", values=(row["id"], row["value"], row["checksum"]))
    cache = ScoreCache(path)
    told = pytest.warns(RuntimeWarning, match="1 damaged rows were left out")
    with nullcontext() if blob == "id" else told:  # a row under another key is not met
        assert cache.get([key]) == {}
    cache.close()


def test_pickles_in_the_rows_of_the_ledger(tmp_path: Path, canary: Path) -> None:
    path, trap = tmp_path / "l.sqlite", pickle.dumps(Trap(canary))
    Ledger(path).close()
    sql(path, "INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?)", values=(trap,) * 6)
    sql(path, "INSERT INTO scores VALUES (?, ?, ?, ?)", values=(trap, trap, trap, trap))
    with pytest.warns(RuntimeWarning, match="2 damaged rows were left out"):
        ledger = Ledger(path)
    assert ledger.calls == 0


@pytest.mark.parametrize("statement", ["SELECT load_extension('/tmp/evil.so')", "SELECT readfile('/etc/passwd')"])
def test_no_statement_of_a_file_can_load_code(tmp_path: Path, statement: str) -> None:
    cache = ScoreCache(tmp_path / "c.sqlite")
    assert cache._file is not None
    with pytest.raises(OSError, match=r"not authorized|no such function"):
        cache._file.run(lambda connection: connection.execute(statement).fetchall())


def test_names_of_samples_are_values_and_no_statements(tmp_path: Path) -> None:
    evil = "'); DROP TABLE calls; ATTACH DATABASE 'x.sqlite' AS x; --"
    ledger = Ledger(tmp_path / "l.sqlite", cache=ScoreCache(tmp_path / "c.sqlite"))
    ledger.score([lambda samples, **columns: [1.0] * len(samples)], [evil, "C"])
    assert ledger.history().keys == (evil, "C")
    assert sorted(p.name.split("-")[0] for p in tmp_path.iterdir() if p.name.endswith(".sqlite")) == ["c.sqlite", "l.sqlite"]


def test_a_config_that_calls_a_function_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    canary, config = tmp_path / "canary", tmp_path / "config.yaml"
    for path, argument in (("os.system", "command"), ("subprocess.getoutput", "cmd")):
        config.write_text(f"reward:\n  class_path: {path}\n  init_args:\n    {argument}: touch {canary}\n")
        assert main(["train", f"--config={config}", f"--output_dir={tmp_path / 'run'}"]) == 2
        assert f"class_path: '{path}' is no class" in capsys.readouterr().err
        assert not canary.exists()
