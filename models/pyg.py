"""PyTorch Geometric networks as denoisers: an adapter, and an example network of PyG layers.

A denoiser reads dense batches; a PyG network reads one sparse batch of all nodes. :class:`PyGDenoiser` converts between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, GPSConv
from torch_geometric.utils import to_dense_batch

from discrete_grpo.core.checks import check_whole

__all__ = ["MessagePassing", "PyGDenoiser", "to_batch"]


def to_batch(
    nodes: Int[Tensor, "batch node"],
    edges: Int[Tensor, "batch node node"],
    time: Float[Tensor, " batch"],
    mask: Bool[Tensor, "batch node"],
) -> Batch:
    """One PyG batch of the existing nodes, in the order of :func:`torch_geometric.utils.to_dense_batch`.

    ``x`` are the node classes [n]; ``edge_index`` [2, E] lists every pair of a class but 0 in both directions and ``edge_attr`` [E]
    its class; ``time`` is that of each graph [B], and ``batch`` [n] says to which graph a node belongs.
    """
    place = mask.flatten().cumsum(0).view_as(mask) - 1
    rows, i, j = (edges * (mask[:, :, None] & mask[:, None, :])).nonzero().unbind(1)
    index = torch.stack([place[rows, i], place[rows, j]])
    sizes = mask.sum(1)
    return Batch(
        batch=torch.arange(len(mask), device=mask.device).repeat_interleave(sizes),
        ptr=torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]),
        x=nodes[mask],
        edge_index=index,
        edge_attr=edges[rows, i, j],
        time=time,
    )


@contextmanager
def _one_attention_kernel() -> Iterator[None]:
    """Make torch's attention use the same kernel with and without gradients, so that the ratio of a first update is exactly 1."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class PyGDenoiser(nn.Module):
    """A denoiser of graphs from a PyG network that embeds nodes.

    Logits of a node are linear in its embedding h_i. Logits of a pair come from h_i + h_j, h_i * h_j, the noisy class of the pair
    and the time, so they are symmetric, and renumbering the nodes renumbers the logits.

    Args:
        network: maps a batch, see :func:`to_batch`, to one embedding per node [n, width]; for checkpoints it has a method
            ``init_args()`` that returns its arguments.
        width: width of the embeddings.
        node_classes: number of clean node classes.
        edge_classes: number of clean classes of a pair, "no edge" among them.
        edge_states: number of classes of a noisy pair, one more than ``edge_classes`` with noise ``absorbing``; None means
            ``edge_classes``.

    Raises:
        ValueError: for a number out of its range.
    """

    def __init__(
        self, network: nn.Module, width: int, node_classes: int, edge_classes: int, edge_states: int | None = None
    ) -> None:
        super().__init__()
        for name, value in (("width", width), ("node_classes", node_classes), ("edge_classes", edge_classes)):
            check_whole(name, value, least=1)
        self.network = network
        self.arguments: dict[str, Any] = {"width": width, "node_classes": node_classes, "edge_classes": edge_classes}
        states = edge_classes if edge_states is None else edge_states
        check_whole("edge_states", states, least=edge_classes, note=" (edge_classes)")
        self.arguments["edge_states"] = states
        self.pair_in = nn.Embedding(states, width)
        self.time_in = nn.Linear(1, width)
        self.node_out = nn.Linear(width, node_classes)
        self.pair_out = nn.Sequential(nn.Linear(3 * width, width), nn.SiLU(), nn.Linear(width, edge_classes))

    def init_args(self) -> dict[str, Any]:
        """The arguments to build this network again."""
        return {"network": self.network, **self.arguments}

    def forward(
        self,
        nodes: Int[Tensor, "batch node"],
        edges: Int[Tensor, "batch node node"],
        time: Float[Tensor, " batch"],
        mask: Bool[Tensor, "batch node"],
    ) -> tuple[Float[Tensor, "batch node node_class"], Float[Tensor, "batch node node edge_class"]]:
        """Logits of the clean classes of nodes and pairs; see :class:`~discrete_grpo.recipes.pretraining.diffusion.Denoiser`."""
        batch = to_batch(nodes, edges, time, mask)
        with _one_attention_kernel():
            embedded = self.network(batch)
        h, _ = to_dense_batch(embedded, batch.batch, max_num_nodes=mask.shape[1], batch_size=len(mask))
        pair = self.pair_in(edges) + self.time_in(time[:, None])[:, None, None]
        ends = torch.cat([h[:, :, None] + h[:, None], h[:, :, None] * h[:, None], pair], -1)
        return self.node_out(h), self.pair_out(ends)


class MessagePassing(nn.Module):
    """Layers of PyG over noisy graphs, an example of a network for :class:`PyGDenoiser`.

    ``gine`` layers send messages along edges (Hu et al. 2020, arXiv 1905.12265); ``gps`` layers add attention between all nodes of
    a graph to them (Rampasek et al. 2022, arXiv 2205.12454). Each layer is followed by a layer norm of every node.

    Args:
        node_states: number of classes of a noisy node.
        edge_states: number of classes of a noisy pair.
        width: width of the embeddings; with ``gps`` a multiple of ``heads``.
        layers: depth, at least 1.
        kind: gine or gps.
        heads: attention heads of ``gps``.

    Raises:
        ValueError: for a number out of its range, or an unknown kind.
    """

    def __init__(
        self,
        node_states: int,
        edge_states: int,
        width: int = 64,
        layers: int = 4,
        kind: Literal["gine", "gps"] = "gine",
        heads: int = 4,
    ) -> None:
        super().__init__()
        for name, value in (("node_states", node_states), ("edge_states", edge_states), ("width", width), ("layers", layers)):
            check_whole(name, value, least=1)
        if kind not in ("gine", "gps"):
            raise ValueError(f"kind: {kind!r}, expected gine or gps")
        check_whole("heads", heads, least=1)
        if kind == "gps" and width % heads:
            raise ValueError(f"width: {width}, expected a multiple of heads ({heads}) with gps")
        self.arguments = {"node_states": node_states, "edge_states": edge_states, "width": width, "layers": layers}
        self.choices = {"kind": kind, "heads": heads}
        self.node_in, self.edge_in = nn.Embedding(node_states, width), nn.Embedding(edge_states, width)
        self.time_in = nn.Linear(1, width)
        convolutions = [GINEConv(nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))) for _ in range(layers)]
        self.layers = nn.ModuleList(
            GPSConv(width, conv, heads=heads, norm=None) if kind == "gps" else conv for conv in convolutions
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def init_args(self) -> dict[str, Any]:
        """The arguments to build this network again."""
        return {**self.arguments, **self.choices}

    def forward(self, batch: Data) -> Float[Tensor, "node width"]:
        """One embedding per node."""
        x = self.node_in(batch.x) + self.time_in(batch.time[:, None])[batch.batch]
        pairs = self.edge_in(batch.edge_attr)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            if isinstance(layer, GPSConv):
                x = norm(layer(x, batch.edge_index, batch.batch, edge_attr=pairs))
            else:
                x = norm(x + layer(x, batch.edge_index, pairs))
        return x
