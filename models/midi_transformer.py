"""Network of MiDi over atoms, charges, bonds and positions, with the published parameter names and shapes.

It agrees with the published equations up to rounding on graphs without padding. With padding, the published code takes some means
over padded places too, so its prediction for a molecule depends on the largest one of the batch; here it does not.

Source: Vignac et al. (2023), sections 3.2 and A, arXiv 2302.09048, and the names and shapes of its published weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.domains.fields import FieldLogits, centred
from discrete_grpo.models.digress_pooling import Pooling, run_checkpointed, run_once
from discrete_grpo.models.midi_layer import MidiLayer, PositionsMLP, States

__all__ = ["MidiConfig", "MidiTransformer"]


@dataclass(frozen=True)
class MidiConfig:
    """Sizes of a :class:`MidiTransformer`; the defaults are those of the published model of QM9 with hydrogens.

    Attributes:
        atom_classes, charge_classes, bond_classes: number of classes of the fields ``atom``, ``charge`` and ``bond``.
        layers, heads: number of layers and of attention heads.
        width, edge_width, global_width: d, d_e, d_y; ``width`` is a multiple of ``heads``.
        node_hidden, edge_hidden, global_hidden: hidden widths of the feed-forward parts; the last is 2048 in all published models.
        node_mlp, edge_mlp, global_mlp, position_mlp: hidden widths of the input and output MLPs.
        pooling: fourth statistic of pooled sets: ``variance``, as in the published experiments, or ``masked``, the standard
            deviation of the first version of the code.

    Raises:
        ValueError: for a value out of its range.
    """

    atom_classes: int
    charge_classes: int
    bond_classes: int
    layers: int = 12
    heads: int = 8
    width: int = 256
    edge_width: int = 64
    global_width: int = 128
    node_hidden: int = 256
    edge_hidden: int = 128
    global_hidden: int = 2048
    node_mlp: int = 256
    edge_mlp: int = 128
    global_mlp: int = 128
    position_mlp: int = 64
    pooling: Pooling = "variance"

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name != "pooling":
                check_whole(name, getattr(self, name), least=1)
        if self.width % self.heads:
            raise ValueError(f"width: {self.width}, expected a multiple of heads ({self.heads})")
        if self.pooling not in ("variance", "masked"):
            raise ValueError(f"pooling: {self.pooling!r}, expected variance or masked")


def _mlp(first: int, hidden: int, last: int, *more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(first, hidden), nn.ReLU(), nn.Linear(hidden, last), *more)


class MidiTransformer(nn.Module):
    """Clean classes and clean positions of noisy molecules in space: ``(nodes, edges, positions, time, mask) -> FieldLogits``.

    Its state dict is that of the published ``GraphTransformer``. It is equivariant to node permutation, rotation and reflection and
    ignores translation; its bond logits are symmetric; padding changes nothing.

    Args:
        config: sizes.
        checkpoint_layers: whether the backward pass recomputes segments of layers: a fraction of the memory, more time.
    """

    def __init__(self, config: MidiConfig, checkpoint_layers: bool = False) -> None:
        super().__init__()
        self.config, self.checkpoint_layers = config, checkpoint_layers
        c, nodes = config, config.atom_classes + config.charge_classes
        self.mlp_in_X = _mlp(nodes, c.node_mlp, c.width, nn.ReLU())
        self.mlp_in_E = _mlp(c.bond_classes, c.edge_mlp, c.edge_width, nn.ReLU())
        self.mlp_in_y = _mlp(1, c.global_mlp, c.global_width, nn.ReLU())
        self.mlp_in_pos = PositionsMLP(c.position_mlp)
        hidden = (c.node_hidden, c.edge_hidden, c.global_hidden)
        layers = (MidiLayer(c.width, c.edge_width, c.global_width, c.heads, hidden, c.pooling) for _ in range(c.layers))
        self.tf_layers = nn.ModuleList(layers)
        self.mlp_out_X = _mlp(c.width, c.node_mlp, nodes)
        self.mlp_out_E = _mlp(c.edge_width, c.edge_mlp, c.bond_classes)
        self.mlp_out_pos = PositionsMLP(c.position_mlp)

    def init_args(self) -> dict[str, Any]:
        """Return the constructor arguments that a checkpoint stores."""
        return {"config": self.config, "checkpoint_layers": self.checkpoint_layers}

    def forward(
        self,
        nodes: Mapping[str, Int[Tensor, "batch node"]],
        edges: Mapping[str, Int[Tensor, "batch node node"]],
        positions: Float[Tensor, "batch node 3"] | None,
        time: Float[Tensor, " batch"],
        mask: Bool[Tensor, "batch node"],
    ) -> FieldLogits:
        """Logits of the clean classes of ``atom``, ``charge`` and ``bond``, and the clean positions.

        Args:
            nodes: noisy classes of the fields ``atom`` and ``charge``.
            edges: noisy classes of the field ``bond``, symmetric.
            positions: noisy positions, in Å; their mean is subtracted.
            time: times in [0, 1], 0 data and 1 noise.
            mask: which nodes exist.

        Raises:
            ValueError: for missing or unknown fields, no positions, or a class that does not exist.
        """
        self._check(nodes, edges)
        if positions is None:
            raise ValueError("positions: None, expected coordinates: MiDi is a network of molecules in space")
        atom, charge = (torch.where(mask, nodes[name], 0) for name in ("atom", "charge"))
        both = mask[:, :, None] & mask[:, None, :]
        both = both & ~torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        c, one_hot, dtype = self.config, nn.functional.one_hot, next(self.parameters()).dtype
        x = torch.cat([one_hot(atom, c.atom_classes), one_hot(charge, c.charge_classes)], -1).to(dtype)
        e = one_hot(torch.where(both, edges["bond"], 0), c.bond_classes).to(dtype)
        node_logits, edge_logits, moved = self._hidden(x, e, centred(positions.to(dtype), mask), time.to(dtype), mask, both)
        by_field = (x + node_logits).split([c.atom_classes, c.charge_classes], -1)
        bond = e + (edge_logits + edge_logits.transpose(1, 2)) / 2
        return FieldLogits(dict(zip(("atom", "charge"), by_field, strict=True)), {"bond": bond}, moved)

    def _hidden(
        self, x: Tensor, e: Tensor, positions: Tensor, time: Tensor, mask: Tensor, both: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output of the MLPs behind the layers."""
        run = run_checkpointed if self.checkpoint_layers else run_once
        edges = run(self.mlp_in_E, e)
        edges = (edges + edges.transpose(1, 2)) / 2 * both.unsqueeze(-1)
        graph = self.mlp_in_y(time.unsqueeze(-1))
        states = States(self.mlp_in_X(x) * mask.unsqueeze(-1), edges, graph, self.mlp_in_pos(positions, mask))
        count = len(self.tf_layers)
        length = math.isqrt(count - 1) + 1 if self.checkpoint_layers else count  # √L segments of √L layers store the least
        for start in range(0, count, length):
            states = States(*run(self._segment, *states, mask, start, min(start + length, count)))
        return self.mlp_out_X(states.nodes), run(self.mlp_out_E, states.edges), self.mlp_out_pos(states.positions, mask)

    def _segment(
        self, x: Tensor, e: Tensor, y: Tensor, positions: Tensor, mask: Tensor, start: int, stop: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        states = States(x, e, y, positions)
        for k in range(start, stop):
            states = self.tf_layers[k](states, mask, k == len(self.tf_layers) - 1, not self.checkpoint_layers)
        return states.nodes, states.edges, states.graph, states.positions

    def _check(self, nodes: Mapping[str, Tensor], edges: Mapping[str, Tensor]) -> None:
        c = self.config
        sizes = {"atom": c.atom_classes, "charge": c.charge_classes}
        for name, given, known in (("nodes", nodes, sizes), ("edges", edges, {"bond": c.bond_classes})):
            if set(given) != set(known):
                raise ValueError(f"{name}: fields {', '.join(given) or 'none'}, expected {', '.join(known)}")
            for field, classes in known.items():
                for extreme in (int(given[field].min()), int(given[field].max())):
                    check_range(f"{name}: class of {field}", extreme, least=0, most=classes - 1)
