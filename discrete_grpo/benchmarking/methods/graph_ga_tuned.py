"""``graph-ga-tuned``: the graph genetic algorithm with the best settings that a random search found."""

from __future__ import annotations

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods.genetic import graph_ga

__all__ = ["METHOD"]

METHOD = Method(
    name="graph-ga-tuned",
    about="graph-ga with the best settings of a random search: 20 children per generation, parents mostly of the first ranks",
    source="Jensen (2019), doi 10.1039/c8sc05372c; settings by benchmarks/tuning.py",
    run=graph_ga,
    settings={"population": 120, "offspring": 20, "mutation_rate": 0.067, "rank_coefficient": 0.001},
    task_kinds=("molecules",),
    least_budget=120,
    uncounted="50 settings on zaleplon_mpo, perindopril_mpo and median1, with other seeds",
    warm=True,
)
