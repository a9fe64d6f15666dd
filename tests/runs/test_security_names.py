"""Names that strangers write into JSON, of code and of files: none is called, and none leads elsewhere."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.importers.tensors import read_json
from discrete_grpo.runs.checkpoint import CheckpointError, Checkpoints, build, describe, load_metadata, read_policy, save
from discrete_grpo.training.elites import EliteBuffer
from tests.runs.traps import Trap, objects, one_line
from tests.toys import transformer_policy

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
    folder = save(tmp_path / "p", transformer_policy(), metadata={})
    config = json.loads((folder / "config.json").read_text())
    inside = {"policy": config["policy"] | {"init_args": {"network": [{"a": evil}]}}}
    for changed in ({"policy": evil}, inside):
        (folder / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(CheckpointError, match="class_path") as error:
            read_policy(folder)
        one_line(error)


def test_metadata_is_never_built(tmp_path: Path, canary: Path) -> None:
    folder = save(tmp_path / "p", transformer_policy(), metadata={"evil": calls(canary)})
    read_policy(folder)
    assert load_metadata(folder)["evil"] == calls(canary)


def test_a_trusted_package_is_trusted_for_its_classes_only(canary: Path) -> None:
    for path in ("tests.runs.traps.os.mkdir", "tests.runs.traps.Trap", "tests.command_line.main"):
        with pytest.raises(CheckpointError, match="class_path"):
            build(spec(path, path=str(canary)), trusted=("tests",))


def test_what_is_built_must_be_a_policy(tmp_path: Path) -> None:
    folder = save(tmp_path / "p", transformer_policy(), metadata={})
    config = json.loads((folder / "config.json").read_text())
    for other in (config["policy"]["init_args"]["node_kernel"], {"a": 1}):
        (folder / "config.json").write_text(json.dumps(config | {"policy": other}))
        with pytest.raises(CheckpointError, match=r"expected a policy, which is an nn\.Module") as error:
            read_policy(folder)
        one_line(error)


def test_json_that_is_too_deep(tmp_path: Path) -> None:
    path = save(tmp_path / "p", transformer_policy(), metadata={}) / "config.json"
    path.write_text("[" * 200_000)
    for read in (load_metadata, read_policy):
        with pytest.raises(CheckpointError, match=r"config\.json") as error:
            read(tmp_path / "p")
        one_line(error)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_json(path)


def test_the_memory_of_good_samples(canary: Path) -> None:
    memory = EliteBuffer(transformer_policy(), 4, 0.5)
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
    folder = store.save(1, transformer_policy(), metadata={}, training={}, lines=[{"reward": 1.0}])
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  ../../../outside/kept\n" + (folder / "SHA256SUMS").read_text())
    assert store.latest() == folder
    (store.folder / "best.json").write_text(json.dumps({"checkpoint": "../../outside", "metric": "reward", "value": 9.0}))
    assert store.best() == folder
    for step in (2, 3):
        store.save(step, transformer_policy(), metadata={}, training={}, lines=[{"reward": 0.5}])
    assert store.best() == folder
    assert (outside / "kept").exists()
    assert json.loads((store.folder / "best.json").read_text())["checkpoint"] == "step-00000001"


@pytest.mark.parametrize("command", ["../../evil", "list", "os.system", None, ["train"], {"train": 1}])
def test_the_command_of_a_run_folder(tmp_path: Path, refused: Callable[..., str], command: Any) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"command": command}))
    (tmp_path / "config.yaml").write_text("output_dir: x\n")
    assert "is no run folder" in refused("resume", tmp_path)


def test_a_checkpoint_that_names_a_file_as_its_data(tmp_path: Path, canary: Path) -> None:
    from discrete_grpo.recipes.kinds.graphs import reference_of

    path = objects(tmp_path / "evil.npz", canary, ("train_num_nodes", "train_edges", "train_offsets"))
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Trap(canary)))
    for name in (path, tmp_path / "bare.npz", "../../evil", "/dev/null"):
        assert reference_of({"data": {"name": str(name), "source": str(name)}, "shape": "planar"}) is None
