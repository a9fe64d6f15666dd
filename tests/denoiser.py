"""A denoiser as a user may write it, with nothing imported from the package."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PlainDenoiser(nn.Module):
    """One round of messages along embedded edges."""

    def __init__(self, node_states: int, edge_states: int, node_classes: int, edge_classes: int, width: int = 16) -> None:
        super().__init__()
        self.arguments = (node_states, edge_states, node_classes, edge_classes, width)
        self.node_in, self.edge_in = nn.Embedding(node_states, width), nn.Embedding(edge_states, width)
        self.time_in = nn.Linear(1, width)
        self.node_out, self.edge_out = nn.Linear(width, node_classes), nn.Linear(width, edge_classes)

    def init_args(self) -> dict[str, int]:
        names = ("node_states", "edge_states", "node_classes", "edge_classes", "width")
        return dict(zip(names, self.arguments, strict=True))

    def forward(
        self, nodes: Tensor, edges: Tensor, time: Tensor, mask: Tensor, properties: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        pairs = self.edge_in(edges)
        messages = torch.where(mask[:, None, :, None], pairs, 0.0).sum(2) / mask.sum(1)[:, None, None]
        x = torch.relu(self.node_in(nodes) + messages + self.time_in(time[:, None])[:, None])
        return self.node_out(x), self.edge_out(torch.relu(pairs + x[:, :, None] + x[:, None]))
