"""Checkpoints: whole or not at all, named errors, nothing executed, any object that describes itself."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from discrete_grpo import GRPOConfig, GRPOTrainer
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.diffusion.flow import FlowEuler, FlowInterpolation
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import Noise, absorbing
from discrete_grpo.diffusion.schedules import CosineSchedule, LinearSchedule
from discrete_grpo.policies.conditions import FixedSites
from discrete_grpo.policies.node_count import LearnedSizes, SizedPolicy
from discrete_grpo.runs import checkpoint
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
from tests.toys import SIZES, node_classes, share_of_class_two, transformer_policy


def test_a_saved_policy_samples_the_same_bits(tmp_path: Path) -> None:
    policy = transformer_policy(temperature=0.8, share_initial_noise=True)
    save(tmp_path / "p", policy, metadata={"data": {"name": "toy"}})
    again = read_policy(tmp_path / "p")
    assert load_metadata(tmp_path / "p") == {"data": {"name": "toy"}}
    assert (again.temperature, again.share_initial_noise, again.num_steps) == (0.8, True, 4)
    a, b = (p.sample(group_contexts(3, 4), generator=torch.Generator().manual_seed(3)) for p in (policy, again))
    assert all(torch.equal(a.states[k], b.states[k]) for k in a.states)
    assert torch.equal(a.logp, b.logp)
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == ["config.json", "model.safetensors"]


def floating(module: nn.Module) -> dict[str, torch.dtype]:
    """The type of each parameter and buffer, kept in checkpoints or not."""
    return {name: x.dtype for name, x in [*module.named_parameters(), *module.named_buffers()] if x.is_floating_point()}


def mixed(policy: nn.Module) -> nn.Module:
    """Norms in float64, embeddings in bfloat16, all else in float32."""
    for name, parameter in policy.named_parameters():
        if "norm" in name or "film" in name:
            parameter.data = parameter.data.double()
        elif "embed" in name or name.endswith("bias"):
            parameter.data = parameter.data.bfloat16()
    return policy


CASTS: dict[str, Callable[[Any], Any]] = {
    "float32": lambda policy: policy,
    "float64": lambda policy: policy.double(),
    "bfloat16": lambda policy: policy.bfloat16(),
    "mixed": mixed,
}


@pytest.mark.parametrize("made", [transformer_policy, lambda: SizedPolicy(transformer_policy(), LearnedSizes(SIZES))])
@pytest.mark.parametrize("kind", CASTS)
def test_a_policy_loads_in_the_type_it_was_saved_in(kind: str, made: Callable[[], Any], tmp_path: Path) -> None:
    policy = CASTS[kind](made())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():  # bits that float32 cannot hold
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype))
    folder = save(tmp_path / "p", policy, metadata={})
    again = read_policy(folder)
    assert floating(again) == floating(policy)
    assert len(set(floating(again).values())) == (3 if kind == "mixed" else 1)
    assert all(torch.equal(a, b) for a, b in zip(policy.state_dict().values(), again.state_dict().values(), strict=True))
    assert floating(read_policy(save(tmp_path / "q", again, metadata={}))) == floating(policy)
    if kind != "mixed":
        drawn = [p.eval().sample(group_contexts(3, 4), generator=torch.Generator().manual_seed(3)) for p in (policy, again)]
        assert torch.equal(*[rollout.logp for rollout in drawn])


@pytest.mark.parametrize("kind", ["float64", "bfloat16"])
def test_a_run_and_its_checkpoints_keep_the_type(kind: str, tmp_path: Path) -> None:
    config = GRPOConfig(max_steps=2, num_generations=2, generation_batch_size=4, save_steps=1, ema_decay=0.9, beta=0.1)
    GRPOTrainer(CASTS[kind](transformer_policy()), share_of_class_two, config, run=tmp_path).train()
    latest = Checkpoints(tmp_path).latest()
    start = read_policy(latest)
    start.decode = node_classes
    assert {*floating(start).values()} == {getattr(torch, kind)}
    resumed = GRPOTrainer(start, share_of_class_two, replace(config, max_steps=4), run=tmp_path, resume=True)
    resumed.train()
    for policy in (resumed.best_policy, read_policy(Checkpoints(tmp_path).latest())):
        assert {*floating(policy).values()} == {getattr(torch, kind)}


def test_an_earlier_checkpoint_loads_as_before_and_an_edited_one_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "p", transformer_policy().double(), metadata={})
    config = json.loads((folder / "config.json").read_text())
    assert config["dtype"] == "float64"
    assert "dtypes" not in config
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "dtype"}))
    assert {*floating(read_policy(folder)).values()} == {torch.float32}
    for entry, said in (
        ({"dtype": "int8"}, "dtype: 'int8', expected one of float16, bfloat16"),
        ({"dtype": "nn"}, "dtype: 'nn', expected one of float16, bfloat16"),
        ({"dtype": 3}, "dtype: 3, expected one of float16, bfloat16"),
        ({"dtypes": ["float64"]}, r"dtypes: \['float64'\], expected a type for each name"),
    ):
        (folder / "config.json").write_text(json.dumps(config | entry))
        with pytest.raises(CheckpointError, match=said):
            read_policy(folder)


def test_describe_and_build_are_inverse() -> None:
    for kernel in (D3PM(absorbing(3, LinearSchedule())), D3PM(Noise((0.25, 0.75), CosineSchedule(0.01), 2))):
        spec = json.loads(json.dumps(describe(kernel)))
        assert build(spec) == kernel


OLD_SCHEDULE = {"class_path": "discrete_grpo.diffusion.schedules.CosineSchedule", "init_args": {"offset": 0.01}}
OLD_NOISE = {"prior": [0.25, 0.5, 0.25], "schedule": OLD_SCHEDULE, "num_clean": 2}


@pytest.mark.parametrize(
    ("path", "rates", "wanted"),
    [
        ("kernels.D3PM", {}, D3PM),
        ("flow.FlowInterpolation", {}, FlowInterpolation),
        ("flow.FlowEuler", {"eta": 2.0, "omega": 0.5}, partial(FlowEuler, eta=2.0, omega=0.5)),
    ],
)
def test_kernels_written_before_noise_was_one_value_load(path: str, rates: dict[str, Any], wanted: Any) -> None:
    """Older files hold prior, schedule and num_clean as arguments of the kernel itself."""
    spec = {"class_path": f"discrete_grpo.diffusion.{path}", "init_args": OLD_NOISE | rates}
    before = json.dumps(spec)
    found = build(spec)
    assert found == wanted(Noise((0.25, 0.5, 0.25), CosineSchedule(0.01), 2))
    assert json.dumps(spec) == before
    now = describe(found)
    assert set(now["init_args"]) == {"noise", *rates}
    assert build(json.loads(json.dumps(now))) == found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prior": [0.5, 0.4]}, r"diffusion\.noise\.Noise' cannot be built: prior: \(0\.5, 0\.4\), expected probabilities"),
        ({"num_clean": "2"}, r"diffusion\.noise\.Noise' has num_clean: '2', expected int"),
        ({"schedule": 3}, r"diffusion\.noise\.Noise' has schedule: 3, expected Schedule"),
        ({"eta": -1.0}, r"diffusion\.flow\.FlowEuler' cannot be built: eta: -1\.0, expected at least 0"),
        ({"noise": 3}, r"diffusion\.flow\.FlowEuler' has noise: 3, expected Noise"),
    ],
)
def test_older_kernels_with_a_wrong_argument_are_refused_in_words(change: dict[str, Any], said: str) -> None:
    spec = {"class_path": "discrete_grpo.diffusion.flow.FlowEuler", "init_args": OLD_NOISE | change}
    with pytest.raises(CheckpointError, match=said):
        build(spec)


def test_fixed_sites_keep_their_numbered_keys() -> None:
    fixed = FixedSites({0: 1, 3: 0}, {(0, 3): 2}, closed=(3,))
    described = json.loads(json.dumps(describe({"fixed": [fixed, None]})))
    assert build(described) == {"fixed": (fixed, None)}
    del described["fixed"][0]["init_args"]["closed"]  # as written before there were closed nodes
    assert build(described) == {"fixed": (FixedSites({0: 1, 3: 0}, {(0, 3): 2}), None)}


@pytest.mark.parametrize(
    "table",
    [{1: 2.0}, {"a": {0.5: "b", None: 1}}, {(1, 2): 3, "a": 1}, {}],
)
def test_mappings_keep_their_keys(table: dict[Any, Any]) -> None:
    assert build(json.loads(json.dumps(describe({"table": table})))) == {"table": table}


@pytest.mark.parametrize("items", [3, [[1, 2, 3]], [[[{"a": 1}], 2]]])
def test_items_of_a_mapping_that_are_no_pairs_are_refused(items: Any) -> None:
    with pytest.raises(CheckpointError, match=r"^mapping_items: .*, expected pairs of a key and a value$"):
        build({"mapping_items": items})


def test_only_trusted_packages_are_imported(tmp_path: Path) -> None:
    path = save(tmp_path / "p", transformer_policy(), metadata={}) / "config.json"
    config = json.loads(path.read_text())
    config["policy"]["class_path"] = "os.system"
    config["policy"]["init_args"] = {"command": f"touch {tmp_path / 'ran'}"}
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="outside the trusted packages discrete_grpo"):
        read_policy(tmp_path / "p")
    assert not (tmp_path / "ran").exists()


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_training_state_executes_nothing(tmp_path: Path) -> None:
    folder = save(tmp_path / "p", transformer_policy(), metadata={}, training={"step": 1})
    assert load_training(folder) == {"step": 1}
    ran = tmp_path / "ran"
    torch.save({"step": _Evil(ran)}, folder / "training.pt")
    with pytest.raises(CheckpointError, match=r"training\.pt cannot be read"):
        load_training(folder)
    (folder / "training.pt").write_bytes(pickle.dumps(_Evil(ran)))
    with pytest.raises(CheckpointError):
        load_training(folder)
    assert not ran.exists()
    pickle.loads((folder / "training.pt").read_bytes())
    assert ran.exists(), "the file would have run, had it been unpickled"


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "training.pt"])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_named(tmp_path: Path, file: str, keep: float) -> None:
    folder = save(tmp_path / "p", transformer_policy(), metadata={}, training={"x": torch.arange(1000)})
    whole = (folder / file).read_bytes()
    (folder / file).write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(CheckpointError) as error:
        load_training(folder) if file == "training.pt" else read_policy(folder)
    assert file in str(error.value)


def test_wrong_tensors_are_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "p", transformer_policy(), metadata={})
    tensors = load_file(folder / "model.safetensors")
    name = "network.node_out.3.bias"
    other = {k: v for k, v in tensors.items() if k != name}
    for changed, said in (
        (other, f"{name} missing"),
        (tensors | {"extra": torch.zeros(1)}, "extra unexpected"),
        (tensors | {name: torch.zeros(7)}, rf"{name} \(7,\) for \(3,\)"),
    ):
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=said):
            read_policy(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path: Path, value: float) -> None:
    folder = save(tmp_path / "p", transformer_policy(), metadata={})
    tensors = load_file(folder / "model.safetensors")
    name = "network.node_out.3.bias"
    save_file(tensors | {name: torch.tensor([0.0, value, value])}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"no finite numbers: {name} \(2 of 3 numbers are NaN or infinite\)$"):
        read_policy(folder)
    save_file({k: torch.full_like(v, value) for k, v in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"; .* and \d+ more$"):
        read_policy(folder)


class Masked(torch.nn.Module):
    """A policy with a buffer of logits that are masked out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))

    def init_args(self) -> dict[str, Any]:
        return {}


