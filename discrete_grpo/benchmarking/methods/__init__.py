"""The methods by name, one module each."""

from __future__ import annotations

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods import (
    augmented_memory,
    best_of_prior,
    dap,
    genetic,
    grpo,
    grpo_replay,
    hill_climb,
    local_search,
    ppo_clip,
    random_file,
    reinforce,
    tb_ga,
)

__all__ = ["METHODS"]

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        grpo.METHOD,
        grpo_replay.METHOD,
        reinforce.METHOD,
        ppo_clip.METHOD,
        dap.METHOD,
        tb_ga.METHOD,
        augmented_memory.METHOD,
        hill_climb.METHOD,
        genetic.GRAPH_GA,
        genetic.SMILES_GA,
        local_search.METHOD,
        best_of_prior.METHOD,
        random_file.METHOD,
    )
}
"""The methods of ``discrete-grpo benchmark`` by name."""
