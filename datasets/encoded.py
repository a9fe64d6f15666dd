"""Training data for an existing policy, as samples that the policy encodes when a batch is formed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from discrete_grpo.domains.graphs import ConditionedGraphs

__all__ = ["EncodedSamples"]


@dataclass(frozen=True)
class EncodedSamples:
    """M samples and the function that encodes them as finished graphs.

    Attributes:
        samples: samples in the form that rewards see.
        sizes: number of nodes of each [M].
        encode: maps samples to a batch of graphs, padded to the largest of them, see ``encode`` of
            :class:`~discrete_grpo.policies.graph.GraphPolicy` and of :class:`~discrete_grpo.policies.fields.FieldPolicy`.
        values: standardised properties [M, K], NaN where unknown; None for a policy without properties.
    """

    samples: tuple[Any, ...]
    sizes: Int[Tensor, " sample"]
    encode: Callable[[Sequence[Any]], Any]
    values: Float[Tensor, "sample property"] | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, rows: Int[Tensor, " row"]) -> Any:
        """Return the graphs of the samples at ``rows``, with their properties if there are any."""
        graphs = self.encode([self.samples[row] for row in rows.tolist()])
        return graphs if self.values is None else ConditionedGraphs(graphs, self.values[rows])
