"""The weights of a checkpoint: as they are saved, checksums, loading into a module, and the check that all are finite numbers."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from discrete_grpo.runs.adapters import merged_tensors
from discrete_grpo.runs.files import SUMS, changed_file
from discrete_grpo.runs.serialization import CheckpointError

__all__ = ["WEIGHTS", "check_sums", "load_weights", "not_finite", "saved_weights"]

WEIGHTS = ("config.json", "model.safetensors")
"""Files of a checkpoint from which a policy is built."""


def saved_weights(policy: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a policy on the CPU, with low-rank adapters (LoRA) merged and no two tensors in one storage."""
    weights = {name: x.detach().cpu().contiguous() for name, x in merged_tensors(policy.state_dict(), policy).items()}
    shared: dict[int, str] = {}  # storage -> name: a file holds tied weights once per name
    for name, value in weights.items():
        if shared.setdefault(value.untyped_storage().data_ptr(), name) != name:
            weights[name] = value.clone()
    return weights


def check_sums(folder: Path, names: Sequence[str] = WEIGHTS) -> bool:
    """Return whether a folder has checksums, after a comparison of these files with them.

    Raises:
        CheckpointError: naming the first file that differs.
    """
    if not (folder / SUMS).is_file():
        return False
    if wrong := changed_file(folder, names):
        raise CheckpointError(f"checkpoint: {wrong[0]} {wrong[1]}; the file is missing, truncated or was changed")
    return True


def load_weights(folder: str | os.PathLike[str], policy: nn.Module) -> None:
    """Copy a checkpoint's weights into ``policy``.

    Raises:
        CheckpointError: if the file is missing or truncated, or a tensor is missing, unexpected, of another shape, or holds
            NaN or an infinite weight.
    """
    path = Path(folder) / "model.safetensors"
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint: {path} cannot be read ({error}); the file is missing or truncated") from error
    wanted = policy.state_dict()
    wrong = [f"{name} missing" for name in wanted if name not in found]
    wrong += [f"{name} unexpected" for name in found if name not in wanted]
    wrong += [
        f"{name} {tuple(found[name].shape)} for {tuple(wanted[name].shape)}"
        for name in wanted
        if name in found and found[name].shape != wanted[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CheckpointError(f"checkpoint: {path} does not fit the policy: {'; '.join(wrong[:5])}{more}")
    parameters = {name for name, _ in policy.named_parameters()}
    if broken := not_finite(found, parameters):
        raise CheckpointError(f"checkpoint: {path} holds weights that are no finite numbers: {broken}")
    policy.load_state_dict(found)


def not_finite(tensors: Mapping[str, Tensor], parameters: Container[str] | None = None) -> str | None:
    """Name the tensors that hold NaN or infinity, at most five of them; None if there is none.

    Args:
        tensors: by name.
        parameters: names of the tensors that must not hold infinity, which a buffer may (a mask of logits); None means all.
    """
    wrong: list[str] = []
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        bad = tensor.isnan() if parameters is not None and name not in parameters else ~tensor.isfinite()
        if count := int(bad.sum()):
            wrong.append(f"{name} ({count} of {tensor.numel()} numbers are NaN or infinite)")
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    return f"{'; '.join(wrong[:5])}{more}" if wrong else None
