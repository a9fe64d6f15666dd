"""The setting ``bf16``: what ``auto`` comes to on each processor, what is said of it, and that a resumed run keeps it."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from discrete_grpo import GRPOConfig, GRPOTrainer, PretrainConfig
from discrete_grpo.cli.parser import parse
from discrete_grpo.training import bf16
from discrete_grpo.training.bf16 import bf16_units, decide_bf16
from discrete_grpo.training.pretrain import Pretrainer
from tests.toys import share_of_class_two, tiny_policy
from tests.training.test_pretrain import DATA

CPU = torch.device("cpu")
GRPO = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=8, learning_rate=1e-2, save_steps=1, bf16="auto")
PRETRAIN = PretrainConfig(max_steps=4, batch_size=16, learning_rate=1e-2, warmup_steps=2, log_steps=1, save_steps=2, bf16="auto")
PRESETS = sorted((Path(bf16.__file__).parents[1] / "cli" / "presets").glob("*.yaml"))


def processor(monkeypatch: pytest.MonkeyPatch, units: str | None) -> None:
    monkeypatch.setattr(bf16, "bf16_units", lambda device: units)


# -- detection


@pytest.mark.parametrize(
    ("has", "units"),
    [
        ({"avx512_f": True, "avx512_bf16": True, "amx_tile": True, "amx_bf16": True}, "AMX"),
        ({"avx512_f": True, "avx512_bf16": True, "amx_bf16": False}, "AVX512-BF16"),
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False, "amx_tile": False}, None),
        ({"neon": True, "bf16": True}, "ARM BF16"),
        ({"neon": True, "bf16": False}, None),
        ({}, None),
    ],
)
def test_units_of_processors(monkeypatch: pytest.MonkeyPatch, has: dict[str, bool], units: str | None) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has, raising=False)
    assert bf16_units(CPU) == units


@pytest.mark.parametrize(
    ("machine", "amx", "avx512", "arm", "units"),
    [
        ("x86_64", True, True, True, "AMX"),
        ("x86_64", False, True, True, "AVX512-BF16"),
        ("x86_64", False, False, True, None),  # there the last asks for AVX-512 alone, which emulates bfloat16
        ("aarch64", False, False, True, "ARM BF16"),
        ("arm64", False, False, False, None),
    ],
)
def test_units_with_an_older_torch(
    monkeypatch: pytest.MonkeyPatch, machine: str, amx: bool, avx512: bool, arm: bool, units: str | None
) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(bf16, "_arm_units", lambda: arm)
    assert bf16_units(CPU) == units


def test_both_ways_of_asking_agree_here() -> None:
    assert bf16._cpu_units_of_old_torch() == bf16_units(CPU)


@pytest.mark.parametrize(("native", "units"), [(True, "CUDA"), (False, None)])
def test_units_of_a_gpu_leave_emulation_out(monkeypatch: pytest.MonkeyPatch, native: bool, units: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native)
    assert bf16_units(torch.device("cuda")) == units


def test_other_devices_have_none_that_is_known() -> None:
    assert bf16_units(torch.device("mps")) is None


# -- the decision


@pytest.mark.parametrize(
    ("setting", "units", "kept", "on", "said"),
    [
        (False, None, None, False, None),
        (False, "AMX", None, False, None),
        (True, "AMX", None, True, None),
        (True, None, None, True, "bf16: true, but this processor has no bfloat16 units"),
        ("auto", "AMX", None, True, "bf16: auto -> on (AMX)"),
        ("auto", None, None, False, "bf16: auto -> off (no bfloat16 units in this processor)"),
        ("auto", "AMX", True, True, "bf16: auto -> on, as the run began (AMX)"),
        ("auto", None, True, True, "bf16: auto -> on, as the run began; this processor has no bfloat16 units"),
        ("auto", None, False, False, "bf16: auto -> off, as the run began"),
        ("auto", "AMX", False, False, "bf16: auto -> off, as the run began, though there is AMX here"),
        (True, "AMX", False, True, None),  # said outright, it is no decision to keep
        (False, "AMX", True, False, None),
    ],
)
def test_decision(
    monkeypatch: pytest.MonkeyPatch, setting: Any, units: str | None, kept: bool | None, on: bool, said: str | None
) -> None:
    processor(monkeypatch, units)
    decided, line = decide_bf16(setting, CPU, kept=kept)
    assert decided is on
    assert (line is None) == (said is None)
    assert line is None or (said is not None and line.startswith(said) and "\n" not in line)


@pytest.mark.parametrize("config", [GRPOConfig, PretrainConfig])
def test_other_settings_are_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="bf16: 'on', expected True, False or 'auto'"):
        config(bf16="on")


# -- runs


@pytest.mark.parametrize(("units", "same_as"), [("AMX", True), (None, False)])
def test_auto_trains_to_the_same_bits_as_what_it_comes_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], units: str | None, same_as: bool
) -> None:
    processor(monkeypatch, units)

    def ends(bf16: Any) -> list[torch.Tensor]:
        tuned = GRPOTrainer(tiny_policy(), share_of_class_two, dataclasses.replace(GRPO, bf16=bf16))
        tuned.train()
        return list(tuned.module.state_dict().values())

    auto, fixed, other = ends("auto"), ends(same_as), ends(not same_as)
    assert all(torch.equal(a, b) for a, b in zip(auto, fixed, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(auto, other, strict=True))
    assert capsys.readouterr().err.count("bf16: auto -> ") == 1


@pytest.mark.parametrize(("units", "same_as"), [("AMX", True), (None, False)])
def test_auto_pretrains_to_the_same_bits_as_what_it_comes_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], units: str | None, same_as: bool
) -> None:
    processor(monkeypatch, units)

    def ends(bf16: Any) -> list[torch.Tensor]:
        trainer = Pretrainer(tiny_policy(), DATA, dataclasses.replace(PRETRAIN, bf16=bf16), tmp_path / str(bf16))
        trainer.train()
        return list(trainer.policy.state_dict().values())

    auto, fixed, other = ends("auto"), ends(same_as), ends(not same_as)
    assert all(torch.equal(a, b) for a, b in zip(auto, fixed, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(auto, other, strict=True))
    assert capsys.readouterr().err.count("bf16: auto -> ") == 1


@pytest.mark.parametrize(("first", "then", "on"), [("AMX", None, True), (None, "AMX", False)])
def test_a_run_resumed_on_another_processor_keeps_its_precision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], first: Any, then: Any, on: bool
) -> None:
    processor(monkeypatch, first)
    GRPOTrainer(tiny_policy(), share_of_class_two, dataclasses.replace(GRPO, max_steps=1), run=tmp_path / "tuned").train()
    Pretrainer(tiny_policy(), DATA, dataclasses.replace(PRETRAIN, max_steps=2), tmp_path / "trained").train()
    capsys.readouterr()
    processor(monkeypatch, then)
    tuned = GRPOTrainer(tiny_policy(), share_of_class_two, GRPO, run=tmp_path / "tuned", resume=True)
    trained = Pretrainer(tiny_policy(), DATA, PRETRAIN, tmp_path / "trained", resume=True)
    assert tuned.step == 1
    assert trained.step == 2
    assert tuned.bf16 is on
    assert trained.bf16 is on
    assert capsys.readouterr().err.count(f"bf16: auto -> {'on' if on else 'off'}, as the run began") == 2


# -- presets and the command line


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.stem)
def test_no_preset_forces_bfloat16(preset: Path) -> None:
    settings = yaml.safe_load(preset.read_text())
    asked = [part["bf16"] for part in settings.values() if isinstance(part, dict) and "bf16" in part]
    assert asked in ([], ["auto"], [False])


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("true", True), ("false", False)])
def test_the_command_line_takes_all_three(text: str, value: Any) -> None:
    recipe, settings = parse("train", ["demo", f"--grpo.bf16={text}"])
    assert recipe.grpo.bf16 == value
    assert f"bf16: {text}" in settings