def test_a_buffer_may_hold_infinity(tmp_path: Path) -> None:
    folder = save(tmp_path / "p", Masked(), metadata={})
    assert read_policy(folder, trusted=("tests",)).mask.tolist() == [0.0, float("-inf")]
    save_file({"mask": torch.tensor([0.0, float("nan")])}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"mask \(1 of 2 numbers"):
        read_policy(folder, trusted=("tests",))


def test_missing_folder_and_format(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_policy(tmp_path)
    (tmp_path / "config.json").write_text('{"format": 99}')
    with pytest.raises(CheckpointError, match="format 99, expected 1"):
        read_policy(tmp_path)


def test_whoever_may_read_one_file_of_a_checkpoint_may_read_the_others(tmp_path: Path) -> None:
    for name, mask in (("shared", 0o022), ("group", 0o027), ("private", 0o077)):
        before = os.umask(mask)
        try:
            folder = save(tmp_path / name, transformer_policy(), metadata={}, training={"step": 1})
        finally:
            os.umask(before)
        assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(
            ("SHA256SUMS", "config.json", "model.safetensors", "training.pt"), 0o666 & ~mask
        )


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "p", transformer_policy(), metadata={"version": 1})

    def full(*args: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match=r"p: cannot be written \(No space left on device\); what was there is as it was"):
        save(tmp_path / "p", transformer_policy(seed=1), metadata={"version": 2})
    assert load_metadata(folder) == {"version": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


@dataclass
class _Outside:
    value: int = 1


def test_what_cannot_be_described_is_named() -> None:
    with pytest.raises(TypeError, match="object: cannot be written"):
        describe(object())
    spec = describe(_Outside(3))
    with pytest.raises(CheckpointError, match="trusted"):
        build(spec)
    assert build(spec, trusted=("tests",)) == _Outside(3)
    with pytest.raises(CheckpointError, match="cannot be built"):
        build({"class_path": "discrete_grpo.domains.graphs.NoSuch", "init_args": {}})


@pytest.mark.parametrize(
    "spec",
    [
        {"class_path": "discrete_grpo.cli.main", "init_args": {"arguments": ["list"]}},
        {"class_path": "discrete_grpo.runs.checkpoint.read_policy", "init_args": {"folder": ".", "trusted": ["subprocess"]}},
        {"class_path": "discrete_grpo.rewards.judge.Judge", "init_args": {"checkpoint": ".", "trusted": ["subprocess"]}},
        {"class_path": "discrete_grpo.runs.checkpoint.Path", "init_args": {}},
        {"class_path": "discrete_grpo.recipes.train.GRPOConfig", "init_args": {}},  # stands elsewhere
        {"class_path": "discrete_grpo", "init_args": {}},
        {"class_path": "discrete_grpo..graph.GraphBatch", "init_args": {}},
        {"class_path": ["discrete_grpo"], "init_args": {}},
        {"class_path": "discrete_grpo.domains.graphs.GraphBatch", "init_args": []},
        {"class_path": "discrete_grpo.diffusion.schedules.CosineSchedule", "init_args": {"s": "much"}},
        {"class_path": "discrete_grpo.domains.tokenizer.Property", "init_args": {"name": "a", "mean": 0.0, "std": -1.0}},
    ],
)
def test_only_classes_that_describe_writes_are_built(spec: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckpointError, match="class_path"):
        build(spec)
    assert capsys.readouterr().out == ""
