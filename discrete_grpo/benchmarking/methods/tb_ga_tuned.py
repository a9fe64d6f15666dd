"""``tb-ga-tuned``: trajectory balance with a genetic algorithm, with the best settings that a random search found."""

from __future__ import annotations

from dataclasses import replace

from discrete_grpo.benchmarking.methods import tb_ga

__all__ = ["METHOD"]

METHOD = replace(
    tb_ga.METHOD,
    name="tb-ga-tuned",
    about="tb-ga with the best settings of a random search: 32 draws and 8 children per round, larger beta and learning rate",
    source=f"{tb_ga.METHOD.source}; settings by benchmarks/tuning.py",
    settings={
        **tb_ga.METHOD.settings,
        "beta": 100.0,
        "kl_coef": 0.001,
        "mutation_rate": 0.067,
        "draws": 32,
        "children": 8,
        "learning_rate": 1e-3,
    },
    uncounted="16 settings on zaleplon_mpo, perindopril_mpo and median1, with 1,000 calls and other seeds",
)
