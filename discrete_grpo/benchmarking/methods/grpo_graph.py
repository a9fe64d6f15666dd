"""``grpo-graph``: GRPO of a graph policy with few steps per sample, as in the preset ``zinc-graph-qed``.

``grpo-graph-refine`` is the same with half of the groups made by re-noising and regenerating the best molecules found so far.
"""

from __future__ import annotations

from dataclasses import replace

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.trained import with_trainer

__all__ = ["METHOD", "REFINE"]

METHOD = Method(
    name="grpo-graph",
    about="GRPO of a graph policy: 8 groups of 16 samples of 25 steps, updates on the last 40 % of them, exact KL to the prior",
    source="Shao et al. (2024), arXiv 2402.03300; settings of the preset zinc-graph-qed",
    run=with_trainer,
    settings={
        "num_steps": 25,
        "node_count": "running",
        "num_generations": 16,
        "generation_batch_size": 128,
        "per_device_batch_size": "auto",
        "timestep_chunk": "auto",
        "timestep_fraction": 0.4,
        "learning_rate": 1e-4,
        "warmup_steps": 3,
        "max_grad_norm": 0.2,
        "beta": 0.05,
        "ema_decay": 0.9,
        "patience": 20,
        "patience_threshold": 0.05,
        "when_stale": "restart",
    },
    families=("graph",),
    least_budget=128,
)

REFINE = replace(
    METHOD,
    name="grpo-graph-refine",
    about="grpo-graph with half of the groups re-noised to t = 0.3 from the best 16 molecules; all steps are trained on",
    source="Shao et al. (2024), arXiv 2402.03300; the refinement of Graph-GRPO, arXiv 2603.10395",
    settings={**METHOD.settings, "timestep_fraction": 1.0, "refine_fraction": 0.5, "refine_time": 0.3, "refine_memory": 16},
)
