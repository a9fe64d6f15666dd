"""What each process of tests/training/test_distributed.py runs: ``python -m tests.process_worker FOLDER CASE [CASE ...]``."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discrete_grpo.core.rollout import Policy
from discrete_grpo.core.sample_metrics import SampleMetrics
from discrete_grpo.core.scoring import RewardError
from discrete_grpo.policies.node_count import RunningSizes, SizedPolicy
from discrete_grpo.recipes.train import TrainRecipe, run_train
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.distributed import leave
from discrete_grpo.training.trainer import GRPOTrainer
from tests.toys import share_of_class_two, tiny_policy

SMALL: dict[str, Any] = {
    "num_generations": 4, "generation_batch_size": 16, "per_device_batch_size": 5, "timestep_chunk": 3,
    "learning_rate": 0.02, "max_steps": 3, "save_steps": 2, "seed": 3, "beta": 0.05,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grpo": {"loss_type": "grpo", "scale_rewards": "batch"},
    "dr_grpo": {"loss_type": "dr_grpo", "timestep_fraction": 0.5},
    "reuse": {"steps_per_generation": 2, "num_iterations": 2, "max_steps": 6, "save_steps": 2, "metric_for_best_model": "reward"},
    "entropy": {"top_entropy_quantile": 0.5, "entropy_coef": 0.01, "use_adaptive_entropy": True, "entropy_target": 0.5},
    "reward_kl": {"kl_in": "reward", "steps_per_generation": 2, "max_steps": 4},
    "uneven": {"max_steps": 50, "save_steps": 100, "metric_for_best_model": "reward"},
    "resample": {
        "metric_for_best_model": "kl",
        "greater_is_better": False,
        "save_steps": 1,
        "zero_std_groups": "resample",
        "max_resampling_rounds": 3,
    },
    "refine": {"refine_fraction": 0.5, "max_steps": 5},
    "replay": {"replay_samples": 2, "replay_memory": 6, "steps_per_generation": 2, "num_iterations": 2, "max_steps": 6},
    "own": {"steps_per_generation": 2, "num_iterations": 2, "max_steps": 6, "save_steps": 3},
    "sizes": {"beta": 0.0},
    "idle": {"zero_std_groups": "mask"},
    "budget": {"max_steps": 50},
    "stale": {"patience": 2, "when_stale": "restart", "beta": 0.0, "learning_rate": 0.1, "max_steps": 10, "save_steps": 10},
    "fails": {},
    "broken_metrics": {},
    "shards": {"generation_shards": 4},
}


def rounded(samples: Sequence[Any], **columns: Sequence[Any]) -> list[float]:
    """Many groups have no signal."""
    return [float(round(share)) for share in share_of_class_two(samples)]


def fails_in_the_second(samples: Sequence[Any], **columns: Sequence[Any]) -> list[float]:
    if os.environ.get("RANK", "0") == "1":
        raise OSError("no licence here")
    return share_of_class_two(samples)


def idle_in_the_second(samples: Sequence[Any], **columns: Sequence[Any]) -> list[float]:
    return [0.0] * len(samples) if os.environ.get("RANK", "0") == "1" else share_of_class_two(samples)


def bad_metrics(samples: Sequence[Any]) -> Mapping[str, float]:
    raise ArithmeticError("of the first process alone")


def text_and_rank(samples: Sequence[Any]) -> list[tuple[str, int]]:
    return [(str(sample), int(os.environ.get("RANK", "0"))) for sample in samples]


def of_described(samples: Sequence[Any], found: Sequence[tuple[str, int]]) -> Mapping[str, float]:
    """The share that the second process described, and a number that depends on the order of samples and descriptions."""
    in_order = [k * len(text) for k, (text, _) in enumerate(found, 1)]
    assert [text for text, _ in found] == list(map(str, samples))
    return {"described_by_second": sum(rank for _, rank in found) / len(found), "in_order": sum(in_order) / len(found)}


def over_the_generation(rewards: Tensor, group: Tensor) -> Tensor:
    """Places in the order of all rewards of the generation, so that the rows of every process count."""
    return rewards[:, 0].argsort(stable=True).argsort().double() - (len(group) - 1) / 2


def squared(log_prob: Tensor, ratio: Tensor, advantage: Tensor) -> Tensor:
    return ratio**2 * advantage


def last_one_ends(trainer: GRPOTrainer, metrics: Mapping[str, float]) -> bool:
    """Only the last process says that the run ends here."""
    return trainer.processes.rank == trainer.processes.count - 1 and trainer.step == 5


OWN: dict[str, Any] = {"advantage_func": over_the_generation, "surrogate_func": squared, "on_update": last_one_ends}
REWARDS = {"resample": rounded, "fails": fails_in_the_second, "idle": idle_in_the_second}


class EndsInTheSecond(Ledger):
    """A ledger whose budget is used up in the second process alone."""

    updates: Callable[[], int]

    @property
    def exhausted(self) -> bool:
        return os.environ.get("RANK", "0") == "1" and self.updates() >= 3


def trainer(case: str, folder: Path, *, resume: bool = False, **changed: Any) -> GRPOTrainer:
    policy: Policy = tiny_policy().double()
    if case == "sizes":
        policy = SizedPolicy(tiny_policy().double(), RunningSizes([0.0, 0.3, 0.4, 0.3], rate=0.2))
    ledger = None
    if case in ("budget", "stale", "uneven"):
        path = folder / "ledger.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        calls = 30 if case == "budget" else None
        kind = EndsInTheSecond if case == "uneven" else Ledger
        ledger = kind(path, max_oracle_calls=calls, cache=ScoreCache(), rank=int(os.environ.get("RANK", "0")))
    if isinstance(ledger, EndsInTheSecond):
        ledger.updates = lambda: made.step
    made = GRPOTrainer(
        policy,
        REWARDS.get(case, share_of_class_two),
        GRPOConfig(**SMALL | CASES[case] | changed),
        run=folder,
        resume=resume,
        ledger=ledger,
        sample_metrics=bad_metrics if case == "broken_metrics" else SampleMetrics(text_and_rank, of_described),
        **(OWN if case == "own" else {}),
    )
    return made


def interrupted(folder: Path) -> GRPOTrainer:
    """Stopped between two updates of a generation, saved, and taken up by another trainer."""
    first = trainer("reuse", folder)
    first.save()
    for _ in range(3):
        first.update()
    first.save()
    return trainer("reuse", folder, resume=True)


def audited(folder: Path) -> None:
    """A run of molecules through the recipe, which fails in the second process and is taken up again."""
    calls = []

    def fragile(samples: Sequence[str | None], **columns: Any) -> list[float]:
        calls.append(len(samples))
        if len(calls) == 3 and os.environ.get("RANK") == "1":
            raise OSError("once")
        return qed(samples)

    grpo = GRPOConfig(max_steps=4, num_generations=4, generation_batch_size=16, save_steps=1)
    recipe = TrainRecipe("qm9-small", fragile, str(folder), grpo, num_steps=3, evaluation_samples=20)
    with contextlib.suppress(RewardError):
        run_train(recipe)
        raise AssertionError("the reward should have failed")
    run_train(recipe, resume=True)


def gloo_threads() -> list[str]:
    """Names of the threads of gloo in this process, on Linux."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it may end while the folder is read
            names.append((task / "comm").read_text().strip())
    return [name for name in names if "gloo" in name]


if __name__ == "__main__":
    torch.set_num_threads(1)
    root, *names = sys.argv[1:]
    for name in names:
        if name == "audited":
            audited(Path(root) / name)
            continue
        made = interrupted(Path(root) / name) if name == "interrupted" else trainer(name, Path(root) / name)
        try:
            made.train()
        except RewardError:
            if name != "fails":
                raise
            traceback.print_exc()  # the next case starts in processes that have failed together
    if "RANK" in os.environ and sys.platform == "linux":
        torch.distributed.barrier()
        leave()
        deadline = time.monotonic() + 10  # a thread that has ended is listed for a moment longer
        while (left := gloo_threads()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left, left  # one of them can abort the exit
