"""The methods by name, one module each."""

from __future__ import annotations

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods import (
    augmented_memory,
    best_of_prior,
    dap,
    genetic,
    graph_ga_tuned,
    grpo,
    grpo_graph,
    grpo_memory,
    grpo_replay,
    hill_climb,
    local_search,
    ppo_clip,
    random_file,
    random_reward,
    reinforce,
    tb_ga,
    tb_ga_tuned,
)

__all__ = ["METHODS"]

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        grpo_memory.METHOD,
        grpo.METHOD,
        grpo_graph.METHOD,
        grpo_graph.REFINE,
        grpo_graph.MEMORY,
        grpo_replay.METHOD,
        reinforce.METHOD,
        ppo_clip.METHOD,
        dap.METHOD,
        tb_ga.METHOD,
        tb_ga.PUBLISHED,
        tb_ga_tuned.METHOD,
        augmented_memory.METHOD,
        hill_climb.METHOD,
        genetic.GRAPH_GA,
        graph_ga_tuned.METHOD,
        genetic.SMILES_GA,
        local_search.METHOD,
        best_of_prior.METHOD,
        random_file.METHOD,
        random_reward.METHOD,
        grpo_graph.MEMORY_RANDOM_REWARD,
        grpo_memory.NO_GA,
        grpo_memory.NO_REPLAY,
        grpo_memory.NO_GRPO,
        grpo_memory.NO_SCREEN,
        grpo_memory.NO_CLIP,
        grpo_graph.MEMORY_NO_GRPO,
    )
}
"""The methods of ``discrete-grpo benchmark`` by name."""
