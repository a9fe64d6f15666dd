"""The mutable state of a training run, and its form in a checkpoint."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from discrete_grpo.core.entropy import EntropyController
from discrete_grpo.core.reward_arguments import remembers, reward_names
from discrete_grpo.core.rollout import Policy, Reward, is_observer
from discrete_grpo.core.scoring import Accounts
from discrete_grpo.runs.checkpoint import CheckpointError, Checkpoints, describe, load_training, tensors_to_cpu
from discrete_grpo.runs.console import print_notes
from discrete_grpo.runs.folder import SETTINGS
from discrete_grpo.runs.settings import flat_settings
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.distributed import ProcessGroup
from discrete_grpo.training.lora import current_names
from discrete_grpo.training.optim import load_optimizer, mix_reference
from discrete_grpo.training.patience import Patience, changing_weights
from discrete_grpo.training.sampler import GroupSampler

__all__ = [
    "RunState",
    "check_device_kind",
    "checkpoints_of",
    "global_state",
    "restore_global_state",
    "restore_weights",
    "settings_of",
    "stored_state",
]


def restore_weights(module: nn.Module, weights: Mapping[str, Any]) -> None:
    """Put the weights of a checkpoint into a module.

    Raises:
        CheckpointError: in one line, for weights of a module with other parameters.
    """
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        first = " ".join(str(error).strip().splitlines()[-1].split())
        wanted = f"expected the {type(module).__name__} that the run began with"
        raise CheckpointError(f"policy: names or shapes of its weights differ from those of the run ({first}), {wanted}") from error


def check_device_kind(state: Mapping[str, Any], generator: torch.Tensor, device: torch.device) -> None:
    """Raise unless the random states of a checkpoint can be used on ``device``.

    The state of a generator belongs to one kind of device (CPU, CUDA); no other kind can continue its stream.

    Args:
        state: the training state; its entry ``device`` names the kind. Checkpoints of earlier versions have no such entry.
        generator: the state of one of its generators.
        device: the device on which the run would be resumed.

    Raises:
        ValueError: naming both kinds.
    """
    same_size = len(generator) == len(torch.Generator(device).get_state())
    kind = state.get("device", device.type if same_size else "another kind of device")
    if kind != device.type:
        said = "whose random states only that kind of device can continue"
        raise ValueError(
            f"device: {device.type}, expected {kind} as in the run to resume, {said}; "
            "resume there, or begin a new run from its weights"
        )


def checkpoints_of(run: str | Path | None, config: GRPOConfig) -> Checkpoints | None:
    """The checkpoints of a run folder; None without a folder.

    Raises:
        ValueError: where the best policy is wanted at the end and there is no folder to keep it in.
    """
    if run is None:
        if config.load_best_model_at_end:
            raise ValueError("load_best_model_at_end: True, expected a run folder that keeps checkpoints (run=...)")
        return None
    best = {"metric_for_best_model": config.metric_for_best_model, "greater_is_better": config.greater_is_better}
    return Checkpoints(run, config.save_total_limit, **best)  # type: ignore[arg-type]


def stored_state(
    checkpoints: Checkpoints | None,
    rewards: Sequence[Reward],
    config: GRPOConfig,
    functions: Mapping[str, str | None],
    processes: ProcessGroup,
) -> dict[str, Any]:
    """Return the training state of the newest checkpoint of a run; print a line per setting or custom function that has changed.

    Args:
        checkpoints: those of the run; None where it has no folder.
        rewards: rewards of the resumed run.
        config: settings of the resumed run.
        functions: names of the custom functions of the resumed run, by the argument of the trainer; see
            :func:`~discrete_grpo.core.reward_arguments.function_names`. Functions of the same name are considered the same.
        processes: processes of the resumed run, and their device.

    Raises:
        ValueError: without a folder, for another kind of device, or for rewards of other names.
        CheckpointError: for a checkpoint of another version.
    """
    if checkpoints is None:
        raise ValueError("resume: True, expected a run folder to resume from (run=...)")
    state = load_training(checkpoints.latest())
    if "shards" not in state:
        raise CheckpointError(f"{checkpoints.latest()}: was written by an incompatible version and cannot be resumed")
    check_device_kind(state, state["shards"][0]["generator"], processes.device)
    if state["rewards"] != reward_names(rewards):
        named = ", ".join(reward_names(rewards))
        raise ValueError(f"reward_funcs: {named}, expected {', '.join(state['rewards'])} as in the run to resume")
    if processes.first and not (checkpoints.folder.parent / SETTINGS).is_file():  # with that file, `train` reports these
        before = {**state.get("config", {}), **state.get("functions", {})}  # checkpoints of earlier versions lack these entries
        now = {**settings_of(config), **functions}
        now = {
            name: value for name, value in now.items() if name not in ("seed", "bf16") and value != "auto"
        }  # these are kept or are reported elsewhere
        others = [name for name, value in now.items() if before.get(name, value) != value]
        print_notes(f"{name}: was {before[name]} in the run so far, is {now[name]} from here on" for name in others)
    return state


def settings_of(config: GRPOConfig) -> dict[str, Any]:
    """The settings of a run by name, in the form in which a checkpoint keeps them."""
    return flat_settings(json.loads(json.dumps(asdict(config), default=str)))


def global_state() -> dict[str, Any]:
    """Global random states of python, numpy, torch and CUDA, as tensors and numbers.

    The package itself never draws from them, but a reward may.
    """
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "keys": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            "rest": [int(position), int(has_gauss), float(cached)],
        },
        "torch": torch.get_rng_state(),
        "cuda": [state.cpu() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
    }


def restore_global_state(state: Mapping[str, Any]) -> None:
    """Restore the result of :func:`global_state`; CUDA states are skipped if the number of GPUs differs."""
    python, (position, has_gauss, cached) = state["python"], state["numpy"]["rest"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(("MT19937", state["numpy"]["keys"].numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def conditions_digest(columns: Sequence[Mapping[str, Any]] | None) -> str | None:
    """A digest of conditions, to detect changed ones; None if there are none or they cannot be described."""
    try:
        return None if columns is None else hashlib.sha256(json.dumps(describe(columns)).encode()).hexdigest()
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True)
class RunState:
    """The objects of a run whose state changes during training.

    Attributes:
        module: the policy.
        optimizer: optimizer of its weights.
        average: moving average of its weights; None if there is none.
        reference: reference policy of the KL; None if there is none.
        controller: controller of the entropy bonus; None if there is none.
        patience: count of updates without a new reward call; None if there is none.
        rewards: rewards; one whose values depend on earlier samples has a ``state_dict``.
        ledger: counter of reward calls; None if calls are not counted.
        sampler: sampler of groups, with the shards of this process.
        processes: all processes of the run.
    """

    module: nn.Module
    optimizer: Any
    average: AveragedModel | None
    reference: Policy | None
    controller: EntropyController | None
    patience: Patience | None
    rewards: Sequence[Reward]
    ledger: Accounts | None
    sampler: GroupSampler
    processes: ProcessGroup

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters that are trained."""
        return [p for p in self.module.parameters() if p.requires_grad]

    def restart_stale(self) -> None:
        """If the policy is stale and is to be restarted, restore the initial weights; memory and ledger are kept."""
        if self.patience is None or not self.patience.restarts_now:
            return
        self.patience.restart(changing_weights(self.module), self.optimizer)
        self._follow()  # the reference has moved with sync_ref_model

    def begin_here(self) -> None:
        """Make the current weights the initial ones of the run: those of the reference, the moving average and a restart."""
        self._follow()
        if self.patience is not None:
            self.patience.begin_here(changing_weights(self.module))

    def _follow(self) -> None:
        """Copy the weights of the policy into the moving average and the reference."""
        if self.average is not None:
            mix_reference(self.average.module, self.module, 1.0)
            self.average.n_averaged.zero_()
        if self.reference is not None:
            mix_reference(cast(nn.Module, self.reference), self.module, 1.0)

    @contextmanager
    def buffers_kept(self) -> Iterator[None]:
        """Restore the buffers of a policy that observes its samples if the body raises, as a failed generation is drawn again."""
        observes = is_observer(self.module)
        before = [buffer.clone() for buffer in self.module.buffers()] if observes else []
        try:
            yield
        except BaseException:
            with torch.no_grad():
                for buffer, kept in zip(self.module.buffers(), before, strict=False):
                    buffer.copy_(kept)
            raise

    def snapshot(self) -> dict[str, Any]:
        """A copy of the state that drawing and scoring change in this process."""
        return {
            "shards": [tensors_to_cpu(shard.state()) for shard in self.sampler.shards],
            "turn": self.ledger.turn if self.ledger is not None else 0,
            "rewards": [copy.deepcopy(cast(Any, r).state_dict()) if remembers(r) else None for r in self.rewards],
            "random": global_state(),
        }

    def drawing(self, snapshots: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Entries of a checkpoint: the snapshots of all processes, and the ledger as it was when they were taken."""
        return {
            "shards": [state for snapshot in snapshots for state in snapshot["shards"]],
            "random": [snapshot["random"] for snapshot in snapshots],
            "reward_states": snapshots[0]["rewards"],
            "ledger": self.ledger.state_dict(snapshots[0]["turn"]) if self.ledger is not None else None,
            "conditions": conditions_digest(self.sampler.columns),
        }

    def learning(self) -> dict[str, Any]:
        """Entries of a checkpoint: the state that updates change, which is the same in all processes."""
        return {
            "weights": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average is not None else None,
            "reference": cast(nn.Module, self.reference).state_dict() if self.reference is not None else None,
            "entropy": self.controller.state_dict() if self.controller is not None else None,
            "patience": self.patience.state_dict() if self.patience is not None else None,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the entries that :meth:`drawing` and :meth:`learning` returned."""
        restore_weights(self.module, current_names(state["weights"]))
        load_optimizer(self.optimizer, state["optimizer"])
        self._follow()  # for an average or a reference that the run had not before
        if self.average is not None and state["average"] is not None:
            self.average.load_state_dict(current_names(state["average"]))
        if self.reference is not None and state["reference"] is not None:
            cast(nn.Module, self.reference).load_state_dict(current_names(state["reference"]))
        if self.controller is not None and state["entropy"]:
            self.controller.load_state_dict(state["entropy"])
        if self.patience is not None and state.get("patience"):
            self.patience.load_state_dict(state["patience"])
        self._restore_drawing(state)

    def go_back(self, snapshot: Mapping[str, Any]) -> None:
        """Restore a :meth:`snapshot` of this process, so that the next generation is the one that a resumed run would draw."""
        if self.ledger is not None:
            self.ledger.load_state_dict(self.ledger.state_dict(snapshot["turn"]))
        self._restore_memories(copy.deepcopy(snapshot["rewards"]))
        for shard, kept in zip(self.sampler.shards, snapshot["shards"], strict=True):
            shard.load(kept)
        restore_global_state(snapshot["random"])

    def _restore_memories(self, states: Sequence[Any]) -> None:
        for reward, kept in zip(self.rewards, states, strict=True):
            if kept is not None and remembers(reward):
                cast(Any, reward).load_state_dict(kept)

    def _restore_drawing(self, state: Mapping[str, Any]) -> None:
        if self.ledger is not None and state["ledger"] is not None:
            self.ledger.load_state_dict(state["ledger"])
        self._restore_memories(state["reward_states"])
        same = conditions_digest(self.sampler.columns)
        other = "conditions" in state and same != state["conditions"]
        if other and self.processes.first:
            kept = any(part.get("memory") or part.get("replay") for part in state["shards"])
            then = "samples kept for replay are discarded" if kept else "these apply from the next update on"
            then += ", and an evaluation before training was under the earlier ones"
            print_notes([f"columns: the conditions differ from those of the run; {then}"])
        for shard in self.sampler.shards:
            kept = state["shards"][shard.number]
            shard.load({**kept, "memory": (), "replay": ()} if other else kept)  # they name conditions by number
        if self.processes.rank < len(state["random"]):
            restore_global_state(state["random"][self.processes.rank])
