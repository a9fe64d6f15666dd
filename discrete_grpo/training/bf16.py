"""bfloat16 autocast: detection of hardware support, and the choice that ``bf16: auto`` stands for."""

from __future__ import annotations

import platform
import sys
from typing import Literal

import torch

from discrete_grpo.training.distributed import ProcessGroup

__all__ = ["bf16_units", "decide_and_tell", "decide_bf16"]

CPU_UNITS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "sve_bf16": "SVE BF16", "bf16": "ARM BF16"}
"""Names of the bfloat16 matrix units of CPUs, keyed by torch's names, fastest first."""


def bf16_units(device: torch.device) -> str | None:
    """Return the name of the bfloat16 matrix units of a device; None if torch reports none.

    Without such units, bfloat16 is emulated and slower than float32.
    """
    if device.type == "cuda":
        return "CUDA" if torch.cuda.is_bf16_supported(including_emulation=False) else None
    return _cpu_units() if device.type == "cpu" else None


def _cpu_units() -> str | None:
    if hasattr(torch.cpu, "get_capabilities"):
        has = torch.cpu.get_capabilities()
        return next((name for key, name in CPU_UNITS.items() if has.get(key)), None)
    return _cpu_units_of_old_torch()


def _cpu_units_of_old_torch() -> str | None:
    """Detection with the functions of torch 2.6; every AMX unit multiplies both 8-bit integers and bfloat16."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return CPU_UNITS["bf16"] if _arm_units() else None
    if torch.cpu._is_amx_tile_supported():
        return CPU_UNITS["amx_bf16"]
    return CPU_UNITS["avx512_bf16"] if torch.cpu._is_avx512_bf16_supported() else None


def _arm_units() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def decide_bf16(setting: bool | Literal["auto"], device: torch.device, *, kept: bool | None = None) -> tuple[bool, str | None]:
    """Decide whether networks run under bfloat16 autocast, and return the line to show at the start of the run.

    Args:
        setting: True, False, or ``auto``, which means True where the device has bfloat16 units.
        device: device of the networks.
        kept: choice that ``auto`` made when the run began, which a resumed run keeps; None for a new run.

    Returns:
        The decision, and one line that reports what ``auto`` chose or that True is slow on this device; None if neither applies.
    """
    if setting is False:
        return False, None
    units = bf16_units(device)
    slow = f"this {_kind(device)} has no bfloat16 units, so that it is slower than float32"
    if setting is True:
        return True, None if units else f"bf16: true, but {slow}; bf16=auto or false avoids that"
    if kept is None:
        return (
            units is not None,
            f"bf16: auto -> {f'on ({units})' if units else f'off (no bfloat16 units in this {_kind(device)})'}",
        )
    if kept:
        return True, "bf16: auto -> on, as the run began" + (f" ({units})" if units else f"; {slow}")
    return False, "bf16: auto -> off, as the run began" + (f", though there is {units} here" if units else "")


def decide_and_tell(setting: bool | Literal["auto"], processes: ProcessGroup, *, kept: bool | None = None) -> bool:
    """Decide whether the networks of all processes run in bfloat16; the first process decides and prints the line."""
    on, told = processes.run_all(lambda: decide_bf16(setting, processes.device, kept=kept))[0]
    if told is not None and processes.first:
        print(told, file=sys.stderr)
    return on


def _kind(device: torch.device) -> str:
    return "processor" if device.type == "cpu" else f"{device.type} device"
