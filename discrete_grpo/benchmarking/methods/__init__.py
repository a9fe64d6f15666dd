"""The methods by name, one module each."""

from __future__ import annotations

from discrete_grpo.benchmarking.method import Method
from discrete_grpo.benchmarking.methods import best_of_prior, random_file

__all__ = ["METHODS"]

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        best_of_prior.METHOD,
        random_file.METHOD,
    )
}
"""The methods of ``discrete-grpo benchmark`` by name."""
